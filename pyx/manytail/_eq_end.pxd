# The ends of an entry queue (_eq.pxd). A delivery ends: ack, reject, release, unlock. An entry ends: acked, expired,
# discarded. Private.
#
# One compare-and-swap of the entry's state word decides which of several calls ends a delivery (_entry.pxd). It is made
# under the order lock, in one hold with all that follows from it: unlinking, counts, credit, wake-ups. What runs user
# code, dropping the item and the dead letter, is left to the caller in `effects.dead`.
#
# Invariant E3 holds at each return. E5: lock_credit_of_holder() comes first.
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc

from manytail._c cimport likely, mt_now_coarse_ns, mt_now_ns, unlikely
from manytail._entry cimport (
    ACQUIRED, AVAILABLE, HELD, entry, entry_delete, entry_dequeue, entry_options, entry_release, entry_steal,
    entry_unhold, entry_unlock, entry_withdraw, entry_word, held_remove, is_linked, list_unlink, state_of,
    timers_remove, timers_set, word_delivery,
)
from manytail._eq cimport (
    ACKED, CLEARED, DEAD_LETTER_CALL, EXHAUSTED, EXPIRED, OVERFLOWN, PURGED, REJECTED, REPLACED, SHUT, TIMER_GRACE,
    depth_of, effects, entry_queue, is_dead_letter, lock_credit, shared_credit, subscription, unlock_credit,
)
from manytail._eq_capacity cimport locked_notify_putters, locked_overflows
from manytail._eq_cursors cimport locked_show
from manytail._eq_keys cimport (
    GROUPS_ASSIGNED, GROUPS_NONE, group_dead, group_removed, key_record, unpin_record, value_removed, value_replaced,
)
from manytail._eq_manager cimport locked_credit_back, locked_wake, locked_wake_at_end, locked_wake_many
from manytail._eq_sorted cimport index_remove
from manytail._heap cimport heap_reserve
from manytail._waiting cimport notify_all


# ------------------------------------------------------------------------------------------------ the end of a delivery
cdef inline shared_credit *lock_credit_of_holder(entry *e) noexcept nogil:
    """The first step of all that ends a delivery of e: lock the credit that its holder shares. NULL: none.

    Nothing may be changed before it. A thread that waits for a lock detaches, and then another thread may fork; the
    child must not find a delivery that is half ended (E5). After this step nothing detaches until unlock_credit."""
    cdef subscription *s = <subscription *>e.owner
    if likely(s == NULL or s.credit == NULL):
        return NULL
    lock_credit(s.credit)
    return s.credit


cdef inline void locked_end_delivery(entry_queue *q, entry *e, effects *fx) noexcept nogil:
    """Take e from its holder's list and return its credit. A shared credit is locked."""
    cdef subscription *s = <subscription *>e.owner
    q.acquired -= 1
    if unlikely(s == NULL):
        return
    held_remove(&s.held_first, &s.held_last, e)
    e.owner = NULL
    s.nheld -= 1
    if unlikely(q.groups != GROUPS_NONE) \
            and group_removed(&q.groups_takable, e, q.groups == GROUPS_ASSIGNED):
        locked_wake_many(q, 1, fx)
    if unlikely(s.limit > 0 or s.credit != NULL):
        locked_credit_back(q, s, fx)


cdef inline bint locked_end(entry_queue *q, entry *e, uint64_t delivery, uint32_t reason, effects *fx) noexcept nogil:
    """ACQUIRED -> dead, by its holder, whose shared credit is locked. False: the delivery has ended before."""
    if unlikely(not entry_dequeue(&e.word, delivery)):
        return False
    locked_end_delivery(q, e, fx)
    locked_unlink_dead(q, e, reason, fx)
    return True


cdef inline bint locked_finish(entry_queue *q, entry *e, uint64_t delivery, uint32_t reason,
                               effects *fx) noexcept nogil:
    """locked_end(), which locks a shared credit itself."""
    cdef shared_credit *c = lock_credit_of_holder(e)
    cdef bint done = locked_end(q, e, delivery, reason, fx)
    unlock_credit(c)
    return done


cdef inline int64_t locked_finish_up_to(entry_queue *q, subscription *s, entry *last, effects *fx) noexcept nogil:
    """Ack what s got no later than `last`, which it holds. Returns how many."""
    cdef shared_credit *c = lock_credit_of_holder(last)
    cdef entry *e
    cdef entry *following = s.held_first
    cdef int64_t n = 0
    while True:
        e = following
        following = e.after.held_next
        n += locked_end(q, e, word_delivery(entry_word(&e.word)), ACKED, fx)
        if e == last:
            break
    unlock_credit(c)
    return n


