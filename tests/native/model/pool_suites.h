/* The work pool (_wp.pxd) in the model checker: what WorkPool, Lane and Dispatcher do with it, without Python. Workers
 * are there from the start. */
#ifndef POOL_SUITES_H
#define POOL_SUITES_H

struct pool_suite : run_by_checker {
    enum { LANES = 2, ITEMS = 8 };
    struct call {
        rl::var<int> lane; /* its submitter writes it, its worker reads it */
        int64_t number, position;
        int ran, withdrawn;
    };
    struct lane_state {
        rl::var<int> runs; /* which of its items ran last: the next must see it if one runs at a time */
        int running, next;
    };
    struct block {
        call calls[ITEMS];
        lane_state lanes[LANES];
    };
    wp_pool p;
    wp_lane lanes[LANES];
    int64_t objects[LANES]; /* how often each lane's object is counted, native_keep() */
    block *all;
    bool one_by_one; /* no lane may run two items at once */

    void begin(int workers, int64_t max_pending = 0, int64_t max_running = 0, int64_t lane_pending = 0) {
        model_now = 1;
        model_begin_signals(0, 0);
        model_keep = native_keep;
        memset(&native_registry, 0, sizeof native_registry);
        all = model_variable<block>();
        memset(&p, 0, sizeof p);
        memset(lanes, 0, sizeof lanes);
        memset(objects, 0, sizeof objects);
        one_by_one = max_running == 1;
        p.q = MQ_LIFE(new_queue)(0, ATTACHED);
        p.q->selection = MT_WEIGHTED;
        p.max_workers = p.workers = workers;
        p.max_pending = max_pending;
        mt_load_relaxed_i64(&p.q->clock);
        mt_load_relaxed_uptr(&p.q->spare);
        for (int i = 0; i < LANES; i++) {
            wp_lane *ln = &lanes[i];
            ln->p = &p;
            ln->object = &objects[i];
            ln->max_running = max_running;
            ln->max_pending = lane_pending;
            ln->s = MQ_LIFE(new_subqueue)(p.q, 0, 0, 1, 1);
            ln->s->owner = ln;
            OK(MQ_LIFE(attach_subqueue)(p.q, ln->s, ATTACHED));
            queue_suite::touch(ln->s);
            all->lanes[i].runs($) = -1;
        }
    }

    /* All that went in ran or was taken back, and nobody counts a lane any more. */
    void after() {
        RL_ASSERT(p.pending == 0 && p.not_full_ring == NULL && p.q->not_empty.n == 0);
        for (int i = 0; i < LANES; i++) {
            RL_ASSERT(lanes[i].active == 0 && !lanes[i].keep_alive && objects[i] == 0);
            RL_ASSERT(lanes[i].not_full.n == 0 && lanes[i].drained.n == 0);
            MQ_LIFE(detach_subqueue)(p.q, lanes[i].s, ATTACHED);
            MQ_LIFE(drop_left_chunks)(p.q, lanes[i].s);
            MQ_LIFE(free_subqueue)(lanes[i].s, ATTACHED);
        }
        MQ_LIFE(drop_queue)(p.q, ATTACHED);
        RL_ASSERT(model_end_memory() == 0);
    }

    call *item(int i, int lane) {
        call *c = &all->calls[i];
        c->lane($) = lane;
        c->ran = c->withdrawn = 0;
        return c;
    }

    /* submit(): MT_OK, MT_SHUTDOWN or MT_INTERRUPTED. */
    int submit(int i, int lane) {
        wp_lane *ln = &lanes[lane];
        call *c = item(i, lane);
        int start, r = WP(put_when_slot_free)(&p, ln, (uintptr_t)c, &c->position, &start);
        RL_ASSERT(r != MT_OK || !start); /* there are no more workers */
        return r;
    }

    /* cancel(): whether it was there still. */
    bool withdraw(int i, int lane) {
        call *c = &all->calls[i];
        int drop_lane;
        if (!WP(withdraw_item)(&p, &lanes[lane], c->position, (uintptr_t)c, &drop_lane)) return false;
        objects[lane] -= drop_lane != 0;
        c->withdrawn++;
        return true;
    }

