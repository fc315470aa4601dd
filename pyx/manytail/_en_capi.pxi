# The nogil API of python/manytail/_entryqueue.pxd: the kernel of the entry queues without Python objects. Callers hold no thread state, so the order
# lock is always there; an item is a number, and whoever ends an entry has it. What the queue lets go of by itself waits for destroy.

cdef struct bare:               # mt_entryqueue
    core *q
    bare_sub *subs              # all that were ever made
    entry *left                 # dead, with nobody to have the item; by held_next, under the order lock

cdef struct bare_sub:           # mt_entrysub
    sub s
    bare *owner
    bare_sub *next


cdef void release_entry(entry *e) noexcept nogil:
    mt_entry_drop(e)


# What the other orders, groups and last values would need: none of them is here.
cdef void release_keys(keyrec *k) noexcept nogil:
    pass


cdef void leaf_remove(core *q, entry *e) noexcept nogil:
    pass


cdef entry *sorted_oldest(core *q) noexcept nogil:
    return NULL


cdef void unlock_bare(bare *b, debts *d) noexcept nogil:
    """Unlock, then wake who is to be woken."""
    cdef entry *e
    while d.dead != NULL:
        e = d.dead
        d.dead = e.held_next
        e.held_next = b.left
        b.left = e
    unlock_order(b.q)
    if d.wake != NULL:
        post_chain(d.wake)


# ------------------------------------------------------------------------------------------------------- making, freeing
cdef mt_entryqueue *mt_entryqueue_new(int levels, int64_t maxsize) noexcept nogil:
    cdef bare *b
    if not 1 <= levels <= 65535:
        return NULL
    b = <bare *>calloc(1, sizeof(bare))
    if b == NULL:
        return NULL
    b.q = new_core()
    if b.q == NULL or (levels > 1 and make_levels(b.q, <uint32_t>levels, 0) != MT_OK):
        if b.q != NULL:
            free_core(b.q)
        free(b)
        return NULL
    b.q.maxsize = maxsize
    b.q.resume_mark = maxsize - 1
    return <mt_entryqueue *>b


cdef void mt_entryqueue_destroy(mt_entryqueue *queue, mt_drop drop, void *arg) noexcept nogil:
    cdef bare *b = <bare *>queue
    cdef bare_sub *s
    cdef entry *e
    cdef debts d
    cdef uint32_t i
    if b == NULL:
        return
    while b.subs != NULL:
        s = b.subs
        mt_entryqueue_unsubscribe(<mt_entrysub *>s)
        b.subs = s.next
        free(s)
    clear_debts(&d)
    for i in range(b.q.nlevels):
        while b.q.lists[i].first != NULL:
            clear_entry(b.q, b.q.lists[i].first, &d)
            drop_first(&d.dead, drop, arg)
    while b.left != NULL:
        drop_first(&b.left, drop, arg)
    free_core(b.q)
    free(b)


cdef void drop_first(entry **dead, mt_drop drop, void *arg) noexcept nogil:
    cdef entry *e = dead[0]
    dead[0] = e.held_next
    if drop != NULL:
        drop(<uintptr_t>e.item, arg)
    mt_entry_drop(e)


# -------------------------------------------------------------------------------------------------------------------- put
cdef inline int64_t deadline_in(int64_t timeout_ns) noexcept nogil:
    cdef int64_t now
    if timeout_ns < 0:
        return NEVER
    if timeout_ns == 0:
        return ONCE
    now = mt_now_ns()
    return NEVER if timeout_ns > INT64_MAX - now else now + timeout_ns


cdef int admit_bare(bare *b, entry *e) noexcept nogil:
    """One attempt: MT_OK, MT_FULL or MT_SHUTDOWN."""
    cdef core *q = b.q
    cdef debts d
    cdef int r = MT_OK
    clear_debts(&d)
    lock_order(q)
    if q.shut:
        r = MT_SHUTDOWN
    elif ordered_full(q):
        r = MT_FULL
    else:
        ordered_link(q, e)
        ordered_join(q, e, &d)
    unlock_bare(b, &d)
    return r


cdef int wait_for_room_bare(core *q, int64_t deadline) noexcept nogil:
    """Until a put is worth trying again: MT_OK, MT_TIMEOUT or MT_NOMEM."""
    cdef mt_waiter w
    cdef int r = waiter_open(&w)
    if r != MT_OK:
        return r
    lock_order(q)
    if q.shut or not ordered_full(q):
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
            r = MT_OK           # the place that it was woken for may still be there
        else:
            unlock_order(q)
    waiter_close(&w)
    return r


