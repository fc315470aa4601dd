"""The work pool: keys whose work is done in turn, each in its own order, by threads that serve all of them.

What it is, its source and its invariants: _wp.pxd. This file has its two faces.
- WorkPool and Lane serve manytail.executor: threads of its own take one item at a time (the weight of a lane says how
  many per turn), an item is a call with its Future, lanes have bounds. LaneTable finds the lane of a key.
- Dispatcher and SerialLane serve whoever has to run callbacks one at a time and in order on somebody else's executor
  (the broker): a lane that becomes ready costs one executor task, which serves the next ready lane for a block of
  items.

Rules of this layer are those of _multiqueue.pyx: references are counted before an item is published and given up after
it was taken, with no lock held; no Python code runs under a lock.
"""
cimport cython
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from libc.stdint cimport int64_t, uint32_t, uintptr_t

from manytail._c cimport (
    MT_EMPTY, MT_FREE_THREADED, MT_FULL, MT_INTERRUPTED, MT_NOMEM, MT_OK, MT_SHUTDOWN, PyThread_get_thread_ident,
    unlikely,
)
from manytail._cpython cimport (
    PyTypeObject, Py_DECREF_raw, Py_INCREF_raw, mt_disown, mt_list_filled, mt_list_reserve, mt_list_slots,
    mt_owned_item, mt_patch_gc, mt_traverse_of, traverseproc, visitproc,
)
from manytail._mq cimport (
    MT_CLOSED_SHUTDOWN, MT_WEIGHTED, attach_tail, detach_tail, drop_left_chunks, drop_queue, free_tail, items_point,
    lock_take, new_queue, new_tail, queue, set_priority, set_weight, subqueue, head_count, unlock_take,
    visit_items,
)
from manytail._runtime cimport int_argument, raise_pending, tell_of_forks, unpicklable
from manytail._waiting cimport NEVER, again, deadline_from, wait_point, write_unraisable
from manytail._wp cimport (
    begin_batch, end_pool, finish_item, forget_in_child, lane as lane_t, leave_pool, limit_lane, missing_tasks,
    pause_lane, pool as pool_t, put_in_lane, put_when_room, refused_tasks, rest_lane, shut_lane, stop_lane,
    take_away, take_item, take_of_batch, wait_until_idle, withdraw_item,
)

import logging
import threading
import weakref
from concurrent.futures import Future

# It mends all queues in the child of a fork, a pool's too.
import manytail._multiqueue  # no-cython-lint

cdef class BaseLane
cdef class SerialLane
cdef class Call

cdef object LOGGER = logging.getLogger("concurrent.futures")    # where the standard library's executors report
# .worker: this thread's Worker, if it is one; .lanes: inside whose blocks it is
cdef object here = threading.local()
UNSET = ...                                     # an option that was not passed; shown as Ellipsis by help()


# ------------------------------------------------------------------------------------------------------------ arguments
cdef int64_t priority_argument(object value) except? -7:
    return int_argument("priority", value, "an int (smaller goes first)")


cdef uint32_t weight_argument(object value) except 0:
    cdef int64_t weight = int_argument("weight", value, "an int >= 1")
    if weight < 1:
        raise ValueError(f"weight={value!r}: expected an int >= 1 (calls per turn)")
    if weight > 0xFFFFFFFF:
        raise OverflowError(f"weight={value!r}: expected at most 2**32 - 1 (calls per turn)")
    return <uint32_t>weight


cdef int64_t bound_argument(str name, object value) except? -7:
    return int_argument(name, value, "an int (0 or less: no limit)")


