/* The publish/subscribe list: one chain of messages, a cursor per subscriber, freeing from the old end only.
 *
 *      oldest                                                        newest
 *     [ . . m m m m S ]--next-->[ m m m m m m m ]--next-->[ m m m _ _ _ _ ]        . let go   _ empty   S sealed
 *           ^released, trimmed      ^cursor of B              ^cursor of A
 *
 * Source: the publish/subscribe queue of disclosure IPCOM000185635D (each message is expected by exactly those who were
 * subscribed when it was published), completed by the third construction of docs/design/pubsub.md: no count is kept in a
 * message. A message's place in the chain is its sequence number; a subscriber's cursor is the sequence number it takes next; message n
 * is expected by exactly { s : first_s <= n, cursor_s <= n }, so what is still expected is the run from the smallest cursor
 * on. Why that is exact, and what replaces the disclosure's invariant: docs/design/pubsub.md.
 *
 * PUBLISH writes the first empty slot of the newest chunk by compare-and-swap, or links a chunk that begins with the new messages.
 * A run of messages is one such chunk, so it appears at one instant and without gaps; the chunk before it is SEALED where it
 * ends. So a chunk's `next` is only linked when all its slots before the seal are full, and slots fill in order.
 * TAKE reads the slot at the cursor and moves the cursor. Only threads that share a subscriber take turns (its lock).
 * TRIM: whoever moves the smallest cursor, or leaves, lets go of what nobody expects any more. One thread at a time (`trimming`); who comes
 * meanwhile leaves a note instead of waiting, and whoever is in there looks again.
 * JOIN, one at a time: a new cursor is first JOINING (smaller than every position), then is counted in `joins`, then looks where to stand.
 *     joiner:  cursor = JOINING; joins += 1; read the end and the cursors           who looks:  read joins; read the cursors; read joins
 * All are sequentially consistent. Who finds `joins` the same on both sides has seen JOINING or the new cursor, or the joiner looks after
 * it, and stands no earlier than what it found. A trimmer that sees JOINING gives up; the joiner trims when it has joined. A publisher at
 * the bound cannot wait for the joiner, so it sends it back: it changes JOINING, and a joiner whose JOINING was changed chooses again.
 *
 * Invariants
 *   I1  released <= trimmed <= every cursor <= end, at every moment; JOINING does not count.
 *   I2  a subscriber stands in the chunk of its cursor, or at the end of the one before; a chunk is unlinked only when every cursor is
 *       beyond the first slot of the next one. So a cursor keeps its chunk alive.
 *   I3  one reference to each message in [released, end) belongs to the list; taking adds one for the taker before it moves the cursor.
 *   I4  whoever moves a cursor away from `trimmed`, or takes one out, trims after that, or has seen a cursor that still stands there, or one
 *       that is JOINING.
 *
 * Progress: publishing, leaving and trimming are lock-free; a take is wait-free among different subscribers (the retries of a take are
 * steps along the chain). Joiners take turns (join_lock) and wait for nobody else. Publishers and joiners reach chunks that may be
 * unlinked meanwhile, so they hold a pin of `epoch` (epoch.h), and so does who unlinks.
 *
 * Serial lists (`serial` = 1): items are Python objects and there is a GIL. The GIL is the lock: every function here
 * runs attached and no Python code runs half way, so plain stores do. A serial list without subscribers keeps no chunk up to date:
 * publishing only counts.
 *
 * MT_PUBSUB_HOLD(item) adds the taker's reference.
 */
#ifndef MANYTAIL_PUBSUB_H
#define MANYTAIL_PUBSUB_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "atomics.h"
#include "delays.h"
#include "epoch.h"
#include "lock.h"
#include "multiqueue.h"
#include "waitlist.h"

#ifndef MT_PUBSUB_HOLD
#define MT_PUBSUB_HOLD(item) ((void)(item))
#endif

#ifndef MT_PUBSUB_FIRST_CAP
#define MT_PUBSUB_FIRST_CAP 10 /* slots of a small chunk: 120 bytes */
#endif

/* Results besides MT_OK ... of multiqueue.h. */
enum { MT_LAGGED = 16, MT_CLOSED = 17, MT_UNRETAINED = 18 };

/* What a slot holds that holds no item. */
enum { MT_SLOT_EMPTY = 0, MT_SLOT_SHUT = 1, MT_SLOT_SEAL = 2 };

#define MT_JOINING INT64_MIN /* and above: how often it was sent back. Every negative cursor is one that is joining. */
#define MT_NOBODY INT64_MAX

typedef struct mt_pchunk {
    mt_retired retired;
    mt_atomic_uptr next;
    int64_t base;       /* position of slot 0; constant once linked */
    uint32_t cap;       /* constant */
    mt_atomic_u32 used; /* a hint: slots before it are not empty */
} mt_pchunk;            /* then: cap slots */

typedef struct mt_subscriber {
    mt_lock lock; /* threads that share this subscriber; who moves or wakes it from outside */
    mt_atomic_i64
        cursor; /* position it takes next, MT_JOINING, or MT_NOBODY: closed or unused. Changed under the lock, or sent back. */
    mt_pchunk *chunk;           /* lock: see I2 */
    uint32_t idx;               /* lock: slot of `cursor` in chunk; at cap or at the seal the next chunk follows */
    uint32_t closed;            /* lock */
    int64_t missed;             /* lock: dropped since it was last told */
    int64_t left_at;            /* lock: where it was when it was closed */
    mt_waitlist getters;        /* lock */
    mt_atomic_u32 waiting;      /* getters.n, for publishers to look at without the lock */
    mt_atomic_u32 taken;        /* 1: some subscriber object has this record */
    struct mt_subscriber *next; /* constant; every record of the list */
    char pad[MT_CACHE_LINE];
} mt_subscriber;

