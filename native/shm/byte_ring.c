#include "shm/byte_ring.h"

#include <string.h>

#define HEAD_NBYTES 8u
/* A shorter piece than this is not worth a record while the reader is still busy. */
#define LEAST_PIECE 16u

vecenv_mail
vecenv_mail_up(const vecenv_arena *arena, uint32_t slot)
{
    vecenv_slot_lines *lines = &arena->slots[slot];
    return (vecenv_mail){arena->mail_up + (size_t)slot * arena->mail_nbytes,
                         arena->mail_nbytes, &lines->up_written, &lines->up_read};
}

vecenv_mail
vecenv_mail_down(const vecenv_arena *arena, uint32_t slot)
{
    vecenv_slot_lines *lines = &arena->slots[slot];
    return (vecenv_mail){arena->mail_down + (size_t)slot * arena->mail_nbytes,
                         arena->mail_nbytes, &lines->down_written, &lines->down_read};
}

static void
copy_in(vecenv_mail *mail, uint64_t at, const void *data, size_t nbytes)
{
    size_t start = (size_t)at & (mail->nbytes - 1);
    size_t first = mail->nbytes - start < nbytes ? mail->nbytes - start : nbytes;
    memcpy(mail->bytes + start, data, first);
    memcpy(mail->bytes, (const uint8_t *)data + first, nbytes - first);
}

static void
copy_out(const vecenv_mail *mail, uint64_t at, void *out, size_t nbytes)
{
    size_t start = (size_t)at & (mail->nbytes - 1);
    size_t first = mail->nbytes - start < nbytes ? mail->nbytes - start : nbytes;
    memcpy(out, mail->bytes + start, first);
    memcpy((uint8_t *)out + first, mail->bytes, nbytes - first);
}

static size_t
padded(size_t nbytes)
{
    return (nbytes + 7u) & ~(size_t)7u;
}

ptrdiff_t
vecenv_mail_put(vecenv_mail *mail, const void *data, size_t nbytes)
{
    uint64_t written = load_acquire(mail->written); /* own word */
    uint64_t used = written - load_acquire(mail->read);
    size_t room = mail->nbytes - (size_t)used;
    if (room < HEAD_NBYTES + padded(nbytes) && room < HEAD_NBYTES + LEAST_PIECE) {
        return -1;
    }
    size_t fits = room - HEAD_NBYTES;
    size_t piece = nbytes <= fits ? nbytes : fits & ~(size_t)7u;
    uint64_t head = (uint64_t)piece << 1 | (piece < nbytes);
    copy_in(mail, written, &head, HEAD_NBYTES);
    copy_in(mail, written + HEAD_NBYTES, data, piece);
    store_release(mail->written, written + HEAD_NBYTES + padded(piece));
    return (ptrdiff_t)piece;
}

int
vecenv_mail_peek(const vecenv_mail *mail, size_t *nbytes)
{
    uint64_t read = load_acquire(mail->read); /* own word */
    if (load_acquire(mail->written) == read) {
        return VECENV_MAIL_NONE;
    }
    uint64_t head;
    copy_out(mail, read, &head, HEAD_NBYTES);
    *nbytes = (size_t)(head >> 1);
    return head & 1 ? VECENV_MAIL_MORE : VECENV_MAIL_LAST;
}

void
vecenv_mail_take(vecenv_mail *mail, void *out)
{
    uint64_t read = load_acquire(mail->read);
    uint64_t head;
    copy_out(mail, read, &head, HEAD_NBYTES);
    size_t nbytes = (size_t)(head >> 1);
    copy_out(mail, read + HEAD_NBYTES, out, nbytes);
    store_release(mail->read, read + HEAD_NBYTES + padded(nbytes));
}
