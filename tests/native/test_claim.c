/* Claims of rows: by one thread, around the ring, and by several threads at once. */
#include <pthread.h>
#include <sched.h>

#include "harness.h"

enum { ROWS = 6, SLOTS = 3, BLOCKS = 12, PER_SLOT = ROWS / SLOTS };

static const arena_sizes sizes = {ROWS, SLOTS, BLOCKS, ROWS, 8, 64};

static uint64_t
owner_at(const vecenv_arena *arena, uint64_t row_ref)
{
    return load_acquire(
        &word_column(arena, ref_block(row_ref), VECENV_H_OWNER)[ref_row(row_ref)]);
}

static void
test_claims_are_in_order_and_continue_in_successor(void)
{
    vecenv_arena arena = make_arena(sizes);
    test_ring *made = make_test_ring(&arena, 1);
    vecenv_ring *ring = &made->ring;
    for (uint32_t i = 0; i < 2 * ROWS; i++) {
        uint64_t row_ref = vecenv_claim(&arena, i % SLOTS);
        CHECK(row_ref == ring->chain[i / ROWS] + i % ROWS);
        CHECK(owner_at(&arena, row_ref) == owner_of(ref_epoch(row_ref), i % SLOTS + 1));
        CHECK(!vecenv_is_committed(&arena, ref_epoch(row_ref), ref_block(row_ref),
                                   ref_row(row_ref)));
    }
    CHECK(vecenv_num_claimed(&arena, ref_epoch(ring->chain[0])) == ROWS);
    CHECK(vecenv_seal(&arena, ref_epoch(ring->chain[0])) == ROWS);
    free_test_ring(made);
    free(arena.base);
}

static void
test_seal_fixes_count_and_opens_successor(void)
{
    vecenv_arena arena = make_arena(sizes);
    test_ring *made = make_test_ring(&arena, 1);
    uint64_t first = made->ring.chain[0];
    uint64_t second = made->ring.chain[1];
    CHECK(vecenv_claim(&arena, 0) == first);
    CHECK(vecenv_claim(&arena, 1) == first + 1);
    CHECK(vecenv_num_claimed(&arena, ref_epoch(first)) == 2);
    CHECK(vecenv_seal(&arena, ref_epoch(first)) == 2);
    CHECK(owner_at(&arena, first + 2) == owner_of(ref_epoch(first), VECENV_SEAL));
    CHECK(vecenv_claim(&arena, 2) == second);
    CHECK(vecenv_seal(&arena, ref_epoch(second)) == 1);
    free_test_ring(made);
    free(arena.base);
}

static void
test_killed_claimer_blocks_no_other(void)
{
    vecenv_arena arena = make_arena(sizes);
    test_ring *made = make_test_ring(&arena, 1);
    uint64_t first = made->ring.chain[0];
    vecenv_word *owners = word_column(&arena, ref_block(first), VECENV_H_OWNER);
    store_release(&owners[0], owner_of(ref_epoch(first), 1));   /* then it was killed */
    CHECK(load_acquire(&arena.control->open) == first);
    CHECK(vecenv_claim(&arena, 1) == first + 1);
    store_release(&owners[2], owner_of(ref_epoch(first), 1));
    CHECK(vecenv_seal(&arena, ref_epoch(first)) == 3);
    free_test_ring(made);
    free(arena.base);
}

static void
test_cells_are_committed_in_their_epoch_only(void)
{
    vecenv_arena arena = make_arena(sizes);
    test_ring *made = make_test_ring(&arena, 1);
    for (uint32_t round = 0; round < 5 * BLOCKS; round++) {
        uint64_t open = made->ring.chain[0];
        uint64_t epoch = ref_epoch(open);
        uint32_t block = ref_block(open);
        CHECK(vecenv_count_committed(&arena, epoch, block, ROWS) == 0);
        uint32_t count = round % (ROWS + 1);
        for (uint32_t row = 0; row < count; row++) {
            uint64_t row_ref = vecenv_claim(&arena, 0);
            CHECK(row_ref == open + row);
            CHECK(vecenv_all_committed(&arena, epoch, block, row));
            CHECK(!vecenv_all_committed(&arena, epoch, block, row + 1));
            write_row(&arena, row_ref, round + 1, 0);
            vecenv_commit(&arena, row_ref);
        }
        CHECK(vecenv_count_committed(&arena, epoch, block, ROWS) == count);
        CHECK(vecenv_ring_seal(&made->ring, 0) == VECENV_OK);
        CHECK(made->ring.chain[0] != open);
        CHECK(vecenv_ring_filter(&made->ring) == 0); /* no reply is outstanding */
    }
    free_test_ring(made);
    free(arena.base);
}

/* ---- threads -------------------------------------------------------------------------- */

