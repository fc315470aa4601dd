"""The Python faces of the work pool: lanes of work, each in its own order, served by threads in weighted round robin.

_wp.pxd has the algorithm, its source and its invariants. There are two faces:
- WorkPool and Lane, for manytail.executor. The pool has threads of its own, which take one item at a time. An item is a
  call with its Future. LaneTable in _lanes.py finds the lane of a key.
- Dispatcher and SerialLane, for callbacks that run one at a time and in order on any executor (the broker uses them).
  For each lane that becomes ready one executor task is submitted, which serves the next ready lane for a block of
  items.

The rules of _multiqueue.pyx hold here too: references are added before an item is published and dropped with no lock
held; no Python code runs under a lock.
"""
cimport cython
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject

from manytail._cpython cimport *
from manytail._lifecycle cimport int_argument, raise_if_failed, tell_of_forks, unpicklable
# Its import mends all queues in the child of a fork, a pool's too.
from manytail._multiqueue cimport locked_value, locked_value_i64, priority_argument, weight_argument
from manytail._mq_iterate cimport *
from manytail._mq_life cimport *
from manytail._root cimport Root, clear_by_breaking_cycles
from manytail._wp cimport *

import logging
import threading
from concurrent.futures import Future

cdef class BaseLane(Root)
cdef class SerialLane(BaseLane)
cdef class Call

cdef object LOGGER = logging.getLogger("concurrent.futures")    # where the standard library's executors report
# .worker: the Worker of this thread, in work(); .lanes: a tuple of the lanes whose blocks this thread is serving
cdef object here = threading.local()
UNSET = ...                                     # an option that was not passed; shown as Ellipsis by help()


# ------------------------------------------------------------------------------------------------------------ arguments
cdef int64_t bound_argument(str name, object value) except? -7:
    return int_argument(name, value, "an int; 0 or less means no limit")


