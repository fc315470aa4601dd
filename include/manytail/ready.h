/* Which sub-queue is next: rings of ready sub-queues and a small index over their priorities.
 *
 *   best (heap by priority)         level 0: front -> [A] <-> [D] <-> [B] -> (back to A)      the ring of a priority
 *      [level 0]                    level 7: front -> [C]
 *      /       \
 *  [level 7]  ...                   with selection "oldest" a level holds a heap by put time instead of a ring
 *
 * This replaces the rotation of the LinkedBlockingMultiQueue, which walks over idle sub-queues at each get and lets a
 * removal cost its neighbour a turn. Here a get touches only what is ready: finding the best priority is looking at the
 * top of a heap, finding the next sub-queue is looking at the front of a ring. Joining, leaving and rotating are O(1)
 * ("oldest": O(log ready)), plus O(log levels) when a priority starts or stops having anything ready.
 *
 * Everything here is written and read under the take lock. Memory for the heaps is reserved when a sub-queue is given
 * its level, so that nothing that happens while items move can fail.
 */
#ifndef MANYTAIL_READY_H
#define MANYTAIL_READY_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "atomics.h"

/* ------------------------------------------------------------------ a binary heap that tells its members their place */
typedef struct {
    int64_t key;
    void *obj;
    uint32_t *slot; /* where obj keeps its index in this heap */
} mt_heap_item;

typedef struct {
    mt_heap_item *items;
    uint32_t n, cap;
} mt_heap;

/* 0, or -1: no memory, nothing changed. */
static inline int mt_heap_reserve(mt_heap *h, uint32_t n) {
    mt_heap_item *items;
    uint32_t cap = h->cap ? h->cap : 4;
    if (n <= h->cap) return 0;
    while (cap < n) cap *= 2;
    items = (mt_heap_item *)realloc(h->items, (size_t)cap * sizeof(mt_heap_item));
    if (items == NULL) return -1;
    h->items = items;
    h->cap = cap;
    return 0;
}

static inline void mt_heap_place(mt_heap *h, uint32_t i, mt_heap_item it) {
    h->items[i] = it;
    *it.slot = i;
}

/* Put `it` where it belongs, given that place i is free. */
static inline void mt_heap_sift(mt_heap *h, uint32_t i, mt_heap_item it) {
    uint32_t child;
    while (i > 0 && it.key < h->items[(i - 1) / 2].key) {
        mt_heap_place(h, i, h->items[(i - 1) / 2]);
        i = (i - 1) / 2;
    }
    while ((child = 2 * i + 1) < h->n) {
        if (child + 1 < h->n && h->items[child + 1].key < h->items[child].key) child++;
        if (it.key <= h->items[child].key) break;
        mt_heap_place(h, i, h->items[child]);
        i = child;
    }
    mt_heap_place(h, i, it);
}

static inline void mt_heap_push(mt_heap *h, int64_t key, void *obj, uint32_t *slot) {
    mt_heap_item it;
    it.key = key;
    it.obj = obj;
    it.slot = slot;
    h->n++;
    mt_heap_sift(h, h->n - 1, it);
}

static inline void mt_heap_remove(mt_heap *h, uint32_t i) {
    mt_heap_item last = h->items[--h->n];
    if (i != h->n) mt_heap_sift(h, i, last);
}

static inline void mt_heap_rekey(mt_heap *h, uint32_t i, int64_t key) {
    mt_heap_item it = h->items[i];
    it.key = key;
    mt_heap_sift(h, i, it);
}

/* ------------------------------------------------------------------------------------------------- levels and rings */
struct mt_level;

typedef struct mt_ready_node {
    struct mt_ready_node *next, *prev; /* in the ring of its level; undefined when not listed */
    struct mt_level *level;            /* its priority's level while attached, else NULL */
    uint32_t slot;                     /* its index in level->by_time */
    uint32_t listed;                   /* 1: in the ring or heap of its level */
} mt_ready_node;

typedef struct mt_level {
    int64_t priority;
    mt_ready_node *front; /* whose turn it is, NULL when nothing is listed; ring only */
    uint32_t nready;      /* listed members */
    uint32_t nsubs;       /* attached sub-queues of this priority; the level goes with the last */
    uint32_t slot;        /* its index in mt_ready.best while nready > 0 */
    mt_heap by_time;      /* selection "oldest" only */
} mt_level;

typedef struct {
    mt_level *top;     /* the level with the smallest priority among those with nready > 0, NULL if there is none */
    mt_heap best;      /* the levels with nready > 0; its top is `top` */
    mt_level **levels; /* all levels, ascending by priority */
    uint32_t nlevels, cap;
    uint32_t oldest; /* 1: levels order their members by put time */
} mt_ready;

