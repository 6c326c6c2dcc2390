// Modes about the company that a plugin keeps: another plugin, other threads, children, the end of Python.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "plugin.h"
#include "reference.h"

// Beside the plugin of HOST_OTHER, which doubles floats of graphs named pw_relu; N = 1: ours is loaded first. Both keep
// their handles, errors and results apart, and ours goes on when the other is gone.
void beside(void) {
  const char* other_path = getenv("HOST_OTHER");
  CHECK(other_path, "HOST_OTHER is not set");
  plugin_t ours, other;
  if (number) ours = plugin_open(path, flags);
  other = plugin_open(other_path, flags);
  if (!number) ours = plugin_open(path, flags);
  CHECK(plugin_engine(&ours) != plugin_engine(&other), "equal engine ids");
  void *a = make_handle(&ours), *b = make_handle(&other);
  CHECK(a != b, "equal handles");
  case_t each = case_read(folder), doubled = case_copy(&each);
  size_t size = 0, other_size = 0;
  void* context = build_plan(&ours, a, &each, &size);
  void* others = build_plan(&other, b, &each, &other_size);
  void *workspace = workspace_of(size), *other_workspace = aligned(other_size + 64);
  OK(&other, other.execute(b, others, other_workspace, doubled.buffers, doubled.count));
  OK(&ours, ours.execute(a, context, workspace, each.buffers, each.count));
  CHECK(!case_same_outputs(&each, &doubled), "one plugin answers for both");
  CHECK(ours.execute(b, context, workspace, each.buffers, each.count) == 1, "the other's handle is accepted");
  CHECK(strstr(plugin_error(&ours), "handle"), "%s", plugin_error(&ours));
  CHECK(!strstr(plugin_error(&other), "handle"), "the other plugin has our error: %s", plugin_error(&other));
  OK(&other, other.destroy_context(b, others));
  OK(&other, other.destroy(b));
  CHECK(dlclose(other.library) == 0, "dlclose");
  case_clear_outputs(&each);
  OK(&ours, ours.execute(a, context, workspace, each.buffers, each.count));
  reference_check(&each, folder);
  case_write_outputs(&each, folder);
  OK(&ours, ours.destroy_context(a, context));
  OK(&ours, ours.destroy(a));
}

enum { MAX_OVERRIDES = 16, MAX_RANK = 8 };

typedef struct {
  uint32_t count;
  int64_t uids[MAX_OVERRIDES], dims[MAX_OVERRIDES][MAX_RANK], strides[MAX_OVERRIDES][MAX_RANK];
  uint32_t lengths[MAX_OVERRIDES];
  const int64_t *dim_rows[MAX_OVERRIDES], *stride_rows[MAX_OVERRIDES];
} overrides_t;

// Lines "UID RANK DIMS... STRIDES..." of the file `overrides`.
static overrides_t* read_overrides(const char* from) {
  overrides_t* all = calloc(1, sizeof(*all));
  char name[4096];
  snprintf(name, sizeof(name), "%s/overrides", from);
  FILE* file = fopen(name, "r");
  CHECK(all && file, "%s cannot be read", name);
  long long value;
  while (fscanf(file, "%lld %u", &value, &all->lengths[all->count]) == 2) {
    uint32_t i = all->count++;
    all->uids[i] = value;
    for (uint32_t k = 0; k < 2 * all->lengths[i]; ++k) {
      CHECK(fscanf(file, "%lld", &value) == 1, "override %u", i);
      (k < all->lengths[i] ? all->dims[i] : all->strides[i])[k % all->lengths[i]] = value;
    }
    all->dim_rows[i] = all->dims[i];
    all->stride_rows[i] = all->strides[i];
  }
  fclose(file);
  return all;
}

