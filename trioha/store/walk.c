/* The walks over a log's records, as machine code: `trioha.store._walk`.
 *
 * `hatch_build.py` compiles this file where a C compiler is; `store.compiled` imports the module if it fits
 * this file. The plain loops of `store.record_layout` are the same work in Python. As the loops of
 * `store.kernel` these report no fault: they pass common records (V1, IPv4 hosts, whole), stop before the
 * first other one, and the plain code decides what that is.
 *
 * It is C, not compiled Python, for two reasons: it reads any buffer where it lies (compiled Python reads
 * `bytes` only, so each stretch of a log had to be copied), and it calls the CRC of ISA-L itself. A call from
 * Python for each body, with a copy of that body, takes twice as long as the CRC.
 *
 * No byte outside of [at, end) of the buffer is read.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <dlfcn.h>
#include <stdint.h>

#ifndef SOURCE_SHA256
#define SOURCE_SHA256 ""
#endif

#define MAGIC_V1 0xDAA320A7u
#define MAGIC_V2 0xDAA320ABu
#define HOSTS_V6 0x30u
#define CRC_MASK 0x7FFFFFFFu
#define BODY_AT 88
#define RECORD_BYTES_MIN 91
#define TOPIC_BYTES_MAX 127
/* Walks of more bytes let other threads run: they take more than 0.1 ms. */
#define HELD_BYTES_MAX (1 << 20)

/* ISA-L's `crc32_gzip_refl`: the CRC-32 of zlib. */
typedef uint32_t (*crc32_function)(uint32_t before, const unsigned char *data, uint64_t size);

static crc32_function crc32_of_isal = NULL;

typedef struct {
    int64_t at;
    int64_t records;
    int64_t last_at;
} walked;

static uint32_t
read_u16(const unsigned char *data)
{
    return (uint32_t)data[0] << 8 | data[1];
}

static uint32_t
read_u32(const unsigned char *data)
{
    return (uint32_t)data[0] << 24 | (uint32_t)data[1] << 16 | (uint32_t)data[2] << 8 | data[3];
}

static int64_t
read_i32(const unsigned char *data)
{
    return (int32_t)read_u32(data);
}

static int64_t
read_i64(const unsigned char *data)
{
    return (int64_t)((uint64_t)read_u32(data) << 32 | read_u32(data + 4));
}

/* Size of the common record at `record`, of whose bytes `left` are there; 0 for any other. */
static int64_t
common_size(const unsigned char *record, int64_t left, int64_t physical_offset, int check_crc)
{
    int64_t size = read_i32(record);
    int64_t body_bytes = read_i32(record + BODY_AT - 4);
    if (read_u32(record + 4) != MAGIC_V1 || (read_u32(record + 36) & HOSTS_V6) != 0 || size > left
        || read_i64(record + 28) != physical_offset || body_bytes < 0
        || RECORD_BYTES_MIN + body_bytes > size) {
        return 0;
    }
    int64_t topic_bytes = record[BODY_AT + body_bytes];
    int64_t properties_at = RECORD_BYTES_MIN + body_bytes + topic_bytes;
    if (topic_bytes > TOPIC_BYTES_MAX || properties_at > size
        || properties_at + (int16_t)read_u16(record + properties_at - 2) != size) {
        return 0;
    }
    if (check_crc
        && (crc32_of_isal(0, record + BODY_AT, (uint64_t)body_bytes) & CRC_MASK) != read_u32(record + 8)) {
        return 0;
    }
    return size;
}

static walked
pass_records(const unsigned char *data, int64_t at, int64_t end, int64_t shift, int check_crc)
{
    walked result = {at, 0, -1};
    while (end - result.at >= RECORD_BYTES_MIN) {
        int64_t size = common_size(data + result.at, end - result.at, result.at + shift, check_crc);
        if (size == 0) {
            break;
        }
        result.last_at = result.at;
        result.records += 1;
        result.at += size;
    }
    return result;
}

static walked
pass_boundaries(const unsigned char *data, int64_t at, int64_t end, int64_t shift)
{
    walked result = {at, 0, -1};
    while (end - result.at >= RECORD_BYTES_MIN) {
        const unsigned char *record = data + result.at;
        int64_t size = read_i32(record);
        uint32_t magic = read_u32(record + 4);
        if ((magic != MAGIC_V1 && magic != MAGIC_V2) || read_i64(record + 28) != result.at + shift
            || size > end - result.at || size < RECORD_BYTES_MIN) {
            break;
        }
        result.last_at = result.at;
        result.records += 1;
        result.at += size;
    }
    return result;
}

