// Executes a kernel's workgroups, one after the other, a wave at a time up to its next barrier.
//
// No time, no caches, no order between workgroups. Memory operations take effect at once, but what they load counts as
// missing until the code has waited for it; loads into LDS take effect when they have been waited for.
//
// A run stops again and again for its caller, who may end it: code that does not end is nothing to wait for.

#include "core.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "numbers.h"

typedef union {
  uint32_t u[LANES];
  int32_t i[LANES];
  float f[LANES];
  uint64_t U[LANES];
  int64_t I[LANES];
  double F[LANES];
} lanes64;

typedef struct {
  uint32_t address[LANES];
  uint8_t data[LANES][16];
  uint64_t mask, sequence;
  uint32_t size;
} lds_write;

enum { MAX_DEFERRED = 64 };
enum { LDS_BLOCK = 256 };  // divides what the chips allocate in: 512 bytes, gfx950 1280

typedef struct {
  uint8_t *bytes;
  uint32_t *writer, *reader;  // epoch << 8 | wave + 1; writer + 128: by atomics only; 255: several waves
  uint32_t size, room, epoch;  // bytes asked for, and allocated
} local_memory;

typedef struct {
  uint32_t v[VECTORS][LANES];
  uint32_t s[SCALARS];
  uint64_t exec;
  uint32_t scc;
  int32_t pc, number, ended;
  uint32_t flush;
  int32_t index_on;
  uint32_t index;
  uint64_t vector_wait[VECTORS], vector_local_wait[VECTORS], scalar_wait[SCALARS];
  uint64_t far_issued, far_done, near_issued, near_done, scalar_last, lds_written_last;
  lds_write *deferred;
  uint32_t deferred_count;
  uint8_t *private_bytes;
  int64_t executed;
} wave;

typedef struct {
  const kernel *k;
  memory *m;
  local_memory lds;
  const instruction *at;
  wave *w;
  uint32_t place[3];
  int64_t left;  // what may be executed until the run stops for its caller
} context;

static int fail(context *c, int status, const char *format, ...) {
  char text[256];
  va_list list;
  va_start(list, format);
  vsnprintf(text, sizeof text, format, list);
  va_end(list);
  int32_t pc = c->at ? (int32_t)(c->at - c->k->code) : -1;
  snprintf(c->k->message, c->k->message_size, "%s; instruction %d, wave %d, workgroup (%u, %u, %u)", text, pc,
           c->w ? c->w->number : -1, c->place[0], c->place[1], c->place[2]);
  return status;
}

#define HAZARD_IF(condition, ...) \
  do {                            \
    if (condition) return fail(c, HAZARD, __VA_ARGS__); \
  } while (0)
#define UNMODELLED_IF(condition, ...) \
  do {                                \
    if (condition) return fail(c, UNMODELLED, __VA_ARGS__); \
  } while (0)

// ------------------------------------------------------------ arithmetic tables

typedef void (*vector_function)(lanes64 *d, const lanes64 *a, const lanes64 *b, const lanes64 *c, const lanes64 *e);
typedef uint64_t (*scalar_function)(uint64_t a, uint64_t b, uint64_t d, uint32_t *scc, uint64_t *exec);

#define du d->u[l]
#define di d->i[l]
#define df d->f[l]
#define dU d->U[l]
#define dI d->I[l]
#define dF d->F[l]
#define au a->u[l]
#define ai a->i[l]
#define af a->f[l]
#define aU a->U[l]
#define aI a->I[l]
#define aF a->F[l]
#define bu b->u[l]
#define bi b->i[l]
#define bf b->f[l]
#define bU b->U[l]
#define bI b->I[l]
#define bF b->F[l]
#define cu c->u[l]
#define ci c->i[l]
#define cf c->f[l]
#define cU c->U[l]
#define cF c->F[l]

#define V(name, signature, ...)                                                                              \
  static void f_##name(lanes64 *restrict d, const lanes64 *a, const lanes64 *b, const lanes64 *c, const lanes64 *e) { \
    (void)a, (void)b, (void)c, (void)e;                                                                       \
    for (int l = 0; l < LANES; l++) { __VA_ARGS__; }                                                          \
  }
#include "vector.def"

#define COMPARISONS(F)                                                                                              \
  F(lt, A < B) F(eq, A == B) F(le, A <= B) F(gt, A > B) F(ge, A >= B)
#define INTEGER_COMPARISONS(F) COMPARISONS(F) F(ne, A != B) F(t, 1) F(f, 0)
#define FLOAT_COMPARISONS(F)                                                                                        \
  COMPARISONS(F) F(lg, A < B || A > B) F(o, A == A && B == B) F(u, A != A || B != B) F(nge, !(A >= B))              \
  F(nlg, !(A < B || A > B)) F(ngt, !(A > B)) F(nle, !(A <= B)) F(neq, !(A == B)) F(nlt, !(A < B)) F(tru, 1) F(f, 0)

#define C(type, member, op, expression) V(v_cmp_##op##_##type, "", { __typeof__(a->member[0]) A = a->member[l], B = b->member[l]; (void)A, (void)B; du = (expression); })
#define C_U32(op, x) C(u32, u, op, x)
#define C_I32(op, x) C(i32, i, op, x)
#define C_U16(op, x) C(u16, u, op, x)
#define C_I16(op, x) C(i16, i, op, x)
#define C_U64(op, x) C(u64, U, op, x)
#define C_I64(op, x) C(i64, I, op, x)
#define C_F32(op, x) C(f32, f, op, x)
#define C_F16(op, x) C(f16, f, op, x)
#define C_F64(op, x) C(f64, F, op, x)
#define ALL_COMPARISONS                                                                                             \
  INTEGER_COMPARISONS(C_U32) INTEGER_COMPARISONS(C_I32) INTEGER_COMPARISONS(C_U16) INTEGER_COMPARISONS(C_I16)       \
  INTEGER_COMPARISONS(C_U64) INTEGER_COMPARISONS(C_I64) FLOAT_COMPARISONS(C_F32) FLOAT_COMPARISONS(C_F16)           \
  FLOAT_COMPARISONS(C_F64)
