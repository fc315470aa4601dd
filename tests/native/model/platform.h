/* The world of the kernels inside the model checker: semaphores, time, interrupts and memory.
 *
 * A semaphore is relacy's, so that the checker explores every order of waits and posts, and
 * reports a deadlock when nobody can go on. Time stands still but for waits that time out. Freed memory is
 * filled with a pattern and kept until the run of one schedule ends, so that an atomic in it is recognised when it is
 * used again. Spinning is left out: it is optional for every caller, and would only multiply the schedules.
 */
#ifndef MODEL_PLATFORM_H
#define MODEL_PLATFORM_H

#include <Python.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <atomic>
#include <new>

#include <relacy/relacy.hpp>

/* relacy takes over names that its users write; ours call it by its own. */
#undef new
#undef delete
#undef malloc
#undef calloc
#undef realloc
#undef free
#undef errno
#undef assert
#include <assert.h>
#undef memory_order_relaxed
#undef memory_order_consume
#undef memory_order_acquire
#undef memory_order_release
#undef memory_order_acq_rel
#undef memory_order_seq_cst
#undef VAR
#undef VAR_T
#undef TLS_T

/* Two records of pins are part of a domain, so that three pins add a block. Here, because the first file that includes
 * epoch.h decides. */
#define MT_EPOCH_FIRST 2

/* ---------------------------------------------------------------------------------------------------------- memory */
enum { MODEL_FREED = 0xDD };

/* Stands for the plain fields of a block when the checker looks for races; freeing it writes to both. */
struct model_fields {
    rl::var<int> constant; /* those that do not change once it is known to others */
    rl::var<int> guarded;  /* those under some lock */
};

struct model_block {
    void *memory;
    size_t size;
    bool freed;
    void (*destroy)(void *); /* of one of relacy's variables; NULL: memory of the kernels */
    model_fields *fields;    /* or NULL */
    rl::var<int> *zeroed; /* memory of the kernels: written when it is zeroed, read at each access to an atomic in it */
};

/* Of one schedule. Kept in plain memory: relacy watches what `new` gives. */
enum { MODEL_BLOCKS = 2048 };
static model_block model_blocks[MODEL_BLOCKS];
static int model_nblocks;

static void *model_add_block(size_t size, void (*destroy)(void *)) {
    model_block b = {::malloc(size), size, false, destroy, NULL, NULL};
    RL_ASSERT(model_nblocks < MODEL_BLOCKS);
    memset(b.memory, 0, size);
    model_blocks[model_nblocks++] = b;
    return b.memory;
}

template <typename T> static void model_destroy(void *p) { ((T *)p)->~T(); }

/* A variable of relacy that lives as long as the schedule. */
template <typename T> static T *model_variable() { return new (model_add_block(sizeof(T), &model_destroy<T>)) T(); }

static bool model_is_freed(void *p) {
    uintptr_t pattern;
    memset(&pattern, MODEL_FREED, sizeof pattern);
    return (uintptr_t)p == pattern;
}

static model_block *model_block_of(void *p) {
    for (int i = 0; i < model_nblocks; i++)
        if (model_blocks[i].memory == p && model_blocks[i].destroy == NULL) return &model_blocks[i];
    RL_ASSERT(false); /* was never allocated */
    return NULL;
}

static unsigned long model_without_memory; /* a thread, of the functions that must not need any; 0: none */

static void *model_malloc(size_t size) {
    RL_ASSERT(model_without_memory != PyThread_get_thread_ident());
    void *memory = model_add_block(size, NULL);
    rl::var<int> *zeroed = model_variable<rl::var<int>>();
    rl::context &c = rl::ctx();
    c.disable_preemption();
    (*zeroed)($) = 0;
    c.enable_preemption();
    model_block_of(memory)->zeroed = zeroed;
    return memory;
}

/* Of the kernels' memory that has this address in it; NULL: it is static. */
static rl::var<int> *model_zeroed(void *at) {
    for (int i = 0; i < model_nblocks; i++) {
        model_block *b = &model_blocks[i];
        if (b->destroy == NULL && at >= b->memory && at < (char *)b->memory + b->size) return b->zeroed;
    }
    return NULL;
}

static model_fields *model_watched(void *p) {
    model_block *b = model_block_of(p);
    RL_ASSERT(!b->freed); /* else: access to freed memory */
    return b->fields;
}

static model_fields *model_watch(void *p) {
    model_fields *fields = model_variable<model_fields>();
    return model_block_of(p)->fields = fields;
}

static void model_free(void *p) {
    if (p == NULL) return;
    model_block *b = model_block_of(p);
    RL_ASSERT(!b->freed); /* else: freed twice */
    if (b->fields != NULL) b->fields->constant($) = b->fields->guarded($) = 0;
    b->freed = true;
    memset(p, MODEL_FREED, b->size);
}

static void *model_realloc(void *p, size_t size) {
    void *made = model_malloc(size);
    if (p != NULL) {
        model_block *b = model_block_of(p);
        memcpy(made, p, size < b->size ? size : b->size);
        model_free(p);
    }
    return made;
}

