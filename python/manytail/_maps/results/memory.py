"""`remember=`: recorded results are looked up when items are read, and new ones are recorded after calls.

One thread per map talks to the database. Nobody waits for it: the scheduler gives it items and results, and it posts
events.

    look_up(items)   items that have arrived. They are looked up in bulk; `LookedUp` says which have a result
    after(item)      its call has succeeded: its record is kept until GROUP of them, or BYTES, or RECORD_AFTER seconds
    before(item)     no call starts while BACKLOG results, or BYTES, are not recorded: with one result of each running
                     call, so much is lost whatever kills the process
    leave()          the map has ended: what is left is recorded at once, and the thread ends

Records are made by workers, as a part of the call (`encoding`), so a result of an abandoned call is dropped with it. A
BulkCodec makes many at once, in the thread. While the database is away nothing is looked up, so no call of a new item
starts; after `outage_timeout` seconds the map fails. inline: there is no thread; the runner calls `work`.

Invariants
    _added - _recorded      results that are not recorded; each number has one writer: the scheduler, and the thread
    _looking                items that are looked up, and what becomes of them: the scheduler's. The thread writes only
                            `_answers`, so an item that the deadline has given up is changed no more
"""

from __future__ import annotations

import atexit
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, Protocol
from weakref import WeakSet

from manytail._lifecycle import after_fork_in_child, start_daemon
from manytail._sync import Event

from ..database import connection  # noqa: F401  its exit handler has to be registered before the one here: it runs last
from ..engine.events import LookedUp
from ..engine.item import Call, Ended, Item
from ..engine.stages import GO, Decision, Released, Stage, Wait
from ..errors import add_note, message_of, shortened
from ..outcomes import SharedUnavailable
from . import identity
from .fingerprint import check_function

GROUP = 100  # results that make a statement worthwhile; calls continue during it
RECORD_AFTER = 0.4  # seconds; the promise is 0.5
BACKLOG = 200  # unrecorded results from which on no call starts
BYTES = 1 << 24  # of records that make a statement worthwhile, and from which on no call starts
LARGEST_LOOKUP = 1_000  # items of one statement
GATHER = 0.002  # seconds that the first item of a look-up waits for others
EXIT_TIMEOUT = 5.0  # seconds that the interpreter's exit waits for the last results

_log = logging.getLogger("manytail")


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
    if codec is None:
        return identity.NAME
    if _is_bulk(codec):
        return str(codec.name)
    is_named = any(hasattr(codec, name) for name in ("__qualname__", "__path__", "__spec__"))
    named = codec if is_named else type(codec)
    return f"{getattr(named, '__module__', '')}.{getattr(named, '__qualname__', named.__name__)}".lstrip(".")


def _is_bulk(codec: Any) -> bool:
    return BulkCodec in type(codec).__mro__


