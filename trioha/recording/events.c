/* Events of a recording as machine code: `trioha.recording._events`.
 *
 * `hatch_build.py` compiles this file where a C compiler is; `recording.compiled` imports the module if it
 * fits this file. `Recorder` and `recording.writer` do the same work in Python.
 *
 * It is C, not compiled Python, because it writes to a block of events where that lies.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#ifndef SOURCE_SHA256
#define SOURCE_SHA256 ""
#endif

/* Words of 64 bits, little-endian: time; seq; kind, flags, node and connection; offset; aux; size, check. */
#define EVENT_BYTES 48
/* Of a put in `places`: physical offset and queue offset, big-endian. */
#define PLACE_BYTES 16
#define RUN_FIELDS 8

static void
put_i64(unsigned char *at, int64_t value)
{
    for (int byte = 0; byte < 8; byte++) {
        at[byte] = (unsigned char)((uint64_t)value >> 8 * byte);
    }
}

static uint64_t
get_u64(const unsigned char *at)
{
    uint64_t value = 0;
    for (int byte = 7; byte >= 0; byte--) {
        value = value << 8 | at[byte];
    }
    return value;
}

static int64_t
read_place(const unsigned char *at)
{
    uint64_t value = 0;
    for (int byte = 0; byte < 8; byte++) {
        value = value << 8 | at[byte];
    }
    return (int64_t)value;
}

/* The int's value, or the nearest one of 64 bits; sets an error if it is no int. */
static int64_t
nearest_i64(PyObject *number)
{
    int overflow;
    int64_t value = PyLong_AsLongLongAndOverflow(number, &overflow);
    return overflow == 0 ? value : overflow > 0 ? INT64_MAX : INT64_MIN;
}

static int64_t
nearest_i32(int64_t value)
{
    return value > INT32_MAX ? INT32_MAX : value < INT32_MIN ? INT32_MIN : value;
}

/* An event without seq and check. */
static unsigned char *
put_event(unsigned char *at, int64_t time, int64_t word, int64_t offset, int64_t aux, int64_t size)
{
    put_i64(at, time);
    put_i64(at + 8, 0);
    put_i64(at + 16, word);
    put_i64(at + 24, offset);
    put_i64(at + 32, aux);
    put_i64(at + 40, size & UINT32_MAX);
    return at + EVENT_BYTES;
}

/* Write the events of one run; -1 with an error set if it is malformed. */
static int
fill_run(const Py_buffer *block, PyObject *run)
{
    if (!PyTuple_CheckExact(run) || PyTuple_GET_SIZE(run) != RUN_FIELDS) {
        PyErr_SetString(PyExc_TypeError, "a run is a tuple of 8 fields");
        return -1;
    }
    PyObject *places = PyTuple_GET_ITEM(run, 4);
    int64_t position = PyLong_AsLongLong(PyTuple_GET_ITEM(run, 0));
    int64_t time = PyLong_AsLongLong(PyTuple_GET_ITEM(run, 1));
    int64_t word = PyLong_AsLongLong(PyTuple_GET_ITEM(run, 2));
    int64_t second_word = PyLong_AsLongLong(PyTuple_GET_ITEM(run, 3));
    int64_t end_offset = nearest_i64(PyTuple_GET_ITEM(run, 5));
    int64_t request_id = nearest_i64(PyTuple_GET_ITEM(run, 6));
    int64_t value = nearest_i32(nearest_i64(PyTuple_GET_ITEM(run, 7)));
    if (PyErr_Occurred()) {
        return -1;
    }
    if (!PyBytes_CheckExact(places)) {
        PyErr_SetString(PyExc_TypeError, "places are bytes");
        return -1;
    }
    int64_t puts = PyBytes_GET_SIZE(places) / PLACE_BYTES;
    int64_t bytes = puts * EVENT_BYTES * (second_word ? 2 : 1);
    if (position < 0 || position > block->len || bytes > block->len - position) {
        PyErr_SetString(PyExc_ValueError, "a run is outside of its block");
        return -1;
    }
    const unsigned char *place = (const unsigned char *)PyBytes_AS_STRING(places);
    unsigned char *at = (unsigned char *)block->buf + position;
    for (int64_t put = 1; put <= puts; put++) {
        int64_t start = read_place(place);
        place += PLACE_BYTES;
        int64_t end = put < puts ? read_place(place) : end_offset;
        if (second_word) {
            /* The difference of any two offsets is meant: it may need more than 64 bits. */
            int64_t size;
            if (__builtin_sub_overflow(end, start, &size)) {
                size = end > start ? INT64_MAX : INT64_MIN;
            }
            at = put_event(at, time, word, end, request_id, nearest_i32(size));
            at = put_event(at, time, second_word, end, request_id, value);
        } else {
            at = put_event(at, time, word, end, request_id, value);
        }
        request_id += request_id < INT64_MAX;
    }
    return 0;
}

