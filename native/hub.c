/* Hub: the parent's end. One C call sends a batch of actions, one receives a batch of
 * rows. Stands between the caller's arrays and the doorbells, and between committed rows
 * and the batch view on the data path. */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "claim.h"
#include "mail.h"
#include "park.h"
#include "ring.h"
#include "request.h"
#include "slot.h"
#include "wait.h"

typedef struct {
    size_t offset, nbytes; /* column in the arena, bytes per env */
} action_leaf;

typedef struct {
    PyObject_HEAD
    Py_buffer mapping;
    vecenv_arena arena;
    vecenv_ring ring;
    vecenv_column *columns;
    action_leaf *leaves;
    Py_ssize_t num_leaves;
    vecenv_sender sender;
    vecenv_waiter waiter;
} Hub;

static void
hub_dealloc(PyObject *op)
{
    Hub *self = (Hub *)op;
    PyTypeObject *type = Py_TYPE(self);
    PyMem_Free(self->columns);
    PyMem_Free(self->leaves);
    PyMem_Free(self->sender.slot_of);
    PyMem_Free(self->sender.ops);
    PyMem_Free(self->sender.before);
    PyMem_Free(self->sender.tails);
    PyMem_Free(self->sender.touched);
    PyMem_Free(self->ring.outstanding);
    PyMem_Free(self->ring.pieces);
    PyMem_Free(self->ring.late);
    if (self->mapping.obj != NULL) {
        PyBuffer_Release(&self->mapping);
    }
    type->tp_free(op);
    Py_DECREF(type);
}

/* Read a tuple of (offset, nbytes) pairs. */
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
        PyErr_SetString(PyExc_ValueError, "slots must name one slot per env");
        return -1;
    }
    for (uint32_t i = 0; i < self->arena.num_envs; i++) {
        unsigned long slot = PyLong_AsUnsignedLong(PyTuple_GET_ITEM(slots, i));
        if (PyErr_Occurred() || slot >= self->arena.num_slots) {
            PyErr_SetString(PyExc_ValueError, "slot out of range");
            return -1;
        }
        self->sender.slot_of[i] = (uint32_t)slot;
    }
    return 0;
}

_Static_assert(sizeof(vecenv_column) == sizeof(size_t[2]), "pairs are read in place");
_Static_assert(sizeof(action_leaf) == sizeof(size_t[2]), "pairs are read in place");

static int
allocate(Hub *self, Py_ssize_t num_columns)
{
    const vecenv_arena *arena = &self->arena;
    vecenv_ring *ring = &self->ring;
    ring->max_pieces = vecenv_ring_max_pieces(arena);
    ring->max_late = vecenv_ring_max_late(arena);
    self->columns = PyMem_Calloc((size_t)num_columns + 1, sizeof *self->columns);
    self->leaves = PyMem_Calloc((size_t)self->num_leaves + 1, sizeof *self->leaves);
    self->sender.slot_of = PyMem_Calloc(arena->num_envs, sizeof *self->sender.slot_of);
    self->sender.ops = PyMem_Calloc(arena->num_envs, 1);
    self->sender.before = PyMem_Calloc(arena->num_envs, sizeof *self->sender.before);
    self->sender.tails = PyMem_Calloc(arena->num_slots, sizeof *self->sender.tails);
    self->sender.touched = PyMem_Calloc(arena->num_slots, 1);
    ring->outstanding = PyMem_Calloc(arena->num_envs, sizeof *ring->outstanding);
    ring->pieces = PyMem_Calloc(ring->max_pieces, sizeof *ring->pieces);
    ring->late = PyMem_Calloc(ring->max_late, sizeof *ring->late);
    if (self->columns == NULL || self->leaves == NULL || self->sender.slot_of == NULL
        || self->sender.ops == NULL || self->sender.before == NULL || self->sender.tails == NULL
        || self->sender.touched == NULL
        || ring->outstanding == NULL || ring->pieces == NULL || ring->late == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    return 0;
}

static PyObject *
hub_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"mapping", "columns", "action_leaves", "slots", "depth",
                            "event_fd", "epoll_fd", "spin_ns", NULL};
    PyObject *mapping, *columns, *leaves, *slots;
    unsigned int depth;
    int event_fd, epoll_fd;
    long long spin_ns;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO!O!O!IiiL:Hub", names, &mapping,
                                     &PyTuple_Type, &columns, &PyTuple_Type, &leaves,
                                     &PyTuple_Type, &slots, &depth, &event_fd, &epoll_fd,
                                     &spin_ns)) {
        return NULL;
    }
    Hub *self = (Hub *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->waiter.event_fd = event_fd;
    self->waiter.epoll_fd = epoll_fd;
    self->waiter.patience.budget_ns = spin_ns;
    self->num_leaves = PyTuple_GET_SIZE(leaves);
    self->sender.next_step_id = 1; /* 0 means nothing outstanding */
    if (PyObject_GetBuffer(mapping, &self->mapping, PyBUF_WRITABLE) < 0
        || vecenv_attach(&self->arena, &self->mapping) < 0
        || allocate(self, PyTuple_GET_SIZE(columns)) < 0
        || read_pairs(columns, (void *)self->columns) < 0
        || read_pairs(leaves, (void *)self->leaves) < 0 || read_slots(self, slots) < 0) {
        goto fail;
    }
    if (depth < 2 || depth > self->arena.num_blocks) {
        PyErr_SetString(PyExc_ValueError, "depth out of range");
        goto fail;
    }
    self->ring.arena = self->sender.arena = self->waiter.arena = &self->arena;
    self->sender.ring = self->waiter.ring = &self->ring;
    self->ring.columns = self->columns;
    self->ring.num_columns = (size_t)PyTuple_GET_SIZE(columns);
    vecenv_ring_init(&self->ring, depth - 1);
    return (PyObject *)self;
fail:
    Py_DECREF(self);
    return NULL;
}

