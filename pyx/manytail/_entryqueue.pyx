"""mt_entryqueue_*: the kernel of EntryQueue for Cython and C, without Python objects. Nothing in here is for Python.

The very files that _entries.pyx is made of, compiled once more for callers without a thread state: the order lock is there with the GIL too, and an
item is a number that nobody counts. So the Python classes pay nothing for it. python/manytail/_entryqueue.pxd says what each function does.
"""
from cpython.ref cimport PyObject
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint16_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, realloc

from manytail._multiqueue cimport mt_drop
from manytail._wait cimport (
    MT_BADARG, MT_EMPTY, MT_FULL, MT_NOMEM, MT_OK, MT_SHUTDOWN,
    MT_WAITER_NOTIFIED, NEVER, ONCE,
    lock_slow, lock_slow_heavy, mt_lock, mt_lock_node, mt_lock_reset, mt_lock_try, mt_now_ns, mt_unlock, mt_waiter, mt_waitlist,
    mt_waitlist_keep_thread, mt_waitlist_leave, mt_waitlist_notify, mt_waitlist_notify_all, mt_waitlist_push,
    post_chain, post_lock_node, this_thread, waiter_await_post, waiter_close, waiter_open, waiter_park,
)

import os

cdef extern from *:
    """
    #define MT_EN_DETACHED 1
    #define mt_not_counted(item) ((void)(item))
    /* The kernel is included whole, and not all of it is needed here. */
    #if defined(__GNUC__)
    #pragma GCC diagnostic ignored "-Wunused-function"
    #endif
    """
    void Py_INCREF_raw "mt_not_counted" (PyObject *) nogil

include "_en_structs.pxi"

cdef extern from "manytail/clock.h" nogil:
    int64_t mt_now_coarse_ns()

include "_en_core.pxi"
include "_en_keys.pxi"
include "_en_control.pxi"
include "_en_capi.pxi"


def _after_fork_in_child():
    forget_other_threads(this_thread())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
