#include "shm/ring.h"

#include <string.h>

#include "shm/claim.h"
#include "shm/park.h"

size_t
vecenv_ring_max_row_ranges(const vecenv_arena *arena)
{
    /* every straggler may split a block, and later becomes a row range of its own */
    return 2 * vecenv_ring_max_stragglers(arena) + arena->num_blocks + 1;
}

size_t
vecenv_ring_max_stragglers(const vecenv_arena *arena)
{
    /* one claimed row per slot, and all rows of blocks that were assigned */
    return (size_t)arena->num_slots + (size_t)arena->num_blocks * arena->rows;
}

static void
pin(vecenv_ring *ring, uint32_t block)
{
    ring->pins[block]++;
}

static void
unpin(vecenv_ring *ring, uint32_t block)
{
    if (--ring->pins[block] == 0) {
        ring->free_blocks[ring->num_free++] = (uint8_t)block;
    }
}

static void
copy_columns(const vecenv_column *columns, size_t num_columns, uint8_t *to, uint32_t to_row,
             const uint8_t *from, uint32_t from_row)
{
    for (size_t i = 0; i < num_columns; i++) {
        const vecenv_column *col = &columns[i];
        memcpy(to + col->offset + to_row * col->width,
               from + col->offset + from_row * col->width, col->width);
    }
}

static uint8_t *
block_at(const vecenv_arena *arena, uint32_t block)
{
    return arena->blocks + (size_t)block * arena->block_stride;
}

/* Copy the rows of a block that are the last delivered row of their env to saved_rows. */
static void
save_rows(const vecenv_ring *ring, uint32_t block)
{
    const vecenv_arena *arena = ring->arena;
    const uint64_t *step_ids = (const void *)column(arena, block, VECENV_H_STEP_ID);
    const int64_t *env_ids = (const void *)column(arena, block, VECENV_H_ENV_ID);
    for (uint32_t row = 0; row < arena->rows; row++) {
        uint64_t env_id = (uint64_t)env_ids[row]; /* the caller may have overwritten it */
        if (env_id < arena->num_envs && step_ids[row] != 0
            && ring->last_delivered[env_id] == step_ids[row]) {
            copy_columns(ring->saved_columns, ring->num_saved_columns, ring->saved_rows,
                         (uint32_t)env_id, block_at(arena, block), row);
        }
    }
}

/* Take a free block into use under a new epoch, with one pin. Returns the row_ref of its row 0, or
 * 0 if no block is free. */
static uint64_t
open_block(vecenv_ring *ring)
{
    if (ring->num_free == 0) {
        return 0;
    }
    uint32_t block = ring->free_blocks[--ring->num_free];
    save_rows(ring, block);
    ring->pins[block] = 1;
    ring->epochs[block] = ring->next_epoch++;
    return make_row_ref(ring->epochs[block], block, 0);
}

/* Open the first blocks of a chain. They are free. */
static void
open_chain(vecenv_ring *ring)
{
    for (int i = 0; i < VECENV_CHAIN; i++) {
        ring->chain[i] = open_block(ring);
        if (i > 0) {
            vecenv_link(ring->arena, ref_block(ring->chain[i - 1]), ring->chain[i]);
        }
    }
    store_release(&ring->arena->control->open, ring->chain[0]);
}

void
vecenv_ring_init(vecenv_ring *ring, uint32_t max_delivered)
{
    const vecenv_arena *arena = ring->arena;
    ring->max_delivered = max_delivered;
    ring->num_delivered = ring->oldest_delivered = 0;
    ring->num_outstanding = ring->assigned_rows = 0;
    ring->num_row_ranges = ring->num_stragglers = 0;
    ring->num_deferred = 0;
    ring->next_epoch = 1; /* new owner and cell words have epoch 0 */
    ring->num_free = 0;
    for (uint32_t block = arena->num_blocks; block > 0; block--) {
        ring->free_blocks[ring->num_free++] = (uint8_t)(block - 1);
    }
    open_chain(ring);
}

int
vecenv_ring_lend(vecenv_ring *ring, uint32_t block)
{
    if (ring->pins[block] == 0) {
        return 0;
    }
    pin(ring, block);
    return 1;
}

void
vecenv_ring_take_back(vecenv_ring *ring, uint32_t block)
{
    unpin(ring, block);
}

int
vecenv_ring_assign(vecenv_ring *ring, uint32_t num_rows)
{
    uint64_t row_ref = open_block(ring);
    if (row_ref == 0) {
        return VECENV_ENOBLOCK;
    }
    ring->assigned = row_ref;
    ring->assigned_rows = num_rows;
    ring->has_cancelled = 0;
    return VECENV_OK;
}

