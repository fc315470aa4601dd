# Getting from a MultiQueue (_mq.pxd): whose turn it is, taking items, and waiting for them. Private.
#
# head_get() is one try: head_next() chooses a sub-queue, head_pop() takes its item, head_popped() publishes head_seq,
# head_served() moves the turn on, head_propagate() notifies the next getter. head_get_many() does the same a run at a
# time, and takes what n calls of head_get() would. Source of the order: the LinkedBlockingMultiQueue,
# by priority and round robin within one. "weighted" is weighted round robin, "oldest" takes the smallest put time.
#
# Invariants
#   G1  head_seq is published before `not_full_waiting` is read, both sequentially consistent: a putter that waits for a
#       free slot sees the slot, or is seen.
#   G2  While an item can be got and getters wait, at least one of them is notified and has not tried yet.
from libc.string cimport memcpy

from manytail._mq_ready cimport *


# --------------------------------------------------------------------------------------------------------------- taking
cdef inline void head_popped(queue *q, subqueue *s, int64_t n, bint attached, wait_node **to_post) noexcept nogil:
    """Call it after head_pop() or head_pop_run() of n items. For items that leave without one: head_count_as_done()."""
    # relaxed because: written under the take lock, which is held
    cdef int64_t out = mt_load_relaxed_i64(&s.head_seq) + n
    if likely(not s.bounded):
        # pairs with: mt_load_seq_cst in tail_free_slots
        mt_store_release_i64(&s.head_seq, out)
        return
    if unlikely(s.sized):
        # A pop takes items of one chunk, which is s.head.
        head_subtract_sizes(s, s.head, <uint32_t>(s.head_idx - n), n)
    head_advance(q, s, out, attached, to_post)


cdef inline void head_advance(queue *q, subqueue *s, int64_t out, bint attached, wait_node **to_post) noexcept nogil:
    """Publish head_seq, and notify a putter that waits for a free slot."""
    if q.gil_locked:
        mt_store_release_i64(&s.head_seq, out)       # pairs with: nothing, the GIL orders it
    else:
        # pairs with: mt_load_seq_cst in tail_free_slots, after mt_xchg_seq_cst of not_full_waiting in
        # tail_waiters_changed: either the putter sees the free slot, or the load below sees the putter
        mt_xchg_seq_cst_i64(&s.head_seq, out)
    mt_point()
    # pairs with: mt_xchg_seq_cst in tail_waiters_changed
    if unlikely(mt_load_seq_cst_u32(&s.not_full_waiting) != 0):
        lock_put(q, s, attached)
        tail_notify(s, to_post)
        unlock_put(q, s)


cdef inline uintptr_t head_pop(queue *q, subqueue *s) noexcept nogil:
    """Take the head item of a sub-queue that is not empty. The caller calls head_popped()."""
    if unlikely(s.has_tombstones or s.head_idx == s.head.cap):
        head_skip_tombstones(q, s)
    item = chunk_items(s.head)[s.head_idx]
    s.head_idx += 1
    return item


# ---------------------------------------------------------------------------------------------------------------- turns
cdef inline void head_served(queue *q, subqueue *s) noexcept nogil:
    """After a get from s: continue its quantum, rotate its ring, or unlist it if it is empty."""
    cdef ready_level *level = s.ready.level
    if q.selection == MT_ROUND_ROBIN and level.nready == 1 and q.ready.best.n == 1 and q.not_empty.n == 0:
        return                      # nothing to rotate; if it is empty it stays listed, alone
    if unlikely(head_empty(s)):
        s.quantum_left = 0
        # The only listed sub-queue stays listed: see _mq.pxd.
        if level.nready > 1 or q.ready.best.n > 1 or q.not_empty.n:
            head_unlist(q, s)
    elif unlikely(q.selection == MT_OLDEST):
        ready_rekey(&s.ready, head_timestamp(q, s))
    else:
        if s.quantum_left == 0:
            s.quantum_left = s.weight if q.selection == MT_WEIGHTED else 1
        s.quantum_left -= 1
        if s.quantum_left == 0 and level.front == &s.ready:
            level.front = s.ready.next


cdef inline subqueue *head_next(queue *q, bint keep_lone) noexcept nogil:
    """The sub-queue that the next get takes from, or NULL. Unlists empty ones; keep_lone: but not the only one
    listed."""
    while q.ready.top != NULL:
        s = mt_subqueue_of(ready_front(&q.ready, q.ready.top))
        if likely(not head_empty(s)):
            return s
        if keep_lone and q.ready.top.nready == 1 and q.ready.best.n == 1:
            return NULL
        head_unlist(q, s)
    return NULL


