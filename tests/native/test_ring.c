/* The parent's ring: rows delivered, dropped and moved; blocks pinned and freed. */
#include "harness.h"

enum { ENVS = 4, SLOTS = 2, BLOCKS = 12, MAX_DELIVERED = 2 };

static const arena_sizes sizes = {ENVS, SLOTS, BLOCKS, ENVS, 8, 64};

static vecenv_arena arena;
static test_ring *made;
static vecenv_ring *ring;

static void
set_up(void)
{
    arena = make_arena(sizes);
    made = make_test_ring(&arena, MAX_DELIVERED);
    ring = &made->ring;
}

static void
tear_down(void)
{
    free_test_ring(made);
    free(arena.base);
}

/* Write and commit a reply in the open block, as a worker does. */
static void
reply(int64_t env_id, uint64_t step_id)
{
    uint64_t row_ref = vecenv_claim(&arena, (uint32_t)env_id % SLOTS);
    write_row(&arena, row_ref, step_id, env_id);
    vecenv_commit(&arena, row_ref);
}

static void
request_and_reply(int64_t env_id, uint64_t step_id)
{
    set_outstanding(ring, env_id, step_id);
    reply(env_id, step_id);
}

static vecenv_row_range
deliver(uint32_t count)
{
    vecenv_row_range range;
    CHECK(vecenv_ring_deliver(ring, count, &range) == VECENV_OK);
    CHECK(range.stop - range.start == count);
    for (uint32_t row = range.start; row < range.stop; row++) {
        CHECK(is_intact(&arena, range.block, row));
        CHECK(ring->outstanding[env_ids_of(&arena, range.block)[row]] == 0);
    }
    return range;
}

static int64_t
env_id_at(vecenv_row_range range, uint32_t i)
{
    return env_ids_of(&arena, range.block)[range.start + i];
}

static uint32_t
num_pinned(void)
{
    return BLOCKS - ring->num_free;
}

static void
test_deliver_returns_rows_of_one_block_in_place(void)
{
    set_up();
    uint32_t block = ref_block(ring->chain[0]);
    for (int64_t env_id = 0; env_id < 3; env_id++) {
        request_and_reply(env_id, 10 + (uint64_t)env_id);
    }
    CHECK(vecenv_ring_seal(ring, 0) == VECENV_OK);
    CHECK(vecenv_ring_filter(ring) == 3);
    vecenv_row_range range = deliver(3);
    CHECK(range.block == block && range.start == 0);
    CHECK(ring->num_outstanding == 0 && ring->num_row_ranges == 0);
    tear_down();
}

static void
test_deliver_keeps_rows_beyond_count(void)
{
    set_up();
    for (int64_t env_id = 0; env_id < 4; env_id++) {
        request_and_reply(env_id, 1);
    }
    CHECK(vecenv_ring_seal(ring, 0) == VECENV_OK);
    vecenv_row_range first = deliver(3);
    CHECK(ring->num_outstanding == 1);
    CHECK(vecenv_ring_filter(ring) == 1);
    vecenv_row_range second = deliver(1);
    CHECK(second.block == first.block && second.start == 3 && env_id_at(second, 0) == 3);
    CHECK(ring->num_row_ranges == 0);
    tear_down();
}

static void
test_filter_drops_superseded_row_and_moves_last(void)
{
    set_up();
    for (int64_t env_id = 0; env_id < 4; env_id++) {
        request_and_reply(env_id, 1);
    }
    set_outstanding(ring, 1, 2); /* a reset superseded its step */
    CHECK(vecenv_ring_seal(ring, 0) == VECENV_OK);
    CHECK(vecenv_ring_filter(ring) == 3);
    vecenv_row_range range = deliver(3);
    CHECK(range.start == 0 && env_id_at(range, 0) == 0 && env_id_at(range, 1) == 3
          && env_id_at(range, 2) == 2);
    CHECK(ring->outstanding[1] == 2 && ring->num_outstanding == 1);
    tear_down();
}

