// Finding or starting Python. The shim is not linked to libpython: a host may be Python itself, of any build, or a
// program that has never heard of it, and extension modules need libpython's symbols in the global scope.
//
// Which Python: FUSILLI_PYTHON and FUSILLI_LIBPYTHON; else the file libfusilli_plugin.conf beside the library; else the
// environment that the library is installed in, <prefix>/lib/pythonX.Y/site-packages/fusilli_plugin/lib.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <locale.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <wchar.h>

#include "shim.h"

enum { COLD, READY, BROKEN, GONE };

static _Atomic int state = COLD;
static char problem[1024] = "Python has not been started";
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

// ---- where Python is ------------------------------------------------------------------------------------------------

static struct {
  char root[PATH_MAX];       // folder with the packages
  char python[PATH_MAX];     // interpreter, decides sys.prefix
  char libpython[PATH_MAX];  // path or soname
  char version[16];          // "3.11"
} place;

static struct {
  int (*is_initialized)(void);
  int (*is_finalizing)(void);  // absent before 3.13 under this name
  const char* (*get_version)(void);
  int (*gil_ensure)(void);
  void (*gil_release)(int);
  int (*run)(const char*);
} python;

static void set_problem(const char* text) { snprintf(problem, sizeof(problem), "%s", text); }

static int fail(const char* format, ...) {
  char text[sizeof(problem)];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  set_problem(text);
  return 0;
}

// Formats a path; 0 if it is too long.
static int join(char out[PATH_MAX], const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  int length = vsnprintf(out, PATH_MAX, format, arguments);
  va_end(arguments);
  if (length >= 0 && length < PATH_MAX) return 1;
  out[0] = 0;
  return 0;
}

static int is_there(const char* path) { return *path && access(path, R_OK) == 0; }

// The value of `key = value` in a line, NULL for other lines. Cuts the line's end off.
static const char* value_of(char* line, const char* key) {
  line[strcspn(line, "\r\n")] = 0;
  size_t length = strlen(key);
  if (strncmp(line, key, length) != 0) return NULL;
  line += length;
  line += strspn(line, " ");
  if (*line++ != '=') return NULL;
  return line + strspn(line, " ");
}

static int read_sidecar(const char* library) {
  char path[PATH_MAX], line[PATH_MAX + 32];
  size_t length = strlen(library);
  if (length > 3 && strcmp(library + length - 3, ".so") == 0) length -= 3;
  if (!join(path, "%.*s.conf", (int)length, library)) return 0;
  FILE* file = fopen(path, "re");
  if (!file) return 0;
  const struct {
    const char* key;
    char* out;
    size_t size;
  } fields[] = {{"root", place.root, sizeof(place.root)},
                {"python", place.python, sizeof(place.python)},
                {"libpython", place.libpython, sizeof(place.libpython)},
                {"version", place.version, sizeof(place.version)}};
  while (fgets(line, sizeof(line), file)) {
    for (size_t i = 0; i < sizeof(fields) / sizeof(*fields); ++i) {
      const char* value = value_of(line, fields[i].key);
      if (value && strlen(value) < fields[i].size) strcpy(fields[i].out, value);
    }
  }
  fclose(file);
  return 1;
}

// Cuts the last component off; returns it, NULL if there is none.
static char* cut(char* path) {
  char* slash = strrchr(path, '/');
  if (!slash || slash == path) return NULL;
  *slash = 0;
  return slash + 1;
}

// <prefix>/lib/pythonX.Y/site-packages/fusilli_plugin/lib/libfusilli_plugin.so
static void read_own_path(const char* library) {
  char path[PATH_MAX];
  join(path, "%s", library);
  const char* file = cut(path);
  const char* lib = cut(path);
  const char* package = cut(path);
  if (!file || !lib || !package || strcmp(package, "fusilli_plugin") != 0) return;
  join(place.root, "%s", path);
  const char* site = cut(path);
  const char* name = cut(path);
  if (!site || !name || !strstr(site, "-packages") || strncmp(name, "python", 6) != 0 || !cut(path)) return;
  snprintf(place.version, sizeof(place.version), "%s", name + 6);
  const char* const forms[] = {"%s/bin/python%s", "%s/bin/python3"};
  for (int i = 0; i < 2; ++i)
    if (join(place.python, forms[i], path, place.version) && is_there(place.python)) return;
  place.python[0] = 0;
}

