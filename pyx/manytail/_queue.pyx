"""The queues of manytail.queue: the standard library's Queue and SimpleQueue on the kernel of MultiQueue.

Algorithm: a MultiQueue with one sub-queue (_mq.pxd). A put takes the put lock, a get the take lock, so putters and
getters do not wait for each other.

A Queue whose class overrides `_init`, `_qsize`, `_put` or `_get` has no kernel: it is in locked mode from its
construction, and its methods call the functions of _locked.py. No queue changes its mode.

No Python code runs under a lock of the kernel. The rules of _multiqueue.pyx hold here too.
"""
cimport cython
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject

from manytail._cpython cimport *
from manytail._lifecycle cimport raise_if_failed
from manytail._mq_changes cimport *
from manytail._mq_clear cimport *
from manytail._mq_iterate cimport *
from manytail._mq_life cimport *
from manytail._mq_put cimport *
from manytail._root cimport Root, clear_by_breaking_cycles

import math
from operator import index

# It resets all kernels in the child of a fork.
import manytail._multiqueue  # no-cython-lint

from manytail import _locked
from manytail.errors import Empty, Full, ShutDown

cdef PyObject *EMPTY = <PyObject *>Empty       # borrowed from the imports above
cdef PyObject *FULL = <PyObject *>Full

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


# ---------------------------------------------------------------------------------------------------------------- Queue
cdef object public_put, public_get
cdef tuple public_hooks


def complete(cls):
    """A decorator for the public subclass. Gives it put and get of its own, because the interpreter calls those faster
    than inherited ones."""
    global public_put, public_get, public_hooks
    cls.put = public_put = mt_method_for(cls, BaseQueue.put)
    cls.get = public_get = mt_method_for(cls, BaseQueue.get)
    public_hooks = hooks_of(cls)
    return cls


cdef tuple hooks_of(object cls):
    return cls._init, cls._qsize, cls._put, cls._get


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

    A subclass that overrides `_init`, `_qsize`, `_put` or `_get` is in locked mode: put and get run under its `mutex`,
    and it has the attributes `mutex`, `not_empty`, `not_full`, `all_tasks_done` and `queue` of the standard library's
    class. Other queues have none of these; where you need them, use queue.Queue.
    Blocking: one short lock for puts and one for gets, or the mutex in locked mode."""
    cdef object given_maxsize   # `maxsize` as it was assigned, of any type; used in a critical section
    cdef mt_atomic_i64 bound    # maxsize as an int; 0: no limit; written in a critical section
    cdef bint overrides_put, overrides_get      # whether the class does: then put_nowait and get_nowait call those
    cdef mt_atomic_u32 made     # __init__ was called
    cdef mt_atomic_u32 ended    # shutdown() was called
    cdef mt_atomic_i64 unfinished       # unfinished_tasks in locked mode; who needs the exact number has the mutex

    def __cinit__(self, *args, **options):
        cdef object cls = type(self)
        self.given_maxsize = 0
        self.overrides_put = cls.put is not public_put
        self.overrides_get = cls.get is not public_get
        if hooks_of(cls) == public_hooks:
            self.open_kernel()
        else:
            _locked.begin(self)

    def __init__(self, maxsize=0):
        if mt_fetch_add_relaxed_u32(&self.made, 1):         # relaxed because: only its own result counts
            raise RuntimeError(f"{type(self).__name__}.__init__ was called before: make another queue instead")
        self.set_bound(maxsize)
        if type(self).maxsize is not BaseQueue.maxsize:     # a class attribute of a subclass hides the property
            self.maxsize = maxsize
        if self.q == NULL:
            self._init(maxsize)

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
        if self.q == NULL:
            return _locked.put(self, item, timeout if block else 0)
        cdef int r = self.put_waiting(item, deadline)
        if r == MT_SHUTDOWN:
            raise ShutDown("the queue was shut down and takes no more items")
        return r == MT_OK

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
        cdef int64_t deadline = deadline_from(block, timeout)
        if self.q == NULL:
            return _locked.get(self, timeout if block else 0)
        cdef uintptr_t item = 0
        if self.get_slow(deadline, &item) != MT_OK:
            mt_return_raising(EMPTY)
        return mt_owned_item(item)

    cdef int get_slow(self, int64_t deadline, uintptr_t *item) except -1:
        """MT_OK and an item, whose reference is the caller's. Else nothing came in time."""
        cdef int r = self.get_waiting(deadline, item)
        if r == MT_SHUTDOWN:
            raise ShutDown("the queue was shut down and nothing is left to get")
        return r

    def get_nowait(self):
        """get(block=False)"""
        if self.overrides_get:
            return self.get(block=False)
        if self.q == NULL:
            return _locked.get(self, 0)
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
            mt_store_relaxed_i64(&self.bound, bound)    # relaxed because: it publishes nothing
        if self.q == NULL:
            _locked.wake_putters(self)
        return 0

    cdef int64_t current_bound(self) noexcept:
        return mt_load_relaxed_i64(&self.bound)     # relaxed because: see set_bound()

    def qsize(self):
        """Return the number of items. Other threads may have changed it by the time this returns."""
        return self.size()

    cdef int64_t size(self) except? -7:
        """What qsize, empty and full look at. A subclass may override qsize in terms of the others."""
        return _locked.size(self) if self.q == NULL else self.count()

    def empty(self):
        """Return whether get would have to wait."""
        return self.size() == 0

    def full(self):
        """Whether put would have to wait."""
        cdef int64_t bound = self.current_bound()       # read once: it may be assigned meanwhile
        if self.q == NULL:
            return _locked.full(self)
        return bound > 0 and self.count() >= bound

    # ----------------------------------------------------------------------------------------------------- tasks
    @property
    def unfinished_tasks(self):
        """Items that were put, less calls of task_done."""
        cdef int64_t n
        if self.q == NULL:
            return mt_load_relaxed_i64(&self.unfinished)        # relaxed because: who needs it exact holds the mutex
        lock_take(self.q, True)
        n = head_unfinished(self.q)
        unlock_take(self.q)
        return n

    @unfinished_tasks.setter
    def unfinished_tasks(self, value):
        if self.q != NULL:
            raise _locked.no_attribute("unfinished_tasks that may be assigned", self)
        mt_store_relaxed_i64(&self.unfinished, value)           # relaxed because: as above

    def task_done(self):
        """Count one item as done. Raises ValueError if it is called more often than items were put."""
        if not (_locked.task_done(self) if self.q == NULL else task_done(self.q, True)):
            raise ValueError("task_done() called too many times")

    def join(self, timeout=None):
        """Wait until every item that was put is done. Returns True, or False after `timeout` seconds."""
        cdef int64_t deadline = deadline_from(True, timeout)
        if self.q == NULL:
            return _locked.join(self, timeout)
        return raise_if_failed(join_until(self.q, deadline, True)) == MT_OK

    # ----------------------------------------------------------------------------------------------------- shutdown
    def shutdown(self, immediate=False):
        """Accept no more puts: put raises ShutDown, get drains the queue and then raises it. immediate=True removes all
        items, which count as done. Wakes all waiting calls."""
        # relaxed because: a lock is taken below before anybody is woken
        mt_store_relaxed_u32(&self.ended, True)
        if self.q == NULL:
            _locked.shutdown(self, immediate)
            return
        shut_queue(self.q, False, True)
        if immediate:
            self.drop_all()

    @property
    def is_shutdown(self):
        """True once shutdown() has been called."""
        return mt_load_relaxed_u32(&self.ended) != 0    # relaxed because: it publishes nothing


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
