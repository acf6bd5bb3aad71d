/* The parent's wait: the outcomes of its sleep, and the spin of a late caller, after one worker of
 * two has finished. In the latter tests the waiter has no descriptors, so a sleep fails and is
 * detected. */
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "harness.h"
#include "shm/wait.h"

enum { SLOTS = 2, BACKOFF_NS = 19000000 }; /* a longer backoff counts as a stray value */

static const arena_sizes sizes = {SLOTS, SLOTS, 4, SLOTS, 8, 64};

static uint64_t up_read[SLOTS];

static vecenv_waiter
make_waiter(const vecenv_arena *arena, vecenv_ring *ring)
{
    vecenv_backoff *backoff = &arena->control->backoff;
    return (vecenv_waiter){
        .arena = arena,
        .ring = ring,
        .up_read = up_read,
        .event_fd = -1,
        .epoll_fd = -1,
        .spin_policy = {.spin_limit_ns = 1, .average_ns = 2, .backoff = backoff}, /* too long to spin */
        .soon_spin_policy = {.backoff = backoff},
        .late_caller_spin_policy = {.spin_limit_ns = LOST_NS, .backoff = backoff},
    };
}

/* Carry out a command as a worker does after its doorbell. */
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
} reply_args;

static void *
reply_in_thread(void *argument)
{
    const reply_args *self = argument;
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
request_both(vecenv_ring *ring)
{
    vecenv_ring_assign(ring, SLOTS);
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        set_outstanding(ring, slot, 1);
        vecenv_publish_tail(ring->arena, slot, 1, vecenv_now_ns());
    }
}

/* A pool whose caller has sent a step to each of its two slots. */
typedef struct {
    vecenv_arena arena;
    test_ring *made;
    vecenv_waiter waiter;
} waiting_pool;

static void
open_pool(waiting_pool *self)
{
    self->arena = make_arena(sizes);
    self->made = make_test_ring(&self->arena, 2);
    self->waiter = make_waiter(&self->arena, &self->made->ring);
    request_both(&self->made->ring);
}

static void
close_pool(waiting_pool *self)
{
    free_test_ring(self->made);
    free(self->arena.base);
}

static void
test_late_caller_spins(void)
{
    waiting_pool pool;
    open_pool(&pool);
    serve(&pool.arena, pool.made->ring.assigned);

    reply_args other = {&pool.arena, pool.made->ring.assigned + 1};
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, reply_in_thread, &other) == 0);
    CHECK(wait_for_all(&pool.waiter, vecenv_now_ns() + LOST_NS) == RECV_BATCH);
    CHECK(pool.waiter.late_caller_spin_policy.average_ns > 0); /* the wait was recorded */
    pthread_join(thread, NULL);

    close_pool(&pool);
}

static void
test_late_caller_spin_ends_at_limit_and_deadline(void)
{
    waiting_pool pool;
    open_pool(&pool);
    serve(&pool.arena, pool.made->ring.assigned);

    int64_t began = vecenv_now_ns();
    CHECK(wait_for_all(&pool.waiter, began + 1000000) != RECV_BATCH);
    CHECK(vecenv_now_ns() - began >= 1000000);
    /* recent waits exceeded the limit */
    pool.waiter.late_caller_spin_policy.average_ns = 2 * LOST_NS;
    CHECK(wait_for_all(&pool.waiter, vecenv_now_ns() + LOST_NS) != RECV_BATCH);

    close_pool(&pool);
}

static void
test_late_caller_needs_finished_worker_and_wait_for_all(void)
{
    waiting_pool pool;
    open_pool(&pool);

    CHECK(wait_for_all(&pool.waiter, vecenv_now_ns() + LOST_NS) != RECV_BATCH);
    store_release32(&pool.arena.slots[0].head, 1);
    store_release32(&pool.arena.slots[0].current_op, VECENV_OP_STEP); /* begun, not finished */
    CHECK(wait_for_all(&pool.waiter, vecenv_now_ns() + LOST_NS) != RECV_BATCH);
    store_release32(&pool.arena.slots[0].current_op, VECENV_OP_NONE);
    vecenv_wait_condition some = {VECENV_WAIT_ALL, SLOTS, pool.made->ring.assigned, 0};
    int descriptor = -1;
    CHECK(vecenv_wait_for(&pool.waiter, &some, vecenv_now_ns() + LOST_NS, &descriptor)
          != RECV_BATCH);
    CHECK(pool.waiter.late_caller_spin_policy.average_ns == 0);

    close_pool(&pool);
}

static void
test_caller_that_backs_off_sleeps_at_once(void)
{
    waiting_pool pool;
    open_pool(&pool);
    serve(&pool.arena, pool.made->ring.assigned);

    int64_t began = vecenv_now_ns();
    pool.waiter.spin_policy.spin_limit_ns = LOST_NS;
    store_release(&pool.arena.control->backoff.resume_ns, (uint64_t)(began + BACKOFF_NS));
    CHECK(wait_for_all(&pool.waiter, began + LOST_NS) != RECV_BATCH); /* the sleep fails */
    CHECK(vecenv_now_ns() - began < LOST_NS);

    close_pool(&pool);
}

/* Sleep until a condition of this kind is true; returns the outcome. */
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
notify_event_fd(int event_fd)
{
    uint64_t one = 1;
    CHECK(write(event_fd, &one, sizeof one) == sizeof one);
}

static void
test_sleep_outcome_prefers_rows_then_descriptors(void)
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
    request_both(&made->ring);

    CHECK(sleep_for(&waiter, VECENV_WAIT_ALL, &descriptor) == RECV_BATCH); /* check again */
    notify_event_fd(waiter.event_fd);
    CHECK(sleep_for(&waiter, VECENV_WAIT_ALL, &descriptor) == RECV_MESSAGE);

    store_release(&arena.slots[1].up_written, 16);
    CHECK(sleep_for(&waiter, VECENV_WAIT_ANY, &descriptor) == RECV_MESSAGE);
    CHECK(sleep_for(&waiter, VECENV_WAIT_ALL, &descriptor) == RECV_BATCH); /* messages can wait */
    store_release32(&arena.slots[1].blocked, 1);
    CHECK(sleep_for(&waiter, VECENV_WAIT_ALL, &descriptor) == RECV_MESSAGE);

    up_read[1] = 16; /* the slot is blocked without messages */
    CHECK(write(ends[1], "", 1) == 1);
    CHECK(sleep_for(&waiter, VECENV_WAIT_ALL, &descriptor) == RECV_DESCRIPTOR);
    CHECK(descriptor == ends[0]);
    notify_event_fd(waiter.event_fd);
    CHECK(sleep_for(&waiter, VECENV_WAIT_ANY, &descriptor) == RECV_DESCRIPTOR);
    CHECK(descriptor == ends[0]);

    serve(&arena, made->ring.assigned);
    serve(&arena, made->ring.assigned + 1);
    CHECK(sleep_for(&waiter, VECENV_WAIT_ALL, &descriptor) == RECV_BATCH); /* rows come first */

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
    test_sleep_outcome_prefers_rows_then_descriptors();
    test_late_caller_spins();
    test_late_caller_spin_ends_at_limit_and_deadline();
    test_late_caller_needs_finished_worker_and_wait_for_all();
    test_caller_that_backs_off_sleeps_at_once();
    return 0;
}
