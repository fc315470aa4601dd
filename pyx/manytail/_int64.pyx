"""64-bit integers of Python: one by one, and runs of them in buffers and sequences."""
cimport cython
from cpython.buffer cimport (
    PyBUF_FORMAT, PyBUF_ND, PyBUF_WRITABLE, PyBuffer_Release, PyObject_CheckBuffer, PyObject_GetBuffer,
)
from libc.stdint cimport int64_t, uintptr_t
from libc.stdlib cimport free, malloc


@cython.final
cdef class Int64s:
    def __dealloc__(self):
        free(self.copy)
        if self.viewed:
            PyBuffer_Release(&self.view)


cdef Int64s int64s_of(object items):
    """Of a buffer or a sequence of ints. None: it is something else."""
    if PyObject_CheckBuffer(items):
        return of_buffer(items)
    if isinstance(items, (list, tuple)):
        return of_ints(tuple(items))
    return None


cdef Int64s of_ints(tuple items):
    """Convert all items before the first is put: if one does not fit, nothing is put."""
    cdef Int64s run = Int64s.__new__(Int64s)
    cdef int64_t i
    run.n = len(items)
    run.items = run.copy = <uintptr_t *>malloc(run.n * 8 + 1)
    if run.copy == NULL:
        raise MemoryError
    for i in range(run.n):
        run.copy[i] = <uintptr_t>int64_of(items[i])
    return run


# -------------------------------------------------------------------------------------------------------------- buffers
cdef bint is_int64(const char *format, Py_ssize_t itemsize) noexcept:
    """Whether the format means native signed 64-bit integers."""
    if format == NULL or itemsize != 8:
        return False
    if (format[0] == b"@" or format[0] == b"=" or (format[0] == b"<" and LITTLE_ENDIAN)
            or (format[0] == b">" and not LITTLE_ENDIAN)):
        format += 1
    return (format[0] == b"q" or format[0] == b"l") and format[1] == 0


cdef int one = 1
cdef bint LITTLE_ENDIAN = (<char *>&one)[0] == 1

cdef str INT64 = "expected a one-dimensional contiguous buffer of int64"
cdef str WRITABLE_INT64 = "expected a one-dimensional contiguous writable buffer of int64"


cdef int open_int64(object source, Py_buffer *view, bint writable) except -1:
    """Get the one-dimensional int64 buffer of `source`, or raise TypeError. Strides are not asked for: then a source
    whose items do not lie side by side refuses."""
    cdef str expected = WRITABLE_INT64 if writable else INT64
    try:
        PyObject_GetBuffer(source, view, PyBUF_FORMAT | PyBUF_ND | (PyBUF_WRITABLE if writable else 0))
    except (TypeError, ValueError, BufferError) as error:
        raise TypeError(f"{expected}, not {type(source).__name__}: {error}") from None
    if view.ndim == 1 and view.shape != NULL and is_int64(view.format, view.itemsize):
        return 0
    found = f"{view.ndim} dimension(s) of {(<bytes>view.format).decode() if view.format else 'B'!r}"
    PyBuffer_Release(view)
    raise TypeError(f"{expected}, not {type(source).__name__} with {found}")


cdef Int64s of_buffer(object items):
    cdef Int64s run = Int64s.__new__(Int64s)
    open_int64(items, &run.view, False)
    run.viewed = True
    run.n = run.view.shape[0]
    run.items = <const uintptr_t *>run.view.buf
    return run
