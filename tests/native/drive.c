/* Native threads drive the MultiQueue: what `make tsan` and `make asan` run.
 *
 *     drive [-s SEED] [-r ROUNDS] [-d DEADLINE_SECONDS] [SCENARIO...]
 *
 * Every scenario is a set of threads that must come to an end by the queue's promises alone: a wake-up that is lost
 * shows as a wait that outlasts the deadline (which is there only to end a hang), an item that is lost, doubled or out
 * of order as a failed check. Items are pointers to cells that the putter fills and the getter marks without any
 * synchronisation of their own, so the sanitizer sees whether the queue hands over memory properly. The threads' own
 * counters are relaxed for the same reason: they order nothing.
 */
#define DRIVER "drive"
#include "platform.h"

#include "kernels.h"

#define FOREVER ((int64_t)-1)

enum { MAX_TAILS = 256, SLOTS = 4, BATCH = 24 };

static void wait_for(sem_t *s, const char *what) {
    CHECK(native_wait(s, deadline_us()), "waited too long for %s", what);
}

static void pause_a_while(void) {
    switch (native_random(4)) {
    case 0:
        sched_yield();
        break;
    case 1:
        for (uint64_t i = native_random(400); i; i--) mt_cpu_pause();
        break;
    default:
        break;
    }
}

/* ----------------------------------------------------------------------------------------------------------- items */
typedef struct {
    int putter, tail, front;
    int64_t seq;
    int64_t seen; /* how often it came out */
} cell;

static struct {
    mq_queue *q;
    mq_subqueue *tails[MAX_TAILS];
    _Atomic int nsubqueues;
    _Atomic int slots[SLOTS]; /* which tails putters use now */
    int per_putter, putters, getters;
    cell *cells;
    _Atomic int64_t settled, expected; /* items that came out; items that went in, once that is known */
    _Atomic int putters_left;
    sem_t all_settled;
} m;

static void settle(int64_t n) {
    int64_t now = atomic_fetch_add_explicit(&m.settled, n, memory_order_relaxed) + n;
    if (now == atomic_load_explicit(&m.expected, memory_order_relaxed)) sem_post(&m.all_settled);
}

static void drop_cell(uintptr_t item, void *arg) {
    ((cell *)item)->seen++;
    ++*(int64_t *)arg;
}

/* ------------------------------------------------------------------- scenario "mixed": everything at the same time */
/* Put items from *made on, as this try turns out; 1: some went in. The tail may be removed under our hands. */
static int put_some(int p, int *made, int *tail) {
    cell *cells = m.cells + (size_t)p * m.per_putter;
    uintptr_t items[BATCH];
    int64_t sizes[BATCH], n = 1, count = 0;
    int left = m.per_putter - *made, i, r, kind = (int)native_random(8);
    mq_subqueue *s = m.tails[*tail];
    if (kind < 3) n = 1 + (int64_t)native_random(BATCH);
    if (n > left) n = left;
    for (i = 0; i < n; i++) {
        cell *c = cells + *made + i;
        c->putter = p;
        c->tail = *tail;
        c->seq = *made + i;
        c->front = kind == 3;
        items[i] = (uintptr_t)c;
        sizes[i] = (int64_t)native_random(8);
    }
    if (s->sized && kind < 3) {
        r = MQ_PUT(put_run_until)(s->mq, s, items, sizes, n, 0, 0, WAITING(deadline_in)(some_timeout()), &count, 0);
    } else if (s->sized) {
        r = MQ_PUT(put_until)(s->mq, s, items[0], &sizes[0], kind == 3, WAITING(deadline_in)(some_timeout()), 0);
        count = r == MT_OK;
    } else if (kind < 3) {
        r = MQN(put_run_within)(s, items, n, some_timeout(), &count);
    } else {
        r = kind == 3 ? MQ_PUT(put_until)(s->mq, s, items[0], NULL, 1, WAITING(deadline_in)(some_timeout()), 0)
                      : MQN(put_within)(s, items[0], some_timeout());
        count = r == MT_OK;
    }
    CHECK(r == MT_OK ? count == n : r == MT_FULL || r == MT_TIMEOUT || r == MT_SHUTDOWN || (r == MT_BADARG && s->sized),
          "put: %d, %d of %d", r, (int)count, (int)n);
    *made += (int)count;
    return count > 0;
}

