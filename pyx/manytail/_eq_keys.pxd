# Keys that entries of a queue share: message groups, and the keys of a last-value queue. Private; used by _eq.pxd.
#
# A hash table (separate chaining) finds the record of a key by hash and `==`. `==` is user code: it runs without the
# order lock, on records that are pinned by their reference count, in EntryQueue.find_key (_entries.pyx). Each entry
# with the key holds a reference to the record; the last one removes it from the table.
#
# Groups. "shared": a subscription owns a group while it owns entries of it. "assigned": it owns the group from the
# first entry that it gets until it closes. Source: Qpid's message groups.
#
# A get must not look at entries of groups that other subscriptions own. So there are heaps, by order:
#   key_record.available    the AVAILABLE entries of the group
#   group_index.anybody     AVAILABLE entries without a group, and the first one of each group without an owner
#   subscription.own        the first AVAILABLE entry of each group that the subscription owns
# The heaps may have more. An entry that was taken, or whose group has another owner, is dropped when it is at the top.
#
# Last values. A record has the entry that was put last. A put removes the one before it, unless that is ACQUIRED.
#
# Everything here is called under the order lock.
#
# Invariant
#   K1  Unless `lost` is set, every AVAILABLE entry is in its group's heap, and the first one of each group, and each
#       one without a group, is in the heap of those who may take it.
from libc.stdlib cimport calloc, free, realloc

from manytail._entry cimport *

cdef enum:
    GROUPS_NONE = 0
    GROUPS_SHARED = 1
    GROUPS_ASSIGNED = 2

ctypedef struct key_record      # declared first: it points to itself

ctypedef struct key_record:
    key_record *next            # in its bucket; after its removal: in a list of records to free
    Py_hash_t hash
    void *key                   # a counted Python reference
    int64_t refs
    heap *owner                 # of a group: `own` of the subscription that owns it, or NULL
    heap available              # of a group
    int64_t unacked             # of a group: how many of its entries are ACQUIRED
    entry *latest               # of a last-value queue: the entry put last, or NULL if that is unlinked

ctypedef struct key_table:
    key_record **buckets
    int64_t nbuckets            # a power of two, or 0
    int64_t n

ctypedef struct key_search:     # of the record of one key
    Py_hash_t hash
    void *key                   # borrowed
    key_record **tried          # with this hash, not equal; each with a reference
    int64_t ntried

ctypedef struct group_index:
    heap anybody
    bint lost                   # there was no memory to add an entry: from then on each get walks the list


# ---------------------------------------------------------------------------------------------------------------- table
cdef inline key_record **bucket_of(key_table *t, Py_hash_t hash) noexcept nogil:
    return &t.buckets[<uint64_t>(hash ^ (hash >> 32)) & <uint64_t>(t.nbuckets - 1)]


cdef inline bint key_table_grow(key_table *t) noexcept nogil:
    """Grow the table if it is full. False: no memory."""
    cdef int64_t was = t.nbuckets, i
    cdef int64_t nbuckets = was * 2 if was else 16
    cdef key_record **old = t.buckets
    if t.n < was:
        return True
    t.buckets = <key_record **>calloc(nbuckets, sizeof(key_record *))
    if t.buckets == NULL:
        t.buckets = old
        return False
    t.nbuckets = nbuckets
    for i in range(was):
        k = old[i]
        while k != NULL:
            following = k.next
            push_record(t, k)
            k = following
    free(old)
    return True


cdef inline void push_record(key_table *t, key_record *k) noexcept nogil:
    cdef key_record **b = bucket_of(t, k.hash)
    k.next = b[0]
    b[0] = k


cdef inline void begin_key_search(key_search *s, Py_hash_t hash, void *key) noexcept nogil:
    s.hash = hash
    s.key = key
    s.tried = NULL
    s.ntried = 0


