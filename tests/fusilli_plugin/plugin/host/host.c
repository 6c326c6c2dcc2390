// A program without Python that drives the plugin as hipDNN's backend does: host PLUGIN local|deepbind MODE CASE [N].
//
// Modes are functions below. Options in the environment, which the test leaves otherwise empty: HOST_CHILD=ignore|reap,
// HOST_CLOSE=1 (standard descriptors), HOST_LOG_LEVEL.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "plugin.h"
#include "reference.h"

const char* path;
const char* folder;
int flags;
long number;

// The whole order of calls, with a stream or without, several executions.
static void walk(void) {
  plugin_t p = plugin_open(path, flags);
  void* handle = make_handle(&p);
  if (number) OK(&p, p.set_stream(handle, NULL));
  case_t each = case_read(folder);
  size_t size = 0;
  void* context = build_plan(&p, handle, &each, &size);
  void* workspace = workspace_of(size);
  case_t graph_gone = case_copy(&each);
  memset((void*)each.graph.ptr, 0x55, each.graph.size);  // the plan keeps nothing of it
  OK(&p, p.execute(handle, context, workspace, graph_gone.buffers, graph_gone.count));
  case_write_outputs(&graph_gone, folder);
  reference_check(&graph_gone, folder);
  for (int i = 0; i < 3; ++i) {
    case_t again = case_copy(&each);
    buffer_t extra[MAX_BUFFERS + 1];
    for (uint32_t k = 0; k < again.count; ++k) extra[again.count - k] = again.buffers[k];
    extra[0] = (buffer_t){999, NULL};  // packs are not filtered and in any order
    OK(&p, p.execute(handle, context, workspace, extra, again.count + 1));
    CHECK(case_same_outputs(&again, &graph_gone), "execution %d differs", i + 2);
    case_free(&again);
  }
  OK(&p, p.destroy_context(handle, context));
  OK(&p, p.destroy(handle));
  printf("workspace %zu\n", size);
}

enum { GUARD = 64 };

// One case of many: no input and nothing behind a buffer is written to, and a second execution gives the same bytes.
static void guarded(const plugin_t* p, void* handle, const char* where) {
  case_t each = case_read(where), given = each;
  for (uint32_t i = 0; i < each.count; ++i) {
    unsigned char* memory = aligned(each.sizes[i] + GUARD);
    memcpy(memory, each.buffers[i].ptr, each.sizes[i]);
    memset(memory + each.sizes[i], 0xA5, GUARD);
    given.buffers[i].ptr = memory;
  }
  size_t size = 0;
  void* context = build_plan(p, handle, &given, &size);
  void* workspace = workspace_of(size);
  OK(p, p->execute(handle, context, workspace, given.buffers, given.count));
  case_write_outputs(&given, where);
  case_t again = case_copy(&given);
  OK(p, p->execute(handle, context, workspace, again.buffers, again.count));
  CHECK(case_same_outputs(&again, &given), "%s: the second execution differs", where);
  for (uint32_t i = 0; i < each.count; ++i) {
    const unsigned char* memory = given.buffers[i].ptr;
    for (int k = 0; k < GUARD; ++k)
      CHECK(memory[each.sizes[i] + k] == 0xA5, "%s: byte %d behind tensor %lld is written", where, k,
            (long long)each.buffers[i].uid);
    CHECK(each.is_output[i] || memcmp(memory, each.buffers[i].ptr, each.sizes[i]) == 0, "%s: input %lld is written",
          where, (long long)each.buffers[i].uid);
  }
  OK(p, p->destroy_context(handle, context));
  case_free(&again);
  case_free(&given);
  free(workspace);
}

// N cases in the folders 0, 1, ...
static void tables(void) {
  plugin_t p = plugin_open(path, flags);
  void* handle = make_handle(&p);
  for (long i = 0; i < number; ++i) {
    char where[4096];
    snprintf(where, sizeof(where), "%s/%ld", folder, i);
    guarded(&p, handle, where);
  }
  OK(&p, p.destroy(handle));
}

