/* Planted delays: mt_point() marks a place between two steps of a protocol where other threads may interleave.
 *
 * In a build with -DMT_DELAYS=1 a point yields the processor in one of eight calls and spins for a random time in
 * another, so that stress tests meet rare interleavings. In every other build it is empty.
 */
#ifndef MANYTAIL_DELAYS_H
#define MANYTAIL_DELAYS_H

#if defined(MT_DELAYS) && MT_DELAYS

#include <stdint.h>

#include "atomics.h"
#include "backoff.h"

static MT_THREAD_LOCAL uint64_t mt_delay_state;

static inline void mt_point(void) {
    uint64_t x = mt_delay_state, i;
    if (x == 0) x = (uint64_t)(uintptr_t)&mt_delay_state | 1; /* differs from thread to thread */
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    mt_delay_state = x;
    if ((x & 7) == 0) {
        mt_yield_cpu();
    } else if ((x & 7) == 1) {
        for (i = (x >> 3) & 1023; i; i--) mt_cpu_pause();
    }
}

#else

static inline void mt_point(void) {}

#endif
#endif
