"""Stats of a map that has ended early: nobody gets what was in flight."""

import asyncio
from typing import Any

import pytest
from support.maps import Way, asynchronous, everywhere

from manytail import aconcurrent_map, concurrent_map


def double(number: int) -> int:
    return 2 * number


@pytest.mark.parametrize("workers", [4, "inline"])
def test_a_closed_map_has_nothing_in_flight(workers: Any) -> None:
    seen: list[Any] = []
    results = concurrent_map(double, range(200), workers=workers, progress=seen.append)
    assert next(results) == 0
    assert results.stats().in_flight > 0 or workers == "inline"
    results.close()
    assert results.stats().in_flight == 0
    assert seen[-1].in_flight == 0


def test_a_closed_map_in_a_loop_has_nothing_in_flight() -> None:
    async def main() -> None:
        seen: list[Any] = []
        results = aconcurrent_map(asynchronous(double), range(200), workers=4, progress=seen.append)
        assert await anext(results) == 0
        assert results.stats().in_flight > 0
        await results.aclose()
        assert results.stats().in_flight == 0
        assert seen[-1].in_flight == 0

    asyncio.run(main())


@everywhere
def test_a_map_that_fails_has_nothing_in_flight_at_its_end(mapped: Way) -> None:
    def fails(number: int) -> int:
        if number == 3:
            raise ValueError(number)
        return number

    seen: list[Any] = []
    with pytest.raises(ValueError, match="3"):
        mapped(fails, range(100), workers=2, progress=seen.append)
    assert seen[-1].in_flight == 0
