# The publish/subscribe list: a linked list of message chunks, with a cursor for each subscriber. Messages are freed
# from the old end. Private: its Python interface is _pubsub.pyx.
#
#      oldest                                                        newest
#     [ . . m m m m S ]--next-->[ m m m m m m m ]--next-->[ m m m _ _ _ _ ]        . freed   _ empty   S seal
#           ^freed_seq, low_seq     ^next_seq of B             ^next_seq of A
#
# Source: the publish/subscribe queue of disclosure IPCOM000185635D (a message is expected by exactly those who are
# subscribed when it is published), as the third construction of docs/design/pubsub.md, which proves it. No message
# counts the subscribers that still expect it. A message's sequence number is its position in the list. A subscriber's
# next_seq is the sequence number that it takes next. So message n is expected by exactly the subscribers with
# next_seq <= n, and the smallest next_seq is the first message that must be kept.
#
# PUBLISH writes the first empty slot of the newest chunk by compare-and-swap, or links a new chunk that begins with the
# message. A run of messages is one new chunk, so it appears atomically and without gaps; the chunk before it gets a
# SEAL in its first empty slot. So slots fill in order, and `next` is linked only when all slots before the seal are
# full.
# TAKE reads the slot at next_seq and advances next_seq. It holds the subscriber's lock, which excludes other threads of
# the same subscriber, and publishers that wake the subscriber or drop its messages.
# TRIM frees what no subscriber expects. A thread trims after it has moved the smallest next_seq, or has left. One
# thread trims at a time (`trimming`). A second one does not wait: it makes the first one trim again.
# JOIN, one thread at a time:
#     joiner:   next_seq = JOINING; joins += 1; choose where to begin; next_seq = that, by compare-and-swap
#     observer: read joins; read every next_seq; read joins
# All of these are sequentially consistent. Suppose that an observer reads the same `joins` twice. Then it has seen
# JOINING or the new next_seq; or the joiner chooses later, and begins no earlier than the smallest next_seq that the
# observer found. A trimmer that sees JOINING does not advance low_seq; the joiner trims after it has joined.
# A publisher that counts free slots does not wait for a joiner. It makes the joiner choose again: it changes JOINING,
# and the joiner's compare-and-swap fails.
#
# Invariants
#   I1  freed_seq <= low_seq <= every next_seq <= end, at every moment. The next_seq of a joiner, and of a record that
#       is closed or unused, does not count.
#   I2  A subscriber's chunk holds its next message, or ends right before it. A chunk is unlinked only when every
#       next_seq is beyond the first slot of the chunk after it. So a subscriber's chunk is never unlinked.
#   I3  The list owns one reference to each message in [freed_seq, end). A take adds one before it moves next_seq.
#       locked_take_sole() gets the list's reference instead, and advances freed_seq beyond the message.
#   I4  A thread that moves a next_seq away from low_seq, or leaves, trims after that. It need not trim if it has seen a
#       joiner, which trims after it has joined, or another next_seq that is not beyond low_seq: then I4 applies to the
#       thread that moves that one.
#
# Progress: trimming is lock-free, and so is a publish that wakes no getter, waits for no free slot and drops nothing.
# Takes of different subscribers do not wait for each other: the loop of a take only walks along the list.
# Leaving takes only the subscriber's own lock. Joiners exclude each other (join_lock).
# Publishers and joiners read chunks that may be unlinked at the same time, so they hold a pin of `epoch` (epoch.h), and
# so does the thread that unlinks.
#
# With a GIL (GIL_LOCKED) the GIL is the lock: every call holds it throughout and runs no Python code. The algorithm is
# the same, but its read-modify-writes are plain (the ps_ functions of objects.h), and its locks and pins are not used.
#
# Names: the caller of a locked_ function holds the subscriber's lock. That of a capacity_locked_ one holds
# capacity_lock, the lock of publishers at capacity. Lock order: join_lock, capacity_lock, then one subscriber's lock.
# `to_post` collects waiters to post after unlocking (_waiting.pxd).
#
# Fork: os.fork() stops the other attached threads where they detach: while they wait, for a lock (_lock.pxd) or as a
# waiter. No thread waits while it holds a pin, trims, or has JOINING as its next_seq. So the child finds `trimming`
# idle and no joiner. But skip_to() may wait for the lock of the next subscriber after it has moved one and before its
# caller trims: after_fork() restores I4.
from libc.stdint cimport INT64_MAX, INT64_MIN as JOINING, INT64_MAX as NO_SUBSCRIBER, int64_t, uint32_t, uintptr_t
from libc.stdlib cimport calloc, free

from manytail._c cimport *
from manytail._lock cimport enter, leave
from manytail._waiting cimport *

cdef enum:
    # Status codes, besides the MT_ ones.
    LAGGED = 16             # messages of this subscriber were dropped, and take_missed() has not reported them
    CLOSED = 17             # the subscriber has left
    UNRETAINED = 18         # published without subscribers, so not kept (only with a GIL: publish_unretained)

    # What a slot without a message holds. Messages are pointers, which are greater.
    SLOT_EMPTY = 0
    SLOT_SHUT = 1           # the end: no message follows
    SLOT_SEAL = 2           # the chunk ends here; messages go on in the next one

    # Where a subscriber begins, if not at a sequence number.
    START_NEXT = -1         # the next message to be published
    START_OLDEST = -2       # the oldest message that is retained

    # What a publish does if no slot is free.
    SLOW_BLOCK = 0
    SLOW_RAISE = 1
    SLOW_DROP = 2           # drop the oldest messages

    # States of `trimming`.
    TRIM_IDLE = 0
    TRIM_BUSY = 1
    TRIM_AGAIN = 2          # busy, and another thread has asked to trim: trim again

    CACHE_LINE = 64
    FIRST_CAP = 10          # slots of a small chunk: 120 bytes
    LONGEST_RUN = 1 << 20   # messages of one chunk
    FREED_AT_ONCE = 64

ctypedef struct message_chunk:      # followed in memory by cap slots
    mt_retired retired
    mt_atomic_uptr next
    int64_t base                    # sequence number of slot 0; constant once linked, but for publish_unretained
    uint32_t cap                    # constant
    mt_atomic_u32 used              # a hint: the slots before it are not empty

ctypedef struct pubsub

ctypedef struct subscriber:
    mt_lock lock                    # for its own threads, and for publishers that wake it or drop its messages
    # The sequence number that it takes next. Negative: it is joining, and the value is JOINING + how often a publisher
    # made it choose again. NO_SUBSCRIBER: closed or unused. Written under the lock; while it is negative, also by
    # publishers without the lock.
    mt_atomic_i64 next_seq
    message_chunk *chunk            # under lock, as the fields down to not_empty; I2
    uint32_t slot                   # of next_seq in chunk. At cap or at the seal: next_seq is slot 0 of the next chunk
    uint32_t closed
    int64_t missed                  # messages dropped since the last take_missed()
    int64_t closed_at               # its next_seq when it was closed
    wait_list not_empty             # getters that wait for a message
    mt_atomic_u32 waiting           # not_empty.n, for publishers, which read it without the lock
    mt_atomic_u32 in_use            # 1: a Subscriber object has this record
    subscriber *next                # constant: the next one of subscriber_records
    pubsub *q                       # constant
    char pad[CACHE_LINE]

