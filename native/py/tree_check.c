/* Trees, the second file: check the observations and rewards that envs return. */
#include "py/tree.h"

#include <string.h>

#include "py/buffers.h"

/* ---- observations -------------------------------------------------------------- */

/* Copy an array to the node's own memory, in C order. NULL with an exception. */
static const void *
gather(node *tree, const Py_buffer *buffer)
{
    if (tree->gathered == NULL) {
        tree->gathered = PyMem_Malloc(tree->nbytes + 1);
    }
    if (tree->gathered == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    vecenv_copy_strided(buffer, tree->gathered);
    return tree->gathered;
}

/* Check a C-contiguous array of a type and dtype that has fitted before. */
static int
check_array(const node *tree, PyObject *value, checked_leaf *leaf)
{
    if (tree->dtype == NULL || !Py_IS_TYPE(value, tree->array_type)) {
        return TREE_INEXACT;
    }
    const vecenv_ndarray *array = (const void *)value;
    int fits = array->dtype == tree->dtype && array->ndim == tree->ndim
               && (array->flags & VECENV_NDARRAY_C);
    for (int i = 0; fits && i < tree->ndim; i++) {
        fits = array->shape[i] == tree->shape[i];
    }
    if (!fits) {
        return TREE_INEXACT;
    }
    leaf->source = array->data;
    leaf->array = Py_NewRef(value);
    return TREE_OK;
}

static int
check_buffer(node *tree, PyObject *value, checked_leaf *leaf)
{
    if (!PyObject_CheckBuffer(value)) {
        return TREE_INEXACT;
    }
    if (PyObject_GetBuffer(value, &leaf->buffer, PyBUF_STRIDES | PyBUF_FORMAT) < 0) {
        PyErr_Clear(); /* a dtype without a format; the host converts the value */
        return TREE_INEXACT;
    }
    const Py_buffer *buffer = &leaf->buffer;
    int fits = buffer->ndim == tree->ndim && buffer->itemsize == (Py_ssize_t)tree->itemsize
               && format_kind(buffer->format) == tree->type_kind;
    for (int i = 0; fits && i < tree->ndim; i++) {
        fits = buffer->shape[i] == tree->shape[i];
    }
    if (!fits) {
        PyBuffer_Release(&leaf->buffer);
        return TREE_INEXACT;
    }
    leaf->source = buffer->buf;
    if (!PyBuffer_IsContiguous(buffer, 'C')) { /* a transposed array or a slice, for example */
        leaf->source = gather(tree, buffer);
    }
    if (leaf->source == NULL) {
        PyBuffer_Release(&leaf->buffer);
        return TREE_ERROR;
    }
    leaf->has_buffer = 1;
    if (tree->array_type != NULL && Py_IS_TYPE(value, tree->array_type)) {
        Py_XSETREF(tree->dtype, Py_NewRef(((const vecenv_ndarray *)(const void *)value)->dtype));
    }
    return TREE_OK;
}

/* Check a Python int for an integer leaf of shape (). */
static int
check_integer(const node *tree, PyObject *value, checked_leaf *leaf)
{
    if ((tree->type_kind != 'i' && tree->type_kind != 'u') || !PyLong_Check(value)) {
        return TREE_INEXACT;
    }
    int overflow;
    long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (overflow != 0 || (number == -1 && PyErr_Occurred())) {
        PyErr_Clear();
        return TREE_INEXACT;
    }
    if (tree->itemsize < 8) {
        int bits = (int)tree->itemsize * 8;
        long long low = tree->type_kind == 'i' ? -(1LL << (bits - 1)) : 0;
        long long high = tree->type_kind == 'i' ? (1LL << (bits - 1)) - 1 : (1LL << bits) - 1;
        if (number < low || number > high) {
            return TREE_INEXACT;
        }
    } else if (tree->type_kind == 'u' && number < 0) {
        return TREE_INEXACT;
    }
    leaf->inline_value = number; /* little-endian: the low bytes come first */
    leaf->source = &leaf->inline_value;
    return TREE_OK;
}

int
tree_check(node *tree, PyObject *value, checked_leaf *checked, size_t *count)
{
    switch (tree->kind) {
    case NODE_OBJECT:
        return TREE_OK;
    case NODE_ARRAY:
    case NODE_SCALAR: {
        checked_leaf *leaf = &checked[*count];
        leaf->has_buffer = 0;
        leaf->array = NULL;
        leaf->offset = tree->offset;
        leaf->index = tree->leaf;
        leaf->nbytes = tree->nbytes;
        int status = TREE_INEXACT;
        if (tree->kind == NODE_SCALAR) {
            status = check_integer(tree, value, leaf);
        }
        if (status == TREE_INEXACT) {
            status = check_array(tree, value, leaf);
        }
        if (status == TREE_INEXACT) {
            status = check_buffer(tree, value, leaf);
        }
        *count += status == TREE_OK;
        return status;
    }
    case NODE_DICT:
        if (!PyDict_Check(value) || PyDict_GET_SIZE(value) != tree->num_children) {
            return TREE_INEXACT;
        }
        for (Py_ssize_t i = 0; i < tree->num_children; i++) {
            PyObject *item = PyDict_GetItemWithError(value, PyTuple_GET_ITEM(tree->keys, i));
            if (item == NULL) {
                return PyErr_Occurred() ? TREE_ERROR : TREE_INEXACT;
            }
            int status = tree_check(&tree->children[i], item, checked, count);
            if (status != TREE_OK) {
                return status;
            }
        }
        return TREE_OK;
    case NODE_TUPLE:
        if (!PyTuple_Check(value) || PyTuple_GET_SIZE(value) != tree->num_children) {
            return TREE_INEXACT;
        }
        for (Py_ssize_t i = 0; i < tree->num_children; i++) {
            int status = tree_check(&tree->children[i], PyTuple_GET_ITEM(value, i), checked, count);
            if (status != TREE_OK) {
                return status;
            }
        }
        return TREE_OK;
    }
    return TREE_INEXACT;
}

void
tree_store(const checked_leaf *checked, size_t count, uint8_t *base, size_t row)
{
    for (size_t i = 0; i < count; i++) {
        memcpy(base + checked[i].offset + row * checked[i].nbytes, checked[i].source,
               checked[i].nbytes);
    }
}

void
tree_release(checked_leaf *checked, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (checked[i].has_buffer) {
            PyBuffer_Release(&checked[i].buffer);
            checked[i].has_buffer = 0;
        }
        Py_CLEAR(checked[i].array);
    }
}

