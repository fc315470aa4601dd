"""Types of the other orders of entry queues; what each member does is said in its docstring and in docs/."""

from collections.abc import Callable, Hashable
from typing import Any, Literal, TypeVar, Unpack

from manytail._entries import EntryQueue, _QueueOptions

_T = TypeVar("_T")

class PriorityEntryQueue(EntryQueue[_T]):
    def __init__(
        self,
        name: str = "",
        *,
        levels: int = 10,
        mapping: Literal["jms", "direct"] = "jms",
        **options: Unpack[_QueueOptions[_T]],
    ) -> None: ...
    @property
    def levels(self) -> int: ...

class SortedEntryQueue(EntryQueue[_T]):
    def __init__(self, name: str = "", *, key: Callable[[_T], Any], **options: Unpack[_QueueOptions[_T]]) -> None: ...

class LastValueQueue(EntryQueue[_T]):
    def __init__(
        self, name: str = "", *, key: Callable[[_T], Hashable | None], **options: Unpack[_QueueOptions[_T]]
    ) -> None: ...
