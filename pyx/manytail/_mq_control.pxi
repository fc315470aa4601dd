# What happens to a MultiQueue besides items moving: making and freeing, tails that come, go and change, clear, discard,
# shutdown, the count of unfinished tasks, fork. All nogil on the C structs; lock order as everywhere: take, then put.

# ------------------------------------------------------------------------------------------------ the registry, for fork
# Every queue of the process is linked here. When os.fork() is called no attached thread is half way through an operation:
# with the GIL because the forking thread has it, without because CPython stops the world first. Detached threads are one of
# three things. In a bulk operation: those are counted, fork waits until none is inside, and while it is pending new ones
# stay attached. Parked as waiters: nothing is half done. Or they wait for a put lock with the take lock held: what they left
# undone there is at most that a tail's place in its ring does not say yet what `unknown`, enabled and the items say, because
# whatever else an operation changes it changes before or after that wait as a whole; the child's mend_tail() finishes it.
# So the child has whole structures, and forgets the locks and waiters of threads that it does not have.
# Threads that are unknown to the interpreter (nogil API) cannot be waited for.
cdef mt_lock registry_lock
cdef queue *registry_first = NULL


cdef void lock_registry(bint attached) noexcept nogil:
    if not mt_lock_try(&registry_lock):
        lock_slow(&registry_lock, attached)


cdef void unlock_registry() noexcept nogil:
    cdef mt_lock_node *n = mt_unlock(&registry_lock)
    if n != NULL:
        post_lock_node(n)


cdef void register(queue *q, bint attached) noexcept nogil:
    global registry_first
    lock_registry(attached)
    q.reg_prev = NULL
    q.reg_next = registry_first
    if registry_first != NULL:
        registry_first.reg_prev = q
    registry_first = q
    unlock_registry()


cdef void unregister(queue *q, bint attached) noexcept nogil:
    global registry_first
    lock_registry(attached)
    if q.reg_prev != NULL:
        q.reg_prev.reg_next = q.reg_next
    else:
        registry_first = q.reg_next
    if q.reg_next != NULL:
        q.reg_next.reg_prev = q.reg_prev
    unlock_registry()


cdef mt_lock bulk_lock
cdef int64_t bulks_inside = 0       # under bulk_lock
cdef int64_t forks_pending = 0      # threads that are about to fork; under bulk_lock
cdef mt_waitlist forkers            # under bulk_lock


cdef void lock_bulk() noexcept nogil:
    if not mt_lock_try(&bulk_lock):
        lock_slow(&bulk_lock, True)


cdef void unlock_bulk() noexcept nogil:
    cdef mt_lock_node *n = mt_unlock(&bulk_lock)
    if n != NULL:
        post_lock_node(n)


cdef bint enter_bulk(queue *q) noexcept nogil:
    """Called attached. 1: the caller may detach for a bulk operation on q and calls leave_bulk() attached afterwards."""
    global bulks_inside
    cdef bint ok
    lock_bulk()
    ok = forks_pending == 0
    bulks_inside += ok
    q.bulks += ok
    unlock_bulk()
    return ok


cdef void leave_bulk(queue *q) noexcept nogil:
    global bulks_inside
    cdef mt_waiter *wake = NULL
    lock_bulk()
    q.bulks -= 1
    bulks_inside -= 1
    if bulks_inside == 0:
        mt_waitlist_notify_all(&forkers, &wake)
    unlock_bulk()
    post_chain(wake)


cdef int hold_bulks() noexcept nogil:
    """Before fork: MT_OK when no detached bulk operation is inside, and none begins until release_bulks(). Several threads may fork at
    once: each one holds them."""
    global forks_pending
    cdef mt_waiter w
    cdef int r = MT_OK
    lock_bulk()
    forks_pending += 1
    if bulks_inside == 0:
        unlock_bulk()
        return MT_OK
    r = waiter_open(&w)
    if r == MT_OK:
        mt_waitlist_push(&forkers, &w)
        unlock_bulk()
        waiter_await_post(&w, True)
        waiter_close(&w)
        return MT_OK
    unlock_bulk()
    return r


cdef void release_bulks() noexcept nogil:
    """After fork, in the parent."""
    global forks_pending
    lock_bulk()
    forks_pending -= 1
    unlock_bulk()


cdef void reset_tails(subqueue *s, unsigned long me) noexcept nogil:
    while s != NULL:
        mt_lock_reset(&s.put_lock)
        mt_waitlist_keep_thread(&s.putters, me)
        mt_xchg_seq_cst_u32(&s.putters_waiting, <uint32_t>s.putters.n)  # pairs with: mt_load_seq_cst in left
        s = s.all_next


cdef void mend_tail(queue *q, subqueue *s) noexcept nogil:
    """Bring its place in the ring in line with what else is known of it."""
    if not s.enabled or s.gate & MT_GATE_STOPPED:
        taken_hide(q, s)
    elif not s.ready.listed:
        taken_unlisted(q, s)


cdef void forget_other_threads(unsigned long me) noexcept nogil:
    """In the child: locks are free, nobody waits but event loops of the one thread that is left."""
    global forks_pending, bulks_inside
    cdef queue *q = registry_first
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
    mt_lock_reset(&registry_lock)
    mt_lock_reset(&bulk_lock)
    mt_waitlist_keep_thread(&forkers, me)
    forks_pending = 0
    bulks_inside = 0


