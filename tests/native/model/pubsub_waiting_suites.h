/* Waiting for a message and for a free slot of the publish/subscribe list, in the model checker: the points that
 * _ps.pxd makes for _waiting.pxd. Included after pubsub_suites.h.
 *
 * Each suite must end: a wake-up that is lost is a deadlock.
 */
#ifndef PUBSUB_WAITING_SUITES_H
#define PUBSUB_WAITING_SUITES_H

template <typename suite, unsigned threads> struct pubsub_waiting_suite : pubsub_suite<suite, threads> {
    static const bool wakes = true;

    /* `there` messages are in it, which `first` has not taken. */
    void begin(int there, int64_t maxsize = 0, int interrupts = 0) {
        this->pubsub_suite<suite, threads>::begin(0, maxsize);
        mt_load_relaxed_u32(&this->q->nwaiting);
        mt_load_relaxed_u32(&this->q->not_full_waiting);
        mt_load_relaxed_u32(&this->first->waiting);
        mt_load_relaxed_uptr(&this->q->capacity_lock.word);
        for (int i = 0; i < there; i++) RL_ASSERT(this->publish(i) == i);
        model_begin_signals(interrupts, interrupts);
    }

    /* As the face does it: MT_OK or MT_FULL. */
    int publish_now(int i) {
        int64_t seq = this->publish(i);
        if (seq < 0) return (int)(-1 - seq);
        PS(wake_getters)(this->q);
        PS(forward_not_full)(this->q);
        return MT_OK;
    }

    /* For ever, whatever a signal handler raises. */
    void publish_when_free(int i) {
        while (publish_now(i) == MT_FULL) {
            int r = wait_for_free_slot(this->q, FOREVER);
            RL_ASSERT(r == MT_OK || r == MT_INTERRUPTED);
        }
    }

    /* What came, or -1. A taker that counted no reference has the list's own. */
    int take_now() {
        uintptr_t item;
        int trim_next;
        unsigned held = holds[rl::thread_index()];
        int r = PS(take)(this->q, this->first, &item, &trim_next);
        if (r == MT_OK && holds[rl::thread_index()] == held) this->free_message((message *)item);
        if (trim_next) this->trim();
        return r == MT_OK ? (int)((message *)item - this->messages) : -1;
    }

    void take_when_there() {
        while (take_now() < 0) {
            int r = wait_for_message(this->first, FOREVER);
            RL_ASSERT(r == MT_OK || r == MT_INTERRUPTED);
        }
    }

    /* As a get_many that lingers for ever, until n messages are there. */
    int linger(int64_t n) {
        int r = wait_for_messages(this->first, 1, FOREVER);
        PS(forward_not_empty)(this->q, this->first);
        return r == MT_OK ? wait_for_messages(this->first, n, FOREVER) : r;
    }

    /* So many messages are left. */
    void end(int left) {
        for (int i = 0; i < left; i++) RL_ASSERT(take_now() >= 0);
        RL_ASSERT(take_now() < 0);
        RL_ASSERT(this->first->not_empty.n == 0 && this->q->not_full.n == 0);
        this->pubsub_suite<suite, threads>::end();
    }
};

/* A run comes, and two threads that share a subscriber wait: the first that wakes sends the second. */
struct pubsub_shared : pubsub_waiting_suite<pubsub_shared, 3> {
    static const unsigned bound = 1;
    void before() { begin(0); }
    void thread(unsigned index) {
        if (index < 2) {
            take_when_there();
        } else {
            publish_run(0);
            PS(wake_getters)(q);
        }
    }
    void after() { end(1); }
};

/* A getter that may give up, and one that may not. Who takes a message publishes another, so there is always one for
 * the second. */
template <typename suite> struct pubsub_giving_up : pubsub_waiting_suite<suite, 3> {
    static const unsigned bound = 1;
    int more;
    void before() {
        this->begin(0, 0, suite::interrupts);
        more = 0;
    }
    void thread(unsigned index) {
        if (index == 0) {
            RL_ASSERT(this->publish_now(0) == MT_OK);
        } else if (index == 1) {
            int r = wait_for_message(this->first, suite::interrupts ? FOREVER : model_now + SOMETIME);
            RL_ASSERT(r == MT_OK || r == (suite::interrupts ? MT_INTERRUPTED : MT_TIMEOUT));
            if (r == MT_OK && this->take_now() >= 0) another(1);
        } else {
            this->take_when_there();
            another(2);
        }
    }
    void another(int i) {
        more++;
        RL_ASSERT(this->publish_now(i) == MT_OK);
    }
    void after() { this->end(1); }
};

struct pubsub_timed_getter : pubsub_giving_up<pubsub_timed_getter> {
    static const int interrupts = 0;
};
struct pubsub_interrupted_getter : pubsub_giving_up<pubsub_interrupted_getter> {
    static const int interrupts = 1;
};

/* A run comes, its first message is dropped, and no other comes. Two wait: the one that is told what it missed takes
 * nothing, and the other one gets its message. */
struct pubsub_lagged : pubsub_waiting_suite<pubsub_lagged, 3> {
    static const unsigned bound = 1;
    void before() { begin(0, 3); }
    void thread(unsigned index) {
        if (index < 2) {
            while (take_now() < 0 && PS(take_missed)(q, first) == 0)
                RL_ASSERT(wait_for_message(first, FOREVER) == MT_OK);
            return;
        }
        publish_run(0);
        PS(wake_getters)(q);
        PS(lock_capacity)(q);
        PS(capacity_locked_make_free_slots)(q, 1);
        PS(unlock_capacity)(q);
        trim();
    }
    void after() { end(1); }
};

