# An indexed binary min-heap: pointers ordered by a 64-bit key. The heap writes each member's index to a location that
# the member may provide (`place`), so that it can be removed or given another key in O(log n) without a search.
# Private.
#
# The ready index of a MultiQueue (_ready.pxd), the timers and the redeliveries of an entry queue (_entry.pxd) are such
# heaps. All zeros is an empty heap. There is no lock here: the caller's lock guards it. Only heap_reserve allocates, so
# a caller that reserves first cannot fail later.
#
# Invariants
#   H1  No key is smaller than that of its parent, items[(i - 1) / 2].
#   H2  *items[i].place is i + 1, unless the pointer is NULL. It is 0 when the member is not in the heap.
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport realloc

from manytail._c cimport likely

ctypedef struct heap_item:
    uint64_t key
    void *member
    uint32_t *place             # where the member keeps its index + 1, or NULL

ctypedef struct heap:
    heap_item *items
    uint32_t n
    uint32_t capacity


cdef inline uint64_t heap_key(int64_t number) noexcept nogil:
    """Map signed numbers to keys of the same order."""
    return <uint64_t>number ^ (<uint64_t>1 << 63)


cdef inline bint heap_reserve(heap *h, uint32_t n) noexcept nogil:
    """Allocate slots for n members in all. False: no memory, nothing changed."""
    cdef uint64_t capacity = h.capacity if h.capacity else 4
    if likely(n <= h.capacity):
        return True
    while capacity < n:
        capacity *= 2
    if capacity > <uint32_t>-1:
        return False
    items = <heap_item *>realloc(h.items, <size_t>capacity * sizeof(heap_item))
    if items == NULL:
        return False
    h.items = items
    h.capacity = <uint32_t>capacity
    return True


cdef inline void heap_set(heap *h, uint32_t i, heap_item x) noexcept nogil:
    h.items[i] = x
    if x.place != NULL:
        x.place[0] = i + 1


cdef inline void heap_sift(heap *h, uint32_t i, heap_item x) noexcept nogil:
    """Slot i is free: move it up or down to where x belongs, and store x there."""
    while i > 0 and x.key < h.items[(i - 1) // 2].key:
        heap_set(h, i, h.items[(i - 1) // 2])
        i = (i - 1) // 2
    cdef uint32_t child = 2 * i + 1
    while child < h.n:
        if child + 1 < h.n and h.items[child + 1].key < h.items[child].key:
            child += 1
        if x.key <= h.items[child].key:
            break
        heap_set(h, i, h.items[child])
        i = child
        child = 2 * i + 1
    heap_set(h, i, x)


cdef inline void heap_add(heap *h, uint64_t key, void *member, uint32_t *place) noexcept nogil:
    """The caller has reserved a slot (heap_reserve)."""
    cdef heap_item x
    x.key = key
    x.member = member
    x.place = place
    h.n += 1
    heap_sift(h, h.n - 1, x)


cdef inline void heap_remove(heap *h, uint32_t i) noexcept nogil:
    if h.items[i].place != NULL:
        h.items[i].place[0] = 0
    h.n -= 1
    if i != h.n:
        heap_sift(h, i, h.items[h.n])


cdef inline void heap_rekey(heap *h, uint32_t i, uint64_t key) noexcept nogil:
    cdef heap_item x = h.items[i]
    x.key = key
    heap_sift(h, i, x)
