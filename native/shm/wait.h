/* Waiting for rows: the one wait of the parent, which hears results, a worker that needs
 * its mail drained, deaths (descriptors in the epoll set) and the deadline. */
#ifndef VECENV_WAIT_H
#define VECENV_WAIT_H

#include "shm/park.h"
#include "shm/ring.h"

/* Longest spin of a caller that comes late: a halted core takes that long to wake it, and who
 * shares its core loses no more. */
#define VECENV_LATE_CALLER_SPIN_NS INT64_C(120000)

/* How a wait ended; RECV_SOON, that rows are on their way, is for this file only. */
enum { RECV_BATCH, RECV_TIMEOUT, RECV_DESCRIPTOR, RECV_MESSAGE, RECV_NO_BLOCK, RECV_SOON };

/* What the present recv waits for. */
typedef struct {
    uint32_t kind, count;
    uint64_t row_ref;
    int is_all; /* nothing else is owed */
} vecenv_wait_condition;

typedef struct {
    const vecenv_arena *arena;
    vecenv_ring *ring;
    int event_fd, epoll_fd;
    vecenv_spin_policy spin_policy;
    vecenv_spin_policy soon_spin_policy; /* when a worker has told that it has done its share */
    vecenv_spin_policy late_caller_spin_policy; /* when it comes only after one has */
} vecenv_waiter;

/* Bring ready rows to the row ranges. Returns 1 when at least `count` can be delivered, 0
 * when *condition must be waited for, VECENV_ENOBLOCK when no block is left. */
int vecenv_gather(vecenv_waiter *self, uint32_t count, vecenv_wait_condition *condition);

/* Wait for it: spin while that pays, then sleep. Returns RECV_BATCH: look again; another
 * outcome; or -1 when a signal arrived. Call without the GIL. */
int vecenv_wait_for(vecenv_waiter *self, const vecenv_wait_condition *condition,
                    int64_t deadline_ns, int *descriptor);

/* The same without spinning. */
int vecenv_sleep_for(vecenv_waiter *self, const vecenv_wait_condition *condition,
                     int64_t deadline_ns, int *descriptor);

#endif
