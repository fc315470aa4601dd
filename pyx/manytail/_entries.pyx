"""EntryQueue: a strictly ordered queue whose entries are acquired, acknowledged, released and redelivered in place.

Algorithm: the strictly ordered queue of Qpid and its consumer manager. _eq.pxd lists the files that it is in. This
file is its Python face: the queue, and Entry, the handle of an entry. _orders.pyx has the queues with another order,
_subscriptions.pyx subscriptions, _consumers.pyx a consumer of several queues, _timer.py the shared threads.
docs/design/entryqueue.md explains how it works.

Progress
- Lock-free: lock(), and each call on a handle whose delivery has ended, which fails. One compare-and-swap on the
  entry's state word decides which of ack, release, reject, lock, unlock, expiry, purge, overflow and a closing
  subscription comes first.
- Blocking: all else. One short lock per queue, the order lock, guards the order, the cursors and the counters, because
  "the first AVAILABLE entry that it may take" and counters that add up are properties of the whole queue. With the GIL,
  the GIL is that lock. Steps under it are O(1), or O(log n) where that is said.

Rules of this layer
- No Python code runs under the order lock, and Python allocates and frees nothing there. Wake-ups, dead letters and
  items to drop are collected in `effects` and handled after unlocking (run_effects).
- Selectors, keys, `==` and `<` of user objects run without the lock, on pinned entries. Their result is checked against
  the state of the queue before it is used.
- put links an entry at its final place, where it stays until it is dead.
"""
cimport cython
from cpython.exc cimport PyErr_Fetch, PyErr_Restore, PyErr_SetInterrupt
from cpython.ref cimport Py_INCREF, PyObject
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint32_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from manytail._c cimport *
from manytail._cpython cimport *
from manytail._entry cimport *
from manytail._eq cimport *
from manytail._eq_capacity cimport *
from manytail._eq_end cimport *
from manytail._eq_get cimport drop_results
from manytail._eq_keys cimport *
from manytail._eq_life cimport forget_other_threads, free_queue, locked_clear, locked_shutdown, new_queue
from manytail._eq_put cimport locked_hand_over, locked_put, locked_put_run
from manytail._eq_sorted cimport search_range
from manytail._lifecycle cimport *
from manytail._root cimport clear_by_breaking_cycles
from manytail._waiting cimport *

import math
from collections.abc import Mapping
from types import GenericAlias, MappingProxyType

from manytail._timer import DeadLetterThread, Timer
from manytail._values import DeadReason, EntryState, QueueStats
from manytail.errors import Full, ShutDown

registry.objects = True

cdef extern from *:
    """
    static MT_THREAD_LOCAL int mt_timer_thread;     /* the calling thread is the timer thread */
    """
    bint mt_timer_thread


cdef bint in_timer_thread() noexcept:
    return mt_timer_thread


cdef tuple STATES = tuple(EntryState)
cdef dict REASONS = {
    REJECTED: DeadReason.REJECTED, EXPIRED: DeadReason.EXPIRED, EXHAUSTED: DeadReason.MAX_DELIVERIES,
    OVERFLOWN: DeadReason.OVERFLOW, SHUT: DeadReason.DELETED,
}
cdef dict OVERFLOWS = {"block": OVERFLOW_BLOCK, "reject": OVERFLOW_REJECT, "drop_oldest": OVERFLOW_DROP}
cdef dict GROUPS = {None: GROUPS_NONE, "shared": GROUPS_SHARED, "assigned": GROUPS_ASSIGNED}
cdef object NO_HEADERS = MappingProxyType({})
cdef double RESUME_AT = 0.8         # default of `resume_at`
cdef enum:
    RUN = 1000                      # entries that put_many links at most without releasing the lock
    DEFAULT_PRIORITY = 4

# ------------------------------------------------------------------------------------------------------------ arguments
cdef int64_t span_argument(str name, object value, bint zero) except -1:
    """Nanoseconds from seconds. Of more than 285 years: 0 (none) for a ttl, 146 years for a delay."""
    cdef int64_t span = seconds_argument(name, value, zero, False)
    if span < 0:
        return 0 if name == "ttl" else INT64_MAX // 2       # the sum with a time fits into 64 bits
    return span


cdef int32_t priority_argument(object value) except? -7:
    cdef int64_t p = int_argument("priority", value, "an int; bigger is more urgent")
    if p != <int32_t>p:
        raise OverflowError(f"priority: {value!r} (expected: an int of at most 32 bits; bigger is more urgent)")
    return <int32_t>p


# ---------------------------------------------------------------------------------------------------------------- Entry
@cython.final
@cython.freelist(256)
cdef class Extra:
    """What only some entries have: headers, group, origin. Shared by the entry and its handles, and never changed."""


@cython.final
@cython.freelist(256)
@cython.no_gc_clear         # its attributes never change; a cycle through it breaks at another object
@cython.binding(False)
@cython.embedsignature.format("clinic")
cdef class Entry:
    """Entry(*args, **kwargs)\n--\n
    A handle to one entry and to its place in the strict order of its queue.

    get returns a handle for one delivery, which lasts from that get until ack, release or reject. The delivery also
    ends if the subscription closes, or if expiry, purge or overflow removes an unlocked entry. After that, ack,
    release, reject, lock and unlock return False and change nothing, even if another subscription holds the entry now.
    They always return False on handles from put() and browse(). Handles of the same entry are equal. If several
    calls try to end the same delivery, the winner is decided without a lock; the other locks are the queue's. Source:
    see EntryQueue."""

    def __init__(self):
        raise RuntimeError("an Entry is made by its queue, once")

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
        """The queue of the entry."""
        return self.q

    @property
    def item(self):
        """What was put."""
        return self.thing

    @property
    def headers(self):
        """A read-only mapping; empty if the entry was put without headers."""
        return NO_HEADERS if self.extra is None or self.extra.headers is None else self.extra.headers

    @property
    def seq(self):
        """The number of its arrival, unique in its queue."""
        return self.e.seq

    @property
    def state(self):
        """The EntryState at this moment."""
        return STATES[state_of(self.e)]

    @property
    def priority(self):
        """The priority given to put."""
        return self.e.priority

    @property
    def group(self):
        """The message group, or None."""
        return None if self.extra is None else self.extra.group

    @property
    def deliveries(self):
        """How many times the entry has been delivered. Browsing does not count."""
        return word_delivery(entry_word(&self.e.word))

    @property
    def redelivered(self):
        """Whether the entry has ever been released."""
        return bool(word_redelivered(entry_word(&self.e.word)))

    @property
    def expires_at(self):
        """The value of time.monotonic() at which it expires, or None."""
        lock_order(self.q.q)            # a release with a delay may be adding the options
        cdef int64_t expires = 0 if self.e.options == NULL else self.e.options.expires
        unlock_order(self.q.q)
        return expires / 1e9 if expires else None

    def ack(self):
        """Finish the entry and remove it from the queue. Returns False if this delivery has already ended; nothing
        changes then."""
        return end_delivery(self, ACKED)

    def reject(self):
        """Remove the entry from the queue as failed: it goes to `dead_letter`, if the queue has one. Returns False if
        this delivery has already ended."""
        return end_delivery(self, REJECTED)

    def release(self, *, delay=0.0):
        """Return the entry to its old place in the order. It is delivered again, but not before `delay` seconds have
        passed. If deliveries >= max_deliveries, it goes to `dead_letter` instead. Returns False if this delivery has
        already ended. Raises ValueError if delay is negative or NaN."""
        cdef int64_t span = span_argument("delay", delay, True)
        cdef effects fx
        cdef entry_queue *q = self.q.q
        cdef bint done = False
        if self.delivery == 0 or not word_has_delivery(entry_word(&self.e.word), self.delivery):
            return False
        lock_for_effects(q, &fx)
        if span and not locked_reserve_timer(q, self.e):
            unlock_order(q)
            raise MemoryError
        done = locked_release(q, self.e, self.delivery, mt_now_ns() + span if span else 0, &fx)
        unlock_and_run_timed_effects(self.q, &fx)
        return bool(done)

    def unlock(self):
        """Allow expiry, purge and overflow to remove the entry. Returns False if this delivery has ended or is not
        locked."""
        cdef effects fx
        cdef entry_queue *q = self.q.q
        if self.delivery == 0 or not word_has_delivery(entry_word(&self.e.word), self.delivery):
            return False
        lock_for_effects(q, &fx)
        cdef bint done = locked_unlock_entry(q, self.e, self.delivery, &fx)
        unlock_and_run_timed_effects(self.q, &fx)
        return done

    def lock(self):
        """Undo unlock(). Returns whether the entry is still yours; False if this delivery has ended."""
        return self.delivery != 0 and bool(entry_lock(&self.e.word, self.delivery))


