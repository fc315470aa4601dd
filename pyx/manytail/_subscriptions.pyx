"""Subscriptions to entry queues: credit, waiting, selectors; and the iterators of browse().

_eq_get.pxd has the algorithm. An unfiltered subscription takes entries by the queue's cursor. One with filters, or with
filtered rivals (_eq.pxd), searches: selectors run without the order lock, on a pinned entry,
and after each the search begins again at the cursor. A get that finds nothing waits at the subscription's point
(entries_point in _eq_manager.pxd), unless the queue's count of events has changed since its search. A notification
that it cannot use is forwarded to another waiter.
"""
cimport cython
from cpython.exc cimport PyErr_Fetch, PyErr_Restore
from cpython.ref cimport PyObject
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from manytail._c cimport *
from manytail._cpython cimport PyTypeObject, mt_patch_new, visitproc
from manytail._entries cimport *
from manytail._entry cimport *
from manytail._eq cimport *
from manytail._eq_cursors cimport *
from manytail._eq_end cimport locked_ack_up_to, locked_run_due_timers
from manytail._eq_get cimport *
from manytail._eq_keys cimport GROUPS_NONE
from manytail._eq_life cimport close_credit, locked_subscribe, locked_unsubscribe, open_credit
from manytail._eq_manager cimport *
from manytail._lifecycle cimport int_argument, raise_if_failed, unclosed
from manytail._waiting cimport *

from manytail._entries import INTERESTS
from manytail.errors import ClosedError, Empty, ExclusiveError, ShutDown


cdef inline cursor *locked_open_walk(entry_queue *q) noexcept nogil:
    """A cursor at the head, for WALK; NULL: no memory. It is not on the stack: after a fork the child's queue still
    lists the walks of threads that are gone, and new threads use their stacks."""
    cdef cursor *walk = <cursor *>malloc(sizeof(cursor))
    if walk != NULL and not open_cursor(q, walk, False):
        free(walk)
        walk = NULL
    return walk


@cython.final
cdef class Credit(Root):
    """Credit that the subscriptions of one Consumer share: how many entries they may hold together, and its waiters."""

    def __cinit__(self):
        self.shared_by = ()
        open_credit(&registry, &self.p)

    def __dealloc__(self):
        close_credit(&self.p)

    cdef int visit(self, visitproc visit, void *arg) noexcept:
        return visit_tasks(&self.p.waiters, visit, arg)

    cdef bint lasts(self) noexcept:
        """Whether an entry may be taken: there is credit, and the Consumer is not suspended."""
        # relaxed because: a hint; each try checks it under the order lock
        return mt_load_relaxed_i64(&self.p.suspended) == 0 and has_shared_credit(&self.p)

    cdef int64_t version(self) noexcept:
        lock_credit(&self.p)
        cdef int64_t now = self.p.event_count
        unlock_credit(&self.p)
        return now

    cdef tuple subscriptions(self):
        """Those that share it. Some may be closed."""
        with cython.critical_section(self):
            return self.shared_by

    cdef bint replace(self, tuple was, tuple by):
        """Set the subscriptions that share it. False: they are no longer `was`, and nothing has changed."""
        cdef bint done
        with cython.critical_section(self):
            done = self.shared_by is was
            if done:
                self.shared_by = by     # frees nothing: the caller refers to `was`
        return done

    cdef void interest_changed(self) noexcept:
        """Call it after a take has left no credit, and after the Consumer was suspended or resumed, without a lock.

        If its subscriptions are idle, wake who waits in their queues: they are outranked no longer. One queue after the
        other, because nobody holds two order locks. A get that read the old credit is waiting, and is woken, or finds
        its queue's event_count changed when it is about to wait, and tries again."""
        cdef Subscription s
        for s in self.subscriptions():
            s.interest_changed()
        lock_credit(&self.p)
        cdef bint some_linger = self.lingering != 0
        unlock_credit(&self.p)
        if some_linger:
            self.notify()               # they return

    cdef void count_lingering(self, int64_t change) noexcept:
        """A get that lingers begins (1) or ends (-1): it returns what it has when there is no credit, or on
        suspend()."""
        lock_credit(&self.p)
        self.lingering += change
        unlock_credit(&self.p)

    cdef int notify(self) except -1:
        cdef effects fx
        memset(&fx, 0, sizeof(effects))
        credit_notify(&self.p, &fx)
        if fx.to_post != NULL:
            post(fx.to_post)
        return 0


