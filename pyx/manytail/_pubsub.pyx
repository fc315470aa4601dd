"""PubSubQueue: every message goes once to every subscriber that was subscribed when it was published.

The algorithm is _ps.pxd; docs/design/pubsub.md has its source and its proof. This file is the Python face, and what
runs user code: giving references up.

Rules of this layer
- The list has one reference to each retained message, counted before it is published. A taker gets one of its own
  before its next_seq moves. Whoever trims gives the list's references up, with no lock held.
- No Python call happens under a lock, between a claim and its publish, or under a pin; Py_INCREF runs no code.
- Methods on hot paths are built-in methods (binding=False); the "clinic" format gives them a signature to inspect.
"""
cimport cython
cimport manytail._ps as ps
from cpython.ref cimport PyObject
from libc.stdint cimport int64_t, uint32_t, uintptr_t
from libc.stdlib cimport free, malloc

from manytail._c cimport (
    MT_EMPTY, MT_FREE_THREADED, MT_FULL, MT_INTERRUPTED, MT_NOMEM, MT_OK, MT_SHUTDOWN, MT_TIMEOUT,
    PyThread_get_thread_ident, likely, mt_fetch_add_acq_rel_u32, mt_fetch_add_relaxed_u32, mt_load_relaxed_i64,
    mt_load_relaxed_uptr, mt_load_seq_cst_u32, mt_store_relaxed_i64, unlikely,
)
from manytail._cpython cimport (
    Py_DECREF_raw, Py_INCREF_raw, PySequence_Fast_ITEMS, PyTypeObject, mt_clear_of, mt_list_filled,
    mt_list_reserve_by, mt_list_slots, mt_owned_item, mt_patch_gc, mt_traverse_of, traverseproc, visitproc,
)
from manytail._runtime cimport int_argument, tell_of_forks, unclosed, unpicklable
from manytail._waiting cimport (
    NEVER, ONCE, WAIT, Waiting, again, deadline_from, linger_from, look, new_waiting, post, sooner, trio_checkpoint,
    visit_tasks, wait_node, wait_point,
)

from types import GenericAlias
from typing import NamedTuple

from manytail.errors import ClosedError, Empty, Full, Lagged, ShutDown

cdef object MAKER = object()
cdef str WHY_NO_COPY = (
    "a queue lives in one process; make it inside the process or task that uses it, and send the messages instead"
)
cdef dict SLOW = {"block": ps.SLOW_BLOCK, "raise": ps.SLOW_RAISE, "drop_oldest": ps.SLOW_DROP}
cdef dict STARTS = {"next": ps.START_NEXT, "oldest": ps.START_OLDEST}


class PubSubStats(NamedTuple):
    """What PubSubQueue.stats() returns; exact when nothing runs beside it.

    retained: messages that somebody still expects. published: messages ever published. slowest_lag: what the slowest
    subscriber has before it, 0 without subscribers. dropped: messages that slow="drop_oldest" took from subscribers,
    summed over them."""

    retained: int
    published: int
    subscribers: int
    slowest_lag: int
    dropped: int


# ------------------------------------------------------------------------------------------------------------ arguments
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
    return position if position >= 0 else ps.START_OLDEST - 1      # is refused as a sequence number


cdef int refuse_publish(int status) except -1:
    if status == MT_INTERRUPTED:
        return -1                   # the handler's exception is set
    if status == MT_NOMEM:
        raise MemoryError
    if status == MT_SHUTDOWN:
        raise ShutDown("the queue was shut down and takes no more messages")
    raise Full


# ------------------------------------------------------------------------------------------------------------- trimming
# A message may be the last to hold a subscriber with messages of its own, and so on: trims nest. Beyond a depth the
# references are kept for the outermost trim of the thread, so that deep nests do not overflow the stack (the
# interpreter's own trashcan allows 10,000 levels).
ctypedef struct batch:
    batch *next
    ps.freed f

