"""Every coroutine function of every class, on every event loop: it waits, whatever ends the wait ends it, and one that
is cancelled, or whose loop is over, takes no item and no wake-up with it.

tests/wakeups/test_cancellations.py cancels each of them at any moment, beside each call that wakes it.
"""
import asyncio
import gc
import inspect
import random
import selectors
import signal
import sys
import types
import weakref

import outcome
import pytest
import trio
from support.counts import count
from support.event_loops import LOOPS, in_every_kind_of_loop, within
from support.threads import DEADLINE, LONG, Threads, wait_asleep

import manytail
from contract.structures import CALLS, ENDED
from manytail import MultiQueue

TURNS = 5  # within these a task comes as far as it can without others

posix_signals = pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="no SIGUSR1 on Windows")
process_wide = pytest.mark.thread_unsafe(reason="signals and sys.unraisablehook belong to the process")


@pytest.fixture(params=LOOPS)
def loop(request):
    return LOOPS[request.param]


def is_coroutine_function(function):
    return inspect.iscoroutinefunction(function) or bool(getattr(function, "_is_coroutine", None))  # Cython's


def test_every_coroutine_function_of_a_public_class_is_asked():
    public = [getattr(manytail, name) for name in manytail.__all__]
    functions = {
        member
        for cls in public if inspect.isclass(cls) and not cls.__module__.startswith("manytail.mapping")
        for name in dir(cls) if not name.startswith("_") and is_coroutine_function(member := getattr(cls, name))
    }
    asked = set()
    for name, make in CALLS.items():
        one, function = make(), name.rpartition(".")[2]
        for it in [one.on.queue, one.on.into, *one.on.outs]:
            if hasattr(it, function):
                assert is_coroutine_function(getattr(it, function))
                asked.add(getattr(type(it), function))
        one.close()
    assert functions == asked


# ------------------------------------------------------------------------------------------------ waits
class Tasks:
    """Calls in tasks of one loop."""

    def __init__(self, loop, call):
        self.loop, self.call, self.results = loop, call, []

    async def parked(self, group, n=1):
        """Starts as many, which wait."""
        tasks = [self.loop.task(group, self.run) for _ in range(n)]
        await self.turns()
        assert not self.results
        return tasks

    async def run(self):
        try:
            result = await self.call()
        except ENDED as error:
            self.results.append(type(error))
        else:
            self.call.took(result)
            self.results.append(True)
        return True

    async def turns(self):
        for _ in range(TURNS):
            await self.loop.turn()

    async def end(self, task):
        """Whether it was let go on."""
        with self.loop.fail_after(DEADLINE):
            return await task.outcome()


@pytest.mark.parametrize("by", ["the loop", "a thread"])
def test_a_call_waits_until_it_is_let_go_on(loop, new_call, by):
    call = new_call()

    async def main():
        tasks = Tasks(loop, call)
        async with loop.group() as group:
            task, = await tasks.parked(group)
            with Threads() as threads:
                call.wake() if by == "the loop" else threads.start(call.wake).result()
            await tasks.end(task)
            assert tasks.results == [True]
            call.wake()
            call.took(await call())  # what is there is got at once

    loop.run(main)
    assert call.on.inside() == call.full()


def test_what_has_ended_or_is_closed_ends_every_wait(loop, new_call):
    call = new_call()

    async def main():
        tasks = Tasks(loop, call)
        async with loop.group() as group:
            both = await tasks.parked(group, 2)
            call.end()
            for task in both:
                await tasks.end(task)
        return tasks.results

    results = loop.run(main)
    assert len(results) == 2
    assert all(result is True if call.wakes_all else result in ENDED for result in results)


def test_a_cancelled_call_leaves_all_as_it_was(loop, new_call):
    call = new_call()
    inside = call.on.inside()

    async def main():
        tasks = Tasks(loop, call)
        async with loop.group() as group:
            first, second = await tasks.parked(group, 2)
            first.cancel()
            await tasks.end(first)
            assert (tasks.results, call.on.inside()) == ([], inside)
            call.wake()
            await tasks.end(second)
        assert tasks.results == [True]

    loop.run(main)
    assert call.on.inside() == inside


@pytest.mark.parametrize("new_call", [name for name in CALLS if ".aget" in name], indirect=True)
def test_a_loop_that_is_blocked_keeps_no_item_from_a_thread(loop, new_call):
    call = new_call()

    async def main():
        tasks = Tasks(loop, call)
        async with loop.group() as group:
            task, = await tasks.parked(group)
            with Threads() as threads:
                thread = threads.start(call.block)
                wait_asleep(thread)
                call.wake()
                call.wake()
                thread.result()
            await tasks.end(task)
        assert tasks.results == [True]

    loop.run(main)
    assert call.on.inside() == call.full()


def test_a_coroutine_that_is_not_awaited_does_nothing_and_one_outside_of_a_loop_says_so(new_call):
    call = new_call()
    inside = call.on.inside()
    call().close()
    coroutine = call()
    with pytest.raises(RuntimeError, match="asyncio or trio"):
        coroutine.send(None)
    assert call.on.inside() == inside


