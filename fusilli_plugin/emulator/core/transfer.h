// Loads and stores: global memory, buffers, private memory, LDS. Included by core.c.
#pragma once

enum { PRIVATE_HIGH = 0x7e57, SWIZZLED = 1u << 31 };  // how the descriptor of private memory is known

static int owned(const memory *m, uint64_t place, uint32_t size) {
  for (uint32_t i = 0; i < size; i++)
    if (!m->owned[place + i]) return 0;
  return 1;
}

// What lies outside all buffers reads as ones (NaN) and is counted: hardware may stop there.
static void read_far(context *c, uint64_t address, uint32_t size, uint8_t *to) {
  memory *m = c->m;
  uint64_t place = address - m->base;
  if (place < m->size && place + size <= m->size && owned(m, place, size)) {
    memcpy(to, m->bytes + place, size);
    return;
  }
  for (uint32_t i = 0; i < size; i++) {
    int held = place + i < m->size && m->owned[place + i];
    to[i] = held ? m->bytes[place + i] : 0xff;
    if (!held && !c->k->events[READ_OUTSIDE]++) c->k->events[FIRST_OUTSIDE] = (uint64_t)(c->at - c->k->code) + 1;
  }
}

static int write_far(context *c, uint64_t address, uint32_t size, const uint8_t *from) {
  memory *m = c->m;
  uint64_t place = address - m->base;
  HAZARD_IF(place >= m->size || place + size > m->size || !owned(m, place, size), "%u bytes written outside all buffers, at %#llx",
            size, (unsigned long long)address);
  memcpy(m->bytes + place, from, size);
  return RIGHT;
}

// The bytes of a lane that go to memory.
static void take(const wave *w, const instruction *n, const operand *o, int l, uint32_t size, uint8_t *to) {
  for (uint32_t word = 0; word < (size + 3) / 4; word++) {
    uint32_t u = w->v[o->index + word][l];
    if (n->flags & HIGH) u >>= 16;
    memcpy(to + 4 * word, &u, size - 4 * word < 4 ? size - 4 * word : 4);
  }
}

// Bytes from memory into the registers of a lane.
static void give(wave *w, const instruction *n, uint32_t index, int l, uint32_t size, const uint8_t *from) {
  if (size >= 4) {
    for (uint32_t word = 0; word < size / 4; word++) memcpy(&w->v[index + word][l], from + 4 * word, 4);
    return;
  }
  uint32_t u = size == 1 ? from[0] : (uint32_t)from[0] | (uint32_t)from[1] << 8;
  if (n->flags & SIGNED) u = size == 1 ? (uint32_t)(int32_t)(int8_t)u : (uint32_t)(int32_t)(int16_t)u;
  uint32_t old = w->v[index][l];
  if (n->flags & D16) u = n->flags & HIGH ? (old & 0xffff) | u << 16 : (old & 0xffff0000u) | (u & 0xffff);
  w->v[index][l] = u;
}

static void far_pending(wave *w, const operand *o) {
  w->far_issued++;
  for (uint32_t r = o->index; o->kind == VECTOR && r < o->index + o->words; r++) w->vector_wait[r] = w->far_issued;
}

static void near_pending(wave *w, const operand *o) {
  w->near_issued++;
  for (uint32_t r = o->index; o->kind == VECTOR && r < o->index + o->words; r++) w->vector_local_wait[r] = w->near_issued;
}

// ------------------------------------------------------------ LDS

static uint32_t owner(const wave *w) { return (uint32_t)w->number + 1; }

