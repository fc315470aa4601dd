# The algorithm of the work pool on C structs, nogil throughout: the states of its keys on top of a MultiQueue.
#
#                 put                      take: its limit is reached, or a block begins
#     dormant ----------> ready  ------------------------------------------------------> in progress
#        ^                 ^  |  (more may run: its turn goes on, or round)                    |
#        |                 |  +--> ready                                                      | finish
#        |                 +--------------- items are left: the end of its ring, or the front,  |
#        +--------------------------------- if its turn is not over; nothing is left: dormant --+
#
# Source: the work pool of RabbitMQ's Java client (WorkPool.java: keys dormant, ready, in progress; ready keys served in turn,
# blocks of work). What we changed: a key is a lane with an identity of its own, so one that is registered again shares nothing
# with what still runs for the old one; a lane may run several items at once; turns have weights and priorities; who waits for a
# place is woken by whatever frees one, and stops waiting without losing an item.
#
# A lane is a tail of a weighted MultiQueue (_mq.pxd). Ready: in the ring. Dormant: empty, unknown to the head. In progress,
# or paused: the tail is not `enabled`, so it is out of the ring and a put does not list it.
#
# One lock: everything here happens under the queue's take lock; put locks are taken inside it, so nobody ever waits for
# one. "taken_" as in _mq.pxd: the take lock is held. `wake` collects waiters to be posted after unlocking. With the GIL
# the queue is serial: the GIL is that lock.
#
# Invariants
#   W1  a lane is enabled if and only if it is not paused and fewer than max_running of its items run (max_running > 0);
#   W2  `kept` is set, and the pool owns a reference to the lane's object, while the lane has items or runs any;
#   W3  no worker is parked while an item can be taken, unless a worker that was woken, or that has just finished, is on its
#       way to take it: each put that can be taken wakes one or asks for a new one, a finish frees one item at most, and
#       whatever frees more (resume, a higher limit, the end) wakes as many;
#   W4  nobody sleeps in `room` while the lane and the pool have a place, unless somebody who was woken for it is on his way:
#       each place that comes free wakes one, and who was woken and gives up passes it on.
#
# Private. Its face is _workpool.pyx.
from libc.stdint cimport int64_t, uint32_t, uintptr_t

from manytail._c cimport (
    MT_FULL, MT_GATE_SHUTDOWN, MT_INTERRUPTED, MT_NOMEM, MT_OK, MT_SHUTDOWN, MT_TIMEOUT, MT_WAITER_NOTIFIED, keep,
    mt_chunk, mt_chunk_items, mt_chunk_kill, mt_chunk_next, mt_level, mt_load_relaxed_i64, mt_point, mt_waiter,
    mt_waitlist, mt_waitlist_keep_thread, mt_waitlist_leave, mt_waitlist_notify, mt_waitlist_notify_all,
    mt_waitlist_push, queue, subqueue,
)
from manytail._mq cimport (
    is_unknown, left, lock_put, lock_take, putting_one, set_unknown, shut_queue, taken_count,
    taken_drop_dead_chunk, taken_empty, taken_forget, taken_hide, taken_holds, taken_list, taken_next, taken_pop,
    taken_unlist, unlock_put, unlock_take,
)
from manytail._wait cimport (
    NEVER, ONCE, post_chain, waiter_await_post, waiter_close, waiter_open, waiter_park,
)

ctypedef struct pool        # declared first: a lane points to its pool

ctypedef struct lane:
    subqueue *s             # constant; s.owner is this lane
    pool *p                 # constant; alive as long as the lane's object
    void *object            # constant, borrowed: the Lane
    int64_t running         # items taken and not finished
    int64_t max_running     # <= 0: no limit
    int64_t max_pending     # <= 0: no bound; else items that wait
    int64_t block_left      # items that the block under way may still take
    bint paused
    bint kept
    mt_waitlist room        # who waits for a place
    mt_waitlist idle        # who waits until nothing is left and nothing runs
    lane *ring_next         # lanes with somebody in `room`; NULL: not among them
    lane *ring_prev

