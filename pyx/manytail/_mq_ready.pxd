# Which sub-queues of a MultiQueue (_mq.pxd) are listed in a ready ring (_ready.pxd), and how many items they have.
# Private.
#
# A getter looks at listed sub-queues only. The bits of `must_list` (MT_MUST_*) tell the next put to a sub-queue what it
# has to do under both locks: list the sub-queue, and count it anew.
# docs/design/multiqueue.md proves that no item is missed.
#
# Invariants
#   L1  While nobody holds the take lock, each sub-queue that has an item, and is not kept out of its ring, is in it.
#   L2  While MT_MUST_LIST is set and nobody holds both locks, the sub-queue is empty and not in its ring.
#   L3  Whoever takes a sub-queue out of its ring sets MT_MUST_LIST, lists it again or keeps it out (head_leave_to_put,
#       head_list, head_mask) before the take lock is free.
#   L4  An attached sub-queue is either in the list `changed`, or has MT_MUST_COUNT. In the second case its `counted`
#       is the number of items ever put into it. The `counted` of the queue is the sum of those of its sub-queues.
from manytail._mq_tail cimport *


cdef inline int64_t head_count(subqueue *s) noexcept nogil:
    """The number of items inside. Refreshes the copy of tail_seq."""
    # pairs with: mt_store_release in tail_put, tail_put_run
    s.tail_seq_cached = mt_load_acquire_i64(&s.tail_seq)
    return s.tail_seq_cached - mt_load_relaxed_i64(&s.head_seq)    # relaxed because: written under the take lock


cdef inline bint head_empty(subqueue *s) noexcept nogil:
    """Reads the putters' cache line only if the copy of tail_seq says that it is empty."""
    # relaxed because: written under the take lock
    return s.tail_seq_cached == mt_load_relaxed_i64(&s.head_seq) and head_count(s) == 0


cdef inline void head_skip_tombstones(queue *q, subqueue *s) noexcept nogil:
    """Move head and head_idx to an item. The sub-queue is not empty."""
    cdef chunk *c = s.head
    while True:
        if s.head_idx == c.cap:
            s.head = chunk_next(c)
            s.head_idx = 0
            s.chunks_dropped += 1
            drop_chunk(q, c)
            c = s.head
        elif s.has_tombstones and is_tombstone(c, s.head_idx):
            s.head_idx += 1
            s.ntombstones -= 1
            s.has_tombstones = s.ntombstones > 0
        else:
            return


cdef inline int64_t head_timestamp(queue *q, subqueue *s) noexcept nogil:
    head_skip_tombstones(q, s)
    return chunk_timestamps(s.head)[s.head_idx]


cdef inline void head_rekey(queue *q, subqueue *s) noexcept nogil:
    """The head has changed: with selection "oldest", move the sub-queue to its new place in the heap."""
    if q.selection == MT_OLDEST and head_count(s) > 0:
        ready_rekey(&s.ready, head_timestamp(q, s))


cdef inline void head_list(queue *q, subqueue *s) noexcept nogil:
    """Join the ring at its end. Replaces an empty sub-queue that was left listed alone (see _mq.pxd)."""
    cdef ready_level *level = s.ready.level
    cdef int64_t timestamp = head_timestamp(q, s) if q.selection == MT_OLDEST else 0
    if level.nready == 1:
        lone = mt_subqueue_of(ready_front(&q.ready, level))
        if head_count(lone) == 0:
            ready_replace(&q.ready, &lone.ready, &s.ready, timestamp)
            head_left_ring(q, lone)
            return
        head_rekey(q, lone)
    ready_append(&q.ready, &s.ready, timestamp)


cdef inline void head_unlist(queue *q, subqueue *s) noexcept nogil:
    """An empty sub-queue leaves its ring."""
    ready_remove(&q.ready, &s.ready)
    head_left_ring(q, s)


cdef inline void head_left_ring(queue *q, subqueue *s) noexcept nogil:
    """After leaving the ring: set `must_list`, or join again if an item was put since."""
    s.quantum_left = 0
    mt_point()
    if not head_leave_to_put(q, s):
        head_list(q, s)


cdef inline bint head_leave_to_put(queue *q, subqueue *s) noexcept nogil:
    """Set `must_list` if the sub-queue is empty, so that the next put lists it. False: it is not empty."""
    lock_put(q, s, q.holder_attached)
    cdef bint empty = head_count(s) == 0
    set_must_list(s, empty)
    unlock_put(q, s)
    return empty