cdef inline bint locked_release(entry_queue *q, entry *e, uint64_t delivery, int64_t due, effects *fx) noexcept nogil:
    """ACQUIRED -> AVAILABLE, or HELD until `due`; or dead (locked_reason_to_end). False: the delivery has ended
    before."""
    cdef shared_credit *c = lock_credit_of_holder(e)
    cdef uint32_t reason = locked_reason_to_end(q, e, delivery)
    cdef bint done
    if unlikely(reason != 0):
        done = locked_end(q, e, delivery, reason, fx)
    else:
        done = entry_release(&e.word, delivery, HELD if due else AVAILABLE)
        if done:
            q.counters.released += 1
            locked_end_delivery(q, e, fx)
            locked_released(q, e, due, fx)
    unlock_credit(c)
    if unlikely(locked_overflows(q)) and done and is_linked(e):
        locked_drop_oldest(q, NULL, fx)
    return done


cdef inline uint32_t locked_reason_to_end(entry_queue *q, entry *e, uint64_t delivery) noexcept nogil:
    """The reason why a released entry is discarded, or 0."""
    if q.max_deliveries > 0 and delivery >= <uint64_t>q.max_deliveries:
        return EXHAUSTED
    if q.shut_now:
        return SHUT
    if e.options != NULL and e.options.value_key != NULL and value_replaced(e):
        return REPLACED
    if e.options != NULL and e.options.expires and e.options.expires <= mt_now_ns():
        return EXPIRED
    return 0


cdef inline void locked_released(entry_queue *q, entry *e, int64_t due, effects *fx) noexcept nogil:
    """Complete a release: the delivery has ended, and the state is AVAILABLE or HELD."""
    if unlikely(q.value_keys.n):
        q.event_count += 1      # also for a putter that is about to wait
        notify_all(&q.putters, &fx.to_post)     # a put that replaces this entry needs no free slot
    if due:
        q.held += 1
        e.options.due = due
        locked_set_timer(q, e)
        return
    q.available += 1
    locked_show(q, e, False)
    locked_wake(q, e, False, fx)


cdef inline bint locked_unlock_entry(entry_queue *q, entry *e, uint64_t delivery, effects *fx) noexcept nogil:
    """Unlock an ACQUIRED entry, and expire or drop it if that is due. False: the delivery has ended, or the entry is
    not locked."""
    if not entry_unlock(&e.word, delivery):
        return False
    if e.options != NULL and e.options.expires and is_linked(e):
        if e.options.expires <= mt_now_ns():
            locked_discard(q, e, EXPIRED, fx)
        elif heap_reserve(&q.timers, q.timers.n + 1):
            locked_set_timer(q, e)
    if locked_overflows(q):
        locked_drop_oldest(q, NULL, fx)
    return True


# -------------------------------------------------------------------------------------------------- the end of an entry
cdef inline void locked_unlink_dead(entry_queue *q, entry *e, uint32_t reason, effects *fx) noexcept nogil:
    """DEQUEUED -> DELETED: unlink e. The list's references move to the effects. The caller has updated the counts of
    states."""
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
        locked_count_death(q, reason)
    entry_delete(&e.word)
    if unlikely(reason == EXPIRED and q.dead_letter == DEAD_LETTER_CALL):
        locked_leave_to_thread(q, e, fx)        # under the lock, so that the calls are in the order of expiry
    else:
        e.after.dead_next = fx.dead
        fx.dead = e
    if unlikely(q.throttled or q.putters.n != 0):
        locked_notify_putters(q, &fx.to_post)


cdef inline void locked_unlink_options(entry_queue *q, entry *e, effects *fx) noexcept nogil:
    cdef entry_options *o = e.options
    if o.timer:
        timers_remove(&q.timers, e)
        if q.timers.n == 0 and q.next_check > mt_now_coarse_ns() + TIMER_GRACE:
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


cdef inline void locked_count_death(entry_queue *q, uint32_t reason) noexcept nogil:
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
    """AVAILABLE, HELD, or ACQUIRED and not locked -> dead. False: it is in another state."""
    if not locked_discard_one(q, e, reason, fx):
        return False
    if unlikely(q.shut):
        locked_wake_at_end(q, fx)
    return True


