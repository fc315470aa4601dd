"""Consumer: one consumer of several entry queues, with one credit for all.

A get waits at the points of all its subscriptions at once, and at that of its credit (_waiting.pxd). It takes one
entry. Notifications of other queues that it does not use are forwarded. An entry of another queue that was handed over
to it (put with immediate=True) stays reserved for its next get.
"""
cimport cython
from libc.stdint cimport int64_t
from libc.stdlib cimport free, malloc

from manytail._c cimport *
from manytail._cpython cimport PyTypeObject, mt_patch_new
from manytail._entries cimport EntryQueue, append_entry, handle_of, in_timer_thread, release_all
from manytail._eq cimport CLOSED, NO_CREDIT, acquired_entry, is_closed
from manytail._eq cimport lock_credit, lock_order, unlock_credit, unlock_order
from manytail._eq_manager cimport credit_point, locked_answer
from manytail._lifecycle cimport given_options, int_argument, raise_if_failed, tell_of_forks, unclosed
from manytail._root cimport Root
from manytail._subscriptions cimport Credit, Subscription, consumer_waits, iterate, new_credit, open_subscription
from manytail._waiting cimport *

from manytail._entries import _report
from manytail._lifecycle import start_daemon
from manytail._listener import Listener
from manytail.errors import ClosedError, Empty, ShutDown

cdef dict SUBSCRIBE_OPTIONS = {"selector": None, "browse": False, "exclusive": False, "start": "oldest", "origin": None}

cdef class Consumer(Root)


cdef object try_all(tuple subs, Credit credit, wait_point *points, bint alone):
    """Try the subscriptions in round robin, beginning with number credit.turn. Returns an entry or None. ShutDown: all
    of them would raise it. points: the wait points of `subs`; NULL: no wait came before. alone: for a get of one of the
    Consumer's subscriptions."""
    cdef Subscription s
    cdef acquired_entry t
    cdef wait_point nowhere
    # relaxed because: other threads of the consumer may change it; any number will do
    cdef int64_t first = mt_load_relaxed_i64(&credit.turn)
    cdef Py_ssize_t n = len(subs), k, i
    cdef int r = MT_EMPTY, live = 0
    nowhere.woken = False
    for k in range(n):
        i = (first + k) % n
        s = subs[i]
        r = s.take(&t, points + i if points != NULL else &nowhere)
        if r == MT_OK:
            if not alone:
                mt_store_relaxed_i64(&credit.turn, i + 1)       # relaxed because: as above
            return handle_of(s.queue_, &t)
        if r == CLOSED and alone:
            s.refuse(r)
        live += r != MT_SHUTDOWN
    if n and not live:
        (<Subscription>subs[0]).refuse(MT_SHUTDOWN)
    return None


