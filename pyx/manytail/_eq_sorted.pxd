# The index of a sorted queue: finds an entry's place in the list by O(log n) comparisons. Private; used by _eq.pxd and
# _orders.pyx.
#
# A two-level B+ tree: leaves of up to 256 consecutive entries of the list, and one array of references to the leaves
# with the first order and key of each. `order` is a number that grows along the list (L1 in _entry.pxd), as in the
# order-maintenance problem; a new entry gets one between its neighbours', and where there is none left the orders
# around it are renumbered.
#
# A put searches by binary search. Each comparison is user code and runs without the order lock, on a key with a
# reference of its own. The state of a search is two orders, lo and hi: the new entry belongs between the entries that
# have them. Other entries may come and go meanwhile. If one that a search has named is removed, the search names its
# neighbour instead (X3); only renumbering (`epoch`) makes it begin again. The leaf and the slot that it found are right
# only while `version` is unchanged.
#
# Everything here is called under the order lock.
#
# Invariants
#   X1  The leaves, one after the other, are the list. No leaf is empty.
#   X2  leaf_ref.order and .key are those of the leaf's first entry. None of its entries arrived before `since`.
#   X3  The orders that a search has are those of entries in the list, or 0 and LAST_ORDER, from search_begin to
#       search_end, and after that while no entry is removed. The order of a removed entry says nothing about entries
#       that are put afterwards: these may get that order, or one on either side of it.
from cpython.ref cimport PyObject
from libc.stdint cimport UINT64_MAX as LAST_ORDER
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memmove

from manytail._entry cimport *

cdef enum:
    LEAF = 256
    GAP_SHIFT = 40              # log2 of the gap between an entry that is put at either end and its neighbour
    SPARE_SHIFT = 16            # log2 of the smallest gap that renumbering leaves between neighbours

ctypedef struct leaf:
    uint32_t n
    entry *at[256]

ctypedef struct leaf_ref:
    leaf *it
    uint64_t order
    PyObject *key               # borrowed
    int64_t since

ctypedef struct search_range

ctypedef struct sorted_index:
    leaf_ref *leaves
    int64_t n
    int64_t capacity
    uint64_t version            # changes with every insertion and removal
    uint64_t removals
    uint64_t epoch              # changes when entries are renumbered
    search_range *searches      # those that go on

ctypedef struct search_range:
    uint64_t lo                 # the place is after the entry of this order (0: none),
    uint64_t hi                 # and before the entry of this one (LAST_ORDER: none)
    uint64_t epoch              # the index's; lo and hi are valid for that
    uint64_t version            # the index's; the bounds below are valid for that
    int64_t from_leaf           # the entries between lo and hi are in the leaves [from_leaf, to_leaf)
    int64_t to_leaf
    int64_t from_slot           # if that is one leaf: in its slots [from_slot, to_slot)
    int64_t to_slot             # < 0: the end of the leaf
    uint64_t below              # the entry that was compared last; if it was removed: the one before it,
    uint64_t above              # and the one after it
    uint64_t removals           # the index's at search_end
    search_range *next


cdef inline PyObject *key_of(entry *e) noexcept nogil:
    return <PyObject *>key_slot(e)[0]


cdef inline int64_t leaf_of(sorted_index *x, uint64_t order) noexcept nogil:
    """The last leaf whose first entry has at most that order; -1: none."""
    cdef int64_t a = 0, b = x.n, m
    while a < b:
        m = (a + b) >> 1
        if x.leaves[m].order <= order:
            a = m + 1
        else:
            b = m
    return a - 1


cdef inline int64_t slots_up_to(leaf *it, uint64_t order) noexcept nogil:
    """How many entries of a leaf have at most that order."""
    cdef int64_t a = 0, b = it.n, m
    while a < b:
        m = (a + b) >> 1
        if it.at[m].order <= order:
            a = m + 1
        else:
            b = m
    return a


# --------------------------------------------------------------------------------------------------------------- search
cdef inline void search_begin(sorted_index *x, search_range *r) noexcept nogil:
    """Begin, or begin again."""
    search_end(x, r)
    r.next = x.searches
    x.searches = r
    r.epoch = x.epoch
    r.version = x.version
    r.lo, r.hi = 0, LAST_ORDER
    r.from_leaf, r.to_leaf = 0, x.n
    r.from_slot, r.to_slot = 0, -1


