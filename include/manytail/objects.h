/* What the kernels know of Python: whether there is a GIL, and how to add and drop a reference to an object.
 *
 * A native driver, which has no interpreter, defines MT_KEEP, MT_DROP and MT_GIL_LOCKED before it includes a kernel.
 * MT_DROP may run Python code (a finalizer): call it with no lock held.
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

/* Whether a structure whose items are Python objects uses the GIL instead of its own locks. */
#ifndef MT_GIL_LOCKED
#define MT_GIL_LOCKED (!MT_FREE_THREADED)
#endif

#endif
