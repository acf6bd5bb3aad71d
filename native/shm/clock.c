#define _GNU_SOURCE
#include "shm/clock.h"

#include <sched.h>
#include <time.h>

static int64_t
read_clock(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (int64_t)now.tv_sec * VECENV_NS_PER_SECOND + now.tv_nsec;
}

int64_t
vecenv_now_ns(void)
{
    return read_clock(CLOCK_MONOTONIC);
}

int64_t
vecenv_thread_cpu_ns(void)
{
    return read_clock(CLOCK_THREAD_CPUTIME_ID);
}

void
vecenv_yield(void)
{
    sched_yield();
}
