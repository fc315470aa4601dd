"""The nogil kernels (MultiQueue, work pool, entry queue, PubSubQueue, the lock of a broker) as one C file, without an interpreter and Python
objects.

What is compiled is what ships: the very .pxd files of pyx/manytail. drive*.c (sanitizers) and model/*.cpp (the model
checker) include the C or C++ that Cython makes of this file by kernels.h, after a platform.h of their own has given the
few PyThread calls in it a meaning.
"""
cimport entries_shim
cimport manytail._chunks
cimport manytail._heap
cimport manytail._lock
cimport manytail._mq_changes
cimport manytail._mq_iterate
cimport manytail._mq_nogil
cimport manytail._ps
cimport manytail._ready
cimport manytail._section_lock
cimport manytail._lifecycle
cimport manytail._waiting
cimport manytail._wp
from manytail._c cimport *