int
vecenv_ring_has_awaited(const vecenv_ring *ring)
{
    uint64_t row_ref = ring->assigned;
    for (uint32_t env_id = 0; env_id < ring->arena->num_envs; env_id++) {
        /* This is out of range if another step_id is outstanding, or none: below 0 wraps around. */
        uint64_t row = ring->outstanding[env_id] - ring->assigned_first;
        if (row < ring->assigned_rows
            && !vecenv_is_committed(ring->arena, ref_epoch(row_ref), ref_block(row_ref),
                                    (uint32_t)row)) {
            return 0;
        }
    }
    return 1;
}

int
vecenv_ring_can_assign(const vecenv_ring *ring)
{
    if (ring->num_free > 0) {
        return 1;
    }
    uint32_t pins[VECENV_MAX_BLOCKS] = {0}; /* these end when all row ranges are dropped */
    for (size_t i = 0; i < ring->num_row_ranges; i++) {
        pins[ring->row_ranges[i].block]++;
    }
    uint32_t block = ref_block(ring->assigned);
    if (ring->assigned_rows > 0
        && vecenv_all_committed(ring->arena, ref_epoch(ring->assigned), block,
                                ring->assigned_rows)) {
        pins[block]++;
    }
    for (block = 0; block < ring->arena->num_blocks; block++) {
        if (pins[block] > 0 && pins[block] == ring->pins[block]) {
            return 1;
        }
    }
    return 0;
}

static void
add_row_range(vecenv_ring *ring, uint32_t block, uint32_t start, uint32_t stop)
{
    if (start < stop) {
        ring->row_ranges[ring->num_row_ranges++] = (vecenv_row_range){block, start, stop};
        pin(ring, block);
    }
}

/* Return whether an owner word is that of a row which a slot has claimed in this epoch. */
static int
is_claimed(const vecenv_arena *arena, uint64_t owner, uint64_t epoch)
{
    uint64_t slot_mark = owner & 0xffffu;
    return owner == owner_of(epoch, (uint32_t)slot_mark) && slot_mark != 0
           && slot_mark <= arena->num_slots;
}

static uint64_t
owner_at(const vecenv_ring *ring, uint64_t row_ref)
{
    const vecenv_word *owners = word_column(ring->arena, ref_block(row_ref), VECENV_H_OWNER);
    return load_acquire(&owners[ref_row(row_ref)]);
}

/* Split rows 0 .. count - 1 of a block into committed row ranges and stragglers. Then remove the
 * pin that the block had while it was open or assigned. */
static void
retire(vecenv_ring *ring, uint64_t row_ref, uint32_t count)
{
    uint64_t epoch = ref_epoch(row_ref);
    uint32_t block = ref_block(row_ref);
    uint32_t start = 0;
    for (uint32_t row = 0; row < count; row++) {
        if (!vecenv_is_committed(ring->arena, epoch, block, row)) {
            add_row_range(ring, block, start, row);
            start = row + 1;
            ring->stragglers[ring->num_stragglers++] = make_row_ref(epoch, block, row);
            pin(ring, block);
            uint64_t owner = owner_at(ring, make_row_ref(epoch, block, row));
            if (!is_claimed(ring->arena, owner, epoch)) {
                vecenv_note_stray(ring->strays, VECENV_NO_SLOT, "the owner of a row", owner);
            }
        }
    }
    add_row_range(ring, block, start, count);
    unpin(ring, block);
}

void
vecenv_ring_finish_assigned(vecenv_ring *ring)
{
    uint32_t count = ring->assigned_rows;
    ring->assigned_rows = 0;
    retire(ring, ring->assigned, count);
}

/* Return whether the open word names a block of the chain; note it if it does not. */
static int
is_open_in_chain(const vecenv_ring *ring)
{
    uint64_t row_ref = load_acquire(&ring->arena->control->open);
    uint64_t start = row_ref - ref_row(row_ref);
    for (int i = 0; i < VECENV_CHAIN; i++) {
        if (start == ring->chain[i] && is_row_ref(ring->arena, row_ref)) {
            return 1;
        }
    }
    vecenv_note_stray(ring->strays, VECENV_NO_SLOT, "the open row", row_ref);
    return 0;
}

