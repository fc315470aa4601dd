# Subscriptions: a pointer each, credit, waiting, selectors; and browse() iterators.

cdef struct place_in_line:      # a waiter of a subscription; `w` comes first
    mt_waiter w
    taken given                 # put(immediate=True) may leave an entry in it
    bint has_given


cdef class EntryWaiter(LoopWaiter):
    """A place in a subscription's wait list that is no thread's: a coroutine's, or a Consumer's."""
    cdef place_in_line line
    cdef Subscription sub

    def __cinit__(self, object loop, object on_lost):
        self.line.w.sem = NULL
        self.line.w.callback = <void *>self
        self.line.w.thread = this_thread()

    cdef void lost(self) noexcept:
        if self.sub is not None:        # else the collector has cleared this waiter
            self.sub.lost(self)


cdef extern from *:
    """
    static inline mt_waiter *mt_first_waiter(mt_waitlist *l, int kind) { return l->first[kind]; }
    """
    mt_waiter *mt_first_waiter(mt_waitlist *, int kind) nogil
    void mt_waitlist_notify_first(mt_waitlist *, int kind, mt_waiter **wake) nogil


cdef void ordered_give(core *q, sub *s, entry *e, uint64_t delivery, debts *d) noexcept nogil:
    """Leave an entry, acquired for s, with a waiter of it, and wake that one."""
    cdef int kind = MT_WAITER_THREAD
    cdef mt_waiter *w = mt_first_waiter(&s.waiters, kind)
    if w == NULL:
        kind = MT_WAITER_LOOP
        w = mt_first_waiter(&s.waiters, kind)
    ordered_note(&(<place_in_line *>w).given, e, delivery)
    (<place_in_line *>w).has_given = True
    mt_waitlist_notify_first(&s.waiters, kind, &d.wake)
    s.notified += 1
    ordered_relist(q, s)