# ---------------------------------------------------------------------------------------------------------------- pools
@cython.no_gc_clear
cdef class WorkPool(Root):
    """Lanes, and the threads that serve them.

    start() is called when one more thread has to call work(); at most max_workers threads are in work() or about to be.
    If start() raises, there is no new thread. If it was interrupted after the thread had started, it returns that
    exception instead. max_pending: how many calls may wait in all lanes (0 or less: no limit). refusal() makes the
    exception that submit raises after end(). per_key: the default of max_running of a lane (0 or less: no limit).
    Progress: blocking (one short lock); no lock is held while Python code runs. Source: _wp.pxd."""
    cdef pool p
    cdef int64_t per_key
    cdef mt_atomic_u32 begun    # how often __init__ was called
    cdef object start, refusal
    cdef object __weakref__

    def __cinit__(self, *args, **options):
        self.p.q = new_queue(not MT_FREE_THREADED, True)
        if self.p.q == NULL:
            raise MemoryError
        self.p.q.selection = MT_WEIGHTED

    def __init__(self, start, max_workers, max_pending=0, refusal=None, per_key=0):
        cdef int64_t workers = int_argument("max_workers", max_workers, "an int >= 0")
        cdef int64_t pending = bound_argument("max_pending", max_pending)
        cdef int64_t limit = bound_argument("per_key", per_key)
        if mt_fetch_add_relaxed_u32(&self.begun, 1):        # relaxed because: only its own result counts
            raise RuntimeError(f"{type(self).__name__}.__init__ was called again")
        self.start = start
        self.refusal = refusal
        self.p.max_workers = workers
        self.p.max_pending = pending
        self.per_key = limit
        tell_of_forks(self)

    def __dealloc__(self):
        if self.p.q != NULL:
            drop_queue(self.p.q, True)

    cdef int visit(self, visitproc visit, void *arg) noexcept:
        """The lanes that the pool holds references to (W2)."""
        cdef subqueue *s = self.p.q.all_first if self.p.q != NULL else NULL
        cdef int r = 0
        while s != NULL and r == 0:
            ln = <lane *>s.owner
            if ln.keep_alive:
                r = visit(<PyObject *>ln.object, arg)
            s = s.all_next
        return r

    cdef void break_cycles(self) noexcept:
        """The callables may be methods of an object that refers to this pool: a cycle that nothing else breaks."""
        self.start = collected
        self.refusal = None

    def __reduce__(self):
        raise unpicklable(self, "threads of this process serve it; make another one where it is needed")

    @property
    def pending(self):
        """How many items wait in all lanes."""
        return locked_value_i64(self.p.q, &self.p.pending)

    @property
    def workers(self):
        """How many threads serve it, with those about to start."""
        return locked_value_i64(self.p.q, &self.p.workers)

    @property
    def idle_workers(self):
        """How many of its workers wait for work."""
        return locked_value_i64(self.p.q, &self.p.q.not_empty.n)

    @property
    def submitters_waiting(self):
        """How many threads wait for a free slot."""
        cdef int64_t n = 0
        lock_take(self.p.q, True)
        ln = self.p.not_full_ring
        while ln != NULL:
            n += ln.not_full.n
            ln = ln.ring_next
            if ln == self.p.not_full_ring:
                break
        unlock_take(self.p.q)
        return n

    @property
    def ended(self):
        """Whether end() was called."""
        return bool(locked_value(self.p.q, &self.p.q.shut))

    cdef int start_workers(self, int64_t n) except -1:
        """start_threads(), and if no worker is left after that raised, once more for the items."""
        try:
            self.start_threads(n)
        except BaseException as error:
            self.replace_workers(0)
            if locked_value_i64(self.p.q, &self.p.workers) == 0 or not isinstance(error, Exception):
                raise
        return 0

    cdef int start_threads(self, int64_t n) except -1:
        """Start n threads. If start() fails, other workers do the work; if there are none, its exception is raised."""
        cdef object interruption = None
        while n > 0:
            n -= 1
            try:
                interruption = self.start() or interruption
            except BaseException as error:
                lock_take(self.p.q, True)
                self.p.workers -= 1 + n
                n = self.p.workers
                unlock_take(self.p.q)
                if n == 0 or not isinstance(error, Exception):
                    raise
                break
        if interruption is not None:
            raise interruption
        return 0

    cdef int replace_workers(self, int64_t n) except -1:
        """Count out n workers that failed, and start one for the calls whose submits counted on them. If that fails
        too, the next submit or the end of the pool tries again."""
        if lose_workers(&self.p, n):
            # Compiled, as in note_count(): contextlib.suppress would let a signal handler raise before the start.
            try:
                self.start_threads(1)
            except Exception:
                pass
        return 0

    def work(self):
        """Run calls until the pool has ended and nothing can be taken."""
        cdef Call call
        cdef bint counts = True
        cdef Worker worker = None
        try:
            worker = self.enter()
            while True:
                call = self.take()
                if call is None:
                    counts = False
                    return
                call.run(worker)
                call = None
        finally:
            if counts:
                self.replace_workers(1)
            if worker is not None:
                here.worker = worker.outer

    cpdef Worker enter(self):
        """The calling thread is a worker of this pool: until work() returns, or for ever if it does not call that."""
        cdef Worker worker = Worker.__new__(Worker)
        worker.pool = self
        worker.outer = getattr(here, "worker", None)
        here.worker = worker
        return worker

    def serves(self):
        """Whether the calling thread is a worker of this pool."""
        cdef Worker worker = getattr(here, "worker", None)
        while worker is not None and worker.pool is not self:
            worker = worker.outer
        return worker is not None

    cdef Call take(self):
        """Take the next call, waiting for one if need be. None: the pool has ended, and this worker is counted out."""
        cdef uintptr_t item = 0
        cdef int64_t fork_generation = 0
        cdef int r
        cdef Call call
        cdef wait_point p
        items_point(&p, self.p.q, True)
        while True:
            ln = take_item(&self.p, &item, &fork_generation)
            if ln != NULL:
                call = mt_owned_item(item)
                call.fork_generation = fork_generation
                # Drops the lane's reference that take_item() added: call.lane holds one.
                mt_owned_item(<uintptr_t>ln.object)
                return call
            r = MT_EMPTY
            if again(&p, 1, &r, NEVER):
                continue
            if r == MT_SHUTDOWN and leave_pool(&self.p):
                return None
            raise_if_failed(r)

    def end(self, resume=True):
        """Accept no more calls; submitters that wait are refused too. Calls in the lanes run; with resume also those in
        paused lanes."""
        self.start_workers(end_pool(&self.p, bool(resume)))

    cdef list busy_lanes(self):
        """The lanes that have items or run any."""
        cdef list out
        cdef int64_t n
        cdef Py_ssize_t i = 0
        while True:
            n = locked_value_i64(self.p.q, &self.p.q.nsubs)
            out = mt_list_reserve(n)
            lock_take(self.p.q, True)
            if self.p.q.nsubs <= n:
                s = self.p.q.all_first
                while s != NULL:
                    refs = <PyObject *>(<lane *>s.owner).object
                    if (<lane *>s.owner).keep_alive:              # another lane may be in its __dealloc__
                        Py_INCREF_raw(refs)
                        mt_list_slots(<PyObject *>out)[i] = <uintptr_t>refs
                        i += 1
                    s = s.all_next
                mt_list_filled(<PyObject *>out, i)
                unlock_take(self.p.q)
                return out
            unlock_take(self.p.q)

    def wait_idle(self):
        """After end(): wait until no item is left and none runs."""
        cdef BaseLane busy
        for busy in self.busy_lanes():
            busy._wait_idle()

    def drop(self):
        """Remove all items of all lanes and return them. They are not run."""
        return [item for busy in self.busy_lanes() for item in busy._drop()]

    def cancel(self):
        """Cancel the calls of all lanes, as Lane._cancel()."""
        for busy in self.busy_lanes():
            busy._cancel()

    def _after_fork(self):
        """In the child of a fork: the items belong to the parent, so drop them."""
        forget_in_child(&self.p, PyThread_get_thread_ident())
        cdef BaseLane busy
        for busy in self.busy_lanes():
            busy._drop()
            if check_idle(busy.ln.p, &busy.ln):
                Py_DECREF(busy)


