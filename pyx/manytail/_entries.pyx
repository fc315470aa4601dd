"""EntryQueue and its family: strictly ordered queues whose entries are acquired, acknowledged, released and redelivered in place.

Algorithm: the strictly ordered queue of Qpid (entry states, one list per order, a pointer per subscription) and its consumer manager.
include/manytail/entry_state.h has the state word, link.h the order and the positions on it, _en_core.pxi what happens to an entry,
_en_keys.pxi groups and last values, _en_orders.pxi the other orders, _en_time.pxi the shared timer; this file is the Python face.
docs/design/entryqueue.md tells the whole story.

What is lock-free, what is not
- Who wins an entry is decided by one compare-and-swap on its state word: ack, release, reject, lock and unlock against expiry, purge,
  overflow and a closing subscription. A handle whose time is over loses without taking any lock.
- The order itself, the pointers and the counters are under one short lock per queue (the order lock; with the GIL, the GIL is that lock):
  "the first AVAILABLE entry that it may take", "never both delivered and returned" and counters that add up are statements about the whole
  queue, and exactness is worth more here than progress under a stopped thread. Every step under it is O(1), or O(log n) where said.

Rules of this layer
- No Python code runs and nothing is allocated or released by Python under the order lock. What is left to do is collected in `debts`
  and settled after unlocking: wake-ups, dead letters, released items.
- Selectors, keys, `==` and `<` of user objects run on pinned entries without the lock; what they were asked about is looked at again
  before it is acted on.
- An entry is linked in its final place by its put and stays there until it is dead.
"""
cimport cython
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from libc.stdint cimport int32_t, int64_t, uint16_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memmove

from manytail._wait cimport (
    MT_EMPTY, MT_FULL, MT_INTERRUPTED, MT_NOMEM, MT_OK, MT_SHUTDOWN, MT_TIMEOUT,
    MT_WAITER_NOTIFIED, MT_WAITER_QUEUED, NEVER, ONCE,
    LoopWaiter, deadline_from, lock_slow, lock_slow_heavy, mt_lock, mt_lock_node, mt_lock_reset, mt_lock_try, mt_now_ns, mt_unlock,
    mt_waiter, mt_waitlist,
    mt_waitlist_keep_thread, mt_waitlist_leave, mt_waitlist_notify, mt_waitlist_notify_all, mt_waitlist_push,
    post_chain, post_lock_node, this_thread, unclosed, waiter_await_post, waiter_close, waiter_open, waiter_park,
)

import enum
import heapq
import itertools
import math
import os
import sys
import threading
import weakref
from _thread import start_new_thread
from collections.abc import Mapping
from operator import index
from queue import SimpleQueue
from types import GenericAlias, MappingProxyType
from typing import NamedTuple

from manytail.errors import ClosedError, Empty, ExclusiveError, Full, ShutDown

include "_en_structs.pxi"

cdef extern from "Python.h":
    void Py_INCREF_raw "Py_INCREF" (PyObject *) nogil
    void Py_DECREF_raw "Py_DECREF" (PyObject *) nogil      # attached callers only
    void PyErr_SetInterrupt()
    void PyErr_Fetch(PyObject **, PyObject **, PyObject **)
    void PyErr_Restore(PyObject *, PyObject *, PyObject *)
    ctypedef int (*visitproc)(PyObject *, void *) noexcept
    ctypedef int (*traverseproc)(PyObject *, visitproc, void *) noexcept
    ctypedef int (*inquiry)(PyObject *) noexcept
    ctypedef struct PyTypeObject:
        pass

cdef extern from "manytail/pygc.h":
    object mt_owned(PyObject *)
    int mt_visit_waiters(mt_waitlist *, visitproc, void *) noexcept
    void mt_patch_gc(PyTypeObject *, traverseproc, inquiry)
    traverseproc mt_traverse_of(PyTypeObject *)
    inquiry mt_clear_of(PyTypeObject *)

cdef extern from "manytail/clock.h" nogil:
    int64_t mt_now_coarse_ns()

cdef extern from *:
    """
    /* For types that only this module makes: Cython calls its own constructor directly, users come through this slot. */
    static PyObject *mt_no_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
        (void)args;
        (void)kwargs;
        return PyErr_Format(PyExc_TypeError, "cannot make a %s: queues, subscribe() and get() make them", type->tp_name);
    }
    static void mt_patch_new(PyTypeObject *type) {
        type->tp_new = mt_no_new;
        type->tp_vectorcall = NULL;
    }
    """
    void mt_patch_new(PyTypeObject *)

include "_en_core.pxi"
include "_en_keys.pxi"
include "_en_control.pxi"


class EntryState(enum.IntEnum):
    """Where an entry is in its life. HELD: not before its time."""

    AVAILABLE = 0
    HELD = 1
    ACQUIRED = 2
    DEQUEUED = 3
    DELETED = 4


class DeadReason(enum.StrEnum):
    """Why an entry went to the dead letter."""

    REJECTED = "rejected"
    EXPIRED = "expired"
    MAX_DELIVERIES = "max_deliveries"
    OVERFLOW = "overflow"
    DELETED = "deleted"


class QueueStats(NamedTuple):
    """What EntryQueue.stats() returns: one consistent look, taken under the order lock.

    enqueued = acked + rejected + expired + dropped + purged + depth. dropped: overflow, replaced, max_deliveries, shutdown. dead_lettered
    counts across these. high_water is of depth. oldest_age: seconds since the put of the oldest entry, None if there is none."""

    available: int
    acquired: int
    held: int
    depth: int
    enqueued: int
    delivered: int
    acked: int
    released: int
    expired: int
    rejected: int
    dropped: int
    purged: int
    dead_lettered: int
    selector_errors: int
    high_water: int
    subscriptions: int
    oldest_age: float | None


cdef tuple STATES = tuple(EntryState)
cdef dict REASONS = {
    REJECTED: DeadReason.REJECTED, EXPIRED: DeadReason.EXPIRED, EXHAUSTED: DeadReason.MAX_DELIVERIES,
    OVERFLOWN: DeadReason.OVERFLOW, SHUT: DeadReason.DELETED,
}
cdef dict OVERFLOWS = {"block": OVERFLOW_BLOCK, "reject": OVERFLOW_REJECT, "drop_oldest": OVERFLOW_DROP}
cdef dict GROUPS = {None: GROUPS_NONE, "shared": GROUPS_SHARED, "assigned": GROUPS_ASSIGNED}
cdef object NO_HEADERS = MappingProxyType({})
cdef double RESUME_AT = 0.8         # default of `resume_at`

cdef class EntryQueue
cdef class Subscription
cdef class Entry
cdef class Credit
cdef class Consumer
cdef class Cascade


# --------------------------------------------------------------------------------------------------------------- arguments
cdef int64_t int_argument(str name, object value, str expected) except? -7:
    try:
        value = index(value)
    except TypeError:
        raise TypeError(f"{name}={value!r}: expected {expected}, not {type(value).__name__}") from None
    if not -(1 << 62) <= value < 1 << 62:
        raise OverflowError(f"{name}={value!r}: expected {expected} of at most 62 bits")
    return value


cdef int64_t span_argument(str name, object value, bint zero) except -1:
    """Nanoseconds from seconds; 0 for "none"."""
    cdef double seconds
    try:
        seconds = value
    except TypeError:
        raise TypeError(f"{name}={value!r}: expected a number of seconds, not {type(value).__name__}") from None
    if math.isnan(seconds) or seconds < 0 or (seconds == 0 and not zero):
        raise ValueError(f"{name}={value!r}: expected a number of seconds {'>=' if zero else '>'} 0")
    if seconds > 9e9:               # 285 years: past what 64-bit nanoseconds hold
        return 0 if name == "ttl" else 9000000000 * 1000000000
    return <int64_t>(seconds * 1e9) or (seconds > 0)


