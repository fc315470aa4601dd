"""The ways in which a map runs: in threads, in a loop of its own, inline (a plain fn and an `async def`), and in the
caller's loop, of every kind that asyncio runs in. Functions whose calls wait, and the threads of maps."""

import asyncio
import functools
import inspect
import threading
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import pytest

from manytail import Budget, Rate, Shared, aconcurrent_map, concurrent_map
from manytail.mapping._threads import Thread

from .event_loops import ASYNCIO
from .threads import DEADLINE, wait_until


def threads_of_maps() -> list[str]:
    """Names of the threads of maps and Callers. Not those whose start was interrupted: `threading` lists them, and they
    never run."""
    ours = [one for one in threading.enumerate() if one.name.startswith("manytail-")]
    return [one.name for one in ours if not isinstance(one, Thread) or one._fate.get("runs", True)]


def refuse_thread(name: str | tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Starting a thread whose name begins so fails, as where the system has no more threads."""
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith(name):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)


class Gate:
    """A function whose calls wait until it opens."""

    def __init__(self) -> None:
        self.begun: list[Any] = []
        self.opened = threading.Event()

    def __call__(self, item: Any) -> Any:
        self.begun.append(item)
        assert self.opened.wait(DEADLINE)
        return item

    async def in_loop(self, item: Any) -> Any:
        self.begun.append(item)
        while not self.opened.is_set():  # by any thread
            await asyncio.sleep(0.001)
        return item

    def wait_for(self, *items: Any) -> None:
        wait_until(lambda: sorted(self.begun) == sorted(items), f"{items} to begin")


class Clock:
    """The time of a map in threads, which a test lets pass."""

    def __init__(self, results: Any) -> None:
        self._runner, self._now = results._runner, 0.0
        self._runner.now = lambda: self._now

    def pass_an_hour(self) -> None:
        """Timeouts and retries of an hour are due."""
        with self._runner._lock:
            self._runner._handle()  # tells the scheduler about all started calls
            self._now += 3_600.0
        self._runner.poke()


class LoopGate:
    """An `async def` whose calls wait until it opens. What was cancelled there is noted."""

    def __init__(self) -> None:
        self.begun: list[Any] = []
        self.ended: list[Any] = []
        self.cancelled: list[Any] = []
        self.opened = asyncio.Event()

    async def __call__(self, item: Any) -> Any:
        self.begun.append(item)
        try:
            await self.opened.wait()
        except asyncio.CancelledError:
            self.cancelled.append(item)
            raise
        finally:
            self.ended.append(item)
        return item

    async def wait_for(self, *items: Any) -> None:
        await until(lambda: self.begun == list(items))

    async def full(self, calls: int) -> None:
        await until(lambda: len(self.begun) >= calls)


async def until(predicate: Callable[[], Any]) -> None:
    """Wait for it in a loop, turn by turn."""
    async with asyncio.timeout(DEADLINE):
        while not predicate():
            await asyncio.sleep(0)


def endless() -> tuple[Callable[..., Any], threading.Event, threading.Event]:
    """An `async def` that waits until it is cancelled, what tells that a call has begun, and that one has ended."""
    begun, ended = threading.Event(), threading.Event()

    async def fn(item: Any) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    return fn, begun, ended


def rate(shared: Shared, amount: float, name: str = "rate", **more: Any) -> Rate:
    """A shared one."""
    return Rate(amount, shared=shared, name=name, **more)


def budget(shared: Shared, amount: float, **more: Any) -> Budget:
    """A shared one."""
    return Budget(amount, shared=shared, name="budget", **more)


def mapped(fn: Callable[..., Any], items: Any, into: list[Any] | None = None, **options: Any) -> list[Any]:
    """The results. A plain function runs in threads, an `async def` in its own loop. into: gets them, those before an
    exception too."""
    results = [] if into is None else into
    results.extend(concurrent_map(fn, items, **options))
    return results


async def collect(results: Any, into: list[Any] | None = None) -> list[Any]:
    """The results of an aconcurrent_map."""
    taken = [] if into is None else into
    async with aclosing(results):
        async for result in results:
            taken.append(result)
    return taken


def asynchronous(fn: Callable[..., Any]) -> Callable[..., Any]:
    """An `async def` that does what the function does; itself if it is one."""
    if isinstance(fn, Gate):
        return fn.in_loop
    if inspect.iscoroutinefunction(fn):
        return fn

    @functools.wraps(fn)  # with its signature, which says whether it takes a Delivery
    async def call(*arguments: Any, **named: Any) -> Any:
        await asyncio.sleep(0)
        return fn(*arguments, **named)

    return call


@dataclass(frozen=True)
class Way:
    """Calls `mapped`. In loops fn is asynchronous, or is made so."""

    name: str
    is_async: bool = True
    run: Callable[[Any], Any] | None = None  # runs a coroutine: in the caller's loop
    inline: bool = False  # whatever `workers` a test asks for: for tests whose calls need no other

    def __call__(self, fn: Callable[..., Any], items: Any, into: list[Any] | None = None, **options: Any) -> list[Any]:
        if self.run is not None:
            results: list[Any] = self.run(collect(aconcurrent_map(asynchronous(fn), items, **options), into))
            return results
        if self.inline:
            options["workers"] = "inline"
        return mapped(asynchronous(fn) if self.is_async else fn, items, into, **options)


def _each(*ways: Way) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("mapped", ways, ids=[way.name for way in ways])


CALLERS = [Way(name, run=run) for name, run in ASYNCIO.items()]
INLINE = [Way("inline", is_async=False, inline=True), Way("inline loop", inline=True)]
everywhere = _each(Way("threads", is_async=False), Way("own loop"), *INLINE, *CALLERS)
inline = _each(*INLINE)
concurrently = _each(Way("threads", is_async=False), Way("own loop"), *CALLERS)
in_loops = _each(Way("own loop"), *CALLERS)
in_callers_loops = pytest.mark.parametrize("run", ASYNCIO.values(), ids=ASYNCIO)


def in_each_loop(test: Callable[..., Any]) -> Callable[..., Any]:
    """Run an `async def` test in the caller's loop, of every kind that asyncio runs in."""

    @functools.wraps(test)
    def in_loop(run: Callable[[Any], Any], **arguments: Any) -> None:
        run(test(**arguments))

    parameters = inspect.signature(test).parameters.values()
    loop = inspect.Parameter("run", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    vars(in_loop)["__signature__"] = inspect.Signature([loop, *parameters])
    del vars(in_loop)["__wrapped__"]  # pytest would look at the signature of that
    return in_callers_loops(in_loop)
