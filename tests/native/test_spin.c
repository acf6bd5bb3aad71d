/* Adaptive spin: a wait spins if the core is free, not at all after long or contended waits. A
 * spinner detects a busy thread on its core. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>

#include "harness.h"

enum { SPIN_LIMIT_NS = 500000, SHORT_NS = 100000, QUICK_NS = 50000, LONG_NS = 300000 };

static vecenv_backoff backoff;   /* of all spin policies; zeroed by each test that fills it */
static int64_t present_ns = 1; /* the clock of the simulated waits */

static int64_t
next_spin_limit(const vecenv_spin_policy *spin_policy)
{
    return vecenv_begin_spin(spin_policy, present_ns).spin_limit_ns;
}

/* Carry out a wait of waited_ns. If it spins, other threads have the core for contention_ns of it.
 * Returns its spin limit. */
static int64_t
finish_wait(vecenv_spin_policy *spin_policy, int64_t waited_ns, int64_t contention_ns)
{
    vecenv_spin spin = vecenv_begin_spin(spin_policy, present_ns);
    int64_t spin_limit_ns = spin.spin_limit_ns;
    present_ns += waited_ns;
    if (spin_limit_ns > 0) {
        spin.now_ns = present_ns;
        spin.contention_ns = contention_ns;
    }
    vecenv_spin_policy_update(spin_policy, &spin, waited_ns);
    return spin_limit_ns;
}

static void
test_long_waits_stop_spinning(void)
{
    vecenv_spin_policy spin_policy = {.spin_limit_ns = SPIN_LIMIT_NS, .backoff = &backoff};
    CHECK(next_spin_limit(&spin_policy) == SPIN_LIMIT_NS);
    finish_wait(&spin_policy, LOST_NS, 0);
    CHECK(next_spin_limit(&spin_policy) == SPIN_LIMIT_NS); /* one long wait has little weight */
    for (int i = 0; i < 3; i++) {
        finish_wait(&spin_policy, LOST_NS, 0);
    }
    CHECK(next_spin_limit(&spin_policy) == 0);
    for (int i = 0; i < 4; i++) {
        finish_wait(&spin_policy, QUICK_NS, 0);
    }
    CHECK(next_spin_limit(&spin_policy) == SPIN_LIMIT_NS);

    vecenv_spin_policy none = {.spin_limit_ns = 0, .backoff = &backoff};
    finish_wait(&none, LOST_NS, 0);
    CHECK(next_spin_limit(&none) == 0);
}

/* Return how many waits of QUICK_NS sleep at once, before one spins again. */
static int
count_sleeps(vecenv_spin_policy *spin_policy)
{
    int count = 0;
    while (next_spin_limit(spin_policy) == 0) {
        finish_wait(spin_policy, QUICK_NS, QUICK_NS);
        CHECK(++count < 10000);
    }
    return count;
}

static void
test_contended_waits_back_off(void)
{
    vecenv_spin_policy spin_policy = {.spin_limit_ns = SPIN_LIMIT_NS, .backoff = &backoff};
    int before = 0;
    for (int i = 0; i < 12; i++) { /* spins get rarer but do not end */
        CHECK(finish_wait(&spin_policy, LONG_NS, LONG_NS) == SPIN_LIMIT_NS);
        int count = count_sleeps(&spin_policy);
        CHECK(i > 0 || count == LONG_NS / QUICK_NS); /* at first as long as the contended wait */
        CHECK(i == 0 || count == 2 * before || (i > 4 && count >= before));
        before = count;
    }
    CHECK(before * QUICK_NS / LONG_NS > 10); /* a busy core costs less than 10 % */

    for (int i = 0; i < before; i++) { /* as long without contention */
        CHECK(finish_wait(&spin_policy, QUICK_NS, 0) == SPIN_LIMIT_NS);
    }
    CHECK(finish_wait(&spin_policy, LONG_NS, LONG_NS) == SPIN_LIMIT_NS);
    CHECK(count_sleeps(&spin_policy) == LONG_NS / QUICK_NS);
    backoff = (vecenv_backoff){0};
}

static void
test_contention_of_one_thread_stops_all_spins(void)
{
    vecenv_spin_policy one = {.spin_limit_ns = SPIN_LIMIT_NS, .backoff = &backoff};
    vecenv_spin_policy other = {.spin_limit_ns = SPIN_LIMIT_NS, .backoff = &backoff};
    vecenv_spin spin = vecenv_begin_spin(&other, present_ns);
    finish_wait(&one, LONG_NS, LONG_NS);
    CHECK(next_spin_limit(&other) == 0);
    uint64_t backoff_ns = load_acquire(&backoff.backoff_ns);
    spin.now_ns = present_ns; /* the other thread finds the same contention */
    spin.contention_ns = LONG_NS;
    vecenv_spin_policy_update(&other, &spin, LONG_NS);
    CHECK(load_acquire(&backoff.backoff_ns) == backoff_ns); /* it is not counted twice */
    backoff = (vecenv_backoff){0};
}

