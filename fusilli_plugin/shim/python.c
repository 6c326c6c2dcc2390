// Finding or starting Python. The shim is not linked to libpython: a host may be Python itself, of any build, or a
// program that has never heard of it, and extension modules need libpython's symbols in the global scope.
//
// All of this happens in somebody else's process: its signals, its locale, its children and its directory stay its own.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <wchar.h>

#include "shim.h"

enum { COLD, READY, BROKEN, GONE };
enum { GIL_NEW = 1 };  // PyGILState_UNLOCKED

static _Atomic int state = COLD;
static char problem[1024] = "Python has not been started";
static pthread_mutex_t problem_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int booted;             // under the mutex. 0: not tried, 1: done, -1: failed
static _Atomic int starting;  // threads that are starting Python

static struct {
  int (*is_initialized)(void);
  int (*is_finalizing)(void);  // absent before 3.13 under this name
  const char* (*get_version)(void);
  int (*gil_ensure)(void);
  void (*gil_release)(int);
  int (*gil_check)(void);
  void* (*save_thread)(void);
  int (*run)(const char*);
} python;

static void set_problem(const char* text) {
  pthread_mutex_lock(&problem_mutex);
  snprintf(problem, sizeof(problem), "%s", text);
  pthread_mutex_unlock(&problem_mutex);
}

int python_fail(const char* format, ...) {
  char text[sizeof(problem)];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  set_problem(text);
  return 0;
}

// ---- the interpreter --------------------------------------------------------------------------------------------------

static int match_libpython(struct dl_phdr_info* info, size_t size, void* path) {
  (void)size;
  const char* slash = strrchr(info->dlpi_name, '/');
  if (strncmp(slash ? slash + 1 : info->dlpi_name, "libpython3.", 11) != 0) return 0;
  return join_path(path, "%s", info->dlpi_name);
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
    python_fail("Python cannot be found from where this library lies; run `fusilli install-plugin`, or set FUSILLI_PYTHON and "
         "FUSILLI_LIBPYTHON");
    return NULL;
  }
  struct stat status;
  if (strchr(place.libpython, '/') && stat(place.libpython, &status) == 0 && !S_ISREG(status.st_mode)) {
    python_fail("%s is no file, so no libpython; set FUSILLI_LIBPYTHON to its path", place.libpython);
    return NULL;  // opening a pipe may never end
  }
  void* loaded = dlopen(place.libpython, RTLD_NOW | RTLD_GLOBAL);
  if (!loaded) python_fail("libpython cannot be loaded: %s; set FUSILLI_LIBPYTHON to its path", dlerror());
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
              set_int(config, "install_signal_handlers", 0) || set_int(config, "configure_locale", 0) ||
              set_int(config, "utf8_mode", 1) || (place.python[0] && set_str(config, "program_name", place.python));
  int done = !wrong && initialize(config) == 0;
  release(config);
  return done;
}

// PyPreConfig and PyStatus of Python 3.8 to 3.13; the end is room.
typedef struct {
  int config_init, parse_argv, isolated, use_environment, configure_locale, coerce_c_locale, coerce_c_locale_warn;
  int utf8_mode, dev_mode, allocator, room[22];
} preconfig_t;

typedef struct {
  int type;
  const char *function, *message;
  int exit_code;
} py_status_t;

static int initialize_by_flags(void* library) {
  void (*prepare)(preconfig_t*) = (void (*)(preconfig_t*))dlsym(library, "PyPreConfig_InitIsolatedConfig");
  py_status_t (*preinitialize)(const preconfig_t*) =
      (py_status_t (*)(const preconfig_t*))dlsym(library, "Py_PreInitialize");
  void (*set_program_name)(const wchar_t*) = (void (*)(const wchar_t*))dlsym(library, "Py_SetProgramName");
  wchar_t* (*decode)(const char*, size_t*) = (wchar_t * (*)(const char*, size_t*)) dlsym(library, "Py_DecodeLocale");
  void (*initialize)(int) = (void (*)(int))dlsym(library, "Py_InitializeEx");
  if (!prepare || !preinitialize || !set_program_name || !decode || !initialize) return 0;
  // The locale is the host's, of all its threads: Python is not to set it, not even for a moment.
  preconfig_t before;
  memset(&before, 0, sizeof(before));
  prepare(&before);
  before.configure_locale = 0;
  before.utf8_mode = 1;
  if (preinitialize(&before).type != 0) return 0;
  // The host's PYTHONHOME and PYTHONPATH are for other Pythons.
  set_flag(library, "Py_IgnoreEnvironmentFlag", 1);
  set_flag(library, "Py_NoUserSiteDirectory", 1);
  // Decides sys.prefix, and with it where packages are found. Python keeps the pointer.
  wchar_t* name = place.python[0] ? decode(place.python, NULL) : NULL;
  if (name) set_program_name(name);
  initialize(0);
  return 1;
}

