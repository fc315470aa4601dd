/* The kernels in the model checker: every schedule of a few threads within a bound, under the C11 memory model.
 *
 *     model [-v] [-b BOUND] [NAME...]
 *     model -l                           the names
 *
 * Each suite says what must hold; the checker adds: no deadlock (a wake-up that is lost is one), no data race on the
 * items' contents and the counters, no access to freed memory, no leak. "Bound" is how often a thread is preempted that
 * could have gone on (switches at a wait are free, and time-outs may come at any moment); within it the search is
 * exhaustive.
 */
#include "platform.h"

#include "../kernels.h"

#include "epoch_suites.h"

enum { DETACHED = 0, ATTACHED = 1 };
static const int64_t FOREVER = -1, SOMETIME = 1000000000; /* timeouts in ns */

/* What an item points to: its putter writes it, its getter reads it, nothing but the queue orders the two. */
struct cell {
    rl::var<int> value;
    int seen;
};

template <typename suite, unsigned threads> struct queue_suite : rl::test_suite<suite, threads> {
    static const unsigned bound = 2;
    mq_queue *q;
    mq_subqueue *a, *b;
    cell *cells;
    static const int ncells = 32;
    struct cell_block {
        cell cells[ncells];
    };

    void begin(int64_t maxsize_a, int64_t maxsize_b = 0, int priority_b = 0, uint32_t selection = MT_ROUND_ROBIN) {
        model_now = 1;
        model_begin_signals(0, 0);
        memset(&native_registry, 0, sizeof native_registry);
        cells = model_variable<cell_block>()->cells;
        for (int i = 0; i < ncells; i++) cells[i].seen = 0;
        q = MQ_LIFE(new_queue)(0, 0);
        q->selection = selection;
        q->ready.oldest = selection == MT_OLDEST;
        a = MQN(add_subqueue)(q, 0, maxsize_a, 1);
        b = MQN(add_subqueue)(q, priority_b, maxsize_b, 1);
        touch(a);
        touch(b);
        mt_load_relaxed_i64(&q->clock);
        mt_load_relaxed_uptr(&q->spare);
    }

    /* Make relacy's variables now, in the thread that comes before all others. */
    static void touch(mq_subqueue *s) {
        mt_load_relaxed_i64(&s->tail_seq);
        mt_load_relaxed_i64(&s->head_seq);
        mt_load_relaxed_u32(&s->not_full_waiting);
        mt_load_relaxed_uptr(&s->put_lock.word);
    }

    static void dropped(uintptr_t item, void *) { ((cell *)item)->seen++; }

    /* Everything that was put came out once. */
    void end(int put) {
        MQN(destroy_queue)(q, dropped, NULL);
        int seen = 0;
        for (int i = 0; i < ncells; i++) {
            RL_ASSERT(cells[i].seen <= 1);
            seen += cells[i].seen;
        }
        RL_ASSERT(seen == put);
        RL_ASSERT(model_end_memory() == 0);
    }

    uintptr_t item(int i) {
        cells[i].value($) = i;
        return (uintptr_t)&cells[i];
    }

    int put(mq_subqueue *s, int i, int64_t timeout = FOREVER) { return MQN(put_within)(s, item(i), timeout); }

    int put_many(mq_subqueue *s, int from, int n, int64_t timeout = FOREVER) {
        uintptr_t items[ncells];
        for (int i = 0; i < n; i++) items[i] = item(from + i);
        return MQN(put_run_within)(s, items, n, timeout, NULL);
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
};

/* ----------------------------------------------------------------------------------------------------------- lock.h */
/* Three threads, two of them twice: mutual exclusion, hand-over of what the holder wrote, and nobody sleeps for
 * ever. */
struct lock_three : rl::test_suite<lock_three, 3> {
    static const unsigned bound = 3;
    mt_lock lock;
    rl::var<int> counter;

    void before() {
        memset(&lock, 0, sizeof lock);
        mt_load_relaxed_uptr(&lock.word);
        counter($) = 0;
    }
    void thread(unsigned index) {
        for (unsigned i = 0; i < (index ? 1u : 2u); i++) {
            if (!mt_lock_try(&lock)) LOCK(lock_slow)(&lock, DETACHED);
            counter($) = counter($) + 1;
            mt_lock_node *n = mt_unlock(&lock);
            if (n != NULL) LOCK(post_lock_node)(n);
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
struct two_tails : queue_suite<two_tails, 3> {
    void before() { begin(0); }
    void thread(unsigned index) {
        if (index < 2) {
            RL_ASSERT(put(index ? b : a, index) == MT_OK);
        } else {
            int first = get(), second = get();
            RL_ASSERT(first + second == 1);
        }
    }
    void after() { end(2); }
};

/* The tail was got empty before and may still be listed; putter and getter meet while it is forgotten and learned
 * again. */
struct empty_again : queue_suite<empty_again, 2> {
    static const unsigned bound = 3;
    void before() {
        begin(0);
        put(a, 0);
        put(b, 1);
        get();
    }
    void thread(unsigned index) {
        if (index == 0) {
            RL_ASSERT(put(a, 2) == MT_OK);
            RL_ASSERT(put(b, 3) == MT_OK);
        } else {
            for (int i = 0; i < 3; i++) RL_ASSERT(get() >= 1);
        }
    }
    void after() { end(4); }
};

/* The same with runs of items. */
struct empty_again_many : queue_suite<empty_again_many, 2> {
    static const unsigned bound = 3;
    void before() {
        begin(0);
        put(a, 0);
        put(b, 1);
        get();
    }
    void thread(unsigned index) {
        if (index == 0) {
            RL_ASSERT(put_many(a, 2, 2) == MT_OK);
            RL_ASSERT(put_many(b, 4, 1) == MT_OK);
        } else {
            for (int i = 0; i < 4; i++) RL_ASSERT(get() >= 1);
        }
    }
    void after() { end(5); }
};

/* Two getters asleep, two items in one put: the first who wakes sends the second. */
struct propagated_to_getters : queue_suite<propagated_to_getters, 3> {
    void before() { begin(0); }
    void thread(unsigned index) {
        if (index == 0) {
            RL_ASSERT(put_many(a, 0, 2) == MT_OK);
        } else {
            RL_ASSERT(get() >= 0);
        }
    }
    void after() { end(2); }
};

/* Hidden while it gets its items, shown afterwards: both getters must come to know. */
struct shown : queue_suite<shown, 3> {
    static const unsigned bound = 1;
    void before() {
        begin(0);
        MQ_CHANGES(enable_subqueue)(a->mq, a, 0, 0);
    }
    void thread(unsigned index) {
        if (index == 0) {
            RL_ASSERT(put(a, 0) == MT_OK);
            MQ_CHANGES(enable_subqueue)(a->mq, a, 1, 0);
            RL_ASSERT(put(a, 1) == MT_OK);
        } else {
            RL_ASSERT(get() >= 0);
        }
    }
    void after() { end(2); }
};

/* One putter puts to two tails, one after the other; who finds the second item and then nothing has missed the
 * first. */
struct empty_is_true : queue_suite<empty_is_true, 2> {
    static const unsigned bound = 3;
    void before() { begin(0); }
    void thread(unsigned index) {
        if (index == 0) {
            RL_ASSERT(put(a, 0) == MT_OK);
            RL_ASSERT(put(b, 1) == MT_OK);
        } else {
            int first = get(0), second = get(0);
            RL_ASSERT(first != 1 || second == 0);
            RL_ASSERT(!(first < 0 && second == 1) || get(0) == 0);
        }
    }
    void after() { end(2); }
};

/* ----------------------------------------------------------------------------------- waits that end without an item */
/* A getter that may give up, and one that may not. Who gets an item puts another, so there is always one for the
 * second. */
template <typename suite> struct giving_up : queue_suite<suite, 3> {
    int more;
    void before() {
        this->begin(0);
        model_begin_signals(suite::interrupts, suite::interrupts);
        more = 0;
    }
    void thread(unsigned index) {
        if (index == 0) {
            RL_ASSERT(this->put(this->a, 0) == MT_OK);
        } else if (index == 1) {
            int r = wait_for_items(this->q, suite::interrupts ? FOREVER : model_now + SOMETIME, ATTACHED);
            RL_ASSERT(r == MT_OK || r == (suite::interrupts ? MT_INTERRUPTED : MT_TIMEOUT));
            if (r == MT_OK && this->get(0) >= 0) another(1);
        } else {
            RL_ASSERT(this->get() >= 0);
            another(2);
        }
    }
    void another(int i) {
        more++;
        RL_ASSERT(this->put(this->a, i) == MT_OK);
    }
    void after() { this->end(1 + more); }
};

struct timed_getter : giving_up<timed_getter> {
    static const int interrupts = 0;
};
struct interrupted_getter : giving_up<interrupted_getter> {
    static const int interrupts = 1;
};

/* ---------------------------------------------------------------------------------------------------- bounded tails */
/* A full tail, two putters that wait, a getter that takes one by one: who frees a place sees who waits for it. */
struct room : queue_suite<room, 2> {
    void before() {
        begin(1);
        put(a, 0);
    }
    void thread(unsigned index) {
        if (index == 0) {
            RL_ASSERT(put(a, 1) == MT_OK);
            RL_ASSERT(put(a, 2) == MT_OK);
        } else {
            for (int i = 0; i < 3; i++) RL_ASSERT(get() == i);
        }
    }
    void after() { end(3); }
};

/* Two places come free at once, two putters wait: the first who wakes sends the second. */
struct propagated_to_putters : queue_suite<propagated_to_putters, 3> {
    void before() {
        begin(2);
        put_many(a, 0, 2);
    }
    void thread(unsigned index) {
        if (index == 0) {
            RL_ASSERT(get_many(2) >= 2);
        } else {
            RL_ASSERT(put(a, 1 + (int)index) == MT_OK);
        }
    }
    void after() { end(4); }
};

/* A putter that may give up beside one that may not. Who has put takes one out, so there is always room for the
 * second. */
template <typename suite> struct giving_up_room : queue_suite<suite, 3> {
    int more;
    void before() {
        this->begin(1);
        this->put(this->a, 0);
        model_begin_signals(suite::interrupts, suite::interrupts);
        more = 0;
    }
    void thread(unsigned index) {
        if (index == 0) {
            RL_ASSERT(this->get() >= 0);
        } else if (index == 1) {
            int r = wait_for_room(this->a, suite::interrupts ? FOREVER : model_now + SOMETIME, ATTACHED);
            RL_ASSERT(r == MT_OK || r == (suite::interrupts ? MT_INTERRUPTED : MT_TIMEOUT));
            if (r == MT_OK && this->put(this->a, 1, 0) == MT_OK) out_again();
        } else {
            RL_ASSERT(this->put(this->a, 2) == MT_OK);
            out_again();
        }
    }
    void out_again() {
        more++;
        RL_ASSERT(this->get() >= 0);
    }
    void after() { this->end(1 + more); }
};

struct timed_putter : giving_up_room<timed_putter> {
    static const int interrupts = 0;
};
struct interrupted_putter : giving_up_room<interrupted_putter> {
    static const int interrupts = 1;
};

/* Items have sizes. The room that comes free is for the item of size 2, whose putter may be interrupted, or for that of
 * size 1. */
struct interrupted_sized_putter : queue_suite<interrupted_sized_putter, 3> {
    int more;
    void before() {
        begin(2);
        a->sized = a->bounded = 1;
        put_sized(0, 2);
        model_begin_signals(1, 1);
        more = 0;
    }
    int put_sized(int i, int64_t size) { return MQ_PUT(put_until)(q, a, item(i), &size, 0, FOREVER, ATTACHED); }
    void thread(unsigned index) {
        if (index == 0) {
            RL_ASSERT(get() >= 0);
        } else if (index == 1) {
            int r = put_sized(1, 2);
            RL_ASSERT(r == MT_OK || r == MT_INTERRUPTED);
            if (r == MT_OK) out_again();
        } else {
            int r = put_sized(2, 1);
            if (r == MT_INTERRUPTED) r = put_sized(2, 1);
            RL_ASSERT(r == MT_OK);
            out_again();
        }
    }
    void out_again() {
        more++;
        RL_ASSERT(get() >= 0);
    }
    void after() { end(1 + more); }
};

/* ----------------------------------------------------------------------------------------------------------- chunks */
/* The first chunk (11 slots) is used up and the next one appended, while an iterator stands on the first. */
struct chunks : queue_suite<chunks, 3> {
    void before() {
        begin(0);
        put_many(a, 0, 11);
    }
    void thread(unsigned index) {
        if (index == 0) {
            RL_ASSERT(put(a, 11) == MT_OK);
        } else if (index == 1) {
            int got = get_many(11);
            RL_ASSERT(got == 11);
            RL_ASSERT(get() == 11);
        } else {
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
    }
    void after() { end(12); }
};

/* A clear that meets a put and a get: each item goes one way. */
struct cleared : queue_suite<cleared, 3> {
    void before() {
        begin(0);
        put_many(a, 0, 2);
    }
    void thread(unsigned index) {
        if (index == 0) {
            RL_ASSERT(put(a, 2) == MT_OK);
        } else if (index == 1) {
            MQ_CLEAR(drop_items)(q, a, dropped, NULL, 0);
        } else {
            get(0);
            get(0);
        }
    }
    void after() { end(3); }
};

/* ---------------------------------------------------------------------------------------------------------- the end */
/* Shutdown, a put, a waiting getter: the getter has the item or the news, nothing is lost. */
struct shut : queue_suite<shut, 3> {
    int accepted;
    void before() {
        begin(0);
        accepted = 0;
    }
    void thread(unsigned index) {
        if (index == 0) {
            int r = put(a, 0);
            RL_ASSERT(r == MT_OK || r == MT_SHUTDOWN);
            accepted = r == MT_OK;
        } else if (index == 1) {
            MQ_CHANGES(shut_queue)(q, 0, 0);
        } else {
            int got = get();
            if (got >= 0) got = get();
            RL_ASSERT(got == -1 - MT_SHUTDOWN);
        }
    }
    void after() { end(accepted); }
};

/* A tail is removed while a putter waits for room in it and a getter takes from it. */
struct removed : queue_suite<removed, 3> {
    int accepted;
    void before() {
        begin(1);
        put(a, 0);
        accepted = 0;
    }
    void thread(unsigned index) {
        if (index == 0) {
            int r = put(a, 1);
            RL_ASSERT(r == MT_OK || r == MT_SHUTDOWN);
            accepted = r == MT_OK;
        } else if (index == 1) {
            RL_ASSERT(MQN(remove_subqueue)(q, a, dropped, NULL) == MT_OK);
        } else {
            get(0);
        }
    }
    void after() { end(1 + accepted); }
};

#include "waiting_suites.h"
#include "section_suites.h"
#include "ready_suites.h"
#include "entry_suites.h"
#include "link_suites.h"
#include "pool_suites.h"
#include "pubsub_suites.h"
#include "pubsub_more_suites.h"
#include "pubsub_waiting_suites.h"

/* ------------------------------------------------------------------------------------------------------------- main */
static bool verbose, listing;
static unsigned bound; /* 0: each suite's own */
static char **names;
static int bad;

static bool wanted(const char *name) {
    if (*names == NULL) return true;
    for (char **n = names; *n; n++)
        if (strcmp(*n, name) == 0) return true;
    return false;
}

struct no_output : std::streambuf {
    int overflow(int c) { return c; }
};

/* The suite that relacy runs, called through pointers. Relacy's search is a template of what it runs. With one class
 * for each number of threads the compiler makes three of these searches; with one for each suite it takes minutes. */
static struct {
    void *memory; /* of the suite, which is made anew for each schedule */
    void (*make)(void *), (*destroy)(void *), (*before)(void *), (*thread)(void *, unsigned), (*after)(void *);
} run;

template <typename suite> struct calls {
    static void make(void *memory) { new (memory) suite(); }
    static void destroy(void *memory) { ((suite *)memory)->~suite(); }
    static void before(void *memory) { ((suite *)memory)->before(); }
    static void thread(void *memory, unsigned index) { ((suite *)memory)->thread(index); }
    static void after(void *memory) { ((suite *)memory)->after(); }
};

template <unsigned threads> struct running_suite : rl::test_suite<running_suite<threads>, threads> {
    running_suite() { run.make(run.memory); }
    ~running_suite() { run.destroy(run.memory); }
    void before() { run.before(run.memory); }
    void thread(unsigned index) { run.thread(run.memory, index); }
    void after() { run.after(run.memory); }
};

template <typename suite> static void explore(const char *name) {
    typedef calls<suite> c;
    no_output nothing;
    std::ostream silence(&nothing);
    rl::test_params params;
    if (!wanted(name)) return;
    if (listing) {
        puts(name);
        return;
    }
    params.search_type = rl::sched_bound;
    params.context_bound = bound ? bound : suite::bound;
    params.iteration_count = 1000000000;
    params.execution_depth_limit = 5000;
    params.output_stream = verbose ? &std::cout : &silence;
    params.progress_stream = &silence;
    run = {(::malloc)(sizeof(suite)), c::make, c::destroy, c::before, c::thread, c::after};
    unsigned began = get_tick_count();
    bool good = rl::simulate<running_suite<suite::params::thread_count>>(params);
    printf("model: %-20s bound %u: %9llu schedules, %5.1f s%s%s\n", name, params.context_bound,
           (unsigned long long)params.stop_iteration, (get_tick_count() - began) / 1000.0, good ? "" : ": ",
           good ? "" : rl::test_result_str(params.test_result));
    fflush(stdout);
    (::free)(run.memory);
    bad += !good;
}

int main(int argc, char **argv) {
    int option;
    while ((option = getopt(argc, argv, "lvb:")) != -1) {
        if (option == 'l') listing = true;
        if (option == 'v') verbose = true;
        if (option == 'b') bound = (unsigned)atoi(optarg);
        if (option == '?') return 2;
    }
    names = argv + optind;
#define EXPLORE(suite) explore<suite>(#suite);
#include "suites.inc" /* of each suite above and in the headers: tools/native.py writes it */
    return bad != 0;
}
