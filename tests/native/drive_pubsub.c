/* Native threads drive pubsub.h without the GIL: part of `make tsan` and `make asan`.
 *
 * Each thread makes a number of random calls and ends; none waits for anything but a lock of the list. A message is a cell that its
 * publisher fills and that is poisoned when its last reference goes, both by plain writes: a message that is let go while somebody may
 * take it is a race for the sanitizer, and a wrong value without one. In each session, from a join to a leave, a subscriber must get each
 * publisher's messages one after the other, none left out.
 */
#define DRIVER "drive_pubsub"
#include "platform.h"

#include "kernels.h"

#include <stdatomic.h>

typedef struct {
    _Atomic int refs;
    int publisher, alive;
    int64_t seq;
} cell;

#define MT_PUBSUB_HOLD(item) hold((cell *)(item))
static void hold(cell *c);

#include "manytail/pubsub.h"

enum { PUBLISHERS = 3, SHARED = 3, TAKERS = 4, GUESTS = 2, RUN = 24, ALIVE = 0x600d, DEAD = 0xdead };

/* A subscription, shared by threads; under its record's lock. */
typedef struct {
    mt_subscriber *record;
    int64_t last[PUBLISHERS]; /* of this session, -1: none yet */
} session;

static mt_pubsub q;
static session shared[SHARED];
static cell *cells[PUBLISHERS];
static int calls;
static int64_t published[PUBLISHERS];

/* ---------------------------------------------------------------------------------------------------------- messages */
static void hold(cell *c) {
    CHECK(c->alive == ALIVE, "a message of publisher %d is taken after it was let go", c->publisher);
    /* relaxed: a count that its owner's reference keeps from ending */
    atomic_fetch_add_explicit(&c->refs, 1, memory_order_relaxed);
}

static void let_go(cell *c) {
    int before = atomic_fetch_sub_explicit(&c->refs, 1, memory_order_acq_rel);
    CHECK(before > 0, "message %d is let go too often", (int)c->seq);
    if (before == 1) c->alive = DEAD;
}

static void trim(void) {
    mt_drops d;
    uint32_t i;
    do {
        mt_pubsub_trim(&q, &d);
        mt_retired_free(d.chunks);
        for (i = 0; i < d.n; i++) let_go((cell *)d.items[i]);
    } while (d.more);
}

static cell *new_message(int publisher, int64_t seq) {
    cell *c = cells[publisher] + seq;
    c->publisher = publisher;
    c->seq = seq;
    c->alive = ALIVE;
    atomic_store_explicit(&c->refs, 1, memory_order_relaxed);
    return c;
}

/* ------------------------------------------------------------------------------------------------------------ threads */
static void publish_one(int p) {
    mt_retired *freeable;
    int64_t position;
    int r = mt_pubsub_publish_parallel(&q, (uintptr_t)new_message(p, published[p]), &position, &freeable);
    mt_retired_free(freeable);
    CHECK(r == MT_OK || r == MT_FULL || r == MT_SHUTDOWN, "publish: %d", r);
    published[p] += r == MT_OK;
}

/* The references of a run are added by the list, so a message begins with none of its own. */
static void publish_run(int p) {
    uintptr_t items[RUN];
    mt_retired *freeable;
    int64_t n = 1 + (int64_t)native_random(RUN), done, held, i;
    for (i = 0; i < n; i++) {
        cell *c = new_message(p, published[p] + i);
        atomic_store_explicit(&c->refs, 0, memory_order_relaxed);
        items[i] = (uintptr_t)c;
    }
    int r = mt_pubsub_publish_run_parallel(&q, items, n, &done, &held, &freeable);
    mt_retired_free(freeable);
    CHECK(r == MT_OK ? done == n : r == MT_FULL || r == MT_SHUTDOWN, "publish_run: %d, %d of %d", r, (int)done, (int)n);
    published[p] += done;
}

static void publisher(int p) {
    int i;
    for (i = 0; i < calls; i++) {
        native_random(4) ? publish_one(p) : publish_run(p);
        if (mt_pubsub_nobody(&q)) trim();
    }
}

static void lock(mt_lock *l) {
    if (!mt_lock_try(l)) WAIT(lock_slow)(l, 0);
}

static void unlock(mt_lock *l) {
    mt_lock_node *n = mt_unlock(l);
    if (n != NULL) WAIT(post_lock_node)(n);
}

static void locked_begin(session *s) {
    int p;
    for (p = 0; p < PUBLISHERS; p++) s->last[p] = -1;
}

static void join(session *s) {
    mt_retired *freeable;
    int r;
    lock(&q.join_lock);
    lock(&s->record->lock);
    r = mt_pubsub_join(&q, s->record, native_random(3) ? MT_START_NEXT : MT_START_OLDEST, &freeable);
    CHECK(r == MT_OK, "join: %d", r);
    locked_begin(s);
    unlock(&s->record->lock);
    unlock(&q.join_lock);
    mt_retired_free(freeable);
    trim();
}