static int note_read(context *c, uint32_t address, uint32_t size) {
  local_memory *lds = &c->lds;
  HAZARD_IF((uint64_t)address + size > lds->room, "LDS address %u of %u bytes", address, lds->size);
  uint32_t mine = lds->epoch << 8 | owner(c->w), now = lds->epoch;
  for (uint32_t i = address; i < address + size; i++) {
    uint32_t writer = lds->writer[i], reader = lds->reader[i];
    HAZARD_IF(writer >> 8 == now && (writer & 255) == 255, "LDS at %u is read that several waves changed since the last barrier", i);
    HAZARD_IF(writer >> 8 == now && (writer & 127) != owner(c->w), "LDS at %u is read that wave %d wrote since the last barrier", i,
              (int)(writer & 127) - 1);
    lds->reader[i] = reader >> 8 != now || reader == mine ? mine : now << 8 | 255;
  }
  return RIGHT;
}

static int note_write(context *c, uint32_t address, uint32_t size) {
  local_memory *lds = &c->lds;
  HAZARD_IF((uint64_t)address + size > lds->size, "LDS address %u of %u bytes", address, lds->size);
  uint32_t mine = lds->epoch << 8 | owner(c->w), now = lds->epoch;
  for (uint32_t i = address; i < address + size; i++) {
    uint32_t writer = lds->writer[i], reader = lds->reader[i];
    HAZARD_IF((writer >> 8 == now && (writer & 127) != owner(c->w)) || (reader >> 8 == now && reader != mine),
              "LDS at %u is written that another wave touched since the last barrier", i);
    lds->writer[i] = mine;
  }
  return RIGHT;
}

// Atomics of several waves may meet; other accesses of another wave may not.
static int note_atomic(context *c, uint32_t address, uint32_t size) {
  local_memory *lds = &c->lds;
  HAZARD_IF((uint64_t)address + size > lds->size || address % size, "LDS address %u of %u bytes", address, lds->size);
  uint32_t now = lds->epoch, mine = now << 8 | owner(c->w);
  for (uint32_t i = address; i < address + size; i++) {
    uint32_t writer = lds->writer[i] >> 8 == now ? lds->writer[i] & 255 : 0, reader = lds->reader[i];
    int own = !writer || (writer & 127) == owner(c->w);
    HAZARD_IF((!own && writer < 128) || (reader >> 8 == now && reader != mine),
              "LDS at %u is changed that another wave touched since the last barrier", i);
    if (!own) lds->writer[i] = now << 8 | 255;
    else if (!writer) lds->writer[i] = now << 8 | 128 | owner(c->w);  // else it is as it was: what is written once stays so
  }
  return RIGHT;
}

// Loads into LDS that have come: they were waited for.
static int finish_lds_loads(context *c) {
  wave *w = c->w;
  uint32_t kept = 0;
  for (uint32_t i = 0; i < w->deferred_count; i++) {
    lds_write *d = &w->deferred[i];
    if (d->sequence > w->far_done) {
      if (kept != i) w->deferred[kept] = *d;
      kept++;
      continue;
    }
    for (int l = 0; l < LANES; l++) {
      if (!(d->mask >> l & 1)) continue;
      int status = note_write(c, d->address[l], d->size);
      if (status) return status;
      memcpy(c->lds.bytes + d->address[l], d->data[l], d->size);
    }
  }
  w->deferred_count = kept;
  return RIGHT;
}

// numbers: [0] bytes, [1], [3] offsets in bytes, [2] 1: read; TWICE: two places
static int transfer_local(context *c, const instruction *n) {
  wave *w = c->w;
  uint32_t room[LANES], size = (uint32_t)n->numbers[0];
  const uint32_t *base = words_of(w, n, &n->source[0], 0, 0, room);
  int count = n->flags & TWICE ? 2 : 1;
  uint32_t words = size < 4 ? 1 : size / 4;
  uint32_t copy[LANES];
  memcpy(copy, base, sizeof copy);  // the destination may be the address
  for (int part = 0; part < count; part++) {
    uint32_t offset = (uint32_t)n->numbers[part ? 3 : 1];
    for (int l = 0; l < LANES; l++) {
      if (!(w->exec >> l & 1)) continue;
      uint32_t address = copy[l] + offset;
      int status = n->numbers[2] ? note_read(c, address, size) : note_write(c, address, size);
      if (status) return status;
      if (n->numbers[2]) {
        give(w, n, n->result[0].index + (uint32_t)part * words, l, size, c->lds.bytes + address);
      } else {
        take(w, n, &n->source[1 + part], l, size, c->lds.bytes + address);
      }
    }
  }
  operand none = {0};
  near_pending(w, n->numbers[2] ? &n->result[0] : &none);
  if (!n->numbers[2]) w->lds_written_last = w->near_issued;
  return RIGHT;
}

