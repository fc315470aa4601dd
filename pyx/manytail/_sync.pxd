# What _queue.pyx uses of _sync.pyx. Private.
cimport cython

from manytail._waiting cimport *


@cython.final
cdef class Mutex:
    cdef object lock            # threading.Lock
    cdef mt_atomic_uptr holder  # the thread that holds it; 0: none, or a thread that is inside acquire() or release()
    cdef int forget_other_threads(self) except -1


@cython.final
cdef class Condition:
    cdef object mutex
    cdef mt_lock lock           # guards the rest; the mutex cannot: notify does not know whether its caller holds it
    cdef wait_list waiters
    cdef mt_atomic_i64 waits    # those on the list, and those that run signal handlers
    cdef object __weakref__
    cdef int64_t wake_ups       # so far: tells a wait that runs signal handlers that it may have missed one
    cdef bint wake_one(self) noexcept
    cdef void wake_all(self) noexcept
    cdef bint wait_until(self, int64_t deadline, mt_atomic_i64 *number, int64_t expected) except -1
