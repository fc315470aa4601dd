# The algorithm of the entry queues on their C structs, nogil throughout. Functions whose name starts with "ordered_" must be called with
# the order lock held (with the GIL: attached); they run no Python code. What they leave to be done afterwards is in `debts`.

cdef enum:
    OVERFLOW_BLOCK = 0
    OVERFLOW_REJECT = 1
    OVERFLOW_DROP = 2

cdef enum:
    GROUPS_NONE = 0
    GROUPS_SHARED = 1
    GROUPS_ASSIGNED = 2

cdef enum:                  # entry.reason
    ACKED = 1
    REJECTED = 2
    EXPIRED = 3
    EXHAUSTED = 4           # max_deliveries
    OVERFLOWN = 5
    SHUT = 6
    PURGED = 7
    REPLACED = 8
    CLEARED = 9

cdef enum:
    LETTERS_NONE = 0
    LETTERS_QUEUE = 1
    LETTERS_CALL = 2        # a callable

cdef enum:                  # beside the MT_* codes
    ST_NO_CREDIT = 100
    ST_CLOSED = 101
    ST_DENIED = 102         # a subscription of higher priority has the first claim
    ST_SLOW = 103
    ST_GIVEN = 104          # put(immediate=True) handed an entry over

cdef enum:
    LEVEL_SHIFT = 48
    RUN = 1000              # entries that put_many links under one hold of the lock


# ----------------------------------------------------------------------------------------------------------------- lock
cdef inline void lock_order(core *q) noexcept nogil:
    if LOCKS and unlikely(not mt_lock_try(&q.lock)):
        lock_slow_heavy(&q.lock, ATTACHED)


cdef inline void unlock_order(core *q) noexcept nogil:
    cdef mt_lock_node *n
    if LOCKS:
        n = mt_unlock(&q.lock)
        if unlikely(n != NULL):
            post_lock_node(n)


cdef inline int64_t depth_of(core *q) noexcept nogil:
    return q.available + q.acquired + q.held


cdef inline int state_of(entry *e) noexcept nogil:
    return mt_word_state(mt_entry_word(&e.word))


# --------------------------------------------------------------------------------------------------- chains, the manager
cdef inline void chain_append(chain *c, sub *s) noexcept nogil:
    s.place = c
    s.next = NULL
    s.prev = c.last
    if c.last != NULL:
        c.last.next = s
    else:
        c.first = s
    c.last = s


cdef inline void chain_remove(sub *s) noexcept nogil:
    cdef chain *c = s.place
    if s.prev != NULL:
        s.prev.next = s.next
    else:
        c.first = s.next
    if s.next != NULL:
        s.next.prev = s.prev
    else:
        c.last = s.prev
    s.place = NULL


cdef inline bint has_credit(sub *s) noexcept nogil:
    cdef int64_t limit
    if s.pool == NULL:
        return s.limit <= 0 or s.nheld < s.limit
    # relaxed because: whoever gives credit back or changes the limit counts an event afterwards, under the order lock or the pool's
    limit = mt_load_relaxed_i64(&s.pool.limit)
    return limit <= 0 or mt_load_relaxed_i64(&s.pool.used) < limit     # relaxed because: as above


cdef inline bint is_suspended(sub *s) noexcept nogil:
    # relaxed because: as in has_credit
    return s.suspended or (s.pool != NULL and mt_load_relaxed_i64(&s.pool.suspended) != 0)


cdef inline bint is_interested(sub *s) noexcept nogil:
    return not s.closed and not is_suspended(s) and (s.browse or has_credit(s))


cdef inline bint counts_as_waiting(core *q, chain *c, level *lvl) noexcept nogil:
    return c == &q.browsers_waiting or (lvl != NULL and (c == &lvl.waiting or c == &lvl.choosy))


cdef chain *ordered_place(core *q, sub *s) noexcept nogil:
    """The list that a subscription belongs into now: the states of the consumer manager."""
    if not is_interested(s):
        return &q.idle
    if s.browse:
        return &q.browsers_waiting if s.waiters.n else &q.browsers
    if s.waiters.n:
        return &s.lvl.choosy if s.own else &s.lvl.waiting
    return &s.lvl.notified if s.notified > 0 else &s.lvl.interested


