// Matrix instructions: D = A B + C for one or several blocks. Included by core.c. All lanes take part.
//
// numbers: [0] rows (= columns) of a block, [1] K, [2] blocks, [3] element of A, [4] element of B, [5] kind of C and D.
// A lane holds consecutive k of one row of A or one column of B: with g = rows * blocks lanes that hold the same k, lane
// l holds row l % rows of block l / rows % blocks and k from l / g * (elements of a lane) on.
#pragma once

enum { E_F32, E_F64, E_F16, E_BF16, E_I8, E_FP8, E_BF8, E_FP8_FNUZ, E_BF8_FNUZ, E_XF32, E_FP6, E_BF6, E_FP4 };
enum { R_F32, R_F64, R_I32 };

static const int element_bits[] = {32, 64, 16, 16, 8, 8, 8, 8, 8, 32, 6, 6, 4};

static double element(const wave *w, uint32_t first, int l, uint32_t number, int kind) {
  int bits = element_bits[kind];
  uint32_t at = number * (uint32_t)bits;
  uint64_t word = w->v[first + at / 32][l];
  if (at % 32 + (uint32_t)bits > 32) word |= (uint64_t)w->v[first + at / 32 + 1][l] << 32;
  uint64_t u = word >> at % 32 & (bits == 64 ? ~0ull : (1ull << bits) - 1);
  switch (kind) {
    case E_F32: return (double)float_of((uint32_t)u);
    case E_XF32: return (double)float_of((uint32_t)u);
    case E_F64: return double_of(u);
    case E_F16: return (double)half_to_float((uint32_t)u);
    case E_BF16: return (double)bfloat_to_float((uint32_t)u);
    case E_I8: return (double)(int8_t)u;
    case E_FP8: return (double)small_to_float((uint32_t)u, 4, 3, 0);
    case E_BF8: return (double)small_to_float((uint32_t)u, 5, 2, 0);
    case E_FP8_FNUZ: return (double)small_to_float((uint32_t)u, 4, 3, 1);
    case E_BF8_FNUZ: return (double)small_to_float((uint32_t)u, 5, 2, 1);
    case E_FP6: case E_BF6: case E_FP4: {  // no infinities, no NaN
      int e = kind == E_FP6 ? 2 : kind == E_BF6 ? 3 : 2, m = bits - 1 - e;
      uint32_t sign = (uint32_t)u >> (e + m), exponent = (uint32_t)u >> m & ((1u << e) - 1), fraction = (uint32_t)u & ((1u << m) - 1);
      int bias = (1 << (e - 1)) - 1;
      double x = exponent ? ldexp((double)(fraction | 1u << m), (int)exponent - bias - m) : ldexp((double)fraction, 1 - bias - m);
      return sign ? -x : x;
    }
  }
  return 0;
}

// Where the result (row i, column j) of block b lies: its lane, and which of the lane's results it is.
static void result_place(int m, int kind, int b, int i, int j, int *lane, int *number) {
  if (kind == R_F64 && m == 16) *lane = j + 16 * (i % 4), *number = i / 4;
  else if (kind == R_F64) *lane = j + 4 * b + 16 * i, *number = 0;  // 4x4x4, 4 blocks
  else if (m == 32) *lane = j + 32 * (i / 4 % 2), *number = 4 * (i / 8) + i % 4 + 16 * b;
  else if (m == 16) *lane = j + 16 * (i / 4), *number = i % 4 + 4 * b;
  else *lane = j + 4 * b, *number = i;
}

// Power of two that a scale stands for (E8M0), by which a group of 32 values of a lane is multiplied.
static double scale_of(const wave *w, const operand *o, int l, int byte) {
  uint32_t u = o->kind == VECTOR ? w->v[o->index][l] : (uint32_t)o->value;
  u = u >> 8 * byte & 255;
  return u == 255 ? NAN : ldexp(1.0, (int)u - 127);
}

static int multiply(context *c, const instruction *n) {
  wave *w = c->w;
  static _Thread_local double a[16 * 1024], b[16 * 1024];
  int m = n->numbers[0], k = n->numbers[1], blocks = n->numbers[2], kind = n->numbers[5];
  int each = k * m * blocks / LANES, lanes_of_k = m * blocks;
  UNMODELLED_IF(each < 1 || m * k * blocks > 16 * 1024, "a matrix instruction of %d x %d, %d blocks", m, k, blocks);
  for (int l = 0; l < LANES; l++) {
    int row = l % m, block = l / m % blocks, k0 = l / lanes_of_k * each;
    double sa = 1, sb = 1;
    if (n->flags & SCALED) {  // scaled
      sa = scale_of(w, &n->source[3], l, (n->op_sel & 1) | (n->op_sel_hi & 1) << 1);
      sb = scale_of(w, &n->source[4], l, (n->op_sel >> 1 & 1) | (n->op_sel_hi >> 1 & 1) << 1);
    }
    if (n->flags & SPARSE) {  // sparse: of each four elements of A two are there, at places that an index names
      uint32_t places = w->v[n->source[3].index][l] >> n->op_sel;
      for (int e = 0; e < each; e++) {
        a[(block * m + row) * k + k0 + e] = 0;
        b[(block * m + row) * k + k0 + e] = element(w, n->source[1].index, l, (uint32_t)e, n->numbers[4]);
      }
      for (int e = 0; e < each / 2; e++)
        a[(block * m + row) * k + k0 + e / 2 * 4 + (places >> 2 * e & 3)] += element(w, n->source[0].index, l, (uint32_t)e, n->numbers[3]);
      continue;
    }
    for (int e = 0; e < each; e++) {
      double x = element(w, n->source[0].index, l, (uint32_t)e, n->numbers[3]), y = element(w, n->source[1].index, l, (uint32_t)e, n->numbers[4]);
      a[(block * m + row) * k + k0 + e] = n->flags & SCALED ? x * sa : x;
      b[(block * m + row) * k + k0 + e] = n->flags & SCALED ? y * sb : y;
    }
  }
  int words = kind == R_F64 ? 2 : 1, count = m * m * blocks / LANES;
  uint32_t out[64][LANES];
  UNMODELLED_IF(count * words > 64, "a matrix instruction with %d results a lane", count);
  const operand *add = &n->source[2];
  for (int block = 0; block < blocks; block++)
    for (int i = 0; i < m; i++)
      for (int j = 0; j < m; j++) {
        const double *x = &a[(block * m + i) * k], *y = &b[(block * m + j) * k];
        int l, at;
        result_place(m, kind, block, i, j, &l, &at);
        double total = 0;
        for (int e = 0; e < k; e++) total += x[e] * y[e];
        if (kind == R_F32) {
          float before = add->kind == VECTOR ? float_of(w->v[add->index + at][l]) : float_of((uint32_t)add->value);
          if (n->neg_lo & 4) before = -before;
          out[at][l] = bits_of((float)(total + before));
        } else if (kind == R_I32) {
          uint32_t before = add->kind == VECTOR ? w->v[add->index + at][l] : (uint32_t)add->value;
          out[at][l] = (uint32_t)(int64_t)total + before;
        } else {
          uint64_t before = add->kind == VECTOR ? w->v[add->index + 2 * at][l] | (uint64_t)w->v[add->index + 2 * at + 1][l] << 32 : add->value;
          uint64_t value = bits_of64(total + double_of(before));
          out[2 * at][l] = (uint32_t)value, out[2 * at + 1][l] = (uint32_t)(value >> 32);
        }
      }
  for (int r = 0; r < count * words; r++) memcpy(w->v[n->result[0].index + r], out[r], sizeof out[r]);
  return RIGHT;
}
