// ONNX Runtime's plugin interface for execution providers. ONNX Runtime calls through structs of function pointers; ours
// are made here, so that they stay valid when Python is gone, and each one goes to Python if it is there.
//
// ONNX Runtime's tables only ever grow, so a function is named by its slot. 1.24 (version 24) is the first with all that
// is used here, and the first whose sessions may hand what a provider's node gives to a kernel of the CPU's. Structs of
// ours have what 1.23 knows of them.

#include <alloca.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shim.h"
#include "ort_link.h"

#define EXPORT __attribute__((visibility("default")))

enum { NEEDED = 24, FORM = 23, MAX_TENSORS = 4096, MAX_RANK = 64, ORT_FAIL = 1, ORT_INVALID_ARGUMENT = 2, AMD = 0x1002 };

// What Python returns in place of a status that it could not make: an error got past its last handler, or was Ctrl-C.
enum { ESCAPED = 1, INTERRUPTED = 2 };

// Slots of OrtApi.
enum {
  CREATE_STATUS = 0,
  GET_TENSOR_MUTABLE_DATA = 51,
  CONTEXT_GET_INPUT = 90,
  CONTEXT_GET_OUTPUT = 91,
  CONTEXT_GET_STREAM = 193,
  GET_TYPE_AND_SHAPE_REFERENCE = 414
};

typedef void status_t;  // OrtStatus
typedef void (*function_t)(void);

typedef struct {
  const function_t* (*get_api)(uint32_t version);
  const char* (*get_version)(void);
} api_base_t;

typedef struct runtime runtime_t;

typedef struct {
  uint32_t version;
  const char* (*get_name)(const void*);
  const char* (*get_vendor)(const void*);
  status_t* (*get_supported_devices)(void*, const void* const*, size_t, void**, size_t, size_t*);
  status_t* (*create_ep)(void*, const void* const*, const void* const*, size_t, const void*, const void*, void**);
  void (*release_ep)(void*, void*);
  uint32_t (*get_vendor_id)(const void*);
  const char* (*get_version)(const void*);
  status_t* (*validate_compatibility)(void*, const void* const*, size_t, const char*, int32_t*);
  status_t* (*create_allocator)(void*, const void*, const void*, void**);
  void (*release_allocator)(void*, void*);
  status_t* (*create_data_transfer)(void*, void**);
  _Bool (*is_stream_aware)(const void*);
  status_t* (*create_stream)(void*, const void*, const void*, void**);
  runtime_t* runtime;
} factory_t;

typedef struct {
  uint32_t version;
  void (*release)(void*);
  _Bool (*can_copy)(const void*, const void*, const void*);
  status_t* (*copy)(void*, const void**, void**, void**, size_t);
  runtime_t* runtime;
} transfer_t;

// What is kept for each ONNX Runtime in this process; never freed, because a session may outlive the registration.
struct runtime {
  const api_base_t* base;
  const function_t* api;
  factory_t factory;
  transfer_t transfer;
  runtime_t* next;
};

typedef struct {
  uint32_t version;
  const char* (*get_name)(const void*);
  status_t* (*get_capability)(void*, const void*, void*);
  status_t* (*compile)(void*, const void**, const void**, size_t, void**, void**);
  void (*release_nodes)(void*, void**, size_t);
  function_t get_preferred_layout;
  function_t should_convert_layout;
  status_t* (*set_dynamic_options)(void*, const char* const*, const char* const*, size_t);
  function_t on_run_start;
  function_t on_run_end;
  function_t create_allocator;
  function_t create_stream;
  const char* (*get_compatibility)(void*, const void*);
  runtime_t* runtime;
  uint64_t id;
} ep_t;

typedef struct {
  uint32_t version;
  status_t* (*create_state)(void*, void*, void**);
  status_t* (*compute)(void*, void*, void*);
  void (*release_state)(void*, void*);
  runtime_t* runtime;
  uint64_t id;
  uint32_t inputs, outputs;
  int32_t on_stream;
  const uint64_t* stage;   // memory that small tensors are copied to and from, see ort_link.h; or NULL
  atomic_flag stage_taken; // by a run
  void *launch, *failed;   // Python objects: what `launch` of ort_link.h does, and the status of its exception
  size_t length;     // of `shapes`, 0 if they are not known before a run
  int64_t shapes[];  // of inputs and outputs: rank, dims
} node_t;