static void expect(const plugin_t* p, const char* what, int status, int wanted, const char* text) {
  CHECK(status == wanted, "%s: status %d, expected %d (%s)", what, status, wanted, plugin_error(p));
  CHECK(strstr(plugin_error(p), text), "%s: '%s' does not hold '%s'", what, plugin_error(p), text);
}

// What a host may get wrong: each has its status and its text, and the plan still works afterwards.
static void errors(void) {
  plugin_t p = plugin_open(path, flags);
  void* handle = make_handle(&p);
  case_t each = case_read(folder);
  size_t size = 0;
  void* context = build_plan(&p, handle, &each, &size);
  void* workspace = workspace_of(size);
  int64_t engine = plugin_engine(&p);
  data_t config = engine_config(engine), other = engine_config(engine + 1), out;
  void* made = NULL;
  size_t bytes = 0;
  uint32_t count = 7;
  int64_t id = 0;

  buffer_t few[1] = {{99, workspace}};
  expect(&p, "unknown uids", p.execute(handle, context, workspace, few, 1), 1, "no buffer for tensor");
  case_t holed = case_copy(&each);
  holed.buffers[0].ptr = NULL;
  expect(&p, "NULL buffer", p.execute(handle, context, workspace, holed.buffers, holed.count), 1, "is NULL");
  if (size)
    expect(&p, "no workspace", p.execute(handle, context, NULL, each.buffers, each.count), 1, "bytes of workspace");
  expect(&p, "foreign context", p.execute(handle, (void*)0x12340, workspace, each.buffers, each.count), 1, "0x12340");
  expect(&p, "foreign handle", p.execute((void*)0x55, context, workspace, each.buffers, each.count), 1, "handle");
  expect(&p, "engine of others", p.get_details(handle, engine + 1, &each.graph, &out), 1, "not of this plugin");
  expect(&p, "config of others", p.create_context(handle, &other, &each.graph, &made), 1, "engine");
  expect(&p, "config of others", p.get_workspace_size(handle, &other, &each.graph, &bytes), 1, "engine");

  data_t cut = {each.graph.ptr, each.graph.size / 2};
  OK(&p, p.get_applicable(handle, &cut, &id, 1, &count));
  CHECK(count == 0, "a damaged graph is claimed");
  expect(&p, "damaged graph", p.create_context(handle, &config, &cut, &made), 2, "not served");
  data_t half = {config.ptr, 11};
  expect(&p, "damaged config", p.create_context(handle, &half, &each.graph, &made), 2, "");
  expect(&p, "no plan", p.restore(handle, &each.graph, &made), 2, "serialized plan");
  data_t foreign = {&foreign, 8};
  expect(&p, "foreign details", p.destroy_details(handle, &foreign), 1, "not of this plugin");

  case_t after = case_copy(&each);
  OK(&p, p.execute(handle, context, workspace, after.buffers, after.count));
  OK(&p, p.destroy_context(handle, context));
  expect(&p, "destroyed context", p.execute(handle, context, workspace, each.buffers, each.count), 1, "destroyed");
  expect(&p, "destroyed twice", p.destroy_context(handle, context), 1, "destroyed");
  OK(&p, p.destroy(handle));
  expect(&p, "destroyed handle", p.set_stream(handle, NULL), 1, "destroyed");
  expect(&p, "destroyed twice", p.destroy(handle), 1, "destroyed");
}

