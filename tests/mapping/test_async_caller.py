"""AsyncCaller: items that come one by one, in every kind of asyncio's loops."""

import asyncio
import contextvars
import gc
import random
import threading
import weakref
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.counts import part
from support.maps import in_callers_loops
from support.threads import DEADLINE, wait_until

from manytail import AsyncCaller, Batch, Breaker, Concurrency, Rate, Retry, Shared

Run = Callable[[Coroutine[Any, Any, Any]], Any]
LONG_LINGER = 10 * DEADLINE


async def double(item: int) -> int:
    await asyncio.sleep(0)
    return 2 * item


class Gate:
    """Calls wait at it until it opens. What was cancelled there is noted."""

    def __init__(self) -> None:
        self.begun: list[Any] = []
        self.cancelled: list[Any] = []
        self.opened = asyncio.Event()

    async def __call__(self, item: Any) -> Any:
        self.begun.append(item)
        try:
            await self.opened.wait()
        except asyncio.CancelledError:
            self.cancelled.append(item)
            raise
        return item

    async def wait_for(self, *items: Any) -> None:
        await until(lambda: self.begun == list(items))


async def until(predicate: Callable[[], Any]) -> None:
    async with asyncio.timeout(DEADLINE):
        while not predicate():
            await asyncio.sleep(0)


async def cancel(task: "asyncio.Task[Any]") -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


# ---------------------------------------------------------------------------------------------------- results, errors
@in_callers_loops
def test_many_tasks_get_their_own_results(run: Run) -> None:
    async def main() -> None:
        async with AsyncCaller(double, workers=5, max_in_flight=7) as caller:
            assert await asyncio.gather(*map(caller, range(100))) == list(range(0, 200, 2))
            stats = caller.stats()
        assert (stats.done, stats.failed, stats.in_flight, stats.workers) == (100, 0, 0, 5)
        with pytest.raises(RuntimeError, match="is closed"):
            await caller(1)
        await caller.aclose()

    run(main())


@in_callers_loops
def test_what_fn_raises_is_raised(run: Run) -> None:
    async def fail(item: Any) -> None:
        raise item

    async def main() -> None:
        async with AsyncCaller(fail, retry=Retry(1, backoff=0), key=repr) as caller:
            with pytest.raises(ValueError, match="bad") as raised:
                await caller(ValueError("bad"))
            assert raised.value.__notes__ == [
                "manytail: the item with key \"ValueError('bad')\" failed after 2 attempts"
            ]

    async def stop() -> None:
        async def stops(item: Any) -> None:
            next(iter(()))

        async with AsyncCaller(stops) as caller:
            with pytest.raises(RuntimeError):  # PEP 479
                await caller(1)

    run(main())
    run(stop())


@in_callers_loops
def test_functions_run_in_the_context_of_the_caller(run: Run) -> None:
    variable = contextvars.ContextVar("variable", default="none")
    seen: list[str] = []

    async def fn(item: int) -> str:
        return variable.get()

    async def main() -> None:
        variable.set("made")
        async with AsyncCaller(fn, key=lambda item: seen.append(variable.get())) as caller:
            variable.set("called")
            assert await caller(1) == "made"
        assert seen == ["made"]

    run(main())


def test_a_plain_function_is_refused() -> None:
    with pytest.raises(TypeError, match=r"^fn: .*expected: an `async def` function; Caller takes plain ones"):
        AsyncCaller(len)  # type: ignore[call-overload]


def test_another_loop_is_refused() -> None:
    caller = AsyncCaller(double)

    async def main() -> int:
        return await caller(1)

    assert asyncio.run(main()) == 2
    with pytest.raises(RuntimeError, match="another loop"):
        asyncio.run(main())


