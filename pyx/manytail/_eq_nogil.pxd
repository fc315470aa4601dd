# The entry queue for callers without a thread state and without Python objects: an item is a number that nobody counts,
# and whoever ends an entry has it. Private. Its faces are _entryqueue.pyx (`cimport manytail`, which says what each
# call does) and the native drivers.
#
# The order lock is always taken, with the GIL too. A blocking call tries, notes the queue's count of events, and waits
# unless an event came in between. What the queue ends by itself (an immediate shutdown) keeps its item until
# destroy_nogil_queue.
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from manytail._c cimport (
    MT_BADARG, MT_EMPTY, MT_FULL, MT_NOMEM, MT_OK, MT_SHUTDOWN, MT_WAITER_NOTIFIED, mt_now_coarse_ns,
    mt_now_ns, mt_point, mt_waiter, mt_waitlist_leave, mt_waitlist_push,
)
from manytail._entry cimport entry, entry_drop, entry_new, entry_word, word_held_by
from manytail._eq cimport (
    CLOSED, NO_CREDIT, acquired_entry, cursor_first, cursor_skip, effects, entry_queue, eq_registry, free_queue,
    keep_for_handle, level_of, lock_order, locked_back, locked_clear, locked_end, locked_full, locked_put,
    locked_release, locked_relist, locked_shutdown, locked_subscribe, locked_take, locked_unsubscribe, locked_usable,
    locked_wake_many, make_levels, new_queue, note_acquired, subscription, unlock_order,
)
from manytail._wait cimport NEVER, ONCE, post_chain, waiter_await_post, waiter_close, waiter_open, waiter_park

# What becomes of an item that nobody ended.
ctypedef void (*nogil_drop)(uintptr_t item, void *arg) noexcept nogil

ctypedef struct nogil_queue     # declared first: they point to each other
ctypedef struct nogil_subscription

ctypedef struct nogil_queue:
    entry_queue *q
    nogil_subscription *subscriptions   # all that were ever made
    entry *unended              # dead, with nobody to have the item; by dead_next, under the order lock

ctypedef struct nogil_subscription:
    subscription s
    nogil_queue *of
    nogil_subscription *next


cdef inline void unlock_and_post(nogil_queue *n, effects *fx) noexcept nogil:
    """Unlock, then wake who is to be woken."""
    cdef entry *e
    while fx.dead != NULL:
        e = fx.dead
        fx.dead = e.after.dead_next
        e.after.dead_next = n.unended
        n.unended = e
    unlock_order(n.q)
    if fx.to_post != NULL:
        post_chain(fx.to_post)


cdef inline int64_t deadline_in(int64_t timeout_ns) noexcept nogil:
    cdef int64_t now
    if timeout_ns < 0:
        return NEVER
    if timeout_ns == 0:
        return ONCE
    now = mt_now_ns()
    return NEVER if timeout_ns > INT64_MAX - now else now + timeout_ns


# ------------------------------------------------------------------------------------------------------ making, freeing
cdef inline nogil_queue *new_nogil_queue(eq_registry *r, int levels, int64_t maxsize) noexcept nogil:
    cdef nogil_queue *n
    if not 1 <= levels <= 65535:
        return NULL
    n = <nogil_queue *>calloc(1, sizeof(nogil_queue))
    if n == NULL:
        return NULL
    n.q = new_queue(r)
    if n.q == NULL or (levels > 1 and make_levels(n.q, <uint32_t>levels, 0) != MT_OK):
        if n.q != NULL:
            free_queue(n.q)
        free(n)
        return NULL
    n.q.maxsize = maxsize
    n.q.low_watermark = maxsize - 1
    return n


cdef inline void destroy_nogil_queue(nogil_queue *n, nogil_drop drop, void *arg) noexcept nogil:
    cdef nogil_subscription *s
    cdef effects fx
    cdef uint32_t i
    if n == NULL:
        return
    while n.subscriptions != NULL:
        s = n.subscriptions
        unsubscribe(s)
        n.subscriptions = s.next
        free(s)
    memset(&fx, 0, sizeof(effects))
    for i in range(n.q.nlevels):
        while n.q.lists[i].first != NULL:
            locked_clear(n.q, n.q.lists[i].first, &fx)
            drop_first(&fx.dead, drop, arg)
    while n.unended != NULL:
        drop_first(&n.unended, drop, arg)
    free_queue(n.q)
    free(n)


cdef inline void drop_first(entry **dead, nogil_drop drop, void *arg) noexcept nogil:
    cdef entry *e = dead[0]
    dead[0] = e.after.dead_next
    if drop != NULL:
        drop(<uintptr_t>e.item, arg)
    entry_drop(e)


cdef inline int64_t count_of(nogil_queue *n, bint depth) noexcept nogil:
    """AVAILABLE entries, or all."""
    cdef int64_t found
    lock_order(n.q)
    found = n.q.available + (n.q.acquired + n.q.held if depth else 0)
    unlock_order(n.q)
    return found