# ---------------------------------------------------------------------------------------------------------------- pools
@cython.trashcan(True)
# pool_clear() below breaks cycles and leaves the pool usable for the finalizers of what is in it.
@cython.no_gc_clear
cdef class WorkPool:
    """Lanes, and the threads that serve them.

    start is called, without arguments, when one more thread is to call work(), at most max_workers times more than
    threads have left it. If it raises, there is no thread; what was raised into it when there was one already, it
    returns. refusal() makes the exception that a refused submit raises. per_key: max_running of each lane that is given
    none (0 or less: no limit).
    Progress: blocking (one short lock); no lock is held while Python code runs."""
    cdef pool_t p
    cdef int64_t per_key
    cdef bint begun             # options were set; under the critical section
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
        self.begin()
        self.start = start
        self.refusal = refusal
        self.p.max_workers = workers
        self.p.max_pending = pending
        self.per_key = limit
        tell_of_forks(self)

    def __dealloc__(self):
        if self.p.q != NULL:
            drop_queue(self.p.q, True)

    def __reduce__(self):
        raise unpicklable(self, "threads of this process serve it; make another one where it is needed")

    cdef int begin(self) except -1:
        cdef bint begun
        with cython.critical_section(self):
            begun = self.begun
            self.begun = True
        if begun:
            raise RuntimeError(f"{type(self).__name__}.__init__ was called again")
        return 0

    @property
    def pending(self):
        """Items in all lanes that wait."""
        return self.p.pending

    @property
    def workers(self):
        """Threads that serve it, those about to start included."""
        return self.p.workers

    @property
    def idle_workers(self):
        """Of these, those that wait for work."""
        return self.p.q.not_empty.n

    @property
    def submitters_waiting(self):
        """Threads that wait for a place."""
        cdef int64_t n = 0
        cdef lane_t *ln
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
        return bool(self.p.q.shut)

    cdef int start_workers(self, int64_t n) except -1:
        """Start so many threads. If one cannot be, the others do its work; without any others, that is raised."""
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

    def work(self):
        """Run calls until the pool has ended and nothing is left that could be taken."""
        cdef Call call
        cdef bint counts = True
        cdef Worker worker = Worker.__new__(Worker)
        worker.pool = self
        here.worker = worker
        try:
            while True:
                call = self.take()
                if call is None:
                    counts = False
                    return
                call.run(worker)
                call = None
        finally:
            here.worker = None
            if counts:
                leave_pool(&self.p, True)

    def serves(self):
        """Whether the calling thread is in work()."""
        worker = getattr(here, "worker", None)
        return worker is not None and (<Worker>worker).pool is self

    cdef Call take(self):
        """The next call, waiting for one if need be; None: the pool has ended, and this worker has been discounted."""
        cdef uintptr_t item = 0
        cdef int64_t fork_generation = 0
        cdef lane_t *ln
        cdef int r
        cdef Call call
        cdef wait_point p
        items_point(&p, self.p.q, True)
        while True:
            ln = take_item(&self.p, &item, &fork_generation)
            if ln != NULL:
                call = mt_owned_item(item)
                call.fork_generation = fork_generation
                # call.lane is the same object: the running item's reference.
                mt_owned_item(<uintptr_t>ln.object)
                return call
            r = MT_EMPTY
            if again(&p, 1, &r, NEVER):
                continue
            if r == MT_SHUTDOWN and leave_pool(&self.p, False):
                return None
            if r == MT_NOMEM:
                raise MemoryError
            if r == MT_INTERRUPTED:
                raise_pending()

    def end(self, resume=True):
        """No more calls are taken, also from those who wait for a place. What is in the lanes still runs, also, with
        resume, in paused ones."""
        self.start_workers(end_pool(&self.p, bool(resume)))

    cdef list busy_lanes(self):
        """The lanes that have items or run any."""
        cdef list out
        cdef subqueue *s
        cdef int64_t n
        cdef Py_ssize_t i = 0
        cdef PyObject *refs
        while True:
            n = self.p.q.nsubs
            out = mt_list_reserve(n)
            lock_take(self.p.q, True)
            if self.p.q.nsubs <= n:
                s = self.p.q.all_first
                while s != NULL:
                    refs = <PyObject *>(<lane_t *>s.owner).object
                    if (<lane_t *>s.owner).keep_alive:              # the others may be on their way out
                        Py_INCREF_raw(refs)
                        mt_list_slots(<PyObject *>out)[i] = <uintptr_t>refs
                        i += 1
                    s = s.all_next
                mt_list_filled(<PyObject *>out, i)
                unlock_take(self.p.q)
                return out
            unlock_take(self.p.q)

    def drop(self):
        """Take all items out of all lanes and return them; they are not run."""
        cdef list dropped = []
        cdef BaseLane busy
        for busy in self.busy_lanes():
            busy.take_all_away(dropped)
        return dropped

    def _after_fork(self):
        """In the child of a fork."""
        forget_in_child(&self.p, PyThread_get_thread_ident())
        cdef BaseLane busy
        for busy in self.busy_lanes():
            busy._drop()
            if rest_lane(busy.ln.p, &busy.ln):
                Py_DECREF(busy)


