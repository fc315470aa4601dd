/* atomics.h's back end for the model checker: every atomic operation of the kernels becomes one of relacy's.
 *
 * The kernels zero and copy the memory of their structs, so an atomic here is a pointer that may be zeroed: relacy's
 * own variable, with its modification order and the views of all threads, is made at the first access.
 *
 * Zeroing new memory is a plain write. So each access to an atomic must happen after it: a thread that finds a
 * structure through a relaxed load is a data race here, although the checker's own variable shows it the first value.
 */
#ifndef MODEL_ATOMICS_H
#define MODEL_ATOMICS_H

#include <stdint.h>

#include "platform.h"

template <typename T> struct model_atomic {
    struct checked : rl::generic_atomic<T, true> { /* true: begins as 0 */
        rl::var<int> *zeroed;                      /* of the block of memory that it is in, or NULL */
    };
    checked *variable; /* NULL: 0, never touched */

    void begin();

    checked *operator->() {
        if (variable == NULL) begin();
        RL_ASSERT(!model_is_freed(variable)); /* else: access to freed memory */
        if (variable->zeroed != NULL) {
            rl::context &c = rl::ctx();
            c.disable_preemption();
            (void)(int)(*variable->zeroed)($);
            c.enable_preemption();
        }
        return variable;
    }
};

/* relacy never lets a thread read what a variable began with once somebody has stored to it, as another order would
 * allow. So the first value is stored as all others are, before anybody else can come in between. */
template <typename T> void model_atomic<T>::begin() {
    rl::context &c = rl::ctx();
    c.disable_preemption();
    variable = model_variable<checked>();
    variable->zeroed = model_zeroed(this);
    variable->store(T(), rl::mo_relaxed, $);
    c.enable_preemption();
}

typedef model_atomic<int64_t> mt_atomic_i64;
typedef model_atomic<uint32_t> mt_atomic_u32;
typedef model_atomic<uintptr_t> mt_atomic_uptr;

#define MT_ATOMIC(T) model_atomic<T>
#define MT_AT_LOAD(p, mo) (*(p))->load(rl::mo_##mo, $)
#define MT_AT_STORE(p, v, mo) (*(p))->store((v), rl::mo_##mo, $)
#define MT_AT_XCHG(p, v, mo) (*(p))->exchange((v), rl::mo_##mo, $)
#define MT_AT_CAS(p, e, v, mo, fmo) (*(p))->compare_exchange_strong(*(e), (v), rl::mo_##mo, $, rl::mo_##fmo, $)
#define MT_AT_ADD(p, v, mo) (*(p))->fetch_add((v), rl::mo_##mo, $)

#endif