ctypedef struct pubsub:
    # Publishers.
    mt_atomic_uptr newest           # the newest chunk or one shortly before it
    mt_atomic_i64 maxsize           # <= 0: unlimited
    uint32_t slow                   # constant: SLOW_*
    mt_atomic_u32 shut              # 1: a shutdown has begun; SLOT_SHUT may not be written yet
    mt_atomic_u32 nwaiting          # the sum of `waiting` over all subscribers
    mt_atomic_u32 not_full_waiting  # not_full.n, for trimmers, which read it without the lock
    message_chunk *end_chunk        # for mark_end, which must not need memory; NULL: linked. Under capacity_lock
    char pad0[CACHE_LINE]
    # Takers and trimmers.
    mt_atomic_u32 trimming          # TRIM_*
    mt_atomic_u32 nsubscribers
    mt_atomic_i64 low_seq           # no subscriber expects a message before it
    mt_atomic_i64 joins             # how many joins have begun
    mt_atomic_uptr slowest_hint     # the subscriber that had the smallest next_seq in the last search
    mt_atomic_uptr oldest           # the first chunk of the list
    int64_t freed_seq               # the messages before it are freed. For the trimming thread, publish_unretained
    char pad1[CACHE_LINE]
    # Seldom written.
    mt_atomic_uptr subscriber_records   # stack of all records; never popped, unused records are used again
    mt_atomic_i64 dropped           # statistics
    mt_atomic_u32 begun             # 1: options are set, and cannot be set again
    mt_atomic_u32 refs              # its PubSubQueue, and each Subscriber
    mt_lock join_lock
    mt_lock capacity_lock           # for publishers at capacity, which wait or drop messages, and for shutdown
    wait_list not_full              # under capacity_lock: publishers that wait
    mt_epoch epoch

# The end of the list, as a publisher has found it.
ctypedef struct list_end:
    message_chunk *chunk            # the newest chunk
    uint32_t slot                   # its first slot without a message, or cap
    uintptr_t state                 # of that slot: SLOT_EMPTY, SLOT_SHUT or SLOT_SEAL
    int64_t seq                     # the sequence number of the next message

# What one trim frees. The caller drops the references, with no lock or pin held.
ctypedef struct freed:
    uint32_t n
    bint incomplete                 # there is more: call again
    bint low_moved                  # low_seq has advanced, so slots became free
    uintptr_t items[FREED_AT_ONCE]


# ----------------------------------------------------------------------------------------------------------------- pins
cdef inline mt_pin *pin(pubsub *q) noexcept nogil:
    if GIL_LOCKED:
        return NULL
    return mt_epoch_pin(&q.epoch)


cdef inline void unpin(pubsub *q, mt_pin *own) noexcept nogil:
    """Freeing a chunk runs no Python code, so it is done here, whatever locks the caller holds."""
    if not GIL_LOCKED:
        reclaimable = mt_epoch_unpin(&q.epoch, own)
        if unlikely(reclaimable != NULL):
            mt_retired_free(reclaimable)


# ---------------------------------------------------------------------------------------------------------------- locks
cdef inline void lock_subscriber(subscriber *s) noexcept nogil:
    enter(&s.lock, GIL_LOCKED, True)


cdef inline void unlock_subscriber(subscriber *s) noexcept nogil:
    leave(&s.lock, GIL_LOCKED)


cdef inline void unlock_and_post(subscriber *s, wait_node *to_post) noexcept nogil:
    unlock_subscriber(s)
    if unlikely(to_post != NULL):
        post(to_post)


cdef inline void lock_capacity(pubsub *q) noexcept nogil:
    enter(&q.capacity_lock, GIL_LOCKED, True)


cdef inline void unlock_capacity(pubsub *q) noexcept nogil:
    leave(&q.capacity_lock, GIL_LOCKED)


# --------------------------------------------------------------------------------------------------------------- chunks
cdef inline mt_atomic_uptr *slots(message_chunk *c) noexcept nogil:
    return <mt_atomic_uptr *>(c + 1)


cdef inline message_chunk *new_chunk(uint32_t cap) noexcept nogil:
    """An empty chunk. `base` is 0 until it is linked. NULL: no memory."""
    cdef message_chunk *c = <message_chunk *>calloc(1, sizeof(message_chunk) + cap * sizeof(mt_atomic_uptr))
    if c != NULL:
        c.cap = cap
    return c


cdef inline void free_chunk(mt_retired *retired) noexcept nogil:
    free(<message_chunk *>retired)          # `retired` is its first field


cdef inline message_chunk *next_chunk(message_chunk *c) noexcept nogil:
    # pairs with: ps_cas_uptr in link
    return <message_chunk *>mt_load_seq_cst_uptr(&c.next)


cdef inline uintptr_t slot_value(message_chunk *c, uint32_t i) noexcept nogil:
    # pairs with: ps_cas_uptr in claim, mt_store_release in fill. Sequentially consistent for a thread that has just
    # changed the count of waiters or of subscribers: either it sees the message, or the publisher sees the new count.
    return mt_load_seq_cst_uptr(slots(c) + i)


cdef inline void fill(message_chunk *c, uint32_t i, uintptr_t value) noexcept nogil:
    # pairs with: mt_load_seq_cst in slot_value
    mt_store_release_uptr(slots(c) + i, value)


cdef inline uintptr_t slot_state(message_chunk *c, uint32_t i) noexcept nogil:
    """The value of slot i. i == cap: SLOT_SEAL, as a full chunk counts as sealed."""
    return <uintptr_t>SLOT_SEAL if i == c.cap else slot_value(c, i)


cdef inline uint32_t first_without_message(message_chunk *c) noexcept nogil:
    """The first slot without a message, or cap. The search begins at the hint `used`, and updates it."""
    # relaxed because: a hint; slot_value() orders the read of each slot
    cdef uint32_t hint = mt_load_relaxed_u32(&c.used), i = hint
    while i < c.cap and slot_value(c, i) > <uintptr_t>SLOT_SEAL:
        i += 1
    if unlikely(i != hint):
        mt_store_relaxed_u32(&c.used, i)    # relaxed because: a hint
    return i


cdef inline uint32_t cap_of_next(pubsub *q, message_chunk *before, int64_t seq) noexcept nogil:
    """Chunks grow with the number of retained messages: a short list stays small, a long one needs few allocations."""
    # relaxed because: only a size is chosen by it
    cdef int64_t retained = seq - mt_load_relaxed_i64(&q.low_seq)
    if retained > 4096:
        return 1018
    if retained > 512:
        return 250
    return 58 if before.cap >= <uint32_t>FIRST_CAP else <uint32_t>FIRST_CAP


# ---------------------------------------------------------------------------------------------------- creating, freeing
cdef inline pubsub *new_pubsub() noexcept nogil:
    """A list with one reference, for its PubSubQueue. NULL: no memory."""
    cdef pubsub *q = <pubsub *>mt_alloc_aligned(sizeof(pubsub))
    if q == NULL:
        return NULL
    c = new_chunk(FIRST_CAP)
    q.end_chunk = new_chunk(1)
    if c == NULL or q.end_chunk == NULL:
        free(c)
        free(q.end_chunk)
        mt_free_aligned(q)
        return NULL
    fill(q.end_chunk, 0, SLOT_SHUT)
    # relaxed because: no other thread has it yet
    mt_store_relaxed_u32(&q.refs, 1)
    mt_store_relaxed_uptr(&q.newest, <uintptr_t>c)      # relaxed because: no other thread has it yet
    mt_store_relaxed_uptr(&q.oldest, <uintptr_t>c)      # relaxed because: no other thread has it yet
    return q