// ds_read_b64_tr_b16 and the like (gfx950): in each group of 16 lanes the rows of a small matrix become its columns.
// numbers: [0] bits of an element, [1] offset. 64 bits a lane (96 for 6-bit elements are not modelled).
static int read_transposed(context *c, const instruction *n) {
  wave *w = c->w;
  uint32_t room[LANES], address[LANES], bits = (uint32_t)n->numbers[0];
  memcpy(address, words_of(w, n, &n->source[0], 0, 0, room), sizeof address);
  UNMODELLED_IF(w->exec != ~0ull, "a transposing read with lanes off");
  uint64_t data[LANES], out[LANES];
  for (int l = 0; l < LANES; l++) {
    address[l] += (uint32_t)n->numbers[1];
    HAZARD_IF(address[l] % 8, "a transposing read at LDS address %u, which 8 does not divide", address[l]);
    int status = note_read(c, address[l], 8);
    if (status) return status;
    memcpy(&data[l], c->lds.bytes + address[l], 8);
  }
  uint32_t each = 64 / bits, across = 16 / each;  // elements of a lane; lanes that make up a row of 16 elements
  uint64_t ones = bits == 64 ? ~0ull : (1ull << bits) - 1;
  for (uint32_t l = 0; l < LANES; l++) {
    uint32_t group = l / 16 * 16, column = l % 16;
    out[l] = 0;
    // Lane l of a group gets column l: its element e lies in row e, in the lane that holds this part of the row.
    for (uint32_t e = 0; e < each; e++) {
      uint32_t from = group + e * across + column / each;
      out[l] |= (data[from] >> bits * (column % each) & ones) << bits * e;
    }
  }
  for (int l = 0; l < LANES; l++) {
    w->v[n->result[0].index][l] = (uint32_t)out[l];
    w->v[n->result[0].index + 1][l] = (uint32_t)(out[l] >> 32);
  }
  near_pending(w, &n->result[0]);
  return RIGHT;
}

static int exchange(context *c, const instruction *n, const uint32_t *data, const uint32_t *source) {
  wave *w = c->w;
  uint32_t out[LANES];
  for (int l = 0; l < LANES; l++) out[l] = source[l] < LANES && (w->exec >> source[l] & 1) ? data[source[l]] : 0;
  put_words(w, n->result[0].index, out, w->exec);
  near_pending(w, &n->result[0]);
  return RIGHT;
}

// ds_bpermute_b32 (numbers[0] 0) and ds_permute_b32 (1); numbers[1]: offset
static int permute(context *c, const instruction *n) {
  wave *w = c->w;
  uint32_t rooms[2][LANES], source[LANES];
  const uint32_t *index = words_of(w, n, &n->source[0], 0, 0, rooms[0]), *data = words_of(w, n, &n->source[1], 1, 0, rooms[1]);
  if (!n->numbers[0]) {
    for (int l = 0; l < LANES; l++) source[l] = (index[l] + (uint32_t)n->numbers[1]) / 4 % LANES;
    return exchange(c, n, data, source);
  }
  memset(source, 0xff, sizeof source);
  for (uint32_t l = 0; l < LANES; l++)
    if (w->exec >> l & 1) source[(index[l] + (uint32_t)n->numbers[1]) / 4 % LANES] = l;
  return exchange(c, n, data, source);
}