cdef inline void search_end(sorted_index *x, search_range *r) noexcept nogil:
    cdef search_range **link = &x.searches
    while link[0] != NULL and link[0] != r:
        link = &link[0].next
    if link[0] == r:
        link[0] = r.next
    r.removals = x.removals


cdef inline void search_again(sorted_index *x, search_range *r) noexcept nogil:
    """The index has changed: find the leaves and slots of lo and hi again."""
    r.version = x.version
    r.from_leaf = max(leaf_of(x, r.lo), 0)
    r.to_leaf = max(leaf_of(x, r.hi - 1) + 1, min(r.from_leaf + 1, x.n))
    r.from_slot, r.to_slot = 0, -1
    if r.to_leaf > r.from_leaf:
        r.from_slot = slots_up_to(x.leaves[r.from_leaf].it, r.lo)
    if r.to_leaf - r.from_leaf == 1:
        r.to_slot = slots_up_to(x.leaves[r.from_leaf].it, r.hi - 1)


cdef inline void prefetch_key(leaf *it, int64_t slot) noexcept nogil:
    if slot < it.n:
        mt_prefetch_read(key_slot(it.at[slot]))
        mt_prefetch_read(&it.at[slot].order)


cdef inline bint search_probe(sorted_index *x, search_range *r, PyObject **probe) noexcept nogil:
    """The key to compare with next; the caller gets a reference. False: the place is found, from_slot of from_leaf."""
    cdef int64_t m
    if unlikely(r.epoch != x.epoch):
        search_begin(x, r)
    if unlikely(r.version != x.version):
        search_again(x, r)
    if r.to_leaf - r.from_leaf > 1:
        m = (r.from_leaf + r.to_leaf) >> 1
        r.below = r.above = x.leaves[m].order
        probe[0] = x.leaves[m].key
    elif r.to_leaf == r.from_leaf:
        return False
    else:
        it = x.leaves[r.from_leaf].it
        if r.to_slot < 0:
            r.to_slot = it.n
        if r.from_slot >= r.to_slot:
            return False
        m = (r.from_slot + r.to_slot) >> 1
        prefetch_key(it, (r.from_slot + m) >> 1)        # one of these two is compared next
        prefetch_key(it, (m + 1 + r.to_slot) >> 1)
        r.below = r.above = it.at[m].order
        probe[0] = key_of(it.at[m])
    keep(<uintptr_t>probe[0])
    return True


cdef inline void search_narrow(sorted_index *x, search_range *r, bint less) noexcept nogil:
    """The new key is less than the probed one, so it belongs before it; or not, so it belongs after it (equal keys are
    in order of arrival)."""
    cdef int64_t m
    if unlikely(r.epoch != x.epoch):
        return
    if less:
        r.hi = r.above
    else:
        r.lo = r.below
    if unlikely(r.version != x.version):
        return
    if r.to_leaf - r.from_leaf > 1:
        m = (r.from_leaf + r.to_leaf) >> 1
        if less:
            r.to_leaf = m
        else:
            r.from_leaf = m
            r.from_slot = 1
    else:
        m = (r.from_slot + r.to_slot) >> 1
        if less:
            r.to_slot = m
        else:
            r.from_slot = m + 1


# ----------------------------------------------------------------------------------------------------------------- link
cdef inline bint search_place(sorted_index *x, entry_list *l, search_range *r) noexcept nogil:
    """Find leaf and slot again if the index has changed since the search. False: search again, because entries were
    renumbered or removed, or an entry was put between lo and hi."""
    cdef int64_t i, slot = 0
    cdef entry *following = l.first
    if r.epoch != x.epoch:
        return False
    if r.version == x.version:
        return True
    if r.removals != x.removals:
        return False
    i = leaf_of(x, r.lo)
    if i >= 0:
        slot = slots_up_to(x.leaves[i].it, r.lo)
        following = x.leaves[i].it.at[slot - 1].next
    if following != NULL and following.order < r.hi:
        return False
    r.from_leaf, r.from_slot = max(i, 0), slot
    return True