enum { TOTAL = 60000 };

typedef struct {
    const vecenv_arena *arena;
    uint32_t slot;
    vecenv_word *requested; /* per env: the newest step_id that the parent has sent */
    vecenv_word *stop;
} claimer_args;

static void *
claim_rows(void *argument)
{
    const claimer_args *self = argument;
    uint64_t done[PER_SLOT] = {0};
    while (!load_acquire(self->stop)) {
        int found = 0;
        for (uint32_t i = 0; i < PER_SLOT; i++) {
            uint32_t env_id = self->slot * PER_SLOT + i;
            uint64_t step_id = load_acquire(&self->requested[env_id]);
            if (step_id != done[i]) {
                uint64_t row_ref = vecenv_claim(self->arena, self->slot);
                write_row(self->arena, row_ref, step_id, env_id);
                vecenv_commit(self->arena, row_ref);
                done[i] = step_id;
                found = 1;
            }
        }
        if (!found) {
            sched_yield();
        }
    }
    return NULL;
}

/* Check that the owner of each row in the row ranges is the slot that wrote it. */
static void
check_owners(const vecenv_ring *ring)
{
    for (size_t i = 0; i < ring->num_row_ranges; i++) {
        vecenv_row_range range = ring->row_ranges[i];
        for (uint32_t row = range.start; row < range.stop; row++) {
            uint64_t row_ref = make_row_ref(ring->epochs[range.block], range.block, row);
            uint32_t slot = (uint32_t)env_ids_of(ring->arena, range.block)[row] / PER_SLOT;
            CHECK(owner_at(ring->arena, row_ref) == owner_of(ref_epoch(row_ref), slot + 1));
        }
    }
}

/* Seal the open block until rows have arrived; deliver up to max_count of them, and request the
 * next step of their envs. Returns the number of rows. */
static uint32_t
deliver_and_request_again(vecenv_ring *ring, vecenv_word *requested, uint32_t max_count)
{
    uint32_t have = 0;
    while (have == 0) {
        vecenv_ring_collect_stragglers(ring);
        if (vecenv_num_claimed(ring->arena, ref_epoch(ring->chain[0])) > 0) {
            CHECK(vecenv_ring_seal(ring, max_count % 2 ? 0 : LOST_NS) == VECENV_OK);
        } else {
            sched_yield();
        }
        have = vecenv_ring_filter(ring);
    }
    check_owners(ring);
    uint64_t expected[ROWS];
    memcpy(expected, ring->outstanding, sizeof expected);
    vecenv_row_range range;
    uint32_t count = have < max_count ? have : max_count;
    CHECK(vecenv_ring_deliver(ring, count, &range) == VECENV_OK);
    CHECK(range.stop - range.start == count);
    for (uint32_t row = range.start; row < range.stop; row++) {
        int64_t env_id = env_ids_of(ring->arena, range.block)[row];
        uint64_t step_id = step_ids_of(ring->arena, range.block)[row];
        CHECK(is_intact(ring->arena, range.block, row));
        CHECK(step_id == expected[env_id]); /* no row is lost or doubled */
        expected[env_id] = 0;
        set_outstanding(ring, env_id, step_id + 1);
        store_release(&requested[env_id], step_id + 1);
    }
    return count;
}

static void
test_rows_are_claimed_once_while_parent_seals(void)
{
    vecenv_arena arena = make_arena(sizes);
    test_ring *made = make_test_ring(&arena, 2);
    vecenv_word requested[ROWS] = {0};
    vecenv_word stop = 0;
    for (uint32_t env_id = 0; env_id < ROWS; env_id++) {
        set_outstanding(&made->ring, env_id, 1);
        store_release(&requested[env_id], 1);
    }
    pthread_t threads[SLOTS];
    claimer_args claimers[SLOTS];
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        claimers[slot] = (claimer_args){&arena, slot, requested, &stop};
        CHECK(pthread_create(&threads[slot], NULL, claim_rows, &claimers[slot]) == 0);
    }
    for (uint32_t total = 0, i = 0; total < TOTAL; i++) {
        total += deliver_and_request_again(&made->ring, requested, i % ROWS + 1);
        CHECK(made->ring.num_outstanding == ROWS);
    }
    store_release(&stop, 1);
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        CHECK(pthread_join(threads[slot], NULL) == 0);
    }
    CHECK(made->ring.next_epoch > 2 * BLOCKS); /* every block was reused */
    free_test_ring(made);
    free(arena.base);
}

int
main(void)
{
    test_claims_are_in_order_and_continue_in_successor();
    test_seal_fixes_count_and_opens_successor();
    test_killed_claimer_blocks_no_other();
    test_cells_are_committed_in_their_epoch_only();
    test_rows_are_claimed_once_while_parent_seals();
    return 0;
}
