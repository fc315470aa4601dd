"""The slow path of locks, once for all modules: _lock.pxd has it."""
from manytail._c cimport mt_lock


cdef void wait_for_lock(mt_lock *l, bint attached) noexcept nogil:
    lock_slow(l, attached)


cdef void wait_for_heavy_lock(mt_lock *l, bint attached) noexcept nogil:
    lock_slow_heavy(l, attached)
