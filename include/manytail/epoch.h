/* Epoch-based reclamation: when may the memory of a node be freed that was unlinked while others may still read it?
 *
 * Who reads a structure holds a PIN while it reads. What was unlinked is not freed but RETIRED, and is handed back for freeing
 * once every pin that was held at that moment has ended. A collector (mt_epoch) is one domain of pins and retired nodes;
 * domains do not wait for one another, so nogil users and the Python classes have collectors of their own.
 *
 *     mt_pin *pin = mt_epoch_pin(&domain);
 *     ... load shared pointers, read nodes, unlink a node ...
 *     mt_epoch_retire(pin, &node->retired, free_node);
 *     mt_retired *freeable = mt_epoch_unpin(&domain, pin);
 *     ... unlock everything ...
 *     mt_retired_free(freeable);            <- calls free_node(&other->retired) for nodes retired EARLIER, mostly
 *
 * HOW TO USE IT, exactly
 *   U1 Pin before the first load of a shared pointer to a node. What was loaded is good until that pin ends; a pointer
 *      that is kept beyond it is no protection and needs a way of its own (a count, or: it is a path, see U3).
 *   U2 Any thread may pin: nothing to register, nothing to do when a thread ends. Pins nest and overlap in any order;
 *      each is a record of its own, used by one thread at a time. pin and unpin never fail.
 *   U3 AT RETIRE nothing that a new reader can reach leads to the node: every root, every pointer kept beyond a
 *      pin, and every `next` of a node that is itself not unreachable. The writes that cut the last paths happen before
 *      the retire (program order, a lock, or release/acquire), and readers load those pointers with acquire. The
 *      retired node's own pointers may stay: who stands on it was pinned before, so what it sees behind it is kept too.
 *      Beware of unlinking B through a predecessor A that is being unlinked itself: B then stays reachable. Prove that
 *      the path is cut, with a mark, a claim or a lock, before retiring.
 *   U4 Retire once: by whoever won the unlink, with its own pin. `retired` is part of the node, is written by
 *      retire, and must not share memory with a field that readers read.
 *   U5 A pin is short. Under it: no detaching from the interpreter, no waiting, no lock that may be waited for
 *      attached, no Python API, no callback of a user. One pin that stays holds up all freeing in its domain (below).
 *   U6 What unpin, drain and destroy hand back is run with no lock and no pin of ours held; attached, if the destructors touch
 *      Python objects. It may be kept for later; it belongs to whoever got it. It may be any node of the domain, so a
 *      destructor must not need the queue that the node was in.
 *   U7 References to Python objects that the garbage collector must see are better dropped by whoever unlinked the node,
 *      if no reader uses them, than kept in a retired node, which tp_traverse does not reach.
 *
 * What pairs with what: retire is ordered by the user's own unlink only. All else is in three words: a pin's `word`
 * (claimed and scanned by read-modify-writes, so that one of claim and scan sees the other), the domain's `epoch`
 * (advanced and, to stamp, looked at by read-modify-writes), and the pointers to further blocks of pins.
 * Why that is enough. A node unlinked by U is stamped t by a read-modify-write W of `epoch` after U, and freed when
 * `epoch` >= t + 2. Let A be the advance from t to t + 1, and B the one from t + 1 to t + 2. W comes before A in the order of
 * changes of `epoch`, so U happens before A. B is made by somebody who saw A and then scanned every pin's word:
 *   - a pin claimed after its scan has the scan, hence U, before it: it cannot reach the node;
 *   - a pin that ended before its scan has its reads before B, hence before the free;
 *   - any other one is held at the scan, and lets B happen only if its epoch is t + 1: then its owner saw A, hence U.
 * The same holds for a block of pins that a scan does not find, since publishing and scanning are read-modify-writes.
 *
 * Bounds. Every `every` retires through one pin's record its unpin stamps what it holds, scans, and tries to advance. If all
 * pins are short, less than 3 * every nodes per record are kept, plus what is retired while the longest pin lasts.
 * A reader that STALLS under its pin stops all freeing in its domain: garbage grows with the retires, without bound. Who finds
 * it in the way leaves it a note; when it goes on, its own unpin collects and is handed what it held up (unless the note came in
 * the very moment of the unpin: then the next collection of anybody gets it). Records: as many as pins were
 * ever held at once, in blocks that double; kept until destroy.
 * Progress: pin, retire and unpin are lock-free (pin: but for the very first of a new block if memory runs out, where it waits for
 * another pin to end), a collection takes time in proportion to the records.
 *
 * Fork: mt_epoch_after_fork() in the child. Destroy: no pins left.
 *
 * Source: K. Fraser, "Practical lock-freedom" (2004), epochs; the rule of two advances as in crossbeam-epoch. Ours: pins are claimed,
 * not registered; read-modify-writes instead of fences, which ThreadSanitizer follows and a model checker explores;
 * freeing is handed back to the caller instead of being done under way.
 */