cdef inline bint locked_discard_one(entry_queue *q, entry *e, uint32_t reason, effects *fx) noexcept nogil:
    """locked_discard() without locked_wake_at_end(), which is linear in the filtered subscriptions: after discarding
    many the caller calls it once."""
    cdef int was = state_of(e)
    cdef shared_credit *c = NULL
    cdef bint done = False
    if was == ACQUIRED:
        c = lock_credit_of_holder(e)
        done = entry_steal(&e.word)
        if done:
            locked_end_delivery(q, e, fx)
    elif was <= HELD:
        done = entry_withdraw(&e.word)
        if done and was == AVAILABLE:
            q.available -= 1
        elif done:
            q.held -= 1
    if done:
        locked_unlink_dead(q, e, reason, fx)
    unlock_credit(c)
    return done


cdef inline int64_t locked_discard_all(entry_queue *q, uint32_t reason, bint unlocked, effects *fx) noexcept nogil:
    """Discard all AVAILABLE and HELD entries; unlocked: also ACQUIRED ones that are not locked. Returns how many."""
    cdef int64_t n = 0
    cdef uint32_t i
    cdef entry *e
    cdef entry *following
    for i in range(q.nlevels):
        e = q.lists[i].first
        while e != NULL:
            following = e.next
            if unlocked or state_of(e) <= HELD:
                n += locked_discard_one(q, e, reason, fx)
            e = following
    if q.shut and n:
        locked_wake_at_end(q, fx)
    return n


cdef inline void locked_drop_oldest(entry_queue *q, entry *spared, effects *fx) noexcept nogil:
    """Discard entries, but not `spared`, until the depth is maxsize: the least urgent level first, in a level the
    oldest first."""
    cdef entry *e
    cdef entry *following
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
    """Set its timer to when it expires or its hold ends, whichever is first. A slot in the heap is reserved."""
    cdef int64_t when = e.options.expires
    if state_of(e) == HELD and (when == 0 or e.options.due < when):
        when = e.options.due
    if when:
        timers_set(&q.timers, e, when)
    else:
        timers_remove(&q.timers, e)


cdef inline bint locked_reserve_timer(entry_queue *q, entry *e) noexcept nogil:
    """Reserve what locked_set_timer needs. False: no memory."""
    if e.options == NULL:
        e.options = <entry_options *>calloc(1, sizeof(entry_options))
    return e.options != NULL and heap_reserve(&q.timers, q.timers.n + 1)


cdef inline void locked_run_timers(entry_queue *q, int64_t now, effects *fx) noexcept nogil:
    """Expire, or make AVAILABLE, the entries that are due."""
    cdef entry *e
    while q.timers.n and <int64_t>q.timers.items[0].key <= now:
        e = <entry *>q.timers.items[0].member
        if e.options.expires and e.options.expires <= now:
            if not locked_discard(q, e, EXPIRED, fx):
                timers_remove(&q.timers, e)         # its holder has locked it; unlock and release check the time
        elif entry_unhold(&e.word):
            q.held -= 1
            q.available += 1
            locked_set_timer(q, e)
            locked_show(q, e, False)
            locked_wake(q, e, False, fx)
        else:
            locked_set_timer(q, e)


# -------------------------------------------------------------------------------------- work for the dead-letter thread
cdef inline void locked_leave_to_thread(entry_queue *q, entry *e, effects *fx) noexcept nogil:
    """Leave a dead entry to the dead-letter thread (_timer.pyx), which runs the user's code for it: the callable, and
    the finalizer of its item."""
    e.after.dead_next = NULL
    if q.for_thread_last != NULL:
        q.for_thread_last.after.dead_next = e
    else:
        q.for_thread = e
    q.for_thread_last = e
    locked_notify_thread(q, fx)


cdef inline void locked_leave_keys_to_thread(entry_queue *q, effects *fx) noexcept nogil:
    cdef key_record *k = fx.keys
    while k.next != NULL:
        k = k.next
    k.next = q.keys_for_thread
    q.keys_for_thread = fx.keys
    fx.keys = NULL
    locked_notify_thread(q, fx)


cdef inline void locked_notify_thread(entry_queue *q, effects *fx) noexcept nogil:
    fx.notify_thread = fx.notify_thread or not q.thread_notified
    q.thread_notified = True
