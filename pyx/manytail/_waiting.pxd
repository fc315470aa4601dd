# Waiting: how a blocking call or a coroutine sleeps until a condition holds, and how it is woken. Private.
#
# One lock of the structure guards a condition ("there is an item", "there is a free slot") and the list of its waiters.
#
#     waiter                                           notifier
#     try: it fails
#     lock; join the list; poll again; unlock          lock; make it true; notify: take nodes off the list; unlock
#     sleep until posted                               post each node
#     leave the list, if still on it; try again
#
# Source: a condition variable (monitor, Mesa semantics), opened up so that a wait can have a deadline, end by a signal,
# belong to an event loop, survive a fork, and be for several conditions at once.
#
#     wait_point   a condition that a call waits for: its list, its lock, and the structure's functions for it. On the
#                  stack of a blocking call; a Waiting has its own, or those of what it waits for
#     waiter       one wait: of a thread (it has a semaphore) or of a task (a Waiting of _waiting.pyx)
#     wait_node    the place of a waiter in one list; a waiter has one per point
#
# A blocking call is a loop of try_it(), which does not block, and again(), which waits at the call's points:
#
#     while True:
#         r = try_it(q)
#         if likely(r == MT_OK): return r
#         some_point(&p, q, attached)
#         if not again(&p, 1, &r, deadline): return r
#
# Invariants
#   A1  The state of a node changes under the lock of its list. The notifier that makes it NOTIFIED posts it once, after
#       unlocking.
#   A2  Each notification is answered: by a try that succeeds, by a try that finds MT_EMPTY or MT_FULL, or by `forward`,
#       which notifies the next waiter. A try that finds nothing must not forward: two waiters could notify each other
#       for ever.
#   A3  First join the list, then tell the lock-free side (`changed`), then poll. In any other order a wake-up is lost.
#   A4  A call may end before its poster is done with the node. So a waiter is reference-counted: by its owner, and by
#       each node that is QUEUED, or NOTIFIED and not posted. A task is a Python object and is counted likewise. Only
#       the poster uses `next` of a NOTIFIED node: it links the nodes to post.
#   A5  No Python code runs under a lock. Posting a task runs some, so it comes after unlocking, and after posting all
#       threads.
#   A6  In the child of a fork, lists keep the tasks of the thread that forked. Waiters of other threads leak. That
#       thread itself is on a list only if it forked while it released the mutex of a Condition, after joining the
#       list and before sleeping: it is posted and tries again.
#   A7  A coroutine that finds nothing to wait for yields to its loop before it tries again.
#   A8  Signal handlers are Python code: they may sleep, raise, or use the structure themselves. They run while their
#       call is on no list and its notification is answered or forwarded, because it cannot go on before they end. Else
#       what came for it would lie there, and a handler that waits for just that would wait for ever. After them the
#       call polls, so it misses nothing that came meanwhile, and takes its old place in the list.
#   A9  Where the GIL is the lock, a notified thread that has not gone on yet tries as soon as it has the GIL, and finds
#       all that was put before. So one such thread is enough: notify_next() notifies no other.
#
# `attached`: the caller is attached to the interpreter. Only attached calls run signal handlers: before each wait, so
# that a call that loses one race after another runs them too, and after a sleep that a signal or the end of a slice
# (see park) has ended.
from cpython.ref cimport PyObject
from libc.stdint cimport INT64_MAX, int64_t, uint32_t
from libc.stdlib cimport free, malloc

from manytail._c cimport *
from manytail._list cimport link_after, link_last, unlink_from
from manytail._lock cimport enter, leave


# ------------------------------------------------------------------------------------------------ what _waiting.pyx has
# the thread that receives signals; in the child of a fork the one that forked
cdef unsigned long main_thread
cdef bint semaphores_miss_signals           # Windows
cdef void this_is_the_main_thread() noexcept
cdef int run_signal_handlers() noexcept nogil           # -1: one raised; the exception stays set
cdef int64_t deadline_from(object block, object timeout) except -2  # from the stdlib's pair of arguments
cdef int64_t linger_from(object linger) except -2       # nanoseconds of a `linger` argument
cdef int64_t seconds_argument(str name, object value, bint zero, bint none) except -2
cdef void write_unraisable(object error, object where) noexcept     # reports it to sys.unraisablehook


