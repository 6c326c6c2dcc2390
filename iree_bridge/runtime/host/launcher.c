// Runs compiled CPU code: a list of kernels, fills and copies that was recorded once, shared out among threads.
//
// One run at a time has the pool of threads; others that overlap with it run in their callers' threads alone. The caller
// always works itself and waits for nobody who has not taken a piece of work, so that a thread which the system does not
// let run is not missed. Whether more threads pay is measured for each list and looked at again from time to time.
//
// The structures that begin with ``library_`` are those of IREE's executable libraries, version 6.

#define _GNU_SOURCE
#include <elf.h>
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define API __attribute__((visibility("default")))

enum { LIBRARY_VERSION = 6, PAGE = 4096, MAX_THREADS = 128, STACK = 1 << 20 };
enum { COPY_PIECE = 1 << 18 };  // bytes of a fill or copy that one thread takes at once
enum { SPIN_NS = 30 * 1000, ACTIVE_SPIN_NS = 300 * 1000, WAIT_NS = 30 * 1000 };
enum { SHORT_NS = 15 * 1000 };   // lists that take less are never shared out
enum { WAKE_NS = 100 * 1000 };   // lists that take less are not worth waking a thread that sleeps
enum { FED_NS = 20 * 1000 };     // work that a thread gets at least
enum { TRIES = 8 };              // runs of a list before it is decided
enum { LOOK_AGAIN = 256 };       // runs after which the other way is tried again, at most

// ---- IREE's executable libraries -------------------------------------------------------------------------------------

typedef struct {
  uint32_t version;
  const char *name;
  uint32_t features, sanitizer;
} library_header;

typedef struct {
  uint64_t flags;
  uint16_t local_memory_pages;
  uint8_t constant_count, binding_count;
  uint32_t workgroup_size_x, workgroup_size_y;
  uint16_t workgroup_size_z, parameter_count;
  uint64_t reserved[5];
} library_attributes;

typedef struct {
  const uint32_t *constants;
  void *import_thunk, *import_functions, *import_contexts;
  uint64_t processor[8];
} library_environment;

typedef struct {
  uint32_t workgroup_size_x, workgroup_size_y;
  uint16_t workgroup_size_z, constant_count;
  uint32_t workgroup_count_x, workgroup_count_y;
  uint16_t workgroup_count_z;
  uint8_t max_concurrency, binding_count;
  const uint32_t *constants;
  void *const *bindings;
  const size_t *lengths;
} library_dispatch;

typedef struct {
  uint32_t id_x, id_y;
  uint16_t id_z, reserved;
  uint32_t processor;
  void *local_memory;
  uint32_t local_memory_size;
} library_workgroup;

typedef int (*library_function)(const library_environment *, const library_dispatch *, const library_workgroup *);

typedef struct {
  const library_header *header;
  struct {
    uint32_t count;
    const char *const *symbols;
  } imports;
  struct {
    uint32_t count;
    const library_function *functions;
    const library_attributes *attributes;
    const void *parameters, *occupancy;
    const char *const *names;
    const void *tags, *parameter_names, *sources, *stages;
  } exports;
  struct {
    uint32_t count;
  } constants;
} library_table;

typedef const library_table *(*library_query)(uint32_t, const library_environment *);

_Static_assert(sizeof(library_attributes) == 64 && sizeof(library_dispatch) == 48, "structures of the compiled code");
_Static_assert(offsetof(library_workgroup, local_memory) == 16, "structures of the compiled code");

static const library_environment environment;  // no constants, no imports, nothing said of the processor

// ---- loading ---------------------------------------------------------------------------------------------------------

// Code that is mapped: ``size`` bytes at ``base``.
typedef struct {
  char *base;
  size_t size;
  const library_table *table;
} image;

// An ELF file in memory, of which nothing is believed.
typedef struct {
  const char *data;
  size_t size;
  const Elf64_Phdr *segments;
  uint32_t count;
} elf;

#if defined(__x86_64__)
enum { MACHINE = EM_X86_64, RELATIVE = R_X86_64_RELATIVE };
#elif defined(__aarch64__)
enum { MACHINE = EM_AARCH64, RELATIVE = R_AARCH64_RELATIVE };
#endif
enum { MOST_SEGMENTS = 64 };
static const size_t MOST_BYTES = (size_t)1 << 31;

#ifndef LAUNCHER_VERSION
#define LAUNCHER_VERSION ""
#endif

// What the sources hash to that this was made of.
API const char *launcher_version(void) { return LAUNCHER_VERSION; }

API void launcher_unload(image *it) {
  if (it->base) munmap(it->base, it->size);
  free(it);
}

