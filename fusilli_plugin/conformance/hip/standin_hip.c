// A stand-in for libamdhip64.so: the HIP calls that IREE's hip driver and hip-python make, over host memory. For tests, and
// for `fusilli conformance` on machines without HIP.
//
// Nothing is executed on a GPU. Copies happen at once; a kernel launch is recorded and then handed to a handler that the
// process installs (it plays the kernel), or does nothing. What this can show is the order of calls, the stream of each
// launch and copy, the arguments of each kernel, allocation counts and how failures are reported. It says nothing about
// how code runs on AMD hardware.
//
// Environment, read once: STANDIN_HIP_DEVICES (default 1), STANDIN_HIP_ARCH (default "gfx942:sramecc+:xnack-"; a comma
// separated list gives one per device).

#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define EXPORT __attribute__((visibility("default")))

enum { OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NO_DEVICE = 100, INVALID_DEVICE = 101, NOT_FOUND = 500,
       CAPTURE_UNSUPPORTED = 900, CAPTURE_IMPLICIT = 906 };
enum { MAX_EVENTS = 1 << 16, MAX_FUNCTIONS = 4096, MAX_ARGUMENTS = 64, ALIGNMENT = 256, LARGE = 1 << 20 };

typedef struct {
  char call[32];      // "launch", "memcpy", "malloc", "free", "host_malloc", "stream_create", "synchronize", ...
  char kernel[96];    // name of a launched kernel
  uint64_t stream;    // stream of a launch or copy
  uint64_t device;    // device that was current on the calling thread
  uint64_t size;      // bytes of an allocation or copy
  uint64_t pointer;   // allocation, or destination of a copy
  uint64_t source;    // source of a copy
  uint32_t grid[3];
  uint32_t block[3];
  uint64_t argument_count;
  uint64_t arguments[MAX_ARGUMENTS];
} standin_event_t;

typedef struct {
  char name[96];
  uint32_t argument_count;
} function_t;

// Plays a kernel: name, stream, argument values, their number. A result other than 0 is the launch's error.
typedef int (*standin_kernel_t)(const char* name, uint64_t stream, const uint64_t* arguments, uint64_t count);

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static standin_event_t* events;
static uint64_t event_count;
static function_t functions[MAX_FUNCTIONS];
static uint32_t function_count;
static standin_kernel_t kernel_handler;
static char failing_call[32];
static int failing_error;
static int failing_after;
static int64_t live_bytes;
static uint64_t launch_count;  // of all kernels, whatever was reset
static uint64_t capturing;  // stream that is captured into a graph, 0 for none
static uint64_t capture_violations;

// What hipStreamBeginCapture begins: launches and copies of that stream, which are not played before hipGraphLaunch.
enum { MAX_NODES = 256 };
typedef struct {
  uint32_t count;
  standin_event_t nodes[MAX_NODES];
} graph_t;
static graph_t* recording;  // NULL as well while a test has a stream captured by standin_capture
static uint64_t next_stream = 0x1000;
static __thread int current_device;

static int device_count(void) {
  const char* text = getenv("STANDIN_HIP_DEVICES");
  return text ? atoi(text) : 1;
}

static void device_arch(int device, char* out, size_t size) {
  const char* text = getenv("STANDIN_HIP_ARCH");
  if (!text) text = "gfx942:sramecc+:xnack-";
  for (; device > 0 && strchr(text, ','); --device) text = strchr(text, ',') + 1;
  size_t length = strcspn(text, ",");
  if (length >= size) length = size - 1;
  memcpy(out, text, length);
  out[length] = 0;
}

// What HIP refuses while a stream is captured (in its default, global mode): allocations, waiting, asking for an event,
// copies and modules that wait. Enqueueing on a stream is recorded, host functions included.
static int is_unsafe_in_capture(const char* call) {
  static const char* const calls[] = {"malloc", "free", "host_malloc", "host_free", "synchronize", "event_query",
                                      "event_synchronize", "memcpy_sync", "register", "unregister", "module_load"};
  for (size_t i = 0; i < sizeof(calls) / sizeof(*calls); ++i)
    if (strcmp(call, calls[i]) == 0) return 1;
  return 0;
}

