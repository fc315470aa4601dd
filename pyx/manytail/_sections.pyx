"""Sections: the lock of a broker, and what happens at the end of each of its sections.

A section is the code under the lock, `with sections:`. It may be interrupted in its own thread, by a signal handler or
by a finalizer that the garbage collector runs; then it refuses to begin again there.

Algorithm: a mutex without hand-over. A release frees the lock, and whoever tries first takes it: a thread that runs
goes on without a switch of threads. It wakes a waiter only if no thread is about to try anyway. Without the GIL a
thread that finds the lock taken spins for about as long as a section takes before it sleeps; with the GIL the owner
cannot run while it spins, so it sleeps at once. Sources: Go's sync.Mutex (a release wakes nobody while a woken or
spinning thread is there); _waiting.pxd for the sleep.

Invariants
- `owner` is written only under `guard`. 0 means: free.
- `contenders` counts the threads that found the lock taken and will look again before they sleep, woken ones included.
- While the lock is free and threads sleep, `contenders` > 0. So no wake-up is lost: a contender takes the lock, and its
  release looks for waiters again; or it sleeps, which it does only if it finds the lock taken.
- No Python code runs between the last look at `calls` and the release, so no call that was put off stays behind.
Progress: blocking.
"""
from libc.stdint cimport int64_t

from manytail._c cimport (
    MT_EMPTY, MT_FREE_THREADED, MT_INTERRUPTED, MT_NOMEM, MT_OK, PyThread_get_thread_ident, mt_atomic_i64, mt_backoff,
    mt_backoff_spin, mt_load_relaxed_i64, mt_lock, mt_lock_reset, mt_store_relaxed_i64, unlikely,
)
from manytail._lifecycle cimport raise_pending, tell_of_forks, unpicklable
from manytail._lock cimport enter, leave
from manytail._waiting cimport (
    NEVER, WAIT, again, keep_tasks, make_point, notify, post, wait_list, wait_node, wait_point,
)

cdef enum:
    LOOKS = 20              # before a thread sleeps
    PAUSES = 4              # 2**PAUSES pauses between two looks
    REENTERED = -1          # what try_lock() returns, besides MT_OK
    CONTENDER = -2


ctypedef struct section_lock:
    mt_lock guard               # guards the other fields; with the GIL, the GIL does
    wait_list waiters
    mt_atomic_i64 owner         # the thread that is in a section; 0: none
    int64_t contenders


cdef class Sections:
    """A lock with the interface of a mutex, and the calls that its sections put off.

    effects: a deque of tuples that begin with an addressee. At the end of a section, inside it, each is carried out in
    order by `addressee.target(effect)`. dead_letters: while it is not empty, _publish_dead_letters() is called before
    that. dropped: a list of objects to free outside."""
    cdef section_lock lock
    cdef object effects, dead_letters
    cdef list dropped, calls
    cdef object __weakref__

    def __init__(self, effects, dead_letters, dropped):
        self.effects = effects
        self.dead_letters = dead_letters
        self.dropped = dropped
        self.calls = []
        tell_of_forks(self)

    def __reduce__(self):
        raise unpicklable(self, "threads of this process wait for it")

    # ---------------------------------------------------------------------------------------------------- hooks
    def _reentered(self):
        """The exception of a call that would begin a section inside one of its own thread."""
        raise NotImplementedError

    def _publish_dead_letters(self):
        raise NotImplementedError

    def _after_section(self, list calls, list dropped):
        """Outside the section: make the calls, and let go of `dropped`. Either is None if there is nothing to do."""
        raise NotImplementedError

    # -------------------------------------------------------------------------------------------------- sections
    def __enter__(self):
        self.take()
        return self

    def __exit__(self, kind=None, error=None, traceback=None):
        """End the section. Whatever raises in it, the lock is released."""
        cdef list calls = None, dropped = None
        if not (self.effects or self.dropped or self.dead_letters or self.calls):
            unlock(&self.lock)
            return
        try:
            self.carry_out()
        finally:
            if self.dropped:
                dropped = self.dropped.copy()
                self.dropped.clear()
            if self.calls:      # a signal handler may add one at any moment: only what is swapped out is made
                calls, self.calls = self.calls, []
            unlock(&self.lock)
            if calls is not None or dropped is not None:
                self._after_section(calls, dropped)

    acquire = __enter__
    release = __exit__

    def locked(self):
        """Whether a thread is in a section."""
        return owner_of(&self.lock) != 0

    @property
    def sleeping(self):
        """How many threads sleep until they get the lock."""
        return self.lock.waiters.n

    def interrupted(self):
        """Whether this thread is inside a section. Then the caller is a signal handler or a finalizer, and has to use
        `after`."""
        return owner_of(&self.lock) == this_thread()

    def after(self, call, *arguments, trusted=False):
        """Run this after the current section, outside it, in the order of the calls. Call it only inside a section.
        `trusted`: it runs no user code, and may run on the timer thread."""
        self.calls.append((call, arguments, trusted))

    cdef int carry_out(self) except -1:
        cdef tuple effect
        if self.dead_letters:
            self._publish_dead_letters()
        while self.effects:
            effect = self.effects.popleft()
            effect[0].target(effect)
        return 0

    cdef int take(self) except -1:
        cdef int r = try_lock(&self.lock)
        if unlikely(r == REENTERED):
            raise self._reentered()
        if unlikely(r == CONTENDER):
            self.contend()
        return 0

    cdef int contend(self) except -1:
        """Take the lock, which was just found taken. This thread is counted in `contenders`."""
        cdef wait_point p
        cdef int r
        make_point(&p, &self.lock.waiters, &self.lock.guard, not MT_FREE_THREADED, True, poll_owner, &self.lock)
        p.forward = forward_turn
        while True:
            spin(&self.lock)
            r = try_as_contender(&self.lock)
            if not again(&p, 1, &r, NEVER):
                break
        if r == MT_INTERRUPTED:
            raise_pending()
        if r == MT_NOMEM:
            raise MemoryError
        return 0

    def _after_fork(self):
        """In the child: a section of another thread stays open for ever, but nobody waits."""
        mt_lock_reset(&self.lock.guard)
        keep_tasks(&self.lock.waiters, PyThread_get_thread_ident())
        self.lock.contenders = 0