ALL_COMPARISONS

#undef V
#undef C
#define V(name, signature, ...) {#name, signature, f_##name},
#define C(type, member, op, expression) {"v_cmp_" #op "_" #type, "m=" KIND_##type KIND_##type, f_v_cmp_##op##_##type},
#define KIND_u32 "u"
#define KIND_i32 "i"
#define KIND_u16 "w"
#define KIND_i16 "s"
#define KIND_u64 "U"
#define KIND_i64 "I"
#define KIND_f32 "f"
#define KIND_f16 "h"
#define KIND_f64 "F"
static const struct { const char *name, *signature; vector_function function; } vector_table[] = {
#include "vector.def"
    ALL_COMPARISONS
};

#define S(name, signature, ...)                                                                       \
  static uint64_t s_##name(uint64_t a, uint64_t b, uint64_t d, uint32_t *flag, uint64_t *exec) {     \
    uint32_t scc = *flag;                                                                             \
    uint64_t lanes = *exec;                                                                           \
    (void)b;                                                                                          \
    __VA_ARGS__;                                                                                      \
    *flag = scc, *exec = lanes;                                                                       \
    return d;                                                                                         \
  }
#include "scalar.def"
#undef S
#define S(name, signature, ...) {#name, signature, s_##name},
static const struct { const char *name, *signature; scalar_function function; } scalar_table[] = {
#include "scalar.def"
};

#define COUNT(table) (int)(sizeof table / sizeof *table)
#ifndef EMULATOR_VERSION
#define EMULATOR_VERSION ""
#endif
const char *emulator_version(void) { return EMULATOR_VERSION; }  // a hash of the sources
int emulator_vectors(void) { return COUNT(vector_table); }
int emulator_scalars(void) { return COUNT(scalar_table); }
const char *emulator_vector(int n, const char **signature) { return *signature = vector_table[n].signature, vector_table[n].name; }
const char *emulator_scalar(int n, const char **signature) { return *signature = scalar_table[n].signature, scalar_table[n].name; }
int emulator_sizes(int n) {
  const int sizes[] = {sizeof(operand), sizeof(instruction), sizeof(memory), sizeof(kernel)};
  return sizes[n];
}

// ------------------------------------------------------------ operands

static inline uint32_t flushed(uint32_t u) { return (u & 0x7f800000u) ? u : u & 0x80000000u; }

static inline uint32_t selected(uint32_t u, int select, int extend) {
  if (select == 6) return u;
  if (select < 4) {
    u = u >> 8 * select & 255;
    return extend ? (uint32_t)(int32_t)(int8_t)u : u;
  }
  u = u >> 16 * (select - 4) & 0xffff;
  return extend ? (uint32_t)(int32_t)(int16_t)u : u;
}

static inline uint64_t scalar_value(const wave *w, const operand *o) {
  switch (o->kind) {
    case SCALAR: return o->words == 2 ? w->s[o->index] | (uint64_t)w->s[o->index + 1] << 32 : w->s[o->index];
    case CONSTANT: return o->value;
    case EXEC: return o->words == 2 ? w->exec : (uint32_t)w->exec;
    case EXEC_HIGH: return w->exec >> 32;
    case CONDITION: return o->index == 0 ? w->scc : o->index == 1 ? !(w->s[VCC] | w->s[VCC + 1]) : !w->exec;
  }
  return 0;
}

static inline void put_scalar(wave *w, const operand *o, uint64_t value) {
  switch (o->kind) {
    case SCALAR:
      w->s[o->index] = (uint32_t)value;
      if (o->words == 2) w->s[o->index + 1] = (uint32_t)(value >> 32);
      break;
    case EXEC:
      w->exec = o->words == 2 ? value : (w->exec & ~0xffffffffull) | (uint32_t)value;
      break;
    case EXEC_HIGH: w->exec = (uint32_t)w->exec | value << 32; break;
  }
}

// Word `word` of a source in all lanes, DPP applied; `room` is used if it has to be made.
static const uint32_t *words_of(wave *w, const instruction *n, const operand *o, int number, int word, uint32_t *room) {
  if (o->kind == VECTOR) {
    uint32_t index = o->index + word;
    if (w->index_on >> number & 1) index = (index + w->index) & (VECTORS - 1);
    const uint32_t *from = w->v[index];
    if (!n->moved || number) return from;
    for (int l = 0; l < LANES; l++) {
      int source = n->lanes[l];
      room[l] = source < 0 || !(w->exec >> source & 1) ? 0 : from[source];
    }
    return room;
  }
  uint32_t value = (uint32_t)(scalar_value(w, o) >> 32 * word);
  if (o->kind == SCALAR && o->words > 2) value = w->s[o->index + word];
  for (int l = 0; l < LANES; l++) room[l] = value;
  return room;
}

