/* Garbage-collector hooks for queues whose Python items live in C chunks.
 *
 * Cython has no syntax for tp_traverse and tp_clear, and without them items in C memory make cycles that are never
 * collected. _multiqueue.pyx replaces the two slots of SubQueue, at import, by functions built on these.
 * The traverse runs while every attached thread stands at a safe point and changes no count and takes no lock; items of
 * Python queues move only while attached, so the chain is quiet.
 */
#ifndef MANYTAIL_PYGC_H
#define MANYTAIL_PYGC_H

#include <Python.h>

#include "backoff.h"
#include "multiqueue.h"
#include "objects.h"

/* An object whose counted reference the caller hands over. */
static inline PyObject *mt_owned(PyObject *o) { return o; }
static inline PyObject *mt_owned_item(uintptr_t v) { return (PyObject *)v; }
static inline PyObject *mt_new_item(uintptr_t v) { return Py_NewRef((PyObject *)v); }

/* Let any thread free `o`. The caller has just made it, and holds its only references.
 *
 * Without the GIL an object belongs to the thread that made it. When the last reference is given up by another thread,
 * that object is freed only when its owner next runs Python code, which is never while the owner waits. */
static inline void mt_disown(PyObject *o) {
#ifdef Py_GIL_DISABLED
    Py_ssize_t n = Py_REFCNT(o);
    o->ob_tid = 0;
    o->ob_ref_local = 0;
    o->ob_ref_shared = _Py_REF_SHARED(n, _Py_REF_MERGED);
#else
    (void)o;
#endif
}

/* End the function that Cython has made for a method: raise `kind`, with no frame of ours in the traceback. An empty get is
 * an answer, not an error, and each frame costs as much as the get. The names are those of Cython's own code: the end of
 * a function, where its locals are released, and its result. */
#define mt_return_raising(kind) \
    do {                        \
        PyErr_SetNone(kind);    \
        __pyx_r = NULL;         \
        goto __pyx_L0;          \
    } while (0)

/* A pair both of whose slots take over a reference. */
static inline PyObject *mt_pair_reserve(void) { return PyTuple_New(2); }
static inline void mt_pair_fill(PyObject *pair, uintptr_t first, uintptr_t second) {
    PyTuple_SET_ITEM(pair, 0, (PyObject *)first);
    PyTuple_SET_ITEM(pair, 1, (PyObject *)second);
}

/* Lists that are filled without any Python call between claim and publish: allocated long enough, size 0, then told how
 * many slots were filled. */
static inline PyObject *mt_list_reserve(Py_ssize_t n) {
#ifdef Py_GIL_DISABLED
    /* PyList_New(n) of the free-threaded interpreter frees an uninitialised pointer when it has no memory for the slots. A list
     * that grows does not. The slots hold None, which is immortal: writing over it needs no decref. */
    PyObject *l = PyList_New(0), *grown;
    if (l != NULL && n > 0) {
        grown = PyList_Append(l, Py_None) < 0 ? NULL : PySequence_InPlaceRepeat(l, n);
        if (grown == NULL) Py_CLEAR(l);
        Py_XDECREF(grown);
    }
#else
    PyObject *l = PyList_New(n);
#endif
    if (l != NULL) Py_SET_SIZE((PyVarObject *)l, 0);
    return l;
}
/* The same at half the price, for who keeps a list of one None. Repeating that takes its lock, so it belongs to one structure. */
static inline PyObject *mt_list_reserve_by(PyObject *one, Py_ssize_t n) {
#ifdef Py_GIL_DISABLED
    PyObject *l = PySequence_Repeat(one, n);
    if (l != NULL) Py_SET_SIZE((PyVarObject *)l, 0);
    return l;
#else
    (void)one;
    return mt_list_reserve(n);
#endif
}
static inline uintptr_t *mt_list_slots(PyObject *l) { return (uintptr_t *)(void *)((PyListObject *)l)->ob_item; }
static inline void mt_list_filled(PyObject *l, Py_ssize_t n) { Py_SET_SIZE((PyVarObject *)l, n); }

static inline void mt_patch_gc(PyTypeObject *t, traverseproc traverse, inquiry clear) {
    t->tp_traverse = traverse;
    t->tp_clear = clear;
}
/* For types that only their own module makes: Cython calls its own constructor directly, users come through this slot. */
static inline PyObject *mt_no_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    (void)args;
    (void)kwargs;
    return PyErr_Format(PyExc_TypeError, "cannot make a %s: queues, subscribe() and get() make them", type->tp_name);
}
static inline void mt_patch_new(PyTypeObject *type) {
    type->tp_new = mt_no_new;
    type->tp_vectorcall = NULL;
}

static inline int mt_visit_one(void *o, visitproc visit, void *arg) {
    Py_VISIT((PyObject *)o);
    return 0;
}
static inline newfunc mt_new_of(PyTypeObject *t) { return t->tp_new; }
static inline traverseproc mt_traverse_of(PyTypeObject *t) { return t->tp_traverse; }
static inline inquiry mt_clear_of(PyTypeObject *t) { return t->tp_clear; }

/* Called detached, after a bulk copy: give the thread that has the GIL up to a microsecond or two to let go of it.
 * Two threads that each copy for a microsecond and then re-attach otherwise meet at every release: the woken one finds
 * the GIL taken again, each release pays for a futex wake, and together they are slower than one (measured on 3.11).
 * On 3.11 the current thread state is the process-wide holder of the GIL (the call that Cython's own code makes); from
 * 3.12 on it is kept per thread and says nothing here. */
static inline void mt_let_go_of_gil_first(void) {
#if PY_VERSION_HEX < 0x030C0000
    int i;
    for (i = 0; i < 100 && _PyThreadState_UncheckedGet() != NULL; i++) mt_cpu_pause();
#endif
}

/* Whether the interpreter has begun to end: modules may be gone, finalizers keep quiet. */
static inline int mt_finalizing(void) {
#if PY_VERSION_HEX < 0x030D0000
    return _Py_IsFinalizing();
#else
    return Py_IsFinalizing();
#endif
}

#endif