cdef int put_until(bare *b, uintptr_t item, int priority, int64_t deadline) noexcept nogil:
    cdef entry *e = mt_entry_new(False)
    cdef int r
    if e == NULL:
        return MT_NOMEM
    e.item = <void *>item
    e.born = mt_now_coarse_ns()
    e.priority = priority
    e.level = level_of(b.q, priority)
    r = admit_bare(b, e)
    while r == MT_FULL and deadline != ONCE:
        r = wait_for_room_bare(b.q, deadline)
        if r == MT_OK:
            r = admit_bare(b, e)
    if r != MT_OK:
        mt_entry_drop(e)
    return r


cdef int mt_entryqueue_put(mt_entryqueue *queue, uintptr_t item, int priority, int64_t timeout_ns) noexcept nogil:
    return put_until(<bare *>queue, item, priority, deadline_in(timeout_ns))


cdef int mt_entryqueue_put_many(mt_entryqueue *queue, const uintptr_t *items, int64_t n, int priority, int64_t timeout_ns,
                                int64_t *count) noexcept nogil:
    cdef int64_t deadline = deadline_in(timeout_ns), put = 0
    cdef int r = MT_OK
    if n < 0 or (n > 0 and items == NULL):
        return MT_BADARG
    while put < n:
        r = put_until(<bare *>queue, items[put], priority, deadline)
        if r != MT_OK:
            break
        put += 1
    if count != NULL:
        count[0] = put
    return r


# ---------------------------------------------------------------------------------------------------------- subscriptions
cdef mt_entrysub *mt_entryqueue_subscribe(mt_entryqueue *queue, bint browse, int64_t credit) noexcept nogil:
    cdef bare *b = <bare *>queue
    cdef bare_sub *s = <bare_sub *>calloc(1, sizeof(bare_sub))
    cdef int r
    if s == NULL:
        return NULL
    s.owner = b
    s.s.q = b.q
    s.s.browse = s.s.own = browse
    s.s.limit = credit
    lock_order(b.q)
    r = ordered_subscribe(b.q, &s.s, 0, False)
    if r == MT_OK:
        s.next = b.subs
        b.subs = s
    unlock_order(b.q)
    if r != MT_OK:
        free(s)
        return NULL
    return <mt_entrysub *>s


cdef int mt_entryqueue_unsubscribe(mt_entrysub *subscription) noexcept nogil:
    cdef bare_sub *s = <bare_sub *>subscription
    cdef debts d
    cdef int r = MT_BADARG
    clear_debts(&d)
    lock_order(s.s.q)
    if not s.s.closed:
        ordered_unsubscribe(s.s.q, &s.s, &d)
        r = MT_OK
    unlock_bare(s.owner, &d)
    return r


# -------------------------------------------------------------------------------------------------------------------- get
cdef int ordered_look(core *q, sub *s, entry **out) noexcept nogil:
    """The next AVAILABLE entry for one that browses."""
    cdef int r = ordered_usable(s)
    if r != MT_OK:
        return r
    out[0] = cursor_first(q, s.cur)
    if out[0] == NULL:
        return MT_EMPTY
    cursor_skip(q, s.cur, out[0])
    keep_for_handle(out[0])
    return MT_OK


cdef int take_bare(bare_sub *b, mt_delivery *out, int64_t *ticket) noexcept nogil:
    """One try. MT_OK, MT_EMPTY, MT_SHUTDOWN, ST_NO_CREDIT, ST_CLOSED. ticket: what the queue's count of events was then."""
    cdef core *q = b.s.q
    cdef sub *s = &b.s
    cdef entry *e = NULL
    cdef uint64_t delivery = 0
    cdef debts d
    cdef int r
    clear_debts(&d)
    lock_order(q)
    r = ordered_look(q, s, &e) if s.browse else ordered_take_plain(q, s, &e, &delivery)
    if r == MT_OK:
        out.queue = <mt_entryqueue *>b.owner
        out.entry = <void *>e
        out.item = <uintptr_t>e.item
        out.seq = e.seq
        out.delivery = delivery
        if not s.browse:
            ordered_after_get(q, s, &d)
    elif q.shut and (r == MT_EMPTY or (r == ST_NO_CREDIT and q.available == 0)):
        r = MT_SHUTDOWN
    ticket[0] = q.events
    unlock_bare(b.owner, &d)
    return r


cdef int wait_bare(bare_sub *b, int64_t deadline, int64_t ticket, bint *woken) noexcept nogil:
    """Until another try is worth it: MT_OK, woken says whether by a wake-up. MT_TIMEOUT, MT_NOMEM."""
    cdef core *q = b.s.q
    cdef sub *s = &b.s
    cdef mt_waiter w
    cdef bint notified = True
    cdef int r = waiter_open(&w)
    if r != MT_OK:
        return r
    woken[0] = False
    lock_order(q)
    if q.events != ticket or s.closed:
        unlock_order(q)
        waiter_close(&w)
        return MT_OK
    mt_waitlist_push(&s.waiters, &w)
    ordered_relist(q, s)
    unlock_order(q)
    mt_point()
    r = waiter_park(&w, deadline, False)
    mt_point()
    lock_order(q)
    if r != MT_OK:
        notified = mt_waitlist_leave(&s.waiters, &w) == MT_WAITER_NOTIFIED
    if notified and s.notified > 0:
        s.notified -= 1
    ordered_relist(q, s)
    unlock_order(q)
    if notified and r != MT_OK:
        waiter_await_post(&w, False)
    waiter_close(&w)
    woken[0] = notified
    return MT_OK if notified else r