cdef inline void shut_nogil_queue(nogil_queue *n, bint immediate) noexcept nogil:
    cdef effects fx
    memset(&fx, 0, sizeof(effects))
    lock_order(n.q)
    locked_shutdown(n.q, immediate, &fx)
    unlock_and_post(n, &fx)


# ------------------------------------------------------------------------------------------------------------------ put
cdef inline int put_once(nogil_queue *n, entry *e) noexcept nogil:
    """One attempt: MT_OK, MT_FULL or MT_SHUTDOWN."""
    cdef effects fx
    cdef int r
    memset(&fx, 0, sizeof(effects))
    lock_order(n.q)
    r = locked_put(n.q, e, NULL, False, &fx)
    unlock_and_post(n, &fx)
    return r


cdef inline int wait_for_room(entry_queue *q, int64_t deadline) noexcept nogil:
    """Until a put is worth trying again: MT_OK, MT_TIMEOUT or MT_NOMEM."""
    cdef mt_waiter w
    cdef int r = waiter_open(&w)
    if r != MT_OK:
        return r
    lock_order(q)
    if q.shut or not locked_full(q):
        unlock_order(q)
        waiter_close(&w)
        return MT_OK
    mt_waitlist_push(&q.putters, &w)
    unlock_order(q)
    mt_point()
    r = waiter_park(&w, deadline, False)
    mt_point()
    if r != MT_OK:
        lock_order(q)
        if mt_waitlist_leave(&q.putters, &w) == MT_WAITER_NOTIFIED:
            unlock_order(q)
            waiter_await_post(&w, False)
            r = MT_OK           # the slot that it was woken for may still be free
        else:
            unlock_order(q)
    waiter_close(&w)
    return r


cdef inline int put_until(nogil_queue *n, uintptr_t item, int32_t priority, int64_t deadline) noexcept nogil:
    cdef entry *e = entry_new(False)
    cdef int r
    if e == NULL:
        return MT_NOMEM
    e.item = <void *>item
    e.born = mt_now_coarse_ns()
    e.priority = priority
    e.priority_level = level_of(n.q, priority)
    r = put_once(n, e)
    while r == MT_FULL and deadline != ONCE:
        r = wait_for_room(n.q, deadline)
        if r == MT_OK:
            r = put_once(n, e)
    if r != MT_OK:
        entry_drop(e)
    return r


cdef inline int put_many_until(nogil_queue *n, const uintptr_t *items, int64_t count, int32_t priority,
                               int64_t deadline, int64_t *done) noexcept nogil:
    cdef int64_t put = 0
    cdef int r = MT_OK
    if count < 0 or (count > 0 and items == NULL):
        return MT_BADARG
    while put < count:
        r = put_until(n, items[put], priority, deadline)
        if r != MT_OK:
            break
        put += 1
    if done != NULL:
        done[0] = put
    return r


# -------------------------------------------------------------------------------------------------------- subscriptions
cdef inline nogil_subscription *subscribe(nogil_queue *n, bint browse, int64_t credit) noexcept nogil:
    """NULL: no memory."""
    cdef nogil_subscription *s = <nogil_subscription *>calloc(1, sizeof(nogil_subscription))
    cdef int r
    if s == NULL:
        return NULL
    s.of = n
    s.s.q = n.q
    s.s.browse = s.s.filtered = browse
    s.s.limit = credit
    lock_order(n.q)
    r = locked_subscribe(n.q, &s.s, 0, False)
    if r == MT_OK:
        s.next = n.subscriptions
        n.subscriptions = s
    unlock_order(n.q)
    if r != MT_OK:
        free(s)
        return NULL
    return s


cdef inline int unsubscribe(nogil_subscription *s) noexcept nogil:
    cdef effects fx
    cdef int r = MT_BADARG
    memset(&fx, 0, sizeof(effects))
    lock_order(s.s.q)
    if not s.s.closed:
        locked_unsubscribe(s.s.q, &s.s, &fx)
        r = MT_OK
    unlock_and_post(s.of, &fx)
    return r


# ------------------------------------------------------------------------------------------------------------------ get
cdef inline int locked_look(entry_queue *q, subscription *s, entry **out) noexcept nogil:
    """The next AVAILABLE entry for one that browses."""
    cdef int r = locked_usable(s)
    if r != MT_OK:
        return r
    out[0] = cursor_first(q, s.cursor_in_use)
    if out[0] == NULL:
        return MT_EMPTY
    cursor_skip(q, s.cursor_in_use, out[0])
    keep_for_handle(q, out[0])
    return MT_OK


