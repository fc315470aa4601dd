/* Lists, positions and heaps of _entry.pxd in the model checker, used as _eq*.pxd use them: the order lock guards what
 * is linked and where readers are, the state word says who has an entry, and `refs` alone says when it is freed. */
#ifndef LINK_SUITES_H
#define LINK_SUITES_H

/* ---------------------------------------------------------------------------------------------------- a small queue */
struct link_suite : run_by_checker {
    enum { MOST = 8 };
    struct reader {
        cursor_position pos; /* stand NULL: not open */
        heap redeliveries;
    };
    mt_lock order;
    entry_list list;
    heap timers;
    rl::var<int> guarded;     /* stands for the lists, which are plain memory, when the checker looks for races */
    reader takers, walker;    /* the pointer that subscriptions share, and one of its own */
    cursor_position extra[3]; /* more positions, of nobody in particular */
    entry *linked[MOST];      /* what the list must be */
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
        RL_ASSERT(ENTRY(position_open)(&list, &takers.pos, NULL));
        for (int i = 0; i < n; i++) put(false);
        RL_ASSERT(ENTRY(position_open)(&list, &walker.pos, list.first));
    }

    /* Whatever is left comes out in order; then nothing is left. */
    void after() {
        uint64_t delivery;
        int64_t last = -1;
        while (entry *e = acquire(&delivery)) {
            RL_ASSERT(e->seq > last);
            last = e->seq;
            ack(e, delivery);
        }
        RL_ASSERT(list.first == NULL && list.last == NULL && timers.n == 0);
        ENTRY(position_close)(&list, &takers.pos);
        ENTRY(position_close)(&list, &walker.pos);
        for (cursor_position &p : extra) ENTRY(position_close)(&list, &p);
        RL_ASSERT(list.end == NULL && acked == nseq);
        ENTRY(entry_heap_free)(&takers.redeliveries);
        free(timers.items);
        RL_ASSERT(model_end_memory() == 0);
    }

    void lock() {
        take_lock(&order);
        guarded($) = guarded($) + 1;
    }
    void unlock() {
        check();
        give_lock(&order);
    }

    static int state(entry *e) { return ENTRY(word_state)(ENTRY(entry_word)(&e->word)); }

    /* ------------------------------------------------------------------------------------- what happens to an entry */
    entry *make() {
        entry *e = ENTRY(entry_new)(0);
        model_watch(e)->constant($) = 1;
        mt_load_relaxed_i64(&e->word);
        return e;
    }

    /* The handle, or NULL if none is wanted. */
    entry *put(bool handle) {
        entry *e = make();
        if (handle) ENTRY(entry_keep)(e);
        lock();
        e->seq = nseq;
        e->order = (uint64_t)++nseq << 8;
        ENTRY(list_append)(&list, e);
        linked[nlinked++] = e;
        model_watched(e)->guarded($) = 1;
        unlock();
        return handle ? e : NULL;
    }

    /* cursor_first: the next AVAILABLE entry for this pointer. */
    entry *locked_first(reader *r) {
        entry *e = ENTRY(position_at)(&r->pos), *was = e, *a;
        while (e != NULL && state(e) > ENTRY_IS(AVAILABLE)) e = e->next;
        if (e != was) ENTRY(position_move)(&list, &r->pos, e);
        while (r->redeliveries.n) {
            if (e != NULL && r->redeliveries.items[0].key > e->order) return e;
            a = (entry *)r->redeliveries.items[0].member;
            if (state(a) == ENTRY_IS(AVAILABLE)) return a;
            ENTRY(entry_heap_pop)(&r->redeliveries);
        }
        return e;
    }

    void locked_skip(reader *r, entry *e) {
        if (ENTRY(position_at)(&r->pos) == e) ENTRY(position_move)(&list, &r->pos, e->next);
        while (r->redeliveries.n && (entry *)r->redeliveries.items[0].member == e)
            ENTRY(entry_heap_pop)(&r->redeliveries);
    }

    /* The first that is AVAILABLE, with a reference for its handle. */
    entry *acquire(uint64_t *delivery) {
        lock();
        entry *e = locked_first(&takers);
        rl::ctx().disable_preemption();
        RL_ASSERT(e == first_available());
        rl::ctx().enable_preemption();
        if (e != NULL) {
            locked_skip(&takers, e);
            *delivery = ENTRY(entry_acquire)(&e->word);
            RL_ASSERT(*delivery);
            model_watched(e)->guarded($) = 2;
            ENTRY(entry_keep)(e);
        }
        unlock();
        return e;
    }

    entry *first_available() {
        for (int i = 0; i < nlinked; i++)
            if (state(linked[i]) == ENTRY_IS(AVAILABLE)) return linked[i];
        return NULL;
    }

    /* It is at its old place again, and the pointer comes back for it. The handle goes. */
    bool release(entry *e, uint64_t delivery) {
        lock();
        bool done = ENTRY(entry_release)(&e->word, delivery, ENTRY_IS(AVAILABLE));
        if (done) {
            entry *at = ENTRY(position_at)(&takers.pos);
            if (at == NULL || e->order < at->order) RL_ASSERT(ENTRY(entry_heap_push)(&takers.redeliveries, e));
        }
        unlock();
        ENTRY(entry_drop)(e);
        return done;
    }

    bool ack(entry *e, uint64_t delivery) {
        bool done = ENTRY(entry_dequeue)(&e->word, delivery);
        if (done) {
            lock();
            locked_unlink_ended(e);
            unlock();
            ENTRY(entry_drop)(e); /* the list's reference */
        }
        ENTRY(entry_drop)(e);
        return done;
    }

    /* Somebody ends it while nobody has it: the pointer may be about to come back for it. */
    void withdraw(entry *e) {
        lock();
        bool done = is_linked(e) && ENTRY(entry_withdraw)(&e->word);
        if (done) locked_unlink_ended(e);
        unlock();
        if (done) ENTRY(entry_drop)(e);
    }

    void locked_unlink_ended(entry *e) {
        int at = 0;
        if (e->options != NULL) ENTRY(timers_remove)(&timers, e);
        ENTRY(list_unlink)(&list, e);
        while (linked[at] != e) at++;
        for (nlinked--; at < nlinked; at++) linked[at] = linked[at + 1];
        RL_ASSERT(!ENTRY(is_linked)(e));
        model_watched(e)->guarded($) = 3;
        ENTRY(entry_delete)(&e->word);
        acked++;
    }

    /* An iterator: what it gets next, in order, whatever becomes of it meanwhile. False: the end. */
    bool walk() {
        lock();
        entry *e = ENTRY(position_at)(&walker.pos);
        while (e != NULL && state(e) > ENTRY_IS(ACQUIRED)) e = e->next;
        ENTRY(position_move)(&list, &walker.pos, e != NULL ? e->next : NULL);
        if (e != NULL) ENTRY(entry_keep)(e);
        unlock();
        if (e == NULL) return false;
        look(e);
        RL_ASSERT(e->seq > walked);
        walked = (int)e->seq;
        ENTRY(entry_drop)(e);
        return true;
    }

    /* What a handle may do at any time. */
    static void look(entry *e) {
        RL_ASSERT(state(e) <= ENTRY_IS(DELETED));
        RL_ASSERT(model_watched(e)->constant($) == 1);
    }

    /* ---------------------------------------------------------------------------------------------- after each step */
    /* Nobody comes in between: every look at a state word would be one more place for it. */
    void check() {
        rl::ctx().disable_preemption();
        check_all();
        rl::ctx().enable_preemption();
    }

    void check_all() {
        int positions = check_anchor(list.end, NULL);
        entry *e = list.first, *before = NULL;
        for (int i = 0; i < nlinked; i++, before = e, e = e->next) {
            RL_ASSERT(e == linked[i] && e->prev == before && ENTRY(is_linked)(e));
            RL_ASSERT(before == NULL || before->order < e->order); /* L1 */
            positions += check_anchor(e->readers, e);
        }
        RL_ASSERT(e == NULL && list.last == before);
        RL_ASSERT(positions == open_positions());
        check_heaps();
        for (int i = 0; i < nlinked; i++) /* the pointer has passed nothing that is to be had */
            RL_ASSERT(state(linked[i]) != ENTRY_IS(AVAILABLE) || !has_passed(&takers, linked[i]));
    }

    /* L2, L3; how many positions are on it. */
    int check_anchor(anchor *s, entry *at) {
        int n = 0, spare = 0;
        if (s == NULL) return 0;
        RL_ASSERT(s->at == at && s->first != NULL && s->first->prev == NULL);
        for (cursor_position *p = s->first; p != NULL; p = p->next, n++) {
            RL_ASSERT(p->on == s && ENTRY(position_at)(p) == at);
            RL_ASSERT(p->next == NULL || p->next->prev == p);
        }
        for (anchor *t = s->spare; t != NULL; t = t->spare) spare++;
        RL_ASSERT(n == s->n && spare == n - 1);
        return n;
    }

    int open_positions() {
        int n = (takers.pos.on != NULL) + (walker.pos.on != NULL);
        for (cursor_position &p : extra) n += p.on != NULL;
        return n;
    }

    bool has_passed(reader *r, entry *e) {
        entry *at = ENTRY(position_at)(&r->pos);
        if (at != NULL && at->order <= e->order) return false;
        for (int64_t i = 0; i < r->redeliveries.n; i++)
            if ((entry *)r->redeliveries.items[i].member == e) return false;
        return true;
    }

    void check_heaps() {
        for (int64_t i = 0; i < takers.redeliveries.n; i++) {
            RL_ASSERT(i == 0 || takers.redeliveries.items[(i - 1) / 2].key <= takers.redeliveries.items[i].key);
            state((entry *)takers.redeliveries.items[i].member); /* is not freed */
        }
        for (int64_t i = 0; i < timers.n; i++) {
            RL_ASSERT(i == 0 || timers.items[(i - 1) / 2].key <= timers.items[i].key);
            entry *e = (entry *)timers.items[i].member;
            RL_ASSERT(e->options->timer == i + 1 && is_linked(e));
        }
    }

    bool is_linked(entry *e) {
        for (int i = 0; i < nlinked; i++)
            if (linked[i] == e) return true;
        return false;
    }
};

