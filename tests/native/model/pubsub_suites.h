/* pubsub.h in the model checker, without the GIL: publishers, takers, joiners, leavers and trimmers over one chain.
 *
 * A message's content is a variable that nothing but the protocol guards: who takes a reference reads it at that moment, who lets go
 * overwrites it. A message that is let go while somebody may still take it is a data race in each schedule, and each must be let go once.
 * A suite that says `sole` takes as without the GIL a subscriber does that may be the only one: it may get the reference of the list itself,
 * and lets go of the message then.
 */
#ifndef PUBSUB_SUITES_H
#define PUBSUB_SUITES_H

struct message {
    rl::var<int> content;
    int gone;
};

static unsigned holds[4]; /* how often each thread has made a reference; suites have at most three threads */

static void hold_message(uintptr_t item) {
    RL_ASSERT(((message *)item)->content($) >= 0);
    holds[rl::thread_index()]++;
}

#define MT_PUBSUB_HOLD(item) hold_message(item)
#include "manytail/pubsub.h"

template <typename suite, unsigned threads> struct pubsub_suite : rl::test_suite<suite, threads> {
    static const unsigned bound = 2;
    static const bool sole = false;
    enum { MESSAGES = 16 };
    struct message_block {
        message of[MESSAGES];
    };
    mt_pubsub q;
    message *messages;
    mt_subscriber *first;
    int published;

    /* `old` messages were published and taken; `first` is subscribed. Chunks have 10 slots. */
    void begin(int old, int64_t maxsize = 0) {
        memset((void *)&q, 0, sizeof q);
        mt_epoch_init(&q.epoch, 1);
        messages = model_variable<message_block>()->of;
        for (int i = 0; i < MESSAGES; i++) messages[i].gone = 0;
        published = 0;
        RL_ASSERT(mt_pubsub_init(&q, 0, maxsize, MT_SLOW_BLOCK) == MT_OK);
        touch();
        first = mt_pubsub_new_record(&q);
        RL_ASSERT(join(first) == 0);
        for (int i = 0; i < old; i++) {
            RL_ASSERT(publish(i) == i);
            RL_ASSERT(take(first) == i);
        }
    }

    /* Make relacy's variables now, in the thread that comes before all others. */
    void touch() {
        mt_load_relaxed_u32(&q.shut);
        mt_load_relaxed_u32(&q.trimming);
        mt_load_relaxed_u32(&q.nsubs);
        mt_load_relaxed_i64(&q.trimmed);
        mt_load_relaxed_i64(&q.joins);
        mt_load_relaxed_uptr(&q.join_lock.word);
        mt_load_relaxed_uptr(&q.blocker);
        mt_load_relaxed_uptr(&q.records);
        mt_load_relaxed_i64(&q.epoch.epoch);
        mt_load_relaxed_uptr(&q.epoch.blocks[0]);
        for (int i = 0; i < MT_EPOCH_FIRST; i++) mt_load_relaxed_i64(&q.epoch.first[i].word);
        mt_pchunk *c = (mt_pchunk *)mt_load_relaxed_uptr(&q.oldest);
        mt_load_relaxed_uptr(&c->next);
        for (uint32_t i = 0; i < c->cap; i++) mt_load_relaxed_uptr(&mt_pchunk_slots(c)[i]);
    }

    /* Its position, or -1 - status. */
    int64_t publish(int i) {
        int64_t position = -1;
        mt_retired *freeable;
        messages[i].content($) = i;
        int r = mt_pubsub_publish_parallel(&q, (uintptr_t)&messages[i], &position, &freeable);
        mt_retired_free(freeable);
        if (r != MT_OK) return -1 - r;
        published++;
        if (mt_pubsub_nobody(&q)) trim();
        return position;
    }

    /* Three from number `first` on, as one run. */
    void publish_run(int first) {
        uintptr_t items[3];
        int64_t done, held;
        mt_retired *freeable;
        for (int i = 0; i < 3; i++) {
            messages[first + i].content($) = first + i;
            items[i] = (uintptr_t)&messages[first + i];
        }
        RL_ASSERT(mt_pubsub_publish_run_parallel(&q, items, 3, &done, &held, &freeable) == MT_OK && done == 3);
        mt_retired_free(freeable);
        published += 3;
    }

    /* What came, or -1 - status. */
    int take(mt_subscriber *s) {
        uintptr_t item;
        int again = 0, took, r;
        lock(&s->lock);
        int64_t from = mt_subscriber_at(s);
        unsigned held = holds[rl::thread_index()];
        took = suite::sole && mt_subscriber_take_sole(&q, s, &item, &again);
        bool kept = holds[rl::thread_index()] != held;
        r = took ? MT_OK : mt_subscriber_take(&q, s, &item);
        unlock(&s->lock);
        if (took && !kept) let_go((message *)item);
        if (again || (r == MT_OK && !took && mt_pubsub_may_trim(&q, s, from))) trim();
        return r == MT_OK ? (int)((message *)item - messages) : -1 - r;
    }

    void let_go(message *gone) {
        gone->content($) = -1;
        gone->gone++;
    }

    /* From which position on. */
    int64_t join(mt_subscriber *s, int64_t start = MT_START_NEXT) {
        mt_retired *freeable;
        lock(&q.join_lock);
        lock(&s->lock);
        RL_ASSERT(mt_pubsub_join(&q, s, start, &freeable) == MT_OK);
        int64_t at = mt_subscriber_at(s);
        unlock(&s->lock);
        unlock(&q.join_lock);
        mt_retired_free(freeable);
        trim();
        return at;
    }

    void leave(mt_subscriber *s) {
        lock(&s->lock);
        int left = mt_subscriber_leave(&q, s);
        unlock(&s->lock);
        if (left) trim();
    }

    void lock(mt_lock *l) {
        if (!mt_lock_try(l)) WAIT(lock_slow)(l, DETACHED);
    }

    void unlock(mt_lock *l) {
        mt_lock_node *n = mt_unlock(l);
        if (n != NULL) WAIT(post_lock_node)(n);
    }

    void trim() {
        mt_drops d;
        do {
            mt_pubsub_trim(&q, &d);
            mt_retired_free(d.chunks);
            for (uint32_t i = 0; i < d.n; i++) let_go((message *)d.items[i]);
        } while (d.more);
    }

    /* Everything that was published was let go once. */
    void end() {
        int gone = 0;
        leave(first);
        for (int i = 0; i < MESSAGES; i++) {
            RL_ASSERT(messages[i].gone <= 1);
            gone += messages[i].gone;
        }
        RL_ASSERT(gone == published);
        mt_pubsub_end(&q);
        RL_ASSERT(model_end_memory() == 0);
    }
};