# ------------------------------------------------------------------------------------------------------------- the lock
cdef inline int64_t this_thread() noexcept nogil:
    return <int64_t>PyThread_get_thread_ident()


cdef inline int64_t owner_of(section_lock *lock) noexcept nogil:
    # relaxed because: the guard orders what sections read and write. Without the guard this is a guess, or it tells a
    # thread whether it is the owner itself
    return mt_load_relaxed_i64(&lock.owner)


cdef inline void set_owner(section_lock *lock, int64_t thread) noexcept nogil:
    mt_store_relaxed_i64(&lock.owner, thread)      # relaxed because: written under the guard


cdef inline int try_lock(section_lock *lock) noexcept nogil:
    """MT_OK, REENTERED, or CONTENDER: another thread has it, and this one is counted in `contenders`."""
    cdef int64_t me = this_thread()
    cdef int64_t owner
    enter(&lock.guard, not MT_FREE_THREADED, True)
    owner = owner_of(lock)
    if owner == 0:
        set_owner(lock, me)
    elif owner != me:
        lock.contenders += 1
    leave(&lock.guard, not MT_FREE_THREADED)
    if owner == 0:
        return MT_OK
    return REENTERED if owner == me else CONTENDER


cdef inline int try_as_contender(section_lock *lock) noexcept nogil:
    cdef int r = MT_EMPTY
    enter(&lock.guard, not MT_FREE_THREADED, True)
    if owner_of(lock) == 0:
        set_owner(lock, this_thread())
        lock.contenders -= 1
        r = MT_OK
    leave(&lock.guard, not MT_FREE_THREADED)
    return r


cdef inline void unlock(section_lock *lock) noexcept nogil:
    cdef wait_node *to_post = NULL
    enter(&lock.guard, not MT_FREE_THREADED, True)
    set_owner(lock, 0)
    wake_contender(lock, &to_post)
    leave(&lock.guard, not MT_FREE_THREADED)
    if unlikely(to_post != NULL):
        post(to_post)


cdef inline void wake_contender(section_lock *lock, wait_node **to_post) noexcept nogil:
    """The lock is free: wake a waiter, unless a contender will look at it. Under the guard."""
    if lock.contenders == 0 and lock.waiters.n:
        lock.contenders = 1
        notify(&lock.waiters, to_post)


cdef int poll_owner(wait_point *p, bint parking) noexcept nogil:
    cdef section_lock *lock = <section_lock *>p.of
    if owner_of(lock) == 0:
        return MT_OK
    if parking:
        lock.contenders -= 1       # whoever wakes it counts it again
    return WAIT


cdef void forward_turn(wait_point *p, wait_node **to_post) noexcept nogil:
    """A contender leaves by an exception."""
    cdef section_lock *lock = <section_lock *>p.of
    lock.contenders -= 1
    if owner_of(lock) == 0:
        wake_contender(lock, to_post)


cdef inline void spin(section_lock *lock) noexcept nogil:
    """Without the GIL: pause until the lock looks free, for a limited time."""
    cdef mt_backoff pause
    cdef int _look
    if MT_FREE_THREADED:
        for _look in range(LOOKS):
            if owner_of(lock) == 0:
                return
            pause.step = PAUSES
            pause.limit = PAUSES + 1
            mt_backoff_spin(&pause)
