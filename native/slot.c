/* Slot: the worker's end. One C loop takes commands from the queue, steps envs and writes
 * rows; whatever is not a plain step is handed to Python as an event and finished by
 * `publish`. Stands between the doorbell and the row on the data path. */
#include "slot.h"

#include <string.h>

#include "claim.h"
#include "info.h"
#include "layout.h"
#include "mail.h"
#include "park.h"
#include "tree.h"

/* A sleeping slot looks around this often, as a second net below its doorbell. */
#define PARK_SLICE_NS INT64_C(1000000000)

enum { AUTORESET_DISABLED, AUTORESET_NEXT_STEP, AUTORESET_SAME_STEP };

/* What serve() returns first. */
enum { EVENT_STOP, EVENT_IDLE, EVENT_COMMAND, EVENT_RESULT, EVENT_RAISED };

/* What the argument of EVENT_RESULT says of its result. */
enum { RESULT_OF_STEP, RESULT_OF_RESET, RESULT_OF_BOTH };

typedef struct {
    PyObject *step;  /* bound method, or NULL: not hosted by this slot */
    PyObject *env;   /* whose `reset` begins the next episode here; NULL: the host does it */
    int needs_reset; /* NEXT_STEP: the episode is over, the next step resets */
    int64_t last_ns; /* how long its last command took */
    int64_t began_ns; /* when its episode began */
    vecenv_tally tally;
} hosted_env;

typedef struct {
    PyObject_HEAD
    Py_buffer mapping;
    vecenv_arena arena;
    uint32_t slot;
    int event_fd;
    int autoreset;
    int waits;       /* whether serve() may sleep */
    int has_objects; /* observations have parts without columns: every row has mail */
    vecenv_patience patience;
    node *obs, *final_obs, *action;
    held_leaf *held;
    uint8_t *staging;  /* SAME_STEP: leaves that ended an episode, safe from its reset */
    size_t num_staged; /* of them, in front of `held`, for the row under way */
    double *reward;
    hosted_env *envs;
    int infos; /* which infos travel, INFOS_* */
    info_table info_table;
    info_cells cells;
    PyObject *numpy_scalar, *numpy_array; /* types */
    vecenv_command command; /* under way */
    int64_t now_ns;         /* when the last command ended, 0 after a wait */
    int64_t told_ns;        /* when the parent was last told */
    uint32_t seen_superseded;
} Slot;

/* ---- life ------------------------------------------------------------------------- */

static int
slot_traverse(PyObject *op, visitproc visit, void *arg)
{
    Slot *self = (Slot *)op;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->numpy_scalar);
    Py_VISIT(self->numpy_array);
    for (uint32_t i = 0; self->envs != NULL && i < self->arena.num_envs; i++) {
        Py_VISIT(self->envs[i].step);
        Py_VISIT(self->envs[i].env);
    }
    int result = node_traverse(self->obs, visit, arg);
    if (result == 0) {
        result = node_traverse(self->final_obs, visit, arg);
    }
    return result != 0 ? result : node_traverse(self->action, visit, arg);
}

static int
slot_clear(PyObject *op)
{
    Slot *self = (Slot *)op;
    for (uint32_t i = 0; self->envs != NULL && i < self->arena.num_envs; i++) {
        Py_CLEAR(self->envs[i].step);
        Py_CLEAR(self->envs[i].env);
    }
    info_clear(&self->info_table);
    Py_CLEAR(self->numpy_scalar);
    Py_CLEAR(self->numpy_array);
    node_free(self->obs);
    node_free(self->final_obs);
    node_free(self->action);
    self->obs = self->final_obs = self->action = NULL;
    return 0;
}

static void
slot_dealloc(PyObject *op)
{
    Slot *self = (Slot *)op;
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(op);
    slot_clear(op);
    PyMem_Free(self->envs);
    PyMem_Free(self->held);
    PyMem_Free(self->staging);
    PyMem_Free(self->reward);
    if (self->mapping.obj != NULL) {
        PyBuffer_Release(&self->mapping);
    }
    type->tp_free(op);
    Py_DECREF(type);
}

