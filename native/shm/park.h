/* Park and wake: sleeping and waking between the parent and the slots.
 *
 * A slot sleeps on its own doorbell, a futex on `tail`. There is no broadcast, which would wake
 * all workers on one core. The parent sleeps in epoll_wait, so one wait covers results (an
 * eventfd), exits of workers (pidfds) and deadlines (the timeout). Before it sleeps it registers
 * its condition in shared memory. A worker writes the eventfd only if that condition has just
 * become true.
 *
 * Both sides spin before they sleep, as long as spin.h allows. */
#ifndef VECENV_PARK_H
#define VECENV_PARK_H

#include "shm/affinity.h"
#include "shm/clock.h"
#include "shm/layout.h"
#include "shm/spin.h"

/* Slot: wait until tail differs from head or the arena's stop word is set, at most timeout_ns.
 * Returns 1 if there is work, 0 at the timeout or if a signal arrived. Updates `spin_policy` and
 * `affinity`, which belong to the calling thread. Call without the GIL. */
int vecenv_slot_park(const vecenv_arena *arena, uint32_t slot, vecenv_spin_policy *spin_policy,
                     vecenv_affinity *affinity, int64_t timeout_ns);

/* Parent: publish a new queue end, and wake the slot if it sleeps. Call vecenv_publish_tail for
 * each slot, then full_fence once, then vecenv_notify_slot for each slot. */
void vecenv_publish_tail(const vecenv_arena *arena, uint32_t slot, uint32_t tail,
                         int64_t now_ns);
void vecenv_notify_slot(const vecenv_arena *arena, uint32_t slot);

/* Parent: return whether the slot fell asleep on the calling thread's core. Notify such slots last:
 * a worker that wakes up there may take the core at once, and the other slots would be notified
 * only after its work. */
int vecenv_sleeps_here(const vecenv_arena *arena, uint32_t slot);

/* Parent: register the condition to wait for, and when this wait began. After this call and before
 * the sleep, the caller must check the condition once more. Call vecenv_end_wait after waking. */
void vecenv_begin_wait(const vecenv_arena *arena, uint32_t kind, uint64_t row_ref, uint32_t count,
                       int64_t began_ns);
void vecenv_end_wait(const vecenv_arena *arena);

/* Return whether the registered condition is true now. VECENV_WAIT_ANY is always true. */
int vecenv_is_satisfied(const vecenv_arena *arena, uint32_t kind);

/* Worker, after a commit, if its next command is quick: return whether vecenv_wake_parent and its
 * fence are worth their cost. Checks without a fence, so it may miss a parent that registers its
 * wait at this moment; the checks after the next commits find it. */
int vecenv_may_wake_parent(const vecenv_arena *arena);

/* Worker, after a commit: wake the parent if its registered condition is true. `queue_empty`: this
 * slot has no further command. Until then, a parent that waits for all rows is not woken, so its
 * condition is not checked. Returns 1 if it wrote the eventfd. */
int vecenv_wake_parent(const vecenv_arena *arena, int event_fd, int queue_empty);

/* Sleep until the low half of `word` differs from `expected`, at most timeout_ns; wake a thread
 * that sleeps on `word`. For the byte counters of a byte ring, if the ring is full or a fragment is
 * missing. */
void vecenv_wait_word(vecenv_word *word, uint64_t expected, int64_t timeout_ns);
void vecenv_wake_word(vecenv_word *word);

/* Worker without further commands, before it waits: wake a parent that sleeps on this core, which
 * is now free, and waits for rows of other workers. Waking it from another core needs an interrupt,
 * which takes 8 us in a virtual machine. Woken from here, the parent spins by the time those rows
 * are committed. It finds VECENV_WAIT_SOON and must register again before it sleeps. Returns 1 if
 * it wrote the eventfd. */
int vecenv_wake_parent_early(const vecenv_arena *arena, int event_fd);

/* Worker whose ring up is full: wake a waiting parent without a check of its condition. Returns 1
 * if it wrote the eventfd. */
int vecenv_wake_parent_now(const vecenv_arena *arena, int event_fd);

#endif