// Starts a record under the lock; finish() ends it. Returns the injected error of this call, if any is due.
static int begin(const char* call, standin_event_t** out) {
  static standin_event_t overflow;
  pthread_mutex_lock(&mutex);
  if (!events) events = calloc(MAX_EVENTS, sizeof(*events));
  standin_event_t* event = event_count < MAX_EVENTS ? &events[event_count++] : &overflow;
  memset(event, 0, sizeof(*event));
  snprintf(event->call, sizeof(event->call), "%s", call);
  event->device = (uint64_t)current_device;
  *out = event;
  if (capturing && is_unsafe_in_capture(call)) {
    ++capture_violations;
    return CAPTURE_UNSUPPORTED;
  }
  if (failing_error && strcmp(call, failing_call) == 0 && failing_after-- <= 0) return failing_error;
  return OK;
}

static void finish(void) { pthread_mutex_unlock(&mutex); }

// Whether a call is for the graph that is recorded, and not to be done now; under the lock. `error` if it has no room.
static int is_recorded(const standin_event_t* event, int* error) {
  if (!recording || event->stream != capturing || *error) return 0;
  if (recording->count == MAX_NODES) *error = OUT_OF_MEMORY;
  else recording->nodes[recording->count++] = *event;
  return 1;
}

static int record(const char* call, uint64_t stream, uint64_t pointer) {
  standin_event_t* event;
  int error = begin(call, &event);
  event->stream = stream;
  event->pointer = pointer;
  finish();
  return error;
}

// ---- what tests call ----------------------------------------------------------------------------------------------

EXPORT uint64_t standin_event_count(void) { return event_count; }
EXPORT const standin_event_t* standin_event(uint64_t index) { return index < event_count ? &events[index] : NULL; }
EXPORT uint64_t standin_event_size(void) { return sizeof(standin_event_t); }
EXPORT int64_t standin_live_bytes(void) { return live_bytes; }
EXPORT uint64_t standin_launch_count(void) { return launch_count; }
EXPORT void standin_set_kernel(standin_kernel_t handler) { kernel_handler = handler; }

EXPORT void standin_reset(void) {
  pthread_mutex_lock(&mutex);
  event_count = 0;
  failing_error = 0;
  pthread_mutex_unlock(&mutex);
}

// Lets `call` fail with `error` after it has succeeded `after` times more; error 0 ends that.
EXPORT void standin_fail(const char* call, int error, int after) {
  pthread_mutex_lock(&mutex);
  snprintf(failing_call, sizeof(failing_call), "%s", call);
  failing_error = error;
  failing_after = after;
  pthread_mutex_unlock(&mutex);
}

// Captures a stream from now on; 0 ends it. Returns how many calls were refused while the last capture went on.
EXPORT uint64_t standin_capture(uint64_t stream) {
  pthread_mutex_lock(&mutex);
  uint64_t refused = capture_violations;
  capturing = stream;
  capture_violations = 0;
  pthread_mutex_unlock(&mutex);
  return refused;
}

// ---- devices and contexts (a context is its device number + 1) ------------------------------------------------------

EXPORT int hipInit(unsigned flags) { return flags ? INVALID_VALUE : OK; }
// STANDIN_HIP_VERSION: of the runtime. STANDIN_HIP_CARD: which cards are in the machine.
static int number_or(const char* text, int otherwise) {
  return text ? atoi(text) : otherwise;
}

EXPORT int hipRuntimeGetVersion(int* out) { *out = number_or(getenv("STANDIN_HIP_VERSION"), 70000000); return OK; }
EXPORT int hipDriverGetVersion(int* out) { *out = 70000000; return OK; }
EXPORT int hipGetDeviceCount(int* out) { *out = device_count(); return *out ? OK : NO_DEVICE; }
EXPORT int hipGetDevice(int* out) { *out = current_device; return device_count() ? OK : NO_DEVICE; }

