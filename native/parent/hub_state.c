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
    ring.own = &self->up_read[slot];
    size_t nbytes;
    int kind = vecenv_byte_ring_peek(&ring, &nbytes);
    if (kind == VECENV_BYTE_RING_NONE) {
        Py_RETURN_NONE;
    }
    PyObject *data = NULL;
    if (kind != VECENV_BYTE_RING_STRAY) {
        data = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)nbytes);
        if (data == NULL) {
            return NULL;
        }
    }
    if (data == NULL || !vecenv_byte_ring_take(&ring, PyBytes_AS_STRING(data), nbytes)) {
        Py_XDECREF(data);
        vecenv_note_stray(&self->strays, slot, "its messages, which end at byte",
                          load_acquire(ring.written));
        vecenv_byte_ring_drop(&ring);
        Py_RETURN_NONE;
    }
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
    ring.own = &self->down_written[slot];
    ptrdiff_t taken = vecenv_byte_ring_put(&ring, data.buf, (size_t)data.len);
    if (taken < -1) {
        vecenv_note_stray(&self->strays, slot, "the number of its payload bytes read",
                          load_acquire(ring.read));
        taken = -1;
    }
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

/* Write the words that a slot's next process reads, from private copies: it starts at `head` of the
 * queue, and its byte rings are empty. */