// The folder of the interpreter that an environment was made of: `home` in its pyvenv.cfg.
static int base_folder(const char* interpreter, char out[PATH_MAX]) {
  char path[PATH_MAX], line[PATH_MAX + 32];
  join(out, "%s", interpreter);
  if (!cut(out)) return 0;
  join(path, "%s/../pyvenv.cfg", out);
  FILE* file = fopen(path, "re");
  if (!file) return 1;
  while (fgets(line, sizeof(line), file)) {
    const char* home = value_of(line, "home");
    if (home) join(out, "%s", home);
  }
  fclose(file);
  return 1;
}

static void find_libpython(void) {
  if (place.libpython[0] || !place.version[0]) return;
  char folder[PATH_MAX];
  const char* const forms[] = {"%s/../lib/libpython%s.so.1.0", "%s/../lib64/libpython%s.so.1.0",
                               "%s/../lib/libpython%s.so"};
  if (place.python[0] && base_folder(place.python, folder))
    for (size_t i = 0; i < sizeof(forms) / sizeof(*forms); ++i)
      if (join(place.libpython, forms[i], folder, place.version) && is_there(place.libpython)) return;
  join(place.libpython, "libpython%s.so.1.0", place.version);  // the loader's own search
}

static void find_place(void) {
  Dl_info info;
  char real[PATH_MAX] = "";
  if (dladdr((void*)python_start, &info) && info.dli_fname) {
    if (!realpath(info.dli_fname, real)) join(real, "%s", info.dli_fname);
    if (!read_sidecar(info.dli_fname) && !read_sidecar(real)) read_own_path(real);
  }
  const char* value = secure_getenv("FUSILLI_PYTHON");
  if (value && *value) join(place.python, "%s", value);
  value = secure_getenv("FUSILLI_LIBPYTHON");
  if (value && *value) join(place.libpython, "%s", value);
  find_libpython();
}

// ---- the interpreter --------------------------------------------------------------------------------------------------

static int match_libpython(struct dl_phdr_info* info, size_t size, void* path) {
  (void)size;
  const char* slash = strrchr(info->dlpi_name, '/');
  if (strncmp(slash ? slash + 1 : info->dlpi_name, "libpython3.", 11) != 0) return 0;
  return join(path, "%s", info->dlpi_name);
}

// A handle whose symbols are Python's: of the program itself, of a library that it has mapped, or of one loaded now.
static void* python_library(void) {
  if (dlsym(RTLD_DEFAULT, "Py_IsInitialized")) return RTLD_DEFAULT;
  char path[PATH_MAX];
  if (dl_iterate_phdr(match_libpython, path)) {
    void* mapped = dlopen(path, RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD);
    if (mapped) return mapped;
  }
  if (!place.libpython[0]) {
    fail("Python cannot be found from where this library lies; run `fusilli install-plugin`, or set FUSILLI_PYTHON and "
         "FUSILLI_LIBPYTHON");
    return NULL;
  }
  void* loaded = dlopen(place.libpython, RTLD_NOW | RTLD_GLOBAL);
  if (!loaded) fail("libpython cannot be loaded: %s; set FUSILLI_LIBPYTHON to its path", dlerror());
  return loaded;
}

static void set_flag(void* library, const char* name, int value) {
  int* flag = dlsym(library, name);
  if (flag) *flag = value;
}

// Python 3.14 and later: the functions below are on their way out there.
static int initialize_by_config(void* library) {
  void* (*create)(void) = (void* (*)(void))dlsym(library, "PyInitConfig_Create");
  int (*set_int)(void*, const char*, int64_t) =
      (int (*)(void*, const char*, int64_t))dlsym(library, "PyInitConfig_SetInt");
  int (*set_str)(void*, const char*, const char*) =
      (int (*)(void*, const char*, const char*))dlsym(library, "PyInitConfig_SetStr");
  int (*initialize)(void*) = (int (*)(void*))dlsym(library, "Py_InitializeFromInitConfig");
  void (*release)(void*) = (void (*)(void*))dlsym(library, "PyInitConfig_Free");
  void* config = create && set_int && set_str && initialize && release ? create() : NULL;
  if (!config) return -1;
  int wrong = set_int(config, "use_environment", 0) || set_int(config, "user_site_directory", 0) ||
              set_int(config, "install_signal_handlers", 0) ||
              (place.python[0] && set_str(config, "program_name", place.python));
  int done = !wrong && initialize(config) == 0;
  release(config);
  return done;
}

