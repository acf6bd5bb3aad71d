/* Litmus tests of the memory ordering between parent and slot: the doorbell, the registered wait of
 * the parent, and a row before its cell. A wait that lasts LOST_NS reveals a lost wake-up. */
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "harness.h"

enum { SLOTS = 2, ROUNDS = 3000 };

static const arena_sizes sizes = {SLOTS, SLOTS, 12, SLOTS, 8, 64};

typedef struct {
    vecenv_arena *arena;
    uint32_t slot;
    int event_fd;
    int64_t spin_ns;
} worker_args;

/* Serve a slot like native/worker/serve.c, with an env that does nothing. */
static void *
serve(void *argument)
{
    const worker_args *self = argument;
    const vecenv_arena *arena = self->arena;
    vecenv_slot_lines *lines = &arena->slots[self->slot];
    vecenv_spin_policy spin_policy = {.spin_limit_ns = self->spin_ns,
                                      .backoff = &arena->control->backoff};
    vecenv_affinity affinity = {0};
    while (!load_acquire32(&arena->control->stop)) {
        uint32_t head = load_acquire32(&lines->head);
        if (load_acquire32(&lines->tail) == head) {
            /* A timeout although there is a command: the wake-up was lost. */
            int64_t began = vecenv_now_ns();
            if (self->spin_ns > 0) {
                vecenv_wake_parent_early(arena, self->event_fd);
            }
            vecenv_slot_park(arena, self->slot, &spin_policy, &affinity, LOST_NS);
            CHECK(vecenv_now_ns() - began < LOST_NS);
            continue;
        }
        vecenv_command command = queue_of(arena, self->slot)[head & (arena->queue_size - 1)];
        uint64_t row_ref = command.row_ref;
        if (row_ref == VECENV_CLAIM) {
            row_ref = vecenv_claim(arena, self->slot);
        }
        write_row(arena, row_ref, command.step_id, command.env_id);
        vecenv_commit(arena, row_ref);
        store_release32(&lines->head, head + 1);
        vecenv_wake_parent(arena, self->event_fd, load_acquire32(&lines->tail) == head + 1);
    }
    return NULL;
}

/* Send like Hub.send: commands, tails, one fence, doorbells. */
static void
send_all(vecenv_ring *ring, uint32_t *tails, uint64_t step_id, int ordered)
{
    const vecenv_arena *arena = ring->arena;
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        set_outstanding(ring, slot, step_id);
        queue_of(arena, slot)[tails[slot]++ & (arena->queue_size - 1)] = (vecenv_command){
            .step_id = step_id,
            .row_ref = ordered ? ring->assigned + slot : VECENV_CLAIM,
            .env_id = slot,
            .op = VECENV_OP_STEP,
        };
        vecenv_publish_tail(arena, slot, tails[slot], vecenv_now_ns());
    }
    full_fence();
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        vecenv_notify_slot(arena, slot);
    }
}

/* Sleep like Hub.recv: register the wait, check once more, sleep on the descriptor. */
static void
sleep_for(const vecenv_arena *arena, int event_fd, uint32_t kind, uint64_t row_ref,
          uint32_t count)
{
    vecenv_begin_wait(arena, kind, row_ref, count, vecenv_now_ns());
    int is_satisfied = kind == VECENV_WAIT_ANY
                       ? vecenv_count_committed(arena, ref_epoch(row_ref), ref_block(row_ref),
                                                SLOTS) >= count
                       : vecenv_is_satisfied(arena, kind);
    if (!is_satisfied) {
        struct pollfd bell = {.fd = event_fd, .events = POLLIN};
        CHECK(poll(&bell, 1, LOST_MS) == 1); /* 0: the wake-up was lost */
    }
    vecenv_end_wait(arena);
    uint64_t rings;
    ssize_t nbytes = read(event_fd, &rings, sizeof rings); /* a worker may write before the sleep */
    CHECK(nbytes == sizeof rings || nbytes < 0);
}

static void
check_batch(vecenv_ring *ring, uint64_t step_id)
{
    CHECK(vecenv_ring_filter(ring) == SLOTS);
    vecenv_row_range run;
    CHECK(vecenv_ring_deliver(ring, SLOTS, &run) == VECENV_OK);
    for (uint32_t row = run.start; row < run.stop; row++) {
        CHECK(step_ids_of(ring->arena, run.block)[row] == step_id);
        CHECK(is_intact(ring->arena, run.block, row)); /* written before its cell */
    }
}

