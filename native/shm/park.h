/* Sleeping and waking between the parent and the slots.
 *
 * A slot sleeps on its own doorbell (a futex on `tail`); nobody is ever woken by a
 * broadcast, which would stack the workers on one core. The parent sleeps in
 * epoll_wait, so that one wait hears results (an eventfd), deaths (pidfds) and
 * deadlines (the timeout); a worker writes the eventfd only when the parent armed
 * itself for what has just become true.
 *
 * Both sides spin first, as long as spin.h lets them. */
#ifndef VECENV_PARK_H
#define VECENV_PARK_H

#include "shm/affinity.h"
#include "shm/clock.h"
#include "shm/layout.h"
#include "shm/spin.h"

/* Slot: wait until tail differs from head or the arena's stop word is set, at most
 * timeout_ns. Returns 1 when there is something to do, 0 at the timeout or when a
 * signal arrived. `affinity`: where to wake up after a sleep. Call without the GIL. */
int vecenv_slot_park(const vecenv_arena *arena, uint32_t slot, vecenv_spin_policy *spin_policy,
                     vecenv_affinity *affinity, int64_t timeout_ns);

/* Parent: publish a new queue end and wake the slot if it sleeps. Several slots: call
 * vecenv_publish_tail for each, one full_fence, then vecenv_notify_slot for each. */
void vecenv_publish_tail(const vecenv_arena *arena, uint32_t slot, uint32_t tail,
                         int64_t now_ns);
void vecenv_notify_slot(const vecenv_arena *arena, uint32_t slot);

/* Parent: whether the slot fell asleep on the calling thread's core. Its bell is to be the last:
 * who wakes there may take the core at once, and the other bells would wait for the end of its
 * work. */
int vecenv_sleeps_here(const vecenv_arena *arena, uint32_t slot);

/* Parent: say what to be woken for, and when it began to sleep for that. The caller must look
 * once more after this call and before it sleeps. vecenv_end_wait after waking. */
void vecenv_begin_wait(const vecenv_arena *arena, uint32_t kind, uint64_t row_ref, uint32_t count,
                       int64_t began_ns);
void vecenv_end_wait(const vecenv_arena *arena);

/* Whether what the parent armed itself for is true now. */
int vecenv_is_satisfied(const vecenv_arena *arena, uint32_t kind);

/* Worker, after a commit with further commands to come that are quick: whether it is worth a
 * fence to ask if the parent is to be woken. A look without one, which may come too early for
 * a parent that arms itself just now; the next commits ask again. */
int vecenv_may_wake_parent(const vecenv_arena *arena);

/* Worker, after a commit: wake the parent if that was what it waits for. `queue_empty`
 * says that this slot has no further command; a parent that waits for all rows need
 * not be asked about before. Returns 1 when it wrote the eventfd. */
int vecenv_wake_parent(const vecenv_arena *arena, int event_fd, int queue_empty);

/* Sleep until the low half of `word` differs from `expected`, at most timeout_ns; wake who
 * sleeps so. For the byte counters of mail, when a ring is full or a fragment missing. */
void vecenv_wait_word(vecenv_word *word, uint64_t expected, int64_t timeout_ns);
void vecenv_wake_word(vecenv_word *word);

/* Worker with nothing left to do, before it waits: wake a parent that waits for rows of others
 * and sleeps on this core, which is free now. To wake it from another core takes an interrupt,
 * in a virtual machine 8 us; here it is awake, and looks, by the time those rows are there. It
 * finds VECENV_WAIT_SOON and must arm itself again if it gives up. Returns 1 when it wrote the
 * eventfd. */
int vecenv_wake_parent_early(const vecenv_arena *arena, int event_fd);

/* Worker: wake an armed parent whatever it waits for (mail up is full). */
int vecenv_wake_parent_now(const vecenv_arena *arena, int event_fd);

#endif