cdef int32_t priority_argument(object value) except? -7:
    cdef int64_t p = int_argument("priority", value, "an int (bigger is more urgent)")
    return <int32_t>max(min(p, <int64_t>0x7FFFFFFF), -<int64_t>0x7FFFFFFF)


cdef object unpicklable(object it):
    return TypeError(f"cannot pickle {type(it).__name__!r} object: it lives in one process; make it inside the process or task that uses it, "
                     "and send the items instead")


# ------------------------------------------------------------------------------------------------------------------- Entry
@cython.final
@cython.freelist(256)
cdef class Extra:
    """What only some entries have: shared by the entry and its handles, never changed."""
    cdef object headers
    cdef object group
    cdef object origin


cdef struct taken:
    entry *e                    # each of these with a reference for the handle
    void *item
    void *extra
    uint64_t delivery           # 0: not a delivery


cdef inline void ordered_note(taken *t, entry *e, uint64_t delivery) noexcept nogil:
    t.e = e
    t.item = e.item
    t.extra = e.extra
    t.delivery = delivery


cdef inline void forget_taken(taken *t) noexcept:
    mt_entry_drop(t.e)
    Py_DECREF_raw(<PyObject *>t.item)
    if t.extra != NULL:
        Py_DECREF_raw(<PyObject *>t.extra)


@cython.final
@cython.freelist(256)
@cython.trashcan(True)      # its item, origin or group may be another handle, and so on
@cython.no_gc_clear         # nothing in it changes; a cycle through it is broken at what else is in it
cdef class Entry:
    """Entry(*args, **kwargs)\n--\n
    A handle of one place in the strict order.

    get returns a handle for that one delivery: ack, release, reject, lock and unlock act only for it, by one atomic compare-and-swap, and
    return False and change nothing once it is over (acked, released, stolen, subscription closed), even if another holds the entry by
    then. Handles from put() and browse() always get False from them. Handles of one place are equal and hash alike. A handle may be
    read for ever and keeps no other entry alive.
    Progress: who wins an entry is lock-free; the rest as the queue's."""
    cdef EntryQueue q
    cdef object thing
    cdef Extra extra
    cdef entry *e
    cdef uint64_t delivery
    cdef object __weakref__

    def __init__(self):
        raise RuntimeError("an Entry is made by its queue, once")

    def __dealloc__(self):
        if self.e != NULL:
            mt_entry_drop(self.e)

    __class_getitem__ = classmethod(GenericAlias)

    def __reduce__(self):
        raise unpicklable(self)

    def __repr__(self):
        return f"<Entry {self.seq} {self.state.name} of {self.q.name_!r}: {self.thing!r}>"

    def __eq__(self, other):
        if not isinstance(other, Entry):
            return NotImplemented
        return self.e == (<Entry>other).e

    def __hash__(self):
        return <Py_hash_t>((<uintptr_t>self.e) >> 4)

    @property
    def queue(self):
        """The queue it was put into."""
        return self.q

    @property
    def item(self):
        """What was put."""
        return self.thing

    @property
    def headers(self):
        """Read-only mapping; empty if it was put without."""
        return NO_HEADERS if self.extra is None or self.extra.headers is None else self.extra.headers

    @property
    def seq(self):
        """Arrival number, unique in its queue."""
        return self.e.seq

    @property
    def state(self):
        """EntryState of the place, now."""
        return STATES[state_of(self.e)]

    @property
    def priority(self):
        """As given to put."""
        return self.e.priority

    @property
    def group(self):
        """The message group, or None."""
        return None if self.extra is None else self.extra.group

    @property
    def deliveries(self):
        """How often it was handed to an acquiring subscription."""
        return mt_word_delivery(mt_entry_word(&self.e.word))

    @property
    def redelivered(self):
        """True from the first release on."""
        return bool(mt_word_redelivered(mt_entry_word(&self.e.word)))

    @property
    def expires_at(self):
        """time.monotonic() of its end, or None."""
        if self.e.more == NULL or self.e.more.expires == 0:
            return None
        return self.e.more.expires / 1e9

    @cython.binding(False)
    @cython.embedsignature.format("clinic")
    def ack(self):
        """ACQUIRED -> DEQUEUED -> DELETED. False: this delivery is over, nothing changed."""
        return self.finish(ACKED)

    @cython.binding(False)
    @cython.embedsignature.format("clinic")
    def reject(self):
        """ACQUIRED -> to the dead letter if there is one, else gone. False: this delivery is over, nothing changed."""
        return self.finish(REJECTED)

    cdef inline object finish(self, uint32_t reason):
        cdef debts d
        cdef core *q = self.q.q
        cdef bint done
        if self.delivery == 0 or not mt_word_held_by(mt_entry_word(&self.e.word), self.delivery):
            return False
        clear_debts(&d)
        mt_point()
        lock_order(q)       # first: a fork while this thread waits for the lock finds the entry as it was
        done = ordered_finish(q, self.e, self.delivery, reason, &d)
        unlock_order(q)
        self.q.settle(&d)
        return done

    @cython.binding(False)
    @cython.embedsignature.format("clinic")
    def release(self, *, delay=0.0):
        """ACQUIRED -> AVAILABLE (or HELD for `delay` seconds), at its old place in the order. False: this delivery is over, nothing
        changed. A release with deliveries >= max_deliveries goes to the dead letter. ValueError: delay is negative or NaN."""
        cdef int64_t span = span_argument("delay", delay, True)
        cdef debts d
        cdef core *q = self.q.q
        cdef bint done = False
        if self.delivery == 0 or not mt_word_held_by(mt_entry_word(&self.e.word), self.delivery):
            return False
        clear_debts(&d)
        lock_order(q)
        if span and not ordered_reserve_timer(q, self.e):
            unlock_order(q)
            raise MemoryError
        done = ordered_release(q, self.e, self.delivery, mt_now_ns() + span if span else 0, &d)
        unlock_order(q)
        self.q.settle(&d)
        if unlikely(q.timers.n != 0):
            self.q.watch()
        return bool(done)

    @cython.binding(False)
    @cython.embedsignature.format("clinic")
    def unlock(self):
        """From now on expiry, purge and drop_oldest may steal it. False: this delivery is over, or it is not locked."""
        cdef debts d
        cdef core *q = self.q.q
        cdef bint done
        if self.delivery == 0 or not mt_word_held_by(mt_entry_word(&self.e.word), self.delivery):
            return False
        clear_debts(&d)
        lock_order(q)
        done = ordered_unlock_entry(q, self.e, self.delivery, &d)
        unlock_order(q)
        self.q.settle(&d)
        if unlikely(q.timers.n != 0):
            self.q.watch()
        return done

    @cython.binding(False)
    @cython.embedsignature.format("clinic")
    def lock(self):
        """Nobody may steal it. True while still held, also if it was locked already."""
        return self.delivery != 0 and bool(mt_entry_lock(&self.e.word, self.delivery))


cdef inline Entry handle_of(EntryQueue queue, taken *t):
    """The handle of what was taken; it takes over the references."""
    cdef Entry h
    try:
        h = Entry.__new__(Entry)
    except BaseException:
        if t.delivery:
            queue.give_back(t)
        forget_taken(t)
        raise
    h.q = queue
    h.e = t.e
    h.delivery = t.delivery
    h.thing = mt_owned(<PyObject *>t.item)
    if unlikely(t.extra != NULL):
        h.extra = mt_owned(<PyObject *>t.extra)
    return h


