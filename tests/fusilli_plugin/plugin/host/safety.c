// Modes about a host that forks, sets signal handlers, changes its directory or its locale, or has little of something,
// while other threads are in the plugin.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <langinfo.h>
#include <locale.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "plugin.h"

// Seconds that a child may take until it counts as hanging; it may have to start Python anew.
enum { PATIENCE = 60 };

static plugin_t plugin;
static case_t each;
static _Atomic int answered;

static int ask(void) {
  void* handle = make_handle(&plugin);
  int64_t id = 0;
  uint32_t count = 7;
  OK(&plugin, plugin.get_applicable(handle, &each.graph, &id, 1, &count));
  CHECK(count <= 1, "%u engines", count);
  OK(&plugin, plugin.destroy(handle));
  return (int)count;
}

static void* first_question(void* unused) {
  (void)unused;
  ask();
  answered = 1;
  return NULL;
}

static void in_thread(void* (*function)(void*), void* argument, size_t stack) {
  pthread_attr_t attributes;
  pthread_t thread;
  pthread_attr_init(&attributes);
  if (stack) CHECK(pthread_attr_setstacksize(&attributes, stack) == 0, "a stack of %zu bytes", stack);
  CHECK(pthread_create(&thread, &attributes, function, argument) == 0, "no thread");
  pthread_join(thread, NULL);
}

// ---- forks ----------------------------------------------------------------------------------------------------------

// What a child does: everything that it may; each call gives a result or an error with a text.
static void child(void* context, const case_t* expected) {
  alarm(PATIENCE);
  case_t copy = case_copy(&each);
  int claimed = ask();
  if (context) {
    void* handle = make_handle(&plugin);
    int status = plugin.execute(handle, context, NULL, copy.buffers, copy.count);
    if (status == 0) CHECK(case_same_outputs(&copy, expected), "a child computes something else");
    if (status != 0) CHECK(*plugin_error(&plugin), "no text");
    size_t size = 0;
    if (claimed) OK(&plugin, plugin.destroy_context(handle, build_plan(&plugin, handle, &each, &size)));
  }
  in_thread(first_question, NULL, 0);
  _exit(claimed ? 10 : 11);
}

// Forks; 10 if the child was served, 11 if it was not.
static int fork_one(void* context, const case_t* expected) {
  pid_t pid = fork();
  CHECK(pid >= 0, "fork: %s", strerror(errno));
  if (!pid) child(context, expected);
  int status = -1;
  CHECK(waitpid(pid, &status, 0) == pid, "waitpid: %s", strerror(errno));
  CHECK(WIFEXITED(status) && (WEXITSTATUS(status) == 10 || WEXITSTATUS(status) == 11), "a child ended with %#x", status);
  return WEXITSTATUS(status);
}

// N milliseconds after another thread began with the first question, the process forks.
void fork_first(void) {
  quiet = 1;
  plugin = plugin_open(path, flags);
  each = case_read(folder);
  pthread_t thread;
  CHECK(!pthread_create(&thread, NULL, first_question, NULL), "no thread");
  usleep((useconds_t)number * 1000);
  int early = !answered, ended = fork_one(NULL, NULL);
  pthread_join(thread, NULL);
  CHECK(ask(), "the parent is not served any more");
  printf("early %d served %d\n", early, ended == 10);
}

static void* context_of_all;
static case_t expected_of_all;

static void* fork_from_here(void* unused) {
  (void)unused;
  CHECK(fork_one(context_of_all, &expected_of_all) == 10, "the child is not served");
  return NULL;
}

static void build_all(void) {
  quiet = 1;
  plugin = plugin_open(path, flags);
  each = case_read(folder);
  void* handle = make_handle(&plugin);
  size_t size = 0;
  context_of_all = build_plan(&plugin, handle, &each, &size);
  CHECK(size == 0, "the case has a workspace");
  expected_of_all = case_copy(&each);
  OK(&plugin, plugin.execute(handle, context_of_all, NULL, expected_of_all.buffers, expected_of_all.count));
}

// A thread that has never been in the plugin forks, twice; the child uses it.
void fork_stranger(void) {
  build_all();
  for (int i = 0; i < 2; ++i) in_thread(fork_from_here, NULL, 0);
  CHECK(ask(), "the parent is not served any more");
}

