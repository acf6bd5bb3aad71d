/* Byte rings: messages of every size through a small ring, also from one thread to another. */
#include <pthread.h>

#include "harness.h"

enum { RING = 256, LONGEST = 3 * RING, MESSAGES = 4000 };

static const arena_sizes sizes = {1, 2, 4, 1, 8, RING};

static uint8_t
byte_of(uint32_t message, size_t i)
{
    return (uint8_t)(message * 31u + (uint32_t)i * 7u + (uint32_t)(i >> 8));
}

static size_t
size_of(uint32_t message)
{
    return (message * 37u + message / 11u) % (LONGEST + 1u);
}

static void
fill(uint8_t *data, uint32_t message, size_t nbytes)
{
    for (size_t i = 0; i < nbytes; i++) {
        data[i] = byte_of(message, i);
    }
}

static void
check(const uint8_t *data, uint32_t message, size_t nbytes)
{
    for (size_t i = 0; i < nbytes; i++) {
        CHECK(data[i] == byte_of(message, i));
    }
}

static void
test_messages_of_every_size_arrive_intact(void)
{
    vecenv_arena arena = make_arena(sizes);
    vecenv_byte_ring ring = vecenv_byte_ring_up(&arena, 1);
    uint8_t data[RING], got[RING];
    for (uint32_t round = 0; round < 5; round++) { /* start at different offsets */
        for (size_t nbytes = 0; nbytes <= RING - 16; nbytes++) {
            uint32_t message = round * RING + (uint32_t)nbytes;
            fill(data, message, nbytes);
            CHECK(vecenv_byte_ring_put(&ring, data, nbytes) == (ptrdiff_t)nbytes);
            size_t found;
            CHECK(vecenv_byte_ring_peek(&ring, &found) == VECENV_BYTE_RING_LAST && found == nbytes);
            CHECK(vecenv_byte_ring_take(&ring, got, found));
            check(got, message, nbytes);
            CHECK(vecenv_byte_ring_peek(&ring, &found) == VECENV_BYTE_RING_NONE);
        }
    }
    free(arena.base);
}

static void
test_full_ring_refuses_data_and_keeps_messages(void)
{
    vecenv_arena arena = make_arena(sizes);
    vecenv_byte_ring ring = vecenv_byte_ring_down(&arena, 0);
    uint8_t data[RING], got[RING];
    uint32_t count = 0;
    for (;; count++) {
        fill(data, count, 16);
        if (vecenv_byte_ring_put(&ring, data, 16) < 0) {
            break;
        }
    }
    CHECK(count == RING / 32);
    CHECK(vecenv_byte_ring_put(&ring, data, 0) < 0);
    for (uint32_t i = 0; i < count; i++) {
        size_t found;
        CHECK(vecenv_byte_ring_peek(&ring, &found) == VECENV_BYTE_RING_LAST && found == 16);
        CHECK(vecenv_byte_ring_take(&ring, got, found));
        check(got, i, 16);
    }
    free(arena.base);
}

static void
test_large_message_passes_in_fragments(void)
{
    vecenv_arena arena = make_arena(sizes);
    vecenv_byte_ring ring = vecenv_byte_ring_up(&arena, 0);
    static uint8_t data[LONGEST], got[LONGEST];
    fill(data, 5, LONGEST);
    size_t sent = 0, taken = 0, num_fragments = 0;
    for (int kind = VECENV_BYTE_RING_MORE; kind != VECENV_BYTE_RING_LAST; num_fragments++) {
        ptrdiff_t put = vecenv_byte_ring_put(&ring, data + sent, LONGEST - sent);
        CHECK(put > 0);
        sent += (size_t)put;
        size_t found;
        kind = vecenv_byte_ring_peek(&ring, &found);
        CHECK(kind == (sent < LONGEST ? VECENV_BYTE_RING_MORE : VECENV_BYTE_RING_LAST));
        CHECK(found == (size_t)put && taken + found <= LONGEST);
        CHECK(vecenv_byte_ring_take(&ring, got + taken, found));
        taken += found;
    }
    CHECK(num_fragments > 2 && taken == LONGEST);
    check(got, 5, LONGEST);
    free(arena.base);
}