int
vecenv_ring_seal(vecenv_ring *ring, int64_t wait_ns)
{
    const vecenv_arena *arena = ring->arena;
    uint64_t successor = is_open_in_chain(ring) ? open_block(ring) : 0;
    if (successor == 0) {
        return VECENV_ENOBLOCK;
    }
    uint64_t row_ref = ring->chain[0];
    /* Link first, then seal: so two blocks beyond the open one are linked at every instant, and
     * claimers can fill them without the parent. */
    vecenv_link(arena, ref_block(ring->chain[VECENV_CHAIN - 1]), successor);
    uint32_t count = vecenv_seal(arena, ref_epoch(row_ref));
    memmove(ring->chain, ring->chain + 1, (VECENV_CHAIN - 1) * sizeof ring->chain[0]);
    ring->chain[VECENV_CHAIN - 1] = successor;
    if (!vecenv_all_committed(arena, ref_epoch(row_ref), ref_block(row_ref), count)) {
        int64_t end = vecenv_now_ns() + wait_ns;
        do {
            vecenv_yield();
        } while (!vecenv_all_committed(arena, ref_epoch(row_ref), ref_block(row_ref), count)
                 && vecenv_now_ns() < end);
    }
    retire(ring, row_ref, count);
    return VECENV_OK;
}

int
vecenv_ring_catch_up(vecenv_ring *ring)
{
    while (ref_epoch(load_acquire(&ring->arena->control->open))
           != ref_epoch(ring->chain[0])) {
        if (!is_open_in_chain(ring)) {
            return VECENV_OK; /* the next wait ends all workers, whose successors get new blocks */
        }
        vecenv_ring_filter(ring); /* may free a block, which vecenv_ring_seal needs */
        if (vecenv_ring_seal(ring, 0) != VECENV_OK) {
            return VECENV_ENOBLOCK;
        }
    }
    return VECENV_OK;
}

void
vecenv_ring_collect_stragglers(vecenv_ring *ring)
{
    size_t kept = 0;
    for (size_t i = 0; i < ring->num_stragglers; i++) {
        uint64_t row_ref = ring->stragglers[i];
        uint32_t block = ref_block(row_ref);
        uint32_t row = ref_row(row_ref);
        if (vecenv_is_committed(ring->arena, ref_epoch(row_ref), block, row)) {
            add_row_range(ring, block, row, row + 1);
            unpin(ring, block);
        } else {
            ring->stragglers[kept++] = row_ref;
        }
    }
    ring->num_stragglers = kept;
}

static void
copy_row(const vecenv_ring *ring, uint32_t to_block, uint32_t to_row, uint32_t from_block,
         uint32_t from_row)
{
    copy_columns(ring->columns, ring->num_columns, block_at(ring->arena, to_block), to_row,
                 block_at(ring->arena, from_block), from_row);
}

/* Return whether a tag is that of a value in an info cell, see py/info.h. */
static int
is_tag(uint8_t tag)
{
    static const uint8_t tags[128] = {
        [0x00] = 1, [0x18] = 1, [0x28] = 1, [0x31] = 1, [0x42] = 1, [0x44] = 1, [0x48] = 1,
        [0x51] = 1, [0x52] = 1, [0x54] = 1, [0x58] = 1, [0x61] = 1, [0x62] = 1, [0x64] = 1,
        [0x68] = 1, [0x71] = 1,
    };
    return tag < sizeof tags && tags[tag];
}

static int
has_tags(vecenv_ring *ring, int tags_word, uint32_t block, uint32_t row)
{
    const uint8_t *tags =
        column(ring->arena, block, tags_word) + (size_t)row * VECENV_INFO_KEYS;
    uint64_t first;
    memcpy(&first, tags, sizeof first);
    if (first == ring->known_tags && ring->num_info_keys <= sizeof first) {
        return 1; /* most rows have the same tags */
    }
    int are_tags = 1;
    for (uint32_t i = 0; i < VECENV_INFO_KEYS; i++) {
        are_tags &= i >= ring->num_info_keys || is_tag(tags[i]);
    }
    ring->known_tags = are_tags ? first : ring->known_tags;
    return are_tags;
}

/* Columns of one block, as they are used to check its rows. */
typedef struct {
    uint32_t block;
    const vecenv_word *step_ids, *env_ids;
    const vecenv_word32 *flags;
} checked_columns;

static checked_columns
columns_of(const vecenv_ring *ring, uint32_t block)
{
    const vecenv_arena *arena = ring->arena;
    return (checked_columns){block, word_column(arena, block, VECENV_H_STEP_ID),
                             word_column(arena, block, VECENV_H_ENV_ID),
                             (const void *)column(arena, block, VECENV_H_FLAGS)};
}

/* Note a value of a row that no worker writes. The slot that has claimed the row is to blame, or that
 * of an env beside it. Returns -1. */
__attribute__((cold, noinline)) static int64_t
note_stray_row(const vecenv_ring *ring, uint32_t block, uint32_t row, const char *word,
               uint64_t value)
{
    uint64_t owner = owner_at(ring, make_row_ref(0, block, row));
    int is_known = is_claimed(ring->arena, owner, ref_epoch(owner));
    uint32_t slot = is_known ? (uint32_t)(owner & 0xffffu) - 1 : VECENV_NO_SLOT;
    vecenv_note_stray(ring->strays, slot, word, value);
    return -1;
}