typedef struct {
  uint32_t version;
  void* (*allocate)(void*, size_t);
  void (*deallocate)(void*, void*);
  const void* (*info)(const void*);
  void* (*reserve)(void*, size_t);
  function_t get_stats;
  void* (*allocate_on_stream)(void*, size_t, void*);
  function_t shrink;
  const void* memory_info;
  uint64_t id;
} allocator_t;

typedef struct {
  uint32_t version;
  void (*release)(void*);
  void* (*get_handle)(void*);
  status_t* (*create_notification)(void*, void**);
  status_t* (*flush)(void*);
  status_t* (*on_run_end)(void*);
  runtime_t* runtime;
  uint64_t id;
  void* handle;
} stream_t;

typedef struct {
  uint32_t version;
  void (*release)(void*);
  status_t* (*activate)(void*);
  status_t* (*wait_on_device)(void*, void*);
  status_t* (*wait_on_host)(void*);
  runtime_t* runtime;
  uint64_t id;
} notification_t;

#define CALL(api, slot, type) ((type)(api)[slot])
#define ADDRESS(pointer) ((uintptr_t)(pointer))

static fusilli_ort_link ort;  // defined where what it points to is

// ---- statuses -------------------------------------------------------------------------------------------------------

static status_t* make_status(const function_t* api, int32_t code, const char* text) {
  return CALL(api, CREATE_STATUS, status_t* (*)(int32_t, const char*))(code, text);
}

static status_t* failed(const runtime_t* runtime, const char* text) { return make_status(runtime->api, ORT_FAIL, text); }

static status_t* gone(const runtime_t* runtime) { return failed(runtime, python_problem()); }

// The status of what Python did. Ctrl-C, if it came meanwhile, was meant for the host, which gets it when it goes on.
static status_t* settled(const runtime_t* runtime, uintptr_t status) {
  if (status == ESCAPED) return failed(runtime, "HipDNNExecutionProvider: an error escaped from Python");
  if (status != INTERRUPTED) return (status_t*)status;
  raise(SIGINT);
  return failed(runtime, "HipDNNExecutionProvider: interrupted");
}

#define ASK(runtime, function, ...) settled(runtime, ort.function(__VA_ARGS__))

// Each function that goes to Python starts with this: from some moment in the exit of a Python host on, it is not there.
#define NEED_PYTHON(runtime) \
  GUARDED;                   \
  NEED_LIVE_PYTHON(runtime)
#define NEED_LIVE_PYTHON(runtime) \
  if (!python_alive()) return gone(runtime)

// ---- what Python asks of the shim -----------------------------------------------------------------------------------

static uintptr_t api_of(uintptr_t runtime) { return ADDRESS(((runtime_t*)runtime)->api); }
static uintptr_t factory_of(uintptr_t runtime) { return ADDRESS(&((runtime_t*)runtime)->factory); }

static uintptr_t fail(uintptr_t runtime, int32_t code, const char* text) {
  return ADDRESS(make_status(((runtime_t*)runtime)->api, code, text));
}

// ---- one execution --------------------------------------------------------------------------------------------------

// The addresses of a call's tensors, and what it takes to make its outputs.
typedef struct {
  const node_t* node;
  const function_t* api;
  void* context;
  uintptr_t* addresses;
} call_t;

#define CHECK(expression)                  \
  do {                                     \
    status_t* wrong = (expression);        \
    if (wrong) return wrong;               \
  } while (0)

// Hands the dims of a value to `use` together with `data`; they are valid during that call only.
typedef void (*use_dims_t)(void* data, const int64_t* dims, size_t rank);

static status_t* with_dims(const call_t* call, const void* value, use_dims_t use, void* data) {
  int32_t type;
  const int64_t* dims;
  size_t rank;
  typedef status_t* (*reference_t)(const void*, int32_t*, const int64_t**, size_t*);
  CHECK(CALL(call->api, GET_TYPE_AND_SHAPE_REFERENCE, reference_t)(value, &type, &dims, &rank));
  static const int64_t none[1];
  use(data, rank ? dims : none, rank);  // of a scalar they are NULL, which memcmp and memcpy must not get
  return NULL;
}