static int
build_trees(Slot *self, PyObject *obs, PyObject *final_obs, PyObject *action)
{
    self->obs = node_new(obs);
    if (self->obs == NULL) {
        return -1;
    }
    if (final_obs != Py_None && (self->final_obs = node_new(final_obs)) == NULL) {
        return -1;
    }
    self->action = node_new(action);
    if (self->action == NULL) {
        return -1;
    }
    self->has_objects = node_has_objects(self->obs);
    size_t leaves = 2 * node_num_leaves(self->obs) + 1;
    self->held = PyMem_Calloc(leaves, sizeof(held_leaf));
    self->reward = PyMem_Calloc(self->arena.reward_size + 1, sizeof(double));
    self->staging = PyMem_Malloc(node_nbytes(self->obs) + 1);
    self->envs = PyMem_Calloc(self->arena.num_envs, sizeof(hosted_env));
    if (self->held == NULL || self->reward == NULL || self->envs == NULL
        || self->staging == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (uint32_t i = 0; i < self->arena.num_envs; i++) {
        self->envs[i].tally.episode = -1;
        self->envs[i].tally.seed = -1;
    }
    return 0;
}

static PyObject *
slot_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"mapping", "slot", "event_fd", "obs", "final_obs", "action",
                            "autoreset", "spin_ns", "waits", "numpy_scalar",
                            "numpy_array", "infos", NULL};
    PyObject *mapping, *obs, *final_obs, *action, *numpy_scalar, *numpy_array;
    unsigned int slot;
    int event_fd, autoreset, waits, infos;
    long long spin_ns;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OIiOOOiLpO!O!i:Slot", names,
                                     &mapping, &slot, &event_fd, &obs, &final_obs,
                                     &action, &autoreset, &spin_ns, &waits, &PyType_Type,
                                     &numpy_scalar, &PyType_Type, &numpy_array,
                                     &infos)) {
        return NULL;
    }
    Slot *self = (Slot *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->numpy_scalar = Py_NewRef(numpy_scalar);
    self->numpy_array = Py_NewRef(numpy_array);
    self->info_table.scalar_type = (PyTypeObject *)numpy_scalar;
    self->info_table.array_type = (PyTypeObject *)numpy_array;
    self->infos = infos;
    self->slot = slot;
    self->event_fd = event_fd;
    self->autoreset = autoreset;
    self->waits = waits;
    self->patience.budget_ns = spin_ns;
    if (PyObject_GetBuffer(mapping, &self->mapping, PyBUF_WRITABLE) < 0
        || vecenv_attach(&self->arena, &self->mapping) < 0) {
        goto fail;
    }
    if (slot >= self->arena.num_slots) {
        PyErr_SetString(PyExc_ValueError, "slot out of range");
        goto fail;
    }
    if (build_trees(self, obs, final_obs, action) < 0) {
        goto fail;
    }
    return (PyObject *)self;
fail:
    Py_DECREF(self);
    return NULL;
}

/* ---- commands ------------------------------------------------------------------------ */

static vecenv_slot_lines *
lines_of(const Slot *self)
{
    return &self->arena.slots[self->slot];
}

/* The newest step_ids lie on lines that the parent writes at every send; the counter on
 * our own doorbell's line says whether they are worth a look at all. */
static int
is_superseded(const Slot *self)
{
    return load_acquire32(&lines_of(self)->num_superseded) != self->seen_superseded
           && load_acquire(&self->arena.newest[self->command.env_id])
                  != self->command.step_id;
}

static void
begin(Slot *self)
{
    vecenv_slot_lines *lines = lines_of(self);
    uint32_t head = load_acquire32(&lines->head);
    self->command = queue_of(&self->arena, self->slot)[head & (self->arena.queue_size - 1)];
    if (self->now_ns == 0) {
        self->now_ns = vecenv_now_ns();
    }
    store_release(&lines->started_ns, (uint64_t)self->now_ns);
    store_release32(&lines->current_env, self->command.env_id);
    store_release(&lines->current_step_id, self->command.step_id);
    store_release32(&lines->current_op, self->command.op);
}

/* Telling the parent needs a full fence, which waits until every line of the row has been
 * fetched from the other cores: more than a quick env's whole step. So a burst of quick
 * steps tells it only this often, at its end, and before a command that is not quick. */
#define TELL_NS 10000

