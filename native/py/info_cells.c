#include "py/info_cells.h"

#include <stdint.h>
#include <string.h>

enum { FLAGS, TAGS, CELLS, VALUES, MASK, NUM_BUFFERS };

typedef struct {
    uint32_t cell, size;
} field;

typedef struct {
    const uint32_t *flags;
    const uint8_t *tags;
    const uint64_t *cells;
    size_t num_rows, num_cells;
    uint32_t flag;
    const char *signature;
    const field *fields;
    size_t num_fields;
    uint64_t *values;
    uint8_t *mask;
} reader;

/* Read the sizes. -1 with an exception if they do not fit together. */
static int
open_reader(reader *self, const Py_buffer *buffers, Py_ssize_t signature_len, Py_ssize_t fields_len)
{
    self->flags = buffers[FLAGS].buf;
    self->tags = buffers[TAGS].buf;
    self->cells = buffers[CELLS].buf;
    self->values = buffers[VALUES].buf;
    self->mask = buffers[MASK].buf;
    self->num_rows = (size_t)buffers[MASK].len;
    self->num_cells = self->num_rows == 0 ? 0 : (size_t)buffers[TAGS].len / self->num_rows;
    self->num_fields = (size_t)fields_len / sizeof(field);
    size_t num_values = self->num_rows * self->num_fields;
    int fits = (size_t)buffers[FLAGS].len == self->num_rows * sizeof *self->flags
               && (size_t)buffers[TAGS].len == self->num_rows * self->num_cells
               && (size_t)buffers[CELLS].len == (size_t)buffers[TAGS].len * sizeof *self->cells
               && (size_t)buffers[VALUES].len == num_values * sizeof *self->values
               && (self->num_fields == 0 || (size_t)signature_len == self->num_cells);
    for (size_t i = 0; fits && i < self->num_fields; i++) {
        fits = self->fields[i].cell < self->num_cells
               && self->fields[i].size <= sizeof *self->cells;
    }
    if (!fits) {
        PyErr_SetString(PyExc_ValueError, "read_cells: the sizes do not fit together");
        return -1;
    }
    return 0;
}

/* Copy the values of a row, or zeros if it has no info. */
static void
read_row(const reader *self, size_t row)
{
    const uint64_t *cells = self->cells + row * self->num_cells;
    static const uint64_t zero = 0;
    for (size_t i = 0; i < self->num_fields; i++) {
        uint8_t *to = (uint8_t *)(self->values + i * self->num_rows);
        const uint64_t *from = self->mask[row] ? cells + self->fields[i].cell : &zero;
        if (self->fields[i].size == sizeof *from) { /* mostly: the compiler makes it one move */
            memcpy(to + row * sizeof *from, from, sizeof *from);
        } else { /* a cell has its value in its first bytes */
            memcpy(to + row * self->fields[i].size, from, self->fields[i].size);
        }
    }
}

static PyObject *
read_all(const reader *self, Py_ssize_t signature_len)
{
    const uint8_t *first = NULL;
    for (size_t row = 0; row < self->num_rows; row++) {
        self->mask[row] = (self->flags[row] & self->flag) != 0;
        if (self->mask[row]) {
            const uint8_t *tags = self->tags + row * self->num_cells;
            if (first == NULL) {
                first = tags;
                if ((size_t)signature_len != self->num_cells
                    || memcmp(first, self->signature, self->num_cells) != 0) {
                    return PyBytes_FromStringAndSize((const char *)first,
                                                     (Py_ssize_t)self->num_cells);
                }
            } else if (memcmp(tags, self->signature, self->num_cells) != 0) {
                return Py_NewRef(Py_None);
            }
        }
        read_row(self, row);
    }
    return Py_NewRef(first == NULL ? Py_None : Py_True);
}

PyObject *
vecenv_read_cells(PyObject *Py_UNUSED(module), PyObject *const *arguments, Py_ssize_t count)
{
    if (count != 6 || !PyTuple_Check(arguments[0]) || PyTuple_GET_SIZE(arguments[0]) != VALUES
        || !PyBytes_Check(arguments[2]) || !PyBytes_Check(arguments[3])) {
        PyErr_SetString(PyExc_TypeError, "read_cells expects a tuple of columns, flag, signature, "
                                         "fields, values, mask");
        return NULL;
    }
    reader self = {
        .flag = (uint32_t)PyLong_AsUnsignedLongMask(arguments[1]),
        .signature = PyBytes_AS_STRING(arguments[2]),
        .fields = (const field *)(const void *)PyBytes_AS_STRING(arguments[3]),
    };
    if (PyErr_Occurred()) {
        return NULL;
    }
    Py_buffer buffers[NUM_BUFFERS];
    PyObject *result = NULL;
    int num_open = 0;
    for (; num_open < NUM_BUFFERS; num_open++) {
        int is_column = num_open < VALUES;
        PyObject *from = is_column ? PyTuple_GET_ITEM(arguments[0], num_open)
                                   : arguments[4 + num_open - VALUES];
        if (PyObject_GetBuffer(from, &buffers[num_open],
                               is_column ? PyBUF_SIMPLE : PyBUF_WRITABLE) < 0) {
            goto done;
        }
    }
    Py_ssize_t signature_len = PyBytes_GET_SIZE(arguments[2]);
    if (open_reader(&self, buffers, signature_len, PyBytes_GET_SIZE(arguments[3])) == 0) {
        result = read_all(&self, signature_len);
    }
done:
    while (num_open > 0) {
        PyBuffer_Release(&buffers[--num_open]);
    }
    return result;
}

const char vecenv_read_cells_doc[] = PyDoc_STR(
"read_cells(columns, flag, signature, fields, values, mask, /)\n--\n\n"
"Read the numbers of the infos of B rows that have equal tags into one array per key.\n\n"
"columns: flags uint32 (B,), tags uint8 (B, k) and cells uint64 (B, k). Rows with `flag` have an\n"
"info. signature: their tags, k bytes. fields: bytes of uint32 pairs (cell, bytes per value).\n"
"values: uint64 (len(fields), B), written: the values of each field, without gaps from the begin\n"
"of its line on; 0 for rows without an info. mask: bool (B,), written: the rows with an info.\n\n"
"Returns True; or the tags of the first row with an info if they are not `signature`; or None if\n"
"those of the rows differ, or no row has an info. Values are incomplete then. Raises ValueError if\n"
"the sizes do not fit together.");
