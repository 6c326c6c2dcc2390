// A program that knows nothing of Python: it loads ONNX Runtime, registers the provider, and runs a model with it.
//
//   session <libonnxruntime.so> <provider library> <model.onnx> <rounds>
//
// The model has one float input and one float output of dims [2, 3]. Prints the devices and the output.

#include "ort.h"

static void run(void* session, const char* input, const char* output) {
  float data[6] = {-2, -1, 0, 1, 2, 3};
  int64_t dims[2] = {2, 3};
  void *info, *tensor, *result = NULL;
  float* values;
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
  load_runtime(argv[1]);
  void* env;
  check(CALL(CREATE_ENV, void* (*)(int, const char*, void**))(2, "host", &env), "CreateEnv");
  for (int round = atoi(argv[4]); round > 0; --round) {
    check(CALL(REGISTER_LIBRARY, register_library_t)(env, "HipDNN", argv[2]), "RegisterExecutionProviderLibrary");
    const void* device = find_device(env);
    void *options, *session, *allocator;
    char *input, *output;
    const char *key = "strict", *value = "1";
    check(CALL(CREATE_SESSION_OPTIONS, void* (*)(void**))(&options), "CreateSessionOptions");
    check(CALL(APPEND_PROVIDER, append_t)(options, env, &device, 1, &key, &value, 1), "AppendExecutionProvider_V2");
    check(CALL(CREATE_SESSION, create_session_t)(env, argv[3], options, &session), "CreateSession");
    check(CALL(GET_DEFAULT_ALLOCATOR, void* (*)(void**))(&allocator), "GetAllocatorWithDefaultOptions");
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
