/* Slot's mail: messages up and letters down, for what has no column. */
#include "worker/slot.h"

#include "shm/byte_ring.h"

/* A slot that waits for the parent looks at signals and at the stop word this often. */
#define MAIL_SLICE_NS INT64_C(100000000)

enum { WAIT_OVER, WAIT_STOPPED, WAIT_RAISED };

/* Wait without the GIL until the parent has moved `word` on from `seen`. Meanwhile the slot
 * counts as blocked: not late, but kept waiting. `wakes_parent`: it has to be told first.
 * WAIT_STOPPED: the pool ends; WAIT_RAISED: a signal handler raised. */
static int
wait_for_parent(Slot *self, vecenv_word *word, uint64_t seen, int wakes_parent)
{
    int status = WAIT_OVER;
    store_release32(&lines_of(self)->blocked, 1);
    Py_BEGIN_ALLOW_THREADS
    if (wakes_parent) { /* the parent's drain stores `read`, fences, looks at blocked */
        full_fence();
        vecenv_wake_parent_now(&self->arena, self->event_fd);
    }
    if (load_acquire(word) == seen) {
        vecenv_wait_word(word, seen, MAIL_SLICE_NS);
    }
    Py_END_ALLOW_THREADS
    if (PyErr_CheckSignals() < 0) {
        status = WAIT_RAISED;
    } else if (load_acquire32(&self->arena.control->stop)) {
        status = WAIT_STOPPED;
    }
    return status;
}

/* What was raised amid a message: it waits until that is whole, for the next one stands right
 * behind it. */
typedef struct {
    PyObject *type, *value, *trace;
} raised;

static void
put_off(raised *what)
{
    if (what->type == NULL) {
        PyErr_Fetch(&what->type, &what->value, &what->trace);
    } else {
        PyErr_Clear(); /* the first one is told */
    }
}

PyObject *
vecenv_slot_mail(PyObject *op, PyObject *arg)
{
    Slot *self = (Slot *)op;
    Py_buffer data;
    if (PyObject_GetBuffer(arg, &data, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    vecenv_mail mail = vecenv_mail_up(&self->arena, self->slot);
    const uint8_t *next = data.buf;
    size_t left = (size_t)data.len;
    raised what = {NULL, NULL, NULL};
    int status = WAIT_OVER;
    while (status != WAIT_STOPPED) { /* stopped: nobody reads any more, the rest is dropped */
        uint64_t seen = load_acquire(mail.read);
        ptrdiff_t taken = vecenv_mail_put(&mail, next, left);
        if (taken >= 0 && (size_t)taken == left) {
            break;
        }
        if (taken > 0) {
            next += taken;
            left -= (size_t)taken;
        } else {
            status = wait_for_parent(self, mail.read, seen, 1);
            if (status == WAIT_RAISED) {
                put_off(&what);
            }
        }
    }
    store_release32(&lines_of(self)->blocked, 0);
    PyBuffer_Release(&data);
    if (what.type != NULL) {
        PyErr_Restore(what.type, what.value, what.trace);
        return NULL;
    }
    Py_RETURN_NONE;
}

const char vecenv_slot_mail_doc[] = PyDoc_STR(
"mail($self, data, /)\n--\n\n"
"Write one message for the parent; waits, deadlines suspended, while the ring is full.\n\n"
"What a signal handler raises meanwhile is raised once all of it has been written.");

/* Take the next letter whole; a bytearray, which is of no use once something was raised. NULL: the
 * pool ends, or there is no memory. */
static PyObject *
take_letter(Slot *self, raised *what)
{
    vecenv_mail mail = vecenv_mail_down(&self->arena, self->slot);
    PyObject *letter = PyByteArray_FromStringAndSize(NULL, 0);
    while (letter != NULL) {
        size_t nbytes;
        uint64_t seen = load_acquire(mail.written);
        int kind = vecenv_mail_peek(&mail, &nbytes);
        if (kind == VECENV_MAIL_NONE) { /* the parent is writing the next piece */
            int status = wait_for_parent(self, mail.written, seen, 0);
            if (status == WAIT_RAISED) {
                put_off(what);
            } else if (status == WAIT_STOPPED) {
                PyErr_SetString(PyExc_InterruptedError, "stopped within a letter");
                Py_CLEAR(letter);
            }
            continue;
        }
        Py_ssize_t have = what->type == NULL ? PyByteArray_GET_SIZE(letter) : 0;
        if (PyByteArray_Resize(letter, have + (Py_ssize_t)nbytes) < 0) {
            put_off(what); /* a piece has room where the letter has none */
            have = 0;
            if (PyByteArray_Resize(letter, (Py_ssize_t)nbytes) < 0) {
                Py_CLEAR(letter);
                break;
            }
        }
        vecenv_mail_take(&mail, PyByteArray_AS_STRING(letter) + have);
        if (kind == VECENV_MAIL_LAST) {
            break;
        }
    }
    return letter;
}

PyObject *
vecenv_slot_letter(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    Slot *self = (Slot *)op;
    raised what = {NULL, NULL, NULL};
    PyObject *letter = take_letter(self, &what);
    while (letter != NULL && self->num_unread > 0) { /* that one was of a command that has ended */
        self->num_unread--;
        Py_SETREF(letter, take_letter(self, &what));
    }
    self->owes_letter = 0;
    store_release32(&lines_of(self)->blocked, 0);
    if (what.type != NULL) {
        Py_CLEAR(letter);
        PyErr_Restore(what.type, what.value, what.trace);
    }
    return letter;
}

const char vecenv_slot_letter_doc[] = PyDoc_STR(
"letter($self, /)\n--\n\n"
"Take the letter of the command under way (a bytearray).\n\n"
"What a signal handler raises meanwhile is raised once all of it has been taken: the next letter\n"
"stands right behind it.");
