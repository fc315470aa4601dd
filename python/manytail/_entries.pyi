"""Types of the entry queues; what each member does is said in its docstring and in docs/."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from types import GenericAlias
from typing import (
    Any,
    Generic,
    Literal,
    NoReturn,
    TypeAlias,
    TypedDict,
    TypeVar,
    Unpack,
    final,
    overload,
)

from typing_extensions import disjoint_base

from manytail._subscriptions import Subscription
from manytail._values import DeadReason as DeadReason
from manytail._values import EntryState as EntryState
from manytail._values import QueueStats as QueueStats

_T = TypeVar("_T")

_Overflow: TypeAlias = Literal["block", "reject", "drop_oldest"]
_Groups: TypeAlias = Literal["shared", "assigned"] | None

class _QueueOptions(TypedDict, Generic[_T], total=False):
    """Keywords of every queue."""

    maxsize: int
    overflow: _Overflow
    resume_at: float
    ttl: float | None
    max_deliveries: int
    dead_letter: EntryQueue[_T] | Callable[[Entry[_T], DeadReason], object] | None
    groups: _Groups

class _PutOptions(TypedDict, total=False):
    """Keywords of put, but immediate."""

    headers: Mapping[str, Any] | None
    priority: int
    ttl: float | None
    delay: float
    group: Hashable | None
    origin: object | None

@final
class Entry(Generic[_T]):
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
    def __class_getitem__(cls, item: Any, /) -> GenericAlias: ...
    def __reduce__(self) -> NoReturn: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    @property
    def queue(self) -> EntryQueue[_T]: ...
    @property
    def item(self) -> _T: ...
    @property
    def headers(self) -> Mapping[str, Any]: ...
    @property
    def seq(self) -> int: ...
    @property
    def state(self) -> EntryState: ...
    @property
    def priority(self) -> int: ...
    @property
    def group(self) -> Hashable | None: ...
    @property
    def deliveries(self) -> int: ...
    @property
    def redelivered(self) -> bool: ...
    @property
    def expires_at(self) -> float | None: ...
    def ack(self) -> bool: ...
    def release(self, *, delay: float = 0.0) -> bool: ...
    def reject(self) -> bool: ...
    def unlock(self) -> bool: ...
    def lock(self) -> bool: ...

@disjoint_base
class EntryQueue(Generic[_T]):
    def __init__(
        self,
        name: str = "",
        *,
        maxsize: int = 0,
        overflow: _Overflow = "block",
        resume_at: float = 0.8,
        ttl: float | None = None,
        max_deliveries: int = 0,
        dead_letter: EntryQueue[_T] | Callable[[Entry[_T], DeadReason], object] | None = None,
        groups: _Groups = None,
    ) -> None: ...
    def __class_getitem__(cls, item: Any, /) -> GenericAlias: ...
    def __reduce__(self) -> NoReturn: ...
    @property
    def name(self) -> str: ...
    @property
    def overflow(self) -> str: ...
    maxsize: int
    @overload
    def put(
        self,
        item: _T,
        block: bool = True,
        timeout: float | None = None,
        *,
        headers: Mapping[str, Any] | None = None,
        priority: int = 4,
        ttl: float | None = None,
        delay: float = 0.0,
        group: Hashable | None = None,
        origin: object | None = None,
        immediate: Literal[False] = False,
    ) -> Entry[_T]: ...
    @overload
    def put(
        self,
        item: _T,
        block: bool = True,
        timeout: float | None = None,
        *,
        headers: Mapping[str, Any] | None = None,
        priority: int = 4,
        ttl: float | None = None,
        group: Hashable | None = None,
        origin: object | None = None,
        immediate: Literal[True],
    ) -> Entry[_T] | None: ...
    def put_many(
        self, items: Iterable[_T], block: bool = True, timeout: float | None = None, **options: Unpack[_PutOptions]
    ) -> int: ...
    @overload
    async def aput(
        self, item: _T, *, immediate: Literal[False] = False, **options: Unpack[_PutOptions]
    ) -> Entry[_T]: ...
    @overload
    async def aput(self, item: _T, *, immediate: Literal[True], **options: Unpack[_PutOptions]) -> Entry[_T] | None: ...
    def subscribe(
        self,
        *,
        prefetch: int = 0,
        selector: Callable[[Entry[_T]], bool] | str | None = None,
        browse: bool = False,
        exclusive: bool = False,
        priority: int = 0,
        start: Literal["oldest", "newest"] = "oldest",
        origin: object | None = None,
    ) -> Subscription[_T]: ...
    def browse(self) -> Iterator[Entry[_T]]: ...
    def qsize(self) -> int: ...
    def depth(self) -> int: ...
    def purge(self) -> int: ...
    def maintain(self) -> None: ...
    def shutdown(self, immediate: bool = False) -> None: ...
    @property
    def is_shutdown(self) -> bool: ...
    def stats(self) -> QueueStats: ...