/* How many blocks were not freed; all of them are gone afterwards. */
static int model_end_memory() {
    int leaked = 0;
    for (; model_nblocks; model_nblocks--) {
        model_block *b = &model_blocks[model_nblocks - 1];
        if (b->destroy != NULL) {
            b->destroy(b->memory);
        } else {
            leaked += !b->freed;
        }
        ::free(b->memory);
    }
    return leaked;
}

#define malloc(size) model_malloc(size)
#define calloc(n, size) model_malloc((n) * (size))
#define realloc(p, size) model_realloc(p, size)
#define free(p) model_free(p)

/* ------------------------------------------------------------------------------------------------------------ time */
#define MANYTAIL_CLOCK_H
#define MANYTAIL_BACKOFF_H

static int64_t model_now = 1;
static inline int64_t mt_now_ns(void) { return model_now; }
static inline int64_t mt_now_coarse_ns(void) { return model_now; }

typedef struct {
    uint32_t step, limit;
} mt_backoff;
static inline int mt_backoff_spin(mt_backoff *) { return 0; }
static inline void mt_cpu_pause(void) {}
static inline void mt_yield_cpu(void) { RL_ASSERT(false); /* memory never runs out here */ }

/* ------------------------------------------------------------------------------------------------------ semaphores */
struct model_tag;
typedef rl::semaphore<model_tag> model_semaphore;

static const int64_t MODEL_FOREVER_US = 1000000000; /* longer waits have no end here */

PyThread_type_lock PyThread_allocate_lock(void) {
    model_semaphore *s = model_variable<model_semaphore>();
    s->init(false, 1, 1, $);
    return s;
}

void PyThread_free_lock(PyThread_type_lock lock) { ((model_semaphore *)lock)->deinit($); }

static int model_signals;             /* how many more waits of attached calls a signal may end in this schedule */
static unsigned long model_signalled; /* the thread whose wait it ended; 0: none */
static void (*model_handler)(void);   /* the signal's, or NULL */

/* A wait with a deadline ends by it at any moment, or as if there were none: the checker tries both. Likewise one that
 * a signal may end. */
PyLockStatus PyThread_acquire_lock_timed(PyThread_type_lock lock, PY_TIMEOUT_T us, int interruptible) {
    bool timed = us == 0 || (us > 0 && us < MODEL_FOREVER_US && rl::rand(2));
    bool signal = !timed && us != 0 && interruptible && model_signals && rl::rand(2);
    model_signals -= signal;
    if (((model_semaphore *)lock)->wait(timed || signal, false, $) == rl::sema_wakeup_reason_success) {
        model_signals += signal;
        return PY_LOCK_ACQUIRED;
    }
    if (signal) {
        model_signalled = PyThread_get_thread_ident();
        return PY_LOCK_INTR;
    }
    if (us > 0) model_now += us * 1000;
    return PY_LOCK_FAILURE;
}

void PyThread_release_lock(PyThread_type_lock lock) {
    unsigned before;
    RL_ASSERT(((model_semaphore *)lock)->post(1, before, $)); /* else: it was free */
}

unsigned long PyThread_get_thread_ident(void) { return rl::ctx().threadx_->index_ + 1; }
PyThreadState *PyEval_SaveThread(void) { return NULL; }
void PyEval_RestoreThread(PyThreadState *) {}

/* -------------------------------------------------------------------------------------------------- CPython's rest */
static int model_interrupts; /* how many more waits of attached calls may be interrupted in this schedule */

static inline int run_signal_handlers(void) {
    if (model_signalled == PyThread_get_thread_ident()) {
        model_signalled = 0;
        if (model_handler != NULL) model_handler();
    }
    if (model_interrupts == 0 || rl::rand(2) == 0) return 0;
    model_interrupts--;
    return -1;
}

/* In this schedule so many signals may come during waits, and so many handlers may raise. */
static inline void model_begin_signals(int signals, int raising, void (*handler)(void) = NULL) {
    model_signals = signals;
    model_interrupts = raising;
    model_handler = handler;
}

/* An object is its count, unless the suite says otherwise. */
static void native_keep(uintptr_t object) { ++*(int64_t *)object; }
static void (*model_keep)(uintptr_t item) = native_keep;
#define MT_KEEP(item) model_keep(item)
#define MT_GIL_LOCKED 0
static inline void native_drop(PyObject *object) { RL_ASSERT(--*(int64_t *)object >= 0); }
#define MT_DROP(item) native_drop((PyObject *)(item))

/* A task: what stands for a coroutine. Its loop is a thread that waits for the bell; a loop that is closed refuses. */
struct model_task {
    int64_t refs;
    model_semaphore *bell;
    void (*refused)(model_task *); /* the loop is closed: called by who posts */
};

static inline void wake_task(void *task) {
    model_task *t = (model_task *)task;
    if (t->refused != NULL) {
        t->refused(t);
    } else {
        PyThread_release_lock(t->bell);
    }
    native_drop((PyObject *)task);
}

#endif
