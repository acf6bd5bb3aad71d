/* The parent's wait: what ends its sleep, and where one worker of two has done its share. There a
 * waiter has no descriptors and cannot sleep, so that whoever tries to is seen. */
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "harness.h"
#include "shm/wait.h"

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
        .spin_policy = {.spin_limit_ns = 1, .average_ns = 2}, /* usual waits are long */
        .late_caller_spin_policy = {.spin_limit_ns = LOST_NS},
    };
}

/* What a worker does from its bell to its row. */
static void
serve(const vecenv_arena *arena, uint64_t row_ref)
{
    uint32_t slot = ref_row(row_ref);
    write_row(arena, row_ref, 1, slot);
    vecenv_commit(arena, row_ref);
    store_release32(&arena->slots[slot].head, 1);
}

typedef struct {
    const vecenv_arena *arena;
    uint64_t row_ref;
} job;

static void *
serve_elsewhere(void *argument)
{
    const job *self = argument;
    serve(self->arena, self->row_ref);
    return NULL;
}

static int
wait_for_all(vecenv_waiter *waiter, int64_t deadline_ns)
{
    vecenv_wait_condition condition = {VECENV_WAIT_ALL, SLOTS, waiter->ring->assigned, 1};
    int descriptor = -1;
    return vecenv_wait_for(waiter, &condition, deadline_ns, &descriptor);
}

static void
ask_both(vecenv_ring *ring)
{
    vecenv_ring_assign(ring, SLOTS);
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        owe(ring, slot, 1);
        vecenv_publish_tail(ring->arena, slot, 1, vecenv_now_ns());
    }
}

static void
a_caller_that_comes_late_stays_awake(void)
{
    vecenv_arena arena = make_arena(sizes);
    test_ring *made = make_test_ring(&arena, 2);
    vecenv_waiter waiter = make_waiter(&arena, &made->ring);
    ask_both(&made->ring);
    serve(&arena, made->ring.assigned);

    job other = {&arena, made->ring.assigned + 1};
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, serve_elsewhere, &other) == 0);
    CHECK(wait_for_all(&waiter, vecenv_now_ns() + LOST_NS) == RECV_BATCH);
    CHECK(waiter.late_caller_spin_policy.average_ns > 0); /* learnt from */
    pthread_join(thread, NULL);

    free_test_ring(made);
    free(arena.base);
}

static void
it_does_so_while_that_pays_and_until_its_deadline(void)
{
    vecenv_arena arena = make_arena(sizes);
    test_ring *made = make_test_ring(&arena, 2);
    vecenv_waiter waiter = make_waiter(&arena, &made->ring);
    ask_both(&made->ring);
    serve(&arena, made->ring.assigned);

    int64_t began = vecenv_now_ns();
    CHECK(wait_for_all(&waiter, began + 1000000) != RECV_BATCH);
    CHECK(vecenv_now_ns() - began >= 1000000);
    /* recent ones were longer than it may be */
    waiter.late_caller_spin_policy.average_ns = 2 * LOST_NS;
    CHECK(wait_for_all(&waiter, vecenv_now_ns() + LOST_NS) != RECV_BATCH);

    free_test_ring(made);
    free(arena.base);
}

static void
nobody_is_late_before_a_worker_is_done_or_who_waits_for_a_part(void)
{
    vecenv_arena arena = make_arena(sizes);
    test_ring *made = make_test_ring(&arena, 2);
    vecenv_waiter waiter = make_waiter(&arena, &made->ring);
    ask_both(&made->ring);

    CHECK(wait_for_all(&waiter, vecenv_now_ns() + LOST_NS) != RECV_BATCH);
    store_release32(&arena.slots[0].head, 1);
    store_release32(&arena.slots[0].current_op, VECENV_OP_STEP); /* taken, not done */
    CHECK(wait_for_all(&waiter, vecenv_now_ns() + LOST_NS) != RECV_BATCH);
    store_release32(&arena.slots[0].current_op, VECENV_OP_NONE);
    vecenv_wait_condition some = {VECENV_WAIT_ALL, SLOTS, made->ring.assigned, 0};
    int descriptor = -1;
    CHECK(vecenv_wait_for(&waiter, &some, vecenv_now_ns() + LOST_NS, &descriptor)
          != RECV_BATCH);
    CHECK(waiter.late_caller_spin_policy.average_ns == 0);

    free_test_ring(made);
    free(arena.base);
}

