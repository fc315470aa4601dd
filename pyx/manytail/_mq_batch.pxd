# A batch: the items that a get_many has taken which lingers or calls a selection. If it raises, it gives them back.
# Private; a part of the MultiQueue (_mq.pxd).
#
# An item in a batch has left its sub-queue and all counts, as if a get had returned it. The batch keeps what giving it
# back needs: its sub-queue, put time and size. Giving back puts the items at the heads of their sub-queues, the last
# one first, so that each sub-queue has them in their old order. Capacity is not checked.
#
# Giving back must not fail, and putting at the head may need chunks. So the batch allocates them before it takes an
# item: k items of one sub-queue need ceil(k / SLOTS) chunks, n items of t sub-queues at most t + n // SLOTS. To count
# its sub-queues, a batch writes its number into each (`last_batch`). Another batch may overwrite that; the sub-queue is
# then counted twice and one chunk too many is allocated.
#
# A batch belongs to one call and is used by one thread at a time. It has references to the Python SubQueues.
from libc.stdlib cimport free, realloc

from manytail._mq_put cimport *
from manytail._mq_tasks cimport *

cdef enum:
    SLOTS = 11                  # of a chunk of the smallest class

ctypedef struct taken_item:
    uintptr_t item
    subqueue *s                 # where it came from
    int64_t timestamp
    int64_t size
    bint given_back             # or dropped: the batch has no reference to the item

ctypedef struct taken_batch:
    queue *q
    taken_item *items           # in the order in which they were taken
    int64_t n
    int64_t limit               # of `n`
    int64_t capacity            # of `items`
    int64_t number              # unique in its queue
    int64_t nsubqueues          # number of sub-queues, or more
    chunk *chunks               # for giving back, linked by `base`
    int64_t nchunks


cdef inline void begin_batch(taken_batch *b, queue *q, int64_t limit, bint attached) noexcept nogil:
    """The caller has zeroed the batch."""
    b.q = q
    b.limit = limit
    lock_take(q, attached)
    q.batches += 1
    b.number = q.batches
    unlock_take(q)


cdef inline bint head_reserve(taken_batch *b, subqueue *s) noexcept nogil:
    """Allocate what taking one more item, and giving it back, needs. False: no memory."""
    cdef int64_t nsubqueues = b.nsubqueues + (s.last_batch != b.number)
    cdef int64_t capacity = 2 * b.capacity if b.capacity else 16
    if b.n == b.capacity:
        items = <taken_item *>realloc(b.items, capacity * sizeof(taken_item))
        if items == NULL:
            return False
        b.items = items
        b.capacity = capacity
    while b.nchunks < nsubqueues + (b.n + 1) // SLOTS:
        c = chunk_new(SIZED_CLASS, b.q.selection == MT_OLDEST, 0)     # class 0, with sizes: fits every sub-queue
        if c == NULL:
            return False
        c.base = <int64_t>b.chunks
        b.chunks = c
        b.nchunks += 1
    b.nsubqueues = nsubqueues
    s.last_batch = b.number
    return True


cdef inline void head_take(taken_batch *b, subqueue *s) noexcept nogil:
    """Take the head of a sub-queue that is not empty, after head_reserve(). The caller continues as after
    head_pop()."""
    cdef taken_item *h = b.items + b.n
    h.item = head_pop(b.q, s)
    slot = <uint32_t>(s.head_idx - 1)
    h.s = s
    h.timestamp = chunk_timestamps(s.head)[slot] if s.timestamped else 0
    h.size = chunk_sizes(s.head, s.timestamped)[slot] if s.sized else 0
    h.given_back = False
    if s.owner != NULL:
        keep(<uintptr_t>s.owner)
    b.n += 1
    b.q.taken_total += 1


cdef inline int take_what_is_there(taken_batch *b, bint attached) noexcept nogil:
    """Take what is there, up to the limit. MT_OK: at least one item. MT_EMPTY: none. MT_NOMEM."""
    cdef wait_node *to_post = NULL
    cdef int64_t before = b.n, limit
    cdef int r = MT_OK
    lock_take(b.q, attached)
    # What is put from here on is left: with fast putters the loop might not end.
    limit = b.n + head_qsize(b.q, b.limit - b.n)
    while b.n < limit:
        s = head_next(b.q, True)
        if s == NULL:
            break
        if not head_reserve(b, s):
            r = MT_NOMEM
            break
        head_take(b, s)
        head_popped_and_served(b.q, s, 1, attached, &to_post)
    if b.n > before:
        head_propagate(b.q, &to_post)
    elif r == MT_OK:
        r = MT_EMPTY
    unlock_take_and_post(b.q, to_post)
    return r


cdef inline void give_back(taken_batch *b, bint objects, bint attached) noexcept nogil:
    """Give back all items, atomically for getters, and end the batch. Items of a sub-queue that an immediate shutdown
    has emptied are dropped, as its others were. objects: items are references."""
    cdef wait_node *to_post = NULL
    cdef int64_t i = b.n
    if b.n:
        lock_take(b.q, attached)
        while i > 0:
            i -= 1
            head_give_back(b, b.items + i, attached, &to_post)
        head_propagate(b.q, &to_post)
        head_wake_joiners(b.q, &to_post)
        unlock_take_and_post(b.q, to_post)
    for i in range(b.n):
        if objects and not b.items[i].given_back:
            b.items[i].given_back = True    # first: the drop may run the collector, which visits what the batch has
            drop(b.items[i].item)
    end_batch(b)


cdef inline void head_give_back(taken_batch *b, taken_item *h, bint attached, wait_node **to_post) noexcept nogil:
    cdef queue *q = b.q
    cdef subqueue *s = h.s
    lock_put(q, s, attached)
    q.taken_total -= 1
    if not s.closed_flags & MT_CLOSED_STOPPED:
        if s.head == NULL or s.head_idx == 0:
            head_add_chunk(b, s)
        head_fill_slot(q, s, h.item, h.timestamp, h.size)
        h.given_back = True
        if s.attached:
            head_list_after_put(q, s, to_post)
    if not s.attached or not h.given_back:
        head_count_as_done(q, 1)        # detaching, or the shutdown, counted those inside
    unlock_put(q, s)


cdef inline void head_add_chunk(taken_batch *b, subqueue *s) noexcept nogil:
    """Make one of the batch's chunks the first of a sub-queue, all of its slots free. Both locks are held."""
    cdef chunk *c = b.chunks
    b.chunks = <chunk *>c.base
    b.nchunks -= 1
    if s.head != NULL:
        head_link_chunk(s, c)
        return
    c.base = mt_load_relaxed_i64(&s.tail_seq) - c.cap       # relaxed because: written under the put lock
    s.head = s.tail = c
    s.head_idx = <uint16_t>c.cap
    s.tail_idx = c.cap


cdef inline void end_batch(taken_batch *b) noexcept nogil:
    """Free the batch, but not its items: the caller owns them. No lock is held."""
    cdef chunk *c = b.chunks
    cdef taken_item *items = b.items
    cdef int64_t i, n = b.n
    b.items = NULL
    b.chunks = NULL
    b.n = b.capacity = b.nchunks = b.nsubqueues = 0
    while c != NULL:
        b.chunks = <chunk *>c.base
        chunk_free(c)
        c = b.chunks
    for i in range(n):
        if items[i].s.owner != NULL:
            drop(<uintptr_t>items[i].s.owner)       # may free the sub-queue
    free(items)