@cython.final
@cython.no_gc_clear         # its finalizer closes it; a cycle through it breaks at another object
cdef class Subscription(Root):
    """Subscription(*args, **kwargs)\n--\n
    Gets entries of a queue, and holds them until they are acked, released or rejected. Create it with
    EntryQueue.subscribe, and close it or use it in a `with` block: the entries that it holds then return to their old
    places.

    Several threads may share it. Iterating over it gets entries until get would raise ShutDown or ClosedError. If it is
    garbage-collected before being closed, it closes itself with a ResourceWarning. Its locks and algorithm are the same
    as in its queue (see there for the source)."""

    def __init__(self):
        raise RuntimeError("a Subscription is made by EntryQueue.subscribe, once")

    def __del__(self):
        cdef int64_t held
        if self.open and not is_closed(&self.s):
            held = self.s.nacquired
            self.close()
            if not self.quiet:
                unclosed(f"unclosed subscription to queue {self.queue_.name_!r}: "
                         f"it releases the {held} entries that it holds")

    def _may_be_forgotten(self):
        """For a layer that owns the queue: no ResourceWarning if this is collected unclosed."""
        self.quiet = True

    cdef int visit(self, visitproc visit, void *arg) noexcept:
        return visit_tasks(&self.s.waiters, visit, arg)

    def __repr__(self):
        return f"<Subscription {self.s.id} to {self.queue_.name_!r}, {self.interest}>"

    # -------------------------------------------------------------------------------------------------------------- get
    @cython.binding(False)
    @cython.embedsignature.format("clinic")
    def get(self, block=True, timeout=None):
        """Return the first available entry that matches the filters of this subscription. Waits if there is none, if
        prefetch is used up, or while the subscription is suspended.

        timeout: seconds for the whole call; None waits without limit. block=False does not wait. Raises Empty if no
        entry comes in time, ShutDown if the queue is shut down and empty, ClosedError if the subscription is closed,
        and ValueError if timeout is negative or NaN."""
        cdef acquired_entry t
        cdef wait_point p
        cdef int r = -1
        p.woken = False
        if timeout is None:
            r = self.take(&t, &p)
            if likely(r == MT_OK):
                return handle_of(self.queue_, &t)
            return self.get_slow(NEVER if block else ONCE, r, &p)
        return self.get_slow(deadline_from(block, timeout), r, &p)

    cdef object get_slow(self, int64_t deadline, int r, wait_point *p):
        """r: what the first try at p returned; -1: there was none."""
        cdef acquired_entry t
        if self.credit is not None:
            return consumer_waits.get(self.credit, (self,), deadline)
        self.place(p)
        while True:
            if r == -1:
                r = self.take(&t, p)
            if r == MT_OK:
                return handle_of(self.queue_, &t)
            if deadline == ONCE or (r != MT_EMPTY and r != NO_CREDIT):
                self.refuse(r)
            r = MT_EMPTY
            if not again(p, 1, &r, deadline):
                self.refuse(r)
            r = -1

    cdef int refuse(self, int r) except -1:
        if r == MT_TIMEOUT or r == MT_EMPTY or r == NO_CREDIT:
            raise Empty
        if r == CLOSED:
            raise ClosedError(f"the subscription to {self.queue_.name_!r} is closed")
        if r == MT_SHUTDOWN:
            raise ShutDown(f"queue {self.queue_.name_!r} was shut down and nothing is left to get")
        return raise_if_failed(r)

    cdef int take(self, acquired_entry *t, wait_point *p) except -2:
        """One try: MT_OK, MT_EMPTY, MT_SHUTDOWN, NO_CREDIT or CLOSED. Answers the notification p.woken, forwarding it
        if it cannot be used, and sets p.events_seen."""
        cdef effects fx
        cdef entry *e = NULL
        cdef uint64_t delivery = 0
        cdef entry_queue *q = self.s.q
        cdef bint woken = p.woken
        cdef int r
        p.woken = False
        lock_for_effects(q, &fx)
        if unlikely(q.timers.n != 0):
            locked_run_due_timers(q, mt_now_ns(), &fx)
        if unlikely(woken or self.s.nreserved != 0) and locked_take_reserved(q, &self.s, woken, &e, &delivery):
            r = MT_OK
        else:
            r = locked_take(q, &self.s, &e, &delivery, &fx)
        if likely(r == MT_OK):
            fill_acquired(t, e, delivery)
        elif q.shut and (r == MT_EMPTY or r == NO_CREDIT) and locked_nothing_left(q, &self.s):
            r = MT_SHUTDOWN
        p.events_seen = q.event_count
        unlock_order(q)
        if unlikely(has_effects(&fx)):
            self.queue_.run_effects(&fx)
        if unlikely(r != MT_OK):
            r = self.take_asking(t, p, woken, r) if r != MT_EMPTY else r
        if unlikely(self.credit is not None) and r == MT_OK and not has_credit(&self.s):
            self.credit.interest_changed()      # this get, or the put that handed it its entry, took the last credit
        # relaxed because: it is changed under the order lock, which this get held when it took its entry
        if unlikely(mt_load_relaxed_i64(&self.lingering) != 0) and r == MT_OK:
            self.end_lingering()
        return r

    cdef int take_asking(self, acquired_entry *t, wait_point *p, bint woken, int r) except -2:
        """The slow part of a try whose fast part returned r: ask selectors, and forward the notification."""
        try:
            if r == SLOW:
                r = self.take_slow(t, &p.events_seen)
            elif r == NO_CREDIT and is_shut(self.s.q) and self.s.filtered and not self.s.browse \
                    and not self.wanted_left(True):
                r = MT_SHUTDOWN
        except BaseException:
            if woken:
                self.forward()
            raise
        if woken and r != MT_OK and r != MT_EMPTY:
            self.forward()
        return r

    cdef int take_slow(self, acquired_entry *t, int64_t *events_seen) except -2:
        """Search, for a subscription with filters or rivals, unless it is outranked altogether."""
        cdef cursor *walk
        cdef entry_queue *q = self.s.q
        cdef bint has_rivals = False
        cdef int r
        lock_order(q)
        if is_closed(&self.s):
            unlock_order(q)
            return CLOSED
        if not self.s.browse and locked_outranked(&self.s, &has_rivals):
            events_seen[0] = q.event_count
            r = MT_SHUTDOWN if q.shut and q.held == 0 else MT_EMPTY
            unlock_order(q)
            if r == MT_EMPTY and is_shut(q) and not self.wanted_left(False):
                r = MT_SHUTDOWN
            return r
        cdef search_way way = locked_way(q, &self.s, has_rivals)
        walk = locked_open_walk(q) if way == WALK else NULL
        unlock_order(q)
        if way != WALK:
            return self.search(&self.s.below if way == BELOW else self.s.cursor_in_use, way, t, events_seen)
        if walk == NULL:
            raise MemoryError
        try:
            return self.search(walk, WALK, t, events_seen)
        finally:
            lock_order(q)
            close_cursor(q, walk)
            unlock_order(q)
            free(walk)

    cdef int search(self, cursor *c, search_way way, acquired_entry *t, int64_t *events_seen) except -2:
        """Acquire (or browse) the first entry from the cursor on that it wants and may take.

        Selectors are asked without the lock. After that the search begins again at the cursor, so an entry that came
        before the judged one in between is judged first."""
        cdef entry *e
        cdef entry_queue *q = self.s.q
        cdef selector_results v
        cdef effects fx
        cdef int r
        memset(&v, 0, sizeof(selector_results))
        v.one_entry = True
        lock_for_effects(q, &fx)
        r = locked_first_wanted(q, &self.s, c, way, LAST_ORDER, &v, &e)
        while r == SLOW:
            unlock_order(q)
            try:
                self.queue_.ask(&v, self.listens())
            except BaseException:
                free_results(&v)
                raise
            lock_order(q)
            r = locked_first_wanted(q, &self.s, c, way, LAST_ORDER, &v, &e)
        if r == MT_OK and not self.locked_obtain(e, c, way, t, &fx):
            r = NO_CREDIT
        if q.shut and ((r == MT_EMPTY and (q.held == 0 or self.s.browse))
                       or (r == NO_CREDIT and q.held + q.available == 0)):
            r = MT_SHUTDOWN
        events_seen[0] = q.event_count
        unlock_and_run_effects(self.queue_, &fx)
        free_results(&v)
        if r == MT_NOMEM:
            raise MemoryError
        if r == MT_EMPTY and is_shut(q) and not self.wanted_left(False):
            return MT_SHUTDOWN
        return r

    cdef bint locked_obtain(self, entry *e, cursor *c, search_way way, acquired_entry *t, effects *fx) noexcept nogil:
        """Acquire e, or browse it. False: a get of another queue has taken the last shared credit."""
        if not self.s.browse and self.s.credit != NULL and not take_shared_credit(self.s.credit):
            return False
        if way != BY_HEAPS:
            cursor_skip(self.s.q, c, e)
        if self.s.browse:
            fill_acquired(t, e, 0)
        else:
            fill_acquired(t, e, locked_start_delivery(self.s.q, &self.s, e))
            locked_wake_after_get(self.s.q, &self.s, fx)
        keep_for_handle(self.s.q, e)
        return True

    cdef bint wanted_left(self, bint available) except -1:
        """Whether this subscription wants some HELD entry; available: or an AVAILABLE one."""
        cdef Browser it = browse(self.queue_)   # not the method: a subclass may override it
        cdef Entry h
        cdef int state
        cdef bint passes
        for h in it:
            state = state_of(h.e)
            if state != HELD and not (available and state == AVAILABLE):
                continue
            lock_order(self.s.q)        # a release with a delay may be adding the options
            passes = passes_start_and_origin(&self.s, h.e)
            unlock_order(self.s.q)
            if passes and (self.selector is None or judge(self.queue_, self.selector, h, self.listens())):
                return True
        return False

    cdef void interest_changed(self) noexcept:
        """Call it after a change to the shared credit: see Credit.interest_changed."""
        cdef effects fx
        lock_for_effects(self.s.q, &fx)
        if not is_closed(&self.s):
            locked_interest_changed(self.s.q, &self.s, True, &fx)
        unlock_and_run_effects(self.queue_, &fx)

    cdef bint listens(self) noexcept:
        # relaxed because: an entry may be judged just before its Consumer listens
        return self.credit is not None and mt_load_relaxed_u32(&self.credit.listens) != 0

    cdef bint lasts(self) noexcept:
        """is_interested(), for a caller without the lock."""
        lock_order(self.s.q)
        cdef bint interested = is_interested(&self.s)
        unlock_order(self.s.q)
        return interested

    cdef void place(self, wait_point *p) noexcept:
        """The point at which a get waits; the get refers to this subscription."""
        entries_point(p, &self.s, True)
        p.owner = <void *>self
        p.forwarded = entry_was_forwarded

    cdef void release_unclaimed(self) noexcept:
        """Release the entries that are reserved for waiters that will not fetch them. A pending exception is kept,
        because dead letters run Python code."""
        cdef PyObject *kind
        cdef PyObject *error
        cdef PyObject *trace
        cdef effects fx
        memset(&fx, 0, sizeof(effects))
        PyErr_Fetch(&kind, &error, &trace)
        lock_order(self.s.q)
        locked_release_unclaimed(&self.s, &fx)
        unlock_and_run_effects(self.queue_, &fx)
        PyErr_Restore(kind, error, trace)

    cdef int forward(self) except -1:
        """Forward a notification that this subscription cannot use."""
        cdef effects fx
        lock_for_effects(self.s.q, &fx)
        locked_wake_many(self.s.q, 1, &fx)
        unlock_and_run_effects(self.queue_, &fx)
        return 0

    def get_many(self, max_items, block=True, timeout=None, *, linger=0.0):
        """Return a list of up to max_items entries, at most as many as prefetch allows. Waits for the first one, then
        takes all that are available. If max_items <= 0, it returns [] at once. Raises the same errors as get.

        linger: how many seconds it waits for more entries after the first one. It returns earlier if it has max_items
        entries, times out, is closed or has used up its prefetch, or if the queue is shut down. If an exception
        interrupts it, for example one from a signal handler, the entries are released. block=False ignores linger.
        Raises ValueError if linger is negative or NaN."""
        cdef int64_t n = int_argument("max_items", max_items, "an int"), longer = linger_from(linger)
        cdef GetMany it
        if n <= 0:
            return []
        it = new_get_entries(self) if self.credit is None else consumer_waits.get_many(self.credit, (self,))
        it.begin(n, deadline_from(block, timeout), longer)
        if not it.linger:
            return it.run()
        self.count_lingering(1)
        try:
            return it.run()
        finally:
            self.count_lingering(-1)

    cdef void count_lingering(self, int64_t change) noexcept:
        """A get that lingers begins (1) or ends (-1): end_lingering() has to wake it."""
        if self.credit is not None:         # which may be used up in other queues
            self.credit.count_lingering(change)
        lock_order(self.s.q)
        # relaxed because: under the order lock, and read as a hint without it
        mt_store_relaxed_i64(&self.lingering, mt_load_relaxed_i64(&self.lingering) + change)
        unlock_order(self.s.q)

    cdef void end_lingering(self) noexcept:
        """Call it after a change of credit or suspension. If a get lingers and there is no credit left, wake all
        waiters: those that linger return, the others wait again."""
        cdef effects fx
        lock_for_effects(self.s.q, &fx)
        # relaxed because: under the order lock
        if mt_load_relaxed_i64(&self.lingering) != 0 and not is_interested(&self.s):
            locked_wake_subscription(self.s.q, &self.s, &fx)
        unlock_and_run_effects(self.queue_, &fx)

    # ------------------------------------------------------------------------------------------------------------ async
    async def aget(self):
        """The version of get() for asyncio and trio coroutines. If it is cancelled, no entry and no wake-up is lost."""
        if self.credit is not None:
            return await consumer_waits.aget(self.credit, (self,))
        pause = checkpoint()
        if pause is not None:
            await pause
        found = None
        while True:
            found = self.entry_or_wait(found)
            if isinstance(found, Entry):
                return found
            await (<Waiting>found).wait()

    cdef object entry_or_wait(self, Waiting last):
        """One try of a coroutine after the wait `last` (None: the first try). Returns an Entry, or the Waiting to
        await."""
        cdef acquired_entry t
        cdef wait_point p
        p.woken = last is not None and last.point.woken
        cdef int r = self.take(&t, &p)
        if r == MT_OK:
            return handle_of(self.queue_, &t)
        if r != MT_EMPTY and r != NO_CREDIT:
            self.refuse(r)
        cdef Waiting waiting = new_waiting(self)
        self.place(&waiting.point)
        waiting.point.events_seen = p.events_seen
        return waiting

    # -------------------------------------------------------------------------------------------------------- iteration
    def __iter__(self):
        return EntryIterator.__new__(EntryIterator, self)

    def __aiter__(self):
        return EntryIterator.__new__(EntryIterator, self)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    # ------------------------------------------------------------------------------------------------------------ state
    def ack_up_to(self, Entry entry not None):  # no-cython-lint
        """Ack that entry and all entries received before it that are still held. Returns their number; 0 if that entry
        is not held."""
        cdef entry_queue *q = self.s.q
        cdef subscription *s = &self.s
        cdef effects fx
        cdef int64_t n = 0
        lock_for_effects(q, &fx)
        if entry.e.owner == s and entry.delivery and word_has_delivery(entry_word(&entry.e.word), entry.delivery):
            n = locked_ack_up_to(q, s, entry.e, &fx)
        unlock_and_run_effects(self.queue_, &fx)
        return n

    @property
    def prefetch(self):
        """How many unacked entries it may hold; 0: no limit. It may be assigned. Raises ValueError if it is negative,
        or if the subscription belongs to a Consumer."""
        # relaxed because: it is set once, before the Consumer has a subscription
        return self.s.limit if self.credit is None else mt_load_relaxed_i64(&self.credit.p.limit)

    @prefetch.setter
    def prefetch(self, value):
        cdef int64_t limit = int_argument("prefetch", value, "an int >= 0; 0 means no limit", 0)
        cdef effects fx
        if self.credit is not None:
            raise ValueError("prefetch: the subscription belongs to a Consumer (expected: Consumer(prefetch=...))")
        lock_for_effects(self.s.q, &fx)
        locked_set_limit(self.s.q, &self.s, limit, &fx)
        unlock_and_run_effects(self.queue_, &fx)
        self.end_lingering()

    @property
    def unacked(self):
        """The number of entries that it holds."""
        lock_order(self.s.q)
        cdef int64_t n = self.s.nacquired
        unlock_order(self.s.q)
        return n

    cdef int set_suspended(self, bint suspended) except -1:
        cdef effects fx
        lock_for_effects(self.s.q, &fx)
        locked_set_suspended(self.s.q, &self.s, suspended, &fx)
        unlock_and_run_effects(self.queue_, &fx)
        self.end_lingering()
        return 0

    def suspend(self):
        """Make get wait, even if there are entries, until resume()."""
        self.set_suspended(True)

    def resume(self):
        """Undo suspend()."""
        self.set_suspended(False)

    @property
    def interest(self):
        """"interested": it would take another entry. "not_interested": it is suspended, or prefetch is used up.
        "notified": a waiting get was woken and has not run yet. "non_acquiring": it browses. "closed"."""
        lock_order(self.s.q)
        cdef int which = locked_interest(&self.s)
        unlock_order(self.s.q)
        return INTERESTS[which]

    @property
    def closed(self):
        """True once close() has been called."""
        return bool(is_closed(&self.s))

    def close(self):
        """Release what it holds. Gets that are waiting, and all later gets, raise ClosedError. May be called again."""
        cdef effects fx
        if not self.open:
            return
        lock_for_effects(self.s.q, &fx)
        locked_unsubscribe(self.s.q, &self.s, &fx)
        unlock_and_run_effects(self.queue_, &fx)