# -------------------------------------------------------------------------------------------------------------- EntryQueue
@cython.trashcan(True)      # queues nested 200,000 deep are freed without recursion
@cython.no_gc_clear         # queue_clear() below breaks cycles and leaves the queue usable
cdef class EntryQueue:
    """EntryQueue(name="", *, maxsize=0, overflow="block", resume_at=0.8, ttl=None, max_deliveries=0,
    dead_letter=None, groups=None)\n--\n
    Strict FIFO of entries, kept through acquire and release. Competing, browsing, selecting, exclusive, prioritised subscriptions;
    credit; time to live; delivery limit; dead letters; message groups; overflow policies.

    maxsize <= 0 is no bound, else it bounds depth(). overflow: what a put into a full queue does. "block": once a put finds
    depth() >= maxsize every put waits (or raises Full) until depth() <= floor(resume_at * maxsize). "reject": Full at once. "drop_oldest":
    drops AVAILABLE, HELD or unlocked entries, least urgent level first, oldest arrival inside it; if none can go the queue grows.
    ttl: seconds from put; the shorter of the queue's and the entry's wins. max_deliveries=N: a release with deliveries >= N goes to
    the dead letter. dead_letter: another EntryQueue, or a callable of (entry, reason) that runs in the acting thread; for what expires, in a
    daemon thread that runs these calls in order. A queue that is its own dead letter, or a ring of them, drops what comes round again.
    groups: "shared": a group belongs to a subscription while it holds unacked entries of it; "assigned": from its first entry until that
    subscription closes.
    ValueError, TypeError: an argument is not one of these.

    Progress: blocking (one short lock per queue without the GIL), see the head of this module; who wins an entry is lock-free.
    Source: the strictly ordered queue of Qpid.

    >>> q = EntryQueue("jobs")
    >>> q.put("first").seq, q.put("second").seq
    (0, 1)
    >>> with q.subscribe() as sub:
    ...     entry = sub.get()
    ...     entry.item, entry.release(), sub.get().item
    ('first', True, 'first')
    """
    cdef core *q
    cdef object name_
    cdef object overflow_
    cdef object letter          # dead_letter, or None
    cdef int64_t ttl            # nanoseconds, 0: none
    cdef double resume_at
    cdef bint plain             # prepare() and place() have nothing to add
    cdef bint begun             # __init__ has set the options; under the order lock
    cdef object key             # of a sorted or last-value queue
    cdef object __weakref__

    def __cinit__(self, *args, **options):
        self.q = new_core()
        if self.q == NULL:
            raise MemoryError
        self.plain = True
        self.name_ = ""
        self.overflow_ = "block"
        self.resume_at = RESUME_AT

    def __init__(self, name="", *, maxsize=0, overflow="block", resume_at=0.8, ttl=None, max_deliveries=0, dead_letter=None, groups=None):
        cdef double fraction
        cdef int64_t limit, span, bound
        if not isinstance(name, str):
            raise TypeError(f"name={name!r}: expected a str, not {type(name).__name__}")
        if not isinstance(overflow, str) or overflow not in OVERFLOWS:
            raise ValueError(f"overflow={overflow!r}: expected 'block', 'reject' or 'drop_oldest'")
        try:
            fraction = resume_at
        except TypeError:
            raise TypeError(f"resume_at={resume_at!r}: expected a number from 0 to 1, not {type(resume_at).__name__}") from None
        if not 0 <= fraction <= 1:
            raise ValueError(f"resume_at={resume_at!r}: expected a number from 0 to 1")
        if not (groups is None or isinstance(groups, str)) or groups not in GROUPS:
            raise ValueError(f"groups={groups!r}: expected 'shared', 'assigned' or None")
        if not (dead_letter is None or isinstance(dead_letter, EntryQueue) or callable(dead_letter)):
            raise TypeError(f"dead_letter={dead_letter!r}: expected an EntryQueue, a callable of (entry, reason) or None")
        limit = int_argument("max_deliveries", max_deliveries, "an int >= 0 (0: no limit)")
        if limit < 0:
            raise ValueError(f"max_deliveries={max_deliveries!r}: expected an int >= 0 (0: no limit)")
        span = 0 if ttl is None else span_argument("ttl", ttl, False)
        bound = int_argument("maxsize", maxsize, "an int (0 or less: no bound)")
        self.begin()
        self.resume_at = fraction
        self.q.max_deliveries = limit
        self.ttl = span
        self.q.overflow = OVERFLOWS[overflow]
        self.q.groups = GROUPS[groups]
        self.q.letters = LETTERS_QUEUE if isinstance(dead_letter, EntryQueue) else LETTERS_NONE if dead_letter is None else LETTERS_CALL
        self.letter = dead_letter
        self.name_ = name
        self.overflow_ = overflow
        self.set_maxsize(bound)

    cdef int begin(self) except -1:
        """Options may be set once, and before anything is put or subscribed."""
        cdef bint begun
        lock_order(self.q)
        begun = self.begun or self.q.nsubs != 0 or self.q.nseq != 0
        self.begun = True
        unlock_order(self.q)
        if begun:
            raise RuntimeError(f"{type(self).__name__}.__init__ was called on a queue that is in use")
        return 0

    def __dealloc__(self):
        if self.q != NULL:
            free_entries(self.q)
            free_core(self.q)

    __class_getitem__ = classmethod(GenericAlias)

    def __reduce__(self):
        raise unpicklable(self)

    def __repr__(self):
        cdef int64_t available, depth
        lock_order(self.q)              # not by methods that a subclass may have overridden
        available = self.q.available
        depth = depth_of(self.q)
        unlock_order(self.q)
        return f"<{type(self).__name__} {self.name_!r}: {available} available of {depth}{', shut down' if self.q.shut else ''}>"

    @property
    def name(self):
        """As given."""
        return self.name_

    @property
    def overflow(self):
        """As given."""
        return self.overflow_

    @property
    def maxsize(self):
        """Bound of depth(), <= 0: none. May be assigned; raising it wakes putters."""
        return self.q.maxsize

    @maxsize.setter
    def maxsize(self, value):
        self.set_maxsize(int_argument("maxsize", value, "an int (0 or less: no bound)"))

    cdef int set_maxsize(self, int64_t maxsize) except -1:
        cdef debts d
        cdef core *q = self.q
        cdef int64_t mark = min(<int64_t>math.floor(self.resume_at * maxsize), maxsize - 1) if maxsize > 0 else 0
        clear_debts(&d)
        lock_order(q)
        if maxsize > q.maxsize or maxsize <= 0:
            q.stopped = False
        q.maxsize = maxsize
        q.resume_mark = mark
        if maxsize > 0 and depth_of(q) < maxsize and depth_of(q) <= mark:
            q.stopped = False
        mt_waitlist_notify_all(&q.putters, &d.wake)
        unlock_order(q)
        self.settle(&d)
        return 0

    # --------------------------------------------------------------------------------------------------------------- put
    @cython.binding(False)
    @cython.embedsignature.format("clinic")
    def put(self, item, block=True, timeout=None, *, headers=None, priority=4, ttl=None, delay=0.0, group=None, origin=None, immediate=False):
        """Append an item and return a handle of its place.

        headers: a mapping for selectors, copied. priority: bigger is more urgent, for a PriorityEntryQueue. ttl, delay: seconds from now.
        group: the message group, any hashable. origin: subscriptions with the same origin (`is`) do not get it.
        immediate: hand it to a subscription that waits for it in this moment, or withdraw it and return None.
        block, timeout: for a full queue with overflow="block".
        Full: no room (in time). ShutDown: the queue was shut down. ValueError: ttl <= 0, delay or timeout negative or NaN, delay
        with immediate."""
        cdef entry *e
        cdef int64_t deadline
        if immediate:
            return self.put_immediate(item, block, timeout, headers, priority, ttl, delay, group, origin)
        deadline = NEVER if timeout is None and block else deadline_from(block, timeout)
        e = self.make(item, headers, priority, ttl, delay, group, origin)
        return self.admit(e, deadline, True)

    cdef entry *make(self, item, headers, priority, ttl, delay, group, origin) except NULL:
        """An entry that nobody has seen yet, with a reference of its own to all it names."""
        cdef entry *e = mt_entry_new(self.q.keyed)
        if e == NULL:
            raise MemoryError
        Py_INCREF(item)
        e.item = <void *>item
        e.born = mt_now_coarse_ns()
        e.priority = 4
        try:
            if priority is not FOUR:
                e.priority = priority_argument(priority)
            if self.q.nlevels > 1:
                e.level = level_of(self.q, e.priority)
            if headers is not None or group is not None or origin is not None:
                self.add_extra(e, headers, group, origin)
            if ttl is not None or delay is not ZERO or self.ttl:
                self.add_times(e, ttl, delay)
            if not self.plain:
                self.prepare(e, item)
        except BaseException:
            self.discard(e)
            raise
        return e

    cdef int add_extra(self, entry *e, headers, group, origin) except -1:
        cdef Extra x = Extra.__new__(Extra)
        if headers is not None:
            if not isinstance(headers, Mapping):
                raise TypeError(f"headers={headers!r}: expected a mapping of str to values, not {type(headers).__name__}")
            x.headers = MappingProxyType(dict(headers))
        x.group = group
        x.origin = origin
        Py_INCREF(x)
        e.extra = <void *>x
        if origin is not None:
            need_more(e).origin = <void *>origin
        if group is not None:
            if self.q.groups != GROUPS_NONE:
                need_more(e).group = self.find_key(&self.q.group_keys, group)
            else:
                hash(group)
        return 0

    cdef int add_times(self, entry *e, ttl, delay) except -1:
        cdef int64_t span = self.ttl, own = 0, now
        if ttl is not None:
            own = span_argument("ttl", ttl, False)
            span = own if span == 0 or (own and own < span) else span
        own = span_argument("delay", delay, True)
        if span or own:
            now = mt_now_ns()
            need_more(e)
            e.more.expires = now + span if span else 0
            e.more.due = now + own if own else 0
        return 0

    cdef int prepare(self, entry *e, object item) except -1:
        """For an order of its own: whatever needs Python code, before anything is linked."""
        return 0

    cdef object key_of_item(self, item):
        key = self.key
        if key is None:
            raise RuntimeError(f"{type(self).__name__} has no key function: the garbage collector has taken it")
        return key(item)

    cdef int place(self, entry *e, debts *d) noexcept nogil:
        """For an order of its own: link e, under the order lock. MT_OK; MT_EMPTY: what prepare() found out is out of date, prepare again."""
        ordered_link(self.q, e)
        return MT_OK

    cdef int discard(self, entry *e) except -1:
        """Release an entry that was not admitted."""
        cdef debts d
        clear_debts(&d)
        if e.more != NULL and (e.more.group != NULL or e.more.slot != NULL):
            lock_order(self.q)
            if e.more.group != NULL:
                ordered_unpin(&self.q.group_keys, <keyrec *>e.more.group, &d)
            if e.more.slot != NULL:
                ordered_unpin(&self.q.slot_keys, <keyrec *>e.more.slot, &d)
            unlock_order(self.q)
        e.reason = CLEARED
        e.held_next = NULL
        d.dead = e
        self.settle(&d)
        return 0

    cdef object admit(self, entry *e, int64_t deadline, bint want_handle):
        """Link it, waiting for room. The handle, or None."""
        cdef debts d
        cdef taken t
        cdef int r
        cdef bint waited = False
        cdef core *q = self.q
        if want_handle:
            keep_for_handle(e)
            ordered_note(&t, e, 0)
        while True:
            clear_debts(&d)
            lock_order(q)
            ordered_look_at_clock(q, &d)
            r = self.ordered_admit(e, &d, False)
            unlock_order(q)
            if unlikely(d.wake != NULL or d.dead != NULL or d.late or d.quiet):
                self.settle(&d)
            if likely(r == MT_OK):
                break
            try:
                self.put_again(e, r, deadline, &waited)
            except BaseException:
                self.give_up_put(e, waited)
                if want_handle:
                    forget_taken(&t)
                raise
        if unlikely(q.timers.n != 0):
            self.watch()
        if not want_handle:
            return None
        return handle_of(self, &t)

    cdef inline int ordered_admit(self, entry *e, debts *d, bint forced) noexcept nogil:
        """One attempt, under the order lock: MT_OK, MT_FULL, MT_SHUTDOWN, MT_NOMEM, or what place() says."""
        cdef core *q = self.q
        cdef int r
        if unlikely(q.shut):
            return MT_SHUTDOWN
        if unlikely(q.maxsize > 0) and not slot_replaces(e) and ordered_full(q) and not forced and not self.ordered_in_letter():
            return MT_FULL
        if unlikely(e.more != NULL and (e.more.due or e.more.expires)) and not mt_timers_reserve(&q.timers, q.timers.n + 1):
            return MT_NOMEM
        if self.plain:
            ordered_link(q, e)
        else:
            r = self.place(e, d)
            if r != MT_OK:
                return r
        ordered_join(q, e, d)
        if unlikely(q.overflow == OVERFLOW_DROP and q.maxsize > 0 and depth_of(q) > q.maxsize) and not self.ordered_in_letter():
            ordered_make_room(q, e, d)
        return MT_OK

    cdef inline bint ordered_in_letter(self) noexcept nogil:
        """Whether this thread is inside our dead_letter callable: what it puts does not overflow again."""
        return self.q.running != NULL and self.in_letter_slow()

    cdef bint in_letter_slow(self) noexcept nogil:
        cdef running *r = self.q.running
        cdef unsigned long me = this_thread()
        while r != NULL:
            if r.thread == me:
                return True
            r = r.next
        return False

    cdef int put_again(self, entry *e, int r, int64_t deadline, bint *waited) except -1:
        """A put was answered by r: make ready for another one, or raise what r means."""
        if r == MT_EMPTY:
            self.prepare(e, <object>e.item)
            return 0
        if r == MT_FULL and deadline != ONCE and self.q.overflow == OVERFLOW_BLOCK:
            r = self.wait_for_room(e, deadline)
            if r == MT_OK:
                waited[0] = True
                return 0
        return self.refuse_put(r)

    cdef int give_up_put(self, entry *e, bint waited) except -1:
        """Nothing comes of it. Whoever has waited was woken for a place that it does not take: the next one may."""
        if waited:
            self.pass_room_on()
        return self.discard(e)

    cdef int refuse_put(self, int r) except -1:
        if r == MT_INTERRUPTED:
            return -1               # the handler's exception is set
        if r == MT_SHUTDOWN:
            raise ShutDown(f"queue {self.name_!r} was shut down and takes no more items")
        if r == MT_NOMEM:
            raise MemoryError
        raise Full

    cdef int wait_for_room(self, entry *e, int64_t deadline) except? -1:
        cdef mt_waiter w
        cdef core *q = self.q
        cdef int r
        cdef debts d
        clear_debts(&d)
        r = waiter_open(&w)
        if r != MT_OK:
            return r
        mt_point()
        lock_order(q)
        if q.shut or not ordered_full(q) or slot_replaces(e):
            unlock_order(q)
            waiter_close(&w)
            return MT_OK
        mt_waitlist_push(&q.putters, &w)
        unlock_order(q)
        mt_point()
        r = waiter_park(&w, deadline, True)
        if r != MT_OK:
            lock_order(q)
            if mt_waitlist_leave(&q.putters, &w) == MT_WAITER_NOTIFIED:
                if r == MT_INTERRUPTED:
                    ordered_room(q, &d)
                unlock_order(q)
                waiter_await_post(&w, True)
                r = MT_OK if r == MT_TIMEOUT else r
            else:
                unlock_order(q)
        waiter_close(&w)
        if d.wake != NULL:
            post_chain(d.wake)
        return r

    cdef object put_immediate(self, item, block, timeout, headers, priority, ttl, delay, group, origin):
        cdef int64_t deadline = deadline_from(block, timeout)
        cdef entry *e
        cdef verdicts v
        if span_argument("delay", delay, True):
            raise ValueError(f"delay={delay!r}: an entry that is to be handed over now (immediate=True) cannot be held")
        e = self.make(item, headers, priority, ttl, ZERO, group, origin)
        v.n, v.room, v.items = 0, 0, NULL
        try:
            return self.hand_over(e, deadline, &v)
        finally:
            free(v.items)

    cdef object hand_over(self, entry *e, int64_t deadline, verdicts *v):
        """e goes to a waiter, or nowhere. It is not linked before it is certain who gets it, so nobody else can see it."""
        cdef core *q = self.q
        cdef debts d
        cdef taken t
        cdef int r
        cdef bint waited = False
        keep_for_handle(e)
        ordered_note(&t, e, 0)
        try:
            while True:
                clear_debts(&d)
                lock_order(q)
                ordered_look_at_clock(q, &d)
                r = self.ordered_hand_over(e, v, &d)
                unlock_order(q)
                self.settle(&d)
                if r == MT_OK:
                    break
                if r == ST_DENIED:
                    self.give_up_put(e, waited)
                    forget_taken(&t)
                    return None
                if r == ST_SLOW:
                    self.ask_waiting(e, v)
                else:
                    self.put_again(e, r, deadline, &waited)
        except BaseException:
            self.give_up_put(e, waited)
            forget_taken(&t)
            raise
        return handle_of(self, &t)

    cdef int ordered_hand_over(self, entry *e, verdicts *v, debts *d) noexcept nogil:
        """MT_OK; ST_DENIED: nobody waits for it; ST_SLOW: a selector has to be asked first; or as ordered_admit."""
        cdef core *q = self.q
        cdef sub *s = NULL
        cdef uint64_t delivery
        cdef int r
        if q.shut:
            return MT_SHUTDOWN
        if not slot_replaces(e) and ordered_full(q) and not self.ordered_in_letter():
            return MT_FULL
        e.seq = q.nseq                  # what it would be, for subscriptions to what is put later
        r = ordered_find_waiting(q, e, v, &s)
        if r != MT_OK:
            return r
        if e.more != NULL and not mt_timers_reserve(&q.timers, q.timers.n + 1):
            return MT_NOMEM
        r = self.place(e, d)
        if r != MT_OK:
            return r
        q.available += 1                # for no moment that anybody could see: the lock is held
        if e.more != NULL and e.more.slot != NULL:
            slot_joined(q, e, d)
        ordered_count_in(q, e)
        delivery = ordered_acquire(q, s, e)
        ordered_give(q, s, e, delivery, d)
        ordered_after_get(q, s, d)
        if q.overflow == OVERFLOW_DROP and q.maxsize > 0 and depth_of(q) > q.maxsize and not self.ordered_in_letter():
            ordered_make_room(q, e, d)
        return MT_OK

    cdef int ask_waiting(self, entry *e, verdicts *v) except -1:
        """Ask the selectors of the subscriptions that e may suit, without the lock."""
        cdef taken t
        cdef Entry h
        cdef int64_t i
        cdef bint ok
        keep_for_handle(e)
        ordered_note(&t, e, 0)
        h = handle_of(self, &t)
        lock_order(self.q)
        ok = ordered_unasked(self.q, e, v)
        unlock_order(self.q)
        if not ok:
            raise MemoryError
        for i in range(v.n):
            if v.items[i].selector != NULL:
                selector = mt_owned(v.items[i].selector)
                v.items[i].selector = NULL
                v.items[i].wants = judge(self, selector, h, False)
        return 0

    def put_many(self, items, block=True, timeout=None, **options):
        """Put each item of an iterable, with the same options; how many. On Full, ShutDown or KeyboardInterrupt `.count` of the exception says
        how many went in; those stay in."""
        cdef int64_t deadline = deadline_from(block, timeout), n = 0
        headers, priority, ttl, delay, group, origin = many_options(options)
        if type(items) in (list, tuple) and self.plain and headers is None and type(priority) is int and (ttl, group, self.ttl) == (None, None, 0) \
                and delay is ZERO:
            return self.put_runs(tuple(items), deadline, priority, origin)
        for item in items:
            n += self.put_one(item, deadline, n, headers, priority, ttl, delay, group, origin)
        return n

    cdef int put_one(self, item, int64_t deadline, int64_t before, headers, priority, ttl, delay, group, origin) except -1:
        """1. An exception that ends a put_many is told how many were put before it."""
        try:
            self.admit(self.make(item, headers, priority, ttl, delay, group, origin), deadline, False)
        except (Full, ShutDown, KeyboardInterrupt) as stopped:
            stopped.count = before
            raise
        return 1

    cdef int64_t put_runs(self, tuple items, int64_t deadline, priority, origin) except -1:
        """put_many of what runs no Python code before it is linked: as many at once as there is room for."""
        cdef int64_t n = 0, more
        while n < len(items):
            more = self.put_run(items, n, priority, origin)
            n += more if more else self.put_one(items[n], deadline, n, None, priority, None, ZERO, None, origin)
        return n

    cdef int64_t put_run(self, tuple items, int64_t at, priority, origin) except -1:
        """Put items from that place on, under one hold of the lock; how many. 0: none is left, or the next has to be put by itself."""
        cdef entry *first = NULL
        cdef entry **last = &first
        cdef int64_t room = self.room_for_run(), n = 0
        cdef debts d
        clear_debts(&d)
        try:
            while n < room and at + n < len(items):
                last[0] = self.make(items[at + n], None, priority, None, ZERO, None, origin)
                last = &last[0].held_next
                n += 1
        finally:                        # an exception is about one item: those before it go in
            n = 0
            if first != NULL:
                lock_order(self.q)
                ordered_look_at_clock(self.q, &d)
                n = self.ordered_admit_run(&first, &d)
                unlock_order(self.q)
                self.settle(&d)
                self.discard_run(first)
        return n

    cdef int64_t room_for_run(self) noexcept nogil:
        """How many may be put in one go. 0: they have to be looked at one by one, because others are dropped for them or they have to wait."""
        cdef core *q = self.q
        cdef int64_t room = RUN
        if q.maxsize <= 0:
            return room
        lock_order(q)
        if q.overflow == OVERFLOW_DROP or ordered_full(q):
            room = 0
        else:
            room = min(room, q.maxsize - depth_of(q))
        unlock_order(q)
        return room

    cdef int64_t ordered_admit_run(self, entry **rest, debts *d) noexcept nogil:
        """Of a chain by `held_next`, until one is refused; how many. The chain of the others is left."""
        cdef int64_t n = 0
        cdef entry *e = rest[0]
        cdef entry *following
        while e != NULL:
            following = e.held_next
            e.held_next = NULL
            if self.ordered_admit(e, d, False) != MT_OK:
                e.held_next = following
                break
            n += 1
            e = following
        rest[0] = e
        return n

    cdef int discard_run(self, entry *e) except -1:
        cdef entry *following
        while e != NULL:
            following = e.held_next
            self.discard(e)
            e = following
        return 0

    async def aput(self, item, **options):
        """put for coroutines: waits for room without blocking the loop."""
        waited = False
        try:
            while True:
                ticket = self._ticket()
                try:
                    entry = self.put(item, False, **options)
                except Full:
                    if self.q.overflow != OVERFLOW_BLOCK:
                        raise
                else:
                    if waited and entry is None:    # the place that it was woken for is for the next one
                        self._pass_room_on()
                    return entry
                await self._until_room(ticket)
                waited = True
        except BaseException:
            if waited:
                self._pass_room_on()
            raise

    def _ticket(self):
        cdef int64_t now
        lock_order(self.q)
        now = self.q.events
        unlock_order(self.q)
        return now

    async def _until_room(self, ticket):
        waiter = LoopWaiter(running_loop(), self._pass_room_on)
        if not self._enrol(waiter, ticket):
            return
        try:
            await waiter.future
        except BaseException:
            self._withdraw(waiter)
            raise

    def _enrol(self, LoopWaiter waiter not None, int64_t ticket):
        """Queue a coroutine unless there is room, or what it replaces may have been released since it tried."""
        cdef core *q = self.q
        cdef bint full
        lock_order(q)
        full = not q.shut and ordered_full(q) and (q.slot_keys.n == 0 or q.events == ticket)
        if full:
            Py_INCREF(waiter)
            mt_waitlist_push(&q.putters, &waiter.w)
        unlock_order(q)
        return full

    def _withdraw(self, LoopWaiter waiter not None):
        cdef uint32_t was
        lock_order(self.q)
        was = mt_waitlist_leave(&self.q.putters, &waiter.w)
        unlock_order(self.q)
        if was == MT_WAITER_QUEUED:
            Py_DECREF(waiter)
        elif was == MT_WAITER_NOTIFIED:
            self._pass_room_on()

    def _pass_room_on(self):
        self.pass_room_on()

    cdef void pass_room_on(self) noexcept:
        cdef debts d
        clear_debts(&d)
        lock_order(self.q)
        ordered_room(self.q, &d)
        unlock_order(self.q)
        self.settle(&d)

    # ------------------------------------------------------------------------------------------------------------ settle
    cdef inline void settle(self, debts *d) noexcept:
        """What had to wait until the order lock was free: wake, deliver dead letters, release items."""
        cdef entry *e = d.dead
        if d.wake != NULL:
            post_chain(d.wake)
        if e != NULL:
            if likely(e.held_next == NULL and not (self.q.letters and is_letter(e.reason))):
                release_entry(e)
            else:
                self.settle_dead(e)
        if unlikely(d.keys != NULL):
            release_keys(d.keys)
        if unlikely(d.late):
            self.tell_thread()
        if unlikely(d.quiet):
            self.watch()

    cdef void tell_thread(self) noexcept:
        """Have the thread of dead letters look at `late`."""
        try:
            dead_letters.request(self)
        except BaseException as problem:        # no memory, no thread: whoever comes next tells it
            lock_order(self.q)
            self.q.late_told = False
            unlock_order(self.q)
            unraisable(problem, self, "the thread of dead letters")

    cdef void settle_dead(self, entry *newest) noexcept:
        """Deliver the dead letters of a chain and release it, in the order in which they died.

        A dead letter queue that drops its oldest for what it is given has dead letters of its own, and so on: they are worked off here, one queue
        on top of the other, not by recursion, because users may chain as many queues as they like. Whatever comes back to a queue that dropped
        something on the way here is dropped for good, or a ring of them would go on for ever."""
        cdef EntryQueue at = self
        cdef EntryQueue to
        cdef Cascade below = None
        cdef set dropping = None            # queues below `at` that dropped their oldest; None: nothing is below
        cdef entry *e = oldest_first(newest)
        cdef entry *following
        cdef entry *dead
        while e != NULL or below is not None:
            if e == NULL:
                at, e = below.queue, below.left
                below = leave_cascade(below, dropping)
                continue
            following = e.held_next
            e.held_next = NULL
            dead = NULL
            to = None
            if at.q.letters and is_letter(e.reason):
                to = at.letter if isinstance(at.letter, EntryQueue) else None
                if e.reason == OVERFLOWN and to is not None and (to is at or (dropping is not None and <uintptr_t><void *>to in dropping)):
                    at.uncount_letter()
                else:
                    dead = at.deliver_dead(e)
            if dead != NULL:
                try:
                    if dropping is None:
                        dropping = set()
                    below = enter_cascade(at, following, e.reason == OVERFLOWN, below, dropping)
                    at, following = to, oldest_first(dead)
                except BaseException as problem:        # no memory
                    unraisable(problem, to, "the dead letters of a dead letter queue")
                    release_chain(dead)
            release_entry(e)
            e = following

    cdef void uncount_letter(self) noexcept nogil:
        lock_order(self.q)
        self.q.figures.dead_lettered -= 1
        unlock_order(self.q)

    cdef entry *deliver_dead(self, entry *e) noexcept:
        """To the dead letter. What its queue dropped for it is returned, the newest first."""
        cdef taken t
        cdef running here
        cdef object handle
        cdef entry *dropped = NULL
        letter = self.letter
        try:
            if isinstance(letter, EntryQueue):
                (<EntryQueue>letter).put_dead(e, &dropped)
                return dropped
            keep_for_handle(e)
            ordered_note(&t, e, 0)
            handle = handle_of(self, &t)
            enter_letter(self.q, &here)
            try:
                letter(handle, REASONS[e.reason])
            finally:
                leave_letter(self.q, &here)
        except BaseException as problem:
            unraisable(problem, letter, f"dead_letter of {self.name_!r}")
        return dropped

    cdef int put_dead(self, entry *letter, entry **dropped) except -1:
        """A put that never waits and has no ttl, delay or origin. dropped: what overflowed, the newest first; the caller settles it."""
        cdef debts d
        cdef Extra x
        cdef entry *e = mt_entry_new(self.q.keyed)
        cdef int r = MT_EMPTY
        if e == NULL:
            raise MemoryError
        e.item = letter.item
        Py_INCREF(<object>e.item)
        e.born = mt_now_coarse_ns()
        e.priority = letter.priority
        e.level = level_of(self.q, e.priority)
        try:
            if letter.extra != NULL:
                x = <Extra>letter.extra
                if x.headers is not None or x.group is not None:
                    self.add_letter_extra(e, x)
            while r == MT_EMPTY:
                if not self.plain:
                    self.prepare(e, <object>e.item)
                clear_debts(&d)
                lock_order(self.q)
                r = self.ordered_admit(e, &d, True)
                unlock_order(self.q)
                dropped[0] = d.dead
                d.dead = NULL
                self.settle(&d)
            if r != MT_OK:
                self.refuse_put(r)
        except BaseException:
            self.discard(e)
            raise
        return 0

    cdef int add_letter_extra(self, entry *e, Extra of) except -1:
        """Headers, which nobody changes, and the group of another queue's entry."""
        cdef Extra x = Extra.__new__(Extra)
        x.headers = of.headers
        x.group = of.group
        Py_INCREF(x)
        e.extra = <void *>x
        if x.group is not None and self.q.groups != GROUPS_NONE:
            need_more(e).group = self.find_key(&self.q.group_keys, x.group)
        return 0

    # ------------------------------------------------------------------------- what the timer's thread has no time for
    cdef int run_timers_for_all(self) except -1:
        """Expire and un-hold what is due, in the timer's thread: no code of the user's runs here, because that might wait. What died is for the
        thread of dead letters, but for those that go to a dead letter queue where nothing of the user's can run."""
        cdef debts d
        cdef entry *e
        clear_debts(&d)
        lock_order(self.q)
        ordered_tend(self.q, mt_now_ns(), &d)
        unlock_order(self.q)
        self.put_dead_quietly(&d)
        lock_order(self.q)
        while d.dead != NULL:
            e = d.dead
            d.dead = e.held_next
            ordered_leave_to_thread(self.q, e, &d)
        if d.keys != NULL:
            ordered_leave_keys_to_thread(self.q, &d)
        unlock_order(self.q)
        self.settle(&d)
        return 0

    cdef void put_dead_quietly(self, debts *d) noexcept:
        """Of a chain, the newest first, what may go to the dead letter queue at once does. The chain is turned: the oldest first."""
        cdef entry *e
        cdef entry *dropped = NULL
        d.dead = e = oldest_first(d.dead)
        letter = self.letter
        if self.q.letters != LETTERS_QUEUE or not isinstance(letter, EntryQueue):
            return
        while e != NULL:
            if is_letter(e.reason):
                if not (<EntryQueue>letter).takes_quietly(e):
                    return                      # nor those after it: they keep their order
                try:
                    (<EntryQueue>letter).put_dead(e, &dropped)
                except BaseException:
                    return                      # the other thread tries again, and reports it
                e.reason = CLEARED              # delivered
            e = e.held_next

    cdef bint takes_quietly(self, entry *e) noexcept:
        """Whether a letter can be put here without running code of the user's: keys, comparisons, a callable for what overflows."""
        cdef Extra x
        if not self.plain or self.q.shut or (self.q.overflow == OVERFLOW_DROP and self.q.maxsize > 0):
            return False
        if self.q.groups == GROUPS_NONE or e.extra == NULL:
            return True
        x = <Extra>e.extra
        return x.group is None

    cdef void deliver_late(self) noexcept:
        """In the thread of dead letters: whatever was left to it. One by one, so that a fork finds the others where they are."""
        cdef entry *e
        cdef keyrec *keys
        while True:
            lock_order(self.q)
            keys = self.q.late_keys
            self.q.late_keys = NULL
            e = self.q.late
            if e != NULL:
                self.q.late = e.held_next
                if self.q.late == NULL:
                    self.q.late_last = NULL
                e.held_next = NULL
            else:
                self.q.late_told = False
            unlock_order(self.q)
            if keys != NULL:
                release_keys(keys)
            if e == NULL:
                return
            self.settle_dead(e)

    cdef int give_back(self, taken *t) except -1:
        """Release a delivery that nobody will get."""
        cdef debts d
        clear_debts(&d)
        lock_order(self.q)
        ordered_release(self.q, t.e, t.delivery, 0, &d)
        unlock_order(self.q)
        self.settle(&d)
        return 0

    cdef keyrec *find_key(self, keytab *t, object key) except NULL:
        """The record of a key that is equal to this one, pinned for one entry. `==` runs without the lock."""
        cdef Py_hash_t h = hash(key)
        cdef keyrec *fresh = <keyrec *>calloc(1, sizeof(keyrec))
        cdef keyrec *k = NULL
        cdef keyrec **tried = NULL      # pinned records that are not equal
        cdef keyrec **longer
        cdef int64_t ntried = 0, i
        cdef debts d
        if fresh == NULL:
            raise MemoryError
        clear_debts(&d)
        fresh.hash = h
        fresh.refs = 1
        try:
            while True:
                lock_order(self.q)
                k = candidate(t, h, <void *>key, tried, ntried)
                if k == NULL:
                    if not keytab_grow(t):
                        unlock_order(self.q)
                        raise MemoryError
                    Py_INCREF(key)
                    fresh.key = <void *>key
                    fresh.next = bucket_of(t, h)[0]
                    bucket_of(t, h)[0] = fresh
                    t.n += 1
                    k = fresh
                    fresh = NULL
                    unlock_order(self.q)
                    return k
                if <void *>key == k.key:
                    k.refs += 1
                    unlock_order(self.q)
                    return k
                longer = <keyrec **>realloc(tried, (ntried + 1) * sizeof(keyrec *))
                if longer == NULL:
                    unlock_order(self.q)
                    raise MemoryError
                tried = longer
                tried[ntried] = k               # pinned before user code runs, unpinned whatever that does
                ntried += 1
                k.refs += 1
                unlock_order(self.q)
                if <object>k.key == key:
                    ntried -= 1
                    return k
        finally:
            free(fresh)
            lock_order(self.q)
            for i in range(ntried):
                ordered_unpin(t, tried[i], &d)
            unlock_order(self.q)
            free(tried)
            self.settle(&d)

    cdef void drop_all(self) noexcept:
        """For the garbage collector: no entry is left, no dead letter gets them."""
        cdef debts d
        cdef entry *late
        cdef uint32_t i
        clear_debts(&d)
        lock_order(self.q)
        self.q.letters = LETTERS_NONE
        late = self.q.late
        self.q.late = self.q.late_last = NULL
        for i in range(self.q.nlevels):
            while self.q.lists[i].first != NULL:
                clear_entry(self.q, self.q.lists[i].first, &d)
        unlock_order(self.q)
        self.settle(&d)
        release_chain(late)
        self.letter = None
        self.key = None

    # ----------------------------------------------------------------------------------------------------- subscriptions
    def subscribe(self, *, prefetch=0, selector=None, browse=False, exclusive=False, priority=0, start="oldest", origin=None):
        """A new subscription: a pointer into this queue's order.

        prefetch: entries it may hold unacked, 0 = no limit. selector: a callable of an entry, or an SQL-92 subset over headers as in JMS.
        exclusive: no other subscription may be open. priority: bigger first: while a higher one is interested and wants an entry, lower
        ones do not get it. start="newest": only what is put later. origin: entries put with the same origin are not delivered to it.
        browse: sees each AVAILABLE entry at most once and takes none.
        ExclusiveError: another one is, or wants to be, exclusive. ValueError: a bad selector, with the position; prefetch < 0."""
        return self.new_subscription(int_argument("prefetch", prefetch, "an int >= 0 (0: no limit)"), selector, bool(browse), bool(exclusive),
                                     int_argument("priority", priority, "an int (bigger goes first)"), start, origin, None)

    cdef Subscription new_subscription(self, int64_t prefetch, selector, bint browse, bint exclusive, int64_t priority, start, origin, Credit credit):
        cdef Subscription it = Subscription.__new__(Subscription)
        cdef sub *s = &it.s
        cdef int r
        if prefetch < 0:
            raise ValueError(f"prefetch={prefetch!r}: expected an int >= 0 (0: no limit)")
        if start not in ("oldest", "newest"):
            raise ValueError(f"start={start!r}: expected 'oldest' or 'newest'")
        if isinstance(selector, str):
            from manytail._selectors import compile_selector    # here: most queues need no parser
            selector = compile_selector(selector)
        elif selector is not None and not callable(selector):
            raise TypeError(f"selector={selector!r}: expected a callable, a str or None")
        it.queue_ = self
        it.selector = selector
        it.origin = origin
        if credit is not None:
            it.credit = credit
            s.pool = &credit.p
        s.q = self.q
        s.browse = browse
        s.exclusive = exclusive
        s.limit = prefetch
        s.selector = <void *>selector if selector is not None else NULL
        s.origin = <void *>origin if origin is not None else NULL
        s.own = browse or selector is not None or origin is not None or start == "newest" or self.q.groups != GROUPS_NONE
        lock_order(self.q)
        r = ordered_subscribe(self.q, s, priority, start == "newest")
        unlock_order(self.q)
        if r == MT_NOMEM:
            raise MemoryError
        if r != MT_OK:
            raise ExclusiveError(f"queue {self.name_!r} has an exclusive subscription" if self.q.exclusive else
                                 f"queue {self.name_!r} has {self.q.nsubs} open subscriptions: an exclusive one would not be alone")
        it.open = True
        return it

    def browse(self):
        """Iterate over the AVAILABLE, HELD and ACQUIRED entries in order. Weakly consistent: it never fails, sees each entry at most
        once, and entries that come and go meanwhile may be seen or not."""
        cdef Browser it = Browser.__new__(Browser)
        it.queue_ = self
        self.tend()
        lock_order(self.q)
        it.open = cursor_open(self.q, &it.c, False)
        unlock_order(self.q)
        if not it.open:
            raise MemoryError
        return it

    # -------------------------------------------------------------------------------------------------------------- state
    @cython.binding(False)
    @cython.embedsignature.format("clinic")
    def qsize(self):
        """AVAILABLE entries, at one instant."""
        cdef int64_t n
        lock_order(self.q)
        n = self.q.available
        unlock_order(self.q)
        return n

    @cython.binding(False)
    @cython.embedsignature.format("clinic")
    def depth(self):
        """AVAILABLE, HELD and ACQUIRED entries."""
        cdef int64_t n
        lock_order(self.q)
        n = depth_of(self.q)
        unlock_order(self.q)
        return n

    def purge(self):
        """Remove AVAILABLE, HELD and unlocked entries, which go to no dead letter; how many."""
        cdef debts d
        cdef int64_t n
        clear_debts(&d)
        lock_order(self.q)
        n = ordered_kill_all(self.q, PURGED, True, &d)
        unlock_order(self.q)
        self.settle(&d)
        return n

    cdef int tend(self) except -1:
        cdef debts d
        if self.q.timers.n == 0:
            return 0
        clear_debts(&d)
        lock_order(self.q)
        ordered_tend(self.q, mt_now_ns(), &d)
        unlock_order(self.q)
        self.settle(&d)
        return 0

    def maintain(self):
        """Expire and un-hold what is due. A shared timer calls it while entries with a ttl or delay exist: what its thread has expired just
        now is gone, but the dead letter of it may be a moment behind."""
        self.tend()
        self.watch()

    cdef int look_due(self) except -1:
        """The shared timer: a time that it was asked to watch has come."""
        lock_order(self.q)
        self.q.watched = 0
        unlock_order(self.q)
        self.run_timers_for_all()
        self.watch()
        return 0

    cdef void watch(self) noexcept:
        """Have the shared timer look at the next due time, if it does not look before that anyhow. When nothing is due, but the
        timer would wait long for it, have it look within a second, so that it may end. Whoever comes here has put or released something,
        and that stays: what fails (no memory, no thread) is reported, and the next one tries again."""
        cdef core *q = self.q
        cdef int64_t when, now
        lock_order(q)
        if q.timers.n:
            when = q.timers.items[0].when
        else:
            now = mt_now_coarse_ns()
            when = now + 1000000000 if q.watched > now + 1000000000 else 0
        if when and (q.watched == 0 or when < q.watched):
            q.watched = when
        else:
            when = 0
        unlock_order(q)
        if when == 0:
            return
        try:
            watch_shielded(self, when)
        except BaseException as problem:
            lock_order(q)
            q.watched = 0
            unlock_order(q)
            unraisable(problem, self, "the shared timer")

    def shutdown(self, immediate=False):
        """put raises ShutDown from now on; get goes on while something is left that it may take, then raises ShutDown. ack, release and
        reject still work and a released entry can be got. immediate: AVAILABLE and HELD entries, and whatever is released
        later, go to the dead letter (DELETED) or are dropped. Wakes everybody."""
        cdef debts d
        clear_debts(&d)
        lock_order(self.q)
        ordered_shutdown(self.q, bool(immediate), &d)
        unlock_order(self.q)
        self.settle(&d)

    @property
    def is_shutdown(self):
        """True from the first shutdown() on."""
        return bool(self.q.shut)

    def stats(self):
        """QueueStats: one consistent look at the counters."""
        cdef core *q = self.q
        cdef figures now
        cdef int64_t available, acquired, held, subscriptions, born
        lock_order(q)
        now = q.figures
        available, acquired, held, subscriptions = q.available, q.acquired, q.held, q.nsubs
        born = ordered_oldest(q)
        unlock_order(q)
        age = None if born == 0 else max(0.0, (mt_now_ns() - born) / 1e9)
        return QueueStats(available, acquired, held, available + acquired + held, now.enqueued, now.delivered, now.acked, now.released, now.expired,
                          now.rejected, now.dropped, now.purged, now.dead_lettered, now.selector_errors, now.high_water, subscriptions, age)


