# The C side of the PubSubQueue as Cython sees it; include/manytail/pubsub.h says what each field means.
cdef extern from *:
    """
    #define MT_PUBSUB_HOLD(item) Py_INCREF((PyObject *)(item))
    """

cdef extern from "manytail/atomics.h" nogil:
    ctypedef struct mt_atomic_i64:
        pass
    ctypedef struct mt_atomic_u32:
        pass
    ctypedef struct mt_atomic_uptr:
        pass
    int64_t mt_load_relaxed_i64(mt_atomic_i64 *)
    void mt_store_relaxed_i64(mt_atomic_i64 *, int64_t)
    int64_t mt_fetch_add_relaxed_i64(mt_atomic_i64 *, int64_t)
    uint32_t mt_load_relaxed_u32(mt_atomic_u32 *)
    uint32_t mt_load_seq_cst_u32(mt_atomic_u32 *)
    void mt_store_relaxed_u32(mt_atomic_u32 *, uint32_t)
    uint32_t mt_xchg_seq_cst_u32(mt_atomic_u32 *, uint32_t)
    uint32_t mt_fetch_add_relaxed_u32(mt_atomic_u32 *, uint32_t)
    uint32_t mt_fetch_add_seq_cst_u32(mt_atomic_u32 *, uint32_t)
    uintptr_t mt_load_relaxed_uptr(mt_atomic_uptr *)
    bint likely "MT_LIKELY" (bint)
    bint unlikely "MT_UNLIKELY" (bint)

cdef extern from "manytail/delays.h" nogil:
    void mt_point()

cdef extern from "manytail/backoff.h" nogil:
    ctypedef struct mt_backoff:
        uint32_t step
        uint32_t limit
    bint mt_backoff_spin(mt_backoff *)

cdef extern from "manytail/epoch.h" nogil:
    ctypedef struct mt_retired:
        pass
    ctypedef struct mt_epoch:
        pass
    void mt_retired_free(mt_retired *)
    void mt_epoch_after_fork(mt_epoch *, int keep_rest)

cdef extern from "manytail/pubsub.h" nogil:
    enum: MT_LAGGED, MT_CLOSED, MT_UNRETAINED
    enum: MT_SLOT_SEAL
    enum: MT_SLOW_BLOCK, MT_SLOW_RAISE, MT_SLOW_DROP
    enum: MT_START_NEXT, MT_START_OLDEST
    enum: MT_TRIM_IDLE
    ctypedef struct mt_pchunk:
        int64_t base
        uint32_t cap
    ctypedef struct mt_subscriber:
        mt_lock lock
        uint32_t closed
        int64_t missed
        int64_t left_at
        mt_waitlist getters
        mt_atomic_u32 waiting
        mt_subscriber *next
    ctypedef struct mt_pubsub:
        mt_atomic_i64 maxsize
        uint32_t serial
        uint32_t slow
        mt_atomic_u32 nwaiting
        mt_atomic_u32 room_waiting
        mt_atomic_u32 trimming
        mt_atomic_u32 nsubs
        mt_atomic_uptr oldest
        int64_t released
        mt_atomic_i64 dropped
        mt_atomic_u32 begun
        mt_lock join_lock
        mt_lock room_lock
        mt_waitlist putters
        mt_pubsub *reg_next
        mt_pubsub *reg_prev
        mt_epoch epoch
    ctypedef struct mt_drops:
        uint32_t n, more, moved
        mt_retired *chunks
        uintptr_t *items
    int mt_pubsub_init(mt_pubsub *, bint serial, int64_t maxsize, uint32_t slow)
    void mt_pubsub_end(mt_pubsub *)
    int64_t mt_pubsub_trimmed(mt_pubsub *)
    int64_t mt_pubsub_cursor(mt_subscriber *)
    int64_t mt_subscriber_at(mt_subscriber *)
    int64_t mt_pubsub_position(mt_pubsub *, mt_retired **)
    int64_t mt_pubsub_oldest(mt_pubsub *, int64_t end)
    int64_t mt_pubsub_room(mt_pubsub *, int64_t position)
    int mt_pubsub_publish_serial(mt_pubsub *, uintptr_t item, int64_t *position)
    int mt_pubsub_publish_run_serial(mt_pubsub *, const uintptr_t *items, int64_t n, int64_t *done)
    int mt_pubsub_publish_parallel(mt_pubsub *, uintptr_t item, int64_t *position, mt_retired **)
    int mt_pubsub_publish_run_parallel(mt_pubsub *, const uintptr_t *items, int64_t n, int64_t *done, int64_t *held, mt_retired **)
    bint mt_pubsub_nobody(mt_pubsub *)
    void mt_pubsub_shut(mt_pubsub *, mt_retired **)
    bint mt_pubsub_is_shut(mt_pubsub *, mt_retired **)
    int mt_subscriber_take(mt_pubsub *, mt_subscriber *, uintptr_t *item)
    bint mt_subscriber_take_alone(mt_pubsub *, mt_subscriber *, uintptr_t *item)
    bint mt_subscriber_take_sole(mt_pubsub *, mt_subscriber *, uintptr_t *item, int *again)
    int mt_subscriber_ready(mt_pubsub *, mt_subscriber *)
    int64_t mt_subscriber_available(mt_pubsub *, mt_subscriber *, int64_t n)
    int64_t mt_subscriber_take_many(mt_pubsub *, mt_subscriber *, uintptr_t *items, int64_t n)
    void mt_subscriber_skip(mt_pubsub *, mt_subscriber *, int64_t position)
    bint mt_pubsub_may_trim(mt_pubsub *, mt_subscriber *, int64_t from_)
    void mt_pubsub_advance(mt_pubsub *, mt_retired **)
    void mt_pubsub_trim(mt_pubsub *, mt_drops *)
    mt_subscriber *mt_pubsub_new_record(mt_pubsub *)
    mt_subscriber *mt_pubsub_records(mt_pubsub *)
    void mt_pubsub_free_record(mt_subscriber *)
    int mt_pubsub_join(mt_pubsub *, mt_subscriber *, int64_t start, mt_retired **)
    bint mt_subscriber_leave(mt_pubsub *, mt_subscriber *)
    mt_pchunk *mt_pchunk_next(mt_pchunk *)
    uintptr_t mt_pchunk_get(mt_pchunk *, uint32_t)

cdef extern from "manytail/multiqueue.h" nogil:
    void *mt_alloc_aligned(size_t)
    void mt_free_aligned(void *)

cdef extern from "manytail/pygc.h":
    ctypedef int (*visitproc)(PyObject *, void *) noexcept
    ctypedef int (*traverseproc)(PyObject *, visitproc, void *) noexcept
    ctypedef int (*inquiry)(PyObject *) noexcept
    ctypedef struct PyTypeObject:
        pass
    void mt_patch_gc(PyTypeObject *, traverseproc, inquiry)
    int mt_visit_waiters(mt_waitlist *, visitproc, void *) noexcept
    traverseproc mt_traverse_of(PyTypeObject *)
    inquiry mt_clear_of(PyTypeObject *)
    object mt_owned_item(uintptr_t)
    list mt_list_reserve(Py_ssize_t)
    uintptr_t *mt_list_slots(PyObject *) nogil
    void mt_list_filled(PyObject *, Py_ssize_t) nogil
    const bint MT_FREE_THREADED
