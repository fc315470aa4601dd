# Taking items out of a sub-queue (_mq.pxd) without a get: clear and discard. Private.
#
# clear cuts off all chunks under both locks, and drops their items without a lock. discard leaves a tombstone in the
# slot of an item; getters and iterators skip it.
#
# Invariants
#   X1  The chunks of a chain, and their items, belong to the caller of clear alone.
#   X2  ntombstones counts the tombstones between head and tail.
from manytail._mq_iterate cimport *
from manytail._mq_tasks cimport *

# The caller's function for items that are taken out.
ctypedef void (*item_drop)(uintptr_t item, void *arg) noexcept nogil


# ---------------------------------------------------------------------------------------------------------------- clear
cdef inline int64_t head_cut(queue *q, subqueue *s, chunk **chain, uint32_t *first, uint32_t *last,
                             wait_node **to_post, bint attached) noexcept nogil:
    """Empty the sub-queue. *chain: its chunks; the items are in the slots from *first (of the first chunk) up to *last
    (of the last one). Returns the number of items: one that is put after head_count() is cut too."""
    cdef int64_t out = mt_load_relaxed_i64(&s.head_seq)     # relaxed because: written under the take lock
    cdef bint listed = s.ready.listed
    chain[0] = NULL
    if head_count(s) == 0:
        return 0
    if listed:
        ready_remove(&q.ready, &s.ready)
        s.quantum_left = 0
    lock_put(q, s, attached)
    chain[0] = s.head
    first[0] = s.head_idx
    last[0] = s.tail_idx
    s.chunks_dropped += 1
    s.head = s.tail = NULL
    s.head_idx = 0
    s.tail_idx = 0
    s.ntombstones = 0
    s.has_tombstones = 0
    if s.sized:
        mt_xchg_seq_cst_i64(&s.size_removed, <int64_t>s.size_put)      # pairs with: mt_load_seq_cst in tail_size
    s.head_seq_cached = mt_load_relaxed_i64(&s.tail_seq)   # relaxed because: both locks are held
    s.tail_seq_cached = s.head_seq_cached
    mt_store_release_i64(&s.head_seq, s.head_seq_cached)        # pairs with: mt_load_seq_cst in tail_free_slots
    if listed:
        set_must_list(s, True)
    tail_notify_all(s, to_post)
    unlock_put(q, s)
    return s.tail_seq_cached - out


cdef inline int64_t clear_subqueue(queue *q, subqueue *s, chunk **chain, uint32_t *first, uint32_t *last,
                                   bint attached) noexcept nogil:
    """Empty the sub-queue atomically; *chain, *first and *last as in head_cut(). The caller frees the chain without
    locks. Returns the number of items."""
    cdef wait_node *to_post = NULL
    lock_take(q, attached)
    n = head_cut(q, s, chain, first, last, &to_post, attached)
    if n and s.attached:
        head_count_as_done(q, n)
        head_wake_joiners(q, &to_post)
    unlock_take_and_post(q, to_post)
    return n


# -------------------------------------------------------------------------------------------------------------- discard
cdef inline bint discard_at(queue *q, subqueue *s, int64_t position, uintptr_t item, bint attached) noexcept nogil:
    """Remove the item at that position, if it is still there."""
    cdef wait_node *to_post = NULL
    lock_take(q, attached)
    cdef bint there = head_discard(q, s, position, item, attached, &to_post)
    if there and s.attached:
        head_count_as_done(q, 1)
        head_wake_joiners(q, &to_post)
    unlock_take_and_post(q, to_post)
    return there


cdef inline bint head_discard(queue *q, subqueue *s, int64_t position, uintptr_t item, bint attached,
                              wait_node **to_post) noexcept nogil:
    """discard_at(), without its count of tasks."""
    cdef int64_t found = position
    cdef chunk *c = head_find(s, NULL, &found)
    if c == NULL or found != position:
        return False
    i = <uint32_t>(position - c.base)
    if is_tombstone(c, i) or chunk_items(c)[i] != item:
        return False
    set_tombstone(c, i)
    s.ntombstones += 1
    s.has_tombstones = 1
    if s.sized:
        head_subtract_sizes(s, c, i, 1)
    # relaxed because: written under the take lock
    head_advance(q, s, mt_load_relaxed_i64(&s.head_seq) + 1, attached, to_post)
    head_drop_dead_chunk(q, s, c)
    if s.ready.listed:
        if head_empty(s):
            head_unlist(q, s)
        else:
            head_rekey(q, s)
    return True


cdef inline void head_drop_dead_chunk(queue *q, subqueue *s, chunk *c) noexcept nogil:
    """Unlink a chunk in the middle of the list whose slots are all tombstones, so that discarding frees memory even if
    nothing is got."""
    cdef chunk *before = s.head
    head_count(s)                   # refreshes tail_seq_cached
    if c.ntombstones != c.cap or c == s.head or c.base + c.cap >= s.tail_seq_cached:
        return                      # still in use, or it may be the tail, whose `next` a putter is about to write
    while chunk_next(before) != c:
        before = chunk_next(before)
    chunk_link(before, chunk_next(c))
    s.ntombstones -= c.ntombstones
    s.has_tombstones = s.ntombstones > 0
    s.chunks_dropped += 1
    drop_chunk(q, c)


# ------------------------------------------------------------------------------------------ dropping what was taken out
cdef inline void drop_chain(queue *q, chunk *chain, uint32_t first, uint32_t last, item_drop drop,
                            void *arg) noexcept nogil:
    """Call `drop` for each item of a chain of head_cut(), and free the chunks. No lock is held."""
    cdef uint32_t i, end
    while chain != NULL:
        following = chunk_next(chain)
        end = chain.cap if following != NULL else last
        for i in range(first, end):
            if drop != NULL and not is_tombstone(chain, i):
                drop(chunk_items(chain)[i], arg)
        drop_chunk(q, chain)
        chain = following
        first = 0


cdef inline void drop_object(uintptr_t item, void *unused) noexcept nogil:
    """The item_drop of a queue of Python objects; the caller is attached."""
    drop(item)


cdef inline int64_t drop_items(queue *q, subqueue *s, item_drop drop, void *arg, bint attached) noexcept nogil:
    """Empty the sub-queue atomically, then drop the items with no lock held. Returns how many there were."""
    cdef chunk *chain
    cdef uint32_t first = 0, last = 0
    cdef int64_t n = clear_subqueue(q, s, &chain, &first, &last, attached)
    drop_chain(q, chain, first, last, drop, arg)
    return n
