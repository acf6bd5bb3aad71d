#define _GNU_SOURCE
#include "shm/wait.h"

#include <errno.h>
#include <sys/epoll.h>

#include "shm/claim.h"

/* How long a sealed block waits for a worker between its claim and its commit, before the row
 * becomes a straggler. There are only copies between the two, so only a stopped or descheduled
 * worker takes that long. */
#define STRAGGLER_WAIT_NS INT64_C(20000000)
#define POLLS_PER_YIELD 16
/* After a yield that was shorter than this, no other thread ran. Then wait for as long before the
 * next yield: rows that are committed during a yield are seen only at its end. */
#define SHORT_YIELD_NS 1000
#define MAX_EVENTS 8
/* The longest sleep. A signal may arrive just before a sleep, or in another thread; its Python
 * handler then runs only at the end of the sleep. */
#define SLICE_MS 100

static int
has_messages(const vecenv_waiter *self, uint32_t slot)
{
    return load_acquire(&self->arena->slots[slot].up_written) != self->up_read[slot];
}

/* Return whether a slot waits for the parent to read its messages. A slot that waits for a payload,
 * or that died while it waited, is blocked as well but has no messages. It must not end the wait,
 * else the parent would not notice exits. */
static int
any_blocked(const vecenv_waiter *self)
{
    for (uint32_t slot = 0; slot < self->arena->num_slots; slot++) {
        if (load_acquire32(&self->arena->slots[slot].blocked) && has_messages(self, slot)) {
            return 1;
        }
    }
    return 0;
}

static int
any_messages(const vecenv_waiter *self)
{
    for (uint32_t slot = 0; slot < self->arena->num_slots; slot++) {
        if (has_messages(self, slot)) {
            return 1;
        }
    }
    return 0;
}

static int
is_satisfied(const vecenv_waiter *self, const vecenv_wait_condition *condition)
{
    if (condition->kind == VECENV_WAIT_ALL) {
        return vecenv_all_committed(self->arena, ref_epoch(condition->row_ref),
                                    ref_block(condition->row_ref), condition->count);
    }
    if (condition->kind == VECENV_WAIT_SOME) {
        uint32_t claimed = vecenv_num_claimed(self->arena, ref_epoch(condition->row_ref));
        return claimed >= condition->count
               && vecenv_count_committed(self->arena, ref_epoch(condition->row_ref),
                                         ref_block(condition->row_ref), claimed)
                      >= condition->count;
    }
    /* rows in other blocks wake a sleeper, but cannot be counted here */
    return condition->row_ref != 0
           && vecenv_count_committed(self->arena, ref_epoch(condition->row_ref),
                                     ref_block(condition->row_ref), self->arena->rows)
                  > condition->count;
}

static int
spin_for(const vecenv_waiter *self, const vecenv_wait_condition *condition, vecenv_spin *spin,
         int64_t deadline_ns)
{
    int64_t left_ns = deadline_ns - spin->began_ns;
    if (left_ns < spin->spin_limit_ns) {
        spin->spin_limit_ns = left_ns;
    }
    if (spin->spin_limit_ns <= 0) {
        return 0;
    }
    for (int64_t stay_ns = 0;;) {
        int64_t now_ns;
        do {
            for (int polls = 0; polls < POLLS_PER_YIELD; polls++) {
                if (is_satisfied(self, condition)) {
                    return 1;
                }
            }
            now_ns = vecenv_now_ns();
        } while (now_ns - spin->now_ns < stay_ns);
        if (!vecenv_spin_once(spin)) {
            return 0;
        }
        stay_ns = spin->now_ns - now_ns < SHORT_YIELD_NS ? SHORT_YIELD_NS : 0;
    }
}

/* Sleep until the condition is true, a descriptor other than event_fd is ready, or deadline_ns has
 * passed. Returns a RECV_* outcome; RECV_BATCH: check the condition again; -1: a signal arrived. */
