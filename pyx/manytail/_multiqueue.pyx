"""The Python classes MultiQueue and SubQueue.

_mq.pxd describes the algorithm and names its source; the functions of its parts are inlined here. IndexMultiQueue, in
_indexqueue.pyx, is a subclass: `raw` says that the slots hold integers and no references. _nogil.pyx has the nogil API.

Rules of this layer
- A put adds the item's reference before it publishes the item. A get takes over the reference that the slot held.
  References are dropped with no lock held.
- No Python call (allocation, decref, ==, a selection) runs under a lock. Objects are made before it is taken, and
  dropped after it is left. One exception: take_integer() makes an int under the take lock. That runs no user code,
  because the collector does not track ints.
- On a build with the GIL, a queue of objects is `gil_locked`: the GIL takes the place of its locks (_mq.pxd).
- All code here runs attached to the interpreter, except under `nogil`. So the last argument of lock_take(), lock_put()
  and most other functions of the kernel, `attached`, is True.
- Methods are built-in (binding=False): binding one to its object writes no reference count that threads share. The
  "clinic" format gives them a signature to inspect. inspect does not take a built-in method for a coroutine function,
  so those are not built-in.
"""
cimport cython
from cpython.dict cimport PyDict_Next
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from libc.stdlib cimport free, malloc

from manytail._cpython cimport *
from manytail._int64 cimport Int64s, int64_of, int64s_of
from manytail._mq_changes cimport *
from manytail._mq_clear cimport *
from manytail._mq_put cimport *
from manytail._mq_iterate cimport *
from manytail._mq_life cimport *
from manytail._lifecycle cimport at_fork, int_argument, maxsize_argument, note_count, raise_if_failed
from manytail._root cimport clear_by_breaking_cycles

from manytail._values import MultiQueueStats, SubQueueView
from manytail.errors import Empty, Full, ShutDown

cdef object NOTHING = object()
cdef dict SELECTIONS = {"round_robin": MT_ROUND_ROBIN, "weighted": MT_WEIGHTED, "oldest": MT_OLDEST}


# ------------------------------------------------------------------------------------------------------------ arguments
cdef int64_t priority_argument(object value) except? -7:
    return int_argument("priority", value, "an int; smaller goes first")


cdef uint32_t weight_argument(object value, str what) except 0:
    """what: the things that a weight counts, for messages."""
    cdef int64_t weight = int_argument("weight", value, f"an int >= 1, the {what} per turn", 1)
    if weight > 0xFFFFFFFF:
        raise OverflowError(f"weight: {value!r} (expected: at most 2**32 - 1 {what} per turn)")
    return <uint32_t>weight


cdef PyObject *EMPTY = <PyObject *>Empty       # borrowed from the imports above
cdef PyObject *FULL = <PyObject *>Full


cdef int refuse(int status, subqueue *s) except -1:
    """Raise the exception of a status other than MT_OK. s: the sub-queue of a put; NULL: of another call."""
    if raise_if_failed(status) == MT_OK:
        return 0
    if status == MT_EMPTY or (status == MT_TIMEOUT and s == NULL):
        raise Empty
    if status == MT_FULL or status == MT_TIMEOUT:
        raise Full
    if s == NULL:
        raise ShutDown("the queue was shut down and nothing is left to get")
    if locked_value(s.mq, &s.closed_flags) & MT_CLOSED_DETACHED:
        raise ShutDown(f"sub-queue {<object>s.key!r} was removed from its MultiQueue and takes no more items")
    raise ShutDown("the queue was shut down and takes no more items")


cdef inline int get_once(queue *q, uintptr_t *item) noexcept nogil:
    """One try. MT_OK: an item, whose reference is the caller's. Else MT_EMPTY."""
    cdef wait_node *to_post = NULL
    cdef subqueue *s
    lock_take(q, True)
    r = head_get(q, item, &s, True, &to_post)
    unlock_take(q)
    if unlikely(to_post != NULL):
        post(to_post)
    return r


