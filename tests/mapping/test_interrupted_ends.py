"""An interruption at each blocking call and each wait of a map and of its end, and a second one at those that follow.
Afterwards close() ends the map, and nothing of it stays.

Threads and loop are real. Virtual ones would replace `threading`, asyncio and the database, and hide what these do when
they are interrupted. The points of one thread are named, the consumer's or the loop's, where a signal handler may
raise. A profile function sees each call of a lock and each join of a thread, also those inside `threading` and
`concurrent.futures`. It raises before the call, as if it were interrupted while it waits, or after it, when the
interpreter serves signals. Our `Event`, the start of a thread, and the locks that an iterator or a `with` takes have
stand-ins. For such a lock no signal is served between the acquisition and the next step. Threads are started as from
the main thread, by another one. Each iteration of a loop is a point too.
"""

import asyncio
import gc
import itertools
import os
import random
import sys
import threading
import time
import weakref
from _thread import get_ident
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from weakref import WeakSet

import pytest
from support.counts import LONG, part
from support.maps import threads_of_maps
from support.threads import Threads, wait_until

from manytail import Shared, aconcurrent_map, concurrent_map
from manytail._sync import Event, Held, start_thread
from manytail.mapping import _exchange, _map, _progress, _remember, _runner, _thread_runner, _threads, _workers

pytestmark = pytest.mark.thread_unsafe(reason="counts the threads of the process")

WAITS = {"acquire", "__enter__", "join"}
BEGUN: WeakSet[threading.Thread] = WeakSet()  # the system has begun them, whether or not their start was interrupted
PRODUCT = str(Path(_map.__file__).parent)


# ------------------------------------------------------------------------------------------------ planting
class Planter:
    """Names the points of the thread that makes it: by what is called, and how often it was before. At the chosen ones
    it raises KeyboardInterrupt, or cancels the task of a loop."""

    current: "Planter | None" = None

    def __init__(self, chosen: tuple[str, ...], task: "asyncio.Task[Any] | None" = None) -> None:
        self.chosen, self.task = chosen, task
        self.points: list[str] = []
        self.planted: list[str] = []
        self.met: Counter[str] = Counter()
        self.thread = get_ident()
        Planter.current = self
        self.resume()

    def resume(self) -> None:
        """Watch the calls of this thread. CPython takes a profile function away that has raised."""
        if get_ident() == self.thread and self.task is None:
            sys.setprofile(self._profile)

    def stop(self) -> None:
        Planter.current = None
        sys.setprofile(None)

    def _profile(self, frame: Any, event: str, called: Any) -> None:
        if event in ("c_call", "c_return") and frame.f_code not in UNSEEN:
            name, of = called.__name__, type(getattr(called, "__self__", None)).__name__
            if name in WAITS and of in ("lock", "RLock", "_ThreadHandle"):
                self.point(f"{event[2:]} {name}", frame)

    def point(self, name: str, frame: Any = None) -> None:
        """frame: of the caller. What no code of maps has called is no point."""
        if get_ident() != self.thread or (self.task is not None and frame is not None):
            return
        while frame is not None and not frame.f_code.co_filename.startswith(PRODUCT):
            frame = frame.f_back
            if frame is None:
                return
        if frame is not None:
            name = f"{frame.f_code.co_qualname}: {name}"
        self.points.append(f"{name} #{self.met[name]}")
        self.met[name] += 1
        if self.points[-1] in self.chosen:
            self.planted.append(self.points[-1])
            if self.task is None:
                raise KeyboardInterrupt
            self.task.cancel()


def point(name: str, frame: Any = None) -> None:
    planter = Planter.current  # read once: another thread may set it to None
    if planter is not None:
        planter.point(name, frame)


class Lock:
    """A lock that is taken by `with`, or by an iterator."""

    kind = staticmethod(threading.Lock)

    def __init__(self) -> None:
        self._lock = self.kind()
        self.release = self._lock.release

    def acquire(self, blocking: bool = True) -> bool:
        if blocking:
            point("call acquire", sys._getframe(1))
        return self._lock.acquire(blocking)

    def __enter__(self) -> None:
        point("call acquire", sys._getframe(1))
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()