cdef inline void ordered_relist(core *q, sub *s) noexcept nogil:
    """O(1): move it there, to the end, if it is elsewhere."""
    cdef chain *to
    if s.closed:
        return
    to = ordered_place(q, s)
    if to == s.place:
        return
    q.nwaiting += <int>counts_as_waiting(q, to, s.lvl) - <int>counts_as_waiting(q, s.place, s.lvl)
    chain_remove(s)
    chain_append(to, s)


cdef bint ordered_notify(core *q, sub *s, debts *d) noexcept nogil:
    """Wake who has waited longest in it; it goes to the end of its list."""
    cdef int64_t n = s.waiters.n
    if n == 0 or not is_interested(s):
        ordered_relist(q, s)
        return False
    mt_waitlist_notify(&s.waiters, &d.wake)
    s.notified += n - s.waiters.n
    ordered_relist(q, s)
    if s.waiters.n and s.next != NULL:
        chain = s.place
        chain_remove(s)
        chain_append(chain, s)
    return True


cdef inline bint quick_wants(sub *s, entry *e) noexcept nogil:
    """What can be said without the selector: False is for good."""
    if e.seq < s.start:
        return False
    return s.origin == NULL or e.more == NULL or e.more.origin != s.origin


cdef inline bint may_take(core *q, sub *s, entry *e) noexcept nogil:
    return quick_wants(s, e) and (q.groups == GROUPS_NONE or group_allows(q, s, e))


cdef void ordered_wake(core *q, entry *e, bint arrived, debts *d) noexcept nogil:
    """e has become takable (NULL: anything may have): wake one subscription that takes any entry, and those with wishes that it may suit.

    A woken waiter takes one entry, so one wake-up per entry is enough for subscriptions that are alike; the others look for
    themselves, because their selectors cannot run here."""
    q.events += 1
    if likely(q.nwaiting == 0):
        return
    ordered_wake_all_that_may(q, e, arrived, d)


cdef int64_t ordered_wake_choosy(core *q, chain *c, entry *e, debts *d) noexcept nogil:
    cdef sub *s = c.first
    cdef sub *last = c.last
    cdef sub *following
    cdef int64_t n = 0
    while s != NULL:
        following = s.next
        if e == NULL or may_take(q, s, e):
            n += ordered_notify(q, s, d)
        if s == last:
            break
        s = following
    return n


cdef int64_t ordered_wake_all_that_may(core *q, entry *e, bint arrived, debts *d) noexcept nogil:
    """How many subscriptions were notified."""
    cdef level *lvl = q.levels
    cdef int64_t n = 0
    cdef bint done = False
    if arrived:
        n += ordered_wake_choosy(q, &q.browsers_waiting, e, d)
    while lvl != NULL:
        n += ordered_wake_choosy(q, &lvl.choosy, e, d)
        while not done and lvl.waiting.first != NULL:
            done = ordered_notify(q, lvl.waiting.first, d)
        lvl = lvl.next
    return n + done


cdef void ordered_wake_many(core *q, int64_t n, debts *d) noexcept nogil:
    """Up to n entries may be takable for others than before."""
    q.events += 1
    while n > 0 and q.nwaiting and ordered_wake_all_that_may(q, NULL, True, d):
        n -= 1


cdef bint ordered_outranked(core *q, sub *s, bint *maybe) noexcept nogil:
    """Some subscription of higher priority is interested and takes anything. maybe: one with wishes is."""
    cdef level *lvl = q.levels
    cdef sub *h
    maybe[0] = False
    while lvl != NULL and lvl.priority > s.lvl.priority:
        h = lvl.all.first
        while h != NULL:
            if is_interested(h):
                if not h.own:
                    return True
                maybe[0] = True
            h = h.all_next
        lvl = lvl.next
    return False