// ExecuteOpGraphWithOverrides: the folders 0, 1, ... N - 1 inside the case's hold packs of other shapes for its graph.
void overridden(void) {
  plugin_t p = plugin_open(path, flags);
  void* handle = make_handle(&p);
  case_t base = case_read(folder);
  size_t size = 0;
  void* context = build_plan(&p, handle, &base, &size);
  void* workspace = workspace_of(size);
#define EXECUTE(pack, o)                                                                                          \
  p.execute_overridden(handle, context, workspace, (pack).buffers, (pack).count, (o)->count, (o)->uids, (o)->lengths, \
                       (o)->dim_rows, (o)->stride_rows)
  for (int round = 0; round < 2; ++round)
    for (long i = 0; i < number; ++i) {
      char name[4096];
      snprintf(name, sizeof(name), "%s/%ld", folder, i);
      case_t other = case_read(name);
      overrides_t* overrides = read_overrides(name);
      OK(&p, EXECUTE(other, overrides));
      reference_check(&other, name);
      free(overrides);
      case_free(&other);
    }
  OK(&p, p.execute_overridden(handle, context, workspace, base.buffers, base.count, 0, NULL, NULL, NULL, NULL));
  reference_check(&base, folder);
  char name[4096];
  snprintf(name, sizeof(name), "%s/0", folder);
  overrides_t* wrong = read_overrides(name);
  wrong->uids[0] = 4711;
  CHECK(EXECUTE(base, wrong) == 1 && strstr(plugin_error(&p), "4711"), "an unknown uid: %s", plugin_error(&p));
  wrong = read_overrides(name);
  wrong->dims[0][0] = -3;
  CHECK(EXECUTE(base, wrong) == 2, "a negative dim: %s", plugin_error(&p));
  wrong->dims[0][0] = INT64_MAX;
  CHECK(EXECUTE(base, wrong) == 2, "a dim that overflows: %s", plugin_error(&p));
  wrong->lengths[0] = 1u << 30;
  CHECK(EXECUTE(base, wrong) == 1 && strstr(plugin_error(&p), "dims"), "an endless row: %s", plugin_error(&p));
  wrong->lengths[0] = 0;
  CHECK(EXECUTE(base, wrong) != 0, "a row without dims is accepted");
  case_clear_outputs(&base);
  OK(&p, p.execute(handle, context, workspace, base.buffers, base.count));
  reference_check(&base, folder);
  OK(&p, p.destroy_context(handle, context));
  OK(&p, p.destroy(handle));
}

// ---- threads --------------------------------------------------------------------------------------------------------

typedef struct {
  const plugin_t* plugin;
  const case_t* each;
  const case_t* expected;
  long cycles;
  _Atomic int* stop;
} worker_t;

static void cycle(const plugin_t* p, const case_t* own, const case_t* expected) {
  void* handle = make_handle(p);
  size_t size = 0;
  void* context = build_plan(p, handle, own, &size);
  void* workspace = workspace_of(size);
  case_t copy = case_copy(own);
  OK(p, p->execute(handle, context, workspace, copy.buffers, copy.count));
  CHECK(case_same_outputs(&copy, expected), "a thread computes something else");
  case_free(&copy);
  OK(p, p->destroy_context(handle, context));
  OK(p, p->destroy(handle));
  free(workspace);
}

static void* cycling(void* argument) {
  const worker_t* work = argument;
  for (long i = 0; i < work->cycles; ++i) cycle(work->plugin, work->each, work->expected);
  return NULL;
}

// Eight threads, each N times a handle, a plan, an execution and the end of both. Growth is that of the second half.
void soak(void) {
  enum { THREADS = 8 };
  quiet = 1;
  plugin_t p = plugin_open(path, flags);
  void* handle = make_handle(&p);
  case_t each = case_read(folder), first = case_copy(&each);
  size_t size = 0;
  void* context = build_plan(&p, handle, &each, &size);
  OK(&p, p.execute(handle, context, workspace_of(size), first.buffers, first.count));
  long memory = 0, files = 0, threads = 0;
  double begin = now();
  for (int half = 0; half < 2; ++half) {
    memory = resident_kib();
    files = entries("/proc/self/fd");
    threads = entries("/proc/self/task");
    worker_t work = {&p, &each, &first, number / 2, NULL};
    pthread_t ids[THREADS];
    for (int i = 0; i < THREADS; ++i) CHECK(!pthread_create(&ids[i], NULL, cycling, &work), "no thread");
    for (int i = 0; i < THREADS; ++i) pthread_join(ids[i], NULL);
  }
  printf("soak %d x %ld ms %.3f growth_kib %ld growth_fds %ld growth_threads %ld\n", THREADS, number,
         (now() - begin) * 1e3 / (double)(THREADS * number), resident_kib() - memory, entries("/proc/self/fd") - files,
         entries("/proc/self/task") - threads);
  OK(&p, p.destroy_context(handle, context));
  OK(&p, p.destroy(handle));
  case_write_outputs(&first, folder);
}

