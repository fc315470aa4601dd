"""Consumer: one consumer over several entry queues.

It waits in the wait lists of all its subscriptions at once, and in that of its credit, with one Tap in each; whichever
is notified first opens the Gate that they share. Afterwards it leaves all lists and forwards the wake-ups that it has
no use for.
"""
cimport cython
from cpython.exc cimport PyErr_Fetch, PyErr_Restore, PyErr_SetInterrupt
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from libc.stdint cimport int64_t, uint32_t
from libc.string cimport memset

from manytail._c cimport (
    MT_EMPTY, MT_INTERRUPTED, MT_OK, MT_SHUTDOWN, MT_TIMEOUT, MT_WAITER_NOTIFIED, MT_WAITER_QUEUED, mt_atomic_u32,
    mt_load_relaxed_i64, mt_load_relaxed_u32, mt_point, mt_store_relaxed_i64, mt_store_relaxed_u32, mt_waiter,
    mt_waitlist_leave, mt_waitlist_push, mt_xchg_seq_cst_u32,
)
from manytail._cpython cimport PyTypeObject, mt_patch_new
from manytail._entries cimport (
    EntryQueue, forget_acquired, handle_of, int_argument, release_all, running_loop, unpicklable, unraisable,
)
from manytail._eq cimport (
    CLOSED, NO_CREDIT, acquired_entry, effects, entry_queue, lock_credit, lock_order, locked_back, locked_release,
    locked_relist, locked_wake_many, unlock_credit, unlock_order,
)
from manytail._subscriptions cimport (
    Credit, EntryWaiter, Subscription, consumer_waits, iterate, new_credit, open_subscription,
)
from manytail._wait cimport (
    ONCE, LoopWaiter, deadline_from, post_chain, unclosed, waiter_close, waiter_open, waiter_park,
)

import threading
import weakref
from types import GenericAlias

from manytail.errors import ClosedError, Empty, ShutDown


class _NoLoop:
    """For waiters that are no coroutine's."""

    def create_future(self):
        return None


cdef object NO_LOOP = _NoLoop()


@cython.no_gc_clear         # leave_all needs the taps, whoever is collected first
cdef class Gate:
    """Opens once, at the first wake-up of any of its taps.

    Who waits and who finds the loop closed may call leave_all at the same time, also while enter_all is still at it:
    leaving a list twice does nothing, and whoever enters looks at `left` afterwards."""
    cdef mt_waiter w            # a thread's, to park on
    cdef bint threaded
    cdef mt_atomic_u32 opened
    cdef LoopWaiter waker       # of a coroutine; in no list
    cdef object listener
    cdef list taps              # never changed
    cdef mt_atomic_u32 left     # nobody waits here: leave_all was called
    cdef Credit credit

    def __dealloc__(self):
        if self.threaded:
            waiter_close(&self.w)

    cdef bint open(self) noexcept:
        """False: the loop of the coroutine is closed."""
        # pairs with: itself in other threads: only the first opens
        if mt_xchg_seq_cst_u32(&self.opened, 1):
            return True
        if self.threaded:
            self.w.next = NULL
            post_chain(&self.w)
        elif self.listener is not None:
            self.listener.submit()
        else:
            return self.waker.hand_over()
        return True


@cython.final
@cython.no_gc_clear
cdef class Tap(EntryWaiter):
    """A Gate's place in one wait list; `sub` is None in that of the credit."""
    cdef Gate gate

    cdef bint hand_over(self) noexcept:
        return self.gate.open()

    cdef void lost(self) noexcept:
        leave_all(self.gate, None, True)


cdef Gate new_gate(Credit credit, bint threaded, loop, listener):
    cdef Gate g = Gate.__new__(Gate)
    g.credit = credit
    g.taps = []
    g.listener = listener
    if threaded:
        if waiter_open(&g.w) != MT_OK:
            raise MemoryError
        g.threaded = True
    elif loop is not None:
        g.waker = LoopWaiter(loop, None)
    return g


