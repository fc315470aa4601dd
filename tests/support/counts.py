"""How often tests repeat: a small number in each run of the suite, the full one in `make test-long` (MANYTAIL_LONG=1).

A variable of its own sets one kind alone: MANYTAIL_HISTORIES (small histories of each kind), MANYTAIL_ITEMS (items of
each thread of a long history), MANYTAIL_ROUNDS (rounds of each pair of calls that could lose a wake-up),
MANYTAIL_CANCELLATIONS (cancelled coroutines of each such pair), MANYTAIL_SCRIPTS (random scripts of the broker).
"""

import os
from collections.abc import Iterable
from typing import TypeVar

Case = TypeVar("Case")
LONG = os.environ.get("MANYTAIL_LONG", "0") == "1"


def count(small: int, full: int, variable: str = "") -> int:
    """`full` in a long run, else `small`; the variable, where it is set, overrides both."""
    return int(os.environ.get(variable) or (full if LONG else small))


def some(small: int, cases: Iterable[Case]) -> list[Case]:
    """For cases that each cost seconds and differ little: all of them in a long run, else the first `small`."""
    return list(cases) if LONG else list(cases)[:small]
