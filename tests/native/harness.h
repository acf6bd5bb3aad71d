/* Shared by the C tests: an arena in private memory, the parent's ring, and CHECK. */
#ifndef VECENV_TESTS_HARNESS_H
#define VECENV_TESTS_HARNESS_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shm/claim.h"
#include "shm/layout.h"
#include "shm/byte_ring.h"
#include "shm/park.h"
#include "shm/ring.h"

#define CHECK(condition)                                                              \
    do {                                                                              \
        if (!(condition)) {                                                           \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);           \
            exit(1);                                                                  \
        }                                                                             \
    } while (0)

/* A timeout that only a lost wake-up reaches, even on a slow machine. */
#define LOST_NS INT64_C(20000000000)
#define LOST_MS 20000

#define PAGE 4096u

typedef struct {
    uint32_t num_envs, num_slots, num_blocks, rows, queue_size;
    size_t byte_ring_nbytes;
} arena_sizes;

static size_t
place_next(int64_t *header, int word, size_t at, size_t nbytes)
{
    at = (at + VECENV_LINE - 1) / VECENV_LINE * VECENV_LINE;
    header[word] = (int64_t)at;
    return at + nbytes;
}

/* Set the offsets of the columns of one block. Returns their size in bytes. */
static size_t
place_columns(int64_t *header, size_t rows)
{
    static const struct {
        int word;
        size_t width;
    } widths[] = {
        {VECENV_H_OWNER, 8}, {VECENV_H_CELL, 8}, {VECENV_H_STEP_ID, 8},
        {VECENV_H_ENV_ID, 8}, {VECENV_H_REWARD, 8}, {VECENV_H_FLAGS, 4},
    };
    header[VECENV_H_LINK] = 0;
    size_t at = VECENV_LINE;
    for (size_t i = 0; i < sizeof widths / sizeof widths[0]; i++) {
        at = place_next(header, widths[i].word, at, rows * widths[i].width);
    }
    return at;
}

/* Make a zeroed arena with its counters; free it with free(arena.base). */
static vecenv_arena
make_arena(arena_sizes sizes)
{
    int64_t header[VECENV_H_WORDS] = {
        [VECENV_H_MAGIC] = VECENV_MAGIC,
        [VECENV_H_ABI] = VECENV_ABI,
        [VECENV_H_NUM_ENVS] = sizes.num_envs,
        [VECENV_H_NUM_SLOTS] = sizes.num_slots,
        [VECENV_H_NUM_BLOCKS] = sizes.num_blocks,
        [VECENV_H_ROWS] = sizes.rows,
        [VECENV_H_QUEUE_SIZE] = sizes.queue_size,
        [VECENV_H_BYTE_RING_NBYTES] = (int64_t)sizes.byte_ring_nbytes,
        [VECENV_H_REWARD_SIZE] = 1,
    };
    size_t slots = sizes.num_slots;
    size_t at = sizeof header;
    at = place_next(header, VECENV_H_CONTROL, at, sizeof(vecenv_control));
    at = place_next(header, VECENV_H_INFO_KEYS, at, VECENV_INFO_KEYS * VECENV_INFO_KEY_NBYTES);
    at = place_next(header, VECENV_H_QUEUES, at,
                    slots * sizes.queue_size * sizeof(vecenv_command));
    at = place_next(header, VECENV_H_NEWEST, at, sizes.num_envs * sizeof(vecenv_word));
    at = place_next(header, VECENV_H_BYTE_RINGS_UP, at, slots * sizes.byte_ring_nbytes);
    at = place_next(header, VECENV_H_BYTE_RINGS_DOWN, at, slots * sizes.byte_ring_nbytes);
    header[VECENV_H_BLOCK_STRIDE] = (int64_t)((place_columns(header, sizes.rows) + PAGE - 1)
                                              / PAGE * PAGE);
    header[VECENV_H_BLOCKS] = (int64_t)((at + PAGE - 1) / PAGE * PAGE);
    size_t total = (size_t)header[VECENV_H_BLOCKS]
                   + sizes.num_blocks * (size_t)header[VECENV_H_BLOCK_STRIDE];
    header[VECENV_H_TOTAL_NBYTES] = (int64_t)total;
    int64_t counters[VECENV_K_WORDS] = {
        [VECENV_K_MAGIC] = VECENV_COUNTERS_MAGIC,
        [VECENV_K_VERSION] = VECENV_COUNTERS_VERSION,
        [VECENV_K_NUM_ENVS] = sizes.num_envs,
        [VECENV_K_NUM_SLOTS] = sizes.num_slots,
    };
    size_t end = sizeof counters;
    end = place_next(counters, VECENV_K_SLOTS, end, slots * sizeof(vecenv_slot_lines));
    end = place_next(counters, VECENV_K_TIMINGS, end, sizes.num_envs * sizeof(vecenv_timings));
    counters[VECENV_K_TOTAL_NBYTES] = (int64_t)end;
    total = (total + PAGE - 1) / PAGE * PAGE; /* the counters stand behind the arena */
    uint8_t *base = aligned_alloc(PAGE, total + (end + PAGE - 1) / PAGE * PAGE);
    CHECK(base != NULL);
    memset(base, 0, total + end);
    memcpy(base, header, sizeof header);
    memcpy(base + total, counters, sizeof counters);
    vecenv_arena arena;
    CHECK(vecenv_arena_open(&arena, base, total) == VECENV_OK);
    CHECK(vecenv_counters_open(&arena, base + total, end) == VECENV_OK);
    return arena;
}

