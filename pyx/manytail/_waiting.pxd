# Waiting: how a call that blocks, and a coroutine, sleeps until something holds, and how it is woken. Private.
#
# A condition ("there is an item", "there is room") and the list of those who wait for it are guarded by one lock of the
# structure.
#
#     who waits                                        who makes the condition true
#     try: it fails
#     lock; join the list; poll again; unlock          lock; make it true; notify: take nodes off the list; unlock
#     sleep until posted                               post each node
#     leave the list, if still on it; try again
#
# Source: the condition variable, taken apart, so that a wait can have a deadline, end by a signal, belong to an event
# loop, survive a fork, and be for several conditions at once.
#
#     wait_point   what is waited for: a list, its lock, and what the structure says about them. On the stack of the
#                  call.
#     waiter       one wait: a semaphore of a thread, or a task (a Waiting of _waiting.pyx). Has one node for each
#                  point.
#     wait_node    its place in one list.
#
# A blocking call has two parts, its try and the maker of its point:
#
#     while True:
#         r = try_it(q)
#         if likely(r == MT_OK): return r
#         some_point(&p, q, attached)
#         if not again(&p, 1, &r, deadline): return r
#
# Invariants
#   A1  The state of a node changes under the lock of its list. Who makes it NOTIFIED posts it once, after unlocking.
#       Only then may its memory go: see A4.
#   A2  Each notification is answered: by a try that succeeds, by a try that finds MT_EMPTY or MT_FULL, or by `forward`,
#       which notifies the next one. A try that finds nothing must not forward: two waiters that want nothing would wake
#       one another for ever.
#   A3  First join the list, then tell the lock-free side (`changed`), then poll. In another order a wake-up is lost.
#   A4  Nobody waits for a poster. A thread's waiter is counted by its owner and by each node that is QUEUED, or
#       NOTIFIED and not posted; a task is a Python object and is counted in the same way. The owner does not touch
#       `next` of a NOTIFIED node: its poster walks it.
#   A5  No Python code runs under a lock. Posting a task runs some: it is done after unlocking, and after all threads
#       were posted.
#   A6  In the child of a fork lists keep the tasks of the thread that forked. That thread itself can be on a list only
#       if a signal handler forked during its wait: it is posted, and tries again. Waiters of other threads leak.
#
# `attached` says whether the caller holds a thread state. Only an attached call runs signal handlers.
from cpython.ref cimport PyObject
from libc.stdint cimport INT64_MAX, int64_t, uint32_t
from libc.stdlib cimport free, malloc

from manytail._c cimport (
    MT_EMPTY, MT_FREE_THREADED, MT_FULL, MT_INTERRUPTED, MT_NOMEM, MT_OK, MT_TIMEOUT, PY_LOCK_ACQUIRED, PY_LOCK_INTR,
    PyEval_RestoreThread, PyEval_SaveThread, PyThreadState, PyThread_acquire_lock_timed, PyThread_allocate_lock,
    PyThread_free_lock, PyThread_get_thread_ident, PyThread_release_lock, drop, keep, likely, mt_atomic_u32,
    mt_backoff, mt_backoff_spin, mt_fetch_add_acq_rel_u32, mt_fetch_add_relaxed_u32, mt_load_acquire_u32, mt_lock,
    mt_now_ns, mt_point, mt_store_relaxed_u32, mt_xchg_acq_rel_u32, unlikely,
)
from manytail._lock cimport enter, leave


# ------------------------------------------------------------------------------------------------ what _waiting.pyx has
# the thread that receives signals; in the child of a fork the one that forked
cdef unsigned long main_thread
cdef bint semaphores_miss_signals           # Windows
cdef void this_is_the_main_thread() noexcept
cdef int run_signal_handlers() noexcept nogil           # -1: one raised; the exception stays set
cdef int64_t deadline_from(object block, object timeout) except -2  # from the stdlib's pair of arguments
cdef int64_t linger_from(object linger) except -2       # the nanoseconds of a `linger` argument
cdef void write_unraisable(object error, object where) noexcept     # reports it to sys.unraisablehook
# Schedules its wake-up in its loop, and gives up the reference of its node.
cdef void wake_task(void *task) noexcept nogil


