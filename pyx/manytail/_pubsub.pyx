"""PubSubQueue: every message goes once to every subscriber that was subscribed when it was published.

Algorithm and source: include/manytail/pubsub.h and docs/design/pubsub.md. This file is the Python face; waiting, waking, the slow policies
and fork are in _ps_core.pxi.

Rules of this layer
- The list has one reference to each retained message, counted before it is published; a taker gets one of its own before the cursor
  moves. Whoever trims gives the list's references up, with no lock held.
- No Python call happens under a lock, between a claim and its publish, or under a pin; Py_INCREF runs no code.
- On a build with the GIL the list is serial: the GIL is the lock (pubsub.h).
- Methods on hot paths are built-in methods (binding=False); the "clinic" format gives them a signature to inspect.
"""
cimport cython
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from libc.stdint cimport int64_t, uint32_t, uintptr_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from manytail._wait cimport (
    MT_EMPTY, MT_FULL, MT_INTERRUPTED, MT_NOMEM, MT_OK, MT_SHUTDOWN, MT_TIMEOUT,
    MT_WAITER_NOTIFIED, MT_WAITER_QUEUED, NEVER, ONCE,
    LoopWaiter, deadline_from, lock_slow, mt_lock, mt_lock_node, mt_lock_reset, mt_lock_try, mt_unlock, mt_waiter, mt_waitlist,
    mt_waitlist_keep_thread, mt_waitlist_leave, mt_waitlist_notify, mt_waitlist_notify_all, mt_waitlist_push,
    post_chain, post_lock_node, this_thread, unclosed, waiter_await_post, waiter_close, waiter_open, waiter_park,
)

import os
from operator import index
from types import GenericAlias
from typing import NamedTuple

from manytail.errors import ClosedError, Empty, Full, Lagged, ShutDown

include "_ps_structs.pxi"

cdef extern from "Python.h":
    void Py_INCREF_raw "Py_INCREF" (PyObject *) nogil
    void Py_DECREF_raw "Py_DECREF" (PyObject *) nogil      # attached callers only
    PyObject **PySequence_Fast_ITEMS(object)

include "_ps_core.pxi"

cdef object MAKER = object()
cdef dict SLOW = {"block": MT_SLOW_BLOCK, "raise": MT_SLOW_RAISE, "drop_oldest": MT_SLOW_DROP}
cdef dict STARTS = {"next": MT_START_NEXT, "oldest": MT_START_OLDEST}


class PubSubStats(NamedTuple):
    """What PubSubQueue.stats() returns; exact when nothing runs beside it.

    retained: messages that somebody still expects. published: messages ever published. slowest_lag: what the slowest subscriber has
    left behind, 0 without subscribers. dropped: messages that slow="drop_oldest" took from subscribers, summed over them."""

    retained: int
    published: int
    subscribers: int
    slowest_lag: int
    dropped: int


# ------------------------------------------------------------------------------------------------------------- arguments
cdef int64_t int_argument(str name, object value, str expected) except? -7:
    """A 64-bit integer; floats and strings are refused by name."""
    try:
        value = index(value)
    except TypeError:
        raise TypeError(f"{name}={value!r}: expected {expected}, not {type(value).__name__}") from None
    if not -(1 << 63) <= value < 1 << 63:
        raise OverflowError(f"{name}={value!r}: expected {expected} of at most 64 bits")
    return value


cdef int64_t maxsize_argument(object value) except? -7:
    return int_argument("maxsize", value, "an int (0 or less: no bound)")


cdef uint32_t slow_argument(object value) except? 99:
    if not isinstance(value, str):
        raise TypeError(f"slow={value!r}: expected 'block', 'raise' or 'drop_oldest', not {type(value).__name__}")
    if value not in SLOW:
        raise ValueError(f"slow={value!r}: expected 'block', 'raise' or 'drop_oldest'")
    return SLOW[value]


cdef int64_t start_argument(object value) except? -7:
    cdef int64_t position
    if isinstance(value, str):
        if value not in STARTS:
            raise ValueError(f"start={value!r}: expected 'next', 'oldest' or the sequence number of a retained message")
        return STARTS[value]
    position = int_argument("start", value, "'next', 'oldest' or an int")
    return position if position >= 0 else MT_START_OLDEST - 1      # is refused as a sequence number


