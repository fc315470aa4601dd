# What surrounds the list of include/manytail/pubsub.h: giving up references, waiting and waking, the slow policies, fork. All on
# the C structs, called attached; nothing of Python's runs while a lock is held.
#
# `wake` collects waiters to be posted after unlocking. No thread waits for a lock while it holds a pin, is inside a trim, or has changed
# something by half, so a fork meets every structure whole. Order: join_lock, room_lock, then one subscriber's.

cdef enum:
    SPIN_FIRST = 6          # without the GIL a getter pauses 64, 128, 256 times before it parks: 5-20 us, what parking costs
    SPIN_LIMIT = 9


# ---------------------------------------------------------------------------------------------------------------- locks
cdef inline void lock_subscriber(mt_pubsub *q, mt_subscriber *s) noexcept nogil:
    if not q.serial and unlikely(not mt_lock_try(&s.lock)):
        lock_slow(&s.lock, True)


cdef inline void unlock_subscriber(mt_pubsub *q, mt_subscriber *s) noexcept nogil:
    cdef mt_lock_node *n
    if not q.serial:
        n = mt_unlock(&s.lock)
        if unlikely(n != NULL):
            post_lock_node(n)


cdef void lock_room(mt_pubsub *q) noexcept nogil:
    if not q.serial and not mt_lock_try(&q.room_lock):
        lock_slow(&q.room_lock, True)


cdef void unlock_room(mt_pubsub *q) noexcept nogil:
    cdef mt_lock_node *n
    if not q.serial:
        n = mt_unlock(&q.room_lock)
        if n != NULL:
            post_lock_node(n)


# ------------------------------------------------------------------------------------------------------------- trimming
# What a message is the last to hold may be a subscriber with messages, and so on: trims nest. Beyond a depth references are put aside, for the
# outermost trim of the thread, so that deep nests do not overflow the stack (the interpreter's own trashcan allows 10,000 levels).
cdef extern from *:
    """
    typedef struct mt_aside {
        struct mt_aside *next;
        uint32_t n;
        uintptr_t items[MT_DROPS];
    } mt_aside;
    static MT_THREAD_LOCAL mt_aside *mt_put_aside;
    static MT_THREAD_LOCAL int mt_trims_inside;
    """
    ctypedef struct mt_aside:
        mt_aside *next
        uint32_t n
        uintptr_t *items
    mt_aside *mt_put_aside
    int mt_trims_inside

cdef enum:
    NESTED_TRIMS = 30


cdef void trim(mt_pubsub *q) noexcept:
    """Let go of what nobody expects any more, and give up its references with nothing held."""
    global mt_trims_inside
    cdef mt_drops d
    d.more = True
    while d.more:
        mt_pubsub_trim(q, &d)
        if d.moved:
            room_made(q)
        mt_retired_free(d.chunks)
        if d.n == 0 or (mt_trims_inside >= NESTED_TRIMS and put_aside(&d)):
            continue
        mt_trims_inside += 1
        give_up(d.items, d.n)
        mt_trims_inside -= 1
    if mt_trims_inside == 0 and unlikely(mt_put_aside != NULL):
        give_up_aside()


cdef void give_up(uintptr_t *items, uint32_t n) noexcept:
    cdef uint32_t i
    for i in range(n):
        Py_DECREF_raw(<PyObject *>items[i])


cdef bint put_aside(mt_drops *d) noexcept:
    """0: no memory, they are given up here and now."""
    global mt_put_aside
    cdef mt_aside *aside = <mt_aside *>malloc(sizeof(mt_aside))
    if aside == NULL:
        return False
    aside.n = d.n
    memcpy(aside.items, d.items, d.n * sizeof(uintptr_t))
    aside.next = mt_put_aside
    mt_put_aside = aside
    return True