@cython.final
cdef class Worker:
    """A thread in work()."""
    cdef WorkPool pool
    cdef BaseLane lane              # whose call it runs


def disown(made):
    """Let any thread free `made`, which the caller has just made. Without the GIL an object is freed by the thread that
    made it, and not while that thread waits."""
    mt_disown(made)


# ---------------------------------------------------------------------------------------------------------------- lanes
@cython.trashcan(True)
@cython.no_gc_clear     # lane_clear() below breaks cycles and leaves the lane usable
cdef class BaseLane:
    """A key of a pool: its own queue, its turn among the others. Another lane of the same key shares nothing with
    it."""
    cdef lane_t ln
    cdef WorkPool pool
    cdef object __weakref__

    def __cinit__(self, *args, **options):
        cdef WorkPool owner
        if not args or not isinstance(args[0], WorkPool):
            raise TypeError(f"{type(self).__name__} cannot be made by itself: its executor or dispatcher makes it")
        owner = args[0]
        mt_disown(self)         # the worker that runs its last call often gives up the last reference
        self.pool = owner
        self.ln.p = &owner.p
        self.ln.object = <void *>self
        self.ln.s = new_tail(owner.p.q, 0, 0, 1, True)
        if self.ln.s == NULL:
            raise MemoryError
        self.ln.s.owner = <void *>&self.ln
        self.ln.s.key = <void *>self
        self.ln.max_running = owner.per_key
        if attach_tail(owner.p.q, self.ln.s, True) != MT_OK:
            self.ln.s.closed_flags |= MT_CLOSED_SHUTDOWN       # of a pool that has ended: every put is refused

    def __dealloc__(self):
        cdef uintptr_t item
        cdef bint let_go
        if self.ln.s != NULL:
            while take_away(self.ln.p, &self.ln, &item, &let_go):
                Py_DECREF_raw(<PyObject *>item)
            detach_tail(self.ln.p.q, self.ln.s, True)
            drop_left_chunks(self.ln.p.q, self.ln.s)
            free_tail(self.ln.s, True)

    def __reduce__(self):
        raise unpicklable(self,
                          "a lane belongs to its executor in this process; ask the executor for the lane of the key")

    # ---------------------------------------------------------------------------------------------------------- options
    def _configure(self, *, priority=UNSET, weight=UNSET, max_pending=UNSET, max_running=UNSET):
        """Set the options that are passed: all of them, or none if one is refused."""
        cdef int64_t first = self.priority if priority is UNSET else priority_argument(priority)
        cdef uint32_t share = self.weight if weight is UNSET else weight_argument(weight)
        cdef int64_t pending = self.ln.max_pending, running = self.ln.max_running
        if max_pending is not UNSET:
            pending = bound_argument("max_pending", max_pending)
        if max_running is not UNSET:
            running = bound_argument("max_running", max_running)
        if set_priority(self.ln.p.q, self.ln.s, first, True) == MT_NOMEM:
            raise MemoryError
        set_weight(self.ln.p.q, self.ln.s, share, True)
        if max_pending is not UNSET or max_running is not UNSET:
            self.pool.start_workers(limit_lane(self.ln.p, &self.ln, pending, running))

    @property
    def priority(self):
        """Smaller goes first. A new one moves the lane to the end of that turn."""
        cdef int64_t priority
        lock_take(self.ln.p.q, True)
        priority = self.ln.s.priority
        unlock_take(self.ln.p.q)
        return priority

    @property
    def weight(self):
        """Calls per turn. A new one counts from the lane's next turn."""
        cdef uint32_t weight
        lock_take(self.ln.p.q, True)
        weight = self.ln.s.weight
        unlock_take(self.ln.p.q)
        return weight

    @property
    def max_pending(self):
        """Calls that may wait in this lane; 0 or less: no bound."""
        return self.ln.max_pending

    @property
    def max_running(self):
        """Calls of this lane that may run at a time; 0 or less: no limit."""
        return self.ln.max_running

    @property
    def pending(self):
        """How many wait."""
        cdef int64_t n
        lock_take(self.ln.p.q, True)
        n = head_count(self.ln.s)
        unlock_take(self.ln.p.q)
        return n

    @property
    def running(self):
        """How many run."""
        return self.ln.active

    @property
    def state(self):
        """"dormant", "ready", "in progress" (as many run as may), "paused" or "stopped" (closed, its items dropped)."""
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
        """Whether it takes nothing more."""
        return self.ln.s.closed_flags != 0

    def pause(self):
        """Calls wait until resume(); those that run go on. RuntimeError: it was shut down."""
        if pause_lane(self.ln.p, &self.ln, True) < 0:
            raise RuntimeError("cannot pause after shutdown")

    def resume(self):
        """Calls run again."""
        self.pool.start_workers(pause_lane(self.ln.p, &self.ln, False))

    def _end(self, resume=True):
        """Nothing more may be submitted to this lane. What is in it still runs; with resume also if it is paused."""
        self.pool.start_workers(shut_lane(self.ln.p, &self.ln, bool(resume)))

    def _drop(self):
        """Take all items out and return them; they are not run."""
        cdef list dropped = []
        self.take_all_away(dropped)
        return dropped

    cdef int take_all_away(self, list dropped) except -1:
        cdef uintptr_t item = 0
        cdef bint let_go = False
        while take_away(self.ln.p, &self.ln, &item, &let_go):
            if let_go:
                Py_DECREF(self)     # the caller has a reference of its own
            taken = mt_owned_item(item)
            if isinstance(taken, Call):
                (<Call>taken).let_go()
            dropped.append(taken)
        return 0

    def _wait_idle(self, timeout=None):
        """Wait until nothing is left in it and nothing runs: True. False: not within `timeout` seconds."""
        cdef int r = wait_until_idle(&self.ln, deadline_from(True, timeout))
        if r == MT_INTERRUPTED:
            raise_pending()
        if r == MT_NOMEM:
            raise MemoryError
        return r == MT_OK

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
        """Schedule fn(*args, **kwargs) behind the calls of this lane and return its Future. If the lane or the executor
        is full it waits for a place, except in a worker of the executor, which goes over the bound instead.
        RuntimeError: lane or executor were shut down, also while waiting; nothing was scheduled then."""
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
        """The lane is full, or refused the call, whose reference is counted for it already."""
        cdef bint start = False
        cdef int r
        if self.pool.serves():
            r = put_in_lane(self.ln.p, &self.ln, <uintptr_t><PyObject *>call, True, &call.position, &start)
        else:
            r = put_when_room(self.ln.p, &self.ln, <uintptr_t><PyObject *>call, &call.position, &start)
        if r != MT_OK:
            Py_DECREF(call)
        if r == MT_SHUTDOWN:
            raise self.refused()
        if r == MT_NOMEM:
            raise MemoryError
        if r == MT_INTERRUPTED:
            raise_pending()
        return start

    cdef object refused(self):
        if not self.pool.p.q.shut:
            return RuntimeError("cannot schedule new futures after shutdown of this key")
        if self.pool.refusal is None:
            return RuntimeError("cannot schedule new futures after shutdown")
        return self.pool.refusal()

    cdef int start_for(self, Call call) except -1:
        try:
            self.pool.start_workers(1)
        except BaseException as error:
            # Nobody is there to run it, and nobody will be told of it; or it runs by now, and only an interruption is
            # news.
            if call.withdraw() or not isinstance(error, Exception):
                raise
        return 0

    @property
    def _called_from(self):
        """Whether the calling thread is a worker that runs a call of this lane."""
        worker = getattr(here, "worker", None)
        return worker is not None and (<Worker>worker).lane is self


