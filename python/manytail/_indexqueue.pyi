"""Types of the IndexMultiQueue; what each member does is said in its docstring and in docs/."""

from collections.abc import Hashable
from typing import TypeAlias, TypeVar

import numpy
import numpy.typing
from typing_extensions import Buffer

from manytail._multiqueue import MultiQueue

_K = TypeVar("_K", bound=Hashable)

_Int64Array: TypeAlias = numpy.typing.NDArray[numpy.int64]
_Int64Buffer: TypeAlias = _Int64Array | Buffer  # arrays are Buffers to checkers from Python 3.12 on

class IndexMultiQueue(MultiQueue[_K, int]):
    """A MultiQueue of 64-bit integers (row numbers, offsets, ids), stored raw: no object per item, and bulk calls run
    without the GIL, so that several threads move arrays in parallel on every build.

    It has everything of MultiQueue. put_many of its SubQueues also accepts whatever has an int64 buffer (numpy arrays,
    memoryviews) and Arrow Int64 arrays without nulls. OverflowError: an int of more than 64 bits. TypeError: any other
    item. Algorithm, source and progress: as MultiQueue.

    >>> q = IndexMultiQueue()
    >>> q.add("rows").put_many(range(5))
    5
    >>> q.get_many(3).tolist(), q.get()
    ([0, 1, 2], 3)
    """
    def get_many(  # type: ignore[override]
        self, max_items: int, block: bool = True, timeout: float | None = None, *, linger: float = 0.0
    ) -> _Int64Array:
        """A numpy array (int64) of up to max_items integers: waits for the first as get does, then takes what is there.
        linger: as MultiQueue.get_many.
        """
    def get_many_into(
        self, out: _Int64Buffer, block: bool = True, timeout: float | None = None, *, linger: float = 0.0
    ) -> int:
        """Fill a writable int64 buffer from its start and return how many integers were taken: waits for the first
        as get does, then takes what is there. A buffer of length 0: 0 at once. linger: as MultiQueue.get_many; the
        buffer is exported while it waits.
        """
    def get_many_with_keys(
        self, max_items: int, block: bool = True, timeout: float | None = None, *, linger: float = 0.0
    ) -> list[tuple[_K, _Int64Array]]:
        """[(key, numpy array)]: runs of integers that come from one sub-queue in a row, in the order of get; up to
        max_items integers in all. Waits for the first as get does. linger: as MultiQueue.get_many.
        """
