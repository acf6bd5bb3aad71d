/* The parent's wait where one worker of two has done its share. A waiter without descriptors
 * cannot sleep, so that whoever tries to is seen. */
#include <pthread.h>

#include "harness.h"
#include "wait.h"

enum { SLOTS = 2 };

static const arena_sizes sizes = {SLOTS, SLOTS, 4, SLOTS, 8, 64};

static vecenv_waiter
make_waiter(const vecenv_arena *arena, vecenv_ring *ring)
{
    return (vecenv_waiter){
        .arena = arena,
        .ring = ring,
        .event_fd = -1,
        .epoll_fd = -1,
        .patience = {.budget_ns = 1, .average_ns = 2}, /* usual waits are long */
        .late = {.budget_ns = LOST_NS},
    };
}

/* What a worker does from its bell to its row. */
static void
serve(const vecenv_arena *arena, uint64_t place)
{
    uint32_t slot = place_row(place);
    write_row(arena, place, 1, slot);
    vecenv_commit(arena, place);
    store_release32(&arena->slots[slot].head, 1);
}

typedef struct {
    const vecenv_arena *arena;
    uint64_t place;
} job;

static void *
serve_elsewhere(void *argument)
{
    const job *self = argument;
    serve(self->arena, self->place);
    return NULL;
}

static int
wait_for_all(vecenv_waiter *waiter, int64_t deadline_ns)
{
    vecenv_want what = {VECENV_WAIT_ALL, SLOTS, waiter->ring->assigned, 1};
    int descriptor = -1;
    return vecenv_wait_for(waiter, &what, deadline_ns, &descriptor);
}

static void
ask_both(vecenv_ring *ring)
{
    vecenv_ring_assign(ring, SLOTS);
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        owe(ring, slot, 1);
        vecenv_ring_tail(ring->arena, slot, 1, vecenv_now_ns());
    }
}

static void
a_caller_that_comes_late_stays_awake(void)
{
    vecenv_arena arena = make_arena(sizes);
    books *made = make_books(&arena, 2);
    vecenv_waiter waiter = make_waiter(&arena, &made->ring);
    ask_both(&made->ring);
    serve(&arena, made->ring.assigned);

    job other = {&arena, made->ring.assigned + 1};
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, serve_elsewhere, &other) == 0);
    CHECK(wait_for_all(&waiter, vecenv_now_ns() + LOST_NS) == RECV_BATCH);
    CHECK(waiter.late.average_ns > 0); /* learnt from */
    pthread_join(thread, NULL);

    free_books(made);
    free(arena.base);
}

static void
it_does_so_while_that_pays_and_until_its_deadline(void)
{
    vecenv_arena arena = make_arena(sizes);
    books *made = make_books(&arena, 2);
    vecenv_waiter waiter = make_waiter(&arena, &made->ring);
    ask_both(&made->ring);
    serve(&arena, made->ring.assigned);

    int64_t began = vecenv_now_ns();
    CHECK(wait_for_all(&waiter, began + 1000000) != RECV_BATCH);
    CHECK(vecenv_now_ns() - began >= 1000000);
    waiter.late.average_ns = 2 * LOST_NS; /* recent ones were longer than it may be */
    CHECK(wait_for_all(&waiter, vecenv_now_ns() + LOST_NS) != RECV_BATCH);

    free_books(made);
    free(arena.base);
}

static void
nobody_is_late_before_a_worker_is_done_or_who_waits_for_a_part(void)
{
    vecenv_arena arena = make_arena(sizes);
    books *made = make_books(&arena, 2);
    vecenv_waiter waiter = make_waiter(&arena, &made->ring);
    ask_both(&made->ring);

    CHECK(wait_for_all(&waiter, vecenv_now_ns() + LOST_NS) != RECV_BATCH);
    store_release32(&arena.slots[0].head, 1);
    store_release32(&arena.slots[0].current_op, VECENV_OP_STEP); /* taken, not done */
    CHECK(wait_for_all(&waiter, vecenv_now_ns() + LOST_NS) != RECV_BATCH);
    store_release32(&arena.slots[0].current_op, VECENV_OP_NONE);
    vecenv_want some = {VECENV_WAIT_ALL, SLOTS, made->ring.assigned, 0};
    int descriptor = -1;
    CHECK(vecenv_wait_for(&waiter, &some, vecenv_now_ns() + LOST_NS, &descriptor)
          != RECV_BATCH);
    CHECK(waiter.late.average_ns == 0);

    free_books(made);
    free(arena.base);
}

int
main(void)
{
    a_caller_that_comes_late_stays_awake();
    it_does_so_while_that_pays_and_until_its_deadline();
    nobody_is_late_before_a_worker_is_done_or_who_waits_for_a_part();
    return 0;
}
