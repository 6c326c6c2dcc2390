// Conversions between number formats, and the rounding that instructions ask for. Values are IEEE 754 unless named.
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

static inline uint32_t bits_of(float x) { uint32_t u; memcpy(&u, &x, 4); return u; }
static inline float float_of(uint32_t u) { float x; memcpy(&x, &u, 4); return x; }
static inline uint64_t bits_of64(double x) { uint64_t u; memcpy(&u, &x, 8); return u; }
static inline double double_of(uint64_t u) { double x; memcpy(&x, &u, 8); return x; }

static inline float half_to_float(uint32_t h) {
  uint32_t sign = (h & 0x8000u) << 16, exponent = (h >> 10) & 31, fraction = h & 0x3ffu;
  if (exponent == 31) return float_of(sign | 0x7f800000u | fraction << 13);
  if (exponent) return float_of(sign | (exponent + 112) << 23 | fraction << 13);
  float small = (float)fraction * 0x1p-24f;
  return sign ? -small : small;
}

// Rounds to nearest, ties to even. Without `nearest`: towards zero.
static inline uint32_t float_to_half_mode(float x, int nearest) {
  uint32_t u = bits_of(x), sign = (u >> 16) & 0x8000u, a = u & 0x7fffffffu;
  if (a > 0x7f800000u) return sign | 0x7e00u | ((a >> 13) & 0x3ffu);
  if (a == 0x7f800000u) return sign | 0x7c00u;
  if (a >= 0x47800000u) return sign | (nearest ? 0x7c00u : 0x7bffu);
  if (a < 0x33000000u) return sign;  // below half of the least subnormal
  uint32_t exponent = a >> 23, fraction = (a & 0x7fffffu) | 0x800000u;
  uint32_t shift = exponent >= 113 ? 13 : 126 - exponent;
  uint32_t base = exponent >= 113 ? ((exponent - 112) << 10) - 0x400u : 0;
  uint32_t kept = fraction >> shift, rest = fraction & ((1u << shift) - 1), half = 1u << (shift - 1);
  if (nearest && (rest > half || (rest == half && (kept & 1)))) kept++;
  return sign | (base + kept);
}

static inline uint32_t float_to_half(float x) { return float_to_half_mode(x, 1); }

// One rounding only, where a double holds an exact result.
static inline uint32_t double_to_half(double x) {
  float f = (float)x;
  // Rounding to odd before the second rounding keeps it right.
  if (isfinite(f) && (double)f != x) {
    uint32_t u = bits_of(f);
    if (fabs((double)f) > fabs(x)) u--;
    f = float_of(u | 1u);
  }
  return float_to_half(f);
}

static inline float bfloat_to_float(uint32_t h) { return float_of(h << 16); }