class RLock(Lock):
    kind = staticmethod(threading.RLock)

    def _is_owned(self) -> bool:
        return bool(self._lock._is_owned())


UNSEEN = (Lock.acquire.__code__, Lock.__enter__.__code__)


class WatchedEvent:
    def __init__(self) -> None:
        self._event = Event()
        self.set, self.clear, self.is_set = self._event.set, self._event.clear, self._event.is_set

    def wait(self, timeout: float | None = None) -> bool:
        point("call wait", sys._getframe(1))
        happened = self._event.wait(timeout)
        point("return wait", sys._getframe(1))
        return happened


def watched_start(start: Any) -> None:
    point("call start", sys._getframe(1))
    start_thread(start)
    BEGUN.add(start.__self__)
    point("return start", sys._getframe(1))


class WatchedLoop(asyncio.SelectorEventLoop):
    """Ctrl-C while it waits goes through the loop and leaves its tasks where they are."""

    def _run_once(self) -> None:
        point("iteration")
        super()._run_once()  # type: ignore[misc]


def runs_a_loop() -> bool:
    """Threads here stand for the main thread, but not that of a map's loop: Windows' loop would ask for signals."""
    return threading.current_thread().name == "manytail-loop"


@pytest.fixture(autouse=True)
def _watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def resuming(method: Callable[..., Any]) -> Callable[..., Any]:
        def resumed(*arguments: Any, **named: Any) -> Any:
            planter = Planter.current
            if planter is not None:
                planter.resume()
            return method(*arguments, **named)

        return resumed

    locks = SimpleNamespace(**vars(threading) | {"Lock": Lock, "RLock": RLock})
    for module in (_exchange, _remember, _workers):
        monkeypatch.setattr(module, "threading", locks)
    for module in (_exchange, _progress, _remember, _thread_runner, _threads, _workers):
        monkeypatch.setattr(module, "Event", WatchedEvent)
    monkeypatch.setattr(_threads, "start_thread", watched_start)
    main = threading.main_thread()
    monkeypatch.setattr(threading, "main_thread", lambda: main if runs_a_loop() else threading.current_thread())
    for kind, name in ((_map.Results, "_stop"), (_map.Results, "__del__"), (_map.LoopRunner, "close")):
        monkeypatch.setattr(kind, name, resuming(getattr(kind, name)))
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)  # an interrupted finalizer
    gc.collect()
    gc.freeze()  # a collection after each run is quick
    yield
    limbo: dict[threading.Thread, threading.Thread] = vars(threading)["_limbo"]
    wait_until(lambda: not any(one in BEGUN for one in list(limbo)), "threads that have begun to leave the list")
    for thread in [one for one in limbo if isinstance(one, _threads.Thread)]:
        del limbo[thread]  # it never begins: it is listed for ever, and other tests look at the list


# ------------------------------------------------------------------------------------------------ one run
class Large:
    """A result whose life can be watched."""

    def __init__(self, item: int) -> None:
        self.item = item


class LargeCodec:
    def encode(self, result: Large) -> bytes:
        return str(result.item).encode()

    def decode(self, data: bytes) -> Large:
        return Large(int(data))


class Failed(Exception):
    pass


ENDS = ("exhausted", "closed", "failing call", "failing input", "failing teardown")
OPTIONS = {"plain": "", "timed": "timeout progress setup", "remembered": "timeout progress setup remember"}
first_items = itertools.count(0, 100)