cdef inline void free_pubsub(pubsub *q) noexcept nogil:
    """Free the list. No thread uses it, and trims have freed all messages."""
    # relaxed because: no other thread uses it
    cdef message_chunk *c = <message_chunk *>mt_load_relaxed_uptr(&q.oldest)
    cdef subscriber *s = <subscriber *>mt_load_relaxed_uptr(&q.subscriber_records)  # relaxed because: as above
    while c != NULL:
        following = next_chunk(c)
        free(c)
        c = following
    while s != NULL:
        next_record = s.next
        mt_free_aligned(s)
        s = next_record
    free(q.end_chunk)
    mt_retired_free(mt_epoch_destroy(&q.epoch))
    mt_free_aligned(q)


# ----------------------------------------------------------------------------------------------------- sequence numbers
cdef inline int64_t low_seq(pubsub *q) noexcept nogil:
    # pairs with: ps_xchg_i64 in set_low_seq; sequentially consistent for I4
    return mt_load_seq_cst_i64(&q.low_seq)


cdef inline void set_low_seq(pubsub *q, int64_t seq) noexcept nogil:
    # pairs with: mt_load_seq_cst in low_seq. A trimmer writes it, then reads every next_seq again (advance).
    ps_xchg_i64(&q.low_seq, seq)


cdef inline int64_t next_seq(subscriber *s) noexcept nogil:
    # pairs with: ps_xchg_i64 in locked_move; ps_cas_i64 in locked_appear, make_joiners_choose_again
    return mt_load_seq_cst_i64(&s.next_seq)


cdef inline int64_t locked_next_seq(subscriber *s) noexcept nogil:
    # relaxed because: the caller holds the lock. Others change it only while it is negative, and locked_appear()
    # compares it again.
    return mt_load_relaxed_i64(&s.next_seq)


cdef inline void locked_move(subscriber *s, int64_t seq) noexcept nogil:
    # pairs with: mt_load_seq_cst in next_seq. After this write a taker reads low_seq (must_trim), and a joiner
    # increments `joins`.
    ps_xchg_i64(&s.next_seq, seq)


cdef inline message_chunk *newest_chunk(pubsub *q, uint32_t *i) noexcept nogil:
    """The newest chunk, and *i, its first slot without a message (cap: none). The caller holds a pin. Advances `newest`
    if it lags."""
    # pairs with: ps_cas_uptr below and in link, unlink_chunk
    cdef uintptr_t seen = mt_load_acquire_uptr(&q.newest)
    cdef message_chunk *c = <message_chunk *>seen
    while True:
        i[0] = first_without_message(c)
        following = next_chunk(c)
        if likely(following == NULL):
            return c
        c = following
        # pairs with: mt_load_acquire above. If it fails, another thread has advanced `newest`.
        ps_cas_uptr(&q.newest, &seen, <uintptr_t>c)
        seen = <uintptr_t>c


cdef inline void find_end(pubsub *q, list_end *end) noexcept nogil:
    """Find the end of the list. The caller holds a pin."""
    while True:
        end.chunk = newest_chunk(q, &end.slot)
        end.state = slot_state(end.chunk, end.slot)
        if likely(end.state <= <uintptr_t>SLOT_SEAL):
            break                       # else a publisher has filled the slot meanwhile: search again
    end.seq = end.chunk.base + end.slot


cdef inline int64_t end_seq(pubsub *q) noexcept nogil:
    """The sequence number of the next message. Publishers may have advanced it when this returns."""
    cdef mt_pin *own = pin(q)
    cdef uint32_t i
    cdef message_chunk *c = newest_chunk(q, &i)
    cdef int64_t end = c.base + i
    unpin(q, own)
    return end


cdef inline subscriber *first_record(pubsub *q) noexcept nogil:
    # pairs with: ps_cas_uptr in new_record
    return <subscriber *>mt_load_acquire_uptr(&q.subscriber_records)


cdef inline int64_t joins(pubsub *q) noexcept nogil:
    """How many joins have begun. An observer reads it before and after it reads every next_seq (JOIN, above)."""
    # pairs with: ps_fetch_add_i64 in locked_join
    return mt_load_seq_cst_i64(&q.joins)


cdef inline int64_t slowest(pubsub *q, subscriber **who) noexcept nogil:
    """The smallest next_seq, and *who has it; or NO_SUBSCRIBER, and NULL. Joiners do not count (see smallest_seq)."""
    cdef int64_t least = NO_SUBSCRIBER, seq
    cdef subscriber *s = first_record(q)
    who[0] = NULL
    while s != NULL:
        seq = next_seq(s)
        if 0 <= seq < least:
            least = seq
            who[0] = s
        s = s.next
    return least


cdef inline int64_t retained(pubsub *q, int64_t end) noexcept nogil:
    """How many messages before `end` are expected. Read from every next_seq: low_seq lags until a trimmer has run."""
    cdef subscriber *who
    return end - min(slowest(q, &who), end)


# ------------------------------------------------------------------------------------------------------------- capacity
cdef inline int64_t make_joiners_choose_again(pubsub *q, int64_t least) noexcept nogil:
    """Make each joiner choose again where it begins, later than this call. Returns the smallest of `least` and every
    next_seq that was read here; joiners do not count."""
    cdef subscriber *s = first_record(q)
    cdef int64_t seq, seen
    while s != NULL:
        seq = seen = next_seq(s)
        # pairs with: ps_cas_i64 in locked_appear: of the two swaps of one JOINING value, one fails
        while seq < 0 and not ps_cas_i64(&s.next_seq, &seen, seq + 1):
            seq = seen = next_seq(s)
        if 0 <= seq < least:
            least = seq
        s = s.next
    return least


cdef inline int64_t free_slots_exactly(pubsub *q, int64_t end, int64_t maxsize) noexcept nogil:
    """How many slots are free, computed from every next_seq, because low_seq may lag. <= 0: none was free when the
    smallest next_seq was read. > 0: no subscriber is further back than the one counted, and no joiner can begin further
    back, because joiners choose again."""
    cdef subscriber *who
    cdef int64_t before, least
    while True:
        before = joins(q)
        least = slowest(q, &who)
        mt_point()
        if end - least < maxsize:
            least = make_joiners_choose_again(q, least)
        mt_point()
        if joins(q) == before:
            return maxsize - (end - min(least, end))


cdef inline int64_t free_slots(pubsub *q, int64_t end) noexcept nogil:
    """How many messages may be published from `end` on. <= 0: none."""
    # relaxed because: a new maxsize holds for calls that begin after it was set
    cdef int64_t maxsize = mt_load_relaxed_i64(&q.maxsize), n
    if maxsize <= 0:
        return INT64_MAX
    n = maxsize - (end - low_seq(q))
    return n if likely(n > 0) else free_slots_exactly(q, end, maxsize)


# -------------------------------------------------------------------------------------------------------------- publish
cdef inline bint claim(message_chunk *c, uint32_t i, uintptr_t value) noexcept nogil:
    """Write a slot that was seen empty. False: another publisher has written it."""
    cdef uintptr_t empty = SLOT_EMPTY
    # pairs with: mt_load_seq_cst in slot_value. Sequentially consistent, before `nwaiting` is read: either the
    # publisher sees the waiter, or the waiter sees the message.
    return ps_cas_uptr(slots(c) + i, &empty, value)


