# The MultiQueue: many sub-queues that are put to independently, and are got from as one. Private.
#
#   putters --put lock of A--> sub-queue A  [chunk]->[chunk] \
#   putters --put lock of B--> sub-queue B  [chunk]           >-- ready rings --take lock--> getters
#   putters --put lock of C--> sub-queue C  (empty)          /
#
# Source: LinkedBlockingMultiQueue (M. Barrios), after Doug Lea's two-lock LinkedBlockingQueue: one put lock per
# sub-queue, one take lock for all. Different here: nodes hold several items (_chunks.pxd). Ready rings replace the walk
# over all sub-queues (_ready.pxd). No count is written by both sides: a putter publishes `tail_seq`, a getter publishes
# `head_seq`, and each caches the other's number and reads it again only when its copy runs out. A put takes the take
# lock only if its sub-queue is `unlisted`, where the original takes it whenever the whole queue is empty.
#
# This file is the whole algorithm, on C structs and nogil: items, changes of sub-queues, shutdown, fork. How calls
# wait: _waiting.pxd. Its faces are _multiqueue.pyx, _nogil.pyx (without Python) and _wp.pxd (lanes); the native drivers
# compile it without an interpreter. Progress: blocking.
#
# `unlisted` is set while a sub-queue is empty and not in its ring. A put that finds it set appends and lists under both
# locks, so no getter misses the item. While it is clear, the sub-queue is in its ring, or is kept out of it (disabled,
# detached, stopped), and a put needs the put lock only. One empty sub-queue may stay in its ring: the only member of
# the only ready level. So a queue that is emptied by every get does not pay for listing and unlisting.
#
# GIL-locked queues (`gil_locked` = 1): a queue of Python objects on a build with the GIL. The GIL is the lock: every
# operation is attached and runs no Python code inside, so both locks are not used.
#
# Linearization points: a put, when `tail_seq` is published; a get, when `head_seq` is published, under the take lock;
# an empty get, when it has found, under the take lock, that no sub-queue is listed.
#
# `attached`: the caller is attached to the interpreter, and detaches if it has to wait for a lock. Lock order: take,
# then put. No Python code runs under either. Names: "head_" functions are called with the take lock held, "tail_" ones
# with the put lock. `to_post` collects waiters to post after unlocking.
from cpython.ref cimport PyObject
from libc.stdint cimport INT64_MAX, INT64_MIN, int64_t, uint16_t, uint32_t, uint64_t, uint8_t, uintptr_t
from libc.string cimport memcpy

from manytail._c cimport *
from manytail._chunks cimport *
from manytail._lock cimport enter, leave
from manytail._ready cimport *
from manytail._lifecycle cimport multiqueues
from manytail._waiting cimport *

# The caller's function for items that clear, remove and destroy take out.
ctypedef void (*item_drop)(uintptr_t item, void *arg) noexcept nogil

# -------------------------------------------------------------------------------------------------------------- structs
cdef enum:
    # Why a sub-queue accepts no more items: bits of `closed_flags`.
    MT_CLOSED_DETACHED = 1
    MT_CLOSED_SHUTDOWN = 2
    MT_CLOSED_STOPPED = 4           # it gives out none, either

cdef enum:
    # How a get chooses among the ready sub-queues of one priority: `selection`.
    MT_ROUND_ROBIN = 0
    MT_WEIGHTED = 1
    MT_OLDEST = 2

cdef enum:
    CACHE_LINE = 64

ctypedef struct queue

ctypedef struct subqueue:
    # -- putters' line: written under the put lock
    mt_lock put_lock
    chunk *tail                     # NULL until the first item, and after clear
    uint32_t tail_idx               # next free slot of tail
    uint32_t closed_flags           # MT_CLOSED_*: written under both locks, read under the put lock
    mt_atomic_i64 tail_seq          # position after the newest item; published (release) after its slot is written
    int64_t head_seq_cached         # putters' copy of `head_seq`
    mt_atomic_i64 maxsize           # capacity; <= 0: none; written under both locks
    queue *mq                       # constant; holds a reference
    # 1: it is empty, and the next put lists it. 0: it is in its ring, or kept out of it whatever is put. Written under
    # both locks, so constant under either; also read without, as a hint
    mt_atomic_u32 unlisted
    uint8_t gil_locked              # constant: mq.gil_locked, whose line getters write
    uint8_t timestamped             # constant: selection "oldest", items get a put time
    uint8_t sized                   # constant: items have sizes, and maxsize bounds their sum
    uint8_t pad0[1]
    # -- getters' line: written under the take lock
    # NULL until the first item: written by the putter that makes the first chunk, before tail_seq
    chunk *head
    uint16_t head_idx               # oldest slot of head; if it is head.cap, the next chunk's first slot
    uint8_t has_tombstones          # ntombstones > 0
    uint8_t bounded                 # maxsize > 0, or sized: gets wake putters; written under both locks
    uint32_t quantum_left           # items left of its current quantum; 0: the next one has not begun
    # Counts the items that left, less those put at the front: tail_seq - head_seq items are inside.
    mt_atomic_i64 head_seq
    int64_t tail_seq_cached         # getters' copy of tail_seq
    ready_node ready                # 32 bytes
    # -- seldom used
    int64_t ntombstones             # discarded slots between head and tail; take lock
    int64_t nfront                  # items ever put at the front; take lock
    uint32_t weight                 # >= 1; take lock
    uint32_t enabled                # take lock
    uint32_t attached               # take lock
    uint32_t size_class             # of the newest chunk, without SIZED_CLASS; put lock
    # Only if sized: the sizes of all items that were put and that left, modulo 2**64. The difference is inside.
    uint64_t size_put               # put lock
    mt_atomic_i64 size_removed      # written under the take lock
    int64_t priority                # take lock; kept for a detached handle
    int64_t held_by                 # number of the last batch that took an item from it (_mq_held.pxd); take lock
    wait_list not_full              # put lock
    mt_atomic_u32 not_full_waiting  # not_full.n, for getters, which read it without the put lock
    subqueue *all_next              # in mq's list of attached sub-queues, by time of their addition, or of removed ones
    subqueue *all_prev
    void *owner                     # the Python SubQueue (borrowed: it outlives this), or NULL
    void *key                       # its key (borrowed from the owner), or NULL

ctypedef struct queue:
    # -- getters' line: written under the take lock
    mt_lock take_lock
    ready_index ready
    int64_t taken_total             # items handed to getters
    uint32_t gil_locked             # constant: the GIL is the lock
    uint32_t selection              # constant once `begun`
    uint32_t attached               # whether the holder of the take lock is attached, for waiting for a put lock
    # -- seldom written
    wait_list not_empty             # take lock
    wait_list joiners               # take lock
    subqueue *all_first
    subqueue *all_last
    int64_t nsubs                   # attached
    int64_t nenabled                # attached and enabled
    int64_t removed_put             # items ever put into sub-queues that are detached
    int64_t removed_total           # items that clear, discard, remove and shutdown took out: they count as done
    int64_t done                    # task_done calls
    int64_t batches                 # batches ever begun (_mq_held.pxd); take lock
    int64_t bulks                   # bulk operations of detached threads; written attached, under bulk_lock
    uint32_t begun                  # 1: options are set or a sub-queue was added, so they cannot be set; take lock
    uint32_t shut                   # 1: no more puts; take lock
    mt_atomic_u32 refs              # one per handle
    subqueue *removed               # detached sub-queues that are not freed, linked by all_next; take lock
    queue *reg_next                 # every queue of the process, for fork; under the registry's lock
    queue *reg_prev
    # -- written by putters of any sub-queue
    char pad1[CACHE_LINE]
    mt_atomic_i64 clock             # put times, selection "oldest" only
    mt_atomic_uptr spare            # an unused chunk of SPARE_CLASS, or 0


cdef inline subqueue *mt_subqueue_of(ready_node *node) noexcept nogil:
    """The sub-queue whose field `ready` is this node."""
    return <subqueue *>(<char *>node - (<char *>&(<subqueue *>node).ready - <char *>node))


# ---------------------------------------------------------------------------------------------------------------- locks
cdef inline void lock_take(queue *q, bint attached) noexcept nogil:
    enter(&q.take_lock, q.gil_locked, attached)
    if not q.gil_locked:
        q.attached = attached


cdef inline void unlock_take(queue *q) noexcept nogil:
    leave(&q.take_lock, q.gil_locked)


cdef inline void unlock_take_and_post(queue *q, wait_node *to_post) noexcept nogil:
    """Unlock, then wake whoever was notified under the lock."""
    unlock_take(q)
    if to_post != NULL:
        post(to_post)


cdef inline void lock_put(queue *q, subqueue *s, bint attached) noexcept nogil:
    enter(&s.put_lock, s.gil_locked, attached)


cdef inline void unlock_put(queue *q, subqueue *s) noexcept nogil:
    leave(&s.put_lock, s.gil_locked)


cdef inline bint is_unlisted(subqueue *s) noexcept nogil:
    # relaxed because: its writer holds both locks and the reader one; or it is a guess that is checked under one
    return mt_load_relaxed_u32(&s.unlisted) != 0


cdef inline void set_unlisted(subqueue *s, bint unlisted) noexcept nogil:
    # relaxed because: written under both locks
    mt_store_relaxed_u32(&s.unlisted, unlisted)


