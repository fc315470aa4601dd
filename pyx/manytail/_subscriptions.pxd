# What _consumers uses of _subscriptions. Private.
cimport cython
from libc.stdint cimport int64_t

from manytail._c cimport mt_atomic_i64, mt_atomic_u32
from manytail._entries cimport Entry, EntryQueue
from manytail._entry cimport entry
from manytail._eq cimport acquired_entry, cursor, effects, selector_results, shared_credit, subscription
from manytail._root cimport Root
from manytail._waiting cimport Waiting, wait_point


cdef enum search_way:
    BY_CURSOR                   # along its own cursor, or the queue's
    BELOW                       # skipping what filtered subscriptions of a higher priority want: subscription.below
    BY_HEAPS                    # with groups: the heap of what anybody may take, and the heap of its own groups
    WALK                        # from the head, with a temporary cursor: what it skips, the next search may take

ctypedef struct judgement:      # what selectors said about the entry that was judged last
    entry *e                    # pinned; NULL: none was judged
    int64_t refused             # WANTED, NOT_WANTED, or the id of the rival that wants it


@cython.final
cdef class Credit(Root):
    cdef shared_credit p
    cdef mt_atomic_u32 listens  # whether its Consumer has a listener
    cdef int64_t lingering      # gets that linger; under the credit's lock
    cdef mt_atomic_i64 turn     # of the Consumer's gets: the number of the subscription that is tried first
    cdef tuple shared_by        # the open subscriptions of the Consumer; never changed, but replaced
    cdef bint lasts(self) noexcept
    cdef int64_t version(self) noexcept
    cdef tuple subscriptions(self)
    cdef bint replace(self, tuple was, tuple by)
    cdef void interest_changed(self) noexcept
    cdef void count_lingering(self, int64_t change) noexcept
    cdef int notify(self) except -1


@cython.final
cdef class Subscription(Root):
    cdef subscription s
    cdef EntryQueue queue_
    cdef object selector
    cdef object origin
    cdef Credit credit          # shared with the other subscriptions of a Consumer, or None
    cdef bint open
    cdef bint quiet
    cdef mt_atomic_i64 lingering    # gets that linger; changed under the order lock
    cdef object __weakref__
    cdef object get_slow(self, int64_t deadline, int r, wait_point *p)
    cdef int refuse(self, int r) except -1
    cdef int take(self, acquired_entry *t, wait_point *p) except -2
    cdef int take_asking(self, acquired_entry *t, wait_point *p, bint woken, int r) except -2
    cdef int take_slow(self, acquired_entry *t, int64_t *events_seen) except -2
    cdef int search(self, cursor *c, search_way way, acquired_entry *t, int64_t *events_seen) except -2
    cdef bint wanted_left(self, bint available) except -1
    cdef void interest_changed(self) noexcept
    cdef bint listens(self) noexcept
    cdef bint lasts(self) noexcept
    cdef entry *locked_candidate(self, cursor *c, search_way way, int *r) noexcept nogil
    cdef bint locked_obtain(self, entry *e, cursor *c, search_way way, acquired_entry *t, effects *fx) noexcept nogil
    cdef int judge_unlocked(self, entry *e, bint asks_rivals, judgement *last) except -1
    cdef int64_t ask(self, acquired_entry *t, selector_results *rivals, bint noted) except -2
    cdef void place(self, wait_point *p) noexcept
    cdef void release_unclaimed(self) noexcept
    cdef int linger(self, list out, int64_t n, int64_t deadline) except -1
    cdef int linger_counted(self, list out, int64_t n, int64_t deadline) except -1
    cdef int linger_with_credit(self, list out, int64_t n, int64_t deadline) except -1
    cdef void count_lingering(self, int64_t change) noexcept
    cdef void end_lingering(self) noexcept
    cdef int forward(self) except -1
    cdef object entry_or_wait(self, Waiting last)
    cdef int set_suspended(self, bint suspended) except -1


# How a subscription of a Consumer waits. _consumers.pyx sets this when it is imported: _subscriptions does not depend
# on it.
ctypedef struct consumer_calls:
    object (*get)(Credit, tuple subscriptions, int64_t deadline, bint lingers)
    object (*aget)(Credit, tuple subscriptions)

cdef consumer_calls consumer_waits

cdef Subscription open_subscription(EntryQueue queue, int64_t prefetch, object selector, bint browse, bint exclusive,
                                    int64_t priority, object start, object origin, Credit credit)
cdef object iterate(object getter)
cdef Credit new_credit()
