/* MultiQueue (_mq*.pxd) and lock.h in the model checker. */
#ifndef QUEUE_SUITES_H
#define QUEUE_SUITES_H

/* What an item points to: its putter writes it, its getter reads it, nothing but the queue orders the two. */
struct cell {
    rl::var<int> value;
    int seen;
};

/* Two tails. */
struct queue_suite : run_by_checker {
    mq_queue *q;
    mq_subqueue *a, *b;
    cell *cells;
    int accepted; /* items that went in */
    static const int ncells = 32;
    struct cell_block {
        cell cells[ncells];
    };

    void begin(int64_t maxsize = 0, uint32_t selection = MT_ROUND_ROBIN) {
        model_now = 1;
        model_begin_signals(0, 0);
        memset(&native_registry, 0, sizeof native_registry);
        cells = model_variable<cell_block>()->cells;
        for (int i = 0; i < ncells; i++) cells[i].seen = 0;
        q = MQ_LIFE(new_queue)(0, 0);
        q->selection = selection;
        q->ready.oldest = selection == MT_OLDEST;
        a = MQN(add_subqueue)(q, 0, maxsize, 1);
        b = MQN(add_subqueue)(q, 0, 0, 1);
        touch(a);
        touch(b);
        mt_load_relaxed_i64(&q->clock);
        mt_load_relaxed_uptr(&q->spare);
        accepted = 0;
    }

    /* Make relacy's variables now, in the thread that comes before all others. */
    static void touch(mq_subqueue *s) {
        mt_load_relaxed_i64(&s->tail_seq);
        mt_load_relaxed_i64(&s->head_seq);
        mt_load_relaxed_u32(&s->not_full_waiting);
        mt_load_relaxed_uptr(&s->put_lock.word);
    }

    static void dropped(uintptr_t item, void *) { ((cell *)item)->seen++; }

    void before() { begin(); }

    /* Everything that was put came out once. */
    void after() {
        MQN(destroy_queue)(q, dropped, NULL);
        int seen = 0;
        for (int i = 0; i < ncells; i++) {
            RL_ASSERT(cells[i].seen <= 1);
            seen += cells[i].seen;
        }
        RL_ASSERT(seen == accepted);
        RL_ASSERT(model_end_memory() == 0);
    }

    uintptr_t item(int i) {
        cells[i].value($) = i;
        return (uintptr_t)&cells[i];
    }

    int put(mq_subqueue *s, int i, int64_t timeout = FOREVER) { return went_in(MQN(put_within)(s, item(i), timeout)); }

    int went_in(int r, int n = 1) {
        if (r == MT_OK) accepted += n;
        return r;
    }

    int put_many(mq_subqueue *s, int from, int n, int64_t timeout = FOREVER) {
        uintptr_t items[ncells];
        for (int i = 0; i < n; i++) items[i] = item(from + i);
        return went_in(MQN(put_run_within)(s, items, n, timeout, NULL), n);
    }

    /* Unless the end comes first. */
    void put_or_be_refused(int i) {
        int r = put(a, i);
        RL_ASSERT(r == MT_OK || r == MT_SHUTDOWN);
    }

    /* What came, or -1 - status. */
    int get(int64_t timeout = FOREVER) {
        uintptr_t got;
        int r = MQN(get_within)(q, &got, NULL, timeout);
        return r == MT_OK ? taken(got) : -1 - r;
    }

    int taken(uintptr_t got) {
        cell *c = (cell *)got;
        int i = (int)(c - cells);
        RL_ASSERT(c->value($) == i);
        c->seen++;
        return i;
    }

    int get_many(int n, int64_t timeout = FOREVER) {
        uintptr_t got[ncells];
        int64_t count;
        int r = MQN(get_many_within)(q, got, n, timeout, &count);
        RL_ASSERT(r == MT_OK || count == 0);
        for (int64_t i = 0; i < count; i++) taken(got[i]);
        return (int)count;
    }

    void enable(int enabled) { MQ_CHANGES(enable_subqueue)(a->mq, a, enabled, 0); }
};

/* ----------------------------------------------------------------------------------------------------------- lock.h */
/* Three threads, two of them twice: mutual exclusion, hand-over of what the holder wrote, and nobody sleeps for
 * ever. */
struct lock_three : suite<run_by_checker, 3, 3> {
    mt_lock lock;
    rl::var<int> counter;
    void before() {
        memset(&lock, 0, sizeof lock);
        mt_load_relaxed_uptr(&lock.word);
        counter($) = 0;
    }
    void thread(unsigned index) {
        for (unsigned i = 0; i < (index ? 1u : 2u); i++) {
            take_lock(&lock);
            counter($) = counter($) + 1;
            give_lock(&lock);
        }
    }
    void after() {
        RL_ASSERT(counter($) == 4);
        RL_ASSERT(mt_load_relaxed_uptr(&lock.word) == 0);
        model_end_memory();
    }
};

