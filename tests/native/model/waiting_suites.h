/* _waiting.pxd in the model checker, on the simplest structure there is: boxes, each a number of things under a lock,
 * and who waits for one.
 *
 * Each suite must end: a wake-up that is lost is a deadlock. A waiter that is used after it was freed, or never freed,
 * is told by the platform.
 */
#ifndef WAITING_SUITES_H
#define WAITING_SUITES_H

template <typename suite, unsigned threads> struct waiting_suite : rl::test_suite<suite, threads> {
    static const unsigned bound = 2;
    enum { BOXES = 2 };
    struct box {
        mt_lock lock;
        wait_list takers;
        rl::var<int> *things; /* under the lock */
    };
    box boxes[BOXES];

    void begin(int signals = 0, int raising = 0, void (*handler)(void) = NULL) {
        model_now = 1;
        model_begin_signals(signals, raising, handler);
        memset((void *)boxes, 0, sizeof boxes);
        for (int i = 0; i < BOXES; i++) {
            mt_load_relaxed_uptr(&boxes[i].lock.word);
            boxes[i].things = model_variable<rl::var<int>>();
            (*boxes[i].things)($) = 0;
        }
    }

    void end(int left) {
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

    static int take_now(box *b) {
        LOCK(enter)(&b->lock, 0, 1);
        int there = (*b->things)($);
        if (there) (*b->things)($) = there - 1;
        LOCK(leave)(&b->lock, 0);
        return there ? MT_OK : MT_EMPTY;
    }

    void give(int i, int n = 1) {
        wait_node *to_post = NULL;
        box *b = &boxes[i];
        LOCK(enter)(&b->lock, 0, 1);
        (*b->things)($) = (*b->things)($) + n;
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
struct waiting_woken : waiting_suite<waiting_woken, 3> {
    void before() { begin(); }
    void thread(unsigned index) {
        if (index < 2) {
            RL_ASSERT(take() == 0);
        } else {
            give(0);
            give(0);
        }
    }
    void after() { end(0); }
};

/* One that may time out, or be interrupted, while it is notified, and one that waits on. Who takes the thing gives it
 * back. */
template <typename suite> struct waiting_given_up : waiting_suite<suite, 3> {
    static const unsigned bound = 2;
    void before() { this->begin(suite::interrupts, suite::interrupts); }
    void thread(unsigned index) {
        if (index == 0) {
            this->give(0);
            return;
        }
        int r = this->take(0, 1, index == 1 && !suite::interrupts ? model_now + SOMETIME : FOREVER);
        RL_ASSERT(r == 0 || (suite::interrupts ? r == -1 - MT_INTERRUPTED : index == 1 && r == -1 - MT_TIMEOUT));
        if (r == 0) this->give(0);
    }
    void after() { this->end(1); }
};

struct waiting_timeout : waiting_given_up<waiting_timeout> {
    static const int interrupts = 0;
};
struct waiting_interrupt : waiting_given_up<waiting_interrupt> {
    static const int interrupts = 1;
};

/* Two takers of one thing, which give back what they take. A signal ends the sleep of the first, at any moment, and its
 * handler takes, too: from the same box; or from the other, where the second taker gives when it was served, so that
 * the handler ends after that. If the first kept its place in the list or its notification while the handler runs, or
 * slept on without another look, somebody would sleep for ever. */
template <typename suite> struct waiting_handler_suite : waiting_suite<suite, 3> {
    static suite *running;
    void before() {
        this->begin(1, 0, [] { running->handle(); });
        running = (suite *)this;
    }
    void handle() {
        if (PyThread_get_thread_ident() != 1) return; /* the second taker goes on */
        RL_ASSERT(this->take(suite::box) == suite::box);
        this->give(suite::box);
    }
    void thread(unsigned index) {
        if (index < 2) RL_ASSERT(this->take() == 0);
        this->give(0);
        if (index == 1) this->give(1);
    }
    void after() { this->end(2); }
};

template <typename suite> suite *waiting_handler_suite<suite>::running;

struct waiting_handler_takes : waiting_handler_suite<waiting_handler_takes> {
    static const int box = 0;
};
struct waiting_handler_waits : waiting_handler_suite<waiting_handler_waits> {
    static const int box = 1;
};

/* One waits for both boxes, and gives back what it takes; another waits for the second: what comes into that is not
 * lost when the first taker was notified of it, too. */
struct waiting_two_lists : waiting_suite<waiting_two_lists, 3> {
    static const unsigned bound = 1;
    void before() { begin(); }
    void thread(unsigned index) {
        if (index == 0) {
            int from = take(0, 2);
            give(from);
        } else if (index == 1) {
            RL_ASSERT(take(1) == 1);
        } else {
            give(0);
            give(1);
        }
    }
    void after() { end(1); }
};

/* A task and another waiter, one thing. The task is notified and gives back what it takes; or it is cancelled, at any
 * moment, and forwards; or its loop is closed: then its poster finishes the wait, and forwards. A thing that comes
 * notifies a thread beside the task, so only another task depends on what is forwarded. */
template <typename suite> struct waiting_task_suite : waiting_suite<suite, 3> {
    typedef waiting_suite<suite, 3> base;
    model_task task, other;
    wait_point point;
    waiter *w;
    mt_atomic_u32 finished;
    static suite *running;

    void before() {
        this->begin();
        memset((void *)&finished, 0, sizeof finished);
        mt_load_relaxed_u32(&finished);
        running = (suite *)this;
        begin_task(&task, suite::closed ? refused : NULL);
        begin_task(&other, NULL);
        base::fill(&point, &this->boxes[0]);
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

    void wait() {
        w = WAITING(new_waiter)(1, &task);
        if (WAITING(prepare_to_wait)(&point, 1, w) != WAIT_FOR_IT || suite::closed) return;
        bool rung = PyThread_acquire_lock_timed(task.bell, 0, 0) == PY_LOCK_ACQUIRED;
        finish(!rung); /* not rung: cancelled */
        if (rung && base::take_now(&this->boxes[0]) == MT_OK) this->give(0);
    }

    /* The other task waits until it has the thing. */
    void wait_on() {
        wait_point p;
        base::fill(&p, &this->boxes[0]);
        while (base::take_now(&this->boxes[0]) != MT_OK) {
            waiter *own = WAITING(new_waiter)(1, &other);
            if (WAITING(prepare_to_wait)(&p, 1, own) == WAIT_FOR_IT) {
                PyThread_acquire_lock_timed(other.bell, -1, 0);
                WAITING(finish_wait)(&p, 1, own, 0);
            }
            model_free(own);
        }
    }

    void thread(unsigned index) {
        if (index == 0) wait();
        if (index == 1 && suite::among_tasks) wait_on();
        if (index == 1 && !suite::among_tasks) RL_ASSERT(this->take() == 0);
        if (index == 2) this->give(0);
    }

    void after() {
        if (suite::closed) finish(1); /* the coroutine is collected */
        model_free(w);
        end_task(&task);
        end_task(&other);
        this->end(0);
    }
};

template <typename suite> suite *waiting_task_suite<suite>::running;

struct waiting_cancelled : waiting_task_suite<waiting_cancelled> {
    static const bool closed = false, among_tasks = false;
};
struct waiting_refused : waiting_task_suite<waiting_refused> {
    static const bool closed = true, among_tasks = false;
};
struct waiting_cancelled_task : waiting_task_suite<waiting_cancelled_task> {
    static const bool closed = false, among_tasks = true;
};
struct waiting_refused_task : waiting_task_suite<waiting_refused_task> {
    static const bool closed = true, among_tasks = true;
};

#endif
