/* Serve: the worker's loop. It takes commands from the queue and steps envs. Everything but a plain
 * step or autoreset is returned to Python as an event, and ended by publish() or finish(). It is
 * between the doorbell and the row on the data path. */
#include "worker/slot.h"

/* A sleeping slot checks its queue this often, even if its doorbell does not wake it. */
#define PARK_SLICE_NS INT64_C(1000000000)

/* The argument of EVENT_RESULT and EVENT_RAISED: the origin of the result or exception. */
enum { RESULT_OF_STEP, RESULT_OF_RESET, RESULT_OF_BOTH };
enum { STEP_ONLY, STEP_BEGINS, STEP_WITH_SNAPSHOT };

/* ---- results of envs ------------------------------------------------------------- */

static PyObject *
take_exception(void)
{
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    if (trace != NULL) {
        PyException_SetTraceback(value, trace);
    }
    Py_XDECREF(type);
    Py_XDECREF(trace);
    return value;
}

/* Write the next words of the env's own generators into the global ones, so that its first draws
 * in a step are its own. Envs whose calls swap their state in have no window. */
static inline void
load_window(const Slot *self, const hosted_env *env)
{
    if (env->has_window && self->num_windows != 0) { /* without a loop: 2 ns instead of 5 */
        memcpy(self->windows[0], env->window[0], WINDOW_NBYTES);
        memcpy(self->windows[1], env->window[1], WINDOW_NBYTES);
        if (self->num_windows > 2) {
            memcpy(self->windows[2], env->window[2], WINDOW_NBYTES);
        }
    }
}

/* Call on_draw(env_id, exception of the env or None) if a watched word has changed: the env that was
 * just called has drawn from a global random generator, or this process is a fork of the worker.
 * Returns `result`, and keeps a pending exception of the env. If on_draw raises, drops `result` and
 * returns NULL with that exception. */
static PyObject *
check_for_draw(Slot *self, PyObject *result)
{
    uint32_t moved = 0;
    for (uint32_t i = 0; i < self->num_watched; i++) {
        moved |= *self->watched[i].word ^ self->watched[i].value;
    }
    if (moved == 0) {
        return result;
    }
    PyObject *error = take_exception();
    PyObject *on_draw = Py_NewRef(self->on_draw); /* it may replace self->on_draw */
    PyObject *done = PyObject_CallFunction(on_draw, "IO", self->command.env_id,
                                           error == NULL ? Py_None : error);
    Py_DECREF(on_draw);
    if (done == NULL) {
        Py_XDECREF(error);
        Py_CLEAR(result);
        return NULL;
    }
    Py_DECREF(done);
    if (error != NULL) {
        PyErr_Restore(Py_NewRef(Py_TYPE(error)), error, PyException_GetTraceback(error));
    }
    return result;
}

static int
read_flag(PyObject *value)
{
    return value == Py_True ? 1 : value == Py_False ? 0 : PyObject_IsTrue(value);
}

static PyObject *
call_reset(Slot *self)
{
    hosted_env *env = &self->envs[self->command.env_id];
    self->command.argument = RESULT_OF_RESET; /* the origin of an exception, too */
    load_window(self, env);
    PyObject *callee = Py_NewRef(env->env); /* the call may register the env again */
    PyObject *result = check_for_draw(self, PyObject_CallMethodNoArgs(callee, self->reset_name));
    Py_DECREF(callee);
    if (result == NULL || env->step == NULL) {
        return result;
    }
    PyObject *step = PyObject_GetAttr(env->env, self->step_name);
    if (step == NULL) {
        Py_DECREF(result);
        return NULL;
    }
    Py_SETREF(env->step, step); /* a reset may have replaced the inner env */
    return result;
}

static int
is_plain_reset(const Slot *self, PyObject *result)
{
    return !self->has_objects && PyTuple_CheckExact(result) && PyTuple_GET_SIZE(result) == 2
           && PyDict_Check(PyTuple_GET_ITEM(result, 1));
}

/* Call take_snapshot before an env is reset here, if a snapshot is due. Returns whether the host must
 * reply to the reset; -1 with an exception. */