@cython.final
@cython.trashcan(True)      # an origin may be another subscription, and so on
@cython.no_gc_clear         # its finalizer closes it; a cycle through it is broken at what else is in it
cdef class Subscription:
    """Subscription(*args, **kwargs)\n--\n
    A pointer into one queue's order. Usable from several threads. Closing it releases what it holds, each entry at its old place.

    Made by EntryQueue.subscribe. A context manager and an iterator: iteration ends where get would raise ShutDown or ClosedError. Collected
    unclosed, it closes itself with a ResourceWarning.
    Progress: as the queue's."""
    cdef sub s
    cdef EntryQueue queue_
    cdef object selector
    cdef object origin
    cdef Credit credit          # shared with the other subscriptions of a Consumer, or None
    cdef bint open
    cdef bint quiet
    cdef object __weakref__

    def __init__(self):
        raise RuntimeError("a Subscription is made by EntryQueue.subscribe, once")

    def __del__(self):
        cdef int64_t held
        if self.open and not self.s.closed:
            held = self.s.nheld
            self.close()
            if not self.quiet:
                unclosed(f"unclosed subscription to queue {self.queue_.name_!r}: it releases the {held} entries that it holds")

    def _may_be_forgotten(self):
        """For one whose queue nobody else has: collected unclosed, it closes itself without a warning."""
        self.quiet = True

    __class_getitem__ = classmethod(GenericAlias)

    def __reduce__(self):
        raise unpicklable(self)

    def __repr__(self):
        return f"<Subscription {self.s.id} to {self.queue_.name_!r}, {self.interest}>"

    # --------------------------------------------------------------------------------------------------------------- get
    @cython.binding(False)
    @cython.embedsignature.format("clinic")
    def get(self, block=True, timeout=None):
        """The first AVAILABLE entry in the order that it wants and may take; waits for one if need be.

        Out of credit or suspended: waits, or Empty with block=False. timeout: seconds for the whole call, None waits for ever.
        Empty: nothing came in time. ShutDown: the queue was shut down and nothing is left. ClosedError: closed. ValueError: timeout
        is negative or NaN."""
        cdef taken t
        cdef int64_t ticket = 0
        cdef int r
        if timeout is None:
            r = self.take(&t, &ticket)
            if likely(r == MT_OK):
                return handle_of(self.queue_, &t)
            return self.get_slow(NEVER if block else ONCE, r, ticket)
        return self.get_slow(deadline_from(block, timeout), -1, 0)

    cdef object get_slow(self, int64_t deadline, int r, int64_t ticket):
        cdef taken t
        cdef bint woken = False
        if self.credit is not None:
            return get_from(self.credit, [self], None, deadline)
        while True:
            if r == -1:
                r = self.take_woken(&t, &ticket, woken)
                if r == MT_OK:
                    return handle_of(self.queue_, &t)
            if r != MT_EMPTY and r != ST_NO_CREDIT:
                self.refuse(r)
            if deadline == ONCE:
                raise Empty
            r = self.wait(deadline, ticket, &t, &woken)
            if r == ST_GIVEN:
                return handle_of(self.queue_, &t)
            if r != MT_OK:
                self.refuse(r)
            r = -1

    cdef int take_woken(self, taken *t, int64_t *ticket, bint woken) except -2:
        """take, after a wake-up or not: one for an entry that it cannot take goes on to somebody else."""
        cdef int r = -2
        try:
            r = self.take(t, ticket)
        finally:
            if woken and r != MT_OK and r != MT_EMPTY:
                self.pass_on()
        return r

    cdef int refuse(self, int r) except -1:
        if r == MT_INTERRUPTED:
            return -1                   # the handler's exception is set
        if r == MT_TIMEOUT or r == MT_EMPTY or r == ST_NO_CREDIT:
            raise Empty
        if r == ST_CLOSED:
            raise ClosedError(f"the subscription to {self.queue_.name_!r} is closed")
        if r == MT_SHUTDOWN:
            raise ShutDown(f"queue {self.queue_.name_!r} was shut down and nothing is left to get")
        raise MemoryError

    cdef inline int take(self, taken *t, int64_t *ticket) except -2:
        """One try. MT_OK, MT_EMPTY, MT_SHUTDOWN, ST_NO_CREDIT, ST_CLOSED. ticket: what the queue's count of events was then."""
        cdef debts d
        cdef entry *e = NULL
        cdef uint64_t delivery = 0
        cdef core *q = self.s.q
        cdef int r
        clear_debts(&d)
        lock_order(q)
        ordered_look_at_clock(q, &d)
        r = ordered_take_plain(q, &self.s, &e, &delivery)
        if likely(r == MT_OK):
            ordered_note(t, e, delivery)
            ordered_after_get(q, &self.s, &d)
        elif q.shut and (r == MT_EMPTY or r == ST_NO_CREDIT) and ordered_nothing_left(q, &self.s):
            r = MT_SHUTDOWN
        ticket[0] = q.events
        unlock_order(q)
        if unlikely(d.wake != NULL or d.dead != NULL or d.late or d.quiet):
            self.queue_.settle(&d)
        if likely(r == MT_OK):
            return r
        if r == ST_SLOW:
            return self.take_slow(t, ticket)
        if r == ST_NO_CREDIT and q.shut and self.s.own and not self.s.browse and not self.wanted_left(True):
            return MT_SHUTDOWN
        return r

    cdef int take_slow(self, taken *t, int64_t *ticket) except -2:
        """As take, for a subscription with wishes of its own or with others before it."""
        cdef core *q = self.s.q
        cdef cursor walk
        cdef bint outranked, maybe = False
        cdef int r
        lock_order(q)
        if self.s.closed:
            unlock_order(q)
            return ST_CLOSED
        if not self.s.browse:
            outranked = ordered_outranked(q, &self.s, &maybe)
            if outranked:
                ticket[0] = q.events
                r = MT_SHUTDOWN if q.shut and q.held == 0 else MT_EMPTY
                unlock_order(q)
                return r
        if not maybe and q.groups == GROUPS_NONE or self.s.browse:
            unlock_order(q)
            return self.search(self.s.cur, False, MT_ENTRY_AVAILABLE, t, ticket)
        # What is passed over now may be free later: walk from the head, leave the pointer where it is.
        if not cursor_open(q, &walk, False):
            unlock_order(q)
            raise MemoryError
        unlock_order(q)
        try:
            return self.search(&walk, True, MT_ENTRY_AVAILABLE, t, ticket)
        finally:
            lock_order(q)
            cursor_close(q, &walk)
            unlock_order(q)

    cdef int search(self, cursor *c, bint walking, int state, taken *t, int64_t *ticket) except -2:
        """The first entry from the pointer on that it wants and may take. Selectors run without the lock, on a pinned entry; afterwards the
        search begins again at the pointer, so whatever came before that entry meanwhile is asked first."""
        cdef core *q = self.s.q
        cdef sub *s = &self.s
        cdef debts d
        cdef entry *e
        cdef entry *judged = NULL       # pinned
        cdef bint wanted = False
        cdef uint64_t delivery
        cdef int r
        clear_debts(&d)
        lock_order(q)
        while True:
            r = ordered_usable(s)
            if r != MT_OK:
                break
            e = cursor_first(q, c)
            if e == NULL:
                r = MT_EMPTY
                break
            if not may_take(q, s, e):
                cursor_skip(q, c, e)
                continue
            if e != judged and (s.selector != NULL or walking):
                if judged != NULL:
                    mt_entry_drop(judged)
                judged = e
                wanted = self.judge_unlocked(e, walking)
                continue
            if judged == e and not wanted:
                cursor_skip(q, c, e)
                continue
            cursor_skip(q, c, e)
            if s.browse:
                keep_for_handle(e)
                ordered_note(t, e, 0)
            else:
                delivery = ordered_acquire(q, s, e)
                ordered_note(t, e, delivery)
                ordered_after_get(q, s, &d)
            break
        ticket[0] = q.events
        if judged != NULL:
            mt_entry_drop(judged)
        if q.shut and r == MT_EMPTY and (q.held == 0 or s.browse):
            r = MT_SHUTDOWN
        elif q.shut and r == ST_NO_CREDIT and q.held == 0 and q.available == 0:
            r = MT_SHUTDOWN
        unlock_order(q)
        self.queue_.settle(&d)
        if r == MT_EMPTY and q.shut and not self.wanted_left(False):
            return MT_SHUTDOWN
        return r

    cdef bint wanted_left(self, bint available) except -1:
        """Whether some HELD entry, or an AVAILABLE one too, is for this subscription."""
        cdef core *q = self.s.q
        cdef Browser it = self.queue_.browse()
        cdef Entry h
        cdef int state
        for h in it:
            state = state_of(h.e)
            if (state == MT_ENTRY_HELD or (available and state == MT_ENTRY_AVAILABLE)) and quick_wants(&self.s, h.e):
                if self.selector is None or judge(self.queue_, self.selector, h, self.listens()):
                    return True
        return False

    cdef inline bint listens(self) noexcept:
        return self.credit is not None and self.credit.listens

    cdef bint judge_unlocked(self, entry *e, bint walking) except -1:
        """Ask the selector, and when walking those of more urgent subscriptions, about e; the order lock is given up meanwhile. e is pinned
        for the caller. On an exception the lock is not held."""
        cdef core *q = self.s.q
        cdef taken t
        cdef Entry h
        cdef list others = None
        cdef PyObject **found = NULL
        cdef int64_t n = 0, i
        cdef bint verdict = True
        mt_entry_keep(e)
        keep_for_handle(e)
        ordered_note(&t, e, 0)
        if walking:
            n = ordered_rivals(q, &self.s, e, &found)
        unlock_order(q)
        try:
            h = handle_of(self.queue_, &t)
            if n < 0:
                raise MemoryError
            others = [mt_owned(found[i]) for i in range(n)] if n else None
            n = 0
            if self.selector is not None:
                verdict = judge(self.queue_, self.selector, h, self.listens())
            if verdict and others is not None:
                for selector in others:
                    if selector is None or judge(self.queue_, selector, h, self.listens()):
                        verdict = False
                        break
        except BaseException:
            mt_entry_drop(e)
            raise
        finally:
            free(found)
        lock_order(q)
        return verdict

    cdef int wait(self, int64_t deadline, int64_t ticket, taken *t, bint *woken) except -2:
        """Until another try is worth it: MT_OK, woken says whether by a wake-up. ST_GIVEN: t was handed over."""
        cdef place_in_line w
        cdef core *q = self.s.q
        cdef sub *s = &self.s
        cdef debts d
        cdef PyObject *kind = NULL
        cdef PyObject *error = NULL
        cdef PyObject *trace = NULL
        cdef bint notified = True
        cdef int r = waiter_open(&w.w)
        if r != MT_OK:
            return r
        clear_debts(&d)
        w.has_given = False
        woken[0] = False
        mt_point()
        lock_order(q)
        if q.events != ticket or s.closed:
            unlock_order(q)
            waiter_close(&w.w)
            return MT_OK
        mt_waitlist_push(&s.waiters, &w.w)
        ordered_relist(q, s)
        unlock_order(q)
        mt_point()
        r = waiter_park(&w.w, deadline, True)
        mt_point()
        if r == MT_INTERRUPTED:         # what passing on runs, dead letters too, must not find the handler's exception set
            PyErr_Fetch(&kind, &error, &trace)
        lock_order(q)
        if r != MT_OK:
            notified = mt_waitlist_leave(&s.waiters, &w.w) == MT_WAITER_NOTIFIED
        if notified and s.notified > 0:
            s.notified -= 1
        ordered_relist(q, s)
        if r == MT_INTERRUPTED and notified:
            if w.has_given:
                ordered_release(q, w.given.e, w.given.delivery, 0, &d)
            else:
                ordered_wake_many(q, 1, &d)
        unlock_order(q)
        if notified and r != MT_OK:
            waiter_await_post(&w.w, True)
        waiter_close(&w.w)
        self.queue_.settle(&d)
        if r == MT_INTERRUPTED:
            if w.has_given:
                forget_taken(&w.given)
            PyErr_Restore(kind, error, trace)
            return r
        if w.has_given:
            return self.accept(&w.given, t)
        woken[0] = notified
        return MT_OK if notified and r == MT_TIMEOUT else r

    cdef int accept(self, taken *given, taken *t) except -2:
        """What put(immediate=True) handed over, unless close() has taken it back."""
        if mt_word_held_by(mt_entry_word(&given.e.word), given.delivery) or not self.s.closed:
            t[0] = given[0]
            return ST_GIVEN
        forget_taken(given)
        return ST_CLOSED

    cdef int pass_on(self) except -1:
        """A wake-up that is of no use here goes to somebody else."""
        cdef debts d
        clear_debts(&d)
        lock_order(self.s.q)
        ordered_wake_many(self.s.q, 1, &d)
        unlock_order(self.s.q)
        self.queue_.settle(&d)
        return 0

    def get_many(self, max_items, block=True, timeout=None):
        """Up to max_items entries, credit allowing: waits for the first as get does, then takes what is there. max_items <= 0: [] at once."""
        cdef int64_t n = int_argument("max_items", max_items, "an int"), ticket = 0
        cdef list out
        cdef taken t
        if n <= 0:
            return []
        out = [self.get(block, timeout)]
        try:
            while len(out) < n and self.take(&t, &ticket) == MT_OK:
                out.append(handle_of(self.queue_, &t))
        except BaseException:
            release_all(out)
            raise
        return out

    # ------------------------------------------------------------------------------------------------------------- async
    async def aget(self):
        """get for coroutines, on any event loop. Cancelling it loses no entry and passes its wake-up on."""
        woken = False
        if self.credit is not None:
            return await _aget_from(self.credit, [self], None)
        while True:
            found, ticket = self._try(woken)
            if found is not None:
                return found
            waiter = self._waiter(running_loop())
            if not self._enrol(waiter, ticket):
                woken = False
                continue
            try:
                await waiter.future
            except BaseException:
                self._withdraw(waiter)
                raise
            found = self._back(waiter)
            if found is not None:
                return found
            woken = True

    def _try(self, bint woken):
        cdef taken t
        cdef int64_t ticket = 0
        cdef int r = self.take_woken(&t, &ticket, woken)
        if r == MT_OK:
            return handle_of(self.queue_, &t), 0
        if r != MT_EMPTY and r != ST_NO_CREDIT:
            self.refuse(r)
        return None, ticket

    def _enrol(self, EntryWaiter waiter not None, int64_t ticket):
        """Queue a coroutine unless something has happened since it looked."""
        cdef core *q = self.s.q
        cdef bint quiet
        lock_order(q)
        quiet = q.events == ticket and not self.s.closed
        if quiet:
            Py_INCREF(waiter)
            mt_waitlist_push(&self.s.waiters, &waiter.line.w)
            ordered_relist(q, &self.s)
        unlock_order(q)
        return quiet

    def _back(self, EntryWaiter waiter not None):
        """A coroutine that was woken runs again: the entry that was handed over, or None."""
        cdef taken t
        self.count_back()
        if not waiter.line.has_given:
            return None
        waiter.line.has_given = False
        if self.accept(&waiter.line.given, &t) == ST_CLOSED:
            self.refuse(ST_CLOSED)
        return handle_of(self.queue_, &t)

    cdef int count_back(self) except -1:
        lock_order(self.s.q)
        if self.s.notified > 0:
            self.s.notified -= 1
        ordered_relist(self.s.q, &self.s)
        unlock_order(self.s.q)
        return 0

    def _withdraw(self, EntryWaiter waiter not None):
        cdef core *q = self.s.q
        cdef debts d
        cdef uint32_t was
        clear_debts(&d)
        lock_order(q)
        was = mt_waitlist_leave(&self.s.waiters, &waiter.line.w)
        if was == MT_WAITER_NOTIFIED:
            if self.s.notified > 0:
                self.s.notified -= 1
            if waiter.line.has_given:
                ordered_release(q, waiter.line.given.e, waiter.line.given.delivery, 0, &d)
            else:
                ordered_wake_many(q, 1, &d)
        ordered_relist(q, &self.s)
        unlock_order(q)
        if waiter.line.has_given:
            waiter.line.has_given = False
            forget_taken(&waiter.line.given)
        self.queue_.settle(&d)
        if was == MT_WAITER_QUEUED:
            Py_DECREF(waiter)

    def _waiter(self, loop):
        cdef EntryWaiter w = EntryWaiter(loop, None)
        w.sub = self
        return w

    cdef void lost(self, EntryWaiter waiter) noexcept:
        """The loop of a waiter that was woken is closed."""
        cdef core *q = self.s.q
        cdef debts d
        cdef bint given = waiter.line.has_given
        clear_debts(&d)
        waiter.line.has_given = False
        lock_order(q)
        if self.s.notified > 0:
            self.s.notified -= 1
        ordered_relist(q, &self.s)
        if given:
            ordered_release(q, waiter.line.given.e, waiter.line.given.delivery, 0, &d)
        else:
            ordered_wake_many(q, 1, &d)
        unlock_order(q)
        if given:
            forget_taken(&waiter.line.given)
        self.queue_.settle(&d)

    # --------------------------------------------------------------------------------------------------------- iteration
    def __iter__(self):
        return EntryIterator.__new__(EntryIterator, self)

    def __aiter__(self):
        return EntryIterator.__new__(EntryIterator, self)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    # ------------------------------------------------------------------------------------------------------------- state
    def ack_up_to(self, Entry entry not None):
        """Ack all that it got no later than that entry and still holds; how many. 0 if it does not hold it."""
        return self.ack_run(entry)

    cdef object ack_run(self, Entry h):
        cdef core *q = self.s.q
        cdef sub *s = &self.s
        cdef debts d
        cdef entry *e
        cdef entry *following
        cdef pool *p
        cdef bint last = False
        cdef int64_t n = 0
        clear_debts(&d)
        lock_order(q)
        if h.e.owner == s and h.delivery and mt_word_held_by(mt_entry_word(&h.e.word), h.delivery):
            p = ordered_begin_to_let_go(h.e)
            following = s.held_first
            while not last:
                e = following
                following = e.held_next
                last = e == h.e
                n += ordered_finish_step(q, e, mt_word_delivery(mt_entry_word(&e.word)), ACKED, &d)
            unlock_pool(p)
        unlock_order(q)
        self.queue_.settle(&d)
        return n

    @property
    def prefetch(self):
        """Entries it may hold unacked, 0 = no limit. May be assigned."""
        return self.s.limit if self.credit is None else self.credit.get_limit()

    @prefetch.setter
    def prefetch(self, value):
        cdef int64_t limit = int_argument("prefetch", value, "an int >= 0 (0: no limit)")
        cdef debts d
        if limit < 0:
            raise ValueError(f"prefetch={value!r}: expected an int >= 0 (0: no limit)")
        if self.credit is not None:
            raise ValueError("prefetch of a Consumer's subscription: the Consumer has one credit for all")
        clear_debts(&d)
        lock_order(self.s.q)
        ordered_set_limit(self.s.q, &self.s, limit, &d)
        unlock_order(self.s.q)
        self.queue_.settle(&d)

    @property
    def unacked(self):
        """Entries that it holds, at one instant."""
        cdef int64_t n
        lock_order(self.s.q)
        n = self.s.nheld
        unlock_order(self.s.q)
        return n

    cdef int set_suspended(self, bint suspended) except -1:
        cdef debts d
        clear_debts(&d)
        lock_order(self.s.q)
        ordered_set_suspended(self.s.q, &self.s, suspended, &d)
        unlock_order(self.s.q)
        self.queue_.settle(&d)
        return 0

    def suspend(self):
        """get waits from now on, whatever is there."""
        self.set_suspended(True)

    def resume(self):
        """The opposite of suspend()."""
        self.set_suspended(False)

    @property
    def interest(self):
        """interested: open, not suspended, credit left. not_interested: suspended or out of credit. notified: a waiter of it was woken and is
        not back yet. non_acquiring: it browses. closed."""
        cdef core *q = self.s.q
        cdef str now
        cdef bint closed, interested, notified
        lock_order(q)
        closed, interested, notified = self.s.closed, is_interested(&self.s), self.s.notified > 0
        unlock_order(q)
        if closed:
            return "closed"
        if not interested:
            return "not_interested"
        if self.s.browse:
            return "non_acquiring"
        return "notified" if notified else "interested"

    @property
    def closed(self):
        """True from close() on."""
        return bool(self.s.closed)

    def close(self):
        """Release what it holds; waiting and later gets raise ClosedError. Idempotent."""
        cdef debts d
        if not self.open:
            return
        clear_debts(&d)
        lock_order(self.s.q)
        ordered_unsubscribe(self.s.q, &self.s, &d)
        unlock_order(self.s.q)
        self.queue_.settle(&d)


