# Putting entries into an entry queue (_eq.pxd). Private.
#
# locked_put is one try. It refuses the entry if the queue is shut down or full. Else it links the entry at its place
# and counts it (locked_add), wakes whoever may take it, and drops the oldest entries if there are too many, without
# unlocking in between. The entry stays at its place until it is dead.
#
# locked_hand_over is put(immediate=True): it links the entry only if a get is waiting for it, and acquires it for that
# get before the lock is released, so no other subscription sees it.
#
# Invariant
#   P1  Its entry overtakes none: the subscription that gets it would take no AVAILABLE entry that is earlier in the
#       order. One may be left while a get waits, for another get that was notified and has not tried yet.
from manytail._eq_get cimport *


cdef inline int locked_put(entry_queue *q, entry *e, search_range *found, bint forced, effects *fx) noexcept nogil:
    """One try: MT_OK, MT_FULL, MT_SHUTDOWN, MT_NOMEM, or the status of q.place. forced: a dead letter, never full."""
    if unlikely(q.shut):
        return MT_SHUTDOWN
    if unlikely(q.maxsize > 0) and locked_refuses(q, e) and not forced:
        return MT_FULL
    r = locked_add(q, e, found, fx)
    if unlikely(r != MT_OK):
        return r
    if likely(e.options == NULL or e.options.due == 0):
        if unlikely(q.groups != GROUPS_NONE):
            group_available(&q.groups_takable, e)
        locked_wake(q, e, fx)
    if unlikely(locked_overflows(q)) and not in_dead_letter_call(q):
        locked_drop_oldest(q, e, fx)
    return MT_OK


cdef inline int locked_add(entry_queue *q, entry *e, search_range *found, effects *fx) noexcept nogil:
    """Link e at its place, and count it. MT_OK. MT_NOMEM, or the status of q.place: nothing has changed."""
    if unlikely(e.options != NULL and (e.options.due or e.options.expires)) \
            and not heap_reserve(&q.timers, q.timers.n + 1):
        return MT_NOMEM
    if likely(q.place == NULL):
        locked_link(q, e)
    else:
        r = q.place(q, e, found)
        if r != MT_OK:
            return r
    if likely(e.options == NULL):
        q.available += 1
    else:
        locked_add_options(q, e, fx)
    q.counters.enqueued += 1
    if unlikely(depth_of(q) > q.counters.high_water):
        q.counters.high_water = depth_of(q)
    if unlikely(q.arrivals):
        locked_link_arrival(q, e)
    return MT_OK


cdef inline int64_t locked_put_run(entry_queue *q, entry **rest, effects *fx) noexcept nogil:
    """Put the chain *rest, by dead_next, until an entry is refused. Returns how many; *rest is the chain of the
    others."""
    cdef int64_t n = 0
    cdef entry *e = rest[0]
    while e != NULL:
        following = e.after.dead_next
        e.after.dead_next = NULL
        if locked_put(q, e, NULL, False, fx) != MT_OK:
            e.after.dead_next = following
            break
        n += 1
        e = following
    rest[0] = e
    return n


cdef inline void locked_add_options(entry_queue *q, entry *e, effects *fx) noexcept nogil:
    """The part of locked_add for an entry with options: count it by its state, set its timer, replace the last
    value."""
    if e.options.due:
        mt_store_relaxed_i64(&e.word, HELD)         # relaxed because: other threads reach it only under the order lock
        q.held += 1
    else:
        q.available += 1
    if e.options.due or e.options.expires:
        locked_set_timer(q, e)
    if e.options.value_key != NULL:
        locked_replace(q, e, fx)


cdef inline void locked_replace(entry_queue *q, entry *e, effects *fx) noexcept nogil:
    """Last value: discard the entry that e replaces."""
    cdef entry *old = value_added(e)
    q.event_count += 1          # a putter of the same key that is about to wait may replace e, without a free slot
    if old != NULL:
        locked_discard(q, old, REPLACED, fx)
    elif (<key_record *>e.options.value_key).refs > 1:
        notify_all(&q.putters, &fx.to_post)     # one of the same key may have waited for a free slot


# ---------------------------------------------------------------------------------------------------------------- order
cdef inline uint64_t order_in_level(entry *e) noexcept nogil:
    """The order of an entry that is appended to its level. `seq` is set."""
    return (<uint64_t>e.priority_level << LEVEL_SHIFT) | <uint64_t>e.seq


cdef inline void locked_link(entry_queue *q, entry *e) noexcept nogil:
    """Append to its level."""
    e.seq = q.nseq
    q.nseq += 1
    e.order = order_in_level(e)
    list_append(&q.lists[e.priority_level], e)
    if unlikely(q.nlevels > 1):
        q.ready[e.priority_level >> 6] |= <uint64_t>1 << (e.priority_level & 63)


