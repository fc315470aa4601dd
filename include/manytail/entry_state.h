/* The state word of a queue entry: every transition is one compare-and-swap on it.
 *
 *      63                                           5    4      3    2     0
 *     +----------------------------------------------+------+------+--------+
 *     | delivery                                     | REDL | LOCK | state  |
 *     +----------------------------------------------+------+------+--------+
 *
 * Source: the entry states of Qpid's strictly ordered queue. There a state is an immutable object whose identity is
 * swapped; here all of it is packed into a word, so that an acquire allocates nothing.
 * `delivery` counts how often the entry was handed to an acquiring subscription. It never goes back, so the pair
 * (entry, delivery) names one hand-over for ever: a handle that remembers an older number loses every swap. It has 59
 * bits, which last for 18 years of a delivery per nanosecond: 32 would be used up within an hour by a loop that gets and
 * releases, and the number 0 says "no delivery".
 *
 *     from                  to           by                          who may
 *     AVAILABLE             ACQUIRED     mt_entry_acquire            a subscription; delivery + 1, locked
 *     ACQUIRED n            AVAILABLE    mt_entry_release            the holder of delivery n
 *     ACQUIRED n            HELD         mt_entry_release            the holder of delivery n, with a delay
 *     ACQUIRED n            DEQUEUED     mt_entry_dequeue            the holder of delivery n
 *     ACQUIRED n            itself       mt_entry_lock, _unlock      the holder of delivery n
 *     ACQUIRED not locked   DEQUEUED     mt_entry_steal              expiry, purge, overflow
 *     AVAILABLE or HELD     DEQUEUED     mt_entry_withdraw           the same, and replacement
 *     HELD                  AVAILABLE    mt_entry_unhold             when its time has come
 *     DEQUEUED              DELETED      mt_entry_delete             whoever dequeued it
 *
 * Progress: lock-free; a swap is retried only when somebody else's has succeeded. The losing side returns 0 and has
 * changed nothing.
 */
#ifndef MANYTAIL_ENTRY_STATE_H
#define MANYTAIL_ENTRY_STATE_H

#include "atomics.h"

enum { MT_ENTRY_AVAILABLE = 0, MT_ENTRY_HELD = 1, MT_ENTRY_ACQUIRED = 2, MT_ENTRY_DEQUEUED = 3, MT_ENTRY_DELETED = 4 };

#define MT_ENTRY_STATE INT64_C(7)
#define MT_ENTRY_LOCKED INT64_C(8)
#define MT_ENTRY_REDELIVERED INT64_C(16)
#define MT_ENTRY_DELIVERY_SHIFT 5

static inline int mt_word_state(int64_t w) { return (int)(w & MT_ENTRY_STATE); }
static inline int mt_word_locked(int64_t w) { return (w & MT_ENTRY_LOCKED) != 0; }
static inline int mt_word_redelivered(int64_t w) { return (w & MT_ENTRY_REDELIVERED) != 0; }
static inline uint64_t mt_word_delivery(int64_t w) { return (uint64_t)w >> MT_ENTRY_DELIVERY_SHIFT; }
static inline int64_t mt_word_of(uint64_t delivery, int64_t flags) {
    return (int64_t)(delivery << MT_ENTRY_DELIVERY_SHIFT) | flags;
}

static inline int64_t mt_entry_word(mt_atomic_i64 *word) {
    /* pairs with: mt_cas_acq_rel in mt_entry_swap, mt_store_release in mt_entry_delete */
    return mt_load_acquire_i64(word);
}

/* One attempt: `*seen` -> `to`. 0: it had changed, `*seen` is what is there now. */
static inline int mt_entry_swap(mt_atomic_i64 *word, int64_t *seen, int64_t to) {
    /* pairs with: itself in other threads: whoever acts on a state sees what was done before it was set */
    return mt_cas_acq_rel_i64(word, seen, to);
}

