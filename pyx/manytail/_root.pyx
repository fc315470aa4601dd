"""Root: the base of the extension types whose objects refer to Python objects from C memory.

The collector calls visit() and break_cycles(), which a type overrides. The tp_traverse that Cython makes calls that of
the base, which is replaced here; so one replacement serves all types. But a type with no_gc_clear has no tp_clear:
clear_by_breaking_cycles() gives it one. visit() runs with all threads stopped, or with the GIL: it takes no lock and
changes no reference count.

A weak reference to an object must be dead before an item of it is released: `__dealloc__` runs with a reference to the
object, so the weak reference would revive it. Cython clears them before the `__dealloc__` of the class that declares
`__weakref__`, but after those of its subclasses. So each class that needs weak references declares them, and Root does
not.

What is nested 200,000 deep, a queue in a queue and so on, is freed without recursion: Cython gives a subclass the
trashcan of its base. Nothing is copied or pickled.
"""
cimport cython
from cpython.ref cimport PyObject

from manytail._cpython cimport *
from manytail._lifecycle cimport unpicklable

from types import GenericAlias


@cython.trashcan(True)
@cython.no_gc_clear
cdef class Root:
    """See above."""

    __class_getitem__ = classmethod(GenericAlias)

    def __reduce__(self):
        raise unpicklable(self)

    def __delattr__(self, name):
        """Cython's setters answer `del` with NotImplementedError."""
        try:
            PyObject_GenericSetAttr(self, name, NULL)
        except NotImplementedError:
            raise AttributeError(f"{type(self).__name__}.{name} cannot be deleted") from None

    cdef int visit(self, visitproc visit, void *arg) noexcept:
        """Visit what C memory refers to, once for each reference."""
        return 0

    cdef void break_cycles(self) noexcept:
        """Drop what a cycle may go through. The object stays usable, for finalizers."""


cdef traverseproc base_traverse


cdef int traverse(PyObject *self, visitproc visit, void *arg) noexcept:
    # Without references it is being freed, and visit() would read what `__dealloc__` has freed. A debug build of
    # CPython visits it then, because Cython tracks it again for the tp_dealloc of the base.
    return base_traverse(self, visit, arg) or (Py_REFCNT_raw(self) != 0 and (<Root>self).visit(visit, arg))


cdef int clear(PyObject *self) noexcept:
    (<Root>self).break_cycles()
    return 0


cdef int clear_by_breaking_cycles(tuple types) except -1:
    for type_ in types:
        mt_patch_clear(<PyTypeObject *>type_, clear)
    return 0


base_traverse = mt_patch_traverse(<PyTypeObject *>Root, traverse)
clear_by_breaking_cycles((Root,))
