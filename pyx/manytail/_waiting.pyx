"""The part of waiting that needs Python: timeouts, signals, coroutines. _waiting.pxd has the protocol.

A coroutine waits through a `Waiting`. Posting it schedules a callback in its event loop, asyncio's or trio's. Neither
is imported here.
"""
cimport cython
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from libc.math cimport INFINITY
from libc.stdint cimport INT64_MAX, int64_t
from libc.stdlib cimport free

from manytail._c cimport *

import sys
import threading

cdef extern from "Python.h":
    int PyErr_CheckSignals() noexcept       # the exception is left set
    void PyErr_SetInterrupt()
    void PyErr_Fetch(PyObject **, PyObject **, PyObject **)
    void PyErr_Restore(PyObject *, PyObject *, PyObject *)
    void PyErr_WriteUnraisable(object)

cdef extern from *:
    """
    static MT_THREAD_LOCAL int mt_finishing;        /* this thread finishes a wait whose loop is closed */
    static MT_THREAD_LOCAL void *mt_deferred;       /* stack of the nodes that are posted during that */
    static MT_THREAD_LOCAL unsigned mt_calls;       /* of coroutine methods under asyncio */
    """
    bint mt_finishing
    void *mt_deferred
    unsigned mt_calls

cdef enum:
    ATTEMPTS = 100          # a loop that fails this often to schedule a wake-up counts as closed
    CALLS_PER_YIELD = 128   # about a tenth of a millisecond

main_thread = <unsigned long>threading.main_thread().ident
semaphores_miss_signals = sys.platform == "win32"


cdef int64_t deadline_from(object block, object timeout) except -2:
    """NEVER, ONCE or a time on the monotonic clock, from the stdlib's (block, timeout) pair."""
    if not block:
        return ONCE
    if timeout is None:
        return NEVER
    cdef int64_t span = seconds_argument("timeout", timeout, True, True)
    return NEVER if span < 0 else mt_now_ns() + span


cdef int64_t linger_from(object linger) except -2:
    """Nanoseconds; INT64_MAX if it is more than that holds."""
    cdef int64_t span = seconds_argument("linger", linger, True, False)
    return INT64_MAX if span < 0 else span


cdef int64_t seconds_argument(str name, object value, bint zero, bint none) except -2:
    """Nanoseconds, at least 1 for what is not 0; -1: too many for 64 bits. zero: 0 is allowed. none: so is None, for
    which the caller has looked."""
    cdef double seconds
    try:
        seconds = value
    except TypeError:
        expected = "a number of seconds or None" if none else "a number of seconds"
        raise TypeError(f"{name}: {value!r} of type {type(value).__name__} (expected: {expected})") from None
    except OverflowError:       # an int that no double can hold
        seconds = INFINITY if value > 0 else -INFINITY
    if not (seconds >= 0 if zero else seconds > 0):         # NaN is neither
        expected = ">= 0, or None to wait for ever" if none else ">= 0" if zero else "> 0"
        raise ValueError(f"{name}: {value!r} (expected: a number of seconds {expected})")
    return nanoseconds(seconds) or seconds > 0


cdef void this_is_the_main_thread() noexcept:
    """Called in the child of a fork, where the thread that forked runs the signal handlers."""
    global main_thread
    main_thread = PyThread_get_thread_ident()


cdef int run_signal_handlers() noexcept nogil:
    with gil:
        r = PyErr_CheckSignals()
    return r


cdef void wake_task(wait_node *node) noexcept nogil:
    """A pending exception (raised by a signal handler) is saved and restored: the loop's Python code must not see
    it."""
    cdef PyObject *kind
    cdef PyObject *error
    cdef PyObject *trace
    with gil:
        PyErr_Fetch(&kind, &error, &trace)
        wake_or_forward(node)
        PyErr_Restore(kind, error, trace)


