# The entries of an entry queue: their state words, the list that keeps them in strict order, the positions of readers
# on that list, and heaps of entries (_heap.pxd). Private; _eq*.pxd build the queue on them.
#
# The state word. Every transition is one compare-and-swap.
#
#      63                                           5    4      3    2     0
#     +----------------------------------------------+------+------+--------+
#     | delivery                                     | REDL | LOCK | state  |
#     +----------------------------------------------+------+------+--------+
#
# LOCK: only the holder may end the delivery; expiry, purge and overflow cannot steal the entry. REDL: it was released
# before (redelivered). `delivery` counts how often the entry was delivered to an acquiring subscription; 0 means never.
# It never decreases, so (entry, delivery) names one delivery for ever: a handle with an older number fails every swap.
# Its 59 bits last for 18 years of a delivery per nanosecond; 32 would last less than an hour of a loop that gets and
# releases.
#
# Source: the entry states of Qpid's strictly ordered queue. There a state is an immutable object and the reference to
# it is swapped; here it is packed into a word, so that an acquire allocates nothing.
#
#     from                  to           by                      who may
#     AVAILABLE             ACQUIRED     entry_acquire           a subscription; delivery + 1, LOCK set
#     ACQUIRED n            AVAILABLE    entry_release           the holder of delivery n
#     ACQUIRED n            HELD         entry_release           the holder of delivery n, with a delay
#     ACQUIRED n            DEQUEUED     entry_dequeue           the holder of delivery n
#     ACQUIRED n            itself       entry_lock, _unlock     the holder of delivery n
#     ACQUIRED not locked   DEQUEUED     entry_steal             expiry, purge, overflow
#     AVAILABLE or HELD     DEQUEUED     entry_withdraw          the same, and replacement
#     HELD                  AVAILABLE    entry_unhold            when it is due
#     DEQUEUED              DELETED      entry_delete            whoever dequeued it
#
# Progress: lock-free. A swap is retried only when another thread's swap has succeeded. A transition that is not
# possible returns 0 and changes nothing.
#
# The order. A queue has one list per priority level, most urgent level first; FIFO, sorted and last-value queues have
# one level. Put links an entry; it stays linked while it is acquired and released, so a released entry is at its old
# place. When it is dead (DEQUEUED or DELETED) it is unlinked at once, and its `next` points to itself.
#
#     first                                              last
#       |                                                 |
#       v                                                 v
#     [ A ]<->[ A ]<->[ acquired ]<->[ A ]<->[ A ]<->[ acquired ]
#                ^                      ^                             ^
#             anchor                 anchor                       end anchor
#            position               positions                     positions
#
# A cursor position is the next entry that a reader (a subscription, an iterator) has not passed yet; NULL is the end.
# Positions at the same entry share an anchor, so an append or an unlink moves all of them in O(1) and no position is at
# a dead entry. When two anchors come to the same entry, the smaller is merged into the larger.
#
# Source: the ordered entry list of Qpid's queue, after java.util.concurrent's ConcurrentLinkedQueue. Qpid's readers
# keep raw pointers, so it leaves dead nodes for a scavenger; here the list knows its readers' positions and needs none.
#
# Progress: the functions of lists, positions and heaps are called under the queue's order lock and take O(1) steps,
# except the merge of two anchors, and heaps. Only `refs` and `word` of an entry are used without that lock.
#
# Invariants
#   L1  `order` strictly grows along a list, and from each level to the next less urgent one.
#   L2  entry.readers is the anchor at that entry, or NULL; list.end is the anchor at NULL, or NULL. An anchor has
#       n > 0 positions.
#   L3  An anchor with n positions keeps n - 1 spare anchors. A position that leaves takes one along, so moving it never
#       allocates.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, qsort
from libc.string cimport memset

from manytail._c cimport *
from manytail._heap cimport heap, heap_add, heap_item, heap_remove, heap_reserve
from manytail._list cimport link_after, link_last, unlink_from