# --------------------------------------------------------------------------------------------------------------- chunks
cdef inline void drop_chunk(queue *q, chunk *c) noexcept nogil:
    """Free a chunk without pins, or keep it as the spare."""
    cdef uintptr_t old = 0
    if c.size_class == SPARE_CLASS:
        # pairs with: mt_xchg_acq_rel in new_chunk
        old = mt_xchg_acq_rel_uptr(&q.spare, <uintptr_t>c)
        c = <chunk *>old
    if c != NULL:
        chunk_free(c)


cdef inline chunk *new_chunk(queue *q, uint32_t size_class, int64_t base) noexcept nogil:
    cdef chunk *c = NULL
    if size_class == SPARE_CLASS:      # not with SIZED_CLASS added
        # pairs with: mt_xchg_acq_rel in drop_chunk
        c = <chunk *>mt_xchg_acq_rel_uptr(&q.spare, 0)
    if c == NULL:
        return chunk_new(size_class, q.selection == MT_OLDEST, base)
    chunk_recycle(c, base)
    return c


cdef inline uint32_t next_size_class(subqueue *s, int64_t tail_seq, int64_t n) noexcept nogil:
    """Chunks grow with the number of items inside: a short sub-queue stays small, a long one needs few allocations."""
    cdef int64_t inside = tail_seq - s.head_seq_cached + n
    if inside > 512:                # perhaps only because the copy is old: puts without a maxsize do not read head_seq
        # pairs with: mt_store_release in head_popped; mt_xchg_seq_cst in head_make_room
        s.head_seq_cached = mt_load_seq_cst_i64(&s.head_seq)
        inside = tail_seq - s.head_seq_cached + n
    if inside > 4096:
        return 4
    if inside > 512:
        return 3
    if s.tail == NULL:
        return 0 if n <= 11 else 1 if n <= 27 else 2
    return s.size_class + 1 if s.size_class < SPARE_CLASS else SPARE_CLASS


cdef inline bint tail_grow(queue *q, subqueue *s, int64_t tail_seq, int64_t n) noexcept nogil:
    """Append an empty chunk; n: items that are about to be put. 0: no memory, nothing changed."""
    cdef uint32_t size_class = next_size_class(s, tail_seq, n)
    cdef chunk *c = new_chunk(q, size_class + s.sized * SIZED_CLASS, tail_seq)
    if c == NULL:
        return False
    if s.tail == NULL:
        s.head = c                  # getters read head only after tail_seq, which is published later
        s.head_idx = 0
    else:
        chunk_link(s.tail, c)
    s.tail = c
    s.tail_idx = 0
    tail_claim_lines(s, 8)
    tail_claim_lines(s, AHEAD)
    s.size_class = size_class
    return True


# ------------------------------------------------------------------------------------------------------------------ put
cdef inline int64_t tail_free_slots(subqueue *s, int64_t tail_seq) noexcept nogil:
    """How many more items fit. Reads the getters' cache line only if the copy of head_seq says that none does."""
    # relaxed because: maxsize is written under the put lock
    cdef int64_t maxsize = mt_load_relaxed_i64(&s.maxsize)
    if maxsize <= 0:
        return INT64_MAX
    if tail_seq - s.head_seq_cached >= maxsize:
        # pairs with: mt_store_release in head_popped; mt_xchg_seq_cst in head_make_room
        s.head_seq_cached = mt_load_seq_cst_i64(&s.head_seq)
    return maxsize - (tail_seq - s.head_seq_cached)


cdef enum:
    AHEAD = 16      # slots: two cache lines


cdef inline void tail_claim_lines(subqueue *s, uint32_t slot) noexcept nogil:
    """Prefetch a cache line of the tail chunk for writing, once per line of eight slots: a getter on another core may
    have read that line last, and fetching it takes longer than eight puts."""
    if not s.gil_locked and slot % 8 == 0 and slot < s.tail.cap:
        mt_prefetch_write(chunk_items(s.tail) + slot)


cdef inline int tail_put(queue *q, subqueue *s, uintptr_t item) noexcept nogil:
    # relaxed because: tail_seq is written under the put lock
    cdef int64_t tail_seq = mt_load_relaxed_i64(&s.tail_seq)
    cdef chunk *c
    if unlikely(s.closed_flags != 0):
        return MT_SHUTDOWN
    if unlikely(tail_free_slots(s, tail_seq) <= 0):
        return MT_FULL
    c = s.tail
    if unlikely(c == NULL or s.tail_idx == c.cap):
        if not tail_grow(q, s, tail_seq, 1):
            return MT_NOMEM
        c = s.tail
    chunk_items(c)[s.tail_idx] = item
    tail_claim_lines(s, s.tail_idx + AHEAD)
    if unlikely(s.timestamped):
        # relaxed because: only the order of the numbers counts
        chunk_timestamps(c)[s.tail_idx] = mt_fetch_add_relaxed_i64(&q.clock, 1)
    s.tail_idx += 1
    mt_point()
    # pairs with: mt_load_acquire in head_count
    mt_store_release_i64(&s.tail_seq, tail_seq + 1)
    return MT_OK


cdef inline int tail_put_run(queue *q, subqueue *s, const uintptr_t *items, const int64_t *sizes, int64_t n,
                             bint count_refs, int64_t *done) noexcept nogil:
    """Append up to n items, which getters see at once. MT_OK: all of them. Else why not; *done were appended. sizes:
    NULL unless sized. count_refs: add a reference to each."""
    cdef int64_t tail_seq = mt_load_relaxed_i64(&s.tail_seq)   # relaxed because: tail_seq is written under the put lock
    cdef int64_t room, put = 0, k, i
    cdef int r = MT_OK
    cdef chunk *c
    done[0] = 0
    if s.closed_flags != 0:
        return MT_SHUTDOWN
    if sizes != NULL:
        room = tail_fitting(s, sizes, n, &r)
    else:
        room = tail_free_slots(s, tail_seq)
        r = MT_FULL if room < n else MT_OK
    if room < n:
        n = room if room > 0 else 0
    while put < n:
        c = s.tail
        if c == NULL or s.tail_idx == c.cap:
            if not tail_grow(q, s, tail_seq + put, n - put):
                r = MT_NOMEM
                break
            c = s.tail
        k = min(n - put, <int64_t>(c.cap - s.tail_idx))
        memcpy(chunk_items(c) + s.tail_idx, items + put, k * sizeof(uintptr_t))
        if s.timestamped:
            for i in range(k):
                # relaxed because: only the order of the numbers counts
                chunk_timestamps(c)[s.tail_idx + i] = mt_fetch_add_relaxed_i64(&q.clock, 1)
        if sizes != NULL:
            tail_note_sizes(s, sizes + put, k)
        s.tail_idx += <uint32_t>k
        put += k
    if count_refs:
        for i in range(put):
            keep(items[i])
    # pairs with: mt_load_acquire in head_count
    mt_store_release_i64(&s.tail_seq, tail_seq + put)
    done[0] = put
    return r


cdef inline int head_put_front(queue *q, subqueue *s, uintptr_t item, const int64_t *size) noexcept nogil:
    """Put an item before the head. Both locks are held. size: NULL unless sized."""
    cdef int64_t done
    cdef chunk *c
    cdef int r = MT_OK
    if s.closed_flags != 0:
        return MT_SHUTDOWN
    if size != NULL:
        tail_fitting(s, size, 1, &r)
    elif tail_free_slots(s, mt_load_relaxed_i64(&s.tail_seq)) <= 0:     # relaxed because: written under the put lock
        r = MT_FULL
    if r != MT_OK:
        return r
    if unlikely(s.head == NULL):
        return tail_put_run(q, s, &item, size, 1, False, &done)
    if s.head_idx == 0:
        c = new_chunk(q, (0 if s.size_class == 0 else 1) + s.sized * SIZED_CLASS, 0)
        if c == NULL:
            return MT_NOMEM
        head_link_chunk(s, c)
    # relaxed because: only the order of the numbers counts
    head_fill_slot(q, s, item, mt_fetch_add_relaxed_i64(&q.clock, 1) if s.timestamped else 0,
                   size[0] if size != NULL else 0)
    s.nfront += 1
    return MT_OK


cdef inline void head_link_chunk(subqueue *s, chunk *c) noexcept nogil:
    """Make an empty chunk the first one."""
    c.base = s.head.base - c.cap
    chunk_link(c, s.head)
    s.head = c
    s.head_idx = <uint16_t>c.cap


cdef inline void head_fill_slot(queue *q, subqueue *s, uintptr_t item, int64_t timestamp, int64_t size) noexcept nogil:
    """Put into the slot before the head; head_idx > 0. Both locks are held."""
    cdef int64_t out = mt_load_relaxed_i64(&s.head_seq)     # relaxed because: written under the take lock
    cdef chunk *c = s.head
    s.head_idx -= 1
    clear_tombstone(c, s.head_idx)
    chunk_items(c)[s.head_idx] = item
    if s.timestamped:
        chunk_timestamps(c)[s.head_idx] = timestamp
    if s.sized:
        chunk_sizes(c, s.timestamped)[s.head_idx] = size
        s.size_put += <uint64_t>size
    # pairs with: mt_load_seq_cst in tail_free_slots
    mt_store_release_i64(&s.head_seq, out - 1)
    s.head_seq_cached = out - 1
    if s.ready.listed:
        head_rekey(q, s)


