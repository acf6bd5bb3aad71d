/* Hub: the parent's end of a pool, a Python type in four files.
 *
 *   hub.c        creates and destroys the type's objects
 *   hub_send.c   sends actions and commands
 *   hub_recv.c   receives batches
 *   hub_state.c  messages, payloads, outstanding replies; the state and the end of slots
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

/* The dtype of the last array that contained an action leaf; NULL before the first one. */
typedef struct {
    PyObject *dtype;
    size_t itemsize;
} known_dtype;

/* A page of the journal, where steps of all envs are recorded as they are sent; see
 * vecenv_hub_record_in_doc. There is none if words.obj is NULL. */
typedef struct {
    Py_buffer *columns; /* one per leaf */
    Py_buffer words;
    int64_t num_requests; /* for how many it has room */
} journal_page;

typedef struct {
    PyObject_HEAD
    Py_buffer mapping;
    Py_buffer counters;
    Py_buffer saved_rows, deferred_rows; /* private memory, each laid out like a block */
    vecenv_arena arena;
    vecenv_ring ring;
    vecenv_column *columns, *saved_columns;
    action_leaf *leaves;
    known_dtype *dtypes; /* one per leaf */
    journal_page page;
    Py_ssize_t num_leaves;
    PyTypeObject *array_type; /* arrays whose fields may be read, see ndarray.h; NULL: none */
    PyObject *views, *row_range_type, *event_type; /* the results of recv, see hub_doc */
    PyObject **block_ranges;                 /* per block, the row range of all envs */
    vecenv_sender sender;
    vecenv_waiter waiter;
    vecenv_strays strays;
    /* Private copies of words that this process writes, see shm/stray.h. */
    uint64_t *up_read, *down_written; /* per slot */
    char info_keys[VECENV_INFO_KEYS][VECENV_INFO_KEY_NBYTES];
    int has_stopped;
    int64_t first_wait_ns; /* monotonic clock at the begin of the first wait; 0: there was none */
    int64_t waited_ns;     /* sum of all waits for rows */
} Hub;

/* Return rows start .. stop - 1 of a block as an object of row_range_type. NULL with an
 * exception. */
PyObject *vecenv_hub_row_range(const Hub *self, uint32_t block, uint32_t start, uint32_t stop);

/* Release the page of the journal, if there is one. */
void vecenv_hub_release_page(Hub *self);

/* Add the type to the module; -1 with an exception. */
int vecenv_add_hub(PyObject *module);

#define HUB_METHOD(name) \
    PyObject *vecenv_hub_##name(PyObject *op, PyObject *arg); \
    extern const char vecenv_hub_##name##_doc[]
/* Methods that every batch calls: they take their arguments without a tuple. */
#define HUB_QUICK_METHOD(name) \
    PyObject *vecenv_hub_##name(PyObject *op, PyObject *const *args, Py_ssize_t count); \
    extern const char vecenv_hub_##name##_doc[]

HUB_QUICK_METHOD(send); /* hub_send.c */
HUB_METHOD(record_in);
HUB_METHOD(command);
HUB_METHOD(wake_slots);
HUB_QUICK_METHOD(recv); /* hub_recv.c */
HUB_QUICK_METHOD(recv_envs);
HUB_METHOD(wait);
HUB_METHOD(waits);
HUB_METHOD(take_fragment); /* hub_state.c */
HUB_METHOD(write_payload);
HUB_METHOD(lend);
HUB_METHOD(take_back);
HUB_METHOD(outstanding);
HUB_METHOD(num_stragglers);
HUB_METHOD(owed);
HUB_METHOD(last_delivered);
HUB_METHOD(cancel);
HUB_METHOD(continue_from);
HUB_METHOD(reap);
HUB_METHOD(requeue);
HUB_METHOD(move);
HUB_METHOD(state);
HUB_METHOD(pending);
HUB_METHOD(stop);
HUB_METHOD(take_stray_words);
HUB_METHOD(reset_claims);
HUB_METHOD(add_info_key);

#endif
