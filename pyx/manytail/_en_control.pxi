# What happens to an entry queue besides entries moving: making and freeing, subscriptions that come and go, purge, shutdown, fork.

# ------------------------------------------------------------------------------------------------ the registry, for fork
# Every queue of the process is linked here. os.fork() is called attached, and no attached thread is half way through an operation then
# (with the GIL because the forking thread has it, without because CPython stops the world first, and nothing of ours detaches with a
# structure half changed), so the child has whole structures; it forgets locks and waiters of threads that it does not have.
cdef mt_lock registry_lock
cdef core *registry_first = NULL
cdef pool *pools_first = NULL


cdef inline void lock_registry() noexcept nogil:
    if LOCKS and not mt_lock_try(&registry_lock):
        lock_slow(&registry_lock, ATTACHED)


cdef inline void unlock_registry() noexcept nogil:
    cdef mt_lock_node *n
    if LOCKS:
        n = mt_unlock(&registry_lock)
        if n != NULL:
            post_lock_node(n)


cdef core *new_core() noexcept nogil:
    global registry_first
    cdef core *q = <core *>calloc(1, sizeof(core))
    if q == NULL:
        return NULL
    q.lists = &q.one
    q.nlevels = 1
    q.ready = &q.one_ready
    q.next_sub = 1
    if not cursor_open(q, &q.shared, False):
        free(q)
        return NULL
    lock_registry()
    q.reg_next = registry_first
    if registry_first != NULL:
        registry_first.reg_prev = q
    registry_first = q
    unlock_registry()
    return q


cdef void register_pool(pool *p) noexcept nogil:
    global pools_first
    lock_registry()
    p.reg_next = pools_first
    if pools_first != NULL:
        pools_first.reg_prev = p
    pools_first = p
    unlock_registry()


cdef void unregister_pool(pool *p) noexcept nogil:
    global pools_first
    lock_registry()
    if p.reg_prev != NULL:
        p.reg_prev.reg_next = p.reg_next
    else:
        pools_first = p.reg_next
    if p.reg_next != NULL:
        p.reg_next.reg_prev = p.reg_prev
    unlock_registry()