# ---------------------------------------------------------------------------------------------------------------- sizes
# A sized sub-queue keeps a size for each item, and maxsize limits their sum. Puts go through put_run_once() and
# put_front_once() with sizes. Sizes of items that leave are subtracted before head_seq is advanced.
cdef inline int64_t tail_size(subqueue *s) noexcept nogil:
    """The sum of the sizes inside, at most 2**63 - 1. (Giving back, _mq_held.pxd, is not limited by maxsize.)"""
    # pairs with: mt_xchg_seq_cst in head_subtract_sizes
    cdef uint64_t sum = s.size_put - <uint64_t>mt_load_seq_cst_i64(&s.size_removed)
    return <int64_t>sum if sum <= <uint64_t>INT64_MAX else INT64_MAX


cdef inline int64_t tail_free_size(subqueue *s) noexcept nogil:
    """How much more fits; negative if maxsize was lowered."""
    # relaxed because: maxsize is written under the put lock
    cdef int64_t maxsize = mt_load_relaxed_i64(&s.maxsize)
    return (maxsize if maxsize > 0 else INT64_MAX) - tail_size(s)


cdef inline int64_t tail_fitting(subqueue *s, const int64_t *sizes, int64_t n, int *why) noexcept nogil:
    """How many of the items, in order, fit. If not all: *why is MT_FULL, or MT_BADARG if the next one never fits."""
    cdef int64_t maxsize = mt_load_relaxed_i64(&s.maxsize)      # relaxed because: as in tail_free_size
    cdef int64_t left = tail_free_size(s), i
    for i in range(n):
        if sizes[i] > left:
            why[0] = MT_BADARG if maxsize <= 0 or sizes[i] > maxsize else MT_FULL
            return i
        left -= sizes[i]
    return n


cdef inline void tail_note_sizes(subqueue *s, const int64_t *sizes, int64_t n) noexcept nogil:
    """Store the sizes of the n items that are about to be appended."""
    cdef int64_t *slots = chunk_sizes(s.tail, s.timestamped) + s.tail_idx
    cdef int64_t i
    for i in range(n):
        slots[i] = sizes[i]
        s.size_put += <uint64_t>sizes[i]


cdef inline void head_subtract_sizes(subqueue *s, chunk *c, uint32_t first, int64_t n) noexcept nogil:
    """The n items from slot `first` of c on leave."""
    cdef int64_t *sizes = chunk_sizes(c, s.timestamped) + first
    cdef uint64_t sum = 0
    cdef int64_t i
    for i in range(n):
        sum += <uint64_t>sizes[i]
    # relaxed because: written under the take lock, which is held
    sum += <uint64_t>mt_load_relaxed_i64(&s.size_removed)
    # pairs with: mt_load_seq_cst in tail_size, after mt_xchg_seq_cst of not_full_waiting in tail_waiters_changed
    mt_xchg_seq_cst_i64(&s.size_removed, <int64_t>sum)


# ---------------------------------------------------------------------------------------------------- ready sub-queues
cdef inline int64_t head_count(subqueue *s) noexcept nogil:
    """The number of items inside. Refreshes the copy of tail_seq."""
    # pairs with: mt_store_release in tail_put, tail_put_run
    s.tail_seq_cached = mt_load_acquire_i64(&s.tail_seq)
    return s.tail_seq_cached - mt_load_relaxed_i64(&s.head_seq)    # relaxed because: written under the take lock


cdef inline bint head_empty(subqueue *s) noexcept nogil:
    """Reads the putters' cache line only if the copy of tail_seq says that it is empty."""
    # relaxed because: written under the take lock
    return s.tail_seq_cached == mt_load_relaxed_i64(&s.head_seq) and head_count(s) == 0


cdef inline void head_skip_tombstones(queue *q, subqueue *s) noexcept nogil:
    """Move head and head_idx to an item. The sub-queue is not empty."""
    cdef chunk *c = s.head
    while True:
        if s.head_idx == c.cap:
            s.head = chunk_next(c)
            s.head_idx = 0
            if chunk_retire(c):
                drop_chunk(q, c)
            c = s.head
        elif s.has_tombstones and is_tombstone(c, s.head_idx):
            s.head_idx += 1
            s.ntombstones -= 1
            s.has_tombstones = s.ntombstones > 0
        else:
            return


cdef inline int64_t head_timestamp(queue *q, subqueue *s) noexcept nogil:
    head_skip_tombstones(q, s)
    return chunk_timestamps(s.head)[s.head_idx]


cdef inline void head_rekey(queue *q, subqueue *s) noexcept nogil:
    """The head has changed: with selection "oldest", move the sub-queue to its new place in the heap."""
    if q.selection == MT_OLDEST and head_count(s) > 0:
        ready_rekey(&s.ready, head_timestamp(q, s))


cdef inline void head_list(queue *q, subqueue *s) noexcept nogil:
    """Join the ring at its end. Replaces an empty sub-queue that was left listed alone (see the top of the file)."""
    cdef ready_level *level = s.ready.level
    cdef int64_t timestamp = head_timestamp(q, s) if q.selection == MT_OLDEST else 0
    cdef subqueue *lone
    if level.nready == 1:
        lone = mt_subqueue_of(ready_front(&q.ready, level))
        if head_count(lone) == 0:
            ready_replace(&q.ready, &lone.ready, &s.ready, timestamp)
            head_left_ring(q, lone)
            return
        head_rekey(q, lone)
    ready_append(&q.ready, &s.ready, timestamp)


cdef inline void head_unlist(queue *q, subqueue *s) noexcept nogil:
    """An empty sub-queue leaves its ring."""
    ready_remove(&q.ready, &s.ready)
    head_left_ring(q, s)


cdef inline void head_left_ring(queue *q, subqueue *s) noexcept nogil:
    """After leaving the ring: set `unlisted`, or join again if an item was put since."""
    s.quantum_left = 0
    mt_point()
    if not head_try_unlist(q, s):
        head_list(q, s)


cdef inline bint head_try_unlist(queue *q, subqueue *s) noexcept nogil:
    """Set `unlisted` if the sub-queue is empty, so that the next put lists it. 0: it is not empty."""
    cdef bint empty
    lock_put(q, s, q.attached)
    empty = head_count(s) == 0
    set_unlisted(s, empty)
    unlock_put(q, s)
    return empty


cdef inline void head_list_if_unlisted(queue *q, subqueue *s, wait_node **to_post) noexcept nogil:
    """After a put under both locks: if the sub-queue was unlisted, list it and notify a getter."""
    if is_unlisted(s):
        set_unlisted(s, False)
        head_list(q, s)
        if unlikely(q.not_empty.n != 0):
            notify(&q.not_empty, to_post)


cdef inline void head_mask(queue *q, subqueue *s) noexcept nogil:
    """Keep a sub-queue out of its ring whether it has items or not. Both locks are held."""
    if s.ready.listed:
        ready_remove(&q.ready, &s.ready)
    s.quantum_left = 0
    set_unlisted(s, False)


# ------------------------------------------------------------------------------------------------------------------ get
cdef inline void head_popped(queue *q, subqueue *s, int64_t n, bint attached, wait_node **to_post) noexcept nogil:
    """After head_pop() or head_pop_run() of n items: publish head_seq, and notify a putter that waits for a free slot.
    (head_count_removed() is for items that leave without a get.)"""
    # relaxed because: written under the take lock, which is held
    cdef int64_t out = mt_load_relaxed_i64(&s.head_seq) + n
    if likely(not s.bounded):
        # pairs with: mt_load_seq_cst in tail_free_slots
        mt_store_release_i64(&s.head_seq, out)
        return
    if unlikely(s.sized):
        # A pop takes items of one chunk, which is s.head.
        head_subtract_sizes(s, s.head, <uint32_t>(s.head_idx - n), n)
    head_make_room(q, s, out, attached, to_post)


cdef inline void head_make_room(queue *q, subqueue *s, int64_t out, bint attached, wait_node **to_post) noexcept nogil:
    if q.gil_locked:
        mt_store_release_i64(&s.head_seq, out)       # pairs with: nothing, the GIL orders it
    else:
        # pairs with: mt_load_seq_cst in tail_free_slots, after mt_xchg_seq_cst of not_full_waiting in
        # tail_waiters_changed: either the putter sees the free slot, or the load below sees the putter
        mt_xchg_seq_cst_i64(&s.head_seq, out)
    mt_point()
    # pairs with: mt_xchg_seq_cst in tail_waiters_changed
    if unlikely(mt_load_seq_cst_u32(&s.not_full_waiting) != 0):
        lock_put(q, s, attached)
        tail_notify(s, to_post)
        unlock_put(q, s)


cdef inline void tail_notify(subqueue *s, wait_node **to_post) noexcept nogil:
    if unlikely(s.sized):
        notify_fitting(&s.not_full, tail_free_size(s), to_post)
    else:
        notify(&s.not_full, to_post)
    # pairs with: mt_load_seq_cst in head_make_room
    mt_xchg_seq_cst_u32(&s.not_full_waiting, <uint32_t>s.not_full.n)


cdef inline uintptr_t head_pop(queue *q, subqueue *s) noexcept nogil:
    """Take the head item of a sub-queue that is not empty. The caller calls head_popped()."""
    cdef uintptr_t item
    if unlikely(s.has_tombstones or s.head_idx == s.head.cap):
        head_skip_tombstones(q, s)
    item = chunk_items(s.head)[s.head_idx]
    s.head_idx += 1
    return item


