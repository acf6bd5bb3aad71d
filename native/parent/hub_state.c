/* Hub, beside the data path: messages, payloads, outstanding replies; the state and the end of
 * slots. */
#include "parent/hub.h"

#include <string.h>

#include "shm/byte_ring.h"
#include "shm/claim.h"
#include "shm/park.h"

static int
parse_env(const Hub *self, PyObject *arg, uint32_t *env_id)
{
    return parse_index(arg, "env_id", self->arena.num_envs, env_id);
}

static int
parse_slot(const Hub *self, PyObject *arg, uint32_t *slot)
{
    return parse_index(arg, "slot", self->arena.num_slots, slot);
}

static int
parse_block(const Hub *self, PyObject *arg, uint32_t *block)
{
    return parse_index(arg, "block", self->arena.num_blocks, block);
}

/* ---- messages and payloads ------------------------------------------------------- */

PyObject *
vecenv_hub_take_fragment(PyObject *op, PyObject *arg)
{
    Hub *self = (Hub *)op;
    uint32_t slot;
    if (parse_slot(self, arg, &slot) < 0) {
        return NULL;
    }
    vecenv_byte_ring ring = vecenv_byte_ring_up(&self->arena, slot);
    size_t nbytes;
    int kind = vecenv_byte_ring_peek(&ring, &nbytes);
    if (kind == VECENV_BYTE_RING_NONE) {
        Py_RETURN_NONE;
    }
    PyObject *data = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)nbytes);
    if (data == NULL) {
        return NULL;
    }
    vecenv_byte_ring_take(&ring, PyBytes_AS_STRING(data));
    full_fence(); /* store `read`, then load `blocked`; pairs with Slot.send_message */
    if (load_acquire32(&self->arena.slots[slot].blocked)) {
        vecenv_wake_word(ring.read);
    }
    return Py_BuildValue("(Ni)", data, kind == VECENV_BYTE_RING_LAST);
}

const char vecenv_hub_take_fragment_doc[] = PyDoc_STR(
"take_fragment($self, slot, /)\n--\n\n"
"Read one fragment of a message from a slot: (bytes, is_last), or None if there is none.\n\n"
"is_last: whether the fragment ends its message. Wakes the slot if it waits for room.");

PyObject *
vecenv_hub_write_payload(PyObject *op, PyObject *args)
{
    Hub *self = (Hub *)op;
    PyObject *arg;
    uint32_t slot;
    Py_buffer data;
    if (!PyArg_ParseTuple(args, "Oy*:write_payload", &arg, &data)) {
        return NULL;
    }
    if (parse_slot(self, arg, &slot) < 0) {
        PyBuffer_Release(&data);
        return NULL;
    }
    vecenv_byte_ring ring = vecenv_byte_ring_down(&self->arena, slot);
    ptrdiff_t taken = vecenv_byte_ring_put(&ring, data.buf, (size_t)data.len);
    vecenv_wake_word(ring.written);
    PyBuffer_Release(&data);
    return PyLong_FromSsize_t(taken);
}

const char vecenv_hub_write_payload_doc[] = PyDoc_STR(
"write_payload($self, slot, data, /)\n--\n\n"
"Write the start of a payload, as much as fits; return the number of bytes written.\n\n"
"Call it again with the rest until all is written. Returns -1 if the ring is full. Never blocks.");

/* ---- lent blocks ------------------------------------------------------------------- */

PyObject *
vecenv_hub_lend(PyObject *op, PyObject *arg)
{
    Hub *self = (Hub *)op;
    uint32_t block;
    if (parse_block(self, arg, &block) < 0) {
        return NULL;
    }
    return PyBool_FromLong(vecenv_ring_lend(&self->ring, block));
}

const char vecenv_hub_lend_doc[] = PyDoc_STR(
"lend($self, block, /)\n--\n\n"
"Pin the block of a valid batch until `take_back`; return False if no batch holds it.\n\n"
"Views of a lent block stay valid, since no row is written to it.");

PyObject *
vecenv_hub_take_back(PyObject *op, PyObject *arg)
{
    Hub *self = (Hub *)op;
    uint32_t block;
    if (parse_block(self, arg, &block) < 0) {
        return NULL;
    }
    if (self->ring.pins[block] == 0) {
        PyErr_SetString(PyExc_ValueError, "the block is free");
        return NULL;
    }
    vecenv_ring_take_back(&self->ring, block);
    Py_RETURN_NONE;
}

const char vecenv_hub_take_back_doc[] = PyDoc_STR(
"take_back($self, block, /)\n--\n\n"
"End the loan of a block that `lend` has pinned, so that it can be reused.\n\n"
"Raises ValueError if the block is free.");

/* ---- outstanding replies --------------------------------------------------------- */

