/* _waiting.pxd in the model checker, on the simplest structure there is: boxes, each a number of things under a lock,
 * and who waits for one.
 *
 * Each suite must end: a wake-up that is lost is a deadlock. A waiter that is used after it was freed, or never freed,
 * is told by the platform.
 */
#ifndef WAITING_SUITES_H
#define WAITING_SUITES_H

struct waiting_suite : run_by_checker {
    enum { BOXES = 2 };
    struct box {
        mt_lock lock;
        wait_list takers;
        rl::var<int> *things; /* under the lock */
    };
    box boxes[BOXES];
    int left; /* things that were given and not taken */

    void begin(int signals = 0, int raising = 0, void (*handler)(void) = NULL) {
        model_now = 1;
        model_begin_signals(signals, raising, handler);
        left = 0;
        memset((void *)boxes, 0, sizeof boxes);
        for (int i = 0; i < BOXES; i++) {
            mt_load_relaxed_uptr(&boxes[i].lock.word);
            boxes[i].things = model_variable<rl::var<int>>();
            (*boxes[i].things)($) = 0;
        }
    }

    void before() { begin(); }

    void after() {
        int things = 0;
        for (int i = 0; i < BOXES; i++) {
            things += (*boxes[i].things)($);
            RL_ASSERT(boxes[i].takers.n == 0);
        }
        RL_ASSERT(things == left);
        RL_ASSERT(model_end_memory() == 0);
    }

    static int poll(wait_point *p, int) { return (*((box *)p->of)->things)($) ? MT_OK : WAIT_FOR_IT; }

    static void forward(wait_point *p, wait_node **to_post) {
        if ((*((box *)p->of)->things)($)) WAITING(notify)(p->list, to_post);
    }

    static void fill(wait_point *p, box *b) {
        WAITING(make_point)(p, &b->takers, &b->lock, 0, 1, poll, b);
        p->forward = forward;
    }

    int take_now(box *b) {
        LOCK(enter)(&b->lock, 0, 1);
        int there = (*b->things)($);
        if (there) (*b->things)($) = there - 1;
        left -= there != 0;
        LOCK(leave)(&b->lock, 0);
        return there ? MT_OK : MT_EMPTY;
    }

    void give(int i, int n = 1) {
        wait_node *to_post = NULL;
        box *b = &boxes[i];
        LOCK(enter)(&b->lock, 0, 1);
        (*b->things)($) = (*b->things)($) + n;
        left += n;
        WAITING(notify)(&b->takers, &to_post);
        LOCK(leave)(&b->lock, 0);
        if (to_post != NULL) WAITING(post)(to_post);
    }

    /* From box `first`, or, n == 2, from both: which one it came from, or -1 - status. */
    int take(int first = 0, int n = 1, int64_t deadline = FOREVER) {
        wait_point p[BOXES];
        int r, k, from = -1;
        for (k = 0; k < n; k++) fill(&p[k], &boxes[first + k]);
        do {
            r = MT_EMPTY;
            for (k = 0; k < n && r != MT_OK; k++) {
                r = take_now(&boxes[first + k]);
                if (r == MT_OK) {
                    p[k].woken = 0; /* its notification is answered, those of the others are not */
                    from = first + k;
                }
            }
        } while (WAITING(again)(p, n, &r, deadline));
        return r == MT_OK ? from : -1 - r;
    }
};

/* Two takers, one giver: each thing that comes is found, asleep or not. */
struct waiting_woken : suite<waiting_suite, 3> {
    void one() { RL_ASSERT(take() == 0); }
    void two() { RL_ASSERT(take() == 0); }
    void three() {
        give(0);
        give(0);
    }
};

/* One that may time out, or be interrupted, while it is notified, and one that waits on. Who takes the thing gives it
 * back. */
template <int interrupts> struct waiting_given_up : waiting_suite {
    void before() { begin(interrupts, interrupts); }
    void one() { give(0); }
    void two() { take_or_give_up(!interrupts); }
    void three() { take_or_give_up(false); }
    void take_or_give_up(bool timed) {
        int r = take(0, 1, timed ? model_now + SOMETIME : FOREVER);
        RL_ASSERT(r == 0 || (interrupts && r == -1 - MT_INTERRUPTED) || (timed && r == -1 - MT_TIMEOUT));
        if (r == 0) give(0);
    }
};

struct waiting_timeout : suite<waiting_given_up<0>, 3> {};
struct waiting_interrupt : suite<waiting_given_up<1>, 3> {};