static void
test_filter_frees_block_of_dropped_rows(void)
{
    set_up();
    uint32_t before = ring->num_free;
    uint32_t block = ref_block(ring->chain[0]);
    reply(0, 7);
    reply(1, 8);
    CHECK(vecenv_ring_seal(ring, 0) == VECENV_OK);
    CHECK(vecenv_ring_filter(ring) == 0);
    CHECK(ring->num_row_ranges == 0 && ring->num_free == before);
    CHECK(!vecenv_ring_lend(ring, block) && ring->pins[block] == 0);
    tear_down();
}

static void
test_straggler_pins_block_until_delivered(void)
{
    set_up();
    uint32_t before = ring->num_free;
    set_outstanding(ring, 0, 1);
    request_and_reply(1, 1);
    uint64_t straggler = vecenv_claim(&arena, 0); /* stopped between claim and commit */
    request_and_reply(3, 1);
    CHECK(vecenv_ring_seal(ring, 0) == VECENV_OK);
    CHECK(ring->num_stragglers == 1 && ring->stragglers[0] == straggler
          && ring->num_row_ranges == 2);
    CHECK(vecenv_ring_filter(ring) == 2);
    vecenv_row_range range = deliver(2); /* copied to another block */
    CHECK(env_id_at(range, 0) == 1 && env_id_at(range, 1) == 3
          && range.block != ref_block(straggler));
    for (uint32_t round = 0; round < 3 * BLOCKS; round++) { /* around the ring */
        request_and_reply(1, 2 + round);
        CHECK(vecenv_ring_seal(ring, 0) == VECENV_OK);
        vecenv_ring_collect_stragglers(ring);
        CHECK(vecenv_ring_filter(ring) == 1);
        range = deliver(1);
        CHECK(range.block != ref_block(straggler));
    }
    write_row(&arena, straggler, 1, 0);
    vecenv_commit(&arena, straggler);
    vecenv_ring_collect_stragglers(ring);
    CHECK(ring->num_stragglers == 0 && vecenv_ring_filter(ring) == 1);
    range = deliver(1);
    CHECK(range.block == ref_block(straggler) && range.start == ref_row(straggler));
    CHECK(ring->num_outstanding == 0);
    CHECK(ring->num_free == before - MAX_DELIVERED); /* only the held batches are pinned */
    tear_down();
}

static void
test_superseded_straggler_frees_its_block(void)
{
    set_up();
    uint32_t before = ring->num_free;
    uint64_t straggler = vecenv_claim(&arena, 0);
    CHECK(vecenv_ring_seal(ring, 0) == VECENV_OK);
    CHECK(ring->num_free == before - 1);
    write_row(&arena, straggler, 1, 0);
    set_outstanding(ring, 0, 2);
    vecenv_commit(&arena, straggler);
    vecenv_ring_collect_stragglers(ring);
    CHECK(vecenv_ring_filter(ring) == 0);
    CHECK(ring->num_free == before && ring->num_stragglers == 0);
    tear_down();
}

static void
test_deliver_joins_row_ranges_in_order(void)
{
    set_up();
    request_and_reply(2, 1);
    CHECK(vecenv_ring_seal(ring, 0) == VECENV_OK);
    request_and_reply(0, 2);
    request_and_reply(3, 3);
    CHECK(vecenv_ring_seal(ring, 0) == VECENV_OK);
    request_and_reply(1, 4);
    CHECK(vecenv_ring_seal(ring, 0) == VECENV_OK);
    CHECK(vecenv_ring_filter(ring) == 4);
    vecenv_row_range range = deliver(3);
    CHECK(range.start == 0);
    CHECK(env_id_at(range, 0) == 2 && env_id_at(range, 1) == 0 && env_id_at(range, 2) == 3);
    CHECK(ring->pins[range.block] == 1); /* pinned as a delivered batch only */
    range = deliver(1);
    CHECK(env_id_at(range, 0) == 1);
    tear_down();
}

