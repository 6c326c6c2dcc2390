// A provider library between ONNX Runtime and the one that FUSILLI_BETWEEN names: of the calls that can fail, it lets
// one fail, and it calls the library's entry points in ways that ONNX Runtime does not.
//
// Compiled with the slots of those calls: SLOTS and EP_SLOTS are X(3) X(8) and so on.

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

typedef void (*function_t)(void);
typedef struct {
  const function_t* (*get_api)(uint32_t version);
  const char* (*get_version)(void);
} base_t;
typedef void* (*create_t)(const char*, const base_t*, const void*, void**, size_t, size_t*);
typedef void* (*release_t)(void*);

enum { CREATE_STATUS = 0, RELEASE_STATUS = 93, GET_EP_API = 317, FAIL = 1 };

static const base_t* real_base;
static const function_t *real, *real_ep;
static atomic_long left = -1, seen;

// The n-th call from now on fails; 0: none does. Returns how many there were since the last time.
EXPORT long between_fault(long number) {
  atomic_store(&left, number);
  return atomic_exchange(&seen, 0);
}

static void* made_up(void) {
  return ((void* (*)(int, const char*))real[CREATE_STATUS])(FAIL, "a fault that was made up");
}

static int fails(void) {
  atomic_fetch_add(&seen, 1);
  return atomic_load(&left) > 0 && atomic_fetch_sub(&left, 1) == 1;
}

// Integers and pointers, which all of them take: what the caller did not pass is passed on and not looked at.
typedef void* (*any_t)(long, long, long, long, long, long, long, long, long, long);
#define FORWARD(name, table, slot)                                                                                 \
  static void* name##slot(long a, long b, long c, long d, long e, long f, long g, long h, long i, long j) {        \
    return fails() ? made_up() : ((any_t)table[slot])(a, b, c, d, e, f, g, h, i, j);                               \
  }
#define X(slot) FORWARD(api_, real, slot)
SLOTS
#undef X
#define X(slot) FORWARD(ep_, real_ep, slot)
EP_SLOTS
#undef X

// How many slots are there in 1.24, as far as they are used.
enum { USED = 415, EP_USED = 18 };
static function_t table[USED], ep_table[EP_USED];

static const function_t* get_ep_table(void) { return ep_table; }

static const function_t* get_table(uint32_t version) {
  real = real_base->get_api(version);
  if (!real) return NULL;
  real_ep = ((const function_t* (*)(void))real[GET_EP_API])();
  memcpy(table, real, sizeof(table));
  memcpy(ep_table, real_ep, sizeof(ep_table));
#define X(slot) table[slot] = (function_t)api_##slot;
  SLOTS
#undef X
#define X(slot) ep_table[slot] = (function_t)ep_##slot;
  EP_SLOTS
#undef X
  table[GET_EP_API] = (function_t)get_ep_table;
  return table;
}

static const char* get_version(void) { return real_base->get_version(); }
static const base_t between = {get_table, get_version};

static void* library(void) {
  void* found = dlopen(getenv("FUSILLI_BETWEEN"), RTLD_NOW | RTLD_LOCAL);
  if (!found) fprintf(stderr, "%s\n", dlerror()), exit(2);
  return found;
}

// ---- odd calls ------------------------------------------------------------------------------------------------------

static const char* odd_version;
static uint32_t newest;  // that there is a table of
static const char* get_odd_version(void) { return odd_version; }
static const function_t* get_few(uint32_t version) { return version > newest ? NULL : real_base->get_api(version); }
static const base_t odd = {get_few, get_odd_version};

static void expect(int right, const char* what) {
  if (!right) fprintf(stderr, "unexpected answer to %s\n", what), abort();
}

static int refused(void* status) {
  if (status) ((void (*)(void*))real_base->get_api(1)[RELEASE_STATUS])(status);
  return status != NULL;
}

static void create_oddly(create_t create, const void* logger) {
  static char longest[10000];
  memset(longest, '9', sizeof(longest) - 1);
  const char* versions[] = {NULL, "", "1", "1.", "x.y", "1.18446744073709551616", "1.-1", longest};
  void* out[1];
  size_t count = 7;
  expect(!create("a", NULL, logger, out, 1, &count), "no base");
  expect(!create("a", &between, logger, out, 1, NULL), "no place for the number");
  expect(refused(create("a", &between, logger, NULL, 1, &count)) && !count, "no place");
  expect(refused(create("a", &between, logger, out, 0, &count)) && !count, "no room");
  for (size_t i = 0; i < sizeof(versions) / sizeof(*versions); ++i) {
    odd_version = versions[i];
    newest = 0;
    expect(!create("a", &odd, logger, out, 1, &count) && !count, "no table at all");
    for (newest = 1; newest < 24; newest += 22)
      expect(refused(create("a", &odd, logger, out, 1, &count)) && !count, "older tables alone");
    newest = 24;
    odd_version = "1.24.3";
    expect(refused(create("a", &odd, logger, out, 1, &count)) && !count, "a version that mixes up groups");
    odd_version = versions[i];
    expect(!create(NULL, &odd, logger, out, 1, &count) && count == 1, "an odd version");
  }
}

// A factory's functions, by their places in OrtEpFactory.
enum { SUPPORTED = 3, RELEASE_EP = 5, VALIDATE = 8, RELEASE_ALLOCATOR = 10, TRANSFER = 11, STREAM_AWARE = 12 };

static void use_oddly(void* factory) {
  const function_t* functions = factory;
  const char* texts[] = {"", "\xff\xfe", "{", "%n%s", "hipdnn"};
  size_t number = 7;
  void* transfer = factory;
  typedef void* (*supported_t)(void*, const void* const*, size_t, void**, size_t, size_t*);
  typedef void* (*validate_t)(void*, const void* const*, size_t, const char*, int32_t*);
  refused(((supported_t)functions[SUPPORTED])(factory, NULL, 0, NULL, 0, &number));
  expect(number == 0, "no devices");
  ((void (*)(void*, void*))functions[RELEASE_EP])(factory, NULL);
  ((void (*)(void*, void*))functions[RELEASE_ALLOCATOR])(factory, NULL);
  for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); ++i) {
    int32_t answer = -1;
    refused(((validate_t)functions[VALIDATE])(factory, NULL, 0, texts[i], &answer));
  }
  refused(((void* (*)(void*, void**))functions[TRANSFER])(factory, &transfer));
  expect(!transfer == !((_Bool (*)(const void*))functions[STREAM_AWARE])(factory), "a transfer without streams");
}

// ---- what ONNX Runtime calls ----------------------------------------------------------------------------------------

EXPORT void* CreateEpFactories(const char* name, const base_t* base, const void* logger, void** out, size_t max,
                               size_t* count) {
  void* provider = library();
  create_t create = (create_t)dlsym(provider, __func__);
  real_base = base;
  if (getenv("FUSILLI_ODD")) {
    create_oddly(create, logger);
    ((release_t)dlsym(provider, "ReleaseEpFactory"))(NULL);
  }
  void* status = create(name, &between, logger, out, max, count);
  if (!status && getenv("FUSILLI_ODD")) use_oddly(out[0]);
  return status;
}

EXPORT void* ReleaseEpFactory(void* factory) { return ((release_t)dlsym(library(), __func__))(factory); }