static void mixed_putter(int p) {
    int made = 0, tail;
    while (made < m.per_putter) {
        /* acquire: the controller made the tail before it wrote the slot */
        tail = atomic_load_explicit(&m.slots[native_random(SLOTS)], memory_order_acquire);
        if (!put_some(p, &made, &tail)) sched_yield();
        pause_a_while();
    }
    atomic_fetch_sub_explicit(&m.putters_left, 1, memory_order_relaxed);
}

static void mixed_getter(int unused) {
    int64_t *last = (int64_t *)calloc(MAX_THREADS * MAX_TAILS, sizeof(int64_t)), count, i, *seq;
    uintptr_t items[BATCH];
    int r, many;
    for (;;) {
        many = native_random(3) == 0;
        count = 0;
        if (many) {
            r = MQN(get_many_within)(m.q, items, 1 + (int64_t)native_random(BATCH), some_timeout(), &count);
        } else {
            r = MQN(get_within)(m.q, items, NULL, some_timeout());
            count = r == MT_OK;
        }
        for (i = 0; i < count; i++) {
            cell *c = (cell *)items[i];
            c->seen++;
            seq = &last[c->putter * MAX_TAILS + c->tail];
            CHECK(c->front || c->seq + 1 > *seq, "item %d of putter %d overtook %d", (int)*seq - 1, c->putter,
                  (int)c->seq);
            if (!c->front) *seq = c->seq + 1;
            MQ_TASKS(task_done)(m.q, 0);
        }
        settle(count);
        if (r == MT_SHUTDOWN) break;
        CHECK(r == MT_OK || r == MT_EMPTY || r == MT_TIMEOUT, "get: %d", r);
        pause_a_while();
    }
    free(last);
}

static int add_subqueue(void) {
    int n = atomic_load_explicit(&m.nsubqueues, memory_order_relaxed);
    int64_t maxsize = native_random(2) ? 1 + (int64_t)native_random(40) : 0;
    CHECK(n < MAX_TAILS, "too many tails");
    m.tails[n] = MQN(add_subqueue)(m.q, (int)native_random(2), maxsize, 1 + (int)native_random(4));
    CHECK(m.tails[n] != NULL, "no tail");
    if (native_random(3) == 0) m.tails[n]->sized = m.tails[n]->bounded = 1;
    atomic_store_explicit(&m.nsubqueues, n + 1, memory_order_relaxed);
    return n;
}

static void replace_tail(int slot) {
    int old = atomic_load_explicit(&m.slots[slot], memory_order_relaxed);
    int64_t dropped = 0;
    if (atomic_load_explicit(&m.nsubqueues, memory_order_relaxed) == MAX_TAILS) return;
    /* release: pairs with the putters' look at the slot */
    atomic_store_explicit(&m.slots[slot], add_subqueue(), memory_order_release);
    CHECK(MQN(remove_subqueue)(m.q, m.tails[old], drop_cell, &dropped) == MT_OK, "remove");
    CHECK(MQN(remove_subqueue)(m.q, m.tails[old], drop_cell, &dropped) == MT_BADARG, "remove twice");
    settle(dropped);
}

static void walk_and_discard(mq_subqueue *s) {
    mq_position k;
    int64_t discarded = 0;
    MQ_ITERATE(position_open)(&k);
    do {
        MQ_ITERATE(position_step)(m.q, s, &k, 0);
        for (uint32_t i = 0; i < k.n; i++) {
            if (native_random(4) == 0 && MQ_CLEAR(discard_at)(m.q, s, k.positions[i], k.items[i], 0)) {
                ((cell *)k.items[i])->seen++;
                discarded++;
            }
        }
    } while (k.n && native_random(8));
    settle(discarded);
}

static void enable(mq_subqueue *s, int enabled) { MQ_CHANGES(enable_subqueue)(s->mq, s, enabled, 0); }

