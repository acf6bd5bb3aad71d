/* Row: writes one reply into one row of a block and ends its command. It is between the result of
 * an env and the commit on the data path. */
#include "worker/slot.h"

#include <math.h>
#include <string.h>

#include "shm/claim.h"
#include "shm/parent_watch.h"

/* ---- the end of a command -------------------------------------------------------- */

/* To notify the parent a slot needs a full fence, which waits until every line of the row has been
 * fetched from the other cores: longer than the whole step of a quick env. So during a burst of
 * quick steps the parent is notified only this often, at its end, and before a command that is not
 * quick. */
#define NOTIFY_INTERVAL_NS 10000

static int
is_quick(const Slot *self, uint32_t head)
{
    uint32_t mask = self->arena.queue_size - 1;
    const vecenv_command *next = &queue_of(&self->arena, self->slot)[head & mask];
    if (next->op != VECENV_OP_STEP || next->env_id >= self->arena.num_envs) {
        return 0;
    }
    const hosted_env *env = &self->envs[next->env_id];
    return env->last_ns < NOTIFY_INTERVAL_NS && !env->needs_reset;
}

/* End an answered or dropped command: free its entry in the queue and notify the parent. */
static void
finish(Slot *self)
{
    vecenv_slot_lines *lines = lines_of(self);
    uint32_t head = ++self->head;
    int is_last = load_acquire32(&lines->tail) == head;
    int64_t began = self->now_ns;
    store_release32(&lines->current_op, VECENV_OP_NONE);
    store_release32(&lines->head, head);
    self->command.op = VECENV_OP_NONE;
    /* its payload was not taken: a signal handler raised before */
    self->num_unread_payloads += (uint32_t)self->has_unread_payload;
    self->has_unread_payload = 0;
    self->now_ns = vecenv_now_ns();
    hosted_env *env = &self->envs[self->command.env_id];
    env->last_ns = self->now_ns - began;
    env->busy_ns += env->last_ns;
    if (self->arena.timings != NULL) {
        vecenv_timer_end(&self->timer, &env->timed, &self->arena.timings[self->command.env_id],
                         env->last_ns, self->now_ns);
    }
    int must_notify = is_last || !is_quick(self, head);
    if (must_notify || self->now_ns - self->notified_ns > NOTIFY_INTERVAL_NS) {
        self->notified_ns = self->now_ns;
        if (must_notify || vecenv_may_wake_parent(&self->arena)) {
            vecenv_wake_parent(&self->arena, self->event_fd, is_last);
        }
    }
    if (env->last_ns > VECENV_MAYBE_STOPPED_NS) {
        vecenv_check_parent();
    }
}

static uint8_t *
block_start(const Slot *self, uint64_t row_ref)
{
    return self->arena.blocks + (size_t)ref_block(row_ref) * self->arena.block_stride;
}

#define CELL(self, row_ref, word, type) \
    (((type *)(void *)column(&(self)->arena, ref_block(row_ref), word))[ref_row(row_ref)])

/* Store a value only if it differs. Most rows of these columns never change, and a line that is not
 * written stays in the cache of every core. */
#define CHANGE(self, row_ref, word, type, value) \
    do { \
        type *cell = &CELL(self, row_ref, word, type); \
        if (*cell != (type)(value)) { \
            *cell = (type)(value); \
        } \
    } while (0)

/* An ordered request needs all its rows, so an assigned row is committed as void. */
void
vecenv_slot_drop(Slot *self)
{
    vecenv_timer_cancel(&self->timer);
    if (self->command.row_ref != VECENV_CLAIM) {
        uint64_t row_ref = self->command.row_ref;
        CELL(self, row_ref, VECENV_H_STEP_ID, uint64_t) = 0; /* matches no outstanding reply */
        CELL(self, row_ref, VECENV_H_ENV_ID, int64_t) = self->command.env_id;
        CELL(self, row_ref, VECENV_H_FLAGS, uint32_t) = VECENV_F_VOID;
        vecenv_commit(&self->arena, row_ref);
    }
    finish(self);
}

