# The MultiQueue: many tails, one head; include/manytail/multiqueue.h has the picture, the source and the invariants. Private.
#
# This file is the whole algorithm, on C structs, nogil throughout: items that move, tails that come, go and change, waiting,
# shutdown, fork. Its faces are _multiqueue.pyx (Python, and the nogil API) and _wp.pxd (lanes); the native drivers compile it without an interpreter.
#
# Linearization points: a put, when tail_seq is published; a get, when `out` is, under the take lock; an empty get, the moment
# under the take lock when it has found nothing listed.
#
# `attached` says whether the calling thread holds a thread state; it matters only if a lock has to be waited for.
# Functions whose name starts with a lock's ("taken_", "putting_") must be called with that lock held. `wake` collects
# waiters to be posted after unlocking. Lock order: take, then put.
from libc.stdint cimport INT64_MAX, INT64_MIN, int64_t, uint16_t, uint32_t, uint8_t, uintptr_t
from libc.string cimport memcpy

from manytail._c cimport (
    MT_BADARG, MT_CHUNK_SPARE_CLASS, MT_EMPTY, MT_FREE_THREADED, MT_FULL, MT_GATE_DETACHED, MT_GATE_SHUTDOWN, MT_GATE_STOPPED,
    MT_INTERRUPTED, MT_NOMEM, MT_OK, MT_OLDEST, MT_ROUND_ROBIN, MT_SHUTDOWN, MT_TIMEOUT, MT_WAITER_NOTIFIED,
    MT_WEIGHTED, keep, likely, mt_alloc_aligned, mt_backoff, mt_backoff_spin, mt_chunk, mt_chunk_free,
    mt_chunk_is_dead, mt_chunk_items, mt_chunk_kill, mt_chunk_link, mt_chunk_new, mt_chunk_next, mt_chunk_pin,
    mt_chunk_recycle, mt_chunk_retire, mt_chunk_retired, mt_chunk_revive, mt_chunk_stamps, mt_chunk_unpin,
    mt_fetch_add_acq_rel_u32, mt_fetch_add_relaxed_i64, mt_fetch_add_relaxed_u32, mt_free_aligned, mt_heap_rekey,
    mt_level, mt_load_acquire_i64, mt_load_relaxed_i64, mt_load_relaxed_u32, mt_load_seq_cst_i64,
    mt_load_seq_cst_u32, mt_lock_reset, mt_now_ns, mt_point, mt_prefetch_write, mt_ready, mt_ready_append,
    mt_ready_free, mt_ready_front, mt_ready_join_level, mt_ready_leave_level, mt_ready_node, mt_ready_remove,
    mt_ready_replace, mt_store_relaxed_i64, mt_store_relaxed_u32, mt_store_release_i64, mt_subqueue_of, mt_waiter,
    mt_waitlist_keep_thread, mt_waitlist_leave, mt_waitlist_notify, mt_waitlist_notify_all, mt_waitlist_push,
    mt_xchg_acq_rel_uptr, mt_xchg_seq_cst_i64, mt_xchg_seq_cst_u32, queue, subqueue, unlikely,
)
from manytail._lock cimport enter, leave
from manytail._wait cimport (
    NEVER, ONCE, multiqueues, post_chain, waiter_await_post, waiter_close, waiter_open, waiter_park,
)

# What becomes of an item that a call has taken out of a queue for good.
ctypedef void (*item_drop)(uintptr_t item, void *arg) noexcept nogil

cdef enum:
    # A getter without the GIL pauses 64, 128, 256 times before it parks, some 5-20 us in all: about what parking and being
    # woken would cost. The first pause is long on purpose: a getter that looks after each item makes the putters' cache
    # line travel per item, one that lets the putter run ahead takes several for one look.
    GETTER_SPIN_FIRST = 6
    GETTER_SPIN_LIMIT = 9

# ---------------------------------------------------------------------------------------------------------------- locks
cdef inline void lock_take(queue *q, bint attached) noexcept nogil:
    enter(&q.take_lock, q.serial, attached)
    if not q.serial:
        q.attached = attached


cdef inline void unlock_take(queue *q) noexcept nogil:
    leave(&q.take_lock, q.serial)


cdef inline void lock_put(queue *q, subqueue *s, bint attached) noexcept nogil:
    enter(&s.put_lock, s.serial, attached)


cdef inline void unlock_put(queue *q, subqueue *s) noexcept nogil:
    leave(&s.put_lock, s.serial)


cdef inline bint is_unknown(subqueue *s) noexcept nogil:
    # relaxed because: read under one of the locks that its writer holds both of; or a guess that is checked under one
    return mt_load_relaxed_u32(&s.unknown) != 0


cdef inline void set_unknown(subqueue *s, bint unknown) noexcept nogil:
    # relaxed because: written under both locks
    mt_store_relaxed_u32(&s.unknown, unknown)


# --------------------------------------------------------------------------------------------------------------- chunks
cdef inline void drop_chunk(queue *q, mt_chunk *c) noexcept nogil:
    """Free a chunk that nobody stands on, or keep it for the next append."""
    cdef uintptr_t old = 0
    if c.size_class == MT_CHUNK_SPARE_CLASS:
        # pairs with: mt_xchg_acq_rel in new_chunk
        old = mt_xchg_acq_rel_uptr(&q.spare, <uintptr_t>c)
        c = <mt_chunk *>old
    if c != NULL:
        mt_chunk_free(c)


cdef inline mt_chunk *new_chunk(queue *q, uint32_t size_class, int64_t base) noexcept nogil:
    cdef mt_chunk *c = NULL
    if size_class == MT_CHUNK_SPARE_CLASS:
        # pairs with: mt_xchg_acq_rel in drop_chunk
        c = <mt_chunk *>mt_xchg_acq_rel_uptr(&q.spare, 0)
    if c == NULL:
        return mt_chunk_new(size_class, q.selection == MT_OLDEST, base)
    mt_chunk_recycle(c, base)
    return c


cdef inline uint32_t next_size_class(subqueue *s, int64_t tail_seq, int64_t n) noexcept nogil:
    """Chunks grow with what stands in the tail, so that a short tail stays small and a long one costs few allocations."""
    cdef int64_t inside = tail_seq - s.out_seen + n
    if inside > 4096:
        return 4
    if inside > 512:
        return 3
    if s.tail == NULL:
        return 0 if n <= 11 else 1 if n <= 27 else 2
    return s.size_class + 1 if s.size_class < MT_CHUNK_SPARE_CLASS else MT_CHUNK_SPARE_CLASS


cdef inline bint putting_grow(queue *q, subqueue *s, int64_t tail_seq, int64_t n) noexcept nogil:
    """Link a fresh chunk behind the tail, for n more items at least. 0: no memory, nothing changed."""
    cdef uint32_t size_class = next_size_class(s, tail_seq, n)
    cdef mt_chunk *c = new_chunk(q, size_class, tail_seq)
    if c == NULL:
        return False
    if s.tail == NULL:
        s.head = c                  # no getter looks at head before tail_seq says that there is something
        s.head_idx = 0
    else:
        mt_chunk_link(s.tail, c)
    s.tail = c
    s.tail_idx = 0
    putting_claim_lines(s, 8)
    putting_claim_lines(s, AHEAD)
    s.size_class = size_class
    return True


# ------------------------------------------------------------------------------------------------------------------ put
cdef inline int64_t putting_room(subqueue *s, int64_t tail_seq) noexcept nogil:
    """How many more items the bound allows; looks at the getters' line only when its copy says that it is full."""
    # relaxed because: maxsize is written under the put lock
    cdef int64_t maxsize = mt_load_relaxed_i64(&s.maxsize)
    if maxsize <= 0:
        return INT64_MAX
    if tail_seq - s.out_seen >= maxsize:
        # pairs with: mt_store_release, mt_xchg_seq_cst in left
        s.out_seen = mt_load_seq_cst_i64(&s.out)
    return maxsize - (tail_seq - s.out_seen)


