# cython: language_level=3, freethreading_compatible=True, boundscheck=False, wraparound=False, cdivision=True
"""The published list of Qpid's queues, as a rival of EntryQueue: only for bench/published.py, in no wheel.

What Qpid's note says, line by line: an append is a compare-and-swap (CAS) on `next` of the last node and one on
the tail, after ConcurrentLinkedQueue. The state of an entry changes by CAS. Each subscription has a pointer to the node
that it has come to, which moves by CAS: on, past what is acquired or gone, and back after a release. What was dequeued
in the middle is unlinked by whoever finds it; what was dequeued at the head is unlinked and linked to itself, which
means "go on from the head". Java's volatile is sequentially consistent, and so is everything atomic here.

Added to it (`checked`), because an entry that is released at that moment would be passed over for good, or a later one
taken before it: who has moved a pointer past an entry looks at that entry again, and who is about to acquire one looks
at the pointer again. A delivery has a number in the state word, so that a handle of an earlier delivery fails.

Not in it: everything else of an EntryQueue (credit, priorities, times, selectors, groups, bounds, statistics, waking).
A get that finds nothing yields the processor and looks again, which costs a put nothing.

`locked=True` is the same with one lock instead: a list that is linked both ways, one pointer for all subscriptions, an
entry unlinked when it is acked. The difference between the two is what being lockless gives and costs; the difference
between that one and EntryQueue is what else an EntryQueue does. With a GIL the GIL is the lock.

Memory. Java's collector frees a node when no thread and no pointer refers to it. Here nodes come from an array that is
set aside at the beginning, by one fetch-and-add each, and are used again after `reset()`, which the caller calls at a
moment without other calls. So the figures hold no cost of reclamation: real use would add it (epochs, or a count per
node), a collector's included.
"""
from cpython.ref cimport PyObject, Py_DECREF, Py_INCREF
from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free

from queue import Empty

cdef extern from *:
    """
    #include <sched.h>
    #include <stdint.h>
    #ifdef Py_GIL_DISABLED
    #define HAS_GIL 0
    #else
    #define HAS_GIL 1
    #endif
    #if defined(__x86_64__) || defined(__i386__)
    #define pause_once() __builtin_ia32_pause()
    #else
    #define pause_once() ((void)0)
    #endif
    #define ORDER __ATOMIC_SEQ_CST
    static inline int cas_pointer(void *at, void *seen, void *to)
    { return __atomic_compare_exchange_n((void **)at, &seen, to, 0, ORDER, ORDER); }
    static inline void *pointer_of(void *at) { return __atomic_load_n((void **)at, ORDER); }
    static inline void *swap_pointer(void *at, void *to) { return __atomic_exchange_n((void **)at, to, ORDER); }
    static inline int cas_word(int64_t *at, int64_t seen, int64_t to)
    { return __atomic_compare_exchange_n(at, &seen, to, 0, ORDER, ORDER); }
    static inline int64_t word_of(int64_t *at) { return __atomic_load_n(at, ORDER); }
    static inline int64_t swap_word(int64_t *at, int64_t to) { return __atomic_exchange_n(at, to, __ATOMIC_ACQUIRE); }
    static inline void clear_word(int64_t *at) { __atomic_store_n(at, 0, __ATOMIC_RELEASE); }
    static inline int64_t add_to(int64_t *at, int64_t n) { return __atomic_fetch_add(at, n, ORDER); }
    """
    bint cas_pointer(void *at, void *seen, void *to) noexcept nogil
    void *pointer_of(void *at) noexcept nogil
    void *swap_pointer(void *at, void *to) noexcept nogil
    bint cas_word(int64_t *at, int64_t seen, int64_t to) noexcept nogil
    int64_t word_of(int64_t *at) noexcept nogil
    int64_t add_to(int64_t *at, int64_t n) noexcept nogil
    int64_t swap_word(int64_t *at, int64_t to) noexcept nogil
    void clear_word(int64_t *at) noexcept nogil
    void pause_once() noexcept nogil
    int sched_yield() noexcept nogil
    bint HAS_GIL

