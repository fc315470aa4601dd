# Keys that entries of a queue have in common: message groups, and the keys of a last-value queue. Private; used by
# _eq.pxd.
#
# A key record is found in a hash table by hash and `==`. `==` is user code: it runs without the order lock, on pinned
# records, in EntryQueue.find_key (_entries.pyx). Entries that have the key count it; the last one takes it out of the
# table.
#
# Groups. "shared": a group belongs to a subscription while that holds entries of it; "assigned": from the first entry
# that it gets until it closes. Source: Qpid's message groups.
#
# Who may take what is kept in heaps by order, so that a get does not look at entries of groups that others own:
#   key_record.available    the AVAILABLE entries of the group
#   group_index.anybody     AVAILABLE entries without a group, and the first one of each group that nobody owns
#   subscription.own        the first AVAILABLE entry of each group that it owns
# They may have more: an entry that was taken, or whose group has another owner, is dropped when it comes to the top.
# Invariant: an AVAILABLE entry is in its group's heap, and the first one of a group is in the heap of whoever may take
# it, unless `lost` is set.
# Last values. A record knows the entry put last. A put makes the one before it go, unless somebody holds that.
#
# Everything here is called under the order lock.
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport calloc, free

from manytail._entry cimport (
    AVAILABLE, HELD, entry, redeliveries_free, redeliveries_pop, redeliveries_push, redeliveries_shrink, state_of,
)
from manytail._heap cimport heap

cdef enum:
    GROUPS_NONE = 0
    GROUPS_SHARED = 1
    GROUPS_ASSIGNED = 2

ctypedef struct key_record      # declared first: it points to itself

ctypedef struct key_record:
    key_record *next            # in its bucket; of a removed one: to be released
    Py_hash_t hash
    void *key                   # a counted Python reference
    int64_t refs
    heap *owner           # of a group: `own` of the subscription that it belongs to, or NULL
    heap available        # of a group
    int64_t unacked             # of a group: entries of it that are acquired
    entry *latest               # of a last-value queue: the entry put last, if it is still there

ctypedef struct key_table:
    key_record **buckets
    int64_t nbuckets            # a power of two, or 0
    int64_t n

ctypedef struct group_index:
    heap anybody
    bint lost                   # there was no memory for an entry: whoever gets walks over the list


# ---------------------------------------------------------------------------------------------------------------- table
cdef inline key_record **bucket_of(key_table *t, Py_hash_t hash) noexcept nogil:
    return &t.buckets[<uint64_t>(hash ^ (hash >> 32)) & <uint64_t>(t.nbuckets - 1)]


cdef inline bint key_table_grow(key_table *t) noexcept nogil:
    """Make room for one more. False: no memory."""
    cdef int64_t was = t.nbuckets, i
    cdef int64_t nbuckets = was * 2 if was else 16
    cdef key_record **old = t.buckets
    cdef key_record *k
    cdef key_record *following
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


cdef inline key_record *candidate(key_table *t, Py_hash_t hash, void *key, key_record **tried,
                                  int64_t ntried) noexcept nogil:
    """The record of that very key, or one of that hash that was not compared yet, or NULL."""
    cdef key_record *k
    cdef key_record *found = NULL
    if t.nbuckets == 0:
        return NULL
    k = bucket_of(t, hash)[0]
    while k != NULL:
        if k.hash == hash:
            if k.key == key:
                return k
            if found == NULL and not was_tried(k, tried, ntried):
                found = k
        k = k.next
    return found


cdef inline bint was_tried(key_record *k, key_record **tried, int64_t n) noexcept nogil:
    cdef int64_t i
    for i in range(n):
        if tried[i] == k:
            return True
    return False


cdef inline void unpin_record(key_table *t, key_record *k, key_record **released) noexcept nogil:
    """One entry less has this key. The last one takes it out of the table, for the caller to release."""
    cdef key_record **b
    k.refs -= 1
    if k.refs:
        return
    b = bucket_of(t, k.hash)
    while b[0] != k:
        b = &b[0].next
    b[0] = k.next
    redeliveries_free(&k.available)
    t.n -= 1
    k.next = released[0]
    released[0] = k


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
    cdef entry *e
    while h.n:
        e = top_of(h)
        if state_of(e) == AVAILABLE and owner_of_group(e) == owner:
            return e
        redeliveries_pop(h)
    return NULL


