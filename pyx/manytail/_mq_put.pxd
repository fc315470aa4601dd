# Putting into a sub-queue (_mq.pxd): one try of each put, with its locks, and waiting for a free slot. Private.
#
# A put takes the put lock, and the take lock only if it must list its sub-queue, or puts at the front. Each "_once"
# function is one try; put_until() and put_run_until() wait between tries.
#
# Invariants
#   P1  A put that must list its sub-queue does so under the two locks under which it appends, and notifies a getter.
#   P2  If the item of a putter that sleeps fits, another putter is notified and has not tried yet. So a put that
#       succeeds while others wait forwards (forward_free_slot), and a waiting putter publishes `not_full_waiting`
#       before it reads head_seq.
from manytail._mq_ready cimport *


# --------------------------------------------------------------------------------------------------------- at the front
cdef inline int head_put_front(queue *q, subqueue *s, uintptr_t item, const int64_t *size) noexcept nogil:
    """Put an item before the head. Both locks are held. size: NULL unless sized."""
    cdef int64_t done
    cdef int r = MT_OK
    if s.closed_flags != 0:
        return MT_SHUTDOWN
    if size != NULL:
        tail_fitting(s, size, 1, &r)
    elif tail_free_slots(s, mt_load_relaxed_i64(&s.tail_seq)) <= 0:     # relaxed because: written under the put lock
        r = MT_FULL
    if r != MT_OK:
        return r
    if unlikely(s.head == NULL):
        return tail_put_run(q, s, &item, size, 1, False, &done)
    if s.head_idx == 0:
        c = new_chunk(q, (0 if s.size_class == 0 else 1) + s.sized * SIZED_CLASS, 0)
        if c == NULL:
            return MT_NOMEM
        head_link_chunk(s, c)
    # relaxed because: only the order of the numbers counts
    head_fill_slot(q, s, item, mt_fetch_add_relaxed_i64(&q.clock, 1) if s.timestamped else 0,
                   size[0] if size != NULL else 0)
    s.nfront += 1
    return MT_OK


cdef inline void head_link_chunk(subqueue *s, chunk *c) noexcept nogil:
    """Make an empty chunk the first one."""
    c.base = s.head.base - c.cap
    chunk_link(c, s.head)
    s.head = c
    s.head_idx = <uint16_t>c.cap


cdef inline void head_fill_slot(queue *q, subqueue *s, uintptr_t item, int64_t timestamp, int64_t size) noexcept nogil:
    """Put into the slot before the head; head_idx > 0. Both locks are held."""
    cdef int64_t out = mt_load_relaxed_i64(&s.head_seq)     # relaxed because: written under the take lock
    cdef chunk *c = s.head
    s.head_idx -= 1
    clear_tombstone(c, s.head_idx)
    chunk_items(c)[s.head_idx] = item
    if s.timestamped:
        chunk_timestamps(c)[s.head_idx] = timestamp
    if s.sized:
        chunk_sizes(c, s.timestamped)[s.head_idx] = size
        s.size_put += <uint64_t>size
    # pairs with: mt_load_seq_cst in tail_free_slots
    mt_store_release_i64(&s.head_seq, out - 1)
    s.head_seq_cached = out - 1
    if s.ready.listed:
        head_rekey(q, s)


# -------------------------------------------------------------------------------------------------------------- waiting
cdef inline void free_slot_point(wait_point *p, subqueue *s, bint attached) noexcept nogil:
    """A putter waits until its sub-queue has a free slot, or accepts no more items."""
    make_point(p, &s.not_full, &s.put_lock, s.gil_locked, attached, tail_poll_free_slots, s)
    p.changed = tail_waiters_changed
    p.forward = tail_forward_free_slots


cdef inline void free_size_point(wait_point *p, subqueue *s, int64_t size, bint attached) noexcept nogil:
    """A putter waits until an item of that size fits into its sized sub-queue."""
    free_slot_point(p, s, attached)
    p.amount = size
    p.poll = tail_poll_free_size


cdef inline int tail_poll_free_size(wait_point *p, bint parking) noexcept nogil:
    cdef subqueue *s = <subqueue *>p.of
    cdef int r = MT_OK
    if s.closed_flags != 0:
        return MT_SHUTDOWN
    tail_fitting(s, &p.amount, 1, &r)
    return WAIT if r == MT_FULL else MT_OK      # MT_BADARG: the next try returns it


cdef inline int tail_poll_free_slots(wait_point *p, bint parking) noexcept nogil:
    cdef subqueue *s = <subqueue *>p.of
    if s.closed_flags != 0:
        return MT_SHUTDOWN
    return MT_OK if tail_free_slots(s, mt_load_relaxed_i64(&s.tail_seq)) > 0 else WAIT     # relaxed because: put lock


cdef inline void tail_waiters_changed(wait_point *p) noexcept nogil:
    cdef subqueue *s = <subqueue *>p.of
    # pairs with: mt_load_seq_cst in head_advance, after mt_xchg_seq_cst of head_seq
    mt_xchg_seq_cst_u32(&s.not_full_waiting, <uint32_t>s.not_full.n)


