"""Sections: the lock of a broker, and what happens at the end of each of its sections. RunningItem: which callback of a
channel runs.

A section is the code under the lock, `with sections:`. It may be interrupted in its own thread, by a signal handler or
by a finalizer that the garbage collector runs; then it refuses to begin again there.

_section_lock.pxd has the lock. No Python code runs between the last look at `calls` and the release, so no call that
was put off stays behind.
"""
from manytail._c cimport GIL_LOCKED, MT_OK, mt_lock, mt_lock_reset, mt_point, unlikely
from manytail._lifecycle cimport raise_if_failed, tell_of_forks, unpicklable
from manytail._lock cimport enter, leave
from manytail._section_lock cimport *

from collections import deque

cdef object popleft = deque.popleft     # of every deque the C function, also of one whose class overrides it


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
        cdef int r = try_lock(&self.lock)
        if unlikely(r != MT_OK):
            if r == REENTERED:
                raise self._reentered()
            raise_if_failed(contend(&self.lock))
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
            try:                # a new list may be a MemoryError; then the next section ends with what is left
                if self.dropped:
                    dropped = self.dropped.copy()
                    self.dropped.clear()
                if self.calls:  # a signal handler may add one at any moment: only what is swapped out is made
                    calls, self.calls = self.calls, []
            finally:
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

    def _after_fork(self):
        forget_in_child(&self.lock)


cdef class RunningItem:
    """The item of a lane that runs, and who waits until it has ended. An item is a tuple that begins with its addressee
    and a number; _runtime.py has the attributes of an addressee.

    An addressee that is gone begins nothing. So whoever sets `gone`, and then finds that no item of it runs, knows that
    none will. `guard` makes a look at `gone` and the begin one step. No Python code runs under it: `gone` and `seen` of
    an addressee are slots or plain attributes, and the rest is read before."""
    cdef mt_lock guard
    cdef object addressee       # None: no item runs
    cdef list watchers          # Events, for the end of the item
    cdef object __weakref__

    def __cinit__(self):
        self.watchers = []
        tell_of_forks(self)

    def __reduce__(self):
        raise unpicklable(self, "threads of this process wait for it")

    def begin(self, tuple item, batch=None):
        """Whether the item runs. False: its addressee is gone. It leaves the head of `batch` in the same step: a signal
        handler that raises in the caller finds it either there, or begun."""
        cdef object addressee = item[0], number = item[1], _begun = None      # let go after unlocking
        cdef object buffer = addressee.buffer if addressee.auto_ack else None
        cdef bint gone
        if batch is not None:
            batch.popleft()
        enter(&self.guard, GIL_LOCKED, True)
        try:
            gone = addressee.gone
            mt_point()
            if not gone:
                addressee.seen = number
                self.addressee = addressee
                if buffer is not None:
                    _begun = popleft(buffer)
        finally:
            leave(&self.guard, GIL_LOCKED)
        return not gone

    def end(self):
        """The item has ended, if one ran. Sets the events of who watched it."""
        cdef list watchers = []
        cdef object _ended          # let go after unlocking
        enter(&self.guard, GIL_LOCKED, True)
        _ended, self.addressee = self.addressee, None
        if self.watchers:
            watchers, self.watchers = self.watchers, watchers
        leave(&self.guard, GIL_LOCKED)
        for watcher in watchers:
            watcher.set()

    def runs(self):
        """Whether an item runs."""
        enter(&self.guard, GIL_LOCKED, True)
        cdef bint runs = self.addressee is not None
        leave(&self.guard, GIL_LOCKED)
        return runs

    def watch(self, addressee, watcher):
        """If an item of that addressee runs (None: any item), set `watcher` when it ends. Returns whether one runs."""
        cdef bint runs
        enter(&self.guard, GIL_LOCKED, True)
        try:
            runs = self.addressee is not None and (addressee is None or self.addressee is addressee)
            if runs:
                self.watchers.append(watcher)       # may be a MemoryError
        finally:
            leave(&self.guard, GIL_LOCKED)
        return runs

    def seen(self, consumer):
        """The number of the last item of a consumer that began. Once the consumer is gone it does not change."""
        enter(&self.guard, GIL_LOCKED, True)
        try:
            return consumer.seen
        finally:
            leave(&self.guard, GIL_LOCKED)

    def _after_fork(self):
        mt_lock_reset(&self.guard)
