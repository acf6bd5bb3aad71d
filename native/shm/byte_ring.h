/* Byte ring: carries messages of any size from one writer to one reader.
 *
 * `written` and `read` count bytes since the start and only grow; byte number k is at index
 * k % ring size. A message is one or more fragments. A fragment is an 8 byte head
 * (data bytes << 1 | more) and its data, padded to a multiple of 8. `more` is set in all
 * fragments of a message but the last. So a message larger than the ring passes through in
 * fragments, and large and small messages share one order.
 *
 * There is no lock: if one side dies, the other side waits at most until its deadline. */
#ifndef VECENV_BYTE_RING_H
#define VECENV_BYTE_RING_H

#include "shm/layout.h"

typedef struct {
    uint8_t *bytes;
    size_t nbytes; /* power of two, at least 64 */
    vecenv_word *written, *read;
} vecenv_byte_ring;

enum { VECENV_BYTE_RING_NONE = 0, VECENV_BYTE_RING_MORE = 1, VECENV_BYTE_RING_LAST = 2 };

/* Return a ring of a slot: up is worker -> parent, down is parent -> worker. */
vecenv_byte_ring vecenv_byte_ring_up(const vecenv_arena *arena, uint32_t slot);
vecenv_byte_ring vecenv_byte_ring_down(const vecenv_arena *arena, uint32_t slot);

/* Write one fragment with as much of data[0..nbytes) as fits. Returns the number of bytes written;
 * if it is less than nbytes, the fragment is marked `more`. Returns -1 if the ring has no room for
 * a useful fragment: wait until the reader has read, then call again. */
ptrdiff_t vecenv_byte_ring_put(vecenv_byte_ring *ring, const void *data, size_t nbytes);

/* Set *nbytes to the data size of the next fragment. Returns VECENV_BYTE_RING_LAST if it ends its
 * message, else VECENV_BYTE_RING_MORE; VECENV_BYTE_RING_NONE if the ring is empty. */
int vecenv_byte_ring_peek(const vecenv_byte_ring *ring, size_t *nbytes);

/* Copy the data of the next fragment to `out` and free its room in the ring. `out` needs room for
 * the size that vecenv_byte_ring_peek has set. */
void vecenv_byte_ring_take(vecenv_byte_ring *ring, void *out);

#endif