/* One publishes, one takes all, one joins, takes and leaves: it gets just what is published from its position on. */
template <typename suite, int old> struct pubsub_joining : pubsub_suite<suite, 3> {
    void before() { this->begin(old); }
    void thread(unsigned index) {
        if (index == 0) {
            RL_ASSERT(this->publish(old) == old);
            RL_ASSERT(this->publish(old + 1) == old + 1);
        } else if (index == 1) {
            int got = this->take(this->first);
            RL_ASSERT(got == old || got == -1 - MT_EMPTY);
        } else {
            mt_subscriber *s = mt_pubsub_new_record(&this->q);
            int64_t at = this->join(s);
            RL_ASSERT(at >= old && at <= old + 2);
            int got = this->take(s);
            RL_ASSERT(got == at || got == -1 - MT_EMPTY);
            this->leave(s);
        }
    }
    void after() {
        while (this->take(this->first) >= 0) {
        }
        this->end();
    }
};

/* Within a chunk, and where a chunk ends, another is linked and the first one is unlinked. */
struct pubsub_join : pubsub_joining<pubsub_join, 1> {};
struct pubsub_chunks : pubsub_joining<pubsub_chunks, 9> {};

/* Two publishers at the end of a chunk: one order for all. */
struct pubsub_publishers : pubsub_suite<pubsub_publishers, 3> {
    int64_t at[2];
    void before() { begin(9); }
    void thread(unsigned index) {
        if (index < 2) {
            at[index] = publish(9 + (int)index);
            RL_ASSERT(at[index] == 9 || at[index] == 10);
        } else {
            take(first);
        }
    }
    void after() {
        RL_ASSERT(at[0] != at[1]);
        while (take(first) >= 0) {
        }
        end();
    }
};

/* Two subscribers move on together: the trims that each leaves to the other are made by one of them. */
struct pubsub_trims : pubsub_suite<pubsub_trims, 2> {
    static const unsigned bound = 3;
    mt_subscriber *second;
    void before() {
        begin(0);
        second = mt_pubsub_new_record(&q);
        join(second);
        publish(0);
        publish(1);
    }
    void thread(unsigned index) {
        mt_subscriber *s = index ? second : first;
        RL_ASSERT(take(s) == 0);
        RL_ASSERT(take(s) == 1);
    }
    void after() {
        RL_ASSERT(messages[0].gone == 1 && messages[1].gone == 1);
        leave(second);
        end();
    }
};

