/* Atomic operations, and hints to the compiler. No other file of the project names a memory order.
 *
 * Every accessor carries its order in its name (mt_load_acquire_i64, mt_cas_release_uptr, ...), so a reader of an
 * algorithm sees the order where the access is made. Three back ends share one spelling:
 *   C11         <stdatomic.h>, what the extension modules are compiled with;
 *   C++         std::atomic, for C++ modules that `cimport manytail`;
 *   MT_MODEL    the model checker's atomics (tests/native/model), so that the very same kernels are explored.
 * Compare-and-swap is the strong form: it returns 1 if it stored, else 0 and what it found in *e. There are no
 * stand-alone fences: ThreadSanitizer does not follow them, and ordered operations express every protocol here.
 */
#ifndef MANYTAIL_ATOMICS_H
#define MANYTAIL_ATOMICS_H

#include <stdint.h>

#if defined(_MSC_VER)
#include <intrin.h>
#endif

#define MT_64_BIT "manytail needs a 64-bit platform: hashes, and pairs of 32-bit numbers, share 64 bits"
#if defined(_MSC_VER) && !defined(__clang__) && _MSC_VER < 1935
#error "manytail needs Visual Studio 2022 17.5 or newer, for C11 atomics"
#elif defined(__cplusplus)
static_assert(sizeof(void *) == 8, MT_64_BIT);
#else
_Static_assert(sizeof(void *) == 8, MT_64_BIT);
#endif