static int is_pythons(const struct sigaction* action) {
  Dl_info handler, library;
  return dladdr((void*)action->sa_handler, &handler) && dladdr((void*)python.get_version, &library) &&
         handler.dli_fbase == library.dli_fbase;
}

static int files_are_limited(void) {
  struct rlimit limit;
  return getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
}

// Importing Python's signal module, which it does by itself at some time, sets a handler for Ctrl-C if there is none.
// So it is imported here, and that handler taken back; others are of the host, which may set some meanwhile.
static void initialize(void* library) {
  struct sigaction before, now;
  int known = sigaction(SIGINT, NULL, &before) == 0;
  if (initialize_by_config(library) < 0) initialize_by_flags(library);
  if (!python.is_initialized()) return;
  python.run("import _signal");
  // Python leaves half a file of bytecode where there is a limit, and fails to read it the next time.
  if (files_are_limited()) python.run("import sys; sys.dont_write_bytecode = True");
  if (known && sigaction(SIGINT, NULL, &now) == 0 && now.sa_handler != before.sa_handler && is_pythons(&now))
    sigaction(SIGINT, &before, NULL);
}

// Whether there is room for Python's packages where the process has a limit: numpy's library of linear algebra ends the
// process if it gets none for itself and each of its threads.
static int has_memory(void) {
  struct rlimit space, data;
  if (getrlimit(RLIMIT_AS, &space) != 0 || getrlimit(RLIMIT_DATA, &data) != 0) return 1;
  if (space.rlim_cur == RLIM_INFINITY && data.rlim_cur == RLIM_INFINITY) return 1;
  long processors = sysconf(_SC_NPROCESSORS_ONLN);
  size_t size = (size_t)(192 + 48 * (processors > 0 ? processors : 1)) << 20;
  void* room = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return room != MAP_FAILED && munmap(room, size) == 0;
}

static int start_interpreter(void* library) {
  char version[16] = "";
  const char* text = python.get_version();
  size_t length = strspn(text, "0123456789.");
  if (length < sizeof(version)) memcpy(version, text, length);
  char* patch = strchr(version, '.') ? strchr(strchr(version, '.') + 1, '.') : NULL;
  if (patch) *patch = 0;
  if (place.python[0] && !is_there(place.python))
    return python_fail("there is no Python at %s; set FUSILLI_PYTHON", place.python);
  // Python ends the process if it finds none.
  if (!has_standard_library(version, (void*)python.get_version))
    return python_fail("the standard library of Python %s is not beside %s; install Python again, or set FUSILLI_PYTHON "
                       "and FUSILLI_LIBPYTHON", version, place.python[0] ? place.python : place.libpython);
  if (!has_memory())
    return python_fail("this process has a limit on its memory (ulimit -v or -d) that leaves too little for Python");
  initialize(library);
  if (!python.is_initialized()) return python_fail("Python could not be started (%s)", place.libpython);
  python.save_thread();
  fusilli_python.owns_interpreter = 1;
  return 1;
}

// ---- forks of the host ----------------------------------------------------------------------------------------------

// Python's threads do not survive a fork, so no other thread may be inside Python at that moment. What is not waited for
// is a start of Python: it calls into the host, whose locks the forking thread may hold. Its child does without.
static struct {
  void (*before)(void);
  void (*after_parent)(void);
  void (*after_child)(void);
} forking;

enum { NOTHING, PYTHONS_OWN, WITHOUT_GIL, WITH_GIL };
static __thread int fork_kind;
static __thread int gil_of_fork;

