/* The walks over a log's records as machine code: `trioha.store._records`.
 *
 * `hatch_build.py` compiles this file where a C compiler is; `store.compiled` imports the module if it fits
 * this file. The plain loops of `store.record_layout` are the same work in Python. As the loops of
 * `store.kernel` these report no fault: they pass common records (V1, IPv4 hosts, whole), stop before the first
 * other one, and the plain code decides what that is.
 *
 * It is C, not compiled Python, for two reasons: it reads any buffer where it lies (compiled Python
 * reads `bytes` only, so each stretch of a log had to be copied), and it calls the CRC of ISA-L itself. A call
 * from Python for each body, with a copy of that body, takes twice as long as the CRC.
 *
 * No byte outside of [at, end) of the buffer is read.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#ifndef SOURCE_SHA256
#define SOURCE_SHA256 ""
#endif

#define MAGIC_V1 0xDAA320A7u
#define MAGIC_V2 0xDAA320ABu
#define HOSTS_V6 0x30u
#define CRC_MASK 0x7FFFFFFFu
#define BODY_AT 88
#define STORE_TIMESTAMP_AT 56
#define RECORD_BYTES_MIN 91
#define TOPIC_BYTES_MAX 127
#define ENTRY_BYTES 20
/* Walks of more bytes let other threads run: they take more than 0.1 ms. */
#define HELD_BYTES_MAX (1 << 20)
/* Of one call that starts to write bytes back: 0.2 ms where all pages are dirty. */
#define WRITTEN_BACK_BYTES_MAX ((int64_t)128 * 1024)
/* So long a thread works before it rests; to sleep and wake up costs a tenth of that. */
#define WORKED_NS_MIN 100000
/* One rest, and all rests of a call from Python: a node that stops waits for its threads. */
#define REST_NS_MAX 5000000
#define RESTS_NS_MAX 1000000000

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

/* Buffer, at, end and shift of `arguments`; the caller releases the buffer. -1 with an exception. */
static int
get_stretch(PyObject *const *arguments, Py_buffer *view, int64_t *at, int64_t *end, int64_t *shift)
{
    *at = PyLong_AsLongLong(arguments[1]);
    *end = PyLong_AsLongLong(arguments[2]);
    *shift = PyLong_AsLongLong(arguments[3]);
    if (PyErr_Occurred() || PyObject_GetBuffer(arguments[0], view, PyBUF_SIMPLE) < 0) {
        return -1;
    }
    if (*at < 0 || *at > *end || *end > view->len || (*shift > 0 && *end > INT64_MAX - *shift)) {
        PyBuffer_Release(view);
        PyErr_SetString(PyExc_ValueError, "at, end and shift do not fit the buffer");
        return -1;
    }
    return 0;
}

/* `arguments` are buffer, at, end and shift; `check_crc` is whether CRCs are checked. */
static PyObject *
walk(PyObject *const *arguments, int check_crc)
{
    int64_t at, end, shift;
    Py_buffer view;
    if (get_stretch(arguments, &view, &at, &end, &shift) < 0) {
        return NULL;
    }
    PyThreadState *thread = end - at > HELD_BYTES_MAX ? PyEval_SaveThread() : NULL;
    walked result = pass_records(view.buf, at, end, shift, check_crc);
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

static int
has_crc32(void)
{
    if (crc32_of_isal == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "find_crc32 has not found a CRC");
    }
    return crc32_of_isal != NULL;
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
    if (check_crc && !has_crc32()) {
        return NULL;
    }
    return walk(arguments, check_crc);
}

PyDoc_STRVAR(describe_records_doc,
"describe_records(data, at, end, shift, topics, topics_max)\n--\n\n"
"As walk_records, which checks CRCs; the topics of the records are added to the set `topics` until it has more than\n"
"`topics_max`.\n\n"
"Returns the index after the records, how many they were, and their least and greatest storeTimestamp, zeros without any.");