# ----------------------------------------------------------------------------------------------------------- MultiQueue
# A queue in a dead cycle stays usable for finalizers. The cycle breaks at its items, its dict or its selection.
@cython.no_gc_clear
@cython.binding(False)
@cython.embedsignature.format("clinic")
cdef class MultiQueue(Root):
    """MultiQueue(*, selection="round_robin")\n--\n
    Many sub-queues that you read as one queue: one `get` waits for all of them. Each sub-queue has its own capacity,
    priority, weight and on/off switch. Lower `priority` numbers are served first, as in `queue.PriorityQueue`.

    Sub-queues of the same priority take turns. The sub-queues that have items and are enabled form a ring. A sub-queue
    joins the end of the ring when it gets its first item, is enabled, or gets a new priority.

    selection: how the next sub-queue is chosen from those with the most urgent priority.
        "round_robin", the default: one item per turn.
        "weighted": `weight` items per turn; a sub-queue that becomes empty loses the rest of its turn.
        "oldest": the sub-queue whose first item is the oldest. A function: it gets the ready sub-queues with the most
        urgent priority, in the order of the ring, and returns one of them. It is called for each item, and from several
        threads. If it raises, get raises that error and nothing is lost; what a get_many has already taken is in a
        list, the error's `items`.

    Cost of get: O(1) for round_robin and weighted, O(log n) for oldest, O(ready sub-queues) for a function. Sub-queues
    that are not ready cost nothing.
    Blocking: one short lock per sub-queue for puts and one for gets; no lock is held while Python code runs. Source:
    LinkedBlockingMultiQueue by Mariano Barrios, after Doug Lea's LinkedBlockingQueue.

    >>> q = MultiQueue()
    >>> urgent, bulk = q.add("urgent", priority=0), q.add("bulk", priority=1, maxsize=1000)
    >>> bulk.put("later"); urgent.put("now")
    >>> q.get(), q.get_with_key()
    ('now', ('bulk', 'later'))
    """

    def __cinit__(self, *args, **options):
        self.q = new_queue(not MT_FREE_THREADED, True)
        if self.q == NULL:
            raise MemoryError
        self.subs = {}

    def __init__(self, *, selection="round_robin"):
        cdef bint is_callable = callable(selection)
        if not is_callable and (not isinstance(selection, str) or selection not in SELECTIONS):
            kind = ValueError if isinstance(selection, str) else TypeError
            raise kind(f"selection: {selection!r} (expected: 'round_robin', 'weighted', 'oldest' or a callable)")
        cdef uint32_t chosen = MT_ROUND_ROBIN if is_callable else SELECTIONS[selection]
        lock_take(self.q, True)
        cdef bint begun = self.q.begun
        if not begun:
            self.q.begun = 1
            self.q.selection = chosen
            self.q.ready.oldest = chosen == MT_OLDEST
        unlock_take(self.q)
        if begun:
            raise RuntimeError(f"{type(self).__name__}.__init__ was called again, or on a queue that is in use")
        if is_callable:
            self.choose = selection

    def __dealloc__(self):
        if self.q != NULL:
            drop_queue(self.q, True)

    cdef int visit(self, visitproc visit, void *arg) noexcept:
        cdef int r = 0
        if self.q != NULL and lists_are_quiet(self.q):
            r = visit_tasks(&self.q.not_empty, visit, arg) or visit_tasks(&self.q.joiners, visit, arg)
        return r

    cdef void break_cycles(self) noexcept:
        """The selection may be a method of the queue itself: a cycle that nothing else breaks. Without it, get uses
        round robin."""
        self.choose = None

    def __repr__(self):
        stats = MultiQueue.stats(self)      # a subclass may override it
        end = ", shut down" if self.is_shutdown else ""
        return f"<{type(self).__name__} of {stats.subqueues} sub-queues, {stats.qsize} items{end}>"

    # ------------------------------------------------------------------------------------------------------- sub-queues
    def add(self, key, *, priority=0, maxsize=0, weight=1, enabled=True, sizer=None):
        """Create the sub-queue of a new key and return it.

        maxsize: the capacity; <= 0: no limit. weight: items per turn, for selection="weighted". enabled=False: the
        sub-queue accepts items, but hides them from getters. sizer: a function that returns the size of an item, an
        int >= 0; maxsize then limits the sum of the sizes. It is called once per item, before the item is put and while
        no lock is held; put_many of a list or tuple calls it for all items first. A put of a small item may overtake a
        waiting put of a large one.
        Raises ValueError if the key exists or weight < 1, and ShutDown after shutdown(). Raises TypeError if priority,
        maxsize or weight is not an int, if the key is not hashable, if sizer is not callable, or if an IndexMultiQueue
        is given a sizer.

        >>> q = MultiQueue()
        >>> pages = q.add("pages", maxsize=1_000_000, sizer=len)      # at most a million bytes
        >>> pages.put(b"<html>")
        >>> pages.size, pages.remaining()
        (6, 999994)
        """
        if key in self.subs:
            raise key_taken(key)
        sub = self.attach(key, priority, maxsize, weight, enabled, sizer)
        if self.subs.setdefault(key, sub) is not sub:
            detach_subqueue(self.q, (<SubQueue>sub).s, True)     # another thread was faster
            raise key_taken(key)
        return sub

    def setdefault(self, key, *, priority=0, maxsize=0, weight=1, enabled=True, sizer=None):
        """Return the sub-queue of that key; it is created atomically if it does not exist. An existing one is returned
        unchanged. Takes the same options and raises the same errors as add()."""
        found = self.subs.get(key)
        if found is not None:
            return found
        sub = self.attach(key, priority, maxsize, weight, enabled, sizer)
        found = self.subs.setdefault(key, sub)
        if found is not sub:
            detach_subqueue(self.q, (<SubQueue>sub).s, True)     # another thread was faster
        return found

    cdef SubQueue attach(self, key, priority, maxsize, weight, enabled, sizer):
        cdef SubQueue sub = SubQueue.__new__(SubQueue, NOTHING)
        if sizer is not None and (self.raw or not callable(sizer)):
            expected = "None, because an IndexMultiQueue holds integers" if self.raw else "a callable or None"
            raise TypeError(f"sizer: {sizer!r} (expected: {expected})")
        sub.raw = self.raw
        sub.sizer = sizer
        sub.direct = not self.raw and sizer is None
        sub.name_ = key
        sub.s = new_subqueue(self.q, priority_argument(priority), maxsize_argument(maxsize),
                             weight_argument(weight, "items"), bool(enabled))
        if sub.s == NULL:
            raise MemoryError
        if sizer is not None:
            sub.s.sized = sub.s.bounded = 1
        sub.s.owner = <void *>sub
        sub.s.key = <void *>key
        refuse(attach_subqueue(self.q, sub.s, True), sub.s)
        return sub

    def remove(self, key):
        """Remove the sub-queue of that key and return it. Its items count as done and are not in qsize(), but you can
        still iterate over them. Puts that are waiting, and all later puts, raise ShutDown. The key may be added again.
        Raises KeyError if there is no such key."""
        cdef SubQueue sub = self.subs.pop(key)
        detach_subqueue(self.q, sub.s, True)
        return sub

    def __getitem__(self, key):
        return self.subs[key]

    def __contains__(self, key):
        return key in self.subs

    @property
    def subqueues(self):
        """A read-only live view that maps keys to sub-queues. Iterating over it takes a snapshot."""
        return SubQueueView(self.subs)

    # -------------------------------------------------------------------------------------------------------------- get
    def get(self, block=True, timeout=None):
        """Remove and return the next item of all enabled sub-queues. Waits for one if there is none.

        timeout: seconds for the whole call; None waits without limit. block=False does not wait and ignores timeout.
        Raises Empty if no item comes in time, ShutDown if the queue is shut down and empty, and ValueError if timeout
        is negative or NaN."""
        cdef uintptr_t item
        cdef PyObject *found
        cdef int r
        if timeout is None and self.choose is None:
            if likely((self.take_integer(&item, NULL) if self.raw else get_once(self.q, &item)) == MT_OK):
                return mt_owned_item(item)
            r = self.get_slow(NEVER if block else ONCE, False, True, &found)
        else:
            r = self.get_slow(deadline_from(block, timeout), False, False, &found)
        if r != MT_OK:
            mt_return_raising(EMPTY)
        return mt_owned(found)

    def get_nowait(self):
        """get(block=False)"""
        cdef wait_node *to_post = NULL
        cdef subqueue *s
        cdef uintptr_t item
        cdef PyObject *found
        cdef int r = MT_SHUTDOWN    # then get_slow() takes an item or raises
        if self.choose is None and self.raw:
            if self.take_integer(&item, NULL) == MT_OK:
                return mt_owned_item(item)
        elif self.choose is None:
            lock_take(self.q, True)
            r = head_get(self.q, &item, &s, True, &to_post)
            if r != MT_OK and self.q.shut:
                r = MT_SHUTDOWN
            unlock_take(self.q)
            if unlikely(to_post != NULL):
                post(to_post)
            if r == MT_OK:
                return mt_owned_item(item)
        if r == MT_SHUTDOWN:
            r = self.get_slow(ONCE, False, False, &found)
        if r != MT_OK:
            mt_return_raising(EMPTY)
        return mt_owned(found)

    def get_with_key(self, block=True, timeout=None):
        """Like get, but returns (key of the sub-queue, item)."""
        cdef PyObject *found
        if self.get_slow(deadline_from(block, timeout), True, False, &found) != MT_OK:
            mt_return_raising(EMPTY)
        return mt_owned(found)

    cdef int get_slow(self, int64_t deadline, bint with_key, bint tried, PyObject **found) except -1:
        """MT_OK and what get returns, whose reference is the caller's. MT_EMPTY: nothing came in time. tried: the
        caller has just tried."""
        cdef object taken
        while True:
            if not tried:
                taken = self.take(with_key)
                if taken is not NOTHING:
                    Py_INCREF(taken)
                    found[0] = <PyObject *>taken
                    return MT_OK
            tried = False
            if not self.wait_for_items(deadline):
                return MT_EMPTY

    cdef bint wait_for_items(self, int64_t deadline) except -1:
        """After a try that found nothing. True: try again. False: nothing came in time."""
        cdef wait_point p
        cdef int r = MT_EMPTY
        items_point(&p, self.q, True)
        if again(&p, 1, &r, deadline):
            return True
        if r != MT_EMPTY and r != MT_TIMEOUT:
            refuse(r, NULL)
        return False

    cdef object take(self, bint with_key):
        """An item, (key, item), or NOTHING."""
        cdef wait_node *to_post = NULL
        cdef subqueue *s = NULL
        cdef uintptr_t item = 0
        cdef PyObject *key = NULL
        cdef tuple pair = None
        cdef int r
        if with_key:
            pair = self.pair()      # allocated before the item is taken: after that nothing can fail
        if self.raw:
            r = self.take_integer(&item, &key if with_key else NULL)
        elif self.choose is not None:
            r = self.take_chosen(&item, &key)
        else:
            lock_take(self.q, True)
            r = head_get(self.q, &item, &s, True, &to_post)
            if r == MT_OK and with_key:
                key = <PyObject *>s.key
                Py_INCREF_raw(key)
            unlock_take_and_post(self.q, to_post)
        if r != MT_OK:
            return NOTHING
        if not with_key:
            if key != NULL:
                Py_DECREF_raw(key)
            return mt_owned_item(item)
        mt_pair_fill(<PyObject *>pair, <uintptr_t>key, item)
        return pair

    cdef tuple pair(self):
        try:
            return mt_pair_reserve()
        except BaseException:
            forward_items(self.q, True)     # another getter takes what this one may have been woken for
            raise

    cdef int take_integer(self, uintptr_t *item, PyObject **key) except -1:
        """Take an integer. MT_OK: *item is an int and *key its key, with references. Or MT_EMPTY. key may be NULL. The
        int is made under the lock, before the integer leaves: after that nothing can fail. See the rules above."""
        cdef wait_node *to_post = NULL
        cdef SubQueue sub = None
        cdef PyObject *made = NULL
        cdef uintptr_t value = 0
        cdef bint there
        while True:
            if self.choose is not None:
                sub = self.ask()
                if sub is None:
                    return MT_EMPTY
            lock_take(self.q, True)
            s = head_next(self.q, True) if sub is None else sub.s
            there = head_peek(self.q, s, &value)
            if there:
                made = PyLong_FromLongLong(<int64_t>value)
            if made != NULL:
                break
            unlock_take(self.q)
            if there:
                forward_items(self.q, True)     # another getter takes what this one may have been woken for
                return -1
            if sub is None:
                return MT_EMPTY
        head_pop(self.q, s)
        self.q.taken_total += 1
        if key != NULL:
            key[0] = <PyObject *>s.key
            Py_INCREF_raw(key[0])
        if sub is None:
            head_popped_and_served(self.q, s, 1, True, &to_post)
        else:
            head_popped(self.q, s, 1, True, &to_post)
            head_served_out_of_turn(self.q, s)
        head_propagate(self.q, &to_post)
        unlock_take_and_post(self.q, to_post)
        item[0] = <uintptr_t>made
        return MT_OK

    cdef tuple ready_subqueues(self):
        """The ready sub-queues of the best priority, in the order of the ring."""
        cdef Py_ssize_t n = 0, i
        cdef PyObject **owners = NULL
        lock_take(self.q, True)
        if head_next(self.q, False) != NULL:    # False: an empty one leaves its ring, even if it is the only one
            node = self.q.ready.top.front
            n = self.q.ready.top.nready
            owners = <PyObject **>malloc(n * sizeof(PyObject *))
            if owners != NULL:
                for i in range(n):
                    owners[i] = <PyObject *>mt_subqueue_of(node).owner
                    Py_INCREF_raw(owners[i])
                    node = node.next
        unlock_take(self.q)
        if n and owners == NULL:
            raise MemoryError
        try:
            return tuple([<object>owners[i] for i in range(n)])
        finally:
            for i in range(n):
                Py_DECREF_raw(owners[i])
            free(owners)

    cdef SubQueue ask(self):
        """Call the selection callable. Returns its choice, or None: nothing is ready."""
        cdef tuple ready
        try:
            ready = self.ready_subqueues()
            if not ready:
                return None
            choose = self.choose
            if choose is None:      # the collector has cleared it
                return ready[0]
            chosen = choose(ready)
            for sub in ready:
                if sub is chosen:
                    return sub
            raise ValueError(f"selection: it returned {chosen!r} (expected: one of the {len(ready)} sub-queues that it "
                             "was given)")
        except BaseException:
            forward_items(self.q, True)     # another getter takes what this one may have been woken for
            raise

    cdef int take_chosen(self, uintptr_t *item, PyObject **key) except -1:
        """Take an item of the sub-queue that the callable chooses. MT_OK or MT_EMPTY."""
        cdef wait_node *to_post = NULL
        cdef SubQueue sub
        cdef bint there
        while True:
            sub = self.ask()
            if sub is None:
                return MT_EMPTY
            lock_take(self.q, True)
            there = sub.s.ready.listed and head_count(sub.s) > 0
            if there:
                item[0] = head_pop(self.q, sub.s)
                self.q.taken_total += 1
                key[0] = <PyObject *>sub.name_
                Py_INCREF_raw(key[0])
                head_popped(self.q, sub.s, 1, True, &to_post)
                head_served_out_of_turn(self.q, sub.s)
                head_propagate(self.q, &to_post)
            unlock_take_and_post(self.q, to_post)
            if there:
                return MT_OK

    def get_many(self, max_items, block=True, timeout=None, *, linger=0.0):
        """Return a list of up to max_items items, in the order of get. Waits for the first one, then takes all that are
        available. If max_items <= 0, it returns [] at once. Raises the same errors as get.

        linger: how many seconds it waits for more items after the first one. It returns earlier if it has max_items
        items, times out, or the queue is shut down. If an exception interrupts it, for example one from a signal
        handler, the items that it has taken are in a list, the exception's `items`. block=False ignores linger. Raises
        ValueError if linger is negative or NaN."""
        cdef int64_t n = many_argument(max_items), longer = linger_from(linger)
        return self.many(n, deadline_from(block, timeout) if n > 0 else ONCE, longer)

    cdef object many(self, int64_t n, int64_t deadline, int64_t linger):
        cdef list out
        if n <= 0:
            return []
        if self.choose is None and (not linger or deadline == ONCE):
            out = self.take_many(None, n)
            if out:
                return out
            if deadline == ONCE and not self.wait_for_items(ONCE):
                raise Empty
        return self.result_of(new_get_many(self, n, deadline, linger).run())

    cdef list take_many(self, list out, int64_t n):
        """Append up to n items to `out`, or to a new list, without waiting. If this raises, `out` has all that was
        taken."""
        cdef wait_node *to_post = NULL
        cdef int64_t before, got
        n = qsize_of(self.q, n, True)   # with fast putters it might not end otherwise
        if n == 0:
            return out
        # The slots are allocated before items are taken: after that nothing can fail.
        try:
            out = mt_list_reserve(n) if out is None else mt_list_reserve_more(out, n)
        except BaseException:
            forward_items(self.q, True)     # another getter takes what this one may have been woken for
            raise
        if self.raw or self.choose is not None:
            return self.take_each(out, n)
        before = len(out)
        lock_take(self.q, True)
        got = head_get_many(self.q, mt_list_slots(<PyObject *>out) + before, n, True, &to_post)
        mt_list_filled(<PyObject *>out, before + got)
        unlock_take_and_post(self.q, to_post)
        return out

    cdef list take_each(self, list out, int64_t n):
        cdef int64_t _i
        for _i in range(n):
            item = self.take(False)
            if item is NOTHING:
                break
            out.append(item)
        return out

    cdef object result_of(self, list items):
        """What get_many returns."""
        return items

    def peek(self):
        """Return the item that get would return, without removing it. Raises Empty if there is none."""
        cdef subqueue *s = NULL
        cdef SubQueue sub = None
        cdef uintptr_t item = 0
        cdef bint found = False
        while True:
            if self.choose is not None:
                sub = self.ask()
                if sub is None:
                    raise Empty
            lock_take(self.q, True)
            s = head_next(self.q, True) if sub is None else sub.s
            found = head_peek(self.q, s, &item)
            if found and not self.raw:
                Py_INCREF_raw(<PyObject *>item)
            unlock_take(self.q)
            if found:
                return <int64_t>item if self.raw else mt_owned_item(item)
            if sub is None:
                raise Empty

    # ------------------------------------------------------------------------------------------------------------ async
    @cython.binding(True)
    async def aget(self):
        """The version of get() for asyncio and trio coroutines. If it is cancelled, no item is lost, and its wake-up
        goes to another getter."""
        pause = checkpoint()
        if pause is not None:
            await pause
        while True:
            taken = self.take(False)
            if taken is not NOTHING:
                return taken
            refuse(await self.until_items(NEVER), NULL)

    @cython.binding(True)
    async def aget_with_key(self):
        """get_with_key for coroutines."""
        pause = checkpoint()
        if pause is not None:
            await pause
        while True:
            taken = self.take(True)
            if taken is not NOTHING:
                return taken
            refuse(await self.until_items(NEVER), NULL)

    @cython.binding(True)
    async def aget_many(self, max_items, *, linger=0.0):
        """get_many for coroutines. If it is cancelled, what it has taken is in a list, the exception's `items`."""
        cdef int64_t n = many_argument(max_items), longer = linger_from(linger)
        pause = checkpoint()
        if pause is not None:
            await pause
        if n > 0 and (longer or self.choose is not None):
            return self.result_of(await new_get_many(self, n, NEVER, longer).arun())
        while True:
            try:
                return self.many(n, ONCE, 0)
            except Empty:
                refuse(await self.until_items(NEVER), NULL)

    cdef object until_items(self, int64_t deadline):
        """wait_for_items() for a coroutine, which awaits it. MT_OK: try again. Else why not."""
        cdef Waiting waiting = new_waiting(self)
        items_point(&waiting.point, self.q, True)
        return waiting.wait_until(deadline)

    # ------------------------------------------------------------------------------------------------------------ state
    def qsize(self):
        """Return the number of items in enabled, attached sub-queues. Other threads may have changed it by the time
        this returns."""
        return qsize_of(self.q, INT64_MAX, True)

    def empty(self):
        """Return whether get would have to wait."""
        return qsize_of(self.q, 1, True) == 0

    def task_done(self):
        """Count one item as done. Raises ValueError if it is called more often than items were put."""
        if not task_done(self.q, True):
            raise ValueError("task_done() was called more often than items were put")

    def join(self, timeout=None):
        """Wait until every item that was put is done. Returns True, or False after `timeout` seconds."""
        cdef int64_t deadline = deadline_from(True, timeout)
        cdef int r = join_until(self.q, deadline, True)
        if r == MT_TIMEOUT:
            return False
        refuse(r, NULL)
        return True

    @cython.binding(True)
    async def ajoin(self):
        """join for coroutines."""
        pause = checkpoint()
        if pause is not None:
            await pause
        cdef Waiting waiting = new_waiting(self)
        joined_point(&waiting.point, self.q, True)
        refuse(await waiting.wait(), NULL)

    def shutdown(self, immediate=False):
        """Accept no more items: put and add raise ShutDown. get returns what is left in enabled sub-queues and then
        raises ShutDown. immediate=True removes the items of all sub-queues; they count as done. Wakes all waiting
        calls."""
        cdef wait_node *to_post = NULL
        shut_queue(self.q, bool(immediate), True)
        if immediate:
            while self.drop_all():      # again, because a key that is added meanwhile may have moved others
                pass
            lock_take(self.q, True)
            head_wake_joiners(self.q, &to_post)       # wakes joiners; also if there was no item
            unlock_take_and_post(self.q, to_post)

    cdef bint drop_all(self) except -1:
        """Empty the sub-queues. Needs no memory: a shutdown cannot fail half-way. False: all were empty."""
        cdef PyObject *value = NULL
        cdef Py_ssize_t i = 0
        cdef bint dropped = False
        cdef SubQueue sub
        while True:
            with cython.critical_section(self.subs):
                sub = <SubQueue>value if PyDict_Next(self.subs, &i, NULL, &value) else None
            if sub is None:
                return dropped
            dropped |= sub.drop_all() > 0

    @property
    def is_shutdown(self):
        """True once shutdown() has been called."""
        return bool(locked_value(self.q, &self.q.shut))

    def stats(self):
        """Return a MultiQueueStats: items, sub-queues, waiting getters and putters, and how many items have been put
        and taken."""
        cdef int64_t putters = 0, put, qsize, subqueues, enabled, getters, got
        lock_take(self.q, True)
        s = self.q.all_first
        while s != NULL:
            putters += mt_load_relaxed_u32(&s.not_full_waiting)     # relaxed because: statistics; may be stale
            s = s.all_next
        qsize = head_qsize(self.q, INT64_MAX)
        put = head_put_total(self.q)    # after qsize, because puts go on
        subqueues, enabled, getters, got = self.q.nsubs, self.q.nenabled, self.q.not_empty.n, self.q.taken_total
        unlock_take(self.q)
        return MultiQueueStats(qsize, subqueues, enabled, getters, putters, put, got)


