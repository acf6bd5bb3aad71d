/* The arena and the counters: the layouts of the two shared segments of a pool. The counters have
 * neither observations nor actions, so that another program may read them (vecenv top).
 *
 * The arena:
 *
 *   byte 0      header: int64 words, written by the parent before any worker maps it
 *   control     4 lines of 64 bytes: open word | parent's wait | stop | number of info keys
 *   info keys   the names of info cells, 64 bytes each
 *   queues      per slot, `queue_size` commands of 32 bytes
 *   newest      per env, the step_id of its newest command; 0: none, or it was cancelled
 *   rings up    per slot, a byte ring worker -> parent, for messages
 *   rings down  per slot, a byte ring parent -> worker, for payloads
 *   records     per env, two records of one line each about its latest replies
 *   actions     one column per action leaf, one row per env
 *   blocks      num_blocks times: one column per quantity, `rows` rows each
 *
 * The counters:
 *
 *   byte 0      header: int64 words, written by the parent
 *   workers     per slot, its worker; see counters.py
 *   slot_of_env per env, its slot, an int64 word
 *   slots       3 lines each: written by the parent | by the worker | by the worker when it sleeps
 *   timings     per env, how long its operations take; absent if nothing is timed
 *
 * A line is a cache line of 64 bytes. vecenv/core/layout/arena.py and counters.py compute the offsets
 * and write the headers. A test compares the word numbers and the struct sizes of both languages. */
#ifndef VECENV_LAYOUT_H
#define VECENV_LAYOUT_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "shm/atomics.h"

#define VECENV_MAGIC INT64_C(0x766e6365766e6501)
#define VECENV_ABI 14
#define VECENV_COUNTERS_MAGIC INT64_C(0x766e6365766e6302)
#define VECENV_COUNTERS_VERSION 2 /* version of the layout of the counters */
#define VECENV_LINE 64
#define VECENV_INFO_KEYS 32      /* info cells per row; one cell: a number or an array element */
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
    VECENV_H_FINAL_TAGS, /* like INFO_TAGS; this and the next exist if VECENV_H_HAS_FINAL is set */
    VECENV_H_FINAL_VALUES,
    VECENV_H_WORDS
};

/* Indices of the int64 words of the counters' header. */
enum {
    VECENV_K_MAGIC,
    VECENV_K_VERSION,
    VECENV_K_TOTAL_NBYTES,
    VECENV_K_NUM_ENVS,
    VECENV_K_NUM_SLOTS,
    VECENV_K_IS_NATIVE, /* 0: the slots have the layout of core/fallback/words.py */
    VECENV_K_OPENED_NS, /* monotonic clock when the pool was opened */
    VECENV_K_NUM_REPLACED, /* workers that replaced others */
    VECENV_K_WORKERS, /* this and the next are used in Python only */
    VECENV_K_SLOT_OF_ENV,
    VECENV_K_SLOTS,
    VECENV_K_TIMINGS, /* 0: nothing is timed */
    VECENV_K_SHARDS, /* this and the next are used in Python only; 0: the workers are on this machine */
    VECENV_K_OWED,
    VECENV_K_WORDS
};

/* The pause that all waits of a pool make after contention. */
typedef struct {
    vecenv_word backoff_ns; /* for how long no wait spins after the last contended one */
    vecenv_word resume_ns;  /* monotonic clock when a spin is tried again */
} vecenv_backoff;

/* Line 0: `open` is the row_ref (see below) of the next row to claim. Claimers and the parent
 *         advance it.
 * Line 1: the wait that the parent registers before it sleeps. `waiting` is its kind
 *         (VECENV_WAIT_*); the one worker that wakes the parent swaps it to 0. `wait_*` name
 *         the rows.
 * Line 2: `stop`, written by the parent.
 * Line 3: `num_info_keys`, written by the parent. `has_notice`: a worker stores 1 when it has sent a
 *         message over its socket; the parent stores 0 before it reads the sockets. `backoff`: every
 *         thread that finds contention stores there, see spin.h. */
typedef struct {
    vecenv_word open;
    uint8_t pad0[VECENV_LINE - 8];
    vecenv_word32 waiting;
    uint32_t pad1a;
    vecenv_word wait_row_ref; /* epoch and block of the awaited rows */
    vecenv_word32 wait_count;
    uint32_t pad1b;
    vecenv_word wait_began_ns; /* monotonic clock when the parent began to sleep */
    vecenv_word32 wait_core;   /* the core on which the parent ran then */
    uint8_t pad1[VECENV_LINE - 36];
    vecenv_word32 stop;
    uint8_t pad2[VECENV_LINE - 4];
    vecenv_word32 num_info_keys;
    vecenv_word32 has_notice;
    vecenv_backoff backoff;
    uint8_t pad3[VECENV_LINE - 24];
} vecenv_control;