static PyObject *
describe_records(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    (void)module;
    if (!has_arguments(count, 6) || !has_crc32()) {
        return NULL;
    }
    int64_t at, end, shift;
    Py_buffer view;
    Py_ssize_t topics_max = PyLong_AsSsize_t(arguments[5]);
    if (PyErr_Occurred() || get_stretch(arguments, &view, &at, &end, &shift) < 0) {
        return NULL;
    }
    int64_t records = 0, least_ms = 0, greatest_ms = 0;
    /* Length and bytes of the topic that was added last: most records have that of the one before them. */
    const unsigned char *known = NULL;
    int error = 0;
    while (error == 0 && end - at >= RECORD_BYTES_MIN) {
        const unsigned char *record = (const unsigned char *)view.buf + at;
        PyThreadState *thread = read_i32(record) > HELD_BYTES_MAX ? PyEval_SaveThread() : NULL;
        int64_t size = common_size(record, end - at, at + shift, 1);
        if (thread != NULL) {
            PyEval_RestoreThread(thread);
        }
        if (size == 0) {
            break;
        }
        int64_t time_ms = read_i64(record + STORE_TIMESTAMP_AT);
        least_ms = records == 0 || time_ms < least_ms ? time_ms : least_ms;
        greatest_ms = records == 0 || time_ms > greatest_ms ? time_ms : greatest_ms;
        const unsigned char *topic = record + BODY_AT + read_i32(record + BODY_AT - 4);
        if ((known == NULL || memcmp(known, topic, 1 + (size_t)*topic) != 0) && PySet_Size(arguments[4]) <= topics_max) {
            PyObject *name = PyBytes_FromStringAndSize((const char *)topic + 1, *topic);
            error = name == NULL ? -1 : PySet_Add(arguments[4], name);
            Py_XDECREF(name);
            known = topic;
        }
        records += 1;
        at += size;
    }
    PyBuffer_Release(&view);
    if (error != 0 || PyErr_Occurred()) {
        return NULL;
    }
    return Py_BuildValue("LLLL", (long long)at, (long long)records, (long long)least_ms, (long long)greatest_ms);
}

PyDoc_STRVAR(find_records_doc,
"find_records(entries, bytes_max, data, end, shift)\n--\n\n"
"Where data[:end] has the common records that the entries of a consume queue name; an offset is an index plus `shift`.\n\n"
"Returns their number, and start and end of each stretch of records that follow each other. Records are taken\n"
"while they have at most `bytes_max` bytes in all; the first one always is. None if one of them is not there.");

/* Add the stretch [start, end), if there is one. */
static int
add_stretch(PyObject *stretches, int64_t start, int64_t end)
{
    if (start == end) {
        return 0;
    }
    PyObject *stretch = Py_BuildValue("LL", (long long)start, (long long)end);
    int error = stretch == NULL ? -1 : PyList_Append(stretches, stretch);
    Py_XDECREF(stretch);
    return error;
}

/* As find_records, with the stretches in a list; -1 if a record is not there, -2 with an exception. */
static int64_t
take_records(const char *entries, Py_ssize_t entries_bytes, int64_t bytes_max, const Py_buffer *view, int64_t end,
             int64_t shift, PyObject *stretches)
{
    int64_t records = 0, total_bytes = 0, stretch_at = 0, stretch_end = 0;
    const unsigned char *entry = (const unsigned char *)entries;
    for (; entries_bytes >= ENTRY_BYTES && total_bytes < bytes_max; entries_bytes -= ENTRY_BYTES) {
        int64_t offset = read_i64(entry), size = read_i32(entry + 8);
        if (records > 0 && size > bytes_max - total_bytes) {
            break;
        }
        if (offset < shift || offset - shift > end - RECORD_BYTES_MIN) {
            return -1;
        }
        int64_t at = offset - shift;
        if (size == 0 || common_size((const unsigned char *)view->buf + at, end - at, offset, 0) != size) {
            return -1;
        }
        if (at != stretch_end) {
            if (add_stretch(stretches, stretch_at, stretch_end) < 0) {
                return -2;
            }
            stretch_at = at;
        }
        stretch_end = at + size;
        records += 1;
        total_bytes += size;
        entry += ENTRY_BYTES;
    }
    return add_stretch(stretches, stretch_at, stretch_end) < 0 ? -2 : records;
}

