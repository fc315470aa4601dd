# How deliveries and entries of an entry queue end (_eq.pxd). Private.
#
# A delivery ends when the entry is acked, rejected or released, or is discarded after LOCK was cleared. An entry ends
# when it is acked, rejected or discarded: `entry.reason` says why. It is then dead: DEQUEUED, and at once DELETED.
#
# One compare-and-swap of the entry's state word decides which of several calls ends a delivery (_entry.pxd). The order
# lock is kept for the swap and for all that follows from it: unlinking, counts, credit, wake-ups. Dropping the item and
# sending the dead letter may run user code. So the caller does both after unlocking, for the entries in `effects.dead`.
#
# Invariant E3 holds at each return. For E5, whatever ends a delivery begins with lock_credit_of_owner().
from manytail._eq_capacity cimport *
from manytail._eq_cursors cimport *


# ------------------------------------------------------------------------------------------------ the end of a delivery
cdef inline shared_credit *lock_credit_of_owner(entry *e) noexcept nogil:
    """The first step of whatever ends a delivery of e: lock the credit that its owner shares. NULL: it shares none.

    Change nothing before this step. A thread that waits for a lock detaches, and then another thread may fork: the
    child would find a delivery that is half ended (E5). After this step nothing detaches until unlock_credit()."""
    cdef subscription *s = <subscription *>e.owner
    if likely(s == NULL or s.credit == NULL):
        return NULL
    lock_credit(s.credit)
    return s.credit


cdef inline void credit_locked_end_delivery(entry_queue *q, entry *e, effects *fx) noexcept nogil:
    """Remove e from its owner's list and return its credit."""
    cdef subscription *s = <subscription *>e.owner
    q.acquired -= 1
    unlink_from(e, &e.after, &s.acquired_first, &s.acquired_last)
    e.owner = NULL
    s.nacquired -= 1
    if unlikely(q.groups != GROUPS_NONE) \
            and group_delivery_ended(&q.groups_takable, e, q.groups == GROUPS_ASSIGNED):
        locked_wake_many(q, 1, fx)
    if unlikely(s.limit > 0 or s.credit != NULL):
        credit_locked_return(q, s, fx)


cdef inline bint credit_locked_end(entry_queue *q, entry *e, uint64_t delivery, uint32_t reason,
                                   effects *fx) noexcept nogil:
    """ACQUIRED -> dead, by whoever got that delivery. False: it has already ended."""
    if unlikely(not entry_dequeue(&e.word, delivery)):
        return False
    credit_locked_end_delivery(q, e, fx)
    locked_unlink_ended(q, e, reason, fx)
    return True


cdef inline bint locked_end(entry_queue *q, entry *e, uint64_t delivery, uint32_t reason, effects *fx) noexcept nogil:
    """Lock a shared credit, and call credit_locked_end()."""
    cdef shared_credit *c = lock_credit_of_owner(e)
    cdef bint done = credit_locked_end(q, e, delivery, reason, fx)
    unlock_credit(c)
    return done


cdef inline int64_t locked_ack_up_to(entry_queue *q, subscription *s, entry *last, effects *fx) noexcept nogil:
    """Ack the entries that s owns, from the first that it got up to `last`, which it owns. Returns how many."""
    cdef shared_credit *c = lock_credit_of_owner(last)
    cdef entry *following = s.acquired_first
    cdef int64_t n = 0
    while True:
        e = following
        following = e.after.acquired_next
        n += credit_locked_end(q, e, word_delivery(entry_word(&e.word)), ACKED, fx)
        if e == last:
            break
    unlock_credit(c)
    return n


cdef inline bint locked_release(entry_queue *q, entry *e, uint64_t delivery, int64_t due, effects *fx) noexcept nogil:
    """ACQUIRED -> AVAILABLE (due: 0), or HELD until `due`, or dead if locked_reason_to_end() says so. False: the
    delivery has already ended."""
    cdef shared_credit *c = lock_credit_of_owner(e)
    cdef uint32_t reason = locked_reason_to_end(q, e, delivery)
    if unlikely(reason != 0):
        done = credit_locked_end(q, e, delivery, reason, fx)
    else:
        done = entry_release(&e.word, delivery, HELD if due else AVAILABLE)
        if done:
            q.counters.released += 1
            credit_locked_end_delivery(q, e, fx)
            locked_complete_release(q, e, due, fx)
    unlock_credit(c)
    # The depth is unchanged, but e can be dropped now: overflow spares an entry with LOCK.
    if unlikely(locked_overflows(q)) and done and is_linked(e):
        locked_drop_oldest(q, NULL, fx)
    return done


cdef inline uint32_t locked_reason_to_end(entry_queue *q, entry *e, uint64_t delivery) noexcept nogil:
    """Why a release of e discards it instead, or 0."""
    if q.max_deliveries > 0 and delivery >= <uint64_t>q.max_deliveries:
        return EXHAUSTED
    if q.shut_now:
        return SHUT
    if e.options != NULL and e.options.value_key != NULL and value_replaced(e):
        return REPLACED
    if e.options != NULL and e.options.expires and e.options.expires <= mt_now_ns():
        return EXPIRED
    return 0


