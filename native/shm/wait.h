/* The parent's wait for rows. It also ends at the deadline, if a worker waits for its messages to
 * be read, or if a worker has exited (a descriptor of the epoll set is ready). */
#ifndef VECENV_WAIT_H
#define VECENV_WAIT_H

#include "shm/park.h"
#include "shm/ring.h"

/* Longest spin of a late caller (one that calls recv after a worker has finished). To wake it on a
 * halted core takes that long, and a thread that shares its core loses no more. */
#define VECENV_LATE_CALLER_SPIN_NS INT64_C(120000)

/* The outcome of a wait. RECV_STRAY: stray words were noted. RECV_SOON is internal: rows will be
 * committed soon. */
enum {
    RECV_BATCH,
    RECV_TIMEOUT,
    RECV_DESCRIPTOR,
    RECV_MESSAGE,
    RECV_NO_BLOCK,
    RECV_STRAY,
    RECV_SOON
};

/* The condition of one wait. */
typedef struct {
    uint32_t kind, count; /* VECENV_WAIT_*, number of rows */
    uint64_t row_ref;     /* epoch and block of the rows; 0: VECENV_WAIT_ANY, in any block */
    int is_all;           /* 1: it covers all outstanding replies */
} vecenv_wait_condition;

typedef struct {
    const vecenv_arena *arena;
    vecenv_ring *ring;
    const uint64_t *up_read; /* per slot: the private copy of this word */
    int event_fd, epoll_fd;
    vecenv_spin_policy spin_policy;
    vecenv_spin_policy soon_spin_policy; /* after vecenv_wake_parent_early */
    vecenv_spin_policy late_caller_spin_policy; /* see VECENV_LATE_CALLER_SPIN_NS */
} vecenv_waiter;

/* Move committed rows to the row ranges. Returns 1 if at least `count` rows can be delivered, 0 if
 * *condition must be waited for, VECENV_ENOBLOCK if no block is free. */
int vecenv_gather(vecenv_waiter *self, uint32_t count, vecenv_wait_condition *condition);

/* Gather the rows of these envs, which are distinct and have outstanding replies. Returns 1 if
 * vecenv_ring_take can deliver all of them. The rows of other envs are deferred. */
int vecenv_gather_envs(vecenv_waiter *self, const int64_t *env_ids, uint32_t count,
                       vecenv_wait_condition *condition);

/* Wait for a condition until deadline_ns of the monotonic clock: spin as spin.h allows, then sleep.
 * Returns RECV_BATCH if the caller must call vecenv_gather again; another RECV_* outcome; or -1 if
 * a signal arrived. RECV_DESCRIPTOR sets *descriptor. Call without the GIL. */
int vecenv_wait_for(vecenv_waiter *self, const vecenv_wait_condition *condition,
                    int64_t deadline_ns, int *descriptor);

/* Wait like vecenv_wait_for, but sleep at once. */
int vecenv_sleep_for(vecenv_waiter *self, const vecenv_wait_condition *condition,
                     int64_t deadline_ns, int *descriptor);

#endif