cdef enum:
    AHEAD = 16      # slots: two cache lines


cdef inline void putting_claim_lines(subqueue *s, uint32_t slot) noexcept nogil:
    """A getter on another core read that memory last, and claiming a line back takes longer than eight puts."""
    if not s.serial:
        mt_prefetch_write(mt_chunk_items(s.tail) + slot)


cdef inline int putting_one(queue *q, subqueue *s, uintptr_t item) noexcept nogil:
    # relaxed because: tail_seq is written under the put lock
    cdef int64_t tail_seq = mt_load_relaxed_i64(&s.tail_seq)
    cdef mt_chunk *c
    if unlikely(s.gate != 0):
        return MT_SHUTDOWN
    if unlikely(putting_room(s, tail_seq) <= 0):
        return MT_FULL
    c = s.tail
    if unlikely(c == NULL or s.tail_idx == c.cap):
        if not putting_grow(q, s, tail_seq, 1):
            return MT_NOMEM
        c = s.tail
    mt_chunk_items(c)[s.tail_idx] = item
    putting_claim_lines(s, s.tail_idx + AHEAD)
    if unlikely(s.stamped):
        # relaxed because: only the order of the numbers counts
        mt_chunk_stamps(c)[s.tail_idx] = mt_fetch_add_relaxed_i64(&q.clock, 1)
    s.tail_idx += 1
    mt_point()
    # pairs with: mt_load_acquire in taken_count
    mt_store_release_i64(&s.tail_seq, tail_seq + 1)
    return MT_OK


cdef inline int putting_run(queue *q, subqueue *s, const uintptr_t *items, int64_t n, bint count_refs, int64_t *done) noexcept nogil:
    """Append up to n items as one chain that getters see at once. MT_OK: all; else why not, *done went in."""
    cdef int64_t tail_seq = mt_load_relaxed_i64(&s.tail_seq)   # relaxed because: tail_seq is written under the put lock
    cdef int64_t room = putting_room(s, tail_seq), put = 0, k, i
    cdef int r = MT_OK
    cdef mt_chunk *c
    done[0] = 0
    if s.gate != 0:
        return MT_SHUTDOWN
    if room < n:
        n = room if room > 0 else 0
        r = MT_FULL
    while put < n:
        c = s.tail
        if c == NULL or s.tail_idx == c.cap:
            if not putting_grow(q, s, tail_seq + put, n - put):
                r = MT_NOMEM
                break
            c = s.tail
        k = min(n - put, <int64_t>(c.cap - s.tail_idx))
        memcpy(mt_chunk_items(c) + s.tail_idx, items + put, k * sizeof(uintptr_t))
        if s.stamped:
            for i in range(k):
                # relaxed because: only the order of the numbers counts
                mt_chunk_stamps(c)[s.tail_idx + i] = mt_fetch_add_relaxed_i64(&q.clock, 1)
        s.tail_idx += <uint32_t>k
        put += k
    if count_refs:
        for i in range(put):
            keep(items[i])
    # pairs with: mt_load_acquire in taken_count
    mt_store_release_i64(&s.tail_seq, tail_seq + put)
    done[0] = put
    return r


cdef inline int taken_put_front(queue *q, subqueue *s, uintptr_t item) noexcept nogil:
    """The new head. Both locks are held."""
    # relaxed because: both are written under locks that are held
    cdef int64_t tail_seq = mt_load_relaxed_i64(&s.tail_seq), out = mt_load_relaxed_i64(&s.out)
    cdef mt_chunk *c
    if s.gate != 0:
        return MT_SHUTDOWN
    if putting_room(s, tail_seq) <= 0:
        return MT_FULL
    if s.head == NULL:
        return putting_one(q, s, item)
    if s.head_idx == 0:
        c = new_chunk(q, 0 if s.size_class == 0 else 1, 0)
        if c == NULL:
            return MT_NOMEM
        c.base = s.head.base - c.cap
        mt_chunk_link(c, s.head)
        s.head = c
        s.head_idx = <uint16_t>c.cap
    c = s.head
    s.head_idx -= 1
    mt_chunk_revive(c, s.head_idx)
    mt_chunk_items(c)[s.head_idx] = item
    if s.stamped:
        # relaxed because: only the order of the numbers counts
        mt_chunk_stamps(c)[s.head_idx] = mt_fetch_add_relaxed_i64(&q.clock, 1)
    s.nfront += 1
    # pairs with: mt_load_seq_cst in putting_room
    mt_store_release_i64(&s.out, out - 1)
    s.out_seen = out - 1
    if s.ready.listed:
        taken_rekey(q, s)
    return MT_OK


# -------------------------------------------------------------------------------------------------------- who is ready
cdef inline int64_t taken_count(subqueue *s) noexcept nogil:
    """Items inside, as of now."""
    # pairs with: mt_store_release in putting_one, putting_run
    s.tail_seen = mt_load_acquire_i64(&s.tail_seq)
    return s.tail_seen - mt_load_relaxed_i64(&s.out)    # relaxed because: written under the take lock


cdef inline bint taken_empty(subqueue *s) noexcept nogil:
    """Looks at the putters' line only when the copy has run out."""
    # relaxed because: written under the take lock
    return s.tail_seen == mt_load_relaxed_i64(&s.out) and taken_count(s) == 0


cdef inline void taken_skip_dead(queue *q, subqueue *s) noexcept nogil:
    """Make head, head_idx stand on a live item. The tail is not empty."""
    cdef mt_chunk *c = s.head
    while True:
        if s.head_idx == c.cap:
            s.head = mt_chunk_next(c)
            s.head_idx = 0
            if mt_chunk_retire(c):
                drop_chunk(q, c)
            c = s.head
        elif s.has_dead and mt_chunk_is_dead(c, s.head_idx):
            s.head_idx += 1
            s.ndead -= 1
            s.has_dead = s.ndead > 0
        else:
            return


cdef inline int64_t taken_head_stamp(queue *q, subqueue *s) noexcept nogil:
    taken_skip_dead(q, s)
    return mt_chunk_stamps(s.head)[s.head_idx]


cdef inline void taken_rekey(queue *q, subqueue *s) noexcept nogil:
    """Its head is another item now: find its place again among the oldest."""
    if q.selection == MT_OLDEST and taken_count(s) > 0:
        mt_heap_rekey(&s.ready.level.by_time, s.ready.slot, taken_head_stamp(q, s))


cdef inline void taken_list(queue *q, subqueue *s) noexcept nogil:
    """Join at the end of the turn. A lone empty tail that was left listed gives up its place."""
    cdef mt_level *level = s.ready.level
    cdef int64_t stamp = taken_head_stamp(q, s) if q.selection == MT_OLDEST else 0
    cdef subqueue *lone
    if level.nready == 1:
        lone = mt_subqueue_of(mt_ready_front(&q.ready, level))
        if taken_count(lone) == 0:
            mt_ready_replace(&q.ready, &lone.ready, &s.ready, stamp)
            taken_unlisted(q, lone)
            return
        taken_rekey(q, lone)
    mt_ready_append(&q.ready, &s.ready, stamp)


cdef inline void taken_unlist(queue *q, subqueue *s) noexcept nogil:
    """It is empty: leave the ring."""
    mt_ready_remove(&q.ready, &s.ready)
    taken_unlisted(q, s)


cdef inline void taken_unlisted(queue *q, subqueue *s) noexcept nogil:
    """It has left the ring because it was empty. If a put slipped in, it joins again."""
    s.turn = 0
    mt_point()
    if not taken_forget(q, s):
        taken_list(q, s)


cdef inline bint taken_forget(queue *q, subqueue *s) noexcept nogil:
    """The head does not know this tail any more, and the next put has to say so. 0: it is not empty."""
    cdef bint empty
    lock_put(q, s, q.attached)
    empty = taken_count(s) == 0
    set_unknown(s, empty)
    unlock_put(q, s)
    return empty