static int swizzle(context *c, const instruction *n) {
  uint32_t room[LANES], source[LANES];
  const uint32_t *data = words_of(c->w, n, &n->source[0], 0, 0, room);
  for (int l = 0; l < LANES; l++) source[l] = (uint32_t)(uint8_t)n->lanes[l];
  return exchange(c, n, data, source);
}

// ------------------------------------------------------------ memory

typedef struct {
  uint64_t address;
  uint32_t first, last;  // bytes of the lane's access that are inside the buffer: [first, last)
} access;

static uint64_t pair(const wave *w, const operand *o) { return w->s[o->index] | (uint64_t)w->s[o->index + 1] << 32; }

// A descriptor without stride, swizzle, lane numbers or another type. A format of 0 is no buffer.
static int check_plain(context *c, const uint32_t *d) {
  UNMODELLED_IF(d[1] >> 16, "a buffer with a stride or swizzle: %#x %#x", d[1], d[3]);
  UNMODELLED_IF(!(d[3] >> 12 & 7) || !(d[3] >> 15 & 15) || d[3] >> 23 & 1 || d[3] >> 30, "a buffer whose last word is %#x", d[3]);
  return RIGHT;
}

// Each word of a raw buffer counts for itself: outside it reads 0 and is not written.
static int buffer_access(context *c, const instruction *n, const uint32_t *moving, int l, uint32_t size, access *out) {
  wave *w = c->w;
  const uint32_t *d = &w->s[n->source[1].index];
  uint64_t extra = (uint32_t)scalar_value(w, &n->source[2]);
  uint64_t total = (moving ? moving[l] : 0) + (uint64_t)(uint32_t)n->numbers[1];
  c->k->events[WRAPPED] += total >> 32;
  if (c->m->offsets_wrap) total &= 0xffffffffu;
  int64_t limit = (int64_t)d[2] - (int64_t)extra;
  uint32_t step = size < 4 ? size : 4;
  uint64_t base = d[0] | (uint64_t)(d[1] & 0xffff) << 32;
  *out = (access){base + extra + total, 0, 0};
  for (uint32_t at = 0; at < size; at += step) {
    int64_t offset = (int64_t)(total + at);
    if (offset + step <= limit) out->last = at + step;
    else c->k->events[offset < limit ? ACROSS_END : BEYOND_END]++;
  }
  return RIGHT;
}

static int private_place(context *c, int64_t offset, uint32_t size, int l, uint8_t **out) {
  int inside = offset >= 0 && offset + size <= c->k->private_size;
  c->k->events[PRIVATE_OUTSIDE] += !inside;
  HAZARD_IF(!inside, "private memory at %lld, of %u bytes", (long long)offset, c->k->private_size);
  *out = c->w->private_bytes + (size_t)l * c->k->private_size + offset;
  return RIGHT;
}

static int to_lds(context *c, const instruction *n, uint8_t data[LANES][16], uint64_t mask, uint32_t size) {
  wave *w = c->w;
  UNMODELLED_IF(w->deferred_count == MAX_DEFERRED, "more than %d loads into LDS at a time", MAX_DEFERRED);
  lds_write *d = &w->deferred[w->deferred_count++];
  *d = (lds_write){.mask = mask, .sequence = w->far_issued + 1, .size = size < 4 ? 4 : size};
  for (uint32_t l = 0; l < LANES; l++) {
    d->address[l] = (w->s[M0] & 0xffff) + (uint32_t)n->numbers[1] + l * d->size;
    if (!(mask >> l & 1)) continue;
    memcpy(d->data[l], data[l], 16);
    // It may come at any time from now on.
    uint32_t reader = 0, now = c->lds.epoch;
    HAZARD_IF(d->address[l] + d->size > c->lds.size, "LDS address %u of %u bytes", d->address[l], c->lds.size);
    for (uint32_t i = 0; i < d->size; i++) {
      reader = c->lds.reader[d->address[l] + i];
      HAZARD_IF(reader >> 8 == now && (reader & 255) != owner(w), "LDS at %u is loaded that another wave read since the last barrier",
                d->address[l] + i);
    }
  }
  operand none = {0};
  far_pending(w, &none);
  return RIGHT;
}