cdef enum:
    AVAILABLE = 0
    ACQUIRED = 1
    DELETED = 2
    STATE_BITS = 3
    DELIVERY = 4            # one delivery in the word: delivery number << 2 | state
    NOT_DELIVERED = -1      # the word of a handle from put: no node has it
    SCAVENGE = 100          # so many deletions in the middle start a walk that unlinks them

ctypedef struct node:
    node *next              # itself: unlinked at the head
    node *prev              # only with a lock
    int64_t word
    int64_t id              # its place in the order; 0: the first head, which has no entry
    PyObject *item          # a counted reference until it is deleted

ctypedef struct pointer:    # of a subscription, on a cache line of its own
    node *at
    int64_t interested      # a get waits
    char pad[48]

ctypedef struct state:      # what all threads write, on a cache line each
    node *head
    char pad1[56]
    node *tail
    char pad2[56]
    int64_t used            # nodes of the array
    char pad3[56]
    int64_t deletions
    char pad4[56]
    int64_t lock            # of the list with a lock, and what that guards
    node *first
    node *last
    node *at                # the next node to look at, for all subscriptions
    int64_t ids


cdef inline bint is_deleted(node *n) noexcept nogil:
    return (word_of(&n.word) & STATE_BITS) == DELETED


cdef class QpidList:
    """put, subscribe; get, ack and release of what is got. At most `capacity` puts between two resets."""
    cdef state *s
    cdef node *nodes
    cdef pointer *pointers
    cdef int64_t capacity
    cdef int64_t nsubscriptions, max_subscriptions, turn
    cdef bint push, checked, locked

    def __cinit__(
        self, int64_t capacity=1_000, int64_t subscriptions=64, bint push=True, bint checked=True, bint locked=False
    ):
        """push: a put goes through the subscriptions, as the note says, and looks which of them waits."""
        self.s = <state *>calloc(1, sizeof(state))
        self.nodes = <node *>calloc(capacity + 1, sizeof(node))
        self.pointers = <pointer *>calloc(subscriptions, sizeof(pointer))
        if self.s == NULL or self.nodes == NULL or self.pointers == NULL:
            raise MemoryError
        self.capacity, self.max_subscriptions, self.push, self.checked = capacity, subscriptions, push, checked
        self.locked = locked
        self.begin()

    def __dealloc__(self):
        cdef int64_t i
        if self.nodes != NULL and self.s != NULL:
            for i in range(min(self.s.used, self.capacity + 1)):
                if self.nodes[i].item != NULL:
                    Py_DECREF(<object>self.nodes[i].item)
        free(self.nodes)
        free(self.pointers)
        free(self.s)

    cdef void begin(self) noexcept:
        """The head is a deleted node; delivery numbers go on, so that old handles stay over."""
        cdef node *first = &self.nodes[0]
        cdef int64_t i
        first.next = NULL
        first.word = (first.word & ~<int64_t>STATE_BITS) | DELETED
        first.id = 0
        self.s.head = self.s.tail = first
        self.s.used = 1
        for i in range(self.nsubscriptions):
            self.pointers[i].at = first

    def reset(self):
        """Use the nodes again. Everything was acked, and no other call runs."""
        assert self.s.first == NULL
        assert next_valid(self, self.s.head) == NULL
        self.begin()

    def put(self, item):
        """Returns a handle, as EntryQueue does."""
        cdef Delivery it = Delivery.__new__(Delivery)
        cdef int64_t i = add_to(&self.s.used, 1)
        if i > self.capacity:
            raise MemoryError("capacity: more puts than nodes")
        n = &self.nodes[i]
        n.next = NULL
        n.word = (n.word & ~<int64_t>STATE_BITS) | AVAILABLE
        Py_INCREF(item)
        n.item = <PyObject *>item
        it.q, it.n, it.word, it.item = self, n, NOT_DELIVERED, item
        if self.locked:
            locked_append(self.s, n)
            return it
        append(self, n)
        if self.push:
            offer(self)
        return it

    def subscribe(self):
        if self.nsubscriptions == self.max_subscriptions:
            raise MemoryError("subscriptions: too many")
        cdef ListSubscription it = ListSubscription.__new__(ListSubscription)
        it.q, it.p = self, &self.pointers[self.nsubscriptions]
        it.p.at = <node *>pointer_of(&self.s.head)
        self.nsubscriptions += 1
        return it


