/* Messages and payloads of a Slot, for values without a column: messages to the parent go through
 * the ring up, payloads of commands come through the ring down. */
#include "worker/slot.h"

#include "shm/byte_ring.h"

/* A slot that waits for the parent checks signals and the stop word this often. */
#define PARENT_WAIT_SLICE_NS INT64_C(100000000)

enum { WAIT_OVER, WAIT_STOPPED, WAIT_RAISED };

/* Wait without the GIL, at most PARENT_WAIT_SLICE_NS, until `word` differs from `expected`: the
 * parent, which is woken first, has read or written. The slot is marked as blocked until then, so
 * no deadline counts. Returns WAIT_OVER; WAIT_STOPPED: the pool ends; WAIT_RAISED: a signal handler
 * raised. */
static int
wait_for_parent(Slot *self, vecenv_word *word, uint64_t expected)
{
    int status = WAIT_OVER;
    store_release32(&lines_of(self)->blocked, 1);
    vecenv_timer_pause(&self->timer); /* this time is not the env's */
    Py_BEGIN_ALLOW_THREADS
    full_fence(); /* Hub.take_fragment stores `read`, fences, loads `blocked` */
    vecenv_wake_parent_now(&self->arena, self->event_fd);
    if (load_acquire(word) == expected) {
        vecenv_wait_word(word, expected, PARENT_WAIT_SLICE_NS);
    }
    Py_END_ALLOW_THREADS
    vecenv_timer_resume(&self->timer);
    if (PyErr_CheckSignals() < 0) {
        status = WAIT_RAISED;
    } else if (load_acquire32(&self->arena.control->stop)) {
        status = WAIT_STOPPED;
    }
    return status;
}

/* An exception that was raised within a message. It is deferred until the message is complete,
 * because the next one follows directly in the ring. */
typedef struct {
    PyObject *type, *value, *trace;
} raised;

static void
defer(raised *deferred)
{
    if (deferred->type == NULL) {
        PyErr_Fetch(&deferred->type, &deferred->value, &deferred->trace);
    } else {
        PyErr_Clear(); /* the first exception is raised, not this one */
    }
}

PyObject *
vecenv_slot_send_message(PyObject *op, PyObject *arg)
{
    Slot *self = (Slot *)op;
    Py_buffer data;
    if (PyObject_GetBuffer(arg, &data, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    vecenv_byte_ring ring = vecenv_byte_ring_up(&self->arena, self->slot);
    const uint8_t *next = data.buf;
    size_t left = (size_t)data.len;
    raised deferred = {NULL, NULL, NULL};
    int status = WAIT_OVER;
    while (status != WAIT_STOPPED) { /* the parent does not read after a stop: drop the bytes */
        uint64_t expected = load_acquire(ring.read);
        ptrdiff_t taken = vecenv_byte_ring_put(&ring, next, left);
        if (taken >= 0 && (size_t)taken == left) {
            break;
        }
        if (taken < -1) {
            END_STRAY("the counters of messages");
        }
        if (taken > 0) {
            next += taken;
            left -= (size_t)taken;
        } else {
            status = wait_for_parent(self, ring.read, expected);
            if (status == WAIT_RAISED) {
                defer(&deferred);
            }
        }
    }
    store_release32(&lines_of(self)->blocked, 0);
    PyBuffer_Release(&data);
    if (deferred.type != NULL) {
        PyErr_Restore(deferred.type, deferred.value, deferred.trace);
        return NULL;
    }
    Py_RETURN_NONE;
}

/* Take the whole next payload as a bytearray. If an exception was deferred, its contents are
 * undefined. NULL with an exception if the pool ends or memory is exhausted. */
static PyObject *
take_payload(Slot *self, raised *deferred)
{
    vecenv_byte_ring ring = vecenv_byte_ring_down(&self->arena, self->slot);
    PyObject *payload = PyByteArray_FromStringAndSize(NULL, 0);
    while (payload != NULL) {
        size_t nbytes;
        uint64_t expected = load_acquire(ring.written);
        int kind = vecenv_byte_ring_peek(&ring, &nbytes);
        if (kind == VECENV_BYTE_RING_NONE) { /* the parent is writing the next fragment */
            int status = wait_for_parent(self, ring.written, expected);
            if (status == WAIT_RAISED) {
                defer(deferred);
            } else if (status == WAIT_STOPPED) {
                PyErr_SetString(PyExc_InterruptedError, "stopped within a payload");
                Py_CLEAR(payload);
            }
            continue;
        }
        if (kind == VECENV_BYTE_RING_STRAY) {
            END_STRAY("the counters of payloads");
        }
        Py_ssize_t have = deferred->type == NULL ? PyByteArray_GET_SIZE(payload) : 0;
        if (PyByteArray_Resize(payload, have + (Py_ssize_t)nbytes) < 0) {
            defer(deferred); /* no memory for the payload: keep only one fragment at a time */
            have = 0;
            if (PyByteArray_Resize(payload, (Py_ssize_t)nbytes) < 0) {
                Py_CLEAR(payload);
                break;
            }
        }
        if (!vecenv_byte_ring_take(&ring, PyByteArray_AS_STRING(payload) + have, nbytes)) {
            END_STRAY("a payload");
        }
        if (kind == VECENV_BYTE_RING_LAST) {
            break;
        }
    }
    return payload;
}

PyObject *
vecenv_slot_take_payload(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    Slot *self = (Slot *)op;
    raised deferred = {NULL, NULL, NULL};
    PyObject *payload = take_payload(self, &deferred);
    /* skip the payloads of commands that have ended */
    while (payload != NULL && self->num_unread_payloads > 0) {
        self->num_unread_payloads--;
        Py_SETREF(payload, take_payload(self, &deferred));
    }
    self->has_unread_payload = 0;
    store_release32(&lines_of(self)->blocked, 0);
    if (deferred.type != NULL) {
        Py_CLEAR(payload);
        PyErr_Restore(deferred.type, deferred.value, deferred.trace);
    }
    return payload;
}
