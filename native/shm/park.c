#define _GNU_SOURCE
#include "shm/park.h"

#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "shm/claim.h"

/* Checks of the word between two yields: a check takes 1 ns, a yield 350 ns. */
#define POLLS_PER_YIELD 16
/* How long a wait after a quick round spins without yields, and in pools of how many slots at
 * most: it fetches one cache line per slot. */
#define NO_YIELD_SPIN_NS INT64_C(10000)
#define NO_YIELD_MAX_SLOTS 8

static int
futex_wait(vecenv_word32 *word, uint32_t expected, int64_t timeout_ns)
{
    struct timespec timeout = {
        .tv_sec = (time_t)(timeout_ns / VECENV_NS_PER_SECOND),
        .tv_nsec = (long)(timeout_ns % VECENV_NS_PER_SECOND),
    };
    return (int)syscall(SYS_futex, word, FUTEX_WAIT, expected, &timeout, NULL, 0);
}

void
vecenv_wait_word(vecenv_word *word, uint64_t expected, int64_t timeout_ns)
{
    /* the low half is first in memory: module.c checks that the machine is little-endian */
    futex_wait((vecenv_word32 *)(void *)word, (uint32_t)expected, timeout_ns);
}

void
vecenv_wake_word(vecenv_word *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, 1, NULL, NULL, 0);
}

static int
slot_has_work(const vecenv_arena *arena, const vecenv_slot_lines *lines, uint32_t head)
{
    return load_acquire32(&lines->tail) != head
           || load_acquire32(&arena->control->stop) != 0;
}

/* Return whether another slot has unfinished commands. The result is a hint: only yields depend
 * on it. */
static int
others_have_work(const vecenv_arena *arena, uint32_t slot)
{
    for (uint32_t other = 0; other < arena->num_slots; other++) {
        const vecenv_slot_lines *lines = &arena->slots[other];
        if (other != slot && load_acquire32(&lines->tail) != load_acquire32(&lines->head)) {
            return 1;
        }
    }
    return 0;
}

/* Spin without yields while this slot has no work. Rounds are quick, so the next command comes
 * soon, and two context switches would take longer than a round. If another slot has work, yield:
 * it may be waiting for this core. If the caller runs on this core, return at once.
 * Returns 1 if there is work, 0 if the wait has to continue with yields. */
static int
spin_without_yield(const vecenv_arena *arena, uint32_t slot, uint32_t head, vecenv_spin *spin)
{
    const vecenv_slot_lines *lines = &arena->slots[slot];
    if (arena->num_slots > NO_YIELD_MAX_SLOTS
        || load_acquire32(&lines->published_core) == (uint32_t)sched_getcpu()) {
        return 0;
    }
    int64_t spin_limit_ns =
        spin->spin_limit_ns < NO_YIELD_SPIN_NS ? spin->spin_limit_ns : NO_YIELD_SPIN_NS;
    while (spin->now_ns - spin->began_ns < spin_limit_ns) {
        /* Check the other slots first: the caller notifies one slot after the other, so this slot
         * may be the next one. */
        int must_yield = others_have_work(arena, slot);
        for (int polls = 0; polls < POLLS_PER_YIELD; polls++) {
            if (slot_has_work(arena, lines, head)) {
                return 1;
            }
        }
        if (!must_yield) {
            spin->now_ns = vecenv_now_ns();
        } else if (!vecenv_spin_once(spin)) {
            return 0;
        }
    }
    return 0;
}

int
vecenv_slot_park(const vecenv_arena *arena, uint32_t slot, vecenv_spin_policy *spin_policy,
                 vecenv_affinity *affinity, int64_t timeout_ns)
{
    vecenv_slot_lines *lines = &arena->slots[slot];
    uint32_t head = load_acquire32(&lines->head);
    int64_t began = vecenv_now_ns();
    vecenv_spin spin = vecenv_begin_spin(spin_policy, began);
    int found = 0;
    vecenv_end_round(affinity, began, (int64_t)load_acquire(&lines->published_ns),
                     (int64_t)load_acquire(&arena->control->wait_began_ns));
    if (spin.spin_limit_ns > 0) {
        vecenv_leave_callers_core(affinity, load_acquire32(&lines->published_core), began);
        found = affinity->is_quick && spin_without_yield(arena, slot, head, &spin);
        while (!found) {
            for (int polls = 0; polls < POLLS_PER_YIELD && !found; polls++) {
                found = slot_has_work(arena, lines, head);
            }
            if (!found && !vecenv_spin_once(&spin)) {
                break;
            }
        }
    }
    if (!found) {
        int is_pinned = vecenv_pin(affinity);
        /* Dekker's pattern with vecenv_publish_tail and vecenv_notify_slot: the slot stores
         * `sleeping`, fences, loads `tail`; the parent stores `tail`, fences, loads `sleeping`. */
        store_release32(&lines->sleeping, (uint32_t)sched_getcpu() + 1);
        full_fence();
        if (!slot_has_work(arena, lines, head)) {
            futex_wait(&lines->tail, head, timeout_ns);
        }
        store_release32(&lines->sleeping, 0);
        if (is_pinned) {
            vecenv_unpin(affinity);
        }
        found = slot_has_work(arena, lines, head);
    }
    if (found) {
        vecenv_begin_round(affinity, vecenv_now_ns());
        /* Learn how long a spin would have lasted: until the command was published, not until
         * this thread woke. Else one slow wake-up would make the next wait sleep as well. */
        int64_t published = (int64_t)load_acquire(&lines->published_ns);
        vecenv_spin_policy_update(spin_policy, &spin, published > began ? published - began : 0);
    } else {
        /* idle: after some such waits, stop spinning */
        vecenv_spin_policy_update(spin_policy, &spin, vecenv_now_ns() - began);
    }
    return found;
}

