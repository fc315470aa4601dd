# The nogil API of python/manytail/_multiqueue.pxd: the same kernels without Python objects. Callers hold no thread state.

cdef mt_multiqueue *mt_multiqueue_new() noexcept nogil:
    return <mt_multiqueue *>new_queue(False, False)


cdef void drop_chain(queue *q, mt_chunk *chain, uint32_t first, uint32_t last, mt_drop drop, void *arg, bint attached) noexcept nogil:
    """Hand over and free what taken_cut() cut off. No lock is held while `drop` runs."""
    cdef mt_chunk *following
    cdef uint32_t i, end
    cdef bint unused
    while chain != NULL:
        following = <mt_chunk *>chain.base
        end = chain.cap if following != NULL else last
        for i in range(first, end):
            if drop != NULL and not mt_chunk_is_dead(chain, i):
                drop(mt_chunk_items(chain)[i], arg)
        lock_take(q, attached)
        unused = mt_chunk_unpin(chain)
        unlock_take(q)
        if unused:
            drop_chunk(q, chain)
        chain = following
        first = 0


cdef void drop_items(queue *q, subqueue *s, mt_drop drop, void *arg) noexcept nogil:
    cdef mt_chunk *chain
    cdef uint32_t first = 0, last = 0
    clear_tail(q, s, &chain, &first, &last, False)
    drop_chain(q, chain, first, last, drop, arg, False)


cdef void mt_multiqueue_destroy(mt_multiqueue *mq, mt_drop drop, void *arg) noexcept nogil:
    cdef queue *q = <queue *>mq
    cdef subqueue *s
    if q == NULL:
        return
    while q.all_first != NULL:
        mt_multiqueue_remove(mq, <mt_subqueue *>q.all_first, drop, arg)
    while q.gone != NULL:
        s = q.gone
        drop_left_chunks(q, s)
        free_tail(s, False)
    drop_queue(q, False)


cdef mt_subqueue *mt_multiqueue_add(mt_multiqueue *mq, int priority, int64_t maxsize, int weight) noexcept nogil:
    cdef queue *q = <queue *>mq
    cdef subqueue *s
    if weight < 1:
        return NULL
    s = new_tail(q, priority, maxsize, <uint32_t>weight, True)
    if s == NULL:
        return NULL
    if attach_tail(q, s, False) != MT_OK:
        free_tail(s, False)
        return NULL
    return <mt_subqueue *>s


cdef int mt_multiqueue_remove(mt_multiqueue *mq, mt_subqueue *tail, mt_drop drop, void *arg) noexcept nogil:
    cdef queue *q = <queue *>mq
    cdef subqueue *s = <subqueue *>tail
    if s == NULL or s.mq != q or not detach_tail(q, s, False):
        return MT_BADARG
    drop_items(q, s, drop, arg)
    return MT_OK        # putters may still be on their way out of the structure, so it stays until the queue goes


cdef inline int64_t deadline_in(int64_t timeout_ns) noexcept nogil:
    cdef int64_t now
    if timeout_ns < 0:
        return NEVER
    if timeout_ns == 0:
        return ONCE
    now = mt_now_ns()
    return NEVER if timeout_ns > INT64_MAX - now else now + timeout_ns


cdef int mt_subqueue_put(mt_subqueue *tail, uintptr_t item, int64_t timeout_ns) noexcept nogil:
    cdef subqueue *s = <subqueue *>tail
    cdef queue *q = s.mq
    cdef int r = put_once(q, s, item, False)
    if likely(r != MT_FULL) or timeout_ns == 0:
        return r
    return put_until(q, s, item, False, deadline_in(timeout_ns), False)


cdef int mt_subqueue_put_many(mt_subqueue *tail, const uintptr_t *items, int64_t n, int64_t timeout_ns, int64_t *count) noexcept nogil:
    cdef subqueue *s = <subqueue *>tail
    cdef int64_t put = 0
    cdef int r
    if n < 0 or (n > 0 and items == NULL):
        return MT_BADARG
    r = put_run_until(s.mq, s, items, n, False, deadline_in(timeout_ns), &put, False)
    if count != NULL:
        count[0] = put
    return r


cdef void mt_subqueue_enable(mt_subqueue *tail, bint enabled) noexcept nogil:
    cdef subqueue *s = <subqueue *>tail
    enable_tail(s.mq, s, enabled, False)


cdef int get_or_wait(queue *q, uintptr_t *items, int64_t n, subqueue **tail, int64_t timeout_ns, int64_t *count) noexcept nogil:
    """n == 1 tells the tail; more take what is there after the first."""
    cdef int64_t deadline = NEVER
    cdef mt_waiter *wake = NULL
    cdef int r
    if timeout_ns >= 0:
        deadline = deadline_in(timeout_ns)
    while True:
        lock_take(q, False)
        if tail != NULL:
            count[0] = taken_get(q, items, tail, False, &wake) == MT_OK
        else:
            count[0] = taken_get_many(q, items, n, False, &wake)
        unlock_take(q)
        if wake != NULL:
            post_chain(wake)
            wake = NULL
        if count[0]:
            return MT_OK
        r = wait_ready(q, deadline, False)
        if r != MT_OK:
            return r


cdef int mt_multiqueue_get(mt_multiqueue *mq, uintptr_t *item, mt_subqueue **tail, int64_t timeout_ns) noexcept nogil:
    cdef subqueue *s = NULL
    cdef int64_t count = 0
    cdef int r = get_or_wait(<queue *>mq, item, 1, &s, timeout_ns, &count)
    if tail != NULL:
        tail[0] = <mt_subqueue *>s
    return r


cdef int mt_multiqueue_get_many(mt_multiqueue *mq, uintptr_t *items, int64_t n, int64_t timeout_ns, int64_t *count) noexcept nogil:
    count[0] = 0
    if n <= 0:
        return MT_OK
    return get_or_wait(<queue *>mq, items, n, NULL, timeout_ns, count)


cdef int64_t mt_multiqueue_qsize(mt_multiqueue *mq) noexcept nogil:
    cdef queue *q = <queue *>mq
    cdef int64_t n
    lock_take(q, False)
    n = taken_qsize(q, INT64_MAX)
    unlock_take(q)
    return n


cdef void mt_multiqueue_shutdown(mt_multiqueue *mq, bint immediate) noexcept nogil:
    shut_queue(<queue *>mq, immediate, False)
