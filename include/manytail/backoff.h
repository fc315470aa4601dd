/* Bounded exponential back-off for spin loops.
 *
 * Spinning pays only where the other thread runs on another core at the same time, that is without the GIL. It is
 * bounded because a thread that spins while attached to the interpreter delays a stop-the-world pause.
 * The caller spins until mt_backoff_spin() returns 0, then blocks.
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
#elif defined(__aarch64__)
    /* `yield` is a no-op on most cores; isb is about as long as x86's pause. GNU compilers for Windows define _M_ARM64,
     * too. */
    __asm__ __volatile__("isb" ::: "memory");
#elif defined(_M_ARM64)
    __yield();
#endif
}

typedef struct {
    uint32_t step;  /* doublings so far */
    uint32_t limit; /* stop when `step` reaches it */
} mt_backoff;

/* Pause 2**step times and return 1; 0 without a pause when the limit is reached. */
static inline int mt_backoff_spin(mt_backoff *b) {
    uint32_t i;
    if (b->step >= b->limit) return 0;
    for (i = 0; i < (UINT32_C(1) << b->step); i++) mt_cpu_pause();
    b->step++;
    return 1;
}

/* Let another thread run. Only for the planted delays, and for waits that cannot block because memory ran out. */
static inline void mt_yield_cpu(void) {
#if defined(_WIN32)
    SwitchToThread();
#else
    sched_yield();
#endif
}

#endif
