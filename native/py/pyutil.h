/* Helpers for all files that use Python objects: add types and constants to the module, open an
 * arena, read indices. */
#ifndef VECENV_PYUTIL_H
#define VECENV_PYUTIL_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "shm/layout.h"

typedef struct {
    const char *name;
    long long value;
} vecenv_constant;

/* Add a type or constants to the module. 0, or -1 with an exception. */
int vecenv_add_type(PyObject *module, PyType_Spec *spec);
int vecenv_add_constants(PyObject *module, const vecenv_constant *constants, size_t count);

/* Read an index 0 .. count - 1; `what` is its name in errors. -1 with TypeError if it is not an
 * integer, with ValueError if it is out of range. */
static inline int
parse_index(PyObject *arg, const char *what, uint32_t count, uint32_t *index)
{
    Py_ssize_t value = PyNumber_AsSsize_t(arg, NULL); /* clips integers that are too large */
    if (value == -1 && PyErr_Occurred()) {
        return -1;
    }
    if (value < 0 || value >= (Py_ssize_t)count) {
        PyErr_Format(PyExc_ValueError, "%s out of range", what);
        return -1;
    }
    *index = (uint32_t)value;
    return 0;
}

/* Open the arena and its counters in two buffers. Returns VECENV_OK, or a negative code with
 * ValueError if they are not of this build, or do not belong together. */
int vecenv_attach(vecenv_arena *arena, const Py_buffer *mapping, const Py_buffer *counters);

#endif
