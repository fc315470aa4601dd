# The ready index: which non-empty sub-queue the next get takes from. Round robin within a priority. Private; _mq.pxd
# uses it.
#
#   best (heap by priority)         level 0: front -> [A] <-> [D] <-> [B] -> (back to A)      the ring of a priority
#      [level 0]                    level 7: front -> [C]
#      /       \
#  [level 7]  ...                   with selection "oldest" a level holds a heap by put time instead of a ring
#
# This replaces the rotation of the LinkedBlockingMultiQueue, which at each get walks over idle sub-queues, and which
# skips a sub-queue when the one before it is removed. Here a get touches only ready sub-queues: the best priority is
# the top of a heap, the next sub-queue is the front of a ring. Joining, leaving and rotating are O(1) ("oldest": O(log
# ready)), plus O(log levels) when the first sub-queue of a priority becomes ready or the last one stops being so.
#
# The take lock guards all of it. Memory for the heaps is reserved when a sub-queue joins its level, so nothing here can
# fail while items move.
#
# Invariants
#   R1  `best` holds the levels with nready > 0. `top` is its first, or NULL.
#   R2  `levels` holds every level, by ascending priority. A level exists as long as nsubs > 0.
#   R3  A listed node is in the ring of its level, or with "oldest" in its heap. nready counts the listed nodes.
from libc.stdint cimport int64_t, uint32_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memmove, memset

from manytail._heap cimport heap, heap_add, heap_item, heap_key, heap_rekey, heap_remove, heap_reserve, heap_set

ctypedef struct ready_node:
    ready_node *next            # in the ring of its level; next and prev are undefined while not listed
    ready_node *prev
    ready_level *level          # its priority's level while attached, else NULL
    uint32_t place              # its index in level.by_time + 1, or 0
    uint32_t listed             # 1: in the ring or heap of its level

ctypedef struct ready_level:
    int64_t priority
    ready_node *front           # the ring: next to be taken from; NULL when nothing is listed, and with "oldest"
    uint32_t nready             # listed nodes
    uint32_t nsubs              # attached sub-queues of this priority
    uint32_t place              # its index in ready_index.best + 1, or 0
    heap by_time                # selection "oldest" only

ctypedef struct ready_index:
    ready_level *top            # the level with the smallest priority among those with nready > 0
    heap best                   # the levels with nready > 0, by priority
    ready_level **levels
    uint32_t nlevels
    uint32_t capacity
    bint oldest                 # selection "oldest": levels order their nodes by put time


cdef inline uint32_t ready_search(ready_index *r, int64_t priority) noexcept nogil:
    """Index of the first level whose priority is not less than `priority`."""
    cdef uint32_t low = 0, high = r.nlevels, middle
    while low < high:
        middle = low + (high - low) // 2
        if r.levels[middle].priority < priority:
            low = middle + 1
        else:
            high = middle
    return low


cdef inline ready_level *ready_new_level(ready_index *r, int64_t priority, uint32_t at) noexcept nogil:
    """Make the level of this priority, at index `at`. NULL: no memory."""
    cdef uint32_t capacity
    if r.nlevels == r.capacity:
        capacity = r.capacity * 2 if r.capacity else 4
        levels = <ready_level **>realloc(r.levels, <size_t>capacity * sizeof(ready_level *))
        if levels == NULL:
            return NULL
        r.levels = levels
        r.capacity = capacity
    if not heap_reserve(&r.best, r.nlevels + 1):
        return NULL
    level = <ready_level *>calloc(1, sizeof(ready_level))
    if level == NULL:
        return NULL
    level.priority = priority
    memmove(r.levels + at + 1, r.levels + at, (r.nlevels - at) * sizeof(ready_level *))
    r.levels[at] = level
    r.nlevels += 1
    return level


cdef inline void ready_drop_level(ready_index *r, ready_level *level) noexcept nogil:
    cdef uint32_t at = ready_search(r, level.priority)
    r.nlevels -= 1
    memmove(r.levels + at, r.levels + at + 1, (r.nlevels - at) * sizeof(ready_level *))
    free(level.by_time.items)
    free(level)


cdef inline ready_level *ready_join_level(ready_index *r, int64_t priority) noexcept nogil:
    """Count one more sub-queue of this priority and return its level, made if missing. NULL: no memory, no change."""
    cdef uint32_t at = ready_search(r, priority)
    cdef ready_level *level = NULL
    if at < r.nlevels and r.levels[at].priority == priority:
        level = r.levels[at]
    else:
        level = ready_new_level(r, priority, at)
        if level == NULL:
            return NULL
    if r.oldest and not heap_reserve(&level.by_time, level.nsubs + 1):
        if level.nsubs == 0:
            ready_drop_level(r, level)
        return NULL
    level.nsubs += 1
    return level


cdef inline void ready_leave_level(ready_index *r, ready_level *level) noexcept nogil:
    level.nsubs -= 1
    if level.nsubs == 0:
        ready_drop_level(r, level)


cdef inline void ready_append(ready_index *r, ready_node *n, int64_t timestamp) noexcept nogil:
    """List the node: last in its ring, or with "oldest" at the place that `timestamp` gives."""
    cdef ready_level *level = n.level
    if r.oldest:
        heap_add(&level.by_time, heap_key(timestamp), n, &n.place)
    elif level.front == NULL:
        level.front = n.next = n.prev = n
    else:
        n.next = level.front
        n.prev = level.front.prev
        n.prev.next = n
        n.next.prev = n
    n.listed = 1
    level.nready += 1
    if level.nready == 1:
        heap_add(&r.best, heap_key(level.priority), level, &level.place)
        r.top = <ready_level *>r.best.items[0].member


cdef inline void ready_remove(ready_index *r, ready_node *n) noexcept nogil:
    cdef ready_level *level = n.level
    if r.oldest:
        heap_remove(&level.by_time, n.place - 1)
    elif level.nready == 1:
        level.front = NULL
    else:
        n.prev.next = n.next
        n.next.prev = n.prev
        if level.front == n:
            level.front = n.next
    n.listed = 0
    level.nready -= 1
    if level.nready == 0:
        heap_remove(&r.best, level.place - 1)
        r.top = <ready_level *>r.best.items[0].member if r.best.n else NULL


cdef inline void ready_replace(ready_index *r, ready_node *old, ready_node *n, int64_t timestamp) noexcept nogil:
    """ready_remove(old) and ready_append(n) in one, where `old` is the only listed node of the level of both."""
    cdef ready_level *level = n.level
    cdef heap_item x
    if r.oldest:
        x.key = heap_key(timestamp)
        x.member = n
        x.place = &n.place
        heap_set(&level.by_time, 0, x)
        old.place = 0
    else:
        level.front = n.next = n.prev = n
    old.listed = 0
    n.listed = 1


cdef inline void ready_rekey(ready_node *n, int64_t timestamp) noexcept nogil:
    """Give a listed node another put time. Selection "oldest" only."""
    heap_rekey(&n.level.by_time, n.place - 1, heap_key(timestamp))


cdef inline ready_node *ready_front(ready_index *r, ready_level *level) noexcept nogil:
    return <ready_node *>level.by_time.items[0].member if r.oldest else level.front


cdef inline void ready_free(ready_index *r) noexcept nogil:
    """All sub-queues have left their levels."""
    free(r.best.items)
    free(r.levels)
    memset(r, 0, sizeof(ready_index))