static const lanes64 *fetch(wave *w, const instruction *n, const operand *o, int number, char kind, lanes64 *out) {
  uint32_t rooms[2][LANES];
  const uint32_t *low = words_of(w, n, o, number, 0, rooms[0]);
  int plain = o->select == 6 && !o->flags;
  switch (kind) {
    case 'u': case 'i': case 'm':
      if (plain && low != rooms[0]) return (const lanes64 *)low;
      if (plain) { memcpy(out->u, low, sizeof rooms[0]); return out; }
      for (int l = 0; l < LANES; l++) out->u[l] = selected(low[l], o->select, o->flags & SIGN_EXTENDED);
      return out;
    case 'f':
      if (plain && low != rooms[0] && !w->flush) return (const lanes64 *)low;
      for (int l = 0; l < LANES; l++) {
        uint32_t u = selected(low[l], o->select, 0);
        if (o->flags & ABSOLUTE) u &= 0x7fffffffu;
        if (o->flags & NEGATIVE) u ^= 0x80000000u;
        out->u[l] = w->flush ? flushed(u) : u;
      }
      return out;
    case 'h':
      for (int l = 0; l < LANES; l++) {
        uint32_t u = selected(low[l], o->select, 0) & 0xffff;
        if (o->flags & ABSOLUTE) u &= 0x7fff;
        if (o->flags & NEGATIVE) u ^= 0x8000;
        out->f[l] = half_to_float(u);
      }
      return out;
    case 'w':
      for (int l = 0; l < LANES; l++) {
        uint32_t u = selected(low[l], o->select, o->flags & SIGN_EXTENDED) & 0xffff;
        if (o->flags & ABSOLUTE) u &= 0x7fff;
        if (o->flags & NEGATIVE) u ^= 0x8000;
        out->u[l] = u;
      }
      return out;
    case 's':
      for (int l = 0; l < LANES; l++) out->i[l] = (int16_t)selected(low[l], o->select, o->flags & SIGN_EXTENDED);
      return out;
    default: {  // 64 bits
      const uint32_t *high = words_of(w, n, o, number, 1, rooms[1]);
      for (int l = 0; l < LANES; l++) {
        uint64_t u = low[l] | (uint64_t)high[l] << 32;
        if (o->flags & ABSOLUTE) u &= ~(1ull << 63);
        if (o->flags & NEGATIVE) u ^= 1ull << 63;
        out->U[l] = u;
      }
      return out;
    }
  }
}

// The lanes whose result is written.
static uint64_t written_lanes(const wave *w, const instruction *n) {
  uint64_t mask = w->exec;
  if (!n->moved) return mask;
  for (int l = 0; l < LANES; l++) {
    int enabled = (n->rows >> l / 16 & 1) && (n->banks >> (l % 16) / 4 & 1);
    int source = n->lanes[l];
    int valid = source >= 0 && (w->exec >> source & 1);
    if (!enabled || (!valid && !(n->flags & ZERO_INVALID))) mask &= ~(1ull << l);
  }
  return mask;
}

static void put_words(wave *w, uint32_t index, const uint32_t *values, uint64_t mask) {
  uint32_t *to = w->v[index];
  if (mask == ~0ull) {
    memcpy(to, values, LANES * 4);
    return;
  }
  for (int l = 0; l < LANES; l++) to[l] = mask >> l & 1 ? values[l] : to[l];
}

static inline float clamped(float x) { return !(x > 0) ? 0.0f : x > 1 ? 1.0f : x; }

static void put(wave *w, const instruction *n, char kind, lanes64 *d, uint64_t mask) {
  uint32_t index = n->result[0].index;
  if (w->index_on & 8) index = (index + w->index) & (VECTORS - 1);
  if (kind == 'f' && (n->flags & CLAMP || w->flush)) {
    for (int l = 0; l < LANES; l++) {
      float x = n->flags & CLAMP ? clamped(d->f[l]) : d->f[l];
      d->f[l] = w->flush ? float_of(flushed(bits_of(x))) : x;
    }
  } else if (kind == 'F' && n->flags & CLAMP) {
    for (int l = 0; l < LANES; l++) d->F[l] = !(d->F[l] > 0) ? 0.0 : d->F[l] > 1 ? 1.0 : d->F[l];
  }
  if (kind == 'U' || kind == 'I' || kind == 'F') {
    uint32_t words[2][LANES];
    for (int l = 0; l < LANES; l++) words[0][l] = (uint32_t)d->U[l], words[1][l] = (uint32_t)(d->U[l] >> 32);
    put_words(w, index, words[0], mask);
    put_words(w, (index + 1) & (VECTORS - 1), words[1], mask);
    return;
  }
  int narrow = kind == 'h' || kind == 'w' || kind == 's';
  if (kind == 'h')
    for (int l = 0; l < LANES; l++) d->u[l] = float_to_half(n->flags & CLAMP ? clamped(d->f[l]) : d->f[l]);
  const uint32_t *old = w->v[index];
  if (n->result_select != 6) {  // SDWA: a byte or a half of the destination
    int bits = n->result_select < 4 ? 8 : 16;
    int shift = n->result_select < 4 ? 8 * n->result_select : 16 * (n->result_select - 4);
    uint32_t part = ((1ull << bits) - 1) << shift;
    for (int l = 0; l < LANES; l++) {
      uint32_t value = d->u[l] << shift & part;
      if (n->result_unused == 2) value |= old[l] & ~part;
      if (n->result_unused == 1 && value >> (shift + bits - 1) & 1) value |= ~(part | (part - 1));
      d->u[l] = value;
    }
  } else if (narrow && n->flags & RESULT_HIGH) {
    for (int l = 0; l < LANES; l++) d->u[l] = (old[l] & 0xffff) | d->u[l] << 16;
  } else if (narrow && n->flags & KEEP_HIGH) {
    for (int l = 0; l < LANES; l++) d->u[l] = (old[l] & 0xffff0000u) | (d->u[l] & 0xffff);
  } else if (narrow) {
    for (int l = 0; l < LANES; l++) d->u[l] &= 0xffff;
  }
  put_words(w, index, d->u, mask);
}

