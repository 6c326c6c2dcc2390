/* A stand-in for libhipdnn_backend.so: the C API of the public headers over two engines, which multiply by 2 and by 3.

   It keeps hipDNN's rules of use (finalize once, attributes before that, children finished first) and counts what is
   alive, so that tests see how the API is used. -DNOVEMBER_2025 leaves out what is newer. Graphs are not read: every
   graph has input 1 and output 3 of 32 floats. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
enum { OK = 0, NOT_INITIALIZED = 1, BAD_PARAM = 2, NULL_POINTER = 3, NOT_FINALIZED = 4, NOT_SUPPORTED = 8, PLUGIN = 14 };
enum { ENGINE = 1, CONFIG = 2, HEURISTICS = 3, PLAN = 4, CHOICE = 6, GRAPH = 10, VARIANT = 11 };
enum { MAX = 8, ELEMENTS = 32 };

typedef struct {
  int type, final, count, overrides;
  int64_t engine, uids[MAX], knob;
  void *pointers[MAX], *workspace;
  char knob_name[64];
} descriptor;

static const int64_t engines[2] = {ENGINE_A, ENGINE_B};
static __thread char message[2048];
static int64_t live_descriptors, live_handles, applicable = 3, workspace_size, stream, knob, overrides, paths_mode = -1;
static char fail_function[64], knob_name[64], paths[256];
static unsigned char graph_bytes[1 << 16], plan_bytes[1 << 12];
static size_t graph_size, plan_size;

static int failed(int status, const char *text) {
  snprintf(message, sizeof message, "%s", text);
  return status;
}
#define FAIL_HERE \
  if (!strcmp(fail_function, __func__)) return failed(PLUGIN, "told to fail")

/* ---- control, for the tests */
EXPORT void standin_set(const char *name, int64_t value) {
  if (!strcmp(name, "applicable")) applicable = value;
  if (!strcmp(name, "workspace")) workspace_size = value;
}
EXPORT void standin_fail(const char *function) { snprintf(fail_function, sizeof fail_function, "%s", function); }
EXPORT int64_t standin_get(const char *name) {
  if (!strcmp(name, "descriptors")) return live_descriptors;
  if (!strcmp(name, "handles")) return live_handles;
  if (!strcmp(name, "stream")) return stream;
  if (!strcmp(name, "knob")) return knob;
  if (!strcmp(name, "overrides")) return overrides;
  if (!strcmp(name, "paths_mode")) return paths_mode;
  return -1;
}
EXPORT const char *standin_text(const char *name) { return strcmp(name, "paths") ? knob_name : paths; }
EXPORT size_t standin_graph(unsigned char *out) {
  memcpy(out, graph_bytes, graph_size);
  return graph_size;
}
EXPORT void standin_set_plan(const unsigned char *bytes, size_t size) { memcpy(plan_bytes, bytes, plan_size = size); }

/* ---- handles */
EXPORT int hipdnnCreate(void **handle) {
  FAIL_HERE;
  *handle = malloc(1);
  live_handles++;
  return OK;
}
EXPORT int hipdnnDestroy(void *handle) {
  if (!handle) return failed(NULL_POINTER, "no handle");
  free(handle);
  live_handles--;
  return OK;
}
EXPORT int hipdnnSetStream(void *handle, void *value) {
  FAIL_HERE;
  if (!handle) return failed(NULL_POINTER, "no handle");
  stream = (int64_t)value;
  return OK;
}
EXPORT void hipdnnGetLastErrorString(char *text, size_t size) { snprintf(text, size, "%s", message); }
EXPORT int hipdnnSetEnginePluginPaths_ext(size_t count, const char *const *names, int mode) {
  if (live_handles) return failed(NOT_SUPPORTED, "a handle is alive");
  paths[0] = 0;
  for (size_t i = 0; i < count; i++) {
    strncat(paths, names[i], sizeof paths - strlen(paths) - 2);
    strcat(paths, ";");
  }
  paths_mode = mode;
  return OK;
}
EXPORT int hipdnnGetLoadedEnginePluginPaths_ext(void *handle, size_t *count, char **names, size_t *size) {
  if (!handle || !count || !size) return failed(NULL_POINTER, "an argument is NULL");
  size_t length = strcspn(paths, ";");
  if (names && length) snprintf(names[0], *size, "%.*s", (int)length, paths);
  *count = length ? 1 : 0;
  *size = length + 1;
  return OK;
}