/* A slot is a thread of control in a worker. `tail` is both the end of its queue and its doorbell:
 * the slot sleeps on this word. The parent reads `sleeping` after a full fence. */
typedef struct {
    /* written by the parent */
    vecenv_word32 tail;
    vecenv_word32 num_superseded; /* commands of this slot that were superseded or cancelled */
    vecenv_word up_read;      /* bytes that the parent has read from the ring up */
    vecenv_word down_written; /* bytes that the parent has written to the ring down */
    vecenv_word published_ns; /* monotonic clock when the parent last advanced `tail` */
    vecenv_word32 published_core; /* the core on which the parent ran then */
    uint8_t pad0[VECENV_LINE - 36];
    /* written by the worker */
    vecenv_word32 head;
    vecenv_word32 current_op;  /* operation under way; VECENV_OP_NONE between two of them */
    vecenv_word32 current_env; /* its env */
    vecenv_word32 blocked;     /* 1 while the slot waits for the parent: no deadline counts */
    vecenv_word current_step_id;
    vecenv_word started_ns;    /* monotonic clock at the start of the operation */
    vecenv_word up_written;
    vecenv_word down_read;
    vecenv_word num_steps;     /* env steps made; resets are not counted */
    uint8_t pad1[VECENV_LINE - 56];
    /* written by the worker when it sleeps */
    vecenv_word32 sleeping; /* 0: awake; else 1 + the core on which it fell asleep */
    uint8_t pad2[VECENV_LINE - 4];
} vecenv_slot_lines;

/* One command in a slot's queue. */
typedef struct {
    uint64_t step_id;
    uint64_t row_ref;  /* the assigned row, or VECENV_CLAIM */
    int64_t argument;  /* reset: the seed, if VECENV_C_SEED or VECENV_C_DRAWN is set */
    uint32_t env_id;
    uint8_t op;
    uint8_t check;     /* checksum of all other fields: a stray write must not become a command */
    uint16_t flags;    /* VECENV_C_*; the lowest bits are the form of the action */
} vecenv_command;

_Static_assert(sizeof(vecenv_control) == 4 * VECENV_LINE, "control is four lines");
_Static_assert(sizeof(vecenv_slot_lines) == 3 * VECENV_LINE, "a slot has three lines");
_Static_assert(sizeof(vecenv_command) == 32, "two commands share a line");

/* The episode counters of one row. They are rarely read, so the four numbers lie together: a row
 * that one core has written costs the other cores fewer cache lines. */
typedef struct {
    int64_t episode, length, seed;
    double episode_return;
} vecenv_episode_counters;

_Static_assert(sizeof(vecenv_episode_counters) == 32, "two rows share a line");

/* The state of an env after its reply to step_id. The worker writes a record before it commits the
 * row. Each env has two, written alternately, so the record of the last committed reply is
 * complete even if the worker dies at any instant. step_id is stored last, and is 0 while the
 * other words change. */
typedef struct {
    vecenv_word step_id;
    uint64_t digest; /* digest of all replies since the last restore point, see digest.h */
    vecenv_episode_counters counters;
    int64_t began_ns; /* monotonic clock when the env's episode began */
    uint32_t is_over; /* 1: that episode has ended and the next one has not begun */
    uint8_t pad[VECENV_LINE - 60];
} vecenv_record;

_Static_assert(sizeof(vecenv_record) == VECENV_LINE, "a record is a line");

/* Sums over measured operations, in nanoseconds. */
typedef struct {
    vecenv_word num, wall_ns, cpu_ns, delay_ns;
} vecenv_measured;

/* A histogram of durations has four buckets per octave: an error of at most an eighth. The first
 * bucket is below 256 ns; the last one has everything from 13 minutes on. */
#define VECENV_NUM_BUCKETS 128
#define VECENV_FIRST_OCTAVE 8

