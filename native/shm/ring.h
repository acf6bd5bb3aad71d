/* The parent's state of the ring of blocks: which blocks are open, assigned to a request, held by
 * the caller, or may still be written by a straggler.
 *
 * A block is free when nothing pins it. It is pinned while it is in the chain of open blocks;
 * while it is assigned to an ordered request; once per undelivered row range; once per straggler;
 * once for each of the `max_delivered` newest batches that lies in it; and while it is lent to the
 * caller (core/parent/leases.py).
 *
 *     free -> chain[2] -> chain[1] -> open --seal--> row ranges --deliver--> delivered -> free
 *     free -> assigned ------------- all rows -----^      \-- stragglers --^
 *
 * A caller may wait for the rows of particular envs. Rows of other envs that arrive before are
 * copied out of their blocks into deferred_rows, so they pin no block. They are delivered first,
 * in the order in which they finished:
 *
 *     row ranges --defer--> deferred_rows --deliver--> delivered
 *
 * This state is private to the parent; only rows, owners, cells and links are in shared memory. Those
 * are compared with the plan when they are read, see stray.h.
 * No function here allocates memory. */
#ifndef VECENV_RING_H
#define VECENV_RING_H

#include "shm/layout.h"
#include "shm/stray.h"

#define VECENV_CHAIN 3

typedef struct {
    size_t offset; /* begin of the column inside a block */
    size_t width;  /* bytes per row */
} vecenv_column;

/* Committed, undelivered rows start .. stop - 1 of one block. */
typedef struct {
    uint32_t block, start, stop;
} vecenv_row_range;

typedef struct {
    const vecenv_arena *arena;
    const vecenv_column *columns; /* all columns of a row except the cell and the owner */
    size_t num_columns;
    uint64_t *outstanding; /* per env: step_id of the outstanding reply, 0: none */
    /* A copy of each env's last delivered row is kept. If an episode cannot be recovered, it is
     * truncated with that observation. The row is copied just before its block is reused. */
    uint64_t *last_delivered;           /* per env: step_id of that row, 0: none */
    uint8_t *saved_rows;                /* laid out like a block, one row per env */
    const vecenv_column *saved_columns; /* the columns to copy */
    size_t num_saved_columns;           /* step_id and env_id among them */
    uint8_t *deferred_rows; /* laid out like a block, one row per env */
    uint32_t *deferred;     /* the envs with a row there, in the order in which these finished */
    uint32_t num_deferred;
    uint32_t *wanted; /* per env, zero between two calls: 1 + its index in a request for rows */
    uint64_t *seen;   /* per env: the last search of rows that has found one of it */
    uint64_t search;  /* number of the last search */
    vecenv_strays *strays;
    uint32_t num_info_keys; /* the parent's copy of the word in `control` */
    uint64_t known_tags;    /* the tags of the first 8 info cells of a row that was checked */
    uint32_t num_outstanding;
    uint64_t next_epoch;
    uint64_t chain[VECENV_CHAIN]; /* row_refs of row 0 of the open blocks, in order of use */
    uint64_t assigned; /* row_ref of row 0 of the ordered request's block */
    uint32_t assigned_rows; /* 0: there is no ordered request */
    uint64_t assigned_first; /* step_id of its first row; the others follow in order */
    int has_cancelled; /* 1: some of its commands may have been cancelled or superseded */
    uint32_t num_free;
    uint32_t pins[VECENV_MAX_BLOCKS];
    uint64_t epochs[VECENV_MAX_BLOCKS]; /* present or last epoch of each block */
    uint8_t free_blocks[VECENV_MAX_BLOCKS]; /* a stack: the last freed one is reused first */
    /* The blocks of the newest delivered batches, as a circular buffer. max_delivered is the
     * pool's `depth` - 1: `depth` also counts the batch that is being received. So a batch stays
     * pinned, and its views valid, until max_delivered later batches have been delivered. */
    uint32_t max_delivered, num_delivered, oldest_delivered;
    uint8_t delivered[VECENV_MAX_BLOCKS];
    vecenv_row_range *row_ranges;
    size_t num_row_ranges, max_row_ranges;
    uint64_t *stragglers; /* row_refs that were uncommitted at the delivery of their block */
    size_t num_stragglers, max_stragglers;
} vecenv_ring;

#define VECENV_ENOBLOCK (-3)

/* Return the largest number of row ranges, or of stragglers, that can exist at once. The arrays of
 * vecenv_ring need that many elements; deferred and wanted need one per env. */
size_t vecenv_ring_max_row_ranges(const vecenv_arena *arena);
size_t vecenv_ring_max_stragglers(const vecenv_arena *arena);

/* Set the initial state and open the first blocks. The caller has set arena, columns, row_ranges,
 * stragglers, saved_rows, saved_columns and their sizes, deferred_rows, deferred and strays, and
 * outstanding, last_delivered, wanted and seen (zeroed). max_delivered (see vecenv_ring) is at least 1. */
void vecenv_ring_init(vecenv_ring *ring, uint32_t max_delivered);