static uint64_t as_mask(const lanes64 *d) {
  uint64_t mask = 0;
  for (int l = 0; l < LANES; l++) mask |= (uint64_t)(d->u[l] != 0) << l;
  return mask;
}

static void vector_arithmetic(wave *w, const instruction *n) {
  lanes64 rooms[4], result;
  const lanes64 *sources[4] = {rooms, rooms, rooms, rooms};
  const char *kinds = n->signature + 2;
  for (int i = 0; i < n->sources; i++) sources[i] = fetch(w, n, &n->source[i], i, kinds[i], &rooms[i]);
  vector_table[n->function].function(&result, sources[0], sources[1], sources[2], sources[3]);
  if (n->signature[0] == 'm') {
    uint64_t mask = as_mask(&result) & w->exec;
    put_scalar(w, &n->result[0], mask);
    if (n->numbers[0]) w->exec = mask;  // v_cmpx
    return;
  }
  put(w, n, n->signature[0], &result, written_lanes(w, n));
}

// Two results at once: of the halves of a word, or, for 32-bit kinds, of the words of a pair.
static void packed_arithmetic(wave *w, const instruction *n) {
  lanes64 rooms[3], results[2];
  const lanes64 *sources[3] = {rooms, rooms, rooms};
  char kind = n->signature[0];
  int wide = kind == 'f' || kind == 'u';
  for (int part = 0; part < 2; part++) {
    int chosen = part ? n->op_sel_hi : n->op_sel, negated = part ? n->neg_hi : n->neg_lo;
    for (int i = 0; i < n->sources; i++) {
      operand o = n->source[i];
      int high = chosen >> i & 1;
      if (negated >> i & 1) o.flags |= NEGATIVE;
      if (wide && o.kind != CONSTANT) o.index += high, o.words = 1;
      if (wide && o.kind == CONSTANT) o.value = high ? o.value >> 32 : (uint32_t)o.value;
      if (!wide) o.select = 4 + high;
      sources[i] = fetch(w, n, &o, i, kind, &rooms[i]);
    }
    vector_table[n->function].function(&results[part], sources[0], sources[1], sources[2], sources[2]);
    for (int l = 0; l < LANES; l++) {
      if (kind == 'h') results[part].u[l] = float_to_half(n->flags & CLAMP ? clamped(results[part].f[l]) : results[part].f[l]);
      else if (kind == 'f' && n->flags & CLAMP) results[part].f[l] = clamped(results[part].f[l]);
    }
  }
  if (wide) {
    put_words(w, n->result[0].index, results[0].u, w->exec);
    put_words(w, n->result[0].index + 1, results[1].u, w->exec);
    return;
  }
  for (int l = 0; l < LANES; l++) results[0].u[l] = (results[0].u[l] & 0xffff) | results[1].u[l] << 16;
  put_words(w, n->result[0].index, results[0].u, w->exec);
}

// numbers[0]: 0 single result, 1 low half, 2 high half. Sources are float32, or a half where op_sel_hi says so.
static void mixed_fma(wave *w, const instruction *n) {
  lanes64 rooms[3], result;
  const lanes64 *sources[3];
  for (int i = 0; i < 3; i++) {
    operand o = n->source[i];
    int half = n->op_sel_hi >> i & 1;
    if (half) o.select = 4 + (n->op_sel >> i & 1);
    if (n->neg_lo >> i & 1) o.flags |= NEGATIVE;
    if (n->neg_hi >> i & 1) o.flags |= ABSOLUTE;
    if (half && o.kind == CONSTANT) o.select = 4;
    sources[i] = fetch(w, n, &o, i, half ? 'h' : 'f', &rooms[i]);
  }
  for (int l = 0; l < LANES; l++) {
    float x = fmaf(sources[0]->f[l], sources[1]->f[l], sources[2]->f[l]);
    if (n->flags & CLAMP) x = clamped(x);
    uint32_t old = w->v[n->result[0].index][l];
    if (n->numbers[0] == 0) result.f[l] = x;
    else if (n->numbers[0] == 1) result.u[l] = (old & 0xffff0000u) | float_to_half(x);
    else result.u[l] = (old & 0xffff) | float_to_half(x) << 16;
  }
  put_words(w, n->result[0].index, result.u, w->exec);
}

// numbers[0]: 0 add, 1 subtract, 2 subtract reversed; source[2], if there is one, is the carry.
static void carrying(wave *w, const instruction *n) {
  lanes64 rooms[2], result;
  const lanes64 *a = fetch(w, n, &n->source[0], 0, 'u', &rooms[0]), *b = fetch(w, n, &n->source[1], 1, 'u', &rooms[1]);
  if (n->numbers[0] == 2) { const lanes64 *t = a; a = b; b = t; }
  uint64_t more = n->sources > 2 ? scalar_value(w, &n->source[2]) : 0, out = 0;
  for (int l = 0; l < LANES; l++) {
    uint64_t x = a->u[l], y = (uint64_t)b->u[l] + (more >> l & 1);
    uint64_t total = n->numbers[0] ? x - y : x + y;
    out |= (uint64_t)(n->numbers[0] ? y > x : total >> 32 != 0) << l;
    result.u[l] = (uint32_t)total;
  }
  uint64_t exec = w->exec, mask = written_lanes(w, n);
  put_scalar(w, &n->result[1], out & exec);
  put(w, n, 'u', &result, mask);
}

