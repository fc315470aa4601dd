"""The nogil kernels (MultiQueue, work pool, entry queue, PubSubQueue) as one C file, without an interpreter and Python objects.

What is compiled is what ships: the very .pxd files of pyx/manytail. drive*.c (sanitizers) and model/*.cpp (the model checker) include the C or C++
that Cython makes of this file by kernels.h, after a platform.h of their own has given the few PyThread calls in it a meaning.
"""
from libc.stdint cimport int64_t, uint32_t

cimport manytail._eq_nogil
cimport manytail._lock
cimport manytail._mq
cimport manytail._ps
cimport manytail._runtime
cimport manytail._waiting
cimport manytail._wp
from manytail._c cimport *
from manytail._wait cimport NEVER

# The wait lists of _ps.pxd.
cdef unsigned long main_thread = 0
cdef bint semaphores_miss_signals = False

cdef extern from "platform.h" nogil:
    int run_signal_handlers()               # -1: one raised, by chance
    void post_loop_waiter(void *owned)

include "_wait_core.pxi"