#ifndef MANYTAIL_EPOCH_H
#define MANYTAIL_EPOCH_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "atomics.h"
#include "backoff.h"
#include "delays.h"

#ifndef MT_EPOCH_FIRST
#define MT_EPOCH_FIRST 4 /* records that are part of the domain; each further block doubles their number */
#endif
#define MT_EPOCH_BLOCKS 24
#define MT_EPOCH_EVERY 64 /* retires between two collections, unless told otherwise */

/* Part of a node. */
typedef struct mt_retired {
    struct mt_retired *next;
    void (*destroy)(struct mt_retired *node);
} mt_retired;

typedef struct {
    mt_retired *first, *last; /* last means something if first is not NULL */
} mt_limbo;

enum {
    MT_PIN_HELD = 1,    /* by the thread whose epoch stands above the bits */
    MT_PIN_GARBAGE = 2, /* while not held: it has retired nodes */
    MT_PIN_WANTED = 4,  /* while held: somebody could not advance because of it */
    MT_PIN_SHIFT = 3
};

/* A record. Everything but the word belongs to whoever holds it. */
typedef struct {
    mt_atomic_i64 word;
    int64_t nfresh;
    mt_limbo fresh;     /* retired, not stamped yet */
    mt_limbo sealed[2]; /* stamped with .stamp; by parity of the stamp */
    int64_t stamp[2];
    char pad[2 * MT_CACHE_LINE - 4 * sizeof(int64_t) - 6 * sizeof(void *)]; /* so that no two words share a line */
} mt_pin;

/* A domain. All zeros is a good one. */
typedef struct {
    mt_atomic_i64 epoch;
    int64_t every;                          /* constant; 0: MT_EPOCH_EVERY */
    mt_atomic_uptr blocks[MT_EPOCH_BLOCKS]; /* number b: 0 or MT_EPOCH_FIRST << b records; filled from 0 on */
    char pad[MT_CACHE_LINE];
    mt_pin first[MT_EPOCH_FIRST];
} mt_epoch;

static inline void mt_epoch_init(mt_epoch *e, int64_t every) {
    memset((void *)e, 0, sizeof *e);
    e->every = every;
}

/* Run the destructors of a list that was handed back. */
static inline void mt_retired_free(mt_retired *list) {
    while (list != NULL) {
        mt_retired *next = list->next;
        list->destroy(list);
        list = next;
    }
}

/* --------------------------------------------------------------------------------------------------------- records */
static inline mt_pin *mt_epoch_block(mt_epoch *e, uint32_t b, uint32_t *n) {
    *n = MT_EPOCH_FIRST << b;
    if (b == MT_EPOCH_BLOCKS) return NULL;
    /* pairs with: mt_cas_acq_rel in mt_epoch_grow (records are zeroed) */
    return (mt_pin *)mt_load_acquire_uptr(&e->blocks[b]);
}

/* Add block number b unless somebody else does. Out of memory: there are pins to wait for, and they are short. */
static MT_NOINLINE void mt_epoch_grow(mt_epoch *e, uint32_t b) {
    uintptr_t none = 0;
    mt_pin *block = b < MT_EPOCH_BLOCKS ? (mt_pin *)calloc((size_t)MT_EPOCH_FIRST << b, sizeof(mt_pin)) : NULL;
    if (block == NULL) {
        mt_yield_cpu();
        return;
    }
    mt_point();
    /* pairs with: mt_load_acquire in mt_epoch_block; mt_fetch_add_acq_rel in mt_epoch_scan */
    if (!mt_cas_acq_rel_uptr(&e->blocks[b], &none, (uintptr_t)block)) free(block);
}

