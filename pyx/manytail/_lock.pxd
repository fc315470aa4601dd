# How a structure takes one of its locks, and how a thread waits for one; include/manytail/lock.h has the lock word.
# Private.
#
# gil_locked: the structure holds Python objects on a build with the GIL. Its calls are made attached and run no Python
# code half way, so the GIL is the lock and its own lock words are left alone. attached: whether the caller holds a
# thread state, which it gives up while it waits.
from libc.stdint cimport uint32_t

from manytail._c cimport (
    PyEval_RestoreThread, PyEval_SaveThread, PyThreadState, PyThread_acquire_lock_timed, PyThread_allocate_lock,
    PyThread_free_lock, PyThread_release_lock, mt_backoff, mt_backoff_spin, mt_lock, mt_lock_enqueue, mt_lock_node,
    mt_lock_try, mt_point, mt_unlock, mt_yield_cpu, unlikely,
)

cdef enum:
    LOCK_SPINS = 6                  # 63 pauses, a few hundred ns to 3 us: longer than any critical section of ours
    HEAVY_FIRST = 7                 # 128 pauses, a microsecond or more: several operations of the other side
    HEAVY_SPINS = 10                # 896 in all, no more than parking and being woken cost


# lock_slow() out of line, in _lock.pyx: gcc inlines a function that is called in one place, and enter() would be too
# big to be inlined itself.
cdef void wait_for_lock(mt_lock *l, bint attached) noexcept nogil
cdef void wait_for_heavy_lock(mt_lock *l, bint attached) noexcept nogil


cdef inline void enter(mt_lock *l, bint gil_locked, bint attached) noexcept nogil:
    if not gil_locked and unlikely(not mt_lock_try(l)):
        wait_for_lock(l, attached)


cdef inline void enter_heavy(mt_lock *l, bint gil_locked, bint attached) noexcept nogil:
    """Of a lock whose holders write many cache lines: see lock_slow_heavy."""
    if not gil_locked and unlikely(not mt_lock_try(l)):
        wait_for_heavy_lock(l, attached)


cdef inline void leave(mt_lock *l, bint gil_locked) noexcept nogil:
    cdef mt_lock_node *next_holder
    if not gil_locked:
        next_holder = mt_unlock(l)
        if unlikely(next_holder != NULL):
            post_lock_node(next_holder)


cdef inline void lock_slow(mt_lock *l, bint attached) noexcept nogil:
    """Get a lock that was just seen taken: spin a little where that can help, then park until it was handed out."""
    if not lock_spin(l, 0, LOCK_SPINS):
        lock_park(l, attached)


cdef inline void lock_slow_heavy(mt_lock *l, bint attached) noexcept nogil:
    """The same for a lock whose holders write many lines.

    Each time it goes to another core those lines go along, which takes longer than the work itself. So who finds it
    taken stays away while the other side does several operations at a stretch: two putters and two subscriptions of an
    EntryQueue get through two fifths more. One quick look first: a chance meeting costs a pause."""
    if not lock_spin(l, 0, 1) and not lock_spin(l, HEAVY_FIRST, HEAVY_SPINS):
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
    cdef PyThreadState *state = NULL
    if attached:
        state = PyEval_SaveThread()
    node.sem = PyThread_allocate_lock()
    if node.sem == NULL:
        while not mt_lock_try(l):   # out of memory: nothing to sleep on is left, but giving up is no option here
            mt_yield_cpu()
    else:
        PyThread_acquire_lock_timed(node.sem, -1, 0)
        while not mt_lock_enqueue(l, &node):
            mt_point()
            PyThread_acquire_lock_timed(node.sem, -1, 0)
        PyThread_release_lock(node.sem)
        PyThread_free_lock(node.sem)
    if attached:
        PyEval_RestoreThread(state)


cdef inline void post_lock_node(mt_lock_node *n) noexcept nogil:
    PyThread_release_lock(n.sem)