# ---------------------------------------------------------------------------------------------------- what starts when
@in_callers_loops
def test_items_of_one_key_start_in_order_and_handing_in_waits_for_the_window(run: Run) -> None:
    async def main() -> None:
        gate = Gate()
        async with AsyncCaller(gate, workers=1, max_in_flight=2, key=lambda item: item[0]) as caller:
            items = [(key, number) for number in range(4) for key in "ab"]
            tasks = [asyncio.create_task(caller(item)) for item in items]
            await gate.wait_for(("a", 0))
            assert caller.stats().in_flight == 2
            gate.opened.set()
            assert await asyncio.gather(*tasks) == items
        assert [item for item in gate.begun if item[0] == "a"] == items[::2]
        assert [item for item in gate.begun if item[0] == "b"] == items[1::2]

    run(main())


@in_callers_loops
def test_tasks_share_batches_and_equal_calls(run: Run) -> None:
    calls: list[list[int]] = []

    async def fn(items: list[int]) -> list[int]:
        calls.append(items)
        return items

    async def main() -> None:
        async with AsyncCaller(fn, batch=Batch(4, linger=LONG_LINGER)) as caller:
            assert await asyncio.gather(*map(caller, range(4))) == list(range(4))
            lingers = asyncio.create_task(caller(5))
            await until(lambda: caller.stats().in_flight == 1)
        assert await lingers == 5
        assert calls == [[0, 1, 2, 3], [5]]
        gate = Gate()
        async with AsyncCaller(gate, dedup=3) as alike:
            tasks = [asyncio.create_task(alike("a")) for _ in range(3)]
            await until(lambda: alike.stats().in_flight == 3)
            gate.opened.set()
            assert await asyncio.gather(*tasks) == ["a"] * 3
        assert gate.begun == ["a"]

    run(main())


def test_results_are_remembered(tmp_path: Path) -> None:
    called: list[int] = []

    async def fn(item: int) -> int:
        called.append(item)
        return item

    async def main() -> None:
        async with AsyncCaller(fn, remember=Shared(tmp_path / "calls.db", "fn")) as caller:
            assert await asyncio.gather(*map(caller, range(10))) == list(range(10))

    asyncio.run(main())
    asyncio.run(main())
    assert sorted(called) == list(range(10))


# ---------------------------------------------------------------------------------------------------- cancelled awaits
@in_callers_loops
@pytest.mark.parametrize("options", [{}, {"limits": Rate(1e9)}, {"timeout": 60}], ids=["plain", "gate", "timed"])
def test_a_cancelled_await_cancels_an_item_that_waits_and_a_call_that_nobody_shares(run: Run, options: Any) -> None:
    async def main() -> None:
        gate = Gate()
        async with AsyncCaller(gate, workers=1, retry=Retry(3, BaseException, backoff=0), **options) as caller:
            runs, waits, last = (asyncio.create_task(caller(item)) for item in ("runs", "waits", "last"))
            await gate.wait_for("runs")
            await cancel(waits)
            await cancel(runs)
            await gate.wait_for("runs", "last")
            gate.opened.set()
            assert await last == "last"
        assert gate.cancelled == ["runs"]

    run(main())


@in_callers_loops
def test_a_call_that_an_equal_item_waits_for_goes_on_until_that_is_cancelled_too(run: Run) -> None:
    async def main() -> None:
        gate = Gate()
        async with AsyncCaller(gate, workers=2, dedup=3) as caller:
            leader, follower, other = (asyncio.create_task(caller("a")) for _ in range(3))
            await until(lambda: gate.begun == ["a"] and caller.stats().in_flight == 3)
            await cancel(leader)
            await cancel(other)
            gate.opened.set()
            assert await follower == "a"
            assert (gate.begun, gate.cancelled) == (["a"], [])
            gate.opened.clear()
            both = [asyncio.create_task(caller("b")) for _ in range(2)]
            await until(lambda: gate.begun == ["a", "b"] and caller.stats().in_flight == 2)
            for task in both:
                await cancel(task)
            await until(lambda: gate.cancelled == ["b"])
            gate.opened.set()
            assert await caller("b") == "b"

    run(main())


