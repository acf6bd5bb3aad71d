/* CPU affinity of workers. A worker leaves its caller's core after quick rounds only, not too
 * often, and keeps its affinity. Threads that share a preferred core stay there while they mostly
 * wait. A parent is woken early only on the waker's own core. Some tests need two cores. */
#define _GNU_SOURCE
#include <sched.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "harness.h"

enum { QUICK_NS = 1000, LONG_NS = 200000, TRIES = 100 };

static const arena_sizes sizes = {2, 2, 12, 2, 8, 64};

static vecenv_affinity
after_round(int64_t took_ns)
{
    vecenv_affinity affinity = {0};
    vecenv_begin_round(&affinity, 1);
    vecenv_end_round(&affinity, 1 + took_ns, 0, 0);
    return affinity;
}

static void
test_quick_round_leaves_callers_core(void)
{
    cpu_set_t before, after;
    CHECK(sched_getaffinity(0, sizeof before, &before) == 0);
    int left = 0;
    for (int i = 0; i < TRIES; i++) { /* the system may move this thread between two lines */
        vecenv_affinity affinity = after_round(QUICK_NS);
        int core = sched_getcpu();
        int went = vecenv_leave_callers_core(&affinity, (unsigned int)core,
                                             VECENV_LEAVE_INTERVAL_NS);
        left += went && sched_getcpu() != core;
        CHECK(sched_getaffinity(0, sizeof after, &after) == 0);
        CHECK(CPU_EQUAL(&before, &after));
        CHECK(!went
              || !vecenv_leave_callers_core(&affinity, (unsigned int)sched_getcpu(),
                                            2 * VECENV_LEAVE_INTERVAL_NS - 1)); /* too early */
    }
    CHECK(left > TRIES / 2);
}

static void
test_worker_keeps_core_unless_quick_round_on_callers_core(void)
{
    vecenv_affinity affinity = after_round(LONG_NS);
    CHECK(!vecenv_leave_callers_core(&affinity, (unsigned int)sched_getcpu(),
                                     VECENV_LEAVE_INTERVAL_NS));
    affinity = after_round(QUICK_NS);
    CHECK(!vecenv_leave_callers_core(&affinity, 5000, VECENV_LEAVE_INTERVAL_NS)); /* another core */

    cpu_set_t before, one, after;
    CHECK(sched_getaffinity(0, sizeof before, &before) == 0);
    CPU_ZERO(&one);
    CPU_SET((size_t)sched_getcpu(), &one);
    CHECK(sched_setaffinity(0, sizeof one, &one) == 0);
    CHECK(!vecenv_leave_callers_core(&affinity, (unsigned int)sched_getcpu(),
                                     VECENV_LEAVE_INTERVAL_NS));
    CHECK(sched_getaffinity(0, sizeof after, &after) == 0);
    CHECK(CPU_EQUAL(&one, &after));
    CHECK(sched_setaffinity(0, sizeof before, &before) == 0);
}

static void
test_should_pin_needs_long_round_and_sleeping_caller(void)
{
    enum { PUBLISHED = 1000 };
    const struct {
        int64_t took_ns, wait_began_ns;
        int should_pin;
    } rounds[] = {
        {VECENV_PIN_MIN_ROUND_NS, PUBLISHED, 1},
        {VECENV_PIN_MIN_ROUND_NS - 1, PUBLISHED, 0},                 /* the round is too short */
        {VECENV_PIN_MIN_ROUND_NS, PUBLISHED - 1, 0},                 /* no sleep since then */
        {VECENV_PIN_MIN_ROUND_NS, PUBLISHED + VECENV_PIN_MAX_DELAY_NS - 1, 1},
        /* the caller went on computing */
        {VECENV_PIN_MIN_ROUND_NS, PUBLISHED + VECENV_PIN_MAX_DELAY_NS, 0},
    };
    vecenv_affinity affinity = {0};
    for (size_t i = 0; i < sizeof rounds / sizeof rounds[0]; i++) {
        vecenv_begin_round(&affinity, 1);
        vecenv_end_round(&affinity, 1 + rounds[i].took_ns, PUBLISHED, rounds[i].wait_began_ns);
        CHECK(affinity.should_pin == rounds[i].should_pin);
        affinity.should_pin = 2; /* a wait that ends at its timeout changes nothing */
        vecenv_end_round(&affinity, 1, PUBLISHED, PUBLISHED);
        CHECK(affinity.should_pin == 2);
    }
    /* a core number beyond the bit mask */
    vecenv_affinity_init(&affinity, 64 * VECENV_CORE_WORDS, 1);
    CHECK(!affinity.is_set);
}

/* End a round that took took_ns and used at least used_ns of CPU time. */
static void
end_round_with(vecenv_affinity *affinity, int64_t took_ns, int64_t used_ns)
{
    vecenv_begin_round(affinity, 1);
    struct timespec used;
    int64_t until = affinity->cpu_ns + used_ns;
    do {
        CHECK(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used) == 0);
    } while ((int64_t)used.tv_sec * 1000000000 + used.tv_nsec < until);
    vecenv_end_round(affinity, 1 + took_ns, 0, 0);
}