cdef void pass_on_bare(bare_sub *b) noexcept nogil:
    """A wake-up that is of no use here goes to somebody else."""
    cdef debts d
    clear_debts(&d)
    lock_order(b.s.q)
    ordered_wake_many(b.s.q, 1, &d)
    unlock_bare(b.owner, &d)


cdef int mt_entryqueue_get(mt_entrysub *subscription, mt_delivery *out, int64_t timeout_ns) noexcept nogil:
    cdef bare_sub *b = <bare_sub *>subscription
    cdef int64_t deadline = NEVER, ticket = 0
    cdef bint woken = False
    cdef int r = take_bare(b, out, &ticket)
    if r != MT_OK and timeout_ns > 0:
        deadline = deadline_in(timeout_ns)
    while r == MT_EMPTY or r == ST_NO_CREDIT:
        if timeout_ns == 0:
            return MT_EMPTY
        r = wait_bare(b, deadline, ticket, &woken)
        if r != MT_OK:
            return r
        r = take_bare(b, out, &ticket)
        if woken and r != MT_OK and r != MT_EMPTY:
            pass_on_bare(b)
    return MT_BADARG if r == ST_CLOSED else r


# ------------------------------------------------------------------------------------------------------- what becomes of it
cdef int finish_bare(mt_delivery *it, uint32_t reason) noexcept nogil:
    cdef bare *b = <bare *>it.queue
    cdef entry *e = <entry *>it.entry
    cdef debts d
    cdef bint done
    if e == NULL:
        return MT_BADARG
    it.entry = NULL
    if it.delivery == 0 or not mt_word_held_by(mt_entry_word(&e.word), it.delivery):
        mt_entry_drop(e)
        return MT_BADARG
    clear_debts(&d)
    mt_point()
    lock_order(b.q)
    done = ordered_finish(b.q, e, it.delivery, reason, &d)
    d.dead = NULL               # it can only be e, whose item is the caller's
    unlock_bare(b, &d)
    if done:
        mt_entry_drop(e)
    mt_entry_drop(e)
    return MT_OK if done else MT_BADARG


cdef int mt_entryqueue_ack(mt_delivery *it) noexcept nogil:
    return finish_bare(it, ACKED)


cdef int mt_entryqueue_reject(mt_delivery *it) noexcept nogil:
    return finish_bare(it, REJECTED)


cdef int mt_entryqueue_release(mt_delivery *it) noexcept nogil:
    cdef bare *b = <bare *>it.queue
    cdef entry *e = <entry *>it.entry
    cdef debts d
    cdef int r = MT_BADARG
    if e == NULL:
        return r
    it.entry = NULL
    if it.delivery:
        clear_debts(&d)
        mt_point()
        lock_order(b.q)
        if ordered_release(b.q, e, it.delivery, 0, &d):
            r = MT_OK if d.dead == NULL else MT_SHUTDOWN
        d.dead = NULL           # it can only be e
        unlock_bare(b, &d)
    if r == MT_SHUTDOWN:
        mt_entry_drop(e)
    mt_entry_drop(e)
    return r


cdef void mt_entryqueue_forget(mt_delivery *it) noexcept nogil:
    if it.entry != NULL:
        mt_entry_drop(<entry *>it.entry)
    it.entry = NULL


# ------------------------------------------------------------------------------------------------------------------ state
cdef int64_t mt_entryqueue_qsize(mt_entryqueue *queue) noexcept nogil:
    cdef core *q = (<bare *>queue).q
    cdef int64_t n
    lock_order(q)
    n = q.available
    unlock_order(q)
    return n


cdef int64_t mt_entryqueue_depth(mt_entryqueue *queue) noexcept nogil:
    cdef core *q = (<bare *>queue).q
    cdef int64_t n
    lock_order(q)
    n = depth_of(q)
    unlock_order(q)
    return n


cdef void mt_entryqueue_shutdown(mt_entryqueue *queue, bint immediate) noexcept nogil:
    cdef bare *b = <bare *>queue
    cdef debts d
    clear_debts(&d)
    lock_order(b.q)
    ordered_shutdown(b.q, immediate, &d)
    unlock_bare(b, &d)
