"""Errors of odd shape, whichever of the user's functions raises them: everyone who waits gets an error, and no failure
is kept alive by what handled it."""

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import pytest
from support.threads import DEADLINE

from manytail import AsyncCaller, Batch, Caller, Rate, Retry, Shared, aconcurrent_map, concurrent_map


class PanicError(BaseException):
    """As an extension raises it: no Exception."""


@dataclass(frozen=True)
class Frozen(Exception):
    """No attribute of it can be set, `__cause__` and `__notes__` included."""

    code: int = 7


class EmptyError(Exception):
    """It is false."""

    def __len__(self) -> int:
        return 0


class SilentError(Exception):
    """It has no text."""

    def __repr__(self) -> str:
        raise ValueError

    __str__ = __repr__


ODD = [PanicError, Frozen, EmptyError, SilentError]


class Codec:
    def __init__(self, kind: type[BaseException]) -> None:
        self.kind = kind

    def encode(self, result: Any) -> bytes:
        raise self.kind

    def decode(self, data: bytes) -> Any:
        raise NotImplementedError


def in_threads(fn: Callable[[Any], Any], items: list[Any], **options: Any) -> list[Any]:
    return [one.error for one in concurrent_map(fn, items, errors="return", **options)]


def inline(fn: Callable[[Any], Any], items: list[Any], **options: Any) -> list[Any]:
    return in_threads(fn, items, **{**options, "workers": "inline"})


def batched(fn: Callable[[Any], Any], items: list[Any], **options: Any) -> list[Any]:
    def call(batch: list[Any], resource: Any = None) -> list[Any]:
        return [fn(item) for item in batch]

    return in_threads(call, items, batch=2, **options)


async def awaited(fn: Callable[[Any], Any], item: Any) -> Any:
    await asyncio.sleep(0)
    return fn(item)


def in_loop(fn: Callable[[Any], Any], items: list[Any], **options: Any) -> list[Any]:
    async def call(item: Any, resource: Any = None) -> Any:
        return await awaited(fn, item)

    async def collect() -> list[Any]:
        return [one.error async for one in aconcurrent_map(call, items, errors="return", **options)]

    return asyncio.run(asyncio.wait_for(collect(), DEADLINE))


def handed_in(fn: Callable[[Any], Any], items: list[Any], **options: Any) -> list[Any]:
    with Caller(fn, **options) as call:
        try:
            futures = [call.submit(item) for item in items]
        except RuntimeError as error:  # it has failed meanwhile
            return [error]
        return [future.exception(DEADLINE) for future in futures]


def waited_for(fn: Callable[[Any], Any], items: list[Any], **options: Any) -> list[Any]:
    errors: SimpleQueue[tuple[int, BaseException | None]] = SimpleQueue()

    def wait(place: int) -> None:
        try:
            call(items[place])
            errors.put((place, None))
        except BaseException as error:
            errors.put((place, error))

    with Caller(fn, **options) as call:
        threads = [threading.Thread(target=wait, args=(place,), daemon=True) for place in range(len(items))]
        for thread in threads:
            thread.start()
        found = dict(errors.get(timeout=DEADLINE) for _ in items)
        for thread in threads:
            thread.join(DEADLINE)  # which drops the error last
    return [found[place] for place in range(len(items))]


def awaited_in_loop(fn: Callable[[Any], Any], items: list[Any], **options: Any) -> list[Any]:
    async def call_one(item: Any, resource: Any = None) -> Any:
        return await awaited(fn, item)

    async def collect() -> list[Any]:
        call: AsyncCaller[Any, Any] = AsyncCaller(call_one, **options)
        errors = await asyncio.wait_for(asyncio.gather(*map(call, items), return_exceptions=True), DEADLINE)
        await call.aclose(cancel=True)
        return [error if isinstance(error, BaseException) else None for error in errors]

    return asyncio.run(collect())


MAPS = [in_threads, inline, batched, in_loop]
ALL = [*MAPS, handed_in, waited_for, awaited_in_loop]
ways = pytest.mark.parametrize("way", ALL)
kinds = pytest.mark.parametrize("kind", ODD)