cdef enum:
    # Deadlines are nanoseconds of the monotonic clock, or:
    NEVER = -1          # wait for ever
    ONCE = 0            # do not wait at all
    # `poll` returns WAIT while the condition does not hold, else a status (MT_OK, ...).
    WAIT = -1
    # States of a node.
    OUT = 0                     # on no list
    QUEUED = 1
    NOTIFIED = 2                # taken off the list, to be posted
    # A wait list keeps threads and tasks apart, and notify() notifies one of each. An event loop may be busy, or
    # stopped for good: a wake-up that only a task got could leave an item to no thread.
    THREADS = 0
    TASKS = 1

cdef enum:
    # A getter without the GIL pauses 64, 128 and 256 times before it parks, some 5-20 us in all: as long as parking and
    # waking take. The first pause is long, so that several items come between two polls: a poll takes the cache line
    # from the putters.
    SPIN_FIRST = 6
    SPIN_LIMIT = 9

cdef enum:
    LONGEST_S = 1000000         # 11 days; a longer sleep is split
    # See next_slice().
    SLICE_US = 50000
    FIRST_SLICE_US = 1000
    LAST_SLICE_US = 100000

ctypedef struct waiter
ctypedef struct wait_point

ctypedef struct wait_node:
    wait_node *next             # in its list; when NOTIFIED: in the chain of nodes to post
    wait_node *prev
    waiter *who                 # constant
    wait_point *point           # what it waits for; valid while it is QUEUED
    uint32_t state              # under the list's lock

# Schedules the wake-up of the node's task in its loop, and drops the reference of the node.
cdef void wake_task(wait_node *node) noexcept nogil

ctypedef struct waiter:
    mt_atomic_u32 refs          # only for threads, see A4
    mt_atomic_u32 posted        # 1 from the first post on
    void *sem                   # a thread's semaphore, taken until it is posted; NULL: a task waits
    void *task                  # a Waiting, or NULL; counted as in A4
    unsigned long thread        # the thread that waits, or whose task waits
    wait_node nodes[1]          # one per point

ctypedef struct wait_list:
    wait_node *first[2]         # [THREADS] and [TASKS], each in order of arrival
    wait_node *last[2]
    int64_t n                   # nodes, of threads and tasks
    int64_t arrivals            # how many waits have joined it so far
    int64_t untried             # threads that were notified and have not gone on yet; where the GIL is the lock: A9

ctypedef struct wait_point:
    wait_list *list
    mt_lock *lock               # guards the list and the condition
    bint gil_locked             # the GIL is that lock
    bint attached               # whether the waiting call is attached
    bint woken                  # the last wait at this point ended by a notification, which is not answered yet
    int64_t arrival             # the wait's place in the order of the list; 0: it has not joined it yet
    int64_t events_seen         # for `poll`: the count of events when the last try looked
    uint32_t spin_first         # without the GIL: pause 2**n times, n from spin_first on and below spin_limit
    uint32_t spin_limit         # 0: do not spin
    int64_t amount              # how much it waits for, in a list that notify_fitting() notifies
    void *of                    # for the functions below: the structure that has the list
    void *owner                 # for `forwarded`: a Python object
    # The functions are called with the lock held.
    # Returns WAIT, MT_OK (try again), or, at the only point of a wait, the status that the call returns: at one of
    # several it would lose notifications of the others. parking: the waiter is on the list, so from here on whoever
    # makes the condition true has to notify.
    int (*poll)(wait_point *p, bint parking) noexcept nogil
    # A node joined or left the list: tell the lock-free side. NULL: there is none.
    void (*changed)(wait_point *p) noexcept nogil
    # Notify the next waiter if the condition holds for it. NULL: a notification always goes to all waiters.
    void (*forward)(wait_point *p, wait_node **to_post) noexcept nogil
    # Called attached and without locks after a waiter has left and forwarded. NULL: nothing is left to do.
    void (*forwarded)(wait_point *p) noexcept nogil


# ---------------------------------------------------------------------------------------------------------------- lists
cdef inline int kind_of(wait_node *node) noexcept nogil:
    return THREADS if node.who.task == NULL else TASKS


