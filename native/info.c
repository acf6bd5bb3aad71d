#include "info.h"

#include <string.h>

#include "tree.h"

static int
refresh(const vecenv_arena *arena, info_names *names)
{
    uint32_t count = load_acquire32(&arena->control->num_info_keys);
    while (names->count < count) {
        PyObject *name = PyUnicode_InternFromString(
            arena->info_keys + (size_t)names->count * VECENV_INFO_KEY_NBYTES);
        if (name == NULL) {
            return -1;
        }
        names->names[names->count++] = name;
    }
    return 0;
}

/* Index of `key`, looking first where the previous info had it; -1 unknown. */
static int
find(const info_names *names, PyObject *key, uint32_t hint)
{
    if (hint < names->count && names->names[hint] == key) {
        return (int)hint;
    }
    for (uint32_t i = 0; i < names->count; i++) {
        if (names->names[i] == key) {
            return (int)i;
        }
    }
    if (PyUnicode_Check(key)) { /* equal but not interned */
        for (uint32_t i = 0; i < names->count; i++) {
            if (PyUnicode_Compare(names->names[i], key) == 0) {
                return (int)i;
            }
        }
    }
    return -1;
}

static uint8_t
tag_of(int kind, size_t nbytes)
{
    return (uint8_t)(kind << 4 | (int)nbytes);
}

static int
read_numpy_scalar(PyObject *value, uint8_t *tag, uint64_t *cell)
{
    Py_buffer buffer;
    if (PyObject_GetBuffer(value, &buffer, PyBUF_FORMAT | PyBUF_ND) < 0) {
        PyErr_Clear();
        return 0;
    }
    int kind = INFO_ABSENT;
    switch (format_kind(buffer.format)) {
    case 'f': kind = INFO_FLOAT; break;
    case 'i': kind = INFO_INT; break;
    case 'u': kind = INFO_UINT; break;
    case 'b': kind = INFO_BOOL; break;
    default: break;
    }
    int fits = kind != INFO_ABSENT && buffer.ndim == 0 && buffer.len <= 8;
    if (fits) {
        *cell = 0;
        memcpy(cell, buffer.buf, (size_t)buffer.len);
        *tag = tag_of(kind, (size_t)buffer.len);
    }
    PyBuffer_Release(&buffer);
    return fits;
}

static int
read_value(PyObject *value, PyTypeObject *numpy_scalar, uint8_t *tag, uint64_t *cell)
{
    if (PyFloat_CheckExact(value)) {
        double number = PyFloat_AS_DOUBLE(value);
        memcpy(cell, &number, sizeof number);
        *tag = tag_of(INFO_PY_FLOAT, 8);
        return 1;
    }
    if (PyBool_Check(value)) {
        *cell = value == Py_True;
        *tag = tag_of(INFO_PY_BOOL, 1);
        return 1;
    }
    if (PyLong_CheckExact(value)) {
        int overflow;
        long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
        *cell = (uint64_t)number;
        *tag = tag_of(INFO_PY_INT, 8);
        return overflow == 0;
    }
    return PyObject_TypeCheck(value, numpy_scalar) && read_numpy_scalar(value, tag, cell);
}

int
info_read(const vecenv_arena *arena, info_names *names, PyObject *info,
          PyTypeObject *numpy_scalar, info_cells *cells)
{
    if (refresh(arena, names) < 0) {
        return -1;
    }
    if (names->count == 0) {
        return 0;
    }
    memset(cells->tags, 0, sizeof cells->tags);
    PyObject *key, *value;
    Py_ssize_t position = 0;
    uint32_t hint = 0;
    while (PyDict_Next(info, &position, &key, &value)) {
        int index = find(names, key, hint);
        if (index < 0
            || !read_value(value, numpy_scalar, &cells->tags[index],
                           &cells->values[index])) {
            return 0;
        }
        hint = (uint32_t)index + 1;
    }
    return 1;
}

void
info_store(const vecenv_arena *arena, const info_cells *cells, uint32_t block, uint32_t row)
{
    memcpy(column(arena, block, VECENV_H_INFO_TAGS) + (size_t)row * VECENV_INFO_KEYS,
           cells->tags, VECENV_INFO_KEYS);
    uint64_t *values = (uint64_t *)(void *)column(arena, block, VECENV_H_INFO_VALUES)
                       + (size_t)row * VECENV_INFO_KEYS;
    for (int i = 0; i < VECENV_INFO_KEYS; i++) {
        if (cells->tags[i] != 0) {
            values[i] = cells->values[i];
        }
    }
}