cdef inline void tail_forward_free_slots(wait_point *p, wait_node **to_post) noexcept nogil:
    """If there is a free slot, notify the next putter."""
    cdef subqueue *s = <subqueue *>p.of
    # relaxed because: written under the put lock
    if s.not_full.n and (s.sized or tail_free_slots(s, mt_load_relaxed_i64(&s.tail_seq)) > 0):
        tail_notify(s, to_post)


cdef inline void forward_free_slot(subqueue *s, bint attached) noexcept nogil:
    """There may be a free slot that no putter was woken for, or that a woken one does not use: wake the next."""
    cdef wait_point p
    free_slot_point(&p, s, attached)
    forward_unused(&p, 1, True)


# -------------------------------------------------------------------------------------------------- one try of each put
cdef inline int put_once(queue *q, subqueue *s, uintptr_t item, bint attached) noexcept nogil:
    if unlikely(must_list(s)):
        return put_and_list(q, s, item, attached)
    lock_put(q, s, attached)
    if unlikely(must_list(s)):
        unlock_put(q, s)
        return put_and_list(q, s, item, attached)
    r = tail_put(q, s, item)
    more_waiting = tail_putters_wait(s)
    unlock_put(q, s)
    if unlikely(more_waiting) and r == MT_OK:
        forward_free_slot(s, attached)       # there may be another free slot than the one that was just used
    return r


cdef inline int put_and_list(queue *q, subqueue *s, uintptr_t item, bint attached) noexcept nogil:
    """Put under both locks, and list the sub-queue if that is still to be done."""
    cdef wait_node *to_post = NULL
    lock_take(q, attached)
    mt_point()
    lock_put(q, s, attached)
    r = tail_put(q, s, item)
    if r == MT_OK:
        head_list_after_put(q, s, &to_post)
    more_waiting = tail_putters_wait(s)
    unlock_put(q, s)
    unlock_take(q)
    if unlikely(to_post != NULL):
        post(to_post)
    if unlikely(more_waiting) and r == MT_OK:
        forward_free_slot(s, attached)
    return r


cdef inline int put_run_once(queue *q, subqueue *s, const uintptr_t *items, const int64_t *sizes, int64_t n, bint front,
                             bint count_refs, int64_t *done, bint attached) noexcept nogil:
    """put_run_unposted(), with its wake-ups."""
    cdef wait_node *to_post = NULL
    cdef bint forward
    cdef int r = put_run_unposted(q, s, items, sizes, n, front, count_refs, done, attached, &to_post, &forward)
    if to_post != NULL:
        post(to_post)
    if forward:
        forward_free_slot(s, attached)
    return r


cdef inline int put_run_unposted(queue *q, subqueue *s, const uintptr_t *items, const int64_t *sizes, int64_t n,
                                 bint front, bint count_refs, int64_t *done, bint attached, wait_node **to_post,
                                 bint *forward) noexcept nogil:
    """tail_put_run(), or front: head_put_front() of the one item, under the locks that it needs. The caller posts
    *to_post and then, if *forward is set, calls forward_free_slot()."""
    cdef bint both = front or must_list(s)
    if not both:
        lock_put(q, s, attached)
        both = must_list(s)
        if both:
            unlock_put(q, s)
    if both:
        lock_take(q, attached)
        lock_put(q, s, attached)
    if front:
        r = head_put_front(q, s, items[0], sizes)
        done[0] = r == MT_OK
    else:
        r = tail_put_run(q, s, items, sizes, n, count_refs, done)
    if both and done[0]:
        head_list_after_put(q, s, to_post)
    forward[0] = tail_putters_wait(s) and done[0] != 0
    unlock_put(q, s)
    if both:
        unlock_take(q)
    return r


# ------------------------------------------------------------------------------------------------------- puts that wait
cdef inline int put_until(queue *q, subqueue *s, uintptr_t item, const int64_t *size, bint front, int64_t deadline,
                          bint attached) noexcept nogil:
    """Put, waiting for a free slot. size: NULL unless sized. MT_BADARG: an item of that size never fits. The caller
    adds a reference to the item before, and drops it unless the result is MT_OK."""
    cdef int64_t count = 0
    if likely(size == NULL and not front) and likely(put_once(q, s, item, attached) == MT_OK):
        return MT_OK
    return put_run_until(q, s, &item, size, 1, front, False, deadline, &count, attached)


cdef inline int put_run_until(queue *q, subqueue *s, const uintptr_t *items, const int64_t *sizes, int64_t n,
                              bint front, bint count_refs, int64_t deadline, int64_t *count,
                              bint attached) noexcept nogil:
    """Put the items from number *count on, each time as many as fit; *count is how many are in. sizes: NULL unless
    sized. front: at the front, one item. count_refs: add a reference to each item that is put."""
    cdef wait_point p
    cdef int64_t done = 0
    cdef int r
    free_slot_point(&p, s, attached)
    while count[0] < n:
        r = put_run_once(q, s, items + count[0], sizes + count[0] if sizes != NULL else NULL, n - count[0], front,
                         count_refs, &done, attached)
        count[0] += done
        if unlikely(r != MT_OK):
            if sizes != NULL:
                free_size_point(&p, s, sizes[count[0]], attached)
            if not again(&p, 1, &r, deadline):
                return r
    return MT_OK