# --------------------------------------------------------------------------------------------------------- gets of many
@cython.final
@cython.no_gc_clear     # as its base
cdef class GetItems(GetMany):
    cdef MultiQueue mq

    cdef int take(self) except -2:
        self.mq.take_many(self.taken, self.n - len(self.taken))
        return MT_EMPTY if len(self.taken) < self.n else MT_OK

    cdef int refuse(self, int r) except -1:
        return refuse(r, NULL)


cdef GetMany new_get_many(MultiQueue mq, int64_t n, int64_t deadline, int64_t linger):
    cdef GetItems it = GetItems.__new__(GetItems)
    it.begin(n, deadline, linger)
    items_point(&it.point, mq.q, True)
    it.mq = mq
    return it


cdef object key_taken(object key):
    return ValueError(f"key={key!r}: this MultiQueue has a sub-queue of that key; "
                      "setdefault() returns it, remove() detaches it")


cdef int64_t many_argument(object max_items) except? -7:
    return int_argument("max_items", max_items, "an int")


cdef bint head_peek(queue *q, subqueue *s, uintptr_t *item) noexcept nogil:
    """The head item of a sub-queue. False: none can be got from it; or s is NULL."""
    if s == NULL or not s.ready.listed or head_count(s) == 0:
        return False
    head_skip_tombstones(q, s)
    item[0] = chunk_items(s.head)[s.head_idx]
    return True


