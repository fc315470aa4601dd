# The work pool: lanes of items, scheduled by weighted round robin, on top of a MultiQueue. Private; its face is
# _workpool.pyx.
#
#                 put                    take: max_running is reached, or a batch begins
#     dormant -----------> ready ------------------------------------------------------> in progress
#        ^                  ^                                                                 |
#        |                  +------------------------- finish, items are left ----------------+
#        +-------------------------------------------- finish, none is left ------------------+
#
# A take leaves the lane ready while more of its items may run. After a finish the lane joins its ring at the end, or at
# the front if its quantum (as many takes as its weight) is not used up.
#
# Source: the work pool of RabbitMQ's Java client (WorkPool.java: keys dormant, ready, in progress; round robin over
# ready keys, blocks of work). Different here: a key is a lane with an identity of its own, so a key that is registered
# again shares nothing with the old lane's items; a lane may run several items at once; lanes have weights and
# priorities; a thread that waits for a free slot is woken by whatever frees one, and can stop waiting.
#
# A lane is a sub-queue of a weighted MultiQueue (_mq.pxd). Ready: it is in its ring. Dormant: empty, and `must_list` is
# set, so that the next put lists it. In progress, or paused: not `enabled`, so it is in no ring and a put does not list
# it.
#
# Locks: everything here happens under the queue's take lock. Put locks are only taken inside it, so they are never
# contended. "head_" as in _mq.pxd: the take lock is held. `to_post` collects waiters to post after unlocking. With the
# GIL the queue is gil_locked: the GIL is that lock. Progress: blocking.
#
# Invariants
#   W1  A lane is enabled if and only if it is not paused and fewer items than max_running (if that is > 0) run.
#   W2  `keep_alive` is set exactly while the pool holds a reference to the lane's object: from the first put until the
#       lane is idle.
#   W3  No worker is parked while an item can be taken, unless a worker that was woken, or has just finished, is about
#       to take it. Each put that can be taken wakes a worker or asks for a new one. A finish makes at most one item
#       takable, for the worker that finished. Whatever makes more takable (resume, a higher limit, the end) wakes as
#       many. A worker that fails, or whose thread does not start, is replaced if an item is left.
#   W4  No thread sleeps in `not_full` while the lane and the pool have a free slot, unless a thread that was woken is
#       about to use it. Each slot that becomes free wakes one; a woken thread that gives up forwards.
from libc.stdint cimport INT64_MIN

from manytail._mq_changes cimport *
from manytail._mq_clear cimport *

ctypedef struct pool        # declared first: a lane points to its pool

ctypedef struct lane:
    subqueue *s             # constant; s.owner is this lane
    pool *p                 # constant; alive as long as the lane's object
    void *object            # constant, borrowed: the Lane
    int64_t active          # items taken and not finished
    int64_t max_running     # <= 0: no limit
    int64_t max_pending     # capacity: of items not taken; <= 0: no limit
    int64_t batch_left      # items that the current batch may still take
    mt_atomic_u32 closed    # 1: s.closed_flags is not 0; for callers without the lock
    bint paused
    bint keep_alive         # W2
    wait_list not_full      # threads that wait for a free slot
    wait_list drained       # threads that wait until the lane is idle: has no items and runs none
    lane *ring_next         # in not_full_ring; NULL: not in it
    lane *ring_prev

ctypedef struct pool:
    queue *q                # constant
    int64_t pending         # items in all lanes, not taken
    int64_t max_pending     # constant; <= 0: no limit
    int64_t workers         # threads that serve it, and those about to be started
    int64_t max_workers     # constant
    int64_t tasks           # of a dispatcher: executor tasks submitted that have not begun their batch
    int64_t fork_generation  # forks so far; finish_item() does not count an item of an earlier generation
    lane *not_full_ring     # the lanes with waiters in `not_full`, as a ring: next to get a free slot of the pool


cdef inline void close_lane(lane *ln) noexcept nogil:
    """Let it accept no more items."""
    ln.s.closed_flags |= MT_CLOSED_SHUTDOWN
    mt_store_relaxed_u32(&ln.closed, 1)         # relaxed because: see is_closed()


cdef inline bint is_closed(lane *ln) noexcept nogil:
    # relaxed because: a guess, without the lock; a put under it is refused
    return mt_load_relaxed_u32(&ln.closed) != 0


# -------------------------------------------------------------------------------------------------- waiting for a slot
cdef inline bint head_full(pool *p, lane *ln) noexcept nogil:
    return ((ln.max_pending > 0 and head_count(ln.s) >= ln.max_pending)
            or (p.max_pending > 0 and p.pending >= p.max_pending))