cdef class Call:
    """The part of a submitted call's Future that the pool knows; KeyedFuture is the whole."""
    cdef BaseLane lane              # while it waits
    cdef object fn
    cdef tuple args
    cdef dict kwargs
    cdef int64_t position, fork_generation

    cdef bint withdraw(self) except -1:
        """Out of its lane, if it is still there."""
        cdef BaseLane lane
        cdef bint let_go = False
        with cython.critical_section(self):
            lane = self.lane
        if lane is None or not withdraw_item(lane.ln.p, &lane.ln, self.position, <uintptr_t><PyObject *>self, &let_go):
            return False
        if let_go:
            Py_DECREF(lane)
        self.let_go()
        Py_DECREF(self)             # the lane's reference; the caller has one
        return True

    cdef int let_go(self) except -1:
        """It has left its lane and will not run: it holds on to nothing."""
        with cython.critical_section(self):
            held = (self.lane, self.fn, self.args, self.kwargs)
            self.lane = self.fn = self.args = self.kwargs = None
        del held                    # outside the critical section
        return 0

    def __reduce__(self):
        raise unpicklable(self, "a call runs once, in this process; pass on its result instead")

    def cancel(self):
        """Cancel the call if it has not begun: True. Its place is free before anybody is told; who waits for the result
        gets CancelledError. False: it runs or has run."""
        with self._condition:
            state = self._state
            if state in ("CANCELLED", "CANCELLED_AND_NOTIFIED"):
                return True
            if state != "PENDING":
                return False
            self._state = "CANCELLED"
            self._condition.notify_all()
        if self.withdraw():
            self.set_running_or_notify_cancel()     # no worker will come to tell wait() and as_completed()
        self._invoke_callbacks()
        return True

    def _drop_out(self):
        """Cancel a call that was taken out of its lane by drop()."""
        self.cancel()
        self.set_running_or_notify_cancel()

    cdef int run(self, Worker worker) except -1:
        """In a worker: the call, its result, and the end of its turn in the lane."""
        cdef BaseLane lane
        cdef object fn
        cdef tuple args
        cdef dict kwargs
        with cython.critical_section(self):         # cancel() may be looking
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
            # After the result is out: the next call of a lane with max_running=1 finds this one done.
            lane.finish(self.fork_generation)
        return 0