@cython.final
@cython.no_gc_clear         # the points refer to the other attributes
cdef class Points:
    """The wait points of a get of a Consumer, or of one of its subscriptions."""
    cdef Credit credit
    cdef Consumer owner         # None: `alone`, or a listener that waits, which does not keep the Consumer alive
    cdef bint alone             # a get of one of its subscriptions
    cdef bint listens           # a listener's
    cdef tuple subs
    cdef wait_point *all        # the credit's, then one per subscription; NULL: before the first try

    def __dealloc__(self):
        free(self.all)

    cdef int count(self) noexcept:
        return <int>len(self.subs) + 1

    cdef tuple current(self):
        if self.alone:
            return self.subs
        return self.owner.open_subs() if self.listens else self.owner.usable()

    cdef bint lasts(self) noexcept:
        """Whether an entry may be taken. If that ends, Credit.interest_changed() or Subscription.end_lingering() ends
        the wait of a get that lingers."""
        return (<Subscription>self.subs[0]).lasts() if self.alone else self.credit.lasts()

    cdef int renew(self) except -1:
        """Call it before each try: the subscriptions may have changed."""
        cdef int64_t version = self.credit.version()    # read before the subscriptions: a later change ends the wait
        cdef tuple subs = self.current()
        if self.all == NULL or subs is not self.subs:
            self.place(subs)
        self.all[0].events_seen = version
        return 0

    cdef int place(self, tuple subs) except -1:
        cdef wait_point *points = <wait_point *>malloc((len(subs) + 1) * sizeof(wait_point))
        cdef Py_ssize_t i
        if points == NULL:
            raise MemoryError
        if self.all != NULL:
            self.keep_reserved()
            forward_unused(self.all, self.count(), False)
            free(self.all)
        self.all = points
        self.subs = subs
        credit_point(points, &self.credit.p)
        for i in range(len(subs)):
            (<Subscription>subs[i]).place(points + i + 1)
        return 0

    cdef object find(self, bint waited):
        """An Entry, or None: attempt() has failed. waited: so it had before, and its points may be notified."""
        found = None if waited else try_all(self.current(), self.credit, NULL, self.alone)
        return self.attempt() if found is None else found

    cdef object attempt(self):
        """One try: an Entry or None. Forwards the notifications that it does not use."""
        try:
            self.renew()
            found = try_all(self.subs, self.credit, self.all + 1, self.alone)
        except BaseException:
            if self.all != NULL:
                forward_unused(self.all, self.count(), False)
                self.release_unclaimed()
            raise
        if found is not None:
            self.keep_reserved()
            forward_unused(self.all, self.count(), False)
        return found

    cdef void keep_reserved(self) noexcept:
        """Leave the entries that queues have reserved for this get to the next gets of the Consumer, and wake them."""
        cdef Subscription s
        cdef Py_ssize_t i
        cdef bint kept = False
        for i in range(len(self.subs)):
            s = self.subs[i]
            if not self.all[i + 1].woken:
                continue
            lock_order(s.s.q)
            if s.s.nreserved and s.s.nreserved >= s.s.notified:
                locked_answer(&s.s)
                self.all[i + 1].woken = False
                kept = True
            unlock_order(s.s.q)
        if kept:
            self.credit.notify()

    cdef void release_unclaimed(self) noexcept:
        """Release the entries that are reserved for waiters that will not fetch them. A pending exception is kept."""
        cdef Subscription s
        for s in self.subs:
            s.release_unclaimed()

    cdef object entry_or_wait(self):
        """One try of a coroutine. Returns an Entry, or the Waiting to await."""
        found = self.attempt()
        if found is not None:
            return found
        return new_waiting_at(self, self.all, self.count())


cdef Points new_points(Credit credit, tuple subs, Consumer owner):
    cdef Points points = Points.__new__(Points)
    points.credit = credit
    points.subs = subs
    points.owner = owner
    points.alone = owner is None
    return points


cdef object get_from(Credit credit, tuple subs, Consumer owner, int64_t deadline):
    """get of a Consumer, or of one of its subscriptions."""
    cdef int r
    found = try_all(subs if owner is None else owner.usable(), credit, NULL, owner is None)
    if found is not None:
        return found
    if deadline == ONCE:
        raise Empty
    cdef Points points = new_points(credit, subs, owner)
    while True:
        found = points.attempt()
        if found is not None:
            return found
        r = MT_EMPTY
        mt_point()
        if again(points.all, points.count(), &r, deadline):
            continue
        raise_if_failed(r)
        raise Empty             # MT_TIMEOUT


@cython.final
@cython.no_gc_clear     # as its base
cdef class GetFromQueues(GetMany):
    """A get_many of a Consumer, or of one of its subscriptions. An exception releases what was taken."""
    cdef Points at
    cdef bint waited

    cdef int take(self) except -2:
        try:
            while len(self.taken) < self.n:
                found = self.at.find(self.waited)
                self.waited = found is None
                if self.waited:
                    self.points, self.count = self.at.all, self.at.count()
                    return NO_CREDIT if self.taken and not self.at.lasts() else MT_EMPTY
                append_entry(self.taken, found)
        except (ShutDown, ClosedError):
            if not self.taken:
                raise
            return MT_SHUTDOWN
        return MT_OK

    cdef int refuse(self, int r) except -1:
        raise_if_failed(r)
        raise Empty

    cdef int fail(self, object error) except -1:
        return release_all(self.taken)