cdef void wake_or_forward(wait_node *node) noexcept:
    """Schedule the wake-up, or finish the wait and forward if the event loop is closed.

    Forwarding posts the next task, which calls this function again. A closed loop may leave any number of tasks, so a
    nested call only pushes its node onto mt_deferred, and the outermost call works that off without recursion. Nodes,
    not tasks: a task that waits at several points may be posted once for each."""
    global mt_finishing, mt_deferred
    cdef Waiting waiting
    if mt_finishing:
        node.next = <wait_node *>mt_deferred
        mt_deferred = node
        return
    while node != NULL:
        waiting = <Waiting>node.who.task
        Py_DECREF(waiting)              # the reference of its node; `waiting` has one
        if not waiting.schedule():
            mt_finishing = True
            waiting.finish(True)
            mt_finishing = False
        waiting = None                  # first: freeing it may call this function
        node = pop_deferred()


cdef wait_node *pop_deferred() noexcept:
    global mt_deferred
    cdef wait_node *node = <wait_node *>mt_deferred
    if node != NULL:
        mt_deferred = node.next
    return node


cdef void write_unraisable(object error, object where) noexcept:
    """Report an exception to sys.unraisablehook."""
    cdef object kind = type(error), trace = error.__traceback__
    Py_INCREF(kind)
    Py_INCREF(error)
    if trace is not None:
        Py_INCREF(trace)
    # PyErr_Restore takes over the references.
    PyErr_Restore(<PyObject *>kind, <PyObject *>error, NULL if trace is None else <PyObject *>trace)
    PyErr_WriteUnraisable(where)


# ----------------------------------------------------------------------------------------------------------- coroutines
cdef object asyncio_loop():
    """The event loop of asyncio that runs the calling code, or None. asyncio is not imported here: if it runs the
    caller, it has been. It may lack the function while another thread imports it."""
    running = getattr(sys.modules.get("asyncio"), "_get_running_loop", None)
    return None if running is None else running()


cdef object running_loop():
    """(asyncio's event loop, False) or (trio's token, True), whichever runs the calling code."""
    loop = asyncio_loop()
    if loop is not None:
        return loop, False
    trio = sys.modules.get("trio")
    if trio is not None:
        try:
            return trio.lowlevel.current_trio_token(), True
        except RuntimeError:
            pass
    raise RuntimeError("no running event loop: expected a coroutine of asyncio or trio")


cdef object yield_to(bint trio):
    return sys.modules["trio"].lowlevel.checkpoint() if trio else sys.modules["asyncio"].sleep(0)


cdef object checkpoint():
    """What a coroutine awaits before its first try, or None.

    trio wants each call to be a checkpoint. In asyncio one call in CALLS_PER_YIELD is: a coroutine whose calls find
    what they want at once would keep its loop from running."""
    global mt_calls
    if asyncio_loop() is None:
        return yield_to(True) if "trio" in sys.modules and running_loop()[1] else None
    mt_calls += 1
    return yield_to(False) if mt_calls % CALLS_PER_YIELD == 0 else None


cdef Waiting new_waiting(object of):
    """A wait of the running coroutine at one point. The caller fills `point`, then awaits wait()."""
    return new_waiting_at(of, NULL, 1)


cdef Waiting new_waiting_at(object of, wait_point *points, int n):
    """A wait of the running coroutine at `n` points, which `of` owns. NULL: at `point`."""
    cdef Waiting waiting = Waiting.__new__(Waiting)
    waiting.loop, waiting.trio = running_loop()
    if waiting.trio:
        waiting.awaited = sys.modules["trio"].Event()
    else:
        waiting.awaited = waiting.loop.create_future()
    wait_at(waiting, of, points if points != NULL else &waiting.point, n)
    return waiting


cdef int wait_at(Waiting it, object of, wait_point *points, int n) except -1:
    it.of = of
    it.points = points
    it.n = n
    it.w = new_waiter(n, <void *>it)
    if it.w == NULL:
        raise MemoryError
    return 0