PyObject *
vecenv_slot_finish(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    Slot *self = (Slot *)op;
    if (self->command.op != VECENV_OP_NONE) {
        vecenv_slot_drop(self);
    }
    unstage(self);
    Py_RETURN_NONE;
}

/* ---- rows ------------------------------------------------------------------------ */

static void
begin_episode(hosted_env *env)
{
    env->began_ns = vecenv_now_ns();
    env->counters.episode++;
    env->counters.length = 0;
    env->counters.episode_return = 0.0;
}

/* A return is one number: NaN where a reward has several. */
static void
count_step(hosted_env *env, const vecenv_reply *reply, double reward)
{
    if (reply->flags & VECENV_F_CONTINUES) {
        env->counters.episode++;
    } else if (reply->flags & (VECENV_F_RESET | VECENV_F_AUTORESET)) {
        begin_episode(env);
    } else if (!(reply->flags & VECENV_F_ERROR)) {
        env->counters.length++;
        env->counters.episode_return += reward;
    }
}

static void
write_row(Slot *self, hosted_env *env, const vecenv_reply *reply, size_t num_checked,
          uint64_t row_ref)
{
    const vecenv_arena *arena = &self->arena;
    count_step(env, reply, arena->reward_size == 1 ? self->reward[0] : (double)NAN);
    CELL(self, row_ref, VECENV_H_STEP_ID, uint64_t) = self->command.step_id;
    CHANGE(self, row_ref, VECENV_H_ENV_ID, int64_t, self->command.env_id);
    memcpy(column(arena, ref_block(row_ref), VECENV_H_REWARD)
               + (size_t)ref_row(row_ref) * arena->reward_size * sizeof(double),
           self->reward, arena->reward_size * sizeof(double));
    CHANGE(self, row_ref, VECENV_H_TERMINATED, uint8_t, reply->terminated);
    CHANGE(self, row_ref, VECENV_H_TRUNCATED, uint8_t, reply->truncated);
    CHANGE(self, row_ref, VECENV_H_FLAGS, uint32_t, reply->flags);
    CELL(self, row_ref, VECENV_H_EPISODE_COUNTERS, vecenv_episode_counters) = env->counters;
    if (reply->terminated || reply->truncated) {
        double seconds = (double)(vecenv_now_ns() - env->began_ns) / 1e9;
        CELL(self, row_ref, VECENV_H_SECONDS, double) = seconds;
        if (arena->timings != NULL && !(reply->flags & VECENV_F_CONTINUES)) {
            vecenv_count_episode(&arena->timings[self->command.env_id],
                                 env->counters.episode_return);
        }
    }
    if (reply->flags & VECENV_F_INFO) {
        info_store(arena, &self->cells, VECENV_H_INFO_TAGS, ref_block(row_ref),
                   ref_row(row_ref));
    }
    if (reply->flags & VECENV_F_FINAL_INFO) {
        info_store(arena, &self->final_cells, VECENV_H_FINAL_TAGS, ref_block(row_ref),
                   ref_row(row_ref));
    }
    tree_store(self->checked, num_checked, block_start(self, row_ref), ref_row(row_ref));
    if (reply->flags & VECENV_F_FINAL) { /* the same step began a new episode */
        begin_episode(env);
        env->counters.seed = -1;
    }
    if (self->keeps_records) {
        vecenv_slot_keep_record(self, env, reply, num_checked);
    }
}

