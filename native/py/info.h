/* Info columns: numbers and small arrays of info dicts as 8 byte cells with a type tag.
 *
 * The parent names what has cells (layout.h, info keys). A worker puts an info into cells
 * when every value has some, otherwise the whole dict travels as mail. Either way the
 * caller sees the same dict. One entry of the table names one cell:
 *
 *   "lives"             a number under this key
 *   "pos\x1f" "x"       a number under "x" in the dict under "pos"
 *   "pos\x1e" "2,2"     the first of the 4 cells of an array of this shape
 *   "\x1d"              one more cell of the array before
 *
 * All cells of an array have the same tag. A row has two sets of cells where a step may end
 * one episode and begin the next: those of the reset's info, and those of the last step's. */
#ifndef VECENV_INFO_H
#define VECENV_INFO_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "shm/layout.h"

#define VECENV_INFO_DEPTH 4    /* dicts within dicts, the info itself included */
#define VECENV_INFO_DIMS 4     /* of an array in cells */
#define VECENV_INFO_ELEMENTS 8 /* of an array in cells */

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

/* Which infos travel (vecenv/core/layout/info_cells.py). */
enum {
    INFOS_ALL,
    INFOS_COLUMNS, /* values that can have cells; the others are left out */
    INFOS_DONE,    /* of the steps that end episodes */
    INFOS_NONE
};

typedef struct {
    uint32_t used; /* one more than the last cell that is not absent */
    uint8_t tags[VECENV_INFO_KEYS];
    uint64_t values[VECENV_INFO_KEYS];
} info_cells;

/* A key that is known: of a number, an array, or a dict. */
typedef struct {
    PyObject *name; /* interned */
    int level;      /* the dict it stands in; 0 is the info itself */
    int inner;      /* the level of what stands in it, -1 if it is no dict */
    uint32_t cell, num_cells;
    int ndim; /* -1: a number */
    Py_ssize_t shape[VECENV_INFO_DIMS];
} info_field;

/* Where a type of NumPy's scalars has its number: in the object itself, as the buffer of the
 * first one said. A buffer of each would cost 200 ns, five times what else is to be done. */
typedef struct {
    PyTypeObject *type;
    size_t offset;
    uint8_t tag;
} info_scalar;

#define VECENV_INFO_SCALARS 8

/* The table, as far as it has been read; refreshed when the arena has more. */
typedef struct {
    PyTypeObject *scalar_type, *array_type; /* borrowed; array_type may be NULL */
    info_field fields[VECENV_INFO_KEYS * VECENV_INFO_DEPTH];
    uint32_t num_fields, num_cells;
    int last_level;
    info_scalar scalars[VECENV_INFO_SCALARS]; /* types that have been met */
    uint32_t num_scalars;
} info_table;

/* Whether the info of a step or reset travels at all; `is_end`: of a step that ends an
 * episode. */
static inline int
info_is_wanted(int infos, int is_end)
{
    return infos <= INFOS_COLUMNS || (infos == INFOS_DONE && is_end);
}

/* Read `info` into cells: 1 all that travels, 0 it must be mailed, -1 an exception. */
int info_read(const vecenv_arena *arena, info_table *table, PyObject *info, int infos,
              info_cells *cells);

/* Write cells into a row: to the column `tags_word` and the column of values behind it. */
void info_store(const vecenv_arena *arena, const info_cells *cells, int tags_word,
                uint32_t block, uint32_t row);

void info_clear(info_table *table);

#endif