static void leave(session *s) {
    int left;
    lock(&s->record->lock);
    left = mt_subscriber_leave(&q, s->record);
    unlock(&s->record->lock);
    if (left) trim();
}

/* How many came. */
static int take(session *s, int64_t most) {
    uintptr_t items[RUN];
    int64_t from, n = 1, i;
    int r = MT_OK;
    lock(&s->record->lock);
    from = mt_subscriber_at(s->record);
    if (most == 1) {
        r = mt_subscriber_take(&q, s->record, items);
    } else if (!s->record->closed) {
        n = mt_subscriber_take_many(&q, s->record, items, mt_subscriber_available(&q, s->record, most));
    } else {
        r = MT_CLOSED;
    }
    if (r != MT_OK) n = 0;
    for (i = 0; i < n; i++) {
        cell *c = (cell *)items[i];
        int64_t *last = &s->last[c->publisher];
        CHECK(*last < 0 || c->seq == *last + 1, "message %d of publisher %d comes after %d", (int)c->seq, c->publisher,
              (int)*last);
        *last = c->seq;
    }
    unlock(&s->record->lock);
    CHECK(r == MT_OK || r == MT_EMPTY || r == MT_CLOSED || r == MT_SHUTDOWN, "take: %d", r);
    for (i = 0; i < n; i++) let_go((cell *)items[i]);
    if (n && mt_pubsub_may_trim(&q, s->record, from)) trim();
    return (int)n;
}

static void skip(session *s) {
    mt_retired *freeable = NULL;
    int64_t end = mt_pubsub_position(&q, &freeable);
    mt_retired_free(freeable);
    lock(&s->record->lock);
    if (!s->record->closed && mt_subscriber_at(s->record) < end) {
        mt_subscriber_skip(&q, s->record, end);
        locked_begin(s);
    }
    unlock(&s->record->lock);
    trim();
}

static void taker(int index) {
    int i;
    for (i = 0; i < 2 * calls; i++) {
        session *s = &shared[(index + (native_random(4) == 0)) % SHARED];
        uint64_t kind = native_random(64);
        if (kind == 0) {
            skip(s);
        } else {
            take(s, kind < 16 ? RUN : 1);
        }
    }
}

/* Comes, takes a little, and goes. */
static void guest(int unused) {
    int i, k;
    (void)unused;
    for (i = 0; i < calls / 8; i++) {
        session s;
        s.record = mt_pubsub_new_record(&q);
        CHECK(s.record != NULL, "no memory");
        join(&s);
        for (k = (int)native_random(6); k; k--) take(&s, native_random(2) ? 1 : RUN);
        leave(&s);
        mt_pubsub_free_record(s.record);
    }
}

/* -------------------------------------------------------------------------------------------------------------- a round */
static void begin(void) {
    int i;
    memset((void *)&q, 0, sizeof q);
    mt_epoch_init(&q.epoch, 1 + (int64_t)native_random(8));
    CHECK(mt_pubsub_init(&q, 0, native_random(2) ? 1 + (int64_t)native_random(200) : 0, MT_SLOW_RAISE) == MT_OK,
          "no memory");
    calls = 200 + (int)native_random(400);
    for (i = 0; i < PUBLISHERS; i++) {
        cells[i] = (cell *)calloc((size_t)calls * RUN, sizeof(cell));
        published[i] = 0;
    }
    for (i = 0; i < SHARED; i++) {
        shared[i].record = mt_pubsub_new_record(&q);
        join(&shared[i]);
    }
}

/* What is left comes out, in order; then all that was published has been let go, once. */
static void end(void) {
    mt_retired *freeable;
    int64_t p, i;
    mt_pubsub_shut(&q, &freeable);
    mt_retired_free(freeable);
    for (i = 0; i < SHARED; i++) {
        while (take(&shared[i], native_random(2) ? 1 : RUN)) {
        }
        for (p = 0; p < PUBLISHERS; p++)
            CHECK(shared[i].last[p] < 0 || shared[i].last[p] == published[p] - 1,
                  "subscriber %d missed the last of publisher %d", (int)i, (int)p);
        leave(&shared[i]);
    }
    for (p = 0; p < PUBLISHERS; p++) {
        for (i = 0; i < published[p]; i++)
            CHECK(cells[p][i].alive == DEAD && cells[p][i].refs == 0, "message %d of publisher %d is kept", (int)i,
                  (int)p);
        free(cells[p]);
    }
    mt_pubsub_end(&q);
}

static void mixed(void) {
    begin();
    start(publisher, PUBLISHERS);
    start(taker, TAKERS);
    start(guest, GUESTS);
    join_from(0);
    end();
}

int main(int argc, char **argv) {
    static const scenario only = {"mixed", mixed, 0};
    return driver_main(argc, argv, &only, 1, 300);
}