# --------------------------------------------------------------------------------------------------------------- cursors
cdef bint cursor_open(core *q, cursor *c, bint newest) noexcept nogil:
    """False: no memory. The lists are as they are now."""
    cdef uint32_t i
    c.again.items = NULL
    c.again.n = c.again.room = 0
    c.pos = &c.one
    if q.nlevels > 1:
        c.pos = <mt_pos *>calloc(q.nlevels, sizeof(mt_pos))
        if c.pos == NULL:
            return False
    for i in range(q.nlevels):
        if not mt_pos_open(&q.lists[i], &c.pos[i], NULL if newest else q.lists[i].first):
            while i > 0:
                i -= 1
                mt_pos_close(&q.lists[i], &c.pos[i])
            if c.pos != &c.one:
                free(c.pos)
            return False
    return True


cdef void cursor_close(core *q, cursor *c) noexcept nogil:
    cdef uint32_t i
    for i in range(q.nlevels):
        mt_pos_close(&q.lists[i], &c.pos[i])
    if c.pos != &c.one:
        free(c.pos)
    mt_again_free(&c.again)


cdef inline entry *level_first(mt_list *places, mt_pos *p, int wanted) noexcept nogil:
    """The first AVAILABLE entry that was not passed; the ones before it are passed now."""
    cdef entry *e = mt_pos_at(p)
    cdef entry *was = e
    while e != NULL and state_of(e) > wanted:
        e = e.next
    if e != was:
        mt_pos_move(places, p, e)
    return e


