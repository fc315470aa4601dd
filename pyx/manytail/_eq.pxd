# The entry queue: its structs, its locks and its invariants. Private.
#
# An entry queue keeps entries in one strict order. Subscriptions acquire them; an entry that is released is AVAILABLE
# again at its old place. The whole algorithm is on C structs and nogil:
#
#   _entry.pxd          an entry, its state word, the list, positions on it
#   _eq_keys.pxd        message groups, last values
#   _eq_sorted.pxd      the index of a sorted queue
#   _eq.pxd             this file
#   _eq_manager.pxd     the manager of subscriptions: whom an entry wakes, who has the first claim to it; how gets wait
#   _eq_cursors.pxd     how far each subscription has come in the order
#   _eq_capacity.pxd    full queues, and how a put waits
#   _eq_end.pxd         the end of a delivery and of an entry: ack, release, expiry, overflow
#   _eq_get.pxd         get
#   _eq_put.pxd         put
#   _eq_life.pxd        making and freeing, subscribing, shutdown, fork
#
# Each of these files sees all names of those above it.
#
# The Python faces are _entries.pyx and the modules on top of it. The native drivers compile all this without an
# interpreter. Source: the strictly ordered queue of Qpid and its consumer manager; docs/design/entryqueue.md explains
# both.
#
# Terms. HELD: not AVAILABLE before its time. Own: have acquired. Credit: how many entries a subscription may own.
# Filters: selector, origin, start, groups. Idle: closed, suspended or without credit; else a subscription is
# interested. Rivals of a subscription: the interested ones of higher priority. They outrank it, and have the first
# claim to each entry that they want.
#
# Locks. "locked_" functions are called under the order lock, others too if they use what it guards, as depth_of()
# does. "credit_locked_": under the lock of a shared credit, if there is one; it is always taken after an order lock. No
# call waits for anything else under the order lock, and none runs Python code: that is collected in `effects` and done
# after unlocking. The LOCK bit of an entry's word is not a lock. Progress: blocking.
#   gil_locked: a queue of Python objects on a build with the GIL. The GIL is its order lock; its lock word is not used.
#   objects: items are Python objects, and each handle gets references; callers are attached. Else they are detached.
#
# Invariants
#   E1  AVAILABLE, ACQUIRED and HELD entries are linked, others are not; `available`, `acquired` and `held` count them.
#   E2  For every cursor, an AVAILABLE entry that may be wanted is at or after its position, or among its redeliveries.
#       Exception: subscription.below skips entries that a subscription of below_ids wants (_eq_cursors.pxd).
#   E3  An entry is in its owner's list of acquired or of reserved entries, and counted in `nacquired`, exactly while
#       `owner` is set, which is while it is ACQUIRED. The `used` of a shared credit is the sum of nacquired, plus one
#       for each entry that is about to be acquired. It never exceeds the limit.
#   E4  No waiter sleeps while an entry that it may take is AVAILABLE, unless a notified waiter has not tried yet.
#   E5  A fork finds no half-done step: whatever ends a delivery takes all locks before it changes anything.
from manytail._eq_keys cimport *
from manytail._eq_sorted cimport *
from manytail._lock cimport enter_heavy
from manytail._waiting cimport *

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
    CLEARED = 9                 # freed uncounted: never put, its queue was freed, or its dead letter is delivered

cdef enum:
    DEAD_LETTER_NONE = 0
    DEAD_LETTER_QUEUE = 1
    DEAD_LETTER_CALL = 2        # a callable

cdef enum:                      # status codes beside MT_*
    NO_CREDIT = 100             # no credit, or suspended
    CLOSED = 101
    DENIED = 102                # not possible: see the function
    SLOW = 103                  # filters decide, maybe a selector, which is Python code: the face takes the slow path

cdef enum:
    LEVEL_SHIFT = 48            # entry.order = priority level << LEVEL_SHIFT | arrival number, unless sorted
    TIMER_GRACE = 1000000000    # ns that the timer thread may sleep for nothing (EntryQueue.arm_timer)

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

# The acquiring subscriptions of one priority. Each is in `all`, and while it is interested and a get waits, in one of
# the other lists.
ctypedef struct subscription_rank:
    int64_t priority
    subscription_rank *next     # the next lower priority
    subscription_list all
    subscription_list waiting       # unfiltered: one of them is notified per entry
    subscription_list filtered      # filtered: all that may want the entry are notified

