/* The strict order: linked entries, and the positions that stand on them.
 *
 * A queue's order is one list per level, most urgent level first; FIFO, sorted and last-value queues have one level. An
 * entry stays linked from its put until it is dead, whoever acquires and releases it in between, so a released entry is at
 * its old place without being moved. A dead entry is unlinked at once and linked to itself.
 *
 *     first                                              last
 *       |                                                 |
 *       v                                                 v
 *     [ A ]<->[ A ]<->[ acquired ]<->[ A ]<->[ A ]<->[ acquired ]
 *                ^                      ^                             ^
 *             stand                   stand                          end stand
 *              pos                   pos, pos                        pos, pos, pos, ...
 *
 * A position is the next entry that a reader (a subscription's pointer, an iterator) has not passed yet; NULL is the end.
 * Readers that are at the same place share a `stand`, so an append or an unlink moves all of them in O(1): appending costs
 * nothing per idle reader, and a reader never stands on a dead entry. Two stands that meet are merged, the smaller into
 * the larger.
 *
 * Source: the ordered entry list of Qpid's queue, after java.util.concurrent's ConcurrentLinkedQueue. That one leaves dead
 * nodes for a scavenger, because its readers keep raw pointers; here the positions are known to the list, so nothing dead
 * is ever walked over.
 *
 * Progress: every function here is called under the queue's order lock (with the GIL: attached), and does O(1) steps but for
 * the merge of two stands. Only `refs` and `word` of an entry are touched without it.
 *
 * Invariants
 *   L1  `order` strictly grows along a list, and from one level to the next less urgent one.
 *   L2  entry->stand, if any, stands on that entry; list->end, if any, stands on NULL. stand->n = positions on it > 0.
 *   L3  a stand with n positions has n - 1 spare ones, one per position beyond the first: moving never allocates.
 */
#ifndef MANYTAIL_LINK_H
#define MANYTAIL_LINK_H

#include <stdlib.h>
#include <string.h>

#include "atomics.h"
#include "entry_state.h"

struct mt_entry;
struct mt_stand;

typedef struct mt_pos {
    struct mt_stand *stand;
    struct mt_pos *prev, *next; /* on the same stand */
} mt_pos;

typedef struct mt_stand {
    struct mt_entry *at;
    mt_pos *first;
    struct mt_stand *spare;
    int64_t n;
} mt_stand;

/* What only some entries have. */
typedef struct mt_entry_more {
    int64_t expires;                /* monotonic ns, 0: never */
    int64_t due;                    /* HELD until then */
    int64_t timer;                  /* place in the timer heap + 1, 0: not there */
    void *group;                    /* its group's key record, or NULL */
    void *slot;                     /* last-value queue: its key's record, or NULL */
    const void *origin;             /* identity only; `extra` keeps it alive */
    struct mt_entry *older, *newer; /* order of arrival, of a sorted queue that drops the oldest */
    struct mt_entry *group_next, *group_prev;
} mt_entry_more;

typedef struct mt_entry {
    mt_atomic_i64 word; /* entry_state.h */
    mt_atomic_u32 refs; /* 1 for being linked, 1 per handle, heap item, iterator */
    uint16_t level;
    uint16_t keyed;               /* it is an mt_keyed_entry */
    int64_t seq;                  /* arrival number */
    uint64_t order;               /* L1; constant, except in a sorted queue */
    struct mt_entry *next, *prev; /* itself: not linked any more */
    struct mt_entry *held_next,
        *held_prev; /* among those its subscription holds; held_next of a dead one: to be disposed of */
    void *owner;    /* the subscription that holds it, or NULL */
    mt_stand *stand;
    void *item;          /* a counted Python reference while linked */
    void *extra;         /* the same: headers and the like, or NULL */
    int64_t born;        /* coarse monotonic ns */
    mt_entry_more *more; /* or NULL */
    int32_t priority;
    uint32_t reason; /* why it died */
} mt_entry;

/* An entry of a sorted queue; the others are spared the room. */
typedef struct mt_keyed_entry {
    mt_entry e;
    void *key; /* a counted Python reference */
} mt_keyed_entry;