enum { BOUNDARIES = -1 };

/* `arguments` are buffer, at, end and shift; `check` is whether CRCs are checked, or BOUNDARIES. */
static PyObject *
walk(PyObject *const *arguments, int check)
{
    int64_t at = PyLong_AsLongLong(arguments[1]);
    int64_t end = PyLong_AsLongLong(arguments[2]);
    int64_t shift = PyLong_AsLongLong(arguments[3]);
    if (PyErr_Occurred()) {
        return NULL;
    }
    Py_buffer view;
    if (PyObject_GetBuffer(arguments[0], &view, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    if (at < 0 || at > end || end > view.len || (shift > 0 && end > INT64_MAX - shift)) {
        PyBuffer_Release(&view);
        PyErr_SetString(PyExc_ValueError, "at, end and shift do not fit the buffer");
        return NULL;
    }
    walked result;
    PyThreadState *thread = end - at > HELD_BYTES_MAX ? PyEval_SaveThread() : NULL;
    if (check == BOUNDARIES) {
        result = pass_boundaries(view.buf, at, end, shift);
    }
    else {
        result = pass_records(view.buf, at, end, shift, check);
    }
    if (thread != NULL) {
        PyEval_RestoreThread(thread);
    }
    PyBuffer_Release(&view);
    return Py_BuildValue("LLL", (long long)result.at, (long long)result.records, (long long)result.last_at);
}

static int
has_arguments(Py_ssize_t given, Py_ssize_t wanted)
{
    if (given != wanted) {
        PyErr_Format(PyExc_TypeError, "%zd arguments expected, got %zd", wanted, given);
    }
    return given == wanted;
}

PyDoc_STRVAR(walk_records_doc,
"walk_records(data, at, end, shift, check_crc)\n--\n\n"
"Pass common records from data[at] on; the one at `at` must name the offset `at + shift`.\n\n"
"Returns the index after them, how many they were, and the index of the last one, -1 without any.");

static PyObject *
walk_records(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    (void)module;
    if (!has_arguments(count, 5)) {
        return NULL;
    }
    int check_crc = PyObject_IsTrue(arguments[4]);
    if (check_crc < 0) {
        return NULL;
    }
    if (check_crc && crc32_of_isal == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "find_crc32 has not found a CRC");
        return NULL;
    }
    return walk(arguments, check_crc);
}

PyDoc_STRVAR(walk_boundaries_doc,
"walk_boundaries(data, at, end, shift)\n--\n\n"
"As walk_records, but of each record only length, magic and physical offset are looked at.");

static PyObject *
walk_boundaries(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    (void)module;
    return has_arguments(count, 4) ? walk(arguments, BOUNDARIES) : NULL;
}

PyDoc_STRVAR(find_crc32_doc,
"find_crc32(path)\n--\n\n"
"Whether the loaded library at that path, or one that it needs, has ISA-L's CRC-32: CRCs can be checked then.");

static PyObject *
find_crc32(PyObject *module, PyObject *argument)
{
    (void)module;
    PyObject *path = NULL;
    if (!PyUnicode_FSConverter(argument, &path)) {
        return NULL;
    }
    crc32_function found = NULL;
    void *library = dlopen(PyBytes_AS_STRING(path), RTLD_NOW | RTLD_NOLOAD);
    Py_DECREF(path);
    if (library != NULL) {
        /* The library stays loaded: Python never unloads a module. */
        *(void **)&found = dlsym(library, "crc32_gzip_refl");
        dlclose(library);
    }
    if (found != NULL && found(0, (const unsigned char *)"123456789", 9) == 0xCBF43926u) {
        crc32_of_isal = found;
    }
    return PyBool_FromLong(crc32_of_isal != NULL);
}

static PyMethodDef methods[] = {
    {"walk_records", (PyCFunction)(void (*)(void))walk_records, METH_FASTCALL, walk_records_doc},
    {"walk_boundaries", (PyCFunction)(void (*)(void))walk_boundaries, METH_FASTCALL, walk_boundaries_doc},
    {"find_crc32", find_crc32, METH_O, find_crc32_doc},
    {NULL, NULL, 0, NULL},
};

static int
execute(PyObject *module)
{
    return PyModule_AddStringConstant(module, "SOURCE_SHA256", SOURCE_SHA256);
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, execute}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "trioha.store._walk", "Walks over a log's records.", 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit__walk(void)
{
    return PyModuleDef_Init(&definition);
}