/* ---- sending -------------------------------------------------------------------------- */

static PyObject *
refusal(int error, int64_t culprit)
{
    return Py_BuildValue("(iL)", error, (long long)culprit);
}

static int
get_env_ids(PyObject *value, Py_buffer *buffer, vecenv_request *what, const Hub *self)
{
    buffer->obj = NULL;
    what->env_ids = NULL;
    what->count = self->arena.num_envs;
    if (value == Py_None) {
        return 0;
    }
    if (PyObject_GetBuffer(value, buffer, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) < 0) {
        return -1;
    }
    if (buffer->itemsize != 8) {
        PyErr_SetString(PyExc_TypeError, "env_ids must be int64");
        PyBuffer_Release(buffer);
        return -1;
    }
    what->env_ids = buffer->buf;
    what->count = (size_t)buffer->len / 8;
    return 0;
}

/* Copy one action leaf of a request into its column. -1 with an exception. */
static int
store_actions(Hub *self, const action_leaf *leaf, PyObject *values, const vecenv_request *what)
{
    Py_buffer buffer;
    if (PyObject_GetBuffer(values, &buffer, PyBUF_C_CONTIGUOUS) < 0) {
        return -1;
    }
    uint8_t *to = self->arena.base + leaf->offset;
    const uint8_t *from = buffer.buf;
    int fits = (size_t)buffer.len == leaf->nbytes * what->count;
    if (!fits) {
        PyErr_SetString(PyExc_ValueError, "an action leaf has the wrong size");
    } else if (what->env_ids == NULL) {
        memcpy(to, from, (size_t)buffer.len);
    } else {
        for (size_t i = 0; i < what->count; i++) {
            memcpy(to + (size_t)what->env_ids[i] * leaf->nbytes,
                   from + i * leaf->nbytes, leaf->nbytes);
        }
    }
    PyBuffer_Release(&buffer);
    return fits ? 0 : -1;
}

static PyObject *
hub_send(PyObject *op, PyObject *args)
{
    Hub *self = (Hub *)op;
    PyObject *leaves, *env_ids;
    vecenv_request what = {.op = VECENV_OP_STEP};
    if (!PyArg_ParseTuple(args, "O!Opi:send", &PyTuple_Type, &leaves, &env_ids,
                          &what.ordered, &what.flags)) {
        return NULL;
    }
    if (PyTuple_GET_SIZE(leaves) != self->num_leaves) {
        PyErr_SetString(PyExc_ValueError, "wrong number of action leaves");
        return NULL;
    }
    Py_buffer ids;
    if (get_env_ids(env_ids, &ids, &what, self) < 0) {
        return NULL;
    }
    int64_t culprit = 0;
    int error = vecenv_refuse(&self->sender, &what, &culprit);
    PyObject *answer = NULL;
    for (Py_ssize_t i = 0; error == 0 && i < self->num_leaves; i++) {
        if (store_actions(self, &self->leaves[i], PyTuple_GET_ITEM(leaves, i), &what) < 0) {
            goto done;
        }
    }
    if (error == 0) {
        error = vecenv_send(&self->sender, &what, &culprit);
    }
    answer = error == 0 ? Py_NewRef(Py_None) : refusal(error, culprit);
done:
    if (ids.obj != NULL) {
        PyBuffer_Release(&ids);
    }
    return answer;
}

