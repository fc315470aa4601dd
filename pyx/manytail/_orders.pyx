"""Entry queues that are not FIFO: by priority, last value per key, sorted.

An order is a subclass of EntryQueue that places a new entry e in two steps:
  prepare(e, found)     without the order lock: run Python code (a key, comparisons), store the place in `found`
  q.place(q, e, found)  under the lock: link e, set its `seq` and `order`; MT_EMPTY if `found` is out of date
For an entry that is not appended to its level, place() calls locked_return_to_cursors().
docs/design/entryqueue.md has another order as an example.
"""
from cpython.ref cimport Py_INCREF, PyObject
from libc.stdint cimport int64_t, uint32_t

from manytail._c cimport MT_OK
from manytail._cpython cimport Py_DECREF_raw
from manytail._entries cimport EntryQueue, need_options
from manytail._entry cimport entry, key_slot
from manytail._eq cimport DENIED, OVERFLOW_DROP, entry_queue, lock_order, unlock_order
from manytail._eq_life cimport make_levels
from manytail._eq_put cimport locked_place_sorted
from manytail._eq_sorted cimport search_begin, search_end, search_narrow, search_probe, search_range
from manytail._lifecycle cimport int_argument


# ----------------------------------------------------------------------------------------------------------- priorities
cdef class PriorityEntryQueue(EntryQueue):
    """PriorityEntryQueue(name="", *, levels=10, mapping="jms", **options)\n--\n
    An EntryQueue with priorities: entries with the highest priority number are delivered first, and equal ones in order
    of arrival.

    levels: the number of priorities, 10 by default. mapping="jms", the default: as in AMQP 0-10 and JMS; with fewer
    than 10 levels, several of the lowest priorities share a level, and so do several of the highest. mapping="direct":
    level = min(max(priority, 0), levels - 1). Raises ValueError if levels is < 1 or > 65535 or the mapping is unknown,
    and TypeError if levels is not an int. It has the same other options, locking and algorithm as EntryQueue (see there
    for the source)."""
    def __init__(self, name="", *, levels=10, mapping="jms", **options):
        cdef int64_t n = int_argument("levels", levels, "an int from 1 to 65535")
        cdef int r
        if not 1 <= n <= 65535:
            raise ValueError(f"levels: {levels!r} (expected: an int from 1 to 65535)")
        if mapping not in ("jms", "direct"):
            raise ValueError(f"mapping: {mapping!r} (expected: 'jms' or 'direct')")
        EntryQueue.__init__(self, name, **options)
        r = make_levels(self.q, <uint32_t>n, 5 - (n + 1) // 2 if mapping == "jms" else 0)
        if r == DENIED:
            raise RuntimeError(f"{type(self).__name__}.__init__ was called on a queue that is in use")
        if r != MT_OK:
            raise MemoryError

    @property
    def levels(self):
        """The number of levels."""
        return self.q.nlevels


# ---------------------------------------------------------------------------------------------------------- last values
cdef class LastValueQueue(EntryQueue):
    """LastValueQueue(name="", *, key, **options)\n--\n
    An EntryQueue that keeps only the last entry of each key: a put removes the older entry of the same key.

    key: a function of the item, called once per put, while no lock is held. Its result must be hashable; an entry with
    the key None is never replaced. If a subscription holds the older entry, it is dropped when it is released.
    QueueStats.dropped counts replaced entries. A replacement needs no free slot in a full queue. Raises TypeError if
    key is not callable. It has the same other options, locking and algorithm as EntryQueue (see there for the
    source)."""
    def __init__(self, name="", *, key, **options):
        if not callable(key):
            raise TypeError(f"key: {key!r} (expected: a callable of an item)")
        EntryQueue.__init__(self, name, **options)
        self.key = key
        self.plain = False

    cdef int prepare(self, entry *e, search_range *found) except -1:
        key = self.key_of_item(<object>e.item)
        if key is not None:
            need_options(e).value_key = self.find_key(&self.q.value_keys, key)
        return 0


# --------------------------------------------------------------------------------------------------------------- sorted
cdef class SortedEntryQueue(EntryQueue):
    """SortedEntryQueue(name="", *, key, **options)\n--\n
    An EntryQueue that is sorted by a key, in ascending order. Entries with equal keys keep their order of arrival.

    key: a function of the item, called once per put, while no lock is held. A put makes O(log n) comparisons. If key or
    `<` raises, put raises that error and puts nothing. Raises TypeError if key is not callable. The other options and
    the locking are the same as in EntryQueue. Source: binary search in a two-level B+ tree (_eq_sorted.pxd)."""
    def __init__(self, name="", *, key, **options):
        if not callable(key):
            raise TypeError(f"key: {key!r} (expected: a callable of an item)")
        EntryQueue.__init__(self, name, **options)
        self.key = key
        self.plain = False
        self.q.keyed = True
        self.q.arrivals = self.q.overflow == OVERFLOW_DROP
        self.q.place = locked_place_sorted

    cdef int prepare(self, entry *e, search_range *found) except -1:
        """Binary search for the place of e. `<` is user code and runs without the lock, so the index may change in
        between: `found` is then corrected, and place() refuses a place that is out of date."""
        cdef entry_queue *q = self.q
        cdef void **own = key_slot(e)
        cdef PyObject *probe
        cdef bint less
        if not e.keyed:
            raise RuntimeError(f"{type(self).__name__}.__init__ was called during a put")
        if q.arrivals:
            need_options(e)
        if own[0] == NULL:
            key = self.key_of_item(<object>e.item)
            Py_INCREF(key)
            own[0] = <void *>key
        lock_order(q)
        search_begin(&q.index, found)
        try:
            while search_probe(&q.index, found, &probe):
                unlock_order(q)
                try:
                    less = <object>own[0] < <object>probe
                finally:
                    Py_DECREF_raw(probe)
                    lock_order(q)
                search_narrow(&q.index, found, less)
        finally:
            search_end(&q.index, found)
            unlock_order(q)
        return 0