/* How the sleep of a parent ends that waits for this. */
static int
sleep_for(vecenv_waiter *waiter, uint32_t kind, int *descriptor)
{
    vecenv_wait_condition condition = {kind, SLOTS, waiter->ring->assigned, 1};
    *descriptor = -1;
    int outcome = vecenv_sleep_for(waiter, &condition, vecenv_now_ns() + LOST_NS, descriptor);
    CHECK(load_acquire32(&waiter->arena->control->waiting) == VECENV_WAIT_NOT);
    return outcome;
}

static void
ring_bell_of(int event_fd)
{
    uint64_t one = 1;
    CHECK(write(event_fd, &one, sizeof one) == sizeof one);
}

static void
a_sleep_ends_with_what_happens_and_deaths_come_first(void)
{
    vecenv_arena arena = make_arena(sizes);
    test_ring *made = make_test_ring(&arena, 2);
    vecenv_waiter waiter = make_waiter(&arena, &made->ring);
    int ends[2], descriptor;
    waiter.event_fd = eventfd(0, EFD_NONBLOCK);
    waiter.epoll_fd = epoll_create1(0);
    CHECK(waiter.event_fd >= 0 && waiter.epoll_fd >= 0 && pipe(ends) == 0);
    struct epoll_event bell = {.events = EPOLLIN | EPOLLET, .data.fd = waiter.event_fd};
    struct epoll_event end = {.events = EPOLLIN, .data.fd = ends[0]};
    CHECK(epoll_ctl(waiter.epoll_fd, EPOLL_CTL_ADD, waiter.event_fd, &bell) == 0);
    CHECK(epoll_ctl(waiter.epoll_fd, EPOLL_CTL_ADD, ends[0], &end) == 0);
    ask_both(&made->ring);

    CHECK(sleep_for(&waiter, VECENV_WAIT_ALL, &descriptor) == RECV_BATCH); /* look around */
    ring_bell_of(waiter.event_fd);
    CHECK(sleep_for(&waiter, VECENV_WAIT_ALL, &descriptor) == RECV_MESSAGE);

    store_release(&arena.slots[1].up_written, 16);
    CHECK(sleep_for(&waiter, VECENV_WAIT_ANY, &descriptor) == RECV_MESSAGE);
    CHECK(sleep_for(&waiter, VECENV_WAIT_ALL, &descriptor) == RECV_BATCH); /* it can wait */
    store_release32(&arena.slots[1].blocked, 1);
    CHECK(sleep_for(&waiter, VECENV_WAIT_ALL, &descriptor) == RECV_MESSAGE);

    store_release(&arena.slots[1].up_read, 16); /* now it waits for a letter */
    CHECK(write(ends[1], "", 1) == 1);
    CHECK(sleep_for(&waiter, VECENV_WAIT_ALL, &descriptor) == RECV_DESCRIPTOR);
    CHECK(descriptor == ends[0]);
    ring_bell_of(waiter.event_fd);
    CHECK(sleep_for(&waiter, VECENV_WAIT_ANY, &descriptor) == RECV_DESCRIPTOR);
    CHECK(descriptor == ends[0]);

    serve(&arena, made->ring.assigned);
    serve(&arena, made->ring.assigned + 1);
    CHECK(sleep_for(&waiter, VECENV_WAIT_ALL, &descriptor) == RECV_BATCH); /* but rows before all */

    close(ends[0]);
    close(ends[1]);
    close(waiter.event_fd);
    close(waiter.epoll_fd);
    free_test_ring(made);
    free(arena.base);
}

int
main(void)
{
    a_sleep_ends_with_what_happens_and_deaths_come_first();
    a_caller_that_comes_late_stays_awake();
    it_does_so_while_that_pays_and_until_its_deadline();
    nobody_is_late_before_a_worker_is_done_or_who_waits_for_a_part();
    return 0;
}
