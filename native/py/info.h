/* Info cells: numbers and small arrays of info dicts, in cells of 8 bytes with a type tag.
 *
 * The parent decides which keys have cells and writes them to the table of info keys (layout.h). A
 * worker writes an info to cells if each of its values has cells. Otherwise it sends the whole dict
 * as a message. The caller gets the same dict in both cases. Each entry of the table describes one
 * cell:
 *
 *   "lives"             a number under this key
 *   "pos\x1f" "x"       a number under "x" in the dict under "pos"
 *   "pos\x1e" "2,2"     the first of the 4 cells of an array of shape (2, 2)
 *   "\x1d"              one more cell of the previous array
 *
 * All cells of an array have the same tag. In SAME_STEP a step may end one episode and begin the
 * next, so a row has two sets of cells: for the info of the reset and for the final info. */
#ifndef VECENV_INFO_H
#define VECENV_INFO_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "shm/layout.h"

#define VECENV_INFO_DEPTH 4    /* most levels of nested dicts, the info itself included */
#define VECENV_INFO_DIMS 4     /* most dimensions of an array in cells */
#define VECENV_INFO_ELEMENTS 8 /* most elements of an array in cells */

/* The kind of a value. A tag is the kind in the high 4 bits and the value's bytes in the low 4. */
enum {
    INFO_ABSENT,
    INFO_PY_FLOAT,
    INFO_PY_INT,
    INFO_PY_BOOL,
    INFO_FLOAT, /* this and the following: NumPy scalars */
    INFO_INT,
    INFO_UINT,
    INFO_BOOL
};

/* Which infos are sent to the parent (vecenv/core/layout/info_cells.py). */
enum {
    INFOS_ALL,
    INFOS_COLUMNS, /* values that can have cells; the others are left out */
    INFOS_DONE,    /* infos of steps that end episodes */
    INFOS_NONE
};

typedef struct {
    uint32_t used; /* 1 + index of the last cell in use; 0: none */
    uint8_t tags[VECENV_INFO_KEYS];
    uint64_t values[VECENV_INFO_KEYS];
} info_cells;

/* A key of the table: of a number, an array, or a dict. */
typedef struct {
    PyObject *name; /* interned */
    int level;      /* number of the dict that contains it; 0 is the info itself */
    int inner;      /* a dict: its own number; -1: not a dict */
    uint32_t cell, num_cells; /* its first cell, and how many it has */
    int ndim; /* -1: a number */
    Py_ssize_t shape[VECENV_INFO_DIMS];
} info_field;

/* The offset of the number in objects of one NumPy scalar type. It is taken from the buffer of the
 * first such object. A buffer of each object would cost 200 ns, five times the cost of all other
 * work. */
typedef struct {
    PyTypeObject *type;
    size_t offset;
    uint8_t tag;
} info_scalar;

#define VECENV_INFO_SCALARS 8

/* The table of info keys as far as this worker has read it. It is extended when the arena has
 * more. */
typedef struct {
    PyTypeObject *scalar_type, *array_type; /* borrowed; array_type may be NULL */
    info_field fields[VECENV_INFO_KEYS * VECENV_INFO_DEPTH];
    uint32_t num_fields, num_cells;
    int last_level;
    info_scalar scalars[VECENV_INFO_SCALARS]; /* the scalar types seen so far */
    uint32_t num_scalars;
} info_table;

/* Return whether the info of a step or reset is sent at all. `is_end`: the step ends an episode. */
static inline int
info_is_wanted(int infos, int is_end)
{
    return infos <= INFOS_COLUMNS || (infos == INFOS_DONE && is_end);
}

/* Read `info` into cells. Returns 1 if the cells contain all that must be sent, 0 if the info must
 * be sent as a message, -1 with an exception. */
int info_read(const vecenv_arena *arena, info_table *table, PyObject *info, int infos,
              info_cells *cells);

/* Write cells to a row: tags to the column of header word `tags_word`, values to the next one. */
void info_store(const vecenv_arena *arena, const info_cells *cells, int tags_word,
                uint32_t block, uint32_t row);

/* Release all references and empty the table. */
void info_clear(info_table *table);

#endif
