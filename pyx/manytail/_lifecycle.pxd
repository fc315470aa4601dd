# What the faces use of _lifecycle.pyx, and the state of the process that forks concern. Private.
from libc.stdint cimport int64_t

from manytail._c cimport mt_lock
from manytail._waiting cimport wait_list

# Every MultiQueue of the process, and the exclusion between detached bulk calls and forks: see _mq_forks.pxd.
ctypedef struct mt_registry:
    mt_lock lock
    void *first             # under lock
    mt_lock bulk_lock
    int64_t bulks_inside    # detached bulk calls; under bulk_lock
    int64_t forks_pending   # threads that are about to fork; under bulk_lock
    wait_list forkers       # under bulk_lock

cdef mt_registry multiqueues

cdef int at_fork(object in_child, object before=*, object in_parent=*, object begin=*) except -1
cdef int tell_of_forks(object owner) except -1

cdef int64_t int_argument(str name, object value, str expected, int64_t least=*) except? -7
cdef int64_t maxsize_argument(object value) except? -7
cdef tuple given_options(str call, dict options, dict defaults)
cdef object unpicklable(object it, str why=*)
cdef int raise_if_failed(int status) except -1
cdef int note_count(object error, int64_t count) except -1
cdef void unclosed(str text) noexcept
