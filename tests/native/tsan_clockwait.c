/* ThreadSanitizer of gcc 12 does not know sem_clockwait, with which CPython waits: loaded before it, this tells it what
 * the wait orders. */
#define _GNU_SOURCE 1

#include <dlfcn.h>
#include <semaphore.h>
#include <time.h>

extern void __tsan_acquire(void *);

int sem_clockwait(sem_t *s, clockid_t clock, const struct timespec *until) {
    static int (*wait)(sem_t *, clockid_t, const struct timespec *);
    int r;
    if (wait == NULL) wait = (int (*)(sem_t *, clockid_t, const struct timespec *))dlsym(RTLD_NEXT, "sem_clockwait");
    r = wait(s, clock, until);
    if (r == 0) __tsan_acquire(s);
    return r;
}
