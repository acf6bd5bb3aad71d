/* Buffers: classify the elements of an array, and copy them in C order. It is between the result
 * of an env and the row on the data path. */
#ifndef VECENV_BUFFERS_H
#define VECENV_BUFFERS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

/* Return the kind of a buffer format: 'b' bool, 'i' signed, 'u' unsigned, 'f' float, 'c' complex,
 * 0 for all others. */
char format_kind(const char *format);

/* Copy all elements of a buffer that has shape and strides, ndim >= 1, in C order: the last axis
 * varies fastest. `to` needs room for buffer->len bytes. */
void vecenv_copy_strided(const Py_buffer *buffer, uint8_t *to);

#endif
