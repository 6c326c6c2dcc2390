// hipDNN's engine plugin API. What needs no compiler is answered here: who the plugin is, its engine, handles and
// streams. Everything else goes to Python, which is started by the first question about a graph. There is no policy in
// this file: it checks pointers, starts Python, makes one call and returns its status.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "shim.h"

#define EXPORT __attribute__((visibility("default")))

typedef int32_t status_t;
enum { TYPE_ENGINE = 1, ERROR_TEXT_SIZE = 2048, MAX_LOG_LINE = 4096 };

typedef struct {
  const void* ptr;
  size_t size;
} const_data_t;

typedef void (*log_callback_t)(int severity, const char* message);

typedef struct handle {
  uint64_t serial;
  int32_t device;
  void* stream;
  struct handle* next;
} handle_t;

// ---- errors and log -----------------------------------------------------------------------------------------------

static __thread char error_text[ERROR_TEXT_SIZE];

static void set_error(const char* text) {
  size_t length = strlen(text);
  if (length >= sizeof(error_text)) {
    length = sizeof(error_text) - 1;
    while (length && (text[length] & 0xC0) == 0x80) --length;  // never half a UTF-8 sequence
  }
  memcpy(error_text, text, length);
  error_text[length] = 0;
}

static status_t refuse(status_t status, const char* function, const char* reason) {
  char text[ERROR_TEXT_SIZE];
  snprintf(text, sizeof(text), "%s: %s", function, reason);
  set_error(text);
  return status;
}

#define REQUIRE(condition, reason) \
  if (!(condition)) return refuse(BAD_PARAM, __func__, reason)

// Python marks a status if Ctrl-C came while it worked: that was meant for the host, which gets it when it goes on.
static status_t done(status_t status) {
  if (status & FUSILLI_INTERRUPTED) raise(SIGINT);
  return status & ~FUSILLI_INTERRUPTED;
}

static _Atomic(log_callback_t) log_callback;

// Lines have the form of hipDNN's own, so that both can be sorted and filtered together: hosts print them as they are.
static void log_text(int32_t severity, const char* text) {
  static const char* const levels[SEVERITY_OFF] = {"info", "warning", "error", "critical"};
  log_callback_t callback = atomic_load(&log_callback);
  int32_t lowest = __atomic_load_n(&fusilli_python.log_severity, __ATOMIC_RELAXED);
  if (!callback || severity < lowest || severity < 0 || severity >= SEVERITY_OFF) return;
  struct timespec now;
  struct tm local;
  char when[32], line[MAX_LOG_LINE + 128];
  clock_gettime(CLOCK_REALTIME, &now);
  strftime(when, sizeof(when), "%Y-%m-%d %H:%M:%S", localtime_r(&now.tv_sec, &local));
  snprintf(line, sizeof(line), "[%s.%03ld] [tid %ld] [%s] [fusilli_plugin] %s", when, now.tv_nsec / 1000000,
           (long)syscall(SYS_gettid), levels[severity], text);
  callback(severity, line);
}

void log_line(int severity, const char* format, ...) {
  char text[MAX_LOG_LINE];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  log_text(severity, text);
}

// ---- the engine ---------------------------------------------------------------------------------------------------

fusilli_link fusilli_python = {
    .abi = FUSILLI_ABI,
    .version = FUSILLI_VERSION,
    .set_error = set_error,
    .log = log_text,
    .remember = launches_remember,
    .forget = launches_forget,
    .report = python_report,
    .detach = python_detach,
};

static char engine_name[256] = "FUSILLI_ENGINE";

__attribute__((constructor)) static void name_engine(void) {
  const char* name = secure_getenv("FUSILLI_ENGINE_NAME");
  if (name && *name && strlen(name) < sizeof(engine_name)) strcpy(engine_name, name);
  uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a, as hipDNN makes ids of names
  for (const char* at = engine_name; *at; ++at) hash = (hash ^ (unsigned char)*at) * 0x100000001b3u;
  memcpy(&fusilli_python.engine_id, &hash, sizeof(hash));
  fusilli_python.engine_name = engine_name;
}

// ---- handles ------------------------------------------------------------------------------------------------------

static pthread_mutex_t handles_mutex = PTHREAD_MUTEX_INITIALIZER;
static handle_t* handles;
static uint64_t next_serial = 1;

static void lock_handles(void) { pthread_mutex_lock(&handles_mutex); }
static void unlock_handles(void) { pthread_mutex_unlock(&handles_mutex); }

