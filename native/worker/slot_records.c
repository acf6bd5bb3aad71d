/* Records: the state of each env after its latest replies. After a crash the parent reads them, and
 * a successor restores the env from them. They are beside the row on the data path. */
#include "worker/slot.h"

#include "shm/digest.h"

/* Row flags that depend on the env; the other flags describe the transport of the reply. */
#define ESSENTIAL (VECENV_F_RESET | VECENV_F_AUTORESET | VECENV_F_FINAL | VECENV_F_ERROR)

/* Return `digest` extended by the reply in self->checked and self->reward. The digest of each leaf
 * starts with its index and they are added up, because this file and the host pass leaves in
 * different orders. Offsets would not do: those of pools with other numbers of envs differ, and a
 * shard may continue the envs of a pool. The first row of a digest includes only the observation: a restored env does
 * not repeat the end of the episode before it. */
static uint64_t
digest_of(const Slot *self, uint64_t digest, int starts_digest, const vecenv_reply *reply,
          size_t num_checked, uint64_t step_id)
{
    uint32_t what = reply->flags & ESSENTIAL;
    uint64_t sum = 0;
    for (size_t i = 0; i < num_checked; i++) {
        const checked_leaf *leaf = &self->checked[i];
        int is_final = leaf->offset >= self->final_offset;
        if (starts_digest && is_final) {
            continue;
        }
        /* all bytes at the start and the end of an episode: both are rare */
        int is_whole = what != 0 || leaf->nbytes <= VECENV_DIGEST_WHOLE;
        uint64_t begin = digest_mix(1 + (uint64_t)is_final, leaf->index);
        sum += is_whole ? digest_bytes(begin, leaf->source, leaf->nbytes)
                        : digest_sample(begin, leaf->source, leaf->nbytes, step_id);
    }
    digest = digest_mix(starts_digest ? 0 : digest, sum);
    if (!starts_digest) {
        digest = digest_bytes(digest, self->reward, self->arena.reward_size * sizeof(double));
        digest = digest_mix(digest, what | (uint64_t)(reply->terminated != 0) << 32
                                        | (uint64_t)(reply->truncated != 0) << 33);
    }
    return digest;
}

int
vecenv_slot_check(Slot *self, vecenv_reply *reply, size_t *num_checked)
{
    int status = TREE_OK;
    if (reply->obs != NULL) {
        status = tree_check(self->obs, reply->obs, self->checked, num_checked);
    }
    if (status == TREE_OK && reply->final_obs != NULL && self->final_obs != NULL) {
        status = tree_check(self->final_obs, reply->final_obs, self->checked, num_checked);
    }
    if (status == TREE_OK && reply->reward != NULL) {
        status = reward_read(reply->reward, self->reward, self->arena.reward_size);
    } else {
        memset(self->reward, 0, self->arena.reward_size * sizeof(double));
    }
    if (status == TREE_OK && reply->info != NULL && PyDict_GET_SIZE(reply->info) > 0) {
        status = info_read(&self->arena, &self->info_table, reply->info, self->infos,
                           &self->cells);
        reply->flags |= status == TREE_OK && self->cells.used > 0 ? VECENV_F_INFO : 0;
    }
    if (status == TREE_OK && reply->final_info != NULL && PyDict_GET_SIZE(reply->final_info) > 0) {
        status = self->final_obs == NULL
                     ? TREE_INEXACT
                     : info_read(&self->arena, &self->info_table, reply->final_info,
                                 self->infos, &self->final_cells);
    }
    if (reply->flags & VECENV_F_FINAL && self->num_staged > 0) {
        reply->flags |= self->staged_flags;
    }
    if (reply->flags & VECENV_F_FINAL && self->final_cells.used > 0) {
        reply->flags |= VECENV_F_FINAL_INFO;
    }
    return status;
}

void
vecenv_slot_keep_record(Slot *self, hosted_env *env, const vecenv_reply *reply, size_t num_checked)
{
    uint64_t step_id = self->command.step_id;
    vecenv_record *record =
        &self->arena.records[2 * self->command.env_id + (env->turn++ & 1)];
    env->digest = digest_of(self, env->digest, env->starts_digest, reply, num_checked, step_id);
    env->starts_digest = 0;
    store_release(&record->step_id, 0);
    store_fence(); /* a release store does not keep later stores behind it */
    record->digest = env->digest;
    record->counters = env->counters;
    record->began_ns = env->began_ns;
    record->is_over = !(reply->flags & VECENV_F_FINAL) && is_over_after(self, env, reply);
    store_release(&record->step_id, step_id);
}