PyDoc_STRVAR(send_doc,
"send($self, leaves, env_ids, ordered, flags, /)\n--\n\n"
"Step envs with one array per action leaf, (n, *S) in request order.\n\n"
"env_ids: int64 (n,) or None for all. ordered: rows stand in request order in a block of\n"
"their own, else in finish order. Returns None, or (SEND_* reason, env_id) when refused.");

static PyObject *
hub_command(PyObject *op, PyObject *args)
{
    Hub *self = (Hub *)op;
    PyObject *env_ids, *arguments, *env_flags;
    vecenv_request what = {0};
    if (!PyArg_ParseTuple(args, "iOOOp:command", &what.op, &env_ids, &arguments, &env_flags,
                          &what.ordered)) {
        return NULL;
    }
    Py_buffer ids, numbers, bytes;
    if (get_env_ids(env_ids, &ids, &what, self) < 0) {
        return NULL;
    }
    PyObject *answer = NULL;
    numbers.obj = bytes.obj = NULL;
    if (PyObject_GetBuffer(arguments, &numbers, PyBUF_C_CONTIGUOUS) < 0
        || PyObject_GetBuffer(env_flags, &bytes, PyBUF_C_CONTIGUOUS) < 0) {
        goto done;
    }
    if ((size_t)numbers.len != what.count * 8 || (size_t)bytes.len != what.count) {
        PyErr_SetString(PyExc_ValueError, "arguments and flags: one per env");
        goto done;
    }
    what.arguments = numbers.buf;
    what.env_flags = bytes.buf;
    int64_t culprit = 0;
    uint64_t first = self->sender.next_step_id;
    int error = vecenv_refuse(&self->sender, &what, &culprit);
    if (error == 0) {
        error = vecenv_send(&self->sender, &what, &culprit);
    }
    answer = error == 0 ? PyLong_FromUnsignedLongLong(first) : refusal(error, culprit);
done:
    if (numbers.obj != NULL) {
        PyBuffer_Release(&numbers);
    }
    if (bytes.obj != NULL) {
        PyBuffer_Release(&bytes);
    }
    if (ids.obj != NULL) {
        PyBuffer_Release(&ids);
    }
    return answer;
}

PyDoc_STRVAR(command_doc,
"command($self, op, env_ids, arguments, flags, ordered, /)\n--\n\n"
"Queue one operation per env: arguments int64 (n,), flags uint8 (n,).\n\n"
"A reset supersedes a step of the same env; a call waits its turn and has no row. Returns\n"
"the step_id of the first (they count up in request order), or a refusal as `send` does.");

/* ---- receiving ------------------------------------------------------------------------ */

static PyObject *
outcome_tuple(int outcome, int detail)
{
    return Py_BuildValue("(iiIII)", outcome, detail, 0u, 0u, 0u);
}

/* Deliver up to max_count of the gathered rows. */
static PyObject *
deliver(Hub *self, uint32_t max_count)
{
    vecenv_ring *ring = &self->ring;
    uint32_t have = 0;
    for (size_t i = 0; i < ring->num_pieces; i++) {
        have += ring->pieces[i].stop - ring->pieces[i].start;
    }
    vecenv_piece run;
    if (vecenv_ring_deliver(ring, have < max_count ? have : max_count, &run) != VECENV_OK) {
        return outcome_tuple(RECV_NO_BLOCK, -1);
    }
    const uint32_t *flags = (const void *)column(&self->arena, run.block, VECENV_H_FLAGS);
    uint32_t flags_or = 0;
    for (uint32_t row = run.start; row < run.stop; row++) {
        flags_or |= flags[row];
    }
    return Py_BuildValue("(iiIII)", RECV_BATCH, (int)run.block, run.start, run.stop, flags_or);
}

