/* Bounded spinning: a pause that doubles, and an end to it.
 *
 * Spinning pays only where the other side runs on another core at the same time, that is without the GIL; it must
 * always end, because a thread that spins while attached to the interpreter holds up whoever wants to stop the world.
 * The caller asks mt_backoff_spin() until it says 0, then waits for real.
 */
#ifndef MANYTAIL_BACKOFF_H
#define MANYTAIL_BACKOFF_H

#include <stdint.h>

#if defined(_MSC_VER)
#include <intrin.h>
#endif
#if defined(_WIN32)
#include <windows.h>
#else
#include <sched.h>
#endif

/* Tell the core that this is a spin loop. */
static inline void mt_cpu_pause(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(_M_X64) || defined(_M_IX86)
    _mm_pause();
#elif defined(_M_ARM64)
    __yield();
#elif defined(__aarch64__)
    /* `yield` is a no-op on most cores; isb is about as long as x86's pause */
    __asm__ __volatile__("isb" ::: "memory");
#endif
}

typedef struct {
    uint32_t step;  /* how many doublings were done */
    uint32_t limit; /* how many are allowed */
} mt_backoff;

/* Pause 2**step times; 0 when the limit is reached and the caller should stop spinning. */
static inline int mt_backoff_spin(mt_backoff *b) {
    uint32_t i;
    if (b->step >= b->limit) return 0;
    for (i = 0; i < (UINT32_C(1) << b->step); i++) mt_cpu_pause();
    b->step++;
    return 1;
}

/* Give the processor away. Used only where waiting for real is impossible because memory for a semaphore ran out. */
static inline void mt_yield_cpu(void) {
#if defined(_WIN32)
    SwitchToThread();
#else
    sched_yield();
#endif
}

#endif