cdef inline bint link(pubsub *q, list_end *end, message_chunk *fresh) noexcept nogil:
    """Make `fresh` the chunk after end.chunk, which is full or sealed. False: another publisher has linked one."""
    cdef uintptr_t none = 0, seen = <uintptr_t>end.chunk
    fresh.base = end.seq
    mt_point()
    # pairs with: mt_load_seq_cst in next_chunk. Sequentially consistent for the same reason as in claim.
    if not ps_cas_uptr(&end.chunk.next, &none, <uintptr_t>fresh):
        return False
    # pairs with: mt_load_acquire in newest_chunk. If it fails, another thread has advanced `newest`.
    ps_cas_uptr(&q.newest, &seen, <uintptr_t>fresh)
    return True


cdef inline bint no_subscriber(pubsub *q) noexcept nogil:
    """Asked after a publish. True: the publisher trims. False: the last subscriber that leaves sees the message in its
    own trim. With a GIL, publish_unretained also asks before a publish."""
    # pairs with: ps_fetch_add_u32 in locked_leave, locked_join
    return mt_load_seq_cst_u32(&q.nsubscribers) == 0


cdef inline bint publish_unretained(pubsub *q, list_end *end, int64_t n) noexcept nogil:
    """With a GIL and without subscribers, publish n messages without keeping them: only advance the sequence numbers of
    the newest chunk, all of whose messages are freed. False: not possible, nothing was done. freed_seq != end.seq: this
    publish comes while the caller of an incomplete trim runs finalizers."""
    if not GIL_LOCKED or likely(not no_subscriber(q)) or q.freed_seq != end.seq:
        return False
    end.chunk.base += n
    q.freed_seq += n
    set_low_seq(q, end.seq + n)
    return True


cdef inline int find_free_slots(pubsub *q, list_end *end, int64_t *n) noexcept nogil:
    """Find where and how many of *n messages can be published. MT_OK: publish *n of them at `end`, at least one and
    maybe fewer than asked. UNRETAINED: all are published, and none is kept (publish_unretained). Else MT_FULL or
    MT_SHUTDOWN."""
    find_end(q, end)
    if unlikely(end.state == <uintptr_t>SLOT_SHUT):
        return MT_SHUTDOWN
    if publish_unretained(q, end, n[0]):
        return UNRETAINED
    n[0] = min(n[0], free_slots(q, end.seq))
    mt_point()
    return MT_OK if likely(n[0] > 0) else MT_FULL


cdef inline message_chunk *new_run(const uintptr_t *items, int64_t n, uint32_t cap, int64_t *kept) noexcept nogil:
    """A chunk of cap slots that begins with these n items. The first *kept items already have a reference for the list:
    add one to each of the others, and update *kept. NULL: no memory."""
    cdef message_chunk *c = new_chunk(cap)
    cdef uint32_t i
    if c == NULL:
        return NULL
    for i in range(<uint32_t>n):
        if i >= kept[0]:
            keep(items[i])
        mt_store_relaxed_uptr(slots(c) + i, items[i])   # relaxed because: not linked yet
    mt_store_relaxed_u32(&c.used, <uint32_t>n)          # relaxed because: not linked yet
    kept[0] = max(kept[0], n)
    return c


cdef inline int publish(pubsub *q, uintptr_t item, int64_t *seq) noexcept nogil:
    """One try: MT_OK, UNRETAINED, MT_FULL, MT_SHUTDOWN or MT_NOMEM. MT_OK: the list owns the caller's reference."""
    cdef message_chunk *fresh = NULL
    cdef mt_pin *own = pin(q)
    cdef int64_t n, kept = 1
    cdef list_end end
    while True:
        n = 1
        r = find_free_slots(q, &end, &n)
        if unlikely(r != MT_OK):
            break
        if likely(end.state == <uintptr_t>SLOT_EMPTY):
            if likely(claim(end.chunk, end.slot, item)):
                mt_store_relaxed_u32(&end.chunk.used, end.slot + 1)     # relaxed because: a hint
                break
            continue
        if fresh == NULL:
            fresh = new_run(&item, 1, cap_of_next(q, end.chunk, end.seq), &kept)
        if fresh == NULL:
            r = MT_NOMEM
            break
        if link(q, &end, fresh):
            fresh = NULL
            break
    if unlikely(fresh != NULL):
        free(fresh)
    unpin(q, own)
    seq[0] = end.seq
    return r


cdef inline int publish_run(pubsub *q, const uintptr_t *items, int64_t n, int64_t *done, int64_t *kept) noexcept nogil:
    """One try to publish n items as one run. MT_FULL: only the first *done, because no more slots are free, or n is
    beyond LONGEST_RUN. The first *kept items got a reference; the caller drops those of the items beyond *done.
    Items that publish_unretained() does not keep count as done, without a reference."""
    cdef message_chunk *fresh = NULL
    cdef mt_pin *own = pin(q)
    cdef int64_t k
    cdef list_end end
    done[0] = kept[0] = 0
    while True:
        k = min(n, <int64_t>LONGEST_RUN)
        r = find_free_slots(q, &end, &k)
        if r == UNRETAINED:
            done[0] = k
        if r != MT_OK:
            break
        if end.state == <uintptr_t>SLOT_EMPTY and not claim(end.chunk, end.slot, SLOT_SEAL):
            continue
        mt_point()
        if fresh == NULL or fresh.cap != k:
            free(fresh)
            fresh = new_run(items, k, <uint32_t>k, kept)
        if fresh == NULL:
            r = MT_NOMEM
            break
        if link(q, &end, fresh):
            fresh = NULL
            done[0] = k
            break
    free(fresh)
    unpin(q, own)
    if done[0]:
        return MT_OK if done[0] == n else MT_FULL
    return r


cdef inline void mark_end(pubsub *q) noexcept nogil:
    """Write SLOT_SHUT into the first empty slot, or link a chunk that holds it. No message is accepted after that. One
    thread at a time."""
    cdef list_end end
    # pairs with: mt_load_acquire in is_shut
    ps_xchg_u32(&q.shut, 1)
    own = pin(q)
    while True:
        find_end(q, &end)
        if end.state == <uintptr_t>SLOT_SHUT:
            break
        if end.state == <uintptr_t>SLOT_EMPTY:
            if claim(end.chunk, end.slot, SLOT_SHUT):
                break
            continue
        if link(q, &end, q.end_chunk):
            q.end_chunk = NULL
            break
    unpin(q, own)


cdef inline bint is_shut(pubsub *q) noexcept nogil:
    """Whether SLOT_SHUT is written. The flag is set earlier, when messages may still be accepted."""
    cdef list_end end
    # pairs with: ps_xchg_u32 in mark_end
    if not mt_load_acquire_u32(&q.shut):
        return False
    own = pin(q)
    find_end(q, &end)
    unpin(q, own)
    return end.state == <uintptr_t>SLOT_SHUT


# ----------------------------------------------------------------------------------------------------------------- take
cdef inline uintptr_t locked_peek(subscriber *s) noexcept nogil:
    """The message at next_seq. SLOT_EMPTY: there is none yet. SLOT_SHUT: there will be none. It may move s.chunk to the
    next chunk, but does not move next_seq."""
    while True:
        value = slot_state(s.chunk, s.slot)
        if likely(value != <uintptr_t>SLOT_SEAL):
            return value
        following = next_chunk(s.chunk)
        if following == NULL:
            return SLOT_EMPTY
        s.chunk = following
        s.slot = 0


