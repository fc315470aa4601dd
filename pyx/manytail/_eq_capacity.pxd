# The capacity of an entry queue (_eq.pxd): whether a put is accepted, and how it waits for a free slot. Private.
#
# `maxsize` bounds the depth, in entries. A full queue refuses puts (OVERFLOW_REJECT), lets them wait (OVERFLOW_BLOCK),
# or accepts them and drops its oldest entries (OVERFLOW_DROP: locked_drop_oldest in _eq_end.pxd). A queue that lets
# puts wait is `throttled` from the put that found it full until the depth is down to the low watermark, so that putters
# do not wake for each single slot. Source: the overflow policies of Qpid's queues (reject, flow control, ring).
#
# Invariant
#   C1  No putter sleeps while there is a free slot for it, unless a notified putter has not tried yet.
from manytail._eq cimport *


cdef inline bint locked_full(entry_queue *q) noexcept nogil:
    """Whether a put has to wait or is refused. Sets `throttled`: with OVERFLOW_BLOCK a queue that was full stays so
    until the depth is down to the low watermark."""
    if likely(q.maxsize <= 0):
        return False
    if q.overflow == OVERFLOW_BLOCK:
        q.throttled = q.throttled or depth_of(q) >= q.maxsize
        return q.throttled
    return q.overflow == OVERFLOW_REJECT and depth_of(q) >= q.maxsize


cdef inline bint locked_refuses(entry_queue *q, entry *e) noexcept nogil:
    """Whether a queue with maxsize has no free slot for e. A replacement needs none. Puts of the dead-letter callable
    are always accepted, else an overflow could cause another one."""
    return not value_replaces(e) and locked_full(q) and not in_dead_letter_call(q)


cdef inline bint locked_overflows(entry_queue *q) noexcept nogil:
    """Whether the oldest entries have to be dropped."""
    return q.overflow == OVERFLOW_DROP and q.maxsize > 0 and depth_of(q) > q.maxsize


cdef inline void locked_notify_putters(entry_queue *q, wait_node **to_post) noexcept nogil:
    """The depth went down: notify as many putters as there are free slots."""
    cdef int64_t depth = depth_of(q), n
    if q.throttled and (q.maxsize <= 0 or depth <= q.low_watermark):
        q.throttled = False
    if q.throttled:
        return
    n = q.putters.n if q.maxsize <= 0 else q.maxsize - depth
    while q.putters.n and n > 0:
        notify(&q.putters, to_post)
        n -= 1


cdef inline void locked_set_maxsize(entry_queue *q, int64_t maxsize, int64_t low_watermark, effects *fx) noexcept nogil:
    """A higher limit ends `throttled`, whatever the low watermark. Drops nothing."""
    if maxsize > q.maxsize or maxsize <= 0:
        q.throttled = False
    q.maxsize = maxsize
    q.low_watermark = low_watermark
    if maxsize > 0 and depth_of(q) < maxsize and depth_of(q) <= low_watermark:
        q.throttled = False
    notify_all(&q.putters, &fx.to_post)


# -------------------------------------------------------------------------------------------------------------- waiting
cdef inline void free_slot_point(wait_point *p, entry_queue *q, bint attached) noexcept nogil:
    """A putter waits until there is a free slot; in a last-value queue also until an event, after which its entry may
    replace another one. Keeps `events_seen`, which a try may have set before."""
    make_point(p, &q.putters, &q.lock, q.gil_locked, attached, locked_poll_free_slot, q)
    p.forward = locked_forward_free_slot


cdef inline int locked_poll_free_slot(wait_point *p, bint parking) noexcept nogil:
    cdef entry_queue *q = <entry_queue *>p.of
    if q.shut or not locked_full(q) or (q.value_keys.n and q.event_count != p.events_seen):
        return MT_OK
    return WAIT


cdef inline void locked_forward_free_slot(wait_point *p, wait_node **to_post) noexcept nogil:
    locked_notify_putters(<entry_queue *>p.of, to_post)


# ------------------------------------------------------------------------------------------------ dead-letter callables
cdef inline void enter_dead_letter_call(entry_queue *q, dead_letter_call *here) noexcept nogil:
    """The calling thread is about to run the dead-letter callable of this queue."""
    here.thread = PyThread_get_thread_ident()
    lock_order(q)
    here.next = q.dead_letter_calls
    q.dead_letter_calls = here
    unlock_order(q)


cdef inline void leave_dead_letter_call(entry_queue *q, dead_letter_call *here) noexcept nogil:
    cdef dead_letter_call **at = &q.dead_letter_calls
    lock_order(q)
    while at[0] != here:
        at = &at[0].next
    at[0] = here.next
    unlock_order(q)


cdef inline bint in_dead_letter_call(entry_queue *q) noexcept nogil:
    """Under the order lock: whether the calling thread is inside the dead-letter callable of this queue."""
    cdef dead_letter_call *r = q.dead_letter_calls
    if likely(r == NULL):
        return False
    me = PyThread_get_thread_ident()
    while r != NULL and r.thread != me:
        r = r.next
    return r != NULL
