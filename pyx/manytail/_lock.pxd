# enter() and leave(): take and release a lock of a structure. include/manytail/lock.h has the lock word; here a thread
# spins, then parks on a PyThread lock used as a binary semaphore. Private.
#
# gil_locked: the structure holds Python objects on a build with the GIL. Its calls are attached and run no Python code
# inside a critical section, so the GIL is the lock, and enter() and leave() do nothing. Without the GIL there is no
# such structure: the compiler leaves the check out.
# attached: the caller is attached to the interpreter. It detaches while it parks, and attaches before it takes the
# lock: at interpreter exit a daemon thread that attaches never returns, and finalizers may need the lock.
#
# No Python code runs under a lock. A build with MT_COUNTS_LOCKS counts those that each thread holds, also where the GIL
# is the lock, and ends the process where Python code begins under one.
from libc.stdint cimport uint32_t

from manytail._c cimport *

cdef enum:
    LOCK_SPINS = 6                  # 63 pauses, a few hundred ns to 3 us: longer than any critical section of ours
    HEAVY_FIRST = 7                 # start with 128 pauses, a microsecond or more: several operations of the holder
    HEAVY_SPINS = 10                # 896 pauses in all, no longer than parking and waking take


# lock_slow() and lock_slow_heavy() out of line, in _lock.pyx: gcc inlines a function that is called in one place, and
# would then not inline enter().
cdef void wait_for_lock(mt_lock *l, bint attached) noexcept nogil
cdef void wait_for_heavy_lock(mt_lock *l, bint attached) noexcept nogil
cdef void count_lock(int by) noexcept nogil         # of the calling thread


cdef inline void enter(mt_lock *l, bint gil_locked, bint attached) noexcept nogil:
    if (MT_FREE_THREADED or not gil_locked) and unlikely(not mt_lock_try_unused(l)):
        wait_for_lock(l, attached)
    if MT_COUNTS_LOCKS:
        count_lock(1)


cdef inline void enter_heavy(mt_lock *l, bint gil_locked, bint attached) noexcept nogil:
    """enter() for a lock whose holders write many cache lines: see lock_slow_heavy."""
    if (MT_FREE_THREADED or not gil_locked) and unlikely(not mt_lock_try_unused(l)):
        wait_for_heavy_lock(l, attached)
    if MT_COUNTS_LOCKS:
        count_lock(1)


cdef inline void leave(mt_lock *l, bint gil_locked) noexcept nogil:
    if MT_COUNTS_LOCKS:
        count_lock(-1)
    if MT_FREE_THREADED or not gil_locked:
        next_holder = mt_unlock(l)
        if unlikely(next_holder != NULL):
            post_lock_node(next_holder)


cdef inline void lock_slow(mt_lock *l, bint attached) noexcept nogil:
    """Take a lock that was just found taken, or with waiters: spin a little, then park until it is free."""
    if not mt_lock_try(l) and not lock_spin(l, 0, LOCK_SPINS):
        lock_park(l, attached)


cdef inline void lock_slow_heavy(mt_lock *l, bint attached) noexcept nogil:
    """lock_slow() for a lock whose holders write many cache lines.

    Those lines move with the lock from core to core, which takes longer than the critical section. So a thread that
    finds the lock taken backs off long enough for the holder's core to do several operations in a row. With two putters
    and two subscriptions of an EntryQueue that gives 40 % more throughput. The first retry comes after a single pause,
    for a collision that is over at once."""
    if not mt_lock_try(l) and not lock_spin(l, 0, 1) and not lock_spin(l, HEAVY_FIRST, HEAVY_SPINS):
        lock_park(l, attached)


cdef inline bint lock_spin(mt_lock *l, uint32_t first, uint32_t limit) noexcept nogil:
    cdef mt_backoff spin
    spin.step = first
    spin.limit = limit
    while mt_backoff_spin(&spin):
        if mt_lock_try(l):
            return True
    return False


cdef inline void lock_park(mt_lock *l, bint attached) noexcept nogil:
    cdef mt_lock_node node
    node.sem = PyThread_allocate_lock()
    if node.sem == NULL:            # no memory for a semaphore, and enter() cannot fail: yield until the lock is free
        while not mt_lock_try(l):
            wait_detached(NULL, attached)
        return
    PyThread_acquire_lock_timed(node.sem, -1, 0)            # taken, so that the next acquire waits for the post
    while not mt_lock_enqueue(l, &node):
        wait_detached(node.sem, attached)
    PyThread_release_lock(node.sem)
    PyThread_free_lock(node.sem)


cdef inline void wait_detached(void *sem, bint attached) noexcept nogil:
    cdef PyThreadState *state = NULL
    if attached:
        state = PyEval_SaveThread()
    mt_point()
    if sem == NULL:
        mt_yield_cpu()
    else:
        PyThread_acquire_lock_timed(sem, -1, 0)
    if attached:
        PyEval_RestoreThread(state)


cdef inline void post_lock_node(mt_lock_node *n) noexcept nogil:
    PyThread_release_lock(n.sem)
