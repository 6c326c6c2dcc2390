/* An engine plugin for tests: one engine, TINY_ENGINE, that doubles COUNT floats from uid 1 into uid 3 on the host.
 * It accepts graphs whose bytes contain "pw_relu". Macros make it break one rule each, see test_plugin_library.py. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#define COUNT 4
#ifndef API_VERSION
#define API_VERSION "1.4.0"
#endif
#ifndef ENGINE_NAME
#define ENGINE_NAME "TINY_ENGINE"
#endif

typedef struct { const void *ptr; size_t size; } const_data;
typedef struct { int64_t uid; void *ptr; } device_buffer;
typedef struct { void *stream; } handle;
typedef struct { uint32_t graph_size; uint32_t config_size; } context;

static _Thread_local char last_error[2048];
static void (*log_callback)(int, const char *);
static int log_level;
static int live_contexts, live_details, live_serialized, live_handles;
static void *last_stream;
static int64_t override_sum;

// Length of the vtable of the graph's first node, as each function saw it: FlatBuffers by hand, no schema.
static int node_vtables[4];
static const char *follow(const char *at) { return at + *(const uint32_t *)at; }
static void note_layout(int function, const const_data *graph) {
  const char *root = follow(graph->ptr), *vtable = root - *(const int32_t *)root;
  const char *nodes = follow(root + *(const uint16_t *)(vtable + 4 + 2 * 5));
  const char *node = follow(nodes + 4);
  node_vtables[function] = *(const uint16_t *)(node - *(const int32_t *)node);
}

static int fail(int status, const char *text) {
  snprintf(last_error, sizeof last_error, "%s", text);
  if (log_callback && log_level <= 2) log_callback(2, text);
  return status;
}

static int64_t tiny_id(void) {
  uint64_t value = 0xcbf29ce484222325u;
  for (const char *c = "TINY_ENGINE"; *c; ++c) value = (value ^ (unsigned char)*c) * 0x100000001b3u;
  return (int64_t)value;
}

EXPORT int hipdnnPluginGetName(const char **name) { *name = "tiny"; return 0; }
EXPORT int hipdnnPluginGetVersion(const char **version) { *version = "0.1"; return 0; }
EXPORT int hipdnnPluginGetType(int *type) {
#ifdef HEURISTIC
  *type = 2;
#else
  *type = 1;
#endif
  return 0;
}
EXPORT void hipdnnPluginGetLastErrorString(const char **text) {
#ifdef NULL_ERROR
  *text = NULL;
#else
  *text = last_error;
#endif
}
EXPORT int hipdnnPluginSetLoggingCallback(void (*callback)(int, const char *)) { log_callback = callback; return 0; }
EXPORT int hipdnnPluginSetLogLevel(int level) { log_level = level; return 0; }
#ifndef NO_API_VERSION
EXPORT int hipdnnPluginGetApiVersion(const char **version) { *version = API_VERSION; return 0; }
#endif

EXPORT int hipdnnEnginePluginGetAllEngineIds(int64_t *ids, uint32_t max, uint32_t *count) {
#ifdef NO_ENGINES
  *count = 0;
#elif defined DUPLICATE_IDS
  *count = 2;
  for (uint32_t i = 0; i < 2 && i < max; ++i) ids[i] = tiny_id();
#elif defined CHANGING_COUNT
  *count = max + 1;
#else
  *count = 1;
  if (max) ids[0] = tiny_id();
#endif
  return 0;
}

#ifndef NO_NAME
EXPORT int hipdnnEnginePluginGetEngineName(int64_t id, const char **name) {
#ifdef UNNAMED
  return fail(5, "no name from me");
#else
  if (id != tiny_id()) return fail(1, "no such engine");
  *name = ENGINE_NAME;
  return 0;
#endif
}
#endif

#ifndef MISSING_CREATE
EXPORT int hipdnnEnginePluginCreate(handle **out) {
#ifdef NULL_HANDLE
  *out = NULL;
#else
  *out = calloc(1, sizeof **out);
  ++live_handles;
#endif
  return 0;
}
#endif
EXPORT int hipdnnEnginePluginDestroy(handle *h) { free(h); --live_handles; return 0; }
EXPORT int hipdnnEnginePluginSetStream(handle *h, void *stream) { h->stream = stream; return 0; }

EXPORT int hipdnnEnginePluginGetApplicableEngineIds(handle *h, const const_data *graph, int64_t *ids, uint32_t max,
                                                    uint32_t *count) {
  note_layout(0, graph);
#ifdef FAIL_APPLICABLE
  return fail(3, "cannot say: \xc3\xa4");
#elif defined FOREIGN_IDS
  ids[0] = 12;
  *count = 1;
#elif defined TOO_MANY
  *count = max + 1;
#else
  *count = memmem(graph->ptr, graph->size, "pw_relu", 7) && max ? 1 : 0;
  if (*count) ids[0] = tiny_id();
#endif
#ifdef TELLS
  static const char why[] = "[2026-11-30 12:00:00.000] [tid 7] [warning] [tiny] no convolutions on [gfx942]";
  if (!*count && log_callback && log_level <= 1) log_callback(1, why);
#endif
  return 0;
}

EXPORT int hipdnnEnginePluginGetEngineDetails(handle *h, int64_t id, const const_data *graph, const_data *out) {
  note_layout(1, graph);
  static const unsigned char header[16] = {12, 0, 0, 0, 6, 0, 12, 0, 4, 0, 0, 0, 8, 0, 0, 0};
  unsigned char *bytes = malloc(24);
  memcpy(bytes, header, 16);
  memcpy(bytes + 16, &id, 8);
  ++live_details;
  out->ptr = bytes;
  out->size = 24;
#ifdef BAD_DETAILS
  out->size = 5;
#elif defined NO_DETAILS
  out->size = 0;
#endif
  return 0;
}
EXPORT int hipdnnEnginePluginDestroyEngineDetails(handle *h, const_data *out) {
  free((void *)out->ptr);
  out->ptr = NULL;
  out->size = 0;
  --live_details;
  return 0;
}

EXPORT int hipdnnEnginePluginGetWorkspaceSize(handle *h, const const_data *config, const const_data *graph,
                                              size_t *size) {
  note_layout(2, graph);
  *size = config->size + graph->size;
  return 0;
}

static context *new_context(size_t graph_size, size_t config_size) {
  context *c = malloc(sizeof *c);
  c->graph_size = (uint32_t)graph_size;
  c->config_size = (uint32_t)config_size;
  ++live_contexts;
  return c;
}
EXPORT int hipdnnEnginePluginCreateExecutionContext(handle *h, const const_data *config, const const_data *graph,
                                                    context **out) {
  note_layout(3, graph);
  if (!memmem(graph->ptr, graph->size, "pw_relu", 7)) return fail(2, "not this graph");
  *out = new_context(graph->size, config->size);
  return 0;
}
EXPORT int hipdnnEnginePluginDestroyExecutionContext(handle *h, context *c) {
  free(c);
  --live_contexts;
  return 0;
}
EXPORT int hipdnnEnginePluginGetWorkspaceSizeFromExecutionContext(handle *h, context *c, size_t *size) {
  *size = c->graph_size;
  return 0;
}

EXPORT int hipdnnEnginePluginExecuteOpGraph(handle *h, context *c, void *workspace, const device_buffer *buffers,
                                            uint32_t count) {
  const float *in = NULL;
  float *out = NULL;
  last_stream = h->stream;
  for (uint32_t i = 0; i < count; ++i) {
    if (buffers[i].uid == 1) in = buffers[i].ptr;
    if (buffers[i].uid == 3) out = buffers[i].ptr;
  }
  if (!in || !out) return fail(1, "uid 1 or 3 is missing");
  if (!workspace) return fail(1, "no workspace");
  for (int i = 0; i < COUNT; ++i) out[i] = 2 * in[i];
  return 0;
}

#ifndef NO_OPTIONAL
EXPORT int hipdnnEnginePluginExecuteOpGraphWithOverrides(handle *h, context *c, void *workspace,
                                                         const device_buffer *buffers, uint32_t count,
                                                         uint32_t overrides, const int64_t *uids,
                                                         const uint32_t *ranks, const int64_t *const *dims,
                                                         const int64_t *const *strides) {
  override_sum = 0;
  for (uint32_t i = 0; i < overrides; ++i)
    for (uint32_t j = 0; j < ranks[i]; ++j) override_sum += uids[i] * 1000 + dims[i][j] * 10 + strides[i][j];
  return hipdnnEnginePluginExecuteOpGraph(h, c, workspace, buffers, count);
}
EXPORT int hipdnnEnginePluginSerializeExecutionContext(handle *h, context *c, const_data *out) {
  void *copy = malloc(sizeof *c);
  memcpy(copy, c, sizeof *c);
  ++live_serialized;
  out->ptr = copy;
  out->size = sizeof *c;
  return 0;
}
EXPORT int hipdnnEnginePluginDestroySerializedExecutionContext(handle *h, const_data *out) {
  free((void *)out->ptr);
  out->ptr = NULL;
  out->size = 0;
  --live_serialized;
  return 0;
}
EXPORT int hipdnnEnginePluginCreateExecutionContextFromSerialized(handle *h, const const_data *data, context **out) {
  if (data->size != sizeof(context)) return fail(2, "damaged plan");
  const context *saved = data->ptr;
  *out = new_context(saved->graph_size, saved->config_size);
  return 0;
}
#endif

/* For the tests: what is alive, what came last, and the layout of the structs. */
EXPORT void tiny_alive(int out[4]) {
  out[0] = live_handles; out[1] = live_contexts; out[2] = live_details; out[3] = live_serialized;
}
EXPORT void tiny_node_vtables(int out[4]) { memcpy(out, node_vtables, sizeof node_vtables); }
EXPORT void *tiny_last_stream(void) { return last_stream; }
EXPORT int64_t tiny_override_sum(void) { return override_sum; }
EXPORT void tiny_layout(size_t out[6]) {
  out[0] = sizeof(const_data); out[1] = offsetof(const_data, size);
  out[2] = sizeof(device_buffer); out[3] = offsetof(device_buffer, ptr);
  out[4] = sizeof(int) ; out[5] = sizeof(void (*)(int, const char *));
}