EXPORT int hipSetDevice(int device) {
  if (device < 0 || device >= device_count()) return INVALID_DEVICE;
  current_device = device;
  return OK;
}

EXPORT int hipDeviceGet(int* out, int ordinal) {
  if (ordinal < 0 || ordinal >= device_count()) return INVALID_DEVICE;
  *out = ordinal;
  return OK;
}

EXPORT int hipDeviceGetName(char* out, int size, int device) {
  snprintf(out, (size_t)size, "stand-in GPU %d", device);
  return OK;
}

EXPORT int hipDeviceGetPCIBusId(char* out, int size, int device) {
  if (device < 0 || device >= device_count()) return INVALID_DEVICE;
  snprintf(out, (size_t)size, "0000:%02x:00.0", 3 + device);
  return OK;
}

EXPORT int hipDeviceGetUuid(void* out, int device) {
  if (device < 0 || device >= device_count()) return INVALID_DEVICE;
  memset(out, number_or(getenv("STANDIN_HIP_CARD"), 0xA0) + device, 16);
  return OK;
}

EXPORT int hipDeviceGetAttribute(int* out, int attribute, int device) {
  (void)attribute;
  *out = 65536;  // large enough for every limit that is asked for, and "yes" for every feature
  return device < device_count() ? OK : INVALID_DEVICE;
}

// The property structures of HIP 6 and later, and of HIP 5 and before: only the fields below are filled.
enum { PROPERTIES_SIZE = 1472, ARCH_OFFSET = 1160, OLD_PROPERTIES_SIZE = 792, OLD_ARCH_OFFSET = 396 };
enum { MEMORY_OFFSET = 288, OLD_MEMORY_OFFSET = 256 };

// STANDIN_HIP_MEMORY: bytes that each device says it has.
static void device_memory(char* out) {
  const char* text = getenv("STANDIN_HIP_MEMORY");
  size_t memory = text ? strtoull(text, NULL, 10) : (size_t)192 << 30;
  memcpy(out, &memory, sizeof memory);
}

EXPORT int hipGetDevicePropertiesR0600(void* out, int device) {
  if (device < 0 || device >= device_count()) return INVALID_DEVICE;
  memset(out, 0, PROPERTIES_SIZE);
  hipDeviceGetName(out, 256, device);
  device_arch(device, (char*)out + ARCH_OFFSET, 256);
  device_memory((char*)out + MEMORY_OFFSET);
  return OK;
}

EXPORT int hipGetDeviceProperties(void* out, int device) {
  if (device < 0 || device >= device_count()) return INVALID_DEVICE;
  memset(out, 0, OLD_PROPERTIES_SIZE);
  hipDeviceGetName(out, 256, device);
  device_arch(device, (char*)out + OLD_ARCH_OFFSET, 256);
  device_memory((char*)out + OLD_MEMORY_OFFSET);
  return OK;
}

static __thread uintptr_t context_stack[64];
static __thread int context_depth;

EXPORT int hipDevicePrimaryCtxRetain(void** out, int device) { *out = (void*)(uintptr_t)(device + 1); return OK; }
EXPORT int hipDevicePrimaryCtxRelease(int device) { (void)device; return OK; }
EXPORT int hipCtxGetCurrent(void** out) { *out = (void*)(uintptr_t)(current_device + 1); return OK; }
EXPORT int hipCtxSetCurrent(void* context) { return hipSetDevice((int)(uintptr_t)context - 1); }

EXPORT int hipCtxPushCurrent(void* context) {
  if (context_depth == 64) return INVALID_VALUE;
  context_stack[context_depth++] = (uintptr_t)current_device;
  return hipCtxSetCurrent(context);
}

EXPORT int hipCtxPopCurrent(void** out) {
  if (context_depth == 0) return INVALID_VALUE;
  if (out) *out = (void*)(uintptr_t)(current_device + 1);
  current_device = (int)context_stack[--context_depth];
  return OK;
}

