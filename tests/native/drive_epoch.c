/* Native threads drive epoch.h: part of `make tsan` and `make asan`, and of the test suite.
 *
 *     drive_epoch [-s SEED] [-r ROUNDS] [-d DEADLINE_SECONDS] [SCENARIO...]
 *
 * What is reclaimed are the nodes of a stack, whose pop follows the pointer of a node that another thread may have popped: without
 * reclamation it reads freed memory, and mistakes a node that came back for the one it was. A destructor poisons its node
 * with plain writes, and readers read with plain reads, so a sanitizer sees every free that is not ordered after them.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1 /* pthread_timedjoin_np */
#endif

#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "manytail/epoch.h"

enum { MAX_THREADS = 16, ALIVE = 0x600d, DEAD = 0xdead };

static int64_t deadline_s = 60;
static uint64_t seed = 1;
static const char *scenario = "";

#define CHECK(what, ...)                                                                          \
    do {                                                                                          \
        if (!(what)) {                                                                            \
            fprintf(stderr, "drive_epoch: %s (seed %llu): ", scenario, (unsigned long long)seed); \
            fprintf(stderr, __VA_ARGS__);                                                         \
            fputc('\n', stderr);                                                                  \
            abort();                                                                              \
        }                                                                                         \
    } while (0)

/* --------------------------------------------------------------------------------------------------------- threads */
static __thread uint64_t random_state;
static pthread_t threads[MAX_THREADS];
static int nthreads;

static uint64_t random_below(uint64_t below) {
    uint64_t x = random_state ? random_state : (random_state = seed * UINT64_C(0x9E3779B97F4A7C15) | 1);
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    random_state = x;
    return (x >> 11) % below;
}

static void start(void *(*run)(void *), void *argument) {
    CHECK(pthread_create(&threads[nthreads++], NULL, run, argument) == 0, "cannot start a thread");
}

/* Join the threads from number `from` on. */
static void join_from(int from) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += deadline_s;
    while (nthreads > from)
        CHECK(pthread_timedjoin_np(threads[--nthreads], NULL, &until) == 0, "a thread does not end");
}

/* ----------------------------------------------------------------------------------------------------------- nodes */
typedef struct {
    mt_retired retired;
    mt_atomic_uptr next;
    int alive;
} node;

static mt_epoch domain;
static mt_atomic_uptr top;
static _Atomic int64_t made, freed; /* relaxed everywhere: they order nothing */

static node *new_node(void) {
    node *n = (node *)calloc(1, sizeof *n);
    CHECK(n != NULL, "out of memory");
    n->alive = ALIVE;
    atomic_fetch_add_explicit(&made, 1, memory_order_relaxed);
    return n;
}

static void free_node(mt_retired *retired) {
    node *n = (node *)retired;
    CHECK(n->alive == ALIVE, "a node is freed that is %x", n->alive);
    n->alive = DEAD;
    atomic_fetch_add_explicit(&freed, 1, memory_order_relaxed);
    free(n);
}

static int64_t kept(void) {
    return atomic_load_explicit(&made, memory_order_relaxed) - atomic_load_explicit(&freed, memory_order_relaxed);
}

static void unpin(mt_pin *p) { mt_retired_free(mt_epoch_unpin(&domain, p)); }

static void push(node *n) {
    uintptr_t first = mt_load_relaxed_uptr(&top);
    do {
        mt_store_relaxed_uptr(&n->next, first);
    } while (!mt_cas_release_uptr(&top, &first, (uintptr_t)n));
}

/* 1: a node was unlinked, and is retired. */
static int pop(mt_pin *p) {
    uintptr_t first = mt_load_acquire_uptr(&top);
    while (first != 0) {
        node *n = (node *)first;
        CHECK(n->alive == ALIVE, "a pinned reader meets a node that is %x", n->alive);
        mt_point();
        if (mt_cas_acq_rel_uptr(&top, &first, mt_load_relaxed_uptr(&n->next))) {
            mt_epoch_retire(p, &n->retired, free_node);
            return 1;
        }
    }
    return 0;
}

static void push_and_pop(void) {
    mt_pin *p = mt_epoch_pin(&domain);
    push(new_node());
    if (random_below(2)) mt_point();
    CHECK(pop(p), "the stack is empty though everybody pushes first");
    unpin(p);
}

/* Look at the whole stack under one pin. */
static void walk(void) {
    mt_pin *p = mt_epoch_pin(&domain);
    node *n = (node *)mt_load_acquire_uptr(&top);
    for (; n != NULL; n = (node *)mt_load_relaxed_uptr(&n->next)) {
        CHECK(n->alive == ALIVE, "a walker meets a node that is %x", n->alive);
        mt_point();
    }
    unpin(p);
}

static void begin(int64_t every) {
    mt_epoch_init(&domain, every);
    made = freed = 0;
    CHECK(mt_load_relaxed_uptr(&top) == 0, "the stack is not empty");
}

