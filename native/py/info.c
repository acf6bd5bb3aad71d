#include "py/info.h"

#include <stdlib.h>
#include <string.h>

#include "py/buffers.h"
#include "py/tree.h"

#define MARK_MORE '\x1d'
#define MARK_SHAPE '\x1e'
#define MARK_INNER '\x1f'

/* ---- the table ------------------------------------------------------------------------ */

static int
is_called(const info_field *field, PyObject *key)
{
    return field->name == key
           || (PyUnicode_Check(key) && PyUnicode_Compare(field->name, key) == 0);
}

/* Return the index of the field `key` of the dict with this level, or -1. `hint` is checked first:
 * the index of the field that followed in the previous info. */
static int
find(const info_table *table, PyObject *key, int level, uint32_t hint)
{
    if (hint < table->num_fields && table->fields[hint].level == level
        && is_called(&table->fields[hint], key)) {
        return (int)hint;
    }
    for (uint32_t i = 0; i < table->num_fields; i++) {
        if (table->fields[i].level == level && is_called(&table->fields[i], key)) {
            return (int)i;
        }
    }
    return -1;
}

static void
read_shape(info_field *field, const char *text)
{
    field->ndim = 0;
    while (field->ndim < VECENV_INFO_DIMS) {
        char *end;
        Py_ssize_t size = (Py_ssize_t)strtol(text, &end, 10);
        size = size < 1 || size > VECENV_INFO_ELEMENTS ? VECENV_INFO_KEYS : size; /* fits nothing */
        field->shape[field->ndim++] = size;
        field->num_cells *= (uint32_t)size;
        if (*end != ',') {
            return;
        }
        text = end + 1;
    }
}

/* Add the fields of one table entry. If there is no room for a field, it is left out. -1 with an
 * exception. */
static int
learn(info_table *table, const char *entry, uint32_t cell)
{
    if (*entry == MARK_MORE) {
        return 0;
    }
    const char *shape = strchr(entry, MARK_SHAPE);
    const char *end = shape != NULL ? shape : entry + strlen(entry);
    int level = 0;
    for (const char *part = entry;; ) {
        const char *stop = memchr(part, MARK_INNER, (size_t)(end - part));
        PyObject *name = PyUnicode_FromStringAndSize(
            part, (stop != NULL ? stop : end) - part);
        if (name == NULL) {
            return -1;
        }
        PyUnicode_InternInPlace(&name);
        int index = find(table, name, level, 0);
        if (index >= 0) {
            Py_DECREF(name);
        } else if (table->num_fields == VECENV_INFO_KEYS * VECENV_INFO_DEPTH) {
            Py_DECREF(name);
            return 0;
        } else {
            index = (int)table->num_fields++;
            table->fields[index] = (info_field){
                .name = name, .level = level, .inner = -1, .cell = cell,
                .num_cells = 1, .ndim = -1,
            };
            if (stop != NULL) {
                table->fields[index].inner = ++table->last_level;
            } else if (shape != NULL) {
                read_shape(&table->fields[index], shape + 1);
            }
        }
        if (stop == NULL) {
            return 0;
        }
        level = table->fields[index].inner;
        part = stop + 1;
    }
}

/* Only the parent writes the table, and checks each entry. So an entry that does not fit ends this
 * process, as END_STRAY in worker/slot.h does. */
static int
refresh(const vecenv_arena *arena, info_table *table)
{
    uint32_t count = load_acquire32(&arena->control->num_info_keys);
    if (count > VECENV_INFO_KEYS) {
        Py_FatalError("the memory of this pool has been overwritten: the number of info keys");
    }
    while (table->num_cells < count) {
        char entry[VECENV_INFO_KEY_NBYTES];
        memcpy(entry, arena->info_keys + (size_t)table->num_cells * sizeof entry, sizeof entry);
        if (entry[sizeof entry - 1] != 0) {
            Py_FatalError("the memory of this pool has been overwritten: an info key");
        }
        if (learn(table, entry, table->num_cells) < 0) {
            if (PyErr_ExceptionMatches(PyExc_UnicodeDecodeError)) {
                Py_FatalError("the memory of this pool has been overwritten: an info key");
            }
            return -1;
        }
        table->num_cells++;
    }
    return 0;
}

void
info_clear(info_table *table)
{
    for (uint32_t i = 0; i < table->num_fields; i++) {
        Py_CLEAR(table->fields[i].name);
    }
    table->num_fields = 0;
    for (uint32_t i = 0; i < table->num_scalars; i++) {
        Py_CLEAR(table->scalars[i].type);
    }
    table->num_scalars = 0;
}

/* ---- values ----------------------------------------------------------------------------- */

