#include "py/tree.h"

#include <string.h>

#include "shm/layout.h"

/* ---- building ---------------------------------------------------------------- */

static void
node_clear(node *tree)
{
    if (tree->memory.obj != NULL) {
        PyBuffer_Release(&tree->memory);
    }
    Py_CLEAR(tree->dtype);
    Py_CLEAR(tree->copy);
    Py_CLEAR(tree->scratch);
    Py_CLEAR(tree->keys);
    PyMem_Free(tree->gathered);
    tree->gathered = NULL;
    for (Py_ssize_t i = 0; i < tree->num_children; i++) {
        node_clear(&tree->children[i]);
    }
    PyMem_Free(tree->children);
    tree->children = NULL;
    tree->num_children = 0;
}

static int node_fill(node *tree, PyObject *description);

static int
fill_children(node *tree, PyObject *children)
{
    if (!PyTuple_Check(children)) {
        PyErr_SetString(PyExc_TypeError, "children of a tree node must be a tuple");
        return -1;
    }
    Py_ssize_t count = PyTuple_GET_SIZE(children);
    tree->children = PyMem_Calloc((size_t)(count ? count : 1), sizeof(node));
    if (tree->children == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    tree->num_children = count;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (node_fill(&tree->children[i], PyTuple_GET_ITEM(children, i)) < 0) {
            return -1;
        }
    }
    return 0;
}

static int
fill_scratch(node *tree, PyObject *scratch)
{
    if (PyObject_GetBuffer(scratch, &tree->memory, PyBUF_WRITABLE | PyBUF_ND) < 0) {
        return -1;
    }
    if (tree->memory.len != (Py_ssize_t)tree->nbytes) {
        PyErr_SetString(PyExc_ValueError, "scratch does not fit its leaf");
        return -1;
    }
    /* A leaf of shape () is kept in an array of one element. Its item 0 is the NumPy scalar that
     * iteration over a batch of actions yields. */
    tree->scratch = Py_NewRef(scratch);
    tree->copy = PyObject_GetAttrString(scratch, "copy");
    return tree->copy == NULL ? -1 : 0;
}

static int
fill_array(node *tree, PyObject *description)
{
    Py_ssize_t leaf, offset, nbytes, itemsize;
    const char *kind;
    PyObject *shape, *scratch;
    if (!PyArg_ParseTuple(description, "Onnnsn" "O!O:leaf", &shape, &leaf, &offset, &nbytes,
                          &kind, &itemsize, &PyTuple_Type, &shape, &scratch)) {
        return -1;
    }
    tree->ndim = (int)PyTuple_GET_SIZE(shape);
    if (tree->ndim > VECENV_MAX_DIMS || offset < 0 || nbytes < 0 || itemsize <= 0) {
        PyErr_SetString(PyExc_ValueError, "leaf out of range");
        return -1;
    }
    tree->leaf = (size_t)leaf;
    tree->offset = (size_t)offset;
    tree->nbytes = (size_t)nbytes;
    tree->itemsize = (size_t)itemsize;
    tree->type_kind = kind[0];
    for (int i = 0; i < tree->ndim; i++) {
        tree->shape[i] = PyLong_AsSsize_t(PyTuple_GET_ITEM(shape, i));
        if (tree->shape[i] < 0) {
            return -1;
        }
    }
    tree->kind = tree->ndim == 0 ? NODE_SCALAR : NODE_ARRAY;
    return scratch == Py_None ? 0 : fill_scratch(tree, scratch);
}

static int
node_fill(node *tree, PyObject *description)
{
    memset(tree, 0, sizeof *tree);
    if (!PyTuple_Check(description) || PyTuple_GET_SIZE(description) < 1) {
        PyErr_SetString(PyExc_TypeError, "a tree node must be a tuple");
        return -1;
    }
    const char *kind = PyUnicode_AsUTF8(PyTuple_GET_ITEM(description, 0));
    if (kind == NULL) {
        return -1;
    }
    if (strcmp(kind, "array") == 0) {
        return fill_array(tree, description);
    }
    if (strcmp(kind, "object") == 0) {
        tree->kind = NODE_OBJECT;
        return 0;
    }
    PyObject *name, *keys, *children;
    if (strcmp(kind, "dict") == 0) {
        tree->kind = NODE_DICT;
        if (!PyArg_ParseTuple(description, "OO!O:dict", &name, &PyTuple_Type, &keys,
                              &children)) {
            return -1;
        }
        tree->keys = Py_NewRef(keys);
        if (PyTuple_Check(children)
            && PyTuple_GET_SIZE(children) != PyTuple_GET_SIZE(keys)) {
            PyErr_SetString(PyExc_ValueError, "keys and children differ in number");
            return -1;
        }
        return fill_children(tree, children);
    }
    if (strcmp(kind, "tuple") == 0) {
        tree->kind = NODE_TUPLE;
        if (!PyArg_ParseTuple(description, "OO:tuple", &name, &children)) {
            return -1;
        }
        return fill_children(tree, children);
    }
    PyErr_Format(PyExc_ValueError, "unknown tree node %s", kind);
    return -1;
}

