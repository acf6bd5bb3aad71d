/* Home: the core on which a worker wakes up, and the one that it leaves to its caller.
 *
 * Where there is a worker for every core, two that are woken at the same time may both be put
 * on the core of their caller, while a thread that only spins (a BLAS library's, say) holds
 * another one; nothing moves them apart before the next tick. A round of 8 envs of 50 us then
 * takes 200 us more. So a worker that falls asleep narrows its affinity to a core that no other
 * worker of the pool has, and takes what it had before when it wakes: the system may move it
 * again, as whoever else uses that core requires.
 *
 * Only for callers that sleep as soon as they have sent: one that goes on computing would keep
 * the worker from its home. And only for rounds of VECENV_PIN_MIN_ROUND_NS.
 *
 * Rounds that are quick for the worker, VECENV_QUICK_ROUND_NS of work, are better the other way
 * round: all who wait spin then, and a worker that spins on its caller's core takes turns with
 * it, by the system's rules of fairness, which costs more than to share a core with another
 * worker. A null round takes 5 us so, and else 9. So such a worker steps aside: it forbids
 * itself that core for a moment and may at once run on all of them again. There it keeps the core
 * until another worker has something to do, which leaves one switch in a round (park.c).
 *
 * A worker of several threads is different: one interpreter, whose lock only one of them has at a
 * time. Where they wake up on two cores they queue for it, asleep once more, and one that has it
 * waits for a core. So they share a home, and stay there also while they step their envs, as long
 * as these mostly wait, which is what such workers are for: 64 sleepers of 1 ms in two of them
 * then cost 20 us a step instead of 45, and answer a quarter more often. */
#ifndef VECENV_AFFINITY_H
#define VECENV_AFFINITY_H

#include <stdint.h>

#define VECENV_CORE_WORDS 16 /* 1024 cores, as in cpu_set_t */
#define VECENV_PIN_MIN_ROUND_NS 50000
#define VECENV_PIN_MAX_DELAY_NS 50000 /* from a bell to the caller's sleep */
#define VECENV_QUICK_ROUND_NS 3000
#define VECENV_LEAVE_INTERVAL_NS 1000000 /* it takes some 20 us: not at every round */

typedef struct {
    int is_set;      /* for the only thread of its worker */
    int should_pin;  /* after a long round whose caller slept */
    int is_quick;    /* after a round with little work */
    int64_t woke_ns; /* when the last wait ended with something to do; 0 during the next one */
    int64_t left_ns;  /* when the worker last stepped aside */
    int is_shared;    /* by all threads of their worker */
    int64_t took_ns, used_ns; /* then: moving averages of a round and of its CPU time */
    int64_t cpu_ns;           /* the thread's CPU time at the end of the last round */
    uint64_t allowed[VECENV_CORE_WORDS], preferred[VECENV_CORE_WORDS];
} vecenv_affinity;

/* A home on this core for a thread that may run where the calling one may: the only one of its
 * worker sleeps and wakes up there, one of several stays there while its rounds mostly wait. None
 * where they may not run there. */
void vecenv_affinity_init(vecenv_affinity *affinity, unsigned int core, unsigned int num_threads);

/* A wait begins, after a round that was rung for at published_ns and a caller that fell asleep at
 * wait_began_ns; a wait has ended with something to do. */
void vecenv_end_round(vecenv_affinity *affinity, int64_t now_ns, int64_t published_ns,
                      int64_t wait_began_ns);
void vecenv_begin_round(vecenv_affinity *affinity, int64_t now_ns);

/* Before spinning: if this thread runs on its caller's core, and rounds are quick, go to another
 * one. Returns 1 if it went, with the affinity as it was. */
int vecenv_leave_callers_core(vecenv_affinity *affinity, unsigned int callers_core, int64_t now_ns);

/* Before a sleep. Returns 1 when the affinity was narrowed; 0 when there is no home, none is
 * wanted, or the env has chosen an affinity of its own. Two system calls. */
int vecenv_pin(const vecenv_affinity *affinity);

/* After it, if it was; what somebody else has made of the affinity meanwhile stays. */
void vecenv_unpin(const vecenv_affinity *affinity);

#endif