cdef bint enter_all(Gate g, list subs, list event_keys, int64_t version) except -1:
    """Into every list, unless something has happened there since it was looked at: then into none. Whether it waits
    now."""
    g.taps = [new_tap(g, None)] + [new_tap(g, s) for s in subs]
    if not enter_credit(g.credit, g.taps[0], version):
        return False
    try:
        for i in range(len(subs)):
            mt_point()
            if not (<Subscription>subs[i])._enrol(<Tap>g.taps[i + 1], event_keys[i]):
                leave_all(g, None, False)
                return False
    except BaseException:
        leave_all(g, None, True)
        raise
    # relaxed because: whoever set it has left, after that, the lists that were entered before; their locks order it
    # against entering later
    if mt_load_relaxed_u32(&g.left):
        leave_all(g, None, True)
    return True


cdef bint enter_credit(Credit credit, Tap t, int64_t version) noexcept:
    cdef bint quiet
    lock_credit(&credit.p)
    quiet = credit.p.event_count == version
    if quiet:
        Py_INCREF(t)
        mt_waitlist_push(&credit.p.waiters, &t.line.w)
    unlock_credit(&credit.p)
    return quiet


cdef Tap new_tap(Gate g, Subscription s):
    cdef Tap t = Tap(NO_LOOP, None)
    t.gate = g
    t.subscription = s
    return t


cdef void leave_all(Gate g, list useful, bint forward) noexcept:
    """Out of every list. An entry that was handed over is appended to `useful` (None: it is released); a wake-up is
    passed on if it is of no use here."""
    cdef Tap t
    mt_store_relaxed_u32(&g.left, 1)    # relaxed because: see enter_all
    for t in g.taps:
        if t.subscription is None:
            leave_credit(g.credit, t)
        else:
            leave_subscription(t, useful, forward)


cdef void leave_credit(Credit credit, Tap t) noexcept:
    cdef uint32_t was
    lock_credit(&credit.p)
    was = mt_waitlist_leave(&credit.p.waiters, &t.line.w)
    unlock_credit(&credit.p)
    if was == MT_WAITER_QUEUED:
        Py_DECREF(t)


cdef void leave_subscription(Tap t, list useful, bint forward) noexcept:
    cdef Subscription s = t.subscription
    cdef entry_queue *q = s.s.q
    cdef effects fx
    cdef uint32_t was
    cdef bint given
    memset(&fx, 0, sizeof(effects))
    lock_order(q)
    was = mt_waitlist_leave(&s.s.waiters, &t.line.w)
    given = t.line.has_given
    t.line.has_given = False
    if was == MT_WAITER_NOTIFIED:
        locked_back(&s.s)
        if given and useful is None:
            locked_release(q, t.line.given.e, t.line.given.delivery, 0, &fx)
        elif not given and forward:
            locked_wake_many(q, 1, &fx)
    locked_relist(q, &s.s)
    unlock_order(q)
    s.queue_.run_effects(&fx)
    if was == MT_WAITER_QUEUED:
        Py_DECREF(t)
    if not given:
        return
    if useful is None:
        forget_acquired(&t.line.given)
    else:
        keep_given(s, &t.line.given, useful)


cdef void keep_given(Subscription s, acquired_entry *t, list useful) noexcept:
    try:
        useful.append(handle_of(s.queue_, t))
    except BaseException as problem:        # no memory
        unraisable(problem, s, "a handed over entry")