cdef extern from *:
    """
    static MT_THREAD_LOCAL void *mt_postponed;
    static MT_THREAD_LOCAL int mt_nested_trims;
    """
    void *mt_postponed          # batches, for the outermost trim of the thread
    int mt_nested_trims

cdef enum:
    NESTED_TRIMS = 30


cdef void trim(ps.pubsub *q) noexcept:
    """Free what nobody expects any longer, and give its references up with nothing held."""
    global mt_nested_trims
    cdef ps.freed f
    f.incomplete = True
    while f.incomplete:
        ps.trim(q, &f)
        if f.low_moved:
            ps.wake_publisher(q)
        if f.n == 0 or (mt_nested_trims >= NESTED_TRIMS and postpone(&f)):
            continue
        mt_nested_trims += 1
        give_up(&f)
        mt_nested_trims -= 1
    if mt_nested_trims == 0 and unlikely(mt_postponed != NULL):
        give_up_postponed()


cdef void give_up(ps.freed *f) noexcept:
    cdef uint32_t i
    for i in range(f.n):
        Py_DECREF_raw(<PyObject *>f.items[i])


cdef bint postpone(ps.freed *f) noexcept:
    """False: no memory, so they are given up at once."""
    global mt_postponed
    cdef batch *b = <batch *>malloc(sizeof(batch))
    if b == NULL:
        return False
    b.f = f[0]
    b.next = <batch *>mt_postponed
    mt_postponed = b
    return True


cdef void give_up_postponed() noexcept:
    global mt_postponed, mt_nested_trims
    cdef batch *b
    mt_nested_trims += 1
    while mt_postponed != NULL:
        b = <batch *>mt_postponed
        mt_postponed = b.next
        give_up(&b.f)
        free(b)
    mt_nested_trims -= 1


# ----------------------------------------------------------------------------------------------------------- publishing
cdef inline int put_in(ps.pubsub *q, PyObject *item, int64_t *seq) noexcept:
    """One try. MT_OK: the caller goes on with after_publish."""
    cdef int r
    Py_INCREF_raw(item)
    r = ps.publish(q, <uintptr_t>item, seq)
    if unlikely(r != MT_OK):
        Py_DECREF_raw(item)             # the caller has one, too: nothing is freed here
    return r


cdef inline void after_publish(ps.pubsub *q) noexcept:
    ps.wake_getters(q)
    if unlikely(ps.no_subscriber(q)):
        trim(q)
    if mt_load_relaxed_i64(&q.maxsize) > 0:     # relaxed because: only whether a publisher can be waiting
        ps.forward_not_full(q)                  # one free slot may have become several


cdef inline int publish_once(ps.pubsub *q, PyObject *item, int64_t *seq) noexcept:
    """One try."""
    cdef int r = put_in(q, item, seq)
    if likely(r == MT_OK):
        after_publish(q)
    elif r == ps.UNRETAINED:
        r = after_unretained(q)
    return r


cdef inline int after_unretained(ps.pubsub *q) noexcept:
    """The slot that its publisher may have been notified of is still free: for the next one."""
    if unlikely(mt_load_relaxed_i64(&q.maxsize) > 0):   # relaxed because: only whether a publisher can be waiting
        ps.forward_not_full(q)
    return MT_OK


cdef int put_run_in(ps.pubsub *q, PyObject **items, int64_t n, int64_t *done) noexcept:
    """One try with n items in one run; MT_FULL: *done of them went in. If any did, the caller goes on with
    after_publish."""
    cdef int64_t kept = 0, i
    cdef int r = ps.publish_run(q, <uintptr_t *>items, n, done, &kept)
    for i in range(done[0], kept):
        Py_DECREF_raw(items[i])         # the caller has one, too
    return r


cdef int publish_run_once(ps.pubsub *q, PyObject **items, int64_t n, int64_t *done) noexcept:
    """One try."""
    cdef int r = put_run_in(q, items, n, done)
    if done[0]:
        after_publish(q)
    return r