// Every function once with each pointer NULL; before and after Python is there.
static void nulls(void) {
  plugin_t p = plugin_open(path, flags);
  p.get_last_error(NULL);
  for (int round = 0; round < 2; ++round) {
    void* handle = make_handle(&p);
    case_t each = case_read(folder);
    size_t size = 0;
    void* context = round ? build_plan(&p, handle, &each, &size) : NULL;
    data_t config = engine_config(plugin_engine(&p)), out = {NULL, 0}, none = {NULL, 0};
    const data_t* g = &each.graph;
    uint32_t count;
    int64_t id;
    int64_t uids[1] = {1};
    uint32_t lengths[1] = {1};
    const int64_t* rows[1] = {NULL};
#define BAD(call) CHECK((call) == 1 && *plugin_error(&p), "round %d: %s gives no BAD_PARAM", round, #call)
    BAD(p.get_name(NULL));
    BAD(p.get_version(NULL));
    BAD(p.get_type(NULL));
    BAD(p.get_api_version(NULL));
    BAD(p.set_callback(NULL));
    BAD(p.set_log_level(17));
    BAD(p.get_all_ids(NULL, 1, &count));
    BAD(p.get_all_ids(&id, 1, NULL));
    BAD(p.get_engine_name(plugin_engine(&p), NULL));
    BAD(p.create(NULL));
    BAD(p.destroy(NULL));
    BAD(p.set_stream(NULL, NULL));
    BAD(p.get_applicable(NULL, g, &id, 1, &count));
    BAD(p.get_applicable(handle, NULL, &id, 1, &count));
    BAD(p.get_applicable(handle, &none, &id, 1, &count));
    BAD(p.get_applicable(handle, g, NULL, 1, &count));
    BAD(p.get_applicable(handle, g, &id, 1, NULL));
    BAD(p.get_details(NULL, plugin_engine(&p), g, &out));
    BAD(p.get_details(handle, plugin_engine(&p), NULL, &out));
    BAD(p.get_details(handle, plugin_engine(&p), g, NULL));
    BAD(p.destroy_details(NULL, &out));
    BAD(p.destroy_details(handle, NULL));
    BAD(p.get_workspace_size(NULL, &config, g, &size));
    BAD(p.get_workspace_size(handle, NULL, g, &size));
    BAD(p.get_workspace_size(handle, &config, NULL, &size));
    BAD(p.get_workspace_size(handle, &config, g, NULL));
    BAD(p.create_context(NULL, &config, g, &context));
    BAD(p.create_context(handle, NULL, g, &context));
    BAD(p.create_context(handle, &config, NULL, &context));
    BAD(p.create_context(handle, &config, g, NULL));
    BAD(p.destroy_context(NULL, context));
    BAD(p.destroy_context(handle, NULL));
    BAD(p.get_context_workspace_size(NULL, context, &size));
    BAD(p.get_context_workspace_size(handle, NULL, &size));
    BAD(p.get_context_workspace_size(handle, context, NULL));
    BAD(p.execute(NULL, context, NULL, each.buffers, each.count));
    BAD(p.execute(handle, NULL, NULL, each.buffers, each.count));
    BAD(p.execute(handle, context, NULL, NULL, each.count));
    BAD(p.execute(handle, context, NULL, each.buffers, 0));
    BAD(p.execute_overridden(handle, context, NULL, each.buffers, each.count, 1, NULL, NULL, NULL, NULL));
    BAD(p.execute_overridden(handle, context, NULL, each.buffers, each.count, 1, uids, lengths, rows, rows));
    BAD(p.execute_overridden(NULL, context, NULL, each.buffers, each.count, 0, NULL, NULL, NULL, NULL));
    BAD(p.serialize(NULL, context, &out));
    BAD(p.serialize(handle, NULL, &out));
    BAD(p.serialize(handle, context, NULL));
    BAD(p.destroy_serialized(NULL, &out));
    BAD(p.destroy_serialized(handle, NULL));
    BAD(p.restore(NULL, g, &context));
    BAD(p.restore(handle, NULL, &context));
    BAD(p.restore(handle, g, NULL));
    OK(&p, p.destroy_details(handle, &out));  // nothing to free
    if (context) OK(&p, p.destroy_context(handle, context));
    OK(&p, p.destroy(handle));
  }
}

typedef struct {
  const plugin_t* plugin;
  const case_t* each;
  pthread_barrier_t* start;
} job_t;

static void* thread(void* argument) {
  const job_t* job = argument;
  const plugin_t* p = job->plugin;
  case_t own = case_copy(job->each), first = case_copy(job->each);
  pthread_barrier_wait(job->start);
  void* handle = make_handle(p);
  size_t size = 0;
  void* context = build_plan(p, handle, &own, &size);
  void* workspace = workspace_of(size);
  OK(p, p->execute(handle, context, workspace, first.buffers, first.count));
  for (int i = 0; i < 200; ++i) {
    case_clear_outputs(&own);
    OK(p, p->execute(handle, context, workspace, own.buffers, own.count));
    CHECK(case_same_outputs(&own, &first), "execution %d differs", i);
  }
  buffer_t few[1] = {{(int64_t)(intptr_t)handle, handle}};
  CHECK(p->execute(handle, context, workspace, few, 1) == 1, "a pack of one foreign buffer is accepted");
  CHECK(strstr(plugin_error(p), "no buffer for tensor"), "another thread's text: %s", plugin_error(p));
  OK(p, p->destroy_context(handle, context));
  OK(p, p->destroy(handle));
  case_write_outputs(&first, folder);
  return NULL;
}

