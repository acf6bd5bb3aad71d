/* Mail: messages of any size through a byte ring with one writer and one reader.
 *
 * `written` and `read` count bytes since the beginning and only grow; a byte with
 * number k lies at k % ring size. A message is one or more fragments, each an 8 byte
 * head (data bytes << 1 | more) and its data padded to 8; all but the last
 * fragment of a message have `more` set. So a message larger than the ring passes
 * through it in fragments, and there is one order for all messages, big and small.
 *
 * A side that dies stops the other at most until its deadline: nothing is locked. */
#ifndef VECENV_BYTE_RING_H
#define VECENV_BYTE_RING_H

#include "shm/layout.h"

typedef struct {
    uint8_t *bytes;
    size_t nbytes; /* power of two, at least 64 */
    vecenv_word *written, *read;
} vecenv_byte_ring;

enum { VECENV_BYTE_RING_NONE = 0, VECENV_BYTE_RING_MORE = 1, VECENV_BYTE_RING_LAST = 2 };

/* Rings of a slot: up carries worker -> parent, down parent -> worker. */
vecenv_byte_ring vecenv_byte_ring_up(const vecenv_arena *arena, uint32_t slot);
vecenv_byte_ring vecenv_byte_ring_down(const vecenv_arena *arena, uint32_t slot);

/* Write one fragment with as much of data[0..nbytes) as fits. Returns how many bytes were
 * taken (the fragment is marked `more` when that is less than nbytes), or -1 when the ring
 * has no room for a useful fragment: wait until the reader has read, then call again. */
ptrdiff_t vecenv_byte_ring_put(vecenv_byte_ring *ring, const void *data, size_t nbytes);

/* Data size of the next fragment and whether it ends its message; VECENV_BYTE_RING_NONE
 * when the ring is empty. */
int vecenv_byte_ring_peek(const vecenv_byte_ring *ring, size_t *nbytes);

/* Copy the next fragment's data to out (as many bytes as peek said) and free it. */
void vecenv_byte_ring_take(vecenv_byte_ring *ring, void *out);

#endif
