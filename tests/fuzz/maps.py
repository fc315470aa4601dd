"""Random maps against a naive reference, with random early ends.

A case draws the options of a map, what each call of each item does, how its input and consumer behave, and how the map
ends: at its end, closed, dropped, interrupted, cancelled. The reference walks through the script of each item. It
knows the set of results, their order, and how often fn is called. No time decides: timeouts and deadlines are long,
rates high, budgets large. What runs into those is simulated in tests/simulation.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import tempfile
import threading
import time
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

from support.event_loops import ASYNCIO
from support.threads import wait_until

import manytail
from manytail import Failure, RetryLater, Shared, aconcurrent_map, concurrent_map

from .interrupts import Interrupt, Interrupted

PRODUCT = str(Path(manytail.__file__).parent) + os.sep
DATABASE = Path(tempfile.gettempdir(), f"manytail-fuzz-{os.getpid()}.db")


class Trouble(Exception):
    """An error that is retried by default."""


class Fatal(BaseException):
    """An error that is not an Exception."""


class Broken(Exception):
    """Raised by key, priority or cost."""


ERRORS: dict[str, type[BaseException]] = {"trouble": Trouble, "other": ValueError, "fatal": Fatal}
PAUSES = {"sleep": 0.002, "slow": 0.03}
RETRIED = {Exception: (Trouble, ValueError), Trouble: (Trouble,), (Trouble, Fatal): (Trouble, Fatal)}
# By option: how often it is given, and its values.
OPTIONS: dict[str, tuple[float, list[Any]]] = {
    "workers": (1, [1, 2, 3, 8]),
    "order": (1, ["input", "input", "completion"]),
    "errors": (1, ["raise", "return", "return", "drop"]),
    "retries": (1, [0, 0, 1, 3]),
    "backoff": (1, [0, 0.001, lambda attempt, error: 0.001]),
    "max_backoff": (0.1, [0.0005]),
    "retry_on": (0.3, [Trouble, (Trouble, Fatal), lambda error: isinstance(error, Trouble)]),
    "batch": (0.2, [2, 3, 10]),
    "key": (0.4, [1, 3, 10]),
    "priority": (0.2, [lambda value: None if value % 7 == 0 else -value % 5]),
    "timeout": (0.2, [60]),
    "deadline": (0.2, [60]),
    "breaker": (0.15, [1, 3]),
    "rate": (0.1, [1e5]),
    "cost_rate": (0.1, [1e5]),
    "cost": (0.2, [lambda value: value % 3]),
    "budget": (0.1, [1e6]),
    "progress": (0.2, [lambda seen: None]),
    "remember": (0.04, [True]),
    "max_in_flight": (0.3, [1, 2, 5]),
}
OF_KEYS: dict[str, tuple[float, list[Any]]] = {
    "order": (0.5, ["key"]),
    "per_key": (0.5, [1, 2]),
    "weights": (0.2, [{0: 5, 1: 2}]),
    "per_key_rate": (0.1, [1e5]),
}


class Result:
    """A result whose life can be watched."""

    def __init__(self, value: int) -> None:
        self.value = value


class Codec:
    def encode(self, result: Result) -> bytes:
        return str(result.value).encode()

    def decode(self, data: bytes) -> Result:
        return Result(int(data))


class Case:
    def __init__(self, seed: int) -> None:
        random = self.random = Random(seed)
        self.seed = seed
        self.kind = random.choice(["threads", "threads", "own loop", *ASYNCIO])
        self.in_callers_loop = self.kind in ASYNCIO
        self.items = random.choice([0, 1, 5, 20, 60, 200])
        self._draw_options(random)
        chance = random.choice([0, 0.02, 0.3])
        steps = ["sleep", "slow", "later", "trouble", "trouble", "other", "fatal"]
        drawn = [random.choices(steps, k=random.choice([1, 2, 4])) for _ in range(self.items)]
        self.scripts = [script if random.random() < chance else [] for script in drawn]  # each item's first calls
        sources = ["list", "range", "iterator", "slow", "raises"] + ["async"] * (3 if self.in_callers_loop else 0)
        self.source = random.choice(sources)
        self.sets_up = random.choice(["", "", "", "context", "close", random.choice(["", "", "", "raises"])])
        self.lingers = random.choice([0, 0, 0, 0.001])  # the consumer, after each result
        early = ["cancel", "cancel"] if self.in_callers_loop else ["interrupt", "interrupt", "handler"]
        self.end = random.choice(["none", "none", "close", "drop", *early])
        self.after = random.randrange(self.items + 2) if random.random() < 0.7 else self.items // 3  # results
        pace = random.choice([0.001, 0.01])  # of signals and cancellations
        self.delays = [random.expovariate(1 / pace) for _ in range(random.choice([1, 2, 4, 8]))]
        self.closes = random.random() < 0.7  # after an interrupt; else the map is dropped

    def _draw_options(self, random: Random) -> None:
        options = self.options = draw_some(random, OPTIONS)
        self.batch = options.get("batch", 1)
        self.keys = options.get("key", 0)
        self.broken: set[int] = set()  # the items for which a function of items raises
        if "batch" in options and random.random() < 0.5:
            options["linger"] = random.choice([0.001, 0.01])
        if "max_in_flight" in options:
            options["max_in_flight"] *= options["workers"] * self.batch
        if self.keys:
            options.update(draw_some(random, OF_KEYS), key=lambda value: value % self.keys)
        if "breaker" in options:
            options.update(breaker_reset=0.001, breaker_open="wait")
        if "remember" in options:
            options["codec"] = Codec()
        for name in ["key", "priority", "cost"]:
            if name in options and random.random() < 0.2:
                self.broken.update(range(3, self.items, random.choice([2, 10, 50])))
                options[name] = partial(self.unless_broken, options[name])

    def unless_broken(self, function: Callable[[int], Any], value: int) -> Any:
        if value in self.broken:
            raise Broken
        return function(value)

    def __str__(self) -> str:
        hidden = ("random", "seed", "kind", "in_callers_loop", "scripts", "broken")
        shown = {name: value for name, value in vars(self).items() if name not in hidden}
        shown["options"] = {name: "..." if callable(value) else value for name, value in self.options.items()}
        return f"{self.kind} {shown}"

    # ------------------------------------------------------------------------------------------------ the reference
    def expected(self, value: int) -> tuple[int, type[BaseException] | None, int]:
        """The number of calls of the item, its error, and its attempts."""
        attempts = 0
        if value in self.broken:
            return 0, Broken, 0
        retried = RETRIED.get(self.options.get("retry_on", Exception), (Trouble,))
        for calls, step in enumerate([*self.scripts[value], "ok"], 1):
            if step == "later":
                continue
            attempts += 1
            error = ERRORS.get(step)
            if error is None or attempts > self.options["retries"] or error not in retried:
                return calls, error, attempts
        raise AssertionError

    # ------------------------------------------------------------------------------------------------ the user's side
    def function(self) -> Any:
        def plain(given: Any, resource: Any = None) -> Any:
            with self.call(given) as steps:
                time.sleep(max(PAUSES.get(step, 0) for step in steps.values()))
                return self.outcome(steps)

        async def coroutine(given: Any, resource: Any = None) -> Any:
            with self.call(given) as steps:
                await asyncio.sleep(max(PAUSES.get(step, 0) for step in steps.values()))
                return self.outcome(steps)

        return plain if self.kind == "threads" else coroutine

    @contextlib.contextmanager
    def call(self, given: Any) -> Iterator[dict[int, str]]:
        """A call of fn: what it does with each item."""
        values = given if "batch" in self.options else [given]
        with self.lock:
            keys = {value % (self.keys or 1) for value in values}
            key = next(iter(keys))
            self.running[key] += 1
            for what, broken in (
                ("a call after the end", self.ended),
                ("too large a batch", len(values) > self.batch),
                ("a batch of several keys", self.keys and len(keys) > 1),
                ("more calls than workers", self.running.total() > self.options["workers"]),
                ("more calls than per_key", self.keys and self.running[key] > self.options.get("per_key", self.items)),
            ):
                self.violations += [what] if broken else []
            self.calls.update(values)
            steps = {value: (self.scripts[value][self.calls[value] - 1 :] or ["ok"])[0] for value in values}
        try:
            yield steps
        finally:
            with self.lock:
                self.running[key] -= 1

    def outcome(self, steps: dict[int, str]) -> Any:
        outcomes: list[Any] = []
        for value, step in steps.items():
            if step in ERRORS or step == "later":
                outcomes.append(ERRORS[step](value) if step in ERRORS else RetryLater(0))
            else:
                outcomes.append(Result(value))
                self.made.append(weakref.ref(outcomes[-1]))
        if "batch" not in self.options and isinstance(outcomes[0], BaseException):
            raise outcomes[0]
        return outcomes if "batch" in self.options else outcomes[0]

    def setup(self) -> Any:
        if self.sets_up == "raises":
            raise Trouble("setup")
        with self.lock:
            self.entered += 1
        return self if self.sets_up == "close" else contextlib.closing(self)

    def close(self) -> None:
        """Of a resource."""
        with self.lock:
            self.entered -= 1

    def input(self) -> Any:
        if self.source in ("list", "range"):
            return list(range(self.items)) if self.source == "list" else range(self.items)
        return self._agenerate() if self.source == "async" else self._generate()

    def _generate(self) -> Iterator[int]:
        for value in range(self.items):
            if self.source == "slow" and value % 10 == 9:
                time.sleep(0.002)
            self.read = value + 1
            yield value
        if self.source == "raises":
            raise LookupError("input")

    async def _agenerate(self) -> AsyncIterator[int]:
        for value in self._generate():
            if value % 5 == 4:
                await asyncio.sleep(0.0005)
            yield value

    # ------------------------------------------------------------------------------------------------ a run
    def run(self) -> None:
        self.database, self.recorded = f"{self.seed}-{time.time_ns()}", set[int]()
        if self.run_once() and "remember" in self.options:
            self.recorded = self.known
            self.run_once()

    def run_once(self) -> bool:
        """Whether the map came to its own end."""
        self.lock = threading.Lock()
        self.calls: Counter[int] = Counter()
        self.running: Counter[int] = Counter()  # calls, by key
        self.read = self.entered = 0
        self.ended = self.complete = False
        self.error: BaseException | None = None
        self.violations: list[str] = []
        self.made: list[weakref.ref[Result]] = []
        self.results: list[Any] = []
        options = dict(self.options)
        if self.sets_up:
            options["setup"] = self.setup
        if "remember" in options:
            options["shared"] = Shared(DATABASE, self.database)
        if self.in_callers_loop:
            ASYNCIO[self.kind](self._run_in_loop(options))
        else:
            self._run_here(options)
        self.check()
        return self.complete

    def _run_here(self, options: dict[str, Any]) -> None:
        results: Any = concurrent_map(self.function(), self.input(), **options)

        def act() -> None:
            if self.end == "interrupt":
                raise Interrupt
            results.close()

        with Interrupted(is_of_product, never=threading.Thread.start.__code__) as interrupted:
            if self.end in ("interrupt", "handler"):
                interrupted.after(self.delays if self.end == "interrupt" else self.delays[:1], act)
            self._consume(results)
            while self.closes or self.end == "close":
                with contextlib.suppress(Interrupt):
                    results.close()
                    break
            else:
                return
        assert self.running.total() == 0, f"{self.running.total()} calls run after close"
        # A thread whose start was interrupted runs no call, and ends soon. That of a database may be about to end: its
        # last record is waited for, not itself.
        threads = [name for name in threads_of_maps() if name != "manytail-shared"]
        assert not threads or self.end == "interrupt", f"threads after close: {threads}"

    def _consume(self, results: Any) -> None:
        try:
            while self.wants_more():
                self.took(next(results))
                time.sleep(self.lingers)
        except StopIteration:
            self.complete = self.end != "handler"
        except Interrupt:
            with contextlib.suppress(StopIteration, Interrupt):
                self.results.append(next(results))  # interrupted before it began
        except BaseException as error:
            self.error = error
            with contextlib.suppress(StopIteration, Interrupt):
                raise AssertionError(f"a result after the end: {next(results)!r}") from error

    def wants_more(self) -> bool:
        return self.end not in ("close", "drop") or len(self.results) < self.after

    def took(self, result: Any) -> None:
        self.results.append(result)
        limit = self.options.get("max_in_flight")
        fits = not limit or self.options["errors"] == "drop" or self.read <= limit + len(self.results)
        assert fits, "more items in flight than max_in_flight"

    async def _run_in_loop(self, options: dict[str, Any]) -> None:
        results = aconcurrent_map(self.function(), self.input(), **options)
        loop = asyncio.get_running_loop()
        consumer = loop.create_task(self._aconsume(results))
        for delay in self.delays if self.end == "cancel" else ():
            loop.call_later(delay, consumer.cancel)
        del results
        await asyncio.wait([consumer])
        try:
            consumer.result()
        except asyncio.CancelledError:
            assert self.end == "cancel", "cancelled by nobody"
        del consumer
        if self.end == "drop":
            gc.collect()
            async with asyncio.timeout(60):
                while len(asyncio.all_tasks()) > 1:
                    await asyncio.sleep(0.001)
        assert len(asyncio.all_tasks()) == 1, f"tasks after the end: {asyncio.all_tasks()}"

    async def _aconsume(self, results: Any) -> None:
        async with contextlib.nullcontext() if self.end == "drop" else contextlib.aclosing(results):
            try:
                while self.wants_more():
                    self.took(await anext(results))
                    if self.lingers:
                        await asyncio.sleep(self.lingers)
            except StopAsyncIteration:
                self.complete = True
            except asyncio.CancelledError:
                raise
            except BaseException as error:
                self.error = error

    # ------------------------------------------------------------------------------------------------ what must be true
    def check(self) -> None:
        if isinstance(self.error, AssertionError):
            raise self.error
        gc.collect()
        wait_until(lambda: not threads_of_maps(), f"the end of {threads_of_maps()}")
        with self.lock:
            self.ended = True
        assert not self.violations, self.violations[0]
        assert self.running.total() == 0, f"{self.running.total()} calls run"
        assert self.entered == 0, f"{self.entered} resources are not left"
        self.check_results()
        self.check_calls()
        self.check_error()
        self.known = {one.value for one in self.results if isinstance(one, Result)}
        self.results, self.error = [], None
        gc.collect()
        alive = [ref for ref in self.made if ref() is not None]
        assert not alive, f"{len(alive)} of {len(self.made)} results stay alive"

    def check_results(self) -> None:
        order, drops = self.options["order"], self.options["errors"] == "drop"
        for result in self.results:
            _, error, attempts = self.expected(value_of(result))
            shown = (type(result.error), result.attempts) if isinstance(result, Failure) else (None, attempts)
            assert shown == (error, attempts), f"{result} of {value_of(result)} (expected: {error}, {attempts})"
        values = [value_of(result) for result in self.results]
        assert len(values) == len(set(values)), f"doubled: {Counter(values).most_common(3)}"
        wanted = [value for value in range(self.items) if not (drops and self.expected(value)[1])]
        assert not self.complete or sorted(values) == wanted, f"lost: {sorted(set(wanted) - set(values))}"
        if order == "input":
            assert values == wanted[: len(values)], f"out of order, or lost: {values}"
        for key in range(self.keys) if order == "key" else ():
            of_key = [value for value in values if value % self.keys == key and value not in self.broken]
            assert of_key == sorted(of_key), f"out of order in key {key}: {of_key}"

    def check_calls(self) -> None:
        raised = isinstance(self.error, LookupError) and self.end != "handler"  # by the input, at its end
        for value in range(self.items):
            calls, wanted = self.calls[value], 0 if value in self.recorded else self.expected(value)[0]
            fits = calls == wanted if self.complete or raised else calls <= wanted
            assert fits, f"{calls} calls of {value} (expected: {wanted})"

    def check_error(self) -> None:
        error, failing = self.error, {self.expected(value)[1] for value in range(self.items)} - {None}
        raises = self.options["errors"] == "raise"
        if error is None and self.complete:
            assert self.source != "raises", "the input's exception is lost"
            assert not raises or not failing, f"no exception (expected: one of {failing})"
        elif isinstance(error, LookupError):
            assert self.source == "raises"
        elif isinstance(error, Trouble) and error.args == ("setup",):
            assert self.sets_up == "raises"
        elif error is not None:
            assert raises, repr(error)
            assert type(error) in failing, f"{error!r} (expected: {failing})"


def draw(seed: int) -> Case:
    return Case(seed)


def draw_some(random: Random, options: dict[str, tuple[float, list[Any]]]) -> dict[str, Any]:
    drawn = {name: (random.random() < chance, random.choice(values)) for name, (chance, values) in options.items()}
    return {name: value for name, (given, value) in drawn.items() if given}


def value_of(result: Result | Failure) -> int:
    return result.item if isinstance(result, Failure) else result.value


def is_of_product(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(PRODUCT)


def threads_of_maps() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("manytail-")]