# slow="drop_oldest", at the bound. The lock keeps the end of the list away from the drop to the message that it is for:
# nothing is dropped for a message that does not come. Takers, and publishers that find a free slot, do not notice it.
cdef int publish_over_oldest(ps.pubsub *q, PyObject *item, int64_t *seq) noexcept:
    """The message goes in, whoever is in the way. Not MT_FULL."""
    cdef int r
    ps.lock_bound(q)
    r = put_in(q, item, seq)
    while r == MT_FULL:
        ps.bound_locked_make_free_slots(q, 1)
        r = put_in(q, item, seq)        # MT_FULL again: others used the free slot
    ps.unlock_bound(q)
    trim(q)
    if r == MT_OK:
        after_publish(q)
    elif r == ps.UNRETAINED:
        r = after_unretained(q)
    return r


cdef int publish_run_over_oldest(ps.pubsub *q, PyObject **items, int64_t n, int64_t *done) noexcept:
    """As many as the bound allows, one at least; MT_FULL: there are more."""
    cdef int r
    ps.lock_bound(q)
    r = put_run_in(q, items, n, done)
    while r == MT_FULL and done[0] == 0:
        ps.bound_locked_make_free_slots(q, n)
        r = put_run_in(q, items, n, done)
    ps.unlock_bound(q)
    trim(q)
    if done[0]:
        after_publish(q)
    return r


cdef void drop_list(ps.pubsub *q) noexcept:
    """Its PubSubQueue, or a Subscriber, is gone; with the last of them nobody expects anything."""
    # pairs with: itself: who frees the list sees what the others did
    if mt_fetch_add_acq_rel_u32(&q.refs, <uint32_t>-1) == 1:
        trim(q)
        ps.free_pubsub(q)


