"""Held, start_thread, Event, Mutex and Condition: locks, threads and waits that signal handlers do not break.

Algorithm: Event and Condition are a list of waiters (_waiting.pxd) under a lock of their own: not the GIL, for attached
callers, which hold it for a few instructions and never while Python code runs. A wait joins the list before it looks
for the last time whether there is something to wait for. Its signal handlers run while it is on no list. A count of
wake-ups tells it afterwards what it missed. Held and Mutex have the lock of CPython. Source: the interfaces of
threading.

Invariants
- A block of Held has released its lock when it ends, however it ends. A wait of a Condition holds the mutex when it
  ends.
- A wake-up that a wait does not use goes to another waiter (`forward_wake_up`, or the end of `wait_without_mutex`).
- In the child of a fork all locks are free, except a Mutex that the forking thread holds, and lists keep what A6 of
  _waiting.pxd says. A Mutex is looked after by its conditions. Condition.waits still counts the others.
"""
cimport cython

from manytail._cpython cimport *
from manytail._lifecycle cimport raise_if_failed, tell_of_forks
from manytail._lock cimport enter as enter_lock, leave as leave_lock
from manytail._waiting cimport *

import threading
from contextvars import copy_context

from manytail._lifecycle import start_daemon


# ------------------------------------------------------------------------------------- locks and threads, uninterrupted
@cython.final
@cython.no_gc               # the lock refers to nothing
@cython.freelist(8)
cdef class Held:
    """`with Held(lock):` acquires a lock, and releases it when the block ends, however it ends. For interpreted code.

    `with lock:` is not enough there: from CPython 3.14 on, a signal handler may run after `__enter__` and before the
    block is protected (cpython issue 148874). If it raises, the lock stays held. A Held is known to its statement
    alone: the exception frees it, and so releases the lock.

    lock: its acquire and release run no Python code, as those of threading.Lock and RLock. timeout: of the acquire, in
    seconds; `with Held(lock, timeout) as held:` says whether it succeeded."""
    cdef object lock
    cdef object timeout
    cdef bint holds

    def __cinit__(self, lock, timeout=None, /):
        self.lock = lock
        self.timeout = timeout

    def __reduce__(self):
        raise TypeError("cannot copy or pickle a held lock: it belongs to one block in this process")

    def __enter__(self):
        if self.timeout is None:
            self.lock.acquire()
            self.holds = True
        else:
            self.holds = self.lock.acquire(True, self.timeout)
        return self.holds

    def __exit__(self, *error):
        self.let_go()

    def __dealloc__(self):
        self.let_go()

    cdef int let_go(self) except -1:
        if self.holds:
            self.holds = False
            self.lock.release()
        return 0


def start_thread(start):
    """Call the `start` of a thread. RuntimeError: the system has no more threads.

    What a signal handler raises inside `threading.Thread.start` may leave a lock held that each start of a thread
    takes. Handlers run in the main thread, so there another thread makes the call. If a handler raises in the wait for
    it, the caller does not learn whether the thread starts."""
    if PyThread_get_thread_ident() != <unsigned long>threading.main_thread().ident:
        start()
        return
    started, problems = Event(), []
    start_daemon(copy_context().run, call_and_tell, start, started, problems)
    started.wait()
    if problems:
        raise problems[0]


def call_and_tell(start, started, problems):
    """In the other thread."""
    try:
        start()
    except BaseException as problem:
        problems.append(problem)
    started.set()


def now_ns():
    """Nanoseconds of the clock of the queues, which is monotonic."""
    return mt_now_ns()


