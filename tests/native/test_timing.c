/* The timer of operations: sums, the choice of measured operations, waiting and computing. */
#define _GNU_SOURCE
#include <time.h>

#include "harness.h"
#include "shm/clock.h"
#include "shm/timing.h"

static void
nap(int64_t ns)
{
    nanosleep(&(struct timespec){.tv_nsec = ns}, NULL);
}

static void
compute(int64_t ns)
{
    int64_t until = vecenv_thread_cpu_ns() + ns;
    while (vecenv_thread_cpu_ns() < until) {
    }
}

static void
run(vecenv_timer *timer, vecenv_timed_env *env, vecenv_timings *sums, int kind,
    void (*operation)(int64_t), int64_t ns)
{
    int64_t began = vecenv_now_ns();
    vecenv_timer_begin(timer, env, kind);
    operation(ns);
    int64_t ended = vecenv_now_ns();
    vecenv_timer_end(timer, env, sums, ended - began, ended);
}

/* Return whether the system counts the run-queue delay. */
static int
test_every_operation_counts_and_one_of_many_is_measured(void)
{
    vecenv_timer timer = {.kind = VECENV_TIMING_NONE};
    vecenv_timed_env env;
    vecenv_timings sums = {0};
    compute(5 * VECENV_LONG_NS); /* until the system has counted some time of this thread */
    nap(VECENV_LONG_NS);
    vecenv_timed_env_init(&env);
    vecenv_timer_open(&timer);
    for (int i = 0; i < 8 + 2 * VECENV_TIMING_INTERVAL; i++) {
        run(&timer, &env, &sums, VECENV_TIMING_STEP, compute, 2000);
    }
    run(&timer, &env, &sums, VECENV_TIMING_RESET, nap, 2 * VECENV_LONG_NS);
    run(&timer, &env, &sums, VECENV_TIMING_NONE, compute, 1000);
    CHECK(sums.num[VECENV_TIMING_STEP] == 8 + 2 * VECENV_TIMING_INTERVAL);
    CHECK(sums.num[VECENV_TIMING_RESET] == 1);
    CHECK(sums.wall_ns[VECENV_TIMING_STEP] > 100 * 2000);
    CHECK(sums.wall_ns[VECENV_TIMING_RESET] >= 2 * (uint64_t)VECENV_LONG_NS);
    CHECK(sums.long_ns >= sums.wall_ns[VECENV_TIMING_RESET]);
    int counts = timer.has_delay_file > 0;
    if (counts) {
        CHECK(sums.measured[0].num + sums.measured[1].num <= 4);
        CHECK(sums.measured[0].num >= 1);
    }
    vecenv_timer_close(&timer);
    return counts;
}

static void
test_waiting_is_wall_less_cpu_and_delay(void)
{
    vecenv_timer timer = {.kind = VECENV_TIMING_NONE};
    vecenv_timed_env env;
    vecenv_timings sums = {0};
    vecenv_timed_env_init(&env);
    vecenv_timer_open(&timer);
    for (int i = 0; i < 20; i++) {
        run(&timer, &env, &sums, VECENV_TIMING_STEP, nap, 2 * VECENV_LONG_NS);
    }
    vecenv_measured *measured = &sums.measured[1];
    CHECK(measured->num == 19); /* all but the first, whose predecessor was not long */
    CHECK(2 * (measured->cpu_ns + measured->delay_ns) < measured->wall_ns);
    uint64_t napped = measured->wall_ns;
    for (int i = 0; i < 20; i++) {
        run(&timer, &env, &sums, VECENV_TIMING_STEP, compute, 2 * VECENV_LONG_NS);
    }
    CHECK(measured->num == 39);
    CHECK(measured->cpu_ns >= 20 * 2 * (uint64_t)VECENV_LONG_NS * 9 / 10);
    CHECK(measured->wall_ns > napped);
    vecenv_timer_close(&timer);
}

static void
test_a_cancelled_operation_does_not_count(void)
{
    vecenv_arena arena = make_arena((arena_sizes){2, 1, 8, 2, 16, 1 << 12});
    vecenv_timer timer = {.kind = VECENV_TIMING_NONE};
    vecenv_timed_env env;
    vecenv_timings *sums = &arena.timings[1];
    vecenv_timed_env_init(&env);
    vecenv_timer_open(&timer);
    for (int i = 0; i < 100; i++) {
        vecenv_timer_begin(&timer, &env, VECENV_TIMING_STEP);
        vecenv_timer_cancel(&timer);
        vecenv_timer_end(&timer, &env, sums, 1000, vecenv_now_ns());
    }
    CHECK(sums->num[VECENV_TIMING_STEP] == 0 && sums->measured[0].num == 0);
    vecenv_timer_close(&timer);
    free(arena.base);
}

int
main(void)
{
    if (test_every_operation_counts_and_one_of_many_is_measured()) {
        test_waiting_is_wall_less_cpu_and_delay();
    }
    test_a_cancelled_operation_does_not_count();
    return 0;
}