@cython.final
@cython.no_gc_clear     # as its base
cdef class GetEntries(GetMany):
    """A get_many of a subscription that belongs to no Consumer. An exception releases what was taken."""
    cdef Subscription subscription

    cdef int take(self) except -2:
        cdef acquired_entry t
        cdef int r
        while len(self.taken) < self.n:
            r = self.subscription.take(&t, &self.point)
            if r != MT_OK:
                return MT_EMPTY if r == NO_CREDIT and not self.taken else r
            append_entry(self.taken, handle_of(self.subscription.queue_, &t))
        return MT_OK

    cdef int refuse(self, int r) except -1:
        return self.subscription.refuse(r)

    cdef int fail(self, object error) except -1:
        return release_all(self.taken)


cdef GetMany new_get_entries(Subscription subscription):
    cdef GetEntries it = GetEntries.__new__(GetEntries)
    it.subscription = subscription
    subscription.place(&it.point)
    return it


@cython.final
cdef class EntryIterator(Root):
    """The iterator of a Subscription or a Consumer, for `for` and `async for`: calls get() or aget() until that raises
    ShutDown or ClosedError. Then it stays at its end, even if an entry is released later; another `for` makes a new
    one."""
    cdef object getter          # the Subscription or Consumer; constant, as several threads may use this
    cdef mt_atomic_u32 ended    # it is at its end

    def __cinit__(self, getter):
        self.getter = getter

    def __iter__(self):
        return self

    def __next__(self):
        if mt_load_relaxed_u32(&self.ended):            # relaxed because: it publishes nothing
            raise StopIteration
        try:
            return self.getter.get()
        except (ShutDown, ClosedError):
            mt_store_relaxed_u32(&self.ended, True)     # relaxed because: as above
            raise StopIteration from None

    def __aiter__(self):
        return self

    async def __anext__(self):
        if mt_load_relaxed_u32(&self.ended):            # relaxed because: as above
            raise StopAsyncIteration
        try:
            return await self.getter.aget()
        except (ShutDown, ClosedError):
            mt_store_relaxed_u32(&self.ended, True)     # relaxed because: as above
            raise StopAsyncIteration from None


