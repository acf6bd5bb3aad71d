/* Requests: sent or refused as a whole; superseded and cancelled commands. */
#include "harness.h"

#include "shm/request.h"
#include "shm/wait.h"

enum { ENVS = 4, SLOTS = 2, BLOCKS = 12, MAX_DELIVERED = 2, QUEUE = 8 };

static const arena_sizes sizes = {ENVS, SLOTS, BLOCKS, ENVS, QUEUE, 64};

static vecenv_arena arena;
static test_ring *made;
static vecenv_ring *ring;
static vecenv_sender sender;

static void
set_up(void)
{
    arena = make_arena(sizes);
    made = make_test_ring(&arena, MAX_DELIVERED);
    ring = &made->ring;
    sender = (vecenv_sender){.arena = &arena, .ring = ring, .next_step_id = 1};
    sender.slot_of = calloc(ENVS, sizeof *sender.slot_of);
    sender.ops = calloc(ENVS, 1);
    sender.before = calloc(ENVS, sizeof *sender.before);
    sender.tails = calloc(SLOTS, sizeof *sender.tails);
    sender.queues = calloc(SLOTS * QUEUE, sizeof *sender.queues);
    sender.touched = calloc(SLOTS, 1);
    sender.has_cancelled = calloc(SLOTS, 1);
    for (uint32_t env_id = 0; env_id < ENVS; env_id++) {
        sender.slot_of[env_id] = env_id % SLOTS;
    }
}

static void
tear_down(void)
{
    free(sender.slot_of);
    free(sender.ops);
    free(sender.before);
    free(sender.tails);
    free(sender.queues);
    free(sender.touched);
    free(sender.has_cancelled);
    free_test_ring(made);
    free(arena.base);
}

/* Send a request; returns 0, or SEND_* if it was refused. */
static int
send_request(int op, int ordered, const int64_t *env_ids, size_t count)
{
    vecenv_request request = {.op = op, .ordered = ordered, .env_ids = env_ids, .count = count};
    int64_t refused_env;
    int error = vecenv_refuse(&sender, &request, &refused_env);
    return error != 0 ? error : vecenv_send(&sender, &request, &refused_env);
}

/* Carry out the next command of a slot; returns its step_id. */
static uint64_t
reply_next(uint32_t slot)
{
    vecenv_slot_lines *lines = &arena.slots[slot];
    uint32_t head = load_acquire32(&lines->head);
    CHECK(head != load_acquire32(&lines->tail));
    vecenv_command command = queue_of(&arena, slot)[head & (QUEUE - 1)];
    uint64_t row_ref = command.row_ref;
    row_ref = row_ref == VECENV_CLAIM ? vecenv_claim(&arena, slot) : row_ref;
    write_row(&arena, row_ref, command.step_id, command.env_id);
    vecenv_commit(&arena, row_ref);
    store_release32(&lines->head, head + 1);
    return command.step_id;
}

/* Make stragglers pin all free blocks but `left`. */
static void
pin_blocks(uint32_t left)
{
    while (ring->num_free > left) {
        vecenv_claim(&arena, 0);
        CHECK(vecenv_ring_seal(ring, 0) == VECENV_OK);
    }
}

static void
test_refused_reset_supersedes_nothing(void)
{
    set_up();
    pin_blocks(1);
    CHECK(send_request(VECENV_OP_STEP, 1, NULL, ENVS) == 0);
    CHECK(ring->num_free == 0 && ring->num_outstanding == ENVS);
    reply_next(0); /* the other replies are outstanding */
    CHECK(send_request(VECENV_OP_RESET, 1, NULL, ENVS) == SEND_NO_BLOCK);
    CHECK(ring->num_outstanding == ENVS && ring->assigned_rows == ENVS);
    CHECK(sender.next_step_id == ENVS + 1);
    for (uint64_t env_id = 0; env_id < ENVS; env_id++) {
        CHECK(ring->outstanding[env_id] == env_id + 1 && sender.ops[env_id] == VECENV_OP_STEP);
        CHECK(load_acquire(&arena.newest[env_id]) == env_id + 1);
    }
    reply_next(0);
    reply_next(1);
    reply_next(1);
    vecenv_ring_finish_assigned(ring);
    CHECK(vecenv_ring_filter(ring) == ENVS);
    tear_down();
}

