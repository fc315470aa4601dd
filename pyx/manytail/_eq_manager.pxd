# The manager of the subscriptions of an entry queue (_eq.pxd): which of them wait, which ones an entry wakes, and which
# have the first claim to it. Private. Source: the consumer manager of Qpid's queues.
#
# A subscription that is interested and in which a get waits is in one list (locked_list_for): `waiting` or `filtered`
# of its `subscription_rank`, which has the acquiring subscriptions of one priority, or `browsers_waiting` of the queue.
# Qpid also lists those that are interested without a waiting get, notified, or not interested; here nobody would look
# into such a list. A move is O(1), and a put visits only subscriptions with waiters.
#
# Invariants
#   M1  A subscription is in the list of its state, if there is one: whoever changes its state calls locked_relist.
#       `nwaiting` counts the subscriptions in these lists. Exception: a shared credit may change without the order
#       lock. So locked_notify checks is_interested() again. Whoever makes a Consumer idle calls
#       locked_interest_changed for each of its subscriptions afterwards (Credit.interest_changed).
#   M2  Whoever makes an entry takable notifies one unfiltered subscription, and each filtered one that it may suit. A
#       notified waiter that does not try again, or cannot take what others may take, notifies another one. So E4 holds.
from manytail._eq cimport *


# --------------------------------------------------------------------------------------------------- credit and filters
cdef inline bint has_credit(subscription *s) noexcept nogil:
    return s.limit <= 0 or s.nacquired < s.limit if likely(s.credit == NULL) else has_shared_credit(s.credit)


cdef inline bint has_shared_credit(shared_credit *c) noexcept nogil:
    # relaxed because: it is set once, before the Consumer has a subscription
    cdef int64_t limit = mt_load_relaxed_i64(&c.limit)
    # relaxed because: each change is followed by an event, so a get that reads the old value does not wait: it tries
    # again. A return of credit is an event under the credit's lock. If a take leaves none, Credit.interest_changed
    # makes one under the order lock of each queue.
    return limit <= 0 or mt_load_relaxed_i64(&c.used) < limit


cdef inline bint is_suspended(subscription *s) noexcept nogil:
    # relaxed because: a change is followed by an event under the order lock of each queue of the Consumer
    return s.suspended or (unlikely(s.credit != NULL) and mt_load_relaxed_i64(&s.credit.suspended) != 0)


cdef inline bint is_interested(subscription *s) noexcept nogil:
    return not is_closed(s) and not is_suspended(s) and (s.browse or has_credit(s))


cdef inline int locked_interest(subscription *s) noexcept nogil:
    """The number of Subscription.interest among INTERESTS (_entries.pyx)."""
    if is_closed(s):
        return 4
    if not is_interested(s):
        return 2
    return 3 if s.browse else s.notified > 0


cdef inline int locked_usable(subscription *s) noexcept nogil:
    if unlikely(is_closed(s)):
        return CLOSED
    if unlikely(is_suspended(s) or not (s.browse or has_credit(s))):
        return NO_CREDIT
    return MT_OK


cdef inline bint passes_start_and_origin(subscription *s, entry *e) noexcept nogil:
    """Whether e passes `start` and `origin`. They never change, so e that fails never suits s. Entries that come from
    the origin fail."""
    if e.seq < s.start:
        return False
    return s.origin == NULL or e.options == NULL or e.options.origin != s.origin


cdef inline bint may_take(entry_queue *q, subscription *s, entry *e) noexcept nogil:
    """Whether e passes all filters of s except the selector, which is Python code and cannot run here."""
    return passes_start_and_origin(s, e) and (q.groups == GROUPS_NONE or s.browse or group_allows(e, &s.own))


# ---------------------------------------------------------------------------------------------------------------- lists
cdef inline void list_subscription(entry_queue *q, subscription *s, subscription_list *to) noexcept nogil:
    """Move s to the end of that list. NULL: to none."""
    if s.listed != NULL:
        unlink_from(s, &s.next, &s.listed.first, &s.listed.last)
        q.nwaiting -= 1
    s.listed = to
    if to != NULL:
        link_last(s, &s.next, &to.first, &to.last)
        q.nwaiting += 1


cdef inline subscription_list *locked_list_for(entry_queue *q, subscription *s) noexcept nogil:
    """The list of the state of s, or NULL."""
    if s.waiters.n == 0 or not is_interested(s):
        return NULL
    if s.browse:
        return &q.browsers_waiting
    return &s.rank.filtered if s.filtered else &s.rank.waiting


