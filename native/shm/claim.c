#include "shm/claim.h"

/* What is opened after a block. Loaded only once the block is known to be full or sealed:
 * the parent links a block before it seals it, but a claimer that runs ahead of the parent
 * may meet a block that is open and not linked yet. */
static uint64_t
successor_of(const vecenv_arena *arena, uint32_t block)
{
    return load_acquire(word_column(arena, block, VECENV_H_LINK));
}

/* Move the open word on from `place`, whose row is known to be taken by `taken_by`. */
static void
help(const vecenv_arena *arena, uint64_t place, uint32_t taken_by)
{
    swap_if(&arena->control->open, place,
            taken_by == VECENV_SEAL ? successor_of(arena, place_block(place)) : place + 1);
}

/* Look at the row that `place` names and try to take it under `mark`. 1: taken by this
 * call. 0: somebody else moved; the open word has been helped on and must be read
 * again. An owner word of a later epoch means that `place` is long gone: then the help
 * fails too, because the open word no longer equals `place`. */
static int
try_take(const vecenv_arena *arena, uint64_t place, uint32_t mark)
{
    uint32_t block = place_block(place);
    uint32_t row = place_row(place);
    if (row >= arena->rows) {
        swap_if(&arena->control->open, place, successor_of(arena, block));
        return 0;
    }
    vecenv_word *owner = &word_column(arena, block, VECENV_H_OWNER)[row];
    uint64_t before = load_acquire(owner);
    if (place_epoch(before) >= place_epoch(place)) {
        help(arena, place, (uint32_t)before & 0xffffu);
        return 0;
    }
    if (!swap_if(owner, before, owner_of(place_epoch(place), mark))) {
        return 0;
    }
    help(arena, place, mark);
    return 1;
}

uint64_t
vecenv_claim(const vecenv_arena *arena, uint32_t slot)
{
    for (;;) {
        uint64_t place = load_acquire(&arena->control->open);
        if (try_take(arena, place, slot + 1)) {
            return place;
        }
    }
}

uint32_t
vecenv_seal(const vecenv_arena *arena, uint64_t epoch)
{
    for (;;) {
        uint64_t place = load_acquire(&arena->control->open);
        if (place_epoch(place) != epoch) {
            return arena->rows; /* it filled up and claimers moved on */
        }
        if (try_take(arena, place, VECENV_SEAL)) {
            return place_row(place);
        }
    }
}

uint32_t
vecenv_num_claimed(const vecenv_arena *arena, uint64_t epoch)
{
    uint64_t place = load_acquire(&arena->control->open);
    return place_epoch(place) == epoch ? place_row(place) : arena->rows;
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
