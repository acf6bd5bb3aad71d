/* Records: what the parent needs to know of each env's answers should this process die, and
 * how a successor finds its way back there. Stands beside the row on the data path. */
#include "worker/slot.h"

#include "shm/digest.h"

/* Row flags that say what happened in the env; the others say how the answer travels. */
#define ESSENTIAL (VECENV_F_RESET | VECENV_F_AUTORESET | VECENV_F_FINAL | VECENV_F_ERROR)

/* Of the answer in self->held and self->reward. Leaves are added up, each begun with its
 * place, since the C path and the host hold them in different orders. The first row of a
 * digest counts its observation alone: what ended the episode before is not repeated. */
static uint64_t
digest_of(const Slot *self, uint64_t digest, int starts, const answer *row, size_t num_held,
          uint64_t step_id)
{
    uint32_t what = row->flags & ESSENTIAL;
    uint64_t sum = 0;
    for (size_t i = 0; i < num_held; i++) {
        const held_leaf *leaf = &self->held[i];
        if (starts && leaf->offset >= self->final_offset) {
            continue;
        }
        /* whole where an episode begins or ends, which costs little */
        int is_whole = what != 0 || leaf->nbytes <= VECENV_DIGEST_WHOLE;
        uint64_t begin = digest_mix(1, leaf->offset);
        sum += is_whole ? digest_bytes(begin, leaf->source, leaf->nbytes)
                        : digest_sample(begin, leaf->source, leaf->nbytes, step_id);
    }
    digest = digest_mix(starts ? 0 : digest, sum);
    if (!starts) {
        digest = digest_bytes(digest, self->reward, self->arena.reward_size * sizeof(double));
        digest = digest_mix(digest, what | (uint64_t)(row->terminated != 0) << 32
                                        | (uint64_t)(row->truncated != 0) << 33);
    }
    return digest;
}

int
vecenv_slot_check(Slot *self, answer *row, size_t *num_held)
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
    if (status == TREE_OK && row->final_info != NULL && PyDict_GET_SIZE(row->final_info) > 0) {
        status = self->final_obs == NULL
                     ? TREE_ODD
                     : info_read(&self->arena, &self->info_table, row->final_info,
                                 self->infos, &self->final_cells);
    }
    if (row->flags & VECENV_F_FINAL && self->final_cells.used > 0) {
        row->flags |= VECENV_F_FINAL_INFO;
    }
    return status;
}

void
vecenv_slot_keep_record(Slot *self, hosted_env *env, const answer *row, size_t num_held)
{
    uint64_t step_id = self->command.step_id;
    vecenv_record *record =
        &self->arena.records[2 * self->command.env_id + (env->turn++ & 1)];
    env->digest = digest_of(self, env->digest, env->starts_digest, row, num_held, step_id);
    env->starts_digest = 0;
    store_release(&record->step_id, 0);
    store_fence(); /* a release alone lets what follows come before it */
    record->digest = env->digest;
    record->tally = env->tally;
    record->began_ns = env->began_ns;
    record->is_over = !(row->flags & VECENV_F_FINAL) && is_over_after(self, env, row);
    store_release(&record->step_id, step_id);
}

/* ---- methods --------------------------------------------------------------------- */

PyObject *
vecenv_slot_keep_records(PyObject *op, PyObject *args)
{
    Slot *self = (Slot *)op;
    Py_ssize_t offset;
    PyObject *look;
    if (!PyArg_ParseTuple(args, "nO:keep_records", &offset, &look)) {
        return NULL;
    }
    self->final_offset = (size_t)offset;
    Py_XSETREF(self->look, Py_NewRef(look));
    self->keeps_records = 1;
    Py_RETURN_NONE;
}

const char vecenv_slot_keep_records_doc[] = PyDoc_STR(
"keep_records($self, final_offset, look, /)\n--\n\n"
"Keep two records per env from now on. final_offset: where in a block the columns of final\n"
"observations begin. look(env_id, step_id) is called right before an autoreset in C of an env\n"
"whose time set by `look_after` has come.");

PyObject *
vecenv_slot_start_digest(PyObject *op, PyObject *arg)
{
    hosted_env *env = parse_env((Slot *)op, arg);
    if (env == NULL) {
        return NULL;
    }
    env->starts_digest = 1;
    Py_RETURN_NONE;
}

const char vecenv_slot_start_digest_doc[] = PyDoc_STR(
"start_digest($self, env_id, /)\n--\n\n"
"Begin the env's digest with its next row: it has a new start.");