void python_before_fork(void) {
  fork_kind = NOTHING;
  if (!python_alive()) return;
  // Python forks, and sees to everything itself.
  fork_kind = python.gil_check() ? PYTHONS_OWN : fusilli_python.owns_interpreter ? WITH_GIL : WITHOUT_GIL;
  if (fork_kind != WITH_GIL) return;
  gil_of_fork = python.gil_ensure();
  forking.before();
}

void python_after_fork_in_parent(void) {
  if (fork_kind != WITH_GIL) return;
  forking.after_parent();
  python.gil_release(gil_of_fork);
}

// Ends with 0 if the dynamic loader may be locked for ever in this child.
int python_after_fork_in_child(void) {
  pthread_mutex_init(&mutex, NULL);
  pthread_mutex_init(&problem_mutex, NULL);
  int was_starting = atomic_exchange(&starting, 0);
  int now = atomic_load(&state);
  if (fork_kind == WITH_GIL) {
    forking.after_child();
    // Python's first thread state is gone with its thread. Were this thread's to go as well, it could make none again.
    if (gil_of_fork == GIL_NEW)
      python.save_thread();
    else
      python.gil_release(gil_of_fork);
  } else if ((now == READY && fork_kind != PYTHONS_OWN) || (now == COLD && was_starting)) {
    set_problem(fork_kind == WITHOUT_GIL ? "this process was forked by C code from a process that is Python"
                                         : "this process was forked while another thread started Python");
    atomic_store(&state, BROKEN);
  }
  return !was_starting;
}

static int find_functions(void* library) {
  python.is_initialized = (int (*)(void))dlsym(library, "Py_IsInitialized");
  python.is_finalizing = (int (*)(void))dlsym(library, "Py_IsFinalizing");
  if (!python.is_finalizing) python.is_finalizing = (int (*)(void))dlsym(library, "_Py_IsFinalizing");
  python.get_version = (const char* (*)(void))dlsym(library, "Py_GetVersion");
  python.gil_ensure = (int (*)(void))dlsym(library, "PyGILState_Ensure");
  python.gil_release = (void (*)(int))dlsym(library, "PyGILState_Release");
  python.gil_check = (int (*)(void))dlsym(library, "PyGILState_Check");
  python.save_thread = (void* (*)(void))dlsym(library, "PyEval_SaveThread");
  python.run = (int (*)(const char*))dlsym(library, "PyRun_SimpleString");
  forking.before = (void (*)(void))dlsym(library, "PyOS_BeforeFork");
  forking.after_parent = (void (*)(void))dlsym(library, "PyOS_AfterFork_Parent");
  forking.after_child = (void (*)(void))dlsym(library, "PyOS_AfterFork_Child");
  if (python.is_initialized && python.get_version && python.gil_ensure && python.gil_release && python.run &&
      python.gil_check && python.save_thread && forking.before && forking.after_parent && forking.after_child && launches_prepare(library))
    return 1;
  return python_fail("the Python in this process lacks functions of its C API");
}

// Runs under the mutex, once: afterwards Python is initialised by somebody and `python` holds its functions.
static int boot(void) {
  if (!find_place()) return 0;
  lock_loader();
  void* library = python_library();
  int found = (library || dlsym(RTLD_DEFAULT, "Py_IsInitialized")) && find_functions(library);
  unlock_loader();
  if (!found) return 0;
  const char* version = python.get_version();
  size_t length = strlen(place.version);
  if (length && (strncmp(version, place.version, length) != 0 || version[length] != '.'))
    return python_fail("this process has Python %.*s, the plugin is installed for Python %s",
                       (int)strcspn(version, " "), version, place.version);
  // Prepared launches belong to who holds the GIL.
  if (strstr(version, "free-threading")) return python_fail("Python %.24s has no GIL, which the plugin needs", version);
  return python.is_initialized() || start_interpreter(library);
}

void python_report(const char* text) { set_problem(text); }
void python_detach(void) { atomic_store(&state, GONE); }