cdef inline void taken_learn(queue *q, subqueue *s, mt_waiter **wake) noexcept nogil:
    """Something was put, under both locks: if the tail was unknown, the head learns of it and a getter is woken."""
    if is_unknown(s):
        set_unknown(s, False)
        taken_list(q, s)
        if unlikely(q.getters.n != 0):
            mt_waitlist_notify(&q.getters, wake)


cdef inline void taken_show(queue *q, subqueue *s, mt_waiter **wake) noexcept nogil:
    """A tail that was hidden: it is listed, or unknown."""
    if not taken_forget(q, s):
        taken_list(q, s)
        mt_waitlist_notify(&q.getters, wake)


cdef inline void taken_hide(queue *q, subqueue *s) noexcept nogil:
    """Both locks are held. Out of the ring whatever it holds, and puts need not tell the head."""
    if s.ready.listed:
        mt_ready_remove(&q.ready, &s.ready)
    s.turn = 0
    set_unknown(s, False)


# ------------------------------------------------------------------------------------------------------------------ get
cdef inline void left(queue *q, subqueue *s, int64_t n, bint attached, mt_waiter **wake) noexcept nogil:
    """n items left the tail: publish it, and wake a putter that waits for room."""
    # relaxed because: written under the take lock, which is held
    cdef int64_t out = mt_load_relaxed_i64(&s.out) + n
    if likely(not s.bounded):
        # pairs with: mt_load_seq_cst in putting_room
        mt_store_release_i64(&s.out, out)
        return
    if q.serial:
        mt_store_release_i64(&s.out, out)       # pairs with: nothing, the GIL orders it
    else:
        # pairs with: mt_load_seq_cst in putting_room, after mt_xchg_seq_cst of putters_waiting in wait_for_room: either
        # the putter sees this, or the next line sees the putter
        mt_xchg_seq_cst_i64(&s.out, out)
    mt_point()
    # pairs with: mt_xchg_seq_cst in wait_for_room
    if unlikely(mt_load_seq_cst_u32(&s.putters_waiting) != 0):
        lock_put(q, s, attached)
        putting_notify(s, wake)
        unlock_put(q, s)


cdef inline void putting_notify(subqueue *s, mt_waiter **wake) noexcept nogil:
    mt_waitlist_notify(&s.putters, wake)
    # pairs with: mt_load_seq_cst in left
    mt_xchg_seq_cst_u32(&s.putters_waiting, <uint32_t>s.putters.n)


cdef inline uintptr_t taken_pop(queue *q, subqueue *s) noexcept nogil:
    """The head item of a tail that is not empty; the caller accounts for it with left()."""
    cdef uintptr_t item
    if unlikely(s.has_dead or s.head_idx == s.head.cap):
        taken_skip_dead(q, s)
    item = mt_chunk_items(s.head)[s.head_idx]
    s.head_idx += 1
    return item


cdef inline void taken_served(queue *q, subqueue *s) noexcept nogil:
    """After a get from s: its turn goes on, goes round, or ends because it is empty."""
    cdef mt_level *level = s.ready.level
    if q.selection == MT_ROUND_ROBIN and level.nready == 1 and q.ready.best.n == 1 and q.getters.n == 0:
        return                      # nobody to give way to; whether it is empty now is for the next get to see
    if unlikely(taken_empty(s)):
        s.turn = 0
        # The only one that is ready stays listed, so that a queue which runs empty all the time pays nothing for it.
        if level.nready > 1 or q.ready.best.n > 1 or q.getters.n:
            taken_unlist(q, s)
    elif unlikely(q.selection == MT_OLDEST):
        mt_heap_rekey(&level.by_time, s.ready.slot, taken_head_stamp(q, s))
    else:
        if s.turn == 0:
            s.turn = s.weight if q.selection == MT_WEIGHTED else 1
        s.turn -= 1
        if s.turn == 0 and level.front == &s.ready:
            level.front = s.ready.next


cdef inline subqueue *taken_next(queue *q, bint keep_lone) noexcept nogil:
    """The tail whose turn it is, or NULL. Empty ones are unlisted on the way; keep_lone spares the one that may stay."""
    cdef subqueue *s
    while q.ready.top != NULL:
        s = mt_subqueue_of(mt_ready_front(&q.ready, q.ready.top))
        if likely(not taken_empty(s)):
            return s
        if keep_lone and q.ready.top.nready == 1 and q.ready.best.n == 1:
            return NULL
        taken_unlist(q, s)
    return NULL


cdef inline void taken_cascade(queue *q, mt_waiter **wake) noexcept nogil:
    """More is there and somebody waits: the wake-up goes on, because only the first put of several sent one."""
    if unlikely(q.getters.n != 0) and taken_next(q, False) != NULL:
        mt_waitlist_notify(&q.getters, wake)


cdef inline int taken_get(queue *q, uintptr_t *item, subqueue **tail, bint attached, mt_waiter **wake) noexcept nogil:
    cdef subqueue *s = taken_next(q, True)
    if unlikely(s == NULL):
        return MT_EMPTY
    item[0] = taken_pop(q, s)
    tail[0] = s
    q.got += 1
    taken_left_and_served(q, s, 1, attached, wake)
    taken_cascade(q, wake)
    return MT_OK


cdef inline int64_t taken_pop_run(queue *q, subqueue *s, uintptr_t *items, int64_t n) noexcept nogil:
    """Up to n items from the head of one tail that is not empty; at most one chunk's worth."""
    cdef int64_t k, have
    taken_skip_dead(q, s)
    if s.has_dead:
        items[0] = taken_pop(q, s)
        return 1
    have = s.tail_seen - mt_load_relaxed_i64(&s.out)    # relaxed because: written under the take lock
    k = min(min(n, have), <int64_t>(s.head.cap - s.head_idx))
    memcpy(items, mt_chunk_items(s.head) + s.head_idx, k * sizeof(uintptr_t))
    s.head_idx += <uint16_t>k
    return k


cdef inline int64_t run_length(queue *q, subqueue *s, int64_t n) noexcept nogil:
    """How many items in a row the order of get would take from s, at most n."""
    if q.selection == MT_OLDEST:
        return n if s.ready.level.nready == 1 else 1
    if s.ready.level.nready == 1:
        return n
    if q.selection == MT_WEIGHTED:
        return min(n, <int64_t>(s.turn if s.turn else s.weight))
    return 1


cdef inline void taken_served_run(queue *q, subqueue *s, int64_t n) noexcept nogil:
    """As taken_served() n times; n is within run_length()."""
    cdef int64_t left_of_turn, w = s.weight
    if n > 1 and q.selection == MT_WEIGHTED:
        left_of_turn = (s.turn if s.turn else w) - (n - 1)
        if left_of_turn <= 0:       # alone: whole turns went by
            left_of_turn = (left_of_turn % w + w) % w
        s.turn = <uint32_t>left_of_turn
    taken_served(q, s)


cdef inline void taken_left_and_served(queue *q, subqueue *s, int64_t n, bint attached, mt_waiter **wake) noexcept nogil:
    """n items were popped: make room for putters, then go on with the turn."""
    # A putter may use the room before the turn is looked at; a tail that ran empty loses the rest of its turn all the same.
    cdef bint ran_empty = q.selection == MT_WEIGHTED and s.bounded and taken_count(s) == n
    left(q, s, n, attached, wake)
    if unlikely(ran_empty):
        s.turn = 1
        n = 1
    if likely(n == 1):
        taken_served(q, s)
    else:
        taken_served_run(q, s, n)


cdef inline int64_t taken_get_many(queue *q, uintptr_t *items, int64_t n, bint attached, mt_waiter **wake) noexcept nogil:
    """What n gets would return, as far as there is something."""
    cdef int64_t got = 0, k
    cdef subqueue *s
    while got < n:
        s = taken_next(q, True)
        if s == NULL:
            break
        k = taken_pop_run(q, s, items + got, run_length(q, s, n - got))
        got += k
        q.got += k
        taken_left_and_served(q, s, k, attached, wake)
    if got:
        taken_cascade(q, wake)
    return got


