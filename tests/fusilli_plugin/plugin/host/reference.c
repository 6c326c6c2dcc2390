#define _GNU_SOURCE
#include "reference.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TENSORS = 128, MAX_RANK = 8, MAX_PORTS = 16, MAX_ATTRIBUTES = 16, SPATIAL = 3 };

typedef struct {
  long long uid;
  char type[16];
  double allowed;
  int rank;
  long dims[MAX_RANK], strides[MAX_RANK];
  long volume;
  double* data;  // in row-major order of dims
  int is_made;   // by a node
} tensor_t;

typedef struct {
  char name[64];
  double numbers[MAX_RANK];
  int count;
  char word[64];
} attribute_t;

static tensor_t tensors[MAX_TENSORS];
static int tensor_count;

// The node that is being read.
static char op[64];
static struct {
  char name[32];
  tensor_t* tensor;
} ports[MAX_PORTS];
static int port_count;
static attribute_t attributes[MAX_ATTRIBUTES];
static int attribute_count;

static tensor_t* find(long long uid) {
  for (int i = 0; i < tensor_count; ++i)
    if (tensors[i].uid == uid) return &tensors[i];
  CHECK(0, "the reference has no tensor %lld", uid);
}

static tensor_t* port(const char* name) {
  for (int i = 0; i < port_count; ++i)
    if (strcmp(ports[i].name, name) == 0) return ports[i].tensor;
  return NULL;
}

static tensor_t* out(const char* name) {
  tensor_t* t = port(name);
  if (t) t->is_made = 1;
  return t;
}

static const attribute_t* attribute(const char* name) {
  for (int i = 0; i < attribute_count; ++i)
    if (strcmp(attributes[i].name, name) == 0) return &attributes[i];
  return NULL;
}

static double parameter(const char* name, double otherwise) {
  const attribute_t* found = attribute(name);
  return found ? found->numbers[0] : otherwise;
}

static const char* word(const char* name) {
  const attribute_t* found = attribute(name);
  CHECK(found, "%s has no %s", op, name);
  return found->word;
}

// ---- elements -------------------------------------------------------------------------------------------------------

static float half_to_float(uint16_t bits) {
  int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  double value = exponent == 0    ? ldexp(mantissa, -24)
                 : exponent == 31 ? (mantissa ? NAN : INFINITY)
                                  : ldexp(1024 + mantissa, exponent - 25);
  return (float)(bits & 0x8000 ? -value : value);
}