cdef inline void unlock_and_run_timed_effects(EntryQueue queue, effects *fx) noexcept:
    """unlock_and_run_effects() of a step after which the queue may have a timer. The request to the timer thread comes
    first: the effects may run user code, which may take long."""
    if unlikely(unlock_with_timers(queue.q)):
        queue.arm_timer()
    if unlikely(has_effects(fx)):
        queue.run_effects(fx)


cdef inline object end_delivery(Entry h, uint32_t reason):
    """ack and reject."""
    cdef effects fx
    cdef entry_queue *q = h.q.q
    if h.delivery == 0 or not word_has_delivery(entry_word(&h.e.word), h.delivery):
        return False
    mt_point()
    lock_for_effects(q, &fx)    # before any change: a fork while this thread waits for it finds the entry unchanged
    cdef bint done = locked_end(q, h.e, h.delivery, reason, &fx)
    unlock_and_run_effects(h.q, &fx)
    return done


cdef destructor dealloc_by_recursion    # the tp_dealloc that Cython made for Entry


cdef void entry_dealloc(PyObject *self) noexcept:
    """The tp_dealloc of Entry. It is no `__dealloc__`, before which Cython saves the exception state.

    Handles may be nested without end, because an item, an origin or a group may be another handle. So CPython's
    trashcan frees them. An item that the collector does not know (None, an int, a str) refers to nothing: then the
    trashcan would only cost time."""
    cdef entry *e = (<Entry>self).e
    (<Entry>self).e = NULL          # the trashcan may call this twice
    if likely(e != NULL):
        entry_drop(e)
    if likely((<Entry>self).extra is None and not PyObject_IS_GC(<PyObject *>(<Entry>self).thing)):
        dealloc_by_recursion(self)
    else:
        mt_dealloc_nested(self, entry_dealloc, dealloc_by_recursion)


# A call of new_entry_object() through this type returns NULL with the exception set. It does not raise: the caller has
# to undo something first.
ctypedef PyObject *(*unchecked_new)() noexcept


cdef object new_entry_object():
    return Entry.__new__(Entry)


cdef Entry handle_of(EntryQueue queue, acquired_entry *t):
    """The handle of an acquired entry; it takes over the references of t."""
    return make_handle(queue, t, NULL)


cdef Entry make_handle(EntryQueue queue, acquired_entry *t, entry *unadmitted):
    """handle_of(). unadmitted: the entry, if it is not put yet; freed if there is no memory. No `try` here: it would
    save the exception state at each call. No variable for the handle: without the GIL, its reference count costs."""
    cdef PyObject *made = (<unchecked_new>new_entry_object)()
    if unlikely(made == NULL):
        undo_handle(queue, t, unadmitted)
    (<Entry>made).q = queue
    (<Entry>made).e = t.e
    (<Entry>made).delivery = t.delivery
    (<Entry>made).thing = mt_owned(<PyObject *>t.item)
    if unlikely(t.extra != NULL):
        (<Entry>made).extra = <Extra>mt_owned(<PyObject *>t.extra)
    return <Entry>mt_owned(made)


cdef inline Entry handle_before_put(EntryQueue queue, entry *e):
    """A put makes its handle first: once e is put, nothing may fail."""
    cdef acquired_entry t
    keep_for_handle(queue.q, e)
    fill_acquired(&t, e, 0)
    return make_handle(queue, &t, e)


cdef int undo_handle(EntryQueue queue, acquired_entry *t, entry *unadmitted) except -1:
    """No memory for a handle: release the delivery, or free the entry, and raise the pending exception."""
    cdef PyObject *kind
    cdef PyObject *error
    cdef PyObject *trace
    cdef effects fx
    PyErr_Fetch(&kind, &error, &trace)
    if t.delivery:
        lock_for_effects(queue.q, &fx)
        locked_release(queue.q, t.e, t.delivery, 0, &fx)
        unlock_and_run_effects(queue, &fx)
    entry_drop(t.e)
    Py_DECREF_raw(<PyObject *>t.item)
    if t.extra != NULL:
        Py_DECREF_raw(<PyObject *>t.extra)
    if unadmitted != NULL:
        queue.free_unadmitted(unadmitted)
    PyErr_Restore(kind, error, trace)
    return -1