@cython.final
cdef class Event:
    """As threading.Event, for the Python modules of this package. If a signal comes just before a wait of
    threading.Event sleeps, which happens often without the GIL, its handler runs only after the sleep. Here it runs at
    once."""
    cdef mt_lock lock           # guards the other fields
    cdef wait_list waiters
    cdef mt_atomic_u32 happened
    cdef int64_t times          # how often set() was called
    cdef object __weakref__

    def __cinit__(self):
        tell_of_forks(self)

    def __reduce__(self):
        raise TypeError("cannot copy or pickle an event: threads of this process wait for it")

    def is_set(self):
        """Whether set() was called, and clear() not since."""
        # pairs with: mt_store_release in set: what its caller did before is visible
        return bool(mt_load_acquire_u32(&self.happened))

    def set(self):
        """Wake all waiters. Until clear(), wait() returns at once."""
        cdef wait_node *to_post = NULL
        enter_lock(&self.lock, False, True)
        mt_store_release_u32(&self.happened, True)      # pairs with: mt_load_acquire in is_set
        self.times += 1
        notify_all(&self.waiters, &to_post)
        leave_lock(&self.lock, False)
        post(to_post)

    def clear(self):
        """Let wait() wait until the next set()."""
        enter_lock(&self.lock, False, True)
        mt_store_relaxed_u32(&self.happened, False)     # relaxed because: it publishes nothing
        leave_lock(&self.lock, False)

    def wait(self, timeout=None):
        """Wait for set(), at most `timeout` seconds. Returns whether it was called."""
        cdef int64_t deadline = NEVER if timeout is None else deadline_from(True, max(timeout, 0))
        cdef wait_point p
        cdef int r
        make_point(&p, &self.waiters, &self.lock, False, True, poll_event, <void *>self)
        enter_lock(&self.lock, False, True)
        p.events_seen = self.times
        leave_lock(&self.lock, False)
        while True:
            r = MT_OK if poll_all(&p, 1) == MT_OK else MT_EMPTY
            if not again(&p, 1, &r, deadline):
                return raise_if_failed(r) == MT_OK

    def _after_fork(self):
        mt_lock_reset(&self.lock)
        keep_tasks(&self.waiters, PyThread_get_thread_ident())


cdef int poll_event(wait_point *p, bint parking) noexcept nogil:
    """Whether it is set, or was set since the wait began."""
    # relaxed because: the caller holds the lock of set()
    return MT_OK if mt_load_relaxed_u32(&(<Event>p.of).happened) or (<Event>p.of).times != p.events_seen else WAIT


# ------------------------------------------------------------------------------------------------------- conditions
cdef extern from "Python.h":
    int Py_EnterRecursiveCall(const char *where) except *   # fails with 1 or -1
    void Py_LeaveRecursiveCall()


cdef int need_calls(int depth) except -1:
    """RecursionError: so many nested calls are not left. Asked before a mutex is taken: its release makes calls too."""
    Py_EnterRecursiveCall(b" while taking a mutex")
    try:
        return need_calls(depth - 1) if depth > 1 else 0
    finally:
        Py_LeaveRecursiveCall()


@cython.final
cdef class Mutex:
    """The mutex of a Condition: a threading.Lock that knows which thread holds it, for forks.

    In the child of a fork it is free unless the thread that forked holds it. A thread of the parent may hold it without
    having got back from acquire(): a blocking acquire takes the lock without the GIL."""
    cdef object lock            # threading.Lock
    cdef mt_atomic_uptr holder  # the thread that holds it; 0: none, or a thread that is inside acquire() or release()

    def __cinit__(self):
        self.lock = threading.Lock()

    def __reduce__(self):
        raise TypeError("cannot copy or pickle a mutex: threads of this process wait for it")

    def __repr__(self):
        return f"<Mutex, {'locked' if self.locked() else 'unlocked'}>"

    def acquire(self, blocking=True, timeout=-1):
        """As threading.Lock.acquire."""
        need_calls(4)
        if not self.lock.acquire(blocking, timeout):
            return False
        # relaxed because: the child of a fork reads it, which has one thread
        mt_store_relaxed_uptr(&self.holder, PyThread_get_thread_ident())
        return True

    def release(self):
        """As threading.Lock.release. RuntimeError: it is not held."""
        mt_store_relaxed_uptr(&self.holder, 0)          # relaxed because: as in acquire()
        self.lock.release()

    def locked(self):
        """Whether a thread holds it."""
        return self.lock.locked()

    def __enter__(self):
        need_calls(4)
        self.lock.acquire()
        mt_store_relaxed_uptr(&self.holder, PyThread_get_thread_ident())    # relaxed because: as in acquire()
        return True

    def __exit__(self, *error):
        mt_store_relaxed_uptr(&self.holder, 0)          # relaxed because: as in acquire()
        self.lock.release()

    cdef int forget_other_threads(self) except -1:
        # relaxed because: the child has one thread
        if mt_load_relaxed_uptr(&self.holder) != PyThread_get_thread_ident():
            mt_store_relaxed_uptr(&self.holder, 0)      # relaxed because: as above
            self.lock._at_fork_reinit()
        return 0