static double element(const char* type, const void* base, long at) {
  if (strcmp(type, "FLOAT") == 0) return ((const float*)base)[at];
  if (strcmp(type, "DOUBLE") == 0) return ((const double*)base)[at];
  if (strcmp(type, "HALF") == 0) return half_to_float(((const uint16_t*)base)[at]);
  if (strcmp(type, "INT32") == 0) return ((const int32_t*)base)[at];
  if (strcmp(type, "INT64") == 0) return (double)((const int64_t*)base)[at];
  if (strcmp(type, "INT8") == 0) return ((const int8_t*)base)[at];
  if (strcmp(type, "UINT8") == 0) return ((const uint8_t*)base)[at];
  if (strcmp(type, "BOOLEAN") == 0) return ((const uint8_t*)base)[at] != 0;
  if (strcmp(type, "INT4") == 0) {  // two to a byte, the lower half first
    int nibble = ((const uint8_t*)base)[at / 2] >> (at % 2 * 4) & 15;
    return nibble < 8 ? nibble : nibble - 16;
  }
  CHECK(strcmp(type, "BFLOAT16") == 0, "elements of type %s", type);
  uint32_t bits = (uint32_t)((const uint16_t*)base)[at] << 16;
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

// Coordinates of element `linear` in row-major order.
static void coordinates(const tensor_t* t, long linear, long out_[MAX_RANK]) {
  for (int i = t->rank - 1; i >= 0; --i) {
    out_[i] = linear % t->dims[i];
    linear /= t->dims[i];
  }
}

static long offset(const tensor_t* t, long linear) {
  long at[MAX_RANK], sum = 0;
  coordinates(t, linear, at);
  for (int i = 0; i < t->rank; ++i) sum += at[i] * t->strides[i];
  return sum;
}

// The element of `t` that belongs to coordinates of a tensor of at least its rank: dims of 1 repeat.
static long broadcast(const tensor_t* t, const long* at, int rank) {
  long linear = 0;
  for (int i = 0; i < t->rank; ++i) linear = linear * t->dims[i] + (t->dims[i] == 1 ? 0 : at[rank - t->rank + i]);
  return linear;
}

// ---- operations -----------------------------------------------------------------------------------------------------

// Calls one of the three convolutions: y += x w, dx += dy w or dw += dy x over all positions.
static void convolution(tensor_t* x, tensor_t* w, tensor_t* y, tensor_t* result) {
  int rank = x->rank - 2;
  long in[SPATIAL] = {1, 1, 1}, window[SPATIAL] = {1, 1, 1}, outer[SPATIAL] = {1, 1, 1};
  long pad[SPATIAL] = {0}, stride[SPATIAL] = {1, 1, 1}, dilation[SPATIAL] = {1, 1, 1};
  for (int i = 0; i < rank; ++i) {
    in[i] = x->dims[i + 2];
    window[i] = w->dims[i + 2];
    outer[i] = y->dims[i + 2];
    pad[i] = (long)attribute("pre_padding")->numbers[i];
    stride[i] = (long)attribute("stride")->numbers[i];
    dilation[i] = (long)attribute("dilation")->numbers[i];
  }
  int mirrored = strcmp(word("convolution_mode"), "CONVOLUTION") == 0;
  long channels = w->dims[1], filters = w->dims[0], groups = x->dims[1] / channels;
  for (long n = 0; n < x->dims[0]; ++n)
    for (long k = 0; k < filters; ++k)
      for (long c = 0; c < channels; ++c) {
        long group = k / (filters / groups);
        const long x0 = n * x->dims[1] + group * channels + c, w0 = k * channels + c, y0 = n * filters + k;
        double* xs = &x->data[x0 * in[0] * in[1] * in[2]];
        double* ws = &w->data[w0 * window[0] * window[1] * window[2]];
        double* ys = &y->data[y0 * outer[0] * outer[1] * outer[2]];
        for (long f = 0; f < window[0] * window[1] * window[2]; ++f) {
          const long at[SPATIAL] = {f / window[2] / window[1], f / window[2] % window[1], f % window[2]};
          double* we = &ws[mirrored ? window[0] * window[1] * window[2] - 1 - f : f];
          for (long row = 0; row < outer[0] * outer[1]; ++row) {
            long q0 = row / outer[1] * stride[0] - pad[0] + at[0] * dilation[0];
            long q1 = row % outer[1] * stride[1] - pad[1] + at[1] * dilation[1];
            if (q0 < 0 || q0 >= in[0] || q1 < 0 || q1 >= in[1]) continue;
            double *xe = &xs[(q0 * in[1] + q1) * in[2]], *ye = &ys[row * outer[2]];
            for (long p = 0, q = at[2] * dilation[2] - pad[2]; p < outer[2]; ++p, q += stride[2]) {
              if (q < 0 || q >= in[2]) continue;
              if (result == y) ye[p] += xe[q] * *we;
              if (result == x) xe[q] += ye[p] * *we;
              if (result == w) *we += ye[p] * xe[q];
            }
          }
        }
      }
}

static void convolutions(void) {
  if (strcmp(op, "conv_fprop") == 0) {
    tensor_t* y = out("y");
    convolution(port("x"), port("w"), y, y);
  } else if (strcmp(op, "conv_dgrad") == 0) {
    tensor_t* dx = out("dx");
    convolution(dx, port("w"), port("dy"), dx);
  } else {
    tensor_t* dw = out("dw");
    convolution(port("x"), dw, port("dy"), dw);
  }
}

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }
static double normal(double x) { return 0.5 * (1 + erf(x / sqrt(2.0))); }
static const double TANH_SCALE = 0.7978845608028654, TANH_CUBE = 0.044715;