static int is_within(size_t offset, size_t size, size_t whole) { return offset <= whole && size <= whole - offset; }

// Fills in what the file's header says; NULL, or what is wrong.
static const char *read_header(elf *file, size_t *span) {
  const Elf64_Ehdr *h = (const Elf64_Ehdr *)file->data;
  if (file->size < sizeof *h || memcmp(h->e_ident, ELFMAG, SELFMAG) || h->e_ident[EI_CLASS] != ELFCLASS64 ||
      h->e_ident[EI_DATA] != ELFDATA2LSB || h->e_type != ET_DYN || h->e_machine != MACHINE)
    return "it is no library for this processor";
  file->count = h->e_phnum;
  if (h->e_phentsize != sizeof(Elf64_Phdr) || !file->count || file->count > MOST_SEGMENTS || h->e_phoff % 8 ||
      !is_within(h->e_phoff, file->count * sizeof(Elf64_Phdr), file->size))
    return "its segments are not where it says";
  file->segments = (const Elf64_Phdr *)(file->data + h->e_phoff);
  for (uint32_t i = 0; i < file->count; ++i) {
    const Elf64_Phdr *p = &file->segments[i];
    if (p->p_type == PT_TLS) return "it has memory of threads";
    if (p->p_type != PT_LOAD) continue;
    if (!is_within(p->p_offset, p->p_filesz, file->size) || p->p_filesz > p->p_memsz || p->p_vaddr > MOST_BYTES ||
        p->p_memsz > MOST_BYTES || ((p->p_flags & PF_W) && (p->p_flags & PF_X)))
      return "a segment is not where it says";
    if (p->p_vaddr + p->p_memsz > *span) *span = p->p_vaddr + p->p_memsz;
  }
  return *span ? NULL : "it has no code";
}

// The value of an entry of the dynamic section; 0 if there is none.
static uint64_t dynamic(const Elf64_Dyn *entries, size_t count, int64_t tag) {
  for (size_t i = 0; i < count && entries[i].d_tag != DT_NULL; ++i)
    if (entries[i].d_tag == tag) return entries[i].d_un.d_val;
  return 0;
}

static const Elf64_Dyn *find_dynamic(const elf *file, const image *it, size_t *count) {
  for (uint32_t i = 0; i < file->count; ++i) {
    const Elf64_Phdr *p = &file->segments[i];
    *count = p->p_memsz / sizeof(Elf64_Dyn);
    if (p->p_type == PT_DYNAMIC)
      return p->p_vaddr % 8 || !is_within(p->p_vaddr, p->p_memsz, it->size) ? NULL : (void *)(it->base + p->p_vaddr);
  }
  return NULL;
}

static const char *relocate(const image *it, const Elf64_Dyn *entries, size_t count) {
  uint64_t at = dynamic(entries, count, DT_RELA), size = dynamic(entries, count, DT_RELASZ);
  if (dynamic(entries, count, DT_JMPREL) || dynamic(entries, count, DT_NEEDED)) return "it needs other libraries";
  if (at % 8 || !is_within(at, size, it->size)) return "its relocations are not where it says";
  const Elf64_Rela *r = (const Elf64_Rela *)(it->base + at);
  for (uint64_t i = 0; i < size / sizeof *r; ++i) {
    if (ELF64_R_TYPE(r[i].r_info) != RELATIVE) return "it has relocations of another kind";
    if (r[i].r_offset % 8 || !is_within(r[i].r_offset, 8, it->size) || (uint64_t)r[i].r_addend > it->size)
      return "a relocation leads out of it";
    *(uint64_t *)(it->base + r[i].r_offset) = (uint64_t)(uintptr_t)it->base + (uint64_t)r[i].r_addend;
  }
  return NULL;
}

// The function of that name; NULL if there is none.
static void *find_symbol(const image *it, const Elf64_Dyn *entries, size_t count, const char *name) {
  uint64_t hash = dynamic(entries, count, DT_HASH), symbols = dynamic(entries, count, DT_SYMTAB);
  uint64_t names = dynamic(entries, count, DT_STRTAB), size = dynamic(entries, count, DT_STRSZ);
  size_t length = strlen(name) + 1;
  if (hash % 4 || !is_within(hash, 8, it->size) || symbols % 8 || !is_within(names, size, it->size)) return NULL;
  uint64_t entries_of_symbols = ((const uint32_t *)(it->base + hash))[1];
  if (!is_within(symbols, entries_of_symbols * sizeof(Elf64_Sym), it->size)) return NULL;
  const Elf64_Sym *s = (const Elf64_Sym *)(it->base + symbols);
  for (uint64_t i = 0; i < entries_of_symbols; ++i) {
    if (s[i].st_shndx == SHN_UNDEF || s[i].st_value >= it->size || !is_within(s[i].st_name, length, size)) continue;
    if (!memcmp(it->base + names + s[i].st_name, name, length)) return it->base + s[i].st_value;
  }
  return NULL;
}