cdef inline void locked_complete_release(entry_queue *q, entry *e, int64_t due, effects *fx) noexcept nogil:
    """The last step of locked_release(), after the delivery has ended: the state is AVAILABLE (due: 0) or HELD."""
    if unlikely(q.value_keys.n):
        # A put that replaces this entry needs no free slot. Wake the putters that wait. The event is for one that is
        # about to wait (locked_poll_free_slot).
        q.event_count += 1
        notify_all(&q.putters, &fx.to_post)
    if due:
        q.held += 1
        e.options.due = due
        locked_set_timer(q, e)
        return
    q.available += 1
    locked_return_to_cursors(q, e, False)
    locked_wake(q, e, fx)


cdef inline bint locked_unlock_entry(entry_queue *q, entry *e, uint64_t delivery, effects *fx) noexcept nogil:
    """Clear LOCK of an ACQUIRED entry: expiry, purge and overflow may discard it from now on. Expire or drop it at once
    if that is due. False: the delivery has ended, or LOCK is not set."""
    if not entry_unlock(&e.word, delivery):
        return False
    # If it expires later, it has a timer since the put: only locked_run_due_timers removes it, when its time is over.
    if e.options != NULL and e.options.expires and e.options.expires <= mt_now_ns():
        locked_discard(q, e, EXPIRED, fx)
    if locked_overflows(q):
        locked_drop_oldest(q, NULL, fx)
    return True


# -------------------------------------------------------------------------------------------------- the end of an entry
cdef inline void locked_unlink_ended(entry_queue *q, entry *e, uint32_t reason, effects *fx) noexcept nogil:
    """DEQUEUED -> DELETED: unlink e. The list's references to e and its item move to the effects, or to the dead-letter
    thread. The caller has updated `available`, `acquired` and `held`."""
    if unlikely(e.options != NULL):
        locked_unlink_options(q, e, fx)
    if unlikely(e.keyed):
        index_remove(&q.index, e)
    list_unlink(&q.lists[e.priority_level], e)
    if unlikely(q.nlevels > 1) and q.lists[e.priority_level].first == NULL:
        q.ready[e.priority_level >> 6] &= ~(<uint64_t>1 << (e.priority_level & 63))
    e.reason = reason
    if likely(reason == ACKED):
        q.counters.acked += 1
    else:
        locked_count_ended(q, reason)
    entry_delete(&e.word)
    if unlikely(reason == EXPIRED and q.dead_letter == DEAD_LETTER_CALL):
        locked_leave_to_thread(q, e, fx)        # under the order lock, so the callable gets them in order of expiry
    else:
        e.after.dead_next = fx.dead
        fx.dead = e
    if unlikely(q.throttled or q.putters.n != 0):
        locked_notify_putters(q, &fx.to_post)


cdef inline void locked_unlink_options(entry_queue *q, entry *e, effects *fx) noexcept nogil:
    """Remove e from all that its options link it to: timers, order of arrival, last values, groups."""
    cdef entry_options *o = e.options
    if o.timer:
        timers_remove(&q.timers, e)
        if q.timers.n == 0 and q.armed_for > mt_now_coarse_ns() + TIMER_GRACE:
            fx.timers_ended = True
    if q.arrivals:
        if o.older != NULL:
            o.older.options.newer = o.newer
        else:
            q.oldest = o.newer
        if o.newer != NULL:
            o.newer.options.older = o.older
        else:
            q.newest = o.older
    if o.value_key != NULL:
        value_removed(&q.value_keys, e, &fx.keys)
    if o.group != NULL:
        group_dead(&q.groups_takable, e)
        unpin_record(&q.group_keys, <key_record *>o.group, &fx.keys)
        o.group = NULL


cdef inline void locked_count_ended(entry_queue *q, uint32_t reason) noexcept nogil:
    if reason == REJECTED:
        q.counters.rejected += 1
    elif reason == EXPIRED:
        q.counters.expired += 1
    elif reason == PURGED:
        q.counters.purged += 1
    elif reason != CLEARED:
        q.counters.dropped += 1
    if q.dead_letter and is_dead_letter(reason):
        q.counters.dead_lettered += 1


cdef inline bint locked_discard(entry_queue *q, entry *e, uint32_t reason, effects *fx) noexcept nogil:
    """AVAILABLE, HELD, or ACQUIRED without LOCK -> dead. False: e has LOCK, or is dead."""
    cdef bint was_held = state_of(e) == HELD
    if not locked_discard_one(q, e, reason, fx):
        return False
    if unlikely(q.shut):
        locked_wake_after_shutdown(q, was_held, fx)
    return True