cdef inline void head_served(queue *q, subqueue *s) noexcept nogil:
    """After a get from s: continue its quantum, rotate its ring, or unlist it if it is empty."""
    cdef ready_level *level = s.ready.level
    if q.selection == MT_ROUND_ROBIN and level.nready == 1 and q.ready.best.n == 1 and q.not_empty.n == 0:
        return                      # nothing to rotate; if it is empty it stays listed, alone
    if unlikely(head_empty(s)):
        s.quantum_left = 0
        # The only listed sub-queue stays listed: see the top of the file.
        if level.nready > 1 or q.ready.best.n > 1 or q.not_empty.n:
            head_unlist(q, s)
    elif unlikely(q.selection == MT_OLDEST):
        ready_rekey(&s.ready, head_timestamp(q, s))
    else:
        if s.quantum_left == 0:
            s.quantum_left = s.weight if q.selection == MT_WEIGHTED else 1
        s.quantum_left -= 1
        if s.quantum_left == 0 and level.front == &s.ready:
            level.front = s.ready.next


cdef inline subqueue *head_next(queue *q, bint keep_lone) noexcept nogil:
    """The sub-queue that the next get takes from, or NULL. Unlists empty ones; keep_lone: but not the only one
    listed."""
    cdef subqueue *s
    while q.ready.top != NULL:
        s = mt_subqueue_of(ready_front(&q.ready, q.ready.top))
        if likely(not head_empty(s)):
            return s
        if keep_lone and q.ready.top.nready == 1 and q.ready.best.n == 1:
            return NULL
        head_unlist(q, s)
    return NULL


cdef inline void head_propagate(queue *q, wait_node **to_post) noexcept nogil:
    """If an item can be got, notify the next getter: of several puts to a sub-queue only the first notified one."""
    if unlikely(q.not_empty.n != 0) and head_next(q, False) != NULL:
        notify(&q.not_empty, to_post)


cdef inline int head_get(queue *q, uintptr_t *item, subqueue **taken_from, bint attached,
                         wait_node **to_post) noexcept nogil:
    cdef subqueue *s = head_next(q, True)
    if unlikely(s == NULL):
        return MT_EMPTY
    item[0] = head_pop(q, s)
    taken_from[0] = s
    q.taken_total += 1
    head_popped_and_served(q, s, 1, attached, to_post)
    head_propagate(q, to_post)
    return MT_OK


cdef inline int64_t head_pop_run(queue *q, subqueue *s, uintptr_t *items, int64_t n) noexcept nogil:
    """Take up to n items of the first chunk of a sub-queue that is not empty. The caller calls head_popped()."""
    cdef int64_t k, have
    head_skip_tombstones(q, s)
    if s.has_tombstones:
        items[0] = head_pop(q, s)
        return 1
    have = s.tail_seq_cached - mt_load_relaxed_i64(&s.head_seq)    # relaxed because: written under the take lock
    k = min(min(n, have), <int64_t>(s.head.cap - s.head_idx))
    memcpy(items, chunk_items(s.head) + s.head_idx, k * sizeof(uintptr_t))
    s.head_idx += <uint16_t>k
    return k


cdef inline int64_t run_length(queue *q, subqueue *s, int64_t n) noexcept nogil:
    """How many items, at most n, consecutive gets would take from s."""
    if q.selection == MT_OLDEST:
        return n if s.ready.level.nready == 1 else 1
    if s.ready.level.nready == 1:
        return n
    if q.selection == MT_WEIGHTED:
        return min(n, <int64_t>(s.quantum_left if s.quantum_left else s.weight))
    return 1


cdef inline void head_served_run(queue *q, subqueue *s, int64_t n) noexcept nogil:
    """Like n calls of head_served(); n <= run_length()."""
    cdef int64_t left, w = s.weight
    if n > 1 and q.selection == MT_WEIGHTED:
        left = (s.quantum_left if s.quantum_left else w) - (n - 1)
        if left <= 0:               # alone in its ring: several quanta were used
            left = (left % w + w) % w
        s.quantum_left = <uint32_t>left
    head_served(q, s)


cdef inline void head_popped_and_served(queue *q, subqueue *s, int64_t n, bint attached,
                                        wait_node **to_post) noexcept nogil:
    """After popping n items: head_popped(), then head_served()."""
    # A sub-queue that ran empty loses the rest of its quantum. Check before head_popped(): after it, a waiting putter
    # may already have put again.
    cdef bint ran_empty = q.selection == MT_WEIGHTED and s.bounded and head_count(s) == n
    head_popped(q, s, n, attached, to_post)
    if unlikely(ran_empty):
        s.quantum_left = 1
        n = 1
    if likely(n == 1):
        head_served(q, s)
    else:
        head_served_run(q, s, n)


cdef inline int64_t head_get_many(queue *q, uintptr_t *items, int64_t n, bint attached,
                                  wait_node **to_post) noexcept nogil:
    """Take what n gets would return, without waiting."""
    cdef int64_t got = 0, k
    cdef subqueue *s
    while got < n:
        s = head_next(q, True)
        if s == NULL:
            break
        k = head_pop_run(q, s, items + got, run_length(q, s, n - got))
        got += k
        q.taken_total += k
        head_popped_and_served(q, s, k, attached, to_post)
    if got:
        head_propagate(q, to_post)
    return got


cdef inline int64_t ring_count(ready_index *r, ready_level *level, int64_t enough) noexcept nogil:
    cdef int64_t n = 0
    cdef ready_node *node = level.front
    cdef uint32_t i
    for i in range(level.nready):
        if r.oldest:
            node = <ready_node *>level.by_time.items[i].member
        n += head_count(mt_subqueue_of(node))
        if n >= enough:
            break
        node = node.next
    return n


cdef inline int64_t head_qsize(queue *q, int64_t enough) noexcept nogil:
    """The number of items that gets can take, but at most `enough`. Counts listed sub-queues only."""
    cdef int64_t n = 0
    cdef uint32_t i
    for i in range(q.ready.best.n):
        n += ring_count(&q.ready, <ready_level *>q.ready.best.items[i].member, enough - n)
        if n >= enough:
            return enough
    return n


cdef inline int64_t qsize_of(queue *q, int64_t enough, bint attached) noexcept nogil:
    cdef int64_t n
    lock_take(q, attached)
    n = head_qsize(q, enough)
    unlock_take(q)
    return n


# -------------------------------------------------------------------------------------------------------------- waiting
# The wait points (_waiting.pxd) of a get, a put and a join.
cdef inline void items_point(wait_point *p, queue *q, bint attached) noexcept nogil:
    """A getter waits until an item can be got, or the queue is shut down."""
    make_point(p, &q.not_empty, &q.take_lock, q.gil_locked, attached, head_poll_items, q)
    p.forward = head_forward_items
    p.spin_first = SPIN_FIRST
    p.spin_limit = SPIN_LIMIT


cdef inline int head_poll_items(wait_point *p, bint parking) noexcept nogil:
    """A getter that parks unlists all empty sub-queues, so that the next put to one of them notifies."""
    cdef queue *q = <queue *>p.of
    q.attached = p.attached
    if head_next(q, not parking) != NULL:
        return MT_OK
    return MT_SHUTDOWN if q.shut else WAIT


cdef inline void head_forward_items(wait_point *p, wait_node **to_post) noexcept nogil:
    (<queue *>p.of).attached = p.attached
    head_propagate(<queue *>p.of, to_post)


cdef inline void forward_items(queue *q, bint attached) noexcept nogil:
    """A call that may have been notified of an item does not take it: notify the next getter."""
    cdef wait_point p
    items_point(&p, q, attached)
    give_up(&p, 1, True)


cdef inline void joined_point(wait_point *p, queue *q, bint attached) noexcept nogil:
    """A join waits until every item ever put is done."""
    make_point(p, &q.joiners, &q.take_lock, q.gil_locked, attached, head_poll_joined, q)


cdef inline int head_poll_joined(wait_point *p, bint parking) noexcept nogil:
    return MT_OK if head_unfinished(<queue *>p.of) == 0 else WAIT


cdef inline void room_point(wait_point *p, subqueue *s, bint attached) noexcept nogil:
    """A putter waits until its sub-queue has a free slot, or accepts no more items."""
    make_point(p, &s.not_full, &s.put_lock, s.gil_locked, attached, tail_poll_free_slots, s)
    p.changed = tail_waiters_changed
    p.forward = tail_forward_free_slots


cdef inline void free_size_point(wait_point *p, subqueue *s, int64_t size, bint attached) noexcept nogil:
    """A putter waits until an item of that size fits into its sized sub-queue."""
    room_point(p, s, attached)
    p.amount = size
    p.poll = tail_poll_free_size


cdef inline int tail_poll_free_size(wait_point *p, bint parking) noexcept nogil:
    cdef subqueue *s = <subqueue *>p.of
    cdef int r = MT_OK
    if s.closed_flags != 0:
        return MT_SHUTDOWN
    tail_fitting(s, &p.amount, 1, &r)
    return WAIT if r == MT_FULL else MT_OK      # MT_BADARG: the next try returns it


cdef inline int tail_poll_free_slots(wait_point *p, bint parking) noexcept nogil:
    cdef subqueue *s = <subqueue *>p.of
    if s.closed_flags != 0:
        return MT_SHUTDOWN
    return MT_OK if tail_free_slots(s, mt_load_relaxed_i64(&s.tail_seq)) > 0 else WAIT     # relaxed because: put lock


