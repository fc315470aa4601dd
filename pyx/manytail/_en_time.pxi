# The shared timer: one daemon thread for all queues of the process that have something due. It calls maintain() of each when its next due
# time has come, and ends when nobody has any. Whoever puts, in whatever thread, finalizer or signal handler, only drops a note into a
# SimpleQueue, which may be done anywhere.

class _Timer:
    """Notes are (when, queue): look at that queue at that time (ns of the monotonic clock)."""

    def __init__(self):
        self.notes = SimpleQueue()
        self.heap = []
        self.count = itertools.count()
        self.licence = ["to run"]       # whoever pops it starts the thread; the thread puts it back when it ends

    def watch(self, when, queue):
        self.notes.put((when, next(self.count), weakref.ref(queue, self.forget)))
        self.start()

    def forget(self, _):
        """A queue is gone: its notes need not be waited for."""
        self.notes.put(None)
        self.start()

    def start(self):
        try:
            self.licence.pop()
        except IndexError:
            return                      # it runs
        try:
            threading.Thread(target=self.run, name="manytail timer", daemon=True).start()
        except BaseException:
            self.licence.append("to run")
            raise

    def run(self):
        while True:
            while self.heap:
                self.read(max(0.0, (self.heap[0][0] - mt_now_ns()) / 1e9))
                self.look()
            while not self.notes.empty():
                self.read(0)
            if not self.heap:
                self.licence.append("to run")
                if self.notes.empty():
                    return
                try:                    # a note came in between, and its sender may have found the licence missing
                    self.licence.pop()
                except IndexError:
                    return

    def read(self, seconds):
        try:
            note = self.notes.get(timeout=seconds) if seconds > 0 else self.notes.get_nowait()
        except Empty:
            return
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