typedef struct {
    mt_entry *first, *last;
    mt_stand *end;
} mt_list;

/* ------------------------------------------------------------------------------------------------------ entries */
static inline mt_entry *mt_entry_new(int keyed) {
    size_t size = keyed ? sizeof(mt_keyed_entry) : sizeof(mt_entry);
    mt_entry *e = (mt_entry *)malloc(size);
    if (e == NULL) return NULL;
    memset((void *)e, 0, size);
    e->keyed = keyed != 0;
    /* relaxed because: nobody else has it yet */
    mt_store_relaxed_u32(&e->refs, 1);
    return e;
}
/* Of a keyed entry. */
static inline void **mt_entry_key(mt_entry *e) { return &((mt_keyed_entry *)(void *)e)->key; }
static inline void mt_entry_keep(mt_entry *e) {
    /* relaxed because: the caller has a reference, or the lock under which the list has one */
    mt_fetch_add_relaxed_u32(&e->refs, 1);
}
static inline void mt_entry_drop(mt_entry *e) {
    /* pairs with: itself in other threads: the last one sees all that the others did */
    if (mt_fetch_add_acq_rel_u32(&e->refs, (uint32_t)-1) != 1) return;
    free(e->more);
    free((void *)e);
}

/* ----------------------------------------------------------------------------------------------------- positions */
static inline mt_stand **mt_place(mt_list *l, mt_entry *at) { return at != NULL ? &at->stand : &l->end; }
static inline mt_entry *mt_pos_at(const mt_pos *p) { return p->stand->at; }

static inline void mt_stand_join(mt_stand *s, mt_pos *p) {
    p->stand = s;
    p->prev = NULL;
    p->next = s->first;
    if (s->first != NULL) s->first->prev = p;
    s->first = p;
    s->n++;
}

/* Put p on `at`; `own` is the stand it brings along. */
static inline void mt_pos_enter(mt_list *l, mt_pos *p, mt_stand *own, mt_entry *at) {
    mt_stand **place = mt_place(l, at);
    if (*place != NULL) {
        own->spare = (*place)->spare;
        (*place)->spare = own;
    } else {
        own->at = at;
        own->first = NULL;
        own->spare = NULL;
        own->n = 0;
        *place = own;
    }
    mt_stand_join(*place, p);
}

/* Take p off; the stand that it takes along. */
static inline mt_stand *mt_pos_leave(mt_list *l, mt_pos *p) {
    mt_stand *s = p->stand, *own;
    if (s->n == 1) {
        *mt_place(l, s->at) = NULL;
        p->stand = NULL;
        return s;
    }
    own = s->spare;
    s->spare = own->spare;
    if (p->prev != NULL) {
        p->prev->next = p->next;
    } else {
        s->first = p->next;
    }
    if (p->next != NULL) p->next->prev = p->prev;
    s->n--;
    p->stand = NULL;
    return own;
}

static inline void mt_pos_move(mt_list *l, mt_pos *p, mt_entry *to) {
    mt_stand *s = p->stand;
    mt_stand **place = mt_place(l, to);
    if (MT_LIKELY(s->n == 1 && *place == NULL)) {
        *mt_place(l, s->at) = NULL;
        s->at = to;
        *place = s;
        return;
    }
    if (s->at != to) mt_pos_enter(l, p, mt_pos_leave(l, p), to);
}

/* 0: no memory. */
static inline int mt_pos_open(mt_list *l, mt_pos *p, mt_entry *at) {
    mt_stand *own = (mt_stand *)malloc(sizeof(mt_stand));
    if (own == NULL) return 0;
    mt_pos_enter(l, p, own, at);
    return 1;
}
static inline void mt_pos_close(mt_list *l, mt_pos *p) {
    if (p->stand != NULL) free(mt_pos_leave(l, p));
}