PyObject *
vecenv_hub_outstanding(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    return PyLong_FromUnsignedLong(((Hub *)op)->ring.num_outstanding);
}

const char vecenv_hub_outstanding_doc[] = PyDoc_STR(
"outstanding($self, /)\n--\n\nReturn the number of envs with an outstanding reply.");

PyObject *
vecenv_hub_num_stragglers(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    return PyLong_FromSize_t(((Hub *)op)->ring.num_stragglers);
}

const char vecenv_hub_num_stragglers_doc[] = PyDoc_STR(
"num_stragglers($self, /)\n--\n\n"
"Return the number of stragglers.\n\n"
"A straggler is a claimed or assigned row that was still uncommitted when the rest of its block\n"
"was delivered. It pins the block.");

PyObject *
vecenv_hub_owed(PyObject *op, PyObject *arg)
{
    Hub *self = (Hub *)op;
    uint32_t env_id;
    if (parse_env(self, arg, &env_id) < 0) {
        return NULL;
    }
    uint64_t step_id = self->ring.outstanding[env_id];
    return Py_BuildValue("(iK)", step_id == 0 ? VECENV_OP_NONE : self->sender.ops[env_id],
                         (unsigned long long)step_id);
}

const char vecenv_hub_owed_doc[] = PyDoc_STR(
"owed($self, env_id, /)\n--\n\n"
"Return (op, step_id) of the outstanding reply of an env; (0, 0) if there is none.");

PyObject *
vecenv_hub_last_delivered(PyObject *op, PyObject *arg)
{
    Hub *self = (Hub *)op;
    uint32_t env_id;
    if (parse_env(self, arg, &env_id) < 0) {
        return NULL;
    }
    return PyLong_FromUnsignedLongLong(self->ring.last_delivered[env_id]);
}

const char vecenv_hub_last_delivered_doc[] = PyDoc_STR(
"last_delivered($self, env_id, /)\n--\n\n"
"Return the step_id of the env's last delivered row with an observation; 0 if there is none.");

PyObject *
vecenv_hub_cancel(PyObject *op, PyObject *arg)
{
    Hub *self = (Hub *)op;
    uint32_t env_id;
    if (parse_env(self, arg, &env_id) < 0) {
        return NULL;
    }
    vecenv_cancel(&self->sender, env_id);
    Py_RETURN_NONE;
}

const char vecenv_hub_cancel_doc[] = PyDoc_STR(
"cancel($self, env_id, /)\n--\n\n"
"Stop waiting for the outstanding reply of an env, if there is one.\n\n"
"The slot drops the command; if it has begun, the reply is dropped.");

PyObject *
vecenv_hub_continue_from(PyObject *op, PyObject *arg)
{
    Hub *self = (Hub *)op;
    long long step_id = PyLong_AsLongLong(arg);
    if (step_id == -1 && PyErr_Occurred()) {
        return NULL;
    }
    if (step_id < (long long)self->sender.next_step_id) {
        PyErr_SetString(PyExc_ValueError, "step_ids must not decrease");
        return NULL;
    }
    self->sender.next_step_id = (uint64_t)step_id;
    Py_RETURN_NONE;
}

const char vecenv_hub_continue_from_doc[] = PyDoc_STR(
"continue_from($self, step_id, /)\n--\n\n"
"Give the next command this step_id; those of later ones count up from it.\n\n"
"Raises ValueError if an earlier command may have had it.");

/* ---- slots and the table of info keys -------------------------------------------- */

/* Prepare the words of a slot for its next process: it starts at `head` of the queue, and its byte
 * rings are empty. */
static void
clear_lines(const Hub *self, uint32_t slot, uint32_t head)
{
    vecenv_slot_lines *lines = &self->arena.slots[slot];
    store_release32(&lines->current_op, VECENV_OP_NONE);
    store_release32(&lines->blocked, 0);
    store_release32(&lines->sleeping, 0);
    store_release32(&lines->head, head);
    store_release(&lines->down_read, load_acquire(&lines->down_written));
    store_release(&lines->up_read, load_acquire(&lines->up_written));
}

PyObject *
vecenv_hub_reap(PyObject *op, PyObject *arg)
{
    Hub *self = (Hub *)op;
    uint32_t slot;
    if (parse_slot(self, arg, &slot) < 0) {
        return NULL;
    }
    vecenv_ring_reap(&self->ring, slot);
    clear_lines(self, slot, self->sender.tails[slot]);
    Py_RETURN_NONE;
}

const char vecenv_hub_reap_doc[] = PyDoc_STR(
"reap($self, slot, /)\n--\n\n"
"Commit the unfinished rows of a dead slot as void and empty its queue.\n\n"
"Call it after the slot's process has ended and its messages have been read. The replies of its\n"
"envs stay outstanding.");