static int
is_quick(const Slot *self, uint32_t head)
{
    uint32_t mask = self->arena.queue_size - 1;
    uint32_t env_id = queue_of(&self->arena, self->slot)[head & mask].env_id;
    return env_id < self->arena.num_envs && self->envs[env_id].last_ns < TELL_NS;
}

/* The command is answered (or dropped): free its place in the queue, tell the parent. */
static void
finish(Slot *self)
{
    vecenv_slot_lines *lines = lines_of(self);
    uint32_t head = load_acquire32(&lines->head) + 1;
    int is_last = load_acquire32(&lines->tail) == head;
    int64_t began = self->now_ns;
    store_release32(&lines->current_op, VECENV_OP_NONE);
    store_release32(&lines->head, head);
    self->command.op = VECENV_OP_NONE;
    self->now_ns = vecenv_now_ns();
    self->envs[self->command.env_id].last_ns = self->now_ns - began;
    if (is_last || self->now_ns - self->told_ns > TELL_NS || !is_quick(self, head)) {
        self->told_ns = self->now_ns;
        vecenv_wake_parent(&self->arena, self->event_fd, is_last);
    }
}

static uint8_t *
block_start(const Slot *self, uint64_t place)
{
    return self->arena.blocks + (size_t)place_block(place) * self->arena.block_stride;
}

#define CELL(self, place, word, type) \
    (((type *)(void *)column(&(self)->arena, place_block(place), word))[place_row(place)])

/* An ordered request needs each of its rows, also those nobody waits for any more. */
static void
drop(Slot *self)
{
    if (self->command.place != VECENV_CLAIM) {
        uint64_t place = self->command.place;
        CELL(self, place, VECENV_H_STEP_ID, uint64_t) = 0; /* no answer to anything */
        CELL(self, place, VECENV_H_ENV_ID, int64_t) = self->command.env_id;
        CELL(self, place, VECENV_H_FLAGS, uint32_t) = VECENV_F_VOID;
        vecenv_commit(&self->arena, place);
    }
    finish(self);
}

/* ---- rows ---------------------------------------------------------------------------- */

typedef struct {
    PyObject *obs, *reward, *info, *final_obs; /* borrowed; NULL: nothing, or zero */
    int terminated, truncated;
    uint32_t flags;
} answer;

static void
begin_episode(hosted_env *env)
{
    env->began_ns = vecenv_now_ns();
    env->tally.episode++;
    env->tally.length = 0;
    env->tally.episode_return = 0.0;
}

static void
count_step(hosted_env *env, const answer *row, double reward)
{
    if (row->flags & (VECENV_F_RESET | VECENV_F_AUTORESET)) {
        begin_episode(env);
    } else if (!(row->flags & VECENV_F_ERROR)) {
        env->tally.length++;
        env->tally.episode_return += reward;
    }
}

static void
write_row(Slot *self, hosted_env *env, const answer *row, size_t num_held, uint64_t place)
{
    const vecenv_arena *arena = &self->arena;
    count_step(env, row, self->reward[0]);
    CELL(self, place, VECENV_H_STEP_ID, uint64_t) = self->command.step_id;
    CELL(self, place, VECENV_H_ENV_ID, int64_t) = self->command.env_id;
    memcpy(column(arena, place_block(place), VECENV_H_REWARD)
               + (size_t)place_row(place) * arena->reward_size * sizeof(double),
           self->reward, arena->reward_size * sizeof(double));
    CELL(self, place, VECENV_H_TERMINATED, uint8_t) = (uint8_t)row->terminated;
    CELL(self, place, VECENV_H_TRUNCATED, uint8_t) = (uint8_t)row->truncated;
    CELL(self, place, VECENV_H_FLAGS, uint32_t) = row->flags;
    CELL(self, place, VECENV_H_TALLY, vecenv_tally) = env->tally;
    if (row->terminated || row->truncated) {
        double seconds = (double)(vecenv_now_ns() - env->began_ns) / 1e9;
        CELL(self, place, VECENV_H_SECONDS, double) = seconds;
    }
    if (row->flags & VECENV_F_INFO) {
        info_store(arena, &self->cells, place_block(place), place_row(place));
    }
    tree_store(self->held, num_held, block_start(self, place), place_row(place));
    if (row->flags & VECENV_F_FINAL) { /* the same step began a new episode */
        begin_episode(env);
        env->tally.seed = -1;
    }
}