void
vecenv_publish_tail(const vecenv_arena *arena, uint32_t slot, uint32_t tail, int64_t now_ns)
{
    store_release(&arena->slots[slot].published_ns, (uint64_t)now_ns);
    store_release32(&arena->slots[slot].published_core, (uint32_t)sched_getcpu());
    store_release32(&arena->slots[slot].tail, tail);
}

int
vecenv_sleeps_here(const vecenv_arena *arena, uint32_t slot)
{
    uint32_t sleeping = load_acquire32(&arena->slots[slot].sleeping);
    return sleeping != 0 && sleeping == (uint32_t)sched_getcpu() + 1;
}

void
vecenv_notify_slot(const vecenv_arena *arena, uint32_t slot)
{
    vecenv_slot_lines *lines = &arena->slots[slot];
    if (load_acquire32(&lines->sleeping)) {
        syscall(SYS_futex, &lines->tail, FUTEX_WAKE, 1, NULL, NULL, 0);
    }
}

void
vecenv_begin_wait(const vecenv_arena *arena, uint32_t kind, uint64_t row_ref, uint32_t count,
                  int64_t began_ns)
{
    vecenv_control *control = arena->control;
    store_release(&control->wait_began_ns, (uint64_t)began_ns);
    store_release32(&control->wait_core, (uint32_t)sched_getcpu());
    store_release(&control->wait_row_ref, row_ref);
    store_release32(&control->wait_count, count);
    store_release32(&control->waiting, kind);
    full_fence(); /* pairs with the fence in vecenv_wake_parent */
}

void
vecenv_end_wait(const vecenv_arena *arena)
{
    store_release32(&arena->control->waiting, VECENV_WAIT_NOT);
}

int
vecenv_is_satisfied(const vecenv_arena *arena, uint32_t kind)
{
    vecenv_control *control = arena->control;
    uint64_t row_ref = load_acquire(&control->wait_row_ref);
    uint32_t count = load_acquire32(&control->wait_count);
    uint64_t epoch = ref_epoch(row_ref);
    uint32_t block = ref_block(row_ref);
    if (kind == VECENV_WAIT_ALL) {
        return vecenv_all_committed(arena, epoch, block, count);
    }
    if (kind == VECENV_WAIT_SOME) {
        uint32_t claimed = vecenv_num_claimed(arena, epoch);
        return claimed >= count
               && vecenv_count_committed(arena, epoch, block, claimed) >= count;
    }
    return kind == VECENV_WAIT_ANY;
}

static int
take_and_wake(const vecenv_arena *arena, int event_fd, uint32_t kind, uint32_t next)
{
    if (!swap_if32(&arena->control->waiting, kind, next)) {
        return 0; /* another worker wakes the parent, or it woke up by itself */
    }
    uint64_t one = 1;
    ssize_t written;
    do {
        written = write(event_fd, &one, sizeof one);
    } while (written < 0 && errno == EINTR);
    return 1;
}

int
vecenv_may_wake_parent(const vecenv_arena *arena)
{
    uint32_t kind = load_acquire32(&arena->control->waiting);
    return kind != VECENV_WAIT_NOT && kind != VECENV_WAIT_ALL;
}

int
vecenv_wake_parent(const vecenv_arena *arena, int event_fd, int queue_empty)
{
    full_fence(); /* store the cell, then load `waiting`; pairs with vecenv_begin_wait */
    uint32_t kind = load_acquire32(&arena->control->waiting);
    if (kind == VECENV_WAIT_NOT || (kind == VECENV_WAIT_ALL && !queue_empty)
        || !vecenv_is_satisfied(arena, kind)) {
        return 0;
    }
    return take_and_wake(arena, event_fd, kind, VECENV_WAIT_NOT);
}

int
vecenv_wake_parent_early(const vecenv_arena *arena, int event_fd)
{
    const vecenv_control *control = arena->control;
    uint32_t kind = load_acquire32(&control->waiting);
    return (kind == VECENV_WAIT_ALL || kind == VECENV_WAIT_SOME)
           && load_acquire32(&control->wait_core) == (uint32_t)sched_getcpu()
           && take_and_wake(arena, event_fd, kind, VECENV_WAIT_SOON);
}

int
vecenv_wake_parent_now(const vecenv_arena *arena, int event_fd)
{
    full_fence();
    uint32_t kind = load_acquire32(&arena->control->waiting);
    return kind != VECENV_WAIT_NOT
           && take_and_wake(arena, event_fd, kind, VECENV_WAIT_NOT);
}
