/* An engine plugin in plain C, for the tests of the conformance checks: RELU of packed FLOAT tensors, computed on the host.
 *
 * It keeps to every rule, unless a macro says otherwise:
 *   CARELESS  believes any bytes, and loses 8 KiB and an open file with each plan
 *   BOASTFUL  claims every function of one FLOAT operand, and computes RELU; reads no more than that of a graph
 *   FRAGILE   ends the process at one of the functions that a boastful one claims
 *   STUCK     never comes back from an execution
 *   OLD       has the functions of November 2025 alone
 *   WITH_CONFIG  restores plans by the published form with four arguments
 */
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
enum { SUCCESS, BAD_PARAM, INVALID_VALUE, INTERNAL_ERROR, ALLOC_FAILED, NOT_APPLICABLE };
enum { FLOAT = 1, POINTWISE = 2, EXP = 16, RELU_FWD = 34 };
enum { MAGIC = 0x554c4552 };

typedef struct { const void *ptr; size_t size; } const_data;
typedef struct { int64_t uid; void *ptr; } device_buffer;
typedef struct { void *stream; } handle;
typedef struct { int64_t magic, x, y, count; uint64_t sum; } plan;

static _Thread_local char last_error[256];
static void (*log_callback)(int, const char *);
static int log_level;

static int fail(int status, const char *text) {
  snprintf(last_error, sizeof last_error, "%s", text);
  if (log_callback && log_level <= 1) log_callback(1, text);
  return status;
}
#define REQUIRE(condition, text) if (!(condition)) return fail(BAD_PARAM, text)

static uint64_t hash(const void *data, size_t size) { /* FNV-1a */
  uint64_t value = 0xcbf29ce484222325u;
  for (const unsigned char *c = data; size--; ++c) value = (value ^ *c) * 0x100000001b3u;
  return value;
}
static int64_t engine(void) { return (int64_t)hash("RELU_ENGINE", strlen("RELU_ENGINE")); }
static uint64_t sum_of(const plan *p) { return hash(p, offsetof(plan, sum)); }

/* ---- FlatBuffers, read by hand: offsets into the bytes, 0 for what is not there ---- */

static int inside(const const_data *data, size_t at, size_t size) {
#ifdef CARELESS
  (void)data; (void)at; (void)size;
  return 1;
#else
  return at && at <= data->size && size <= data->size - at;
#endif
}
static uint64_t number(const const_data *data, size_t at, size_t size) {
  uint64_t value = 0;
  if (at && inside(data, at, size)) memcpy(&value, (const char *)data->ptr + at, size);
  return value;
}
static size_t follow(const const_data *data, size_t at) {
  uint64_t step = at && inside(data, at, 4) ? number(data, at, 4) : 0;
  return step && inside(data, at + step, 4) ? at + step : 0;
}
static size_t root(const const_data *data) {
  uint32_t at = 0;
  if (data->size < 8) return 0;
  memcpy(&at, data->ptr, 4);
  return inside(data, at, 4) ? at : 0;
}
static size_t slot(const const_data *data, size_t table, int index) {
  int64_t vtable = table ? (int64_t)table - (int32_t)number(data, table, 4) : 0;
  if (vtable <= 0 || !inside(data, (size_t)vtable, 4)) return 0;
  size_t entry = (size_t)vtable + 4 + 2 * (size_t)index;
  if (number(data, (size_t)vtable, 2) < 6 + 2 * (uint64_t)index || !inside(data, entry, 2)) return 0;
  uint64_t offset = number(data, entry, 2);
  return offset ? table + offset : 0;
}

typedef struct { int type; int is_virtual, is_plain; int64_t count; } tensor;

static int find_tensor(const const_data *data, size_t graph, int64_t uid, tensor *out) {
  size_t list = follow(data, slot(data, graph, 4));
  uint64_t length = number(data, list, 4);
  for (uint64_t i = 0; list && i < length && i < 4096; ++i) {
    size_t table = follow(data, list + 4 + 4 * i);
    if (!table) return 0;
    if ((int64_t)number(data, slot(data, table, 0), 8) != uid) continue;
    size_t strides = follow(data, slot(data, table, 3)), dims = follow(data, slot(data, table, 4));
    uint64_t rank = number(data, dims, 4);
    if (!dims || !strides || rank > 16 || rank != number(data, strides, 4)) return 0;
    *out = (tensor){.type = (int)number(data, slot(data, table, 2), 1), .is_plain = 1, .count = 1};
    out->is_virtual = (int)number(data, slot(data, table, 5), 1) || slot(data, table, 6) || slot(data, table, 7);
    for (uint64_t axis = rank; axis-- > 0;) {
      int64_t dim = (int64_t)number(data, dims + 4 + 8 * axis, 8);
      int64_t stride = (int64_t)number(data, strides + 4 + 8 * axis, 8);
      if (dim < 1 || dim > 1 << 20 || out->count > 1 << 20) return 0;
      if (dim > 1 && stride != out->count) out->is_plain = 0;
      out->count *= dim;
    }
    return 1;
  }
  return 0;
}