static const char *protect(const elf *file, const image *it) {
  for (uint32_t i = 0; i < file->count; ++i) {
    const Elf64_Phdr *p = &file->segments[i];
    if (p->p_type != PT_LOAD || (p->p_flags & PF_W)) continue;
    size_t begin = p->p_vaddr & ~(size_t)(PAGE - 1);
    int flags = PROT_READ | (p->p_flags & PF_X ? PROT_EXEC : 0);
    if (mprotect(it->base + begin, p->p_vaddr + p->p_memsz - begin, flags)) return strerror(errno);
    __builtin___clear_cache(it->base + begin, it->base + p->p_vaddr + p->p_memsz);
  }
  return NULL;
}

static const char *map(image *it, elf file) {
  const char *wrong = read_header(&file, &it->size);
  if (wrong) return wrong;
  it->size = (it->size + PAGE - 1) & ~(size_t)(PAGE - 1);
  void *base = mmap(NULL, it->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) return strerror(errno);
  it->base = base;
  for (uint32_t i = 0; i < file.count; ++i) {
    const Elf64_Phdr *p = &file.segments[i];
    if (p->p_type == PT_LOAD) memcpy(it->base + p->p_vaddr, file.data + p->p_offset, p->p_filesz);
  }
  size_t count = 0;
  const Elf64_Dyn *entries = find_dynamic(&file, it, &count);
  if (!entries) return "it has no dynamic section";
  if ((wrong = relocate(it, entries, count))) return wrong;
  library_query query = (library_query)find_symbol(it, entries, count, "iree_hal_executable_library_query");
  if (!query) return "it has no entry";
  if ((wrong = protect(&file, it))) return wrong;
  it->table = query(LIBRARY_VERSION, &environment);
  if (!it->table || it->table->header->version != LIBRARY_VERSION) return "it is of another version";
  if (it->table->imports.count || it->table->constants.count || it->table->header->features ||
      it->table->header->sanitizer || !it->table->exports.attributes || !it->table->exports.names)
    return "it needs functions, constants or features of its environment";
  return NULL;
}

// Loads an ELF library from memory, which starts at a multiple of 8. NULL: ``message`` says why.
API image *launcher_load(const void *data, size_t size, char *message, size_t message_size) {
  image *it = calloc(1, sizeof *it);
  const char *wrong = it ? map(it, (elf){.data = data, .size = size}) : strerror(ENOMEM);
  if (!wrong) return it;
  snprintf(message, message_size, "the code cannot be loaded: %s", wrong);
  if (it) launcher_unload(it);
  return NULL;
}

API uint32_t launcher_exports(const image *it) { return it->table->exports.count; }

// One export: its name, and in ``facts`` the numbers of bindings and constants, bytes of local memory, and flags.
API const char *launcher_export(const image *it, uint32_t n, uint64_t facts[4]) {
  const library_attributes *a = &it->table->exports.attributes[n];
  facts[0] = a->binding_count;
  facts[1] = a->constant_count;
  facts[2] = (uint64_t)a->local_memory_pages * PAGE;
  facts[3] = a->flags;
  return it->table->exports.names[n];
}

// ---- lists of commands -----------------------------------------------------------------------------------------------

enum { KERNEL, FILL, COPY };

typedef struct {
  uint32_t kind;
  uint32_t pieces;  // that threads may take: workgroups, or parts of a fill or copy
  library_function function;
  library_dispatch dispatch;
  uint32_t local_memory, first;  // ``first``: of its places in the list's
  char *target;
  const char *source;
  size_t nbytes;
  uint32_t pattern, width;
} command;

typedef struct {
  uint32_t argument;
  uint64_t offset, nbytes;
} place;

// What a list of commands is but for the addresses. Times of a run in ns: ``expected`` and seen in one thread
// (``serial``) and in several (``shared``), 0 if unknown.
typedef struct {
  uint32_t count, places, numbers, local_memory;
  int is_divisible;
  uint64_t expected;
  atomic_uint_fast64_t serial, shared;
  atomic_uint runs, trial, gap;  // when the next trial of the other way is, and how far it is from the last
  command *commands;
  place *where;
  uint32_t *constants;
  atomic_uint *took;  // by each command when it was shared out last, in ns
} list;

// A list with addresses. The memory is the caller's: launcher_job_size() bytes.
typedef struct {
  list *of;
  command *commands;
} job;

