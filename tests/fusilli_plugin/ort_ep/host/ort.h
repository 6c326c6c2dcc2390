// What the C programs of these tests use of ONNX Runtime, by slot.

#pragma once

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
  SESSION_GET_INPUT_COUNT = 30,
  SESSION_GET_OUTPUT_COUNT = 31,
  SESSION_GET_INPUT_TYPE = 33,
  SESSION_GET_INPUT_NAME = 36,
  SESSION_GET_OUTPUT_NAME = 37,
  ALLOCATE_TENSOR = 48,
  CREATE_TENSOR = 49,
  GET_TENSOR_DATA = 51,
  CAST_TYPE_TO_TENSOR = 55,
  GET_ELEMENT_TYPE = 60,
  GET_DIMENSIONS_COUNT = 61,
  GET_DIMENSIONS = 62,
  CREATE_CPU_MEMORY_INFO = 69,
  ALLOCATOR_FREE = 76,
  GET_DEFAULT_ALLOCATOR = 78,
  RELEASE_ENV = 92,
  RELEASE_STATUS = 93,
  RELEASE_MEMORY_INFO = 94,
  RELEASE_SESSION = 95,
  RELEASE_VALUE = 96,
  RELEASE_TYPE = 98,
  RELEASE_SESSION_OPTIONS = 100,
  REGISTER_LIBRARY = 301,
  UNREGISTER_LIBRARY = 302,
  GET_EP_DEVICES = 303,
  APPEND_PROVIDER = 304,
  EP_DEVICE_NAME = 312,
  GET_TENSOR_SIZE = 318,
};

static const function_t* api;

#define CALL(slot, type) ((type)api[slot])

static void check(void* status, const char* what) {
  if (!status) return;
  fprintf(stderr, "%s: %s\n", what, CALL(GET_ERROR_MESSAGE, const char* (*)(void*))(status));
  exit(3);
}

static void load_runtime(const char* path) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) fprintf(stderr, "%s\n", dlerror()), exit(2);
  const base_t* (*get_base)(void) = (const base_t* (*)(void))dlsym(library, "OrtGetApiBase");
  api = get_base()->get_api(23);
  if (!api) fprintf(stderr, "ONNX Runtime %s is too old\n", get_base()->get_version()), exit(2);
}

typedef void* (*register_library_t)(void*, const char*, const char*);
typedef void* (*append_t)(void*, void*, const void* const*, size_t, const char* const*, const char* const*, size_t);
typedef void* (*create_session_t)(void*, const char*, void*, void**);
typedef void* (*get_name_t)(void*, size_t, void*, char**);
typedef void* (*create_tensor_t)(void*, void*, size_t, const int64_t*, size_t, int, void**);
typedef void* (*run_t)(void*, void*, const char* const*, void* const*, size_t, const char* const*, size_t, void**);

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