/* The times of one env, written by its worker; see timing.h. Each pair is of steps and of resets. */
typedef struct {
    vecenv_word num[2];
    vecenv_word wall_ns[2]; /* sums over all steps and over all resets */
    vecenv_word long_ns;    /* sum over long operations, steps and resets together */
    vecenv_word max_ns[2];
    vecenv_word ended_ns;        /* monotonic clock at the end of the last one; 0: there was none */
    vecenv_measured measured[2]; /* short operations, long operations */
    vecenv_word construct_ns, construct_cpu_ns; /* times of its constructor */
    vecenv_word num_episodes; /* episodes that have ended */
    vecenv_word return_sum;   /* sum of their returns, a double */
    vecenv_word num_exceptions; /* exceptions after which an episode ended or the env was rebuilt */
    uint8_t pad[VECENV_LINE - 40];
    vecenv_word buckets[2][VECENV_NUM_BUCKETS]; /* operations by duration */
} vecenv_timings;

_Static_assert(sizeof(vecenv_timings) == (3 + VECENV_NUM_BUCKETS / 4) * VECENV_LINE,
               "timings are three lines and two histograms");

/* The condition that the parent waits for. */
enum {
    VECENV_WAIT_NOT,  /* the parent is awake */
    VECENV_WAIT_SOON, /* it was woken early: the awaited rows will be committed soon */
    VECENV_WAIT_ALL,  /* rows 0 .. wait_count - 1 of wait_row_ref's block are committed */
    VECENV_WAIT_SOME, /* any wait_count rows of that block are committed */
    VECENV_WAIT_ANY   /* any row is committed, or any message is written */
};

enum { VECENV_OP_NONE, VECENV_OP_STEP, VECENV_OP_RESET, VECENV_OP_CALL };

#define VECENV_CLAIM UINT64_MAX /* command.row_ref: claim a row once the env has returned */

/* command.flags */
#define VECENV_C_FORM 0x000f   /* mask: form of a scalar action, VECENV_FORM_* */
#define VECENV_C_OPTIONS 0x0001 /* a reset, which has no form: pass options=None if the env accepts it */
#define VECENV_C_WATCH 0x0001   /* a call, which has no form: compare the env before and after */
#define VECENV_C_PAYLOAD 0x0010 /* a payload for this command is in the ring down */
#define VECENV_C_SEED 0x0020   /* pass a seed to this reset: argument; None if it is -1 or drawn */
#define VECENV_C_SNAPSHOT 0x0040 /* take a snapshot of the env before this reset */
#define VECENV_C_DRAWN 0x0080 /* argument is a drawn seed, for a generator that does not exist yet */
#define VECENV_C_CANCELLED 0x0100 /* journal only: cancelled; it may have been carried out or not */
#define VECENV_C_NEW_DIGEST 0x0200 /* journal only: the digest of the env's replies starts here */
enum {
    VECENV_FORM_NATIVE,  /* the item that gymnasium.vector.utils.iterate yields */
    VECENV_FORM_INT,     /* a Python int */
    VECENV_FORM_VECTOR,  /* an array of shape (1,) */
    VECENV_FORM_ARRAY0   /* an array of shape () */
};

/* row flags */
#define VECENV_F_RESET 0x01u     /* the reply to a reset command */
#define VECENV_F_AUTORESET 0x02u /* NEXT_STEP: the first observation of a new episode */
#define VECENV_F_FINAL 0x04u     /* SAME_STEP: the final_obs columns are filled */
#define VECENV_F_MESSAGE 0x08u   /* a message with this step_id was written before the row */
#define VECENV_F_ERROR 0x10u     /* the env raised; the message contains the exception */
#define VECENV_F_INFO 0x20u      /* the info columns are filled */
#define VECENV_F_VOID 0x40u      /* superseded: no request waits for this row */
#define VECENV_F_FINAL_INFO 0x80u /* the final info columns are filled; with FINAL */
#define VECENV_F_FINAL_INTS 0x200u /* the env returned that observation with ints; with FINAL */
#define VECENV_F_REPEATS 0x400u  /* the parent fills in the env's last delivered observation */
#define VECENV_F_FINAL_REPEATS 0x800u /* REPEATS for the final_obs columns; with FINAL */
#define VECENV_F_CONTINUES 0x1000u /* the env got a state: its episode counters are kept; with RESET */
#define VECENV_F_NOTICE 0x100u   /* `has_notice` is set; in the flags of a batch only */
/* all flags that a row may have: those above except NOTICE */
#define VECENV_F_OF_ROWS ((2 * VECENV_F_CONTINUES - 1) & ~VECENV_F_NOTICE)

/* A row_ref identifies one row of one use of a block, in 64 bits: epoch (40 bits), block (8),
 * row (16). Each use of a block has its own epoch; epochs never repeat. An owner word has the
 * same epoch. Its low 16 bits are slot + 1 of the claimer, or VECENV_SEAL. */
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