cdef int make_levels(core *q, uint32_t n, int64_t mapping) noexcept nogil:
    """Before first use: MT_OK. MT_NOMEM, or ST_DENIED: it is in use; nothing has changed then."""
    cdef mt_list *lists
    cdef uint64_t *ready
    cdef int r
    if n == 1:
        q.mapping = mapping
        return MT_OK
    lists = <mt_list *>calloc(n, sizeof(mt_list))
    ready = <uint64_t *>calloc((n + 63) // 64, sizeof(uint64_t))
    lock_order(q)
    r = MT_NOMEM if lists == NULL or ready == NULL else ordered_make_levels(q, lists, ready, n)
    if r == MT_OK:
        q.mapping = mapping
    unlock_order(q)
    if r != MT_OK:
        free(lists)
        free(ready)
    return r


cdef int ordered_make_levels(core *q, mt_list *lists, uint64_t *ready, uint32_t n) noexcept nogil:
    cdef cursor fresh
    if q.nseq or q.nsubs or q.owners != NULL:
        return ST_DENIED
    q.lists, q.ready, q.nlevels = lists, ready, n
    if not cursor_open(q, &fresh, False):
        q.lists, q.ready, q.nlevels = &q.one, &q.one_ready, 1
        return MT_NOMEM
    mt_pos_close(&q.one, &q.shared.one)
    q.shared = fresh            # its positions are in memory of their own
    return MT_OK


cdef void free_levels(core *q) noexcept nogil:
    if q.lists != &q.one:
        free(q.lists)
    if q.ready != &q.one_ready:
        free(q.ready)


cdef void free_core(core *q) noexcept nogil:
    """No entry is left, no subscription."""
    global registry_first
    cdef level *lvl
    lock_registry()
    if q.reg_prev != NULL:
        q.reg_prev.reg_next = q.reg_next
    else:
        registry_first = q.reg_next
    if q.reg_next != NULL:
        q.reg_next.reg_prev = q.reg_prev
    unlock_registry()
    while q.levels != NULL:
        lvl = q.levels
        q.levels = lvl.next
        free(lvl)
    if q.shared.pos != NULL:
        cursor_close(q, &q.shared)
    free(q.timers.items)
    free(q.leaves)
    free(q.group_keys.buckets)
    free(q.slot_keys.buckets)
    free_levels(q)
    free(q)


cdef void forget_threads_of_sub(sub *s, unsigned long me) noexcept nogil:
    mt_waitlist_keep_thread(&s.waiters, me)
    s.notified = 0
    ordered_relist(s.q, s)


cdef void forget_letters_of_others(core *q, unsigned long me) noexcept nogil:
    """The calls of dead letter callables that other threads of the parent are in."""
    cdef running *r = q.running
    cdef running *following
    q.running = NULL
    while r != NULL:
        following = r.next
        if r.thread == me:
            list_letter(q, r)
        r = following


cdef void forget_other_threads(unsigned long me) noexcept nogil:
    """In the child: locks are free, nobody waits but event loops of the one thread that is left."""
    cdef core *q = registry_first
    cdef pool *p = pools_first
    cdef level *lvl
    cdef sub *s
    while p != NULL:
        mt_lock_reset(&p.lock)
        mt_waitlist_keep_thread(&p.waiters, me)
        p = p.reg_next
    while q != NULL:
        mt_lock_reset(&q.lock)
        mt_waitlist_keep_thread(&q.putters, me)
        forget_letters_of_others(q, me)
        lvl = q.levels
        while lvl != NULL:
            s = lvl.all.first
            while s != NULL:
                forget_threads_of_sub(s, me)
                s = s.all_next
            lvl = lvl.next
        s = q.owners
        while s != NULL:
            if s.browse:
                forget_threads_of_sub(s, me)
            s = s.own_next
        q = q.reg_next
    mt_lock_reset(&registry_lock)


# ---------------------------------------------------------------------------------------------------------- subscriptions
cdef level *ordered_level(core *q, int64_t priority) noexcept nogil:
    """The manager's lists for that priority, made if missing. NULL: no memory."""
    cdef level **at = &q.levels
    cdef level *lvl
    while at[0] != NULL and at[0].priority > priority:
        at = &at[0].next
    if at[0] != NULL and at[0].priority == priority:
        return at[0]
    lvl = <level *>calloc(1, sizeof(level))
    if lvl != NULL:
        lvl.priority = priority
        lvl.next = at[0]
        at[0] = lvl
        q.nlvls += 1
    return lvl


cdef void ordered_leave_level(core *q, level *lvl) noexcept nogil:
    cdef level **at = &q.levels
    lvl.n -= 1
    if lvl.n:
        return
    while at[0] != lvl:
        at = &at[0].next
    at[0] = lvl.next
    q.nlvls -= 1
    free(lvl)


cdef int ordered_subscribe(core *q, sub *s, int64_t priority, bint newest) noexcept nogil:
    """MT_OK, MT_NOMEM, or ST_DENIED: an exclusive one does not go with others."""
    if q.exclusive or (s.exclusive and q.nsubs):
        return ST_DENIED
    s.cur = &q.shared
    if s.own:
        if not cursor_open(q, &s.mine, newest):
            return MT_NOMEM
        s.cur = &s.mine
    s.start = q.nseq if newest else 0
    if not s.browse:
        s.lvl = ordered_level(q, priority)
        if s.lvl == NULL:
            if s.own:
                cursor_close(q, &s.mine)
            return MT_NOMEM
        s.lvl.n += 1
        s.all_next = NULL
        s.all_prev = s.lvl.all.last
        if s.lvl.all.last != NULL:
            s.lvl.all.last.all_next = s
        else:
            s.lvl.all.first = s
        s.lvl.all.last = s
    if s.own:
        s.own_next = q.owners
        if q.owners != NULL:
            q.owners.own_prev = s
        q.owners = s
    s.id = q.next_sub
    q.next_sub += 1
    q.nsubs += 1
    q.exclusive = s.exclusive
    chain_append(ordered_place(q, s), s)
    return MT_OK


cdef void ordered_unlist(core *q, sub *s) noexcept nogil:
    q.nwaiting -= counts_as_waiting(q, s.place, s.lvl)
    chain_remove(s)
    if s.own:
        if s.own_prev != NULL:
            s.own_prev.own_next = s.own_next
        else:
            q.owners = s.own_next
        if s.own_next != NULL:
            s.own_next.own_prev = s.own_prev
    if s.lvl != NULL:
        if s.all_prev != NULL:
            s.all_prev.all_next = s.all_next
        else:
            s.lvl.all.first = s.all_next
        if s.all_next != NULL:
            s.all_next.all_prev = s.all_prev
        else:
            s.lvl.all.last = s.all_prev
        ordered_leave_level(q, s.lvl)
        s.lvl = NULL
    q.nsubs -= 1
    if s.exclusive:
        q.exclusive = False


cdef void ordered_unsubscribe(core *q, sub *s, debts *d) noexcept nogil:
    """Close: release what it holds, each entry at its old place; hand wake-ups that it was given over to others."""
    cdef entry *e
    if s.closed:
        return
    while s.held_first != NULL:             # before it is closed: a release may detach, and a child of a fork must not find a closed holder
        e = s.held_first
        ordered_release(q, e, mt_word_delivery(mt_entry_word(&e.word)), 0, d)
    ordered_unlist(q, s)
    s.closed = True
    if s.own:
        cursor_close(q, &s.mine)
    if q.groups != GROUPS_NONE:
        groups_closed(q, s, d)
    mt_waitlist_notify_all(&s.waiters, &d.wake)
    ordered_wake_many(q, q.available, d)


cdef void ordered_set_suspended(core *q, sub *s, bint suspended, debts *d) noexcept nogil:
    if s.closed or s.suspended == suspended:
        return
    s.suspended = suspended
    q.events += 1
    ordered_relist(q, s)
    if suspended:
        ordered_wake_many(q, q.available, d)        # those that it outranked, or whose wake-up it was given
    else:
        while s.waiters.n and ordered_notify(q, s, d):
            pass


cdef void ordered_set_limit(core *q, sub *s, int64_t limit, debts *d) noexcept nogil:
    cdef bint was = is_interested(s)
    s.limit = limit
    q.events += 1
    if s.closed:
        return
    ordered_relist(q, s)
    if not is_interested(s):
        if was:
            ordered_wake_many(q, q.available, d)
        return
    while s.waiters.n and ordered_notify(q, s, d):
        pass


# ---------------------------------------------------------------------------------------------------------------- entries
cdef inline void ordered_join(core *q, entry *e, debts *d) noexcept nogil:
    """A linked entry counts from now on."""
    if unlikely(e.more != NULL and e.more.due != 0):
        mt_store_relaxed_i64(&e.word, MT_ENTRY_HELD)        # relaxed because: whoever looks has the order lock
        q.held += 1
    else:
        q.available += 1
    if unlikely(e.more != NULL):
        if e.more.due or e.more.expires:
            ordered_set_timer(q, e)
        if e.more.slot != NULL:
            slot_joined(q, e, d)
    ordered_count_in(q, e)
    if likely(e.more == NULL or e.more.due == 0):
        ordered_wake(q, e, True, d)


cdef bint ordered_unlock_entry(core *q, entry *e, uint64_t delivery, debts *d) noexcept nogil:
    """From now on it may be stolen, and what waited for that is due. False: this delivery is over, or it is not locked."""
    if not mt_entry_unlock(&e.word, delivery):
        return False
    if e.more != NULL and e.more.expires and mt_entry_linked(e):
        if e.more.expires <= mt_now_ns():
            ordered_kill(q, e, EXPIRED, d)
        elif mt_timers_reserve(&q.timers, q.timers.n + 1):
            ordered_set_timer(q, e)
    if q.overflow == OVERFLOW_DROP and q.maxsize > 0 and depth_of(q) > q.maxsize:
        ordered_make_room(q, NULL, d)
    return True


cdef int64_t ordered_kill_all(core *q, uint32_t reason, bint unlocked, debts *d) noexcept nogil:
    """AVAILABLE and HELD entries, and acquired ones that are unlocked; how many."""
    cdef int64_t n = 0
    cdef uint32_t i
    cdef entry *e
    cdef entry *following
    for i in range(q.nlevels):
        e = q.lists[i].first
        while e != NULL:
            following = e.next
            if unlocked or state_of(e) <= MT_ENTRY_HELD:
                n += ordered_kill_one_of_many(q, e, reason, d)
            e = following
    if q.shut and n:
        ordered_ending(q, d)
    return n


cdef void ordered_shutdown(core *q, bint immediate, debts *d) noexcept nogil:
    cdef level *lvl
    cdef sub *s
    q.shut = True
    q.shut_now = q.shut_now or immediate
    if immediate:
        ordered_kill_all(q, SHUT, False, d)
    q.events += 1
    mt_waitlist_notify_all(&q.putters, &d.wake)
    ordered_wake_everybody(q, d)


cdef void ordered_wake_everybody(core *q, debts *d) noexcept nogil:
    """All waiters of all subscriptions look again."""
    cdef level *lvl = q.levels
    cdef sub *s
    while lvl != NULL:
        s = lvl.all.first
        while s != NULL:
            ordered_wake_sub(q, s, d)
            s = s.all_next
        lvl = lvl.next
    s = q.owners
    while s != NULL:
        if s.browse:
            ordered_wake_sub(q, s, d)
        s = s.own_next


cdef void ordered_wake_sub(core *q, sub *s, debts *d) noexcept nogil:
    s.notified += s.waiters.n
    mt_waitlist_notify_all(&s.waiters, &d.wake)
    ordered_relist(q, s)


cdef int64_t ordered_oldest(core *q) noexcept nogil:
    """When the oldest entry was put, 0: there is none."""
    cdef int64_t born = 0
    cdef uint32_t i
    if q.arrivals:
        return q.oldest.born if q.oldest != NULL else 0
    if q.keyed:
        return sorted_oldest(q).born if q.nleaves else 0
    for i in range(q.nlevels):
        if q.lists[i].first != NULL and (born == 0 or q.lists[i].first.born < born):
            born = q.lists[i].first.born
    return born


cdef void free_entries(core *q) noexcept:
    """The queue is being freed: nobody can look at it any more."""
    cdef debts d
    cdef entry *e
    cdef uint32_t i
    clear_debts(&d)
    for i in range(q.nlevels):
        while q.lists[i].first != NULL:
            e = q.lists[i].first
            clear_entry(q, e, &d)
            d.dead = NULL
            release_entry(e)
    while q.late != NULL:
        e = q.late
        q.late = e.held_next
        release_entry(e)
    if d.keys != NULL:
        release_keys(d.keys)
    if q.late_keys != NULL:
        release_keys(q.late_keys)


cdef void clear_entry(core *q, entry *e, debts *d) noexcept nogil:
    """Whatever its state: dead, with no count but depth's."""
    cdef int was = state_of(e)
    cdef pool *p = ordered_begin_to_let_go(e)
    if was == MT_ENTRY_ACQUIRED:
        if e.owner != NULL:
            ordered_let_go(q, e, d)
        q.acquired -= 1
    elif was == MT_ENTRY_HELD:
        q.held -= 1
    else:
        q.available -= 1
    ordered_bury(q, e, CLEARED, d)
    unlock_pool(p)


# ---------------------------------------------------------------------------------------------------- dead letter callables
cdef void enter_letter(core *q, running *here) noexcept nogil:
    """This thread is inside the dead letter callable of this queue."""
    here.thread = this_thread()
    lock_order(q)
    list_letter(q, here)
    unlock_order(q)


cdef void list_letter(core *q, running *here) noexcept nogil:
    here.prev = NULL
    here.next = q.running
    if q.running != NULL:
        q.running.prev = here
    q.running = here


cdef void leave_letter(core *q, running *here) noexcept nogil:
    lock_order(q)
    if here.prev != NULL:
        here.prev.next = here.next
    else:
        q.running = here.next
    if here.next != NULL:
        here.next.prev = here.prev
    unlock_order(q)
