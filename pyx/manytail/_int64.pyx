"""64-bit integers of Python: one by one, and runs of them in buffers, Arrow arrays and sequences."""
cimport cython
from cpython.buffer cimport (
    PyBUF_FORMAT, PyBUF_STRIDES, PyBUF_WRITABLE, PyBuffer_Release, PyObject_CheckBuffer, PyObject_GetBuffer,
)
from libc.stdint cimport int64_t, uint8_t, uintptr_t
from libc.stdlib cimport free, malloc


@cython.final
cdef class Int64s:
    def __dealloc__(self):
        free(self.copy)
        if self.viewed:
            PyBuffer_Release(&self.view)

    cdef int reserve(self, int64_t n) except -1:
        """Memory for a copy."""
        self.copy = <uintptr_t *>malloc(n * 8 + 1)
        if self.copy == NULL:
            raise MemoryError
        self.items = self.copy
        self.n = n
        return 0


cdef Int64s int64s_of(object items):
    """Of a buffer, an Arrow array or a sequence of ints. None: it is something else."""
    if hasattr(items, "__arrow_c_array__"):
        return of_arrow(items)
    if PyObject_CheckBuffer(items):
        return of_buffer(items)
    if isinstance(items, (list, tuple)):
        return of_ints(tuple(items))
    return None


cdef Int64s of_ints(tuple items):
    """Convert all items before the first is put: if one does not fit, nothing is put."""
    cdef Int64s run = Int64s.__new__(Int64s)
    cdef int64_t i
    run.reserve(len(items))
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

cdef str INT64 = "expected a one-dimensional buffer of int64"
cdef str WRITABLE_INT64 = "expected a one-dimensional writable buffer of int64"


cdef int open_int64(object source, Py_buffer *view, bint writable) except -1:
    """Get the one-dimensional int64 buffer of `source`, or raise TypeError."""
    cdef str expected = WRITABLE_INT64 if writable else INT64
    try:
        PyObject_GetBuffer(source, view, PyBUF_FORMAT | PyBUF_STRIDES | (PyBUF_WRITABLE if writable else 0))
    except (TypeError, ValueError, BufferError) as error:
        raise TypeError(f"{expected}, not {type(source).__name__}: {error}") from None
    if view.ndim == 1 and view.shape != NULL and is_int64(view.format, view.itemsize):
        if view.strides == NULL:        # as ctypes leaves it, whatever was asked for: the items lie side by side
            view.strides = &view.itemsize
        return 0
    found = f"{view.ndim} dimension(s) of {(<bytes>view.format).decode() if view.format else 'B'!r}"
    PyBuffer_Release(view)
    raise TypeError(f"{expected}, not {type(source).__name__} with {found}")


cdef Int64s of_buffer(object items):
    cdef Int64s run = Int64s.__new__(Int64s)
    cdef int64_t i
    open_int64(items, &run.view, False)
    run.viewed = True
    run.n = run.view.shape[0]
    run.items = <const uintptr_t *>run.view.buf
    if run.n > 1 and run.view.strides[0] != 8:
        run.reserve(run.n)
        for i in range(run.n):
            run.copy[i] = <uintptr_t>int64_at(&run.view, i)[0]
    return run


# ---------------------------------------------------------------------------------------------------------------- Arrow
# The Arrow C data interface, the part that a primitive array needs (arrow.apache.org/docs/format/CDataInterface.html).
cdef extern from *:
    """
    typedef struct mt_arrow_schema {
        const char *format, *name, *metadata;
        int64_t flags, n_children;
        struct mt_arrow_schema **children, *dictionary;
    } mt_arrow_schema;
    typedef struct mt_arrow_array {
        int64_t length, null_count, offset, n_buffers, n_children;
        const void **buffers;
    } mt_arrow_array;
    """
    ctypedef struct mt_arrow_schema:
        const char *format
        mt_arrow_schema *dictionary     # NULL unless the array is dictionary-encoded
    ctypedef struct mt_arrow_array:
        int64_t length, null_count, offset
        const void **buffers

cdef extern from "Python.h":
    void *PyCapsule_GetPointer(object, const char *) except NULL


cdef bint arrow_has_nulls(mt_arrow_array *a) noexcept:
    cdef const uint8_t *valid = <const uint8_t *>a.buffers[0]
    cdef int64_t i
    if a.null_count == 0 or valid == NULL:
        return False
    for i in range(a.offset, a.offset + a.length):
        if not (valid[i >> 3] >> (i & 7)) & 1:
            return True
    return False


cdef Int64s of_arrow(object items):
    cdef Int64s run = Int64s.__new__(Int64s)
    run.owner = items.__arrow_c_array__()
    schema_capsule, array_capsule = run.owner
    cdef mt_arrow_schema *schema = <mt_arrow_schema *>PyCapsule_GetPointer(schema_capsule, b"arrow_schema")
    cdef mt_arrow_array *array = <mt_arrow_array *>PyCapsule_GetPointer(array_capsule, b"arrow_array")
    if schema.format[0] != b"l" or schema.format[1] != 0:
        raise TypeError(f"expected an Arrow array of int64, not one of format {(<bytes>schema.format).decode()!r}")
    if schema.dictionary != NULL:       # `format` is that of its indices
        raise TypeError("expected an Arrow array of int64, not a dictionary-encoded one")
    if arrow_has_nulls(array):
        raise TypeError("expected an Arrow int64 array without nulls")
    run.n = array.length
    if run.n:
        run.items = <const uintptr_t *>array.buffers[1] + array.offset
    return run
