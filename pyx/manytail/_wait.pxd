# What the entry queues and publish/subscribe use of _wait: locks, wait lists, parking. Private.
from libc.stdint cimport int64_t, uint32_t

from manytail._c cimport (
    mt_lock, mt_lock_node, mt_lock_try, mt_lock_enqueue, mt_unlock, mt_lock_reset, mt_waiter, mt_waitlist,
    mt_waitlist_push, mt_waitlist_notify, mt_waitlist_notify_all, MT_WAITER_OUT, MT_WAITER_QUEUED,
    MT_WAITER_NOTIFIED, mt_waitlist_leave, mt_waitlist_keep_thread, mt_now_ns, MT_OK, MT_EMPTY, MT_FULL,
    MT_SHUTDOWN, MT_TIMEOUT, MT_NOMEM, MT_BADARG, MT_INTERRUPTED,
)
from manytail._runtime cimport unclosed
from manytail._waiting cimport NEVER, ONCE, deadline_from, write_unraisable

cdef void lock_slow(mt_lock *l, bint attached) noexcept nogil
cdef void lock_slow_heavy(mt_lock *l, bint attached) noexcept nogil
cdef void post_lock_node(mt_lock_node *n) noexcept nogil

cdef int waiter_open(mt_waiter *w) noexcept nogil
cdef void waiter_close(mt_waiter *w) noexcept nogil
cdef int waiter_park(mt_waiter *w, int64_t deadline, bint attached) noexcept nogil
cdef void waiter_await_post(mt_waiter *w, bint attached) noexcept nogil
cdef void post_chain(mt_waiter *chain) noexcept nogil
cdef unsigned long this_thread() noexcept nogil

cdef class LoopWaiter:
    cdef mt_waiter w
    cdef object loop
    cdef object on_lost
    cdef readonly object future
    cdef void post(self) noexcept
    cdef bint hand_over(self) noexcept
    cdef void lost(self) noexcept
