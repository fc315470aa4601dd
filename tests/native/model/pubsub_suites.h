/* The publish/subscribe list (_ps.pxd) in the model checker: publishers, takers, joiners, leavers and trimmers over
 * one chain.
 *
 * A message's content is a variable that nothing but the protocol guards: who takes a reference reads it at that
 * moment, who frees the message overwrites it. A message that is freed while somebody may still take it is a data
 * race in that schedule, and each must be freed once. A suite that says `sole` takes as the only subscriber of a
 * list may (locked_take_sole): it may get the reference of the list itself, and frees the message then.
 */
#ifndef PUBSUB_SUITES_H
#define PUBSUB_SUITES_H

struct message {
    rl::var<int> content;
    int freed;
};

static unsigned holds[4]; /* how often each thread has made a reference; suites have at most three threads */

static void hold_message(uintptr_t item) {
    RL_ASSERT(((message *)item)->content($) >= 0);
    holds[rl::thread_index()]++;
}

template <typename suite, unsigned threads> struct pubsub_suite : rl::test_suite<suite, threads> {
    static const unsigned bound = 2;
    static const bool sole = false;
    static const bool wakes = false; /* publishers wait at the bound */
    enum { MESSAGES = 16 };
    struct message_block {
        message of[MESSAGES];
    };
    ps_pubsub *q;
    message *messages;
    ps_subscriber *first;
    int published;

    /* `old` messages were published and taken; `first` is subscribed. Chunks have 10 slots. */
    void begin(int old, int64_t maxsize = 0) {
        model_begin_signals(0, 0);
        model_keep = hold_message;
        q = PS(new_pubsub)();
        mt_epoch_init(&q->epoch, 1);
        mt_store_relaxed_i64(&q->maxsize, maxsize);
        messages = model_variable<message_block>()->of;
        for (int i = 0; i < MESSAGES; i++) messages[i].freed = 0;
        published = 0;
        touch();
        first = PS(new_record)(q);
        RL_ASSERT(join(first) == 0);
        for (int i = 0; i < old; i++) {
            RL_ASSERT(publish(i) == i);
            RL_ASSERT(take(first) == i);
        }
    }

    /* Make relacy's variables now, in the thread that comes before all others. */
    void touch() {
        mt_load_relaxed_u32(&q->shut);
        mt_load_relaxed_u32(&q->trimming);
        mt_load_relaxed_u32(&q->nsubscribers);
        mt_load_relaxed_i64(&q->low_seq);
        mt_load_relaxed_i64(&q->joins);
        mt_load_relaxed_uptr(&q->join_lock.word);
        mt_load_relaxed_uptr(&q->slowest_hint);
        mt_load_relaxed_uptr(&q->subscriber_records);
        mt_load_relaxed_i64(&q->epoch.epoch);
        mt_load_relaxed_uptr(&q->epoch.blocks[0]);
        for (int i = 0; i < MT_EPOCH_FIRST; i++) mt_load_relaxed_i64(&q->epoch.first[i].word);
        ps_chunk *c = (ps_chunk *)mt_load_relaxed_uptr(&q->oldest);
        mt_load_relaxed_uptr(&c->next);
        for (uint32_t i = 0; i < c->cap; i++) mt_load_relaxed_uptr(PS(slots)(c) + i);
    }

    /* Its sequence number, or -1 - status. */
    int64_t publish(int i) {
        int64_t seq = -1;
        messages[i].content($) = i;
        int r = PS(publish)(q, (uintptr_t)&messages[i], &seq);
        if (r != MT_OK) return -1 - r;
        published++;
        if (PS(no_subscriber)(q)) trim();
        return seq;
    }

    /* Three from number `first` on, as one run. */
    void publish_run(int first) {
        uintptr_t items[3];
        int64_t done, kept;
        for (int i = 0; i < 3; i++) {
            messages[first + i].content($) = first + i;
            items[i] = (uintptr_t)&messages[first + i];
        }
        RL_ASSERT(PS(publish_run)(q, items, 3, &done, &kept) == MT_OK && done == 3);
        published += 3;
    }

    /* What came, or -1 - status. */
    int take(ps_subscriber *s) {
        uintptr_t item;
        int again = 0, took, r;
        PS(lock_subscriber)(s);
        int64_t from = PS(locked_next_seq)(s);
        unsigned held = holds[rl::thread_index()];
        took = suite::sole && PS(locked_take_sole)(q, s, &item, &again);
        bool kept = holds[rl::thread_index()] != held;
        r = took ? MT_OK : PS(locked_take)(s, &item);
        PS(unlock_subscriber)(s);
        if (took && !kept) free_message((message *)item);
        if (again || (r == MT_OK && !took && PS(must_trim)(q, s, from))) trim();
        return r == MT_OK ? (int)((message *)item - messages) : -1 - r;
    }

    void free_message(message *m) {
        m->content($) = -1;
        m->freed++;
    }

    /* From which sequence number on. */
    int64_t join(ps_subscriber *s, int64_t start = PS_ENUM(START_NEXT)) {
        RL_ASSERT(PS(join)(q, s, start) == MT_OK);
        int64_t seq = PS(locked_next_seq)(s);
        trim();
        return seq;
    }

    void close(ps_subscriber *s) {
        if (PS(close_subscriber)(q, s)) trim();
    }

    void trim() {
        ps_freed f;
        do {
            PS(trim)(q, &f);
            if (suite::wakes && f.low_moved) PS(wake_publisher)(q);
            for (uint32_t i = 0; i < f.n; i++) free_message((message *)f.items[i]);
        } while (f.incomplete);
    }

    /* Everything that was published was freed once. */
    void end() {
        int freed = 0;
        close(first);
        for (int i = 0; i < MESSAGES; i++) {
            RL_ASSERT(messages[i].freed <= 1);
            freed += messages[i].freed;
        }
        RL_ASSERT(freed == published);
        PS(free_pubsub)(q);
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
            ps_subscriber *s = PS(new_record)(this->q);
            int64_t at = this->join(s);
            RL_ASSERT(at >= old && at <= old + 2);
            int got = this->take(s);
            RL_ASSERT(got == at || got == -1 - MT_EMPTY);
            this->close(s);
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
    ps_subscriber *second;
    void before() {
        begin(0);
        second = PS(new_record)(q);
        join(second);
        publish(0);
        publish(1);
    }
    void thread(unsigned index) {
        ps_subscriber *s = index ? second : first;
        RL_ASSERT(take(s) == 0);
        RL_ASSERT(take(s) == 1);
    }
    void after() {
        RL_ASSERT(messages[0].freed == 1 && messages[1].freed == 1);
        close(second);
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
            this->close(this->first);
        }
    }
    void after() {
        RL_ASSERT(this->messages[old].freed == 1);
        this->end();
    }
};