cdef object try_all(list subs, int64_t *turn, list event_keys, Consumer owner):
    """One entry, or None: then event_keys are what the queues' counts of events were. ShutDown when all of them would
    raise it. Wake-ups that came from other queues at the same time, or for which there is no credit, go on to somebody
    else; one that finds nothing that it wants does not, or two that want nothing would wake each other for ever."""
    cdef Subscription s
    cdef acquired_entry t
    cdef int64_t event_key = 0
    cdef int64_t first = turn[0]    # other threads of the consumer move it on
    cdef Py_ssize_t n = len(subs), k, i
    cdef int r = MT_EMPTY, live = 0
    cdef bint broke = False
    event_keys[:] = [None] * n
    for k in range(n):
        i = (first + k) % n
        s = subs[i]
        r = s.take(&t, &event_key)
        if r == MT_OK:
            turn[0] = i + 1
            found = handle_of(s.queue_, &t)
            forward_all(subs)
            return found
        if r == CLOSED and owner is None:
            s.refuse(r)
        event_keys[i] = event_key
        live += r != MT_SHUTDOWN
        broke = broke or r == NO_CREDIT
    if broke:
        forward_all(subs)
    if n and not live:
        (<Subscription>subs[0]).refuse(MT_SHUTDOWN)
    return None


cdef object get_from(Credit credit, list subs, Consumer owner, int64_t deadline):
    """get of a Consumer, or of one of its subscriptions."""
    cdef int64_t turn = 0, version
    cdef list event_keys = [], given = []
    cdef Gate g
    cdef int r
    while True:
        version = credit.version()
        if owner is not None:
            subs = owner.usable()
            found = owner.unstash()
            if found is not None:
                return found
        found = try_all(subs, &turn if owner is None else &owner.turn, event_keys, owner)
        if found is not None:
            return found
        if deadline == ONCE:
            raise Empty
        g = new_gate(credit, True, None, None)
        mt_point()
        if not enter_all(g, subs, event_keys, version):
            continue
        r = waiter_park(&g.w, deadline, True)
        if r == MT_INTERRUPTED:
            return give_up(g)
        leave_all(g, given, False)
        if given:
            return first_given(owner, given)
        found = try_all(subs, &turn if owner is None else &owner.turn, event_keys, owner)
        if found is not None:
            return found
        if r == MT_TIMEOUT:
            raise Empty


cdef object first_given(Consumer owner, list given):
    """Handed over entries: one is returned now, others by the next calls."""
    if owner is not None and len(given) > 1:
        owner.stash.extend(given[1:])
        owner.credit.notify()
    return given[0]


cdef int forward_all(list subs) except -1:
    """Wake-ups that came from several queues at once: whoever else waits there looks again."""
    cdef Subscription s
    for s in subs:
        if s.s.q.available and s.s.q.nwaiting:
            s.forward()
    return 0


async def _aget_from(credit, subs, owner):
    """aget of a Consumer, or of one of its subscriptions."""
    while True:
        found, gate, future = _begin_aget(credit, subs, owner)
        if gate is None:
            if found is not None:
                return found[0]
            continue
        try:
            await future
        except BaseException:
            leave_all(gate, None, True)
            raise
        found = _end_aget(gate, owner)
        if found:
            return found[0]


def _begin_aget(Credit credit, list subs, Consumer owner):
    cdef int64_t turn = 0, version = credit.version()
    cdef list event_keys = []
    cdef Gate g
    if owner is not None:
        subs = owner.usable()
        found = owner.unstash()
        if found is not None:
            return [found], None, None
    found = try_all(subs, &turn if owner is None else &owner.turn, event_keys, owner)
    if found is not None:
        return [found], None, None
    g = new_gate(credit, False, running_loop(), None)
    if not enter_all(g, subs, event_keys, version):
        return None, None, None
    return None, g, g.waker.future


def _end_aget(Gate g, Consumer owner):
    cdef list given = []
    leave_all(g, given, False)
    if given:
        first_given(owner, given)
    return given


cdef object give_up(Gate g):
    """A signal handler raised: forward what came, which runs Python code and must not find that exception
    set."""
    cdef PyObject *kind
    cdef PyObject *error
    cdef PyObject *trace
    PyErr_Fetch(&kind, &error, &trace)
    leave_all(g, None, True)
    PyErr_Restore(kind, error, trace)
    return raise_pending()


cdef object raise_pending():
    """An exception of a signal handler is set."""
    raise_it()


cdef int raise_it() except -1:
    return -1