cdef inline void tail_waiters_changed(wait_point *p) noexcept nogil:
    cdef subqueue *s = <subqueue *>p.of
    # pairs with: mt_load_seq_cst in head_make_room, after mt_xchg_seq_cst of head_seq
    mt_xchg_seq_cst_u32(&s.not_full_waiting, <uint32_t>s.not_full.n)


cdef inline void tail_forward_free_slots(wait_point *p, wait_node **to_post) noexcept nogil:
    """If there is a free slot, notify the next putter."""
    cdef subqueue *s = <subqueue *>p.of
    # relaxed because: written under the put lock
    if s.not_full.n and (s.sized or tail_free_slots(s, mt_load_relaxed_i64(&s.tail_seq)) > 0):
        tail_notify(s, to_post)


cdef inline void forward_room(subqueue *s, bint attached) noexcept nogil:
    """There may be a free slot that no putter was woken for, or that a woken one does not use: wake the next."""
    cdef wait_point p
    room_point(&p, s, attached)
    give_up(&p, 1, True)


# ------------------------------------------------------------------------------------------------ one try of each put
cdef inline int put_once(queue *q, subqueue *s, uintptr_t item, bint attached) noexcept nogil:
    cdef int r
    cdef bint more_waiting
    if unlikely(is_unlisted(s)):
        return put_unlisted(q, s, item, attached)
    lock_put(q, s, attached)
    if unlikely(is_unlisted(s)):
        unlock_put(q, s)
        return put_unlisted(q, s, item, attached)
    r = tail_put(q, s, item)
    more_waiting = tail_crowded(s)
    unlock_put(q, s)
    if unlikely(more_waiting) and r == MT_OK:
        forward_room(s, attached)       # there may be another free slot than the one that was just used
    return r


cdef inline bint tail_crowded(subqueue *s) noexcept nogil:
    """Whether putters wait for a free slot: a put that succeeds then notifies the next one if there is another slot."""
    # relaxed because: maxsize is written under the put lock. Read first, because its cache line is in use
    return mt_load_relaxed_i64(&s.maxsize) > 0 and s.not_full.n != 0


cdef inline int put_unlisted(queue *q, subqueue *s, uintptr_t item, bint attached) noexcept nogil:
    """Put into a sub-queue that may be unlisted: under both locks."""
    cdef wait_node *to_post = NULL
    cdef bint more_waiting
    cdef int r
    lock_take(q, attached)
    mt_point()
    lock_put(q, s, attached)
    r = tail_put(q, s, item)
    if r == MT_OK:
        head_list_if_unlisted(q, s, &to_post)
    more_waiting = tail_crowded(s)
    unlock_put(q, s)
    unlock_take(q)
    if unlikely(to_post != NULL):
        post(to_post)
    if unlikely(more_waiting) and r == MT_OK:
        forward_room(s, attached)
    return r


cdef inline int put_run_once(queue *q, subqueue *s, const uintptr_t *items, const int64_t *sizes, int64_t n,
                             bint count_refs, int64_t *done, bint attached) noexcept nogil:
    """tail_put_run() with its locks and wake-ups."""
    cdef wait_node *to_post = NULL
    cdef bint forward
    cdef int r = put_run_unposted(q, s, items, sizes, n, count_refs, done, attached, &to_post, &forward)
    if to_post != NULL:
        post(to_post)
    if forward:
        forward_room(s, attached)
    return r


cdef inline int put_run_unposted(queue *q, subqueue *s, const uintptr_t *items, const int64_t *sizes, int64_t n,
                                 bint count_refs, int64_t *done, bint attached, wait_node **to_post,
                                 bint *forward) noexcept nogil:
    """tail_put_run() with its locks. The caller posts *to_post and then, if *forward is set, calls forward_room()."""
    cdef bint unlisted = is_unlisted(s)
    cdef int r
    if not unlisted:
        lock_put(q, s, attached)
        unlisted = is_unlisted(s)
        if unlisted:
            unlock_put(q, s)
    if unlisted:
        lock_take(q, attached)
        lock_put(q, s, attached)
    r = tail_put_run(q, s, items, sizes, n, count_refs, done)
    if unlisted and done[0]:
        head_list_if_unlisted(q, s, to_post)
    forward[0] = tail_crowded(s) and done[0] != 0
    unlock_put(q, s)
    if unlisted:
        unlock_take(q)
    return r


cdef inline int put_front_once(queue *q, subqueue *s, uintptr_t item, const int64_t *size,
                               bint attached) noexcept nogil:
    """head_put_front() with its locks and wake-ups."""
    cdef wait_node *to_post = NULL
    cdef int r
    lock_take(q, attached)
    lock_put(q, s, attached)
    r = head_put_front(q, s, item, size)
    if r == MT_OK:
        head_list_if_unlisted(q, s, &to_post)
    unlock_put(q, s)
    unlock_take_and_post(q, to_post)
    if r == MT_OK:
        forward_room(s, attached)
    return r


# --------------------------------------------------------------------------------------------------- puts that wait
cdef inline int put_until(queue *q, subqueue *s, uintptr_t item, const int64_t *size, bint front, int64_t deadline,
                          bint attached) noexcept nogil:
    """Put, waiting for a free slot. size: NULL unless sized; then MT_BADARG: the item never fits. The caller adds a
    reference to the item before, and drops it unless the result is MT_OK."""
    cdef wait_point p
    cdef int64_t done
    cdef int r
    while True:
        if unlikely(front):
            r = put_front_once(q, s, item, size, attached)
        elif unlikely(size != NULL):
            r = put_run_once(q, s, &item, size, 1, False, &done, attached)
        else:
            r = put_once(q, s, item, attached)
        if likely(r == MT_OK):
            return r
        if size != NULL:
            free_size_point(&p, s, size[0], attached)
        else:
            room_point(&p, s, attached)
        if not again(&p, 1, &r, deadline):
            return r


cdef inline int put_run_until(queue *q, subqueue *s, const uintptr_t *items, const int64_t *sizes, int64_t n,
                              bint count_refs, int64_t deadline, int64_t *count, bint attached) noexcept nogil:
    """Put the items from number *count on, each time as many as fit; *count is how many are in. sizes: NULL unless
    sized. count_refs: add a reference to each item that is put."""
    cdef wait_point p
    cdef int64_t done = 0
    cdef int r
    room_point(&p, s, attached)
    while count[0] < n:
        r = put_run_once(q, s, items + count[0], sizes + count[0] if sizes != NULL else NULL, n - count[0], count_refs,
                         &done, attached)
        count[0] += done
        if unlikely(r != MT_OK):
            if sizes != NULL:
                free_size_point(&p, s, sizes[count[0]], attached)
            if not again(&p, 1, &r, deadline):
                return r
    return MT_OK


# ----------------------------------------------------------------------------------------------- the registry, for fork
# Every queue of the process is linked here. When os.fork() is called, no attached thread is inside an operation: with
# the GIL because the forking thread has it, without because CPython stops the world first. A detached thread is in one
# of three states:
#   - In a bulk operation. These are counted; fork waits until none is inside, and while it waits new ones stay
#     attached.
#   - Parked as a waiter. Its structure is consistent.
#   - Waiting for a put lock with the take lock held. At most the sub-queue's membership in its ring does not match
#     `unlisted`, `enabled` and the items yet. The child's mend_subqueue() corrects it.
# So the child's structures are consistent, and it resets the locks and forgets the waiters of the other threads.
# Threads without a thread state (nogil API) cannot be waited for.
cdef inline void register(queue *q, bint attached) noexcept nogil:
    enter(&multiqueues.lock, False, attached)
    q.reg_prev = NULL
    q.reg_next = <queue *>multiqueues.first
    if q.reg_next != NULL:
        q.reg_next.reg_prev = q
    multiqueues.first = q
    leave(&multiqueues.lock, False)


cdef inline void unregister(queue *q, bint attached) noexcept nogil:
    enter(&multiqueues.lock, False, attached)
    if q.reg_prev != NULL:
        q.reg_prev.reg_next = q.reg_next
    else:
        multiqueues.first = q.reg_next
    if q.reg_next != NULL:
        q.reg_next.reg_prev = q.reg_prev
    leave(&multiqueues.lock, False)


cdef inline bint enter_bulk(queue *q) noexcept nogil:
    """Called attached. 0: a fork is pending. 1: the caller may detach for a bulk operation on q, then attach and call
    leave_bulk(). Until then it must not post: that may run Python code, and if this forks, the fork waits for ever."""
    cdef bint ok
    enter(&multiqueues.bulk_lock, False, True)
    ok = multiqueues.forks_pending == 0
    multiqueues.bulks_inside += ok
    q.bulks += ok
    leave(&multiqueues.bulk_lock, False)
    return ok


cdef inline void leave_bulk(queue *q) noexcept nogil:
    cdef wait_node *to_post = NULL
    enter(&multiqueues.bulk_lock, False, True)
    q.bulks -= 1
    multiqueues.bulks_inside -= 1
    if multiqueues.bulks_inside == 0:
        notify_all(&multiqueues.forkers, &to_post)
    leave(&multiqueues.bulk_lock, False)
    if to_post != NULL:
        post(to_post)