int
vecenv_slot_reply(Slot *self, vecenv_reply *reply)
{
    hosted_env *env = &self->envs[self->command.env_id];
    size_t num_checked = self->num_staged;
    int status = vecenv_slot_check(self, reply, &num_checked);
    if (status == TREE_OK) {
        if (is_superseded(self)) {
            vecenv_slot_drop(self);
        } else {
            /* Only copies follow until the commit, so a claimed row is always committed. */
            uint64_t row_ref = self->command.row_ref != VECENV_CLAIM
                                 ? self->command.row_ref
                                 : vecenv_claim(&self->arena, self->slot);
            if (row_ref == VECENV_NO_ROW) {
                END_STRAY("the words of claims");
            }
            write_row(self, env, reply, num_checked, row_ref);
            vecenv_commit(&self->arena, row_ref);
            finish(self);
        }
    }
    tree_release(self->checked, num_checked);
    if (status == TREE_OK) {
        unstage(self);
    } else if (reply->final_info != NULL) {
        self->final_cells.used = 0; /* the host passes it again, or sends it in a message */
    }
    return status;
}

/* Return whether an observation is a Python int, or a tuple or dict that contains one. */
static int
holds_int(PyObject *obs)
{
    int found = PyLong_CheckExact(obs);
    if (PyTuple_Check(obs)) {
        for (Py_ssize_t i = 0; !found && i < PyTuple_GET_SIZE(obs); i++) {
            found = holds_int(PyTuple_GET_ITEM(obs, i));
        }
    } else if (PyDict_Check(obs)) {
        PyObject *value;
        for (Py_ssize_t at = 0; !found && PyDict_Next(obs, &at, NULL, &value);) {
            found = holds_int(value);
        }
    }
    return found;
}

int
vecenv_slot_stage_final(Slot *self, const vecenv_reply *reply)
{
    size_t count = 0, at = 0;
    unstage(self);
    int status = tree_check(self->final_obs, reply->obs, self->checked, &count);
    for (size_t i = 0; status == TREE_OK && i < count; i++) {
        memcpy(self->staging + at, self->checked[i].source, self->checked[i].nbytes);
        self->checked[i].source = self->staging + at;
        at += self->checked[i].nbytes;
    }
    tree_release(self->checked, count);
    if (status == TREE_OK) {
        status = reward_read(reply->reward, self->reward, self->arena.reward_size);
    }
    if (status == TREE_OK && reply->info != NULL && PyDict_GET_SIZE(reply->info) > 0) {
        status = info_read(&self->arena, &self->info_table, reply->info, self->infos,
                           &self->final_cells);
    }
    if (status == TREE_OK) {
        self->num_staged = count;
        self->staged_flags = holds_int(reply->obs) ? VECENV_F_FINAL_INTS : 0;
    } else {
        unstage(self);
    }
    return status;
}

PyObject *
vecenv_slot_publish(PyObject *op, PyObject *args)
{
    Slot *self = (Slot *)op;
    PyObject *obs, *reward, *info, *final_obs, *final_info = Py_None;
    vecenv_reply reply = {0};
    if (!PyArg_ParseTuple(args, "OOppOIO|O:publish", &obs, &reward, &reply.terminated,
                          &reply.truncated, &info, &reply.flags, &final_obs, &final_info)) {
        return NULL;
    }
    if (self->command.op == VECENV_OP_NONE) {
        PyErr_SetString(PyExc_RuntimeError, "publish without a command under way");
        return NULL;
    }
    reply.obs = obs == Py_None ? NULL : obs;
    reply.reward = reward;
    reply.info = info == Py_None ? NULL : info;
    reply.final_obs = final_obs == Py_None ? NULL : final_obs;
    reply.final_info = final_info == Py_None ? NULL : final_info;
    if (!(reply.flags & VECENV_F_FINAL) || reply.final_obs != NULL) {
        unstage(self); /* the reset raised, or the caller passes the final observation itself */
    }
    hosted_env *env = &self->envs[self->command.env_id];
    int is_done = is_over_after(self, env, &reply);
    int status = vecenv_slot_reply(self, &reply);
    if (status == TREE_ERROR) {
        return NULL;
    }
    if (status == TREE_OK) {
        env->needs_reset = is_done && self->autoreset == AUTORESET_NEXT_STEP;
    }
    return PyBool_FromLong(status == TREE_OK);
}