@in_callers_loops
def test_a_batch_is_cancelled_only_with_all_its_items(run: Run) -> None:
    async def main() -> None:
        gate = Gate()
        async with AsyncCaller(gate, batch=Batch(2, linger=LONG_LINGER)) as caller:
            first, second = (asyncio.create_task(caller(item)) for item in (1, 2))
            await gate.wait_for([1, 2])
            await cancel(first)
            gate.opened.set()
            assert await second == 2
            gate.opened.clear()
            both = [asyncio.create_task(caller(item)) for item in (3, 4)]
            await gate.wait_for([1, 2], [3, 4])
            for task in both:
                await cancel(task)
            await until(lambda: gate.cancelled == [[3, 4]])

    run(main())


# ---------------------------------------------------------------------------------------------------- calls inside fn
@in_callers_loops
@pytest.mark.parametrize(
    ("options", "works"),
    [
        ({"workers": 1}, False),
        ({"workers": 2}, True),
        ({"workers": 3, "key": lambda item: "one", "per_key": 1}, False),
        ({"workers": 3, "item_id": lambda item: "one", "dedup": 1}, False),
        ({"workers": 3, "limits": Concurrency(1)}, False),
        ({"workers": 1, "max_in_flight": 1}, False),
        ({"workers": 2, "max_in_flight": 2}, True),
    ],
    ids=["one", "two", "per_key", "dedup", "concurrency", "one in flight", "two in flight"],
)
def test_a_call_inside_fn_is_refused_that_would_wait_for_itself(run: Run, options: Any, works: bool) -> None:
    async def main() -> None:
        async def fn(item: int) -> int:
            return await caller(item + 1) if item == 0 else item

        async with AsyncCaller(fn, **options) as caller:
            if works:
                assert await caller(0) == 1
            else:
                with pytest.raises(RuntimeError, match="would wait for itself"):
                    await caller(0)
            assert await caller(5) == 5

    run(main())


@in_callers_loops
def test_a_task_that_outlives_the_call_which_made_it_is_not_inside_it(run: Run) -> None:
    async def main() -> None:
        later = asyncio.Event()
        made: list[asyncio.Task[Any]] = []

        async def outlives() -> Any:
            await later.wait()
            return await caller("later")

        async def fn(item: str) -> str:
            if item == "first":
                made.append(asyncio.create_task(outlives()))
            return item

        async with AsyncCaller(fn, workers=1) as caller:
            await caller("first")
            later.set()
            assert await made[0] == "later"

    run(main())


@in_callers_loops
def test_aclose_inside_fn_is_refused(run: Run) -> None:
    async def main() -> None:
        async def fn(item: int) -> None:
            await caller.aclose()

        caller = AsyncCaller(fn)
        with pytest.raises(RuntimeError, match="aclose: called by fn"):
            await caller(0)
        await caller.aclose()

    run(main())


# ---------------------------------------------------------------------------------------------------- the end
@in_callers_loops
def test_leaving_the_block_waits_for_all_items(run: Run) -> None:
    async def main() -> None:
        gate = Gate()
        async with AsyncCaller(gate, workers=1, max_in_flight=1) as caller:
            tasks = [asyncio.create_task(caller(item)) for item in range(3)]
            await gate.wait_for(0)
            asyncio.get_running_loop().call_soon(gate.opened.set)
        assert await asyncio.gather(*tasks) == [0, 1, 2]

    run(main())


@in_callers_loops
@pytest.mark.parametrize("by", ["aclose", "exception"])
def test_what_has_not_started_is_cancelled_and_what_runs_is_waited_for(run: Run, by: str) -> None:
    async def main() -> None:
        gate = Gate()
        caller = AsyncCaller(gate, workers=1, max_in_flight=2)
        tasks = [asyncio.create_task(caller(item)) for item in range(3)]
        await gate.wait_for(0)

        async def leave() -> None:
            if by == "aclose":
                await caller.aclose(cancel=True)
            else:
                with pytest.raises(ZeroDivisionError):
                    async with caller:
                        1 / 0  # noqa: B018

        closing = asyncio.create_task(leave())
        for task in tasks[1:]:
            with pytest.raises(asyncio.CancelledError):
                await task
        assert not closing.done()
        gate.opened.set()
        await closing
        assert await tasks[0] == 0
        assert gate.begun == [0]

    run(main())