static size_t rounded(size_t size) { return (size + 63) & ~(size_t)63; }

API void launcher_free(list *it) {
  free(it->commands);
  free(it->where);
  free(it->constants);
  free(it->took);
  free(it);
}

// An empty list with room for so many commands, places and constants; ``expected_ns``: of a run in one thread.
API list *launcher_list(uint32_t commands, uint32_t places, uint32_t constants, uint64_t expected_ns) {
  list *it = calloc(1, sizeof *it);
  if (!it) return NULL;
  it->commands = calloc(commands + 1, sizeof *it->commands);
  it->where = calloc(places + 1, sizeof *it->where);
  it->constants = calloc(constants + 1, sizeof *it->constants);
  it->took = calloc(commands + 1, sizeof *it->took);
  it->expected = expected_ns;
  if (!it->commands || !it->where || !it->constants || !it->took) {
    launcher_free(it);
    return NULL;
  }
  return it;
}

// Appends a kernel, with three words for each place: argument, offset, bytes.
API void launcher_add_kernel(list *it, const image *code, uint32_t n, const uint32_t grid[3], const uint64_t *places,
                             const uint32_t *constants) {
  const library_attributes *a = &code->table->exports.attributes[n];
  command *c = &it->commands[it->count++];
  c->kind = KERNEL;
  c->pieces = grid[0] * grid[1] * grid[2];
  c->function = code->table->exports.functions[n];
  c->local_memory = (uint32_t)a->local_memory_pages * PAGE;
  c->first = it->places;
  c->dispatch = (library_dispatch){
      .workgroup_size_x = a->workgroup_size_x ? a->workgroup_size_x : 1,
      .workgroup_size_y = a->workgroup_size_y ? a->workgroup_size_y : 1,
      .workgroup_size_z = a->workgroup_size_z ? a->workgroup_size_z : 1,
      .constant_count = a->constant_count,
      .workgroup_count_x = grid[0],
      .workgroup_count_y = grid[1],
      .workgroup_count_z = (uint16_t)grid[2],
      .max_concurrency = 1,
      .binding_count = a->binding_count,
      .constants = it->constants + it->numbers,
  };
  memcpy(it->constants + it->numbers, constants, 4 * (size_t)a->constant_count);
  it->numbers += a->constant_count;
  for (uint32_t i = 0; i < a->binding_count; ++i) {
    it->where[it->places++] = (place){(uint32_t)places[3 * i], places[3 * i + 1], places[3 * i + 2]};
  }
  if (c->local_memory > it->local_memory) it->local_memory = c->local_memory;
  it->is_divisible |= c->pieces > 1;
}

static void add_bytes(list *it, command c, const uint64_t *places, uint32_t count) {
  c.pieces = (uint32_t)((c.nbytes + COPY_PIECE - 1) / COPY_PIECE);
  c.first = it->places;
  for (uint32_t i = 0; i < count; ++i) {
    it->where[it->places++] = (place){(uint32_t)places[2 * i], places[2 * i + 1], 0};
  }
  it->commands[it->count++] = c;
  it->is_divisible |= c.pieces > 1;
}

API void launcher_add_fill(list *it, const uint64_t target[2], size_t nbytes, uint32_t pattern, uint32_t width) {
  add_bytes(it, (command){.kind = FILL, .nbytes = nbytes, .pattern = pattern, .width = width}, target, 1);
}

API void launcher_add_copy(list *it, const uint64_t target_and_source[4], size_t nbytes) {
  add_bytes(it, (command){.kind = COPY, .nbytes = nbytes}, target_and_source, 2);
}

API size_t launcher_job_size(const list *it) {
  return rounded(sizeof(job)) + rounded(it->count * sizeof(command)) + it->places * (sizeof(void *) + sizeof(size_t)) + 64;
}

// Fills in addresses, one for each argument of the list.
API void launcher_prepare(list *it, const uint64_t *addresses, void *memory) {
  char *at = (char *)rounded((size_t)memory);
  job *j = memory;
  *j = (job){.of = it, .commands = (command *)(at + rounded(sizeof *j))};
  memcpy(j->commands, it->commands, it->count * sizeof(command));
  void **bindings = (void **)((char *)j->commands + rounded(it->count * sizeof(command)));
  size_t *lengths = (size_t *)(bindings + it->places);
  for (uint32_t i = 0; i < it->places; ++i) {
    bindings[i] = (void *)(uintptr_t)(addresses[it->where[i].argument] + it->where[i].offset);
    lengths[i] = it->where[i].nbytes;
  }
  for (uint32_t i = 0; i < it->count; ++i) {
    command *c = &j->commands[i];
    if (c->kind == KERNEL) {
      c->dispatch.bindings = bindings + c->first;
      c->dispatch.lengths = lengths + c->first;
    } else {
      c->target = bindings[c->first];
      c->source = c->kind == COPY ? bindings[c->first + 1] : NULL;
    }
  }
}