// One element of a pointwise mode; the backward modes take dy, then x.
static double pointwise_element(const char* mode, double a, double b, double c, double index) {
#define MODE(name, value) \
  if (strcmp(mode, name) == 0) return value
  double lower = parameter("relu_lower_clip", 0), upper = parameter("relu_upper_clip", INFINITY);
  double slope = parameter("relu_lower_clip_slope", 0), beta = parameter("swish_beta", 1);
  double alpha = parameter("elu_alpha", 1), soft = parameter("softplus_beta", 1);
  MODE("ABS", fabs(a));
  MODE("ADD", a + b);
  MODE("ADD_SQUARE", a + b * b);
  MODE("BINARY_SELECT", c != 0 ? a : b);
  MODE("CEIL", ceil(a));
  MODE("CMP_EQ", a == b);
  MODE("CMP_GE", a >= b);
  MODE("CMP_GT", a > b);
  MODE("CMP_LE", a <= b);
  MODE("CMP_LT", a < b);
  MODE("CMP_NEQ", a != b);
  MODE("DIV", a / b);
  MODE("ELU_FWD", a > 0 ? a : alpha * expm1(a));
  MODE("ELU_BWD", b > 0 ? a : a * alpha * exp(b));
  MODE("ERF", erf(a));
  MODE("EXP", exp(a));
  MODE("FLOOR", floor(a));
  MODE("GELU_FWD", a * normal(a));
  MODE("GELU_BWD", a * (normal(b) + b * exp(-b * b / 2) / sqrt(2 * M_PI)));
  MODE("GELU_APPROX_TANH_FWD", 0.5 * a * (1 + tanh(TANH_SCALE * (a + TANH_CUBE * a * a * a))));
  if (strcmp(mode, "GELU_APPROX_TANH_BWD") == 0) {
    double t = tanh(TANH_SCALE * (b + TANH_CUBE * b * b * b));
    return a * (0.5 * (1 + t) + 0.5 * b * (1 - t * t) * TANH_SCALE * (1 + 3 * TANH_CUBE * b * b));
  }
  MODE("GEN_INDEX", index);
  MODE("IDENTITY", a);
  MODE("LOG", log(a));
  MODE("LOGICAL_AND", a != 0 && b != 0);
  MODE("LOGICAL_NOT", a == 0);
  MODE("LOGICAL_OR", a != 0 || b != 0);
  MODE("MAX", fmax(a, b));
  MODE("MIN", fmin(a, b));
  MODE("MUL", a * b);
  MODE("NEG", -a);
  MODE("RECIPROCAL", 1 / a);
  MODE("RELU_FWD", a <= lower ? lower + slope * (a - lower) : fmin(a, upper));
  MODE("RELU_BWD", a * (b <= lower ? slope : b < upper ? 1.0 : 0.0));
  MODE("RSQRT", 1 / sqrt(a));
  MODE("SIGMOID_FWD", sigmoid(a));
  MODE("SIGMOID_BWD", a * sigmoid(b) * (1 - sigmoid(b)));
  MODE("SIN", sin(a));
  MODE("SOFTPLUS_FWD", log1p(exp(soft * a)) / soft);
  MODE("SOFTPLUS_BWD", a * sigmoid(soft * b));
  MODE("SQRT", sqrt(a));
  MODE("SUB", a - b);
  MODE("SWISH_FWD", a * sigmoid(beta * a));
  MODE("SWISH_BWD", a * (sigmoid(beta * b) + beta * b * sigmoid(beta * b) * (1 - sigmoid(beta * b))));
  MODE("TAN", tan(a));
  MODE("TANH_FWD", tanh(a));
  MODE("TANH_BWD", a * (1 - tanh(b) * tanh(b)));
  CHECK(0, "no formula for %s", mode);
}

static void pointwise(void) {
  tensor_t* y = out("out_0");
  const tensor_t* in[3] = {port("in_0"), port("in_1"), port("in_2")};
  const char* mode = word("mode");
  int axis = (int)parameter("axis", 0);
  for (long i = 0; i < y->volume; ++i) {
    long at[MAX_RANK];
    double value[3] = {0};
    coordinates(y, i, at);
    for (int k = 0; k < 3; ++k)
      if (in[k]) value[k] = in[k]->data[broadcast(in[k], at, y->rank)];
    y->data[i] = pointwise_element(mode, value[0], value[1], value[2], (double)at[axis]);
  }
}