# ---------------------------------------------------------------------------------------------------------------- list
cdef inline void append(QpidList q, node *n) noexcept nogil:
    cdef node *t
    cdef node *last
    while True:
        t = last = <node *>pointer_of(&q.s.tail)
        following = <node *>pointer_of(&last.next)
        if following == last:                       # the tail lags behind the head
            last = <node *>pointer_of(&q.s.head)
            following = <node *>pointer_of(&last.next)
        while following != NULL and following != last:
            last = following
            following = <node *>pointer_of(&last.next)
        if following == last:
            continue                                # the head has passed it meanwhile
        n.id = last.id + 1
        if cas_pointer(&last.next, NULL, n):
            cas_pointer(&q.s.tail, t, n)            # if it fails, another one has moved the tail further
            return


cdef inline node *next_valid(QpidList q, node *n) noexcept nogil:
    """The first node behind n that is not deleted, or NULL. Deleted ones in between are unlinked."""
    cdef node *following
    cdef node *after
    while True:
        following = <node *>pointer_of(&n.next)
        if following == n:
            n = <node *>pointer_of(&q.s.head)       # linked to itself: all up to the head is deleted
            continue
        if following == NULL or not is_deleted(following):
            return following
        after = <node *>pointer_of(&following.next)
        if after == NULL:
            return NULL                             # the last node stays, so that nobody appends to an unlinked one
        if after == following:
            n = <node *>pointer_of(&q.s.head)
        else:
            cas_pointer(&n.next, following, after)


cdef inline void deleted(QpidList q) noexcept nogil:
    """A node was deleted: move the head past the deleted ones behind it, or count one in the middle."""
    cdef node *h = <node *>pointer_of(&q.s.head)
    cdef node *first = <node *>pointer_of(&h.next)
    cdef node *n
    cdef node *to = NULL
    if first == h:
        return                                      # another thread moves the head
    n = first
    while n != NULL and is_deleted(n):
        following = <node *>pointer_of(&n.next)
        if following == NULL or following == n:
            break
        to, n = n, following
    if to == NULL:
        if first != NULL and not is_deleted(first) and add_to(&q.s.deletions, 1) % SCAVENGE == SCAVENGE - 1:
            scavenge(q)
        return
    if cas_pointer(&q.s.head, h, to):
        while h.id < to.id:                         # not "!= to": who unlinked `to` meanwhile has linked past it
            h = <node *>swap_pointer(&h.next, h)


cdef inline void scavenge(QpidList q) noexcept nogil:
    n = <node *>pointer_of(&q.s.head)
    while n != NULL:
        n = next_valid(q, n)


# --------------------------------------------------------------------------------------------------------- with a lock
cdef inline void lock(state *s) noexcept nogil:
    """Who finds it taken stays away for 128 pauses, as lock_slow_heavy() of EntryQueue does."""
    if HAS_GIL:
        return
    while swap_word(&s.lock, 1):
        for _ in range(128):
            pause_once()
        if word_of(&s.lock):
            sched_yield()


cdef inline void unlock(state *s) noexcept nogil:
    if not HAS_GIL:
        clear_word(&s.lock)


cdef inline void locked_append(state *s, node *n) noexcept nogil:
    lock(s)
    s.ids += 1
    n.id = s.ids
    n.prev = s.last
    if s.last != NULL:
        s.last.next = n
    else:
        s.first = n
    s.last = n
    if s.at == NULL:
        s.at = n
    unlock(s)


cdef inline node *locked_take(state *s, int64_t *delivery) noexcept nogil:
    lock(s)
    cdef node *n = s.at
    while n != NULL and (word_of(&n.word) & STATE_BITS) != AVAILABLE:
        n = n.next
    s.at = n
    if n != NULL:
        delivery[0] = word_of(&n.word) + DELIVERY + ACQUIRED
        cas_word(&n.word, delivery[0] - DELIVERY - ACQUIRED, delivery[0])
        s.at = n.next
    unlock(s)
    return n


cdef inline bint locked_ack(state *s, node *n, int64_t word) noexcept nogil:
    lock(s)
    cdef bint done = cas_word(&n.word, word, word - ACQUIRED + DELETED)
    if done:
        if s.at == n:
            s.at = n.next
        if n.prev != NULL:
            n.prev.next = n.next
        else:
            s.first = n.next
        if n.next != NULL:
            n.next.prev = n.prev
        else:
            s.last = n.prev
    unlock(s)
    return done