static void fill(const command *c, size_t begin, size_t end) {
  if (c->width == 1 || c->pattern == 0) {
    memset(c->target + begin, (int)c->pattern, end - begin);
    return;
  }
  char block[4096];  // as much as libraries copy fastest
  size_t all = end - begin, made = all < sizeof block ? all : sizeof block;
  for (size_t i = 0; i < made; i += c->width) memcpy(block + i, &c->pattern, c->width);  // little-endian
  for (size_t i = 0; i < all; i += made) memcpy(c->target + begin + i, block, all - i < made ? all - i : made);
}

// Pieces ``begin`` to ``end`` of a command, in this thread. Not 0: the code failed.
static int run_pieces(const command *c, uint32_t begin, uint32_t end, void *local, uint32_t thread) {
  if (c->kind != KERNEL) {
    size_t from = (size_t)begin * COPY_PIECE, to = (size_t)end * COPY_PIECE;
    if (to > c->nbytes) to = c->nbytes;
    if (c->kind == FILL)
      fill(c, from, to);
    else
      memmove(c->target + from, c->source + from, to - from);
    return 0;
  }
  uint32_t x = c->dispatch.workgroup_count_x, y = c->dispatch.workgroup_count_y;
  library_workgroup group = {.id_x = begin % x, .id_y = begin / x % y, .id_z = (uint16_t)(begin / x / y),
                             .processor = thread, .local_memory = local, .local_memory_size = c->local_memory};
  int failed = 0;
  for (uint32_t i = begin; i < end; ++i) {
    failed |= c->function(&environment, &c->dispatch, &group);
    if (++group.id_x == x) {
      group.id_x = 0;
      if (++group.id_y == y) {
        group.id_y = 0;
        ++group.id_z;
      }
    }
  }
  return failed;
}

// ---- threads ---------------------------------------------------------------------------------------------------------

// Each thread of a command begins with a range of pieces of its own, always the same one, so that it meets data that its
// cache holds from the last run. Who is done takes from the ranges of others. A ticket is what is left of a range: pieces
// in the lower half, the command's number in the upper one.
typedef struct {
  _Alignas(64) atomic_uint_fast64_t left;
} ticket;

static struct {
  ticket tickets[MAX_THREADS];
  _Alignas(64) atomic_uint announced;  // number of the command << 8 | threads that may take part
  _Alignas(64) atomic_uint done;       // pieces of the command that are done
  atomic_int failed;
  _Alignas(64) const command *command;  // written while no piece is left to take, as what follows
  uint32_t pieces, sharing, number;
  char *local;
  size_t local_size;  // of each thread
  _Alignas(64) atomic_uint doorbell;  // a futex: sleeping threads wait for it to change
  atomic_uint sleeping;
  atomic_int active;
  _Alignas(64) atomic_uint caller_sleeps;  // a futex
  _Alignas(64) atomic_flag taken;
  uint32_t threads;  // started, the callers not counted
  pid_t ids[MAX_THREADS];
  atomic_int processors[MAX_THREADS];  // where each thread went to sleep, -1: unknown
  int is_registered;
} pool;

static uint64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void relax(void) {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

static void sleep_on(atomic_uint *word, uint32_t value, const struct timespec *most) {
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, most, NULL, 0);
}

static void wake(atomic_uint *word, int count) { syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0); }

// Numbers as the code was compiled for, whatever the thread has set: nearest, no flushing, nothing trapped.
#if defined(__x86_64__)
typedef unsigned int rounding;
static rounding set_rounding(void) {
  rounding before = _mm_getcsr();
  if ((before & ~0x3fu) != 0x1f80) _mm_setcsr(0x1f80);
  return before;
}
static void restore_rounding(rounding before) {
  if ((before & ~0x3fu) != 0x1f80) _mm_setcsr(before);
}
#elif defined(__aarch64__)
typedef uint64_t rounding;
static rounding set_rounding(void) {
  rounding before;
  __asm__ volatile("mrs %0, fpcr" : "=r"(before));
  if (before) __asm__ volatile("msr fpcr, %0" ::"r"((uint64_t)0));
  return before;
}
static void restore_rounding(rounding before) {
  if (before) __asm__ volatile("msr fpcr, %0" ::"r"(before));
}
#endif

