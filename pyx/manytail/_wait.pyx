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


cdef extern from "Python.h":
    void PyErr_SetInterrupt()
    void PyErr_Fetch(PyObject **, PyObject **, PyObject **)
    void PyErr_Restore(PyObject *, PyObject *, PyObject *)

cdef extern from *:
    """
    static MT_THREAD_LOCAL int mt_passing_on;           /* this thread is inside on_lost() */
    static MT_THREAD_LOCAL mt_waiter *mt_to_post;       /* coroutines that on_lost() notified */
    """
    bint mt_passing_on
    mt_waiter *mt_to_post

from manytail._waiting cimport main_thread, run_signal_handlers, semaphores_miss_signals

cdef enum:
    ATTEMPTS = 100          # to hand a wake-up to a loop that is open: one that refuses this often counts as closed

include "_wait_core.pxi"


# -------------------------------------------------------------------------------------------------------------- waiters
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
