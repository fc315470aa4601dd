/* The structures of the MultiQueue: many tails, one head. The algorithm is in pyx/manytail/_multiqueue.pyx.
 *
 *   putters --put lock of A--> tail A  [chunk]->[chunk] \
 *   putters --put lock of B--> tail B  [chunk]           >-- ready rings --take lock--> getters
 *   putters --put lock of C--> tail C  (idle)           /
 *
 * Source: LinkedBlockingMultiQueue (M. Barrios), itself after Doug Lea's two-lock LinkedBlockingQueue: one put lock per
 * tail, one take lock for all. What we changed: nodes hold several items (chunk.h); ready rings instead of a walk
 * (ready.h); no count that both sides write: a putter publishes `tail_seq`, a getter publishes `out`, each caches the
 * other's and looks again only when its copy runs out. A put takes the take lock only if its tail was unknown to the
 * head, where the original takes it whenever the whole queue was empty.
 *
 * Lock order: take lock, then put locks. Nothing of Python's runs under either.
 *
 * Who knows that a tail has something: `unknown` is set while a tail is empty and not listed in its ring; the put that
 * finds it set appends and lists under both locks, so that the item is there for the head as soon as it is there for
 * the tail. While it is clear the tail is listed, or kept out of the ring on purpose (disabled, detached, stopped), and a
 * put needs the put lock only. One empty tail may stay listed: the only member of the only ready level, so that a
 * queue that goes empty and non-empty all the time pays nothing for it.
 *
 * Serial queues (`serial` = 1): a queue of Python objects on a build with the GIL. The GIL is the lock: every operation
 * happens attached and runs no Python code half way, so both locks are left alone.
 */
#ifndef MANYTAIL_MULTIQUEUE_H
#define MANYTAIL_MULTIQUEUE_H

#include <stddef.h>

#include "atomics.h"
#include "chunk.h"
#include "lock.h"
#include "ready.h"
#include "waitlist.h"

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

/* Why a tail takes no more items: bits of mt_subqueue.gate. */
enum { MT_GATE_DETACHED = 1, MT_GATE_SHUTDOWN = 2, MT_GATE_STOPPED = 4 /* and gives none either */ };

/* How the head picks among ready tails of one priority. */
enum { MT_ROUND_ROBIN = 0, MT_WEIGHTED = 1, MT_OLDEST = 2 };

struct mt_multiqueue;

typedef struct mt_subqueue {
    /* -- putters' line: written under the put lock ----------------------------------------------------------------- */
    mt_lock put_lock;
    mt_chunk *tail;           /* NULL until the first item, and after clear */
    uint32_t tail_idx;        /* next free slot of tail */
    uint32_t gate;            /* MT_GATE_*: written under both locks, read under the put lock */
    mt_atomic_i64 tail_seq;   /* position after the newest item; published (release) after its slot is written */
    int64_t out_seen;         /* putters' copy of `out` */
    mt_atomic_i64 maxsize;    /* <= 0: no bound; written under both locks */
    struct mt_multiqueue *mq; /* constant; counted */
    mt_atomic_u32 unknown;    /* written under both locks, so steady under either; peeked at without */
    uint8_t serial;           /* constant: mq->serial, whose line getters write */
    uint8_t stamped;          /* constant: selection "oldest", items get a put time */
    uint8_t pad0[2];
    /* -- getters' line: written under the take lock ---------------------------------------------------------------- */
    mt_chunk *head; /* NULL until the first item: written by the putter that makes the first chunk, before tail_seq */
    uint16_t head_idx;   /* oldest slot of head; at head->cap the next chunk follows */
    uint8_t has_dead;    /* ndead > 0 */
    uint8_t bounded;     /* maxsize > 0: a get must look for waiting putters; written under both locks */
    uint32_t turn;       /* items left of its turn; 0: its next turn has not begun */
    mt_atomic_i64 out;   /* tail_seq - out = items inside: counts those that left, less those put at the front */
    int64_t tail_seen;   /* getters' copy of tail_seq */
    mt_ready_node ready; /* 32 bytes */
    /* -- cold ------------------------------------------------------------------------------------------------------ */
    int64_t ndead;                 /* discarded slots still between head and tail; take lock */
    int64_t nfront;                /* items ever put at the front; take lock */
    uint32_t weight;               /* >= 1; take lock */
    uint32_t enabled;              /* take lock */
    uint32_t attached;             /* take lock */
    uint32_t size_class;           /* of the newest chunk; put lock */
    int64_t priority;              /* take lock; kept for a detached handle */
    mt_waitlist putters;           /* put lock */
    mt_atomic_u32 putters_waiting; /* putters.n, for getters to look at without the put lock */
    struct mt_subqueue *all_next,
        *all_prev; /* among mq's attached tails in the order they were added, or its gone ones */
    void *owner;   /* the Python SubQueue (borrowed: it outlives this), or NULL */
    void *key;     /* its key (borrowed from the owner), or NULL */
} mt_subqueue;

typedef struct mt_multiqueue {
    /* -- getters' line: written under the take lock ---------------------------------------------------------------- */
    mt_lock take_lock;
    mt_ready ready;
    int64_t got;        /* items handed to getters */
    uint32_t serial;    /* constant: the GIL is the lock */
    uint32_t selection; /* constant once `begun` */
    uint32_t attached;  /* whether the holder of the take lock has a thread state: if it must wait for a put lock */
    /* -- seldom written -------------------------------------------------------------------------------------------- */
    mt_waitlist getters; /* take lock */
    mt_waitlist joiners; /* take lock */
    mt_subqueue *all_first, *all_last;
    int64_t nsubs, nenabled; /* attached, attached and enabled */
    int64_t gone_put;        /* items ever put into tails that are detached by now */
    int64_t taken_away;      /* items that clear, discard, remove and shutdown took: they count as done */
    int64_t done;            /* task_done calls */
    int64_t bulks;           /* bulk operations of detached threads; written attached, under bulk_lock */
    uint32_t begun;          /* options were set, or a tail was added: they cannot be set again; take lock */
    uint32_t shut;           /* no more puts; take lock */
    mt_atomic_u32 refs;      /* handles that keep this memory */
    mt_subqueue *gone;       /* detached tails that are not freed yet, linked by all_next; take lock */
    struct mt_multiqueue *reg_next, *reg_prev; /* every queue of the process, for fork; under the registry's lock */
    /* -- written by putters of any tail ---------------------------------------------------------------------------- */
    char pad1[MT_CACHE_LINE];
    mt_atomic_i64 clock;  /* put times, selection "oldest" only */
    mt_atomic_uptr spare; /* one used chunk of MT_CHUNK_SPARE_CLASS, or 0 */
} mt_multiqueue;

#define MT_SUBQUEUE_OF(node) ((mt_subqueue *)(void *)((char *)(node) - offsetof(mt_subqueue, ready)))

static inline mt_subqueue *mt_subqueue_of(mt_ready_node *n) { return MT_SUBQUEUE_OF(n); }

/* Aligned so that the putters' line and the getters' line do not share a cache line. Zeroed. */
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