# no_gc_clear: `of` must live as long as a node is on a list. The collector breaks a cycle at the coroutine, whose
# finalizer leaves the lists.
@cython.no_gc_clear
cdef class Waiting:
    """One wait of a coroutine. Each list that it is on holds a reference to it.

    Both the coroutine (woken, cancelled or collected) and a poster that finds the loop closed may finish it; only the
    first does. A subclass without a coroutine overrides schedule() with what a wake-up does."""

    def __dealloc__(self):
        free(self.w)

    def wait(self):
        """Wait. MT_OK: try again. Else the status that the call reports."""
        return self.wait_until(NEVER)

    async def wait_until(self, int64_t deadline):
        """Wait at most until `deadline`, then return MT_TIMEOUT."""
        cdef int r = self.prepare()
        if r == MT_OK:
            await self.yield_once()
        if r != WAIT:
            return r
        try:
            if deadline != NEVER:
                await self.posted_or_over(max(<int64_t>0, deadline - mt_now_ns()) * 1e-9)
            elif self.trio:
                await self.awaited.wait()
            else:
                await self.awaited
        except BaseException:
            self.finish(True)
            raise
        self.finish(False)
        # If a notification came just before finish(), a try has to answer it (A2).
        return MT_TIMEOUT if deadline != NEVER and not is_woken(self.points, self.n) else MT_OK

    async def yield_once(self):
        """A try that fails and a condition that then holds may follow one another for ever: let the loop run."""
        try:
            await yield_to(self.trio)
        except BaseException:
            forward_unused(self.points, self.n, False)     # of several points some may have been notified
            raise

    async def posted_or_over(self, double seconds):
        if self.trio:
            with sys.modules["trio"].move_on_after(seconds):
                await self.awaited.wait()
            return
        timer = self.loop.call_later(seconds, set_done, self.awaited)
        try:
            await self.awaited
        finally:
            timer.cancel()

    cdef int prepare(self) noexcept:
        """Join the lists. WAIT: a post will come. Else a status, and the wait is finished."""
        cdef int i, r
        for i in range(self.n):
            self.points[i].arrival = 0
        r = prepare_to_wait(self.points, self.n, self.w)
        if r != WAIT:
            # pairs with: mt_xchg_acq_rel in finish: a post that comes in between must not finish it again
            mt_xchg_acq_rel_u32(&self.finished, 1)
        return r

    cdef void finish(self, bint forward) noexcept:
        # pairs with: itself, in other threads; mt_xchg_acq_rel in prepare
        if mt_xchg_acq_rel_u32(&self.finished, 1) == 0:
            finish_wait(self.points, self.n, self.w, forward)

    cdef bint schedule(self) noexcept:
        """Have the loop wake the coroutine. False: the loop is closed.

        This runs Python code of the loop, and signal handlers, in the thread of the notifier, for instance in a put.
        What they raise must neither surface in that put nor lose the wake-up: errors are reported and the call is
        repeated."""
        cdef bint interrupted = False, scheduled = False
        cdef object error = None
        cdef WakeUp wake_up = None
        cdef int _attempt
        for _attempt in range(ATTEMPTS):
            try:
                if error is not None:
                    if self.is_closed(error):
                        break
                    write_unraisable(error, self.loop)
                    error = None
                if self.trio:
                    self.loop.run_sync_soon(self.awaited.set)
                    scheduled = True
                else:
                    if wake_up is None:
                        wake_up = new_wake_up(self)
                    if is_in_step_of(self.loop):
                        self.loop.call_soon(wake_up)
                    else:
                        self.loop.call_soon_threadsafe(wake_up)
                    # Another thread may close the loop beside that call. Then nobody takes the wake-up.
                    scheduled = not self.loop.is_closed()
                break
            except KeyboardInterrupt:       # PyErr_SetInterrupt() below lets the caller raise it again
                interrupted = True
            except BaseException as problem:
                error = problem
        if interrupted:
            PyErr_SetInterrupt()
        if wake_up is not None and not scheduled:
            wake_up.waiting = None      # the caller finishes the wait
        return scheduled

    cdef bint is_closed(self, object error) except -1:
        if self.trio:
            return isinstance(error, sys.modules["trio"].RunFinishedError)
        return self.loop.is_closed()


cdef bint is_in_step_of(object loop) except -1:
    """Whether a task of this loop takes a step in this thread. Then the loop looks at its callbacks before it waits,
    and need not be woken by a write to its socket. A signal handler that interrupts the loop's wait is in no step."""
    return asyncio_loop() is loop and sys.modules["asyncio"].current_task(loop) is not None