static _Atomic long forks_left, served;
static _Atomic int forking_is_over;

static void* storm(void* argument) {
  unsigned seed = (unsigned)(uintptr_t)argument;
  while (forks_left-- > 0) {
    usleep((useconds_t)(rand_r(&seed) % 4000));
    if (fork_one(context_of_all, &expected_of_all) == 10) ++served;
  }
  return NULL;
}

static void* visitor(void* argument) {
  unsigned seed = (unsigned)(uintptr_t)argument;
  while (!forking_is_over) {
    void* handle = make_handle(&plugin);
    size_t size = 0;
    void* context = build_plan(&plugin, handle, &each, &size);
    case_t copy = case_copy(&each);
    for (int i = rand_r(&seed) % 20; i >= 0; --i)
      OK(&plugin, plugin.execute(handle, context, NULL, copy.buffers, copy.count));
    CHECK(case_same_outputs(&copy, &expected_of_all), "a thread computes something else");
    case_free(&copy);
    OK(&plugin, plugin.destroy_context(handle, context));
    OK(&plugin, plugin.destroy(handle));
  }
  return NULL;
}

// N forks at random moments from four threads, of which none is in the plugin, while two others are.
void fork_storm(void) {
  build_all();
  forks_left = number;
  pthread_t forkers[4], visitors[2];
  for (uintptr_t i = 0; i < 2; ++i) CHECK(!pthread_create(&visitors[i], NULL, visitor, (void*)(100 + i)), "no thread");
  for (uintptr_t i = 0; i < 4; ++i) CHECK(!pthread_create(&forkers[i], NULL, storm, (void*)(i + 1)), "no thread");
  for (int i = 0; i < 4; ++i) pthread_join(forkers[i], NULL);
  forking_is_over = 1;
  for (int i = 0; i < 2; ++i) pthread_join(visitors[i], NULL);
  printf("served %ld of %ld\n", (long)served, number);
}

// ---- what is the host's ---------------------------------------------------------------------------------------------

static void own_handler(int signal) { (void)signal; }

static const int SIGNALS[] = {SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGPIPE, SIGCHLD, SIGXFSZ, SIGSEGV, SIGFPE, SIGHUP};
enum { SIGNAL_COUNT = sizeof(SIGNALS) / sizeof(*SIGNALS) };

// Handlers that are set N milliseconds after another thread began with the first question stay.
void signals(void) {
  quiet = 1;
  plugin = plugin_open(path, flags);
  each = case_read(folder);
  pthread_t thread;
  CHECK(!pthread_create(&thread, NULL, first_question, NULL), "no thread");
  usleep((useconds_t)number * 1000);
  int early = !answered;
  struct sigaction mine = {.sa_handler = own_handler}, now;
  for (int i = 0; i < SIGNAL_COUNT; ++i) CHECK(sigaction(SIGNALS[i], &mine, NULL) == 0, "signal %d", SIGNALS[i]);
  pthread_join(thread, NULL);
  CHECK(ask(), "not served");
  for (int i = 0; i < SIGNAL_COUNT; ++i)
    CHECK(sigaction(SIGNALS[i], NULL, &now) == 0 && now.sa_handler == own_handler, "signal %d was undone", SIGNALS[i]);
  printf("early %d\n", early);
}

// The locale of the process, as other threads see it during the first question.
void locale(void) {
  quiet = 1;
  setlocale(LC_ALL, "C");
  char first[64];
  snprintf(first, sizeof(first), "%s", nl_langinfo(CODESET));
  plugin = plugin_open(path, flags);
  each = case_read(folder);
  pthread_t thread;
  CHECK(!pthread_create(&thread, NULL, first_question, NULL), "no thread");
  while (!answered) CHECK(strcmp(nl_langinfo(CODESET), first) == 0, "the locale became one of %s", nl_langinfo(CODESET));
  pthread_join(thread, NULL);
  CHECK(ask(), "not served");
}

// The library was named by a relative path, and the host goes to HOST_CHDIR before its first question.
void moved(void) {
  quiet = 1;
  plugin = plugin_open(path, flags);
  const char* to = getenv("HOST_CHDIR");
  CHECK(to && chdir(to) == 0, "chdir");
  each = case_read(folder);
  CHECK(ask(), "not served: %s", last_log);
}

