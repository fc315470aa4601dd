/* link.h in the model checker, used as _en_core.pxi uses it: what is linked and where readers stand is settled under the order lock, who has an
 * entry by its state word, and `refs` alone says when it is freed. */
#ifndef LINK_SUITES_H
#define LINK_SUITES_H

#include "manytail/link.h"

/* --------------------------------------------------------------------------------------------------------- a small queue */
template <typename suite, unsigned threads> struct link_suite : rl::test_suite<suite, threads> {
    static const unsigned bound = 2;
    enum { MOST = 8 };
    struct reader {
        mt_pos pos; /* stand NULL: not open */
        mt_again again;
    };
    mt_lock order;
    mt_list list;
    mt_timers timers;
    rl::var<int> guarded;   /* stands for the lists, which are plain memory, when the checker looks for races */
    reader takers, walker;  /* the pointer that subscriptions share, and one of its own */
    mt_pos extra[3];        /* more positions, of nobody in particular */
    mt_entry *linked[MOST]; /* what the list must be */
    int nlinked, acked, walked;
    int64_t nseq;

    void begin(int n) {
        model_now = 1;
        memset((void *)&order, 0, sizeof order);
        memset(&list, 0, sizeof list);
        memset(&timers, 0, sizeof timers);
        memset(&takers, 0, sizeof takers);
        memset(&walker, 0, sizeof walker);
        memset(extra, 0, sizeof extra);
        mt_load_relaxed_uptr(&order.word);
        guarded($) = 0;
        nlinked = acked = 0;
        walked = -1;
        nseq = 0;
        RL_ASSERT(mt_pos_open(&list, &takers.pos, NULL));
        for (int i = 0; i < n; i++) put(false);
        RL_ASSERT(mt_pos_open(&list, &walker.pos, list.first));
    }

    /* Whatever is left comes out in order; then nothing is left. */
    void end(int put) {
        uint64_t delivery;
        int64_t last = -1;
        while (mt_entry *e = acquire(&delivery)) {
            RL_ASSERT(e->seq > last);
            last = e->seq;
            ack(e, delivery);
        }
        RL_ASSERT(list.first == NULL && list.last == NULL && timers.n == 0);
        mt_pos_close(&list, &takers.pos);
        mt_pos_close(&list, &walker.pos);
        for (mt_pos &p : extra) mt_pos_close(&list, &p);
        RL_ASSERT(list.end == NULL && acked == put);
        mt_again_free(&takers.again);
        free(timers.items);
        RL_ASSERT(model_end_memory() == 0);
    }

    void lock() {
        if (!mt_lock_try(&order)) WAIT(lock_slow)(&order, DETACHED);
        guarded($) = guarded($) + 1;
    }
    void unlock() {
        check();
        mt_lock_node *n = mt_unlock(&order);
        if (n != NULL) WAIT(post_lock_node)(n);
    }

    static int state(mt_entry *e) { return mt_word_state(mt_entry_word(&e->word)); }

    /* ------------------------------------------------------------------------------------------- what happens to an entry */
    mt_entry *make() {
        mt_entry *e = mt_entry_new(0);
        model_watch(e)->constant($) = 1;
        mt_load_relaxed_i64(&e->word);
        return e;
    }

    /* The handle, or NULL if none is wanted. */
    mt_entry *put(bool handle) {
        mt_entry *e = make();
        if (handle) mt_entry_keep(e);
        lock();
        e->seq = nseq;
        e->order = (uint64_t)++nseq << 8;
        mt_list_append(&list, e);
        linked[nlinked++] = e;
        model_watched(e)->guarded($) = 1;
        unlock();
        return handle ? e : NULL;
    }

    /* cursor_first: the next AVAILABLE entry for this pointer. */
    mt_entry *locked_first(reader *r) {
        mt_entry *e = mt_pos_at(&r->pos), *was = e, *a;
        while (e != NULL && state(e) > MT_ENTRY_AVAILABLE) e = e->next;
        if (e != was) mt_pos_move(&list, &r->pos, e);
        while (r->again.n) {
            if (e != NULL && r->again.items[0].order > e->order) return e;
            a = r->again.items[0].e;
            if (state(a) == MT_ENTRY_AVAILABLE) return a;
            mt_again_pop(&r->again);
        }
        return e;
    }

    void locked_skip(reader *r, mt_entry *e) {
        if (mt_pos_at(&r->pos) == e) mt_pos_move(&list, &r->pos, e->next);
        while (r->again.n && r->again.items[0].e == e) mt_again_pop(&r->again);
    }

    /* The first that is AVAILABLE, with a reference for its handle. */
    mt_entry *acquire(uint64_t *delivery) {
        lock();
        mt_entry *e = locked_first(&takers);
        rl::ctx().disable_preemption();
        RL_ASSERT(e == first_available());
        rl::ctx().enable_preemption();
        if (e != NULL) {
            locked_skip(&takers, e);
            *delivery = mt_entry_acquire(&e->word);
            RL_ASSERT(*delivery);
            model_watched(e)->guarded($) = 2;
            mt_entry_keep(e);
        }
        unlock();
        return e;
    }

    mt_entry *first_available() {
        for (int i = 0; i < nlinked; i++)
            if (state(linked[i]) == MT_ENTRY_AVAILABLE) return linked[i];
        return NULL;
    }

    /* It is at its old place again, and the pointer comes back for it. The handle goes. */
    bool release(mt_entry *e, uint64_t delivery) {
        lock();
        bool done = mt_entry_release(&e->word, delivery, MT_ENTRY_AVAILABLE);
        if (done) {
            mt_entry *at = mt_pos_at(&takers.pos);
            if (at == NULL || e->order < at->order) RL_ASSERT(mt_again_push(&takers.again, e));
        }
        unlock();
        mt_entry_drop(e);
        return done;
    }

    bool ack(mt_entry *e, uint64_t delivery) {
        bool done = mt_entry_dequeue(&e->word, delivery);
        if (done) {
            lock();
            locked_bury(e);
            unlock();
            mt_entry_drop(e); /* the list's reference */
        }
        mt_entry_drop(e);
        return done;
    }

    /* Somebody ends it while nobody has it: the pointer may be about to come back for it. */
    void withdraw(mt_entry *e) {
        lock();
        bool done = is_linked(e) && mt_entry_withdraw(&e->word);
        if (done) locked_bury(e);
        unlock();
        if (done) mt_entry_drop(e);
    }

    void locked_bury(mt_entry *e) {
        int at = 0;
        if (e->more != NULL) mt_timers_remove(&timers, e);
        mt_list_unlink(&list, e);
        while (linked[at] != e) at++;
        for (nlinked--; at < nlinked; at++) linked[at] = linked[at + 1];
        RL_ASSERT(!mt_entry_linked(e));
        model_watched(e)->guarded($) = 3;
        mt_entry_delete(&e->word);
        acked++;
    }

    /* An iterator: what it gets next, in order, whatever becomes of it meanwhile. False: the end. */
    bool walk() {
        lock();
        mt_entry *e = mt_pos_at(&walker.pos);
        while (e != NULL && state(e) > MT_ENTRY_ACQUIRED) e = e->next;
        mt_pos_move(&list, &walker.pos, e != NULL ? e->next : NULL);
        if (e != NULL) mt_entry_keep(e);
        unlock();
        if (e == NULL) return false;
        look(e);
        RL_ASSERT(e->seq > walked);
        walked = (int)e->seq;
        mt_entry_drop(e);
        return true;
    }

    /* What a handle may do at any time. */
    static void look(mt_entry *e) {
        RL_ASSERT(state(e) <= MT_ENTRY_DELETED);
        RL_ASSERT(model_watched(e)->constant($) == 1);
    }

    /* --------------------------------------------------------------------------------------------------- after each step */
    /* Nobody comes in between: every look at a state word would be one more place for it. */
    void check() {
        rl::ctx().disable_preemption();
        check_all();
        rl::ctx().enable_preemption();
    }

    void check_all() {
        int positions = check_stand(list.end, NULL);
        mt_entry *e = list.first, *before = NULL;
        for (int i = 0; i < nlinked; i++, before = e, e = e->next) {
            RL_ASSERT(e == linked[i] && e->prev == before && mt_entry_linked(e));
            RL_ASSERT(before == NULL || before->order < e->order); /* L1 */
            positions += check_stand(e->stand, e);
        }
        RL_ASSERT(e == NULL && list.last == before);
        RL_ASSERT(positions == open_positions());
        check_heaps();
        for (int i = 0; i < nlinked; i++) /* the pointer has passed nothing that is to be had */
            RL_ASSERT(state(linked[i]) != MT_ENTRY_AVAILABLE || !has_passed(&takers, linked[i]));
    }

    /* L2, L3; how many positions are on it. */
    int check_stand(mt_stand *s, mt_entry *at) {
        int n = 0, spare = 0;
        if (s == NULL) return 0;
        RL_ASSERT(s->at == at && s->first != NULL && s->first->prev == NULL);
        for (mt_pos *p = s->first; p != NULL; p = p->next, n++) {
            RL_ASSERT(p->stand == s && mt_pos_at(p) == at);
            RL_ASSERT(p->next == NULL || p->next->prev == p);
        }
        for (mt_stand *t = s->spare; t != NULL; t = t->spare) spare++;
        RL_ASSERT(n == s->n && spare == n - 1);
        return n;
    }

    int open_positions() {
        int n = (takers.pos.stand != NULL) + (walker.pos.stand != NULL);
        for (mt_pos &p : extra) n += p.stand != NULL;
        return n;
    }

    bool has_passed(reader *r, mt_entry *e) {
        mt_entry *at = mt_pos_at(&r->pos);
        if (at != NULL && at->order <= e->order) return false;
        for (int64_t i = 0; i < r->again.n; i++)
            if (r->again.items[i].e == e) return false;
        return true;
    }

    void check_heaps() {
        for (int64_t i = 0; i < takers.again.n; i++) {
            RL_ASSERT(i == 0 || takers.again.items[(i - 1) / 2].order <= takers.again.items[i].order);
            state(takers.again.items[i].e); /* is not freed */
        }
        for (int64_t i = 0; i < timers.n; i++) {
            RL_ASSERT(i == 0 || timers.items[(i - 1) / 2].when <= timers.items[i].when);
            RL_ASSERT(timers.items[i].e->more->timer == i + 1 && is_linked(timers.items[i].e));
        }
    }

    bool is_linked(mt_entry *e) {
        for (int i = 0; i < nlinked; i++)
            if (linked[i] == e) return true;
        return false;
    }
};

