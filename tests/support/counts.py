"""How much tests do that repeat something: a small number in a run of the suite, a full one in `make test-long`
(MANYTAIL_LONG=1).

`make test-freethreaded` and `make asan` run tests again that `make test` runs, on another build. They set
MANYTAIL_PART=4: count() and part() then give a quarter of the small number. some() does not change.

A variable of its own sets one kind alone: MANYTAIL_HISTORIES (small histories of each kind), MANYTAIL_ITEMS (items of
each thread of a long history), MANYTAIL_ROUNDS (rounds of each call that waits with each call that wakes it),
MANYTAIL_CANCELLATIONS (cancelled coroutines of each such pair), MANYTAIL_SCRIPTS (random scripts of the broker),
MANYTAIL_SEEDS (simulated worlds), MANYTAIL_FUZZ (cases of each fuzzer).
"""

import os
import sys
from collections.abc import Iterable
from typing import TypeVar

Case = TypeVar("Case")
LONG = os.environ.get("MANYTAIL_LONG", "0") == "1"
PART = 1 if LONG else int(os.environ.get("MANYTAIL_PART") or 1)
GIL = getattr(sys, "_is_gil_enabled", lambda: True)()


def part(number: int) -> int:
    """number // MANYTAIL_PART, at least 1. A long run gives the number itself."""
    return max(1, number // PART)


def part_of_races(number: int) -> int:
    """For races that mostly threads in parallel can show: without the GIL the number itself, with it part(number)."""
    return part(number) if GIL else number


def count(small: int, full: int, variable: str = "") -> int:
    """`full` in a long run, else part(small). The variable, where it is set, overrides both."""
    return int(os.environ.get(variable) or (full if LONG else part(small)))


def count_of_races(small: int, full: int) -> int:
    """`full` in a long run, else part_of_races(small)."""
    return full if LONG else part_of_races(small)


def some(small: int, cases: Iterable[Case]) -> list[Case]:
    """For cases that each cost seconds and differ little: all of them in a long run, else the first `small`."""
    return list(cases) if LONG else list(cases)[:small]