enum { FAR, BUFFER, PRIVATE };

// numbers: [0] bytes, [1] offset, [2] 1: load. Sources: address, base or descriptor, scalar offset, data.
static int transfer(context *c, const instruction *n, int kind) {
  wave *w = c->w;
  uint32_t rooms[2][LANES], low[LANES], high[LANES], size = (uint32_t)n->numbers[0];
  uint8_t data[LANES][16];
  const operand *address = &n->source[0], *base = &n->source[1];
  int moves = address->kind == VECTOR, wide = kind == FAR && base->kind == NOTHING;
  if (moves) memcpy(low, words_of(w, n, address, 0, 0, rooms[0]), sizeof low);
  if (wide) memcpy(high, words_of(w, n, address, 0, 1, rooms[1]), sizeof high);
  int64_t start = 0;
  if (kind == FAR && !wide) start = (int64_t)pair(w, base);
  if (kind == PRIVATE && base->kind != NOTHING) start = (int32_t)scalar_value(w, base);
  if (kind == BUFFER) {
    const uint32_t *d = &w->s[base->index];
    if (d[1] & SWIZZLED && (d[1] & 0xffff) == PRIVATE_HIGH) {
      kind = PRIVATE;
      // Lanes take turns word by word; the scalar offset counts the words of all of them.
      uint32_t all = scalar_value(w, &n->source[2]);
      HAZARD_IF(all % (4 * LANES), "a scalar offset of %u into private memory, which is no row of words of all lanes", all);
      start = (int64_t)d[0] + all / LANES;
      moves = moves && n->flags & OFFSET_ENABLED;
    } else {
      int status = check_plain(c, d);
      if (status) return status;
    }
  }
  for (int l = 0; l < LANES; l++) {
    if (!(w->exec >> l & 1)) continue;
    access where = {0, 0, size};
    uint8_t *own = 0;
    int status = RIGHT;
    if (kind == FAR) {
      where.address = (wide ? low[l] | (uint64_t)high[l] << 32 : (uint64_t)start + low[l]) + (uint64_t)(int64_t)n->numbers[1];
    } else if (kind == BUFFER) {
      status = buffer_access(c, n, moves && n->flags & OFFSET_ENABLED ? low : 0, l, size, &where);
    } else {
      status = private_place(c, start + (moves ? (int64_t)(int32_t)low[l] : 0) + n->numbers[1], size, l, &own);
    }
    if (status) return status;
    if (n->numbers[2]) {
      memset(data[l], 0, sizeof data[l]);
      if (own) memcpy(data[l], own, size);
      else if (where.last) read_far(c, where.address, where.last, data[l]);
      continue;
    }
    take(w, n, &n->source[3], l, size, data[l]);
    if (own) memcpy(own, data[l], size);
    else if (where.last) status = write_far(c, where.address, where.last, data[l]);
    if (status) return status;
  }
  if (n->flags & TO_LDS) return to_lds(c, n, data, w->exec, size);
  if (n->numbers[2])
    for (int l = 0; l < LANES; l++)
      if (w->exec >> l & 1) give(w, n, n->result[0].index, l, size, data[l]);
  operand none = {0};
  far_pending(w, n->numbers[2] ? &n->result[0] : &none);
  return RIGHT;
}