cdef enum:
    # Deadlines are nanoseconds of the monotonic clock, or:
    NEVER = -1          # wait for ever
    ONCE = 0            # do not wait at all
    # What `poll` returns when there is something to wait for; else a status.
    WAIT = -1
    # States of a node.
    OUT = 0
    QUEUED = 1
    NOTIFIED = 2
    # A list is two lists. A wake-up that went to an event loop may be long in coming to anything, because the loop is
    # busy or stopped for good. So threads and tasks are notified side by side: neither keeps an item from the other.
    THREADS = 0
    TASKS = 1

cdef enum:
    LONGEST_S = 1000000         # 11 days; longer sleeps are made of several
    SLICE_US = 50000
    FIRST_SLICE_US = 1000
    LAST_SLICE_US = 100000

ctypedef struct waiter
ctypedef struct wait_point

ctypedef struct wait_node:
    wait_node *next             # in its list; once NOTIFIED: in the chain of nodes to post
    wait_node *prev
    waiter *who                 # constant
    wait_point *point           # what it waits for; valid while it is QUEUED
    uint32_t state              # under the list's lock

ctypedef struct waiter:
    mt_atomic_u32 refs          # of a thread's waiter, see A4
    mt_atomic_u32 posted        # the first post has come
    void *sem                   # a thread's semaphore, taken until it is posted; NULL: a task's waiter
    void *task                  # a Waiting, or NULL; counted by the nodes as in A4
    unsigned long thread        # who waits
    wait_node nodes[1]          # as many as there are points

ctypedef struct wait_list:
    wait_node *first[2]         # by THREADS, TASKS: in order of arrival
    wait_node *last[2]
    int64_t n                   # both

ctypedef struct wait_point:
    wait_list *list
    mt_lock *lock               # guards the list and the condition
    bint gil_locked             # the GIL is that lock
    bint attached               # whether the call that waits holds a thread state
    bint woken                  # the last wait at this point ended by a notification, which is not answered yet
    int64_t key                 # for `poll`: what the last try saw of a count of events
    uint32_t spin_first         # without the GIL: pause 2**spin_first up to 2**spin_limit times before sleeping
    uint32_t spin_limit         # 0: do not spin
    int64_t amount              # how much it waits for, in a list that notify_fitting() serves
    void *of                    # for the functions below: the structure, and what of it
    void *at
    # All of them are called with the lock held.
    int (*poll)(wait_point *p, bint parking) noexcept nogil     # WAIT; MT_OK: try again; else what the call returns.
    #                                               parking: the waiter is on the list, whoever makes the condition true
    #                                               has to notify
    void (*changed)(wait_point *p) noexcept nogil   # a node came or went: tell the lock-free side; or NULL
    # Notify the next one if it has use for that; NULL where.
    void (*forward)(wait_point *p, wait_node **to_post) noexcept nogil
    #                                               all are notified at once


# ---------------------------------------------------------------------------------------------------------------- lists
cdef inline int kind_of(wait_node *node) noexcept nogil:
    return THREADS if node.who.task == NULL else TASKS


cdef inline void push(wait_list *l, wait_node *node) noexcept nogil:
    """Join the list. The node counts its waiter from here on."""
    cdef int kind = kind_of(node)
    if kind == TASKS:
        keep(<size_t>node.who.task)
    else:
        mt_fetch_add_relaxed_u32(&node.who.refs, 1)     # relaxed because: the caller holds a reference
    node.state = QUEUED
    node.next = NULL
    node.prev = l.last[kind]
    if node.prev != NULL:
        node.prev.next = node
    else:
        l.first[kind] = node
    l.last[kind] = node
    l.n += 1


cdef inline void unlink(wait_list *l, wait_node *node) noexcept nogil:
    cdef int kind = kind_of(node)
    if node.prev != NULL:
        node.prev.next = node.next
    else:
        l.first[kind] = node.next
    if node.next != NULL:
        node.next.prev = node.prev
    else:
        l.last[kind] = node.prev
    l.n -= 1


cdef inline void notify_node(wait_list *l, wait_node *node, wait_node **to_post) noexcept nogil:
    unlink(l, node)
    node.state = NOTIFIED
    node.next = to_post[0]
    to_post[0] = node


cdef inline void notify_first(wait_list *l, int kind, wait_node **to_post) noexcept nogil:
    cdef wait_node *node = l.first[kind]
    if node != NULL:
        notify_node(l, node, to_post)


cdef inline void notify(wait_list *l, wait_node **to_post) noexcept nogil:
    """Take the thread and the task that wait longest off the list; the caller posts them after unlocking."""
    notify_first(l, TASKS, to_post)
    notify_first(l, THREADS, to_post)