static void matmul(void) {
  tensor_t *a = port("a"), *b = port("b"), *c = out("c");
  for (long i = 0; i < c->volume; ++i) {
    long at[MAX_RANK], of_a[MAX_RANK], of_b[MAX_RANK];
    coordinates(c, i, at);
    memcpy(of_a, at, sizeof(at));
    memcpy(of_b, at, sizeof(at));
    double sum = 0;
    for (long k = 0; k < a->dims[a->rank - 1]; ++k) {
      of_a[c->rank - 1] = k;
      of_b[c->rank - 2] = k;
      sum += a->data[broadcast(a, of_a, c->rank)] * b->data[broadcast(b, of_b, c->rank)];
    }
    c->data[i] = sum;
  }
}

static void reduction(void) {
  const tensor_t* x = port("x");
  tensor_t* y = out("y");
  const char* mode = word("mode");
  int is_product = strncmp(mode, "MUL", 3) == 0;
  double start = is_product ? 1 : strcmp(mode, "MIN") == 0 ? INFINITY : strcmp(mode, "MAX") == 0 ? -INFINITY : 0;
  for (long i = 0; i < y->volume; ++i) y->data[i] = start;
  for (long i = 0; i < x->volume; ++i) {
    long at[MAX_RANK];
    coordinates(x, i, at);
    double *sum = &y->data[broadcast(y, at, x->rank)], value = x->data[i];
    if (strcmp(mode, "ADD") == 0 || strcmp(mode, "AVG") == 0) *sum += value;
    else if (strcmp(mode, "MUL") == 0) *sum *= value;
    else if (strcmp(mode, "MUL_NO_ZEROS") == 0) *sum *= value == 0 ? 1 : value;
    else if (strcmp(mode, "MIN") == 0) *sum = fmin(*sum, value);
    else if (strcmp(mode, "MAX") == 0) *sum = fmax(*sum, value);
    else if (strcmp(mode, "AMAX") == 0) *sum = fmax(*sum, fabs(value));
    else if (strcmp(mode, "NORM1") == 0) *sum += fabs(value);
    else if (strcmp(mode, "NORM2") == 0) *sum += value * value;
    else CHECK(0, "no formula for %s", mode);
  }
  for (long i = 0; i < y->volume; ++i) {
    if (strcmp(mode, "AVG") == 0) y->data[i] /= (double)(x->volume / y->volume);
    if (strcmp(mode, "NORM2") == 0) y->data[i] = sqrt(y->data[i]);
  }
}

// Mean and variance of x over the dims that `kept` does not have, or has as 1.
static void moments(const tensor_t* x, const tensor_t* kept, double* mean, double* variance) {
  double count = (double)(x->volume / kept->volume);
  memset(mean, 0, sizeof(double) * (size_t)kept->volume);
  memset(variance, 0, sizeof(double) * (size_t)kept->volume);
  for (int round = 0; round < 2; ++round)
    for (long i = 0; i < x->volume; ++i) {
      long at[MAX_RANK];
      coordinates(x, i, at);
      long k = broadcast(kept, at, x->rank);
      if (round == 0) mean[k] += x->data[i] / count;
      else variance[k] += (x->data[i] - mean[k]) * (x->data[i] - mean[k]) / count;
    }
}

static void batchnorm_inference(void) {
  const tensor_t *x = port("x"), *mean = port("mean"), *inverse = port("inv_variance"), *scale = port("scale");
  const tensor_t* bias = port("bias");
  tensor_t* y = out("y");
  for (long i = 0; i < x->volume; ++i) {
    long at[MAX_RANK];
    coordinates(x, i, at);
    long c = broadcast(mean, at, x->rank);
    y->data[i] = (x->data[i] - mean->data[c]) * inverse->data[c] * scale->data[c] + bias->data[c];
  }
}

