/* Hub, receiving: turns committed rows into a batch. It is between the ring and the batch view on
 * the data path. */
#include "parent/hub.h"

#include "shm/park.h"

/* Make the event of a wait that ended without rows. A timeout includes how late it was noticed. */
static PyObject *
event_of(const Hub *self, int outcome, int descriptor, int64_t deadline_ns)
{
    static const char *const kinds[] = {
        [RECV_TIMEOUT] = "timeout", [RECV_DESCRIPTOR] = "descriptor",
        [RECV_MESSAGE] = "message",       [RECV_NO_BLOCK] = "no_block",
        [RECV_STRAY] = "stray",
    };
    int64_t late_ns = outcome == RECV_TIMEOUT ? vecenv_now_ns() - deadline_ns : 0;
    return PyObject_CallFunction(self->event_type, "siL", kinds[outcome], descriptor,
                                 (long long)late_ns);
}

PyObject *
vecenv_hub_row_range(const Hub *self, uint32_t block, uint32_t start, uint32_t stop)
{
    return PyObject_CallFunction(self->row_range_type, "OII",
                                 PyTuple_GET_ITEM(self->views, block), start, stop);
}

/* Return a delivered row range as (rows, flags of all rows combined by or). */
static PyObject *
batch_of(const Hub *self, vecenv_row_range range)
{
    const uint32_t *flags = (const void *)column(&self->arena, range.block, VECENV_H_FLAGS);
    uint32_t flags_or = load_acquire32(&self->arena.control->has_notice) ? VECENV_F_NOTICE : 0;
    for (uint32_t row = range.start; row < range.stop; row++) {
        flags_or |= flags[row];
    }
    PyObject *rows = range.stop - range.start == self->arena.num_envs
                         ? Py_NewRef(self->block_ranges[range.block])
                         : vecenv_hub_row_range(self, range.block, range.start, range.stop);
    PyObject *number = rows == NULL ? NULL : PyLong_FromUnsignedLong(flags_or);
    PyObject *pair = number == NULL ? NULL : PyTuple_New(2);
    if (pair == NULL) {
        Py_XDECREF(rows);
        Py_XDECREF(number);
        return NULL;
    }
    PyTuple_SET_ITEM(pair, 0, rows);
    PyTuple_SET_ITEM(pair, 1, number);
    return pair;
}

/* Deliver at most max_count of the gathered rows. */
static PyObject *
deliver(Hub *self, uint32_t max_count)
{
    vecenv_ring *ring = &self->ring;
    uint32_t have = ring->num_deferred;
    for (size_t i = 0; i < ring->num_row_ranges; i++) {
        have += ring->row_ranges[i].stop - ring->row_ranges[i].start;
    }
    vecenv_row_range range;
    if (vecenv_ring_deliver(ring, have < max_count ? have : max_count, &range) != VECENV_OK) {
        return event_of(self, RECV_NO_BLOCK, -1, 0);
    }
    return batch_of(self, range);
}

/* Wait for a condition of vecenv_gather or vecenv_gather_envs, with the GIL released. *from_now, if
 * not 0, is added to the present time, which sets *deadline_ns, and becomes 0. Returns a new event
 * if the wait ended with one; Py_None, borrowed, to gather again; NULL with an exception. */
static PyObject *
wait_once(Hub *self, const vecenv_wait_condition *condition, long long *deadline_ns,
          int64_t *from_now)
{
    int64_t began_ns = vecenv_now_ns();
    if (*from_now != 0) {
        *deadline_ns = began_ns + *from_now;
        *from_now = 0;
    }
    int descriptor = -1;
    int outcome;
    Py_BEGIN_ALLOW_THREADS
    outcome = vecenv_wait_for(&self->waiter, condition, *deadline_ns, &descriptor);
    Py_END_ALLOW_THREADS
    if (self->arena.timings != NULL) {
        if (self->first_wait_ns == 0) {
            self->first_wait_ns = began_ns;
        }
        self->waited_ns += vecenv_now_ns() - began_ns;
    }
    if (PyErr_CheckSignals() < 0) {
        return NULL;
    }
    return outcome == RECV_BATCH || outcome == -1
               ? Py_None
               : event_of(self, outcome, descriptor, *deadline_ns);
}