static inline int mt_word_held_by(int64_t w, uint64_t delivery) {
    return mt_word_state(w) == MT_ENTRY_ACQUIRED && mt_word_delivery(w) == delivery;
}

/* The new delivery number, or 0: it was not AVAILABLE. */
static inline uint64_t mt_entry_acquire(mt_atomic_i64 *word) {
    int64_t w = mt_entry_word(word), to;
    while (mt_word_state(w) == MT_ENTRY_AVAILABLE) {
        to = mt_word_of(mt_word_delivery(w) + 1, (w & MT_ENTRY_REDELIVERED) | MT_ENTRY_LOCKED | MT_ENTRY_ACQUIRED);
        if (mt_entry_swap(word, &w, to)) return mt_word_delivery(to);
    }
    return 0;
}

/* `to`: MT_ENTRY_AVAILABLE or MT_ENTRY_HELD. */
static inline int mt_entry_release(mt_atomic_i64 *word, uint64_t delivery, int64_t to) {
    int64_t w = mt_entry_word(word);
    while (mt_word_held_by(w, delivery)) {
        if (mt_entry_swap(word, &w, mt_word_of(delivery, MT_ENTRY_REDELIVERED | to))) return 1;
    }
    return 0;
}

static inline int mt_entry_dequeue(mt_atomic_i64 *word, uint64_t delivery) {
    int64_t w = mt_entry_word(word);
    while (mt_word_held_by(w, delivery)) {
        if (mt_entry_swap(word, &w, (w & ~(MT_ENTRY_STATE | MT_ENTRY_LOCKED)) | MT_ENTRY_DEQUEUED)) return 1;
    }
    return 0;
}

/* From now on it may be stolen. 0: not this holder's, or not locked. */
static inline int mt_entry_unlock(mt_atomic_i64 *word, uint64_t delivery) {
    int64_t w = mt_entry_word(word);
    while (mt_word_held_by(w, delivery) && mt_word_locked(w)) {
        if (mt_entry_swap(word, &w, w & ~MT_ENTRY_LOCKED)) return 1;
    }
    return 0;
}

/* 1: this holder's, and locked now. */
static inline int mt_entry_lock(mt_atomic_i64 *word, uint64_t delivery) {
    int64_t w = mt_entry_word(word);
    while (mt_word_held_by(w, delivery)) {
        if (mt_word_locked(w) || mt_entry_swap(word, &w, w | MT_ENTRY_LOCKED)) return 1;
    }
    return 0;
}

/* Take it from a holder that has unlocked it. */
static inline int mt_entry_steal(mt_atomic_i64 *word) {
    int64_t w = mt_entry_word(word);
    while (mt_word_state(w) == MT_ENTRY_ACQUIRED && !mt_word_locked(w)) {
        if (mt_entry_swap(word, &w, (w & ~MT_ENTRY_STATE) | MT_ENTRY_DEQUEUED)) return 1;
    }
    return 0;
}

static inline int mt_entry_withdraw(mt_atomic_i64 *word) {
    int64_t w = mt_entry_word(word);
    while (mt_word_state(w) <= MT_ENTRY_HELD) {
        if (mt_entry_swap(word, &w, (w & ~MT_ENTRY_STATE) | MT_ENTRY_DEQUEUED)) return 1;
    }
    return 0;
}

static inline int mt_entry_unhold(mt_atomic_i64 *word) {
    int64_t w = mt_entry_word(word);
    while (mt_word_state(w) == MT_ENTRY_HELD) {
        if (mt_entry_swap(word, &w, w & ~MT_ENTRY_STATE)) return 1;
    }
    return 0;
}

static inline void mt_entry_delete(mt_atomic_i64 *word) {
    /* relaxed because: whoever dequeued it is the only one to write it from there on */
    int64_t w = mt_load_relaxed_i64(word);
    /* pairs with: mt_load_acquire in mt_entry_word */
    mt_store_release_i64(word, (w & ~MT_ENTRY_STATE) | MT_ENTRY_DELETED);
}

#endif
