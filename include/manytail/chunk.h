/* The linked nodes of a tail: an unrolled list, several items to a node.
 *
 *     head                                    tail
 *      |                                       |
 *      v                                       v
 *   [ . . x x x x ]--next-->[ x x 0 x x x ]-->[ x x x _ _ _ ]        0 dead slot (discarded)   _ not yet put
 *         ^head_idx                                  ^tail_idx
 *
 * Source: the linked nodes of the LinkedBlockingMultiQueue (after Doug Lea's LinkedBlockingQueue), unrolled so that
 * an item costs 8 bytes and one cache line travels per 7 items instead of per item.
 * Positions are sequence numbers: slot i of a node is position base + i; put_front makes positions smaller than any
 * before, so they are signed.
 * A node that was used up, cleared away or whose slots all died is RETIRED: it is linked to itself. Whoever still
 * stands on it (an iterator, which pins it) sees the self-link and goes on from the head of the list, at its own
 * position. The last of {retirer, pinners} frees it. `next` is written by the putter that appends (put lock) and by
 * whoever retires (take lock; only when the putters are past this node, or with the put lock too); everything else is
 * written under the take lock, or before the node is linked.
 * With `stamps` (selection "oldest") a second array of 64-bit put times follows the items. With MT_CHUNK_SIZED in its
 * size class a last array has the items' sizes.
 */
#ifndef MANYTAIL_CHUNK_H
#define MANYTAIL_CHUNK_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "atomics.h"

typedef struct mt_chunk {
    mt_atomic_uptr next; /* itself: retired */
    int64_t base;        /* position of slot 0 */
    uint32_t cap;        /* slots */
    uint32_t pins;       /* iterators standing here, plus who is emptying it; under the take lock */
    uint32_t ndead;      /* dead slots; under the take lock */
    uint32_t size_class;
    /* then: dead bits (one word per 64 slots), items, stamps if any, sizes if any */
} mt_chunk;

/* Sizes of 128, 256, 512, 2,048 and 8,192 bytes: small for tails that hold little, large for long ones. */
#define MT_CHUNK_CLASSES 5
#define MT_CHUNK_SPARE_CLASS 2 /* the class that steady short traffic settles on: one of it is kept for reuse */
#define MT_CHUNK_SIZED 8       /* added to a class: has sizes, so it is another class, and never the spare one */

static inline uint32_t mt_chunk_cap(uint32_t size_class) {
    static const uint32_t caps[MT_CHUNK_CLASSES] = {11, 27, 59, 248, 1004};
    return caps[size_class & (MT_CHUNK_SIZED - 1)];
}

static inline uint64_t *mt_chunk_dead(mt_chunk *c) { return (uint64_t *)(c + 1); }
static inline uintptr_t *mt_chunk_items(mt_chunk *c) { return (uintptr_t *)(mt_chunk_dead(c) + (c->cap + 63) / 64); }
static inline int64_t *mt_chunk_stamps(mt_chunk *c) { return (int64_t *)(mt_chunk_items(c) + c->cap); }
/* Of a chunk whose class has MT_CHUNK_SIZED; stamps: as it was made. */
static inline int64_t *mt_chunk_sizes(mt_chunk *c, int stamps) {
    return (int64_t *)(mt_chunk_items(c) + (size_t)c->cap * (stamps ? 2 : 1));
}

static inline mt_chunk *mt_chunk_new(uint32_t size_class, int stamps, int64_t base) {
    uint32_t cap = mt_chunk_cap(size_class);
    size_t arrays = 1 + (stamps != 0) + (size_class >= MT_CHUNK_SIZED);
    size_t words = (cap + 63) / 64 + cap * arrays;
    mt_chunk *c = (mt_chunk *)malloc(sizeof(mt_chunk) + words * 8);
    if (c == NULL) return NULL;
    /* relaxed because: not linked yet */
    mt_store_relaxed_uptr(&c->next, 0);
    c->base = base;
    c->cap = cap;
    c->pins = 0;
    c->ndead = 0;
    c->size_class = size_class;
    memset(mt_chunk_dead(c), 0, ((cap + 63) / 64) * 8);
    return c;
}

/* Make a used node as good as new. */
static inline void mt_chunk_recycle(mt_chunk *c, int64_t base) {
    /* relaxed because: not linked yet */
    mt_store_relaxed_uptr(&c->next, 0);
    c->base = base;
    if (c->ndead) {
        memset(mt_chunk_dead(c), 0, ((c->cap + 63) / 64) * 8);
        c->ndead = 0;
    }
}

static inline int mt_chunk_is_dead(mt_chunk *c, uint32_t i) {
    return (int)((mt_chunk_dead(c)[i >> 6] >> (i & 63)) & 1);
}
static inline void mt_chunk_kill(mt_chunk *c, uint32_t i) {
    mt_chunk_dead(c)[i >> 6] |= UINT64_C(1) << (i & 63);
    c->ndead++;
}
/* A slot before the head is used again by put_front. */
static inline void mt_chunk_revive(mt_chunk *c, uint32_t i) {
    if (!mt_chunk_is_dead(c, i)) return;
    mt_chunk_dead(c)[i >> 6] &= ~(UINT64_C(1) << (i & 63));
    c->ndead--;
}

static inline mt_chunk *mt_chunk_next(mt_chunk *c) {
    /* pairs with: mt_store_release in mt_chunk_link */
    return (mt_chunk *)mt_load_acquire_uptr(&c->next);
}
static inline void mt_chunk_link(mt_chunk *c, mt_chunk *next) {
    /* pairs with: mt_load_acquire in mt_chunk_next */
    mt_store_release_uptr(&c->next, (uintptr_t)next);
}

static inline int mt_chunk_retired(mt_chunk *c) { return mt_chunk_next(c) == c; }

/* Self-link. 1: nobody stands on it, the caller frees it. */
static inline int mt_chunk_retire(mt_chunk *c) {
    mt_chunk_link(c, c);
    return c->pins == 0;
}

static inline void mt_chunk_pin(mt_chunk *c) { c->pins++; }
/* 1: it is retired and this was the last pin: the caller frees it. */
static inline int mt_chunk_unpin(mt_chunk *c) { return --c->pins == 0 && mt_chunk_retired(c); }

static inline void mt_chunk_free(mt_chunk *c) { free(c); }

#endif