cdef inline void push(wait_list *l, wait_node *node) noexcept nogil:
    """Join the list, at the old place after signal handlers have run (A8). The node holds a reference to its waiter
    from here on (A4)."""
    cdef int kind = kind_of(node)
    cdef wait_node *before = l.last[kind]
    if node.point.arrival == 0:
        l.arrivals += 1
        node.point.arrival = l.arrivals
    if kind == TASKS:
        keep(<size_t>node.who.task)
    else:
        mt_fetch_add_relaxed_u32(&node.who.refs, 1)     # relaxed because: the caller holds a reference
    node.state = QUEUED
    while before != NULL and before.point.arrival > node.point.arrival:
        before = before.prev
    link_after(before, node, &node.next, &l.first[kind], &l.last[kind])
    l.n += 1


cdef inline void unlink(wait_list *l, wait_node *node) noexcept nogil:
    cdef int kind = kind_of(node)
    unlink_from(node, &node.next, &l.first[kind], &l.last[kind])
    l.n -= 1


cdef inline bint is_counted(wait_node *node) noexcept nogil:
    """Whether `untried` counts the node while it is NOTIFIED. A task is not counted: its loop may be busy for long."""
    return node.who.task == NULL and node.point.gil_locked


cdef inline void notify_node(wait_list *l, wait_node *node, wait_node **to_post) noexcept nogil:
    unlink(l, node)
    node.state = NOTIFIED
    l.untried += is_counted(node)
    node.next = to_post[0]
    to_post[0] = node


cdef inline void notify_first(wait_list *l, int kind, wait_node **to_post) noexcept nogil:
    cdef wait_node *node = l.first[kind]
    if node != NULL:
        notify_node(l, node, to_post)


cdef inline void notify(wait_list *l, wait_node **to_post) noexcept nogil:
    """Notify the thread and the task that wait longest. The caller posts them after unlocking."""
    notify_first(l, TASKS, to_post)
    notify_first(l, THREADS, to_post)


cdef inline void notify_next(wait_list *l, wait_node **to_post) noexcept nogil:
    """notify(), for conditions whose notified waiters call this again after they have tried, if something is left: no
    thread is notified while one that was notified before has not tried."""
    notify_first(l, TASKS, to_post)
    if l.untried <= 0:
        notify_first(l, THREADS, to_post)


cdef inline void notify_all(wait_list *l, wait_node **to_post) noexcept nogil:
    while l.n:
        notify(l, to_post)


cdef inline void notify_fitting(wait_list *l, int64_t available, wait_node **to_post) noexcept nogil:
    """Notify, in order of arrival, the threads whose amounts fit into `available` together, passing over others, and
    likewise the tasks. Every call that takes some of `available` calls this afterwards with the rest. So a notified
    waiter that finds too little left need not forward."""
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
    """Wake the waiters of a chain of NOTIFIED nodes, threads first (A5). No lock of ours is held."""
    cdef wait_node *tasks = NULL
    while to_post != NULL:
        mt_point()
        node = to_post
        to_post = node.next             # read first: a posted node may be freed
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
        wake_task(node)


cdef inline void post_thread(waiter *w) noexcept nogil:
    # pairs with: mt_load_acquire in finish_wait
    if mt_xchg_acq_rel_u32(&w.posted, 1) == 0:
        PyThread_release_lock(w.sem)
    unref(w)


cdef inline void keep_tasks(wait_list *l, unsigned long me) noexcept nogil:
    """In the child of a fork: A6."""
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
    l.untried = 0


# -------------------------------------------------------------------------------------------------------------- waiters
cdef inline wait_node *node_of(waiter *w, int i) noexcept nogil:
    return <wait_node *>w.nodes + i


cdef inline waiter *new_waiter(int n, void *task) noexcept nogil:
    """Make the waiter of a task, or of the calling thread (task: NULL), at n points. NULL: no memory."""
    cdef waiter *w = <waiter *>malloc(sizeof(waiter) + (n - 1) * sizeof(wait_node))
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
    """Drop a reference to a thread's waiter."""
    # pairs with: itself, in other threads: the last sees all that the others did
    if mt_fetch_add_acq_rel_u32(&w.refs, <uint32_t>-1) == 1:
        # A PyThread lock must be free when it is destroyed, and only a taken one may be released.
        PyThread_acquire_lock_timed(w.sem, 0, 0)
        PyThread_release_lock(w.sem)
        PyThread_free_lock(w.sem)
        free(w)


