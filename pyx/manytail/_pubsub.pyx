"""The Python face of PubSubQueue: every message goes once to every subscriber that is subscribed when it is published.

_ps.pxd has the algorithm, docs/design/pubsub.md its source and its proof.

Rules of this layer
- The list holds one reference to each retained message, added before the message is published. A taker adds its own
  before its next_seq moves. The thread that trims drops the list's references, with no lock held.
- No Python call runs under a lock, under a pin, or between a claim and its publish. Py_INCREF is allowed: it runs no
  code.
- Methods are built-in as in _multiqueue.pyx.
"""
cimport cython
cimport manytail._ps as ps
from cpython.ref cimport PyObject
from libc.stdint cimport int64_t, uint32_t, uintptr_t
from libc.stdlib cimport free, malloc

from manytail._c cimport *
from manytail._cpython cimport *
from manytail._lifecycle cimport *
from manytail._root cimport Root, clear_by_breaking_cycles
from manytail._waiting cimport *

from manytail.errors import ClosedError, Empty, Full, Lagged, ShutDown
from manytail._values import PubSubStats

cdef object MAKER = object()
cdef str WHY_NO_COPY = (
    "a queue lives in one process; make it inside the process or task that uses it, and send the messages instead"
)
cdef object NOTHING = object()
cdef PyObject *EMPTY = <PyObject *>Empty       # borrowed from the imports above
cdef dict SLOW = {"block": ps.SLOW_BLOCK, "raise": ps.SLOW_RAISE, "drop_oldest": ps.SLOW_DROP}
cdef dict STARTS = {"next": ps.START_NEXT, "oldest": ps.START_OLDEST}


# ------------------------------------------------------------------------------------------------------------ arguments
cdef uint32_t slow_argument(object value) except? 99:
    if not isinstance(value, str):
        raise TypeError(f"slow: {value!r} of type {type(value).__name__} (expected: 'block', 'raise' or 'drop_oldest')")
    if value not in SLOW:
        raise ValueError(f"slow: {value!r} (expected: 'block', 'raise' or 'drop_oldest')")
    return SLOW[value]


cdef int64_t start_argument(object value) except? -7:
    if isinstance(value, str):
        if value not in STARTS:
            raise ValueError(f"start: {value!r} (expected: 'next', 'oldest' or the number of a retained message)")
        return STARTS[value]
    cdef int64_t position
    try:
        position = int_argument("start", value, "'next', 'oldest' or an int")
    except OverflowError:       # no message has such a number: join() refuses it, as it does a negative one
        position = -1
    return position if position >= 0 else ps.START_OLDEST - 1      # neither START_* nor valid: join() refuses it


cdef int refuse_publish(int status) except -1:
    raise_if_failed(status)
    if status == MT_SHUTDOWN:
        raise ShutDown("the queue was shut down and takes no more messages")
    raise Full


# ------------------------------------------------------------------------------------------------------------- trimming
# Dropping a message may free a subscriber, whose own messages are then dropped, and so on: trims nest. Beyond
# NESTED_TRIMS levels the references are left to the outermost trim of the thread, so that the stack does not overflow.
ctypedef struct batch:
    batch *next
    ps.freed f

cdef extern from *:
    """
    static MT_THREAD_LOCAL void *mt_postponed;
    static MT_THREAD_LOCAL int mt_nested_trims;
    """
    void *mt_postponed          # batches of references, for the outermost trim of this thread
    int mt_nested_trims         # depth of trims of this thread

cdef enum:
    NESTED_TRIMS = 30


cdef void trim(ps.pubsub *q) noexcept:
    """Free the messages that no subscriber expects: drop the list's references, with no lock held."""
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
        drop_references(&f)
        mt_nested_trims -= 1
    if mt_nested_trims == 0 and unlikely(mt_postponed != NULL):
        drop_postponed()


cdef void drop_references(ps.freed *f) noexcept:
    cdef uint32_t i
    for i in range(f.n):
        Py_DECREF_raw(<PyObject *>f.items[i])