/* Read a number of rows, at most UINT32_MAX, which means all. -1 with an exception. */
static int64_t
count_of(PyObject *value)
{
    long long count = PyLong_AsLongLong(value);
    if (count < 0 && !PyErr_Occurred()) {
        PyErr_SetString(PyExc_ValueError, "a number of rows must not be negative");
        return -1;
    }
    return count > UINT32_MAX ? UINT32_MAX : count;
}

PyObject *
vecenv_hub_recv(PyObject *op, PyObject *const *args, Py_ssize_t count)
{
    Hub *self = (Hub *)op;
    if (count != 3) {
        PyErr_SetString(PyExc_TypeError, "recv expects min_count, max_count, deadline_ns");
        return NULL;
    }
    int64_t min_count = count_of(args[0]);
    int64_t max_count = min_count < 0 ? -1 : count_of(args[1]);
    long long deadline_ns = max_count < 0 ? -1 : PyLong_AsLongLong(args[2]);
    if (deadline_ns == -1 && PyErr_Occurred()) {
        return NULL;
    }
    if (min_count < 1 || max_count < min_count) {
        PyErr_SetString(PyExc_ValueError, "recv expects 1 <= min_count <= max_count");
        return NULL;
    }
    int64_t from_now = deadline_ns < 0 ? -deadline_ns : 0;
    for (;;) {
        vecenv_wait_condition condition;
        int status = vecenv_gather(&self->waiter, (uint32_t)min_count, &condition);
        if (status == 1) {
            return deliver(self, (uint32_t)max_count);
        }
        if (self->strays.count > 0) {
            return event_of(self, RECV_STRAY, -1, 0);
        }
        if (status == VECENV_ENOBLOCK) {
            return event_of(self, RECV_NO_BLOCK, -1, 0);
        }
        PyObject *event = wait_once(self, &condition, &deadline_ns, &from_now);
        if (event != Py_None) {
            return event;
        }
    }
}

const char vecenv_hub_recv_doc[] = PyDoc_STR(
"recv($self, min_count, max_count, deadline_ns, /)\n--\n\n"
"Wait for min_count rows; return (rows, flags): up to max_count rows, and their flags or'ed.\n"
"F_NOTICE is added while the arena has its word set.\n\n"
"min_count: at least 1; more than the outstanding replies means all of them.\n"
"deadline_ns: time of the monotonic clock; a negative value counts from the call.\n\n"
"rows is a row_range_type. It is valid until `depth - 1` later batches have been received.\n"
"If the wait ends without rows, returns an event instead, to be handled before the next call:\n"
"  ('timeout', -1, late_ns)  the deadline has passed, late_ns ago\n"
"  ('descriptor', fd, 0)     a pidfd is readable: a worker has exited\n"
"  ('message', -1, 0)        read the messages: a worker may be waiting for that\n"
"  ('no_block', -1, 0)       stragglers pin all blocks\n"
"  ('stray', -1, 0)          a word of a worker is out of range, see take_stray_words\n"
"Replies that have arrived are kept for the next call.\n\n"
"Releases the GIL while it waits. Runs signal handlers, whose exceptions are raised. Raises\n"
"ValueError unless 1 <= min_count <= max_count.");

/* Check the envs of a request for rows. -1 with an exception. */
static int
check_owing(Hub *self, const int64_t *env_ids, uint32_t count)
{
    const char *problem = NULL;
    uint32_t i = 0;
    for (; i < count && problem == NULL; i++) {
        if (env_ids[i] < 0 || env_ids[i] >= (int64_t)self->arena.num_envs
            || self->ring.outstanding[env_ids[i]] == 0) {
            problem = "env %lld has no outstanding reply";
        } else if (self->ring.wanted[env_ids[i]]++ != 0) {
            problem = "env %lld is named twice";
        }
    }
    for (uint32_t j = 0; j < i; j++) {
        if (env_ids[j] >= 0 && env_ids[j] < (int64_t)self->arena.num_envs) {
            self->ring.wanted[env_ids[j]] = 0;
        }
    }
    if (problem != NULL) {
        PyErr_Format(PyExc_ValueError, problem, (long long)env_ids[i - 1]);
        return -1;
    }
    return 0;
}

