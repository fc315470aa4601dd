# Acquiring entries of an entry queue (_eq.pxd). Private.
#
# locked_take is one try of a get. An unfiltered subscription gets the first AVAILABLE entry from the cursor that all of
# them share: O(1). SLOW means that filters decide, of any kind, of this subscription or of one that outranks it. Then
# Subscription.search (_subscriptions.pyx) takes over: locked_first_wanted finds the entry under the order lock. It
# returns SLOW for each selector that has to be asked, which is done without the lock, and is called again.
#
# put(immediate=True) acquires its entry for a getter that waits, and reserves it: the entry is in the subscription's
# list `reserved` until that getter, which was notified, fetches it by locked_take_reserved.
#
# Invariant
#   G1  nreserved <= notified, unless a notified waiter did not fetch its entry. If it was cancelled,
#       locked_release_unclaimed follows. Else it took an entry of another queue, or is gone since a fork: any get of
#       the subscription fetches reserved entries first.
from manytail._eq_end cimport *


cdef enum:                      # locked_judgement(); > 0: the id of the rival that wants the entry
    WANTED = 0
    NOT_WANTED = -1
    UNKNOWN = -2                # a selector has to be asked

cdef enum search_way:
    BY_CURSOR                   # along its own cursor, or the queue's
    BELOW                       # skipping what filtered subscriptions of a higher priority want: subscription.below
    BY_HEAPS                    # with groups: the heap of what anybody may take, and the heap of its own groups
    WALK                        # from the head, with a temporary cursor: what it skips, the next search may take


cdef inline int locked_take(entry_queue *q, subscription *s, entry **out, uint64_t *delivery,
                            effects *fx) noexcept nogil:
    """The fast path of a get: take the first AVAILABLE entry for an unfiltered subscription, with the
    references of a handle. Else MT_EMPTY, NO_CREDIT, CLOSED, or SLOW: filters decide."""
    cdef bint filtered_above
    cdef int r = locked_usable(s)
    if unlikely(r != MT_OK):
        return r
    if unlikely(s.filtered):
        return SLOW
    if unlikely(q.nranks > 1):
        if locked_outranked(s, &filtered_above):
            return MT_EMPTY
        if filtered_above:
            return SLOW
    e = cursor_first(q, &q.shared)
    if unlikely(e == NULL):
        return MT_EMPTY
    if unlikely(s.credit != NULL) and not take_shared_credit(s.credit):
        return NO_CREDIT
    cursor_skip(q, &q.shared, e)
    delivery[0] = locked_start_delivery(q, s, e)
    keep_for_handle(q, e)
    out[0] = e
    if unlikely(q.nranks > 1 or q.groups != GROUPS_NONE or q.shut):
        locked_wake_after_get(q, s, fx)
    return MT_OK


cdef inline uint64_t locked_start_delivery(entry_queue *q, subscription *s, entry *e) noexcept nogil:
    """AVAILABLE -> ACQUIRED. Returns the delivery number. The caller has taken a shared credit, if s shares one. It
    calls keep_for_handle()."""
    cdef uint64_t delivery = entry_acquire(&e.word)
    q.available -= 1
    q.acquired += 1
    q.counters.delivered += 1
    e.owner = s
    link_last(e, &e.after, &s.acquired_first, &s.acquired_last)
    s.nacquired += 1
    if unlikely(q.groups != GROUPS_NONE):
        group_taken(&q.groups_takable, e, &s.own, q.groups == GROUPS_ASSIGNED)
    if unlikely(s.limit > 0 or s.credit != NULL) and not has_credit(s):
        q.event_count += 1      # subscriptions that it outranked may try again; locked_wake_after_get wakes them
        locked_relist(q, s)
    return delivery


cdef inline void locked_wake_after_get(entry_queue *q, subscription *s, effects *fx) noexcept nogil:
    """After s has acquired an entry, wake the waiters of this queue that can go on because of it. If s shares a credit,
    Credit.interest_changed (_subscriptions.pyx) wakes those of other queues."""
    if q.nranks > 1 and (s.limit > 0 or s.credit != NULL) and not has_credit(s):
        locked_wake_many(q, q.available, fx)        # s has no credit left, so it outranks nobody
    if q.groups != GROUPS_NONE and s.waiters.n:
        locked_notify(q, s, fx)         # s owns the group, so another waiter of s may take the rest of it
    if q.shut:
        locked_wake_after_shutdown(q, False, fx)


