# What _consumers uses of _subscriptions. Private.
cimport cython
from libc.stdint cimport int64_t

from manytail._c cimport mt_atomic_i64, mt_atomic_u32
from manytail._entries cimport Entry, EntryQueue
from manytail._entry cimport entry
from manytail._eq cimport acquired_entry, cursor, effects, shared_credit, subscription
from manytail._eq_get cimport search_way
from manytail._root cimport Root
from manytail._waiting cimport GetMany, Waiting, wait_point


@cython.final
cdef class Credit(Root):
    cdef shared_credit p
    cdef mt_atomic_u32 listens  # whether its Consumer has a listener
    cdef int64_t lingering      # gets that linger, or will; under the credit's lock
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
    cdef mt_atomic_i64 lingering    # gets that linger, or will; changed under the order lock
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
    cdef bint locked_obtain(self, entry *e, cursor *c, search_way way, acquired_entry *t, effects *fx) noexcept nogil
    cdef void place(self, wait_point *p) noexcept
    cdef void release_unclaimed(self) noexcept
    cdef void count_lingering(self, int64_t change) noexcept
    cdef void end_lingering(self) noexcept
    cdef int forward(self) except -1
    cdef object entry_or_wait(self, Waiting last)
    cdef int set_suspended(self, bint suspended) except -1


# How a subscription of a Consumer waits. _consumers.pyx sets this when it is imported: _subscriptions does not depend
# on it.
ctypedef struct consumer_calls:
    object (*get)(Credit, tuple subscriptions, int64_t deadline)
    GetMany (*get_many)(Credit, tuple subscriptions)
    object (*aget)(Credit, tuple subscriptions)

cdef consumer_calls consumer_waits

cdef Subscription open_subscription(EntryQueue queue, int64_t prefetch, object selector, bint browse, bint exclusive,
                                    int64_t priority, object start, object origin, Credit credit)
cdef object iterate(object getter)
cdef Credit new_credit()