# ----------------------------------------------------------------------------------------------------------- EntryQueue
@cython.no_gc_clear
@cython.binding(False)
@cython.embedsignature.format("clinic")
cdef class EntryQueue(Root):
    """EntryQueue(name="", *, maxsize=0, overflow="block", resume_at=0.8, ttl=None, max_deliveries=0,
    dead_letter=None, groups=None)\n--\n
    A strictly ordered queue with acknowledgement: an entry keeps its place until it is acked. Subscribe to get entries.

    maxsize: the maximum depth(), in entries; <= 0: no limit.
    overflow: what put does if the queue is full. "block", the default: it waits until depth() <= floor(resume_at *
    maxsize), or raises Full. "reject": it raises Full at once. "drop_oldest": it drops entries that no subscription
    holds, or that are unlocked, beginning with the oldest of the least urgent level; if there are none, the queue
    grows.
    ttl: seconds after which an entry expires; if the entry has a ttl of its own, the shorter one applies.
    max_deliveries=N: an entry that is released after its N-th delivery goes to `dead_letter`; 0: no limit.
    dead_letter: another EntryQueue, or a function of (entry, reason). The function runs in the thread of the call that
    removes the entry; for expired entries, it runs in a daemon thread, in order. If two queues are each other's
    dead-letter queue, an entry is dropped if an overflow would return it to a queue that it has already left.
    groups: "shared": a subscription owns a group while it holds unacked entries of it. "assigned": it owns the group
    from the first entry that it gets until it closes. Other subscriptions do not get entries of the group.
    Raises ValueError or TypeError for invalid arguments.

    Blocking: one short lock per queue, without the GIL. If several calls try to end the same delivery, the winner is
    decided without a lock. Source: the strictly ordered queue of Qpid.

    >>> q = EntryQueue("jobs")
    >>> q.put("first").seq, q.put("second").seq
    (0, 1)
    >>> with q.subscribe() as sub:
    ...     entry = sub.get()
    ...     entry.item, entry.release(), sub.get().item
    ('first', True, 'first')
    """

    def __cinit__(self, *args, **options):
        self.q = new_queue(&registry)
        if self.q == NULL:
            raise MemoryError
        self.plain = True
        self.name_ = ""
        self.overflow_ = "block"
        self.resume_at = RESUME_AT

    def __init__(self, name="", *, maxsize=0, overflow="block", resume_at=0.8, ttl=None, max_deliveries=0,
                 dead_letter=None, groups=None):
        cdef double fraction
        cdef int64_t limit, span, bound
        if not isinstance(name, str):
            raise TypeError(f"name: {name!r} of type {type(name).__name__} (expected: a str)")
        if not isinstance(overflow, str) or overflow not in OVERFLOWS:
            raise ValueError(f"overflow: {overflow!r} (expected: 'block', 'reject' or 'drop_oldest')")
        try:
            fraction = resume_at
        except TypeError:
            raise TypeError(f"resume_at: {resume_at!r} of type {type(resume_at).__name__} "
                            "(expected: a number from 0 to 1)") from None
        if not 0 <= fraction <= 1:
            raise ValueError(f"resume_at: {resume_at!r} (expected: a number from 0 to 1)")
        if not (groups is None or isinstance(groups, str)) or groups not in GROUPS:
            raise ValueError(f"groups: {groups!r} (expected: 'shared', 'assigned' or None)")
        if not (dead_letter is None or isinstance(dead_letter, EntryQueue) or callable(dead_letter)):
            raise TypeError(f"dead_letter: {dead_letter!r} "
                            "(expected: an EntryQueue, a callable that takes entry and reason, or None)")
        limit = int_argument("max_deliveries", max_deliveries, "an int >= 0; 0 means no limit", 0)
        span = 0 if ttl is None else span_argument("ttl", ttl, False)
        bound = maxsize_argument(maxsize)
        lock_order(self.q)
        cdef bint begun = self.begun or self.q.nsubscriptions != 0 or self.q.nseq != 0
        self.begun = True
        unlock_order(self.q)
        if begun:
            raise RuntimeError(f"{type(self).__name__}.__init__ was called on a queue that is in use")
        self.resume_at = fraction
        self.q.max_deliveries = limit
        self.ttl = span
        self.q.overflow = OVERFLOWS[overflow]
        self.q.groups = GROUPS[groups]
        if dead_letter is not None:
            self.q.dead_letter = DEAD_LETTER_QUEUE if isinstance(dead_letter, EntryQueue) else DEAD_LETTER_CALL
        self.dead_letter = dead_letter
        self.name_ = name
        self.overflow_ = overflow
        self.set_maxsize(bound)

    def __dealloc__(self):
        if self.q != NULL:
            free_entries(self.q)
            free_queue(self.q)

    cdef int visit(self, visitproc visit, void *arg) noexcept:
        """The entries, their keys, and the coroutines that wait."""
        cdef entry_queue *q = self.q
        cdef uint32_t i
        cdef int r = 0
        if q == NULL:
            return 0
        for i in range(q.nlevels):
            e = q.lists[i].first
            while e != NULL and r == 0:
                r = visit_entry(e, visit, arg)
                e = e.next
        e = q.for_thread
        while e != NULL and r == 0:
            r = visit_entry(e, visit, arg)
            e = e.after.dead_next
        return (r or visit_key_chain(q.keys_for_thread, visit, arg) or visit_keys(&q.group_keys, visit, arg)
                or visit_keys(&q.value_keys, visit, arg) or visit_tasks(&q.putters, visit, arg))

    cdef void break_cycles(self) noexcept:
        """At the entries and the dead letter."""
        self.drop_all()

    def __repr__(self):
        cdef int64_t available, depth
        lock_order(self.q)              # not by calls of methods: a subclass may override them
        available = self.q.available
        depth = depth_of(self.q)
        cdef bint shut = self.q.shut
        unlock_order(self.q)
        end = ", shut down" if shut else ""
        return f"<{type(self).__name__} {self.name_!r}: {available} available of {depth}{end}>"

    @property
    def name(self):
        """The name that was given."""
        return self.name_

    @property
    def overflow(self):
        """What put does if the queue is full: the option that was given."""
        return self.overflow_

    @property
    def maxsize(self):
        """The limit of depth(); <= 0: no limit. It may be assigned; raising it wakes waiting putters."""
        return maxsize_of(self.q)

    @maxsize.setter
    def maxsize(self, value):
        self.set_maxsize(maxsize_argument(value))

    cdef int set_maxsize(self, int64_t maxsize) except -1:
        cdef effects fx
        cdef entry_queue *q = self.q
        cdef int64_t mark = min(math.floor(self.resume_at * maxsize), maxsize - 1) if maxsize > 0 else 0
        lock_for_effects(q, &fx)
        locked_set_maxsize(q, maxsize, mark, &fx)
        unlock_and_run_effects(self, &fx)
        return 0

    # -------------------------------------------------------------------------------------------------------------- put
    def put(self, item, block=True, timeout=None, *, headers=None, priority=4, ttl=None, delay=0.0, group=None,
            origin=None, immediate=False):
        """Append an item and return a handle to its entry.

        headers: a mapping for selectors; it is copied. priority: for a PriorityEntryQueue; higher numbers are more
        urgent. ttl: seconds until it expires. delay: seconds until it is available. group: the message group, any
        hashable. origin: subscriptions with the same origin (compared with `is`) do not get it.
        immediate=True: gives the item to a subscription that is waiting for it at this moment; if there is none, puts
        nothing and returns None. The item does not overtake an earlier entry that this subscription would get first.
        block, timeout: how put waits if the queue is full and overflow="block"; timeout is in seconds, and None waits
        without limit. Raises Full if no slot becomes free in time; ShutDown after shutdown(); ValueError if ttl <= 0,
        if delay or timeout is negative or NaN, or if delay is combined with immediate; and TypeError for an option of
        the wrong type. If it raises, nothing was put."""
        cdef search_range found
        if immediate:
            return self.put_immediate(item, block, timeout, headers, priority, ttl, delay, group, origin)
        cdef int64_t deadline = NEVER if timeout is None and block else deadline_from(block, timeout)
        e = self.make(item, headers, priority, ttl, delay, group, origin, &found)
        return self.admit(e, &found, deadline, True)

    cdef entry *make(self, item, headers, priority, ttl, delay, group, origin, search_range *found) except NULL:
        """A new entry that is not linked, with references to its item and extra. found: see prepare()."""
        cdef entry *e = entry_new(self.q.keyed)
        if unlikely(e == NULL):
            raise MemoryError
        Py_INCREF(item)
        e.item = <void *>item
        e.born = mt_now_coarse_ns()
        e.priority = DEFAULT_PRIORITY
        if unlikely(self.q.nlevels > 1):
            e.priority_level = level_of(self.q, DEFAULT_PRIORITY)
        if priority is FOUR and headers is None and group is None and origin is None and ttl is None \
                and delay is ZERO and self.ttl == 0 and self.plain:
            return e
        try:
            self.add_options(e, headers, priority, ttl, delay, group, origin, found)
        except BaseException:
            self.free_unadmitted(e)
            raise
        return e

    cdef int add_options(self, entry *e, headers, priority, ttl, delay, group, origin, search_range *found) except -1:
        if priority is not FOUR:
            e.priority = priority_argument(priority)
            e.priority_level = level_of(self.q, e.priority)
        if headers is not None or group is not None or origin is not None:
            self.add_extra(e, headers, group, origin)
        if ttl is not None or delay is not ZERO or self.ttl:
            self.add_times(e, ttl, delay)
        if not self.plain:
            self.prepare(e, found)
        return 0

    cdef int add_extra(self, entry *e, headers, group, origin) except -1:
        cdef Extra x = Extra.__new__(Extra)
        if headers is not None:
            if not isinstance(headers, Mapping):
                raise TypeError(f"headers: {headers!r} of type {type(headers).__name__} "
                                "(expected: a mapping of str to values)")
            x.headers = MappingProxyType(dict(headers))
        x.group = group
        x.origin = origin
        Py_INCREF(x)
        e.extra = <void *>x
        if origin is not None:
            need_options(e).origin = <void *>origin
        if group is not None:
            if self.q.groups != GROUPS_NONE:
                need_options(e).group = self.find_key(&self.q.group_keys, group)
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
            need_options(e)
            e.options.expires = now + span if span else 0
            e.options.due = now + own if own else 0
        return 0

    cdef int prepare(self, entry *e, search_range *found) except -1:
        """For subclasses with another order (_orders.pyx): the part of a put that runs Python code, before anything is
        linked. `found` is passed to q.place."""
        return 0

    cdef object key_of_item(self, item):
        key = self.key
        if key is None:
            raise RuntimeError(f"{type(self).__name__}: its key function was garbage-collected")
        return key(item)

    cdef int free_unadmitted(self, entry *e) except -1:
        """Free an entry that was not put, and drop its references."""
        cdef effects fx
        memset(&fx, 0, sizeof(effects))
        if e.options != NULL and (e.options.group != NULL or e.options.value_key != NULL):
            lock_order(self.q)
            if e.options.group != NULL:
                unpin_record(&self.q.group_keys, <key_record *>e.options.group, &fx.keys)
            if e.options.value_key != NULL:
                unpin_record(&self.q.value_keys, <key_record *>e.options.value_key, &fx.keys)
            unlock_order(self.q)
        e.reason = CLEARED
        e.after.dead_next = NULL
        fx.dead = e
        self.run_effects(&fx)
        return 0

    cdef object admit(self, entry *e, search_range *found, int64_t deadline, bint want_handle):
        """Put e, waiting for a free slot. Returns its handle, or None if want_handle is False."""
        cdef Entry h = None
        cdef wait_point p
        if want_handle:
            h = handle_before_put(self, e)
        cdef int r = self.admit_once(e, found, &p)
        if unlikely(r != MT_OK):
            self.admit_slow(e, found, NULL, &p, deadline, r)
        return h

    cdef int admit_once(self, entry *e, search_range *found, wait_point *p) noexcept:
        """One try, with the status of locked_put."""
        cdef effects fx
        cdef entry_queue *q = self.q
        lock_for_effects(q, &fx)
        if unlikely(q.timers.n != 0):
            locked_run_due_timers(q, mt_now_ns(), &fx)
        cdef int r = locked_put(q, e, found, False, &fx)
        p.events_seen = q.event_count
        unlock_and_run_timed_effects(self, &fx)
        return r

    cdef int admit_slow(self, entry *e, search_range *found, selector_results *v, wait_point *p, int64_t deadline,
                        int r) except -1:
        """Continue after the first try returned r. Returns MT_OK, or DENIED: no subscription waits for e. v: NULL if
        the tries are admit_once(), which never returns SLOW; else they are hand_over_once()."""
        free_slot_point(p, self.q, True)
        try:
            while r != MT_OK and r != DENIED:
                if r == SLOW:
                    self.ask(v, False)
                else:
                    self.before_next_try(e, found, p, deadline, r)
                r = self.admit_once(e, found, p) if v == NULL else self.hand_over_once(e, found, v, p)
        except BaseException:
            self.abandon_put(e, p)
            raise
        return r

    cdef int before_next_try(self, entry *e, search_range *found, wait_point *p, int64_t deadline, int r) except -1:
        """After a try returned r, prepare or wait for the next one, or raise the exception of r."""
        if r == MT_EMPTY:               # `found` is out of date
            self.prepare(e, found)
            return 0
        if r == MT_FULL and (deadline == ONCE or self.q.overflow != OVERFLOW_BLOCK):
            raise Full
        if again(p, 1, &r, deadline):
            return 0
        return self.refuse_put(r)

    cdef int abandon_put(self, entry *e, wait_point *p) except -1:
        """Give up a put: forward its notification, and free the entry."""
        forward_unused(p, 1, False)
        return self.free_unadmitted(e)

    cdef int refuse_put(self, int r) except -1:
        raise_if_failed(r)
        if r == MT_SHUTDOWN:
            raise ShutDown(f"queue {self.name_!r} was shut down and takes no more items")
        raise Full

    cdef entry *make_immediate(self, item, headers, priority, ttl, delay, group, origin,
                               search_range *found) except NULL:
        """make(), for a subscription that waits."""
        if span_argument("delay", delay, True):
            raise ValueError(f"delay: {delay!r} (expected: no delay with immediate=True)")
        return self.make(item, headers, priority, ttl, ZERO, group, origin, found)

    cdef object put_immediate(self, item, block, timeout, headers, priority, ttl, delay, group, origin):
        """Returns its handle, or None: no subscription waits for it. The entry is linked only together with its
        acquisition, so no other subscription can see it."""
        cdef int64_t deadline = deadline_from(block, timeout)
        cdef search_range found
        cdef selector_results v
        cdef entry *e = self.make_immediate(item, headers, priority, ttl, delay, group, origin, &found)
        cdef Entry h = handle_before_put(self, e)
        cdef wait_point p
        memset(&v, 0, sizeof(selector_results))
        try:
            if self.admit_slow(e, &found, &v, &p, deadline, self.hand_over_once(e, &found, &v, &p)) == MT_OK:
                return h
            self.abandon_put(e, &p)
            return None
        finally:
            free_results(&v)

    cdef int hand_over_once(self, entry *e, search_range *found, selector_results *v, wait_point *p) noexcept:
        """One try, with the status of locked_hand_over."""
        cdef effects fx
        cdef entry_queue *q = self.q
        lock_for_effects(q, &fx)
        if unlikely(q.timers.n != 0):
            locked_run_due_timers(q, mt_now_ns(), &fx)
        cdef int r = locked_hand_over(q, e, found, v, &fx)
        p.events_seen = q.event_count
        unlock_and_run_timed_effects(self, &fx)
        return r

    cdef int ask(self, selector_results *v, bint listening) except -1:
        """Ask the selectors that were not asked yet, without the lock. What they say of an entry that is dead by then
        does not matter. No handle is kept, which may have the last reference to the item: the lock is taken again."""
        cdef acquired_entry t
        cdef selector_result *it
        cdef bint alive
        while v.asked < v.n:
            it = &v.items[v.asked]
            selector = mt_owned(it.selector)
            it.selector = NULL
            lock_order(self.q)
            alive = is_linked(it.e)             # or not linked yet
            if alive:
                keep_for_handle(self.q, it.e)
                fill_acquired(&t, it.e, 0)
            unlock_order(self.q)
            it.wants = alive and judge(self, selector, handle_of(self, &t), listening)
            v.asked += 1
        return 0

    def put_many(self, items, block=True, timeout=None, **options):
        """Put each item of an iterable with the same options, and return how many there were. The options headers,
        priority, ttl, delay, group and origin work as in put. If it raises Full, ShutDown or KeyboardInterrupt, the
        exception's `count` is the number of items that were put. timeout applies to the whole call."""
        cdef int64_t deadline = deadline_from(block, timeout), n = 0
        headers, priority, ttl, delay, group, origin = given_options("put_many", options, PUT_MANY_OPTIONS)
        try:
            if type(items) in (list, tuple) and type(priority) is int and delay is ZERO and self.plain \
                    and self.ttl == 0 and headers is None and ttl is None and group is None:
                self.put_runs(tuple(items), deadline, priority, origin, &n)
            else:
                # By its iterator: Cython walks a list by number, and fails if another thread makes it shorter.
                for item in iter(items):
                    self.put_one(item, deadline, headers, priority, ttl, delay, group, origin)
                    n += 1
        except (Full, ShutDown, KeyboardInterrupt) as stopped:
            note_count(stopped, n)
            raise
        return n

    cdef int put_one(self, item, int64_t deadline, headers, priority, ttl, delay, group, origin) except -1:
        cdef search_range found
        self.admit(self.make(item, headers, priority, ttl, delay, group, origin, &found), &found, deadline, False)
        return 0

    cdef int put_runs(self, tuple items, int64_t deadline, priority, origin, int64_t *count) except -1:
        """put_many for items that need no Python code before they are linked: each time as many as there are free
        slots. *count: how many were put."""
        cdef int64_t more
        while count[0] < len(items):
            more = self.put_run(items, count[0], priority, origin)
            if more == 0:
                self.put_one(items[count[0]], deadline, None, priority, None, ZERO, None, origin)
                more = 1
            count[0] += more
        return 0

    cdef int64_t put_run(self, tuple items, int64_t at, priority, origin) except -1:
        """Put items from number `at` on, without releasing the lock in between. Returns how many; 0: none is left, or
        the next one has to be put by put_one()."""
        cdef entry *first = NULL
        cdef entry **last = &first
        cdef int64_t longest = self.longest_run(), n = 0
        cdef effects fx
        memset(&fx, 0, sizeof(effects))
        try:
            while n < longest and at + n < len(items):
                last[0] = self.make(items[at + n], None, priority, None, ZERO, None, origin, NULL)
                last = &last[0].after.dead_next
                n += 1
        finally:                        # also after an exception: put the items before the one that failed
            n = 0
            if first != NULL:
                lock_order(self.q)
                if unlikely(self.q.timers.n != 0):
                    locked_run_due_timers(self.q, mt_now_ns(), &fx)
                n = locked_put_run(self.q, &first, &fx)
                unlock_and_run_effects(self, &fx)
                self.free_run(first)
        return n

    cdef int64_t longest_run(self) noexcept nogil:
        """How many items a run may have. 0: each has to be put by itself, because it has to wait or overflows."""
        cdef entry_queue *q = self.q
        cdef int64_t longest = RUN
        lock_order(q)
        if q.maxsize > 0:
            if q.overflow == OVERFLOW_DROP or locked_full(q):
                longest = 0
            else:
                longest = min(longest, q.maxsize - depth_of(q))
        unlock_order(q)
        return longest

    cdef int free_run(self, entry *e) except -1:
        while e != NULL:
            following = e.after.dead_next
            self.free_unadmitted(e)
            e = following
        return 0

    @cython.binding(True)
    async def aput(self, item, **options):
        """The version of put() for asyncio and trio coroutines. It has the options of put, except block and timeout. If
        it is cancelled before it returns, nothing was put."""
        cdef PendingPut it = pending_put(self, item, options)
        try:
            pause = checkpoint()
            if pause is not None:
                await pause
            while not it.attempt():
                await new_waiting_at(it, &it.p, 1).wait()
        except BaseException:
            it.abandon()
            raise
        return it.h

    # ------------------------------------------------------------------------------------------------------ run_effects
    cdef void run_effects(self, effects *fx) noexcept:
        """After unlocking: ask the shared threads for what they have to do, wake waiters, deliver dead letters, drop
        items. The requests come first: waking a coroutine runs Python code, during which another thread may fork, and
        the child must find them. The last two run user code, which may take long."""
        cdef entry *e = fx.dead
        if unlikely(fx.notify_thread):
            self.notify_thread()
        if unlikely(fx.timers_ended):
            self.arm_timer()
        if fx.to_post != NULL:
            post(fx.to_post)
        if e != NULL:
            if likely(e.after.dead_next == NULL and not (self.q.dead_letter and is_dead_letter(e.reason))):
                free_dead(e)
            else:
                self.deliver_dead_chain(e)
        if unlikely(fx.keys != NULL):
            free_keys(fx.keys)

    cdef void notify_thread(self) noexcept:
        """Tell the dead-letter thread that this queue has work for it."""
        try:
            dead_letters.request(self)
        except BaseException as problem:        # no memory, or no thread: the next call of this tries again
            lock_order(self.q)
            self.q.thread_notified = False
            unlock_order(self.q)
            unraisable(problem, self)

    cdef void deliver_dead_chain(self, entry *newest) noexcept:
        """Deliver the dead letters of a chain, and free its entries, in the order of their deaths.

        A dead-letter queue may itself drop its oldest entries when it is given a letter, and these go to its own dead
        letter, and so on. Users may chain any number of queues, so this is not a recursion but an explicit stack of
        Postponed chains. An entry dropped by overflow is discarded if its dead-letter queue is this one, or one on the
        stack that dropped entries by overflow: else a ring of queues would go on for ever."""
        cdef entry *dead
        cdef EntryQueue at = self
        cdef EntryQueue to
        cdef Postponed below = None
        cdef set dropping = None            # queues on the stack that dropped their oldest; None: not made yet
        cdef entry *e = oldest_first(newest)
        while e != NULL or below is not None:
            if e == NULL:
                at, e = below.queue, below.left
                below = leave_postponed(below, dropping)
                continue
            following = e.after.dead_next
            e.after.dead_next = NULL
            dead = NULL
            to = None
            if at.q.dead_letter and is_dead_letter(e.reason):
                to = at.dead_letter if isinstance(at.dead_letter, EntryQueue) else None
                if e.reason == OVERFLOWN and to is not None \
                        and (to is at or (dropping is not None and <uintptr_t><void *>to in dropping)):
                    at.uncount_dead_letter()
                else:
                    dead = at.deliver_dead(e)
            if dead != NULL:
                try:
                    if dropping is None:
                        dropping = set()
                    below = enter_postponed(at, following, e.reason == OVERFLOWN, below, dropping)
                    at, following = to, oldest_first(dead)
                except BaseException as problem:        # no memory
                    unraisable(problem, to)
                    free_chain(dead)
            free_dead(e)
            e = following

    cdef void uncount_dead_letter(self) noexcept nogil:
        lock_order(self.q)
        self.q.counters.dead_lettered -= 1
        unlock_order(self.q)

    cdef entry *deliver_dead(self, entry *e) noexcept:
        """Deliver e to the dead letter. Returns the entries that the dead-letter queue dropped for it, the newest
        first."""
        cdef acquired_entry t
        cdef dead_letter_call here      # puts of this thread into this queue are accepted meanwhile
        cdef object handle
        cdef entry *dropped = NULL
        cdef wait_node *to_post = NULL
        to = self.dead_letter
        try:
            if isinstance(to, EntryQueue):
                (<EntryQueue>to).put_dead(e, &dropped, &to_post)
            else:
                keep_for_handle(self.q, e)
                fill_acquired(&t, e, 0)
                handle = handle_of(self, &t)
                enter_dead_letter_call(self.q, &here)
                try:
                    to(handle, REASONS[e.reason])
                finally:
                    leave_dead_letter_call(self.q, &here)
        except BaseException as problem:
            unraisable(problem, to)
        post(to_post)
        return dropped

    cdef int put_dead(self, entry *dead, entry **dropped, wait_node **to_post) except -1:
        """Put a dead letter of another queue: also if full, without ttl, delay or origin. *dropped: the entries that
        overflowed, the newest first, for the caller to deliver or free. The caller posts *to_post."""
        cdef effects fx
        cdef Extra x
        cdef search_range found
        cdef entry *e = entry_new(self.q.keyed)
        cdef int r = MT_EMPTY
        if e == NULL:
            raise MemoryError
        e.item = dead.item
        Py_INCREF(<object>e.item)
        e.born = mt_now_coarse_ns()
        e.priority = dead.priority
        e.priority_level = level_of(self.q, e.priority)
        try:
            if dead.extra != NULL:
                x = <Extra>dead.extra
                if x.headers is not None or x.group is not None:
                    self.add_dead_letter_extra(e, x)
            while r == MT_EMPTY:
                if not self.plain:
                    self.prepare(e, &found)
                lock_for_effects(self.q, &fx)
                fx.to_post = to_post[0]
                r = locked_put(self.q, e, &found, True, &fx)
                unlock_order(self.q)
                to_post[0] = fx.to_post
                fx.to_post = NULL
                dropped[0] = fx.dead
                fx.dead = NULL
                self.run_effects(&fx)
            if r != MT_OK:
                self.refuse_put(r)
        except BaseException:
            self.free_unadmitted(e)
            raise
        return 0

    cdef int add_dead_letter_extra(self, entry *e, Extra of) except -1:
        """Give a dead letter the headers, which are read-only, and the group of the other queue's entry."""
        cdef Extra x = Extra.__new__(Extra)
        x.headers = of.headers
        x.group = of.group
        Py_INCREF(x)
        e.extra = <void *>x
        if x.group is not None and self.q.groups != GROUPS_NONE:
            need_options(e).group = self.find_key(&self.q.group_keys, x.group)
        return 0

    # ------------------------------------------------------------------------------------------------- shared threads
    cdef int on_timer(self) except -1:
        """In the timer thread: expire, or make available, what is due. User code must not run here, because it could
        block. So only letters for a dead-letter queue that runs none are put here. Then all expired entries are left to
        the dead-letter thread. It delivers those that were not put, and drops the references to all. Coroutines are
        woken last, because that may let another thread fork: in its child each entry is in a queue or left to the
        dead-letter thread."""
        cdef effects fx
        cdef wait_node *to_post = NULL
        lock_for_effects(self.q, &fx)
        self.q.armed_for = 0
        locked_run_due_timers(self.q, mt_now_ns(), &fx)
        unlock_order(self.q)
        self.put_dead_quietly(&fx, &to_post)
        lock_order(self.q)
        while fx.dead != NULL:
            e = fx.dead
            fx.dead = e.after.dead_next
            locked_leave_to_thread(self.q, e, &fx)
        if fx.keys != NULL:
            locked_leave_keys_to_thread(self.q, &fx)
        unlock_and_run_effects(self, &fx)
        post(to_post)
        self.arm_timer()
        return 0

    cdef void put_dead_quietly(self, effects *fx, wait_node **to_post) noexcept:
        """Reverse the chain, so that the oldest is first, and put its entries into the dead-letter queue as long as no
        user code can run there."""
        cdef entry *dropped = NULL
        fx.dead = e = oldest_first(fx.dead)
        to = self.dead_letter
        if self.q.dead_letter != DEAD_LETTER_QUEUE or not isinstance(to, EntryQueue):
            return
        while e != NULL:
            if is_dead_letter(e.reason):
                if not (<EntryQueue>to).takes_quietly(e):
                    return                      # and leave those after it, to keep their order
                try:
                    (<EntryQueue>to).put_dead(e, &dropped, to_post)
                except BaseException:
                    return                      # the dead-letter thread tries again, and reports a failure
                e.reason = CLEARED              # delivered
            e = e.after.dead_next

    cdef bint takes_quietly(self, entry *e) noexcept:
        """Whether a letter can be put here without running user code: keys, comparisons, dead letters of an
        overflow."""
        if not self.plain or is_shut(self.q) or (self.q.overflow == OVERFLOW_DROP and maxsize_of(self.q) > 0):
            return False
        if self.q.groups == GROUPS_NONE or e.extra == NULL:
            return True
        cdef Extra x = <Extra>e.extra
        return x.group is None

    cdef bint run_dead_letter(self) noexcept:
        """In the dead-letter thread: deliver one entry that was left to it. False: there was none. The others stay in
        for_thread, where the child of a fork finds them."""
        lock_order(self.q)
        keys = self.q.keys_for_thread
        self.q.keys_for_thread = NULL
        e = self.q.for_thread
        if e != NULL:
            self.q.for_thread = e.after.dead_next
            if self.q.for_thread == NULL:
                self.q.for_thread_last = NULL
            e.after.dead_next = NULL
        else:
            self.q.thread_notified = False
        unlock_order(self.q)
        if keys != NULL:
            free_keys(keys)
        if e != NULL:
            self.deliver_dead_chain(e)
        return e != NULL

    cdef key_record *find_key(self, key_table *t, object key) except NULL:
        """The record of a key that is equal to this one, made if missing, with a reference for one entry. `==` runs
        without the lock, so the table is searched again after each comparison."""
        cdef key_search search
        cdef key_record *k = NULL
        cdef bint found = False
        begin_key_search(&search, hash(key), <void *>key)
        try:
            while not found:
                lock_order(self.q)
                k = next_record(t, &search, &found)
                unlock_order(self.q)
                if k == NULL:
                    raise MemoryError
                if not found and <object>k.key == key:
                    search.ntried -= 1          # its reference is the caller's
                    found = True
            return k
        finally:
            self.end_key_search(t, &search)

    cdef void end_key_search(self, key_table *t, key_search *search) noexcept:
        cdef effects fx
        cdef int64_t i
        lock_for_effects(self.q, &fx)
        for i in range(search.ntried):
            unpin_record(t, search.tried[i], &fx.keys)
        unlock_and_run_effects(self, &fx)
        free(search.tried)

    cdef void drop_all(self) noexcept:
        """For the garbage collector: drop all entries, without dead letters."""
        cdef effects fx
        cdef uint32_t i
        lock_for_effects(self.q, &fx)
        self.q.dead_letter = DEAD_LETTER_NONE
        left_to_thread = self.q.for_thread
        self.q.for_thread = self.q.for_thread_last = NULL
        for i in range(self.q.nlevels):
            while self.q.lists[i].first != NULL:
                locked_clear(self.q, self.q.lists[i].first, &fx)
        unlock_and_run_effects(self, &fx)
        free_chain(left_to_thread)
        self.dead_letter = None
        self.key = None

    # ---------------------------------------------------------------------------------------------------- subscriptions
    def subscribe(self, *, prefetch=0, selector=None, browse=False, exclusive=False, priority=0, start="oldest",
                  origin=None):
        """Create a subscription, through which you get entries.

        prefetch: how many unacked entries it may hold; 0: no limit. selector: which entries it gets. It is a function
        that gets an entry and returns a bool, or a string with a condition on the headers, in the SQL-92 subset of JMS.
        exclusive=True: no other subscription may be open. priority: an entry goes to the subscription with the highest
        priority that can take it. start="newest": only entries that are put later. origin: it does not get entries that
        were put with the same origin. browse=True: it sees each available entry once and takes none. Raises
        ExclusiveError if this or another open subscription is exclusive, ValueError for an invalid selector (with the
        position) or prefetch < 0, and TypeError for an option of the wrong type."""
        cdef int64_t credit = int_argument("prefetch", prefetch, "an int >= 0; 0 means no limit", 0)
        cdef int64_t rank = int_argument("priority", priority, "an int; bigger goes first")
        return makers.subscribe(self, credit, selector, bool(browse), bool(exclusive), rank, start, origin)

    def browse(self):
        """Iterate over all entries in order: available ones, delayed ones, and those that subscriptions hold. Entries
        that are put or removed during the iteration may or may not be seen."""
        self.run_due_timers()
        return makers.browse(self)

    # ------------------------------------------------------------------------------------------------------------ state
    def qsize(self):
        """Return the number of available entries."""
        lock_order(self.q)
        cdef int64_t n = self.q.available
        unlock_order(self.q)
        return n

    def depth(self):
        """Return the number of all entries: available, delayed, and held by subscriptions."""
        lock_order(self.q)
        cdef int64_t n = depth_of(self.q)
        unlock_order(self.q)
        return n

    def purge(self):
        """Remove all entries that no subscription holds, or that are unlocked, without sending them to `dead_letter`.
        Returns their number."""
        cdef effects fx
        lock_for_effects(self.q, &fx)
        cdef int64_t n = locked_discard_all(self.q, PURGED, True, &fx)
        unlock_and_run_effects(self, &fx)
        return n

    cdef int run_due_timers(self) except -1:
        cdef effects fx
        lock_for_effects(self.q, &fx)
        if self.q.timers.n != 0:
            locked_run_due_timers(self.q, mt_now_ns(), &fx)
        unlock_and_run_effects(self, &fx)
        return 0

    def maintain(self):
        """Remove entries whose ttl has passed, and make entries whose delay has passed available. A timer thread does
        this anyway. Expired entries may reach `dead_letter` a moment later."""
        self.run_due_timers()
        self.arm_timer()

    cdef void arm_timer(self) noexcept:
        """Request a call of on_timer() from the timer thread for the next due time, unless it has a request for an
        earlier one (armed_for). Without timers, but with a request for a far time, request one within TIMER_GRACE: else
        the thread could not end until then. The caller's put or release is done, so a failure (no memory, no thread)
        is reported, and the next call of this tries again."""
        cdef entry_queue *q = self.q
        cdef int64_t when, now
        lock_order(q)
        if q.timers.n:
            when = q.timers.items[0].key
        else:
            now = mt_now_coarse_ns()
            when = now + TIMER_GRACE if q.armed_for > now + TIMER_GRACE else 0
        if when and (q.armed_for == 0 or when < q.armed_for):
            q.armed_for = when
        else:
            when = 0
        unlock_order(q)
        if when == 0:
            return
        try:
            arm_shielded(self, when)
        except BaseException as problem:
            lock_order(q)
            q.armed_for = 0
            unlock_order(q)
            unraisable(problem, self)

    def shutdown(self, immediate=False):
        """Accept no more items: put raises ShutDown. get returns what is left and then raises ShutDown. ack, release
        and reject still work. immediate=True: entries that no subscription holds, and those that are released later, go
        to `dead_letter` or are dropped. Wakes all waiting calls."""
        cdef effects fx
        lock_for_effects(self.q, &fx)
        locked_shutdown(self.q, bool(immediate), &fx)
        unlock_and_run_effects(self, &fx)

    @property
    def is_shutdown(self):
        """True once shutdown() has been called."""
        return bool(is_shut(self.q))

    def interests(self):
        """Return a dict with the number of open subscriptions in each of the four states of Subscription.interest. It
        looks at each subscription, while it holds the queue's lock."""
        cdef int64_t[5] counts
        memset(counts, 0, sizeof(counts))
        lock_order(self.q)
        cdef subscription *s = next_open(self.q, NULL)
        while s != NULL:
            counts[locked_interest(s)] += 1
            s = next_open(self.q, s)
        unlock_order(self.q)
        return {INTERESTS[i]: counts[i] for i in range(4)}

    def stats(self):
        """Return a QueueStats: a consistent snapshot of the counters."""
        cdef entry_queue *q = self.q
        cdef int64_t available, acquired, held, subscriptions, born
        lock_order(q)
        cdef queue_counters now = q.counters
        available, acquired, held, subscriptions = q.available, q.acquired, q.held, q.nsubscriptions
        born = locked_oldest_born(q)
        unlock_order(q)
        age = None if born == 0 else max(0.0, (mt_now_ns() - born) / 1e9)
        return QueueStats(available, acquired, held, available + acquired + held, now.enqueued, now.delivered,
                          now.acked, now.released, now.expired, now.rejected, now.dropped, now.purged,
                          now.dead_lettered, now.selector_errors, now.high_water, subscriptions, age)


