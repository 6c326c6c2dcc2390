// A program that gives the provider models that mean no good, from several threads, and faults while it works.
//
//   hostile <libonnxruntime.so> <provider library> models <threads> <model.onnx>...
//   hostile <libonnxruntime.so> <made of between.c> faults <model.onnx> <step>
//
// Without a provider if that is "-". A session or a run may fail, with a status; nothing else may. Prints how many sessions and runs there were.

#include <pthread.h>
#include <stdatomic.h>

#include "ort.h"

enum { PORTS = 64, RANK = 80, MOST_ELEMENTS = 1 << 20, STRING = 8 };

static void *env, *options, *allocator;
static atomic_int sessions, runs, failures, next;
static char** files;
static int file_count;

// Whether there was none; it is released.
static int fine(void* status) {
  if (!status) return 1;
  atomic_fetch_add(&failures, 1);
  CALL(RELEASE_STATUS, void (*)(void*))(status);
  return 0;
}

// A tensor of zeros for an input, dims that are not known being `extent`; NULL if it would be large or is none.
static void* make_input(void* session, size_t index, int64_t extent) {
  void *type = NULL, *value = NULL, *data = NULL;
  const void* info = NULL;
  int64_t dims[RANK], count = 1;
  size_t rank = 0, size = 0;
  int element = 0;
  typedef void* (*get_type_t)(void*, size_t, void**);
  typedef void* (*cast_t)(const void*, const void**);
  typedef void* (*allocate_t)(void*, const int64_t*, size_t, int, void**);
  if (!fine(CALL(SESSION_GET_INPUT_TYPE, get_type_t)(session, index, &type))) return NULL;
  fine(CALL(CAST_TYPE_TO_TENSOR, cast_t)(type, &info));
  if (info) {
    fine(CALL(GET_ELEMENT_TYPE, void* (*)(const void*, int*))(info, &element));
    fine(CALL(GET_DIMENSIONS_COUNT, void* (*)(const void*, size_t*))(info, &rank));
    if (rank <= RANK) fine(CALL(GET_DIMENSIONS, void* (*)(const void*, int64_t*, size_t))(info, dims, rank));
    for (size_t i = 0; i < rank && rank <= RANK; ++i) {
      if (dims[i] < 0) dims[i] = extent;
      if (__builtin_mul_overflow(count, dims[i], &count)) count = INT64_MAX, dims[i] = 1;
    }
    if (rank <= RANK && count <= MOST_ELEMENTS && element != STRING &&
        fine(CALL(ALLOCATE_TENSOR, allocate_t)(allocator, dims, rank, element, &value)) &&
        fine(CALL(GET_TENSOR_SIZE, void* (*)(const void*, size_t*))(value, &size)) &&
        fine(CALL(GET_TENSOR_DATA, void* (*)(void*, void**))(value, &data)))
      memset(data, 0, size);
  }
  CALL(RELEASE_TYPE, void (*)(void*))(type);
  return value;
}

static size_t get_names(void* session, int count_slot, int name_slot, char** names) {
  size_t count = 0;
  fine(CALL(count_slot, void* (*)(void*, size_t*))(session, &count));
  if (count > PORTS) count = PORTS;
  for (size_t i = 0; i < count; ++i)
    if (!fine(CALL(name_slot, get_name_t)(session, i, allocator, &names[i]))) return i;
  return count;
}

static void free_names(char** names, size_t count) {
  for (size_t i = 0; i < count; ++i) fine(CALL(ALLOCATOR_FREE, void* (*)(void*, void*))(allocator, names[i]));
}

static void run(void* session, int64_t extent) {
  char *inputs[PORTS], *outputs[PORTS];
  void *given[PORTS] = {NULL}, *made[PORTS] = {NULL};
  size_t taken = get_names(session, SESSION_GET_INPUT_COUNT, SESSION_GET_INPUT_NAME, inputs);
  size_t count = get_names(session, SESSION_GET_OUTPUT_COUNT, SESSION_GET_OUTPUT_NAME, outputs);
  size_t ready = 0;
  while (ready < taken && (given[ready] = make_input(session, ready, extent))) ++ready;
  if (ready == taken &&
      fine(CALL(RUN, run_t)(session, NULL, (const char* const*)inputs, given, taken, (const char* const*)outputs, count,
                            made)))
    atomic_fetch_add(&runs, 1);
  for (size_t i = 0; i < count; ++i)
    if (made[i]) CALL(RELEASE_VALUE, void (*)(void*))(made[i]);
  for (size_t i = 0; i < ready; ++i) CALL(RELEASE_VALUE, void (*)(void*))(given[i]);
  free_names(inputs, taken);
  free_names(outputs, count);
}