static inline uint64_t *
step_ids_of(const vecenv_arena *arena, uint32_t block)
{
    return (uint64_t *)(void *)column(arena, block, VECENV_H_STEP_ID);
}

static inline int64_t *
env_ids_of(const vecenv_arena *arena, uint32_t block)
{
    return (int64_t *)(void *)column(arena, block, VECENV_H_ENV_ID);
}

static inline double *
rewards_of(const vecenv_arena *arena, uint32_t block)
{
    return (double *)(void *)column(arena, block, VECENV_H_REWARD);
}

static inline uint32_t *
flags_of(const vecenv_arena *arena, uint32_t block)
{
    return (uint32_t *)(void *)column(arena, block, VECENV_H_FLAGS);
}

/* Write a row as a worker does between claim and commit. The reward depends on step_id and env_id,
 * so is_intact can check the row. */
static inline void
write_row(const vecenv_arena *arena, uint64_t row_ref, uint64_t step_id, int64_t env_id)
{
    uint32_t block = ref_block(row_ref);
    uint32_t row = ref_row(row_ref);
    step_ids_of(arena, block)[row] = step_id;
    env_ids_of(arena, block)[row] = env_id;
    rewards_of(arena, block)[row] = (double)step_id * 1000.0 + (double)env_id;
}

static inline int
is_intact(const vecenv_arena *arena, uint32_t block, uint32_t row)
{
    double expected = (double)step_ids_of(arena, block)[row] * 1000.0
                      + (double)env_ids_of(arena, block)[row];
    return !(rewards_of(arena, block)[row] < expected)
           && !(rewards_of(arena, block)[row] > expected);
}

#define NUM_COLUMNS 4

/* The parent's state of an arena's ring, with all its arrays. */
typedef struct {
    vecenv_ring ring;
    vecenv_column columns[NUM_COLUMNS];
    vecenv_strays strays;
} test_ring;

static inline test_ring *
make_test_ring(const vecenv_arena *arena, uint32_t max_delivered)
{
    test_ring *made = calloc(1, sizeof *made);
    CHECK(made != NULL);
    static const int words[NUM_COLUMNS] = {VECENV_H_STEP_ID, VECENV_H_ENV_ID,
                                           VECENV_H_REWARD, VECENV_H_FLAGS};
    for (int i = 0; i < NUM_COLUMNS; i++) {
        made->columns[i] = (vecenv_column){(size_t)arena->header[words[i]], i < 3 ? 8 : 4};
    }
    vecenv_ring *ring = &made->ring;
    ring->arena = arena;
    ring->columns = made->columns;
    ring->num_columns = NUM_COLUMNS;
    ring->outstanding = calloc(arena->num_envs, sizeof *ring->outstanding);
    ring->last_delivered = calloc(arena->num_envs, sizeof *ring->last_delivered);
    ring->saved_rows = calloc(1, arena->block_stride);
    ring->saved_columns = made->columns;
    ring->num_saved_columns = NUM_COLUMNS;
    ring->max_row_ranges = vecenv_ring_max_row_ranges(arena);
    ring->max_stragglers = vecenv_ring_max_stragglers(arena);
    ring->row_ranges = calloc(ring->max_row_ranges, sizeof *ring->row_ranges);
    ring->stragglers = calloc(ring->max_stragglers, sizeof *ring->stragglers);
    CHECK(ring->outstanding != NULL && ring->last_delivered != NULL && ring->saved_rows != NULL);
    CHECK(ring->row_ranges != NULL && ring->stragglers != NULL);
    ring->deferred_rows = calloc(1, arena->block_stride);
    ring->deferred = calloc(arena->num_envs, sizeof *ring->deferred);
    ring->wanted = calloc(arena->num_envs, sizeof *ring->wanted);
    ring->seen = calloc(arena->num_envs, sizeof *ring->seen);
    ring->strays = &made->strays;
    CHECK(ring->seen != NULL && ring->deferred_rows != NULL && ring->deferred != NULL && ring->wanted != NULL);
    vecenv_ring_init(ring, max_delivered);
    return made;
}

static inline void
free_test_ring(test_ring *made)
{
    free(made->ring.outstanding);
    free(made->ring.last_delivered);
    free(made->ring.saved_rows);
    free(made->ring.row_ranges);
    free(made->ring.stragglers);
    free(made->ring.deferred_rows);
    free(made->ring.deferred);
    free(made->ring.wanted);
    free(made->ring.seen);
    free(made);
}

static inline void
set_outstanding(vecenv_ring *ring, int64_t env_id, uint64_t step_id)
{
    ring->num_outstanding += ring->outstanding[env_id] == 0;
    ring->outstanding[env_id] = step_id;
}

#endif
