# The sizes of the items of a sub-queue (_mq.pxd). Private.
#
# A sized sub-queue keeps a size for each item, in its chunk, and maxsize limits their sum. Puts go through
# put_run_once() with sizes. Two sums stand for one: what was put, and what left. Each has one side as its writer, as
# `tail_seq` and `head_seq` have.
#
# Invariants
#   S1  size_put - size_removed, modulo 2**64, is the sum of the sizes inside. Under both locks it is exact; under the
#       put lock alone it is at least the sum.
#   S2  The sizes of items that leave are subtracted before head_seq is advanced.
from manytail._mq cimport *


cdef inline int64_t tail_size(subqueue *s) noexcept nogil:
    """The sum of the sizes inside, at most 2**63 - 1."""
    # pairs with: mt_xchg_seq_cst in head_subtract_sizes
    cdef uint64_t sum = s.size_put - <uint64_t>mt_load_seq_cst_i64(&s.size_removed)
    return <int64_t>sum if sum <= <uint64_t>INT64_MAX else INT64_MAX


cdef inline int64_t tail_free_size(subqueue *s) noexcept nogil:
    """How much more fits; negative if maxsize was lowered."""
    # relaxed because: maxsize is written under the put lock
    cdef int64_t maxsize = mt_load_relaxed_i64(&s.maxsize)
    return (maxsize if maxsize > 0 else INT64_MAX) - tail_size(s)


cdef inline int64_t tail_fitting(subqueue *s, const int64_t *sizes, int64_t n, int *why) noexcept nogil:
    """How many of the items, in order, fit. If not all: *why is MT_FULL, or MT_BADARG if the next one never fits."""
    cdef int64_t maxsize = mt_load_relaxed_i64(&s.maxsize)      # relaxed because: as in tail_free_size
    cdef int64_t left = tail_free_size(s), i
    for i in range(n):
        if sizes[i] > left:
            why[0] = MT_BADARG if maxsize <= 0 or sizes[i] > maxsize else MT_FULL
            return i
        left -= sizes[i]
    return n


cdef inline void tail_note_sizes(subqueue *s, const int64_t *sizes, int64_t n) noexcept nogil:
    """Store the sizes of the n items that are about to be appended."""
    cdef int64_t *slots = chunk_sizes(s.tail, s.timestamped) + s.tail_idx
    for i in range(n):
        slots[i] = sizes[i]
        s.size_put += <uint64_t>sizes[i]


cdef inline void head_subtract_sizes(subqueue *s, chunk *c, uint32_t first, int64_t n) noexcept nogil:
    """The n items from slot `first` of c on leave."""
    cdef int64_t *sizes = chunk_sizes(c, s.timestamped) + first
    cdef uint64_t sum = 0
    for i in range(n):
        sum += <uint64_t>sizes[i]
    # relaxed because: written under the take lock, which is held
    sum += <uint64_t>mt_load_relaxed_i64(&s.size_removed)
    # pairs with: mt_load_seq_cst in tail_size, after mt_xchg_seq_cst of not_full_waiting in tail_waiters_changed
    mt_xchg_seq_cst_i64(&s.size_removed, <int64_t>sum)
