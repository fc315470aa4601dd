"""How often random tests repeat: a small number in every run of the suite, the full one with MANYTAIL_LONG=1 (`make test-long`).

A variable of its own sets one kind alone: MANYTAIL_HISTORIES (small histories of each kind), MANYTAIL_ITEMS (items of each thread of a long
history), MANYTAIL_ROUNDS (rounds of each pair of calls that could lose a wake-up), MANYTAIL_SCRIPTS (random scripts of the broker).
"""
import os

LONG = os.environ.get("MANYTAIL_LONG", "0") == "1"


def count(small: int, full: int, variable: str = "") -> int:
    """`full` in a long run, else `small`; what the variable says goes before both."""
    return int(os.environ.get(variable) or (full if LONG else small))
