#include "shm/request.h"

#include "shm/park.h"

/* Mark `op` as outstanding for all envs of a request. Returns 0, or SEND_* and changes nothing.
 * Step ids are first, first + 1, ... in request order; an env named twice is refused as busy. */
static int
reserve(vecenv_sender *self, int op, const int64_t *env_ids, size_t count, uint64_t first,
        int64_t *refused_env)
{
    vecenv_ring *ring = self->ring;
    int error = 0;
    size_t i = 0;
    for (; i < count; i++) {
        int64_t env_id = vecenv_env_at(env_ids, i);
        *refused_env = env_id;
        if (env_id < 0 || env_id >= (int64_t)self->arena->num_envs) {
            error = SEND_BAD_ENV;
            break;
        }
        uint64_t owed = ring->outstanding[env_id];
        int supersedes = op == VECENV_OP_RESET && self->ops[env_id] == VECENV_OP_STEP
                         && owed < first;
        if (owed != 0 && !supersedes) {
            error = SEND_BUSY;
            break;
        }
        ring->num_outstanding += owed == 0;
        self->before[env_id] = owed;
        ring->outstanding[env_id] = first + i;
    }
    if (error == 0) {
        for (i = 0; i < count; i++) {
            self->ops[vecenv_env_at(env_ids, i)] = (uint8_t)op;
        }
        return 0;
    }
    for (size_t j = 0; j < i; j++) {
        int64_t env_id = vecenv_env_at(env_ids, j);
        ring->outstanding[env_id] = self->before[env_id];
        ring->num_outstanding -= self->before[env_id] == 0;
    }
    return error;
}

uint32_t
vecenv_queue_head(const vecenv_sender *self, uint32_t slot)
{
    uint32_t head = load_acquire32(&self->arena->slots[slot].head);
    if (self->tails[slot] - head > self->arena->queue_size) {
        vecenv_note_stray(self->ring->strays, slot, "the head of its queue", head);
        return self->tails[slot];
    }
    return head;
}

static void
push(vecenv_sender *self, int64_t env_id, vecenv_command_words words)
{
    uint32_t slot = self->slot_of[env_id];
    uint32_t mask = self->arena->queue_size - 1;
    uint32_t at = self->tails[slot]++ & mask;
    words.rest |= check_of(&words);
    store_command(&own_queue_of(self, slot)[at], &words);
    store_command(&queue_of(self->arena, slot)[at], &words);
    self->touched[slot] = 1;
}

static void
notify_slot(vecenv_sender *self, uint32_t slot)
{
    self->touched[slot] = 0;
    vecenv_notify_slot(self->arena, slot);
}

/* Publish the queue ends of all touched slots. */
static void
publish_tails(vecenv_sender *self)
{
    int64_t now = vecenv_now_ns();
    for (uint32_t slot = 0; slot < self->arena->num_slots; slot++) {
        if (self->touched[slot]) {
            vecenv_publish_tail(self->arena, slot, self->tails[slot], now);
        }
    }
    full_fence(); /* store the tails, then load `sleeping`; pairs with vecenv_slot_park */
}

void
vecenv_wake_slots(vecenv_sender *self)
{
    for (uint32_t slot = 0; slot < self->arena->num_slots; slot++) {
        if (self->touched[slot] && !vecenv_sleeps_here(self->arena, slot)) {
            notify_slot(self, slot);
        }
    }
    for (uint32_t slot = 0; slot < self->arena->num_slots; slot++) {
        if (self->touched[slot]) {
            notify_slot(self, slot);
        }
    }
}

static int
has_block(vecenv_ring *ring, int is_ordered)
{
    return is_ordered ? vecenv_ring_can_assign(ring) : vecenv_ring_catch_up(ring) == VECENV_OK;
}

int
vecenv_send(vecenv_sender *self, const vecenv_request *request, int64_t *refused_env)
{
    vecenv_ring *ring = self->ring;
    uint64_t first = self->next_step_id;
    int has_row = request->op != VECENV_OP_CALL; /* the reply to a call is a message */
    int error = 0;
    if (has_row && !has_block(ring, request->ordered)) {
        vecenv_ring_collect_stragglers(ring); /* some may have been committed since */
        if (!has_block(ring, request->ordered)) {
            *refused_env = 0;
            return SEND_NO_BLOCK;
        }
    }
    if (has_row) {
        error = reserve(self, request->op, request->env_ids, request->count, first, refused_env);
    }
    if (error != 0) {
        return error;
    }
    if (request->ordered) {
        if (ring->assigned_rows > 0) { /* this request has just superseded all its envs */
            vecenv_ring_finish_assigned(ring);
            vecenv_ring_filter(ring);
        } else if (ring->num_free == 0) {
            vecenv_ring_filter(ring);
        }
        /* a block is free, as has_block has checked */
        vecenv_ring_assign(ring, (uint32_t)request->count);
        ring->assigned_first = first;
    }
    self->next_step_id += (uint64_t)request->count;
    uint32_t block = request->ordered ? ref_block(ring->assigned) : 0;
    vecenv_word *owners = word_column(self->arena, block, VECENV_H_OWNER);
    for (size_t i = 0; i < request->count; i++) {
        int64_t env_id = vecenv_env_at(request->env_ids, i);
        int flags = request->flags | (request->env_flags == NULL ? 0 : request->env_flags[i]);
        vecenv_command_words command = {
            .step_id = first + i,
            .row_ref = request->ordered ? ring->assigned + i : VECENV_CLAIM,
            .argument = request->arguments == NULL ? 0 : (uint64_t)request->arguments[i],
            .rest = command_rest((uint32_t)env_id, request->op, flags),
        };
        if (request->ordered) {
            store_release(&owners[i], owner_of(ref_epoch(ring->assigned),
                                               self->slot_of[env_id] + 1));
        }
        if (has_row) {
            store_release(&self->arena->newest[env_id], command.step_id);
        }
        if (request->op == VECENV_OP_RESET) { /* may supersede a step, see slot.h is_superseded */
            vecenv_word32 *count = &self->arena->slots[self->slot_of[env_id]].num_superseded;
            store_release32(count, load_acquire32(count) + 1);
            if (!request->ordered && self->before[env_id] != 0) { /* maybe of an ordered request */
                ring->has_cancelled = 1;
            }
        }
        push(self, env_id, command);
    }
    publish_tails(self);
    if (!request->defers_wake) {
        vecenv_wake_slots(self);
    }
    return 0;
}