static void initialize_by_flags(void* library) {
  void (*set_program_name)(const wchar_t*) = (void (*)(const wchar_t*))dlsym(library, "Py_SetProgramName");
  wchar_t* (*decode)(const char*, size_t*) = (wchar_t * (*)(const char*, size_t*)) dlsym(library, "Py_DecodeLocale");
  void (*initialize)(int) = (void (*)(int))dlsym(library, "Py_InitializeEx");
  // The host's PYTHONHOME and PYTHONPATH are for other Pythons.
  set_flag(library, "Py_IgnoreEnvironmentFlag", 1);
  set_flag(library, "Py_NoUserSiteDirectory", 1);
  // Decides sys.prefix, and with it where packages are found. Python keeps the pointer.
  wchar_t* name = place.python[0] && decode ? decode(place.python, NULL) : NULL;
  if (name && set_program_name) set_program_name(name);
  if (initialize) initialize(0);
}

static int start_interpreter(void* library) {
  if (place.python[0] && !is_there(place.python))
    return fail("there is no Python at %s; set FUSILLI_PYTHON", place.python);
  char locale[256] = "";
  const char* before = setlocale(LC_CTYPE, NULL);
  if (before && strlen(before) < sizeof(locale)) strcpy(locale, before);
  if (initialize_by_config(library) < 0) initialize_by_flags(library);
  if (*locale) setlocale(LC_CTYPE, locale);
  if (!python.is_initialized()) return fail("Python could not be started (%s)", place.libpython);
  void* (*save_thread)(void) = (void* (*)(void))dlsym(library, "PyEval_SaveThread");
  save_thread();
  fusilli_python.owns_interpreter = 1;
  return 1;
}

// Python's threads do not survive a fork of the host, so no other thread may be inside Python at that moment. A host
// that is Python sees to that itself.
static struct {
  void (*before)(void);
  void (*after_parent)(void);
  void (*after_child)(void);
} forking;
static __thread int gil_of_fork;

static void before_fork(void) {
  gil_of_fork = -1;
  if (!python_alive()) return;
  gil_of_fork = python.gil_ensure();
  forking.before();
}

static void after_fork_in_parent(void) {
  if (gil_of_fork < 0) return;
  forking.after_parent();
  python.gil_release(gil_of_fork);
}

static void after_fork_in_child(void) {
  if (gil_of_fork < 0) return;
  forking.after_child();
  python.gil_release(gil_of_fork);
}

static int find_functions(void* library) {
  python.is_initialized = (int (*)(void))dlsym(library, "Py_IsInitialized");
  python.is_finalizing = (int (*)(void))dlsym(library, "Py_IsFinalizing");
  if (!python.is_finalizing) python.is_finalizing = (int (*)(void))dlsym(library, "_Py_IsFinalizing");
  python.get_version = (const char* (*)(void))dlsym(library, "Py_GetVersion");
  python.gil_ensure = (int (*)(void))dlsym(library, "PyGILState_Ensure");
  python.gil_release = (void (*)(int))dlsym(library, "PyGILState_Release");
  python.run = (int (*)(const char*))dlsym(library, "PyRun_SimpleString");
  forking.before = (void (*)(void))dlsym(library, "PyOS_BeforeFork");
  forking.after_parent = (void (*)(void))dlsym(library, "PyOS_AfterFork_Parent");
  forking.after_child = (void (*)(void))dlsym(library, "PyOS_AfterFork_Child");
  if (python.is_initialized && python.get_version && python.gil_ensure && python.gil_release && python.run &&
      forking.before && forking.after_parent && forking.after_child && launches_prepare(library))
    return 1;
  return fail("the Python in this process lacks functions of its C API");
}

static struct sigaction dispositions[NSIG];

// Importing Python's signal module installs a handler; the host's signals are the host's.
static void remember_signals(void) {
  for (int number = 1; number < NSIG; ++number) sigaction(number, NULL, &dispositions[number]);
}

