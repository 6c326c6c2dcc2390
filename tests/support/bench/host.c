// Times the plugin's C functions as hipDNN calls them: host PLUGIN EMPTY FOLDER BATCHES CALLS [HIP_LIBRARY].
//
// PLUGIN is an engine plugin, EMPTY one whose ExecuteOpGraph does nothing. FOLDER holds add.bin (y = a + b, 16 floats each, uids of
// y, a and b in the file `uids`) and new0.bin, new1.bin, ...: graphs that the plugin has not seen. With HIP_LIBRARY, a
// stand-in for the HIP runtime, buffers come from it and the host memory that four streams pin is read from its records.
// Prints lines of a name and its samples, in seconds or bytes.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct {
  const void* ptr;
  size_t size;
} data_t;

typedef struct {
  int64_t uid;
  void* ptr;
} buffer_t;

typedef struct {
  void (*last_error)(const char**);
  int (*create)(void**);
  int (*destroy)(void*);
  int (*set_stream)(void*, void*);
  int (*all_ids)(int64_t*, uint32_t, uint32_t*);
  int (*applicable)(void*, const data_t*, int64_t*, uint32_t, uint32_t*);
  int (*details)(void*, int64_t, const data_t*, data_t*);
  int (*free_details)(void*, data_t*);
  int (*workspace_size)(void*, const data_t*, const data_t*, size_t*);
  int (*create_context)(void*, const data_t*, const data_t*, void**);
  int (*destroy_context)(void*, void*);
  int (*execute)(void*, void*, void*, const buffer_t*, uint32_t);
} plugin_t;

typedef struct {
  int (*malloc)(void**, size_t);
  int (*create_stream)(void**);
  uint64_t (*count)(void);
  const struct event* (*get)(uint64_t);
  uint64_t (*event_size)(void);
  void (*reset)(void);
} hip_t;

// The records of fusilli_plugin/conformance/hip/standin_hip.c.
typedef struct event {
  char call[32];
  char kernel[96];
  uint64_t stream, device, size, pointer, source;
  uint32_t grid[3], block[3];
  uint64_t argument_count;
  uint64_t arguments[64];
} event_t;

enum { COUNT = 16, STREAMS = 4 };

__attribute__((noreturn, format(printf, 1, 2))) static void die(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vfprintf(stderr, format, arguments);
  va_end(arguments);
  fputc('\n', stderr);
  exit(1);
}

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void* symbol(void* library, const char* name) {
  void* found = dlsym(library, name);
  if (!found) die("%s is missing: %s", name, dlerror());
  return found;
}

static plugin_t open_plugin(const char* path) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) die("%s", dlerror());
  plugin_t p;
#define GET(field, name) *(void**)&p.field = symbol(library, name)
  GET(last_error, "hipdnnPluginGetLastErrorString");
  GET(create, "hipdnnEnginePluginCreate");
  GET(destroy, "hipdnnEnginePluginDestroy");
  GET(set_stream, "hipdnnEnginePluginSetStream");
  GET(all_ids, "hipdnnEnginePluginGetAllEngineIds");
  GET(applicable, "hipdnnEnginePluginGetApplicableEngineIds");
  GET(details, "hipdnnEnginePluginGetEngineDetails");
  GET(free_details, "hipdnnEnginePluginDestroyEngineDetails");
  GET(workspace_size, "hipdnnEnginePluginGetWorkspaceSize");
  GET(create_context, "hipdnnEnginePluginCreateExecutionContext");
  GET(destroy_context, "hipdnnEnginePluginDestroyExecutionContext");
  GET(execute, "hipdnnEnginePluginExecuteOpGraph");
  return p;
}

static void check(const plugin_t* p, int status, const char* what) {
  const char* text = "";
  if (status) p->last_error(&text);
  if (status) die("%s: status %d: %s", what, status, text);
}