// Expected shapes and how far they agree with what was given.
typedef struct {
  const int64_t* at;
  int same;
} comparison_t;

static void compare_dims(void* data, const int64_t* dims, size_t rank) {
  comparison_t* comparison = data;
  const int64_t* at = comparison->at;
  comparison->same &= (size_t)at[0] == rank && memcmp(at + 1, dims, rank * sizeof(*dims)) == 0;
  comparison->at = at + 1 + at[0];
}

// Shapes that are written down; the room is MAX_RANK + 1 numbers for each.
typedef struct {
  int64_t* at;
  int too_many;
} record_t;

static void record_dims(void* data, const int64_t* dims, size_t rank) {
  record_t* record = data;
  if (rank > MAX_RANK) {
    record->too_many = 1;
    return;
  }
  *record->at++ = (int64_t)rank;
  memcpy(record->at, dims, rank * sizeof(*dims));
  record->at += rank;
}

static status_t* get_inputs(const call_t* call, use_dims_t use, void* data) {
  for (uint32_t i = 0; i < call->node->inputs; ++i) {
    const void* value = NULL;
    CHECK(CALL(call->api, CONTEXT_GET_INPUT, status_t* (*)(const void*, size_t, const void**))(call->context, i, &value));
    if (!value) return failed(call->node->runtime, "an input of a compiled node has no value");
    void* address = NULL;
    CHECK(CALL(call->api, GET_TENSOR_MUTABLE_DATA, status_t* (*)(const void*, void**))(value, &address));
    call->addresses[i] = ADDRESS(address);
    CHECK(with_dims(call, value, use, data));
  }
  return NULL;
}

static status_t* allocate_outputs(const call_t* call, const int64_t* shapes) {
  typedef status_t* (*get_output_t)(void*, size_t, const int64_t*, size_t, void**);
  for (uint32_t i = 0; i < call->node->outputs; ++i) {
    void *value = NULL, *address = NULL;
    size_t rank = (size_t)shapes[0];
    CHECK(CALL(call->api, CONTEXT_GET_OUTPUT, get_output_t)(call->context, i, shapes + 1, rank, &value));
    CHECK(CALL(call->api, GET_TENSOR_MUTABLE_DATA, status_t* (*)(const void*, void**))(value, &address));
    call->addresses[call->node->inputs + i] = ADDRESS(address);
    shapes += 1 + rank;
  }
  return NULL;
}

static uintptr_t make_outputs(uintptr_t call, const int64_t* shapes) {
  return ADDRESS(allocate_outputs((const call_t*)call, shapes));
}

static status_t* to_python(const call_t* call, const int64_t* dims, size_t length) {
  GUARDED;
  void* stream = NULL;
  if (call->node->on_stream)
    CHECK(CALL(call->api, CONTEXT_GET_STREAM, status_t* (*)(const void*, void**))(call->context, &stream));
  return ASK(call->node->runtime, compute, call->node->id, ADDRESS(call), (const char*)call->addresses,
             ADDRESS(stream), dims, length);
}

static status_t* run_on_stage(const call_t* call) {
  const node_t* node = call->node;
  const uint64_t* place = node->stage;
  const uintptr_t* address = call->addresses;
  for (uint32_t i = 0; i < node->inputs; ++i, place += 2, ++address)
    if (place[1]) memcpy((void*)place[0], (const void*)*address, place[1]);
  long status;
  if (!launch_object(node->launch, node->failed, ESCAPED, &status)) {
    status = (long)ort.launch(node->id);
    launches_enter();
  }
  CHECK(settled(node->runtime, (uintptr_t)status));
  for (uint32_t i = 0; i < node->outputs; ++i, place += 2, ++address)
    if (place[1]) memcpy((void*)*address, (const void*)place[0], place[1]);
  return NULL;
}