cdef int refuse_publish(int status) except -1:
    if status == MT_INTERRUPTED:
        return -1                   # the handler's exception is set
    if status == MT_NOMEM:
        raise MemoryError
    if status == MT_SHUTDOWN:
        raise ShutDown("the queue was shut down and takes no more messages")
    raise Full


cdef object unpicklable(object what):
    return TypeError(f"cannot pickle {type(what).__name__!r} object: a queue lives in one process; make it inside the process or "
                     "task that uses it, and send the messages instead")


cdef object running_loop():
    from asyncio import get_running_loop    # here, so that users without event loops do not pay for the import
    return get_running_loop()


# ------------------------------------------------------------------------------------------------------------ PubSubQueue
@cython.trashcan(True)      # queues nested 200,000 deep are freed without recursion
@cython.no_gc_clear         # queue_clear() below breaks cycles and leaves the queue usable
cdef class PubSubQueue:
    """PubSubQueue(*, maxsize=0, slow="block")\n--\n
    Every message is processed once by every subscriber that was subscribed when it was published.

    Publishing, consuming, subscribing and unsubscribing do not block one another; a message is freed when its last expected
    subscriber is past it. Sequence numbers start at 0 and have no gaps; they are the one order that every subscriber sees.

    maxsize bounds what the slowest subscriber may leave behind (<= 0: no bound). slow says what happens at the bound:
        "block": the publisher waits.
        "raise": the publisher gets Full at once, whatever `block` says.
        "drop_oldest": the slowest subscriber is moved past the oldest message; its next get raises Lagged once, before anything
        else is taken, with all that it missed since the last. Others lose nothing.

    Cost: publish O(1), plus a look at each subscriber that waits; get O(1), plus a look at all subscribers now and then; without
    subscribers a message costs next to nothing and is not kept. subscribe and close O(1) but for what close lets go of; subscribe looks at all
    subscribers once if it is to begin at an old message.
    Progress: lock-free without the GIL, but for waiting at the bound, and for "drop_oldest", where a publisher at the bound takes turns
    with others there, with shutdown, and with the takers of the subscriber that it moves. Threads that share a subscriber take turns,
    and threads that subscribe.
    Source: disclosure IPCOM000185635D, completed as docs/design/pubsub.md says.

    >>> q = PubSubQueue()
    >>> with q.subscribe() as audit, q.subscribe() as mail:
    ...     q.publish("order 7"), q.publish("order 8")
    ...     audit.get(), mail.get_many(10), audit.lag
    (0, 1)
    ('order 7', ['order 7', 'order 8'], 1)
    """
    cdef mt_pubsub *q
    cdef object traversed       # makes this a type that the collector looks at
    cdef object __weakref__

    def __cinit__(self, *args, **options):
        self.q = <mt_pubsub *>mt_alloc_aligned(sizeof(mt_pubsub))
        if self.q == NULL or mt_pubsub_init(self.q, not MT_FREE_THREADED, 0, MT_SLOW_BLOCK) != MT_OK:
            raise MemoryError
        register(self.q)

    def __init__(self, *, maxsize=0, slow="block"):
        cdef int64_t bound = maxsize_argument(maxsize)
        cdef uint32_t policy = slow_argument(slow)
        # relaxed because: only who finds 0 goes on
        if mt_fetch_add_relaxed_u32(&self.q.begun, 1) or position_of(self.q) or mt_pubsub_records(self.q) != NULL:
            raise RuntimeError(f"{type(self).__name__}.__init__ was called again, or on a queue that is in use")
        mt_store_relaxed_i64(&self.q.maxsize, bound)    # relaxed because: nobody else has it yet
        self.q.slow = policy

    def __dealloc__(self):
        if self.q == NULL:
            return
        if mt_load_relaxed_uptr(&self.q.oldest) != 0:   # relaxed because: nobody else has it any more
            unregister(self.q)
            trim(self.q)                # subscribers keep the queue, so there is none: everything goes
            mt_pubsub_end(self.q)
        mt_free_aligned(self.q)

    __class_getitem__ = classmethod(GenericAlias)

    def __reduce__(self):
        raise unpicklable(self)

    def __repr__(self):
        now = PubSubQueue.stats(self)       # not what a subclass has made of it
        shut = ", shut down" if self.is_shutdown else ""
        return f"<{type(self).__name__} of {now.subscribers} subscribers, {now.retained} messages retained{shut}>"

    # --------------------------------------------------------------------------------------------------------- publishing
    @cython.binding(False)
    @cython.embedsignature.format("clinic")
    def publish(self, item, block=True, timeout=None):
        """Publish one message and return its sequence number.

        timeout: seconds for the whole call; None waits for ever. block=False does not wait and ignores timeout.
        Full: the slowest subscriber is at the bound and no room came in time. ShutDown: the queue was shut down; also while
        waiting. ValueError: timeout is negative or NaN. Nothing is published when it raises."""
        cdef int64_t position = 0
        if timeout is None and likely(publish_once(self.q, <PyObject *>item, &position) == MT_OK):
            return position
        return self.publish_slow(item, deadline_from(block, timeout))

    cdef int64_t publish_slow(self, object item, int64_t deadline) except -1:
        cdef int64_t position = 0
        cdef int r
        while True:
            r = publish_once(self.q, <PyObject *>item, &position)
            if r == MT_FULL and self.q.slow == MT_SLOW_DROP:
                r = publish_over_oldest(self.q, <PyObject *>item, &position)
            if r == MT_OK:
                return position
            if r == MT_FULL:
                r = self.make_room(deadline)
            elif r == MT_NOMEM:
                pass_on_to_putter(self.q)       # whoever was woken for this place does not use it
            if r != MT_OK:
                refuse_publish(r)

    cdef int make_room(self, int64_t deadline) noexcept:
        """At the bound: wait for room, or refuse. MT_OK: try again."""
        return wait_for_room(self.q, ONCE if self.q.slow == MT_SLOW_RAISE else deadline)

    @cython.binding(False)
    @cython.embedsignature.format("clinic")
    def publish_many(self, items, block=True, timeout=None):
        """Publish all items of an iterable in order and return how many that were.

        Lists and tuples are linked as one chain where the bound allows, so that their sequence numbers follow one another and
        subscribers see them at once; of another iterable at most one item is pulled beyond those published. timeout is for the
        whole call. On Full, ShutDown or KeyboardInterrupt the exception's `count` says how many were published; those stay
        so. An exception of the iterable passes through; what came before it is published."""
        cdef int64_t deadline = deadline_from(block, timeout), count = 0
        try:
            if isinstance(items, (list, tuple)):
                self.publish_sequence(tuple(items), deadline, &count)   # a tuple: nobody changes it half way
            else:
                for item in items:
                    self.publish_slow(item, deadline)
                    count += 1
        except (Full, ShutDown, KeyboardInterrupt) as error:
            error.count = count
            raise
        return count

    cdef int publish_sequence(self, tuple items, int64_t deadline, int64_t *count) except -1:
        cdef int64_t n = len(items), done = 0
        cdef int r
        while count[0] < n:
            r = publish_run_once(self.q, PySequence_Fast_ITEMS(items) + count[0], n - count[0], &done)
            count[0] += done
            if r == MT_FULL and self.q.slow == MT_SLOW_DROP:
                r = publish_run_over_oldest(self.q, PySequence_Fast_ITEMS(items) + count[0], n - count[0], &done)
                count[0] += done
                if r == MT_FULL:
                    continue
            elif r == MT_FULL:
                r = self.make_room(deadline)
            elif r == MT_NOMEM:
                pass_on_to_putter(self.q)
            if r != MT_OK:
                refuse_publish(r)
        return 0

    async def apublish(self, item):
        """publish for coroutines, on any event loop. Cancelling it before it returned publishes nothing."""
        while True:
            try:
                return self.publish(item, False)
            except Full:
                if self._raises():
                    raise
                await self._until_room()

    def _raises(self):
        return self.q.slow == MT_SLOW_RAISE

    async def _until_room(self):
        waiter = LoopWaiter(running_loop(), self._pass_on)
        if not self._enrol(waiter):
            return
        try:
            await waiter.future
        except BaseException:
            self._withdraw(waiter)
            raise

    def _pass_on(self):
        pass_on_to_putter(self.q)

    def _enrol(self, LoopWaiter waiter not None):
        """Queue a coroutine unless there is room (or an end) by now."""
        lock_room(self.q)
        Py_INCREF(waiter)
        mt_waitlist_push(&self.q.putters, &waiter.w)
        room_locked_count(self.q)
        unlock_room(self.q)
        if room_status(self.q) == MT_FULL:
            return True
        self._withdraw(waiter)
        return False

    def _withdraw(self, LoopWaiter waiter not None):
        cdef uint32_t was
        lock_room(self.q)
        was = mt_waitlist_leave(&self.q.putters, &waiter.w)
        room_locked_count(self.q)
        unlock_room(self.q)
        if was == MT_WAITER_QUEUED:
            Py_DECREF(waiter)
        elif was == MT_WAITER_NOTIFIED:
            pass_on_to_putter(self.q)

    # -------------------------------------------------------------------------------------------------------- subscribing
    def subscribe(self, *, start="next"):
        """A new subscriber. Close it, or use it in a `with` block.

        start: "next" begins with what is published from now on, "oldest" with the oldest message that somebody still expects, n with
        that sequence number. ValueError: n is neither retained nor the next one. After shutdown it finds what is retained."""
        return Subscriber.__new__(Subscriber, MAKER, self, start_argument(start), start)

    @property
    def subscribers(self):
        """How many are subscribed."""
        return mt_load_seq_cst_u32(&self.q.nsubs)       # pairs with: mt_fetch_add_seq_cst in mt_pubsub_join, mt_subscriber_leave

    # -------------------------------------------------------------------------------------------------------------- state
    @property
    def maxsize(self):
        """What the slowest subscriber may leave behind; 0 or less: no bound. Raising it wakes publishers, lowering it keeps messages."""
        return mt_load_relaxed_i64(&self.q.maxsize)     # relaxed because: a figure

    @maxsize.setter
    def maxsize(self, value):
        mt_store_relaxed_i64(&self.q.maxsize, maxsize_argument(value))  # relaxed because: the lock taken next orders it
        wake_putters(self.q, True)

    @cython.binding(False)
    @cython.embedsignature.format("clinic")
    def qsize(self):
        """Messages that somebody still expects. Exact when nothing runs beside it."""
        return retained(self.q, position_of(self.q))

    def shutdown(self, immediate=False):
        """No more messages: publish raises ShutDown; subscribers drain, then get ShutDown. immediate=True gives up what they have not taken
        yet. Wakes everybody."""
        shut_down(self.q, bool(immediate))

    @property
    def is_shutdown(self):
        """True from the first shutdown() on."""
        return is_shut(self.q)

    def stats(self):
        """PubSubStats: what is retained, was published, who is subscribed, how far the slowest is behind, what was dropped."""
        cdef int64_t end = position_of(self.q), kept = retained(self.q, end)
        dropped = mt_load_relaxed_i64(&self.q.dropped)  # relaxed because: a figure
        return PubSubStats(kept, end, self.subscribers, kept, dropped)


