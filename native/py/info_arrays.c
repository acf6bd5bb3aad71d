/* Numbers of infos out of the cells of rows into arrays. Stands behind the batch on the data
 * path, beside vector/infos.py, which reads all that is not so regular. */
#include "py/info_arrays.h"

#include <stdint.h>
#include <string.h>

#include "py/ndarray.h"

enum { INFOS, DTYPES, VALUES, MASKS, FIELDS, SIGNATURE, NUM_BUFFER_PARTS };
enum { FLAGS, TAGS, CELLS, ROW_PARTS };

typedef struct {
    uint32_t cell, offset, size;
} field;

/* Whether nobody who had the array has changed it in place: its shape, its dtype, or whether it
 * may be written. */
static int
is_as_made(PyObject *object, PyObject *dtype)
{
    const int wanted = VECENV_NDARRAY_C | VECENV_NDARRAY_WRITEABLE;
    const vecenv_ndarray *array = (const void *)object;
    return Py_TYPE(object)->tp_basicsize >= (Py_ssize_t)sizeof *array && array->ndim == 1
           && (array->flags & wanted) == wanted && array->dtype == dtype;
}

/* Views hold the array that they are of, and so do views of views: NumPy makes every view
 * one of the array that owns the memory. */
static int
is_free(PyObject *info_buffer)
{
    PyObject *key, *array, *infos = PyTuple_GET_ITEM(info_buffer, INFOS);
    Py_ssize_t position = 0, i = 0, num_views = PyDict_GET_SIZE(infos) / 2;
    while (PyDict_Next(infos, &position, &key, &array)) {
        PyObject *dtype = PyTuple_GET_ITEM(PyTuple_GET_ITEM(info_buffer, DTYPES), i++);
        if (Py_REFCNT(array) != 1 || !is_as_made(array, dtype)) {
            return 0;
        }
    }
    return Py_REFCNT(PyTuple_GET_ITEM(info_buffer, VALUES)) == 1 + num_views
           && Py_REFCNT(PyTuple_GET_ITEM(info_buffer, MASKS)) == 1 + num_views;
}

/* Whether all rows have an info, with these tags. */
static int
are_alike(const Py_buffer *rows, const Py_buffer *signature, size_t num_rows, uint32_t flag)
{
    const uint32_t *flags = rows[FLAGS].buf;
    const char *tags = rows[TAGS].buf;
    size_t length = (size_t)signature->len;
    for (size_t row = 0; row < num_rows; row++) {
        if (!(flags[row] & flag) || memcmp(tags + row * length, signature->buf, length) != 0) {
            return 0;
        }
    }
    return 1;
}

static void
fill(const Py_buffer *parts, const Py_buffer *cells, size_t num_rows)
{
    const field *fields = parts[FIELDS].buf;
    size_t num_fields = (size_t)parts[FIELDS].len / sizeof *fields;
    size_t row_nbytes = (size_t)parts[SIGNATURE].len * sizeof(uint64_t);
    for (size_t row = 0; row < num_rows; row++) { /* by rows: each is a line or two of its own */
        const uint8_t *from = (const uint8_t *)cells->buf + row * row_nbytes;
        for (size_t i = 0; i < num_fields; i++) {
            uint8_t *to = (uint8_t *)parts[VALUES].buf + fields[i].offset;
            /* a cell holds its value in its first bytes; eight, most often, are one move */
            if (fields[i].size == sizeof(uint64_t)) {
                memcpy(to + row * sizeof(uint64_t), from + fields[i].cell * sizeof(uint64_t),
                       sizeof(uint64_t));
            } else {
                memcpy(to + row * fields[i].size, from + fields[i].cell * sizeof(uint64_t),
                       fields[i].size);
            }
        }
    }
    memset(parts[MASKS].buf, 1, (size_t)parts[MASKS].len);
}

