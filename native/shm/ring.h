/* The parent's books over the blocks: which is open, which a request was assigned,
 * which the caller holds, which a straggler may still write.
 *
 * A block is free when nothing pins it. Pins: being in the chain of open blocks,
 * being assigned to an ordered request, every undelivered row range, every straggler,
 * being one of the `max_delivered` newest delivered batches, and
 * being lent to the caller (core/parent/leases.py).
 *
 *     free -> chain[2] -> chain[1] -> open --seal--> row ranges --deliver--> delivered -> free
 *     free -> assigned ------------- all rows -----^      \-- stragglers --^
 *
 * Everything here is private to the parent; only rows, owners, cells and links lie in
 * shared memory. No allocation after vecenv_ring_init. */
#ifndef VECENV_RING_H
#define VECENV_RING_H

#include "shm/layout.h"

#define VECENV_CHAIN 3

typedef struct {
    size_t offset; /* of the column inside a block */
    size_t width;  /* bytes per row */
} vecenv_column;

/* Committed rows start .. stop of one block that the caller has not got yet. */
typedef struct {
    uint32_t block, start, stop;
} vecenv_row_range;

typedef struct {
    const vecenv_arena *arena;
    const vecenv_column *columns; /* all columns of a row, the cell and owner excluded */
    size_t num_columns;
    uint64_t *outstanding; /* per env: step_id that the caller waits for, 0 none */
    /* What the caller has seen last of each env must outlive its row: an episode that is lost
     * ends with it. Rows that are that are saved before their block is written again. */
    uint64_t *last_delivered;           /* per env: step_id of that row, 0 none */
    uint8_t *saved_rows;                /* laid out like a block, one row per env */
    const vecenv_column *saved_columns; /* those that are saved */
    size_t num_saved_columns;           /* step_id and env_id among them */
    uint32_t num_outstanding;
    uint64_t next_epoch;
    uint64_t chain[VECENV_CHAIN];
    uint64_t assigned; /* place of row 0 */
    uint32_t assigned_rows; /* 0: no ordered request under way */
    uint64_t assigned_first; /* step_id of its first row; they count up */
    /* some of it was cancelled or superseded since: not all is awaited, perhaps */
    int has_cancelled;
    uint32_t num_free;
    uint32_t pins[VECENV_MAX_BLOCKS];
    uint64_t epochs[VECENV_MAX_BLOCKS]; /* present or last epoch of each block */
    uint8_t free_blocks[VECENV_MAX_BLOCKS]; /* a stack: the hottest in cache first */
    /* blocks of the newest delivered batches, whose views are valid: a ring of max_delivered */
    uint32_t max_delivered, num_delivered, oldest_delivered;
    uint8_t delivered[VECENV_MAX_BLOCKS];
    vecenv_row_range *row_ranges;
    size_t num_row_ranges, max_row_ranges;
    uint64_t *stragglers; /* places claimed or assigned, uncommitted, and left behind */
    size_t num_stragglers, max_stragglers;
} vecenv_ring;

#define VECENV_ENOBLOCK (-3)

/* Row ranges and stragglers that may exist at once: size the arrays by these. */
size_t vecenv_ring_max_row_ranges(const vecenv_arena *arena);
size_t vecenv_ring_max_stragglers(const vecenv_arena *arena);

/* Set the state up and open the first block. The caller has set arena, columns, outstanding and
 * last_delivered (zeroed), saved_rows, row_ranges, stragglers and their sizes; max_delivered, the
 * pool's depth - 1, is at least 1. */
void vecenv_ring_init(vecenv_ring *ring, uint32_t max_delivered);

/* Reserve a block for an ordered request of num_rows rows. VECENV_ENOBLOCK: late
 * writers pin too many. On success ring->assigned is set. */
int vecenv_ring_assign(vecenv_ring *ring, uint32_t num_rows);

/* Whether a block is free, or will be as soon as nobody waits for any row: what a request that
 * supersedes all that is owed can count on. Changes nothing. */
int vecenv_ring_can_assign(const vecenv_ring *ring);

/* Pin a block once more, until it is taken back; 0 if it is free. */
int vecenv_ring_lend(vecenv_ring *ring, uint32_t block);
void vecenv_ring_take_back(vecenv_ring *ring, uint32_t block);

/* Whether all rows of the ordered request that are still awaited have been committed. Looks at
 * every env, so it is for requests of which something was cancelled. */
int vecenv_ring_has_awaited(const vecenv_ring *ring);

/* Move an assigned block to the row ranges; rows not committed yet become stragglers. */
void vecenv_ring_finish_assigned(vecenv_ring *ring);

/* Seal the open block and move its committed rows to the row ranges; claimed rows not
 * committed within wait_ns become late. VECENV_ENOBLOCK: nothing was sealed. */
int vecenv_ring_seal(vecenv_ring *ring, int64_t wait_ns);

/* Take blocks that filled up out of the chain, before more rows are asked for: so what can
 * be claimed without the parent always fits into the blocks that are linked, also when rows
 * nobody waits for (superseded, cancelled) pile up between two receives. VECENV_ENOBLOCK:
 * stragglers and undelivered rows pin too many. */
int vecenv_ring_catch_up(vecenv_ring *ring);

/* Turn stragglers that have been committed since into row ranges. */
void vecenv_ring_collect_stragglers(vecenv_ring *ring);

/* Drop rows nobody waits for from all row ranges; the last row of a row range moves into the
 * hole. Returns the number of rows left. */
uint32_t vecenv_ring_filter(vecenv_ring *ring);

/* Hand out the first `count` rows of the row ranges as one run, copying into a spare block
 * only where they do not already stand in one. Their envs owe nothing afterwards. */
int vecenv_ring_deliver(vecenv_ring *ring, uint32_t count, vecenv_row_range *range);

/* After a slot's process has been reaped: commit its uncommitted rows as void. */
void vecenv_ring_reap(vecenv_ring *ring, uint32_t slot);

/* The same when a successor takes over its `count` commands from queue entry `head` on: rows
 * assigned to them stay theirs. */
void vecenv_ring_reap_claims(vecenv_ring *ring, uint32_t slot, uint32_t head, uint32_t count);

/* Whether a dead slot's command has been answered: its row is committed, or delivered, and
 * perhaps in use again since. */
int vecenv_ring_is_answered(const vecenv_ring *ring, const vecenv_command *command);

#endif
