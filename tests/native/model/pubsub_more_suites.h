/* More of the publish/subscribe list in the model checker: joining at the oldest message, runs, the bound, and the
 * only subscriber. Included after pubsub_suites.h. */
#ifndef PUBSUB_MORE_SUITES_H
#define PUBSUB_MORE_SUITES_H

/* Somebody joins at the oldest while the oldest are taken and freed: it gets a run up to the end, whatever is left
 * of it. */
struct pubsub_oldest : suite<pubsub_suite, 2> {
    void before() {
        begin(8);
        publish_next(3);
    }
    void one() {
        for (int i = 8; i < 11; i++) RL_ASSERT(take(first) == i);
    }
    void two() { visit_all(8, 11); }
};

/* The same, and beside publishers, when who takes may be the only subscriber and trims by itself (locked_take_sole). */
template <typename joining> struct pubsub_sole : joining {
    void before() {
        this->sole = true;
        joining::before();
    }
};
struct pubsub_sole_oldest : suite<pubsub_sole<pubsub_oldest>, 2> {};
struct pubsub_sole_join : suite<pubsub_sole<pubsub_join>, 3> {};

/* A taker finds the record of a new subscriber by the hint alone: by nothing else has it synchronised with the thread
 * that made the record. */
struct pubsub_hint : suite<pubsub_suite, 2> {
    void before() {
        begin(1);
        second = joined();
        publish_next(1);
        mt_store_relaxed_uptr(&q->slowest_hint, 0); /* the next search begins at the newest record */
    }
    void one() { RL_ASSERT(take(first) == 1); }
    void two() { RL_ASSERT(visit(OLDEST) == 1); }
};

/* The second subscriber takes and leaves; the first one finds at some moment that it is alone. */
struct pubsub_sole_left : suite<pubsub_suite, 2, 3> {
    void before() {
        sole = true;
        begin(1);
        second = joined();
        publish_next(2);
    }
    void one() {
        for (int i = 1; i < 3; i++) RL_ASSERT(take(first) == i);
    }
    void two() {
        RL_ASSERT(take(second) == 1);
        close(second);
        second = NULL;
    }
    void after() {
        RL_ASSERT(messages[1].freed == 1 && messages[2].freed == 1);
        pubsub_suite::after();
    }
};

/* One trims, and looks at a free record before at the cursor of one that has not taken yet; meanwhile somebody
 * joins there at the oldest message, then that one moves on: the trimmer must look again. */
struct pubsub_rejoin : suite<pubsub_suite, 3> {
    void before() {
        begin(1);
        ps_subscriber *between = PS(new_record)(q);
        second = joined(); /* the records are looked at in this order: second, between, first */
        join(between);
        close(between);
        PS(free_record)(between);
        mt_store_relaxed_uptr(&q->slowest_hint, (uintptr_t)second);
        publish_next(1);
    }
    void one() { RL_ASSERT(take(first) == 1); }
    void two() { RL_ASSERT(take(second) == 1); }
    void three() { visit_all(1, 2); }
};

/* A run meets single messages, where a chunk ends or before: its own follow one another. */
struct pubsub_run : suite<pubsub_suite, 2> {
    int64_t place[2];
    void before() { begin(8); }
    void one() { publish_run(8); }
    void two() {
        for (int i = 0; i < 2; i++) place[i] = publish(11 + i);
    }
    void after() {
        int began = -1;
        for (int n = 8; n < 13; n++) {
            int got = take(first);
            if (got == 8) began = n;
            if (got < 11) RL_ASSERT(began >= 0 && n - began == got - 8);
            if (got >= 11) RL_ASSERT(place[got - 11] == n);
        }
        pubsub_suite::after();
    }
};

/* Two come past the only message of a queue of one, and a third joins meanwhile: the later of the two may publish,
 * whoever still trims. */
struct pubsub_bound : suite<pubsub_suite, 3, 1> {
    int went;
    void before() {
        begin(0, 1);
        second = joined();
        publish_next(1);
        went = 0;
    }
    void one() { comes_past(first); }
    void two() { comes_past(second); }
    void comes_past(ps_subscriber *s) {
        RL_ASSERT(take(s) == 0);
        if (++went < 2) return;
        int64_t at = publish(1);
        RL_ASSERT(at == 1 || may_be_full());
    }
    virtual bool may_be_full() { return false; }
    void three() { visit(NEXT); }
};

/* The same, and who joins at the oldest message is never left behind further than the bound says. */
struct pubsub_late_joiner : suite<pubsub_bound, 3, 1> {
    bool may_be_full() { return true; }
    void three() {
        ps_subscriber *s = PS(new_record)(q);
        int64_t at = join(s, OLDEST);
        RL_ASSERT(PS(end_seq)(q) - at <= 1);
        close(s);
    }
};

