# The C side of the entry queues as Cython sees it: include/manytail/{entry_state,link}.h say what each field means. Then the structs
# that have no kernel of their own: a queue, a subscription, the lists of the consumer manager.
cdef extern from "manytail/atomics.h" nogil:
    ctypedef struct mt_atomic_i64:
        pass
    ctypedef struct mt_atomic_u32:
        pass
    int64_t mt_load_relaxed_i64(mt_atomic_i64 *)
    int64_t mt_load_seq_cst_i64(mt_atomic_i64 *)
    void mt_store_relaxed_i64(mt_atomic_i64 *, int64_t)
    int64_t mt_fetch_add_acq_rel_i64(mt_atomic_i64 *, int64_t)
    uint32_t mt_load_relaxed_u32(mt_atomic_u32 *)
    void mt_store_relaxed_u32(mt_atomic_u32 *, uint32_t)
    uint32_t mt_xchg_seq_cst_u32(mt_atomic_u32 *, uint32_t)
    int mt_first_bit(uint64_t)
    void mt_prefetch_read(const void *)
    bint likely "MT_LIKELY" (bint)
    bint unlikely "MT_UNLIKELY" (bint)

cdef extern from "manytail/delays.h" nogil:
    void mt_point()

cdef extern from "manytail/waitlist.h" nogil:
    enum: MT_WAITER_THREAD, MT_WAITER_LOOP

cdef extern from "manytail/entry_state.h" nogil:
    enum: MT_ENTRY_AVAILABLE, MT_ENTRY_HELD, MT_ENTRY_ACQUIRED, MT_ENTRY_DEQUEUED, MT_ENTRY_DELETED
    int mt_word_state(int64_t)
    bint mt_word_locked(int64_t)
    bint mt_word_redelivered(int64_t)
    uint64_t mt_word_delivery(int64_t)
    bint mt_word_held_by(int64_t, uint64_t)
    int64_t mt_entry_word(mt_atomic_i64 *)
    uint64_t mt_entry_acquire(mt_atomic_i64 *)
    bint mt_entry_release(mt_atomic_i64 *, uint64_t delivery, int64_t to)
    bint mt_entry_dequeue(mt_atomic_i64 *, uint64_t delivery)
    bint mt_entry_unlock(mt_atomic_i64 *, uint64_t delivery)
    bint mt_entry_lock(mt_atomic_i64 *, uint64_t delivery)
    bint mt_entry_steal(mt_atomic_i64 *)
    bint mt_entry_withdraw(mt_atomic_i64 *)
    bint mt_entry_unhold(mt_atomic_i64 *)
    void mt_entry_delete(mt_atomic_i64 *)

cdef extern from "manytail/link.h" nogil:
    ctypedef struct mt_pos:
        pass
    ctypedef struct more "mt_entry_more":
        int64_t expires, due, timer
        void *group
        void *slot
        const void *origin
        entry *older
        entry *newer
        entry *group_next
        entry *group_prev
    ctypedef struct entry "mt_entry":
        mt_atomic_i64 word
        mt_atomic_u32 refs
        uint16_t level
        uint16_t keyed
        int64_t seq
        uint64_t order
        entry *next
        entry *prev
        entry *held_next
        entry *held_prev
        void *owner
        void *item
        void *extra
        int64_t born
        more *more
        int32_t priority
        uint32_t reason
    ctypedef struct mt_list:
        entry *first
        entry *last
    ctypedef struct mt_again_item:
        uint64_t order
        entry *e
    ctypedef struct mt_again:
        mt_again_item *items
        int64_t n, room
    ctypedef struct mt_timer:
        int64_t when
        entry *e
    ctypedef struct mt_timers:
        mt_timer *items
        int64_t n
    entry *mt_entry_new(bint keyed)
    void **mt_entry_key(entry *)
    void mt_entry_keep(entry *)
    void mt_entry_drop(entry *)
    bint mt_entry_linked(entry *)
    entry *mt_pos_at(mt_pos *)
    bint mt_pos_open(mt_list *, mt_pos *, entry *at)
    void mt_pos_close(mt_list *, mt_pos *)
    void mt_pos_move(mt_list *, mt_pos *, entry *to)
    void mt_list_append(mt_list *, entry *)
    void mt_list_insert(mt_list *, entry *, entry *at)
    void mt_list_unlink(mt_list *, entry *)
    bint mt_again_push(mt_again *, entry *)
    void mt_again_pop(mt_again *)
    void mt_again_shrink(mt_again *)
    void mt_again_free(mt_again *)
    bint mt_timers_reserve(mt_timers *, int64_t)
    void mt_timers_set(mt_timers *, entry *, int64_t when)
    void mt_timers_remove(mt_timers *, entry *)