static PyObject *
hub_recv(PyObject *op, PyObject *args)
{
    Hub *self = (Hub *)op;
    unsigned int min_count, max_count;
    long long deadline_ns;
    if (!PyArg_ParseTuple(args, "IIL:recv", &min_count, &max_count, &deadline_ns)) {
        return NULL;
    }
    int64_t from_now = deadline_ns < 0 ? -deadline_ns : 0;
    for (;;) {
        vecenv_want what;
        int status = vecenv_gather(&self->waiter, min_count, &what);
        if (status == 1) {
            return deliver(self, max_count);
        }
        if (status == VECENV_ENOBLOCK) {
            return outcome_tuple(RECV_NO_BLOCK, -1);
        }
        if (from_now != 0) {
            deadline_ns = vecenv_now_ns() + from_now;
            from_now = 0;
        }
        int descriptor = -1;
        int outcome;
        Py_BEGIN_ALLOW_THREADS
        outcome = vecenv_wait_for(&self->waiter, &what, deadline_ns, &descriptor);
        Py_END_ALLOW_THREADS
        if (PyErr_CheckSignals() < 0) {
            return NULL;
        }
        if (outcome != RECV_BATCH && outcome != -1) {
            return outcome_tuple(outcome, descriptor);
        }
    }
}

PyDoc_STRVAR(recv_doc,
"recv($self, min_count, max_count, deadline_ns, /)\n--\n\n"
"Wait for rows; (RECV_BATCH, block, start, stop, or of their flags).\n\n"
"Other outcomes, to be dealt with before the next call: (RECV_TIMEOUT, ...) at\n"
"deadline_ns on the monotonic clock (negative: from now); (RECV_DESCRIPTOR, fd, ...) a pidfd is readable;\n"
"(RECV_MAIL, ...) a worker waits for its mail to be drained; (RECV_NO_BLOCK, ...) late\n"
"writers pin all blocks. Runs signal handlers; without the GIL while it waits.");

static PyObject *
hub_wait(PyObject *op, PyObject *arg)
{
    Hub *self = (Hub *)op;
    long long deadline_ns = PyLong_AsLongLong(arg);
    if (deadline_ns == -1 && PyErr_Occurred()) {
        return NULL;
    }
    vecenv_want what = {VECENV_WAIT_ANY, 0, 0};
    int descriptor = -1;
    int outcome;
    Py_BEGIN_ALLOW_THREADS
    outcome = vecenv_sleep_for(&self->waiter, &what, deadline_ns, &descriptor);
    Py_END_ALLOW_THREADS
    if (PyErr_CheckSignals() < 0) {
        return NULL;
    }
    if (outcome == -1 || outcome == RECV_BATCH) {
        outcome = RECV_MAIL; /* look around */
    }
    return outcome_tuple(outcome, descriptor);
}

PyDoc_STRVAR(wait_doc,
"wait($self, deadline_ns, /)\n--\n\n"
"Sleep until anything happens: a row, mail, a death, the deadline. As `recv` otherwise.");

/* ---- mail and books --------------------------------------------------------------------- */

static int
check_slot(const Hub *self, unsigned long slot)
{
    if (PyErr_Occurred() || slot >= self->arena.num_slots) {
        PyErr_SetString(PyExc_ValueError, "slot out of range");
        return -1;
    }
    return 0;
}

static PyObject *
hub_take_mail(PyObject *op, PyObject *arg)
{
    Hub *self = (Hub *)op;
    unsigned long slot = PyLong_AsUnsignedLong(arg);
    if (check_slot(self, slot) < 0) {
        return NULL;
    }
    vecenv_mail mail = vecenv_mail_up(&self->arena, (uint32_t)slot);
    size_t nbytes;
    int kind = vecenv_mail_peek(&mail, &nbytes);
    if (kind == VECENV_MAIL_NONE) {
        Py_RETURN_NONE;
    }
    PyObject *data = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)nbytes);
    if (data == NULL) {
        return NULL;
    }
    vecenv_mail_take(&mail, PyBytes_AS_STRING(data));
    full_fence(); /* our `read` before the worker's blocked flag; pairs with Slot.mail */
    if (load_acquire32(&self->arena.slots[slot].blocked)) {
        vecenv_wake_word(mail.read);
    }
    return Py_BuildValue("(Ni)", data, kind == VECENV_MAIL_LAST);
}

PyDoc_STRVAR(take_mail_doc,
"take_mail($self, slot, /)\n--\n\n"
"Take one record of mail: (bytes, whether it ends its message), or None.");