static void* busy(void* argument) {
  const worker_t* work = argument;
  while (!*work->stop) cycle(work->plugin, work->each, work->expected);
  return NULL;
}

// N children, forked while other threads are inside the plugin; each executes an old plan and builds one.
void fork_busy(void) {
  quiet = 1;
  plugin_t p = plugin_open(path, flags);
  void* handle = make_handle(&p);
  case_t each = case_read(folder), first = case_copy(&each);
  size_t size = 0;
  void* context = build_plan(&p, handle, &each, &size);
  void* workspace = workspace_of(size);
  OK(&p, p.execute(handle, context, workspace, first.buffers, first.count));
  _Atomic int stop = 0;
  worker_t work = {&p, &each, &first, 0, &stop};
  pthread_t ids[3];
  for (int i = 0; i < 3; ++i) CHECK(!pthread_create(&ids[i], NULL, busy, &work), "no thread");
  for (long i = 0; i < number; ++i) {
    usleep(5000);
    pid_t child = fork();
    CHECK(child >= 0, "fork: %s", strerror(errno));
    if (!child) {
      alarm(60);
      case_t copy = case_copy(&each);
      OK(&p, p.execute(handle, context, workspace, copy.buffers, copy.count));
      if (!case_same_outputs(&copy, &first)) _exit(7);
      cycle(&p, &each, &first);
      _exit(0);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && status == 0, "child %ld ended with %#x", i, status);
  }
  stop = 1;
  for (int i = 0; i < 3; ++i) pthread_join(ids[i], NULL);
  OK(&p, p.destroy_context(handle, context));
  OK(&p, p.destroy(handle));
  case_write_outputs(&first, folder);
}

// ---- the end of Python ----------------------------------------------------------------------------------------------

static void* python_function(void* library, const char* name) {
  void* found = dlsym(library, name);
  CHECK(found, "%s is missing", name);
  return found;
}

// A host that ends the interpreter of HOST_LIBPYTHON while plans are alive. N = 0: the host has started it; N = 1: the
// plugin has. Afterwards graphs are declined, executions fail with a text, and everything can be destroyed.
void finalized(void) {
  const char* name = getenv("HOST_LIBPYTHON");
  CHECK(name, "HOST_LIBPYTHON is not set");
  void* python = NULL;
  void* (*save)(void) = NULL;
  if (!number) {
    python = dlopen(name, RTLD_NOW | RTLD_GLOBAL);
    CHECK(python, "%s", dlerror());
    ((void (*)(int))python_function(python, "Py_InitializeEx"))(0);
    save = (void* (*)(void))python_function(python, "PyEval_SaveThread");
    save();
  }
  plugin_t p = plugin_open(path, flags);
  void* handle = make_handle(&p);
  case_t each = case_read(folder);
  size_t size = 0;
  void* context = build_plan(&p, handle, &each, &size);
  void* workspace = workspace_of(size);
  data_t details = {NULL, 0};
  OK(&p, p.get_details(handle, plugin_engine(&p), &each.graph, &details));
  OK(&p, p.execute(handle, context, workspace, each.buffers, each.count));
  reference_check(&each, folder);
  case_write_outputs(&each, folder);
  if (!python) python = dlopen(name, RTLD_NOW | RTLD_NOLOAD);
  CHECK(python, "the plugin uses another Python than %s", name);
  ((int (*)(void))python_function(python, "PyGILState_Ensure"))();
  ((int (*)(void))python_function(python, "Py_FinalizeEx"))();

  CHECK(p.execute(handle, context, workspace, each.buffers, each.count) == 3, "an execution without Python");
  CHECK(*plugin_error(&p), "no text");
  int64_t id = 0;
  uint32_t count = 7;
  OK(&p, p.get_applicable(handle, &each.graph, &id, 1, &count));
  CHECK(count == 0, "a graph is claimed without Python");
  void* another = make_handle(&p);
  OK(&p, p.set_stream(another, NULL));
  OK(&p, p.destroy(another));
  if (p.set_log_level) OK(&p, p.set_log_level(2));
  OK(&p, p.destroy_details(handle, &details));
  OK(&p, p.destroy_context(handle, context));
  OK(&p, p.destroy(handle));
  if (!number) {  // a second life of the interpreter is not the plugin's
    ((void (*)(int))python_function(python, "Py_InitializeEx"))(0);
    handle = make_handle(&p);
    OK(&p, p.get_applicable(handle, &each.graph, &id, 1, &count));
    CHECK(count == 0, "a graph is claimed by what belonged to the first interpreter");
    OK(&p, p.destroy(handle));
  }
  printf("%s\n", plugin_error(&p));
}

