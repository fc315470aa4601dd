# include/manytail/epoch.h for Cython; how it is used is said there. Declarations only, there is no such module.
# Private.
from libc.stdint cimport int64_t


cdef extern from "manytail/epoch.h" nogil:
    ctypedef struct mt_retired:
        mt_retired *next
    ctypedef struct mt_pin:
        pass
    ctypedef struct mt_epoch:
        pass
    void mt_epoch_init(mt_epoch *e, int64_t every)
    mt_pin *mt_epoch_pin(mt_epoch *e)
    void mt_epoch_retire(mt_pin *own, mt_retired *node, void (*destroy)(mt_retired *) noexcept nogil)
    mt_retired *mt_epoch_unpin(mt_epoch *e, mt_pin *own)
    mt_retired *mt_epoch_drain(mt_epoch *e)
    void mt_retired_free(mt_retired *list)
    int64_t mt_epoch_records(mt_epoch *e)
    mt_retired *mt_epoch_destroy(mt_epoch *e)
    void mt_epoch_after_fork(mt_epoch *e, bint keep_rest)
