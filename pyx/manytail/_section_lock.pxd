# The lock of a broker: what Sections (_sections.pyx) take and release. Private.
#
# Algorithm: a mutex without hand-over. A release frees the lock, and whoever tries first takes it: a thread that runs
# goes on without a switch of threads. It wakes a waiter only if no thread is about to try anyway. Without the GIL a
# thread that finds the lock taken spins for about as long as a section takes before it sleeps; with the GIL the owner
# cannot run while it spins, so it sleeps at once. Sources: Go's sync.Mutex (a release wakes nobody while a woken or
# spinning thread is there); _waiting.pxd for the sleep.
#
# Invariants
#   S1  `owner` is written only under `guard`. 0 means: free.
#   S2  `contenders` counts the threads that found the lock taken, or were woken, and try before they do anything else.
#       One whose try failed is not counted; if it finds the lock free when it is about to sleep, it is again.
#   S3  While the lock is free and threads sleep, `contenders` > 0. So no wake-up is lost: a contender takes the lock,
#       and its release looks for waiters again; or it finds the lock taken.
#   S4  A thread that runs Python code (a signal handler, or a finalizer) in its wait is not counted and on no list. So
#       that code may take the lock, and sleep for it, like any other.
# Progress: blocking.
from manytail._lock cimport enter, leave
from manytail._waiting cimport *

cdef enum:
    LOOKS = 20              # before a thread sleeps
    PAUSES = 4              # 2**PAUSES pauses between two looks
    REENTERED = -1          # what try_lock() returns, besides MT_OK
    CONTENDER = -2


ctypedef struct section_lock:
    mt_lock guard               # guards the other fields; with the GIL, the GIL does
    wait_list waiters
    mt_atomic_i64 owner         # the thread that is in a section; 0: none
    int64_t contenders


cdef inline int64_t this_thread() noexcept nogil:
    return <int64_t>PyThread_get_thread_ident()


cdef inline int64_t owner_of(section_lock *lock) noexcept nogil:
    # relaxed because: the guard orders what sections read and write. Without the guard this is a guess, or it tells a
    # thread whether it is the owner itself
    return mt_load_relaxed_i64(&lock.owner)


cdef inline void set_owner(section_lock *lock, int64_t thread) noexcept nogil:
    mt_store_relaxed_i64(&lock.owner, thread)      # relaxed because: written under the guard


cdef inline int try_lock(section_lock *lock) noexcept nogil:
    """MT_OK, REENTERED, or CONTENDER: another thread has it, and this one is counted in `contenders`."""
    cdef int64_t me = this_thread()
    cdef int64_t owner
    enter(&lock.guard, GIL_LOCKED, True)
    owner = owner_of(lock)
    if owner == 0:
        set_owner(lock, me)
    elif owner != me:
        lock.contenders += 1
    leave(&lock.guard, GIL_LOCKED)
    if owner == 0:
        return MT_OK
    return REENTERED if owner == me else CONTENDER


cdef inline int contend(section_lock *lock) noexcept nogil:
    """Take the lock after try_lock() returned CONTENDER. MT_OK, MT_NOMEM; or MT_INTERRUPTED: a signal handler raised,
    its exception is set."""
    cdef wait_point p
    cdef int r
    make_point(&p, &lock.waiters, &lock.guard, GIL_LOCKED, True, poll_owner, lock)
    p.forward = forward_turn
    while True:
        spin(lock)
        r = try_as_contender(lock)
        if not again(&p, 1, &r, NEVER):
            return r


cdef inline void unlock(section_lock *lock) noexcept nogil:
    cdef wait_node *to_post = NULL
    enter(&lock.guard, GIL_LOCKED, True)
    set_owner(lock, 0)
    wake_contender(lock, &to_post)
    leave(&lock.guard, GIL_LOCKED)
    if unlikely(to_post != NULL):
        post(to_post)


cdef inline void forget_in_child(section_lock *lock) noexcept nogil:
    """In the child of a fork: the waiters of other threads are gone. A section that another thread was in never ends in
    the child, and who enters one waits for ever. The thread that forked runs Python code: S4."""
    mt_lock_reset(&lock.guard)
    keep_tasks(&lock.waiters, PyThread_get_thread_ident())
    lock.contenders = 0


# ---------------------------------------------------------------------------------------------------------- contenders
cdef inline void spin(section_lock *lock) noexcept nogil:
    """Without the GIL: pause until the lock looks free, for a limited time."""
    cdef mt_backoff pause
    cdef int _look
    if MT_FREE_THREADED:
        for _look in range(LOOKS):
            if owner_of(lock) == 0:
                return
            pause.step = PAUSES
            pause.limit = PAUSES + 1
            mt_backoff_spin(&pause)


cdef inline int try_as_contender(section_lock *lock) noexcept nogil:
    cdef int r = MT_EMPTY
    mt_point()
    enter(&lock.guard, GIL_LOCKED, True)
    if owner_of(lock) == 0:
        set_owner(lock, this_thread())
        r = MT_OK
    lock.contenders -= 1
    leave(&lock.guard, GIL_LOCKED)
    return r


# Under the guard:
cdef inline int poll_owner(wait_point *p, bint parking) noexcept nogil:
    cdef section_lock *lock = <section_lock *>p.of
    if owner_of(lock) != 0:
        return WAIT                 # whoever wakes it counts it again
    lock.contenders += parking
    return MT_OK


cdef inline void wake_contender(section_lock *lock, wait_node **to_post) noexcept nogil:
    """The lock is free: wake a waiter, unless a contender will look at it."""
    if lock.contenders == 0 and lock.waiters.n:
        lock.contenders = 1
        notify(&lock.waiters, to_post)


cdef inline void forward_turn(wait_point *p, wait_node **to_post) noexcept nogil:
    """A waiter leaves: a signal came, or there is no memory."""
    cdef section_lock *lock = <section_lock *>p.of
    lock.contenders -= p.woken
    if owner_of(lock) == 0:
        wake_contender(lock, to_post)
