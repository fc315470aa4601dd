"""The slow path of _lock.pxd, compiled once for all modules; and the count of the locks that a thread holds, in a build
that counts them (MT_COUNTS_LOCKS, setup.py)."""
from manytail._c cimport MT_COUNTS_LOCKS, mt_lock

cdef extern from *:
    """
    static MT_THREAD_LOCAL int mt_locks_held;

    #if MT_COUNTS_LOCKS
    /* Runs each frame of Python code, in every thread: functions, generators, finalizers, signal handlers. */
    static PyObject *mt_run_frame(PyThreadState *state, struct _PyInterpreterFrame *frame, int raises) {
        if (mt_locks_held != 0) Py_FatalError("Python code runs under a lock of manytail");
        return _PyEval_EvalFrameDefault(state, frame, raises);
    }
    static void mt_look_at_frames(void) {
        _PyInterpreterState_SetEvalFrameFunc(PyInterpreterState_Get(), mt_run_frame);
    }
    #else
    static void mt_look_at_frames(void) {}
    #endif
    """
    int mt_locks_held
    void mt_look_at_frames()


cdef void wait_for_lock(mt_lock *l, bint attached) noexcept nogil:
    lock_slow(l, attached)


cdef void wait_for_heavy_lock(mt_lock *l, bint attached) noexcept nogil:
    lock_slow_heavy(l, attached)


cdef void count_lock(int by) noexcept nogil:
    global mt_locks_held
    mt_locks_held += by


if MT_COUNTS_LOCKS:
    mt_look_at_frames()
