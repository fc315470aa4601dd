# 64-bit integers of Python: one by one, and runs of them in buffers and sequences. Private; for faces.
from cpython.number cimport PyNumber_Index
from libc.stdint cimport int64_t, uintptr_t


cdef inline int64_t int64_of(object item) except? -7:
    """What an IndexMultiQueue holds, or TypeError, or OverflowError."""
    try:
        item = PyNumber_Index(item)
    except TypeError:
        raise TypeError(f"item={item!r}: an IndexMultiQueue holds 64-bit integers, not {type(item).__name__}") from None
    try:
        return item
    except OverflowError:
        raise OverflowError(f"item={item!r}: an IndexMultiQueue holds integers of at most 64 bits") from None


cdef int open_int64(object source, Py_buffer *view, bint writable) except -1


cdef class Int64s:
    """Integers that lie one behind the other, in memory of their owner or in a copy."""
    cdef const uintptr_t *items
    cdef int64_t n
    cdef uintptr_t *copy        # or NULL
    cdef Py_buffer view
    cdef bint viewed            # `view` is open

cdef Int64s int64s_of(object items)