static status_t* compute_unknown(const call_t* call) {
  int64_t* dims = malloc(((size_t)call->node->inputs * (MAX_RANK + 1) + 1) * sizeof(int64_t));
  if (!dims) return failed(call->node->runtime, "out of memory");
  record_t record = {dims, 0};
  status_t* status = get_inputs(call, record_dims, &record);
  if (!status && record.too_many) status = failed(call->node->runtime, "a tensor has more than 64 dims");
  if (!status) status = to_python(call, dims, (size_t)(record.at - dims));
  free(dims);
  return status;
}

static status_t* node_compute(void* this, void* state, void* context) {
  (void)state;
  node_t* node = this;
  GUARDED_LAUNCH;
  NEED_LIVE_PYTHON(node->runtime);
  call_t call = {node, node->runtime->api, context, alloca((node->inputs + node->outputs + 1) * sizeof(uintptr_t))};
  if (!node->length) return compute_unknown(&call);
  comparison_t comparison = {node->shapes, 1};
  CHECK(get_inputs(&call, compare_dims, &comparison));
  // ONNX Runtime checks the model's inputs only; what comes from another node may have other dims than were inferred.
  if (!comparison.same) return compute_unknown(&call);
  CHECK(allocate_outputs(&call, comparison.at));
  // Nobody waits here: the thread that has the stage needs Python, which this one may be holding.
  if (!node->stage || atomic_flag_test_and_set_explicit(&node->stage_taken, memory_order_acquire))
    return to_python(&call, NULL, 0);
  status_t* status = run_on_stage(&call);
  atomic_flag_clear_explicit(&node->stage_taken, memory_order_release);
  return status;
}

static status_t* node_create_state(void* this, void* context, void** state) {
  (void)context;
  *state = this;
  return NULL;
}

static void node_release_state(void* this, void* state) { (void)this, (void)state; }

static uintptr_t make_node(uintptr_t runtime, uint64_t id, int32_t on_stream, uint32_t inputs, uint32_t outputs,
                           const int64_t* shapes, size_t length, const uint64_t* stage, uintptr_t launch,
                           uintptr_t failed) {
  if (inputs > MAX_TENSORS || outputs > MAX_TENSORS) return 0;
  node_t* node = calloc(1, sizeof(*node) + length * sizeof(*shapes));
  if (!node) return 0;
  *node = (node_t){.version = FORM,
                   .create_state = node_create_state,
                   .compute = node_compute,
                   .release_state = node_release_state,
                   .runtime = (runtime_t*)runtime,
                   .id = id,
                   .inputs = inputs,
                   .outputs = outputs,
                   .on_stream = on_stream,
                   .stage = stage,
                   .stage_taken = ATOMIC_FLAG_INIT,
                   .launch = (void*)launch,
                   .failed = (void*)failed,
                   .length = length};
  if (length) memcpy(node->shapes, shapes, length * sizeof(*shapes));
  return ADDRESS(node);
}

// ---- the provider of a session --------------------------------------------------------------------------------------

static const char* provider_name(const void* this) {
  (void)this;
  return "HipDNNExecutionProvider";
}

static status_t* ep_get_capability(void* this, const void* graph, void* support) {
  const ep_t* ep = this;
  NEED_PYTHON(ep->runtime);
  return ASK(ep->runtime, capability, ep->id, ADDRESS(graph), ADDRESS(support));
}

static status_t* ep_compile(void* this, const void** graphs, const void** nodes, size_t count, void** infos,
                            void** context_nodes) {
  const ep_t* ep = this;
  NEED_PYTHON(ep->runtime);
  return ASK(ep->runtime, compile, ep->id, ADDRESS(graphs), ADDRESS(nodes), count, ADDRESS(infos),
                                ADDRESS(context_nodes));
}

static void ep_release_nodes(void* this, void** infos, size_t count) {
  GUARDED;
  (void)this;
  for (size_t i = 0; i < count; ++i) {
    node_t* node = infos[i];
    if (!node) continue;
    if (python_alive()) ort.release_node(node->id);
    free(node);
  }
}

static status_t* ep_set_dynamic_options(void* this, const char* const* keys, const char* const* values, size_t count) {
  const ep_t* ep = this;
  NEED_PYTHON(ep->runtime);
  return ASK(ep->runtime, dynamic_options, ep->id, ADDRESS(keys), ADDRESS(values), count);
}

