/* Between Python objects and rows: nested observations in, fresh actions out.
 *
 * A tree mirrors a space. Observations: a value is first checked against the whole
 * tree and only then copied, so that a row is claimed when nothing can fail any more.
 * Actions: every object handed to an env owns its memory.
 *
 * Python objects are read through the buffer protocol, which needs no NumPy headers, and
 * arrays of a dtype that was met before where they lie (`ndarray.h`). */
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
    size_t offset;     /* of its column: in a block (observations) or the arena (actions) */
    size_t nbytes;     /* of one row */
    char type_kind;    /* b bool, i signed, u unsigned, f float, c complex */
    size_t itemsize;
    int ndim;
    Py_ssize_t shape[VECENV_MAX_DIMS];
    PyObject *scratch; /* actions: private array of one row; shape (1,) for scalars */
    PyObject *copy;    /* its bound .copy */
    Py_buffer memory;   /* of scratch, held as long as the node lives */
    uint8_t *gathered; /* observations: one row of an array that is not contiguous */
    PyTypeObject *array_type; /* observations: whose fields may be read; NULL: none */
    PyObject *dtype;          /* of an array of that type that fitted before */
    /* inner nodes */
    Py_ssize_t num_children;
    PyObject *keys; /* tuple, dicts only */
    struct node *children;
} node;

/* Build from ("array", leaf, offset, nbytes, kind, itemsize, shape, scratch | None),
 * ("dict", keys, children), ("tuple", children) or ("object",). NULL with an exception. */
node *node_new(PyObject *description);
void node_free(node *tree);
void node_read_arrays(node *tree, PyTypeObject *type); /* one that vecenv_is_ndarray */
int node_traverse(node *tree, visitproc visit, void *arg);
size_t node_num_leaves(const node *tree);
size_t node_nbytes(const node *tree); /* of one row of all leaves */
int node_has_objects(const node *tree); /* any part of it that has no column */

/* A checked leaf, ready to be copied. */
typedef struct {
    const void *source;
    size_t nbytes, offset;
    int64_t inline_value; /* storage for scalars */
    Py_buffer buffer;
    int has_buffer;
    PyObject *array; /* instead of a buffer; NULL: none */
} checked_leaf;

enum { TREE_OK = 1, TREE_INEXACT = 0, TREE_ERROR = -1 };

/* Check `value` and append its leaves to checked[*count]. TREE_INEXACT: it needs conversion
 * (nothing is raised); what was appended must still be released. Object nodes are
 * passed over: they travel as mail. */
int tree_check(node *tree, PyObject *value, checked_leaf *checked, size_t *count);
void tree_store(const checked_leaf *checked, size_t count, uint8_t *base, size_t row);
void tree_release(checked_leaf *checked, size_t count);

/* Keep an action that is not in a row: a tuple of bytes, one per leaf. 0, or -1 with an
 * exception. `tree_load` without a base makes an object of it. */
int tree_fill(const node *tree, PyObject *leaves);

/* A new action object for `row`, in the form the command asks for. */
PyObject *tree_load(const node *tree, const uint8_t *base, size_t row, int form);

/* Read a reward (a number, or an array of `size` numbers) into out. */
int reward_read(PyObject *value, double *out, size_t size);

#endif
