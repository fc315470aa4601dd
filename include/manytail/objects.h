/* What the kernels know of Python: whether there is a GIL, and how to add and drop a reference to an object.
 *
 * A native driver, which has no interpreter, defines MT_KEEP, MT_DROP and MT_GIL_LOCKED before it includes a kernel.
 * MT_DROP may run Python code (a finalizer): call it with no lock held.
 */
#ifndef MANYTAIL_OBJECTS_H
#define MANYTAIL_OBJECTS_H

#include <Python.h>

#include "atomics.h"

#ifndef MT_KEEP
#define MT_KEEP(item) Py_INCREF((PyObject *)(item))
#define MT_DROP(item) Py_DECREF((PyObject *)(item))
#endif

#ifdef Py_GIL_DISABLED
#define MT_FREE_THREADED 1
#else
#define MT_FREE_THREADED 0
#endif

/* Whether a structure whose items are Python objects uses the GIL instead of its own locks. */
#ifndef MT_GIL_LOCKED
#define MT_GIL_LOCKED (!MT_FREE_THREADED)
#endif

/* The read-modify-writes of such a structure: sequentially consistent, or plain if the GIL orders them. */
#define MT_DEFINE_GIL_LOCKED(S, T, A)                              \
    static inline T ps_xchg_##S(A *p, T v) {                       \
        T was;                                                     \
        if (!MT_GIL_LOCKED) return mt_xchg_seq_cst_##S(p, v);      \
        was = mt_load_relaxed_##S(p);                              \
        mt_store_relaxed_##S(p, v);                                \
        return was;                                                \
    }                                                              \
    static inline T ps_fetch_add_##S(A *p, T v) {                  \
        T was;                                                     \
        if (!MT_GIL_LOCKED) return mt_fetch_add_seq_cst_##S(p, v); \
        was = mt_load_relaxed_##S(p);                              \
        mt_store_relaxed_##S(p, was + v);                          \
        return was;                                                \
    }                                                              \
    static inline int ps_cas_##S(A *p, T *e, T v) {                \
        T was;                                                     \
        if (!MT_GIL_LOCKED) return mt_cas_seq_cst_##S(p, e, v);    \
        was = mt_load_relaxed_##S(p);                              \
        if (MT_UNLIKELY(was != *e)) {                              \
            *e = was;                                              \
            return 0;                                              \
        }                                                          \
        mt_store_relaxed_##S(p, v);                                \
        return 1;                                                  \
    }

MT_DEFINE_GIL_LOCKED(i64, int64_t, mt_atomic_i64)
MT_DEFINE_GIL_LOCKED(u32, uint32_t, mt_atomic_u32)
MT_DEFINE_GIL_LOCKED(uptr, uintptr_t, mt_atomic_uptr)

#undef MT_DEFINE_GIL_LOCKED

#endif
