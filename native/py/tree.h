/* Trees: write nested observations to rows, and make action objects from rows.
 *
 * A tree mirrors a space. An observation is first checked against the whole tree and only then
 * copied, so a row is claimed only when nothing can fail any more. Each action object that an env
 * gets owns its memory.
 *
 * Python objects are read through the buffer protocol, which needs no NumPy headers. The fields of
 * arrays whose dtype has been checked before are read directly (ndarray.h). */
#ifndef VECENV_TREE_H
#define VECENV_TREE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

#include "py/ndarray.h"

#define VECENV_MAX_DIMS 16

typedef enum { NODE_ARRAY, NODE_SCALAR, NODE_DICT, NODE_TUPLE, NODE_OBJECT } node_kind;

typedef struct node {
    node_kind kind;
    /* leaves */
    size_t leaf;       /* index of the leaf in the spec */
    size_t offset;     /* begin of its column in a block (observations) or the arena (actions) */
    size_t nbytes;     /* size of one row */
    char type_kind;    /* a kind of format_kind, see buffers.h */
    size_t itemsize;
    int ndim;
    Py_ssize_t shape[VECENV_MAX_DIMS];
    PyObject *scratch; /* actions: a private array of one row; shape (1,) for scalars */
    PyObject *copy;    /* its bound .copy */
    Py_buffer memory;  /* the buffer of scratch, kept as long as the node exists */
    uint8_t *gathered; /* observations: a contiguous copy of an array that is not contiguous */
    PyTypeObject *array_type; /* observations: arrays whose fields may be read; NULL: none */
    PyObject *dtype;          /* the dtype of an array of that type that has fitted */
    /* inner nodes */
    Py_ssize_t num_children;
    PyObject *keys; /* tuple, dicts only */
    struct node *children;
} node;

/* Build a tree from ("array", leaf, offset, nbytes, kind, itemsize, shape, scratch | None),
 * ("dict", keys, children), ("tuple", children) or ("object",). NULL with an exception. */
node *node_new(PyObject *description);
void node_free(node *tree);
/* Allow to read the fields of arrays of this type; vecenv_is_ndarray must be true for it. */
void node_read_arrays(node *tree, PyTypeObject *type);
int node_traverse(node *tree, visitproc visit, void *arg);
size_t node_num_leaves(const node *tree);
size_t node_nbytes(const node *tree); /* size of one row of all leaves */
int node_has_objects(const node *tree); /* whether a part of it has no column */

/* A checked leaf, ready to be copied. */
typedef struct {
    const void *source;
    size_t nbytes, offset, index; /* index of the leaf in the spec */
    int64_t inline_value; /* storage for scalars */
    Py_buffer buffer;
    int has_buffer;
    PyObject *array; /* keeps `source` alive instead of a buffer; NULL: none */
} checked_leaf;

enum { TREE_OK = 1, TREE_INEXACT = 0, TREE_ERROR = -1 };

/* Check `value` and append its leaves at checked[*count]. Returns TREE_OK; TREE_INEXACT without an
 * exception if it needs conversion; TREE_ERROR with one. In all cases the appended leaves must be
 * released. Object nodes are skipped: they are sent in a message. */
int tree_check(node *tree, PyObject *value, checked_leaf *checked, size_t *count);
/* Copy checked leaves to a row of the columns at `base`. */
void tree_store(const checked_leaf *checked, size_t count, uint8_t *base, size_t row);
void tree_release(checked_leaf *checked, size_t count);

/* Load an action that is not in a row into the tree: a tuple of bytes, one per leaf. tree_load
 * with base NULL then makes an object from it. 0, or -1 with an exception. */
int tree_fill(const node *tree, PyObject *leaves);

/* Return a new action object for `row` of the columns at `base`; scalars have this VECENV_FORM_*.
 * NULL with an exception. */
PyObject *tree_load(const node *tree, const uint8_t *base, size_t row, int form);

/* Read a reward (a number, or an array of `size` numbers) into `out`. Returns TREE_OK, or
 * TREE_INEXACT without an exception. */
int reward_read(PyObject *value, double *out, size_t size);

#endif
