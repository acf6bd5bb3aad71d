/* Hub: creates and destroys the type's objects. hub.h lists the other files. */
#include "parent/hub.h"

#define FIRST_COMMAND (UINT32_MAX - 20)

static void
hub_dealloc(PyObject *op)
{
    Hub *self = (Hub *)op;
    PyTypeObject *type = Py_TYPE(self);
    for (Py_ssize_t i = 0; self->dtypes != NULL && i < self->num_leaves; i++) {
        Py_XDECREF(self->dtypes[i].dtype);
    }
    uint32_t num_ranges = self->block_ranges == NULL ? 0 : self->arena.num_blocks;
    for (uint32_t block = 0; block < num_ranges; block++) {
        Py_XDECREF(self->block_ranges[block]);
    }
    if (self->page.columns != NULL) {
        vecenv_hub_release_page(self);
    }
    Py_XDECREF(self->array_type);
    Py_XDECREF(self->views);
    Py_XDECREF(self->row_range_type);
    Py_XDECREF(self->event_type);
    PyMem_Free(self->columns);
    PyMem_Free(self->saved_columns);
    PyMem_Free(self->leaves);
    PyMem_Free(self->dtypes);
    PyMem_Free(self->page.columns);
    PyMem_Free(self->block_ranges);
    PyMem_Free(self->sender.slot_of);
    PyMem_Free(self->sender.ops);
    PyMem_Free(self->sender.before);
    PyMem_Free(self->sender.tails);
    PyMem_Free(self->sender.queues);
    PyMem_Free(self->up_read);
    PyMem_Free(self->down_written);
    PyMem_Free(self->sender.touched);
    PyMem_Free(self->sender.has_cancelled);
    PyMem_Free(self->ring.outstanding);
    PyMem_Free(self->ring.last_delivered);
    PyMem_Free(self->ring.row_ranges);
    PyMem_Free(self->ring.stragglers);
    PyMem_Free(self->ring.deferred);
    PyMem_Free(self->ring.wanted);
    PyMem_Free(self->ring.seen);
    if (self->deferred_rows.obj != NULL) {
        PyBuffer_Release(&self->deferred_rows);
    }
    if (self->saved_rows.obj != NULL) {
        PyBuffer_Release(&self->saved_rows);
    }
    if (self->mapping.obj != NULL) {
        PyBuffer_Release(&self->mapping);
    }
    if (self->counters.obj != NULL) {
        PyBuffer_Release(&self->counters);
    }
    type->tp_free(op);
    Py_DECREF(type);
}

/* Read a tuple of (offset, nbytes) pairs into `out`. -1 with an exception. */
static int
read_pairs(PyObject *pairs, size_t (*out)[2])
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(pairs); i++) {
        Py_ssize_t offset, nbytes;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(pairs, i), "nn:column", &offset, &nbytes)) {
            return -1;
        }
        out[i][0] = (size_t)offset;
        out[i][1] = (size_t)nbytes;
    }
    return 0;
}

static int
read_slots(Hub *self, PyObject *slots)
{
    if (PyTuple_GET_SIZE(slots) != (Py_ssize_t)self->arena.num_envs) {
        PyErr_SetString(PyExc_ValueError, "slots must hold one slot per env");
        return -1;
    }
    for (uint32_t i = 0; i < self->arena.num_envs; i++) {
        if (parse_index(PyTuple_GET_ITEM(slots, i), "slot", self->arena.num_slots,
                        &self->sender.slot_of[i]) < 0) {
            return -1;
        }
    }
    return 0;
}

_Static_assert(sizeof(vecenv_column) == sizeof(size_t[2]), "pairs are read in place");
_Static_assert(sizeof(action_leaf) == sizeof(size_t[2]), "pairs are read in place");

