/* Slot: creates and destroys the type's objects, and hosts envs. slot.h lists the other files. */
#include "worker/slot.h"

/* ---- creation and destruction ---------------------------------------------------- */

static int
slot_traverse(PyObject *op, visitproc visit, void *arg)
{
    Slot *self = (Slot *)op;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->numpy_scalar);
    Py_VISIT(self->numpy_array);
    Py_VISIT(self->on_draw);
    Py_VISIT(self->take_snapshot);
    for (uint32_t i = 0; i < self->info_table.num_scalars; i++) {
        Py_VISIT(self->info_table.scalars[i].type);
    }
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
    Py_CLEAR(self->reset_name);
    Py_CLEAR(self->step_name);
    self->num_watched = 0;
    Py_CLEAR(self->on_draw);
    Py_CLEAR(self->take_snapshot);
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
    vecenv_timer_close(&self->timer);
    PyMem_Free(self->envs);
    PyMem_Free(self->checked);
    PyMem_Free(self->staging);
    PyMem_Free(self->reward);
    if (self->mapping.obj != NULL) {
        PyBuffer_Release(&self->mapping);
    }
    if (self->counters.obj != NULL) {
        PyBuffer_Release(&self->counters);
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
    int is_known = vecenv_is_ndarray((PyTypeObject *)self->numpy_array);
    if (is_known < 0) {
        return -1;
    }
    if (is_known) {
        node_read_arrays(self->obs, (PyTypeObject *)self->numpy_array);
        if (self->final_obs != NULL) {
            node_read_arrays(self->final_obs, (PyTypeObject *)self->numpy_array);
        }
    }
    self->has_objects = node_has_objects(self->obs);
    size_t leaves = 2 * node_num_leaves(self->obs) + 1;
    self->checked = PyMem_Calloc(leaves, sizeof(checked_leaf));
    self->reward = PyMem_Calloc(self->arena.reward_size + 1, sizeof(double));
    self->staging = PyMem_Malloc(node_nbytes(self->obs) + 1);
    self->envs = PyMem_Calloc(self->arena.num_envs, sizeof(hosted_env));
    if (self->checked == NULL || self->reward == NULL || self->envs == NULL
        || self->staging == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (uint32_t i = 0; i < self->arena.num_envs; i++) {
        self->envs[i].counters.episode = -1;
        self->envs[i].counters.seed = -1;
        vecenv_timed_env_init(&self->envs[i].timed);
    }
    return 0;
}

static PyObject *
slot_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"mapping", "counters", "slot", "event_fd", "obs", "final_obs",
                            "action", "autoreset", "spin_ns", "waits", "numpy_scalar",
                            "numpy_array", "infos", NULL};
    PyObject *mapping, *counters, *obs, *final_obs, *action, *numpy_scalar, *numpy_array;
    unsigned int slot;
    int event_fd, autoreset, waits, infos;
    long long spin_ns;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOIiOOOiLpO!O!i:Slot", names,
                                     &mapping, &counters, &slot, &event_fd, &obs, &final_obs,
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
    self->spin_policy.spin_limit_ns = spin_ns;
    self->timer.kind = VECENV_TIMING_NONE;
    self->reset_name = PyUnicode_InternFromString("reset");
    self->step_name = PyUnicode_InternFromString("step");
    if (self->reset_name == NULL || self->step_name == NULL
        || PyObject_GetBuffer(mapping, &self->mapping, PyBUF_WRITABLE) < 0
        || PyObject_GetBuffer(counters, &self->counters, PyBUF_WRITABLE) < 0
        || vecenv_attach(&self->arena, &self->mapping, &self->counters) < 0) {
        goto fail;
    }
    self->spin_policy.backoff = &self->arena.control->backoff;
    if (slot >= self->arena.num_slots) {
        PyErr_SetString(PyExc_ValueError, "slot out of range");
        goto fail;
    }
    if (build_trees(self, obs, final_obs, action) < 0) {
        goto fail;
    }
    /* commands in the queue may have been superseded already: check until it has been empty */
    self->head = load_acquire32(&lines_of(self)->head);
    self->last_num_superseded = load_acquire32(&lines_of(self)->num_superseded) - 1;
    return (PyObject *)self;
fail:
    Py_DECREF(self);
    return NULL;
}

/* ---- hosting envs ---------------------------------------------------------------- */

static PyObject *
slot_host(PyObject *op, PyObject *args)
{
    PyObject *env_id, *step, *env = Py_None, *window = Py_None;
    if (!PyArg_ParseTuple(args, "OO|OO:host", &env_id, &step, &env, &window)) {
        return NULL;
    }
    if (window != Py_None
        && (!PyBytes_Check(window) || PyBytes_GET_SIZE(window) > MAX_WINDOWS * WINDOW_NBYTES)) {
        PyErr_Format(PyExc_ValueError, "window: expected at most %d bytes, or None",
                     MAX_WINDOWS * WINDOW_NBYTES);
        return NULL;
    }
    hosted_env *hosted = parse_env((Slot *)op, env_id);
    if (hosted == NULL) {
        return NULL;
    }
    int looks_up_step = step == Py_None && env != Py_None;
    Py_XSETREF(hosted->step, looks_up_step ? NULL : Py_NewRef(step)); /* None: the host makes the steps */
    Py_XSETREF(hosted->env, env == Py_None ? NULL : Py_NewRef(env));
    hosted->has_window = window != Py_None;
    if (hosted->has_window) {
        memcpy(hosted->window, PyBytes_AS_STRING(window), (size_t)PyBytes_GET_SIZE(window));
    }
    Py_RETURN_NONE;
}

