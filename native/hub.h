/* Hub: the parent's end, a Python type in four files.
 *
 *   hub.c        life of the type
 *   hub_send.c   actions and commands out
 *   hub_recv.c   batches in
 *   hub_books.c  mail, who owes what, the state and the end of slots
 *
 * One thread uses a Hub at a time. */
#ifndef VECENV_HUB_H
#define VECENV_HUB_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "layout.h"
#include "module.h"
#include "request.h"
#include "ring.h"
#include "wait.h"

typedef struct {
    size_t offset, nbytes; /* column in the arena, bytes per env */
} action_leaf;

typedef struct {
    PyObject_HEAD
    Py_buffer mapping;
    vecenv_arena arena;
    vecenv_ring ring;
    vecenv_column *columns;
    action_leaf *leaves;
    Py_ssize_t num_leaves;
    vecenv_sender sender;
    vecenv_waiter waiter;
} Hub;

#define HUB_METHOD(name) \
    PyObject *vecenv_hub_##name(PyObject *op, PyObject *arg); \
    extern const char vecenv_hub_##name##_doc[]

HUB_METHOD(send); /* hub_send.c */
HUB_METHOD(command);
HUB_METHOD(recv); /* hub_recv.c */
HUB_METHOD(wait);
HUB_METHOD(take_mail); /* hub_books.c */
HUB_METHOD(post);
HUB_METHOD(outstanding);
HUB_METHOD(num_late);
HUB_METHOD(owed);
HUB_METHOD(cancel);
HUB_METHOD(reap);
HUB_METHOD(revive);
HUB_METHOD(move);
HUB_METHOD(state);
HUB_METHOD(pending);
HUB_METHOD(stop);
HUB_METHOD(add_info_key);

#endif
