/* Shared words: the only functions that access words which another process reads or writes.
 *
 * Most words have one writer, which stores with store_release; readers use load_acquire. There are
 * two exceptions. The open and owner words have several writers, which use compare-and-swap. The
 * sleeping, waiting and blocked flags use Dekker's pattern: store, full fence, load.
 *
 * All helpers need naturally aligned words in a shared mapping. */
#ifndef VECENV_ATOMICS_H
#define VECENV_ATOMICS_H

#include <stdatomic.h>
#include <stdint.h>

typedef _Atomic uint64_t vecenv_word;
typedef _Atomic uint32_t vecenv_word32;

/* A lock that hides in an atomic would protect one process only and would die with its holder. */
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

/* Replace `expected` by `desired`. Returns 1 if this call replaced it, 0 if the word differed. */
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

/* Keep all later stores, plain ones too, behind all earlier ones. Costs nothing on x86. */
static inline void
store_fence(void)
{
    atomic_thread_fence(memory_order_release);
}

/* Order an own store before the load of the other side's word. Pairs with the same fence on the
 * other side: at least one of the two then sees the other's store. */
static inline void
full_fence(void)
{
    atomic_thread_fence(memory_order_seq_cst);
}

#endif