static void restore_signals(void) {
  if (!fusilli_python.owns_interpreter) return;
  for (int number = 1; number < NSIG; ++number) {
    struct sigaction now;
    if (sigaction(number, NULL, &now) == 0 && now.sa_handler != dispositions[number].sa_handler)
      sigaction(number, &dispositions[number], NULL);
  }
}

// Runs under the mutex, once: afterwards Python is initialised by somebody and `python` holds its functions.
static int boot(void) {
  find_place();
  void* library = python_library();
  if (library == NULL && !dlsym(RTLD_DEFAULT, "Py_IsInitialized")) return 0;
  if (!find_functions(library)) return 0;
  const char* version = python.get_version();
  size_t length = strlen(place.version);
  if (length && (strncmp(version, place.version, length) != 0 || version[length] != '.'))
    return fail("this process has Python %.*s, the plugin is installed for Python %s", (int)strcspn(version, " "),
                version, place.version);
  remember_signals();
  if (python.is_initialized()) return 1;
  if (!start_interpreter(library)) return 0;
  pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
  return 1;
}

static void report(const char* text) { set_problem(text); }
static void detach(void) { atomic_store(&state, GONE); }

// Has Python run fusilli_plugin/_boot.py, which fills the link. Threads may come here together: the file is ready for
// that, and the mutex must not be held, since a thread that holds the GIL may be waiting for it.
static int attach(void) {
  static const char form[] =
      "exec('''\n"
      "try:\n"
      "    with open(bytes.fromhex(\"%s\"), \"rb\") as file:\n"
      "        code = compile(file.read(), \"fusilli_plugin/_boot.py\", \"exec\")\n"
      "    exec(code, {\"__name__\": \"fusilli_boot\", \"LINK\": %llu, \"ROOT\": bytes.fromhex(\"%s\"),\n"
      "                \"PYTHON\": bytes.fromhex(\"%s\")})\n"
      "except BaseException:\n"
      "    pass\n"
      "''', {})\n";
  char path[PATH_MAX], hex[3][2 * PATH_MAX + 1], code[sizeof(form) + sizeof(hex) + 32];
  if (!join(path, "%s/fusilli_plugin/_boot.py", place.root) || !is_there(path))
    return fail("there is no %s; install fusilli-plugin again, or run `fusilli install-plugin`", path);
  const char* const texts[] = {path, place.root, place.python};
  for (int i = 0; i < 3; ++i) {
    for (size_t at = 0; texts[i][at]; ++at) snprintf(&hex[i][2 * at], 3, "%02x", (unsigned char)texts[i][at]);
    hex[i][2 * strlen(texts[i])] = 0;
  }
  snprintf(code, sizeof(code), form, hex[0], (unsigned long long)(uintptr_t)&fusilli_python, hex[1], hex[2]);
  set_problem("fusilli_plugin/_boot.py did not run to its end");
  fusilli_python.report = report;
  fusilli_python.detach = detach;
  int gil = python.gil_ensure();
  python.run(code);
  int attached = fusilli_python.attached;
  python.gil_release(gil);
  restore_signals();
  return attached;
}

static int enterable(void) {
  return python.is_initialized() && !(python.is_finalizing && python.is_finalizing());
}

int python_alive(void) { return atomic_load_explicit(&state, memory_order_acquire) == READY && enterable(); }

const char* python_problem(void) {
  return atomic_load(&state) == GONE ? "the Python interpreter of this process has been finalised" : problem;
}

int python_start(void) {
  int now = atomic_load_explicit(&state, memory_order_acquire);
  if (now == READY) return enterable();
  if (now != COLD) return 0;
  static int booted;  // 0: not tried, 1: done, -1: failed
  pthread_mutex_lock(&mutex);
  if (!booted) booted = boot() ? 1 : -1;
  int usable = booted > 0;
  pthread_mutex_unlock(&mutex);
  usable = usable && attach();
  int expected = COLD;
  if (atomic_compare_exchange_strong(&state, &expected, usable ? READY : BROKEN) && !usable)
    log_line(SEVERITY_ERROR, "the engine serves no graph in this process: %s", problem);
  return python_alive();
}
