/* What the faces need of CPython's C API: slots of types, references, lists filled in place, the GIL.
 *
 * Cython has no syntax for tp_traverse and tp_clear. Without them, cycles through items in C memory are never
 * collected. _root.pyx replaces the two slots at import. A traverse changes no reference count and
 * takes no lock. It runs while every attached thread is stopped, and Python items move only while attached, so nothing
 * changes under it.
 */
#ifndef MANYTAIL_PYGC_H
#define MANYTAIL_PYGC_H

#include <Python.h>
#include <string.h>

#include "backoff.h"
#include "multiqueue.h"
#include "objects.h"

/* Pointers as Cython objects, which take over the caller's reference. */
static inline PyObject *mt_owned(PyObject *o) { return o; }
static inline PyObject *mt_owned_item(uintptr_t v) { return (PyObject *)v; }

/* Let any thread free `o`. The caller has just made it and holds its only references.
 *
 * Without the GIL an object is owned by the thread that made it. When another thread drops the last reference, the
 * object is freed only when its owner next runs Python code, which does not happen while the owner blocks. */
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

/* Return from a method that Cython compiled and raise `kind`, without adding our frame to the traceback: adding one
 * costs as much as a get of an empty queue. __pyx_r and __pyx_L0 are names in Cython's output: the result of the
 * function, and its end, where its locals are released. */
#define mt_return_raising(kind) \
    do {                        \
        PyErr_SetNone(kind);    \
        __pyx_r = NULL;         \
        goto __pyx_L0;          \
    } while (0)

/* A pair that is allocated before the items are taken, and filled afterwards without a call that can fail. Both slots
 * take over a reference. */
static inline PyObject *mt_pair_reserve(void) { return PyTuple_New(2); }
static inline void mt_pair_fill(PyObject *pair, uintptr_t first, uintptr_t second) {
    PyTuple_SET_ITEM(pair, 0, (PyObject *)first);
    PyTuple_SET_ITEM(pair, 1, (PyObject *)second);
}

static inline PyObject *mt_list_of_none(Py_ssize_t n) {
    PyObject *l = PyList_New(0), *grown;
    if (l != NULL) {
        grown = PyList_Append(l, Py_None) < 0 ? NULL : PySequence_InPlaceRepeat(l, n);
        if (grown == NULL) Py_CLEAR(l);
        Py_XDECREF(grown);
    }
    return l;
}

/* A list that is filled from C while items are taken off a queue, where no Python call may be made. mt_list_reserve
 * allocates n slots but sets the size to 0. The caller writes references to mt_list_slots, then sets the size with
 * mt_list_filled. */
static inline PyObject *mt_list_reserve(Py_ssize_t n) {
#ifdef Py_GIL_DISABLED
    /* PyList_New(n) of the free-threaded interpreter frees an uninitialised pointer when it has no memory for the
     * slots; a list that grows does not. The slots hold None, which is immortal: writing over it needs no decref. */
    PyObject *l = n > 0 ? mt_list_of_none(n) : PyList_New(0);
#else
    PyObject *l = PyList_New(n);
#endif
    if (l != NULL) Py_SET_SIZE((PyVarObject *)l, 0);
    return l;
}
/* mt_list_reserve at half the cost, for a caller that keeps a list `one` of one None. Each structure keeps its own,
 * because repeating a list takes the list's lock. */
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
/* The same for a list that only the caller has, and that may have items: n more slots are behind them, and its size
 * stays. Returns a new reference to it. */
static inline PyObject *mt_list_reserve_more(PyObject *l, Py_ssize_t n) {
    Py_ssize_t size = PyList_GET_SIZE(l), i;
    PyObject *none = mt_list_of_none(n);
    int r = none == NULL ? -1 : PyList_SetSlice(l, size, size, none);
    Py_XDECREF(none);
    if (r < 0) return NULL;
    for (i = 0; i < n; i++) Py_DECREF(Py_None); /* the slots' references */
    Py_SET_SIZE((PyVarObject *)l, size);
    Py_INCREF(l);
    return l;
}
static inline uintptr_t *mt_list_slots(PyObject *l) { return (uintptr_t *)(void *)((PyListObject *)l)->ob_item; }
static inline void mt_list_filled(PyObject *l, Py_ssize_t n) { Py_SET_SIZE((PyVarObject *)l, n); }