static void
test_batch_is_pinned_for_max_delivered_deliveries(void)
{
    set_up();
    uint32_t blocks[MAX_DELIVERED + 3];
    for (uint32_t i = 0; i < MAX_DELIVERED + 3; i++) {
        request_and_reply(0, i + 1);
        CHECK(vecenv_ring_seal(ring, 0) == VECENV_OK);
        blocks[i] = deliver(1).block;
        uint32_t held = i + 1 < MAX_DELIVERED ? i + 1 : MAX_DELIVERED;
        CHECK(num_pinned() == VECENV_CHAIN + held);
        for (uint32_t back = 0; back < held; back++) {
            CHECK(ring->pins[blocks[i - back]] == 1);
            CHECK(step_ids_of(&arena, blocks[i - back])[0] == i + 1 - back);
        }
    }
    tear_down();
}

static void
test_ordered_request_keeps_request_order(void)
{
    set_up();
    static const int64_t order[3] = {2, 0, 3};
    CHECK(vecenv_ring_assign(ring, 3) == VECENV_OK);
    for (uint32_t i = 3; i > 0; i--) { /* committed in reverse order */
        set_outstanding(ring, order[i - 1], i);
        CHECK(!vecenv_all_committed(&arena, ref_epoch(ring->assigned),
                                    ref_block(ring->assigned), 3));
        write_row(&arena, ring->assigned + i - 1, i, order[i - 1]);
        vecenv_commit(&arena, ring->assigned + i - 1);
    }
    vecenv_ring_finish_assigned(ring);
    CHECK(ring->assigned_rows == 0 && vecenv_ring_filter(ring) == 3);
    vecenv_row_range range = deliver(3);
    for (uint32_t i = 0; i < 3; i++) {
        CHECK(env_id_at(range, i) == order[i]);
    }
    tear_down();
}

static void
test_reap_voids_unfinished_rows(void)
{
    set_up();
    uint32_t before = ring->num_free;
    set_outstanding(ring, 0, 1);
    set_outstanding(ring, 1, 1);
    uint64_t straggler = vecenv_claim(&arena, 0);
    CHECK(vecenv_ring_seal(ring, 0) == VECENV_OK);
    uint64_t claimed = vecenv_claim(&arena, 0);
    write_row(&arena, claimed, 1, 0); /* killed during the copy */
    reply(1, 1); /* a row of another slot */
    vecenv_ring_reap(ring, 0);
    CHECK(vecenv_is_committed(&arena, ref_epoch(claimed), ref_block(claimed), 0));
    vecenv_ring_collect_stragglers(ring);
    CHECK(ring->num_stragglers == 0);
    CHECK(vecenv_ring_filter(ring) == 0);
    CHECK(vecenv_ring_seal(ring, 0) == VECENV_OK);
    CHECK(vecenv_ring_filter(ring) == 1);
    CHECK(env_id_at(deliver(1), 0) == 1);
    CHECK(ring->outstanding[0] == 1); /* still outstanding: the successor will reply */
    CHECK(ring->num_free == before - 1 && ref_block(straggler) != ref_block(claimed));
    tear_down();
}

/* The parent has not checked the ring since the first block was full. */
static void
test_reap_finds_claims_in_all_open_blocks(void)
{
    set_up();
    uint64_t claimed[VECENV_CHAIN - 1];
    for (int i = 0; i < VECENV_CHAIN - 1; i++) {
        for (int64_t row = 1; row < ENVS; row++) {
            reply(1, 9);
        }
        claimed[i] = vecenv_claim(&arena, 0);
        CHECK(ref_block(claimed[i]) == ref_block(ring->chain[i]));
    }
    vecenv_ring_reap(ring, 0);
    for (int i = 0; i < VECENV_CHAIN - 1; i++) {
        CHECK(vecenv_is_committed(&arena, ref_epoch(claimed[i]), ref_block(claimed[i]),
                                  ref_row(claimed[i])));
    }
    tear_down();
}

static void
test_reap_claims_keeps_assigned_rows_of_successor(void)
{
    set_up();
    CHECK(vecenv_ring_assign(ring, 3) == VECENV_OK);
    uint64_t epoch = ref_epoch(ring->assigned);
    uint32_t block = ref_block(ring->assigned), head = sizes.queue_size - 1;
    for (uint32_t row = 0; row < 3; row++) {
        store_release(&word_column(&arena, block, VECENV_H_OWNER)[row], owner_of(epoch, 1));
    }
    queue_of(&arena, 0)[head].row_ref = ring->assigned + 1; /* the queue wraps around */
    queue_of(&arena, 0)[0].row_ref = ring->assigned + 2;
    vecenv_ring_reap_claims(ring, 0, queue_of(&arena, 0), head, 2);
    CHECK(vecenv_is_committed(&arena, epoch, block, 0));
    CHECK(vecenv_count_committed(&arena, epoch, block, 3) == 1);
    tear_down();
}