typedef struct mt_pubsub {
    /* -- publishers ------------------------------------------------------------------------------------------------ */
    mt_atomic_uptr tail;   /* the newest chunk or one shortly before it */
    mt_atomic_i64 maxsize; /* <= 0: no bound */
    int64_t end;           /* serial: position after the newest message */
    uint32_t tail_idx;     /* serial: next free slot of tail */
    uint32_t serial;       /* constant */
    uint32_t slow;         /* constant: MT_SLOW_* */
    mt_atomic_u32 shut;
    mt_atomic_u32 nwaiting;     /* getters that wait, of all subscribers */
    mt_atomic_u32 room_waiting; /* publishers that wait */
    char pad0[MT_CACHE_LINE];
    /* -- who takes, who trims -------------------------------------------------------------------------------------- */
    mt_atomic_u32 trimming; /* MT_TRIM_* */
    mt_atomic_u32 nsubs;
    mt_atomic_i64 trimmed;  /* what lies before it is expected by nobody */
    mt_atomic_i64 joins;    /* how many began to join */
    mt_atomic_uptr blocker; /* a subscriber that stood at `trimmed` when that was last looked at; a hint */
    mt_atomic_uptr oldest;  /* the first chunk of the chain */
    int64_t released;       /* trimmer: what lies before it is let go */
    int64_t others;         /* trimmer, serial: no subscriber but the blocker stands before it */
    char pad1[MT_CACHE_LINE];
    /* -- seldom written -------------------------------------------------------------------------------------------- */
    mt_atomic_uptr records; /* every record there ever was; pushed at the front, never taken off */
    mt_atomic_i64 dropped;
    mt_atomic_u32 begun; /* options were set: they cannot be set again */
    mt_lock join_lock;   /* who joins */
    mt_lock room_lock;   /* slow: MT_SLOW_DROP: who drops messages until its own is in, who shuts */
    mt_waitlist putters; /* room_lock */
    struct mt_pubsub *reg_next, *reg_prev;
    mt_epoch epoch;
} mt_pubsub;

enum { MT_SLOW_BLOCK = 0, MT_SLOW_RAISE = 1, MT_SLOW_DROP = 2 };
enum { MT_TRIM_IDLE = 0, MT_TRIM_BUSY = 1, MT_TRIM_AGAIN = 2 };

/* What a trim let go of; the caller gives the references up with nothing held. */
#define MT_DROPS 64
typedef struct {
    uint32_t n;
    uint32_t more;      /* call again */
    uint32_t moved;     /* there is more room than before */
    mt_retired *chunks; /* for mt_retired_free */
    uintptr_t items[MT_DROPS];
} mt_drops;

/* ---------------------------------------------------------------------------------------------------------- chunks */
static inline mt_atomic_uptr *mt_pchunk_slots(mt_pchunk *c) { return (mt_atomic_uptr *)(void *)(c + 1); }

static inline mt_pchunk *mt_pchunk_new(uint32_t cap, int64_t base) {
    mt_pchunk *c = (mt_pchunk *)calloc(1, sizeof(mt_pchunk) + (size_t)cap * sizeof(mt_atomic_uptr));
    if (c == NULL) return NULL;
    c->base = base;
    c->cap = cap;
    return c;
}

static inline void mt_pchunk_destroy(mt_retired *r) { free((mt_pchunk *)(void *)r); } /* `retired` comes first */

static inline mt_pchunk *mt_pchunk_next(mt_pchunk *c) {
    /* pairs with: mt_cas_seq_cst in mt_pubsub_link, mt_store_release in mt_pubsub_grow */
    return (mt_pchunk *)mt_load_seq_cst_uptr(&c->next);
}

static inline uintptr_t mt_pchunk_get(mt_pchunk *c, uint32_t i) {
    /* pairs with: mt_cas_seq_cst in mt_pubsub_claim, mt_store_release in mt_pubsub_fill. Sequentially consistent for who has just said
     * that it waits, or that it leaves: either it sees the message, or the publisher sees it. */
    return mt_load_seq_cst_uptr(&mt_pchunk_slots(c)[i]);
}

/* The first slot from the hint on that is empty; cap: none. What is found is kept as the hint. */
static inline uint32_t mt_pchunk_first_empty(mt_pchunk *c) {
    /* relaxed because: a hint; each slot is looked at with acquire */
    uint32_t hint = mt_load_relaxed_u32(&c->used), i = hint;
    while (i < c->cap && mt_pchunk_get(c, i) > MT_SLOT_SEAL) i++;
    if (i != hint) mt_store_relaxed_u32(&c->used, i); /* relaxed because: a hint */
    return i;
}

/* Chunks grow with what stands in the list, so that a short one stays small and a long one costs few allocations. */
static inline uint32_t mt_pchunk_cap_for(mt_pubsub *q, mt_pchunk *before, int64_t position) {
    /* relaxed because: a figure */
    int64_t inside = position - mt_load_relaxed_i64(&q->trimmed);
    if (inside > 4096) return 1018;
    if (inside > 512) return 250;
    return before != NULL && before->cap >= MT_PUBSUB_FIRST_CAP ? 58 : MT_PUBSUB_FIRST_CAP;
}

/* ------------------------------------------------------------------------------------------------- making and ending */
static inline int mt_pubsub_init(mt_pubsub *q, int serial, int64_t maxsize, uint32_t slow) {
    mt_pchunk *c = mt_pchunk_new(MT_PUBSUB_FIRST_CAP, 0);
    if (c == NULL) return MT_NOMEM;
    q->serial = (uint32_t)serial;
    q->slow = slow;
    /* relaxed because: nobody else has it yet */
    mt_store_relaxed_i64(&q->maxsize, maxsize);
    mt_store_relaxed_uptr(&q->tail, (uintptr_t)c);   /* relaxed because: as above */
    mt_store_relaxed_uptr(&q->oldest, (uintptr_t)c); /* relaxed because: as above */
    return MT_OK;
}

/* Nobody uses it any more, and mt_pubsub_trim has let go of all items. */
static inline void mt_pubsub_end(mt_pubsub *q) {
    /* relaxed because: nobody uses it any more */
    mt_pchunk *c = (mt_pchunk *)mt_load_relaxed_uptr(&q->oldest), *next;
    mt_subscriber *s = (mt_subscriber *)mt_load_relaxed_uptr(&q->records), *following; /* relaxed because: as above */
    for (; c != NULL; c = next) {
        next = mt_pchunk_next(c);
        free(c);
    }
    for (; s != NULL; s = following) {
        following = s->next;
        mt_free_aligned(s);
    }
    mt_retired_free(mt_epoch_destroy(&q->epoch));
}

static inline int64_t mt_pubsub_trimmed(mt_pubsub *q) {
    /* pairs with: mt_xchg_seq_cst in mt_pubsub_set_trimmed; sequentially consistent for I4 */
    return mt_load_seq_cst_i64(&q->trimmed);
}

static inline int64_t mt_pubsub_cursor(mt_subscriber *s) {
    /* pairs with: mt_xchg_seq_cst in mt_subscriber_move */
    return mt_load_seq_cst_i64(&s->cursor);
}

/* The cursor as its owner sees it. */
static inline int64_t mt_subscriber_at(mt_subscriber *s) {
    return mt_load_relaxed_i64(&s->cursor); /* relaxed because: changed under the lock that the caller holds */
}

