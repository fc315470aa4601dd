# How a structure takes one of its locks; include/manytail/lock.h has the lock word. Private.
#
# gil_locked: the structure holds Python objects on a build with the GIL. Its calls are made attached and run no Python code half way, so
# the GIL is the lock and its own lock words are left alone.
# attached: whether the caller holds a thread state, which it gives up while it waits.
from manytail._c cimport mt_lock, mt_lock_node, mt_lock_try, mt_unlock, unlikely
from manytail._wait cimport lock_slow, post_lock_node


cdef inline void enter(mt_lock *l, bint gil_locked, bint attached) noexcept nogil:
    if not gil_locked and unlikely(not mt_lock_try(l)):
        lock_slow(l, attached)


cdef inline void leave(mt_lock *l, bint gil_locked) noexcept nogil:
    cdef mt_lock_node *next_holder
    if not gil_locked:
        next_holder = mt_unlock(l)
        if unlikely(next_holder != NULL):
            post_lock_node(next_holder)
