/* Home: the core on which a worker wakes up.
 *
 * Where there is a worker for every core, two that are woken at the same time may both be put
 * on the core of their caller, while a thread that only spins (a BLAS library's, say) holds
 * another one; nothing moves them apart before the next tick. A round of 8 envs of 50 us then
 * takes 200 us more. So a worker that falls asleep narrows its affinity to a core that no other
 * worker of the pool has, and takes what it had before when it wakes: the system may move it
 * again, as whoever else uses that core requires.
 *
 * Workers whose rounds are shorter than VECENV_HOME_LEAST_NS are better off on one core that
 * they share, away from their caller: a null round takes 6 us so, and 10 us otherwise. */
#ifndef VECENV_HOME_H
#define VECENV_HOME_H

#include <stdint.h>

#define VECENV_CORE_WORDS 16 /* 1024 cores, as in cpu_set_t */
#define VECENV_HOME_LEAST_NS 50000

typedef struct {
    int is_set;
    int64_t woke_ns;  /* when the last wait ended with something to do; 0 during the next one */
    int64_t round_ns; /* from there to the next wait */
    uint64_t usual[VECENV_CORE_WORDS], own[VECENV_CORE_WORDS];
} vecenv_home;

/* Wake the calling thread on this core, if it may run there. */
void vecenv_set_home(vecenv_home *home, unsigned int core);

/* A wait begins; one has ended with something to do. */
void vecenv_end_round(vecenv_home *home, int64_t now_ns);
void vecenv_begin_round(vecenv_home *home, int64_t now_ns);

/* Before a sleep. Returns 1 when the affinity was narrowed; 0 when there is no home, the last
 * round was a short one, or the env has chosen an affinity of its own. Two system calls. */
int vecenv_go_home(const vecenv_home *home);

/* After it, if it was. */
void vecenv_leave_home(const vecenv_home *home);

#endif