def set_done(future):
    if not future.done():
        future.set_result(None)


cdef WakeUp new_wake_up(Waiting waiting):
    cdef WakeUp wake_up = WakeUp.__new__(WakeUp)
    wake_up.waiting = waiting
    return wake_up


cdef class WakeUp:
    """What a loop of asyncio calls to wake a coroutine: first to set the future, then after the step of the task that
    waits for the future.

    A closed loop drops what it has not called. If it drops this, the task may take no step either, so the wait is
    finished and the wake-up goes to another waiter."""
    cdef Waiting waiting        # None: it has been called twice, or whoever scheduled it finishes the wait

    def __call__(self, future=None):
        if future is not None or self.waiting is None:
            self.waiting = None
            return
        awaited = self.waiting.awaited
        set_done(awaited)
        awaited.add_done_callback(self)             # the loop calls it after what the future has scheduled

    def __del__(self):
        global mt_finishing
        cdef bint nested = mt_finishing
        if self.waiting is None:
            return
        mt_finishing = True             # what forwarding posts is scheduled below, without recursion
        self.waiting.finish(True)
        mt_finishing = nested
        if not nested:
            node = pop_deferred()
            if node != NULL:
                wake_or_forward(node)


# -------------------------------------------------------------------------------------------------------- gets of many
cdef int note_items(object error, list items) except -1:
    """Set error.items, what a call has taken before this exception, as note_count() sets its count. What a call inside
    that one has taken, in a selection or a signal handler, comes first."""
    try:
        before = getattr(error, "items", None)
        error.items = before + items if type(before) is list else items
    except Exception:
        pass
    return 0


# no_gc_clear: a coroutine that is closed by the collector still forwards what it was woken for.
@cython.no_gc_clear
cdef class GetMany:
    """A get_many: what it has taken, and until when it waits for more. It waits in a thread, run(), or in a coroutine,
    arun(). An exception that ends it has what was taken as its `items`; all other ends return that.

    A subclass per structure sets where to wait, and says how to take, and what to raise if nothing was taken."""

    cdef void begin(self, int64_t n, int64_t deadline, int64_t linger):
        self.taken = []
        self.n, self.deadline, self.linger = n, deadline, 0 if deadline == ONCE else linger
        self.points, self.count = &self.point, 1

    cdef int take(self) except -2:
        """Append what is there to `taken`, up to n. MT_OK: there are n. MT_EMPTY: there are not. Else why no more will
        come; what was notified for it is forwarded."""

    cdef int refuse(self, int r) except -1:
        """Raise the exception for a get that ended with r. If it returns, the get tries again."""

    cdef int fail(self, object error) except -1:
        return note_items(error, self.taken)

    cdef int attempt(self) except -2:
        """Take what is there. MT_EMPTY: wait for more, until `deadline`. Else how the call ends."""
        cdef bint first = not self.taken
        cdef int r = self.take()
        if not self.taken:
            return r
        if first and self.linger:
            self.deadline = sooner(self.deadline, self.linger)
        # The time is looked at here too: a wait ends with MT_OK while there are items, even if its deadline is over.
        if not self.linger or (self.deadline != NEVER and mt_now_ns() >= self.deadline):
            return MT_OK
        return r

    cdef bint ends(self, int r) except -1:
        """After a try, or a wait, that ended with r."""
        if not self.taken or r == MT_NOMEM or r == MT_INTERRUPTED:
            self.refuse(r)
            return False
        return True

    cdef list run(self):
        cdef int r
        try:
            while True:
                r = self.attempt()
                if r == MT_EMPTY and again(self.points, self.count, &r, self.deadline):
                    continue
                if self.ends(r):
                    return self.taken
        except BaseException as error:
            self.fail(error)
            raise

    async def arun(self):
        try:
            while True:
                r = self.attempt()
                if r == MT_EMPTY:
                    r = await new_waiting_at(self, self.points, self.count).wait_until(self.deadline)
                    if r == MT_OK:
                        continue
                if self.ends(r):
                    return self.taken
        except BaseException as error:
            self.fail(error)
            raise
