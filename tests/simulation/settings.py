"""What a seed decides before its world begins: the map's options, and how its calls, its input, its consumer and its
threads behave.

Times are multiples of `grain`, so that several events often happen at one instant: a retry is due when its timeout is,
the deadline passes when a call ends. Their order is drawn too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

LAST = math.inf  # the priority of None


class Trouble(Exception):
    """An error that is retried by default."""


class Fatal(BaseException):
    """An error that is not an Exception."""


class Never(LookupError):
    """An error of `never_retry`, where a world has one."""


KINDS = (Trouble, ValueError, OSError, Never, StopIteration, Fatal, KeyboardInterrupt, SystemExit, GeneratorExit)


@dataclass
class Settings:
    """One world. `backoff` and `retry_on` are names that `functions.py` turns into callables."""

    seed: int
    items: int
    workers: int
    order: str
    keys: int  # 0: the map has no key
    per_key: int
    weights: dict[int, int] | None
    priorities: tuple[float, ...]  # () where the map has none
    nested: bool  # more priorities than there are labels between two
    max_in_flight: int
    timeout: float | None
    deadline: float | None
    retries: int
    backoff: str
    base: float  # of the backoff, seconds
    max_backoff: float
    retry_on: str
    never_retry: bool
    defer_timeout: float
    errors: str
    buffer: int
    sized: bool  # items and results have sizes
    buffer_bytes: float
    window_bytes: float
    window_limit: int
    idle_limit: int  # lanes that are kept without items
    # How the world behaves.
    grain: float
    latency: float
    tail: float  # probability of a call that takes 20 times as long
    hangs: float  # probability of a call that never ends
    fails: float
    storm: float  # probability of RetryLater
    storm_end: float  # when the storm ends
    bad_items: float  # probability of an item that has failed when it arrives
    pull: float  # seconds between two batches of the input
    batch: int
    input_raises: bool
    rest: float  # seconds between two visits of the consumer
    greed: int  # items that it takes at most in one visit
    lag: float  # how late a report may be
    sloth: float  # probability that an idle worker is late
    coroutines: bool  # an overdue call is cancelled, not abandoned
    close_at: float | None
    break_at: float | None  # the map fails for a reason that is no item's
    # For the gate. Drawn separately: a change here leaves worlds without a gate as they are.
    breaker: int = 0
    breaker_reset: float = 30.0
    breaker_open: str = "wait"
    rate: float | None = None
    per_key_rate: float | None = None
    costs: tuple[float, ...] = ()  # of items; () where the map has no cost
    cost_rate: float | None = None
    budget: float | None = None
    concurrency: float | None = None
    dedup: int = 0
    group: int = 1  # the option `batch`
    linger: float = 0.0
    identities: int = 3  # how many different items there are, where equal ones share calls
    shares: list[int] = field(default_factory=list)  # how often each key is drawn
    max_failures: int | None = None
    fatal: str = ""  # a name that `functions.py` turns into the option
    within: float | None = None
    least: int = 0  # of `workers`, if that is a pair
    start: int = 0  # with how many it begins, if it is a triple
    round: int = 20  # successes in a round at least, once the number was halved
    spread: float = 0.0  # over which part of a pause the starts after it are spread
    known: float = 0.0  # items that come with their recorded results; not drawn, but set by a test

    @property
    def keyed(self) -> bool:
        return self.keys > 0

    @property
    def prioritised(self) -> bool:
        return bool(self.priorities)

    @property
    def limits(self) -> dict[str, float | None]:
        """In the order in which the map has them."""
        return {
            "rate": self.rate, "per_key_rate": self.per_key_rate, "cost_rate": self.cost_rate, "budget": self.budget,
            "concurrency": self.concurrency,
        }  # fmt: skip

    @property
    def gated(self) -> bool:
        return bool(self.breaker) or any(
            (
                *(limit is not None for limit in (*self.limits.values(), self.within)),
                self.dedup, self.group > 1, self.least,
            )
        )

    @property
    def timed(self) -> bool:
        return self.timeout is not None or self.deadline is not None


def _keys(rng: Random) -> dict[str, Any]:
    keys = rng.choice([0, 0, 1, 2, 3, 4, 6, 25])
    keyed = keys > 0
    weights = {key: rng.randint(1, 4) for key in range(1, keys + 2)} if keyed and rng.random() < 0.4 else None
    return {
        "keys": keys,
        "per_key": rng.choice([0, 1, 1, 2, 2, 3, 9]) if keyed else 0,
        "weights": weights,
        "priorities": rng.choice([(), (0, 1), (0, 1, 5, LAST), (-3, 0, 2**40, LAST)]),
        "order": rng.choice(["input", "key", "completion"] if keyed else ["input", "completion"]),
        "nested": rng.random() < 0.15,
        "shares": rng.choice([[], [], [0] * 6]),  # even, or half of all items with key 0
    }


def _failures(rng: Random) -> dict[str, Any]:
    storm = rng.choice([0.0, 0.0, 0.0, 0.1, 0.5, 0.9])
    return {
        "retries": rng.choice([0, 0, 1, 2, 4]),
        "backoff": rng.choice(
            ["number"] * 6 + ["linear", "raises", "same", "inf", "nan", "negative", "text", "bool", "huge"]
        ),
        "base": rng.choice([0.0, 0.1, 1.0, 4.0]),
        "max_backoff": rng.choice([60.0, 60.0, 1.5, 1e-9]),
        "retry_on": rng.choice(["Exception"] * 4 + ["everything", "tuple", "odd", "raises"]),
        "never_retry": rng.random() < 0.2,
        "defer_timeout": rng.choice([600.0, 5.0, 1.0]),
        "errors": rng.choice(["return", "return", "return", "drop", "raise"]),
        "fails": rng.choice([0.0, 0.05, 0.3, 0.3, 0.7]),
        "storm": storm,
        "storm_end": rng.choice([4.0, 20.0, 60.0]),
        "bad_items": rng.choice([0.0, 0.0, 0.0, 0.05]),
    }


def _time(rng: Random, grain: float, latency: float) -> dict[str, Any]:
    timeout = rng.choice([None, None, 2 * latency, 4 * latency])
    deadline = rng.choice([None, None, None, None, 4.0, 12.0, 40.0])
    return {
        "timeout": timeout,
        "deadline": deadline,
        "hangs": 0.0 if timeout is None and deadline is None else rng.choice([0.0, 0.02, 0.1]),
        "grain": grain,
        "latency": latency,
        "tail": rng.choice([0.0, 0.02, 0.1]),
        "lag": rng.choice([0.0, 0.0, grain, 0.3]),
        "sloth": rng.choice([0.0, 0.0, 0.5]),
        "coroutines": rng.random() < 0.3,
        "close_at": rng.choice([None] * 9 + [rng.uniform(0, 20)]),
        "break_at": rng.choice([None] * 19 + [rng.uniform(0, 20)]),
    }


def _limits(rng: Random, keyed: bool) -> dict[str, Any]:
    """Two worlds in five have some."""
    if rng.random() < 0.6:
        return {}

    def some(options: list[Any], otherwise: Any, chance: float = 0.35) -> Any:
        return rng.choice(options) if rng.random() < chance else otherwise

    return {
        "sloth": rng.choice([0.0, 0.3, 0.7]),
        "idle_limit": rng.choice([1, 2, 4_096]),
        "breaker": some([1, 2, 3, 5], 0, 0.45),
        "breaker_reset": rng.choice([1e-9, 0.5, 2.0, 7.0]),
        "breaker_open": rng.choice(["wait", "wait", "fail"]),
        "rate": some([0.5, 2.0, 8.0, 50.0], None),
        "per_key_rate": some([0.25, 1.0, 3.0, 20.0], None) if keyed else None,
        "costs": some([(0.0, 1.0, 2.5), (1.0, 4.0), (3.0,)], (), 0.5),
        "cost_rate": some([1.0, 4.0, 30.0], None),
        "budget": some([0.0, 10.0, 40.0, 100.0], None),
        "dedup": some([1, 2, 100], 0),
        "identities": rng.choice([2, 10, 40]),
        "concurrency": some([1.0, 2.5, 6.0], None, 0.2),
    }


def _batches(rng: Random, settings: Settings) -> dict[str, Any]:
    """One world in six has some."""
    if rng.random() < 5 / 6:
        return {}
    group = rng.choice([2, 3, 8])
    window = settings.max_in_flight and max(settings.max_in_flight, settings.workers * group)
    drawn = {"group": group, "linger": rng.choice([0.0, 0.0, 1.0, 6.0]), "max_in_flight": window}
    if rng.random() < 0.25:
        drawn.update(breaker=2, breaker_open="fail", breaker_reset=0.5, idle_limit=4_096, fails=0.3)
    return drawn


def _ends(rng: Random, settings: Settings) -> dict[str, Any]:
    """One world in eight has one. Drawn separately, too."""
    if rng.random() < 7 / 8:
        return {}
    most = rng.choice([None, 0, 1, 5, 20]) if settings.errors != "raise" else None
    fatal = rng.choice(["", "classes", "one", "odd"])
    drawn = {"max_failures": most, "fatal": "asked" if fatal == "classes" and rng.random() < 0.5 else fatal}
    # Of items that fail together any may be the one too many: what is emitted before it would not be determined.
    if most is None:
        return drawn
    hangs = 0.0 if settings.timeout is None else settings.hangs  # without a deadline such a call never ends
    room = settings.concurrency and max(settings.concurrency, *(settings.costs or (1.0,)))
    return {**drawn, "deadline": None, "hangs": hangs, "breaker_open": "wait", "budget": None, "concurrency": room}


def _within(rng: Random, settings: Settings) -> dict[str, Any]:
    """One world in twelve has it, of those whose items may have several attempts."""
    if rng.random() < 11 / 12 or not settings.retries:
        return {}
    return {"within": rng.choice([0.5, 2.0, 6.0])}


def _adaptive(rng: Random, settings: Settings) -> dict[str, Any]:
    """One world in eight has it."""
    if rng.random() < 7 / 8:
        return {}
    workers = rng.choice([2, 4, 8])
    window = settings.max_in_flight and max(settings.max_in_flight, workers * settings.group)
    least = rng.choice([1, 1, 2])
    drawn = {"workers": workers, "least": least, "round": rng.choice([1, 4, 20]), "max_in_flight": window}
    return {**drawn, "start": rng.choice([0, 0, least, workers, (least + workers) // 2])}


def draw(seed: int) -> Settings:
    """The settings of that seed."""
    rng = Random(f"settings {seed}")
    workers = rng.choice([1, 2, 2, 3, 4, 6])
    grain = rng.choice([1 / 64, 0.25, 0.5])
    settings = Settings(
        seed=seed,
        items=rng.choice([3, 20, 40, 60, 100, 150]),
        workers=workers,
        max_in_flight=rng.choice([0, 0, 0, workers, workers + rng.randrange(10)]),
        buffer=rng.choice([0, 0, 0, 1, 8]),
        sized=rng.random() < 0.2,
        buffer_bytes=rng.choice([10.0, 40.0, math.inf]),
        window_bytes=rng.choice([50.0, 200.0, 1_000.0, math.inf]),
        window_limit=rng.choice([10_000, 10_000, 40]),
        idle_limit=rng.choice([4_096, 1, 4]),
        pull=rng.choice([0.0, 0.0, grain, 2.0]),
        batch=rng.choice([1, 7, 7, 30]),
        input_raises=rng.random() < 0.1,
        rest=rng.choice([0.0, 0.0, grain, 3.0]),
        greed=rng.choice([1, 4, 1_000]),
        **_keys(rng),
        **_failures(rng),
        **_time(rng, grain, max(grain, rng.choice([0.25, 1.0]))),
    )
    limits = _limits(Random(f"starts {seed}"), settings.keyed)
    if limits.get("breaker"):
        limits["idle_limit"] = 4_096  # what is forgotten of a key: its failures in a row
        limits["sloth"] = 0.7  # so that `ready` is not empty when a breaker opens
    elif limits.get("per_key_rate"):
        limits["pull"] = 4.0  # keys are idle for a while, and their limits are not
        limits["idle_limit"] = 1
    ends = _ends(Random(f"ends {seed}"), replace(settings, **limits))
    policies = {"retry_on": "later"} if Random(f"policies {seed}").random() < 0.1 else {}
    settings = replace(settings, **{**limits, **_batches(Random(f"batches {seed}"), settings), **ends, **policies})
    settings = replace(settings, **_within(Random(f"within {seed}"), settings))
    settings = replace(settings, spread=0.1 if Random(f"spread {seed}").random() < 0.25 else 0.0)
    return replace(settings, **_adaptive(Random(f"adaptive {seed}"), settings))