cdef inline int64_t ring_count(mt_ready *r, mt_level *level, int64_t enough) noexcept nogil:
    cdef int64_t n = 0
    cdef mt_ready_node *node = level.front
    cdef uint32_t i
    for i in range(level.nready):
        if r.oldest:
            node = <mt_ready_node *>level.by_time.items[i].obj
        n += taken_count(mt_subqueue_of(node))
        if n >= enough:
            break
        node = node.next
    return n


cdef inline int64_t taken_qsize(queue *q, int64_t enough) noexcept nogil:
    """Items that get can reach; stops counting at `enough`. Looks at ready tails only."""
    cdef int64_t n = 0
    cdef uint32_t i
    for i in range(q.ready.best.n):
        n += ring_count(&q.ready, <mt_level *>q.ready.best.items[i].obj, enough - n)
        if n >= enough:
            return enough
    return n


# -------------------------------------------------------------------------------------------------------------- waiting
cdef inline int wait_ready(queue *q, int64_t deadline, bint attached) noexcept nogil:
    """After a get found nothing: until another is worth trying, MT_OK. Else MT_SHUTDOWN, MT_TIMEOUT (ONCE: MT_EMPTY),
    MT_INTERRUPTED or MT_NOMEM."""
    cdef mt_waiter w
    cdef mt_backoff spin
    cdef bint spun = MT_FREE_THREADED and deadline != ONCE
    cdef int r
    spin.step = GETTER_SPIN_FIRST
    spin.limit = GETTER_SPIN_LIMIT
    while True:
        spun = spun and mt_backoff_spin(&spin)
        lock_take(q, attached)
        r = taken_ready(q, spun, deadline)
        if r != MT_EMPTY or deadline == ONCE:
            unlock_take(q)
            return r
        if spun:
            unlock_take(q)
            continue
        if waiter_open(&w) != MT_OK:
            unlock_take(q)
            return MT_NOMEM
        mt_waitlist_push(&q.getters, &w)
        unlock_take(q)
        mt_point()
        r = waiter_park(&w, deadline, attached)
        mt_point()
        if r != MT_OK:
            r = stop_waiting_for_items(q, &w, r, attached)
        waiter_close(&w)
        return r


cdef inline int taken_ready(queue *q, bint keep_lone, int64_t deadline) noexcept nogil:
    """MT_OK: there is something. MT_SHUTDOWN: and never will be. MT_EMPTY."""
    if taken_next(q, keep_lone or deadline == ONCE) != NULL:
        return MT_OK
    return MT_SHUTDOWN if q.shut else MT_EMPTY


cdef inline int stop_waiting_for_items(queue *q, mt_waiter *w, int why, bint attached) noexcept nogil:
    """Leave the list. A wake-up that had come is used (time out: the caller tries once more) or passed on."""
    cdef mt_waiter *wake = NULL
    cdef bint notified
    lock_take(q, attached)
    notified = mt_waitlist_leave(&q.getters, w) == MT_WAITER_NOTIFIED
    if notified and why == MT_INTERRUPTED:
        taken_cascade(q, &wake)
    unlock_take(q)
    if wake != NULL:
        post_chain(wake)
    if notified:
        waiter_await_post(w, attached)
        if why == MT_TIMEOUT:
            return MT_OK
    return why


cdef inline void pass_on_to_getter(queue *q, bint attached) noexcept nogil:
    """Somebody who was woken for an item will not take it."""
    cdef mt_waiter *wake = NULL
    lock_take(q, attached)
    taken_cascade(q, &wake)
    unlock_take(q)
    if wake != NULL:
        post_chain(wake)


cdef inline int wait_for_room(queue *q, subqueue *s, int64_t deadline, bint attached) noexcept nogil:
    """Until a put is worth trying: MT_OK. Else MT_SHUTDOWN, MT_TIMEOUT (ONCE: MT_FULL), MT_INTERRUPTED or MT_NOMEM."""
    cdef mt_waiter w
    cdef int r = MT_OK
    lock_put(q, s, attached)
    if s.gate != 0:
        r = MT_SHUTDOWN
    elif deadline == ONCE:
        r = MT_FULL if putting_room(s, mt_load_relaxed_i64(&s.tail_seq)) <= 0 else MT_OK   # relaxed because: put lock
    elif waiter_open(&w) != MT_OK:
        r = MT_NOMEM
    else:
        mt_waitlist_push(&s.putters, &w)
        mt_point()
        # pairs with: mt_load_seq_cst in left, after mt_xchg_seq_cst of out
        mt_xchg_seq_cst_u32(&s.putters_waiting, <uint32_t>s.putters.n)
        mt_point()
        if putting_room(s, mt_load_relaxed_i64(&s.tail_seq)) > 0:     # relaxed because: put lock
            putting_leave(s, &w)
            unlock_put(q, s)
        else:
            unlock_put(q, s)
            mt_point()
            r = waiter_park(&w, deadline, attached)
            mt_point()
            if r != MT_OK:
                r = stop_waiting_for_room(q, s, &w, r, attached)
        waiter_close(&w)
        return r
    unlock_put(q, s)
    return r


cdef inline bint putting_leave(subqueue *s, mt_waiter *w) noexcept nogil:
    cdef bint notified = mt_waitlist_leave(&s.putters, w) == MT_WAITER_NOTIFIED
    # pairs with: mt_load_seq_cst in left
    mt_xchg_seq_cst_u32(&s.putters_waiting, <uint32_t>s.putters.n)
    return notified


cdef inline int stop_waiting_for_room(queue *q, subqueue *s, mt_waiter *w, int why, bint attached) noexcept nogil:
    cdef bint notified
    lock_put(q, s, attached)
    notified = putting_leave(s, w)
    unlock_put(q, s)
    if notified:
        if why == MT_INTERRUPTED:
            pass_on_to_putter(q, s, attached)
        waiter_await_post(w, attached)
        if why == MT_TIMEOUT:
            return MT_OK
    return why


cdef inline void pass_on_to_putter(queue *q, subqueue *s, bint attached) noexcept nogil:
    """There may be room for one more: wake the next who waits for it."""
    cdef mt_waiter *wake = NULL
    lock_put(q, s, attached)
    if s.putters.n and putting_room(s, mt_load_relaxed_i64(&s.tail_seq)) > 0:     # relaxed because: put lock
        putting_notify(s, &wake)
    unlock_put(q, s)
    if wake != NULL:
        post_chain(wake)


# ------------------------------------------------------------------------------------------------ one try of each put
cdef inline int put_once(queue *q, subqueue *s, uintptr_t item, bint attached) noexcept nogil:
    cdef int r
    cdef bint more_waiting
    if unlikely(is_unknown(s)):
        return put_unknown(q, s, item, attached)
    lock_put(q, s, attached)
    if unlikely(is_unknown(s)):
        unlock_put(q, s)
        return put_unknown(q, s, item, attached)
    r = putting_one(q, s, item)
    more_waiting = putting_crowded(s)
    unlock_put(q, s)
    if unlikely(more_waiting) and r == MT_OK:
        pass_on_to_putter(q, s, attached)       # the cascade: one place may have become several
    return r


cdef inline bint putting_crowded(subqueue *s) noexcept nogil:
    # relaxed because: maxsize is written under the put lock; asked first, because it shares the line that is in use
    return mt_load_relaxed_i64(&s.maxsize) > 0 and s.putters.n != 0


cdef inline int put_unknown(queue *q, subqueue *s, uintptr_t item, bint attached) noexcept nogil:
    """A put that the head has to learn of."""
    cdef mt_waiter *wake = NULL
    cdef bint more_waiting
    cdef int r
    lock_take(q, attached)
    mt_point()
    lock_put(q, s, attached)
    r = putting_one(q, s, item)
    if r == MT_OK:
        taken_learn(q, s, &wake)
    more_waiting = putting_crowded(s)
    unlock_put(q, s)
    unlock_take(q)
    if unlikely(wake != NULL):
        post_chain(wake)
    if unlikely(more_waiting) and r == MT_OK:
        pass_on_to_putter(q, s, attached)
    return r