static const char* ep_get_compatibility(void* this, const void* graph) {
  GUARDED;
  (void)graph;
  const ep_t* ep = this;
  const char* text = python_alive() ? (const char*)ort.compatibility_text(ep->id) : NULL;
  return text ? text : "";  // ONNX Runtime makes a string of it without a look
}

static status_t* factory_create_ep(void* this, const void* const* devices, const void* const* metadata, size_t count,
                                   const void* options, const void* logger, void** out) {
  runtime_t* runtime = ((factory_t*)this)->runtime;
  *out = NULL;
  NEED_PYTHON(runtime);
  ep_t* ep = malloc(sizeof(*ep));
  if (!ep) return failed(runtime, "out of memory");
  *ep = (ep_t){.version = FORM,
               .get_name = provider_name,
               .get_capability = ep_get_capability,
               .compile = ep_compile,
               .release_nodes = ep_release_nodes,
               .set_dynamic_options = ep_set_dynamic_options,
               .get_compatibility = ep_get_compatibility,
               .runtime = runtime};
  status_t* status = ASK(runtime, create_ep, ADDRESS(runtime), ADDRESS(devices), ADDRESS(metadata), count,
                                              ADDRESS(options), ADDRESS(logger), &ep->id);
  if (status)
    free(ep);
  else
    *out = ep;
  return status;
}

static void factory_release_ep(void* this, void* out) {
  GUARDED;
  (void)this;
  ep_t* ep = out;
  if (!ep) return;
  if (python_alive()) ort.release_ep(ep->id);
  free(ep);
}

// ---- memory, copies and streams of a GPU ----------------------------------------------------------------------------

static void* allocator_take(void* this, size_t size, void* stream) {
  GUARDED;
  const allocator_t* allocator = this;
  return python_alive() ? (void*)ort.allocate(allocator->id, size, ADDRESS(stream)) : NULL;
}

static void* allocator_allocate(void* this, size_t size) { return allocator_take(this, size, NULL); }

static void allocator_deallocate(void* this, void* address) {
  GUARDED;
  const allocator_t* allocator = this;
  if (address && python_alive()) ort.deallocate(allocator->id, ADDRESS(address));
}

static const void* allocator_info(const void* this) { return ((const allocator_t*)this)->memory_info; }

static status_t* factory_create_allocator(void* this, const void* memory_info, const void* options, void** out) {
  (void)options;
  runtime_t* runtime = ((factory_t*)this)->runtime;
  *out = NULL;
  NEED_PYTHON(runtime);
  allocator_t* allocator = malloc(sizeof(*allocator));
  if (!allocator) return failed(runtime, "out of memory");
  *allocator = (allocator_t){.version = FORM,
                             .allocate = allocator_allocate,
                             .deallocate = allocator_deallocate,
                             .info = allocator_info,
                             .reserve = allocator_allocate,
                             .allocate_on_stream = allocator_take,
                             .memory_info = memory_info};
  status_t* status = ASK(runtime, create_allocator, ADDRESS(runtime), ADDRESS(memory_info), &allocator->id);
  if (status || !allocator->id)  // no memory of ours: ONNX Runtime uses its own
    free(allocator);
  else
    *out = allocator;
  return status;
}

static void factory_release_allocator(void* this, void* out) {
  GUARDED;
  (void)this;
  allocator_t* allocator = out;
  if (!allocator) return;
  if (python_alive()) ort.release_allocator(allocator->id);
  free(allocator);
}

static void transfer_release(void* this) { (void)this; }

static _Bool transfer_can_copy(const void* this, const void* from, const void* to) {
  GUARDED;
  runtime_t* runtime = ((const transfer_t*)this)->runtime;
  return python_alive() && ort.can_copy(ADDRESS(runtime), ADDRESS(from), ADDRESS(to));
}

static status_t* transfer_copy(void* this, const void** sources, void** targets, void** streams, size_t count) {
  runtime_t* runtime = ((transfer_t*)this)->runtime;
  NEED_PYTHON(runtime);
  return ASK(runtime, copy, ADDRESS(runtime), ADDRESS(sources), ADDRESS(targets), ADDRESS(streams), count);
}

