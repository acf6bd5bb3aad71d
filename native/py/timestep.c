/* The same functions in Python are in managers/build.py. */
#include "py/timestep.h"

static PyObject *
make_timestep(PyTypeObject *type, PyObject *obs, PyObject *reward, PyObject *info)
{
    PyObject *timestep = type->tp_alloc(type, 4);
    if (timestep != NULL) {
        PyTuple_SET_ITEM(timestep, 0, Py_NewRef(obs));
        PyTuple_SET_ITEM(timestep, 1, Py_NewRef(reward));
        PyTuple_SET_ITEM(timestep, 2, Py_NewRef(Py_False));
        PyTuple_SET_ITEM(timestep, 3, Py_NewRef(info));
    }
    return timestep;
}

/* Make the lists of timesteps (made[0]) and of their infos (made[1]). -1 with an exception. */
static int
make_timesteps(PyTypeObject *type, PyObject *obs, PyObject *rewards, PyObject *made[2])
{
    Py_ssize_t count = PyList_GET_SIZE(obs);
    made[0] = PyList_New(count);
    made[1] = PyList_New(count);
    for (Py_ssize_t i = 0; made[0] != NULL && made[1] != NULL && i < count; i++) {
        PyObject *info = PyDict_New();
        if (info == NULL) {
            return -1;
        }
        PyList_SET_ITEM(made[1], i, info);
        PyObject *row = make_timestep(type, PyList_GET_ITEM(obs, i),
                                      PyList_GET_ITEM(rewards, i), info);
        if (row == NULL) {
            return -1;
        }
        PyList_SET_ITEM(made[0], i, row);
    }
    return made[0] == NULL || made[1] == NULL ? -1 : 0;
}

PyObject *
vecenv_timesteps(PyObject *Py_UNUSED(module), PyObject *const *arguments, Py_ssize_t count)
{
    if (count != 3 || !PyType_Check(arguments[0])
        || !PyType_IsSubtype((PyTypeObject *)arguments[0], &PyTuple_Type)) {
        PyErr_SetString(PyExc_TypeError,
                        "timesteps: expected a tuple type and two sequences of rows");
        return NULL;
    }
    PyObject *made[2] = {NULL, NULL};
    PyObject *obs = PySequence_List(arguments[1]);
    PyObject *rewards = obs == NULL ? NULL : PySequence_List(arguments[2]);
    PyObject *result = NULL;
    if (rewards != NULL && PyList_GET_SIZE(rewards) != PyList_GET_SIZE(obs)) {
        PyErr_SetString(PyExc_ValueError, "timesteps: expected as many rewards as observations");
    } else if (rewards != NULL
               && make_timesteps((PyTypeObject *)arguments[0], obs, rewards, made) == 0) {
        result = PyTuple_Pack(4, made[0], made[1], obs, rewards);
    }
    Py_XDECREF(made[0]);
    Py_XDECREF(made[1]);
    Py_XDECREF(obs);
    Py_XDECREF(rewards);
    return result;
}

PyObject *
vecenv_common_type(PyObject *Py_UNUSED(module), PyObject *values)
{
    if (!PyList_Check(values)) {
        PyErr_SetString(PyExc_TypeError, "common_type: expected a list");
        return NULL;
    }
    PyTypeObject *kind = NULL;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(values); i++) {
        PyTypeObject *own = Py_TYPE(PyList_GET_ITEM(values, i));
        if (kind != NULL && own != kind) {
            Py_RETURN_NONE;
        }
        kind = own;
    }
    return kind == NULL ? Py_NewRef(Py_None) : Py_NewRef((PyObject *)kind);
}

/* Return item `row` of a list; of an array (n,), a writable view of shape (). */
static PyObject *
take(PyObject *column, Py_ssize_t row)
{
    if (PyList_Check(column)) {
        return Py_NewRef(PyList_GET_ITEM(column, row));
    }
    PyObject *index = Py_BuildValue("(nO)", row, Py_Ellipsis);
    if (index == NULL) {
        return NULL;
    }
    PyObject *item = PyObject_GetItem(column, index);
    Py_DECREF(index);
    return item;
}

static PyObject *
make_children(PyObject *names, PyObject *columns, Py_ssize_t row)
{
    PyObject *children = PyDict_New();
    for (Py_ssize_t i = 0; children != NULL && i < PyTuple_GET_SIZE(names); i++) {
        PyObject *item = take(PyTuple_GET_ITEM(columns, i), row);
        if (item == NULL || PyDict_SetItem(children, PyTuple_GET_ITEM(names, i), item) < 0) {
            Py_CLEAR(children);
        }
        Py_XDECREF(item);
    }
    return children;
}

/* Make an object of `type` and set its only slot. */
static PyObject *
make_tree(PyTypeObject *type, PyObject *slot, PyObject *children)
{
    PyObject *tree = type->tp_alloc(type, 0);
    if (tree != NULL && Py_TYPE(slot)->tp_descr_set(slot, tree, children) < 0) {
        Py_CLEAR(tree);
    }
    return tree;
}

PyObject *
vecenv_trees(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    PyTypeObject *type;
    PyObject *slot, *names, *columns;
    Py_ssize_t count;
    if (!PyArg_ParseTuple(arguments, "O!OnO!O!:trees", &PyType_Type, &type, &slot, &count,
                          &PyTuple_Type, &names, &PyTuple_Type, &columns)) {
        return NULL;
    }
    int fits = PyTuple_GET_SIZE(names) == PyTuple_GET_SIZE(columns) && count >= 0
               && Py_TYPE(slot)->tp_descr_set != NULL && type->tp_itemsize == 0;
    for (Py_ssize_t i = 0; fits && i < PyTuple_GET_SIZE(columns); i++) {
        PyObject *column = PyTuple_GET_ITEM(columns, i);
        fits = !PyList_Check(column) || PyList_GET_SIZE(column) == count;
    }
    if (!fits) {
        PyErr_SetString(PyExc_ValueError,
                        "trees: expected a type, its slot, and one column of `count` per name");
        return NULL;
    }
    PyObject *trees = PyList_New(count);
    for (Py_ssize_t i = 0; trees != NULL && i < count; i++) {
        PyObject *children = make_children(names, columns, i);
        PyObject *tree = children == NULL ? NULL : make_tree(type, slot, children);
        Py_XDECREF(children);
        if (tree == NULL) {
            Py_CLEAR(trees);
        } else {
            PyList_SET_ITEM(trees, i, tree);
        }
    }
    return trees;
}
