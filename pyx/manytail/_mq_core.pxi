# The algorithm of the MultiQueue on its C structs, nogil throughout; include/manytail/multiqueue.h has the picture, the
# source and the invariants. Linearization points: a put, when tail_seq is published; a get, when `out` is, under the
# take lock; an empty get, the moment under the take lock when it has found nothing listed.
#
# `attached` says whether the calling thread holds a thread state; it matters only if a lock has to be waited for.
# Functions whose name starts with a lock's ("taken_", "putting_") must be called with that lock held. `wake` collects
# waiters to be posted after unlocking.

cdef enum:
    # A getter without the GIL pauses 64, 128, 256 times before it parks, some 5-20 us in all: about what parking and being
    # woken would cost. The first pause is long on purpose: a getter that looks after each item makes the putters' cache
    # line travel per item, one that lets the putter run ahead takes several for one look.
    GETTER_SPIN_FIRST = 6
    GETTER_SPIN_LIMIT = 9

# ---------------------------------------------------------------------------------------------------------------- locks
cdef inline void lock_take(queue *q, bint attached) noexcept nogil:
    if not q.serial:
        if unlikely(not mt_lock_try(&q.take_lock)):
            lock_slow(&q.take_lock, attached)
        q.attached = attached


cdef inline void unlock_take(queue *q) noexcept nogil:
    cdef mt_lock_node *n
    if not q.serial:
        n = mt_unlock(&q.take_lock)
        if unlikely(n != NULL):
            post_lock_node(n)


cdef inline void lock_put(queue *q, subqueue *s, bint attached) noexcept nogil:
    if not s.serial and unlikely(not mt_lock_try(&s.put_lock)):
        lock_slow(&s.put_lock, attached)


cdef inline void unlock_put(queue *q, subqueue *s) noexcept nogil:
    cdef mt_lock_node *n
    if not s.serial:
        n = mt_unlock(&s.put_lock)
        if unlikely(n != NULL):
            post_lock_node(n)


cdef inline bint is_unknown(subqueue *s) noexcept nogil:
    # relaxed because: read under one of the locks that its writer holds both of; or a guess that is checked under one
    return mt_load_relaxed_u32(&s.unknown) != 0


cdef inline void set_unknown(subqueue *s, bint unknown) noexcept nogil:
    # relaxed because: written under both locks
    mt_store_relaxed_u32(&s.unknown, unknown)


# --------------------------------------------------------------------------------------------------------------- chunks
cdef void drop_chunk(queue *q, mt_chunk *c) noexcept nogil:
    """Free a chunk that nobody stands on, or keep it for the next append."""
    cdef uintptr_t old = 0
    if c.size_class == MT_CHUNK_SPARE_CLASS:
        # pairs with: mt_xchg_acq_rel in new_chunk
        old = mt_xchg_acq_rel_uptr(&q.spare, <uintptr_t>c)
        c = <mt_chunk *>old
    if c != NULL:
        mt_chunk_free(c)


cdef mt_chunk *new_chunk(queue *q, uint32_t size_class, int64_t base) noexcept nogil:
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


cdef bint putting_grow(queue *q, subqueue *s, int64_t tail_seq, int64_t n) noexcept nogil:
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
    if s.stamped:
        # relaxed because: only the order of the numbers counts
        mt_chunk_stamps(c)[s.tail_idx] = mt_fetch_add_relaxed_i64(&q.clock, 1)
    s.tail_idx += 1
    mt_point()
    # pairs with: mt_load_acquire in taken_count
    mt_store_release_i64(&s.tail_seq, tail_seq + 1)
    return MT_OK


cdef int putting_run(queue *q, subqueue *s, const uintptr_t *items, int64_t n, bint count_refs, int64_t *done) noexcept nogil:
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
            Py_INCREF_raw(<PyObject *>items[i])
    # pairs with: mt_load_acquire in taken_count
    mt_store_release_i64(&s.tail_seq, tail_seq + put)
    done[0] = put
    return r


cdef int taken_put_front(queue *q, subqueue *s, uintptr_t item) noexcept nogil:
    """The new head. Both locks are held."""
    # relaxed because: both are written under locks that are held
    cdef int64_t tail_seq = mt_load_relaxed_i64(&s.tail_seq), out = mt_load_relaxed_i64(&s.out), base
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


cdef void taken_skip_dead(queue *q, subqueue *s) noexcept nogil:
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


cdef int64_t taken_head_stamp(queue *q, subqueue *s) noexcept nogil:
    taken_skip_dead(q, s)
    return mt_chunk_stamps(s.head)[s.head_idx]


cdef inline void taken_rekey(queue *q, subqueue *s) noexcept nogil:
    """Its head is another item now: find its place again among the oldest."""
    if q.selection == MT_OLDEST and taken_count(s) > 0:
        mt_heap_rekey(&s.ready.level.by_time, s.ready.slot, taken_head_stamp(q, s))


cdef void taken_list(queue *q, subqueue *s) noexcept nogil:
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


cdef void taken_unlist(queue *q, subqueue *s) noexcept nogil:
    """It is empty: leave the ring."""
    mt_ready_remove(&q.ready, &s.ready)
    taken_unlisted(q, s)