static void
test_command_is_answered_once_claimed_row_is_committed(void)
{
    set_up();
    const vecenv_command command = {.step_id = 1, .row_ref = VECENV_CLAIM, .op = VECENV_OP_STEP};
    set_outstanding(ring, 0, 1);
    uint64_t claimed = vecenv_claim(&arena, 0);
    write_row(&arena, claimed, 1, 0);
    CHECK(!vecenv_ring_is_answered(ring, &command));
    vecenv_commit(&arena, claimed);
    CHECK(vecenv_ring_is_answered(ring, &command));
    CHECK(vecenv_ring_seal(ring, 0) == VECENV_OK);
    CHECK(vecenv_ring_filter(ring) == 1);
    deliver(1);
    CHECK(vecenv_ring_is_answered(ring, &command));
    tear_down();
}

static void
test_reap_completes_ordered_request(void)
{
    set_up();
    CHECK(vecenv_ring_assign(ring, 2) == VECENV_OK);
    uint64_t epoch = ref_epoch(ring->assigned);
    uint32_t block = ref_block(ring->assigned);
    for (uint32_t row = 0; row < 2; row++) {
        set_outstanding(ring, row, row + 1);
        store_release(&word_column(&arena, block, VECENV_H_OWNER)[row],
                      owner_of(epoch, row + 1));
    }
    write_row(&arena, ring->assigned, 1, 0);
    vecenv_commit(&arena, ring->assigned);
    vecenv_ring_reap(ring, 1);
    CHECK(vecenv_all_committed(&arena, epoch, block, 2));
    vecenv_ring_finish_assigned(ring);
    CHECK(vecenv_ring_filter(ring) == 1);
    CHECK(env_id_at(deliver(1), 0) == 0 && ring->outstanding[1] == 2);
    tear_down();
}

/* The slot was stopped after the commit, before it removed the command from the queue. */
static void
test_command_stays_answered_after_row_is_reused(void)
{
    set_up();
    CHECK(vecenv_ring_assign(ring, 1) == VECENV_OK);
    const vecenv_command command = {.step_id = 1, .row_ref = ring->assigned, .op = VECENV_OP_STEP};
    ring->assigned_first = 1;
    set_outstanding(ring, 0, 1);
    CHECK(!vecenv_ring_is_answered(ring, &command));
    write_row(&arena, command.row_ref, 1, 0);
    vecenv_commit(&arena, command.row_ref);
    CHECK(vecenv_ring_is_answered(ring, &command));
    vecenv_ring_finish_assigned(ring);
    CHECK(vecenv_ring_filter(ring) == 1);
    deliver(1);
    CHECK(vecenv_ring_is_answered(ring, &command));
    uint32_t num_used_again = 0;
    for (uint64_t step_id = 2; step_id < 3 * BLOCKS; step_id++) {
        CHECK(vecenv_ring_assign(ring, 1) == VECENV_OK);
        set_outstanding(ring, 1, step_id);
        CHECK(vecenv_ring_is_answered(ring, &command));
        write_row(&arena, ring->assigned, step_id, 1);
        vecenv_commit(&arena, ring->assigned);
        num_used_again += ref_block(ring->assigned) == ref_block(command.row_ref);
        CHECK(vecenv_ring_is_answered(ring, &command));
        vecenv_ring_finish_assigned(ring);
        CHECK(vecenv_ring_filter(ring) == 1);
        deliver(1);
    }
    CHECK(num_used_again > 0);
    tear_down();
}