/* Return whether flags, which are not 0, and the tags that they announce are those of a row. */
static int
are_flags(vecenv_ring *ring, uint32_t flags, uint32_t block, uint32_t row)
{
    int has_final = (flags & (VECENV_F_FINAL | VECENV_F_FINAL_INFO)) != 0;
    return (flags & ~VECENV_F_OF_ROWS) == 0
           && (!has_final || ring->arena->header[VECENV_H_HAS_FINAL])
           && (!(flags & VECENV_F_INFO) || has_tags(ring, VECENV_H_INFO_TAGS, block, row))
           && (!(flags & VECENV_F_FINAL_INFO) || has_tags(ring, VECENV_H_FINAL_TAGS, block, row));
}

/* Return the env of a committed row, or -1 if no request waits for the row or a value is stray. */
static inline int64_t
awaited_env(vecenv_ring *ring, const checked_columns *columns, uint32_t row)
{
    uint64_t step_id = load_acquire(&columns->step_ids[row]);
    uint64_t env_id = load_acquire(&columns->env_ids[row]);
    if (step_id == 0) { /* its worker died before it wrote the row; then env_id is undefined */
        return -1;
    }
    if (env_id >= ring->arena->num_envs) {
        return note_stray_row(ring, columns->block, row, "the env_id of a row", env_id);
    }
    if (ring->outstanding[env_id] != step_id) {
        return -1;
    }
    uint32_t flags = load_acquire32(&columns->flags[row]);
    if (flags != 0 && !are_flags(ring, flags, columns->block, row)) {
        return note_stray_row(ring, columns->block, row, "the flags or info tags of a row", flags);
    }
    return (int64_t)env_id;
}

/* Return the same, or -1 if this search has found a row of that env already. */
static inline int64_t
next_awaited_env(vecenv_ring *ring, const checked_columns *columns, uint32_t row)
{
    int64_t env_id = awaited_env(ring, columns, row);
    if (env_id < 0 || ring->seen[env_id] == ring->search) {
        return -1;
    }
    ring->seen[env_id] = ring->search;
    return env_id;
}

int
vecenv_ring_is_assigned_intact(vecenv_ring *ring)
{
    uint32_t block = ref_block(ring->assigned);
    checked_columns columns = columns_of(ring, block);
    for (uint32_t row = 0; row < ring->assigned_rows; row++) {
        int64_t env_id = awaited_env(ring, &columns, row);
        if (env_id >= 0 && ring->outstanding[env_id] == ring->assigned_first + row) {
            continue;
        }
        if (!ring->has_cancelled || env_id >= 0) {
            note_stray_row(ring, block, row, "the step_id of a row", (uint64_t)env_id);
            return 0;
        }
    }
    return 1;
}

/* Return the step_ids of deferred_rows, one per env. */
static const uint64_t *
deferred_step_ids(const vecenv_ring *ring)
{
    return (const void *)(ring->deferred_rows + ring->arena->header[VECENV_H_STEP_ID]);
}

/* Begin a search for rows: drop those that no request waits for from deferred_rows. */
static void
filter_deferred(vecenv_ring *ring)
{
    uint32_t kept = 0;
    ring->search++;
    for (uint32_t i = 0; i < ring->num_deferred; i++) {
        uint32_t env_id = ring->deferred[i];
        if (deferred_step_ids(ring)[env_id] == ring->outstanding[env_id]) {
            ring->deferred[kept++] = env_id;
            ring->seen[env_id] = ring->search;
        }
    }
    ring->num_deferred = kept;
}

uint32_t
vecenv_ring_filter(vecenv_ring *ring)
{
    filter_deferred(ring);
    uint32_t total = ring->num_deferred;
    size_t kept = 0;
    for (size_t i = 0; i < ring->num_row_ranges; i++) {
        vecenv_row_range range = ring->row_ranges[i];
        checked_columns columns = columns_of(ring, range.block);
        for (uint32_t row = range.start; row < range.stop;) {
            if (next_awaited_env(ring, &columns, row) >= 0) {
                row++;
            } else if (row != --range.stop) {
                copy_row(ring, range.block, row, range.block, range.stop);
            }
        }
        total += range.stop - range.start;
        if (range.start < range.stop) {
            ring->row_ranges[kept++] = range;
        } else {
            unpin(ring, range.block);
        }
    }
    ring->num_row_ranges = kept;
    return total;
}