cdef void head_served_out_of_turn(queue *q, subqueue *s) noexcept nogil:
    """head_served() for a sub-queue that a callable chose: it goes to the end of its ring."""
    if head_empty(s):
        head_served(q, s)
        return
    ready_remove(&q.ready, &s.ready)
    ready_append(&q.ready, &s.ready, 0)


# ------------------------------------------------------------------------------------------------------------- SubQueue
@cython.final
@cython.no_gc_clear
@cython.binding(False)
@cython.embedsignature.format("clinic")
cdef class SubQueue(Root):
    """SubQueue(*args, **options)\n--\n
    A sub-queue of a MultiQueue, into which items are put. Create it with MultiQueue.add or setdefault.

    All methods may be called in any thread. Puts to different sub-queues hardly wait for each other. priority, weight,
    maxsize and enabled may be assigned at any time; once the sub-queue has been removed, this has no effect.
    Blocking: it uses short locks, as the MultiQueue does. Source: the sub-queues of the LinkedBlockingMultiQueue, each
    with its own put lock.
    """

    def __cinit__(self, maker=None):
        if maker is not NOTHING:
            raise TypeError("SubQueue cannot be made by itself: MultiQueue.add() and setdefault() make them")

    def __init__(self, *args, **options):
        raise RuntimeError("SubQueue.__init__ was called on a sub-queue that is in use")

    def __dealloc__(self):
        if self.s != NULL:
            detach_subqueue(self.s.mq, self.s, True)
            self.drop_all()
            drop_left_chunks(self.s.mq, self.s)
            free_subqueue(self.s, True)

    cdef int visit(self, visitproc visit, void *arg) noexcept:
        cdef int r = 0
        if self.s != NULL and lists_are_quiet(self.s.mq):
            r = visit_tasks(&self.s.not_full, visit, arg)
        if r == 0 and self.s != NULL and not self.raw:
            r = visit_items(self.s, visit, arg)
        return r

    cdef void break_cycles(self) noexcept:
        if self.s != NULL:
            self.drop_all()

    def __repr__(self):
        state = ("" if self.enabled else ", disabled") + ("" if self.attached else ", removed")
        return f"<SubQueue {self.name_!r}, {self.qsize()} items{state}>"

    cdef int64_t drop_all(self) noexcept:
        """Empty the sub-queue, and drop the items with no lock held. Returns how many there were."""
        cdef item_drop drop = drop_object
        if self.raw:
            drop = NULL
        return drop_items(self.s.mq, self.s, drop, NULL, True)

    # ------------------------------------------------------------------------------------------------------- properties
    @property
    def key(self):
        """The key of the sub-queue."""
        return self.name_

    @property
    def attached(self):
        """False once it has been removed from its MultiQueue."""
        return bool(locked_value(self.s.mq, &self.s.attached))

    @property
    def priority(self):
        """Lower numbers are served first. A new priority moves the sub-queue to the end of the ring of that
        priority."""
        return locked_value_i64(self.s.mq, &self.s.priority)

    @priority.setter
    def priority(self, value):
        raise_if_failed(set_priority(self.s.mq, self.s, priority_argument(value), True))

    @property
    def weight(self):
        """Items per turn, for selection="weighted". A new weight applies from its next turn on."""
        return locked_value(self.s.mq, &self.s.weight)

    @weight.setter
    def weight(self, value):
        set_weight(self.s.mq, self.s, weight_argument(value, "items"), True)

    @property
    def maxsize(self):
        """The capacity: the number of items, or with a sizer the sum of their sizes. 0 or less: no limit. Raising it
        wakes waiting putters. Lowering it removes no items."""
        return mt_load_relaxed_i64(&self.s.maxsize)     # relaxed because: only a number; may be stale

    @maxsize.setter
    def maxsize(self, value):
        set_maxsize(self.s.mq, self.s, maxsize_argument(value), True)

    @property
    def enabled(self):
        """If False, the sub-queue accepts items up to maxsize, but hides them from getters."""
        return bool(locked_value(self.s.mq, &self.s.enabled))

    @enabled.setter
    def enabled(self, value):
        enable_subqueue(self.s.mq, self.s, bool(value), True)

    # -------------------------------------------------------------------------------------------------------------- put
    def put(self, item, block=True, timeout=None):
        """Append an item. Waits for a free slot if the sub-queue is full.

        timeout: seconds for the whole call; None waits without limit. block=False does not wait and ignores timeout.
        Raises Full if no slot becomes free in time; ShutDown if the queue is shut down or this sub-queue is removed
        (also during the wait); ValueError if timeout is negative or NaN, or if the item's size is negative or larger
        than maxsize; and any error that the sizer raises. If it raises, nothing was put."""
        if not self.put_slow(item, deadline_from(block, timeout), False):
            mt_return_raising(FULL)

    def put_nowait(self, item):
        """put(item, block=False)"""
        if not self.put_slow(item, ONCE, False):
            mt_return_raising(FULL)

    def put_front(self, item, block=True, timeout=None):
        """Put an item at the head of this sub-queue, so that it is the next to be taken. Waits and raises like put."""
        if not self.put_slow(item, deadline_from(block, timeout), True):
            mt_return_raising(FULL)

    cdef bint put_slow(self, object item, int64_t deadline, bint front) except -1:
        """False: no free slot in time."""
        cdef int64_t size = 0 if likely(self.sizer is None) else self.size_of(item)
        return self.put_of_size(item, size, deadline, front)

    cdef bint put_of_size(self, object item, int64_t size, int64_t deadline, bint front) except -1:
        """size: what size_of(item) returned. False: it did not fit in time."""
        cdef uintptr_t raw = <uintptr_t>int64_of(item) if self.raw else <uintptr_t><PyObject *>item
        if not self.raw:
            Py_INCREF(item)
        cdef int r = put_until(self.s.mq, self.s, raw, &size if self.sizer is not None else NULL, front, deadline, True)
        if unlikely(r != MT_OK):
            if not self.raw:
                Py_DECREF(item)
            if r == MT_FULL or r == MT_TIMEOUT:
                return False
            self.refuse_put(r, size)
        return True

    cdef int64_t size_of(self, object item) except -1:
        """Call the sizer, if there is one. That runs user code, so no lock may be held."""
        if likely(self.sizer is None):
            return 0
        cdef object answer = self.sizer(item)
        if isinstance(answer, bool):
            raise TypeError(f"sizer(item): {answer!r} (expected: an int >= 0, not bool)")
        return int_argument("sizer(item)", answer, "an int >= 0", 0)

    cdef int refuse_put(self, int status, int64_t size) except -1:
        """refuse() for a put with a size. MT_BADARG, which refuse() does not know: an item of that size never fits."""
        if status != MT_BADARG:
            return refuse(status, self.s)
        if self.maxsize > 0:
            raise ValueError(f"sizer(item): {size} (expected: at most maxsize={self.maxsize})")
        raise OverflowError(f"sizer(item): {size} (expected: the sizes in a sub-queue to add up to less than 2**63)")

    def put_many(self, items, block=True, timeout=None):
        """Append all items of an iterable in order and return how many there were.

        Of a list or tuple (for an IndexMultiQueue, an int64 buffer), as many items as fit become visible
        to getters at the same moment. Any other iterable is read one item at a time. timeout applies to the whole call.
        If it raises Full, ShutDown or KeyboardInterrupt, or ValueError, TypeError or OverflowError for an item, the
        exception's `count` is the number of items that were put. If the iterable or the sizer raises, the items before
        that point have been put."""
        cdef int64_t deadline = deadline_from(block, timeout), count = 0
        cdef Int64s run
        try:
            run = int64s_of(items) if self.raw else None
            if run is not None:
                self.put_raw(run, deadline, &count)
            elif isinstance(items, (list, tuple)) and not self.raw:
                if self.sizer is None:
                    self.put_sequence(items, deadline, &count)
                else:
                    self.put_sized_sequence(items, deadline, &count)
            else:
                for item in items:
                    if not self.put_slow(item, deadline, False):
                        raise Full
                    count += 1
        except (Full, ShutDown, KeyboardInterrupt, ValueError, TypeError, OverflowError) as error:
            note_count(error, count)
            raise
        return count

    cdef int put_raw(self, Int64s run, int64_t deadline, int64_t *count) except -1:
        """Put a run of integers. While at least DETACH_FROM are left, put them detached from the interpreter."""
        cdef subqueue *s = self.s
        cdef wait_point p
        cdef wait_node *to_post
        cdef bint forward
        cdef int64_t done = 0
        cdef int r
        free_slot_point(&p, s, True)
        while count[0] < run.n:
            if run.n - count[0] >= DETACH_FROM and enter_bulk(s.mq):
                to_post = NULL
                with nogil:
                    r = put_run_unposted(s.mq, s, run.items + count[0], NULL, run.n - count[0], False, False, &done,
                                         False, &to_post, &forward)
                    mt_let_go_of_gil_first()
                leave_bulk(s.mq)
                post(to_post)
                if forward:
                    forward_free_slot(s, True)
            else:
                r = put_run_once(s.mq, s, run.items + count[0], NULL, run.n - count[0], False, False, &done, True)
            count[0] += done
            if r != MT_OK and not again(&p, 1, &r, deadline):
                refuse(r, s)
        return 0

    cdef int put_sequence(self, object items, int64_t deadline, int64_t *count) except -1:
        """Put a list or tuple of objects, each time as many as fit."""
        cdef object whole = items
        cdef int r
        # A list is copied, because another thread, or the code of an event loop that is woken, may change it before all
        # of it is put. With the GIL and without maxsize it is put in one step. An instance of a subclass is copied,
        # because it may have a length and an iteration of its own.
        if type(items) is not tuple and (type(items) is not list or not self.s.gil_locked or self.s.bounded):
            whole = tuple(items)
        r = put_run_until(self.s.mq, self.s, <const uintptr_t *>PySequence_Fast_ITEMS(whole), NULL, len(whole), False,
                          True, deadline, count, True)
        return refuse(r, self.s)

    cdef int put_sized_sequence(self, object items, int64_t deadline, int64_t *count) except -1:
        """Compute all sizes before the first item is put. If the sizer fails, put the items before that one, then raise
        its exception, or that of the put if it fails."""
        cdef tuple whole = tuple(items)
        cdef Py_ssize_t n = len(whole), measured = 0
        cdef object failure = None
        cdef int r
        cdef int64_t *sizes = <int64_t *>malloc(n * sizeof(int64_t) + 1)
        if sizes == NULL:
            raise MemoryError
        try:
            try:
                while measured < n:
                    sizes[measured] = self.size_of(whole[measured])
                    measured += 1
            except Exception as error:
                failure = error
            r = put_run_until(self.s.mq, self.s, <const uintptr_t *>PySequence_Fast_ITEMS(whole), sizes, measured,
                              False, True, deadline, count, True)
            if r != MT_OK:
                self.refuse_put(r, sizes[count[0]])
        finally:
            free(sizes)
        if failure is not None:
            raise failure
        return 0

    @cython.binding(True)
    async def aput(self, item):
        """The version of put() for asyncio and trio coroutines. If it is cancelled before it returns, nothing was
        put."""
        pause = checkpoint()
        if pause is not None:
            await pause
        cdef int64_t size = self.size_of(item)
        cdef Waiting waiting
        if self.raw:
            item = int64_of(item)       # before the loop: if it raised after a wait, it would keep the wake-up
        while not self.put_of_size(item, size, ONCE, False):
            waiting = new_waiting(self)
            free_slot_point(&waiting.point, self.s, True)
            if self.sizer is not None:
                free_size_point(&waiting.point, self.s, size, True)
            await waiting.wait()

    # ------------------------------------------------------------------------------------------------------------ state
    cdef int64_t count(self) noexcept:
        # pairs with: mt_store_release in head_popped
        cdef int64_t out = mt_load_acquire_i64(&self.s.head_seq)
        # pairs with: mt_store_release in tail_put, tail_put_run
        cdef int64_t n = mt_load_acquire_i64(&self.s.tail_seq) - out
        return n if n > 0 else 0

    def qsize(self):
        """Return the number of items, whether the sub-queue is enabled or not."""
        lock_take(self.s.mq, True)      # so that it sees a get_many as a whole
        cdef int64_t n = self.count()
        unlock_take(self.s.mq)
        return n

    @property
    def size(self):
        """The total size of its items at a single moment; the same as qsize() if there is no sizer."""
        if self.sizer is None:
            return self.qsize()
        lock_take(self.s.mq, True)
        lock_put(self.s.mq, self.s, True)
        cdef int64_t size = tail_size(self.s)
        unlock_put(self.s.mq, self.s)
        unlock_take(self.s.mq)
        return size

    def remaining(self):
        """Return how many more items fit at this moment, or with a sizer, what total size. Returns None if there is no
        limit."""
        cdef int64_t maxsize = mt_load_relaxed_i64(&self.s.maxsize)     # relaxed because: only a number; may be stale
        if maxsize <= 0:
            return None
        return max(0, maxsize - self.size)

    def empty(self):
        """Return True if there are no items."""
        return self.count() == 0

    def full(self):
        """Return whether put would have to wait; with a sizer, for an item whose size is > 0."""
        return self.remaining() == 0

    # ------------------------------------------------------------------------------------------------------- inspecting
    def __iter__(self):
        """Iterate over the items in order, each at most once. Weakly consistent: items that are put or taken meanwhile
        may or may not be seen."""
        return SubQueueIterator.__new__(SubQueueIterator, self)

    def __contains__(self, item):
        """Whether an item is `item` or equals it. No lock is held while comparing."""
        for found in SubQueueIterator.__new__(SubQueueIterator, self):
            if found is item or found == item:
                return True
        return False

    def discard(self, item):
        """Remove the first item that is or equals `item`, and return whether there was one. No lock is held while items
        are compared. You may call it during an iteration."""
        cdef SubQueueIterator items = SubQueueIterator.__new__(SubQueueIterator, self)
        for found in items:
            if (found is item or found == item) and items.discard_last():
                return True
        return False

    def clear(self):
        """Remove all items and return how many there were. They count as done."""
        return self.drop_all()


