/* What the kernels share: the status codes, and allocation on cache-line boundaries. */
#ifndef MANYTAIL_MULTIQUEUE_H
#define MANYTAIL_MULTIQUEUE_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "atomics.h"
#include "lock.h"

enum {
    MT_OK = 0,
    MT_EMPTY = 1,
    MT_FULL = 2,
    MT_SHUTDOWN = 3,
    MT_TIMEOUT = 4,
    MT_NOMEM = 5,
    MT_BADARG = 6,
    MT_INTERRUPTED = 7 /* a Python signal handler raised; only from calls made attached to the interpreter */
};

/* Handles of the nogil API. The structures are in pyx/manytail/_mq.pxd. */
typedef struct mt_multiqueue mt_multiqueue;
typedef struct mt_subqueue mt_subqueue;

/* Zeroed memory that starts a cache line, so that padded structures keep putters and getters on separate lines. NULL:
 * no memory. mt_free_aligned does not accept NULL. */
static inline void *mt_alloc_aligned(size_t size) {
    char *raw = (char *)malloc(size + MT_CACHE_LINE + sizeof(void *)), *p;
    if (raw == NULL) return NULL;
    p = (char *)(((uintptr_t)raw + sizeof(void *) + MT_CACHE_LINE - 1) & ~(uintptr_t)(MT_CACHE_LINE - 1));
    ((void **)(void *)p)[-1] = raw;
    memset(p, 0, size);
    return p;
}
static inline void mt_free_aligned(void *p) { free(((void **)p)[-1]); }

#endif
