/* The kernels in the model checker: every schedule of a few threads within a bound, under the C11 memory model.
 *
 *     model [-v] [-b BOUND] [NAME...]
 *     model -l                           the names
 *
 * Each suite says what must hold; the checker adds: no deadlock (a wake-up that is lost is one), no data race on the
 * items' contents and the counters, no access to freed memory, no leak. "Bound" is how often a thread is preempted that
 * could have gone on (switches at a wait are free, and time-outs may come at any moment); within it the search is
 * exhaustive.
 *
 *     struct NAME : suite<WHAT_THEY_SHARE, THREADS, BOUND>
 */
#include "platform.h"

#include "../kernels.h"

enum { DETACHED = 0, ATTACHED = 1 };
static const int64_t FOREVER = -1, SOMETIME = 1000000000; /* timeouts in ns */

#define OK(call) RL_ASSERT((call) == MT_OK)

/* What the checker runs, made anew for each schedule. A suite says what each of its threads does, or what thread number
 * `index` does where they do much the same. */
struct run_by_checker {
    virtual ~run_by_checker() {}
    virtual void before() = 0;
    virtual void one() {}
    virtual void two() {}
    virtual void three() {}
    virtual void thread(unsigned index) { index == 0 ? one() : index == 1 ? two() : three(); }
    virtual void after() = 0;
};

template <typename shared, unsigned nthreads, unsigned default_bound = 2> struct suite : shared {
    static const unsigned threads = nthreads, bound = default_bound;
};

static void take_lock(mt_lock *lock) {
    if (!mt_lock_try(lock)) LOCK(lock_slow)(lock, DETACHED);
}

static void give_lock(mt_lock *lock) {
    mt_lock_node *n = mt_unlock(lock);
    if (n != NULL) LOCK(post_lock_node)(n);
}

#include "epoch_suites.h"
#include "queue_suites.h"
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

/* The suite that relacy runs. Relacy's search is a template of what it runs: with one class for each number of threads
 * the compiler makes three of these searches; with one for each suite it takes minutes. */
static void *suite_memory;
static run_by_checker *(*new_suite)();
template <typename suite> static run_by_checker *make_suite() { return new (suite_memory) suite(); }

template <unsigned threads> struct running_suite : rl::test_suite<running_suite<threads>, threads> {
    run_by_checker *it;
    running_suite() : it(new_suite()) {}
    ~running_suite() { it->~run_by_checker(); }
    void before() { it->before(); }
    void thread(unsigned index) { it->thread(index); }
    void after() { it->after(); }
};

template <typename suite> static void explore(const char *name) {
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
    suite_memory = (::malloc)(sizeof(suite));
    new_suite = make_suite<suite>;
    unsigned began = get_tick_count();
    bool good = rl::simulate<running_suite<suite::threads>>(params);
    printf("model: %-20s bound %u: %9llu schedules, %5.1f s%s%s\n", name, params.context_bound,
           (unsigned long long)params.stop_iteration, (get_tick_count() - began) / 1000.0, good ? "" : ": ",
           good ? "" : rl::test_result_str(params.test_result));
    fflush(stdout);
    (::free)(suite_memory);
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
