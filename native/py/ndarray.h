/* NumPy arrays: read their fields without the buffer protocol.
 *
 * For every new array the buffer protocol makes NumPy build a format string, which takes 130 ns,
 * and envs return a new array at each step. The fields below have been first in every array since
 * NumPy 1.0. They are part of its binary interface: see "Python types and C-structures" in its
 * C-API reference. The fields of a type are read directly only after they have been compared with
 * the buffer protocol for two arrays of that type. */
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

#define VECENV_NDARRAY_C 0x0001 /* C-contiguous */

/* Return whether arrays of exactly this type have these fields. -1 with an exception. */
int vecenv_is_ndarray(PyTypeObject *type);

#endif