@cython.final
# Its finalizer closes it; a cycle through it is broken at its lists or at what else is in it.
@cython.no_gc_clear
cdef class Consumer:
    """Consumer(*, prefetch=0, priority=0)\n--\n
    One consumer over several queues: blocks on all of them, takes one entry per queue and turn, has one credit for all.

    prefetch: entries it may hold unacked over all its queues, 0 = no limit. priority: of all its subscriptions, bigger
    first. A context manager and an iterator. Collected unclosed, it closes itself with a ResourceWarning.
    ValueError: prefetch < 0. Source: the ConsumerTarget of Qpid's consumer-queue design.
    Progress: as the queues'.

    >>> a, b = EntryQueue("a"), EntryQueue("b")
    >>> with Consumer() as both:
    ...     sub_a, sub_b = both.subscribe(a), both.subscribe(b)
    ...     a.put(1), a.put(2), b.put(3)
    ...     [both.get().item for _ in range(3)]
    (<Entry ...>, <Entry ...>, <Entry ...>)
    [1, 3, 2]
    """
    cdef Credit credit
    cdef list subs
    cdef list stash             # entries that were handed over while another one was returned
    cdef int64_t priority
    cdef int64_t turn
    cdef bint closed_
    cdef bint started
    cdef object listener
    cdef object __weakref__

    def __cinit__(self, *args, **options):
        self.credit = new_credit()
        self.subs = []
        self.stash = []

    def __init__(self, *, prefetch=0, priority=0):
        cdef int64_t limit = int_argument("prefetch", prefetch, "an int >= 0 (0: no limit)")
        cdef int64_t urgency = int_argument("priority", priority, "an int (bigger goes first)")
        cdef bint begun
        if limit < 0:
            raise ValueError(f"prefetch={prefetch!r}: expected an int >= 0 (0: no limit)")
        lock_credit(&self.credit.p)
        begun = self.started
        self.started = True
        unlock_credit(&self.credit.p)
        if begun:
            raise RuntimeError("Consumer.__init__ was called on a consumer that is in use")
        self.priority = urgency
        mt_store_relaxed_i64(&self.credit.p.limit, limit)       # relaxed because: it has no subscription yet

    def __del__(self):
        if self.started and not self.closed_:
            queues = len(self.subs)
            self.close()
            unclosed(f"unclosed Consumer of {queues} queues: it releases the entries that it holds")

    __class_getitem__ = classmethod(GenericAlias)

    def __reduce__(self):
        raise unpicklable(self)

    def __repr__(self):
        return f"<Consumer of {len(self.subs)} queues, {self.unacked} unacked{', closed' if self.closed_ else ''}>"

    cdef int check_open(self) except -1:
        if self.closed_:
            raise ClosedError("the consumer is closed")
        return 0

    cdef list usable(self):
        """Its open subscriptions."""
        self.check_open()
        if self.listener is not None:
            raise ClosedError("the consumer listens: its entries go to the callback")
        return self.open_subs()

    cdef list open_subs(self):
        """Whoever comes here forgets the closed ones, while others close, subscribe and come here too."""
        cdef Subscription s
        with cython.critical_section(self):
            found = [s for s in self.subs if not s.s.closed]
            if len(found) < len(self.subs):
                self.subs[:] = found
        return found

    cdef object unstash(self):
        """An entry that was handed over while another one was returned, or None."""
        found = None
        with cython.critical_section(self):
            if self.stash:
                found = self.stash.pop(0)
        return found

    def subscribe(self, queue, **options):
        """A subscription of this consumer to one more queue; options as EntryQueue.subscribe, but prefetch and
        priority, which are the consumer's own."""
        if not isinstance(queue, EntryQueue):
            raise TypeError(f"queue={queue!r}: expected an EntryQueue, not {type(queue).__name__}")
        self.check_open()
        lock_credit(&self.credit.p)
        self.started = True         # options are set, or are the defaults
        unlock_credit(&self.credit.p)
        given = subscribe_options(options)
        it = open_subscription(queue, 0, given[0], given[1], given[2], self.priority, given[3], given[4], self.credit)
        with cython.critical_section(self):
            self.subs.append(it)
        if self.closed_:
            it.close()
            self.check_open()
        self.credit.notify()
        return it

    def get(self, block=True, timeout=None):
        """The next entry of its queues, in turn; waits for one if need be, also while it has no queue.

        Empty: nothing came in time. ShutDown: all its queues are shut down and drained. ClosedError: closed, or it
        listens."""
        return get_from(self.credit, None, self, deadline_from(block, timeout))

    def get_many(self, max_items, block=True, timeout=None):
        """Up to max_items entries: waits for the first as get does, then takes what is there. max_items <= 0: [] at
        once."""
        cdef int64_t n = int_argument("max_items", max_items, "an int")
        cdef list out
        if n <= 0:
            return []
        out = [self.get(block, timeout)]
        try:
            while len(out) < n:
                out.append(self.get(False))
        except (Empty, ShutDown, ClosedError):
            return out
        except BaseException:
            release_all(out)
            raise
        return out

    async def aget(self):
        """get for coroutines, on any event loop. Cancelling it loses no entry and passes its wake-up on."""
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
        """Call callback(entry) for every entry, one call at a time, on the executor (it needs submit()). The callback
        acks; if it raises, the entry is released if it is still held and sys.unraisablehook is called. get raises
        ClosedError from now on. Once all its queues are shut down and drained, or close() was called, it ends.
        TypeError: callback is not callable. ClosedError: closed, or it listens already."""
        if not callable(callback):
            raise TypeError(f"callback={callback!r}: expected a callable of an entry")
        self.usable()
        self.listener = _Listener(self, callback, executor)
        self.credit.listens = True
        self.credit.notify()            # whoever waits in a get finds out
        self.listener.submit()

    @property
    def unacked(self):
        """Entries that it holds, over all its queues."""
        return mt_load_relaxed_i64(&self.credit.p.used)     # relaxed because: statistics; may be stale

    cdef int set_suspended(self, bint suspended) except -1:
        cdef Subscription s
        cdef effects fx
        # relaxed because: every queue's count of events goes up afterwards, under its order lock
        mt_store_relaxed_i64(&self.credit.p.suspended, suspended)
        for s in self.open_subs():
            memset(&fx, 0, sizeof(effects))
            lock_order(s.s.q)
            if not s.s.closed:
                locked_relist(s.s.q, &s.s)
                if suspended:
                    locked_wake_many(s.s.q, s.s.q.available, &fx)
                else:
                    s.s.q.event_count += 1
            unlock_order(s.s.q)
            s.queue_.run_effects(&fx)
        return self.credit.notify()

    def suspend(self):
        """get waits from now on, whatever is there."""
        self.set_suspended(True)

    def resume(self):
        """The opposite of suspend()."""
        self.set_suspended(False)

    def close(self):
        """Close all its subscriptions, which releases what they hold. Waiting and later gets raise ClosedError. Waits
        for a running call of listen(), except from inside it. Idempotent."""
        self.closed_ = True
        if self.listener is not None:
            self.listener.stop()
        for s in list(self.subs):
            s.close()
        with cython.critical_section(self):
            gone = self.subs + self.stash       # released below, because that may run finalizers
            self.subs[:] = []
            self.stash[:] = []
        del gone
        self.credit.notify()


