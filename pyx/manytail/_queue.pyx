"""The queues of manytail.queue: the standard library's Queue and SimpleQueue on the kernel of MultiQueue.

Algorithm: a MultiQueue with one sub-queue (_mq.pxd). A put takes the put lock, a get the take lock, so putters and
getters do not wait for each other. This file adds what the standard library lets users do with a Queue: hold its mutex,
wait for its conditions, use its container, override its hooks.

A Queue has two modes:
- Kernel mode: the items are in the kernel, and put and get are built-in methods on it. There is no mutex.
- Locked mode: put and get run under `mutex`, `_put` stores the items (in a deque, unless a subclass overrides it), and
  threads wait for the conditions `not_empty`, `not_full` and `all_tasks_done`. A queue whose class overrides `_init`,
  `_qsize`, `_put` or `_get` is in locked mode from the start, and has no kernel. Any other one enters it for good at
  the first use of `mutex`, a condition or `queue`, or when `unfinished_tasks` is assigned (`enter_locked_mode`).

Invariants
- The mutex is made before the kernel is stopped. A put or get tries the kernel first; only if that returns MT_SHUTDOWN
  it looks whether there is a mutex.
- acquire_mutex() acquires the mutex and then moves the items from the kernel to `container`, unless that is done. Users
  are given the mutex after that. An item is always in the kernel, in `moving` or in `container`. So a move that
  ends early, by a MemoryError or because the process forks and the thread is not in the child, is completed by the next
  acquire_mutex().
- No Python code runs under a lock of the kernel. The hooks of a subclass run under the mutex, as in the standard
  library.

The rules of _multiqueue.pyx hold here too.
"""
cimport cython
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject

from manytail._cpython cimport *
from manytail._lifecycle cimport raise_if_failed, tell_of_forks
from manytail._mq_changes cimport *
from manytail._mq_clear cimport *
from manytail._mq_iterate cimport *
from manytail._mq_life cimport *
from manytail._mq_put cimport *
from manytail._root cimport Root, clear_by_breaking_cycles
from manytail._sync cimport Condition, Mutex

import math
from collections import deque
from operator import index

# It resets all kernels in the child of a fork.
import manytail._multiqueue  # no-cython-lint

from manytail.errors import Empty, Full, ShutDown

cdef PyObject *EMPTY = <PyObject *>Empty       # borrowed from the imports above
cdef PyObject *FULL = <PyObject *>Full
cdef object NOTHING = object()

cdef extern from *:
    """
    /* A copy of a built-in method of a class, as a method that `subclass` defines itself. */
    static PyObject *mt_method_for(PyObject *subclass, PyObject *method) {
        return PyDescr_NewMethod((PyTypeObject *)subclass, ((PyMethodDescrObject *)method)->d_method);
    }
    """
    object mt_method_for(object subclass, object method)


cdef inline int head_get_lone(queue *q, subqueue *s, uintptr_t *item, wait_node **to_post) noexcept nogil:
    """head_get() for a queue with one sub-queue: while that is listed and no getter waits, there is nothing to choose
    and nobody to notify."""
    cdef subqueue *same
    if likely(s.ready.listed and q.not_empty.n == 0 and not head_empty(s)):
        item[0] = head_pop(q, s)
        q.taken_total += 1
        head_popped(q, s, 1, True, to_post)
        return MT_OK
    return head_get(q, item, &same, True, to_post)


# ---------------------------------------------------------------------------------------------------------- kernel mode
cdef inline int put_at_once(queue *q, subqueue *s, PyObject *item) noexcept:
    """MT_OK, or why nothing was put."""
    cdef int r
    Py_INCREF_raw(item)
    r = put_once(q, s, <uintptr_t>item, True)
    if unlikely(r != MT_OK):
        Py_DECREF_raw(item)             # never the last reference: the caller has one
    return r


cdef inline int get_at_once(queue *q, subqueue *s, uintptr_t *item) noexcept:
    """MT_OK and an item, whose reference is the caller's; or MT_EMPTY, MT_SHUTDOWN."""
    cdef wait_node *to_post = NULL
    cdef int r
    lock_take(q, True)
    r = head_get_lone(q, s, item, &to_post)
    if unlikely(r != MT_OK) and q.shut:
        r = MT_SHUTDOWN
    unlock_take(q)
    if unlikely(to_post != NULL):
        post(to_post)
    return r