static void batchnorm(void) {
  const tensor_t *x = port("x"), *scale = port("scale"), *bias = port("bias");
  tensor_t *y = out("y"), *mean = out("mean"), *inverse = out("inv_variance");
  tensor_t *next_mean = out("next_running_mean"), *next_variance = out("next_running_variance");
  double means[scale->volume], variances[scale->volume], epsilon = port("epsilon")->data[0];
  moments(x, scale, means, variances);
  for (long i = 0; i < x->volume; ++i) {
    long at[MAX_RANK];
    coordinates(x, i, at);
    long c = broadcast(scale, at, x->rank);
    y->data[i] = (x->data[i] - means[c]) / sqrt(variances[c] + epsilon) * scale->data[c] + bias->data[c];
  }
  double count = (double)(x->volume / scale->volume), momentum = next_mean ? port("momentum")->data[0] : 0;
  for (long c = 0; c < scale->volume; ++c) {
    if (mean) mean->data[c] = means[c];
    if (inverse) inverse->data[c] = 1 / sqrt(variances[c] + epsilon);
    if (next_mean) next_mean->data[c] = (1 - momentum) * port("prev_running_mean")->data[c] + momentum * means[c];
    if (next_variance)
      next_variance->data[c] = (1 - momentum) * port("prev_running_variance")->data[c] +
                               momentum * variances[c] * count / (count - 1);
  }
}

static void rmsnorm(void) {
  const tensor_t *x = port("x"), *scale = port("scale"), *bias = port("bias");
  tensor_t *y = out("y"), *inverse = out("inv_rms");
  double epsilon = port("epsilon")->data[0];
  long inner = scale->volume;  // the dims that scale does not repeat are the last ones
  for (long row = 0; row < x->volume / inner; ++row) {
    double sum = 0;
    for (long i = 0; i < inner; ++i) sum += x->data[row * inner + i] * x->data[row * inner + i];
    double factor = 1 / sqrt(sum / (double)inner + epsilon);
    if (inverse) inverse->data[row] = factor;
    for (long i = 0; i < inner; ++i)
      y->data[row * inner + i] = x->data[row * inner + i] * factor * scale->data[i] + (bias ? bias->data[i] : 0);
  }
}

static void attention(void) {
  const tensor_t *q = port("q"), *k = port("k"), *v = port("v"), *mask = port("attn_mask");
  tensor_t* o = out("o");
  long queries = q->dims[2], depth = q->dims[3], keys = k->dims[2], width = v->dims[3];
  double scale = port("scale") ? port("scale")->data[0] : parameter("attn_scale_value", 1 / sqrt((double)depth));
  int causal = parameter("causal_mask", 0) != 0;
  double* weights = malloc(sizeof(double) * (size_t)keys);
  for (long row = 0; row < q->dims[0] * q->dims[1] * queries; ++row) {
    long n = row / queries / q->dims[1], h = row / queries % q->dims[1], i = row % queries;
    long of_k = n * k->dims[1] + h / (q->dims[1] / k->dims[1]), of_v = n * v->dims[1] + h / (q->dims[1] / v->dims[1]);
    double largest = -INFINITY, sum = 0;
    for (long j = 0; j < keys; ++j) {
      double dot = 0;
      for (long d = 0; d < depth; ++d) dot += q->data[row * depth + d] * k->data[(of_k * keys + j) * depth + d];
      weights[j] = dot * scale;
      const long at[] = {n, h, i, j};
      if (mask) weights[j] += mask->data[broadcast(mask, at, 4)];
      if (causal && j > i) weights[j] = -INFINITY;
      largest = fmax(largest, weights[j]);
    }
    for (long j = 0; j < keys; ++j) sum += weights[j] = exp(weights[j] - largest);
    for (long d = 0; d < width; ++d) {
      double value = 0;
      for (long j = 0; j < keys; ++j) value += weights[j] / sum * v->data[(of_v * keys + j) * width + d];
      o->data[row * width + d] = value;
    }
  }
  free(weights);
}

