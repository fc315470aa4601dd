"""Parking: the one place where a thread gives up the processor, and the one place that detaches from the interpreter.

A waiter is a binary semaphore (a PyThread lock, which every platform has, which takes a timeout, and which says when a
signal came) and a place in a wait list (include/manytail/waitlist.h has the protocol). Who waits for an event loop
instead of blocking a thread has a LoopWaiter, whose post schedules a callback in its loop.

Rules kept here
- Detach only to wait. Before that, spin only a bounded while, because an attached spinner holds up a thread that wants
  to stop the world, and on a build with the GIL it holds up the very thread it waits for.
- A wait has a deadline on the monotonic clock, so interruptions and early wake-ups do not lengthen it.
- A signal ends the wait at once; its Python handler runs; if that raises, the wait ends with MT_INTERRUPTED and the
  exception set, else it goes on for what is left. On Windows, where a semaphore does not notice signals, the main
  thread waits in slices of 50 ms.
- `attached` says whether the caller holds a thread state; nogil callers pass 0 and are never interrupted.
"""
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject

import math
import os
import sys
import threading


cdef extern from "Python.h":
    int PyErr_CheckSignals() noexcept       # the exception is left set, for waiter_park's caller
    void PyErr_SetInterrupt()
    void PyErr_Fetch(PyObject **, PyObject **, PyObject **)
    void PyErr_Restore(PyObject *, PyObject *, PyObject *)
    int PyErr_WarnEx(PyObject *category, const char *message, Py_ssize_t stack_level) noexcept
    void PyErr_WriteUnraisable(object)
    PyObject *PyExc_ResourceWarning

cdef extern from "manytail/pygc.h":
    bint mt_finalizing()            # interpreter exit has begun

cdef extern from *:
    """
    static MT_THREAD_LOCAL int mt_passing_on;           /* this thread is inside on_lost() */
    static MT_THREAD_LOCAL mt_waiter *mt_to_post;       /* coroutines that on_lost() notified */
    """
    bint mt_passing_on
    mt_waiter *mt_to_post

cdef unsigned long main_thread = <unsigned long>threading.main_thread().ident
cdef bint semaphores_miss_signals = sys.platform == "win32"

cdef enum:
    ATTEMPTS = 100          # to hand a wake-up to a loop that is open: one that refuses this often counts as closed

include "_wait_core.pxi"


# ------------------------------------------------------------------------------------------------------------ deadlines
cdef int64_t deadline_from(object block, object timeout) except -2:
    """NEVER, ONCE or a time on the monotonic clock, from the stdlib's (block, timeout) pair."""
    cdef double seconds
    if not block:
        return ONCE
    if timeout is None:
        return NEVER
    try:
        seconds = timeout
    except TypeError:
        raise TypeError(f"timeout={timeout!r}: expected a number of seconds or None, not {type(timeout).__name__}") from None
    if math.isnan(seconds) or seconds < 0:
        raise ValueError(f"timeout={timeout!r}: expected a number of seconds >= 0, or None to wait for ever")
    if seconds > 9e9:               # 285 years: past what 64-bit nanoseconds hold
        return NEVER
    return mt_now_ns() + <int64_t>(seconds * 1e9)


# -------------------------------------------------------------------------------------------------------------- waiters
cdef int run_signal_handlers() noexcept nogil:
    """-1: a handler raised; the exception stays set for the caller."""
    cdef int r
    with gil:
        r = PyErr_CheckSignals()
    return r


cdef void post_loop_waiter(void *owned) noexcept nogil:
    """Hand a wake-up to a coroutine and give up the reference that the wait list held. Whoever passes it on because a signal handler
    raised has that exception set: it is put aside, or the loop's Python code would take it for its own failure."""
    cdef PyObject *kind
    cdef PyObject *error
    cdef PyObject *trace
    with gil:
        PyErr_Fetch(&kind, &error, &trace)
        post_or_pass_on(<LoopWaiter>owned)
        PyErr_Restore(kind, error, trace)


