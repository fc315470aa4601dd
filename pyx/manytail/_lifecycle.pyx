"""What our classes share for their beginning, end, copies and forks, and for their arguments.

    begin           a class of the Python layers runs __init__ once. An extension type has a flag of its own, which it
                    reads and sets under its lock
    unpicklable     what __reduce__ raises: nothing is copied or pickled
    refuse_copy     the same for Python layers, with what to do instead
    at_fork         functions around each fork; nothing else registers with os
    tell_of_forks   a method that is called in the child of a fork
    start_daemon    a thread whose first step the exit of the interpreter waits for; expect_daemon and daemon_began are
                    the parts of it, for a thread that is started in another way
    unclosed        the ResourceWarning of what was not closed
    int_argument    the check of an integer

Closing is each class's own: close() may be called twice, a finalizer closes and then calls unclosed(). The suite
tests/contract/lifecycle finds every public class and tries all of this on it.
"""
from cpython.long cimport PyLong_AsLongLongAndOverflow
from cpython.ref cimport PyObject
from libc.stdint cimport INT64_MIN, int64_t

from manytail._c cimport MT_INTERRUPTED, MT_NOMEM
from manytail._waiting cimport this_is_the_main_thread, write_unraisable

import atexit
import os
from _thread import allocate_lock, start_new_thread
from operator import index
from weakref import ref

cdef extern from "Python.h":
    int PyErr_WarnEx(PyObject *category, const char *message, Py_ssize_t stack_level) noexcept
    void PyErr_Fetch(PyObject **, PyObject **, PyObject **)
    void PyErr_Restore(PyObject *, PyObject *, PyObject *)
    void PyErr_WriteUnraisable(object)
    PyObject *PyExc_ResourceWarning

cdef extern from "manytail/pygc.h":
    bint mt_finalizing()            # interpreter exit has begun


# ---------------------------------------------------------------------------------------------------------------- forks
# The one place that registers with os. Functions run in the order of registration, which is the order of imports: a
# pool is repaired after the queue that it is built on.
cdef list before_fork = [], after_in_parent = [], after_in_child = [], begin_in_child = []
cdef dict owners = {}       # id of a reference -> the reference, to an object whose _after_fork() is called


cdef int at_fork(object in_child, object before=None, object in_parent=None, object begin=None) except -1:
    """Call these functions around each os.fork(), for the rest of the process. begin: in the child, after all others.
    It may start threads: nothing that they wait on is reset beside them."""
    after_in_child.append(in_child)
    if before is not None:
        before_fork.append(before)
    if in_parent is not None:
        after_in_parent.append(in_parent)
    if begin is not None:
        begin_in_child.append(begin)
    return 0


cdef int tell_of_forks(object owner) except -1:
    """Call owner._after_fork() in the child of each fork while the owner lives, after all in_child of at_fork()."""
    reference = ref(owner, forget)
    owners[id(reference)] = reference
    return 0


def forget(reference):
    """The object is gone. Compiled: if a signal handler raised in Python code here, its exception would be lost."""
    owners.pop(id(reference), None)


cdef int call_all(list functions) except -1:
    """Call each one. What one raises is reported; the others are called all the same."""
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
    call_all([owner._after_fork for owner in [reference() for reference in list(owners.values())] if owner is not None])
    call_all(begin_in_child)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)


# ------------------------------------------------------------------------------------------------- arguments and errors
cdef int64_t int_argument(str name, object value, str expected, int64_t least=INT64_MIN) except? -7:
    """`value` as a 64-bit integer. TypeError for floats and strings; OverflowError; ValueError: it is less than
    `least`."""
    cdef int overflow = 0
    if type(value) is not int:
        try:
            value = index(value)
        except TypeError:
            raise TypeError(f"{name}: {value!r} of type {type(value).__name__} (expected: {expected})") from None
    cdef int64_t n = PyLong_AsLongLongAndOverflow(value, &overflow)
    if overflow:
        raise OverflowError(f"{name}: {value!r} (expected: {expected}, in at most 64 bits)")
    if n < least:
        raise ValueError(f"{name}: {value!r} (expected: {expected})")
    return n


cdef int64_t maxsize_argument(object value) except? -7:
    return int_argument("maxsize", value, "an int; 0 or less means no limit")


cdef tuple given_options(str call, dict options, dict defaults):
    """The values of a call's `**options`, in the order of `defaults`, which has all of them."""
    unexpected = set(options) - set(defaults)
    if unexpected:
        raise TypeError(f"{call}() got unexpected options: {', '.join(sorted(unexpected))} "
                        f"(expected: {', '.join(defaults)})")
    return tuple((defaults | options).values())


def after_fork_in_child(function):
    """Call it in the child of each os.fork(), after the structures were reset. No call where there is no fork."""
    at_fork(function)


# ------------------------------------------------------------------------------------------------------ daemon threads
# The exit of CPython 3.13 frees the states of other threads. A thread that begins beside that crashes.
# A held lock for each thread that was started and has not begun. A dict, because its `pop` decides which call counts.
cdef dict unbegun = {}


def expect_daemon():
    """Before a thread is started. Returns a token for daemon_began, which must follow, or the exit does not end."""
    token = allocate_lock()
    token.acquire()
    unbegun[token] = True
    return token


def daemon_began(token):
    """The first step of the thread, or the thread could not be started. The first call counts."""
    if unbegun.pop(token, False):
        token.release()


def start_daemon(function, *arguments):
    """Call the function in a daemon thread. RuntimeError: the system has no more threads.

    It does not wait until the thread has begun, so that no signal handler is served in here."""
    token = expect_daemon()
    try:
        start_new_thread(run_daemon, (token, function, arguments))
    except BaseException:
        daemon_began(token)
        raise


def run_daemon(token, function, arguments):
    daemon_began(token)
    function(*arguments)


@atexit.register
def await_daemons():
    for token in list(unbegun):
        token.acquire()


at_fork(unbegun.clear)


def begin(made):
    """The first statement of `__init__`. RuntimeError: it ran before, or runs in another thread."""
    token = object()
    if made.__dict__.setdefault("_began", token) is not token:  # atomic: of two threads one continues
        raise RuntimeError(f"{type(made).__name__}.__init__ was called before: make another one instead")


cdef object unpicklable(object it, str why="it lives in one process; "
                        "make it inside the process or task that uses it, and send the items instead"):
    """The error for copy and pickle. A copy would share what the original owns, and free it."""
    return TypeError(f"cannot copy or pickle {type(it).__name__!r} object: {why}")


def refuse_copy(made, why, instead):
    """The body of a `__reduce__` of a Python layer, which pickle, copy.copy and copy.deepcopy call."""
    raise unpicklable(made, f"{why}; {instead} instead")


cdef int raise_if_failed(int status) except -1:
    """Raise for MT_NOMEM, and for MT_INTERRUPTED the exception that a signal handler has set. Return other statuses."""
    if status == MT_NOMEM:
        raise MemoryError
    return -1 if status == MT_INTERRUPTED else status


cdef int note_count(object error, int64_t count) except -1:
    """Set error.count, how many items a call has put before this exception; one of the caller's own may refuse it.

    contextlib.suppress would run Python code here: a signal handler may raise there, and its exception has no count."""
    try:
        error.count = count
    except Exception:
        pass
    return 0


cdef void unclosed(str text) noexcept:
    """Issue a ResourceWarning from a finalizer. If a filter turns it into an error, that goes to sys.unraisablehook. A
    pending exception is kept. No warning at interpreter exit, when the warnings module may be gone."""
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