static PyObject *
slot_watch(PyObject *op, PyObject *args)
{
    Slot *self = (Slot *)op;
    PyObject *words, *on_draw, *windows = NULL;
    if (!PyArg_ParseTuple(args, "O!O|O!:watch", &PyTuple_Type, &words, &on_draw, &PyTuple_Type,
                          &windows)) {
        return NULL;
    }
    Py_ssize_t num_windows = windows == NULL ? 0 : PyTuple_GET_SIZE(windows);
    if (num_windows == 1 || num_windows > MAX_WINDOWS) {
        PyErr_Format(PyExc_ValueError, "expected 0, 2 or %d windows", MAX_WINDOWS);
        return NULL;
    }
    Py_ssize_t count = PyTuple_GET_SIZE(words);
    if (count > MAX_WATCHED) {
        PyErr_Format(PyExc_ValueError, "at most %d words", MAX_WATCHED);
        return NULL;
    }
    self->num_watched = self->num_windows = 0;
    Py_XSETREF(self->on_draw, Py_NewRef(on_draw));
    for (Py_ssize_t i = 0; i < count; i++) {
        unsigned long long address;
        unsigned int value;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(words, i), "KI:word", &address, &value)) {
            return NULL;
        }
        self->watched[i] = (watched_word){(const uint32_t *)(uintptr_t)address, value};
    }
    for (Py_ssize_t i = 0; i < num_windows; i++) {
        unsigned long long address = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(windows, i));
        if (PyErr_Occurred()) {
            return NULL;
        }
        self->windows[i] = (uint8_t *)(uintptr_t)address;
    }
    self->num_watched = (uint32_t)count;
    self->num_windows = (uint32_t)num_windows;
    Py_RETURN_NONE;
}