#ifdef __SANITIZE_THREAD__  // what it keeps of a thread lies on that thread's stack
enum { SMALL_STACK = 4 << 20 };
#else
enum { SMALL_STACK = 256 << 10 };
#endif

// N threads with their own handles; the first calls of the process race.
static void threads(void) {
  plugin_t p = plugin_open(path, flags);
  case_t each = case_read(folder);
  pthread_barrier_t start;
  pthread_barrier_init(&start, NULL, (unsigned)number);
  job_t job = {&p, &each, &start};
  pthread_t ids[64];
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, SMALL_STACK);
  for (long i = 0; i < number; ++i) CHECK(!pthread_create(&ids[i], &attributes, thread, &job), "no thread");
  for (long i = 0; i < number; ++i) pthread_join(ids[i], NULL);
}

// The backend unloads plugins with its last handle and loads them again.
static void reload(void) {
  for (long i = 0; i < number; ++i) {
    plugin_t p = plugin_open(path, flags);
    void* handle = make_handle(&p);
    case_t each = case_read(folder);
    size_t size = 0;
    void* context = build_plan(&p, handle, &each, &size);
    OK(&p, p.execute(handle, context, workspace_of(size), each.buffers, each.count));
    OK(&p, p.destroy_context(handle, context));
    OK(&p, p.destroy(handle));
    case_write_outputs(&each, folder);
    CHECK(dlclose(p.library) == 0, "dlclose");
  }
}

// N times create, execute, destroy: prints the growth of resident memory, descriptors and threads over the second half.
static void cycles(void) {
  quiet = 1;
  plugin_t p = plugin_open(path, flags);
  case_t each = case_read(folder);
  long half = 0, files = 0, threads = 0;
  double begin = now();
  for (long i = 0; i < number; ++i) {
    void* handle = make_handle(&p);
    size_t size = 0;
    void* context = build_plan(&p, handle, &each, &size);
    void* workspace = workspace_of(size);
    OK(&p, p.execute(handle, context, workspace, each.buffers, each.count));
    OK(&p, p.destroy_context(handle, context));
    OK(&p, p.destroy(handle));
    free(workspace);
    if (i != number / 2) continue;
    half = resident_kib();
    files = entries("/proc/self/fd");
    threads = entries("/proc/self/task");
  }
  printf("cycles %ld ms %.3f growth_kib %ld growth_fds %ld growth_threads %ld\n", number,
         (now() - begin) * 1e3 / (double)number, resident_kib() - half, entries("/proc/self/fd") - files,
         entries("/proc/self/task") - threads);
  case_write_outputs(&each, folder);
}

// A plan of one handle executed by another; the first is destroyed before; a plan outlives all handles.
static void handles(void) {
  plugin_t p = plugin_open(path, flags);
  case_t each = case_read(folder), first = case_copy(&each);
  void *a = make_handle(&p), *b = make_handle(&p);
  CHECK(a != b, "equal handles");
  size_t size = 0;
  void* context = build_plan(&p, a, &each, &size);
  void* workspace = workspace_of(size);
  OK(&p, p.execute(a, context, workspace, first.buffers, first.count));
  OK(&p, p.execute(b, context, workspace, each.buffers, each.count));
  CHECK(case_same_outputs(&each, &first), "the other handle computes something else");
  OK(&p, p.destroy(a));
  case_clear_outputs(&each);
  OK(&p, p.execute(b, context, workspace, each.buffers, each.count));
  CHECK(case_same_outputs(&each, &first), "after the first handle is gone");
  OK(&p, p.destroy(b));
  void* c = make_handle(&p);
  case_clear_outputs(&each);
  OK(&p, p.execute(c, context, workspace, each.buffers, each.count));
  CHECK(case_same_outputs(&each, &first), "after all old handles are gone");
  OK(&p, p.destroy_context(c, context));
  OK(&p, p.destroy(c));
  case_write_outputs(&first, folder);
}