@cython.final
# no_gc_clear: __dealloc__ needs the queue. A cycle through this breaks at the queue or at another object.
@cython.no_gc_clear
cdef class Browser(Root):
    """The iterator of EntryQueue.browse(). Several threads may share one: each entry goes to one of them."""
    cdef EntryQueue queue_
    cdef cursor c
    cdef bint open              # c is on the queue's lists; under the order lock

    def __dealloc__(self):
        if self.queue_ is not None:
            lock_order(self.queue_.q)
            self.locked_stop()
            unlock_order(self.queue_.q)

    cdef inline void locked_stop(self) noexcept nogil:
        if self.open:
            self.open = False
            close_cursor(self.queue_.q, &self.c)

    def __iter__(self):
        return self

    def __next__(self):
        cdef entry_queue *q = self.queue_.q
        cdef entry *e = NULL
        cdef acquired_entry t
        lock_order(q)
        if self.open:
            e = self.locked_next()
            if e == NULL:
                self.locked_stop()
            else:
                keep_for_handle(q, e)
                fill_acquired(&t, e, 0)
        unlock_order(q)
        if e == NULL:
            raise StopIteration
        return handle_of(self.queue_, &t)

    cdef entry *locked_next(self) noexcept nogil:
        """The next entry, which the cursor passes; NULL at the end."""
        cdef entry_queue *q = self.queue_.q
        for i in range(q.nlevels):
            e = level_first(&q.lists[i], &self.c.positions[i], ACQUIRED)
            if e != NULL:
                position_move(&q.lists[i], &self.c.positions[i], e.next)
                return e
        return NULL


