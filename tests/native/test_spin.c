/* How long a wait spins: long where the core is free, shortly after waits in company, not at all
 * after long waits; and a spinner beside a busy thread notices it. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>

#include "harness.h"

enum { SPIN_LIMIT_NS = 500000, SHORT_NS = 100000, QUICK_NS = 50000, LONG_NS = 300000 };

/* A wait of that length, of which others had the core for a part. */
static vecenv_spin
a_wait(vecenv_spin_policy *spin_policy, int64_t waited_ns, int64_t contention_ns)
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
long_waits_are_slept_through(void)
{
    vecenv_spin_policy spin_policy = {.spin_limit_ns = SPIN_LIMIT_NS};
    CHECK(next_spin_limit(&spin_policy) == SPIN_LIMIT_NS);
    a_wait(&spin_policy, LOST_NS, 0);
    CHECK(next_spin_limit(&spin_policy) == SPIN_LIMIT_NS); /* one does not count for much */
    for (int i = 0; i < 3; i++) {
        a_wait(&spin_policy, LOST_NS, 0);
    }
    CHECK(next_spin_limit(&spin_policy) == 0);
    for (int i = 0; i < 4; i++) {
        a_wait(&spin_policy, QUICK_NS, 0);
    }
    CHECK(next_spin_limit(&spin_policy) == SPIN_LIMIT_NS);

    vecenv_spin_policy none = {.spin_limit_ns = 0};
    a_wait(&none, LOST_NS, 0);
    CHECK(next_spin_limit(&none) == 0);
}

/* How many waits follow that do not spin long. */
static int
num_paused(vecenv_spin_policy *spin_policy, int64_t waited_ns)
{
    int count = 0;
    for (; spin_policy->backoff_left > 0; count++) {
        vecenv_spin spin = a_wait(spin_policy, waited_ns, waited_ns);
        CHECK(spin.spin_limit_ns == (waited_ns > SHORT_NS ? 0 : SHORT_NS));
        CHECK(count < 10000);
    }
    return count;
}

static void
waits_in_company_are_short(void)
{
    vecenv_spin_policy spin_policy = {.spin_limit_ns = SPIN_LIMIT_NS, .average_ns = LONG_NS};
    int before = 0;
    for (int i = 0; i < 10; i++) { /* it tries again, ever more rarely, but does not give up */
        CHECK(a_wait(&spin_policy, LONG_NS, LONG_NS).spin_limit_ns == SPIN_LIMIT_NS);
        int count = num_paused(&spin_policy, LONG_NS);
        CHECK(count > 0 && (count == 2 * before || before == 0 || (i > 4 && count == before)));
        before = count;
    }
    for (int i = 0; i < 20; i++) { /* nobody there any more: as if there never had been */
        CHECK(a_wait(&spin_policy, LONG_NS, 0).spin_limit_ns == SPIN_LIMIT_NS);
    }
    a_wait(&spin_policy, LONG_NS, LONG_NS);
    CHECK(num_paused(&spin_policy, LONG_NS) < before);

    spin_policy = (vecenv_spin_policy){.spin_limit_ns = SPIN_LIMIT_NS};
    a_wait(&spin_policy, LONG_NS, LONG_NS);
    CHECK(num_paused(&spin_policy, QUICK_NS) > 0); /* still a short spin each */
}

static void
a_little_company_is_none(void)
{
    vecenv_spin_policy spin_policy = {.spin_limit_ns = SPIN_LIMIT_NS};
    a_wait(&spin_policy, LONG_NS, LONG_NS / 3); /* most of it alone */
    CHECK(next_spin_limit(&spin_policy) == SPIN_LIMIT_NS);
    a_wait(&spin_policy, SHORT_NS, SHORT_NS); /* no longer than a caller takes */
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
a_busy_thread_is_noticed(void)
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
a_spin_ends_with_its_budget(void)
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
an_idle_slot_spins_no_more(void)
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
    an_idle_slot_spins_no_more();
    long_waits_are_slept_through();
    waits_in_company_are_short();
    a_little_company_is_none();
    a_busy_thread_is_noticed();
    a_spin_ends_with_its_budget();
    return 0;
}
