/* Adaptive spin: decides how long a wait spins before it sleeps.
 *
 * A spin calls sched_yield, and waits spin only while recent waits were shorter than the spin
 * limit. Without contention, that is, if no other thread wants the core, a sleep gains nothing and
 * costs a wake-up: 20 us, and in a virtual machine whose core has halted up to milliseconds.
 *
 * Beside a busy thread every yield costs a slice of the scheduler, 3 ms, while a thread that sleeps
 * keeps its share of the core and gets it as soon as it is woken. With a busy thread on each core,
 * rounds of 2 to 12 CartPoles were 4 times as fast without any spin. So no wait of a pool spins
 * after a contended one, at first for as long as that one took, twice as long each time there is
 * another. The threads of a pool share this backoff: a thread that spins alone on a core finds no
 * contention, while the threads for which it waits have no core. */
#ifndef VECENV_SPIN_H
#define VECENV_SPIN_H

#include <stdint.h>

#include "shm/layout.h"

/* The memory of recent waits, which decides about the next one. One per waiting thread, in private
 * memory. */
typedef struct {
    int64_t spin_limit_ns;   /* longest spin; 0: never spin */
    int64_t average_ns;      /* moving average of recent waits */
    vecenv_backoff *backoff; /* shared by all threads of the pool */
} vecenv_spin_policy;

/* The spin of one wait. */
typedef struct {
    int64_t began_ns;
    int64_t now_ns;        /* when it last yielded */
    int64_t spin_limit_ns;
    int64_t contention_ns; /* how long other threads had this core */
    int64_t num_switches;  /* context switches of the calling thread; -1: not counted yet */
} vecenv_spin;

/* Return whether waits do not spin at present, after contention. */
int vecenv_backs_off(const vecenv_spin_policy *spin_policy);

/* Begin a wait. Its spin_limit_ns is 0 if it must not spin. */
vecenv_spin vecenv_begin_spin(const vecenv_spin_policy *spin_policy, int64_t now_ns);

/* Yield once. Returns 1 if the wait may spin on, 0 if it has to sleep. */
int vecenv_spin_once(vecenv_spin *spin);

/* Learn from a wait that took `waited_ns`. */
void vecenv_spin_policy_update(vecenv_spin_policy *spin_policy, const vecenv_spin *spin,
                               int64_t waited_ns);

#endif
