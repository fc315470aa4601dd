# The entry queue: entries in one strict order, subscriptions that acquire them, and the manager, which decides whom an
# entry wakes. Private.
#
# This file is the whole algorithm, on C structs, nogil throughout. Its faces are _entries.pyx and the modules on top of
# it (Python), and _eq_nogil.pxd (detached callers); the native drivers compile it without an interpreter. _entry.pxd
# has the entry, the list and the positions on it, _eq_keys.pxd groups and last values, _eq_sorted.pxd the index of a
# sorted queue.
#
# Source: the strictly ordered queue of Qpid and its consumer manager. docs/design/entryqueue.md explains both.
#
# Terms. Credit: how many entries a subscription may hold without acknowledging them. Filters: selector, origin, start,
# groups. Idle: closed, suspended or without credit; else a subscription is interested. It is outranked by an interested
# subscription of higher priority, which has the first claim to each entry that it wants.
#
# Locks. "locked_" functions are called with the order lock held. They run no Python code and wait for nothing but the
# lock of a shared credit, which is always taken after an order lock. What runs Python code is collected in `effects`
# and done after unlocking. Progress: blocking.
#   gil_locked: a queue of Python objects on a build with the GIL. The GIL is its order lock; its lock word is not used.
#   objects: items are Python objects, and each handle gets references; callers are attached. Else they are detached.
#
# Invariants
#   E1  AVAILABLE, ACQUIRED and HELD entries are linked, others are not; `available`, `acquired` and `held` count them.
#   E2  For every cursor, an AVAILABLE entry that may be wanted is at or after its position, or among its redeliveries.
#       Exception: subscription.below passes entries that a subscription of below_ids wants.
#   E3  An entry is in its holder's list of held or of reserved entries, and counted in `nheld`, exactly while `owner`
#       is set. The `used` of a shared credit is the sum of nheld.
#   E4  No waiter sleeps while an entry that it may take is AVAILABLE, unless a notified waiter has not tried yet.
#   E5  A fork finds no half-done step: whatever ends a delivery takes all locks before it changes anything.
from cpython.ref cimport PyObject
from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memset

from manytail._c cimport (
    MT_EMPTY, MT_FREE_THREADED, MT_FULL, MT_NOMEM, MT_OK, MT_SHUTDOWN, PyThread_get_thread_ident, keep, likely,
    mt_atomic_i64, mt_fetch_add_acq_rel_i64, mt_first_bit, mt_load_relaxed_i64, mt_lock, mt_lock_reset,
    mt_now_coarse_ns, mt_now_ns, mt_store_relaxed_i64, unlikely,
)
from manytail._entry cimport (
    ACQUIRED, AVAILABLE, HELD, cursor_position, entry, entry_acquire, entry_delete, entry_dequeue, entry_keep,
    entry_list, entry_options, entry_release, entry_steal, entry_unhold, entry_unlock, entry_withdraw, entry_word,
    is_linked, list_append, list_unlink, position_at, position_close, position_move, position_open, redeliveries_free,
    redeliveries_pop, redeliveries_push, redeliveries_shrink, state_of, timers_remove, timers_set, word_delivery,
)
from manytail._eq_keys cimport (
    GROUPS_ASSIGNED, GROUPS_NONE, group_allows, group_dead, group_index, group_removed, group_shown, group_taken,
    groups_closed, groups_renumbered, groups_first, key_record, key_table, unpin_record, value_added, value_removed,
    value_replaced, value_replaces,
)
from manytail._eq_sorted cimport index_link, index_oldest, index_remove, search_place, search_range, sorted_index
from manytail._heap cimport heap, heap_reserve
from manytail._lock cimport enter, enter_heavy, leave
from manytail._waiting cimport (
    TASKS, THREADS, WAIT, keep_tasks, make_point, notify, notify_all, notify_first, wait_list, wait_node, wait_point,
)

cdef enum:
    OVERFLOW_BLOCK = 0
    OVERFLOW_REJECT = 1
    OVERFLOW_DROP = 2

cdef enum:                      # entry.reason
    ACKED = 1
    REJECTED = 2
    EXPIRED = 3
    EXHAUSTED = 4               # max_deliveries
    OVERFLOWN = 5
    SHUT = 6
    PURGED = 7
    REPLACED = 8
    CLEARED = 9

cdef enum:
    DEAD_LETTER_NONE = 0
    DEAD_LETTER_QUEUE = 1
    DEAD_LETTER_CALL = 2        # a callable

cdef enum:                      # status codes beside MT_*
    NO_CREDIT = 100             # no credit, or suspended
    CLOSED = 101
    DENIED = 102                # not possible: see the function
    SLOW = 103                  # Python code has to decide (a selector): the face takes the slow path

cdef enum:
    LEVEL_SHIFT = 48            # entry.order = priority level << LEVEL_SHIFT | arrival number, unless sorted
    TIMER_GRACE = 1000000000    # ns; if the shared timer would sleep longer than this for nothing, it is told

ctypedef struct entry_queue     # declared first: they point to each other
ctypedef struct subscription
ctypedef struct subscription_rank
ctypedef struct shared_credit
ctypedef struct dead_letter_call
ctypedef struct eq_registry

# How far a subscription has come: it has passed the entries before the positions, except the redeliveries.
ctypedef struct cursor:
    cursor_position one         # used if there is one level
    cursor_position *positions  # one per level
    heap redeliveries

# Credit that the subscriptions of one Consumer share. Its numbers are atomic, the rest is under its lock.
ctypedef struct shared_credit:
    mt_lock lock
    bint gil_locked
    mt_atomic_i64 used
    mt_atomic_i64 limit
    mt_atomic_i64 suspended
    int64_t event_count         # changes when a waiter has to try again
    wait_list waiters
    eq_registry *registry
    shared_credit *reg_next
    shared_credit *reg_prev

ctypedef struct subscription_list:
    subscription *first
    subscription *last

# The acquiring subscriptions of one priority. Each is in `all`, and in one of the other lists or in entry_queue.idle.
ctypedef struct subscription_rank:
    int64_t priority
    subscription_rank *next     # the next lower priority
    int64_t n                   # in `all`
    subscription_list all
    subscription_list interested    # interested, but no get waits
    subscription_list waiting       # unfiltered, and a get waits: one of them is notified per entry
    subscription_list filtered      # filtered, and a get waits: all that may want the entry are notified
    subscription_list notified      # all waiting gets were notified and have not tried again

ctypedef struct subscription:
    entry_queue *q
    uint32_t id
    bint browse
    bint exclusive
    bint suspended
    bint closed
    bint filtered               # has a selector, an origin, a start or groups, or browses
    bint any_entry              # no selector, origin or start, and does not browse: at most groups filter
    void *selector              # borrowed from the Subscription, or NULL
    const void *origin          # only compared by identity
    int64_t start               # it gets no entries with smaller arrival numbers
    int64_t limit               # its own credit: entries that it may hold; <= 0: any number
    int64_t nheld
    entry *held_first           # in the order in which it got them
    entry *held_last
    int64_t nreserved           # of nheld: acquired by put(immediate=True) for a notified waiter
    entry *reserved_first
    entry *reserved_last
    cursor *cursor_in_use       # the queue's shared one, or own_cursor
    cursor own_cursor           # of a filtered one; not open with groups, which have heaps, or walk
    heap own                    # with groups: the first AVAILABLE entry of each group that it owns
    cursor below                # skips what the subscriptions of below_ids want: see "outranked by filters"
    uint32_t *below_ids
    int64_t nbelow_ids
    bint below_open
    subscription *below_next    # in entry_queue.below
    subscription *below_prev
    shared_credit *credit       # NULL: it has credit of its own
    wait_list waiters
    int64_t notified            # waiters that were notified and have not tried again
    subscription_rank *rank     # NULL: it browses
    subscription_list *listed   # the list of the manager that it is in
    subscription *next
    subscription *prev
    subscription *all_next
    subscription *all_prev
    subscription *filtered_next
    subscription *filtered_prev