cdef enum:                      # states
    AVAILABLE = 0
    HELD = 1
    ACQUIRED = 2
    DEQUEUED = 3
    DELETED = 4

cdef enum:                      # parts of the word
    STATE_BITS = 7
    LOCKED_BIT = 8
    REDELIVERED_BIT = 16
    DELIVERY_SHIFT = 5

ctypedef struct entry           # declared first: they point to each other
ctypedef struct anchor
ctypedef struct cursor_position

ctypedef struct cursor_position:
    anchor *on                  # NULL: not open
    cursor_position *prev
    cursor_position *next       # on the same anchor

ctypedef struct anchor:
    entry *at                   # NULL: the end of the list
    cursor_position *first
    anchor *spare
    int64_t n

ctypedef struct entry_options:  # what only some entries have
    int64_t expires             # monotonic ns, 0: never
    int64_t due                 # HELD until then
    uint32_t timer              # its index in the heap of timers + 1, or 0
    void *group                 # its group's key_record, or NULL
    void *value_key             # in a last-value queue: its key's record, or NULL
    const void *origin          # only compared by identity; `extra` keeps it alive
    entry *older                # in a sorted queue that drops the oldest: neighbours in the order of arrival
    entry *newer

ctypedef union entry_link:
    entry *acquired_next        # ACQUIRED: in its subscription's list of acquired, or of reserved, entries
    entry *dead_next            # dead, or not linked yet: in a chain that one call works off

ctypedef struct entry:
    mt_atomic_i64 word
    mt_atomic_u32 refs          # 1 for being linked, 1 per handle, place in a heap by order, and pin
    uint16_t priority_level
    uint8_t keyed               # it is a keyed_entry
    uint8_t reserved            # ACQUIRED for a waiter of its owner, which has not fetched it yet
    int64_t seq                 # arrival number
    uint64_t order              # L1; constant, except in a sorted queue
    entry *next                 # itself: unlinked
    entry *prev
    entry_link after
    entry *acquired_prev        # `after` and this are the links of that list
    void *owner                 # the subscription that has acquired it, or NULL
    anchor *readers
    void *item                  # a counted Python reference while linked
    void *extra                 # the same: headers and the like, or NULL
    int64_t born                # coarse monotonic ns
    entry_options *options      # or NULL
    int32_t priority
    uint32_t reason             # why it died

ctypedef struct keyed_entry:    # an entry of a sorted queue
    entry e
    void *key                   # a counted Python reference

ctypedef struct entry_list:
    entry *first
    entry *last
    anchor *end


# ----------------------------------------------------------------------------------------------------------- state word
cdef inline int word_state(int64_t w) noexcept nogil:
    return <int>(w & STATE_BITS)


cdef inline bint word_locked(int64_t w) noexcept nogil:
    return (w & LOCKED_BIT) != 0


cdef inline bint word_redelivered(int64_t w) noexcept nogil:
    return (w & REDELIVERED_BIT) != 0


cdef inline uint64_t word_delivery(int64_t w) noexcept nogil:
    return <uint64_t>w >> DELIVERY_SHIFT


cdef inline bint word_has_delivery(int64_t w, uint64_t delivery) noexcept nogil:
    return word_state(w) == ACQUIRED and word_delivery(w) == delivery


cdef inline int64_t entry_word(mt_atomic_i64 *word) noexcept nogil:
    # pairs with: mt_cas_acq_rel in entry_swap, mt_store_release in entry_delete
    return mt_load_acquire_i64(word)


cdef inline bint entry_swap(mt_atomic_i64 *word, int64_t *seen, int64_t to) noexcept nogil:
    """One compare-and-swap from `seen` to `to`. False: the word had changed, and `seen` is its value."""
    # pairs with: itself in other threads: who sees a state sees what was written before it was set
    return mt_cas_acq_rel_i64(word, seen, to)


