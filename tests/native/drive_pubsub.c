/* Native threads drive the publish/subscribe list (_ps.pxd) without the GIL: part of `make tsan` and `make asan`.
 *
 * Each thread makes a number of random calls and ends. A message is a cell that its publisher fills and that is
 * poisoned when its last reference goes, both by plain writes: a message that is freed while somebody may take it
 * is a race for the sanitizer, and a wrong value without one. In each session, from a join to a leave, a subscriber
 * must get each publisher's messages one after the other, none left out.
 *
 *   mixed     nobody waits for anything but a lock of the list
 *   waiting   takers wait for messages and publishers at the bound, with deadlines and interrupts
 *   forking   a fork comes while another thread, which drops messages, waits for the lock of a subscriber
 */
#define DRIVER "drive_pubsub"
#include "driver.h"

typedef struct {
    _Atomic int refs;
    int publisher, alive;
    int64_t seq;
} cell;

static void hold(cell *c);
#define MT_KEEP(item) hold((cell *)(item))

#include "platform.h"

#include "kernels.h"

enum { PUBLISHERS = 3, SHARED = 3, TAKERS = 4, GUESTS = 2, RUN = 24, ALIVE = 0x600d, DEAD = 0xdead };

/* A subscription, shared by threads; under its record's lock. */
typedef struct {
    ps_subscriber *record;
    int64_t last[PUBLISHERS]; /* of this session, -1: none yet */
} session;

static ps_pubsub *q;
static session shared[SHARED];
static cell *cells[PUBLISHERS];
static int calls;
static int64_t published[PUBLISHERS];

/* --------------------------------------------------------------------------------------------------------- messages */
static void hold(cell *c) {
    CHECK(c->alive == ALIVE, "a message of publisher %d is taken after it was freed", c->publisher);
    /* relaxed: a count that its owner's reference keeps from ending */
    atomic_fetch_add_explicit(&c->refs, 1, memory_order_relaxed);
}

static void drop(cell *c) {
    int before = atomic_fetch_sub_explicit(&c->refs, 1, memory_order_acq_rel);
    CHECK(before > 0, "message %d is freed too often", (int)c->seq);
    if (before == 1) c->alive = DEAD;
}

static void trim(void) {
    ps_freed f;
    do {
        PS(trim)(q, &f);
        if (f.low_moved) PS(wake_publisher)(q);
        for (uint32_t i = 0; i < f.n; i++) drop((cell *)f.items[i]);
    } while (f.incomplete);
}

static cell *new_message(int publisher, int64_t seq) {
    cell *c = cells[publisher] + seq;
    c->publisher = publisher;
    c->seq = seq;
    c->alive = ALIVE;
    atomic_store_explicit(&c->refs, 1, memory_order_relaxed);
    return c;
}

/* ---------------------------------------------------------------------------------------------------------- threads */
static void after_publish(void) {
    PS(wake_getters)(q);
    if (PS(no_subscriber)(q)) trim();
    PS(forward_not_full)(q);
}

static int publish_one(int p) {
    int64_t seq;
    int r = PS(publish)(q, (uintptr_t)new_message(p, published[p]), &seq);
    CHECK(r == MT_OK || r == MT_FULL || r == MT_SHUTDOWN, "publish: %d", r);
    published[p] += r == MT_OK;
    if (r == MT_OK) after_publish();
    return r;
}

/* The references of a run are added by the list, so a message begins with none of its own. */
static int publish_run(int p) {
    uintptr_t items[RUN];
    int64_t n = 1 + (int64_t)native_random(RUN), done, kept, i;
    for (i = 0; i < n; i++) {
        cell *c = new_message(p, published[p] + i);
        atomic_store_explicit(&c->refs, 0, memory_order_relaxed);
        items[i] = (uintptr_t)c;
    }
    int r = PS(publish_run)(q, items, n, &done, &kept);
    CHECK(r == MT_OK ? done == n : r == MT_FULL || r == MT_SHUTDOWN, "publish_run: %d, %d of %d", r, (int)done, (int)n);
    published[p] += done;
    if (done) after_publish();
    return r;
}

static void publisher(int p) {
    for (int i = 0; i < calls; i++) native_random(4) ? publish_one(p) : publish_run(p);
}

