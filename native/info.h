/* Info columns: numbers from info dicts as 8 byte cells with a type tag.
 *
 * The parent names the keys that have a column (layout.h, info keys); a worker puts an
 * info into cells only when every key has one and every value is a scalar, otherwise
 * the whole dict travels as mail. Either way the caller sees the same dict. */
#ifndef VECENV_INFO_H
#define VECENV_INFO_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "layout.h"

/* A tag is a kind in the high half and the value's size in the low half. */
enum {
    INFO_ABSENT,
    INFO_PY_FLOAT,
    INFO_PY_INT,
    INFO_PY_BOOL,
    INFO_FLOAT, /* numpy scalars from here on */
    INFO_INT,
    INFO_UINT,
    INFO_BOOL
};

typedef struct {
    uint8_t tags[VECENV_INFO_KEYS];
    uint64_t values[VECENV_INFO_KEYS];
} info_cells;

/* The known keys, as interned strings; refreshed from the arena when it has more. */
typedef struct {
    PyObject *names[VECENV_INFO_KEYS];
    uint32_t count;
} info_names;

/* Read `info` into cells: 1 all of it, 0 it must be mailed, -1 an exception. */
int info_read(const vecenv_arena *arena, info_names *names, PyObject *info,
              PyTypeObject *numpy_scalar, info_cells *cells);

void info_store(const vecenv_arena *arena, const info_cells *cells, uint32_t block,
                uint32_t row);

#endif