ctypedef struct dead_letter_call:   # on the stack of a thread that runs the dead-letter callable
    unsigned long thread
    dead_letter_call *next
    dead_letter_call *prev

ctypedef struct effects:        # what the caller does after unlocking
    wait_node *to_post
    entry *dead                 # drop their items and the list's references; by dead_next
    key_record *keys            # free these records
    bint notify_thread          # tell the dead-letter thread that this queue has work for it
    bint timers_ended           # tell the timer thread that this queue has no timers left

ctypedef struct acquired_entry:     # what a handle is made of, with a reference to each
    entry *e
    void *item
    void *extra
    uint64_t delivery           # 0: not a delivery

ctypedef struct selector_result:    # what a selector said about an entry
    uint32_t id                 # of the subscription
    bint wants
    PyObject *selector          # with a reference: not asked yet; None if the subscription has no selector

ctypedef struct selector_results:
    selector_result *items
    int64_t n
    int64_t capacity

ctypedef struct queue_counters:     # totals since the queue was made
    int64_t enqueued
    int64_t delivered
    int64_t acked
    int64_t released
    int64_t expired
    int64_t rejected
    int64_t dropped
    int64_t purged
    int64_t dead_lettered
    int64_t selector_errors
    int64_t high_water

# All entry queues of one kind, of Python objects or for detached callers, for fork.
ctypedef struct eq_registry:
    mt_lock lock
    bint objects
    entry_queue *first
    shared_credit *first_credit

# Links an entry at its place in the order, under the order lock. `found` is the result of prepare() (_orders.pyx).
# MT_OK; MT_EMPTY: it is out of date, prepare again; MT_NOMEM.
ctypedef int (*place_entry)(entry_queue *, entry *, search_range *found) noexcept nogil

ctypedef struct entry_queue:
    mt_lock lock                # the order lock: guards all below, and of the entries all but `word` and `refs`
    bint gil_locked
    bint objects
    bint shut                   # no more puts
    bint shut_now               # and released entries are discarded
    entry_list *lists           # one per priority level, most urgent first
    uint32_t nlevels
    uint32_t next_id            # of subscriptions
    place_entry place           # NULL: append to the level
    int64_t nseq                # the next arrival number
    int64_t available
    int64_t acquired
    int64_t held
    int64_t event_count         # changes when some waiter has to try again
    int64_t nwaiting            # subscriptions in waiting, filtered and browsers_waiting lists
    int64_t maxsize             # <= 0: no limit
    int64_t low_watermark
    int overflow
    int groups
    int dead_letter             # DEAD_LETTER_*
    bint throttled              # OVERFLOW_BLOCK: it was full, and puts wait until depth <= low_watermark
    int64_t nranks
    wait_list putters
    heap timers
    cursor shared               # of all unfiltered subscriptions
    queue_counters counters
    entry_list one_list         # used if there is one level
    uint64_t *ready             # bit set of the levels that are not empty, most urgent first
    uint64_t one_ready          # used if there is one level
    int64_t priority_offset     # level = clamp(priority - offset, 0, nlevels - 1), counted from the least urgent one
    dead_letter_call *dead_letter_calls     # threads inside the dead-letter callable
    entry *for_thread           # dead, for the dead-letter thread: by dead_next, the oldest first
    entry *for_thread_last
    key_record *keys_for_thread     # for that thread to free
    bint thread_notified        # that thread knows of them
    bint arrivals               # sorted, with OVERFLOW_DROP: `oldest`, `newest` keep the order of arrival
    int64_t next_check          # when the timer thread will look at this queue, 0: never
    int64_t max_deliveries      # <= 0: no limit
    key_table group_keys
    group_index groups_takable
    key_table value_keys
    entry *oldest
    entry *newest
    bint keyed                  # sorted: its entries have keys and are in the index
    bint exclusive              # its only subscription is exclusive
    sorted_index index
    subscription_rank *ranks    # by descending priority
    int64_t nsubscriptions
    subscription_list browsers
    subscription_list browsers_waiting
    subscription_list idle
    subscription *filtered      # all filtered subscriptions, by filtered_next
    subscription *below         # all whose `below` is open, by below_next
    eq_registry *registry
    entry_queue *reg_next
    entry_queue *reg_prev


# ---------------------------------------------------------------------------------------------------------------- locks
cdef inline void lock_order(entry_queue *q) noexcept nogil:
    enter_heavy(&q.lock, not MT_FREE_THREADED and q.gil_locked, q.objects)


cdef inline void unlock_order(entry_queue *q) noexcept nogil:
    leave(&q.lock, not MT_FREE_THREADED and q.gil_locked)


cdef inline void lock_credit(shared_credit *c) noexcept nogil:
    enter(&c.lock, c.gil_locked, True)


cdef inline void unlock_credit(shared_credit *c) noexcept nogil:
    """c may be NULL."""
    if unlikely(c != NULL):
        leave(&c.lock, c.gil_locked)


# ------------------------------------------------------------------------------------------------------------ accessors
cdef inline bint has_effects(effects *fx) noexcept nogil:
    return (<uintptr_t>fx.to_post | <uintptr_t>fx.dead | <uintptr_t>fx.keys
            | <uintptr_t>(fx.notify_thread | fx.timers_ended)) != 0


cdef inline int64_t depth_of(entry_queue *q) noexcept nogil:
    return q.available + q.acquired + q.held


cdef inline bint is_dead_letter(uint32_t reason) noexcept nogil:
    return REJECTED <= reason <= SHUT


cdef inline uint16_t level_of(entry_queue *q, int64_t priority) noexcept nogil:
    """The index in `lists` for a priority."""
    return <uint16_t>(q.nlevels - 1 - max(0, min(priority - q.priority_offset, <int64_t>q.nlevels - 1)))


cdef inline void note_acquired(acquired_entry *t, entry *e, uint64_t delivery) noexcept nogil:
    t.e = e
    t.item = e.item
    t.extra = e.extra
    t.delivery = delivery


cdef inline void keep_for_handle(entry_queue *q, entry *e) noexcept nogil:
    """Add the references of a handle: to the entry, its item and its extra."""
    entry_keep(e)
    if q.objects:
        keep(<uintptr_t>e.item)
        if unlikely(e.extra != NULL):
            keep(<uintptr_t>e.extra)


# ---------------------------------------------------------------------------------------------------------- the manager
cdef inline void list_subscription(subscription_list *to, subscription *s) noexcept nogil:
    s.listed = to
    s.next = NULL
    s.prev = to.last
    if to.last != NULL:
        to.last.next = s
    else:
        to.first = s
    to.last = s


cdef inline void unlist_subscription(subscription *s) noexcept nogil:
    cdef subscription_list *out_of = s.listed
    if s.prev != NULL:
        s.prev.next = s.next
    else:
        out_of.first = s.next
    if s.next != NULL:
        s.next.prev = s.prev
    else:
        out_of.last = s.prev
    s.listed = NULL


cdef inline bint has_credit(subscription *s) noexcept nogil:
    cdef int64_t limit
    if likely(s.credit == NULL):
        return s.limit <= 0 or s.nheld < s.limit
    # relaxed because: a change of either is followed by an event, under the order lock or the credit's
    limit = mt_load_relaxed_i64(&s.credit.limit)
    return limit <= 0 or mt_load_relaxed_i64(&s.credit.used) < limit       # relaxed because: as above


cdef inline bint is_suspended(subscription *s) noexcept nogil:
    # relaxed because: as in has_credit
    return s.suspended or (unlikely(s.credit != NULL) and mt_load_relaxed_i64(&s.credit.suspended) != 0)


cdef inline bint is_interested(subscription *s) noexcept nogil:
    return not s.closed and not is_suspended(s) and (s.browse or has_credit(s))


cdef inline int locked_usable(subscription *s) noexcept nogil:
    if unlikely(s.closed):
        return CLOSED
    if unlikely(is_suspended(s) or not (s.browse or has_credit(s))):
        return NO_CREDIT
    return MT_OK


