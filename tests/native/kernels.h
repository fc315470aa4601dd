/* The kernels in one piece: what Cython made of kernels.pyx, the names of its functions and structs, and what the
 * kernels import from modules, tied to what stands for it without an interpreter. A driver includes this after its
 * platform.h. */
#ifndef NATIVE_KERNELS_H
#define NATIVE_KERNELS_H

#if defined(__cplusplus)
#include "kernels.cpp"
#else
#include "kernels.c"
#endif

#define LOCK(name) __pyx_f_8manytail_5_lock_##name
#define WAITING(name) __pyx_f_8manytail_8_waiting_##name
#define READY(name) __pyx_f_8manytail_6_ready_##name
#define HEAP(name) __pyx_f_8manytail_5_heap_##name
#define CHUNK(name) __pyx_f_8manytail_7_chunks_##name
#define MQ_SIZES(name) __pyx_f_8manytail_9_mq_sizes_##name
#define MQ_READY(name) __pyx_f_8manytail_9_mq_ready_##name
#define MQ_GET(name) __pyx_f_8manytail_7_mq_get_##name
#define MQ_TASKS(name) __pyx_f_8manytail_9_mq_tasks_##name
#define MQ_PUT(name) __pyx_f_8manytail_7_mq_put_##name
#define MQ_LIFE(name) __pyx_f_8manytail_8_mq_life_##name
#define MQ_CHANGES(name) __pyx_f_8manytail_11_mq_changes_##name
#define MQ_CLEAR(name) __pyx_f_8manytail_9_mq_clear_##name
#define MQ_ITERATE(name) __pyx_f_8manytail_11_mq_iterate_##name
#define MQN(name) __pyx_f_8manytail_9_mq_nogil_##name
#define WP(name) __pyx_f_8manytail_3_wp_##name
#define SECTION(name) __pyx_f_8manytail_13_section_lock_##name
#define SECTION_IS(name) __pyx_e_8manytail_13_section_lock_##name
#define PS(name) __pyx_f_8manytail_3_ps_##name
#define PS_ENUM(name) __pyx_e_8manytail_3_ps_##name
#define ENTRY(name) __pyx_f_8manytail_6_entry_##name
#define EQ(name) __pyx_f_8manytail_3_eq_##name
#define MANAGER(name) __pyx_f_8manytail_11_eq_manager_##name
#define EQN(name) __pyx_f_12entries_shim_##name
#define ENTRY_IS(name) __pyx_e_8manytail_6_entry_##name
#define EQ_IS(name) __pyx_e_8manytail_3_eq_##name

typedef struct __pyx_t_8manytail_8_waiting_waiter waiter;
typedef struct __pyx_t_8manytail_8_waiting_wait_list wait_list;
typedef struct __pyx_t_8manytail_8_waiting_wait_node wait_node;
typedef struct __pyx_t_8manytail_8_waiting_wait_point wait_point;
typedef struct __pyx_t_8manytail_3_mq_queue mq_queue;
typedef struct __pyx_t_8manytail_3_mq_subqueue mq_subqueue;
typedef struct __pyx_t_8manytail_11_mq_iterate_iterator_position mq_position;
typedef struct __pyx_t_8manytail_3_wp_pool wp_pool;
typedef struct __pyx_t_8manytail_3_wp_lane wp_lane;
typedef struct __pyx_t_8manytail_13_section_lock_section_lock section_lock;
typedef struct __pyx_t_8manytail_3_ps_pubsub ps_pubsub;
typedef struct __pyx_t_8manytail_3_ps_subscriber ps_subscriber;
typedef struct __pyx_t_8manytail_3_ps_message_chunk ps_chunk;
typedef struct __pyx_t_8manytail_3_ps_freed ps_freed;
typedef struct __pyx_t_8manytail_6_entry_entry entry;
typedef struct __pyx_t_8manytail_6_entry_entry_options entry_options;
typedef struct __pyx_t_8manytail_6_entry_entry_list entry_list;
typedef struct __pyx_t_8manytail_5_heap_heap heap;
typedef struct __pyx_t_8manytail_5_heap_heap_item heap_item;
typedef struct __pyx_t_8manytail_6_ready_ready_node ready_node;
typedef struct __pyx_t_8manytail_6_ready_ready_level ready_level;
typedef struct __pyx_t_8manytail_6_ready_ready_index ready_index;
typedef struct __pyx_t_8manytail_7_chunks_chunk chunk;
typedef struct __pyx_t_8manytail_6_entry_anchor anchor;
typedef struct __pyx_t_8manytail_6_entry_cursor_position cursor_position;
typedef struct __pyx_t_8manytail_3_eq_acquired_entry acquired_entry;
typedef struct __pyx_t_8manytail_3_eq_eq_registry eq_registry;
typedef struct __pyx_t_8manytail_3_eq_shared_credit shared_credit;
typedef struct __pyx_t_12entries_shim_nogil_queue nogil_queue;
typedef struct __pyx_t_12entries_shim_nogil_subscription nogil_subscription;

#define WAIT_FOR_IT __pyx_e_8manytail_8_waiting_WAIT
#define MT_ROUND_ROBIN __pyx_e_8manytail_3_mq_MT_ROUND_ROBIN
#define MT_WEIGHTED __pyx_e_8manytail_3_mq_MT_WEIGHTED
#define MT_OLDEST __pyx_e_8manytail_3_mq_MT_OLDEST

/* Of one process, or of one schedule of the model checker. */
static struct __pyx_t_8manytail_10_lifecycle_mt_registry native_registry;
static unsigned long native_main_thread; /* 0: no thread's */
static int native_semaphores_miss_signals;

static void wake_task_of(wait_node *node) { wake_task(node->who->task); }

static void __attribute__((constructor)) tie_kernels(void) {
    LOCK(wait_for_lock) = LOCK(lock_slow);
    LOCK(wait_for_heavy_lock) = LOCK(lock_slow_heavy);
    WAITING(run_signal_handlers) = run_signal_handlers;
    WAITING(wake_task) = wake_task_of;
    __pyx_vp_8manytail_8_waiting_main_thread = &native_main_thread;
    __pyx_vp_8manytail_8_waiting_semaphores_miss_signals = &native_semaphores_miss_signals;
    __pyx_vp_8manytail_10_lifecycle_multiqueues = &native_registry;
}

/* What a call does between two tries, the first of which found `r`: MT_OK, try again, or what it returns. */
static int wait_at(wait_point *p, int r, int64_t deadline) {
    WAITING(again)(p, 1, &r, deadline);
    return r;
}

static int wait_for_items(mq_queue *q, int64_t deadline, int attached) {
    wait_point p;
    MQ_GET(items_point)(&p, q, attached);
    return wait_at(&p, MT_EMPTY, deadline);
}

static int wait_for_room(mq_subqueue *s, int64_t deadline, int attached) {
    wait_point p;
    MQ_PUT(free_slot_point)(&p, s, attached);
    return wait_at(&p, MT_FULL, deadline);
}

static int wait_for_message(ps_subscriber *s, int64_t deadline) {
    wait_point p;
    PS(message_point)(&p, s);
    return wait_at(&p, MT_EMPTY, deadline);
}

static int wait_for_free_slot(ps_pubsub *q, int64_t deadline) {
    wait_point p;
    PS(free_slot_point)(&p, q);
    return wait_at(&p, MT_FULL, deadline);
}

#endif
