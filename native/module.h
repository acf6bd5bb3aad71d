/* What module.c and the two types share: adding types and constants, opening an arena. */
#ifndef VECENV_MODULE_H
#define VECENV_MODULE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "layout.h"

int vecenv_add_slot(PyObject *module); /* slot.c */
int vecenv_add_hub(PyObject *module);  /* hub.c */

typedef struct {
    const char *name;
    long long value;
} vecenv_constant;

/* Both in module.c; -1 with an exception. */
int vecenv_add_type(PyObject *module, PyType_Spec *spec);
int vecenv_add_constants(PyObject *module, const vecenv_constant *constants, size_t count);

/* Open the arena in a buffer; ValueError when it is none of this build's. */
int vecenv_attach(vecenv_arena *arena, const Py_buffer *mapping); /* module.c */

#endif
