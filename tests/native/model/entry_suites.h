/* The state word of _entry.pxd in the model checker: who may touch an entry, and who ends it, is settled by swaps on
 * its state word alone. */
#ifndef ENTRY_SUITES_H
#define ENTRY_SUITES_H

struct entry_suite : run_by_checker {
    mt_atomic_i64 word;
    rl::var<int> payload; /* only the state word orders those who write it */
    int acquired, ended;

    void before() {
        memset((void *)&word, 0, sizeof word);
        mt_load_relaxed_i64(&word);
        payload($) = 0;
        acquired = ended = 0;
    }

    uint64_t acquire() {
        uint64_t delivery = ENTRY(entry_acquire)(&word);
        if (delivery == 0) return 0;
        acquired++;
        payload($) = payload($) + 1;
        RL_ASSERT(payload($) == (int)delivery); /* each hand-over is seen by the next */
        return delivery;
    }

    bool dequeue(uint64_t delivery) { return ENTRY(entry_dequeue)(&word, delivery) != 0; }
    bool release(uint64_t delivery, int to) { return ENTRY(entry_release)(&word, delivery, to) != 0; }
    bool lock(uint64_t delivery) { return ENTRY(entry_lock)(&word, delivery) != 0; }
    bool unlock(uint64_t delivery) { return ENTRY(entry_unlock)(&word, delivery) != 0; }

    /* Whoever dequeued it ends it. */
    void end() {
        RL_ASSERT(payload($) == acquired);
        ended++;
        ENTRY(entry_delete)(&word);
    }

    void withdraw() {
        if (ENTRY(entry_withdraw)(&word)) end();
    }

    void after() {
        int64_t w = ENTRY(entry_word)(&word);
        RL_ASSERT(ended <= 1);
        RL_ASSERT((ENTRY(word_state)(w) == ENTRY_IS(DELETED)) == (ended == 1));
        RL_ASSERT((int)ENTRY(word_delivery)(w) == acquired);
        RL_ASSERT(payload($) == acquired);
        model_end_memory();
    }
};

/* Two subscriptions and somebody who withdraws: one gives back and is stale from then on, one ends what it got. */
struct entry_states : suite<entry_suite, 3, 3> {
    void one() {
        uint64_t delivery = acquire();
        if (delivery == 0) return;
        RL_ASSERT(release(delivery, ENTRY_IS(AVAILABLE)));
        RL_ASSERT(!dequeue(delivery));
        RL_ASSERT(!release(delivery, ENTRY_IS(HELD)));
        RL_ASSERT(!lock(delivery));
    }
    void two() {
        uint64_t delivery = acquire();
        if (delivery == 0) return;
        RL_ASSERT(dequeue(delivery));
        end();
    }
    void three() {
        RL_ASSERT(!ENTRY(entry_steal)(&word)); /* nobody unlocks */
        withdraw();
    }
};

/* A holder that unlocks and takes its lock back races with a thief: what was locked again is safe. */
struct entry_theft : suite<entry_suite, 2, 4> {
    void one() {
        uint64_t delivery = acquire();
        RL_ASSERT(delivery == 1 && unlock(delivery));
        if (lock(delivery)) {
            RL_ASSERT(payload($) == 1);
            RL_ASSERT(unlock(delivery));
        }
        if (dequeue(delivery)) end();
    }
    void two() {
        if (ENTRY(entry_steal)(&word)) end();
    }
};

/* Given back for later; its time comes while it is withdrawn, and somebody waits to acquire it. */
struct entry_held : suite<entry_suite, 3, 3> {
    bool due; /* plain: what one schedule did before */
    void before() {
        entry_suite::before();
        due = false;
        release(acquire(), ENTRY_IS(HELD));
    }
    void one() {
        due = true;
        ENTRY(entry_unhold)(&word);
    }
    void two() {
        uint64_t delivery = acquire();
        if (delivery == 0) return;
        RL_ASSERT(due);
        RL_ASSERT(ENTRY(word_redelivered)(ENTRY(entry_word)(&word)));
        if (dequeue(delivery)) end();
    }
    void three() { withdraw(); }
};

/* The shared credit of a Consumer. Gets of several queues take it under several order locks, and acks return it. One
 * credit and three gets at once: one of them has it. */
struct credit_shared : suite<run_by_checker, 3, 3> {
    shared_credit c;
    rl::var<int> holder; /* only the credit orders those who write it: there is one */
    int holding, got;

    void before() {
        memset((void *)&c, 0, sizeof c);
        mt_store_relaxed_i64(&c.limit, 1);
        mt_store_relaxed_i64(&c.used, 0);
        holder($) = 0;
        holding = got = 0;
    }

    bool take() {
        if (!MANAGER(take_shared_credit)(&c)) return false;
        RL_ASSERT(++holding == 1);
        holder($) = ++got;
        return true;
    }

    void thread(unsigned) { take(); }

    void after() {
        RL_ASSERT(mt_load_relaxed_i64(&c.used) == holding);
        RL_ASSERT(got > 0);
        model_end_memory();
    }
};

/* It comes back while others try. Who gets it after that sees what its last holder did. */
struct credit_returned : suite<credit_shared, 3, 3> {
    void thread(unsigned) {
        if (!take()) return;
        RL_ASSERT(holder($) == got);
        holding--;
        MANAGER(return_shared_credit)(&c);
    }
};

#endif