// v_mad_u64_u32, v_mad_i64_i32 (numbers[0])
static void wide_mad(wave *w, const instruction *n) {
  lanes64 rooms[3], result;
  const lanes64 *a = fetch(w, n, &n->source[0], 0, 'u', &rooms[0]), *b = fetch(w, n, &n->source[1], 1, 'u', &rooms[1]);
  const lanes64 *c = fetch(w, n, &n->source[2], 2, 'U', &rooms[2]);
  uint64_t out = 0;
  for (int l = 0; l < LANES; l++) {
    uint64_t product = n->numbers[0] ? (uint64_t)((int64_t)a->i[l] * b->i[l]) : (uint64_t)a->u[l] * b->u[l];
    result.U[l] = product + c->U[l];
    out |= (uint64_t)(result.U[l] < product) << l;
  }
  put_scalar(w, &n->result[1], out & w->exec);
  put(w, n, 'U', &result, w->exec);
}

static void select_lanes(wave *w, const instruction *n) {
  lanes64 rooms[2], result;
  char kind = n->signature[0];
  const lanes64 *a = fetch(w, n, &n->source[0], 0, kind, &rooms[0]), *b = fetch(w, n, &n->source[1], 1, kind, &rooms[1]);
  uint64_t mask = scalar_value(w, &n->source[2]);
  for (int l = 0; l < LANES; l++) result.u[l] = mask >> l & 1 ? b->u[l] : a->u[l];
  put(w, n, 'u', &result, written_lanes(w, n));
}

static void scale_division(wave *w, const instruction *n) {
  lanes64 rooms[3], result;
  char kind = n->signature[0];
  const lanes64 *s[3];
  for (int i = 0; i < 3; i++) s[i] = fetch(w, n, &n->source[i], i, kind, &rooms[i]);
  uint64_t out = 0;
  for (int l = 0; l < LANES; l++) {
    uint32_t flag;
    if (kind == 'f') result.f[l] = div_scale_f32(s[0]->f[l], s[1]->f[l], s[2]->f[l], &flag);
    else result.F[l] = div_scale_f64(s[0]->F[l], s[1]->F[l], s[2]->F[l], &flag);
    out |= (uint64_t)flag << l;
  }
  put_scalar(w, &n->result[1], out & w->exec);
  put(w, n, kind, &result, w->exec);
}

static void finish_division(wave *w, const instruction *n) {
  lanes64 rooms[3], result;
  char kind = n->signature[0];
  const lanes64 *s[3];
  for (int i = 0; i < 3; i++) s[i] = fetch(w, n, &n->source[i], i, kind, &rooms[i]);
  uint64_t flags = w->s[VCC] | (uint64_t)w->s[VCC + 1] << 32;
  for (int l = 0; l < LANES; l++) {
    if (kind == 'f') result.f[l] = div_fmas_f32(s[0]->f[l], s[1]->f[l], s[2]->f[l], flags >> l & 1);
    else result.F[l] = div_fmas_f64(s[0]->F[l], s[1]->F[l], s[2]->F[l], flags >> l & 1);
  }
  put(w, n, kind, &result, w->exec);
}

static void move_pair(wave *w, const instruction *n) {
  uint32_t rooms[2][LANES], words[2][LANES];
  for (int i = 0; i < 2; i++) {
    int word = (i ? n->op_sel >> 1 : n->op_sel) & 1;
    memcpy(words[i], words_of(w, n, &n->source[i], i, word, rooms[i]), sizeof words[i]);
  }
  put_words(w, n->result[0].index, words[0], w->exec);
  put_words(w, n->result[0].index + 1, words[1], w->exec);
}

static int first_lane(const wave *w) { return w->exec ? __builtin_ctzll(w->exec) : 0; }

static void exchange_halves(wave *w, const instruction *n) {  // v_permlane16_swap_b32, v_permlane32_swap_b32: numbers[0]
  uint32_t *a = w->v[n->result[0].index], *b = w->v[n->source[0].index];
  int size = n->numbers[0];
  for (int l = 0; l < LANES; l++) {
    if (!(l & size)) continue;
    // upper rows of the first register change places with lower rows of the second
    int low = l - size;
    if (!(w->exec >> l & 1) || !(w->exec >> low & 1)) continue;
    uint32_t t = a[l];
    a[l] = b[low];
    b[low] = t;
  }
}

// v_cvt of 8-bit floats. numbers: [0] exponent bits, [1] fraction bits, [2] fnuz, [3] 0: to float, 1: two to float,
// 2: two floats to a half of the result, 3: one to a byte, stochastically is not modelled; [4] which byte or half
static void small_floats(wave *w, const instruction *n) {
  lanes64 rooms[2], result, second;
  const int *p = n->numbers;
  uint32_t index = n->result[0].index;
  if (p[3] < 2) {
    const lanes64 *a = fetch(w, n, &n->source[0], 0, 'u', &rooms[0]);
    for (int l = 0; l < LANES; l++) {
      uint32_t u = a->u[l] >> p[4];
      result.f[l] = small_to_float(u & 255, p[0], p[1], p[2]);
      second.f[l] = small_to_float(u >> 8 & 255, p[0], p[1], p[2]);
    }
    put_words(w, index, result.u, w->exec);
    if (p[3] == 1) put_words(w, index + 1, second.u, w->exec);
    return;
  }
  const lanes64 *a = fetch(w, n, &n->source[0], 0, 'f', &rooms[0]), *b = fetch(w, n, &n->source[1], 1, 'f', &rooms[1]);
  for (int l = 0; l < LANES; l++) {
    uint32_t pair = float_to_small(a->f[l], p[0], p[1], p[2]) | float_to_small(b->f[l], p[0], p[1], p[2]) << 8;
    result.u[l] = (w->v[index][l] & ~(0xffffu << p[4])) | pair << p[4];
  }
  put_words(w, index, result.u, w->exec);
}

#include "matrix.h"
#include "transfer.h"

// ------------------------------------------------------------ control