/* Pin a delivered block; if max_delivered are pinned already, unpin the oldest. */
static void
keep_delivered(vecenv_ring *ring, uint32_t block)
{
    if (ring->num_delivered == ring->max_delivered) {
        unpin(ring, ring->delivered[ring->oldest_delivered]);
        ring->oldest_delivered = (ring->oldest_delivered + 1) % ring->max_delivered;
        ring->num_delivered--;
    }
    uint32_t next = (ring->oldest_delivered + ring->num_delivered++) % ring->max_delivered;
    ring->delivered[next] = (uint8_t)block;
    pin(ring, block);
}

static void
drop_first_row_range(vecenv_ring *ring)
{
    uint32_t block = ring->row_ranges[0].block;
    memmove(ring->row_ranges, ring->row_ranges + 1,
            --ring->num_row_ranges * sizeof ring->row_ranges[0]);
    unpin(ring, block);
}

/* Note that the rows of a range are delivered. Their values were checked, but are read again. */
static void
mark_delivered(vecenv_ring *ring, const vecenv_row_range *range)
{
    checked_columns columns = columns_of(ring, range->block);
    for (uint32_t row = range->start; row < range->stop; row++) {
        uint64_t env_id = load_acquire(&columns.env_ids[row]);
        uint64_t step_id = load_acquire(&columns.step_ids[row]);
        if (env_id >= ring->arena->num_envs || step_id == 0
            || ring->outstanding[env_id] != step_id) {
            note_stray_row(ring, range->block, row, "the env_id of a row", env_id);
            continue;
        }
        ring->outstanding[env_id] = 0;
        ring->num_outstanding--;
        if (!(load_acquire32(&columns.flags[row]) & VECENV_F_ERROR)) {
            ring->last_delivered[env_id] = step_id; /* an error row has no observation of its own */
        }
    }
}

/* Deliver the first `count` rows of the first row range, where they are. */
static void
deliver_in_place(vecenv_ring *ring, uint32_t count, vecenv_row_range *range)
{
    vecenv_row_range *first = &ring->row_ranges[0];
    *range = (vecenv_row_range){first->block, first->start, first->start + count};
    keep_delivered(ring, range->block);
    first->start += count;
    if (first->start == first->stop) {
        drop_first_row_range(ring);
    }
}

static void
copy_deferred(const vecenv_ring *ring, uint32_t to_block, uint32_t to_row, uint32_t env_id)
{
    copy_columns(ring->columns, ring->num_columns, block_at(ring->arena, to_block), to_row,
                 ring->deferred_rows, env_id);
}

/* Copy the first `count` deferred rows, or all if there are fewer, to the start of a block. Returns
 * how many. */
static uint32_t
move_first_deferred(vecenv_ring *ring, uint32_t block, uint32_t count)
{
    uint32_t moved = ring->num_deferred < count ? ring->num_deferred : count;
    for (uint32_t row = 0; row < moved; row++) {
        copy_deferred(ring, block, row, ring->deferred[row]);
    }
    ring->num_deferred -= moved;
    memmove(ring->deferred, ring->deferred + moved, ring->num_deferred * sizeof *ring->deferred);
    return moved;
}

int
vecenv_ring_deliver(vecenv_ring *ring, uint32_t count, vecenv_row_range *range)
{
    vecenv_row_range *first = &ring->row_ranges[0];
    if (ring->num_deferred == 0 && first->stop - first->start >= count) {
        deliver_in_place(ring, count, range);
    } else {
        uint64_t row_ref = open_block(ring);
        if (row_ref == 0) {
            return VECENV_ENOBLOCK;
        }
        *range = (vecenv_row_range){ref_block(row_ref), 0, 0};
        range->stop = move_first_deferred(ring, range->block, count);
        while (range->stop < count) {
            first = &ring->row_ranges[0];
            copy_row(ring, range->block, range->stop++, first->block, first->start++);
            if (first->start == first->stop) {
                drop_first_row_range(ring);
            }
        }
        keep_delivered(ring, range->block);
        unpin(ring, range->block);
    }
    mark_delivered(ring, range);
    return VECENV_OK;
}

static void
defer_row(vecenv_ring *ring, uint32_t env_id, uint32_t block, uint32_t row)
{
    copy_columns(ring->columns, ring->num_columns, ring->deferred_rows, env_id,
                 block_at(ring->arena, block), row);
    ring->deferred[ring->num_deferred++] = env_id;
}

/* Return the row of an env in the block of the ordered request, if it is committed and awaited;
 * else a number that is not below ring->assigned_rows. */
static uint64_t
assigned_row_of(vecenv_ring *ring, int64_t env_id)
{
    /* This is out of range if another step_id is outstanding: below 0 wraps around. */
    uint64_t row = ring->outstanding[env_id] - ring->assigned_first;
    if (row < ring->assigned_rows) {
        uint32_t block = ref_block(ring->assigned);
        checked_columns columns = columns_of(ring, block);
        if (!vecenv_is_committed(ring->arena, ref_epoch(ring->assigned), block, (uint32_t)row)
            || awaited_env(ring, &columns, (uint32_t)row) != env_id) {
            return ring->assigned_rows;
        }
    }
    return row;
}