cdef inline void head_list_after_put(queue *q, subqueue *s, wait_node **to_post) noexcept nogil:
    """After a put under both locks: do what it must. If it lists the sub-queue, notify a getter."""
    cdef uint32_t must = must_list(s)
    if must & MT_MUST_COUNT:
        head_note_change(q, s)
    if must & MT_MUST_LIST:
        set_must_list(s, False)
        head_list(q, s)
        if unlikely(q.not_empty.n != 0):
            notify_next(&q.not_empty, to_post)


cdef inline void head_mask(queue *q, subqueue *s) noexcept nogil:
    """Keep a sub-queue out of its ring whether it has items or not. Both locks are held."""
    if s.ready.listed:
        ready_remove(&q.ready, &s.ready)
    s.quantum_left = 0
    set_must_list(s, False)


# ----------------------------------------------------------------------------------------------------- numbers of items
cdef inline int64_t ring_count(ready_index *r, ready_level *level, int64_t enough) noexcept nogil:
    cdef int64_t n = 0
    cdef ready_node *node = level.front
    for i in range(level.nready):
        if r.oldest:
            node = <ready_node *>level.by_time.items[i].member
        n += head_count(mt_subqueue_of(node))
        if n >= enough:
            break
        node = node.next
    return n


cdef inline int64_t head_qsize(queue *q, int64_t enough) noexcept nogil:
    """The number of items that gets can take, but at most `enough`. Counts listed sub-queues only."""
    cdef int64_t n = 0
    for i in range(q.ready.best.n):
        n += ring_count(&q.ready, <ready_level *>q.ready.best.items[i].member, enough - n)
        if n >= enough:
            return enough
    return n


# The size is the number of items ever put, less those that went out. What went out is counted for the whole queue; what
# was put is counted for each sub-queue, in `counted`, when qsize looks at it. Only sub-queues in the list `changed` may
# have more. One that is found unchanged is taken off the list and gets MT_MUST_COUNT, so its next put takes both locks
# and brings it back. A put to a sub-queue in the list pays nothing: so a sub-queue that is put to between any two calls
# of qsize never pays.
cdef inline int64_t head_ever_put(subqueue *s) noexcept nogil:
    # pairs with: mt_store_release in tail_put, tail_put_run
    return mt_load_acquire_i64(&s.tail_seq) + s.nfront


cdef inline void head_note_change(queue *q, subqueue *s) noexcept nogil:
    """Put a sub-queue that has MT_MUST_COUNT into the list `changed`. Both locks are held."""
    # relaxed because: written under both locks
    mt_store_relaxed_u32(&s.must_list, must_list(s) & ~<uint32_t>MT_MUST_COUNT)
    link_after(NULL, s, &s.changed_next, &q.changed, NULL)


cdef inline bint head_leave_changed(queue *q, subqueue *s) noexcept nogil:
    """Take the sub-queue off the list `changed`. False: an item was put since head_counted looked at it."""
    lock_put(q, s, q.holder_attached)
    cdef bint same = head_ever_put(s) == s.counted
    if same:
        unlink_from(s, &s.changed_next, &q.changed, NULL)
        mt_store_relaxed_u32(&s.must_list, must_list(s) | MT_MUST_COUNT)    # relaxed because: written under both locks
    unlock_put(q, s)
    return same


cdef inline int64_t head_counted(queue *q) noexcept nogil:
    """The number of items of all attached sub-queues. removed_put: ever put into those that are detached, of which
    everything has gone; taken_total: got; left_total: gone otherwise."""
    cdef subqueue *s = q.changed
    cdef subqueue *following
    while s != NULL:
        following = s.changed_next
        if head_ever_put(s) != s.counted or not head_leave_changed(q, s):
            q.counted -= s.counted
            s.counted = head_ever_put(s)
            q.counted += s.counted
        s = following
    return q.counted + q.removed_put - q.taken_total - q.left_total


cdef inline int64_t qsize_of(queue *q, int64_t enough, bint attached) noexcept nogil:
    cdef int64_t n
    lock_take(q, attached)
    if enough == INT64_MAX and q.nenabled == q.nsubs and not q.shut:
        n = head_counted(q)
    else:                           # what is disabled or stopped does not count
        n = head_qsize(q, enough)
    unlock_take(q)
    return n
