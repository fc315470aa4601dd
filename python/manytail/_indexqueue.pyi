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
    def get_many(  # type: ignore[override]
        self, max_items: int, block: bool = True, timeout: float | None = None, *, linger: float = 0.0
    ) -> _Int64Array: ...
    def get_many_into(
        self, out: _Int64Buffer, block: bool = True, timeout: float | None = None, *, linger: float = 0.0
    ) -> int: ...
    def get_many_with_keys(
        self, max_items: int, block: bool = True, timeout: float | None = None, *, linger: float = 0.0
    ) -> list[tuple[_K, _Int64Array]]: ...