static void
set_wanted(vecenv_ring *ring, const int64_t *env_ids, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        ring->wanted[env_ids[i]] = i + 1;
    }
}

static void
clear_wanted(vecenv_ring *ring, const int64_t *env_ids, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        ring->wanted[env_ids[i]] = 0;
    }
}

/* Empty the row ranges. Rows of wanted envs are copied to their rows of `to_block`; the awaited
 * rows of other envs are deferred. */
static void
split_row_ranges(vecenv_ring *ring, uint32_t to_block)
{
    while (ring->num_row_ranges > 0) {
        vecenv_row_range range = ring->row_ranges[0];
        checked_columns columns = columns_of(ring, range.block);
        for (uint32_t row = range.start; row < range.stop; row++) {
            int64_t env_id = next_awaited_env(ring, &columns, row);
            if (env_id < 0) {
                continue;
            }
            uint32_t place = ring->wanted[env_id];
            if (place == 0) {
                defer_row(ring, (uint32_t)env_id, range.block, row);
            } else {
                copy_row(ring, to_block, place - 1, range.block, row);
            }
        }
        drop_first_row_range(ring);
    }
}

void
vecenv_ring_defer(vecenv_ring *ring)
{
    if (ring->num_row_ranges > 0) {
        filter_deferred(ring);
        split_row_ranges(ring, 0); /* no env is wanted: nothing is copied to block 0 */
    }
}

uint32_t
vecenv_ring_count_ready(vecenv_ring *ring, const int64_t *env_ids, uint32_t count)
{
    uint32_t ready = 0;
    filter_deferred(ring);
    set_wanted(ring, env_ids, count);
    for (uint32_t i = 0; i < ring->num_deferred; i++) {
        ready += ring->wanted[ring->deferred[i]] != 0;
    }
    for (size_t i = 0; i < ring->num_row_ranges; i++) {
        vecenv_row_range range = ring->row_ranges[i];
        checked_columns columns = columns_of(ring, range.block);
        for (uint32_t row = range.start; row < range.stop; row++) {
            int64_t env_id = next_awaited_env(ring, &columns, row);
            ready += env_id >= 0 && ring->wanted[env_id] != 0;
        }
    }
    for (uint32_t i = 0; i < count; i++) {
        ready += ring->seen[env_ids[i]] != ring->search
                 && assigned_row_of(ring, env_ids[i]) < ring->assigned_rows;
    }
    clear_wanted(ring, env_ids, count);
    return ready;
}

/* Return whether the first row range begins with the rows of these envs, in this order. */
static int
is_in_place(vecenv_ring *ring, const int64_t *env_ids, uint32_t count)
{
    const vecenv_row_range *first = &ring->row_ranges[0];
    if (ring->num_row_ranges == 0 || first->stop - first->start < count) {
        return 0;
    }
    checked_columns columns = columns_of(ring, first->block);
    for (uint32_t i = 0; i < count; i++) {
        if (awaited_env(ring, &columns, first->start + i) != env_ids[i]) {
            return 0;
        }
    }
    return 1;
}

/* Copy the rows of these envs, which are wanted, to the start of a block, and defer all others. */
static void
collect_wanted(vecenv_ring *ring, const int64_t *env_ids, uint32_t count, uint32_t block)
{
    uint32_t kept = 0;
    filter_deferred(ring);
    for (uint32_t i = 0; i < ring->num_deferred; i++) {
        uint32_t env_id = ring->deferred[i];
        if (ring->wanted[env_id] == 0) {
            ring->deferred[kept++] = env_id;
        } else {
            copy_deferred(ring, block, ring->wanted[env_id] - 1, env_id);
        }
    }
    ring->num_deferred = kept;
    split_row_ranges(ring, block);
    for (uint32_t i = 0; i < count; i++) {
        uint64_t row = assigned_row_of(ring, env_ids[i]);
        if (row < ring->assigned_rows) {
            copy_row(ring, block, i, ref_block(ring->assigned), (uint32_t)row);
            ring->has_cancelled = 1; /* the other rows of that request do not wait for this one */
        }
    }
}