cdef inline bint locked_discard_one(entry_queue *q, entry *e, uint32_t reason, effects *fx) noexcept nogil:
    """Like locked_discard(), but without locked_wake_after_shutdown(), which takes time linear in the number of
    filtered subscriptions. A caller that discards many entries calls that once, at the end."""
    cdef int was = state_of(e)
    cdef shared_credit *c = NULL
    cdef bint done = False
    if was == ACQUIRED:
        c = lock_credit_of_owner(e)
        done = entry_steal(&e.word)
        if done:
            credit_locked_end_delivery(q, e, fx)
    elif was <= HELD:
        done = entry_withdraw(&e.word)
        if done and was == AVAILABLE:
            q.available -= 1
        elif done:
            q.held -= 1
    if done:
        locked_unlink_ended(q, e, reason, fx)
    unlock_credit(c)
    return done


cdef inline int64_t locked_discard_all(entry_queue *q, uint32_t reason, bint steal, effects *fx) noexcept nogil:
    """Discard all AVAILABLE and HELD entries. steal: also ACQUIRED ones without LOCK. Returns how many."""
    cdef int64_t n = 0
    for i in range(q.nlevels):
        e = q.lists[i].first
        while e != NULL:
            following = e.next
            if steal or state_of(e) <= HELD:
                n += locked_discard_one(q, e, reason, fx)
            e = following
    if q.shut and n:
        locked_wake_after_shutdown(q, True, fx)
    return n


cdef inline void locked_drop_oldest(entry_queue *q, entry *spared, effects *fx) noexcept nogil:
    """Discard entries until the depth is at most maxsize. It stays above if the entries that are left have LOCK or
    are `spared` (NULL: none). Order: the least urgent level first, and in a level the first entry first. A sorted queue
    discards in the order of arrival."""
    cdef int64_t i = q.nlevels
    if q.arrivals:
        e = q.oldest
        while e != NULL and depth_of(q) > q.maxsize:
            following = e.options.newer
            if e != spared:
                locked_discard(q, e, OVERFLOWN, fx)
            e = following
        return
    while i > 0 and depth_of(q) > q.maxsize:
        i -= 1
        e = q.lists[i].first
        while e != NULL and depth_of(q) > q.maxsize:
            following = e.next
            if e != spared:
                locked_discard(q, e, OVERFLOWN, fx)
            e = following


# --------------------------------------------------------------------------------------------------------------- timers
cdef inline void locked_set_timer(entry_queue *q, entry *e) noexcept nogil:
    """Set the timer of e to when it expires or, if it is HELD, is due, whichever is first. With neither, remove the
    timer. The caller has reserved a slot in the heap."""
    cdef int64_t when = e.options.expires
    if state_of(e) == HELD and (when == 0 or e.options.due < when):
        when = e.options.due
    if when:
        timers_set(&q.timers, e, when)
    else:
        timers_remove(&q.timers, e)


cdef inline bint locked_reserve_timer(entry_queue *q, entry *e) noexcept nogil:
    """Reserve what locked_set_timer needs: options, and a slot in the heap. False: no memory."""
    if e.options == NULL:
        e.options = <entry_options *>calloc(1, sizeof(entry_options))
    return e.options != NULL and heap_reserve(&q.timers, q.timers.n + 1)


cdef inline void locked_run_due_timers(entry_queue *q, int64_t now, effects *fx) noexcept nogil:
    """Expire the entries whose time is over, and make the HELD ones that are due AVAILABLE. Each step removes the first
    timer or sets it to later than `now`, so the loop ends."""
    while q.timers.n and <int64_t>q.timers.items[0].key <= now:
        e = <entry *>q.timers.items[0].member
        if e.options.expires and e.options.expires <= now:
            if not locked_discard(q, e, EXPIRED, fx):
                timers_remove(&q.timers, e)         # it has LOCK; unlock and release check the time
        elif entry_unhold(&e.word):
            q.held -= 1
            q.available += 1
            locked_set_timer(q, e)
            locked_return_to_cursors(q, e, False)
            locked_wake(q, e, fx)
            if q.shut and q.held == 0:
                locked_wake_after_shutdown(q, True, fx)
        else:
            locked_set_timer(q, e)


# -------------------------------------------------------------------------------------- work for the dead-letter thread
cdef inline void locked_leave_to_thread(entry_queue *q, entry *e, effects *fx) noexcept nogil:
    """Leave a dead entry to the dead-letter thread (_timer.py). That thread calls the dead-letter callable and drops
    the item, which may run its finalizer."""
    e.after.dead_next = NULL
    if q.for_thread_last != NULL:
        q.for_thread_last.after.dead_next = e
    else:
        q.for_thread = e
    q.for_thread_last = e
    locked_notify_thread(q, fx)


cdef inline void locked_leave_keys_to_thread(entry_queue *q, effects *fx) noexcept nogil:
    """Leave the records in fx.keys, of which there is one at least, to the dead-letter thread: freeing them drops keys,
    which may run their finalizers."""
    cdef key_record *k = fx.keys
    while k.next != NULL:
        k = k.next
    k.next = q.keys_for_thread
    q.keys_for_thread = fx.keys
    fx.keys = NULL
    locked_notify_thread(q, fx)


cdef inline void locked_notify_thread(entry_queue *q, effects *fx) noexcept nogil:
    """Let the caller notify the dead-letter thread, unless that is already notified of this queue."""
    fx.notify_thread = fx.notify_thread or not q.thread_notified
    q.thread_notified = True
