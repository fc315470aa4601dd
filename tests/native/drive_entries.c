/* Native threads drive the entry queue without the GIL: part of `make tsan` and `make asan`.
 *
 * Putters, getters that ack, reject and give back, subscriptions that come and go with what they hold, browsers,
 * time-outs; then a shutdown. An item is a cell that its putter fills and that whoever ends its entry poisons, both by
 * plain writes, so the sanitizer sees whether the queue hands it over; what the getters count is relaxed, and orders
 * nothing. Each item ends once. A wake-up that is lost outlasts the deadline.
 */
#define DRIVER "drive_entries"
#include "platform.h"

#include "kernels.h"

enum { PUTTERS = 3, TAKERS = 3, GUESTS = 2, BROWSERS = 1, LEVELS = 3, BATCH = 6, ALIVE = 0x600d, DEAD = 0xdead };

typedef struct {
    int state, deliveries; /* plain: written by whoever has the entry */
    _Atomic int ends;
} cell;

static struct {
    eq_registry registry;
    nogil_queue *q;
    nogil_subscription *shared[2]; /* each used by several getters */
    cell *cells[PUTTERS];
    int per_putter, immediate;
    /* Everybody waits for ever. Nobody comes and goes, whose wake-ups could stand in for one that is lost. */
    int patient;
    int64_t accepted[PUTTERS];
    _Atomic int64_t ended;
    _Atomic int putters_left, over;
} m;

static int64_t some_patience(void) { return m.patient ? -1 : some_timeout(); }

static int64_t some_deadline(void) { return WAITING(deadline_in)(some_patience()); }

static void end_of(cell *c) {
    CHECK(c->state == ALIVE, "an item ends that has ended");
    c->state = DEAD;
    atomic_fetch_add_explicit(&c->ends, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&m.ended, 1, memory_order_relaxed);
}

static void dropped(uintptr_t item, void *count) {
    end_of((cell *)item);
    ++*(int64_t *)count;
}

/* ---------------------------------------------------------------------------------------------------------- threads */
static cell *new_item(int p, int64_t i) {
    cell *c = m.cells[p] + i;
    c->state = ALIVE;
    c->deliveries = 0;
    return c;
}

static void putter(int p) {
    uintptr_t items[BATCH];
    int64_t made = 0, n, count;
    int r = MT_OK;
    while (made < m.per_putter && r != MT_SHUTDOWN) {
        n = native_random(4) ? 1 : 1 + (int64_t)native_random(BATCH);
        if (n > m.per_putter - made) n = m.per_putter - made;
        for (int64_t i = 0; i < n; i++) items[i] = (uintptr_t)new_item(p, made + i);
        if (n == 1) {
            r = EQN(put_until)(m.q, items[0], (int)native_random(LEVELS + 2) - 1, some_deadline());
            count = r == MT_OK;
        } else {
            r = EQN(put_many_until)(m.q, items, n, (int)native_random(LEVELS), some_deadline(), &count);
        }
        CHECK(r == MT_OK ? count == n : r == MT_FULL || r == MT_TIMEOUT || r == MT_SHUTDOWN, "put: %d", r);
        made += count;
    }
    m.accepted[p] = made;
    /* The last one ends it; what a subscription still holds can go then. */
    if (atomic_fetch_sub_explicit(&m.putters_left, 1, memory_order_relaxed) == 1) {
        EQN(shut_nogil_queue)(m.q, m.immediate);
        atomic_store_explicit(&m.over, 1, memory_order_relaxed);
    }
}

/* What is done with a delivery; closed: it is over, so nothing may change. */
static void settle(acquired_entry *it, int closed) {
    cell *c = (cell *)it->item;
    uint64_t kind = native_random(8);
    int r;
    if (!closed) {
        CHECK(c->state == ALIVE, "an entry was handed over after its end");
        c->deliveries++;
        CHECK(c->deliveries == (int)it->delivery, "delivery %d of an entry that came %d times", (int)it->delivery,
              c->deliveries);
    }
    if (kind == 0 && !closed) {
        r = EQN(release)(m.q, it);
        CHECK(r == MT_OK || r == MT_SHUTDOWN, "release: %d", r);
        if (r == MT_SHUTDOWN) end_of(c);
    } else {
        r = kind == 1 ? EQN(finish)(m.q, it, EQ_IS(REJECTED)) : EQN(finish)(m.q, it, EQ_IS(ACKED));
        CHECK(r == (closed ? MT_BADARG : MT_OK), "ack: %d", r);
        if (r == MT_OK) end_of(c);
    }
    CHECK(it->e == NULL && EQN(finish)(m.q, it, EQ_IS(ACKED)) == MT_BADARG, "a delivery acts twice");
}

static void taker(int index) {
    nogil_subscription *s = m.shared[index % 2];
    acquired_entry it;
    int r;
    do {
        r = EQN(get_within)(s, &it, some_patience());
        if (r == MT_OK) settle(&it, 0);
        CHECK(r == MT_OK || r == MT_EMPTY || r == MT_TIMEOUT || r == MT_SHUTDOWN, "get: %d", r);
    } while (r != MT_SHUTDOWN);
}

