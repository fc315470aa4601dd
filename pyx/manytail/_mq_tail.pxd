# The tail of a sub-queue (_mq.pxd): its chunks, its free slots, and appending items. Private.
#
# Source: the tail of Doug Lea's two-lock queue, with chunks for nodes. Chunks grow with what is inside. One unused
# chunk is kept for the next sub-queue that needs one (`spare`).
#
# Invariants
#   T1  An item is written into its slot before tail_seq is published. Slots from tail_idx on belong to the putter.
#   T2  tail_seq - head_seq_cached >= the number of items inside, because head_seq only grows, except for puts at the
#       front, which write the copy too. So a put that finds a free slot by the copy has one.
from libc.string cimport memcpy

from manytail._mq_sizes cimport *


# --------------------------------------------------------------------------------------------------------------- chunks
cdef inline void drop_chunk(queue *q, chunk *c) noexcept nogil:
    """Free a chunk, or keep it as the spare."""
    cdef uintptr_t old = 0
    if c.size_class == SPARE_CLASS:
        # pairs with: mt_xchg_acq_rel in new_chunk
        old = mt_xchg_acq_rel_uptr(&q.spare, <uintptr_t>c)
        c = <chunk *>old
    if c != NULL:
        chunk_free(c)


cdef inline chunk *new_chunk(queue *q, uint32_t size_class, int64_t base) noexcept nogil:
    cdef chunk *c = NULL
    if size_class == SPARE_CLASS:      # not with SIZED_CLASS added
        # pairs with: mt_xchg_acq_rel in drop_chunk
        c = <chunk *>mt_xchg_acq_rel_uptr(&q.spare, 0)
    if c == NULL:
        return chunk_new(size_class, q.selection == MT_OLDEST, base)
    chunk_recycle(c, base)
    return c


cdef inline uint32_t next_size_class(subqueue *s, int64_t tail_seq, int64_t n) noexcept nogil:
    """Chunks grow with the number of items inside: a short sub-queue stays small, a long one needs few allocations."""
    cdef int64_t inside = tail_seq - s.head_seq_cached + n
    if inside > 512:                # perhaps only because the copy is old: puts without a maxsize do not read head_seq
        # pairs with: mt_store_release in head_popped; mt_xchg_seq_cst in head_advance
        s.head_seq_cached = mt_load_seq_cst_i64(&s.head_seq)
        inside = tail_seq - s.head_seq_cached + n
    if inside > 4096:
        return 4
    if inside > 512:
        return 3
    if s.tail == NULL:
        return 0 if n <= 11 else 1 if n <= 27 else 2
    return s.size_class + 1 if s.size_class < SPARE_CLASS else SPARE_CLASS


cdef inline bint tail_grow(queue *q, subqueue *s, int64_t tail_seq, int64_t n) noexcept nogil:
    """Append an empty chunk; n: items that are about to be put. False: no memory, nothing changed."""
    cdef uint32_t size_class = next_size_class(s, tail_seq, n)
    cdef chunk *c = new_chunk(q, size_class + s.sized * SIZED_CLASS, tail_seq)
    if c == NULL:
        return False
    if s.tail == NULL:
        s.head = c                  # getters read head only after tail_seq, which is published later
        s.head_idx = 0
    else:
        chunk_link(s.tail, c)
    s.tail = c
    s.tail_idx = 0
    tail_claim_lines(s, 8)
    tail_claim_lines(s, AHEAD)
    s.size_class = size_class
    return True


# ----------------------------------------------------------------------------------------------------------- free slots
cdef inline int64_t tail_free_slots(subqueue *s, int64_t tail_seq) noexcept nogil:
    """How many more items fit. Reads the getters' cache line only if the copy of head_seq says that none does."""
    # relaxed because: maxsize is written under the put lock
    cdef int64_t maxsize = mt_load_relaxed_i64(&s.maxsize)
    if maxsize <= 0:
        return INT64_MAX
    if tail_seq - s.head_seq_cached >= maxsize:
        # pairs with: mt_store_release in head_popped; mt_xchg_seq_cst in head_advance
        s.head_seq_cached = mt_load_seq_cst_i64(&s.head_seq)
    return maxsize - (tail_seq - s.head_seq_cached)


cdef enum:
    AHEAD = 16      # slots: two cache lines