// ---- little of something --------------------------------------------------------------------------------------------

static void* everything(void* unused) {
  (void)unused;
  void* handle = make_handle(&plugin);
  int64_t id = 0;
  uint32_t count = 7;
  OK(&plugin, plugin.get_applicable(handle, &each.graph, &id, 1, &count));
  if (count) {
    size_t size = 0;
    case_t copy = case_copy(&each);
    void* context = build_plan(&plugin, handle, &each, &size);
    OK(&plugin, plugin.execute(handle, context, NULL, copy.buffers, copy.count));
    OK(&plugin, plugin.destroy_context(handle, context));
  } else {
    data_t details = {NULL, 0};
    CHECK(plugin.get_details(handle, plugin_engine(&plugin), &each.graph, &details) == 3, "not declined");
    CHECK(strstr(plugin_error(&plugin), "KiB of stack"), "%s", plugin_error(&plugin));
  }
  OK(&plugin, plugin.destroy(handle));
  answered = (int)count;
  return NULL;
}

// The first question comes from a thread with a stack of N KiB; afterwards a usual thread is served.
void small_stack(void) {
  plugin = plugin_open(path, flags);
  each = case_read(folder);
  in_thread(everything, NULL, (size_t)number << 10);
  printf("served %d\n", answered);
  CHECK(ask(), "a thread with a usual stack is not served");
}

// From now on the process may have so many MiB more of memory than it has.
static void limit_memory(long mib) {
  FILE* file = fopen("/proc/self/statm", "r");
  long pages = 0;
  CHECK(file && fscanf(file, "%ld", &pages) == 1, "statm");
  fclose(file);
  struct rlimit limit = {(rlim_t)pages * 4096 + ((rlim_t)mib << 20), RLIM_INFINITY};
  CHECK(setrlimit(RLIMIT_AS, &limit) == 0, "setrlimit");
}

// The process may have N MiB more of memory than it has now.
void small_memory(void) {
  quiet = 1;
  plugin = plugin_open(path, flags);
  each = case_read(folder);
  limit_memory(number);
  printf("served %d\n", ask());
}

static int plan_and_run(void);

// No file may have more than N bytes: what would write more gets SIGXFSZ, which nobody handles.
void small_files(void) {
  quiet = 1;
  struct rlimit limit = {(rlim_t)number, RLIM_INFINITY};
  CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0, "setrlimit");
  plugin = plugin_open(path, flags);
  each = case_read(folder);
  int served = plan_and_run();
  served += plan_and_run();
  sigset_t pending;
  CHECK(sigpending(&pending) == 0 && !sigismember(&pending, SIGXFSZ), "a signal is left");
  dprintf(1, "served %d\n", served);
}

static void* without_end(void* unused) {
  (void)unused;
  for (;;) {
    plan_and_run();
    pthread_testcancel();
  }
  return NULL;
}

// Threads are cancelled while they are in the plugin, N times; the others go on.
void cancelled(void) {
  quiet = 1;
  plugin = plugin_open(path, flags);
  each = case_read(folder);
  unsigned seed = 1;
  for (long i = 0; i < number; ++i) {
    pthread_t thread;
    CHECK(!pthread_create(&thread, NULL, without_end, NULL), "no thread");
    usleep((useconds_t)(rand_r(&seed) % 20000));
    CHECK(!pthread_cancel(thread) && !pthread_join(thread, NULL), "no thread");
    CHECK(plan_and_run(), "not served after %ld", i);
  }
}

// The process has the rights of nobody after its first plan, as services do.
void dropped(void) {
  quiet = 1;
  plugin = plugin_open(path, flags);
  each = case_read(folder);
  CHECK(plan_and_run(), "not served: %s", plugin_error(&plugin));
  CHECK(setgid(65534) == 0 && setuid(65534) == 0, "setuid: %s", strerror(errno));
  CHECK(plan_and_run(), "not served any more: %s", *last_log ? last_log : plugin_error(&plugin));
}

// ---- all of it at once ----------------------------------------------------------------------------------------------

static _Atomic int order_is_back;
static _Atomic long rounds;