ctypedef struct pool:
    queue *q                # constant
    int64_t pending         # items in all lanes
    int64_t max_pending     # constant; <= 0: no bound
    int64_t workers         # threads that serve it, and those about to be started
    int64_t max_workers     # constant
    int64_t tasks           # a dispatcher's: executor tasks under way that have not begun their block
    int64_t era             # forks lived through: what was taken before one is not finished after it
    lane *room_ring         # whose turn it is to be looked at when a place of the pool comes free


# ------------------------------------------------------------------------------------------------------ who waits for room
cdef inline bint taken_full(pool *p, lane *ln) noexcept nogil:
    return (ln.max_pending > 0 and taken_count(ln.s) >= ln.max_pending) or (p.max_pending > 0 and p.pending >= p.max_pending)


cdef inline void taken_enlist(pool *p, lane *ln, mt_waiter *w) noexcept nogil:
    """Queue a waiter for room."""
    mt_waitlist_push(&ln.room, w)
    if ln.ring_next != NULL:
        return
    if p.room_ring == NULL:
        p.room_ring = ln.ring_next = ln.ring_prev = ln
    else:
        ln.ring_next = p.room_ring
        ln.ring_prev = p.room_ring.ring_prev
        ln.ring_prev.ring_next = ln
        ln.ring_next.ring_prev = ln


cdef inline void taken_unring(pool *p, lane *ln) noexcept nogil:
    """Nobody of that lane waits any more, perhaps."""
    if ln.room.n or ln.ring_next == NULL:
        return
    if ln.ring_next == ln:
        p.room_ring = NULL
    else:
        ln.ring_prev.ring_next = ln.ring_next
        ln.ring_next.ring_prev = ln.ring_prev
        if p.room_ring == ln:
            p.room_ring = ln.ring_next
    ln.ring_next = ln.ring_prev = NULL


cdef inline void taken_admit(pool *p, lane *ln, mt_waiter **wake) noexcept nogil:
    """A place of this lane came free: wake one who waits for it, or for the pool's."""
    cdef lane *first = p.room_ring
    if first == NULL:
        return
    if ln.room.n == 0 or taken_full(p, ln):
        if p.max_pending <= 0:
            return
        ln = first
        while ln.room.n == 0 or taken_full(p, ln):
            ln = ln.ring_next
            if ln == first:
                return
        p.room_ring = ln.ring_next       # the lanes take turns
    mt_waitlist_notify(&ln.room, wake)
    taken_unring(p, ln)


cdef inline void taken_admit_all(pool *p, lane *ln, mt_waiter **wake) noexcept nogil:
    """Everybody of this lane looks again: its bound, or its gate, has changed."""
    mt_waitlist_notify_all(&ln.room, wake)
    taken_unring(p, ln)


# ---------------------------------------------------------------------------------------------------------- states of lanes
cdef inline bint taken_may_run(lane *ln) noexcept nogil:
    return not ln.paused and (ln.max_running <= 0 or ln.running < ln.max_running)


cdef inline void taken_settle(pool *p, lane *ln) noexcept nogil:
    """Bring the tail in line with W1. One that is shown goes on with its turn if that is not over."""
    cdef queue *q = p.q
    cdef subqueue *s = ln.s
    cdef uint32_t turn = s.turn
    cdef bint show = taken_may_run(ln)
    if not s.attached or show == (s.enabled != 0):
        return
    s.enabled = show
    q.nenabled += 1 if show else -1
    if not show:
        lock_put(q, s, q.attached)
        taken_hide(q, s)
        unlock_put(q, s)
        s.turn = turn
    elif not taken_forget(q, s):
        taken_list(q, s)
        s.turn = turn
        if turn:
            s.ready.level.front = &s.ready
    else:
        s.turn = 0


cdef inline bint taken_rest(lane *ln, mt_waiter **wake) noexcept nogil:
    """If it has become idle: wake who waits for that. 1: the caller gives up the pool's reference, after unlocking."""
    if ln.running or taken_count(ln.s):
        return False
    mt_waitlist_notify_all(&ln.idle, wake)
    if not ln.kept:
        return False
    ln.kept = False
    return True