static inline void mt_subscriber_move(mt_pubsub *q, mt_subscriber *s, int64_t cursor) {
    if (q->serial) {
        mt_store_relaxed_i64(&s->cursor, cursor); /* relaxed because: the GIL orders it */
    } else {
        /* pairs with: mt_load_seq_cst in mt_pubsub_cursor, before mt_load_seq_cst of trimmed in mt_pubsub_trimmed and, by who joins,
         * before mt_fetch_add_seq_cst of joins in mt_pubsub_join */
        mt_xchg_seq_cst_i64(&s->cursor, cursor);
    }
}

/* --------------------------------------------------------------------------------------------------------- the newest */
/* The newest chunk and its first empty slot (cap: none); parallel: under a pin. Helps `tail` on. */
static inline mt_pchunk *mt_pubsub_newest(mt_pubsub *q, uint32_t *idx) {
    /* pairs with: mt_cas_acq_rel in mt_pubsub_advance_tail */
    uintptr_t seen = mt_load_acquire_uptr(&q->tail);
    mt_pchunk *c = (mt_pchunk *)seen, *next;
    for (;;) {
        *idx = mt_pchunk_first_empty(c);
        next = mt_pchunk_next(c);
        if (MT_LIKELY(next == NULL)) return c;
        c = next;
        /* pairs with: mt_load_acquire above. Lost: somebody else helped. */
        mt_cas_acq_rel_uptr(&q->tail, &seen, (uintptr_t)c);
        seen = (uintptr_t)c;
    }
}

/* The position after the newest message. Exact when nothing runs beside it. */
static inline int64_t mt_pubsub_position(mt_pubsub *q, mt_retired **freeable) {
    mt_pchunk *c;
    uint32_t i;
    int64_t end;
    mt_pin *pin;
    *freeable = NULL;
    if (q->serial) return q->end;
    pin = mt_epoch_pin(&q->epoch);
    c = mt_pubsub_newest(q, &i);
    end = c->base + i;
    *freeable = mt_epoch_unpin(&q->epoch, pin);
    return end;
}

/* The first of all records. */
static inline mt_subscriber *mt_pubsub_records(mt_pubsub *q) {
    /* pairs with: mt_cas_acq_rel in mt_pubsub_new_record */
    return (mt_subscriber *)mt_load_acquire_uptr(&q->records);
}

/* How many joiners there were: the same before and after a look at the cursors, it has seen them all. */
static inline int64_t mt_pubsub_joins(mt_pubsub *q) {
    /* pairs with: mt_fetch_add_seq_cst in mt_pubsub_join */
    return mt_load_seq_cst_i64(&q->joins);
}

/* The smallest cursor and whose it is; MT_NOBODY, NULL: nobody is subscribed. Who is joining does not count. */
static inline int64_t mt_pubsub_slowest(mt_pubsub *q, mt_subscriber **who) {
    mt_subscriber *s;
    int64_t least = MT_NOBODY, at;
    *who = NULL;
    for (s = mt_pubsub_records(q); s != NULL; s = s->next) {
        at = mt_pubsub_cursor(s);
        if (at < 0 || at >= least) continue;
        least = at;
        *who = s;
    }
    return least;
}

/* The oldest message that somebody expects, or `end`. More up to date than `trimmed`, which waits for a trimmer that sleeps. */
static inline int64_t mt_pubsub_oldest(mt_pubsub *q, int64_t end) {
    mt_subscriber *who;
    int64_t oldest = q->serial ? mt_pubsub_trimmed(q) : mt_pubsub_slowest(q, &who);
    return oldest < end ? oldest : end;
}

/* Once more over the cursors: who is joining is sent back, and looks later than this where to stand. The smallest of `least` and what else
 * is seen. */
static inline int64_t mt_pubsub_send_back(mt_pubsub *q, int64_t least) {
    mt_subscriber *s;
    int64_t at, word;
    for (s = mt_pubsub_records(q); s != NULL; s = s->next) {
        at = word = mt_pubsub_cursor(s);
        /* pairs with: mt_cas_seq_cst in mt_pubsub_show: one of the two fails */
        while (at < 0 && !mt_cas_seq_cst_i64(&s->cursor, &word, at + 1)) at = word = mt_pubsub_cursor(s);
        if (at >= 0 && at < least) least = at;
    }
    return least;
}

/* `trimmed` says that there is no room before `position`; do the cursors say so, too? If they do, they did when the smallest was seen. If not,
 * nobody stands at the bound or will: those who are joining are sent back, and at most one joins at a time. */
static MT_NOINLINE int64_t mt_pubsub_room_now(mt_pubsub *q, int64_t position, int64_t maxsize) {
    int64_t joins, oldest;
    mt_subscriber *who;
    do {
        joins = mt_pubsub_joins(q);
        oldest = mt_pubsub_slowest(q, &who);
        mt_point();
        if (position - oldest < maxsize) oldest = mt_pubsub_send_back(q, oldest);
        mt_point();
    } while (mt_pubsub_joins(q) != joins);
    return maxsize - (oldest < position ? position - oldest : 0);
}

/* How many messages may still be published from `position` on. */
static inline int64_t mt_pubsub_room(mt_pubsub *q, int64_t position) {
    /* relaxed because: a new bound holds for calls that begin after it was set */
    int64_t maxsize = mt_load_relaxed_i64(&q->maxsize), room;
    if (maxsize <= 0) return INT64_MAX;
    room = maxsize - (position - mt_pubsub_trimmed(q));
    return MT_LIKELY(room > 0) || q->serial ? room : mt_pubsub_room_now(q, position, maxsize);
}

/* ----------------------------------------------------------------------------------------------------- publish, serial */
/* Link an empty chunk. 0: no memory. */
static MT_NOINLINE int mt_pubsub_grow(mt_pubsub *q, mt_pchunk *c) {
    mt_pchunk *fresh = mt_pchunk_new(mt_pchunk_cap_for(q, c, q->end), q->end);
    if (fresh == NULL) return 0;
    /* pairs with: mt_load_acquire in mt_pchunk_next */
    mt_store_release_uptr(&c->next, (uintptr_t)fresh);
    mt_store_relaxed_uptr(&q->tail, (uintptr_t)fresh); /* relaxed because: the GIL orders it */
    q->tail_idx = 0;
    return 1;
}

static inline void mt_pubsub_fill(mt_pchunk *c, uint32_t i, uintptr_t item) {
    /* pairs with: mt_load_acquire in mt_pchunk_get */
    mt_store_release_uptr(&mt_pchunk_slots(c)[i], item);
}

/* Serial: nobody is subscribed, and all that was retained is let go (a finalizer may publish while somebody is at it). */
static inline int mt_pubsub_unheard(mt_pubsub *q) {
    return mt_load_relaxed_u32(&q->nsubs) == 0 && q->released == q->end; /* relaxed because: the GIL orders it */
}