cdef void give_up_aside() noexcept:
    global mt_put_aside, mt_trims_inside
    cdef mt_aside *aside
    mt_trims_inside += 1
    while mt_put_aside != NULL:
        aside = mt_put_aside
        mt_put_aside = aside.next
        give_up(aside.items, aside.n)
        free(aside)
    mt_trims_inside -= 1


cdef int64_t position_of(mt_pubsub *q) noexcept nogil:
    """After the newest message."""
    cdef mt_retired *freeable
    cdef int64_t position = mt_pubsub_position(q, &freeable)
    mt_retired_free(freeable)
    return position


cdef int64_t retained(mt_pubsub *q, int64_t end) noexcept nogil:
    """Messages before `end` that somebody still expects."""
    return end - mt_pubsub_oldest(q, end)


# ------------------------------------------------------------------------------------------------------- waking getters
cdef void locked_count_waiting(mt_pubsub *q, mt_subscriber *s) noexcept nogil:
    """The list of waiting getters has changed: let publishers know."""
    cdef uint32_t now = <uint32_t>s.getters.n
    # pairs with: mt_load_seq_cst in wake_waiting_getters; before the slot is looked at (mt_pchunk_get)
    cdef uint32_t before = mt_xchg_seq_cst_u32(&s.waiting, now)
    if now != before:
        mt_fetch_add_seq_cst_u32(&q.nwaiting, now - before)     # pairs with: mt_load_seq_cst in wake_getters


cdef inline void locked_cascade(mt_pubsub *q, mt_subscriber *s, mt_waiter **wake) noexcept nogil:
    """More is there and somebody waits: the wake-up goes on."""
    if unlikely(s.getters.n != 0) and mt_subscriber_ready(q, s) == MT_OK:
        mt_waitlist_notify(&s.getters, wake)
        locked_count_waiting(q, s)


cdef void locked_wake_all(mt_pubsub *q, mt_subscriber *s, mt_waiter **wake) noexcept nogil:
    mt_waitlist_notify_all(&s.getters, wake)
    locked_count_waiting(q, s)


cdef inline void wake_getters(mt_pubsub *q) noexcept nogil:
    """Something was published: every subscriber that waits has a message now."""
    mt_point()
    # pairs with: mt_fetch_add_seq_cst in locked_count_waiting, after the slot was written (mt_pubsub_claim, mt_pubsub_link)
    if unlikely(mt_load_seq_cst_u32(&q.nwaiting) != 0):
        wake_waiting_getters(q)


cdef void wake_waiting_getters(mt_pubsub *q) noexcept nogil:
    cdef mt_waiter *wake = NULL
    cdef mt_subscriber *s = mt_pubsub_records(q)
    while s != NULL:
        # pairs with: mt_xchg_seq_cst in locked_count_waiting
        if mt_load_seq_cst_u32(&s.waiting) != 0:
            lock_subscriber(q, s)
            locked_cascade(q, s, &wake)
            unlock_subscriber(q, s)
        s = s.next
    if wake != NULL:
        post_chain(wake)


cdef void pass_on_to_getter(mt_pubsub *q, mt_subscriber *s) noexcept nogil:
    """Somebody who was woken for a message will not take it."""
    cdef mt_waiter *wake = NULL
    lock_subscriber(q, s)
    locked_cascade(q, s, &wake)
    unlock_subscriber(q, s)
    if wake != NULL:
        post_chain(wake)