INTERESTS = "interested", "notified", "not_interested", "non_acquiring", "closed"     # by locked_interest()
cdef object timer, dead_letters
cdef object ZERO = 0.0         # put()'s defaults, for `is`: Cython makes equal constants of a module one object
cdef object FOUR = 4
cdef dict PUT_MANY_OPTIONS = {
    "headers": None, "priority": FOUR, "ttl": None, "delay": ZERO, "group": None, "origin": None,
}
cdef dict APUT_OPTIONS = {**PUT_MANY_OPTIONS, "immediate": False}


# --------------------------------------------------------------------------------------------------------- pending puts
@cython.final
@cython.no_gc_clear         # a cycle through it breaks at the coroutine, whose finalizer abandons the put
cdef class PendingPut(Root):
    """The put of a coroutine, which may wait for a free slot between its tries. As in put, the entry is made once."""
    cdef EntryQueue q
    cdef Entry h                # None at the end: no subscription waited for it
    cdef entry *e               # NULL during a try, and at the end
    cdef bint immediate
    cdef search_range found
    cdef selector_results v     # if immediate
    cdef wait_point p           # what the coroutine waits for

    def __dealloc__(self):
        free_results(&self.v)

    cdef int visit(self, visitproc visit, void *arg) noexcept:
        return 0 if self.e == NULL else visit_entry(self.e, visit, arg)

    cdef bint attempt(self) except -1:
        """One try. True: the put is done. False: wait for a free slot."""
        cdef EntryQueue q = self.q
        cdef entry *e = self.e
        cdef int r
        self.e = NULL       # the collector must not see its references twice: the queue may have it before this returns
        try:
            while True:
                r = q.hand_over_once(e, &self.found, &self.v, &self.p) if self.immediate \
                    else q.admit_once(e, &self.found, &self.p)
                if r == MT_OK:
                    return True
                if r == DENIED or (r == MT_FULL and q.q.overflow == OVERFLOW_BLOCK):
                    break
                if r == SLOW:
                    q.ask(&self.v, False)
                else:
                    q.before_next_try(e, &self.found, &self.p, ONCE, r)
        except BaseException:
            q.abandon_put(e, &self.p)
            raise
        self.e = e
        if r == DENIED:
            self.abandon()
            self.h = None
            return True
        self.p.woken = False        # this try has answered the notification
        return False

    cdef int abandon(self) except -1:
        """Put nothing, if it is not put."""
        cdef entry *e = self.e
        self.e = NULL
        return 0 if e == NULL else self.q.abandon_put(e, &self.p)