// Held around calls of the dynamic loader, whose own lock a forked child may find locked for ever: so no thread of ours
// is in there when the host forks.
static pthread_mutex_t loader_mutex = PTHREAD_MUTEX_INITIALIZER;
static int loader_is_lost;  // in a child that was forked while Python's modules were loaded

void lock_loader(void) { pthread_mutex_lock(&loader_mutex); }
void unlock_loader(void) { pthread_mutex_unlock(&loader_mutex); }

static void before_fork(void) {
  python_before_fork();
  lock_loader();
  lock_handles();
  lock_runtimes();
}

static void unlock_after_fork(void) {
  unlock_runtimes();
  unlock_handles();
  unlock_loader();
}

static void after_fork_in_parent(void) {
  unlock_after_fork();
  python_after_fork_in_parent();
}

static void after_fork_in_child(void) {
  unlock_after_fork();
  if (!python_after_fork_in_child()) loader_is_lost = 1;
}

__attribute__((constructor)) static void prepare_fork(void) {
  pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

// A copy of a handle that is alive; 0 for anything else.
static int find_handle(const void* wanted, handle_t* copy) {
  lock_handles();
  const handle_t* handle = handles;
  while (handle && handle != wanted) handle = handle->next;
  if (handle) *copy = *handle;
  unlock_handles();
  return handle != NULL;
}

#define FIND_HANDLE(name) \
  handle_t name;          \
  REQUIRE(find_handle(handle, &name), "the handle is NULL or was destroyed")

// The HIP runtime that the host has mapped. The shim is not linked to one, and never loads one.
static int match_hip(struct dl_phdr_info* info, size_t size, void* path) {
  (void)size;
  const char* slash = strrchr(info->dlpi_name, '/');
  if (strncmp(slash ? slash + 1 : info->dlpi_name, "libamdhip64.so", 14) != 0) return 0;
  snprintf(path, 4096, "%s", info->dlpi_name);
  return 1;
}

static void* hip_function(const char* name) {
  char path[4096];
  void* function = NULL;
  if (loader_is_lost) return NULL;
  lock_loader();
  void* library = dl_iterate_phdr(match_hip, path) ? dlopen(path, RTLD_NOW | RTLD_NOLOAD) : NULL;
  if (library) {
    function = dlsym(library, name);
    dlclose(library);  // the host's own reference keeps it
  }
  unlock_loader();
  return function;
}

static int32_t current_device(void) {
  int (*get_device)(int*) = (int (*)(int*))hip_function("hipGetDevice");
  int device = -1;
  return get_device && get_device(&device) == 0 ? device : -1;
}

typedef int (*is_capturing_t)(void* stream, int* status);

// Whether work on a stream would go into a graph that the host captures. Loading code allocates and waits, which would
// end the capture with an error, so it has to be refused before it does anything.
static int is_captured(const handle_t* handle) {
  enum { CAPTURE_IMPLICIT = 906 };  // the null stream, while another stream of the process is captured
  static _Atomic(is_capturing_t) found;
  static atomic_int is_absent;  // from old runtimes
  if (handle->device < 0 || atomic_load(&is_absent)) return 0;
  is_capturing_t is_capturing = atomic_load(&found);
  if (!is_capturing) {
    is_capturing = (is_capturing_t)hip_function("hipStreamIsCapturing");
    if (!is_capturing) return atomic_store(&is_absent, 1), 0;
    atomic_store(&found, is_capturing);
  }
  int status = 0, error = is_capturing(handle->stream, &status);
  return error == CAPTURE_IMPLICIT || (error == 0 && status != 0);
}

static const char captured[] = "the stream is being captured into a HIP graph; plans are made outside captures";

#define REFUSE_CAPTURE(handle) REQUIRE(!is_captured(&handle), captured)

// ---- base API -----------------------------------------------------------------------------------------------------

EXPORT status_t hipdnnPluginGetName(const char** name) {
  REQUIRE(name, "name is NULL");
  *name = "fusilli-plugin";
  return SUCCESS;
}

EXPORT status_t hipdnnPluginGetVersion(const char** version) {
  REQUIRE(version, "version is NULL");
  *version = FUSILLI_VERSION;
  return SUCCESS;
}

EXPORT status_t hipdnnPluginGetType(int* type) {
  REQUIRE(type, "type is NULL");
  *type = TYPE_ENGINE;
  return SUCCESS;
}

// Overrides, runtime scalars and engine names are implemented. Ragged tensors are a feature of 1.3.0: such graphs are
// declined one by one.
EXPORT status_t hipdnnPluginGetApiVersion(const char** version) {
  REQUIRE(version, "version is NULL");
  *version = "1.4.0";
  return SUCCESS;
}

EXPORT void hipdnnPluginGetLastErrorString(const char** text) {
  if (text) *text = error_text;
}

EXPORT status_t hipdnnPluginSetLoggingCallback(log_callback_t callback) {
  REQUIRE(callback, "the callback is NULL");
  atomic_store(&log_callback, callback);
  return SUCCESS;
}

EXPORT status_t hipdnnPluginSetLogLevel(int level) {
  GUARDED;
  REQUIRE(level >= SEVERITY_INFO && level <= SEVERITY_OFF, "the level is none of hipdnnSeverity_t");
  __atomic_store_n(&fusilli_python.log_severity, level, __ATOMIC_RELAXED);
  if (python_alive()) fusilli_python.set_log_severity(level);
  return SUCCESS;
}

// ---- engine API: answered here ------------------------------------------------------------------------------------

EXPORT status_t hipdnnEnginePluginGetAllEngineIds(int64_t* ids, uint32_t max, uint32_t* count) {
  REQUIRE(count, "num_engines is NULL");
  REQUIRE(ids || !max, "engine_ids is NULL");
  if (max) ids[0] = fusilli_python.engine_id;
  *count = 1;
  return SUCCESS;
}

EXPORT status_t hipdnnEnginePluginGetEngineName(int64_t id, const char** name) {
  REQUIRE(name, "name is NULL");
  if (id != fusilli_python.engine_id) return refuse(NOT_APPLICABLE, __func__, "the engine is not of this plugin");
  *name = engine_name;
  return SUCCESS;
}

EXPORT status_t hipdnnEnginePluginCreate(handle_t** handle) {
  GUARDED;
  REQUIRE(handle, "handle is NULL");
  handle_t* made = calloc(1, sizeof(*made));
  if (!made) return refuse(4 /* ALLOC_FAILED */, __func__, "out of memory");
  made->device = current_device();
  lock_handles();
  made->serial = next_serial++;
  made->next = handles;
  handles = made;
  unlock_handles();
  *handle = made;
  return SUCCESS;
}

EXPORT status_t hipdnnEnginePluginDestroy(handle_t* handle) {
  GUARDED;
  lock_handles();
  handle_t** at = &handles;
  while (*at && *at != handle) at = &(*at)->next;
  handle_t* found = *at;
  if (found) *at = found->next;
  unlock_handles();
  REQUIRE(found, "the handle is NULL or was destroyed");
  uint64_t serial = found->serial;
  free(found);
  return python_alive() ? done(fusilli_python.destroy_handle(serial)) : SUCCESS;
}

EXPORT status_t hipdnnEnginePluginSetStream(handle_t* handle, void* stream) {
  GUARDED;
  FIND_HANDLE(known);
  int (*stream_device)(void*, int*) = stream ? (int (*)(void*, int*))hip_function("hipStreamGetDevice") : NULL;
  int device = known.device;
  if (stream_device && stream_device(stream, &device) == 0)
    REQUIRE(known.device < 0 || device == known.device, "the stream belongs to another device than the handle");
  lock_handles();
  for (handle_t* at = handles; at; at = at->next) {
    if (at != handle) continue;
    at->stream = stream;
    at->device = device;
  }
  unlock_handles();
  return SUCCESS;
}

// ---- engine API: answered by Python -------------------------------------------------------------------------------

#define VALID(data) ((data) && (data)->ptr && (data)->size)
#define BYTES(data) (uintptr_t)(data)->ptr, (data)->size

#define START_PYTHON() \
  if (!python_start()) return refuse(INTERNAL_ERROR, __func__, python_problem())

// A failure here would take the graph away from other plugins as well, so the answer is then "none".
EXPORT status_t hipdnnEnginePluginGetApplicableEngineIds(handle_t* handle, const const_data_t* graph, int64_t* ids,
                                                         uint32_t max, uint32_t* count) {
  GUARDED;
  REQUIRE(count, "num_engines is NULL");
  REQUIRE(ids || !max, "engine_ids is NULL");
  REQUIRE(VALID(graph), "op_graph is NULL or empty");
  FIND_HANDLE(known);
  *count = 0;
  int32_t yes = 0;
  if (is_captured(&known))
    log_line(SEVERITY_WARN, "a graph is declined: %s", captured);
  else if (python_start())
    done(fusilli_python.claims(known.serial, known.device, (uintptr_t)known.stream, BYTES(graph), &yes));
  if (!yes) return SUCCESS;  // no error: it would take the graph from the other engines
  if (max) ids[0] = fusilli_python.engine_id;
  *count = 1;
  return SUCCESS;
}

EXPORT status_t hipdnnEnginePluginGetEngineDetails(handle_t* handle, int64_t id, const const_data_t* graph,
                                                   const_data_t* details) {
  GUARDED;
  REQUIRE(details, "engine_details is NULL");
  REQUIRE(VALID(graph), "op_graph is NULL or empty");
  REQUIRE(id == fusilli_python.engine_id, "the engine is not of this plugin");
  FIND_HANDLE(known);
  START_PYTHON();
  uintptr_t data = 0;
  size_t size = 0;
  status_t status = done(fusilli_python.details(known.device, BYTES(graph), &data, &size));
  if (status == SUCCESS) *details = (const_data_t){(const void*)data, size};
  return status;
}

static status_t free_bytes(const_data_t* data) {
  uintptr_t address = (uintptr_t)data->ptr;
  *data = (const_data_t){NULL, 0};
  return address && python_alive() ? done(fusilli_python.free_bytes(address)) : SUCCESS;
}

EXPORT status_t hipdnnEnginePluginDestroyEngineDetails(handle_t* handle, const_data_t* details) {
  GUARDED;
  REQUIRE(handle, "the handle is NULL");
  REQUIRE(details, "engine_details is NULL");
  return free_bytes(details);
}

EXPORT status_t hipdnnEnginePluginGetWorkspaceSize(handle_t* handle, const const_data_t* config,
                                                   const const_data_t* graph, size_t* size) {
  GUARDED;
  REQUIRE(size, "workspace_size is NULL");
  REQUIRE(VALID(config), "engine_config is NULL or empty");
  REQUIRE(VALID(graph), "op_graph is NULL or empty");
  FIND_HANDLE(known);
  START_PYTHON();
  return done(fusilli_python.workspace_size(known.device, BYTES(config), BYTES(graph), size));
}

EXPORT status_t hipdnnEnginePluginCreateExecutionContext(handle_t* handle, const const_data_t* config,
                                                         const const_data_t* graph, void** context) {
  GUARDED;
  REQUIRE(context, "execution_context is NULL");
  REQUIRE(VALID(config), "engine_config is NULL or empty");
  REQUIRE(VALID(graph), "op_graph is NULL or empty");
  FIND_HANDLE(known);
  REFUSE_CAPTURE(known);
  START_PYTHON();
  uintptr_t made = 0;
  status_t status = done(fusilli_python.create_context(known.serial, known.device, (uintptr_t)known.stream,
                                                       BYTES(config), BYTES(graph), &made));
  if (status == SUCCESS) *context = (void*)made;
  return status;
}

EXPORT status_t hipdnnEnginePluginDestroyExecutionContext(handle_t* handle, void* context) {
  GUARDED;
  REQUIRE(handle, "the handle is NULL");
  REQUIRE(context, "execution_context is NULL");
  return python_alive() ? done(fusilli_python.destroy_context((uintptr_t)context)) : SUCCESS;
}

EXPORT status_t hipdnnEnginePluginGetWorkspaceSizeFromExecutionContext(handle_t* handle, void* context, size_t* size) {
  GUARDED;
  REQUIRE(handle, "the handle is NULL");
  REQUIRE(context, "execution_context is NULL");
  REQUIRE(size, "workspace_size is NULL");
  START_PYTHON();
  return done(fusilli_python.context_workspace_size((uintptr_t)context, size));
}

EXPORT status_t hipdnnEnginePluginExecuteOpGraph(handle_t* handle, void* context, void* workspace,
                                                 const device_buffer_t* buffers, uint32_t count) {
  GUARDED_LAUNCH;
  REQUIRE(context, "execution_context is NULL");
  REQUIRE(buffers && count, "device_buffers is NULL or empty");
  FIND_HANDLE(known);
  START_PYTHON();
  const execution_t execution = {.serial = known.serial,
                                 .stream = (uintptr_t)known.stream,
                                 .context = (uintptr_t)context,
                                 .workspace = (uintptr_t)workspace,
                                 .device = known.device,
                                 .count = count,
                                 .buffers = buffers};
  status_t status = SUCCESS;
  if (launch_again(&execution, &status)) return done(status);
  GUARDED;
  return done(fusilli_python.execute(known.serial, known.device, execution.stream, execution.context,
                                     execution.workspace, (const char*)buffers, count));
}

EXPORT status_t hipdnnEnginePluginExecuteOpGraphWithOverrides(handle_t* handle, void* context, void* workspace,
                                                              const device_buffer_t* buffers, uint32_t count,
                                                              uint32_t overrides, const int64_t* uids,
                                                              const uint32_t* lengths, const int64_t* const* dims,
                                                              const int64_t* const* strides) {
  GUARDED;
  REQUIRE(context, "execution_context is NULL");
  REQUIRE(buffers && count, "device_buffers is NULL or empty");
  REQUIRE(!overrides || (uids && lengths && dims && strides), "an array of the overrides is NULL");
  for (uint32_t i = 0; i < overrides; ++i)
    REQUIRE(!lengths[i] || (dims[i] && strides[i]), "dims or strides of an override are NULL");
  FIND_HANDLE(known);
  START_PYTHON();
  return done(fusilli_python.execute_overridden(known.serial, known.device, (uintptr_t)known.stream, (uintptr_t)context,
                                           (uintptr_t)workspace, (const char*)buffers, count, overrides, uids, lengths,
                                           dims, strides));
}

EXPORT status_t hipdnnEnginePluginSerializeExecutionContext(handle_t* handle, void* context, const_data_t* serialized) {
  GUARDED;
  REQUIRE(handle, "the handle is NULL");
  REQUIRE(context, "execution_context is NULL");
  REQUIRE(serialized, "serialized is NULL");
  START_PYTHON();
  uintptr_t data = 0;
  size_t size = 0;
  status_t status = done(fusilli_python.serialize((uintptr_t)context, &data, &size));
  if (status == SUCCESS) *serialized = (const_data_t){(const void*)data, size};
  return status;
}

// hipDNN of summer 2026 calls this one, and no longer the one above.
EXPORT status_t hipdnnEnginePluginSerializeExecutionContextWithEngineId(handle_t* handle, int64_t id, void* context,
                                                                        const_data_t* serialized) {
  REQUIRE(id == fusilli_python.engine_id, "the engine is not of this plugin");
  return hipdnnEnginePluginSerializeExecutionContext(handle, context, serialized);
}

EXPORT status_t hipdnnEnginePluginDestroySerializedExecutionContext(handle_t* handle, const_data_t* serialized) {
  GUARDED;
  REQUIRE(handle, "the handle is NULL");
  REQUIRE(serialized, "serialized is NULL");
  return free_bytes(serialized);
}

// Whether bytes are an EngineConfig, a FlatBuffers table, that names our engine in its first field.
static int is_our_config(const const_data_t* data) {
  uint32_t table;
  int32_t to_vtable;
  uint16_t sizes[3];  // of the vtable and the table; where the first field is
  int64_t id;
  const char* bytes = data->ptr;
  if (data->size < sizeof(table)) return 0;
  memcpy(&table, bytes, sizeof(table));
  if (table > data->size || data->size - table < sizeof(to_vtable)) return 0;
  memcpy(&to_vtable, bytes + table, sizeof(to_vtable));
  int64_t vtable = (int64_t)table - to_vtable;
  if (vtable < 0 || vtable + (int64_t)sizeof(sizes) > (int64_t)data->size) return 0;
  memcpy(sizes, bytes + vtable, sizeof(sizes));
  if (sizes[0] < sizeof(sizes) || !sizes[2] || data->size - table < sizes[2] + sizeof(id)) return 0;
  memcpy(&id, bytes + table + sizes[2], sizeof(id));
  return id == fusilli_python.engine_id;
}

// Two forms of this function are published: (handle, serialized, context), and (handle, config, serialized, context).
// Arguments travel in registers, so what `second` is tells which one the caller has; `fourth` means nothing in the first.
EXPORT status_t hipdnnEnginePluginCreateExecutionContextFromSerialized(handle_t* handle, const const_data_t* second,
                                                                       void* third, void** fourth) {
  GUARDED;
  REQUIRE(third, "execution_context is NULL");
  REQUIRE(VALID(second), "serialized is NULL or empty");
  const int has_config = is_our_config(second);
  const const_data_t* serialized = has_config ? third : second;
  void** context = has_config ? fourth : third;
  REQUIRE(context, "execution_context is NULL");
  REQUIRE(VALID(serialized), "serialized is NULL or empty (the form with an engine config)");
  FIND_HANDLE(known);
  REFUSE_CAPTURE(known);
  START_PYTHON();
  uintptr_t made = 0;
  status_t status =
      done(fusilli_python.restore(known.serial, known.device, (uintptr_t)known.stream, BYTES(serialized), &made));
  if (status == SUCCESS) *context = (void*)made;
  return status;
}