class KeyedFuture(Call, Future):
    """The Future of a call submitted to a KeyedExecutor: a concurrent.futures.Future whose cancel() frees the place at
    once."""


cdef object CALL = KeyedFuture


# --------------------------------------------------------------------------------------------------------- lanes by key
class LaneReference(weakref.ref):
    """A weak reference that knows the hash under which its entry is filed."""
    __slots__ = ("number",)


@cython.final
@cython.no_gc_clear     # finalizers of a dead cycle may still ask for lanes
cdef class LaneTable:
    """Lanes by key, held weakly. The entry of a lane that is collected goes with it.

    A bucket is the immutable tuple of (key, LaneReference) of one hash. Keys are compared with no lock held: `==` is
    the user's code and may wait for a thread that asks for a lane. A new bucket replaces the one that was compared only
    if that is still there; else the keys are compared again. Collecting a lane compares no keys.
    Progress: lock-free but for a short critical section in a free-threaded build."""
    # Hash -> bucket; used only in a critical section of the table, so its own lock is always free.
    cdef dict buckets
    cdef object forgotten       # callback of the references
    cdef object __weakref__

    def __cinit__(self):
        self.buckets = {}
        self.forgotten = forget_lane(weakref.ref(self))

    def __len__(self):
        """Lanes that are not forgotten."""
        cdef list buckets
        with cython.critical_section(self):
            buckets = list(self.buckets.values())
        return sum([len(bucket) for bucket in buckets])

    def get(self, key, make):
        """The lane of that key. If there is none, or it takes nothing more, make(key) makes another one."""
        cdef object number = hash(key)
        cdef object made = None
        cdef BaseLane known
        cdef tuple bucket, entry
        while True:
            bucket = self.bucket_of(number)
            entry = entry_of(bucket, key)
            known = None if entry is None else entry[1]()
            if known is not None and known.ln.s.closed_flags == 0:
                return known
            if made is None:
                made = make(key)
                reference = LaneReference(made, self.forgotten)
                reference.number = number
            if self.replace(number, bucket, (*[other for other in bucket if other is not entry], (key, reference))):
                return made

    cdef tuple bucket_of(self, object number):
        with cython.critical_section(self):
            return <tuple>self.buckets.get(number, ())

    cdef bint replace(self, object number, tuple old, tuple new) except -1:
        """False: another bucket stands there. Allocates nothing that could run the collector between look and
        change."""
        with cython.critical_section(self):
            if <tuple>self.buckets.get(number, ()) is not old:
                return False
            if new:
                self.buckets[number] = new
            else:
                del self.buckets[number]
        return True

    cdef int forget(self, object reference) except -1:
        cdef tuple bucket, rest
        while True:
            bucket = self.bucket_of(reference.number)
            rest = tuple([entry for entry in bucket if entry[1] is not reference])
            if len(rest) == len(bucket) or self.replace(reference.number, bucket, rest):
                return 0


