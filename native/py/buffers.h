/* Buffers: what the memory of an array holds, and its elements brought together in C's order.
 * Stands between what an env returned and the row on the data path. */
#ifndef VECENV_BUFFERS_H
#define VECENV_BUFFERS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

/* Classify a buffer format: b bool, i signed, u unsigned, f float, c complex, 0 when it is
 * none of them. */
char format_kind(const char *format);

/* Copy all elements of a buffer with shape and strides, ndim >= 1, the last axis fastest;
 * `to` has room for buffer->len bytes. */
void vecenv_copy_strided(const Py_buffer *buffer, uint8_t *to);

#endif
