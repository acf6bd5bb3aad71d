/* Adaptive spin: a wait spins long if the core is free, shortly after contended waits, not at all
 * after long waits. A spinner detects a busy thread on its core. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>

#include "harness.h"

enum { SPIN_LIMIT_NS = 500000, SHORT_NS = 100000, QUICK_NS = 50000, LONG_NS = 300000 };

/* Carry out a wait of waited_ns during which other threads had the core for contention_ns. Returns
 * its spin as it was at the start. */
static vecenv_spin
finish_wait(vecenv_spin_policy *spin_policy, int64_t waited_ns, int64_t contention_ns)
{
    vecenv_spin spin = vecenv_begin_spin(spin_policy, 1);
    vecenv_spin begun = spin;
    spin.now_ns += waited_ns;
    spin.contention_ns = contention_ns;
    vecenv_spin_policy_update(spin_policy, &spin, waited_ns);
    return begun;
}

static int64_t
next_spin_limit(const vecenv_spin_policy *spin_policy)
{
    return vecenv_begin_spin(spin_policy, 1).spin_limit_ns;
}

static void
test_long_waits_stop_spinning(void)
{
    vecenv_spin_policy spin_policy = {.spin_limit_ns = SPIN_LIMIT_NS};
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

    vecenv_spin_policy none = {.spin_limit_ns = 0};
    finish_wait(&none, LOST_NS, 0);
    CHECK(next_spin_limit(&none) == 0);
}

/* Return how many waits follow without a long spin. */
static int
count_backoff_waits(vecenv_spin_policy *spin_policy, int64_t waited_ns)
{
    int count = 0;
    for (; spin_policy->backoff_left > 0; count++) {
        vecenv_spin spin = finish_wait(spin_policy, waited_ns, waited_ns);
        CHECK(spin.spin_limit_ns == (waited_ns > SHORT_NS ? 0 : SHORT_NS));
        CHECK(count < 10000);
    }
    return count;
}

static void
test_contended_waits_back_off(void)
{
    vecenv_spin_policy spin_policy = {.spin_limit_ns = SPIN_LIMIT_NS, .average_ns = LONG_NS};
    int before = 0;
    for (int i = 0; i < 10; i++) { /* long spins get rarer but do not end */
        CHECK(finish_wait(&spin_policy, LONG_NS, LONG_NS).spin_limit_ns == SPIN_LIMIT_NS);
        int count = count_backoff_waits(&spin_policy, LONG_NS);
        CHECK(count > 0 && (count == 2 * before || before == 0 || (i > 4 && count == before)));
        before = count;
    }
    for (int i = 0; i < 20; i++) { /* without contention the backoff shrinks */
        CHECK(finish_wait(&spin_policy, LONG_NS, 0).spin_limit_ns == SPIN_LIMIT_NS);
    }
    finish_wait(&spin_policy, LONG_NS, LONG_NS);
    CHECK(count_backoff_waits(&spin_policy, LONG_NS) < before);

    spin_policy = (vecenv_spin_policy){.spin_limit_ns = SPIN_LIMIT_NS};
    finish_wait(&spin_policy, LONG_NS, LONG_NS);
    CHECK(count_backoff_waits(&spin_policy, QUICK_NS) > 0); /* each still spins shortly */
}

static void
test_slight_contention_is_ignored(void)
{
    vecenv_spin_policy spin_policy = {.spin_limit_ns = SPIN_LIMIT_NS};
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

    vecenv_spin_policy spin_policy = {.spin_limit_ns = LOST_NS};
    int64_t began = vecenv_now_ns();
    vecenv_spin spin = vecenv_begin_spin(&spin_policy, began);
    while (vecenv_spin_once(&spin)) {
    }
    CHECK(spin.now_ns - began < LOST_NS);
    CHECK(spin.contention_ns > 0);
    vecenv_spin_policy_update(&spin_policy, &spin, spin.now_ns - began);
    CHECK(next_spin_limit(&spin_policy) < LOST_NS);

    store_release32(&stop, 1);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(sched_setaffinity(0, sizeof before, &before) == 0);
}

static void
test_spin_ends_at_spin_limit(void)
{
    vecenv_spin_policy spin_policy = {.spin_limit_ns = QUICK_NS};
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
    vecenv_spin_policy spin_policy = {.spin_limit_ns = QUICK_NS};
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
    test_slight_contention_is_ignored();
    test_busy_thread_counts_as_contention();
    test_spin_ends_at_spin_limit();
    return 0;
}