/* Check everything that can fail into self->held and self->reward. */
static int
check_answer(Slot *self, answer *row, size_t *num_held)
{
    int status = TREE_OK;
    if (row->obs != NULL) {
        status = tree_hold(self->obs, row->obs, self->held, num_held);
    }
    if (status == TREE_OK && row->final_obs != NULL && self->final_obs != NULL) {
        status = tree_hold(self->final_obs, row->final_obs, self->held, num_held);
    }
    if (status == TREE_OK && row->reward != NULL) {
        status = reward_read(row->reward, self->reward, self->arena.reward_size);
    } else {
        memset(self->reward, 0, self->arena.reward_size * sizeof(double));
    }
    if (status == TREE_OK && row->info != NULL && PyDict_GET_SIZE(row->info) > 0) {
        status = info_read(&self->arena, &self->info_table, row->info, self->infos,
                           &self->cells);
        row->flags |= status == TREE_OK && self->cells.used > 0 ? VECENV_F_INFO : 0;
    }
    return status;
}

/* Write and commit the row of the command under way. TREE_ODD: nothing was written. */
static int
answer_with(Slot *self, answer *row)
{
    hosted_env *env = &self->envs[self->command.env_id];
    size_t num_held = self->num_staged;
    int status = check_answer(self, row, &num_held);
    if (status == TREE_OK) {
        if (is_superseded(self)) {
            drop(self);
        } else {
            /* From here to the commit stand only copies: a claimed row is never left. */
            uint64_t place = self->command.place != VECENV_CLAIM
                                 ? self->command.place
                                 : vecenv_claim(&self->arena, self->slot);
            write_row(self, env, row, num_held, place);
            vecenv_commit(&self->arena, place);
            finish(self);
        }
    }
    tree_release(self->held, num_held);
    if (status == TREE_OK) {
        self->num_staged = 0;
    }
    return status;
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
    PyObject *result = PyObject_CallMethod(env->env, "reset", NULL);
    PyObject *step_method = result == NULL ? NULL : PyObject_GetAttrString(env->env, "step");
    if (step_method == NULL) {
        Py_XDECREF(result);
        return NULL;
    }
    Py_XSETREF(env->step, step_method); /* a reset may have put another env behind it */
    return result;
}

static int
is_plain_reset(const Slot *self, PyObject *result)
{
    return !self->has_objects && PyTuple_CheckExact(result) && PyTuple_GET_SIZE(result) == 2
           && PyDict_Check(PyTuple_GET_ITEM(result, 1));
}

/* Copy the observation that ends an episode: the reset may overwrite it in place. */
static int
stage_final(Slot *self, PyObject *obs)
{
    size_t count = 0, at = 0;
    int status = tree_hold(self->final_obs, obs, self->held, &count);
    for (size_t i = 0; status == TREE_OK && i < count; i++) {
        memcpy(self->staging + at, self->held[i].source, self->held[i].nbytes);
        self->held[i].source = self->staging + at;
        at += self->held[i].nbytes;
    }
    tree_release(self->held, count);
    self->num_staged = status == TREE_OK ? count : 0;
    return status;
}

/* SAME_STEP, an episode has ended: reset the env and answer with both observations.
 * TREE_ODD: before the reset, *reset_result is NULL; after it, it holds what the reset
 * returned, and the final observation is staged for `publish`. */
static int
begin_in_same_step(Slot *self, answer *row, PyObject **reset_result)
{
    int has_final_info = info_is_wanted(self->infos, 1) && PyDict_GET_SIZE(row->info) > 0;
    if (self->envs[self->command.env_id].env == NULL || has_final_info
        || self->final_obs == NULL || stage_final(self, row->obs) != TREE_OK
        || reward_read(row->reward, self->reward, self->arena.reward_size) != TREE_OK) {
        self->num_staged = 0;
        return TREE_ODD;
    }
    PyObject *result = call_reset(self);
    if (result == NULL) {
        self->num_staged = 0;
        return TREE_ERROR;
    }
    int status = TREE_ODD;
    if (is_plain_reset(self, result)) {
        row->obs = PyTuple_GET_ITEM(result, 0);
        row->info = info_is_wanted(self->infos, 0) ? PyTuple_GET_ITEM(result, 1) : NULL;
        row->flags = VECENV_F_FINAL;
        status = answer_with(self, row);
    }
    if (status == TREE_ODD) {
        *reset_result = result;
    } else {
        Py_DECREF(result);
    }
    return status;
}

