/* Timing: how long the steps and resets of an env take, and how much of that time it computes.
 *
 * The wall time of every operation is added up and counted in a histogram. The CPU time and the
 * run-queue delay are measured for one operation in VECENV_TIMING_INTERVAL, since their clocks are
 * slow, and for an operation whose predecessor of the same kind was long. The sums of long
 * operations are separate, because a larger part of these is measured.
 *
 *     waiting = wall time - CPU time - run-queue delay
 *
 * The worker that hosts an env is the only writer of its words; any process reads them at any time.
 * Each word is 64 bits wide and aligned, so a reader never gets half of a value. Different words may
 * be those of two instants. An operation is stored in this order: bucket, maximum, sum, number. A
 * reader that loads the number first finds that number or more in the other words. */
#ifndef VECENV_TIMING_H
#define VECENV_TIMING_H

#include <stdint.h>
#include <string.h>

#include "shm/layout.h"

#define VECENV_TIMING_INTERVAL 64
#define VECENV_LONG_NS INT64_C(1000000) /* an operation of this wall time is long */

/* Kinds of operations. VECENV_TIMING_NONE: the operation is not measured. */
enum { VECENV_TIMING_STEP, VECENV_TIMING_RESET, VECENV_TIMING_NONE };

/* The state of one env in its worker. */
typedef struct {
    uint32_t until_measured; /* operations until the next one that is measured */
    uint8_t was_long[2];     /* whether the last operation of each kind was long */
    uint8_t is_computing;    /* it computed for most of the operation measured last */
} vecenv_timed_env;

/* The operation under way in one thread. Zero is a valid initial state. */
typedef struct {
    int has_delay_file; /* 0: not opened yet; -1: the system has none */
    int delay_file;     /* file of the thread that called vecenv_timer_open */
    int kind;
    int is_measured, has_delay;
    int64_t began_ns, cpu_ns, delay_ns;
    int64_t paused_ns; /* time between pauses and their ends */
} vecenv_timer;

/* Prepare the timer for the calling thread. Without the file of its run-queue delay, operations are
 * not measured. */
void vecenv_timer_open(vecenv_timer *timer);

/* Close the file; the timer is as before vecenv_timer_open. */
void vecenv_timer_close(vecenv_timer *timer);

/* Read the clocks before an operation that is measured. */
void vecenv_timer_start(vecenv_timer *timer, vecenv_timed_env *env);

/* Pause the operation under way, if it is timed: the time until vecenv_timer_resume is not counted.
 * Pair them in one thread; an operation may be paused many times. */
void vecenv_timer_pause(vecenv_timer *timer);
void vecenv_timer_resume(vecenv_timer *timer);

/* Read the clocks after it and add the differences to the sums. `now_ns`: the monotonic clock. */
void vecenv_timer_stop(vecenv_timer *timer, vecenv_timed_env *env, vecenv_timings *sums,
                       int64_t now_ns);

/* Set the state of an env that has just been built: its 8th operation is measured first. */
static inline void
vecenv_timed_env_init(vecenv_timed_env *env)
{
    *env = (vecenv_timed_env){.until_measured = 8};
}

/* Begin an operation of this kind. */
static inline void
vecenv_timer_begin(vecenv_timer *timer, vecenv_timed_env *env, int kind)
{
    timer->kind = kind;
    timer->is_measured = 0;
    timer->paused_ns = 0;
    if (kind != VECENV_TIMING_NONE
        && (--env->until_measured == 0 || env->was_long[kind])) {
        vecenv_timer_start(timer, env);
    }
}

/* Do not count the operation under way: it was dropped, or repeated others. */
static inline void
vecenv_timer_cancel(vecenv_timer *timer)
{
    timer->kind = VECENV_TIMING_NONE;
    timer->is_measured = 0;
}

static inline void
vecenv_add_ns(vecenv_word *sum, int64_t ns)
{
    store_release(sum, load_acquire(sum) + (uint64_t)ns);
}

/* Count an episode that ends: first its return, then the episode. */
static inline void
vecenv_count_episode(vecenv_timings *sums, double episode_return)
{
    double sum;
    uint64_t bits = load_acquire(&sums->return_sum);
    memcpy(&sum, &bits, sizeof sum);
    sum += episode_return;
    memcpy(&bits, &sum, sizeof bits);
    store_release(&sums->return_sum, bits);
    store_release(&sums->num_episodes, load_acquire(&sums->num_episodes) + 1);
}

/* Return the bucket of a duration. The two bits below the highest one select a quarter of its
 * octave. */
static inline uint32_t
vecenv_bucket_of(int64_t ns)
{
    if (ns < INT64_C(1) << VECENV_FIRST_OCTAVE) {
        return 0;
    }
    uint32_t octave = 63u - (uint32_t)__builtin_clzll((unsigned long long)ns);
    uint32_t quarter = (uint32_t)(ns >> (octave - 2)) & 3u;
    uint32_t bucket = 1u + 4u * (octave - VECENV_FIRST_OCTAVE) + quarter;
    return bucket < VECENV_NUM_BUCKETS ? bucket : VECENV_NUM_BUCKETS - 1;
}

/* End the operation under way. It took `took_ns`, with its pauses, and ended at `now_ns`. */
static inline void
vecenv_timer_end(vecenv_timer *timer, vecenv_timed_env *env, vecenv_timings *sums,
                 int64_t took_ns, int64_t now_ns)
{
    int kind = timer->kind;
    if (kind == VECENV_TIMING_NONE) {
        return;
    }
    took_ns -= timer->paused_ns;
    vecenv_add_ns(&sums->buckets[kind][vecenv_bucket_of(took_ns)], 1);
    if ((uint64_t)took_ns > load_acquire(&sums->max_ns[kind])) {
        store_release(&sums->max_ns[kind], (uint64_t)took_ns);
    }
    vecenv_add_ns(&sums->wall_ns[kind], took_ns);
    vecenv_add_ns(&sums->num[kind], 1);
    store_release(&sums->ended_ns, (uint64_t)now_ns);
    env->was_long[kind] = took_ns >= VECENV_LONG_NS;
    if (env->was_long[kind]) {
        vecenv_add_ns(&sums->long_ns, took_ns);
    }
    if (timer->is_measured) {
        vecenv_timer_stop(timer, env, sums, now_ns);
    }
    timer->kind = VECENV_TIMING_NONE;
}

#endif
