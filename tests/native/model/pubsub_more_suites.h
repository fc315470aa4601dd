/* More of the publish/subscribe list in the model checker: joining at the oldest message, runs, the bound, and the
 * only subscriber. Included after pubsub_suites.h. */
#ifndef PUBSUB_MORE_SUITES_H
#define PUBSUB_MORE_SUITES_H

/* Somebody joins at the oldest while the oldest are taken and freed: it gets a run up to the end, whatever is left
 * of it. */
template <typename suite> struct pubsub_joining_oldest : pubsub_suite<suite, 2> {
    void before() {
        this->begin(8);
        for (int i = 8; i < 11; i++) RL_ASSERT(this->publish(i) == i);
    }
    void thread(unsigned index) {
        if (index == 0) {
            for (int i = 8; i < 11; i++) RL_ASSERT(this->take(this->first) == i);
        } else {
            ps_subscriber *s = PS(new_record)(this->q);
            int at = (int)this->join(s, PS_ENUM(START_OLDEST)), got;
            RL_ASSERT(at >= 8 && at <= 11);
            for (; (got = this->take(s)) >= 0; at++) RL_ASSERT(got == at);
            RL_ASSERT(at == 11 && got == -1 - MT_EMPTY);
            this->close(s);
        }
    }
    void after() { this->end(); }
};

struct pubsub_oldest : pubsub_joining_oldest<pubsub_oldest> {};

/* The same, and beside publishers, when who takes may be the only subscriber and trims by itself (locked_take_sole). */
struct pubsub_sole_oldest : pubsub_joining_oldest<pubsub_sole_oldest> {
    static const bool sole = true;
};
struct pubsub_sole_join : pubsub_joining<pubsub_sole_join, 1> {
    static const bool sole = true;
};

/* A taker finds the record of a new subscriber by the hint alone: by nothing else has it synchronised with the thread
 * that made the record. */
struct pubsub_hint : pubsub_suite<pubsub_hint, 2> {
    ps_subscriber *second;
    void before() {
        begin(1);
        second = PS(new_record)(q);
        join(second);
        RL_ASSERT(publish(1) == 1);
        mt_store_relaxed_uptr(&q->slowest_hint, 0); /* the next search begins at the newest record */
    }
    void thread(unsigned index) {
        if (index == 0) {
            RL_ASSERT(take(first) == 1);
        } else {
            ps_subscriber *s = PS(new_record)(q);
            RL_ASSERT(join(s, PS_ENUM(START_OLDEST)) == 1);
            close(s);
        }
    }
    void after() {
        close(second);
        end();
    }
};

/* The second subscriber takes and leaves; the first one finds at some moment that it is alone. */
struct pubsub_sole_left : pubsub_suite<pubsub_sole_left, 2> {
    static const unsigned bound = 3;
    static const bool sole = true;
    ps_subscriber *second;
    void before() {
        begin(1);
        second = PS(new_record)(q);
        join(second);
        for (int i = 1; i < 3; i++) RL_ASSERT(publish(i) == i);
    }
    void thread(unsigned index) {
        if (index == 0) {
            for (int i = 1; i < 3; i++) RL_ASSERT(take(first) == i);
        } else {
            RL_ASSERT(take(second) == 1);
            close(second);
        }
    }
    void after() {
        RL_ASSERT(messages[1].freed == 1 && messages[2].freed == 1);
        end();
    }
};

/* One trims, and looks at a free record before at the cursor of one that has not taken yet; meanwhile somebody
 * joins there at the oldest message, then that one moves on: the trimmer must look again. */
struct pubsub_rejoin : pubsub_suite<pubsub_rejoin, 3> {
    ps_subscriber *second;
    void before() {
        begin(1);
        ps_subscriber *between = PS(new_record)(q);
        second = PS(new_record)(q); /* the records are looked at in this order: second, between, first */
        join(second);
        join(between);
        close(between);
        PS(free_record)(between);
        mt_store_relaxed_uptr(&q->slowest_hint, (uintptr_t)second);
        RL_ASSERT(publish(1) == 1);
    }
    void thread(unsigned index) {
        if (index < 2) {
            RL_ASSERT(take(index ? second : first) == 1);
            return;
        }
        ps_subscriber *s = PS(new_record)(q);
        int at = (int)join(s, PS_ENUM(START_OLDEST)), got;
        RL_ASSERT(at == 1 || at == 2);
        for (; (got = take(s)) >= 0; at++) RL_ASSERT(got == at);
        RL_ASSERT(at == 2);
        close(s);
    }
    void after() {
        close(second);
        end();
    }
};