/* Reserve a block for an ordered request of num_rows rows and set ring->assigned. Returns
 * VECENV_OK, or VECENV_ENOBLOCK if no block is free because stragglers pin too many. */
int vecenv_ring_assign(vecenv_ring *ring, uint32_t num_rows);

/* Return whether a block is free, or would be if no row were awaited. A request that supersedes
 * all outstanding ones can then be assigned a block. Changes nothing. */
int vecenv_ring_can_assign(const vecenv_ring *ring);

/* Pin a block once more, until vecenv_ring_take_back. Returns 0, and does nothing, if the block is
 * free. */
int vecenv_ring_lend(vecenv_ring *ring, uint32_t block);
void vecenv_ring_take_back(vecenv_ring *ring, uint32_t block);

/* Return whether all rows of the ordered request that are still awaited have been committed. Reads
 * the state of every env, so call it only if some commands of the request were cancelled. */
int vecenv_ring_has_awaited(const vecenv_ring *ring);

/* Return whether all rows of the assigned block, which are committed, are those of the ordered request
 * in its order; note a stray word if one that is awaited is not. */
int vecenv_ring_is_assigned_intact(vecenv_ring *ring);

/* Move the rows of the assigned block to the row ranges; uncommitted rows become stragglers. */
void vecenv_ring_finish_assigned(vecenv_ring *ring);

/* Seal the open block and move its committed rows to the row ranges. Claimed rows that are not
 * committed within wait_ns become stragglers. Returns VECENV_OK, or VECENV_ENOBLOCK if no block is
 * free; then nothing was sealed. */
int vecenv_ring_seal(vecenv_ring *ring, int64_t wait_ns);

/* Take full blocks out of the chain. Call it before a request: all rows that can be claimed without
 * the parent then fit into the linked blocks. Else rows of superseded or cancelled commands could
 * fill them between two receives. Returns VECENV_OK, or VECENV_ENOBLOCK if stragglers and
 * undelivered rows pin too many blocks. */
int vecenv_ring_catch_up(vecenv_ring *ring);

/* Make row ranges of stragglers that have been committed. */
void vecenv_ring_collect_stragglers(vecenv_ring *ring);

/* Drop rows that no request waits for from deferred_rows and from all row ranges; the last row of a
 * range moves into the gap. Also drops rows with values that no worker writes, and second rows of
 * an env. Returns the number of rows left in both: at most one per env. */
uint32_t vecenv_ring_filter(vecenv_ring *ring);

/* Deliver the first `count` rows as one row range: deferred ones first, then those of the row
 * ranges. Copies them into a free block only if they are not adjacent in one block. Their envs have
 * no outstanding reply afterwards. Returns VECENV_OK, or VECENV_ENOBLOCK if no block is free for
 * the copies. */
int vecenv_ring_deliver(vecenv_ring *ring, uint32_t count, vecenv_row_range *range);

/* Copy the awaited rows of all row ranges to deferred_rows, and drop the row ranges. */
void vecenv_ring_defer(vecenv_ring *ring);

/* Return for how many of these envs a row can be delivered now: it is deferred, in a row range, or
 * a committed row of the ordered request. The envs are distinct and have outstanding replies. */
uint32_t vecenv_ring_count_ready(vecenv_ring *ring, const int64_t *env_ids, uint32_t count);

/* Deliver the rows of these envs as one row range, in this order, and defer the rows of others. A
 * row of the ordered request is taken out of that. vecenv_ring_count_ready has returned `count`.
 * Returns VECENV_OK, or VECENV_ENOBLOCK if no block is free for the copies; nothing was delivered
 * then. */
int vecenv_ring_take(vecenv_ring *ring, const int64_t *env_ids, uint32_t count,
                     vecenv_row_range *range);

/* Commit the uncommitted rows of a slot as void. Call it after its process has been reaped. */
void vecenv_ring_reap(vecenv_ring *ring, uint32_t slot);

/* Commit the uncommitted rows of a reaped slot as void, except those that are assigned to its
 * `count` commands from entry `head` of `queue` on: a successor will carry these commands out. */
void vecenv_ring_reap_claims(vecenv_ring *ring, uint32_t slot, const vecenv_command *queue,
                             uint32_t head, uint32_t count);

/* Find committed and awaited rows in all lists from which they will be delivered. Sets
 * ring->seen[env] to the new ring->search for each of their envs, and for the deferred ones. */
void vecenv_ring_find_replies(vecenv_ring *ring);

/* Note a stray word if the words that all slots share for their claims are not as the parent and
 * claimers leave them. Returns whether they are. */
int vecenv_ring_check_claims(const vecenv_ring *ring);

/* Set these words again, in new blocks, and make all unfinished claims void. Call it only while no
 * slot has a process. */
void vecenv_ring_reset_claims(vecenv_ring *ring);

/* Return whether a dead slot's command has been answered: its row is committed or was delivered.
 * The row may have been reused since. */
int vecenv_ring_is_answered(vecenv_ring *ring, const vecenv_command *command);

#endif
