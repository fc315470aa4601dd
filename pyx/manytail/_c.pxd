# Declarations of include/manytail/*.h for Cython, each in this one place; the headers document them. Private. For
# kernels: of CPython there are only its thread primitives, no objects (those are in _cpython.pxd).
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t


cdef extern from "manytail/atomics.h" nogil:
    ctypedef struct mt_atomic_i64:
        pass
    ctypedef struct mt_atomic_u32:
        pass
    ctypedef struct mt_atomic_uptr:
        pass
    int64_t mt_load_relaxed_i64(mt_atomic_i64 *)
    int64_t mt_load_acquire_i64(mt_atomic_i64 *)
    int64_t mt_load_seq_cst_i64(mt_atomic_i64 *)
    void mt_store_relaxed_i64(mt_atomic_i64 *, int64_t)
    void mt_store_release_i64(mt_atomic_i64 *, int64_t)
    int64_t mt_xchg_seq_cst_i64(mt_atomic_i64 *, int64_t)
    bint mt_cas_acquire_i64(mt_atomic_i64 *, int64_t *seen, int64_t to)     # only mutants call it: tests/mutants.toml
    bint mt_cas_release_i64(mt_atomic_i64 *, int64_t *seen, int64_t to)     # likewise
    bint mt_cas_acq_rel_i64(mt_atomic_i64 *, int64_t *seen, int64_t to)
    int64_t mt_fetch_add_relaxed_i64(mt_atomic_i64 *, int64_t)
    int64_t mt_fetch_add_acq_rel_i64(mt_atomic_i64 *, int64_t)
    uint32_t mt_load_relaxed_u32(mt_atomic_u32 *)
    void mt_store_relaxed_u32(mt_atomic_u32 *, uint32_t)
    uint32_t mt_load_seq_cst_u32(mt_atomic_u32 *)
    uint32_t mt_xchg_seq_cst_u32(mt_atomic_u32 *, uint32_t)
    uint32_t mt_fetch_add_relaxed_u32(mt_atomic_u32 *, uint32_t)
    uint32_t mt_fetch_add_acq_rel_u32(mt_atomic_u32 *, uint32_t)
    uint32_t mt_load_acquire_u32(mt_atomic_u32 *)
    void mt_store_release_u32(mt_atomic_u32 *, uint32_t)
    uintptr_t mt_load_relaxed_uptr(mt_atomic_uptr *)
    uintptr_t mt_load_acquire_uptr(mt_atomic_uptr *)
    uintptr_t mt_load_seq_cst_uptr(mt_atomic_uptr *)
    void mt_store_relaxed_uptr(mt_atomic_uptr *, uintptr_t)
    void mt_store_release_uptr(mt_atomic_uptr *, uintptr_t)
    bint mt_cas_acq_rel_uptr(mt_atomic_uptr *, uintptr_t *expected, uintptr_t)
    uint32_t mt_xchg_acq_rel_u32(mt_atomic_u32 *, uint32_t)
    uintptr_t mt_xchg_acq_rel_uptr(mt_atomic_uptr *, uintptr_t)
    void mt_prefetch_write(void *)
    void mt_prefetch_read(const void *)
    int mt_first_bit(uint64_t)
    bint likely "MT_LIKELY" (bint)
    bint unlikely "MT_UNLIKELY" (bint)

cdef extern from "manytail/delays.h" nogil:
    void mt_point()

cdef extern from "manytail/backoff.h" nogil:
    ctypedef struct mt_backoff:
        uint32_t step
        uint32_t limit
    bint mt_backoff_spin(mt_backoff *)
    void mt_yield_cpu()

cdef extern from "manytail/lock.h" nogil:
    ctypedef struct mt_lock_node:
        void *sem
    ctypedef struct mt_lock:
        pass
    const bint MT_COUNTS_LOCKS
    bint mt_lock_try(mt_lock *l)
    bint mt_lock_try_unused(mt_lock *l)
    bint mt_lock_enqueue(mt_lock *l, mt_lock_node *n)
    mt_lock_node *mt_unlock(mt_lock *l)
    void mt_lock_reset(mt_lock *l)

cdef extern from "manytail/epoch.h" nogil:
    ctypedef struct mt_retired:
        pass
    ctypedef struct mt_pin:
        pass
    ctypedef struct mt_epoch:
        pass
    mt_pin *mt_epoch_pin(mt_epoch *)
    void mt_epoch_retire(mt_pin *, mt_retired *, void (*destroy)(mt_retired *) noexcept nogil)
    mt_retired *mt_epoch_unpin(mt_epoch *, mt_pin *)
    mt_retired *mt_epoch_destroy(mt_epoch *)
    void mt_epoch_after_fork(mt_epoch *, bint keep_rest)
    void mt_retired_free(mt_retired *)

cdef extern from "manytail/clock.h" nogil:
    int64_t mt_now_ns()
    int64_t mt_now_coarse_ns()

cdef extern from "manytail/multiqueue.h" nogil:
    enum: MT_OK, MT_EMPTY, MT_FULL, MT_SHUTDOWN, MT_TIMEOUT, MT_NOMEM, MT_BADARG, MT_INTERRUPTED
    void *mt_alloc_aligned(size_t)
    void mt_free_aligned(void *)

cdef extern from "manytail/objects.h" nogil:
    void keep "MT_KEEP" (uintptr_t item)        # adds a reference to an object; the caller is attached
    void drop "MT_DROP" (uintptr_t item)        # drops one, which may run Python code: attached, no lock held
    const bint MT_FREE_THREADED
    const bint GIL_LOCKED "MT_GIL_LOCKED"
    int64_t ps_xchg_i64(mt_atomic_i64 *, int64_t)
    uint32_t ps_xchg_u32(mt_atomic_u32 *, uint32_t)
    int64_t ps_fetch_add_i64(mt_atomic_i64 *, int64_t)
    uint32_t ps_fetch_add_u32(mt_atomic_u32 *, uint32_t)
    bint ps_cas_i64(mt_atomic_i64 *, int64_t *expected, int64_t)
    bint ps_cas_u32(mt_atomic_u32 *, uint32_t *expected, uint32_t)
    bint ps_cas_uptr(mt_atomic_uptr *, uintptr_t *expected, uintptr_t)

cdef extern from "Python.h" nogil:
    ctypedef void *PyThread_type_lock
    ctypedef enum PyLockStatus:
        PY_LOCK_FAILURE, PY_LOCK_ACQUIRED, PY_LOCK_INTR
    PyThread_type_lock PyThread_allocate_lock()
    void PyThread_free_lock(PyThread_type_lock)
    PyLockStatus PyThread_acquire_lock_timed(PyThread_type_lock, long long microseconds, int intr_flag)
    void PyThread_release_lock(PyThread_type_lock)
    unsigned long PyThread_get_thread_ident()
    ctypedef struct PyThreadState:
        pass
    PyThreadState *PyEval_SaveThread()
    void PyEval_RestoreThread(PyThreadState *)