static void to_hex(char* out, const char* text) {
  static const char digits[] = "0123456789abcdef";
  for (; *text; ++text) {
    *out++ = digits[(unsigned char)*text >> 4];
    *out++ = digits[*text & 15];
  }
  *out = 0;
}

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
  enum { HEX = 2 * PATH_MAX + 1 };
  struct {
    char path[PATH_MAX], hex[3][HEX], code[sizeof(form) + 3 * HEX + 32];
  }* room = malloc(sizeof(*room));  // a thread's stack may be small
  if (!room) return python_fail("out of memory");
  if (!join_path(room->path, "%s/fusilli_plugin/_boot.py", place.root) || !is_there(room->path)) {
    python_fail("there is no %s; install fusilli-plugin again, or run `fusilli install-plugin`", room->path);
    free(room);
    return 0;
  }
  const char* const texts[] = {room->path, place.root, place.python};
  for (int i = 0; i < 3; ++i) to_hex(room->hex[i], texts[i]);
  snprintf(room->code, sizeof(room->code), form, room->hex[0], (unsigned long long)(uintptr_t)&fusilli_python,
           room->hex[1], room->hex[2]);
  set_problem("fusilli_plugin/_boot.py did not run to its end");
  int gil = python.gil_ensure();
  python.run(room->code);
  int attached = fusilli_python.attached;
  python.gil_release(gil);
  free(room);
  return attached;
}

guard_t guard_begin(int may_write) {
  guard_t guard = {PTHREAD_CANCEL_ENABLE, 0};
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &guard.cancel_state);
  if (may_write && files_are_limited()) {
    sigset_t only, before;
    sigemptyset(&only);
    sigaddset(&only, SIGXFSZ);
    guard.blocked = pthread_sigmask(SIG_BLOCK, &only, &before) == 0 && !sigismember(&before, SIGXFSZ);
  }
  return guard;
}

void guard_end(guard_t* guard) {
  if (guard->blocked) {
    sigset_t only;
    sigemptyset(&only);
    sigaddset(&only, SIGXFSZ);
    const struct timespec now = {0, 0};
    while (sigtimedwait(&only, NULL, &now) == SIGXFSZ) continue;
    pthread_sigmask(SIG_UNBLOCK, &only, NULL);
  }
  pthread_setcancelstate(guard->cancel_state, NULL);
}

static int enterable(void) {
  return python.is_initialized() && !(python.is_finalizing && python.is_finalizing());
}

int python_alive(void) { return atomic_load_explicit(&state, memory_order_acquire) == READY && enterable(); }

// Not to be entered by a thread with less stack: what Python calls, a compiler's bindings among it, needs some.
enum { LEAST_STACK = 160 << 10 };
static __thread char* stack_end;  // lowest address; STACK_UNKNOWN if it cannot be told
#define STACK_UNKNOWN ((char*)1)

static int has_stack(void) {
  char* here = __builtin_frame_address(0);
  if (!stack_end) {
    pthread_attr_t attributes;
    void* lowest = NULL;
    size_t size = 0;
    stack_end = STACK_UNKNOWN;
    if (pthread_getattr_np(pthread_self(), &attributes) == 0) {
      // A coroutine runs on another stack than its thread's.
      if (pthread_attr_getstack(&attributes, &lowest, &size) == 0 && here > (char*)lowest && here < (char*)lowest + size)
        stack_end = lowest;
      pthread_attr_destroy(&attributes);
    }
  }
  return stack_end == STACK_UNKNOWN || here < stack_end || here - stack_end >= LEAST_STACK;
}

const char* python_problem(void) {
  static __thread char text[sizeof(problem)];
  if (!has_stack()) return "this thread has less than 160 KiB of stack left, which Python needs";
  int now = atomic_load(&state);
  if (now == GONE || now == READY) return "the Python interpreter of this process has been finalised";
  pthread_mutex_lock(&problem_mutex);
  memcpy(text, problem, sizeof(text));
  pthread_mutex_unlock(&problem_mutex);
  return text;
}

static int start(void) {
  pthread_mutex_lock(&mutex);
  if (!booted) booted = boot() ? 1 : -1;
  int usable = booted > 0;
  pthread_mutex_unlock(&mutex);
  return usable && attach();
}

int python_start(void) {
  int now = atomic_load_explicit(&state, memory_order_acquire);
  if (now == READY) return has_stack() && enterable();
  if (now != COLD || !has_stack()) return 0;
  atomic_fetch_add(&starting, 1);
  int usable = start(), expected = COLD;
  if (atomic_compare_exchange_strong(&state, &expected, usable ? READY : BROKEN) && !usable)
    log_line(SEVERITY_ERROR, "the engine serves no graph in this process: %s", python_problem());
  atomic_fetch_sub(&starting, 1);
  return python_alive();
}
