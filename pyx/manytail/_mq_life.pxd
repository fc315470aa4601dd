# The life of a MultiQueue (_mq.pxd) and its sub-queues: making, attaching, detaching and freeing them. Private.
#
# Invariants
#   Q1  Each handle and each sub-queue has a reference to its queue (`refs`). The last reference frees it.
#   Q2  From its addition on a sub-queue is in one of two lists of its queue: attached ones by time of their addition,
#       or removed ones. A removed one accepts nothing. It is freed with its last handle, without Python with its queue.
from manytail._mq_forks cimport *
from manytail._mq_tasks cimport *


cdef inline queue *new_queue(bint gil_locked, bint attached) noexcept nogil:
    cdef queue *q = <queue *>mt_alloc_aligned(sizeof(queue))
    if q != NULL:
        q.gil_locked = gil_locked
        mt_fetch_add_relaxed_u32(&q.refs, 1)    # relaxed because: nobody else has it yet
        register(q, attached)
    return q


cdef inline void drop_queue(queue *q, bint attached) noexcept nogil:
    """Drop one reference; the last one frees the queue. Then no sub-queue is attached and no call waits."""
    # pairs with: itself, in other threads: the last sees all that the others did
    if mt_fetch_add_acq_rel_u32(&q.refs, <uint32_t>-1) != 1:
        return
    unregister(q, attached)
    ready_free(&q.ready)
    chunk_free(<chunk *>mt_xchg_acq_rel_uptr(&q.spare, 0))    # pairs with: mt_xchg_acq_rel in drop_chunk
    mt_free_aligned(q)


cdef inline subqueue *new_subqueue(queue *q, int64_t priority, int64_t maxsize, uint32_t weight,
                                   bint enabled) noexcept nogil:
    """A sub-queue that is not attached. NULL: no memory."""
    cdef subqueue *s = <subqueue *>mt_alloc_aligned(sizeof(subqueue))
    if s == NULL:
        return NULL
    s.mq = q
    s.gil_locked = <uint8_t>q.gil_locked
    mt_fetch_add_relaxed_u32(&q.refs, 1)                    # relaxed because: the caller holds a reference already
    mt_store_relaxed_i64(&s.maxsize, maxsize)               # relaxed because: nobody else has it yet
    s.bounded = maxsize > 0
    s.priority = priority
    s.weight = weight
    s.enabled = enabled
    return s


cdef inline int attach_subqueue(queue *q, subqueue *s, bint attached) noexcept nogil:
    """Add the sub-queue to the queue. MT_OK, MT_SHUTDOWN or MT_NOMEM."""
    cdef int r = MT_SHUTDOWN
    lock_take(q, attached)
    if not q.shut:
        s.ready.level = ready_join_level(&q.ready, s.priority)
        r = MT_OK if s.ready.level != NULL else MT_NOMEM
    if r == MT_OK:
        q.begun = 1                     # its selection is constant from here on
        s.timestamped = q.selection == MT_OLDEST
        s.attached = 1
        link_last(s, &s.all_next, &q.all_first, &q.all_last)
        q.nsubs += 1
        q.nenabled += s.enabled
        # relaxed because: no putter has it yet
        mt_store_relaxed_u32(&s.must_list, MT_MUST_COUNT | s.enabled)
    unlock_take(q)
    return r


cdef inline bint detach_subqueue(queue *q, subqueue *s, bint attached) noexcept nogil:
    """Remove the sub-queue, with its items, from the queue. Blocked and later puts get MT_SHUTDOWN. 0: it was removed
    before."""
    cdef wait_node *to_post = NULL
    lock_take(q, attached)
    if not s.attached:
        unlock_take(q)
        return False
    lock_put(q, s, attached)
    s.closed_flags |= MT_CLOSED_DETACHED
    tail_notify_all(s, &to_post)
    head_mask(q, s)
    unlock_put(q, s)
    count = head_count(s)
    head_count_as_done(q, count)
    q.removed_put += head_ever_put(s)
    q.counted -= s.counted
    if not must_list(s) & MT_MUST_COUNT:
        unlink_from(s, &s.changed_next, &q.changed, NULL)
    s.attached = 0
    unlink_from(s, &s.all_next, &q.all_first, &q.all_last)
    link_after(NULL, s, &s.all_next, &q.removed, NULL)
    q.nsubs -= 1
    q.nenabled -= s.enabled
    ready_leave_level(&q.ready, s.ready.level)
    s.ready.level = NULL
    head_wake_joiners(q, &to_post)
    unlock_take_and_post(q, to_post)
    return True


cdef inline void free_subqueue(subqueue *s, bint attached) noexcept nogil:
    """Free a detached, emptied sub-queue with its last handle."""
    cdef queue *q = s.mq
    if s.closed_flags & MT_CLOSED_DETACHED:       # else it was never attached
        lock_take(q, attached)
        unlink_from(s, &s.all_next, &q.removed, NULL)
        unlock_take(q)
    mt_free_aligned(s)
    drop_queue(q, attached)


cdef inline void drop_left_chunks(queue *q, subqueue *s) noexcept nogil:
    """Free the chunks of an empty sub-queue, which keeps its last one for the next put."""
    cdef chunk *c = s.head
    while c != NULL:
        following = chunk_next(c)
        chunk_free(c)
        c = following
    s.head = s.tail = NULL