cdef inline bint taken_call_worker(pool *p, mt_waiter **wake) noexcept nogil:
    """Something can be taken: wake a parked worker. 1: there is none, and the caller is to start one."""
    if p.q.getters.n:
        mt_waitlist_notify(&p.q.getters, wake)
        return False
    if p.workers >= p.max_workers:
        return False
    p.workers += 1
    return True


cdef inline int64_t taken_call_workers(pool *p, lane *ln, mt_waiter **wake) noexcept nogil:
    """The items of a lane that was shown can be taken: wake as many workers; how many the caller is to start."""
    cdef int64_t n = taken_count(ln.s), start = 0
    if not ln.s.enabled:
        return 0
    if ln.max_running > 0:
        n = min(n, ln.max_running - ln.running)
    n = min(n, p.max_workers)
    while n > 0:
        start += taken_call_worker(p, wake)
        n -= 1
    return start


cdef inline int64_t taken_lanes_ready(pool *p) noexcept nogil:
    cdef int64_t n = 0
    cdef uint32_t i
    for i in range(p.q.ready.best.n):
        n += (<mt_level *>p.q.ready.best.items[i].obj).nready
    return n


# -------------------------------------------------------------------------------------------------------------------- put
cdef inline int put_in_lane(pool *p, lane *ln, uintptr_t item, bint over, int64_t *position, bint *start) noexcept nogil:
    """MT_OK, MT_FULL, MT_SHUTDOWN or MT_NOMEM. over: whatever the bounds say. *position: where it stands, for withdraw()."""
    cdef queue *q = p.q
    cdef subqueue *s = ln.s
    cdef mt_waiter *wake = NULL
    cdef int r
    start[0] = False
    lock_take(q, True)
    if s.gate:
        r = MT_SHUTDOWN
    elif not over and taken_full(p, ln):
        r = MT_FULL
    else:
        lock_put(q, s, True)
        position[0] = mt_load_relaxed_i64(&s.tail_seq)      # relaxed because: written under the put lock
        r = putting_one(q, s, item)
        if r == MT_OK and is_unknown(s):
            set_unknown(s, False)
            taken_list(q, s)
        unlock_put(q, s)
        if r == MT_OK:
            p.pending += 1
            taken_keep(ln)
            if s.enabled:
                start[0] = taken_call_worker(p, &wake)
    unlock_take(q)
    if wake != NULL:
        post_chain(wake)
    return r


cdef inline void taken_keep(lane *ln) noexcept nogil:
    if not ln.kept:
        ln.kept = True
        keep(<uintptr_t>ln.object)


cdef inline int wait_for_place(pool *p, lane *ln) noexcept nogil:
    """Until a put is worth trying again: MT_OK. MT_INTERRUPTED with the exception set, or MT_NOMEM."""
    cdef queue *q = p.q
    cdef mt_waiter w
    cdef int r = MT_OK
    lock_take(q, True)
    if ln.s.gate == 0 and taken_full(p, ln):
        r = waiter_open(&w)
        if r == MT_OK:
            taken_enlist(p, ln, &w)
            unlock_take(q)
            mt_point()
            r = waiter_park(&w, NEVER, True)
            mt_point()
            if r != MT_OK:
                stop_waiting_for_place(p, ln, &w)
            waiter_close(&w)
            return r
    unlock_take(q)
    return r


cdef inline void stop_waiting_for_place(pool *p, lane *ln, mt_waiter *w) noexcept nogil:
    """Interrupted. A wake-up that had come is passed on."""
    cdef mt_waiter *wake = NULL
    cdef bint notified
    lock_take(p.q, True)
    notified = mt_waitlist_leave(&ln.room, w) == MT_WAITER_NOTIFIED
    taken_unring(p, ln)
    if notified:
        taken_admit(p, ln, &wake)
    unlock_take(p.q)
    if wake != NULL:
        post_chain(wake)
    if notified:
        waiter_await_post(w, True)


cdef inline void pass_on_place(pool *p, lane *ln) noexcept nogil:
    """Somebody who may have been woken for a place will not take it."""
    cdef mt_waiter *wake = NULL
    lock_take(p.q, True)
    taken_admit(p, ln, &wake)
    unlock_take(p.q)
    if wake != NULL:
        post_chain(wake)