/* ---- descriptors */
EXPORT int hipdnnBackendCreateDescriptor(int type, void **out) {
  FAIL_HERE;
#ifdef NOVEMBER_2025
  if (type == CHOICE) return failed(NOT_SUPPORTED, "this type is not supported");
#endif
  descriptor *made = calloc(1, sizeof *made);
  made->type = type;
  live_descriptors++;
  *out = made;
  return OK;
}
EXPORT int hipdnnBackendDestroyDescriptor(void *one) {
  if (!one) return failed(NULL_POINTER, "no descriptor");
  free(one);
  live_descriptors--;
  return OK;
}
EXPORT int hipdnnBackendCreateAndDeserializeGraph_ext(void **out, const uint8_t *bytes, size_t size) {
  FAIL_HERE;
  if (!bytes || !size || size > sizeof graph_bytes) return failed(BAD_PARAM, "no graph");
  memcpy(graph_bytes, bytes, graph_size = size);
  return hipdnnBackendCreateDescriptor(GRAPH, out);
}
static int index_of(int64_t id) { return id == engines[0] ? 0 : id == engines[1] ? 1 : -1; }

EXPORT int hipdnnBackendFinalize(void *one) {
  FAIL_HERE;
  descriptor *d = one;
  if (!d) return failed(NULL_POINTER, "no descriptor");
  if (d->final) return failed(BAD_PARAM, "it is final already");
  if (d->type == ENGINE) {
    int index = index_of(d->engine);
    if (index < 0 || !(applicable >> index & 1)) return failed(BAD_PARAM, "the engine is not applicable");
  }
  if ((d->type == CONFIG || d->type == PLAN) && !d->engine) return failed(BAD_PARAM, "it has no engine");
  if (d->type == VARIANT && !d->count) return failed(BAD_PARAM, "the variant pack is empty");
  d->final = 1;
  return OK;
}

EXPORT int hipdnnBackendSetAttribute(void *one, int name, int type, int64_t count, const void *values) {
  FAIL_HERE;
  descriptor *d = one;
  if (!d || (count && !values)) return failed(NULL_POINTER, "an argument is NULL");
  if (d->final) return failed(NOT_INITIALIZED, "it is final already");
  void *const *children = values;
  descriptor *child = type == 13 && count ? children[0] : NULL;
  if (type == 13 && (!child || !child->final)) return failed(NOT_FINALIZED, "the child is not final");
  switch (name) {
    case 600: return type == 0 && count == 1 && children[0] ? OK : failed(BAD_PARAM, "no handle");
    case 100: return type == 7 && *(const int *)values == 0 ? OK : failed(NOT_SUPPORTED, "unknown mode");
    case 101: case 1000: return child && child->type == GRAPH ? OK : failed(BAD_PARAM, "no graph");
    case 200: case 301: d->engine = child->engine; d->knob = d->knob ? d->knob : child->knob; return OK;
    case 1001: d->engine = *(const int64_t *)values; return type == 3 ? OK : failed(BAD_PARAM, "no int64");
    case 700: memcpy(d->uids, values, 8 * (d->count = (int)count)); return type == 3 ? OK : BAD_PARAM;
    case 701: memcpy(d->pointers, values, 8 * count); return type == 6 ? OK : BAD_PARAM;
    case 703: d->workspace = children[0]; return type == 6 ? OK : BAD_PARAM;
#ifndef NOVEMBER_2025
    case 202: knob = child->knob; memcpy(knob_name, child->knob_name, sizeof knob_name); return OK;
    case 500: snprintf(d->knob_name, sizeof d->knob_name, "%.*s", (int)count, (const char *)values); return OK;
    case 501: d->knob = type == 3 ? *(const int64_t *)values : type == 5 ? 1000 : 2000; return OK;
    case 704: d->overrides = (int)count; return OK;
    case 705: case 706: case 707: return d->overrides ? OK : failed(BAD_PARAM, "uids first");
#endif
    default: return failed(NOT_SUPPORTED, "attributeName not supported");
  }
}