cdef object ZERO = 0.0         # the very objects that are put()'s defaults: equal constants of a module are one
cdef object FOUR = 4


cdef int watch_shielded(EntryQueue it, int64_t when) except -1:
    """An interrupt in here is for the caller's next instruction: what it has put is in."""
    try:
        timer.watch(when, it)
    except KeyboardInterrupt:
        PyErr_SetInterrupt()
        timer.watch(when, it)
    return 0


cdef tuple many_options(dict options):
    cdef dict left = dict(options)
    given = (left.pop("headers", None), left.pop("priority", 4), left.pop("ttl", None), left.pop("delay", 0.0), left.pop("group", None),
             left.pop("origin", None))
    if left:
        raise TypeError(f"put_many() got unexpected options {', '.join(sorted(left))}: expected headers, priority, ttl, delay, group, origin")
    return given


cdef object running_loop():
    from asyncio import get_running_loop    # here, so that users without event loops do not pay for the import
    return get_running_loop()


cdef void unraisable(object problem, object where, str what) noexcept:
    """Show an exception that has no caller to go to. An interrupt is for the thread's next instruction."""
    try:
        if isinstance(problem, KeyboardInterrupt):
            PyErr_SetInterrupt()
            return
        report(problem, where, what)
    except BaseException:
        return