/* A run meets single messages, where a chunk ends or before: its own follow one another. */
struct pubsub_run : pubsub_suite<pubsub_run, 2> {
    int64_t place[2];
    void before() { begin(8); }
    void thread(unsigned index) {
        if (index == 0) {
            publish_run(8);
        } else {
            for (int i = 0; i < 2; i++) place[i] = publish(11 + i);
        }
    }
    void after() {
        int began = -1;
        for (int n = 8; n < 13; n++) {
            int got = take(first);
            if (got == 8) began = n;
            if (got < 11) RL_ASSERT(began >= 0 && n - began == got - 8);
            if (got >= 11) RL_ASSERT(place[got - 11] == n);
        }
        end();
    }
};

/* Two come past the only message of a queue of one, and a third joins meanwhile: the later of the two may publish,
 * whoever still trims. */
struct pubsub_bound : pubsub_suite<pubsub_bound, 3> {
    static const unsigned bound = 1;
    ps_subscriber *second;
    int went;
    void before() {
        begin(0, 1);
        second = PS(new_record)(q);
        join(second);
        RL_ASSERT(publish(0) == 0);
        went = 0;
    }
    void thread(unsigned index) {
        if (index == 2) {
            ps_subscriber *s = PS(new_record)(q);
            join(s);
            close(s);
            return;
        }
        RL_ASSERT(take(index ? second : first) == 0);
        if (++went == 2) RL_ASSERT(publish(1) == 1);
    }
    void after() {
        close(second);
        end();
    }
};

/* The same, and who joins at the oldest message is never left behind further than the bound says. */
struct pubsub_late_joiner : pubsub_suite<pubsub_late_joiner, 3> {
    static const unsigned bound = 1;
    ps_subscriber *second;
    int went;
    void before() {
        begin(0, 1);
        second = PS(new_record)(q);
        join(second);
        RL_ASSERT(publish(0) == 0);
        went = 0;
    }
    void thread(unsigned index) {
        if (index == 2) {
            ps_subscriber *s = PS(new_record)(q);
            int64_t at = join(s, PS_ENUM(START_OLDEST));
            RL_ASSERT(PS(end_seq)(q) - at <= 1);
            close(s);
            return;
        }
        RL_ASSERT(take(index ? second : first) == 0);
        if (++went == 2) publish(1);
    }
    void after() {
        close(second);
        end();
    }
};

/* Who joins for the next message beside a run of three, which is one step, stands before it or after it, however
 * far it is read already. */
struct pubsub_join_run : pubsub_suite<pubsub_join_run, 3> {
    void before() { begin(0); }
    void thread(unsigned index) {
        if (index == 0) {
            publish_run(0);
        } else if (index == 1) {
            int got = take(first);
            RL_ASSERT(got == 0 || got == -1 - MT_EMPTY);
        } else {
            ps_subscriber *s = PS(new_record)(q);
            int64_t at = join(s);
            RL_ASSERT(at == 0 || at == 3);
            close(s);
        }
    }
    void after() { end(); }
};

/* A queue of one, whose only message is published and taken, and then a second one is to go in: it is refused just
 * if somebody joined who has not taken the first. */
template <typename suite, int64_t start> struct pubsub_joining_bound : pubsub_suite<suite, 2> {
    static const unsigned bound = 3;
    int64_t at, second;
    void before() {
        this->begin(0, 1);
        if (start == PS_ENUM(START_OLDEST)) RL_ASSERT(this->publish(0) == 0);
    }
    void thread(unsigned index) {
        if (index == 0) {
            if (start == PS_ENUM(START_NEXT)) RL_ASSERT(this->publish(0) == 0);
            RL_ASSERT(this->take(this->first) == 0);
            second = this->publish(1);
        } else {
            at = this->join(PS(new_record)(this->q), start);
        }
    }
    void after() {
        ps_subscriber *s = PS(first_record)(this->q);
        RL_ASSERT(second == 1 || second == -1 - MT_FULL);
        RL_ASSERT((at == 0) == (second != 1));
        RL_ASSERT(this->take(s) == (at == 2 ? -1 - MT_EMPTY : at == 1 && second != 1 ? -1 - MT_EMPTY : (int)at));
        this->close(s);
        this->end();
    }
};