# ------------------------------------------------------------------------------------------------------------- one wait
cdef inline void make_point(wait_point *p, wait_list *waiters, mt_lock *lock, bint gil_locked, bint attached,
                            int (*poll)(wait_point *, bint) noexcept nogil, void *of) noexcept nogil:
    """A point whose waiters do not spin and are all notified at once. Its caller sets what differs, after this call.
    `events_seen` is left alone: a try may have set it."""
    p.list = waiters
    p.lock = lock
    p.gil_locked = gil_locked
    p.attached = attached
    p.woken = False
    p.arrival = 0
    p.spin_first = 0
    p.spin_limit = 0
    p.amount = 1
    p.of = of
    p.poll = poll
    p.changed = NULL
    p.forward = NULL
    p.forwarded = NULL


cdef inline int64_t nanoseconds(double seconds) noexcept nogil:
    """-1: more than 285 years, for which a sum of times may not fit into 64 bits."""
    return <int64_t>(seconds * 1e9) if seconds <= 9e9 else -1


cdef inline int64_t deadline_in(int64_t timeout_ns) noexcept nogil:
    """A deadline from the nogil API's timeout: < 0 waits for ever, 0 does not wait."""
    if timeout_ns < 0:
        return NEVER
    if timeout_ns == 0:
        return ONCE
    cdef int64_t now = mt_now_ns()
    return NEVER if timeout_ns > INT64_MAX - now else now + timeout_ns


cdef inline int64_t sooner(int64_t deadline, int64_t linger) noexcept nogil:
    """The earlier of `deadline` and `linger` nanoseconds from now."""
    cdef int64_t now = mt_now_ns()
    if linger > INT64_MAX - now or (deadline != NEVER and deadline <= now + linger):
        return deadline
    return now + linger


cdef inline int poll_all(wait_point *p, int n) noexcept nogil:
    """Poll all points without joining their lists."""
    cdef int i, s
    for i in range(n):
        enter(p[i].lock, p[i].gil_locked, p[i].attached)
        s = p[i].poll(p + i, False)
        leave(p[i].lock, p[i].gil_locked)
        if s != WAIT:
            return s
    return WAIT


cdef inline int prepare_to_wait(wait_point *p, int n, waiter *w) noexcept nogil:
    """Join the lists. WAIT: sleep until posted, then call finish_wait(). Else a poll returned this status, and
    finish_wait() was called."""
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
    """Leave the lists, and set `woken` of each point. forward: pass notifications on to other waiters."""
    cdef wait_node *to_post = NULL
    cdef int i
    # With one point, a post means that the node is off the list, so the lock is not needed.
    # pairs with: mt_xchg_acq_rel in post, post_thread: the state that was written before the post is read below
    if n == 1 and not forward and likely(mt_load_acquire_u32(&w.posted) != 0):
        set_woken(p, w.nodes, w.nodes[0].state)
    else:
        for i in range(n):
            leave_list(p + i, node_of(w, i), forward, &to_post)
    if w.task == NULL:
        unref(w)
    if to_post != NULL:
        post(to_post)
    for i in range(n):
        if forward and p[i].forwarded != NULL:
            p[i].forwarded(p + i)


cdef inline void set_woken(wait_point *p, wait_node *node, uint32_t was) noexcept nogil:
    """After the node, whose state was `was`, has left the list: set `woken`, and `untried` for A9. Needs no lock:
    `untried` changes only where the GIL is the lock, and the caller is attached."""
    p.woken = was == NOTIFIED
    if p.woken and is_counted(node):
        p.list.untried -= 1


cdef inline void leave_list(wait_point *p, wait_node *node, bint forward, wait_node **to_post) noexcept nogil:
    cdef waiter *w = node.who
    enter(p.lock, p.gil_locked, p.attached)
    was = node.state
    node.state = OUT
    if was == QUEUED:
        unlink(p.list, node)
        if p.changed != NULL:
            p.changed(p)
    set_woken(p, node, was)
    if forward and p.woken and p.forward != NULL:
        p.forward(p, to_post)
        p.woken = False
    leave(p.lock, p.gil_locked)
    if was == QUEUED and w.task == NULL:
        unref(w)
    elif was == QUEUED:
        drop(<size_t>w.task)