def fails(item: Any) -> Any:
    raise ValueError(item)


def with_resource(item: Any, resource: Any = None) -> Any:
    return item


def raising(kind: type[BaseException]) -> Callable[..., Any]:
    def function(*arguments: Any) -> Any:
        raise kind

    return function


RAISED = [("on", kind) for kind in ODD] + [("backoff", Frozen), ("fatal", Frozen), ("fatal", PanicError)]
RAISED += [(option, Frozen) for option in ("key", "priority", "item_id", "cost")]


@ways
@pytest.mark.parametrize(("option", "kind"), RAISED)
def test_a_function_of_an_option_may_raise_anything(way, option, kind):
    options: dict[str, Any] = {
        "on": {"retry": Retry(3, raising(kind))},
        "backoff": {"retry": Retry(3, backoff=raising(kind))},
        "fatal": {"fatal": raising(kind)},
        "key": {"key": raising(kind)},
        "priority": {"priority": raising(kind)},
        "item_id": {"item_id": raising(kind), "dedup": 3},
        "cost": {"limits": Rate(1e9, cost=raising(kind))},
    }[option]
    if option == "fatal" and way not in MAPS:
        options = {"retry": Retry(3, raising(kind))}
    errors = way(fails, [1, 2, 3], **options)
    assert [type(error) for error in errors] == [kind] * 3
    if option in ("on", "backoff", "fatal"):
        assert [type(error.__cause__) for error in errors] == [ValueError] * 3
    assert option in errors[0].__notes__[0] or (option == "fatal" and way not in MAPS)
    assert len(set(map(id, errors))) == 3


@ways
@kinds
def test_fn_may_raise_anything(way, kind):
    errors = way(raising(kind), [1, 2, 3], retry=Retry(1, backoff=0))
    assert [type(error) for error in errors] == [kind] * 3


@ways
@kinds
def test_a_codec_may_raise_anything(way, kind, tmp_path):
    """A map ends with TypeError; who waits for a call gets its result."""
    options = {"remember": Shared(tmp_path / "x.db", "x", codec=Codec(kind))}
    if way in MAPS:
        with pytest.raises(TypeError, match="cannot be recorded"):
            way(int, [1, 2, 3], **options)
    else:
        assert way(int, [1, 2, 3], **options) == [None] * 3


@ways
@kinds
def test_setup_may_raise_anything(way, kind):
    """It fails the map, or all who wait."""
    if way in MAPS:
        with pytest.raises(kind):
            way(with_resource, [1, 2, 3], setup=raising(kind))
    else:
        errors = way(with_resource, [1, 2, 3], setup=raising(kind))
        assert all(isinstance(error, (kind, RuntimeError)) for error in errors)


# ---------------------------------------------------------------------------------------------------- what stays alive
class Local:
    """What a call works on."""

    def __init__(self, found: list[weakref.ref[Any]]) -> None:
        found.append(weakref.ref(self))


class WeakError(Exception):
    def __init__(self, found: list[weakref.ref[Any]]) -> None:
        found.append(weakref.ref(self))


def failing(found: list[weakref.ref[Any]]) -> Callable[..., Any]:
    """A function whose calls fail, and that notes their errors and what they work on."""

    def work(*arguments: Any) -> Any:
        local = Local(found)
        assert local is not None
        raise WeakError(found)

    return work


def living(found: list[weakref.ref[Any]]) -> list[Any]:
    return [one() for one in found if one() is not None]


@pytest.mark.thread_unsafe(reason="turns the collector off")
@pytest.mark.parametrize("way", [in_threads, inline, batched, handed_in, waited_for])
@pytest.mark.parametrize("options", [{}, {"retry": Retry(1, backoff=0)}, {"key": str, "timeout": DEADLINE}], ids=str)
def test_a_failure_is_freed_with_the_last_reference(way, options):
    found: list[weakref.ref[Any]] = []
    gc.collect()
    gc.disable()
    try:
        way(failing(found), list(range(20)), **options)
        alive = living(found)
    finally:
        gc.enable()
    assert len(found) >= 40
    assert alive == []