# ------------------------------------------------------------------------------------------------------------------- take
cdef inline uintptr_t taken_remove_head(pool *p, lane *ln, mt_waiter **wake) noexcept nogil:
    """Its oldest item, out of the pool's books."""
    cdef uintptr_t item = taken_pop(p.q, ln.s)
    p.q.got += 1
    left(p.q, ln.s, 1, True, wake)
    p.pending -= 1
    taken_admit(p, ln, wake)
    return item


cdef inline lane *taken_next_lane(pool *p) noexcept nogil:
    """The ready lane whose turn it is, one step of its turn taken; or NULL."""
    cdef subqueue *s = taken_next(p.q, False)
    if s == NULL:
        return NULL
    if s.turn == 0:
        s.turn = s.weight
    s.turn -= 1
    return <lane *>s.owner


cdef inline lane *take_item(pool *p, uintptr_t *item, int64_t *era) noexcept nogil:
    """An item of the lane whose turn it is, which runs from now on; NULL: nothing can be taken."""
    cdef mt_waiter *wake = NULL
    cdef lane *ln
    cdef subqueue *s
    lock_take(p.q, True)
    ln = taken_next_lane(p)
    if ln != NULL:
        s = ln.s
        era[0] = p.era
        item[0] = taken_remove_head(p, ln, &wake)
        ln.running += 1
        keep(<uintptr_t>ln.object)
        if taken_empty(s):
            taken_unlist(p.q, s)
        elif s.turn == 0:
            s.ready.level.front = s.ready.next
        taken_settle(p, ln)
    unlock_take(p.q)
    if wake != NULL:
        post_chain(wake)
    return ln


cdef inline bint leave_pool(pool *p, bint at_once) noexcept nogil:
    """A worker that was told of the end does not count any more. 0: there is something to take after all, and it stays. Both under one lock,
    or a lane that is resumed in between would count on a worker that has gone. at_once: it goes whatever there is."""
    cdef bint leaves
    lock_take(p.q, True)
    leaves = at_once or taken_next(p.q, True) == NULL
    if leaves:
        p.workers -= p.workers > 0       # in the child of a fork nobody counts
    unlock_take(p.q)
    return leaves


cdef inline bint finish_item(pool *p, lane *ln, int64_t era) noexcept nogil:
    """What was taken has run. 1: the caller gives up the pool's reference to the lane."""
    cdef mt_waiter *wake = NULL
    cdef bint let_go = False
    lock_take(p.q, True)
    if era == p.era:
        ln.running -= 1
        taken_settle(p, ln)
        let_go = taken_rest(ln, &wake)
    unlock_take(p.q)
    if wake != NULL:
        post_chain(wake)
    return let_go


cdef inline lane *begin_block(pool *p, int64_t most, bint of_task, int64_t *era) noexcept nogil:
    """The lane whose turn it is goes in progress; up to `most` of its items may be taken. NULL: none is ready. of_task: an executor task
    begins with this, which so far counted as one under way."""
    cdef lane *ln
    lock_take(p.q, True)
    if of_task and p.tasks > 0:
        p.tasks -= 1
    ln = taken_next_lane(p)
    if ln != NULL:
        era[0] = p.era
        ln.s.turn = 0                    # the block is its turn
        ln.block_left = most
        ln.running += 1
        keep(<uintptr_t>ln.object)
        taken_settle(p, ln)
    unlock_take(p.q)
    return ln


cdef inline bint take_of_block(pool *p, lane *ln, int64_t era, uintptr_t *item) noexcept nogil:
    """The next item of a block under way; 0: the block is over."""
    cdef mt_waiter *wake = NULL
    cdef bint some = False
    lock_take(p.q, True)
    if era == p.era and ln.block_left > 0 and taken_count(ln.s) > 0:
        ln.block_left -= 1
        item[0] = taken_remove_head(p, ln, &wake)
        some = True
    unlock_take(p.q)
    if wake != NULL:
        post_chain(wake)
    return some


