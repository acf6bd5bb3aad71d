#include "shm/layout.h"

int
vecenv_arena_open(vecenv_arena *arena, void *base, size_t nbytes)
{
    const int64_t *header = base;
    if (nbytes < VECENV_H_WORDS * sizeof(int64_t)
        || header[VECENV_H_MAGIC] != VECENV_MAGIC
        || header[VECENV_H_ABI] != VECENV_ABI) {
        return VECENV_EFORMAT;
    }
    if (header[VECENV_H_TOTAL_NBYTES] < 0
        || (uint64_t)header[VECENV_H_TOTAL_NBYTES] > nbytes) {
        return VECENV_ESIZE;
    }
    if (header[VECENV_H_ROWS] > VECENV_MAX_ROWS || header[VECENV_H_NUM_BLOCKS] > VECENV_MAX_BLOCKS
        || header[VECENV_H_NUM_SLOTS] > VECENV_MAX_SLOTS) {
        return VECENV_EFORMAT; /* more than a row_ref has bits for */
    }
    uint8_t *start = base;
    arena->base = start;
    memcpy(arena->header, header, sizeof arena->header);
    header = arena->header;
    arena->num_envs = (uint32_t)header[VECENV_H_NUM_ENVS];
    arena->num_slots = (uint32_t)header[VECENV_H_NUM_SLOTS];
    arena->num_blocks = (uint32_t)header[VECENV_H_NUM_BLOCKS];
    arena->rows = (uint32_t)header[VECENV_H_ROWS];
    arena->queue_size = (uint32_t)header[VECENV_H_QUEUE_SIZE];
    arena->reward_size = (size_t)header[VECENV_H_REWARD_SIZE];
    arena->control = (vecenv_control *)(void *)(start + header[VECENV_H_CONTROL]);
    arena->info_keys = (char *)start + header[VECENV_H_INFO_KEYS];
    arena->queues = (vecenv_command *)(void *)(start + header[VECENV_H_QUEUES]);
    arena->newest = (vecenv_word *)(void *)(start + header[VECENV_H_NEWEST]);
    arena->byte_rings_up = start + header[VECENV_H_BYTE_RINGS_UP];
    arena->byte_rings_down = start + header[VECENV_H_BYTE_RINGS_DOWN];
    arena->byte_ring_nbytes = (size_t)header[VECENV_H_BYTE_RING_NBYTES];
    arena->records = (vecenv_record *)(void *)(start + header[VECENV_H_RECORDS]);
    arena->slots = NULL;
    arena->timings = NULL;
    arena->blocks = start + header[VECENV_H_BLOCKS];
    arena->block_stride = (size_t)header[VECENV_H_BLOCK_STRIDE];
    return VECENV_OK;
}

int
vecenv_counters_open(vecenv_arena *arena, void *base, size_t nbytes)
{
    const int64_t *header = base;
    if (nbytes < VECENV_K_WORDS * sizeof(int64_t)
        || header[VECENV_K_MAGIC] != VECENV_COUNTERS_MAGIC
        || header[VECENV_K_VERSION] != VECENV_COUNTERS_VERSION
        || header[VECENV_K_NUM_ENVS] != arena->num_envs
        || header[VECENV_K_NUM_SLOTS] != arena->num_slots) {
        return VECENV_EFORMAT;
    }
    if (header[VECENV_K_TOTAL_NBYTES] < 0
        || (uint64_t)header[VECENV_K_TOTAL_NBYTES] > nbytes) {
        return VECENV_ESIZE;
    }
    uint8_t *start = base;
    arena->counters_base = start;
    memcpy(arena->counters_header, header, sizeof arena->counters_header);
    header = arena->counters_header;
    arena->slots = (vecenv_slot_lines *)(void *)(start + header[VECENV_K_SLOTS]);
    if (header[VECENV_K_TIMINGS] != 0) {
        arena->timings = (vecenv_timings *)(void *)(start + header[VECENV_K_TIMINGS]);
    }
    return VECENV_OK;
}

void
vecenv_restore_headers(const vecenv_arena *arena)
{
    memcpy(arena->base, arena->header, sizeof arena->header);
    int64_t *counters = (void *)arena->counters_base;
    int64_t num_replaced = counters[VECENV_K_NUM_REPLACED]; /* written in Python */
    memcpy(counters, arena->counters_header, sizeof arena->counters_header);
    counters[VECENV_K_NUM_REPLACED] = num_replaced;
}