/* Then n messages pass by. */
static inline void mt_pubsub_pass_by(mt_pubsub *q, int64_t n) {
    q->end += n;
    /* relaxed because: the GIL orders it */
    mt_store_relaxed_i64(&q->trimmed, q->end);
    q->released = q->end;
}

static inline int mt_pubsub_publish_serial(mt_pubsub *q, uintptr_t item, int64_t *position) {
    /* relaxed because: the GIL orders it, here and below */
    mt_pchunk *c = (mt_pchunk *)mt_load_relaxed_uptr(&q->tail);
    if (MT_UNLIKELY(mt_load_relaxed_u32(&q->shut))) return MT_SHUTDOWN; /* relaxed because: as above */
    *position = q->end;
    if (mt_pubsub_unheard(q)) {
        mt_pubsub_pass_by(q, 1);
        return MT_UNRETAINED;
    }
    if (MT_UNLIKELY(mt_pubsub_room(q, q->end) <= 0)) return MT_FULL;
    if (MT_UNLIKELY(q->tail_idx == c->cap)) {
        if (!mt_pubsub_grow(q, c)) return MT_NOMEM;
        c = (mt_pchunk *)mt_load_relaxed_uptr(&q->tail); /* relaxed because: as above */
    }
    mt_pubsub_fill(c, q->tail_idx, item);
    q->tail_idx++;
    mt_store_relaxed_u32(&c->used, q->tail_idx); /* relaxed because: as above */
    q->end++;
    return MT_OK;
}

/* Up to n items, in one go as far as there is room. The references of *done items were added. */
static inline int mt_pubsub_publish_run_serial(mt_pubsub *q, const uintptr_t *items, int64_t n, int64_t *done) {
    int64_t room = mt_pubsub_room(q, q->end), i, position;
    int r = MT_OK;
    *done = 0;
    if (mt_load_relaxed_u32(&q->shut)) return MT_SHUTDOWN; /* relaxed because: the GIL orders it */
    if (mt_pubsub_unheard(q)) {
        mt_pubsub_pass_by(q, n);
        *done = n;
        return MT_OK;
    }
    if (room < n) {
        n = room > 0 ? room : 0;
        r = MT_FULL;
    }
    for (i = 0; i < n; i++) {
        int one = mt_pubsub_publish_serial(q, items[i], &position);
        if (one != MT_OK) {
            r = one;
            break;
        }
        MT_PUBSUB_HOLD(items[i]);
    }
    *done = i;
    return r;
}

/* --------------------------------------------------------------------------------------------------- publish, parallel */
static inline int mt_pubsub_claim(mt_pchunk *c, uint32_t i, uintptr_t value) {
    uintptr_t empty = MT_SLOT_EMPTY;
    /* pairs with: mt_load_acquire in mt_pchunk_get. Sequentially consistent, before the look at `nwaiting`: either the
     * publisher sees who waits, or who waits sees the message. */
    return mt_cas_seq_cst_uptr(&mt_pchunk_slots(c)[i], &empty, value);
}

/* Make `fresh` the chunk after c, which is full or sealed. */
static inline int mt_pubsub_link(mt_pubsub *q, mt_pchunk *c, mt_pchunk *fresh) {
    uintptr_t none = 0, seen = (uintptr_t)c;
    mt_point();
    /* pairs with: mt_load_acquire in mt_pchunk_next. Sequentially consistent for the same reason as in mt_pubsub_claim. */
    if (!mt_cas_seq_cst_uptr(&c->next, &none, (uintptr_t)fresh)) return 0;
    /* pairs with: mt_load_acquire in mt_pubsub_newest. Lost: somebody else helped. */
    mt_cas_acq_rel_uptr(&q->tail, &seen, (uintptr_t)fresh);
    return 1;
}

/* What stands in the first slot that holds no message: MT_SLOT_EMPTY, _SHUT, _SEAL; a full chunk counts as sealed. */
static inline uintptr_t mt_pubsub_slot_state(mt_pchunk *c, uint32_t i) {
    return i == c->cap ? (uintptr_t)MT_SLOT_SEAL : mt_pchunk_get(c, i);
}

static inline int mt_pubsub_publish_pinned(mt_pubsub *q, uintptr_t item, int64_t *position) {
    mt_pchunk *c, *fresh = NULL;
    uint32_t i;
    for (;;) {
        uintptr_t state;
        c = mt_pubsub_newest(q, &i);
        state = mt_pubsub_slot_state(c, i);
        if (MT_UNLIKELY(state > MT_SLOT_SEAL)) continue; /* somebody was faster */
        if (MT_UNLIKELY(state == MT_SLOT_SHUT)) {
            free(fresh);
            return MT_SHUTDOWN;
        }
        *position = c->base + i;
        if (MT_UNLIKELY(mt_pubsub_room(q, *position) <= 0)) {
            free(fresh);
            return MT_FULL;
        }
        mt_point();
        if (state == MT_SLOT_EMPTY) {
            if (!mt_pubsub_claim(c, i, item)) continue;
            mt_store_relaxed_u32(&c->used, i + 1); /* relaxed because: a hint */
            free(fresh);
            return MT_OK;
        }
        if (fresh == NULL) fresh = mt_pchunk_new(mt_pchunk_cap_for(q, c, *position), 0);
        if (fresh == NULL) return MT_NOMEM;
        fresh->base = *position;
        mt_pubsub_fill(fresh, 0, item);
        if (mt_pubsub_link(q, c, fresh)) return MT_OK;
    }
}

static inline int mt_pubsub_publish_parallel(mt_pubsub *q, uintptr_t item, int64_t *position, mt_retired **freeable) {
    mt_pin *pin = mt_epoch_pin(&q->epoch);
    int r = mt_pubsub_publish_pinned(q, item, position);
    *freeable = mt_epoch_unpin(&q->epoch, pin);
    return r;
}

/* Fill a chunk of exactly these items; those from *held on get a reference. */
static inline mt_pchunk *mt_pubsub_run_chunk(const uintptr_t *items, uint32_t k, int64_t *held) {
    mt_pchunk *fresh = mt_pchunk_new(k, 0);
    uint32_t j;
    if (fresh == NULL) return NULL;
    for (j = 0; j < k; j++) {
        if (j >= *held) MT_PUBSUB_HOLD(items[j]);
        mt_store_relaxed_uptr(&mt_pchunk_slots(fresh)[j], items[j]); /* relaxed because: not linked yet */
    }
    mt_store_relaxed_u32(&fresh->used, k); /* relaxed because: not linked yet */
    if (k > *held) *held = k;
    return fresh;
}

