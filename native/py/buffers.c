#include "py/buffers.h"

#include <string.h>

char
format_kind(const char *format)
{
    if (format == NULL) {
        return 'u'; /* bytes, the default of the buffer protocol */
    }
    if (*format == '@' || *format == '=' || *format == '<') {
        format++;
    }
    if (format[0] == 'Z' && format[1] != 0 && format[2] == 0) {
        return 'c';
    }
    if (format[0] == 0 || format[1] != 0) {
        return 0;
    }
    switch (*format) {
    case '?': return 'b';
    case 'b': case 'h': case 'i': case 'l': case 'q': return 'i';
    case 'B': case 'H': case 'I': case 'L': case 'Q': return 'u';
    case 'e': case 'f': case 'd': case 'g': return 'f';
    default: return 0;
    }
}

/* The last two axes of an array; an array with one axis has one row. */
typedef struct {
    Py_ssize_t num_rows, row_stride, num_columns, column_stride;
} plane;

/* If `size` is a constant, memcpy compiles to one move, for any alignment. */
static inline void
copy_plane(const plane *of, size_t size, const uint8_t *from, uint8_t *to)
{
    for (Py_ssize_t row = 0; row < of->num_rows; row++) {
        const uint8_t *element = from + row * of->row_stride;
        for (Py_ssize_t column = 0; column < of->num_columns; column++) {
            memcpy(to, element, size);
            element += of->column_stride;
            to += size;
        }
    }
}

static void
copy_any_plane(const plane *of, size_t size, const uint8_t *from, uint8_t *to)
{
    switch (size) {
    case 1: copy_plane(of, 1, from, to); break;
    case 2: copy_plane(of, 2, from, to); break;
    case 4: copy_plane(of, 4, from, to); break;
    case 8: copy_plane(of, 8, from, to); break;
    default: copy_plane(of, size, from, to);
    }
}

static uint8_t *
copy_axis(const Py_buffer *buffer, int axis, const uint8_t *from, uint8_t *to)
{
    int num_axes = buffer->ndim - axis;
    if (num_axes > 2) {
        for (Py_ssize_t i = 0; i < buffer->shape[axis]; i++) {
            to = copy_axis(buffer, axis + 1, from + i * buffer->strides[axis], to);
        }
        return to;
    }
    int last = buffer->ndim - 1;
    plane of = {
        .num_rows = num_axes == 2 ? buffer->shape[axis] : 1,
        .row_stride = num_axes == 2 ? buffer->strides[axis] : 0,
        .num_columns = buffer->shape[last],
        .column_stride = buffer->strides[last],
    };
    size_t size = (size_t)buffer->itemsize;
    copy_any_plane(&of, size, from, to);
    return to + (size_t)of.num_rows * (size_t)of.num_columns * size;
}

void
vecenv_copy_strided(const Py_buffer *buffer, uint8_t *to)
{
    copy_axis(buffer, 0, buffer->buf, to);
}