static data_t read_file(const char* folder, const char* name) {
  char path[4096];
  snprintf(path, sizeof(path), "%s/%s", folder, name);
  FILE* file = fopen(path, "rb");
  if (!file) return (data_t){NULL, 0};
  fseek(file, 0, SEEK_END);
  size_t size = (size_t)ftell(file);
  rewind(file);
  void* data = malloc(size + 1);
  if (fread(data, 1, size, file) != size) die("%s is short", path);
  ((char*)data)[size] = 0;
  fclose(file);
  return (data_t){data, size};
}

// An EngineConfig as a backend of November 2025 writes it.
static data_t engine_config(int64_t engine) {
  static unsigned char data[24] = {0x0c, 0, 0, 0, 0, 0, 6, 0, 0x0c, 0, 4, 0, 6, 0, 0, 0};
  memcpy(data + 16, &engine, 8);
  return (data_t){data, sizeof(data)};
}

static int applies(const plugin_t* p, void* handle, const data_t* graph) {
  int64_t id = 0;
  uint32_t count = 0;
  check(p, p->applicable(handle, graph, &id, 1, &count), "applicability");
  return count == 1;
}

// From applicability to a plan, as in hipDNN's create_execution_plans and build_plans.
static void* build_plan(const plugin_t* p, void* handle, const data_t* graph) {
  int64_t id = 0;
  uint32_t count = 0;
  check(p, p->all_ids(&id, 1, &count), "engine ids");
  for (int i = 0; i < 2; ++i)  // hipDNN asks twice
    if (!applies(p, handle, graph)) die("the graph is declined");
  data_t details = {NULL, 0}, config = engine_config(id);
  size_t size = 0;
  void* context = NULL;
  check(p, p->details(handle, id, graph, &details), "details");
  check(p, p->workspace_size(handle, &config, graph, &size), "workspace size");
  if (size) die("an addition needs %zu bytes of workspace", size);
  check(p, p->create_context(handle, &config, graph, &context), "context");
  check(p, p->free_details(handle, &details), "free details");
  return context;
}

static void* allocate(const hip_t* hip, size_t size) {
  void* memory = NULL;
  int error = hip->malloc ? hip->malloc(&memory, size) : posix_memalign(&memory, 256, size);
  if (error) die("out of memory");
  return memory;
}

static double batch(const plugin_t* p, void* handle, void* context, const buffer_t* pack, long calls) {
  double begin = now();
  for (long i = 0; i < calls; ++i)
    if (p->execute(handle, context, NULL, pack, 3)) check(p, 3, "execution");
  return (now() - begin) / (double)calls;
}

static void print(const char* name, const double* samples, long count) {
  printf("%s", name);
  for (long i = 0; i < count; ++i) printf(" %.9g", samples[i]);
  printf("\n");
}

// Host memory that was pinned since the last call of reset; all of it is still in use.
static double pinned(const hip_t* hip) {
  double bytes = 0;
  for (uint64_t i = 0; i < hip->count(); ++i) {
    const event_t* event = hip->get(i);
    if (strcmp(event->call, "host_malloc") == 0) bytes += (double)event->size;
    if (strcmp(event->call, "host_free") == 0) bytes -= (double)event->size;
  }
  return bytes;
}

static hip_t open_hip(const char* path) {
  hip_t hip = {0};
  if (!path) return hip;
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) die("%s", dlerror());
  *(void**)&hip.malloc = symbol(library, "hipMalloc");
  *(void**)&hip.create_stream = symbol(library, "hipStreamCreate");
  *(void**)&hip.count = symbol(library, "standin_event_count");
  *(void**)&hip.get = symbol(library, "standin_event");
  *(void**)&hip.event_size = symbol(library, "standin_event_size");
  *(void**)&hip.reset = symbol(library, "standin_reset");
  if (hip.event_size() != sizeof(event_t)) die("the stand-in keeps other records than this program reads");
  return hip;
}

static void* new_stream(const plugin_t* p, const hip_t* hip, void* handle) {
  void* stream = NULL;
  if (hip->create_stream(&stream)) die("no stream");
  check(p, p->set_stream(handle, stream), "set stream");
  return stream;
}