// One pair of a query and a key: what it adds to dq, dk and dv, whose sums over heads and queries these are.
static void attention_pair(long n, long h, long i, long j, double scale, double delta) {
  const tensor_t *q = port("q"), *k = port("k"), *v = port("v"), *grad = port("do"), *mask = port("attn_mask");
  tensor_t *dq = out("dq"), *dk = out("dk"), *dv = out("dv");
  long depth = q->dims[3], width = v->dims[3], keys = k->dims[2], row = (n * q->dims[1] + h) * q->dims[2] + i;
  long of_k = (n * k->dims[1] + h / (q->dims[1] / k->dims[1])) * keys + j;
  long of_v = (n * v->dims[1] + h / (q->dims[1] / v->dims[1])) * keys + j;
  const long at[] = {n, h, i, j};
  double score = mask ? mask->data[broadcast(mask, at, 4)] : 0, slope = 0;
  for (long d = 0; d < depth; ++d) score += scale * q->data[row * depth + d] * k->data[of_k * depth + d];
  for (long d = 0; d < width; ++d) slope += grad->data[row * width + d] * v->data[of_v * width + d];
  double weight = exp(score - port("stats")->data[row]), change = scale * weight * (slope - delta);
  for (long d = 0; d < depth; ++d) dq->data[row * depth + d] += change * k->data[of_k * depth + d];
  for (long d = 0; d < depth; ++d) dk->data[of_k * depth + d] += change * q->data[row * depth + d];
  for (long d = 0; d < width; ++d) dv->data[of_v * width + d] += weight * grad->data[row * width + d];
}

static void attention_backward(void) {
  const tensor_t *q = port("q"), *o = port("o"), *grad = port("do");
  long heads = q->dims[1], queries = q->dims[2], keys = port("k")->dims[2], width = o->dims[3];
  double scale = parameter("attn_scale_value", 1 / sqrt((double)q->dims[3]));
  int causal = parameter("causal_mask", 0) != 0;
  for (long row = 0; row < q->dims[0] * heads * queries; ++row) {
    long i = row % queries;
    double delta = 0;
    for (long d = 0; d < width; ++d) delta += grad->data[row * width + d] * o->data[row * width + d];
    for (long j = 0; j < (causal && i + 1 < keys ? i + 1 : keys); ++j)
      attention_pair(row / queries / heads, row / queries % heads, i, j, scale, delta);
  }
}

static void run_node(void) {
  static const struct {
    const char* name;
    void (*function)(void);
  } all[] = {{"conv_fprop", convolutions}, {"conv_dgrad", convolutions},   {"conv_wgrad", convolutions},
             {"pointwise", pointwise},     {"matmul", matmul},             {"reduction", reduction},
             {"batchnorm", batchnorm},     {"batchnorm_inference", batchnorm_inference},
             {"rmsnorm", rmsnorm},         {"sdpa", attention},
             {"sdpa_backward", attention_backward}};
  for (size_t i = 0; i < sizeof(all) / sizeof(*all); ++i) {
    if (strcmp(op, all[i].name) != 0) continue;
    all[i].function();
    return;
  }
  CHECK(0, "the reference has no operation %s", op);
}

// ---- reading and judging --------------------------------------------------------------------------------------------

static const void* buffer_of(const case_t* each, long long uid) {
  for (uint32_t i = 0; i < each->count; ++i)
    if (each->buffers[i].uid == uid) return each->buffers[i].ptr;
  return NULL;
}

static void read_tensor(FILE* file, const case_t* done) {
  CHECK(tensor_count < MAX_TENSORS, "more than %d tensors", MAX_TENSORS);
  tensor_t* t = &tensors[tensor_count++];
  CHECK(fscanf(file, "%lld %15s %lf %d", &t->uid, t->type, &t->allowed, &t->rank) == 4, "a tensor");
  CHECK(t->rank <= MAX_RANK, "rank %d", t->rank);
  t->volume = 1;
  for (int i = 0; i < t->rank; ++i) {
    CHECK(fscanf(file, "%ld", &t->dims[i]) == 1, "dims of %lld", t->uid);
    t->volume *= t->dims[i];
  }
  for (int i = 0; i < t->rank; ++i) CHECK(fscanf(file, "%ld", &t->strides[i]) == 1, "strides of %lld", t->uid);
  t->data = calloc((size_t)t->volume, sizeof(double));
  CHECK(t->data, "out of memory");
  const void* base = buffer_of(done, t->uid);
  int is_input = 0;
  for (uint32_t i = 0; i < done->count; ++i) is_input |= done->buffers[i].uid == t->uid && !done->is_output[i];
  for (long i = 0; is_input && i < t->volume; ++i) t->data[i] = element(t->type, base, offset(t, i));
}