cdef inline uint64_t entry_acquire(mt_atomic_i64 *word) noexcept nogil:
    """The new delivery number, or 0: it was not AVAILABLE."""
    cdef int64_t w = entry_word(word)
    cdef uint64_t delivery
    while word_state(w) == AVAILABLE:
        delivery = word_delivery(w) + 1
        if entry_swap(word, &w, <int64_t>(delivery << DELIVERY_SHIFT) | (w & REDELIVERED_BIT) | LOCKED_BIT | ACQUIRED):
            return delivery
    return 0


cdef inline bint entry_release(mt_atomic_i64 *word, uint64_t delivery, int64_t to) noexcept nogil:
    """`to`: AVAILABLE or HELD. False: `delivery` has ended."""
    cdef int64_t w = entry_word(word)
    while word_has_delivery(w, delivery):
        if entry_swap(word, &w, <int64_t>(delivery << DELIVERY_SHIFT) | REDELIVERED_BIT | to):
            return True
    return False


cdef inline bint entry_dequeue(mt_atomic_i64 *word, uint64_t delivery) noexcept nogil:
    cdef int64_t w = entry_word(word)
    while word_has_delivery(w, delivery):
        if entry_swap(word, &w, (w & ~(STATE_BITS | LOCKED_BIT)) | DEQUEUED):
            return True
    return False


cdef inline bint entry_unlock(mt_atomic_i64 *word, uint64_t delivery) noexcept nogil:
    """Allow entry_steal. False: `delivery` has ended, or it was not locked."""
    cdef int64_t w = entry_word(word)
    while word_has_delivery(w, delivery) and word_locked(w):
        if entry_swap(word, &w, w & ~LOCKED_BIT):
            return True
    return False


cdef inline bint entry_lock(mt_atomic_i64 *word, uint64_t delivery) noexcept nogil:
    """Forbid entry_steal. False: `delivery` has ended."""
    cdef int64_t w = entry_word(word)
    while word_has_delivery(w, delivery):
        if word_locked(w) or entry_swap(word, &w, w | LOCKED_BIT):
            return True
    return False


cdef inline bint entry_steal(mt_atomic_i64 *word) noexcept nogil:
    """Take it from a holder that has unlocked it."""
    cdef int64_t w = entry_word(word)
    while word_state(w) == ACQUIRED and not word_locked(w):
        if entry_swap(word, &w, (w & ~STATE_BITS) | DEQUEUED):
            return True
    return False


cdef inline bint entry_withdraw(mt_atomic_i64 *word) noexcept nogil:
    cdef int64_t w = entry_word(word)
    while word_state(w) <= HELD:
        if entry_swap(word, &w, (w & ~STATE_BITS) | DEQUEUED):
            return True
    return False


cdef inline bint entry_unhold(mt_atomic_i64 *word) noexcept nogil:
    cdef int64_t w = entry_word(word)
    while word_state(w) == HELD:
        if entry_swap(word, &w, w & ~STATE_BITS):
            return True
    return False


cdef inline void entry_delete(mt_atomic_i64 *word) noexcept nogil:
    # pairs with: mt_load_acquire in entry_word. The load is
    # relaxed because: only the thread that dequeued it writes the word of a DEQUEUED entry
    mt_store_release_i64(word, (mt_load_relaxed_i64(word) & ~STATE_BITS) | DELETED)


cdef inline int state_of(entry *e) noexcept nogil:
    return word_state(entry_word(&e.word))


# -------------------------------------------------------------------------------------------------------------- entries
cdef inline entry *entry_new(bint keyed) noexcept nogil:
    """A new entry with one reference. NULL: no memory."""
    cdef size_t size = sizeof(keyed_entry) if unlikely(keyed) else sizeof(entry)
    cdef entry *e = <entry *>malloc(size)
    if unlikely(e == NULL):
        return NULL
    memset(<void *>e, 0, sizeof(entry))
    if unlikely(keyed):
        e.keyed = True
        key_slot(e)[0] = NULL
    # relaxed because: no other thread has it yet
    mt_store_relaxed_u32(&e.refs, 1)
    return e