/* ----------------------------------------------------------------------------------------------------- order, references */
/* A put and two subscriptions, one of which may give back what it got: each gets the first that is there. */
struct link_order : link_suite<link_order, 3> {
    void before() { begin(2); }
    void thread(unsigned index) {
        uint64_t delivery;
        if (index == 0) {
            mt_entry *e = put(true);
            look(e);
            mt_entry_drop(e);
            return;
        }
        mt_entry *e = acquire(&delivery);
        RL_ASSERT(e != NULL);
        RL_ASSERT(index == 1 && rl::rand(2) ? release(e, delivery) : ack(e, delivery));
    }
    void after() { end(3); }
};

/* Somebody ends an entry while another one stands on it, walks over it, or just has a handle of it. */
struct link_kept : link_suite<link_kept, 3> {
    mt_entry *kept, *held;
    uint64_t delivery;
    void before() {
        begin(1);
        kept = put(true);
        held = acquire(&delivery);
        RL_ASSERT(held != kept);
        put(false);
    }
    void thread(unsigned index) {
        uint64_t mine;
        if (index == 0) {
            RL_ASSERT(ack(held, delivery));
            mt_entry *e = acquire(&mine);
            RL_ASSERT(e == kept && ack(e, mine));
        } else if (index == 1) {
            while (walk()) {
            }
        } else {
            look(kept);
            mt_entry_drop(kept);
        }
    }
    void after() {
        RL_ASSERT(walked == 2); /* nobody touches the last one */
        end(3);
    }
};