/* No other block is free, but all superseded steps have been answered. */
static void
test_reset_reuses_block_of_superseded_steps(void)
{
    set_up();
    pin_blocks(1);
    CHECK(send_request(VECENV_OP_STEP, 1, NULL, ENVS) == 0);
    uint32_t block = ref_block(ring->assigned);
    for (uint32_t i = 0; i < ENVS; i++) {
        reply_next(i % SLOTS);
    }
    CHECK(send_request(VECENV_OP_RESET, 1, NULL, ENVS) == 0);
    CHECK(ring->num_outstanding == ENVS && ref_block(ring->assigned) == block);
    CHECK(ring->assigned_rows == ENVS && ring->num_row_ranges == 0);
    for (uint32_t i = 0; i < ENVS; i++) {
        CHECK(reply_next(i % SLOTS) > ENVS);
    }
    vecenv_ring_finish_assigned(ring);
    CHECK(vecenv_ring_filter(ring) == ENVS);
    tear_down();
}

/* Their rows have become row ranges already. */
static void
test_reset_reuses_block_of_superseded_row_ranges(void)
{
    set_up();
    pin_blocks(1);
    CHECK(send_request(VECENV_OP_STEP, 1, NULL, ENVS) == 0);
    for (uint32_t i = 0; i < ENVS; i++) {
        reply_next(i % SLOTS);
    }
    vecenv_ring_finish_assigned(ring);
    CHECK(vecenv_ring_filter(ring) == ENVS && ring->num_free == 0);
    uint32_t block = ring->row_ranges[0].block;
    CHECK(vecenv_ring_lend(ring, block)); /* delivered rows of a block may be lent */
    CHECK(send_request(VECENV_OP_RESET, 1, NULL, ENVS) == SEND_NO_BLOCK
          && ring->outstanding[0] == 1);
    vecenv_ring_take_back(ring, block);
    CHECK(send_request(VECENV_OP_RESET, 1, NULL, ENVS) == 0);
    CHECK(ring->num_row_ranges == 0 && ring->assigned_rows == ENVS);
    tear_down();
}

/* Return the kind of wait of a recv now; VECENV_WAIT_NOT: `count` rows can be delivered. */
static uint32_t
recv_wait_kind(uint32_t count)
{
    vecenv_waiter waiter = {.arena = &arena, .ring = ring};
    vecenv_wait_condition condition;
    int status = vecenv_gather(&waiter, count, &condition);
    CHECK(status >= 0);
    return status == 1 ? VECENV_WAIT_NOT : condition.kind;
}

static void
test_ordered_request_skips_cancelled_steps(void)
{
    set_up();
    CHECK(send_request(VECENV_OP_STEP, 1, NULL, ENVS) == 0);
    uint64_t row_ref = ring->assigned;
    CHECK(reply_next(1) == 2); /* slot 0 hangs in the step of env 0; env 2 is next there */
    CHECK(recv_wait_kind(1) == VECENV_WAIT_ALL);
    vecenv_cancel(&sender, 0);
    CHECK(load_acquire(&arena.newest[0]) == 0 && ring->num_outstanding == 3);
    CHECK(recv_wait_kind(1) == VECENV_WAIT_ANY); /* envs 2 and 3 are still awaited, in this order */
    CHECK(reply_next(1) == 4);
    CHECK(recv_wait_kind(1) == VECENV_WAIT_ANY);
    vecenv_cancel(&sender, 2);
    CHECK(recv_wait_kind(2) == VECENV_WAIT_NOT);
    CHECK(ring->num_stragglers == 2 && ring->assigned_rows == 0);
    vecenv_row_range range;
    CHECK(vecenv_ring_deliver(ring, 2, &range) == VECENV_OK);
    CHECK(env_ids_of(&arena, range.block)[range.start] == 1);
    CHECK(env_ids_of(&arena, range.block)[range.start + 1] == 3);
    CHECK(ring->num_outstanding == 0);
    /* the ordered request does not block another one */
    CHECK(send_request(VECENV_OP_STEP, 0, (const int64_t[]){1}, 1) == 0);
    CHECK(reply_next(1) == 5);
    CHECK(recv_wait_kind(1) == VECENV_WAIT_NOT);
    CHECK(ring->pins[ref_block(row_ref)] == 2); /* two stragglers of slot 0 */
    reply_next(0);
    reply_next(0);
    vecenv_ring_collect_stragglers(ring);
    CHECK(vecenv_ring_filter(ring) == 1 && ring->num_stragglers == 0);
    CHECK(ring->pins[ref_block(row_ref)] == 0);
    tear_down();
}

