"""AsyncCaller: items that come one by one, in every kind of asyncio's loops."""

import asyncio
import gc
import random
import re
import threading
import weakref
from collections.abc import Callable, Coroutine
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from support.counts import part
from support.maps import LoopGate, in_callers_loops, in_each_loop, until
from support.threads import DEADLINE, wait_until

from manytail import AsyncCaller, Batch, Breaker, Concurrency, Rate, Retry, Shared

Run = Callable[[Coroutine[Any, Any, Any]], Any]
LONG_LINGER = 10 * DEADLINE


async def double(item: int) -> int:
    await asyncio.sleep(0)
    return 2 * item


async def cancel(task: "asyncio.Task[Any]") -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


# ---------------------------------------------------------------------------------------------------- results, errors
@in_each_loop
async def test_many_tasks_get_their_own_results() -> None:
    async with AsyncCaller(double, workers=5, max_in_flight=7) as caller:
        assert await asyncio.gather(*map(caller, range(100))) == list(range(0, 200, 2))
        stats = caller.stats()
    assert (stats.done, stats.failed, stats.in_flight, stats.workers) == (100, 0, 0, 5)
    with pytest.raises(RuntimeError, match="is closed"):
        await caller(1)
    await caller.aclose()


@in_callers_loops
def test_what_fn_raises_is_raised(run: Run) -> None:
    async def fail(item: Any) -> None:
        raise item

    async def main() -> None:
        async with AsyncCaller(fail, retry=Retry(1, backoff=0), key=repr) as caller:
            with pytest.raises(ValueError, match="bad") as raised:
                await caller(ValueError("bad"))
            assert raised.value.__notes__ == [
                "manytail: ValueError('bad'): the item with key \"ValueError('bad')\" failed after 2 attempts"
            ]

    async def stop() -> None:
        async def stops(item: Any) -> None:
            next(iter(()))

        async with AsyncCaller(stops) as caller:
            with pytest.raises(RuntimeError):  # PEP 479
                await caller(1)

    run(main())
    run(stop())


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


# ---------------------------------------------------------------------------------------------------- cancelled awaits
@in_each_loop
@pytest.mark.parametrize("options", [{}, {"limits": Rate(1e9)}, {"timeout": 60}], ids=["plain", "gate", "timed"])
async def test_a_cancelled_await_cancels_an_item_that_waits_and_a_call_that_nobody_shares(options: Any) -> None:
    gate = LoopGate()
    async with AsyncCaller(gate, workers=1, retry=Retry(3, BaseException, backoff=0), **options) as caller:
        runs, waits, last = (asyncio.create_task(caller(item)) for item in ("runs", "waits", "last"))
        await gate.wait_for("runs")
        await cancel(waits)
        await cancel(runs)
        await gate.wait_for("runs", "last")
        gate.opened.set()
        assert await last == "last"
    assert gate.cancelled == ["runs"]


@pytest.mark.parametrize("workers", [2, 1], ids=["the others follow", "the others wait for a worker"])
@in_each_loop
async def test_a_call_that_an_equal_item_waits_for_goes_on_until_that_is_cancelled_too(workers: int) -> None:
    gate = LoopGate()
    async with AsyncCaller(gate, workers=workers, dedup=3) as caller:
        first, second, third = (asyncio.create_task(caller("a")) for _ in range(3))
        await until(lambda: gate.begun == ["a"] and caller.stats().in_flight == 3)
        await cancel(first)
        await cancel(third)
        gate.opened.set()
        assert await second == "a"
        assert (gate.begun, gate.cancelled) == (["a"], [])
        gate.opened.clear()
        both = [asyncio.create_task(caller("b")) for _ in range(2)]
        await until(lambda: gate.begun == ["a", "b"] and caller.stats().in_flight == 2)
        for task in both:
            await cancel(task)
        await until(lambda: gate.cancelled == ["b"])
        gate.opened.set()
        assert await caller("b") == "b"


@in_each_loop
async def test_a_batch_is_cancelled_only_with_all_its_items() -> None:
    gate = LoopGate()
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


# ---------------------------------------------------------------------------------------------------- calls inside fn
@in_each_loop
async def test_a_task_that_outlives_the_call_which_made_it_is_not_inside_it() -> None:
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


