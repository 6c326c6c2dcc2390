// An engine plugin opened the way hipDNN opens it, and the steps that its backend takes with one.

#ifndef HOST_PLUGIN_H
#define HOST_PLUGIN_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
  const void* ptr;
  size_t size;
} data_t;

typedef struct {
  int64_t uid;
  void* ptr;
} buffer_t;

typedef struct {
  void* library;
  int (*get_name)(const char**);
  int (*get_version)(const char**);
  int (*get_type)(int*);
  void (*get_last_error)(const char**);
  int (*set_callback)(void (*)(int, const char*));
  int (*set_log_level)(int);
  int (*get_api_version)(const char**);
  int (*get_all_ids)(int64_t*, uint32_t, uint32_t*);
  int (*get_engine_name)(int64_t, const char**);
  int (*create)(void**);
  int (*destroy)(void*);
  int (*set_stream)(void*, void*);
  int (*get_applicable)(void*, const data_t*, int64_t*, uint32_t, uint32_t*);
  int (*get_details)(void*, int64_t, const data_t*, data_t*);
  int (*destroy_details)(void*, data_t*);
  int (*get_workspace_size)(void*, const data_t*, const data_t*, size_t*);
  int (*create_context)(void*, const data_t*, const data_t*, void**);
  int (*destroy_context)(void*, void*);
  int (*get_context_workspace_size)(void*, void*, size_t*);
  int (*execute)(void*, void*, void*, const buffer_t*, uint32_t);
  int (*execute_overridden)(void*, void*, void*, const buffer_t*, uint32_t, uint32_t, const int64_t*, const uint32_t*,
                            const int64_t* const*, const int64_t* const*);
  int (*serialize)(void*, void*, data_t*);
  int (*destroy_serialized)(void*, data_t*);
  int (*restore)(void*, const data_t*, void**);
} plugin_t;

// A graph with the buffers of one execution: a folder with graph.bin and a file `pack` of lines "UID SIZE FILE|-".
enum { MAX_BUFFERS = 64 };
typedef struct {
  data_t graph;
  uint32_t count;
  buffer_t buffers[MAX_BUFFERS];
  size_t sizes[MAX_BUFFERS];
  int is_output[MAX_BUFFERS];
} case_t;

extern int quiet;                 // 1: no log lines on stderr
extern unsigned log_lines;        // lines that the plugin has logged
extern char last_log[4096];

plugin_t plugin_open(const char* path, int flags);
int64_t plugin_engine(const plugin_t* plugin);
const char* plugin_error(const plugin_t* plugin);

data_t read_file(const char* folder, const char* name);
case_t case_read(const char* folder);
case_t case_copy(const case_t* original);  // buffers of its own
void case_free(case_t* copy);
void case_write_outputs(const case_t* done, const char* folder);
int case_same_outputs(const case_t* a, const case_t* b);
void case_clear_outputs(case_t* each);

void* aligned(size_t size);
data_t engine_config(int64_t engine);  // as a backend of November 2025 writes it

// From applicability to a plan, as in hipDNN's create_execution_plans and build_plans.
void* build_plan(const plugin_t* plugin, void* handle, const case_t* each, size_t* workspace_size);

double now(void);  // seconds
long resident_kib(void);
long entries(const char* folder);  // files in a folder, e.g. of /proc/self/fd

void* make_handle(const plugin_t* plugin);
void* workspace_of(size_t size);  // NULL for 0

// What the command line says: the plugin, how to open it, the folder of the case, a number for the mode.
extern const char* path;
extern const char* folder;
extern int flags;
extern long number;

// Modes in other files than host.c.
void beside(void);
void overridden(void);
void soak(void);
void finalized(void);
void fork_busy(void);
void fuzz(void);
void fork_first(void);
void fork_stranger(void);
void fork_storm(void);
void signals(void);
void locale(void);
void moved(void);
void small_stack(void);
void small_memory(void);
void unruly(void);
void small_files(void);
void cancelled(void);
void dropped(void);

// Ends the process with a message unless the condition holds.
#define CHECK(condition, ...)                                             \
  do {                                                                    \
    if (!(condition)) die(__FILE__, __LINE__, #condition, __VA_ARGS__);   \
  } while (0)
void die(const char* file, int line, const char* condition, const char* format, ...)
    __attribute__((noreturn, format(printf, 4, 5)));

#define OK(plugin, call)                                                              \
  do {                                                                                \
    int status_ = (call);                                                             \
    CHECK(status_ == 0, "status %d: %s", status_, plugin_error(plugin));              \
  } while (0)

#endif