cdef inline void head_ring(pool *p, lane *ln) noexcept nogil:
    """Make the lane a member of not_full_ring if and only if it has waiters."""
    if (ln.not_full.n != 0) == (ln.ring_next != NULL):
        return
    if ln.not_full.n:
        ln.ring_next = p.not_full_ring if p.not_full_ring != NULL else ln
        ln.ring_prev = ln.ring_next.ring_prev if p.not_full_ring != NULL else ln
        ln.ring_prev.ring_next = ln.ring_next.ring_prev = ln
        if p.not_full_ring == NULL:
            p.not_full_ring = ln
        return
    if p.not_full_ring == ln:
        p.not_full_ring = ln.ring_next if ln.ring_next != ln else NULL
    ln.ring_prev.ring_next = ln.ring_next
    ln.ring_next.ring_prev = ln.ring_prev
    ln.ring_next = ln.ring_prev = NULL


cdef inline void head_admit(pool *p, lane *ln, wait_node **to_post) noexcept nogil:
    """A slot of this lane became free: notify a thread that waits for it, or else one that waits for the pool's."""
    cdef lane *first = p.not_full_ring
    if first == NULL:
        return
    if ln.not_full.n == 0 or head_full(p, ln):
        if p.max_pending <= 0:
            return
        ln = first
        while head_full(p, ln):
            ln = ln.ring_next
            if ln == first:
                return
        p.not_full_ring = ln.ring_next       # round robin
    notify(&ln.not_full, to_post)
    head_ring(p, ln)


cdef inline void head_admit_all(pool *p, lane *ln, wait_node **to_post) noexcept nogil:
    """Notify all waiters of the lane: its capacity has changed, or it was shut down."""
    notify_all(&ln.not_full, to_post)
    head_ring(p, ln)


# ------------------------------------------------------------------------------------------------------ states of lanes
cdef inline void head_settle(pool *p, lane *ln) noexcept nogil:
    """Restore W1. A lane that becomes enabled keeps the rest of its quantum, at the front of its ring."""
    cdef queue *q = p.q
    cdef subqueue *s = ln.s
    cdef uint32_t quantum = s.quantum_left
    cdef bint show = not ln.paused and (ln.max_running <= 0 or ln.active < ln.max_running)
    if not s.attached or show == (s.enabled != 0):
        return
    s.enabled = show
    q.nenabled += 1 if show else -1
    if not show:
        lock_put(q, s, q.holder_attached)
        head_mask(q, s)
        unlock_put(q, s)
        s.quantum_left = quantum
    elif not head_leave_to_put(q, s):
        head_list(q, s)
        s.quantum_left = quantum
        if quantum:
            s.ready.level.front = &s.ready
    else:
        s.quantum_left = 0


cdef inline bint head_check_idle(lane *ln, wait_node **to_post) noexcept nogil:
    """If the lane is idle, notify `drained`. 1: the caller drops the pool's reference to it after unlocking (W2)."""
    if ln.active or head_count(ln.s):
        return False
    notify_all(&ln.drained, to_post)
    if not ln.keep_alive:
        return False
    ln.keep_alive = False
    return True


cdef inline bint head_call_worker(pool *p, wait_node **to_post) noexcept nogil:
    """An item can be taken: wake a parked worker. 1: there is none, and the caller starts a new one."""
    if p.q.not_empty.n:
        notify(&p.q.not_empty, to_post)
        return False
    if p.workers >= p.max_workers:
        return False
    p.workers += 1
    return True


cdef inline int64_t head_call_workers(pool *p, lane *ln, wait_node **to_post) noexcept nogil:
    """Wake as many workers as items of the lane can be taken. Returns how many the caller has to start."""
    cdef int64_t n = head_count(ln.s), start = 0
    if not ln.s.enabled:
        return 0
    if ln.max_running > 0:
        n = min(n, ln.max_running - ln.active)
    n = min(n, p.max_workers)
    while n > 0:
        start += head_call_worker(p, to_post)
        n -= 1
    return start


