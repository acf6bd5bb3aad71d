/* What envs return, observations and rewards, checked and ready to be copied into a row. */
#include "py/tree.h"

#include <string.h>

#include "py/buffers.h"

/* ---- observations -------------------------------------------------------------- */

/* Bring an array's elements together in the node's own memory. NULL with an exception. */
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

/* An array of the type and dtype that fitted before, whose elements lie together. */
static int
hold_array(const node *tree, PyObject *value, held_leaf *leaf)
{
    if (tree->dtype == NULL || !Py_IS_TYPE(value, tree->array_type)) {
        return TREE_ODD;
    }
    const vecenv_ndarray *array = (const void *)value;
    int fits = array->dtype == tree->dtype && array->ndim == tree->ndim
               && (array->flags & VECENV_NDARRAY_C);
    for (int i = 0; fits && i < tree->ndim; i++) {
        fits = array->shape[i] == tree->shape[i];
    }
    if (!fits) {
        return TREE_ODD;
    }
    leaf->source = array->data;
    leaf->array = Py_NewRef(value);
    return TREE_OK;
}

static int
hold_buffer(node *tree, PyObject *value, held_leaf *leaf)
{
    if (!PyObject_CheckBuffer(value)) {
        return TREE_ODD;
    }
    if (PyObject_GetBuffer(value, &leaf->buffer, PyBUF_STRIDES | PyBUF_FORMAT) < 0) {
        PyErr_Clear(); /* a dtype without a format: converted later */
        return TREE_ODD;
    }
    const Py_buffer *buffer = &leaf->buffer;
    int fits = buffer->ndim == tree->ndim && buffer->itemsize == (Py_ssize_t)tree->itemsize
               && format_kind(buffer->format) == tree->type_kind;
    for (int i = 0; fits && i < tree->ndim; i++) {
        fits = buffer->shape[i] == tree->shape[i];
    }
    if (!fits) {
        PyBuffer_Release(&leaf->buffer);
        return TREE_ODD;
    }
    leaf->source = buffer->buf;
    if (!PyBuffer_IsContiguous(buffer, 'C')) { /* transposed, or a part of an array */
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

/* A Python int or numpy integer for an integer leaf of shape (). */
static int
hold_integer(const node *tree, PyObject *value, held_leaf *leaf)
{
    if ((tree->type_kind != 'i' && tree->type_kind != 'u') || !PyLong_Check(value)) {
        return TREE_ODD;
    }
    int overflow;
    long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (overflow != 0 || (number == -1 && PyErr_Occurred())) {
        PyErr_Clear();
        return TREE_ODD;
    }
    if (tree->itemsize < 8) {
        int bits = (int)tree->itemsize * 8;
        long long low = tree->type_kind == 'i' ? -(1LL << (bits - 1)) : 0;
        long long high = tree->type_kind == 'i' ? (1LL << (bits - 1)) - 1 : (1LL << bits) - 1;
        if (number < low || number > high) {
            return TREE_ODD;
        }
    } else if (tree->type_kind == 'u' && number < 0) {
        return TREE_ODD;
    }
    leaf->inline_value = number; /* little-endian: the low bytes come first */
    leaf->source = &leaf->inline_value;
    return TREE_OK;
}

int
tree_hold(node *tree, PyObject *value, held_leaf *held, size_t *count)
{
    switch (tree->kind) {
    case NODE_OBJECT:
        return TREE_OK;
    case NODE_ARRAY:
    case NODE_SCALAR: {
        held_leaf *leaf = &held[*count];
        leaf->has_buffer = 0;
        leaf->array = NULL;
        leaf->offset = tree->offset;
        leaf->nbytes = tree->nbytes;
        int status = TREE_ODD;
        if (tree->kind == NODE_SCALAR) {
            status = hold_integer(tree, value, leaf);
        }
        if (status == TREE_ODD) {
            status = hold_array(tree, value, leaf);
        }
        if (status == TREE_ODD) {
            status = hold_buffer(tree, value, leaf);
        }
        *count += status == TREE_OK;
        return status;
    }
    case NODE_DICT:
        if (!PyDict_Check(value) || PyDict_GET_SIZE(value) != tree->num_children) {
            return TREE_ODD;
        }
        for (Py_ssize_t i = 0; i < tree->num_children; i++) {
            PyObject *item = PyDict_GetItemWithError(value, PyTuple_GET_ITEM(tree->keys, i));
            if (item == NULL) {
                return PyErr_Occurred() ? TREE_ERROR : TREE_ODD;
            }
            int status = tree_hold(&tree->children[i], item, held, count);
            if (status != TREE_OK) {
                return status;
            }
        }
        return TREE_OK;
    case NODE_TUPLE:
        if (!PyTuple_Check(value) || PyTuple_GET_SIZE(value) != tree->num_children) {
            return TREE_ODD;
        }
        for (Py_ssize_t i = 0; i < tree->num_children; i++) {
            int status = tree_hold(&tree->children[i], PyTuple_GET_ITEM(value, i), held, count);
            if (status != TREE_OK) {
                return status;
            }
        }
        return TREE_OK;
    }
    return TREE_ODD;
}

void
tree_store(const held_leaf *held, size_t count, uint8_t *base, size_t row)
{
    for (size_t i = 0; i < count; i++) {
        memcpy(base + held[i].offset + row * held[i].nbytes, held[i].source, held[i].nbytes);
    }
}

void
tree_release(held_leaf *held, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (held[i].has_buffer) {
            PyBuffer_Release(&held[i].buffer);
            held[i].has_buffer = 0;
        }
        Py_CLEAR(held[i].array);
    }
}

/* ---- rewards ---------------------------------------------------------------------- */

static int
reward_from_buffer(PyObject *value, double *out, size_t size)
{
    Py_buffer buffer;
    if (!PyObject_CheckBuffer(value)) {
        return TREE_ODD;
    }
    if (PyObject_GetBuffer(value, &buffer, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) < 0) {
        PyErr_Clear();
        return TREE_ODD;
    }
    int status = TREE_ODD;
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
                return TREE_ODD;
            }
            return TREE_OK;
        }
    }
    return reward_from_buffer(value, out, size);
}