int
vecenv_ring_take(vecenv_ring *ring, const int64_t *env_ids, uint32_t count,
                 vecenv_row_range *range)
{
    if (is_in_place(ring, env_ids, count)) {
        deliver_in_place(ring, count, range);
    } else {
        uint64_t row_ref = open_block(ring);
        if (row_ref == 0) {
            vecenv_ring_defer(ring); /* may free a block */
            row_ref = open_block(ring);
        }
        if (row_ref == 0) {
            return VECENV_ENOBLOCK;
        }
        *range = (vecenv_row_range){ref_block(row_ref), 0, count};
        set_wanted(ring, env_ids, count);
        collect_wanted(ring, env_ids, count, range->block);
        clear_wanted(ring, env_ids, count);
        keep_delivered(ring, range->block);
        unpin(ring, range->block);
    }
    mark_delivered(ring, range);
    vecenv_ring_defer(ring);
    return VECENV_OK;
}

/* Commands of a dead slot that its successor will carry out. */
typedef struct {
    const vecenv_command *queue;
    uint32_t head, count;
} pending_commands;

static int
is_pending(const vecenv_arena *arena, pending_commands pending, uint64_t row_ref)
{
    for (uint32_t i = 0; i < pending.count; i++) {
        uint32_t at = (pending.head + i) & (arena->queue_size - 1);
        if (pending.queue[at].row_ref == row_ref) {
            return 1;
        }
    }
    return 0;
}

static void
commit_as_void(const vecenv_arena *arena, uint64_t row_ref)
{
    uint32_t block = ref_block(row_ref), row = ref_row(row_ref);
    ((uint64_t *)(void *)column(arena, block, VECENV_H_STEP_ID))[row] = 0;
    ((int64_t *)(void *)column(arena, block, VECENV_H_ENV_ID))[row] = 0;
    vecenv_commit(arena, row_ref);
}

/* Commit the uncommitted rows that `slot` owns among the first `limit` of a block as void. */
static void
reap_block(const vecenv_ring *ring, uint64_t row_ref, uint32_t limit, uint32_t slot,
           pending_commands pending)
{
    const vecenv_arena *arena = ring->arena;
    uint64_t epoch = ref_epoch(row_ref);
    uint32_t block = ref_block(row_ref);
    uint64_t mark = owner_of(epoch, slot + 1);
    for (uint32_t row = 0; row < limit; row++) {
        if (load_acquire(&word_column(arena, block, VECENV_H_OWNER)[row]) == mark
            && !vecenv_is_committed(arena, epoch, block, row)
            && !is_pending(arena, pending, make_row_ref(epoch, block, row))) {
            commit_as_void(arena, make_row_ref(epoch, block, row));
        }
    }
}

void
vecenv_ring_reap_claims(vecenv_ring *ring, uint32_t slot, const vecenv_command *queue,
                        uint32_t head, uint32_t count)
{
    pending_commands pending = {queue, head, count};
    for (int i = 0; i < VECENV_CHAIN; i++) {
        reap_block(ring, ring->chain[i], ring->arena->rows, slot, pending);
    }
    if (ring->assigned_rows > 0) {
        reap_block(ring, ring->assigned, ring->assigned_rows, slot, pending);
    }
    for (size_t i = 0; i < ring->num_stragglers; i++) {
        uint64_t row_ref = ring->stragglers[i];
        reap_block(ring, row_ref, ref_row(row_ref) + 1, slot, pending);
    }
}

void
vecenv_ring_reap(vecenv_ring *ring, uint32_t slot)
{
    vecenv_ring_reap_claims(ring, slot, NULL, 0, 0);
}

static void
find_in_block(vecenv_ring *ring, uint64_t row_ref, uint32_t start, uint32_t stop)
{
    uint32_t block = ref_block(row_ref);
    checked_columns columns = columns_of(ring, block);
    for (uint32_t row = start; row < stop; row++) {
        if (vecenv_is_committed(ring->arena, ref_epoch(row_ref), block, row)) {
            next_awaited_env(ring, &columns, row);
        }
    }
}

void
vecenv_ring_find_replies(vecenv_ring *ring)
{
    filter_deferred(ring);
    for (size_t i = 0; i < ring->num_row_ranges; i++) {
        vecenv_row_range range = ring->row_ranges[i];
        checked_columns columns = columns_of(ring, range.block);
        for (uint32_t row = range.start; row < range.stop; row++) {
            next_awaited_env(ring, &columns, row);
        }
    }
    for (int i = 0; i < VECENV_CHAIN; i++) {
        find_in_block(ring, ring->chain[i], 0, ring->arena->rows);
    }
    for (size_t i = 0; i < ring->num_stragglers; i++) {
        uint32_t row = ref_row(ring->stragglers[i]);
        find_in_block(ring, ring->stragglers[i], row, row + 1);
    }
    for (uint32_t env_id = 0; env_id < ring->arena->num_envs && ring->assigned_rows > 0; env_id++) {
        if (ring->outstanding[env_id] - ring->assigned_first < ring->assigned_rows) {
            int is_there = assigned_row_of(ring, env_id) < ring->assigned_rows;
            ring->seen[env_id] = is_there ? ring->search : 0; /* no other row will do */
        }
    }
}

