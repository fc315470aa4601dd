"""`remember`: recorded results are looked up before calls are made, and new ones are recorded.

One thread per map talks to the database, and the consumer never waits for it. The thread handles all requests of one
kind that wait in one statement:

    look_up(items)   items that were read and are not in flight yet. If a result is found the item gets it
    recall(item)     for a worker whose item was looked up more than FRESH seconds ago: look it up again
    extend_lookups(call)  the call missed its slot after that: do not look its items up again for its next slot
    add(item)        record its result, with GROUP - 1 others or BYTES of them, or RECORD_AFTER seconds after the first

A worker that has finished a call waits while BACKLOG results, or BYTES, are unrecorded (`wait_for_backlog`). So these
results and one call of each worker are lost, whatever kills the process. While the database is away nothing is looked
up, so no call starts. After `outage_timeout` seconds the map fails.

`decode` of the codec runs in this thread, `encode` in the worker that made the call. A BulkCodec does both here, for
many results at once.

Invariants
    _unrecorded       results that were added and are not recorded; _bytes: their size
    item.looked_up    a time before its last look-up began. EXTENDED: it holds for the next call, whenever that is
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakSet

from manytail._lifecycle import after_fork_in_child
from manytail._sync import Event, Held

from . import _codec, _logs
from ._errors import add_note, message_of, shortened
from ._exit import steps
from ._fingerprint import check_function
from ._item import Item, Work
from ._threads import Thread
from ._types import SharedUnavailable

if TYPE_CHECKING:
    from ._shared import Shared
    from ._shared_store import Store

FRESH = 0.9  # seconds; a look-up may be 1 s old when the call starts
GROUP = 100  # results that make a statement worthwhile; calls continue during it
RECORD_AFTER = 0.4  # seconds; the promise is 0.5
BACKLOG = 200  # unrecorded results from which on workers wait
BYTES = 1 << 24  # of encoded results that make a statement worthwhile, and from which on workers wait
EXTENDED = math.inf  # as `looked_up`
LARGEST_LOOKUP = 1_000  # items of one statement
EXIT_TIMEOUT = 5.0  # seconds that the interpreter's exit waits for the last results
GATHER = 0.002  # seconds that the first item of a look-up waits for others


class Codec(Protocol):
    """Turns results into bytes and back."""

    def encode(self, result: Any) -> bytes: ...
    def decode(self, data: bytes) -> Any: ...


class BulkCodec(Protocol):
    """A codec of results with a known schema. Name and schema are stored with the name of the Shared, which refuses
    others."""

    name: str
    schema: str

    def encode_all(self, results: Sequence[Any]) -> list[bytes]:
        """Never raises: the results were checked."""
        ...

    def decode_all(self, records: Sequence[bytes]) -> list[Any]:
        """The results; an exception in the place of one that cannot be read."""
        ...


def codec_name(codec: Any) -> str:
    """The name of the codec. It is stored with the name of the Shared, so that another codec is refused."""
    if codec is _codec:
        return _codec.NAME
    if _is_bulk(codec):
        return str(codec.name)
    named = (
        codec
        if hasattr(codec, "__qualname__") or hasattr(codec, "__path__") or hasattr(codec, "__spec__")
        else type(codec)
    )
    return f"{getattr(named, '__module__', '')}.{getattr(named, '__qualname__', named.__name__)}".lstrip(".")


def _is_bulk(codec: Any) -> bool:
    return BulkCodec in type(codec).__mro__


class Memory:
    """Looks results up and records them, in one thread. The first items start it. inline: there is none; the map's
    runner calls `work`."""

    def __init__(self, shared: Shared, codec: Codec | BulkCodec | None, *, inline: bool = False) -> None:
        self._shared = shared
        self._inline = inline
        self._codec: Any = _codec if codec is None else codec
        self._in_bulk = _is_bulk(codec)
        self._lock = threading.RLock()  # guards the other fields; finalizers take it again
        self._changed = Event()  # wakes the thread
        self._lookups: deque[Any] = deque()  # items, and functions to call when the items before them were looked up
        self._recalls: list[tuple[Work, Future[None]]] = []
        self._results: list[tuple[bytes, Any]] = []  # encoded, except for a BulkCodec
        self._look_at = self._record_at = 0.0  # when waiting items are to be looked up, or results recorded
        self._unrecorded = self._bytes = 0
        self._waiting: list[Future[None]] = []  # of workers, made by `wait_for_backlog`
        self._ended: list[Callable[[], object]] = []  # to call at the end of the thread
        self._thread: Thread | None = None
        self._agreed = False  # whether the database has our codec
        self._closing = False  # the map ends: record at once
        self._lookups_ended = self._expired = False
        self._found = 0  # results, and their ages in seconds; logged at the end
        self._newest, self._oldest = math.inf, 0.0
        self._logged = False  # whether a result that cannot be recorded was logged, where that ends nothing
        self.give_up = Event()
        self.patience: Any = self.give_up  # once it is set, no look-up waits for a database that is away
        self.error: BaseException | None = None  # why the thread has ended
        self.arrive: Callable[[list[Item]], None]  # the runner's: these items were looked up
        self.fail: Callable[[BaseException], None]  # the runner's: the map fails
        self.unrecordable: dict[Item, Exception] | None = None  # the runner's: items whose results the codec refuses

    # ------------------------------------------------------------------------------------------------ from the reader
    def look_up(self, items: list[Item]) -> None:
        """Have `arrive` called with these items, in this order, after they were looked up. Does not wait."""
        with Held(self._lock):
            if not self._lookups:
                self._look_at = 0.0 if self._inline else time.monotonic() + GATHER
                self._wake()
            self._lookups.extend(items)
            if len(self._lookups) >= LARGEST_LOOKUP:
                self._changed.set()

    def after_lookups(self, then: Callable[[], None]) -> None:
        """Call `then` in the thread when all items before it were looked up."""
        with Held(self._lock):
            self._lookups.append(then)
            self._look_at = 0.0
            self._wake()

    def _wake(self) -> None:
        if self.error is not None or self._inline:
            return
        if self._thread is None or self._thread.never_runs():
            self._thread = Thread(self._run, "manytail-shared")
            _running.add(self)
            self._thread.start()
        self._changed.set()

    # ------------------------------------------------------------------------------------------------ from workers
    def is_fresh(self, call: Work) -> bool:
        """Whether the last look-up of each item of the call is recent enough, or was extended to it. Ends that."""
        old, items = time.monotonic() - FRESH, call.members()
        fresh = all(item.looked_up > old for item in items)
        for item in items:
            if item.looked_up == EXTENDED:
                item.looked_up = -math.inf  # for one call
        return fresh

    def extend_lookups(self, call: Work) -> None:
        """A call with fresh look-ups missed its slot. They hold for its next slot too, whenever that comes. Otherwise
        no call could start if a round trip to the database takes longer than a start may be late."""
        for item in call.members():
            item.looked_up = EXTENDED

    def recall(self, item: Work) -> Future[None]:
        """Look the item up again, or the items of a batch. Once the future is done, `known` says whether a result was
        found."""
        future: Future[None] = Future()
        with Held(self._lock):
            if self.error is not None or self._lookups_ended:
                future.set_result(None)
            else:
                self._recalls.append((item, future))
                self._wake()
        if self._inline:
            self.work()
        return future

    def add(self, item: Item) -> None:
        """Record the item's result. Runs the codec's encode. What that refuses is not recorded: it is in
        `unrecordable`, and ends a map. Of a Caller, which goes on, the first is logged."""
        data = item.result if self._in_bulk else self._encoded(item)
        if data is None and not self._in_bulk:
            return
        if self.unrecordable:
            self.unrecordable.pop(item, None)  # an abandoned attempt, which has ended late, had another result
        with Held(self._lock):
            if not self._results:
                self._record_at = 0.0 if self._closing else time.monotonic() + RECORD_AFTER
                self._wake()
            self._results.append((bytes.fromhex(item.identity), data))
            self._unrecorded += 1
            self._bytes += _size(data)
            if len(self._results) == GROUP or self._bytes >= BYTES:
                self._changed.set()

    def _encoded(self, item: Item) -> bytes | None:
        """None: the codec refuses the result."""
        try:
            data = self._codec.encode(item.result)
            if not isinstance(data, bytes):
                raise TypeError(f"codec: encode returned a {type(data).__qualname__} (expected: bytes)")
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # an extension's panic is no Exception
            if self.unrecordable is not None:
                self.unrecordable[item] = _unrecordable(item, error)
            elif not self._logged:
                self._logged = True
                _logs.warning("%s; such results will be paid for again", _unrecordable(item, error))
            return None
        return data

    def _has_room(self) -> bool:
        return self._unrecorded < BACKLOG and self._bytes < BYTES

    def wait_for_backlog(self) -> Future[None] | None:
        """What a worker waits for before it takes its next item: that fewer results are unrecorded. None: these are
        few."""
        if self._has_room():
            return None
        with Held(self._lock):
            if self._has_room() or self.error is not None or self._expired:
                return None
            future: Future[None] = Future()
            self._waiting.append(future)
            return future

    # ------------------------------------------------------------------------------------------------ the end
    def expire(self) -> None:
        """The deadline: nothing more is looked up. Who waits for a look-up, or for room, continues at once."""
        with Held(self._lock):
            if self._expired:
                return
            self._expired = self._lookups_ended = True
            self.give_up.set()
            self._changed.set()
            released = self._take_waiting()
        _set_all(released)

    def _take_waiting(self) -> list[Future[None]]:
        """What workers wait for."""
        released = [future for _, future in self._recalls] + self._waiting
        self._recalls, self._waiting = [], []
        return released

    def stop(self) -> None:
        """The map ends: look up nothing more, and record at once all results, and those that running calls still
        return. Does not wait."""
        with Held(self._lock):
            self._closing = self._lookups_ended = True
            self._record_at = 0.0
            if not self._inline:  # else no look-up is on its way
                self.give_up.set()
            self._changed.set()
        if self._inline and self._results:  # it was interrupted, and perhaps nobody calls `flushed`
            _unfinished.add(self)

    def flushed(self, then: Callable[[], object]) -> None:
        """After `stop` and the last call: call `then` when all results are recorded, or the database was away for too
        long."""
        with Held(self._lock):
            if self._thread is not None and not self._thread.never_runs():
                self._ended.append(then)
                return
        if self._inline:
            self.work()
        then()

    # ------------------------------------------------------------------------------------------------ without a thread
    def work(self, early: bool = False) -> None:
        """Do what is due, in this thread. early: record all results, also what is not due yet."""
        try:
            if early and self._results:
                self._record_at = 0.0
            while self.error is None and self._has_work():
                if not self._do(self._shared._store()):
                    return
        except Exception as error:
            is_late = isinstance(error, SharedUnavailable) and self.patience.is_set()
            self._break(error, fails=not is_late)

    def due_in(self) -> float:
        """Seconds until there is something to do. Infinite: there is nothing."""
        with Held(self._lock):
            patience = 0.0 if self._is_due() else self._patience()
        return math.inf if patience is None or self.error is not None else patience

    # ------------------------------------------------------------------------------------------------ the thread
    def _run(self) -> None:
        try:
            store = self._shared._store()
            while self._work(store):
                continue
        except BaseException as error:
            self._break(error)

    def _break(self, error: BaseException, fails: bool = True) -> None:
        """The map fails. Nothing more is looked up or recorded."""
        if fails:
            self.fail(error)  # first: a worker that is released below must not start a call
        _unfinished.discard(self)
        with Held(self._lock):
            self.error, self._thread = error, None
            released = self._take_waiting()
            ended, self._ended = self._ended, []
            lost, self._unrecorded = self._unrecorded, 0
        _set_all(released)
        for then in ended:
            then()
        if lost:
            _logs.error("remember: %d results were not recorded and will be paid for again: %r", lost, error)

    def _work(self, store: Store) -> bool:
        """Wait until there is something to do, and do it. False as of `_do`."""
        while not self._has_work():
            self._changed.wait(self._patience())
        return self._do(store)

    def _do(self, store: Store) -> bool:
        """Do what is due. False: everything is done, and the map has ended."""
        with Held(self._lock):
            now = time.monotonic()
            recalls, lookups, results = list(self._recalls), [], []
            if self._lookups and (self._lookups_ended or now >= self._look_at or len(self._lookups) >= LARGEST_LOOKUP):
                lookups = [self._lookups.popleft() for _ in range(min(len(self._lookups), LARGEST_LOOKUP))]
            if self._are_enough() or now >= self._record_at:
                results, self._results = self._results, []
            if self._closing and not recalls and not lookups and not results:
                self._thread = None
                ended, self._ended = self._ended, []
                over = True
            else:
                ended, over = [], False
        if recalls:
            self._find(store, [item for call, _ in recalls for item in call.to_call()])
            with Held(self._lock):
                taken = {id(future) for _, future in recalls}
                released = [future for _, future in self._recalls if id(future) in taken]
                self._recalls = [each for each in self._recalls if id(each[1]) not in taken]
            _set_all(released)
        if lookups:
            self._pass_on(store, lookups)
        if results:
            try:
                self._record(store, results)
            except BaseException:
                self._results[:0] = results  # Ctrl-C, without a thread: they are recorded by `flushed`
                raise
        if over:
            _unfinished.discard(self)
        for then in ended:
            then()
        if over:
            self._log_found()
        return not over

    def _log_found(self) -> None:
        number, self._found = self._found, 0  # once, although `work` may come here again
        if number:
            newest, oldest = (timedelta(seconds=max(0, round(age))) for age in (self._newest, self._oldest))
            _logs.info("remember: %d results were found in %r, %s to %s old", number, self._shared, newest, oldest)

    def _has_work(self) -> bool:
        with Held(self._lock):
            self._changed.clear()
            return self._is_due()

    def _are_enough(self) -> bool:
        return len(self._results) >= GROUP or (self._bytes >= BYTES and bool(self._results))

    def _is_due(self) -> bool:
        enough = self._are_enough() or len(self._lookups) >= LARGEST_LOOKUP
        return (
            self._closing
            or bool(self._recalls)
            or (self._lookups_ended and bool(self._lookups))
            or enough
            or self._patience() == 0.0
        )

    def _patience(self) -> float | None:
        """Seconds until something is due. None: nothing waits."""
        times = [at for at, waits in ((self._look_at, self._lookups), (self._record_at, self._results)) if waits]
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _pass_on(self, store: Store, lookups: list[Any]) -> None:
        """Look up the items among `lookups`, and let them arrive. Call each function when those before it have."""
        items = [each for each in lookups if not callable(each)]
        if items:
            self._find(store, items)
        begin = 0
        for index, each in enumerate(lookups):
            if callable(each):
                if begin < index:
                    self.arrive(lookups[begin:index])
                each()
                begin = index + 1
        if begin < len(lookups):
            self.arrive(lookups[begin:])

    def _find(self, store: Store, items: list[Item]) -> None:
        asked = [item for item in items if item.error is None]
        if self._lookups_ended or not asked:
            return
        now = time.monotonic()
        ids = [bytes.fromhex(item.identity) for item in asked]
        try:
            if not self._agreed:
                store.agree(codec_name(self._codec), self._codec.schema if self._in_bulk else "", self.patience)
                self._agreed = True
                if self._shared._fingerprint is not None:
                    check_function(store, repr(self._shared), self._shared._fingerprint, self.patience)
            ages: list[float] = []
            found = store.look_up(ids, self.patience, ages)
        except SharedUnavailable:
            if self._lookups_ended or self.patience.is_set():
                return  # the deadline came first
            raise
        for item in asked:
            item.looked_up = now
        if found:
            recorded = [(item, found[id_]) for item, id_ in zip(asked, ids, strict=True) if id_ in found]
            self._found += len(recorded)
            self._newest, self._oldest = min(self._newest, *ages), max(self._oldest, *ages)
            self._read(recorded)

    def _read(self, recorded: list[tuple[Item, bytes]]) -> None:
        records = [data for _, data in recorded]
        results = self._codec.decode_all(records) if self._in_bulk else map(self._decoded, records)
        for (item, _), result in zip(recorded, results, strict=True):
            if isinstance(result, Exception):
                add_note(result, "manytail: of a remembered result; Shared.forget() drops them")
                item.error = result
            else:
                item.result, item.known = result, True

    def _decoded(self, data: bytes) -> Any:
        try:
            return self._codec.decode(data)
        except Exception as error:
            return error

    def _record(self, store: Store, results: list[tuple[bytes, Any]]) -> None:
        first: dict[bytes, Any] = {}
        for id_, data in results:
            first.setdefault(id_, data)
        if self._in_bulk:
            first = dict(zip(first, self._codec.encode_all(list(first.values())), strict=True))
        from ._shared_store import Grace

        store.record(first, Grace(self.patience) if self._inline else None)  # a thread may go on without the map
        with Held(self._lock):
            self._unrecorded -= len(results)
            self._bytes -= sum(_size(data) for _, data in results)
            released: list[Future[None]] = []
            if self._has_room():
                # Another list, also in place of an empty one: a worker that begins to wait now is not to be in both.
                released, self._waiting = self._waiting, []
        _set_all(released)


def _size(data: Any) -> int:
    """0: it is not encoded, because its codec does that for many at once."""
    return len(data) if isinstance(data, bytes) else 0


def _unrecordable(item: Item, error: BaseException) -> TypeError:
    made = TypeError(
        f"remember: the result of item {shortened(item.value)}, of type {type(item.result).__qualname__}, cannot be "
        f"recorded: {message_of(error)}; let fn return what can be, or give a codec: remember=Shared(..., codec=...)"
    )
    made.__cause__ = error
    return made


_running: WeakSet[Memory] = WeakSet()
_unfinished: set[Memory] = set()  # without a thread, whose map was stopped while results were not recorded
after_fork_in_child(_running.clear)  # a child has none of their threads, and would wait for them
after_fork_in_child(_unfinished.clear)


def _record_at_exit() -> None:
    """Record the results of maps that were not closed, for instance after Ctrl-C."""
    memories = [*_running, *_unfinished]
    for memory in memories:
        memory.stop()
    for memory in memories:
        recorded = Event()
        memory.flushed(recorded.set)
        recorded.wait(EXIT_TIMEOUT)


steps.record = _record_at_exit


def _set_all(futures: list[Future[None]]) -> None:
    """Complete the futures, except those whose coroutine was cancelled."""
    for future in futures:
        if future.set_running_or_notify_cancel():
            future.set_result(None)