typedef struct {
  void* session;
  int64_t extent;
} work_t;

static void* run_often(void* data) {
  const work_t* work = data;
  for (int i = 0; i < 3; ++i) run(work->session, work->extent + i);
  return NULL;
}

// Two threads run one session with other dims each.
static void use(const char* path) {
  void* session = NULL;
  if (!fine(CALL(CREATE_SESSION, create_session_t)(env, path, options, &session))) return;
  atomic_fetch_add(&sessions, 1);
  work_t here = {session, 1}, there = {session, 2};
  pthread_t thread;
  int beside = pthread_create(&thread, NULL, run_often, &there) == 0;
  run_often(&here);
  if (beside) pthread_join(thread, NULL);
  CALL(RELEASE_SESSION, void (*)(void*))(session);
}

static void* take_files(void* unused) {
  for (int at; (at = atomic_fetch_add(&next, 1)) < file_count;) {
    fprintf(stderr, "model %s\n", files[at]);
    use(files[at]);
  }
  return unused;
}

static void use_files(int threads) {
  pthread_t made[PORTS];
  if (threads > PORTS) threads = PORTS;
  for (int i = 0; i < threads; ++i)
    if (pthread_create(&made[i], NULL, take_files, NULL)) exit(5);
  for (int i = 0; i < threads; ++i) pthread_join(made[i], NULL);
}

// Each step-th call fails, one in each life of a session; and without a fault all is well again.
static void use_with_faults(const char* library, const char* path, long step) {
  void* between = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  long (*fault)(long) = (long (*)(long))dlsym(between, "between_fault");
  fault(0);
  use(path);
  long calls = fault(0), well = runs;
  if (!well) exit(6);
  for (long number = 1; number <= calls; number += step) {
    fprintf(stderr, "fault %ld of %ld\n", number, calls);
    fault(number);
    use(path);
  }
  fault(0);
  long before = runs;
  use(path);
  if (runs - before != well) exit(7);
  printf("calls %ld ", calls);
}

int main(int argc, char** argv) {
  if (argc < 6) return 2;
  load_runtime(argv[1]);
  check(CALL(CREATE_ENV, void* (*)(int, const char*, void**))(4, "host", &env), "CreateEnv");
  check(CALL(CREATE_SESSION_OPTIONS, void* (*)(void**))(&options), "CreateSessionOptions");
  int is_plain = strcmp(argv[2], "-") == 0;
  if (!is_plain) {
    check(CALL(REGISTER_LIBRARY, register_library_t)(env, "HipDNN", argv[2]), "RegisterExecutionProviderLibrary");
    const void* device = find_device(env);
    check(CALL(APPEND_PROVIDER, append_t)(options, env, &device, 1, NULL, NULL, 0), "AppendExecutionProvider_V2");
  }
  check(CALL(GET_DEFAULT_ALLOCATOR, void* (*)(void**))(&allocator), "GetAllocatorWithDefaultOptions");
  if (strcmp(argv[3], "models") == 0) {
    files = argv + 5, file_count = argc - 5;
    use_files(atoi(argv[4]));
  } else {
    use_with_faults(argv[2], argv[4], atol(argv[5]));
  }
  CALL(RELEASE_SESSION_OPTIONS, void (*)(void*))(options);
  if (!is_plain)
    check(CALL(UNREGISTER_LIBRARY, void* (*)(void*, const char*))(env, "HipDNN"), "UnregisterExecutionProviderLibrary");
  CALL(RELEASE_ENV, void (*)(void*))(env);
  printf("sessions %d runs %d failures %d\n", sessions, runs, failures);
  return 0;
}