cdef inline int locked_next(subscriber *s, uintptr_t *value) noexcept nogil:
    """MT_OK, and the message at next_seq. Else MT_EMPTY, MT_SHUTDOWN, CLOSED or LAGGED."""
    if unlikely(s.closed):
        return CLOSED
    if unlikely(s.missed):
        return LAGGED
    value[0] = locked_peek(s)
    if likely(value[0] > <uintptr_t>SLOT_SEAL):
        return MT_OK
    return MT_EMPTY if value[0] == <uintptr_t>SLOT_EMPTY else MT_SHUTDOWN


cdef inline int locked_status(subscriber *s) noexcept nogil:
    """MT_OK: a getter has something to return or to raise. Else MT_EMPTY, MT_SHUTDOWN or CLOSED."""
    cdef uintptr_t value
    cdef int r = locked_next(s, &value)
    return MT_OK if r == LAGGED else r


cdef inline int locked_take(subscriber *s, uintptr_t *item) noexcept nogil:
    """Take the next message. MT_OK: the caller gets a reference. Else the status of locked_next()."""
    cdef uintptr_t value
    cdef int r = locked_next(s, &value)
    if likely(r == MT_OK):
        keep(value)
        item[0] = value
        s.slot += 1
        mt_point()
        locked_move(s, locked_next_seq(s) + 1)
    return r


cdef inline int64_t locked_take_many(subscriber *s, uintptr_t *items, int64_t n) noexcept nogil:
    """Take up to n messages. next_seq moves once, past all of them. The caller gets references."""
    cdef int64_t got = 0
    cdef uintptr_t value
    while got < n:
        value = locked_peek(s)
        if unlikely(value <= <uintptr_t>SLOT_SEAL):
            break
        keep(value)
        items[got] = value
        s.slot += 1
        got += 1
    if got:
        locked_move(s, locked_next_seq(s) + got)
    return got


cdef inline int64_t locked_available(subscriber *s, int64_t n) noexcept nogil:
    """How many messages the subscriber can take, at most n."""
    cdef message_chunk *c = s.chunk
    cdef message_chunk *following = next_chunk(c)
    cdef int64_t seq = locked_next_seq(s)
    while following != NULL and following.base - seq < n:
        c = following
        following = next_chunk(c)
    return n if following != NULL else min(n, c.base + first_without_message(c) - seq)


cdef inline void locked_place(subscriber *s, message_chunk *c, int64_t seq) noexcept nogil:
    """Set chunk and slot for `seq`, which is in chunk c or later."""
    cdef message_chunk *following = next_chunk(c)
    while following != NULL and following.base <= seq:
        c = following
        following = next_chunk(c)
    s.chunk = c
    s.slot = <uint32_t>(seq - c.base)


cdef inline void locked_skip(subscriber *s, int64_t seq) noexcept nogil:
    """Advance to `seq` without taking."""
    locked_place(s, s.chunk, seq)
    locked_move(s, seq)


# ----------------------------------------------------------------------------------------------------------------- trim
cdef inline bint must_trim(pubsub *q, subscriber *s, int64_t seq) noexcept nogil:
    """After s has moved on from `seq`: whether the caller must trim (I4). A cheap check that avoids most trims.
    False: s was not at low_seq, or another subscriber or a joiner keeps the messages from `seq` on."""
    if low_seq(q) < seq:
        return False
    # pairs with: mt_store_release in smallest_seq. So a record that another thread has made is initialised. It is freed
    # only with the list.
    slow = <subscriber *>mt_load_acquire_uptr(&q.slowest_hint)
    return slow == NULL or slow == s or next_seq(slow) > seq


cdef inline int64_t smallest_seq(pubsub *q, int64_t enough) noexcept nogil:
    """The smallest next_seq, or NO_SUBSCRIBER. Joiners count: theirs is negative. The search begins at the subscriber
    that was slowest in the last search, and stops at a next_seq <= `enough`."""
    cdef subscriber *first = first_record(q)
    # relaxed because: only the trimming thread writes it, which calls this
    cdef subscriber *begin = <subscriber *>mt_load_relaxed_uptr(&q.slowest_hint)
    cdef subscriber *slow = NULL
    cdef int64_t least = NO_SUBSCRIBER, seq
    if first == NULL:
        return NO_SUBSCRIBER
    if begin == NULL:
        begin = first
    s = begin
    while True:
        seq = next_seq(s)
        if seq < least:
            least = seq
            slow = s
        s = s.next if s.next != NULL else first
        if least <= enough or s == begin:
            break
    # pairs with: mt_load_acquire in must_trim
    mt_store_release_uptr(&q.slowest_hint, <uintptr_t>slow)
    return least


cdef inline int64_t seq_to_free(pubsub *q, int64_t before) noexcept nogil:
    """The sequence number before which messages may be freed, or `before` if there are no more to free. While a thread
    joins it is `before`: the joiner may begin at any retained message, and trims after it has joined."""
    cdef int64_t joins_before = joins(q), seq = smallest_seq(q, before)
    if seq == NO_SUBSCRIBER:
        seq = end_seq(q)
    mt_point()
    return before if seq <= before or joins(q) != joins_before else seq


cdef inline void advance(pubsub *q) noexcept nogil:
    """Advance low_seq, then check again: a subscriber that moved on and saw the old low_seq did not trim (I4).
    One that moves later sees it and trims."""
    while True:
        before = low_seq(q)
        seq = seq_to_free(q, before)
        if seq == before:
            return
        set_low_seq(q, seq)
        mt_point()
        if GIL_LOCKED:
            return


cdef inline void unlink_chunk(pubsub *q, message_chunk *c, message_chunk *following) noexcept nogil:
    """Unlink the oldest chunk, c. Only the trimming thread calls it."""
    cdef uintptr_t seen = <uintptr_t>c
    cdef mt_pin *own = pin(q)
    # pairs with: mt_load_acquire in newest_chunk. `newest` leaves c before c is retired, so a thread that pins later
    # cannot find c.
    ps_cas_uptr(&q.newest, &seen, <uintptr_t>following)
    # pairs with: mt_load_acquire in locked_choose
    mt_store_release_uptr(&q.oldest, <uintptr_t>following)
    if GIL_LOCKED:
        free(c)
    else:
        mt_epoch_retire(own, &c.retired, free_chunk)
    unpin(q, own)


cdef inline void free_passed(pubsub *q, freed *f) noexcept nogil:
    """Collect the messages before low_seq, as many as fit into f, and unlink chunks (I2: not while a subscriber may be
    at the end of one)."""
    # relaxed because: written only by the trimming thread, which calls this
    cdef message_chunk *c = <message_chunk *>mt_load_relaxed_uptr(&q.oldest)
    cdef int64_t to = mt_load_relaxed_i64(&q.low_seq)   # relaxed because: as above
    cdef message_chunk *following = next_chunk(c)
    while q.freed_seq < to or (following != NULL and following.base < to):
        if following != NULL and following.base <= q.freed_seq:
            unlink_chunk(q, c, following)
            c = following
            following = next_chunk(c)
        elif f.n == <uint32_t>FREED_AT_ONCE:
            f.incomplete = True
            return
        else:
            f.items[f.n] = slot_value(c, <uint32_t>(q.freed_seq - c.base))
            f.n += 1
            q.freed_seq += 1