cdef void taken_unlisted(queue *q, subqueue *s) noexcept nogil:
    """It has left the ring because it was empty. If a put slipped in, it joins again."""
    s.turn = 0
    mt_point()
    if not taken_forget(q, s):
        taken_list(q, s)


cdef bint taken_forget(queue *q, subqueue *s) noexcept nogil:
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


cdef void taken_show(queue *q, subqueue *s, mt_waiter **wake) noexcept nogil:
    """A tail that was hidden: it is listed, or unknown."""
    if not taken_forget(q, s):
        taken_list(q, s)
        mt_waitlist_notify(&q.getters, wake)


cdef void taken_hide(queue *q, subqueue *s) noexcept nogil:
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
    if taken_empty(s):
        s.turn = 0
        # The only one that is ready stays listed, so that a queue which runs empty all the time pays nothing for it.
        if level.nready > 1 or q.ready.best.n > 1 or q.getters.n:
            taken_unlist(q, s)
    elif q.selection == MT_OLDEST:
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
    if s == NULL:
        return MT_EMPTY
    item[0] = taken_pop(q, s)
    tail[0] = s
    q.got += 1
    taken_left_and_served(q, s, 1, attached, wake)
    taken_cascade(q, wake)
    return MT_OK


cdef int64_t taken_pop_run(queue *q, subqueue *s, uintptr_t *items, int64_t n) noexcept nogil:
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


cdef int64_t run_length(queue *q, subqueue *s, int64_t n) noexcept nogil:
    """How many items in a row the order of get would take from s, at most n."""
    if q.selection == MT_OLDEST:
        return n if s.ready.level.nready == 1 else 1
    if s.ready.level.nready == 1:
        return n
    if q.selection == MT_WEIGHTED:
        return min(n, <int64_t>(s.turn if s.turn else s.weight))
    return 1


cdef void taken_served_run(queue *q, subqueue *s, int64_t n) noexcept nogil:
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
    if ran_empty:
        s.turn = 1
        n = 1
    if n == 1:
        taken_served(q, s)
    else:
        taken_served_run(q, s, n)


cdef int64_t taken_get_many(queue *q, uintptr_t *items, int64_t n, bint attached, mt_waiter **wake) noexcept nogil:
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


cdef int64_t ring_count(mt_ready *r, mt_level *level, int64_t enough) noexcept nogil:
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


cdef int64_t taken_qsize(queue *q, int64_t enough) noexcept nogil:
    """Items that get can reach; stops counting at `enough`. Looks at ready tails only."""
    cdef int64_t n = 0
    cdef uint32_t i
    for i in range(q.ready.best.n):
        n += ring_count(&q.ready, <mt_level *>q.ready.best.items[i].obj, enough - n)
        if n >= enough:
            return enough
    return n


# -------------------------------------------------------------------------------------------------------------- waiting
cdef int wait_ready(queue *q, int64_t deadline, bint attached) noexcept nogil:
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


cdef int stop_waiting_for_items(queue *q, mt_waiter *w, int why, bint attached) noexcept nogil:
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


cdef void pass_on_to_getter(queue *q, bint attached) noexcept nogil:
    """Somebody who was woken for an item will not take it."""
    cdef mt_waiter *wake = NULL
    lock_take(q, attached)
    taken_cascade(q, &wake)
    unlock_take(q)
    if wake != NULL:
        post_chain(wake)


cdef int wait_for_room(queue *q, subqueue *s, int64_t deadline, bint attached) noexcept nogil:
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


cdef int stop_waiting_for_room(queue *q, subqueue *s, mt_waiter *w, int why, bint attached) noexcept nogil:
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


cdef void pass_on_to_putter(queue *q, subqueue *s, bint attached) noexcept nogil:
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


cdef int put_unknown(queue *q, subqueue *s, uintptr_t item, bint attached) noexcept nogil:
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


cdef int put_run_once(queue *q, subqueue *s, const uintptr_t *items, int64_t n, bint count_refs, int64_t *done,
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


cdef int put_front_once(queue *q, subqueue *s, uintptr_t item, bint attached) noexcept nogil:
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
cdef int put_until(queue *q, subqueue *s, uintptr_t item, bint front, int64_t deadline, bint attached) noexcept nogil:
    """Put, waiting for room. The caller counts the item's reference before, and takes it back unless this returns MT_OK."""
    cdef int r
    while True:
        r = put_front_once(q, s, item, attached) if front else put_once(q, s, item, attached)
        if r == MT_FULL:
            r = wait_for_room(q, s, deadline, attached)
            if r == MT_OK:
                continue
        elif r == MT_NOMEM:
            pass_on_to_putter(q, s, attached)       # whoever was woken for this place does not use it
        return r


cdef int put_run_until(queue *q, subqueue *s, const uintptr_t *items, int64_t n, bint count_refs, int64_t deadline, int64_t *count,
                       bint attached) noexcept nogil:
    """Put the items from number *count on, as one chain for each time that there is room; *count says how many are in."""
    cdef int64_t done = 0
    cdef int r
    while count[0] < n:
        r = put_run_once(q, s, items + count[0], n - count[0], count_refs, &done, attached)
        count[0] += done
        if r == MT_FULL:
            r = wait_for_room(q, s, deadline, attached)
        elif r == MT_NOMEM:
            pass_on_to_putter(q, s, attached)       # as above
        if r != MT_OK:
            return r
    return MT_OK