# -------------------------------------------------------------------------------------------------------- queues, tails
cdef queue *new_queue(bint serial, bint attached) noexcept nogil:
    cdef queue *q = <queue *>mt_alloc_aligned(sizeof(queue))
    if q != NULL:
        q.serial = serial
        mt_fetch_add_relaxed_u32(&q.refs, 1)    # relaxed because: nobody else has it yet
        register(q, attached)
    return q


cdef void drop_queue(queue *q, bint attached) noexcept nogil:
    """Give up one handle; the last one frees it. No tail is attached then, nobody waits."""
    # pairs with: itself, in other threads: the last sees all that the others did
    if mt_fetch_add_acq_rel_u32(&q.refs, <uint32_t>-1) != 1:
        return
    unregister(q, attached)
    mt_ready_free(&q.ready)
    mt_chunk_free(<mt_chunk *>mt_xchg_acq_rel_uptr(&q.spare, 0))    # pairs with: mt_xchg_acq_rel in drop_chunk
    mt_free_aligned(q)


cdef subqueue *new_tail(queue *q, int64_t priority, int64_t maxsize, uint32_t weight, bint enabled) noexcept nogil:
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


cdef int attach_tail(queue *q, subqueue *s, bint attached) noexcept nogil:
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


cdef void taken_link(queue *q, subqueue *s) noexcept nogil:
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


cdef void taken_unlink(queue *q, subqueue *s) noexcept nogil:
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


cdef void taken_unlink_gone(queue *q, subqueue *s) noexcept nogil:
    if s.all_prev != NULL:
        s.all_prev.all_next = s.all_next
    else:
        q.gone = s.all_next
    if s.all_next != NULL:
        s.all_next.all_prev = s.all_prev


cdef bint detach_tail(queue *q, subqueue *s, bint attached) noexcept nogil:
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


cdef void free_tail(subqueue *s, bint attached) noexcept nogil:
    """The last handle of a detached, emptied tail."""
    cdef queue *q = s.mq
    if s.gate & MT_GATE_DETACHED:       # else it never was attached
        lock_take(q, attached)
        taken_unlink_gone(q, s)
        unlock_take(q)
    mt_free_aligned(s)
    drop_queue(q, attached)


cdef void drop_left_chunks(queue *q, subqueue *s) noexcept nogil:
    """Chunks of a tail that has no items any more, but kept its last one for the next put."""
    cdef mt_chunk *c = s.head
    cdef mt_chunk *following
    while c != NULL:
        following = mt_chunk_next(c)
        mt_chunk_free(c)
        c = following
    s.head = s.tail = NULL


# ---------------------------------------------------------------------------------------------------- changes while used
cdef void enable_tail(queue *q, subqueue *s, bint enabled, bint attached) noexcept nogil:
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


cdef int set_priority(queue *q, subqueue *s, int64_t priority, bint attached) noexcept nogil:
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


cdef void set_weight(queue *q, subqueue *s, uint32_t weight, bint attached) noexcept nogil:
    lock_take(q, attached)
    s.weight = weight
    unlock_take(q)


cdef void set_maxsize(queue *q, subqueue *s, int64_t maxsize, bint attached) noexcept nogil:
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
cdef mt_chunk *taken_cut(queue *q, subqueue *s, uint32_t *first, uint32_t *last, bint forget, mt_waiter **wake,
                         bint attached) noexcept nogil:
    """The chain of a tail that becomes empty now; forget: and unknown to the head. Each chunk is retired and pinned by the caller, linked by
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


cdef int64_t clear_tail(queue *q, subqueue *s, mt_chunk **chain, uint32_t *first, uint32_t *last, bint attached) noexcept nogil:
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


cdef int64_t taken_clear(queue *q, subqueue *s, mt_chunk **chain, uint32_t *first, uint32_t *last, mt_waiter **wake,
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


cdef bint discard_at(queue *q, subqueue *s, mt_chunk *c, uint32_t i, uintptr_t item, bint attached) noexcept nogil:
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


cdef void taken_drop_dead_chunk(queue *q, subqueue *s, mt_chunk *c) noexcept nogil:
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


cdef int64_t taken_put_total(queue *q) noexcept nogil:
    cdef int64_t n = q.gone_put
    cdef subqueue *s = q.all_first
    while s != NULL:
        n += taken_ever_put(s)
        s = s.all_next
    return n


cdef int64_t taken_unfinished(queue *q) noexcept nogil:
    return taken_put_total(q) - q.taken_away - q.done


cdef void taken_count_away(queue *q, int64_t n) noexcept nogil:
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


cdef bint task_done(queue *q, bint attached) noexcept nogil:
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


cdef int wait_joined(queue *q, int64_t deadline, bint attached) noexcept nogil:
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


cdef void shut_queue(queue *q, bint stop, bint attached) noexcept nogil:
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


cdef void shut_tail(queue *q, subqueue *s, bint stop, mt_waiter **wake) noexcept nogil:
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


cdef void cursor_open(cursor *k) noexcept nogil:
    k.chunk = NULL
    k.position = INT64_MIN
    k.n = 0


cdef mt_chunk *taken_find(subqueue *s, cursor *k) noexcept nogil:
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


cdef void taken_copy(subqueue *s, cursor *k, bint count_refs) noexcept nogil:
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
                Py_INCREF_raw(<PyObject *>k.items[k.n])
            k.n += 1


cdef void cursor_step(queue *q, subqueue *s, cursor *k, bint count_refs) noexcept nogil:
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


cdef void cursor_close(queue *q, cursor *k) noexcept nogil:
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
