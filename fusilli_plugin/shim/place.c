// Where Python is: FUSILLI_PYTHON and FUSILLI_LIBPYTHON; else the file libfusilli_plugin.conf beside the library; else
// the environment that the library is installed in, <prefix>/lib/pythonX.Y/site-packages/fusilli_plugin/lib.
//
// The current directory decides nothing: where the library lies is found out when it is loaded, since a host may name it
// by a relative path and change its directory, and relative paths are refused.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shim.h"

place_t place;

int join_path(char out[PATH_MAX], const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  int length = vsnprintf(out, PATH_MAX, format, arguments);
  va_end(arguments);
  if (length >= 0 && length < PATH_MAX) return 1;
  out[0] = 0;
  return 0;
}

int is_there(const char* path) { return *path && access(path, R_OK) == 0; }

// The library as the host named it, which may be a link, and the file that this is.
static char named[PATH_MAX], real[PATH_MAX];

__attribute__((constructor)) static void find_library(void) {
  Dl_info info;
  if (!dladdr((void*)find_library, &info) || !info.dli_fname) return;
  char folder[PATH_MAX];
  if (*info.dli_fname == '/')
    join_path(named, "%s", info.dli_fname);
  else if (getcwd(folder, sizeof(folder)) && *folder == '/')
    join_path(named, "%s/%s", folder, info.dli_fname);
  if (!*named || !realpath(named, real)) named[0] = real[0] = 0;
}

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
  if (!join_path(path, "%.*s.conf", (int)length, library)) return 0;
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
  join_path(path, "%s", library);
  const char* file = cut(path);
  const char* lib = cut(path);
  const char* package = cut(path);
  if (!file || !lib || !package || strcmp(package, "fusilli_plugin") != 0) return;
  join_path(place.root, "%s", path);
  const char* site = cut(path);
  const char* name = cut(path);
  if (!site || !name || !strstr(site, "-packages") || strncmp(name, "python", 6) != 0 || !cut(path)) return;
  snprintf(place.version, sizeof(place.version), "%s", name + 6);
  const char* const forms[] = {"%s/bin/python%s", "%s/bin/python3"};
  for (int i = 0; i < 2; ++i)
    if (join_path(place.python, forms[i], path, place.version) && is_there(place.python)) return;
  place.python[0] = 0;
}

// The folder of the interpreter that an environment was made of: `home` in its pyvenv.cfg.
static int base_folder(const char* interpreter, char out[PATH_MAX]) {
  char path[PATH_MAX], line[PATH_MAX + 32];
  join_path(out, "%s", interpreter);
  if (!cut(out)) return 0;
  join_path(path, "%s/../pyvenv.cfg", out);
  FILE* file = fopen(path, "re");
  if (!file) return 1;
  while (fgets(line, sizeof(line), file)) {
    const char* home = value_of(line, "home");
    if (home) join_path(out, "%s", home);
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
      if (join_path(place.libpython, forms[i], folder, place.version) && is_there(place.libpython)) return;
  join_path(place.libpython, "libpython%s.so.1.0", place.version);  // the loader's own search
}

int find_place(void) {
  if (!*real) return python_fail("where this library lies could not be found out when it was loaded");
  if (!read_sidecar(named) && !read_sidecar(real)) read_own_path(real);
  const char* value = secure_getenv("FUSILLI_PYTHON");
  if (value && *value) join_path(place.python, "%s", value);
  value = secure_getenv("FUSILLI_LIBPYTHON");
  if (value && *value) join_path(place.libpython, "%s", value);
  if (*place.root && *place.root != '/') return python_fail("the folder %s of the packages is no absolute path", place.root);
  if (*place.python && *place.python != '/')
    return python_fail("%s, the path of Python, is not absolute; set FUSILLI_PYTHON to one that is", place.python);
  if (*place.libpython && *place.libpython != '/' && strchr(place.libpython, '/'))
    return python_fail("%s, the path of libpython, is not absolute; set FUSILLI_LIBPYTHON to one that is", place.libpython);
  find_libpython();
  return 1;
}

// ---- Python's standard library ------------------------------------------------------------------------------------

// Whether lib/pythonX.Y, or the archive that may stand for it, is in a folder or in one around it, where Python looks.
static int has_library_around(char folder[PATH_MAX], const char* version) {
  const char* const forms[] = {"%s/lib/python%s/encodings/__init__.py", "%s/lib64/python%s/encodings/__init__.py",
                               "%s/lib/python%s/encodings/__init__.pyc", "%s/python%s/encodings/__init__.py"};
  const char* dot = strchr(version, '.');
  char path[PATH_MAX];
  do {
    for (size_t i = 0; i < sizeof(forms) / sizeof(*forms); ++i)
      if (join_path(path, forms[i], folder, version) && is_there(path)) return 1;
    if (dot && join_path(path, "%s/lib/python%.*s%s.zip", folder, (int)(dot - version), version, dot + 1) &&
        is_there(path))
      return 1;
  } while (cut(folder));
  return 0;
}

int has_standard_library(const char* version, const void* function) {
  char folder[PATH_MAX], path[PATH_MAX];
  if (place.python[0]) {
    if (base_folder(place.python, folder) && realpath(folder, path) && has_library_around(path, version)) return 1;
    if (realpath(place.python, path) && cut(path) && has_library_around(path, version)) return 1;
  }
  Dl_info info;
  return dladdr(function, &info) && info.dli_fname && realpath(info.dli_fname, path) && cut(path) &&
         has_library_around(path, version);
}