cdef inline void notify_all(wait_list *l, wait_node **to_post) noexcept nogil:
    while l.n:
        notify(l, to_post)


cdef inline void notify_fitting(wait_list *l, int64_t available, wait_node **to_post) noexcept nogil:
    """Notify those whose amounts are available together, in order of arrival; one that asks for too much does not keep
    back those behind it. Whoever then takes an amount calls this again: one that was notified and finds less has been
    overtaken by a taker that did."""
    cdef wait_node *node
    cdef wait_node *following
    cdef int64_t left
    cdef int kind
    for kind in range(TASKS, THREADS - 1, -1):
        left = available
        node = l.first[kind]
        while node != NULL:
            following = node.next
            if node.point.amount <= left:
                left -= node.point.amount
                notify_node(l, node, to_post)
            node = following


cdef inline void post(wait_node *to_post) noexcept nogil:
    """Wake all whose nodes were notified. No lock of ours is held."""
    cdef wait_node *tasks = NULL
    cdef wait_node *node
    while to_post != NULL:
        mt_point()
        node = to_post
        to_post = node.next             # once it is posted it may be gone
        if node.who.task == NULL:
            post_thread(node.who)
        else:
            node.next = tasks
            tasks = node
    while tasks != NULL:
        node = tasks
        tasks = node.next
        # pairs with: mt_load_acquire in finish_wait
        mt_xchg_acq_rel_u32(&node.who.posted, 1)
        wake_task(node.who.task)


cdef inline void post_thread(waiter *w) noexcept nogil:
    # pairs with: mt_load_acquire in finish_wait
    if mt_xchg_acq_rel_u32(&w.posted, 1) == 0:
        PyThread_release_lock(w.sem)
    unref(w)


cdef inline void keep_tasks(wait_list *l, unsigned long me) noexcept nogil:
    """In the child of a fork: A6."""
    cdef wait_node *node
    cdef wait_node *following
    cdef int kind
    for kind in range(2):
        node = l.first[kind]
        while node != NULL:
            following = node.next
            if kind == THREADS or node.who.thread != me:
                unlink(l, node)
                node.state = OUT
                if kind == THREADS and node.who.thread == me:
                    post_thread(node.who)
            node = following


# -------------------------------------------------------------------------------------------------------------- waiters
cdef inline wait_node *node_of(waiter *w, int i) noexcept nogil:
    return <wait_node *>w.nodes + i


cdef inline waiter *new_waiter(int n, void *task) noexcept nogil:
    """For n points; task: NULL for the calling thread. NULL: no memory."""
    cdef waiter *w = <waiter *>malloc(sizeof(waiter) + (n - 1) * sizeof(wait_node))
    cdef int i
    if w == NULL:
        return NULL
    mt_store_relaxed_u32(&w.refs, 1)            # relaxed because: nobody else has it yet
    mt_store_relaxed_u32(&w.posted, 0)          # relaxed because: as above
    w.task = task
    w.thread = PyThread_get_thread_ident()
    w.sem = NULL
    for i in range(n):
        node_of(w, i).who = w
        node_of(w, i).state = OUT
    if task == NULL:
        w.sem = PyThread_allocate_lock()
        if w.sem == NULL:
            free(w)
            return NULL
        PyThread_acquire_lock_timed(w.sem, 0, 0)        # taken means: not posted
    return w


cdef inline void unref(waiter *w) noexcept nogil:
    """Give up a reference to a thread's waiter."""
    # pairs with: itself, in other threads: the last sees all that the others did
    if mt_fetch_add_acq_rel_u32(&w.refs, <uint32_t>-1) == 1:
        # Free or taken, it is free from here on: a lock is not destroyed while taken.
        PyThread_acquire_lock_timed(w.sem, 0, 0)
        PyThread_release_lock(w.sem)
        PyThread_free_lock(w.sem)
        free(w)


# ------------------------------------------------------------------------------------------------------------- one wait
cdef inline int64_t sooner(int64_t deadline, int64_t linger) noexcept nogil:
    """A deadline, or that many nanoseconds from here, whichever comes first."""
    cdef int64_t now = mt_now_ns()
    if linger > INT64_MAX - now or (deadline != NEVER and deadline <= now + linger):
        return deadline
    return now + linger


cdef inline int look(wait_point *p, int n) noexcept nogil:
    """Poll without having joined the lists."""
    cdef int i, s
    for i in range(n):
        enter(p[i].lock, p[i].gil_locked, p[i].attached)
        s = p[i].poll(p + i, False)
        leave(p[i].lock, p[i].gil_locked)
        if s != WAIT:
            return s
    return WAIT


