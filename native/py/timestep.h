/* Timesteps: make one object per env for managers, from the columns of a batch; check the types of
 * their actions. It is after the batch on the data path. No arrays are copied: items of lists are
 * passed on, items of arrays become views. */
#ifndef VECENV_TIMESTEP_H
#define VECENV_TIMESTEP_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* timesteps(type, obs, rewards): return four lists: timesteps that are not done, their empty infos,
 * the rows of obs, the rows of rewards. `type` is a tuple type with the fields obs, reward, done,
 * info. */
PyObject *vecenv_timesteps(PyObject *module, PyObject *const *arguments, Py_ssize_t count);

/* common_type(values): return the type that all items of a list have, or None. */
PyObject *vecenv_common_type(PyObject *module, PyObject *values);

/* trees(type, slot, count, names, columns): return `count` objects of `type`; `slot` of each is
 * set to {name: item of its column}. A column is a list of `count` items or an array (count,). */
PyObject *vecenv_trees(PyObject *module, PyObject *arguments);

#endif
