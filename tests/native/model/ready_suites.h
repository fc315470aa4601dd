/* _ready.pxd in the model checker: the rings themselves under a lock, and the turns that a MultiQueue makes of them
 * while puts meet gets. */
#ifndef READY_SUITES_H
#define READY_SUITES_H

/* ------------------------------------------------------------------------------------------------------ rings alone */
/* Two threads list, unlist, serve and move three members, any three steps each, one at a time under a lock. After each
 * step rings, heaps and index must be what a plain array of members, in the order of their turns, says. */
template <unsigned oldest> struct ready_suite : run_by_checker {
    enum { MEMBERS = 3, STEPS = 3 };
    mt_lock lock;
    ready_index ready;
    ready_node members[MEMBERS];
    rl::var<int> guarded;       /* stands for the rings, which are plain memory, when the checker looks for races */
    int turns[MEMBERS], nturns; /* who is listed, in the order of their turns; by stamp for "oldest" */
    int64_t stamps[MEMBERS], clock;

    void before() {
        memset((void *)&lock, 0, sizeof lock);
        memset(&ready, 0, sizeof ready);
        memset(members, 0, sizeof members);
        mt_load_relaxed_uptr(&lock.word);
        guarded($) = 0;
        ready.oldest = oldest;
        nturns = 0;
        clock = 0;
        for (int i = 0; i < MEMBERS; i++) members[i].level = READY(ready_join_level)(&ready, i == 2);
        list(0);
        list(1);
    }

    void thread(unsigned index) {
        for (int step = 0; step < STEPS; step++) {
            take_lock(&lock);
            guarded($) = guarded($) + 1;
            switch (rl::rand(3)) {
            case 0:
                members[index].listed ? unlist(index) : list(index);
                break;
            case 1:
                if (ready.top != NULL) serve();
                break;
            default:
                move(2 * index); /* 0, or 2, which is alone in its level as long as nobody joins it */
            }
            check();
            give_lock(&lock);
        }
    }

    void after() {
        for (int i = 0; i < MEMBERS; i++) {
            if (members[i].listed) unlist(i);
            READY(ready_leave_level)(&ready, members[i].level);
        }
        RL_ASSERT(ready.nlevels == 0 && ready.best.n == 0 && ready.top == NULL);
        READY(ready_free)(&ready);
        RL_ASSERT(model_end_memory() == 0);
    }

    void list(int i) {
        stamps[i] = clock++;
        READY(ready_append)(&ready, &members[i], stamps[i]);
        turns[nturns++] = i;
    }

    void unlist(int i) {
        int at = 0;
        READY(ready_remove)(&ready, &members[i]);
        while (turns[at] != i) at++;
        for (nturns--; at < nturns; at++) turns[at] = turns[at + 1];
    }

    /* What a get does to the one whose turn it is: it goes to the end, or another takes the place of the last one that
     * is listed. */
    void serve() {
        ready_level *level = ready.top;
        ready_node *n = READY(ready_front)(&ready, level);
        int i = (int)(n - members), other = unlisted(level), at = 0;
        RL_ASSERT(i == first_of(level));
        while (turns[at] != i) at++;
        if (level->nready == 1 && other >= 0) {
            READY(ready_replace)(&ready, n, &members[other], stamps[other] = clock++);
            RL_ASSERT(!n->listed);
            turns[at] = other;
            return;
        }
        if (oldest) {
            READY(ready_rekey)(n, stamps[i] = clock++);
        } else {
            level->front = n->next;
        }
        for (; at < nturns - 1; at++) turns[at] = turns[at + 1];
        turns[at] = i;
    }

    int unlisted(ready_level *level) {
        for (int i = 0; i < MEMBERS; i++)
            if (members[i].level == level && !members[i].listed) return i;
        return -1;
    }

    void move(int i) {
        bool listed = members[i].listed;
        ready_level *to = READY(ready_join_level)(&ready, 1 - members[i].level->priority);
        RL_ASSERT(to != NULL);
        if (listed) unlist(i);
        READY(ready_leave_level)(&ready, members[i].level);
        members[i].level = to;
        if (listed) list(i);
    }

    int first_of(ready_level *level) {
        for (int at = 0; at < nturns; at++)
            if (members[turns[at]].level == level) return turns[at];
        RL_ASSERT(false); /* it has nobody */
        return -1;
    }

    void check() {
        ready_level *best = NULL;
        uint32_t levels = 0;
        for (uint32_t k = 0; k < ready.nlevels; k++) {
            ready_level *level = ready.levels[k];
            RL_ASSERT(k == 0 || ready.levels[k - 1]->priority < level->priority);
            check_level(level);
            if (level->nready == 0) continue;
            levels++;
            if (best == NULL) best = level;
            RL_ASSERT(ready.best.items[level->place - 1].member == level);
        }
        RL_ASSERT(ready.top == best && ready.best.n == levels);
    }

    void check_level(ready_level *level) {
        ready_node *n = level->front;
        uint32_t listed = 0;
        for (int at = 0; at < nturns; at++) {
            ready_node *member = &members[turns[at]];
            if (member->level != level) continue;
            listed++;
            RL_ASSERT(member->listed);
            if (oldest) {
                heap_item it = level->by_time.items[member->place - 1];
                RL_ASSERT(it.member == member && it.key == HEAP(heap_key)(stamps[turns[at]]));
                RL_ASSERT(member->place == 1 || level->by_time.items[member->place / 2 - 1].key < it.key);
            } else {
                RL_ASSERT(n == member && n->next->prev == n);
                n = n->next;
            }
        }
        RL_ASSERT(level->nready == listed && (oldest || n == level->front));
    }
};