/* The last subscriber leaves while a message is published: nobody keeps it. */
template <typename suite, int old> struct pubsub_leaving : pubsub_suite<suite, 2> {
    static const unsigned bound = 3;
    void before() { this->begin(old); }
    void thread(unsigned index) {
        if (index == 0) {
            RL_ASSERT(this->publish(old) == old);
        } else {
            this->leave(this->first);
        }
    }
    void after() {
        RL_ASSERT(this->messages[old].gone == 1);
        this->end();
    }
};

/* Into a slot, and as the first of a new chunk. */
struct pubsub_last : pubsub_leaving<pubsub_last, 0> {};
struct pubsub_last_chunk : pubsub_leaving<pubsub_last_chunk, 10> {};

/* A subscriber that waits for a message, as wait_for_message and wake_getters of pyx/manytail/_ps_core.pxi do it, whose file needs an
 * interpreter: its orders rest on those of a slot and of a link. A wake-up that is lost is a deadlock. */
template <typename suite, int old> struct pubsub_waiting : pubsub_suite<suite, 2> {
    static const unsigned bound = 3;
    void before() {
        this->begin(old);
        mt_load_relaxed_u32(&this->q.nwaiting);
        mt_load_relaxed_u32(&this->first->waiting);
    }
    void thread(unsigned index) {
        if (index == 0) {
            RL_ASSERT(this->publish(old) == old);
            if (mt_load_seq_cst_u32(&this->q.nwaiting) != 0) wake(this->first);
        } else {
            wait(this->first);
            RL_ASSERT(this->take(this->first) == old);
        }
    }
    void count_waiting(mt_subscriber *s) {
        uint32_t now = (uint32_t)s->getters.n, before = mt_xchg_seq_cst_u32(&s->waiting, now);
        if (now != before) mt_fetch_add_seq_cst_u32(&this->q.nwaiting, now - before);
    }
    void wake(mt_subscriber *s) {
        mt_waiter *woken = NULL;
        if (mt_load_seq_cst_u32(&s->waiting) == 0) return;
        this->lock(&s->lock);
        if (s->getters.n != 0 && mt_subscriber_ready(&this->q, s) == MT_OK) {
            mt_waitlist_notify(&s->getters, &woken);
            count_waiting(s);
        }
        this->unlock(&s->lock);
        WAIT(post_chain)(woken);
    }
    void wait(mt_subscriber *s) {
        mt_waiter w;
        WAIT(waiter_open)(&w);
        this->lock(&s->lock);
        mt_waitlist_push(&s->getters, &w);
        count_waiting(s);
        if (mt_subscriber_ready(&this->q, s) != MT_EMPTY) {
            mt_waitlist_leave(&s->getters, &w);
            count_waiting(s);
            this->unlock(&s->lock);
        } else {
            this->unlock(&s->lock);
            RL_ASSERT(WAIT(waiter_park)(&w, FOREVER, DETACHED) == MT_OK);
        }
        WAIT(waiter_close)(&w);
    }
    void after() { this->end(); }
};

struct pubsub_wait : pubsub_waiting<pubsub_wait, 0> {};
struct pubsub_wait_chunk : pubsub_waiting<pubsub_wait_chunk, 10> {};

/* Shutdown, publishers and a taker: a publish that was refused is never seen, one that was not is. */
struct pubsub_shut : pubsub_suite<pubsub_shut, 3> {
    int64_t at;
    void before() { begin(9); }
    void thread(unsigned index) {
        if (index == 0) {
            at = publish(9);
            RL_ASSERT(at == 9 || at == -1 - MT_SHUTDOWN);
        } else if (index == 1) {
            mt_retired *freeable;
            mt_pubsub_shut(&q, &freeable);
            mt_retired_free(freeable);
        } else {
            take(first);
        }
    }
    void after() {
        RL_ASSERT(publish(10) == -1 - MT_SHUTDOWN);
        while (take(first) >= 0) {
        }
        RL_ASSERT(take(first) == -1 - MT_SHUTDOWN);
        RL_ASSERT(messages[9].gone == (at == 9));
        end();
    }
};

#endif
