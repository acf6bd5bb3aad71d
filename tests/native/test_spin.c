/* How long a wait spins: long where the core is free, shortly after waits in company, not at all
 * after long waits; and a spinner beside a busy thread notices it. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>

#include "harness.h"

enum { BUDGET_NS = 500000, SHORT_NS = 100000, QUICK_NS = 50000, LONG_NS = 300000 };

/* A wait of that length, of which others had the core for a part. */
static vecenv_spin
a_wait(vecenv_patience *patience, int64_t waited_ns, int64_t company_ns)
{
    vecenv_spin spin = vecenv_begin_spin(patience, 1);
    vecenv_spin begun = spin;
    spin.now_ns += waited_ns;
    spin.company_ns = company_ns;
    vecenv_patience_learn(patience, &spin, waited_ns);
    return begun;
}

static int64_t
next_budget(const vecenv_patience *patience)
{
    return vecenv_begin_spin(patience, 1).budget_ns;
}

static void
long_waits_are_slept_through(void)
{
    vecenv_patience patience = {.budget_ns = BUDGET_NS};
    CHECK(next_budget(&patience) == BUDGET_NS);
    a_wait(&patience, LOST_NS, 0);
    CHECK(next_budget(&patience) == BUDGET_NS); /* one does not count for much */
    for (int i = 0; i < 3; i++) {
        a_wait(&patience, LOST_NS, 0);
    }
    CHECK(next_budget(&patience) == 0);
    for (int i = 0; i < 4; i++) {
        a_wait(&patience, QUICK_NS, 0);
    }
    CHECK(next_budget(&patience) == BUDGET_NS);

    vecenv_patience none = {.budget_ns = 0};
    a_wait(&none, LOST_NS, 0);
    CHECK(next_budget(&none) == 0);
}

/* How many waits follow that do not spin long. */
static int
num_paused(vecenv_patience *patience, int64_t waited_ns)
{
    int count = 0;
    for (; patience->pause > 0; count++) {
        vecenv_spin spin = a_wait(patience, waited_ns, waited_ns);
        CHECK(spin.budget_ns == (waited_ns > SHORT_NS ? 0 : SHORT_NS));
        CHECK(count < 10000);
    }
    return count;
}

static void
waits_in_company_are_short(void)
{
    vecenv_patience patience = {.budget_ns = BUDGET_NS, .average_ns = LONG_NS};
    int before = 0;
    for (int i = 0; i < 10; i++) { /* it tries again, ever more rarely, but does not give up */
        CHECK(a_wait(&patience, LONG_NS, LONG_NS).budget_ns == BUDGET_NS);
        int count = num_paused(&patience, LONG_NS);
        CHECK(count > 0 && (count == 2 * before || before == 0 || (i > 4 && count == before)));
        before = count;
    }
    for (int i = 0; i < 20; i++) { /* nobody there any more: as if there never had been */
        CHECK(a_wait(&patience, LONG_NS, 0).budget_ns == BUDGET_NS);
    }
    a_wait(&patience, LONG_NS, LONG_NS);
    CHECK(num_paused(&patience, LONG_NS) < before);

    patience = (vecenv_patience){.budget_ns = BUDGET_NS};
    a_wait(&patience, LONG_NS, LONG_NS);
    CHECK(num_paused(&patience, QUICK_NS) > 0); /* still a short spin each */
}

static void
a_little_company_is_none(void)
{
    vecenv_patience patience = {.budget_ns = BUDGET_NS};
    a_wait(&patience, LONG_NS, LONG_NS / 3); /* most of it alone */
    CHECK(next_budget(&patience) == BUDGET_NS);
    a_wait(&patience, SHORT_NS, SHORT_NS); /* no longer than a caller takes */
    CHECK(next_budget(&patience) == BUDGET_NS);
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

    vecenv_patience patience = {.budget_ns = LOST_NS};
    int64_t began = vecenv_now_ns();
    vecenv_spin spin = vecenv_begin_spin(&patience, began);
    while (vecenv_spin_on(&spin)) {
    }
    CHECK(spin.now_ns - began < LOST_NS);
    CHECK(spin.company_ns > 0);
    vecenv_patience_learn(&patience, &spin, spin.now_ns - began);
    CHECK(next_budget(&patience) < LOST_NS);

    store_release32(&stop, 1);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(sched_setaffinity(0, sizeof before, &before) == 0);
}

static void
a_spin_ends_with_its_budget(void)
{
    vecenv_patience patience = {.budget_ns = QUICK_NS};
    int64_t began = vecenv_now_ns();
    vecenv_spin spin = vecenv_begin_spin(&patience, began);
    while (vecenv_spin_on(&spin)) {
    }
    CHECK(spin.now_ns - began >= QUICK_NS);
    CHECK(vecenv_now_ns() - began < LOST_NS);
}

static void
an_idle_slot_spins_no_more(void)
{
    static const arena_sizes sizes = {1, 1, 12, 1, 8, 64};
    vecenv_arena arena = make_arena(sizes);
    vecenv_patience patience = {.budget_ns = QUICK_NS};
    vecenv_home home = {0};
    CHECK(next_budget(&patience) == QUICK_NS);
    for (int i = 0; i < 4; i++) {
        CHECK(!vecenv_slot_park(&arena, 0, &patience, &home, 10 * QUICK_NS));
    }
    CHECK(next_budget(&patience) == 0);
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
