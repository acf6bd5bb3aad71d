/* Claiming rows of the open block from several processes, without a lock.
 *
 * A claim is one compare-and-swap on the row's owner word, from an older epoch to
 * (this epoch, this slot). The open word is only a hint where to try next; any claimer that
 * finds it behind advances it. So the owner of a claimed row is known at every instant, and
 * a claimer that is killed between the two swaps blocks no other claimer.
 *
 * To seal a block before it is full, the parent claims its next row under the mark VECENV_SEAL.
 * That row and all rows after it stay empty in this epoch.
 *
 * A claimer that was stopped for any time fails its swap if the row has been claimed since: the
 * owner word that it read is older than the present one, and epochs never repeat. */
#ifndef VECENV_CLAIM_H
#define VECENV_CLAIM_H

#include "shm/layout.h"

#define VECENV_NO_ROW 0 /* no row_ref has this value: epochs begin with 1 */

/* Claim the next row of the open block for `slot`. Returns its row_ref; VECENV_NO_ROW if the shared
 * words of claims have been overwritten.
 *
 * After the claim the caller must do nothing that can fail: only copies, then vecenv_commit.
 * Lock-free: each retry means that another claimer has succeeded. The parent links every open
 * block to its successor beforehand. */
uint64_t vecenv_claim(const vecenv_arena *arena, uint32_t slot);

/* Parent only: close the block that was opened in `epoch`, so that its successor becomes the open
 * block. Returns the number of claimed rows of the closed block. */
uint32_t vecenv_seal(const vecenv_arena *arena, uint64_t epoch);

/* Return the number of rows of the block opened in `epoch` that have been claimed so far. */
uint32_t vecenv_num_claimed(const vecenv_arena *arena, uint64_t epoch);

/* Parent only: set the block that opens after `block` in its present epoch. */
void vecenv_link(const vecenv_arena *arena, uint32_t block, uint64_t successor);

/* Publish a filled row. Pairs with the acquire load of vecenv_is_committed: a reader that sees the
 * cell sees the row. */
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

/* Return how many of the first `limit` rows of a block are committed in `epoch`. */
uint32_t vecenv_count_committed(const vecenv_arena *arena, uint64_t epoch, uint32_t block,
                                uint32_t limit);

/* Return whether all of the first `limit` rows are committed in `epoch`. Starts at the last row,
 * which is usually written last: an unfinished block mostly costs one load. */
int vecenv_all_committed(const vecenv_arena *arena, uint64_t epoch, uint32_t block,
                         uint32_t limit);

#endif