/* Whether no field goes beyond its row of cells or the info_buffer's values. */
static int
fits(const Py_buffer *parts, const Py_buffer *rows, size_t num_rows)
{
    const field *fields = parts[FIELDS].buf;
    size_t length = (size_t)parts[SIGNATURE].len;
    if ((size_t)parts[FIELDS].len % sizeof *fields != 0
        || (size_t)rows[FLAGS].len != num_rows * sizeof(uint32_t)
        || (size_t)rows[TAGS].len != num_rows * length
        || (size_t)rows[CELLS].len != num_rows * length * sizeof(uint64_t)) {
        return 0;
    }
    for (size_t i = 0; i < (size_t)parts[FIELDS].len / sizeof *fields; i++) {
        if (fields[i].cell >= length || fields[i].size > sizeof(uint64_t)
            || fields[i].offset + num_rows * fields[i].size > (size_t)parts[VALUES].len) {
            return 0;
        }
    }
    return 1;
}

static PyObject *
fill_alike(PyObject *infos, const Py_buffer *parts, const Py_buffer *rows, uint32_t flag)
{
    Py_ssize_t num_masks = PyDict_GET_SIZE(infos) / 2;
    size_t num_rows = num_masks == 0 ? 0 : (size_t)(parts[MASKS].len / num_masks);
    if ((size_t)rows[FLAGS].len != num_rows * sizeof(uint32_t)) {
        return Py_NewRef(Py_None); /* a batch of another size */
    }
    if (!fits(parts, rows, num_rows)) {
        PyErr_SetString(PyExc_ValueError,
                        "fill_info_buffer: rows and info_buffer do not fit together");
        return NULL;
    }
    if (!are_alike(rows, &parts[SIGNATURE], num_rows, flag)) {
        return Py_NewRef(Py_None);
    }
    fill(parts, &rows[CELLS], num_rows);
    return PyDict_Copy(infos);
}

/* Get the buffers of the items first .. stop of a tuple, those before `constant` to be written.
 * Returns where it stopped: at `stop`, or with an exception at an item that has none. */
static int
open_all(PyObject *items, int first, int constant, int stop, Py_buffer *buffers)
{
    for (int i = first; i < stop; i++) {
        int flags = i < constant ? PyBUF_WRITABLE : PyBUF_SIMPLE;
        if (PyObject_GetBuffer(PyTuple_GET_ITEM(items, i), &buffers[i], flags) < 0) {
            return i;
        }
    }
    return stop;
}

static void
close_all(int first, int stop, Py_buffer *buffers)
{
    for (int i = first; i < stop; i++) {
        PyBuffer_Release(&buffers[i]);
    }
}

PyObject *
vecenv_fill_info_buffer(PyObject *Py_UNUSED(module), PyObject *const *arguments, Py_ssize_t count)
{
    if (count != 3 || !PyTuple_Check(arguments[0]) || !PyTuple_Check(arguments[1])
        || PyTuple_GET_SIZE(arguments[0]) != NUM_BUFFER_PARTS
        || PyTuple_GET_SIZE(arguments[1]) != ROW_PARTS
        || !PyDict_Check(PyTuple_GET_ITEM(arguments[0], INFOS))
        || !PyTuple_Check(PyTuple_GET_ITEM(arguments[0], DTYPES))
        || PyTuple_GET_SIZE(PyTuple_GET_ITEM(arguments[0], DTYPES))
               != PyDict_GET_SIZE(PyTuple_GET_ITEM(arguments[0], INFOS))) {
        PyErr_SetString(PyExc_TypeError,
                        "fill_info_buffer: expected an info_buffer, rows and a flag");
        return NULL;
    }
    uint32_t flag = (uint32_t)PyLong_AsUnsignedLongMask(arguments[2]);
    if (PyErr_Occurred()) {
        return NULL;
    }
    if (!is_free(arguments[0])) {
        return Py_NewRef(Py_False);
    }
    Py_buffer parts[NUM_BUFFER_PARTS], rows[ROW_PARTS];
    PyObject *result = NULL;
    int parts_stop = open_all(arguments[0], VALUES, FIELDS, NUM_BUFFER_PARTS, parts);
    int rows_stop = FLAGS;
    if (parts_stop == NUM_BUFFER_PARTS) {
        rows_stop = open_all(arguments[1], FLAGS, FLAGS, ROW_PARTS, rows);
        if (rows_stop == ROW_PARTS) {
            result = fill_alike(PyTuple_GET_ITEM(arguments[0], INFOS), parts, rows, flag);
        }
    }
    close_all(FLAGS, rows_stop, rows);
    close_all(VALUES, parts_stop, parts);
    return result;
}
