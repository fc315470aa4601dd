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
    """A MultiQueue for 64-bit integers, such as row numbers, offsets and ids. It stores no Python objects, and bulk
    calls run without the GIL, so that several threads can move arrays in parallel.

    It has all methods of MultiQueue. put_many of its sub-queues also accepts contiguous int64 buffers, such as numpy
    arrays and memoryviews. Raises OverflowError for an int of more than 64 bits, and TypeError for any other item. It
    uses the same algorithm and locking as MultiQueue (see there for the source).

    >>> q = IndexMultiQueue()
    >>> q.add("rows").put_many(range(5))
    5
    >>> q.get_many(3).tolist(), q.get()
    ([0, 1, 2], 3)
    """
    def get_many(  # type: ignore[override]
        self, max_items: int, block: bool = True, timeout: float | None = None, *, linger: float = 0.0
    ) -> _Int64Array:
        """Return a numpy array (int64) of up to max_items integers. Waits for the first one, then takes all that are
        available. linger works as in MultiQueue.get_many.
        """
    def get_many_into(
        self, out: _Int64Buffer, block: bool = True, timeout: float | None = None, *, linger: float = 0.0
    ) -> int:
        """Fill a writable contiguous int64 buffer from its start and return the number of integers. Waits for the first
        one, then takes all that are available. For a buffer of length 0 it returns 0 at once. linger works as in
        MultiQueue.get_many; the buffer stays exported while it waits.
        """