EXPORT int hipdnnBackendGetAttribute(void *one, int name, int type, int64_t wanted, int64_t *count, void *out) {
  FAIL_HERE;
  descriptor *d = one;
  (void)type;
  if (!d || (wanted && !out)) return failed(NULL_POINTER, "an argument is NULL");
  if (!d->final) return failed(NOT_INITIALIZED, "it is not final");
  int first = applicable & 1 ? 0 : 1, number = (int)(applicable & 1) + (int)(applicable >> 1 & 1);
  if (count) *count = 1;
  switch (name) {
    case 102:
      if (!wanted) *count = number;
      else if (number) (*(descriptor **)out)->engine = engines[first];
      return OK;
    case 200:
      hipdnnBackendCreateDescriptor(ENGINE, out);
      (*(descriptor **)out)->engine = d->engine;
      (*(descriptor **)out)->final = 1;
      return OK;
    case 1001: *(int64_t *)out = d->engine; return OK;
    case 203: case 302: *(int64_t *)out = workspace_size; return OK;
#ifndef NOVEMBER_2025
    case 1005:
      if (wanted) ((int *)out)[0] = 3, ((int *)out)[1] = 4;
      *count = 2;
      return OK;
#endif
    default: return failed(NOT_SUPPORTED, "attributeName not supported");
  }
}

EXPORT int hipdnnBackendExecute(void *handle, void *plan, void *variant) {
  FAIL_HERE;
  descriptor *p = plan, *v = variant;
  if (!handle || !p || !v) return failed(NULL_POINTER, "an argument is NULL");
  if (!p->final || !v->final) return failed(NOT_FINALIZED, "plan or variant pack is not final");
  if (workspace_size && !v->workspace) return failed(PLUGIN, "the workspace is missing");
  const float *x = NULL;
  float *y = NULL;
  for (int i = 0; i < v->count; i++) {
    if (v->uids[i] == 1) x = v->pointers[i];
    if (v->uids[i] == 3) y = v->pointers[i];
  }
  if (!x || !y) return failed(PLUGIN, "uid 1 or 3 is missing");
  for (int i = 0; i < ELEMENTS; i++) y[i] = x[i] * (float)(index_of(p->engine) + 2);
  overrides = v->overrides;
  return OK;
}

#ifndef NOVEMBER_2025
EXPORT const char *hipdnnVersionString_ext(void) { return "9.8.7.6"; }
EXPORT int hipdnnGetEngineCount_ext(void *handle, size_t *count) {
  *count = handle ? 2 : 0;
  return OK;
}
EXPORT int hipdnnGetEngineInfo_ext(void *handle, size_t index, int64_t *id, char *name, size_t *name_size, char *plugin,
                                   size_t *plugin_size, char *version, size_t *version_size, char *type, size_t *type_size) {
  static const char *const names[2] = {"DOUBLE_ENGINE", "TRIPLE_ENGINE"};
  if (!handle || index > 1) return failed(BAD_PARAM, "no such engine");
  const char *texts[4] = {names[index], "stand-in", "1.2", "engine"};
  char *out[4] = {name, plugin, version, type};
  size_t *sizes[4] = {name_size, plugin_size, version_size, type_size};
  *id = engines[index];
  for (int i = 0; i < 4; i++) {
    if (out[i]) snprintf(out[i], *sizes[i], "%s", texts[i]);
    *sizes[i] = strlen(texts[i]) + 1;
  }
  return OK;
}
EXPORT int hipdnnBackendGetSerializedExecutionPlan_ext(void *plan, size_t wanted, size_t *size, uint8_t *out) {
  if (!plan || !plan_size) return failed(PLUGIN, "the engine serializes no plans");
  if (out && wanted < plan_size) return failed(BAD_PARAM, "too small");
  if (out) memcpy(out, plan_bytes, plan_size);
  *size = plan_size;
  return OK;
}
EXPORT int hipdnnBackendCreateAndDeserializeExecutionPlan_ext(void *handle, void **out, const uint8_t *bytes, size_t size) {
  if (!handle || size != plan_size || memcmp(bytes, plan_bytes, size)) return failed(BAD_PARAM, "no plan of this backend");
  hipdnnBackendCreateDescriptor(PLAN, out);
  (*(descriptor **)out)->engine = engines[1];
  (*(descriptor **)out)->final = 1;
  return OK;
}
#endif
