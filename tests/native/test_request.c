/* Requests: sent whole or refused whole, and given up without a trace. */
#include "harness.h"

#include "request.h"
#include "wait.h"

enum { ENVS = 4, SLOTS = 2, BLOCKS = 12, DEPTH = 2, QUEUE = 8 };

static const arena_sizes sizes = {ENVS, SLOTS, BLOCKS, ENVS, QUEUE, 64};

static vecenv_arena arena;
static books *made;
static vecenv_ring *ring;
static vecenv_sender sender;

static void
set_up(void)
{
    arena = make_arena(sizes);
    made = make_books(&arena, DEPTH);
    ring = &made->ring;
    sender = (vecenv_sender){.arena = &arena, .ring = ring, .next_step_id = 1};
    sender.slot_of = calloc(ENVS, sizeof *sender.slot_of);
    sender.ops = calloc(ENVS, 1);
    sender.before = calloc(ENVS, sizeof *sender.before);
    sender.tails = calloc(SLOTS, sizeof *sender.tails);
    sender.touched = calloc(SLOTS, 1);
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
    free(sender.touched);
    free_books(made);
    free(arena.base);
}

/* 0, or why it was refused. */
static int
ask(int op, int ordered, const int64_t *env_ids, size_t count)
{
    vecenv_request what = {.op = op, .ordered = ordered, .env_ids = env_ids, .count = count};
    int64_t culprit;
    int error = vecenv_refuse(&sender, &what, &culprit);
    return error != 0 ? error : vecenv_send(&sender, &what, &culprit);
}

/* The slot carries out its next command; returns its step_id. */
static uint64_t
work(uint32_t slot)
{
    vecenv_slot_lines *lines = &arena.slots[slot];
    uint32_t head = load_acquire32(&lines->head);
    CHECK(head != load_acquire32(&lines->tail));
    vecenv_command command = queue_of(&arena, slot)[head & (QUEUE - 1)];
    uint64_t place = command.place == VECENV_CLAIM ? vecenv_claim(&arena, slot) : command.place;
    write_row(&arena, place, command.step_id, command.env_id);
    vecenv_commit(&arena, place);
    store_release32(&lines->head, head + 1);
    return command.step_id;
}

/* Late writers take all blocks but `left`. */
static void
pin_blocks(uint32_t left)
{
    while (ring->num_free > left) {
        vecenv_claim(&arena, 0);
        CHECK(vecenv_ring_seal(ring, 0) == VECENV_OK);
    }
}

static void
a_reset_that_no_block_is_left_for_supersedes_nothing(void)
{
    set_up();
    pin_blocks(1);
    CHECK(ask(VECENV_OP_STEP, 1, NULL, ENVS) == 0);
    CHECK(ring->num_free == 0 && ring->num_outstanding == ENVS);
    work(0); /* the others are on their way */
    CHECK(ask(VECENV_OP_RESET, 1, NULL, ENVS) == SEND_NO_BLOCK);
    CHECK(ring->num_outstanding == ENVS && ring->assigned_rows == ENVS);
    CHECK(sender.next_step_id == ENVS + 1);
    for (uint64_t env_id = 0; env_id < ENVS; env_id++) {
        CHECK(ring->outstanding[env_id] == env_id + 1 && sender.ops[env_id] == VECENV_OP_STEP);
        CHECK(load_acquire(&arena.newest[env_id]) == env_id + 1);
    }
    work(0);
    work(1);
    work(1);
    vecenv_ring_finish_assigned(ring);
    CHECK(vecenv_ring_filter(ring) == ENVS);
    tear_down();
}

/* The block of the steps that it supersedes will do, once they have all been made. */
static void
a_reset_takes_the_block_of_what_it_supersedes(void)
{
    set_up();
    pin_blocks(1);
    CHECK(ask(VECENV_OP_STEP, 1, NULL, ENVS) == 0);
    uint32_t block = place_block(ring->assigned);
    for (uint32_t i = 0; i < ENVS; i++) {
        work(i % SLOTS);
    }
    CHECK(ask(VECENV_OP_RESET, 1, NULL, ENVS) == 0);
    CHECK(ring->num_outstanding == ENVS && place_block(ring->assigned) == block);
    for (uint32_t i = 0; i < ENVS; i++) {
        CHECK(work(i % SLOTS) > ENVS);
    }
    vecenv_ring_finish_assigned(ring);
    CHECK(vecenv_ring_filter(ring) == ENVS);
    tear_down();
}

/* The same where they have become pieces already. */
static void
a_reset_takes_the_block_of_pieces_that_it_supersedes(void)
{
    set_up();
    pin_blocks(1);
    CHECK(ask(VECENV_OP_STEP, 1, NULL, ENVS) == 0);
    for (uint32_t i = 0; i < ENVS; i++) {
        work(i % SLOTS);
    }
    vecenv_ring_finish_assigned(ring);
    CHECK(vecenv_ring_filter(ring) == ENVS && ring->num_free == 0);
    CHECK(ask(VECENV_OP_RESET, 1, NULL, ENVS) == 0);
    CHECK(ring->num_pieces == 0 && ring->assigned_rows == ENVS);
    tear_down();
}

int
main(void)
{
    a_reset_that_no_block_is_left_for_supersedes_nothing();
    a_reset_takes_the_block_of_what_it_supersedes();
    a_reset_takes_the_block_of_pieces_that_it_supersedes();
    return 0;
}