@cython.no_gc_clear
cdef class Fifo(Root):
    """The base of the queues: a kernel with one sub-queue. `q` and `s` are NULL if the class overrides hooks.

    Each class defines put and get itself: the interpreter calls a built-in method fastest on the type that defines
    it."""
    cdef queue *q
    cdef subqueue *s
    cdef object __weakref__

    cdef int open_kernel(self) except -1:
        self.q = new_queue(not MT_FREE_THREADED, True)
        if self.q == NULL:
            raise MemoryError
        self.s = new_subqueue(self.q, 0, 0, 1, True)
        if self.s == NULL or attach_subqueue(self.q, self.s, True) != MT_OK:
            raise MemoryError
        return 0

    def __dealloc__(self):
        if self.s != NULL:
            detach_subqueue(self.q, self.s, True)
            self.drop_all()
            drop_left_chunks(self.q, self.s)
            free_subqueue(self.s, True)
        if self.q != NULL:
            drop_queue(self.q, True)

    cdef int visit(self, visitproc visit, void *arg) noexcept:
        return 0 if self.s == NULL else visit_items(self.s, visit, arg)

    cdef void break_cycles(self) noexcept:
        if self.s != NULL:
            self.drop_all()

    cdef void drop_all(self) noexcept:
        """Empty the kernel, and drop the items with no lock held."""
        drop_items(self.q, self.s, drop_object, NULL, True)

    cdef int put_waiting(self, object item, int64_t deadline) except -1:
        """MT_OK, or why nothing was put: MT_FULL, MT_TIMEOUT, MT_SHUTDOWN."""
        cdef int r
        Py_INCREF(item)
        r = put_until(self.q, self.s, <uintptr_t><PyObject *>item, NULL, False, deadline, True)
        if r != MT_OK:
            Py_DECREF(item)
        return raise_if_failed(r)

    cdef int get_waiting(self, int64_t deadline, uintptr_t *item) except -1:
        """MT_OK, or why there is no item: MT_EMPTY, MT_TIMEOUT, MT_SHUTDOWN."""
        cdef wait_point p
        cdef int r = get_at_once(self.q, self.s, item)
        if r == MT_OK or (r == MT_EMPTY and deadline == ONCE):
            return r
        items_point(&p, self.q, True)
        while again(&p, 1, &r, deadline):
            r = get_at_once(self.q, self.s, item)
        return raise_if_failed(r)

    cdef int64_t count(self) noexcept:
        cdef int64_t n
        lock_take(self.q, True)
        n = head_count(self.s)
        unlock_take(self.q)
        return n


@cython.no_gc_clear
@cython.binding(False)
@cython.embedsignature.format("clinic")
cdef class SimpleQueue(Fifo):
    """SimpleQueue()\n--\n
    A simple first-in, first-out queue without a size limit, like queue.SimpleQueue.

    put never waits for a getter and is safe in finalizers, weak reference callbacks and signal handlers, whatever this
    thread is doing to the queue. Blocking: one short lock for puts and one for gets; no lock is held while Python code
    runs."""

    def __cinit__(self, *args, **options):
        self.open_kernel()

    def __init__(self):
        """Takes no arguments; those of a subclass are its own."""

    def put(self, item, block=True, timeout=None):
        """Append an item. Never waits; block and timeout exist for compatibility with Queue, and are ignored."""
        raise_if_failed(put_at_once(self.q, self.s, <PyObject *>item))

    def get(self, block=True, timeout=None):
        """Remove and return the next item. Waits for one if the queue is empty.

        timeout: seconds for the whole call; None waits without limit. block=False does not wait and ignores timeout.
        Raises Empty if no item comes in time, and ValueError if timeout is negative or NaN."""
        cdef uintptr_t item = 0
        if self.get_waiting(deadline_from(block, timeout), &item) != MT_OK:
            mt_return_raising(EMPTY)
        return mt_owned_item(item)

    def put_nowait(self, item):
        """put(item)"""
        raise_if_failed(put_at_once(self.q, self.s, <PyObject *>item))

    def get_nowait(self):
        """get(block=False)"""
        cdef uintptr_t item = 0
        if get_at_once(self.q, self.s, &item) != MT_OK:
            mt_return_raising(EMPTY)
        return mt_owned_item(item)

    def qsize(self):
        """Return the number of items. Other threads may have changed it by the time this returns."""
        return self.count()

    def empty(self):
        """Return whether get would have to wait."""
        return self.count() == 0


