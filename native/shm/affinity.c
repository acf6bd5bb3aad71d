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
vecenv_set_home(vecenv_home *home, unsigned int core, unsigned int num_threads)
{
    memset(home, 0, sizeof *home);
    if (core >= 64 * VECENV_CORE_WORDS || !read_affinity(home->usual)) {
        return;
    }
    home->own[core / 64] = UINT64_C(1) << core % 64;
    if ((home->usual[core / 64] & home->own[core / 64]) == 0) {
        return;
    }
    home->is_set = num_threads == 1;
    home->is_shared = num_threads > 1 && memcmp(home->own, home->usual, sizeof home->own) != 0;
}

static int64_t
used_cpu_ns(void)
{
    struct timespec used;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    return (int64_t)used.tv_sec * 1000000000 + used.tv_nsec;
}

/* Stay at the shared home after rounds that mostly waited, else run wherever there is room. What
 * somebody else has made of the affinity stays. */
static void
settle(vecenv_home *home, int64_t took_ns)
{
    int64_t cpu_ns = used_cpu_ns();
    int64_t used_ns = cpu_ns - home->cpu_ns;
    home->cpu_ns = cpu_ns;
    home->took_ns += (took_ns - home->took_ns) / 8;
    home->used_ns += (used_ns - home->used_ns) / 8;
    const uint64_t *from = home->own, *to = home->usual;
    if (4 * home->used_ns < home->took_ns) {
        from = home->usual;
        to = home->own;
    }
    uint64_t present[VECENV_CORE_WORDS];
    if (read_affinity(present) && memcmp(present, from, sizeof present) == 0) {
        write_affinity(to);
    }
}

void
vecenv_end_round(vecenv_home *home, int64_t now_ns, int64_t rung_ns, int64_t armed_ns)
{
    if (home->woke_ns != 0) { /* else the wait before this one ended at its timeout */
        home->is_quick = now_ns - home->woke_ns < VECENV_ASIDE_MOST_NS;
        home->is_wanted = now_ns - home->woke_ns >= VECENV_HOME_LEAST_NS && armed_ns >= rung_ns
                          && armed_ns - rung_ns < VECENV_HOME_AT_ONCE_NS;
        if (home->is_shared) {
            settle(home, now_ns - home->woke_ns);
        }
        home->woke_ns = 0;
    }
}

void
vecenv_begin_round(vecenv_home *home, int64_t now_ns)
{
    home->woke_ns = now_ns;
    if (home->is_shared && home->cpu_ns == 0) { /* what it used before it served is no matter */
        home->cpu_ns = used_cpu_ns();
    }
}

int
vecenv_step_aside(vecenv_home *home, unsigned int callers_core, int64_t now_ns)
{
    if (!home->is_quick || now_ns - home->aside_ns < VECENV_ASIDE_PAUSE_NS
        || callers_core != (unsigned int)sched_getcpu()) {
        return 0;
    }
    home->aside_ns = now_ns;
    uint64_t present[VECENV_CORE_WORDS], others[VECENV_CORE_WORDS];
    if (callers_core >= 64 * VECENV_CORE_WORDS || !read_affinity(present)) {
        return 0;
    }
    memcpy(others, present, sizeof others);
    others[callers_core / 64] &= ~(UINT64_C(1) << callers_core % 64);
    return write_affinity(others) /* fails where that leaves none */ && write_affinity(present);
}

int
vecenv_go_home(const vecenv_home *home)
{
    uint64_t present[VECENV_CORE_WORDS];
    return home->is_set && home->is_wanted && read_affinity(present)
           && memcmp(present, home->usual, sizeof present) == 0 && write_affinity(home->own);
}

void
vecenv_leave_home(const vecenv_home *home)
{
    uint64_t present[VECENV_CORE_WORDS];
    if (read_affinity(present) && memcmp(present, home->own, sizeof present) == 0) {
        write_affinity(home->usual);
    }
}