/* Answer with the five-tuple of a step. TREE_ODD: Python must look at it, and at
 * *reset_result if that has been set. */
static int
answer_step(Slot *self, PyObject *result, PyObject **reset_result)
{
    if (!PyTuple_CheckExact(result) || PyTuple_GET_SIZE(result) != 5) {
        return TREE_ODD;
    }
    answer row = {
        .obs = PyTuple_GET_ITEM(result, 0),
        .reward = PyTuple_GET_ITEM(result, 1),
        .terminated = read_flag(PyTuple_GET_ITEM(result, 2)),
        .truncated = read_flag(PyTuple_GET_ITEM(result, 3)),
        .info = PyTuple_GET_ITEM(result, 4),
    };
    if (row.terminated < 0 || row.truncated < 0) {
        return TREE_ERROR;
    }
    int is_done = row.terminated || row.truncated;
    if (self->has_objects || !PyDict_Check(row.info)) {
        return TREE_ODD;
    }
    if (is_done && self->autoreset == AUTORESET_SAME_STEP) {
        return begin_in_same_step(self, &row, reset_result);
    }
    if (!info_is_wanted(self->infos, is_done)) {
        row.info = NULL;
    }
    uint32_t env_id = self->command.env_id;
    int status = answer_with(self, &row);
    if (status == TREE_OK && is_done && self->autoreset == AUTORESET_NEXT_STEP) {
        self->envs[env_id].needs_reset = 1;
    }
    return status;
}

/* ---- the loop -------------------------------------------------------------------------- */

static PyObject *
make_event(Slot *self, int kind, PyObject *result)
{
    const vecenv_command *command = &self->command;
    return Py_BuildValue("(iIIKLIN)", kind, command->env_id, (unsigned int)command->op,
                         (unsigned long long)command->step_id,
                         (long long)command->argument, (unsigned int)command->flags,
                         result);
}

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

/* Step the env of the command under way. Returns NULL when that answered it (or set
 * *failed), else the event for Python. */
static PyObject *
step(Slot *self, int *failed)
{
    hosted_env *env = &self->envs[self->command.env_id];
    PyObject *action = tree_load(self->action, self->arena.base, self->command.env_id,
                                 self->command.flags & VECENV_C_FORM);
    if (action == NULL) {
        *failed = 1;
        return NULL;
    }
    PyObject *result = PyObject_CallOneArg(env->step, action);
    Py_DECREF(action);
    if (result == NULL) {
        return make_event(self, EVENT_RAISED, take_exception());
    }
    vecenv_word *num_steps = &lines_of(self)->num_steps;
    store_release(num_steps, load_acquire(num_steps) + 1);
    PyObject *reset_result = NULL;
    int status = answer_step(self, result, &reset_result);
    if (status == TREE_ODD && reset_result != NULL) {
        self->command.argument = RESULT_OF_BOTH;
        return make_event(self, EVENT_RESULT, Py_BuildValue("(NN)", result, reset_result));
    }
    if (status == TREE_ODD) {
        return make_event(self, EVENT_RESULT, result);
    }
    Py_DECREF(result);
    if (status == TREE_ERROR) {
        return make_event(self, EVENT_RAISED, take_exception());
    }
    return NULL;
}

/* NEXT_STEP: the episode is over, so the command under way begins the next one. Returns
 * as `step` does. */
static PyObject *
autoreset(Slot *self, int *failed)
{
    hosted_env *env = &self->envs[self->command.env_id];
    PyObject *result = call_reset(self);
    if (result == NULL) {
        return make_event(self, EVENT_RAISED, take_exception());
    }
    env->tally.seed = -1;
    int status = TREE_ODD;
    if (is_plain_reset(self, result)) {
        answer row = {
            .obs = PyTuple_GET_ITEM(result, 0),
            .info = info_is_wanted(self->infos, 0) ? PyTuple_GET_ITEM(result, 1) : NULL,
            .flags = VECENV_F_AUTORESET,
        };
        status = answer_with(self, &row);
    }
    if (status == TREE_ODD) {
        self->command.argument = RESULT_OF_RESET;
        return make_event(self, EVENT_RESULT, result);
    }
    Py_DECREF(result);
    env->needs_reset = 0;
    *failed = status == TREE_ERROR;
    return NULL;
}