@in_each_loop
async def test_aclose_inside_fn_is_refused() -> None:
    async def fn(item: int) -> None:
        await caller.aclose()

    caller = AsyncCaller(fn)
    with pytest.raises(RuntimeError, match="aclose: called by fn"):
        await caller(0)
    await caller.aclose()


# ---------------------------------------------------------------------------------------------------- the end
@in_each_loop
async def test_leaving_the_block_waits_for_all_items() -> None:
    gate = LoopGate()
    async with AsyncCaller(gate, workers=1, max_in_flight=1) as caller:
        tasks = [asyncio.create_task(caller(item)) for item in range(3)]
        await gate.wait_for(0)
        asyncio.get_running_loop().call_soon(gate.opened.set)
    assert await asyncio.gather(*tasks) == [0, 1, 2]


@in_each_loop
@pytest.mark.parametrize("by", ["aclose", "exception"])
async def test_what_has_not_started_is_cancelled_and_what_runs_is_waited_for(by: str) -> None:
    gate = LoopGate()
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


@in_each_loop
async def test_a_cancelled_aclose_cancels_what_runs_and_is_cancelled_itself() -> None:
    gate = LoopGate()
    caller = AsyncCaller(gate)
    task = asyncio.create_task(caller(0))
    await gate.wait_for(0)
    closing = asyncio.create_task(caller.aclose())
    await until(lambda: caller._runner is not None and caller._runner._ending)
    await cancel(closing)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert gate.cancelled == [0]


@in_each_loop
async def test_a_dropped_caller_ends_its_tasks() -> None:
    caller = AsyncCaller(double, workers=2, timeout=DEADLINE)
    assert await caller(1) == 2
    gone = weakref.ref(caller)
    del caller
    gc.collect()
    assert gone() is None
    await until(lambda: len(asyncio.all_tasks()) == 1)


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


async def called_once() -> AsyncCaller[int, int]:
    caller = AsyncCaller(double)
    assert await caller(1) == 2
    return caller


@in_callers_loops
def test_aclose_in_another_loop_is_refused_at_once_and_changes_nothing(run: Run) -> None:
    """It could not be awaited there. The Caller goes on in its own loop."""
    expected = "the AsyncCaller was first called in another loop (expected: in the same one)"
    with closing(asyncio.new_event_loop()) as loop:
        caller = loop.run_until_complete(called_once())
        for cancels in (False, True):
            with pytest.raises(RuntimeError, match=f"^{re.escape(expected)}$"):
                run(asyncio.wait_for(caller.aclose(cancel=cancels), DEADLINE))
        assert loop.run_until_complete(caller(2)) == 4
        loop.run_until_complete(caller.aclose())


@in_callers_loops
@pytest.mark.parametrize("cancels", [False, True])
def test_aclose_after_the_end_of_the_loop_drops_what_is_left(run: Run, cancels: bool, tmp_path: Path) -> None:
    begun = []

    async def never(item: int) -> None:
        begun.append(item)
        await asyncio.Event().wait()

    async def main() -> Any:
        caller = AsyncCaller(never, workers=1, remember=Shared(tmp_path / "a.db", "never"))
        tasks = [asyncio.ensure_future(caller(item)) for item in range(2)]
        await until(lambda: begun == [0])
        return caller, tasks

    loop = asyncio.new_event_loop()
    caller, tasks = loop.run_until_complete(main())
    loop.close()
    for _ in range(2):
        run(asyncio.wait_for(caller.aclose(cancel=cancels), DEADLINE))
    assert not caller._runner.open
    wait_until(lambda: not [one for one in threading.enumerate() if one.name.startswith("manytail-")])
    for task in tasks:
        task._log_destroy_pending = False  # they belong to the loop that this test closed too early


@in_each_loop
@pytest.mark.parametrize("seed", range(part(4)))
async def test_whatever_is_cancelled_and_however_it_ends_every_await_ends(seed: int) -> None:
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
    assert runner is None or (not runner.open and (runner.scheduler.halted or not runner.scheduler.window.in_flight))
    await until(lambda: len(asyncio.all_tasks()) == 1)
