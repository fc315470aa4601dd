/* What the kernels know of Python: whether there is a GIL, and how a reference to an object is added and given up.
 *
 * A native driver, which has no interpreter, defines MT_KEEP, MT_DROP and MT_GIL_LOCKED before it includes a kernel.
 * A reference is given up with no lock held.
 */
#ifndef MANYTAIL_OBJECTS_H
#define MANYTAIL_OBJECTS_H

#include <Python.h>

#ifndef MT_KEEP
#define MT_KEEP(item) Py_INCREF((PyObject *)(item))
#define MT_DROP(item) Py_DECREF((PyObject *)(item))
#endif

#ifdef Py_GIL_DISABLED
#define MT_FREE_THREADED 1
#else
#define MT_FREE_THREADED 0
#endif

/* Whether the GIL is the lock of a structure that holds objects and nothing else. */
#ifndef MT_GIL_LOCKED
#define MT_GIL_LOCKED (!MT_FREE_THREADED)
#endif

#endif
