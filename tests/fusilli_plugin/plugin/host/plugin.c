#define _GNU_SOURCE
#include "plugin.h"

#include <dirent.h>
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

int quiet = 0;
unsigned log_lines = 0;
char last_log[4096];

void die(const char* file, int line, const char* condition, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fprintf(stderr, "%s:%d: %s: ", file, line, condition);
  vfprintf(stderr, format, arguments);
  fprintf(stderr, "\n");
  va_end(arguments);
  exit(1);
}

double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

long resident_kib(void) {
  char line[256];
  long size = 0;
  FILE* file = fopen("/proc/self/status", "re");
  while (file && fgets(line, sizeof(line), file)) sscanf(line, "VmRSS: %ld", &size);
  if (file) fclose(file);
  return size;
}

long entries(const char* name) {
  DIR* directory = opendir(name);
  CHECK(directory, "%s cannot be read", name);
  long count = 0;
  while (readdir(directory)) ++count;
  closedir(directory);
  return count - 3;  // "." and "..", and in /proc/self/fd this one
}

void* make_handle(const plugin_t* p) {
  void* handle = NULL;
  OK(p, p->create(&handle));
  CHECK(handle, "no handle");
  return handle;
}

void* workspace_of(size_t size) { return size ? aligned(size) : NULL; }

static void receive(int severity, const char* message) {
  __atomic_add_fetch(&log_lines, 1, __ATOMIC_RELAXED);
  snprintf(last_log, sizeof(last_log), "%s", message);
  if (!quiet) fprintf(stderr, "[plugin %d] %s\n", severity, message);
}

static void* required(void* library, const char* name) {
  void* found = dlsym(library, name);
  CHECK(found, "%s is missing", name);
  return found;
}

plugin_t plugin_open(const char* path, int flags) {
  plugin_t p = {.library = dlopen(path, flags)};
  CHECK(p.library, "%s", dlerror());
#define GET(field, name) *(void**)&p.field = required(p.library, name)
#define TRY(field, name) *(void**)&p.field = dlsym(p.library, name)
  GET(get_name, "hipdnnPluginGetName");
  GET(get_version, "hipdnnPluginGetVersion");
  GET(get_type, "hipdnnPluginGetType");
  GET(get_last_error, "hipdnnPluginGetLastErrorString");
  int type = 0;
  OK(&p, p.get_type(&type));
  CHECK(type == 1, "type %d", type);
  GET(get_all_ids, "hipdnnEnginePluginGetAllEngineIds");
  GET(create, "hipdnnEnginePluginCreate");
  GET(destroy, "hipdnnEnginePluginDestroy");
  GET(set_stream, "hipdnnEnginePluginSetStream");
  GET(get_applicable, "hipdnnEnginePluginGetApplicableEngineIds");
  GET(get_details, "hipdnnEnginePluginGetEngineDetails");
  GET(destroy_details, "hipdnnEnginePluginDestroyEngineDetails");
  GET(get_workspace_size, "hipdnnEnginePluginGetWorkspaceSize");
  GET(create_context, "hipdnnEnginePluginCreateExecutionContext");
  GET(destroy_context, "hipdnnEnginePluginDestroyExecutionContext");
  GET(get_context_workspace_size, "hipdnnEnginePluginGetWorkspaceSizeFromExecutionContext");
  GET(execute, "hipdnnEnginePluginExecuteOpGraph");
  TRY(set_callback, "hipdnnPluginSetLoggingCallback");
  TRY(set_log_level, "hipdnnPluginSetLogLevel");
  TRY(get_api_version, "hipdnnPluginGetApiVersion");
  TRY(get_engine_name, "hipdnnEnginePluginGetEngineName");
  TRY(execute_overridden, "hipdnnEnginePluginExecuteOpGraphWithOverrides");
  TRY(serialize, "hipdnnEnginePluginSerializeExecutionContext");
  TRY(destroy_serialized, "hipdnnEnginePluginDestroySerializedExecutionContext");
  TRY(restore, "hipdnnEnginePluginCreateExecutionContextFromSerialized");
  const char* text = NULL;
  OK(&p, p.get_name(&text));
  CHECK(text && *text, "no name");
  OK(&p, p.get_version(&text));
  CHECK(text && *text, "no version");
  OK(&p, p.get_type(&type));
  if (p.set_callback) OK(&p, p.set_callback(receive));
  if (p.set_log_level) OK(&p, p.set_log_level(getenv("HOST_LOG_LEVEL") ? atoi(getenv("HOST_LOG_LEVEL")) : 0));
  if (p.get_api_version) OK(&p, p.get_api_version(&text));
  int64_t id = plugin_engine(&p);
  if (p.get_engine_name) OK(&p, p.get_engine_name(id, &text));
  return p;
}

int64_t plugin_engine(const plugin_t* plugin) {
  uint32_t count = 0;
  OK(plugin, plugin->get_all_ids(NULL, 0, &count));
  CHECK(count == 1, "%u engines", count);
  int64_t id = 0;
  OK(plugin, plugin->get_all_ids(&id, 1, &count));
  CHECK(count == 1, "%u engines", count);
  return id;
}

