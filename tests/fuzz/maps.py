"""Random maps against a naive reference, with random early ends.

A case draws the options of a map, what each call of each item does, how its input and consumer behave, and how the map
ends: at its end, closed, dropped, interrupted, cancelled. The reference walks through the script of each item. It
knows the set of results, their order, and how often fn is called. Where time decides (a short timeout or deadline, an
open breaker, a budget) it knows bounds.
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
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from support.event_loops import ASYNCIO
from support.maps import threads_of_maps
from support.threads import wait_until

import manytail
from manytail import (
    Batch,
    Breaker,
    BreakerOpen,
    Budget,
    BudgetExceeded,
    Concurrency,
    DeadlineExceeded,
    Outcome,
    Rate,
    Retry,
    RetryLater,
    Shared,
    aconcurrent_map,
    concurrent_map,
)

from .interrupts import Interrupt, Interrupted, Stack, raise_interrupt

PRODUCT = str(Path(manytail.__file__).parent) + os.sep
LOOPS = str(Path(asyncio.__file__).parent) + os.sep
DATABASE = Path(tempfile.gettempdir(), f"manytail-fuzz-{os.getpid()}.db")


class Trouble(Exception):
    """An error that is retried by default."""


class Fatal(BaseException):
    """An error that is not an Exception."""


class Broken(Exception):
    """Raised by key, priority, cost or item_id."""


ERRORS: dict[str, type[BaseException]] = {"trouble": Trouble, "other": ValueError, "fatal": Fatal, "hang": TimeoutError}
PAUSES = {"sleep": 0.001, "slow": 0.03, "hang": 0.2}
RETRIED = {
    Exception: (Trouble, ValueError, TimeoutError),
    Trouble: (Trouble,),
    (Trouble, Fatal): (Trouble, Fatal),
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
        self.kind = random.choice(["threads", "threads", "own loop", "inline", "inline loop", *ASYNCIO])
        self.is_inline = self.kind.startswith("inline")
        self.is_plain = self.kind in ("threads", "inline")
        self.in_callers_loop = self.kind in ASYNCIO
        self.items = random.choice([0, 1, 5, 20, 60, 200])
        self.options: dict[str, Any] = {}
        self.raises: dict[str, Any] = {}  # by option: the items for which the function raises
        self._draw_options()
        asked = {*self.options, *(["cost"] if self.costed else [])}
        self.broken = {item for name, items in self.raises.items() if name in asked for item in items}
        sources = ["list", "range", "iterator", "slow", "raises"] + ["async"] * (3 if self.in_callers_loop else 0)
        self.source = random.choice(sources)
        self._draw_scripts()
        self.wants_delivery = random.random() < 0.2
        self.sets_up = random.choice(["", "", "", "context", "close", "raises" if random.random() < 0.2 else ""])
        self.lingers = random.choice([0, 0, 0, 0.001])  # the consumer, after each result
        early = ["close", "drop", "cancel"] if self.in_callers_loop else ["close", "drop", "interrupt", "handler"]
        self.end = random.choice(["none", "none", *early])
        self.after = random.randrange(self.items + 2) if random.random() < 0.7 else self.items // 3  # results
        self.delays = [random.expovariate(1 / 0.01) for _ in range(random.choice([1, 1, 2, 4]))]
        self.closes = random.random() < 0.7  # after an interrupt; else the map is dropped

    def _draw_options(self) -> None:
        random, options = self.random, self.options

        def maybe(chance: float, **drawn: Any) -> bool:
            if random.random() < chance:
                options.update(drawn)
                return True
            return False

        self.workers = workers = random.choice([1, 2, 3, 8]) if not self.is_inline else 1
        options["workers"] = "inline" if self.is_inline else workers
        if workers > 1 and random.random() < 0.3:
            options["workers"] = random.randint(1, workers), workers
        batch = random.choice([2, 3, 10]) if maybe(0.2, batch=2) else 1
        options["order"] = random.choice(["input", "input", "completion"])
        options["errors"] = random.choice(["raise", "return", "return", "drop"])
        retry: dict[str, Any] = {"backoff": random.choice([0, 0.001, lambda attempt, error: 0.001])}
        retry["times"] = random.choice([0, 0, 1, 3])
        if random.random() < 0.1:
            retry["max_backoff"] = 0.0005
        if random.random() < 0.3:
            retry["on"] = random.choice([Trouble, (Trouble, Fatal), lambda error: isinstance(error, Trouble)])
        options["retry"] = Retry(**retry)
        if batch > 1:
            options["batch"] = Batch(batch, linger=random.choice([0, 0, 0.001, 0.01]))
        maybe(0.3, max_in_flight=random.choice([1, 2, 5]) * workers * batch)
        self.keys = random.choice([1, 3, 10]) if random.random() < 0.4 else 0
        if self.keys:
            options["key"] = self._asked("key", lambda value: value % self.keys)
            maybe(0.5, order="key")
            maybe(0.5, per_key=random.choice([1, 2]))
            maybe(0.2, weights={0: 5, 1: 2})
        maybe(0.2, priority=self._asked("priority", lambda value: None if value % 7 == 0 else -value % 5))
        maybe(0.2, timeout=random.choice([60, 60, 0.05]))
        maybe(0.2, deadline=random.choice([60, 60, 0.01]))
        when_open = random.choice(["wait", "wait", "fail"])
        maybe(0.15, breaker=Breaker(random.choice([1, 3]), reset=0.001, when_open=when_open))
        self._draw_limits()
        self.names = self.items or 1
        if maybe(0.15, dedup=1000):
            self.names = random.choice([1, 3, self.names])
            options["item_id"] = self._asked("item_id", lambda value: value % self.names)
        maybe(0.2, progress=lambda seen: None)
        self.remembers = maybe(0.04, remember=None)

    def _draw_limits(self) -> None:
        random = self.random
        cost = self._asked("cost", lambda value: value % 3) if random.random() < 0.3 else None
        self.budget = random.choice([0, 10, 1e6]) if random.random() < 0.1 else 1e6
        drawn = [
            Rate(1e5),
            Rate(1e5, cost=cost),
            Budget(self.budget, cost=cost),
            Concurrency(random.choice([3, 100]), cost=cost),
            *([Rate(1e5, per_key=True)] if self.keys else []),
        ]
        limits = [limit for limit in drawn if random.random() < 0.1 or getattr(limit, "amount", 0) == self.budget < 1e6]
        self.costed = any(limit.cost is not None for limit in limits)
        if limits:
            self.options["limits"] = limits

    def _asked(self, name: str, function: Any) -> Any:
        """A function of an item that raises for some values."""
        broken = range(3, self.items, self.random.choice([2, 10, 50])) if self.random.random() < 0.2 else ()
        self.raises[name] = broken

        def asked(value: int) -> Any:
            if value in broken:
                raise Broken(name)
            return function(value)

        return asked

    def _draw_scripts(self) -> None:
        """What the first calls of each item do. Those of equal items are one script, whose calls succeed in the end."""
        random, options = self.random, self.options
        chance = random.choice([0, 0.02, 0.3])
        steps = ["sleep", "slow", "later", "trouble", "trouble", "other", "fatal"]
        if "dedup" in options:
            steps = ["sleep", "slow", "later"]
        self.scripts: dict[int, list[str]] = {}
        for name in range(self.names):
            if random.random() < chance:
                self.scripts[name] = random.choices(steps, k=random.choice([1, 2, 4]))
        if options.get("timeout", 60) < 1 and self.kind == "threads":
            options["retry"] = replace(options["retry"], times=0)  # abandoned calls must not be more than workers
            for name in random.sample(range(self.names), min(self.names, self.workers - 1)):
                self.scripts[name] = ["hang"]
            for script in self.scripts.values():
                if "hang" not in script:
                    script[:] = [step for step in script if step != "slow"]
        elif options.get("timeout", 60) < 1 and self.items and "dedup" not in options:
            self.scripts[random.randrange(self.names)] = ["hang"]
        self.loose = (
            options.get("timeout", 60) < 1
            or options.get("deadline", 60) < 1
            or options.get("breaker", Breaker(1)).when_open == "fail"
            or self.budget < 1e6
        )
        self.may_abandon = options.get("timeout", 60) < 1 and self.kind == "threads"

    def __repr__(self) -> str:
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
        script = self.scripts.get(value % self.names, [])
        for calls, step in enumerate([*script, "ok"], 1):
            if step == "later":
                continue
            attempts += 1
            error = ERRORS.get(step)
            if error is None or attempts > self.options["retry"].times or error not in self._retried():
                return calls, error, attempts
        raise AssertionError

    def _retried(self) -> tuple[type[BaseException], ...]:
        return RETRIED.get(self.options["retry"].on, (Trouble,))

    def most_calls(self, value: int) -> int:
        return self.options["retry"].times + 1 + self.scripts.get(value % self.names, []).count("later")

    # ------------------------------------------------------------------------------------------------ the user's side
    def begin(self, values: list[int], delivery: Any) -> list[str]:
        """A call begins. Returns what it does with each item."""
        with self.lock:
            assert not self.ended, "a call after the end"
            steps = []
            for value in values:
                name = value % self.names
                script = self.scripts.get(name, [])
                number = self.calls[name]
                self.calls[name] += 1
                steps.append(script[number] if number < len(script) else "ok")
                self.cost += "later" not in steps[-1] and self.cost_of(value)
            self.running += 1
            assert self.may_abandon or self.running <= self.workers, "more calls than workers"
            assert not self.is_inline or not threads_of_maps(), f"threads: {threads_of_maps()}"
            if self.keys:
                key = values[0] % self.keys
                assert all(value % self.keys == key for value in values), "a batch of several keys"
                self.running_of[key] += 1
                limit = self.options.get("per_key") or self.running_of[key]
                assert self.may_abandon or self.running_of[key] <= limit, "more calls than per_key"
            if "batch" in self.options:
                assert len(values) <= self.options["batch"].size, "too large a batch"
        return steps

    def cost_of(self, value: int) -> float:
        return value % 3 if self.costed else 1

    @contextmanager
    def call(self, given: Any, delivery: Any) -> Iterator[tuple[list[int], list[str]]]:
        values = given if "batch" in self.options else [given]
        try:
            steps = self.begin(values, delivery)
        except AssertionError as error:
            self.violations.append(error)
            raise
        try:
            yield values, steps
        finally:
            with self.lock:
                self.running -= 1
                if self.keys:
                    self.running_of[values[0] % self.keys] -= 1

    def outcome(self, values: list[int], steps: list[str]) -> Any:
        outcomes = [self._outcome(value, step) for value, step in zip(values, steps, strict=True)]
        if "batch" in self.options:
            return outcomes
        if isinstance(outcomes[0], BaseException):
            raise outcomes[0]
        return outcomes[0]

    def _outcome(self, value: int, step: str) -> Any:
        if step in ("trouble", "other", "fatal"):
            return ERRORS[step](value)
        if step == "later":
            return RetryLater(0)
        result = Result(value)
        self.made.append(weakref.ref(result))
        return result

    def function(self) -> Any:
        def plain(given: Any, resource: Any = None, delivery: Any = None) -> Any:
            with self.call(given, delivery) as (values, steps):
                if pause := max(PAUSES.get(step, 0) for step in steps):
                    time.sleep(pause)
                return self.outcome(values, steps)

        async def coroutine(given: Any, resource: Any = None, delivery: Any = None) -> Any:
            with self.call(given, delivery) as (values, steps):
                if pause := max(PAUSES.get(step, 0) for step in steps):
                    await asyncio.sleep(pause)
                return self.outcome(values, steps)

        function: Any = plain if self.is_plain else coroutine
        if self.wants_delivery:
            return function
        if self.is_plain:
            return lambda given, resource=None: plain(given)

        async def without(given: Any, resource: Any = None) -> Any:
            return await coroutine(given)

        return without

    def setup(self) -> Any:
        if self.sets_up == "raises":
            raise Trouble("setup")
        case = self
        with self.lock:
            self.entered += 1

        class Resource:
            def close(self) -> None:
                with case.lock:
                    case.exited += 1

        @contextmanager
        def resource() -> Iterator[None]:
            try:
                yield
            finally:
                Resource().close()

        return Resource() if self.sets_up == "close" else resource()

    def input(self) -> Any:
        if self.source in ("list", "range"):
            return list(range(self.items)) if self.source == "list" else range(self.items)
        return self._agenerate() if self.source == "async" else self._generate()

    def _generate(self) -> Iterator[int]:
        for value in range(self.items):
            if self.source == "slow" and value % 10 == 9:
                time.sleep(0.002)
            self.taken = value + 1
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
        if self.run_once() and self.remembers:
            self.recorded = self.known
            self.run_once()

    def run_once(self) -> bool:
        """Whether the map came to its own end."""
        self.lock = threading.Lock()
        self.calls: Counter[int] = Counter()
        self.running_of: Counter[int] = Counter()
        self.running = self.taken = self.entered = self.exited = 0
        self.cost = 0.0
        self.ended = self.complete = False
        self.error: BaseException | None = None
        self.violations: list[AssertionError] = []
        self.made: list[weakref.ref[Result]] = []
        self.results: list[Any] = []
        options = dict(self.options)
        if self.sets_up:
            options["setup"] = self.setup
        if self.remembers:
            options["remember"] = Shared(DATABASE, self.database, codec=Codec())
        if self.in_callers_loop:
            ASYNCIO[self.kind](self._run_in_loop(options))
        else:
            self._run_here(options)
        self.check()
        return self.complete

    def _run_here(self, options: dict[str, Any]) -> None:
        results: Any = concurrent_map(self.function(), self.input(), **options)
        with Interrupted(is_interruptible) as interrupted:
            if self.end == "interrupt":
                interrupted.after(self.delays, raise_interrupt)
            elif self.end == "handler":
                interrupted.after(self.delays[:1], results.close)
            self._consume(results)
            if self.closes or self.end == "close":
                self._close(results)

    def _consume(self, results: Any) -> None:
        try:
            while self.end not in ("close", "drop") or len(self.results) < self.after:
                self.results.append(next(results))
                assert self.fits_window(), "more items in flight than max_in_flight"
                if self.lingers:
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

    def _close(self, results: Any) -> None:
        while True:
            try:
                results.close()
                break
            except Interrupt:
                continue
        self.nothing_stays()

    def nothing_stays(self) -> None:
        """But a thread of the database may still be about to end: its last record is waited for, not itself."""
        threads = [name for name in threads_of_maps() if name != "manytail-shared"]
        assert not threads or self.may_abandon, f"threads after close: {threads}"

    def fits_window(self) -> bool:
        limit = self.options.get("max_in_flight")
        return not limit or self.options["errors"] == "drop" or self.taken <= limit + len(self.results)

    async def _run_in_loop(self, options: dict[str, Any]) -> None:
        results = aconcurrent_map(self.function(), self.input(), **options)
        loop = asyncio.get_running_loop()
        consumer = loop.create_task(self._aconsume(results))
        if self.end == "cancel":
            for delay in self.delays:
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
        if self.end == "drop":
            await self._atake(results)
            return
        async with aclosing(results):
            await self._atake(results)

    async def _atake(self, results: Any) -> None:
        try:
            while self.end not in ("close", "drop") or len(self.results) < self.after:
                self.results.append(await anext(results))
                assert self.fits_window(), "more items in flight than max_in_flight"
                if self.lingers:
                    await asyncio.sleep(self.lingers)
        except StopAsyncIteration:
            self.complete = True
        except (asyncio.CancelledError, AssertionError):
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
        if self.violations:
            raise self.violations[0]
        assert self.running == 0 or self.may_abandon, f"{self.running} calls run"
        # Inline an interrupt may come between the two.
        kept = 1 if self.is_inline and self.end == "interrupt" else 0
        assert 0 <= self.entered - self.exited <= kept, f"{self.entered} resources entered, {self.exited} left"
        self.check_results()
        self.check_calls()
        self.check_error()
        results = [one.result if isinstance(one, Outcome) else one for one in self.results]
        self.known = {one.value for one in results if one is not None}
        results.clear()
        self.results, self.error = [], None
        gc.collect()
        alive = [ref for ref in self.made if ref() is not None]
        assert not alive, f"{len(alive)} of {len(self.made)} results stay alive"

    def check_results(self) -> None:
        values = []
        for result in self.results:
            failed = isinstance(result, Outcome) and not result.ok
            if isinstance(result, Outcome) and result.ok:
                assert "dedup" in self.options or result.item == result.result.value, result
            value = result.item if isinstance(result, Outcome) else result.value
            if "dedup" in self.options and not failed:
                values.append(value % self.names)
                continue
            values.append(value)
            _, error, attempts = self.expected(value)
            if self.loose:
                continue
            if failed:
                assert self.options["errors"] == "return"
                assert type(result.error) is error, f"{result} (expected: {error})"
                assert result.attempts == attempts, f"{result} (expected: {attempts} attempts)"
            else:
                assert error is None, f"a result of {value} (expected: {error})"
        if "dedup" in self.options:
            return
        assert len(values) == len(set(values)), f"doubled: {Counter(values).most_common(3)}"
        order = self.options["order"]
        if order == "input":
            assert values == sorted(values), f"out of order: {values}"
        elif order == "key":
            for key in range(self.keys):
                of_key = [value for value in values if value % self.keys == key and value not in self.broken]
                assert of_key == sorted(of_key), f"out of order in key {key}: {of_key}"
        if order == "input" and self.options["errors"] != "drop":
            assert values == list(range(len(values))), f"lost: {values}"
        if self.complete and not (self.loose and self.options["errors"] == "drop"):
            drops = self.options["errors"] == "drop"
            wanted = [value for value in range(self.items) if not (drops and self.expected(value)[1])]
            assert sorted(values) == wanted, f"lost: {sorted(set(wanted) - set(values))}"

    def check_calls(self) -> None:
        raised = isinstance(self.error, LookupError) and self.end != "handler"  # by the input, at its end
        whole = (self.complete or raised) and not self.loose
        if self.budget < 1e6:
            assert self.cost <= self.budget, f"calls cost {self.cost}"
        for value in range(self.items):
            if "dedup" in self.options and (self.loose or value in self.broken):
                continue  # after a failure the next equal item is called
            calls = self.calls[value % self.names]
            wanted = 0 if value in self.recorded else self.expected(value)[0]
            if whole and self.names == self.items:
                assert calls == wanted, f"{calls} calls of {value} (expected: {wanted})"
            else:
                most = self.most_calls(value) if self.loose and wanted else wanted
                assert calls <= most, f"{calls} calls of {value} (expected at most: {most})"

    def check_error(self) -> None:
        error = self.error
        if error is None:
            if self.complete and not self.loose and self.options["errors"] == "raise":
                failing = [value for value in range(self.items) if self.expected(value)[1]]
                assert not failing, f"no exception (expected: that of one of {failing})"
            if self.complete:
                assert self.source != "raises", "the input's exception is lost"
            return
        if isinstance(error, LookupError):
            assert self.source == "raises"
        elif isinstance(error, Trouble) and error.args == ("setup",):
            assert self.sets_up == "raises"
        else:
            assert self.options["errors"] == "raise", repr(error)
            kinds = {self.expected(value)[1] for value in range(self.items)}
            if self.loose:
                kinds |= {TimeoutError, DeadlineExceeded, BreakerOpen, BudgetExceeded, *ERRORS.values()}
            assert type(error) in kinds, f"{error!r} (expected: {kinds})"


draw = Case


def is_interruptible(frame: Stack) -> bool:
    """Whether a call of the map runs, and not the start of a thread or a loop: CPython's do not survive an exception
    there. Nor fn, setup or the input of an inline map: they would have to count what they did not do."""
    starts = threading.Thread.start.__code__
    while frame is not None and not frame.f_code.co_filename.startswith(PRODUCT):
        if frame.f_code is starts or frame.f_code.co_filename.startswith((__file__, LOOPS)):
            return False
        frame = frame.f_back
    return frame is not None