enum {
  H_VECTOR, H_PACKED, H_MIXED, H_CARRY, H_WIDE_MAD, H_SELECT, H_DIV_SCALE, H_DIV_FMAS, H_MOVE_PAIR, H_FIRST_LANE,
  H_READ_LANE, H_WRITE_LANE, H_SWAP, H_SMALL, H_MATRIX, H_SCALAR, H_BRANCH, H_END, H_BARRIER, H_WAIT,
  H_NOTHING, H_INDEX_ON, H_INDEX_OFF, H_MODE, H_LOAD_SCALAR, H_FAR, H_BUFFER, H_PRIVATE, H_LOCAL, H_PERMUTE, H_SWIZZLE,
  H_LOCAL_TRANSPOSED, H_LOCAL_ATOMIC, H_FAR_ATOMIC, H_BUFFER_ATOMIC, H_EXCHANGE, H_PC,
  H_BUFFER_SCALAR, H_MBCNT
};
static const char *const handler_names[] = {
    "vector", "packed", "mixed", "carry", "wide_mad", "select", "div_scale", "div_fmas", "move_pair", "first_lane",
    "read_lane", "write_lane", "swap", "small", "matrix", "scalar", "branch", "end", "barrier", "wait",
    "nothing", "index_on", "index_off", "mode", "load_scalar", "far", "buffer", "private", "local", "permute", "swizzle",
    "local_transposed", "local_atomic", "far_atomic", "buffer_atomic", "exchange", "pc",
    "buffer_scalar", "mbcnt"};
int emulator_handlers(void) { return COUNT(handler_names); }
const char *emulator_handler(int n) { return handler_names[n]; }

enum { AT_BARRIER = 16, AT_END };

// Whether what was loaded into a register has not come; loads of one kind (`ordered`) come in order.
static int pending(const wave *w, const operand *o, int far_ordered, int near_ordered) {
  if (o->kind == VECTOR) {
    for (uint32_t r = o->index; r < o->index + o->words && r < VECTORS; r++) {
      if (!far_ordered && w->vector_wait[r] > w->far_done) return 1;
      if (!near_ordered && w->vector_local_wait[r] > w->near_done) return 1;
    }
  } else if (o->kind == SCALAR) {
    for (uint32_t r = o->index; r < o->index + o->words && r < SCALARS; r++)
      if (w->scalar_wait[r] > w->near_done) return 1;
  }
  return 0;
}

static int holds(const wave *w, int condition) {
  switch (condition) {
    case 0: return 1;
    case 1: return !w->exec;
    case 2: return w->exec != 0;
    case 3: return !w->scc;
    case 4: return w->scc != 0;
    case 5: return !(w->s[VCC] | w->s[VCC + 1]);
    default: return (w->s[VCC] | w->s[VCC + 1]) != 0;
  }
}

// At most `far` transfers of memory and `near` others are under way from here on.
static int wait_for(context *c, uint64_t far, uint64_t near) {
  wave *w = c->w;
  if (w->far_issued > far && w->far_issued - far > w->far_done) {
    w->far_done = w->far_issued - far;
    int status = finish_lds_loads(c);
    if (status) return status;
  }
  // Scalar loads come in any order, so only waiting for all tells anything while one is under way.
  int scalars = w->scalar_last > w->near_done;
  if ((near == 0 || !scalars) && w->near_issued > near && w->near_issued - near > w->near_done)
    w->near_done = w->near_issued - near;
  return RIGHT;
}

// The counters of transfers under way end at 63 and 15; what would pass that waits for the oldest.
static int wait_for_room(context *c, int handler) {
  switch (handler) {
    case H_FAR: case H_BUFFER: case H_PRIVATE: case H_FAR_ATOMIC: case H_BUFFER_ATOMIC:
      return wait_for(c, 62, UINT64_MAX);
    case H_LOCAL: case H_LOCAL_TRANSPOSED: case H_LOCAL_ATOMIC: case H_PERMUTE: case H_SWIZZLE:
      return wait_for(c, UINT64_MAX, 14);
    default: return RIGHT;
  }
}

// A register that an index adds to: the sum must be a register of the same kind, and what was loaded must have come.
static int check_indexed(context *c, const operand *given, int bit) {
  wave *w = c->w;
  if (given->kind != VECTOR || !(w->index_on >> bit & 1)) return RIGHT;
  operand o = *given;
  o.index += w->index;
  HAZARD_IF(o.index / ACCUMULATORS != given->index / ACCUMULATORS || o.index % ACCUMULATORS + o.words > ACCUMULATORS,
            "an index of %u from register %u on", w->index, given->index);
  HAZARD_IF(pending(w, &o, 0, 0), "a register is used before what was loaded has come");
  return RIGHT;
}

static int check_indices(context *c, const instruction *n) {
  int status = RIGHT;
  for (int i = 0; i < n->sources && i < 3 && !status; i++) status = check_indexed(c, &n->source[i], i);
  return status || !n->results ? status : check_indexed(c, &n->result[0], 3);
}

// What an instruction takes, in units of plain ones.
static int64_t cost(const instruction *n) {
  return n->handler == H_MATRIX ? 1 + (int64_t)n->numbers[0] * n->numbers[0] * n->numbers[1] * n->numbers[2] / LANES : 1;
}

