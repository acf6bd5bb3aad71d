/* Hub, sending: one call sends a batch of actions, or one operation per env. It is between the
 * caller's arrays and the doorbells of the slots on the data path. */
#include "parent/hub.h"

#include <string.h>

static PyObject *
refusal(int error, int64_t refused_env)
{
    static const char *const reasons[] = {
        [-SEND_BAD_ENV] = "bad_env", [-SEND_BUSY] = "busy",
        [-SEND_NO_BLOCK] = "no_block", [-SEND_MIXED] = "mixed",
        [-SEND_NO_ROOM] = "no_room",
    };
    return Py_BuildValue("(sL)", reasons[-error], (long long)refused_env);
}

static int
get_env_ids(PyObject *value, Py_buffer *buffer, vecenv_request *request, const Hub *self)
{
    buffer->obj = NULL;
    request->env_ids = NULL;
    request->count = self->arena.num_envs;
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
    request->env_ids = buffer->buf;
    request->count = (size_t)buffer->len / 8;
    return 0;
}

/* The words of a page: the number of its requests, the flags of requests that it takes (-1: none),
 * the step_id after the last one, and the first step_id of each request. */
enum { NUM_REQUESTS, OPEN_FLAGS, STOP, FIRST_STEP_IDS };

/* Return whether the page takes a request of steps. */
static int
is_recorded(const Hub *self, const vecenv_request *request)
{
    const journal_page *page = &self->page;
    const int64_t *words = page->words.buf;
    return words != NULL && request->env_ids == NULL && words[OPEN_FLAGS] == request->flags
           && words[NUM_REQUESTS] >= 0
           && words[NUM_REQUESTS] < page->num_requests;
}

/* Copy nbytes of actions of a leaf into a column with a row for each env. -1 with an exception. */
static int
store_bytes(const action_leaf *leaf, uint8_t *to, const uint8_t *from, size_t nbytes,
            const vecenv_request *request)
{
    if (nbytes != leaf->nbytes * request->count) {
        PyErr_SetString(PyExc_ValueError, "an action leaf has the wrong size");
        return -1;
    }
    if (request->env_ids == NULL) {
        memcpy(to, from, nbytes);
        return 0;
    }
    for (size_t i = 0; i < request->count; i++) {
        memcpy(to + (size_t)request->env_ids[i] * leaf->nbytes, from + i * leaf->nbytes,
               leaf->nbytes);
    }
    return 0;
}

/* Copy one action leaf of a request into a column. -1 with an exception. */
static int
store_actions(Hub *self, Py_ssize_t number, uint8_t *to, PyObject *values,
              const vecenv_request *request)
{
    const action_leaf *leaf = &self->leaves[number];
    known_dtype *known = &self->dtypes[number];
    const vecenv_ndarray *array = (const void *)values;
    if (known->dtype != NULL && Py_IS_TYPE(values, self->array_type)
        && array->dtype == known->dtype && (array->flags & VECENV_NDARRAY_C)) {
        size_t nbytes = known->itemsize;
        for (int i = 0; i < array->ndim; i++) {
            nbytes *= (size_t)array->shape[i];
        }
        return store_bytes(leaf, to, array->data, nbytes, request);
    }
    Py_buffer buffer;
    if (PyObject_GetBuffer(values, &buffer, PyBUF_C_CONTIGUOUS) < 0) {
        return -1;
    }
    int status = store_bytes(leaf, to, buffer.buf, (size_t)buffer.len, request);
    if (status == 0 && self->array_type != NULL && Py_IS_TYPE(values, self->array_type)) {
        Py_XSETREF(known->dtype, Py_NewRef(array->dtype));
        known->itemsize = (size_t)buffer.itemsize;
    }
    PyBuffer_Release(&buffer);
    return status;
}

/* Record a request that was sent, if the page takes it. It comes after the doorbells: the memory of
 * the page is seldom in a cache. Returns whether it was recorded. */
static int
record(Hub *self, PyObject *leaves, const vecenv_request *request, int64_t first)
{
    if (!is_recorded(self, request)) {
        return 0;
    }
    int64_t *words = self->page.words.buf;
    size_t row = (size_t)words[NUM_REQUESTS] * request->count;
    for (Py_ssize_t i = 0; i < self->num_leaves; i++) {
        uint8_t *to = (uint8_t *)self->page.columns[i].buf + row * self->leaves[i].nbytes;
        if (store_actions(self, i, to, PyTuple_GET_ITEM(leaves, i), request) < 0) {
            PyErr_Clear(); /* the caller records it */
            return 0;
        }
    }
    words[FIRST_STEP_IDS + words[NUM_REQUESTS]++] = first;
    words[STOP] = first + (int64_t)request->count;
    return 1;
}