cdef inline int put_run_once(queue *q, subqueue *s, const uintptr_t *items, int64_t n, bint count_refs, int64_t *done,
                             bint attached) noexcept nogil:
    cdef mt_waiter *wake = NULL
    cdef bint more_waiting, unknown = is_unknown(s)
    cdef int r
    if not unknown:
        lock_put(q, s, attached)
        unknown = is_unknown(s)
        if unknown:
            unlock_put(q, s)
    if unknown:
        lock_take(q, attached)
        lock_put(q, s, attached)
    r = putting_run(q, s, items, n, count_refs, done)
    if unknown and done[0]:
        taken_learn(q, s, &wake)
    more_waiting = putting_crowded(s)
    unlock_put(q, s)
    if unknown:
        unlock_take(q)
    if wake != NULL:
        post_chain(wake)
    if more_waiting and done[0]:
        pass_on_to_putter(q, s, attached)
    return r


cdef inline int put_front_once(queue *q, subqueue *s, uintptr_t item, bint attached) noexcept nogil:
    cdef mt_waiter *wake = NULL
    cdef int r
    lock_take(q, attached)
    lock_put(q, s, attached)
    r = taken_put_front(q, s, item)
    if r == MT_OK:
        taken_learn(q, s, &wake)
    unlock_put(q, s)
    unlock_take(q)
    if wake != NULL:
        post_chain(wake)
    if r == MT_OK:
        pass_on_to_putter(q, s, attached)
    return r


# --------------------------------------------------------------------------------------------------- puts that wait
cdef inline int put_until(queue *q, subqueue *s, uintptr_t item, bint front, int64_t deadline, bint attached) noexcept nogil:
    """Put, waiting for room. The caller counts the item's reference before, and takes it back unless this returns MT_OK."""
    cdef int r
    while True:
        r = put_front_once(q, s, item, attached) if unlikely(front) else put_once(q, s, item, attached)
        if likely(r == MT_OK):
            return r
        if r == MT_FULL:
            r = wait_for_room(q, s, deadline, attached)
            if r == MT_OK:
                continue
        elif r == MT_NOMEM:
            pass_on_to_putter(q, s, attached)       # whoever was woken for this place does not use it
        return r


cdef inline int put_run_until(queue *q, subqueue *s, const uintptr_t *items, int64_t n, bint count_refs, int64_t deadline, int64_t *count,
                              bint attached) noexcept nogil:
    """Put the items from number *count on, as one chain for each time that there is room; *count says how many are in."""
    cdef int64_t done = 0
    cdef int r
    while count[0] < n:
        r = put_run_once(q, s, items + count[0], n - count[0], count_refs, &done, attached)
        count[0] += done
        if likely(r == MT_OK):
            continue
        if r == MT_FULL:
            r = wait_for_room(q, s, deadline, attached)
        elif r == MT_NOMEM:
            pass_on_to_putter(q, s, attached)       # as above
        if r != MT_OK:
            return r
    return MT_OK


# ------------------------------------------------------------------------------------------------ the registry, for fork
# Every queue of the process is linked here. When os.fork() is called no attached thread is half way through an operation:
# with the GIL because the forking thread has it, without because CPython stops the world first. Detached threads are one of
# three things. In a bulk operation: those are counted, fork waits until none is inside, and while it is pending new ones
# stay attached. Parked as waiters: nothing is half done. Or they wait for a put lock with the take lock held: what they left
# undone there is at most that a tail's place in its ring does not say yet what `unknown`, enabled and the items say, because
# whatever else an operation changes it changes before or after that wait as a whole; the child's mend_tail() finishes it.
# So the child has whole structures, and forgets the locks and waiters of threads that it does not have.
# Threads that are unknown to the interpreter (nogil API) cannot be waited for.
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
    """Called attached. 1: the caller may detach for a bulk operation on q and calls leave_bulk() attached afterwards."""
    cdef bint ok
    enter(&multiqueues.bulk_lock, False, True)
    ok = multiqueues.forks_pending == 0
    multiqueues.bulks_inside += ok
    q.bulks += ok
    leave(&multiqueues.bulk_lock, False)
    return ok


cdef inline void leave_bulk(queue *q) noexcept nogil:
    cdef mt_waiter *wake = NULL
    enter(&multiqueues.bulk_lock, False, True)
    q.bulks -= 1
    multiqueues.bulks_inside -= 1
    if multiqueues.bulks_inside == 0:
        mt_waitlist_notify_all(&multiqueues.forkers, &wake)
    leave(&multiqueues.bulk_lock, False)
    post_chain(wake)


cdef inline int hold_bulks() noexcept nogil:
    """Before fork: MT_OK when no detached bulk operation is inside, and none begins until release_bulks(). Several threads may fork at
    once: each one holds them."""
    cdef mt_waiter w
    cdef int r = MT_OK
    enter(&multiqueues.bulk_lock, False, True)
    multiqueues.forks_pending += 1
    if multiqueues.bulks_inside == 0:
        leave(&multiqueues.bulk_lock, False)
        return MT_OK
    r = waiter_open(&w)
    if r == MT_OK:
        mt_waitlist_push(&multiqueues.forkers, &w)
        leave(&multiqueues.bulk_lock, False)
        waiter_await_post(&w, True)
        waiter_close(&w)
        return MT_OK
    leave(&multiqueues.bulk_lock, False)
    return r


cdef inline void release_bulks() noexcept nogil:
    """After fork, in the parent."""
    enter(&multiqueues.bulk_lock, False, True)
    multiqueues.forks_pending -= 1
    leave(&multiqueues.bulk_lock, False)


cdef inline void reset_tails(subqueue *s, unsigned long me) noexcept nogil:
    while s != NULL:
        mt_lock_reset(&s.put_lock)
        mt_waitlist_keep_thread(&s.putters, me)
        mt_xchg_seq_cst_u32(&s.putters_waiting, <uint32_t>s.putters.n)  # pairs with: mt_load_seq_cst in left
        s = s.all_next


cdef inline void mend_tail(queue *q, subqueue *s) noexcept nogil:
    """Bring its place in the ring in line with what else is known of it."""
    if not s.enabled or s.gate & MT_GATE_STOPPED:
        taken_hide(q, s)
    elif not s.ready.listed:
        taken_unlisted(q, s)


cdef inline void forget_other_threads(unsigned long me) noexcept nogil:
    """In the child: locks are free, nobody waits but event loops of the one thread that is left."""
    cdef queue *q = <queue *>multiqueues.first
    cdef subqueue *s
    while q != NULL:
        q.bulks = 0
        mt_lock_reset(&q.take_lock)
        mt_waitlist_keep_thread(&q.getters, me)
        mt_waitlist_keep_thread(&q.joiners, me)
        reset_tails(q.all_first, me)
        reset_tails(q.gone, me)
        s = q.all_first
        while s != NULL and not q.serial:
            mend_tail(q, s)
            s = s.all_next
        q = q.reg_next
    mt_lock_reset(&multiqueues.lock)
    mt_lock_reset(&multiqueues.bulk_lock)
    mt_waitlist_keep_thread(&multiqueues.forkers, me)
    multiqueues.forks_pending = 0
    multiqueues.bulks_inside = 0


# -------------------------------------------------------------------------------------------------------- queues, tails
cdef inline queue *new_queue(bint serial, bint attached) noexcept nogil:
    cdef queue *q = <queue *>mt_alloc_aligned(sizeof(queue))
    if q != NULL:
        q.serial = serial
        mt_fetch_add_relaxed_u32(&q.refs, 1)    # relaxed because: nobody else has it yet
        register(q, attached)
    return q


