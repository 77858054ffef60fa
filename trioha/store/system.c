/* What Python's own modules do not offer: `trioha.store._system`.
 *
 * `hatch_build.py` compiles this file where a C compiler is; its functions replace those of `store/system.py`
 * (`trioha.compiled`). A handler of SIGBUS must not run Python.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#ifndef SOURCE_SHA256
#define SOURCE_SHA256 ""
#endif

static int
has_arguments(Py_ssize_t given, Py_ssize_t wanted)
{
    if (given != wanted) {
        PyErr_Format(PyExc_TypeError, "%zd arguments expected, got %zd", wanted, given);
    }
    return given == wanted;
}

PyDoc_STRVAR(read_spans_doc,
"read_spans(fd, spans, size)\n--\n\n"
"Bytes of a file from each (start, size) of a list on, one after the other; their sizes add up to `size`.\n\n"
"None if the disk does not give all of them.");

/* Read the spans to data; 1 if all bytes are there, 0 if not, -1 with an exception. */
static int
read_each(int fd, PyObject *spans, char *data, Py_ssize_t left)
{
    for (Py_ssize_t number = 0; number < PyList_GET_SIZE(spans); number++) {
        long long start, size;
        PyObject *span = PyList_GET_ITEM(spans, number);
        if (!PyTuple_Check(span) || !PyArg_ParseTuple(span, "LL", &start, &size)) {
            if (!PyErr_Occurred()) {
                PyErr_SetString(PyExc_TypeError, "a span is a tuple");
            }
            return -1;
        }
        if (start < 0 || size < 0 || size > left) {
            PyErr_SetString(PyExc_ValueError, "a span is negative, or longer than all of them");
            return -1;
        }
        if (pread(fd, data, (size_t)size, (off_t)start) != size) {
            return 0;
        }
        data += size;
        left -= size;
    }
    return left == 0;
}

static PyObject *
read_spans(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    (void)module;
    if (!has_arguments(count, 3)) {
        return NULL;
    }
    int fd = (int)PyLong_AsLong(arguments[0]);
    Py_ssize_t size = PyLong_AsSsize_t(arguments[2]);
    if (PyErr_Occurred()) {
        return NULL;
    }
    if (!PyList_CheckExact(arguments[1]) || size < 0) {
        PyErr_SetString(PyExc_TypeError, "a list of spans and a size are needed");
        return NULL;
    }
    PyObject *data = PyBytes_FromStringAndSize(NULL, size);
    if (data == NULL) {
        return NULL;
    }
    int found = read_each(fd, arguments[1], PyBytes_AS_STRING(data), size);
    if (found > 0) {
        return data;
    }
    Py_DECREF(data);
    if (found < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

/* Maps of files whose names the handler of SIGBUS knows. A log has two or three, the index a few. */
#define MAPS_MAX 64
#define PATH_BYTES_MAX 1024
typedef struct {
    volatile uintptr_t start;
    size_t bytes;
    int64_t first_offset;
    char path[PATH_BYTES_MAX];
} named_map;
static named_map maps[MAPS_MAX];
static struct sigaction bus_before;
static int names_faults = 0;

static void
write_error(const char *data, size_t size)
{
    if (write(STDERR_FILENO, data, size) < 0) {
        /* Nobody reads it. */
    }
}

static void
write_text(const char *text)
{
    write_error(text, strlen(text));
}

/* A load or store in a map whose page the disk does not give: the process cannot go on. Only functions that a
   handler may call are used. */
static void
on_bus_error(int number, siginfo_t *info, void *context)
{
    (void)context;
    sigaction(SIGBUS, &bus_before, NULL);
    write_text("trioha: ");
    uintptr_t address = (uintptr_t)info->si_addr;
    for (int slot = 0; info->si_code > 0 && slot < MAPS_MAX; slot++) {
        const named_map *map = &maps[slot];
        if (map->start == 0 || address < map->start || address - map->start >= map->bytes) {
            continue;
        }
        uint64_t offset = (uint64_t)map->first_offset + (address - map->start);
        char digits[20];
        size_t at = sizeof(digits);
        do {
            digits[--at] = (char)('0' + offset % 10);
            offset /= 10;
        } while (offset > 0);
        write_text(map->path);
        write_text(" at offset ");
        write_error(digits + at, sizeof(digits) - at);
        write_text(": ");
        break;
    }
    write_text("the disk does not give a page that is mapped (SIGBUS), the process ends; check the disk\n");
    if (info->si_code <= 0) {
        raise(number);
    }
    /* The access that has failed is made again, and ends the process. */
}

PyDoc_STRVAR(name_map_doc,
"name_map(data, path, first_offset)\n--\n\n"
"Name the file that is mapped at data, and the offset of its first byte, in the line that the process leaves\n"
"when the disk ends it there. Of the 65th map and of longer paths nothing is kept.");

static PyObject *
name_map(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    (void)module;
    if (!has_arguments(count, 3)) {
        return NULL;
    }
    int64_t first_offset = PyLong_AsLongLong(arguments[2]);
    if (PyErr_Occurred()) {
        return NULL;
    }
    if (!PyBytes_CheckExact(arguments[1])) {
        PyErr_SetString(PyExc_TypeError, "the path is bytes");
        return NULL;
    }
    Py_buffer view;
    if (PyObject_GetBuffer(arguments[0], &view, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    if (!names_faults) {
        struct sigaction action = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO};
        sigemptyset(&action.sa_mask);
        names_faults = sigaction(SIGBUS, &action, &bus_before) == 0;
    }
    for (int slot = 0; PyBytes_GET_SIZE(arguments[1]) < PATH_BYTES_MAX && slot < MAPS_MAX; slot++) {
        named_map *map = &maps[slot];
        if (map->start == 0) {
            map->bytes = (size_t)view.len;
            map->first_offset = first_offset;
            strcpy(map->path, PyBytes_AS_STRING(arguments[1]));
            map->start = (uintptr_t)view.buf;
            break;
        }
    }
    PyBuffer_Release(&view);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(forget_map_doc,
"forget_map(data)\n--\n\n"
"The map at data ends.");

static PyObject *
forget_map(PyObject *module, PyObject *argument)
{
    (void)module;
    Py_buffer view;
    if (PyObject_GetBuffer(argument, &view, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    for (int slot = 0; slot < MAPS_MAX; slot++) {
        if (maps[slot].start == (uintptr_t)view.buf) {
            maps[slot].start = 0;
        }
    }
    PyBuffer_Release(&view);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"read_spans", (PyCFunction)(void (*)(void))read_spans, METH_FASTCALL, read_spans_doc},
    {"name_map", (PyCFunction)(void (*)(void))name_map, METH_FASTCALL, name_map_doc},
    {"forget_map", forget_map, METH_O, forget_map_doc},
    {NULL, NULL, 0, NULL},
};

static int
execute(PyObject *module)
{
    return PyModule_AddStringConstant(module, "SOURCE_SHA256", SOURCE_SHA256);
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, execute}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "trioha.store._system", "Reads of spans, and the line of a SIGBUS.", 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit__system(void)
{
    return PyModuleDef_Init(&definition);
}
