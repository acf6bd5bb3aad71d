/* Arrays of NumPy, read where they lie.
 *
 * The buffer protocol makes NumPy write a format string for every array that it has not seen,
 * and envs return a new one at each step: 130 ns. The fields below stand at the front of every
 * array since NumPy 1.0 and are part of its binary interface ("Python types and C-structures"
 * in its C-API reference); a type is read this way only after the buffer protocol has said the
 * same of arrays of it, and otherwise not at all. */
#ifndef VECENV_NDARRAY_H
#define VECENV_NDARRAY_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

typedef struct {
    PyObject_HEAD
    uint8_t *data;
    int ndim;
    Py_ssize_t *shape;
    Py_ssize_t *strides;
    PyObject *base;
    PyObject *dtype;
    int flags; /* VECENV_NDARRAY_* */
} vecenv_ndarray;

#define VECENV_NDARRAY_C 0x0001 /* the elements lie together, the last axis quickest */

/* Whether arrays of exactly this type have these fields. -1 with an exception. */
int vecenv_is_ndarray(PyTypeObject *type);

#endif