static inline int mt_pubsub_publish_run_pinned(mt_pubsub *q, const uintptr_t *items, int64_t n, int64_t *done,
                                               int64_t *held) {
    mt_pchunk *c, *fresh = NULL;
    uint32_t i, k = 0;
    int64_t room;
    for (;;) {
        uintptr_t state;
        c = mt_pubsub_newest(q, &i);
        state = mt_pubsub_slot_state(c, i);
        if (state > MT_SLOT_SEAL) continue;
        room = mt_pubsub_room(q, c->base + i);
        if (state == MT_SLOT_SHUT || room <= 0) {
            free(fresh);
            return state == MT_SLOT_SHUT ? MT_SHUTDOWN : MT_FULL;
        }
        if (state == MT_SLOT_EMPTY && !mt_pubsub_claim(c, i, MT_SLOT_SEAL)) continue;
        mt_point();
        if (room > n) room = n;
        if (room > 1 << 20) room = 1 << 20;
        if (fresh == NULL || room < (int64_t)k) {
            free(fresh);
            k = (uint32_t)room;
            fresh = mt_pubsub_run_chunk(items, k, held);
            if (fresh == NULL) return MT_NOMEM;
        }
        fresh->base = c->base + i;
        if (mt_pubsub_link(q, c, fresh)) break;
    }
    *done = k;
    return k == n ? MT_OK : MT_FULL;
}

/* Up to n items as one run, *done of them if there is room for no more (MT_FULL). References were added to the first *held, of which
 * the caller takes back those beyond *done. */
static inline int mt_pubsub_publish_run_parallel(mt_pubsub *q, const uintptr_t *items, int64_t n, int64_t *done,
                                                 int64_t *held, mt_retired **freeable) {
    mt_pin *pin = mt_epoch_pin(&q->epoch);
    int r;
    *done = 0;
    *held = 0;
    r = mt_pubsub_publish_run_pinned(q, items, n, done, held);
    *freeable = mt_epoch_unpin(&q->epoch, pin);
    return r;
}

/* After a publish: nobody may expect the message, the publisher trims. */
static inline int mt_pubsub_nobody(mt_pubsub *q) {
    /* pairs with: mt_fetch_add_seq_cst in mt_subscriber_leave: who leaves sees the message, or this sees that it left */
    return mt_load_seq_cst_u32(&q->nsubs) == 0;
}

/* No more messages, from one instant on. */
static inline void mt_pubsub_shut(mt_pubsub *q, mt_retired **freeable) {
    mt_pin *pin;
    mt_pchunk *c, *fresh;
    uint32_t i;
    uintptr_t state;
    *freeable = NULL;
    /* pairs with: mt_load_acquire in mt_pubsub_is_shut */
    mt_xchg_seq_cst_u32(&q->shut, 1);
    if (q->serial) return;
    pin = mt_epoch_pin(&q->epoch);
    for (;;) {
        c = mt_pubsub_newest(q, &i);
        state = mt_pubsub_slot_state(c, i);
        if (state == MT_SLOT_SHUT) break;
        if (state == MT_SLOT_EMPTY && mt_pubsub_claim(c, i, MT_SLOT_SHUT)) break;
        if (state != MT_SLOT_SEAL) continue;
        fresh = mt_pchunk_new(1, c->base + i);
        if (fresh == NULL) {
            mt_yield_cpu(); /* out of memory: an end cannot be refused */
            continue;
        }
        mt_pubsub_fill(fresh, 0, MT_SLOT_SHUT);
        if (mt_pubsub_link(q, c, fresh)) break;
        free(fresh);
    }
    *freeable = mt_epoch_unpin(&q->epoch, pin);
}

/* The flag comes before the end of the list, which alone says what is in: whoever is refused for the flag would know of the end before a
 * message that still goes in. */
static inline int mt_pubsub_is_shut(mt_pubsub *q, mt_retired **freeable) {
    mt_pchunk *c;
    uint32_t i;
    int shut;
    mt_pin *pin;
    *freeable = NULL;
    /* pairs with: mt_xchg_seq_cst in mt_pubsub_shut */
    if (!mt_load_acquire_u32(&q->shut)) return 0;
    if (q->serial) return 1;
    pin = mt_epoch_pin(&q->epoch);
    c = mt_pubsub_newest(q, &i);
    shut = mt_pubsub_slot_state(c, i) == MT_SLOT_SHUT;
    *freeable = mt_epoch_unpin(&q->epoch, pin);
    return shut;
}

/* -------------------------------------------------------------------------------------------------------------- take */
/* Under its lock. The slot that its cursor means, or NULL with the reason in *why: MT_EMPTY, MT_SHUTDOWN. */
static inline mt_atomic_uptr *mt_subscriber_slot(mt_pubsub *q, mt_subscriber *s, uintptr_t *value, int *why) {
    for (;;) {
        mt_pchunk *c = s->chunk, *next;
        uintptr_t v = mt_pubsub_slot_state(c, s->idx);
        *value = v;
        if (MT_LIKELY(v > MT_SLOT_SEAL)) return &mt_pchunk_slots(c)[s->idx];
        next = v == MT_SLOT_SEAL ? mt_pchunk_next(c) : NULL;
        if (next == NULL) {
            /* relaxed because: read only where the GIL orders it */
            *why = v == MT_SLOT_SHUT || (q->serial && mt_load_relaxed_u32(&q->shut)) ? MT_SHUTDOWN : MT_EMPTY;
            return NULL;
        }
        s->chunk = next;
        s->idx = 0;
    }
}

/* Under its lock: MT_OK with a reference for the caller, MT_EMPTY, MT_SHUTDOWN, MT_CLOSED, MT_LAGGED. */
static inline int mt_subscriber_take(mt_pubsub *q, mt_subscriber *s, uintptr_t *item) {
    int why = MT_OK;
    if (MT_UNLIKELY(s->closed)) return MT_CLOSED;
    if (MT_UNLIKELY(s->missed)) return MT_LAGGED;
    if (mt_subscriber_slot(q, s, item, &why) == NULL) return why;
    MT_PUBSUB_HOLD(*item);
    s->idx++;
    mt_point();
    mt_subscriber_move(q, s, mt_subscriber_at(s) + 1);
    return MT_OK;
}

/* Serial, and no other subscriber stands at or before the message: it is let go as it is taken, and the list's own reference goes
 * to the taker. 0: not so, nothing was done. */