cdef inline void locked_relist(entry_queue *q, subscription *s) noexcept nogil:
    """Move s to the end of the list of its state, unless it is already in that list. O(1)."""
    if is_closed(s):
        return
    to = locked_list_for(q, s)
    if to != s.listed:
        list_subscription(q, s, to)


cdef inline subscription_rank *locked_rank(entry_queue *q, int64_t priority) noexcept nogil:
    """The rank of that priority, made if missing. NULL: no memory."""
    cdef subscription_rank **at = &q.ranks
    while at[0] != NULL and at[0].priority > priority:
        at = &at[0].next
    if at[0] != NULL and at[0].priority == priority:
        return at[0]
    rank = <subscription_rank *>calloc(1, sizeof(subscription_rank))
    if rank != NULL:
        rank.priority = priority
        rank.next = at[0]
        at[0] = rank
        q.nranks += 1
    return rank


cdef inline void locked_free_empty_rank(entry_queue *q, subscription_rank *rank) noexcept nogil:
    """Call it after a subscription has left `rank`."""
    cdef subscription_rank **at = &q.ranks
    if rank.all.first != NULL:
        return
    while at[0] != rank:
        at = &at[0].next
    at[0] = rank.next
    q.nranks -= 1
    free(rank)


# --------------------------------------------------------------------------------------------------------------- waking
cdef inline bint locked_notify(entry_queue *q, subscription *s, effects *fx) noexcept nogil:
    """Notify the thread and the task that wait longest in s (_waiting.pxd: why both). If s has more waiters, move it to
    the end of its list: a round robin of subscriptions. False: s has no waiters, or is idle."""
    cdef int64_t n = s.waiters.n
    if n == 0 or not is_interested(s):
        locked_relist(q, s)
        return False
    notify(&s.waiters, &fx.to_post)
    s.notified += n - s.waiters.n
    locked_relist(q, s)
    if s.waiters.n and s.next != NULL:
        list_subscription(q, s, s.listed)
    return True


cdef inline void locked_answer(subscription *s) noexcept nogil:
    """Count a notification of s as answered: its waiter tries again, or never will."""
    if s.notified > 0:          # in the child of a fork it was reset to 0
        s.notified -= 1
    locked_relist(s.q, s)


cdef inline void locked_wake(entry_queue *q, entry *e, effects *fx) noexcept nogil:
    """Wake waiters for e, which has become takable. Browsers too, also by a release or the end of a delay: one that has
    waited since before the put has not passed e.

    A woken waiter takes one entry, so one unfiltered subscription is woken. Each filtered one that e may suit is woken
    too: selectors cannot run here, so which of them take e is not known."""
    q.event_count += 1
    if unlikely(q.nwaiting != 0):
        locked_wake_ranks(q, e, fx)


cdef inline int64_t locked_wake_filtered(entry_queue *q, subscription_list *some, entry *e, effects *fx) noexcept nogil:
    """Wake each subscription of a list that e may suit (NULL: each). Returns how many were notified."""
    cdef subscription *s = some.first
    cdef subscription *last = some.last         # locked_notify may move a subscription behind it
    cdef int64_t n = 0
    while s != NULL:
        following = s.next
        if e == NULL or may_take(q, s, e):
            n += locked_notify(q, s, fx)
        if s == last:
            break
        s = following
    return n


cdef inline int64_t locked_wake_ranks(entry_queue *q, entry *e, effects *fx) noexcept nogil:
    """Wake one unfiltered subscription, of the highest priority at which one waits, and each filtered one, browsers
    included, that e may suit (NULL: each). Returns how many subscriptions were notified."""
    cdef subscription_rank *rank = q.ranks
    cdef bint done = False
    cdef int64_t n = locked_wake_filtered(q, &q.browsers_waiting, e, fx)
    while rank != NULL:
        n += locked_wake_filtered(q, &rank.filtered, e, fx)
        while not done and rank.waiting.first != NULL:      # if it is idle, locked_notify takes it off the list
            done = locked_notify(q, rank.waiting.first, fx)
        rank = rank.next
    return n + done


cdef inline void locked_wake_many(entry_queue *q, int64_t n, effects *fx) noexcept nogil:
    """Wake waiters for up to n entries that may have become takable. Which entries is not known, so filtered
    subscriptions are woken whatever their filters."""
    q.event_count += 1
    while n > 0 and q.nwaiting and locked_wake_ranks(q, NULL, fx):
        n -= 1