cdef inline int hold_bulks() noexcept nogil:
    """Before fork, called detached: wait until no bulk operation is inside (MT_OK); none begins until release_bulks().
    Several threads may do so at once."""
    cdef wait_point p
    cdef int r
    enter(&multiqueues.bulk_lock, False, False)
    multiqueues.forks_pending += 1
    leave(&multiqueues.bulk_lock, False)
    make_point(&p, &multiqueues.forkers, &multiqueues.bulk_lock, False, False, poll_bulks, NULL)
    while True:
        r = MT_OK if poll_all(&p, 1) == MT_OK else MT_EMPTY
        if not again(&p, 1, &r, NEVER):
            return r


cdef inline int poll_bulks(wait_point *p, bint parking) noexcept nogil:
    return MT_OK if multiqueues.bulks_inside == 0 else WAIT


cdef inline void release_bulks() noexcept nogil:
    """After fork, in the parent."""
    enter(&multiqueues.bulk_lock, False, True)
    multiqueues.forks_pending -= 1
    leave(&multiqueues.bulk_lock, False)


cdef inline void reset_subqueues(subqueue *s, unsigned long me) noexcept nogil:
    while s != NULL:
        mt_lock_reset(&s.put_lock)
        keep_tasks(&s.not_full, me)
        # pairs with: mt_load_seq_cst in head_make_room
        mt_xchg_seq_cst_u32(&s.not_full_waiting, <uint32_t>s.not_full.n)
        s = s.all_next


cdef inline void mend_subqueue(queue *q, subqueue *s) noexcept nogil:
    """In the child of a fork: make the membership in the ring match `enabled`, closed_flags and the items."""
    if not s.enabled or s.closed_flags & MT_CLOSED_STOPPED:
        head_mask(q, s)
    elif not s.ready.listed:
        head_left_ring(q, s)


cdef inline void forget_other_threads(unsigned long me) noexcept nogil:
    """In the child of a fork: reset the locks, and keep only the waiting tasks of the forking thread (A6)."""
    cdef queue *q = <queue *>multiqueues.first
    cdef subqueue *s
    while q != NULL:
        q.bulks = 0
        mt_lock_reset(&q.take_lock)
        keep_tasks(&q.not_empty, me)
        keep_tasks(&q.joiners, me)
        reset_subqueues(q.all_first, me)
        reset_subqueues(q.removed, me)
        s = q.all_first
        while s != NULL and not q.gil_locked:
            mend_subqueue(q, s)
            s = s.all_next
        q = q.reg_next
    mt_lock_reset(&multiqueues.lock)
    mt_lock_reset(&multiqueues.bulk_lock)
    keep_tasks(&multiqueues.forkers, me)
    multiqueues.forks_pending = 0
    multiqueues.bulks_inside = 0


# -------------------------------------------------------------------------------------------------- queues, sub-queues
cdef inline queue *new_queue(bint gil_locked, bint attached) noexcept nogil:
    cdef queue *q = <queue *>mt_alloc_aligned(sizeof(queue))
    if q != NULL:
        q.gil_locked = gil_locked
        mt_fetch_add_relaxed_u32(&q.refs, 1)    # relaxed because: nobody else has it yet
        register(q, attached)
    return q


cdef inline void drop_queue(queue *q, bint attached) noexcept nogil:
    """Drop one reference; the last one frees the queue. Then no sub-queue is attached and no call waits."""
    # pairs with: itself, in other threads: the last sees all that the others did
    if mt_fetch_add_acq_rel_u32(&q.refs, <uint32_t>-1) != 1:
        return
    unregister(q, attached)
    ready_free(&q.ready)
    chunk_free(<chunk *>mt_xchg_acq_rel_uptr(&q.spare, 0))    # pairs with: mt_xchg_acq_rel in drop_chunk
    mt_free_aligned(q)


cdef inline subqueue *new_subqueue(queue *q, int64_t priority, int64_t maxsize, uint32_t weight,
                                   bint enabled) noexcept nogil:
    """A sub-queue that is not attached. NULL: no memory."""
    cdef subqueue *s = <subqueue *>mt_alloc_aligned(sizeof(subqueue))
    if s == NULL:
        return NULL
    s.mq = q
    s.gil_locked = <uint8_t>q.gil_locked
    mt_fetch_add_relaxed_u32(&q.refs, 1)                    # relaxed because: the caller holds a reference already
    mt_store_relaxed_i64(&s.maxsize, maxsize)               # relaxed because: nobody else has it yet
    s.bounded = maxsize > 0
    s.priority = priority
    s.weight = weight
    s.enabled = enabled
    return s


cdef inline int attach_subqueue(queue *q, subqueue *s, bint attached) noexcept nogil:
    """Add the sub-queue to the queue. MT_OK, MT_SHUTDOWN or MT_NOMEM."""
    cdef int r = MT_SHUTDOWN
    lock_take(q, attached)
    if not q.shut:
        s.ready.level = ready_join_level(&q.ready, s.priority)
        r = MT_OK if s.ready.level != NULL else MT_NOMEM
    if r == MT_OK:
        q.begun = 1                     # its selection is constant from here on
        s.timestamped = q.selection == MT_OLDEST
        head_link(q, s)
        set_unlisted(s, s.enabled)      # without the put lock: no putter has it yet
    unlock_take(q)
    return r


cdef inline void head_link(queue *q, subqueue *s) noexcept nogil:
    s.attached = 1
    s.all_next = NULL
    s.all_prev = q.all_last
    if q.all_last != NULL:
        q.all_last.all_next = s
    else:
        q.all_first = s
    q.all_last = s
    q.nsubs += 1
    q.nenabled += s.enabled


cdef inline void head_unlink(queue *q, subqueue *s) noexcept nogil:
    """Move it from the list of attached sub-queues to that of removed ones."""
    s.attached = 0
    if s.all_prev != NULL:
        s.all_prev.all_next = s.all_next
    else:
        q.all_first = s.all_next
    if s.all_next != NULL:
        s.all_next.all_prev = s.all_prev
    else:
        q.all_last = s.all_prev
    q.nsubs -= 1
    q.nenabled -= s.enabled
    s.all_prev = NULL
    s.all_next = q.removed
    if q.removed != NULL:
        q.removed.all_prev = s
    q.removed = s


cdef inline bint detach_subqueue(queue *q, subqueue *s, bint attached) noexcept nogil:
    """Remove the sub-queue, with its items, from the queue. Blocked and later puts get MT_SHUTDOWN. 0: it was removed
    before."""
    cdef wait_node *to_post = NULL
    cdef int64_t count
    lock_take(q, attached)
    if not s.attached:
        unlock_take(q)
        return False
    lock_put(q, s, attached)
    s.closed_flags |= MT_CLOSED_DETACHED
    tail_notify_all(s, &to_post)
    head_mask(q, s)
    unlock_put(q, s)
    count = head_count(s)
    head_count_removed(q, count)
    q.removed_put += head_ever_put(s)
    head_unlink(q, s)
    ready_leave_level(&q.ready, s.ready.level)
    s.ready.level = NULL
    head_finish(q, &to_post)
    unlock_take_and_post(q, to_post)
    return True


cdef inline void tail_notify_all(subqueue *s, wait_node **to_post) noexcept nogil:
    notify_all(&s.not_full, to_post)
    mt_xchg_seq_cst_u32(&s.not_full_waiting, 0)      # pairs with: mt_load_seq_cst in head_make_room


cdef inline void free_subqueue(subqueue *s, bint attached) noexcept nogil:
    """Free a detached, emptied sub-queue with its last handle."""
    cdef queue *q = s.mq
    if s.closed_flags & MT_CLOSED_DETACHED:       # else it was never attached
        lock_take(q, attached)
        if s.all_prev != NULL:
            s.all_prev.all_next = s.all_next
        else:
            q.removed = s.all_next
        if s.all_next != NULL:
            s.all_next.all_prev = s.all_prev
        unlock_take(q)
    mt_free_aligned(s)
    drop_queue(q, attached)


cdef inline void drop_left_chunks(queue *q, subqueue *s) noexcept nogil:
    """Free the chunks of an empty sub-queue, which keeps its last one for the next put."""
    cdef chunk *c = s.head
    cdef chunk *following
    while c != NULL:
        following = chunk_next(c)
        chunk_free(c)
        c = following
    s.head = s.tail = NULL


# --------------------------------------------------------------------------------------------------- changes while used
cdef inline void enable_subqueue(queue *q, subqueue *s, bint enabled, bint attached) noexcept nogil:
    cdef wait_node *to_post = NULL
    lock_take(q, attached)
    if (s.enabled != 0) != enabled:
        s.enabled = enabled
        if s.attached:
            q.nenabled += 1 if enabled else -1
            if not enabled:
                lock_put(q, s, attached)
                head_mask(q, s)
                unlock_put(q, s)
            elif not s.closed_flags & MT_CLOSED_STOPPED and not head_try_unlist(q, s):
                head_list(q, s)
                notify(&q.not_empty, &to_post)
    unlock_take_and_post(q, to_post)


cdef inline int set_priority(queue *q, subqueue *s, int64_t priority, bint attached) noexcept nogil:
    """Move to the end of that priority's ring. MT_OK or MT_NOMEM."""
    cdef ready_level *level
    cdef bint listed
    cdef int r = MT_OK
    lock_take(q, attached)
    if s.attached and priority != s.priority:
        level = ready_join_level(&q.ready, priority)
        if level == NULL:
            r = MT_NOMEM
        else:
            listed = s.ready.listed
            if listed:
                ready_remove(&q.ready, &s.ready)
            s.quantum_left = 0
            ready_leave_level(&q.ready, s.ready.level)
            s.ready.level = level
            s.priority = priority
            if listed and not head_try_unlist(q, s):
                head_list(q, s)
    elif not s.attached:
        s.priority = priority
    unlock_take(q)
    return r