static inline int mt_subscriber_take_alone(mt_pubsub *q, mt_subscriber *s, uintptr_t *item) {
    int64_t at = mt_subscriber_at(s);
    uintptr_t blocker = mt_load_relaxed_uptr(&q->blocker);         /* relaxed because: the GIL orders it */
    uintptr_t oldest = mt_load_relaxed_uptr(&q->oldest);           /* relaxed because: the GIL orders it */
    uint32_t room_waiting = mt_load_relaxed_u32(&q->room_waiting); /* relaxed because: the GIL orders it */
    if (blocker != (uintptr_t)s || q->others <= at || q->released != at || oldest != (uintptr_t)s->chunk) return 0;
    if (s->missed || s->getters.n || room_waiting || s->idx == s->chunk->cap) return 0;
    *item = mt_pchunk_get(s->chunk, s->idx);
    if (*item <= MT_SLOT_SEAL) return 0;
    s->idx++;
    q->released = at + 1;
    mt_store_relaxed_i64(&s->cursor, at + 1);  /* relaxed because: the GIL orders it */
    mt_store_relaxed_i64(&q->trimmed, at + 1); /* relaxed because: the GIL orders it */
    return 1;
}

/* Under its lock: is a take worth trying? MT_OK: yes. */
static inline int mt_subscriber_ready(mt_pubsub *q, mt_subscriber *s) {
    uintptr_t item;
    int why = MT_OK;
    if (s->closed) return MT_CLOSED;
    if (s->missed) return MT_OK;
    mt_subscriber_slot(q, s, &item, &why);
    return why;
}

/* Under its lock: how many messages it can take, at most n. */
static inline int64_t mt_subscriber_available(mt_pubsub *q, mt_subscriber *s, int64_t n) {
    mt_pchunk *c = s->chunk, *next;
    int64_t at = mt_subscriber_at(s);
    (void)q;
    while ((next = mt_pchunk_next(c)) != NULL && next->base - at < n) c = next;
    if (next == NULL && c->base + mt_pchunk_first_empty(c) - at < n) n = c->base + mt_pchunk_first_empty(c) - at;
    return n;
}

/* Under its lock, which was held since they were found available. */
static inline int64_t mt_subscriber_take_many(mt_pubsub *q, mt_subscriber *s, uintptr_t *items, int64_t n) {
    int64_t got = 0;
    int why;
    while (got < n && mt_subscriber_slot(q, s, &items[got], &why) != NULL) {
        MT_PUBSUB_HOLD(items[got]);
        s->idx++;
        got++;
    }
    if (got) mt_subscriber_move(q, s, mt_subscriber_at(s) + got);
    return got;
}

/* Under its lock: go on to `position` without taking. */
static inline void mt_subscriber_skip(mt_pubsub *q, mt_subscriber *s, int64_t position) {
    mt_pchunk *next;
    while ((next = mt_pchunk_next(s->chunk)) != NULL && next->base <= position) s->chunk = next;
    s->idx = (uint32_t)(position - s->chunk->base);
    mt_subscriber_move(q, s, position);
}

/* -------------------------------------------------------------------------------------------------------------- trim */
/* After a cursor left `from`: might something be let go of? A cheap look; I4. */
static inline int mt_pubsub_may_trim(mt_pubsub *q, mt_subscriber *s, int64_t from) {
    mt_subscriber *b;
    if (mt_pubsub_trimmed(q) < from) return 0;
    /* relaxed because: a hint, and records are never freed; that it stands there is seen below */
    b = (mt_subscriber *)mt_load_relaxed_uptr(&q->blocker);
    return b == NULL || b == s || mt_pubsub_cursor(b) > from;
}

/* The smallest cursor, or MT_NOBODY; stops at one that is no greater than `enough`. */
static inline int64_t mt_pubsub_smallest(mt_pubsub *q, int64_t enough) {
    mt_subscriber *first, *begin, *s, *least = NULL;
    int64_t m = MT_NOBODY, at;
    first = mt_pubsub_records(q);
    begin = (mt_subscriber *)mt_load_relaxed_uptr(&q->blocker); /* relaxed because: a hint */
    if (first == NULL) return MT_NOBODY;
    if (begin == NULL) begin = first;
    q->others = MT_NOBODY;
    s = begin;
    do {
        at = mt_pubsub_cursor(s);
        if (at < m) {
            q->others = m;
            m = at;
            least = s;
            if (m <= enough) {
                q->others = m;
                break;
            }
        } else if (at < q->others) {
            q->others = at;
        }
        s = s->next != NULL ? s->next : first;
    } while (s != begin);
    mt_store_relaxed_uptr(&q->blocker, (uintptr_t)least); /* relaxed because: a hint */
    return m;
}

/* The same, when the last look still tells it (serial). */
static inline int64_t mt_pubsub_smallest_serial(mt_pubsub *q, int64_t enough) {
    mt_subscriber *b = (mt_subscriber *)mt_load_relaxed_uptr(&q->blocker); /* relaxed because: the GIL orders it */
    if (b != NULL && mt_pubsub_cursor(b) <= q->others) return mt_pubsub_cursor(b);
    return mt_pubsub_smallest(q, enough);
}

static inline void mt_retired_prepend(mt_retired **to, mt_retired *list) {
    while (list != NULL) {
        mt_retired *r = list;
        list = r->next;
        r->next = *to;
        *to = r;
    }
}

/* What lies before m goes. */
static inline void mt_pubsub_set_trimmed(mt_pubsub *q, int64_t m) {
    if (q->serial) {
        mt_store_relaxed_i64(&q->trimmed, m); /* relaxed because: the GIL orders it */
    } else {
        /* pairs with: mt_load_seq_cst in mt_pubsub_trimmed; before the cursors are looked at again */
        mt_xchg_seq_cst_i64(&q->trimmed, m);
    }
}

/* How far may be let go, if that is further than `before`. Somebody who is joining may want what lies there, and trims when it has joined. */
static inline int64_t mt_pubsub_look(mt_pubsub *q, int64_t before, mt_retired **chunks) {
    int64_t joins = 0, m;
    mt_retired *freeable;
    if (!q->serial) joins = mt_pubsub_joins(q);
    m = q->serial ? mt_pubsub_smallest_serial(q, before) : mt_pubsub_smallest(q, before);
    if (m == MT_NOBODY) {
        m = mt_pubsub_position(q, &freeable);
        mt_retired_prepend(chunks, freeable);
    }
    mt_point();
    return m <= before || (!q->serial && mt_pubsub_joins(q) != joins) ? before : m;
}

/* Find out how far may be let go, and say so. Then look again: who moved on unaware of the news has left the rest to us. One that stands
 * there will know of the news when it moves. */
static inline void mt_pubsub_advance(mt_pubsub *q, mt_retired **chunks) {
    int64_t before, m;
    do {
        before = mt_pubsub_trimmed(q);
        m = mt_pubsub_look(q, before, chunks);
        if (m == before) return;
        mt_pubsub_set_trimmed(q, m);
        mt_point();
    } while (!q->serial);
}

