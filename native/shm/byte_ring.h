/* Mail: messages of any size through a byte ring with one writer and one reader.
 *
 * `written` and `read` count bytes since the beginning and only grow; a byte with
 * number k lies at k % ring size. A message is one or more records, each an 8 byte
 * head (payload bytes << 1 | more) and its payload padded to 8; all but the last
 * record of a message have `more` set. So a message larger than the ring passes
 * through it in pieces, and there is one order for all messages, big and small.
 *
 * A side that dies stops the other at most until its deadline: nothing is locked. */
#ifndef VECENV_MAIL_H
#define VECENV_MAIL_H

#include "shm/layout.h"

typedef struct {
    uint8_t *bytes;
    size_t nbytes; /* power of two, at least 64 */
    vecenv_word *written, *read;
} vecenv_mail;

enum { VECENV_MAIL_NONE = 0, VECENV_MAIL_MORE = 1, VECENV_MAIL_LAST = 2 };

/* Rings of a slot: up carries worker -> parent, down parent -> worker. */
vecenv_mail vecenv_mail_up(const vecenv_arena *arena, uint32_t slot);
vecenv_mail vecenv_mail_down(const vecenv_arena *arena, uint32_t slot);

/* Write one record with as much of data[0..nbytes) as fits. Returns how many bytes were
 * taken (the record is marked `more` when that is less than nbytes), or -1 when the ring
 * has no room for a useful piece: wait until the reader has read, then call again. */
ptrdiff_t vecenv_mail_put(vecenv_mail *mail, const void *data, size_t nbytes);

/* Payload size of the next record and whether it ends its message; VECENV_MAIL_NONE
 * when the ring is empty. */
int vecenv_mail_peek(const vecenv_mail *mail, size_t *nbytes);

/* Copy the next record's payload to out (as many bytes as peek said) and free it. */
void vecenv_mail_take(vecenv_mail *mail, void *out);

#endif