class Memory(Stage):
    """The first stage that is asked for a call. The scheduler asks it to look items up (`Scheduler.memory`)."""

    def __init__(self, shared: Any, codec: Any, *, inline: bool = False, fails: bool = True) -> None:
        """fails: a result that cannot be recorded ends the map, after it was yielded; else the first is logged."""
        super().__init__()
        self._shared, self._codec, self._inline, self._fails = shared, codec, inline, fails
        self._in_bulk = _is_bulk(codec)
        self._fail: Callable[[BaseException], None]
        self.post: Callable[[Any], None]  # the driver's
        self._looking: dict[Item, None] = {}
        self._answers: dict[Item, tuple[Any, Exception | None]] = {}  # recorded results, or why they cannot be read
        self._lookups: deque[Item] = deque()
        self._results: deque[tuple[bytes, Any]] = deque()  # ids, and records; of a BulkCodec results
        self._look_at: float = math.inf  # when waiting items are to be looked up
        self._record_at: float = math.inf  # when results are to be recorded
        self._added = self._bytes_added = 0
        self._recorded = self._bytes_recorded = 0
        self._waits = False  # the map waits until more is recorded
        self.unrecordable: dict[Item, BaseException] = {}  # items whose results the codec refuses; the consumer takes
        self._logged = False
        self._give_up = Event()  # no look-up waits for a database that is away
        self._changed = Event()  # wakes the thread
        self._begun = self._closing = False
        self._agreed = False  # whether the database has our codec
        self._found, self._newest, self._oldest = 0, math.inf, 0.0  # results, and their ages in seconds
        self.ended = Event()  # all is recorded, or lost
        self._then: deque[Callable[[], object]] = deque()  # to call at that time
        self.error: BaseException | None = None  # why it has ended before

    def connect(self, wake: Callable[[Any], None], fail: Callable[[BaseException], None]) -> None:
        super().connect(wake, fail)
        self._fail = fail

    # ------------------------------------------------------------------------------------------------ the workers'
    def encoding(self, function: Callable[[Any], Any], batched: bool) -> Callable[[Any], Any]:
        """The function, and what makes records of its results."""

        def call(made: Call) -> Any:
            try:
                result = function(made)
            except BaseException:
                del made  # the error's traceback refers to this frame
                raise
            self._encode(made, result, batched)
            return result

        return call

    def encoding_async(self, function: Callable[[Any], Any], batched: bool) -> Callable[[Any], Any]:
        async def call(made: Call) -> Any:
            try:
                result = await function(made)
            except BaseException:
                del made
                raise
            self._encode(made, result, batched)
            return result

        return call

    def _encode(self, call: Call, result: Any, batched: bool) -> None:
        for item, each in zip(call.items(), result if batched else (result,), strict=False):
            if not isinstance(each, BaseException) or not batched:
                item.record = each if self._in_bulk else self._encoded(item, each)

    def _encoded(self, item: Item, result: Any) -> bytes | TypeError:
        """An error: the codec refuses the result."""
        try:
            data = (self._codec or identity).encode(result)
            if not isinstance(data, bytes):
                raise TypeError(f"codec: encode returned a {type(data).__qualname__} (expected: bytes)")
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # an extension's panic is no Exception
            made = TypeError(
                f"remember: the result of item {shortened(item.value)}, of type {type(result).__qualname__}, cannot be "
                f"recorded: {message_of(error)}; let fn return what can be, or give a codec: "
                "remember=Shared(..., codec=...)"
            )
            made.__cause__ = error
            if not self._fails and not self._logged:
                self._logged = True
                _say(logging.WARNING, "%s; such results will be paid for again", made)
            return made
        return data

    # ------------------------------------------------------------------------------------------------ the scheduler's
    def look_up(self, items: Iterable[Item]) -> None:
        """These have arrived. Does not wait."""
        self._looking.update(dict.fromkeys(items))
        self._lookups.extend(items)
        if self._look_at == math.inf:
            self._look_at = time.monotonic() + (0.0 if self._inline else GATHER)
            self._poke()
        elif len(self._lookups) >= LARGEST_LOOKUP:
            self._changed.set()

    def looked_up(self, items: Iterable[Item]) -> list[Item]:
        """Those of these items that have not been given up meanwhile, with their results."""
        answers = [(item, self._answers.pop(item, None)) for item in items]
        left = [(item, answer) for item, answer in answers if self._looking.pop(item, self) is None]
        for item, answer in left:
            if answer is not None:
                (item.result, item.error), item.known = answer, answer[1] is None
        return [item for item, _ in left]

    def kept(self) -> list[Item]:
        """The deadline has passed: nothing more is looked up."""
        self._give_up.set()
        kept, self._looking = list(self._looking), {}
        return kept

    def before(self, call: Call, now: float) -> Decision:
        if self._has_room():
            return GO
        self._waits = True  # first: what is recorded from here on wakes the map
        return GO if self._has_room() else Wait()

    def _has_room(self) -> bool:
        return self._added - self._recorded < BACKLOG and self._bytes_added - self._bytes_recorded < BYTES

    def after(self, call: Call, ended: Ended, now: float) -> Iterable[Released]:
        if ended is Ended.SUCCEEDED:
            verdicts = getattr(call, "verdicts", None) or (None,) * len(call.items())
            for item, verdict in zip(call.items(), verdicts, strict=True):
                if verdict is None:
                    self._add(item)
        return ()

    def _add(self, item: Item) -> None:
        record, item.record = item.record, None
        if isinstance(record, TypeError) and not self._in_bulk:
            if self._fails:
                self.unrecordable[item] = record
            return
        self._added += 1
        self._bytes_added += _size(record)
        self._results.append((bytes.fromhex(item.identity), record))  # first: the thread takes it, or the time is unset
        if self._record_at == math.inf:
            self._record_at = time.monotonic() + RECORD_AFTER
            self._poke()
        elif self._are_enough():
            self._changed.set()

    def leave(self, now: float) -> None:
        self._give_up.set()
        self._closing = True
        if self._begun:
            self._changed.set()
        elif not self._inline:
            self._end()

    # ------------------------------------------------------------------------------------------------ the consumer's
    def flushed(self, then: Callable[[], object]) -> None:
        """After the map's end: call `then` when all results are recorded, or lost."""
        self._then.append(then)
        if self.ended.is_set():
            self._call_then()

    def _call_then(self) -> None:
        """Each once, though two threads may come here."""
        while self._then:
            with suppress(Exception):  # a loop that is closed; or the other thread took it
                self._then.popleft()()

    def _end(self) -> None:
        self.ended.set()
        self._call_then()

    # ------------------------------------------------------------------------------------------------ the thread
    def _poke(self) -> None:
        if not self._begun and not self._inline:
            self._begun = True
            _running.add(self)
            start_daemon(self._start)
        self._changed.set()

    def _start(self) -> None:
        threading.Thread(target=self._run, name="manytail-shared", daemon=True).start()

    def _run(self) -> None:
        try:
            while not (self._closing and not self._results):
                self._changed.clear()
                wait = self.due_at() - time.monotonic()
                if wait > 0 and not self._closing:
                    self._changed.wait(None if wait == math.inf else wait)
                else:
                    self._do(self._give_up)
            self._log_found()
        except BaseException as error:
            self._break(error)
        self._end()

    def due_at(self) -> float:
        if self._are_enough() or len(self._lookups) >= LARGEST_LOOKUP:
            return -math.inf
        return min(self._look_at, self._record_at)

    def work(self, patience: Any, early: bool = False) -> None:
        """As of Stage."""
        if self.error is None:
            try:
                self._do(patience, early)
                if self._closing:
                    self._log_found()
            except Exception as error:
                self._break(error)
        if self._closing:
            self._end()

    def _break(self, error: BaseException) -> None:
        """The map fails. Nothing more is looked up or recorded."""
        self.error = error
        self._fail(error)
        if lost := self._added - self._recorded:
            _say(logging.ERROR, "remember: %d results were not recorded and will be paid for again: %r", lost, error)

    def _do(self, patience: Any, early: bool = False) -> None:
        """Do what is due. early: and what is not due yet."""
        now, early = time.monotonic(), early or self._closing
        if self._look_at <= now or early or len(self._lookups) >= LARGEST_LOOKUP:
            self._look_at = math.inf  # first: who adds an item after the last was taken sets it
            items = _taken(self._lookups, LARGEST_LOOKUP)
            if self._lookups:
                self._look_at = now
            if items and not self._give_up.is_set():
                self._find(items, patience)
            if items:
                self.post(LookedUp(items))
        if self._are_enough() or self._record_at <= now or early:
            self._record_at = math.inf
            results = _taken(self._results, len(self._results))
            try:
                self._record(results, patience if self._inline else None)
            except BaseException:  # inline, of a signal handler: they are recorded when the map ends
                self._results.extendleft(reversed(results))
                raise

    def _are_enough(self) -> bool:
        some = len(self._results)
        return some >= GROUP or (some > 0 and self._bytes_added - self._bytes_recorded >= BYTES)

    def _find(self, items: list[Item], patience: Any) -> None:
        store = self._shared.store()
        ids = [bytes.fromhex(item.identity) for item in items]
        try:
            if not self._agreed:
                store.agree(codec_name(self._codec), self._codec.schema if self._in_bulk else "", patience)
                self._agreed = True
                if self._shared.fingerprint is not None:
                    check_function(store, repr(self._shared), self._shared.fingerprint, patience)
            found = store.look_up(ids, patience)
        except SharedUnavailable:
            if patience.is_set():
                return  # the deadline, or the end of the map, came first
            raise
        if not found:
            return
        recorded = [(item, *found[each]) for item, each in zip(items, ids, strict=True) if each in found]
        ages = [age for _, _, age in recorded]
        self._found += len(recorded)
        self._newest, self._oldest = min(self._newest, *ages), max(self._oldest, *ages)
        for (item, _, _), answer in zip(recorded, self._decoded([data for _, data, _ in recorded]), strict=True):
            if answer[1] is not None:
                add_note(answer[1], "manytail: of a remembered result; Shared.forget() drops them")
            self._answers[item] = answer

    def _decoded(self, records: list[bytes]) -> Iterator[tuple[Any, Exception | None]]:
        """Their results, or errors. An exception may be a result: fn may have returned it."""
        if self._in_bulk:
            for result in self._codec.decode_all(records):
                yield (None, result) if isinstance(result, Exception) else (result, None)
            return
        for data in records:
            try:
                yield (self._codec or identity).decode(data), None
            except Exception as error:
                yield None, error

    def _record(self, results: list[tuple[bytes, Any]], patience: Any) -> None:
        if not results:
            return
        first: dict[bytes, Any] = {}
        for each, record in results:
            first.setdefault(each, record)
        if self._in_bulk:
            first = dict(zip(first, self._codec.encode_all(list(first.values())), strict=True))
        self._shared.store().record(first, patience)
        self._recorded += len(results)
        self._bytes_recorded += sum(_size(record) for _, record in results)
        if self._waits and self._has_room():
            self._waits = False
            self._wake(None)

    def _log_found(self) -> None:
        number, self._found = self._found, 0
        if number:
            newest, oldest = (timedelta(seconds=max(0, round(age))) for age in (self._newest, self._oldest))
            text = "remember: %d results were found in %r, %s to %s old"
            _say(logging.INFO, text, number, self._shared, newest, oldest)


def _taken(some: deque[Any], most: int) -> list[Any]:
    return [some.popleft() for _ in range(min(len(some), most))]


def _size(record: Any) -> int:
    """0: it is not encoded, because its codec does that for many at once."""
    return len(record) if isinstance(record, bytes) else 0


def _say(level: int, *arguments: Any) -> None:
    """A handler or filter of the user that raises decides nothing."""
    with suppress(Exception):
        _log.log(level, *arguments, stacklevel=3)


_running: WeakSet[Memory] = WeakSet()
after_fork_in_child(_running.clear)  # a child has none of their threads, and would wait for them


@atexit.register
def _record_all() -> None:
    """Record the results of maps that were not closed, for instance after Ctrl-C."""
    memories = list(_running)
    for memory in memories:
        memory.leave(0.0)
    for memory in memories:
        memory.ended.wait(EXIT_TIMEOUT)