# ------------------------------------------------------------------------------------------------- waiting for a message
cdef int wait_for_message(mt_pubsub *q, mt_subscriber *s, int64_t deadline) noexcept nogil:
    """After a take found nothing: until another is worth trying, MT_OK. Else MT_SHUTDOWN, MT_CLOSED, MT_TIMEOUT (ONCE: MT_EMPTY),
    MT_INTERRUPTED or MT_NOMEM."""
    cdef mt_waiter w
    cdef mt_backoff spin
    cdef int r
    spin.step = SPIN_FIRST
    spin.limit = SPIN_LIMIT
    while True:
        lock_subscriber(q, s)
        r = mt_subscriber_ready(q, s)
        if r != MT_EMPTY or deadline == ONCE:
            unlock_subscriber(q, s)
            return r
        if not MT_FREE_THREADED or not mt_backoff_spin_unlocked(q, s, &spin):
            break
    if waiter_open(&w) != MT_OK:
        unlock_subscriber(q, s)
        return MT_NOMEM
    mt_waitlist_push(&s.getters, &w)
    locked_count_waiting(q, s)
    mt_point()
    r = mt_subscriber_ready(q, s)           # once more: from now on publishers see that somebody waits
    if r != MT_EMPTY:
        mt_waitlist_leave(&s.getters, &w)
        locked_count_waiting(q, s)
        unlock_subscriber(q, s)
    else:
        unlock_subscriber(q, s)
        mt_point()
        r = waiter_park(&w, deadline, True)
        mt_point()
        if r != MT_OK:
            r = stop_waiting_for_message(q, s, &w, r)
    waiter_close(&w)
    return r


cdef bint mt_backoff_spin_unlocked(mt_pubsub *q, mt_subscriber *s, mt_backoff *spin) noexcept nogil:
    """Pause without the lock: 1, and it is not held any more. 0: no more pauses are allowed; it is still held."""
    if spin.step >= spin.limit:
        return False
    unlock_subscriber(q, s)
    mt_backoff_spin(spin)
    return True


cdef int stop_waiting_for_message(mt_pubsub *q, mt_subscriber *s, mt_waiter *w, int why) noexcept nogil:
    """Leave the list. A wake-up that had come is used (time out: the caller tries once more) or passed on."""
    cdef mt_waiter *wake = NULL
    cdef bint notified
    lock_subscriber(q, s)
    notified = mt_waitlist_leave(&s.getters, w) == MT_WAITER_NOTIFIED
    locked_count_waiting(q, s)
    if notified and why == MT_INTERRUPTED:
        locked_cascade(q, s, &wake)
    unlock_subscriber(q, s)
    if wake != NULL:
        post_chain(wake)
    if notified:
        waiter_await_post(w, True)
        if why == MT_TIMEOUT:
            return MT_OK
    return why


# ----------------------------------------------------------------------------------------------------- waiting for room
cdef inline bint has_room(mt_pubsub *q) noexcept nogil:
    return mt_pubsub_room(q, position_of(q)) > 0


cdef void room_locked_count(mt_pubsub *q) noexcept nogil:
    # pairs with: mt_load_seq_cst in room_made; before has_room() is asked again
    mt_xchg_seq_cst_u32(&q.room_waiting, <uint32_t>q.putters.n)


cdef void wake_putters(mt_pubsub *q, bint all_of_them) noexcept nogil:
    cdef mt_waiter *wake = NULL
    lock_room(q)
    if all_of_them:
        mt_waitlist_notify_all(&q.putters, &wake)
    else:
        mt_waitlist_notify(&q.putters, &wake)
    room_locked_count(q)
    unlock_room(q)
    if wake != NULL:
        post_chain(wake)


cdef void room_made(mt_pubsub *q) noexcept nogil:
    """`trimmed` moved: one publisher may go on, and sends the next."""
    mt_point()
    # pairs with: mt_xchg_seq_cst in room_locked_count, after `trimmed` was written (mt_pubsub_set_trimmed)
    if unlikely(mt_load_seq_cst_u32(&q.room_waiting) != 0):
        wake_putters(q, False)


cdef void pass_on_to_putter(mt_pubsub *q) noexcept nogil:
    """There may be room for one more."""
    # pairs with: mt_xchg_seq_cst in room_locked_count
    if unlikely(mt_load_seq_cst_u32(&q.room_waiting) != 0) and has_room(q):
        wake_putters(q, False)