cdef PendingPut pending_put(EntryQueue queue, item, dict options):
    cdef PendingPut it = PendingPut.__new__(PendingPut)
    headers, priority, ttl, delay, group, origin, immediate = given_options("aput", options, APUT_OPTIONS)
    it.q = queue
    it.immediate = bool(immediate)
    free_slot_point(&it.p, queue.q, True)
    if it.immediate:
        e = queue.make_immediate(item, headers, priority, ttl, delay, group, origin, &it.found)
    else:
        e = queue.make(item, headers, priority, ttl, delay, group, origin, &it.found)
    it.h = handle_before_put(queue, e)
    it.e = e
    return it


cdef int arm_shielded(EntryQueue it, int64_t when) except -1:
    """timer.arm(). A KeyboardInterrupt in it is raised later, after the put that calls this has returned."""
    try:
        timer.arm(when, it)
    except KeyboardInterrupt:
        PyErr_SetInterrupt()
        timer.arm(when, it)
    return 0


cdef void unraisable(object problem, object where) noexcept:
    """Report an exception that cannot be raised in any caller. A KeyboardInterrupt is raised later, in the main
    thread. where: the callable that raised it, or the queue."""
    if isinstance(problem, KeyboardInterrupt):
        PyErr_SetInterrupt()
    else:
        write_unraisable(problem, where)


