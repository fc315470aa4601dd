# Declarations of include/manytail/pygc.h and of CPython's API for Cython. Private; for faces, never for kernels.
from cpython.ref cimport PyObject
from libc.stdint cimport uintptr_t


cdef extern from "manytail/pygc.h":
    ctypedef int (*visitproc)(PyObject *, void *) noexcept
    ctypedef int (*traverseproc)(PyObject *, visitproc, void *) noexcept
    ctypedef int (*inquiry)(PyObject *) noexcept
    ctypedef struct PyTypeObject:
        pass
    # returns NULL with an exception set
    ctypedef PyObject *(*mt_method)(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *names) noexcept
    mt_method mt_patch_method(PyTypeObject *, const char *name, mt_method shortcut) except NULL
    PyObject *mt_new_none() noexcept
    ctypedef void (*destructor)(PyObject *) noexcept
    destructor mt_dealloc_of(PyTypeObject *)
    void mt_patch_dealloc(PyTypeObject *, destructor)
    void mt_dealloc_nested(PyObject *, destructor again, destructor by_recursion)
    traverseproc mt_patch_traverse(PyTypeObject *, traverseproc)
    void mt_patch_clear(PyTypeObject *, inquiry)
    void mt_patch_new(PyTypeObject *)
    int mt_visit_one(void *, visitproc, void *) noexcept
    object mt_owned(PyObject *)
    object mt_owned_item(uintptr_t)
    void mt_disown(object)
    void mt_return_raising(PyObject *) noexcept     # ends a function that returns an object
    tuple mt_pair_reserve()
    void mt_pair_fill(PyObject *pair, uintptr_t first, uintptr_t second)
    list mt_list_reserve(Py_ssize_t)
    list mt_list_reserve_by(list, Py_ssize_t)
    list mt_list_reserve_more(list, Py_ssize_t)
    uintptr_t *mt_list_slots(PyObject *) nogil
    void mt_list_filled(PyObject *, Py_ssize_t) nogil
    void mt_let_go_of_gil_first() nogil

cdef extern from "Python.h":
    int PyObject_GenericSetAttr(object, object, PyObject *) except -1
    Py_ssize_t Py_REFCNT_raw "Py_REFCNT" (PyObject *)
    void Py_INCREF_raw "Py_INCREF" (PyObject *) nogil
    void Py_DECREF_raw "Py_DECREF" (PyObject *) nogil      # attached callers only
    bint PyObject_IS_GC(PyObject *)
    PyObject **PySequence_Fast_ITEMS(object)
    PyObject *PyLong_FromLongLong(long long) noexcept