    void run(int lane, uintptr_t raw) {
        call *c = (call *)raw;
        lane_state *l = &all->lanes[lane];
        RL_ASSERT(c->lane($) == lane && c->ran == 0 && c->withdrawn == 0);
        c->ran = 1;
        if (!one_by_one) return;
        RL_ASSERT(l->running++ == 0);
        int before = l->runs($);
        RL_ASSERT(before < (int)(c - all->calls)); /* in the order of their numbers: each lane has one submitter */
        l->runs($) = (int)(c - all->calls);
        l->running--;
    }

    /* One call, as a worker runs it; false: there is none. */
    bool work_once() {
        uintptr_t raw;
        int64_t fork_generation;
        wp_lane *ln = WP(take_item)(&p, &raw, &fork_generation);
        if (ln == NULL) return false;
        int lane = (int)(ln - lanes);
        run(lane, raw);
        objects[lane] -= 1 + (WP(finish_item)(&p, ln, fork_generation) != 0);
        return true;
    }

    /* A worker: until it has run n calls, or, n < 0, to the end of the pool. */
    void work(int n) {
        while (n) {
            if (work_once()) {
                n--;
            } else {
                int r = wait_for_items(p.q, FOREVER, DETACHED);
                RL_ASSERT(r == MT_OK || (n < 0 && r == MT_SHUTDOWN));
                if (r == MT_SHUTDOWN && WP(leave_pool)(&p)) return;
            }
        }
    }

    /* The workers that a pool asks for at its end: their threads are this one. */
    void start(int64_t workers) {
        while (workers--) work(-1);
    }

    void end_and_start() { start(WP(end_pool)(&p, 1)); }

    void pause(int paused) { RL_ASSERT(WP(pause_lane)(&p, &lanes[0], paused) == 0); }

    /* add() of a Dispatcher whose executor runs each task at once: a block of one item, then the next task. */
    void add(int i, int lane) {
        int start;
        RL_ASSERT(WP(put_in_lane)(&p, &lanes[lane], (uintptr_t)item(i, lane), 0, &all->calls[i].position, &start) ==
                  MT_OK);
        while (int64_t n = WP(missing_tasks)(&p)) {
            if (n < 0) break;
            while (n--) serve_block();
        }
    }

    void serve_block() {
        int64_t fork_generation;
        uintptr_t raw;
        wp_lane *ln = WP(begin_batch)(&p, 1, 1, &fork_generation);
        if (ln == NULL) return;
        int lane = (int)(ln - lanes);
        while (WP(take_of_batch)(&p, ln, fork_generation, &raw)) run(lane, raw);
        objects[lane] -= 1 + (WP(finish_item)(&p, ln, fork_generation) != 0);
    }
};

/* Items of two lanes, two workers: each runs once, and nobody sleeps while there is one. */
struct pool_two_lanes : suite<pool_suite, 3, 1> {
    void before() {
        begin(2);
        submit(0, 0);
    }
    void one() {
        OK(submit(1, 1));
        OK(submit(2, 0));
        end_and_start();
    }
    void two() { work(-1); }
    void three() { work(-1); }
};

/* One at a time: whoever ends an item lets the next one of its lane run, in whichever worker. */
struct pool_one_by_one : suite<pool_two_lanes, 3, 1> {
    void before() {
        begin(2, 0, 1);
        submit(0, 0);
        submit(1, 0);
    }
    void one() {
        OK(submit(2, 0));
        end_and_start();
    }
};

/* One place in the pool, a submitter in each of two lanes: each place that comes free is found by one. */
struct pool_place : suite<pool_suite, 3, 1> {
    void before() {
        begin(1, 1);
        submit(0, 0);
    }
    void one() { OK(submit(1, 0)); }
    void two() { OK(submit(2, 1)); }
    void three() { work(3); }
};

/* One place in the lane; one who waits for it may be interrupted, and passes on what came for him. */
struct pool_interrupted : suite<pool_suite, 3, 1> {
    void before() {
        begin(1, 0, 0, 1);
        submit(0, 0);
        model_begin_signals(1, 1);
    }
    void one() { submit_and_withdraw(1); }
    void two() { submit_and_withdraw(2); }
    void submit_and_withdraw(int i) {
        int r = submit(i, 0);
        RL_ASSERT(r == MT_OK || r == MT_INTERRUPTED);
        if (r == MT_OK) RL_ASSERT(withdraw(i, 0)); /* and the place is free again */
    }
    void three() { work(1); }
};