static void finish(uint32_t many, uint32_t all) {
  if (atomic_fetch_add_explicit(&pool.done, many, memory_order_seq_cst) + many == all &&
      atomic_load_explicit(&pool.caller_sleeps, memory_order_seq_cst)) {
    atomic_store_explicit(&pool.caller_sleeps, 0, memory_order_seq_cst);
    wake(&pool.caller_sleeps, 1);
  }
}

// Takes pieces of one range as long as there are any. What is read after a piece was taken is of the command that it
// belongs to, whenever that was announced: the next one is not begun before it is done.
static void take_from(uint32_t range, uint32_t thread) {
  atomic_uint_fast64_t *left = &pool.tickets[range].left;
  uint_fast64_t t = atomic_load_explicit(left, memory_order_acquire);
  while ((uint32_t)t) {
    uint32_t many = ((uint32_t)t + 7) / 8;
    if (!atomic_compare_exchange_weak_explicit(left, &t, t - many, memory_order_acq_rel, memory_order_acquire)) continue;
    uint32_t all = pool.pieces, end = (uint32_t)((uint64_t)all * (range + 1) / pool.sharing);
    uint32_t begin = end - (uint32_t)t;
    if (run_pieces(pool.command, begin, begin + many, pool.local + thread * pool.local_size, thread))
      atomic_store_explicit(&pool.failed, 1, memory_order_relaxed);
    finish(many, all);
    t = atomic_load_explicit(left, memory_order_acquire);
  }
}

static void take_part(uint32_t thread, uint32_t sharing) {
  for (uint32_t i = 0; i < sharing; ++i) take_from((thread + i) % sharing, thread);
}

static void *work(void *argument) {
  uint32_t thread = (uint32_t)(uintptr_t)argument, seen = 0;
  pool.ids[thread] = (pid_t)syscall(SYS_gettid);
  set_rounding();
  for (;;) {
    uint64_t begun = now();
    for (;;) {
      uint32_t news = atomic_load_explicit(&pool.announced, memory_order_acquire);
      if (news != seen && thread < (news & 0xff)) {
        take_part(thread, news & 0xff);
        begun = now();
      }
      seen = news;
      for (int i = 0; i < 16; ++i) relax();
      int active = atomic_load_explicit(&pool.active, memory_order_relaxed) > (int)thread;
      if (now() - begun > (active ? ACTIVE_SPIN_NS : SPIN_NS)) break;
    }
    atomic_store_explicit(&pool.processors[thread], sched_getcpu(), memory_order_release);
    uint32_t bell = atomic_load_explicit(&pool.doorbell, memory_order_seq_cst);
    atomic_fetch_add_explicit(&pool.sleeping, 1, memory_order_seq_cst);
    if (atomic_load_explicit(&pool.announced, memory_order_seq_cst) == seen) sleep_on(&pool.doorbell, bell, NULL);
    atomic_fetch_sub_explicit(&pool.sleeping, 1, memory_order_seq_cst);
    atomic_store_explicit(&pool.processors[thread], -1, memory_order_relaxed);
  }
  return NULL;
}

static void forget_threads(void) {  // in a forked child, which has none of them
  pool.threads = 0;
  atomic_store(&pool.sleeping, 0);
  atomic_store(&pool.active, 0);
  for (int i = 0; i < MAX_THREADS; ++i) atomic_store(&pool.tickets[i].left, 0);
  atomic_store(&pool.caller_sleeps, 0);
  atomic_flag_clear(&pool.taken);
}

// Starts threads so that there are ``wanted`` besides the caller; fewer if the system has no more.
static void start_threads(uint32_t wanted) {
  if (!pool.is_registered) pool.is_registered = !pthread_atfork(NULL, NULL, forget_threads);
  pthread_attr_t attributes;
  if (pthread_attr_init(&attributes)) return;
  pthread_attr_setstacksize(&attributes, STACK);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  sigset_t all, before;
  sigfillset(&all);  // signals are for the program's own threads
  pthread_sigmask(SIG_SETMASK, &all, &before);
  while (pool.threads < wanted) {
    pthread_t thread;
    // Its number is not known before it sleeps for the first time; after a fork there is that of the parent's thread.
    atomic_store_explicit(&pool.processors[pool.threads + 1], -1, memory_order_relaxed);
    if (pthread_create(&thread, &attributes, work, (void *)(uintptr_t)(pool.threads + 1))) break;
    pthread_setname_np(thread, "fusilli");
    ++pool.threads;
  }
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  pthread_attr_destroy(&attributes);
}

// Local memory for all threads, also those that are late for an earlier command.
static int has_local_memory(size_t size) {
  static size_t allocated;
  size = rounded(size);
  size_t all = size * (pool.threads + 1);
  if (all > allocated) {
    free(pool.local);
    pool.local = aligned_alloc(64, all);
    allocated = pool.local ? all : 0;
  }
  pool.local_size = size;
  return allocated >= all;
}

