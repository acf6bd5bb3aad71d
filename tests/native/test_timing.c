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

static void
test_pauses_are_no_part_of_an_operation(void)
{
    vecenv_timer timer = {.kind = VECENV_TIMING_NONE};
    vecenv_timed_env env;
    vecenv_timings sums = {0};
    const uint64_t paused_ns = 5 * 4 * 2 * (uint64_t)VECENV_LONG_NS;
    vecenv_timed_env_init(&env);
    vecenv_timer_open(&timer);
    int64_t first_ns = vecenv_now_ns();
    for (int i = 0; i < 5; i++) {
        env.until_measured = 1;
        int64_t began = vecenv_now_ns();
        vecenv_timer_begin(&timer, &env, VECENV_TIMING_STEP);
        for (int pause = 0; pause < 4; pause++) {
            compute(VECENV_LONG_NS);
            vecenv_timer_pause(&timer);
            nap(2 * VECENV_LONG_NS);
            vecenv_timer_resume(&timer);
        }
        int64_t ended = vecenv_now_ns();
        vecenv_timer_end(&timer, &env, &sums, ended - began, ended);
    }
    uint64_t all_ns = (uint64_t)(vecenv_now_ns() - first_ns);
    CHECK(sums.num[VECENV_TIMING_STEP] == 5);
    CHECK(sums.wall_ns[VECENV_TIMING_STEP] + paused_ns <= all_ns);
    CHECK(sums.wall_ns[VECENV_TIMING_STEP] >= 5 * 4 * (uint64_t)VECENV_LONG_NS);
    vecenv_measured *measured = &sums.measured[1];
    if (timer.has_delay_file > 0) {
        CHECK(measured->num == 5);
        CHECK(measured->wall_ns + paused_ns <= all_ns);
        CHECK(measured->cpu_ns >= 5 * 4 * (uint64_t)VECENV_LONG_NS * 9 / 10);
        CHECK(measured->cpu_ns <= measured->wall_ns);
    }
    vecenv_timer_pause(&timer); /* no operation is under way */
    vecenv_timer_resume(&timer);
    CHECK(sums.num[VECENV_TIMING_STEP] == 5);
    vecenv_timer_close(&timer);
}

static void
test_a_bucket_covers_a_quarter_of_an_octave(void)
{
    CHECK(vecenv_bucket_of(-1) == 0); /* the clock of another core may be behind */
    CHECK(vecenv_bucket_of(0) == 0 && vecenv_bucket_of(255) == 0);
    CHECK(vecenv_bucket_of(256) == 1 && vecenv_bucket_of(319) == 1);
    CHECK(vecenv_bucket_of(320) == 2 && vecenv_bucket_of(511) == 4);
    CHECK(vecenv_bucket_of(512) == 5 && vecenv_bucket_of(639) == 5);
    CHECK(vecenv_bucket_of(INT64_MAX) == VECENV_NUM_BUCKETS - 1);
    uint32_t last = 0;
    for (int64_t ns = 1; ns < INT64_MAX / 9 * 8; ns += ns / 8 + 1) {
        uint32_t bucket = vecenv_bucket_of(ns);
        CHECK(bucket == last || bucket == last + 1);
        last = bucket;
    }
    CHECK(last == VECENV_NUM_BUCKETS - 1);
}

static void
test_histogram_maximum_and_end_are_those_of_the_operations(void)
{
    vecenv_timer timer = {.kind = VECENV_TIMING_NONE};
    vecenv_timed_env env;
    vecenv_timings sums = {0};
    const int64_t took_ns[] = {100, 300, 300, 5000, 700};
    vecenv_timed_env_init(&env);
    for (int i = 0; i < 5; i++) {
        vecenv_timer_begin(&timer, &env, VECENV_TIMING_STEP);
        vecenv_timer_end(&timer, &env, &sums, took_ns[i], 10000 + i);
    }
    vecenv_timer_begin(&timer, &env, VECENV_TIMING_RESET);
    vecenv_timer_end(&timer, &env, &sums, 900, 20000);
    vecenv_word *steps = sums.buckets[VECENV_TIMING_STEP];
    CHECK(steps[0] == 1 && steps[1] == 2 && steps[vecenv_bucket_of(5000)] == 1);
    uint64_t num = 0;
    for (int i = 0; i < VECENV_NUM_BUCKETS; i++) {
        num += steps[i];
    }
    CHECK(num == 5 && sums.num[VECENV_TIMING_STEP] == 5);
    CHECK(sums.max_ns[VECENV_TIMING_STEP] == 5000 && sums.max_ns[VECENV_TIMING_RESET] == 900);
    CHECK(sums.buckets[VECENV_TIMING_RESET][vecenv_bucket_of(900)] == 1);
    CHECK(sums.ended_ns == 20000);
}

int
main(void)
{
    test_a_bucket_covers_a_quarter_of_an_octave();
    test_histogram_maximum_and_end_are_those_of_the_operations();
    if (test_every_operation_counts_and_one_of_many_is_measured()) {
        test_waiting_is_wall_less_cpu_and_delay();
    }
    test_a_cancelled_operation_does_not_count();
    test_pauses_are_no_part_of_an_operation();
    return 0;
}