/* ----------------------------------------------------------------------------------------------- items and wake-ups */
/* Two putters to two tails, one getter that waits for both items: each finds the queue known or unlisted, awake or
 * asleep. */
struct two_tails : suite<queue_suite, 3> {
    void one() { OK(put(a, 0)); }
    void two() { OK(put(b, 1)); }
    void three() {
        int first = get(), second = get();
        RL_ASSERT(first + second == 1);
    }
};

/* The tail was got empty before and may still be listed; putter and getter meet while it is forgotten and learned
 * again. */
struct empty_again : suite<queue_suite, 2, 3> {
    void before() {
        begin();
        put(a, 0);
        put(b, 1);
        get();
    }
    void one() {
        OK(put(a, 2));
        OK(put(b, 3));
    }
    void two() {
        for (int i = 0; i < 3; i++) RL_ASSERT(get() >= 1);
    }
};

/* The same with runs of items. */
struct empty_again_many : suite<empty_again, 2, 3> {
    void one() {
        OK(put_many(a, 2, 2));
        OK(put_many(b, 4, 1));
    }
    void two() {
        for (int i = 0; i < 4; i++) RL_ASSERT(get() >= 1);
    }
};

/* Two getters asleep, two items in one put: the first who wakes sends the second. */
struct propagated_to_getters : suite<queue_suite, 3> {
    void one() { OK(put_many(a, 0, 2)); }
    void two() { RL_ASSERT(get() >= 0); }
    void three() { RL_ASSERT(get() >= 0); }
};

/* Hidden while it gets its items, shown afterwards: both getters must come to know. */
struct shown : suite<queue_suite, 3, 1> {
    void before() {
        begin();
        enable(0);
    }
    void one() {
        OK(put(a, 0));
        enable(1);
        OK(put(a, 1));
    }
    void two() { RL_ASSERT(get() >= 0); }
    void three() { RL_ASSERT(get() >= 0); }
};

/* One putter puts to two tails, one after the other; who finds the second item and then nothing has missed the
 * first. */
struct empty_is_true : suite<queue_suite, 2, 3> {
    void one() {
        OK(put(a, 0));
        OK(put(b, 1));
    }
    void two() {
        int first = get(0), second = get(0);
        RL_ASSERT(first != 1 || second == 0);
        RL_ASSERT(!(first < 0 && second == 1) || get(0) == 0);
    }
};

/* ----------------------------------------------------------------------------------- waits that end without an item */
/* A getter that may give up, and one that may not. Who gets an item puts another, so there is always one for the
 * second. */
template <int interrupts> struct giving_up : queue_suite {
    void before() {
        begin();
        model_begin_signals(interrupts, interrupts);
    }
    void one() { OK(put(a, 0)); }
    void two() {
        int r = wait_for_items(q, interrupts ? FOREVER : model_now + SOMETIME, ATTACHED);
        RL_ASSERT(r == MT_OK || r == (interrupts ? MT_INTERRUPTED : MT_TIMEOUT));
        if (r == MT_OK && get(0) >= 0) OK(put(a, 1));
    }
    void three() {
        RL_ASSERT(get() >= 0);
        OK(put(a, 2));
    }
};

struct timed_getter : suite<giving_up<0>, 3> {};
struct interrupted_getter : suite<giving_up<1>, 3> {};

/* ---------------------------------------------------------------------------------------------------- bounded tails */
/* A full tail, two putters that wait, a getter that takes one by one: who frees a place sees who waits for it. */
struct room : suite<queue_suite, 2> {
    void before() {
        begin(1);
        put(a, 0);
    }
    void one() {
        OK(put(a, 1));
        OK(put(a, 2));
    }
    void two() {
        for (int i = 0; i < 3; i++) RL_ASSERT(get() == i);
    }
};

/* Two places come free at once, two putters wait: the first who wakes sends the second. One begins its put again after
 * the wait, as a coroutine does. */
struct propagated_to_putters : suite<queue_suite, 3> {
    void before() {
        begin(2);
        put_many(a, 0, 2);
    }
    void one() { RL_ASSERT(get_many(2) >= 2); }
    void two() {
        OK(wait_for_room(a, FOREVER, ATTACHED));
        OK(put(a, 2));
    }
    void three() { OK(put(a, 3)); }
};

/* A putter that may give up beside one that may not. Who has put takes one out, so there is always room for the
 * second. */