// numbers: [0] words, [1] offset; sources: base, offset
static int load_scalar(context *c, const instruction *n) {
  wave *w = c->w;
  uint64_t address = (pair(w, &n->source[0]) + scalar_value(w, &n->source[1]) + (uint64_t)(int64_t)n->numbers[1]) & ~3ull;
  uint32_t words = (uint32_t)n->numbers[0], first = n->result[0].index;
  uint8_t data[64];
  read_far(c, address, 4 * words, data);
  memcpy(&w->s[first], data, 4 * words);
  w->near_issued++;
  w->scalar_last = w->near_issued;
  for (uint32_t r = first; r < first + words; r++) w->scalar_wait[r] = w->near_issued;
  return RIGHT;
}

static int load_scalar_buffer(context *c, const instruction *n) {
  wave *w = c->w;
  const uint32_t *d = &w->s[n->source[0].index];
  int status = check_plain(c, d);
  if (status) return status;
  uint64_t offset = ((uint32_t)scalar_value(w, &n->source[1]) + (uint64_t)(uint32_t)n->numbers[1]) & ~3ull;
  uint32_t words = (uint32_t)n->numbers[0], first = n->result[0].index;
  for (uint32_t i = 0; i < words; i++) {
    uint32_t value = 0;
    if (offset + 4 * i + 4 <= d[2]) read_far(c, (d[0] | (uint64_t)(d[1] & 0xffff) << 32) + offset + 4 * i, 4, (uint8_t *)&value);
    w->s[first + i] = value;
  }
  w->near_issued++;
  w->scalar_last = w->near_issued;
  for (uint32_t r = first; r < first + words; r++) w->scalar_wait[r] = w->near_issued;
  return RIGHT;
}

// ------------------------------------------------------------ atomics

enum { A_ADD, A_SUB, A_UMIN, A_UMAX, A_SMIN, A_SMAX, A_AND, A_OR, A_XOR, A_SWAP, A_CMPSWAP, A_ADD_F32, A_ADD_F64, A_PK_ADD_F16,
       A_PK_ADD_BF16, A_MAX_F64, A_MIN_F64, A_INC, A_DEC };

static uint64_t modified(int what, uint64_t old, uint64_t x, uint64_t compared, uint32_t size) {
  int narrow = size == 4;
  switch (what) {
    case A_ADD: return old + x;
    case A_SUB: return old - x;
    case A_UMIN: return old < x ? old : x;
    case A_UMAX: return old > x ? old : x;
    case A_SMIN: return narrow ? ((int32_t)old < (int32_t)x ? old : x) : (int64_t)old < (int64_t)x ? old : x;
    case A_SMAX: return narrow ? ((int32_t)old > (int32_t)x ? old : x) : (int64_t)old > (int64_t)x ? old : x;
    case A_AND: return old & x;
    case A_OR: return old | x;
    case A_XOR: return old ^ x;
    case A_SWAP: return x;
    case A_CMPSWAP: return old == compared ? x : old;
    case A_ADD_F32: return bits_of(float_of((uint32_t)old) + float_of((uint32_t)x));
    case A_ADD_F64: return bits_of64(double_of(old) + double_of(x));
    case A_MAX_F64: return bits_of64(number_max64(double_of(old), double_of(x)));
    case A_MIN_F64: return bits_of64(number_min64(double_of(old), double_of(x)));
    case A_PK_ADD_F16: {
      uint32_t low = float_to_half(half_to_float(old & 0xffff) + half_to_float(x & 0xffff));
      return low | float_to_half(half_to_float(old >> 16 & 0xffff) + half_to_float(x >> 16 & 0xffff)) << 16;
    }
    case A_PK_ADD_BF16: {
      uint32_t low = float_to_bfloat(bfloat_to_float(old & 0xffff) + bfloat_to_float(x & 0xffff));
      return low | float_to_bfloat(bfloat_to_float(old >> 16 & 0xffff) + bfloat_to_float(x >> 16 & 0xffff)) << 16;
    }
    case A_INC: return old >= x ? 0 : old + 1;
    default: return old == 0 || old > x ? x : old - 1;
  }
}

