"""What threads hand over: a putter's loop for each kind of item, a getter's loop, and how deep the queue was.

Items are made on the way and dropped at once, as programs do. Without the GIL the kind decides: `None` is immortal, so
nobody counts references of it; an object that another thread drops last goes back to its owner's heap from there.
A deep queue makes every item cold, so a figure of threads says how deep its queue was.
"""
from __future__ import annotations

from collections.abc import Callable
from itertools import repeat
from typing import Any

from harness import Sample

SHARED = object()
SAMPLED_EVERY = 1_000  # gets
Loop = Callable[[Any, int], None]


# The bound method is made in the thread that uses it, as its own object.
def put_none(owner: Any, n: int) -> None:
    put = owner.put
    for _ in repeat(None, n):
        put(None)


def put_shared(owner: Any, n: int) -> None:
    put, item = owner.put, SHARED
    for _ in repeat(None, n):
        put(item)


def put_ints(owner: Any, n: int) -> None:
    put = owner.put
    for number in range(1_000, 1_000 + n):                    # small ones are immortal
        put(number)


def put_tuples(owner: Any, n: int) -> None:
    put = owner.put
    for number in range(1_000, 1_000 + n):
        put((number,))


def put_bytes(owner: Any, n: int) -> None:
    put, size = owner.put, 1_000
    for _ in repeat(None, n):
        put(bytes(size))


KINDS: dict[str, tuple[str, Loop]] = {
    "none": ("None", put_none),
    "shared": ("one shared object", put_shared),
    "int": ("fresh ints", put_ints),
    "tuple": ("fresh tuples", put_tuples),
    "bytes": ("fresh bytes of 1 kB", put_bytes),
}


def get_all(owner: Any, n: int) -> None:
    get = owner.get
    for _ in repeat(None, n):
        get()


def noting_depth(loop: Loop, owner: Any, qsize: Callable[[], int], n: int, depths: list[int]) -> None:
    """Run a getter's loop for n items. Appends how many were waiting, now and then."""
    for begun in range(0, n, SAMPLED_EVERY):
        loop(owner, min(SAMPLED_EVERY, n - begun))
        depths.append(qsize())


def sampled(value: float, depths: list[int]) -> Sample:
    """A figure with the median and the 99th percentile of these depths."""
    ranked = sorted(depths) or [0]
    return Sample(value, ranked[len(ranked) // 2], ranked[min(len(ranked) - 1, len(ranked) * 99 // 100)])
