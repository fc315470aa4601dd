# The shared timer: one daemon thread for all queues of the process that have something due. It calls maintain() of each when its next due
# time has come, and ends when nobody has any. Whoever puts, in whatever thread, finalizer or signal handler, only drops a note into a
# SimpleQueue and rings, which may be done anywhere.

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


class _Timer:
    """Notes are (when, queue): look at that queue at that time (ns of the monotonic clock)."""

    def __init__(self):
        self.notes = SimpleQueue()
        self.bell = Bell()
        self.heap = []
        self.count = itertools.count()
        self.licence = ["to run"]       # whoever pops it starts the thread; the thread puts it back when it ends

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

    def start(self):
        try:
            self.licence.pop()
        except IndexError:
            return                      # it runs
        try:                            # not threading.Thread: its start() waits, and a signal handler that raises there leaves two timers
            start_new_thread(self.run, ())
        except BaseException:
            self.licence.append("to run")
            raise

    def run(self):
        while True:
            while not self.notes.empty():
                self.read(self.notes.get_nowait())
            self.look()
            if self.heap:
                self.bell.wait(self.heap[0][0])
            elif self.may_end():
                return

    def may_end(self):
        self.licence.append("to run")
        if self.notes.empty():
            return True
        try:                            # a note came in between, and its sender may have found the licence missing
            self.licence.pop()
        except IndexError:
            return True
        return False

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
        """In the child: the thread is gone, what it had to watch is not."""
        heap, notes = self.heap, self.notes
        self.__init__()
        while not notes.empty():
            note = notes.get_nowait()
            if note is not None:
                heap.append(note)
        for note in heap:
            self.notes.put(note)
        if heap:
            self.start()


cdef object timer = _Timer()
