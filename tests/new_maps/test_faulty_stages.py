"""A fault of the engine, planted as a stage that raises, ends the map with that error, whatever drives it."""

import asyncio
import threading
from collections.abc import Iterable
from typing import Any

import pytest

from manytail._maps import options
from manytail._maps.engine.item import Call, Ended
from manytail._maps.engine.stages import GO, Decision, Stage
from manytail._maps.maps import AsyncResults, Plan, Results


class Fault(Exception):
    pass


class Faulty(Stage):
    """Raises in one of its methods, for the third call."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self._where, self._calls = where, 0

    def _may_raise(self, where: str) -> None:
        if where == self._where:
            self._calls += 1
            if self._calls > 2:
                raise Fault(where)

    def before(self, call: Call, now: float) -> Decision:
        self._may_raise("before")
        return GO

    def after(self, call: Call, ended: Ended, now: float) -> Iterable[Any]:
        self._may_raise("after")
        return ()

    def leave(self, now: float) -> None:
        raise Fault("leave")  # of a stage that is broken


class FaultyPlan(Plan):
    def stages(self, memory: Any) -> list[Stage]:
        return [*super().stages(memory), Faulty(self.where)]

    where = "before"


class FaultyAfter(FaultyPlan):
    where = "after"


def plain(item: int) -> int:
    return item


async def coroutine(item: int) -> int:
    await asyncio.sleep(0)
    return item


async def all_of(results: AsyncResults[int]) -> list[int]:
    return [one async for one in results]


PLANS = pytest.mark.parametrize("made", [FaultyPlan, FaultyAfter], ids=["before", "after"])


@PLANS
@pytest.mark.parametrize("fn", [plain, coroutine], ids=["plain", "async"])
@pytest.mark.parametrize("given", [{"workers": 2}, {"workers": "inline"}], ids=["threads", "inline"])
def test_a_fault_of_the_engine_ends_the_map(given, fn, made):
    results: Results[int] = Results(made(fn, options.check(fn, given)), iter(range(100)))
    with pytest.raises(Fault, match=made.where):
        list(results)
    assert next(results, None) is None
    assert not [one for one in threading.enumerate() if getattr(one, "driver", None) is results._driver]


@PLANS
def test_a_fault_of_the_engine_ends_the_map_of_a_loop(made):
    async def run() -> None:
        results: AsyncResults[int] = AsyncResults(made(coroutine, options.check(coroutine, {})), iter(range(100)))
        with pytest.raises(Fault, match=made.where):
            await all_of(results)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())