cdef bint is_shut(mt_pubsub *q) noexcept nogil:
    """No message comes any more."""
    cdef mt_retired *freeable
    cdef bint shut = mt_pubsub_is_shut(q, &freeable)
    mt_retired_free(freeable)
    return shut


cdef inline int room_status(mt_pubsub *q) noexcept nogil:
    if is_shut(q):
        return MT_SHUTDOWN
    return MT_OK if has_room(q) else MT_FULL


cdef int wait_for_room(mt_pubsub *q, int64_t deadline) noexcept nogil:
    """Until a publish is worth trying: MT_OK. Else MT_SHUTDOWN, MT_TIMEOUT (ONCE: MT_FULL), MT_INTERRUPTED or MT_NOMEM."""
    cdef mt_waiter w
    cdef int r = room_status(q)
    if r != MT_FULL or deadline == ONCE:
        return r
    if waiter_open(&w) != MT_OK:
        return MT_NOMEM
    lock_room(q)
    mt_waitlist_push(&q.putters, &w)
    mt_point()
    room_locked_count(q)
    unlock_room(q)
    mt_point()
    r = room_status(q)                      # once more: from now on who makes room sees that somebody waits
    if r != MT_FULL:
        r = stop_waiting_for_room(q, &w, r)
    else:
        r = waiter_park(&w, deadline, True)
        mt_point()
        if r != MT_OK:
            r = stop_waiting_for_room(q, &w, r)
    waiter_close(&w)
    return r


cdef int stop_waiting_for_room(mt_pubsub *q, mt_waiter *w, int why) noexcept nogil:
    cdef bint notified
    lock_room(q)
    notified = mt_waitlist_leave(&q.putters, w) == MT_WAITER_NOTIFIED
    room_locked_count(q)
    unlock_room(q)
    if notified:
        if why == MT_INTERRUPTED:
            pass_on_to_putter(q)
        waiter_await_post(w, True)
        if why == MT_TIMEOUT:
            return MT_OK
    return why


# ------------------------------------------------------------------------------------------------------------ publishing
cdef inline int put_in(mt_pubsub *q, PyObject *item, int64_t *position) noexcept:
    """One try. Counts the reference that the list keeps. MT_OK: the caller goes on with after_publish, MT_UNRETAINED: nobody is there."""
    cdef mt_retired *freeable = NULL
    cdef int r
    if q.serial:
        r = mt_pubsub_publish_serial(q, <uintptr_t>item, position)
        if likely(r == MT_OK):
            Py_INCREF_raw(item)
        return r
    Py_INCREF_raw(item)
    r = mt_pubsub_publish_parallel(q, <uintptr_t>item, position, &freeable)
    if unlikely(freeable != NULL):
        mt_retired_free(freeable)
    if unlikely(r != MT_OK):
        Py_DECREF_raw(item)             # the caller has one, too: nothing is freed here
    return r


cdef inline void after_publish(mt_pubsub *q) noexcept:
    wake_getters(q)
    if unlikely(mt_pubsub_nobody(q)):
        trim(q)
    if mt_load_relaxed_i64(&q.maxsize) > 0:     # relaxed because: only whether anybody can be waiting
        pass_on_to_putter(q)                    # the cascade: one place may have become several


cdef inline int publish_once(mt_pubsub *q, PyObject *item, int64_t *position) noexcept:
    """One try."""
    cdef int r = put_in(q, item, position)
    if likely(r == MT_OK):
        after_publish(q)
    return MT_OK if r == MT_UNRETAINED else r


cdef int put_run_in(mt_pubsub *q, PyObject **items, int64_t n, int64_t *done) noexcept:
    """Up to n items in one run; MT_FULL: *done of them went in. If any did, the caller goes on with after_publish."""
    cdef mt_retired *freeable = NULL
    cdef int64_t held = 0, i
    cdef int r
    if q.serial:
        r = mt_pubsub_publish_run_serial(q, <uintptr_t *>items, n, done)
    else:
        r = mt_pubsub_publish_run_parallel(q, <uintptr_t *>items, n, done, &held, &freeable)
        for i in range(done[0], held):
            Py_DECREF_raw(items[i])     # as above
        mt_retired_free(freeable)
    return r