struct pubsub_next_bound : pubsub_joining_bound<pubsub_next_bound, PS_ENUM(START_NEXT)> {};
struct pubsub_oldest_bound : pubsub_joining_bound<pubsub_oldest_bound, PS_ENUM(START_OLDEST)> {};

/* One joins at the only message of a queue of one because another stands there, then a third because the second
 * does, and each takes it when somebody else has joined; a publisher that looks meanwhile does not miss them all. */
struct pubsub_chain : pubsub_suite<pubsub_chain, 2> {
    static const unsigned bound = 3;
    ps_subscriber *line[3];
    int64_t at[3], second;
    void before() {
        begin(0, 1);
        for (int i = 0; i < 3; i++) line[i] = PS(new_record)(q); /* they are looked at from the last on */
        at[0] = join(line[0]);
        RL_ASSERT(publish(0) == 0);
        RL_ASSERT(take(first) == 0);
    }
    void thread(unsigned index) {
        if (index == 0) {
            second = publish(1);
            return;
        }
        for (int i = 0; i < 2; i++) {
            at[i + 1] = join(line[i + 1], PS_ENUM(START_OLDEST));
            if (at[i] == 0) RL_ASSERT(take(line[i]) == 0);
        }
    }
    void after() {
        RL_ASSERT(at[1] == 0 && at[2] == 0); /* so there is always one of them at message 0 */
        RL_ASSERT(second == -1 - MT_FULL);
        for (int i = 0; i < 3; i++) close(line[i]);
        end();
    }
};

/* The oldest message is what the slowest expects at one instant: one goes from 1 to 2, then the other from 0 to 2
 * at once, and 1 is never the oldest. */
struct pubsub_oldest_exact : pubsub_suite<pubsub_oldest_exact, 2> {
    ps_subscriber *second;
    void before() {
        begin(0);
        second = PS(new_record)(q);
        join(second);
        for (int i = 0; i < 2; i++) RL_ASSERT(publish(i) == i);
        RL_ASSERT(take(second) == 0); /* it is looked at before the first one */
    }
    void thread(unsigned index) {
        if (index == 0) {
            uintptr_t items[2];
            RL_ASSERT(take(second) == 1);
            PS(lock_subscriber)(first);
            RL_ASSERT(PS(locked_take_many)(first, items, 2) == 2);
            PS(unlock_subscriber)(first);
            trim();
        } else {
            ps_subscriber *s = PS(new_record)(q);
            int64_t at = join(s, PS_ENUM(START_OLDEST));
            RL_ASSERT(at == 0 || at == 2);
            close(s);
        }
    }
    void after() {
        close(second);
        end();
    }
};

/* The slowest leaves, and frees up to the other one's message while that one takes it: it is freed, too. */
struct pubsub_left : pubsub_suite<pubsub_left, 2> {
    ps_subscriber *second;
    void before() {
        begin(0);
        second = PS(new_record)(q);
        join(second);
        for (int i = 0; i < 2; i++) RL_ASSERT(publish(i) == i);
        RL_ASSERT(take(first) == 0);
    }
    void thread(unsigned index) {
        if (index == 0) {
            close(second);
        } else {
            RL_ASSERT(take(first) == 1);
        }
    }
    void after() {
        RL_ASSERT(messages[0].freed == 1 && messages[1].freed == 1);
        end();
    }
};

/* A chunk is linked, and is read, and the one before it is unlinked, before the publisher has moved `tail` on; then
 * somebody looks for the newest, and the publisher goes on and frees what may be freed. */
struct pubsub_tail : pubsub_suite<pubsub_tail, 2> {
    void before() { begin(10); }
    void thread(unsigned index) {
        if (index == 0) {
            RL_ASSERT(publish(10) == 10);
            mt_retired_free(mt_epoch_drain(&q->epoch));
        } else {
            /* So that it retires with another record than it looks with, and the publisher frees it. */
            mt_pin *pin = mt_epoch_pin(&q->epoch);
            bool got = take(first) == 10;
            mt_retired_free(mt_epoch_unpin(&q->epoch, pin));
            RL_ASSERT(PS(end_seq)(q) >= 10 + got);
        }
    }
    void after() { end(); }
};

#endif