static PyObject *
find_records(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    (void)module;
    if (!has_arguments(count, 5)) {
        return NULL;
    }
    int64_t bytes_max = PyLong_AsLongLong(arguments[1]);
    int64_t end = PyLong_AsLongLong(arguments[3]);
    int64_t shift = PyLong_AsLongLong(arguments[4]);
    if (PyErr_Occurred()) {
        return NULL;
    }
    if (!PyBytes_CheckExact(arguments[0])) {
        PyErr_SetString(PyExc_TypeError, "entries are bytes");
        return NULL;
    }
    Py_buffer view;
    if (PyObject_GetBuffer(arguments[2], &view, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    if (end < 0 || end > view.len || shift < 0 || bytes_max < 1) {
        PyBuffer_Release(&view);
        PyErr_SetString(PyExc_ValueError, "end, shift and bytes_max do not fit the buffer");
        return NULL;
    }
    PyObject *stretches = PyList_New(0);
    int64_t records = -2;
    if (stretches != NULL) {
        records = take_records(PyBytes_AS_STRING(arguments[0]), PyBytes_GET_SIZE(arguments[0]), bytes_max, &view, end,
                               shift, stretches);
    }
    PyBuffer_Release(&view);
    PyObject *found = NULL;
    if (records > 0) {
        found = Py_BuildValue("LO", (long long)records, stretches);
    }
    else if (records != -2) {
        found = Py_NewRef(Py_None);
    }
    Py_XDECREF(stretches);
    return found;
}

PyDoc_STRVAR(read_records_doc,
"read_records(fd, entries, bytes_max, first_offset, end_offset)\n--\n\n"
"The common records that the entries of a consume queue name, read from the log file that has these offsets.\n\n"
"Returns their number, and a bytes object that begins with all of them, and how many bytes they have. The object\n"
"is used again as soon as nobody has it or a view of it. Records are taken as find_records does. None if one of\n"
"them is not there, or the disk does not give it: who reads them one by one finds out which.");

/* The records of most pulls are read into this object, again and again, once nobody else has it: memory that is
   new for each of them takes as long as the rest of the read. */
#define SPARE_BYTES (256 * 1024)
static PyObject *spare;

static PyObject *
bytes_of(int64_t size)
{
    if (size > SPARE_BYTES) {
        return PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
    }
    if (spare == NULL || Py_REFCNT(spare) > 1) {
        PyObject *fresh = PyBytes_FromStringAndSize(NULL, SPARE_BYTES);
        if (fresh == NULL) {
            return NULL;
        }
        Py_XSETREF(spare, fresh);
    }
    return Py_NewRef(spare);
}

/* Read the records that the first entries name, of total_bytes in all; whether they are there. */
static int
read_taken(int fd, const unsigned char *entry, int64_t records, int64_t first_offset, unsigned char *data,
           int64_t total_bytes)
{
    int64_t at = 0;
    while (records > 0) {
        /* Records that follow each other are read by one call. */
        int64_t offset = read_i64(entry), size = 0, taken = 0;
        while (taken < records && read_i64(entry + taken * ENTRY_BYTES) == offset + size) {
            size += read_i32(entry + taken * ENTRY_BYTES + 8);
            taken += 1;
        }
        if (pread(fd, data + at, (size_t)size, (off_t)(offset - first_offset)) != size) {
            return 0;
        }
        for (; taken > 0; taken--, records--, entry += ENTRY_BYTES) {
            int64_t wanted = read_i32(entry + 8);
            if (common_size(data + at, total_bytes - at, read_i64(entry), 0) != wanted) {
                return 0;
            }
            at += wanted;
        }
    }
    return 1;
}

static PyObject *
read_records(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    (void)module;
    if (!has_arguments(count, 5)) {
        return NULL;
    }
    int fd = (int)PyLong_AsLong(arguments[0]);
    int64_t bytes_max = PyLong_AsLongLong(arguments[2]);
    int64_t first_offset = PyLong_AsLongLong(arguments[3]);
    int64_t end_offset = PyLong_AsLongLong(arguments[4]);
    if (PyErr_Occurred()) {
        return NULL;
    }
    if (!PyBytes_CheckExact(arguments[1])) {
        PyErr_SetString(PyExc_TypeError, "entries are bytes");
        return NULL;
    }
    const unsigned char *entries = (const unsigned char *)PyBytes_AS_STRING(arguments[1]);
    const unsigned char *entry = entries;
    Py_ssize_t left = PyBytes_GET_SIZE(arguments[1]);
    int64_t records = 0, total_bytes = 0;
    for (; left >= ENTRY_BYTES && total_bytes < bytes_max; left -= ENTRY_BYTES, entry += ENTRY_BYTES) {
        int64_t offset = read_i64(entry), size = read_i32(entry + 8);
        if (records > 0 && size > bytes_max - total_bytes) {
            break;
        }
        /* A record of more bytes than are wanted is left to the caller: its entry may be wrong. */
        if (size < RECORD_BYTES_MIN || size > bytes_max || offset < first_offset || offset > end_offset || size > end_offset - offset) {
            Py_RETURN_NONE;
        }
        records += 1;
        total_bytes += size;
    }
    PyObject *data = records == 0 ? Py_NewRef(Py_None) : bytes_of(total_bytes);
    if (data == NULL || data == Py_None) {
        return data;
    }
    unsigned char *buffer = (unsigned char *)PyBytes_AS_STRING(data);
    PyObject *found = Py_None;
    if (read_taken(fd, entries, records, first_offset, buffer, total_bytes)) {
        found = Py_BuildValue("LOL", (long long)records, data, (long long)total_bytes);
    }
    else {
        Py_INCREF(found);
    }
    Py_DECREF(data);
    return found;
}

/* How long a thread has had a processor, and rested. */
typedef struct {
    int64_t times;
    int64_t worked_ns;
    int64_t rested_ns;
} Pace;

static int64_t
worked_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static Pace
begin_pace(int64_t times)
{
    return (Pace){.times = times, .worked_ns = worked_ns(), .rested_ns = 0};
}

/* Sleep so many times as long as the thread has had a processor since the last rest: who waits for that waits
   for one piece of the work, not for all. */
static void
rest(Pace *pace)
{
    if (pace->times <= 0 || pace->rested_ns >= RESTS_NS_MAX) {
        return;
    }
    int64_t now_ns = worked_ns();
    if (now_ns - pace->worked_ns < WORKED_NS_MIN) {
        return;
    }
    int64_t rest_ns = (now_ns - pace->worked_ns) * pace->times;
    struct timespec time = {.tv_sec = 0, .tv_nsec = (long)(rest_ns < REST_NS_MAX ? rest_ns : REST_NS_MAX)};
    nanosleep(&time, NULL);
    pace->worked_ns = now_ns;
    pace->rested_ns += time.tv_nsec;
}

PyDoc_STRVAR(write_back_doc,
"write_back(fd, start, end, rests)\n--\n\n"
"Have the system begin to write the dirty pages of bytes [start, end) of a file to disk, piece by piece; after\n"
"each piece it rests so many times as long as that took, 1 s in all at most. Other threads run meanwhile.\n"
"Returns 0, or an errno: ENOSYS on a system that cannot do it.");

static PyObject *
write_back(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    (void)module;
    if (!has_arguments(count, 4)) {
        return NULL;
    }
    int fd = (int)PyLong_AsLong(arguments[0]);
    int64_t at = PyLong_AsLongLong(arguments[1]);
    int64_t end = PyLong_AsLongLong(arguments[2]);
    int64_t rests = PyLong_AsLongLong(arguments[3]);
    if (PyErr_Occurred()) {
        return NULL;
    }
    int error = ENOSYS;
#ifdef SYNC_FILE_RANGE_WRITE
    error = 0;
    Py_BEGIN_ALLOW_THREADS
    Pace pace = begin_pace(rests);
    while (at < end && error == 0) {
        int64_t size = end - at < WRITTEN_BACK_BYTES_MAX ? end - at : WRITTEN_BACK_BYTES_MAX;
        error = sync_file_range(fd, at, size, SYNC_FILE_RANGE_WRITE) == 0 ? 0 : errno;
        at += size;
        rest(&pace);
    }
    Py_END_ALLOW_THREADS
#else
    (void)fd, (void)at, (void)end, (void)rests;
#endif
    return PyLong_FromLong(error);
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
    {"describe_records", (PyCFunction)(void (*)(void))describe_records, METH_FASTCALL, describe_records_doc},
    {"walk_records", (PyCFunction)(void (*)(void))walk_records, METH_FASTCALL, walk_records_doc},
    {"find_records", (PyCFunction)(void (*)(void))find_records, METH_FASTCALL, find_records_doc},
    {"read_records", (PyCFunction)(void (*)(void))read_records, METH_FASTCALL, read_records_doc},
    {"write_back", (PyCFunction)(void (*)(void))write_back, METH_FASTCALL, write_back_doc},
    {"name_map", (PyCFunction)(void (*)(void))name_map, METH_FASTCALL, name_map_doc},
    {"forget_map", forget_map, METH_O, forget_map_doc},
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
    PyModuleDef_HEAD_INIT, "trioha.store._records", "Walks over a log's records.", 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit__records(void)
{
    return PyModuleDef_Init(&definition);
}