static int step(context *c) {
  wave *w = c->w;
  const instruction *n = c->at = &c->k->code[w->pc];
  if (w->far_done < w->far_issued || w->near_done < w->near_issued) {
    for (int i = 0; i < n->sources; i++)
      HAZARD_IF(pending(w, &n->source[i], 0, 0), "a register is used before what was loaded has come");
    int far = n->handler == H_FAR || n->handler == H_BUFFER || n->handler == H_PRIVATE, near = n->handler == H_LOCAL;
    for (int i = 0; i < n->results; i++)
      HAZARD_IF(pending(w, &n->result[i], far, near), "a register is used before what was loaded has come");
    int status = wait_for_room(c, n->handler);
    if (status) return status;
  }
  if (w->index_on) {
    int status = check_indices(c, n);
    if (status) return status;
  }
  c->k->counts[w->pc]++;
  int64_t taken = cost(n);
  c->left -= taken;
  w->executed += taken;
  HAZARD_IF(w->executed > c->k->limit, "no end after %lld instructions", (long long)c->k->limit);
  w->pc++;
  switch (n->handler) {
    case H_VECTOR: vector_arithmetic(w, n); break;
    case H_PACKED: packed_arithmetic(w, n); break;
    case H_MIXED: mixed_fma(w, n); break;
    case H_CARRY: carrying(w, n); break;
    case H_WIDE_MAD: wide_mad(w, n); break;
    case H_SELECT: select_lanes(w, n); break;
    case H_DIV_SCALE: scale_division(w, n); break;
    case H_DIV_FMAS: finish_division(w, n); break;
    case H_MOVE_PAIR: move_pair(w, n); break;
    case H_FIRST_LANE: {
      uint32_t room[LANES];
      put_scalar(w, &n->result[0], words_of(w, n, &n->source[0], 0, 0, room)[first_lane(w)]);
      break;
    }
    case H_READ_LANE:
      put_scalar(w, &n->result[0], w->v[n->source[0].index][scalar_value(w, &n->source[1]) & 63]);
      break;
    case H_WRITE_LANE:
      w->v[n->result[0].index][scalar_value(w, &n->source[1]) & 63] = (uint32_t)scalar_value(w, &n->source[0]);
      break;
    case H_SWAP: {
      uint32_t *a = w->v[n->result[0].index], *b = w->v[n->source[0].index];
      for (int l = 0; l < LANES; l++)
        if (w->exec >> l & 1) { uint32_t t = a[l]; a[l] = b[l]; b[l] = t; }
      break;
    }
    case H_EXCHANGE: exchange_halves(w, n); break;
    case H_SMALL: small_floats(w, n); break;
    case H_MATRIX: return multiply(c, n);
    case H_MBCNT: {
      lanes64 rooms[2], result;
      const lanes64 *a = fetch(w, n, &n->source[0], 0, 'u', &rooms[0]), *b = fetch(w, n, &n->source[1], 1, 'u', &rooms[1]);
      for (int l = 0; l < LANES; l++) {
        int at = l - n->numbers[0];
        uint32_t below = at >= 32 ? UINT32_MAX : at <= 0 ? 0 : (1u << at) - 1;
        result.u[l] = (uint32_t)__builtin_popcount(a->u[l] & below) + b->u[l];
      }
      put(w, n, 'u', &result, w->exec);
      break;
    }
    case H_SCALAR: {
      uint64_t a = n->sources > 0 ? scalar_value(w, &n->source[0]) : 0;
      uint64_t b = n->sources > 1 ? scalar_value(w, &n->source[1]) : 0, exec = w->exec;
      uint64_t d = scalar_table[n->function].function(a, b, exec, &w->scc, &exec);
      if (exec != w->exec) w->exec = exec;
      if (n->signature[0] != '-') put_scalar(w, &n->result[0], d);
      break;
    }
    case H_BRANCH:
      if (holds(w, n->numbers[1])) w->pc = n->numbers[0];
      break;
    case H_END: return AT_END;
    case H_BARRIER:
      HAZARD_IF(w->lds_written_last > w->near_done, "a barrier while the wave's own LDS writes are under way");
      return AT_BARRIER;
    case H_WAIT: return wait_for(c, (uint64_t)n->numbers[0], (uint64_t)n->numbers[1]);
    case H_NOTHING: break;
    case H_INDEX_ON:
      w->index_on = n->numbers[0];
      w->index = scalar_value(w, &n->source[0]) & 255;
      w->s[M0] = (w->s[M0] & ~0xf0ffu) | w->index | (uint32_t)n->numbers[0] << 12;
      break;
    case H_INDEX_OFF: w->index_on = 0; break;
    case H_MODE:
      if (n->numbers[0]) w->flush = !n->numbers[1];
      break;
    case H_LOAD_SCALAR: return load_scalar(c, n);
    case H_BUFFER_SCALAR: return load_scalar_buffer(c, n);
    case H_FAR: case H_BUFFER: case H_PRIVATE: return transfer(c, n, n->handler - H_FAR);
    case H_LOCAL: return transfer_local(c, n);
    case H_LOCAL_TRANSPOSED: return read_transposed(c, n);
    case H_LOCAL_ATOMIC: return local_atomic(c, n);
    case H_FAR_ATOMIC: case H_BUFFER_ATOMIC: return far_atomic(c, n, n->handler == H_BUFFER_ATOMIC);
    case H_PERMUTE: return permute(c, n);
    case H_SWIZZLE: return swizzle(c, n);
    case H_PC: put_scalar(w, &n->result[0], 0); break;
    default: return fail(c, UNMODELLED, "handler %d", n->handler);
  }
  return RIGHT;
}