cdef inline void drop_queue(queue *q, bint attached) noexcept nogil:
    """Give up one handle; the last one frees it. No tail is attached then, nobody waits."""
    # pairs with: itself, in other threads: the last sees all that the others did
    if mt_fetch_add_acq_rel_u32(&q.refs, <uint32_t>-1) != 1:
        return
    unregister(q, attached)
    mt_ready_free(&q.ready)
    mt_chunk_free(<mt_chunk *>mt_xchg_acq_rel_uptr(&q.spare, 0))    # pairs with: mt_xchg_acq_rel in drop_chunk
    mt_free_aligned(q)


cdef inline subqueue *new_tail(queue *q, int64_t priority, int64_t maxsize, uint32_t weight, bint enabled) noexcept nogil:
    """Not attached yet. NULL: no memory."""
    cdef subqueue *s = <subqueue *>mt_alloc_aligned(sizeof(subqueue))
    if s == NULL:
        return NULL
    s.mq = q
    s.serial = <uint8_t>q.serial
    mt_fetch_add_relaxed_u32(&q.refs, 1)                    # relaxed because: the caller holds a reference already
    mt_store_relaxed_i64(&s.maxsize, maxsize)               # relaxed because: nobody else has it yet
    s.bounded = maxsize > 0
    s.priority = priority
    s.weight = weight
    s.enabled = enabled
    return s


cdef inline int attach_tail(queue *q, subqueue *s, bint attached) noexcept nogil:
    """Join the queue. MT_OK, MT_SHUTDOWN or MT_NOMEM."""
    cdef int r = MT_OK
    lock_take(q, attached)
    if q.shut:
        r = MT_SHUTDOWN
    else:
        s.ready.level = mt_ready_join_level(&q.ready, s.priority)
        if s.ready.level == NULL:
            r = MT_NOMEM
        else:
            q.begun = 1                     # its selection is constant from here on
            s.stamped = q.selection == MT_OLDEST
            taken_link(q, s)
            set_unknown(s, s.enabled)       # no putter has it yet
    unlock_take(q)
    return r


cdef inline void taken_link(queue *q, subqueue *s) noexcept nogil:
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


cdef inline void taken_unlink(queue *q, subqueue *s) noexcept nogil:
    """From the attached tails to the gone ones."""
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
    s.all_next = q.gone
    if q.gone != NULL:
        q.gone.all_prev = s
    q.gone = s


cdef inline void taken_unlink_gone(queue *q, subqueue *s) noexcept nogil:
    if s.all_prev != NULL:
        s.all_prev.all_next = s.all_next
    else:
        q.gone = s.all_next
    if s.all_next != NULL:
        s.all_next.all_prev = s.all_prev


cdef inline bint detach_tail(queue *q, subqueue *s, bint attached) noexcept nogil:
    """Leave the queue with all items: blocked and later puts get MT_SHUTDOWN. 0: it had left before."""
    cdef mt_waiter *wake = NULL
    cdef int64_t count
    lock_take(q, attached)
    if not s.attached:
        unlock_take(q)
        return False
    lock_put(q, s, attached)
    s.gate |= MT_GATE_DETACHED
    putting_notify_all(s, &wake)
    taken_hide(q, s)
    unlock_put(q, s)
    count = taken_count(s)
    taken_count_away(q, count)
    q.gone_put += taken_ever_put(s)
    taken_unlink(q, s)
    mt_ready_leave_level(&q.ready, s.ready.level)
    s.ready.level = NULL
    taken_finish(q, &wake)
    unlock_take(q)
    if wake != NULL:
        post_chain(wake)
    return True


cdef inline void putting_notify_all(subqueue *s, mt_waiter **wake) noexcept nogil:
    mt_waitlist_notify_all(&s.putters, wake)
    mt_xchg_seq_cst_u32(&s.putters_waiting, 0)      # pairs with: mt_load_seq_cst in left


cdef inline void free_tail(subqueue *s, bint attached) noexcept nogil:
    """The last handle of a detached, emptied tail."""
    cdef queue *q = s.mq
    if s.gate & MT_GATE_DETACHED:       # else it never was attached
        lock_take(q, attached)
        taken_unlink_gone(q, s)
        unlock_take(q)
    mt_free_aligned(s)
    drop_queue(q, attached)


cdef inline void drop_left_chunks(queue *q, subqueue *s) noexcept nogil:
    """Chunks of a tail that has no items any more, but kept its last one for the next put."""
    cdef mt_chunk *c = s.head
    cdef mt_chunk *following
    while c != NULL:
        following = mt_chunk_next(c)
        mt_chunk_free(c)
        c = following
    s.head = s.tail = NULL


# ---------------------------------------------------------------------------------------------------- changes while used
cdef inline void enable_tail(queue *q, subqueue *s, bint enabled, bint attached) noexcept nogil:
    cdef mt_waiter *wake = NULL
    lock_take(q, attached)
    if (s.enabled != 0) != enabled:
        s.enabled = enabled
        if s.attached:
            q.nenabled += 1 if enabled else -1
            if not enabled:
                lock_put(q, s, attached)
                taken_hide(q, s)
                unlock_put(q, s)
            elif not s.gate & MT_GATE_STOPPED:
                taken_show(q, s, &wake)
    unlock_take(q)
    if wake != NULL:
        post_chain(wake)


cdef inline int set_priority(queue *q, subqueue *s, int64_t priority, bint attached) noexcept nogil:
    """Move to the end of that priority's turn. MT_OK or MT_NOMEM."""
    cdef mt_level *level
    cdef bint listed
    cdef int r = MT_OK
    lock_take(q, attached)
    if s.attached and priority != s.priority:
        level = mt_ready_join_level(&q.ready, priority)
        if level == NULL:
            r = MT_NOMEM
        else:
            listed = s.ready.listed
            if listed:
                mt_ready_remove(&q.ready, &s.ready)
            s.turn = 0
            mt_ready_leave_level(&q.ready, s.ready.level)
            s.ready.level = level
            s.priority = priority
            if listed and not taken_forget(q, s):
                taken_list(q, s)
    elif not s.attached:
        s.priority = priority
    unlock_take(q)
    return r


cdef inline void set_weight(queue *q, subqueue *s, uint32_t weight, bint attached) noexcept nogil:
    lock_take(q, attached)
    s.weight = weight
    unlock_take(q)


cdef inline void set_maxsize(queue *q, subqueue *s, int64_t maxsize, bint attached) noexcept nogil:
    cdef mt_waiter *wake = NULL
    lock_take(q, attached)
    lock_put(q, s, attached)
    mt_store_relaxed_i64(&s.maxsize, maxsize)       # relaxed because: both locks are held
    s.bounded = maxsize > 0
    putting_notify_all(s, &wake)                    # all of them: they wait again if that was too many
    unlock_put(q, s)
    unlock_take(q)
    if wake != NULL:
        post_chain(wake)


# ------------------------------------------------------------------------------------------------------ taking items away
cdef inline mt_chunk *taken_cut(queue *q, subqueue *s, uint32_t *first, uint32_t *last, bint forget, mt_waiter **wake,
                                bint attached) noexcept nogil:
    """The chain of a tail that becomes empty now; forget: and unknown to the head. Each chunk is retired, pinned, and linked by
    `base`; live are the slots from `first` (of the first chunk) up to `last` (of the last one)."""
    cdef mt_chunk *c
    cdef mt_chunk *chain
    cdef mt_chunk *following
    lock_put(q, s, attached)
    chain = s.head
    first[0] = s.head_idx
    last[0] = s.tail_idx
    c = chain
    while c != NULL:
        following = mt_chunk_next(c) if c != s.tail else NULL
        mt_chunk_pin(c)
        mt_chunk_retire(c)
        c.base = <int64_t>following
        c = following
    s.head = s.tail = NULL
    s.head_idx = 0
    s.tail_idx = 0
    s.ndead = 0
    s.has_dead = 0
    s.out_seen = mt_load_relaxed_i64(&s.tail_seq)   # relaxed because: both locks are held
    s.tail_seen = s.out_seen
    mt_store_release_i64(&s.out, s.out_seen)        # pairs with: mt_load_seq_cst in putting_room
    if forget:
        set_unknown(s, True)
    putting_notify_all(s, wake)
    unlock_put(q, s)
    return chain


