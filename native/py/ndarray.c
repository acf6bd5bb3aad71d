#include "py/ndarray.h"

#include <string.h>

static int
agree_on_array(PyObject *array, int is_contiguous)
{
    const vecenv_ndarray *fields = (const void *)array;
    PyObject *dtype = PyObject_GetAttrString(array, "dtype");
    Py_buffer buffer;
    if (dtype == NULL) {
        return -1;
    }
    if (PyObject_GetBuffer(array, &buffer, PyBUF_STRIDES) < 0) {
        Py_DECREF(dtype);
        return -1;
    }
    size_t nbytes = (size_t)buffer.ndim * sizeof(Py_ssize_t);
    int agree = fields->data == buffer.buf && fields->ndim == buffer.ndim && fields->dtype == dtype
                && memcmp(fields->shape, buffer.shape, nbytes) == 0
                && memcmp(fields->strides, buffer.strides, nbytes) == 0
                && (fields->flags & VECENV_NDARRAY_C) == is_contiguous;
    PyBuffer_Release(&buffer);
    Py_DECREF(dtype);
    return agree;
}

int
vecenv_is_ndarray(PyTypeObject *type)
{
    if (type->tp_basicsize < (Py_ssize_t)sizeof(vecenv_ndarray)) {
        return 0;
    }
    PyObject *array = PyObject_CallFunction((PyObject *)type, "((ii)s)", 2, 3, "f4");
    PyObject *turned = array == NULL ? NULL : PyObject_GetAttrString(array, "T");
    int agree = turned == NULL ? -1 : agree_on_array(array, 1);
    if (agree == 1) {
        agree = agree_on_array(turned, 0);
    }
    Py_XDECREF(turned);
    Py_XDECREF(array);
    return agree;
}