cdef inline bint counts_as_waiting(entry_queue *q, subscription_list *l, subscription_rank *rank) noexcept nogil:
    return l == &q.browsers_waiting or (rank != NULL and (l == &rank.waiting or l == &rank.filtered))


cdef inline subscription_list *locked_list_for(entry_queue *q, subscription *s) noexcept nogil:
    """The list that a subscription belongs to."""
    if not is_interested(s):
        return &q.idle
    if s.browse:
        return &q.browsers_waiting if s.waiters.n else &q.browsers
    if s.waiters.n:
        return &s.rank.filtered if s.filtered else &s.rank.waiting
    return &s.rank.notified if s.notified > 0 else &s.rank.interested


cdef inline void locked_relist(entry_queue *q, subscription *s) noexcept nogil:
    """Move a subscription to the end of the list that it belongs to, unless it is in it. O(1)."""
    cdef subscription_list *to
    if s.closed:
        return
    to = locked_list_for(q, s)
    if to == s.listed:
        return
    q.nwaiting += <int>counts_as_waiting(q, to, s.rank) - <int>counts_as_waiting(q, s.listed, s.rank)
    unlist_subscription(s)
    list_subscription(to, s)


cdef inline bint locked_notify(entry_queue *q, subscription *s, effects *fx) noexcept nogil:
    """Notify the thread and the task that wait longest in s, and move s to the end of its list. False: nobody waits, or
    s is idle."""
    cdef int64_t n = s.waiters.n
    cdef subscription_list *listed
    if n == 0 or not is_interested(s):
        locked_relist(q, s)
        return False
    notify(&s.waiters, &fx.to_post)
    s.notified += n - s.waiters.n
    locked_relist(q, s)
    if s.waiters.n and s.next != NULL:
        listed = s.listed
        unlist_subscription(s)
        list_subscription(listed, s)
    return True


cdef inline void locked_answer(subscription *s) noexcept nogil:
    """A notified waiter tries again, or has given up."""
    if s.notified > 0:          # in the child of a fork it was reset to 0
        s.notified -= 1
    locked_relist(s.q, s)


cdef inline bint quick_wants(subscription *s, entry *e) noexcept nogil:
    """Whether e passes the filters except the selector and groups. A False is final."""
    if e.seq < s.start:
        return False
    return s.origin == NULL or e.options == NULL or e.options.origin != s.origin


cdef inline bint may_take(entry_queue *q, subscription *s, entry *e) noexcept nogil:
    return quick_wants(s, e) and (q.groups == GROUPS_NONE or s.browse or group_allows(e, &s.own))


cdef inline void locked_wake(entry_queue *q, entry *e, bint arrived, effects *fx) noexcept nogil:
    """e has become takable (NULL: any entry may have).

    A woken waiter takes one entry, so one unfiltered subscription is woken. All filtered ones that e may suit are woken
    too, because their selectors cannot run here."""
    q.event_count += 1
    if unlikely(q.nwaiting != 0):
        locked_wake_ranks(q, e, arrived, fx)


cdef inline int64_t locked_wake_filtered(entry_queue *q, subscription_list *some, entry *e, effects *fx) noexcept nogil:
    cdef subscription *s = some.first
    cdef subscription *last = some.last
    cdef subscription *following
    cdef int64_t n = 0
    while s != NULL:
        following = s.next
        if e == NULL or may_take(q, s, e):
            n += locked_notify(q, s, fx)
        if s == last:
            break
        s = following
    return n


cdef inline int64_t locked_wake_ranks(entry_queue *q, entry *e, bint arrived, effects *fx) noexcept nogil:
    """Wake the unfiltered subscription of the highest priority, and all filtered ones that e may suit. Returns how many
    were notified."""
    cdef subscription_rank *rank = q.ranks
    cdef int64_t n = 0
    cdef bint done = False
    if arrived:
        n += locked_wake_filtered(q, &q.browsers_waiting, e, fx)
    while rank != NULL:
        n += locked_wake_filtered(q, &rank.filtered, e, fx)
        while not done and rank.waiting.first != NULL:
            done = locked_notify(q, rank.waiting.first, fx)
        rank = rank.next
    return n + done


cdef inline void locked_wake_many(entry_queue *q, int64_t n, effects *fx) noexcept nogil:
    """Up to n entries may have become takable for other subscriptions."""
    q.event_count += 1
    while n > 0 and q.nwaiting and locked_wake_ranks(q, NULL, True, fx):
        n -= 1


cdef inline void locked_wake_subscription(entry_queue *q, subscription *s, effects *fx) noexcept nogil:
    """Notify all waiters of s."""
    s.notified += s.waiters.n
    notify_all(&s.waiters, &fx.to_post)
    locked_relist(q, s)


cdef inline void locked_wake_everybody(entry_queue *q, effects *fx) noexcept nogil:
    """Notify all waiters of all subscriptions."""
    cdef subscription_rank *rank = q.ranks
    cdef subscription *s
    while rank != NULL:
        s = rank.all.first
        while s != NULL:
            locked_wake_subscription(q, s, fx)
            s = s.all_next
        rank = rank.next
    s = q.filtered
    while s != NULL:
        if s.browse:
            locked_wake_subscription(q, s, fx)
        s = s.filtered_next


cdef inline void locked_wake_at_end(entry_queue *q, effects *fx) noexcept nogil:
    """An entry left a queue that is shut down: wake subscriptions that may have nothing left to wait for. Filtered ones
    are woken in any case, even idle ones: only their own search can tell whether an entry that is left suits them."""
    cdef subscription *s = q.filtered
    q.event_count += 1
    if q.available + q.held == 0:
        locked_wake_everybody(q, fx)
        return
    while s != NULL:
        if s.waiters.n and not s.browse:
            locked_wake_subscription(q, s, fx)
        s = s.filtered_next


cdef inline bint locked_outranked(entry_queue *q, subscription *s, bint *maybe) noexcept nogil:
    """Whether an interested, unfiltered subscription has a higher priority. *maybe: or a filtered one has."""
    cdef subscription_rank *rank = q.ranks
    cdef subscription *h
    maybe[0] = False
    while rank != NULL and rank.priority > s.rank.priority:
        h = rank.all.first
        while h != NULL:
            if is_interested(h):
                if not h.filtered:
                    return True
                maybe[0] = True
            h = h.all_next
        rank = rank.next
    return False


# -------------------------------------------------------------------------------------------------------------- cursors
cdef inline bint open_cursor(entry_queue *q, cursor *c, bint newest) noexcept nogil:
    """Open a cursor at the first entry, or newest: at the end. False: no memory."""
    cdef uint32_t i
    cdef entry *at
    c.redeliveries.items = NULL
    c.redeliveries.n = c.redeliveries.capacity = 0
    c.positions = &c.one
    if q.nlevels > 1:
        c.positions = <cursor_position *>calloc(q.nlevels, sizeof(cursor_position))
        if c.positions == NULL:
            return False
    for i in range(q.nlevels):
        at = q.lists[i].first
        if newest:
            at = NULL
        if not position_open(&q.lists[i], &c.positions[i], at):
            while i > 0:
                i -= 1
                position_close(&q.lists[i], &c.positions[i])
            if c.positions != &c.one:
                free(c.positions)
            return False
    return True


cdef inline void close_cursor(entry_queue *q, cursor *c) noexcept nogil:
    cdef uint32_t i
    for i in range(q.nlevels):
        position_close(&q.lists[i], &c.positions[i])
    if c.positions != &c.one:
        free(c.positions)
    redeliveries_free(&c.redeliveries)


cdef inline void cursor_rewind(entry_queue *q, cursor *c) noexcept nogil:
    cdef uint32_t i
    for i in range(q.nlevels):
        position_move(&q.lists[i], &c.positions[i], q.lists[i].first)
    redeliveries_free(&c.redeliveries)