cdef uint32_t locked_value(queue *q, uint32_t *field) noexcept nogil:
    """Read a field that is written under the take lock."""
    lock_take(q, True)
    value = field[0]
    unlock_take(q)
    return value


cdef int64_t locked_value_i64(queue *q, int64_t *field) noexcept nogil:
    """locked_value() of 64 bits."""
    lock_take(q, True)
    value = field[0]
    unlock_take(q)
    return value


@cython.final
@cython.no_gc_clear         # each step needs `sub`; a cycle breaks at the items of `sub` or at `batch`
cdef class SubQueueIterator:
    """Iterates over a sub-queue in snapshots of up to SNAPSHOT items; between them no lock is held."""
    cdef SubQueue sub
    cdef iterator_position k
    cdef uint32_t next_item
    cdef list batch             # the snapshot; unused for integers
    cdef bint busy              # a thread is inside __next__; read and written in critical sections
    cdef bint exhausted         # a step found nothing: it has ended, even if items are put later

    def __cinit__(self, SubQueue sub not None):
        self.sub = sub
        position_open(&self.k)
        self.batch = []

    def __iter__(self):
        return self

    def __next__(self):
        with cython.critical_section(self):
            if self.busy:
                raise ValueError("this iterator is being advanced by another thread; give each thread one of its own")
            self.busy = True
        try:
            return self.advance()
        finally:
            with cython.critical_section(self):
                self.busy = False

    cdef object advance(self):
        if self.next_item == self.k.n:
            self.refill()
        if self.sub.raw:
            found = <int64_t>self.k.items[self.next_item]
        else:
            found = self.batch[self.next_item]
            self.batch[self.next_item] = None
        self.next_item += 1
        return found

    cdef int refill(self) except -1:
        cdef uint32_t i
        if self.exhausted:
            raise StopIteration
        if not self.sub.raw:
            self.batch = mt_list_reserve(SNAPSHOT)      # before references are added: after that nothing can fail
        self.next_item = 0
        position_step(self.sub.s.mq, self.sub.s, &self.k, not self.sub.raw)
        if not self.sub.raw:
            for i in range(self.k.n):
                mt_list_slots(<PyObject *>self.batch)[i] = self.k.items[i]
            mt_list_filled(<PyObject *>self.batch, self.k.n)
        if self.k.n == 0:
            self.exhausted = True
            raise StopIteration
        return 0

    cdef bint discard_last(self):
        """Remove the item that __next__ returned last. False: it has been taken."""
        cdef uint32_t i = self.next_item - 1
        cdef bint removed = discard_at(self.sub.s.mq, self.sub.s, self.k.positions[i], self.k.items[i], True)
        if removed and not self.sub.raw:
            Py_DECREF_raw(<PyObject *>self.k.items[i])      # the slot's reference; the caller has another one
        return removed