/* ------------------------------------------------------------------------------------------------ order, references */
/* A put and two subscriptions, one of which may give back what it got: each gets the first that is there. */
struct link_order : suite<link_suite, 3> {
    void before() { begin(2); }
    void one() {
        entry *e = put(true);
        look(e);
        ENTRY(entry_drop)(e);
    }
    void two() { take(true); }
    void three() { take(false); }
    void take(bool may_give_back) {
        uint64_t delivery;
        entry *e = acquire(&delivery);
        RL_ASSERT(e != NULL);
        RL_ASSERT(may_give_back && rl::rand(2) ? release(e, delivery) : ack(e, delivery));
    }
};

/* Somebody ends an entry while another one stands on it, walks over it, or just has a handle of it. */
struct link_kept : suite<link_suite, 3> {
    entry *kept, *held;
    uint64_t delivery;
    void before() {
        begin(1);
        kept = put(true);
        held = acquire(&delivery);
        RL_ASSERT(held != kept);
        put(false);
    }
    void one() {
        uint64_t mine;
        RL_ASSERT(ack(held, delivery));
        entry *e = acquire(&mine);
        RL_ASSERT(e == kept && ack(e, mine));
    }
    void two() {
        while (walk()) {
        }
    }
    void three() {
        look(kept);
        ENTRY(entry_drop)(kept);
    }
    void after() {
        RL_ASSERT(walked == 2); /* nobody touches the last one */
        link_suite::after();
    }
};

