#define _GNU_SOURCE
#include "shm/spin.h"

#include <sched.h>
#include <sys/resource.h>

#include "shm/clock.h"

/* How long a wait spins even under contention. */
#define CONTENDED_SPIN_NS INT64_C(100000)
/* A yield takes 350 ns if no other thread runs. After a yield this long, the number of context
 * switches is read, which takes 300 ns: an interrupt or the hypervisor also makes yields long. */
#define LONG_YIELD_NS 10000
/* A wait is contended if other threads had the core for longer than this and for more than half of
 * the wait. The caller's own work between two rounds is usually shorter, so its worker still spins
 * when the next command comes. */
#define CONTENTION_NS INT64_C(150000)
/* Number of waits without a long spin after a contended wait; doubled each time. */
#define MIN_BACKOFF 8
#define MAX_BACKOFF 512

static int64_t
shorter(int64_t one, int64_t other)
{
    return one < other ? one : other;
}

/* Return the number of context switches of the calling thread. */
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
    /* One very long wait (an idle caller, a busy machine) must not forbid spinning: a sample is
     * limited, so it takes several. */
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