cdef inline int64_t clear_tail(queue *q, subqueue *s, mt_chunk **chain, uint32_t *first, uint32_t *last, bint attached) noexcept nogil:
    """Empty it at one instant; the caller disposes of the chain without locks. How many items."""
    cdef mt_waiter *wake = NULL
    cdef int64_t n
    lock_take(q, attached)
    n = taken_clear(q, s, chain, first, last, &wake, attached)
    if n and s.attached:
        taken_count_away(q, n)
        taken_finish(q, &wake)
    unlock_take(q)
    if wake != NULL:
        post_chain(wake)
    return n


cdef inline int64_t taken_clear(queue *q, subqueue *s, mt_chunk **chain, uint32_t *first, uint32_t *last, mt_waiter **wake,
                                bint attached) noexcept nogil:
    cdef bint listed = s.ready.listed
    cdef int64_t n
    chain[0] = NULL
    if taken_count(s) == 0:
        return 0
    if listed:
        mt_ready_remove(&q.ready, &s.ready)
        s.turn = 0
    # A put between the count and the cut is cut as well: count by what `out` moves.
    n = mt_load_relaxed_i64(&s.out)                 # relaxed because: written under the take lock
    chain[0] = taken_cut(q, s, first, last, listed, wake, attached)
    return mt_load_relaxed_i64(&s.out) - n          # relaxed because: written under the take lock


cdef inline bint discard_at(queue *q, subqueue *s, mt_chunk *c, uint32_t i, uintptr_t item, bint attached) noexcept nogil:
    """Remove the item in slot i of a pinned chunk, if it is still there."""
    cdef mt_waiter *wake = NULL
    cdef bint there
    lock_take(q, attached)
    there = taken_holds(s, c, i) and mt_chunk_items(c)[i] == item
    if there:
        mt_chunk_kill(c, i)
        s.ndead += 1
        s.has_dead = 1
        if s.attached:
            taken_count_away(q, 1)
        left(q, s, 1, attached, &wake)
        if s.ready.listed:
            if taken_empty(s):
                taken_unlist(q, s)
            else:
                taken_rekey(q, s)
        taken_drop_dead_chunk(q, s, c)
        if s.attached:
            taken_finish(q, &wake)
    unlock_take(q)
    if wake != NULL:
        post_chain(wake)
    return there


cdef inline bint taken_holds(subqueue *s, mt_chunk *c, uint32_t i) noexcept nogil:
    """Slot i of c still has an item of this tail."""
    if mt_chunk_retired(c) or (c == s.head and i < s.head_idx):
        return False
    return not mt_chunk_is_dead(c, i)


cdef inline void taken_drop_dead_chunk(queue *q, subqueue *s, mt_chunk *c) noexcept nogil:
    """All slots of a chunk in the middle are dead: unlink it, so that discarding behind a stuck head frees memory."""
    cdef mt_chunk *before = s.head
    taken_count(s)
    if c.ndead != c.cap or c == s.head or c.base + c.cap >= s.tail_seen:
        return                      # still in use, or it may be the tail, whose `next` a putter is about to write
    while mt_chunk_next(before) != c:
        before = mt_chunk_next(before)
    mt_chunk_link(before, mt_chunk_next(c))
    s.ndead -= c.ndead
    s.has_dead = s.ndead > 0
    if mt_chunk_retire(c):
        drop_chunk(q, c)


# -------------------------------------------------------------------------------------------------- tasks, join, shutdown
cdef inline int64_t taken_ever_put(subqueue *s) noexcept nogil:
    # pairs with: mt_store_release in putting_one, putting_run
    return mt_load_acquire_i64(&s.tail_seq) + s.nfront


cdef inline int64_t taken_put_total(queue *q) noexcept nogil:
    cdef int64_t n = q.gone_put
    cdef subqueue *s = q.all_first
    while s != NULL:
        n += taken_ever_put(s)
        s = s.all_next
    return n


cdef inline int64_t taken_unfinished(queue *q) noexcept nogil:
    return taken_put_total(q) - q.taken_away - q.done


cdef inline void taken_count_away(queue *q, int64_t n) noexcept nogil:
    """n items were taken away: they count as done, unless task_done() was called for them before they were got."""
    if q.done > q.got:
        n = min(n, max(<int64_t>0, taken_unfinished(q)))
    q.taken_away += n


cdef inline void taken_finish(queue *q, mt_waiter **wake) noexcept nogil:
    """Something counts as done now: wake who joins, if it was the last. Cheap unless somebody joins."""
    if q.joiners.n == 0 or q.done < q.got:
        return
    if q.done == q.got and taken_next(q, True) != NULL:
        return                      # spares the walk over all tails while a consumer keeps up
    if taken_unfinished(q) == 0:
        mt_waitlist_notify_all(&q.joiners, wake)


cdef inline bint task_done(queue *q, bint attached) noexcept nogil:
    """0: one too many."""
    cdef mt_waiter *wake = NULL
    cdef bint ok
    lock_take(q, attached)
    # What was got and is not done suffices nearly always; the total over all tails is asked for only in doubt.
    ok = q.done < q.got or taken_unfinished(q) > 0
    if ok:
        q.done += 1
        taken_finish(q, &wake)
    unlock_take(q)
    if wake != NULL:
        post_chain(wake)
    return ok


cdef inline int wait_joined(queue *q, int64_t deadline, bint attached) noexcept nogil:
    """MT_OK: all tasks were done at some instant. MT_TIMEOUT, MT_INTERRUPTED, MT_NOMEM."""
    cdef mt_waiter w
    cdef int r
    lock_take(q, attached)
    if taken_unfinished(q) == 0:
        unlock_take(q)
        return MT_OK
    if waiter_open(&w) != MT_OK:
        unlock_take(q)
        return MT_NOMEM
    mt_waitlist_push(&q.joiners, &w)
    unlock_take(q)
    r = waiter_park(&w, deadline, attached)
    if r != MT_OK:
        lock_take(q, attached)
        if mt_waitlist_leave(&q.joiners, &w) == MT_WAITER_NOTIFIED:
            unlock_take(q)
            waiter_await_post(&w, attached)         # every joiner is woken: there is nobody to pass it on to
            if r == MT_TIMEOUT:
                r = MT_OK
        else:
            unlock_take(q)
    waiter_close(&w)
    return r


cdef inline void shut_queue(queue *q, bint stop, bint attached) noexcept nogil:
    """No more puts, at one instant for all tails. stop: nothing can be got any more either; items stay where they are."""
    cdef mt_waiter *wake = NULL
    cdef subqueue *s
    lock_take(q, attached)
    s = q.all_first
    while s != NULL:
        lock_put(q, s, attached)        # all of them, before the first is shut
        s = s.all_next
    q.shut = 1
    s = q.all_first
    while s != NULL:
        shut_tail(q, s, stop, &wake)
        unlock_put(q, s)
        s = s.all_next
    mt_waitlist_notify_all(&q.getters, &wake)
    unlock_take(q)
    if wake != NULL:
        post_chain(wake)


cdef inline void shut_tail(queue *q, subqueue *s, bint stop, mt_waiter **wake) noexcept nogil:
    s.gate |= MT_GATE_SHUTDOWN
    putting_notify_all(s, wake)
    if stop:
        s.gate |= MT_GATE_STOPPED
        taken_hide(q, s)


# ------------------------------------------------------------------------------------------------------------- iteration
cdef enum:
    SNAPSHOT = 64       # items that an iterator copies at a time