static PyObject *
slot_serve(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    Slot *self = (Slot *)op;
    vecenv_slot_lines *lines = lines_of(self);
    for (;;) {
        if (load_acquire32(&self->arena.control->stop)) {
            return make_event(self, EVENT_STOP, Py_NewRef(Py_None));
        }
        uint32_t superseded = load_acquire32(&lines->num_superseded);
        if (load_acquire32(&lines->tail) == load_acquire32(&lines->head)) {
            /* read before the empty queue: what was overtaken by then has been dropped */
            self->seen_superseded = superseded;
            self->now_ns = 0;
            if (!self->waits) {
                return make_event(self, EVENT_IDLE, Py_NewRef(Py_None));
            }
            Py_BEGIN_ALLOW_THREADS
            vecenv_slot_park(&self->arena, self->slot, &self->patience, PARK_SLICE_NS);
            Py_END_ALLOW_THREADS
            if (PyErr_CheckSignals() < 0) {
                return NULL;
            }
            continue;
        }
        if (load_acquire32(&self->arena.control->stop)) {
            continue; /* Hub.stop stores stop, then moves tail with no command behind it */
        }
        begin(self);
        if (self->command.env_id >= self->arena.num_envs
            || self->envs[self->command.env_id].step == NULL) {
            PyErr_SetString(PyExc_RuntimeError, "command for an env of another slot");
            return NULL;
        }
        const hosted_env *env = &self->envs[self->command.env_id];
        int plain = self->command.op == VECENV_OP_STEP
                    && !(self->command.flags & VECENV_C_LETTER)
                    && (!env->needs_reset || env->env != NULL);
        if (!(self->command.flags & VECENV_C_LETTER) && is_superseded(self)) {
            drop(self);
            continue;
        }
        if (!plain) {
            if (self->command.op == VECENV_OP_STEP) { /* whose letter may hold an action */
                self->command.argument = self->envs[self->command.env_id].needs_reset;
            }
            return make_event(self, EVENT_COMMAND, Py_NewRef(Py_None));
        }
        int failed = 0;
        PyObject *event = env->needs_reset ? autoreset(self, &failed) : step(self, &failed);
        if (event != NULL || failed) {
            return event;
        }
    }
}

PyDoc_STRVAR(serve_doc,
"serve($self, /)\n--\n\n"
"Step envs until something needs Python; return that event.\n\n"
"An event is (kind, env_id, op, step_id, argument, flags, result). EVENT_COMMAND: a reset,\n"
"a call or a step with a letter is under way. EVENT_RESULT: a step returned `result`,\n"
"which needs conversion, mail or an autoreset. EVENT_RAISED: it raised `result`.\n"
"EVENT_STOP and EVENT_IDLE: nothing is under way. All but the last two must be finished\n"
"by `publish` or `finish`. Sleeps without the GIL while the queue is empty.");

static PyObject *
slot_publish(PyObject *op, PyObject *args)
{
    Slot *self = (Slot *)op;
    PyObject *obs, *reward, *info, *final_obs;
    answer row = {0};
    if (!PyArg_ParseTuple(args, "OOppOIO:publish", &obs, &reward, &row.terminated,
                          &row.truncated, &info, &row.flags, &final_obs)) {
        return NULL;
    }
    if (self->command.op == VECENV_OP_NONE) {
        PyErr_SetString(PyExc_RuntimeError, "publish without a command under way");
        return NULL;
    }
    row.obs = obs == Py_None ? NULL : obs;
    row.reward = reward;
    row.info = info == Py_None ? NULL : info;
    row.final_obs = final_obs == Py_None ? NULL : final_obs;
    hosted_env *env = &self->envs[self->command.env_id];
    int status = answer_with(self, &row);
    if (status == TREE_ERROR) {
        return NULL;
    }
    if (status == TREE_OK) {
        int is_done = row.terminated || row.truncated;
        env->needs_reset = is_done && self->autoreset == AUTORESET_NEXT_STEP;
    }
    return PyBool_FromLong(status == TREE_OK);
}