cdef inline void locked_wake_subscription(entry_queue *q, subscription *s, effects *fx) noexcept nogil:
    """Notify all waiters of s."""
    s.notified += s.waiters.n
    notify_all(&s.waiters, &fx.to_post)
    locked_relist(q, s)


cdef inline void locked_wake_everybody(entry_queue *q, effects *fx) noexcept nogil:
    """Notify all waiters of all subscriptions."""
    cdef subscription *s = next_open(q, NULL)
    while s != NULL:
        locked_wake_subscription(q, s, fx)
        s = next_open(q, s)


cdef inline void locked_wake_after_shutdown(entry_queue *q, bint was_held, effects *fx) noexcept nogil:
    """Call it after an entry of a queue that is shut down was acquired or discarded, or became AVAILABLE: wake
    subscriptions that may have nothing left to wait for. was_held: the entry was HELD. After the last one that is every
    subscription, also one that others outrank; so it is with no entry AVAILABLE or HELD. Else it is each filtered one
    that does not browse, even if idle: only its own search can tell whether an entry that is left suits it."""
    cdef subscription *s = q.filtered
    q.event_count += 1
    if q.held == 0 and (was_held or q.available == 0):
        locked_wake_everybody(q, fx)
        return
    while s != NULL:
        if s.waiters.n and not s.browse:
            locked_wake_subscription(q, s, fx)
        s = s.filtered_next


cdef inline void locked_set_suspended(entry_queue *q, subscription *s, bint suspended, effects *fx) noexcept nogil:
    if not is_closed(s) and s.suspended != suspended:
        s.suspended = suspended
        locked_interest_changed(q, s, suspended, fx)


cdef inline void locked_set_limit(entry_queue *q, subscription *s, int64_t limit, effects *fx) noexcept nogil:
    cdef bint was = is_interested(s)
    s.limit = limit
    if not is_closed(s):
        locked_interest_changed(q, s, was, fx)


cdef inline void locked_interest_changed(entry_queue *q, subscription *s, bint was, effects *fx) noexcept nogil:
    """Call it after a change to whether s is interested. was: s may have been interested before."""
    q.event_count += 1
    locked_relist(q, s)
    if is_interested(s):
        while s.waiters.n and locked_notify(q, s, fx):
            pass
    elif was:
        # s outranks nobody now. Also, waiters of s that were notified can take nothing, so wake others instead.
        locked_wake_many(q, q.available, fx)


# ------------------------------------------------------------------------------------------------------ the first claim
cdef inline subscription *next_acquiring(entry_queue *q, subscription *s) noexcept nogil:
    """The acquiring subscription that follows s (NULL: the first one), by descending priority. NULL: the end."""
    if s != NULL and s.all_next != NULL:
        return s.all_next
    rank = q.ranks if s == NULL else s.rank.next
    return rank.all.first if rank != NULL else NULL


cdef inline subscription *next_open(entry_queue *q, subscription *s) noexcept nogil:
    """The open subscription that follows s (NULL: the first one). NULL: the end. Browsers are the last."""
    if s == NULL or not s.browse:
        s = next_acquiring(q, s)
        if s != NULL:
            return s
        s = q.filtered              # has all browsers, which are in no rank
    else:
        s = s.filtered_next
    while s != NULL and not s.browse:
        s = s.filtered_next
    return s


cdef inline subscription *next_above(subscription *s, subscription *h) noexcept nogil:
    """The interested subscription of higher priority than s that follows h (NULL: the first one). NULL: the end."""
    h = next_acquiring(s.q, h)
    while h != NULL and h.rank.priority > s.rank.priority:
        if is_interested(h):
            return h
        h = next_acquiring(s.q, h)
    return NULL


cdef inline bint locked_outranked(subscription *s, bint *filtered_above) noexcept nogil:
    """Whether an interested, unfiltered subscription has a higher priority than s. If this is False, *filtered_above
    says whether a filtered one has: that one outranks s only for entries that it wants."""
    cdef subscription *h = next_above(s, NULL)
    filtered_above[0] = False
    while h != NULL:
        if not h.filtered:
            return True
        filtered_above[0] = True
        h = next_above(s, h)
    return False


