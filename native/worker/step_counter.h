/* Steps that are counted as Gymnasium's TimeLimit counts them. */
#ifndef VECENV_STEP_COUNTER_H
#define VECENV_STEP_COUNTER_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* counted(env, limit, unpack) -> step(action), which returns and counts what `limit.step` would, a
 * TimeLimit around `env`. `unpack` gives what is no tuple of five as one, or raises. */
PyObject *vecenv_counted(PyObject *module, PyObject *arguments);

#endif