static int
snapshot_if_due(Slot *self)
{
    const vecenv_command *command = &self->command;
    if (self->take_snapshot == NULL || !is_snapshot_due(&self->envs[command->env_id])) {
        return 0;
    }
    PyObject *done = PyObject_CallFunction(self->take_snapshot, "IK", command->env_id,
                                           (unsigned long long)command->step_id);
    int host_replies = done == NULL ? -1 : PyObject_IsTrue(done);
    Py_XDECREF(done);
    return host_replies;
}

/* SAME_STEP, after the end of an episode: reset the env and reply with both observations.
 * TREE_INEXACT: the host must reply. If *both is NULL, the env was not reset. Else *both is
 * (reward, terminated, truncated, result of the reset), and the final observation and info are
 * staged for publish(). So they are with TREE_ERROR if *both is not NULL: then the reset raised,
 * and the last item is its exception. */
static int
begin_in_same_step(Slot *self, vecenv_reply *reply, PyObject **both)
{
    const hosted_env *env = &self->envs[self->command.env_id];
    if (env->env == NULL || self->final_obs == NULL || self->arena.reward_size != 1) {
        return TREE_INEXACT;
    }
    if (!info_is_wanted(self->infos, 1)) {
        reply->info = NULL;
    }
    int status = vecenv_slot_stage_final(self, reply);
    if (status != TREE_OK) {
        return status;
    }
    PyObject *reward = PyFloat_FromDouble(self->reward[0]); /* the env's own may be an array */
    int host_replies = reward == NULL ? -1 : snapshot_if_due(self);
    if (host_replies < 0) {
        Py_XDECREF(reward);
        unstage(self);
        return TREE_ERROR;
    }
    PyObject *result = call_reset(self);
    reply->reward = reward;
    status = result == NULL ? TREE_ERROR : TREE_INEXACT;
    if (result != NULL && !host_replies && is_plain_reset(self, result)) {
        reply->obs = PyTuple_GET_ITEM(result, 0);
        reply->info = info_is_wanted(self->infos, 0) ? PyTuple_GET_ITEM(result, 1) : NULL;
        reply->flags = VECENV_F_FINAL;
        status = vecenv_slot_reply(self, reply);
    }
    if (status == TREE_ERROR) {
        Py_XSETREF(result, take_exception());
    }
    if (status != TREE_OK) {
        *both = Py_BuildValue("(OOOO)", reward, reply->terminated ? Py_True : Py_False,
                              reply->truncated ? Py_True : Py_False, result);
        status = *both == NULL ? TREE_ERROR : status;
    }
    Py_DECREF(reward);
    Py_DECREF(result);
    return status;
}

/* Reply with the five-tuple of a step. TREE_INEXACT: the host must reply with it, or with *both if
 * that was set. */
static int
answer_step(Slot *self, PyObject *result, PyObject **both)
{
    if (!PyTuple_CheckExact(result) || PyTuple_GET_SIZE(result) != 5) {
        return TREE_INEXACT;
    }
    int terminated = read_flag(PyTuple_GET_ITEM(result, 2));
    int truncated = terminated < 0 ? -1 : read_flag(PyTuple_GET_ITEM(result, 3));
    if (truncated < 0) {
        PyErr_Clear(); /* neither true nor false: the host raises the error */
        return TREE_INEXACT;
    }
    vecenv_reply reply = {
        .obs = PyTuple_GET_ITEM(result, 0),
        .reward = PyTuple_GET_ITEM(result, 1),
        .terminated = terminated,
        .truncated = truncated,
        .info = PyTuple_GET_ITEM(result, 4),
    };
    int is_done = reply.terminated || reply.truncated;
    if (self->has_objects || !PyDict_Check(reply.info)) {
        return TREE_INEXACT;
    }
    if (is_done && self->autoreset == AUTORESET_SAME_STEP) {
        return begin_in_same_step(self, &reply, both);
    }
    if (!info_is_wanted(self->infos, is_done)) {
        reply.info = NULL;
    }
    uint32_t env_id = self->command.env_id;
    int status = vecenv_slot_reply(self, &reply);
    if (status == TREE_OK && is_done && self->autoreset == AUTORESET_NEXT_STEP) {
        self->envs[env_id].needs_reset = 1;
    }
    return status;
}

/* ---- events ---------------------------------------------------------------------- */

static PyObject *
make_event(Slot *self, int kind, PyObject *result)
{
    const vecenv_command *command = &self->command;
    return Py_BuildValue("(iIIKLIN)", kind, command->env_id, (unsigned int)command->op,
                         (unsigned long long)command->step_id,
                         (long long)command->argument, (unsigned int)command->flags,
                         result);
}