static status_t* factory_create_data_transfer(void* this, void** out) {
  runtime_t* runtime = ((factory_t*)this)->runtime;
  *out = NULL;
  NEED_PYTHON(runtime);
  if (ort.stream_aware(ADDRESS(runtime))) *out = &runtime->transfer;
  return NULL;
}

static _Bool factory_is_stream_aware(const void* this) {
  GUARDED;
  return python_alive() && ort.stream_aware(ADDRESS(((const factory_t*)this)->runtime));
}

static void notification_release(void* this) {
  GUARDED;
  notification_t* notification = this;
  if (python_alive()) ort.release_event(notification->id);
  free(notification);
}

static status_t* notification_activate(void* this) {
  const notification_t* notification = this;
  NEED_PYTHON(notification->runtime);
  return ASK(notification->runtime, record_event, ADDRESS(notification->runtime), notification->id);
}

static status_t* notification_wait_on_device(void* this, void* stream) {
  const notification_t* notification = this;
  NEED_PYTHON(notification->runtime);
  return ASK(notification->runtime, wait_event, ADDRESS(notification->runtime), notification->id, ADDRESS(stream));
}

static status_t* notification_wait_on_host(void* this) { return notification_wait_on_device(this, NULL); }

static status_t* stream_create_notification(void* this, void** out) {
  const stream_t* stream = this;
  *out = NULL;
  NEED_PYTHON(stream->runtime);
  notification_t* made = malloc(sizeof(*made));
  if (!made) return failed(stream->runtime, "out of memory");
  *made = (notification_t){FORM,
                           notification_release,
                           notification_activate,
                           notification_wait_on_device,
                           notification_wait_on_host,
                           stream->runtime,
                           0};
  status_t* status = ASK(stream->runtime, create_event, ADDRESS(stream->runtime), stream->id, &made->id);
  if (status)
    free(made);
  else
    *out = made;
  return status;
}

static status_t* stream_flush(void* this) {
  const stream_t* stream = this;
  NEED_PYTHON(stream->runtime);
  return ASK(stream->runtime, flush_stream, ADDRESS(stream->runtime), stream->id);
}

static status_t* stream_on_run_end(void* this) { (void)this; return NULL; }
static void* stream_get_handle(void* this) { return ((stream_t*)this)->handle; }

static void stream_release(void* this) {
  GUARDED;
  stream_t* stream = this;
  if (python_alive()) ort.release_stream(stream->id);
  free(stream);
}

static status_t* factory_create_stream(void* this, const void* device, const void* options, void** out) {
  (void)options;
  runtime_t* runtime = ((factory_t*)this)->runtime;
  *out = NULL;
  NEED_PYTHON(runtime);
  stream_t* made = malloc(sizeof(*made));
  if (!made) return failed(runtime, "out of memory");
  *made = (stream_t){FORM,     stream_release,    stream_get_handle, stream_create_notification,
                     stream_flush, stream_on_run_end, runtime,           0,
                     NULL};
  uintptr_t handle = 0;
  status_t* status = ASK(runtime, create_stream, ADDRESS(runtime), ADDRESS(device), &made->id, &handle);
  made->handle = (void*)handle;
  if (status)
    free(made);
  else
    *out = made;
  return status;
}

// ---- the factory ----------------------------------------------------------------------------------------------------

static const char* factory_get_vendor(const void* this) { (void)this; return "AMD"; }
static uint32_t factory_get_vendor_id(const void* this) { (void)this; return AMD; }
static const char* factory_get_version(const void* this) { (void)this; return FUSILLI_VERSION; }

static status_t* factory_get_supported_devices(void* this, const void* const* devices, size_t count, void** out,
                                               size_t max, size_t* number) {
  runtime_t* runtime = ((factory_t*)this)->runtime;
  *number = 0;
  NEED_PYTHON(runtime);
  return ASK(runtime, supported_devices, ADDRESS(runtime), ADDRESS(devices), count, ADDRESS(out), max, number);
}

static status_t* factory_validate_compatibility(void* this, const void* const* devices, size_t count, const char* text,
                                                int32_t* answer) {
  (void)devices, (void)count;
  runtime_t* runtime = ((factory_t*)this)->runtime;
  NEED_PYTHON(runtime);
  return ASK(runtime, compatibility, ADDRESS(runtime), text, answer);
}

