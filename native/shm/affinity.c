#define _GNU_SOURCE
#include "shm/affinity.h"

#include <sched.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int
read_affinity(uint64_t *cores)
{
    memset(cores, 0, VECENV_CORE_WORDS * sizeof *cores);
    return syscall(SYS_sched_getaffinity, 0, VECENV_CORE_WORDS * sizeof *cores, cores) > 0;
}

static int
write_affinity(const uint64_t *cores)
{
    return syscall(SYS_sched_setaffinity, 0, VECENV_CORE_WORDS * sizeof *cores, cores) == 0;
}

void
vecenv_affinity_init(vecenv_affinity *affinity, unsigned int core, unsigned int num_threads)
{
    memset(affinity, 0, sizeof *affinity);
    if (core >= 64 * VECENV_CORE_WORDS || !read_affinity(affinity->allowed)) {
        return;
    }
    affinity->preferred[core / 64] = UINT64_C(1) << core % 64;
    if ((affinity->allowed[core / 64] & affinity->preferred[core / 64]) == 0) {
        return;
    }
    affinity->is_set = num_threads == 1;
    int is_same = memcmp(affinity->preferred, affinity->allowed, sizeof affinity->allowed) == 0;
    affinity->is_shared = num_threads > 1 && !is_same;
}

static int64_t
used_cpu_ns(void)
{
    struct timespec used;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    return (int64_t)used.tv_sec * 1000000000 + used.tv_nsec;
}

/* Stay on the shared core after rounds that mostly waited, else run on any allowed core. An
 * affinity that the env has changed is left alone. */
static void
update_shared_pin(vecenv_affinity *affinity, int64_t took_ns)
{
    int64_t cpu_ns = used_cpu_ns();
    int64_t used_ns = cpu_ns - affinity->cpu_ns;
    affinity->cpu_ns = cpu_ns;
    affinity->took_ns += (took_ns - affinity->took_ns) / 8;
    affinity->used_ns += (used_ns - affinity->used_ns) / 8;
    const uint64_t *from = affinity->preferred, *to = affinity->allowed;
    if (4 * affinity->used_ns < affinity->took_ns) {
        from = affinity->allowed;
        to = affinity->preferred;
    }
    uint64_t present[VECENV_CORE_WORDS];
    if (read_affinity(present) && memcmp(present, from, sizeof present) == 0) {
        write_affinity(to);
    }
}

void
vecenv_end_round(vecenv_affinity *affinity, int64_t now_ns, int64_t published_ns,
                 int64_t wait_began_ns)
{
    if (affinity->woke_ns != 0) { /* 0: the previous wait ended at its timeout */
        affinity->is_quick = now_ns - affinity->woke_ns < VECENV_QUICK_ROUND_NS;
        affinity->should_pin = now_ns - affinity->woke_ns >= VECENV_PIN_MIN_ROUND_NS
                               && wait_began_ns >= published_ns
                               && wait_began_ns - published_ns < VECENV_PIN_MAX_DELAY_NS;
        if (affinity->is_shared) {
            update_shared_pin(affinity, now_ns - affinity->woke_ns);
        }
        affinity->woke_ns = 0;
    }
}

void
vecenv_begin_round(vecenv_affinity *affinity, int64_t now_ns)
{
    affinity->woke_ns = now_ns;
    /* do not count the CPU time from before the first round */
    if (affinity->is_shared && affinity->cpu_ns == 0) {
        affinity->cpu_ns = used_cpu_ns();
    }
}

int
vecenv_leave_callers_core(vecenv_affinity *affinity, unsigned int callers_core, int64_t now_ns)
{
    if (!affinity->is_quick || now_ns - affinity->left_ns < VECENV_LEAVE_INTERVAL_NS
        || callers_core != (unsigned int)sched_getcpu()) {
        return 0;
    }
    affinity->left_ns = now_ns;
    uint64_t present[VECENV_CORE_WORDS], others[VECENV_CORE_WORDS];
    if (callers_core >= 64 * VECENV_CORE_WORDS || !read_affinity(present)) {
        return 0;
    }
    memcpy(others, present, sizeof others);
    others[callers_core / 64] &= ~(UINT64_C(1) << callers_core % 64);
    return write_affinity(others) /* fails if no core is left */ && write_affinity(present);
}

int
vecenv_pin(const vecenv_affinity *affinity)
{
    uint64_t present[VECENV_CORE_WORDS];
    return affinity->is_set && affinity->should_pin && read_affinity(present)
           && memcmp(present, affinity->allowed, sizeof present) == 0
           && write_affinity(affinity->preferred);
}

void
vecenv_unpin(const vecenv_affinity *affinity)
{
    uint64_t present[VECENV_CORE_WORDS];
    if (read_affinity(present) && memcmp(present, affinity->preferred, sizeof present) == 0) {
        write_affinity(affinity->allowed);
    }
}
