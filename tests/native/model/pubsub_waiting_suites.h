/* Waiting for a message and for a free slot of the publish/subscribe list, in the model checker: the points that
 * _ps.pxd makes for _waiting.pxd. Included after pubsub_suites.h.
 *
 * Each suite must end: a wake-up that is lost is a deadlock.
 */
#ifndef PUBSUB_WAITING_SUITES_H
#define PUBSUB_WAITING_SUITES_H

struct pubsub_waiting_suite : pubsub_suite {
    /* `there` messages are in it, which `first` has not taken. */
    void begin(int there, int64_t maxsize = 0, int interrupts = 0) {
        wakes = true;
        pubsub_suite::begin(0, maxsize);
        mt_load_relaxed_u32(&q->nwaiting);
        mt_load_relaxed_u32(&q->not_full_waiting);
        mt_load_relaxed_u32(&first->waiting);
        mt_load_relaxed_uptr(&q->capacity_lock.word);
        publish_next(there);
        model_begin_signals(interrupts, interrupts);
    }

    /* As the face does it: MT_OK or MT_FULL. */
    int publish_now(int i) {
        int64_t seq = publish(i);
        if (seq < 0) return (int)(-1 - seq);
        PS(wake_getters)(q);
        PS(forward_not_full)(q);
        return MT_OK;
    }

    void publish_three() {
        publish_run(0);
        PS(wake_getters)(q);
    }

    /* For ever, whatever a signal handler raises. */
    void publish_when_free(int i) {
        while (publish_now(i) == MT_FULL) {
            int r = wait_for_free_slot(q, FOREVER);
            RL_ASSERT(r == MT_OK || r == MT_INTERRUPTED);
        }
    }

    /* What came, or -1. A taker that counted no reference has the list's own. */
    int take_now() {
        uintptr_t item;
        int trim_next;
        unsigned held = holds[rl::thread_index()];
        int r = PS(take)(q, first, &item, &trim_next);
        if (r == MT_OK && holds[rl::thread_index()] == held) free_message((message *)item);
        if (trim_next) trim();
        return r == MT_OK ? (int)((message *)item - messages) : -1;
    }

    void take_when_there() {
        while (take_now() < 0) {
            int r = wait_for_message(first, FOREVER);
            RL_ASSERT(r == MT_OK || r == MT_INTERRUPTED);
        }
    }

    /* So many messages are left. */
    void end(int left) {
        if (second != NULL) close(second);
        second = NULL;
        for (int i = 0; i < left; i++) RL_ASSERT(take_now() >= 0);
        RL_ASSERT(take_now() < 0);
        RL_ASSERT(first->not_empty.n == 0 && q->not_full.n == 0);
        pubsub_suite::after();
    }
};

/* A run comes, and two threads that share a subscriber wait: the first that wakes sends the second. */
struct pubsub_shared : suite<pubsub_waiting_suite, 3, 1> {
    void before() { begin(0); }
    void one() { take_when_there(); }
    void two() { take_when_there(); }
    void three() { publish_three(); }
    void after() { end(1); }
};

/* A getter that may give up, and one that may not. Who takes a message publishes another, so there is always one for
 * the second. */
template <int interrupts> struct pubsub_giving_up : pubsub_waiting_suite {
    void before() { begin(0, 0, interrupts); }
    void one() { OK(publish_now(0)); }
    void two() {
        int r = wait_for_message(first, interrupts ? FOREVER : model_now + SOMETIME);
        RL_ASSERT(r == MT_OK || r == (interrupts ? MT_INTERRUPTED : MT_TIMEOUT));
        if (r == MT_OK && take_now() >= 0) OK(publish_now(1));
    }
    void three() {
        take_when_there();
        OK(publish_now(2));
    }
    void after() { end(1); }
};

struct pubsub_timed_getter : suite<pubsub_giving_up<0>, 3, 1> {};
struct pubsub_interrupted_getter : suite<pubsub_giving_up<1>, 3, 1> {};

/* A run comes, its first message is dropped, and no other comes. Two wait: the one that is told what it missed takes
 * nothing, and the other one gets its message. */
struct pubsub_lagged : suite<pubsub_waiting_suite, 3, 1> {
    void before() { begin(0, 3); }
    void one() {
        while (take_now() < 0 && PS(take_missed)(q, first) == 0) OK(wait_for_message(first, FOREVER));
    }
    void two() { one(); }
    void three() {
        publish_three();
        PS(lock_capacity)(q);
        PS(capacity_locked_make_free_slots)(q, 1);
        PS(unlock_capacity)(q);
        trim();
    }
    void after() { end(1); }
};

/* A publisher at the bound, and who takes: either it is seen to wait, or it sees the slot. */
struct pubsub_wait_bound : suite<pubsub_waiting_suite, 2, 3> {
    void before() { begin(1, 1); }
    void one() { publish_when_free(1); }
    void two() { RL_ASSERT(take_now() == 0); }
    void after() { end(1); }
};

/* The same, when who takes is not alone and trims. */
struct pubsub_wait_trimmed : suite<pubsub_wait_bound, 2, 3> {
    void before() {
        begin(0, 1);
        second = joined();
        publish_next(1);
        RL_ASSERT(take(second) == 0);
    }
};

/* Two slots come free at once, two publishers wait: the first that wakes sends the second. */
struct pubsub_two_slots : suite<pubsub_waiting_suite, 3, 1> {
    void before() { begin(2, 2); }
    void one() { publish_when_free(2); }
    void two() { publish_when_free(3); }
    void three() { take_two(first); }
    void after() { end(2); }
};

/* A publisher that may give up beside one that may not. Who has published takes one out, so there is always a slot for
 * the second. */
template <int interrupts> struct pubsub_giving_up_slot : pubsub_waiting_suite {
    void before() { begin(1, 1, interrupts); }
    void one() { RL_ASSERT(take_now() >= 0); }
    void two() {
        int r = wait_for_free_slot(q, interrupts ? FOREVER : model_now + SOMETIME);
        RL_ASSERT(r == MT_OK || r == (interrupts ? MT_INTERRUPTED : MT_TIMEOUT));
        if (r == MT_OK && publish_now(1) == MT_OK) RL_ASSERT(take_now() >= 0);
    }
    void three() {
        publish_when_free(2);
        RL_ASSERT(take_now() >= 0);
    }
    void after() { end(0); }
};

struct pubsub_timed_publisher : suite<pubsub_giving_up_slot<0>, 3, 1> {};
struct pubsub_interrupted_publisher : suite<pubsub_giving_up_slot<1>, 3, 1> {};

/* The end comes while one waits for a message and one for a slot. */
struct pubsub_shut_waiting : suite<pubsub_waiting_suite, 3, 1> {
    void before() {
        begin(0, 1);
        second = joined();
        publish_next(1);
        RL_ASSERT(take(first) == 0);
    }
    void one() { wait_for_the_end(true); }
    void two() { wait_for_the_end(false); }
    void three() { PS(shut_down)(q, 0); }
    void wait_for_the_end(bool message) {
        int r = MT_OK;
        while (r == MT_OK) r = message ? wait_for_message(first, FOREVER) : wait_for_free_slot(q, FOREVER);
        RL_ASSERT(r == MT_SHUTDOWN);
    }
    void after() { end(0); }
};

#endif