@cython.final
cdef class EntryIterator:
    """What iterating over a Subscription or a Consumer returns, for `for` and for `async for`: get() until that raises ShutDown or
    ClosedError. Then it is at its end for good, also if an entry is released later; another `for` begins anew."""
    cdef object getter          # whose get and aget are called; None: at the end

    def __cinit__(self, getter):
        self.getter = getter

    def __reduce__(self):
        raise unpicklable(self)

    def __iter__(self):
        return self

    def __next__(self):
        getter = self.getter
        if getter is None:
            raise StopIteration
        try:
            return getter.get()
        except (ShutDown, ClosedError):
            self.getter = None
            raise StopIteration from None

    def __aiter__(self):
        return self

    async def __anext__(self):
        getter = self.getter
        if getter is None:
            raise StopAsyncIteration
        try:
            return await getter.aget()
        except (ShutDown, ClosedError):
            self.getter = None
            raise StopAsyncIteration from None


cdef bint judge(EntryQueue queue, selector, Entry h, bint listening) except -1:
    """Whether a selector wants an entry; one that raises does not, and is counted. A BaseException that is no Exception goes to the caller
    of get; a listener has no caller, so there it is reported and the entry is skipped as well."""
    try:
        return bool(selector(h))
    except BaseException as problem:
        if not listening and not isinstance(problem, Exception):
            raise
        lock_order(queue.q)
        queue.q.figures.selector_errors += 1
        unlock_order(queue.q)
        if not isinstance(problem, Exception):
            unraisable(problem, selector, "a selector of Consumer.listen")
        return False