# ---------------------------------------------------------------------------------------------------------- locked mode
cdef enum:
    HOOK_INIT = 1       # hooks that a class overrides
    HOOK_QSIZE = 2
    HOOK_PUT = 4
    HOOK_GET = 8


cdef int overridden_hooks(object cls) except -1:
    return ((cls._init is not BaseQueue._init) * HOOK_INIT | (cls._qsize is not BaseQueue._qsize) * HOOK_QSIZE
            | (cls._put is not BaseQueue._put) * HOOK_PUT | (cls._get is not BaseQueue._get) * HOOK_GET)


cdef list built_in_puts = [], built_in_gets = []


def define_put_and_get(cls):
    """A decorator for the public subclass. Gives it put and get of its own, because the interpreter calls those faster
    than inherited ones."""
    cls.put = mt_method_for(cls, BaseQueue.put)
    cls.get = mt_method_for(cls, BaseQueue.get)
    built_in_puts.append(cls.put)
    built_in_gets.append(cls.get)
    return cls


cdef int64_t bound_of(object maxsize) except? -7:
    """maxsize as an int, 0: no limit. As in the standard library a float is allowed: it is rounded up, and infinity
    is no limit. TypeError: NaN, or another type."""
    if isinstance(maxsize, float) and not math.isnan(maxsize):
        maxsize = math.ceil(maxsize) if math.isfinite(maxsize) else 0
    try:
        return max(0, min(index(maxsize), INT64_MAX))
    except TypeError:
        raise TypeError(f"maxsize: {maxsize!r} (expected: an int; 0 or less means no limit)") from None


