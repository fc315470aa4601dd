/* Native threads drive epoch.h: part of `make tsan` and `make asan`, and of the test suite.
 *
 * What is reclaimed are the nodes of a stack, whose pop follows the pointer of a node that another thread may have
 * popped: without reclamation it reads freed memory, and mistakes a node that came back for the one it was. A
 * destructor poisons its node with plain writes, and readers read with plain reads, so a sanitizer sees every free that
 * is not ordered after them.
 */
#define DRIVER "drive_epoch"
#include "driver.h"

#include "manytail/epoch.h"

enum { ALIVE = 0x600d, DEAD = 0xdead };

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
    if (native_random(2)) mt_point();
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
static void mixed_thread(int unused) {
    for (int i = 0; i < 400; i++) {
        switch (native_random(8)) {
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
}

/* Pushes, pops, walks and drains, with collections at every, or every few, retires. */
static void mixed(void) {
    begin(1 + (int64_t)native_random(8));
    start(mixed_thread, 2 + (int)native_random(4));
    join_from(0);
    end();
}

/* One thread alone, pinned for a moment at a time: what is kept is bounded. */
static void bounded(void) {
    int64_t every = 1 + (int64_t)native_random(100);
    begin(every);
    for (int i = 0; i < 2000; i++) {
        push_and_pop();
        CHECK(kept() < every, "%d nodes are kept", (int)kept());
    }
    end();
}

/* Pins of one thread in each other, ended in either order: the nodes live until the last of them. */
static void nested(void) {
    enum { DEPTH = 3 * MT_EPOCH_FIRST };
    mt_pin *pins[DEPTH], *p;
    int i, order = (int)native_random(2);
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

static void staller(int unused) {
    mt_pin *p = mt_epoch_pin(&domain);
    sem_post(&stalled);
    while (sem_wait(&go_on)) {
    }
    unpin(p);
}

static void start_staller(void) {
    sem_init(&stalled, 0, 0);
    sem_init(&go_on, 0, 0);
    start(staller, 1);
    while (sem_wait(&stalled)) {
    }
}

static void join_staller(void) {
    sem_post(&go_on);
    join_from(0);
    sem_destroy(&stalled);
    sem_destroy(&go_on);
}

static void push_and_pop_often(int n) {
    while (n--) push_and_pop();
}

static int each_retires;

static void retirer(int unused) { push_and_pop_often(each_retires); }

/* A reader stalls under its pin: nothing retired from then on is freed. When it goes on, its unpin frees all of it,
 * though the threads that retired it are gone. */
static void stall(void) {
    int count = 1000 + (int)native_random(3000);
    int64_t before;
    begin(16);
    push_and_pop_often(count);
    all_freed();
    start_staller();
    before = made;
    each_retires = count;
    start(retirer, 2);
    join_from(1);
    mt_retired_free(mt_epoch_drain(&domain));
    CHECK(made - before == 2 * count && kept() == 2 * count, "%d of %d nodes are kept", (int)kept(), 2 * count);
    join_staller();
    CHECK(kept() == 0, "%d nodes are kept after the reader went on", (int)kept());
    end();
}

enum { CHURNED = 10000 };

static void visitor(int unused) { push_and_pop_often(3); }

static void visits(int n) {
    for (; n > 0; n -= MAX_THREADS) {
        start(visitor, MAX_THREADS);
        join_from(0);
    }
}

/* Threads come and go: neither records nor nodes are left of them. */
static void churn(void) {
    int64_t records;
    mt_pin *pins[MAX_THREADS];
    begin(64);
    for (int i = 0; i < MAX_THREADS; i++) pins[i] = mt_epoch_pin(&domain);
    for (int i = 0; i < MAX_THREADS; i++) unpin(pins[i]);
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
    mt_epoch_after_fork(&domain, 0);
    for (int i = 0; i < CHILDS; i++) {
        mt_pin *p = mt_epoch_pin(&domain);
        childs[i].alive = ALIVE;
        mt_epoch_retire(p, &childs[i].retired, free_childs);
        unpin(p);
    }
    mt_retired_free(mt_epoch_drain(&domain));
    CHECK(childs_freed == CHILDS, "%d nodes are freed in the child", childs_freed);
    CHECK(freed == before, "the child frees %d nodes of its parent", (int)(freed - before));
}

static void until_forked(int unused) {
    while (atomic_load_explicit(&forking, memory_order_relaxed)) push_and_pop();
}

/* Fork while other threads are in the middle of everything: the child uses the domain, and frees nothing of theirs. */
static void fork_running(void) {
    begin(1 + (int64_t)native_random(8));
    forking = 1;
    start(until_forked, 2);
    for (int i = 0; i < 5; i++) fork_and(in_the_child);
    forking = 0;
    join_from(0);
    end();
}

static void child_of_quiet(void) {
    mt_epoch_after_fork(&domain, 1);
    end();
}

/* Fork while nobody is in the middle of anything: child and parent each free all of the garbage, once. A pin of a
 * thread that does not exist in the child does not count there. */
static void fork_quiet(void) {
    enum { RETIRED = 100 };
    begin(1000);
    push_and_pop_often(RETIRED);
    CHECK(kept() == RETIRED, "%d nodes are kept", (int)kept());
    fork_and(child_of_quiet);
    all_freed();
    start_staller();
    push_and_pop_often(3 * RETIRED);
    fork_and(child_of_quiet);
    join_staller();
    end();
}

/* ------------------------------------------------------------------------------------------------------------- main */
DRIVER_MAIN(40, {"mixed", mixed, 0}, {"bounded", bounded, 0}, {"nested", nested, 0}, {"stall", stall, 0},
            {"churn", churn, 1}, {"fork_running", fork_running, 0}, {"fork_quiet", fork_quiet, 0})