cdef inline void head_propagate(queue *q, wait_node **to_post) noexcept nogil:
    """If an item can be got, notify the next getter: of several puts to a sub-queue only the first notified one."""
    if unlikely(q.not_empty.n != 0) and head_next(q, False) != NULL:
        notify_next(&q.not_empty, to_post)


# -------------------------------------------------------------------------------------------------------------- one try
cdef inline int head_get(queue *q, uintptr_t *item, subqueue **taken_from, bint attached,
                         wait_node **to_post) noexcept nogil:
    cdef subqueue *s = head_next(q, True)
    if unlikely(s == NULL):
        return MT_EMPTY
    item[0] = head_pop(q, s)
    taken_from[0] = s
    q.taken_total += 1
    head_popped_and_served(q, s, 1, attached, to_post)
    head_propagate(q, to_post)
    return MT_OK


cdef inline int64_t head_pop_run(queue *q, subqueue *s, uintptr_t *items, int64_t n) noexcept nogil:
    """Take up to n items of the first chunk of a sub-queue that is not empty. The caller calls head_popped()."""
    cdef int64_t k, have
    head_skip_tombstones(q, s)
    if s.has_tombstones:
        items[0] = head_pop(q, s)
        return 1
    have = s.tail_seq_cached - mt_load_relaxed_i64(&s.head_seq)    # relaxed because: written under the take lock
    k = min(min(n, have), <int64_t>(s.head.cap - s.head_idx))
    memcpy(items, chunk_items(s.head) + s.head_idx, k * sizeof(uintptr_t))
    s.head_idx += <uint16_t>k
    return k


cdef inline int64_t run_length(queue *q, subqueue *s, int64_t n) noexcept nogil:
    """How many items, at most n, consecutive gets would take from s."""
    if q.selection == MT_OLDEST:
        return n if s.ready.level.nready == 1 else 1
    if s.ready.level.nready == 1:
        return n
    if q.selection == MT_WEIGHTED:
        return min(n, <int64_t>(s.quantum_left if s.quantum_left else s.weight))
    return 1


cdef inline void head_popped_and_served(queue *q, subqueue *s, int64_t n, bint attached,
                                        wait_node **to_post) noexcept nogil:
    """After popping n items, n <= run_length(): head_popped(), then what n calls of head_served() do."""
    cdef int64_t left, w = s.weight
    # A sub-queue that ran empty loses the rest of its quantum. Check before head_popped(): after it, a waiting putter
    # may already have put again.
    cdef bint ran_empty = q.selection == MT_WEIGHTED and s.bounded and head_count(s) == n
    head_popped(q, s, n, attached, to_post)
    if unlikely(ran_empty):
        s.quantum_left = 1
        n = 1
    if unlikely(n > 1) and q.selection == MT_WEIGHTED:
        left = (s.quantum_left if s.quantum_left else w) - (n - 1)
        if left <= 0:               # alone in its ring: several quanta were used
            left = (left % w + w) % w
        s.quantum_left = <uint32_t>left
    head_served(q, s)


cdef inline int64_t head_get_many(queue *q, uintptr_t *items, int64_t n, bint attached,
                                  wait_node **to_post) noexcept nogil:
    """Take what n gets would return, without waiting."""
    cdef int64_t got = 0, k
    while got < n:
        s = head_next(q, True)
        if s == NULL:
            break
        k = head_pop_run(q, s, items + got, run_length(q, s, n - got))
        got += k
        q.taken_total += k
        head_popped_and_served(q, s, k, attached, to_post)
    if got:
        head_propagate(q, to_post)
    return got


# -------------------------------------------------------------------------------------------------------------- waiting
cdef inline void items_point(wait_point *p, queue *q, bint attached) noexcept nogil:
    """A getter waits until an item can be got, or the queue is shut down."""
    make_point(p, &q.not_empty, &q.take_lock, q.gil_locked, attached, head_poll_items, q)
    p.forward = head_forward_items
    p.spin_first = SPIN_FIRST
    p.spin_limit = SPIN_LIMIT


cdef inline int head_poll_items(wait_point *p, bint parking) noexcept nogil:
    """A getter that parks unlists all empty sub-queues, so that the next put to one of them notifies."""
    cdef queue *q = <queue *>p.of
    q.holder_attached = p.attached
    if head_next(q, not parking) != NULL:
        return MT_OK
    return MT_SHUTDOWN if q.shut else WAIT


cdef inline void head_forward_items(wait_point *p, wait_node **to_post) noexcept nogil:
    (<queue *>p.of).holder_attached = p.attached
    head_propagate(<queue *>p.of, to_post)


cdef inline void forward_items(queue *q, bint attached) noexcept nogil:
    """A call that may have been notified of an item does not take it: notify the next getter."""
    cdef wait_point p
    items_point(&p, q, attached)
    forward_unused(&p, 1, True)