static void
test_seal_and_assign_without_free_block_change_nothing(void)
{
    set_up();
    while (ring->num_free > 0) {
        vecenv_claim(&arena, 0);
        CHECK(vecenv_ring_seal(ring, 0) == VECENV_OK);
    }
    uint64_t open = load_acquire(&arena.control->open);
    vecenv_ring before = *ring;
    CHECK(vecenv_ring_seal(ring, 0) == VECENV_ENOBLOCK);
    CHECK(vecenv_ring_assign(ring, 1) == VECENV_ENOBLOCK);
    CHECK(memcmp(&before, ring, sizeof before) == 0);
    CHECK(load_acquire(&arena.control->open) == open);
    vecenv_ring_reap(ring, 0);
    vecenv_ring_collect_stragglers(ring);
    CHECK(vecenv_ring_filter(ring) == 0);
    CHECK(num_pinned() == VECENV_CHAIN);
    tear_down();
}

static void
test_cancelled_rows_never_overrun_chain(void)
{
    set_up();
    uint64_t step_id = 0;
    for (uint32_t round = 0; round < 5 * BLOCKS; round++) { /* requested, answered, cancelled */
        CHECK(vecenv_ring_catch_up(ring) == VECENV_OK);
        CHECK(ref_epoch(load_acquire(&arena.control->open)) == ref_epoch(ring->chain[0]));
        for (int64_t env_id = 0; env_id < ENVS; env_id++) {
            request_and_reply(env_id, ++step_id);
        }
    }
    CHECK(vecenv_ring_catch_up(ring) == VECENV_OK);
    while (vecenv_ring_filter(ring) < ENVS) {
        CHECK(vecenv_ring_seal(ring, 0) == VECENV_OK);
    }
    vecenv_row_range range = deliver(ENVS);
    CHECK(step_ids_of(&arena, range.block)[range.start + ENVS - 1] == step_id);
    CHECK(num_pinned() <= VECENV_CHAIN + 1);
    tear_down();
}

static void
test_last_delivered_row_is_saved_before_reuse(void)
{
    set_up();
    uint64_t step_id = 0;
    for (int64_t env_id = 0; env_id < ENVS; env_id++) {
        request_and_reply(env_id, ++step_id);
    }
    CHECK(vecenv_ring_seal(ring, 0) == VECENV_OK);
    deliver(ENVS);
    CHECK(ring->last_delivered[1] == 2);
    uint64_t *step_ids = (void *)(ring->saved_rows + arena.header[VECENV_H_STEP_ID]);
    double *rewards = (void *)(ring->saved_rows + arena.header[VECENV_H_REWARD]);
    for (uint32_t round = 0; round < 5 * BLOCKS; round++) { /* only env 0 is stepped */
        CHECK(step_ids[0] < step_id); /* the newest row is still in the ring */
        request_and_reply(0, ++step_id);
        CHECK(vecenv_ring_seal(ring, 0) == VECENV_OK);
        CHECK(vecenv_ring_filter(ring) == 1);
        deliver(1);
    }
    for (uint32_t env_id = 1; env_id < ENVS; env_id++) {
        CHECK(step_ids[env_id] == env_id + 1);
        CHECK(rewards[env_id] > (env_id + 1) * 1000.0 && rewards[env_id] < (env_id + 2) * 1000.0);
    }
    tear_down();
}

static void
test_env_id_overwritten_by_caller_is_ignored(void)
{
    set_up();
    for (uint64_t step_id = 1; step_id < 5 * BLOCKS; step_id++) {
        request_and_reply(0, step_id);
        CHECK(vecenv_ring_seal(ring, 0) == VECENV_OK);
        vecenv_row_range range = deliver(1);
        env_ids_of(&arena, range.block)[range.start] = step_id % 2 ? -1 : (int64_t)1 << 60;
    }
    const uint64_t *step_ids = (void *)(ring->saved_rows + arena.header[VECENV_H_STEP_ID]);
    CHECK(step_ids[0] == 0);
    tear_down();
}

static void
test_error_row_is_not_last_delivered(void)
{
    set_up();
    request_and_reply(0, 1);
    CHECK(vecenv_ring_seal(ring, 0) == VECENV_OK);
    deliver(1);
    set_outstanding(ring, 0, 2);
    uint64_t row_ref = vecenv_claim(&arena, 0);
    write_row(&arena, row_ref, 2, 0);
    flags_of(&arena, ref_block(row_ref))[ref_row(row_ref)] = VECENV_F_ERROR;
    vecenv_commit(&arena, row_ref);
    CHECK(vecenv_ring_seal(ring, 0) == VECENV_OK);
    deliver(1);
    CHECK(ring->last_delivered[0] == 1);
    tear_down();
}