/* Subscribes, takes some, and closes with one in its hands: that one is somebody else's then. */
static void guest(int unused) {
    acquired_entry held[BATCH];
    int n, r = MT_OK, credit;
    /* What it gives back at the end nobody takes any more, and it could go on getting that for ever. */
    while (!m.patient && r != MT_SHUTDOWN && !atomic_load_explicit(&m.over, memory_order_relaxed)) {
        credit = (int)native_random(3);
        nogil_subscription *s = EQN(subscribe)(m.q, 0, credit);
        CHECK(s != NULL, "no memory");
        for (n = 0; n < (credit ? credit : 3); n++) {
            r = EQN(get_within)(s, &held[n], n == 0 ? 50000 : 0);
            if (r != MT_OK) break;
            ((cell *)held[n].item)->deliveries++;
        }
        if (credit && n == credit) CHECK(EQN(get_within)(s, &held[n], 0) != MT_OK, "more than its credit");
        CHECK(EQN(unsubscribe)(s) == MT_OK && EQN(unsubscribe)(s) == MT_BADARG, "close");
        CHECK(EQN(get_within)(s, &held[n], -1) == MT_BADARG, "a closed subscription gets");
        for (int i = 0; i < n; i++) {
            if (native_random(2)) {
                settle(&held[i], 1);
            } else {
                EQN(forget)(&held[i]);
            }
        }
    }
}

static void browser(int unused) {
    acquired_entry it;
    int r = MT_OK;
    nogil_subscription *s = EQN(subscribe)(m.q, 1, 0);
    while (r != MT_SHUTDOWN) {
        r = EQN(get_within)(s, &it, native_random(2) ? 20000 : -1);
        if (r != MT_OK) continue;
        CHECK(it.delivery == 0, "a browser has a delivery");
        if (native_random(2)) {
            CHECK(EQN(finish)(m.q, &it, EQ_IS(ACKED)) == MT_BADARG, "a browser acks");
        } else {
            EQN(forget)(&it);
        }
    }
}

/* ---------------------------------------------------------------------------------------------------------- a round */
static void begin(void) {
    memset((void *)&m, 0, sizeof m);
    m.q = EQN(new_nogil_queue)(&m.registry, native_random(2) ? LEVELS : 1,
                               native_random(2) ? 1 + (int64_t)native_random(20) : 0);
    CHECK(m.q != NULL, "no memory");
    m.per_putter = 100 + (int)native_random(200);
    m.immediate = native_random(2) == 0;
    m.patient = native_random(2) == 0;
    m.putters_left = PUTTERS;
    for (int i = 0; i < 2; i++) m.shared[i] = EQN(subscribe)(m.q, 0, native_random(2) ? 2 : 0);
    for (int i = 0; i < PUTTERS; i++) m.cells[i] = (cell *)calloc((size_t)m.per_putter, sizeof(cell));
}

static void end(void) {
    int64_t accepted = 0, left = 0, depth = EQN(count_of)(m.q, 1), i;
    for (int p = 0; p < PUTTERS; p++) accepted += m.accepted[p];
    CHECK(EQN(put_until)(m.q, 1, 0, -1) == MT_SHUTDOWN, "a put after the end");
    CHECK(m.immediate || depth == accepted - m.ended, "depth %d", (int)depth);
    EQN(destroy_nogil_queue)(m.q, dropped, &left);
    CHECK(m.ended == accepted, "%d items of %d ended", (int)m.ended, (int)accepted);
    for (int p = 0; p < PUTTERS; p++) {
        for (i = 0; i < m.accepted[p]; i++)
            CHECK(m.cells[p][i].ends == 1, "an item ended %d times", m.cells[p][i].ends);
        free(m.cells[p]);
    }
}

static void mixed(void) {
    begin();
    start(putter, PUTTERS);
    start(taker, TAKERS);
    start(guest, GUESTS);
    start(browser, BROWSERS);
    join_from(0);
    end();
}

/* A delivery number does not run out after 2 ** 32. */
static void numbers(void) {
    mt_atomic_i64 word;
    uint64_t old = UINT64_C(0xffffffff), n;
    memset((void *)&word, 0, sizeof word);
    mt_store_relaxed_i64(&word, (int64_t)(old << ENTRY_IS(DELIVERY_SHIFT)) | ENTRY_IS(AVAILABLE));
    n = ENTRY(entry_acquire)(&word);
    CHECK(n == old + 1, "the number after 2 ** 32 - 1");
    CHECK(ENTRY(word_has_delivery)(ENTRY(entry_word)(&word), n), "its holder does not hold it");
    CHECK(!ENTRY(word_has_delivery)(ENTRY(entry_word)(&word), 0), "delivery 0 holds it");
    CHECK(!ENTRY(entry_release)(&word, old, ENTRY_IS(AVAILABLE)), "a delivery that is over releases");
    CHECK(ENTRY(entry_release)(&word, n, ENTRY_IS(AVAILABLE)), "its holder cannot release");
    CHECK(ENTRY(entry_acquire)(&word) == n + 1, "the next number");
    CHECK(ENTRY(word_redelivered)(ENTRY(entry_word)(&word)), "a release is forgotten");
    CHECK(ENTRY(entry_dequeue)(&word, n + 1), "its holder cannot end it");
}

DRIVER_MAIN(100, {"numbers", numbers, 1}, {"mixed", mixed, 0})