/* Into a slot, and as the first of a new chunk. */
struct pubsub_last : pubsub_leaving<pubsub_last, 0> {};
struct pubsub_last_chunk : pubsub_leaving<pubsub_last_chunk, 10> {};

/* A subscriber that waits for a message: its orders rest on those of a slot and of a link. A wake-up that is lost
 * is a deadlock. */
template <typename suite, int old> struct pubsub_waiting : pubsub_suite<suite, 2> {
    static const unsigned bound = 3;
    void before() {
        this->begin(old);
        mt_load_relaxed_u32(&this->q->nwaiting);
        mt_load_relaxed_u32(&this->first->waiting);
    }
    void thread(unsigned index) {
        if (index == 0) {
            RL_ASSERT(this->publish(old) == old);
            PS(wake_getters)(this->q);
        } else {
            RL_ASSERT(wait_for_message(this->first, FOREVER) == MT_OK);
            RL_ASSERT(this->take(this->first) == old);
        }
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
            model_without_memory = PyThread_get_thread_ident();
            PS(mark_end)(q);
            model_without_memory = 0;
        } else {
            take(first);
        }
    }
    void after() {
        RL_ASSERT(publish(10) == -1 - MT_SHUTDOWN);
        while (take(first) >= 0) {
        }
        RL_ASSERT(take(first) == -1 - MT_SHUTDOWN);
        RL_ASSERT(messages[9].freed == (at == 9));
        end();
    }
};

#endif
