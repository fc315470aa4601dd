# Keys that entries have in common: message groups and the keys of a last-value queue. A small hash table whose comparisons run outside
# the order lock, on pinned records: find_key() in _entries.pyx.

cdef inline keyrec **bucket_of(keytab *t, Py_hash_t hash) noexcept nogil:
    return &t.buckets[<uint64_t>(hash ^ (hash >> 32)) & <uint64_t>(t.nbuckets - 1)]


cdef bint keytab_grow(keytab *t) noexcept nogil:
    """Room for one more. False: no memory."""
    cdef int64_t was = t.nbuckets, i
    cdef keyrec **old = t.buckets
    cdef keyrec **b
    cdef keyrec *k
    cdef keyrec *following
    if t.n < was:
        return True
    t.buckets = <keyrec **>calloc(max(16, was * 2), sizeof(keyrec *))
    if t.buckets == NULL:
        t.buckets = old
        return False
    t.nbuckets = max(16, was * 2)
    for i in range(was):
        k = old[i]
        while k != NULL:
            following = k.next
            b = bucket_of(t, k.hash)
            k.next = b[0]
            b[0] = k
            k = following
    free(old)
    return True


cdef keyrec *candidate(keytab *t, Py_hash_t hash, void *key, keyrec **tried, int64_t ntried) noexcept nogil:
    """The record of that very key, or one of that hash that was not compared yet, or NULL."""
    cdef keyrec *k
    cdef keyrec *found = NULL
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


cdef inline bint was_tried(keyrec *k, keyrec **tried, int64_t n) noexcept nogil:
    cdef int64_t i
    for i in range(n):
        if tried[i] == k:
            return True
    return False


cdef void ordered_unpin(keytab *t, keyrec *k, debts *d) noexcept nogil:
    """One entry less has this key; the last one takes it out of the table."""
    cdef keyrec **b
    k.refs -= 1
    if k.refs:
        return
    b = bucket_of(t, k.hash)
    while b[0] != k:
        b = &b[0].next
    b[0] = k.next
    t.n -= 1
    k.next = d.keys
    d.keys = k


# ---------------------------------------------------------------------------------------------------------------- groups
cdef inline bint group_allows(core *q, sub *s, entry *e) noexcept nogil:
    cdef keyrec *g
    if e.more == NULL or s.browse:
        return True
    g = <keyrec *>e.more.group
    return g == NULL or g.owner == NULL or g.owner == s


cdef void group_taken(core *q, sub *s, entry *e) noexcept nogil:
    cdef keyrec *g
    if e.more == NULL or e.more.group == NULL:
        return
    g = <keyrec *>e.more.group
    g.unacked += 1
    if g.owner == NULL:
        g.owner = s
        if q.groups == GROUPS_ASSIGNED:
            g.refs += 1         # the subscription's own: the group stays its, even when no entry is left


cdef void group_left(core *q, sub *s, entry *e, debts *d) noexcept nogil:
    cdef keyrec *g
    if e.more == NULL or e.more.group == NULL:
        return
    g = <keyrec *>e.more.group
    g.unacked -= 1
    if q.groups == GROUPS_SHARED and g.unacked == 0:
        g.owner = NULL
        ordered_wake_many(q, 1, d)


cdef void groups_closed(core *q, sub *s, debts *d) noexcept nogil:
    """A subscription that closes has no groups any more."""
    cdef keytab *t = &q.group_keys
    cdef keyrec *g
    cdef keyrec *following
    cdef int64_t i
    for i in range(t.nbuckets):
        g = t.buckets[i]
        while g != NULL:
            following = g.next
            if g.owner == s:
                g.owner = NULL
                if q.groups == GROUPS_ASSIGNED:
                    ordered_unpin(t, g, d)
            g = following


# ------------------------------------------------------------------------------------------------------------ last values
cdef inline bint slot_replaced(entry *e) noexcept nogil:
    return (<keyrec *>e.more.slot).latest != e


cdef void slot_left(core *q, entry *e, debts *d) noexcept nogil:
    cdef keyrec *k = <keyrec *>e.more.slot
    if k.latest == e:
        k.latest = NULL
    e.more.slot = NULL
    ordered_unpin(&q.slot_keys, k, d)


cdef void slot_joined(core *q, entry *e, debts *d) noexcept nogil:
    """e is the latest of its key now: the one before goes, unless somebody holds it."""
    cdef keyrec *k = <keyrec *>e.more.slot
    cdef entry *old = k.latest
    k.latest = e
    if old != NULL and state_of(old) <= MT_ENTRY_HELD:
        ordered_kill(q, old, REPLACED, d)


cdef inline bint slot_replaces(entry *e) noexcept nogil:
    """A put of e takes another entry's place, so that it needs no room."""
    cdef entry *old
    if e.more == NULL or e.more.slot == NULL:
        return False
    old = (<keyrec *>e.more.slot).latest
    return old != NULL and state_of(old) <= MT_ENTRY_HELD
