# The base of the extension types. Private; for faces, never for kernels.
cimport cython

from manytail._cpython cimport visitproc


@cython.trashcan(True)
cdef class Root:
    # The name of an entry queue, the key of a sub-queue. Also because an object attribute makes Cython's type one with
    # garbage collection.
    cdef object name_
    cdef int visit(self, visitproc visit, void *arg) noexcept
    cdef void break_cycles(self) noexcept

cdef int clear_by_breaking_cycles(tuple types) except -1