cdef inline void trim_once(pubsub *q, freed *f) noexcept nogil:
    cdef int64_t before = low_seq(q)
    advance(q)
    if low_seq(q) != before:
        f.low_moved = True
    if not f.incomplete:
        free_passed(q, f)


cdef inline void trim(pubsub *q, freed *f) noexcept nogil:
    """Free the messages that no subscriber expects. The caller drops the references in f, and calls again while f is
    incomplete."""
    cdef uint32_t busy
    f.n = 0
    f.incomplete = f.low_moved = False
    if GIL_LOCKED:
        trim_once(q, f)
        return
    # pairs with: itself, ps_cas_u32 below and in locked_take_sole: the thread that trims sees TRIM_AGAIN
    if ps_xchg_u32(&q.trimming, TRIM_AGAIN) != <uint32_t>TRIM_IDLE:
        return
    while True:
        ps_xchg_u32(&q.trimming, TRIM_BUSY)     # pairs with: as above
        trim_once(q, f)
        mt_point()
        busy = TRIM_BUSY
        # pairs with: ps_xchg_u32 above; ps_cas_u32 in locked_take_sole
        if ps_cas_u32(&q.trimming, &busy, TRIM_IDLE):
            return


cdef inline bint locked_take_sole(pubsub *q, subscriber *s, uintptr_t *item, bint *trim_next) noexcept nogil:
    """Take by the only subscriber, and trim that message too. The taker gets the list's reference, unless a thread
    joins. That saves two changes of the reference count of another thread's object. False: nothing was taken.
    *trim_next: another thread has asked to trim meanwhile, and the caller trims.

    After set_low_seq() it need not check again as advance() does: s stays at the new low_seq while its lock is held,
    and by I4 the thread that moves s next trims."""
    cdef int64_t seq = locked_next_seq(s)
    cdef uint32_t expected = TRIM_IDLE
    cdef bint took = False
    trim_next[0] = False
    if unlikely(s.closed or s.missed):
        return False
    # relaxed because: a guess. Without a GIL seq_to_free() checks the subscribers; with one the count is exact. s.chunk
    # cannot be unlinked (I2). If it is not the oldest chunk, there are chunks for trim() to unlink.
    if mt_load_relaxed_u32(&q.nsubscribers) != 1 or mt_load_relaxed_uptr(&q.oldest) != <uintptr_t>s.chunk:
        return False
    cdef uintptr_t value = slot_state(s.chunk, s.slot)
    if unlikely(value <= <uintptr_t>SLOT_SEAL):
        return False
    # pairs with: ps_cas_u32 below, ps_xchg_u32 below, ps_cas_u32 in trim: each writes TRIM_IDLE
    if not GIL_LOCKED and unlikely(not ps_cas_u32(&q.trimming, &expected, TRIM_BUSY)):
        return False
    if likely(q.freed_seq == seq and low_seq(q) == seq):
        item[0] = value
        s.slot += 1
        locked_move(s, seq + 1)
        mt_point()
        if GIL_LOCKED or likely(seq_to_free(q, seq) > seq):
            set_low_seq(q, seq + 1)
            q.freed_seq = seq + 1
        else:
            keep(value)
        took = True
    expected = TRIM_BUSY
    mt_point()
    # pairs with: ps_xchg_u32 in trim; ps_cas_u32 above
    if not GIL_LOCKED and unlikely(not ps_cas_u32(&q.trimming, &expected, TRIM_IDLE)):
        ps_xchg_u32(&q.trimming, TRIM_IDLE)     # pairs with: as above; the caller trims for the other thread
        trim_next[0] = True
    return took


# ------------------------------------------------------------------------------------------------------- waking getters
cdef inline void locked_count_waiting(pubsub *q, subscriber *s) noexcept nogil:
    """not_empty has changed: update the counts that publishers read."""
    cdef uint32_t now = <uint32_t>s.not_empty.n
    # pairs with: mt_load_seq_cst in wake_waiting_getters. A getter that begins to wait reads the slot after this.
    cdef uint32_t before = ps_xchg_u32(&s.waiting, now)
    if now != before:
        ps_fetch_add_u32(&q.nwaiting, now - before)     # pairs with: mt_load_seq_cst in wake_getters, shut_down


cdef inline void locked_propagate(pubsub *q, subscriber *s, wait_node **to_post) noexcept nogil:
    """If a getter has something to return or to raise, notify the next waiter."""
    if unlikely(s.not_empty.n != 0) and locked_status(s) == MT_OK:
        notify(&s.not_empty, to_post)
        locked_count_waiting(q, s)


cdef inline void locked_wake_all(pubsub *q, subscriber *s, wait_node **to_post) noexcept nogil:
    if s.not_empty.n != 0:
        notify_all(&s.not_empty, to_post)
        locked_count_waiting(q, s)


cdef inline void forward_not_empty(pubsub *q, subscriber *s) noexcept nogil:
    """Notify a getter of this subscriber if there is a message. Called after a publish, or by a notified getter that
    takes none."""
    cdef wait_node *to_post = NULL
    lock_subscriber(s)
    locked_propagate(q, s, &to_post)
    unlock_and_post(s, to_post)


cdef inline int64_t take_missed(pubsub *q, subscriber *s) noexcept nogil:
    """How many messages were dropped since the last call. The caller takes no message, so this notifies another
    getter."""
    cdef wait_node *to_post = NULL
    lock_subscriber(s)
    missed = s.missed
    s.missed = 0
    locked_propagate(q, s, &to_post)
    unlock_and_post(s, to_post)
    return missed


cdef inline void return_missed(pubsub *q, subscriber *s, int64_t missed) noexcept nogil:
    """Undo take_missed(): the caller could not report them. Another getter can."""
    cdef wait_node *to_post = NULL
    lock_subscriber(s)
    s.missed += missed
    locked_propagate(q, s, &to_post)
    unlock_and_post(s, to_post)


cdef inline void wake_waiting_getters(pubsub *q) noexcept nogil:
    cdef subscriber *s = first_record(q)
    while s != NULL:
        # pairs with: ps_xchg_u32 in locked_count_waiting
        if mt_load_seq_cst_u32(&s.waiting) != 0:
            forward_not_empty(q, s)
        s = s.next


cdef inline void wake_getters(pubsub *q) noexcept nogil:
    """A message was published: wake a getter of each subscriber that has waiters."""
    mt_point()
    # pairs with: ps_fetch_add_u32 in locked_count_waiting. The slot was written before this (claim, link).
    if unlikely(mt_load_seq_cst_u32(&q.nwaiting) != 0):
        wake_waiting_getters(q)


cdef inline int available(subscriber *s, int64_t *n) noexcept nogil:
    """MT_OK, and how many messages there are, at most *n. Else the status of locked_next()."""
    cdef uintptr_t value
    lock_subscriber(s)
    r = locked_next(s, &value)
    if likely(r == MT_OK):
        n[0] = locked_available(s, n[0])
    unlock_subscriber(s)
    return r


cdef inline int take_many(
    pubsub *q, subscriber *s, uintptr_t *items, int64_t n, int64_t *got, bint *trim_next
) noexcept nogil:
    """One try to take up to n messages, with the status of locked_next(). *trim_next: the caller trims."""
    cdef wait_node *to_post = NULL
    cdef uintptr_t first
    lock_subscriber(s)
    seq = locked_next_seq(s)
    r = locked_next(s, &first)
    if likely(r == MT_OK):
        got[0] = locked_take_many(s, items, n)
        locked_propagate(q, s, &to_post)
    unlock_and_post(s, to_post)
    trim_next[0] = r == MT_OK and must_trim(q, s, seq)
    return r


