#include "shm/byte_ring.h"

#include <string.h>

#include "shm/digest.h"

#define HEAD_NBYTES 16u
/* The shortest fragment worth writing while the reader is still busy, in bytes of data. */
#define MIN_FRAGMENT 16u

vecenv_byte_ring
vecenv_byte_ring_up(const vecenv_arena *arena, uint32_t slot)
{
    vecenv_slot_lines *lines = &arena->slots[slot];
    return (vecenv_byte_ring){arena->byte_rings_up + (size_t)slot * arena->byte_ring_nbytes,
                              arena->byte_ring_nbytes, &lines->up_written, &lines->up_read, NULL};
}

vecenv_byte_ring
vecenv_byte_ring_down(const vecenv_arena *arena, uint32_t slot)
{
    vecenv_slot_lines *lines = &arena->slots[slot];
    return (vecenv_byte_ring){arena->byte_rings_down + (size_t)slot * arena->byte_ring_nbytes,
                              arena->byte_ring_nbytes, &lines->down_written, &lines->down_read, NULL};
}

static void
copy_in(const vecenv_byte_ring *ring, uint64_t at, const void *data, size_t nbytes)
{
    size_t start = (size_t)at & (ring->nbytes - 1);
    size_t first = ring->nbytes - start < nbytes ? ring->nbytes - start : nbytes;
    memcpy(ring->bytes + start, data, first);
    memcpy(ring->bytes, (const uint8_t *)data + first, nbytes - first);
}

static void
copy_out(const vecenv_byte_ring *ring, uint64_t at, void *out, size_t nbytes)
{
    size_t start = (size_t)at & (ring->nbytes - 1);
    size_t first = ring->nbytes - start < nbytes ? ring->nbytes - start : nbytes;
    memcpy(out, ring->bytes + start, first);
    memcpy((uint8_t *)out + first, ring->bytes, nbytes - first);
}

static size_t
padded(size_t nbytes)
{
    return (nbytes + 7u) & ~(size_t)7u;
}

/* Return the counter that this side writes. */
static uint64_t
own_counter(const vecenv_byte_ring *ring, const vecenv_word *shared)
{
    return ring->own == NULL ? load_acquire(shared) : *ring->own;
}

static void
advance(const vecenv_byte_ring *ring, vecenv_word *shared, uint64_t value)
{
    if (ring->own != NULL) {
        *ring->own = value;
    }
    store_release(shared, value);
}

/* The position is included, so a fragment of an earlier round is not taken for a new one. */
static uint64_t
digest_of(uint64_t at, uint64_t size_word, const void *data, size_t nbytes)
{
    return digest_bytes(digest_mix(digest_mix(1, at), size_word), data, nbytes);
}

ptrdiff_t
vecenv_byte_ring_put(vecenv_byte_ring *ring, const void *data, size_t nbytes)
{
    uint64_t written = own_counter(ring, ring->written);
    uint64_t used = written - load_acquire(ring->read);
    if (used > ring->nbytes || written % 8 != 0) {
        return -2;
    }
    size_t room = ring->nbytes - (size_t)used;
    if (room < HEAD_NBYTES + padded(nbytes) && room < HEAD_NBYTES + MIN_FRAGMENT) {
        return -1;
    }
    size_t fits = room - HEAD_NBYTES;
    size_t fragment = nbytes <= fits ? nbytes : fits & ~(size_t)7u;
    uint64_t head[2] = {(uint64_t)fragment << 1 | (fragment < nbytes), 0};
    head[1] = digest_of(written, head[0], data, fragment);
    copy_in(ring, written, head, HEAD_NBYTES);
    copy_in(ring, written + HEAD_NBYTES, data, fragment);
    advance(ring, ring->written, written + HEAD_NBYTES + padded(fragment));
    return (ptrdiff_t)fragment;
}

int
vecenv_byte_ring_peek(const vecenv_byte_ring *ring, size_t *nbytes)
{
    uint64_t read = own_counter(ring, ring->read);
    uint64_t used = load_acquire(ring->written) - read;
    if (used == 0) {
        return VECENV_BYTE_RING_NONE;
    }
    uint64_t size_word;
    copy_out(ring, read, &size_word, sizeof size_word);
    if (used > ring->nbytes || used < HEAD_NBYTES || read % 8 != 0
        || size_word >> 1 > used - HEAD_NBYTES) {
        return VECENV_BYTE_RING_STRAY;
    }
    *nbytes = (size_t)(size_word >> 1);
    return size_word & 1 ? VECENV_BYTE_RING_MORE : VECENV_BYTE_RING_LAST;
}

int
vecenv_byte_ring_take(vecenv_byte_ring *ring, void *out, size_t nbytes)
{
    uint64_t read = own_counter(ring, ring->read);
    uint64_t head[2];
    copy_out(ring, read, head, HEAD_NBYTES);
    copy_out(ring, read + HEAD_NBYTES, out, nbytes);
    if (head[0] >> 1 != nbytes || head[1] != digest_of(read, head[0], out, nbytes)) {
        return 0;
    }
    advance(ring, ring->read, read + HEAD_NBYTES + padded(nbytes));
    return 1;
}

void
vecenv_byte_ring_drop(vecenv_byte_ring *ring)
{
    advance(ring, ring->read, load_acquire(ring->written));
}