/* A mapped arena: the offsets of the header as pointers. Both headers are copied once, since any
 * process that maps the memory may overwrite them. */
typedef struct {
    uint8_t *base, *counters_base;
    int64_t header[VECENV_H_WORDS];
    int64_t counters_header[VECENV_K_WORDS];
    uint32_t num_envs, num_slots, num_blocks, rows, queue_size;
    size_t reward_size; /* float64 numbers per row */
    vecenv_control *control;
    char *info_keys;
    vecenv_slot_lines *slots; /* this and `timings` lie in the counters */
    vecenv_command *queues;
    vecenv_word *newest; /* per env */
    uint8_t *byte_rings_up, *byte_rings_down;
    size_t byte_ring_nbytes;
    vecenv_record *records; /* two per env */
    vecenv_timings *timings; /* per env; NULL: nothing is timed */
    uint8_t *blocks;
    size_t block_stride;
} vecenv_arena;

enum { VECENV_OK = 0, VECENV_EFORMAT = -1, VECENV_ESIZE = -2 };

/* Fill *arena from a mapping of nbytes. Returns VECENV_OK; VECENV_EFORMAT if it is not an arena of
 * this ABI; VECENV_ESIZE if the mapping is shorter than its header requires. */
int vecenv_arena_open(vecenv_arena *arena, void *base, size_t nbytes);

/* Set `slots` and `timings` of an open arena from a mapping of its counters. Same codes. */
int vecenv_counters_open(vecenv_arena *arena, void *base, size_t nbytes);

/* Parent: write both headers again, before a worker maps the memory. */
void vecenv_restore_headers(const vecenv_arena *arena);

/* Return the start of the column of `block` whose header word is `word`. */
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

/* The fields of a command in four words. They are computed in registers: fields that were just stored
 * one by one would have to reach the cache before they can be loaded as words. */
typedef struct {
    uint64_t step_id, row_ref, argument, rest;
} vecenv_command_words;

_Static_assert(sizeof(vecenv_command_words) == sizeof(vecenv_command), "the same four words");

/* `check` in `rest`; env_id and op are below it, flags above. */
#define VECENV_CHECK_SHIFT 40
#define VECENV_CHECK_MASK (UINT64_C(0xff) << VECENV_CHECK_SHIFT)

/* Return `rest` without `check`. */
static inline uint64_t
command_rest(uint32_t env_id, int op, int flags)
{
    return (uint64_t)(uint16_t)flags << 48 | (uint64_t)(uint8_t)op << 32 | env_id;
}

/* Return `check` as bits of `rest`. */
static inline uint64_t
check_of(const vecenv_command_words *words)
{
    uint64_t rest = words->rest & ~VECENV_CHECK_MASK;
    uint64_t mixed = words->step_id ^ (words->row_ref << 21 | words->row_ref >> 43)
                     ^ (words->argument << 42 | words->argument >> 22) ^ ~rest;
    return mixed * UINT64_C(0x9e3779b97f4a7c15) >> 56 << VECENV_CHECK_SHIFT;
}

/* Store a command word by word. A memcpy would go through memory, see vecenv_command_words. */
static inline void
store_command(vecenv_command *command, const vecenv_command_words *words)
{
    typedef uint64_t __attribute__((may_alias)) any_word;
    any_word *to = (any_word *)(void *)command;
    to[0] = words->step_id;
    to[1] = words->row_ref;
    to[2] = words->argument;
    to[3] = words->rest;
}

static inline int
has_check(const vecenv_command *command)
{
    vecenv_command_words words;
    memcpy(&words, command, sizeof words);
    return (words.rest & VECENV_CHECK_MASK) == check_of(&words);
}

static inline void
set_check(vecenv_command *command)
{
    vecenv_command_words words;
    memcpy(&words, command, sizeof words);
    words.rest = (words.rest & ~VECENV_CHECK_MASK) | check_of(&words);
    memcpy(command, &words, sizeof words);
}

/* Return whether a row_ref from shared memory names a row of this arena, or the end of a block. */
static inline int
is_row_ref(const vecenv_arena *arena, uint64_t row_ref)
{
    return ref_block(row_ref) < arena->num_blocks && ref_row(row_ref) <= arena->rows;
}

static inline vecenv_command *
queue_of(const vecenv_arena *arena, uint32_t slot)
{
    return arena->queues + (size_t)slot * arena->queue_size;
}

#endif