cdef entry *levels_first(core *q, cursor *c) noexcept nogil:
    cdef uint32_t w, i
    cdef uint64_t bits
    cdef entry *e
    for w in range((q.nlevels + 63) // 64):
        bits = q.ready[w]
        while bits:
            i = w * 64 + mt_first_bit(bits)
            bits &= bits - 1
            e = level_first(&q.lists[i], &c.pos[i], MT_ENTRY_AVAILABLE)
            if e != NULL:
                return e
    return NULL


cdef inline entry *cursor_first(core *q, cursor *c) noexcept nogil:
    """The next AVAILABLE entry for this pointer, or NULL."""
    cdef entry *e
    cdef entry *a
    if likely(q.nlevels == 1):
        e = level_first(q.lists, c.pos, MT_ENTRY_AVAILABLE)
    else:
        e = levels_first(q, c)
    while c.again.n:
        if e != NULL and c.again.items[0].order > e.order:
            return e
        a = c.again.items[0].e
        if state_of(a) == MT_ENTRY_AVAILABLE:
            return a
        mt_again_pop(&c.again)
    return e


cdef inline void cursor_skip(core *q, cursor *c, entry *e) noexcept nogil:
    """Pass what cursor_first returned."""
    if mt_pos_at(&c.pos[e.level]) == e:
        mt_pos_move(&q.lists[e.level], &c.pos[e.level], e.next)
    while c.again.n and c.again.items[0].e == e:
        mt_again_pop(&c.again)


cdef inline void cursor_again(core *q, cursor *c, entry *e) noexcept nogil:
    """e is AVAILABLE: if the pointer is past it, it has to come back."""
    cdef entry *at = mt_pos_at(&c.pos[e.level])
    if at != NULL and e.order >= at.order:
        return
    if unlikely(not mt_again_push(&c.again, e)):
        mt_pos_move(&q.lists[e.level], &c.pos[e.level], e)      # no memory: walk from there again


cdef void ordered_offer(core *q, entry *e, bint arrived, debts *d) noexcept nogil:
    """e is AVAILABLE behind some pointers: move those back that want it, wake who waits."""
    cdef sub *s = q.owners
    cursor_again(q, &q.shared, e)
    while s != NULL:
        if (arrived or not s.browse) and quick_wants(s, e):
            cursor_again(q, &s.mine, e)
        s = s.own_next
    ordered_wake(q, e, arrived, d)


# ------------------------------------------------------------------------------------------------------------ life of an entry
cdef inline void ordered_link(core *q, entry *e) noexcept nogil:
    """Append to its level; it counts from now on."""
    e.seq = q.nseq
    q.nseq += 1
    e.order = (<uint64_t>e.level << LEVEL_SHIFT) | <uint64_t>e.seq
    mt_list_append(&q.lists[e.level], e)
    q.ready[e.level >> 6] |= <uint64_t>1 << (e.level & 63)


cdef inline void ordered_count_in(core *q, entry *e) noexcept nogil:
    cdef int64_t depth
    q.figures.enqueued += 1
    depth = depth_of(q)
    if depth > q.figures.high_water:
        q.figures.high_water = depth
    if unlikely(q.arrivals):
        e.more.newer = NULL
        e.more.older = q.newest
        if q.newest != NULL:
            q.newest.more.newer = e
        else:
            q.oldest = e
        q.newest = e


cdef inline uint64_t ordered_acquire(core *q, sub *s, entry *e) noexcept nogil:
    """AVAILABLE -> ACQUIRED. Counts a reference to the entry, its item and its extra for the handle to be made."""
    cdef uint64_t delivery = mt_entry_acquire(&e.word)
    q.available -= 1
    q.acquired += 1
    ordered_hand(q, s, e)
    return delivery


cdef inline void ordered_hand(core *q, sub *s, entry *e) noexcept nogil:
    q.figures.delivered += 1
    e.owner = s
    e.held_next = NULL
    e.held_prev = s.held_last
    if s.held_last != NULL:
        s.held_last.held_next = e
    else:
        s.held_first = e
    s.held_last = e
    s.nheld += 1
    if unlikely(s.pool != NULL):
        mt_fetch_add_acq_rel_i64(&s.pool.used, 1)   # pairs with: mt_fetch_add_acq_rel in ordered_let_go
    if unlikely(q.groups != GROUPS_NONE):
        group_taken(q, s, e)
    keep_for_handle(e)
    if unlikely((s.limit > 0 or s.pool != NULL) and not has_credit(s)):
        ordered_out_of_credit(q, s)


cdef inline void keep_for_handle(entry *e) noexcept nogil:
    mt_entry_keep(e)
    Py_INCREF_raw(<PyObject *>e.item)
    if unlikely(e.extra != NULL):
        Py_INCREF_raw(<PyObject *>e.extra)


cdef void ordered_out_of_credit(core *q, sub *s) noexcept nogil:
    q.events += 1           # who was outranked by it may look again; the caller wakes them: ordered_after_get
    ordered_relist(q, s)


cdef inline pool *ordered_begin_to_let_go(entry *e) noexcept nogil:
    """First step of whatever ends the hold on e: lock the credit that its holder shares with others; NULL: it has its own.

    This comes before anything is changed. Whoever waits for a lock detaches, and then another thread may fork: its child must not find an
    entry that is half given up. After this step nothing detaches until unlock_pool."""
    cdef sub *s = <sub *>e.owner
    if likely(s == NULL or s.pool == NULL):
        return NULL
    lock_pool(s.pool)
    return s.pool


cdef inline void ordered_let_go(core *q, entry *e, debts *d) noexcept nogil:
    """The entry is no longer held by its subscription: credit comes back. The pool of its holder is locked."""
    cdef sub *s = <sub *>e.owner
    if unlikely(s == NULL):
        return              # nobody holds it
    if e.held_prev != NULL:
        e.held_prev.held_next = e.held_next
    else:
        s.held_first = e.held_next
    if e.held_next != NULL:
        e.held_next.held_prev = e.held_prev
    else:
        s.held_last = e.held_prev
    e.owner = NULL
    s.nheld -= 1
    if unlikely(q.groups != GROUPS_NONE):
        group_left(q, s, e, d)
    if unlikely(s.pool != NULL):
        locked_pool_back(s.pool, d)
    if unlikely(s.limit > 0 or s.pool != NULL):
        q.events += 1
        ordered_relist(q, s)
        if s.waiters.n:
            ordered_notify(q, s, d)


cdef inline void lock_pool(pool *p) noexcept nogil:
    if LOCKS and not mt_lock_try(&p.lock):
        lock_slow(&p.lock, ATTACHED)


cdef inline void unlock_pool(pool *p) noexcept nogil:
    """NULL: there was none to be locked."""
    cdef mt_lock_node *n
    if LOCKS and p != NULL:
        n = mt_unlock(&p.lock)
        if n != NULL:
            post_lock_node(n)


cdef void locked_pool_back(pool *p, debts *d) noexcept nogil:
    """Credit of a Consumer comes back: whoever waits in it, for whichever queue, looks again."""
    # pairs with: mt_fetch_add_acq_rel in ordered_hand
    mt_fetch_add_acq_rel_i64(&p.used, -1)
    # relaxed because: whoever changes it calls pool_notify afterwards
    if mt_load_relaxed_i64(&p.limit) > 0:
        locked_pool_notify(p, d)


cdef inline void locked_pool_notify(pool *p, debts *d) noexcept nogil:
    p.version += 1
    mt_waitlist_notify_all(&p.waiters, &d.wake)


cdef void pool_notify(pool *p, debts *d) noexcept nogil:
    lock_pool(p)
    locked_pool_notify(p, d)
    unlock_pool(p)


cdef inline void ordered_bury(core *q, entry *e, uint32_t reason, debts *d) noexcept nogil:
    """DEQUEUED -> DELETED: unlink it. The list's reference goes to the debts, which release the item. The caller has taken it off
    its state's count."""
    cdef mt_list *place = &q.lists[e.level]
    if unlikely(e.more != NULL):
        ordered_bury_more(q, e, d)
    if unlikely(e.keyed):
        leaf_remove(q, e)
    mt_list_unlink(place, e)
    if place.first == NULL and q.nlevels > 1:
        q.ready[e.level >> 6] &= ~(<uint64_t>1 << (e.level & 63))
    e.reason = reason
    count_death(q, reason)
    mt_entry_delete(&e.word)
    if unlikely(reason == EXPIRED and q.letters == LETTERS_CALL):
        ordered_leave_to_thread(q, e, d)        # here, so that they are called in the order in which they expired
    else:
        e.held_next = d.dead
        d.dead = e
    if unlikely(q.stopped or q.putters.n):
        ordered_room(q, d)


cdef void ordered_leave_to_thread(core *q, entry *e, debts *d) noexcept nogil:
    """A dead entry is for the thread of dead letters (_en_time.pxi), which runs the user's code: its callable, the finalizer of its item."""
    e.held_next = NULL
    if q.late_last != NULL:
        q.late_last.held_next = e
    else:
        q.late = e
    q.late_last = e
    ordered_tell_thread(q, d)


cdef void ordered_leave_keys_to_thread(core *q, debts *d) noexcept nogil:
    cdef keyrec *k = d.keys
    while k.next != NULL:
        k = k.next
    k.next = q.late_keys
    q.late_keys = d.keys
    d.keys = NULL
    ordered_tell_thread(q, d)


cdef inline void ordered_tell_thread(core *q, debts *d) noexcept nogil:
    d.late = d.late or not q.late_told
    q.late_told = True


cdef void ordered_bury_more(core *q, entry *e, debts *d) noexcept nogil:
    cdef more *m = e.more
    if m.timer:
        mt_timers_remove(&q.timers, e)
        if q.timers.n == 0 and q.watched > mt_now_coarse_ns() + 1000000000:
            d.quiet = True
    if q.arrivals:
        if m.older != NULL:
            m.older.more.newer = m.newer
        else:
            q.oldest = m.newer
        if m.newer != NULL:
            m.newer.more.older = m.older
        else:
            q.newest = m.older
    if m.slot != NULL:
        slot_left(q, e, d)
    if m.group != NULL:
        ordered_unpin(&q.group_keys, <keyrec *>m.group, d)
        m.group = NULL


cdef inline void count_death(core *q, uint32_t reason) noexcept nogil:
    if reason == ACKED:
        q.figures.acked += 1
    elif reason == REJECTED:
        q.figures.rejected += 1
    elif reason == EXPIRED:
        q.figures.expired += 1
    elif reason == PURGED:
        q.figures.purged += 1
    elif reason != CLEARED:
        q.figures.dropped += 1
    if q.letters and is_letter(reason):
        q.figures.dead_lettered += 1


cdef inline bint is_letter(uint32_t reason) noexcept nogil:
    return REJECTED <= reason <= SHUT


cdef void ordered_room(core *q, debts *d) noexcept nogil:
    """The depth went down: let as many putters go on as there is room for."""
    cdef int64_t depth = depth_of(q), n
    if q.stopped and (q.maxsize <= 0 or depth <= q.resume_mark):
        q.stopped = False
    if q.stopped:
        return
    n = q.putters.n if q.maxsize <= 0 else q.maxsize - depth
    while q.putters.n and n > 0:
        mt_waitlist_notify(&q.putters, &d.wake)
        n -= 1


cdef inline bint ordered_full(core *q) noexcept nogil:
    """Whether a put has to wait or be refused: once it was full, until the depth is down to the resume mark."""
    if likely(q.maxsize <= 0):
        return False
    if q.overflow == OVERFLOW_BLOCK:
        q.stopped = q.stopped or depth_of(q) >= q.maxsize
        return q.stopped
    return q.overflow == OVERFLOW_REJECT and depth_of(q) >= q.maxsize


cdef void ordered_released(core *q, entry *e, int64_t due, debts *d) noexcept nogil:
    """The holder is gone and the state is AVAILABLE or HELD already."""
    q.acquired -= 1
    if unlikely(q.slot_keys.n):
        q.events += 1           # a coroutine that is about to wait for room tries again
        mt_waitlist_notify_all(&q.putters, &d.wake)     # a put that replaces this entry, AVAILABLE or HELD, needs no room
    if due:
        q.held += 1
        e.more.due = due
        ordered_set_timer(q, e)
        return
    q.available += 1
    ordered_offer(q, e, False, d)


cdef void ordered_set_timer(core *q, entry *e) noexcept nogil:
    """When something is due to it; room was reserved."""
    cdef int64_t when = e.more.expires
    if state_of(e) == MT_ENTRY_HELD and (when == 0 or e.more.due < when):
        when = e.more.due
    if when:
        mt_timers_set(&q.timers, e, when)
    else:
        mt_timers_remove(&q.timers, e)


cdef bint ordered_reserve_timer(core *q, entry *e) noexcept nogil:
    """Make sure that ordered_set_timer cannot fail. False: no memory."""
    if e.more == NULL:
        e.more = <more *>calloc(1, sizeof(more))
    return e.more != NULL and mt_timers_reserve(&q.timers, q.timers.n + 1)


cdef inline uint16_t level_of(core *q, int64_t priority) noexcept nogil:
    """Index of the list, most urgent first."""
    return <uint16_t>(q.nlevels - 1 - max(0, min(priority - q.mapping, <int64_t>q.nlevels - 1)))


cdef bint ordered_release(core *q, entry *e, uint64_t delivery, int64_t due, debts *d) noexcept nogil:
    """ACQUIRED -> AVAILABLE or HELD, or dead: delivered too often, out of date, replaced, or the queue takes nothing back."""
    cdef pool *p = ordered_begin_to_let_go(e)
    cdef bint done = ordered_release_step(q, e, delivery, due, d)
    unlock_pool(p)
    if q.overflow == OVERFLOW_DROP and q.maxsize > 0 and depth_of(q) > q.maxsize and done and mt_entry_linked(e):
        ordered_make_room(q, NULL, d)
    return done


cdef bint ordered_release_step(core *q, entry *e, uint64_t delivery, int64_t due, debts *d) noexcept nogil:
    """ordered_release but for what drop_oldest does afterwards. The pool of the holder is locked."""
    cdef uint32_t reason = 0
    if q.max_deliveries > 0 and delivery >= <uint64_t>q.max_deliveries:
        reason = EXHAUSTED
    elif q.shut_now:
        reason = SHUT
    elif e.more != NULL and e.more.slot != NULL and slot_replaced(e):
        reason = REPLACED
    elif e.more != NULL and e.more.expires and e.more.expires <= mt_now_ns():
        reason = EXPIRED
    if reason:
        return ordered_finish_step(q, e, delivery, reason, d)
    if not mt_entry_release(&e.word, delivery, MT_ENTRY_HELD if due else MT_ENTRY_AVAILABLE):
        return False
    q.figures.released += 1
    ordered_let_go(q, e, d)
    ordered_released(q, e, due, d)
    return True


cdef bint ordered_finish(core *q, entry *e, uint64_t delivery, uint32_t reason, debts *d) noexcept nogil:
    """ACQUIRED -> dead, by its holder: ack and reject. False: this delivery is over."""
    cdef pool *p = ordered_begin_to_let_go(e)
    cdef bint done = ordered_finish_step(q, e, delivery, reason, d)
    unlock_pool(p)
    return done


cdef inline bint ordered_finish_step(core *q, entry *e, uint64_t delivery, uint32_t reason, debts *d) noexcept nogil:
    """The pool of the holder is locked."""
    if not mt_entry_dequeue(&e.word, delivery):
        return False
    ordered_let_go(q, e, d)
    q.acquired -= 1
    ordered_bury(q, e, reason, d)
    return True


cdef bint ordered_kill(core *q, entry *e, uint32_t reason, debts *d) noexcept nogil:
    """AVAILABLE, HELD or unlocked -> dead."""
    if not ordered_kill_one_of_many(q, e, reason, d):
        return False
    if unlikely(q.shut):
        ordered_ending(q, d)
    return True


cdef bint ordered_kill_one_of_many(core *q, entry *e, uint32_t reason, debts *d) noexcept nogil:
    """The same; the caller tells those who wait for the end once for all, because that looks at every subscription with wishes."""
    cdef int was = state_of(e)
    cdef pool *p = NULL
    if was == MT_ENTRY_ACQUIRED:
        p = ordered_begin_to_let_go(e)
        if not mt_entry_steal(&e.word):
            unlock_pool(p)
            return False
        ordered_let_go(q, e, d)
        q.acquired -= 1
    elif was <= MT_ENTRY_HELD:
        if not mt_entry_withdraw(&e.word):
            return False
        if was == MT_ENTRY_AVAILABLE:
            q.available -= 1
        else:
            q.held -= 1
    else:
        return False
    ordered_bury(q, e, reason, d)
    unlock_pool(p)
    return True


cdef void ordered_make_room(core *q, entry *spared, debts *d) noexcept nogil:
    """drop_oldest: drop until the depth is maxsize, least urgent level first, oldest arrival inside it."""
    cdef entry *e
    cdef entry *following
    cdef int64_t i = q.nlevels
    if q.arrivals:
        e = q.oldest
        while e != NULL and depth_of(q) > q.maxsize:
            following = e.more.newer
            if e != spared:
                ordered_kill(q, e, OVERFLOWN, d)
            e = following
        return
    while i > 0 and depth_of(q) > q.maxsize:
        i -= 1
        e = q.lists[i].first
        while e != NULL and depth_of(q) > q.maxsize:
            following = e.next
            if e != spared:
                ordered_kill(q, e, OVERFLOWN, d)
            e = following


cdef void ordered_tend(core *q, int64_t now, debts *d) noexcept nogil:
    """Do what is due: un-hold, expire."""
    cdef entry *e
    cdef int state
    while q.timers.n and q.timers.items[0].when <= now:
        e = q.timers.items[0].e
        state = state_of(e)
        if e.more.expires and e.more.expires <= now:
            if not ordered_kill(q, e, EXPIRED, d):
                mt_timers_remove(&q.timers, e)      # locked: looked at again when it is unlocked or released
        elif state == MT_ENTRY_HELD:
            mt_entry_unhold(&e.word)
            q.held -= 1
            q.available += 1
            ordered_set_timer(q, e)
            ordered_offer(q, e, False, d)
        else:
            ordered_set_timer(q, e)


cdef inline void ordered_look_at_clock(core *q, debts *d) noexcept nogil:
    if unlikely(q.timers.n):
        ordered_tend(q, mt_now_ns(), d)


# ------------------------------------------------------------------------------------------------------------------ taking
cdef inline int ordered_usable(sub *s) noexcept nogil:
    if unlikely(s.closed):
        return ST_CLOSED
    if s.browse:
        return ST_NO_CREDIT if is_suspended(s) else MT_OK
    if unlikely(is_suspended(s) or not has_credit(s)):
        return ST_NO_CREDIT
    return MT_OK


cdef inline int ordered_take_plain(core *q, sub *s, entry **out, uint64_t *delivery) noexcept nogil:
    """The first AVAILABLE entry, for a subscription that takes any. ST_SLOW: ask the long way."""
    cdef bint maybe
    cdef int r = ordered_usable(s)
    cdef entry *e
    if r != MT_OK:
        return r
    if unlikely(s.own):
        return ST_SLOW
    if unlikely(q.nlvls > 1):
        if ordered_outranked(q, s, &maybe):
            return MT_EMPTY
        if maybe:
            return ST_SLOW
    e = cursor_first(q, &q.shared)
    if e == NULL:
        return MT_EMPTY
    cursor_skip(q, &q.shared, e)
    delivery[0] = ordered_acquire(q, s, e)
    out[0] = e
    return MT_OK


cdef inline void ordered_after_get(core *q, sub *s, debts *d) noexcept nogil:
    """A subscription of high priority whose credit is used up leaves the rest to the others."""
    if unlikely(q.nlvls > 1 and (s.limit > 0 or s.pool != NULL) and not has_credit(s)):
        ordered_wake_many(q, q.available, d)
    if unlikely(q.groups != GROUPS_NONE and s.waiters.n):
        ordered_notify(q, s, d)         # the group is its own now: what else is in it may be for who waits beside
    if unlikely(q.shut):
        ordered_ending(q, d)


cdef void ordered_ending(core *q, debts *d) noexcept nogil:
    """After shutdown something went: who waited for just that may have nothing to wait for any more. Those with wishes look for themselves,
    out of credit and suspended ones too: what is left may be nothing to them."""
    cdef sub *s = q.owners
    q.events += 1
    if q.available + q.held == 0:
        ordered_wake_everybody(q, d)
        return
    while s != NULL:
        if s.waiters.n and not s.browse:
            ordered_wake_sub(q, s, d)
        s = s.own_next


# ------------------------------------------------------------------------------------------------- put(immediate=True)
cdef int known_verdict(verdicts *v, uint32_t id) noexcept nogil:
    """1, 0, or -1: not asked."""
    cdef int64_t i
    for i in range(v.n):
        if v.items[i].id == id:
            return v.items[i].wants
    return -1


cdef int ordered_find_waiting(core *q, entry *e, verdicts *v, sub **found) noexcept nogil:
    """Who waits for such an entry, and has the first claim to it: MT_OK. ST_DENIED: nobody. ST_SLOW: not all selectors were asked."""
    cdef level *lvl = q.levels
    cdef sub *s
    cdef bint claimed = False
    cdef int wants
    while lvl != NULL and found[0] == NULL and not claimed:
        s = lvl.all.first
        while s != NULL:
            if is_interested(s) and may_take(q, s, e):
                wants = 1 if s.selector == NULL else known_verdict(v, s.id)
                if wants < 0:
                    return ST_SLOW
                if wants and s.waiters.n and found[0] == NULL:
                    found[0] = s
                claimed = claimed or wants
            s = s.all_next
        lvl = lvl.next
    return MT_OK if found[0] != NULL else ST_DENIED


cdef bint ordered_unasked(core *q, entry *e, verdicts *v) noexcept nogil:
    """Note the selectors that are to be asked. False: no memory."""
    cdef level *lvl = q.levels
    cdef sub *s
    cdef verdict *longer
    while lvl != NULL:
        s = lvl.all.first
        while s != NULL:
            if s.selector != NULL and is_interested(s) and may_take(q, s, e) and known_verdict(v, s.id) < 0:
                if v.n == v.room:
                    longer = <verdict *>realloc(v.items, (v.room * 2 + 4) * sizeof(verdict))
                    if longer == NULL:
                        return False
                    v.items = longer
                    v.room = v.room * 2 + 4
                v.items[v.n].id = s.id
                v.items[v.n].wants = False
                v.items[v.n].selector = <PyObject *>s.selector
                Py_INCREF_raw(<PyObject *>s.selector)
                v.n += 1
            s = s.all_next
        lvl = lvl.next
    return True