static int64_t clear(mq_subqueue *s) {
    chunk *chain;
    uint32_t first = 0, last = 0;
    int64_t dropped = 0, n = MQ_CLEAR(clear_subqueue)(s->mq, s, &chain, &first, &last, 0);
    MQ_CLEAR(drop_chain)(s->mq, chain, first, last, drop_cell, &dropped);
    CHECK(n == dropped, "cleared %d items, counted %d", (int)dropped, (int)n);
    return n;
}

static void change_something(void) {
    int slot = (int)native_random(SLOTS);
    mq_subqueue *s = m.tails[atomic_load_explicit(&m.slots[slot], memory_order_relaxed)];
    switch (native_random(12)) {
    case 0:
    case 1:
    case 2:
        enable(s, (int)native_random(2));
        break;
    case 3:
        MQ_CHANGES(set_priority)(m.q, s, (int64_t)native_random(3), 0);
        break;
    case 4:
        MQ_CHANGES(set_weight)(m.q, s, 1 + (uint32_t)native_random(4), 0);
        break;
    case 5:
        MQ_CHANGES(set_maxsize)(m.q, s, (int64_t)native_random(20), 0);
        break;
    case 6:
        settle(clear(s));
        break;
    case 7:
        walk_and_discard(s);
        break;
    case 8:
        CHECK(MQ_READY(qsize_of)(m.q, INT64_MAX, 0) >= 0, "qsize");
        break;
    case 9:
        if (native_random(4) == 0) replace_tail(slot);
        break;
    default:
        enable(s, 1);
        break;
    }
}

static void mixed_begin(void) {
    memset(&m, 0, sizeof m);
    m.q = MQ_LIFE(new_queue)(0, 0);
    CHECK(m.q != NULL, "no queue");
    m.q->selection = (uint32_t)native_random(3);
    m.q->ready.oldest = m.q->selection == MT_OLDEST;
    m.putters = 1 + (int)native_random(3);
    m.getters = 1 + (int)native_random(3);
    m.per_putter = 300 + (int)native_random(900);
    m.cells = (cell *)calloc((size_t)m.putters * m.per_putter, sizeof(cell));
    m.expected = -1;
    m.putters_left = m.putters;
    sem_init(&m.all_settled, 0, 0);
    for (int i = 0; i < SLOTS; i++) m.slots[i] = add_subqueue();
}

static void mixed_end(void) {
    int64_t left = 0;
    CHECK(MQ_TASKS(head_put_total)(m.q) == m.expected, "put %d, counted %d", (int)m.expected,
          (int)MQ_TASKS(head_put_total)(m.q));
    CHECK(m.q->taken_total + m.q->removed_total == m.expected, "got %d, taken away %d of %d", (int)m.q->taken_total,
          (int)m.q->removed_total, (int)m.expected);
    CHECK(MQ_READY(head_counted)(m.q) == 0, "counted %d in an empty queue", (int)MQ_READY(head_counted)(m.q));
    CHECK(MQ_TASKS(join_until)(m.q, 0, 0) == MT_OK, "unfinished: %d", (int)MQ_TASKS(head_unfinished)(m.q));
    for (int i = 0; i < m.nsubqueues; i++)
        CHECK(!m.tails[i]->sized || MQ_SIZES(tail_size)(m.tails[i]) == 0, "size %d of an empty tail",
              (int)MQ_SIZES(tail_size)(m.tails[i]));
    for (int i = 0; i < m.putters * m.per_putter; i++)
        CHECK(m.cells[i].seen == 1, "item %d came out %d times", i, (int)m.cells[i].seen);
    MQN(destroy_queue)(m.q, drop_cell, &left);
    CHECK(left == 0, "%d items left", (int)left);
    sem_destroy(&m.all_settled);
    free(m.cells);
}

