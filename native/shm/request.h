/* Requests: turn operations on envs into commands in the queues of their slots.
 *
 * This is the parent's state of outstanding replies. `newest` in the arena is the part of it that
 * workers read. A request is sent as a whole or refused as a whole. */
#ifndef VECENV_REQUEST_H
#define VECENV_REQUEST_H

#include "shm/ring.h"

/* The reasons to refuse a request. */
enum {
    SEND_BAD_ENV = -1,  /* there is no such env */
    SEND_BUSY = -2,     /* the env has an outstanding reply, or too many calls are queued */
    SEND_NO_BLOCK = -3, /* no block is free */
    SEND_MIXED = -4,    /* an ordered request while replies of other envs are outstanding */
    SEND_NO_ROOM = -5   /* cancelled commands fill the queue: its slot does not drop them */
};

/* One operation on `count` envs. */
typedef struct {
    int op, flags, ordered;
    int defers_wake;          /* leave slots asleep, for vecenv_wake_slots */
    const int64_t *env_ids;   /* NULL: all envs */
    const int64_t *arguments; /* one per env; NULL: 0 */
    const uint8_t *env_flags; /* one per env, combined with `flags` by or; NULL: none */
    size_t count;
} vecenv_request;

typedef struct {
    const vecenv_arena *arena;
    vecenv_ring *ring;
    uint32_t *slot_of;     /* per env: its slot */
    uint8_t *ops;          /* per env: its outstanding operation, or its last one */
    uint64_t *before;      /* per env, scratch: `outstanding` before the request */
    uint32_t *tails;       /* per slot: the private copy of its tail */
    vecenv_command *queues; /* per slot: the private copy of its queue, zeroed */
    uint8_t *touched;      /* per slot, scratch of vecenv_send; zeroed */
    uint8_t *has_cancelled; /* per slot: its queue may hold cancelled commands; zeroed */
    uint32_t num_with_cancelled; /* number of slots with has_cancelled */
    uint64_t next_step_id; /* it begins with 1: 0 means that no reply is outstanding */
} vecenv_sender;

/* Return why a request cannot be sent now (SEND_*), and set *refused_env to the env that prevents
 * it. Returns 0 if it can be sent. Sends nothing. */
int vecenv_refuse(vecenv_sender *self, const vecenv_request *request, int64_t *refused_env);

/* Send a request for which vecenv_refuse has returned 0. The step_ids follow in request order,
 * from next_step_id on. The actions must already be in their columns. Returns 0, or SEND_* if an
 * env is named twice or no block is free; then nothing was sent. */
int vecenv_send(vecenv_sender *self, const vecenv_request *request, int64_t *refused_env);

/* Wake the slots that have commands of a request that defers it. One that sleeps on the calling
 * thread's core is the last one: it may take the core at once. */
void vecenv_wake_slots(vecenv_sender *self);

/* Return the head of a slot's queue; its end, noted as stray, if it is not within the queue. */
uint32_t vecenv_queue_head(const vecenv_sender *self, uint32_t slot);

/* Return the private copy of a slot's queue. */
static inline vecenv_command *
own_queue_of(const vecenv_sender *self, uint32_t slot)
{
    return self->queues + (size_t)slot * self->arena->queue_size;
}

/* Stop waiting for the outstanding reply of an env, if there is one. The slot drops the command,
 * or its reply if it has begun. Until then the command takes room in the queue, so requests check
 * for room. */
void vecenv_cancel(vecenv_sender *self, uint32_t env_id);

/* Return the env of the i-th entry of a request; env_ids NULL means 0, 1, 2, ... */
static inline int64_t
vecenv_env_at(const int64_t *env_ids, size_t i)
{
    return env_ids == NULL ? (int64_t)i : env_ids[i];
}

#endif