/* ---- methods --------------------------------------------------------------------- */

PyObject *
vecenv_slot_keep_records(PyObject *op, PyObject *args)
{
    Slot *self = (Slot *)op;
    Py_ssize_t offset;
    PyObject *take_snapshot;
    if (!PyArg_ParseTuple(args, "nO:keep_records", &offset, &take_snapshot)) {
        return NULL;
    }
    self->final_offset = (size_t)offset;
    Py_XSETREF(self->take_snapshot, Py_NewRef(take_snapshot));
    self->keeps_records = 1;
    Py_RETURN_NONE;
}

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

PyObject *
vecenv_slot_add_to_digest(PyObject *op, PyObject *args)
{
    Slot *self = (Slot *)op;
    PyObject *env_id, *obs, *reward, *final_obs;
    unsigned long long step_id;
    int starts_digest;
    vecenv_reply reply = {0};
    if (!PyArg_ParseTuple(args, "OKOOppIOp:add_to_digest", &env_id, &step_id, &obs, &reward,
                          &reply.terminated, &reply.truncated, &reply.flags, &final_obs,
                          &starts_digest)) {
        return NULL;
    }
    hosted_env *env = parse_env(self, env_id);
    if (env == NULL) {
        return NULL;
    }
    reply.obs = obs == Py_None ? NULL : obs;
    reply.reward = reward;
    reply.final_obs = final_obs == Py_None ? NULL : final_obs;
    size_t num_checked = 0;
    int status = vecenv_slot_check(self, &reply, &num_checked);
    if (status == TREE_OK) {
        env->digest = digest_of(self, env->digest, starts_digest, &reply, num_checked, step_id);
    }
    tree_release(self->checked, num_checked);
    return status == TREE_ERROR ? NULL : PyBool_FromLong(status == TREE_OK);
}

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

PyObject *
vecenv_slot_present_record(PyObject *op, PyObject *arg)
{
    const hosted_env *env = parse_env((Slot *)op, arg);
    if (env == NULL) {
        return NULL;
    }
    vecenv_record record = {.digest = env->digest,
                            .counters = env->counters,
                            .began_ns = env->began_ns,
                            .is_over = env->needs_reset != 0};
    return PyBytes_FromStringAndSize((const char *)&record, sizeof record);
}

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
            env->counters = records[i].counters;
            env->began_ns = records[i].began_ns;
            env->digest = records[i].digest;
            env->turn = i + 1;
            is_over = records[i].is_over;
        }
    }
    return PyBool_FromLong(is_over != 0);
}

PyObject *
vecenv_slot_schedule_snapshot(PyObject *op, PyObject *args)
{
    PyObject *env_id;
    long long busy_ns, step_busy_ns;
    if (!PyArg_ParseTuple(args, "OLL:schedule_snapshot", &env_id, &busy_ns, &step_busy_ns)) {
        return NULL;
    }
    hosted_env *env = parse_env((Slot *)op, env_id);
    if (env == NULL) {
        return NULL;
    }
    env->busy_ns = 0;
    env->snapshot_after_ns = busy_ns;
    env->step_snapshot_after_ns = step_busy_ns;
    Py_RETURN_NONE;
}

PyObject *
vecenv_slot_is_snapshot_due(PyObject *op, PyObject *arg)
{
    const hosted_env *env = parse_env((Slot *)op, arg);
    return env == NULL ? NULL : PyBool_FromLong(is_snapshot_due(env));
}

PyObject *
vecenv_slot_touch(PyObject *op, PyObject *arg)
{
    Slot *self = (Slot *)op;
    unsigned long command = PyLong_AsUnsignedLong(arg);
    if (PyErr_Occurred()) {
        return NULL;
    }
    vecenv_slot_lines *lines = lines_of(self);
    vecenv_timer_cancel(&self->timer); /* the time of a replay is not the env's */
    store_release(&lines->started_ns, (uint64_t)vecenv_now_ns());
    store_release32(&lines->current_op, (uint32_t)command);
    Py_RETURN_NONE;
}