cdef GetMany new_get_from(Credit credit, tuple subs, Consumer owner):
    cdef GetFromQueues it = GetFromQueues.__new__(GetFromQueues)
    it.at = new_points(credit, subs, owner)
    return it


async def _aget_from(credit, subs, owner):
    """aget of a Consumer, or of one of its subscriptions."""
    cdef Points points = new_points(credit, subs, owner)
    pause = checkpoint()
    if pause is not None:
        await pause
    while True:
        found = points.entry_or_wait()
        if not isinstance(found, Waiting):
            return found
        await (<Waiting>found).wait()


@cython.final
# no_gc_clear: its finalizer closes it; a cycle through it breaks at its lists or at another object.
@cython.no_gc_clear
cdef class Consumer(Root):
    """Consumer(*, prefetch=0, priority=0)\n--\n
    Gets entries from several queues, in round-robin order.

    prefetch: how many unacked entries it may hold in all its queues together; 0: no limit. priority: the priority of
    all its subscriptions; higher numbers come first. Close it, or use it in a `with` block; if it is garbage-collected
    before being closed, it closes itself with a ResourceWarning. Raises ValueError if prefetch < 0. Source: the
    ConsumerTarget of Qpid's consumer-queue design.
    Blocking: it uses the locks of its queues.

    >>> a, b = EntryQueue("a"), EntryQueue("b")
    >>> with Consumer() as both:
    ...     sub_a, sub_b = both.subscribe(a), both.subscribe(b)
    ...     a.put(1), a.put(2), b.put(3)
    ...     [both.get().item for _ in range(3)]
    (<Entry ...>, <Entry ...>, <Entry ...>)
    [1, 3, 2]
    """
    cdef Credit credit
    cdef int64_t priority
    cdef mt_atomic_u32 closed_      # is_open()
    cdef bint started
    cdef object listener
    cdef object __weakref__

    def __cinit__(self, *args, **options):
        self.credit = new_credit()

    def __init__(self, *, prefetch=0, priority=0):
        cdef int64_t limit = int_argument("prefetch", prefetch, "an int >= 0; 0 means no limit", 0)
        cdef int64_t urgency = int_argument("priority", priority, "an int; bigger goes first")
        lock_credit(&self.credit.p)
        cdef bint begun = self.started
        self.started = True
        unlock_credit(&self.credit.p)
        if begun:
            raise RuntimeError("Consumer.__init__ was called on a consumer that is in use")
        self.priority = urgency
        mt_store_relaxed_i64(&self.credit.p.limit, limit)       # relaxed because: it has no subscription yet

    def __del__(self):
        if self.started and self.is_open():
            queues = len(self.credit.subscriptions())
            self.close()
            unclosed(f"unclosed Consumer of {queues} queues: it releases the entries that it holds")

    def __repr__(self):
        queues = len(self.credit.subscriptions())
        return f"<Consumer of {queues} queues, {self.unacked} unacked{'' if self.is_open() else ', closed'}>"

    cdef bint is_open(self) noexcept:
        # relaxed because: it is set once; between subscribe() and close() the lock of the credit orders it
        return mt_load_relaxed_u32(&self.closed_) == 0

    cdef int check_open(self) except -1:
        if not self.is_open():
            raise ClosedError("the consumer is closed")
        return 0

    cdef tuple usable(self):
        """Its open subscriptions, for a get. ClosedError: it is closed, or listens."""
        self.check_open()
        if mt_load_relaxed_u32(&self.credit.listens):       # relaxed because: it is set once, and publishes nothing
            raise ClosedError("the consumer listens: its entries go to the callback")
        return self.open_subs()

    cdef tuple open_subs(self):
        """Its open subscriptions. Drops the closed ones, while other threads do the same, subscribe and close."""
        cdef Subscription s
        cdef tuple found
        while True:
            found = self.credit.subscriptions()
            for s in found:
                if is_closed(&s.s):
                    break
            else:
                return found
            self.credit.replace(found, tuple([it for it in found if not is_closed(&(<Subscription>it).s)]))

    def subscribe(self, queue, **options):
        """Subscribe to one more queue and return the subscription. Takes the options of EntryQueue.subscribe, except
        prefetch and priority, which belong to the consumer. Raises the same errors, and ClosedError if the consumer is
        closed."""
        if not isinstance(queue, EntryQueue):
            raise TypeError(f"queue: {queue!r} of type {type(queue).__name__} (expected: an EntryQueue)")
        self.check_open()
        lock_credit(&self.credit.p)
        self.started = True         # options are set, or are the defaults
        unlock_credit(&self.credit.p)
        selector, browse, exclusive, start, origin = given_options("Consumer.subscribe", options, SUBSCRIBE_OPTIONS)
        it = open_subscription(queue, 0, selector, browse, exclusive, self.priority, start, origin, self.credit)
        found = self.credit.subscriptions()
        while not self.credit.replace(found, found + (it,)):
            found = self.credit.subscriptions()
        if not self.is_open():
            it.close()
            self.check_open()
        # A change of the credit between open_subscription() and replace() did not come to its queue.
        it.interest_changed()
        self.credit.notify()
        return it

    def get(self, block=True, timeout=None):
        """Return the next entry of its queues, in round robin. Waits for one if there is none, even if it has no queue
        yet.

        timeout: seconds for the whole call; None waits without limit. block=False does not wait. Raises Empty if no
        entry comes in time, ShutDown if all its queues are shut down and empty, ClosedError if it is closed or listens,
        and ValueError if timeout is negative or NaN."""
        return get_from(self.credit, None, self, deadline_from(block, timeout))

    def get_many(self, max_items, block=True, timeout=None, *, linger=0.0):
        """Return a list of up to max_items entries. Waits for the first one, then takes all that are available. If
        max_items <= 0, it returns [] at once. Raises the same errors as get; linger works as in
        Subscription.get_many."""
        cdef int64_t n = int_argument("max_items", max_items, "an int"), longer = linger_from(linger)
        cdef GetMany it
        if n <= 0:
            return []
        it = new_get_from(self.credit, None, self)
        it.begin(n, deadline_from(block, timeout), longer)
        if not it.linger:
            return it.run()
        self.credit.count_lingering(1)
        try:
            return it.run()
        finally:
            self.credit.count_lingering(-1)

    async def aget(self):
        """The version of get() for asyncio and trio coroutines. If it is cancelled, no entry and no wake-up is lost."""
        return await _aget_from(self.credit, None, self)

    def __iter__(self):
        return iterate(self)

    def __aiter__(self):
        return iterate(self)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    def listen(self, callback, *, executor):
        """Call callback(entry) for every entry, one call at a time, on an executor. The callback must ack the entry. If
        it raises, sys.unraisablehook is called, and the entry is released unless its delivery has ended. From then on,
        get raises ClosedError. Listening ends when all queues are shut down and empty, or at close(). Raises TypeError
        if callback is not callable or executor has no submit(), and ClosedError if it is closed or already listens."""
        if not callable(callback):
            raise TypeError(f"callback: {callback!r} (expected: a callable of an entry)")
        if not hasattr(executor, "submit"):
            raise TypeError(f"executor: {executor!r} (expected: an executor, which has submit())")
        self.usable()
        listener = Listener(self, callback, executor, _find_or_wait, _end_wait, _report)
        tell_of_forks(listener)
        if mt_xchg_acq_rel_u32(&self.credit.listens, 1):    # pairs with: itself, in other threads: only one listens
            self.usable()               # raises: another thread was faster
        with cython.critical_section(self):
            self.listener = listener
        self.credit.notify()            # waiting gets raise ClosedError
        self.listener.submit()

    @property
    def unacked(self):
        """The number of entries that it holds from all its queues."""
        return mt_load_relaxed_i64(&self.credit.p.used)     # relaxed because: statistics; may be stale

    cdef int set_suspended(self, bint suspended) except -1:
        # relaxed because: every queue's event_count is changed afterwards, under its order lock
        mt_store_relaxed_i64(&self.credit.p.suspended, suspended)
        self.credit.interest_changed()
        return self.credit.notify()

    def suspend(self):
        """Make get wait, even if there are entries, until resume()."""
        self.set_suspended(True)

    def resume(self):
        """Undo suspend()."""
        self.set_suspended(False)

    def close(self):
        """Close all its subscriptions, which releases what they hold. Gets that are waiting, and all later gets, raise
        ClosedError. Waits for a running callback of listen() to finish, unless that callback calls close().
        May be called again."""
        mt_store_relaxed_u32(&self.closed_, 1)      # relaxed because: see is_open()
        with cython.critical_section(self):
            listener = self.listener
        if listener is not None:
            listener.stop()
        cdef tuple found = self.credit.subscriptions()
        while found:
            for s in found:
                s.close()
            self.credit.replace(found, ())
            found = self.credit.subscriptions()
        self.credit.notify()


