# `cimport manytail`: see _nogil.pxd.
from manytail._nogil cimport (
    MT_OK, MT_EMPTY, MT_FULL, MT_SHUTDOWN, MT_TIMEOUT, MT_NOMEM, MT_BADARG,
    mt_multiqueue, mt_subqueue, mt_drop,
    mt_multiqueue_new, mt_multiqueue_destroy, mt_multiqueue_add, mt_multiqueue_remove,
    mt_subqueue_put, mt_subqueue_put_many, mt_subqueue_enable,
    mt_multiqueue_get, mt_multiqueue_get_many, mt_multiqueue_qsize, mt_multiqueue_shutdown,
    mt_entryqueue, mt_entrysub, mt_delivery,
    mt_entryqueue_new, mt_entryqueue_destroy, mt_entryqueue_put, mt_entryqueue_put_many,
    mt_entryqueue_subscribe, mt_entryqueue_unsubscribe, mt_entryqueue_get,
    mt_entryqueue_ack, mt_entryqueue_reject, mt_entryqueue_release, mt_entryqueue_forget,
    mt_entryqueue_qsize, mt_entryqueue_depth, mt_entryqueue_shutdown,
)