/* ---- rewards ---------------------------------------------------------------------- */

static int
reward_from_buffer(PyObject *value, double *out, size_t size)
{
    Py_buffer buffer;
    if (!PyObject_CheckBuffer(value)) {
        return TREE_INEXACT;
    }
    if (PyObject_GetBuffer(value, &buffer, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) < 0) {
        PyErr_Clear();
        return TREE_INEXACT;
    }
    int status = TREE_INEXACT;
    if (format_kind(buffer.format) == 'f' && buffer.itemsize > 0
        && (size_t)(buffer.len / buffer.itemsize) == size) {
        if (buffer.itemsize == sizeof(double)) {
            memcpy(out, buffer.buf, size * sizeof(double));
            status = TREE_OK;
        } else if (buffer.itemsize == sizeof(float)) {
            for (size_t i = 0; i < size; i++) {
                out[i] = (double)((const float *)buffer.buf)[i];
            }
            status = TREE_OK;
        }
    }
    PyBuffer_Release(&buffer);
    return status;
}

int
reward_read(PyObject *value, double *out, size_t size)
{
    if (size == 1) {
        if (PyFloat_Check(value)) {
            *out = PyFloat_AS_DOUBLE(value);
            return TREE_OK;
        }
        if (PyLong_Check(value)) {
            *out = PyLong_AsDouble(value);
            if (*out == -1.0 && PyErr_Occurred()) {
                PyErr_Clear();
                return TREE_INEXACT;
            }
            return TREE_OK;
        }
    }
    return reward_from_buffer(value, out, size);
}