cdef int64_t ordered_rivals(core *q, sub *s, entry *e, PyObject ***found) noexcept nogil:
    """The selectors (each counted; None: it takes this one anyhow) of more urgent, interested subscriptions that e may suit. < 0: no memory."""
    cdef level *lvl = q.levels
    cdef sub *h
    cdef int64_t n = 0, room = 0
    cdef PyObject **longer
    while lvl != NULL and s.lvl != NULL and lvl.priority > s.lvl.priority:
        h = lvl.all.first
        while h != NULL:
            if is_interested(h) and may_take(q, h, e):
                if n == room:
                    room = room * 2 + 4
                    longer = <PyObject **>realloc(found[0], room * sizeof(PyObject *))
                    if longer == NULL:
                        return -1
                    found[0] = longer
                found[0][n] = <PyObject *>h.selector if h.selector != NULL else <PyObject *>None
                Py_INCREF_raw(found[0][n])
                n += 1
            h = h.all_next
        lvl = lvl.next
    return n


cdef int release_all(list entries) except -1:
    """Whoever took them gets an exception instead."""
    cdef Entry h
    for h in reversed(entries):
        h.release()
    return 0


cdef inline bint ordered_nothing_left(core *q, sub *s) noexcept nogil:
    """After shutdown: nothing that it may take now or later, as far as can be said without selectors."""
    return q.held == 0 and (q.available == 0 or (not s.own and ordered_usable(s) == MT_OK))