cdef int publish_run_once(mt_pubsub *q, PyObject **items, int64_t n, int64_t *done) noexcept:
    """One try."""
    cdef int r = put_run_in(q, items, n, done)
    if done[0]:
        after_publish(q)
    return r


# slow="drop_oldest", at the bound. The lock keeps the end of the list away from the drop to the message that it is for: nothing is dropped for a
# message that does not come. Whoever takes, and who publishes while there is room, takes no notice of it.
cdef int publish_over_oldest(mt_pubsub *q, PyObject *item, int64_t *position) noexcept:
    """The message goes in, whoever is in the way. Not MT_FULL."""
    cdef int r
    lock_room(q)
    r = put_in(q, item, position)
    while r == MT_FULL:
        locked_drop_for(q, 1)
        r = put_in(q, item, position)   # MT_FULL again: others used the room
    unlock_room(q)
    trim(q)
    if r == MT_OK:
        after_publish(q)
    return MT_OK if r == MT_UNRETAINED else r


cdef int publish_run_over_oldest(mt_pubsub *q, PyObject **items, int64_t n, int64_t *done) noexcept:
    """As many as the bound allows, one at least; MT_FULL: there are more."""
    cdef int r
    lock_room(q)
    r = put_run_in(q, items, n, done)
    while r == MT_FULL and done[0] == 0:
        locked_drop_for(q, n)
        r = put_run_in(q, items, n, done)
    unlock_room(q)
    trim(q)
    if done[0]:
        after_publish(q)
    return r


cdef void locked_drop_for(mt_pubsub *q, int64_t n) noexcept nogil:
    """Make room for n messages, or for as many as the bound allows: move the slowest past the oldest, and let them know what they missed.
    The bound is read once: it may be changed, or removed, meanwhile, and then nothing is dropped for it. The caller trims."""
    cdef int64_t maxsize = mt_load_relaxed_i64(&q.maxsize)     # relaxed because: a new bound holds for calls that begin later
    cdef int64_t end = position_of(q), to = end + min(n, maxsize) - maxsize, at
    cdef mt_subscriber *s = mt_pubsub_records(q)
    if maxsize <= 0:
        return
    while s != NULL:
        if mt_pubsub_cursor(s) < to:
            lock_subscriber(q, s)
            at = mt_subscriber_at(s)
            if not s.closed and at < to:
                s.missed += to - at
                mt_fetch_add_relaxed_i64(&q.dropped, to - at)  # relaxed because: a figure
                mt_subscriber_skip(q, s, to)
            unlock_subscriber(q, s)
        s = s.next
    if q.serial:
        mt_pubsub_advance(q, NULL)      # the bound is told by what is trimmed; somebody is subscribed, so no chunk is looked for


# ------------------------------------------------------------------------------------------- joining, leaving, shutdown
cdef int join(mt_pubsub *q, mt_subscriber *s, int64_t start) noexcept:
    """MT_OK, MT_BADARG or MT_NOMEM."""
    cdef mt_retired *freeable = NULL
    cdef int r
    if not q.serial and unlikely(not mt_lock_try(&q.join_lock)):
        lock_slow(&q.join_lock, True)
    lock_subscriber(q, s)
    r = mt_pubsub_join(q, s, start, &freeable)
    unlock_subscriber(q, s)
    unlock_join(q)
    mt_retired_free(freeable)
    trim(q)
    return r


cdef inline void unlock_join(mt_pubsub *q) noexcept nogil:
    cdef mt_lock_node *n
    if not q.serial:
        n = mt_unlock(&q.join_lock)
        if unlikely(n != NULL):
            post_lock_node(n)


