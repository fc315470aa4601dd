/* Native threads drive the work pool without Python: part of `make tsan` and `make asan`.
 *
 * Submitters that cancel some of their calls, workers, somebody who pauses and resumes lanes; then the end of the pool.
 * A call is a cell that its submitter fills and its worker marks, and a lane that runs one at a time has a number that
 * each of its calls writes, all by plain writes: the sanitizer sees whether the pool orders them. A wake-up that is
 * lost outlasts the deadline.
 */
#define DRIVER "drive_pool"
#include "platform.h"

#include "kernels.h"

enum { LANES = 3, SUBMITTERS = 3, WORKERS = 3, CALLS = 300 };

typedef struct {
    int submitter, number, ran, cancelled;
} call;

static struct {
    wp_pool p;
    wp_lane lanes[LANES];
    _Atomic int64_t objects[LANES]; /* how often each lane's object is counted */
    int last[LANES][SUBMITTERS];    /* of a lane that runs one at a time: which call ran last */
    call calls[SUBMITTERS][CALLS];
} m;

/* acquire and release: as the count of a Python object, the last one sees what the others did */
static void let_go(int lane, int n) {
    CHECK(atomic_fetch_sub_explicit(&m.objects[lane], n, memory_order_acq_rel) >= n, "a lane is let go too often");
}

static void submitter(int s) {
    int64_t position;
    int r, start, gone;
    for (int i = 0; i < CALLS; i++) {
        int lane = (int)native_random(LANES);
        wp_lane *ln = &m.lanes[lane];
        call *c = &m.calls[s][i];
        c->submitter = s;
        c->number = i;
        r = WP(put_when_slot_free)(&m.p, ln, (uintptr_t)c, &position, &start);
        CHECK(r == MT_OK, "put_when_slot_free: %d", r);
        CHECK(!start, "a worker too many is asked for");
        if (native_random(6) || !WP(withdraw_item)(&m.p, ln, position, (uintptr_t)c, &gone)) continue;
        c->cancelled = 1;
        if (gone) let_go(lane, 1);
    }
}

static void run_call(int lane, call *c) {
    CHECK(!c->cancelled && !c->ran, "call %d of %d runs again, or was cancelled", c->number, c->submitter);
    c->ran = 1;
    if (m.lanes[lane].max_running != 1) return;
    CHECK(m.last[lane][c->submitter] < c->number, "call %d of %d overtook", c->number, c->submitter);
    m.last[lane][c->submitter] = c->number;
}

static void worker(int unused) {
    uintptr_t raw;
    int64_t fork_generation;
    int r;
    for (;;) {
        wp_lane *ln = WP(take_item)(&m.p, &raw, &fork_generation);
        if (ln != NULL) {
            int lane = (int)(ln - m.lanes);
            run_call(lane, (call *)raw);
            let_go(lane, 1 + (WP(finish_item)(&m.p, ln, fork_generation) != 0));
            continue;
        }
        r = wait_for_items(m.p.q, -1, 0);
        CHECK(r == MT_OK || r == MT_SHUTDOWN, "wait_for_items: %d", r);
        if (r == MT_SHUTDOWN && WP(leave_pool)(&m.p)) return;
    }
}

/* Ends with every lane resumed. */
static void pauser(int unused) {
    for (int i = 0; i < CALLS; i++) {
        wp_lane *ln = &m.lanes[native_random(LANES)];
        CHECK(WP(pause_lane)(&m.p, ln, 1) == 0, "pause");
        if (native_random(2)) sched_yield();
        CHECK(WP(pause_lane)(&m.p, ln, 0) == 0, "resume asks for a worker");
    }
    CHECK(WP(wait_until_idle)(&m.lanes[0], mt_now_ns() + 100000) != MT_NOMEM, "no memory");
}

/* ---------------------------------------------------------------------------------------------------------- a round */
static void begin(void) {
    memset((void *)&m, 0, sizeof m);
    m.p.q = MQ_LIFE(new_queue)(0, 1);
    m.p.q->selection = MT_WEIGHTED;
    m.p.max_workers = m.p.workers = WORKERS;
    m.p.max_pending = native_random(2) ? 1 + (int64_t)native_random(30) : 0;
    for (int i = 0; i < LANES; i++) {
        wp_lane *ln = &m.lanes[i];
        ln->p = &m.p;
        ln->object = (void *)&m.objects[i];
        ln->max_running = (int64_t)native_random(3);
        ln->max_pending = native_random(2) ? 1 + (int64_t)native_random(10) : 0;
        ln->s = MQ_LIFE(new_subqueue)(m.p.q, (int64_t)native_random(2), 0, 1 + (uint32_t)native_random(3), 1);
        ln->s->owner = ln;
        CHECK(MQ_LIFE(attach_subqueue)(m.p.q, ln->s, 1) == MT_OK, "no memory");
        for (int s = 0; s < SUBMITTERS; s++) m.last[i][s] = -1;
    }
}

static void end(void) {
    CHECK(m.p.pending == 0 && m.p.workers == 0, "%d calls are left, %d workers", (int)m.p.pending, (int)m.p.workers);
    for (int s = 0; s < SUBMITTERS; s++)
        for (int i = 0; i < CALLS; i++) CHECK(m.calls[s][i].ran + m.calls[s][i].cancelled == 1, "call %d of %d", i, s);
    for (int i = 0; i < LANES; i++) {
        CHECK(m.objects[i] == 0 && m.lanes[i].active == 0, "lane %d is counted %d times", i, (int)m.objects[i]);
        MQ_LIFE(detach_subqueue)(m.p.q, m.lanes[i].s, 1);
        MQ_LIFE(drop_left_chunks)(m.p.q, m.lanes[i].s);
        MQ_LIFE(free_subqueue)(m.lanes[i].s, 1);
    }
    MQ_LIFE(drop_queue)(m.p.q, 1);
}

static void mixed(void) {
    begin();
    start(worker, WORKERS);
    start(submitter, SUBMITTERS);
    start(pauser, 1);
    join_from(WORKERS);
    CHECK(WP(end_pool)(&m.p, 1) == 0, "the end asks for a worker");
    join_from(0);
    end();
}

DRIVER_MAIN(100, {"mixed", mixed, 0})