#if defined(MT_MODEL)
#include "model_atomics.h" /* tests/native/model: maps MT_AT_* to the checker */
#elif defined(__cplusplus)
#include <atomic>
#define MT_ATOMIC(T) std::atomic<T>
#define MT_AT_LOAD(p, mo) (p)->load(std::memory_order_##mo)
#define MT_AT_STORE(p, v, mo) (p)->store((v), std::memory_order_##mo)
#define MT_AT_XCHG(p, v, mo) (p)->exchange((v), std::memory_order_##mo)
#define MT_AT_CAS(p, e, v, mo, fmo) \
    (p)->compare_exchange_strong(*(e), (v), std::memory_order_##mo, std::memory_order_##fmo)
#define MT_AT_ADD(p, v, mo) (p)->fetch_add((v), std::memory_order_##mo)
#else
#include <stdatomic.h>
#define MT_ATOMIC(T) _Atomic(T)
#define MT_AT_LOAD(p, mo) atomic_load_explicit((p), memory_order_##mo)
#define MT_AT_STORE(p, v, mo) atomic_store_explicit((p), (v), memory_order_##mo)
#define MT_AT_XCHG(p, v, mo) atomic_exchange_explicit((p), (v), memory_order_##mo)
#define MT_AT_CAS(p, e, v, mo, fmo) \
    atomic_compare_exchange_strong_explicit((p), (e), (v), memory_order_##mo, memory_order_##fmo)
#define MT_AT_ADD(p, v, mo) atomic_fetch_add_explicit((p), (v), memory_order_##mo)
#endif

#if !defined(MT_MODEL)
typedef MT_ATOMIC(int64_t) mt_atomic_i64;
typedef MT_ATOMIC(uint32_t) mt_atomic_u32;
typedef MT_ATOMIC(uintptr_t) mt_atomic_uptr;
#endif

#define MT_DEFINE_ATOMIC(S, T, A)                                                                          \
    static inline T mt_load_relaxed_##S(A *p) { return MT_AT_LOAD(p, relaxed); }                           \
    static inline T mt_load_acquire_##S(A *p) { return MT_AT_LOAD(p, acquire); }                           \
    static inline T mt_load_seq_cst_##S(A *p) { return MT_AT_LOAD(p, seq_cst); }                           \
    static inline void mt_store_relaxed_##S(A *p, T v) { MT_AT_STORE(p, v, relaxed); }                     \
    static inline void mt_store_release_##S(A *p, T v) { MT_AT_STORE(p, v, release); }                     \
    static inline T mt_xchg_acq_rel_##S(A *p, T v) { return MT_AT_XCHG(p, v, acq_rel); }                   \
    static inline T mt_xchg_seq_cst_##S(A *p, T v) { return MT_AT_XCHG(p, v, seq_cst); }                   \
    static inline int mt_cas_acquire_##S(A *p, T *e, T v) { return MT_AT_CAS(p, e, v, acquire, relaxed); } \
    static inline int mt_cas_release_##S(A *p, T *e, T v) { return MT_AT_CAS(p, e, v, release, relaxed); } \
    static inline int mt_cas_acq_rel_##S(A *p, T *e, T v) { return MT_AT_CAS(p, e, v, acq_rel, acquire); } \
    static inline int mt_cas_seq_cst_##S(A *p, T *e, T v) { return MT_AT_CAS(p, e, v, seq_cst, relaxed); } \
    static inline T mt_fetch_add_relaxed_##S(A *p, T v) { return MT_AT_ADD(p, v, relaxed); }               \
    static inline T mt_fetch_add_acq_rel_##S(A *p, T v) { return MT_AT_ADD(p, v, acq_rel); }               \
    static inline T mt_fetch_add_seq_cst_##S(A *p, T v) { return MT_AT_ADD(p, v, seq_cst); }

MT_DEFINE_ATOMIC(i64, int64_t, mt_atomic_i64)
MT_DEFINE_ATOMIC(u32, uint32_t, mt_atomic_u32)
MT_DEFINE_ATOMIC(uptr, uintptr_t, mt_atomic_uptr)

#undef MT_DEFINE_ATOMIC

/* Hints to the compiler; they do not change what the code means. */
#if defined(__has_builtin)
#define MT_HAS_BUILTIN(name) __has_builtin(name)
#else
#define MT_HAS_BUILTIN(name) 0
#endif
#if defined(__GNUC__) || defined(__clang__)
/* Probability 1, where __builtin_expect means 0.9: with that, gcc inlines cold functions into hot ones and spills
 * registers for them. */
#if (defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 9) || MT_HAS_BUILTIN(__builtin_expect_with_probability)
#define MT_LIKELY(x) __builtin_expect_with_probability(!!(x), 1, 1.0)
#define MT_UNLIKELY(x) __builtin_expect_with_probability(!!(x), 0, 1.0)
#else
#define MT_LIKELY(x) __builtin_expect(!!(x), 1)
#define MT_UNLIKELY(x) __builtin_expect(!!(x), 0)
#endif
#define MT_NOINLINE __attribute__((noinline))
#else
#define MT_LIKELY(x) (x)
#define MT_UNLIKELY(x) (x)
#define MT_NOINLINE __declspec(noinline)
#endif
#define MT_CACHE_LINE 64
#if defined(_MSC_VER)
#define MT_THREAD_LOCAL __declspec(thread)
#else
#define MT_THREAD_LOCAL __thread
#endif

/* Prefetch, for writing, a cache line that will be written soon. Inline assembly on x86-64: __builtin_prefetch(p, 1) is
 * a read prefetch there, after which the store has to fetch the line again, from the core that read it last. */
static inline void mt_prefetch_write(void *p) {
#if defined(__SANITIZE_ADDRESS__)
    (void)*(volatile char *)p; /* an address outside of its object is reported */
#elif (defined(__GNUC__) || defined(__clang__)) && defined(__x86_64__)
    __asm__ volatile("prefetchw %0" : : "m"(*(volatile char *)p));
#elif defined(__GNUC__) || defined(__clang__)
    __builtin_prefetch(p, 1);
#else
    (void)p;
#endif
}

/* Prefetch a cache line that will be read soon. */
static inline void mt_prefetch_read(const void *p) {
#if defined(__GNUC__) || defined(__clang__)
    __builtin_prefetch(p);
#else
    (void)p;
#endif
}

/* Index of the lowest set bit. `word` is not 0. */
static inline int mt_first_bit(uint64_t word) {
#if defined(__GNUC__) || defined(__clang__)
    return __builtin_ctzll(word);
#else
    unsigned long at;
    _BitScanForward64(&at, word);
    return (int)at;
#endif
}

#endif
