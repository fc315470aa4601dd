"""The automatic window grows only while what waits is below 256 MB, by sys.getsizeof or `nbytes`.

Most tests use a loop: what is done there when all tasks wait is all that is done, on any machine."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from manytail.mapping import Batch, Retry, aconcurrent_map, concurrent_map

WORKERS = 4
BASE = 4 * WORKERS  # items that the window holds at first
MB = 1_000_000
LIMIT = 256


class Large:
    """Says that it has that many MB."""

    def __init__(self, megabytes: int = 25) -> None:
        self.nbytes = megabytes * MB

    nbytes = 0


class Sized:
    def __sizeof__(self) -> int:
        return 25 * MB


async def rest() -> None:
    """Let the other tasks go on until all of them wait."""
    for _ in range(2_000):
        await asyncio.sleep(0)


async def begun_behind(make: Callable[[], Any], items: Any = None, **options: Any) -> int:
    """How many calls begin while the first one in the order runs."""
    begun, freed = [], asyncio.Event()

    async def fn(item: Any) -> Any:
        begun.append(item)
        if len(begun) == 1:
            await freed.wait()
        return [make() for _ in item] if isinstance(item, list) else make()

    async with aconcurrent_map(fn, range(600) if items is None else items, workers=WORKERS, **options) as results:
        first = asyncio.ensure_future(anext(results))
        await rest()
        number = len(begun)
        freed.set()
        await first
    return number


@pytest.mark.parametrize("make", [Large, Sized])
@pytest.mark.parametrize("order", ["input", "key"])
def test_the_window_does_not_grow_while_large_results_wait(make: Any, order: Any) -> None:
    options = {"order": order, "key": lambda item: 0} if order == "key" else {}
    assert asyncio.run(begun_behind(make, **options)) == BASE


def test_the_window_grows_while_small_results_wait() -> None:
    assert asyncio.run(begun_behind(lambda: "small")) == 600
    assert asyncio.run(begun_behind(lambda: bytes(10_000))) == 600


def test_the_window_grows_until_256_mb_wait() -> None:
    begun = asyncio.run(begun_behind(lambda: Large(1)))
    assert LIMIT <= begun - 1 <= LIMIT + BASE


def test_the_results_of_a_batch_count_one_by_one() -> None:
    calls = asyncio.run(begun_behind(lambda: Large(40), batch=Batch(2)))
    assert calls == BASE, "batches in a window that did not grow"


def test_large_items_that_wait_for_their_key_count() -> None:
    read = []

    async def items() -> AsyncIterator[Large]:
        for number in range(600):
            read.append(number)
            yield Large()

    assert asyncio.run(begun_behind(int, items(), key=lambda item: 0, per_key=1)) == 1
    assert len(read) <= BASE + 2, "and one that is being read"


def test_a_window_that_has_grown_does_not_fill_with_large_results() -> None:
    """Small results have let it grow. Nobody takes the large ones that follow."""
    begun = []

    async def run() -> None:
        freed = asyncio.Event()

        async def fn(item: int) -> Any:
            begun.append(item)
            if item == 0:
                await freed.wait()
            return item if item < 500 else Large()

        async with aconcurrent_map(fn, range(3_000), workers=WORKERS) as results:
            first = asyncio.ensure_future(anext(results))
            await rest()
            assert len(begun) >= 500, "the window has grown"
            freed.set()
            await first
            await rest()

    asyncio.run(run())
    large = len([item for item in begun if item >= 500])
    assert large <= LIMIT // 25 + 2 * BASE


def test_dropped_failures_do_not_count_any_longer() -> None:
    """Their items were large: were they counted for ever, the window would not grow later."""
    begun = []

    async def run() -> None:
        freed = asyncio.Event()

        async def fn(item: Any) -> Any:
            begun.append(item)
            if isinstance(item, Large):
                raise ValueError("bad")
            if item == 0:
                await freed.wait()
            return item

        async def items() -> AsyncIterator[Any]:
            for _ in range(50):
                yield Large()
            for number in range(600):
                yield number

        async with aconcurrent_map(fn, items(), workers=WORKERS, errors="drop") as results:
            first = asyncio.ensure_future(anext(results))
            await rest()
            assert len(begun) == 650
            freed.set()
            await first

    asyncio.run(run())


class Raises:
    def __init__(self, error: type[BaseException]) -> None:
        self._error = error

    @property
    def nbytes(self) -> int:
        raise self._error("of the user's")

    def __sizeof__(self) -> int:
        raise self._error("of the user's")


class Nonsense:
    nbytes = "many"

    def __sizeof__(self) -> int:
        return -1


class Answers:
    """As a proxy of a server does."""

    def __getattr__(self, name: str) -> int:
        raise AssertionError(f"asked for {name}")


@pytest.mark.parametrize("error", [ValueError, AttributeError, KeyboardInterrupt, SystemExit, GeneratorExit])
@pytest.mark.parametrize("batch", [None, 4])
def test_what_a_size_raises_breaks_nothing(error: Any, batch: Any) -> None:
    def fn(item: Any) -> Any:
        return [Raises(error) for _ in item] if batch else Raises(error)

    results = list(concurrent_map(fn, iter([Raises(error)] * 50), workers=WORKERS, batch=batch))
    assert [type(result) for result in results] == [Raises] * 50


@pytest.mark.parametrize("workers", [WORKERS, "inline"])
@pytest.mark.parametrize("kind", [Nonsense, Answers])
def test_a_size_that_is_none_breaks_nothing(workers: Any, kind: Any) -> None:
    results = concurrent_map(lambda item: kind(), iter([kind() for _ in range(50)]), workers=workers)
    assert [type(result) for result in results] == [kind] * 50


@pytest.mark.parametrize("workers", [WORKERS, "inline"])
def test_a_size_is_asked_for_without_a_lock(workers: Any) -> None:
    """It may use the map, and wait for another thread that does."""
    asked = []

    class Uses:
        @property
        def nbytes(self) -> int:
            other = threading.Thread(target=results.stats)
            other.start()
            other.join()
            results.stop()
            asked.append(results.stats().calls)
            return 25 * MB

    def values() -> Iterator[int]:
        yield from range(10)

    with concurrent_map(lambda item: Uses(), values(), workers=workers, retry=Retry(1)) as results:
        assert isinstance(next(results), Uses)
    assert asked
