/* Epoch-based reclamation: frees an unlinked node when no thread can be reading it any longer.
 *
 * A thread holds a PIN while it reads a structure. An unlinked node is not freed but RETIRED. It is returned for
 * freeing after every pin that was held at that moment has ended. A domain (mt_epoch) is a set of pins and retired
 * nodes. Domains do not wait for one another, so the nogil API and the Python classes use different ones.
 *
 *     mt_pin *pin = mt_epoch_pin(&domain);
 *     ... load shared pointers, read nodes, unlink a node ...
 *     mt_epoch_retire(pin, &node->retired, free_node);
 *     mt_retired *freeable = mt_epoch_unpin(&domain, pin);
 *     ... unlock everything ...
 *     mt_retired_free(freeable);            <- calls free_node(&other->retired), mostly for nodes retired EARLIER
 *
 * Rules for users
 *   U1 Pin before the first load of a shared pointer to a node. Until that pin ends, the node is not freed. A pointer
 *      kept beyond the pin needs other protection: a reference count, or it is one of the paths of U3.
 *   U2 Any thread may pin; threads need not register. Pins nest and overlap in any order. Each is a record of its own,
 *      used by one thread at a time. pin and unpin never fail.
 *   U3 AT RETIRE a new reader cannot reach the node: not from a root, not from a pointer kept beyond a pin, not from
 *      the `next` of a node that is reachable. The writes that cut the last paths happen before the retire (program
 *      order, a lock, or release/acquire), and readers load those pointers with acquire. The retired node's own
 *      pointers may stay: a reader that is on it was pinned before, so the nodes that they lead to are kept for it too.
 *      If B is unlinked through a predecessor A that is being unlinked itself, B stays reachable. Make sure that the
 *      path is cut, by a mark, a claim or a lock, before retiring B.
 *   U4 Retire once: the thread whose unlink succeeded does it, with its own pin. Retire writes `retired`, which is part
 *      of the node and must not share memory with a field that readers read.
 *   U5 Keep pins short. Under a pin: do not detach from the interpreter, wait, take a lock that attached threads may
 *      wait for, use the Python API, or call users' code. One long pin stops all freeing in its domain (see Bounds).
 *   U6 Free what unpin, drain and destroy return with no lock of ours and no pin held; attached, if the destructors
 *      touch Python objects. It may be freed later. It may contain any node of the domain, so a destructor must not
 *      need the queue that the node was in.
 *   U7 tp_traverse does not reach retired nodes. So the thread that unlinks a node drops its references to Python
 *      objects, unless readers use them.
 *
 * Memory order. retire is ordered only by the user's own unlink. Everything else is in three kinds of words: the `word`
 * of a pin (claimed and scanned by read-modify-writes, so either the claim sees the scan or the scan sees the claim),
 * the domain's `epoch` (advanced, and read for stamping, by read-modify-writes), and the pointers to blocks of pins.
 * Proof. A node unlinked by U is stamped t by a read-modify-write W of `epoch` after U, and freed when the epoch is
 * t + 2 or more. Let A be the advance from t to t + 1, and B the one from t + 1 to t + 2. W precedes A in the
 * modification order of `epoch`, so U happens before A. The thread that does B saw A and then scanned every pin's word:
 *   - a pin claimed after that scan sees the scan, hence U: it cannot reach the node;
 *   - the reads of a pin that ended before the scan happen before B, hence before the free;
 *   - any other pin is held at the scan, and B follows only if its epoch is t + 1: then its owner saw A, hence U.
 * The same holds for a block of pins that a scan does not find: publishing and scanning are read-modify-writes.
 *
 * Bounds. After `every` retires through one record, unpin collects: it stamps what the record holds, scans, and tries
 * to advance. If all pins are short, less than 3 * every nodes per record are kept, plus what is retired during the
 * longest pin. A thread that stalls under its pin stops all freeing in its domain, and garbage grows without bound. A
 * collection that it blocks sets MT_PIN_WANTED in its word, so that its own unpin collects. If that bit is set just as
 * the pin ends it is lost, and the next collection frees the garbage. There are as many records as pins were ever held
 * at once, in blocks that double; they are kept until destroy.
 * Progress: pin, retire and unpin are lock-free. Exception: a pin that needs a new block waits for another pin to end
 * if memory runs out. A collection is linear in the number of records.
 *
 * Fork: mt_epoch_after_fork() in the child. Destroy: when no pins are left.
 *
 * Source: K. Fraser, "Practical lock-freedom" (2004), epochs; the rule of two advances as in crossbeam-epoch. Different
 * here: pins are claimed instead of registered; read-modify-writes replace fences, because ThreadSanitizer follows them
 * and a model checker explores them; garbage is returned to the caller instead of being freed inside.
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
#define MT_EPOCH_EVERY 64 /* default number of retires between two collections */