/* ---- the loop -------------------------------------------------------------------- */

/* Return whether the command under way may be one that the parent has sent after the last one of its
 * env. */
static int
is_command(Slot *self)
{
    const vecenv_command *command = &self->command;
    if (!has_check(command) || command->op == VECENV_OP_NONE || command->op > VECENV_OP_CALL
        || command->env_id >= self->arena.num_envs
        || (command->row_ref != VECENV_CLAIM
            && (!is_row_ref(&self->arena, command->row_ref)
                || ref_row(command->row_ref) == self->arena.rows))) {
        return 0;
    }
    hosted_env *env = &self->envs[command->env_id];
    int is_new = command->step_id > env->last_step_id;
    env->last_step_id = command->step_id;
    return is_new;
}

static void
begin(Slot *self)
{
    vecenv_slot_lines *lines = lines_of(self);
    uint32_t mask = self->arena.queue_size - 1;
    self->command = queue_of(&self->arena, self->slot)[self->head & mask];
    if (!is_command(self)) {
        END_STRAY("a command");
    }
    self->has_unread_payload = (self->command.flags & VECENV_C_PAYLOAD) != 0;
    if (self->now_ns == 0) {
        self->now_ns = vecenv_now_ns();
    }
    store_release(&lines->started_ns, (uint64_t)self->now_ns);
    store_release32(&lines->current_env, self->command.env_id);
    store_release(&lines->current_step_id, self->command.step_id);
    store_release32(&lines->current_op, self->command.op);
}

/* Begin to time the command under way. Calls are not timed, nor is anything without timings. */
static void
begin_timing(Slot *self)
{
    hosted_env *env = &self->envs[self->command.env_id];
    int kind = self->arena.timings == NULL           ? VECENV_TIMING_NONE
               : self->command.op == VECENV_OP_CALL  ? VECENV_TIMING_NONE
               : self->command.op == VECENV_OP_RESET ? VECENV_TIMING_RESET
               : env->needs_reset                    ? VECENV_TIMING_RESET
                                                     : VECENV_TIMING_STEP;
    vecenv_timer_begin(&self->timer, &env->timed, kind);
}

static PyObject *
call_step(const Slot *self, const hosted_env *env, PyObject *action)
{
    PyObject *result, *step = env->step;
    PyObject *callee = Py_NewRef(step != NULL ? step : env->env); /* the call may register the env again */
    if (step != NULL) {
        result = PyObject_CallOneArg(callee, action);
    } else {
        PyObject *arguments[] = {callee, action};
        result = PyObject_VectorcallMethod(self->step_name, arguments, 2, NULL);
    }
    Py_DECREF(callee);
    return result;
}

/* Step the env of the command under way. Returns NULL if the command was answered, else the event
 * for the host. */
static PyObject *
step(Slot *self)
{
    hosted_env *env = &self->envs[self->command.env_id];
    PyObject *action = tree_load(self->action, self->arena.base, self->command.env_id,
                                 self->command.flags & VECENV_C_FORM);
    if (action == NULL) {
        return make_event(self, EVENT_RAISED, take_exception());
    }
    load_window(self, env);
    PyObject *result = check_for_draw(self, call_step(self, env, action));
    Py_DECREF(action);
    if (result == NULL) {
        return make_event(self, EVENT_RAISED, take_exception());
    }
    count_env_step(self);
    PyObject *both = NULL;
    int status = answer_step(self, result, &both);
    if (status == TREE_INEXACT && both == NULL) {
        return make_event(self, EVENT_RESULT, result);
    }
    Py_DECREF(result);
    if (both != NULL) {
        self->command.argument = RESULT_OF_BOTH;
        return make_event(self, status == TREE_ERROR ? EVENT_RAISED : EVENT_RESULT, both);
    }
    if (status == TREE_ERROR) {
        return make_event(self, EVENT_RAISED, take_exception());
    }
    return NULL;
}

/* NEXT_STEP: the episode is over, so reset the env instead of a step. Returns NULL if the command
 * was answered, else the event for the host. */
