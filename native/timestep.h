/* Columns into one object per env, as managers hand them out. Nothing is copied: items of
 * lists are passed on, numbers are cut off arrays as views. */
#ifndef VECENV_TIMESTEP_H
#define VECENV_TIMESTEP_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* timesteps(type, obs, rewards): lists of one length -> (timesteps that go on, their empty
 * infos). `type` is a tuple type of the fields obs, reward, done, info. */
PyObject *vecenv_timesteps(PyObject *module, PyObject *arguments);

/* trees(type, slot, count, names, columns) -> `count` objects of `type` whose `slot` holds
 * {name: item of its column}. A column is a list of `count` items or an array (count,). */
PyObject *vecenv_trees(PyObject *module, PyObject *arguments);

#endif