/* What was given back is got again before what comes after it, however often, and the heap that remembers it is full
 * and has dead ones. */
struct link_again : suite<link_suite, 2, 3> {
    entry *held[3];
    uint64_t deliveries[3];
    void before() {
        begin(5);
        takers.redeliveries.items = (heap_item *)malloc(2 * sizeof(heap_item));
        takers.redeliveries.capacity = 2;
        for (int i = 0; i < 3; i++) held[i] = acquire(&deliveries[i]);
    }
    void one() {
        for (int i = 2; i >= 0; i--) RL_ASSERT(release(held[i], deliveries[i]));
    }
    void two() {
        uint64_t delivery;
        for (int i = 0; i < 2; i++) {
            entry *e = acquire(&delivery);
            RL_ASSERT(e != NULL);
            RL_ASSERT(i || rl::rand(2) ? release(e, delivery) : ack(e, delivery));
        }
        withdraw(held[1]);
    }
};

/* A holder gives up its lock on an entry, and asks for a timer, while somebody ends all that may be ended. */
struct link_stolen : suite<link_suite, 3> {
    entry *held;
    uint64_t delivery;
    void before() {
        begin(2);
        held = acquire(&delivery);
        held->options = (entry_options *)calloc(1, sizeof(entry_options));
        RL_ASSERT(HEAP(heap_reserve)(&timers, 1));
    }
    void one() {
        RL_ASSERT(ENTRY(entry_unlock)(&held->word, delivery));
        lock();
        if (ENTRY(is_linked)(held)) ENTRY(timers_set)(&timers, held, 5);
        unlock();
        ack(held, delivery);
    }
    void three() { walk(); }
    void two() {
        entry *dead[MOST];
        int n = 0;
        lock();
        for (entry *e = list.first, *next; e != NULL; e = next) {
            next = e->next;
            if (!(state(e) == ENTRY_IS(ACQUIRED) ? ENTRY(entry_steal)(&e->word) : ENTRY(entry_withdraw)(&e->word)))
                continue;
            locked_unlink_ended(e);
            dead[n++] = e;
        }
        unlock();
        while (n) ENTRY(entry_drop)(dead[--n]);
    }
};

