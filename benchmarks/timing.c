/* The cost of timing one operation, in nanoseconds; benchmarks/timing.py builds and runs this. */
#include <stdio.h>
#include <string.h>

#include "shm/clock.h"
#include "shm/timing.h"

enum { NUM_ENVS = 64, ROUNDS = 100000, REPEATS = 9 };

static vecenv_timed_env envs[NUM_ENVS];
static vecenv_timings sums[NUM_ENVS];

/* Return the nanoseconds per operation of a loop over all envs. The two clock reads of each
 * operation belong to the loop: a slot makes them in any case. */
static double
measure(vecenv_timer *timer, int64_t took_ns)
{
    int64_t began = vecenv_now_ns(), now = began;
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < NUM_ENVS; i++) {
            if (timer != NULL) {
                vecenv_timer_begin(timer, &envs[i], VECENV_TIMING_STEP);
            }
            now = vecenv_now_ns();
            if (timer != NULL) {
                vecenv_timer_end(timer, &envs[i], &sums[i], took_ns, now);
            }
        }
        if (took_ns >= VECENV_LONG_NS && round == ROUNDS / 100) {
            return (double)(vecenv_now_ns() - began) / round / NUM_ENVS;
        }
    }
    return (double)(now - began) / ROUNDS / NUM_ENVS;
}

int
main(void)
{
    vecenv_timer timer = {.kind = VECENV_TIMING_NONE};
    int64_t until = vecenv_thread_cpu_ns() + 20 * VECENV_LONG_NS;
    while (vecenv_thread_cpu_ns() < until) {
    }
    vecenv_timer_open(&timer);
    for (int i = 0; i < NUM_ENVS; i++) {
        vecenv_timed_env_init(&envs[i]);
    }
    double bare = 1e9, timed = 1e9, slow = 1e9;
    for (int repeat = 0; repeat < REPEATS; repeat++) {
        double found[] = {measure(NULL, 0), measure(&timer, 1000), measure(&timer, VECENV_LONG_NS)};
        bare = found[0] < bare ? found[0] : bare;
        timed = found[1] < timed ? found[1] : timed;
        slow = found[2] < slow ? found[2] : slow;
        memset(envs, 0, sizeof envs);
        for (int i = 0; i < NUM_ENVS; i++) {
            vecenv_timed_env_init(&envs[i]);
        }
    }
    printf("{\"delay_file\": %d, \"short_ns\": %.1f, \"long_ns\": %.1f}\n",
           timer.has_delay_file, timed - bare, slow - bare);
    return 0;
}