// The other published form of restoring a plan: with the config of the engine.
static void restore_with_config(plugin_t* p, void* handle, const data_t* own, case_t* each, void* workspace) {
  typedef int (*with_config_t)(void*, const data_t*, const data_t*, void**);
  with_config_t restore = (with_config_t)(void (*)(void))p->restore;
  data_t config = engine_config(plugin_engine(p)), other = engine_config(plugin_engine(p) + 1);
  data_t less = {own->ptr, own->size - 1}, none = {NULL, 0};
  void* restored = NULL;
  OK(p, restore(handle, &config, own, &restored));
  OK(p, p->execute(handle, restored, workspace, each->buffers, each->count));
  OK(p, p->destroy_context(handle, restored));
  expect(p, "a cut plan", restore(handle, &config, &less, &restored), 2, "damaged");
  expect(p, "an empty plan", restore(handle, &config, &none, &restored), 1, "empty");
  expect(p, "no plan", restore(handle, &config, NULL, &restored), 1, "NULL");
  expect(p, "no context", restore(handle, &config, own, NULL), 1, "execution_context is NULL");
  expect(p, "config of others", restore(handle, &other, own, &restored), 2, "no serialized plan");
}

// Plans as bytes: restored in this process, and refused when damaged.
static void serialized(void) {
  plugin_t p = plugin_open(path, flags);
  void* handle = make_handle(&p);
  case_t each = case_read(folder), first = case_copy(&each);
  size_t size = 0, restored_size = 0;
  void *context = build_plan(&p, handle, &each, &size), *restored = NULL;
  void* workspace = workspace_of(size);
  OK(&p, p.execute(handle, context, workspace, first.buffers, first.count));
  data_t data = {NULL, 0};
  OK(&p, p.serialize(handle, context, &data));
  CHECK(data.ptr && data.size, "no bytes");
  unsigned char* copy = aligned(data.size);
  memcpy(copy, data.ptr, data.size);
  data_t own = {copy, data.size};
  OK(&p, p.destroy_serialized(handle, &data));
  CHECK(!data.ptr && !data.size, "not cleared");
  OK(&p, p.destroy_context(handle, context));
  OK(&p, p.restore(handle, &own, &restored));
  OK(&p, p.get_context_workspace_size(handle, restored, &restored_size));
  CHECK(restored_size == size, "workspace %zu, before %zu", restored_size, size);
  OK(&p, p.execute(handle, restored, workspace, each.buffers, each.count));
  CHECK(case_same_outputs(&each, &first), "the restored plan computes something else");
  OK(&p, p.destroy_context(handle, restored));
  restore_with_config(&p, handle, &own, &each, workspace);
  CHECK(case_same_outputs(&each, &first), "the plan restored with a config computes something else");
  for (long i = 0; i < number; ++i) {
    size_t at = i < number / 2 ? (size_t)i : (size_t)(i * 7919) % own.size;  // the header, then anywhere
    copy[at] ^= 0x41;
    restored = NULL;
    int status = p.restore(handle, &own, &restored);
    CHECK(status == 2, "a flipped byte at %zu gives status %d: %s", at, status, plugin_error(&p));
    copy[at] ^= 0x41;
  }
  for (size_t cut_off = 1; cut_off < own.size; cut_off += 1 + own.size / 50) {
    data_t less = {copy, own.size - cut_off};
    CHECK(p.restore(handle, &less, &restored) == 2, "%zu bytes cut off: %s", cut_off, plugin_error(&p));
  }
  OK(&p, p.destroy(handle));
  case_write_outputs(&first, folder);
}