# ------------------------------------------------------------------------------------------------------------------ put
cdef inline int put_in_lane(pool *p, lane *ln, uintptr_t item, bint over, int64_t *position,
                            bint *start) noexcept nogil:
    """MT_OK, MT_FULL, MT_SHUTDOWN or MT_NOMEM. over: ignore max_pending. *position: for withdraw_item(). *start: the
    caller starts a worker."""
    cdef queue *q = p.q
    cdef subqueue *s = ln.s
    cdef wait_node *to_post = NULL
    start[0] = False
    lock_take(q, True)
    if s.closed_flags:
        r = MT_SHUTDOWN
    elif not over and head_full(p, ln):
        r = MT_FULL
    else:
        lock_put(q, s, True)
        position[0] = mt_load_relaxed_i64(&s.tail_seq)      # relaxed because: written under the put lock
        r = tail_put(q, s, item)
        if r == MT_OK:
            head_list_after_put(q, s, &to_post)
        unlock_put(q, s)
        if r == MT_OK:
            p.pending += 1
            if not ln.keep_alive:
                ln.keep_alive = True
                keep(<uintptr_t>ln.object)
            if s.enabled:
                start[0] = head_call_worker(p, &to_post)
    unlock_take_and_post(q, to_post)
    return r


cdef inline int put_when_slot_free(pool *p, lane *ln, uintptr_t item, int64_t *position, bint *start) noexcept nogil:
    """As put_in_lane(), but wait for a free slot: MT_OK, MT_SHUTDOWN, MT_NOMEM, or MT_INTERRUPTED with the exception
    set."""
    cdef wait_point place
    cdef int r
    make_point(&place, &ln.not_full, &p.q.take_lock, p.q.gil_locked, True, head_poll_place, ln)
    place.changed = head_place_changed
    place.forward = head_forward_place
    while True:
        r = put_in_lane(p, ln, item, False, position, start)
        if r != MT_OK:
            forward_unused(&place, 1, False)    # if only the lane is shut or full, another may use the pool's slot
        if not again(&place, 1, &r, NEVER):
            return r


cdef inline int head_poll_place(wait_point *w, bint parking) noexcept nogil:
    cdef lane *ln = <lane *>w.of
    return WAIT if ln.s.closed_flags == 0 and head_full(ln.p, ln) else MT_OK


cdef inline void head_place_changed(wait_point *w) noexcept nogil:
    head_ring((<lane *>w.of).p, <lane *>w.of)


cdef inline void head_forward_place(wait_point *w, wait_node **to_post) noexcept nogil:
    head_admit((<lane *>w.of).p, <lane *>w.of, to_post)


# ----------------------------------------------------------------------------------------------------------------- take
cdef inline uintptr_t head_remove_head(pool *p, lane *ln, wait_node **to_post) noexcept nogil:
    """Take the oldest item of the lane, and count it out."""
    cdef uintptr_t item = head_pop(p.q, ln.s)
    p.q.taken_total += 1
    head_popped(p.q, ln.s, 1, True, to_post)
    p.pending -= 1
    head_admit(p, ln, to_post)
    return item


cdef inline lane *head_next_lane(pool *p) noexcept nogil:
    """The next ready lane by weighted round robin, one of its quantum used; or NULL."""
    cdef subqueue *s = head_next(p.q, False)
    if s == NULL:
        return NULL
    if s.quantum_left == 0:
        s.quantum_left = s.weight
    s.quantum_left -= 1
    return <lane *>s.owner


cdef inline lane *take_item(pool *p, uintptr_t *item, int64_t *fork_generation) noexcept nogil:
    """Take an item of the next lane; it counts as running until finish_item(). NULL: nothing can be taken."""
    cdef wait_node *to_post = NULL
    lock_take(p.q, True)
    ln = head_next_lane(p)
    if ln != NULL:
        s = ln.s
        fork_generation[0] = p.fork_generation
        item[0] = head_remove_head(p, ln, &to_post)
        ln.active += 1
        keep(<uintptr_t>ln.object)
        if head_empty(s):
            head_unlist(p.q, s)
        elif s.quantum_left == 0:
            s.ready.level.front = s.ready.next
        head_settle(p, ln)
    unlock_take_and_post(p.q, to_post)
    return ln


cdef inline bint leave_pool(pool *p) noexcept nogil:
    """Count out a worker after the pool has ended. 0: something can be taken, so it must stay. Check and count are
    under one lock, else a lane that is resumed in between counts on a worker that is gone."""
    lock_take(p.q, True)
    cdef bint leaves = head_next(p.q, True) == NULL
    if leaves:
        p.workers -= p.workers > 0       # in the child of a fork nobody counts
    unlock_take(p.q)
    return leaves


cdef inline bint lose_workers(pool *p, int64_t n) noexcept nogil:
    """Count out n workers that failed. As head_call_worker() if an item can be taken whose put may have counted on one
    that failed. n = 0: one that did not start, and is counted out; that matters only if no other is left."""
    cdef wait_node *to_post = NULL
    lock_take(p.q, True)
    p.workers = max(<int64_t>0, p.workers - n)
    cdef bint start = (n > 0 or p.workers == 0) and head_next(p.q, True) != NULL and head_call_worker(p, &to_post)
    unlock_take_and_post(p.q, to_post)
    return start