/* Unlink the oldest chunk. */
static inline void mt_pubsub_unlink(mt_pubsub *q, mt_pchunk *c, mt_pchunk *next, mt_retired **chunks) {
    uintptr_t seen = (uintptr_t)c;
    mt_retired *freeable;
    mt_pin *pin;
    if (q->serial) {
        mt_store_relaxed_uptr(&q->oldest, (uintptr_t)next); /* relaxed because: the GIL orders it */
        free(c);
        return;
    }
    pin = mt_epoch_pin(&q->epoch);
    /* pairs with: mt_load_acquire in mt_pubsub_newest: the newest is never looked for from an unlinked chunk on */
    mt_cas_acq_rel_uptr(&q->tail, &seen, (uintptr_t)next);
    /* pairs with: mt_load_acquire in mt_pubsub_choose */
    mt_store_release_uptr(&q->oldest, (uintptr_t)next);
    mt_epoch_retire(pin, &c->retired, mt_pchunk_destroy);
    freeable = mt_epoch_unpin(&q->epoch, pin);
    mt_retired_prepend(chunks, freeable);
}

/* Let go of what lies before `trimmed`, as much as fits. */
static inline void mt_pubsub_let_go(mt_pubsub *q, mt_drops *d) {
    /* relaxed because: only trimmers write both */
    mt_pchunk *c = (mt_pchunk *)mt_load_relaxed_uptr(&q->oldest), *next;
    int64_t to = mt_load_relaxed_i64(&q->trimmed); /* relaxed because: as above */
    /* A chunk goes when every cursor is beyond the first slot of the next one: one may still stand at its end (I2). */
    while (q->released < to || ((next = mt_pchunk_next(c)) != NULL && next->base < to)) {
        uint32_t i = (uint32_t)(q->released - c->base);
        if (d->n == MT_DROPS) {
            d->more = 1;
            return;
        }
        next = mt_pchunk_next(c);
        if (next != NULL && next->base <= q->released) {
            mt_pubsub_unlink(q, c, next, &d->chunks);
            c = next;
            continue;
        }
        d->items[d->n++] = mt_pchunk_get(c, i);
        q->released++;
    }
}

/* Let go of what nobody expects any more. Nothing of Python's runs in here; the caller gives up what is in `d`. */
static inline void mt_pubsub_trim(mt_pubsub *q, mt_drops *d) {
    int64_t before;
    uint32_t busy;
    d->n = 0;
    d->more = 0;
    d->moved = 0;
    d->chunks = NULL;
    if (q->serial) {
        before = mt_pubsub_trimmed(q);
        mt_pubsub_advance(q, &d->chunks);
        d->moved = mt_pubsub_trimmed(q) != before;
        mt_pubsub_let_go(q, d);
        return;
    }
    /* pairs with: itself, and mt_cas_acq_rel below: who leaves a note is seen by who is in there */
    if (mt_xchg_seq_cst_u32(&q->trimming, MT_TRIM_AGAIN) != MT_TRIM_IDLE) return;
    do {
        mt_xchg_seq_cst_u32(&q->trimming, MT_TRIM_BUSY); /* pairs with: as above */
        before = mt_pubsub_trimmed(q);
        mt_pubsub_advance(q, &d->chunks);
        if (mt_pubsub_trimmed(q) != before) d->moved = 1;
        if (!d->more) mt_pubsub_let_go(q, d);
        mt_point();
        busy = MT_TRIM_BUSY;
        /* pairs with: mt_xchg_seq_cst above */
    } while (!mt_cas_acq_rel_u32(&q->trimming, &busy, MT_TRIM_IDLE));
}

/* Parallel, under its lock: the same as mt_subscriber_take_alone, for the only subscriber. It trims as it takes: while nobody else can, it
 * moves on, looks at the cursors, and if nobody joins the list's own reference is the taker's. 0: not so, nothing was
 * done. *again: somebody left a note meanwhile, the caller trims. */
static inline int mt_subscriber_take_sole(mt_pubsub *q, mt_subscriber *s, uintptr_t *item, int *again) {
    int64_t at = mt_subscriber_at(s);
    uint32_t word = MT_TRIM_IDLE;
    mt_retired *none = NULL; /* it is subscribed itself */
    int why, took = 0;
    *again = 0;
    if (s->closed || s->missed) return 0;
    if (mt_load_relaxed_u32(&q->nsubs) != 1) return 0; /* relaxed because: a guess; the look tells */
    if (mt_subscriber_slot(q, s, item, &why) == NULL) return 0;
    if (mt_load_relaxed_uptr(&q->oldest) != (uintptr_t)s->chunk) return 0; /* relaxed because: it keeps its own chunk */
    /* pairs with: mt_cas_acq_rel in mt_pubsub_trim, and itself */
    if (!mt_cas_acq_rel_u32(&q->trimming, &word, MT_TRIM_BUSY)) return 0;
    if (q->released == at && mt_pubsub_trimmed(q) == at) {
        s->idx++;
        mt_subscriber_move(q, s, at + 1);
        mt_point();
        if (mt_pubsub_look(q, at, &none) > at) {
            mt_pubsub_set_trimmed(q, at + 1);
            q->released = at + 1;
        } else {
            MT_PUBSUB_HOLD(*item);
        }
        took = 1;
    }
    word = MT_TRIM_BUSY;
    mt_point();
    /* pairs with: mt_xchg_seq_cst in mt_pubsub_trim */
    if (!mt_cas_acq_rel_u32(&q->trimming, &word, MT_TRIM_IDLE)) {
        mt_xchg_seq_cst_u32(&q->trimming, MT_TRIM_IDLE); /* pairs with: as above; the caller trims for the note */
        *again = 1;
    }
    return took;
}

/* ---------------------------------------------------------------------------------------------------- subscribe, leave */
/* A record that nobody has. NULL: no memory. */
static inline mt_subscriber *mt_pubsub_new_record(mt_pubsub *q) {
    /* pairs with: mt_cas_acq_rel below */
    uintptr_t first = mt_load_acquire_uptr(&q->records);
    mt_subscriber *s;
    uint32_t free_one;
    for (s = (mt_subscriber *)first; s != NULL; s = s->next) {
        free_one = 0;
        /* relaxed because: a guess that spares the line of a record in use */
        if (mt_load_relaxed_u32(&s->taken)) continue;
        /* pairs with: mt_store_release in mt_pubsub_free_record */
        if (mt_cas_acq_rel_u32(&s->taken, &free_one, 1)) return s;
    }
    s = (mt_subscriber *)mt_alloc_aligned(sizeof(mt_subscriber));
    if (s == NULL) return NULL;
    /* relaxed because: not linked yet */
    mt_store_relaxed_u32(&s->taken, 1);
    mt_store_relaxed_i64(&s->cursor, MT_NOBODY); /* relaxed because: as above */
    do {
        s->next = (mt_subscriber *)first;
        /* pairs with: mt_load_acquire above and in mt_pubsub_records; a trimmer that does not see it finds `joins` changed */
    } while (!mt_cas_acq_rel_uptr(&q->records, &first, (uintptr_t)s));
    return s;
}

