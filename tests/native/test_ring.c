/* The parent's books: what is delivered, dropped, moved, pinned and given back. */
#include "harness.h"

enum { ENVS = 4, SLOTS = 2, BLOCKS = 12, DEPTH = 2 };

static const arena_sizes sizes = {ENVS, SLOTS, BLOCKS, ENVS, 8, 64};

static vecenv_arena arena;
static test_ring *made;
static vecenv_ring *ring;

static void
set_up(void)
{
    arena = make_arena(sizes);
    made = make_test_ring(&arena, DEPTH);
    ring = &made->ring;
}

static void
tear_down(void)
{
    free_test_ring(made);
    free(arena.base);
}

/* A worker's whole answer into the open block. */
static void
answer(int64_t env_id, uint64_t step_id)
{
    uint64_t row_ref = vecenv_claim(&arena, (uint32_t)env_id % SLOTS);
    write_row(&arena, row_ref, step_id, env_id);
    vecenv_commit(&arena, row_ref);
}

static void
ask_and_answer(int64_t env_id, uint64_t step_id)
{
    owe(ring, env_id, step_id);
    answer(env_id, step_id);
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
env_in(vecenv_row_range range, uint32_t i)
{
    return env_ids_of(&arena, range.block)[range.start + i];
}

static uint32_t
num_pinned(void)
{
    return BLOCKS - ring->num_free;
}

static void
rows_of_one_block_are_delivered_where_they_stand(void)
{
    set_up();
    uint32_t block = ref_block(ring->chain[0]);
    for (int64_t env_id = 0; env_id < 3; env_id++) {
        ask_and_answer(env_id, 10 + (uint64_t)env_id);
    }
    CHECK(vecenv_ring_seal(ring, 0) == VECENV_OK);
    CHECK(vecenv_ring_filter(ring) == 3);
    vecenv_row_range range = deliver(3);
    CHECK(range.block == block && range.start == 0);
    CHECK(ring->num_outstanding == 0 && ring->num_row_ranges == 0);
    tear_down();
}

static void
what_is_beyond_the_count_is_left_for_the_next_call(void)
{
    set_up();
    for (int64_t env_id = 0; env_id < 4; env_id++) {
        ask_and_answer(env_id, 1);
    }
    CHECK(vecenv_ring_seal(ring, 0) == VECENV_OK);
    vecenv_row_range first = deliver(3);
    CHECK(ring->num_outstanding == 1);
    CHECK(vecenv_ring_filter(ring) == 1);
    vecenv_row_range second = deliver(1);
    CHECK(second.block == first.block && second.start == 3 && env_in(second, 0) == 3);
    CHECK(ring->num_row_ranges == 0);
    tear_down();
}

static void
rows_nobody_waits_for_are_dropped_and_the_last_one_moves(void)
{
    set_up();
    for (int64_t env_id = 0; env_id < 4; env_id++) {
        ask_and_answer(env_id, 1);
    }
    owe(ring, 1, 2); /* a reset superseded its step */
    CHECK(vecenv_ring_seal(ring, 0) == VECENV_OK);
    CHECK(vecenv_ring_filter(ring) == 3);
    vecenv_row_range range = deliver(3);
    CHECK(range.start == 0 && env_in(range, 0) == 0 && env_in(range, 1) == 3
          && env_in(range, 2) == 2);
    CHECK(ring->outstanding[1] == 2 && ring->num_outstanding == 1);
    tear_down();
}

static void
a_block_of_dropped_rows_is_free_again(void)
{
    set_up();
    uint32_t before = ring->num_free;
    uint32_t block = ref_block(ring->chain[0]);
    answer(0, 7);
    answer(1, 8);
    CHECK(vecenv_ring_seal(ring, 0) == VECENV_OK);
    CHECK(vecenv_ring_filter(ring) == 0);
    CHECK(ring->num_row_ranges == 0 && ring->num_free == before);
    CHECK(!vecenv_ring_lend(ring, block) && ring->pins[block] == 0);
    tear_down();
}

static void
a_late_row_pins_its_block_and_comes_when_it_is_committed(void)
{
    set_up();
    uint32_t before = ring->num_free;
    owe(ring, 0, 1);
    ask_and_answer(1, 1);
    uint64_t late = vecenv_claim(&arena, 0); /* stopped between claim and commit */
    ask_and_answer(3, 1);
    CHECK(vecenv_ring_seal(ring, 0) == VECENV_OK);
    CHECK(ring->num_stragglers == 1 && ring->stragglers[0] == late && ring->num_row_ranges == 2);
    CHECK(vecenv_ring_filter(ring) == 2);
    vecenv_row_range range = deliver(2); /* put together in a block of its own */
    CHECK(env_in(range, 0) == 1 && env_in(range, 1) == 3 && range.block != ref_block(late));
    for (uint32_t round = 0; round < 3 * BLOCKS; round++) { /* around the ring */
        ask_and_answer(1, 2 + round);
        CHECK(vecenv_ring_seal(ring, 0) == VECENV_OK);
        vecenv_ring_collect_stragglers(ring);
        CHECK(vecenv_ring_filter(ring) == 1);
        range = deliver(1);
        CHECK(range.block != ref_block(late));
    }
    write_row(&arena, late, 1, 0);
    vecenv_commit(&arena, late);
    vecenv_ring_collect_stragglers(ring);
    CHECK(ring->num_stragglers == 0 && vecenv_ring_filter(ring) == 1);
    range = deliver(1);
    CHECK(range.block == ref_block(late) && range.start == ref_row(late));
    CHECK(ring->num_outstanding == 0);
    CHECK(ring->num_free == before - DEPTH); /* the batches that are held, nothing else */
    tear_down();
}

static void
a_late_row_that_was_superseded_only_frees_its_block(void)
{
    set_up();
    uint32_t before = ring->num_free;
    uint64_t late = vecenv_claim(&arena, 0);
    CHECK(vecenv_ring_seal(ring, 0) == VECENV_OK);
    CHECK(ring->num_free == before - 1);
    write_row(&arena, late, 1, 0);
    owe(ring, 0, 2);
    vecenv_commit(&arena, late);
    vecenv_ring_collect_stragglers(ring);
    CHECK(vecenv_ring_filter(ring) == 0);
    CHECK(ring->num_free == before && ring->num_stragglers == 0);
    tear_down();
}

static void
pieces_of_several_blocks_are_put_together_in_order(void)
{
    set_up();
    ask_and_answer(2, 1);
    CHECK(vecenv_ring_seal(ring, 0) == VECENV_OK);
    ask_and_answer(0, 2);
    ask_and_answer(3, 3);
    CHECK(vecenv_ring_seal(ring, 0) == VECENV_OK);
    ask_and_answer(1, 4);
    CHECK(vecenv_ring_seal(ring, 0) == VECENV_OK);
    CHECK(vecenv_ring_filter(ring) == 4);
    vecenv_row_range range = deliver(3);
    CHECK(range.start == 0);
    CHECK(env_in(range, 0) == 2 && env_in(range, 1) == 0 && env_in(range, 2) == 3);
    CHECK(ring->pins[range.block] == 1); /* held as any batch is */
    range = deliver(1);
    CHECK(env_in(range, 0) == 1);
    tear_down();
}

static void
a_batch_is_held_for_depth_deliveries(void)
{
    set_up();
    uint32_t blocks[DEPTH + 3];
    for (uint32_t i = 0; i < DEPTH + 3; i++) {
        ask_and_answer(0, i + 1);
        CHECK(vecenv_ring_seal(ring, 0) == VECENV_OK);
        blocks[i] = deliver(1).block;
        uint32_t held = i + 1 < DEPTH ? i + 1 : DEPTH;
        CHECK(num_pinned() == VECENV_CHAIN + held);
        for (uint32_t back = 0; back < held; back++) {
            CHECK(ring->pins[blocks[i - back]] == 1);
            CHECK(step_ids_of(&arena, blocks[i - back])[0] == i + 1 - back);
        }
    }
    tear_down();
}

static void
an_ordered_request_stands_in_request_order(void)
{
    set_up();
    static const int64_t order[3] = {2, 0, 3};
    CHECK(vecenv_ring_assign(ring, 3) == VECENV_OK);
    for (uint32_t i = 3; i > 0; i--) { /* finished the other way round */
        owe(ring, order[i - 1], i);
        CHECK(!vecenv_all_committed(&arena, ref_epoch(ring->assigned),
                                    ref_block(ring->assigned), 3));
        write_row(&arena, ring->assigned + i - 1, i, order[i - 1]);
        vecenv_commit(&arena, ring->assigned + i - 1);
    }
    vecenv_ring_finish_assigned(ring);
    CHECK(ring->assigned_rows == 0 && vecenv_ring_filter(ring) == 3);
    vecenv_row_range range = deliver(3);
    for (uint32_t i = 0; i < 3; i++) {
        CHECK(env_in(range, i) == order[i]);
    }
    tear_down();
}

static void
reaping_voids_what_a_dead_slot_left_unfinished(void)
{
    set_up();
    uint32_t before = ring->num_free;
    owe(ring, 0, 1);
    owe(ring, 1, 1);
    uint64_t late = vecenv_claim(&arena, 0);
    CHECK(vecenv_ring_seal(ring, 0) == VECENV_OK);
    uint64_t claimed = vecenv_claim(&arena, 0);
    write_row(&arena, claimed, 1, 0); /* killed within the copy */
    answer(1, 1); /* another slot's row stays */
    vecenv_ring_reap(ring, 0);
    CHECK(vecenv_is_committed(&arena, ref_epoch(claimed), ref_block(claimed), 0));
    vecenv_ring_collect_stragglers(ring);
    CHECK(ring->num_stragglers == 0);
    CHECK(vecenv_ring_filter(ring) == 0);
    CHECK(vecenv_ring_seal(ring, 0) == VECENV_OK);
    CHECK(vecenv_ring_filter(ring) == 1);
    CHECK(env_in(deliver(1), 0) == 1);
    CHECK(ring->outstanding[0] == 1); /* still owed: the replacement will answer */
    CHECK(ring->num_free == before - 1 && ref_block(late) != ref_block(claimed));
    tear_down();
}

/* The parent has not looked since the first block filled up. */
static void
reaping_finds_what_a_dead_slot_claimed_in_any_open_block(void)
{
    set_up();
    uint64_t claimed[VECENV_CHAIN - 1];
    for (int i = 0; i < VECENV_CHAIN - 1; i++) {
        for (int64_t row = 1; row < ENVS; row++) {
            answer(1, 9);
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
reaping_leaves_a_successor_the_rows_that_were_assigned_to_what_it_will_do(void)
{
    set_up();
    CHECK(vecenv_ring_assign(ring, 3) == VECENV_OK);
    uint64_t epoch = ref_epoch(ring->assigned);
    uint32_t block = ref_block(ring->assigned), head = sizes.queue_size - 1;
    for (uint32_t row = 0; row < 3; row++) {
        store_release(&word_column(&arena, block, VECENV_H_OWNER)[row], owner_of(epoch, 1));
    }
    queue_of(&arena, 0)[head].row_ref = ring->assigned + 1; /* around the end of the queue */
    queue_of(&arena, 0)[0].row_ref = ring->assigned + 2;
    vecenv_ring_reap_claims(ring, 0, head, 2);
    CHECK(vecenv_is_committed(&arena, epoch, block, 0));
    CHECK(vecenv_count_committed(&arena, epoch, block, 3) == 1);
    tear_down();
}

static void
a_claimed_row_answers_its_command_once_it_is_committed(void)
{
    set_up();
    const vecenv_command command = {.step_id = 1, .row_ref = VECENV_CLAIM, .op = VECENV_OP_STEP};
    owe(ring, 0, 1);
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
reaping_completes_an_ordered_request_without_the_dead(void)
{
    set_up();
    CHECK(vecenv_ring_assign(ring, 2) == VECENV_OK);
    uint64_t epoch = ref_epoch(ring->assigned);
    uint32_t block = ref_block(ring->assigned);
    for (uint32_t row = 0; row < 2; row++) {
        owe(ring, row, row + 1);
        store_release(&word_column(&arena, block, VECENV_H_OWNER)[row],
                      owner_of(epoch, row + 1));
    }
    write_row(&arena, ring->assigned, 1, 0);
    vecenv_commit(&arena, ring->assigned);
    vecenv_ring_reap(ring, 1);
    CHECK(vecenv_all_committed(&arena, epoch, block, 2));
    vecenv_ring_finish_assigned(ring);
    CHECK(vecenv_ring_filter(ring) == 1);
    CHECK(env_in(deliver(1), 0) == 0 && ring->outstanding[1] == 2);
    tear_down();
}

/* Its slot was stopped right behind the commit, before it freed the command's place. */
static void
a_command_stays_answered_when_its_assigned_row_is_used_again(void)
{
    set_up();
    CHECK(vecenv_ring_assign(ring, 1) == VECENV_OK);
    const vecenv_command command = {.step_id = 1, .row_ref = ring->assigned, .op = VECENV_OP_STEP};
    owe(ring, 0, 1);
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
        owe(ring, 1, step_id);
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
late_writers_that_pin_everything_are_an_error_that_changes_nothing(void)
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
rows_nobody_waits_for_never_run_off_the_chain(void)
{
    set_up();
    uint64_t step_id = 0;
    for (uint32_t round = 0; round < 5 * BLOCKS; round++) { /* asked, answered, cancelled */
        CHECK(vecenv_ring_catch_up(ring) == VECENV_OK);
        CHECK(ref_epoch(load_acquire(&arena.control->open)) == ref_epoch(ring->chain[0]));
        for (int64_t env_id = 0; env_id < ENVS; env_id++) {
            ask_and_answer(env_id, ++step_id);
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
what_was_shown_last_is_put_aside_before_its_row_is_used_again(void)
{
    set_up();
    uint64_t step_id = 0;
    for (int64_t env_id = 0; env_id < ENVS; env_id++) {
        ask_and_answer(env_id, ++step_id);
    }
    CHECK(vecenv_ring_seal(ring, 0) == VECENV_OK);
    deliver(ENVS);
    CHECK(ring->last_delivered[1] == 2);
    uint64_t *step_ids = (void *)(ring->saved_rows + arena.header[VECENV_H_STEP_ID]);
    double *rewards = (void *)(ring->saved_rows + arena.header[VECENV_H_REWARD]);
    for (uint32_t round = 0; round < 5 * BLOCKS; round++) { /* env 0 goes on, the others rest */
        CHECK(step_ids[0] < step_id); /* never what is still in the ring */
        ask_and_answer(0, ++step_id);
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
what_the_caller_writes_into_its_views_is_no_number_of_an_env(void)
{
    set_up();
    for (uint64_t step_id = 1; step_id < 5 * BLOCKS; step_id++) {
        ask_and_answer(0, step_id);
        CHECK(vecenv_ring_seal(ring, 0) == VECENV_OK);
        vecenv_row_range range = deliver(1);
        env_ids_of(&arena, range.block)[range.start] = step_id % 2 ? -1 : (int64_t)1 << 60;
    }
    const uint64_t *step_ids = (void *)(ring->saved_rows + arena.header[VECENV_H_STEP_ID]);
    CHECK(step_ids[0] == 0);
    tear_down();
}

static void
what_an_env_that_failed_left_in_its_row_is_not_what_was_shown(void)
{
    set_up();
    ask_and_answer(0, 1);
    CHECK(vecenv_ring_seal(ring, 0) == VECENV_OK);
    deliver(1);
    owe(ring, 0, 2);
    uint64_t row_ref = vecenv_claim(&arena, 0);
    write_row(&arena, row_ref, 2, 0);
    flags_of(&arena, ref_block(row_ref))[ref_row(row_ref)] = VECENV_F_ERROR;
    vecenv_commit(&arena, row_ref);
    CHECK(vecenv_ring_seal(ring, 0) == VECENV_OK);
    deliver(1);
    CHECK(ring->last_delivered[0] == 1);
    tear_down();
}

int
main(void)
{
    rows_of_one_block_are_delivered_where_they_stand();
    what_is_beyond_the_count_is_left_for_the_next_call();
    rows_nobody_waits_for_are_dropped_and_the_last_one_moves();
    a_block_of_dropped_rows_is_free_again();
    a_late_row_pins_its_block_and_comes_when_it_is_committed();
    a_late_row_that_was_superseded_only_frees_its_block();
    pieces_of_several_blocks_are_put_together_in_order();
    a_batch_is_held_for_depth_deliveries();
    an_ordered_request_stands_in_request_order();
    reaping_voids_what_a_dead_slot_left_unfinished();
    reaping_finds_what_a_dead_slot_claimed_in_any_open_block();
    reaping_leaves_a_successor_the_rows_that_were_assigned_to_what_it_will_do();
    a_claimed_row_answers_its_command_once_it_is_committed();
    reaping_completes_an_ordered_request_without_the_dead();
    a_command_stays_answered_when_its_assigned_row_is_used_again();
    late_writers_that_pin_everything_are_an_error_that_changes_nothing();
    rows_nobody_waits_for_never_run_off_the_chain();
    what_was_shown_last_is_put_aside_before_its_row_is_used_again();
    what_the_caller_writes_into_its_views_is_no_number_of_an_env();
    what_an_env_that_failed_left_in_its_row_is_not_what_was_shown();
    return 0;
}
