# The MultiQueue: many sub-queues that are put to independently, and are got from as one. Private.
#
#   putters --put lock of A--> sub-queue A  [chunk]->[chunk] \
#   putters --put lock of B--> sub-queue B  [chunk]           >-- ready rings --take lock--> getters
#   putters --put lock of C--> sub-queue C  (empty)          /
#
# Source: LinkedBlockingMultiQueue (M. Barrios), after Doug Lea's two-lock LinkedBlockingQueue: one put lock per
# sub-queue, one take lock for all. Different here: nodes hold several items (_chunks.pxd). Ready rings replace the walk
# over all sub-queues (_ready.pxd). No count is written by both sides: a putter publishes `tail_seq`, a getter publishes
# `head_seq`, and each caches the other's number and reads it again only when its copy runs out. A put takes the take
# lock only if it must list its sub-queue, where the original takes it whenever the whole queue is empty.
#
# This file has the structs and the locks. The algorithm, on C structs and nogil, is in the files of one job each:
# _mq_sizes (the sizes of items), _mq_tail (appending), _mq_ready (listed sub-queues), _mq_get, _mq_tasks (join),
# _mq_put, _mq_forks, _mq_life (sub-queues come and go), _mq_changes (while it is used), _mq_clear (clear and discard),
# _mq_iterate, _mq_nogil. How calls wait: _waiting.pxd. The faces are _multiqueue.pyx,
# _queue.pyx, _nogil.pyx (without Python) and _wp.pxd (lanes); the native drivers compile all of it without an
# interpreter. Progress: blocking.
#
# `must_list` is set while a sub-queue is out of its ring because it is empty. A put that finds it set appends and lists
# under both locks, so no getter misses the item. While it is clear, the sub-queue is in its ring, or is kept out of it
# (disabled, detached, stopped), and a put needs the put lock only. One empty sub-queue may stay in its ring: the only
# member of the only ready level. So a queue that is emptied by every get does not pay for listing and unlisting.
#
# GIL-locked queues (`gil_locked` = 1): a queue of Python objects on a build with the GIL. The GIL is the lock: every
# operation is attached and runs no Python code inside, so both locks are not used.
#
# Linearization points: a put, when `tail_seq` is published; a get, when `head_seq` is published, under the take lock;
# an empty get, when it has found, under the take lock, that no sub-queue is listed.
#
# `attached`: the caller is attached to the interpreter, and detaches if it has to wait for a lock. Lock order: take,
# then put. No Python code runs under either. Names: "head_" functions are called with the take lock held, "tail_" ones
# with the put lock. `to_post` collects waiters to post after unlocking.
from libc.stdint cimport INT64_MAX, int64_t, uint16_t, uint32_t, uint64_t, uint8_t, uintptr_t

from manytail._c cimport *
from manytail._chunks cimport *
from manytail._lock cimport enter, leave
from manytail._ready cimport *
from manytail._waiting cimport *

# -------------------------------------------------------------------------------------------------------------- structs
cdef enum:
    # Why a sub-queue accepts no more items: bits of `closed_flags`.
    MT_CLOSED_DETACHED = 1
    MT_CLOSED_SHUTDOWN = 2
    MT_CLOSED_STOPPED = 4           # it gives out none, either

cdef enum:
    # Why a put needs both locks: bits of `must_list`.
    MT_MUST_LIST = 1                # its sub-queue is empty, and is to be listed
    MT_MUST_COUNT = 2               # its sub-queue is not among those that the next qsize counts anew

cdef enum:
    # How a get chooses among the ready sub-queues of one priority: `selection`.
    MT_ROUND_ROBIN = 0
    MT_WEIGHTED = 1
    MT_OLDEST = 2

cdef enum:
    CACHE_LINE = 64

ctypedef struct queue

