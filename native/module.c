/* vecenv._native: the module, its functions, its two types Hub (parent) and Slot (worker), and the
 * constants that a test compares with core/layout/arena.py. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <errno.h>
#include <string.h>

#include "parent/hub.h"
#include "py/info_cells.h"
#include "py/timestep.h"
#include "shm/layout.h"
#include "shm/parent_watch.h"
#include "worker/slot.h"
#include "worker/step_counter.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "the low bytes of integers, and the low halves of futex words, must come first");

/* Return None, or NULL with an OSError if `error` is not 0. */
static PyObject *
none_or_error(int error)
{
    if (error != 0) {
        errno = error;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    Py_RETURN_NONE;
}

static PyObject *
watch_parent(PyObject *Py_UNUSED(module), PyObject *args)
{
    int pid, pidfd, connection;
    const char *mark;
    if (!PyArg_ParseTuple(args, "iiis:watch_parent", &pid, &pidfd, &connection, &mark)) {
        return NULL;
    }
    return none_or_error(vecenv_watch_parent((pid_t)pid, pidfd, connection, mark));
}

PyDoc_STRVAR(watch_parent_doc,
"watch_parent(pid, pidfd, connection, mark, /)\n--\n\n"
"Kill this process group as soon as the parent exits or closes its end of a socket.\n\n"
"pid, pidfd: the parent; pidfd then belongs to this function. connection: the descriptor of this\n"
"process's end of the socket. mark: the processes with this mark are killed, too; '' for none.\n"
"Starts a native thread and returns. Raises OSError.");

static PyObject *
watch_lease(PyObject *Py_UNUSED(module), PyObject *args)
{
    int server, client, over, close_ms;
    const char *mark;
    if (!PyArg_ParseTuple(args, "iiiis:watch_lease", &server, &client, &over, &close_ms, &mark)) {
        return NULL;
    }
    return none_or_error(vecenv_watch_lease(server, client, over, close_ms, mark));
}

PyDoc_STRVAR(watch_lease_doc,
"watch_lease(server, client, over, close_ms, mark, /)\n--\n\n"
"Kill this process group once its env server and its client have both ended.\n\n"
"server: a socket to the server. client: a pidfd. over: an eventfd; once it is readable, the watch\n"
"ends. close_ms: the time that this process then has, in milliseconds; -1: no limit. mark: the\n"
"processes with this mark are killed, too. The descriptors are duplicated. Starts a native thread\n"
"and returns. Raises OSError.");

PyDoc_STRVAR(timesteps_doc,
"timesteps(type, obs, rewards, /)\n--\n\n"
"Make one `type(obs, reward, False, {})` per row.\n\n"
"type: a tuple type of four fields. obs, rewards: sequences of the same length; their items are\n"
"not copied. Returns four lists: the timesteps, their dicts, the items of obs, the items of\n"
"rewards. Raises TypeError or ValueError if the arguments do not fit.");

PyDoc_STRVAR(common_type_doc,
"common_type(values, /)\n--\n\n"
"Return the type that all items of a list have, or None; None for an empty list.");

PyDoc_STRVAR(trees_doc,
"trees(type, slot, count, names, columns, /)\n--\n\n"
"Make `count` objects of `type`, with `slot` set to {name: item of its column}.\n\n"
"slot: the type's only slot, a member descriptor. columns: one per name, a list of `count` items,\n"
"which are not copied, or an array (count,), whose items become writable views of shape ().\n"
"Returns a list. Raises ValueError if the arguments do not fit.");

/* A range of memory. The caller guarantees that it is mapped. */
typedef struct {
    uint64_t address, nbytes;
} area;

/* Copy all areas to `keep`, then `fill` to the areas. Either may have no memory. */
static int
exchange_areas(const Py_buffer *areas, Py_buffer *keep, const Py_buffer *fill)
{
    const area *first = areas->buf;
    size_t count = (size_t)areas->len / sizeof(area);
    size_t total = 0;
    for (size_t i = 0; i < count; i++) {
        total += first[i].nbytes;
    }
    if ((keep->buf != NULL && (size_t)keep->len != total)
        || (fill->buf != NULL && (size_t)fill->len != total)) {
        PyErr_SetString(PyExc_ValueError, "keep and fill: as many bytes as the areas");
        return -1;
    }
    size_t at = 0;
    for (size_t i = 0; i < count; i++) {
        void *memory = (void *)(uintptr_t)first[i].address;
        if (keep->buf != NULL) {
            memcpy((uint8_t *)keep->buf + at, memory, first[i].nbytes);
        }
        if (fill->buf != NULL) {
            memcpy(memory, (const uint8_t *)fill->buf + at, first[i].nbytes);
        }
        at += first[i].nbytes;
    }
    return 0;
}

static PyObject *
exchange(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer areas, keep = {0}, fill = {0};
    PyObject *to;
    if (!PyArg_ParseTuple(args, "y*Oz*:exchange", &areas, &to, &fill)) {
        return NULL;
    }
    int status = -1;
    if (to == Py_None || PyObject_GetBuffer(to, &keep, PyBUF_WRITABLE) == 0) {
        status = exchange_areas(&areas, &keep, &fill);
    }
    PyBuffer_Release(&keep);
    PyBuffer_Release(&fill);
    PyBuffer_Release(&areas);
    return status < 0 ? NULL : Py_NewRef(Py_None);
}

PyDoc_STRVAR(exchange_doc,
"exchange(areas, keep, fill, /)\n--\n\n"
"Copy ranges of memory to `keep`, then copy `fill` to them.\n\n"
"areas: a buffer of uint64 pairs (address, nbytes). The caller guarantees that this memory exists\n"
"and that no other thread uses it. keep, fill: buffers with as many bytes as all areas, or None.\n"
"Raises ValueError if their size is wrong.");

PyDoc_STRVAR(counted_doc,
"counted(first, env, limit, unpack, passed, /)\n--\n\n"
"Return a function step(action) that does the same as first.step, past the layers in `passed`.\n\n"
"It steps env, and counts the step in the TimeLimit `limit` (None: it counts nothing). If one of\n"
"the layers has changed, it calls first.step.\n\n"
"unpack: called with the result of a step that is not a tuple of five; returns one, or raises.\n"
"passed: (layer, names of attributes that must be True, next layer) of each layer. The next layer\n"
"is None if the layer keeps it under another name than `env`.");

static PyMethodDef module_methods[] = {
    {"timesteps", (PyCFunction)(void (*)(void))vecenv_timesteps, METH_FASTCALL, timesteps_doc},
    {"read_cells", (PyCFunction)(void (*)(void))vecenv_read_cells, METH_FASTCALL,
     vecenv_read_cells_doc},
    {"common_type", vecenv_common_type, METH_O, common_type_doc},
    {"trees", vecenv_trees, METH_VARARGS, trees_doc},
    {"counted", vecenv_counted, METH_VARARGS, counted_doc},
    {"watch_parent", watch_parent, METH_VARARGS, watch_parent_doc},
    {"watch_lease", watch_lease, METH_VARARGS, watch_lease_doc},
    {"exchange", exchange, METH_VARARGS, exchange_doc},
    {NULL, NULL, 0, NULL},
};

static int
add_layout_constants(PyObject *module)
{
    static const vecenv_constant constants[] = {
        {"MAGIC", VECENV_MAGIC},
        {"ABI", VECENV_ABI},
        {"COUNTERS_MAGIC", VECENV_COUNTERS_MAGIC},
        {"COUNTERS_VERSION", VECENV_COUNTERS_VERSION},
        {"COUNTERS_WORDS", VECENV_K_WORDS},
        {"HEADER_WORDS", VECENV_H_WORDS},
        {"CONTROL_NBYTES", sizeof(vecenv_control)},
        {"NOTICE_OFFSET", offsetof(vecenv_control, has_notice)},
        {"SLOT_NBYTES", sizeof(vecenv_slot_lines)},
        {"COMMAND_NBYTES", sizeof(vecenv_command)},
        {"TIMINGS_NBYTES", sizeof(vecenv_timings)},
        {"NUM_BUCKETS", VECENV_NUM_BUCKETS},
        {"FIRST_OCTAVE", VECENV_FIRST_OCTAVE},
        {"INFO_KEYS", VECENV_INFO_KEYS},
        {"INFO_KEY_NBYTES", VECENV_INFO_KEY_NBYTES},
        {"CHAIN", 3},
        {"F_RESET", VECENV_F_RESET},
        {"F_AUTORESET", VECENV_F_AUTORESET},
        {"F_FINAL", VECENV_F_FINAL},
        {"F_MESSAGE", VECENV_F_MESSAGE},
        {"F_ERROR", VECENV_F_ERROR},
        {"F_INFO", VECENV_F_INFO},
        {"F_VOID", VECENV_F_VOID},
        {"F_FINAL_INFO", VECENV_F_FINAL_INFO},
        {"F_FINAL_INTS", VECENV_F_FINAL_INTS},
        {"F_REPEATS", VECENV_F_REPEATS},
        {"F_FINAL_REPEATS", VECENV_F_FINAL_REPEATS},
        {"F_CONTINUES", VECENV_F_CONTINUES},
        {"F_NOTICE", VECENV_F_NOTICE},
        {"F_OF_ROWS", VECENV_F_OF_ROWS},
        {"C_OPTIONS", VECENV_C_OPTIONS},
        {"C_WATCH", VECENV_C_WATCH},
        {"C_PAYLOAD", VECENV_C_PAYLOAD},
        {"C_SEED", VECENV_C_SEED},
        {"C_SNAPSHOT", VECENV_C_SNAPSHOT},
        {"C_DRAWN", VECENV_C_DRAWN},
        {"C_NEW_DIGEST", VECENV_C_NEW_DIGEST},
        {"C_CANCELLED", VECENV_C_CANCELLED},
        {"OP_STEP", VECENV_OP_STEP},
        {"OP_RESET", VECENV_OP_RESET},
        {"OP_CALL", VECENV_OP_CALL},
        {"FORM_NATIVE", VECENV_FORM_NATIVE},
        {"FORM_INT", VECENV_FORM_INT},
        {"FORM_VECTOR", VECENV_FORM_VECTOR},
        {"FORM_ARRAY0", VECENV_FORM_ARRAY0},
    };
    return vecenv_add_constants(module, constants, sizeof constants / sizeof constants[0]);
}

static int
module_exec(PyObject *module)
{
    if (add_layout_constants(module) < 0 || vecenv_add_hub(module) < 0
        || vecenv_add_slot(module) < 0) {
        return -1;
    }
    return 0;
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, (void *)module_exec},
#ifdef Py_mod_gil
    /* Objects of a hub or a slot have no locks of their own: the GIL protects them. */
    {Py_mod_gil, Py_MOD_GIL_USED},
#endif
    {0, NULL},
};

static PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT,
    .m_name = "vecenv._native",
    .m_doc = "Rows, rings and wake-ups of vecenv.core in C; see native/README.md.",
    .m_methods = module_methods,
    .m_slots = module_slots,
};

PyMODINIT_FUNC
PyInit__native(void)
{
    return PyModuleDef_Init(&module_def);
}