const char* plugin_error(const plugin_t* plugin) {
  const char* text = NULL;
  plugin->get_last_error(&text);
  CHECK(text, "the last error is NULL");
  CHECK(strlen(text) < 2048, "the last error has %zu bytes", strlen(text));
  return text;
}

void* aligned(size_t size) {
  void* memory = NULL;
  CHECK(posix_memalign(&memory, 256, size ? size : 1) == 0, "out of memory");
  memset(memory, 0xEE, size);
  return memory;
}

data_t read_file(const char* folder, const char* name) {
  char path[4096];
  snprintf(path, sizeof(path), "%s/%s", folder, name);
  FILE* file = fopen(path, "rb");
  CHECK(file, "%s cannot be read", path);
  fseek(file, 0, SEEK_END);
  size_t size = (size_t)ftell(file);
  rewind(file);
  void* data = aligned(size);
  CHECK(fread(data, 1, size, file) == size, "%s is short", path);
  fclose(file);
  return (data_t){data, size};
}

case_t case_read(const char* folder) {
  case_t each = {.graph = read_file(folder, "graph.bin")};
  char path[4096], name[256];
  snprintf(path, sizeof(path), "%s/pack", folder);
  FILE* file = fopen(path, "r");
  CHECK(file, "%s cannot be read", path);
  long long uid;
  size_t size;
  while (fscanf(file, "%lld %zu %255s", &uid, &size, name) == 3) {
    CHECK(each.count < MAX_BUFFERS, "more than %d buffers", MAX_BUFFERS);
    uint32_t i = each.count++;
    each.is_output[i] = strcmp(name, "-") == 0;
    each.sizes[i] = size;
    each.buffers[i] = (buffer_t){uid, each.is_output[i] ? aligned(size) : (void*)read_file(folder, name).ptr};
  }
  fclose(file);
  return each;
}

case_t case_copy(const case_t* original) {
  case_t copy = *original;
  void* graph = aligned(original->graph.size);
  memcpy(graph, original->graph.ptr, original->graph.size);
  copy.graph.ptr = graph;
  for (uint32_t i = 0; i < copy.count; ++i) {
    copy.buffers[i].ptr = aligned(copy.sizes[i]);
    memcpy(copy.buffers[i].ptr, original->buffers[i].ptr, copy.sizes[i]);
  }
  case_clear_outputs(&copy);
  return copy;
}

void case_free(case_t* copy) {
  free((void*)copy->graph.ptr);
  for (uint32_t i = 0; i < copy->count; ++i) free(copy->buffers[i].ptr);
}

void case_clear_outputs(case_t* each) {
  for (uint32_t i = 0; i < each->count; ++i)
    if (each->is_output[i]) memset(each->buffers[i].ptr, 0xEE, each->sizes[i]);
}

int case_same_outputs(const case_t* a, const case_t* b) {
  for (uint32_t i = 0; i < a->count; ++i)
    if (a->is_output[i] && memcmp(a->buffers[i].ptr, b->buffers[i].ptr, a->sizes[i]) != 0) return 0;
  return 1;
}

void case_write_outputs(const case_t* done, const char* folder) {
  for (uint32_t i = 0; i < done->count; ++i) {
    if (!done->is_output[i]) continue;
    char path[4096];
    snprintf(path, sizeof(path), "%s/%lld.out", folder, (long long)done->buffers[i].uid);
    FILE* file = fopen(path, "wb");
    CHECK(file && fwrite(done->buffers[i].ptr, 1, done->sizes[i], file) == done->sizes[i], "%s", path);
    fclose(file);
  }
}

data_t engine_config(int64_t engine) {
  static const unsigned char head[16] = {0x0c, 0, 0, 0, 0, 0, 6, 0, 0x0c, 0, 4, 0, 6, 0, 0, 0};
  unsigned char* data = aligned(24);
  memcpy(data, head, 16);
  memcpy(data + 16, &engine, 8);
  return (data_t){data, 24};
}

void* build_plan(const plugin_t* p, void* handle, const case_t* each, size_t* workspace_size) {
  int64_t id = 0, engine = plugin_engine(p);
  for (int i = 0; i < 2; ++i) {  // hipDNN asks twice
    uint32_t count = 0;
    OK(p, p->get_applicable(handle, &each->graph, &id, 1, &count));
    CHECK(count == 1 && id == engine, "%u engines apply; last log line: %s", count, last_log);
  }
  data_t details = {(void*)0x5a5a5a5a, 77};  // arrives uninitialised
  OK(p, p->get_details(handle, id, &each->graph, &details));
  CHECK(details.ptr && details.size >= 24, "EngineDetails of %zu bytes", details.size);
  data_t config = engine_config(id);
  size_t estimate = 0;
  void* context = NULL;
  OK(p, p->get_workspace_size(handle, &config, &each->graph, &estimate));
  OK(p, p->create_context(handle, &config, &each->graph, &context));
  CHECK(context, "no context");
  OK(p, p->get_context_workspace_size(handle, context, workspace_size));
  CHECK(*workspace_size <= estimate, "%zu bytes of workspace, the estimate was %zu", *workspace_size, estimate);
  OK(p, p->destroy_details(handle, &details));
  CHECK(!details.ptr && !details.size, "details are not cleared");
  free((void*)config.ptr);
  return context;
}