static int
parse_send(PyObject *const *args, Py_ssize_t count, vecenv_request *request)
{
    if (count != 4 || !PyTuple_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, "send expects a tuple of leaves, env_ids, ordered, flags");
        return -1;
    }
    int overflow = 0;
    long flags = PyLong_AsLongAndOverflow(args[3], &overflow);
    if (overflow != 0 || flags > UINT16_MAX) {
        PyErr_SetString(PyExc_OverflowError, "flags out of range");
        return -1;
    }
    if ((flags == -1 && PyErr_Occurred()) || (request->ordered = PyObject_IsTrue(args[2])) < 0) {
        return -1;
    }
    request->flags = (int)flags;
    return 0;
}

PyObject *
vecenv_hub_send(PyObject *op, PyObject *const *args, Py_ssize_t count)
{
    Hub *self = (Hub *)op;
    vecenv_request request = {.op = VECENV_OP_STEP};
    if (parse_send(args, count, &request) < 0) {
        return NULL;
    }
    PyObject *leaves = args[0], *env_ids = args[1];
    if (PyTuple_GET_SIZE(leaves) != self->num_leaves) {
        PyErr_SetString(PyExc_ValueError, "wrong number of action leaves");
        return NULL;
    }
    Py_buffer ids;
    if (get_env_ids(env_ids, &ids, &request, self) < 0) {
        return NULL;
    }
    int64_t refused_env = 0;
    int error = vecenv_refuse(&self->sender, &request, &refused_env);
    PyObject *result = NULL;
    for (Py_ssize_t i = 0; error == 0 && i < self->num_leaves; i++) {
        uint8_t *to = self->arena.base + self->leaves[i].offset;
        if (store_actions(self, i, to, PyTuple_GET_ITEM(leaves, i), &request) < 0) {
            goto done;
        }
    }
    int64_t first = (int64_t)self->sender.next_step_id;
    if (error == 0) {
        error = vecenv_send(&self->sender, &request, &refused_env);
    }
    if (error != 0) {
        result = refusal(error, refused_env);
    } else {
        result = Py_NewRef(record(self, leaves, &request, first) ? Py_True : Py_None);
    }
done:
    if (ids.obj != NULL) {
        PyBuffer_Release(&ids);
    }
    return result;
}

const char vecenv_hub_send_doc[] = PyDoc_STR(
"send($self, leaves, env_ids, ordered, flags, /)\n--\n\n"
"Send one step command per env; return None, True, or why the request was refused.\n\n"
"True: the request was also recorded in the page of `record_in`.\n"
"leaves: one C-contiguous array (n, *S) of the leaf's dtype per action leaf, in request order; it\n"
"is copied. env_ids: int64 (n,), or None for all envs. ordered: if true, the rows are in request\n"
"order in a block of their own, else in finish order. flags: FORM_*, for scalar actions.\n\n"
"A refusal is (reason, env_id); nothing was sent then. Reasons:\n"
"  'bad_env'   there is no such env\n"
"  'busy'      the env has an outstanding reply or is named twice\n"
"  'mixed'     ordered, while replies of other envs are outstanding\n"
"  'no_block'  no block is free\n"
"  'no_room'   cancelled commands fill the queue of the env's slot\n"
"Raises ValueError if the number or the size of the leaves is wrong. Never blocks.");

void
vecenv_hub_release_page(Hub *self)
{
    for (Py_ssize_t i = 0; i < self->num_leaves; i++) {
        PyBuffer_Release(&self->page.columns[i]); /* no effect on one that is not set */
    }
    PyBuffer_Release(&self->page.words);
    self->page.words.buf = NULL;
}