/* Index of the first level whose priority is >= `priority`. */
static inline uint32_t mt_ready_search(const mt_ready *r, int64_t priority) {
    uint32_t lo = 0, hi = r->nlevels;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (r->levels[mid]->priority < priority) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo;
}

static inline mt_level *mt_ready_new_level(mt_ready *r, int64_t priority, uint32_t at) {
    mt_level *l;
    if (r->nlevels == r->cap) {
        uint32_t cap = r->cap ? r->cap * 2 : 4;
        mt_level **levels = (mt_level **)realloc(r->levels, (size_t)cap * sizeof(mt_level *));
        if (levels == NULL) return NULL;
        r->levels = levels;
        r->cap = cap;
    }
    if (mt_heap_reserve(&r->best, r->nlevels + 1) < 0) return NULL;
    l = (mt_level *)calloc(1, sizeof(mt_level));
    if (l == NULL) return NULL;
    l->priority = priority;
    memmove(r->levels + at + 1, r->levels + at, (r->nlevels - at) * sizeof(mt_level *));
    r->levels[at] = l;
    r->nlevels++;
    return l;
}

static inline void mt_ready_drop_level(mt_ready *r, mt_level *l) {
    uint32_t at = mt_ready_search(r, l->priority);
    r->nlevels--;
    memmove(r->levels + at, r->levels + at + 1, (r->nlevels - at) * sizeof(mt_level *));
    free(l->by_time.items);
    free(l);
}

/* The level of that priority with room for one more member, made if missing. NULL: no memory, nothing changed. */
static inline mt_level *mt_ready_join_level(mt_ready *r, int64_t priority) {
    uint32_t at = mt_ready_search(r, priority);
    mt_level *l = at < r->nlevels && r->levels[at]->priority == priority ? r->levels[at] : NULL;
    if (l == NULL && (l = mt_ready_new_level(r, priority, at)) == NULL) return NULL;
    if (r->oldest && mt_heap_reserve(&l->by_time, l->nsubs + 1) < 0) {
        if (l->nsubs == 0) mt_ready_drop_level(r, l);
        return NULL;
    }
    l->nsubs++;
    return l;
}

static inline void mt_ready_leave_level(mt_ready *r, mt_level *l) {
    if (--l->nsubs == 0) mt_ready_drop_level(r, l);
}

/* Join at the end of the turn ("oldest": at the place that `stamp` gives). */
static inline void mt_ready_append(mt_ready *r, mt_ready_node *n, int64_t stamp) {
    mt_level *l = n->level;
    if (r->oldest) {
        mt_heap_push(&l->by_time, stamp, n, &n->slot);
    } else if (l->front == NULL) {
        l->front = n->next = n->prev = n;
    } else {
        n->next = l->front;
        n->prev = l->front->prev;
        n->prev->next = n;
        n->next->prev = n;
    }
    n->listed = 1;
    if (l->nready++ == 0) {
        mt_heap_push(&r->best, l->priority, l, &l->slot);
        r->top = (mt_level *)r->best.items[0].obj;
    }
}

static inline void mt_ready_remove(mt_ready *r, mt_ready_node *n) {
    mt_level *l = n->level;
    if (r->oldest) {
        mt_heap_remove(&l->by_time, n->slot);
    } else if (l->nready == 1) {
        l->front = NULL;
    } else {
        n->prev->next = n->next;
        n->next->prev = n->prev;
        if (l->front == n) l->front = n->next;
    }
    n->listed = 0;
    if (--l->nready == 0) {
        mt_heap_remove(&r->best, l->slot);
        r->top = r->best.n ? (mt_level *)r->best.items[0].obj : NULL;
    }
}

/* `n` takes the place of `old`, the only member of its level: remove and append in one, and the level stays listed. */
static inline void mt_ready_replace(mt_ready *r, mt_ready_node *old, mt_ready_node *n, int64_t stamp) {
    mt_level *l = n->level;
    if (r->oldest) {
        mt_heap_item it;
        it.key = stamp;
        it.obj = n;
        it.slot = &n->slot;
        mt_heap_place(&l->by_time, 0, it);
    } else {
        l->front = n->next = n->prev = n;
    }
    old->listed = 0;
    n->listed = 1;
}

static inline mt_ready_node *mt_ready_front(const mt_ready *r, const mt_level *l) {
    return r->oldest ? (mt_ready_node *)l->by_time.items[0].obj : l->front;
}

static inline void mt_ready_free(mt_ready *r) {
    free(r->best.items);
    free(r->levels);
    memset(r, 0, sizeof(*r));
}

#endif