/* Find a word that shows that not all rows before `open_row` of a block are claimed, or that a later
 * one is committed. */
static void
check_open_block(const vecenv_ring *ring, uint64_t start, uint32_t open_row, vecenv_strays *found)
{
    const vecenv_arena *arena = ring->arena;
    uint64_t epoch = ref_epoch(start);
    for (uint32_t row = 0; row < arena->rows; row++) {
        uint64_t owner = owner_at(ring, start + row);
        if (row < open_row && !is_claimed(arena, owner, epoch)) {
            vecenv_note_stray(found, VECENV_NO_SLOT, "the owner of a row", owner);
        }
        if (row >= open_row && vecenv_is_committed(arena, epoch, ref_block(start), row)) {
            vecenv_note_stray(found, VECENV_NO_SLOT, "the open row", start + open_row);
        }
    }
}

int
vecenv_ring_check_claims(const vecenv_ring *ring)
{
    const vecenv_arena *arena = ring->arena;
    vecenv_strays found = {0};
    uint64_t open = load_acquire(&arena->control->open);
    int is_before = 1; /* blocks before the open one are full */
    for (int i = 0; i < VECENV_CHAIN; i++) {
        uint64_t start = ring->chain[i];
        int is_open = open - ref_row(open) == start;
        uint32_t full = is_before ? arena->rows : 0;
        check_open_block(ring, start, is_open ? ref_row(open) : full, &found);
        is_before = is_before && !is_open;
        uint64_t link = load_acquire(word_column(arena, ref_block(start), VECENV_H_LINK));
        if (i + 1 < VECENV_CHAIN && link != ring->chain[i + 1]) {
            vecenv_note_stray(&found, VECENV_NO_SLOT, "the link of a block", link);
        }
    }
    if (!is_open_in_chain(ring)) {
        return 0;
    }
    if (found.count > 0 && load_acquire(&arena->control->open) == open) { /* no claim since */
        vecenv_note_stray(ring->strays, VECENV_NO_SLOT, found.words[0].word, found.words[0].value);
        return 0;
    }
    return 1;
}

/* Clear owner and cell words of epochs to come: with these, a row could neither be claimed nor
 * awaited. */
static void
clear_later_epochs(const vecenv_ring *ring)
{
    for (uint32_t block = 0; block < ring->arena->num_blocks; block++) {
        vecenv_word *owners = word_column(ring->arena, block, VECENV_H_OWNER);
        vecenv_word *cells = word_column(ring->arena, block, VECENV_H_CELL);
        for (uint32_t row = 0; row < ring->arena->rows; row++) {
            if (ref_epoch(load_acquire(&owners[row])) >= ring->next_epoch) {
                store_release(&owners[row], 0);
            }
            if (load_acquire(&cells[row]) >= ring->next_epoch) {
                store_release(&cells[row], 0);
            }
        }
    }
}

void
vecenv_ring_reset_claims(vecenv_ring *ring)
{
    const vecenv_arena *arena = ring->arena;
    clear_later_epochs(ring);
    for (size_t i = 0; i < ring->num_stragglers; i++) {
        uint64_t row_ref = ring->stragglers[i];
        if (!is_claimed(arena, owner_at(ring, row_ref), ref_epoch(row_ref))) {
            commit_as_void(arena, row_ref);
        }
    }
    for (int i = 0; i < VECENV_CHAIN; i++) {
        uint64_t epoch = ref_epoch(ring->chain[i]);
        uint32_t block = ref_block(ring->chain[i]);
        for (uint32_t row = 0; row < arena->rows; row++) {
            if (!vecenv_is_committed(arena, epoch, block, row)) {
                commit_as_void(arena, make_row_ref(epoch, block, row));
            }
        }
        retire(ring, ring->chain[i], arena->rows);
    }
    vecenv_ring_defer(ring); /* frees at least these blocks */
    open_chain(ring);
}

int
vecenv_ring_is_answered(vecenv_ring *ring, const vecenv_command *command)
{
    uint64_t row_ref = command->row_ref;
    if (ring->outstanding[command->env_id] == command->step_id) {
        vecenv_ring_find_replies(ring);
        return ring->seen[command->env_id] == ring->search;
    }
    if (row_ref == VECENV_CLAIM) {
        return 1; /* delivered, superseded or cancelled */
    }
    /* A row that was committed may have been delivered and reused since. Cells only move to later
     * epochs, which never repeat, so a later epoch also means "committed". */
    const vecenv_word *cells = word_column(ring->arena, ref_block(row_ref), VECENV_H_CELL);
    return load_acquire(&cells[ref_row(row_ref)]) >= ref_epoch(row_ref);
}