/* ------------------------------------------------------------------------------------------------- positions, heaps */
/* Any three steps: entries come at the end or in between and go, positions move on, close and open, alone and several
 * at one place. */
struct link_places : suite<link_suite, 2, 1> {
    entry *at[3]; /* where `extra` must be */
    void before() {
        begin(3);
        for (int i = 0; i < 3; i++) open(i, i < 2 ? linked[1] : NULL);
    }
    void thread(unsigned index) {
        for (unsigned step = 0; step < 2 - index; step++) {
            lock();
            change();
            for (int i = 0; i < 3; i++) RL_ASSERT(extra[i].on == NULL || ENTRY(position_at)(&extra[i]) == at[i]);
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
            if (extra[i].on == NULL || at[i] == NULL) break;
            at[i] = rl::rand(2) ? at[i]->next : NULL;
            ENTRY(position_move)(&list, &extra[i], at[i]);
            break;
        default:
            i = (int)rl::rand(3);
            if (extra[i].on != NULL) {
                ENTRY(position_close)(&list, &extra[i]);
            } else {
                open(i, list.first);
            }
        }
    }
    void open(int i, entry *where) {
        at[i] = where;
        RL_ASSERT(ENTRY(position_open)(&list, &extra[i], where));
    }
    /* A new entry before the i-th; who stood there stands on the new one. */
    void link(int i) {
        entry *e = make(), *where = i < nlinked ? linked[i] : NULL;
        uint64_t lo = i ? linked[i - 1]->order : 0, hi = where != NULL ? where->order : lo + 256;
        for (int k = 0; k < 3; k++)
            if (extra[k].on != NULL && at[k] == where) at[k] = e;
        e->order = lo + (hi - lo) / 2;
        e->seq = nseq++;
        ENTRY(list_insert)(&list, e, where);
        memmove(&linked[i + 1], &linked[i], (size_t)(nlinked++ - i) * sizeof *linked);
        linked[i] = e;
    }
    void drop(entry *e) {
        for (int k = 0; k < 3; k++)
            if (extra[k].on != NULL && at[k] == e) at[k] = e->next;
        RL_ASSERT(ENTRY(entry_withdraw)(&e->word));
        locked_unlink_ended(e);
        ENTRY(entry_drop)(e);
    }
    void after() {
        while (nlinked) drop(linked[0]);
        link_suite::after();
    }
};

/* Any three steps on five timers: set to another time, taken out, gone with their entry. */
struct link_timers : suite<link_suite, 2, 1> {
    void before() {
        static const int64_t when[] = {10, 40, 20, 50, 60};
        begin(5);
        RL_ASSERT(HEAP(heap_reserve)(&timers, 5));
        for (int i = 0; i < 5; i++) {
            linked[i]->options = (entry_options *)calloc(1, sizeof(entry_options));
            ENTRY(timers_set)(&timers, linked[i], when[i]);
        }
    }
    void thread(unsigned index) {
        for (unsigned step = 0; step < 2 - index; step++) {
            lock();
            entry *e = linked[rl::rand(nlinked)], *dead = NULL;
            int64_t n = timers.n - (e->options->timer != 0);
            switch (rl::rand(3)) {
            case 0:
                ENTRY(timers_remove)(&timers, e);
                break;
            case 1:
                ENTRY(timers_set)(&timers, e, rl::rand(2) ? 70 : 5);
                n++;
                break;
            default:
                RL_ASSERT(ENTRY(entry_withdraw)(&e->word));
                locked_unlink_ended(dead = e);
            }
            RL_ASSERT(timers.n == n);
            unlock();
            if (dead != NULL) ENTRY(entry_drop)(dead);
        }
    }
};

#endif
