# Seeing the items of a sub-queue (_mq.pxd) without taking them: iterators, and the garbage collector. Private.
#
# An iterator copies up to SNAPSHOT items in one hold of the take lock, and gives them out without it. It keeps its
# chunk pinned, so that the memory stays; if the chunk was retired meanwhile, it searches its position again from the
# head.
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
    chunk *chunk             # pinned, or NULL before the first step and after the last
    int64_t position            # of the next item to see; only grows
    uint32_t n                  # items in the snapshot
    uintptr_t items[SNAPSHOT]
    uint32_t slots[SNAPSHOT]    # their slots in `chunk`


cdef inline void position_open(iterator_position *k) noexcept nogil:
    k.chunk = NULL
    k.position = INT64_MIN
    k.n = 0


cdef inline chunk *head_find(subqueue *s, iterator_position *k) noexcept nogil:
    """The chunk of the iterator's position, which is moved to an item's or past the end. NULL: the end."""
    cdef chunk *c = k.chunk
    if head_count(s) == 0:
        return NULL
    if c == NULL or chunk_is_retired(c):
        c = s.head              # its chunk was retired: search again from the head
    if c == s.head:
        k.position = max(k.position, c.base + s.head_idx)
    while k.position >= c.base + c.cap and k.position < s.tail_seq_cached:
        c = chunk_next(c)
        k.position = max(k.position, c.base)
    return c if k.position < s.tail_seq_cached else NULL


cdef inline void head_copy(subqueue *s, iterator_position *k, bint count_refs) noexcept nogil:
    """Copy items of the iterator's chunk, from its position on, as many as fit into the snapshot."""
    cdef chunk *c = k.chunk
    cdef int64_t end = min(c.base + c.cap, s.tail_seq_cached)
    while k.position < end and k.n < SNAPSHOT:
        i = <uint32_t>(k.position - c.base)
        k.position += 1
        if not is_tombstone(c, i):
            k.items[k.n] = chunk_items(c)[i]
            k.slots[k.n] = i
            if count_refs:
                keep(k.items[k.n])
            k.n += 1


cdef inline void position_step(queue *q, subqueue *s, iterator_position *k, bint count_refs) noexcept nogil:
    """Take the next snapshot; n == 0: the end."""
    cdef chunk *before = k.chunk
    k.n = 0
    lock_take(q, True)
    while k.n == 0:
        k.chunk = head_find(s, k)
        if k.chunk == NULL:
            break
        head_copy(s, k, count_refs)
    if k.chunk != NULL:
        chunk_pin(k.chunk)
    cdef bint unused = before != NULL and chunk_unpin(before)
    unlock_take(q)
    if unused:
        drop_chunk(q, before)


cdef inline void position_close(queue *q, iterator_position *k) noexcept nogil:
    cdef chunk *c = k.chunk
    if c == NULL:
        return
    k.chunk = NULL
    lock_take(q, True)
    unused = chunk_unpin(c)
    unlock_take(q)
    if unused:
        drop_chunk(q, c)


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
