// Between the parts of the shim: place.c knows where Python is, python.c finds or starts it, hipdnn.c is what hipDNN sees,
// launches.c keeps prepared launches.

#ifndef FUSILLI_SHIM_H
#define FUSILLI_SHIM_H

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

#include "link.h"

// Changes with link.h and ort_link.h; the package refuses a shim of another number.
#define FUSILLI_ABI 7

// Added to a status by Python; see done() in hipdnn.c.
#define FUSILLI_INTERRUPTED 0x100

#ifndef FUSILLI_VERSION
#error "FUSILLI_VERSION comes from fusilli_plugin/edge/build.py"
#endif

enum { SUCCESS = 0, BAD_PARAM = 1, INTERNAL_ERROR = 3, NOT_APPLICABLE = 5 };  // hipdnnPluginStatus_t

enum { SEVERITY_INFO = 0, SEVERITY_WARN = 1, SEVERITY_ERROR = 2, SEVERITY_OFF = 4 };

extern fusilli_link fusilli_python;

// Starts or finds Python and attaches the package, at the first call; 1 if Python can be entered now. What failed once
// is not tried again; python_problem() says why.
int python_start(void);

// 1 if the package is attached and Python can be entered; starts nothing.
int python_alive(void);

// What a thread of the host must not meet while it is in here, with locks and the GIL: it cannot be cancelled, and a limit
// on the size of files (ulimit -f) is an error of a write, not the end of the process. Threads that Python starts
// meanwhile inherit the latter. To be declared first in whatever may go to Python; a launch writes no files, and is spared
// asking for the limit.
typedef struct {
  int cancel_state;
  int blocked;
} guard_t;
guard_t guard_begin(int may_write);
void guard_end(guard_t* guard);
#define GUARD(name, may_write) guard_t name __attribute__((cleanup(guard_end), unused)) = guard_begin(may_write)
#define GUARDED GUARD(guard_, 1)
#define GUARDED_LAUNCH GUARD(launch_guard_, 0)

// Why python_start() gave 0 in this thread.
const char* python_problem(void);

// Notes the reason why Python cannot be started, printf style; 0.
int python_fail(const char* format, ...) __attribute__((format(printf, 1, 2)));

// `report` and `detach` of link.h.
void python_report(const char* text);
void python_detach(void);

// What python.c does when the host forks; see there.
void python_before_fork(void);
void python_after_fork_in_parent(void);
int python_after_fork_in_child(void);

typedef struct {
  char root[PATH_MAX];       // folder with the packages
  char python[PATH_MAX];     // interpreter, decides sys.prefix
  char libpython[PATH_MAX];  // path or soname
  char version[16];          // "3.11"
} place_t;

// Filled by find_place(), which gives 0 and notes the reason if it cannot.
extern place_t place;
int find_place(void);

// Whether Python X.Y, whose libpython has `function`, finds its standard library where it looks.
int has_standard_library(const char* version, const void* function);

// Formats a path; 0 if it is too long.
int join_path(char out[PATH_MAX], const char* format, ...) __attribute__((format(printf, 2, 3)));
int is_there(const char* path);

// Held around calls of the dynamic loader.
void lock_loader(void);
void unlock_loader(void);

// The mutex of ort.c.
void lock_runtimes(void);
void unlock_runtimes(void);

typedef struct {
  int64_t uid;
  void* ptr;
} device_buffer_t;

// The arguments of an ExecuteOpGraph; its handle as in link.h.
typedef struct {
  uint64_t serial;
  uintptr_t stream, context, workspace;
  int32_t device;
  uint32_t count;  // of `buffers`
  const device_buffer_t* buffers;
} execution_t;

// Looks up what launches.c takes from Python's C API, in a handle of dlopen; 0 if something is missing.
int launches_prepare(void* library);

// Launches by a prepared launch if there is one for this call; 0 if there is none.
int launch_again(const execution_t* call, int32_t* status);

// Calls `launch`, a Python object that the caller has a reference to, without arguments. The status is 0 or what `failed`,
// another one, returns for the exception; `otherwise` if that fails. 0 in a thread that has not been in Python by
// the other way; launches_enter() tells that it has.
int launch_object(void* launch, void* failed, long otherwise, long* status);
void launches_enter(void);

// See link.h.
void launches_remember(uint64_t serial, int32_t device, uintptr_t stream, uintptr_t context, uintptr_t workspace,
                       const char* buffers, uint32_t count, uintptr_t launch);
void launches_forget(uintptr_t context);

// A line in the host's log, printf style.
void log_line(int severity, const char* format, ...) __attribute__((format(printf, 2, 3)));

#endif