cdef inline bint locked_is_rival(subscription *s, uint32_t id) noexcept nogil:
    """Whether the subscription with that id is a rival of s."""
    cdef subscription *h = next_above(s, NULL)
    while h != NULL and h.id != id:
        h = next_above(s, h)
    return h != NULL


# -------------------------------------------------------------------------------------------------------- shared credit
cdef inline bint take_shared_credit(shared_credit *c) noexcept nogil:
    """Take one credit of a Consumer, for an entry that one of its subscriptions is about to acquire. False: there is
    none. Gets of several queues, under several order locks, compete for it. Progress: lock-free."""
    # relaxed because: it is set once, before the Consumer has a subscription
    cdef int64_t limit = mt_load_relaxed_i64(&c.limit)
    # relaxed because: the swap checks it
    cdef int64_t used = mt_load_relaxed_i64(&c.used)
    while limit <= 0 or used < limit:
        mt_point()
        # pairs with: mt_fetch_add_acq_rel in return_shared_credit
        if mt_cas_acq_rel_i64(&c.used, &used, used + 1):
            return True
    return False


cdef inline void return_shared_credit(shared_credit *c) noexcept nogil:
    """Undo take_shared_credit(). With a limit, an event under the credit's lock has to follow. Progress: lock-free."""
    # pairs with: mt_cas_acq_rel in take_shared_credit
    mt_fetch_add_acq_rel_i64(&c.used, -1)


cdef inline void credit_locked_return(entry_queue *q, subscription *s, effects *fx) noexcept nogil:
    """After `nacquired` was reduced: return shared credit, and notify a waiter."""
    if s.credit != NULL:
        return_shared_credit(s.credit)
        # relaxed because: the limit is set once, before the Consumer has a subscription
        if mt_load_relaxed_i64(&s.credit.limit) > 0:
            credit_locked_notify(s.credit, fx)
    q.event_count += 1
    locked_relist(q, s)
    if s.waiters.n:
        locked_notify(q, s, fx)


cdef inline void credit_locked_notify(shared_credit *c, effects *fx) noexcept nogil:
    """Notify the waiters of a Consumer, whichever queues they wait for."""
    c.event_count += 1
    notify_all(&c.waiters, &fx.to_post)


cdef inline void credit_notify(shared_credit *c, effects *fx) noexcept nogil:
    lock_credit(c)
    credit_locked_notify(c, fx)
    unlock_credit(c)


# -------------------------------------------------------------------------------------------------------------- waiting
# A try that fails stores the queue's event_count in p.events_seen, under the order lock. If it has changed since, the
# call tries again instead of waiting.
cdef inline void entries_point(wait_point *p, subscription *s, bint attached) noexcept nogil:
    """The point at which a get waits until it has to try again. Keeps `events_seen`: a try may have set it before."""
    make_point(p, &s.waiters, &s.q.lock, s.q.gil_locked, attached, locked_poll_entries, s)
    p.changed = locked_waiters_changed
    p.forward = locked_forward_entry


cdef inline int locked_poll_entries(wait_point *p, bint parking) noexcept nogil:
    cdef subscription *s = <subscription *>p.of
    return MT_OK if s.q.event_count != p.events_seen or is_closed(s) else WAIT


cdef inline void locked_waiters_changed(wait_point *p) noexcept nogil:
    cdef subscription *s = <subscription *>p.of
    locked_relist(s.q, s)


cdef inline void locked_forward_entry(wait_point *p, wait_node **to_post) noexcept nogil:
    """A waiter will not try again, or not at this point: count its notification, if any (forward_unused() with `all`),
    as answered, and notify another waiter."""
    cdef subscription *s = <subscription *>p.of
    cdef effects fx
    memset(&fx, 0, sizeof(effects))
    fx.to_post = to_post[0]
    if p.woken:
        locked_answer(s)
    locked_wake_many(s.q, 1, &fx)
    to_post[0] = fx.to_post


cdef inline void credit_point(wait_point *p, shared_credit *c) noexcept nogil:
    """The point at which a get of a Consumer waits for an event of the credit. The get stores the credit's event_count
    in `events_seen` before it tries the queues, so credit that comes back during the try is not missed."""
    make_point(p, &c.waiters, &c.lock, c.gil_locked, True, credit_locked_poll, c)


cdef inline int credit_locked_poll(wait_point *p, bint parking) noexcept nogil:
    return MT_OK if (<shared_credit *>p.of).event_count != p.events_seen else WAIT
