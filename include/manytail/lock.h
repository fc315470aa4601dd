/* A one-word mutual exclusion lock with a list of parked waiters.
 *
 *      63                                            1        0
 *     +----------------------------------------------+--------+
 *     | newest parked thread (mt_lock_node*)         | LOCKED |
 *     +----------------------------------------------+--------+
 *
 * Algorithm: the "word lock" known from parking-lot implementations: an uncontended lock or unlock is one
 * compare-and-swap; who finds it taken pushes a node that lives on its own stack onto a list whose head is the word
 * itself, and parks. Unlock takes the OLDEST node off and hands it back to the caller, which wakes it. Newcomers may
 * overtake a woken thread (barging): on few cores that is worth more than strict order among lock waiters.
 *
 * Progress: blocking. Parking and waking are the caller's (mt_lock_node.sem is its semaphore), so that this file
 * knows no thread library and a model checker can run it.
 *
 * Invariants
 *   I1  nodes are pushed by anybody while LOCKED is set, and taken off only by the thread that holds the lock;
 *   I2  whenever the list is not empty, LOCKED is set or a thread that unlock handed out is on its way to retry.
 */
#ifndef MANYTAIL_LOCK_H
#define MANYTAIL_LOCK_H

#include <stddef.h>

#include "atomics.h"

#define MT_LOCKED ((uintptr_t)1)

typedef struct mt_lock_node {
    struct mt_lock_node *next; /* older waiter; written before the push, later only by the lock's holder */
    void *sem;                 /* the owner's semaphore, posted by whoever mt_unlock() hands the node to */
} mt_lock_node;

typedef struct {
    mt_atomic_uptr word;
} mt_lock;

/* One attempt that retries only when the word changed under it. 1: the lock is held. */
static inline int mt_lock_try(mt_lock *l) {
    /* relaxed because: only a guess for the compare-and-swap below */
    uintptr_t w = mt_load_relaxed_uptr(&l->word);
    while (!(w & MT_LOCKED)) {
        /* pairs with: mt_cas_release in mt_unlock; mt_cas_acq_rel in mt_unlock_slow */
        if (mt_cas_acquire_uptr(&l->word, &w, w | MT_LOCKED)) return 1;
    }
    return 0;
}

/* Last step before parking. 1: the lock came free and is held. 0: `n` is on the list, park on n->sem, then start over. */
static inline int mt_lock_enqueue(mt_lock *l, mt_lock_node *n) {
    /* relaxed because: only a guess for the compare-and-swaps below */
    uintptr_t w = mt_load_relaxed_uptr(&l->word);
    for (;;) {
        if (!(w & MT_LOCKED)) {
            /* pairs with: mt_cas_release in mt_unlock; mt_cas_acq_rel in mt_unlock_slow */
            if (mt_cas_acquire_uptr(&l->word, &w, w | MT_LOCKED)) return 1;
            continue;
        }
        n->next = (mt_lock_node *)(w & ~MT_LOCKED);
        /* pairs with: mt_load_acquire in mt_unlock_slow (publishes n->next, n->sem) */
        if (mt_cas_release_uptr(&l->word, &w, (uintptr_t)n | MT_LOCKED)) return 0;
    }
}

/* Somebody waits. Clears LOCKED and returns the node to wake, or NULL if there is none after all. */
static MT_NOINLINE mt_lock_node *mt_unlock_slow(mt_lock *l) {
    mt_lock_node *victim = NULL, *before;
    /* pairs with: mt_cas_release in mt_lock_enqueue */
    uintptr_t w = mt_load_acquire_uptr(&l->word), rest;
    for (;;) {
        mt_lock_node *top = (mt_lock_node *)(w & ~MT_LOCKED);
        if (victim == NULL && top != NULL && top->next != NULL) {
            /* Only the holder takes nodes off (I1), so everything below the top is ours to edit. */
            for (before = top; before->next->next != NULL; before = before->next) {
            }
            victim = before->next;
            before->next = NULL;
        }
        rest = victim != NULL ? w & ~MT_LOCKED : 0; /* the only node: its removal is this very swap */
        /* pairs with: mt_cas_acquire in mt_lock_try, mt_lock_enqueue. Acquire too, because a node pushed since the load is
         * read in the next round, and a list that stays is handed on. */
        if (mt_cas_acq_rel_uptr(&l->word, &w, rest)) return victim != NULL ? victim : top;
    }
}

/* Release. Returns a node whose semaphore the caller must post, or NULL. */
static inline mt_lock_node *mt_unlock(mt_lock *l) {
    uintptr_t w = MT_LOCKED;
    /* pairs with: mt_cas_acquire in mt_lock_try, mt_lock_enqueue */
    if (MT_LIKELY(mt_cas_release_uptr(&l->word, &w, 0))) return NULL;
    return mt_unlock_slow(l);
}

/* In the child after fork: nobody holds the lock and nobody waits for it. */
static inline void mt_lock_reset(mt_lock *l) {
    /* relaxed because: the child has one thread */
    mt_store_relaxed_uptr(&l->word, 0);
}

#endif