cdef entry_options *need_options(entry *e) except NULL:
    """The options of e, which is not linked, made if missing."""
    if e.options == NULL:
        e.options = <entry_options *>calloc(1, sizeof(entry_options))
        if e.options == NULL:
            raise MemoryError
    return e.options


cdef entry *oldest_first(entry *newest) noexcept nogil:
    """Reverse a chain by dead_next."""
    cdef entry *e = NULL
    while newest != NULL:
        following = newest.after.dead_next
        newest.after.dead_next = e
        e = newest
        newest = following
    return e


cdef void free_chain(entry *e) noexcept:
    while e != NULL:
        following = e.after.dead_next
        e.after.dead_next = NULL
        free_dead(e)
        e = following


@cython.final
cdef class Postponed:
    """An element of the stack of deliver_dead_chain(): a queue and the rest of its dead letters, to be delivered after
    those that its last one caused in another queue."""
    cdef EntryQueue queue
    cdef entry *left            # the rest, the oldest first
    cdef bint dropping          # the queue is in the set: its last dead letter came from an overflow
    cdef Postponed below


cdef Postponed enter_postponed(EntryQueue queue, entry *left, bint dropping, Postponed below, set all_dropping):
    cdef Postponed c = Postponed.__new__(Postponed)
    c.queue = queue
    c.dropping = dropping
    c.below = below
    if dropping:
        all_dropping.add(<uintptr_t><void *>queue)      # by identity: classes of users may have an `==`
    c.left = left
    return c