static PyObject *
autoreset(Slot *self)
{
    hosted_env *env = &self->envs[self->command.env_id];
    int host_replies = snapshot_if_due(self);
    PyObject *result = host_replies < 0 ? NULL : call_reset(self);
    if (result == NULL) {
        return make_event(self, EVENT_RAISED, take_exception());
    }
    env->counters.seed = -1;
    int status = TREE_INEXACT;
    if (!host_replies && is_plain_reset(self, result)) {
        vecenv_reply reply = {
            .obs = PyTuple_GET_ITEM(result, 0),
            .info = info_is_wanted(self->infos, 0) ? PyTuple_GET_ITEM(result, 1) : NULL,
            .flags = VECENV_F_AUTORESET,
        };
        status = vecenv_slot_reply(self, &reply);
    }
    if (status == TREE_INEXACT) {
        return make_event(self, EVENT_RESULT, result);
    }
    Py_DECREF(result);
    if (status == TREE_ERROR) {
        return make_event(self, EVENT_RAISED, take_exception());
    }
    env->needs_reset = 0;
    return NULL;
}

PyObject *
vecenv_slot_serve(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    Slot *self = (Slot *)op;
    vecenv_slot_lines *lines = lines_of(self);
    if (self->waits && self->arena.timings != NULL && self->timer.has_delay_file == 0) {
        vecenv_timer_open(&self->timer); /* with the clocks of this thread, which serves the slot */
    }
    for (;;) {
        if (load_acquire32(&self->arena.control->stop)) {
            return make_event(self, EVENT_STOP, Py_NewRef(Py_None));
        }
        uint32_t superseded = load_acquire32(&lines->num_superseded);
        uint32_t num_commands = load_acquire32(&lines->tail) - self->head;
        if (num_commands == 0) {
            /* loaded before the queue was found empty: all commands superseded by then are gone */
            self->last_num_superseded = superseded;
            self->now_ns = 0;
            if (!self->waits) {
                return make_event(self, EVENT_IDLE, Py_NewRef(Py_None));
            }
            if (load_acquire32(&lines->head) != self->head) {
                END_STRAY("the head of a queue");
            }
            Py_BEGIN_ALLOW_THREADS
            /* slots spin only if there are enough cores: at most one slot per core, no contention */
            if (self->spin_policy.spin_limit_ns > 0 && !vecenv_backs_off(&self->spin_policy)) {
                vecenv_wake_parent_early(&self->arena, self->event_fd);
            }
            vecenv_slot_park(&self->arena, self->slot, &self->spin_policy, &self->affinity,
                             PARK_SLICE_NS);
            Py_END_ALLOW_THREADS
            if (PyErr_CheckSignals() < 0) {
                return NULL;
            }
            continue;
        }
        if (load_acquire32(&self->arena.control->stop)) {
            continue; /* Hub.stop stores `stop`, then advances `tail` without a command */
        }
        if (num_commands > self->arena.queue_size) {
            END_STRAY("the tail of a queue");
        }
        begin(self);
        if (self->envs[self->command.env_id].step == NULL
            && self->envs[self->command.env_id].env == NULL) {
            self->command.op = VECENV_OP_NONE;
            PyErr_SetString(PyExc_RuntimeError, "command for an env of another slot");
            return NULL;
        }
        const hosted_env *env = &self->envs[self->command.env_id];
        int begins = env->needs_reset;
        int plain = self->command.op == VECENV_OP_STEP
                    && !(self->command.flags & VECENV_C_PAYLOAD)
                    && (begins ? env->env != NULL
                               : env->step != Py_None && !is_step_snapshot_due(env));
        int is_over = self->command.op != VECENV_OP_CALL && is_superseded(self);
        if (is_over && !(self->command.flags & VECENV_C_PAYLOAD)) {
            vecenv_slot_drop(self);
            continue;
        }
        begin_timing(self);
        if (!plain) {
            if (self->command.op == VECENV_OP_STEP) { /* its payload may contain an action */
                self->command.argument = begins                      ? STEP_BEGINS
                                         : is_step_snapshot_due(env) ? STEP_WITH_SNAPSHOT
                                                                     : STEP_ONLY;
            }
            return make_event(self, EVENT_COMMAND, Py_NewRef(is_over ? Py_True : Py_None));
        }
        PyObject *event = begins ? autoreset(self) : step(self);
        if (event != NULL || self->command.op != VECENV_OP_NONE) { /* else make_event failed */
            return event;
        }
    }
}
