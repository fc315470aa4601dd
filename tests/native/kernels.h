/* The kernels in one piece: what Cython made of kernels.pyx, the names of its functions, and what the kernels import from the _wait module tied to
 * the same functions without an interpreter. A driver includes this after its platform.h. */
#ifndef NATIVE_KERNELS_H
#define NATIVE_KERNELS_H

#if defined(__cplusplus)
#include "kernels.cpp"
#else
#include "kernels.c"
#endif

#define MQ(name) __pyx_f_8manytail_3_mq_##name
#define WP(name) __pyx_f_8manytail_3_wp_##name
#define PS(name) __pyx_f_8manytail_3_ps_##name
#define PS_ENUM(name) __pyx_e_8manytail_3_ps_##name
#define WAIT(name) __pyx_f_7kernels_##name

typedef struct __pyx_t_8manytail_3_mq_cursor mq_cursor;
typedef struct __pyx_t_8manytail_3_wp_pool wp_pool;
typedef struct __pyx_t_8manytail_3_wp_lane wp_lane;
typedef struct __pyx_t_8manytail_3_ps_pubsub ps_pubsub;
typedef struct __pyx_t_8manytail_3_ps_subscriber ps_subscriber;
typedef struct __pyx_t_8manytail_3_ps_message_chunk ps_chunk;
typedef struct __pyx_t_8manytail_3_ps_freed ps_freed;

/* Of one process, or of one schedule of the model checker. */
static struct __pyx_t_8manytail_5_wait_mt_registry native_registry;

#define IMPORTED(name) __pyx_f_8manytail_5_wait_##name

static void __attribute__((constructor)) tie_kernels(void) {
    IMPORTED(lock_slow) = WAIT(lock_slow);
    IMPORTED(post_lock_node) = WAIT(post_lock_node);
    IMPORTED(waiter_open) = WAIT(waiter_open);
    IMPORTED(waiter_close) = WAIT(waiter_close);
    IMPORTED(waiter_park) = WAIT(waiter_park);
    IMPORTED(waiter_await_post) = WAIT(waiter_await_post);
    IMPORTED(post_chain) = WAIT(post_chain);
    __pyx_vp_8manytail_5_wait_multiqueues = &native_registry;
}

#endif