static int
allocate(Hub *self, Py_ssize_t num_columns, Py_ssize_t num_saved_columns)
{
    const vecenv_arena *arena = &self->arena;
    vecenv_ring *ring = &self->ring;
    ring->max_row_ranges = vecenv_ring_max_row_ranges(arena);
    ring->max_stragglers = vecenv_ring_max_stragglers(arena);
    self->columns = PyMem_Calloc((size_t)num_columns + 1, sizeof *self->columns);
    self->saved_columns = PyMem_Calloc((size_t)num_saved_columns + 1, sizeof *self->saved_columns);
    self->leaves = PyMem_Calloc((size_t)self->num_leaves + 1, sizeof *self->leaves);
    self->dtypes = PyMem_Calloc((size_t)self->num_leaves + 1, sizeof *self->dtypes);
    self->page.columns = PyMem_Calloc((size_t)self->num_leaves + 1, sizeof *self->page.columns);
    self->block_ranges = PyMem_Calloc(arena->num_blocks, sizeof(PyObject *));
    self->sender.slot_of = PyMem_Calloc(arena->num_envs, sizeof *self->sender.slot_of);
    self->sender.ops = PyMem_Calloc(arena->num_envs, 1);
    self->sender.before = PyMem_Calloc(arena->num_envs, sizeof *self->sender.before);
    self->sender.tails = PyMem_Calloc(arena->num_slots, sizeof *self->sender.tails);
    size_t num_commands = (size_t)arena->num_slots * arena->queue_size;
    self->sender.queues = PyMem_Calloc(num_commands, sizeof *self->sender.queues);
    self->up_read = PyMem_Calloc(arena->num_slots, sizeof *self->up_read);
    self->down_written = PyMem_Calloc(arena->num_slots, sizeof *self->down_written);
    self->sender.touched = PyMem_Calloc(2 * (size_t)arena->num_slots, 1);
    self->sender.has_cancelled = PyMem_Calloc(arena->num_slots, 1);
    ring->outstanding = PyMem_Calloc(arena->num_envs, sizeof *ring->outstanding);
    ring->last_delivered = PyMem_Calloc(arena->num_envs, sizeof *ring->last_delivered);
    ring->row_ranges = PyMem_Calloc(ring->max_row_ranges, sizeof *ring->row_ranges);
    ring->stragglers = PyMem_Calloc(ring->max_stragglers, sizeof *ring->stragglers);
    ring->deferred = PyMem_Calloc(arena->num_envs, sizeof *ring->deferred);
    ring->wanted = PyMem_Calloc(arena->num_envs, sizeof *ring->wanted);
    ring->seen = PyMem_Calloc(arena->num_envs, sizeof *ring->seen);
    if (self->columns == NULL || self->saved_columns == NULL || self->leaves == NULL
        || self->dtypes == NULL || self->page.columns == NULL
        || self->block_ranges == NULL || self->sender.slot_of == NULL
        || self->sender.ops == NULL || self->sender.before == NULL || self->sender.tails == NULL
        || self->sender.touched == NULL || self->sender.has_cancelled == NULL
        || ring->outstanding == NULL || ring->last_delivered == NULL || ring->row_ranges == NULL
        || ring->stragglers == NULL || ring->deferred == NULL || ring->wanted == NULL
        || ring->seen == NULL || self->sender.queues == NULL || self->up_read == NULL
        || self->down_written == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    return 0;
}

/* Make the row range of all envs of each block. */
static int
make_block_ranges(Hub *self)
{
    if (PyTuple_GET_SIZE(self->views) != (Py_ssize_t)self->arena.num_blocks) {
        PyErr_SetString(PyExc_ValueError, "views must hold one entry per block");
        return -1;
    }
    for (uint32_t block = 0; block < self->arena.num_blocks; block++) {
        self->block_ranges[block] = vecenv_hub_row_range(self, block, 0, self->arena.num_envs);
        if (self->block_ranges[block] == NULL) {
            return -1;
        }
    }
    return 0;
}

static int
read_array_type(Hub *self, PyObject *type)
{
    int is_known = vecenv_is_ndarray((PyTypeObject *)type);
    if (is_known == 1) {
        self->array_type = (PyTypeObject *)Py_NewRef(type);
    }
    return is_known < 0 ? -1 : 0;
}

/* Set the counters of commands. They have 32 bits and wrap around after hours of fast envs. Like
 * Linux's jiffies they start just below that, so every run tests the wrap-around. */
static void
start_counters(Hub *self)
{
    for (uint32_t slot = 0; slot < self->arena.num_slots; slot++) {
        vecenv_slot_lines *lines = &self->arena.slots[slot];
        store_release32(&lines->num_superseded, UINT32_MAX - 3);
        store_release32(&lines->head, FIRST_COMMAND);
        store_release32(&lines->tail, FIRST_COMMAND);
        self->sender.tails[slot] = FIRST_COMMAND;
    }
}

static PyObject *
hub_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"mapping", "counters", "columns", "saved_rows", "saved_columns",
                            "deferred_rows", "action_leaves", "slots", "depth", "event_fd",
                            "epoll_fd", "spin_ns", "soon_spin_ns", "numpy_array", "views",
                            "row_range_type", "event_type", NULL};
    PyObject *mapping, *counters, *columns, *saved_rows, *saved_columns, *deferred_rows, *leaves, *slots;
    PyObject *array_type, *views, *row_range_type, *event_type;
    unsigned int depth;
    int event_fd, epoll_fd;
    long long spin_ns, soon_spin_ns;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOO!OO!OO!O!IiiLLO!O!OO:Hub", names, &mapping,
                                     &counters, &PyTuple_Type, &columns, &saved_rows,
                                     &PyTuple_Type, &saved_columns, &deferred_rows, &PyTuple_Type,
                                     &leaves, &PyTuple_Type, &slots, &depth, &event_fd, &epoll_fd, &spin_ns,
                                     &soon_spin_ns, &PyType_Type, &array_type, &PyTuple_Type,
                                     &views, &row_range_type, &event_type)) {
        return NULL;
    }
    Hub *self = (Hub *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->waiter.event_fd = event_fd;
    self->waiter.epoll_fd = epoll_fd;
    self->waiter.spin_policy.spin_limit_ns = spin_ns;
    self->waiter.soon_spin_policy.spin_limit_ns = soon_spin_ns;
    self->waiter.late_caller_spin_policy.spin_limit_ns =
        soon_spin_ns < VECENV_LATE_CALLER_SPIN_NS ? soon_spin_ns : VECENV_LATE_CALLER_SPIN_NS;
    self->num_leaves = PyTuple_GET_SIZE(leaves);
    self->views = Py_NewRef(views);
    self->row_range_type = Py_NewRef(row_range_type);
    self->event_type = Py_NewRef(event_type);
    self->sender.next_step_id = 1; /* 0 means that no reply is outstanding */
    if (PyObject_GetBuffer(mapping, &self->mapping, PyBUF_WRITABLE) < 0
        || PyObject_GetBuffer(counters, &self->counters, PyBUF_WRITABLE) < 0
        || vecenv_attach(&self->arena, &self->mapping, &self->counters) < 0
        || PyObject_GetBuffer(saved_rows, &self->saved_rows, PyBUF_WRITABLE) < 0
        || PyObject_GetBuffer(deferred_rows, &self->deferred_rows, PyBUF_WRITABLE) < 0
        || allocate(self, PyTuple_GET_SIZE(columns), PyTuple_GET_SIZE(saved_columns)) < 0
        || read_pairs(columns, (void *)self->columns) < 0
        || read_pairs(saved_columns, (void *)self->saved_columns) < 0
        || read_pairs(leaves, (void *)self->leaves) < 0 || read_slots(self, slots) < 0
        || read_array_type(self, array_type) < 0 || make_block_ranges(self) < 0) {
        goto fail;
    }
    if (depth < 2 || depth > self->arena.num_blocks) {
        PyErr_SetString(PyExc_ValueError, "depth out of range");
        goto fail;
    }
    if ((size_t)self->saved_rows.len < self->arena.block_stride
        || (size_t)self->deferred_rows.len < self->arena.block_stride) {
        PyErr_SetString(PyExc_ValueError, "saved_rows or deferred_rows is smaller than a block");
        goto fail;
    }
    vecenv_backoff *backoff = &self->arena.control->backoff;
    self->waiter.spin_policy.backoff = self->waiter.soon_spin_policy.backoff = backoff;
    self->waiter.late_caller_spin_policy.backoff = backoff;
    self->ring.arena = self->sender.arena = self->waiter.arena = &self->arena;
    self->sender.ring = self->waiter.ring = &self->ring;
    self->ring.strays = &self->strays;
    self->waiter.up_read = self->up_read;
    self->ring.columns = self->columns;
    self->ring.num_columns = (size_t)PyTuple_GET_SIZE(columns);
    self->ring.saved_rows = self->saved_rows.buf;
    self->ring.saved_columns = self->saved_columns;
    self->ring.num_saved_columns = (size_t)PyTuple_GET_SIZE(saved_columns);
    self->ring.deferred_rows = self->deferred_rows.buf;
    vecenv_ring_init(&self->ring, depth - 1);
    start_counters(self);
    return (PyObject *)self;
fail:
    Py_DECREF(self);
    return NULL;
}