cdef inline void set_weight(queue *q, subqueue *s, uint32_t weight, bint attached) noexcept nogil:
    lock_take(q, attached)
    s.weight = weight
    unlock_take(q)


cdef inline void set_maxsize(queue *q, subqueue *s, int64_t maxsize, bint attached) noexcept nogil:
    cdef wait_node *to_post = NULL
    lock_take(q, attached)
    lock_put(q, s, attached)
    mt_store_relaxed_i64(&s.maxsize, maxsize)       # relaxed because: both locks are held
    s.bounded = maxsize > 0 or s.sized
    tail_notify_all(s, &to_post)                    # those that still do not fit wait again
    unlock_put(q, s)
    unlock_take_and_post(q, to_post)


# ---------------------------------------------------------------------------------------------------- taking items away
cdef inline chunk *head_cut(queue *q, subqueue *s, uint32_t *first, uint32_t *last, bint forget, wait_node **to_post,
                            bint attached) noexcept nogil:
    """Empty the sub-queue and return its chunks, each retired, pinned, and linked by `base`. The items are in the slots
    from *first (of the first chunk) up to *last (of the last one). forget: the
    caller has taken it out of its ring, so set `unlisted`."""
    cdef chunk *c
    cdef chunk *chain
    cdef chunk *following
    lock_put(q, s, attached)
    chain = s.head
    first[0] = s.head_idx
    last[0] = s.tail_idx
    c = chain
    while c != NULL:
        following = chunk_next(c) if c != s.tail else NULL
        chunk_pin(c)
        chunk_retire(c)
        c.base = <int64_t>following
        c = following
    s.head = s.tail = NULL
    s.head_idx = 0
    s.tail_idx = 0
    s.ntombstones = 0
    s.has_tombstones = 0
    if s.sized:
        mt_xchg_seq_cst_i64(&s.size_removed, <int64_t>s.size_put)      # pairs with: mt_load_seq_cst in tail_size
    s.head_seq_cached = mt_load_relaxed_i64(&s.tail_seq)   # relaxed because: both locks are held
    s.tail_seq_cached = s.head_seq_cached
    mt_store_release_i64(&s.head_seq, s.head_seq_cached)        # pairs with: mt_load_seq_cst in tail_free_slots
    if forget:
        set_unlisted(s, True)
    tail_notify_all(s, to_post)
    unlock_put(q, s)
    return chain


cdef inline int64_t clear_subqueue(queue *q, subqueue *s, chunk **chain, uint32_t *first, uint32_t *last,
                                   bint attached) noexcept nogil:
    """Empty the sub-queue atomically; *chain, *first and *last as in head_cut(). The caller frees the chain without
    locks. Returns the number of items."""
    cdef wait_node *to_post = NULL
    cdef int64_t n
    lock_take(q, attached)
    n = head_clear(q, s, chain, first, last, &to_post, attached)
    if n and s.attached:
        head_count_removed(q, n)
        head_finish(q, &to_post)
    unlock_take_and_post(q, to_post)
    return n


cdef inline int64_t head_clear(queue *q, subqueue *s, chunk **chain, uint32_t *first, uint32_t *last,
                               wait_node **to_post, bint attached) noexcept nogil:
    cdef bint listed = s.ready.listed
    cdef int64_t n
    chain[0] = NULL
    if head_count(s) == 0:
        return 0
    if listed:
        ready_remove(&q.ready, &s.ready)
        s.quantum_left = 0
    # A put may come between head_count() and the cut, and is cut too: count by the change of head_seq.
    n = mt_load_relaxed_i64(&s.head_seq)                 # relaxed because: written under the take lock
    chain[0] = head_cut(q, s, first, last, listed, to_post, attached)
    return mt_load_relaxed_i64(&s.head_seq) - n          # relaxed because: written under the take lock


cdef inline bint discard_at(queue *q, subqueue *s, chunk *c, uint32_t i, uintptr_t item, bint attached) noexcept nogil:
    """Remove the item in slot i of a pinned chunk, if it is still there."""
    cdef wait_node *to_post = NULL
    cdef bint there
    lock_take(q, attached)
    there = head_holds(s, c, i) and chunk_items(c)[i] == item
    if there:
        set_tombstone(c, i)
        s.ntombstones += 1
        s.has_tombstones = 1
        if s.attached:
            head_count_removed(q, 1)
        if s.sized:
            head_subtract_sizes(s, c, i, 1)
        # relaxed because: written under the take lock
        head_make_room(q, s, mt_load_relaxed_i64(&s.head_seq) + 1, attached, &to_post)
        if s.ready.listed:
            if head_empty(s):
                head_unlist(q, s)
            else:
                head_rekey(q, s)
        head_drop_dead_chunk(q, s, c)
        if s.attached:
            head_finish(q, &to_post)
    unlock_take_and_post(q, to_post)
    return there


cdef inline bint head_holds(subqueue *s, chunk *c, uint32_t i) noexcept nogil:
    """Whether slot i of c has an item that was not taken or discarded. After head_count()."""
    if chunk_is_retired(c) or (c == s.head and i < s.head_idx):
        return False
    return not is_tombstone(c, i)


cdef inline void head_drop_dead_chunk(queue *q, subqueue *s, chunk *c) noexcept nogil:
    """Unlink a chunk in the middle of the list whose slots are all tombstones, so that discarding frees memory even if
    nothing is got."""
    cdef chunk *before = s.head
    head_count(s)
    if c.ntombstones != c.cap or c == s.head or c.base + c.cap >= s.tail_seq_cached:
        return                      # still in use, or it may be the tail, whose `next` a putter is about to write
    if chunk_is_retired(c):
        return                      # the head has moved past it: head_rekey
    while chunk_next(before) != c:
        before = chunk_next(before)
    chunk_link(before, chunk_next(c))
    s.ntombstones -= c.ntombstones
    s.has_tombstones = s.ntombstones > 0
    if chunk_retire(c):
        drop_chunk(q, c)


# ------------------------------------------------------------------------------------------------ tasks, join, shutdown
cdef inline int64_t head_ever_put(subqueue *s) noexcept nogil:
    # pairs with: mt_store_release in tail_put, tail_put_run
    return mt_load_acquire_i64(&s.tail_seq) + s.nfront


cdef inline int64_t head_put_total(queue *q) noexcept nogil:
    cdef int64_t n = q.removed_put
    cdef subqueue *s = q.all_first
    while s != NULL:
        n += head_ever_put(s)
        s = s.all_next
    return n


cdef inline int64_t head_unfinished(queue *q) noexcept nogil:
    return head_put_total(q) - q.removed_total - q.done


cdef inline void head_count_removed(queue *q, int64_t n) noexcept nogil:
    """n items were taken out without a get: they count as done, unless task_done() was called for them before."""
    if q.done > q.taken_total:
        n = min(n, max(<int64_t>0, head_unfinished(q)))
    q.removed_total += n


cdef inline void head_finish(queue *q, wait_node **to_post) noexcept nogil:
    """After an item has become done: notify the joiners if all are. Cheap unless a join waits."""
    if q.joiners.n == 0 or q.done < q.taken_total:
        return
    if q.done == q.taken_total and head_next(q, True) != NULL:
        return                      # an item is left; avoids the walk over all sub-queues
    if head_unfinished(q) == 0:
        notify_all(&q.joiners, to_post)


cdef inline bint task_done(queue *q, bint attached) noexcept nogil:
    """Count one item as done. 0: there is none that is not done."""
    cdef wait_node *to_post = NULL
    cdef bint ok
    lock_take(q, attached)
    # The first test is nearly always true and avoids the walk over all sub-queues.
    ok = q.done < q.taken_total or head_unfinished(q) > 0
    if ok:
        q.done += 1
        head_finish(q, &to_post)
    unlock_take_and_post(q, to_post)
    return ok


cdef inline int join_until(queue *q, int64_t deadline, bint attached) noexcept nogil:
    """MT_OK: all items were done at some instant. Else MT_TIMEOUT (with ONCE: MT_EMPTY), MT_INTERRUPTED or MT_NOMEM."""
    cdef wait_point p
    cdef int r
    joined_point(&p, q, attached)
    while True:
        r = MT_OK if p.woken or poll_all(&p, 1) == MT_OK else MT_EMPTY
        if not again(&p, 1, &r, deadline):
            return r


cdef inline void shut_queue(queue *q, bint stop, bint attached) noexcept nogil:
    """Accept no more puts, atomically for all sub-queues. stop: no more gets either; the items stay inside."""
    cdef wait_node *to_post = NULL
    cdef subqueue *s
    lock_take(q, attached)
    s = q.all_first
    while s != NULL:
        lock_put(q, s, attached)        # all of them before the first is shut: no put succeeds after another is refused
        s = s.all_next
    q.shut = 1
    s = q.all_first
    while s != NULL:
        shut_subqueue(q, s, stop, &to_post)
        unlock_put(q, s)
        s = s.all_next
    notify_all(&q.not_empty, &to_post)
    unlock_take_and_post(q, to_post)


