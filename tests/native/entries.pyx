"""The kernel of the entry queues as one C file, without an interpreter and without Python objects: what _entryqueue.pyx compiles. drive_entries.c
includes the C that Cython makes of this file, after platform.h.
"""
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint16_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc, realloc

from cpython.ref cimport PyObject

from manytail._entryqueue cimport mt_delivery, mt_drop, mt_entryqueue, mt_entrysub
from manytail._wait cimport (
    MT_BADARG, MT_EMPTY, MT_FULL, MT_INTERRUPTED, MT_NOMEM, MT_OK, MT_SHUTDOWN, MT_TIMEOUT,
    MT_WAITER_NOTIFIED, NEVER, ONCE,
    mt_lock, mt_lock_enqueue, mt_lock_node, mt_lock_reset, mt_lock_try, mt_now_ns, mt_unlock, mt_waiter, mt_waitlist,
    mt_waitlist_keep_thread, mt_waitlist_leave, mt_waitlist_notify, mt_waitlist_notify_all, mt_waitlist_push,
)

cdef unsigned long main_thread = 0
cdef bint semaphores_miss_signals = False

cdef extern from *:
    """
    #define MT_EN_DETACHED 1
    #define mt_not_counted(item) ((void)(item))
    """
    void Py_INCREF_raw "mt_not_counted" (PyObject *) nogil

cdef extern from "platform.h" nogil:
    int run_signal_handlers()               # -1: one raised, by chance
    void post_loop_waiter(void *owned)

cdef extern from "manytail/clock.h" nogil:
    int64_t mt_now_coarse_ns()

include "_en_structs.pxi"
include "_wait_core.pxi"
include "_en_core.pxi"
include "_en_keys.pxi"
include "_en_control.pxi"
include "_en_capi.pxi"