// Has threads that sleep on the caller's processor wake on another one. The system wakes a thread where it slept, also
// beside idle processors, and there it waits until the caller sleeps: two threads took longer than one then.
static void spread(uint32_t threads) {
  int here = sched_getcpu();
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  for (uint32_t i = 1; i < threads; ++i) {
    if (here < 0 || atomic_load_explicit(&pool.processors[i], memory_order_acquire) != here) continue;
    if (!CPU_COUNT(&allowed) && sched_getaffinity(0, sizeof allowed, &allowed)) return;
    CPU_CLR(here, &allowed);
    if (!CPU_COUNT(&allowed)) return;
    sched_setaffinity(pool.ids[i], sizeof allowed, &allowed);
  }
}

static void ring(uint32_t threads) {
  if (!atomic_load_explicit(&pool.sleeping, memory_order_seq_cst)) return;
  spread(threads);
  atomic_fetch_add_explicit(&pool.doorbell, 1, memory_order_seq_cst);
  wake(&pool.doorbell, (int)threads - 1);
}

// One command by so many threads; returns when it is done.
static void share_out(const command *c, uint32_t threads) {
  if (c->pieces < threads) threads = c->pieces;
  pool.command = c;
  pool.pieces = c->pieces;
  pool.sharing = threads;
  atomic_store_explicit(&pool.done, 0, memory_order_relaxed);
  uint_fast64_t number = ++pool.number & 0xffffff;
  for (uint32_t i = 0; i < threads; ++i) {
    uint32_t begin = (uint32_t)((uint64_t)c->pieces * i / threads);
    uint32_t end = (uint32_t)((uint64_t)c->pieces * (i + 1) / threads);
    atomic_store_explicit(&pool.tickets[i].left, number << 32 | (end - begin), memory_order_release);
  }
  atomic_store_explicit(&pool.announced, (uint32_t)number << 8 | threads, memory_order_seq_cst);
  take_part(0, threads);
  uint64_t begun = 0;
  for (uint32_t i = 0; atomic_load_explicit(&pool.done, memory_order_acquire) != c->pieces; ++i) {
    relax();
    if (i % 64) continue;
    if (!begun) begun = now();
    if (now() - begun < WAIT_NS) continue;
    // Whoever has the piece may wait for this very processor.
    atomic_store_explicit(&pool.caller_sleeps, 1, memory_order_seq_cst);
    if (atomic_load_explicit(&pool.done, memory_order_seq_cst) != c->pieces)
      sleep_on(&pool.caller_sleeps, 1, &(struct timespec){.tv_nsec = 1000 * 1000});
    atomic_store_explicit(&pool.caller_sleeps, 0, memory_order_seq_cst);
  }
}

static int run_shared(const job *j, uint32_t threads, uint64_t expected) {
  list *l = j->of;
  atomic_store_explicit(&pool.failed, 0, memory_order_relaxed);
  atomic_store_explicit(&pool.active, (int)threads, memory_order_relaxed);
  if (expected >= WAKE_NS) ring(threads);
  for (uint32_t i = 0; i < l->count; ++i) {
    const command *c = &j->commands[i];
    if (c->pieces == 1) {
      if (run_pieces(c, 0, 1, pool.local, 0)) atomic_store_explicit(&pool.failed, 1, memory_order_relaxed);
      continue;
    }
    if (atomic_load_explicit(&l->took[i], memory_order_relaxed) >= WAKE_NS / 2) ring(threads);
    uint64_t begun = now();
    share_out(c, threads);
    atomic_store_explicit(&l->took[i], (uint32_t)(now() - begun), memory_order_relaxed);
  }
  atomic_store_explicit(&pool.active, 0, memory_order_relaxed);
  return atomic_load_explicit(&pool.failed, memory_order_relaxed);
}

static int run_alone(const job *j) {
  void *local = NULL;
  if (j->of->local_memory && !(local = aligned_alloc(64, rounded(j->of->local_memory)))) return ENOMEM;
  int failed = 0;
  for (uint32_t i = 0; i < j->of->count; ++i) failed |= run_pieces(&j->commands[i], 0, j->commands[i].pieces, local, 0);
  free(local);
  return failed;
}

typedef enum { FIRST, TRIAL, USUAL } purpose;