static void
test_rings_of_slots_and_directions_are_separate(void)
{
    vecenv_arena arena = make_arena(sizes);
    vecenv_byte_ring rings[4] = {vecenv_byte_ring_up(&arena, 0), vecenv_byte_ring_up(&arena, 1),
                                 vecenv_byte_ring_down(&arena, 0),
                                 vecenv_byte_ring_down(&arena, 1)};
    for (uint8_t i = 0; i < 4; i++) {
        uint8_t data[RING - 16];
        memset(data, i, sizeof data);
        CHECK(vecenv_byte_ring_put(&rings[i], data, sizeof data) == (ptrdiff_t)sizeof data);
    }
    for (uint8_t i = 0; i < 4; i++) {
        uint8_t got[RING - 16];
        CHECK(vecenv_byte_ring_take(&rings[i], got, sizeof got));
        for (size_t k = 0; k < sizeof got; k++) {
            CHECK(got[k] == i);
        }
    }
    free(arena.base);
}

/* ---- two threads, with the waits of Slot.send_message and Hub.take_fragment -------------- */

static void *
write_messages(void *argument)
{
    const vecenv_arena *arena = argument;
    vecenv_slot_lines *lines = &arena->slots[0];
    vecenv_byte_ring ring = vecenv_byte_ring_up(arena, 0);
    static uint8_t data[LONGEST];
    for (uint32_t message = 0; message < MESSAGES; message++) {
        size_t left = size_of(message);
        const uint8_t *next = data;
        fill(data, message, left);
        for (;;) {
            uint64_t expected = load_acquire(ring.read);
            ptrdiff_t taken = vecenv_byte_ring_put(&ring, next, left);
            if (taken >= 0 && (size_t)taken == left) {
                break;
            }
            if (taken > 0) {
                next += taken;
                left -= (size_t)taken;
                continue;
            }
            store_release32(&lines->blocked, 1);
            full_fence();
            if (load_acquire(ring.read) == expected) {
                int64_t began = vecenv_now_ns();
                vecenv_wait_word(ring.read, expected, LOST_NS);
                CHECK(vecenv_now_ns() - began < LOST_NS); /* else the wake-up was lost */
            }
        }
        store_release32(&lines->blocked, 0);
    }
    return NULL;
}

static void
test_blocked_writer_is_woken_after_read(void)
{
    vecenv_arena arena = make_arena(sizes);
    vecenv_byte_ring ring = vecenv_byte_ring_up(&arena, 0);
    static uint8_t got[LONGEST];
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, write_messages, &arena) == 0);
    uint32_t message = 0;
    size_t have = 0;
    while (message < MESSAGES) {
        size_t nbytes;
        int kind = vecenv_byte_ring_peek(&ring, &nbytes);
        if (kind == VECENV_BYTE_RING_NONE) {
            vecenv_yield();
            continue;
        }
        CHECK(have + nbytes <= LONGEST);
        CHECK(vecenv_byte_ring_take(&ring, got + have, nbytes));
        full_fence();
        if (load_acquire32(&arena.slots[0].blocked)) {
            vecenv_wake_word(ring.read);
        }
        have += nbytes;
        if (kind == VECENV_BYTE_RING_LAST) {
            CHECK(have == size_of(message));
            check(got, message++, have);
            have = 0;
        }
    }
    CHECK(pthread_join(thread, NULL) == 0);
    free(arena.base);
}

int
main(void)
{
    test_messages_of_every_size_arrive_intact();
    test_full_ring_refuses_data_and_keeps_messages();
    test_large_message_passes_in_fragments();
    test_rings_of_slots_and_directions_are_separate();
    test_blocked_writer_is_woken_after_read();
    return 0;
}
