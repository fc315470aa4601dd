/* The monotonic clock in nanoseconds, for deadlines. Setting the time of day does not change it. */
#ifndef MANYTAIL_CLOCK_H
#define MANYTAIL_CLOCK_H

#include <stdint.h>

#if defined(_WIN32)
#include <windows.h>
static inline int64_t mt_now_ns(void) {
    LARGE_INTEGER f, c;
    QueryPerformanceFrequency(&f);
    QueryPerformanceCounter(&c);
    return (int64_t)(c.QuadPart / f.QuadPart) * INT64_C(1000000000) +
           (int64_t)(c.QuadPart % f.QuadPart) * INT64_C(1000000000) / f.QuadPart;
}
#else
#include <time.h>
static inline int64_t mt_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}
#endif

/* The same clock as of the last timer tick: up to some milliseconds late, and several times cheaper to read. */
static inline int64_t mt_now_coarse_ns(void) {
#if defined(CLOCK_MONOTONIC_COARSE)
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
    return (int64_t)t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
#else
    return mt_now_ns();
#endif
}

#endif