# -------------------------------------------------------------------------------------------------------------- Subscriber
@cython.final
@cython.trashcan(True)      # it may be a message itself
@cython.no_gc_clear         # its queue is cleared instead; it stays usable for finalizers
cdef class Subscriber:
    """Subscriber(*args, **options)\n--\n
    One reader of a PubSubQueue. Made by PubSubQueue.subscribe only.

    Threads sharing a Subscriber share its messages, each to one of them. close() gives up the rest at once. A subscriber that is
    collected unclosed closes itself, with a ResourceWarning.
    Progress: as the queue's."""
    cdef PubSubQueue queue
    cdef mt_subscriber *s
    cdef object __weakref__

    def __cinit__(self, maker=None, queue=None, int64_t start=0, asked=None):
        cdef mt_pubsub *q
        cdef mt_subscriber *s
        cdef int r
        if maker is not MAKER:
            raise TypeError("Subscriber cannot be made by itself: PubSubQueue.subscribe() makes them")
        self.queue = queue
        q = self.queue.q
        s = mt_pubsub_new_record(q)
        if s == NULL:
            raise MemoryError
        r = join(q, s, start)
        self.s = s
        if r == MT_NOMEM:
            raise MemoryError
        if r != MT_OK:
            raise ValueError(f"start={asked!r}: expected a retained message or the next one, {mt_pubsub_trimmed(q)} to {position_of(q)}")

    def __init__(self, *args, **options):
        raise RuntimeError("Subscriber.__init__ was called on a subscriber that is in use")

    def __dealloc__(self):
        cdef mt_subscriber *s = self.s
        cdef int64_t at, behind
        cdef bint closed
        if s == NULL:
            return
        self.s = NULL
        closed = s.closed
        at = mt_subscriber_at(s)
        behind = position_of(self.queue.q) - at
        close_subscriber(self.queue.q, s)
        mt_pubsub_free_record(s)
        if not closed:              # not in __del__, which would recurse where subscribers are nested in messages
            warn_unclosed(at, behind)

    __class_getitem__ = classmethod(GenericAlias)

    def __reduce__(self):
        raise unpicklable(self)

    def __repr__(self):
        if self.closed:
            return f"<Subscriber at {self.position}, closed>"
        return f"<Subscriber at {self.position}, {self.lag} behind>"

    # --------------------------------------------------------------------------------------------------------------- get
    cdef int refuse(self, int status) except -1:
        """Raise what a get that has nothing to return says."""
        cdef int64_t missed
        if status == MT_INTERRUPTED:
            return -1               # the handler's exception is set
        if status == MT_NOMEM:
            raise MemoryError
        if status == MT_CLOSED:
            raise ClosedError("the subscriber was closed; PubSubQueue.subscribe() makes a new one")
        if status == MT_SHUTDOWN:
            raise ShutDown("the queue was shut down and nothing is left to get")
        if status == MT_LAGGED:
            missed = self.take_missed()
            if missed:
                raise Lagged(missed)
            return 0                # another thread has told it: go on
        raise Empty

    cdef int64_t take_missed(self) noexcept:
        cdef int64_t missed
        lock_subscriber(self.queue.q, self.s)
        missed = self.s.missed
        self.s.missed = 0
        unlock_subscriber(self.queue.q, self.s)
        return missed

    cdef inline int take(self, uintptr_t *item) noexcept:
        """One try."""
        cdef mt_pubsub *q = self.queue.q
        cdef mt_subscriber *s = self.s
        cdef mt_waiter *wake = NULL
        cdef int64_t at
        cdef int r, again = 0
        cdef bint sole
        if q.serial and mt_subscriber_take_alone(q, s, item):
            return MT_OK
        lock_subscriber(q, s)
        at = mt_subscriber_at(s)
        sole = not q.serial and mt_subscriber_take_sole(q, s, item, &again)
        r = MT_OK if sole else mt_subscriber_take(q, s, item)
        if likely(r == MT_OK):
            locked_cascade(q, s, &wake)
        unlock_subscriber(q, s)
        if unlikely(wake != NULL):
            post_chain(wake)
        if sole:
            room_made(q)
        if again or (r == MT_OK and not sole and mt_pubsub_may_trim(q, s, at)):
            trim(q)
        return r

    @cython.binding(False)
    @cython.embedsignature.format("clinic")
    def get(self, block=True, timeout=None):
        """Take the next message, waiting for one if need be.

        timeout: seconds for the whole call; None waits for ever. block=False does not wait and ignores timeout.
        Empty: nothing came in time. ShutDown: shut down and drained. ClosedError: the subscriber was closed. Lagged: messages
        were dropped, once; the next call goes on. ValueError: timeout is negative or NaN."""
        cdef uintptr_t item = 0
        if timeout is None and likely(self.take(&item) == MT_OK):
            return mt_owned_item(item)
        return self.get_slow(deadline_from(block, timeout))

    cdef object get_slow(self, int64_t deadline):
        cdef uintptr_t item = 0
        cdef int r
        while True:
            r = self.take(&item)
            if r == MT_OK:
                return mt_owned_item(item)
            if r == MT_EMPTY:
                r = wait_for_message(self.queue.q, self.s, deadline)
            if r != MT_OK:
                self.refuse(r)

    @cython.binding(False)
    @cython.embedsignature.format("clinic")
    def get_many(self, max_items, block=True, timeout=None):
        """A list of up to max_items messages in order: waits for the first as get does, then takes what is there. max_items <= 0: []
        at once. Raises what get raises, before anything is taken."""
        cdef int64_t n = int_argument("max_items", max_items, "an int"), deadline
        cdef list out
        cdef int r = MT_OK
        if n <= 0:
            return []
        deadline = deadline_from(block, timeout)
        while True:
            out = self.take_many(n, &r)
            if r == MT_OK:
                return out
            if r == MT_EMPTY:
                r = wait_for_message(self.queue.q, self.s, deadline)
            if r != MT_OK:
                self.refuse(r)

    cdef list take_many(self, int64_t n, int *status):
        """Up to n messages that are there; *status says why there are none."""
        cdef mt_pubsub *q = self.queue.q
        cdef mt_subscriber *s = self.s
        cdef mt_waiter *wake = NULL
        cdef int64_t at, got = 0
        cdef list out
        lock_subscriber(q, s)
        status[0] = self.locked_status()
        n = mt_subscriber_available(q, s, n) if status[0] == MT_OK else 0
        unlock_subscriber(q, s)
        if status[0] != MT_OK:
            return None
        # The list is made before the messages are taken: between that and the return nothing can fail.
        try:
            out = mt_list_reserve(n)
        except BaseException:
            pass_on_to_getter(q, s)             # whoever was woken for these messages does not take them
            raise
        lock_subscriber(q, s)
        status[0] = self.locked_status()
        at = mt_subscriber_at(s)
        if status[0] == MT_OK:
            got = mt_subscriber_take_many(q, s, mt_list_slots(<PyObject *>out), n)
            mt_list_filled(<PyObject *>out, got)
            locked_cascade(q, s, &wake)
        unlock_subscriber(q, s)
        post_chain(wake)
        if got and mt_pubsub_may_trim(q, s, at):
            trim(q)
        return out

    cdef int locked_status(self) noexcept:
        return MT_LAGGED if self.s.missed and not self.s.closed else mt_subscriber_ready(self.queue.q, self.s)

    async def aget(self):
        """get for coroutines, on any event loop. Cancelling it loses no message and passes its wake-up on."""
        while True:
            try:
                return self.get(False)
            except Empty:
                await self._until_ready()

    async def _until_ready(self):
        waiter = LoopWaiter(running_loop(), self._pass_on)
        if not self._enrol(waiter):
            return
        try:
            await waiter.future
        except BaseException:
            self._withdraw(waiter)
            raise

    def _pass_on(self):
        pass_on_to_getter(self.queue.q, self.s)

    def _enrol(self, LoopWaiter waiter not None):
        """Queue a coroutine unless something (or an end) is there already."""
        cdef mt_pubsub *q = self.queue.q
        cdef mt_subscriber *s = self.s
        cdef bint wait
        lock_subscriber(q, s)
        mt_waitlist_push(&s.getters, &waiter.w)
        locked_count_waiting(q, s)
        wait = mt_subscriber_ready(q, s) == MT_EMPTY
        if wait:
            Py_INCREF(waiter)
        else:
            mt_waitlist_leave(&s.getters, &waiter.w)
            locked_count_waiting(q, s)
        unlock_subscriber(q, s)
        return wait

    def _withdraw(self, LoopWaiter waiter not None):
        cdef uint32_t was
        lock_subscriber(self.queue.q, self.s)
        was = mt_waitlist_leave(&self.s.getters, &waiter.w)
        locked_count_waiting(self.queue.q, self.s)
        unlock_subscriber(self.queue.q, self.s)
        if was == MT_WAITER_QUEUED:
            Py_DECREF(waiter)
        elif was == MT_WAITER_NOTIFIED:
            pass_on_to_getter(self.queue.q, self.s)

    def __iter__(self):
        """Messages as get returns them; ends where get would raise ShutDown or ClosedError. Lagged passes through, and iterating may go on
        after it."""
        return MessageIterator.__new__(MessageIterator, self)

    def __aiter__(self):
        """The same for coroutines."""
        return AsyncMessages(self)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    # ------------------------------------------------------------------------------------------------------------- state
    @property
    def position(self):
        """Sequence number of the message that its next get returns. After close: that it would have returned."""
        cdef int64_t position
        lock_subscriber(self.queue.q, self.s)
        position = self.s.left_at if self.s.closed else mt_subscriber_at(self.s)
        unlock_subscriber(self.queue.q, self.s)
        return position

    @property
    def lag(self):
        """Messages published for it and not yet taken, missed ones excluded. 0 once it was closed."""
        cdef int64_t lag = 0
        lock_subscriber(self.queue.q, self.s)
        if not self.s.closed:
            lag = position_of(self.queue.q) - mt_subscriber_at(self.s)
        unlock_subscriber(self.queue.q, self.s)
        return lag

    @property
    def closed(self):
        """True once close() was called."""
        cdef bint closed
        lock_subscriber(self.queue.q, self.s)
        closed = self.s.closed
        unlock_subscriber(self.queue.q, self.s)
        return closed

    def close(self):
        """Unsubscribe and give up the rest at once; waiting and later gets raise ClosedError. Idempotent."""
        close_subscriber(self.queue.q, self.s)