template <int interrupts> struct giving_up_room : queue_suite {
    void before() {
        begin(1);
        put(a, 0);
        model_begin_signals(interrupts, interrupts);
    }
    void one() { RL_ASSERT(get() >= 0); }
    void two() {
        int r = wait_for_room(a, interrupts ? FOREVER : model_now + SOMETIME, ATTACHED);
        RL_ASSERT(r == MT_OK || r == (interrupts ? MT_INTERRUPTED : MT_TIMEOUT));
        if (r == MT_OK && put(a, 1, 0) == MT_OK) RL_ASSERT(get() >= 0);
    }
    void three() {
        OK(put(a, 2));
        RL_ASSERT(get() >= 0);
    }
};

struct timed_putter : suite<giving_up_room<0>, 3> {};
struct interrupted_putter : suite<giving_up_room<1>, 3> {};

/* Items have sizes. The room that comes free is for the item of size 2, whose putter may be interrupted, or for that of
 * size 1. */
struct interrupted_sized_putter : suite<giving_up_room<1>, 3> {
    void before() {
        begin(2);
        a->sized = a->bounded = 1;
        put_sized(0, 2);
        model_begin_signals(1, 1);
    }
    int put_sized(int i, int64_t size) {
        return went_in(MQ_PUT(put_until)(q, a, item(i), &size, 0, FOREVER, ATTACHED));
    }
    void two() {
        int r = put_sized(1, 2);
        RL_ASSERT(r == MT_OK || r == MT_INTERRUPTED);
        if (r == MT_OK) RL_ASSERT(get() >= 0);
    }
    void three() {
        int r = put_sized(2, 1);
        if (r == MT_INTERRUPTED) r = put_sized(2, 1);
        OK(r);
        RL_ASSERT(get() >= 0);
    }
};

/* ----------------------------------------------------------------------------------------------------------- chunks */
/* The first chunk (11 slots) is used up and the next one appended, while an iterator stands on the first. */
struct chunks : suite<queue_suite, 3> {
    void before() {
        begin();
        put_many(a, 0, 11);
    }
    void one() { OK(put(a, 11)); }
    void two() {
        RL_ASSERT(get_many(11) == 11);
        RL_ASSERT(get() == 11);
    }
    void three() {
        mq_position k;
        uintptr_t last = 0;
        MQ_ITERATE(position_open)(&k);
        do {
            MQ_ITERATE(position_step)(q, a, &k, 0);
            for (uint32_t i = 0; i < k.n; i++) {
                RL_ASSERT(k.items[i] > last);
                last = k.items[i];
            }
        } while (k.n);
    }
};

/* A clear that meets a put and a get: each item goes one way. */
struct cleared : suite<queue_suite, 3> {
    void before() {
        begin();
        put_many(a, 0, 2);
    }
    void one() { OK(put(a, 2)); }
    void two() { MQ_CLEAR(drop_items)(q, a, dropped, NULL, 0); }
    void three() {
        get(0);
        get(0);
    }
};

/* Both tails were counted and have left the list of those that are counted anew; puts, a get and counts meet. */
struct counted : suite<queue_suite, 3, 2> {
    int size() { return (int)MQ_READY(qsize_of)(q, INT64_MAX, 0); }
    void before() {
        begin();
        put(a, 0);
        put(b, 1);
        size();
        size();
    }
    void one() {
        OK(put(a, 2));
        OK(put(a, 3));
    }
    void two() {
        for (int i = 0; i < 3; i++) {
            int n = size();
            RL_ASSERT(n >= 1 && n <= 4);
        }
    }
    void three() { RL_ASSERT(get() >= 0); }
    void after() {
        RL_ASSERT(size() == 3 && size() == 3 && size() == 3);
        queue_suite::after();
    }
};

/* ---------------------------------------------------------------------------------------------------------- the end */
/* Shutdown, a put, a waiting getter: the getter has the item or the news, nothing is lost. */
struct shut : suite<queue_suite, 3> {
    void one() { put_or_be_refused(0); }
    void two() { MQ_CHANGES(shut_queue)(q, 0, 0); }
    void three() {
        int got = get();
        if (got >= 0) got = get();
        RL_ASSERT(got == -1 - MT_SHUTDOWN);
    }
};

/* A tail is removed while a putter waits for room in it and a getter takes from it. */
struct removed : suite<queue_suite, 3> {
    void before() {
        begin(1);
        put(a, 0);
    }
    void one() { put_or_be_refused(1); }
    void two() { OK(MQN(remove_subqueue)(q, a, dropped, NULL)); }
    void three() { get(0); }
};

#endif