@cython.final
cdef class Condition:
    """A condition with the interface of threading.Condition: for a queue with hooks and users of its `not_empty`,
    `not_full` and `all_tasks_done`, and for the Runtime of a broker. mutex: a Mutex, or what has its interface.

    Unlike with threading.Condition, `wait` holds the mutex when it ends even if a signal handler raises, and a wake-up
    of a wait that ends so goes to another waiter. `wake_all` needs no mutex."""
    cdef object mutex
    cdef mt_lock lock           # guards the rest; the mutex cannot: notify does not know whether its caller holds it
    cdef wait_list waiters
    cdef mt_atomic_i64 waits    # those on the list, and those that run signal handlers
    cdef object __weakref__
    cdef int64_t wake_ups       # so far: tells a wait what it missed while it looked, or ran signal handlers

    def __cinit__(self, mutex):
        self.mutex = mutex
        tell_of_forks(self)

    def __reduce__(self):
        raise TypeError("cannot copy or pickle a condition: threads of this process wait for it")

    def __repr__(self):
        enter_lock(&self.lock, False, True)
        waiting = self.waiters.n
        leave_lock(&self.lock, False)
        return f"<Condition of {self.mutex!r}, {waiting} waiting>"

    def acquire(self, *args, **options):
        """Acquire the mutex, as threading.Lock.acquire."""
        return self.mutex.acquire(*args, **options)

    def release(self):
        """Release the mutex."""
        self.mutex.release()

    def __enter__(self):
        return self.mutex.__enter__()

    def __exit__(self, *error):
        return self.mutex.__exit__(*error)

    def wait(self, timeout=None):
        """Release the mutex, wait to be notified, acquire it again. False: not notified within `timeout` seconds.
        RuntimeError: the mutex is not held."""
        cdef int64_t deadline = NEVER if timeout is None else deadline_from(True, max(timeout, 0))
        check_held(self, "wait")
        return self.wait_until(deadline, count_wait(self, 0))

    def wait_for(self, predicate, timeout=None):
        """Wait until predicate() is true, at most `timeout` seconds. Returns what it returned last. A wake_all() of
        a thread without the mutex, while predicate() runs, lets it look again."""
        cdef int64_t deadline = NEVER if timeout is None else deadline_from(True, max(timeout, 0))
        cdef int64_t wake_ups
        check_held(self, "wait")
        while True:
            wake_ups = count_wait(self, 0)
            result = predicate()
            if result or not self.wait_until(deadline, wake_ups):
                return result or predicate()

    def notify(self, n=1):
        """Wake up to n waiters. RuntimeError: the mutex is not held."""
        cdef int64_t to_wake = n
        check_held(self, "notify")
        while to_wake > 0 and self.wake_one():
            to_wake -= 1

    def notify_all(self):
        """Wake all waiters. RuntimeError: the mutex is not held."""
        check_held(self, "notify")
        self.wake_all()

    cpdef bint wake_one(self) noexcept:
        """Wake the thread that waits longest, with the mutex held. False: none waits."""
        cdef wait_node *to_post = NULL
        # relaxed because: who waits was counted before it released the mutex, which the caller has acquired since
        if mt_load_relaxed_i64(&self.waits) == 0:
            return False
        enter_lock(&self.lock, False, True)
        self.wake_ups += 1
        notify(&self.waiters, &to_post)
        leave_lock(&self.lock, False)
        post(to_post)
        return to_post != NULL

    cpdef void wake_all(self) noexcept:
        """Wake all waiters, with the mutex or without it."""
        cdef wait_node *to_post = NULL
        enter_lock(&self.lock, False, True)
        self.wake_ups += 1
        notify_all(&self.waiters, &to_post)
        leave_lock(&self.lock, False)
        post(to_post)

    cdef bint wait_until(self, int64_t deadline, int64_t wake_ups) except -1:
        """Wait. Returns whether it was notified, also since there were so many wake-ups.

        again() cannot be used: the mutex is released between joining the list and sleeping, and that may raise."""
        cdef wait_point p
        make_point(&p, &self.waiters, &self.lock, False, True, poll_wake_ups, <void *>self)
        p.forward = forward_wake_up
        p.events_seen = wake_ups
        count_wait(self, 1)
        try:
            return wait_without_mutex(self, &p, deadline)
        finally:
            count_wait(self, -1)

    def _after_fork(self):
        mt_lock_reset(&self.lock)
        keep_tasks(&self.waiters, PyThread_get_thread_ident())
        if isinstance(self.mutex, Mutex):
            (<Mutex>self.mutex).forget_other_threads()