def test_in_trio_each_call_is_a_checkpoint_and_a_cancelled_one_has_done_nothing(new_call):
    call = new_call()
    call.wake()
    inside = call.on.inside()

    async def main():
        with trio.CancelScope() as scope:
            scope.cancel()
            await call()
        assert scope.cancelled_caught
        assert call.on.inside() == inside
        call.took(await call())

    within(main)


def test_a_call_that_never_has_to_wait_lets_its_loop_run(loop, new_call):
    call = new_call()
    seen = []

    async def other():
        await loop.turn()  # where tasks are eager it has begun before the calls
        seen.append("ran")

    async def main():
        async with loop.group() as group:
            loop.task(group, other)
            for _ in range(1_000):
                if seen:
                    break
                call.wake()
                call.took(await call())
            assert seen, "none of its calls let the loop run"

    loop.run(main)


@process_wide
def test_another_thread_may_be_importing_asyncio(monkeypatch):
    queue = MultiQueue()
    queue.add("a").put_many([1, 2])
    # What a thread that imports it has put there so far.
    monkeypatch.setitem(sys.modules, "asyncio", types.ModuleType("asyncio"))
    assert [within(queue.aget), within(queue.aget)] == [1, 2]


@pytest.mark.parametrize("name", ["EntryQueue.aget", "PubSubQueue.aget"])
def test_async_iteration_ends_at_shutdown_and_close(loop, name):
    on = CALLS[name]().on

    async def main():
        out = on.outs[0]
        async with loop.group() as group:
            loop.task(group, put)
            assert [on.item(got) async for got in out] == list(range(100))
            out.close()
            assert [got async for got in out] == []

    async def put():
        for number in range(100):
            on.put(number)
            if number % 9 == 0:
                await loop.turn()
        on.shutdown()

    loop.run(main)
    on.close()


@in_every_kind_of_loop
def test_several_loops_in_threads_share_a_structure(structure):
    on, each, loops = structure(maxsize=4), count(100, 400), 3
    total = loops * each
    taken = []

    async def produce(start):
        for item in range(start, start + each):
            await on.aput(item)

    async def consume():
        while len(taken) < total:
            try:
                taken.append(on.item(await on.aget(random.choice(on.gets))))
            except ENDED:
                return
            if len(taken) == total:
                on.shutdown()

    async def main(start):
        async with asyncio.timeout(LONG):
            await asyncio.gather(produce(start), consume(), consume())

    with Threads() as threads:
        for n in range(loops):
            threads.start(asyncio.run, main(n * 1000))
    assert sorted(taken) == sorted(n * 1000 + item for n in range(loops) for item in range(each))


# ------------------------------------------------------------------------------------------------ loops that end
def parked_in(loop, *coroutines):
    """Tasks that wait in a loop that does not run."""
    loop.set_exception_handler(lambda *_: None)  # ignores "Task was destroyed but it is pending!"
    tasks = [loop.create_task(coroutine) for coroutine in coroutines]
    turns(loop, TURNS)
    assert not any(task.done() for task in tasks)
    return tasks


def turns(loop, n):
    for _ in range(n):
        loop.call_soon(loop.stop)
        loop.run_forever()


def left_in_asyncio(coroutine):
    loop = asyncio.new_event_loop()
    task, = parked_in(loop, coroutine)
    loop.close()
    return task


def left_in_trio(coroutine):
    async def main():
        coroutine.send(None)  # to its checkpoint
        coroutine.send(outcome.Value(None))  # it waits, and is never resumed

    trio.run(main)
    return coroutine


@in_every_kind_of_loop
@pytest.mark.parametrize("leave", [left_in_asyncio, left_in_trio])
@pytest.mark.parametrize("collected", [False, True])
def test_who_waits_in_a_loop_that_is_over_is_skipped(new_call, leave, collected):
    call = new_call()
    left = [leave(call()) for _ in range(3)]
    if collected:
        del left
        gc.collect()
    with Threads() as threads:
        thread = threads.start(call.block)
        wait_asleep(thread)
        call.wake()
        thread.result()
    assert call.on.inside() == call.full()


@in_every_kind_of_loop
def test_the_end_passes_over_who_waits_in_a_closed_loop(new_call):
    call = new_call()
    task = left_in_asyncio(call())
    with Threads() as threads:
        thread = threads.start(call.block)
        wait_asleep(thread)
        call.end()
        assert isinstance(thread.outcome(), (*ENDED, type(None)))
    assert not task.done()