cdef inline void forward_unused(wait_point *p, int n, bint all) noexcept nogil:
    """Forward the notifications that the call will not use: of points that were notified, or of all points."""
    cdef wait_node *to_post = NULL
    cdef int i
    for i in range(n):
        if p[i].forward != NULL and (all or p[i].woken):
            enter(p[i].lock, p[i].gil_locked, p[i].attached)
            p[i].forward(p + i, &to_post)
            leave(p[i].lock, p[i].gil_locked)
    if to_post != NULL:
        post(to_post)
    for i in range(n):
        if p[i].forwarded != NULL and (all or p[i].woken):
            p[i].forwarded(p + i)


cdef inline bint again(wait_point *p, int n, int *r, int64_t deadline) noexcept nogil:
    """After a try that returned *r, wait if it found nothing. True: try again. False: the call returns *r.

    *r is MT_TIMEOUT when the deadline is over, and MT_INTERRUPTED, with the exception set, when a signal handler
    raised. Without a wait the points are polled all the same: the try may have read a stale copy of a count."""
    if r[0] != MT_EMPTY and r[0] != MT_FULL:
        # A try that succeeds uses one point of several. One that fails for memory forwards at all points: `woken` does
        # not tell, as a coroutine was notified at points of a Waiting that is gone.
        if n > 1 or r[0] == MT_NOMEM:
            forward_unused(p, n, r[0] == MT_NOMEM)
        return False
    for i in range(n):
        p[i].woken = False
        p[i].arrival = 0
    if deadline == ONCE:
        s = poll_all(p, n)
    elif deadline != NEVER and mt_now_ns() >= deadline:
        s = poll_all(p, n)
        if s == WAIT:
            s = MT_TIMEOUT
    else:
        s = sleep_until_posted(p, n, deadline)
    if s != WAIT:
        r[0] = s
    return s == MT_OK


cdef inline int sleep_until_posted(wait_point *p, int n, int64_t deadline) noexcept nogil:
    """Wait as a thread. MT_OK: try again. Else what the call returns."""
    cdef long long slice_us = first_slice(p.attached)
    cdef mt_backoff spin
    cdef int r = WAIT
    spin.step = p.spin_first
    spin.limit = p.spin_limit
    if p.attached and run_signal_handlers() < 0:
        return MT_INTERRUPTED
    while MT_FREE_THREADED and p.spin_limit and r == WAIT and mt_backoff_spin(&spin):
        r = poll_all(p, n)
    while r == WAIT:
        w = new_waiter(n, NULL)
        if w == NULL:
            forward_unused(p, n, True)      # the try may have read a stale copy, and no poll follows
            return MT_NOMEM
        r = prepare_to_wait(p, n, w)
        if r == WAIT:
            r = sleep_on_lists(p, n, w, deadline, &slice_us)
    return r


cdef inline int sleep_on_lists(wait_point *p, int n, waiter *w, int64_t deadline, long long *slice_us) noexcept nogil:
    """Sleep after prepare_to_wait(), and leave the lists. MT_OK: try again. WAIT: signal handlers ran, if there were
    signals; join the lists again. Else what the call returns."""
    mt_point()
    r = park(w.sem, deadline, p.attached, slice_us)
    mt_point()
    finish_wait(p, n, w, r == MT_INTERRUPTED)
    if r == WAIT and is_woken(p, n):
        return MT_OK                    # the handlers can run after the try
    if (r == WAIT or r == MT_INTERRUPTED) and run_signal_handlers() < 0:
        return MT_INTERRUPTED
    if r == MT_OK or is_woken(p, n):
        return MT_OK                    # notified, perhaps just before leaving the list: a try has to answer (A2)
    return MT_TIMEOUT if r == MT_TIMEOUT else WAIT


cdef inline bint is_woken(wait_point *p, int n) noexcept nogil:
    for i in range(n):
        if p[i].woken:
            return True
    return False


# ------------------------------------------------------------------------------------------------------------- sleeping
# A thread sleeps on a PyThread lock: every platform has it, it takes a timeout, and a signal ends the sleep. The caller
# of park() then runs Python's signal handlers. If one raises, the wait ends, else it goes on until the same deadline.
cdef inline long long microseconds_left(int64_t deadline) noexcept nogil:
    """How long to sleep; rounded up, so that a wait never ends early. -1: the deadline is over."""
    cdef int64_t longest = <int64_t>LONGEST_S * 1000000
    if deadline == NEVER:
        return longest
    cdef int64_t left = deadline - mt_now_ns()
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