static uint64_t taken(const wave *w, const operand *o, uint32_t at, int l, uint32_t size) {
  uint64_t value = w->v[o->index + at][l];
  return size == 8 ? value | (uint64_t)w->v[o->index + at + 1][l] << 32 : value;
}

// numbers: [0] bytes, [1] offset, [2] what. Sources: address, data, and data to store of a compare-and-store.
static int local_atomic(context *c, const instruction *n) {
  wave *w = c->w;
  uint32_t room[LANES], address[LANES], size = (uint32_t)n->numbers[0];
  memcpy(address, words_of(w, n, &n->source[0], 0, 0, room), sizeof address);
  for (int l = 0; l < LANES; l++) {
    if (!(w->exec >> l & 1)) continue;
    uint32_t at = address[l] + (uint32_t)n->numbers[1];
    int status = note_atomic(c, at, size);
    if (status) return status;
    uint64_t old = 0, compared = taken(w, &n->source[1], 0, l, size);
    uint64_t x = n->numbers[2] == A_CMPSWAP ? taken(w, &n->source[2], 0, l, size) : compared;
    memcpy(&old, c->lds.bytes + at, size);
    uint64_t value = modified(n->numbers[2], old, x, compared, size);
    memcpy(c->lds.bytes + at, &value, size);
    if (n->flags & RETURNS)
      for (uint32_t word = 0; word < size / 4; word++) w->v[n->result[0].index + word][l] = (uint32_t)(old >> 32 * word);
  }
  operand none = {0};
  near_pending(w, n->flags & RETURNS ? &n->result[0] : &none);
  w->lds_written_last = w->near_issued;
  return RIGHT;
}

// numbers as above. Sources: address, base or descriptor, scalar offset, data (what is stored, then what is compared).
static int far_atomic(context *c, const instruction *n, int is_buffer) {
  wave *w = c->w;
  uint32_t rooms[2][LANES], low[LANES] = {0}, high[LANES], size = (uint32_t)n->numbers[0];
  int wide = !is_buffer && n->source[1].kind == NOTHING;
  int plain = is_buffer ? check_plain(c, &w->s[n->source[1].index]) : RIGHT;
  if (plain) return plain;
  if (n->source[0].kind == VECTOR) memcpy(low, words_of(w, n, &n->source[0], 0, 0, rooms[0]), sizeof low);
  if (wide) memcpy(high, words_of(w, n, &n->source[0], 0, 1, rooms[1]), sizeof high);
  for (int l = 0; l < LANES; l++) {
    if (!(w->exec >> l & 1)) continue;
    access where = {0, 0, size};
    if (is_buffer) buffer_access(c, n, n->flags & OFFSET_ENABLED ? low : 0, l, size, &where);
    else where.address = (wide ? low[l] | (uint64_t)high[l] << 32 : pair(w, &n->source[1]) + low[l]) + (uint64_t)(int64_t)n->numbers[1];
    if (where.last < size) {
      for (uint32_t word = 0; n->flags & RETURNS && word < size / 4; word++) w->v[n->result[0].index + word][l] = 0;
      continue;
    }
    uint64_t old = 0, x = taken(w, &n->source[3], 0, l, size);
    uint64_t compared = n->numbers[2] == A_CMPSWAP ? taken(w, &n->source[3], size / 4, l, size) : 0;
    read_far(c, where.address, size, (uint8_t *)&old);
    uint64_t value = modified(n->numbers[2], old, x, compared, size);
    int status = write_far(c, where.address, size, (const uint8_t *)&value);
    if (status) return status;
    if (n->flags & RETURNS)
      for (uint32_t word = 0; word < size / 4; word++) w->v[n->result[0].index + word][l] = (uint32_t)(old >> 32 * word);
  }
  operand none = {0};
  far_pending(w, n->flags & RETURNS ? &n->result[0] : &none);
  return RIGHT;
}