/* Everything is freed, without a wait: nobody is pinned. */
static void all_freed(void) {
    mt_retired_free(mt_epoch_drain(&domain));
    CHECK(kept() == 0, "%d of %d nodes are kept though nobody is pinned", (int)kept(), (int)made);
}

static void end(void) {
    all_freed();
    CHECK(mt_epoch_destroy(&domain) == NULL, "something was left");
}

/* -------------------------------------------------------------------------------------------------------- scenarios */
static void *mixed_thread(void *unused) {
    int i;
    (void)unused;
    random_state = (uint64_t)(uintptr_t)&i ^ seed;
    for (i = 0; i < 400; i++) {
        switch (random_below(8)) {
        case 0:
            walk();
            break;
        case 1:
            mt_retired_free(mt_epoch_drain(&domain));
            break;
        default:
            push_and_pop();
            break;
        }
    }
    return NULL;
}

/* Pushes, pops, walks and drains, with collections at every, or every few, retires. */
static void mixed(void) {
    int i, n = 2 + (int)random_below(4);
    begin(1 + (int64_t)random_below(8));
    for (i = 0; i < n; i++) start(mixed_thread, NULL);
    join_from(0);
    end();
}

/* One thread alone, pinned for a moment at a time: what is kept is bounded. */
static void bounded(void) {
    int64_t every = 1 + (int64_t)random_below(100);
    int i;
    begin(every);
    for (i = 0; i < 2000; i++) {
        push_and_pop();
        CHECK(kept() < every, "%d nodes are kept", (int)kept());
    }
    end();
}

/* Pins of one thread in each other, ended in either order: the nodes live until the last of them. */
static void nested(void) {
    enum { DEPTH = 3 * MT_EPOCH_FIRST };
    mt_pin *pins[DEPTH], *p;
    int i, order = (int)random_below(2);
    begin(1);
    for (i = 0; i < DEPTH; i++) pins[i] = mt_epoch_pin(&domain);
    CHECK(mt_epoch_records(&domain) == 4 * MT_EPOCH_FIRST, "%d records", (int)mt_epoch_records(&domain));
    p = mt_epoch_pin(&domain);
    push(new_node());
    pop(p);
    unpin(p);
    for (i = 0; i < DEPTH; i++) {
        mt_retired_free(mt_epoch_drain(&domain));
        CHECK(kept() == 1, "freed under %d pins", DEPTH - i);
        unpin(pins[order ? i : DEPTH - 1 - i]);
    }
    CHECK(mt_epoch_records(&domain) == 4 * MT_EPOCH_FIRST, "a free record was not used again");
    end();
}

static sem_t stalled, go_on;

static void *staller(void *unused) {
    mt_pin *p = mt_epoch_pin(&domain);
    (void)unused;
    sem_post(&stalled);
    while (sem_wait(&go_on)) {
    }
    unpin(p);
    return NULL;
}

static void start_staller(void) {
    sem_init(&stalled, 0, 0);
    sem_init(&go_on, 0, 0);
    start(staller, NULL);
    while (sem_wait(&stalled)) {
    }
}

static void join_staller(void) {
    sem_post(&go_on);
    join_from(0);
    sem_destroy(&stalled);
    sem_destroy(&go_on);
}

static void *retirer(void *count) {
    int64_t i;
    for (i = 0; i < *(int64_t *)count; i++) push_and_pop();
    return NULL;
}

/* A reader stalls under its pin: nothing retired from then on is freed. When it goes on, its unpin frees all of it, though the threads
 * that retired it are gone. */
static void stall(void) {
    int64_t count = 1000 + (int64_t)random_below(3000), before;
    begin(16);
    retirer(&count);
    all_freed();
    start_staller();
    before = made;
    start(retirer, &count);
    start(retirer, &count);
    join_from(1);
    mt_retired_free(mt_epoch_drain(&domain));
    CHECK(made - before == 2 * count && kept() == 2 * count, "%d of %d nodes are kept", (int)kept(), (int)(2 * count));
    join_staller();
    CHECK(kept() == 0, "%d nodes are kept after the reader went on", (int)kept());
    end();
}

enum { CHURNED = 10000 };

static void *visitor(void *unused) {
    int i;
    (void)unused;
    for (i = 0; i < 3; i++) push_and_pop();
    return NULL;
}

static void visits(int n) {
    int i;
    while (n > 0) {
        for (i = 0; i < MAX_THREADS; i++) start(visitor, NULL);
        join_from(0);
        n -= MAX_THREADS;
    }
}

/* Threads come and go: neither records nor nodes are left of them. */
static void churn(void) {
    int64_t records;
    int i;
    mt_pin *pins[MAX_THREADS];
    begin(64);
    for (i = 0; i < MAX_THREADS; i++) pins[i] = mt_epoch_pin(&domain);
    for (i = 0; i < MAX_THREADS; i++) unpin(pins[i]);
    records = mt_epoch_records(&domain);
    visits(CHURNED);
    CHECK(made >= 3 * CHURNED, "%d nodes were made", (int)made);
    CHECK(mt_epoch_records(&domain) == records, "%d records, %d before", (int)mt_epoch_records(&domain), (int)records);
    CHECK(kept() < 3 * 64 * records, "%d nodes are kept", (int)kept());
    end();
}

