// Between the two halves of the shim: python.c finds or starts Python, hipdnn.c is what hipDNN sees.

#ifndef FUSILLI_SHIM_H
#define FUSILLI_SHIM_H

#include <stddef.h>
#include <stdint.h>

#include "link.h"

// Changes with link.h and ort_link.h; the package refuses a shim of another number.
#define FUSILLI_ABI 3

// Added to a status by Python; see done() in hipdnn.c.
#define FUSILLI_INTERRUPTED 0x100

#ifndef FUSILLI_VERSION
#error "FUSILLI_VERSION comes from fusilli_plugin/build.py"
#endif

enum { SEVERITY_INFO = 0, SEVERITY_WARN = 1, SEVERITY_ERROR = 2, SEVERITY_OFF = 4 };

extern fusilli_link fusilli_python;

// Starts or finds Python and attaches the package, at the first call; 1 if Python can be entered now. What failed once
// is not tried again; python_problem() says why.
int python_start(void);

// 1 if the package is attached and Python can be entered; starts nothing.
int python_alive(void);

const char* python_problem(void);

// A line in the host's log, printf style.
void log_line(int severity, const char* format, ...) __attribute__((format(printf, 2, 3)));

#endif