/* Deliver the rows of these envs, which have all been committed. */
static vecenv_row_range
take(const int64_t *env_ids, uint32_t count)
{
    vecenv_row_range range;
    CHECK(vecenv_ring_seal(ring, 0) == VECENV_OK);
    CHECK(vecenv_ring_count_ready(ring, env_ids, count) == count);
    CHECK(vecenv_ring_take(ring, env_ids, count, &range) == VECENV_OK);
    CHECK(range.stop - range.start == count);
    for (uint32_t i = 0; i < count; i++) {
        CHECK(env_id_at(range, i) == env_ids[i] && is_intact(&arena, range.block, range.start + i));
        CHECK(ring->outstanding[env_ids[i]] == 0 && ring->wanted[env_ids[i]] == 0);
    }
    CHECK(ring->num_row_ranges == 0); /* the rows of other envs were deferred */
    return range;
}

static void
test_take_returns_adjacent_rows_in_place(void)
{
    set_up();
    uint32_t block = ref_block(ring->chain[0]);
    const int64_t env_ids[] = {2, 0};
    request_and_reply(2, 1);
    request_and_reply(0, 2);
    request_and_reply(1, 3);
    vecenv_row_range range = take(env_ids, 2);
    CHECK(range.block == block && ring->num_deferred == 1 && ring->deferred[0] == 1);
    tear_down();
}

static void
test_deferred_rows_pin_no_block_and_come_first_in_finish_order(void)
{
    set_up();
    const int64_t env_ids[] = {3};
    uint64_t step_id = 0;
    for (int64_t env_id = 2; env_id >= 0; env_id--) {
        request_and_reply(env_id, ++step_id);
        request_and_reply(3, ++step_id);
        take(env_ids, 1);
    }
    CHECK(num_pinned() == VECENV_CHAIN + MAX_DELIVERED && ring->num_outstanding == 3);
    request_and_reply(3, ++step_id);
    CHECK(vecenv_ring_seal(ring, 0) == VECENV_OK);
    CHECK(vecenv_ring_filter(ring) == 4);
    vecenv_row_range first = deliver(1);
    CHECK(env_id_at(first, 0) == 2);
    vecenv_row_range range = deliver(3);
    CHECK(env_id_at(range, 0) == 1 && env_id_at(range, 1) == 0 && env_id_at(range, 2) == 3);
    CHECK(ring->num_deferred == 0 && ring->num_outstanding == 0);
    tear_down();
}

static void
test_take_joins_deferred_rows_and_others(void)
{
    set_up();
    const int64_t last[] = {3}, some[] = {1, 2, 0};
    request_and_reply(0, 1);
    request_and_reply(1, 2);
    request_and_reply(3, 3);
    take(last, 1);
    request_and_reply(3, 4);
    request_and_reply(2, 5);
    take(some, 3);
    CHECK(ring->num_deferred == 1 && ring->deferred[0] == 3);
    tear_down();
}

static void
test_superseded_deferred_row_is_dropped(void)
{
    set_up();
    const int64_t last[] = {3}, again[] = {1};
    for (int64_t env_id = 0; env_id < 4; env_id++) {
        request_and_reply(env_id, 1 + (uint64_t)env_id);
    }
    take(last, 1);
    set_outstanding(ring, 1, 9); /* a reset superseded its step */
    CHECK(vecenv_ring_count_ready(ring, again, 1) == 0);
    reply(1, 9);
    take(again, 1);
    CHECK(vecenv_ring_filter(ring) == 2);
    vecenv_row_range range = deliver(2);
    CHECK(env_id_at(range, 0) == 0 && env_id_at(range, 1) == 2);
    tear_down();
}