PyDoc_STRVAR(publish_doc,
"publish($self, obs, reward, terminated, truncated, info, flags, final_obs, /)\n--\n\n"
"Answer the command under way with one row; True when it was written.\n\n"
"False: a value needs conversion (observation leaves must have exactly their dtype and\n"
"shape, info values must have cells under known keys) and nothing was written. obs,\n"
"info and final_obs may be None: their columns are left as they are.");

static PyObject *
slot_finish(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    Slot *self = (Slot *)op;
    if (self->command.op != VECENV_OP_NONE) {
        drop(self);
    }
    Py_RETURN_NONE;
}

PyDoc_STRVAR(finish_doc,
"finish($self, /)\n--\n\n"
"End the command under way without a row of its own (its answer went as mail).");

static PyObject *
slot_host(PyObject *op, PyObject *args)
{
    Slot *self = (Slot *)op;
    unsigned int env_id;
    PyObject *step_method, *env = Py_None;
    if (!PyArg_ParseTuple(args, "IO|O:host", &env_id, &step_method, &env)) {
        return NULL;
    }
    if (env_id >= self->arena.num_envs) {
        PyErr_SetString(PyExc_ValueError, "env_id out of range");
        return NULL;
    }
    Py_XSETREF(self->envs[env_id].step, Py_NewRef(step_method));
    Py_XSETREF(self->envs[env_id].env, env == Py_None ? NULL : Py_NewRef(env));
    Py_RETURN_NONE;
}

PyDoc_STRVAR(host_doc,
"host($self, env_id, step, env=None, /)\n--\n\n"
"Step env_id by calling `step(action)` from now on, and begin its next episodes under\n"
"NEXT_STEP by `env.reset()`; without env they are the host's to begin.");