static PyObject *
hub_post(PyObject *op, PyObject *args)
{
    Hub *self = (Hub *)op;
    unsigned long slot;
    Py_buffer data;
    if (!PyArg_ParseTuple(args, "ky*:post", &slot, &data)) {
        return NULL;
    }
    if (check_slot(self, slot) < 0) {
        PyBuffer_Release(&data);
        return NULL;
    }
    vecenv_mail mail = vecenv_mail_down(&self->arena, (uint32_t)slot);
    ptrdiff_t taken = vecenv_mail_put(&mail, data.buf, (size_t)data.len);
    vecenv_wake_word(mail.written);
    PyBuffer_Release(&data);
    return PyLong_FromSsize_t(taken);
}

PyDoc_STRVAR(post_doc,
"post($self, slot, data, /)\n--\n\n"
"Write a letter, or as much of it as fits; bytes taken, -1 while the ring is full.");

static PyObject *
hub_outstanding(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    return PyLong_FromUnsignedLong(((Hub *)op)->ring.num_outstanding);
}

PyDoc_STRVAR(outstanding_doc,
"outstanding($self, /)\n--\n\nHow many envs owe an answer.");

static PyObject *
hub_num_late(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    return PyLong_FromSize_t(((Hub *)op)->ring.num_late);
}

PyDoc_STRVAR(num_late_doc,
"num_late($self, /)\n--\n\n"
"How many rows were claimed or assigned, left behind uncommitted, and pin their blocks.");

static int
parse_env(const Hub *self, PyObject *arg, unsigned long *env_id)
{
    *env_id = PyLong_AsUnsignedLong(arg);
    if (PyErr_Occurred() || *env_id >= self->arena.num_envs) {
        PyErr_SetString(PyExc_ValueError, "env_id out of range");
        return -1;
    }
    return 0;
}

static PyObject *
hub_owed(PyObject *op, PyObject *arg)
{
    Hub *self = (Hub *)op;
    unsigned long env_id;
    if (parse_env(self, arg, &env_id) < 0) {
        return NULL;
    }
    uint64_t step_id = self->ring.outstanding[env_id];
    return Py_BuildValue("(iK)", step_id == 0 ? VECENV_OP_NONE : self->sender.ops[env_id],
                         (unsigned long long)step_id);
}

PyDoc_STRVAR(owed_doc,
"owed($self, env_id, /)\n--\n\nWhat an env owes: (op, step_id); op 0 when nothing.");

static PyObject *
hub_cancel(PyObject *op, PyObject *arg)
{
    Hub *self = (Hub *)op;
    unsigned long env_id;
    if (parse_env(self, arg, &env_id) < 0) {
        return NULL;
    }
    if (self->ring.outstanding[env_id] != 0) {
        self->ring.outstanding[env_id] = 0;
        self->ring.num_outstanding--;
    }
    Py_RETURN_NONE;
}

PyDoc_STRVAR(cancel_doc,
"cancel($self, env_id, /)\n--\n\nForget what an env owes; a late answer will be dropped.");

static PyObject *
hub_reap(PyObject *op, PyObject *arg)
{
    Hub *self = (Hub *)op;
    unsigned long slot = PyLong_AsUnsignedLong(arg);
    if (check_slot(self, slot) < 0) {
        return NULL;
    }
    vecenv_slot_lines *lines = &self->arena.slots[slot];
    vecenv_ring_reap(&self->ring, (uint32_t)slot);
    /* The next process on this slot starts with empty queues and rings. */
    store_release32(&lines->current_op, VECENV_OP_NONE);
    store_release32(&lines->blocked, 0);
    store_release32(&lines->sleeping, 0);
    store_release32(&lines->head, self->sender.tails[slot]);
    store_release(&lines->down_read, load_acquire(&lines->down_written));
    store_release(&lines->up_read, load_acquire(&lines->up_written));
    Py_RETURN_NONE;
}

PyDoc_STRVAR(reap_doc,
"reap($self, slot, /)\n--\n\n"
"After the slot's process has ended and its mail is drained: void its unfinished rows\n"
"and empty its queue. Its envs owe what they owed.");

static PyObject *
hub_state(PyObject *op, PyObject *arg)
{
    Hub *self = (Hub *)op;
    unsigned long slot = PyLong_AsUnsignedLong(arg);
    if (check_slot(self, slot) < 0) {
        return NULL;
    }
    const vecenv_slot_lines *lines = &self->arena.slots[slot];
    return Py_BuildValue("(IIKLIK)", load_acquire32(&lines->current_op),
                         load_acquire32(&lines->current_env),
                         (unsigned long long)load_acquire(&lines->current_step_id),
                         (long long)load_acquire(&lines->started_ns),
                         load_acquire32(&lines->blocked),
                         (unsigned long long)load_acquire(&lines->num_steps));
}