@cython.final
@cython.no_gc_clear         # __dealloc__ needs the queue; a cycle through this is broken at the queue or at what else is in it
cdef class Browser:
    """What EntryQueue.browse() returns. Several threads may iterate over one: each entry goes to one of them."""
    cdef EntryQueue queue_
    cdef cursor c
    cdef bint open              # c is on the queue's lists; under the order lock

    def __dealloc__(self):
        if self.queue_ is not None:
            lock_order(self.queue_.q)
            self.ordered_stop()
            unlock_order(self.queue_.q)

    cdef inline void ordered_stop(self) noexcept nogil:
        if self.open:
            self.open = False
            cursor_close(self.queue_.q, &self.c)

    def __reduce__(self):
        raise unpicklable(self)

    def __iter__(self):
        return self

    def __next__(self):
        cdef core *q = self.queue_.q
        cdef entry *e = NULL
        cdef taken t
        lock_order(q)
        if self.open:
            e = self.ordered_next()
            if e == NULL:
                self.ordered_stop()
            else:
                keep_for_handle(e)
                ordered_note(&t, e, 0)
        unlock_order(q)
        if e == NULL:
            raise StopIteration
        return handle_of(self.queue_, &t)

    cdef entry *ordered_next(self) noexcept nogil:
        """The first entry at or after the position, which passes it; NULL at the end."""
        cdef core *q = self.queue_.q
        cdef entry *e
        cdef uint32_t i
        for i in range(q.nlevels):
            e = level_first(&q.lists[i], &self.c.pos[i], MT_ENTRY_ACQUIRED)
            if e != NULL:
                mt_pos_move(&q.lists[i], &self.c.pos[i], e.next)
                return e
        return NULL