static void leave_for_nowhere(void) {
  char place[] = "/tmp/unruly-XXXXXX";
  CHECK(mkdtemp(place) && chdir(place) == 0 && rmdir(place) == 0, "no folder to leave for: %s", strerror(errno));
}

// A host that sets signal handlers, goes to folders that it then removes, changes its locale, and opens and closes files.
static void* commotion(void* unused) {
  (void)unused;
  struct sigaction mine = {.sa_handler = own_handler, .sa_flags = SA_RESTART};
  while (!order_is_back) {
    int opened[8];
    for (int i = 0; i < SIGNAL_COUNT; ++i) CHECK(sigaction(SIGNALS[i], &mine, NULL) == 0, "signal %d", SIGNALS[i]);
    leave_for_nowhere();
    CHECK(setlocale(LC_ALL, rounds % 2 ? "C" : "C.UTF-8"), "setlocale");
    for (int i = 0; i < 8; ++i) opened[i] = fcntl(100, F_DUPFD, 100);
    for (int i = 0; i < 8; ++i) close(opened[i]);
    if (rounds % 8 == 0) raise(SIGUSR1);
    ++rounds;
    usleep(500);
  }
  return NULL;
}

// Everything that a plan is for. What fails has a status and a text.
static int plan_and_run(void) {
  void* handle = make_handle(&plugin);
  int64_t id = 0;
  uint32_t count = 0;
  size_t workspace = 0;
  OK(&plugin, plugin.get_applicable(handle, &each.graph, &id, 1, &count));
  data_t config = engine_config(plugin_engine(&plugin));
  void* context = NULL;
  int status = count ? plugin.create_context(handle, &config, &each.graph, &context) : 3;
  if (status == 0) {
    OK(&plugin, plugin.get_context_workspace_size(handle, context, &workspace));
    status = plugin.execute(handle, context, workspace_of(workspace), each.buffers, each.count);
    OK(&plugin, plugin.destroy_context(handle, context));
  }
  if (status) CHECK(*plugin_error(&plugin) || *last_log, "status %d without a text", status);
  OK(&plugin, plugin.destroy(handle));
  return status == 0;
}

// The first question, a compile and N builds and launches beside a commotion, with no standard files and little memory;
// then once more without the files that the plugin had open, and with hardly any memory. Nothing of the host's changes.
void unruly(void) {
  quiet = 1;
  CHECK(dup2(1, 100) == 100, "dup2");
  stderr = fdopen(dup2(2, 101), "w");
  plugin = plugin_open(path, flags);
  each = case_read(folder);
  for (int i = 0; i < 3; ++i) close(i);
  limit_memory(1000 + 64 * sysconf(_SC_NPROCESSORS_ONLN));
  pthread_t thread;
  CHECK(!pthread_create(&thread, NULL, commotion, NULL), "no thread");
  for (long i = 0; i < number; ++i) CHECK(plan_and_run(), "not served: %s", plugin_error(&plugin));
  case_write_outputs(&each, folder);
  order_is_back = 1;
  pthread_join(thread, NULL);
  for (int i = 0; i < 3; ++i) {
    char link[32], target[256] = "";
    snprintf(link, sizeof(link), "/proc/self/fd/%d", i);
    CHECK(readlink(link, target, sizeof(target) - 1) < 0, "%s has descriptor %d", target, i);
  }
  struct sigaction now;
  for (int i = 0; i < SIGNAL_COUNT; ++i)
    CHECK(sigaction(SIGNALS[i], NULL, &now) == 0 && now.sa_handler == own_handler, "signal %d was undone", SIGNALS[i]);
  CHECK(strcmp(nl_langinfo(CODESET), rounds % 2 ? "UTF-8" : "ANSI_X3.4-1968") == 0, "the locale was changed");
  char where[4096];
  CHECK(!getcwd(where, sizeof(where)), "the folder is another: %s", where);
  long seen = rounds;
  for (int i = 3; i < 1000; ++i)
    if (i != 100 && i != 101) close(i);
  limit_memory(16);
  int once_more = 0;
  for (int i = 0; i < 3; ++i) once_more += plan_and_run();
  dprintf(100, "rounds %ld, then %d\n", seen, once_more);
}
