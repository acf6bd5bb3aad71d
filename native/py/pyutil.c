#include "py/pyutil.h"

int
vecenv_attach(vecenv_arena *arena, const Py_buffer *mapping, const Py_buffer *counters)
{
    int error = vecenv_arena_open(arena, mapping->buf, (size_t)mapping->len);
    if (error == VECENV_OK) {
        error = vecenv_counters_open(arena, counters->buf, (size_t)counters->len);
    }
    if (error == VECENV_EFORMAT) {
        PyErr_Format(PyExc_ValueError, "not an arena of this build (ABI %d)", VECENV_ABI);
    } else if (error == VECENV_ESIZE) {
        PyErr_SetString(PyExc_ValueError, "the mapping is shorter than its arena");
    }
    return error;
}

int
vecenv_add_type(PyObject *module, PyType_Spec *spec)
{
    PyObject *type = PyType_FromModuleAndSpec(module, spec, NULL);
    if (type == NULL) {
        return -1;
    }
    int result = PyModule_AddType(module, (PyTypeObject *)type);
    Py_DECREF(type);
    return result;
}

int
vecenv_add_constants(PyObject *module, const vecenv_constant *constants, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        PyObject *value = PyLong_FromLongLong(constants[i].value);
        int result = PyModule_AddObjectRef(module, constants[i].name, value);
        Py_XDECREF(value);
        if (result < 0) {
            return -1;
        }
    }
    return 0;
}
