# The entry queue (_eq.pxd) for callers that are detached from the interpreter. An item is a number without a reference
# count; the call that ends an entry hands its item to the caller. For the native drivers (drive_entries.c): users have
# no such API.
#
# The order lock is taken with the GIL too: `objects` is 0. A blocking call tries, stores the queue's count of events,
# and waits unless an event came in between: entries_point(), free_slot_point(). An entry that the queue itself ends (an
# immediate shutdown) keeps its item until destroy_nogil_queue.
from libc.stdlib cimport calloc, free

from manytail._entry cimport entry, entry_drop, entry_new, entry_word, word_has_delivery
from manytail._eq cimport *
from manytail._eq_capacity cimport free_slot_point
from manytail._eq_cursors cimport cursor_first, cursor_skip
from manytail._eq_end cimport credit_locked_end, locked_release
from manytail._eq_get cimport locked_take
from manytail._eq_life cimport *
from manytail._eq_manager cimport entries_point, locked_answer, locked_usable, locked_wake_many
from manytail._eq_put cimport locked_put
from manytail._waiting cimport ONCE, again, deadline_in, post, wait_point

# destroy_nogil_queue calls it with each item that no caller has got.
ctypedef void (*nogil_drop)(uintptr_t item, void *arg) noexcept nogil

ctypedef struct nogil_queue     # declared first: they point to each other
ctypedef struct nogil_subscription

ctypedef struct nogil_queue:
    entry_queue *q
    nogil_subscription *subscriptions   # all that were ever made, closed ones too
    entry *to_drop              # dead entries whose items no caller has got; by dead_next, under the order lock

ctypedef struct nogil_subscription:
    subscription s
    nogil_queue *of
    nogil_subscription *next


cdef inline void unlock_and_post(nogil_queue *n, effects *fx) noexcept nogil:
    """Keep dead entries in `to_drop`, unlock, and post the notified waiters."""
    cdef entry *e
    while fx.dead != NULL:
        e = fx.dead
        fx.dead = e.after.dead_next
        e.after.dead_next = n.to_drop
        n.to_drop = e
    unlock_order(n.q)
    if fx.to_post != NULL:
        post(fx.to_post)


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
    memset(&fx, 0, sizeof(effects))             # no lock: no other thread uses the queue
    for i in range(n.q.nlevels):
        while n.q.lists[i].first != NULL:
            locked_clear(n.q, n.q.lists[i].first, &fx)
            drop_first(&fx.dead, drop, arg)
    while n.to_drop != NULL:
        drop_first(&n.to_drop, drop, arg)
    free_queue(n.q)
    free(n)


cdef inline void drop_first(entry **dead, nogil_drop drop, void *arg) noexcept nogil:
    cdef entry *e = dead[0]
    dead[0] = e.after.dead_next
    if drop != NULL:
        drop(<uintptr_t>e.item, arg)
    entry_drop(e)


cdef inline int64_t count_of(nogil_queue *n, bint depth) noexcept nogil:
    """The number of AVAILABLE entries; depth: and of ACQUIRED and HELD ones."""
    cdef int64_t found
    lock_order(n.q)
    found = n.q.available + (n.q.acquired + n.q.held if depth else 0)
    unlock_order(n.q)
    return found


cdef inline void shut_nogil_queue(nogil_queue *n, bint immediate) noexcept nogil:
    cdef effects fx
    lock_for_effects(n.q, &fx)
    locked_shutdown(n.q, immediate, &fx)
    unlock_and_post(n, &fx)


# ------------------------------------------------------------------------------------------------------------------ put
cdef inline int put_once(nogil_queue *n, entry *e, wait_point *p) noexcept nogil:
    """One try: MT_OK, MT_FULL or MT_SHUTDOWN."""
    cdef effects fx
    cdef int r
    lock_for_effects(n.q, &fx)
    r = locked_put(n.q, e, NULL, False, &fx)
    p.events_seen = n.q.event_count
    unlock_and_post(n, &fx)
    return r


cdef inline int put_until(nogil_queue *n, uintptr_t item, int32_t priority, int64_t deadline) noexcept nogil:
    """As put_once(), or MT_TIMEOUT or MT_NOMEM."""
    cdef entry *e = entry_new(False)
    cdef wait_point p
    cdef int r
    if e == NULL:
        return MT_NOMEM
    e.item = <void *>item
    e.born = mt_now_coarse_ns()
    e.priority = priority
    e.priority_level = level_of(n.q, priority)
    r = put_once(n, e, &p)
    if unlikely(r == MT_FULL and deadline != ONCE):
        free_slot_point(&p, n.q, False)
        while again(&p, 1, &r, deadline):
            r = put_once(n, e, &p)
    if r != MT_OK:
        entry_drop(e)
    return r