cdef Postponed leave_postponed(Postponed c, set all_dropping):
    if c.dropping:
        all_dropping.discard(<uintptr_t><void *>c.queue)
    return c.below


cdef inline void free_dead(entry *e) noexcept:
    """Drop the references of a dead entry, and the list's reference to it."""
    cdef PyObject *item = <PyObject *>e.item
    cdef PyObject *extra = <PyObject *>e.extra
    cdef PyObject *key = NULL
    if unlikely(e.keyed):
        key = <PyObject *>key_slot(e)[0]
        key_slot(e)[0] = NULL
    entry_drop(e)
    if key != NULL:
        Py_DECREF_raw(key)
    Py_DECREF_raw(item)
    if extra != NULL:
        Py_DECREF_raw(extra)


cdef void free_entries(entry_queue *q) noexcept:
    """Free the entries of a queue that is being freed."""
    cdef effects fx
    cdef uint32_t i
    memset(&fx, 0, sizeof(effects))
    for i in range(q.nlevels):
        while q.lists[i].first != NULL:
            e = q.lists[i].first
            locked_clear(q, e, &fx)
            fx.dead = NULL
            free_dead(e)
    free_chain(q.for_thread)
    if fx.keys != NULL:
        free_keys(fx.keys)
    if q.keys_for_thread != NULL:
        free_keys(q.keys_for_thread)


