/* What the kernels ask of the platform, when they run without an interpreter: a stand-in for CPython's part.
 *
 * Semaphores are those that CPython itself uses on Linux (sem_t), called in the way that ThreadSanitizer understands.
 * "Attached" threads exist in name only: detaching does nothing, but a wait of theirs may be interrupted, and then the
 * "signal handler" raises: both by chance, as often as `interrupts` of the thread says.
 */
#ifndef NATIVE_PLATFORM_H
#define NATIVE_PLATFORM_H

#include <errno.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>

#include <Python.h>

#include "driver.h"

static inline int native_interrupted(void) {
    return native_self.interrupts && native_random(native_self.interrupts) == 0;
}

static inline int run_signal_handlers(void) { return native_interrupted() ? -1 : 0; }

/* An object is its count: relaxed, because who lets go of the last one synchronises with the others. */
static inline void native_keep(PyObject *object) {
    atomic_fetch_add_explicit((_Atomic int64_t *)object, 1, memory_order_relaxed);
}
#ifndef MT_KEEP /* a driver may have objects of its own */
#define MT_KEEP(item) native_keep((PyObject *)(item))
#endif
#define MT_GIL_LOCKED 0

/* A task, what stands for a coroutine: its loop, a thread, waits for the bell. It goes with its last reference, and its
 * waiter with it. */
typedef struct {
    _Atomic int64_t refs;
    sem_t bell;
    void *waiter;
} native_task;

static inline void native_drop(native_task *task) {
    /* acq_rel: the last one sees what the others did */
    if (atomic_fetch_sub_explicit(&task->refs, 1, memory_order_acq_rel) != 1) return;
    sem_destroy(&task->bell);
    free(task->waiter);
    free(task);
}
#define MT_DROP(item) native_drop((native_task *)(item))

static inline void wake_task(void *task) {
    sem_post(&((native_task *)task)->bell);
    native_drop((native_task *)task);
}

/* 1: taken; 0: the time is over. us < 0 waits for ever. */
static inline int native_wait(sem_t *s, int64_t us) {
    struct timespec until;
    int r;
    if (us > 0) until = native_time_in((us < 1000000000 ? us : 1000000000) * 1000);
    do {
        r = us < 0 ? sem_wait(s) : us == 0 ? sem_trywait(s) : sem_timedwait(s, &until);
    } while (r != 0 && errno == EINTR);
    return r == 0;
}

PyThread_type_lock PyThread_allocate_lock(void) {
    sem_t *s = (sem_t *)malloc(sizeof(sem_t));
    if (s != NULL) sem_init(s, 0, 1);
    return s;
}

void PyThread_free_lock(PyThread_type_lock lock) {
    sem_destroy((sem_t *)lock);
    free(lock);
}

PyLockStatus PyThread_acquire_lock_timed(PyThread_type_lock lock, PY_TIMEOUT_T us, int interruptible) {
    if (interruptible && us != 0 && native_interrupted()) return PY_LOCK_INTR;
    return native_wait((sem_t *)lock, us) ? PY_LOCK_ACQUIRED : PY_LOCK_FAILURE;
}

void PyThread_release_lock(PyThread_type_lock lock) { sem_post((sem_t *)lock); }

unsigned long PyThread_get_thread_ident(void) { return (unsigned long)pthread_self(); }

/* Called where an attached thread is about to detach: a fork of another thread may come there. NULL: nothing. */
static void (*native_detaching)(void);

PyThreadState *PyEval_SaveThread(void) {
    if (native_detaching != NULL) native_detaching();
    return NULL;
}

void PyEval_RestoreThread(PyThreadState *state) { (void)state; }

#endif
