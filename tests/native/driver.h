/* What the drivers share: their options, threads that draw random numbers of their own, deadlines, and how a failed
 * check is told.
 *
 *     DRIVER [-s SEED] [-r ROUNDS] [-d DEADLINE_SECONDS] [SCENARIO...]
 *
 * A round plays each scenario, or each one named, with random numbers made from the round's seed; so a failure is told
 * with the seed that leads there again, as far as threads let it. A driver defines DRIVER, its name, and ends with
 * DRIVER_MAIN().
 */
#ifndef NATIVE_DRIVER_H
#define NATIVE_DRIVER_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1 /* pthread_timedjoin_np */
#endif

#include <pthread.h>
#include <signal.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#pragma GCC diagnostic ignored "-Wunused-parameter" /* what a thread does that needs no number of its own */

static struct {
    uint64_t seed; /* of this round */
    const char *scenario;
    unsigned deadline_s; /* ends a hang */
} driver = {1, "", 60};

static inline int64_t deadline_us(void) { return (int64_t)driver.deadline_s * 1000000; }

static inline void fail(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fprintf(stderr, DRIVER ": %s (seed %llu): ", driver.scenario, (unsigned long long)driver.seed);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    abort();
}

#define CHECK(what, ...)                \
    do {                                \
        if (!(what)) fail(__VA_ARGS__); \
    } while (0)

/* --------------------------------------------------------------------------------------------------------- threads */
/* The state of one thread of the driver. */
typedef struct {
    uint64_t random;
    uint32_t interrupts; /* a wait of an attached call is interrupted 1 time in so many; 0: never */
} native_thread;

static __thread native_thread native_self;

static inline uint64_t native_random(uint64_t below) {
    uint64_t x = native_self.random;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    native_self.random = x;
    return (x >> 11) % below;
}

/* A timeout of the public API: for ever, none, or so short that it often ends before anything comes. */
static inline int64_t some_timeout(void) {
    switch (native_random(3)) {
    case 0:
        return 0;
    case 1:
        return 1 + (int64_t)native_random(60000);
    default:
        return -1;
    }
}

static inline struct timespec native_time_in(int64_t ns) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    ns += t.tv_nsec;
    t.tv_sec += (time_t)(ns / 1000000000);
    t.tv_nsec = (long)(ns % 1000000000);
    return t;
}

enum { MAX_THREADS = 16 };

typedef struct {
    pthread_t id;
    native_thread self;
    int index;
    void (*run)(int index);
} driven;

static driven threads[MAX_THREADS];
static int nthreads;

static void *driven_main(void *arg) {
    driven *t = (driven *)arg;
    native_self = t->self;
    t->run(t->index);
    return NULL;
}

static inline void start_interrupted(void (*run)(int), int index, uint32_t interrupts) {
    driven *t = &threads[nthreads++];
    CHECK(nthreads <= MAX_THREADS, "too many threads");
    t->self.random = native_random(UINT64_MAX) | 1;
    t->self.interrupts = interrupts;
    t->index = index;
    t->run = run;
    CHECK(pthread_create(&t->id, NULL, driven_main, t) == 0, "cannot start a thread");
}

static inline void start(void (*run)(int), int n) {
    for (int i = 0; i < n; i++) start_interrupted(run, i, 0);
}

/* Join the threads from number `from` on. */
static inline void join_from(int from) {
    while (nthreads > from) {
        struct timespec until = native_time_in(deadline_us() * 1000);
        CHECK(pthread_timedjoin_np(threads[--nthreads].id, NULL, &until) == 0, "a thread does not end");
    }
}

/* Somebody who is run by a fork, and has to end with status 0. */
static inline void fork_and(void (*run)(void)) {
    int status = 0;
    pid_t pid = fork();
    CHECK(pid >= 0, "cannot fork");
    if (pid == 0) {
        alarm(driver.deadline_s);
        run();
        _exit(0);
    }
    CHECK(waitpid(pid, &status, 0) == pid && status == 0, "the child ended with %x", status);
}

/* ------------------------------------------------------------------------------------------------------------ main */
typedef struct {
    const char *name;
    void (*run)(void);
    int once; /* not in every round */
} scenario;

static inline int wanted(const char *name, char **names) {
    if (*names == NULL) return 1;
    for (; *names; names++)
        if (strcmp(*names, name) == 0) return 1;
    return 0;
}

/* The main thread itself may be what hangs, inside what is tested. */
static void out_of_time(int unused) {
    static const char said[] = DRIVER ": a scenario does not end\n";
    _exit(write(2, said, sizeof said - 1) < 0 ? 3 : 1);
}

static inline int driver_main(int argc, char **argv, const scenario *scenarios, size_t n, uint64_t rounds) {
    uint64_t first = 1;
    int option;
    while ((option = getopt(argc, argv, "s:r:d:")) != -1) {
        uint64_t value = strtoull(optarg ? optarg : "0", NULL, 10);
        if (option == 's') first = value;
        if (option == 'r') rounds = value;
        if (option == 'd') driver.deadline_s = (unsigned)value;
        if (option == '?') return 2;
    }
    signal(SIGALRM, out_of_time);
    for (uint64_t i = 0; i < rounds; i++) {
        driver.seed = first + i;
        for (size_t k = 0; k < n; k++) {
            if (!wanted(scenarios[k].name, argv + optind) || (scenarios[k].once && i)) continue;
            driver.scenario = scenarios[k].name;
            alarm(4 * driver.deadline_s);
            native_self.random = driver.seed * UINT64_C(0x9E3779B97F4A7C15) + k + 1;
            scenarios[k].run();
        }
    }
    printf(DRIVER ": %llu rounds from seed %llu, no violation\n", (unsigned long long)rounds,
           (unsigned long long)first);
    return 0;
}

/* The main program: the rounds unless told, and the scenarios. */
#define DRIVER_MAIN(rounds, ...)                                                                   \
    int main(int argc, char **argv) {                                                              \
        static const scenario scenarios[] = {__VA_ARGS__};                                         \
        return driver_main(argc, argv, scenarios, sizeof scenarios / sizeof *scenarios, (rounds)); \
    }

#endif