static void start(context *c, wave *w, int number, const uint32_t place[3]) {
  const kernel *k = c->k;
  lds_write *deferred = w->deferred;
  uint8_t *private_bytes = w->private_bytes;
  memset(w, 0, sizeof *w);
  memset(w->v, 0xff, sizeof w->v);
  w->deferred = deferred, w->private_bytes = private_bytes;
  memcpy(w->s, k->scalars, sizeof w->s);
  w->number = number;
  w->flush = (uint32_t)k->flush_f32;
  for (int axis = 0; axis < 3; axis++)
    if (k->workgroup_at[axis] >= 0) w->s[k->workgroup_at[axis]] = place[axis];
  if (k->wave_offset_at >= 0) w->s[k->wave_offset_at] = 0;
  uint32_t items = k->group[0] * k->group[1] * k->group[2];
  for (int l = 0; l < LANES; l++) {
    uint32_t item = (uint32_t)number * LANES + (uint32_t)l;
    uint32_t x = item % k->group[0], y = item / k->group[0] % k->group[1], z = item / (k->group[0] * k->group[1]);
    // Only the axes that the kernel asks for are there: a kernel that does not takes the whole register for x.
    uint32_t wanted_y = k->item_axes > 1 ? y : 0, wanted_z = k->item_axes > 2 ? z : 0;
    w->v[0][l] = k->packed_items ? x | wanted_y << 10 | wanted_z << 20 : x;
    if (!k->packed_items && k->item_axes > 1) w->v[1][l] = y;
    if (!k->packed_items && k->item_axes > 2) w->v[2][l] = z;
    if (item < items) w->exec |= 1ull << l;
  }
  if (k->private_size) memset(private_bytes, 0xff, (size_t)k->private_size * LANES);
}

typedef struct {
  context c;
  wave *waves[MAX_WAVES];
  int count;
  int inside;                 // a workgroup is under way:
  int turn, waiting, ended;   // whose turn it is, how many waves reached their barrier or end
} run;

enum { START = 256 };  // what the start of a wave takes

static void next_epoch(context *c) {
  local_memory *lds = &c->lds;
  if (++lds->epoch >> 24 == 0) return;  // the epochs of bytes have 24 bits
  memset(lds->writer, 0, (size_t)lds->room * 4), memset(lds->reader, 0, (size_t)lds->room * 4);
  lds->epoch = 1;
}

static void start_group(run *r) {
  context *c = &r->c;
  next_epoch(c);
  memset(c->lds.bytes, 0xff, c->lds.room);
  for (int i = 0; i < r->count; i++) start(c, r->waves[i], i, c->place);
  c->left -= (int64_t)r->count * START;
  r->inside = 1;
  r->turn = r->waiting = r->ended = 0;
}

// Up to the wave's next barrier or end, or to where the run stops for its caller.
static int run_wave(context *c) {
  int status = RIGHT;
  while (status == RIGHT) {
    if (c->left <= 0) return STOPPED;
    HAZARD_IF(c->w->pc < 0 || c->w->pc >= c->k->count, "the code ends without s_endpgm");
    status = step(c);
  }
  return status;
}

static int run_group(run *r) {
  context *c = &r->c;
  if (!r->inside) start_group(r);
  for (;;) {
    for (; r->turn < r->count; r->turn++) {
      c->w = r->waves[r->turn];
      int status = run_wave(c);
      if (status == AT_BARRIER) r->waiting++;
      else if (status == AT_END) r->ended++;
      else return status;
    }
    HAZARD_IF(r->waiting && r->ended, "some waves of a workgroup end (%d) while others wait (%d)", r->ended, r->waiting);
    r->inside = r->waiting != 0;
    if (!r->inside) return RIGHT;
    next_epoch(c);
    r->turn = r->waiting = r->ended = 0;
  }
}

void emulator_end(run *r) {
  if (!r) return;
  for (int i = 0; i < r->count; i++)
    if (r->waves[i]) free(r->waves[i]->deferred), free(r->waves[i]->private_bytes), free(r->waves[i]);
  free(r->c.lds.bytes), free(r->c.lds.writer), free(r->c.lds.reader), free(r);
}

static wave *new_wave(const kernel *k) {
  wave *w = calloc(1, sizeof *w);
  if (!w) return 0;
  w->deferred = calloc(MAX_DEFERRED, sizeof(lds_write));
  w->private_bytes = calloc((size_t)(k->private_size ? k->private_size : 1), LANES);
  if (w->deferred && w->private_bytes) return w;
  free(w->deferred), free(w->private_bytes), free(w);
  return 0;
}

// A run of a kernel, at its start; null if there is no memory for it. Kernel and memory must outlive it.
run *emulator_begin(const kernel *k, memory *m) {
  uint32_t items = k->group[0] * k->group[1] * k->group[2];
  size_t room = ((size_t)k->lds_size + LDS_BLOCK - 1) / LDS_BLOCK * LDS_BLOCK, lds = room ? room : 1;
  run *r = calloc(1, sizeof *r);
  if (!r) return 0;
  r->c = (context){.k = k, .m = m};
  r->c.lds = (local_memory){calloc(lds, 1), calloc(lds, 4), calloc(lds, 4), k->lds_size, (uint32_t)room, 0};
  r->count = (int)((items + LANES - 1) / LANES);
  int whole = r->count <= MAX_WAVES && r->c.lds.bytes && r->c.lds.writer && r->c.lds.reader;
  if (!whole) r->count = 0;
  for (int i = 0; i < r->count && whole; i++) whole = (r->waves[i] = new_wave(k)) != 0;
  if (whole) return r;
  emulator_end(r);
  return 0;
}

// Runs until the end, a fault, or until about as many instructions as the caller allows have been executed: STOPPED.
int emulator_go_on(run *r, int64_t instructions) {
  const uint32_t *grid = r->c.k->grid;
  uint32_t *place = r->c.place;
  r->c.left = instructions;
  while (place[2] < grid[2]) {
    if (r->c.left <= 0) return STOPPED;
    int status = run_group(r);
    if (status) return status;
    for (int axis = 0; axis < 3 && ++place[axis] == grid[axis] && axis < 2; axis++) place[axis] = 0;
  }
  return RIGHT;
}