ctypedef struct subqueue:
    # -- putters' line: written under the put lock
    mt_lock put_lock
    chunk *tail                     # NULL until the first item, and after clear
    uint32_t tail_idx               # next free slot of tail
    uint32_t closed_flags           # MT_CLOSED_*: written under both locks, read under the put lock
    mt_atomic_i64 tail_seq          # position after the newest item; published (release) after its slot is written
    int64_t head_seq_cached         # putters' copy of `head_seq`
    mt_atomic_i64 maxsize           # capacity; <= 0: none; written under both locks
    queue *mq                       # constant; holds a reference
    # What the next put has to do beside appending: MT_MUST_*. Without MT_MUST_LIST it is in its ring, or kept out of it
    # whatever is put. Written under both locks, so constant under either; also read without, as a hint
    mt_atomic_u32 must_list
    uint8_t gil_locked              # constant: mq.gil_locked, whose line getters write
    uint8_t timestamped             # constant: selection "oldest", items get a put time
    uint8_t sized                   # constant: items have sizes, and maxsize bounds their sum
    uint8_t pad0[1]
    # -- getters' line: written under the take lock
    # NULL until the first item: written by the putter that makes the first chunk, before tail_seq
    chunk *head
    uint16_t head_idx               # oldest slot of head; if it is head.cap, the next chunk's first slot
    uint8_t has_tombstones          # ntombstones > 0
    uint8_t bounded                 # maxsize > 0, or sized: gets wake putters; written under both locks
    uint32_t quantum_left           # items left of its current quantum; 0: the next one has not begun
    # Counts the items that left, less those put at the front: tail_seq - head_seq items are inside.
    mt_atomic_i64 head_seq
    int64_t tail_seq_cached         # getters' copy of tail_seq
    ready_node ready                # 32 bytes
    # -- seldom used
    int64_t ntombstones             # discarded slots between head and tail; take lock
    int64_t nfront                  # items ever put at the front; take lock
    int64_t chunks_dropped          # chunks that have left its list, for iterators; take lock
    uint32_t weight                 # >= 1; take lock
    uint32_t enabled                # take lock
    uint32_t attached               # take lock
    uint32_t size_class             # of the newest chunk, without SIZED_CLASS; put lock
    # Only if sized: the sizes of all items that were put and that left, modulo 2**64. The difference is inside.
    uint64_t size_put               # put lock
    mt_atomic_i64 size_removed      # written under the take lock
    int64_t priority                # take lock; kept for a detached handle
    int64_t counted                 # items ever put, when qsize looked last (_mq_ready.pxd); take lock
    subqueue *changed_next          # in mq's list `changed`; take lock
    subqueue *changed_prev
    wait_list not_full              # put lock
    mt_atomic_u32 not_full_waiting  # not_full.n, for getters, which read it without the put lock
    subqueue *all_next              # in mq's list of attached sub-queues, by time of their addition, or of removed ones
    subqueue *all_prev
    void *owner                     # the Python SubQueue (borrowed: it outlives this), or NULL
    void *key                       # its key (borrowed from the owner), or NULL

ctypedef struct queue:
    # -- getters' line: written under the take lock
    mt_lock take_lock
    ready_index ready
    int64_t taken_total             # items handed to getters
    uint32_t gil_locked             # constant: the GIL is the lock
    uint32_t selection              # constant once `begun`
    uint32_t holder_attached        # whether the holder of the take lock is attached, for waiting for a put lock
    # -- seldom written
    wait_list not_empty             # take lock
    wait_list joiners               # take lock
    subqueue *all_first
    subqueue *all_last
    int64_t nsubs                   # attached
    int64_t nenabled                # attached and enabled
    int64_t removed_put             # items ever put into sub-queues that are detached
    int64_t removed_total           # items that clear, discard, remove and shutdown took out: they count as done
    int64_t left_total              # items that left without a get, also those that task_done was called for before
    int64_t counted                 # the sum of `counted` of all attached sub-queues; take lock
    subqueue *changed               # attached ones without MT_MUST_COUNT; take lock
    int64_t done                    # task_done calls
    int64_t bulks                   # bulk operations of detached threads; written attached, under bulk_lock
    uint32_t begun                  # 1: options are set or a sub-queue was added, so they cannot be set; take lock
    uint32_t shut                   # 1: no more puts; take lock
    mt_atomic_u32 refs              # one per handle
    subqueue *removed               # detached sub-queues that are not freed, linked by all_next; take lock
    queue *reg_next                 # every queue of the process, for fork; under the registry's lock
    queue *reg_prev
    # -- written by putters of any sub-queue
    char pad1[CACHE_LINE]
    mt_atomic_i64 clock             # put times, selection "oldest" only
    mt_atomic_uptr spare            # an unused chunk of SPARE_CLASS, or 0


cdef inline subqueue *mt_subqueue_of(ready_node *node) noexcept nogil:
    """The sub-queue whose field `ready` is this node."""
    return <subqueue *>(<char *>node - (<char *>&(<subqueue *>node).ready - <char *>node))


# ---------------------------------------------------------------------------------------------------------------- locks
cdef inline void lock_take(queue *q, bint attached) noexcept nogil:
    enter(&q.take_lock, q.gil_locked, attached)
    if not q.gil_locked:
        q.holder_attached = attached


cdef inline void unlock_take(queue *q) noexcept nogil:
    leave(&q.take_lock, q.gil_locked)


cdef inline void unlock_take_and_post(queue *q, wait_node *to_post) noexcept nogil:
    """Unlock, then wake whoever was notified under the lock."""
    unlock_take(q)
    if to_post != NULL:
        post(to_post)


cdef inline void lock_put(queue *q, subqueue *s, bint attached) noexcept nogil:
    enter(&s.put_lock, s.gil_locked, attached)


cdef inline void unlock_put(queue *q, subqueue *s) noexcept nogil:
    leave(&s.put_lock, s.gil_locked)


cdef inline uint32_t must_list(subqueue *s) noexcept nogil:
    """What the next put has to do under both locks: MT_MUST_*."""
    # relaxed because: its writer holds both locks and the reader one; or it is a guess that is checked under one
    return mt_load_relaxed_u32(&s.must_list)


cdef inline void set_must_list(subqueue *s, bint must) noexcept nogil:
    # relaxed because: written under both locks
    mt_store_relaxed_u32(&s.must_list, must_list(s) & MT_MUST_COUNT | must)
