/* Byte ring: carries messages of any size from one writer to one reader.
 *
 * `written` and `read` count bytes since the start and only grow; byte number k is at index
 * k % ring size. A message is one or more fragments. A fragment is a head
 * of two words (data bytes << 1 | more; a digest of position, first word and data) and its data, padded
 * to a multiple of 8. `more` is set in all fragments of a message but the last. So a message larger than the ring passes through in
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
    uint64_t *own; /* private copy of the counter that this side writes; NULL: it reads the shared one */
} vecenv_byte_ring;

/* The next fragment; VECENV_BYTE_RING_STRAY: a counter or the bytes have been overwritten. */
enum {
    VECENV_BYTE_RING_NONE = 0,
    VECENV_BYTE_RING_MORE = 1,
    VECENV_BYTE_RING_LAST = 2,
    VECENV_BYTE_RING_STRAY = 3
};

/* Return a ring of a slot: up is worker -> parent, down is parent -> worker. */
vecenv_byte_ring vecenv_byte_ring_up(const vecenv_arena *arena, uint32_t slot);
vecenv_byte_ring vecenv_byte_ring_down(const vecenv_arena *arena, uint32_t slot);

/* Write one fragment with as much of data[0..nbytes) as fits. Returns the number of bytes written;
 * if it is less than nbytes, the fragment is marked `more`. Returns -1 if the ring has no room for
 * a useful fragment: wait until the reader has read, then call again. Returns -2 if a counter has
 * been overwritten. */
ptrdiff_t vecenv_byte_ring_put(vecenv_byte_ring *ring, const void *data, size_t nbytes);

/* Set *nbytes to the data size of the next fragment, which fits into the ring. Returns
 * VECENV_BYTE_RING_LAST if it ends its message, else VECENV_BYTE_RING_MORE; VECENV_BYTE_RING_NONE if
 * the ring is empty. vecenv_byte_ring_take copies nbytes even if the size is overwritten by then. */
int vecenv_byte_ring_peek(const vecenv_byte_ring *ring, size_t *nbytes);

/* Copy the data of the next fragment, `nbytes` as vecenv_byte_ring_peek has set it, to `out` and free
 * its room in the ring. Returns 1, or 0 if the data is not that of a fragment; then nothing is freed. */
int vecenv_byte_ring_take(vecenv_byte_ring *ring, void *out, size_t nbytes);

/* Reader: drop everything that is in the ring. */
void vecenv_byte_ring_drop(vecenv_byte_ring *ring);

#endif