node *
node_new(PyObject *description)
{
    node *tree = PyMem_Malloc(sizeof(node));
    if (tree == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    if (node_fill(tree, description) < 0) {
        node_free(tree);
        return NULL;
    }
    return tree;
}

void
node_free(node *tree)
{
    if (tree != NULL) {
        node_clear(tree);
        PyMem_Free(tree);
    }
}

int
node_traverse(node *tree, visitproc visit, void *arg)
{
    if (tree == NULL) {
        return 0;
    }
    Py_VISIT(tree->scratch);
    Py_VISIT(tree->copy);
    Py_VISIT(tree->keys);
    for (Py_ssize_t i = 0; i < tree->num_children; i++) {
        int result = node_traverse(&tree->children[i], visit, arg);
        if (result != 0) {
            return result;
        }
    }
    return 0;
}

int
node_has_objects(const node *tree)
{
    if (tree->kind == NODE_OBJECT) {
        return 1;
    }
    for (Py_ssize_t i = 0; i < tree->num_children; i++) {
        if (node_has_objects(&tree->children[i])) {
            return 1;
        }
    }
    return 0;
}

size_t
node_num_leaves(const node *tree)
{
    if (tree->kind == NODE_ARRAY || tree->kind == NODE_SCALAR) {
        return 1;
    }
    size_t count = 0;
    for (Py_ssize_t i = 0; i < tree->num_children; i++) {
        count += node_num_leaves(&tree->children[i]);
    }
    return count;
}

size_t
node_nbytes(const node *tree)
{
    size_t nbytes = tree->nbytes;
    for (Py_ssize_t i = 0; i < tree->num_children; i++) {
        nbytes += node_nbytes(&tree->children[i]);
    }
    return nbytes;
}

void
node_read_arrays(node *tree, PyTypeObject *type)
{
    tree->array_type = type;
    for (Py_ssize_t i = 0; i < tree->num_children; i++) {
        node_read_arrays(&tree->children[i], type);
    }
}

/* ---- actions --------------------------------------------------------------------- */

static PyObject *
load_scalar(const node *tree, int form)
{
    switch (form) {
    case VECENV_FORM_INT:
        if (tree->type_kind == 'i' || tree->type_kind == 'u') {
            PyObject *element = PySequence_GetItem(tree->scratch, 0);
            if (element == NULL) {
                return NULL;
            }
            PyObject *number = PyNumber_Index(element);
            Py_DECREF(element);
            return number;
        }
        break;
    case VECENV_FORM_VECTOR:
        return PyObject_CallNoArgs(tree->copy);
    case VECENV_FORM_ARRAY0: {
        PyObject *array = PyObject_CallNoArgs(tree->copy);
        if (array == NULL) {
            return NULL;
        }
        PyObject *flat = PyObject_CallMethod(array, "reshape", "(())");
        Py_DECREF(array);
        return flat;
    }
    default:
        break;
    }
    return PySequence_GetItem(tree->scratch, 0);
}

int
tree_fill(const node *tree, PyObject *leaves)
{
    if (tree->kind == NODE_ARRAY || tree->kind == NODE_SCALAR) {
        PyObject *data = PyTuple_GetItem(leaves, (Py_ssize_t)tree->leaf);
        if (data == NULL) {
            return -1;
        }
        if (!PyBytes_Check(data) || (size_t)PyBytes_GET_SIZE(data) != tree->nbytes) {
            PyErr_Format(PyExc_ValueError, "action leaf %zu: expected %zu bytes", tree->leaf,
                         tree->nbytes);
            return -1;
        }
        memcpy(tree->memory.buf, PyBytes_AS_STRING(data), tree->nbytes);
    }
    for (Py_ssize_t i = 0; i < tree->num_children; i++) {
        if (tree_fill(&tree->children[i], leaves) < 0) {
            return -1;
        }
    }
    return 0;
}

PyObject *
tree_load(const node *tree, const uint8_t *base, size_t row, int form)
{
    switch (tree->kind) {
    case NODE_ARRAY:
    case NODE_SCALAR:
        if (base != NULL) {
            memcpy(tree->memory.buf, base + tree->offset + row * tree->nbytes, tree->nbytes);
        }
        return tree->kind == NODE_ARRAY ? PyObject_CallNoArgs(tree->copy)
                                        : load_scalar(tree, form);
    case NODE_DICT: {
        PyObject *dict = PyDict_New();
        for (Py_ssize_t i = 0; dict != NULL && i < tree->num_children; i++) {
            PyObject *item = tree_load(&tree->children[i], base, row, form);
            if (item == NULL
                || PyDict_SetItem(dict, PyTuple_GET_ITEM(tree->keys, i), item) < 0) {
                Py_CLEAR(dict);
            }
            Py_XDECREF(item);
        }
        return dict;
    }
    case NODE_TUPLE: {
        PyObject *tuple = PyTuple_New(tree->num_children);
        for (Py_ssize_t i = 0; tuple != NULL && i < tree->num_children; i++) {
            PyObject *item = tree_load(&tree->children[i], base, row, form);
            if (item == NULL) {
                Py_CLEAR(tuple);
            } else {
                PyTuple_SET_ITEM(tuple, i, item);
            }
        }
        return tuple;
    }
    case NODE_OBJECT:
        break;
    }
    PyErr_SetString(PyExc_RuntimeError, "an action with object leaves travels as a payload");
    return NULL;
}
