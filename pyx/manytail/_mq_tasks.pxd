# The tasks of a MultiQueue (_mq.pxd): which items are done, and join. Private.
#
# Nothing is counted when an item is put: the number of items ever put is the sum of the positions of all sub-queues,
# and is asked only when it may decide. Source: task_done and join of the standard library's queue.
#
# Invariants
#   J1  Items ever put = removed_total + done + items that are not done. The last number is never negative.
#   J2  Whoever makes an item done calls head_wake_joiners() in the same hold of the take lock, so no join sleeps when
#       all are.
from manytail._mq_get cimport *


cdef inline int64_t head_put_total(queue *q) noexcept nogil:
    cdef int64_t n = q.removed_put
    cdef subqueue *s = q.all_first
    while s != NULL:
        n += head_ever_put(s)
        s = s.all_next
    return n


cdef inline int64_t head_unfinished(queue *q) noexcept nogil:
    return head_put_total(q) - q.removed_total - q.done


cdef inline void head_count_as_done(queue *q, int64_t n) noexcept nogil:
    """n items were taken out without a get: they count as done, unless task_done() was called for them before."""
    q.left_total += n
    if q.done > q.taken_total:
        n = min(n, max(<int64_t>0, head_unfinished(q)))
    q.removed_total += n


cdef inline void head_wake_joiners(queue *q, wait_node **to_post) noexcept nogil:
    """After an item has become done: notify the joiners if all are. Cheap unless a join waits."""
    if q.joiners.n == 0 or q.done < q.taken_total:
        return
    if q.done == q.taken_total and head_next(q, True) != NULL:
        return                      # an item is left; avoids the walk over all sub-queues
    if head_unfinished(q) == 0:
        notify_all(&q.joiners, to_post)


cdef inline bint task_done(queue *q, bint attached) noexcept nogil:
    """Count one item as done. 0: there is none that is not done."""
    cdef wait_node *to_post = NULL
    lock_take(q, attached)
    # The first test is nearly always true and avoids the walk over all sub-queues.
    cdef bint ok = q.done < q.taken_total or head_unfinished(q) > 0
    if ok:
        q.done += 1
        head_wake_joiners(q, &to_post)
    unlock_take_and_post(q, to_post)
    return ok


cdef inline void joined_point(wait_point *p, queue *q, bint attached) noexcept nogil:
    """A join waits until every item ever put is done."""
    make_point(p, &q.joiners, &q.take_lock, q.gil_locked, attached, head_poll_joined, q)


cdef inline int head_poll_joined(wait_point *p, bint parking) noexcept nogil:
    return MT_OK if head_unfinished(<queue *>p.of) == 0 else WAIT


cdef inline int join_until(queue *q, int64_t deadline, bint attached) noexcept nogil:
    """MT_OK: all items were done at some instant. Else MT_TIMEOUT (with ONCE: MT_EMPTY), MT_INTERRUPTED or MT_NOMEM."""
    cdef wait_point p
    cdef int r
    joined_point(&p, q, attached)
    while True:
        r = MT_OK if p.woken or poll_all(&p, 1) == MT_OK else MT_EMPTY
        if not again(&p, 1, &r, deadline):
            return r