cdef inline key_record *next_record(key_table *t, key_search *s, bint *found) noexcept nogil:
    """Pin the next record that may be the key's. Sets *found if it is the key's, or was made for it. Else the caller
    compares the keys without the lock; the record is in `tried`. NULL: no memory."""
    cdef key_record *k = candidate(t, s)
    if k == NULL:
        k = add_record(t, s)
    elif k.key == s.key:
        k.refs += 1
    else:
        return pin_tried(s, k)
    found[0] = True
    return k


cdef inline key_record *candidate(key_table *t, key_search *s) noexcept nogil:
    """The record of this key object, or one with this hash that was not tried, or NULL."""
    cdef key_record *found = NULL
    if t.nbuckets == 0:
        return NULL
    k = bucket_of(t, s.hash)[0]
    while k != NULL:
        if k.hash == s.hash:
            if k.key == s.key:
                return k
            if found == NULL and not was_tried(s, k):
                found = k
        k = k.next
    return found


cdef inline bint was_tried(key_search *s, key_record *k) noexcept nogil:
    for i in range(s.ntried):
        if s.tried[i] == k:
            return True
    return False


cdef inline key_record *add_record(key_table *t, key_search *s) noexcept nogil:
    """A record with one reference, and one to the key object. NULL: no memory."""
    if not key_table_grow(t):
        return NULL
    k = <key_record *>calloc(1, sizeof(key_record))
    if k == NULL:
        return NULL
    k.hash = s.hash
    k.key = s.key
    keep(<uintptr_t>k.key)
    k.refs = 1
    push_record(t, k)
    t.n += 1
    return k


cdef inline key_record *pin_tried(key_search *s, key_record *k) noexcept nogil:
    """Add k to `tried`, with a reference. NULL: no memory."""
    cdef key_record **longer = <key_record **>realloc(s.tried, <size_t>(s.ntried + 1) * sizeof(key_record *))
    if longer == NULL:
        return NULL
    longer[s.ntried] = k
    s.tried = longer
    s.ntried += 1
    k.refs += 1
    return k


cdef inline void unpin_record(key_table *t, key_record *k, key_record **to_free) noexcept nogil:
    """Drop a reference. The last one moves the record from the table to `to_free`; the caller frees those."""
    k.refs -= 1
    if k.refs:
        return
    b = bucket_of(t, k.hash)
    while b[0] != k:
        b = &b[0].next
    b[0] = k.next
    entry_heap_free(&k.available)
    t.n -= 1
    k.next = to_free[0]
    to_free[0] = k


# --------------------------------------------------------------------------------------------------------------- groups
cdef inline key_record *group_of(entry *e) noexcept nogil:
    if e.options == NULL:
        return NULL
    return <key_record *>e.options.group


cdef inline heap *owner_of_group(entry *e) noexcept nogil:
    cdef key_record *g = group_of(e)
    if g == NULL:
        return NULL
    return g.owner


cdef inline bint group_allows(entry *e, heap *own) noexcept nogil:
    cdef heap *owner = owner_of_group(e)
    return owner == NULL or owner == own


cdef inline entry *top_of(heap *h) noexcept nogil:
    return <entry *>h.items[0].member


cdef inline entry *first_of_owner(heap *h, heap *owner) noexcept nogil:
    """The first AVAILABLE entry of h whose group has that owner (NULL: nobody, or it has no group), or NULL."""
    while h.n:
        e = top_of(h)
        if state_of(e) == AVAILABLE and owner_of_group(e) == owner:
            return e
        entry_heap_pop(h)
    return NULL


cdef inline entry *groups_first(group_index *x, heap *own, bint outranked) noexcept nogil:
    """The first AVAILABLE entry that the subscription of `own` may take, or NULL. outranked: only of its own groups,
    because a subscription of higher priority takes the rest."""
    cdef entry *mine = first_of_owner(own, own)
    cdef entry *free_one = NULL
    if not outranked:
        free_one = first_of_owner(&x.anybody, NULL)
    if mine == NULL or (free_one != NULL and free_one.order < mine.order):
        return free_one
    return mine


cdef inline void index_entry(group_index *x, heap *h, entry *e) noexcept nogil:
    if not x.lost and not entry_heap_push(h, e):
        x.lost = True


