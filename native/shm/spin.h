/* Adaptive spin: decides how long a wait spins before it sleeps.
 *
 * A spin calls sched_yield, and waits spin only while recent waits were shorter than the spin
 * limit. Beside a busy thread, a spinner that yields is scheduled behind it; with more processes
 * than cores, a spinner holds the core that the awaited process needs. After CONTENDED_SPIN_NS a
 * spin continues only without contention, that is, if no other thread wants the core. Then a sleep
 * gains nothing and costs a wake-up: in a virtual machine, a halted core may need milliseconds to
 * run again. */
#ifndef VECENV_SPIN_H
#define VECENV_SPIN_H

#include <stdint.h>

/* The memory of recent waits, which decides about the next one. One per waiting thread, in private
 * memory. */
typedef struct {
    int64_t spin_limit_ns; /* longest spin; 0: never spin */
    int64_t average_ns;    /* moving average of recent waits */
    uint32_t backoff_left; /* after contention: waits until the next long spin is tried */
    uint32_t backoff;      /* the last backoff, in waits */
} vecenv_spin_policy;

/* The spin of one wait. */
typedef struct {
    int64_t began_ns;
    int64_t now_ns;        /* when it last yielded */
    int64_t spin_limit_ns;
    int64_t contention_ns; /* how long other threads had this core */
    int64_t num_switches;  /* context switches of the calling thread; -1: not counted yet */
} vecenv_spin;

/* Begin a wait. Its spin_limit_ns is 0 if it must not spin. */
vecenv_spin vecenv_begin_spin(const vecenv_spin_policy *spin_policy, int64_t now_ns);

/* Yield once. Returns 1 if the wait may spin on, 0 if it has to sleep. */
int vecenv_spin_once(vecenv_spin *spin);

/* Learn from a wait that took `waited_ns`. */
void vecenv_spin_policy_update(vecenv_spin_policy *spin_policy, const vecenv_spin *spin,
                               int64_t waited_ns);

#endif