static int read_plan(const const_data *data, plan *out) {
  size_t graph = root(data), nodes = follow(data, slot(data, graph, 5));
  if (!nodes || number(data, nodes, 4) != 1) return 0;
  size_t node = follow(data, nodes + 4);
#ifdef OLD
  const int first = 1;
#else
  const int first = 2;
#endif
  if (number(data, slot(data, node, first), 1) != POINTWISE) return 0;
  size_t table = follow(data, slot(data, node, first + 1));
  if (!table) return 0;
#ifdef BOASTFUL
  if (slot(data, table, 6)) return 0;
#else
  if (number(data, slot(data, table, 0), 1) != RELU_FWD) return 0;
  for (int index = 1; index <= 11; ++index)
    if (index != 5 && index != 8 && slot(data, table, index)) return 0;
  if (number(data, slot(data, graph, 7), 1)) return 0; /* overridable dims */
#endif
  tensor x, y;
  out->x = (int64_t)number(data, slot(data, table, 5), 8);
  out->y = (int64_t)number(data, slot(data, table, 8), 8);
  if (!find_tensor(data, graph, out->x, &x) || !find_tensor(data, graph, out->y, &y)) return 0;
  if (x.type != FLOAT || y.type != FLOAT || x.is_virtual || y.is_virtual || !x.is_plain || !y.is_plain) return 0;
  if (x.count != y.count || out->x == out->y) return 0;
  out->count = x.count;
  out->magic = MAGIC;
  out->sum = sum_of(out);
  return 1;
}

static int is_ours(const const_data *config) {
  size_t table = root(config);
  return table && (int64_t)number(config, slot(config, table, 0), 8) == engine();
}

/* ---- the interface ---- */

EXPORT int hipdnnPluginGetName(const char **name) { REQUIRE(name, "name is NULL"); *name = "relu"; return SUCCESS; }
EXPORT int hipdnnPluginGetVersion(const char **version) { REQUIRE(version, "NULL"); *version = "1"; return SUCCESS; }
EXPORT int hipdnnPluginGetType(int *type) { REQUIRE(type, "type is NULL"); *type = 1; return SUCCESS; }
EXPORT void hipdnnPluginGetLastErrorString(const char **text) { if (text) *text = last_error; }
EXPORT int hipdnnPluginSetLoggingCallback(void (*callback)(int, const char *)) {
  REQUIRE(callback, "the callback is NULL");
  log_callback = callback;
  return SUCCESS;
}
#ifndef OLD
EXPORT int hipdnnPluginSetLogLevel(int level) { log_level = level; return SUCCESS; }
EXPORT int hipdnnPluginGetApiVersion(const char **version) { REQUIRE(version, "NULL"); *version = "1.0.0"; return SUCCESS; }
EXPORT int hipdnnEnginePluginGetEngineName(int64_t id, const char **name) {
  if (id != engine()) return fail(NOT_APPLICABLE, "no engine of mine");
  *name = "RELU_ENGINE";
  return SUCCESS;
}
#endif

EXPORT int hipdnnEnginePluginGetAllEngineIds(int64_t *ids, uint32_t max, uint32_t *count) {
  REQUIRE(count, "num_engines is NULL");
  if (max) ids[0] = engine();
  *count = 1;
  return SUCCESS;
}
EXPORT int hipdnnEnginePluginCreate(handle **out) {
  REQUIRE(out, "handle is NULL");
  *out = calloc(1, sizeof **out);
  return *out ? SUCCESS : fail(ALLOC_FAILED, "no memory");
}
EXPORT int hipdnnEnginePluginDestroy(handle *h) { REQUIRE(h, "the handle is NULL"); free(h); return SUCCESS; }
EXPORT int hipdnnEnginePluginSetStream(handle *h, void *stream) {
  REQUIRE(h, "the handle is NULL");
  h->stream = stream;
  return SUCCESS;
}
#define GRAPH(graph) REQUIRE((graph) && (graph)->ptr && (graph)->size, "the graph is NULL or empty")

