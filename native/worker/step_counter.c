/* Step counter: steps an env and counts its steps like Gymnasium's TimeLimit, in the TimeLimit
 * itself. It is between the slot and the env if the worker steps past the wrappers of
 * `gymnasium.make`. core/host/shortcut.py contains the conditions, and the same in Python. */
#include "worker/step_counter.h"

/* The attributes that each step looks up. */
enum { NAME_STEP, NAME_ELAPSED, NAME_MOST, NUM_NAMES };

static const char *const name_strings[NUM_NAMES] = {"step", "_elapsed_steps", "_max_episode_steps"};

/* Items of the tuple that the function is bound to; the names follow last. */
enum { BOUND_ENV, BOUND_LIMIT, BOUND_UNPACK, BOUND_ONE, BOUND_NAMES };

static PyObject *
name_of(PyObject *bound, int which)
{
    return PyTuple_GET_ITEM(bound, BOUND_NAMES + which);
}

/* Count a step. Returns whether it was the last step that the limit allows; -1 with an exception.
 * Attributes are looked up without `__getattr__`, which wrappers use to forward to their env. */
static int
count(PyObject *bound)
{
    PyObject *limit = PyTuple_GET_ITEM(bound, BOUND_LIMIT);
    PyObject *one = PyTuple_GET_ITEM(bound, BOUND_ONE);
    PyObject *before = PyObject_GenericGetAttr(limit, name_of(bound, NAME_ELAPSED));
    PyObject *elapsed = before == NULL ? NULL : PyNumber_Add(before, one);
    PyObject *most = NULL;
    if (elapsed != NULL && PyObject_SetAttr(limit, name_of(bound, NAME_ELAPSED), elapsed) == 0) {
        most = PyObject_GenericGetAttr(limit, name_of(bound, NAME_MOST));
    }
    int is_over = most == NULL ? -1 : PyObject_RichCompareBool(elapsed, most, Py_GE);
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
    PyObject *arguments[] = {PyTuple_GET_ITEM(bound, BOUND_ENV), action};
    PyObject *result = PyObject_VectorcallMethod(name_of(bound, NAME_STEP), arguments, 2, NULL);
    PyObject *values = result == NULL ? NULL : as_five_values(bound, result);
    Py_XDECREF(result);
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

PyObject *
vecenv_counted(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    PyObject *env, *limit, *unpack;
    if (!PyArg_ParseTuple(arguments, "OOO:counted", &env, &limit, &unpack)) {
        return NULL;
    }
    PyObject *names[NUM_NAMES];
    for (int i = 0; i < NUM_NAMES; i++) { /* interned: else each lookup compares the strings */
        names[i] = PyUnicode_InternFromString(name_strings[i]);
    }
    /* "N" takes ownership of a reference; a NULL makes the result NULL. */
    PyObject *bound = Py_BuildValue("(OOOiNNN)", env, limit, unpack, 1, names[NAME_STEP],
                                    names[NAME_ELAPSED], names[NAME_MOST]);
    PyObject *function = bound == NULL ? NULL : PyCFunction_New(&step_method, bound);
    Py_XDECREF(bound);
    return function;
}