cdef object forget_lane(object table_reference):
    """The references must not keep the table alive."""
    def forgotten(reference):
        table = table_reference()
        if table is not None:
            (<LaneTable>table).forget(reference)
    return forgotten


cdef tuple entry_of(tuple bucket, object key):
    for entry in bucket:
        if entry[0] is key or entry[0] == key:
            return entry
    return None


# ------------------------------------------------------------------------------------------------ lanes on any executor
class _Collected:
    """The executor of a dispatcher that the collector has cleared."""

    @staticmethod
    def submit(task):
        raise RuntimeError("the dispatcher was collected")


cdef object COLLECTED = _Collected


def drop_item(item):
    """The handler of a lane that the collector has cleared."""


@cython.no_gc_clear
cdef class Dispatcher(WorkPool):
    """Lanes whose items run one at a time and in order, on the threads of an executor that has submit().

    As many tasks are submitted as lanes are ready. A task is not tied to a lane: it serves the next ready one for up to
    `block` items, then makes way. If the executor refuses a task, add() raises what it raised and takes its item back,
    unless that has run by then; other items stay where they are, and the next add() tries for them too. A task that has
    served a block, and cannot be submitted again because the executor was shut down, serves what is left in its own
    thread.

    on_error(item, error) is called when an item raises; by default sys.unraisablehook. No other item is lost by that.
    The collector clears executor and on_error of a dispatcher in a dead cycle; its lanes refuse items then."""
    cdef object executor
    cdef object on_error
    cdef int64_t block

    def __init__(self, executor, *, block=256, on_error=None):
        if not callable(getattr(executor, "submit", None)):
            raise TypeError(f"executor={executor!r}: expected an object with submit()")
        cdef int64_t items = int_argument("block", block, "an int >= 1")
        if items < 1:
            raise ValueError(f"block={block!r}: expected an int >= 1 (items per task)")
        WorkPool.__init__(self, None, 0)
        self.executor = executor
        self.on_error = on_error
        self.block = items

    def lane(self, handler=None, *, max_pending=0):
        """A new lane. Its items are passed to handler, or are called if there is none. max_pending > 0: add() waits
        while it is full, except inside a block of this dispatcher."""
        return SerialLane(self, handler, max_pending)

    @property
    def inside(self):
        """Whether the calling thread runs an item of one of its lanes."""
        return any([(<SerialLane>running).pool is self for running in getattr(here, "lanes", ())])

    cdef int schedule(self) except -1:
        """Submit the tasks that are missing; what the executor raises is raised."""
        cdef int64_t n = missing_tasks(&self.p)
        while n > 0:
            try:
                if self.executor is None:
                    raise RuntimeError("Dispatcher.__init__ was not called")
                future = self.executor.submit(self._serve)
                n -= 1
                if hasattr(future, "add_done_callback"):
                    future.add_done_callback(self._task_done)
            except BaseException:
                refused_tasks(&self.p, n)
                raise
        return 0

    def _task_done(self, future):
        """A task that was cancelled serves nobody. The next add() asks for another one; here that could deadlock,
        because the standard library's pool cancels futures under a lock that its submit() takes."""
        if future.cancelled():
            refused_tasks(&self.p, 1)

    def _serve(self):
        """An executor task: a block of the next ready lane."""
        cdef bint of_task = True
        while self.serve_block(of_task):
            of_task = False
            try:
                self.schedule()
                return
            except Exception:
                pass        # refused: this thread serves what is left

    cdef bint serve_block(self, bint of_task) except -1:
        """False: no lane is ready."""
        cdef int64_t fork_generation = 0
        cdef lane_t *ln = begin_batch(&self.p, self.block, of_task, &fork_generation)
        cdef SerialLane serving
        if ln == NULL:
            return False
        serving = mt_owned_item(<uintptr_t>ln.object)
        if getattr(here, "lanes", None) is None:
            here.lanes = []
        here.lanes.append(serving)
        try:
            while serving.run_one(fork_generation):
                pass
        finally:
            here.lanes.pop()
            serving.finish(fork_generation)
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

    @cython.binding(False)
    @cython.embedsignature.format("clinic")
    def add(self, item):
        """Append an item: True. False: the lane was closed, the item was not taken. Safe from any thread, finalizers
        and signal handlers included; never waits unless the lane has a bound. Raises what the executor's submit raised,
        if that was for this item; the item was not taken then."""
        cdef Dispatcher dispatcher = self.pool
        cdef int64_t position = 0
        cdef bint let_go = False, start = False
        cdef int r
        Py_INCREF(item)
        r = put_in_lane(self.ln.p, &self.ln, <uintptr_t><PyObject *>item, False, &position, &start)
        if r == MT_FULL and dispatcher.inside:
            r = put_in_lane(self.ln.p, &self.ln, <uintptr_t><PyObject *>item, True, &position, &start)
        elif r == MT_FULL:
            r = put_when_room(self.ln.p, &self.ln, <uintptr_t><PyObject *>item, &position, &start)
        if r != MT_OK:
            Py_DECREF(item)
        if r == MT_SHUTDOWN:
            return False
        if r == MT_NOMEM:
            raise MemoryError
        if r == MT_INTERRUPTED:
            raise_pending()
        try:
            dispatcher.schedule()
        except BaseException:
            if withdraw_item(self.ln.p, &self.ln, position, <uintptr_t><PyObject *>item, &let_go):
                if let_go:
                    Py_DECREF(self)
                Py_DECREF(item)
                raise
        return True

    cdef bint run_one(self, int64_t fork_generation) except -1:
        """In a block: the next item. False: the block is over."""
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
        """Items are served again. Raises what the executor's submit raised; the next add() tries again then."""
        BaseLane.resume(self)
        (<Dispatcher>self.pool).schedule()

    def close(self, drop=True):
        """Take no more items: add() returns False. drop=True: the items that have not begun are returned and do not
        run. drop=False: they still run, and [] is returned. Does not wait: see wait()."""
        if not drop:
            self._end()
            (<Dispatcher>self.pool).schedule()
            return []
        stop_lane(self.ln.p, &self.ln)
        return self._drop()

    def wait(self, timeout=None):
        """Wait until no item is left and none runs: True. Inside this lane that would never be: False at once. False
        also if it was not within `timeout` seconds."""
        return not self.inside and self._wait_idle(timeout)