static const factory_t factory_form = {.version = FORM,
                                       .get_name = provider_name,
                                       .get_vendor = factory_get_vendor,
                                       .get_supported_devices = factory_get_supported_devices,
                                       .create_ep = factory_create_ep,
                                       .release_ep = factory_release_ep,
                                       .get_vendor_id = factory_get_vendor_id,
                                       .get_version = factory_get_version,
                                       .validate_compatibility = factory_validate_compatibility,
                                       .create_allocator = factory_create_allocator,
                                       .release_allocator = factory_release_allocator,
                                       .create_data_transfer = factory_create_data_transfer,
                                       .is_stream_aware = factory_is_stream_aware,
                                       .create_stream = factory_create_stream};

static pthread_mutex_t runtimes_mutex = PTHREAD_MUTEX_INITIALIZER;
static runtime_t* runtimes;

void lock_runtimes(void) { pthread_mutex_lock(&runtimes_mutex); }
void unlock_runtimes(void) { pthread_mutex_unlock(&runtimes_mutex); }

// Python is not entered under this mutex.
static runtime_t* runtime_of(const api_base_t* base, const function_t* api) {
  lock_runtimes();
  runtime_t* runtime = runtimes;
  while (runtime && runtime->base != base) runtime = runtime->next;
  if (!runtime && (runtime = calloc(1, sizeof(*runtime)))) {
    *runtime = (runtime_t){base, api, factory_form, {0}, runtimes};
    runtime->transfer = (transfer_t){FORM, transfer_release, transfer_can_copy, transfer_copy, runtime};
    runtime->factory.runtime = runtime;
    runtimes = runtime;
  }
  unlock_runtimes();
  return runtime;
}

static fusilli_ort_link ort = {
    .api = api_of,
    .factory = factory_of,
    .fail = fail,
    .make_node = make_node,
    .make_outputs = make_outputs,
};

void hipdnnPluginGetLastErrorString(const char** text);

// Has Python fill `ort`; it does so once. The reason of a failure.
static const char* attach(void) {
  GUARDED;
  if (!python_start()) return python_problem();
  if (fusilli_python.attach_ort(ADDRESS(&ort)) == 0 && ort.attached) return NULL;
  const char* reason;
  hipdnnPluginGetLastErrorString(&reason);
  return reason;
}

// 1.24 before 1.24.4 gives compiled groups of different graphs, of the branches of an If for example, one name.
static int mixes_up_groups(const char* version) {
  return version && !strncmp(version, "1.24.", 5) && strtoul(version + 5, NULL, 10) < 4;
}

EXPORT status_t* CreateEpFactories(const char* name, const api_base_t* base, const void* logger, void** factories,
                                   size_t max, size_t* count) {
  if (!base || !count) return NULL;  // there is nobody to tell
  *count = 0;
  const function_t* first = base->get_api(1);
  const char* have = base->get_version();
  const function_t* api = base->get_api(NEEDED);
  char text[2560];
  if (!api || mixes_up_groups(have)) {
    snprintf(text, sizeof(text), "onnxruntime %s is too old for HipDNNExecutionProvider: 1.24.4 or newer is needed",
             have ? have : "?");
    return first ? make_status(first, ORT_FAIL, text) : NULL;
  }
  if (!factories || !max) return make_status(api, ORT_INVALID_ARGUMENT, "there is no room for a factory");
  const char* reason = attach();
  if (reason) {
    snprintf(text, sizeof(text), "HipDNNExecutionProvider: %s", reason);
    return make_status(api, ORT_FAIL, text);
  }
  runtime_t* runtime = runtime_of(base, api);
  if (!runtime) return make_status(api, ORT_FAIL, "out of memory");
  status_t* status = ASK(runtime, create_factory, ADDRESS(runtime), name ? name : "", ADDRESS(logger));
  if (status) return status;
  factories[0] = &runtime->factory;
  *count = 1;
  return NULL;
}

EXPORT status_t* ReleaseEpFactory(factory_t* factory) {
  GUARDED;
  if (factory && python_alive()) ort.release_factory(ADDRESS(factory->runtime));
  return NULL;
}