cdef inline bint finish_item(pool *p, lane *ln, int64_t fork_generation) noexcept nogil:
    """An item that take_item() or a batch took has run. 1: the caller drops the pool's reference to the lane."""
    cdef wait_node *to_post = NULL
    cdef bint drop_lane = False
    lock_take(p.q, True)
    if fork_generation == p.fork_generation:
        ln.active -= 1
        head_settle(p, ln)
        drop_lane = head_check_idle(ln, &to_post)
    unlock_take_and_post(p.q, to_post)
    return drop_lane


cdef inline lane *begin_batch(pool *p, int64_t most, bint of_task, int64_t *fork_generation) noexcept nogil:
    """Begin a batch of at most `most` items of the next lane, which goes in progress. NULL: none is ready. of_task: an
    executor task calls it, which is no longer counted in `tasks`."""
    lock_take(p.q, True)
    if of_task and p.tasks > 0:
        p.tasks -= 1
    ln = head_next_lane(p)
    if ln != NULL:
        fork_generation[0] = p.fork_generation
        ln.s.quantum_left = 0                    # a batch uses up the quantum
        ln.batch_left = most
        ln.active += 1
        keep(<uintptr_t>ln.object)
        head_settle(p, ln)
    unlock_take(p.q)
    return ln


cdef inline bint take_of_batch(pool *p, lane *ln, int64_t fork_generation, uintptr_t *item) noexcept nogil:
    """Take the next item of the current batch. 0: the batch is over."""
    cdef wait_node *to_post = NULL
    cdef bint some = False
    lock_take(p.q, True)
    if fork_generation == p.fork_generation and ln.batch_left > 0 and head_count(ln.s) > 0:
        ln.batch_left -= 1
        item[0] = head_remove_head(p, ln, &to_post)
        some = True
    unlock_take_and_post(p.q, to_post)
    return some


# ---------------------------------------------------------------------------------------------------------- taking back
cdef inline bint withdraw_item(pool *p, lane *ln, int64_t position, uintptr_t item, bint *drop_lane) noexcept nogil:
    """Remove an item at any position of its lane, by a tombstone. 0: it is not there, because it was taken.
    *drop_lane: as finish_item() returns."""
    cdef wait_node *to_post = NULL
    drop_lane[0] = False
    lock_take(p.q, True)
    there = head_discard(p.q, ln.s, position, item, True, &to_post)
    if there:
        p.pending -= 1
        head_admit(p, ln, &to_post)
        drop_lane[0] = head_check_idle(ln, &to_post)
    unlock_take_and_post(p.q, to_post)
    return there


cdef inline bint take_away(pool *p, lane *ln, uintptr_t *item, bint *drop_lane) noexcept nogil:
    """Take the oldest item of the lane, not to be run. 0: it has none. *drop_lane: as finish_item() returns."""
    cdef wait_node *to_post = NULL
    cdef bint some = False
    drop_lane[0] = False
    lock_take(p.q, True)
    if head_count(ln.s) > 0:
        item[0] = head_remove_head(p, ln, &to_post)
        if ln.s.ready.listed and head_empty(ln.s):
            head_unlist(p.q, ln.s)
        drop_lane[0] = head_check_idle(ln, &to_post)
        some = True
    unlock_take_and_post(p.q, to_post)
    return some


# -------------------------------------------------------------------------------------------------------------- changes
cdef inline int64_t pause_lane(pool *p, lane *ln, bint paused) noexcept nogil:
    """Pause or resume. Returns how many workers the caller has to start; -1: a lane that is shut down cannot be
    paused."""
    cdef wait_node *to_post = NULL
    cdef int64_t start = 0
    lock_take(p.q, True)
    if paused and ln.s.closed_flags:
        start = -1
    elif paused != ln.paused:
        ln.paused = paused
        head_settle(p, ln)
        if paused:
            ln.s.quantum_left = 0
        else:
            start = head_call_workers(p, ln, &to_post)
    unlock_take_and_post(p.q, to_post)
    return start