// A time that follows what is seen slowly, so that one run that the system has interrupted counts little. Of the way that
// is only tried, a better time counts at once: what disturbed it before may be over, and if not, the next runs tell.
static void learn(atomic_uint_fast64_t *kept, uint64_t seen, purpose why) {
  uint64_t before = atomic_load_explicit(kept, memory_order_relaxed);
  if (before && why == FIRST && seen > before) seen = before;
  if (before && seen > 2 * before) seen = 2 * before;
  int follows = before && (why == USUAL || (why == TRIAL && seen > before));
  uint64_t after = follows ? before - before / 4 + seen / 4 : seen;
  atomic_store_explicit(kept, after ? after : 1, memory_order_relaxed);
}

// Both ways are tried in turn at first. Then the faster one serves, and now and then two runs are a trial of the other way.
static purpose purpose_of(list *l, uint32_t run) {
  if (run < TRIES) return FIRST;
  return run - atomic_load_explicit(&l->trial, memory_order_relaxed) < 2 ? TRIAL : USUAL;
}

// When the next trial is: the longer the way has been the same, the later.
static void plan_trial(list *l, uint32_t run, int is_changed) {
  uint32_t gap = atomic_load_explicit(&l->gap, memory_order_relaxed);
  gap = is_changed || !gap ? TRIES : gap < LOOK_AGAIN ? 2 * gap : gap;
  atomic_store_explicit(&l->gap, gap, memory_order_relaxed);
  atomic_store_explicit(&l->trial, run + gap, memory_order_relaxed);
}

// The one that is expected to be faster comes first.
static int is_shared_run(const list *l, uint32_t run, purpose why, uint64_t serial, uint64_t shared) {
  int expects = l->expected >= WAKE_NS;
  if (why == FIRST) return expects == (run / 2 % 2 == 0);
  if (!serial || !shared) return !shared;
  return (shared < serial) != (why == TRIAL);
}

// The threads that a run gets, this one included; more than 1: the pool is taken.
static uint32_t take_threads(const list *l, uint32_t most, uint64_t serial) {
  uint64_t fed = 1 + serial / FED_NS;
  uint32_t threads = most < MAX_THREADS ? most : MAX_THREADS;
  if (serial && fed < threads) threads = (uint32_t)fed;
  if (threads < 2 || atomic_flag_test_and_set_explicit(&pool.taken, memory_order_acquire)) return 1;
  if (pool.threads + 1 < threads) start_threads(threads - 1);
  if (pool.threads + 1 < threads) threads = pool.threads + 1;
  if (threads > 1 && has_local_memory(l->local_memory)) return threads;
  atomic_flag_clear_explicit(&pool.taken, memory_order_release);
  return 1;
}

// In as many threads as pay. What is short for one thread is not measured any more.
static int run_measured(const job *j, uint32_t most) {
  list *l = j->of;
  uint32_t run = atomic_fetch_add_explicit(&l->runs, 1, memory_order_relaxed);
  uint64_t serial = atomic_load_explicit(&l->serial, memory_order_relaxed);
  if (serial && serial < SHORT_NS && run >= TRIES) return run_alone(j);
  uint64_t shared = atomic_load_explicit(&l->shared, memory_order_relaxed);
  purpose why = purpose_of(l, run);
  uint32_t trial = atomic_load_explicit(&l->trial, memory_order_relaxed);
  uint32_t threads = is_shared_run(l, run, why, serial, shared) ? take_threads(l, most, serial) : 1;
  uint64_t begun = now();
  int failed = threads > 1 ? run_shared(j, threads, serial ? serial : l->expected) : run_alone(j);
  // The first run of a trial finds its data in another core's cache.
  if (why != TRIAL || run != trial) learn(threads > 1 ? &l->shared : &l->serial, now() - begun, why);
  int is_changed = (shared < serial) != (atomic_load(&l->shared) < atomic_load(&l->serial));
  int is_tried = why == FIRST ? run == TRIES - 1 : (int32_t)(run - trial) > 0;
  if (is_tried || (is_changed && why == USUAL)) plan_trial(l, run, is_changed);
  if (threads > 1) atomic_flag_clear_explicit(&pool.taken, memory_order_release);
  return failed;
}

// Runs a job in at most ``threads`` threads. Not 0: the code failed.
API int launcher_run(void *memory, uint32_t threads) {
  const job *j = memory;
  rounding before = set_rounding();
  int failed = j->of->is_divisible && threads > 1 ? run_measured(j, threads) : run_alone(j);
  restore_rounding(before);
  return failed;
}

// What was measured of a list: ns of a run in one thread and in several, 0 if unknown.
API void launcher_times(list *it, uint64_t times[2]) {
  times[0] = atomic_load_explicit(&it->serial, memory_order_relaxed);
  times[1] = atomic_load_explicit(&it->shared, memory_order_relaxed);
}
