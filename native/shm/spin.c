#define _GNU_SOURCE
#include "shm/spin.h"

#include <sched.h>
#include <sys/resource.h>

#include "shm/clock.h"

/* How long a wait spins in any company. */
#define CONTENDED_SPIN_NS INT64_C(100000)
/* A yield to nobody takes 350 ns; after one this long it is worth 300 ns to ask whether there
 * was somebody. An interrupt, or the machine below ours, makes yields long as well. */
#define LONG_YIELD_NS 10000
/* A wait is one in company if others had the core for that long and for half of it. What the
 * caller itself does between two rounds is usually less: its worker is to be there at once. */
#define CONTENTION_NS INT64_C(150000)
/* Waits without a long spin after one in company; doubled each time. */
#define MIN_BACKOFF 8
#define MAX_BACKOFF 512

static int64_t
shorter(int64_t one, int64_t other)
{
    return one < other ? one : other;
}

/* How often the calling thread has left its core to another one. */
static int64_t
count_switches(void)
{
    struct rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_nvcsw + usage.ru_nivcsw;
}

vecenv_spin
vecenv_begin_spin(const vecenv_spin_policy *spin_policy, int64_t now_ns)
{
    int64_t spin_limit_ns = spin_policy->backoff_left > 0
                                ? shorter(spin_policy->spin_limit_ns, CONTENDED_SPIN_NS)
                                : spin_policy->spin_limit_ns;
    return (vecenv_spin){
        .began_ns = now_ns,
        .now_ns = now_ns,
        .spin_limit_ns = spin_policy->average_ns <= spin_limit_ns ? spin_limit_ns : 0,
        .num_switches = -1,
    };
}

static int
is_contended(const vecenv_spin *spin)
{
    return spin->contention_ns > CONTENTION_NS
           && 2 * spin->contention_ns > spin->now_ns - spin->began_ns;
}

int
vecenv_spin_once(vecenv_spin *spin)
{
    int64_t before = spin->now_ns;
    sched_yield();
    spin->now_ns = vecenv_now_ns();
    int64_t waited = spin->now_ns - spin->began_ns;
    if (spin->now_ns - before >= LONG_YIELD_NS) {
        int64_t num_switches = count_switches();
        if (num_switches != spin->num_switches) {
            spin->contention_ns += spin->now_ns - before;
        }
        spin->num_switches = num_switches;
    } else if (spin->num_switches < 0 && waited >= LONG_YIELD_NS) {
        spin->num_switches = count_switches();
    }
    return waited < spin->spin_limit_ns && (waited < CONTENDED_SPIN_NS || !is_contended(spin));
}

void
vecenv_spin_policy_update(vecenv_spin_policy *spin_policy, const vecenv_spin *spin,
                          int64_t waited_ns)
{
    /* One very long wait (the caller went away, the machine was busy elsewhere) must not
     * forbid spinning: what is learnt from one is capped so that it takes several. */
    int64_t sample = shorter(waited_ns, 2 * spin_policy->spin_limit_ns);
    spin_policy->average_ns += (sample - spin_policy->average_ns) / 4;
    if (spin_policy->backoff_left > 0) {
        spin_policy->backoff_left--;
    } else if (spin->spin_limit_ns > CONTENDED_SPIN_NS && waited_ns > CONTENDED_SPIN_NS) {
        if (is_contended(spin)) {
            int64_t doubled = shorter(2 * (int64_t)spin_policy->backoff, MAX_BACKOFF);
            spin_policy->backoff = doubled < MIN_BACKOFF ? MIN_BACKOFF : (uint32_t)doubled;
            spin_policy->backoff_left = spin_policy->backoff;
        } else {
            spin_policy->backoff /= 2;
        }
    }
}
