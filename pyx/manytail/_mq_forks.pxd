# The registry of all MultiQueues (_mq.pxd) of the process, and what a fork does to them. Private.
#
# Every queue of the process is linked here. When os.fork() is called, no attached thread is inside an operation: with
# the GIL because the forking thread has it, without because CPython stops the world first. A detached thread is in one
# of three states:
#   - In a bulk operation. These are counted; fork waits until none is inside, and while it waits new ones stay
#     attached.
#   - Parked as a waiter. Its structure is consistent.
#   - Waiting for a put lock with the take lock held. At most the sub-queue's membership in its ring does not match
#     `must_list`, `enabled` and the items yet. The child's mend_subqueue() corrects it.
# So the child's structures are consistent, and it resets the locks and forgets the waiters of the other threads.
# Threads without a thread state (nogil API) cannot be waited for.
#
# Invariant
#   F1  bulks_inside counts the bulk operations of all queues, and `bulks` those of one, under bulk_lock. While a fork
#       is pending none begins.
from manytail._lifecycle cimport multiqueues
from manytail._mq_ready cimport *


# --------------------------------------------------------------------------------------------------------- the registry
cdef inline void register(queue *q, bint attached) noexcept nogil:
    enter(&multiqueues.lock, False, attached)
    link_after(NULL, q, &q.reg_next, &multiqueues.first, NULL)
    leave(&multiqueues.lock, False)


cdef inline void unregister(queue *q, bint attached) noexcept nogil:
    enter(&multiqueues.lock, False, attached)
    unlink_from(q, &q.reg_next, &multiqueues.first, NULL)
    leave(&multiqueues.lock, False)


# ------------------------------------------------------------------------------------------------------ bulk operations
cdef inline bint enter_bulk(queue *q) noexcept nogil:
    """Called attached. 0: a fork is pending. 1: the caller may detach for a bulk operation on q, then attach and call
    leave_bulk(). Until then it must not post: that may run Python code, and if this forks, the fork waits for ever."""
    enter(&multiqueues.bulk_lock, False, True)
    cdef bint ok = multiqueues.forks_pending == 0
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


# -------------------------------------------------------------------------------------------------- the child of a fork
cdef inline void reset_subqueues(subqueue *s, unsigned long me) noexcept nogil:
    while s != NULL:
        mt_lock_reset(&s.put_lock)
        keep_tasks(&s.not_full, me)
        # pairs with: mt_load_seq_cst in head_advance
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


# --------------------------------------------------------------------------------------------------- garbage collection
# Wait lists may change while a detached bulk operation is inside. Those are counted while attached, so the count does
# not change during a traverse. While it is not 0, the waiting tasks are not visited: the collector then takes them for
# reachable, which only delays collecting them.
cdef inline bint lists_are_quiet(queue *q) noexcept nogil:
    return q.bulks == 0
