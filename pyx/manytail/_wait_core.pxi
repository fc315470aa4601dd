# Parking without Python objects: locks, deadlines, waiters. _wait.pyx says by which rules; the programs of tests/native compile
# this file without an interpreter. Whoever includes it defines main_thread, semaphores_miss_signals, run_signal_handlers()
# and post_loop_waiter().

from manytail._c cimport (
    PY_LOCK_ACQUIRED, PY_LOCK_INTR, PyEval_RestoreThread, PyEval_SaveThread, PyLockStatus, PyThreadState,
    PyThread_acquire_lock_timed, PyThread_allocate_lock, PyThread_free_lock, PyThread_get_thread_ident,
    PyThread_release_lock, mt_point,
)
from manytail._lock cimport (
    lock_slow as locks_lock_slow, lock_slow_heavy as locks_lock_slow_heavy, post_lock_node as locks_post_lock_node,
)

cdef extern from *:
    """
    #define MT_LONGEST_US INT64_C(1000000000000)
    """
    const int64_t LONGEST_US "MT_LONGEST_US"    # 11 days; longer waits are made of several

cdef enum:
    SLICE_US = 50000
    FIRST_SLICE_US = 1000
    LAST_SLICE_US = 100000


cdef unsigned long this_thread() noexcept nogil:
    return PyThread_get_thread_ident()


# ------------------------------------------------------------------------------------------------------------ deadlines
cdef inline long long microseconds_left(int64_t deadline) noexcept nogil:
    """What to ask the semaphore for; rounded up, so that a wait never ends early. < 0: the deadline is over."""
    cdef int64_t left
    if deadline == NEVER:
        return LONGEST_US
    left = deadline - mt_now_ns()
    if left <= 0:
        return -1
    left = (left + 999) // 1000
    return left if left < LONGEST_US else LONGEST_US


# ---------------------------------------------------------------------------------------------------------------- locks
cdef void post_lock_node(mt_lock_node *n) noexcept nogil:
    locks_post_lock_node(n)


cdef void lock_slow(mt_lock *l, bint attached) noexcept nogil:
    locks_lock_slow(l, attached)


cdef void lock_slow_heavy(mt_lock *l, bint attached) noexcept nogil:
    locks_lock_slow_heavy(l, attached)


# -------------------------------------------------------------------------------------------------------------- waiters
cdef int waiter_open(mt_waiter *w) noexcept nogil:
    """Make a thread's waiter ready to be queued. MT_OK or MT_NOMEM."""
    w.callback = NULL
    w.thread = PyThread_get_thread_ident()
    w.sem = PyThread_allocate_lock()
    if w.sem == NULL:
        return MT_NOMEM
    PyThread_acquire_lock_timed(w.sem, 0, 0)        # taken means "not posted"
    return MT_OK


cdef void waiter_close(mt_waiter *w) noexcept nogil:
    PyThread_release_lock(w.sem)
    PyThread_free_lock(w.sem)


cdef int park_once(mt_waiter *w, long long us, bint attached) noexcept nogil:
    cdef PyThreadState *state = NULL
    cdef PyLockStatus got
    if attached:
        state = PyEval_SaveThread()
    got = PyThread_acquire_lock_timed(w.sem, us, attached)
    if attached:
        PyEval_RestoreThread(state)
    return got


cdef int waiter_park(mt_waiter *w, int64_t deadline, bint attached) noexcept nogil:
    """Sleep until posted: MT_OK. MT_TIMEOUT, or MT_INTERRUPTED with a Python exception set: not posted yet."""
    cdef bint slices = attached and PyThread_get_thread_ident() == main_thread
    cdef long long us, slice_us = FIRST_SLICE_US
    cdef int got
    if attached and run_signal_handlers() < 0:      # one that came before the sleep would not end it
        return MT_INTERRUPTED
    while True:
        us = microseconds_left(deadline)
        if us < 0:
            # A post that came meanwhile is found by the caller, under the list's lock.
            return MT_TIMEOUT
        if slices and us > slice_us:
            us = slice_us
        got = park_once(w, us, attached)
        if got == PY_LOCK_ACQUIRED:
            return MT_OK
        if attached and (got == PY_LOCK_INTR or slices) and run_signal_handlers() < 0:
            return MT_INTERRUPTED
        # A signal that comes between giving up the interpreter and falling asleep does not end the sleep, so the main
        # thread looks again after 1, 10 and 100 ms, and only then sleeps as long as it may (Windows: in slices for good).
        if semaphores_miss_signals:
            slice_us = SLICE_US
        elif slice_us < LAST_SLICE_US:
            slice_us *= 10
        else:
            slices = False


cdef void waiter_await_post(mt_waiter *w, bint attached) noexcept nogil:
    """Consume a post that is certain to come: the waiter was notified, its notifier is between unlock and post."""
    cdef PyThreadState *state = NULL
    if PyThread_acquire_lock_timed(w.sem, 0, 0) == PY_LOCK_ACQUIRED:
        return
    if attached:
        state = PyEval_SaveThread()
    PyThread_acquire_lock_timed(w.sem, -1, 0)
    if attached:
        PyEval_RestoreThread(state)


cdef void post_chain(mt_waiter *chain) noexcept nogil:
    """Wake everybody on a chain that mt_waitlist_notify made. No lock of ours may be held: loops run Python code."""
    cdef mt_waiter *w
    while chain != NULL:
        mt_point()
        w = chain
        chain = w.next              # a thread's waiter is gone as soon as it is posted
        if w.sem != NULL:
            PyThread_release_lock(w.sem)
        else:
            post_loop_waiter(w.callback)