static void mixed(void) {
    mixed_begin();
    start(mixed_getter, m.getters);
    start(mixed_putter, m.putters);
    while (atomic_load_explicit(&m.putters_left, memory_order_relaxed)) {
        change_something();
        pause_a_while();
    }
    join_from(m.getters);
    for (int i = 0; i < SLOTS; i++) enable(m.tails[m.slots[i]], 1);
    atomic_exchange(&m.expected, m.putters * m.per_putter);
    /* No getter may sleep while something is there: they take the rest without being told. */
    if (atomic_load(&m.settled) != m.expected && !native_wait(&m.all_settled, deadline_us()))
        CHECK(atomic_load(&m.settled) == m.expected, "%d of %d items came out", (int)m.settled, (int)m.expected);
    MQ_CHANGES(shut_queue)(m.q, 0, 0);
    join_from(0);
    mixed_end();
}

/* ------------------------------------------- scenarios that wake: each step needs every wake-up that it is promised */
enum { PARTIES = 3, STEPS = 60 };

static struct {
    mq_queue *q;
    mq_subqueue *s;
    sem_t go[PARTIES], arrived;
    cell cells[PARTIES];
} w;

static void wake_begin(int64_t maxsize) {
    memset(&w, 0, sizeof w);
    w.q = MQ_LIFE(new_queue)(0, 0);
    w.s = MQN(add_subqueue)(w.q, 0, maxsize, 1);
    sem_init(&w.arrived, 0, 0);
    for (int i = 0; i < PARTIES; i++) sem_init(&w.go[i], 0, 0);
}

static void wake_end(void) {
    int64_t left = 0;
    MQN(destroy_queue)(w.q, drop_cell, &left);
    CHECK(left == 0, "%d items left", (int)left);
    sem_destroy(&w.arrived);
    for (int i = 0; i < PARTIES; i++) sem_destroy(&w.go[i]);
}

static void release(int from) {
    for (; from < PARTIES; from++) sem_post(&w.go[from]);
}

static void arrive(int n) {
    while (n--) wait_for(&w.arrived, "a thread that should have been woken");
}

static void let_fall_asleep(int step, int us) {
    if (step % 4) usleep((useconds_t)native_random(us)); /* most of the time */
}

/* Take so many as there are parties; that many are there. */
static void get_all(void) {
    uintptr_t items[PARTIES];
    int64_t count;
    CHECK(MQN(get_many_within)(w.q, items, PARTIES, 0, &count) == MT_OK && count == PARTIES, "%d of them", (int)count);
}

static void seen(int i, int times) {
    CHECK(w.cells[i].seen == times, "item %d came out %d times", i, (int)w.cells[i].seen);
}

static void mark(uintptr_t item) {
    ((cell *)item)->seen++;
    sem_post(&w.arrived);
}

static void one_each(int i) {
    uintptr_t item;
    for (int step = 0; step < STEPS; step++) {
        CHECK(MQN(get_within)(w.q, &item, NULL, FOREVER) == MT_OK, "get");
        mark(item);
        wait_for(&w.go[i], "the next step");
    }
}

/* PARTIES getters, as many items in one put, or in one put_many, or hidden and then shown: each getter gets one. */
static void items_for_all(void) {
    uintptr_t items[PARTIES];
    wake_begin(0);
    start(one_each, PARTIES);
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < PARTIES; i++) items[i] = (uintptr_t)&w.cells[i];
        let_fall_asleep(step, 300);
        if (step % 3 == 2) enable(w.s, 0);
        if (step % 3 == 0) {
            for (int i = 0; i < PARTIES; i++) CHECK(MQN(put_within)(w.s, items[i], 0) == MT_OK, "put");
        } else {
            CHECK(MQN(put_run_within)(w.s, items, PARTIES, 0, NULL) == MT_OK, "put_many");
        }
        if (step % 3 == 2) enable(w.s, 1);
        arrive(PARTIES);
        for (int i = 0; i < PARTIES; i++) seen(i, step + 1);
        release(0);
    }
    join_from(0);
    wake_end();
}

static void one_place_each(int i) {
    for (int step = 0; step < STEPS; step++) {
        CHECK(MQN(put_within)(w.s, (uintptr_t)&w.cells[i], FOREVER) == MT_OK, "put");
        sem_post(&w.arrived);
        wait_for(&w.go[i], "the next step");
    }
}

/* A full tail, PARTIES putters: all its places come free at once, by get_many, clear or a new bound: each putter gets
 * one. */