@cython.no_gc_clear
@cython.binding(False)
@cython.embedsignature.format("clinic")
cdef class BaseQueue(Fifo):
    """BaseQueue(maxsize=0)\n--\n
    A first-in, first-out queue with a capacity, task counting and shutdown, like queue.Queue in Python 3.13.

    maxsize: the capacity; a put to a full queue waits. <= 0: no limit. You may assign to it; a larger value wakes
    waiting putters.

    The attributes `mutex`, `not_empty`, `not_full`, `all_tasks_done` and `queue` of the standard library's class exist
    too. The first use of one of them makes this queue permanently slower, because from then on each put and get takes
    the mutex. A subclass that overrides `_init`, `_qsize`, `_put` or `_get` is in this locked mode from the start.
    Blocking: one short lock for puts and one for gets, or the mutex in locked mode."""
    cdef object given_maxsize   # `maxsize` as it was assigned, of any type; used in a critical section
    cdef mt_atomic_i64 bound    # maxsize as an int; 0: no limit; written in a critical section
    cdef int hooks              # HOOK_*: which of _init, _qsize, _put and _get the class overrides
    cdef bint overrides_put, overrides_get      # whether the class does: then put_nowait and get_nowait call those
    cdef mt_atomic_u32 made     # __init__ was called
    cdef mt_atomic_u32 ended    # shutdown() was called; written in a critical section
    # Locked mode. Methods change these with the mutex held; users may assign `queue` and `unfinished_tasks` without it.
    cdef Mutex lock             # the mutex, or None in kernel mode; set once, in a critical section
    cdef object container       # `queue`
    cdef object moving          # the item that leaves the kernel and is not in `container` yet, or NOTHING
    cdef mt_atomic_u32 moved    # no item is left in the kernel; written with the mutex held
    cdef Condition may_get, may_put, all_done
    cdef mt_atomic_i64 unfinished

    def __cinit__(self, *args, **options):
        cdef object cls = type(self)
        self.given_maxsize = 0
        self.moving = NOTHING
        self.hooks = overridden_hooks(cls)
        self.overrides_put = not any([cls.put is put for put in built_in_puts])
        self.overrides_get = not any([cls.get is get for get in built_in_gets])
        if self.hooks:
            self.adopt_mutex(Mutex(), None)
            mt_store_relaxed_u32(&self.moved, True)     # relaxed because: nobody else has it yet
        else:
            self.open_kernel()

    def __init__(self, maxsize=0):
        if mt_fetch_add_relaxed_u32(&self.made, 1):         # relaxed because: only its own result counts
            raise RuntimeError(f"{type(self).__name__}.__init__ was called before: make another queue instead")
        self.set_bound(maxsize)
        if type(self).maxsize is not BaseQueue.maxsize:     # a class attribute of a subclass hides the property
            self.maxsize = maxsize
        if self.hooks:
            self._init(maxsize)

    cdef void break_cycles(self) noexcept:
        self.moving = NOTHING
        Fifo.break_cycles(self)

    # ----------------------------------------------------------------------------------------------------- modes
    cdef int adopt_mutex(self, Mutex lock, object container) except -1:
        """Set the mutex, its conditions and the container, unless another thread has set them."""
        cdef Condition may_get = Condition(lock), may_put = Condition(lock), all_done = Condition(lock)
        tell_of_forks(self)
        with cython.critical_section(self):
            if self.lock is None:
                self.may_get, self.may_put, self.all_done = may_get, may_put, all_done
                self.container = container
                self.lock = lock
        return 0

    cdef bint in_locked_mode(self) noexcept:
        with cython.critical_section(self):
            return self.lock is not None

    cdef BaseQueue enter_locked_mode(self):
        """Make the mutex, and return this queue when all items have moved. If the caller holds the mutex, at once."""
        if not self.in_locked_mode():
            self.adopt_mutex(Mutex(), deque())
        if not mt_load_acquire_u32(&self.moved):    # pairs with: mt_store_release in move_items
            self.acquire_mutex()
            self.lock.release()
        return self

    cdef int move_items(self) except -1:
        """Stop the kernel and move its items and its count of unfinished tasks. The mutex is held. Nothing here may run
        the collector: a finalizer that puts to this queue would wait for this thread."""
        shut_queue(self.q, True, True)
        while True:
            if self.moving is NOTHING:
                self.moving = self.take_from_stopped_kernel()
                if self.moving is NOTHING:
                    break
            self.container.append(self.moving)
            self.moving = NOTHING
        mt_store_release_u32(&self.moved, True)     # pairs with: mt_load_acquire in enter_locked_mode
        return 0

    cdef object take_from_stopped_kernel(self):
        """Its next item. NOTHING: it is empty, and its unfinished tasks are in `unfinished`."""
        cdef wait_node *to_post = NULL
        cdef uintptr_t item = 0
        cdef queue *q = self.q
        lock_take(q, True)
        if head_count(self.s) > 0:
            item = head_pop(q, self.s)
            head_popped(q, self.s, 1, True, &to_post)
        else:
            # relaxed because: with the mutex held, as all that changes it but an assignment by a user
            mt_fetch_add_relaxed_i64(&self.unfinished, head_unfinished(q))
            # The kernel has no unfinished task from here on: its task_done() fails, its join() does not wait.
            q.done = q.taken_total
            q.removed_total = head_put_total(q) - q.done
            notify_all(&q.joiners, &to_post)
        unlock_take_and_post(q, to_post)
        return mt_owned_item(item) if item else NOTHING

    cdef int acquire_mutex(self) except -1:
        """Acquire the mutex, and complete the move of the items. If that raises, the mutex is released."""
        self.lock.acquire()
        if not mt_load_relaxed_u32(&self.moved):        # relaxed because: the mutex is held
            try:
                self.move_items()
            except BaseException:
                self.lock.release()
                raise
        return 0

    cdef bint wait(self, Condition condition, int64_t deadline, int64_t bound) except -1:
        """Condition.wait for a put, get or join. `bound`: as the caller has read it. If maxsize was assigned since,
        which needs no mutex, it does not sleep."""
        return condition.wait_until(deadline, &self.bound, bound)

    @property
    def mutex(self):
        """The lock of the queue. From the first use of this property on, put and get take it: they wait while you hold
        it."""
        return self.enter_locked_mode().lock

    @property
    def not_empty(self):
        """The condition of `mutex` that getters wait for."""
        return self.enter_locked_mode().may_get

    @property
    def not_full(self):
        """The condition of `mutex` that putters wait for."""
        return self.enter_locked_mode().may_put

    @property
    def all_tasks_done(self):
        """The condition of `mutex` that join waits for."""
        return self.enter_locked_mode().all_done

    @property
    def queue(self):
        """The container of the items. Hold `mutex` to use it."""
        return self.enter_locked_mode().items()

    @queue.setter
    def queue(self, value):
        self.enter_locked_mode()
        with cython.critical_section(self):
            self.container = value

    # ----------------------------------------------------------------------------------------------------- hooks
    def _init(self, maxsize):
        """Make `queue`. Called once, by __init__, if a hook is overridden."""
        self.queue = deque()

    def _qsize(self):
        """The number of items. Called with the mutex held."""
        return len(self.queue)

    def _put(self, item):
        """Add an item. Called with the mutex held."""
        self.queue.append(item)

    def _get(self):
        """Remove and return an item. Called with the mutex held, and only if there is one."""
        return self.queue.popleft()

    cdef object items(self):
        """`queue`. The critical section keeps it alive if a user assigns another one without the mutex."""
        cdef object container
        with cython.critical_section(self):
            container = self.container
        if container is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute 'queue': its _init has not set it")
        return container

    cdef int64_t locked_count(self) except? -7:
        if self.hooks & HOOK_QSIZE:
            return self._qsize()
        return len(self.items())

    # ----------------------------------------------------------------------------------------------------- put
    def put(self, item, block=True, timeout=None):
        """Append an item. Waits for a free slot if the queue is full.

        timeout: seconds for the whole call; None waits without limit. block=False does not wait. Without maxsize, block
        and timeout are ignored. Raises Full if no slot becomes free in time, ShutDown if the queue is shut down (also
        during the wait), and ValueError if timeout is negative or NaN. If it raises, nothing was put."""
        if not self.put_slow(item, block, timeout):
            mt_return_raising(FULL)

    cdef bint put_slow(self, object item, object block, object timeout) except -1:
        """False: no free slot in time."""
        # Without maxsize the standard library does not check timeout.
        cdef int64_t deadline = NEVER if block and self.current_bound() == 0 else deadline_from(block, timeout)
        cdef int r = MT_SHUTDOWN    # as of a stopped kernel
        if self.q != NULL:
            r = self.put_waiting(item, deadline)
        if r == MT_SHUTDOWN and self.in_locked_mode():
            r = self.put_locked(item, deadline)
        if r == MT_SHUTDOWN:
            raise ShutDown("the queue was shut down and takes no more items")
        return r == MT_OK

    cdef int put_locked(self, object item, int64_t deadline) except -1:
        """MT_OK, MT_FULL or MT_SHUTDOWN."""
        cdef int64_t bound
        self.acquire_mutex()
        try:
            while not self.has_ended():
                bound = self.current_bound()    # read once: it may be assigned meanwhile, also by _qsize
                if bound > 0 and self.locked_count() >= bound:
                    if deadline == ONCE or (deadline != NEVER and mt_now_ns() >= deadline):
                        return MT_FULL
                    self.wait(self.may_put, deadline, bound)
                    continue
                if self.hooks & HOOK_PUT:
                    self._put(item)
                else:
                    self.items().append(item)
                mt_fetch_add_relaxed_i64(&self.unfinished, 1)       # relaxed because: as in take_from_stopped_kernel()
                self.may_get.wake_one()
                return MT_OK
            return MT_SHUTDOWN
        except BaseException:
            self.wake_both()
            raise
        finally:
            self.lock.release()

    cdef void wake_both(self) noexcept:
        """A put or get raises. It may not use what it was woken for; and a hook may raise after its work is done."""
        self.may_put.wake_one()
        self.may_get.wake_one()

    def put_nowait(self, item):
        """put(item, block=False)"""
        if self.overrides_put:
            return self.put(item, block=False)
        if not self.put_slow(item, False, None):
            mt_return_raising(FULL)

    # ----------------------------------------------------------------------------------------------------- get
    def get(self, block=True, timeout=None):
        """Remove and return the next item. Waits for one if the queue is empty.

        timeout: seconds for the whole call; None waits without limit. block=False does not wait and ignores timeout.
        Raises Empty if no item comes in time, ShutDown if the queue is shut down and empty, and ValueError if timeout
        is negative or NaN."""
        cdef uintptr_t item = 0
        if self.get_slow(deadline_from(block, timeout), &item) != MT_OK:
            mt_return_raising(EMPTY)
        return mt_owned_item(item)

    cdef int get_slow(self, int64_t deadline, uintptr_t *item) except -1:
        """MT_OK and an item, whose reference is the caller's. Else nothing came in time."""
        cdef int r = MT_SHUTDOWN    # as of a stopped kernel
        if self.q != NULL:
            r = self.get_waiting(deadline, item)
        if r == MT_SHUTDOWN and self.in_locked_mode():
            found = self.get_locked(deadline)
            if found is NOTHING:
                return MT_EMPTY
            Py_INCREF(found)
            item[0] = <uintptr_t><PyObject *>found
            return MT_OK
        if r == MT_SHUTDOWN:
            raise ShutDown("the queue was shut down and nothing is left to get")
        return r

    cdef object get_locked(self, int64_t deadline):
        """An item, or NOTHING: nothing came in time."""
        self.acquire_mutex()
        try:
            while self.locked_count() == 0:
                if self.has_ended():
                    raise ShutDown("the queue was shut down and nothing is left to get")
                if deadline == ONCE or (deadline != NEVER and mt_now_ns() >= deadline):
                    return NOTHING
                self.wait(self.may_get, deadline, self.current_bound())
            item = self._get() if self.hooks & HOOK_GET else self.items().popleft()
            self.may_put.wake_one()
            return item
        except BaseException:
            self.wake_both()
            raise
        finally:
            self.lock.release()

    def get_nowait(self):
        """get(block=False)"""
        if self.overrides_get:
            return self.get(block=False)
        cdef uintptr_t item = 0
        if self.get_slow(ONCE, &item) != MT_OK:
            mt_return_raising(EMPTY)
        return mt_owned_item(item)

    # ----------------------------------------------------------------------------------------------------- state
    @property
    def maxsize(self):
        """How many items fit; 0 or less: no limit."""
        with cython.critical_section(self):
            return self.given_maxsize

    @maxsize.setter
    def maxsize(self, value):
        self.set_bound(value)

    cdef int set_bound(self, object value) except -1:
        cdef int64_t bound = bound_of(value)
        with cython.critical_section(self):
            if self.q != NULL:
                set_maxsize(self.q, self.s, bound, True)    # first: it detaches, which lets another thread in here
            self.given_maxsize = value
            mt_store_relaxed_i64(&self.bound, bound)    # relaxed because: see wait_without_mutex (_sync.pyx)
        if self.in_locked_mode():
            self.may_put.wake_all()
        return 0

    cdef int64_t current_bound(self) noexcept:
        return mt_load_relaxed_i64(&self.bound)     # relaxed because: see set_bound()

    def qsize(self):
        """Return the number of items. Other threads may have changed it by the time this returns."""
        return self.size()

    cdef int64_t size(self) except? -7:
        """What qsize, empty and full look at. A subclass may override qsize in terms of the others."""
        cdef int64_t n
        if self.q != NULL:
            n = self.count()
            if not self.in_locked_mode():      # looked at after the count: no item had left the kernel
                return n
        self.acquire_mutex()
        try:
            return self.locked_count()
        finally:
            self.lock.release()

    def empty(self):
        """Return whether get would have to wait."""
        return self.size() == 0

    def full(self):
        """Whether put would have to wait."""
        cdef int64_t bound = self.current_bound()       # read once: it may be assigned meanwhile
        return bound > 0 and self.size() >= bound

    # ----------------------------------------------------------------------------------------------------- tasks
    @property
    def unfinished_tasks(self):
        """Items that were put, less calls of task_done."""
        cdef int64_t n
        if self.q != NULL:
            lock_take(self.q, True)
            n = head_unfinished(self.q)
            unlock_take(self.q)
            if not self.in_locked_mode():
                return n
        # relaxed because: a user who needs the exact number holds the mutex
        return mt_load_relaxed_i64(&self.enter_locked_mode().unfinished)

    @unfinished_tasks.setter
    def unfinished_tasks(self, value):
        self.enter_locked_mode()
        mt_store_relaxed_i64(&self.unfinished, value)       # relaxed because: as above

    def task_done(self):
        """Count one item as done. Raises ValueError if it is called more often than items were put."""
        if self.q != NULL and task_done(self.q, True):
            return
        if self.in_locked_mode():
            self.acquire_mutex()
            try:
                if self.locked_done():
                    return
            finally:
                self.lock.release()
        raise ValueError("task_done() called too many times")

    cdef bint locked_done(self) noexcept:
        """Count one item as done, with the mutex held. False: there is none."""
        # relaxed because: as in take_from_stopped_kernel()
        if mt_load_relaxed_i64(&self.unfinished) <= 0:
            return False
        # relaxed because: as above
        if mt_fetch_add_relaxed_i64(&self.unfinished, -1) == 1:
            self.all_done.wake_all()
        return True

    def join(self, timeout=None):
        """Wait until every item that was put is done. Returns True, or False after `timeout` seconds."""
        cdef int64_t deadline = deadline_from(True, timeout)
        cdef int r = MT_OK
        if self.q != NULL:
            r = raise_if_failed(join_until(self.q, deadline, True))
        if r == MT_OK and self.in_locked_mode():
            return self.join_locked(deadline)
        return r == MT_OK

    cdef bint join_locked(self, int64_t deadline) except -1:
        self.acquire_mutex()
        try:
            while mt_load_relaxed_i64(&self.unfinished) > 0:    # relaxed because: as in take_from_stopped_kernel()
                if deadline != NEVER and mt_now_ns() >= deadline:
                    return False
                self.wait(self.all_done, deadline, self.current_bound())
            return True
        finally:
            self.lock.release()

    # ----------------------------------------------------------------------------------------------------- shutdown
    def shutdown(self, immediate=False):
        """Accept no more puts: put raises ShutDown, get drains the queue and then raises it. immediate=True removes all
        items, which count as done. Wakes all waiting calls."""
        cdef bint locked
        with cython.critical_section(self):
            # relaxed because: who misses it in locked mode is woken below, by a thread that has held the mutex
            mt_store_relaxed_u32(&self.ended, True)
            locked = self.lock is not None
        if not locked:
            shut_queue(self.q, False, True)
            if immediate:
                self.drop_all()
            locked = self.in_locked_mode()
        if locked:
            self.shutdown_locked(bool(immediate))

    cdef int shutdown_locked(self, bint immediate) except -1:
        cdef list gone = []         # keeps the items until the mutex is released
        self.acquire_mutex()
        try:
            while immediate and self.locked_count() > 0:
                gone.append(self._get())
                self.locked_done()
        finally:
            if immediate:
                self.all_done.wake_all()
            self.may_get.wake_all()
            self.may_put.wake_all()
            self.lock.release()
        return 0

    @property
    def is_shutdown(self):
        """True once shutdown() has been called."""
        return self.has_ended()

    cdef bint has_ended(self) noexcept:
        return mt_load_relaxed_u32(&self.ended) != 0        # relaxed because: see shutdown()

    def _after_fork(self):
        """In the child of a fork."""
        if self.lock is not None:           # else a thread of the parent was about to set it
            self.lock.forget_other_threads()


