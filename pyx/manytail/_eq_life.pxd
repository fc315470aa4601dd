# The life of an entry queue (_eq.pxd): making and freeing it, opening and closing subscriptions, shutdown, fork.
# Private.
from manytail._eq_get cimport *


# --------------------------------------------------------------------------------------------------------------- queues
cdef inline void lock_registry(eq_registry *r) noexcept nogil:
    enter(&r.lock, not MT_FREE_THREADED and r.objects, r.objects)


cdef inline void unlock_registry(eq_registry *r) noexcept nogil:
    leave(&r.lock, not MT_FREE_THREADED and r.objects)


cdef inline entry_queue *new_queue(eq_registry *r) noexcept nogil:
    cdef entry_queue *q = <entry_queue *>calloc(1, sizeof(entry_queue))
    if q == NULL:
        return NULL
    q.objects = r.objects
    q.gil_locked = r.objects and not MT_FREE_THREADED
    q.registry = r
    q.lists = &q.one_list
    q.nlevels = 1
    q.ready = &q.one_ready
    q.next_id = 1
    if not open_cursor(q, &q.shared, False):
        free(q)
        return NULL
    lock_registry(r)
    link_after(NULL, q, &q.reg_next, &r.first, NULL)
    unlock_registry(r)
    return q


cdef inline int make_levels(entry_queue *q, uint32_t n, int64_t offset) noexcept nogil:
    """Give an unused queue n priority levels. MT_OK. MT_NOMEM, or DENIED, as it is in use: nothing has changed."""
    if n == 1:
        q.priority_offset = offset
        return MT_OK
    lists = <entry_list *>calloc(n, sizeof(entry_list))
    ready = <uint64_t *>calloc((n + 63) // 64, sizeof(uint64_t))
    lock_order(q)
    cdef int r = MT_NOMEM if lists == NULL or ready == NULL else locked_make_levels(q, lists, ready, n)
    if r == MT_OK:
        q.priority_offset = offset
    unlock_order(q)
    if r != MT_OK:
        free(lists)
        free(ready)
    return r


cdef inline int locked_make_levels(entry_queue *q, entry_list *lists, uint64_t *ready, uint32_t n) noexcept nogil:
    cdef cursor fresh
    if q.nseq or q.nsubscriptions or q.filtered != NULL:
        return DENIED
    q.lists, q.ready, q.nlevels = lists, ready, n
    if not open_cursor(q, &fresh, False):
        q.lists, q.ready, q.nlevels = &q.one_list, &q.one_ready, 1
        return MT_NOMEM
    position_close(&q.one_list, &q.shared.one)
    q.shared = fresh                # can be copied: with several levels nothing points to `one`
    return MT_OK


cdef inline void locked_shutdown(entry_queue *q, bint immediate, effects *fx) noexcept nogil:
    q.shut = True
    q.shut_now = q.shut_now or immediate
    if immediate:
        locked_discard_all(q, SHUT, False, fx)
    q.event_count += 1
    notify_all(&q.putters, &fx.to_post)
    locked_wake_everybody(q, fx)


cdef inline void locked_clear(entry_queue *q, entry *e, effects *fx) noexcept nogil:
    """Discard e, which is linked, in any state and also with LOCK, without counting it in the totals."""
    cdef int was = state_of(e)
    cdef shared_credit *c = lock_credit_of_owner(e)
    if e.reserved:
        locked_unreserve(<subscription *>e.owner, e)
    if was == ACQUIRED:
        credit_locked_end_delivery(q, e, fx)
    elif was == HELD:
        q.held -= 1
    else:
        q.available -= 1
    locked_unlink_ended(q, e, CLEARED, fx)
    unlock_credit(c)


cdef inline void free_queue(entry_queue *q) noexcept nogil:
    """Free a queue without entries and subscriptions."""
    lock_registry(q.registry)
    unlink_from(q, &q.reg_next, &q.registry.first, NULL)
    unlock_registry(q.registry)
    while q.ranks != NULL:
        rank = q.ranks
        q.ranks = rank.next
        free(rank)
    close_cursor(q, &q.shared)
    entry_heap_free(&q.groups_takable.anybody)
    free(q.timers.items)
    free(q.index.leaves)
    free(q.group_keys.buckets)
    free(q.value_keys.buckets)
    if q.lists != &q.one_list:
        free(q.lists)
        free(q.ready)
    free(q)


# -------------------------------------------------------------------------------------------------- credit of Consumers
cdef inline void open_credit(eq_registry *r, shared_credit *c) noexcept nogil:
    c.gil_locked = r.objects and not MT_FREE_THREADED
    c.registry = r
    lock_registry(r)
    link_after(NULL, c, &c.reg_next, &r.first_credit, NULL)
    unlock_registry(r)


cdef inline void close_credit(shared_credit *c) noexcept nogil:
    lock_registry(c.registry)
    unlink_from(c, &c.reg_next, &c.registry.first_credit, NULL)
    unlock_registry(c.registry)


# -------------------------------------------------------------------------------------------------------- subscriptions
cdef inline int locked_subscribe(entry_queue *q, subscription *s, int64_t priority, bint newest) noexcept nogil:
    """MT_OK, MT_NOMEM, or DENIED: an exclusive subscription must be the only one."""
    if q.exclusive or (s.exclusive and q.nsubscriptions):
        return DENIED
    s.cursor_in_use = &q.shared
    if s.filtered and (s.browse or q.groups == GROUPS_NONE):
        if not open_cursor(q, &s.own_cursor, newest):
            return MT_NOMEM
        s.cursor_in_use = &s.own_cursor
    s.start = q.nseq if newest else 0
    if not s.browse:
        s.rank = locked_rank(q, priority)
        if s.rank == NULL:
            if s.cursor_in_use == &s.own_cursor:
                close_cursor(q, &s.own_cursor)
            return MT_NOMEM
        link_last(s, &s.all_next, &s.rank.all.first, &s.rank.all.last)
    if s.filtered:
        link_after(NULL, s, &s.filtered_next, &q.filtered, NULL)
    s.id = q.next_id
    q.next_id += 1
    q.nsubscriptions += 1
    q.exclusive = s.exclusive
    return MT_OK


cdef inline void locked_remove_subscription(entry_queue *q, subscription *s) noexcept nogil:
    list_subscription(q, s, NULL)
    if s.filtered:
        unlink_from(s, &s.filtered_next, &q.filtered, NULL)
    while s.filtered and not s.browse and q.below != NULL:
        locked_close_below(q, q.below)      # s may have been their only rival; they are opened again if needed
    if s.rank != NULL:
        unlink_from(s, &s.all_next, &s.rank.all.first, &s.rank.all.last)
        locked_free_empty_rank(q, s.rank)
        s.rank = NULL
    q.nsubscriptions -= 1
    if s.exclusive:
        q.exclusive = False


cdef inline void locked_unsubscribe(entry_queue *q, subscription *s, effects *fx) noexcept nogil:
    """Close s: release what it owns, each entry at its old place, and wake its waiters and those of others."""
    if is_closed(s):
        return
    while s.reserved_first != NULL:
        locked_unreserve(s, s.reserved_first)
    # Before s.closed is set: a release may detach, and the child of a fork must not find a closed owner.
    while s.acquired_first != NULL:
        e = s.acquired_first
        locked_release(q, e, word_delivery(entry_word(&e.word)), 0, fx)
    locked_remove_subscription(q, s)
    set_closed(s)
    if s.cursor_in_use == &s.own_cursor:
        close_cursor(q, &s.own_cursor)
    locked_close_below(q, s)
    if q.groups != GROUPS_NONE:
        groups_closed(&q.groups_takable, &q.group_keys, &s.own, q.groups == GROUPS_ASSIGNED, &fx.keys)
    notify_all(&s.waiters, &fx.to_post)
    locked_wake_many(q, q.available, fx)


# ----------------------------------------------------------------------------------------------------------------- fork
# When os.fork() is called, no attached thread is inside an operation: with the GIL because the forking thread has it,
# without because CPython stops the world first, and nothing here detaches in the middle of a change (E5). So the
# child's structures are consistent. It resets the locks and forgets the waiters of the other threads.
cdef inline void forget_other_threads(eq_registry *r, unsigned long me) noexcept nogil:
    """In the child of a fork: reset the locks, keep only waiting tasks of the forking thread (A6 of _waiting.pxd)."""
    cdef entry_queue *q = r.first
    cdef shared_credit *c = r.first_credit
    while c != NULL:
        mt_lock_reset(&c.lock)
        keep_tasks(&c.waiters, me)
        c = c.reg_next
    while q != NULL:
        forget_threads_of_queue(q, me)
        q = q.reg_next
    mt_lock_reset(&r.lock)


cdef inline void forget_threads_of_queue(entry_queue *q, unsigned long me) noexcept nogil:
    cdef subscription *s = q.filtered
    mt_lock_reset(&q.lock)
    q.index.searches = NULL         # of threads that are gone
    q.index.epoch += 1              # one of this thread begins again
    q.armed_for = 0                 # the thread that set these may not have made the request
    q.thread_notified = False
    keep_tasks(&q.putters, me)
    forget_dead_letter_calls(q, me)
    while s != NULL:
        if s.browse:
            forget_waiters(s, me)
        s = s.filtered_next
    s = next_acquiring(q, NULL)
    while s != NULL:
        forget_waiters(s, me)
        s = next_acquiring(q, s)


cdef inline void forget_waiters(subscription *s, unsigned long me) noexcept nogil:
    keep_tasks(&s.waiters, me)
    s.notified = 0
    locked_relist(s.q, s)


cdef inline void forget_dead_letter_calls(entry_queue *q, unsigned long me) noexcept nogil:
    """Keep only the dead-letter calls of the forking thread."""
    cdef dead_letter_call *r = q.dead_letter_calls
    q.dead_letter_calls = NULL
    while r != NULL:
        following = r.next
        if r.thread == me:
            r.next = q.dead_letter_calls
            q.dead_letter_calls = r
        r = following