cdef int report(object problem, object where, str what) except -1:
    sys.unraisablehook(_Unraisable(type(problem), problem, problem.__traceback__, f"Exception ignored in {what}", where))
    return 0


class _Unraisable(NamedTuple):
    """What sys.unraisablehook is given."""

    exc_type: type
    exc_value: BaseException
    exc_traceback: object
    err_msg: str
    object: object


cdef more *need_more(entry *e) except NULL:
    """Room for what only some entries have; e is not linked yet."""
    if e.more == NULL:
        e.more = <more *>calloc(1, sizeof(more))
        if e.more == NULL:
            raise MemoryError
    return e.more


cdef entry *oldest_first(entry *newest) noexcept nogil:
    """A chain by held_next the other way round."""
    cdef entry *e = NULL
    cdef entry *following
    while newest != NULL:
        following = newest.held_next
        newest.held_next = e
        e = newest
        newest = following
    return e


cdef void release_chain(entry *e) noexcept:
    cdef entry *following
    while e != NULL:
        following = e.held_next
        e.held_next = NULL
        release_entry(e)
        e = following


@cython.final
cdef class Cascade:
    """A queue whose dead letters wait until those that one of them caused in its dead letter queue are done: settle_dead."""
    cdef EntryQueue queue
    cdef entry *left            # its other dead ones, the oldest first
    cdef bint dropping          # it is in the set: it dropped the one that is under way
    cdef Cascade below