@cython.final
cdef class Worker:
    """A thread of a pool."""
    cdef WorkPool pool
    cdef BaseLane lane              # the lane of the call that it runs
    cdef Worker outer               # the thread as a worker of another pool, one of whose calls ends this pool


def serves_a_lane():
    """Whether the calling thread runs an item of a lane of any dispatcher."""
    return bool(getattr(here, "lanes", ()))


def disown(made):
    """Let any thread free `made`, which the caller has just made. Without the GIL, only the thread that made an object
    frees it, and not while it blocks (mt_disown in pygc.h)."""
    mt_disown(made)


def collected(*unused):
    """Stands in for a callable that the collector has cleared."""
    raise RuntimeError("its pool was collected")


# ---------------------------------------------------------------------------------------------------------------- lanes
@cython.no_gc_clear
cdef class BaseLane(Root):
    """The items of one key of a pool, in order. Another lane of the same key shares nothing with it."""
    cdef lane ln
    cdef WorkPool pool
    cdef object __weakref__

    def __cinit__(self, *args, **options):
        if not args or not isinstance(args[0], WorkPool):
            raise TypeError(f"{type(self).__name__} cannot be made by itself: its executor or dispatcher makes it")
        cdef WorkPool owner = args[0]
        mt_disown(self)         # often the worker that runs its last call drops the last reference
        self.pool = owner
        self.ln.p = &owner.p
        self.ln.object = <void *>self
        self.ln.s = new_subqueue(owner.p.q, 0, 0, 1, True)
        if self.ln.s == NULL:
            raise MemoryError
        self.ln.s.owner = <void *>&self.ln
        self.ln.s.key = <void *>self
        self.ln.max_running = owner.per_key
        if raise_if_failed(attach_subqueue(owner.p.q, self.ln.s, True)) != MT_OK:
            close_lane(&self.ln)        # the pool has ended: refuse every put

    def __dealloc__(self):
        cdef uintptr_t item
        cdef bint drop_lane
        if self.ln.s != NULL:
            while take_away(self.ln.p, &self.ln, &item, &drop_lane):
                Py_DECREF_raw(<PyObject *>item)
            detach_subqueue(self.ln.p.q, self.ln.s, True)
            drop_left_chunks(self.ln.p.q, self.ln.s)
            free_subqueue(self.ln.s, True)

    cdef int visit(self, visitproc visit, void *arg) noexcept:
        return 0 if self.ln.s == NULL else visit_items(self.ln.s, visit, arg)

    cdef void break_cycles(self) noexcept:
        cdef uintptr_t item = 0
        cdef bint drop_lane = False
        if self.ln.s != NULL:
            while take_away(self.ln.p, &self.ln, &item, &drop_lane):
                if drop_lane:
                    Py_DECREF(self)     # the pool's reference; the collector has another one
                Py_DECREF_raw(<PyObject *>item)

    def __reduce__(self):
        raise unpicklable(self,
                          "a lane belongs to its executor in this process; ask the executor for the lane of the key")

    # ---------------------------------------------------------------------------------------------------------- options
    def _configure(self, *, priority=UNSET, weight=UNSET, max_pending=UNSET, max_running=UNSET):
        """Set the options that are passed: all of them, or none if one is invalid."""
        cdef int64_t first = 0 if priority is UNSET else priority_argument(priority)
        cdef uint32_t share = 0 if weight is UNSET else weight_argument(weight, "calls")
        cdef int64_t pending = INT64_MIN if max_pending is UNSET else bound_argument("max_pending", max_pending)
        cdef int64_t running = INT64_MIN if max_running is UNSET else bound_argument("max_running", max_running)
        if priority is not UNSET:
            raise_if_failed(set_priority(self.ln.p.q, self.ln.s, first, True))
        if weight is not UNSET:
            set_weight(self.ln.p.q, self.ln.s, share, True)
        if pending != INT64_MIN or running != INT64_MIN:
            self.pool.start_workers(limit_lane(self.ln.p, &self.ln, pending, running))

    @property
    def priority(self):
        """Smaller goes first. A new one moves the lane to the end of that priority's ring."""
        return locked_value_i64(self.ln.p.q, &self.ln.s.priority)

    @property
    def weight(self):
        """Calls per turn. A new weight applies from the lane's next turn on."""
        return locked_value(self.ln.p.q, &self.ln.s.weight)

    @property
    def max_pending(self):
        """How many calls may wait in this lane; 0 or less: no limit."""
        return locked_value_i64(self.ln.p.q, &self.ln.max_pending)

    @property
    def max_running(self):
        """How many calls of this lane may run at a time; 0 or less: no limit."""
        return locked_value_i64(self.ln.p.q, &self.ln.max_running)

    @property
    def pending(self):
        """How many calls wait."""
        lock_take(self.ln.p.q, True)
        cdef int64_t n = head_count(self.ln.s)
        unlock_take(self.ln.p.q)
        return n

    @property
    def running(self):
        """How many calls run."""
        return locked_value_i64(self.ln.p.q, &self.ln.active)

    @property
    def state(self):
        """"dormant", "ready", "in progress" (max_running calls run), "paused" or "stopped" (closed, its items
        dropped)."""
        cdef bint listed, paused, enabled, closed
        lock_take(self.ln.p.q, True)
        listed, paused = self.ln.s.ready.listed, self.ln.paused
        enabled, closed = self.ln.s.enabled, self.ln.s.closed_flags != 0
        unlock_take(self.ln.p.q)
        if paused:
            return "stopped" if closed else "paused"
        if listed:
            return "ready"
        return "dormant" if enabled else "in progress"

    @property
    def closed(self):
        """Whether it accepts no more calls."""
        return locked_value(self.ln.p.q, &self.ln.s.closed_flags) != 0

    def pause(self):
        """Start no calls until resume(). RuntimeError: it was shut down."""
        if pause_lane(self.ln.p, &self.ln, True) < 0:
            raise RuntimeError("cannot pause after shutdown")

    def resume(self):
        """Undo pause()."""
        self.pool.start_workers(pause_lane(self.ln.p, &self.ln, False))

    def _end(self, resume=True):
        """Accept no more calls. Those in the lane run; with resume also if it is paused."""
        self.pool.start_workers(shut_lane(self.ln.p, &self.ln, bool(resume)))

    def _drop(self):
        """Remove all items and return them. They are not run."""
        cdef list dropped = []
        while (item := self.take_one_away()) is not None:
            dropped.append(item)
        return dropped

    cdef object take_one_away(self):
        """Remove the first item and return it. None: there is none."""
        cdef uintptr_t item = 0
        cdef bint drop_lane = False
        if not take_away(self.ln.p, &self.ln, &item, &drop_lane):
            return None
        if drop_lane:
            Py_DECREF(self)         # the pool's reference; the caller has another one
        taken = mt_owned_item(item)
        if isinstance(taken, Call):
            (<Call>taken).let_go()
        return taken

    def _wait_idle(self, timeout=None):
        """Wait until no item is left and none runs: True. False: not within `timeout` seconds."""
        return raise_if_failed(wait_until_idle(&self.ln, deadline_from(True, timeout))) == MT_OK

    cdef int finish(self, int64_t fork_generation) except -1:
        if finish_item(self.ln.p, &self.ln, fork_generation):
            Py_DECREF(self)
        return 0


