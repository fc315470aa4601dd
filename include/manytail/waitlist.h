/* Wait lists: who waits for a condition, in order of arrival.
 *
 * The protocol of a condition variable, taken apart so that it can carry deadlines, signals, event loops and fork:
 *   - a list is guarded by the lock that guards its condition (getters: the take lock; putters: their put lock);
 *   - who waits enqueues its waiter under that lock, having found the condition false, and parks after unlocking;
 *   - who makes the condition true TAKES a waiter off under the lock (state NOTIFIED) and posts it after unlocking;
 *   - who stops waiting (time out, interrupt, cancel) takes itself off under the lock; if it finds itself already
 *     NOTIFIED it owns a wake-up that is not its own to keep: it consumes the post and passes the wake-up on.
 * So each wake-up goes to exactly one waiter, and none is lost. A thread's waiter lives on its stack: it may leave only
 * after the post that a NOTIFIED state promises has arrived.
 */
#ifndef MANYTAIL_WAITLIST_H
#define MANYTAIL_WAITLIST_H

#include <stddef.h>
#include <stdint.h>

enum { MT_WAITER_OUT = 0, MT_WAITER_QUEUED = 1, MT_WAITER_NOTIFIED = 2 };

typedef struct mt_waiter {
    struct mt_waiter *next, *prev; /* in the list; after being taken off, `next` chains the waiters to be posted */
    void *sem;                     /* a thread's semaphore, or NULL */
    void *callback;                /* an event loop's waiter object (a counted reference while queued), or NULL */
    unsigned long thread;          /* who waits; after fork only the surviving thread's waiters are kept */
    uint32_t state;                /* under the list's lock */
} mt_waiter;

/* Two lists in one. A wake-up that went to an event loop may be long in coming to anything (the loop may be busy, or
 * stopped for good), so threads and loops are notified side by side: neither keeps an item from the other. */
enum { MT_WAITER_THREAD = 0, MT_WAITER_LOOP = 1 };

typedef struct {
    mt_waiter *first[2], *last[2]; /* by kind: MT_WAITER_THREAD, MT_WAITER_LOOP */
    int64_t n;                     /* both kinds */
} mt_waitlist;

static inline int mt_waiter_kind(const mt_waiter *w) { return w->sem != NULL ? MT_WAITER_THREAD : MT_WAITER_LOOP; }

static inline void mt_waitlist_push(mt_waitlist *l, mt_waiter *w) {
    int k = mt_waiter_kind(w);
    w->state = MT_WAITER_QUEUED;
    w->next = NULL;
    w->prev = l->last[k];
    if (l->last[k]) {
        l->last[k]->next = w;
    } else {
        l->first[k] = w;
    }
    l->last[k] = w;
    l->n++;
}

static inline void mt_waitlist_unlink(mt_waitlist *l, mt_waiter *w) {
    int k = mt_waiter_kind(w);
    if (w->prev) {
        w->prev->next = w->next;
    } else {
        l->first[k] = w->next;
    }
    if (w->next) {
        w->next->prev = w->prev;
    } else {
        l->last[k] = w->prev;
    }
    w->next = w->prev = NULL;
    l->n--;
}

static inline void mt_waitlist_notify_first(mt_waitlist *l, int kind, mt_waiter **wake) {
    mt_waiter *w = l->first[kind];
    if (w == NULL) return;
    mt_waitlist_unlink(l, w);
    w->state = MT_WAITER_NOTIFIED;
    w->next = *wake;
    *wake = w;
}

/* Take the longest waiting thread and the longest waiting coroutine off and chain them to *wake; the caller posts that
 * chain after unlocking. */
static inline void mt_waitlist_notify(mt_waitlist *l, mt_waiter **wake) {
    mt_waitlist_notify_first(l, MT_WAITER_LOOP, wake);
    mt_waitlist_notify_first(l, MT_WAITER_THREAD, wake);
}

static inline void mt_waitlist_notify_all(mt_waitlist *l, mt_waiter **wake) {
    while (l->n) mt_waitlist_notify(l, wake);
}

/* The waiter stops waiting; what it was is returned. NOTIFIED: its owner must consume the post and pass the wake-up on. */
static inline uint32_t mt_waitlist_leave(mt_waitlist *l, mt_waiter *w) {
    uint32_t state = w->state;
    if (state == MT_WAITER_QUEUED) mt_waitlist_unlink(l, w);
    w->state = MT_WAITER_OUT;
    return state;
}

/* In the child after fork: keep only the waiters of the thread that lives on (its event loop's). */
static inline void mt_waitlist_keep_thread(mt_waitlist *l, unsigned long thread) {
    int kind;
    for (kind = 0; kind < 2; kind++) {
        mt_waiter *w = l->first[kind], *next;
        for (; w; w = next) {
            next = w->next;
            if (w->thread == thread && kind == MT_WAITER_LOOP) continue;
            mt_waitlist_unlink(l, w);
            w->state = MT_WAITER_OUT;
        }
    }
}

#endif