/* Two threads share a subscriber: one waits for three messages, the other one takes two, one after the other, and then
 * publishes three. When it waits for its second one, the first one may be asleep before it, and must not be notified in
 * its place. */
struct pubsub_lingering : pubsub_waiting_suite<pubsub_lingering, 3> {
    static const unsigned bound = 1;
    void before() { begin(1); }
    void thread(unsigned index) {
        if (index == 0) {
            RL_ASSERT(linger(3) == MT_OK);
            for (int i = 0; i < 3; i++) RL_ASSERT(take_now() >= 0);
        } else if (index == 1) {
            take_when_there();
            take_when_there();
            for (int i = 2; i < 5; i++) RL_ASSERT(publish_now(i) == MT_OK);
        } else {
            RL_ASSERT(publish_now(1) == MT_OK);
        }
    }
    void after() { end(0); }
};

/* It waits for more messages than a new bound allows. */
struct pubsub_linger_bound : pubsub_waiting_suite<pubsub_linger_bound, 2> {
    static const unsigned bound = 3;
    void before() { begin(1); }
    void thread(unsigned index) {
        if (index == 0) {
            RL_ASSERT(linger(2) == MT_OK);
        } else {
            PS(set_maxsize)(q, 1);
        }
    }
    void after() { end(1); }
};

/* It waits for more messages than will come. */
struct pubsub_linger_end : pubsub_waiting_suite<pubsub_linger_end, 2> {
    static const unsigned bound = 3;
    void before() { begin(1); }
    void thread(unsigned index) {
        if (index == 0) {
            RL_ASSERT(linger(2) == MT_OK);
        } else {
            PS(shut_down)(q, 0);
        }
    }
    void after() { end(1); }
};

/* A publisher at the bound, and who takes: either it is seen to wait, or it sees the slot. */
struct pubsub_wait_bound : pubsub_waiting_suite<pubsub_wait_bound, 2> {
    static const unsigned bound = 3;
    void before() { begin(1, 1); }
    void thread(unsigned index) {
        if (index == 0) {
            publish_when_free(1);
        } else {
            RL_ASSERT(take_now() == 0);
        }
    }
    void after() { end(1); }
};

/* The same, when who takes is not alone and trims. */
struct pubsub_wait_trimmed : pubsub_waiting_suite<pubsub_wait_trimmed, 2> {
    static const unsigned bound = 3;
    ps_subscriber *second;
    void before() {
        begin(0, 1);
        second = PS(new_record)(q);
        join(second);
        RL_ASSERT(publish(0) == 0);
        RL_ASSERT(take(second) == 0);
    }
    void thread(unsigned index) {
        if (index == 0) {
            publish_when_free(1);
        } else {
            RL_ASSERT(take_now() == 0);
        }
    }
    void after() {
        close(second);
        end(1);
    }
};

/* Two slots come free at once, two publishers wait: the first that wakes sends the second. */
struct pubsub_two_slots : pubsub_waiting_suite<pubsub_two_slots, 3> {
    static const unsigned bound = 1;
    void before() { begin(2, 2); }
    void thread(unsigned index) {
        uintptr_t items[2];
        if (index < 2) {
            publish_when_free(2 + (int)index);
            return;
        }
        PS(lock_subscriber)(first);
        RL_ASSERT(PS(locked_take_many)(first, items, 2) == 2);
        PS(unlock_subscriber)(first);
        trim();
    }
    void after() { end(2); }
};

/* A publisher that may give up beside one that may not. Who has published takes one out, so there is always a slot for
 * the second. */
template <typename suite> struct pubsub_giving_up_slot : pubsub_waiting_suite<suite, 3> {
    static const unsigned bound = 1;
    void before() { this->begin(1, 1, suite::interrupts); }
    void thread(unsigned index) {
        if (index == 0) {
            RL_ASSERT(this->take_now() >= 0);
        } else if (index == 1) {
            int r = wait_for_free_slot(this->q, suite::interrupts ? FOREVER : model_now + SOMETIME);
            RL_ASSERT(r == MT_OK || r == (suite::interrupts ? MT_INTERRUPTED : MT_TIMEOUT));
            if (r == MT_OK && this->publish_now(1) == MT_OK) RL_ASSERT(this->take_now() >= 0);
        } else {
            this->publish_when_free(2);
            RL_ASSERT(this->take_now() >= 0);
        }
    }
    void after() { this->end(0); }
};

struct pubsub_timed_publisher : pubsub_giving_up_slot<pubsub_timed_publisher> {
    static const int interrupts = 0;
};
struct pubsub_interrupted_publisher : pubsub_giving_up_slot<pubsub_interrupted_publisher> {
    static const int interrupts = 1;
};

/* The end comes while one waits for a message and one for a slot. */
struct pubsub_shut_waiting : pubsub_waiting_suite<pubsub_shut_waiting, 3> {
    static const unsigned bound = 1;
    ps_subscriber *second;
    void before() {
        begin(0, 1);
        second = PS(new_record)(q);
        join(second);
        RL_ASSERT(publish(0) == 0);
        RL_ASSERT(take(first) == 0);
    }
    void thread(unsigned index) {
        int r = MT_OK;
        if (index == 2) {
            PS(shut_down)(q, 0);
            return;
        }
        while (r == MT_OK) r = index ? wait_for_free_slot(q, FOREVER) : wait_for_message(first, FOREVER);
        RL_ASSERT(r == MT_SHUTDOWN);
    }
    void after() {
        close(second);
        end(0);
    }
};

#endif