@cython.no_gc_clear
cdef class Lane(BaseLane):
    """A lane whose items are calls."""

    @cython.binding(False)
    @cython.embedsignature.format("clinic")
    def submit(self, fn, /, *args, **kwargs):
        """Schedule fn(*args, **kwargs) after the calls of this lane and return its Future. If the lane or the executor
        is full it waits for a free slot. A worker of the executor does not wait but exceeds max_pending, to avoid a
        deadlock. RuntimeError: lane or executor were shut down, also while waiting; nothing is scheduled then."""
        cdef Call call = CALL()
        cdef bint start = False
        cdef int r
        call.lane = self
        call.fn = fn
        call.args = args
        call.kwargs = kwargs
        Py_INCREF(call)
        r = put_in_lane(self.ln.p, &self.ln, <uintptr_t><PyObject *>call, False, &call.position, &start)
        if unlikely(r != MT_OK):
            start = self.submit_slow(call)
        if unlikely(start):
            self.start_for(call)
        return call

    cdef bint submit_slow(self, Call call) except -1:
        """The first put has failed. The caller has added the lane's reference to the call."""
        cdef bint start = False
        cdef int r
        if self.pool.serves():
            r = put_in_lane(self.ln.p, &self.ln, <uintptr_t><PyObject *>call, True, &call.position, &start)
        else:
            r = put_when_slot_free(self.ln.p, &self.ln, <uintptr_t><PyObject *>call, &call.position, &start)
        if r != MT_OK:
            Py_DECREF(call)
        if r == MT_SHUTDOWN:
            raise self.refused()
        raise_if_failed(r)
        return start

    cdef object refused(self):
        if not locked_value(self.pool.p.q, &self.pool.p.q.shut):
            return RuntimeError("cannot schedule new futures after shutdown of this key")
        if self.pool.refusal is None:
            return RuntimeError("cannot schedule new futures after shutdown")
        return self.pool.refusal()

    cdef int start_for(self, Call call) except -1:
        try:
            self.pool.start_threads(1)
        except BaseException as error:
            # Raise only if the call is taken back, or for an interruption: a call that was taken meanwhile runs, and
            # the caller needs its Future.
            withdrawn = call.withdraw()
            self.pool.replace_workers(0)
            if withdrawn or not isinstance(error, Exception):
                raise
        return 0

    def _cancel(self):
        """Cancel all calls of this lane. Each is removed and cancelled before the next one, so that the others stay in
        the lane if a callback or a signal handler raises."""
        while (call := self.take_one_away()) is not None:
            (<Call>call).drop_out()

    @property
    def _called_from(self):
        """Whether the calling thread is a worker that runs a call of this lane."""
        cdef Worker worker = getattr(here, "worker", None)
        while worker is not None and worker.lane is not self:
            worker = worker.outer
        return worker is not None


