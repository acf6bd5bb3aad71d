/* Shared words: the only file that says how memory another process sees is touched.
 *
 * Most words have one writer and are published with store_release and read with
 * load_acquire. The exceptions, each named where it is declared in layout.h, are
 * the open and owner words (several claimers, compare-and-swap), the sleeping and
 * waiting flags and the doorbells (store, full fence, load: Dekker's pattern).
 *
 * All helpers work on naturally aligned words inside a shared mapping. */
#ifndef VECENV_ATOMICS_H
#define VECENV_ATOMICS_H

#include <stdatomic.h>
#include <stdint.h>

typedef _Atomic uint64_t vecenv_word;
typedef _Atomic uint32_t vecenv_word32;

/* A lock inside an atomic would live in one process only and die with its holder. */
_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2, "64-bit atomics must be lock-free");
_Static_assert(ATOMIC_INT_LOCK_FREE == 2, "32-bit atomics must be lock-free");
_Static_assert(sizeof(vecenv_word) == 8 && sizeof(vecenv_word32) == 4,
               "atomic words must have the size of plain ones");

static inline uint64_t
load_acquire(const vecenv_word *word)
{
    return atomic_load_explicit((vecenv_word *)(uintptr_t)word, memory_order_acquire);
}

static inline void
store_release(vecenv_word *word, uint64_t value)
{
    atomic_store_explicit(word, value, memory_order_release);
}

static inline uint32_t
load_acquire32(const vecenv_word32 *word)
{
    return atomic_load_explicit((vecenv_word32 *)(uintptr_t)word, memory_order_acquire);
}

static inline void
store_release32(vecenv_word32 *word, uint32_t value)
{
    atomic_store_explicit(word, value, memory_order_release);
}

/* Replace expected by desired; 1 if this call did it, 0 if the word had changed. */
static inline int
swap_if(vecenv_word *word, uint64_t expected, uint64_t desired)
{
    return atomic_compare_exchange_strong_explicit(
        word, &expected, desired, memory_order_acq_rel, memory_order_acquire);
}

static inline int
swap_if32(vecenv_word32 *word, uint32_t expected, uint32_t desired)
{
    return atomic_compare_exchange_strong_explicit(
        word, &expected, desired, memory_order_acq_rel, memory_order_acquire);
}

/* Keeps all stores behind it, plain ones too, behind those before it. Costs x86 nothing. */
static inline void
store_fence(void)
{
    atomic_thread_fence(memory_order_release);
}

/* Between "my store" and "my load of the other side's word": pairs with the same
 * fence on the other side, so that at least one of the two sees the other's store. */
static inline void
full_fence(void)
{
    atomic_thread_fence(memory_order_seq_cst);
}

#endif