cdef void warn_unclosed(int64_t at, int64_t behind) noexcept:
    unclosed(f"unclosed <Subscriber at {at}, {behind} behind>")


@cython.final
@cython.no_gc_clear         # its subscriber stays usable for finalizers; a cycle breaks at the messages
cdef class MessageIterator:
    """What iterating over a Subscriber returns; several threads may share one."""
    cdef Subscriber subscriber

    def __cinit__(self, Subscriber subscriber not None):
        self.subscriber = subscriber

    def __iter__(self):
        return self

    def __next__(self):
        try:
            return self.subscriber.get_slow(NEVER)
        except (ShutDown, ClosedError):
            raise StopIteration from None


class AsyncMessages:
    """What asynchronous iteration over a Subscriber returns."""

    __slots__ = ("_subscriber",)

    def __init__(self, subscriber):
        self._subscriber = subscriber

    def __aiter__(self):
        return self

    async def __anext__(self):
        try:
            return await self._subscriber.aget()
        except (ShutDown, ClosedError):
            raise StopAsyncIteration from None


# ------------------------------------------------------------------------------------------------------ garbage collection
# What C memory holds is shown to the collector: the messages, and the coroutines that wait (their tasks may lead back to the queue).
cdef traverseproc base_queue_traverse, base_subscriber_traverse