/* Try to hold this record. */
static inline int mt_pin_claim(mt_epoch *e, mt_pin *p) {
    int64_t epoch, word;
    /* relaxed because: a guess for the compare-and-swap below */
    word = mt_load_relaxed_i64(&p->word);
    if (word & MT_PIN_HELD) return 0;
    /* pairs with: mt_cas_acq_rel in mt_epoch_advance. May be out of date by the time the record says it: that only holds up. */
    epoch = mt_load_acquire_i64(&e->epoch);
    mt_point();
    /* pairs with: mt_store_release in mt_pin_end (the lists); mt_fetch_add_acq_rel in mt_epoch_look (what is unlinked) */
    return mt_cas_acquire_i64(&p->word, &word, (epoch << MT_PIN_SHIFT) | MT_PIN_HELD);
}

/* Where this thread found a free record last: each thread keeps to one of its own while there are enough. */
#if defined(MT_MODEL)
static const uint32_t mt_epoch_hint = 0;
#define MT_EPOCH_REMEMBER(i) ((void)(i))
#else
static MT_THREAD_LOCAL uint32_t mt_epoch_hint;
#define MT_EPOCH_REMEMBER(i) (mt_epoch_hint = (i))
#endif

static MT_NOINLINE mt_pin *mt_epoch_pin_slow(mt_epoch *e) {
    for (;;) {
        mt_pin *block = e->first;
        uint32_t n = MT_EPOCH_FIRST, base = 0, b = 0, i;
        while (block != NULL) {
            for (i = 0; i < n; i++) {
                if (!mt_pin_claim(e, &block[i])) continue;
                MT_EPOCH_REMEMBER(base + i);
                return &block[i];
            }
            base += n;
            block = mt_epoch_block(e, b++, &n);
        }
        mt_epoch_grow(e, b - 1);
    }
}

/* Until the matching unpin, nothing is freed that this thread can reach from now on. */
static inline mt_pin *mt_epoch_pin(mt_epoch *e) {
    uint32_t i = mt_epoch_hint, n = MT_EPOCH_FIRST, b = 0;
    mt_pin *block = e->first;
    while (MT_UNLIKELY(i >= n) && block != NULL) {
        i -= n;
        block = mt_epoch_block(e, b++, &n);
    }
    if (MT_LIKELY(block != NULL) && MT_LIKELY(mt_pin_claim(e, &block[i]))) return &block[i];
    return mt_epoch_pin_slow(e);
}

/* ----------------------------------------------------------------------------------------------------------- limbo */
static inline void mt_limbo_move(mt_limbo *to, mt_limbo *from) {
    if (from->first == NULL) return;
    if (to->first == NULL) {
        to->first = from->first;
    } else {
        to->last->next = from->first;
    }
    to->last = from->last;
    from->first = NULL;
}

/* The node was unlinked (U3); `destroy` will be called with it when it may be freed. */
static inline void mt_epoch_retire(mt_pin *own, mt_retired *node, void (*destroy)(mt_retired *)) {
    mt_limbo one = {node, node};
    node->next = NULL;
    node->destroy = destroy;
    mt_limbo_move(&own->fresh, &one);
    own->nfresh++;
}

/* Keep a list under its stamp. A stamp tells that `epoch` got that far, so an older one of the same parity is over. */
static inline void mt_pin_seal(mt_pin *own, mt_limbo *list, int64_t stamp, mt_limbo *ready) {
    int parity = (int)(stamp & 1);
    if (stamp > own->stamp[parity]) {
        mt_limbo_move(ready, &own->sealed[parity]);
        own->stamp[parity] = stamp;
    }
    mt_limbo_move(stamp == own->stamp[parity] ? &own->sealed[parity] : ready, list);
}