cdef inline int take(pubsub *q, subscriber *s, uintptr_t *item, bint *trim_next) noexcept nogil:
    """One try, with the status of locked_next(). *trim_next: the caller trims, whatever the status."""
    cdef wait_node *to_post = NULL
    lock_subscriber(s)
    seq = locked_next_seq(s)
    sole = locked_take_sole(q, s, item, trim_next)
    r = MT_OK if sole else locked_take(s, item)
    if likely(r == MT_OK):
        locked_propagate(q, s, &to_post)
    unlock_and_post(s, to_post)
    if sole:
        wake_publisher(q)
    elif r == MT_OK and must_trim(q, s, seq):
        trim_next[0] = True
    return r


# ---------------------------------------------------------------------------------------------------- waking publishers
cdef inline bint has_free_slot(pubsub *q) noexcept nogil:
    return free_slots(q, end_seq(q)) > 0


cdef inline void capacity_locked_count_waiting(pubsub *q) noexcept nogil:
    """not_full has changed: update the count that trimmers read."""
    # pairs with: mt_load_seq_cst in forward_not_full, wake_publisher. The waiter polls has_free_slot() after this.
    ps_xchg_u32(&q.not_full_waiting, <uint32_t>q.not_full.n)


cdef inline void notify_publishers(pubsub *q, bint every_one) noexcept nogil:
    cdef wait_node *to_post = NULL
    lock_capacity(q)
    if every_one:
        notify_all(&q.not_full, &to_post)
    else:
        notify(&q.not_full, &to_post)
    capacity_locked_count_waiting(q)
    unlock_capacity(q)
    if to_post != NULL:
        post(to_post)


cdef inline void wake_publisher(pubsub *q) noexcept nogil:
    """low_seq may have advanced: wake one publisher, which wakes the next."""
    mt_point()
    # pairs with: ps_xchg_u32 in capacity_locked_count_waiting. low_seq was written before this (set_low_seq).
    if unlikely(mt_load_seq_cst_u32(&q.not_full_waiting) != 0):
        notify_publishers(q, False)


cdef inline void forward_not_full(pubsub *q) noexcept nogil:
    """Wake the next publisher if a slot is free: the woken one did not use its slot, or more than one is free."""
    # pairs with: ps_xchg_u32 in capacity_locked_count_waiting
    if unlikely(mt_load_seq_cst_u32(&q.not_full_waiting) != 0) and has_free_slot(q):
        notify_publishers(q, False)


# -------------------------------------------------------------------------------------------------------------- waiting
# The wait points (_waiting.pxd) of a get, and of a publish at capacity. Their functions `changed` update the counts of
# waiters that other threads read.
cdef inline void message_point(wait_point *p, subscriber *s) noexcept nogil:
    """A getter waits until there is a message, or none will come."""
    make_point(p, &s.not_empty, &s.lock, GIL_LOCKED, True, locked_poll_message, s)
    p.changed = locked_waiters_changed
    p.forward = locked_forward_message
    p.spin_first = SPIN_FIRST
    p.spin_limit = SPIN_LIMIT


cdef inline int locked_poll_message(wait_point *p, bint parking) noexcept nogil:
    cdef int r = locked_status(<subscriber *>p.of)
    return WAIT if r == MT_EMPTY else r


cdef inline void locked_waiters_changed(wait_point *p) noexcept nogil:
    cdef subscriber *s = <subscriber *>p.of
    locked_count_waiting(s.q, s)


cdef inline void locked_forward_message(wait_point *p, wait_node **to_post) noexcept nogil:
    cdef subscriber *s = <subscriber *>p.of
    locked_propagate(s.q, s, to_post)


cdef inline void free_slot_point(wait_point *p, pubsub *q) noexcept nogil:
    """A publisher waits until a slot is free, or no more messages are accepted."""
    make_point(p, &q.not_full, &q.capacity_lock, GIL_LOCKED, True, capacity_locked_poll_free_slot, q)
    p.changed = capacity_locked_waiters_changed
    p.forward = capacity_locked_forward_free_slot


cdef inline int capacity_locked_poll_free_slot(wait_point *p, bint parking) noexcept nogil:
    cdef pubsub *q = <pubsub *>p.of
    if is_shut(q):
        return MT_SHUTDOWN
    return MT_OK if has_free_slot(q) else WAIT


cdef inline void capacity_locked_waiters_changed(wait_point *p) noexcept nogil:
    capacity_locked_count_waiting(<pubsub *>p.of)


cdef inline void capacity_locked_forward_free_slot(wait_point *p, wait_node **to_post) noexcept nogil:
    cdef pubsub *q = <pubsub *>p.of
    if q.not_full.n != 0 and has_free_slot(q):
        notify(&q.not_full, to_post)
        capacity_locked_count_waiting(q)


# ----------------------------------------------------------------------------------------------------- subscribe, leave
cdef inline subscriber *new_record(pubsub *q) noexcept nogil:
    """A record that was not in use, or a new one; it is in use now. NULL: no memory."""
    # pairs with: ps_cas_uptr below
    cdef uintptr_t first = mt_load_acquire_uptr(&q.subscriber_records)
    cdef subscriber *s = <subscriber *>first
    cdef uint32_t unused
    while s != NULL:
        unused = 0
        # relaxed because: a guess that avoids a read-modify-write on a record in use. The swap pairs with:
        # mt_store_release in free_record
        if not mt_load_relaxed_u32(&s.in_use) and ps_cas_u32(&s.in_use, &unused, 1):
            return s
        s = s.next
    s = <subscriber *>mt_alloc_aligned(sizeof(subscriber))
    if s == NULL:
        return NULL
    s.q = q
    # relaxed because: not linked yet
    mt_store_relaxed_u32(&s.in_use, 1)
    mt_store_relaxed_i64(&s.next_seq, NO_SUBSCRIBER)    # relaxed because: not linked yet
    s.closed = True
    while True:
        s.next = <subscriber *>first
        # pairs with: mt_load_acquire above and in first_record. A trimmer that does not see s sees `joins` change.
        if ps_cas_uptr(&q.subscriber_records, &first, <uintptr_t>s):
            return s


cdef inline void free_record(subscriber *s) noexcept nogil:
    """Let new_record() use a closed record again."""
    # pairs with: ps_cas_u32 in new_record
    mt_store_release_u32(&s.in_use, 0)


cdef inline int64_t slowest_now(pubsub *q) noexcept nogil:
    """The smallest next_seq at one instant, or NO_SUBSCRIBER. The caller holds join_lock, so no other thread joins and
    each next_seq only grows. If the smallest one is unchanged after all were read, it was the smallest of all at that
    instant."""
    cdef subscriber *who
    while True:
        seq = slowest(q, &who)
        mt_point()
        if who == NULL or next_seq(who) == seq:
            return seq