/* Nobody has this closed record any more. */
static inline void mt_pubsub_free_record(mt_subscriber *s) {
    /* pairs with: mt_cas_acq_rel in mt_pubsub_new_record */
    mt_store_release_u32(&s->taken, 0);
}

enum { MT_START_NEXT = -1, MT_START_OLDEST = -2 };

/* Serial, and nobody is subscribed: the chunk is not up to date. */
static inline int mt_pubsub_restart(mt_pubsub *q) {
    /* relaxed because: the GIL orders it, here and below */
    mt_pchunk *c = (mt_pchunk *)mt_load_relaxed_uptr(&q->tail), *fresh, *old, *next;
    if (c->base + q->tail_idx == q->end) return MT_OK;
    fresh = mt_pchunk_new(MT_PUBSUB_FIRST_CAP, q->end);
    if (fresh == NULL) return MT_NOMEM;
    old = (mt_pchunk *)mt_load_relaxed_uptr(&q->oldest); /* relaxed because: as above */
    for (; old != NULL; old = next) {
        next = mt_pchunk_next(old);
        free(old);
    }
    mt_store_relaxed_uptr(&q->tail, (uintptr_t)fresh);   /* relaxed because: as above */
    mt_store_relaxed_uptr(&q->oldest, (uintptr_t)fresh); /* relaxed because: as above */
    q->tail_idx = 0;
    return MT_OK;
}

/* Find the place of `position` from chunk c on. */
static inline void mt_subscriber_stand(mt_subscriber *s, mt_pchunk *c, int64_t position) {
    mt_pchunk *next;
    while ((next = mt_pchunk_next(c)) != NULL && next->base <= position) c = next;
    s->chunk = c;
    s->idx = (uint32_t)(position - c->base);
}

/* Parallel, and nobody else is joining: the smallest cursor, at this very instant; MT_NOBODY: there is none. Cursors only grow, so the smallest of
 * a look at all is the smallest of all if it still stands there. */
static inline int64_t mt_pubsub_slowest_now(mt_pubsub *q) {
    mt_subscriber *who;
    int64_t at;
    do {
        at = mt_pubsub_slowest(q, &who);
        mt_point();
    } while (who != NULL && mt_pubsub_cursor(who) != at);
    return at;
}

/* The joiner is seen as such: choose where it begins. MT_OK or MT_BADARG. */
static inline int mt_pubsub_choose(mt_pubsub *q, mt_subscriber *s, int64_t start, int64_t *position) {
    int64_t oldest, end;
    uint32_t i;
    mt_pchunk *c;
    if (q->serial) {
        oldest = mt_pubsub_trimmed(q);
        c = (mt_pchunk *)mt_load_relaxed_uptr(&q->tail); /* relaxed because: the GIL orders it */
        end = q->end;
    } else {
        oldest = start == MT_START_NEXT ? MT_NOBODY : mt_pubsub_slowest_now(q);
        c = mt_pubsub_newest(q, &i);
        end = c->base + i;
    }
    if (oldest > end) oldest = end;
    *position = start == MT_START_NEXT ? end : start == MT_START_OLDEST ? oldest : start;
    if (*position < oldest || *position > end) return MT_BADARG;
    /* pairs with: mt_store_release in mt_pubsub_unlink */
    if (*position < c->base) c = (mt_pchunk *)mt_load_acquire_uptr(&q->oldest);
    mt_subscriber_stand(s, c, *position);
    return MT_OK;
}

/* Parallel: stand there, unless a publisher went by meanwhile. 0: choose again. */
static inline int mt_pubsub_show(mt_subscriber *s, int64_t *word, int64_t position) {
    mt_point();
    /* pairs with: mt_load_seq_cst in mt_pubsub_cursor, mt_cas_seq_cst in mt_pubsub_send_back */
    if (mt_cas_seq_cst_i64(&s->cursor, word, position)) return 1;
    *word = mt_subscriber_at(s);
    return 0;
}

/* Under its lock: leave. 0: it had left before. The caller trims afterwards. */
static inline int mt_subscriber_leave(mt_pubsub *q, mt_subscriber *s) {
    if (s->closed) return 0;
    s->closed = 1;
    s->left_at = mt_subscriber_at(s);
    /* pairs with: mt_load_seq_cst in mt_pubsub_nobody: before the last trim of who leaves looks for the newest message */
    mt_fetch_add_seq_cst_u32(&q->nsubs, (uint32_t)-1);
    mt_subscriber_move(q, s, MT_NOBODY);
    return 1;
}

/* Under join_lock and the record's lock: subscribe from `start`, a position or MT_START_*. MT_OK, MT_BADARG or MT_NOMEM; the caller trims
 * afterwards in every case, because trimmers may have given up. It has joined when it chose, for nobody relied on its not being
 * there between that and its being seen. */
static inline int mt_pubsub_join(mt_pubsub *q, mt_subscriber *s, int64_t start, mt_retired **freeable) {
    mt_pin *pin = NULL;
    int64_t position = 0, word = MT_JOINING;
    int r = MT_OK;
    *freeable = NULL;
    s->closed = 0;
    s->missed = 0;
    if (q->serial) {
        if (mt_load_relaxed_u32(&q->nsubs) == 0) r = mt_pubsub_restart(q); /* relaxed because: the GIL orders it */
        if (r == MT_OK) r = mt_pubsub_choose(q, s, start, &position);
        if (r == MT_OK && position < q->others) q->others = position;
        mt_subscriber_move(q, s, r == MT_OK ? position : MT_NOBODY);
    } else {
        pin = mt_epoch_pin(&q->epoch);
        mt_subscriber_move(q, s, MT_JOINING);
        mt_point();
        mt_fetch_add_seq_cst_i64(&q->joins, 1); /* pairs with: mt_load_seq_cst in mt_pubsub_joins */
        do {
            mt_point();
            r = mt_pubsub_choose(q, s, start, &position);
        } while (r == MT_OK && !mt_pubsub_show(s, &word, position));
        if (r != MT_OK) mt_subscriber_move(q, s, MT_NOBODY);
        *freeable = mt_epoch_unpin(&q->epoch, pin);
    }
    s->closed = r != MT_OK;
    if (r == MT_OK) mt_fetch_add_seq_cst_u32(&q->nsubs, 1); /* pairs with: mt_load_seq_cst in mt_pubsub_nobody */
    return r;
}

#endif
