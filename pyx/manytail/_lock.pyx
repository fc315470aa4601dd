"""The slow path of _lock.pxd, compiled once for all modules."""
from manytail._c cimport mt_lock


cdef void wait_for_lock(mt_lock *l, bint attached) noexcept nogil:
    lock_slow(l, attached)


cdef void wait_for_heavy_lock(mt_lock *l, bint attached) noexcept nogil:
    lock_slow_heavy(l, attached)