static void
receive(vecenv_ring *ring, int event_fd, uint32_t kind, uint64_t step_id)
{
    const vecenv_arena *arena = ring->arena;
    if (kind == VECENV_WAIT_ALL) {
        uint64_t row_ref = ring->assigned;
        while (!vecenv_all_committed(arena, ref_epoch(row_ref), ref_block(row_ref), SLOTS)) {
            sleep_for(arena, event_fd, kind, row_ref, SLOTS);
        }
        vecenv_ring_finish_assigned(ring);
    } else {
        uint64_t row_ref = ring->chain[0];
        uint32_t count = 0;
        while ((count = vecenv_count_committed(arena, ref_epoch(row_ref), ref_block(row_ref),
                                               SLOTS))
               < SLOTS) {
            uint32_t wanted = kind == VECENV_WAIT_SOME ? SLOTS : count + 1;
            sleep_for(arena, event_fd, kind, row_ref, wanted);
        }
        CHECK(vecenv_ring_seal(ring, LOST_NS) == VECENV_OK);
    }
    check_batch(ring, step_id);
}

static void
test_wake_up_is_never_lost(uint32_t kind, int64_t spin_ns)
{
    vecenv_arena arena = make_arena(sizes);
    test_ring *made = make_test_ring(&arena, 2);
    int event_fd = eventfd(0, EFD_NONBLOCK);
    CHECK(event_fd >= 0);
    pthread_t threads[SLOTS];
    worker_args workers[SLOTS];
    uint32_t tails[SLOTS] = {0};
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        workers[slot] = (worker_args){&arena, slot, event_fd, spin_ns};
        CHECK(pthread_create(&threads[slot], NULL, serve, &workers[slot]) == 0);
    }
    for (uint64_t step_id = 1; step_id <= ROUNDS; step_id++) {
        int ordered = kind == VECENV_WAIT_ALL;
        if (ordered) {
            CHECK(vecenv_ring_assign(&made->ring, SLOTS) == VECENV_OK);
        }
        send_all(&made->ring, tails, step_id, ordered);
        receive(&made->ring, event_fd, kind, step_id);
    }
    store_release32(&arena.control->stop, 1);
    full_fence();
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        /* wake all slots, like Hub.stop */
        vecenv_publish_tail(&arena, slot, tails[slot] + 1, vecenv_now_ns());
        full_fence();
        vecenv_notify_slot(&arena, slot);
        CHECK(pthread_join(threads[slot], NULL) == 0);
    }
    close(event_fd);
    free_test_ring(made);
    free(arena.base);
}

static void *
park_once(void *argument)
{
    const vecenv_arena *arena = argument;
    vecenv_spin_policy spin_policy = {.backoff = &arena->control->backoff};
    vecenv_affinity affinity = {0};
    CHECK(vecenv_slot_park(argument, 0, &spin_policy, &affinity, LOST_NS));
    return NULL;
}

static void
test_sleeping_slot_stores_its_core(void)
{
    vecenv_arena arena = make_arena(sizes);
    vecenv_slot_lines *lines = &arena.slots[0];
    cpu_set_t before, one;
    CHECK(sched_getaffinity(0, sizeof before, &before) == 0);
    CPU_ZERO(&one);
    CPU_SET((size_t)sched_getcpu(), &one);
    CHECK(sched_setaffinity(0, sizeof one, &one) == 0); /* the new thread inherits it */
    CHECK(!vecenv_sleeps_here(&arena, 0));
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, park_once, &arena) == 0);
    while (load_acquire32(&lines->sleeping) == 0) {
        sched_yield();
    }
    CHECK(vecenv_sleeps_here(&arena, 0));
    vecenv_publish_tail(&arena, 0, 1, vecenv_now_ns());
    full_fence();
    vecenv_notify_slot(&arena, 0);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(!vecenv_sleeps_here(&arena, 0)); /* awake */
    store_release32(&lines->sleeping, (uint32_t)sched_getcpu() + 2);
    CHECK(!vecenv_sleeps_here(&arena, 0)); /* it sleeps on another core */
    CHECK(sched_setaffinity(0, sizeof before, &before) == 0);
    free(arena.base);
}

int
main(void)
{
    test_sleeping_slot_stores_its_core();
    static const uint32_t kinds[] = {VECENV_WAIT_ALL, VECENV_WAIT_SOME, VECENV_WAIT_ANY};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        test_wake_up_is_never_lost(kinds[i], 0);
        test_wake_up_is_never_lost(kinds[i], 20000);
    }
    return 0;
}