cdef inline bint locked_nothing_left(entry_queue *q, subscription *s) noexcept nogil:
    """After shutdown, and a try that found nothing: whether nothing is left for s. Entries that others own, or have the
    first claim to, do not count. False also, while entries are AVAILABLE, if s lacks credit or is filtered: then
    Subscription.take_asking decides."""
    return q.held == 0 and (q.available == 0 or (not s.filtered and locked_usable(s) == MT_OK))


# --------------------------------------------------------------------------------------------------------------- groups
cdef inline bint locked_heaps_decide(entry_queue *q, subscription *s) noexcept nogil:
    """With groups: whether the heaps of _eq_keys.pxd decide what s may take. They do if only groups filter s, and only
    groups filter each interested subscription of higher priority."""
    cdef subscription *h = next_above(s, NULL)
    while h != NULL and h.any_entry:
        h = next_above(s, h)
    return s.any_entry and h == NULL and not q.groups_takable.lost


cdef inline entry *locked_first_of_groups(entry_queue *q, subscription *s) noexcept nogil:
    """The first AVAILABLE entry that s may take, or NULL. Only if locked_heaps_decide(). A subscription that is
    outranked may take only entries of groups that it owns."""
    return groups_first(&q.groups_takable, &s.own, next_above(s, NULL) != NULL)


# ------------------------------------------------------------------------------------------------------------ selectors
cdef inline int known_result(selector_results *v, subscription *s, entry *e) noexcept nogil:
    """What the selector of s says about e: 1 or 0. -1: it has to be asked, and was added to those that are."""
    cdef int64_t _i
    if s.selector == NULL:
        return 1
    for _i in range(v.asked):
        v.at = (v.at if v.at < v.asked else 0) + 1
        if v.items[v.at - 1].id == s.id and v.items[v.at - 1].e == e:
            return v.items[v.at - 1].wants
    if v.one_entry and v.n and v.items[0].e != e:
        drop_results(v)
    v.lost = not add_selector(v, s, e) or v.lost
    return -1


cdef inline void drop_results(selector_results *v) noexcept nogil:
    """Forget what selectors said. All were asked."""
    while v.n:
        v.n -= 1
        entry_drop(v.items[v.n].e)
    v.asked = 0


cdef inline bint add_selector(selector_results *v, subscription *s, entry *e) noexcept nogil:
    """Add the selector of s, with a reference, to those to be asked about e. False: no memory."""
    if v.n == v.capacity:
        longer = <selector_result *>realloc(v.items, (v.capacity * 2 + 4) * sizeof(selector_result))
        if longer == NULL:
            return False
        v.items = longer
        v.capacity = v.capacity * 2 + 4
    v.items[v.n].id = s.id
    v.items[v.n].e = e
    v.items[v.n].selector = <PyObject *>s.selector
    keep(<uintptr_t>s.selector)
    entry_keep(e)
    v.n += 1
    return True


cdef inline int64_t locked_judgement(entry_queue *q, subscription *s, entry *e, bint below,
                                     selector_results *v) noexcept nogil:
    """Whether s wants e, which passes its other filters. below: and no rival of s does."""
    cdef subscription *h = next_above(s, NULL) if below else NULL
    cdef int wants = known_result(v, s, e)
    if wants <= 0:
        return NOT_WANTED if wants == 0 else UNKNOWN
    while h != NULL:
        wants = known_result(v, h, e) if may_take(q, h, e) else 0
        if wants:
            return <int64_t>h.id if wants > 0 else <int64_t>UNKNOWN
        h = next_above(s, h)
    return WANTED


# --------------------------------------------------------------------------------------------------------------- search
cdef inline search_way locked_way(entry_queue *q, subscription *s, bint has_rivals) noexcept nogil:
    if s.browse or (q.groups == GROUPS_NONE and not has_rivals):
        return BY_CURSOR
    if q.groups == GROUPS_NONE:
        return BELOW
    return BY_HEAPS if locked_heaps_decide(q, s) else WALK


