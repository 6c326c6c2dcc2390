// Launches that Python has prepared. When ExecuteOpGraph is called with the same arguments again, the prepared launch, a
// Python object that is called without arguments, is called from here: no arguments are turned into Python objects, and
// no Python code of ours runs.
//
// Which launch belongs to which arguments, and for how long, Python decides: it has them remembered and forgotten. All
// of this file's data belongs to who holds the GIL.

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "shim.h"

enum { SETS = 256, WAYS = 4 };

typedef struct {
  execution_t call; // its buffers are a copy
  void* launch;     // a reference of ours; NULL: the place is free
} entry_t;

static entry_t table[SETS][WAYS];
static uint32_t next_way;

// Set in threads that have come to Python by the other way. That way keeps their Python thread state; without one,
// taking the GIL makes a state and releasing it destroys it, which costs more than is gained.
static __thread int has_state;

static struct {
  int (*gil_ensure)(void);
  void (*gil_release)(int);
  void (*retain)(void*);
  void (*release)(void*);
  void* (*call)(void*);
  void* (*call_with)(void*, ...);
  long (*to_long)(void*);
  void (*clear_error)(void);
  void (*fetch_error)(void**, void**, void**);
  void (*normalize_error)(void**, void**, void**);
} python;

int launches_prepare(void* library) {
  const struct {
    const char* name;
    void* function;
  } functions[] = {{"PyGILState_Ensure", &python.gil_ensure},
                   {"PyGILState_Release", &python.gil_release},
                   {"Py_IncRef", &python.retain},
                   {"Py_DecRef", &python.release},
                   {"PyObject_CallNoArgs", &python.call},
                   {"PyObject_CallFunctionObjArgs", &python.call_with},
                   {"PyLong_AsLong", &python.to_long},
                   {"PyErr_Clear", &python.clear_error},
                   {"PyErr_Fetch", &python.fetch_error},
                   {"PyErr_NormalizeException", &python.normalize_error}};
  for (size_t i = 0; i < sizeof(functions) / sizeof(*functions); ++i) {
    void* found = dlsym(library, functions[i].name);
    if (!found) return 0;
    memcpy(functions[i].function, &found, sizeof(found));
  }
  return 1;
}

static entry_t* set_of(const execution_t* call) {
  const uint64_t factor = 0x9e3779b97f4a7c15u;
  uint64_t hash = (call->context ^ call->workspace * factor ^ call->stream ^ call->serial << 32) * factor;
  for (uint32_t i = 0; i < call->count; ++i) {
    hash = (hash ^ (uint64_t)call->buffers[i].uid ^ hash >> 32) * factor;
    hash = (hash ^ (uintptr_t)call->buffers[i].ptr ^ hash >> 32) * factor;
  }
  return table[(hash >> 32) % SETS];
}

static int is_same(const execution_t* a, const execution_t* b) {
  return a->serial == b->serial && a->context == b->context && a->workspace == b->workspace &&
         a->stream == b->stream && a->device == b->device && a->count == b->count &&
         memcmp(a->buffers, b->buffers, a->count * sizeof(*a->buffers)) == 0;
}

static void drop(entry_t* entry) {
  void* launch = entry->launch;
  free((void*)entry->call.buffers);
  memset(entry, 0, sizeof(*entry));
  if (launch) python.release(launch);  // last: this may run Python code, which may come back here
}

// What `failed`, a Python object, returns for the error that Python has set; `otherwise` if it raises one itself.
static long status_of_error(void* failed, long otherwise) {
  void *type = NULL, *error = NULL, *trace = NULL;
  python.fetch_error(&type, &error, &trace);
  python.normalize_error(&type, &error, &trace);
  void* status = error ? python.call_with(failed, error, NULL) : NULL;
  long code = status ? python.to_long(status) : otherwise;
  if (!status) python.clear_error();
  void* const objects[] = {type, error, trace, status};
  for (int i = 0; i < 4; ++i)
    if (objects[i]) python.release(objects[i]);
  return code;
}

int launch_again(const execution_t* call, int32_t* status) {
  if (!has_state) return 0;
  int gil = python.gil_ensure();
  const entry_t* set = set_of(call);
  void* launch = NULL;
  for (int way = 0; way < WAYS && !launch; ++way)
    if (set[way].launch && is_same(&set[way].call, call)) launch = set[way].launch;
  if (launch) {
    python.retain(launch);  // it may be forgotten while it runs
    void* result = python.call(launch);
    *status = result ? SUCCESS : (int32_t)status_of_error((void*)fusilli_python.failed, INTERNAL_ERROR);
    if (result) python.release(result);
    python.release(launch);
  }
  python.gil_release(gil);
  return launch != NULL;
}

int launch_object(void* launch, void* failed, long otherwise, long* status) {
  if (!has_state) return 0;
  int gil = python.gil_ensure();
  void* result = python.call(launch);
  *status = result ? 0 : status_of_error(failed, otherwise);
  if (result) python.release(result);
  python.gil_release(gil);
  return 1;
}

void launches_enter(void) { has_state = 1; }

void launches_remember(uint64_t serial, int32_t device, uintptr_t stream, uintptr_t context, uintptr_t workspace,
                       const char* buffers, uint32_t count, uintptr_t launch) {
  execution_t call = {serial, stream, context, workspace, device, count, (const device_buffer_t*)buffers};
  device_buffer_t* copy = malloc(count * sizeof(*copy));
  if (!copy) return;  // then the way through Python is taken again
  memcpy(copy, buffers, count * sizeof(*copy));
  int gil = python.gil_ensure();
  has_state = 1;
  entry_t* set = set_of(&call);
  entry_t* entry = NULL;
  for (int way = 0; way < WAYS; ++way)
    if (set[way].launch && is_same(&set[way].call, &call)) entry = &set[way];
  for (int way = 0; way < WAYS && !entry; ++way)
    if (!set[way].launch) entry = &set[way];
  if (!entry) entry = &set[next_way++ % WAYS];
  entry_t old = *entry;
  python.retain((void*)launch);
  call.buffers = copy;
  *entry = (entry_t){call, (void*)launch};
  drop(&old);
  python.gil_release(gil);
}

void launches_forget(uintptr_t context) {
  int gil = python.gil_ensure();
  for (int set = 0; set < SETS; ++set)
    for (int way = 0; way < WAYS; ++way)
      if (table[set][way].launch && table[set][way].call.context == context) drop(&table[set][way]);
  python.gil_release(gil);
}
