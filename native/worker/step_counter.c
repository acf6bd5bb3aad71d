/* Step counter: steps an env past wrappers that only call the next layer, and counts its steps like
 * Gymnasium's TimeLimit, in the TimeLimit itself. It is between the slot and the env if the worker
 * steps past the wrappers of `gymnasium.make`. core/host/shortcut.py chooses these layers. */
#include "worker/step_counter.h"

/* The attributes that a step looks up. */
enum { NAME_STEP, NAME_OWN_STEP, NAME_ENV, NAME_ELAPSED, NAME_MOST, NUM_NAMES };

static const char *const name_strings[NUM_NAMES] = {"step", "_step", "env", "_elapsed_steps",
                                                    "_max_episode_steps"};

/* Items of the tuple that the function is bound to; the names follow last. */
enum {
    BOUND_FIRST,
    BOUND_ENV,
    BOUND_LIMIT,
    BOUND_UNPACK,
    BOUND_PASSED,
    BOUND_CHECKS,
    BOUND_ONE,
    BOUND_NAMES,
};

#define MAX_FLAGS 2

/* A layer that steps skip, as it was found. Its type and all attributes of that type are as before
 * while the type keeps its version. All objects are borrowed from the tuple of layers, or, like
 * `next`, only compared. `next` is None for a layer that keeps its env under another name; the object
 * has no `_step` of its own then. */
typedef struct {
    PyObject *layer, *next;
    PyTypeObject *type;
    unsigned int version;
    uint64_t dict_version; /* version of the object's attributes at the last look-up */
    PyObject *flags[MAX_FLAGS]; /* names of attributes that must be True; NULL: no further one */
} layer_check;

/* A number that no other dict has had, and that each change of the dict replaces; 0: unknown. */
static inline uint64_t
version_of(PyObject *dict)
{
#if PY_VERSION_HEX < 0x030C0000
    return ((PyDictObject *)dict)->ma_version_tag;
#else
    (void)dict;
    return 0;
#endif
}

static PyObject *
name_of(PyObject *bound, int which)
{
    return PyTuple_GET_ITEM(bound, BOUND_NAMES + which);
}

/* Return whether a layer still only calls the next one: its class, the attributes of the class, `env`
 * and its flags are the same, and the object has no `step` of its own. */
static int
is_as_found(PyObject *bound, layer_check *check)
{
    if (Py_TYPE(check->layer) != check->type
        || check->type->tp_version_tag != check->version) {
        return 0;
    }
    PyObject *dict = PyObject_GenericGetDict(check->layer, NULL);
    if (dict == NULL) {
        PyErr_Clear();
        return 0;
    }
    uint64_t dict_version = version_of(dict);
    int is_same = dict_version != 0 && dict_version == check->dict_version;
    if (!is_same) {
        is_same = PyDict_GetItemWithError(dict, name_of(bound, NAME_STEP)) == NULL;
        if (check->next == Py_None) {
            is_same =
                is_same && PyDict_GetItemWithError(dict, name_of(bound, NAME_OWN_STEP)) == NULL;
        } else {
            is_same =
                is_same && PyDict_GetItemWithError(dict, name_of(bound, NAME_ENV)) == check->next;
        }
        for (int i = 0; is_same && i < MAX_FLAGS && check->flags[i] != NULL; i++) {
            is_same = PyDict_GetItemWithError(dict, check->flags[i]) == Py_True;
        }
        check->dict_version = is_same ? dict_version : 0;
    }
    Py_DECREF(dict);
    return is_same;
}

/* Return the checks of the skipped layers, and their number. */
static layer_check *
checks_of(PyObject *bound, Py_ssize_t *count)
{
    PyObject *bytes = PyTuple_GET_ITEM(bound, BOUND_CHECKS);
    *count = PyByteArray_GET_SIZE(bytes) / (Py_ssize_t)sizeof(layer_check);
    return (layer_check *)PyByteArray_AS_STRING(bytes);
}

/* Return whether all skipped layers are as they were found. */
static int
are_layers_as_found(PyObject *bound)
{
    Py_ssize_t count;
    layer_check *checks = checks_of(bound, &count);
    for (Py_ssize_t i = 0; i < count; i++) {
        if (!is_as_found(bound, &checks[i])) {
            return 0;
        }
    }
    return 1;
}

/* Return an attribute without `__getattr__`, which wrappers use to forward to their env. */
static PyObject *
attribute(PyObject *object, PyObject *dict, PyObject *name)
{
    PyObject *value = PyDict_GetItemWithError(dict, name);
    return value != NULL ? Py_NewRef(value) : PyObject_GenericGetAttr(object, name);
}

/* Write a new count into the TimeLimit. The next step need not look at its attributes again if no one
 * else has changed them since the last look. */
static int
set_count(PyObject *bound, PyObject *limit, PyObject *dict, PyObject *elapsed)
{
    Py_ssize_t count;
    layer_check *check = checks_of(bound, &count);
    while (check->layer != limit) { /* it is one of the skipped layers */
        check++;
    }
    int is_unchanged = check->dict_version == version_of(dict)
                       && check->type->tp_setattro == PyObject_GenericSetAttr;
    if (PyObject_SetAttr(limit, name_of(bound, NAME_ELAPSED), elapsed) < 0) {
        return -1;
    }
    if (is_unchanged) {
        check->dict_version = version_of(dict);
    }
    return 0;
}