static PyMethodDef hub_methods[] = {
    {"send", (PyCFunction)(void (*)(void))vecenv_hub_send, METH_FASTCALL, vecenv_hub_send_doc},
    {"record_in", vecenv_hub_record_in, METH_VARARGS, vecenv_hub_record_in_doc},
    {"command", vecenv_hub_command, METH_VARARGS, vecenv_hub_command_doc},
    {"recv", (PyCFunction)(void (*)(void))vecenv_hub_recv, METH_FASTCALL, vecenv_hub_recv_doc},
    {"recv_envs", (PyCFunction)(void (*)(void))vecenv_hub_recv_envs, METH_FASTCALL,
     vecenv_hub_recv_envs_doc},
    {"wait", vecenv_hub_wait, METH_O, vecenv_hub_wait_doc},
    {"waits", vecenv_hub_waits, METH_NOARGS, vecenv_hub_waits_doc},
    {"take_fragment", vecenv_hub_take_fragment, METH_O, vecenv_hub_take_fragment_doc},
    {"wake_slots", vecenv_hub_wake_slots, METH_NOARGS, vecenv_hub_wake_slots_doc},
    {"write_payload", vecenv_hub_write_payload, METH_VARARGS, vecenv_hub_write_payload_doc},
    {"lend", vecenv_hub_lend, METH_O, vecenv_hub_lend_doc},
    {"take_back", vecenv_hub_take_back, METH_O, vecenv_hub_take_back_doc},
    {"outstanding", vecenv_hub_outstanding, METH_NOARGS, vecenv_hub_outstanding_doc},
    {"num_stragglers", vecenv_hub_num_stragglers, METH_NOARGS, vecenv_hub_num_stragglers_doc},
    {"owed", vecenv_hub_owed, METH_O, vecenv_hub_owed_doc},
    {"last_delivered", vecenv_hub_last_delivered, METH_O, vecenv_hub_last_delivered_doc},
    {"cancel", vecenv_hub_cancel, METH_O, vecenv_hub_cancel_doc},
    {"continue_from", vecenv_hub_continue_from, METH_O, vecenv_hub_continue_from_doc},
    {"reap", vecenv_hub_reap, METH_O, vecenv_hub_reap_doc},
    {"requeue", vecenv_hub_requeue, METH_VARARGS, vecenv_hub_requeue_doc},
    {"move", vecenv_hub_move, METH_VARARGS, vecenv_hub_move_doc},
    {"state", vecenv_hub_state, METH_O, vecenv_hub_state_doc},
    {"pending", vecenv_hub_pending, METH_O, vecenv_hub_pending_doc},
    {"stop", vecenv_hub_stop, METH_NOARGS, vecenv_hub_stop_doc},
    {"take_stray_words", vecenv_hub_take_stray_words, METH_NOARGS,
     vecenv_hub_take_stray_words_doc},
    {"reset_claims", vecenv_hub_reset_claims, METH_NOARGS, vecenv_hub_reset_claims_doc},
    {"add_info_key", vecenv_hub_add_info_key, METH_O, vecenv_hub_add_info_key_doc},
    {NULL, NULL, 0, NULL},
};