/* What was given back is got again before what comes after it, however often, and the heap that remembers it is full and has dead ones. */
struct link_again : link_suite<link_again, 2> {
    static const unsigned bound = 3;
    mt_entry *held[3];
    uint64_t deliveries[3];
    void before() {
        begin(5);
        takers.again.items = (mt_again_item *)malloc(2 * sizeof(mt_again_item));
        takers.again.room = 2;
        for (int i = 0; i < 3; i++) held[i] = acquire(&deliveries[i]);
    }
    void thread(unsigned index) {
        uint64_t delivery;
        if (index == 0) {
            for (int i = 2; i >= 0; i--) RL_ASSERT(release(held[i], deliveries[i]));
            return;
        }
        for (int i = 0; i < 2; i++) {
            mt_entry *e = acquire(&delivery);
            RL_ASSERT(e != NULL);
            RL_ASSERT(i || rl::rand(2) ? release(e, delivery) : ack(e, delivery));
        }
        withdraw(held[1]);
    }
    void after() { end(5); }
};

/* A holder gives up its lock on an entry, and asks for a timer, while somebody ends all that may be ended. */
struct link_stolen : link_suite<link_stolen, 3> {
    mt_entry *held;
    uint64_t delivery;
    void before() {
        begin(2);
        held = acquire(&delivery);
        held->more = (mt_entry_more *)calloc(1, sizeof(mt_entry_more));
        RL_ASSERT(mt_timers_reserve(&timers, 1));
    }
    void thread(unsigned index) {
        if (index == 0) {
            RL_ASSERT(mt_entry_unlock(&held->word, delivery));
            lock();
            if (mt_entry_linked(held)) mt_timers_set(&timers, held, 5);
            unlock();
            ack(held, delivery);
        } else if (index == 1) {
            purge();
        } else {
            walk();
        }
    }
    void purge() {
        mt_entry *dead[MOST];
        int n = 0;
        lock();
        for (mt_entry *e = list.first, *next; e != NULL; e = next) {
            next = e->next;
            if (!(state(e) == MT_ENTRY_ACQUIRED ? mt_entry_steal(&e->word) : mt_entry_withdraw(&e->word))) continue;
            locked_bury(e);
            dead[n++] = e;
        }
        unlock();
        while (n) mt_entry_drop(dead[--n]);
    }
    void after() { end(2); }
};

