#define _GNU_SOURCE
#include "shm/timing.h"

#include <fcntl.h>
#include <unistd.h>

#include "shm/clock.h"

/* Read the two first numbers of the file: CPU time and run-queue delay of its thread, in
 * nanoseconds. The CPU time is that of the last switch, so it is not used. Returns 0, or -1 if the
 * system does not count. */
static int
read_delay(int file, int64_t *delay_ns)
{
    char text[96];
    ssize_t length = pread(file, text, sizeof text, 0);
    int64_t numbers[2] = {0, 0};
    int which = 0;
    for (ssize_t i = 0; i < length && which < 2; i++) {
        if (text[i] >= '0' && text[i] <= '9') {
            numbers[which] = numbers[which] * 10 + (text[i] - '0');
        } else {
            which++;
        }
    }
    *delay_ns = numbers[1];
    return which == 2 && numbers[0] > 0 ? 0 : -1;
}

void
vecenv_timer_open(vecenv_timer *timer)
{
    int64_t delay_ns;
    timer->kind = VECENV_TIMING_NONE;
    timer->has_delay_file = -1;
    timer->delay_file = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
    if (timer->delay_file < 0) {
        return;
    }
    if (read_delay(timer->delay_file, &delay_ns) == 0) {
        timer->has_delay_file = 1;
    } else {
        close(timer->delay_file);
    }
}

void
vecenv_timer_close(vecenv_timer *timer)
{
    if (timer->has_delay_file > 0) {
        close(timer->delay_file);
    }
    *timer = (vecenv_timer){.kind = VECENV_TIMING_NONE};
}

void
vecenv_timer_start(vecenv_timer *timer, vecenv_timed_env *env)
{
    if (env->until_measured == 0) {
        env->until_measured = VECENV_TIMING_INTERVAL;
    }
    if (timer->has_delay_file <= 0) {
        return;
    }
    /* The delay of an env that computes is of no interest: it does not wait in any case. */
    timer->has_delay = !env->is_computing || env->was_long[timer->kind];
    if (timer->has_delay && read_delay(timer->delay_file, &timer->delay_ns) < 0) {
        return;
    }
    timer->is_measured = 1;
    timer->cpu_ns = vecenv_thread_cpu_ns();
    timer->began_ns = vecenv_now_ns();
}

/* Add sign * (the clocks) to the instants from which the operation is measured. With -1 they become
 * the negative times until now, and with 1 these become instants again, later by the pause. */
static void
add_clocks(vecenv_timer *timer, int sign)
{
    if (timer->kind == VECENV_TIMING_NONE) {
        return;
    }
    int64_t now_ns = sign * vecenv_now_ns();
    timer->paused_ns += now_ns;
    if (!timer->is_measured) {
        return;
    }
    int64_t delay_ns = 0;
    if (timer->has_delay && read_delay(timer->delay_file, &delay_ns) < 0) {
        timer->is_measured = 0;
        return;
    }
    timer->began_ns += now_ns;
    timer->cpu_ns += sign * vecenv_thread_cpu_ns();
    timer->delay_ns += sign * delay_ns;
}

void
vecenv_timer_pause(vecenv_timer *timer)
{
    add_clocks(timer, -1);
}

void
vecenv_timer_resume(vecenv_timer *timer)
{
    add_clocks(timer, 1);
}

void
vecenv_timer_stop(vecenv_timer *timer, vecenv_timed_env *env, vecenv_timings *sums,
                  int64_t now_ns)
{
    int64_t cpu_ns = vecenv_thread_cpu_ns() - timer->cpu_ns;
    int64_t wall_ns = now_ns - timer->began_ns;
    int64_t delay_ns = 0;
    timer->is_measured = 0;
    env->is_computing = 2 * cpu_ns >= wall_ns;
    if (timer->has_delay) {
        if (read_delay(timer->delay_file, &delay_ns) < 0) {
            return;
        }
        delay_ns -= timer->delay_ns;
    } else if (!env->is_computing) {
        return; /* the next measurement includes the delay */
    }
    vecenv_measured *measured = &sums->measured[env->was_long[timer->kind]];
    vecenv_add_ns(&measured->num, 1);
    vecenv_add_ns(&measured->wall_ns, wall_ns);
    vecenv_add_ns(&measured->cpu_ns, cpu_ns);
    vecenv_add_ns(&measured->delay_ns, delay_ns);
}