ctypedef struct cursor:
    mt_chunk *chunk             # pinned, or NULL before the first step and after the last
    int64_t position            # of the next item to see; only grows
    uint32_t n                  # items in the snapshot
    uintptr_t items[SNAPSHOT]
    uint32_t slots[SNAPSHOT]    # where they stand in `chunk`


cdef inline void cursor_open(cursor *k) noexcept nogil:
    k.chunk = NULL
    k.position = INT64_MIN
    k.n = 0


cdef inline mt_chunk *taken_find(subqueue *s, cursor *k) noexcept nogil:
    """The chunk that holds the cursor's position or the first one after it; NULL: nothing is left to see."""
    cdef mt_chunk *c = k.chunk
    if taken_count(s) == 0:
        return NULL
    if c == NULL or mt_chunk_retired(c):
        c = s.head              # a self-link means: go on from the head
    if c == s.head:
        k.position = max(k.position, c.base + s.head_idx)
    while k.position >= c.base + c.cap and k.position < s.tail_seen:
        c = mt_chunk_next(c)
        k.position = max(k.position, c.base)
    return c if k.position < s.tail_seen else NULL


cdef inline void taken_copy(subqueue *s, cursor *k, bint count_refs) noexcept nogil:
    """The live items of the cursor's chunk from its position on, as many as fit."""
    cdef mt_chunk *c = k.chunk
    cdef int64_t end = min(c.base + c.cap, s.tail_seen)
    cdef uint32_t i
    while k.position < end and k.n < SNAPSHOT:
        i = <uint32_t>(k.position - c.base)
        k.position += 1
        if not mt_chunk_is_dead(c, i):
            k.items[k.n] = mt_chunk_items(c)[i]
            k.slots[k.n] = i
            if count_refs:
                keep(k.items[k.n])
            k.n += 1


cdef inline void cursor_step(queue *q, subqueue *s, cursor *k, bint count_refs) noexcept nogil:
    """The next snapshot; n == 0: the end. The take lock is held for one chunk at most."""
    cdef mt_chunk *before = k.chunk
    cdef bint unused
    k.n = 0
    lock_take(q, True)
    while k.n == 0:
        k.chunk = taken_find(s, k)
        if k.chunk == NULL:
            break
        taken_copy(s, k, count_refs)
    if k.chunk != NULL:
        mt_chunk_pin(k.chunk)
    unused = before != NULL and mt_chunk_unpin(before)
    unlock_take(q)
    if unused:
        drop_chunk(q, before)


cdef inline void cursor_close(queue *q, cursor *k) noexcept nogil:
    cdef mt_chunk *c = k.chunk
    cdef bint unused
    if c == NULL:
        return
    k.chunk = NULL
    lock_take(q, True)
    unused = mt_chunk_unpin(c)
    unlock_take(q)
    if unused:
        drop_chunk(q, c)


# ------------------------------------------------------------------------------------------------------ without Python
# What the nogil API asks for: callers hold no thread state; items are pointers or integers; timeouts as in python/manytail/_multiqueue.pxd.
cdef inline void drop_chain(queue *q, mt_chunk *chain, uint32_t first, uint32_t last, item_drop drop, void *arg,
                            bint attached) noexcept nogil:
    """Hand over and free what taken_cut() cut off. No lock is held while `drop` runs."""
    cdef mt_chunk *following
    cdef uint32_t i, end
    cdef bint unused
    while chain != NULL:
        following = <mt_chunk *>chain.base
        end = chain.cap if following != NULL else last
        for i in range(first, end):
            if drop != NULL and not mt_chunk_is_dead(chain, i):
                drop(mt_chunk_items(chain)[i], arg)
        lock_take(q, attached)
        unused = mt_chunk_unpin(chain)
        unlock_take(q)
        if unused:
            drop_chunk(q, chain)
        chain = following
        first = 0


cdef inline void drop_items(queue *q, subqueue *s, item_drop drop, void *arg) noexcept nogil:
    cdef mt_chunk *chain
    cdef uint32_t first = 0, last = 0
    clear_tail(q, s, &chain, &first, &last, False)
    drop_chain(q, chain, first, last, drop, arg, False)


cdef inline void destroy_queue(queue *q, item_drop drop, void *arg) noexcept nogil:
    cdef subqueue *s
    if q == NULL:
        return
    while q.all_first != NULL:
        remove_tail(q, q.all_first, drop, arg)
    while q.gone != NULL:
        s = q.gone
        drop_left_chunks(q, s)
        free_tail(s, False)
    drop_queue(q, False)


cdef inline subqueue *add_tail(queue *q, int priority, int64_t maxsize, int weight) noexcept nogil:
    cdef subqueue *s
    if weight < 1:
        return NULL
    s = new_tail(q, priority, maxsize, <uint32_t>weight, True)
    if s == NULL:
        return NULL
    if attach_tail(q, s, False) != MT_OK:
        free_tail(s, False)
        return NULL
    return s


cdef inline int remove_tail(queue *q, subqueue *s, item_drop drop, void *arg) noexcept nogil:
    if s == NULL or s.mq != q or not detach_tail(q, s, False):
        return MT_BADARG
    drop_items(q, s, drop, arg)
    return MT_OK        # putters may still be on their way out of the structure, so it stays until the queue goes


cdef inline int64_t deadline_in(int64_t timeout_ns) noexcept nogil:
    cdef int64_t now
    if timeout_ns < 0:
        return NEVER
    if timeout_ns == 0:
        return ONCE
    now = mt_now_ns()
    return NEVER if timeout_ns > INT64_MAX - now else now + timeout_ns


cdef inline int put_within(subqueue *s, uintptr_t item, int64_t timeout_ns) noexcept nogil:
    cdef queue *q = s.mq
    cdef int r = put_once(q, s, item, False)
    if likely(r != MT_FULL) or timeout_ns == 0:
        return r
    return put_until(q, s, item, False, deadline_in(timeout_ns), False)


cdef inline int put_run_within(subqueue *s, const uintptr_t *items, int64_t n, int64_t timeout_ns, int64_t *count) noexcept nogil:
    cdef int64_t put = 0
    cdef int r
    if n < 0 or (n > 0 and items == NULL):
        return MT_BADARG
    r = put_run_until(s.mq, s, items, n, False, deadline_in(timeout_ns), &put, False)
    if count != NULL:
        count[0] = put
    return r


cdef inline int get_or_wait(queue *q, uintptr_t *items, int64_t n, subqueue **tail, int64_t timeout_ns, int64_t *count) noexcept nogil:
    """n == 1 tells the tail; more take what is there after the first."""
    cdef int64_t deadline = NEVER
    cdef mt_waiter *wake = NULL
    cdef int r
    if timeout_ns >= 0:
        deadline = deadline_in(timeout_ns)
    while True:
        lock_take(q, False)
        if tail != NULL:
            count[0] = taken_get(q, items, tail, False, &wake) == MT_OK
        else:
            count[0] = taken_get_many(q, items, n, False, &wake)
        unlock_take(q)
        if wake != NULL:
            post_chain(wake)
            wake = NULL
        if count[0]:
            return MT_OK
        r = wait_ready(q, deadline, False)
        if r != MT_OK:
            return r


cdef inline int get_within(queue *q, uintptr_t *item, subqueue **tail, int64_t timeout_ns) noexcept nogil:
    cdef subqueue *s = NULL
    cdef int64_t count = 0
    cdef int r = get_or_wait(q, item, 1, &s, timeout_ns, &count)
    if tail != NULL:
        tail[0] = s
    return r


cdef inline int get_many_within(queue *q, uintptr_t *items, int64_t n, int64_t timeout_ns, int64_t *count) noexcept nogil:
    count[0] = 0
    if n <= 0:
        return MT_OK
    return get_or_wait(q, items, n, NULL, timeout_ns, count)


cdef inline int64_t qsize_of(queue *q) noexcept nogil:
    cdef int64_t n
    lock_take(q, False)
    n = taken_qsize(q, INT64_MAX)
    unlock_take(q)
    return n