class World:
    """A map whose functions note what happens, and what must be true when it has ended."""

    def __init__(self, kind: str, options: str, end: str, shared: Shared) -> None:
        self.end = end
        self.counts: Counter[str] = Counter()
        self.lock = threading.Lock()
        self.made: list[weakref.ref[Large]] = []
        self.options: dict[str, Any] = {"workers": 2}
        if "timeout" in options:
            self.options["timeout"] = 600
        if "progress" in options:
            self.options["progress"] = lambda seen: self.note("reports")
        if "setup" in options:
            self.options["setup"] = self.setup
        self.shared = shared if "remember" in options else None
        if self.shared is not None:
            self.options["remember"] = shared
            self.recorded_before = self.shared.remembered()
        self.function = self.call_async if kind in ("async", "loop") else self.call
        self.first = next(first_items)
        self.items: Any = [*range(self.first, self.first + 5)] if kind == "list" else self.read()
        self.reports: int | None = None

    def read(self) -> Iterator[int]:
        yield from range(self.first, self.first + 4)
        if self.end == "failing input":
            raise Failed
        yield self.first + 4

    def note(self, what: str, number: int = 1) -> None:
        with Held(self.lock):  # from CPython 3.14 on an interrupted `with lock` may keep it
            self.counts[what] += number

    def setup(self) -> "World":
        self.note("set up")
        return self

    def close(self) -> None:
        self.note("torn down")
        if self.end == "failing teardown":
            raise Failed

    def call(self, item: int, resource: Any = None) -> Large:
        self.note("running")
        try:
            time.sleep(0.0005)  # a call takes a while
            if self.end == "failing call" and item == self.first + 3:
                raise Failed
            result = Large(item)
            self.made.append(weakref.ref(result))
            return result
        finally:
            self.note("running", -1)

    async def call_async(self, item: int, resource: Any = None) -> Large:
        return self.call(item)

    def unrecorded(self) -> int:
        return 0 if self.shared is None else self.recorded_before + len(self.made) - self.shared.remembered()

    def check_closed(self) -> None:
        """close() has returned: no call runs, and all that is promised has happened."""
        assert self.counts["running"] == 0
        assert self.counts["set up"] == self.counts["torn down"]
        assert self.unrecorded() == 0
        self.reports = self.counts["reports"]

    def check(self, lost: int = 0) -> None:
        """lost: results at most that an interrupted worker did not come to record."""
        wait_until(lambda: not threads_of_maps() or (gc.collect() and False), "threads of maps that have ended")
        assert self.counts["torn down"] <= self.counts["set up"]
        assert self.reports in (None, self.counts["reports"])
        wait_until(lambda: self.unrecorded() <= lost, "results of calls that outlived the map")
        wait_until(self.is_freed, "the results of a map that has ended to be freed")

    def is_freed(self) -> bool:
        gc.collect()  # the last thread may still leave its last frame
        return all(one() is None for one in self.made)


def run_in_threads(world: World, *chosen: str) -> Planter:
    def consume(results: Any) -> None:
        if world.end in ("closed", "dropped"):
            next(results)
        else:
            with suppress(Failed):
                for _ in results:
                    pass

    def consumer() -> Planter:
        results = concurrent_map(world.function, world.items, **world.options)
        runner: Any = results._runner
        locks.extend(one._lock for one in (runner, runner.workers, runner.memory) if hasattr(one, "_lock"))
        planter = Planter(chosen)
        try:
            with suppress(KeyboardInterrupt):
                consume(results)
            if world.end == "dropped":
                planter.resume()
                del results, runner
                return planter
            while True:
                planter.resume()
                with suppress(KeyboardInterrupt):
                    results.close()
                    break
        finally:
            planter.stop()
        results.close()
        world.check_closed()
        return planter

    locks: list[Any] = []
    with Threads() as threads:
        planter: Planter = threads.start(consumer).result()
    world.check()
    for one in locks:
        assert one.acquire(False)
        one.release()
    return planter