cdef inline bint locked_release(state *s, node *n, int64_t word) noexcept nogil:
    lock(s)
    cdef bint done = cas_word(&n.word, word, word - ACQUIRED)
    if done and (s.at == NULL or s.at.id > n.id):
        s.at = n
    unlock(s)
    return done


# ------------------------------------------------------------------------------------------------------- subscriptions
cdef inline void offer(QpidList q) noexcept nogil:
    """Go through the subscriptions, from the one served last, until one waits. It takes the entry itself."""
    cdef int64_t i = q.turn
    for _ in range(q.nsubscriptions):
        i = i + 1 if i + 1 < q.nsubscriptions else 0
        if word_of(&q.pointers[i].interested):
            q.turn = i
            return


cdef inline node *take(QpidList q, pointer *p, int64_t *delivery) noexcept nogil:
    """The first AVAILABLE entry from the pointer on, acquired, or NULL."""
    cdef node *n
    cdef int64_t w
    if q.locked:
        return locked_take(q.s, delivery)
    while True:
        n = <node *>pointer_of(&p.at)
        w = word_of(&n.word)
        if (w & STATE_BITS) == AVAILABLE:
            if q.checked and <node *>pointer_of(&p.at) != n:
                continue                            # it went back to an earlier entry, which comes first
            if cas_word(&n.word, w, w + DELIVERY + ACQUIRED):
                delivery[0] = w + DELIVERY + ACQUIRED
                return n
            continue
        following = next_valid(q, n)
        if following == NULL:
            if q.checked and <node *>pointer_of(&p.at) != n:
                continue
            return NULL
        if cas_pointer(&p.at, n, following) and q.checked and (word_of(&n.word) & STATE_BITS) == AVAILABLE:
            move_back(p, n)                         # released in between; who released it saw the pointer at n


cdef inline void move_back(pointer *p, node *n) noexcept nogil:
    """n is AVAILABLE: the pointer must not be behind it."""
    cdef node *at = <node *>pointer_of(&p.at)
    while at.id > n.id and (word_of(&n.word) & STATE_BITS) == AVAILABLE:
        if cas_pointer(&p.at, at, n):
            return
        at = <node *>pointer_of(&p.at)


cdef class ListSubscription:
    cdef QpidList q
    cdef pointer *p

    def get(self, bint block=True):
        cdef int64_t delivery = 0
        n = take(self.q, self.p, &delivery)
        if n == NULL:
            if not block:
                raise Empty
            n = self.wait(&delivery)
        cdef Delivery it = Delivery.__new__(Delivery)
        it.q, it.n, it.word, it.item = self.q, n, delivery, <object>n.item
        return it

    cdef node *wait(self, int64_t *delivery) except NULL:
        cdef node *n = NULL
        cdef bint needs_gil = HAS_GIL and self.q.locked     # where the GIL is the lock
        add_to(&self.p.interested, 1)
        while n == NULL:
            with nogil:
                sched_yield()
                if not needs_gil:
                    n = take(self.q, self.p, delivery)
            if needs_gil:
                n = take(self.q, self.p, delivery)
        add_to(&self.p.interested, -1)
        return n


cdef class Delivery:
    """What put and get return. Of one from get, ack and release return True once, and False when it is over."""
    cdef QpidList q
    cdef node *n
    cdef int64_t word
    cdef readonly object item

    def ack(self):
        cdef node *n = self.n
        if self.q.locked:
            if not locked_ack(self.q.s, n, self.word):
                return False
        elif not cas_word(&n.word, self.word, self.word - ACQUIRED + DELETED):
            return False
        item, n.item = n.item, NULL
        if not self.q.locked:
            deleted(self.q)
        Py_DECREF(<object>item)
        return True

    def release(self):
        cdef int64_t i
        if self.q.locked:
            return locked_release(self.q.s, self.n, self.word)
        if not cas_word(&self.n.word, self.word, self.word - ACQUIRED):
            return False
        for i in range(self.q.nsubscriptions):
            move_back(&self.q.pointers[i], self.n)
        if self.q.push:
            offer(self.q)
        return True