cdef inline int locked_choose(pubsub *q, subscriber *s, int64_t start, int64_t *seq) noexcept nogil:
    """Choose where the joiner begins, after JOINING is visible. MT_OK, or MT_BADARG: not retained."""
    cdef int64_t oldest = NO_SUBSCRIBER if start == START_NEXT else slowest_now(q), end
    cdef uint32_t i
    cdef message_chunk *c = newest_chunk(q, &i)
    end = c.base + i
    oldest = min(oldest, end)
    seq[0] = end if start == START_NEXT else oldest if start == START_OLDEST else start
    if not oldest <= seq[0] <= end:
        return MT_BADARG
    if seq[0] < c.base:
        # pairs with: mt_store_release in unlink_chunk
        c = <message_chunk *>mt_load_acquire_uptr(&q.oldest)
    locked_place(s, c, seq[0])
    return MT_OK


cdef inline bint locked_appear(subscriber *s, int64_t *seen, int64_t seq) noexcept nogil:
    """Set next_seq to where the joiner begins. False: a publisher has changed JOINING, so choose again."""
    mt_point()
    # pairs with: mt_load_seq_cst in next_seq, ps_cas_i64 in make_joiners_choose_again
    if ps_cas_i64(&s.next_seq, seen, seq):
        return True
    seen[0] = locked_next_seq(s)
    return False


cdef inline int locked_join(pubsub *q, subscriber *s, int64_t start) noexcept nogil:
    """Subscribe from `start`, a sequence number or START_*. MT_OK or MT_BADARG. The caller holds join_lock too. It
    trims afterwards in both cases, because trimmers that saw JOINING did not advance low_seq.

    Linearization point: the last locked_choose(). Between it and locked_appear() no observer acts as if there were no
    joiner: a trimmer does not advance low_seq, and a publisher that counts free slots makes locked_appear() fail."""
    cdef mt_pin *own = pin(q)
    cdef int64_t seq = 0, seen = JOINING
    s.missed = 0
    locked_move(s, JOINING)
    mt_point()
    ps_fetch_add_i64(&q.joins, 1)       # pairs with: mt_load_seq_cst in joins
    while True:
        mt_point()
        r = locked_choose(q, s, start, &seq)
        if r != MT_OK or locked_appear(s, &seen, seq):
            break
    if r == MT_OK:
        ps_fetch_add_u32(&q.nsubscribers, 1)    # pairs with: mt_load_seq_cst in no_subscriber
    else:
        locked_move(s, NO_SUBSCRIBER)
    s.closed = r != MT_OK
    unpin(q, own)
    return r


cdef inline int join(pubsub *q, subscriber *s, int64_t start) noexcept nogil:
    """locked_join() under its locks. The caller trims in both cases."""
    enter(&q.join_lock, GIL_LOCKED, True)
    lock_subscriber(s)
    r = locked_join(q, s, start)
    unlock_subscriber(s)
    leave(&q.join_lock, GIL_LOCKED)
    return r


cdef inline bint locked_leave(pubsub *q, subscriber *s) noexcept nogil:
    """Leave. False: it had left before. True: the caller trims."""
    if s.closed:
        return False
    s.closed = True
    s.closed_at = locked_next_seq(s)
    # pairs with: mt_load_seq_cst in no_subscriber. The caller's trim looks for the newest message after this.
    ps_fetch_add_u32(&q.nsubscribers, <uint32_t>-1)
    locked_move(s, NO_SUBSCRIBER)
    return True


cdef inline bint close_subscriber(pubsub *q, subscriber *s) noexcept nogil:
    """Leave, and wake the subscriber's waiters. True: it had not left before, and the caller trims."""
    cdef wait_node *to_post = NULL
    lock_subscriber(s)
    left = locked_leave(q, s)
    locked_wake_all(q, s, &to_post)
    unlock_and_post(s, to_post)
    return left


# ------------------------------------------------------------------------------------------------ drop, shut down, fork
cdef inline void skip_to(pubsub *q, int64_t to, bint dropped) noexcept nogil:
    """Advance the subscribers that are before `to`. It waits for a joiner, which holds its lock until it has joined.
    dropped: count what they miss. The caller trims."""
    cdef subscriber *s = first_record(q)
    cdef int64_t seq
    while s != NULL:
        if next_seq(s) < to:
            lock_subscriber(s)
            seq = locked_next_seq(s)
            if not s.closed and seq < to:
                if dropped:
                    s.missed += to - seq
                    mt_fetch_add_relaxed_i64(&q.dropped, to - seq)  # relaxed because: statistics
                locked_skip(s, to)
            unlock_subscriber(s)
        s = s.next


cdef inline void capacity_locked_make_free_slots(pubsub *q, int64_t n) noexcept nogil:
    """Make free slots for n messages, or as many as maxsize allows, by dropping the oldest. A publisher or a joiner may
    be faster: then call it again. maxsize is read once, so that changing it drops nothing. The caller trims."""
    # relaxed because: a new maxsize holds for calls that begin later
    cdef int64_t maxsize = mt_load_relaxed_i64(&q.maxsize)
    if maxsize > 0:
        skip_to(q, end_seq(q) + min(n, maxsize) - maxsize, True)


cdef inline void skip_all(pubsub *q) noexcept nogil:
    """Advance every subscriber to the end. Nobody joins meanwhile: a new subscriber could begin at a message that one
    which is not advanced yet still expects, and keep it. The caller trims."""
    enter(&q.join_lock, GIL_LOCKED, True)
    skip_to(q, end_seq(q), False)
    leave(&q.join_lock, GIL_LOCKED)


cdef inline void wake_all_getters(pubsub *q) noexcept nogil:
    cdef subscriber *s = first_record(q)
    cdef wait_node *to_post
    while s != NULL:
        to_post = NULL
        lock_subscriber(s)
        locked_wake_all(q, s, &to_post)
        unlock_and_post(s, to_post)
        s = s.next


cdef inline void set_maxsize(pubsub *q, int64_t maxsize) noexcept nogil:
    """Set maxsize, and wake all publishers."""
    # relaxed because: waiters read it under the lock that is taken next
    mt_store_relaxed_i64(&q.maxsize, maxsize)
    notify_publishers(q, True)


cdef inline void shut_down(pubsub *q, bint immediate) noexcept nogil:
    """Accept no more messages. immediate: drop all that are retained; the caller trims."""
    lock_capacity(q)            # no publisher is between dropping messages and linking its own
    mark_end(q)
    unlock_capacity(q)
    if immediate:
        skip_all(q)
    mt_point()
    # pairs with: ps_fetch_add_u32 in locked_count_waiting. SLOT_SHUT was written before this, so a waiting getter that
    # has not seen it is counted.
    if mt_load_seq_cst_u32(&q.nwaiting) != 0:
        wake_all_getters(q)
    notify_publishers(q, True)


cdef inline void after_fork(pubsub *q, unsigned long me) noexcept nogil:
    """In the child of a fork: reset the locks, keep only the waiting tasks of the forking thread (A6 of _waiting.pxd),
    and restore I4: a thread that is gone may have moved the smallest next_seq and not trimmed. Advancing low_seq to
    the smallest next_seq is enough: who moves that one trims. Nothing is freed here, because dropping a message may run
    a finalizer, and a structure that it uses may not be reset yet."""
    cdef subscriber *s = first_record(q)
    mt_lock_reset(&q.join_lock)
    mt_lock_reset(&q.capacity_lock)
    keep_tasks(&q.not_full, me)
    capacity_locked_count_waiting(q)
    while s != NULL:
        mt_lock_reset(&s.lock)
        keep_tasks(&s.not_empty, me)
        locked_count_waiting(q, s)
        s = s.next
    mt_epoch_after_fork(&q.epoch, 1)        # 1: keep retired chunks: all users were attached, so their lists are whole
    advance(q)
