/* What managers do with one object per env: look at the actions given, make the results handed out
 * from columns. Nothing is copied: items of lists are passed on, numbers are cut off arrays as
 * views. */
#ifndef VECENV_TIMESTEP_H
#define VECENV_TIMESTEP_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* timesteps(type, obs, rewards): sequences of rows -> (timesteps that go on, their empty infos,
 * the rows of obs and of rewards), four lists. `type` is a tuple type of the fields obs, reward,
 * done, info. */
PyObject *vecenv_timesteps(PyObject *module, PyObject *const *arguments, Py_ssize_t count);

/* common_type(values): the type that all items of a list have, None if there is no such type. */
PyObject *vecenv_common_type(PyObject *module, PyObject *values);

/* trees(type, slot, count, names, columns) -> `count` objects of `type` whose `slot` holds
 * {name: item of its column}. A column is a list of `count` items or an array (count,). */
PyObject *vecenv_trees(PyObject *module, PyObject *arguments);

#endif
