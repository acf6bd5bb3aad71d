/* How long a wait spins before it sleeps.
 *
 * With sched_yield, and only while recent waits were shorter than the budget: a spinner that
 * yields beside a busy thread is put behind it, and with more processes than cores it holds the
 * core that the awaited one needs. After a while it goes on only where nobody else wants the
 * core. There a sleep gains nothing and costs a wake-up; in a virtual machine a core that has
 * halted may be gone for milliseconds. */
#ifndef VECENV_SPIN_H
#define VECENV_SPIN_H

#include <stdint.h>

/* Decides whether the next wait may spin. One per waiting thread, private memory. */
typedef struct {
    int64_t spin_limit_ns; /* longest spin; 0 = never spin */
    int64_t average_ns; /* moving average of recent waits */
    uint32_t backoff_left; /* waits until a long spin is tried again, after one in company */
    uint32_t backoff;   /* the last backoff */
} vecenv_spin_policy;

/* A busy wait under way. */
typedef struct {
    int64_t began_ns;
    int64_t now_ns;       /* when it last yielded */
    int64_t spin_limit_ns;
    int64_t contention_ns; /* how long others had this core */
    int64_t num_switches; /* of the calling thread; -1 before they matter */
} vecenv_spin;

/* Begin a wait; its budget is 0 if it is not to spin. */
vecenv_spin vecenv_begin_spin(const vecenv_spin_policy *spin_policy, int64_t now_ns);

/* Yield once. Returns 0 when the wait is to sleep from now on. */
int vecenv_spin_once(vecenv_spin *spin);

/* Learn from a wait that took `waited_ns`. */
void vecenv_spin_policy_update(vecenv_spin_policy *spin_policy, const vecenv_spin *spin,
                               int64_t waited_ns);

#endif
