"""How often tests repeat: a small number in each run of the suite, the full one in `make test-long` (MANYTAIL_LONG=1).

What runs the same tests again on another build, without the GIL or under AddressSanitizer, takes a part of the small
numbers (MANYTAIL_PART=4: a quarter).

A variable of its own sets one kind alone: MANYTAIL_HISTORIES (small histories of each kind), MANYTAIL_ITEMS (items of
each thread of a long history), MANYTAIL_ROUNDS (rounds of each pair of calls that could lose a wake-up),
MANYTAIL_CANCELLATIONS (cancelled coroutines of each such pair), MANYTAIL_SCRIPTS (random scripts of the broker).
"""

import os
import sys
from collections.abc import Iterable
from typing import TypeVar

Case = TypeVar("Case")
LONG = os.environ.get("MANYTAIL_LONG", "0") == "1"
PART = 1 if LONG else int(os.environ.get("MANYTAIL_PART", "1"))


def part(number: int) -> int:
    """The number; in a run that repeats the suite on another build a part of it, at least 1."""
    return max(1, number // PART)


def part_of_races(number: int) -> int:
    """For what only threads that run in parallel can show: the whole number without the GIL, else part(number)."""
    return number if not getattr(sys, "_is_gil_enabled", lambda: True)() else part(number)


def count(small: int, full: int, variable: str = "") -> int:
    """`full` in a long run, else part(small); the variable, where it is set, overrides both."""
    return int(os.environ.get(variable) or (full if LONG else part(small)))


def some(small: int, cases: Iterable[Case]) -> list[Case]:
    """For cases that each cost seconds and differ little: all of them in a long run, else the first `small`."""
    return list(cases) if LONG else list(cases)[:small]
