# `cimport manytail`: see _nogil.pxd.
from manytail._nogil cimport (
    MT_OK, MT_EMPTY, MT_FULL, MT_SHUTDOWN, MT_TIMEOUT, MT_NOMEM, MT_BADARG,
    mt_multiqueue, mt_subqueue, mt_drop,
    mt_multiqueue_new, mt_multiqueue_destroy, mt_multiqueue_add, mt_multiqueue_remove,
    mt_subqueue_put, mt_subqueue_put_many, mt_subqueue_enable,
    mt_multiqueue_get, mt_multiqueue_get_many, mt_multiqueue_qsize, mt_multiqueue_shutdown,
)