cdef void free_keys(key_record *k) noexcept:
    while k != NULL:
        following = k.next
        Py_DECREF_raw(<PyObject *>k.key)
        free(k)
        k = following


cdef bint judge(EntryQueue queue, selector, Entry h, bint listening) except -1:
    """Whether a selector wants an entry. If it raises an Exception, it does not, and the error is counted. Any other
    BaseException is raised in get; listening: there is no caller to raise it in, so it is reported and counted."""
    try:
        return bool(selector(h))
    except BaseException as problem:
        if not listening and not isinstance(problem, Exception):
            raise
        lock_order(queue.q)
        queue.q.counters.selector_errors += 1
        unlock_order(queue.q)
        if not isinstance(problem, Exception):
            unraisable(problem, selector)
        return False


cdef void free_results(selector_results *v) noexcept:
    """Drop the results, and the selectors that were not asked."""
    cdef int64_t i
    for i in range(v.asked, v.n):
        if v.items[i].selector != NULL:         # NULL: it raised
            Py_DECREF_raw(v.items[i].selector)
    drop_results(v)
    free(v.items)


cdef int append_entry(list entries, Entry h) except -1:
    """Append what a get returned, or release it: no memory."""
    try:
        entries.append(h)
    except MemoryError:
        h.release()
        raise
    return 0


cdef int release_all(list entries) except -1:
    """Release entries whose get raises, the last one first."""
    cdef Entry h
    for h in reversed(entries):
        h.release()
    return 0


# ---------------------------------------------------------------------------------------------------- garbage collector
cdef int visit_entry(entry *e, visitproc visit, void *arg) noexcept:
    cdef int r = mt_visit_one(e.item, visit, arg)
    if r == 0:
        r = mt_visit_one(e.extra, visit, arg)
    if r == 0 and e.keyed:
        r = mt_visit_one(key_slot(e)[0], visit, arg)
    return r


cdef int visit_keys(key_table *t, visitproc visit, void *arg) noexcept:
    cdef int64_t i
    cdef int r = 0
    for i in range(t.nbuckets):
        if r == 0:
            r = visit_key_chain(t.buckets[i], visit, arg)
    return r


cdef int visit_key_chain(key_record *k, visitproc visit, void *arg) noexcept:
    cdef int r = 0
    while k != NULL and r == 0:
        r = mt_visit_one(k.key, visit, arg)
        k = k.next
    return r


clear_by_breaking_cycles((EntryQueue,))         # before any subclass exists
dealloc_by_recursion = mt_dealloc_of(<PyTypeObject *>Entry)
mt_patch_dealloc(<PyTypeObject *>Entry, entry_dealloc)
mt_patch_new(<PyTypeObject *>Entry)
mt_patch_new(<PyTypeObject *>Extra)
mt_patch_new(<PyTypeObject *>PendingPut)


# --------------------------------------------------------------------------------------------- shared threads, and fork
def _on_timer(EntryQueue queue not None):
    global mt_timer_thread
    mt_timer_thread = True
    queue.on_timer()


def _run_dead_letter(EntryQueue queue not None):
    return queue.run_dead_letter()


def _report(problem, where):
    unraisable(problem, where)


dead_letters = DeadLetterThread(_run_dead_letter, _report)
timer = Timer(_on_timer, _report, dead_letters.request)


def _after_fork_in_child():
    forget_other_threads(&registry, PyThread_get_thread_ident())
    timer.begin_again()
    dead_letters.begin_again()


def _begin_in_child():
    timer.restart()
    dead_letters.restart()


at_fork(_after_fork_in_child, None, None, _begin_in_child)