cdef extern from *:
    """
    /* MT_EN_DETACHED: for callers that hold no thread state (_entryqueue.pyx). */
    #if defined(Py_GIL_DISABLED) || defined(MT_EN_DETACHED)
    #define MT_EN_LOCKS 1
    #else
    #define MT_EN_LOCKS 0
    #endif
    #if defined(MT_EN_DETACHED)
    #define MT_EN_ATTACHED 0
    #else
    #define MT_EN_ATTACHED 1
    #endif
    """
    const bint LOCKS "MT_EN_LOCKS"          # without the GIL; with it, the GIL is the order lock
    const bint ATTACHED "MT_EN_ATTACHED"    # callers hold a thread state


# A key that entries have in common: a group, or the key of a last-value queue. Found by hash and `==`, which run without the lock;
# counted by the entries that have it.
cdef struct keyrec:
    keyrec *next                # in its bucket; of a removed one: to be released
    Py_hash_t hash
    void *key                   # a counted Python reference
    int64_t refs
    sub *owner                  # group: whose it is, or NULL
    int64_t unacked             # group: entries of it that are acquired
    entry *latest               # last value: the entry put last, if it is still there

cdef struct keytab:
    keyrec **buckets
    int64_t nbuckets            # a power of two, or 0
    int64_t n

cdef enum:
    LEAF = 256
    LEAF_SPARE = 64             # what a leaf must have free to take some of a full neighbour's

cdef struct leaf:               # a run of a sorted queue's entries
    uint32_t n
    entry *at[256]

cdef struct shelf:              # a leaf with what a search asks of it, side by side in one array
    leaf *it
    uint64_t order              # of its first entry
    PyObject *key               # of its first entry, borrowed from it
    int64_t since               # none of its entries has a smaller `seq`

cdef struct search_range:
    uint64_t lo, hi             # the place is between these orders
    uint64_t epoch
    uint64_t version            # of the index: the bounds below are right if it is still that
    int64_t from_leaf, to_leaf  # all entries between lo and hi are in leaves from <= .. < to
    int64_t from_slot, to_slot  # once to - from is 1: in these slots; to_slot < 0: not narrowed yet
    uint64_t probed             # order of the entry that was compared last

# A subscription's pointer: everything before the positions has been passed, but for what is in `again`.
cdef struct cursor:
    mt_pos one                  # of the only level
    mt_pos *pos                 # one per level
    mt_again again

# Credit that several subscriptions share (those of one Consumer); its numbers are atomic, its waiters are under its lock, which is
# taken after an order lock, never before.
cdef struct pool:
    mt_lock lock
    mt_atomic_i64 used
    mt_atomic_i64 limit
    mt_atomic_i64 suspended
    int64_t version             # counts whatever may make a waiter's next try worth it
    mt_waitlist waiters
    pool *reg_next              # all of the process, for fork
    pool *reg_prev

cdef struct chain:
    sub *first
    sub *last

# The consumer manager's lists for subscriptions of one priority that acquire. Each subscription is in `all` and in one of the others.
cdef struct level:
    int64_t priority
    level *next                 # less urgent
    int64_t n                   # in `all`
    chain all
    chain interested            # could take, and nobody waits in a get of it
    chain waiting               # somebody waits, and any entry will do: one of them is notified per arrival
    chain choosy                # somebody waits, with a selector, an origin, a start or groups: all are notified that might want it
    chain notified              # all its waiters were woken and are not back yet

