# The other orders. An order is a subclass of EntryQueue that says where an entry goes, in two steps:
#   prepare(e, item)   without the order lock: run what needs Python (a key, comparisons) and remember the outcome in e;
#   place(e, d)        under it: link e and give it its `seq` and `order`; MT_EMPTY if what prepare() found is out of date.
# An entry that is not appended to its level has to be shown to the pointers that are past its place: ordered_show().
# docs/design/entryqueue.md has one more as an example.

# ------------------------------------------------------------------------------------------------------------ priorities
cdef class PriorityEntryQueue(EntryQueue):
    """PriorityEntryQueue(name="", *, levels=10, mapping="jms", **options)\n--\n
    As many strict FIFOs as `levels`, highest first.

    Priorities map to levels as AMQP 0-10 and JMS say: bigger is more urgent, fewer levels fold the outer ones first. An arrival ahead of a
    subscription's pointer moves that pointer back. mapping="direct": level = min(max(p, 0), levels - 1).
    ValueError: levels < 1 or > 65535, an unknown mapping."""
    def __init__(self, name="", *, levels=10, mapping="jms", **options):
        cdef int64_t n = int_argument("levels", levels, "an int from 1 to 65535")
        cdef int r
        if not 1 <= n <= 65535:
            raise ValueError(f"levels={levels!r}: expected an int from 1 to 65535")
        if mapping not in ("jms", "direct"):
            raise ValueError(f"mapping={mapping!r}: expected 'jms' or 'direct'")
        EntryQueue.__init__(self, name, **options)
        r = make_levels(self.q, <uint32_t>n, 5 - (n + 1) // 2 if mapping == "jms" else 0)
        if r == ST_DENIED:
            raise RuntimeError(f"{type(self).__name__}.__init__ was called on a queue that is in use")
        if r != MT_OK:
            raise MemoryError

    @property
    def levels(self):
        """How many strict FIFOs."""
        return self.q.nlevels


# ------------------------------------------------------------------------------------------------------------ last values
cdef class LastValueQueue(EntryQueue):
    """LastValueQueue(name="", *, key, **options)\n--\n
    A put joins at the tail and removes the older entry of its key if that is AVAILABLE or HELD; an ACQUIRED older one is dropped
    when released. Counted in dropped. Key None: never replaced. Replacing needs no room in a full queue.

    key: a callable of the item, run once per put, without any lock; its result must be hashable.
    TypeError: key is not callable."""
    def __init__(self, name="", *, key, **options):
        if not callable(key):
            raise TypeError(f"key={key!r}: expected a callable of an item")
        EntryQueue.__init__(self, name, **options)
        self.key = key
        self.plain = False

    cdef int prepare(self, entry *e, object item) except -1:
        key = self.key_of_item(item)
        if key is not None:
            need_more(e).slot = self.find_key(&self.q.slot_keys, key)
        return 0


# ----------------------------------------------------------------------------------------------------------------- sorted
# An index over the sorted list: leaves of up to LEAF entries, and an array of leaves. A put looks for its place by binary search; each
# comparison runs without the order lock, on a counted key. What it has learnt is two orders, lo and hi, between which the entry belongs:
# true for ever, because entries keep their relative order, unless orders are dealt out anew (`sort_epoch`).

cdef class SortedEntryQueue(EntryQueue):
    """SortedEntryQueue(name="", *, key, **options)\n--\n
    Ascending by key, equal keys in arrival order, O(log n).

    key: a callable of the item; it runs once, before anything is linked; if key or `<` raises, put raises and nothing changed. No lock is
    held while they run.
    TypeError: key is not callable."""
    def __init__(self, name="", *, key, **options):
        if not callable(key):
            raise TypeError(f"key={key!r}: expected a callable of an item")
        EntryQueue.__init__(self, name, **options)
        self.key = key
        self.plain = False
        self.q.keyed = True
        self.q.arrivals = self.q.overflow == OVERFLOW_DROP

    cdef int prepare(self, entry *e, object item) except -1:
        """Find between which orders e belongs."""
        cdef core *q = self.q
        cdef void **own = mt_entry_key(e)
        cdef PyObject *probe
        cdef search_range r
        cdef bint less
        if q.arrivals:
            need_more(e)
        if own[0] == NULL:
            key = self.key_of_item(item)
            Py_INCREF(key)
            own[0] = <void *>key
        lock_order(q)
        range_all(q, &r)
        while sorted_probe(q, &r, &probe):
            unlock_order(q)
            try:
                less = <object>own[0] < <object>probe
            finally:
                Py_DECREF_raw(probe)
            lock_order(q)
            sorted_narrow(q, &r, less)
        e.next = <entry *>r.lo          # what was found out is kept where other things will be once it is linked
        e.order = r.hi
        e.prev = <entry *>r.epoch
        e.held_next = <entry *>r.version
        e.held_prev = <entry *>r.from_leaf
        e.owner = <void *>r.from_slot
        unlock_order(q)
        return 0

    cdef int place(self, entry *e, debts *d) noexcept nogil:
        cdef core *q = self.q
        cdef uint64_t lo = <uint64_t>e.next
        if <uint64_t>e.prev != q.sort_epoch:
            return MT_EMPTY
        if <uint64_t>e.held_next == q.sort_version:
            return sorted_link(q, e, lo, e.order, <int64_t>e.held_prev, <int64_t>e.owner)
        return sorted_relink(q, e, lo, e.order)


cdef extern from *:
    """
    #define MT_LAST_ORDER UINT64_MAX
    """
    const uint64_t LAST_ORDER "MT_LAST_ORDER"


cdef inline PyObject *key_of(entry *e) noexcept nogil:
    return <PyObject *>mt_entry_key(e)[0]


cdef inline void prefetch_key(leaf *it, int64_t slot) noexcept nogil:
    if slot < it.n:
        mt_prefetch_read(mt_entry_key(it.at[slot]))
        mt_prefetch_read(&it.at[slot].order)


cdef int64_t leaf_of(core *q, uint64_t order) noexcept nogil:
    """The last leaf whose first entry is not after that order; -1: none."""
    cdef int64_t a = 0, b = q.nleaves, m
    while a < b:
        m = (a + b) // 2
        if q.leaves[m].order <= order:
            a = m + 1
        else:
            b = m
    return a - 1


cdef int64_t slots_up_to(leaf *it, uint64_t order) noexcept nogil:
    """How many entries of a leaf are not after that order."""
    cdef int64_t a = 0, b = it.n, m
    while a < b:
        m = (a + b) // 2
        if it.at[m].order <= order:
            a = m + 1
        else:
            b = m
    return a


cdef void range_all(core *q, search_range *r) noexcept nogil:
    r.epoch = q.sort_epoch
    r.version = q.sort_version
    r.lo, r.hi = 0, LAST_ORDER
    r.from_leaf, r.to_leaf = 0, q.nleaves
    r.from_slot, r.to_slot = 0, -1


cdef void range_again(core *q, search_range *r) noexcept nogil:
    """The index has changed: find lo and hi in it."""
    r.version = q.sort_version
    r.from_leaf = max(leaf_of(q, r.lo), 0)
    r.to_leaf = max(leaf_of(q, r.hi - 1) + 1, min(r.from_leaf + 1, q.nleaves))
    r.from_slot, r.to_slot = 0, -1
    if r.to_leaf - r.from_leaf == 1:
        r.from_slot = slots_up_to(q.leaves[r.from_leaf].it, r.lo)
        r.to_slot = slots_up_to(q.leaves[r.from_leaf].it, r.hi - 1)
    elif r.to_leaf > r.from_leaf:
        r.from_slot = slots_up_to(q.leaves[r.from_leaf].it, r.lo)


cdef inline bint sorted_probe(core *q, search_range *r, PyObject **probe) noexcept nogil:
    """The key to compare with next, counted. False: the place is known, it is from_slot of from_leaf."""
    cdef leaf *it
    cdef int64_t m
    if unlikely(r.epoch != q.sort_epoch):
        range_all(q, r)
    if unlikely(r.version != q.sort_version):
        range_again(q, r)
    if r.to_leaf - r.from_leaf > 1:
        m = (r.from_leaf + r.to_leaf) // 2
        r.probed = q.leaves[m].order
        probe[0] = q.leaves[m].key
    elif r.to_leaf == r.from_leaf:
        return False
    else:
        it = q.leaves[r.from_leaf].it
        if r.to_slot < 0:
            r.to_slot = it.n
        if r.from_slot >= r.to_slot:
            return False
        m = (r.from_slot + r.to_slot) // 2
        prefetch_key(it, (r.from_slot + m) // 2)        # while this comparison runs, one of the two that may be next comes near
        prefetch_key(it, (m + 1 + r.to_slot) // 2)
        r.probed = it.at[m].order
        probe[0] = key_of(it.at[m])
    Py_INCREF_raw(probe[0])
    return True


cdef inline void sorted_narrow(core *q, search_range *r, bint less) noexcept nogil:
    """The new key is less than the probed one (it belongs before it), or not (it belongs after it)."""
    cdef int64_t m
    if unlikely(r.epoch != q.sort_epoch):
        return
    if less:
        r.hi = r.probed
    else:
        r.lo = r.probed
    if unlikely(r.version != q.sort_version):
        return
    if r.to_leaf - r.from_leaf > 1:
        m = (r.from_leaf + r.to_leaf) // 2
        if less:
            r.to_leaf = m
        else:
            r.from_leaf = m
            r.from_slot = 1
    else:
        m = (r.from_slot + r.to_slot) // 2
        if less:
            r.to_slot = m
        else:
            r.from_slot = m + 1


cdef int sorted_relink(core *q, entry *e, uint64_t lo, uint64_t hi) noexcept nogil:
    """As sorted_link, when the index has changed since the place was found. MT_EMPTY: something was put just there."""
    cdef int64_t i = leaf_of(q, lo), slot = 0
    cdef entry *after = q.lists[0].first
    if i >= 0:
        slot = slots_up_to(q.leaves[i].it, lo)
        after = q.leaves[i].it.at[slot - 1].next
    if after != NULL and after.order < hi:
        return MT_EMPTY
    return sorted_link(q, e, lo, hi, max(i, 0), slot)


cdef int sorted_link(core *q, entry *e, uint64_t lo, uint64_t hi, int64_t i, int64_t slot) noexcept nogil:
    """Link e between those orders, into leaf i at that slot. MT_OK or MT_NOMEM."""
    cdef entry *after = q.lists[0].first
    cdef uint64_t order = order_between(lo, hi)
    if slot > 0:
        after = q.leaves[i].it.at[slot - 1].next
    i = index_insert(q, e, order, i, slot)
    if i < 0:
        return MT_NOMEM
    e.held_next = e.held_prev = NULL
    e.owner = NULL
    e.seq = q.nseq
    q.nseq += 1
    e.order = order
    mt_list_insert(q.lists, e, after)
    if unlikely(order == 0):
        deal_orders(q, i)
    ordered_show(q, e)
    return MT_OK


cdef inline uint64_t order_between(uint64_t lo, uint64_t hi) noexcept nogil:
    """0: there is none left."""
    if lo == 0 and hi == LAST_ORDER:
        return <uint64_t>1 << 63
    if hi == LAST_ORDER:
        return lo + ORDER_GAP if lo < LAST_ORDER - ORDER_GAP - 1 else 0
    if lo == 0:
        return hi - ORDER_GAP if hi > ORDER_GAP + 1 else 0
    return lo + (hi - lo) // 2 if hi - lo > 1 else 0


cdef extern from *:
    """
    #define MT_ORDER_GAP (UINT64_C(1) << 40)
    """
    const uint64_t ORDER_GAP "MT_ORDER_GAP"


cdef void deal_orders(core *q, int64_t i) noexcept nogil:
    """An entry of leaf i found no order between its neighbours: deal out those of its leaf anew, evenly, or of as many leaves around it as it
    takes to have some to spare. At the very end half of what there is stays free, for appends. Searches that are under way begin again."""
    cdef int64_t n = 0, first = 0, last = 0, reach = 0
    cdef uint64_t lo = 0, hi = 0
    cdef leaf *before
    cdef sub *s = q.owners
    while True:
        first, last = max(0, i - reach), min(q.nleaves - 1, i + reach)
        lo = 0
        if first:
            before = q.leaves[first - 1].it
            lo = before.at[before.n - 1].order
        hi = lo + (LAST_ORDER - lo) // 2 if last == q.nleaves - 1 else q.leaves[last + 1].order
        n = leaves_count(q, first, last)
        if (hi - lo) // <uint64_t>(n + 1) >= ORDERS_TO_SPARE or (first == 0 and last == q.nleaves - 1):
            break
        reach = reach * 2 + 1
    deal_evenly(q.leaves[first].it.at[0], n, lo, (hi - lo) // <uint64_t>(n + 1))
    while first <= last:
        q.leaves[first].order = q.leaves[first].it.at[0].order
        first += 1
    q.sort_epoch += 1
    mt_again_shrink(&q.shared.again)
    while s != NULL:
        mt_again_shrink(&s.mine.again)
        s = s.own_next


cdef extern from *:
    """
    #define MT_ORDERS_TO_SPARE (UINT64_C(1) << 16)
    """
    const uint64_t ORDERS_TO_SPARE "MT_ORDERS_TO_SPARE"


cdef int64_t leaves_count(core *q, int64_t first, int64_t last) noexcept nogil:
    cdef int64_t n = 0
    while first <= last:
        n += q.leaves[first].it.n
        first += 1
    return n


cdef void deal_evenly(entry *e, int64_t n, uint64_t lo, uint64_t gap) noexcept nogil:
    while n > 0:
        lo += gap
        e.order = lo
        e = e.next
        n -= 1


cdef void ordered_show(core *q, entry *e) noexcept nogil:
    """Pointers that are past e's place have to come back for it. Those that stood on what follows it stand on e already."""
    cdef sub *s = q.owners
    if e.more != NULL and e.more.due:
        return
    cursor_again(q, &q.shared, e)
    while s != NULL:
        if quick_wants(s, e):
            cursor_again(q, &s.mine, e)
        s = s.own_next


# ------------------------------------------------------------------------------------------------------- the index of leaves
cdef int64_t index_insert(core *q, entry *e, uint64_t order, int64_t i, int64_t slot) noexcept nogil:
    """Into leaf i at that slot; a full leaf shares with a neighbour or is split. Which leaf it is in; -1: no memory, nothing changed."""
    cdef leaf *it
    if q.nleaves == 0 and not index_add(q, 0):
        return -1
    if q.leaves[i].it.n == LEAF and not index_make_room(q, &i, &slot):
        return -1
    it = q.leaves[i].it
    memmove(&it.at[slot + 1], &it.at[slot], (it.n - slot) * sizeof(entry *))
    it.at[slot] = e
    it.n += 1
    if slot == 0:
        q.leaves[i].order = order
        q.leaves[i].key = key_of(e)
    q.sort_version += 1
    return i


cdef bint index_make_room(core *q, int64_t *i, int64_t *slot) noexcept nogil:
    """Room in the full leaf i, for an entry at that slot; both are told anew. False: no memory, nothing changed."""
    cdef int64_t n = 0, left = LEAF, right = LEAF
    if i[0] > 0:
        left = q.leaves[i[0] - 1].it.n
    if i[0] + 1 < q.nleaves:
        right = q.leaves[i[0] + 1].it.n
    if left <= LEAF - LEAF_SPARE:
        n = (LEAF - left) // 2
        leaf_give_left(q, i[0], n)
        if slot[0] <= n:
            i[0] -= 1
            slot[0] += left
        else:
            slot[0] -= n
        return True
    if right <= LEAF - LEAF_SPARE:
        n = (LEAF - right) // 2
    else:
        # A run of keys that goes up or down, be it at an end or in the middle, goes on where it is: leave full leaves behind then.
        n = 1 if slot[0] == LEAF else LEAF - 1 if slot[0] == 0 else LEAF // 2
        if not index_add(q, i[0] + 1):
            return False
    leaf_give_right(q, i[0], n)
    if slot[0] > LEAF - n:
        i[0] += 1
        slot[0] -= LEAF - n
    return True


cdef void leaf_give_right(core *q, int64_t i, int64_t n) noexcept nogil:
    """The last n entries of a leaf go to the front of the next one."""
    cdef leaf *it = q.leaves[i].it
    cdef leaf *to = q.leaves[i + 1].it
    it.n -= <uint32_t>n
    memmove(&to.at[n], to.at, to.n * sizeof(entry *))
    memcpy(to.at, &it.at[it.n], n * sizeof(entry *))
    to.n += <uint32_t>n
    q.leaves[i + 1].since = min(q.leaves[i + 1].since, q.leaves[i].since if n > 1 else to.at[0].seq)
    if it.n == 1:
        q.leaves[i].since = it.at[0].seq        # so that no leaf of a run has it from the one before
    shelf_label(&q.leaves[i + 1])


cdef void leaf_give_left(core *q, int64_t i, int64_t n) noexcept nogil:
    """The first n entries of a leaf go to the end of the one before."""
    cdef leaf *it = q.leaves[i].it
    cdef leaf *to = q.leaves[i - 1].it
    memcpy(&to.at[to.n], it.at, n * sizeof(entry *))
    to.n += <uint32_t>n
    it.n -= <uint32_t>n
    memmove(it.at, &it.at[n], it.n * sizeof(entry *))
    q.leaves[i - 1].since = min(q.leaves[i - 1].since, q.leaves[i].since)
    shelf_label(&q.leaves[i])


cdef inline void shelf_label(shelf *s) noexcept nogil:
    """Its leaf has another first entry."""
    s.order = s.it.at[0].order
    s.key = key_of(s.it.at[0])


cdef bint index_add(core *q, int64_t i) noexcept nogil:
    """An empty leaf at place i, for what is put next or was put before. False: no memory, nothing changed."""
    cdef leaf *it = <leaf *>malloc(sizeof(leaf))
    if it == NULL or not index_room(q):
        free(it)
        return False
    it.n = 0
    memmove(&q.leaves[i + 1], &q.leaves[i], (q.nleaves - i) * sizeof(shelf))
    q.leaves[i].it = it
    q.leaves[i].since = q.nseq
    q.nleaves += 1
    return True


cdef bint index_room(core *q) noexcept nogil:
    cdef shelf *longer
    if q.nleaves < q.leaves_room:
        return True
    longer = <shelf *>realloc(q.leaves, (q.leaves_room * 2 + 16) * sizeof(shelf))
    if longer == NULL:
        return False
    q.leaves = longer
    q.leaves_room = q.leaves_room * 2 + 16
    return True


cdef void leaf_remove(core *q, entry *e) noexcept nogil:
    """Take a dead entry out of the index; its key goes with its item."""
    cdef int64_t i = leaf_of(q, e.order)
    cdef leaf *it = q.leaves[i].it
    cdef int64_t slot = slots_up_to(it, e.order) - 1
    it.n -= 1
    if it.n == 0:
        memmove(&q.leaves[i], &q.leaves[i + 1], (q.nleaves - i - 1) * sizeof(shelf))
        q.nleaves -= 1
        free(it)
    else:
        memmove(&it.at[slot], &it.at[slot + 1], (it.n - slot) * sizeof(entry *))
        if slot == 0:
            shelf_label(&q.leaves[i])
    q.sort_version += 1


# ----------------------------------------------------------------------------------------------------- who arrived first
cdef entry *sorted_oldest(core *q) noexcept nogil:
    """The entry that arrived first, of a queue that is not empty. Looks at every leaf's `since`, and into the leaves where that may be too
    small, because entries have left: once for each leaf that entries have left or were moved to."""
    cdef entry *oldest
    cdef entry *e
    cdef int64_t i, first = 0
    for i in range(1, q.nleaves):
        if q.leaves[i].since < q.leaves[first].since:
            first = i
    oldest = shelf_oldest(&q.leaves[first])
    for i in range(q.nleaves):
        if q.leaves[i].since < oldest.seq:
            e = shelf_oldest(&q.leaves[i])
            if e.seq < oldest.seq:
                oldest = e
    return oldest


cdef entry *shelf_oldest(shelf *s) noexcept nogil:
    cdef entry *oldest = s.it.at[0]
    cdef uint32_t i
    for i in range(1, s.it.n):
        if s.it.at[i].seq < oldest.seq:
            oldest = s.it.at[i]
    s.since = oldest.seq
    return oldest