cdef inline bint index_link(sorted_index *x, entry_list *l, entry *e, search_range *r, bint *renumbered) noexcept nogil:
    """Link e, whose `seq` is set, at the place that search_place has confirmed. False: no memory, nothing changed.
    renumbered: entries were renumbered."""
    cdef uint64_t order = order_between(r.lo, r.hi)
    cdef entry *following = l.first
    cdef int64_t i = r.from_leaf
    if r.from_slot > 0:
        following = x.leaves[i].it.at[r.from_slot - 1].next
    i = index_insert(x, e, order, i, r.from_slot)
    if i < 0:
        return False
    e.order = order
    list_insert(l, e, following)
    renumbered[0] = order == 0
    if unlikely(order == 0):
        renumber(x, i)
    return True


cdef inline uint64_t order_between(uint64_t lo, uint64_t hi) noexcept nogil:
    """A number strictly between lo and hi. 0: there is none."""
    cdef uint64_t gap = <uint64_t>1 << GAP_SHIFT
    if lo == 0 and hi == LAST_ORDER:
        return <uint64_t>1 << 63
    if hi == LAST_ORDER:
        return lo + gap if lo < LAST_ORDER - gap - 1 else 0
    if lo == 0:
        return hi - gap if hi > gap + 1 else 0
    return lo + ((hi - lo) >> 1) if hi - lo > 1 else 0