// ---- damage ---------------------------------------------------------------------------------------------------------

static uint64_t state = 0x9E3779B97F4A7C15u;

static uint64_t draw(uint64_t below) {
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return state % below;
}

// A copy with a few bytes changed, moved or cut off; in a block of exactly its size, so that checkers see reads beyond.
static data_t damaged(const data_t* original) {
  size_t size = original->size;
  if (draw(4) == 0) size = 1 + draw(size);
  unsigned char* data = malloc(size);
  CHECK(data, "out of memory");
  memcpy(data, original->ptr, size);
  for (uint64_t i = 0, changes = 1 + draw(6); i < changes; ++i) {
    size_t at = draw(size), length = (size_t)1 << draw(4);
    if (at + length > size) length = size - at;
    switch (draw(4)) {
      case 0: data[at] ^= (unsigned char)(1u << draw(8)); break;
      case 1: memset(data + at, draw(2) ? 0xFF : 0, length); break;
      case 2: memmove(data + at, data + draw(size - length + 1), length); break;
      default: data[at] = (unsigned char)draw(256);
    }
  }
  return (data_t){data, size};
}

// N damaged graphs, configs and serialized plans through the functions that read them; none may take long.
void fuzz(void) {
  quiet = 1;
  plugin_t p = plugin_open(path, flags);
  if (p.set_log_level) OK(&p, p.set_log_level(4));
  void* handle = make_handle(&p);
  case_t each = case_read(folder);
  size_t size = 0;
  void *context = build_plan(&p, handle, &each, &size), *made = NULL;
  data_t plan = {NULL, 0}, config = engine_config(plugin_engine(&p));
  OK(&p, p.serialize(handle, context, &plan));
  long claimed = 0, described = 0, restored = 0, configured = 0;
  double slowest = 0;
  for (long i = 0; i < number; ++i) {
    double begin = now();
    data_t bytes = damaged(&each.graph), details = {NULL, 0};
    int64_t id = 0;
    uint32_t count = 7;
    OK(&p, p.get_applicable(handle, &bytes, &id, 1, &count));
    CHECK(count <= 1, "%u engines", count);
    claimed += count;
    int status = p.get_details(handle, plugin_engine(&p), &bytes, &details);
    // What is declined may have details still: they need no compiler and no memory, which may have been short.
    CHECK(status == 0 || count == 0, "applicable %u, details %d: %s", count, status, plugin_error(&p));
    if (!status) OK(&p, p.destroy_details(handle, &details));
    described += !status;
    free((void*)bytes.ptr);

    bytes = damaged(&config);
    status = p.get_workspace_size(handle, &bytes, &each.graph, &size);
    CHECK(status >= 0 && status <= 2, "a damaged config gives %d: %s", status, plugin_error(&p));
    configured += !status;
    free((void*)bytes.ptr);

    bytes = damaged(&plan);
    status = p.restore(handle, &bytes, &made);
    int is_same = bytes.size == plan.size && memcmp(bytes.ptr, plan.ptr, plan.size) == 0;
    CHECK(status == (is_same ? 0 : 2), "a damaged plan gives %d: %s", status, plugin_error(&p));
    if (!status) OK(&p, p.destroy_context(handle, made));
    restored += !status;
    free((void*)bytes.ptr);
    if (now() - begin > slowest) slowest = now() - begin;
  }
  OK(&p, p.destroy_serialized(handle, &plan));
  OK(&p, p.destroy_context(handle, context));
  OK(&p, p.destroy(handle));
  printf("fuzz %ld claimed %ld described %ld configured %ld restored %ld slowest_ms %.1f\n", number, claimed, described,
         configured, restored, slowest * 1e3);
}
