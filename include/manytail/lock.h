/* A one-word mutual exclusion lock with a list of parked waiters.
 *
 *      63                                            1        0
 *     +----------------------------------------------+--------+
 *     | newest parked thread (mt_lock_node*)         | LOCKED |
 *     +----------------------------------------------+--------+
 *
 * Algorithm: the "word lock" of WebKit's and Rust's parking lots. An uncontended lock or unlock is one
 * compare-and-swap. A thread that finds the lock taken pushes a node on its own stack onto a list whose head is the
 * word itself, and parks. Unlock removes the OLDEST node and returns it to its caller, which wakes that thread. A
 * running thread may take the lock before the woken one (barging), which avoids a lock convoy.
 *
 * Unlock is amortised O(1), as in Rust's parking_lot_core (word_lock.rs): it walks only over the nodes that were pushed
 * since the last walk, links them backwards, and leaves the oldest node in the newest one.
 *
 * Progress: blocking. The caller parks and wakes (mt_lock_node.sem is its semaphore), so this file needs no thread
 * library and a model checker can run it.
 *
 * Invariants
 *   I1  Any thread pushes nodes, only while LOCKED is set. Only the holder of the lock removes nodes.
 *   I2  The first node from the top whose `oldest` is not NULL names the oldest node; from there to it, each node's
 *       `newer` is set. The oldest node of a list that was empty is pushed with itself as `oldest`.
 *   I3  While the list is not empty, LOCKED is set, or a thread whose node was removed is about to retry.
 */
#ifndef MANYTAIL_LOCK_H
#define MANYTAIL_LOCK_H

#include <stddef.h>

#include "atomics.h"

#define MT_LOCKED ((uintptr_t)1)

/* Whether the build counts the locks that each thread holds: pyx/manytail/_lock.pyx, for tests. */
#ifndef MT_COUNTS_LOCKS
#define MT_COUNTS_LOCKS 0
#endif

typedef struct mt_lock_node {
    struct mt_lock_node *next;   /* the waiter before it; written before the push, as `oldest` is */
    struct mt_lock_node *newer;  /* the waiter after it, or not known yet (I2); the lock's holder writes these two */
    struct mt_lock_node *oldest; /* of the list, or NULL: not known here (I2) */
    void *sem;                   /* semaphore of the waiting thread; the caller of mt_unlock() posts it */
} mt_lock_node;

typedef struct {
    mt_atomic_uptr word;
} mt_lock;

/* Take the lock if it is free and nobody waits for it. 1: the caller holds it. One instruction, for the fast path. */
static inline int mt_lock_try_unused(mt_lock *l) {
    uintptr_t unused = 0;
    /* pairs with: mt_cas_release in mt_unlock; mt_cas_acq_rel in mt_unlock_slow */
    return mt_cas_acquire_uptr(&l->word, &unused, MT_LOCKED);
}

/* Take the lock unless it is taken. 1: the caller holds it. */
static inline int mt_lock_try(mt_lock *l) {
    /* relaxed because: only a guess for the compare-and-swap below */
    uintptr_t w = mt_load_relaxed_uptr(&l->word);
    while (!(w & MT_LOCKED)) {
        /* pairs with: mt_cas_release in mt_unlock; mt_cas_acq_rel in mt_unlock_slow */
        if (mt_cas_acquire_uptr(&l->word, &w, w | MT_LOCKED)) return 1;
    }
    return 0;
}

/* Take the lock, or join its list. 1: the caller holds it. 0: `n` is on the list; wait for n->sem, then call again. */
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
        n->oldest = n->next == NULL ? n : NULL;
        /* pairs with: mt_load_acquire in mt_unlock_slow (publishes the node) */
        if (mt_cas_release_uptr(&l->word, &w, (uintptr_t)n | MT_LOCKED)) return 0;
    }
}

/* Unlock while there are waiters. Clears LOCKED and returns the oldest node, which is off the list. */
static MT_NOINLINE mt_lock_node *mt_unlock_slow(mt_lock *l) {
    mt_lock_node *victim = NULL, *at;
    /* pairs with: mt_cas_release in mt_lock_enqueue */
    uintptr_t w = mt_load_acquire_uptr(&l->word), rest;
    for (;;) {
        mt_lock_node *top = (mt_lock_node *)(w & ~MT_LOCKED);
        if (victim == NULL && top != NULL) {
            /* Pushes write only the word, and only the holder removes (I1): the nodes from the top on do not change. */
            for (at = top; at->oldest == NULL; at = at->next) at->next->newer = at;
            top->oldest = at->oldest;
            if (top->oldest != top) {
                victim = top->oldest;
                top->oldest = victim->newer;
            }
        }
        rest = victim != NULL ? w & ~MT_LOCKED : 0; /* 0: `top` is the only node, and this swap removes it */
        /* pairs with: mt_cas_acquire in mt_lock_try, mt_lock_enqueue. Acquire too: if it fails, the next round reads
         * the nodes that were pushed since the load. */
        if (mt_cas_acq_rel_uptr(&l->word, &w, rest)) return victim != NULL ? victim : top;
    }
}

/* Unlock. Returns a node whose semaphore the caller must post, or NULL. */
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
