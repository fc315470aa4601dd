"""Retry, Breaker and Batch: frozen values, checked where they are made. And the names of what a path remembers."""

import functools
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.process import environment, run_script
from support.threads import DEADLINE

import manytail
from manytail import Batch, Breaker, Retry, Shared, concurrent_map
from manytail.mapping._shared import name_of


# ---------------------------------------------------------------------------------------------------- values
@pytest.mark.parametrize(
    ("made", "shown"),
    [
        (Retry(), "Retry(3)"),
        (Retry(2, OSError, backoff=1), "Retry(2, OSError, backoff=1.0)"),
        (
            Retry(0, (OSError, manytail.ManytailError), within=60, defer=5),
            "Retry(0, (OSError, ManytailError), within=60.0, defer=5.0)",
        ),
        (Retry(1, (OSError,), max_backoff=5), "Retry(1, (OSError,), max_backoff=5.0)"),
        (Breaker(), "Breaker(5)"),
        (Breaker(2, reset=1, when_open="fail"), "Breaker(2, reset=1.0, when_open='fail')"),
        (Batch(8), "Batch(8)"),
        (Batch(8, linger=0.5), "Batch(8, linger=0.5)"),
    ],
)
def test_a_policy_is_a_frozen_value(made: Any, shown: str) -> None:
    assert repr(made) == shown
    again = eval(shown, {**vars(manytail), "Retry": Retry, "Breaker": Breaker, "Batch": Batch})
    assert made == again
    assert hash(made) == hash(again)
    assert pickle.loads(pickle.dumps(made)) == made
    assert type(made).__module__ == "manytail"
    with pytest.raises(AttributeError):
        made.times = made.failures = made.size = 1


def test_policies_that_differ_are_not_equal() -> None:
    assert len({Retry(3), Retry(2), Retry(3, OSError), Retry(3, backoff=1), Retry(3, within=1), Retry(3, defer=1)}) == 6
    assert Retry(5) != Breaker(5)


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda: Retry(-1), ValueError, r"times: -1 \(expected: an int >= 0\)"),
        (lambda: Retry(1.5), TypeError, r"times: 1\.5 of type float \(expected: an int >= 0\)"),
        (lambda: Retry(True), TypeError, r"times: True of type bool"),
        (
            lambda: Retry(1, "ValueError"),
            TypeError,
            r"on: 'ValueError' of type str \(expected: an exception class, a tu",
        ),
        (lambda: Retry(1, (ValueError, int)), TypeError, r"on: .* or a callable that takes the exception\)"),
        (lambda: Retry(1, lambda: True), TypeError, r"on: .* or a callable that takes the exception\)"),
        (lambda: Retry(backoff=-0.1), ValueError, r"backoff: -0\.1 \(expected: seconds, a number >= 0\)"),
        (lambda: Retry(backoff=float("inf")), ValueError, r"backoff: inf \(expected: seconds, a finite number >= 0\)"),
        (lambda: Retry(backoff=None), TypeError, r"backoff: None of type NoneType \(expected: seconds, a number >= 0"),
        (lambda: Retry(backoff=lambda k: 1), TypeError, r"backoff: .* takes the attempt's number and the exception\)"),
        (lambda: Retry(max_backoff=0), ValueError, r"max_backoff: 0 \(expected: seconds, a number > 0\)"),
        (lambda: Retry(within=0), ValueError, r"within: 0 \(expected: seconds, a number > 0\)"),
        (lambda: Retry(defer=-1), ValueError, r"defer: -1 \(expected: seconds, a number >= 0\)"),
        (lambda: Breaker(0), ValueError, r"failures: 0 \(expected: an int >= 1\)"),
        (lambda: Breaker(reset=0), ValueError, r"reset: 0 \(expected: seconds, a number > 0\)"),
        (lambda: Breaker(reset=float("inf")), ValueError, r"reset: inf \(expected: seconds, a finite number > 0\)"),
        (lambda: Breaker(reset="1"), TypeError, r"reset: '1' of type str \(expected: seconds, a number > 0\)"),
        (lambda: Breaker(when_open="stop"), ValueError, r"when_open: 'stop' \(expected: 'wait' or 'fail'\)"),
        (lambda: Batch(0), ValueError, r"size: 0 \(expected: an int >= 1\)"),
        (lambda: Batch(2, linger=-1), ValueError, r"linger: -1 \(expected: seconds, a number >= 0\)"),
        (lambda: Batch(2, linger=float("inf")), ValueError, r"linger: inf \(expected: seconds, a finite number >= 0\)"),
    ],
)
def test_a_bad_argument_is_refused_where_the_object_is_made(
    make: Callable[[], Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        make()


def test_a_batch_of_one_is_a_list() -> None:
    assert list(concurrent_map(lambda items: [len(items)], range(3), batch=1)) == [1, 1, 1]


# ---------------------------------------------------------------------------------------------------- a path
def fetch(item: int) -> int:
    return item


class Client:
    def call(self, item: int) -> int:
        return item

    @classmethod
    def made(cls, item: int) -> int:
        return item

    def __call__(self, item: int) -> int:
        return item


@pytest.mark.thread_unsafe(reason="a database of its own")
def test_a_path_is_a_shared_with_the_name_of_the_function(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    assert list(concurrent_map(fetch, range(3), remember=path)) == [0, 1, 2]
    assert list(concurrent_map(fetch, range(4), remember=str(path))) == [0, 1, 2, 3]
    assert Shared(path, f"{__name__}.fetch").remembered() == 4


def test_the_name_of_a_function_is_that_of_its_module_and_its_own() -> None:
    assert name_of(fetch) == f"{__name__}.fetch"
    assert name_of(Client.made) == f"{__name__}.Client.made"
    assert name_of(Client) == f"{__name__}.Client"
    assert name_of(len) == "builtins.len"
    assert name_of(str.upper) == "builtins.str.upper"


def test_a_function_without_a_name_of_its_own_is_refused(tmp_path: Path) -> None:
    def local(item: int) -> int:
        return item

    for fn in (local, lambda item: item, functools.partial(fetch), Client(), Client().call, [].append):
        with pytest.raises(ValueError, match=r"remember: .* \(expected: .* name the results: Shared\(path, name\)\)"):
            concurrent_map(fn, [1], remember=tmp_path / "run.db")
    assert not (tmp_path / "run.db").exists()


PROGRAM = """
import multiprocessing
from manytail.mapping._shared import name_of

def fetch(item):
    return item

def show():
    try:
        print(name_of(fetch), flush=True)
    except ValueError as error:
        print(error, flush=True)

if __name__ == "__main__":
    show()
    {rest}
"""
SPAWN = """process = multiprocessing.get_context("spawn").Process(target=show)
    process.start()
    process.join()"""


def test_the_name_in_a_program_is_that_of_its_file_or_module(tmp_path: Path) -> None:
    """As a script and as a module, also in a process that multiprocessing spawns."""
    program = tmp_path / "prices.py"
    program.write_text(PROGRAM.format(rest=SPAWN))
    for arguments in ([str(program)], ["-m", "prices"]):
        command = [sys.executable, *arguments]
        said = subprocess.run(
            command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=DEADLINE
        )
        assert said.stdout.split() == ["prices.fetch"] * 2, said.stderr


def test_a_function_that_was_typed_in_is_refused() -> None:
    """As in a notebook: its module has no file."""
    assert "name the results: Shared(path, name)" in run_script(PROGRAM.format(rest=""))
