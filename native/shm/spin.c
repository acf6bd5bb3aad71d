#define _GNU_SOURCE
#include "shm/spin.h"

#include <sched.h>
#include <sys/resource.h>

#include "shm/clock.h"

/* A yield takes 350 ns if no other thread runs. After a yield this long, the number of context
 * switches is read, which takes 300 ns: an interrupt or the hypervisor also makes yields long. */
#define LONG_YIELD_NS 10000
/* A wait is contended if other threads had the core for longer than this and for more than half of
 * the wait. The caller's own work between two rounds is usually shorter, so its worker still spins
 * when the next command comes. A busy thread keeps the core for a whole slice, which is 3 ms. */
#define CONTENTION_NS INT64_C(150000)
/* The longest backoff: to try a spin beside a busy thread costs 3 ms, which is 15 % of it. With 200 ms,
 * 64 null envs on quiet cores lost 15 %: three threads on two cores meet now and then. */
#define MAX_BACKOFF_NS 20000000

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

/* Return whether resume_ns lies ahead, at most MAX_BACKOFF_NS: any value may be stored there. */
static int
is_backing_off(const vecenv_backoff *backoff, int64_t now_ns)
{
    uint64_t left_ns = load_acquire(&backoff->resume_ns) - (uint64_t)now_ns;
    return left_ns - 1 < MAX_BACKOFF_NS; /* false for 0 */
}

int
vecenv_backs_off(const vecenv_spin_policy *spin_policy)
{
    return load_acquire(&spin_policy->backoff->resume_ns) != 0
           && is_backing_off(spin_policy->backoff, vecenv_now_ns());
}

vecenv_spin
vecenv_begin_spin(const vecenv_spin_policy *spin_policy, int64_t now_ns)
{
    int may_spin = spin_policy->average_ns <= spin_policy->spin_limit_ns
                   && !is_backing_off(spin_policy->backoff, now_ns);
    return (vecenv_spin){
        .began_ns = now_ns,
        .now_ns = now_ns,
        .spin_limit_ns = may_spin ? spin_policy->spin_limit_ns : 0,
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
    return waited < spin->spin_limit_ns && !is_contended(spin);
}

/* Back off after a contended spin, twice as long as the last time. After as long a time of spins
 * without contention, the last backoff is forgotten. */
static void
update_backoff(vecenv_backoff *backoff, const vecenv_spin *spin)
{
    int64_t spun_ns = spin->now_ns - spin->began_ns;
    int64_t last_ns = (int64_t)load_acquire(&backoff->backoff_ns);
    last_ns = last_ns < 0 ? 0 : shorter(last_ns, MAX_BACKOFF_NS);
    if (!is_contended(spin)) {
        if (last_ns > 0 && spun_ns > 0) {
            store_release(&backoff->backoff_ns, (uint64_t)(last_ns - shorter(spun_ns, last_ns)));
        }
    } else if (!is_backing_off(backoff, spin->now_ns)) { /* else another thread found it first */
        int64_t next_ns = 2 * last_ns < spin->contention_ns ? spin->contention_ns : 2 * last_ns;
        next_ns = shorter(next_ns, MAX_BACKOFF_NS);
        store_release(&backoff->backoff_ns, (uint64_t)next_ns);
        store_release(&backoff->resume_ns, (uint64_t)(spin->now_ns + next_ns));
    }
}

void
vecenv_spin_policy_update(vecenv_spin_policy *spin_policy, const vecenv_spin *spin,
                          int64_t waited_ns)
{
    /* One very long wait (an idle caller, a busy machine) must not forbid spinning: a sample is
     * limited, so it takes several. */
    int64_t sample = shorter(waited_ns, 2 * spin_policy->spin_limit_ns);
    spin_policy->average_ns += (sample - spin_policy->average_ns) / 4;
    update_backoff(spin_policy->backoff, spin);
}