cdef bint postpone(ps.freed *f) noexcept:
    """Leave references to the outermost trim. False: no memory; the caller drops them at once."""
    global mt_postponed
    cdef batch *b = <batch *>malloc(sizeof(batch))
    if b == NULL:
        return False
    b.f = f[0]
    b.next = <batch *>mt_postponed
    mt_postponed = b
    return True


cdef void drop_postponed() noexcept:
    global mt_postponed, mt_nested_trims
    mt_nested_trims += 1
    while mt_postponed != NULL:
        b = <batch *>mt_postponed
        mt_postponed = b.next
        drop_references(&b.f)
        free(b)
    mt_nested_trims -= 1


# ----------------------------------------------------------------------------------------------------------- publishing
cdef inline int put_in(ps.pubsub *q, PyObject *item, int64_t *seq) noexcept:
    """One try, with the status of ps.publish(). The caller calls after_publish() with it."""
    Py_INCREF_raw(item)
    cdef int r = ps.publish(q, <uintptr_t>item, seq)
    if unlikely(r != MT_OK):
        Py_DECREF_raw(item)             # never the last reference: the caller has one
    return r


cdef inline int after_publish(ps.pubsub *q, int r) noexcept:
    """After a try that returned r. Returns MT_OK: published; or r, which says why not."""
    if likely(r == MT_OK):
        ps.wake_getters(q)
        if unlikely(ps.no_subscriber(q)):
            trim(q)
    elif r != ps.UNRETAINED:
        return r
    if mt_load_relaxed_i64(&q.maxsize) > 0:     # relaxed because: only whether a publisher can be waiting
        ps.forward_not_full(q)      # there may be more free slots than wake-ups, or this publisher has used none
    return MT_OK


cdef inline int publish_once(ps.pubsub *q, PyObject *item, int64_t *seq) noexcept:
    """One try: MT_OK, MT_FULL, MT_SHUTDOWN or MT_NOMEM."""
    return after_publish(q, put_in(q, item, seq))


cdef int put_run_in(ps.pubsub *q, PyObject **items, int64_t n, int64_t *done) noexcept:
    """One try with n items as one run. MT_FULL: only *done of them are published. If *done > 0 the caller calls
    after_publish() with MT_OK."""
    cdef int64_t kept = 0, i
    cdef int r = ps.publish_run(q, <uintptr_t *>items, n, done, &kept)
    for i in range(done[0], kept):
        Py_DECREF_raw(items[i])         # never the last reference: the caller has one
    return r


# slow="drop_oldest" without a free slot. capacity_lock is held from the drop to the publish, so that a shutdown cannot
# come in between: nothing is dropped for a message that is then refused. Takers, and publishers that find a free slot,
# do not use this lock.
cdef int publish_over_oldest(ps.pubsub *q, PyObject *item, int64_t *seq) noexcept:
    """Publish one message, dropping old ones as needed. Never MT_FULL."""
    ps.lock_capacity(q)
    cdef int r = put_in(q, item, seq)
    while r == MT_FULL:
        ps.capacity_locked_make_free_slots(q, 1)
        r = put_in(q, item, seq)        # MT_FULL: another publisher was faster
    ps.unlock_capacity(q)
    r = after_publish(q, r)
    trim(q)                             # last: it may run finalizers
    return r


cdef int publish_run_over_oldest(ps.pubsub *q, PyObject **items, int64_t n, int64_t *done) noexcept:
    """put_run_in() with as many items as maxsize allows, at least one, dropping old messages as needed."""
    ps.lock_capacity(q)
    cdef int r = put_run_in(q, items, n, done)
    while r == MT_FULL and done[0] == 0:
        ps.capacity_locked_make_free_slots(q, n)
        r = put_run_in(q, items, n, done)
    ps.unlock_capacity(q)
    if done[0]:
        after_publish(q, MT_OK)
    trim(q)                             # last: it may run finalizers
    return r


cdef inline int take_once(ps.pubsub *q, ps.subscriber *s, uintptr_t *item) noexcept:
    """One try, with the status of ps.take()."""
    cdef bint trim_next
    cdef int r = ps.take(q, s, item, &trim_next)
    if trim_next:
        trim(q)
    return r