cdef struct sub:
    core *q
    uint32_t id
    bint browse, exclusive, suspended, closed
    bint own                    # has a cursor of its own: what it wants differs from what others want
    void *selector              # borrowed from the Subscription, or NULL
    const void *origin          # identity only
    int64_t start               # arrivals before this number are not for it
    int64_t limit               # credit: entries it may hold, <= 0: any number
    int64_t nheld
    entry *held_first           # in the order in which it got them
    entry *held_last
    cursor *cur
    cursor mine
    pool *pool                  # or NULL: its credit is its own
    mt_waitlist waiters
    int64_t notified            # waiters that were woken and are not back
    level *lvl
    chain *place                # the list it is in
    sub *next
    sub *prev
    sub *all_next
    sub *all_prev
    sub *own_next
    sub *own_prev

cdef struct running:            # on the stack of a thread that runs the dead letter callable
    unsigned long thread
    running *next
    running *prev

# What is to be done after unlocking, because it runs Python code: wake waiters, release items, deliver dead letters.
cdef struct debts:
    mt_waiter *wake
    entry *dead                 # by held_next
    keyrec *keys                # keys that no entry has any more
    bint late                   # the thread of dead letters has to be told of the queue's `late`
    bint quiet                  # nothing is due any more: the shared timer may want to know


cdef inline void clear_debts(debts *d) noexcept nogil:
    d.wake = NULL
    d.dead = NULL
    d.keys = NULL
    d.late = False
    d.quiet = False


cdef struct verdict:            # what a selector said about an entry that is to be handed over
    uint32_t id                 # of the subscription
    bint wants
    PyObject *selector          # counted: not asked yet

cdef struct verdicts:
    verdict *items
    int64_t n, room

cdef struct figures:            # what happened since the queue was made
    int64_t enqueued, delivered, acked, released, expired, rejected, dropped, purged, dead_lettered, selector_errors, high_water

cdef struct core:
    mt_lock lock                # the order lock: everything below, and all but `word` and `refs` of the entries
    mt_list one
    mt_list *lists
    uint32_t nlevels
    uint32_t next_sub
    uint64_t *ready             # bit set of the levels that are not empty, most urgent first
    uint64_t one_ready
    int64_t mapping             # level number = clamp(priority - mapping, 0, nlevels - 1)
    running *running            # threads inside the dead letter callable
    int64_t nseq
    cursor shared               # of all subscriptions that take any entry
    int64_t available, acquired, held
    figures figures
    int64_t events              # counts whatever may make an entry takable for somebody
    int64_t maxsize, resume_mark
    int overflow
    bint stopped                # "block": puts wait until depth <= resume_mark
    bint shut, shut_now
    int letters                 # LETTERS_NONE, _QUEUE, _CALL: what kind of dead letter it has
    entry *late                 # dead, for the thread of dead letters: by held_next, the oldest first
    entry *late_last
    keyrec *late_keys           # for the same thread: to be released
    bint late_told              # that thread was told of them
    mt_waitlist putters
    mt_timers timers
    int64_t watched             # when the shared timer looks next, 0: never
    int64_t max_deliveries
    int groups
    keytab group_keys
    keytab slot_keys
    bint keyed                  # sorted: its entries have keys and are in an index
    bint arrivals               # keeps the order of arrival beside the order
    entry *oldest
    entry *newest
    shelf *leaves               # the index of a sorted queue
    int64_t nleaves, leaves_room
    uint64_t sort_version       # of the index
    uint64_t sort_epoch         # of the orders
    level *levels
    int64_t nlvls
    int64_t nwaiting            # subscriptions in waiting, choosy and browsers_waiting lists
    int64_t nsubs
    bint exclusive
    chain browsers              # non-acquiring
    chain browsers_waiting
    chain idle                  # not interested
    sub *owners                 # all with a cursor of their own
    core *reg_next
    core *reg_prev
