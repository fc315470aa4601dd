/* Counts the steps of an unlock of lock.h, for test_lock_cost.py: prints how many it makes on average, while WAITERS
 * threads wait, of which each is woken, joins the list again and is woken again.
 *
 *     lock_cost WAITERS
 *
 * One thread plays all: a node joins the list while the lock is taken, whoever waits at it. A step is a block of code
 * without a jump, which the compiler makes call __sanitizer_cov_trace_pc (-fsanitize-coverage=trace-pc). */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include <manytail/lock.h>

static long steps;

__attribute__((no_sanitize_coverage)) void __sanitizer_cov_trace_pc(void) { steps++; }

static void wait_in(mt_lock *lock, mt_lock_node *node) {
    int taken = mt_lock_enqueue(lock, node);
    assert(!taken);
}

/* The holder unlocks; who is woken, in the order of arrival, takes the lock. */
static void hand_over(mt_lock *lock, mt_lock_node *expected) {
    mt_lock_node *woken = mt_unlock(lock);
    assert(woken == expected);
    int taken = mt_lock_try(lock);
    assert(taken);
}

int main(int argc, char **argv) {
    long n = argc == 2 ? atol(argv[1]) : 0, i;
    mt_lock lock = {0};
    mt_lock_node *nodes = calloc((size_t)n, sizeof *nodes);
    assert(n > 0 && nodes != NULL && mt_lock_try(&lock));
    for (i = 0; i < n; i++) wait_in(&lock, nodes + i);
    steps = 0;
    for (i = 0; i < n; i++) { /* the list stays as long as it is */
        hand_over(&lock, nodes + i);
        wait_in(&lock, nodes + i);
    }
    for (i = 0; i < n; i++) hand_over(&lock, nodes + i);
    assert(mt_unlock(&lock) == NULL);
    printf("%.2f\n", (double)steps / (double)(2 * n));
    free(nodes);
    return 0;
}
