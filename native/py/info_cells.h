/* Info cells: read the numbers of a batch's infos, row by row, into one array per key. It is after
 * the batch on the data path. */
#ifndef VECENV_INFO_CELLS_H
#define VECENV_INFO_CELLS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* read_cells(columns, flag, signature, fields, values, mask); see vecenv_read_cells_doc. */
PyObject *vecenv_read_cells(PyObject *module, PyObject *const *arguments, Py_ssize_t count);
extern const char vecenv_read_cells_doc[];

#endif
