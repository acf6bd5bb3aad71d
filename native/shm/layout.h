/* The arena: what lies where in the one shared segment of a pool.
 *
 *   byte 0      header: int64 words, written by the parent before any worker maps it
 *   control     4 lines of 64 bytes: open word | parent's wait | stop | number of info keys
 *   info keys   the names of info cells, 64 bytes each
 *   slots       3 lines each: parent writes | worker writes | who waits
 *   queues      per slot, `queue_size` commands of 32 bytes
 *   newest      per env, the newest step_id sent to it; 0: that was cancelled
 *   mail up     per slot, a byte ring worker -> parent
 *   mail down   per slot, a byte ring parent -> worker
 *   records     per env, two lines about the answers it gave last
 *   actions     one column per action leaf, one row per env
 *   blocks      num_blocks times: one column per quantity, `rows` rows each
 *
 * vecenv/core/layout/arena.py computes the offsets and writes the header; a test compares
 * the word numbers and struct sizes on both sides. */
#ifndef VECENV_LAYOUT_H
#define VECENV_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#include "shm/atomics.h"

#define VECENV_MAGIC INT64_C(0x766e6365766e6501)
#define VECENV_ABI 7
#define VECENV_LINE 64
#define VECENV_INFO_KEYS 32      /* cells for infos: numbers, elements of arrays */
#define VECENV_INFO_KEY_NBYTES 64 /* UTF-8, zero padded, last byte 0 */

/* Indices of the header's int64 words. */
enum {
    VECENV_H_MAGIC,
    VECENV_H_ABI,
    VECENV_H_TOTAL_NBYTES,
    VECENV_H_NUM_ENVS,
    VECENV_H_NUM_SLOTS,
    VECENV_H_NUM_BLOCKS,
    VECENV_H_ROWS,
    VECENV_H_QUEUE_SIZE,
    VECENV_H_BYTE_RING_NBYTES,
    VECENV_H_REWARD_SIZE,
    VECENV_H_HAS_FINAL,
    VECENV_H_CONTROL,
    VECENV_H_INFO_KEYS,
    VECENV_H_SLOTS,
    VECENV_H_QUEUES,
    VECENV_H_NEWEST,
    VECENV_H_BYTE_RINGS_UP,
    VECENV_H_BYTE_RINGS_DOWN,
    VECENV_H_RECORDS,
    VECENV_H_BLOCKS,
    VECENV_H_BLOCK_STRIDE,
    /* columns, as offsets inside a block */
    VECENV_H_LINK,
    VECENV_H_OWNER,
    VECENV_H_CELL,
    VECENV_H_STEP_ID,
    VECENV_H_ENV_ID,
    VECENV_H_REWARD,
    VECENV_H_TERMINATED,
    VECENV_H_TRUNCATED,
    VECENV_H_FLAGS,
    VECENV_H_EPISODE_COUNTERS,
    VECENV_H_INFO_TAGS,
    VECENV_H_INFO_VALUES,
    VECENV_H_SECONDS,
    VECENV_H_FINAL_TAGS, /* as INFO_TAGS; these two are there with VECENV_H_HAS_FINAL only */
    VECENV_H_FINAL_VALUES,
    VECENV_H_WORDS
};

/* Line 0: `open` is a place word (below), moved on by claimers and by the parent.
 * Line 1: `waiting` is armed by the parent before it sleeps (VECENV_WAIT_*) and taken
 *         (swapped to 0) by the one worker that wakes it; `wait_*` say for which rows.
 * Line 2: `stop`, parent writes; line 3: `num_info_keys`, parent writes. */
typedef struct {
    vecenv_word open;
    uint8_t pad0[VECENV_LINE - 8];
    vecenv_word32 waiting;
    uint32_t pad1a;
    vecenv_word wait_row_ref; /* epoch and block whose rows are awaited */
    vecenv_word32 wait_count;
    uint32_t pad1b;
    vecenv_word wait_began_ns; /* monotonic clock when the parent began to sleep for them */
    vecenv_word32 wait_core;  /* where it ran then */
    uint8_t pad1[VECENV_LINE - 36];
    vecenv_word32 stop;
    uint8_t pad2[VECENV_LINE - 4];
    vecenv_word32 num_info_keys;
    uint8_t pad3[VECENV_LINE - 4];
} vecenv_control;