PyDoc_STRVAR(fill_runs_doc,
"fill_runs(block, runs)\n--\n\n"
"Write the events of runs of puts into the places of a block that were left for them, without seq and check.\n\n"
"A run is (position in the block, time in ns, word, second word, places, end offset, first request id, value).\n"
"A word is kind, flags, node and connection. With a second word each put has two events: the first has its size,\n"
"the second `value`; else one, with `value`. Values beyond a field are written as the nearest one that fits.");

static PyObject *
fill_runs(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    (void)module;
    if (count != 2 || !PyList_CheckExact(arguments[1])) {
        PyErr_SetString(PyExc_TypeError, "a block and a list of runs are needed");
        return NULL;
    }
    Py_buffer block;
    if (PyObject_GetBuffer(arguments[0], &block, PyBUF_WRITABLE) < 0) {
        return NULL;
    }
    int is_done = 1;
    for (Py_ssize_t index = 0; is_done && index < PyList_GET_SIZE(arguments[1]); index++) {
        is_done = fill_run(&block, PyList_GET_ITEM(arguments[1], index)) == 0;
    }
    PyBuffer_Release(&block);
    if (!is_done) {
        return NULL;
    }
    Py_RETURN_NONE;
}

PyDoc_STRVAR(number_events_doc,
"number_events(events, seq)\n--\n\n"
"Set the seq of each event, from `seq` on, and its check: the xor of the other eleven words of 32 bits.");

static PyObject *
number_events(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    (void)module;
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "events and a seq are needed");
        return NULL;
    }
    int64_t seq = PyLong_AsLongLong(arguments[1]);
    if (PyErr_Occurred()) {
        return NULL;
    }
    Py_buffer events;
    if (PyObject_GetBuffer(arguments[0], &events, PyBUF_WRITABLE) < 0) {
        return NULL;
    }
    unsigned char *at = events.buf;
    for (Py_ssize_t left = events.len; left >= EVENT_BYTES; left -= EVENT_BYTES, at += EVENT_BYTES) {
        uint64_t size = get_u64(at + 40) & UINT32_MAX;
        uint64_t mixed = get_u64(at) ^ (uint64_t)seq ^ get_u64(at + 16) ^ get_u64(at + 24) ^ get_u64(at + 32) ^ size;
        put_i64(at + 8, seq);
        put_i64(at + 40, (int64_t)(((mixed >> 32 ^ mixed) & UINT32_MAX) << 32 | size));
        seq += seq < INT64_MAX;
    }
    PyBuffer_Release(&events);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(last_events_doc,
"last_events(events)\n--\n\n"
"The last event of each kind, flags, node and connection: that word, signed, and the event's number in `events`.");

/* Most events are of few such words: the last ones are kept outside of the dict, the latest first. */
#define WORDS_KEPT 4

static int
keep_last(PyObject *last, int64_t word, int64_t number)
{
    PyObject *key = PyLong_FromLongLong(word), *value = PyLong_FromLongLong(number);
    int result = key == NULL || value == NULL ? -1 : PyDict_SetItem(last, key, value);
    Py_XDECREF(key);
    Py_XDECREF(value);
    return result;
}

static int
find_last_events(const Py_buffer *events, PyObject *last)
{
    struct {
        int64_t word;
        int64_t number;
    } kept[WORDS_KEPT];
    int used = 0;
    const unsigned char *at = events->buf;
    int64_t count = events->len / EVENT_BYTES;
    for (int64_t number = 0; number < count; number++, at += EVENT_BYTES) {
        int64_t word = (int64_t)get_u64(at + 16);
        int place = 0;
        while (place < used && kept[place].word != word) {
            place++;
        }
        if (place < used) {
            kept[place].number = number;
            continue;
        }
        if (used == WORDS_KEPT) {
            used--;
            if (keep_last(last, kept[used].word, kept[used].number) < 0) {
                return -1;
            }
        }
        memmove(kept + 1, kept, (size_t)used * sizeof(kept[0]));
        kept[0].word = word;
        kept[0].number = number;
        used++;
    }
    while (used > 0) {
        used--;
        if (keep_last(last, kept[used].word, kept[used].number) < 0) {
            return -1;
        }
    }
    return 0;
}

static PyObject *
last_events(PyObject *module, PyObject *argument)
{
    (void)module;
    Py_buffer events;
    if (PyObject_GetBuffer(argument, &events, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    PyObject *last = PyDict_New();
    if (last != NULL && find_last_events(&events, last) < 0) {
        Py_CLEAR(last);
    }
    PyBuffer_Release(&events);
    return last;
}

static PyMethodDef methods[] = {
    {"fill_runs", (PyCFunction)(void (*)(void))fill_runs, METH_FASTCALL, fill_runs_doc},
    {"number_events", (PyCFunction)(void (*)(void))number_events, METH_FASTCALL, number_events_doc},
    {"last_events", last_events, METH_O, last_events_doc},
    {NULL, NULL, 0, NULL},
};

static int
execute(PyObject *module)
{
    return PyModule_AddStringConstant(module, "SOURCE_SHA256", SOURCE_SHA256);
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, execute}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "trioha.recording._events", "Events of a recording.", 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit__events(void)
{
    return PyModuleDef_Init(&definition);
}