static inline uint32_t float_to_bfloat(float x) {
  uint32_t u = bits_of(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return (u >> 16) | 0x40u;
  return (u + 0x7fffu + ((u >> 16) & 1)) >> 16;
}

// Small floats: `e` exponent bits, `m` fraction bits. fnuz: bias is one more, 0x80 is NaN, no infinity.
// ocp: with 5 exponent bits infinities and NaN as IEEE, with 4 only S.1111.111 is NaN, below that none.
static inline float small_to_float(uint32_t v, int e, int m, int fnuz) {
  uint32_t sign = (v >> (e + m)) & 1, exponent = (v >> m) & ((1u << e) - 1), fraction = v & ((1u << m) - 1);
  int bias = (1 << (e - 1)) - 1 + (fnuz ? 1 : 0);
  if (fnuz && sign && !exponent && !fraction) return NAN;
  if (!fnuz && e == 5 && exponent == 31) return fraction ? NAN : (sign ? -INFINITY : INFINITY);
  if (!fnuz && e == 4 && m == 3 && exponent == 15 && fraction == 7) return NAN;
  float x = exponent ? ldexpf((float)(fraction | 1u << m), (int)exponent - bias - m)
                     : ldexpf((float)fraction, 1 - bias - m);
  return sign ? -x : x;
}

// What is too large becomes NaN, or an infinity where the format has one: so conversions are while the mode's FP16_OVFL
// is 0, which a launch makes sure of.
static inline uint32_t float_to_small(float x, int e, int m, int fnuz) {
  int bias = (1 << (e - 1)) - 1 + (fnuz ? 1 : 0);
  uint32_t sign = bits_of(x) >> 31, top = sign << (e + m);
  if (isnan(x)) return fnuz ? 1u << (e + m) : top | ((1u << (e + m)) - 1);
  uint32_t largest = fnuz ? (1u << (e + m)) - 1 : (e == 5 ? (30u << m | ((1u << m) - 1)) : (1u << (e + m)) - 2);
  float a = fabsf(x);
  uint32_t beyond = fnuz ? 1u << (e + m) : e == 5 ? top | 31u << m : top | ((1u << (e + m)) - 1);
  if (isinf(x)) return beyond;
  if (a == 0) return fnuz ? 0 : top;
  int exponent;
  frexpf(a, &exponent);
  int unit = exponent - 1 < 1 - bias ? 1 - bias - m : exponent - 1 - m;
  double scaled = nearbyint(ldexp((double)a, -unit));
  uint32_t whole = (uint32_t)scaled;
  uint32_t code;
  if (exponent - 1 < 1 - bias) code = whole;
  else code = (uint32_t)(exponent - 1 + bias) * (1u << m) + (whole - (1u << m));
  if (code > largest) return beyond;
  if (fnuz && !code) top = 0;
  return top | code;
}

static inline int32_t to_i32(double x) {
  if (isnan(x)) return 0;
  if (x <= -2147483648.0) return INT32_MIN;
  if (x >= 2147483647.0) return INT32_MAX;
  return (int32_t)x;
}

static inline uint32_t to_u32(double x) {
  if (isnan(x) || x <= 0) return 0;
  if (x >= 4294967295.0) return UINT32_MAX;
  return (uint32_t)x;
}

static inline int is_signaling(float x) { return isnan(x) && !(bits_of(x) & 0x400000u); }
static inline float quiet(float x) { return isnan(x) ? float_of(bits_of(x) | 0x400000u) : x; }

// maxNum and minNum, with -0 below +0: the other operand where one is NaN.
static inline float number_max(float a, float b) {
  if (isnan(a)) return quiet(isnan(b) ? a : b);
  if (isnan(b)) return a;
  if (a == b) return signbit(a) ? b : a;
  return a > b ? a : b;
}
static inline float number_min(float a, float b) {
  if (isnan(a)) return quiet(isnan(b) ? a : b);
  if (isnan(b)) return a;
  if (a == b) return signbit(a) ? a : b;
  return a < b ? a : b;
}
static inline double number_max64(double a, double b) {
  if (isnan(a)) return b;
  if (isnan(b)) return a;
  if (a == b) return signbit(a) ? b : a;
  return a > b ? a : b;
}
static inline double number_min64(double a, double b) {
  if (isnan(a)) return b;
  if (isnan(b)) return a;
  if (a == b) return signbit(a) ? a : b;
  return a < b ? a : b;
}
// NaN where an operand is NaN.
static inline float maximum(float a, float b) { return isnan(a) ? quiet(a) : isnan(b) ? quiet(b) : number_max(a, b); }
static inline float minimum(float a, float b) { return isnan(a) ? quiet(a) : isnan(b) ? quiet(b) : number_min(a, b); }
static inline float median(float a, float b, float c) {
  if (isnan(a) || isnan(b) || isnan(c)) return number_min(number_min(a, b), c);
  float top = number_max(number_max(a, b), c);
  if (top == a) return number_max(b, c);
  if (top == b) return number_max(a, c);
  return number_max(a, b);
}
static inline uint32_t umin(uint32_t a, uint32_t b) { return a < b ? a : b; }
static inline uint32_t umax(uint32_t a, uint32_t b) { return a > b ? a : b; }
static inline int32_t imin(int32_t a, int32_t b) { return a < b ? a : b; }
static inline int32_t imax(int32_t a, int32_t b) { return a > b ? a : b; }
static inline uint32_t umed(uint32_t a, uint32_t b, uint32_t c) { return umax(umin(a, b), umin(umax(a, b), c)); }
static inline int32_t imed(int32_t a, int32_t b, int32_t c) { return imax(imin(a, b), imin(imax(a, b), c)); }
static inline int32_t sign24(uint32_t a) { return (int32_t)(a << 8) >> 8; }
static inline uint64_t low24(uint32_t a) { return a & 0xffffffu; }

// A product and a sum of halves, rounded once: exact in double but for the last place of a sum of far exponents.
static inline float half_fma(float a, float b, float c) { return half_to_float(double_to_half((double)a * b + c)); }

static inline uint32_t permute_bytes(uint32_t a, uint32_t b, uint32_t selector) {
  uint64_t both = (uint64_t)a << 32 | b;
  uint32_t out = 0;
  for (int n = 0; n < 4; n++) {
    uint32_t s = selector >> 8 * n & 255, byte;
    if (s < 8) byte = both >> 8 * s & 255;
    else if (s < 12) byte = both >> (16 * (s - 8) + 15) & 1 ? 255 : 0;
    else byte = s == 12 ? 0 : 255;
    out |= byte << 8 * n;
  }
  return out;
}

static inline uint32_t reversed(uint32_t a) {
  uint32_t out = 0;
  for (int n = 0; n < 32; n++) out |= (a >> n & 1) << (31 - n);
  return out;
}

// 1: signalling NaN, 2: quiet NaN, 4: -inf, 8: -normal, 16: -subnormal, 32: -0, 64: +0, 128, 256, 512 likewise.
static inline uint32_t class_of(int nan, int is_quiet, int inf, int zero, int subnormal, int minus) {
  if (nan) return is_quiet ? 2 : 1;
  if (inf) return minus ? 4 : 512;
  if (zero) return minus ? 32 : 64;
  if (subnormal) return minus ? 16 : 128;
  return minus ? 8 : 256;
}
static inline uint32_t class_f32(float x) {
  return class_of(isnan(x), !is_signaling(x), isinf(x), x == 0, fabsf(x) < 0x1p-126f, signbit(x) != 0);
}
static inline uint32_t class_f64(double x) {
  return class_of(isnan(x), (bits_of64(x) >> 51) & 1, isinf(x), x == 0, fabs(x) < 0x1p-1022, signbit(x) != 0);
}
static inline uint32_t class_f16(float x) {
  return class_of(isnan(x), !is_signaling(x), isinf(x), x == 0, fabsf(x) < 0x1p-14f, signbit(x) != 0);
}

static inline int exponent_f32(float x) { return bits_of(x) >> 23 & 255; }
static inline int exponent_f64(double x) { return bits_of64(x) >> 52 & 2047; }

// The three steps of a division: scaling of operands that would lose digits, undone by the second, then special cases.
static inline float div_scale_f32(float a, float below, float above, uint32_t *flag) {
  int gap = exponent_f32(above) - exponent_f32(below);
  *flag = 0;
  if (above == 0 || below == 0) return float_of(0xffc00000u);
  if (gap >= 96) { *flag = 1; return bits_of(a) == bits_of(below) ? ldexpf(a, 64) : a; }
  if (exponent_f32(below) == 0) return ldexpf(a, 64);
  // Whether 1 / below is subnormal is asked in float64, where it never is.
  if (fabs((double)above / (double)below) < 0x1p-126) { *flag = 1; return bits_of(a) == bits_of(above) ? ldexpf(a, 64) : a; }
  if (exponent_f32(above) <= 23) return ldexpf(a, 64);
  return a;
}
static inline double div_scale_f64(double a, double below, double above, uint32_t *flag) {
  int gap = exponent_f64(above) - exponent_f64(below);
  *flag = 0;
  if (above == 0 || below == 0) return double_of(0xfff8000000000000ull);
  if (gap >= 768) { *flag = 1; return bits_of64(a) == bits_of64(below) ? ldexp(a, 128) : a; }
  if (exponent_f64(below) == 0) return ldexp(a, 128);
  int tiny_inverse = exponent_f64(below) >= 2045, tiny = gap < -1022;
  if (tiny_inverse && tiny) { *flag = 1; return bits_of64(a) == bits_of64(below) ? ldexp(a, 128) : a; }
  if (tiny_inverse) return ldexp(a, -128);
  if (tiny) { *flag = 1; return bits_of64(a) == bits_of64(above) ? ldexp(a, 128) : a; }
  if (exponent_f64(above) <= 53) return ldexp(a, 128);
  return a;
}
static inline float div_fmas_f32(float a, float b, float c, uint32_t scaled) {
  float x = fmaf(a, b, c);
  return scaled ? ldexpf(x, exponent_f32(c) > 127 ? 64 : -64) : x;
}
static inline double div_fmas_f64(double a, double b, double c, uint32_t scaled) {
  double x = fma(a, b, c);
  return scaled ? ldexp(x, exponent_f64(c) > 1023 ? 128 : -128) : x;
}
static inline double div_fixup(double quotient, double below, double above, int gap, int least, int most) {
  int minus = (signbit(below) != 0) ^ (signbit(above) != 0);
  double sign = minus ? -1.0 : 1.0;
  if (isnan(above)) return above;
  if (isnan(below)) return below;
  if ((below == 0 && above == 0) || (isinf(below) && isinf(above))) return -NAN;
  if (below == 0 || isinf(above)) return sign * INFINITY;
  if (isinf(below) || above == 0) return sign * 0.0;
  if (gap < least) return sign * 0.0;
  if (gap > most) return sign * INFINITY;
  // A quotient that overflowed before it was scaled back is NaN here (infinity minus infinity): hardware overflows.
  if (isnan(quotient)) return sign * INFINITY;
  return copysign(quotient, sign);
}

// The first 1216 bits of 2 / pi behind the point.
static const uint32_t two_over_pi[38] = {
  0xa2f9836eu, 0x4e441529u, 0xfc2757d1u, 0xf534ddc0u, 0xdb629599u, 0x3c439041u, 0xfe5163abu, 0xdebbc561u,
  0xb7246e3au, 0x424dd2e0u, 0x06492eeau, 0x09d1921cu, 0xfe1deb1cu, 0xb129a73eu, 0xe88235f5u, 0x2ebb4484u,
  0xe99c7026u, 0xb45f7e41u, 0x3991d639u, 0x835339f4u, 0x9c845f8bu, 0xbdf9283bu, 0x1ff897ffu, 0xde05980fu,
  0xef2f118bu, 0x5a0a6d1fu, 0x6d367ecfu, 0x27cb09b7u, 0x4f463f66u, 0x9e5fea2du, 0x7527bac7u, 0xebe5f17bu,
  0x3d0739f7u, 0x8a5292eau, 0x6bfb5fb1u, 0x1f8d5d08u, 0x56033046u, 0xfc7b6babu,
};

// 53 bits of 2 / pi at a segment, chosen so that their product with `a` may be taken modulo whole turns; 0 behind the table.
static inline double trig_preop(double a, uint32_t segment) {
  uint32_t exponent = (uint32_t)(bits_of64(a) >> 52) & 0x7ff, shift = (segment & 31) * 53;
  if (exponent > 1077) shift += exponent - 1077;
  uint32_t at = shift >> 5, rest = shift & 31;
  if (at + 2 >= 38) return 0;
  uint64_t high = (uint64_t)two_over_pi[at] << 32 | two_over_pi[at + 1];
  if (rest) high = high << rest | two_over_pi[at + 2] >> (32 - rest);
  return ldexp((double)(high >> 11), -53 - (int)shift + (exponent >= 1968 ? 128 : 0));
}