/* A slot is a thread of control in a worker. `tail` is queue end and doorbell in one word.
 * `sleeping` is set by the worker and read by the parent after a full fence. */
typedef struct {
    /* parent writes */
    vecenv_word32 tail;
    vecenv_word32 num_superseded; /* commands of this slot that were superseded or cancelled */
    vecenv_word up_read;      /* bytes of mail up taken by the parent */
    vecenv_word down_written; /* bytes of mail down written by the parent */
    vecenv_word published_ns; /* monotonic clock when tail was last moved */
    vecenv_word32 published_core; /* where the parent ran then */
    uint8_t pad0[VECENV_LINE - 36];
    /* worker writes */
    vecenv_word32 head;
    vecenv_word32 current_op;  /* operation under way, VECENV_OP_NONE between them */
    vecenv_word32 current_env; /* its env */
    vecenv_word32 blocked;     /* 1 while mail up is full: no deadline counts */
    vecenv_word current_step_id;
    vecenv_word started_ns;    /* monotonic clock at the start of the operation */
    vecenv_word up_written;
    vecenv_word down_read;
    vecenv_word num_steps;     /* env steps made, resets not counted */
    uint8_t pad1[VECENV_LINE - 56];
    /* worker writes before it parks */
    vecenv_word32 sleeping; /* 0: awake; else one more than its core */
    uint8_t pad2[VECENV_LINE - 4];
} vecenv_slot_lines;

/* One command in a slot's queue. */
typedef struct {
    uint64_t step_id;
    uint64_t row_ref;  /* assigned row, or VECENV_CLAIM */
    int64_t argument;  /* reset: the seed when VECENV_C_SEED is set */
    uint32_t env_id;
    uint16_t op;
    uint16_t flags;    /* VECENV_C_* and the form of the action */
} vecenv_command;

_Static_assert(sizeof(vecenv_control) == 4 * VECENV_LINE, "control is four lines");
_Static_assert(sizeof(vecenv_slot_lines) == 3 * VECENV_LINE, "a slot has three lines");
_Static_assert(sizeof(vecenv_command) == 32, "two commands share a line");

/* One row's place in its episode. Read now and then, so the four numbers lie together
 * and a row written by one core costs the others fewer cache lines. */
typedef struct {
    int64_t episode, length, seed;
    double episode_return;
} vecenv_episode_counters;

_Static_assert(sizeof(vecenv_episode_counters) == 32, "two rows share a line");

/* What is known of an env after its answer to step_id. Each env has two, written in turn
 * before the row is committed: whichever instant its worker dies at, the one for the last
 * committed answer is whole. step_id is stored last, and is 0 while the rest changes. */
typedef struct {
    vecenv_word step_id;
    uint64_t digest; /* of all its answers since a known start, see digest.h */
    vecenv_episode_counters counters;
    int64_t began_ns; /* when the env's episode began */
    uint32_t is_over; /* that episode has ended, and no answer has begun another */
    uint8_t pad[VECENV_LINE - 60];
} vecenv_record;

_Static_assert(sizeof(vecenv_record) == VECENV_LINE, "a record is a line");

/* What an armed parent waits for. */
enum {
    VECENV_WAIT_NOT,  /* awake */
    VECENV_WAIT_SOON, /* woken early: what it waits for comes soon */
    VECENV_WAIT_ALL,  /* rows 0 .. wait_count of wait_row_ref's block are committed */
    VECENV_WAIT_SOME, /* wait_count rows of that block are committed */
    VECENV_WAIT_ANY   /* any commit or mail */
};

enum { VECENV_OP_NONE, VECENV_OP_STEP, VECENV_OP_RESET, VECENV_OP_CALL };

#define VECENV_CLAIM UINT64_MAX /* command.row_ref: claim a row when the env is done */

/* command.flags */
#define VECENV_C_FORM 0x000f   /* form of a scalar action, VECENV_FORM_* */
#define VECENV_C_PAYLOAD 0x0010 /* the payload lies in mail down */
#define VECENV_C_SEED 0x0020   /* argument is a seed */
#define VECENV_C_SNAPSHOT 0x0040 /* look at the env's state before this reset */
#define VECENV_C_CANCELLED 0x0100 /* in a journal: cancelled, so made and answered, or not */
#define VECENV_C_NEW_DIGEST 0x0080 /* in a journal: the digest of the env's answers starts anew */
enum {
    VECENV_FORM_NATIVE,  /* what gymnasium.vector.utils.iterate gives */
    VECENV_FORM_INT,     /* a Python int */
    VECENV_FORM_VECTOR,  /* array of shape (1,) */
    VECENV_FORM_ARRAY0   /* array of shape () */
};