# ---------------------------------------------------------------------------------------------------------- PubSubQueue
@cython.trashcan(True)      # queues nested 200,000 deep are freed without recursion
@cython.no_gc_clear         # queue_clear() below breaks cycles and leaves the queue usable
cdef class PubSubQueue:
    """PubSubQueue(*, maxsize=0, slow="block")\n--\n
    Every message is processed once by every subscriber that was subscribed when it was published.

    Publishing, consuming, subscribing and unsubscribing do not block one another. A message is freed when its last
    expected subscriber is past it. Sequence numbers start at 0 and have no gaps; every subscriber sees this one order.

    maxsize bounds how many messages the slowest subscriber may have before it (<= 0: no bound). slow says what happens
    at the bound:
        "block": the publisher waits.
        "raise": the publisher gets Full at once, whatever `block` says.
        "drop_oldest": the slowest subscriber is moved past the oldest message; its next get raises Lagged once, before
        anything else is taken, with all that it missed since the last. Others lose nothing.

    Cost: publish O(1), plus a look at each subscriber that waits; get O(1), plus a look at the others by who may be the
    slowest. Without subscribers a message costs next to nothing and is not kept. subscribe is O(1), and looks at all
    subscribers once if it begins at an old message. close is O(1), plus what it frees.
    Progress: lock-free without the GIL, but for waiting at the bound, and for "drop_oldest", where a publisher at the
    bound waits for others there, for shutdown, and for the takers of the subscriber that it moves. Threads that share a
    subscriber exclude one another, and so do threads that subscribe.
    Source: disclosure IPCOM000185635D, completed as docs/design/pubsub.md says.

    >>> q = PubSubQueue()
    >>> with q.subscribe() as audit, q.subscribe() as mail:
    ...     q.publish("order 7"), q.publish("order 8")
    ...     audit.get(), mail.get_many(10), audit.lag
    (0, 1)
    ('order 7', ['order 7', 'order 8'], 1)
    """
    cdef ps.pubsub *q
    cdef object traversed       # makes this a type that the collector looks at
    cdef object __weakref__

    def __cinit__(self, *args, **options):
        self.q = ps.new_pubsub()
        if self.q == NULL:
            raise MemoryError
        tell_of_forks(self)

    def __init__(self, *, maxsize=0, slow="block"):
        cdef int64_t bound = maxsize_argument(maxsize)
        cdef uint32_t policy = slow_argument(slow)
        # relaxed because: only who finds 0 goes on
        if mt_fetch_add_relaxed_u32(&self.q.begun, 1) or ps.end_seq(self.q) or ps.first_record(self.q) != NULL:
            raise RuntimeError(f"{type(self).__name__}.__init__ was called again, or on a queue that is in use")
        mt_store_relaxed_i64(&self.q.maxsize, bound)    # relaxed because: nobody else has it yet
        self.q.slow = policy

    def __dealloc__(self):
        if self.q != NULL:
            drop_list(self.q)

    __class_getitem__ = classmethod(GenericAlias)

    def __reduce__(self):
        raise unpicklable(self, WHY_NO_COPY)

    def __repr__(self):
        now = PubSubQueue.stats(self)       # not what a subclass has made of it
        shut = ", shut down" if self.is_shutdown else ""
        return f"<{type(self).__name__} of {now.subscribers} subscribers, {now.retained} messages retained{shut}>"

    # ------------------------------------------------------------------------------------------------------- publishing
    @cython.binding(False)
    @cython.embedsignature.format("clinic")
    def publish(self, item, block=True, timeout=None):
        """Publish one message and return its sequence number.

        timeout: seconds for the whole call; None waits for ever. block=False does not wait and ignores timeout.
        Full: the slowest subscriber is at the bound and no slot came free in time. ShutDown: the queue was shut down;
        also while waiting. ValueError: timeout is negative or NaN. Nothing is published when it raises."""
        cdef int64_t seq = 0
        if timeout is None and likely(publish_once(self.q, <PyObject *>item, &seq) == MT_OK):
            return seq
        return self.publish_slow(item, deadline_from(block, timeout))

    cdef int64_t publish_slow(self, object item, int64_t deadline) except -1:
        cdef wait_point p
        cdef int64_t seq = 0
        cdef int r
        while True:
            r = publish_once(self.q, <PyObject *>item, &seq)
            if r == MT_FULL and self.q.slow == ps.SLOW_DROP:
                r = publish_over_oldest(self.q, <PyObject *>item, &seq)
            if r == MT_OK:
                return seq
            ps.free_slot_point(&p, self.q)
            if not again(&p, 1, &r, self.patience(deadline)):
                refuse_publish(r)

    cdef int64_t patience(self, int64_t deadline) noexcept:
        """Until when a publisher waits at the bound."""
        return ONCE if self.q.slow == ps.SLOW_RAISE else deadline

    @cython.binding(False)
    @cython.embedsignature.format("clinic")
    def publish_many(self, items, block=True, timeout=None):
        """Publish all items of an iterable in order and return how many that were.

        Lists and tuples are linked as one chain where the bound allows, so that their sequence numbers follow one
        another and subscribers see them at once. Of another iterable at most one item is pulled beyond those published.
        timeout is for the whole call. On Full, ShutDown or KeyboardInterrupt the exception's `count` says how many were
        published; those stay so. An exception of the iterable passes through; what came before it is published."""
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
        cdef wait_point p
        cdef int64_t n = len(items), done = 0
        cdef int r
        while count[0] < n:
            r = publish_run_once(self.q, PySequence_Fast_ITEMS(items) + count[0], n - count[0], &done)
            count[0] += done
            if r == MT_FULL and self.q.slow == ps.SLOW_DROP:
                r = publish_run_over_oldest(self.q, PySequence_Fast_ITEMS(items) + count[0], n - count[0], &done)
                count[0] += done
                if r == MT_FULL:
                    continue
            if r != MT_OK:
                ps.free_slot_point(&p, self.q)
                if not again(&p, 1, &r, self.patience(deadline)):
                    refuse_publish(r)
        return 0

    async def apublish(self, item):
        """publish for coroutines, on asyncio and on trio. Cancelling it before it returned publishes nothing."""
        checkpoint = trio_checkpoint()
        if checkpoint is not None:
            await checkpoint
        while True:
            try:
                return self.publish_slow(item, ONCE)
            except Full:
                if self.q.slow == ps.SLOW_RAISE:
                    raise
            await self.until_free_slot()

    cdef object until_free_slot(self):
        """What a coroutine awaits at the bound. Whether the queue takes no more messages is for its next try to see."""
        cdef Waiting waiting = new_waiting(self)
        ps.free_slot_point(&waiting.point, self.q)
        return waiting.wait()

    def _after_fork(self):
        """In the child of a fork."""
        ps.after_fork(self.q, PyThread_get_thread_ident())

    # ------------------------------------------------------------------------------------------------------ subscribing
    def subscribe(self, *, start="next"):
        """A new subscriber. Close it, or use it in a `with` block.

        start: "next" begins with what is published after this call began, "oldest" with the oldest message that
        somebody still expects, n with that sequence number. ValueError: n is neither retained nor the next one. After
        shutdown it finds what is retained."""
        return Subscriber.__new__(Subscriber, MAKER, self, start_argument(start), start)

    @property
    def subscribers(self):
        """How many are subscribed."""
        return mt_load_seq_cst_u32(&self.q.nsubscribers)    # pairs with: ps_fetch_add_u32 in locked_join, locked_leave

    # ------------------------------------------------------------------------------------------------------------ state
    @property
    def maxsize(self):
        """How many messages the slowest subscriber may have before it; 0 or less: no bound. Raising it wakes
        publishers, lowering it keeps messages."""
        return mt_load_relaxed_i64(&self.q.maxsize)     # relaxed because: may be stale

    @maxsize.setter
    def maxsize(self, value):
        ps.set_maxsize(self.q, maxsize_argument(value))

    @cython.binding(False)
    @cython.embedsignature.format("clinic")
    def qsize(self):
        """Messages that somebody still expects. Exact when nothing runs beside it."""
        return ps.retained(self.q, ps.end_seq(self.q))

    def shutdown(self, immediate=False):
        """No more messages: publish raises ShutDown; subscribers drain, then get ShutDown. immediate=True gives up what
        they have not taken yet. Wakes everybody."""
        ps.shut_down(self.q, bool(immediate))
        if immediate:
            trim(self.q)

    @property
    def is_shutdown(self):
        """True from the first shutdown() on."""
        return ps.is_shut(self.q)

    def stats(self):
        """PubSubStats: what is retained, was published, who is subscribed, how far the slowest is behind, what was
        dropped."""
        cdef int64_t end = ps.end_seq(self.q), kept = ps.retained(self.q, end)
        dropped = mt_load_relaxed_i64(&self.q.dropped)  # relaxed because: statistics; may be stale
        return PubSubStats(kept, end, self.subscribers, kept, dropped)