/* What may be freed. */
static inline void mt_pin_expire(mt_pin *own, int64_t epoch, mt_limbo *ready) {
    int parity;
    for (parity = 0; parity < 2; parity++)
        if (own->stamp[parity] + 2 <= epoch) mt_limbo_move(ready, &own->sealed[parity]);
}

/* Take over all that a record has, which is held for that. */
static inline void mt_pin_adopt(mt_pin *own, mt_pin *other, mt_limbo *ready) {
    mt_limbo_move(&own->fresh, &other->fresh);
    mt_pin_seal(own, &other->sealed[0], other->stamp[0], ready);
    mt_pin_seal(own, &other->sealed[1], other->stamp[1], ready);
    other->nfresh = 0;
}

static inline int mt_pin_has_garbage(const mt_pin *p) {
    return p->fresh.first != NULL || p->sealed[0].first != NULL || p->sealed[1].first != NULL;
}

static inline void mt_pin_end(mt_pin *p) {
    int64_t word = mt_pin_has_garbage(p) ? MT_PIN_GARBAGE : 0;
    mt_point();
    /* pairs with: mt_cas_acquire in mt_pin_claim, mt_fetch_add_acq_rel in mt_epoch_look (all that was read under the pin) */
    mt_store_release_i64(&p->word, word);
}

/* ------------------------------------------------------------------------------------------------------ collecting */
enum { MT_OTHERS_PINNED = 1, MT_OTHERS_BEHIND = 2 };

/* Is this record in the way of an advance from `epoch`? If nobody holds it, take its garbage over. */
static inline int mt_epoch_look(mt_epoch *e, mt_pin *own, mt_pin *p, int64_t epoch, mt_limbo *ready) {
    /* pairs with: mt_cas_acquire in mt_pin_claim, mt_store_release in mt_pin_end. A read-modify-write, so that a claim which it
     * does not see sees it. */
    int64_t word = mt_fetch_add_acq_rel_i64(&p->word, 0), held;
    mt_point();
    if (word == MT_PIN_GARBAGE) {
        if (!mt_pin_claim(e, p)) return MT_OTHERS_PINNED | MT_OTHERS_BEHIND; /* busy just now: another time */
        mt_pin_adopt(own, p, ready);
        mt_pin_end(p);
        return 0;
    }
    if (!(word & MT_PIN_HELD)) return 0;
    held = word >> MT_PIN_SHIFT;
    if (held == epoch) return MT_OTHERS_PINNED;
    /* pairs with: nothing; the note is read with relaxed order, and is lost if the pin ends in this moment */
    if (held < epoch) mt_cas_acq_rel_i64(&p->word, &word, word | MT_PIN_WANTED);
    return MT_OTHERS_PINNED | MT_OTHERS_BEHIND;
}

/* All records but our own. */
static inline int mt_epoch_scan(mt_epoch *e, mt_pin *own, int64_t epoch, mt_limbo *ready) {
    mt_pin *block = e->first;
    uint32_t n = MT_EPOCH_FIRST, b = 0, i;
    int others = 0;
    for (;;) {
        for (i = 0; i < n; i++)
            if (&block[i] != own) others |= mt_epoch_look(e, own, &block[i], epoch, ready);
        if (b == MT_EPOCH_BLOCKS) return others;
        n = MT_EPOCH_FIRST << b;
        /* pairs with: mt_cas_acq_rel in mt_epoch_grow. A read-modify-write, so that a block which it does not see sees it. */
        block = (mt_pin *)mt_fetch_add_acq_rel_uptr(&e->blocks[b++], 0);
        if (block == NULL) return others;
    }
}

/* Try to leave `*epoch` behind; *epoch is what it is then. 1: by us, and what we had retired before is stamped. */
static inline int mt_epoch_advance(mt_epoch *e, mt_pin *own, int64_t *epoch, mt_limbo *ready) {
    int64_t stamp = *epoch;
    mt_point();
    /* pairs with: mt_load_acquire in mt_pin_claim; mt_fetch_add_acq_rel in mt_epoch_collect; itself */
    if (!mt_cas_acq_rel_i64(&e->epoch, epoch, stamp + 1)) return 0;
    *epoch = stamp + 1;
    mt_pin_seal(own, &own->fresh, stamp, ready);
    return 1;
}