cdef inline int64_t limit_lane(pool *p, lane *ln, int64_t max_pending, int64_t max_running) noexcept nogil:
    """Set the limits, but one that is INT64_MIN. Returns how many workers the caller has to start."""
    cdef wait_node *to_post = NULL
    lock_take(p.q, True)
    if max_pending != INT64_MIN:
        ln.max_pending = max_pending
    if max_running != INT64_MIN:
        ln.max_running = max_running
    head_settle(p, ln)
    head_admit_all(p, ln, &to_post)
    start = head_call_workers(p, ln, &to_post)
    unlock_take_and_post(p.q, to_post)
    return start


cdef inline int64_t head_shut_lane(pool *p, lane *ln, bint resume, wait_node **to_post) noexcept nogil:
    close_lane(ln)
    head_admit_all(p, ln, to_post)
    if not ln.paused or not resume:
        return 0
    ln.paused = False
    head_settle(p, ln)
    return head_call_workers(p, ln, to_post)


cdef inline int64_t shut_lane(pool *p, lane *ln, bint resume) noexcept nogil:
    """Accept no more items. resume: end a pause, so that the items run. Returns how many workers the caller has to
    start."""
    cdef wait_node *to_post = NULL
    lock_take(p.q, True)
    start = head_shut_lane(p, ln, resume, &to_post)
    unlock_take_and_post(p.q, to_post)
    return start


cdef inline void stop_lane(pool *p, lane *ln) noexcept nogil:
    """Accept no more items, and give out no more."""
    cdef wait_node *to_post = NULL
    lock_take(p.q, True)
    close_lane(ln)
    ln.paused = True
    ln.batch_left = 0
    head_settle(p, ln)
    head_admit_all(p, ln, &to_post)
    unlock_take_and_post(p.q, to_post)


cdef inline int64_t end_pool(pool *p, bint resume) noexcept nogil:
    """shut_lane() for all lanes; workers end when nothing can be taken."""
    cdef wait_node *to_post = NULL
    cdef int64_t start = 0
    shut_queue(p.q, False, True)
    lock_take(p.q, True)
    s = p.q.all_first
    while s != NULL:
        start += head_shut_lane(p, <lane *>s.owner, resume, &to_post)
        s = s.all_next
    unlock_take_and_post(p.q, to_post)
    return start + lose_workers(p, 0)


cdef inline int wait_until_idle(lane *ln, int64_t deadline) noexcept nogil:
    """MT_OK: the lane was idle at some instant. Else MT_TIMEOUT (with ONCE: MT_EMPTY), MT_INTERRUPTED or MT_NOMEM."""
    cdef wait_point w
    cdef int r
    make_point(&w, &ln.drained, &ln.p.q.take_lock, ln.p.q.gil_locked, True, head_poll_idle, ln)
    while True:
        r = MT_OK if w.woken or poll_all(&w, 1) == MT_OK else MT_EMPTY
        if not again(&w, 1, &r, deadline):
            return r


cdef inline int head_poll_idle(wait_point *w, bint parking) noexcept nogil:
    cdef lane *ln = <lane *>w.of
    return MT_OK if ln.active == 0 and head_count(ln.s) == 0 else WAIT


cdef inline bint check_idle(pool *p, lane *ln) noexcept nogil:
    """1: the lane is idle, and the caller drops the pool's reference to it."""
    cdef wait_node *to_post = NULL
    lock_take(p.q, True)
    drop_lane = head_check_idle(ln, &to_post)
    unlock_take_and_post(p.q, to_post)
    return drop_lane


cdef inline int64_t missing_tasks(pool *p) noexcept nogil:
    """How many executor tasks the caller has to submit so that each ready lane has one; they are counted in `tasks`."""
    lock_take(p.q, True)
    cdef int64_t n = -p.tasks
    for i in range(p.q.ready.best.n):
        n += (<ready_level *>p.q.ready.best.items[i].member).nready
    if n > 0:
        p.tasks += n
    unlock_take(p.q)
    return n


cdef inline void refused_tasks(pool *p, int64_t n) noexcept nogil:
    lock_take(p.q, True)
    p.tasks = max(<int64_t>0, p.tasks - n)
    unlock_take(p.q)


cdef inline void forget_in_child(pool *p, unsigned long me) noexcept nogil:
    """In the child of a fork: the other threads are gone, and with them workers, running items and waiters."""
    cdef subqueue *s = p.q.all_first
    p.fork_generation += 1
    p.workers = 0
    p.tasks = 0
    p.not_full_ring = NULL
    while s != NULL:
        ln = <lane *>s.owner
        ln.active = 0
        ln.batch_left = 0
        ln.ring_next = ln.ring_prev = NULL
        keep_tasks(&ln.not_full, me)
        keep_tasks(&ln.drained, me)
        head_settle(p, ln)
        s = s.all_next