static uint8_t
tag_of(int kind, size_t nbytes)
{
    return (uint8_t)(kind << 4 | (int)nbytes);
}

/* Return the tag of the numbers in a buffer; 0 if they cannot have cells. */
static uint8_t
tag_of_buffer(const Py_buffer *buffer)
{
    if (buffer->itemsize > 8) {
        return 0;
    }
    switch (format_kind(buffer->format)) {
    case 'f': return tag_of(INFO_FLOAT, (size_t)buffer->itemsize);
    case 'i': return tag_of(INFO_INT, (size_t)buffer->itemsize);
    case 'u': return tag_of(INFO_UINT, (size_t)buffer->itemsize);
    case 'b': return tag_of(INFO_BOOL, (size_t)buffer->itemsize);
    default: return 0;
    }
}

static void
learn_scalar(info_table *table, PyObject *value, const Py_buffer *buffer, uint8_t tag)
{
    size_t offset = (size_t)((const char *)buffer->buf - (const char *)value);
    size_t size = (size_t)Py_TYPE(value)->tp_basicsize;
    if (table->num_scalars < VECENV_INFO_SCALARS && offset <= size
        && (size_t)buffer->len <= size - offset) {
        table->scalars[table->num_scalars++] = (info_scalar){
            .type = (PyTypeObject *)Py_NewRef(Py_TYPE(value)), .offset = offset, .tag = tag,
        };
    }
}

static int
read_numpy_scalar(info_table *table, PyObject *value, uint8_t *tag, uint64_t *cell)
{
    for (uint32_t i = 0; i < table->num_scalars; i++) {
        const info_scalar *known = &table->scalars[i];
        if (Py_IS_TYPE(value, known->type)) {
            *tag = known->tag;
            *cell = 0;
            memcpy(cell, (const char *)value + known->offset, known->tag & 15);
            return 1;
        }
    }
    Py_buffer buffer;
    if (PyObject_GetBuffer(value, &buffer, PyBUF_FORMAT | PyBUF_ND) < 0) {
        PyErr_Clear();
        return 0;
    }
    *tag = buffer.ndim == 0 ? tag_of_buffer(&buffer) : 0;
    if (*tag != 0) {
        *cell = 0;
        memcpy(cell, buffer.buf, (size_t)buffer.len);
        learn_scalar(table, value, &buffer, *tag);
    }
    PyBuffer_Release(&buffer);
    return *tag != 0;
}

static int
read_number(info_table *table, PyObject *value, uint8_t *tag, uint64_t *cell)
{
    if (PyFloat_CheckExact(value)) {
        double number = PyFloat_AS_DOUBLE(value);
        memcpy(cell, &number, sizeof number);
        *tag = tag_of(INFO_PY_FLOAT, 8);
        return 1;
    }
    if (PyBool_Check(value)) {
        *cell = value == Py_True;
        *tag = tag_of(INFO_PY_BOOL, 1);
        return 1;
    }
    if (PyLong_CheckExact(value)) {
        int overflow;
        long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
        *cell = (uint64_t)number;
        *tag = tag_of(INFO_PY_INT, 8);
        return overflow == 0;
    }
    return PyObject_TypeCheck(value, table->scalar_type)
           && read_numpy_scalar(table, value, tag, cell);
}

/* Get the buffer of an array. Returns 1, or 0 if the value is not an array that can have cells. */
static int
open_array(const info_table *table, PyObject *value, Py_buffer *buffer)
{
    if (Py_TYPE(value) != table->array_type) {
        return 0;
    }
    if (PyObject_GetBuffer(value, buffer, PyBUF_FORMAT | PyBUF_STRIDES) < 0) {
        PyErr_Clear();
        return 0;
    }
    Py_ssize_t size = 1;
    for (int i = 0; i < buffer->ndim; i++) {
        size *= buffer->shape[i];
    }
    if (buffer->ndim >= 1 && buffer->ndim <= VECENV_INFO_DIMS && size >= 1
        && size <= VECENV_INFO_ELEMENTS && tag_of_buffer(buffer) != 0) {
        return 1;
    }
    PyBuffer_Release(buffer);
    return 0;
}

static void
copy_elements(const Py_buffer *buffer, uint64_t *cells, uint32_t count)
{
    Py_ssize_t index[VECENV_INFO_DIMS] = {0};
    for (uint32_t i = 0; i < count; i++) {
        const char *element = buffer->buf;
        for (int dim = 0; dim < buffer->ndim; dim++) {
            element += index[dim] * buffer->strides[dim];
        }
        cells[i] = 0;
        memcpy(&cells[i], element, (size_t)buffer->itemsize);
        for (int dim = buffer->ndim - 1; dim >= 0; dim--) {
            if (++index[dim] < buffer->shape[dim]) {
                break;
            }
            index[dim] = 0;
        }
    }
}

