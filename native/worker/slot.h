/* Slot: the worker's end, a Python type in five files.
 *
 *   slot.c       life of the type; hosting envs
 *   serve.c      the loop: commands out of the queue, env.step, env.reset
 *   row.c        one answer into one row, then the end of its command
 *   slot_records.c  what is known of each env's answers, should this process die
 *   slot_messages.c  messages and payloads, for what has no column
 *
 * One thread uses a Slot. Where a function below says "the command under way" it is the one
 * that serve() took from the queue last and that no row or `finish` has ended yet. */
#ifndef VECENV_SLOT_H
#define VECENV_SLOT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "py/info.h"
#include "py/pyutil.h"
#include "py/tree.h"
#include "shm/layout.h"
#include "shm/park.h"

enum { AUTORESET_DISABLED, AUTORESET_NEXT_STEP, AUTORESET_SAME_STEP };

/* What serve() returns first. */
enum { EVENT_STOP, EVENT_IDLE, EVENT_COMMAND, EVENT_RESULT, EVENT_RAISED };

typedef struct {
    PyObject *step;  /* bound method, or NULL: not hosted by this slot */
    PyObject *env;   /* whose `reset` begins the next episode here; NULL: the host does it */
    int needs_reset; /* NEXT_STEP: the episode is over, the next step resets */
    int64_t last_ns; /* how long its last command took */
    vecenv_episode_counters counters;
    int64_t began_ns;       /* when its episode began */
    uint64_t digest;        /* of its answers since a known start */
    int starts_digest;      /* the next row is the first of them */
    uint32_t turn;          /* which of its two records is written next */
    int64_t busy_ns;        /* time spent on it since its state was last looked at */
    int64_t snapshot_after_ns; /* how much of that is due for another look; 0: never */
} hosted_env;

/* A word of a global random generator, and its value while no env has drawn. */
typedef struct {
    const uint32_t *word;
    uint32_t value;
} watched_word;

#define MAX_WATCHED 4

typedef struct {
    PyObject_HEAD
    Py_buffer mapping;
    vecenv_arena arena;
    uint32_t slot;
    int event_fd;
    int autoreset;
    int waits;       /* whether serve() may sleep */
    int has_objects; /* observations have parts without columns: every row has mail */
    vecenv_spin_policy spin_policy;
    vecenv_affinity affinity;
    node *obs, *final_obs, *action;
    checked_leaf *checked;
    uint8_t *staging;  /* SAME_STEP: leaves that ended an episode, safe from its reset */
    size_t num_staged; /* of them, in front of `checked`, for the row under way */
    double *reward;
    hosted_env *envs;
    int infos; /* which infos travel, INFOS_* */
    info_table info_table;
    info_cells cells;
    info_cells final_cells; /* SAME_STEP: of the info that ended an episode, for the row under way */
    PyObject *numpy_scalar, *numpy_array; /* types */
    /* Interned: the interpreter's cache of methods keeps every other string it is asked with. */
    PyObject *reset_name, *step_name;
    vecenv_command command; /* under way */
    int has_unread_payload; /* it has one, which has not been taken */
    /* payloads in front of that, of commands that ended without theirs */
    uint32_t num_unread_payloads;
    int64_t now_ns;         /* when the last command ended, 0 after a wait */
    int64_t notified_ns;    /* when the parent was last told */
    uint32_t last_num_superseded;
    int keeps_records;
    size_t final_offset; /* where the columns of final observations begin */
    watched_word watched[MAX_WATCHED];
    uint32_t num_watched;
    PyObject *on_draw; /* told of an env that changed one of them; owns their memory */
    /* take_snapshot(env_id, step_id), before an autoreset where that is due; or NULL */
    PyObject *take_snapshot;
} Slot;

static inline vecenv_slot_lines *
lines_of(const Slot *self)
{
    return &self->arena.slots[self->slot];
}

/* The books of the env that a caller names by its env_id; NULL with an exception. */
static inline hosted_env *
parse_env(const Slot *self, PyObject *env_id)
{
    uint32_t index;
    if (parse_index(env_id, "env_id", self->arena.num_envs, &index) < 0) {
        return NULL;
    }
    return &self->envs[index];
}

/* Whether nobody waits for the command under way: a reset superseded it, or it was cancelled.
 * The newest step_ids lie on lines that the parent writes at every send; the counter on
 * our own doorbell's line says whether they are worth a look at all. */
static inline int
is_superseded(const Slot *self)
{
    return load_acquire32(&lines_of(self)->num_superseded) != self->last_num_superseded
           && load_acquire(&self->arena.newest[self->command.env_id])
                  != self->command.step_id;
}

/* Whether the host wants to look at the env's state before its next reset. */
static inline int
is_snapshot_due(const hosted_env *env)
{
    return env->snapshot_after_ns > 0 && env->busy_ns >= env->snapshot_after_ns;
}

/* An env of this slot has been stepped, by whomever; what raised or was repeated does not count. */
static inline void
count_env_step(const Slot *self)
{
    vecenv_word *num_steps = &lines_of(self)->num_steps;
    store_release(num_steps, load_acquire(num_steps) + 1);
}

/* ---- row.c ----------------------------------------------------------------------- */

typedef struct {
    PyObject *obs, *reward, *info, *final_obs, *final_info; /* borrowed; NULL: nothing, or zero */
    int terminated, truncated;
    uint32_t flags;
} vecenv_reply;

/* Write and commit the row of the command under way, and end the command; if it was
 * superseded meanwhile, only end it. TREE_INEXACT: a value needs conversion, nothing was
 * written, the command is still under way. TREE_ERROR: the same, with an exception. */
int vecenv_slot_reply(Slot *self, vecenv_reply *reply);

/* End the command under way without an answer. */
void vecenv_slot_drop(Slot *self);

/* Copy observation, info (NULL: none) and reward that end an episode, since the reset that
 * follows may overwrite them in place; the next answer flagged FINAL carries them, but the
 * reward. TREE_INEXACT and TREE_ERROR: nothing is staged. */
int vecenv_slot_stage_final(Slot *self, const vecenv_reply *reply);

/* Forget what is staged. */
static inline void
unstage(Slot *self)
{
    self->num_staged = 0;
    self->final_cells.used = 0;
}

/* Whether the env's episode is over once the command under way is answered with this row. An
 * autoreset that raised has begun nothing: the next step tries again. */
static inline int
is_over_after(const Slot *self, const hosted_env *env, const vecenv_reply *reply)
{
    int is_left = (reply->flags & VECENV_F_ERROR) && self->command.op == VECENV_OP_STEP;
    return reply->terminated || reply->truncated || (is_left && env->needs_reset);
}

/* ---- slot_records.c -------------------------------------------------------------- */

/* Check everything that can fail into self->checked (behind what is staged) and self->reward.
 * *num_checked leaves must be released, whatever is returned. */
int vecenv_slot_check(Slot *self, vecenv_reply *reply, size_t *num_checked);

/* Note the answer that stands in self->checked and self->reward; its row comes next. */
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
SLOT_METHOD(resume);
SLOT_METHOD(schedule_snapshot);
SLOT_METHOD(is_snapshot_due);
SLOT_METHOD(touch);

#endif
