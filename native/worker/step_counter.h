/* Step counter: counts the steps of an env like Gymnasium's TimeLimit. */
#ifndef VECENV_STEP_COUNTER_H
#define VECENV_STEP_COUNTER_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* counted(env, limit, unpack): return a function step(action). It steps `env` and returns the same
 * as `limit.step`; `limit` is a TimeLimit around `env` and keeps the count. `unpack` turns a result
 * that is not a tuple of five into one, or raises. */
PyObject *vecenv_counted(PyObject *module, PyObject *arguments);

#endif