/* Return whether a dead slot's first command was answered. If its reply is not outstanding, because
 * it was delivered, superseded or cancelled, its record decides: each reply writes a record, and
 * the one of the first command is the newest of its env. */
static int
is_done(const Hub *self, const vecenv_command *command)
{
    if (!vecenv_ring_is_answered(&self->ring, command)) {
        return 0;
    }
    if (command->row_ref != VECENV_CLAIM
        || self->ring.outstanding[command->env_id] == command->step_id) {
        return 1;
    }
    const vecenv_record *records = &self->arena.records[2 * command->env_id];
    return load_acquire(&records[0].step_id) == command->step_id
           || load_acquire(&records[1].step_id) == command->step_id;
}

PyObject *
vecenv_hub_requeue(PyObject *op, PyObject *args)
{
    Hub *self = (Hub *)op;
    PyObject *arg;
    uint32_t slot;
    int is_answered;
    if (!PyArg_ParseTuple(args, "Op:requeue", &arg, &is_answered)
        || parse_slot(self, arg, &slot) < 0) {
        return NULL;
    }
    const vecenv_command *queue = queue_of(&self->arena, slot);
    uint32_t mask = self->arena.queue_size - 1;
    uint32_t head = load_acquire32(&self->arena.slots[slot].head);
    uint32_t tail = self->sender.tails[slot];
    if (head != tail) { /* the slot may have died after its reply, before it advanced `head` */
        const vecenv_command *first = &queue[head & mask];
        head += first->op == VECENV_OP_CALL ? is_answered != 0 : is_done(self, first) != 0;
    }
    vecenv_ring_reap_claims(&self->ring, slot, head, tail - head);
    clear_lines(self, slot, head);
    PyObject *left = PyList_New(0);
    for (; left != NULL && head != tail; head++) {
        const vecenv_command *command = &queue[head & mask];
        PyObject *item = Py_BuildValue("(IIKI)", (unsigned int)command->op, command->env_id,
                                       (unsigned long long)command->step_id,
                                       (unsigned int)command->flags);
        if (item == NULL || PyList_Append(left, item) < 0) {
            Py_CLEAR(left);
        }
        Py_XDECREF(item);
    }
    return left;
}

const char vecenv_hub_requeue_doc[] = PyDoc_STR(
"requeue($self, slot, is_answered, /)\n--\n\n"
"Return the unanswered commands of a dead slot: a list of (op, env_id, step_id, flags).\n\n"
"Call it after the slot's process has ended and its messages have been read. Rows that it claimed\n"
"and did not commit become void. The commands stay in the queue for a successor, but their\n"
"payloads must be written again. is_answered: if the queue's first command is a call, whether its\n"
"reply has arrived.");

/* Make another slot the owner of a command's assigned row, to write and to reap it. */
static void
reassign_row(const Hub *self, uint64_t row_ref, uint32_t slot)
{
    const vecenv_arena *arena = &self->arena;
    if (row_ref != VECENV_CLAIM
        && !vecenv_is_committed(arena, ref_epoch(row_ref), ref_block(row_ref),
                                ref_row(row_ref))) {
        store_release(&word_column(arena, ref_block(row_ref), VECENV_H_OWNER)[ref_row(row_ref)],
                      owner_of(ref_epoch(row_ref), slot + 1));
    }
}

PyObject *
vecenv_hub_move(PyObject *op, PyObject *args)
{
    Hub *self = (Hub *)op;
    PyObject *env, *target;
    uint32_t env_id, to;
    if (!PyArg_ParseTuple(args, "OO:move", &env, &target) || parse_env(self, env, &env_id) < 0
        || parse_slot(self, target, &to) < 0) {
        return NULL;
    }
    vecenv_sender *sender = &self->sender;
    uint32_t from = sender->slot_of[env_id];
    if (from == to) {
        Py_RETURN_NONE;
    }
    vecenv_command *queue = queue_of(&self->arena, from);
    vecenv_command *other = queue_of(&self->arena, to);
    vecenv_slot_lines *lines = &self->arena.slots[from];
    uint32_t mask = self->arena.queue_size - 1;
    uint32_t head = load_acquire32(&lines->head), tail = sender->tails[from];
    for (uint32_t at = head; at != tail; at++) {
        if (queue[at & mask].env_id == env_id) {
            reassign_row(self, queue[at & mask].row_ref, to);
            other[sender->tails[to]++ & mask] = queue[at & mask];
        }
    }
    uint32_t kept = tail; /* the remaining commands move to the end, where new ones will follow */
    for (uint32_t at = tail; at != head;) {
        if (queue[--at & mask].env_id != env_id) {
            queue[--kept & mask] = queue[at & mask];
        }
    }
    store_release32(&lines->head, kept);
    sender->slot_of[env_id] = to;
    if (sender->has_cancelled[from] && !sender->has_cancelled[to]) {
        sender->has_cancelled[to] = 1;
        sender->num_with_cancelled++;
    }
    /* a moved step may have been superseded: make the new slot check */
    vecenv_word32 *superseded = &self->arena.slots[to].num_superseded;
    store_release32(superseded, load_acquire32(superseded) + 1);
    vecenv_publish_tail(&self->arena, to, sender->tails[to], vecenv_now_ns());
    Py_RETURN_NONE;
}