/* Part of a node. */
typedef struct mt_retired {
    struct mt_retired *next;
    void (*destroy)(struct mt_retired *node);
} mt_retired;

typedef struct {
    mt_retired *first, *last; /* last is undefined while first is NULL */
} mt_limbo;

enum {
    MT_PIN_HELD = 1,    /* the pin is held; its holder's epoch is in the bits above */
    MT_PIN_GARBAGE = 2, /* while not held: the record has retired nodes */
    MT_PIN_WANTED = 4,  /* while held: the pin has kept a collection from advancing */
    MT_PIN_SHIFT = 3    /* of the epoch */
};

/* A record: a pin, and the garbage that was retired through it. Only the holder uses anything but `word`. */
typedef struct {
    mt_atomic_i64 word;
    int64_t nfresh;
    mt_limbo fresh;     /* retired, not stamped yet */
    mt_limbo sealed[2]; /* sealed[i] is stamped with stamp[i], whose parity is i */
    int64_t stamp[2];
    char pad[2 * MT_CACHE_LINE - 4 * sizeof(int64_t) - 6 * sizeof(void *)]; /* so that no two words share a line */
} mt_pin;

/* A domain. All zeros is a valid empty one. */
typedef struct {
    mt_atomic_i64 epoch;
    int64_t every;                          /* constant; 0: MT_EPOCH_EVERY */
    mt_atomic_uptr blocks[MT_EPOCH_BLOCKS]; /* blocks[b]: 0, or MT_EPOCH_FIRST << b records; set in ascending order */
    char pad[MT_CACHE_LINE];
    mt_pin first[MT_EPOCH_FIRST];
} mt_epoch;

static inline void mt_epoch_init(mt_epoch *e, int64_t every) {
    memset((void *)e, 0, sizeof *e);
    e->every = every;
}

/* Run the destructors of a list that unpin, drain or destroy returned. */
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

/* Add block b unless another thread does. Out of memory: yield; the caller retries until another pin ends. */
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

/* Take this record unless it is held. */
static inline int mt_pin_claim(mt_epoch *e, mt_pin *p) {
    int64_t epoch, word;
    /* relaxed because: a guess for the compare-and-swap below */
    word = mt_load_relaxed_i64(&p->word);
    if (word & MT_PIN_HELD) return 0;
    /* pairs with: mt_cas_acq_rel in mt_epoch_advance. A stale epoch only delays reclamation. */
    epoch = mt_load_acquire_i64(&e->epoch);
    mt_point();
    /* pairs with: mt_store_release in mt_pin_end (the lists); mt_fetch_add_acq_rel in mt_epoch_look (the unlinks) */
    return mt_cas_acquire_i64(&p->word, &word, (epoch << MT_PIN_SHIFT) | MT_PIN_HELD);
}

/* Index of the record that this thread held last; it tries that one first, so threads stay at different records. */
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

/* Until the matching unpin, no node that this thread can reach is freed. */
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

/* The node is unlinked (U3). mt_retired_free will call `destroy` with it. */
static inline void mt_epoch_retire(mt_pin *own, mt_retired *node, void (*destroy)(mt_retired *)) {
    mt_limbo one = {node, node};
    node->next = NULL;
    node->destroy = destroy;
    mt_limbo_move(&own->fresh, &one);
    own->nfresh++;
}

/* Seal a list under its stamp. `epoch` has reached every stamp, so two stamps of one parity are at least 2 apart and
 * the older garbage is ready. */
static inline void mt_pin_seal(mt_pin *own, mt_limbo *list, int64_t stamp, mt_limbo *ready) {
    int parity = (int)(stamp & 1);
    if (stamp > own->stamp[parity]) {
        mt_limbo_move(ready, &own->sealed[parity]);
        own->stamp[parity] = stamp;
    }
    mt_limbo_move(stamp == own->stamp[parity] ? &own->sealed[parity] : ready, list);
}

/* Move to `ready` what may be freed in this epoch. */
static inline void mt_pin_expire(mt_pin *own, int64_t epoch, mt_limbo *ready) {
    int parity;
    for (parity = 0; parity < 2; parity++)
        if (own->stamp[parity] + 2 <= epoch) mt_limbo_move(ready, &own->sealed[parity]);
}

/* Take over all garbage of `other`, which the caller holds too. */
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
    /* pairs with: mt_cas_acquire in mt_pin_claim, mt_fetch_add_acq_rel in mt_epoch_look (the reads under the pin) */
    mt_store_release_i64(&p->word, word);
}

/* ------------------------------------------------------------------------------------------------------ collecting */
enum {
    MT_OTHERS_PINNED = 1, /* another pin is held */
    MT_OTHERS_BEHIND = 2  /* one of them may have an older epoch: do not advance */
};