@pytest.mark.thread_unsafe(reason="turns the collector off")
@pytest.mark.parametrize("workers", [4, "inline"])
def test_the_error_of_a_map_is_freed_with_it(workers):
    found: list[weakref.ref[Any]] = []

    def run() -> None:
        try:
            list(concurrent_map(failing(found), [1], workers=workers))
        except WeakError:
            return

    gc.collect()
    gc.disable()
    try:
        run()
        alive = living(found)
    finally:
        gc.enable()
    assert len(found) == 2
    assert alive == []


@pytest.mark.thread_unsafe(reason="turns the collector off")
def test_what_an_option_raises_is_freed_too():
    found: list[weakref.ref[Any]] = []
    fail = failing(found)
    gc.collect()
    gc.disable()
    try:
        for options in ({"key": fail}, {"priority": fail}, {"retry": Retry(1, fail)}, {"fatal": fail}):
            in_threads(fails, [1, 2, 3], **options)  # type: ignore[arg-type]
        alive = living(found)
    finally:
        gc.enable()
    assert len(found) >= 24
    assert alive == []


# ---------------------------------------------------------------------------------------------------- whose error it is
def test_each_item_of_a_batch_has_an_error_of_its_own():
    """What one waiting thread adds to it, a traceback and a note, is not in that of another."""

    class Mine(Exception):
        def __init__(self, text: str, code: int) -> None:
            super().__init__(f"{text}!")  # a copy by `args` would take one argument too few
            self.code = code

    cause = ValueError("why")

    def fail(batch: list[Any]) -> Any:
        raise Mine("no", 7) from cause

    errors = [one.error for one in concurrent_map(fail, range(4), batch=4, errors="return", fatal=(), retry=0)]
    assert [str(error) for error in errors] == ["no!"] * 4
    errors = [
        one.error
        for one in concurrent_map(
            lambda batch: [Mine("no", 7)] * len(batch), range(4), batch=4, errors="return", max_in_flight=64
        )
    ]
    assert [(type(error), error.code, error.args) for error in errors] == [(Mine, 7, ("no!",))] * 4
    assert len(set(map(id, errors))) == 4
    errors[0].add_note("seen")
    assert not hasattr(errors[1], "__notes__")


@pytest.mark.parametrize("kind", ODD)
def test_those_who_wait_for_a_batch_raise_errors_of_their_own(kind):
    error = kind()

    def fail(batch: list[Any]) -> list[Any]:
        return [error] * len(batch)

    errors = waited_for(fail, [1, 2, 3, 4], batch=Batch(4, linger=60))
    assert [type(one) for one in errors] == [kind] * 4
    assert len(set(map(id, errors))) == 4
    assert [len(one.__notes__) for one in errors] == [1] * 4


def test_a_late_batch_gives_each_item_an_error_of_its_own():
    errors = handed_in(lambda batch: 1, [1, 2, 3, 4], batch=Batch(4, linger=60))
    assert [type(one) for one in errors] == [TypeError] * 4
    assert len(set(map(id, errors))) == 4


def test_a_failure_names_its_item():
    urls = [f"https://example.org/{'x' * 80}/{number}" for number in range(30)]

    def fetch(url: str) -> str:
        if url.endswith("/17"):
            raise ValueError("no")
        return url

    for items in (urls, iter(urls)):
        with pytest.raises(ValueError, match="no") as raised:
            list(concurrent_map(fetch, items))
        (note,) = raised.value.__notes__
        assert note.startswith(f"manytail: items[17], {urls[17][:20]!r}"[:-1])
        assert note.endswith("/17': the item with key None failed after 1 attempt")


@pytest.mark.parametrize("item", [SilentError(), b"x" * 10**7, ["y" * 10**6] * 100], ids=["none", "bytes", "texts"])
def test_the_text_of_an_item_may_be_huge_or_missing(item):
    with pytest.raises(ZeroDivisionError) as raised:
        list(concurrent_map(lambda _: 1 / 0, [item], key=lambda _: item if isinstance(item, Exception) else 1))
    assert 50 < len(raised.value.__notes__[0]) < 600
