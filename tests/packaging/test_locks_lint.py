"""Interpreted code holds a lock by `with Held(lock):` alone.

From CPython 3.14 on a signal handler may run after `__enter__` of `with lock:` and before the block is protected, and
after every `lock.acquire()` on any CPython: if it raises, the lock stays held. Compiled code runs no handlers in
between: there `with` is allowed where the lock's own methods are in C. `Held` is in _sync.pyx.

A `with` statement of interpreted code holds what a call makes. What is acquired in another way, or is no lock, is
listed here with the reason."""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "python" / "manytail"
sys.path.insert(0, str(ROOT))

# File, expression: why no lock stays held.
HARMLESS = {
    ("spark/_fan_out.py", "self.subscriber"): "a subscription, which is closed",
    ("_selfcheck.py", "running[key].acquire"): "a worker thread, where no handler runs",
    ("demo/session.py", "temporary"): "a folder, which is removed",
    ("mapping/_runner.py", "self._lock.acquire"): "an iterator calls it: FOR_ITER runs no handler before the next step",
    ("mapping/_map.py", "turn.acquire"): "as above",
    ("mapping/_calls.py", "over.acquire"): "one thread waits for it, once",
    ("mapping/_map.py", "self.delivery(batch) if delivers else nullcontext()"): "a Delivery, which is no lock",
    ("_maps/maps.py", "delivery"): "a Delivery, which is no lock",
    ("_maps/limits/exchange.py", "self._serving.acquire"): "a thread of limits, where no handler runs",
    ("_maps/runners/driver.py", "self._lock.acquire"): "only threads of the map, where no handler runs",
    ("_maps/runners/threads.py", "self._lock.acquire"): "as above",
    ("_maps/runners/inline.py", "self._turn.acquire"): "one try, at the exit of the interpreter",
    ("_progress.py", "self._lock.acquire"): "one try: what is not measured then is measured later",
}


def compiled() -> set[str]:
    """Modules of plain Python that are compiled."""
    import setup

    return {f"{name}.py" for name in setup.PLAIN}


def interpreted() -> list[str]:
    every = {path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py")}
    return sorted(every - compiled())


def unprotected(source: str) -> Iterator[tuple[int, str]]:
    """Lines and expressions."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.With):
            for item in node.items:
                if not isinstance(item.context_expr, ast.Call):
                    yield node.lineno, ast.unparse(item.context_expr)
        elif isinstance(node, ast.Attribute) and node.attr == "acquire":
            yield node.lineno, ast.unparse(node)


@pytest.mark.parametrize("name", interpreted())
def test_interpreted_code_holds_locks_by_held(name: str) -> None:
    found = [(line, it) for line, it in unprotected((PACKAGE / name).read_text()) if (name, it) not in HARMLESS]
    assert found == []


def test_what_is_listed_is_there() -> None:
    for name, it in HARMLESS:
        assert it in {found for _, found in unprotected((PACKAGE / name).read_text())}, f"{name}: {it}"


@pytest.mark.parametrize(
    "planted",
    ["with self._lock:\n    pass", "with open(a) as b, lock:\n    pass", "lock.acquire()", "take = lock.acquire"],
)
def test_it_sees(planted: str) -> None:
    assert [line for line, _ in unprotected(planted)] == [1]


@pytest.mark.parametrize("path", sorted((ROOT / "pyx").rglob("*.pyx")), ids=lambda path: path.name)
def test_compiled_code_waits_for_no_event_of_the_standard_library(path: Path) -> None:
    """threading's Event and Condition are interpreted, and take a lock by `with`."""
    assert re.findall(r"\bthreading\.(?:Event|Condition|Semaphore)\(", path.read_text()) == []