EXPORT int hipDeviceCanAccessPeer(int* out, int device, int peer) { (void)device; (void)peer; *out = 0; return OK; }
EXPORT int hipDeviceEnablePeerAccess(int peer, unsigned flags) { (void)peer; (void)flags; return OK; }
EXPORT int hipDeviceSynchronize(void) { return record("synchronize", 0, 0); }
EXPORT int hipGetLastError(void) { return OK; }

EXPORT const char* hipGetErrorName(int error) {
  switch (error) {
    case OK: return "hipSuccess";
    case INVALID_VALUE: return "hipErrorInvalidValue";
    case OUT_OF_MEMORY: return "hipErrorOutOfMemory";
    case NO_DEVICE: return "hipErrorNoDevice";
    case INVALID_DEVICE: return "hipErrorInvalidDevice";
    case NOT_FOUND: return "hipErrorNotFound";
    case 719: return "hipErrorLaunchFailure";
    case CAPTURE_UNSUPPORTED: return "hipErrorStreamCaptureUnsupported";
    default: return "hipErrorUnknown";
  }
}
EXPORT const char* hipGetErrorString(int error) { return hipGetErrorName(error); }

// ---- memory: each block carries its size in front -----------------------------------------------------------------

// Large blocks are mapped, so that a driver's 128 MiB of staging memory costs nothing until it is touched.
static unsigned char* reserve(size_t size) {
  void* block = NULL;
  if (size < LARGE) return posix_memalign(&block, ALIGNMENT, size) ? NULL : block;
  block = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return block == MAP_FAILED ? NULL : block;
}

static int allocate(const char* call, void** out, size_t size, uint64_t stream) {
  standin_event_t* event;
  int error = begin(call, &event);
  unsigned char* block = NULL;
  if (!error && !(block = reserve(size + ALIGNMENT))) error = OUT_OF_MEMORY;
  if (!error) {
    memcpy(block, &size, sizeof(size));
    *out = block + ALIGNMENT;
    live_bytes += (int64_t)size;
    event->pointer = (uint64_t)(uintptr_t)*out;
  }
  event->size = size;
  event->stream = stream;
  finish();
  return error;
}

static int release(const char* call, void* pointer, uint64_t stream) {
  if (!pointer) return OK;
  size_t size;
  memcpy(&size, (unsigned char*)pointer - ALIGNMENT, sizeof(size));
  standin_event_t* event;
  int error = begin(call, &event);
  event->pointer = (uint64_t)(uintptr_t)pointer;
  event->size = size;
  event->stream = stream;
  live_bytes -= (int64_t)size;
  finish();
  unsigned char* block = (unsigned char*)pointer - ALIGNMENT;
  if (size + ALIGNMENT < LARGE) {
    free(block);
  } else {
    munmap(block, size + ALIGNMENT);
  }
  return error;
}

#define S(stream) ((uint64_t)(uintptr_t)(stream))

EXPORT int hipMalloc(void** out, size_t size) { return allocate("malloc", out, size, 0); }
EXPORT int hipMallocManaged(void** out, size_t size, unsigned f) { (void)f; return allocate("malloc", out, size, 0); }
EXPORT int hipMallocAsync(void** out, size_t size, void* stream) { return allocate("malloc", out, size, S(stream)); }
EXPORT int hipMallocFromPoolAsync(void** out, size_t size, void* pool, void* stream) {
  (void)pool;
  return allocate("malloc", out, size, S(stream));
}
EXPORT int hipFree(void* pointer) { return release("free", pointer, 0); }
EXPORT int hipFreeAsync(void* pointer, void* stream) { return release("free", pointer, S(stream)); }
EXPORT int hipHostMalloc(void** out, size_t size, unsigned f) { (void)f; return allocate("host_malloc", out, size, 0); }
EXPORT int hipHostFree(void* pointer) { return release("host_free", pointer, 0); }
EXPORT int hipHostGetDevicePointer(void** out, void* host, unsigned f) { (void)f; *out = host; return OK; }
EXPORT int hipHostRegister(void* host, size_t size, unsigned f) { (void)f; (void)size; return record("register", 0, S(host)); }
EXPORT int hipHostUnregister(void* host) { return record("unregister", 0, S(host)); }
EXPORT int hipMemPrefetchAsync(const void* p, size_t n, int d, void* s) { (void)p; (void)n; (void)d; (void)s; return OK; }

