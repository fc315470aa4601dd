# The linked nodes of a sub-queue: an unrolled list, several items to a chunk. Private; _mq.pxd builds the queue on it.
#
#     head                                    tail
#      |                                       |
#      v                                       v
#   [ . . x x x x ]--next-->[ x x 0 x x x ]-->[ x x x _ _ _ ]      . taken   0 tombstone (discarded)   _ not yet put
#         ^head_idx                                  ^tail_idx
#
# Source: the linked nodes of the LinkedBlockingMultiQueue (after Doug Lea's LinkedBlockingQueue), unrolled so that an
# item costs 8 bytes and about one cache-line transfer is paid per 8 items.
#
# Positions are sequence numbers: slot i of a chunk is position base + i. They are signed, because put_front inserts
# before the smallest.
#
# A chunk that is used up, cleared or has only tombstones leaves the list and is freed. Iterators find their chunk by
# position (_mq_iterate.pxd).
#
# Invariants
#   C1  A putter that appends writes `next` and the slots under the put lock. All else is written under the take lock,
#       or before the chunk is linked.
#   C2  ntombstones counts the set tombstone bits.
#   C3  A chunk leaves the list under the take lock, and under the put lock too unless a later chunk is linked. Who
#       takes it out frees it. Nobody keeps the address of a chunk across two holds of the take lock, but iterators,
#       which use it only if `chunks_dropped` is unchanged (_mq.pxd).
from libc.stdint cimport int64_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from manytail._c cimport mt_atomic_uptr, mt_load_acquire_uptr, mt_store_relaxed_uptr, mt_store_release_uptr

cdef enum:
    # Size classes 0..4, of 128, 256, 512, 2,048 and 8,192 bytes: small ones for sub-queues that hold little.
    SPARE_CLASS = 2             # the class of steady short traffic: one free chunk of it is kept for reuse
    LARGEST_CLASS = 4
    SIZED_CLASS = 8             # a flag added to a class: the chunk has `sizes`. It is never kept as the spare

ctypedef struct chunk:
    mt_atomic_uptr next
    int64_t base                # position of slot 0
    uint32_t cap                # slots
    uint32_t ntombstones
    uint32_t size_class
    # After it in memory: tombstone bits (one word per 64 slots); items; with selection "oldest" the put time of each
    # item; with SIZED_CLASS the size of each item.


cdef inline uint32_t chunk_cap(uint32_t size_class) noexcept nogil:
    size_class &= SIZED_CLASS - 1
    if size_class < SPARE_CLASS:
        return 27 if size_class else 11
    if size_class == SPARE_CLASS:
        return 59
    return 248 if size_class < LARGEST_CLASS else 1004


cdef inline uint32_t tombstone_words(uint32_t cap) noexcept nogil:
    return (cap + 63) // 64


cdef inline uint64_t *chunk_tombstones(chunk *c) noexcept nogil:
    return <uint64_t *>(c + 1)


cdef inline uintptr_t *chunk_items(chunk *c) noexcept nogil:
    return <uintptr_t *>(chunk_tombstones(c) + tombstone_words(c.cap))


cdef inline int64_t *chunk_timestamps(chunk *c) noexcept nogil:
    return <int64_t *>(chunk_items(c) + c.cap)


cdef inline int64_t *chunk_sizes(chunk *c, bint timestamped) noexcept nogil:
    """The sizes of a chunk with SIZED_CLASS. `timestamped`: it has put times."""
    return <int64_t *>(chunk_items(c) + <size_t>c.cap * (2 if timestamped else 1))


cdef inline chunk *chunk_new(uint32_t size_class, bint timestamped, int64_t base) noexcept nogil:
    """NULL: no memory."""
    cdef uint32_t cap = chunk_cap(size_class)
    cdef size_t arrays = <size_t>1 + (timestamped != 0) + (size_class >= SIZED_CLASS)
    cdef chunk *c = <chunk *>malloc(sizeof(chunk) + (tombstone_words(cap) + cap * arrays) * 8)
    if c == NULL:
        return NULL
    # relaxed because: not linked yet
    mt_store_relaxed_uptr(&c.next, 0)
    c.base = base
    c.cap = cap
    c.ntombstones = 0
    c.size_class = size_class
    memset(chunk_tombstones(c), 0, tombstone_words(cap) * 8)
    return c


cdef inline void chunk_recycle(chunk *c, int64_t base) noexcept nogil:
    """Reset an empty chunk, to be linked again."""
    # relaxed because: not linked yet
    mt_store_relaxed_uptr(&c.next, 0)
    c.base = base
    if c.ntombstones:
        memset(chunk_tombstones(c), 0, tombstone_words(c.cap) * 8)
        c.ntombstones = 0


cdef inline bint is_tombstone(chunk *c, uint32_t i) noexcept nogil:
    return (chunk_tombstones(c)[i >> 6] >> (i & 63)) & 1


cdef inline void set_tombstone(chunk *c, uint32_t i) noexcept nogil:
    chunk_tombstones(c)[i >> 6] |= <uint64_t>1 << (i & 63)
    c.ntombstones += 1


cdef inline void clear_tombstone(chunk *c, uint32_t i) noexcept nogil:
    """For put_front, which uses a slot before the head again."""
    if is_tombstone(c, i):
        chunk_tombstones(c)[i >> 6] &= ~(<uint64_t>1 << (i & 63))
        c.ntombstones -= 1


cdef inline chunk *chunk_next(chunk *c) noexcept nogil:
    # pairs with: mt_store_release in chunk_link
    return <chunk *>mt_load_acquire_uptr(&c.next)


cdef inline void chunk_link(chunk *c, chunk *following) noexcept nogil:
    # pairs with: mt_load_acquire in chunk_next
    mt_store_release_uptr(&c.next, <uintptr_t>following)


cdef inline void chunk_free(chunk *c) noexcept nogil:
    free(c)
