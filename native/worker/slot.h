/* Slot: the worker's end of one slot, a Python type in five files.
 *
 *   slot.c           creates and destroys the type's objects; hosts envs
 *   serve.c          the loop: takes commands, calls env.step and env.reset
 *   row.c            writes one reply into one row and ends its command
 *   slot_records.c   records of each env's latest replies, for recovery after a crash
 *   slot_messages.c  messages and payloads, for values without a column
 *
 * One thread uses a Slot. "The command under way" is the command that serve() has begun last and
 * that neither a row nor finish() has ended yet. */
#ifndef VECENV_SLOT_H
#define VECENV_SLOT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "py/info.h"
#include "py/pyutil.h"
#include "py/tree.h"
#include "shm/layout.h"
#include "shm/park.h"
#include "shm/timing.h"

enum { AUTORESET_DISABLED, AUTORESET_NEXT_STEP, AUTORESET_SAME_STEP };

/* The kind of an event, the first item that serve() returns. */
enum { EVENT_STOP, EVENT_IDLE, EVENT_COMMAND, EVENT_RESULT, EVENT_RAISED };

/* Words of an env's own random generators that are written into the global ones before its step. */
#define MAX_WINDOWS 3
#define WINDOW_NBYTES 32

typedef struct {
    PyObject *step;  /* a function that steps the env; NULL: `env.step` is looked up at each step */
    PyObject *env;   /* its `reset` is called here for autoresets; NULL: the host resets it. If
                      * `step` is NULL, too, this slot does not host the env. */
    int needs_reset; /* NEXT_STEP: the episode is over, the next step resets */
    int64_t last_ns; /* duration of its last command */
    uint64_t last_step_id; /* step_id of its newest command that has begun */
    vecenv_episode_counters counters;
    int64_t began_ns;       /* monotonic clock when its episode began */
    uint64_t digest;        /* digest of its replies since the last restore point */
    int starts_digest;      /* the next row is the first of them */
    uint32_t turn;          /* the lowest bit selects the record that is written next */
    int64_t busy_ns;        /* duration of its commands since the last snapshot */
    int64_t snapshot_after_ns; /* the busy_ns after which a snapshot is due; 0: never */
    int64_t step_snapshot_after_ns; /* the same for a snapshot before a step */
    vecenv_timed_env timed;
    int has_window;
    char window[MAX_WINDOWS][WINDOW_NBYTES]; /* the bytes at each address of the slot's windows */
} hosted_env;

/* A word that envs do not change in most calls, and its value until then: of a global random
 * generator, or the mark of a process that was forked from the worker. */
typedef struct {
    const uint32_t *word;
    uint32_t value;
} watched_word;

#define MAX_WATCHED 7

typedef struct {
    PyObject_HEAD
    Py_buffer mapping;
    Py_buffer counters;
    vecenv_arena arena;
    uint32_t slot;
    int event_fd;
    int autoreset;
    int waits;       /* whether serve() may sleep */
    int has_objects; /* observations have parts without columns: every row has a message */
    vecenv_spin_policy spin_policy;
    vecenv_affinity affinity;
    node *obs, *final_obs, *action;
    checked_leaf *checked;
    uint8_t *staging;  /* SAME_STEP: a copy of the final observation, which the reset may change */
    size_t num_staged; /* its leaves, the first ones in `checked`; 0: none */
    uint32_t staged_flags; /* FINAL_INTS if it contained a Python int, else 0 */
    double *reward;    /* reward of the reply under way, reward_size numbers */
    hosted_env *envs;
    int infos; /* kind of infos that are sent, INFOS_* */
    info_table info_table;
    info_cells cells;
    info_cells final_cells; /* SAME_STEP: the cells of the final info, for the row under way */
    PyObject *numpy_scalar, *numpy_array; /* types */
    /* Interned strings: the interpreter's method cache keeps all other strings alive. */
    PyObject *reset_name, *step_name;
    vecenv_command command; /* the command under way */
    uint32_t head; /* the private copy of this word */
    int has_unread_payload; /* its payload is still in the ring */
    /* payloads in the ring before that one, of commands that ended without taking theirs */
    uint32_t num_unread_payloads;
    int64_t now_ns;         /* when the last command ended; 0 after a wait */
    vecenv_timer timer;     /* times of the command under way */
    int64_t notified_ns;    /* when the parent was last notified */
    uint32_t last_num_superseded;
    int keeps_records;
    size_t final_offset; /* offset in a block of the columns of final observations */
    watched_word watched[MAX_WATCHED];
    uint32_t num_watched;
    uint8_t *windows[MAX_WINDOWS];
    uint32_t num_windows;
    /* called with (env_id, exception) after a watched word changed; owns their memory */
    PyObject *on_draw;
    PyObject *take_snapshot; /* called with (env_id, step_id) before an autoreset; or NULL */
} Slot;

/* End this process like a crash: the value of `word` in its shared memory was written neither by the
 * parent nor by this process, but through a wrong pointer of an env here or in another worker. */
