/* The publish/subscribe list (_ps.pxd) in the model checker: publishers, takers, joiners, leavers and trimmers over
 * one chain.
 *
 * A message's content is a variable that nothing but the protocol guards: who takes a reference reads it at that
 * moment, who frees the message overwrites it. A message that is freed while somebody may still take it is a data
 * race in that schedule, and each must be freed once. A suite that sets `sole` takes as the only subscriber of a
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

enum { NEXT = PS_ENUM(START_NEXT), OLDEST = PS_ENUM(START_OLDEST), NOTHING = -1 - MT_EMPTY, ENDED = -1 - MT_SHUTDOWN };

struct pubsub_suite : run_by_checker {
    enum { MESSAGES = 16 };
    struct message_block {
        message of[MESSAGES];
    };
    ps_pubsub *q;
    message *messages;
    ps_subscriber *first, *second; /* second: NULL, unless a suite sets it */
    int published;
    bool sole, wakes; /* wakes: publishers wait at the bound */

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
        second = NULL;
        RL_ASSERT(join(first) == 0);
        for (int i = 0; i < old; i++) {
            publish_next(1);
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

    /* So many, alone: each has the number of its place. */
    void publish_next(int n) {
        while (n--) {
            int i = published;
            RL_ASSERT(publish(i) == i);
        }
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
        took = sole && PS(locked_take_sole)(q, s, &item, &again);
        bool kept = holds[rl::thread_index()] != held;
        r = took ? MT_OK : PS(locked_take)(s, &item);
        PS(unlock_subscriber)(s);
        if (took && !kept) free_message((message *)item);
        if (again || (r == MT_OK && !took && PS(must_trim)(q, s, from))) trim();
        return r == MT_OK ? (int)((message *)item - messages) : -1 - r;
    }

    /* All that it can get, from message number `from` on; the number of the next. */
    int take_all(ps_subscriber *s, int from) {
        int got;
        for (; (got = take(s)) >= 0; from++) RL_ASSERT(got == from);
        RL_ASSERT(got == NOTHING);
        return from;
    }

    void take_two(ps_subscriber *s) {
        uintptr_t items[2];
        PS(lock_subscriber)(s);
        RL_ASSERT(PS(locked_take_many)(s, items, 2) == 2);
        PS(unlock_subscriber)(s);
        trim();
    }

    void drain() {
        while (take(first) >= 0) {
        }
    }

    void free_message(message *m) {
        m->content($) = -1;
        m->freed++;
    }

    /* From which sequence number on. */
    int64_t join(ps_subscriber *s, int64_t start = NEXT) {
        OK(PS(join)(q, s, start));
        int64_t seq = PS(locked_next_seq)(s);
        trim();
        return seq;
    }

    ps_subscriber *joined() {
        ps_subscriber *s = PS(new_record)(q);
        join(s);
        return s;
    }

    /* Somebody joins and leaves at once. From which sequence number on it was there. */
    int64_t visit(int64_t start) {
        ps_subscriber *s = PS(new_record)(q);
        int64_t at = join(s, start);
        close(s);
        return at;
    }

    /* Somebody joins at the oldest message, takes all, and leaves. */
    void visit_all(int least, int most) {
        ps_subscriber *s = PS(new_record)(q);
        int at = (int)join(s, OLDEST);
        RL_ASSERT(at >= least && at <= most);
        RL_ASSERT(take_all(s, at) == most);
        close(s);
    }

    void close(ps_subscriber *s) {
        if (PS(close_subscriber)(q, s)) trim();
    }

    void trim() {
        ps_freed f;
        do {
            PS(trim)(q, &f);
            if (wakes && f.low_moved) PS(wake_publisher)(q);
            for (uint32_t i = 0; i < f.n; i++) free_message((message *)f.items[i]);
        } while (f.incomplete);
    }

    /* Everything that was published was freed once. */
    void after() {
        int freed = 0;
        if (second != NULL) close(second);
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
template <int old> struct pubsub_joining : pubsub_suite {
    void before() { begin(old); }
    void one() { publish_next(2); }
    void two() {
        int got = take(first);
        RL_ASSERT(got == old || got == NOTHING);
    }
    void three() {
        ps_subscriber *s = PS(new_record)(q);
        int64_t at = join(s);
        RL_ASSERT(at >= old && at <= old + 2);
        int got = take(s);
        RL_ASSERT(got == at || got == NOTHING);
        close(s);
    }
    void after() {
        drain();
        pubsub_suite::after();
    }
};

/* Within a chunk, and where a chunk ends, another is linked and the first one is unlinked. */
struct pubsub_join : suite<pubsub_joining<1>, 3> {};
struct pubsub_chunks : suite<pubsub_joining<9>, 3> {};

/* Two publishers at the end of a chunk: one order for all. */
struct pubsub_publishers : suite<pubsub_suite, 3> {
    int64_t at[2];
    void before() { begin(9); }
    void one() { at[0] = publish(9); }
    void two() { at[1] = publish(10); }
    void three() { take(first); }
    void after() {
        RL_ASSERT((at[0] == 9 && at[1] == 10) || (at[0] == 10 && at[1] == 9));
        drain();
        pubsub_suite::after();
    }
};

/* Two subscribers move on together: the trims that each leaves to the other are made by one of them. */
struct pubsub_trims : suite<pubsub_suite, 2, 3> {
    void before() {
        begin(0);
        second = joined();
        publish_next(2);
    }
    void one() { takes_both(first); }
    void two() { takes_both(second); }
    void takes_both(ps_subscriber *s) {
        for (int i = 0; i < 2; i++) RL_ASSERT(take(s) == i);
    }
    void after() {
        RL_ASSERT(messages[0].freed == 1 && messages[1].freed == 1);
        pubsub_suite::after();
    }
};

/* The last subscriber leaves while a message is published: nobody keeps it. */
template <int old> struct pubsub_leaving : pubsub_suite {
    void before() { begin(old); }
    void one() { publish_next(1); }
    void two() { close(first); }
    void after() {
        RL_ASSERT(messages[old].freed == 1);
        pubsub_suite::after();
    }
};

/* Into a slot, and as the first of a new chunk. */
struct pubsub_last : suite<pubsub_leaving<0>, 2, 3> {};
struct pubsub_last_chunk : suite<pubsub_leaving<10>, 2, 3> {};

/* A subscriber that waits for a message: its orders rest on those of a slot and of a link. A wake-up that is lost
 * is a deadlock. */
template <int old> struct pubsub_waiting : pubsub_suite {
    void before() {
        begin(old);
        mt_load_relaxed_u32(&q->nwaiting);
        mt_load_relaxed_u32(&first->waiting);
    }
    void one() {
        publish_next(1);
        PS(wake_getters)(q);
    }
    void two() {
        OK(wait_for_message(first, FOREVER));
        RL_ASSERT(take(first) == old);
    }
};

struct pubsub_wait : suite<pubsub_waiting<0>, 2, 3> {};
struct pubsub_wait_chunk : suite<pubsub_waiting<10>, 2, 3> {};

/* Shutdown, publishers and a taker: a publish that was refused is never seen, one that was not is. */
struct pubsub_shut : suite<pubsub_suite, 3> {
    int64_t at;
    void before() { begin(9); }
    void one() {
        at = publish(9);
        RL_ASSERT(at == 9 || at == ENDED);
    }
    void two() {
        model_without_memory = PyThread_get_thread_ident();
        PS(mark_end)(q);
        model_without_memory = 0;
    }
    void three() { take(first); }
    void after() {
        RL_ASSERT(publish(10) == ENDED);
        drain();
        RL_ASSERT(take(first) == ENDED);
        RL_ASSERT(messages[9].freed == (at == 9));
        pubsub_suite::after();
    }
};

#endif