cdef inline int put_many_until(nogil_queue *n, const uintptr_t *items, int64_t count, int32_t priority,
                               int64_t deadline, int64_t *done) noexcept nogil:
    cdef int64_t put = 0
    cdef int r = MT_BADARG if count < 0 or (count > 0 and items == NULL) else MT_OK
    while r == MT_OK and put < count:
        r = put_until(n, items[put], priority, deadline)
        put += r == MT_OK
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
    lock_for_effects(s.s.q, &fx)
    if not is_closed(&s.s):
        locked_unsubscribe(s.s.q, &s.s, &fx)
        r = MT_OK
    unlock_and_post(s.of, &fx)
    return r


# ------------------------------------------------------------------------------------------------------------------ get
cdef inline int locked_look(entry_queue *q, subscription *s, entry **out) noexcept nogil:
    """The next AVAILABLE entry for a browsing subscription, which does not acquire it."""
    cdef int r = locked_usable(s)
    if r != MT_OK:
        return r
    out[0] = cursor_first(q, s.cursor_in_use)
    if out[0] == NULL:
        return MT_EMPTY
    cursor_skip(q, s.cursor_in_use, out[0])
    keep_for_handle(q, out[0])
    return MT_OK


cdef inline int get_once(nogil_subscription *n, acquired_entry *out, wait_point *p) noexcept nogil:
    """One try: MT_OK, MT_EMPTY, MT_SHUTDOWN, NO_CREDIT or CLOSED. Forwards a notification that it cannot use."""
    cdef entry_queue *q = n.s.q
    cdef subscription *s = &n.s
    cdef entry *e = NULL
    cdef uint64_t delivery = 0
    cdef bint woken = p.woken
    cdef effects fx
    cdef int r
    lock_for_effects(q, &fx)
    if unlikely(woken):
        p.woken = False
        locked_answer(s)
    r = locked_look(q, s, &e) if s.browse else locked_take(q, s, &e, &delivery, &fx)
    if r == MT_OK:
        fill_acquired(out, e, delivery)
    elif q.shut and (r == MT_EMPTY or (r == NO_CREDIT and q.available == 0)):
        r = MT_SHUTDOWN
    if unlikely(woken) and r != MT_OK and r != MT_EMPTY:
        locked_wake_many(q, 1, &fx)
    p.events_seen = q.event_count
    unlock_and_post(n.of, &fx)
    return r


cdef inline int get_within(nogil_subscription *n, acquired_entry *out, int64_t timeout_ns) noexcept nogil:
    """MT_OK, MT_EMPTY (without a timeout), MT_TIMEOUT, MT_SHUTDOWN, MT_BADARG (closed) or MT_NOMEM."""
    cdef wait_point p
    cdef int64_t deadline
    cdef int r
    p.woken = False
    r = get_once(n, out, &p)
    if r != MT_EMPTY and r != NO_CREDIT:
        return MT_BADARG if r == CLOSED else r
    if timeout_ns == 0:
        return MT_EMPTY
    deadline = deadline_in(timeout_ns)
    entries_point(&p, &n.s, False)
    r = MT_EMPTY
    while again(&p, 1, &r, deadline):
        r = get_once(n, out, &p)
        if r == NO_CREDIT:
            r = MT_EMPTY
    return MT_BADARG if r == CLOSED else r


# ------------------------------------------------------------------------------------------------ the end of a delivery
cdef inline int finish(nogil_queue *n, acquired_entry *t, uint32_t reason) noexcept nogil:
    """Ack or reject. MT_OK: the caller gets the item. MT_BADARG: the delivery has ended before. `t` is reset."""
    cdef entry *e = t.e
    cdef effects fx
    cdef bint done
    if e == NULL:
        return MT_BADARG
    t.e = NULL
    if t.delivery == 0 or not word_has_delivery(entry_word(&e.word), t.delivery):
        entry_drop(e)
        return MT_BADARG
    mt_point()
    lock_for_effects(n.q, &fx)
    done = credit_locked_end(n.q, e, t.delivery, reason, &fx)
    fx.dead = NULL              # it is e at most, whose item the caller gets
    unlock_and_post(n, &fx)
    if done:
        entry_drop(e)           # the list's reference
    entry_drop(e)               # the delivery's
    return MT_OK if done else MT_BADARG


cdef inline int release(nogil_queue *n, acquired_entry *t) noexcept nogil:
    """MT_OK. MT_SHUTDOWN: the queue takes nothing back, the caller gets the item. MT_BADARG: the delivery has ended
    before. `t` is reset."""
    cdef entry *e = t.e
    cdef effects fx
    cdef int r = MT_BADARG
    if e == NULL:
        return r
    t.e = NULL
    if t.delivery:
        mt_point()
        lock_for_effects(n.q, &fx)
        if locked_release(n.q, e, t.delivery, 0, &fx):
            r = MT_OK if fx.dead == NULL else MT_SHUTDOWN
        fx.dead = NULL          # it can only be e
        unlock_and_post(n, &fx)
    if r == MT_SHUTDOWN:
        entry_drop(e)
    entry_drop(e)
    return r


cdef inline void forget(acquired_entry *t) noexcept nogil:
    """Drop the reference of `t`, and leave the entry as it is."""
    if t.e != NULL:
        entry_drop(t.e)
    t.e = NULL
