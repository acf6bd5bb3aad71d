/* Requests: how operations of envs become commands in the queues of their slots.
 *
 * The parent's books of who owes what; `newest` in the arena is the part of them that
 * workers read. A request is refused whole or sent whole. */
#ifndef VECENV_REQUEST_H
#define VECENV_REQUEST_H

#include "shm/ring.h"

/* Why a request is refused. */
enum {
    SEND_BAD_ENV = -1,
    SEND_BUSY = -2,
    SEND_NO_BLOCK = -3,
    SEND_MIXED = -4,
    SEND_NO_ROOM = -5 /* what was cancelled fills the queue, and its slot does not drop it */
};

/* The same operation for `count` envs. */
typedef struct {
    int op, flags, ordered;
    const int64_t *env_ids;   /* NULL: all */
    const int64_t *arguments; /* NULL: none */
    const uint8_t *env_flags; /* NULL: none; or'ed to flags */
    size_t count;
} vecenv_request;

typedef struct {
    const vecenv_arena *arena;
    vecenv_ring *ring;
    uint32_t *slot_of;     /* per env */
    uint8_t *ops;          /* per env: operation outstanding, or the last one */
    uint64_t *before;      /* per env, scratch: what it owed before the request */
    uint32_t *tails;       /* per slot, ours to count */
    uint8_t *touched;      /* per slot, scratch of vecenv_send; zeroed */
    uint8_t *has_cancelled; /* per slot: its queue may hold what was cancelled; zeroed */
    uint32_t num_with_cancelled; /* how many are */
    uint64_t next_step_id; /* from 1: 0 means nothing outstanding */
} vecenv_sender;

/* Why a request cannot be sent now (SEND_*) and because of which env; 0 if it can.
 * Changes nothing. */
int vecenv_refuse(vecenv_sender *self, const vecenv_request *request, int64_t *refused_env);

/* Send a request that vecenv_refuse lets pass: step_ids count up from next_step_id in
 * request order. An env named twice and a ring without blocks are found here, and then
 * nothing has been sent. Actions must be in their columns before. */
int vecenv_send(vecenv_sender *self, const vecenv_request *request, int64_t *refused_env);

/* Forget what an env owes. Its slot drops the command, or its answer if it has begun; what is
 * in the queue until then is nobody's, so requests look for room as long as there is any. */
void vecenv_cancel(vecenv_sender *self, uint32_t env_id);

/* Env of the i-th entry of a request; env_ids NULL means 0, 1, 2, ... */
static inline int64_t
vecenv_env_at(const int64_t *env_ids, size_t i)
{
    return env_ids == NULL ? (int64_t)i : env_ids[i];
}

#endif