cdef void post_or_pass_on(LoopWaiter waiter) noexcept:
    """Post a coroutine. If its loop is closed, pass the wake-up on, as often as need be. A loop and not a recursion: a closed loop may
    leave any number of coroutines behind."""
    global mt_passing_on, mt_to_post
    cdef mt_waiter *first
    if mt_passing_on:                   # inside LoopWaiter.lost(), in this thread
        waiter.w.next = mt_to_post
        mt_to_post = &waiter.w
        return
    waiter.post()
    Py_DECREF(waiter)                   # the reference of the wait list
    while mt_to_post != NULL:
        first = mt_to_post
        mt_to_post = first.next
        post_or_pass_on(<LoopWaiter>first.callback)


cdef class LoopWaiter:
    """A coroutine's place in a wait list. While it is queued, the list holds a reference to it.

    on_lost() is called, with no lock held, if the loop turns out to be closed: it passes the wake-up on.
    """

    def __cinit__(self, object loop, object on_lost):
        self.loop = loop
        self.on_lost = on_lost
        self.future = loop.create_future()
        self.w.sem = NULL
        self.w.callback = <void *>self
        self.w.thread = PyThread_get_thread_ident()

    cdef void post(self) noexcept:
        global mt_passing_on
        if not self.hand_over():
            mt_passing_on = True
            self.lost()
            mt_passing_on = False

    cdef bint hand_over(self) noexcept:
        """False: the loop is closed. Handing over runs Python code of the loop, and signal handlers, in a thread that only wanted to put:
        what they raise does not surface in that put and does not cost the coroutine its wake-up."""
        cdef bint interrupted = False, posted = False
        cdef object error = None
        cdef int _attempt
        if self.loop is None:               # the collector has cleared this waiter
            return False
        for _attempt in range(ATTEMPTS):
            try:
                if error is not None:
                    if self.loop.is_closed():
                        break
                    write_unraisable(error, self.loop)
                    error = None
                self.loop.call_soon_threadsafe(set_done, self.future)
                posted = True
                break
            except KeyboardInterrupt:       # raised again at the caller's next instruction
                interrupted = True
            except BaseException as problem:
                error = problem
        if interrupted:
            PyErr_SetInterrupt()
        return posted

    cdef void lost(self) noexcept:      # what on_lost raises goes to sys.unraisablehook
        if self.on_lost is not None:    # else the collector has cleared this waiter
            self.on_lost()


cdef void write_unraisable(object error, object where) noexcept:
    """Report an exception to sys.unraisablehook."""
    cdef object kind = type(error), trace = error.__traceback__
    Py_INCREF(kind)
    Py_INCREF(error)
    if trace is not None:
        Py_INCREF(trace)
    PyErr_Restore(<PyObject *>kind, <PyObject *>error, NULL if trace is None else <PyObject *>trace)     # takes the references
    PyErr_WriteUnraisable(where)


cdef void unclosed(str text) noexcept:
    """A ResourceWarning from a finalizer. One that is an error goes to sys.unraisablehook; a pending exception stays pending. Nothing is
    said once the interpreter has begun to end: the warnings module may be gone."""
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


async def until_posted(LoopWaiter waiter not None, enrol, withdraw):
    """Wait in the waiter's loop. enrol(waiter) queues it, or returns False if there is nothing to wait for; withdraw(waiter) takes it off
    again when the wait is cancelled, and passes on a wake-up that came meanwhile."""
    if not enrol(waiter):
        return
    try:
        await waiter.future
    except BaseException:
        withdraw(waiter)
        raise


def set_done(future):
    if not future.done():
        future.set_result(None)


# ----------------------------------------------------------------------------------------------------------------- fork
def _after_fork_in_child():
    global main_thread
    main_thread = this_thread()         # the thread that forked, whichever it was in the parent, receives the signals


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
