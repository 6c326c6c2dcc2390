/* The plugin as hipDNN drives it: asked whether it takes a graph, it makes a plan and executes it on the CPU. The result
   is compared with loops in double. The graph, y = relu(conv(x, w) + b), is a file that hipDNN itself serialized.

   Build it:  cc -std=gnu11 -o hipdnn_plugin examples/hipdnn_plugin.c -ldl -lm
   Run it:    FUSILLI_DEVICE=cpu ./hipdnn_plugin "$(fusilli plugin-dir)/libfusilli_plugin.so" \
                  tests/data/hipdnn_graphs/conv_bias_relu.bin */
#include <dlfcn.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct { const void* ptr; size_t size; } data_t;  // hipDNN's names: hipdnnPluginConstData_t
typedef struct { int64_t uid; void* ptr; } buffer_t;      // and hipdnnPluginDeviceBuffer_t
#define FAIL(...) (fprintf(stderr, __VA_ARGS__), exit(2))
#define CALL(name, types, ...) check(#name, ((int(*) types)dlsym(plugin, "hipdnnEnginePlugin" #name))(__VA_ARGS__))
static void* plugin;
static void check(const char* name, int status) {
  const char* text = "";
  ((void (*)(const char**))dlsym(plugin, "hipdnnPluginGetLastErrorString"))(&text);
  if (status != 0) FAIL("%s: status %d: %s\n", name, status, text);
}

int main(int count, char** words) {
  FILE* file = count == 3 ? fopen(words[2], "rb") : NULL;
  if (!file) FAIL("usage: %s PLUGIN GRAPH\n", words[0]);
  static char bytes[1 << 16];
  data_t graph = {bytes, fread(bytes, 1, sizeof(bytes), file)};
  if (!(plugin = dlopen(words[1], RTLD_NOW))) FAIL("%s\n", dlerror());

  void *handle, *plan;
  int64_t engine;
  uint32_t engines;
  CALL(Create, (void**), &handle);
  CALL(GetApplicableEngineIds, (void*, data_t*, int64_t*, uint32_t, uint32_t*), handle, &graph, &engine, 1, &engines);
  if (engines != 1) FAIL("the graph is declined; a callback of hipdnnPluginSetLoggingCallback is told why\n");
  // A FlatBuffers table, EngineConfig, with the engine and no knobs: hipDNN makes it of what its user has chosen.
  struct { uint32_t root; uint16_t zero, end, size, at; int32_t up; int64_t id; } table = {12, 0, 6, 12, 4, 6, engine};
  size_t size;
  CALL(CreateExecutionContext, (void*, data_t*, data_t*, void**), handle, &(data_t){&table, 24}, &graph, &plan);
  CALL(GetWorkspaceSizeFromExecutionContext, (void*, void*, size_t*), handle, plan, &size);

  float x[32], w[54], b[3] = {-0.5f, 0.0f, 0.5f}, y[48];  // of dims 1x2x4x4, 3x2x3x3, 1x3x1x1, 1x3x4x4
  for (int i = 0; i < 54; ++i) w[i] = cosf(i), x[i % 32] = sinf(i);
  buffer_t pack[] = {{1, x}, {2, w}, {3, b}, {6, y}};  // by the uids of the graph's tensors
  CALL(ExecuteOpGraph, (void*, void*, void*, buffer_t*, uint32_t), handle, plan, size ? malloc(size) : NULL, pack, 4);
  CALL(DestroyExecutionContext, (void*, void*), handle, plan);
  CALL(Destroy, (void*), handle);
  int wrong = 0;
  for (int i = 0; i < 48; ++i) {
    double sum = b[i / 16], magnitude = fabs(sum);
    for (int j = 0; j < 18; ++j) {
      int row = i / 4 % 4 + j / 3 % 3 - 1, column = i % 4 + j % 3 - 1, is_padding = (row | column) & ~3;
      double term = is_padding ? 0 : (double)w[i / 16 * 18 + j] * x[j / 9 * 16 + row * 4 + column];
      sum += term, magnitude += fabs(term);
    }
    wrong += !(fabs(y[i] - fmax(sum, 0)) <= 19 * ldexp(magnitude, -24));  // 19 roundings to float at most
  }
  return printf("engine %#llx: %d of 48 elements wrong\n", (unsigned long long)engine, wrong), wrong != 0;
}