cdef inline void **key_slot(entry *e) noexcept nogil:
    """The location of the key of a keyed entry."""
    return &(<keyed_entry *>e).key


cdef inline void entry_keep(entry *e) noexcept nogil:
    # relaxed because: the caller has a reference, or the lock under which the list has one
    mt_fetch_add_relaxed_u32(&e.refs, 1)


cdef inline void entry_drop(entry *e) noexcept nogil:
    # pairs with: itself in other threads: the last one frees after all that the others did
    if mt_fetch_add_acq_rel_u32(&e.refs, <uint32_t>-1) == 1:
        free(e.options)
        free(<void *>e)


# ------------------------------------------------------------------------------------------------------------ positions
cdef inline anchor **anchor_at(entry_list *l, entry *at) noexcept nogil:
    return &at.readers if at != NULL else &l.end


cdef inline entry *position_at(cursor_position *p) noexcept nogil:
    return p.on.at


cdef inline void anchor_join(anchor *a, cursor_position *p) noexcept nogil:
    p.on = a
    p.prev = NULL
    p.next = a.first
    if a.first != NULL:
        a.first.prev = p
    a.first = p
    a.n += 1


cdef inline void position_enter(entry_list *l, cursor_position *p, anchor *own, entry *at) noexcept nogil:
    """Put p at an entry. `own`, the anchor that it brings along, is used or becomes a spare (L3)."""
    cdef anchor **there = anchor_at(l, at)
    if there[0] != NULL:
        own.spare = there[0].spare
        there[0].spare = own
    else:
        own.at = at
        own.first = NULL
        own.spare = NULL
        own.n = 0
        there[0] = own
    anchor_join(there[0], p)


cdef inline anchor *position_leave(entry_list *l, cursor_position *p) noexcept nogil:
    """Take p off its entry. Returns the anchor that it takes along (L3)."""
    cdef anchor *a = p.on
    p.on = NULL
    if a.n == 1:
        anchor_at(l, a.at)[0] = NULL
        return a
    own = a.spare
    a.spare = own.spare
    if p.prev != NULL:
        p.prev.next = p.next
    else:
        a.first = p.next
    if p.next != NULL:
        p.next.prev = p.prev
    a.n -= 1
    return own


cdef inline void position_move(entry_list *l, cursor_position *p, entry *to) noexcept nogil:
    cdef anchor *a = p.on
    cdef anchor **there = anchor_at(l, to)
    if likely(a.n == 1 and there[0] == NULL):
        anchor_at(l, a.at)[0] = NULL
        a.at = to
        there[0] = a
    elif unlikely(a.at != to):
        position_enter(l, p, position_leave(l, p), to)


cdef inline bint position_open(entry_list *l, cursor_position *p, entry *at) noexcept nogil:
    """Put a position that is not open at an entry. False: no memory."""
    cdef anchor *own = <anchor *>malloc(sizeof(anchor))
    if own == NULL:
        return False
    position_enter(l, p, own, at)
    return True


cdef inline void position_close(entry_list *l, cursor_position *p) noexcept nogil:
    if p.on != NULL:
        free(position_leave(l, p))


cdef inline void anchor_move(entry_list *l, entry *source, entry *to) noexcept nogil:
    """Move all positions at `source` to `to`: in O(1), or in O(positions of the smaller anchor) if both have some."""
    cdef anchor **there = anchor_at(l, to)
    cdef anchor *small = anchor_at(l, source)[0]
    cdef anchor *big = there[0]
    anchor_at(l, source)[0] = NULL
    if small == NULL:
        return
    if big == NULL or big.n < small.n:
        small, big = big, small
    big.at = to
    there[0] = big
    if small == NULL:
        return
    p = small.first
    while p != NULL:
        following = p.next
        anchor_join(big, p)
        p = following
    last = small
    while last.spare != NULL:
        last = last.spare
    last.spare = big.spare
    big.spare = small