cdef Cascade enter_cascade(EntryQueue queue, entry *left, bint dropping, Cascade below, set all_dropping):
    cdef Cascade c = Cascade.__new__(Cascade)
    c.queue = queue
    c.dropping = dropping
    c.below = below
    if dropping:
        all_dropping.add(<uintptr_t><void *>queue)      # by identity: classes of users may have an `==`
    c.left = left
    return c


cdef Cascade leave_cascade(Cascade c, set all_dropping):
    if c.dropping:
        all_dropping.discard(<uintptr_t><void *>c.queue)
    return c.below


cdef inline void release_entry(entry *e) noexcept:
    """Give up what a dead entry had, and the list's reference to it."""
    cdef PyObject *item = <PyObject *>e.item
    cdef PyObject *extra = <PyObject *>e.extra
    cdef PyObject *key = NULL
    if unlikely(e.keyed):
        key = <PyObject *>mt_entry_key(e)[0]
        mt_entry_key(e)[0] = NULL
    mt_entry_drop(e)
    if key != NULL:
        Py_DECREF_raw(key)
    Py_DECREF_raw(item)
    if extra != NULL:
        Py_DECREF_raw(extra)


cdef void release_keys(keyrec *k) noexcept:
    cdef keyrec *following
    while k != NULL:
        following = k.next
        Py_DECREF_raw(<PyObject *>k.key)
        free(k)
        k = following


include "_en_time.pxi"
include "_en_subscriptions.pxi"
include "_en_orders.pxi"
include "_en_consumers.pxi"
include "_en_gc.pxi"