static PyObject *
recv_envs(Hub *self, const int64_t *env_ids, uint32_t count, long long deadline_ns)
{
    int64_t from_now = deadline_ns < 0 ? -deadline_ns : 0;
    for (;;) {
        vecenv_wait_condition condition;
        int status = vecenv_gather_envs(&self->waiter, env_ids, count, &condition);
        if (status == 1) {
            vecenv_row_range range;
            status = vecenv_ring_take(&self->ring, env_ids, count, &range);
            if (status == VECENV_OK) {
                return batch_of(self, range);
            }
        }
        if (self->strays.count > 0) {
            return event_of(self, RECV_STRAY, -1, 0);
        }
        if (status == VECENV_ENOBLOCK) {
            return event_of(self, RECV_NO_BLOCK, -1, 0);
        }
        PyObject *event = wait_once(self, &condition, &deadline_ns, &from_now);
        if (event != Py_None) {
            return event;
        }
    }
}

PyObject *
vecenv_hub_recv_envs(PyObject *op, PyObject *const *args, Py_ssize_t count)
{
    Hub *self = (Hub *)op;
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "recv_envs expects env_ids, deadline_ns");
        return NULL;
    }
    long long deadline_ns = PyLong_AsLongLong(args[1]);
    if (deadline_ns == -1 && PyErr_Occurred()) {
        return NULL;
    }
    Py_buffer ids;
    if (PyObject_GetBuffer(args[0], &ids, PyBUF_C_CONTIGUOUS) < 0) {
        return NULL;
    }
    const int64_t *env_ids = ids.buf;
    size_t num_ids = (size_t)ids.len / sizeof *env_ids;
    PyObject *result = NULL;
    if (ids.itemsize != sizeof *env_ids || num_ids == 0 || num_ids > self->arena.num_envs) {
        PyErr_SetString(PyExc_ValueError, "env_ids must be int64, and 1 to num_envs of them");
    } else if (check_owing(self, env_ids, (uint32_t)num_ids) == 0) {
        result = recv_envs(self, env_ids, (uint32_t)num_ids, deadline_ns);
    }
    PyBuffer_Release(&ids);
    return result;
}

const char vecenv_hub_recv_envs_doc[] = PyDoc_STR(
"recv_envs($self, env_ids, deadline_ns, /)\n--\n\n"
"Wait for the rows of these envs; return (rows, flags) or an event, as `recv` does.\n\n"
"env_ids: int64 (n,), distinct envs with outstanding replies; the rows are in this order. Rows of\n"
"other envs are kept, and the next `recv` delivers them first. Raises ValueError for other ids.");

PyObject *
vecenv_hub_waits(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    const Hub *self = (const Hub *)op;
    return Py_BuildValue("(LL)", (long long)self->first_wait_ns, (long long)self->waited_ns);
}

const char vecenv_hub_waits_doc[] = PyDoc_STR(
"waits($self, /)\n--\n\n"
"Return when `recv` first waited for rows, 0 if it never did, and for how long it did in all.\n\n"
"Both in nanoseconds, the first on the monotonic clock. Zeros without timings.");

PyObject *
vecenv_hub_wait(PyObject *op, PyObject *arg)
{
    Hub *self = (Hub *)op;
    long long deadline_ns = PyLong_AsLongLong(arg);
    if (deadline_ns == -1 && PyErr_Occurred()) {
        return NULL;
    }
    if (self->strays.count > 0) {
        return event_of(self, RECV_STRAY, -1, 0);
    }
    vecenv_wait_condition condition = {VECENV_WAIT_ANY, 0, 0, 0};
    int descriptor = -1;
    int outcome;
    Py_BEGIN_ALLOW_THREADS
    outcome = vecenv_sleep_for(&self->waiter, &condition, deadline_ns, &descriptor);
    Py_END_ALLOW_THREADS
    if (PyErr_CheckSignals() < 0) {
        return NULL;
    }
    if (outcome == -1 || outcome == RECV_BATCH) {
        outcome = RECV_MESSAGE; /* something happened: the caller checks everything */
    }
    return event_of(self, outcome, descriptor, deadline_ns);
}

const char vecenv_hub_wait_doc[] = PyDoc_STR(
"wait($self, deadline_ns, /)\n--\n\n"
"Sleep until a row or a message arrives, a worker exits, or deadline_ns; return an event.\n\n"
"The event is one of `recv`; 'message' also stands for a row. deadline_ns is a time of the\n"
"monotonic clock. Releases the GIL while it sleeps; raises exceptions of signal handlers.");