static void
restore_words(Hub *self, uint32_t slot, uint32_t head)
{
    const vecenv_arena *arena = &self->arena;
    vecenv_slot_lines *lines = &arena->slots[slot];
    store_release32(&lines->current_op, VECENV_OP_NONE);
    store_release32(&lines->blocked, 0);
    store_release32(&lines->sleeping, 0);
    store_release32(&lines->head, head);
    store_release32(&lines->tail, self->sender.tails[slot]);
    self->up_read[slot] &= ~UINT64_C(7); /* it may have skipped messages to a stray position */
    store_release(&lines->up_written, self->up_read[slot]);
    store_release(&lines->up_read, self->up_read[slot]);
    store_release(&lines->down_read, self->down_written[slot]);
    store_release(&lines->down_written, self->down_written[slot]);
    memcpy(queue_of(arena, slot), own_queue_of(&self->sender, slot),
           arena->queue_size * sizeof(vecenv_command));
    for (uint32_t env_id = 0; env_id < arena->num_envs; env_id++) {
        if (self->sender.slot_of[env_id] == slot) {
            store_release(&arena->newest[env_id], self->ring.outstanding[env_id]);
        }
    }
    vecenv_restore_headers(arena);
    memcpy(arena->info_keys, self->info_keys, sizeof self->info_keys);
    store_release32(&arena->control->num_info_keys, self->ring.num_info_keys);
    store_release32(&arena->control->stop, (uint32_t)self->has_stopped);
    vecenv_forget_stray(&self->strays, slot);
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
    for (uint32_t env_id = 0; env_id < self->arena.num_envs; env_id++) {
        if (self->sender.slot_of[env_id] == slot) {
            self->ring.has_cancelled = 1; /* an ordered request must not wait for its rows */
        }
    }
    memset(own_queue_of(&self->sender, slot), 0, self->arena.queue_size * sizeof(vecenv_command));
    restore_words(self, slot, self->sender.tails[slot]);
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
is_done(Hub *self, const vecenv_command *command)
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

static int
is_call_in(const vecenv_command *command, PyObject *step_ids)
{
    PyObject *step_id = PyLong_FromUnsignedLongLong(command->step_id);
    int found = step_id == NULL ? -1 : PySequence_Contains(step_ids, step_id);
    Py_XDECREF(step_id);
    return found;
}

/* Return whether a successor must carry out a command of a dead slot; -1 with an exception. `is_left`:
 * the dead process had not advanced its head beyond the command; `is_first`: its head was there. A
 * command before the head is carried out again if its reply is missing, because a stray write has
 * changed the row or the head. */
static int
is_unanswered(Hub *self, uint32_t slot, const vecenv_command *command, PyObject *unanswered,
              int is_left, int is_first)
{
    if (command->op == VECENV_OP_NONE || self->sender.slot_of[command->env_id] != slot) {
        return 0;
    }
    if (command->op == VECENV_OP_CALL) {
        return is_left && !is_first ? 1 : is_call_in(command, unanswered);
    }
    if (is_left && self->ring.outstanding[command->env_id] != command->step_id) {
        return !is_first || !is_done(self, command);
    }
    return self->ring.outstanding[command->env_id] == command->step_id
           && !vecenv_ring_is_answered(&self->ring, command);
}

/* Have a command, whose reply is missing, write the same row of the ordered request under way, or
 * claim one if its row belongs to no such request any more. */
static void
free_row(Hub *self, vecenv_command *command)
{
    const vecenv_ring *ring = &self->ring;
    uint64_t row_ref = command->row_ref;
    if (row_ref == VECENV_CLAIM || ring->outstanding[command->env_id] != command->step_id) {
        return;
    }
    vecenv_word *cell =
        &word_column(&self->arena, ref_block(row_ref), VECENV_H_CELL)[ref_row(row_ref)];
    if (ring->assigned_rows > 0 && ref_epoch(row_ref) == ref_epoch(ring->assigned)) {
        store_release(cell, 0);
    } else if (load_acquire(cell) >= ref_epoch(row_ref)) {
        command->row_ref = VECENV_CLAIM;
    }
}

/* Move the commands that a dead slot has not answered to the end of the private queue, and remove all
 * others. Sets *head to the first one; -1 with an exception. */
static int
keep_unanswered(Hub *self, uint32_t slot, PyObject *unanswered, uint32_t *head)
{
    vecenv_command *queue = own_queue_of(&self->sender, slot);
    uint32_t size = self->arena.queue_size, mask = size - 1;
    uint32_t tail = self->sender.tails[slot];
    uint32_t num_left = tail - vecenv_queue_head(&self->sender, slot);
    *head = tail;
    for (uint32_t back = 1; back <= size; back++) {
        vecenv_command command = queue[(tail - back) & mask];
        int is_kept = is_unanswered(self, slot, &command, unanswered, back <= num_left,
                                    back == num_left);
        if (is_kept < 0) {
            return -1;
        }
        queue[(tail - back) & mask].op = VECENV_OP_NONE;
        if (is_kept) {
            free_row(self, &command);
            set_check(&command);
            queue[--*head & mask] = command;
        }
    }
    return 0;
}

PyObject *
vecenv_hub_requeue(PyObject *op, PyObject *args)
{
    Hub *self = (Hub *)op;
    PyObject *arg, *unanswered;
    uint32_t slot, head;
    if (!PyArg_ParseTuple(args, "OO:requeue", &arg, &unanswered)
        || parse_slot(self, arg, &slot) < 0
        || keep_unanswered(self, slot, unanswered, &head) < 0) {
        return NULL;
    }
    const vecenv_command *queue = own_queue_of(&self->sender, slot);
    uint32_t mask = self->arena.queue_size - 1;
    uint32_t tail = self->sender.tails[slot];
    vecenv_ring_reap_claims(&self->ring, slot, queue, head, tail - head);
    restore_words(self, slot, head);
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
"requeue($self, slot, unanswered, /)\n--\n\n"
"Return the unanswered commands of a dead slot: a list of (op, env_id, step_id, flags).\n\n"
"Call it after the slot's process has ended and its messages have been read. Rows that it claimed\n"
"and did not commit become void. The commands stay in the queue for a successor, but their\n"
"payloads must be written again. unanswered: the step_ids of the calls whose replies have not\n"
"arrived. A command whose reply is missing, because its row was overwritten, is among them.");

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
    vecenv_command *queue = own_queue_of(sender, from);
    vecenv_command *other = own_queue_of(sender, to);
    uint32_t mask = self->arena.queue_size - 1;
    uint32_t head = vecenv_queue_head(sender, from), tail = sender->tails[from];
    uint32_t other_head = vecenv_queue_head(sender, to), num_moved = 0;
    for (uint32_t at = head; at != tail; at++) {
        if (queue[at & mask].env_id == env_id) {
            reassign_row(self, queue[at & mask].row_ref, to);
            other[sender->tails[to]++ & mask] = queue[at & mask];
            num_moved++;
        }
    }
    if (num_moved == 0) { /* a process may serve the old slot */
        sender->slot_of[env_id] = to;
        restore_words(self, to, other_head);
        Py_RETURN_NONE;
    }
    uint32_t kept = tail; /* the remaining commands move to the end, where new ones will follow */
    for (uint32_t at = tail; at != head;) {
        if (queue[--at & mask].env_id != env_id) {
            queue[--kept & mask] = queue[at & mask];
        }
    }
    for (uint32_t at = head; at != kept; at++) {
        queue[at & mask].op = VECENV_OP_NONE;
    }
    sender->slot_of[env_id] = to;
    if (sender->has_cancelled[from] && !sender->has_cancelled[to]) {
        sender->has_cancelled[to] = 1;
        sender->num_with_cancelled++;
    }
    restore_words(self, from, kept);
    restore_words(self, to, other_head);
    /* a moved step may have been superseded: make the new slot check */
    vecenv_word32 *superseded = &self->arena.slots[to].num_superseded;
    store_release32(superseded, load_acquire32(superseded) + 1);
    vecenv_publish_tail(&self->arena, to, sender->tails[to], vecenv_now_ns());
    Py_RETURN_NONE;
}