ctypedef struct subscription:
    entry_queue *q
    uint32_t id
    bint browse
    bint exclusive
    bint suspended
    mt_atomic_u32 closed        # written under the order lock: is_closed()
    bint filtered               # has a selector, an origin or a start, or browses, or its queue has groups
    bint any_entry              # no selector, origin or start, and does not browse: at most groups filter
    void *selector              # borrowed from the Subscription, or NULL
    const void *origin          # only compared by identity
    int64_t start               # it gets no entries with smaller arrival numbers
    int64_t limit               # its own credit: entries that it may own; <= 0: any number
    int64_t nacquired
    entry *acquired_first       # in the order in which it got them
    entry *acquired_last
    int64_t nreserved           # of nacquired: acquired by put(immediate=True) for a notified waiter
    entry *reserved_first
    entry *reserved_last
    cursor *cursor_in_use       # the queue's shared one, or own_cursor
    cursor own_cursor           # open if it is filtered, and browses or its queue has no groups
    heap own                    # with groups: the first AVAILABLE entry of each group that it owns
    cursor below                # skips what rivals want, those of below_ids (_eq_cursors.pxd)
    uint32_t *below_ids
    int64_t nbelow_ids
    bint below_open
    subscription *below_next    # in entry_queue.below
    subscription *below_prev
    shared_credit *credit       # NULL: it has credit of its own
    wait_list waiters
    int64_t notified            # waiters that were notified and have not tried again
    subscription_rank *rank     # NULL: it browses
    subscription_list *listed   # the list of the manager that it is in, or NULL
    subscription *next          # in `listed`
    subscription *prev
    subscription *all_next      # in rank.all
    subscription *all_prev
    subscription *filtered_next     # in entry_queue.filtered
    subscription *filtered_prev

ctypedef struct dead_letter_call:   # on the stack of a thread that runs the dead-letter callable
    unsigned long thread
    dead_letter_call *next

ctypedef struct effects:        # what the caller does after unlocking
    wait_node *to_post
    entry *dead                 # drop their items and the list's references; by dead_next
    key_record *keys            # free these records
    bint notify_thread          # notify the dead-letter thread: this queue has work for it
    bint timers_ended           # notify the timer thread: this queue has no timers left

ctypedef struct acquired_entry:     # what a handle is made of; keep_for_handle() adds its references
    entry *e
    void *item
    void *extra
    uint64_t delivery           # 0: not a delivery

ctypedef struct selector_result:    # what a selector said about an entry
    uint32_t id                 # of the subscription
    bint wants
    entry *e                    # pinned
    PyObject *selector          # with a reference; NULL: it was asked

ctypedef struct selector_results:
    selector_result *items
    int64_t n
    int64_t capacity
    int64_t asked               # of n: these have an answer, the others have to be asked
    int64_t at                  # the next result is looked for from here on: each try needs them in the same order
    bint one_entry              # only what was said about one entry is kept
    bint lost                   # no memory for a selector that has to be asked

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
# MT_OK or MT_NOMEM. MT_EMPTY: the queue has changed since, so `found` is no place; call prepare() and this again.
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
    bint thread_notified        # that thread has a request for this queue
    bint arrivals               # sorted, with OVERFLOW_DROP: `oldest`, `newest` keep the order of arrival
    int64_t armed_for           # the timer thread has a request to call on_timer() by then; 0: it has none
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
    subscription_list browsers_waiting
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


cdef inline void lock_for_effects(entry_queue *q, effects *fx) noexcept nogil:
    """Lock, for a step that has effects."""
    memset(fx, 0, sizeof(effects))
    lock_order(q)


cdef inline bint unlock_with_timers(entry_queue *q) noexcept nogil:
    """Unlock. Returns whether there are timers: then the caller, who may have set one, calls arm_timer()."""
    cdef bint timers = q.timers.n != 0
    unlock_order(q)
    return timers


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


cdef inline bint is_closed(subscription *s) noexcept nogil:
    # relaxed because: it is set once, under the order lock; without that lock only the answer itself counts
    return mt_load_relaxed_u32(&s.closed) != 0


cdef inline void set_closed(subscription *s) noexcept nogil:
    mt_store_relaxed_u32(&s.closed, 1)      # relaxed because: see is_closed()


# These two take the order lock:
cdef inline bint is_shut(entry_queue *q) noexcept nogil:
    lock_order(q)
    shut = q.shut
    unlock_order(q)
    return shut


cdef inline int64_t maxsize_of(entry_queue *q) noexcept nogil:
    lock_order(q)
    maxsize = q.maxsize
    unlock_order(q)
    return maxsize


cdef inline int64_t depth_of(entry_queue *q) noexcept nogil:        # under the order lock
    return q.available + q.acquired + q.held


cdef inline bint is_dead_letter(uint32_t reason) noexcept nogil:
    return REJECTED <= reason <= SHUT


cdef inline uint16_t level_of(entry_queue *q, int64_t priority) noexcept nogil:
    """The index in `lists` for a priority."""
    return <uint16_t>(q.nlevels - 1 - max(0, min(priority - q.priority_offset, <int64_t>q.nlevels - 1)))


cdef inline int64_t locked_oldest_born(entry_queue *q) noexcept nogil:
    """The put time of the oldest entry, 0: there is none. Without `arrivals` and keys levels are in arrival order."""
    cdef int64_t born = 0
    if q.arrivals:
        return q.oldest.born if q.oldest != NULL else 0
    if q.keyed:
        return index_oldest(&q.index).born if q.index.n else 0
    for i in range(q.nlevels):
        if q.lists[i].first != NULL and (born == 0 or q.lists[i].first.born < born):
            born = q.lists[i].first.born
    return born


cdef inline void fill_acquired(acquired_entry *t, entry *e, uint64_t delivery) noexcept nogil:
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