static int copy(void* target, const void* source, size_t size, uint64_t stream) {
  standin_event_t* event;
  int error = begin("memcpy", &event);
  event->stream = stream;
  event->size = size;
  event->pointer = S(target);
  event->source = S(source);
  int later = is_recorded(event, &error);
  finish();
  if (!error && !later) memmove(target, source, size);
  return error;
}

EXPORT int hipMemcpy(void* t, const void* s, size_t n, int kind) {
  (void)kind;
  int error = record("memcpy_sync", 0, S(t));
  return error ? error : copy(t, s, n, 0);
}
EXPORT int hipMemcpyAsync(void* t, const void* s, size_t n, int k, void* q) { (void)k; return copy(t, s, n, S(q)); }
EXPORT int hipMemcpyHtoDAsync(void* t, void* s, size_t n, void* q) { return copy(t, s, n, S(q)); }

EXPORT int hipMemcpy2DAsync(void* t, size_t tp, const void* s, size_t sp, size_t width, size_t rows, int k, void* q) {
  (void)k;
  if (width > tp || width > sp) return INVALID_VALUE;
  int error = record("memcpy2d", S(q), S(t));
  for (size_t row = 0; !error && row < rows; ++row) memcpy((char*)t + row * tp, (const char*)s + row * sp, width);
  return error;
}

static int fill(void* target, const void* pattern, size_t width, size_t count, void* stream) {
  int error = record("memset", S(stream), S(target));
  if (!error && recording && S(stream) == capturing) return CAPTURE_UNSUPPORTED;  // no node of these graphs
  for (size_t i = 0; !error && i < count; ++i) memcpy((char*)target + i * width, pattern, width);
  return error;
}

EXPORT int hipMemset(void* t, int v, size_t n) { char c = (char)v; return fill(t, &c, 1, n, NULL); }
EXPORT int hipMemsetAsync(void* t, int v, size_t n, void* q) { char c = (char)v; return fill(t, &c, 1, n, q); }
EXPORT int hipMemsetD8Async(void* t, char v, size_t n, void* q) { return fill(t, &v, 1, n, q); }
EXPORT int hipMemsetD16Async(void* t, short v, size_t n, void* q) { return fill(t, &v, 2, n, q); }
EXPORT int hipMemsetD32Async(void* t, int v, size_t n, void* q) { return fill(t, &v, 4, n, q); }

EXPORT int hipMemPoolCreate(void** out, const void* props) { (void)props; *out = (void*)0x900; return OK; }
EXPORT int hipMemPoolDestroy(void* pool) { (void)pool; return OK; }
EXPORT int hipMemPoolGetAttribute(void* p, int a, void* out) { (void)p; (void)a; memset(out, 0, 8); return OK; }
EXPORT int hipMemPoolSetAttribute(void* p, int a, void* value) { (void)p; (void)a; (void)value; return OK; }
EXPORT int hipMemPoolTrimTo(void* pool, size_t size) { (void)pool; (void)size; return OK; }

// ---- streams and events: everything is done when it is asked for ----------------------------------------------------

EXPORT int hipStreamCreateWithFlags(void** out, unsigned flags) {
  (void)flags;
  standin_event_t* event;
  int error = begin("stream_create", &event);
  if (!error) *out = (void*)(uintptr_t)(event->stream = next_stream += 0x10);
  finish();
  return error;
}
EXPORT int hipStreamCreate(void** out) { return hipStreamCreateWithFlags(out, 0); }
EXPORT int hipStreamIsCapturing(void* stream, int* status) {
  *status = capturing && S(stream) == capturing;  // 1: active
  return capturing && !stream ? CAPTURE_IMPLICIT : OK;
}
// The top byte of a stream is its device: streams of tests are plain numbers.
EXPORT int hipStreamGetDevice(void* stream, int* out) { *out = (int)(S(stream) >> 56); return OK; }
EXPORT int hipStreamDestroy(void* stream) { return record("stream_destroy", S(stream), 0); }
EXPORT int hipStreamSynchronize(void* stream) { return record("synchronize", S(stream), 0); }
EXPORT int hipStreamWaitEvent(void* s, void* e, unsigned f) { (void)f; return record("wait_event", S(s), S(e)); }