struct ready_rings : suite<ready_suite<0>, 2> {};
struct ready_oldest : suite<ready_suite<1>, 2> {};

/* -------------------------------------------------------------------------------------------- turns of a MultiQueue */
/* Round robin, a: 0 1, b: 2, and one more is put to b: it may find b listed, being unlisted, or unlisted, and b's next
 * turn comes after a's in each case. */
struct turns_go_round : suite<queue_suite, 2, 3> {
    void before() {
        begin();
        put(a, 0);
        put(a, 1);
        put(b, 2);
    }
    void one() { OK(put(b, 3)); }
    void two() {
        for (int i : {0, 2, 1, 3}) RL_ASSERT(get() == i);
    }
};

/* "oldest": what was put first comes first, whatever tail it was put to. */
struct oldest_first : suite<queue_suite, 2> {
    void before() { begin(0, MT_OLDEST); }
    void one() {
        for (int i = 0; i < 4; i++) OK(put(i % 2 ? b : a, i));
    }
    void two() {
        for (int i = 0; i < 4; i++) RL_ASSERT(get() == i);
    }
};

/* A listed tail goes to another priority and back while a put and a getter meet it: it is in one ring, and none loses
 * it. */
struct moved : suite<queue_suite, 3, 1> {
    void before() {
        begin();
        put(a, 0);
        put(b, 1);
    }
    void one() { OK(put(a, 2)); }
    void two() {
        OK(MQ_CHANGES(set_priority)(q, a, 1, DETACHED));
        OK(MQ_CHANGES(set_priority)(q, a, 0, DETACHED));
    }
    void three() {
        int a_seen = 0;
        for (int i = 0; i < 3; i++) {
            int got = get();
            RL_ASSERT(got >= 0 && (got != 2 || a_seen));
            a_seen |= got == 0;
        }
    }
};

/* Hidden and shown again while it is listed, is being unlisted, or unlisted. */
struct hidden : suite<queue_suite, 3> {
    void before() {
        begin();
        put(a, 0);
    }
    void one() { OK(put(a, 1)); }
    void two() {
        enable(0);
        enable(1);
    }
    void three() {
        for (int i = 0; i < 2; i++) RL_ASSERT(get() == i);
    }
};

#endif