PyObject *
vecenv_slot_absorb(PyObject *op, PyObject *args)
{
    Slot *self = (Slot *)op;
    PyObject *env_id, *obs, *reward, *final_obs;
    unsigned long long step_id;
    int starts;
    answer row = {0};
    if (!PyArg_ParseTuple(args, "OKOOppIOp:absorb", &env_id, &step_id, &obs, &reward,
                          &row.terminated, &row.truncated, &row.flags, &final_obs, &starts)) {
        return NULL;
    }
    hosted_env *env = parse_env(self, env_id);
    if (env == NULL) {
        return NULL;
    }
    row.obs = obs == Py_None ? NULL : obs;
    row.reward = reward;
    row.final_obs = final_obs == Py_None ? NULL : final_obs;
    size_t num_held = 0;
    int status = vecenv_slot_check(self, &row, &num_held);
    if (status == TREE_OK) {
        env->digest = digest_of(self, env->digest, starts, &row, num_held, step_id);
    }
    tree_release(self->held, num_held);
    return status == TREE_ERROR ? NULL : PyBool_FromLong(status == TREE_OK);
}

const char vecenv_slot_absorb_doc[] = PyDoc_STR(
"absorb($self, env_id, step_id, obs, reward, terminated, truncated, flags, final_obs,\n"
"       starts, /)\n--\n\n"
"Count a repeated answer into the env's digest as its row was counted, without a row.\n\n"
"False: a value needs conversion, as for `publish`.");

static PyObject *
record_pair(const vecenv_record *record)
{
    return Py_BuildValue("(KK)", (unsigned long long)load_acquire(&record->step_id),
                         (unsigned long long)record->digest);
}

PyObject *
vecenv_slot_records(PyObject *op, PyObject *arg)
{
    Slot *self = (Slot *)op;
    hosted_env *env = parse_env(self, arg);
    if (env == NULL) {
        return NULL;
    }
    const vecenv_record *records = &self->arena.records[2 * (env - self->envs)];
    return Py_BuildValue("(KNN)", (unsigned long long)env->digest, record_pair(&records[0]),
                         record_pair(&records[1]));
}

const char vecenv_slot_records_doc[] = PyDoc_STR(
"records($self, env_id, /)\n--\n\n"
"The env's digest as it is here, and both its records as (step_id, digest).");

PyObject *
vecenv_slot_resume(PyObject *op, PyObject *args)
{
    Slot *self = (Slot *)op;
    PyObject *env_id;
    unsigned long long step_id;
    int needs_reset;
    if (!PyArg_ParseTuple(args, "OKp:resume", &env_id, &step_id, &needs_reset)) {
        return NULL;
    }
    hosted_env *env = parse_env(self, env_id);
    if (env == NULL) {
        return NULL;
    }
    const vecenv_record *records = &self->arena.records[2 * (env - self->envs)];
    uint32_t is_over = 0;
    env->needs_reset = needs_reset;
    for (uint32_t i = 0; step_id != 0 && i < 2; i++) {
        if (load_acquire(&records[i].step_id) == step_id) {
            env->tally = records[i].tally;
            env->began_ns = records[i].began_ns;
            env->digest = records[i].digest;
            env->turn = i + 1;
            is_over = records[i].is_over;
        }
    }
    return PyBool_FromLong(is_over != 0);
}

const char vecenv_slot_resume_doc[] = PyDoc_STR(
"resume($self, env_id, step_id, needs_reset, /)\n--\n\n"
"Go on where the record of step_id says that the env was; 0: with no record.\n\n"
"True: its episode was over then.");

PyObject *
vecenv_slot_look_after(PyObject *op, PyObject *args)
{
    PyObject *env_id;
    long long busy_ns;
    if (!PyArg_ParseTuple(args, "OL:look_after", &env_id, &busy_ns)) {
        return NULL;
    }
    hosted_env *env = parse_env((Slot *)op, env_id);
    if (env == NULL) {
        return NULL;
    }
    env->busy_ns = 0;
    env->state_after_ns = busy_ns;
    Py_RETURN_NONE;
}

const char vecenv_slot_look_after_doc[] = PyDoc_STR(
"look_after($self, env_id, busy_ns, /)\n--\n\n"
"Have the env looked at before the first autoreset after busy_ns of its own time; 0: none.");

PyObject *
vecenv_slot_is_look_due(PyObject *op, PyObject *arg)
{
    const hosted_env *env = parse_env((Slot *)op, arg);
    return env == NULL ? NULL : PyBool_FromLong(is_state_due(env));
}

const char vecenv_slot_is_look_due_doc[] = PyDoc_STR(
"is_look_due($self, env_id, /)\n--\n\nWhether the time set by `look_after` has come.");

PyObject *
vecenv_slot_touch(PyObject *op, PyObject *arg)
{
    Slot *self = (Slot *)op;
    unsigned long command = PyLong_AsUnsignedLong(arg);
    if (PyErr_Occurred()) {
        return NULL;
    }
    vecenv_slot_lines *lines = lines_of(self);
    store_release(&lines->started_ns, (uint64_t)vecenv_now_ns());
    store_release32(&lines->current_op, (uint32_t)command);
    Py_RETURN_NONE;
}

const char vecenv_slot_touch_doc[] = PyDoc_STR(
"touch($self, op, /)\n--\n\n"
"Say that within the command under way an operation `op` begins now: limits count from here.");
