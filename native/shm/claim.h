/* Claiming rows of the open block, from several processes, with no lock to die with.
 *
 * A claim is one compare-and-swap on the row's owner word, from an older epoch to
 * (this epoch, this slot). The open word only says where to try next; whoever finds
 * it behind moves it on. So there is no instant at which a row is taken and its
 * owner unknown, and a claimer killed between the two swaps holds nobody up.
 *
 * Sealing a block before it is full is the same claim, made by the parent under the
 * mark VECENV_SEAL: the row it takes, and all after it, stay empty in this epoch.
 *
 * A claimer that slept through any amount of progress fails its swap, because the
 * owner word it read is older than what now stands there; epochs never repeat. */
#ifndef VECENV_CLAIM_H
#define VECENV_CLAIM_H

#include "shm/layout.h"

/* Claim the next row of the open block for `slot`. Returns its place.
 *
 * The caller must have nothing left to do that can fail: between the claim and
 * vecenv_commit stand only copies. Lock-free; each retry means that another claimer
 * succeeded. The parent links every open block to its successor beforehand. */
uint64_t vecenv_claim(const vecenv_arena *arena, uint32_t slot);

/* Parent only: close the block opened in `epoch`, so that its successor is open.
 * Returns the number of its rows that were claimed. */
uint32_t vecenv_seal(const vecenv_arena *arena, uint64_t epoch);

/* How many rows of the block opened in `epoch` are claimed by now. */
uint32_t vecenv_num_claimed(const vecenv_arena *arena, uint64_t epoch);

/* Parent only: name the block that is opened after `block` in its present epoch. */
void vecenv_link(const vecenv_arena *arena, uint32_t block, uint64_t successor);

/* Publish a filled row. Pairs with the acquire loads of vecenv_is_committed: who sees
 * the cell sees the row. */
static inline void
vecenv_commit(const vecenv_arena *arena, uint64_t row_ref)
{
    store_release(&word_column(arena, ref_block(row_ref), VECENV_H_CELL)[ref_row(row_ref)],
                  ref_epoch(row_ref));
}

static inline int
vecenv_is_committed(const vecenv_arena *arena, uint64_t epoch, uint32_t block, uint32_t row)
{
    return load_acquire(&word_column(arena, block, VECENV_H_CELL)[row]) == epoch;
}

/* How many of the first `limit` rows of a block are committed in `epoch`. */
uint32_t vecenv_count_committed(const vecenv_arena *arena, uint64_t epoch, uint32_t block,
                                uint32_t limit);

/* Whether all of the first `limit` rows are; looks from the last row down, which is
 * written last as a rule, so an unfinished block is found out at the first look. */
int vecenv_all_committed(const vecenv_arena *arena, uint64_t epoch, uint32_t block,
                         uint32_t limit);

#endif