static void locked_begin(session *s) {
    for (int p = 0; p < PUBLISHERS; p++) s->last[p] = -1;
}

static void join(session *s) {
    int r;
    PS(lock_subscriber)(s->record);
    locked_begin(s);
    PS(unlock_subscriber)(s->record);
    r = PS(join)(q, s->record, native_random(3) ? PS_ENUM(START_NEXT) : PS_ENUM(START_OLDEST));
    CHECK(r == MT_OK, "join: %d", r);
    trim();
}

static void close_session(session *s) {
    if (PS(close_subscriber)(q, s->record)) trim();
}

/* How many came. With the lock held from the take to the check of the order. */
static int take(session *s, int64_t most) {
    uintptr_t items[RUN];
    wait_node *to_post = NULL;
    int again = 0, sole = 0, r = MT_OK;
    int64_t from, n = 1;
    PS(lock_subscriber)(s->record);
    from = PS(locked_next_seq)(s->record);
    if (most == 1) {
        sole = PS(locked_take_sole)(q, s->record, items, &again);
        r = sole ? MT_OK : PS(locked_take)(s->record, items);
    } else if (!s->record->closed) {
        n = PS(locked_take_many)(s->record, items, PS(locked_available)(s->record, most));
    } else {
        r = PS_ENUM(CLOSED);
    }
    if (r != MT_OK) n = 0;
    for (int64_t i = 0; i < n; i++) {
        cell *c = (cell *)items[i];
        int64_t *last = &s->last[c->publisher];
        CHECK(*last < 0 || c->seq == *last + 1, "message %d of publisher %d comes after %d", (int)c->seq, c->publisher,
              (int)*last);
        *last = c->seq;
    }
    if (n) PS(locked_propagate)(q, s->record, &to_post);
    PS(unlock_subscriber)(s->record);
    if (to_post != NULL) WAITING(post)(to_post);
    CHECK(r == MT_OK || r == MT_EMPTY || r == PS_ENUM(CLOSED) || r == MT_SHUTDOWN, "take: %d", r);
    for (int64_t i = 0; i < n; i++) drop((cell *)items[i]);
    if (sole) PS(wake_publisher)(q);
    if (again || (n && !sole && PS(must_trim)(q, s->record, from))) trim();
    return (int)n;
}

static void skip(session *s) {
    int64_t end = PS(end_seq)(q);
    PS(lock_subscriber)(s->record);
    if (!s->record->closed && PS(locked_next_seq)(s->record) < end) {
        PS(locked_skip)(s->record, end);
        locked_begin(s);
    }
    PS(unlock_subscriber)(s->record);
    trim();
}