# A signal that comes between detaching and falling asleep does not end the sleep. So at the start and after each signal
# the main thread checks for signals after 1, 10 and 100 ms, and only then sleeps until the deadline. On Windows no
# signal ends a sleep, so there the main thread always sleeps in slices.
cdef inline long long first_slice(bint attached) noexcept nogil:
    return FIRST_SLICE_US if attached and PyThread_get_thread_ident() == main_thread else 0


cdef inline long long next_slice(int got, long long slice_us) noexcept nogil:
    """The slice after one that ended with `got`. 0: none, sleep until the deadline."""
    if semaphores_miss_signals:
        return SLICE_US
    if got == PY_LOCK_INTR:
        return FIRST_SLICE_US
    return slice_us * 10 if slice_us < LAST_SLICE_US else 0


cdef inline int park(void *sem, int64_t deadline, bint attached, long long *slice_us) noexcept nogil:
    """Sleep until the semaphore is posted: MT_OK; or MT_TIMEOUT. MT_INTERRUPTED: a signal came. WAIT: a slice is over.
    After both the caller runs the signal handlers, on no list, and sleeps again; no exception is set. It has set
    slice_us[0] = first_slice(attached) before the first sleep."""
    while True:
        us = microseconds_left(deadline)
        if us < 0:
            return MT_TIMEOUT
        if slice_us[0]:
            us = min(us, slice_us[0])
        got = sleep_once(sem, us, attached)
        if got == PY_LOCK_ACQUIRED:
            return MT_OK
        if got == PY_LOCK_INTR or slice_us[0]:
            slice_us[0] = next_slice(got, slice_us[0])
            return MT_INTERRUPTED if got == PY_LOCK_INTR else WAIT


# --------------------------------------------------------------------------------------------------- garbage collection
cdef inline int visit_tasks(wait_list *l, int (*visit)(PyObject *, void *) noexcept, void *arg) noexcept:
    """For tp_traverse: visit the tasks that wait in a list, one reference each (A4)."""
    cdef wait_node *node = l.first[TASKS]
    cdef int r = 0
    while node != NULL and r == 0:
        r = visit(<PyObject *>node.who.task, arg)
        node = node.next
    return r


# ----------------------------------------------------------------------------------------------------------- coroutines
cdef class Waiting:
    cdef wait_point point       # for a wait at one point; the caller of new_waiting() fills it
    cdef wait_point *points     # what it waits for: &point, or points that `of` owns
    cdef int n                  # of `points`
    cdef waiter *w
    cdef object of              # keeps alive what the points refer to
    cdef object loop            # asyncio's event loop, or trio's token
    cdef object awaited         # by the coroutine: an asyncio future, or a trio event
    cdef bint trio
    cdef mt_atomic_u32 finished     # 1: the lists are left, or somebody is doing that
    cdef int prepare(self) noexcept
    cdef void finish(self, bint forward) noexcept
    cdef bint schedule(self) noexcept
    cdef bint is_closed(self, object error) except -1

# -------------------------------------------------------------------------------------------------------- gets of many
cdef class GetMany:
    cdef list taken
    cdef int64_t n
    cdef int64_t deadline
    cdef int64_t linger         # nanoseconds from the first item on
    cdef wait_point *points     # where it waits: &point, or points that a subclass owns
    cdef int count              # of `points`
    cdef wait_point point       # for a structure whose get waits at one point
    cdef void begin(self, int64_t n, int64_t deadline, int64_t linger)
    cdef int take(self) except -2
    cdef int refuse(self, int r) except -1
    cdef int fail(self, object error) except -1
    cdef int attempt(self) except -2
    cdef bint ends(self, int r) except -1
    cdef list run(self)


cdef int note_items(object error, list items) except -1
cdef Waiting new_waiting(object of)
cdef Waiting new_waiting_at(object of, wait_point *points, int n)
cdef int wait_at(Waiting it, object of, wait_point *points, int n) except -1
cdef object checkpoint()