cdef inline entry *locked_candidate(entry_queue *q, subscription *s, cursor *c, search_way way, int *r) noexcept nogil:
    """The next entry from the cursor on that passes all filters of s but the selector. NULL: *r says why there is
    none."""
    r[0] = locked_usable(s)
    if r[0] == MT_OK and way == BELOW and not locked_prepare_below(q, s):
        r[0] = MT_NOMEM
    if r[0] != MT_OK:
        return NULL
    while True:
        e = locked_first_of_groups(q, s) if way == BY_HEAPS else cursor_first(q, c)
        if e == NULL:
            r[0] = MT_EMPTY
        if e == NULL or may_take(q, s, e):
            return e
        cursor_skip(q, c, e)


cdef inline int locked_first_wanted(entry_queue *q, subscription *s, cursor *c, search_way way, uint64_t last,
                                    selector_results *v, entry **out) noexcept nogil:
    """Find the first AVAILABLE entry, of an order of at most `last`, that s wants and may take. MT_OK; MT_EMPTY;
    SLOW: selectors have to be asked first; MT_NOMEM, NO_CREDIT or CLOSED."""
    cdef int r
    cdef bint known = True
    e = locked_candidate(q, s, c, way, &r)
    while e != NULL and e.order <= last:
        refused = locked_judgement(q, s, e, way == BELOW or way == WALK, v)
        if refused == UNKNOWN:
            # A walk begins at the head each time. So the next one has all answers, unless only one entry's are kept.
            known = False
            if v.one_entry or way != WALK:
                break
        elif refused == WANTED and known:
            out[0] = e
            return MT_OK
        if way == BELOW and refused > 0 and not add_skipped_for(s, <uint32_t>refused):
            return MT_NOMEM
        cursor_skip(q, c, e)
        e = locked_candidate(q, s, c, way, &r)
    if v.lost:
        return MT_NOMEM
    if not known:
        return SLOW
    return r if e == NULL else MT_EMPTY


# ----------------------------------------------------------------------------------------------------- reserved entries
cdef inline void locked_reserve(entry_queue *q, subscription *s, entry *e, effects *fx) noexcept nogil:
    """Acquire e for the waiter that waits longest in s, and notify it. A thread goes first: the loop of a task may be
    busy or stopped. s has a waiter. The caller has taken a shared credit, if s shares one."""
    locked_start_delivery(q, s, e)
    unlink_from(e, &e.after, &s.acquired_first, &s.acquired_last)
    link_last(e, &e.after, &s.reserved_first, &s.reserved_last)
    e.reserved = True
    s.nreserved += 1
    notify_first(&s.waiters, THREADS if s.waiters.first[<int>THREADS] != NULL else TASKS, &fx.to_post)
    s.notified += 1
    locked_relist(q, s)


cdef inline void locked_unreserve(subscription *s, entry *e) noexcept nogil:
    """Move e from the reserved entries to the acquired ones."""
    unlink_from(e, &e.after, &s.reserved_first, &s.reserved_last)
    link_last(e, &e.after, &s.acquired_first, &s.acquired_last)
    e.reserved = False
    s.nreserved -= 1


cdef inline bint locked_take_reserved(entry_queue *q, subscription *s, bint woken, entry **out,
                                      uint64_t *delivery) noexcept nogil:
    """Fetch a reserved entry. woken: the caller was notified, and answers that with this call. False: there is none for
    it: all that are reserved are for other notified waiters."""
    if woken:
        locked_answer(s)
    if s.nreserved == 0 or not (woken or s.nreserved > s.notified):
        return False
    out[0] = s.reserved_first
    delivery[0] = word_delivery(entry_word(&out[0].word))
    locked_unreserve(s, out[0])
    keep_for_handle(q, out[0])
    return True


cdef inline void locked_release_unclaimed(subscription *s, effects *fx) noexcept nogil:
    """Release the entries that are reserved for waiters that will not fetch them."""
    while s.nreserved > s.notified:
        e = s.reserved_first
        locked_unreserve(s, e)
        locked_release(s.q, e, word_delivery(entry_word(&e.word)), 0, fx)