static int
sleep_since(vecenv_waiter *self, const vecenv_wait_condition *condition, int64_t began_ns,
            int64_t deadline_ns, int *descriptor)
{
    int64_t now_ns = vecenv_now_ns();
    vecenv_begin_wait(self->arena, condition->kind, condition->row_ref, condition->count, began_ns);
    int outcome = RECV_BATCH;
    int64_t left = deadline_ns - now_ns;
    if (is_satisfied(self, condition)) {
        outcome = RECV_BATCH;
    } else if (any_blocked(self) || (condition->kind == VECENV_WAIT_ANY && any_messages(self))) {
        outcome = RECV_MESSAGE;
    } else {
        struct epoll_event events[MAX_EVENTS];
        int64_t milliseconds = left <= 0 ? 0 : (left + 999999) / 1000000;
        int timeout = milliseconds > SLICE_MS ? SLICE_MS : (int)milliseconds;
        int ready = epoll_wait(self->epoll_fd, events, MAX_EVENTS, timeout);
        if (ready < 0) {
            outcome = errno == EINTR ? -1 : RECV_TIMEOUT;
        } else if (ready == 0) {
            outcome = vecenv_now_ns() >= deadline_ns ? RECV_TIMEOUT : RECV_BATCH;
        }
        for (int i = 0; i < ready; i++) {
            if (events[i].data.fd == self->event_fd) {
                /* edge-triggered, so there is nothing to read */
                if (outcome == RECV_BATCH) { /* woken, perhaps not by a row: check everything */
                    outcome = load_acquire32(&self->arena->control->waiting) == VECENV_WAIT_SOON
                                  ? RECV_SOON
                                  : RECV_MESSAGE;
                }
            } else {
                *descriptor = events[i].data.fd;
                outcome = RECV_DESCRIPTOR;
            }
        }
    }
    vecenv_end_wait(self->arena);
    return outcome;
}

/* Return whether a slot that has received commands has finished all of them. */
static int
any_done(const vecenv_waiter *self)
{
    for (uint32_t slot = 0; slot < self->arena->num_slots; slot++) {
        const vecenv_slot_lines *lines = &self->arena->slots[slot];
        if (load_acquire(&lines->published_ns) != 0
            && load_acquire32(&lines->head) == load_acquire32(&lines->tail)
            && load_acquire32(&lines->current_op) == VECENV_OP_NONE) {
            return 1;
        }
    }
    return 0;
}

/* Spin for a late caller. A worker that it woke took the caller's core at once and has finished by
 * now. So the workers on other cores are about to finish. There are no yields, which would put the
 * caller behind other threads of its scheduling policy. */
static int
spin_for_late_caller(const vecenv_waiter *self, const vecenv_wait_condition *condition,
                     int64_t deadline_ns)
{
    int64_t now_ns = vecenv_now_ns();
    vecenv_spin spin = vecenv_begin_spin(&self->late_caller_spin_policy, now_ns);
    int64_t end_ns = now_ns + spin.spin_limit_ns;
    end_ns = end_ns < deadline_ns ? end_ns : deadline_ns;
    while (now_ns < end_ns) {
        if (is_satisfied(self, condition)) {
            return 1;
        }
        now_ns = vecenv_now_ns();
    }
    return 0;
}

/* Continue a wait after a worker on this core has finished. Until the other workers finish, this
 * core runs only that worker, which spins as well. So this wait may spin as long as a worker. */
static int
wait_for_others(vecenv_waiter *self, const vecenv_wait_condition *condition, int64_t asleep_ns,
                int64_t deadline_ns, int *descriptor)
{
    int64_t woken_ns = vecenv_now_ns();
    vecenv_spin spin = vecenv_begin_spin(&self->soon_spin_policy, woken_ns);
    if (spin.spin_limit_ns < self->spin_policy.spin_limit_ns
        && !vecenv_backs_off(&self->spin_policy)) {
        spin.spin_limit_ns = self->spin_policy.spin_limit_ns; /* the rows will come very soon */
    }
    int outcome = spin_for(self, condition, &spin, deadline_ns)
                      ? RECV_BATCH
                      : sleep_since(self, condition, asleep_ns, deadline_ns, descriptor);
    vecenv_spin_policy_update(&self->soon_spin_policy, &spin, vecenv_now_ns() - woken_ns);
    return outcome;
}

int
vecenv_sleep_for(vecenv_waiter *self, const vecenv_wait_condition *condition, int64_t deadline_ns,
                 int *descriptor)
{
    return sleep_since(self, condition, vecenv_now_ns(), deadline_ns, descriptor);
}