/* row flags */
#define VECENV_F_RESET 0x01u     /* answer to a reset command */
#define VECENV_F_AUTORESET 0x02u /* NEXT_STEP: first observation of a new episode */
#define VECENV_F_FINAL 0x04u     /* SAME_STEP: final_obs columns are filled */
#define VECENV_F_MESSAGE 0x08u   /* mail with this step_id was written before */
#define VECENV_F_ERROR 0x10u     /* the env raised; the mail holds the exception */
#define VECENV_F_INFO 0x20u      /* info columns are filled */
#define VECENV_F_VOID 0x40u      /* superseded: nobody waits for this row */
#define VECENV_F_FINAL_INFO 0x80u /* with FINAL: final info columns are filled */

/* A row_ref names one row of one use of one block in 64 bits: epoch (40 bits, counts
 * uses of blocks, never repeats), block (8), row (16). An owner word has the same
 * epoch and, in its low 16 bits, slot + 1 of the claimer or VECENV_SEAL. */
#define VECENV_ROW_BITS 16
#define VECENV_BLOCK_BITS 8
#define VECENV_EPOCH_SHIFT (VECENV_ROW_BITS + VECENV_BLOCK_BITS)
#define VECENV_MAX_ROWS 65535u
#define VECENV_MAX_BLOCKS 255u
#define VECENV_MAX_SLOTS 65533u
#define VECENV_SEAL 65535u

static inline uint64_t
make_row_ref(uint64_t epoch, uint32_t block, uint32_t row)
{
    return epoch << VECENV_EPOCH_SHIFT | (uint64_t)block << VECENV_ROW_BITS | row;
}

static inline uint64_t
ref_epoch(uint64_t row_ref)
{
    return row_ref >> VECENV_EPOCH_SHIFT;
}

static inline uint32_t
ref_block(uint64_t row_ref)
{
    return (uint32_t)(row_ref >> VECENV_ROW_BITS) & 0xffu;
}

static inline uint32_t
ref_row(uint64_t row_ref)
{
    return (uint32_t)row_ref & 0xffffu;
}

static inline uint64_t
owner_of(uint64_t epoch, uint32_t slot_mark)
{
    return epoch << VECENV_EPOCH_SHIFT | slot_mark;
}

/* A mapped arena: pointers resolved once from the header. */
typedef struct {
    uint8_t *base;
    const int64_t *header;
    uint32_t num_envs, num_slots, num_blocks, rows, queue_size;
    size_t reward_size; /* float64 per row */
    vecenv_control *control;
    char *info_keys;
    vecenv_slot_lines *slots;
    vecenv_command *queues;
    vecenv_word *newest; /* per env */
    uint8_t *byte_rings_up, *byte_rings_down;
    size_t byte_ring_nbytes;
    vecenv_record *records; /* two per env */
    uint8_t *blocks;
    size_t block_stride;
} vecenv_arena;

enum { VECENV_OK = 0, VECENV_EFORMAT = -1, VECENV_ESIZE = -2 };

/* Fill *arena from a mapping of nbytes. VECENV_EFORMAT: not an arena of this ABI;
 * VECENV_ESIZE: the mapping is shorter than its header says. */
int vecenv_arena_open(vecenv_arena *arena, void *base, size_t nbytes);

/* Start of the column whose header word is `word` in `block`. */
static inline uint8_t *
column(const vecenv_arena *arena, uint32_t block, int word)
{
    return arena->blocks + (size_t)block * arena->block_stride
           + (size_t)arena->header[word];
}

static inline vecenv_word *
word_column(const vecenv_arena *arena, uint32_t block, int word)
{
    return (vecenv_word *)(void *)column(arena, block, word);
}

static inline vecenv_command *
queue_of(const vecenv_arena *arena, uint32_t slot)
{
    return arena->queues + (size_t)slot * arena->queue_size;
}

#endif