static attribute_t* read_attribute(FILE* file) {
  CHECK(attribute_count < MAX_ATTRIBUTES, "more than %d attributes", MAX_ATTRIBUTES);
  attribute_t* each = &attributes[attribute_count++];
  memset(each, 0, sizeof(*each));
  CHECK(fscanf(file, "%63s", each->name) == 1, "an attribute of %s", op);
  return each;
}

static void read_line(FILE* file, const char* kind, const case_t* done) {
  long long uid;
  if (strcmp(kind, "tensor") == 0) {
    read_tensor(file, done);
  } else if (strcmp(kind, "value") == 0) {
    double value;
    CHECK(fscanf(file, "%lld %lf", &uid, &value) == 2, "a value");
    find(uid)->data[0] = value;
  } else if (strcmp(kind, "op") == 0) {
    CHECK(fscanf(file, "%63s", op) == 1, "an operation");
    port_count = attribute_count = 0;
  } else if (strcmp(kind, "port") == 0) {
    CHECK(port_count < MAX_PORTS, "more than %d ports", MAX_PORTS);
    CHECK(fscanf(file, "%31s %lld", ports[port_count].name, &uid) == 2, "a port of %s", op);
    ports[port_count++].tensor = find(uid);
  } else if (strcmp(kind, "numbers") == 0) {
    attribute_t* each = read_attribute(file);
    CHECK(fscanf(file, "%d", &each->count) == 1 && each->count <= MAX_RANK, "%s", each->name);
    for (int i = 0; i < each->count; ++i) CHECK(fscanf(file, "%lf", &each->numbers[i]) == 1, "%s", each->name);
  } else if (strcmp(kind, "word") == 0) {
    attribute_t* each = read_attribute(file);
    CHECK(fscanf(file, "%63s", each->word) == 1, "%s", each->name);
  } else {
    CHECK(strcmp(kind, "run") == 0, "a line of kind %s", kind);
    run_node();
  }
}

// What a tensor makes of a number: 4 bits are rounded to nearest, ties to even, and limited.
static double stored(const tensor_t* t, double value) {
  return strcmp(t->type, "INT4") == 0 ? fmax(-8, fmin(7, rint(value))) : value;
}

// The largest error of a tensor in units of what is allowed.
static double worst(const tensor_t* t, const void* base) {
  double largest = 0, error = 0;
  for (long i = 0; i < t->volume; ++i) largest = fmax(largest, fabs(t->data[i]));
  for (long i = 0; i < t->volume; ++i) {
    double seen = element(t->type, base, offset(t, i));
    double right = stored(t, t->data[i]);
    double off = fabs(seen - right) / (t->allowed * (1 + largest));
    CHECK(off <= 1, "tensor %lld: element %ld is %.9g, the reference says %.9g", t->uid, i, seen, right);
    error = fmax(error, off);
  }
  return error;
}

int reference_check(const case_t* done, const char* folder) {
  char path[4096], kind[16];
  snprintf(path, sizeof(path), "%s/reference", folder);
  FILE* file = fopen(path, "r");
  if (!file) return 0;
  while (fscanf(file, "%15s", kind) == 1) read_line(file, kind, done);
  fclose(file);
  long count = 0;
  double error = 0;
  for (uint32_t i = 0; i < done->count; ++i) {
    if (!done->is_output[i]) continue;
    const tensor_t* t = find(done->buffers[i].uid);
    CHECK(t->is_made, "no node of the reference makes tensor %lld", t->uid);
    error = fmax(error, worst(t, done->buffers[i].ptr));
    count += t->volume;
  }
  printf("reference %ld elements, worst error %.3f of what is allowed\n", count, error);
  for (int i = 0; i < tensor_count; ++i) free(tensors[i].data);
  tensor_count = 0;
  return 1;
}