EXPORT int hipLaunchHostFunc(void* stream, void (*function)(void*), void* argument) {
  int error = record("host_func", S(stream), 0);
  if (!error) function(argument);
  return error;
}

EXPORT int hipEventCreateWithFlags(void** out, unsigned flags) { (void)flags; *out = malloc(8); return OK; }
EXPORT int hipEventCreate(void** out) { return hipEventCreateWithFlags(out, 0); }
EXPORT int hipEventDestroy(void* event) { free(event); return OK; }
EXPORT int hipEventRecord(void* event, void* stream) { return record("event_record", S(stream), S(event)); }
EXPORT int hipEventQuery(void* event) { return record("event_query", 0, S(event)); }
EXPORT int hipEventSynchronize(void* event) { return record("event_synchronize", 0, S(event)); }
EXPORT int hipEventElapsedTime(float* out, void* a, void* b) { (void)a; (void)b; *out = 0; return OK; }

// ---- modules and launches -----------------------------------------------------------------------------------------

EXPORT int hipModuleLoadDataEx(void** out, const void* image, unsigned n, void* options, void** values) {
  (void)n; (void)options; (void)values;
  if (memcmp(image, "\177ELF", 4) != 0) return INVALID_VALUE;
  *out = (void*)image;
  return record("module_load", 0, 0);
}
EXPORT int hipModuleLoadData(void** out, const void* image) { return hipModuleLoadDataEx(out, image, 0, NULL, NULL); }
EXPORT int hipModuleUnload(void* module) { (void)module; return record("module_unload", 0, 0); }

// Explicit arguments of a kernel, counted in the code object's metadata (MessagePack): from its name back to the list of
// ".args" before it, one ".value_kind" for each. All kernels of IREE take 8-byte pointers and 4-byte constants.
static uint32_t count_arguments(const unsigned char* image, size_t size, const char* name) {
  size_t length = strlen(name);
  for (size_t i = 0; i + length + 6 < size; ++i) {
    if (memcmp(image + i, ".name", 5) != 0) continue;
    const unsigned char* text = image + i + 5;
    text += *text == 0xd9 ? 2 : 1;
    if (memcmp(text, name, length) != 0) continue;
    uint32_t count = 0;
    for (const unsigned char* at = image + i; at > image + 5 && memcmp(at, ".args", 5) != 0; --at) {
      if (memcmp(at, "global_buffer", 13) == 0 || memcmp(at, "by_value", 8) == 0) ++count;
    }
    return count;
  }
  return 0;
}

static size_t elf_size(const unsigned char* image) {
  uint64_t section_offset;
  uint16_t entry_size, entries;
  memcpy(&section_offset, image + 0x28, 8);
  memcpy(&entry_size, image + 0x3a, 2);
  memcpy(&entries, image + 0x3c, 2);
  return section_offset + (size_t)entry_size * entries;
}

EXPORT int hipModuleGetFunction(void** out, void* module, const char* name) {
  pthread_mutex_lock(&mutex);
  int error = function_count == MAX_FUNCTIONS ? OUT_OF_MEMORY : OK;
  if (!error) {
    function_t* function = &functions[function_count++];
    snprintf(function->name, sizeof(function->name), "%s", name);
    function->argument_count = count_arguments(module, elf_size(module), name);
    if (function->argument_count > MAX_ARGUMENTS) function->argument_count = MAX_ARGUMENTS;
    *out = function;
  }
  pthread_mutex_unlock(&mutex);
  return error;
}