cdef inline int get_once(nogil_subscription *n, acquired_entry *out, int64_t *event_key) noexcept nogil:
    """One try: MT_OK, MT_EMPTY, MT_SHUTDOWN, NO_CREDIT, CLOSED. event_key: what the queue's count of events was
    then."""
    cdef entry_queue *q = n.s.q
    cdef subscription *s = &n.s
    cdef entry *e = NULL
    cdef uint64_t delivery = 0
    cdef effects fx
    cdef int r
    memset(&fx, 0, sizeof(effects))
    lock_order(q)
    r = locked_look(q, s, &e) if s.browse else locked_take(q, s, &e, &delivery, &fx)
    if r == MT_OK:
        note_acquired(out, e, delivery)
    elif q.shut and (r == MT_EMPTY or (r == NO_CREDIT and q.available == 0)):
        r = MT_SHUTDOWN
    event_key[0] = q.event_count
    unlock_and_post(n.of, &fx)
    return r


cdef inline int wait_for_entry(nogil_subscription *n, int64_t deadline, int64_t event_key, bint *woken) noexcept nogil:
    """Until another try is worth it: MT_OK, woken says whether by a wake-up. MT_TIMEOUT, MT_NOMEM."""
    cdef entry_queue *q = n.s.q
    cdef subscription *s = &n.s
    cdef mt_waiter w
    cdef bint notified = True
    cdef int r = waiter_open(&w)
    if r != MT_OK:
        return r
    woken[0] = False
    lock_order(q)
    if q.event_count != event_key or s.closed:
        unlock_order(q)
        waiter_close(&w)
        return MT_OK
    mt_waitlist_push(&s.waiters, &w)
    locked_relist(q, s)
    unlock_order(q)
    mt_point()
    r = waiter_park(&w, deadline, False)
    mt_point()
    lock_order(q)
    if r != MT_OK:
        notified = mt_waitlist_leave(&s.waiters, &w) == MT_WAITER_NOTIFIED
    if notified:
        locked_back(s)
    else:
        locked_relist(q, s)
    unlock_order(q)
    if notified and r != MT_OK:
        waiter_await_post(&w, False)
    waiter_close(&w)
    woken[0] = notified
    return MT_OK if notified else r


cdef inline void forward(nogil_subscription *n) noexcept nogil:
    """A wake-up that is of no use here goes to another waiter."""
    cdef effects fx
    memset(&fx, 0, sizeof(effects))
    lock_order(n.s.q)
    locked_wake_many(n.s.q, 1, &fx)
    unlock_and_post(n.of, &fx)


cdef inline int get_within(nogil_subscription *n, acquired_entry *out, int64_t timeout_ns) noexcept nogil:
    cdef int64_t deadline = NEVER, event_key = 0
    cdef bint woken = False
    cdef int r = get_once(n, out, &event_key)
    if r != MT_OK and timeout_ns > 0:
        deadline = deadline_in(timeout_ns)
    while r == MT_EMPTY or r == NO_CREDIT:
        if timeout_ns == 0:
            return MT_EMPTY
        r = wait_for_entry(n, deadline, event_key, &woken)
        if r != MT_OK:
            return r
        r = get_once(n, out, &event_key)
        if woken and r != MT_OK and r != MT_EMPTY:
            forward(n)
    return MT_BADARG if r == CLOSED else r


# ------------------------------------------------------------------------------------------------ the end of a delivery
cdef inline int finish(nogil_queue *n, acquired_entry *t, uint32_t reason) noexcept nogil:
    """Ack or reject: MT_OK, the item is the caller's. MT_BADARG: this delivery is over. `t` is given up."""
    cdef entry *e = t.e
    cdef effects fx
    cdef bint done
    if e == NULL:
        return MT_BADARG
    t.e = NULL
    if t.delivery == 0 or not word_held_by(entry_word(&e.word), t.delivery):
        entry_drop(e)
        return MT_BADARG
    memset(&fx, 0, sizeof(effects))
    mt_point()
    lock_order(n.q)
    done = locked_end(n.q, e, t.delivery, reason, &fx)
    fx.dead = NULL              # it can only be e, whose item is the caller's
    unlock_and_post(n, &fx)
    if done:
        entry_drop(e)
    entry_drop(e)
    return MT_OK if done else MT_BADARG


cdef inline int release(nogil_queue *n, acquired_entry *t) noexcept nogil:
    """MT_OK. MT_SHUTDOWN: the queue takes nothing back, the item is the caller's. MT_BADARG: this delivery is over. `t`
    is given up."""
    cdef entry *e = t.e
    cdef effects fx
    cdef int r = MT_BADARG
    if e == NULL:
        return r
    t.e = NULL
    if t.delivery:
        memset(&fx, 0, sizeof(effects))
        mt_point()
        lock_order(n.q)
        if locked_release(n.q, e, t.delivery, 0, &fx):
            r = MT_OK if fx.dead == NULL else MT_SHUTDOWN
        fx.dead = NULL          # it can only be e
        unlock_and_post(n, &fx)
    if r == MT_SHUTDOWN:
        entry_drop(e)
    entry_drop(e)
    return r


cdef inline void forget(acquired_entry *t) noexcept nogil:
    """Give up the delivery, and leave the entry as it is."""
    if t.e != NULL:
        entry_drop(t.e)
    t.e = NULL