/* Flags of one record for an advance from `epoch`. If it is not held, take over its garbage. */
static inline int mt_epoch_look(mt_epoch *e, mt_pin *own, mt_pin *p, int64_t epoch, mt_limbo *ready) {
    /* pairs with: mt_cas_acquire in mt_pin_claim, mt_store_release in mt_pin_end. A read-modify-write, so that a claim
     * which it does not see comes later and sees it. */
    int64_t word = mt_fetch_add_acq_rel_i64(&p->word, 0), held;
    mt_point();
    if (word == MT_PIN_GARBAGE) {
        if (!mt_pin_claim(e, p)) return MT_OTHERS_PINNED | MT_OTHERS_BEHIND; /* held again, its epoch is not known */
        mt_pin_adopt(own, p, ready);
        mt_pin_end(p);
        return 0;
    }
    if (!(word & MT_PIN_HELD)) return 0;
    held = word >> MT_PIN_SHIFT;
    if (held == epoch) return MT_OTHERS_PINNED;
    /* pairs with: nothing; the bit is read with relaxed order, and is lost if the pin ends at this moment */
    if (held < epoch) mt_cas_acq_rel_i64(&p->word, &word, word | MT_PIN_WANTED);
    return MT_OTHERS_PINNED | MT_OTHERS_BEHIND;
}

/* The flags of all records but our own. */
static inline int mt_epoch_scan(mt_epoch *e, mt_pin *own, int64_t epoch, mt_limbo *ready) {
    mt_pin *block = e->first;
    uint32_t n = MT_EPOCH_FIRST, b = 0, i;
    int others = 0;
    for (;;) {
        for (i = 0; i < n; i++)
            if (&block[i] != own) others |= mt_epoch_look(e, own, &block[i], epoch, ready);
        if (b == MT_EPOCH_BLOCKS) return others;
        n = MT_EPOCH_FIRST << b;
        /* pairs with: mt_cas_acq_rel in mt_epoch_grow. A read-modify-write, so that a block which it does not see is
         * added later and sees it. */
        block = (mt_pin *)mt_fetch_add_acq_rel_uptr(&e->blocks[b++], 0);
        if (block == NULL) return others;
    }
}

/* Advance the domain from `*epoch`, and set *epoch to what it is then. 1: this call advanced it; its fresh garbage is
 * sealed. 0: another thread did. */
static inline int mt_epoch_advance(mt_epoch *e, mt_pin *own, int64_t *epoch, mt_limbo *ready) {
    int64_t stamp = *epoch;
    mt_point();
    /* pairs with: mt_load_acquire in mt_pin_claim; mt_fetch_add_acq_rel in mt_epoch_collect; itself */
    if (!mt_cas_acq_rel_i64(&e->epoch, epoch, stamp + 1)) return 0;
    *epoch = stamp + 1;
    mt_pin_seal(own, &own->fresh, stamp, ready);
    return 1;
}

/* End the pin and return what can be freed. Without other pins the epoch advances twice, and that is everything. */
static MT_NOINLINE mt_retired *mt_epoch_collect(mt_epoch *e, mt_pin *own) {
    mt_limbo ready = {NULL, NULL};
    int tries, others = 0;
    /* pairs with: mt_cas_acq_rel in mt_epoch_advance. A read-modify-write, so that the advance from this epoch sees
     * what this thread has unlinked. */
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

/* End the pin. Pass the result, mostly NULL, to mt_retired_free (U6). */
static inline mt_retired *mt_epoch_unpin(mt_epoch *e, mt_pin *own) {
    /* relaxed because: MT_PIN_WANTED is a hint; seeing it late only delays reclamation */
    int64_t word = mt_load_relaxed_i64(&own->word);
    int64_t every = e->every ? e->every : MT_EPOCH_EVERY;
    if (MT_UNLIKELY((word & MT_PIN_WANTED) || own->nfresh >= every)) return mt_epoch_collect(e, own);
    mt_pin_end(own);
    return NULL;
}

/* Collect at once: returns everything retired so far if no pin is held. */
static inline mt_retired *mt_epoch_drain(mt_epoch *e) { return mt_epoch_collect(e, mt_epoch_pin(e)); }

/* ------------------------------------------------------------------------------------------------------ the domain */
/* How many records there are. */
static inline int64_t mt_epoch_records(mt_epoch *e) {
    uint32_t n = MT_EPOCH_FIRST, b = 0;
    int64_t count = n;
    while (mt_epoch_block(e, b++, &n) != NULL) count += n;
    return count;
}

/* No pin is held and no thread uses the domain: return all garbage, free the blocks and reset the domain. */
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

/* In the child after fork, whose only thread holds no pin. Reset the records that other threads held; their garbage
 * leaks. keep_rest: whether to keep the garbage of the other records. 1 if all users of the domain are attached to the
 * interpreter, which os.fork() stops between operations. 0 if threads may have run while memory was copied, so that
 * these lists may be torn; their garbage leaks too. Allocates and frees nothing. */
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