@in_callers_loops
def test_a_cancelled_aclose_cancels_what_runs_and_is_cancelled_itself(run: Run) -> None:
    async def main() -> None:
        gate = Gate()
        caller = AsyncCaller(gate)
        task = asyncio.create_task(caller(0))
        await gate.wait_for(0)
        closing = asyncio.create_task(caller.aclose())
        await until(lambda: caller._runner is not None and caller._runner._ending)
        await cancel(closing)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert gate.cancelled == [0]

    run(main())


@in_callers_loops
def test_a_setup_that_raises_fails_all_items_and_later_ones(run: Run) -> None:
    async def setup() -> None:
        raise OSError("no connection")

    async def fn(item: int, resource: Any) -> None: ...

    async def main() -> None:
        async with AsyncCaller(fn, setup=setup) as caller:
            ended = await asyncio.gather(caller(1), caller(2), return_exceptions=True)
            assert [type(one) for one in ended] == [OSError, OSError]
            with pytest.raises(RuntimeError, match="the Caller has failed"):
                await caller(3)

    run(main())


@in_callers_loops
def test_a_dropped_caller_ends_its_tasks(run: Run) -> None:
    async def main() -> None:
        caller = AsyncCaller(double, workers=2, timeout=DEADLINE)
        assert await caller(1) == 2
        gone = weakref.ref(caller)
        del caller
        gc.collect()
        assert gone() is None
        await until(lambda: len(asyncio.all_tasks()) == 1)

    run(main())


@in_callers_loops
def test_a_loop_that_ends_before_the_caller_leaves_nothing(run: Run) -> None:
    async def main() -> AsyncCaller[int, int]:
        caller = AsyncCaller(double)
        await caller(1)
        return caller

    caller = run(main())
    del caller
    gc.collect()
    wait_until(lambda: not [one for one in threading.enumerate() if one.name.startswith("manytail-")])


@in_callers_loops
@pytest.mark.parametrize("seed", range(part(4)))
def test_whatever_is_cancelled_and_however_it_ends_every_await_ends(run: Run, seed: int) -> None:
    async def main() -> None:
        chance = random.Random(seed)
        options: dict[str, Any] = {"workers": chance.choice([1, 2, 5]), "max_in_flight": chance.choice([20, None])}
        options |= chance.choice([{}, {"key": lambda item: item % 5, "per_key": 1}])
        options |= chance.choice([{}, {"dedup": 5}, {"limits": Concurrency(3)}, {"breaker": Breaker(3, reset=0.001)}])
        options["retry"] = Retry(1, backoff=0)
        batched = chance.random() < 0.5
        if batched:
            options["batch"] = Batch(4, linger=chance.choice([0, 0.001]))

        async def fn(item: Any) -> Any:
            for _ in range(chance.randrange(4)):
                await asyncio.sleep(0)
            if chance.random() < 0.1:
                raise ValueError(item)
            return item

        caller = AsyncCaller(fn, **options)
        tasks = [asyncio.create_task(caller(chance.randrange(30))) for _ in range(200)]
        for task in tasks:
            if chance.random() < 0.2:
                task.cancel()
            if chance.random() < 0.3:
                await asyncio.sleep(0)
        with suppress(asyncio.CancelledError):
            await caller.aclose(cancel=chance.random() < 0.5)
        async with asyncio.timeout(DEADLINE):
            await asyncio.gather(*tasks, return_exceptions=True)
        runner = caller._runner
        assert runner is None or (not runner.open and (runner.scheduler.halted or not runner.scheduler.in_flight))
        await until(lambda: len(asyncio.all_tasks()) == 1)

    run(main())