/* Replace tp_traverse. Returns the one that Cython made. */
static inline traverseproc mt_patch_traverse(PyTypeObject *t, traverseproc traverse) {
    traverseproc made = t->tp_traverse;
    t->tp_traverse = traverse;
    return made;
}
static inline void mt_patch_clear(PyTypeObject *t, inquiry clear) { t->tp_clear = clear; }
/* Forbid calls from Python to the type. Its own module can make instances: Cython's `T.__new__` bypasses this slot. */
static inline PyObject *mt_no_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    (void)args;
    (void)kwargs;
    return PyErr_Format(PyExc_TypeError, "cannot make a %s: queues, subscribe() and get() make them", type->tp_name);
}
static inline void mt_patch_new(PyTypeObject *type) {
    type->tp_new = mt_no_new;
    type->tp_vectorcall = NULL;
}

/* Put a C function of ours before a built-in method that takes an array of arguments. It handles the common call, and
 * passes every other one to the method, which is returned. Cython's own wrapper adds and drops a reference to each
 * argument, default values included, and looks through the names: half of what a put or a get costs. NULL with an
 * exception: there is no such method. */
typedef PyObject *(*mt_method)(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *names);
static inline mt_method mt_patch_method(PyTypeObject *t, const char *name, mt_method shortcut) {
    PyMethodDef *m = t->tp_methods;
    mt_method method;
    while (m->ml_name != NULL && strcmp(m->ml_name, name) != 0) m++;
    if (m->ml_name == NULL || m->ml_flags != (METH_FASTCALL | METH_KEYWORDS)) {
        PyErr_Format(PyExc_SystemError, "%s.%s does not take an array of arguments", t->tp_name, name);
        return NULL;
    }
    method = (mt_method)(void (*)(void))m->ml_meth;
    m->ml_meth = (PyCFunction)(void (*)(void))shortcut;
    return method;
}
static inline PyObject *mt_new_none(void) { Py_RETURN_NONE; }

static inline int mt_visit_one(void *o, visitproc visit, void *arg) {
    Py_VISIT((PyObject *)o);
    return 0;
}
static inline destructor mt_dealloc_of(PyTypeObject *t) { return t->tp_dealloc; }
static inline void mt_patch_dealloc(PyTypeObject *t, destructor dealloc) { t->tp_dealloc = dealloc; }
/* Free an object whose attributes may be nested without end. `again`, the tp_dealloc of its type, calls this.
 * `by_recursion` frees the object and its attributes. Beyond some depth the trashcan keeps the object, and calls
 * `again` later. */
static inline void mt_dealloc_nested(PyObject *o, destructor again, destructor by_recursion) {
    PyObject_GC_UnTrack(o);
    Py_TRASHCAN_BEGIN(o, again);
    by_recursion(o);
    Py_TRASHCAN_END;
}

/* Called detached, after a bulk copy: spin for at most a microsecond or two until the holder of the GIL releases it.
 * Otherwise two threads that each copy for a microsecond and then attach again collide at every release: the woken one
 * finds the GIL taken, each release pays for a futex wake, and both together are slower than one (measured on 3.11).
 * On 3.11 _PyThreadState_UncheckedGet returns the process-wide holder of the GIL. From 3.12 on it returns the calling
 * thread's own state, so this does nothing. */
static inline void mt_let_go_of_gil_first(void) {
#if PY_VERSION_HEX < 0x030C0000
    int i;
    for (i = 0; i < 100 && _PyThreadState_UncheckedGet() != NULL; i++) mt_cpu_pause();
#endif
}

/* Whether the interpreter is shutting down: modules may be gone, so finalizers report nothing. */
static inline int mt_finalizing(void) {
#if PY_VERSION_HEX < 0x030D0000
    return _Py_IsFinalizing();
#else
    return Py_IsFinalizing();
#endif
}

#endif
