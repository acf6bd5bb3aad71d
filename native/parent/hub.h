/* Hub: the parent's end, a Python type in four files.
 *
 *   hub.c        life of the type
 *   hub_send.c   actions and commands out
 *   hub_recv.c   batches in
 *   hub_state.c  mail, who owes what, the state and the end of slots
 *
 * One thread uses a Hub at a time. */
#ifndef VECENV_HUB_H
#define VECENV_HUB_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "py/ndarray.h"
#include "py/pyutil.h"
#include "shm/layout.h"
#include "shm/request.h"
#include "shm/ring.h"
#include "shm/wait.h"

typedef struct {
    size_t offset, nbytes; /* column in the arena, bytes per env */
} action_leaf;

/* The dtype of an array that has given an action leaf, NULL before that. */
typedef struct {
    PyObject *dtype;
    size_t itemsize;
} known_dtype;

typedef struct {
    PyObject_HEAD
    Py_buffer mapping;
    Py_buffer saved_rows; /* a block of this process alone */
    vecenv_arena arena;
    vecenv_ring ring;
    vecenv_column *columns, *saved_columns;
    action_leaf *leaves;
    known_dtype *dtypes; /* one per leaf */
    Py_ssize_t num_leaves;
    PyTypeObject *array_type; /* whose fields may be read; NULL: none */
    PyObject *views, *row_range_type, *event_type; /* what receives hand out */
    PyObject **block_ranges;                 /* per block, the run of all envs */
    vecenv_sender sender;
    vecenv_waiter waiter;
} Hub;

/* Rows start .. stop of a block as an object. NULL with an exception. */
PyObject *vecenv_hub_row_range(const Hub *self, uint32_t block, uint32_t start, uint32_t stop);

/* Add the type to the module; -1 with an exception. */
int vecenv_add_hub(PyObject *module);

#define HUB_METHOD(name) \
    PyObject *vecenv_hub_##name(PyObject *op, PyObject *arg); \
    extern const char vecenv_hub_##name##_doc[]
/* What every batch passes through: no tuple of arguments is made for it. */
#define HUB_QUICK_METHOD(name) \
    PyObject *vecenv_hub_##name(PyObject *op, PyObject *const *args, Py_ssize_t count); \
    extern const char vecenv_hub_##name##_doc[]

HUB_QUICK_METHOD(send); /* hub_send.c */
HUB_METHOD(command);
HUB_QUICK_METHOD(recv); /* hub_recv.c */
HUB_METHOD(wait);
HUB_METHOD(take_fragment); /* hub_state.c */
HUB_METHOD(write_payload);
HUB_METHOD(lend);
HUB_METHOD(take_back);
HUB_METHOD(outstanding);
HUB_METHOD(num_stragglers);
HUB_METHOD(owed);
HUB_METHOD(last_delivered);
HUB_METHOD(cancel);
HUB_METHOD(reap);
HUB_METHOD(requeue);
HUB_METHOD(move);
HUB_METHOD(state);
HUB_METHOD(pending);
HUB_METHOD(stop);
HUB_METHOD(add_info_key);

#endif