static void
test_stray_backoff_ends(void)
{
    vecenv_spin_policy spin_policy = {.spin_limit_ns = SPIN_LIMIT_NS, .backoff = &backoff};
    static const uint64_t strays[] = {UINT64_MAX, INT64_MAX, (uint64_t)INT64_MAX + 1};
    for (int i = 0; i < 3; i++) {
        store_release(&backoff.resume_ns, strays[i]);
        store_release(&backoff.backoff_ns, strays[i]);
        CHECK(finish_wait(&spin_policy, LONG_NS, LONG_NS) == SPIN_LIMIT_NS);
        CHECK(count_sleeps(&spin_policy) > 0);
    }
    backoff = (vecenv_backoff){0};
}

static void
test_slight_contention_is_ignored(void)
{
    vecenv_spin_policy spin_policy = {.spin_limit_ns = SPIN_LIMIT_NS, .backoff = &backoff};
    finish_wait(&spin_policy, LONG_NS, LONG_NS / 3); /* for less than half of the wait */
    CHECK(next_spin_limit(&spin_policy) == SPIN_LIMIT_NS);
    finish_wait(&spin_policy, SHORT_NS, SHORT_NS); /* shorter than CONTENTION_NS */
    CHECK(next_spin_limit(&spin_policy) == SPIN_LIMIT_NS);
}

static void *
stay_busy(void *stop)
{
    while (!load_acquire32((vecenv_word32 *)stop)) {
    }
    return NULL;
}

static void
test_busy_thread_counts_as_contention(void)
{
    cpu_set_t before, one;
    CHECK(sched_getaffinity(0, sizeof before, &before) == 0);
    CPU_ZERO(&one);
    CPU_SET((size_t)sched_getcpu(), &one);
    CHECK(sched_setaffinity(0, sizeof one, &one) == 0); /* the thread inherits it */
    vecenv_word32 stop = 0;
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, stay_busy, &stop) == 0);

    vecenv_spin_policy spin_policy = {.spin_limit_ns = LOST_NS, .backoff = &backoff};
    int64_t began = vecenv_now_ns();
    vecenv_spin spin = vecenv_begin_spin(&spin_policy, began);
    while (vecenv_spin_once(&spin)) {
    }
    CHECK(spin.now_ns - began < LOST_NS);
    CHECK(spin.contention_ns > 0);
    vecenv_spin_policy_update(&spin_policy, &spin, spin.now_ns - began);
    CHECK(vecenv_backs_off(&spin_policy));
    backoff = (vecenv_backoff){0};

    store_release32(&stop, 1);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(sched_setaffinity(0, sizeof before, &before) == 0);
}

static void
test_spin_ends_at_spin_limit(void)
{
    vecenv_spin_policy spin_policy = {.spin_limit_ns = QUICK_NS, .backoff = &backoff};
    int64_t began = vecenv_now_ns();
    vecenv_spin spin = vecenv_begin_spin(&spin_policy, began);
    while (vecenv_spin_once(&spin)) {
    }
    CHECK(spin.now_ns - began >= QUICK_NS);
    CHECK(vecenv_now_ns() - began < LOST_NS);
}

static void
test_idle_slot_stops_spinning(void)
{
    static const arena_sizes sizes = {1, 1, 12, 1, 8, 64};
    vecenv_arena arena = make_arena(sizes);
    vecenv_spin_policy spin_policy = {.spin_limit_ns = QUICK_NS, .backoff = &backoff};
    vecenv_affinity affinity = {0};
    CHECK(next_spin_limit(&spin_policy) == QUICK_NS);
    for (int i = 0; i < 4; i++) {
        CHECK(!vecenv_slot_park(&arena, 0, &spin_policy, &affinity, 10 * QUICK_NS));
    }
    CHECK(next_spin_limit(&spin_policy) == 0);
    free(arena.base);
}

int
main(void)
{
    test_idle_slot_stops_spinning();
    test_long_waits_stop_spinning();
    test_contended_waits_back_off();
    test_contention_of_one_thread_stops_all_spins();
    test_stray_backoff_ends();
    test_slight_contention_is_ignored();
    test_busy_thread_counts_as_contention();
    test_spin_ends_at_spin_limit();
    return 0;
}