static void
test_ordered_request_skips_superseded_steps(void)
{
    set_up();
    CHECK(send_request(VECENV_OP_STEP, 1, NULL, ENVS) == 0);
    reply_next(1); /* slot 0 hangs */
    reply_next(1);
    CHECK(send_request(VECENV_OP_RESET, 0, (const int64_t[]){0, 2}, 2) == 0);
    CHECK(load_acquire32(&arena.slots[0].num_superseded) == 2);
    CHECK(recv_wait_kind(2) == VECENV_WAIT_NOT);
    CHECK(send_request(VECENV_OP_STEP, 1, (const int64_t[]){1}, 1) == SEND_BUSY);
    vecenv_row_range range;
    CHECK(vecenv_ring_deliver(ring, 2, &range) == VECENV_OK && ring->num_outstanding == 2);
    vecenv_cancel(&sender, 2);
    /* one reply is outstanding */
    CHECK(send_request(VECENV_OP_STEP, 1, (const int64_t[]){1}, 1) == SEND_MIXED);
    tear_down();
}

static void
test_reap_voids_assigned_rows_of_one_slot(void)
{
    set_up();
    CHECK(send_request(VECENV_OP_STEP, 1, (const int64_t[]){3, 2, 0}, 3) == 0);
    vecenv_ring_reap(ring, 0);
    for (uint32_t row = 0; row < 3; row++) {
        CHECK(vecenv_is_committed(&arena, ref_epoch(ring->assigned), ref_block(ring->assigned),
                                  row)
              == (row > 0));
    }
    tear_down();
}

static void
test_cancelled_request_allows_the_next(void)
{
    set_up();
    CHECK(send_request(VECENV_OP_STEP, 1, NULL, ENVS) == 0);
    for (uint32_t env_id = 0; env_id < ENVS; env_id++) {
        vecenv_cancel(&sender, env_id);
        vecenv_cancel(&sender, env_id); /* does nothing */
    }
    CHECK(ring->num_outstanding == 0);
    CHECK(load_acquire32(&arena.slots[0].num_superseded) == 2);
    CHECK(send_request(VECENV_OP_RESET, 0, (const int64_t[]){1}, 1) == 0);
    CHECK(recv_wait_kind(1) == VECENV_WAIT_ANY && ring->assigned_rows == 0);
    tear_down();
}

static void
test_cancelled_commands_never_overflow_queue(void)
{
    set_up();
    const int64_t hung[] = {0}, beside[] = {2}, other[] = {1};
    uint32_t sent = 0;
    int error;
    while ((error = send_request(VECENV_OP_STEP, 0, hung, 1)) == 0) {
        vecenv_cancel(&sender, 0);
        CHECK(++sent <= QUEUE);
    }
    CHECK(error == SEND_NO_ROOM && sent == QUEUE && ring->num_outstanding == 0);
    uint64_t next = sender.next_step_id;
    CHECK(send_request(VECENV_OP_RESET, 1, NULL, ENVS) == SEND_NO_ROOM);
    CHECK(send_request(VECENV_OP_STEP, 0, beside, 1) == SEND_NO_ROOM);
    CHECK(send_request(VECENV_OP_CALL, 0, beside, 1) == SEND_BUSY);
    CHECK(sender.next_step_id == next && ring->num_outstanding == 0);
    CHECK(send_request(VECENV_OP_STEP, 0, other, 1) == 0); /* in another queue */
    vecenv_slot_lines *lines = &arena.slots[0];
    store_release32(&lines->head, load_acquire32(&lines->head) + 1);
    CHECK(send_request(VECENV_OP_STEP, 0, beside, 1) == 0);
    CHECK(send_request(VECENV_OP_STEP, 0, hung, 1) == SEND_NO_ROOM);
    store_release32(&lines->head, load_acquire32(&lines->tail));
    CHECK(send_request(VECENV_OP_STEP, 0, hung, 1) == 0);
    CHECK(!sender.has_cancelled[0] && sender.num_with_cancelled == 0);
    tear_down();
}

/* No recv has collected the stragglers. */
static void
test_finished_stragglers_free_their_blocks(void)
{
    set_up();
    pin_blocks(0);
    CHECK(send_request(VECENV_OP_STEP, 1, NULL, ENVS) == SEND_NO_BLOCK);
    vecenv_commit(&arena, ring->stragglers[0]);
    CHECK(send_request(VECENV_OP_STEP, 1, NULL, ENVS) == 0);
    CHECK(ring->num_outstanding == ENVS && ring->assigned_rows == ENVS);
    tear_down();
}

int
main(void)
{
    test_finished_stragglers_free_their_blocks();
    test_ordered_request_skips_cancelled_steps();
    test_ordered_request_skips_superseded_steps();
    test_reap_voids_assigned_rows_of_one_slot();
    test_cancelled_request_allows_the_next();
    test_cancelled_commands_never_overflow_queue();
    test_refused_reset_supersedes_nothing();
    test_reset_reuses_block_of_superseded_steps();
    test_reset_reuses_block_of_superseded_row_ranges();
    return 0;
}