cdef inline entry *level_first(entry_list *l, cursor_position *p, int wanted) noexcept nogil:
    """The first entry from the position on with state <= wanted, or NULL. The position moves there."""
    cdef entry *e = position_at(p)
    cdef entry *was = e
    while e != NULL and state_of(e) > wanted:
        e = e.next
    if unlikely(e != was):
        position_move(l, p, e)
    return e


cdef inline entry *levels_first(entry_queue *q, cursor *c) noexcept nogil:
    cdef uint32_t w, i
    cdef uint64_t bits
    cdef entry *e
    for w in range((q.nlevels + 63) // 64):
        bits = q.ready[w]
        while bits:
            i = w * 64 + mt_first_bit(bits)
            bits &= bits - 1
            e = level_first(&q.lists[i], &c.positions[i], AVAILABLE)
            if e != NULL:
                return e
    return NULL


cdef inline entry *cursor_first(entry_queue *q, cursor *c) noexcept nogil:
    """The next AVAILABLE entry for this cursor, or NULL."""
    cdef entry *e
    cdef entry *a
    if likely(q.nlevels == 1):
        e = level_first(q.lists, c.positions, AVAILABLE)
    else:
        e = levels_first(q, c)
    while unlikely(c.redeliveries.n != 0):
        if e != NULL and c.redeliveries.items[0].key > e.order:
            return e
        a = <entry *>c.redeliveries.items[0].member
        if state_of(a) == AVAILABLE:
            return a
        redeliveries_pop(&c.redeliveries)
    return e


cdef inline void cursor_skip(entry_queue *q, cursor *c, entry *e) noexcept nogil:
    """Pass the entry that cursor_first returned."""
    cdef cursor_position *p = &c.positions[e.priority_level]
    if likely(position_at(p) == e):
        position_move(&q.lists[e.priority_level], p, e.next)
    while unlikely(c.redeliveries.n != 0) and c.redeliveries.items[0].member == e:
        redeliveries_pop(&c.redeliveries)


cdef inline void cursor_return(entry_queue *q, cursor *c, entry *e) noexcept nogil:
    """e has become AVAILABLE: if the cursor has passed it, add it to the redeliveries."""
    cdef entry *at = position_at(&c.positions[e.priority_level])
    if at != NULL and e.order >= at.order:
        return
    if unlikely(not redeliveries_push(&c.redeliveries, e)):
        # No memory: move the position back instead.
        position_move(&q.lists[e.priority_level], &c.positions[e.priority_level], e)


cdef inline void locked_show(entry_queue *q, entry *e, bint arrived) noexcept nogil:
    """e has become AVAILABLE, or arrives, in the middle of the order: return it to the cursors that have passed it
    (E2). Browsers see each entry once, so to them only arrivals are returned."""
    cdef subscription *s = q.filtered
    cursor_return(q, &q.shared, e)
    while s != NULL:
        if s.own_cursor.positions != NULL and (arrived or not s.browse) and quick_wants(s, e):
            cursor_return(q, &s.own_cursor, e)
        s = s.filtered_next
    s = q.below
    while s != NULL:
        if quick_wants(s, e):
            cursor_return(q, &s.below, e)
        s = s.below_next
    if unlikely(q.groups != GROUPS_NONE) and not arrived:
        group_shown(&q.groups_takable, e)


# ---------------------------------------------------------------------------------------------- outranked by filters
# A subscription with filtered subscriptions of higher priority (rivals) must skip the entries that these want. Its
# cursor `below` does that, and below_ids says for which rivals it has skipped any. If one of those is no longer
# interested, the skipped entries may be takable, so the cursor begins again at the head.
cdef inline bint locked_is_rival(subscription *s, uint32_t id) noexcept nogil:
    """Whether the subscription with that id has a higher priority than s, and is interested."""
    cdef subscription_rank *rank = s.q.ranks
    cdef subscription *h
    while rank != NULL and rank.priority > s.rank.priority:
        h = rank.all.first
        while h != NULL:
            if h.id == id:
                return is_interested(h)
            h = h.all_next
        rank = rank.next
    return False


cdef inline bint locked_prepare_below(entry_queue *q, subscription *s) noexcept nogil:
    """Call it before each use of s.below: open it, or rewind it if an entry that it has skipped may be takable. False:
    no memory."""
    cdef int64_t i
    if not s.below_open:
        if not open_cursor(q, &s.below, False):
            return False
        s.below_open = True
        s.below_prev = NULL
        s.below_next = q.below
        if q.below != NULL:
            q.below.below_prev = s
        q.below = s
    for i in range(s.nbelow_ids):
        if not locked_is_rival(s, s.below_ids[i]):
            s.nbelow_ids = 0
            cursor_rewind(q, &s.below)
            break
    return True


cdef inline bint note_passed_for(subscription *s, uint32_t id) noexcept nogil:
    """s.below skips an entry for the rival with that id. False: no memory."""
    cdef int64_t i
    cdef uint32_t *longer
    for i in range(s.nbelow_ids):
        if s.below_ids[i] == id:
            return True
    longer = <uint32_t *>realloc(s.below_ids, <size_t>(s.nbelow_ids + 1) * sizeof(uint32_t))
    if longer == NULL:
        return False
    longer[s.nbelow_ids] = id
    s.below_ids = longer
    s.nbelow_ids += 1
    return True


cdef inline void locked_close_below(entry_queue *q, subscription *s) noexcept nogil:
    if not s.below_open:
        return
    s.below_open = False
    close_cursor(q, &s.below)
    free(s.below_ids)
    s.below_ids = NULL
    s.nbelow_ids = 0
    if s.below_prev != NULL:
        s.below_prev.below_next = s.below_next
    else:
        q.below = s.below_next
    if s.below_next != NULL:
        s.below_next.below_prev = s.below_prev


# --------------------------------------------------------------------------------------- work for the dead-letter
# thread
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


# ------------------------------------------------------------------------------------------------------------------ put
cdef inline void locked_link(entry_queue *q, entry *e) noexcept nogil:
    """Append to its level."""
    e.seq = q.nseq
    q.nseq += 1
    e.order = (<uint64_t>e.priority_level << LEVEL_SHIFT) | <uint64_t>e.seq
    list_append(&q.lists[e.priority_level], e)
    if unlikely(q.nlevels > 1):
        q.ready[e.priority_level >> 6] |= <uint64_t>1 << (e.priority_level & 63)


cdef inline int locked_place_sorted(entry_queue *q, entry *e, search_range *found) noexcept nogil:
    """place_entry of a sorted queue."""
    cdef subscription *s = q.filtered
    cdef bint renumbered
    if not search_place(&q.index, q.lists, found):
        return MT_EMPTY
    e.seq = q.nseq
    if not index_link(&q.index, q.lists, e, found, &renumbered):
        return MT_NOMEM
    q.nseq += 1
    if unlikely(renumbered):
        redeliveries_shrink(&q.shared.redeliveries)
        while s != NULL:
            redeliveries_shrink(&s.own_cursor.redeliveries)
            redeliveries_shrink(&s.own)
            s = s.filtered_next
        s = q.below
        while s != NULL:
            redeliveries_shrink(&s.below.redeliveries)
            s = s.below_next
        groups_renumbered(&q.groups_takable, &q.group_keys)
    if e.options == NULL or e.options.due == 0:
        locked_show(q, e, True)         # cursors at the entry after e are at e already (list_insert)
    return MT_OK


cdef inline void locked_link_arrival(entry_queue *q, entry *e) noexcept nogil:
    """Append e to the order of arrival."""
    e.options.newer = NULL
    e.options.older = q.newest
    if q.newest != NULL:
        q.newest.options.newer = e
    else:
        q.oldest = e
    q.newest = e


cdef inline void locked_replace(entry_queue *q, entry *e, effects *fx) noexcept nogil:
    """Last value: discard the entry that e replaces."""
    cdef entry *old = value_added(e)
    q.event_count += 1          # a putter of the same key that is about to wait may replace e, without a free slot
    if old != NULL:
        locked_discard(q, old, REPLACED, fx)


cdef inline void locked_count_options(entry_queue *q, entry *e, effects *fx) noexcept nogil:
    """Count an entry with options that was linked, and set its timer."""
    if e.options.due:
        mt_store_relaxed_i64(&e.word, HELD)         # relaxed because: other threads reach it only under the order lock
        q.held += 1
    else:
        q.available += 1
    if e.options.due or e.options.expires:
        locked_set_timer(q, e)
    if e.options.value_key != NULL:
        locked_replace(q, e, fx)


cdef inline int locked_put(entry_queue *q, entry *e, search_range *found, bint forced, effects *fx) noexcept nogil:
    """One try: MT_OK, MT_FULL, MT_SHUTDOWN, MT_NOMEM, or the status of q.place. forced: even if the queue is full."""
    cdef int r
    if unlikely(q.shut):
        return MT_SHUTDOWN
    if unlikely(q.maxsize > 0) and locked_refuses(q, e) and not forced:
        return MT_FULL
    if unlikely(e.options != NULL and (e.options.due or e.options.expires)) \
            and not heap_reserve(&q.timers, q.timers.n + 1):
        return MT_NOMEM
    if likely(q.place == NULL):
        locked_link(q, e)
    else:
        r = q.place(q, e, found)
        if r != MT_OK:
            return r
    if likely(e.options == NULL):
        q.available += 1
    else:
        locked_count_options(q, e, fx)
    q.counters.enqueued += 1
    if unlikely(depth_of(q) > q.counters.high_water):
        q.counters.high_water = depth_of(q)
    if unlikely(q.arrivals):
        locked_link_arrival(q, e)
    if likely(e.options == NULL or e.options.due == 0):
        if unlikely(q.groups != GROUPS_NONE):
            group_shown(&q.groups_takable, e)
        locked_wake(q, e, True, fx)
    if unlikely(q.overflow == OVERFLOW_DROP and q.maxsize > 0 and depth_of(q) > q.maxsize) \
            and not in_dead_letter_call(q):
        locked_drop_oldest(q, e, fx)
    return MT_OK


cdef inline int64_t locked_put_run(entry_queue *q, entry **rest, effects *fx) noexcept nogil:
    """Put the chain *rest, by dead_next, until an entry is refused. Returns how many; *rest is the chain of the
    others."""
    cdef int64_t n = 0
    cdef entry *e = rest[0]
    cdef entry *following
    while e != NULL:
        following = e.after.dead_next
        e.after.dead_next = NULL
        if locked_put(q, e, NULL, False, fx) != MT_OK:
            e.after.dead_next = following
            break
        n += 1
        e = following
    rest[0] = e
    return n


cdef inline bint locked_full(entry_queue *q) noexcept nogil:
    """Whether a put has to wait or is refused. With OVERFLOW_BLOCK a queue that was full stays so until the depth is
    down to the low watermark."""
    if likely(q.maxsize <= 0):
        return False
    if q.overflow == OVERFLOW_BLOCK:
        q.throttled = q.throttled or depth_of(q) >= q.maxsize
        return q.throttled
    return q.overflow == OVERFLOW_REJECT and depth_of(q) >= q.maxsize


cdef inline bint locked_refuses(entry_queue *q, entry *e) noexcept nogil:
    """Whether a queue with maxsize has no free slot for e. A replacement needs none. Puts of the dead-letter callable
    are always accepted, else an overflow could cause another one."""
    return not value_replaces(e) and locked_full(q) and not in_dead_letter_call(q)


cdef inline void locked_notify_putters(entry_queue *q, wait_node **to_post) noexcept nogil:
    """The depth went down: notify as many putters as there are free slots."""
    cdef int64_t depth = depth_of(q), n
    if q.throttled and (q.maxsize <= 0 or depth <= q.low_watermark):
        q.throttled = False
    if q.throttled:
        return
    n = q.putters.n if q.maxsize <= 0 else q.maxsize - depth
    while q.putters.n and n > 0:
        notify(&q.putters, to_post)
        n -= 1


cdef inline void locked_set_maxsize(entry_queue *q, int64_t maxsize, int64_t low_watermark, effects *fx) noexcept nogil:
    if maxsize > q.maxsize or maxsize <= 0:
        q.throttled = False
    q.maxsize = maxsize
    q.low_watermark = low_watermark
    if maxsize > 0 and depth_of(q) < maxsize and depth_of(q) <= low_watermark:
        q.throttled = False
    notify_all(&q.putters, &fx.to_post)


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


# ------------------------------------------------------------------------------------------------------------------ get
cdef inline void held_append(entry **first, entry **last, entry *e) noexcept nogil:
    e.after.held_next = NULL
    e.held_prev = last[0]
    if last[0] != NULL:
        last[0].after.held_next = e
    else:
        first[0] = e
    last[0] = e


cdef inline void held_remove(entry **first, entry **last, entry *e) noexcept nogil:
    if e.held_prev != NULL:
        e.held_prev.after.held_next = e.after.held_next
    else:
        first[0] = e.after.held_next
    if e.after.held_next != NULL:
        e.after.held_next.held_prev = e.held_prev
    else:
        last[0] = e.held_prev


cdef inline uint64_t locked_start_delivery(entry_queue *q, subscription *s, entry *e) noexcept nogil:
    """AVAILABLE -> ACQUIRED. Returns the delivery number. The caller calls keep_for_handle()."""
    cdef uint64_t delivery = entry_acquire(&e.word)
    q.available -= 1
    q.acquired += 1
    q.counters.delivered += 1
    e.owner = s
    held_append(&s.held_first, &s.held_last, e)
    s.nheld += 1
    if unlikely(s.credit != NULL):
        mt_fetch_add_acq_rel_i64(&s.credit.used, 1)     # pairs with: mt_fetch_add_acq_rel in locked_return_credit
    if unlikely(q.groups != GROUPS_NONE):
        group_taken(&q.groups_takable, e, &s.own, q.groups == GROUPS_ASSIGNED)
    if unlikely(s.limit > 0 or s.credit != NULL) and not has_credit(s):
        q.event_count += 1      # subscriptions that it outranked may try again; locked_after_get wakes them
        locked_relist(q, s)
    return delivery


cdef inline int locked_take(entry_queue *q, subscription *s, entry **out, uint64_t *delivery,
                            effects *fx) noexcept nogil:
    """The fast path of a get: take the first AVAILABLE entry for an unfiltered subscription. SLOW: filters decide."""
    cdef bint maybe
    cdef int r = locked_usable(s)
    cdef entry *e
    if unlikely(r != MT_OK):
        return r
    if unlikely(s.filtered):
        return SLOW
    if unlikely(q.nranks > 1):
        if locked_outranked(q, s, &maybe):
            return MT_EMPTY
        if maybe:
            return SLOW
    e = cursor_first(q, &q.shared)
    if unlikely(e == NULL):
        return MT_EMPTY
    cursor_skip(q, &q.shared, e)
    delivery[0] = locked_start_delivery(q, s, e)
    keep_for_handle(q, e)
    out[0] = e
    if unlikely(q.nranks > 1 or q.groups != GROUPS_NONE or q.shut):
        locked_after_get(q, s, fx)
    return MT_OK


cdef inline void locked_after_get(entry_queue *q, subscription *s, effects *fx) noexcept nogil:
    """After s has acquired an entry, wake the waiters whose condition that changes."""
    if q.nranks > 1 and (s.limit > 0 or s.credit != NULL) and not has_credit(s):
        locked_wake_many(q, q.available, fx)        # s has no credit left, so it outranks nobody
    if q.groups != GROUPS_NONE and s.waiters.n:
        locked_notify(q, s, fx)         # s owns the group, so another waiter of s may take the rest of it
    if q.shut:
        locked_wake_at_end(q, fx)


cdef inline bint locked_nothing_left(entry_queue *q, subscription *s) noexcept nogil:
    """After shutdown: whether nothing is left that s may ever take, as far as can be decided without selectors."""
    return q.held == 0 and (q.available == 0 or (not s.filtered and locked_usable(s) == MT_OK))


cdef inline bint note_selector(selector_results *v, subscription *s) noexcept nogil:
    """Add the selector of s to those to be asked. False: no memory."""
    cdef selector_result *longer
    if v.n == v.capacity:
        longer = <selector_result *>realloc(v.items, (v.capacity * 2 + 4) * sizeof(selector_result))
        if longer == NULL:
            return False
        v.items = longer
        v.capacity = v.capacity * 2 + 4
    v.items[v.n].id = s.id
    v.items[v.n].wants = False
    v.items[v.n].selector = <PyObject *>s.selector if s.selector != NULL else <PyObject *>None
    keep(<uintptr_t>v.items[v.n].selector)
    v.n += 1
    return True


cdef inline bint locked_rivals(entry_queue *q, subscription *s, entry *e, selector_results *found) noexcept nogil:
    """Collect the interested subscriptions of higher priority that e may suit. False: no memory."""
    cdef subscription_rank *rank = q.ranks
    cdef subscription *h
    while rank != NULL and s.rank != NULL and rank.priority > s.rank.priority:
        h = rank.all.first
        while h != NULL:
            if is_interested(h) and may_take(q, h, e) and not note_selector(found, h):
                return False
            h = h.all_next
        rank = rank.next
    return True


cdef inline bint locked_heaps_say(entry_queue *q, subscription *s) noexcept nogil:
    """With groups: whether the heaps of _eq_keys.pxd decide what s may take. They do if nothing but groups filters s
    and all interested subscriptions of higher priority."""
    cdef subscription_rank *rank = q.ranks
    cdef subscription *h
    if not s.any_entry or q.groups_takable.lost:
        return False
    while rank != NULL and rank.priority > s.rank.priority:
        h = rank.all.first
        while h != NULL:
            if not h.any_entry and is_interested(h):
                return False
            h = h.all_next
        rank = rank.next
    return True


cdef inline entry *locked_first_of_groups(entry_queue *q, subscription *s) noexcept nogil:
    """The first AVAILABLE entry that s may take, or NULL, if locked_heaps_say(). An interested subscription of higher
    priority has the first claim to all entries but those of groups that s owns."""
    cdef subscription_rank *rank = q.ranks
    cdef subscription *h
    cdef bint outranked = False
    while rank != NULL and rank.priority > s.rank.priority and not outranked:
        h = rank.all.first
        while h != NULL and not outranked:
            outranked = is_interested(h)
            h = h.all_next
        rank = rank.next
    return groups_first(&q.groups_takable, &s.own, outranked)


# ------------------------------------------------------------------------------------------------ the end of a delivery
cdef inline bint shares_credit(entry *e) noexcept nogil:
    """Whether the holder of e shares its credit with other subscriptions."""
    return unlikely(e.owner != NULL and (<subscription *>e.owner).credit != NULL)


cdef inline shared_credit *lock_credit_of_holder(entry *e) noexcept nogil:
    """The first step of all that ends a delivery of e: lock the credit that its holder shares. NULL: none.

    Nothing may be changed before it. A thread that waits for a lock detaches, and then another thread may fork; the
    child must not find a delivery that is half ended (E5). After this step nothing detaches until unlock_credit."""
    if not shares_credit(e):
        return NULL
    lock_credit((<subscription *>e.owner).credit)
    return (<subscription *>e.owner).credit


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


cdef inline void locked_credit_back(entry_queue *q, subscription *s, effects *fx) noexcept nogil:
    if s.credit != NULL:
        locked_return_credit(s.credit, fx)
    q.event_count += 1
    locked_relist(q, s)
    if s.waiters.n:
        locked_notify(q, s, fx)


cdef inline void locked_return_credit(shared_credit *c, effects *fx) noexcept nogil:
    """Return credit of a Consumer, and notify its waiters, whichever queue they wait for."""
    # pairs with: mt_fetch_add_acq_rel in locked_start_delivery
    mt_fetch_add_acq_rel_i64(&c.used, -1)
    # relaxed because: a change of the limit is followed by credit_notify()
    if mt_load_relaxed_i64(&c.limit) > 0:
        locked_credit_notify(c, fx)


cdef inline void locked_credit_notify(shared_credit *c, effects *fx) noexcept nogil:
    c.event_count += 1
    notify_all(&c.waiters, &fx.to_post)


cdef inline void credit_notify(shared_credit *c, effects *fx) noexcept nogil:
    lock_credit(c)
    locked_credit_notify(c, fx)
    unlock_credit(c)


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
    if unlikely(q.overflow == OVERFLOW_DROP and q.maxsize > 0 and depth_of(q) > q.maxsize) and done and is_linked(e):
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
    if q.overflow == OVERFLOW_DROP and q.maxsize > 0 and depth_of(q) > q.maxsize:
        locked_drop_oldest(q, NULL, fx)
    return True


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


cdef inline void locked_clear(entry_queue *q, entry *e, effects *fx) noexcept nogil:
    """Discard e in whatever state, without counting it in the totals."""
    cdef int was = state_of(e)
    cdef shared_credit *c = lock_credit_of_holder(e)
    if e.reserved:
        locked_unreserve(<subscription *>e.owner, e)
    if was == ACQUIRED:
        locked_end_delivery(q, e, fx)
    elif was == HELD:
        q.held -= 1
    else:
        q.available -= 1
    locked_unlink_dead(q, e, CLEARED, fx)
    unlock_credit(c)


cdef inline void locked_shutdown(entry_queue *q, bint immediate, effects *fx) noexcept nogil:
    q.shut = True
    q.shut_now = q.shut_now or immediate
    if immediate:
        locked_discard_all(q, SHUT, False, fx)
    q.event_count += 1
    notify_all(&q.putters, &fx.to_post)
    locked_wake_everybody(q, fx)


cdef inline int64_t locked_oldest(entry_queue *q) noexcept nogil:
    """The put time of the oldest entry, 0: there is none."""
    cdef int64_t born = 0
    cdef uint32_t i
    if q.arrivals:
        return q.oldest.born if q.oldest != NULL else 0
    if q.keyed:
        return index_oldest(&q.index).born if q.index.n else 0
    for i in range(q.nlevels):
        if q.lists[i].first != NULL and (born == 0 or q.lists[i].first.born < born):
            born = q.lists[i].first.born
    return born


# -------------------------------------------------------------------------------------------------- put(immediate=True)
cdef inline int known_result(selector_results *v, uint32_t id) noexcept nogil:
    """What the selector said: 1 or 0; -1: it was not asked."""
    cdef int64_t i
    for i in range(v.n):
        if v.items[i].id == id:
            return v.items[i].wants
    return -1


cdef inline int locked_find_waiting(entry_queue *q, entry *e, selector_results *v, subscription **found) noexcept nogil:
    """MT_OK: *found has a waiter and the first claim to e. DENIED: there is no such subscription. SLOW: not all
    selectors were asked."""
    cdef subscription_rank *rank = q.ranks
    cdef subscription *s
    cdef bint claimed = False
    cdef int wants
    while rank != NULL and found[0] == NULL and not claimed:
        s = rank.all.first
        while s != NULL:
            if is_interested(s) and may_take(q, s, e):
                wants = 1 if s.selector == NULL else known_result(v, s.id)
                if wants < 0:
                    return SLOW
                if wants and s.waiters.n and found[0] == NULL:
                    found[0] = s
                claimed = claimed or wants
            s = s.all_next
        rank = rank.next
    return MT_OK if found[0] != NULL else DENIED


cdef inline bint locked_unasked_selectors(entry_queue *q, entry *e, selector_results *v) noexcept nogil:
    """Collect the selectors that have to be asked. False: no memory."""
    cdef subscription_rank *rank = q.ranks
    cdef subscription *s
    while rank != NULL:
        s = rank.all.first
        while s != NULL:
            if s.selector != NULL and is_interested(s) and may_take(q, s, e) and known_result(v, s.id) < 0 \
                    and not note_selector(v, s):
                return False
            s = s.all_next
        rank = rank.next
    return True


cdef inline int locked_hand_over(entry_queue *q, entry *e, search_range *found, selector_results *v,
                                 effects *fx) noexcept nogil:
    """Put e and acquire it at once for a waiter. MT_OK; DENIED: no subscription waits for it; SLOW: a selector has to
    be asked first; or as locked_put."""
    cdef subscription *s = NULL
    cdef int r
    if q.shut:
        return MT_SHUTDOWN
    if locked_refuses(q, e):
        return MT_FULL
    e.seq = q.nseq                  # may_take() compares it with `start`
    r = locked_find_waiting(q, e, v, &s)
    if r != MT_OK:
        return r
    if e.options != NULL and not heap_reserve(&q.timers, q.timers.n + 1):
        return MT_NOMEM
    if q.place == NULL:
        locked_link(q, e)
    else:
        r = q.place(q, e, found)
        if r != MT_OK:
            return r
    q.available += 1                # locked_reserve() subtracts it again, under the same lock
    if e.options != NULL and e.options.value_key != NULL:
        locked_replace(q, e, fx)
    q.counters.enqueued += 1
    q.counters.high_water = max(q.counters.high_water, depth_of(q))
    if q.arrivals:
        locked_link_arrival(q, e)
    locked_reserve(q, s, e, fx)
    locked_after_get(q, s, fx)
    if q.overflow == OVERFLOW_DROP and q.maxsize > 0 and depth_of(q) > q.maxsize and not in_dead_letter_call(q):
        locked_drop_oldest(q, e, fx)
    return MT_OK


# An entry that put(immediate=True) hands over is acquired for the subscription and stays in its list `reserved` until a
# notified waiter fetches it. nreserved <= notified, with two exceptions. A waiter was cancelled:
# locked_release_unclaimed follows. A notified Consumer took an entry of another queue: then any get of s fetches
# reserved entries first.
cdef inline void locked_reserve(entry_queue *q, subscription *s, entry *e, effects *fx) noexcept nogil:
    """Acquire e for the waiter that waits longest in s, a thread if there is one, and notify it."""
    locked_start_delivery(q, s, e)
    held_remove(&s.held_first, &s.held_last, e)
    held_append(&s.reserved_first, &s.reserved_last, e)
    e.reserved = True
    s.nreserved += 1
    notify_first(&s.waiters, THREADS if s.waiters.first[<int>THREADS] != NULL else TASKS, &fx.to_post)
    s.notified += 1
    locked_relist(q, s)


cdef inline void locked_unreserve(subscription *s, entry *e) noexcept nogil:
    """Move e from the reserved entries to the held ones."""
    held_remove(&s.reserved_first, &s.reserved_last, e)
    held_append(&s.held_first, &s.held_last, e)
    e.reserved = False
    s.nreserved -= 1


cdef inline bint locked_take_reserved(entry_queue *q, subscription *s, bint woken, entry **out,
                                      uint64_t *delivery) noexcept nogil:
    """Fetch a reserved entry. woken: the caller was notified, and this answers it. False: nothing is reserved for
    it."""
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
    """Release the entries that are reserved for waiters that have given up."""
    cdef entry *e
    while s.nreserved > s.notified:
        e = s.reserved_first
        locked_unreserve(s, e)
        locked_release(s.q, e, word_delivery(entry_word(&e.word)), 0, fx)


# -------------------------------------------------------------------------------------------------------------- waiting
# A try that fails stores the queue's event_count in p.key, under the lock. If it has changed, the call tries again
# instead of waiting.
cdef inline void entries_point(wait_point *p, subscription *s, bint attached) noexcept nogil:
    """A getter waits until it has to try again. The caller has set `key`."""
    make_point(p, &s.waiters, &s.q.lock, s.q.gil_locked, attached, locked_poll_entries, s)
    p.changed = locked_waiters_changed
    p.forward = locked_forward_entry


cdef inline int locked_poll_entries(wait_point *p, bint parking) noexcept nogil:
    cdef subscription *s = <subscription *>p.of
    return MT_OK if s.q.event_count != p.key or s.closed else WAIT


cdef inline void locked_waiters_changed(wait_point *p) noexcept nogil:
    cdef subscription *s = <subscription *>p.of
    locked_relist(s.q, s)


cdef inline void locked_forward_entry(wait_point *p, wait_node **to_post) noexcept nogil:
    """A waiter does not try again: notify another one."""
    cdef subscription *s = <subscription *>p.of
    cdef effects fx
    memset(&fx, 0, sizeof(effects))
    fx.to_post = to_post[0]
    if p.woken:
        locked_answer(s)
    locked_wake_many(s.q, 1, &fx)
    to_post[0] = fx.to_post


cdef inline void credit_point(wait_point *p, shared_credit *c) noexcept nogil:
    """A Consumer waits until its credit has an event."""
    make_point(p, &c.waiters, &c.lock, c.gil_locked, True, locked_poll_credit, c)


cdef inline int locked_poll_credit(wait_point *p, bint parking) noexcept nogil:
    return MT_OK if (<shared_credit *>p.of).event_count != p.key else WAIT


cdef inline void room_point(wait_point *p, entry_queue *q, bint attached) noexcept nogil:
    """A putter waits until there is a free slot; in a last-value queue also until its entry may replace another one."""
    make_point(p, &q.putters, &q.lock, q.gil_locked, attached, locked_poll_room, q)
    p.forward = locked_forward_room


cdef inline int locked_poll_room(wait_point *p, bint parking) noexcept nogil:
    cdef entry_queue *q = <entry_queue *>p.of
    if q.shut or not locked_full(q) or (q.value_keys.n and q.event_count != p.key):
        return MT_OK
    return WAIT


cdef inline void locked_forward_room(wait_point *p, wait_node **to_post) noexcept nogil:
    locked_notify_putters(<entry_queue *>p.of, to_post)


# ------------------------------------------------------------------------------------------------ dead-letter callables
cdef inline void list_dead_letter_call(entry_queue *q, dead_letter_call *here) noexcept nogil:
    here.prev = NULL
    here.next = q.dead_letter_calls
    if q.dead_letter_calls != NULL:
        q.dead_letter_calls.prev = here
    q.dead_letter_calls = here


cdef inline void enter_dead_letter_call(entry_queue *q, dead_letter_call *here) noexcept nogil:
    """The calling thread is about to run the dead-letter callable of this queue."""
    here.thread = PyThread_get_thread_ident()
    lock_order(q)
    list_dead_letter_call(q, here)
    unlock_order(q)


cdef inline void leave_dead_letter_call(entry_queue *q, dead_letter_call *here) noexcept nogil:
    lock_order(q)
    if here.prev != NULL:
        here.prev.next = here.next
    else:
        q.dead_letter_calls = here.next
    if here.next != NULL:
        here.next.prev = here.prev
    unlock_order(q)


cdef inline bint in_dead_letter_call(entry_queue *q) noexcept nogil:
    """Whether the calling thread is inside the dead-letter callable of this queue."""
    cdef dead_letter_call *r = q.dead_letter_calls
    cdef unsigned long me
    if likely(r == NULL):
        return False
    me = PyThread_get_thread_ident()
    while r != NULL and r.thread != me:
        r = r.next
    return r != NULL


# -------------------------------------------------------------------------------------------------------- subscriptions
cdef inline subscription_rank *locked_rank(entry_queue *q, int64_t priority) noexcept nogil:
    """The rank of that priority, made if missing. NULL: no memory."""
    cdef subscription_rank **at = &q.ranks
    cdef subscription_rank *rank
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


cdef inline void locked_leave_rank(entry_queue *q, subscription_rank *rank) noexcept nogil:
    cdef subscription_rank **at = &q.ranks
    rank.n -= 1
    if rank.n:
        return
    while at[0] != rank:
        at = &at[0].next
    at[0] = rank.next
    q.nranks -= 1
    free(rank)


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
        s.rank.n += 1
        s.all_next = NULL
        s.all_prev = s.rank.all.last
        if s.rank.all.last != NULL:
            s.rank.all.last.all_next = s
        else:
            s.rank.all.first = s
        s.rank.all.last = s
    if s.filtered:
        s.filtered_next = q.filtered
        if q.filtered != NULL:
            q.filtered.filtered_prev = s
        q.filtered = s
    s.id = q.next_id
    q.next_id += 1
    q.nsubscriptions += 1
    q.exclusive = s.exclusive
    list_subscription(locked_list_for(q, s), s)
    return MT_OK


cdef inline void locked_unlist(entry_queue *q, subscription *s) noexcept nogil:
    q.nwaiting -= counts_as_waiting(q, s.listed, s.rank)
    unlist_subscription(s)
    if s.filtered:
        if s.filtered_prev != NULL:
            s.filtered_prev.filtered_next = s.filtered_next
        else:
            q.filtered = s.filtered_next
        if s.filtered_next != NULL:
            s.filtered_next.filtered_prev = s.filtered_prev
    while s.filtered and not s.browse and q.below != NULL:
        locked_close_below(q, q.below)      # s may have been their only rival; they are opened again if needed
    if s.rank != NULL:
        if s.all_prev != NULL:
            s.all_prev.all_next = s.all_next
        else:
            s.rank.all.first = s.all_next
        if s.all_next != NULL:
            s.all_next.all_prev = s.all_prev
        else:
            s.rank.all.last = s.all_prev
        locked_leave_rank(q, s.rank)
        s.rank = NULL
    q.nsubscriptions -= 1
    if s.exclusive:
        q.exclusive = False


cdef inline void locked_unsubscribe(entry_queue *q, subscription *s, effects *fx) noexcept nogil:
    """Close s: release what it holds, each entry at its old place, and wake its waiters and those of others."""
    cdef entry *e
    if s.closed:
        return
    while s.reserved_first != NULL:
        locked_unreserve(s, s.reserved_first)
    # Before s.closed is set: a release may detach, and the child of a fork must not find a closed holder.
    while s.held_first != NULL:
        e = s.held_first
        locked_release(q, e, word_delivery(entry_word(&e.word)), 0, fx)
    locked_unlist(q, s)
    s.closed = True
    if s.cursor_in_use == &s.own_cursor:
        close_cursor(q, &s.own_cursor)
    locked_close_below(q, s)
    if q.groups != GROUPS_NONE:
        groups_closed(&q.groups_takable, &q.group_keys, &s.own, q.groups == GROUPS_ASSIGNED, &fx.keys)
    notify_all(&s.waiters, &fx.to_post)
    locked_wake_many(q, q.available, fx)


cdef inline void locked_set_suspended(entry_queue *q, subscription *s, bint suspended, effects *fx) noexcept nogil:
    if s.closed or s.suspended == suspended:
        return
    s.suspended = suspended
    q.event_count += 1
    locked_relist(q, s)
    if suspended:
        locked_wake_many(q, q.available, fx)        # waiters that s outranked, and for wake-ups that went to s
    else:
        while s.waiters.n and locked_notify(q, s, fx):
            pass


cdef inline void locked_set_limit(entry_queue *q, subscription *s, int64_t limit, effects *fx) noexcept nogil:
    cdef bint was = is_interested(s)
    s.limit = limit
    q.event_count += 1
    if s.closed:
        return
    locked_relist(q, s)
    if not is_interested(s):
        if was:
            locked_wake_many(q, q.available, fx)
        return
    while s.waiters.n and locked_notify(q, s, fx):
        pass


# ------------------------------------------------------------------------------------------------------ making, freeing
# When os.fork() is called, no attached thread is inside an operation: with the GIL because the forking thread has it,
# without because CPython stops the world first, and nothing here detaches in the middle of a change (E5). So the
# child's structures are consistent. It resets the locks and forgets the waiters of the other threads.
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
    q.reg_next = r.first
    if r.first != NULL:
        r.first.reg_prev = q
    r.first = q
    unlock_registry(r)
    return q


cdef inline int make_levels(entry_queue *q, uint32_t n, int64_t offset) noexcept nogil:
    """Give an unused queue n priority levels. MT_OK; MT_NOMEM, or DENIED: it is in use; then nothing has changed."""
    cdef entry_list *lists
    cdef uint64_t *ready
    cdef int r
    if n == 1:
        q.priority_offset = offset
        return MT_OK
    lists = <entry_list *>calloc(n, sizeof(entry_list))
    ready = <uint64_t *>calloc((n + 63) // 64, sizeof(uint64_t))
    lock_order(q)
    r = MT_NOMEM if lists == NULL or ready == NULL else locked_make_levels(q, lists, ready, n)
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


cdef inline void free_queue(entry_queue *q) noexcept nogil:
    """Free a queue without entries and subscriptions."""
    cdef subscription_rank *rank
    lock_registry(q.registry)
    if q.reg_prev != NULL:
        q.reg_prev.reg_next = q.reg_next
    else:
        q.registry.first = q.reg_next
    if q.reg_next != NULL:
        q.reg_next.reg_prev = q.reg_prev
    unlock_registry(q.registry)
    while q.ranks != NULL:
        rank = q.ranks
        q.ranks = rank.next
        free(rank)
    close_cursor(q, &q.shared)
    redeliveries_free(&q.groups_takable.anybody)
    free(q.timers.items)
    free(q.index.leaves)
    free(q.group_keys.buckets)
    free(q.value_keys.buckets)
    if q.lists != &q.one_list:
        free(q.lists)
        free(q.ready)
    free(q)


cdef inline void open_credit(eq_registry *r, shared_credit *c) noexcept nogil:
    c.gil_locked = r.objects and not MT_FREE_THREADED
    c.registry = r
    lock_registry(r)
    c.reg_next = r.first_credit
    if r.first_credit != NULL:
        r.first_credit.reg_prev = c
    r.first_credit = c
    unlock_registry(r)


cdef inline void close_credit(shared_credit *c) noexcept nogil:
    lock_registry(c.registry)
    if c.reg_prev != NULL:
        c.reg_prev.reg_next = c.reg_next
    else:
        c.registry.first_credit = c.reg_next
    if c.reg_next != NULL:
        c.reg_next.reg_prev = c.reg_prev
    unlock_registry(c.registry)


# ----------------------------------------------------------------------------------------------------------------- fork
cdef inline void forget_waiters(subscription *s, unsigned long me) noexcept nogil:
    keep_tasks(&s.waiters, me)
    s.notified = 0
    locked_relist(s.q, s)


cdef inline void forget_dead_letter_calls(entry_queue *q, unsigned long me) noexcept nogil:
    """Keep only the dead-letter calls of the forking thread."""
    cdef dead_letter_call *r = q.dead_letter_calls
    cdef dead_letter_call *following
    q.dead_letter_calls = NULL
    while r != NULL:
        following = r.next
        if r.thread == me:
            list_dead_letter_call(q, r)
        r = following


cdef inline void forget_threads_of_queue(entry_queue *q, unsigned long me) noexcept nogil:
    cdef subscription_rank *rank = q.ranks
    cdef subscription *s = q.filtered
    mt_lock_reset(&q.lock)
    keep_tasks(&q.putters, me)
    forget_dead_letter_calls(q, me)
    while s != NULL:
        if s.browse:
            forget_waiters(s, me)
        s = s.filtered_next
    while rank != NULL:
        s = rank.all.first
        while s != NULL:
            forget_waiters(s, me)
            s = s.all_next
        rank = rank.next


cdef inline void forget_other_threads(eq_registry *r, unsigned long me) noexcept nogil:
    """In the child of a fork: reset the locks, and keep only the waiting tasks of the forking thread (A6)."""
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
