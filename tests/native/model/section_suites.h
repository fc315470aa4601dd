/* _section_lock.pxd in the model checker: threads that take the lock, some of them interrupted in their sleep.
 *
 * What a section counts is plain, so two sections at a time are a race. A wake-up that is lost is a deadlock.
 */
#ifndef SECTION_SUITES_H
#define SECTION_SUITES_H

template <typename suite, unsigned threads> struct section_suite : rl::test_suite<suite, threads> {
    static const unsigned bound = 2;
    section_lock lock;
    rl::var<int> sections;
    static suite *running;

    void begin(int signals = 0, int raising = 0, void (*handler)(void) = NULL) {
        model_begin_signals(signals, raising, handler);
        memset((void *)&lock, 0, sizeof lock);
        mt_load_relaxed_uptr(&lock.guard.word);
        mt_load_relaxed_i64(&lock.owner);
        sections($) = 0;
        running = (suite *)this;
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
        SECTION(unlock)(&lock);
        return r;
    }

    void end(int expected) {
        RL_ASSERT(sections($) == expected);
        RL_ASSERT(mt_load_relaxed_i64(&lock.owner) == 0);
        RL_ASSERT(lock.contenders == 0);
        RL_ASSERT(lock.waiters.n == 0);
        RL_ASSERT(model_end_memory() == 0);
    }
};

template <typename suite, unsigned threads> suite *section_suite<suite, threads>::running;

/* Three threads, one of them twice: nobody sleeps for ever. */
struct section_three : section_suite<section_three, 3> {
    void before() { begin(); }
    void thread(unsigned index) {
        for (unsigned i = 0; i < (index ? 1u : 2u); i++) RL_ASSERT(once() == MT_OK);
    }
    void after() { end(4); }
};

/* A signal ends the sleep of one thread, at any moment, and its handler raises: another one is woken in its place. */
struct section_raised : section_suite<section_raised, 3> {
    rl::var<int> raised;
    void before() {
        begin(1, 1);
        raised($) = 0;
    }
    void thread(unsigned) {
        if (once() == MT_INTERRUPTED) raised($) = 1;
    }
    void after() { end(3 - raised($)); }
};

/* A signal ends the sleep of one thread, and its handler takes the lock, too: a thread that sleeps twice would be woken
 * for the sleep that cannot end first. */
struct section_handler : section_suite<section_handler, 3> {
    rl::var<int> handled;
    void before() {
        begin(1, 0, [] { running->handle(); });
        handled($) = 0;
    }
    void handle() {
        RL_ASSERT(once() == MT_OK);
        handled($) = 1;
    }
    void thread(unsigned) { RL_ASSERT(once() == MT_OK); }
    void after() { end(3 + handled($)); }
};

#endif