const char vecenv_hub_move_doc[] = PyDoc_STR(
"move($self, env_id, slot, /)\n--\n\n"
"Serve an env by another slot, and move its queued commands there.\n\n"
"No process may serve the new slot: it has never been used, or has been requeued. Nor the old one,\n"
"which has been requeued, unless no command of the env is in its queue.");

static int
has_stray_head(const Hub *self, uint32_t slot)
{
    uint32_t head = load_acquire32(&self->arena.slots[slot].head);
    return self->sender.tails[slot] - head > self->arena.queue_size;
}

/* Return the first command in a slot's queue; op NONE if it is empty. If the head is stray, it is the
 * first one whose reply is outstanding. */
static vecenv_command
first_command(const Hub *self, uint32_t slot)
{
    const vecenv_command *queue = own_queue_of(&self->sender, slot);
    uint32_t size = self->arena.queue_size, tail = self->sender.tails[slot];
    int is_stray = has_stray_head(self, slot);
    uint32_t at = vecenv_queue_head(&self->sender, slot);
    for (at = is_stray ? tail - size : at; at != tail; at++) {
        const vecenv_command *command = &queue[at & (size - 1)];
        if (!is_stray
            || (command->op != VECENV_OP_NONE && self->sender.slot_of[command->env_id] == slot
                && self->ring.outstanding[command->env_id] == command->step_id)) {
            return *command;
        }
    }
    return (vecenv_command){.op = VECENV_OP_NONE};
}

PyObject *
vecenv_hub_state(PyObject *op, PyObject *arg)
{
    Hub *self = (Hub *)op;
    uint32_t slot;
    if (parse_slot(self, arg, &slot) < 0) {
        return NULL;
    }
    const vecenv_arena *arena = &self->arena;
    const vecenv_slot_lines *lines = &arena->slots[slot];
    /* Load the operation first, since the slot stores it last: so the start is not older than the
     * operation. C does not define the order in which arguments of a call are evaluated. */
    unsigned int current_op = load_acquire32(&lines->current_op);
    unsigned int env_id = load_acquire32(&lines->current_env);
    unsigned long long step_id = load_acquire(&lines->current_step_id);
    long long started_ns = (long long)load_acquire(&lines->started_ns);
    unsigned int blocked = load_acquire32(&lines->blocked) != 0;
    unsigned long long num_steps = load_acquire(&lines->num_steps);
    if (current_op > VECENV_OP_CALL || has_stray_head(self, slot)
        || (current_op != VECENV_OP_NONE
            && (env_id >= arena->num_envs || step_id >= self->sender.next_step_id
                || started_ns < 0 || started_ns > vecenv_now_ns()))) {
        vecenv_note_stray(&self->strays, slot, "its operation under way", current_op);
        /* the command under way stays in the queue until it ends */
        vecenv_command first = first_command(self, slot);
        current_op = first.op;
        env_id = first.env_id;
        step_id = first.step_id;
        started_ns = vecenv_now_ns();
    }
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
    vecenv_command first = first_command(self, slot);
    return Py_BuildValue("(IIK)", (unsigned int)first.op, first.env_id,
                         (unsigned long long)first.step_id);
}

const char vecenv_hub_pending_doc[] = PyDoc_STR(
"pending($self, slot, /)\n--\n\n"
"Return (op, env_id, step_id) of the first command in a slot's queue; op 0 if it is empty.\n\n"
"The command under way stays in the queue until it ends.");

/* Note slots that have carried out all commands although an env of theirs has an outstanding reply, and
 * slots without envs that have begun something. */
