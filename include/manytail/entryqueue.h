/* What `cimport manytail` says of an entry queue without Python objects; the structs are the extension module's own. */
#ifndef MANYTAIL_ENTRYQUEUE_H
#define MANYTAIL_ENTRYQUEUE_H

#include <stdint.h>

typedef struct mt_entryqueue mt_entryqueue;
typedef struct mt_entrysub mt_entrysub;

/* One hand-over of one entry, filled by mt_entryqueue_get. It holds a reference until it is acked, rejected, released or
 * forgotten: one of these, once. */
typedef struct {
    uintptr_t item;
    int64_t seq; /* arrival number */
    mt_entryqueue *queue;
    void *entry;       /* NULL: given up */
    uint64_t delivery; /* how often the entry was handed over, this one included; 0: only looked at */
} mt_delivery;

#endif