# ------------------------------------------------------------------------------------------------------------ shortcuts
# put(item) and get() in kernel mode: C functions before the compiled methods, as in _multiqueue.pyx.
cdef mt_method compiled_put, compiled_get, compiled_simple_put, compiled_simple_get


cdef PyObject *short_put(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *names) noexcept:
    cdef subqueue *s = (<Fifo>self).s
    if likely(n == 1 and names == NULL and s != NULL) and likely(put_at_once(s.mq, s, args[0]) == MT_OK):
        return mt_new_none()
    return compiled_put(self, args, n, names)


cdef PyObject *short_get(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *names) noexcept:
    cdef subqueue *s = (<Fifo>self).s
    cdef uintptr_t item
    if likely(n == 0 and names == NULL and s != NULL) and likely(get_at_once((<Fifo>self).q, s, &item) == MT_OK):
        return <PyObject *>item
    return compiled_get(self, args, n, names)


cdef PyObject *short_simple_put(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *names) noexcept:
    cdef subqueue *s = (<Fifo>self).s
    if likely(n == 1 and names == NULL) and likely(put_at_once(s.mq, s, args[0]) == MT_OK):
        return mt_new_none()
    return compiled_simple_put(self, args, n, names)


cdef PyObject *short_simple_get(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *names) noexcept:
    cdef subqueue *s = (<Fifo>self).s
    cdef uintptr_t item
    if likely(n == 0 and names == NULL) and likely(get_at_once((<Fifo>self).q, s, &item) == MT_OK):
        return <PyObject *>item
    return compiled_simple_get(self, args, n, names)


compiled_put = mt_patch_method(<PyTypeObject *>BaseQueue, "put", short_put)
compiled_get = mt_patch_method(<PyTypeObject *>BaseQueue, "get", short_get)
compiled_simple_put = mt_patch_method(<PyTypeObject *>SimpleQueue, "put", short_simple_put)
compiled_simple_get = mt_patch_method(<PyTypeObject *>SimpleQueue, "get", short_simple_get)

clear_by_breaking_cycles((SimpleQueue, BaseQueue))