const char vecenv_hub_move_doc[] = PyDoc_STR(
"move($self, env_id, slot, /)\n--\n\n"
"Serve an env by another slot, and move its queued commands there.\n\n"
"No process may serve either slot: the old slot has been requeued; the new slot has never been\n"
"used, or has been requeued too.");

PyObject *
vecenv_hub_state(PyObject *op, PyObject *arg)
{
    Hub *self = (Hub *)op;
    uint32_t slot;
    if (parse_slot(self, arg, &slot) < 0) {
        return NULL;
    }
    const vecenv_slot_lines *lines = &self->arena.slots[slot];
    /* Load the operation first, since the slot stores it last: so the start is not older than the
     * operation. C does not define the order in which arguments of a call are evaluated. */
    unsigned int current_op = load_acquire32(&lines->current_op);
    unsigned int env_id = load_acquire32(&lines->current_env);
    unsigned long long step_id = load_acquire(&lines->current_step_id);
    long long started_ns = (long long)load_acquire(&lines->started_ns);
    unsigned int blocked = load_acquire32(&lines->blocked);
    unsigned long long num_steps = load_acquire(&lines->num_steps);
    return Py_BuildValue("(IIKLIK)", current_op, env_id, step_id, started_ns, blocked, num_steps);
}

const char vecenv_hub_state_doc[] = PyDoc_STR(
"state($self, slot, /)\n--\n\n"
"Return the state of a slot: (op, env_id, step_id, started_ns, blocked, num_steps).\n\n"
"op: the operation under way, 0 between two commands; the next three belong to it, started_ns on\n"
"the monotonic clock. blocked: 1 while the slot waits for the parent. num_steps: env steps made.");

PyObject *
vecenv_hub_pending(PyObject *op, PyObject *arg)
{
    Hub *self = (Hub *)op;
    uint32_t slot;
    if (parse_slot(self, arg, &slot) < 0) {
        return NULL;
    }
    vecenv_command first = {.op = VECENV_OP_NONE};
    uint32_t head = load_acquire32(&self->arena.slots[slot].head);
    if (head != self->sender.tails[slot]) {
        first = queue_of(&self->arena, slot)[head & (self->arena.queue_size - 1)];
    }
    return Py_BuildValue("(IIK)", (unsigned int)first.op, first.env_id,
                         (unsigned long long)first.step_id);
}

const char vecenv_hub_pending_doc[] = PyDoc_STR(
"pending($self, slot, /)\n--\n\n"
"Return (op, env_id, step_id) of the first command in a slot's queue; op 0 if it is empty.\n\n"
"The command under way stays in the queue until it ends.");

PyObject *
vecenv_hub_stop(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    Hub *self = (Hub *)op;
    self->waiter.epoll_fd = -1; /* the owner closes it after this; its number then belongs to another file */
    store_release32(&self->arena.control->stop, 1);
    full_fence();
    for (uint32_t slot = 0; slot < self->arena.num_slots; slot++) {
        vecenv_slot_lines *lines = &self->arena.slots[slot];
        /* a changed tail wakes a sleeper even if it was about to sleep */
        store_release32(&lines->tail, load_acquire32(&lines->tail) + 1);
        full_fence();
        vecenv_notify_slot(&self->arena, slot);
        vecenv_wake_word(&lines->up_read);
        vecenv_wake_word(&lines->down_written);
    }
    Py_RETURN_NONE;
}

const char vecenv_hub_stop_doc[] = PyDoc_STR(
"stop($self, /)\n--\n\nMake serve() of all slots return after the command under way.\n\n"
"No wait sleeps any more after that, and the epoll set is not used.");

PyObject *
vecenv_hub_add_info_key(PyObject *op, PyObject *arg)
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

const char vecenv_hub_add_info_key_doc[] = PyDoc_STR(
"add_info_key($self, name, /)\n--\n\n"
"Give an info cell to a table entry; return its index, or -1 if the entry does not fit.\n\n"
"name: an entry as described in native/py/info.h. It does not fit if it has more than 63 bytes of\n"
"UTF-8 or the table is full.");