cdef class Call:
    """The part of a KeyedFuture that the pool uses: a call, and its place in its lane."""
    cdef BaseLane lane              # None when it has left its lane
    cdef object fn
    cdef tuple args
    cdef dict kwargs
    cdef int64_t position, fork_generation

    cdef bint withdraw(self) except -1:
        """Take it out of its lane. False: it is not in it."""
        cdef BaseLane lane
        cdef bint drop_lane = False
        with cython.critical_section(self):
            lane = self.lane
        if lane is None or not withdraw_item(lane.ln.p, &lane.ln, self.position, <uintptr_t><PyObject *>self,
                                             &drop_lane):
            return False
        if drop_lane:
            Py_DECREF(lane)
        self.let_go()
        Py_DECREF(self)             # the lane's reference; the caller has one
        return True

    cdef int let_go(self) except -1:
        """Drop its references: it has left its lane and will not run."""
        with cython.critical_section(self):
            held = (self.lane, self.fn, self.args, self.kwargs)
            self.lane = self.fn = self.args = self.kwargs = None
        del held                    # outside the critical section
        return 0

    def __reduce__(self):
        raise unpicklable(self, "a call runs once, in this process; pass on its result instead")

    def cancel(self):
        """Cancel the call if it has not begun: True. Its slot in the lane is free before the callbacks run; waiters for
        the result get CancelledError. False: it runs or has run."""
        self._condition.acquire()       # the lock's own; `with` runs Python code, where a signal handler may raise
        try:
            state = self._state
            if state in ("CANCELLED", "CANCELLED_AND_NOTIFIED"):
                return True
            if state != "PENDING":
                return False
            self._state = "CANCELLED"
            self._condition.notify_all()
        finally:
            self._condition.release()
        if self.withdraw():
            self.set_running_or_notify_cancel()     # notifies wait() and as_completed(), which a worker would have done
        self._invoke_callbacks()
        return True

    def set_running_or_notify_cancel(self):
        """As of Future, which runs Python code between taking the lock and releasing it."""
        self._condition.acquire()
        try:
            state = self._state
            if state == "PENDING":
                self._state = "RUNNING"
                return True
            if state == "CANCELLED":
                self._state = "CANCELLED_AND_NOTIFIED"
                for waiter in self._waiters:
                    waiter.add_cancelled(self)
                return False
        finally:
            self._condition.release()
        return Future.set_running_or_notify_cancel(self)    # raises

    cdef object drop_out(self):
        """Cancel a call that was taken out of its lane."""
        try:
            self.cancel()
        except BaseException:
            self.cancel()           # perhaps it was interrupted before its effect
            raise
        finally:
            self.set_running_or_notify_cancel()

    cdef int run(self, Worker worker) except -1:
        """In a worker: run the call, set its result, and finish it in the lane."""
        cdef BaseLane lane
        cdef object fn
        cdef tuple args
        cdef dict kwargs
        with cython.critical_section(self):         # cancel() may read them at the same time
            lane, fn, args, kwargs = self.lane, self.fn, self.args, self.kwargs
            self.lane = self.fn = self.args = self.kwargs = None
        try:
            if not self.set_running_or_notify_cancel():
                return 0
            worker.lane = lane
            try:
                result = fn(*args, **kwargs)
            except BaseException as error:
                fn = args = kwargs = None
                self.set_exception(error)
            else:
                fn = args = kwargs = None
                self.set_result(result)
        except BaseException:
            LOGGER.critical("Exception in worker", exc_info=True)      # of the Future itself; the worker goes on
        finally:
            worker.lane = None
            # After the result is set, so that the next call of a lane with max_running=1 finds this one done.
            lane.finish(self.fork_generation)
        return 0


