# Seeing the items of a sub-queue (_mq.pxd) without taking them: iterators, and the garbage collector. Private.
#
# An iterator copies up to SNAPSHOT items under the take lock, and gives them out without it. Meanwhile it remembers its
# chunk. If a chunk has left the list by its next step, it searches its position again from the head.
#
# Invariant
#   K1  `position` only grows, so an iterator sees no item twice. It sees each item that is inside from its first step
#       to its last.
from cpython.ref cimport PyObject
from libc.stdint cimport INT64_MIN

from manytail._mq_ready cimport *


# ------------------------------------------------------------------------------------------------------------ iterators
cdef enum:
    SNAPSHOT = 64       # items that an iterator copies at a time


ctypedef struct iterator_position:
    chunk *chunk                # NULL before the first step and after the last
    int64_t chunks_dropped      # of the sub-queue; `chunk` is valid for that
    int64_t position            # of the next item to see; only grows
    uint32_t n                  # items in the snapshot
    uintptr_t items[SNAPSHOT]
    int64_t positions[SNAPSHOT]


cdef inline void position_open(iterator_position *k) noexcept nogil:
    k.chunk = NULL
    k.position = INT64_MIN
    k.n = 0


cdef inline chunk *head_find(subqueue *s, chunk *c, int64_t *position) noexcept nogil:
    """The chunk of that position, from chunk c of the list (NULL: the first) on. A position without a slot between head
    and tail moves to the next one. NULL: there is none."""
    if head_count(s) == 0:
        return NULL
    if c == NULL:
        c = s.head
    if c == s.head:
        position[0] = max(position[0], c.base + s.head_idx)
    while position[0] >= c.base + c.cap and position[0] < s.tail_seq_cached:
        c = chunk_next(c)
        position[0] = max(position[0], c.base)
    return c if position[0] < s.tail_seq_cached else NULL


cdef inline void head_copy(subqueue *s, iterator_position *k, bint count_refs) noexcept nogil:
    """Copy items of the iterator's chunk, from its position on, as many as fit into the snapshot."""
    cdef chunk *c = k.chunk
    cdef int64_t end = min(c.base + c.cap, s.tail_seq_cached)
    while k.position < end and k.n < SNAPSHOT:
        i = <uint32_t>(k.position - c.base)
        if not is_tombstone(c, i):
            k.items[k.n] = chunk_items(c)[i]
            k.positions[k.n] = k.position
            if count_refs:
                keep(k.items[k.n])
            k.n += 1
        k.position += 1


cdef inline void position_step(queue *q, subqueue *s, iterator_position *k, bint count_refs) noexcept nogil:
    """Take the next snapshot; n == 0: the end."""
    k.n = 0
    lock_take(q, True)
    if k.chunks_dropped != s.chunks_dropped:
        k.chunk = NULL
    k.chunks_dropped = s.chunks_dropped
    while k.n == 0:
        k.chunk = head_find(s, k.chunk, &k.position)
        if k.chunk == NULL:
            break
        head_copy(s, k, count_refs)
    unlock_take(q)


# --------------------------------------------------------------------------------------------------- garbage collection
# A traverse runs while every attached thread is stopped. Items of Python queues move only while attached, so they do
# not change under it.
cdef inline int visit_items(subqueue *s, int (*visit)(PyObject *, void *) noexcept, void *arg) noexcept:
    cdef chunk *c = s.head
    cdef uint32_t i = s.head_idx
    cdef int r = 0
    # relaxed because: the world is stopped (free-threaded build) or the GIL is held
    if mt_load_relaxed_i64(&s.tail_seq) == mt_load_relaxed_i64(&s.head_seq):
        return 0
    while c != NULL and r == 0:
        while i < (s.tail_idx if c == s.tail else c.cap) and r == 0:
            if not is_tombstone(c, i):
                r = visit(<PyObject *>chunk_items(c)[i], arg)
            i += 1
        i = 0
        c = chunk_next(c) if c != s.tail else NULL
    return r