/* ------------------------------------------------------------------------------------------------------------ fork */
enum { CHILDS = 200 };
static _Atomic int forking;
static node childs[CHILDS]; /* the other threads may have been inside malloc, so the child has its nodes beforehand */
static int childs_freed;

static void free_childs(mt_retired *retired) {
    node *n = (node *)retired;
    CHECK(n >= childs && n < childs + CHILDS && n->alive == ALIVE, "the child frees a node of its parent");
    n->alive = DEAD;
    childs_freed++;
}

static void in_the_child(void) {
    int64_t before = freed;
    int i;
    mt_epoch_after_fork(&domain, 0);
    for (i = 0; i < CHILDS; i++) {
        mt_pin *p = mt_epoch_pin(&domain);
        childs[i].alive = ALIVE;
        mt_epoch_retire(p, &childs[i].retired, free_childs);
        unpin(p);
    }
    mt_retired_free(mt_epoch_drain(&domain));
    CHECK(childs_freed == CHILDS, "%d nodes are freed in the child", childs_freed);
    CHECK(freed == before, "the child frees %d nodes of its parent", (int)(freed - before));
    _exit(0);
}

static void *until_forked(void *unused) {
    (void)unused;
    random_state = (uint64_t)(uintptr_t)&unused ^ seed;
    while (atomic_load_explicit(&forking, memory_order_relaxed)) push_and_pop();
    return NULL;
}

static void fork_and(void (*run)(void)) {
    int status = 0;
    pid_t pid = fork();
    CHECK(pid >= 0, "cannot fork");
    if (pid == 0) {
        alarm((unsigned)deadline_s);
        run();
    }
    CHECK(waitpid(pid, &status, 0) == pid && status == 0, "the child ended with %x", status);
}

/* Fork while other threads are in the middle of everything: the child uses the domain, and frees nothing of theirs. */
static void fork_running(void) {
    int i;
    begin(1 + (int64_t)random_below(8));
    forking = 1;
    for (i = 0; i < 2; i++) start(until_forked, NULL);
    for (i = 0; i < 5; i++) fork_and(in_the_child);
    forking = 0;
    join_from(0);
    end();
}

static void child_of_quiet(void) {
    mt_epoch_after_fork(&domain, 1);
    end();
    _exit(0);
}

/* Fork while nobody is in the middle of anything: child and parent each free all of the garbage, once. A pin of a thread that does not
 * exist in the child does not count there. */
static void fork_quiet(void) {
    int64_t count = 100;
    int i;
    begin(1000);
    retirer(&count);
    CHECK(kept() == count, "%d nodes are kept", (int)kept());
    fork_and(child_of_quiet);
    all_freed();
    start_staller();
    for (i = 0; i < 3; i++) retirer(&count);
    fork_and(child_of_quiet);
    join_staller();
    end();
}

/* ------------------------------------------------------------------------------------------------------------- main */
static const struct {
    const char *name;
    void (*run)(void);
    int once; /* not in every round */
} scenarios[] = {
    {"mixed", mixed, 0}, {"bounded", bounded, 0},           {"nested", nested, 0},         {"stall", stall, 0},
    {"churn", churn, 1}, {"fork_running", fork_running, 0}, {"fork_quiet", fork_quiet, 0},
};

static int wanted(const char *name, char **names) {
    if (*names == NULL) return 1;
    for (; *names; names++)
        if (strcmp(*names, name) == 0) return 1;
    return 0;
}

int main(int argc, char **argv) {
    uint64_t first = 1, rounds = 40, i;
    size_t k;
    int option;
    while ((option = getopt(argc, argv, "s:r:d:")) != -1) {
        uint64_t value = strtoull(optarg ? optarg : "0", NULL, 10);
        if (option == 's') first = value;
        if (option == 'r') rounds = value;
        if (option == 'd') deadline_s = (int64_t)value;
        if (option == '?') return 2;
    }
    for (i = 0; i < rounds; i++) {
        seed = first + i;
        for (k = 0; k < sizeof scenarios / sizeof *scenarios; k++) {
            if (!wanted(scenarios[k].name, argv + optind) || (scenarios[k].once && i)) continue;
            scenario = scenarios[k].name;
            alarm(4 * (unsigned)deadline_s); /* the main thread itself may be what hangs */
            random_state = seed * UINT64_C(0x9E3779B97F4A7C15) + k + 1;
            scenarios[k].run();
        }
    }
    printf("drive_epoch: %llu rounds from seed %llu, no violation\n", (unsigned long long)rounds,
           (unsigned long long)first);
    return 0;
}