int
vecenv_wait_for(vecenv_waiter *self, const vecenv_wait_condition *condition, int64_t deadline_ns,
                int *descriptor)
{
    vecenv_spin spin = vecenv_begin_spin(&self->spin_policy, vecenv_now_ns());
    int may_spin = condition->kind != VECENV_WAIT_ANY; /* ANY has no word to poll */
    int is_late_caller = may_spin && condition->is_all && spin.spin_limit_ns == 0 && any_done(self);
    int is_found = may_spin && (is_late_caller ? spin_for_late_caller(self, condition, deadline_ns)
                                               : spin_for(self, condition, &spin, deadline_ns));
    int outcome = RECV_BATCH;
    if (!is_found) {
        int64_t asleep = vecenv_now_ns();
        outcome = sleep_since(self, condition, asleep, deadline_ns, descriptor);
        while (outcome == RECV_SOON) {
            outcome = wait_for_others(self, condition, asleep, deadline_ns, descriptor);
        }
        if (outcome != RECV_BATCH && outcome != -1 && is_satisfied(self, condition)) {
            outcome = RECV_BATCH; /* results come first, then exits and deadlines */
        }
    }
    int64_t waited_ns = vecenv_now_ns() - spin.began_ns;
    vecenv_spin_policy_update(&self->spin_policy, &spin, waited_ns);
    if (is_late_caller) {
        vecenv_spin_policy_update(&self->late_caller_spin_policy, &spin, waited_ns);
    }
    return outcome;
}

int
vecenv_gather(vecenv_waiter *self, uint32_t count, vecenv_wait_condition *condition)
{
    vecenv_ring *ring = self->ring;
    int is_all = count >= ring->num_outstanding;
    if (ring->num_stragglers > 0) {
        vecenv_ring_collect_stragglers(ring);
    }
    for (;;) {
        int has_rows = ring->num_row_ranges > 0 || ring->num_deferred > 0;
        uint32_t have = has_rows ? vecenv_ring_filter(ring) : 0;
        if (have >= count) {
            return 1;
        }
        if (ring->assigned_rows > 0) {
            *condition = (vecenv_wait_condition){VECENV_WAIT_ALL, ring->assigned_rows,
                                                 ring->assigned, is_all};
            if (!is_satisfied(self, condition)
                && !(ring->has_cancelled && vecenv_ring_has_awaited(ring))) {
                if (ring->has_cancelled) {
                    condition->kind = VECENV_WAIT_ANY;
                }
                return 0;
            }
            if (!vecenv_ring_is_assigned_intact(ring)) {
                return 0;
            }
            uint32_t num_rows = ring->assigned_rows;
            vecenv_ring_finish_assigned(ring);
            if (!ring->has_cancelled && !has_rows && num_rows >= count) {
                return 1; /* all of them were checked just now */
            }
            continue;
        }
        *condition = (vecenv_wait_condition){VECENV_WAIT_SOME, count - have, ring->chain[0],
                                             is_all};
        if (!is_satisfied(self, condition)) {
            if (ring->num_stragglers > 0) {
                condition->kind = VECENV_WAIT_ANY;
            }
            return 0;
        }
        if (vecenv_ring_seal(ring, STRAGGLER_WAIT_NS) != VECENV_OK) {
            return VECENV_ENOBLOCK;
        }
    }
}

int
vecenv_gather_envs(vecenv_waiter *self, const int64_t *env_ids, uint32_t count,
                   vecenv_wait_condition *condition)
{
    vecenv_ring *ring = self->ring;
    int is_all = count >= ring->num_outstanding;
    if (ring->num_stragglers > 0) {
        vecenv_ring_collect_stragglers(ring);
    }
    for (;;) {
        uint32_t have = vecenv_ring_count_ready(ring, env_ids, count);
        if (have == count) {
            return 1;
        }
        vecenv_ring_defer(ring);
        uint32_t least = count - have; /* rows that must come at least, of these envs or others */
        if (ring->assigned_rows > 0) {
            if (vecenv_ring_has_awaited(ring)) {
                if (!vecenv_ring_is_assigned_intact(ring)) {
                    return 0;
                }
                vecenv_ring_finish_assigned(ring);
                continue;
            }
            if (is_all && !ring->has_cancelled) { /* the whole ordered request is wanted */
                *condition = (vecenv_wait_condition){VECENV_WAIT_ALL, ring->assigned_rows,
                                                     ring->assigned, is_all};
                return 0;
            }
            least = 1; /* some of these envs may belong to the ordered request, some not */
        }
        *condition = (vecenv_wait_condition){VECENV_WAIT_SOME, least, ring->chain[0], is_all};
        if (is_satisfied(self, condition)) {
            if (vecenv_ring_seal(ring, STRAGGLER_WAIT_NS) != VECENV_OK) {
                return VECENV_ENOBLOCK;
            }
            continue;
        }
        if (ring->assigned_rows > 0) {
            uint32_t committed =
                vecenv_count_committed(self->arena, ref_epoch(ring->assigned),
                                       ref_block(ring->assigned), ring->assigned_rows);
            *condition = (vecenv_wait_condition){VECENV_WAIT_ANY, committed, ring->assigned, 0};
        } else if (ring->num_stragglers > 0) {
            condition->kind = VECENV_WAIT_ANY;
        }
        return 0;
    }
}
