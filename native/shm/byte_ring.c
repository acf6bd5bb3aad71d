#include "shm/byte_ring.h"

#include <string.h>

#define HEAD_NBYTES 8u
/* The shortest fragment worth writing while the reader is still busy, in bytes of data. */
#define MIN_FRAGMENT 16u

vecenv_byte_ring
vecenv_byte_ring_up(const vecenv_arena *arena, uint32_t slot)
{
    vecenv_slot_lines *lines = &arena->slots[slot];
    return (vecenv_byte_ring){arena->byte_rings_up + (size_t)slot * arena->byte_ring_nbytes,
                              arena->byte_ring_nbytes, &lines->up_written, &lines->up_read};
}

vecenv_byte_ring
vecenv_byte_ring_down(const vecenv_arena *arena, uint32_t slot)
{
    vecenv_slot_lines *lines = &arena->slots[slot];
    return (vecenv_byte_ring){arena->byte_rings_down + (size_t)slot * arena->byte_ring_nbytes,
                              arena->byte_ring_nbytes, &lines->down_written, &lines->down_read};
}

static void
copy_in(vecenv_byte_ring *ring, uint64_t at, const void *data, size_t nbytes)
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

ptrdiff_t
vecenv_byte_ring_put(vecenv_byte_ring *ring, const void *data, size_t nbytes)
{
    uint64_t written = load_acquire(ring->written); /* own word */
    uint64_t used = written - load_acquire(ring->read);
    size_t room = ring->nbytes - (size_t)used;
    if (room < HEAD_NBYTES + padded(nbytes) && room < HEAD_NBYTES + MIN_FRAGMENT) {
        return -1;
    }
    size_t fits = room - HEAD_NBYTES;
    size_t fragment = nbytes <= fits ? nbytes : fits & ~(size_t)7u;
    uint64_t head = (uint64_t)fragment << 1 | (fragment < nbytes);
    copy_in(ring, written, &head, HEAD_NBYTES);
    copy_in(ring, written + HEAD_NBYTES, data, fragment);
    store_release(ring->written, written + HEAD_NBYTES + padded(fragment));
    return (ptrdiff_t)fragment;
}

int
vecenv_byte_ring_peek(const vecenv_byte_ring *ring, size_t *nbytes)
{
    uint64_t read = load_acquire(ring->read); /* own word */
    if (load_acquire(ring->written) == read) {
        return VECENV_BYTE_RING_NONE;
    }
    uint64_t head;
    copy_out(ring, read, &head, HEAD_NBYTES);
    *nbytes = (size_t)(head >> 1);
    return head & 1 ? VECENV_BYTE_RING_MORE : VECENV_BYTE_RING_LAST;
}

void
vecenv_byte_ring_take(vecenv_byte_ring *ring, void *out)
{
    uint64_t read = load_acquire(ring->read);
    uint64_t head;
    copy_out(ring, read, &head, HEAD_NBYTES);
    size_t nbytes = (size_t)(head >> 1);
    copy_out(ring, read + HEAD_NBYTES, out, nbytes);
    store_release(ring->read, read + HEAD_NBYTES + padded(nbytes));
}