# ----------------------------------------------------------------------------------------------------------- Subscriber
@cython.final
@cython.trashcan(True)      # it may be a message itself
@cython.no_gc_clear         # its queue is cleared instead; it stays usable for finalizers
cdef class Subscriber:
    """Subscriber(*args, **options)\n--\n
    One reader of a PubSubQueue. Made by PubSubQueue.subscribe only.

    Threads sharing a Subscriber share its messages, each to one of them. close() gives up the rest at once. One that is
    collected unclosed closes itself, with a ResourceWarning.
    Progress: as the queue's."""
    cdef PubSubQueue queue          # for the collector, which finds the messages there
    cdef ps.pubsub *q               # counted
    cdef ps.subscriber *s
    cdef list one                   # [None]: see mt_list_reserve_by
    cdef object __weakref__

    def __cinit__(self, maker=None, queue=None, int64_t start=0, asked=None):
        cdef int r
        if maker is not MAKER:
            raise TypeError("Subscriber cannot be made by itself: PubSubQueue.subscribe() makes them")
        self.queue = queue
        self.one = [None] if MT_FREE_THREADED else None
        self.s = ps.new_record(self.queue.q)
        if self.s == NULL:
            raise MemoryError
        self.q = self.queue.q
        mt_fetch_add_relaxed_u32(&self.q.refs, 1)       # relaxed because: its PubSubQueue has a reference
        r = ps.join(self.q, self.s, start)
        trim(self.q)
        if r != MT_OK:
            raise ValueError(f"start={asked!r}: expected a retained message or the next one, "
                             f"{ps.low_seq(self.q)} to {ps.end_seq(self.q)}")

    def __init__(self, *args, **options):
        raise RuntimeError("Subscriber.__init__ was called on a subscriber that is in use")

    def __dealloc__(self):
        """Nothing but C fields. Not __del__, which would recurse where subscribers are nested in messages."""
        cdef int64_t behind
        if self.q == NULL:
            return
        if not self.s.closed:       # without its lock: no other thread has it
            ps.close_subscriber(self.q, self.s)
            behind = ps.end_seq(self.q) - self.s.closed_at
            trim(self.q)
            warn_unclosed(self.s.closed_at, behind)
        ps.free_record(self.s)
        drop_list(self.q)

    __class_getitem__ = classmethod(GenericAlias)

    def __reduce__(self):
        raise unpicklable(self, WHY_NO_COPY)

    def __repr__(self):
        if self.closed:
            return f"<Subscriber at {self.position}, closed>"
        return f"<Subscriber at {self.position}, {self.lag} behind>"

    # -------------------------------------------------------------------------------------------------------------- get
    cdef int refuse(self, int status) except -1:
        """Raise what a get that has nothing to return says."""
        cdef int64_t missed
        if status == MT_INTERRUPTED:
            return -1               # the handler's exception is set
        if status == MT_NOMEM:
            raise MemoryError
        if status == ps.CLOSED:
            raise ClosedError("the subscriber was closed; PubSubQueue.subscribe() makes a new one")
        if status == MT_SHUTDOWN:
            raise ShutDown("the queue was shut down and nothing is left to get")
        if status == ps.LAGGED:
            missed = ps.take_missed(self.q, self.s)
            if missed:
                raise Lagged(missed)
            return 0                # another thread has told it: go on
        raise Empty

    cdef inline int take(self, uintptr_t *item) noexcept:
        """One try."""
        cdef bint may_trim
        cdef int r = ps.take(self.q, self.s, item, &may_trim)
        if may_trim:
            trim(self.q)
        return r

    @cython.binding(False)
    @cython.embedsignature.format("clinic")
    def get(self, block=True, timeout=None):
        """Take the next message, waiting for one if need be.

        timeout: seconds for the whole call; None waits for ever. block=False does not wait and ignores timeout.
        Empty: nothing came in time. ShutDown: shut down and drained. ClosedError: the subscriber was closed. Lagged:
        messages were dropped, once; the next call goes on. ValueError: timeout is negative or NaN."""
        cdef uintptr_t item = 0
        if timeout is None and likely(self.take(&item) == MT_OK):
            return mt_owned_item(item)
        return self.get_slow(deadline_from(block, timeout))

    cdef object get_slow(self, int64_t deadline):
        cdef wait_point p
        cdef uintptr_t item = 0
        cdef int r
        while True:
            r = self.take(&item)
            if r == MT_OK:
                return mt_owned_item(item)
            ps.message_point(&p, self.q, self.s)
            if not again(&p, 1, &r, deadline):
                self.refuse(r)

    @cython.binding(False)
    @cython.embedsignature.format("clinic")
    def get_many(self, max_items, block=True, timeout=None, *, linger=0.0):
        """A list of up to max_items messages in order: waits for the first as get does, then takes what is there.
        max_items <= 0: [] at once. Raises what get raises, before anything is taken.

        linger: seconds, counted from the first message, for which it waits for more before it returns fewer than
        max_items. It takes nothing before that wait has ended, so an exception, as a signal handler's, has nothing to
        give back. The timeout, a shutdown and as many messages as maxsize allows end the wait too, and what is there is
        returned; closing ends it with ClosedError. block=False ignores linger. ValueError: it is negative or NaN."""
        cdef int64_t n = int_argument("max_items", max_items, "an int"), longer = linger_from(linger), deadline
        cdef list out
        cdef int r = MT_OK
        if n <= 0:
            return []
        deadline = deadline_from(block, timeout)
        if longer and deadline != ONCE:
            return self.lingering(n, deadline, longer)
        out = self.take_many(n, &r)
        return out if likely(r == MT_OK) else self.get_many_slow(n, deadline, r)

    cdef list get_many_slow(self, int64_t n, int64_t deadline, int r):
        """After a try that returned r."""
        cdef wait_point p
        cdef list out = None
        while r != MT_OK:
            ps.message_point(&p, self.q, self.s)
            if not again(&p, 1, &r, deadline):
                self.refuse(r)
            out = self.take_many(n, &r)
        return out

    cdef list lingering(self, int64_t n, int64_t deadline, int64_t linger):
        """get_many, waiting for more. While it waits, threads that share the subscriber take messages as ever."""
        cdef list out
        cdef int r
        while True:
            r = self.wait_for(1, deadline)
            if r == MT_OK:
                ps.forward_not_empty(self.q, self.s)    # what it was notified of it does not take yet
                r = self.wait_for(n, sooner(deadline, linger))
                if r == MT_TIMEOUT:
                    r = MT_OK
            if r == MT_OK:
                out = self.take_many(n, &r)
                if r == MT_OK:
                    return out
            if r != MT_EMPTY:           # other threads took all of them: wait for the first again
                self.refuse(r)

    cdef int wait_for(self, int64_t n, int64_t deadline) noexcept:
        """MT_OK: n messages are there, or a take has something else to say, or the queue was shut down."""
        cdef wait_point p
        cdef int r
        while True:
            ps.messages_point(&p, self.q, self.s, n)
            r = look(&p, 1)
            if r != WAIT:
                return r
            r = MT_EMPTY
            if not again(&p, 1, &r, deadline):
                return r

    cdef list take_many(self, int64_t n, int *status):
        """Up to n messages that are there; *status says why there are none."""
        cdef wait_node *to_post = NULL
        cdef int64_t seq, got = 0
        cdef list out
        ps.lock_subscriber(self.s)
        status[0] = self.locked_status()
        n = ps.locked_available(self.s, n) if status[0] == MT_OK else 0
        ps.unlock_subscriber(self.s)
        if status[0] != MT_OK:
            return None
        # The list is made before the messages are taken: between that and the return nothing can fail.
        try:
            out = mt_list_reserve_by(self.one, n)
        except BaseException:
            ps.forward_not_empty(self.q, self.s)    # whoever was woken for these messages does not take them
            raise
        ps.lock_subscriber(self.s)
        status[0] = self.locked_status()
        seq = ps.locked_next_seq(self.s)
        if status[0] == MT_OK:
            got = ps.locked_take_many(self.s, mt_list_slots(<PyObject *>out), n)
            mt_list_filled(<PyObject *>out, got)
            ps.locked_propagate(self.q, self.s, &to_post)
        ps.unlock_subscriber(self.s)
        if to_post != NULL:
            post(to_post)
        if got and ps.may_trim(self.q, self.s, seq):
            trim(self.q)
        return out

    cdef int locked_status(self) noexcept:
        return ps.LAGGED if self.s.missed and not self.s.closed else ps.locked_status(self.s)

    async def aget(self):
        """get for coroutines, on asyncio and on trio. Cancelling it loses no message and forwards its notification."""
        checkpoint = trio_checkpoint()
        if checkpoint is not None:
            await checkpoint
        while True:
            try:
                return self.get_slow(ONCE)
            except Empty:
                pass
            await self.until_message()

    cdef object until_message(self):
        """What a coroutine awaits that found no message. What else its next try may find is for that to see."""
        cdef Waiting waiting = new_waiting(self)
        ps.message_point(&waiting.point, self.q, self.s)
        return waiting.wait()

    def __iter__(self):
        """Messages as get returns them; ends where get would raise ShutDown or ClosedError. Lagged passes through, and
        iterating may go on after it."""
        return MessageIterator.__new__(MessageIterator, self)

    def __aiter__(self):
        """The same for coroutines."""
        return AsyncMessages(self)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    # ------------------------------------------------------------------------------------------------------------ state
    @property
    def position(self):
        """Sequence number of the message that its next get returns. After close: that it would have returned."""
        cdef int64_t seq
        ps.lock_subscriber(self.s)
        seq = self.s.closed_at if self.s.closed else ps.locked_next_seq(self.s)
        ps.unlock_subscriber(self.s)
        return seq

    @property
    def lag(self):
        """Messages published for it and not yet taken, missed ones excluded. 0 once it was closed."""
        cdef int64_t lag = 0
        ps.lock_subscriber(self.s)
        if not self.s.closed:
            lag = ps.end_seq(self.q) - ps.locked_next_seq(self.s)
        ps.unlock_subscriber(self.s)
        return lag

    @property
    def closed(self):
        """True once close() was called."""
        cdef bint closed
        ps.lock_subscriber(self.s)
        closed = self.s.closed
        ps.unlock_subscriber(self.s)
        return closed

    def close(self):
        """Unsubscribe and give up the rest at once; waiting and later gets raise ClosedError. Idempotent."""
        if ps.close_subscriber(self.q, self.s):
            trim(self.q)


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