cdef int visit_messages(mt_pubsub *q, visitproc visit, void *arg) noexcept:
    """The world stands still, or the GIL is held: nobody changes the list."""
    cdef mt_pchunk *c = <mt_pchunk *>mt_load_relaxed_uptr(&q.oldest)    # relaxed because: as above
    cdef int64_t position = q.released
    cdef uintptr_t item
    cdef int r
    while c != NULL:
        while position < c.base + c.cap:
            item = mt_pchunk_get(c, <uint32_t>(position - c.base))
            if item <= MT_SLOT_SEAL:
                break
            r = visit(<PyObject *>item, arg)
            if r:
                return r
            position += 1
        c = mt_pchunk_next(c)
    return 0


cdef int queue_traverse(PyObject *self, visitproc visit, void *arg) noexcept:
    cdef mt_pubsub *q = (<PubSubQueue>self).q
    cdef int r = base_queue_traverse(self, visit, arg)
    if r == 0 and q != NULL and mt_load_relaxed_uptr(&q.oldest) != 0:   # relaxed because: the world stands still
        r = mt_visit_waiters(&q.putters, visit, arg)
        if r == 0:
            r = visit_messages(q, visit, arg)
    return r


cdef int queue_clear(PyObject *self) noexcept:
    if (<PubSubQueue>self).q != NULL:
        give_up_all((<PubSubQueue>self).q)
    return 0


cdef int subscriber_traverse(PyObject *self, visitproc visit, void *arg) noexcept:
    cdef mt_subscriber *s = (<Subscriber>self).s
    cdef int r = base_subscriber_traverse(self, visit, arg)
    return r if r or s == NULL else mt_visit_waiters(&s.getters, visit, arg)


base_queue_traverse = mt_traverse_of(<PyTypeObject *>PubSubQueue)
mt_patch_gc(<PyTypeObject *>PubSubQueue, queue_traverse, queue_clear)
base_subscriber_traverse = mt_traverse_of(<PyTypeObject *>Subscriber)
mt_patch_gc(<PyTypeObject *>Subscriber, subscriber_traverse, mt_clear_of(<PyTypeObject *>Subscriber))


# -------------------------------------------------------------------------------------------------------------------- fork
def _after_fork_in_child():
    forget_other_threads(this_thread())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
