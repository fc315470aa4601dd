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
from cpython.ref cimport Py_DECREF, PyObject

import math
import sys
import threading


cdef extern from "Python.h":
    int PyErr_CheckSignals() noexcept       # the exception is left set, for waiter_park's caller
    void PyErr_SetInterrupt()
    void PyErr_Fetch(PyObject **, PyObject **, PyObject **)
    void PyErr_Restore(PyObject *, PyObject *, PyObject *)


cdef unsigned long main_thread = <unsigned long>threading.main_thread().ident
cdef bint semaphores_miss_signals = sys.platform == "win32"

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
        (<LoopWaiter>owned).post()
        Py_DECREF(<LoopWaiter>owned)
        PyErr_Restore(kind, error, trace)


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

    cdef void post(self) noexcept:      # what on_lost raises goes to sys.unraisablehook
        # Handing over may run Python code of the loop, in a thread that only wanted to put: nothing that happens here
        # may surface there.
        try:
            self.loop.call_soon_threadsafe(set_done, self.future)
        except RuntimeError:        # the loop is closed: nobody will ever run this waiter
            self.on_lost()
        except KeyboardInterrupt:   # belongs to the caller's next instruction, not into the middle of its put
            PyErr_SetInterrupt()
            self.on_lost()


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
