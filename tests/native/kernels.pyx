"""The nogil kernels of the MultiQueue and the work pool as one C file, without an interpreter and without Python objects.

What is compiled is what ships: the very .pxi files of pyx/manytail. drive.c (sanitizers) and model/*.cpp (the model checker)
include the C or C++ that Cython makes of this file, after a platform.h of their own has given the few PyThread calls in
it a meaning. The two structs of the public API are the private ones here.
"""
from libc.stdint cimport INT64_MAX, INT64_MIN, int64_t, uint8_t, uint16_t, uint32_t, uintptr_t
from libc.string cimport memcpy

from cpython.ref cimport PyObject

# Types and C functions only: nothing of the _wait module is called, its core is included below.
from manytail._wait cimport (
    MT_BADARG, MT_EMPTY, MT_FULL, MT_INTERRUPTED, MT_NOMEM, MT_OK, MT_SHUTDOWN, MT_TIMEOUT,
    MT_WAITER_NOTIFIED, NEVER, ONCE,
    mt_lock, mt_lock_enqueue,
    mt_lock_node, mt_lock_reset, mt_lock_try, mt_now_ns, mt_unlock, mt_waiter, mt_waitlist, mt_waitlist_keep_thread,
    mt_waitlist_leave, mt_waitlist_notify, mt_waitlist_notify_all, mt_waitlist_push,
)

cdef unsigned long main_thread = 0
cdef bint semaphores_miss_signals = False

cdef extern from "manytail/multiqueue.h" nogil:
    ctypedef struct mt_multiqueue:
        pass
    ctypedef struct mt_subqueue:
        pass

ctypedef void (*mt_drop)(uintptr_t item, void *arg) noexcept nogil


cdef extern from "platform.h" nogil:
    int run_signal_handlers()               # -1: one raised, by chance
    void post_loop_waiter(void *owned)
    void Py_INCREF_raw "native_keep" (PyObject *)       # counts what the driver lets go of again


include "_mq_structs.pxi"
include "_wait_core.pxi"
include "_mq_core.pxi"
include "_mq_control.pxi"
include "_mq_capi.pxi"
include "_wp_core.pxi"