def run_in_loop(world: World, cancels: bool, *chosen: str) -> Planter:
    async def consume() -> None:
        results = aconcurrent_map(world.function, world.items, **world.options)
        try:
            with suppress(Failed):
                if world.end == "closed":
                    await anext(results)
                else:
                    async for _ in results:
                        pass
        finally:
            await results.aclose()

    async def main() -> None:
        if not cancels:
            await consume()
            return
        planter = Planter(chosen, asyncio.current_task())
        planters.append(planter)
        try:
            await consume()
        finally:
            planter.stop()
            world.check_closed()
            assert asyncio.all_tasks() == {planter.task}
            assert all(timer.cancelled() for timer in asyncio.get_running_loop()._scheduled)  # type: ignore[attr-defined]
            planter.task = None

    def consumer() -> None:
        if not cancels:
            planters.append(Planter(chosen))
        try:
            with suppress(KeyboardInterrupt), asyncio.Runner(loop_factory=WatchedLoop) as loop:
                loop.get_loop().set_exception_handler(lambda *_: None)  # "Task was destroyed but it is pending!"
                with suppress(KeyboardInterrupt, asyncio.CancelledError):
                    loop.run(main())
                planters[0].resume()  # for the end of the loop, which cancels all tasks
            cut.clear()
        except RuntimeError as error:  # of asyncio: Ctrl-C just after main() stopped the loop, which it then does again
            if "stopped before Future completed" not in str(error):
                raise
        finally:
            planters[0].stop()

    planters: list[Planter] = []
    cut = [True]  # the loop was closed before its tasks had ended
    with Threads() as threads:
        threads.start(consumer).result()
    if len(planters[0].planted) < 2 and not cut:
        assert world.counts["set up"] == world.counts["torn down"]
    world.check(lost=0 if cancels else len(planters[0].planted))
    return planters[0]


# ------------------------------------------------------------------------------------------------ all points
STARTED = {"Runner.locked: call acquire", "Thread.start: call start", "Thread.start: return start"}
ENDED = STARTED | {"Thread.join: call wait", "Thread.join: return wait"}
FLUSHED = {"wait_for_databases: call wait", "wait_for_databases: return wait"}


def plant(run: Callable[..., Planter], least: set[str], goes_on: bool = True) -> None:
    """Plant one interruption at each point, and a second one after it: at each further point in a long run, else at
    some. least: names of points that every run has. Of three runs the one with the most points says which there are: a
    run has few where no thread has to wait. goes_on: an interrupted run always has further points."""
    points = max((run().points for _ in range(3)), key=len)
    singles = [run(point) for point in points]
    pairs = [
        (*one.planted, second)
        for one in singles
        if one.planted
        for second in one.points[one.points.index(one.planted[0]) + 1 :]
    ]
    random.Random(len(points)).shuffle(pairs)
    doubles: list[Planter] = []
    for each in pairs:  # at least part(12), and until one run has met both points
        if not LONG and len(doubles) >= part(12) and any(len(one.planted) > 1 for one in doubles):
            break
        doubles.append(run(*each))
    assert least <= {point.partition(" #")[0] for one in singles for point in one.planted}
    assert any(len(one.planted) > 1 for one in doubles) or not goes_on


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Shared]:
    def files() -> int:
        return len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0

    made = Shared(tmp_path / "shared.db", "ends", codec=LargeCodec())
    made.remembered()
    before = files()
    yield made
    assert files() == before


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("end", [*ENDS, "dropped"])
@pytest.mark.parametrize("kind", ["list", "iterator", "async"])
def test_interrupted_anywhere_in_threads(
    kind: str, end: str, options: str, shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_runner, "threading", _workers.threading)
    least = STARTED if end == "dropped" else ENDED | (FLUSHED if "remember" in options else set())
    # Who drops an interrupted map waits for nothing; a further point is there only if a thread is just being started.
    goes_on = end != "dropped"
    plant(lambda *chosen: run_in_threads(World(kind, options, end, shared), *chosen), least, goes_on)


@pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning")  # of a loop that a second Ctrl-C has closed
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("cancels", [True, False], ids=["cancelled", "Ctrl-C"])
def test_interrupted_anywhere_in_the_callers_loop(cancels: bool, end: str, options: str, shared: Shared) -> None:
    plant(lambda *chosen: run_in_loop(World("loop", options, end, shared), cancels, *chosen), {"iteration"})