static PyObject *
slot_set_preferred_core(PyObject *op, PyObject *args)
{
    unsigned int core, num_threads;
    if (!PyArg_ParseTuple(args, "II:set_preferred_core", &core, &num_threads)) {
        return NULL;
    }
    vecenv_affinity_init(&((Slot *)op)->affinity, core, num_threads);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(set_preferred_core_doc,
"set_preferred_core($self, core, num_threads, /)\n--\n\n"
"Set the preferred core of the thread that serves this slot, if this thread may run there.\n\n"
"If it is the only thread of its worker, it wakes up there after a sleep. Each of several threads\n"
"stays there while its envs mostly wait. num_threads: the threads of this worker.");

static PyObject *
slot_set_seed(PyObject *op, PyObject *args)
{
    PyObject *env_id;
    long long seed;
    if (!PyArg_ParseTuple(args, "OL:set_seed", &env_id, &seed)) {
        return NULL;
    }
    hosted_env *env = parse_env((Slot *)op, env_id);
    if (env == NULL) {
        return NULL;
    }
    env->counters.seed = seed;
    Py_RETURN_NONE;
}

static PyObject *
slot_set_counters(PyObject *op, PyObject *args)
{
    PyObject *env_id;
    long long length, age_ns;
    double episode_return;
    if (!PyArg_ParseTuple(args, "OLdL:set_counters", &env_id, &length, &episode_return,
                          &age_ns)) {
        return NULL;
    }
    hosted_env *env = parse_env((Slot *)op, env_id);
    if (env == NULL) {
        return NULL;
    }
    env->counters.length = length;
    env->counters.episode_return = episode_return;
    env->began_ns = vecenv_now_ns() - age_ns;
    Py_RETURN_NONE;
}

static PyObject *
slot_action(PyObject *op, PyObject *args)
{
    Slot *self = (Slot *)op;
    int form = self->command.flags & VECENV_C_FORM;
    PyObject *leaves = NULL;
    if (!PyArg_ParseTuple(args, "|iO!:action", &form, &PyTuple_Type, &leaves)) {
        return NULL;
    }
    if (leaves != NULL) {
        return tree_fill(self->action, leaves) < 0 ? NULL : tree_load(self->action, NULL, 0, form);
    }
    return tree_load(self->action, self->arena.base, self->command.env_id, form);
}

static PyObject *
slot_current(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    const vecenv_command *command = &((Slot *)op)->command;
    if (command->op == VECENV_OP_NONE) {
        Py_RETURN_NONE;
    }
    return Py_BuildValue("(IIK)", command->env_id, (unsigned int)command->op,
                         (unsigned long long)command->step_id);
}

/* The slot is woken if it sleeps now. If it is about to sleep, it sees the word after one slice of
 * its wait. */
static PyObject *
slot_stop(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    Slot *self = (Slot *)op;
    store_release32(&self->arena.control->stop, 1);
    full_fence();
    vecenv_notify_slot(&self->arena, self->slot);
    Py_RETURN_NONE;
}

static PyObject *
slot_count_step(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    count_env_step((Slot *)op);
    Py_RETURN_NONE;
}

/* ---- the type -------------------------------------------------------------------- */

/* The contracts stand in vecenv/core/host/slot.py. */
#define SLOT_DOC(signature) PyDoc_STR(signature "\n--\n\nSee vecenv.core.host.slot.Slot.")

static PyMethodDef slot_methods[] = {
    {"serve", vecenv_slot_serve, METH_NOARGS, SLOT_DOC("serve($self, /)")},
    {"publish", vecenv_slot_publish, METH_VARARGS,
     SLOT_DOC("publish($self, obs, reward, terminated, truncated, info, "
              "flags, final_obs, final_info=None, /)")},
    {"finish", vecenv_slot_finish, METH_NOARGS, SLOT_DOC("finish($self, /)")},
    {"current", slot_current, METH_NOARGS, SLOT_DOC("current($self, /)")},
    {"host", slot_host, METH_VARARGS,
     SLOT_DOC("host($self, env_id, step, env=None, window=None, /)")},
    {"watch", slot_watch, METH_VARARGS, SLOT_DOC("watch($self, words, on_draw, windows=(), /)")},
    {"set_preferred_core", slot_set_preferred_core, METH_VARARGS, set_preferred_core_doc},
    {"set_seed", slot_set_seed, METH_VARARGS,
     SLOT_DOC("set_seed($self, env_id, seed, /)")},
    {"set_counters", slot_set_counters, METH_VARARGS,
     SLOT_DOC("set_counters($self, env_id, length, episode_return, age_ns, /)")},
    {"action", slot_action, METH_VARARGS,
     SLOT_DOC("action($self, form=None, leaves=None, /)")},
    {"stop", slot_stop, METH_NOARGS, SLOT_DOC("stop($self, /)")},
    {"count_step", slot_count_step, METH_NOARGS, SLOT_DOC("count_step($self, /)")},
    {"send_message", vecenv_slot_send_message, METH_O, SLOT_DOC("send_message($self, data, /)")},
    {"take_payload", vecenv_slot_take_payload, METH_NOARGS, SLOT_DOC("take_payload($self, /)")},
    {"keep_records", vecenv_slot_keep_records, METH_VARARGS,
     SLOT_DOC("keep_records($self, final_offset, take_snapshot, /)")},
    {"start_digest", vecenv_slot_start_digest, METH_O,
     SLOT_DOC("start_digest($self, env_id, /)")},
    {"add_to_digest", vecenv_slot_add_to_digest, METH_VARARGS,
     SLOT_DOC("add_to_digest($self, env_id, step_id, obs, reward, terminated, "
              "truncated, flags, final_obs, starts_digest, /)")},
    {"records", vecenv_slot_records, METH_O, SLOT_DOC("records($self, env_id, /)")},
    {"present_record", vecenv_slot_present_record, METH_O,
     SLOT_DOC("present_record($self, env_id, /)")},
    {"resume", vecenv_slot_resume, METH_VARARGS,
     SLOT_DOC("resume($self, env_id, step_id, needs_reset, /)")},
    {"schedule_snapshot", vecenv_slot_schedule_snapshot, METH_VARARGS,
     SLOT_DOC("schedule_snapshot($self, env_id, busy_ns, step_busy_ns, /)")},
    {"is_snapshot_due", vecenv_slot_is_snapshot_due, METH_O,
     SLOT_DOC("is_snapshot_due($self, env_id, /)")},
    {"touch", vecenv_slot_touch, METH_O, SLOT_DOC("touch($self, op, /)")},
    {NULL, NULL, 0, NULL},
};

PyDoc_STRVAR(slot_doc,
"Slot(mapping, slot, event_fd, obs, final_obs, action, autoreset, spin_ns, waits, "
"numpy_scalar, numpy_array, infos)\n--\n\n"
"Take the commands of one slot, step its envs, and write one row per reply. One thread uses it.\n\n"
"mapping: the writable memory of the arena. event_fd: the eventfd that wakes the parent.\n"
"obs, final_obs, action: descriptions of trees, see native/py/tree.h; final_obs: None unless\n"
"autoreset is SAME_STEP.\n"
"autoreset: 0 DISABLED, 1 NEXT_STEP, 2 SAME_STEP. spin_ns: the longest spin of a wait.\n"
"waits: whether serve() waits for commands; if false, it returns EVENT_IDLE instead.\n"
"numpy_scalar, numpy_array: the types numpy.generic and numpy.ndarray.\n"
"infos: which infos are sent: 0 all, 1 values that have cells, 2 those of the last steps of\n"
"episodes, 3 none.\n\n"
"Raises ValueError if the mapping is not an arena of this build, or slot is out of range.");

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