/* Count a step. Returns whether it was the last step that the limit allows; -1 with an exception. */
static int
count(PyObject *bound)
{
    PyObject *limit = PyTuple_GET_ITEM(bound, BOUND_LIMIT);
    PyObject *dict = PyObject_GenericGetDict(limit, NULL);
    if (dict == NULL) {
        return -1;
    }
    PyObject *one = PyTuple_GET_ITEM(bound, BOUND_ONE);
    PyObject *before = attribute(limit, dict, name_of(bound, NAME_ELAPSED));
    PyObject *elapsed = before == NULL ? NULL : PyNumber_Add(before, one);
    PyObject *most = NULL;
    if (elapsed != NULL && set_count(bound, limit, dict, elapsed) == 0) {
        most = attribute(limit, dict, name_of(bound, NAME_MOST));
    }
    int is_over = most == NULL ? -1 : PyObject_RichCompareBool(elapsed, most, Py_GE);
    Py_DECREF(dict);
    Py_XDECREF(before);
    Py_XDECREF(elapsed);
    Py_XDECREF(most);
    return is_over;
}

/* Return the result of a step as a tuple of five values. */
static PyObject *
as_five_values(PyObject *bound, PyObject *result)
{
    if (PyTuple_CheckExact(result) && PyTuple_GET_SIZE(result) == 5) {
        return Py_NewRef(result);
    }
    return PyObject_CallOneArg(PyTuple_GET_ITEM(bound, BOUND_UNPACK), result);
}

/* Return a copy of the five values with truncated set. */
static PyObject *
truncated(PyObject *values)
{
    return PyTuple_Pack(5, PyTuple_GET_ITEM(values, 0), PyTuple_GET_ITEM(values, 1),
                        PyTuple_GET_ITEM(values, 2), Py_True, PyTuple_GET_ITEM(values, 4));
}

static PyObject *
step(PyObject *bound, PyObject *action)
{
    int is_short = are_layers_as_found(bound);
    PyObject *env = PyTuple_GET_ITEM(bound, is_short ? BOUND_ENV : BOUND_FIRST);
    PyObject *arguments[] = {env, action};
    PyObject *result = PyObject_VectorcallMethod(name_of(bound, NAME_STEP), arguments, 2, NULL);
    if (result == NULL || !is_short || PyTuple_GET_ITEM(bound, BOUND_LIMIT) == Py_None) {
        return result;
    }
    PyObject *values = as_five_values(bound, result);
    Py_DECREF(result);
    int is_over = values == NULL ? -1 : count(bound);
    if (is_over < 0) {
        Py_CLEAR(values);
    } else if (is_over > 0) {
        Py_SETREF(values, truncated(values));
    }
    return values;
}

static PyMethodDef step_method = {
    "step", step, METH_O,
    PyDoc_STR("step($self, action, /)\n--\n\n"
              "Step the env and count the step in its TimeLimit; return the five values."),
};

/* Fill the checks of the layers in `passed`, a tuple of (layer, names of flags, next layer). The
 * caller keeps the tuple. -1 with an exception. */
static int
find_checks(PyObject *passed, layer_check *checks)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(passed); i++) {
        layer_check *check = &checks[i];
        PyObject *flags;
        *check = (layer_check){0};
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(passed, i), "OO!O", &check->layer, &PyTuple_Type,
                              &flags, &check->next)) {
            return -1;
        }
        if (PyTuple_GET_SIZE(flags) > MAX_FLAGS) {
            PyErr_Format(PyExc_ValueError, "at most %d flags", MAX_FLAGS);
            return -1;
        }
        for (Py_ssize_t j = 0; j < PyTuple_GET_SIZE(flags); j++) {
            check->flags[j] = PyTuple_GET_ITEM(flags, j);
        }
        check->type = Py_TYPE(check->layer);
        check->version = check->type->tp_version_tag;
        if (check->version == 0) { /* it does not show changes: take all layers */
            check->type = NULL;
        }
    }
    return 0;
}

PyObject *
vecenv_counted(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    PyObject *first, *env, *limit, *unpack, *passed;
    if (!PyArg_ParseTuple(arguments, "OOOOO!:counted", &first, &env, &limit, &unpack,
                          &PyTuple_Type, &passed)) {
        return NULL;
    }
    Py_ssize_t nbytes = PyTuple_GET_SIZE(passed) * (Py_ssize_t)sizeof(layer_check);
    PyObject *checks = PyByteArray_FromStringAndSize(NULL, nbytes);
    if (checks == NULL || find_checks(passed, (layer_check *)PyByteArray_AS_STRING(checks)) < 0) {
        Py_XDECREF(checks);
        return NULL;
    }
    PyObject *names[NUM_NAMES];
    for (int i = 0; i < NUM_NAMES; i++) { /* interned: else each lookup compares the strings */
        names[i] = PyUnicode_InternFromString(name_strings[i]);
    }
    /* "N" takes ownership of a reference; a NULL makes the result NULL. */
    PyObject *bound =
        Py_BuildValue("(OOOOONiNNNNN)", first, env, limit, unpack, passed, checks, 1,
                      names[NAME_STEP], names[NAME_OWN_STEP], names[NAME_ENV],
                      names[NAME_ELAPSED], names[NAME_MOST]);
    PyObject *function = bound == NULL ? NULL : PyCFunction_New(&step_method, bound);
    Py_XDECREF(bound);
    return function;
}
