#include "shm/claim.h"

/* Tries of a claim or seal. Each failed one means that another process has claimed a row or advanced
 * the open word, so this many are reached only if these words have been overwritten. */
#define MOST_TRIES 1000000

/* Return the row_ref that opens after a block. Call it only if the block is full or sealed. The
 * parent links a block before it seals it, but a claimer ahead of the parent may meet an open block
 * without a link. */
static uint64_t
successor_of(const vecenv_arena *arena, uint32_t block)
{
    return load_acquire(word_column(arena, block, VECENV_H_LINK));
}

/* Advance the open word from `row_ref`, whose row has been claimed under the mark `taken_by`. */
static void
help(const vecenv_arena *arena, uint64_t row_ref, uint32_t taken_by)
{
    swap_if(&arena->control->open, row_ref,
            taken_by == VECENV_SEAL ? successor_of(arena, ref_block(row_ref)) : row_ref + 1);
}

/* Try to claim the row `row_ref` under `mark`. Returns 1 if this call claimed it. Returns 0 if
 * another process was faster: this call has advanced the open word, and the caller must read
 * it again. An owner word of a later epoch means that `row_ref` is outdated: then the open word
 * differs from `row_ref`, so `help` changes nothing. */
static int
try_take(const vecenv_arena *arena, uint64_t row_ref, uint32_t mark)
{
    uint32_t block = ref_block(row_ref);
    uint32_t row = ref_row(row_ref);
    if (block >= arena->num_blocks) {
        return 0;
    }
    if (row >= arena->rows) {
        swap_if(&arena->control->open, row_ref, successor_of(arena, block));
        return 0;
    }
    vecenv_word *owner = &word_column(arena, block, VECENV_H_OWNER)[row];
    uint64_t before = load_acquire(owner);
    if (ref_epoch(before) >= ref_epoch(row_ref)) {
        help(arena, row_ref, (uint32_t)before & 0xffffu);
        return 0;
    }
    if (!swap_if(owner, before, owner_of(ref_epoch(row_ref), mark))) {
        return 0;
    }
    help(arena, row_ref, mark);
    return 1;
}

uint64_t
vecenv_claim(const vecenv_arena *arena, uint32_t slot)
{
    for (int tries = 0; tries < MOST_TRIES; tries++) {
        uint64_t row_ref = load_acquire(&arena->control->open);
        if (try_take(arena, row_ref, slot + 1)) {
            return row_ref;
        }
    }
    return VECENV_NO_ROW;
}

uint32_t
vecenv_seal(const vecenv_arena *arena, uint64_t epoch)
{
    for (int tries = 0; tries < MOST_TRIES; tries++) {
        uint64_t row_ref = load_acquire(&arena->control->open);
        if (ref_epoch(row_ref) != epoch) {
            break; /* the block is full and its successor is open */
        }
        if (try_take(arena, row_ref, VECENV_SEAL)) {
            return ref_row(row_ref);
        }
    }
    return arena->rows;
}

uint32_t
vecenv_num_claimed(const vecenv_arena *arena, uint64_t epoch)
{
    uint64_t row_ref = load_acquire(&arena->control->open);
    uint32_t row = ref_row(row_ref);
    return ref_epoch(row_ref) == epoch && row < arena->rows ? row : arena->rows;
}

void
vecenv_link(const vecenv_arena *arena, uint32_t block, uint64_t successor)
{
    store_release(word_column(arena, block, VECENV_H_LINK), successor);
}

uint32_t
vecenv_count_committed(const vecenv_arena *arena, uint64_t epoch, uint32_t block,
                       uint32_t limit)
{
    const vecenv_word *cells = word_column(arena, block, VECENV_H_CELL);
    uint32_t count = 0;
    for (uint32_t row = 0; row < limit; row++) {
        count += load_acquire(&cells[row]) == epoch;
    }
    return count;
}

int
vecenv_all_committed(const vecenv_arena *arena, uint64_t epoch, uint32_t block,
                     uint32_t limit)
{
    const vecenv_word *cells = word_column(arena, block, VECENV_H_CELL);
    for (uint32_t row = limit; row > 0; row--) {
        if (load_acquire(&cells[row - 1]) != epoch) {
            return 0;
        }
    }
    return 1;
}