cdef inline int locked_place_sorted(entry_queue *q, entry *e, search_range *found) noexcept nogil:
    """place_entry of a sorted queue. MT_EMPTY also if e, made before __init__, has no key: then prepare() raises."""
    cdef subscription *s = q.filtered
    cdef bint renumbered
    if not e.keyed or not search_place(&q.index, q.lists, found):
        return MT_EMPTY
    e.seq = q.nseq
    if not index_link(&q.index, q.lists, e, found, &renumbered):
        return MT_NOMEM
    q.nseq += 1
    if unlikely(renumbered):
        entry_heap_refresh(&q.shared.redeliveries)
        while s != NULL:
            entry_heap_refresh(&s.own_cursor.redeliveries)
            entry_heap_refresh(&s.own)
            s = s.filtered_next
        s = q.below
        while s != NULL:
            entry_heap_refresh(&s.below.redeliveries)
            s = s.below_next
        groups_renumbered(&q.groups_takable, &q.group_keys)
    if e.options == NULL or e.options.due == 0:
        locked_return_to_cursors(q, e, True)         # cursors at the entry after e are at e already (list_insert)
    return MT_OK


cdef inline void locked_link_arrival(entry_queue *q, entry *e) noexcept nogil:
    """Append e to the order of arrival."""
    e.options.newer = NULL
    e.options.older = q.newest
    if q.newest != NULL:
        q.newest.options.newer = e
    else:
        q.oldest = e
    q.newest = e


# -------------------------------------------------------------------------------------------------- put(immediate=True)
cdef inline int locked_hand_over(entry_queue *q, entry *e, search_range *found, selector_results *v,
                                 effects *fx) noexcept nogil:
    """Put e and acquire it at once for a waiter. MT_OK; DENIED: no subscription waits for it; SLOW: a selector has to
    be asked first; or as locked_put."""
    cdef subscription *s = NULL
    if q.shut:
        return MT_SHUTDOWN
    if locked_refuses(q, e):
        return MT_FULL
    if q.keyed and not (e.keyed and search_place(&q.index, q.lists, found)):
        return MT_EMPTY
    e.seq = q.nseq                  # may_take() compares it with `start`
    r = locked_find_taker(q, e, order_bound(q, e, found), v, &s)
    if r != MT_OK:
        return r
    r = locked_add(q, e, found, fx)
    if r != MT_OK:
        if s.credit != NULL:
            return_shared_credit(s.credit)      # first: while this thread waits for a lock, another may fork (E5)
            credit_notify(s.credit, fx)
        return r
    locked_reserve(q, s, e, fx)
    locked_wake_after_get(q, s, fx)
    if locked_overflows(q) and not in_dead_letter_call(q):
        locked_drop_oldest(q, e, fx)
    return MT_OK


cdef inline uint64_t order_bound(entry_queue *q, entry *e, search_range *found) noexcept nogil:
    """Of the entries that are before e, which is not linked yet, none has a larger order than this. It is exact,
    except in a queue with a `place` that is not ours: there any entry may be before e."""
    if q.place == NULL:
        return order_in_level(e) - 1        # the very first one: it wraps, and no entry is there
    return found.lo if q.keyed else LAST_ORDER


cdef inline int locked_find_taker(entry_queue *q, entry *e, uint64_t last, selector_results *v,
                                  subscription **found) noexcept nogil:
    """Of the subscriptions that want e, those of the highest priority count. MT_OK: *found is one of these in which a
    get waits, and which takes nothing before e; its shared credit, if any, is taken. DENIED: there is none. SLOW:
    selectors have to be asked first. MT_NOMEM."""
    cdef subscription *s = next_acquiring(q, NULL)
    cdef subscription_rank *claims = NULL       # the highest one with a subscription that wants e
    while s != NULL and (claims == NULL or claims == s.rank):
        if is_interested(s) and may_take(q, s, e) and known_result(v, s, e) > 0:
            claims = s.rank
            # While it is not known who wants e, nobody is asked about others.
            if s.waiters.n and v.asked == v.n and not locked_would_overtake(q, s, last, v):
                if s.credit == NULL or take_shared_credit(s.credit):
                    found[0] = s
                    return MT_OK
                s = NULL                    # a get of another queue took the last credit: begin again
                claims = NULL
        s = next_acquiring(q, s)
    if v.lost:
        return MT_NOMEM
    return SLOW if v.asked < v.n else DENIED


cdef inline bint locked_would_overtake(entry_queue *q, subscription *s, uint64_t last,
                                       selector_results *v) noexcept nogil:
    """Whether there is an AVAILABLE entry, of an order of at most `last`, that s would take next; or that is not
    known, because selectors have to be asked."""
    cdef search_way way = locked_way(q, s, next_above(s, NULL) != NULL)
    cdef cursor *c = &s.below if way == BELOW else s.cursor_in_use
    cdef cursor walk
    cdef entry *e
    if q.available == 0:
        return False
    if way == WALK:
        c = &walk
        if not open_cursor(q, c, False):
            v.lost = True
            return True
    r = locked_first_wanted(q, s, c, way, last, v, &e)
    if way == WALK:
        close_cursor(q, c)
    v.lost = v.lost or r == MT_NOMEM
    return r != MT_EMPTY