# ---------------------------------------------------------------------------------------------------------------- lists
cdef inline void list_append(entry_list *l, entry *e) noexcept nogil:
    link_last(e, &e.next, &l.first, &l.last)
    if l.end != NULL:           # readers at the end have not passed e
        e.readers = l.end
        e.readers.at = e
        l.end = NULL


cdef inline void list_insert(entry_list *l, entry *e, entry *at) noexcept nogil:
    """Link e directly before `at` (NULL: at the end). Positions at `at` move to e."""
    if at == NULL:
        list_append(l, e)
        return
    link_after(at.prev, e, &e.next, &l.first, &l.last)
    anchor_move(l, at, e)


cdef inline void list_unlink(entry_list *l, entry *e) noexcept nogil:
    if unlikely(e.readers != NULL):
        anchor_move(l, e, e.next)
    unlink_from(e, &e.next, &l.first, &l.last)
    e.next = e
    e.prev = NULL


cdef inline bint is_linked(entry *e) noexcept nogil:
    return e.next != e


# --------------------------------------------------------------------------------------------------------------- timers
# A heap of the entries of a queue that expire or are HELD, by time. It holds no references: an entry is removed when it
# is unlinked.
cdef inline void timers_remove(heap *h, entry *e) noexcept nogil:
    if e.options.timer != 0:
        heap_remove(h, e.options.timer - 1)


cdef inline void timers_set(heap *h, entry *e, int64_t when) noexcept nogil:
    """The caller has reserved a slot (heap_reserve)."""
    timers_remove(h, e)
    heap_add(h, <uint64_t>when, e, &e.options.timer)


# ------------------------------------------------------------------------------------------------------ heaps by order
# A cursor's redeliveries: the entries that it has passed and must look at again, because they were released, or arrived
# before its position. With groups also what may be taken (_eq_keys.pxd). The heap has references. An entry may be in it
# twice; one that is not AVAILABLE stays until it is at the top or entry_heap_refresh drops it.
cdef inline void entry_heap_pop(heap *h) noexcept nogil:
    cdef entry *e = <entry *>h.items[0].member
    heap_remove(h, 0)
    entry_drop(e)


cdef inline int compare_keys(const void *a, const void *b) noexcept nogil:
    cdef uint64_t x = (<const heap_item *>a).key, y = (<const heap_item *>b).key
    return -1 if x < y else x > y


cdef inline void entry_heap_refresh(heap *h) noexcept nogil:
    """Drop duplicates and what is not AVAILABLE; read the orders again, which a sorted queue changes. Sorting gives a
    heap."""
    cdef uint32_t i, n = 0
    for i in range(h.n):
        e = <entry *>h.items[i].member
        if state_of(e) != AVAILABLE:
            entry_drop(e)
            continue
        h.items[n].member = e
        h.items[n].key = e.order
        n += 1
    if n:
        qsort(h.items, <size_t>n, sizeof(heap_item), compare_keys)
    h.n = 0
    for i in range(n):
        if h.n and h.items[h.n - 1].member == h.items[i].member:
            entry_drop(<entry *>h.items[i].member)
        else:
            h.items[h.n] = h.items[i]
            h.n += 1


cdef inline bint entry_heap_push(heap *h, entry *e) noexcept nogil:
    """False: no memory."""
    if unlikely(h.n == h.capacity):
        if h.n:
            entry_heap_refresh(h)
        # Amortized O(log n): without growth, at least half the capacity is pushed before the next shrink.
        if h.n >= h.capacity >> 1 and not heap_reserve(h, h.capacity + 1):
            return False
    entry_keep(e)
    heap_add(h, e.order, e, NULL)
    return True


cdef inline void entry_heap_free(heap *h) noexcept nogil:
    for i in range(h.n):
        entry_drop(<entry *>h.items[i].member)
    free(h.items)
    h.items = NULL
    h.n = h.capacity = 0
