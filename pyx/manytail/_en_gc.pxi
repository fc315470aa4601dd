# What C memory holds is shown to the garbage collector: the entries of a queue, the keys they have in common, and the coroutines that wait.
# The world stands still meanwhile (free-threaded build) or the GIL is held; nothing is counted or locked here.

cdef traverseproc base_queue_traverse, base_sub_traverse, base_credit_traverse


cdef extern from *:
    """
    static inline int mt_visit_one(void *o, visitproc visit, void *arg) {
        Py_VISIT((PyObject *)o);
        return 0;
    }
    """
    int mt_visit_one(void *, visitproc, void *) noexcept


cdef int visit_entry(entry *e, visitproc visit, void *arg) noexcept:
    cdef int r = mt_visit_one(e.item, visit, arg)
    if r == 0:
        r = mt_visit_one(e.extra, visit, arg)
    if r == 0 and e.keyed:
        r = mt_visit_one(key_slot(e)[0], visit, arg)
    return r


cdef int visit_keys(key_table *t, visitproc visit, void *arg) noexcept:
    cdef int64_t i
    cdef int r = 0
    for i in range(t.nbuckets):
        if r == 0:
            r = visit_key_chain(t.buckets[i], visit, arg)
    return r


cdef int visit_key_chain(key_record *k, visitproc visit, void *arg) noexcept:
    cdef int r = 0
    while k != NULL and r == 0:
        r = mt_visit_one(k.key, visit, arg)
        k = k.next
    return r


cdef int queue_traverse(PyObject *self, visitproc visit, void *arg) noexcept:
    cdef entry_queue *q = (<EntryQueue>self).q
    cdef entry *e
    cdef uint32_t i
    cdef int r = base_queue_traverse(self, visit, arg)
    if r or q == NULL:
        return r
    for i in range(q.nlevels):
        e = q.lists[i].first
        while e != NULL and r == 0:
            r = visit_entry(e, visit, arg)
            e = e.next
    e = q.for_thread
    while e != NULL and r == 0:
        r = visit_entry(e, visit, arg)
        e = e.after.dead_next
    if r == 0:
        r = visit_key_chain(q.keys_for_thread, visit, arg)
    if r == 0:
        r = visit_keys(&q.group_keys, visit, arg)
    if r == 0:
        r = visit_keys(&q.value_keys, visit, arg)
    return r if r else mt_visit_waiters(&q.putters, visit, arg)


cdef int queue_clear(PyObject *self) noexcept:
    """Break cycles at the entries and the dead letter; finalizers may still use the queue."""
    (<EntryQueue>self).drop_all()
    return 0


cdef int sub_traverse(PyObject *self, visitproc visit, void *arg) noexcept:
    cdef int r = base_sub_traverse(self, visit, arg)
    return r if r else mt_visit_waiters(&(<Subscription>self).s.waiters, visit, arg)


cdef int credit_traverse(PyObject *self, visitproc visit, void *arg) noexcept:
    cdef int r = base_credit_traverse(self, visit, arg)
    return r if r else mt_visit_waiters(&(<Credit>self).p.waiters, visit, arg)


base_queue_traverse = mt_traverse_of(<PyTypeObject *>EntryQueue)
for queue_type in (EntryQueue, PriorityEntryQueue, SortedEntryQueue, LastValueQueue):
    mt_patch_gc(<PyTypeObject *>queue_type, queue_traverse, queue_clear)
del queue_type
base_sub_traverse = mt_traverse_of(<PyTypeObject *>Subscription)
base_credit_traverse = mt_traverse_of(<PyTypeObject *>Credit)
mt_patch_gc(<PyTypeObject *>Credit, credit_traverse, mt_clear_of(<PyTypeObject *>Credit))
mt_patch_gc(<PyTypeObject *>Subscription, sub_traverse, mt_clear_of(<PyTypeObject *>Subscription))

for closed_type in (Entry, EntryIterator, Extra, Subscription, Credit, Browser, Gate):
    mt_patch_new(<PyTypeObject *>closed_type)
del closed_type


# ------------------------------------------------------------------------------------------------------------------ fork
def _after_fork_in_child():
    forget_other_threads(&registry, this_thread())
    timer.after_fork()
    dead_letters.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
