# Changes of a MultiQueue (_mq.pxd) while it is used: on and off, priority, weight, capacity, shutdown. Private.
#
# Invariants
#   H1  Each change is one hold of the take lock, with the put locks of what putters read. So it takes effect at once.
#   H2  Whoever may go on after a change is notified in that hold: getters of what was enabled, putters of a new
#       maxsize, all of a shutdown.
from manytail._mq_ready cimport *


cdef inline void enable_subqueue(queue *q, subqueue *s, bint enabled, bint attached) noexcept nogil:
    cdef wait_node *to_post = NULL
    lock_take(q, attached)
    if (s.enabled != 0) != enabled:
        s.enabled = enabled
        if s.attached:
            q.nenabled += 1 if enabled else -1
            if not enabled:
                lock_put(q, s, attached)
                head_mask(q, s)
                unlock_put(q, s)
            elif not s.closed_flags & MT_CLOSED_STOPPED and not head_leave_to_put(q, s):
                head_list(q, s)
                notify(&q.not_empty, &to_post)
    unlock_take_and_post(q, to_post)


cdef inline int set_priority(queue *q, subqueue *s, int64_t priority, bint attached) noexcept nogil:
    """Move to the end of that priority's ring. MT_OK or MT_NOMEM."""
    cdef bint listed
    cdef int r = MT_OK
    lock_take(q, attached)
    if s.attached and priority != s.priority:
        level = ready_join_level(&q.ready, priority)
        if level == NULL:
            r = MT_NOMEM
        else:
            listed = s.ready.listed
            if listed:
                ready_remove(&q.ready, &s.ready)
            s.quantum_left = 0
            ready_leave_level(&q.ready, s.ready.level)
            s.ready.level = level
            s.priority = priority
            if listed and not head_leave_to_put(q, s):
                head_list(q, s)
    elif not s.attached:
        s.priority = priority
    unlock_take(q)
    return r


cdef inline void set_weight(queue *q, subqueue *s, uint32_t weight, bint attached) noexcept nogil:
    lock_take(q, attached)
    s.weight = weight
    unlock_take(q)


cdef inline void set_maxsize(queue *q, subqueue *s, int64_t maxsize, bint attached) noexcept nogil:
    cdef wait_node *to_post = NULL
    lock_take(q, attached)
    lock_put(q, s, attached)
    mt_store_relaxed_i64(&s.maxsize, maxsize)       # relaxed because: both locks are held
    s.bounded = maxsize > 0 or s.sized
    tail_notify_all(s, &to_post)                    # those that still do not fit wait again
    unlock_put(q, s)
    unlock_take_and_post(q, to_post)


cdef inline void shut_queue(queue *q, bint stop, bint attached) noexcept nogil:
    """Accept no more puts, atomically for all sub-queues. stop: no more gets either; the items stay inside."""
    cdef wait_node *to_post = NULL
    lock_take(q, attached)
    s = q.all_first
    while s != NULL:
        lock_put(q, s, attached)        # all of them before the first is shut: no put succeeds after another is refused
        s = s.all_next
    q.shut = 1
    s = q.all_first
    while s != NULL:
        s.closed_flags |= MT_CLOSED_SHUTDOWN
        tail_notify_all(s, &to_post)
        if stop:
            s.closed_flags |= MT_CLOSED_STOPPED
            head_mask(q, s)
        unlock_put(q, s)
        s = s.all_next
    notify_all(&q.not_empty, &to_post)
    unlock_take_and_post(q, to_post)