PyDoc_STRVAR(state_doc,
"state($self, slot, /)\n--\n\n"
"What a slot does: (op, env_id, step_id, started_ns, blocked, num_steps).");

static PyObject *
hub_stop(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    Hub *self = (Hub *)op;
    store_release32(&self->arena.control->stop, 1);
    full_fence();
    for (uint32_t slot = 0; slot < self->arena.num_slots; slot++) {
        vecenv_slot_lines *lines = &self->arena.slots[slot];
        /* a changed tail wakes a sleeper even if it was about to sleep */
        store_release32(&lines->tail, load_acquire32(&lines->tail) + 1);
        full_fence();
        vecenv_ring_bell(&self->arena, slot);
        vecenv_wake_word(&lines->up_read);
        vecenv_wake_word(&lines->down_written);
    }
    Py_RETURN_NONE;
}

PyDoc_STRVAR(stop_doc,
"stop($self, /)\n--\n\nTell all slots to leave serve() after the command under way.");

static PyObject *
hub_add_info_key(PyObject *op, PyObject *arg)
{
    Hub *self = (Hub *)op;
    Py_ssize_t nbytes;
    const char *name = PyUnicode_AsUTF8AndSize(arg, &nbytes);
    if (name == NULL) {
        return NULL;
    }
    uint32_t count = load_acquire32(&self->arena.control->num_info_keys);
    if (count == VECENV_INFO_KEYS || nbytes >= VECENV_INFO_KEY_NBYTES
        || (size_t)nbytes != strlen(name)) {
        return PyLong_FromLong(-1);
    }
    memcpy(self->arena.info_keys + (size_t)count * VECENV_INFO_KEY_NBYTES, name,
           (size_t)nbytes + 1);
    store_release32(&self->arena.control->num_info_keys, count + 1);
    return PyLong_FromUnsignedLong(count);
}

PyDoc_STRVAR(add_info_key_doc,
"add_info_key($self, name, /)\n--\n\n"
"Give an info key a column; its index, or -1 when the name or the table is too long.");

static PyMethodDef hub_methods[] = {
    {"send", hub_send, METH_VARARGS, send_doc},
    {"command", hub_command, METH_VARARGS, command_doc},
    {"recv", hub_recv, METH_VARARGS, recv_doc},
    {"wait", hub_wait, METH_O, wait_doc},
    {"take_mail", hub_take_mail, METH_O, take_mail_doc},
    {"post", hub_post, METH_VARARGS, post_doc},
    {"outstanding", hub_outstanding, METH_NOARGS, outstanding_doc},
    {"num_late", hub_num_late, METH_NOARGS, num_late_doc},
    {"owed", hub_owed, METH_O, owed_doc},
    {"cancel", hub_cancel, METH_O, cancel_doc},
    {"reap", hub_reap, METH_O, reap_doc},
    {"state", hub_state, METH_O, state_doc},
    {"stop", hub_stop, METH_NOARGS, stop_doc},
    {"add_info_key", hub_add_info_key, METH_O, add_info_key_doc},
    {NULL, NULL, 0, NULL},
};

PyDoc_STRVAR(hub_doc,
"Hub(mapping, columns, action_leaves, slots, depth, event_fd, epoll_fd, spin_ns)\n--\n\n"
"The parent's end of a pool: requests out, batches in. One thread uses it at a time.");

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
    static const vecenv_constant constants[] = {
        {"RECV_BATCH", RECV_BATCH}, {"RECV_TIMEOUT", RECV_TIMEOUT},
        {"RECV_DESCRIPTOR", RECV_DESCRIPTOR}, {"RECV_MAIL", RECV_MAIL},
        {"RECV_NO_BLOCK", RECV_NO_BLOCK}, {"SEND_BAD_ENV", SEND_BAD_ENV},
        {"SEND_BUSY", SEND_BUSY}, {"SEND_NO_BLOCK", SEND_NO_BLOCK},
        {"SEND_MIXED", SEND_MIXED},
    };
    if (vecenv_add_type(module, &hub_spec) < 0) {
        return -1;
    }
    return vecenv_add_constants(module, constants, sizeof constants / sizeof constants[0]);
}