static void room_for_all(void) {
    int64_t count;
    wake_begin(PARTIES);
    start(one_place_each, PARTIES);
    for (int step = 0; step < STEPS; step++) {
        arrive(PARTIES);
        release(0); /* now it is full, and they come again */
        if (step == STEPS - 1) break;
        let_fall_asleep(step, 300);
        if (step % 3 == 0) {
            enable(w.s, 0);
            MQ_CHANGES(set_maxsize)(w.q, w.s, 2 * PARTIES, 0);
            arrive(PARTIES);
            MQ_CHANGES(set_maxsize)(w.q, w.s, PARTIES, 0);
            for (int i = 0; i < PARTIES; i++) sem_post(&w.arrived);
            enable(w.s, 1);
            get_all();
        } else if (step % 3 == 1) {
            get_all();
        } else {
            CHECK(clear(w.s) == PARTIES, "clear");
        }
    }
    join_from(0);
    get_all();
    CHECK(MQN(get_many_within)(w.q, NULL, 1, 0, &count) == MT_BADARG, "items of a get may not be NULL");
    wake_end();
}

/* Somebody who waits until told to stop, beside others who wait for a short while, or are interrupted, and then stay
 * away until the step is over: of two that wait for one thing, the second gets it when the first has given up. */
static int64_t soon(void) { return mt_now_ns() + 1 + (int64_t)native_random(60000); }

static void impatient_getter(int i) {
    uintptr_t item;
    for (int step = 0; step < STEPS; step++) {
        if (wait_for_items(w.q, soon(), 1) == MT_OK && MQN(get_within)(w.q, &item, NULL, 0) == MT_OK) mark(item);
        wait_for(&w.go[i], "the next step");
    }
}

static void patient_getter(int unused) {
    uintptr_t item;
    int r;
    while ((r = MQN(get_within)(w.q, &item, NULL, FOREVER)) == MT_OK) mark(item);
    CHECK(r == MT_SHUTDOWN, "get: %d", r);
}

/* Put one item after the other, each when the one before has come out; then the end of the queue, and of all. */
static void one_by_one(void) {
    for (int step = 0; step < STEPS; step++) {
        let_fall_asleep(step, 60);
        CHECK(MQN(put_within)(w.s, (uintptr_t)&w.cells[0], 0) == MT_OK, "put");
        arrive(1);
        seen(0, step + 1);
        release(1);
    }
    MQ_CHANGES(shut_queue)(w.q, 0, 0);
    join_from(0);
    wake_end();
}

static void impatient_getters(void) {
    wake_begin(0);
    start(patient_getter, 1);
    for (int i = 1; i < PARTIES; i++) start_interrupted(impatient_getter, i, 3);
    one_by_one();
}

static void impatient_putter(int i) {
    for (int step = 0; step < STEPS; step++) {
        if (wait_for_room(w.s, soon(), 1) == MT_OK && MQN(put_within)(w.s, (uintptr_t)&w.cells[i], 0) == MT_OK)
            sem_post(&w.arrived);
        wait_for(&w.go[i], "the next step");
    }
}

static void patient_putter(int i) {
    int r;
    while ((r = MQN(put_within)(w.s, (uintptr_t)&w.cells[i], FOREVER)) == MT_OK) sem_post(&w.arrived);
    CHECK(r == MT_SHUTDOWN, "put: %d", r);
}

static void impatient_putters(void) {
    uintptr_t item;
    wake_begin(1);
    start(patient_putter, 1);
    arrive(1);
    for (int i = 1; i < PARTIES; i++) start_interrupted(impatient_putter, i, 3);
    for (int step = 0; step < STEPS; step++) {
        let_fall_asleep(step, 60);
        CHECK(MQN(get_within)(w.q, &item, NULL, 0) == MT_OK, "get");
        arrive(1);
        release(1);
    }
    if (native_random(2)) {
        MQ_CHANGES(shut_queue)(w.q, 0, 0);
        join_from(0);
        CHECK(MQN(get_within)(w.q, &item, NULL, 0) == MT_OK, "get");
        CHECK(MQN(get_within)(w.q, &item, NULL, FOREVER) == MT_SHUTDOWN, "get from a drained queue");
    } else {
        int64_t dropped = 0;
        CHECK(MQN(remove_subqueue)(w.q, w.s, drop_cell, &dropped) == MT_OK && dropped == 1, "remove");
        join_from(0);
    }
    wake_end();
}