# ------------------------------------------------------------------------------------------------------------- taking back
cdef inline bint withdraw_item(pool *p, lane *ln, int64_t position, uintptr_t item, bint *let_go) noexcept nogil:
    """Take an item out from wherever in its lane it stands. 0: it is not there any more."""
    cdef mt_waiter *wake = NULL
    cdef subqueue *s = ln.s
    cdef mt_chunk *c
    cdef bint there
    let_go[0] = False
    lock_take(p.q, True)
    taken_count(s)                  # what follows compares with the getters' copy of it
    c = taken_chunk_at(s, position)
    there = c != NULL and taken_holds(s, c, <uint32_t>(position - c.base)) and mt_chunk_items(c)[position - c.base] == item
    if there:
        mt_chunk_kill(c, <uint32_t>(position - c.base))
        s.ndead += 1
        s.has_dead = 1
        left(p.q, s, 1, True, &wake)
        p.pending -= 1
        if s.ready.listed and taken_empty(s):
            taken_unlist(p.q, s)
        taken_drop_dead_chunk(p.q, s, c)
        taken_admit(p, ln, &wake)
        let_go[0] = taken_rest(ln, &wake)
    unlock_take(p.q)
    if wake != NULL:
        post_chain(wake)
    return there


cdef inline mt_chunk *taken_chunk_at(subqueue *s, int64_t position) noexcept nogil:
    cdef mt_chunk *c = s.head
    while c != NULL and position >= c.base + c.cap:
        c = mt_chunk_next(c) if c != s.tail else NULL
    return c if c != NULL and position >= c.base else NULL


cdef inline bint take_away(pool *p, lane *ln, uintptr_t *item, bint *let_go) noexcept nogil:
    """The oldest item of that lane, not to be run; 0: it has none."""
    cdef mt_waiter *wake = NULL
    cdef bint some = False
    let_go[0] = False
    lock_take(p.q, True)
    if taken_count(ln.s) > 0:
        item[0] = taken_remove_head(p, ln, &wake)
        if ln.s.ready.listed and taken_empty(ln.s):
            taken_unlist(p.q, ln.s)
        let_go[0] = taken_rest(ln, &wake)
        some = True
    unlock_take(p.q)
    if wake != NULL:
        post_chain(wake)
    return some


# ----------------------------------------------------------------------------------------------------------------- changes
cdef inline int64_t pause_lane(pool *p, lane *ln, bint paused) noexcept nogil:
    """How many workers the caller is to start; -1: it was shut down, so it cannot be paused."""
    cdef mt_waiter *wake = NULL
    cdef int64_t start = 0
    lock_take(p.q, True)
    if paused and ln.s.gate:
        start = -1
    elif paused != ln.paused:
        ln.paused = paused
        taken_settle(p, ln)
        if paused:
            ln.s.turn = 0
        else:
            start = taken_call_workers(p, ln, &wake)
    unlock_take(p.q)
    if wake != NULL:
        post_chain(wake)
    return start


cdef inline int64_t limit_lane(pool *p, lane *ln, int64_t max_pending, int64_t max_running) noexcept nogil:
    """New bounds; how many workers the caller is to start."""
    cdef mt_waiter *wake = NULL
    cdef int64_t start
    lock_take(p.q, True)
    ln.max_pending = max_pending
    ln.max_running = max_running
    taken_settle(p, ln)
    taken_admit_all(p, ln, &wake)
    start = taken_call_workers(p, ln, &wake)
    unlock_take(p.q)
    if wake != NULL:
        post_chain(wake)
    return start


cdef inline int64_t taken_shut_lane(pool *p, lane *ln, bint resume, mt_waiter **wake) noexcept nogil:
    ln.s.gate |= MT_GATE_SHUTDOWN
    taken_admit_all(p, ln, wake)
    if not ln.paused or not resume:
        return 0
    ln.paused = False
    taken_settle(p, ln)
    return taken_call_workers(p, ln, wake)


cdef inline int64_t shut_lane(pool *p, lane *ln, bint resume) noexcept nogil:
    """It takes nothing more; resume: what is in it still runs. How many workers the caller is to start."""
    cdef mt_waiter *wake = NULL
    cdef int64_t start
    lock_take(p.q, True)
    start = taken_shut_lane(p, ln, resume, &wake)
    unlock_take(p.q)
    if wake != NULL:
        post_chain(wake)
    return start


