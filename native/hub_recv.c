/* Hub, receiving: one call receives a batch of rows. Stands between committed rows and the
 * batch view on the data path. */
#include "hub.h"

#include "park.h"

static PyObject *
outcome_tuple(int outcome, int detail)
{
    return Py_BuildValue("(iiIII)", outcome, detail, 0u, 0u, 0u);
}

/* Deliver up to max_count of the gathered rows. */
static PyObject *
deliver(Hub *self, uint32_t max_count)
{
    vecenv_ring *ring = &self->ring;
    uint32_t have = 0;
    for (size_t i = 0; i < ring->num_pieces; i++) {
        have += ring->pieces[i].stop - ring->pieces[i].start;
    }
    vecenv_piece run;
    if (vecenv_ring_deliver(ring, have < max_count ? have : max_count, &run) != VECENV_OK) {
        return outcome_tuple(RECV_NO_BLOCK, -1);
    }
    const uint32_t *flags = (const void *)column(&self->arena, run.block, VECENV_H_FLAGS);
    uint32_t flags_or = 0;
    for (uint32_t row = run.start; row < run.stop; row++) {
        flags_or |= flags[row];
    }
    return Py_BuildValue("(iiIII)", RECV_BATCH, (int)run.block, run.start, run.stop, flags_or);
}

PyObject *
vecenv_hub_recv(PyObject *op, PyObject *args)
{
    Hub *self = (Hub *)op;
    unsigned int min_count, max_count;
    long long deadline_ns;
    if (!PyArg_ParseTuple(args, "IIL:recv", &min_count, &max_count, &deadline_ns)) {
        return NULL;
    }
    int64_t from_now = deadline_ns < 0 ? -deadline_ns : 0;
    for (;;) {
        vecenv_want what;
        int status = vecenv_gather(&self->waiter, min_count, &what);
        if (status == 1) {
            return deliver(self, max_count);
        }
        if (status == VECENV_ENOBLOCK) {
            return outcome_tuple(RECV_NO_BLOCK, -1);
        }
        if (from_now != 0) {
            deadline_ns = vecenv_now_ns() + from_now;
            from_now = 0;
        }
        int descriptor = -1;
        int outcome;
        Py_BEGIN_ALLOW_THREADS
        outcome = vecenv_wait_for(&self->waiter, &what, deadline_ns, &descriptor);
        Py_END_ALLOW_THREADS
        if (PyErr_CheckSignals() < 0) {
            return NULL;
        }
        if (outcome != RECV_BATCH && outcome != -1) {
            return outcome_tuple(outcome, descriptor);
        }
    }
}

const char vecenv_hub_recv_doc[] = PyDoc_STR(
"recv($self, min_count, max_count, deadline_ns, /)\n--\n\n"
"Wait for rows; (RECV_BATCH, block, start, stop, or of their flags).\n\n"
"Other outcomes, to be dealt with before the next call: (RECV_TIMEOUT, ...) at\n"
"deadline_ns on the monotonic clock (negative: from now); (RECV_DESCRIPTOR, fd, ...) a pidfd is readable;\n"
"(RECV_MAIL, ...) a worker waits for its mail to be drained; (RECV_NO_BLOCK, ...) late\n"
"writers pin all blocks. Runs signal handlers; without the GIL while it waits.");

PyObject *
vecenv_hub_wait(PyObject *op, PyObject *arg)
{
    Hub *self = (Hub *)op;
    long long deadline_ns = PyLong_AsLongLong(arg);
    if (deadline_ns == -1 && PyErr_Occurred()) {
        return NULL;
    }
    vecenv_want what = {VECENV_WAIT_ANY, 0, 0};
    int descriptor = -1;
    int outcome;
    Py_BEGIN_ALLOW_THREADS
    outcome = vecenv_sleep_for(&self->waiter, &what, deadline_ns, &descriptor);
    Py_END_ALLOW_THREADS
    if (PyErr_CheckSignals() < 0) {
        return NULL;
    }
    if (outcome == -1 || outcome == RECV_BATCH) {
        outcome = RECV_MAIL; /* look around */
    }
    return outcome_tuple(outcome, descriptor);
}

const char vecenv_hub_wait_doc[] = PyDoc_STR(
"wait($self, deadline_ns, /)\n--\n\n"
"Sleep until anything happens: a row, mail, a death, the deadline. As `recv` otherwise.");