/* Each putter has a tail of its own and waits for each item to be got: every single announcement counts. */
static mq_subqueue *own[PARTIES];
static sem_t answered[PARTIES];

static void pinger(int i) {
    for (int step = 0; step < STEPS; step++) {
        w.cells[i].seen++;
        CHECK(MQN(put_within)(own[i], (uintptr_t)i, 0) == MT_OK, "put");
        wait_for(&answered[i], "somebody to get the item");
        pause_a_while();
    }
}

static void answerer(int unused) {
    uintptr_t i;
    int r;
    while ((r = MQN(get_within)(w.q, &i, NULL, FOREVER)) == MT_OK) {
        w.cells[i].seen++;
        MQ_TASKS(task_done)(w.q, 0);
        sem_post(&answered[i]);
    }
    CHECK(r == MT_SHUTDOWN, "get: %d", r);
}

static void joiner(int unused) {
    int r;
    for (int step = 0; step < STEPS; step++) {
        r = MQ_TASKS(join_until)(w.q, native_random(2) ? FOREVER : soon(), 1);
        CHECK(r == MT_OK || r == MT_TIMEOUT || r == MT_INTERRUPTED, "join: %d", r);
        pause_a_while();
    }
}

static void ping(void) {
    int i, priorities = 1 + (int)native_random(2);
    wake_begin(0);
    for (i = 0; i < PARTIES; i++) {
        own[i] = MQN(add_subqueue)(w.q, i % priorities, native_random(2) ? 1 : 0, 1);
        sem_init(&answered[i], 0, 0);
    }
    start_interrupted(joiner, 0, 5);
    for (i = 1; i < PARTIES; i++) start_interrupted(answerer, i, 0);
    start(pinger, PARTIES);
    join_from(PARTIES);
    MQ_CHANGES(shut_queue)(w.q, 0, 0);
    join_from(0);
    for (i = 0; i < PARTIES; i++) {
        seen(i, 2 * STEPS);
        sem_destroy(&answered[i]);
    }
    wake_end();
}

/* A task and threads that wait for the same: the task may be cancelled at any moment, also when it is notified, and
 * starts over. */
static int task_wait(void) {
    wait_point p;
    native_task *task = (native_task *)calloc(1, sizeof *task);
    waiter *waits = WAITING(new_waiter)(1, task);
    int r, cancelled;
    CHECK(waits != NULL, "no memory");
    sem_init(&task->bell, 0, 0);
    task->refs = 1;
    task->waiter = waits;
    MQ_GET(items_point)(&p, w.q, 1);
    r = WAITING(prepare_to_wait)(&p, 1, waits);
    if (r == WAIT_FOR_IT) {
        cancelled = native_random(3) == 0;
        if (cancelled) {
            pause_a_while();
        } else {
            wait_for(&task->bell, "a task that should have been woken");
        }
        WAITING(finish_wait)(&p, 1, waits, cancelled);
        r = MT_OK;
    }
    native_drop(task);
    return r;
}

static void task_getter(int unused) {
    uintptr_t item;
    int r;
    do {
        while ((r = MQN(get_within)(w.q, &item, NULL, 0)) == MT_OK) mark(item);
    } while (r != MT_SHUTDOWN && task_wait() == MT_OK);
}

static void tasks(void) {
    wake_begin(0);
    start(task_getter, 2);
    start(patient_getter, 1);
    one_by_one();
}

/* ------------------------------------------------------------------------------------------------------------- main */
DRIVER_MAIN(300, {"mixed", mixed, 0}, {"items_for_all", items_for_all, 0}, {"room_for_all", room_for_all, 0},
            {"impatient_getters", impatient_getters, 0}, {"impatient_putters", impatient_putters, 0}, {"ping", ping, 0},
            {"tasks", tasks, 0})