cdef inline int prepare_to_wait(wait_point *p, int n, waiter *w) noexcept nogil:
    """Join the lists. WAIT: sleep until posted, then finish_wait(). Else there is nothing to wait for, and the wait is
    finished already."""
    cdef int i, s
    for i in range(n):
        enter(p[i].lock, p[i].gil_locked, p[i].attached)
        node_of(w, i).point = p + i
        push(p[i].list, node_of(w, i))
        mt_point()
        if p[i].changed != NULL:
            p[i].changed(p + i)
            mt_point()
        s = p[i].poll(p + i, True)
        leave(p[i].lock, p[i].gil_locked)
        if s != WAIT:
            finish_wait(p, i + 1, w, False)
            return s
    return WAIT


cdef inline void finish_wait(wait_point *p, int n, waiter *w, bint forward) noexcept nogil:
    """Leave the lists; p.woken says which points had been notified. forward: the caller has no use for that."""
    cdef wait_node *to_post = NULL
    cdef int i
    # pairs with: mt_xchg_acq_rel in post, post_thread: what the poster wrote before is seen, the state of the node too
    if n == 1 and not forward and likely(mt_load_acquire_u32(&w.posted) != 0):
        p.woken = w.nodes[0].state == NOTIFIED
    else:
        for i in range(n):
            leave_list(p + i, node_of(w, i), forward, &to_post)
    if w.task == NULL:
        unref(w)
    if to_post != NULL:
        post(to_post)


cdef inline void leave_list(wait_point *p, wait_node *node, bint forward, wait_node **to_post) noexcept nogil:
    cdef waiter *w = node.who
    cdef uint32_t was
    enter(p.lock, p.gil_locked, p.attached)
    was = node.state
    node.state = OUT
    if was == QUEUED:
        unlink(p.list, node)
        if p.changed != NULL:
            p.changed(p)
    p.woken = was == NOTIFIED
    if forward and p.woken and p.forward != NULL:
        p.forward(p, to_post)
    leave(p.lock, p.gil_locked)
    if was == QUEUED and w.task == NULL:
        unref(w)
    elif was == QUEUED:
        drop(<size_t>w.task)


cdef inline void give_up(wait_point *p, int n, bint all) noexcept nogil:
    """What the points were notified of will not be used: let others know. all: whether or not they were."""
    cdef wait_node *to_post = NULL
    cdef int i
    for i in range(n):
        if p[i].forward != NULL and (all or p[i].woken):
            enter(p[i].lock, p[i].gil_locked, p[i].attached)
            p[i].forward(p + i, &to_post)
            leave(p[i].lock, p[i].gil_locked)
    if to_post != NULL:
        post(to_post)


cdef inline bint again(wait_point *p, int n, int *r, int64_t deadline) noexcept nogil:
    """After a try that returned *r: True: try again, having waited if need be. False: *r is what the call returns.

    *r is MT_TIMEOUT when the deadline is over, and MT_INTERRUPTED, with the exception set, when a signal handler
    raised. A call that ends for want of memory forwards whether or not it was notified: the notification of a coroutine
    came to an earlier wait."""
    cdef int s, i
    if r[0] != MT_EMPTY and r[0] != MT_FULL:
        if n > 1 or r[0] == MT_NOMEM:
            give_up(p, n, r[0] == MT_NOMEM)     # of several points a try uses one
        return False
    for i in range(n):
        p[i].woken = False
    if deadline == ONCE:
        s = look(p, n)
    elif deadline != NEVER and mt_now_ns() >= deadline:
        s = look(p, n)                          # the try may have gone by an old copy of the other side's count
        if s == WAIT:
            s = MT_TIMEOUT
    else:
        s = sleep_until_posted(p, n, deadline)
    if s != WAIT:
        r[0] = s
    return s == MT_OK


cdef inline int sleep_until_posted(wait_point *p, int n, int64_t deadline) noexcept nogil:
    """MT_OK: try again. Else what the call returns."""
    cdef waiter *w
    cdef mt_backoff spin
    cdef int r, i
    spin.step = p.spin_first
    spin.limit = p.spin_limit
    while MT_FREE_THREADED and p.spin_limit and mt_backoff_spin(&spin):
        r = look(p, n)
        if r != WAIT:
            return r
    w = new_waiter(n, NULL)
    if w == NULL:
        give_up(p, n, True)
        return MT_NOMEM
    r = prepare_to_wait(p, n, w)
    if r != WAIT:
        return r
    mt_point()
    r = park(w.sem, deadline, p.attached)
    mt_point()
    finish_wait(p, n, w, r == MT_INTERRUPTED)
    for i in range(n):
        if r == MT_TIMEOUT and p[i].woken:
            return MT_OK                # the notification came after all, and a try has to answer it
    return r