@in_every_kind_of_loop
@pytest.mark.parametrize("turn", [0, 1], ids=["before it is told", "before it runs"])
@pytest.mark.parametrize("kept", [True, False], ids=["kept", "collected"])
def test_a_woken_call_whose_loop_is_closed_passes_the_wake_up_on_though_its_task_is_kept(new_call, turn, kept):
    """Past the others of its loop."""
    call = new_call()
    loop = asyncio.new_event_loop()
    tasks = parked_in(loop, *(call() for _ in range(3)))
    with Threads() as threads:
        other = threads.start(call.block)
        wait_asleep(other)
        call.wake()
        turns(loop, turn)
        loop.close()
        for task in tasks:
            if task.done():  # uvloop made two turns
                assert turn
                call.took(task.result())
                call.wake()
        del task
        if not kept:
            del tasks
            gc.collect()
        other.result()
    assert call.on.inside() == call.full()


@in_every_kind_of_loop
def test_a_call_whose_loop_is_closed_beside_its_wake_up_passes_it_on(new_call):
    """Another thread closes it when call_soon_threadsafe() has looked, so what this adds stays there."""
    call = new_call()
    loop, added = asyncio.new_event_loop(), []
    task, = parked_in(loop, call())

    def call_soon_threadsafe(*callback):
        loop.close()
        added.append(callback)

    loop.call_soon_threadsafe = call_soon_threadsafe
    with Threads() as threads:
        other = threads.start(call.block)
        wait_asleep(other)
        call.wake()
        other.result()
    assert added
    assert not task.done()


@process_wide
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.parametrize("name", CALLS)
def test_what_only_a_dead_loop_waits_for_is_collected(name):
    """Task, coroutine, queue, waiter, loop, future, task: a cycle through the wait list."""
    def leave():
        call = CALLS[name]()
        task = left_in_asyncio(call())
        return [weakref.ref(it) for it in (call.on.queue, *call.on.outs, task)]

    refs = leave()
    for _ in range(3):
        gc.collect()
    assert [ref() for ref in refs] == [None] * len(refs)


# --------------------------------------------------------------------------------------------- while it is woken
def waking(call, interrupt, act, when="before"):
    """Wake a coroutine of a loop whose call_soon_threadsafe() does what a signal handler may do, first or last."""
    loop = asyncio.new_event_loop()
    original = loop.call_soon_threadsafe

    def call_soon_threadsafe(*args, **kwargs):
        if when == "before":
            interrupt()
        handle = original(*args, **kwargs)
        if when == "after":
            interrupt()
        return handle

    loop.call_soon_threadsafe = call_soon_threadsafe
    try:
        task, = parked_in(loop, call())
        act()
        call.took(loop.run_until_complete(asyncio.wait_for(task, DEADLINE)))
    finally:
        loop.close()


def raising(*errors):
    left = list(errors)

    def interrupt():
        if left:
            raise left.pop()

    return interrupt


@process_wide
@in_every_kind_of_loop
@pytest.mark.parametrize("error", [LookupError, MemoryError, RuntimeError, SystemExit, asyncio.CancelledError])
@pytest.mark.parametrize("when", ["before", "after"])
def test_what_is_raised_while_a_coroutine_is_woken_does_not_cost_it_the_wake_up(monkeypatch, new_call, error, when):
    call = new_call()
    reports = []
    monkeypatch.setattr(sys, "unraisablehook", lambda report: reports.append(report.exc_type))
    waking(call, raising(error("handler"), error("handler")), call.wake, when)
    assert reports == [error, error]


@process_wide
@in_every_kind_of_loop
@posix_signals
def test_ctrl_c_while_a_coroutine_is_woken_does_not_cost_it_the_wake_up(new_call):
    call = new_call()

    def wake_and_go_on():
        call.wake()
        sum(range(10))

    def interrupted():
        with pytest.raises(KeyboardInterrupt):
            wake_and_go_on()

    waking(call, raising(KeyboardInterrupt()), interrupted)


class Signalled(selectors.DefaultSelector):
    """The loop's selector. Once it is armed, a signal arrives in its next wait."""

    armed = woken = False

    def select(self, timeout=None):
        if not self.armed:
            return super().select(timeout)
        self.armed = False
        signal.raise_signal(signal.SIGUSR1)
        ready = super().select(0)
        self.woken = bool(ready)
        return ready


@process_wide
@posix_signals
def test_a_signal_handler_that_interrupts_the_wait_of_a_loop_wakes_it(new_call):
    call, selector = new_call(), Signalled()
    before = signal.signal(signal.SIGUSR1, lambda *_: call.wake())
    loop = asyncio.SelectorEventLoop(selector)
    try:
        task, = parked_in(loop, call())
        selector.armed = True
        call.took(loop.run_until_complete(asyncio.wait_for(task, DEADLINE)))
        assert selector.woken
    finally:
        signal.signal(signal.SIGUSR1, before)
        loop.close()


def test_a_coroutine_that_a_task_of_its_loop_wakes_costs_no_write_to_the_socket(new_call):
    call = new_call()

    async def wake():
        call.wake()

    loop = asyncio.new_event_loop()
    loop.call_soon_threadsafe = None
    try:
        task, = parked_in(loop, call())
        loop.run_until_complete(asyncio.wait_for(wake(), DEADLINE))
        call.took(loop.run_until_complete(asyncio.wait_for(task, DEADLINE)))
    finally:
        loop.close()