cdef inline void renumber(sorted_index *x, int64_t i) noexcept nogil:
    """Renumber evenly the entries of leaf i, or of as many leaves around it as gaps of SPARE_SHIFT need. Past the last
    leaf half of the remaining numbers stays free, for appends. Searches that are going on begin again."""
    cdef int64_t n, first, last, reach = 0
    cdef uint64_t lo, hi
    while True:
        first, last = max(0, i - reach), min(x.n - 1, i + reach)
        lo = 0
        if first:
            before = x.leaves[first - 1].it
            lo = before.at[before.n - 1].order
        hi = lo + ((LAST_ORDER - lo) >> 1) if last == x.n - 1 else x.leaves[last + 1].order
        n = leaves_count(x, first, last)
        if (hi - lo) // <uint64_t>(n + 1) >= <uint64_t>1 << SPARE_SHIFT or (first == 0 and last == x.n - 1):
            break
        reach = reach * 2 + 1
    renumber_run(x.leaves[first].it.at[0], n, lo, (hi - lo) // <uint64_t>(n + 1))
    while first <= last:
        x.leaves[first].order = x.leaves[first].it.at[0].order
        first += 1
    x.epoch += 1


cdef inline int64_t leaves_count(sorted_index *x, int64_t first, int64_t last) noexcept nogil:
    cdef int64_t n = 0
    while first <= last:
        n += x.leaves[first].it.n
        first += 1
    return n


cdef inline void renumber_run(entry *e, int64_t n, uint64_t lo, uint64_t gap) noexcept nogil:
    while n > 0:
        lo += gap
        e.order = lo
        e = e.next
        n -= 1


# --------------------------------------------------------------------------------------------------------------- leaves
cdef inline int64_t index_insert(sorted_index *x, entry *e, uint64_t order, int64_t i, int64_t slot) noexcept nogil:
    """Insert e into leaf i at that slot, splitting a full leaf. Returns the leaf that e is in; -1: no memory, nothing
    changed."""
    if x.n == 0 and not index_add(x, 0, e.seq):
        return -1
    if x.leaves[i].it.n == LEAF and not index_split(x, &i, &slot, e.seq):
        return -1
    it = x.leaves[i].it
    memmove(&it.at[slot + 1], &it.at[slot], (it.n - slot) * sizeof(entry *))
    it.at[slot] = e
    it.n += 1
    if slot == 0:
        x.leaves[i].order = order
        x.leaves[i].key = key_of(e)
    x.version += 1
    return i


cdef inline bint index_split(sorted_index *x, int64_t *i, int64_t *slot, int64_t since) noexcept nogil:
    """Leaf i is full: move its last entries to a new leaf after it. i and slot are updated to the same place. False: no
    memory, nothing changed."""
    # At an end of the list keys in rising or falling order fill one leaf after the other: split at the edge, so that
    # the leaf that is left stays full.
    cdef int64_t n = 1 if slot[0] == LEAF and i[0] == x.n - 1 else LEAF - 1 if slot[0] == 0 else LEAF >> 1
    if not index_add(x, i[0] + 1, since):
        return False
    it = x.leaves[i[0]].it
    to = x.leaves[i[0] + 1].it
    to.n = <uint32_t>n
    it.n -= to.n
    memcpy(to.at, &it.at[it.n], n * sizeof(entry *))
    x.leaves[i[0] + 1].since = min(since, x.leaves[i[0]].since if n > 1 else to.at[0].seq)
    if it.n == 1:
        x.leaves[i[0]].since = it.at[0].seq     # exact, else falling keys would pass an old `since` from leaf to leaf
    leaf_ref_update(&x.leaves[i[0] + 1])
    if slot[0] > it.n:
        i[0] += 1
        slot[0] -= it.n
    return True


cdef inline void leaf_ref_update(leaf_ref *s) noexcept nogil:
    """Restore X2 after the leaf's first entry has changed."""
    s.order = s.it.at[0].order
    s.key = key_of(s.it.at[0])


cdef inline bint index_add(sorted_index *x, int64_t i, int64_t since) noexcept nogil:
    """Insert an empty leaf, number i; the caller fills it (X1, X2). False: no memory, nothing changed."""
    if x.n == x.capacity:
        longer = <leaf_ref *>realloc(x.leaves, (x.capacity * 2 + 16) * sizeof(leaf_ref))
        if longer == NULL:
            return False
        x.leaves = longer
        x.capacity = x.capacity * 2 + 16
    it = <leaf *>malloc(sizeof(leaf))
    if it == NULL:
        return False
    it.n = 0
    memmove(&x.leaves[i + 1], &x.leaves[i], (x.n - i) * sizeof(leaf_ref))
    x.leaves[i].it = it
    x.leaves[i].since = since
    x.n += 1
    return True


cdef inline void index_remove(sorted_index *x, entry *e) noexcept nogil:
    """Take a dead entry, which is still in the list, out of the index. Its key is dropped later, with its item."""
    cdef int64_t i = leaf_of(x, e.order)
    cdef leaf *it = x.leaves[i].it
    cdef int64_t slot = slots_up_to(it, e.order) - 1
    it.n -= 1
    if it.n == 0:
        memmove(&x.leaves[i], &x.leaves[i + 1], (x.n - i - 1) * sizeof(leaf_ref))
        x.n -= 1
        free(it)
    else:
        memmove(&it.at[slot], &it.at[slot + 1], (it.n - slot) * sizeof(entry *))
        if slot == 0:
            leaf_ref_update(&x.leaves[i])
    x.version += 1
    x.removals += 1
    if unlikely(x.searches != NULL):
        searches_leave(x.searches, e)


cdef inline void searches_leave(search_range *r, entry *e) noexcept nogil:
    """e leaves the list: name its neighbours instead (X3)."""
    cdef uint64_t before = e.prev.order if e.prev != NULL else 0
    cdef uint64_t after = e.next.order if e.next != NULL else LAST_ORDER
    while r != NULL:
        if r.lo == e.order:
            r.lo = before
        if r.hi == e.order:
            r.hi = after
        if r.below == e.order:
            r.below = before
        if r.above == e.order:
            r.above = after
        r = r.next


# ---------------------------------------------------------------------------------------------------- who arrived first
cdef inline entry *index_oldest(sorted_index *x) noexcept nogil:
    """The entry that arrived first, of a queue that is not empty.

    `since` is a lower bound, so the leaf with the smallest one is scanned, and each other leaf whose bound is smaller
    than the oldest entry found. A scan makes the bound exact."""
    cdef int64_t i, first = 0
    for i in range(1, x.n):
        if x.leaves[i].since < x.leaves[first].since:
            first = i
    oldest = leaf_oldest(&x.leaves[first])
    for i in range(x.n):
        if x.leaves[i].since < oldest.seq:
            e = leaf_oldest(&x.leaves[i])
            if e.seq < oldest.seq:
                oldest = e
    return oldest


cdef inline entry *leaf_oldest(leaf_ref *s) noexcept nogil:
    cdef entry *oldest = s.it.at[0]
    cdef uint32_t i
    for i in range(1, s.it.n):
        if s.it.at[i].seq < oldest.seq:
            oldest = s.it.at[i]
    s.since = oldest.seq
    return oldest