PyDoc_STRVAR(hub_doc,
"Hub(mapping, counters, columns, saved_rows, saved_columns, deferred_rows, action_leaves, slots, "
"depth, event_fd, epoll_fd, spin_ns, soon_spin_ns, numpy_array, views, row_range_type, event_type)"
"\n--\n\n"
"Send requests to the slots of an arena and receive batches. One thread uses a Hub at a time.\n\n"
"mapping, counters: the writable memory of the arena and of its counters, with their headers.\n"
"columns: (offset in a block, bytes per row) of each column that a copied row needs.\n"
"saved_rows: private writable memory of at least one block, with one row per env. The last\n"
"delivered row of each env is copied there before its block is reused.\n"
"saved_columns: like columns; the columns that are copied there.\n"
"deferred_rows: memory like saved_rows, for rows that arrive while others are awaited by id.\n"
"action_leaves: (offset in the arena, bytes per env) of each action leaf.\n"
"slots: the slot of each env. depth: at least 2; the views of a batch are valid until `depth - 1`\n"
"later batches have been received.\n"
"event_fd: the eventfd that wakes the parent. epoll_fd: an epoll set with event_fd\n"
"(edge-triggered) and the pidfds of the workers.\n"
"spin_ns: the longest spin of a wait. soon_spin_ns: the same once a worker on this core has\n"
"finished.\n"
"numpy_array: the type of arrays. views: one object per block.\n"
"row_range_type: recv returns rows as row_range_type(views[block], start, stop). All rows of a\n"
"block are always the same object.\n"
"event_type: other outcomes of a wait are returned as event_type(kind, descriptor, late_ns).\n\n"
"Raises ValueError if the mapping is not an arena of this build or an argument does not fit it.");

static PyType_Slot hub_slots[] = {
    {Py_tp_doc, (void *)hub_doc},
    {Py_tp_new, (void *)hub_new},
    {Py_tp_dealloc, (void *)hub_dealloc},
    {Py_tp_methods, hub_methods},
    {0, NULL},
};

static PyType_Spec hub_spec = {
    .name = "vecenv._native.Hub",
    .basicsize = sizeof(Hub),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = hub_slots,
};

int
vecenv_add_hub(PyObject *module)
{
    return vecenv_add_type(module, &hub_spec);
}