cdef inline void group_index_first(group_index *x, key_record *g) noexcept nogil:
    """Restore K1 after the owner or the first AVAILABLE entry of g may have changed."""
    cdef heap *h = g.owner if g.owner != NULL else &x.anybody
    while g.available.n and state_of(top_of(&g.available)) != AVAILABLE:
        entry_heap_pop(&g.available)
    if g.available.n:
        index_entry(x, h, top_of(&g.available))


cdef inline void group_available(group_index *x, entry *e) noexcept nogil:
    """e has become AVAILABLE."""
    cdef key_record *g = group_of(e)
    if g == NULL:
        index_entry(x, &x.anybody, e)
        return
    index_entry(x, &g.available, e)
    if g.available.n and (top_of(&g.available) == e or state_of(top_of(&g.available)) != AVAILABLE):
        group_index_first(x, g)


cdef inline void group_taken(group_index *x, entry *e, heap *own, bint assigned) noexcept nogil:
    """The subscription of `own` has acquired e."""
    cdef key_record *g = group_of(e)
    if g == NULL:
        return
    g.unacked += 1
    if g.owner == NULL:
        g.owner = own
        if assigned:
            g.refs += 1         # the subscription's: it owns the group even when no entry is left
    group_index_first(x, g)


cdef inline bint group_delivery_ended(group_index *x, entry *e, bint assigned) noexcept nogil:
    """A delivery of e has ended. True: its group has lost its owner, so others may take its entries."""
    cdef key_record *g = group_of(e)
    if g == NULL:
        return False
    g.unacked -= 1
    if assigned or g.unacked:
        return False
    g.owner = NULL
    group_index_first(x, g)
    return True


cdef inline void group_dead(group_index *x, entry *e) noexcept nogil:
    """e is dead. If it was the first of its group, another one becomes that."""
    cdef key_record *g = group_of(e)
    if g.available.n and top_of(&g.available) == e:
        group_index_first(x, g)


cdef inline void groups_closed(group_index *x, key_table *t, heap *own, bint assigned,
                               key_record **to_free) noexcept nogil:
    """The subscription of `own` closes: its groups have no owner."""
    for i in range(t.nbuckets):
        g = t.buckets[i]
        while g != NULL:
            following = g.next
            if g.owner == own:
                g.owner = NULL
                group_index_first(x, g)
                if assigned:
                    unpin_record(t, g, to_free)
            g = following
    entry_heap_free(own)


cdef inline void groups_renumbered(group_index *x, key_table *t) noexcept nogil:
    """Entries were renumbered: read their orders again. The caller does so for each subscription.own."""
    entry_heap_refresh(&x.anybody)
    for i in range(t.nbuckets):
        g = t.buckets[i]
        while g != NULL:
            entry_heap_refresh(&g.available)
            g = g.next


# ---------------------------------------------------------------------------------------------------------- last values
cdef inline bint value_replaced(entry *e) noexcept nogil:
    """Whether a later entry has the value key of e, which has one."""
    return (<key_record *>e.options.value_key).latest != e


cdef inline bint value_replaces(entry *e) noexcept nogil:
    """Whether a put of e replaces an entry, so that it needs no free slot."""
    if e.options == NULL or e.options.value_key == NULL:
        return False
    old = (<key_record *>e.options.value_key).latest
    return old != NULL and state_of(old) <= HELD


cdef inline entry *value_added(entry *e) noexcept nogil:
    """Make e the latest of its key. Returns the one before it if the caller has to remove that, else NULL."""
    cdef key_record *k = <key_record *>e.options.value_key
    cdef entry *old = k.latest
    k.latest = e
    return old if old != NULL and state_of(old) <= HELD else NULL


cdef inline void value_removed(key_table *t, entry *e, key_record **to_free) noexcept nogil:
    cdef key_record *k = <key_record *>e.options.value_key
    if k.latest == e:
        k.latest = NULL
    e.options.value_key = NULL
    unpin_record(t, k, to_free)