cdef int check_held(Condition c, str what) except -1:
    if not c.mutex.locked():
        raise RuntimeError(f"cannot {what} on un-acquired lock")
    return 0


cdef int64_t count_wait(Condition c, int64_t change) noexcept:
    """A wait begins (1) or ends (-1). Returns the number of wake-ups so far."""
    enter_lock(&c.lock, False, True)
    mt_fetch_add_relaxed_i64(&c.waits, change)      # relaxed because: the caller holds the mutex
    cdef int64_t wake_ups = c.wake_ups
    leave_lock(&c.lock, False)
    return wake_ups


cdef bint wait_without_mutex(Condition c, wait_point *p, int64_t deadline) except -1:
    cdef long long slice_us = first_slice(True)
    cdef object failure = None
    cdef waiter *w = new_waiter(1, NULL)
    if w == NULL:
        raise MemoryError
    cdef int r = prepare_to_wait(p, 1, w)
    try:
        c.mutex.release()
    except BaseException:
        if r == WAIT:
            finish_wait(p, 1, w, False)
        raise
    if r == WAIT:
        r = sleep_on_lists(p, 1, w, deadline, &slice_us)
    if r == WAIT:
        r = sleep_until_posted(p, 1, deadline)
    if r != MT_OK and r != MT_TIMEOUT:
        failure = failure_of(r)
    failure = acquire_again(c.mutex, failure)
    if failure is not None:
        if r == MT_OK:
            c.wake_one()
        raise failure
    return r == MT_OK


cdef int poll_wake_ups(wait_point *p, bint parking) noexcept nogil:
    """Whether a wake-up came since the wait began. The users of a condition check what has changed."""
    return MT_OK if (<Condition>p.of).wake_ups != p.events_seen else WAIT


cdef void forward_wake_up(wait_point *p, wait_node **to_post) noexcept nogil:
    notify(p.list, to_post)


cdef object failure_of(int status):
    """The exception of raise_if_failed()."""
    try:
        raise_if_failed(status)
    except BaseException as error:
        return error


cdef object acquire_again(object mutex, object failure):
    """Acquire the mutex even if signal handlers raise. Returns `failure`, or the first of their exceptions, or None."""
    while True:
        try:
            mutex.acquire()
            return failure
        except BaseException as error:
            failure = error if failure is None else failure