cdef void drop_list(ps.pubsub *q) noexcept:
    """Drop the reference of a PubSubQueue or Subscriber. The last one frees the list."""
    # pairs with: itself: who frees the list sees what the others did
    if mt_fetch_add_acq_rel_u32(&q.refs, <uint32_t>-1) == 1:
        trim(q)
        ps.free_pubsub(q)


cdef int visit_messages(ps.pubsub *q, visitproc visit, void *arg) noexcept:
    # relaxed because: all threads are stopped, or the GIL is held
    cdef ps.message_chunk *c = <ps.message_chunk *>mt_load_relaxed_uptr(&q.oldest)
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


# ---------------------------------------------------------------------------------------------------------- PubSubQueue
@cython.no_gc_clear
@cython.binding(False)
@cython.embedsignature.format("clinic")
cdef class PubSubQueue(Root):
    """PubSubQueue(*, maxsize=0, slow="block")\n--\n
    Publish and subscribe: every message reaches every subscriber that is subscribed when it is published.

    All subscribers see the messages in the same order, each at its own pace. A message is freed when the last of its
    subscribers has received it. Sequence numbers start at 0 and have no gaps. Publishing, getting, subscribing and
    unsubscribing do not block each other.

    maxsize: how many messages the slowest subscriber may be behind; <= 0: no limit. slow: what publish does when that
    limit is reached. "block", the default: it waits.
        "raise": it raises Full at once, whatever `block` is.
        "drop_oldest": the slowest subscriber loses its oldest message. Its next get raises Lagged, with the number of
        messages that it missed. Others lose nothing.

    Cost: publish is O(1), plus O(1) per waiting subscriber; get is O(1), but O(subscribers) if its subscriber was the
    slowest. Without subscribers a message is not kept. subscribe is O(subscribers); close is O(1), plus the freeing of
    messages. It is lock-free without the GIL, with these exceptions. publish waits for a free slot. A publish that
    drops a subscriber's message waits for other publishers that do the same, and for threads that are getting from that
    subscriber. Threads that share a subscriber wait for each other, and so do concurrent calls of subscribe.
    Source: disclosure IPCOM000185635D, completed in docs/design/pubsub.md.

    >>> q = PubSubQueue()
    >>> with q.subscribe() as audit, q.subscribe() as mail:
    ...     q.publish("order 7"), q.publish("order 8")
    ...     audit.get(), mail.get_many(10), audit.lag
    (0, 1)
    ('order 7', ['order 7', 'order 8'], 1)
    """
    cdef ps.pubsub *q
    cdef object __weakref__

    def __cinit__(self, *args, **options):
        self.q = ps.new_pubsub()
        if self.q == NULL:
            raise MemoryError
        tell_of_forks(self)

    def __init__(self, *, maxsize=0, slow="block"):
        cdef int64_t bound = maxsize_argument(maxsize)
        cdef uint32_t policy = slow_argument(slow)
        # relaxed because: only its own result counts
        if mt_fetch_add_relaxed_u32(&self.q.begun, 1) or ps.end_seq(self.q) or ps.first_record(self.q) != NULL:
            raise RuntimeError(f"{type(self).__name__}.__init__ was called again, or on a queue that is in use")
        mt_store_relaxed_i64(&self.q.maxsize, bound)    # relaxed because: nobody else has it yet
        self.q.slow = policy

    def __dealloc__(self):
        if self.q != NULL:
            drop_list(self.q)

    cdef int visit(self, visitproc visit, void *arg) noexcept:
        if self.q == NULL:
            return 0
        return visit_tasks(&self.q.not_full, visit, arg) or visit_messages(self.q, visit, arg)

    cdef void break_cycles(self) noexcept:
        if self.q != NULL:
            ps.skip_all(self.q)
            trim(self.q)

    def __reduce__(self):
        raise unpicklable(self, WHY_NO_COPY)

    def __repr__(self):
        stats = PubSubQueue.stats(self)     # a subclass may override it
        shut = ", shut down" if self.is_shutdown else ""
        return f"<{type(self).__name__} of {stats.subscribers} subscribers, {stats.retained} messages retained{shut}>"

    # ------------------------------------------------------------------------------------------------------- publishing
    def publish(self, item, block=True, timeout=None):
        """Publish one message and return its sequence number.

        timeout: seconds for the whole call; None waits without limit. block=False does not wait and ignores timeout.
        Raises Full if the slowest subscriber is still maxsize messages behind after that time, ShutDown if the queue is
        shut down (also during the wait), and ValueError if timeout is negative or NaN. If it raises, nothing was
        published, except in one case: if there is no memory for the sequence number that it returns, it raises
        MemoryError after the message was published."""
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
            if not again(&p, 1, &r, ONCE if self.q.slow == ps.SLOW_RAISE else deadline):
                refuse_publish(r)

    def publish_many(self, items, block=True, timeout=None):
        """Publish all items of an iterable in order and return how many there were.

        Of a list or tuple, as many items as maxsize allows are published together, with consecutive sequence numbers.
        Any other iterable is read one item at a time. timeout applies to the whole call. If it raises Full, ShutDown or
        KeyboardInterrupt, the exception's `count` is the number of items that were published. If the iterable raises,
        the items before that point have been published."""
        cdef int64_t deadline = deadline_from(block, timeout), count = 0
        try:
            if isinstance(items, (list, tuple)):
                self.publish_sequence(tuple(items), deadline, &count)   # a tuple: other threads cannot change it
            else:
                for item in items:
                    self.publish_slow(item, deadline)
                    count += 1
        except (Full, ShutDown, KeyboardInterrupt) as error:
            note_count(error, count)
            raise
        return count

    cdef int publish_sequence(self, tuple items, int64_t deadline, int64_t *count) except -1:
        cdef wait_point p
        cdef int64_t n = len(items), done = 0
        cdef int r
        while count[0] < n:
            r = put_run_in(self.q, PySequence_Fast_ITEMS(items) + count[0], n - count[0], &done)
            count[0] += done
            if done:
                after_publish(self.q, MT_OK)
            if r == MT_FULL and self.q.slow == ps.SLOW_DROP:
                r = publish_run_over_oldest(self.q, PySequence_Fast_ITEMS(items) + count[0], n - count[0], &done)
                count[0] += done
                if r == MT_FULL:
                    continue
            if r != MT_OK:
                ps.free_slot_point(&p, self.q)
                if not again(&p, 1, &r, ONCE if self.q.slow == ps.SLOW_RAISE else deadline):
                    refuse_publish(r)
        return 0

    @cython.binding(True)
    async def apublish(self, item):
        """The version of publish() for asyncio and trio coroutines. If it is cancelled before it returns, nothing was
        published."""
        cdef Waiting waiting
        pause = checkpoint()
        if pause is not None:
            await pause
        while True:
            try:
                return self.publish_slow(item, ONCE)
            except Full:
                if self.q.slow == ps.SLOW_RAISE:
                    raise
            waiting = new_waiting(self)
            ps.free_slot_point(&waiting.point, self.q)
            await waiting.wait()

    def _after_fork(self):
        """In the child of a fork."""
        ps.after_fork(self.q, PyThread_get_thread_ident())

    # ------------------------------------------------------------------------------------------------------ subscribing
    def subscribe(self, *, start="next"):
        """Create a subscriber. Close it, or use it in a `with` block. After a shutdown, it can still get the messages
        that are retained.

        start: where it begins: "next", the default, with the next message that is published; "oldest" with the oldest
        retained one; an int with the message of that sequence number. Raises ValueError if that message is neither
        retained nor the next one, or for another str, and TypeError for another type."""
        return Subscriber.__new__(Subscriber, MAKER, self, start_argument(start), start)

    @property
    def subscribers(self):
        """The number of subscribers."""
        return mt_load_seq_cst_u32(&self.q.nsubscribers)    # pairs with: ps_fetch_add_u32 in locked_join, locked_leave

    # ------------------------------------------------------------------------------------------------------------ state
    @property
    def maxsize(self):
        """How many messages the slowest subscriber may be behind; 0 or less: no limit. Raising it wakes publishers;
        lowering it drops no messages."""
        return mt_load_relaxed_i64(&self.q.maxsize)     # relaxed because: may be stale

    @maxsize.setter
    def maxsize(self, value):
        ps.set_maxsize(self.q, maxsize_argument(value))

    def qsize(self):
        """Return the number of messages that at least one subscriber has not received yet."""
        return ps.retained(self.q, ps.end_seq(self.q))

    def shutdown(self, immediate=False):
        """Accept no more messages: publish raises ShutDown. get returns what is left and then raises ShutDown.
        immediate=True drops the messages that are left. Wakes all waiting calls."""
        ps.shut_down(self.q, bool(immediate))
        if immediate:
            trim(self.q)

    @property
    def is_shutdown(self):
        """True once shutdown() has been called."""
        return ps.is_shut(self.q)

    def stats(self):
        """Return a PubSubStats: messages retained, published and dropped, subscribers, and the lag of the slowest
        one."""
        cdef int64_t end = ps.end_seq(self.q), kept = ps.retained(self.q, end)
        dropped = mt_load_relaxed_i64(&self.q.dropped)  # relaxed because: statistics; may be stale
        return PubSubStats(kept, end, self.subscribers, kept, dropped)