int main(int argc, char** argv) {
  if (argc < 6) die("usage: host PLUGIN EMPTY FOLDER BATCHES CALLS [HIP_LIBRARY]");
  const char* folder = argv[3];
  long batches = atol(argv[4]), calls = atol(argv[5]);
  hip_t hip = open_hip(argc > 6 ? argv[6] : NULL);
  double* samples = malloc(sizeof(double) * (size_t)batches);
  double* empty_samples = malloc(sizeof(double) * (size_t)batches);
  data_t graph = read_file(folder, "add.bin"), uids = read_file(folder, "uids");
  long long y = 0, a = 0, b = 0;
  if (!graph.ptr || !uids.ptr || sscanf(uids.ptr, "%lld %lld %lld", &y, &a, &b) != 3) die("%s is incomplete", folder);
  buffer_t pack[3];
  const int64_t names[3] = {y, a, b};
  for (int i = 0; i < 3; ++i) pack[i] = (buffer_t){names[i], allocate(&hip, COUNT * sizeof(float))};
  for (int i = 0; i < COUNT; ++i) ((float*)pack[1].ptr)[i] = (float)i, ((float*)pack[2].ptr)[i] = 2;

  double begin = now();
  plugin_t p = open_plugin(argv[1]);
  void *handle = NULL, *context = NULL;
  check(&p, p.create(&handle), "handle");
  if (hip.malloc) hip.reset(), new_stream(&p, &hip, handle);
  context = build_plan(&p, handle, &graph);
  check(&p, p.execute(handle, context, NULL, pack, 3), "execution");
  samples[0] = now() - begin;
  print("first", samples, 1);
  if (!hip.malloc)
    for (int i = 0; i < COUNT; ++i)
      if (((float*)pack[0].ptr)[i] != (float)i + 2) die("element %d of the sum is %g", i, ((float*)pack[0].ptr)[i]);

  if (hip.malloc) {
    void* others[STREAMS - 1];
    for (int i = 0; i < STREAMS - 1; ++i) {
      check(&p, p.create(&others[i]), "handle");
      new_stream(&p, &hip, others[i]);
      check(&p, p.execute(others[i], context, NULL, pack, 3), "execution");
    }
    samples[0] = pinned(&hip);
    print("pinned", samples, 1);
    for (int i = 0; i < STREAMS - 1; ++i) check(&p, p.destroy(others[i]), "handle");
  }

  void* library = dlopen(argv[2], RTLD_NOW | RTLD_LOCAL);
  if (!library) die("%s", dlerror());
  plugin_t empty = p;
  *(void**)&empty.execute = symbol(library, "hipdnnEnginePluginExecuteOpGraph");
  // Batches are short, so that many of them fit between two interruptions on a busy machine.
  for (long i = 0; i < batches; ++i) {
    if (hip.malloc) hip.reset();
    samples[i] = batch(&p, handle, context, pack, calls);
    empty_samples[i] = batch(&empty, handle, context, pack, calls);
  }
  print("execute", samples, batches);
  print("execute_empty", empty_samples, batches);

  for (long i = 0; i < batches; ++i) {
    begin = now();
    void* again = build_plan(&p, handle, &graph);
    samples[i] = now() - begin;
    check(&p, p.destroy_context(handle, again), "context");
  }
  print("build", samples, batches);

  long fresh = 0;
  for (char name[32]; fresh < batches; ++fresh) {
    snprintf(name, sizeof(name), "new%ld.bin", fresh);
    data_t other = read_file(folder, name);
    if (!other.ptr) break;
    begin = now();
    if (!applies(&p, handle, &other)) die("%s is declined", name);
    samples[fresh] = now() - begin;
    begin = now();
    applies(&p, handle, &other);
    empty_samples[fresh] = now() - begin;
    free((void*)other.ptr);
  }
  print("applicable_new", samples, fresh);
  print("applicable_known", empty_samples, fresh);
  return 0;
}