/* Return whether replies are outstanding that an ordered request does not supersede: it must not
 * start then. */
static int
is_mixed(const vecenv_sender *self, const vecenv_request *request)
{
    uint32_t owed = self->ring->num_outstanding;
    for (size_t i = 0; owed > 0 && i < request->count; i++) {
        int64_t env_id = vecenv_env_at(request->env_ids, i);
        if (env_id >= 0 && env_id < (int64_t)self->arena->num_envs
            && self->ring->outstanding[env_id] != 0) {
            owed--;
        }
    }
    return owed > 0;
}

/* Clear has_cancelled of slots whose queue has been empty since. */
static void
update_has_cancelled(vecenv_sender *self)
{
    for (uint32_t slot = 0; slot < self->arena->num_slots; slot++) {
        if (self->has_cancelled[slot]
            && vecenv_queue_head(self, slot) == self->tails[slot]) {
            self->has_cancelled[slot] = 0;
            self->num_with_cancelled--;
        }
    }
}

/* Return whether the queues have room for these operations. Steps and resets always fit if no
 * command in the queue was cancelled, because each env has at most one outstanding reply. The
 * number of calls has no such limit, so calls may fill at most three quarters of a queue. */
static int
has_room(vecenv_sender *self, const vecenv_request *request, int64_t *refused_env)
{
    int is_call = request->op == VECENV_OP_CALL;
    uint32_t limit = self->arena->queue_size - (is_call ? self->arena->queue_size / 4 : 0);
    size_t i = 0;
    for (; i < request->count; i++) {
        *refused_env = vecenv_env_at(request->env_ids, i);
        uint32_t slot = self->slot_of[*refused_env];
        if ((is_call || self->has_cancelled[slot])
            && self->tails[slot] - vecenv_queue_head(self, slot) >= limit) {
            break;
        }
        self->tails[slot]++; /* count it as sent; undone below */
    }
    for (size_t j = 0; j < i; j++) {
        self->tails[self->slot_of[vecenv_env_at(request->env_ids, j)]]--;
    }
    return i == request->count;
}

int
vecenv_refuse(vecenv_sender *self, const vecenv_request *request, int64_t *refused_env)
{
    for (size_t i = 0; i < request->count; i++) {
        int64_t env_id = vecenv_env_at(request->env_ids, i);
        *refused_env = env_id;
        if (env_id < 0 || env_id >= (int64_t)self->arena->num_envs) {
            return SEND_BAD_ENV;
        }
        if (request->op == VECENV_OP_CALL) {
            continue;
        }
        if (self->ring->outstanding[env_id] != 0
            && (request->op != VECENV_OP_RESET || self->ops[env_id] != VECENV_OP_STEP)) {
            return SEND_BUSY;
        }
    }
    if (request->op == VECENV_OP_CALL) {
        return has_room(self, request, refused_env) ? 0 : SEND_BUSY;
    }
    if (request->ordered && is_mixed(self, request)) {
        return SEND_MIXED;
    }
    if (self->num_with_cancelled > 0) {
        update_has_cancelled(self);
        return has_room(self, request, refused_env) ? 0 : SEND_NO_ROOM;
    }
    return 0;
}

void
vecenv_cancel(vecenv_sender *self, uint32_t env_id)
{
    vecenv_ring *ring = self->ring;
    if (ring->outstanding[env_id] == 0) {
        return;
    }
    uint32_t slot = self->slot_of[env_id];
    ring->outstanding[env_id] = 0;
    ring->num_outstanding--;
    ring->has_cancelled = 1;
    /* no command has step_id 0: see is_superseded in slot.h */
    store_release(&self->arena->newest[env_id], 0);
    vecenv_word32 *count = &self->arena->slots[slot].num_superseded;
    store_release32(count, load_acquire32(count) + 1);
    if (!self->has_cancelled[slot]) {
        self->has_cancelled[slot] = 1;
        self->num_with_cancelled++;
    }
}