# ----------------------------------------------------------------------------------------------------------- Subscriber
@cython.final
@cython.no_gc_clear         # cycles break at the queue's messages; it stays usable for finalizers
cdef class Subscriber(Root):
    """Subscriber(*args, **options)\n--\n
    Gets the messages of a PubSubQueue. Create it with PubSubQueue.subscribe, and close it or use it in a `with` block.

    If several threads share a Subscriber, each message goes to one of them. Iterating over it gets messages until get
    would raise ShutDown or ClosedError. If it is garbage-collected before being closed, it closes itself with a
    ResourceWarning. Its locks and algorithm are the same as in its queue (see there for the source)."""
    cdef PubSubQueue queue          # for the collector, which visits the messages there
    cdef ps.pubsub *q               # with a reference
    cdef ps.subscriber *s
    cdef list one                   # [None]: see mt_list_reserve_by (pygc.h)
    cdef object __weakref__

    def __cinit__(self, maker=None, queue=None, int64_t start=0, asked=None):
        if maker is not MAKER:
            raise TypeError("Subscriber cannot be made by itself: PubSubQueue.subscribe() makes them")
        self.queue = queue
        self.one = [None] if MT_FREE_THREADED else None
        self.s = ps.new_record(self.queue.q)
        if self.s == NULL:
            raise MemoryError
        self.q = self.queue.q
        mt_fetch_add_relaxed_u32(&self.q.refs, 1)       # relaxed because: its PubSubQueue has a reference
        cdef int r = ps.join(self.q, self.s, start)
        trim(self.q)
        if r != MT_OK:
            raise ValueError(f"start: {asked!r} (expected: the number of a retained message or of the next one, "
                             f"{ps.low_seq(self.q)} to {ps.end_seq(self.q)})")

    def __init__(self, *args, **options):
        raise RuntimeError("Subscriber.__init__ was called on a subscriber that is in use")

    def __dealloc__(self):
        """Uses only C fields. A __del__ would recurse where subscribers are nested in messages."""
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

    cdef int visit(self, visitproc visit, void *arg) noexcept:
        return 0 if self.s == NULL else visit_tasks(&self.s.not_empty, visit, arg)

    def __reduce__(self):
        raise unpicklable(self, WHY_NO_COPY)

    def __repr__(self):
        if self.closed:
            return f"<Subscriber at {self.position}, closed>"
        return f"<Subscriber at {self.position}, {self.lag} behind>"

    # -------------------------------------------------------------------------------------------------------------- get
    cdef int refuse(self, int status) except -1:
        """Raise the exception of a get that has nothing to return. MT_EMPTY: nothing came in time. MT_OK: try again."""
        cdef int64_t missed
        raise_if_failed(status)
        if status == ps.CLOSED:
            raise ClosedError("the subscriber was closed; PubSubQueue.subscribe() makes a new one")
        if status == MT_SHUTDOWN:
            raise ShutDown("the queue was shut down and nothing is left to get")
        if status == ps.LAGGED:
            missed = ps.take_missed(self.q, self.s)
            if missed == 0:
                return MT_OK        # another thread has raised Lagged
            try:
                lagged = Lagged(missed)
            except BaseException:   # no memory, or a signal handler has raised
                ps.return_missed(self.q, self.s, missed)
                raise
            raise lagged
        return MT_EMPTY

    @cython.binding(False)
    @cython.embedsignature.format("clinic")
    def get(self, block=True, timeout=None):
        """Return the next message. Waits for one if there is none.

        timeout: seconds for the whole call; None waits without limit. block=False does not wait and ignores timeout.
        Raises Empty if no message comes in time, ShutDown if the queue is shut down and no message is left, ClosedError
        if the subscriber is closed, and ValueError if timeout is negative or NaN. Raises Lagged once after messages
        were dropped; the next call returns a message."""
        cdef uintptr_t item = 0
        if unlikely(self.get_slow(deadline_from(block, timeout), &item) != MT_OK):
            mt_return_raising(EMPTY)
        return mt_owned_item(item)

    cdef int get_slow(self, int64_t deadline, uintptr_t *item) except -1:
        """MT_OK and a message, whose reference is the caller's. MT_EMPTY: nothing came in time."""
        cdef wait_point p
        cdef int r
        while True:
            r = take_once(self.q, self.s, item)
            if r == MT_OK:
                return r
            ps.message_point(&p, self.s)
            if not again(&p, 1, &r, deadline) and self.refuse(r) == MT_EMPTY:
                return MT_EMPTY

    cdef object get_by(self, int64_t deadline):
        """A message, or NOTHING: none came in time."""
        cdef uintptr_t item = 0
        return mt_owned_item(item) if self.get_slow(deadline, &item) == MT_OK else NOTHING

    @cython.binding(False)
    @cython.embedsignature.format("clinic")
    def get_many(self, max_items, block=True, timeout=None, *, linger=0.0):
        """Return a list of up to max_items messages in order. Waits for the first one, then takes all that are
        available. If max_items <= 0, it returns [] at once. Raises the same errors as get.

        linger: how many seconds it waits for more messages after the first one. It returns earlier if it has max_items
        messages, times out, is closed or has missed messages (the next get raises Lagged), or if the queue is shut
        down. If an exception interrupts it, for example one from a signal handler, the messages that it has taken are
        in a list, the exception's `items`. block=False ignores linger. Raises ValueError if linger is negative or
        NaN."""
        cdef int64_t n = int_argument("max_items", max_items, "an int"), longer = linger_from(linger), deadline
        cdef GetMessages it
        cdef list out
        cdef int r = MT_OK
        if n <= 0:
            return []
        deadline = deadline_from(block, timeout)
        if not longer or deadline == ONCE:
            out = self.take_many(None, n, &r)
            if likely(r == MT_OK):
                return out
            if deadline == ONCE and r == MT_EMPTY:
                mt_return_raising(EMPTY)
        it = GetMessages.__new__(GetMessages)
        it.begin(n, deadline, longer)
        ps.message_point(&it.point, self.s)
        it.subscriber = self
        return it.run()

    cdef list take_many(self, list out, int64_t n, int *status):
        """Append up to n messages to `out`, or to a new list, without waiting. *status: why there are none."""
        cdef int64_t got = 0, before
        cdef bint trim_next = False
        status[0] = ps.available(self.s, &n)
        if status[0] != MT_OK:
            return out
        # The slots are allocated before the messages are taken: after that nothing can fail.
        try:
            out = mt_list_reserve_by(self.one, n) if out is None else mt_list_reserve_more(out, n)
        except BaseException:
            ps.forward_not_empty(self.q, self.s)    # this call may have been woken for them and does not take them
            raise
        before = len(out)
        status[0] = ps.take_many(self.q, self.s, mt_list_slots(<PyObject *>out) + before, n, &got, &trim_next)
        mt_list_filled(<PyObject *>out, before + got)
        if trim_next:
            trim(self.q)
        return out

    async def aget(self):
        """The version of get() for asyncio and trio coroutines. If it is cancelled, no message is lost, and its wake-up
        goes to another getter."""
        cdef Waiting waiting
        pause = checkpoint()
        if pause is not None:
            await pause
        while True:
            message = self.get_by(ONCE)
            if message is not NOTHING:
                return message
            waiting = new_waiting(self)
            ps.message_point(&waiting.point, self.s)
            await waiting.wait()

    def __iter__(self):
        """Iterate over messages as get returns them. Ends where get would raise ShutDown or ClosedError. Lagged is
        raised, and the iterator can be used after it."""
        return MessageIterator.__new__(MessageIterator, self)

    def __aiter__(self):
        """__iter__ for coroutines."""
        return MessageIterator.__new__(MessageIterator, self)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    # ------------------------------------------------------------------------------------------------------------ state
    @property
    def position(self):
        """The sequence number of the message that the next get returns; after close, of the message that it would have
        returned."""
        ps.lock_subscriber(self.s)
        cdef int64_t seq = self.s.closed_at if self.s.closed else ps.locked_next_seq(self.s)
        ps.unlock_subscriber(self.s)
        return seq

    @property
    def lag(self):
        """The number of messages that it can get now; 0 after close."""
        cdef int64_t lag = 0
        ps.lock_subscriber(self.s)
        if not self.s.closed:
            lag = ps.end_seq(self.q) - ps.locked_next_seq(self.s)
        ps.unlock_subscriber(self.s)
        return lag

    @property
    def closed(self):
        """Whether close() was called."""
        ps.lock_subscriber(self.s)
        cdef bint closed = self.s.closed
        ps.unlock_subscriber(self.s)
        return closed

    def close(self):
        """Unsubscribe. Messages that it has not received are freed. Gets that are waiting, and all later gets, raise
        ClosedError. May be called again."""
        if ps.close_subscriber(self.q, self.s):
            trim(self.q)


