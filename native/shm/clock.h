/* The clocks, in nanoseconds, and the shortest way to let other threads run. */
#ifndef VECENV_CLOCK_H
#define VECENV_CLOCK_H

#include <stdint.h>

#define VECENV_NS_PER_SECOND INT64_C(1000000000)

/* Return the time of the monotonic clock, in nanoseconds. */
int64_t vecenv_now_ns(void);

/* Return the CPU time of the calling thread in nanoseconds. */
int64_t vecenv_thread_cpu_ns(void);

/* Give up the processor for a moment without sleeping. */
void vecenv_yield(void);

#endif