EXPORT int hipModuleGetGlobal(void** out, size_t* size, void* module, const char* name) {
  (void)out; (void)size; (void)module; (void)name;
  return NOT_FOUND;
}
EXPORT int hipFuncGetAttribute(int* out, int attribute, const void* f) { (void)attribute; (void)f; *out = 0; return OK; }
EXPORT int hipFuncSetAttribute(const void* f, int attribute, int v) { (void)attribute; (void)f; (void)v; return OK; }

EXPORT int hipModuleLaunchKernel(void* handle, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                 unsigned bz, unsigned shared, void* stream, void** parameters, void** extra) {
  (void)shared; (void)extra;
  const function_t* function = handle;
  standin_event_t* event;
  int error = begin("launch", &event);
  snprintf(event->kernel, sizeof(event->kernel), "%s", function->name);
  event->stream = S(stream);
  event->grid[0] = gx; event->grid[1] = gy; event->grid[2] = gz;
  event->block[0] = bx; event->block[1] = by; event->block[2] = bz;
  event->argument_count = function->argument_count;
  for (uint32_t i = 0; i < function->argument_count; ++i) memcpy(&event->arguments[i], parameters[i], 8);
  ++launch_count;
  standin_event_t played = *event;
  standin_kernel_t handler = kernel_handler;
  int later = is_recorded(event, &error);
  finish();
  if (!error && handler && !later) error = handler(function->name, S(stream), played.arguments, played.argument_count);
  return error;
}

// ---- graphs ---------------------------------------------------------------------------------------------------------

EXPORT int hipStreamBeginCapture(void* stream, int mode) {
  if (!stream || mode < 0 || mode > 2) return INVALID_VALUE;
  pthread_mutex_lock(&mutex);
  int error = capturing ? CAPTURE_UNSUPPORTED : (recording = calloc(1, sizeof(*recording))) ? OK : OUT_OF_MEMORY;
  if (!error) capturing = S(stream), capture_violations = 0;
  pthread_mutex_unlock(&mutex);
  return error;
}

EXPORT int hipStreamEndCapture(void* stream, void** out) {
  pthread_mutex_lock(&mutex);
  int error = !recording || S(stream) != capturing ? INVALID_VALUE : capture_violations ? CAPTURE_UNSUPPORTED : OK;
  *out = error ? NULL : recording;
  if (error) free(recording);
  recording = NULL;
  capturing = capture_violations = 0;
  pthread_mutex_unlock(&mutex);
  return error;
}

EXPORT int hipGraphInstantiate(void** out, void* graph, void* node, char* text, size_t size) {
  (void)node; (void)text; (void)size;
  if (!graph || !(*out = malloc(sizeof(graph_t)))) return INVALID_VALUE;
  memcpy(*out, graph, sizeof(graph_t));
  return OK;
}

EXPORT int hipGraphLaunch(void* executable, void* stream) {
  const graph_t* graph = executable;
  int error = record("graph_launch", S(stream), S(executable));
  for (uint32_t i = 0; !error && i < graph->count; ++i) {
    const standin_event_t* node = &graph->nodes[i];
    if (!strcmp(node->call, "memcpy")) {
      memmove((void*)(uintptr_t)node->pointer, (const void*)(uintptr_t)node->source, node->size);
    } else if (kernel_handler) {
      error = kernel_handler(node->kernel, S(stream), node->arguments, node->argument_count);
    }
  }
  return error;
}

EXPORT int hipGraphDestroy(void* graph) { free(graph); return OK; }
EXPORT int hipGraphExecDestroy(void* executable) { free(executable); return OK; }

// Looked up by the driver, never called by what it does for us.
#define UNUSED(name) EXPORT int name(void) { return record(#name, 0, 0) ? 1 : 801 /* not supported */; }
UNUSED(hipLaunchKernel)
UNUSED(hipDrvGraphAddMemcpyNode)
UNUSED(hipGraphAddEmptyNode)
UNUSED(hipGraphAddEventRecordNode)
UNUSED(hipGraphAddKernelNode)
UNUSED(hipGraphAddMemsetNode)
UNUSED(hipGraphCreate)
