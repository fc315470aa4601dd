# Declarations of _entries.pyx for the modules on top of it. Private.
cimport cython
from cpython.ref cimport PyObject
from libc.stdint cimport int64_t, uint32_t, uint64_t

from manytail._entry cimport entry, entry_options
from manytail._eq cimport acquired_entry, effects, entry_queue, eq_registry, selector_results, unlock_order
from manytail._eq_keys cimport key_record, key_search, key_table
from manytail._eq_sorted cimport search_range
from manytail._root cimport Root
from manytail._waiting cimport wait_node, wait_point


@cython.final
cdef class Extra:
    cdef object headers
    cdef object group
    cdef object origin


@cython.final
cdef class Entry:
    cdef EntryQueue q
    cdef object thing
    cdef Extra extra
    cdef entry *e
    cdef uint64_t delivery
    cdef object __weakref__


cdef class EntryQueue(Root):
    cdef entry_queue *q
    cdef object overflow_
    cdef object dead_letter     # or None
    cdef int64_t ttl            # nanoseconds, 0: none
    cdef double resume_at
    cdef bint plain             # puts need no prepare()
    cdef bint begun             # __init__ has set the options; written under the order lock
    cdef object key             # of a sorted or last-value queue
    cdef object __weakref__
    cdef int set_maxsize(self, int64_t maxsize) except -1
    cdef entry *make(self, item, headers, priority, ttl, delay, group, origin, search_range *found) except NULL
    cdef int add_options(self, entry *e, headers, priority, ttl, delay, group, origin, search_range *found) except -1
    cdef int add_extra(self, entry *e, headers, group, origin) except -1
    cdef int add_times(self, entry *e, ttl, delay) except -1
    cdef int prepare(self, entry *e, search_range *found) except -1
    cdef object key_of_item(self, item)
    cdef int free_unadmitted(self, entry *e) except -1
    cdef object admit(self, entry *e, search_range *found, int64_t deadline, bint want_handle)
    cdef int admit_once(self, entry *e, search_range *found, wait_point *p) noexcept
    cdef int admit_slow(self, entry *e, search_range *found, selector_results *v, wait_point *p, int64_t deadline,
                        int r) except -1
    cdef int before_next_try(self, entry *e, search_range *found, wait_point *p, int64_t deadline, int r) except -1
    cdef int abandon_put(self, entry *e, wait_point *p) except -1
    cdef int refuse_put(self, int r) except -1
    cdef entry *make_immediate(self, item, headers, priority, ttl, delay, group, origin,
                               search_range *found) except NULL
    cdef object put_immediate(self, item, block, timeout, headers, priority, ttl, delay, group, origin)
    cdef int hand_over_once(self, entry *e, search_range *found, selector_results *v, wait_point *p) noexcept
    cdef int ask(self, selector_results *v, bint listening) except -1
    cdef int put_one(self, item, int64_t deadline, headers, priority, ttl, delay, group, origin) except -1
    cdef int put_runs(self, tuple items, int64_t deadline, priority, origin, int64_t *count) except -1
    cdef int64_t put_run(self, tuple items, int64_t at, priority, origin) except -1
    cdef int64_t longest_run(self) noexcept nogil
    cdef int free_run(self, entry *e) except -1
    cdef void run_effects(self, effects *fx) noexcept
    cdef void notify_thread(self) noexcept
    cdef void deliver_dead_chain(self, entry *newest) noexcept
    cdef void uncount_dead_letter(self) noexcept nogil
    cdef entry *deliver_dead(self, entry *e) noexcept
    cdef int put_dead(self, entry *dead, entry **dropped, wait_node **to_post) except -1
    cdef int add_dead_letter_extra(self, entry *e, Extra of) except -1
    cdef void put_dead_quietly(self, effects *fx, wait_node **to_post) noexcept
    cdef bint takes_quietly(self, entry *e) noexcept
    cdef bint run_dead_letter(self) noexcept
    cdef key_record *find_key(self, key_table *t, object key) except NULL
    cdef void end_key_search(self, key_table *t, key_search *search) noexcept
    cdef void drop_all(self) noexcept
    cdef int run_due_timers(self) except -1
    cdef int on_timer(self) except -1
    cdef void arm_timer(self) noexcept


cdef inline void unlock_and_run_effects(EntryQueue queue, effects *fx) noexcept:
    """Unlock, and run the effects of the step that lock_for_effects() began."""
    unlock_order(queue.q)
    queue.run_effects(fx)


cdef eq_registry registry           # of the process's queues of objects

# How subscriptions and browsers are made. _subscriptions.pyx sets this when it is imported, because _entries must not
# depend on it.
ctypedef struct subscription_makers:
    object (*subscribe)(EntryQueue, int64_t prefetch, object selector, bint browse, bint exclusive, int64_t priority,
                        object start, object origin)
    object (*browse)(EntryQueue)

cdef subscription_makers makers

cdef bint in_timer_thread() noexcept
cdef void unraisable(object problem, object where) noexcept
cdef entry_options *need_options(entry *e) except NULL
cdef Entry handle_of(EntryQueue queue, acquired_entry *t)
cdef bint judge(EntryQueue queue, object selector, Entry h, bint listening) except -1
cdef void free_results(selector_results *v) noexcept
cdef int append_entry(list entries, Entry h) except -1
cdef int release_all(list entries) except -1