/* All that stand on `from` go to `to`. */
static inline void mt_stand_move(mt_list *l, mt_entry *from, mt_entry *to) {
    mt_stand **there = mt_place(l, to), *s = *mt_place(l, from), *big, *last;
    mt_pos *p, *next;
    *mt_place(l, from) = NULL;
    if (s == NULL) return;
    big = *there;
    if (big == NULL || big->n < s->n) { /* the smaller one is moved */
        mt_stand *t = s;
        s = big;
        big = t;
    }
    big->at = to;
    *there = big;
    if (s == NULL) return;
    for (p = s->first; p != NULL; p = next) {
        next = p->next;
        mt_stand_join(big, p);
    }
    for (last = s; last->spare != NULL; last = last->spare) {
    }
    last->spare = big->spare;
    big->spare = s;
}

/* --------------------------------------------------------------------------------------------------------- lists */
static inline void mt_list_append(mt_list *l, mt_entry *e) {
    e->next = NULL;
    e->prev = l->last;
    if (l->last != NULL) {
        l->last->next = e;
    } else {
        l->first = e;
    }
    l->last = e;
    if (l->end != NULL) { /* whoever had passed everything has not passed this */
        e->stand = l->end;
        e->stand->at = e;
        l->end = NULL;
    }
}

/* Link e directly before `at` (NULL: at the end). Positions on `at` now stand on e. */
static inline void mt_list_insert(mt_list *l, mt_entry *e, mt_entry *at) {
    if (at == NULL) {
        mt_list_append(l, e);
        return;
    }
    e->next = at;
    e->prev = at->prev;
    if (at->prev != NULL) {
        at->prev->next = e;
    } else {
        l->first = e;
    }
    at->prev = e;
    mt_stand_move(l, at, e);
}

static inline void mt_list_unlink(mt_list *l, mt_entry *e) {
    if (e->stand != NULL) mt_stand_move(l, e, e->next);
    if (e->prev != NULL) {
        e->prev->next = e->next;
    } else {
        l->first = e->next;
    }
    if (e->next != NULL) {
        e->next->prev = e->prev;
    } else {
        l->last = e->prev;
    }
    e->next = e;
    e->prev = NULL;
}

static inline int mt_entry_linked(const mt_entry *e) { return e->next != e; }

/* -------------------------------------------------------------------------------------------------------- a heap
 * Entries that a pointer has passed and that are to be looked at again: released, or arrived before it. The smallest order
 * comes out first. An entry may be in it twice, and one that was taken meanwhile stays until it comes to the top or
 * mt_again_shrink drops it. */
typedef struct {
    uint64_t order;
    mt_entry *e;
} mt_again_item;

typedef struct {
    mt_again_item *items;
    int64_t n, room;
} mt_again;

