/* _section_lock.pxd in the model checker: threads that take the lock, some of them interrupted in their sleep.
 *
 * What a section counts is plain, so two sections at a time are a race. A wake-up that is lost is a deadlock.
 */
#ifndef SECTION_SUITES_H
#define SECTION_SUITES_H

struct section_suite : run_by_checker {
    section_lock lock;
    rl::var<int> sections;
    int expected;
    static section_suite *running;

    void begin(int signals = 0, int raising = 0, void (*handler)(void) = NULL) {
        model_begin_signals(signals, raising, handler);
        memset((void *)&lock, 0, sizeof lock);
        mt_load_relaxed_uptr(&lock.guard.word);
        mt_load_relaxed_i64(&lock.owner);
        sections($) = expected = 0;
        running = this;
    }

    int enter() {
        int r = SECTION(try_lock)(&lock);
        RL_ASSERT(r == MT_OK || r == SECTION_IS(CONTENDER));
        return r == MT_OK ? r : SECTION(contend)(&lock);
    }

    /* One section. MT_INTERRUPTED: a signal handler raised, and there was none. */
    int once() {
        int r = enter();
        RL_ASSERT(r == MT_OK || r == MT_INTERRUPTED);
        if (r != MT_OK) return r;
        RL_ASSERT(SECTION(try_lock)(&lock) == SECTION_IS(REENTERED));
        sections($) = sections($) + 1;
        expected++;
        SECTION(unlock)(&lock);
        return r;
    }

    void before() { begin(); }

    void after() {
        RL_ASSERT(sections($) == expected);
        RL_ASSERT(mt_load_relaxed_i64(&lock.owner) == 0);
        RL_ASSERT(lock.contenders == 0);
        RL_ASSERT(lock.waiters.n == 0);
        RL_ASSERT(model_end_memory() == 0);
    }
};

section_suite *section_suite::running;

/* Three threads, one of them twice: nobody sleeps for ever. */
struct section_three : suite<section_suite, 3> {
    void thread(unsigned index) {
        for (unsigned i = 0; i < (index ? 1u : 2u); i++) OK(once());
    }
};

/* A signal ends the sleep of one thread, at any moment, and its handler raises: another one is woken in its place. */
struct section_raised : suite<section_suite, 3> {
    void before() { begin(1, 1); }
    void thread(unsigned) { once(); }
    void after() {
        RL_ASSERT(expected >= 2);
        section_suite::after();
    }
};

/* A signal ends the sleep of one thread, and its handler takes the lock, too: a thread that sleeps twice would be woken
 * for the sleep that cannot end first. */
struct section_handler : suite<section_suite, 3> {
    void before() {
        begin(1, 0, [] { OK(running->once()); });
    }
    void thread(unsigned) { OK(once()); }
};

#endif