/* Who joins for the next message beside a run of three, which is one step, stands before it or after it, however
 * far it is read already. */
struct pubsub_join_run : suite<pubsub_suite, 3> {
    void before() { begin(0); }
    void one() { publish_run(0); }
    void two() {
        int got = take(first);
        RL_ASSERT(got == 0 || got == NOTHING);
    }
    void three() {
        int64_t at = visit(NEXT);
        RL_ASSERT(at == 0 || at == 3);
    }
};

/* A queue of one, whose only message is published and taken, and then a second one is to go in: it is refused just
 * if somebody joined who has not taken the first. */
template <int64_t start> struct pubsub_joining_bound : pubsub_suite {
    int64_t at, last;
    void before() {
        begin(0, 1);
        if (start == OLDEST) publish_next(1);
    }
    void one() {
        if (start == NEXT) publish_next(1);
        RL_ASSERT(take(first) == 0);
        last = publish(1);
    }
    void two() { at = join(PS(new_record)(q), start); }
    void after() {
        ps_subscriber *s = PS(first_record)(q);
        RL_ASSERT(last == 1 || last == -1 - MT_FULL);
        RL_ASSERT((at == 0) == (last != 1));
        RL_ASSERT(take(s) == (at == 2 ? NOTHING : at == 1 && last != 1 ? NOTHING : (int)at));
        close(s);
        pubsub_suite::after();
    }
};

struct pubsub_next_bound : suite<pubsub_joining_bound<NEXT>, 2, 3> {};
struct pubsub_oldest_bound : suite<pubsub_joining_bound<OLDEST>, 2, 3> {};

/* One joins at the only message of a queue of one because another stands there, then a third because the second
 * does, and each takes it when somebody else has joined; a publisher that looks meanwhile does not miss them all. */
struct pubsub_chain : suite<pubsub_suite, 2, 3> {
    ps_subscriber *line[3];
    int64_t at[3], last;
    void before() {
        begin(0, 1);
        for (int i = 0; i < 3; i++) line[i] = PS(new_record)(q); /* they are looked at from the last on */
        at[0] = join(line[0]);
        publish_next(1);
        RL_ASSERT(take(first) == 0);
    }
    void one() { last = publish(1); }
    void two() {
        for (int i = 0; i < 2; i++) {
            at[i + 1] = join(line[i + 1], OLDEST);
            if (at[i] == 0) RL_ASSERT(take(line[i]) == 0);
        }
    }
    void after() {
        RL_ASSERT(at[1] == 0 && at[2] == 0); /* so there is always one of them at message 0 */
        RL_ASSERT(last == -1 - MT_FULL);
        for (int i = 0; i < 3; i++) close(line[i]);
        pubsub_suite::after();
    }
};

/* The oldest message is what the slowest expects at one instant: one goes from 1 to 2, then the other from 0 to 2
 * at once, and 1 is never the oldest. */
struct pubsub_oldest_exact : suite<pubsub_suite, 2> {
    void before() {
        begin(0);
        second = joined();
        publish_next(2);
        RL_ASSERT(take(second) == 0); /* it is looked at before the first one */
    }
    void one() {
        RL_ASSERT(take(second) == 1);
        take_two(first);
    }
    void two() {
        int64_t at = visit(OLDEST);
        RL_ASSERT(at == 0 || at == 2);
    }
};

/* The slowest leaves, and frees up to the other one's message while that one takes it: it is freed, too. */
struct pubsub_left : suite<pubsub_suite, 2> {
    void before() {
        begin(0);
        second = joined();
        publish_next(2);
        RL_ASSERT(take(first) == 0);
    }
    void one() {
        close(second);
        second = NULL;
    }
    void two() { RL_ASSERT(take(first) == 1); }
    void after() {
        RL_ASSERT(messages[0].freed == 1 && messages[1].freed == 1);
        pubsub_suite::after();
    }
};

/* A chunk is linked, and is read, and the one before it is unlinked, before the publisher has moved `tail` on; then
 * somebody looks for the newest, and the publisher goes on and frees what may be freed. */
struct pubsub_tail : suite<pubsub_suite, 2> {
    void before() { begin(10); }
    void one() {
        publish_next(1);
        mt_retired_free(mt_epoch_drain(&q->epoch));
    }
    void two() {
        /* So that it retires with another record than it looks with, and the publisher frees it. */
        mt_pin *pin = mt_epoch_pin(&q->epoch);
        bool got = take(first) == 10;
        mt_retired_free(mt_epoch_unpin(&q->epoch, pin));
        RL_ASSERT(PS(end_seq)(q) >= 10 + got);
    }
};

#endif