static void taker(int index) {
    for (int i = 0; i < 2 * calls; i++) {
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
    for (int i = 0; i < calls / 8; i++) {
        session s;
        s.record = PS(new_record)(q);
        CHECK(s.record != NULL, "no memory");
        join(&s);
        for (int k = (int)native_random(6); k; k--) take(&s, native_random(2) ? 1 : RUN);
        close_session(&s);
        PS(free_record)(s.record);
    }
}

/* With deadlines and interrupts, until the end of the list. */
static void patient_taker(int index) {
    session *s = &shared[index % SHARED];
    int64_t deadline;
    int r;
    native_self.interrupts = 8;
    do {
        take(s, native_random(4) ? 1 : RUN);
        deadline = native_random(2) ? mt_now_ns() + (int64_t)native_random(100000) : -1;
        r = wait_for_message(s->record, deadline);
        CHECK(r == MT_OK || r == MT_TIMEOUT || r == MT_INTERRUPTED || r == MT_SHUTDOWN, "wait_for_message: %d", r);
    } while (r != MT_SHUTDOWN);
}

static void patient_publisher(int p) {
    int r;
    native_self.interrupts = 8;
    for (int i = 0; i < calls; i++) {
        while (publish_one(p) == MT_FULL) {
            r = wait_for_free_slot(q, native_random(2) ? mt_now_ns() + (int64_t)native_random(100000) : -1);
            CHECK(r == MT_OK || r == MT_TIMEOUT || r == MT_INTERRUPTED, "wait_for_free_slot: %d", r);
        }
    }
}

/* ---------------------------------------------------------------------------------------------------------- a round */
static void begin(int64_t maxsize) {
    q = PS(new_pubsub)();
    CHECK(q != NULL, "no memory");
    mt_epoch_init(&q->epoch, 1 + (int64_t)native_random(8));
    mt_store_relaxed_i64(&q->maxsize, maxsize);
    calls = 200 + (int)native_random(400);
    for (int i = 0; i < PUBLISHERS; i++) {
        cells[i] = (cell *)calloc((size_t)calls * RUN, sizeof(cell));
        published[i] = 0;
    }
    for (int i = 0; i < SHARED; i++) {
        shared[i].record = PS(new_record)(q);
        join(&shared[i]);
    }
}

/* What is left comes out, in order; then all that was published has been freed, once. */
static void end(void) {
    PS(shut_down)(q, 0);
    for (int64_t i = 0; i < SHARED; i++) {
        while (take(&shared[i], native_random(2) ? 1 : RUN)) {
        }
        for (int64_t p = 0; p < PUBLISHERS; p++)
            CHECK(shared[i].last[p] < 0 || shared[i].last[p] == published[p] - 1,
                  "subscriber %d missed the last of publisher %d", (int)i, (int)p);
        close_session(&shared[i]);
    }
    for (int64_t p = 0; p < PUBLISHERS; p++) {
        for (int64_t i = 0; i < published[p]; i++)
            CHECK(cells[p][i].alive == DEAD && cells[p][i].refs == 0, "message %d of publisher %d is kept", (int)i,
                  (int)p);
        free(cells[p]);
    }
    PS(free_pubsub)(q);
}

static void mixed(void) {
    begin(native_random(2) ? 1 + (int64_t)native_random(200) : 0);
    start(publisher, PUBLISHERS);
    start(taker, TAKERS);
    start(guest, GUESTS);
    join_from(0);
    end();
}

/* The publishers end first; then the end of the list ends the takers. */
static void waiting(void) {
    begin(1 + (int64_t)native_random(8));
    calls /= 8; /* each of them may park */
    start(patient_taker, TAKERS);
    start(patient_publisher, PUBLISHERS);
    join_from(TAKERS);
    PS(shut_down)(q, 0);
    join_from(0);
    end();
}

/* ------------------------------------------------------------------------------------------------------------- fork */
static sem_t forked;

/* shared[2] was moved past both messages and nobody has trimmed; shared[0] has taken both. So the list is trimmed only
 * if the child finds that shared[1], which is not at low_seq as the parent left it, is the slowest now. */
static void child(void) {
    PS(after_fork)(q, PyThread_get_thread_ident());
    CHECK(take(&shared[1], 1) == 1, "the message is gone");
    CHECK(cells[0][0].alive == DEAD && cells[0][1].alive == DEAD, "the child does not trim");
    CHECK(publish_one(0) == MT_OK, "the child cannot publish");
}

static void fork_once(void) {
    native_detaching = NULL;
    fork_and(child);
    sem_post(&forked);
}

static void dropper(int unused) {
    PS(lock_capacity)(q);
    PS(capacity_locked_make_free_slots)(q, 2);
    PS(unlock_capacity)(q);
    trim();
}

static void forking(void) {
    begin(2);
    for (int i = 0; i < 2; i++) CHECK(publish_one(0) == MT_OK, "no free slot");
    take(&shared[1], 1);
    for (int i = 0; i < 2; i++) take(&shared[0], 1);
    sem_init(&forked, 0, 0);
    PS(lock_subscriber)(shared[1].record);
    native_detaching = fork_once; /* in the dropper, which waits for that lock */
    start(dropper, 1);
    sem_wait(&forked);
    PS(unlock_subscriber)(shared[1].record);
    join_from(0);
    sem_destroy(&forked);
    CHECK(PS(take_missed)(q, shared[1].record) == 1 && PS(take_missed)(q, shared[2].record) == 2, "not dropped");
    locked_begin(&shared[1]); /* it has not got the last message */
    end();
}

DRIVER_MAIN(300, {"mixed", mixed, 0}, {"waiting", waiting, 0}, {"forking", forking, 0})