EXPORT int hipdnnEnginePluginGetApplicableEngineIds(handle *h, const const_data *graph, int64_t *ids, uint32_t max,
                                                    uint32_t *count) {
  plan found;
  REQUIRE(h && count, "a pointer is NULL");
  GRAPH(graph);
  *count = (uint32_t)read_plan(graph, &found);
  if (*count && max) ids[0] = engine();
  return SUCCESS;
}
EXPORT int hipdnnEnginePluginGetEngineDetails(handle *h, int64_t id, const const_data *graph, const_data *out) {
  static const unsigned char header[16] = {12, 0, 0, 0, 6, 0, 12, 0, 4, 0, 0, 0, 8, 0, 0, 0};
  REQUIRE(h && out, "a pointer is NULL");
  GRAPH(graph);
  REQUIRE(id == engine(), "no engine of mine");
  unsigned char *bytes = malloc(24);
  memcpy(bytes, header, 16);
  memcpy(bytes + 16, &id, 8);
  *out = (const_data){bytes, 24};
  return SUCCESS;
}
static int give_back(handle *h, const_data *out) {
  REQUIRE(h && out, "a pointer is NULL");
  free((void *)out->ptr);
  *out = (const_data){NULL, 0};
  return SUCCESS;
}
EXPORT int hipdnnEnginePluginDestroyEngineDetails(handle *h, const_data *out) { return give_back(h, out); }
EXPORT int hipdnnEnginePluginGetWorkspaceSize(handle *h, const const_data *config, const const_data *graph, size_t *size) {
  REQUIRE(h && size && config, "a pointer is NULL");
  GRAPH(graph);
  *size = 0;
  return SUCCESS;
}
static int keep(const plan *given, plan **out) {
  *out = malloc(sizeof **out);
  if (!*out) return fail(ALLOC_FAILED, "no memory");
  **out = *given;
  return SUCCESS;
}
EXPORT int hipdnnEnginePluginCreateExecutionContext(handle *h, const const_data *config, const const_data *graph,
                                                    plan **out) {
  plan found;
  REQUIRE(h && out && config && config->ptr, "a pointer is NULL");
  GRAPH(graph);
  if (!is_ours(config)) return fail(INVALID_VALUE, "the config is not for this engine");
  if (!read_plan(graph, &found)) return fail(INVALID_VALUE, "not this graph");
#ifdef FRAGILE
  size_t node = follow(graph, follow(graph, slot(graph, root(graph), 5)) + 4);
  if (number(graph, slot(graph, follow(graph, slot(graph, node, 3)), 0), 1) == EXP) abort();
#endif
#ifdef CARELESS
  memset(malloc(8192), 1, 8192);
  open("/dev/null", O_RDONLY);
#endif
  return keep(&found, out);
}
EXPORT int hipdnnEnginePluginDestroyExecutionContext(handle *h, plan *p) {
  REQUIRE(h && p, "a pointer is NULL");
  free(p);
  return SUCCESS;
}
EXPORT int hipdnnEnginePluginGetWorkspaceSizeFromExecutionContext(handle *h, plan *p, size_t *size) {
  REQUIRE(h && p && size, "a pointer is NULL");
  *size = 0;
  return SUCCESS;
}
EXPORT int hipdnnEnginePluginExecuteOpGraph(handle *h, plan *p, void *workspace, const device_buffer *buffers,
                                            uint32_t count) {
  const float *x = NULL;
  float *y = NULL;
  (void)workspace;
  REQUIRE(h && p && buffers, "a pointer is NULL");
#ifdef STUCK
  for (;;) sleep(1);
#endif
  for (uint32_t i = 0; i < count; ++i) {
    if (buffers[i].uid == p->x) x = buffers[i].ptr;
    if (buffers[i].uid == p->y) y = buffers[i].ptr;
  }
  REQUIRE(x && y, "a buffer is missing");
  for (int64_t i = 0; i < p->count; ++i) y[i] = x[i] > 0 ? x[i] : 0;
  return SUCCESS;
}

#ifndef OLD
static int save(handle *h, plan *p, const_data *out) {
  plan *copy;
  REQUIRE(h && p && out, "a pointer is NULL");
  int status = keep(p, &copy);
  if (!status) *out = (const_data){copy, sizeof *copy};
  return status;
}
EXPORT int hipdnnEnginePluginSerializeExecutionContext(handle *h, plan *p, const_data *out) { return save(h, p, out); }
EXPORT int hipdnnEnginePluginSerializeExecutionContextWithEngineId(handle *h, int64_t id, plan *p, const_data *out) {
  REQUIRE(id == engine(), "no engine of mine");
  return save(h, p, out);
}
EXPORT int hipdnnEnginePluginDestroySerializedExecutionContext(handle *h, const_data *out) { return give_back(h, out); }

static int restore(handle *h, const const_data *data, plan **out) {
  plan saved;
  REQUIRE(h && data && data->ptr && out, "a pointer is NULL");
  if (data->size != sizeof saved) return fail(INVALID_VALUE, "no plan of this engine");
  memcpy(&saved, data->ptr, sizeof saved);
  if (saved.magic != MAGIC || saved.sum != sum_of(&saved))
    return fail(INVALID_VALUE, "a damaged plan");
  return keep(&saved, out);
}
#ifdef WITH_CONFIG
EXPORT int hipdnnEnginePluginCreateExecutionContextFromSerialized(handle *h, const const_data *config,
                                                                  const const_data *data, plan **out) {
  if (!config || !is_ours(config)) return fail(INVALID_VALUE, "the config is not for this engine");
  return restore(h, data, out);
}
#else
EXPORT int hipdnnEnginePluginCreateExecutionContextFromSerialized(handle *h, const const_data *data, plan **out) {
  return restore(h, data, out);
}
#endif
#endif