class KeyedFuture(Call, Future):
    """The Future of a call submitted to a KeyedExecutor: a concurrent.futures.Future whose cancel() frees its slot in
    the lane at once."""


cdef object CALL = KeyedFuture


# --------------------------------------------------------------------------------------------------------- lanes by key
@cython.final
@cython.no_gc_clear     # finalizers in a dead cycle may ask for lanes
cdef class Buckets:
    """Hash -> bucket of a LaneTable: a tuple. It is () if there is none.

    The dict is used only in a critical section of this, so its own lock is never contended: a wait for that would let
    the critical section go."""
    cdef dict buckets

    def __cinit__(self):
        self.buckets = {}

    def __len__(self):
        """The number of entries in all buckets."""
        cdef list buckets
        with cython.critical_section(self):
            buckets = list(self.buckets.values())
        return sum([len(bucket) for bucket in buckets])

    def get(self, number):
        """The bucket of a hash."""
        with cython.critical_section(self):
            return <tuple>self.buckets.get(number, ())

    def replace(self, number, tuple old, tuple new):
        """Compare-and-swap of a bucket. False: it is not `old`. Between the comparison and the change nothing is
        allocated that could run the collector, and with it a call of this."""
        with cython.critical_section(self):
            if <tuple>self.buckets.get(number, ()) is not old:
                return False
            if new:
                self.buckets[number] = new
            else:
                del self.buckets[number]
        return True