// The child of a process that has used the plugin executes its plan and builds another.
static void forked(void) {
  plugin_t p = plugin_open(path, flags);
  void* handle = make_handle(&p);
  case_t each = case_read(folder), first = case_copy(&each);
  size_t size = 0;
  void* context = build_plan(&p, handle, &each, &size);
  void* workspace = workspace_of(size);
  OK(&p, p.execute(handle, context, workspace, first.buffers, first.count));
  fflush(NULL);
  pid_t child = fork();
  CHECK(child >= 0, "fork: %s", strerror(errno));
  if (!child) {
    alarm(60);
    OK(&p, p.execute(handle, context, workspace, each.buffers, each.count));
    CHECK(case_same_outputs(&each, &first), "in the child");
    void* another = make_handle(&p);
    void* plan = build_plan(&p, another, &each, &size);
    case_clear_outputs(&each);
    OK(&p, p.execute(another, plan, workspace, each.buffers, each.count));
    CHECK(case_same_outputs(&each, &first), "a plan of the child");
    OK(&p, p.destroy_context(another, plan));
    _exit(0);
  }
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child || errno == ECHILD, "waitpid");
  CHECK(status == 0 || status == -1, "the child ended with %#x", status);
  OK(&p, p.execute(handle, context, workspace, each.buffers, each.count));
  CHECK(case_same_outputs(&each, &first), "in the parent");
  case_write_outputs(&first, folder);
}

// Signals, locale and environment are the host's and stay as they are.
static void leaves_the_host_alone(void) {
  struct sigaction before[65], after;
  for (int i = 1; i < 65; ++i) sigaction(i, NULL, &before[i]);
  setlocale(LC_ALL, "C");
  extern char** environ;
  unsigned variables = 0, later = 0;
  for (char** at = environ; *at; ++at) ++variables;
  walk();
  for (int i = 1; i < 65; ++i) {
    if (sigaction(i, NULL, &after) != 0) continue;  // the C library's own
    CHECK(after.sa_handler == before[i].sa_handler, "signal %d has another handler", i);
  }
  CHECK(strcmp(setlocale(LC_ALL, NULL), "C") == 0, "locale %s", setlocale(LC_ALL, NULL));
  for (char** at = environ; *at; ++at) ++later;
  CHECK(variables == later, "%u variables, before %u", later, variables);
}

// Declines: the answer is "none", the reason goes to the log, and the plugin stays usable.
static void declined(void) {
  plugin_t p = plugin_open(path, flags);
  void* handle = make_handle(&p);
  case_t each = case_read(folder);
  int64_t id = 0;
  uint32_t count = 7;
  for (int i = 0; i < 3; ++i) {
    OK(&p, p.get_applicable(handle, &each.graph, &id, 1, &count));
    CHECK(count == 0, "%u engines apply", count);
  }
  OK(&p, p.destroy(handle));
  printf("log %s\n", last_log);
}

// Who the plugin is, and whether each of the graphs 0.bin, 1.bin ... N - 1.bin is claimed, with the last log line of those that are not.
static void applies(void) {
  plugin_t p = plugin_open(path, flags);
  void* handle = make_handle(&p);
  const char *api = NULL, *name = NULL;
  OK(&p, p.get_api_version(&api));
  OK(&p, p.get_engine_name(plugin_engine(&p), &name));
  int optional = !!p.set_callback + !!p.set_log_level + !!p.get_api_version + !!p.get_engine_name +
                 !!p.execute_overridden + !!p.serialize + !!p.destroy_serialized + !!p.restore;
  printf("engine %lld\nname %s\napi %s\noptional %d\n", (long long)plugin_engine(&p), name, api, optional);
  for (long i = 0; i < number; ++i) {
    char file[64];
    snprintf(file, sizeof(file), "%ld.bin", i);
    data_t graph = read_file(folder, file);
    int64_t id = 0;
    uint32_t count = 0;
    OK(&p, p.get_applicable(handle, &graph, &id, 1, &count));
    printf("%s %s\n", count ? "yes" : "no", count ? "" : last_log);
  }
  OK(&p, p.destroy(handle));
}