@cython.final
@cython.no_gc_clear
cdef class ListenerWaiting(Waiting):
    """One wait of a listener: its wake-up submits a task. The executor's submit() is user code and may wait. So in the
    timer thread, on which all queues depend, another thread is started for it."""
    cdef object listener
    cdef mt_atomic_u32 submitted

    cdef bint schedule(self) noexcept:
        # pairs with: itself, in other threads: several points may be notified, but only one task is submitted
        if mt_xchg_acq_rel_u32(&self.submitted, 1) == 0:
            if in_timer_thread():
                submit_in_thread(self.listener)
            else:
                self.listener.submit()
        return True


cdef object submit_in_thread(listener):
    try:
        start_daemon(listener.submit)
    except (RuntimeError, MemoryError):     # no more threads
        listener.submit()


def _end_wait(Waiting waiting not None):
    waiting.finish(True)


def _find_or_wait(Consumer owner not None, listener):
    """Find the entry for the next task, or leave a wait whose wake-up submits one: True. False: try again."""
    cdef ListenerWaiting waiting
    with listener.lock:
        waiting, listener.waiting = listener.waiting, None
    if waiting is not None:
        waiting.finish(False)
    if listener.points is None:
        listener.points = new_points(owner.credit, None, None)
    cdef Points points = listener.points
    points.alone, points.listens = False, True
    owner.check_open()
    points.owner = owner
    try:
        listener.found = points.attempt()
    finally:
        points.owner = None
    if listener.found is not None:
        return True
    waiting = ListenerWaiting.__new__(ListenerWaiting)
    waiting.listener = listener
    wait_at(waiting, points, points.all, points.count())
    if waiting.prepare() != WAIT:
        return False
    with listener.lock:
        stopped = listener.stopped
        if not stopped:
            listener.waiting = waiting
    if stopped:
        waiting.finish(True)
    return True


cdef object get_alone(Credit credit, tuple subscriptions, int64_t deadline):
    return get_from(credit, subscriptions, None, deadline)


cdef GetMany get_many_alone(Credit credit, tuple subscriptions):
    return new_get_from(credit, subscriptions, None)


cdef object aget_alone(Credit credit, tuple subscriptions):
    return _aget_from(credit, subscriptions, None)


consumer_waits.get = get_alone
consumer_waits.get_many = get_many_alone
consumer_waits.aget = aget_alone
mt_patch_new(<PyTypeObject *>Points)
mt_patch_new(<PyTypeObject *>ListenerWaiting)