# ------------------------------------------------------------------------------------------------ lanes on any executor
def drop_item(item):
    """Stands in for the handler of a lane that the collector has cleared."""


@cython.no_gc_clear
cdef class Dispatcher(WorkPool):
    """Lanes whose items run one at a time and in order, on the threads of an executor that has submit().

    As many tasks are submitted as lanes are ready. A task serves the next ready lane, whichever that is, for up to
    `block` items, then submits the next task. If the executor refuses a task, add() raises its exception and takes back
    the item, unless that has run; other items stay, and the next add() tries again for them. A task that cannot be
    submitted again, because the executor was shut down, serves all ready lanes in its own thread.

    on_error(item, error) is called when an item raises; default: sys.unraisablehook. Other items run all the same.
    The collector clears executor and on_error of a dispatcher in a dead cycle; then its lanes refuse items.
    Progress: as WorkPool."""
    cdef object executor
    cdef object on_error
    cdef int64_t block

    def __init__(self, executor, *, block=256, on_error=None):
        if not callable(getattr(executor, "submit", None)):
            raise TypeError(f"executor: {executor!r} (expected: an object with submit())")
        cdef int64_t items = int_argument("block", block, "an int >= 1, the items per task", 1)
        WorkPool.__init__(self, None, 0)
        self.executor = executor
        self.on_error = on_error
        self.block = items

    cdef void break_cycles(self) noexcept:
        """As WorkPool, for the executor and on_error."""
        self.executor = None
        self.on_error = None
        WorkPool.break_cycles(self)

    def lane(self, handler=None, *, max_pending=0):
        """A new lane. Its items are passed to handler, or are called if that is None. max_pending > 0: add() waits
        while that many items wait, except inside an item of this dispatcher."""
        return SerialLane(self, handler, max_pending)

    @property
    def inside(self):
        """Whether the calling thread runs an item of one of its lanes."""
        return any([(<SerialLane>running).pool is self for running in getattr(here, "lanes", ())])

    cdef int schedule(self) except -1:
        """Submit tasks until each ready lane has one. Raises what the executor raises."""
        cdef int64_t n = missing_tasks(&self.p)
        while n > 0:
            try:
                if self.executor is None:
                    raise RuntimeError("Dispatcher.__init__ was not called, or the dispatcher was collected")
                future = self.executor.submit(self._serve)
                n -= 1
                if hasattr(future, "add_done_callback"):
                    future.add_done_callback(self._task_done)
            except BaseException:
                refused_tasks(&self.p, n)
                raise
        return 0

    def _task_done(self, future):
        """Count out a cancelled task. The next add() submits another one. Submitting here could deadlock, because the
        standard library's pool cancels futures under a lock that its submit() takes."""
        if future.cancelled():
            refused_tasks(&self.p, 1)

    def _serve(self):
        """The executor task: serve a block of the next ready lane."""
        cdef bint of_task = True
        while self.serve_block(of_task):
            of_task = False
            try:
                self.schedule()
                return
            except Exception:
                pass        # refused: this thread serves what is left

    cdef bint serve_block(self, bint of_task) except -1:
        """Serve up to `block` items of the next ready lane. False: no lane is ready."""
        cdef int64_t fork_generation = 0
        cdef lane *ln = begin_batch(&self.p, self.block, of_task, &fork_generation)
        cdef SerialLane serving
        cdef tuple outer = ()
        if ln == NULL:
            return False
        serving = mt_owned_item(<uintptr_t>ln.object)
        try:
            outer = getattr(here, "lanes", ())
            here.lanes = (*outer, serving)
            while serving.run_one(fork_generation):
                pass
        finally:
            serving.finish(fork_generation)
            here.lanes = outer
        return True

    cdef int report(self, item, error) except -1:
        try:
            if self.on_error is not None:
                self.on_error(item, error)
                return 0
        except BaseException as failure:
            error = failure
        write_unraisable(error, item)
        return 0