/* Get the buffers of a page. -1 with an exception. */
static int
open_page(Hub *self, PyObject *columns, PyObject *words)
{
    journal_page *page = &self->page;
    if (PyTuple_GET_SIZE(columns) != self->num_leaves) {
        PyErr_SetString(PyExc_ValueError, "wrong number of columns");
        return -1;
    }
    int request = PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE;
    if (PyObject_GetBuffer(words, &page->words, request) < 0) {
        return -1;
    }
    page->num_requests = page->words.len / 8 - FIRST_STEP_IDS;
    for (Py_ssize_t i = 0; i < self->num_leaves; i++) {
        if (PyObject_GetBuffer(PyTuple_GET_ITEM(columns, i), &page->columns[i], request) < 0) {
            return -1;
        }
        size_t nbytes = self->leaves[i].nbytes * self->arena.num_envs;
        if (page->num_requests < 1
            || (size_t)page->columns[i].len != nbytes * (size_t)page->num_requests) {
            PyErr_SetString(PyExc_ValueError, "the columns and the words of a page do not fit");
            return -1;
        }
    }
    return 0;
}

PyObject *
vecenv_hub_record_in(PyObject *op, PyObject *args)
{
    Hub *self = (Hub *)op;
    PyObject *columns, *words;
    if (!PyArg_ParseTuple(args, "O!O:record_in", &PyTuple_Type, &columns, &words)) {
        return NULL;
    }
    vecenv_hub_release_page(self);
    if (open_page(self, columns, words) < 0) {
        vecenv_hub_release_page(self);
        return NULL;
    }
    Py_RETURN_NONE;
}

const char vecenv_hub_record_in_doc[] = PyDoc_STR(
"record_in($self, columns, words, /)\n--\n\n"
"Record the next requests of `send` in a page of the journal, as far as they are for all envs, and\n"
"while the page is open and has room.\n\n"
"columns: writable memory for R requests per action leaf. words: writable int64 (3 + R,): how many\n"
"requests the page has, the flags of requests for which it is open (-1: none), the step_id after its\n"
"last row, and the step_id of the first row of each request.\n"
"Raises ValueError if these do not fit the actions.");

PyObject *
vecenv_hub_command(PyObject *op, PyObject *args)
{
    Hub *self = (Hub *)op;
    PyObject *env_ids, *arguments, *env_flags;
    vecenv_request request = {0};
    if (!PyArg_ParseTuple(args, "iOOOp|p:command", &request.op, &env_ids, &arguments, &env_flags,
                          &request.ordered, &request.defers_wake)) {
        return NULL;
    }
    Py_buffer ids, numbers, bytes;
    if (get_env_ids(env_ids, &ids, &request, self) < 0) {
        return NULL;
    }
    PyObject *result = NULL;
    numbers.obj = bytes.obj = NULL;
    if (PyObject_GetBuffer(arguments, &numbers, PyBUF_C_CONTIGUOUS) < 0
        || PyObject_GetBuffer(env_flags, &bytes, PyBUF_C_CONTIGUOUS) < 0) {
        goto done;
    }
    if ((size_t)numbers.len != request.count * 8 || (size_t)bytes.len != request.count) {
        PyErr_SetString(PyExc_ValueError, "arguments and flags: one per env");
        goto done;
    }
    request.arguments = numbers.buf;
    request.env_flags = bytes.buf;
    int64_t refused_env = 0;
    uint64_t first = self->sender.next_step_id;
    int error = vecenv_refuse(&self->sender, &request, &refused_env);
    if (error == 0) {
        error = vecenv_send(&self->sender, &request, &refused_env);
    }
    result = error == 0 ? PyLong_FromUnsignedLongLong(first) : refusal(error, refused_env);
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
    return result;
}

const char vecenv_hub_command_doc[] = PyDoc_STR(
"command($self, op, env_ids, arguments, flags, ordered, defers_wake=False, /)\n--\n\n"
"Send one command per env; return the step_id of the first, or a refusal as of `send`.\n\n"
"op: OP_STEP, OP_RESET or OP_CALL. env_ids: int64 (n,), or None for all envs. arguments: int64\n"
"(n,), the seeds of resets with C_SEED or C_DRAWN. flags: uint8 (n,), C_* of each command.\n"
"ordered: as of `send`. The step_ids follow in request order. defers_wake: leave slots asleep until\n"
"`wake_slots`, because the payloads of the commands are written before it.\n\n"
"A reset supersedes an outstanding step of its env. A call runs after the commands before it; its\n"
"reply is a message, without a row. Never blocks.");

PyObject *
vecenv_hub_wake_slots(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    vecenv_wake_slots(&((Hub *)op)->sender);
    Py_RETURN_NONE;
}

const char vecenv_hub_wake_slots_doc[] = PyDoc_STR(
"wake_slots($self, /)\n--\n\nWake the slots of commands that were sent with `defers_wake`.");