# --------------------------------------------------------------------------------------------------- garbage collection
# Items are in C memory: lanes show theirs to the collector, pools show the lanes that they keep.
cdef traverseproc base_lane_traverse, base_serial_traverse, base_pool_traverse, base_dispatcher_traverse


cdef int visit_kept(queue *q, visitproc visit, void *arg) noexcept:
    """The lanes that a pool owns a reference to."""
    cdef subqueue *s = q.all_first if q != NULL else NULL
    cdef lane_t *ln
    cdef int r = 0
    while s != NULL and r == 0:
        ln = <lane_t *>s.owner
        if ln.keep_alive:
            r = visit(<PyObject *>ln.object, arg)
        s = s.all_next
    return r


cdef int lane_traverse(PyObject *self, visitproc visit, void *arg) noexcept:
    cdef subqueue *s = (<BaseLane>self).ln.s
    cdef int r = base_lane_traverse(self, visit, arg)
    if r == 0 and s != NULL:
        r = visit_items(s, visit, arg)
    return r


cdef int lane_clear(PyObject *self) noexcept:
    cdef uintptr_t item = 0
    cdef bint let_go = False
    if (<BaseLane>self).ln.s != NULL:
        while take_away((<BaseLane>self).ln.p, &(<BaseLane>self).ln, &item, &let_go):
            if let_go:
                Py_DECREF_raw(self)     # the collector has a reference of its own
            Py_DECREF_raw(<PyObject *>item)
    return 0