cdef inline void stop_lane(pool *p, lane *ln) noexcept nogil:
    """It takes nothing more and gives nothing more."""
    cdef mt_waiter *wake = NULL
    lock_take(p.q, True)
    ln.s.gate |= MT_GATE_SHUTDOWN
    ln.paused = True
    ln.block_left = 0
    taken_settle(p, ln)
    taken_admit_all(p, ln, &wake)
    unlock_take(p.q)
    if wake != NULL:
        post_chain(wake)


cdef inline int64_t end_pool(pool *p, bint resume) noexcept nogil:
    """As shut_lane() for all lanes, and workers end when nothing is left to take."""
    cdef mt_waiter *wake = NULL
    cdef int64_t start = 0
    cdef subqueue *s
    shut_queue(p.q, False, True)
    lock_take(p.q, True)
    s = p.q.all_first
    while s != NULL:
        start += taken_shut_lane(p, <lane *>s.owner, resume, &wake)
        s = s.all_next
    unlock_take(p.q)
    if wake != NULL:
        post_chain(wake)
    return start


cdef inline int wait_until_idle(pool *p, lane *ln, int64_t deadline) noexcept nogil:
    """MT_OK: nothing was left and nothing ran, at some instant. MT_TIMEOUT, MT_INTERRUPTED, MT_NOMEM."""
    cdef mt_waiter w
    cdef bint notified
    cdef int r
    lock_take(p.q, True)
    if ln.running == 0 and taken_count(ln.s) == 0:
        unlock_take(p.q)
        return MT_OK
    if deadline == ONCE:
        unlock_take(p.q)
        return MT_TIMEOUT
    r = waiter_open(&w)
    if r == MT_OK:
        mt_waitlist_push(&ln.idle, &w)
    unlock_take(p.q)
    if r != MT_OK:
        return r
    r = waiter_park(&w, deadline, True)
    if r != MT_OK:
        lock_take(p.q, True)
        notified = mt_waitlist_leave(&ln.idle, &w) == MT_WAITER_NOTIFIED     # all are woken: there is nobody to pass it on to
        unlock_take(p.q)
        if notified:
            waiter_await_post(&w, True)
            if r == MT_TIMEOUT:
                r = MT_OK
    waiter_close(&w)
    return r


cdef inline bint rest_lane(pool *p, lane *ln) noexcept nogil:
    """1: it is idle, and the caller gives up the pool's reference to it."""
    cdef mt_waiter *wake = NULL
    cdef bint let_go
    lock_take(p.q, True)
    let_go = taken_rest(ln, &wake)
    unlock_take(p.q)
    if wake != NULL:
        post_chain(wake)
    return let_go


cdef inline int64_t missing_tasks(pool *p) noexcept nogil:
    """How many more lanes are ready than tasks are under way; they count as under way from now on."""
    cdef int64_t n
    lock_take(p.q, True)
    n = taken_lanes_ready(p) - p.tasks
    if n > 0:
        p.tasks += n
    unlock_take(p.q)
    return n


cdef inline void refused_tasks(pool *p, int64_t n) noexcept nogil:
    lock_take(p.q, True)
    p.tasks = max(<int64_t>0, p.tasks - n)
    unlock_take(p.q)


cdef inline void forget_in_child(pool *p, unsigned long me) noexcept nogil:
    """After fork, in the child: the threads are gone, and what ran or waited is the parent's."""
    cdef subqueue *s = p.q.all_first
    cdef lane *ln
    p.era += 1
    p.workers = 0
    p.tasks = 0
    p.room_ring = NULL
    while s != NULL:
        ln = <lane *>s.owner
        ln.running = 0
        ln.block_left = 0
        ln.ring_next = ln.ring_prev = NULL
        mt_waitlist_keep_thread(&ln.room, me)
        mt_waitlist_keep_thread(&ln.idle, me)
        taken_settle(p, ln)
        s = s.all_next