# --------------------------------------------------------------------------------------------------- garbage collection
# What C memory holds is shown to the collector: the messages, and the coroutines that wait (their tasks may lead back
# to the queue).
cdef traverseproc base_queue_traverse, base_subscriber_traverse


cdef int visit_messages(ps.pubsub *q, visitproc visit, void *arg) noexcept:
    """The world stands still, or the GIL is held: nobody changes the list."""
    cdef ps.message_chunk *c = <ps.message_chunk *>mt_load_relaxed_uptr(&q.oldest)    # relaxed because: as above
    cdef int64_t seq = q.freed_seq
    cdef uintptr_t item
    cdef int r
    while c != NULL:
        while seq < c.base + c.cap:
            item = ps.slot_value(c, <uint32_t>(seq - c.base))
            if item <= <uintptr_t>ps.SLOT_SEAL:
                break
            r = visit(<PyObject *>item, arg)
            if r:
                return r
            seq += 1
        c = ps.next_chunk(c)
    return 0


cdef int queue_traverse(PyObject *self, visitproc visit, void *arg) noexcept:
    cdef ps.pubsub *q = (<PubSubQueue>self).q
    cdef int r = base_queue_traverse(self, visit, arg)
    if r == 0 and q != NULL:
        r = visit_tasks(&q.not_full, visit, arg)
        if r == 0:
            r = visit_messages(q, visit, arg)
    return r


cdef int queue_clear(PyObject *self) noexcept:
    cdef ps.pubsub *q = (<PubSubQueue>self).q
    if q != NULL:
        ps.skip_all(q)
        trim(q)
    return 0


cdef int subscriber_traverse(PyObject *self, visitproc visit, void *arg) noexcept:
    cdef ps.subscriber *s = (<Subscriber>self).s
    cdef int r = base_subscriber_traverse(self, visit, arg)
    return r if r or s == NULL else visit_tasks(&s.not_empty, visit, arg)


base_queue_traverse = mt_traverse_of(<PyTypeObject *>PubSubQueue)
mt_patch_gc(<PyTypeObject *>PubSubQueue, queue_traverse, queue_clear)
base_subscriber_traverse = mt_traverse_of(<PyTypeObject *>Subscriber)
mt_patch_gc(<PyTypeObject *>Subscriber, subscriber_traverse, mt_clear_of(<PyTypeObject *>Subscriber))
