// A program that knows nothing of Python: it loads ONNX Runtime, registers the provider, and runs a model with it.
//
//   session <libonnxruntime.so> <provider library> <model.onnx> <rounds>
//
// The model has one float input and one float output of dims [2, 3]. Prints the devices and the output.

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void (*function_t)(void);
typedef struct {
  const function_t* (*get_api)(uint32_t version);
  const char* (*get_version)(void);
} base_t;

enum {
  GET_ERROR_MESSAGE = 2,
  CREATE_ENV = 3,
  CREATE_SESSION = 7,
  RUN = 9,
  CREATE_SESSION_OPTIONS = 10,
  SESSION_GET_INPUT_NAME = 36,
  SESSION_GET_OUTPUT_NAME = 37,
  CREATE_TENSOR = 49,
  GET_TENSOR_DATA = 51,
  CREATE_CPU_MEMORY_INFO = 69,
  GET_DEFAULT_ALLOCATOR = 78,
  RELEASE_ENV = 92,
  RELEASE_STATUS = 93,
  RELEASE_MEMORY_INFO = 94,
  RELEASE_SESSION = 95,
  RELEASE_VALUE = 96,
  RELEASE_SESSION_OPTIONS = 100,
  REGISTER_LIBRARY = 301,
  UNREGISTER_LIBRARY = 302,
  GET_EP_DEVICES = 303,
  APPEND_PROVIDER = 304,
  EP_DEVICE_NAME = 312,
};

static const function_t* api;

#define CALL(slot, type) ((type)api[slot])

static void check(void* status, const char* what) {
  if (!status) return;
  fprintf(stderr, "%s: %s\n", what, CALL(GET_ERROR_MESSAGE, const char* (*)(void*))(status));
  exit(3);
}

static const void* find_device(void* env) {
  const void* const* devices;
  size_t count;
  check(CALL(GET_EP_DEVICES, void* (*)(void*, const void* const**, size_t*))(env, &devices, &count), "GetEpDevices");
  for (size_t i = 0; i < count; ++i) {
    const char* name = CALL(EP_DEVICE_NAME, const char* (*)(const void*))(devices[i]);
    printf("device of %s\n", name);
    if (strcmp(name, "HipDNNExecutionProvider") == 0) return devices[i];
  }
  fprintf(stderr, "the provider has no device\n");
  exit(4);
}

static void run(void* session, const char* input, const char* output) {
  float data[6] = {-2, -1, 0, 1, 2, 3};
  int64_t dims[2] = {2, 3};
  void *info, *tensor, *result = NULL;
  float* values;
  typedef void* (*create_tensor_t)(void*, void*, size_t, const int64_t*, size_t, int, void**);
  typedef void* (*run_t)(void*, void*, const char* const*, void* const*, size_t, const char* const*, size_t, void**);
  check(CALL(CREATE_CPU_MEMORY_INFO, void* (*)(int, int, void**))(1, 0, &info), "CreateCpuMemoryInfo");
  check(CALL(CREATE_TENSOR, create_tensor_t)(info, data, sizeof(data), dims, 2, 1, &tensor), "CreateTensor");
  check(CALL(RUN, run_t)(session, NULL, &input, &tensor, 1, &output, 1, &result), "Run");
  check(CALL(GET_TENSOR_DATA, void* (*)(void*, void**))(result, (void**)&values), "GetTensorMutableData");
  for (int i = 0; i < 6; ++i) printf("%g%c", values[i], i == 5 ? '\n' : ' ');
  CALL(RELEASE_VALUE, void (*)(void*))(result);
  CALL(RELEASE_VALUE, void (*)(void*))(tensor);
  CALL(RELEASE_MEMORY_INFO, void (*)(void*))(info);
}

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  void* library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (!library) return fprintf(stderr, "%s\n", dlerror()), 2;
  const base_t* (*get_base)(void) = (const base_t* (*)(void))dlsym(library, "OrtGetApiBase");
  api = get_base()->get_api(23);
  if (!api) return fprintf(stderr, "ONNX Runtime %s is too old\n", get_base()->get_version()), 2;
  void* env;
  check(CALL(CREATE_ENV, void* (*)(int, const char*, void**))(2, "host", &env), "CreateEnv");
  for (int round = atoi(argv[4]); round > 0; --round) {
    typedef void* (*register_t)(void*, const char*, const char*);
    typedef void* (*append_t)(void*, void*, const void* const*, size_t, const char* const*, const char* const*, size_t);
    typedef void* (*create_session_t)(void*, const char*, void*, void**);
    check(CALL(REGISTER_LIBRARY, register_t)(env, "HipDNN", argv[2]), "RegisterExecutionProviderLibrary");
    const void* device = find_device(env);
    void *options, *session, *allocator;
    char *input, *output;
    const char *key = "strict", *value = "1";
    check(CALL(CREATE_SESSION_OPTIONS, void* (*)(void**))(&options), "CreateSessionOptions");
    check(CALL(APPEND_PROVIDER, append_t)(options, env, &device, 1, &key, &value, 1), "AppendExecutionProvider_V2");
    check(CALL(CREATE_SESSION, create_session_t)(env, argv[3], options, &session), "CreateSession");
    check(CALL(GET_DEFAULT_ALLOCATOR, void* (*)(void**))(&allocator), "GetAllocatorWithDefaultOptions");
    typedef void* (*get_name_t)(void*, size_t, void*, char**);
    check(CALL(SESSION_GET_INPUT_NAME, get_name_t)(session, 0, allocator, &input), "SessionGetInputName");
    check(CALL(SESSION_GET_OUTPUT_NAME, get_name_t)(session, 0, allocator, &output), "SessionGetOutputName");
    run(session, input, output);
    run(session, input, output);
    CALL(RELEASE_SESSION, void (*)(void*))(session);
    CALL(RELEASE_SESSION_OPTIONS, void (*)(void*))(options);
    check(CALL(UNREGISTER_LIBRARY, void* (*)(void*, const char*))(env, "HipDNN"), "UnregisterExecutionProviderLibrary");
  }
  CALL(RELEASE_ENV, void (*)(void*))(env);
  return 0;
}
