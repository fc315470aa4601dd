# What the queue modules use of _wait: locks, wait lists, parking. Private.
from libc.stdint cimport int64_t, uint32_t


cdef extern from "manytail/lock.h" nogil:
    ctypedef struct mt_lock_node:
        void *sem
    ctypedef struct mt_lock:
        pass
    bint mt_lock_try(mt_lock *l)
    bint mt_lock_enqueue(mt_lock *l, mt_lock_node *n)
    mt_lock_node *mt_unlock(mt_lock *l)
    void mt_lock_reset(mt_lock *l)


cdef extern from "manytail/waitlist.h" nogil:
    ctypedef struct mt_waiter:
        mt_waiter *next
        void *sem
        void *callback
        unsigned long thread
    ctypedef struct mt_waitlist:
        int64_t n
    void mt_waitlist_push(mt_waitlist *l, mt_waiter *w)
    void mt_waitlist_notify(mt_waitlist *l, mt_waiter **wake)
    void mt_waitlist_notify_all(mt_waitlist *l, mt_waiter **wake)
    enum: MT_WAITER_OUT, MT_WAITER_QUEUED, MT_WAITER_NOTIFIED
    uint32_t mt_waitlist_leave(mt_waitlist *l, mt_waiter *w)
    void mt_waitlist_keep_thread(mt_waitlist *l, unsigned long thread)


cdef extern from "manytail/clock.h" nogil:
    int64_t mt_now_ns()


cdef extern from "manytail/multiqueue.h" nogil:
    enum: MT_OK, MT_EMPTY, MT_FULL, MT_SHUTDOWN, MT_TIMEOUT, MT_NOMEM, MT_BADARG, MT_INTERRUPTED


# Deadlines are nanoseconds of the monotonic clock.
cdef enum:
    NEVER = -1          # no deadline
    ONCE = 0            # do not wait at all

cdef int64_t deadline_from(object block, object timeout) except -2
cdef void lock_slow(mt_lock *l, bint attached) noexcept nogil
cdef void lock_slow_heavy(mt_lock *l, bint attached) noexcept nogil
cdef void post_lock_node(mt_lock_node *n) noexcept nogil

cdef int waiter_open(mt_waiter *w) noexcept nogil
cdef void waiter_close(mt_waiter *w) noexcept nogil
cdef int waiter_park(mt_waiter *w, int64_t deadline, bint attached) noexcept nogil
cdef void waiter_await_post(mt_waiter *w, bint attached) noexcept nogil
cdef void post_chain(mt_waiter *chain) noexcept nogil
cdef unsigned long this_thread() noexcept nogil
cdef void write_unraisable(object error, object where) noexcept
cdef void unclosed(str text) noexcept


cdef class LoopWaiter:
    cdef mt_waiter w
    cdef object loop
    cdef object on_lost
    cdef readonly object future
    cdef void post(self) noexcept
    cdef bint hand_over(self) noexcept
    cdef void lost(self) noexcept