cdef void close_subscriber(mt_pubsub *q, mt_subscriber *s) noexcept:
    cdef mt_waiter *wake = NULL
    cdef bint left
    lock_subscriber(q, s)
    left = mt_subscriber_leave(q, s)
    locked_wake_all(q, s, &wake)
    unlock_subscriber(q, s)
    post_chain(wake)
    if left:
        trim(q)


cdef void give_up_all(mt_pubsub *q) noexcept:
    """Every subscriber's rest is given up."""
    cdef mt_subscriber *s = mt_pubsub_records(q)
    cdef int64_t end = position_of(q)
    while s != NULL:
        lock_subscriber(q, s)
        if not s.closed and mt_subscriber_at(s) < end:
            mt_subscriber_skip(q, s, end)
        unlock_subscriber(q, s)
        s = s.next
    trim(q)


cdef void shut_down(mt_pubsub *q, bint immediate) noexcept:
    cdef mt_subscriber *s = NULL
    cdef mt_retired *freeable
    cdef mt_waiter *wake
    lock_room(q)                        # not between a drop and the message that it is for
    mt_pubsub_shut(q, &freeable)
    unlock_room(q)
    mt_retired_free(freeable)
    if immediate:
        give_up_all(q)
    mt_point()
    # pairs with: mt_fetch_add_seq_cst in locked_count_waiting, after the end was written: who waits unaware of it is found, new as it may be
    if mt_load_seq_cst_u32(&q.nwaiting) != 0:
        s = mt_pubsub_records(q)
    while s != NULL:
        wake = NULL
        lock_subscriber(q, s)
        locked_wake_all(q, s, &wake)
        unlock_subscriber(q, s)
        post_chain(wake)
        s = s.next
    wake_putters(q, True)


# ------------------------------------------------------------------------------------------------------------------ fork
# Every queue of the process is linked here. At os.fork() no attached thread is half way through an operation: with the GIL
# because the forking thread has it, without because CPython stops the world first, and nothing of ours detaches half way.
cdef mt_lock registry_lock
cdef mt_pubsub *registry_first = NULL


cdef void lock_registry() noexcept nogil:
    if not mt_lock_try(&registry_lock):
        lock_slow(&registry_lock, True)


cdef void unlock_registry() noexcept nogil:
    cdef mt_lock_node *n = mt_unlock(&registry_lock)
    if n != NULL:
        post_lock_node(n)


cdef void register(mt_pubsub *q) noexcept nogil:
    global registry_first
    lock_registry()
    q.reg_prev = NULL
    q.reg_next = registry_first
    if registry_first != NULL:
        registry_first.reg_prev = q
    registry_first = q
    unlock_registry()


cdef void unregister(mt_pubsub *q) noexcept nogil:
    global registry_first
    lock_registry()
    if q.reg_prev != NULL:
        q.reg_prev.reg_next = q.reg_next
    else:
        registry_first = q.reg_next
    if q.reg_next != NULL:
        q.reg_next.reg_prev = q.reg_prev
    unlock_registry()


cdef void forget_other_threads(unsigned long me) noexcept nogil:
    """In the child: locks are free, nobody waits but event loops of the one thread that is left."""
    cdef mt_pubsub *q = registry_first
    cdef mt_subscriber *s
    while q != NULL:
        mt_lock_reset(&q.join_lock)
        mt_lock_reset(&q.room_lock)
        mt_waitlist_keep_thread(&q.putters, me)
        room_locked_count(q)
        s = mt_pubsub_records(q)
        while s != NULL:
            mt_lock_reset(&s.lock)
            mt_waitlist_keep_thread(&s.getters, me)
            locked_count_waiting(q, s)
            s = s.next
        mt_epoch_after_fork(&q.epoch, 1)
        q = q.reg_next
    mt_lock_reset(&registry_lock)
