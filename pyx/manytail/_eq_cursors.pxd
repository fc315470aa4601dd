# The cursors of an entry queue (_eq.pxd): how far a subscription has come in the order. Private.
#
# A cursor is a position per priority level, and a heap of the entries behind it that are AVAILABLE again, its
# redeliveries. The next entry is the first one at a position, or the top of the heap, whichever is earlier in the
# order. So a get after a release behind the cursor costs O(log n), whatever lies between. Unfiltered subscriptions
# share one cursor, because all of them pass the same entries; each filtered one has its own. Invariant: E2.
#
# Source: a subscription of Qpid has a pointer to the entry that it saw last and one to an entry released behind it. The
# heap here keeps all of those, so none is searched for.
from manytail._eq_manager cimport *


cdef inline bint open_cursor(entry_queue *q, cursor *c, bint newest) noexcept nogil:
    """Open a cursor at the first entry, or newest: at the end. False: no memory."""
    cdef uint32_t i
    cdef entry *at
    c.redeliveries.items = NULL
    c.redeliveries.n = c.redeliveries.capacity = 0
    c.positions = &c.one
    if q.nlevels > 1:
        c.positions = <cursor_position *>calloc(q.nlevels, sizeof(cursor_position))
        if c.positions == NULL:
            return False
    for i in range(q.nlevels):
        at = q.lists[i].first
        if newest:
            at = NULL
        if not position_open(&q.lists[i], &c.positions[i], at):
            while i > 0:
                i -= 1
                position_close(&q.lists[i], &c.positions[i])
            if c.positions != &c.one:
                free(c.positions)
            return False
    return True


cdef inline void close_cursor(entry_queue *q, cursor *c) noexcept nogil:
    for i in range(q.nlevels):
        position_close(&q.lists[i], &c.positions[i])
    if c.positions != &c.one:
        free(c.positions)
    entry_heap_free(&c.redeliveries)


cdef inline void cursor_rewind(entry_queue *q, cursor *c) noexcept nogil:
    for i in range(q.nlevels):
        position_move(&q.lists[i], &c.positions[i], q.lists[i].first)
    entry_heap_free(&c.redeliveries)


cdef inline entry *level_first(entry_list *l, cursor_position *p, int last_state) noexcept nogil:
    """The first entry from the position on with state <= last_state, or NULL. The position moves there."""
    cdef entry *e = position_at(p)
    cdef entry *was = e
    while e != NULL and state_of(e) > last_state:
        e = e.next
    if unlikely(e != was):
        position_move(l, p, e)
    return e


cdef inline entry *levels_first(entry_queue *q, cursor *c) noexcept nogil:
    cdef uint32_t w, i
    cdef uint64_t bits
    for w in range(<uint32_t>((q.nlevels + 63) >> 6)):
        bits = q.ready[w]
        while bits:
            i = w * 64 + mt_first_bit(bits)
            bits &= bits - 1
            e = level_first(&q.lists[i], &c.positions[i], AVAILABLE)
            if e != NULL:
                return e
    return NULL


cdef inline entry *cursor_first(entry_queue *q, cursor *c) noexcept nogil:
    """The next AVAILABLE entry for this cursor, or NULL."""
    if likely(q.nlevels == 1):
        e = level_first(q.lists, c.positions, AVAILABLE)
    else:
        e = levels_first(q, c)
    while unlikely(c.redeliveries.n != 0):
        if e != NULL and c.redeliveries.items[0].key > e.order:
            return e
        a = <entry *>c.redeliveries.items[0].member
        if state_of(a) == AVAILABLE:
            return a
        entry_heap_pop(&c.redeliveries)
    return e


cdef inline void cursor_skip(entry_queue *q, cursor *c, entry *e) noexcept nogil:
    """Pass the entry that cursor_first returned: it is acquired, or not wanted."""
    cdef cursor_position *p = &c.positions[e.priority_level]
    if likely(position_at(p) == e):
        position_move(&q.lists[e.priority_level], p, e.next)
    while unlikely(c.redeliveries.n != 0) and c.redeliveries.items[0].member == e:
        entry_heap_pop(&c.redeliveries)


cdef inline void cursor_return(entry_queue *q, cursor *c, entry *e) noexcept nogil:
    """e has become AVAILABLE: if the cursor has passed it, add it to the redeliveries."""
    cdef entry *at = position_at(&c.positions[e.priority_level])
    if at != NULL and e.order >= at.order:
        return
    if unlikely(not entry_heap_push(&c.redeliveries, e)):
        # No memory: move the position back instead. A browser then gets the entries after e again.
        position_move(&q.lists[e.priority_level], &c.positions[e.priority_level], e)


cdef inline void locked_return_to_cursors(entry_queue *q, entry *e, bint arrived) noexcept nogil:
    """e has become AVAILABLE, or arrived, in the middle of the order: return it to the cursors that have passed it
    (E2). Browsers see each entry once, so to them only arrivals are returned."""
    cdef subscription *s = q.filtered
    cursor_return(q, &q.shared, e)
    while s != NULL:
        if s.own_cursor.positions != NULL and (arrived or not s.browse) and passes_start_and_origin(s, e):
            cursor_return(q, &s.own_cursor, e)
        s = s.filtered_next
    s = q.below
    while s != NULL:
        if passes_start_and_origin(s, e):
            cursor_return(q, &s.below, e)
        s = s.below_next
    if unlikely(q.groups != GROUPS_NONE) and not arrived:       # for an arrival locked_put() does this
        group_available(&q.groups_takable, e)


# ------------------------------------------------------------------------------------------------- outranked by filters
# A subscription with filtered rivals must skip the entries that these want. Its cursor `below` does that, and below_ids
# says for which rivals it has skipped any. If one of those is not interested, the skipped entries may be takable,
# so the cursor begins again at the first entry.
cdef inline bint locked_prepare_below(entry_queue *q, subscription *s) noexcept nogil:
    """Call it before each use of s.below: open that, or rewind it if one of below_ids is no rival. False: no memory."""
    if not s.below_open:
        if not open_cursor(q, &s.below, False):
            return False
        s.below_open = True
        link_after(NULL, s, &s.below_next, &q.below, NULL)
    for i in range(s.nbelow_ids):
        if not locked_is_rival(s, s.below_ids[i]):
            s.nbelow_ids = 0
            cursor_rewind(q, &s.below)
            break
    return True


cdef inline bint add_skipped_for(subscription *s, uint32_t id) noexcept nogil:
    """s.below skips an entry for the rival with that id. False: no memory."""
    for i in range(s.nbelow_ids):
        if s.below_ids[i] == id:
            return True
    longer = <uint32_t *>realloc(s.below_ids, <size_t>(s.nbelow_ids + 1) * sizeof(uint32_t))
    if longer == NULL:
        return False
    longer[s.nbelow_ids] = id
    s.below_ids = longer
    s.nbelow_ids += 1
    return True


cdef inline void locked_close_below(entry_queue *q, subscription *s) noexcept nogil:
    if not s.below_open:
        return
    s.below_open = False
    close_cursor(q, &s.below)
    free(s.below_ids)
    s.below_ids = NULL
    s.nbelow_ids = 0
    unlink_from(s, &s.below_next, &q.below, NULL)