/* ---------------------------------------------------------------------------------------------------- positions, heaps */
/* Any three steps: entries come at the end or in between and go, positions move on, close and open, alone and several at one place. */
struct link_places : link_suite<link_places, 2> {
    static const unsigned bound = 1;
    mt_entry *at[3]; /* where `extra` must be */
    void before() {
        begin(3);
        for (int i = 0; i < 3; i++) open(i, i < 2 ? linked[1] : NULL);
    }
    void thread(unsigned index) {
        for (unsigned step = 0; step < 2 - index; step++) {
            lock();
            change();
            for (int i = 0; i < 3; i++) RL_ASSERT(extra[i].stand == NULL || mt_pos_at(&extra[i]) == at[i]);
            unlock();
        }
    }
    void change() {
        int i;
        switch (rl::rand(4)) {
        case 0:
            link((int)rl::rand(nlinked + 1));
            break;
        case 1:
            if (nlinked) drop(linked[rl::rand(nlinked)]);
            break;
        case 2:
            i = (int)rl::rand(3);
            if (extra[i].stand == NULL || at[i] == NULL) break;
            at[i] = rl::rand(2) ? at[i]->next : NULL;
            mt_pos_move(&list, &extra[i], at[i]);
            break;
        default:
            i = (int)rl::rand(3);
            if (extra[i].stand != NULL) {
                mt_pos_close(&list, &extra[i]);
            } else {
                open(i, list.first);
            }
        }
    }
    void open(int i, mt_entry *where) {
        at[i] = where;
        RL_ASSERT(mt_pos_open(&list, &extra[i], where));
    }
    /* A new entry before the i-th; who stood there stands on the new one. */
    void link(int i) {
        mt_entry *e = make(), *where = i < nlinked ? linked[i] : NULL;
        uint64_t lo = i ? linked[i - 1]->order : 0, hi = where != NULL ? where->order : lo + 256;
        for (int k = 0; k < 3; k++)
            if (extra[k].stand != NULL && at[k] == where) at[k] = e;
        e->order = lo + (hi - lo) / 2;
        e->seq = nseq++;
        mt_list_insert(&list, e, where);
        memmove(&linked[i + 1], &linked[i], (size_t)(nlinked++ - i) * sizeof *linked);
        linked[i] = e;
    }
    void drop(mt_entry *e) {
        for (int k = 0; k < 3; k++)
            if (extra[k].stand != NULL && at[k] == e) at[k] = e->next;
        RL_ASSERT(mt_entry_withdraw(&e->word));
        locked_bury(e);
        mt_entry_drop(e);
    }
    void after() {
        while (nlinked) drop(linked[0]);
        end((int)nseq);
    }
};

/* Any three steps on five timers: set to another time, taken out, gone with their entry. */
struct link_timers : link_suite<link_timers, 2> {
    static const unsigned bound = 1;
    void before() {
        static const int64_t when[] = {10, 40, 20, 50, 60};
        begin(5);
        RL_ASSERT(mt_timers_reserve(&timers, 5));
        for (int i = 0; i < 5; i++) {
            linked[i]->more = (mt_entry_more *)calloc(1, sizeof(mt_entry_more));
            mt_timers_set(&timers, linked[i], when[i]);
        }
    }
    void thread(unsigned index) {
        for (unsigned step = 0; step < 2 - index; step++) {
            lock();
            mt_entry *e = linked[rl::rand(nlinked)], *dead = NULL;
            int64_t n = timers.n - (e->more->timer != 0);
            switch (rl::rand(3)) {
            case 0:
                mt_timers_remove(&timers, e);
                break;
            case 1:
                mt_timers_set(&timers, e, rl::rand(2) ? 70 : 5);
                n++;
                break;
            default:
                RL_ASSERT(mt_entry_withdraw(&e->word));
                locked_bury(dead = e);
            }
            RL_ASSERT(timers.n == n);
            unlock();
            if (dead != NULL) mt_entry_drop(dead);
        }
    }
    void after() { end(5); }
};

#endif
