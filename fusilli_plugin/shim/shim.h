// Between the parts of the shim: python.c finds or starts Python, hipdnn.c is what hipDNN sees, launches.c keeps
// prepared launches.

#ifndef FUSILLI_SHIM_H
#define FUSILLI_SHIM_H

#include <stddef.h>
#include <stdint.h>

#include "link.h"

// Changes with link.h and ort_link.h; the package refuses a shim of another number.
#define FUSILLI_ABI 5

// Added to a status by Python; see done() in hipdnn.c.
#define FUSILLI_INTERRUPTED 0x100

#ifndef FUSILLI_VERSION
#error "FUSILLI_VERSION comes from fusilli_plugin/build.py"
#endif

enum { SUCCESS = 0, BAD_PARAM = 1, INTERNAL_ERROR = 3, NOT_APPLICABLE = 5 };  // hipdnnPluginStatus_t

enum { SEVERITY_INFO = 0, SEVERITY_WARN = 1, SEVERITY_ERROR = 2, SEVERITY_OFF = 4 };

extern fusilli_link fusilli_python;

// Starts or finds Python and attaches the package, at the first call; 1 if Python can be entered now. What failed once
// is not tried again; python_problem() says why.
int python_start(void);

// 1 if the package is attached and Python can be entered; starts nothing.
int python_alive(void);

const char* python_problem(void);

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