static inline void mt_again_up(mt_again *h, int64_t i) {
    mt_again_item x = h->items[i];
    while (i > 0 && h->items[(i - 1) / 2].order > x.order) {
        h->items[i] = h->items[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    h->items[i] = x;
}

static inline void mt_again_down(mt_again *h, int64_t i) {
    mt_again_item x = h->items[i];
    for (;;) {
        int64_t c = 2 * i + 1;
        if (c >= h->n) break;
        if (c + 1 < h->n && h->items[c + 1].order < h->items[c].order) c++;
        if (h->items[c].order >= x.order) break;
        h->items[i] = h->items[c];
        i = c;
    }
    h->items[i] = x;
}

static inline void mt_again_pop(mt_again *h) {
    mt_entry *e = h->items[0].e;
    h->n--;
    if (h->n > 0) {
        h->items[0] = h->items[h->n];
        mt_again_down(h, 0);
    }
    mt_entry_drop(e);
}

static inline int mt_again_compare(const void *a, const void *b) {
    uint64_t x = ((const mt_again_item *)a)->order, y = ((const mt_again_item *)b)->order;
    return x < y ? -1 : x > y;
}

/* Drop what is not AVAILABLE and what is there twice; read the orders anew. Sorted arrays are heaps. */
static MT_NOINLINE void mt_again_shrink(mt_again *h) {
    int64_t i, n = 0;
    for (i = 0; i < h->n; i++) {
        mt_entry *e = h->items[i].e;
        if (mt_word_state(mt_entry_word(&e->word)) != MT_ENTRY_AVAILABLE) {
            mt_entry_drop(e);
            continue;
        }
        h->items[n].e = e;
        h->items[n++].order = e->order;
    }
    if (n) qsort(h->items, (size_t)n, sizeof(mt_again_item), mt_again_compare);
    h->n = 0;
    for (i = 0; i < n; i++) {
        if (h->n && h->items[h->n - 1].e == h->items[i].e) {
            mt_entry_drop(h->items[i].e);
        } else {
            h->items[h->n++] = h->items[i];
        }
    }
}

/* 0: no memory. */
static inline int mt_again_push(mt_again *h, mt_entry *e) {
    if (h->n == h->room) {
        mt_again_item *more;
        if (h->n) mt_again_shrink(h);
        if (h->n * 2 >= h->room) { /* else half of it was stale: the next time is as many pushes away */
            int64_t room = h->room ? h->room * 2 : 16;
            more = (mt_again_item *)realloc(h->items, (size_t)room * sizeof(mt_again_item));
            if (more == NULL) return 0;
            h->items = more;
            h->room = room;
        }
    }
    mt_entry_keep(e);
    h->items[h->n].order = e->order;
    h->items[h->n].e = e;
    h->n++;
    mt_again_up(h, h->n - 1);
    return 1;
}

static inline void mt_again_free(mt_again *h) {
    int64_t i;
    for (i = 0; i < h->n; i++) mt_entry_drop(h->items[i].e);
    free(h->items);
    h->items = NULL;
    h->n = h->room = 0;
}

/* ------------------------------------------------------------------------------------------------------- timers
 * Entries by the time when something is due to them (un-hold or expire): a binary heap that knows where everybody is, so
 * that an entry which dies before its time leaves nothing behind. Borrowed: only linked entries are in it. */
typedef struct {
    int64_t when;
    mt_entry *e;
} mt_timer;

typedef struct {
    mt_timer *items;
    int64_t n, room;
} mt_timers;

static inline void mt_timers_put(mt_timers *h, int64_t i, mt_timer t) {
    h->items[i] = t;
    t.e->more->timer = i + 1;
}

static inline void mt_timers_settle(mt_timers *h, int64_t i) {
    mt_timer t = h->items[i];
    while (i > 0 && h->items[(i - 1) / 2].when > t.when) {
        mt_timers_put(h, i, h->items[(i - 1) / 2]);
        i = (i - 1) / 2;
    }
    for (;;) {
        int64_t c = 2 * i + 1;
        if (c >= h->n) break;
        if (c + 1 < h->n && h->items[c + 1].when < h->items[c].when) c++;
        if (h->items[c].when >= t.when) break;
        mt_timers_put(h, i, h->items[c]);
        i = c;
    }
    mt_timers_put(h, i, t);
}

/* Room for one more; 0: no memory. So that mt_timers_set cannot fail. */
static inline int mt_timers_reserve(mt_timers *h, int64_t n) {
    mt_timer *more;
    int64_t room = h->room ? h->room : 16;
    if (n <= h->room) return 1;
    while (room < n) room *= 2;
    more = (mt_timer *)realloc(h->items, (size_t)room * sizeof(mt_timer));
    if (more == NULL) return 0;
    h->items = more;
    h->room = room;
    return 1;
}

static inline void mt_timers_remove(mt_timers *h, mt_entry *e) {
    int64_t i = e->more->timer - 1;
    if (i < 0) return;
    e->more->timer = 0;
    h->n--;
    if (i == h->n) return;
    mt_timers_put(h, i, h->items[h->n]);
    mt_timers_settle(h, i);
}

static inline void mt_timers_set(mt_timers *h, mt_entry *e, int64_t when) {
    mt_timer t;
    mt_timers_remove(h, e);
    t.when = when;
    t.e = e;
    mt_timers_put(h, h->n++, t);
    mt_timers_settle(h, h->n - 1);
}

#endif
