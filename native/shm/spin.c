#define _GNU_SOURCE
#include "shm/spin.h"

#include <sched.h>
#include <sys/resource.h>

#include "shm/clock.h"

/* How long a wait spins in any company. */
#define SHARED_SPIN_NS INT64_C(100000)
/* A yield to nobody takes 350 ns; after one this long it is worth 300 ns to ask whether there
 * was somebody. An interrupt, or the machine below ours, makes yields long as well. */
#define LONG_YIELD_NS 10000
/* A wait is one in company if others had the core for that long and for half of it. What the
 * caller itself does between two rounds is usually less: its worker is to be there at once. */
#define COMPANY_NS INT64_C(150000)
/* Waits without a long spin after one in company; doubled each time. */
#define LEAST_PAUSE 8
#define MOST_PAUSE 512

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
vecenv_begin_spin(const vecenv_patience *patience, int64_t now_ns)
{
    int64_t budget = patience->pause > 0 ? shorter(patience->budget_ns, SHARED_SPIN_NS)
                                         : patience->budget_ns;
    return (vecenv_spin){
        .began_ns = now_ns,
        .now_ns = now_ns,
        .budget_ns = patience->average_ns <= budget ? budget : 0,
        .num_switches = -1,
    };
}

static int
is_in_company(const vecenv_spin *spin)
{
    return spin->company_ns > COMPANY_NS
           && 2 * spin->company_ns > spin->now_ns - spin->began_ns;
}

int
vecenv_spin_on(vecenv_spin *spin)
{
    int64_t before = spin->now_ns;
    sched_yield();
    spin->now_ns = vecenv_now_ns();
    int64_t waited = spin->now_ns - spin->began_ns;
    if (spin->now_ns - before >= LONG_YIELD_NS) {
        int64_t num_switches = count_switches();
        if (num_switches != spin->num_switches) {
            spin->company_ns += spin->now_ns - before;
        }
        spin->num_switches = num_switches;
    } else if (spin->num_switches < 0 && waited >= LONG_YIELD_NS) {
        spin->num_switches = count_switches();
    }
    return waited < spin->budget_ns && (waited < SHARED_SPIN_NS || !is_in_company(spin));
}

void
vecenv_patience_learn(vecenv_patience *patience, const vecenv_spin *spin, int64_t waited_ns)
{
    /* One very long wait (the caller went away, the machine was busy elsewhere) must not
     * forbid spinning: what is learnt from one is capped so that it takes several. */
    int64_t sample = shorter(waited_ns, 2 * patience->budget_ns);
    patience->average_ns += (sample - patience->average_ns) / 4;
    if (patience->pause > 0) {
        patience->pause--;
    } else if (spin->budget_ns > SHARED_SPIN_NS && waited_ns > SHARED_SPIN_NS) {
        if (is_in_company(spin)) {
            int64_t pause = shorter(2 * (int64_t)patience->penalty, MOST_PAUSE);
            patience->penalty = pause < LEAST_PAUSE ? LEAST_PAUSE : (uint32_t)pause;
            patience->pause = patience->penalty;
        } else {
            patience->penalty /= 2;
        }
    }
}