# ------------------------------------------------------------------------------------------------------------ shortcuts
# put(item) and get() without more arguments: C functions that run before the methods that Cython compiles, see
# mt_patch_method (pygc.h). What does not succeed at once begins again in the compiled method.
cdef mt_method compiled_put, compiled_get


cdef PyObject *short_put(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *names) noexcept:
    cdef subqueue *s = (<SubQueue>self).s
    if likely(n == 1 and names == NULL and (<SubQueue>self).direct):
        item = args[0]
        Py_INCREF_raw(item)
        if likely(put_once(s.mq, s, <uintptr_t>item, True) == MT_OK):
            return mt_new_none()
        Py_DECREF_raw(item)             # never the last reference: the caller has one
    return compiled_put(self, args, n, names)


cdef PyObject *short_get(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *names) noexcept:
    cdef uintptr_t item
    if likely(n == 0 and names == NULL and (<MultiQueue>self).choose is None and not (<MultiQueue>self).raw):
        if likely(get_once((<MultiQueue>self).q, &item) == MT_OK):
            return <PyObject *>item
    return compiled_get(self, args, n, names)


compiled_put = mt_patch_method(<PyTypeObject *>SubQueue, "put", short_put)
compiled_get = mt_patch_method(<PyTypeObject *>MultiQueue, "get", short_get)

clear_by_breaking_cycles((MultiQueue, SubQueue))


# ----------------------------------------------------------------------------------------------------------------- fork
def _before_fork():
    cdef int r
    with nogil:
        r = hold_bulks()
    raise_if_failed(r)


def _after_fork_in_parent():
    release_bulks()


def _after_fork_in_child():
    forget_other_threads(PyThread_get_thread_ident())


at_fork(_after_fork_in_child, _before_fork, _after_fork_in_parent)
