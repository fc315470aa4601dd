/* The C types that `cimport manytail` declares for entry queues. The structs are private to the extension module. */
#ifndef MANYTAIL_ENTRYQUEUE_H
#define MANYTAIL_ENTRYQUEUE_H

#include <stdint.h>

typedef struct mt_entryqueue mt_entryqueue;
typedef struct mt_entrysub mt_entrysub;

/* One delivery of one entry, filled by mt_entryqueue_get. It counts as a reference to the entry, which exactly one call
 * to ack, reject, release or forget gives up. */
typedef struct {
    uintptr_t item;
    int64_t seq; /* arrival number */
    mt_entryqueue *queue;
    void *entry;       /* NULL after that call */
    uint64_t delivery; /* how often the entry was delivered, this time included; 0: it was only peeked at */
} mt_delivery;

#endif