cdef void entry_was_forwarded(wait_point *p) noexcept nogil:
    with gil:
        (<Subscription>p.owner).release_unclaimed()


# --------------------------------------------------------------------------------------------------------------- making
cdef Subscription open_subscription(EntryQueue queue, int64_t prefetch, selector, bint browse, bint exclusive,
                                    int64_t priority, start, origin, Credit credit):
    cdef Subscription it = Subscription.__new__(Subscription)
    cdef subscription *s = &it.s
    if start not in ("oldest", "newest"):
        raise ValueError(f"start: {start!r} (expected: 'oldest' or 'newest')")
    if isinstance(selector, str):
        from manytail._selectors import compile_selector    # here: most queues need no parser
        selector = compile_selector(selector)
    elif selector is not None and not callable(selector):
        raise TypeError(f"selector: {selector!r} (expected: a callable, a str or None)")
    it.queue_ = queue
    it.selector = selector
    it.origin = origin
    if credit is not None:
        it.credit = credit
        s.credit = &credit.p
    s.q = queue.q
    s.browse = browse
    s.exclusive = exclusive
    s.limit = prefetch
    s.selector = <void *>selector if selector is not None else NULL
    s.origin = <void *>origin if origin is not None else NULL
    s.any_entry = not browse and selector is None and origin is None and start == "oldest"
    s.filtered = not s.any_entry or queue.q.groups != GROUPS_NONE
    lock_order(queue.q)
    cdef int r = locked_subscribe(queue.q, s, priority, start == "newest")
    unlock_order(queue.q)
    raise_if_failed(r)
    if r != MT_OK:
        raise ExclusiveError(
            f"queue {queue.name_!r} has an exclusive subscription (expected: close it first)" if queue.q.exclusive else
            f"exclusive: queue {queue.name_!r} has {queue.q.nsubscriptions} open subscriptions (expected: none)")
    it.open = True
    return it


cdef object browse(EntryQueue queue):
    cdef Browser it = Browser.__new__(Browser)
    it.queue_ = queue
    lock_order(queue.q)
    queue.begun = True          # __init__ must not change the number of levels after this: the cursor's size is that
    it.open = open_cursor(queue.q, &it.c, False)
    unlock_order(queue.q)
    if not it.open:
        raise MemoryError
    return it


cdef object subscribe(EntryQueue queue, int64_t prefetch, object selector, bint browse, bint exclusive,
                      int64_t priority, object start, object origin):
    return open_subscription(queue, prefetch, selector, browse, exclusive, priority, start, origin, None)


cdef object iterate(object getter):
    return EntryIterator.__new__(EntryIterator, getter)


cdef Credit new_credit():
    return Credit.__new__(Credit)


makers.subscribe = subscribe
makers.browse = browse
for closed_type in (EntryIterator, GetEntries, Subscription, Credit, Browser):
    mt_patch_new(<PyTypeObject *>closed_type)
del closed_type