/* End the pin, and hand back what has become freeable. With nobody pinned that is everything there is. */
static MT_NOINLINE mt_retired *mt_epoch_collect(mt_epoch *e, mt_pin *own) {
    mt_limbo ready = {NULL, NULL};
    int tries, others = 0;
    /* pairs with: mt_cas_acq_rel in mt_epoch_advance. A read-modify-write, so that the advance from here sees what we unlinked. */
    int64_t epoch = mt_fetch_add_acq_rel_i64(&e->epoch, 0);
    mt_pin_seal(own, &own->fresh, epoch, &ready);
    for (tries = 0; tries < 2 && !others; tries++) {
        others = mt_epoch_scan(e, own, epoch, &ready);
        if (others & MT_OTHERS_BEHIND) break;
        if (!mt_epoch_advance(e, own, &epoch, &ready)) break;
    }
    mt_pin_expire(own, epoch, &ready);
    own->nfresh = 0;
    mt_pin_end(own);
    return ready.first;
}

/* End the pin. What is handed back, mostly NULL, is for mt_retired_free (U6). */
static inline mt_retired *mt_epoch_unpin(mt_epoch *e, mt_pin *own) {
    /* relaxed because: a note, acted upon soon or late */
    int64_t word = mt_load_relaxed_i64(&own->word);
    int64_t every = e->every ? e->every : MT_EPOCH_EVERY;
    if (MT_UNLIKELY((word & MT_PIN_WANTED) || own->nfresh >= every)) return mt_epoch_collect(e, own);
    mt_pin_end(own);
    return NULL;
}

/* Collect now: everything retired so far, if nobody is pinned. */
static inline mt_retired *mt_epoch_drain(mt_epoch *e) { return mt_epoch_collect(e, mt_epoch_pin(e)); }

/* ------------------------------------------------------------------------------------------------------ the domain */
/* How many records there are. */
static inline int64_t mt_epoch_records(mt_epoch *e) {
    uint32_t n = MT_EPOCH_FIRST, b = 0;
    int64_t count = n;
    while (mt_epoch_block(e, b++, &n) != NULL) count += n;
    return count;
}

/* No pins are left and nobody uses it: all that is retired is handed back, the domain is as new. */
static inline mt_retired *mt_epoch_destroy(mt_epoch *e) {
    mt_limbo all = {NULL, NULL};
    mt_pin *block = e->first;
    uint32_t n = MT_EPOCH_FIRST, b = 0, i;
    while (block != NULL) {
        for (i = 0; i < n; i++) {
            mt_limbo_move(&all, &block[i].fresh);
            mt_limbo_move(&all, &block[i].sealed[0]);
            mt_limbo_move(&all, &block[i].sealed[1]);
        }
        if (b) free(block);
        block = mt_epoch_block(e, b++, &n);
    }
    mt_epoch_init(e, e->every);
    return all.first;
}

/* In the child after fork, whose only thread holds no pin. Pins of other threads are forgotten, with all that their records have:
 * that is never freed in the child. `keep_rest` says whether the garbage of records which nobody held is kept: 1 if every user
 * of the domain is attached to the interpreter, which os.fork() stops between operations; 0 if threads may have run on while
 * memory was being copied, so that even lists at rest may be torn. Allocates nothing and frees nothing. */
static inline void mt_epoch_after_fork(mt_epoch *e, int keep_rest) {
    mt_pin *block = e->first;
    uint32_t n = MT_EPOCH_FIRST, b = 0, i;
    while (block != NULL) {
        for (i = 0; i < n; i++) {
            /* relaxed because: the child has one thread */
            int64_t word = mt_load_relaxed_i64(&block[i].word);
            if (keep_rest && !(word & MT_PIN_HELD)) continue;
            memset((void *)&block[i].nfresh, 0, sizeof(mt_pin) - offsetof(mt_pin, nfresh));
            /* relaxed because: the child has one thread */
            mt_store_relaxed_i64(&block[i].word, 0);
        }
        block = mt_epoch_block(e, b++, &n);
    }
}

#endif