@cython.final
@cython.no_gc_clear     # as its base
cdef class GetMessages(GetMany):
    cdef Subscriber subscriber

    cdef int take(self) except -2:
        cdef int r = MT_OK
        self.subscriber.take_many(self.taken, self.n - len(self.taken), &r)
        if r == MT_OK and len(self.taken) < self.n:
            return MT_EMPTY
        if r == ps.LAGGED and self.taken:
            ps.forward_not_empty(self.subscriber.q, self.subscriber.s)  # the next get raises Lagged
        return r

    cdef int refuse(self, int r) except -1:
        if self.subscriber.refuse(r) == MT_EMPTY:
            raise Empty


cdef void warn_unclosed(int64_t at, int64_t behind) noexcept:
    unclosed(f"unclosed <Subscriber at {at}, {behind} behind>")


@cython.final
@cython.no_gc_clear         # its subscriber stays usable for finalizers; a cycle breaks at the messages
cdef class MessageIterator:
    """The iterator of a Subscriber, for `for` and `async for`. Several threads may share one."""
    cdef Subscriber subscriber

    def __cinit__(self, Subscriber subscriber not None):
        self.subscriber = subscriber

    def __iter__(self):
        return self

    def __next__(self):
        try:
            return self.subscriber.get_by(NEVER)
        except (ShutDown, ClosedError):
            raise StopIteration from None

    def __aiter__(self):
        return self

    async def __anext__(self):
        try:
            return await self.subscriber.aget()
        except (ShutDown, ClosedError):
            raise StopAsyncIteration from None


# ------------------------------------------------------------------------------------------------------------ shortcuts
# publish(item) and get() without more arguments, as in _multiqueue.pyx.
cdef mt_method full_publish, full_get


cdef PyObject *short_publish(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *names) noexcept:
    cdef int64_t seq = 0
    if likely(n == 1 and names == NULL) and likely(publish_once((<PubSubQueue>self).q, args[0], &seq) == MT_OK):
        return PyLong_FromLongLong(seq)
    return full_publish(self, args, n, names)


cdef PyObject *short_get(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *names) noexcept:
    cdef uintptr_t item = 0             # set if it takes one, which gcc cannot see
    if likely(n == 0 and names == NULL):
        if likely(take_once((<Subscriber>self).q, (<Subscriber>self).s, &item) == MT_OK):
            return <PyObject *>item
    return full_get(self, args, n, names)


full_publish = mt_patch_method(<PyTypeObject *>PubSubQueue, "publish", short_publish)
full_get = mt_patch_method(<PyTypeObject *>Subscriber, "get", short_get)

clear_by_breaking_cycles((PubSubQueue,))