cdef inline void shut_subqueue(queue *q, subqueue *s, bint stop, wait_node **to_post) noexcept nogil:
    s.closed_flags |= MT_CLOSED_SHUTDOWN
    tail_notify_all(s, to_post)
    if stop:
        s.closed_flags |= MT_CLOSED_STOPPED
        head_mask(q, s)


# ------------------------------------------------------------------------------------------------------------ iteration
cdef enum:
    SNAPSHOT = 64       # items that an iterator copies at a time


ctypedef struct iterator_position:
    chunk *chunk             # pinned, or NULL before the first step and after the last
    int64_t position            # of the next item to see; only grows
    uint32_t n                  # items in the snapshot
    uintptr_t items[SNAPSHOT]
    uint32_t slots[SNAPSHOT]    # their slots in `chunk`


cdef inline void position_open(iterator_position *k) noexcept nogil:
    k.chunk = NULL
    k.position = INT64_MIN
    k.n = 0


cdef inline chunk *head_find(subqueue *s, iterator_position *k) noexcept nogil:
    """The chunk of the iterator's position, which is moved to an item's or past the end. NULL: the end."""
    cdef chunk *c = k.chunk
    if head_count(s) == 0:
        return NULL
    if c == NULL or chunk_is_retired(c):
        c = s.head              # its chunk was retired: search again from the head
    if c == s.head:
        k.position = max(k.position, c.base + s.head_idx)
    while k.position >= c.base + c.cap and k.position < s.tail_seq_cached:
        c = chunk_next(c)
        k.position = max(k.position, c.base)
    return c if k.position < s.tail_seq_cached else NULL


cdef inline void head_copy(subqueue *s, iterator_position *k, bint count_refs) noexcept nogil:
    """Copy items of the iterator's chunk, from its position on, as many as fit into the snapshot."""
    cdef chunk *c = k.chunk
    cdef int64_t end = min(c.base + c.cap, s.tail_seq_cached)
    cdef uint32_t i
    while k.position < end and k.n < SNAPSHOT:
        i = <uint32_t>(k.position - c.base)
        k.position += 1
        if not is_tombstone(c, i):
            k.items[k.n] = chunk_items(c)[i]
            k.slots[k.n] = i
            if count_refs:
                keep(k.items[k.n])
            k.n += 1


cdef inline void position_step(queue *q, subqueue *s, iterator_position *k, bint count_refs) noexcept nogil:
    """Take the next snapshot; n == 0: the end."""
    cdef chunk *before = k.chunk
    cdef bint unused
    k.n = 0
    lock_take(q, True)
    while k.n == 0:
        k.chunk = head_find(s, k)
        if k.chunk == NULL:
            break
        head_copy(s, k, count_refs)
    if k.chunk != NULL:
        chunk_pin(k.chunk)
    unused = before != NULL and chunk_unpin(before)
    unlock_take(q)
    if unused:
        drop_chunk(q, before)


cdef inline void position_close(queue *q, iterator_position *k) noexcept nogil:
    cdef chunk *c = k.chunk
    cdef bint unused
    if c == NULL:
        return
    k.chunk = NULL
    lock_take(q, True)
    unused = chunk_unpin(c)
    unlock_take(q)
    if unused:
        drop_chunk(q, c)


# ------------------------------------------------------------------------------------------------------ without Python
# For the nogil API: callers are detached; items are pointers or integers; timeouts as in
# python/manytail/_nogil.pxd, which documents the calls.
cdef inline void drop_chain(queue *q, chunk *chain, uint32_t first, uint32_t last, item_drop drop, void *arg,
                            bint attached) noexcept nogil:
    """Call `drop` for each item of a chain of head_cut(), and free the chunks. No lock is held while `drop` runs."""
    cdef chunk *following
    cdef uint32_t i, end
    cdef bint unused
    while chain != NULL:
        following = <chunk *>chain.base
        end = chain.cap if following != NULL else last
        for i in range(first, end):
            if drop != NULL and not is_tombstone(chain, i):
                drop(chunk_items(chain)[i], arg)
        lock_take(q, attached)
        unused = chunk_unpin(chain)
        unlock_take(q)
        if unused:
            drop_chunk(q, chain)
        chain = following
        first = 0


cdef inline void drop_object(uintptr_t item, void *unused) noexcept nogil:
    """The item_drop of a queue of Python objects; the caller is attached."""
    drop(item)


cdef inline int64_t drop_items(queue *q, subqueue *s, item_drop drop, void *arg, bint attached) noexcept nogil:
    """Empty the sub-queue atomically, then drop the items with no lock held. Returns how many there were."""
    cdef chunk *chain
    cdef uint32_t first = 0, last = 0
    cdef int64_t n = clear_subqueue(q, s, &chain, &first, &last, attached)
    drop_chain(q, chain, first, last, drop, arg, attached)
    return n


cdef inline void destroy_queue(queue *q, item_drop drop, void *arg) noexcept nogil:
    cdef subqueue *s
    if q == NULL:
        return
    while q.all_first != NULL:
        remove_subqueue(q, q.all_first, drop, arg)
    while q.removed != NULL:
        s = q.removed
        drop_left_chunks(q, s)
        free_subqueue(s, False)
    drop_queue(q, False)


cdef inline subqueue *add_subqueue(queue *q, int priority, int64_t maxsize, int weight) noexcept nogil:
    cdef subqueue *s
    if weight < 1:
        return NULL
    s = new_subqueue(q, priority, maxsize, <uint32_t>weight, True)
    if s == NULL:
        return NULL
    if attach_subqueue(q, s, False) != MT_OK:
        free_subqueue(s, False)
        return NULL
    return s


cdef inline int remove_subqueue(queue *q, subqueue *s, item_drop drop, void *arg) noexcept nogil:
    if s == NULL or s.mq != q or not detach_subqueue(q, s, False):
        return MT_BADARG
    drop_items(q, s, drop, arg, False)
    return MT_OK        # not freed until the queue is destroyed: woken putters may be about to read it


cdef inline int put_within(subqueue *s, uintptr_t item, int64_t timeout_ns) noexcept nogil:
    return put_until(s.mq, s, item, NULL, False, deadline_in(timeout_ns), False)


cdef inline int put_run_within(subqueue *s, const uintptr_t *items, int64_t n, int64_t timeout_ns,
                               int64_t *count) noexcept nogil:
    cdef int64_t put = 0
    cdef int r = MT_BADARG
    if n >= 0 and (n == 0 or items != NULL):
        r = put_run_until(s.mq, s, items, NULL, n, False, deadline_in(timeout_ns), &put, False)
    if count != NULL:
        count[0] = put
    return r


cdef inline int get_or_wait(queue *q, uintptr_t *items, int64_t n, subqueue **taken_from, int64_t timeout_ns,
                            int64_t *count) noexcept nogil:
    """Wait for an item. taken_from != NULL: take one, *taken_from is its sub-queue. Else take up to n, without waiting
    for more."""
    cdef wait_point p
    cdef int64_t deadline = deadline_in(timeout_ns)
    cdef wait_node *to_post = NULL
    cdef int r
    items_point(&p, q, False)
    while True:
        lock_take(q, False)
        if taken_from != NULL:
            count[0] = head_get(q, items, taken_from, False, &to_post) == MT_OK
        else:
            count[0] = head_get_many(q, items, n, False, &to_post)
        unlock_take_and_post(q, to_post)
        to_post = NULL
        r = MT_OK if count[0] else MT_EMPTY
        if not again(&p, 1, &r, deadline):
            return r


cdef inline int get_within(queue *q, uintptr_t *item, subqueue **taken_from, int64_t timeout_ns) noexcept nogil:
    cdef subqueue *s = NULL
    cdef int64_t count = 0
    cdef int r = get_or_wait(q, item, 1, &s, timeout_ns, &count)
    if taken_from != NULL:
        taken_from[0] = s
    return r


cdef inline int get_many_within(queue *q, uintptr_t *items, int64_t n, int64_t timeout_ns,
                                int64_t *count) noexcept nogil:
    count[0] = 0
    if n < 0 or (n > 0 and items == NULL):
        return MT_BADARG
    return MT_OK if n == 0 else get_or_wait(q, items, n, NULL, timeout_ns, count)


# --------------------------------------------------------------------------------------------------- garbage collection
# A traverse runs while every attached thread is stopped. Items of Python queues move only while attached, so they do
# not change under it. Wait lists may change while a detached bulk operation is inside. Those are counted while
# attached, so the count does not change during a traverse. While it is not 0, the waiting tasks are not visited: the
# collector then takes them for reachable, which only delays collecting them.
cdef inline bint lists_are_quiet(queue *q) noexcept nogil:
    return q.bulks == 0


cdef inline int visit_items(subqueue *s, int (*visit)(PyObject *, void *) noexcept, void *arg) noexcept:
    cdef chunk *c = s.head
    cdef uint32_t i = s.head_idx
    cdef int r = 0
    # relaxed because: the world is stopped (free-threaded build) or the GIL is held
    if mt_load_relaxed_i64(&s.tail_seq) == mt_load_relaxed_i64(&s.head_seq):
        return 0
    while c != NULL and r == 0:
        while i < (s.tail_idx if c == s.tail else c.cap) and r == 0:
            if not is_tombstone(c, i):
                r = visit(<PyObject *>chunk_items(c)[i], arg)
            i += 1
        i = 0
        c = chunk_next(c) if c != s.tail else NULL
    return r