cdef inline void tail_claim_lines(subqueue *s, uint32_t slot) noexcept nogil:
    """Prefetch a cache line of the tail chunk for writing, once per line of eight slots: a getter on another core may
    have read that line last, and fetching it takes longer than eight puts."""
    if not s.gil_locked and slot % 8 == 0 and slot < s.tail.cap:
        mt_prefetch_write(chunk_items(s.tail) + slot)


# --------------------------------------------------------------------------------------------------------------- append
cdef inline int tail_put(queue *q, subqueue *s, uintptr_t item) noexcept nogil:
    # relaxed because: tail_seq is written under the put lock
    cdef int64_t tail_seq = mt_load_relaxed_i64(&s.tail_seq)
    if unlikely(s.closed_flags != 0):
        return MT_SHUTDOWN
    if unlikely(tail_free_slots(s, tail_seq) <= 0):
        return MT_FULL
    c = s.tail
    if unlikely(c == NULL or s.tail_idx == c.cap):
        if not tail_grow(q, s, tail_seq, 1):
            return MT_NOMEM
        c = s.tail
    chunk_items(c)[s.tail_idx] = item
    tail_claim_lines(s, s.tail_idx + AHEAD)
    if unlikely(s.timestamped):
        # relaxed because: only the order of the numbers counts
        chunk_timestamps(c)[s.tail_idx] = mt_fetch_add_relaxed_i64(&q.clock, 1)
    s.tail_idx += 1
    mt_point()
    # pairs with: mt_load_acquire in head_count
    mt_store_release_i64(&s.tail_seq, tail_seq + 1)
    return MT_OK


cdef inline int tail_put_run(queue *q, subqueue *s, const uintptr_t *items, const int64_t *sizes, int64_t n,
                             bint count_refs, int64_t *done) noexcept nogil:
    """Append up to n items, which getters see at once. MT_OK: all of them. Else why not; *done were appended. sizes:
    NULL unless sized. count_refs: add a reference to each."""
    cdef int64_t tail_seq = mt_load_relaxed_i64(&s.tail_seq)   # relaxed because: tail_seq is written under the put lock
    cdef int64_t fit, put = 0, k, i
    cdef int r = MT_OK
    done[0] = 0
    if s.closed_flags != 0:
        return MT_SHUTDOWN
    if sizes != NULL:
        fit = tail_fitting(s, sizes, n, &r)
    else:
        fit = tail_free_slots(s, tail_seq)
        r = MT_FULL if fit < n else MT_OK
    if fit < n:
        n = fit if fit > 0 else 0
    while put < n:
        c = s.tail
        if c == NULL or s.tail_idx == c.cap:
            if not tail_grow(q, s, tail_seq + put, n - put):
                r = MT_NOMEM
                break
            c = s.tail
        k = min(n - put, <int64_t>(c.cap - s.tail_idx))
        memcpy(chunk_items(c) + s.tail_idx, items + put, k * sizeof(uintptr_t))
        if s.timestamped:
            for i in range(k):
                # relaxed because: only the order of the numbers counts
                chunk_timestamps(c)[s.tail_idx + i] = mt_fetch_add_relaxed_i64(&q.clock, 1)
        if sizes != NULL:
            tail_note_sizes(s, sizes + put, k)
        s.tail_idx += <uint32_t>k
        put += k
    if count_refs:
        for i in range(put):
            keep(items[i])
    # pairs with: mt_load_acquire in head_count
    mt_store_release_i64(&s.tail_seq, tail_seq + put)
    done[0] = put
    return r


# ------------------------------------------------------------------------------------------------------ waiting putters
cdef inline bint tail_putters_wait(subqueue *s) noexcept nogil:
    """Whether putters wait for a free slot: a put that succeeds then notifies the next one if there is another slot."""
    # relaxed because: maxsize is written under the put lock. Read first: without a limit not_full's line is not read
    return mt_load_relaxed_i64(&s.maxsize) > 0 and s.not_full.n != 0


cdef inline void tail_notify(subqueue *s, wait_node **to_post) noexcept nogil:
    if unlikely(s.sized):
        notify_fitting(&s.not_full, tail_free_size(s), to_post)
    else:
        notify(&s.not_full, to_post)
    # pairs with: mt_load_seq_cst in head_advance
    mt_xchg_seq_cst_u32(&s.not_full_waiting, <uint32_t>s.not_full.n)


cdef inline void tail_notify_all(subqueue *s, wait_node **to_post) noexcept nogil:
    notify_all(&s.not_full, to_post)
    mt_xchg_seq_cst_u32(&s.not_full_waiting, 0)      # pairs with: mt_load_seq_cst in head_advance