#define END_STRAY(word) Py_FatalError("the memory of this pool has been overwritten: " word)

static inline vecenv_slot_lines *
lines_of(const Slot *self)
{
    return &self->arena.slots[self->slot];
}

/* Return the state of an env by its env_id. NULL with an exception. */
static inline hosted_env *
parse_env(const Slot *self, PyObject *env_id)
{
    uint32_t index;
    if (parse_index(env_id, "env_id", self->arena.num_envs, &index) < 0) {
        return NULL;
    }
    return &self->envs[index];
}

/* Return whether the command under way was superseded by a reset or cancelled. The parent writes
 * the lines of `newest` at each request, so reading them is slow. They are read only if
 * num_superseded, which is on the line of the slot's doorbell, has changed. */
static inline int
is_superseded(const Slot *self)
{
    return load_acquire32(&lines_of(self)->num_superseded) != self->last_num_superseded
           && load_acquire(&self->arena.newest[self->command.env_id])
                  != self->command.step_id;
}

/* Return whether a snapshot of the env is due before its next reset. */
static inline int
is_snapshot_due(const hosted_env *env)
{
    return env->snapshot_after_ns > 0 && env->busy_ns >= env->snapshot_after_ns;
}

/* Return whether a snapshot of the env is due even before a step. One comparison, as each step makes
 * it: 0 minus 1 is larger than any time. */
static inline int
is_step_snapshot_due(const hosted_env *env)
{
    return (uint64_t)env->busy_ns > (uint64_t)env->step_snapshot_after_ns - 1;
}

/* Count one env step of this slot. Steps that raised or were repeated do not count. */
static inline void
count_env_step(const Slot *self)
{
    vecenv_word *num_steps = &lines_of(self)->num_steps;
    store_release(num_steps, load_acquire(num_steps) + 1);
}

/* ---- row.c ----------------------------------------------------------------------- */

typedef struct {
    PyObject *obs, *reward, *info, *final_obs, *final_info; /* borrowed; NULL: none, reward 0 */
    int terminated, truncated;
    uint32_t flags;
} vecenv_reply;

/* Write and commit the row of the command under way, and end the command. If it has been
 * superseded, only end it. Returns TREE_OK; TREE_INEXACT if a value needs conversion; TREE_ERROR
 * with an exception. In the last two cases nothing was written and the command is still under
 * way. */
int vecenv_slot_reply(Slot *self, vecenv_reply *reply);

/* End the command under way without a reply. */
void vecenv_slot_drop(Slot *self);

/* Stage the values that end an episode: copy observation, info (NULL: none) and reward, since the
 * following reset may overwrite them. The next reply flagged FINAL contains them, except
 * the reward. Returns TREE_OK, or TREE_INEXACT or TREE_ERROR; then nothing is staged. */
int vecenv_slot_stage_final(Slot *self, const vecenv_reply *reply);

/* Drop the staged values. */
static inline void
unstage(Slot *self)
{
    self->num_staged = 0;
    self->final_cells.used = 0;
}

/* Return whether the env's episode is over after this reply to the command under way. If an
 * autoreset raised, no episode has begun: the next step resets again. */
static inline int
is_over_after(const Slot *self, const hosted_env *env, const vecenv_reply *reply)
{
    int is_left = (reply->flags & VECENV_F_ERROR) && self->command.op == VECENV_OP_STEP;
    return reply->terminated || reply->truncated || (is_left && env->needs_reset);
}

/* ---- slot_records.c -------------------------------------------------------------- */

/* Check all values of a reply: everything that can fail. The leaves go to self->checked, after the
 * staged ones; the reward to self->reward; infos to their cells. Returns TREE_*. In all cases the
 * caller must release *num_checked leaves. */
int vecenv_slot_check(Slot *self, vecenv_reply *reply, size_t *num_checked);

/* Write the record of the reply in self->checked and self->reward, before its row is committed. */
void vecenv_slot_keep_record(Slot *self, hosted_env *env, const vecenv_reply *reply,
                             size_t num_checked);

/* Add the type to the module; -1 with an exception. */
int vecenv_add_slot(PyObject *module);

/* ---- methods, for the table in slot.c -------------------------------------------- */

#define SLOT_METHOD(name) PyObject *vecenv_slot_##name(PyObject *op, PyObject *arg)

SLOT_METHOD(serve); /* serve.c */
SLOT_METHOD(publish); /* row.c */
SLOT_METHOD(finish);
SLOT_METHOD(send_message); /* slot_messages.c */
SLOT_METHOD(take_payload);
SLOT_METHOD(keep_records); /* slot_records.c */
SLOT_METHOD(start_digest);
SLOT_METHOD(add_to_digest);
SLOT_METHOD(records);
SLOT_METHOD(present_record);
SLOT_METHOD(resume);
SLOT_METHOD(schedule_snapshot);
SLOT_METHOD(is_snapshot_due);
SLOT_METHOD(touch);

#endif
