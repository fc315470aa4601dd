# Two daemon threads for all entry queues of the process, never more than one of each. Each starts when it is needed, ends when there is
# nothing to do, and is started again in the child of a fork if there is. Whoever puts, in whatever thread, finalizer or signal handler, only
# drops a note into a SimpleQueue, which may be done anywhere.
#
# The timer expires and un-holds what is due in queues. Every queue depends on it, so it runs no code of the user's.
# The thread of dead letters runs what the timer's thread must not run: the callables that get what expired, in order, and the finalizers of
# expired items. One of them that waits holds up the others, but never time.

@cython.final
cdef class Bell:
    """What the timer sleeps on: any number of rings end one wait. Not SimpleQueue.get with a timeout: if the time is over at the moment when
    that turns it into a shorter one, CPython (3.11.7) takes what is left, less than nothing, for "no timeout" and sleeps for ever."""
    cdef mt_waiter w
    cdef bint open
    cdef mt_atomic_u32 rung         # a post that nobody has consumed yet

    def __cinit__(self):
        if waiter_open(&self.w) != MT_OK:
            raise MemoryError
        self.open = True

    def __dealloc__(self):
        if self.open:
            waiter_close(&self.w)

    def ring(self):
        """After the note was dropped."""
        # pairs with: itself in wait(), which looks for notes afterwards: it sees ours, or this sees that it has to post once more
        if not mt_xchg_seq_cst_u32(&self.rung, 1):
            self.w.next = NULL
            post_chain(&self.w)

    def wait(self, int64_t when):
        """Until a ring, or until then (ns of the monotonic clock)."""
        cdef int r = waiter_park(&self.w, when, True)
        if r == MT_OK:
            mt_xchg_seq_cst_u32(&self.rung, 0)      # pairs with: itself in ring()
        elif r == MT_INTERRUPTED:
            raise_it()


class _ServiceThread:
    """A daemon thread that starts with the first note; work() reads them. If it returns, the thread ends until the next note."""

    def __init__(self):
        self.notes = SimpleQueue()
        self.licence = ["to run"]       # whoever pops it starts the thread; the thread puts it back when it ends

    def start(self):
        """After a note was dropped."""
        try:
            self.licence.pop()
        except IndexError:
            return                      # it runs
        try:                            # not threading.Thread: its start() waits, and a signal handler that raises there leaves two of them
            start_new_thread(self.run, ())
        except BaseException:
            self.licence.append("to run")
            raise

    def run(self):
        try:
            while True:
                self.work()
                if self.may_end():
                    return
        except BaseException as problem:    # no memory: whoever drops the next note starts it again
            self.licence.append("to run")
            unraisable(problem, self, type(self).__name__)

    def may_end(self):
        self.licence.append("to run")
        if self.notes.empty():
            return True
        try:                            # a note came in between, and its sender may have found the licence missing
            self.licence.pop()
        except IndexError:
            return True
        return False

    def left_notes(self):
        """In the child of a fork, where the thread is gone: its notes, once."""
        notes = self.notes
        left = []
        while not notes.empty():
            left.append(notes.get_nowait())
        return left


class _DeadLetters(_ServiceThread):
    """Notes are queues with something in `late`."""

    def __init__(self):
        _ServiceThread.__init__(self)
        self.current = None             # the queue that the thread is at

    def request(self, queue):
        self.notes.put(queue)
        self.start()

    def work(self):
        while not self.notes.empty():
            self.current = self.notes.get_nowait()
            (<EntryQueue>self.current).deliver_late()
            self.current = None

    def after_fork(self):
        left = self.left_notes()
        if self.current is not None:
            left.append(self.current)
        self.__init__()
        for queue in left:
            self.request(queue)


class _Timer(_ServiceThread):
    """Notes are (when, queue): look at that queue at that time (ns of the monotonic clock)."""

    def __init__(self):
        _ServiceThread.__init__(self)
        self.bell = Bell()
        self.heap = []
        self.count = itertools.count()

    def watch(self, when, queue):
        self.notes.put((when, next(self.count), weakref.ref(queue, self.forget)))
        self.wake()

    def forget(self, _):
        """A queue is gone: its notes need not be waited for."""
        self.notes.put(None)
        self.wake()

    def wake(self):
        self.bell.ring()
        self.start()

    def work(self):
        while True:
            while not self.notes.empty():
                self.read(self.notes.get_nowait())
            self.look()
            if not self.heap:
                return
            self.bell.wait(self.heap[0][0])

    def read(self, note):
        if note is None:
            self.heap = [one for one in self.heap if one[2]() is not None]
            heapq.heapify(self.heap)
        elif note[2]() is not None:
            heapq.heappush(self.heap, note)

    def look(self):
        now = mt_now_ns()
        while self.heap and self.heap[0][0] <= now:
            it = heapq.heappop(self.heap)[2]()
            if it is not None:
                (<EntryQueue>it).look_due()
            del it

    def after_fork(self):
        """What it had to watch is still to be watched."""
        left = self.heap + [note for note in self.left_notes() if note is not None]
        self.__init__()
        for note in left:
            self.notes.put(note)
        if left:
            self.start()


cdef object timer = _Timer()
cdef object dead_letters = _DeadLetters()