/* A call is cancelled while a worker may take it: one of the two has it, and its place is free for who waits. */
struct pool_withdrawn : suite<pool_suite, 3, 1> {
    void before() {
        begin(1, 0, 1, 1);
        submit(0, 0);
    }
    void one() { RL_ASSERT(withdraw(0, 0) == (all->calls[0].withdrawn == 1)); }
    void two() {
        OK(submit(1, 0));
        end_and_start();
    }
    void three() { work(-1); }
    void after() {
        RL_ASSERT(all->calls[0].ran + all->calls[0].withdrawn == 1 && all->calls[1].ran == 1);
        pool_suite::after();
    }
};

/* A cancelled call alone frees the place. */
struct pool_place_withdrawn : suite<pool_suite, 2, 3> {
    void before() {
        begin(1, 0, 0, 1);
        submit(0, 0);
    }
    void one() { RL_ASSERT(withdraw(0, 0)); }
    void two() {
        OK(submit(1, 0));
        RL_ASSERT(work_once());
    }
};

/* Items of a paused lane, and workers that wait: all of them come when it is resumed. */
struct pool_paused : suite<pool_suite, 3, 1> {
    void before() {
        begin(2);
        pause(1);
        submit(0, 0);
        submit(1, 0);
    }
    void one() { pause(0); }
    void two() { work(1); }
    void three() { work(1); }
};

/* Who waits until a lane is idle is told, and what ran has ended then, also if the rest was cancelled. */
struct pool_idle : suite<pool_suite, 3, 1> {
    void before() {
        begin(1, 0, 1);
        submit(0, 0);
        submit(1, 0);
    }
    void one() {
        work(1);
        work_once();
    }
    void two() {
        OK(WP(wait_until_idle)(&lanes[0], FOREVER));
        RL_ASSERT(all->lanes[0].runs($) == all->calls[1].ran);
    }
    void three() {
        int r = WP(wait_until_idle)(&lanes[0], model_now + SOMETIME);
        RL_ASSERT(r == MT_OK || r == MT_TIMEOUT);
        withdraw(1, 0);
    }
};

/* The end of a pool: a submitter that waits for a place is refused or taken, all that was taken runs, the worker
 * ends. */
struct pool_ended : suite<pool_suite, 3, 2> {
    int accepted;
    void before() {
        begin(1, 0, 0, 1);
        pause(1);
        submit(0, 0);
        accepted = 0;
    }
    void one() {
        int r = submit(1, 0);
        RL_ASSERT(r == MT_OK || r == MT_SHUTDOWN);
        accepted = r == MT_OK;
    }
    void two() { end_and_start(); }
    void three() { work(-1); }
    void after() {
        RL_ASSERT(all->calls[0].ran && all->calls[1].ran == accepted);
        pool_suite::after();
    }
};

/* A pool ends and a lane stays paused: who waits for a place in it is refused. */
struct pool_refused : suite<pool_suite, 2, 3> {
    void before() {
        begin(0, 0, 0, 1);
        pause(1);
        submit(0, 0);
    }
    void one() { RL_ASSERT(submit(1, 0) == MT_SHUTDOWN); }
    void two() { RL_ASSERT(WP(end_pool)(&p, 0) == 0); }
    void after() {
        uintptr_t raw;
        int drop_lane;
        RL_ASSERT(WP(take_away)(&p, &lanes[0], &raw, &drop_lane) && drop_lane);
        objects[0]--;
        pool_suite::after();
    }
};

/* Blocks on somebody else's threads: each adder serves what is ready, one item at a time, and nothing is left lying. */
struct pool_blocks : suite<pool_suite, 2, 2> {
    void before() { begin(0, 0, 1); }
    void thread(unsigned index) {
        add((int)index, (int)index);
        add(2 + (int)index, (int)index);
    }
    void after() {
        for (int i = 0; i < 4; i++) RL_ASSERT(all->calls[i].ran);
        pool_suite::after();
    }
};

#endif