cdef tuple subscribe_options(dict options):
    cdef dict left = dict(options)
    given = (left.pop("selector", None), bool(left.pop("browse", False)), bool(left.pop("exclusive", False)),
             left.pop("start", "oldest"), left.pop("origin", None))
    if left:
        raise TypeError(f"Consumer.subscribe() got unexpected options {', '.join(sorted(left))}: "
                        "expected selector, browse, exclusive, start, origin")
    return given


class _Listener:
    """The push side of a Consumer: a job on the executor per entry, never two at once. A job that finds nothing arms a
    gate whose opening submits the next one."""

    def __init__(self, consumer, callback, executor):
        self.consumer = weakref.ref(consumer)
        self.callback = callback
        self.executor = executor
        self.lock = threading.RLock()
        self.idle = threading.Event()
        self.idle.set()
        self.stopped = False
        self.thread = None
        self.again = False              # a turn began while another ran
        self.gate = None
        self.found = None               # the entry of the next turn

    def submit(self):
        """Run a turn, on the executor. This may be a thread that only wanted to put: what a signal handler raises here
        does not end the listening, so it is tried once more; a turn too many finds nothing to do."""
        interrupted, problem = False, None
        for _ in range(2):
            if self.stopped:
                break
            try:
                self.executor.submit(self.turn)
                problem = None
                break
            except KeyboardInterrupt as raised:
                interrupted, problem = True, raised
            except BaseException as raised:
                problem = raised
        if problem is not None and not self.stopped:        # else closed meanwhile, and then its executor was
            found, self.found = self.found, None
            if found is not None:
                found.release()
            self.fail(problem)
        if interrupted:
            PyErr_SetInterrupt()

    def turn(self):
        with self.lock:
            if self.stopped:
                return
            if self.thread is not None:
                self.again = True       # the gate that the running turn has just armed is open already
                return
            self.thread = threading.get_ident()
            self.idle.clear()
        try:
            self.deliver()
            self.look()
        except (ShutDown, ClosedError):
            self.stopped = True
        except BaseException as problem:        # nobody reads the executor's future
            self.fail(problem)
        finally:
            with self.lock:
                self.thread = None
                again, self.again = self.again, False
                self.idle.set()
        if again or self.found is not None:
            self.submit()

    def fail(self, problem):
        """It cannot go on (no memory): say so, and close the consumer, so that others get what it keeps from them."""
        self.stopped = True
        unraisable(problem, self.callback, "Consumer.listen")
        consumer = self.consumer()
        if consumer is not None:
            consumer.close()

    def deliver(self):
        found, self.found = self.found, None
        if found is None:
            return
        try:
            self.callback(found)
        except BaseException as problem:
            found.release()
            unraisable(problem, self.callback, "the callback of Consumer.listen")

    def look(self):
        """Have an entry for the next turn, or a gate armed that will submit it."""
        consumer = self.consumer()
        while consumer is not None and not self.stopped and not _listen_turn(consumer, self):
            pass

    def stop(self):
        with self.lock:
            self.stopped = True
            inside = self.thread == threading.get_ident()
            gate, self.gate = self.gate, None
        if gate is not None:
            _leave_gate(gate)
        if not inside:
            self.idle.wait()


def _leave_gate(Gate g not None):
    leave_all(g, None, True)


def _listen_turn(Consumer owner not None, listener):
    """Find the next entry, or arm a gate that submits a turn. False: look again."""
    cdef int64_t version = owner.credit.version()
    cdef list event_keys = [], subs, given = []
    cdef Gate g
    if listener.gate is not None:
        leave_all(<Gate>listener.gate, given, False)
        listener.gate = None
        owner.stash.extend(given)
    owner.check_open()
    listener.found = owner.unstash()
    if listener.found is not None:
        return True
    subs = owner.open_subs()
    listener.found = try_all(subs, &owner.turn, event_keys, owner)
    if listener.found is not None:
        return True
    g = new_gate(owner.credit, False, None, listener)
    listener.gate = g
    if enter_all(g, subs, event_keys, version):
        return True
    listener.gate = None
    return False


cdef object get_alone(Credit credit, list subscriptions, int64_t deadline):
    return get_from(credit, subscriptions, None, deadline)


cdef object aget_alone(Credit credit, list subscriptions):
    return _aget_from(credit, subscriptions, None)


consumer_waits.get = get_alone
consumer_waits.aget = aget_alone
mt_patch_new(<PyTypeObject *>Gate)
