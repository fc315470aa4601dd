"""What the life of every structure has in common: forks, arguments, errors, warnings; and the state of the process that
all share."""
from cpython.ref cimport PyObject
from libc.stdint cimport int64_t

from manytail._waiting cimport this_is_the_main_thread, write_unraisable

import os
from operator import index
from weakref import WeakValueDictionary

cdef extern from "Python.h":
    int PyErr_WarnEx(PyObject *category, const char *message, Py_ssize_t stack_level) noexcept
    void PyErr_Fetch(PyObject **, PyObject **, PyObject **)
    void PyErr_Restore(PyObject *, PyObject *, PyObject *)
    void PyErr_WriteUnraisable(object)
    PyObject *PyExc_ResourceWarning

cdef extern from "manytail/pygc.h":
    bint mt_finalizing()            # interpreter exit has begun


# ---------------------------------------------------------------------------------------------------------------- forks
# The one place that registers with os. What the modules registered runs in their order, so a pool finds its queue
# mended.
cdef list before_fork = [], after_in_parent = [], after_in_child = []
cdef object owners = WeakValueDictionary()      # id -> object that is told


cdef int at_fork(object in_child, object before=None, object in_parent=None) except -1:
    """Call these around each os.fork(), for as long as the process lives."""
    after_in_child.append(in_child)
    if before is not None:
        before_fork.append(before)
    if in_parent is not None:
        after_in_parent.append(in_parent)
    return 0


cdef int tell_of_forks(object owner) except -1:
    """In the child of a fork owner._after_fork() is called, after all functions of at_fork(), if the owner lives."""
    owners[id(owner)] = owner
    return 0


cdef int call_all(list functions) except -1:
    """What one raises is reported, and keeps nobody else from being called."""
    for function in functions:
        try:
            function()
        except BaseException as error:
            write_unraisable(error, function)
    return 0


def _before_fork():
    call_all(before_fork)


def _after_fork_in_parent():
    call_all(after_in_parent)


def _after_fork_in_child():
    this_is_the_main_thread()
    call_all(after_in_child)
    call_all([owner._after_fork for owner in list(owners.values())])


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)


# ------------------------------------------------------------------------------------------------- arguments and errors
cdef int64_t int_argument(str name, object value, str expected) except? -7:
    """A 64-bit integer; floats and strings are refused by name."""
    try:
        value = index(value)
    except TypeError:
        raise TypeError(f"{name}={value!r}: expected {expected}, not {type(value).__name__}") from None
    if not -(1 << 63) <= value < 1 << 63:
        raise OverflowError(f"{name}={value!r}: expected {expected} of at most 64 bits")
    return value


cdef object unpicklable(object it, str why="it lives in one process; "
                        "make it inside the process or task that uses it, and send the items instead"):
    """The error for copy and pickle. A copy would share what the original owns, and end it when it is dropped."""
    return TypeError(f"cannot copy or pickle {type(it).__name__!r} object: {why}")


cdef int raise_pending() except -1:
    """Raise the exception that a signal handler left set."""
    return -1


cdef void unclosed(str text) noexcept:
    """A ResourceWarning from a finalizer. One that is an error goes to sys.unraisablehook; a pending exception stays
    pending. Nothing is said once the interpreter has begun to end: the warnings module may be gone."""
    cdef PyObject *kind
    cdef PyObject *error
    cdef PyObject *trace
    if mt_finalizing():
        return
    PyErr_Fetch(&kind, &error, &trace)
    try:
        if PyErr_WarnEx(PyExc_ResourceWarning, text.encode("utf-8", "backslashreplace"), 1) < 0:
            PyErr_WriteUnraisable(text)
    finally:
        PyErr_Restore(kind, error, trace)