def collected(*unused):
    """What stands for a callable that the collector has let go."""
    raise RuntimeError("its pool was collected")


cdef int pool_clear(PyObject *self) noexcept:
    """The callables may be methods of an object that leads back here by nothing else that can be cleared."""
    cdef WorkPool it = <WorkPool>self
    it.start = collected
    it.refusal = None
    return 0


cdef int pool_traverse(PyObject *self, visitproc visit, void *arg) noexcept:
    cdef int r = base_pool_traverse(self, visit, arg)
    return r if r else visit_kept((<WorkPool>self).p.q, visit, arg)


cdef int serial_traverse(PyObject *self, visitproc visit, void *arg) noexcept:
    cdef subqueue *s = (<BaseLane>self).ln.s
    cdef int r = base_serial_traverse(self, visit, arg)
    if r == 0 and s != NULL:
        r = visit_items(s, visit, arg)
    return r


cdef int serial_clear(PyObject *self) noexcept:
    """A handler may be a method of the lane's own: nothing else in such a cycle could be cleared."""
    lane_clear(self)
    (<SerialLane>self).handler = drop_item
    return 0


cdef int dispatcher_clear(PyObject *self) noexcept:
    """So may what a dispatcher calls."""
    (<Dispatcher>self).executor = COLLECTED
    (<Dispatcher>self).on_error = None
    return pool_clear(self)


cdef int dispatcher_traverse(PyObject *self, visitproc visit, void *arg) noexcept:
    cdef int r = base_dispatcher_traverse(self, visit, arg)
    return r if r else visit_kept((<WorkPool>self).p.q, visit, arg)


base_lane_traverse = mt_traverse_of(<PyTypeObject *>BaseLane)
mt_patch_gc(<PyTypeObject *>BaseLane, lane_traverse, lane_clear)
mt_patch_gc(<PyTypeObject *>Lane, lane_traverse, lane_clear)
base_serial_traverse = mt_traverse_of(<PyTypeObject *>SerialLane)
mt_patch_gc(<PyTypeObject *>SerialLane, serial_traverse, serial_clear)
base_pool_traverse = mt_traverse_of(<PyTypeObject *>WorkPool)
mt_patch_gc(<PyTypeObject *>WorkPool, pool_traverse, pool_clear)
base_dispatcher_traverse = mt_traverse_of(<PyTypeObject *>Dispatcher)
mt_patch_gc(<PyTypeObject *>Dispatcher, dispatcher_traverse, dispatcher_clear)