static int
read_array(const info_table *table, const info_field *field, PyObject *value,
           info_cells *cells)
{
    Py_buffer buffer;
    /* the parent may have added its last cells after this worker's last refresh */
    if (field->cell + field->num_cells > table->num_cells
        || !open_array(table, value, &buffer)) {
        return 0;
    }
    int fits = buffer.ndim == field->ndim;
    for (int i = 0; fits && i < field->ndim; i++) {
        fits = buffer.shape[i] == field->shape[i];
    }
    if (fits) {
        memset(&cells->tags[field->cell], tag_of_buffer(&buffer), field->num_cells);
        copy_elements(&buffer, &cells->values[field->cell], field->num_cells);
    }
    PyBuffer_Release(&buffer);
    return fits;
}

/* Return whether a value, or a value in a nested dict, could have cells. */
static int
is_fit(info_table *table, PyObject *key, PyObject *value, int depth)
{
    uint8_t tag;
    uint64_t cell;
    Py_buffer buffer;
    if (!PyUnicode_Check(key)) {
        return 0;
    }
    if (PyDict_Check(value)) {
        PyObject *inner_key, *inner;
        Py_ssize_t position = 0;
        while (depth < VECENV_INFO_DEPTH
               && PyDict_Next(value, &position, &inner_key, &inner)) {
            if (is_fit(table, inner_key, inner, depth + 1)) {
                return 1;
            }
        }
        return 0;
    }
    if (open_array(table, value, &buffer)) {
        PyBuffer_Release(&buffer);
        return 1;
    }
    return read_number(table, value, &tag, &cell);
}

/* ---- infos ------------------------------------------------------------------------------ */

typedef struct {
    info_table *table;
    info_cells *cells;
    int leaves_out; /* INFOS_COLUMNS: values that cannot have cells are left out */
    uint32_t hint;
} reader;

/* Read a dict into cells. Returns the number of values read; -1 if the info must be sent as a
 * message. */
static int
read_dict(reader *self, PyObject *dict, int level, int depth)
{
    PyObject *key, *value;
    Py_ssize_t position = 0;
    int count = 0;
    while (PyDict_Next(dict, &position, &key, &value)) {
        int index = find(self->table, key, level, self->hint);
        int is_read = 0;
        if (index >= 0) {
            const info_field *field = &self->table->fields[index];
            self->hint = (uint32_t)index + 1;
            if (field->inner >= 0) {
                is_read = PyDict_Check(value)
                          && read_dict(self, value, field->inner, depth + 1) > 0;
            } else {
                is_read = field->ndim >= 0
                              ? read_array(self->table, field, value, self->cells)
                              : read_number(self->table, value,
                                            &self->cells->tags[field->cell],
                                            &self->cells->values[field->cell]);
                uint32_t end = field->cell + field->num_cells;
                if (is_read && self->cells->used < end) {
                    self->cells->used = end;
                }
            }
        }
        if (!is_read) {
            if (!self->leaves_out || is_fit(self->table, key, value, depth)) {
                return -1;
            }
            if (index >= 0) { /* read_number may have set the tag of a number that is too long */
                self->cells->tags[self->table->fields[index].cell] = INFO_ABSENT;
            }
        }
        count += is_read;
    }
    return count;
}

int
info_read(const vecenv_arena *arena, info_table *table, PyObject *info, int infos,
          info_cells *cells)
{
    if (refresh(arena, table) < 0) {
        return -1;
    }
    reader self = {.table = table, .cells = cells, .leaves_out = infos == INFOS_COLUMNS};
    if (table->num_cells == 0 && !self.leaves_out) {
        return 0;
    }
    memset(cells->tags, INFO_ABSENT, sizeof cells->tags);
    cells->used = 0;
    return read_dict(&self, info, 0, 1) >= 0;
}

void
info_store(const vecenv_arena *arena, const info_cells *cells, int tags_word,
           uint32_t block, uint32_t row)
{
    memcpy(column(arena, block, tags_word) + (size_t)row * VECENV_INFO_KEYS, cells->tags,
           VECENV_INFO_KEYS);
    uint64_t *values = (uint64_t *)(void *)column(arena, block, tags_word + 1)
                       + (size_t)row * VECENV_INFO_KEYS;
    for (uint32_t i = 0; i < cells->used; i++) {
        if (cells->tags[i] != INFO_ABSENT) {
            values[i] = cells->values[i];
        }
    }
}