# ------------------------------------------------------------------------------------------------------------- sleeping
# A thread sleeps on a PyThread lock: every platform has it, it takes a timeout, and it says when a signal came. A
# signal ends the sleep at once; its Python handler runs; if that raises, the wait ends, else it goes on for what is
# left.
cdef inline long long microseconds_left(int64_t deadline) noexcept nogil:
    """What to ask the semaphore for; rounded up, so that a wait never ends early. < 0: the deadline is over."""
    cdef int64_t left
    cdef int64_t longest = <int64_t>LONGEST_S * 1000000
    if deadline == NEVER:
        return longest
    left = deadline - mt_now_ns()
    if left <= 0:
        return -1
    return min((left + 999) // 1000, longest)


cdef inline int sleep_once(void *sem, long long us, bint attached) noexcept nogil:
    cdef PyThreadState *state = NULL
    cdef int got
    if attached:
        state = PyEval_SaveThread()
    got = PyThread_acquire_lock_timed(sem, us, attached)
    if attached:
        PyEval_RestoreThread(state)
    return got


cdef inline int park(void *sem, int64_t deadline, bint attached) noexcept nogil:
    """Sleep until the semaphore is posted: MT_OK. MT_TIMEOUT; MT_INTERRUPTED with a Python exception set."""
    cdef bint slices = attached and PyThread_get_thread_ident() == main_thread
    cdef long long us, slice_us = FIRST_SLICE_US
    cdef int got
    if attached and run_signal_handlers() < 0:      # of a signal that came before the sleep, and would not end it
        return MT_INTERRUPTED
    while True:
        us = microseconds_left(deadline)
        if us < 0:
            return MT_TIMEOUT
        if slices and us > slice_us:
            us = slice_us
        got = sleep_once(sem, us, attached)
        if got == PY_LOCK_ACQUIRED:
            return MT_OK
        if attached and (got == PY_LOCK_INTR or slices) and run_signal_handlers() < 0:
            return MT_INTERRUPTED
        # A signal that comes between giving up the interpreter and falling asleep does not end the sleep, so the main
        # thread looks again after 1, 10 and 100 ms, and only then sleeps as long as it may (Windows: in slices for
        # good).
        if semaphores_miss_signals:
            slice_us = SLICE_US
        elif slice_us < LAST_SLICE_US:
            slice_us *= 10
        else:
            slices = False


# --------------------------------------------------------------------------------------------------- garbage collection
cdef inline int visit_tasks(wait_list *l, int (*visit)(PyObject *, void *) noexcept, void *arg) noexcept:
    """Show the collector the tasks that wait in a list: each node counts its task."""
    cdef wait_node *node = l.first[TASKS]
    cdef int r = 0
    while node != NULL and r == 0:
        r = visit(<PyObject *>node.who.task, arg)
        node = node.next
    return r


# ----------------------------------------------------------------------------------------------------------- coroutines
cdef class Waiting:
    cdef wait_point point       # of a wait at one point; filled by who makes it
    cdef wait_point *points     # what it waits for: its own point, or some that `of` has
    cdef int n
    cdef waiter *w
    cdef object of              # keeps alive what the points refer to
    # Called attached, without locks, after what came was forwarded; or NULL.
    cdef void (*forwarded)(Waiting it) noexcept
    cdef object loop            # asyncio's event loop, or trio's token
    cdef object arrival         # an asyncio future, or a trio event
    cdef bint trio
    cdef void *deferred         # while it is posted: the next task that is
    cdef mt_atomic_u32 finished
    cdef int prepare(self) noexcept
    cdef bint woken(self) noexcept
    cdef void finish(self, bint forward) noexcept
    cdef bint schedule(self) noexcept
    cdef bint is_closed(self, object error) except -1

cdef Waiting new_waiting(object of)
cdef Waiting new_waiting_at(object of, wait_point *points, int n)
cdef int wait_at(Waiting it, object of, wait_point *points, int n) except -1
cdef object trio_checkpoint()
