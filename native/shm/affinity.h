/* CPU affinity: chooses the core on which a worker wakes up, and keeps it off its caller's core.
 *
 * Pin a sleeping worker. With one worker per core, the system may still wake two workers on the
 * core of their caller, if a spinning thread (of a BLAS library, say) holds another core. They
 * stay on one core until the next scheduler tick: a round of 8 envs of 50 us then takes 200 us
 * more. So a worker that falls asleep narrows its affinity to its preferred core, which no other
 * worker of the pool has. When it wakes it restores its affinity, so the system may move it again.
 * This is done only after rounds of at least VECENV_PIN_MIN_ROUND_NS, and only if the caller sleeps
 * as soon as it has sent: a caller that computes next would keep its core from the worker.
 *
 * Leave the caller's core. In quick rounds, with less than VECENV_QUICK_ROUND_NS of work, the
 * caller and the workers spin. A worker that spins on its caller's core shares it with the
 * caller, which costs more than to share a core with another worker: a round of envs that do
 * nothing takes 9 us instead of 5. So the worker removes that core from its affinity for a moment
 * and at once allows all cores again. On its new core it runs until another worker has work, which
 * leaves one context switch per round (park.c).
 *
 * Share a core between threads. A worker of several threads has one interpreter, whose lock only
 * one thread holds at a time. If they wake up on two cores, they sleep again to get the lock, and
 * the thread that gets it waits for a core. So they share a preferred core. They also stay there
 * while they step their envs, as long as these mostly wait, which is the purpose of such workers:
 * 64 envs that sleep 1 ms in two workers then cost 20 us per step instead of 45, and reply a
 * quarter more often. */
#ifndef VECENV_AFFINITY_H
#define VECENV_AFFINITY_H

#include <stdint.h>

#define VECENV_CORE_WORDS 16 /* 1024 cores, as in cpu_set_t */
#define VECENV_PIN_MIN_ROUND_NS 50000
#define VECENV_PIN_MAX_DELAY_NS 50000 /* time between the doorbell and the caller's sleep */
#define VECENV_QUICK_ROUND_NS 3000
#define VECENV_LEAVE_INTERVAL_NS 1000000 /* leaving a core takes about 20 us: not in each round */

/* The affinity of one thread that serves a slot. */
typedef struct {
    int is_set;      /* the thread is the only one of its worker and has a preferred core */
    int should_pin;  /* the last round was long and its caller slept */
    int is_quick;    /* the last round had little work */
    int64_t woke_ns; /* when the last wait ended with work; 0 during the next wait */
    int64_t left_ns; /* when the worker last left its caller's core */
    int is_shared;   /* all threads of the worker share the preferred core */
    int64_t took_ns, used_ns; /* moving averages of a shared round and of its CPU time */
    int64_t cpu_ns;           /* the thread's CPU time at the end of the last round */
    uint64_t allowed[VECENV_CORE_WORDS], preferred[VECENV_CORE_WORDS]; /* bit masks of cores */
} vecenv_affinity;

/* Set the preferred core of one thread of a worker with num_threads of them. The calling thread's
 * affinity is the allowed one; if it excludes the core, there is no preferred core. The only
 * thread of a worker sleeps and wakes up on that core; each of several threads stays there while
 * its rounds mostly wait. */
void vecenv_affinity_init(vecenv_affinity *affinity, unsigned int core, unsigned int num_threads);

/* Learn from a round, at the start of the next wait. Its commands were published at published_ns,
 * and its caller fell asleep at wait_began_ns. */
void vecenv_end_round(vecenv_affinity *affinity, int64_t now_ns, int64_t published_ns,
                      int64_t wait_began_ns);

/* Note the start of a round: a wait has ended with work. */
void vecenv_begin_round(vecenv_affinity *affinity, int64_t now_ns);

/* Before spinning: if this thread runs on its caller's core and rounds are quick, move to another
 * core. Returns 1 if it moved; its affinity is then the same as before. */
int vecenv_leave_callers_core(vecenv_affinity *affinity, unsigned int callers_core, int64_t now_ns);

/* Before a sleep: narrow the affinity to the preferred core. Returns 1 if it did; 0 if there is no
 * preferred core, the last round was not long, or the env has set an affinity of its own. Makes
 * two system calls. */
int vecenv_pin(const vecenv_affinity *affinity);

/* After a sleep for which vecenv_pin returned 1: restore the affinity, unless another thread has
 * changed it. */
void vecenv_unpin(const vecenv_affinity *affinity);

#endif
