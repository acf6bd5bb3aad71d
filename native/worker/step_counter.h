/* Step counter: counts the steps of an env like Gymnasium's TimeLimit. */
#ifndef VECENV_STEP_COUNTER_H
#define VECENV_STEP_COUNTER_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* counted(first, env, limit, unpack, passed): return a function step(action). It returns the same as
 * `first.step`, but calls `env` directly and counts the step in `limit`, a TimeLimit; None: it does
 * not count. `passed` has (layer, names of attributes that must be True, next layer) of each layer
 * from `first` to `env`; the next layer is None if the layer keeps it under another name than `env`.
 * If one of these has changed, its class included, the function calls `first.step`. Both `step` are
 * looked up at each call. `unpack` turns a result that is not a tuple of five into one, or raises. */
PyObject *vecenv_counted(PyObject *module, PyObject *arguments);

#endif
