/* InfoBuffers: the arrays of a batch's infos, filled again once nobody holds them.
 *
 * Infos of the same keys and types need the same arrays at every step, and most callers have
 * dropped those of the step before the last. To make ten arrays takes longer than to fill them. */
#ifndef VECENV_INFO_ARRAYS_H
#define VECENV_INFO_ARRAYS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* fill_info_buffer(info_buffer, rows, flag) -> the infos, a dict of the info_buffer's arrays; None: these rows are
 * not what the info_buffer is for; False: somebody still has one of its arrays, or a view of one, or has
 * changed its shape, dtype or flags.
 *
 * info_buffer: (infos, dtypes, values, masks, fields, signature). infos: {key: view of values, _key: view
 * of masks}, arrays of a type that vecenv_is_ndarray, referred to from nowhere else; dtypes: of each.
 * values: uint8 (nbytes,), for each field B numbers of its size from its offset on. masks: bool
 * (n, B). fields: uint32 triples (cell, offset, size). signature: the tags of each row. rows: flags
 * uint32 (B,), tags uint8 (B, k), cells uint64 (B, k), each contiguous. flag: the rows that have an
 * info have it, and all must. */
PyObject *vecenv_fill_info_buffer(PyObject *module, PyObject *const *arguments, Py_ssize_t count);

#endif