// Microseconds per call; the best of several rounds.
static void latency(void) {
  quiet = 1;
  plugin_t p = plugin_open(path, flags);
  if (p.set_log_level) OK(&p, p.set_log_level(4));
  void* handle = make_handle(&p);
  case_t each = case_read(folder);
  double begin = now();
  size_t size = 0;
  void* context = build_plan(&p, handle, &each, &size);
  void* workspace = workspace_of(size);
  OK(&p, p.execute(handle, context, workspace, each.buffers, each.count));
  double first = now() - begin, second = 1e9, execute = 1e9, applicable = 1e9;
  for (int round = 0; round < 20; ++round) {
    begin = now();
    void* again = build_plan(&p, handle, &each, &size);
    double built = now() - begin;
    if (built < second) second = built;
    OK(&p, p.destroy_context(handle, again));
    begin = now();
    for (long i = 0; i < number; ++i) OK(&p, p.execute(handle, context, workspace, each.buffers, each.count));
    double spent = (now() - begin) / (double)number;
    if (spent < execute) execute = spent;
    uint32_t count = 0;
    int64_t id = 0;
    begin = now();
    for (int i = 0; i < 100; ++i) OK(&p, p.get_applicable(handle, &each.graph, &id, 1, &count));
    spent = (now() - begin) / 100;
    if (spent < applicable) applicable = spent;
  }
  printf("first_ms %.1f second_build_ms %.3f execute_us %.2f applicable_us %.1f rss_mib %.0f\n", first * 1e3,
         second * 1e3, execute * 1e6, applicable * 1e6, (double)resident_kib() / 1024);
}

static void at_exit_handler(void);
static plugin_t exit_plugin;
static void *exit_handle, *exit_context;

// A plan that is destroyed while the process ends.
static void at_exit(void) {
  exit_plugin = plugin_open(path, flags);
  exit_handle = make_handle(&exit_plugin);
  case_t each = case_read(folder);
  size_t size = 0;
  exit_context = build_plan(&exit_plugin, exit_handle, &each, &size);
  OK(&exit_plugin, exit_plugin.execute(exit_handle, exit_context, workspace_of(size), each.buffers, each.count));
  case_write_outputs(&each, folder);
  atexit(at_exit_handler);
}

static void at_exit_handler(void) {
  if (exit_plugin.destroy_context(exit_handle, exit_context) || exit_plugin.destroy(exit_handle)) _exit(3);
}

int host_main(int argc, char** argv);
int host_main(int argc, char** argv) {
  static const struct {
    const char* name;
    void (*function)(void);
  } modes[] = {{"walk", walk},           {"errors", errors},         {"nulls", nulls},     {"threads", threads},
               {"reload", reload},       {"cycles", cycles},         {"handles", handles}, {"serialized", serialized},
               {"forked", forked},       {"alone", leaves_the_host_alone}, {"declined", declined},
               {"latency", latency},     {"at_exit", at_exit},       {"applies", applies}, {"beside", beside},   {"overridden", overridden},
               {"soak", soak},           {"finalized", finalized},   {"fuzz", fuzz},       {"fork_busy", fork_busy},
               {"fork_first", fork_first}, {"fork_stranger", fork_stranger}, {"fork_storm", fork_storm},
               {"signals", signals},     {"locale", locale},         {"moved", moved},
               {"small_stack", small_stack}, {"small_memory", small_memory}, {"unruly", unruly},
               {"small_files", small_files}, {"cancelled", cancelled}, {"dropped", dropped},
               {"tables", tables}};
  CHECK(argc >= 5, "usage: host PLUGIN local|deepbind MODE CASE [N]");
  path = argv[1];
  flags = RTLD_NOW | (strcmp(argv[2], "deepbind") == 0 ? RTLD_DEEPBIND : RTLD_LOCAL);
  folder = argv[4];
  number = argc > 5 ? atol(argv[5]) : 0;
  const char* child = getenv("HOST_CHILD");
  if (child) {
    struct sigaction action = {.sa_handler = SIG_IGN, .sa_flags = strcmp(child, "reap") == 0 ? SA_NOCLDWAIT : 0};
    sigaction(SIGCHLD, &action, NULL);
  }
  if (getenv("HOST_CLOSE"))
    for (int i = 0; i < 3; ++i) close(i);
  for (size_t i = 0; i < sizeof(modes) / sizeof(*modes); ++i) {
    if (strcmp(argv[3], modes[i].name) != 0) continue;
    modes[i].function();
    return 0;
  }
  CHECK(0, "no mode %s", argv[3]);
  return 2;
}

int main(int argc, char** argv) { return host_main(argc, argv); }