static void
test_take_leaves_the_rest_of_an_ordered_request(void)
{
    set_up();
    const int64_t some[] = {2};
    CHECK(vecenv_ring_assign(ring, 3) == VECENV_OK);
    ring->assigned_first = 1;
    for (int64_t env_id = 0; env_id < 3; env_id++) {
        set_outstanding(ring, env_id, 1 + (uint64_t)env_id);
    }
    write_row(&arena, ring->assigned + 2, 3, 2);
    vecenv_commit(&arena, ring->assigned + 2);
    take(some, 1);
    CHECK(ring->has_cancelled && !vecenv_ring_has_awaited(ring));
    for (uint32_t row = 0; row < 2; row++) {
        write_row(&arena, ring->assigned + row, 1 + row, row);
        vecenv_commit(&arena, ring->assigned + row);
    }
    CHECK(vecenv_ring_has_awaited(ring));
    vecenv_ring_finish_assigned(ring);
    CHECK(vecenv_ring_filter(ring) == 2);
    vecenv_row_range range = deliver(2);
    CHECK(env_id_at(range, 0) == 0 && env_id_at(range, 1) == 1);
    tear_down();
}

static void
test_command_with_deferred_row_is_answered(void)
{
    set_up();
    const int64_t last[] = {3};
    request_and_reply(0, 1);
    request_and_reply(3, 2);
    take(last, 1);
    for (uint64_t step_id = 3; step_id < 5 * BLOCKS; step_id++) { /* its block is reused */
        request_and_reply(3, step_id);
        take(last, 1);
    }
    vecenv_command command = {.step_id = 1, .row_ref = VECENV_CLAIM, .env_id = 0};
    CHECK(vecenv_ring_is_answered(ring, &command));
    tear_down();
}

static void
test_take_without_free_block_delivers_nothing(void)
{
    set_up();
    const int64_t some[] = {0};
    request_and_reply(1, 1);
    request_and_reply(0, 2);
    CHECK(vecenv_ring_seal(ring, 0) == VECENV_OK);
    uint32_t free_before = ring->num_free;
    ring->num_free = 0; /* stragglers pin all blocks */
    vecenv_ring_lend(ring, ring->row_ranges[0].block);
    vecenv_row_range range;
    CHECK(vecenv_ring_count_ready(ring, some, 1) == 1);
    CHECK(vecenv_ring_take(ring, some, 1, &range) == VECENV_ENOBLOCK);
    CHECK(ring->num_outstanding == 2 && ring->num_deferred == 2);
    ring->num_free = free_before;
    CHECK(vecenv_ring_count_ready(ring, some, 1) == 1);
    CHECK(vecenv_ring_take(ring, some, 1, &range) == VECENV_OK && env_id_at(range, 0) == 0);
    tear_down();
}

int
main(void)
{
    test_take_returns_adjacent_rows_in_place();
    test_deferred_rows_pin_no_block_and_come_first_in_finish_order();
    test_take_joins_deferred_rows_and_others();
    test_superseded_deferred_row_is_dropped();
    test_take_leaves_the_rest_of_an_ordered_request();
    test_command_with_deferred_row_is_answered();
    test_take_without_free_block_delivers_nothing();
    test_deliver_returns_rows_of_one_block_in_place();
    test_deliver_keeps_rows_beyond_count();
    test_filter_drops_superseded_row_and_moves_last();
    test_filter_frees_block_of_dropped_rows();
    test_straggler_pins_block_until_delivered();
    test_superseded_straggler_frees_its_block();
    test_deliver_joins_row_ranges_in_order();
    test_batch_is_pinned_for_max_delivered_deliveries();
    test_ordered_request_keeps_request_order();
    test_reap_voids_unfinished_rows();
    test_reap_finds_claims_in_all_open_blocks();
    test_reap_claims_keeps_assigned_rows_of_successor();
    test_command_is_answered_once_claimed_row_is_committed();
    test_reap_completes_ordered_request();
    test_command_stays_answered_after_row_is_reused();
    test_seal_and_assign_without_free_block_change_nothing();
    test_cancelled_rows_never_overrun_chain();
    test_last_delivered_row_is_saved_before_reuse();
    test_env_id_overwritten_by_caller_is_ignored();
    test_error_row_is_not_last_delivered();
    return 0;
}