static PyObject *
slot_set_seed(PyObject *op, PyObject *args)
{
    Slot *self = (Slot *)op;
    unsigned int env_id;
    long long seed;
    if (!PyArg_ParseTuple(args, "IL:set_seed", &env_id, &seed)) {
        return NULL;
    }
    if (env_id >= self->arena.num_envs) {
        PyErr_SetString(PyExc_ValueError, "env_id out of range");
        return NULL;
    }
    self->envs[env_id].tally.seed = seed;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(set_seed_doc,
"set_seed($self, env_id, seed, /)\n--\n\n"
"Record the seed of the episode that begins; rows carry it. -1: unseeded.");

static PyObject *
slot_action(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    Slot *self = (Slot *)op;
    return tree_load(self->action, self->arena.base, self->command.env_id,
                     self->command.flags & VECENV_C_FORM);
}

PyDoc_STRVAR(action_doc,
"action($self, /)\n--\n\nA new action object for the command under way.");

/* ---- mail ------------------------------------------------------------------------------ */

#define MAIL_SLICE_NS INT64_C(100000000)

static PyObject *
slot_mail(PyObject *op, PyObject *arg)
{
    Slot *self = (Slot *)op;
    Py_buffer data;
    if (PyObject_GetBuffer(arg, &data, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    vecenv_mail mail = vecenv_mail_up(&self->arena, self->slot);
    vecenv_slot_lines *lines = lines_of(self);
    const uint8_t *next = data.buf;
    size_t left = (size_t)data.len;
    for (;;) {
        uint64_t seen = load_acquire(mail.read);
        ptrdiff_t taken = vecenv_mail_put(&mail, next, left);
        if (taken >= 0 && (size_t)taken == left) {
            break;
        }
        if (taken > 0) {
            next += taken;
            left -= (size_t)taken;
            continue;
        }
        /* Full: the parent's drain stores `read`, fences, looks at blocked. */
        Py_BEGIN_ALLOW_THREADS
        store_release32(&lines->blocked, 1);
        full_fence();
        vecenv_wake_parent_now(&self->arena, self->event_fd);
        if (load_acquire(mail.read) == seen) {
            vecenv_wait_word(mail.read, seen, MAIL_SLICE_NS);
        }
        Py_END_ALLOW_THREADS
        if (PyErr_CheckSignals() < 0 || load_acquire32(&self->arena.control->stop)) {
            break;
        }
    }
    store_release32(&lines->blocked, 0);
    PyBuffer_Release(&data);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

PyDoc_STRVAR(mail_doc,
"mail($self, data, /)\n--\n\n"
"Write one message for the parent; waits, deadlines suspended, while the ring is full.");

static PyObject *
slot_letter(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    Slot *self = (Slot *)op;
    vecenv_mail mail = vecenv_mail_down(&self->arena, self->slot);
    PyObject *letter = PyByteArray_FromStringAndSize(NULL, 0);
    while (letter != NULL) {
        size_t nbytes;
        uint64_t seen = load_acquire(mail.written);
        int kind = vecenv_mail_peek(&mail, &nbytes);
        if (kind == VECENV_MAIL_NONE) { /* the parent is writing the next piece */
            store_release32(&lines_of(self)->blocked, 1); /* not late, but kept waiting */
            Py_BEGIN_ALLOW_THREADS
            vecenv_wait_word(mail.written, seen, MAIL_SLICE_NS);
            Py_END_ALLOW_THREADS
            if (PyErr_CheckSignals() < 0) {
                Py_CLEAR(letter);
            } else if (load_acquire32(&self->arena.control->stop)) {
                PyErr_SetString(PyExc_InterruptedError, "stopped within a letter");
                Py_CLEAR(letter);
            }
            continue;
        }
        Py_ssize_t have = PyByteArray_GET_SIZE(letter);
        if (PyByteArray_Resize(letter, have + (Py_ssize_t)nbytes) < 0) {
            Py_CLEAR(letter);
            break;
        }
        vecenv_mail_take(&mail, PyByteArray_AS_STRING(letter) + have);
        if (kind == VECENV_MAIL_LAST) {
            break;
        }
    }
    store_release32(&lines_of(self)->blocked, 0);
    return letter;
}

PyDoc_STRVAR(letter_doc,
"letter($self, /)\n--\n\n"
"Read the letter of the command under way (a bytearray).");

static PyMethodDef slot_methods[] = {
    {"serve", slot_serve, METH_NOARGS, serve_doc},
    {"publish", slot_publish, METH_VARARGS, publish_doc},
    {"finish", slot_finish, METH_NOARGS, finish_doc},
    {"host", slot_host, METH_VARARGS, host_doc},
    {"set_seed", slot_set_seed, METH_VARARGS, set_seed_doc},
    {"action", slot_action, METH_NOARGS, action_doc},
    {"mail", slot_mail, METH_O, mail_doc},
    {"letter", slot_letter, METH_NOARGS, letter_doc},
    {NULL, NULL, 0, NULL},
};

PyDoc_STRVAR(slot_doc,
"Slot(mapping, slot, event_fd, obs, final_obs, action, autoreset, spin_ns, waits, "
"numpy_scalar, numpy_array, infos)\n--\n\n"
"The worker's end of one slot: commands in, rows out. One thread uses it.");

static PyType_Slot slot_slots[] = {
    {Py_tp_doc, (void *)slot_doc},
    {Py_tp_new, (void *)slot_new},
    {Py_tp_dealloc, (void *)slot_dealloc},
    {Py_tp_traverse, (void *)slot_traverse},
    {Py_tp_clear, (void *)slot_clear},
    {Py_tp_methods, slot_methods},
    {0, NULL},
};

static PyType_Spec slot_spec = {
    .name = "vecenv._native.Slot",
    .basicsize = sizeof(Slot),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = slot_slots,
};

int
vecenv_add_slot(PyObject *module)
{
    static const vecenv_constant constants[] = {
        {"EVENT_STOP", EVENT_STOP}, {"EVENT_IDLE", EVENT_IDLE},
        {"EVENT_COMMAND", EVENT_COMMAND}, {"EVENT_RESULT", EVENT_RESULT},
        {"EVENT_RAISED", EVENT_RAISED},
    };
    if (vecenv_add_type(module, &slot_spec) < 0) {
        return -1;
    }
    return vecenv_add_constants(module, constants, sizeof constants / sizeof constants[0]);
}