cdef inline entry *groups_first(group_index *x, heap *own, bint outranked) noexcept nogil:
    """The first AVAILABLE entry that the subscription of `own` may take, or NULL. outranked: only of its own groups."""
    cdef entry *mine = first_of_owner(own, own)
    cdef entry *free_one = NULL
    if not outranked:
        free_one = first_of_owner(&x.anybody, NULL)
    if mine == NULL or (free_one != NULL and free_one.order < mine.order):
        return free_one
    return mine


cdef inline void index_entry(group_index *x, heap *h, entry *e) noexcept nogil:
    if not x.lost and not redeliveries_push(h, e):
        x.lost = True


cdef inline void group_show_first(group_index *x, key_record *g) noexcept nogil:
    """The first AVAILABLE entry of g, or its owner, may be another one than before."""
    cdef heap *h = g.owner if g.owner != NULL else &x.anybody
    while g.available.n and state_of(top_of(&g.available)) != AVAILABLE:
        redeliveries_pop(&g.available)
    if g.available.n:
        index_entry(x, h, top_of(&g.available))


cdef inline void group_shown(group_index *x, entry *e) noexcept nogil:
    """e is AVAILABLE from here on."""
    cdef key_record *g = group_of(e)
    if g == NULL:
        index_entry(x, &x.anybody, e)
        return
    index_entry(x, &g.available, e)
    if g.available.n and (top_of(&g.available) == e or state_of(top_of(&g.available)) != AVAILABLE):
        group_show_first(x, g)


cdef inline void group_taken(group_index *x, entry *e, heap *own, bint assigned) noexcept nogil:
    """The subscription of `own` has acquired e."""
    cdef key_record *g = group_of(e)
    if g == NULL:
        return
    g.unacked += 1
    if g.owner == NULL:
        g.owner = own
        if assigned:
            g.refs += 1         # the subscription's own: the group stays its, even when no entry is left
    group_show_first(x, g)


cdef inline bint group_removed(group_index *x, entry *e, bint assigned) noexcept nogil:
    """e is not acquired any longer. True: its group is free, so others may take what is in it."""
    cdef key_record *g = group_of(e)
    if g == NULL:
        return False
    g.unacked -= 1
    if assigned or g.unacked:
        return False
    g.owner = NULL
    group_show_first(x, g)
    return True


cdef inline void group_dead(group_index *x, entry *e) noexcept nogil:
    """e is dead: if it was the first of its group, another one is."""
    cdef key_record *g = group_of(e)
    if g.available.n and top_of(&g.available) == e:
        group_show_first(x, g)


cdef inline void groups_closed(group_index *x, key_table *t, heap *own, bint assigned,
                               key_record **released) noexcept nogil:
    """The subscription of `own` closes: it owns no group from here on."""
    cdef key_record *g
    cdef key_record *following
    cdef int64_t i
    for i in range(t.nbuckets):
        g = t.buckets[i]
        while g != NULL:
            following = g.next
            if g.owner == own:
                g.owner = NULL
                group_show_first(x, g)
                if assigned:
                    unpin_record(t, g, released)
            g = following
    redeliveries_free(own)


cdef inline void groups_dealt(group_index *x, key_table *t) noexcept nogil:
    """The orders of entries were dealt out anew."""
    cdef key_record *g
    cdef int64_t i
    redeliveries_shrink(&x.anybody)
    for i in range(t.nbuckets):
        g = t.buckets[i]
        while g != NULL:
            redeliveries_shrink(&g.available)
            g = g.next


# ---------------------------------------------------------------------------------------------------------- last values
cdef inline bint value_replaced(entry *e) noexcept nogil:
    """Of an entry with a value key: a later one has that key."""
    return (<key_record *>e.options.value_key).latest != e


cdef inline bint value_replaces(entry *e) noexcept nogil:
    """A put of e takes another entry's place, so that it needs no free slot."""
    cdef entry *old
    if e.options == NULL or e.options.value_key == NULL:
        return False
    old = (<key_record *>e.options.value_key).latest
    return old != NULL and state_of(old) <= HELD


cdef inline entry *value_added(entry *e) noexcept nogil:
    """e is the latest of its key. The one before it is returned if nobody holds it: it has to go."""
    cdef key_record *k = <key_record *>e.options.value_key
    cdef entry *old = k.latest
    k.latest = e
    return old if old != NULL and state_of(old) <= HELD else NULL


cdef inline void value_removed(key_table *t, entry *e, key_record **released) noexcept nogil:
    cdef key_record *k = <key_record *>e.options.value_key
    if k.latest == e:
        k.latest = NULL
    e.options.value_key = NULL
    unpin_record(t, k, released)