static void
test_shared_pin_lasts_while_rounds_mostly_wait(void)
{
    cpu_set_t before, one, other, present;
    CHECK(sched_getaffinity(0, sizeof before, &before) == 0);
    vecenv_affinity affinity = {0};
    vecenv_affinity_init(&affinity, (unsigned int)sched_getcpu(), 2);
    CHECK(affinity.is_shared);
    CPU_ZERO(&one);
    for (size_t core = 0; core < CPU_SETSIZE; core++) {
        if (affinity.preferred[core / 64] >> core % 64 & 1) {
            CPU_SET(core, &one);
        }
    }
    CPU_XOR(&other, &before, &one);
    for (int turn = 0; turn < 2; turn++) {
        end_round_with(&affinity, 10000000000, 0); /* it mostly waits */
        CHECK(sched_getaffinity(0, sizeof present, &present) == 0);
        CHECK(CPU_EQUAL(&present, &one));
        affinity.took_ns = affinity.used_ns = 0;
        end_round_with(&affinity, 1000000, 1000000); /* it computes */
        CHECK(sched_getaffinity(0, sizeof present, &present) == 0);
        CHECK(CPU_EQUAL(&present, &before));
        CHECK(!vecenv_pin(&affinity));
    }
    CHECK(sched_setaffinity(0, sizeof other, &other) == 0); /* an affinity set by the env stays */
    end_round_with(&affinity, 10000000000, 0);
    CHECK(sched_getaffinity(0, sizeof present, &present) == 0);
    CHECK(CPU_EQUAL(&present, &other));
    CHECK(sched_setaffinity(0, sizeof before, &before) == 0);
}

static void
test_affinity_is_unset_with_one_allowed_core(void)
{
    cpu_set_t before, one;
    CHECK(sched_getaffinity(0, sizeof before, &before) == 0);
    CPU_ZERO(&one);
    CPU_SET((size_t)sched_getcpu(), &one);
    CHECK(sched_setaffinity(0, sizeof one, &one) == 0);
    vecenv_affinity affinity = {0};
    vecenv_affinity_init(&affinity, (unsigned int)sched_getcpu(), 2);
    CHECK(!affinity.is_shared);
    for (unsigned int num_threads = 1; num_threads <= 2; num_threads++) { /* not allowed there */
        vecenv_affinity_init(&affinity, (unsigned int)sched_getcpu() + 1, num_threads);
        CHECK(!affinity.is_set && !affinity.is_shared);
    }
    CHECK(sched_setaffinity(0, sizeof before, &before) == 0);
}

static void
test_wake_parent_early_needs_same_core(void)
{
    vecenv_arena arena = make_arena(sizes);
    int event_fd = eventfd(0, EFD_NONBLOCK);
    uint64_t rings = 0;
    cpu_set_t before, one;
    CHECK(sched_getaffinity(0, sizeof before, &before) == 0);
    CPU_ZERO(&one);
    CPU_SET((size_t)sched_getcpu(), &one);
    CHECK(sched_setaffinity(0, sizeof one, &one) == 0);

    CHECK(!vecenv_wake_parent_early(&arena, event_fd)); /* the parent is awake */
    vecenv_begin_wait(&arena, VECENV_WAIT_ANY, make_row_ref(1, 0, 0), 1, 1);
    CHECK(!vecenv_wake_parent_early(&arena, event_fd)); /* it does not wait for rows */
    vecenv_begin_wait(&arena, VECENV_WAIT_ALL, make_row_ref(1, 0, 0), 2, 1);
    store_release32(&arena.control->wait_core, (uint32_t)sched_getcpu() + 1);
    CHECK(!vecenv_wake_parent_early(&arena, event_fd)); /* it sleeps on another core */
    CHECK(read(event_fd, &rings, sizeof rings) < 0);

    vecenv_begin_wait(&arena, VECENV_WAIT_ALL, make_row_ref(1, 0, 0), 2, 1);
    CHECK(vecenv_wake_parent_early(&arena, event_fd));
    CHECK(read(event_fd, &rings, sizeof rings) == sizeof rings && rings == 1);
    CHECK(load_acquire32(&arena.control->waiting) == VECENV_WAIT_SOON);
    CHECK(!vecenv_wake_parent_early(&arena, event_fd)); /* it was woken already */
    CHECK(!vecenv_wake_parent(&arena, event_fd, 1));    /* it polls now */

    CHECK(sched_setaffinity(0, sizeof before, &before) == 0);
    close(event_fd);
    free(arena.base);
}

int
main(void)
{
    cpu_set_t cores;
    CHECK(sched_getaffinity(0, sizeof cores, &cores) == 0);
    if (CPU_COUNT(&cores) > 1) {
        test_quick_round_leaves_callers_core();
        test_worker_keeps_core_unless_quick_round_on_callers_core();
        test_shared_pin_lasts_while_rounds_mostly_wait();
    }
    test_should_pin_needs_long_round_and_sleeping_caller();
    test_affinity_is_unset_with_one_allowed_core();
    test_wake_parent_early_needs_same_core();
    return 0;
}