@cython.no_gc_clear
cdef class SerialLane(BaseLane):
    """A lane of a Dispatcher: its items run one at a time, in the order of add(), on whichever threads the executor
    has."""
    cdef object handler

    def __init__(self, dispatcher, handler, max_pending):
        self.handler = handler
        self.ln.max_running = 1
        self.ln.max_pending = bound_argument("max_pending", max_pending)

    cdef void break_cycles(self) noexcept:
        """The handler may be a method of an object that refers to this lane: a cycle that nothing else breaks."""
        BaseLane.break_cycles(self)
        self.handler = drop_item

    @cython.binding(False)
    @cython.embedsignature.format("clinic")
    def add(self, item):
        """Append an item: True. False: the lane is closed, and the item was not added. Safe from any thread, finalizers
        and signal handlers included. Waits only for a free slot of a lane with max_pending. Raises what the executor's
        submit raised, if the item was taken back for that, or if it is an interruption such as KeyboardInterrupt."""
        cdef Dispatcher dispatcher = self.pool
        cdef int64_t position = 0
        cdef bint drop_lane = False, start = False
        cdef int r
        Py_INCREF(item)
        r = put_in_lane(self.ln.p, &self.ln, <uintptr_t><PyObject *>item, False, &position, &start)
        if r == MT_FULL and dispatcher.inside:
            r = put_in_lane(self.ln.p, &self.ln, <uintptr_t><PyObject *>item, True, &position, &start)
        elif r == MT_FULL:
            r = put_when_slot_free(self.ln.p, &self.ln, <uintptr_t><PyObject *>item, &position, &start)
        if r != MT_OK:
            Py_DECREF(item)
        if r == MT_SHUTDOWN:
            return False
        raise_if_failed(r)
        try:
            dispatcher.schedule()
        except BaseException as error:
            if withdraw_item(self.ln.p, &self.ln, position, <uintptr_t><PyObject *>item, &drop_lane):
                if drop_lane:
                    Py_DECREF(self)
                Py_DECREF(item)
                raise
            if not isinstance(error, Exception):
                raise
        return True

    cdef bint run_one(self, int64_t fork_generation) except -1:
        """Run the next item of a block. False: the block is over."""
        cdef uintptr_t raw = 0
        if not take_of_batch(self.ln.p, &self.ln, fork_generation, &raw):
            return False
        item = mt_owned_item(raw)
        try:
            if self.handler is None:
                item()
            else:
                self.handler(item)
        except BaseException as error:
            (<Dispatcher>self.pool).report(item, error)
        return True

    @property
    def inside(self):
        """Whether the calling thread runs an item of this lane."""
        return any([running is self for running in getattr(here, "lanes", ())])

    def resume(self):
        """Undo pause(). Raises what the executor's submit raised; then the next add() tries again."""
        BaseLane.resume(self)
        (<Dispatcher>self.pool).schedule()

    def close(self, drop=True):
        """Accept no more items: add() returns False. drop=True: items that have not begun do not run and are returned.
        drop=False: they run, and [] is returned; raises as resume(). Does not wait: see wait()."""
        if not drop:
            self._end()
            (<Dispatcher>self.pool).schedule()
            return []
        stop_lane(self.ln.p, &self.ln)
        return self._drop()

    def wait(self, timeout=None):
        """Wait until no item is left and none runs: True. False: not within `timeout` seconds; inside an item of this
        lane, where it would wait for ever, at once."""
        return not self.inside and self._wait_idle(timeout)


# before any subclass exists
clear_by_breaking_cycles((WorkPool, Dispatcher, BaseLane, Lane, SerialLane))