static void
find_lost_replies(Hub *self)
{
    const vecenv_arena *arena = &self->arena;
    vecenv_ring *ring = &self->ring;
    uint8_t *is_idle = self->sender.touched; /* scratch, zeroed between two calls */
    for (uint32_t slot = 0; slot < arena->num_slots; slot++) {
        is_idle[slot] = load_acquire32(&arena->slots[slot].current_op) == VECENV_OP_NONE
                        && vecenv_queue_head(&self->sender, slot) == self->sender.tails[slot];
    }
    uint8_t *has_env = self->sender.touched + arena->num_slots;
    for (uint32_t env_id = 0; env_id < arena->num_envs; env_id++) {
        has_env[self->sender.slot_of[env_id]] = 1;
    }
    for (uint32_t slot = 0; slot < arena->num_slots; slot++) {
        uint64_t up_written = load_acquire(&arena->slots[slot].up_written);
        if (!has_env[slot] && (!is_idle[slot] || up_written != self->up_read[slot])) {
            vecenv_note_stray(&self->strays, slot, "a word of a slot in reserve", up_written);
        }
    }
    vecenv_ring_find_replies(ring); /* after the heads: a slot commits a row before it advances */
    for (uint32_t env_id = 0; env_id < arena->num_envs; env_id++) {
        uint32_t slot = self->sender.slot_of[env_id];
        if (is_idle[slot] && ring->outstanding[env_id] != 0
            && ring->seen[env_id] != ring->search) {
            vecenv_note_stray(&self->strays, slot, "the row of its command",
                              ring->outstanding[env_id]);
        }
    }
    memset(is_idle, 0, 2 * (size_t)arena->num_slots);
}

PyObject *
vecenv_hub_take_stray_words(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    Hub *self = (Hub *)op;
    if (vecenv_ring_check_claims(&self->ring)) {
        find_lost_replies(self);
    }
    PyObject *found = PyList_New(0);
    for (uint32_t i = 0; found != NULL && i < self->strays.count; i++) {
        const vecenv_stray_word *stray = &self->strays.words[i];
        long slot = stray->slot == VECENV_NO_SLOT ? -1 : (long)stray->slot;
        PyObject *item =
            Py_BuildValue("(lsK)", slot, stray->word, (unsigned long long)stray->value);
        if (item == NULL || PyList_Append(found, item) < 0) {
            Py_CLEAR(found);
        }
        Py_XDECREF(item);
    }
    self->strays.count = 0;
    return found;
}

const char vecenv_hub_take_stray_words_doc[] = PyDoc_STR(
"take_stray_words($self, /)\n--\n\n"
"Look for stray words; return those found since the last call: a list of (slot, word, value).\n\n"
"A stray word is a value in shared memory that no worker writes. slot: its owner, -1 for words\n"
"that all slots share. word: its name. The word of a row that is missing has a step_id as value.");

PyObject *
vecenv_hub_reset_claims(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    vecenv_ring_reset_claims(&((Hub *)op)->ring);
    Py_RETURN_NONE;
}

const char vecenv_hub_reset_claims_doc[] = PyDoc_STR(
"reset_claims($self, /)\n--\n\n"
"Set the words that all slots share for their claims again; no slot may have a process.");

PyObject *
vecenv_hub_stop(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    Hub *self = (Hub *)op;
    self->waiter.epoll_fd = -1; /* the owner closes it after this; its number then belongs to another file */
    self->has_stopped = 1;
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
    uint32_t count = self->ring.num_info_keys;
    if (count == VECENV_INFO_KEYS || nbytes >= VECENV_INFO_KEY_NBYTES
        || (size_t)nbytes != strlen(name)) {
        return PyLong_FromLong(-1);
    }
    memcpy(self->info_keys[count], name, (size_t)nbytes + 1);
    memcpy(self->arena.info_keys + (size_t)count * VECENV_INFO_KEY_NBYTES, name,
           (size_t)nbytes + 1);
    self->ring.num_info_keys++;
    store_release32(&self->arena.control->num_info_keys, count + 1);
    return PyLong_FromUnsignedLong(count);
}

const char vecenv_hub_add_info_key_doc[] = PyDoc_STR(
"add_info_key($self, name, /)\n--\n\n"
"Give an info cell to a table entry; return its index, or -1 if the entry does not fit.\n\n"
"name: an entry as described in native/py/info.h. It does not fit if it has more than 63 bytes of\n"
"UTF-8 or the table is full.");