/* Two takers of one thing, which give back what they take. A signal ends the sleep of the first, at any moment, and its
 * handler takes, too: from the same box; or from the other, where the second taker gives when it was served, so that
 * the handler ends after that. If the first kept its place in the list or its notification while the handler runs, or
 * slept on without another look, somebody would sleep for ever. */
template <int of_handler> struct waiting_handler_suite : waiting_suite {
    static waiting_handler_suite *running;
    void before() {
        begin(1, 0, [] { running->handle(); });
        running = this;
    }
    void handle() {
        if (PyThread_get_thread_ident() != 1) return; /* the second taker goes on */
        RL_ASSERT(take(of_handler) == of_handler);
        give(of_handler);
    }
    void thread(unsigned index) {
        if (index < 2) RL_ASSERT(take() == 0);
        give(0);
        if (index == 1) give(1);
    }
};

template <int of_handler> waiting_handler_suite<of_handler> *waiting_handler_suite<of_handler>::running;

struct waiting_handler_takes : suite<waiting_handler_suite<0>, 3> {};
struct waiting_handler_waits : suite<waiting_handler_suite<1>, 3> {};

/* One waits for both boxes, and gives back what it takes; another waits for the second: what comes into that is not
 * lost when the first taker was notified of it, too. */
struct waiting_two_lists : suite<waiting_suite, 3, 1> {
    void one() { give(take(0, 2)); }
    void two() { RL_ASSERT(take(1) == 1); }
    void three() {
        give(0);
        give(1);
    }
};

/* A task and another waiter, one thing. The task is notified and gives back what it takes; or it is cancelled, at any
 * moment, and forwards; or its loop is closed: then its poster finishes the wait, and forwards. A thing that comes
 * notifies a thread beside the task, so only another task depends on what is forwarded. */
template <bool closed, bool among_tasks> struct waiting_task_suite : waiting_suite {
    model_task task, other;
    wait_point point;
    waiter *w;
    mt_atomic_u32 finished;
    static waiting_task_suite *running;

    void before() {
        begin();
        memset((void *)&finished, 0, sizeof finished);
        mt_load_relaxed_u32(&finished);
        running = this;
        begin_task(&task, closed ? refused : NULL);
        begin_task(&other, NULL);
        fill(&point, &boxes[0]);
    }

    static void begin_task(model_task *t, void (*refused)(model_task *)) {
        t->refs = 1;
        t->bell = (model_semaphore *)PyThread_allocate_lock();
        PyThread_acquire_lock_timed(t->bell, 0, 0);
        t->refused = refused;
    }

    static void end_task(model_task *t) {
        PyThread_free_lock(t->bell);
        RL_ASSERT(t->refs == 1);
    }

    static void refused(model_task *) { running->finish(1); }

    void finish(int forwards) {
        if (mt_xchg_acq_rel_u32(&finished, 1) == 0) WAITING(finish_wait)(&point, 1, w, forwards);
    }

    void one() {
        w = WAITING(new_waiter)(1, &task);
        if (WAITING(prepare_to_wait)(&point, 1, w) != WAIT_FOR_IT || closed) return;
        bool rung = PyThread_acquire_lock_timed(task.bell, 0, 0) == PY_LOCK_ACQUIRED;
        finish(!rung); /* not rung: cancelled */
        if (rung && take_now(&boxes[0]) == MT_OK) give(0);
    }

    void two() {
        if (among_tasks) {
            other_waits();
        } else {
            RL_ASSERT(take() == 0);
        }
    }

    /* The other task waits until it has the thing. */
    void other_waits() {
        wait_point p;
        fill(&p, &boxes[0]);
        while (take_now(&boxes[0]) != MT_OK) {
            waiter *own = WAITING(new_waiter)(1, &other);
            if (WAITING(prepare_to_wait)(&p, 1, own) == WAIT_FOR_IT) {
                PyThread_acquire_lock_timed(other.bell, -1, 0);
                WAITING(finish_wait)(&p, 1, own, 0);
            }
            model_free(own);
        }
    }

    void three() { give(0); }

    void after() {
        if (closed) finish(1); /* the coroutine is collected */
        model_free(w);
        end_task(&task);
        end_task(&other);
        waiting_suite::after();
    }
};

template <bool closed, bool among_tasks>
waiting_task_suite<closed, among_tasks> *waiting_task_suite<closed, among_tasks>::running;

struct waiting_cancelled : suite<waiting_task_suite<false, false>, 3> {};
struct waiting_refused : suite<waiting_task_suite<true, false>, 3> {};
struct waiting_cancelled_task : suite<waiting_task_suite<false, true>, 3> {};
struct waiting_refused_task : suite<waiting_task_suite<true, true>, 3> {};

#endif
