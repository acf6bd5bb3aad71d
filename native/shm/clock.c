#define _GNU_SOURCE
#include "shm/clock.h"

#include <sched.h>
#include <time.h>

int64_t
vecenv_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * VECENV_NS_PER_SECOND + now.tv_nsec;
}

void
vecenv_yield(void)
{
    sched_yield();
}
