// What the Python side hands over: decoded instructions, memory, and how a kernel starts. `layout.py` mirrors it.
#pragma once

#include <stdint.h>

enum { LANES = 64, VECTORS = 512, SCALARS = 128, ACCUMULATORS = 256, VCC = 106, M0 = 124, MAX_WAVES = 16 };

// What an operand is.
enum { NOTHING, VECTOR, SCALAR, CONSTANT, EXEC, EXEC_HIGH, CONDITION };
enum { NEGATIVE = 1, ABSOLUTE = 2, SIGN_EXTENDED = 4 };

typedef struct {
  uint8_t kind, words, select, flags;  // select: 0..3 a byte, 4, 5 a half, 6 all of it
  uint32_t index;
  uint64_t value;
} operand;

// What an instruction is made of besides its operands.
enum {
  CLAMP = 1, KEEP_HIGH = 2, RESULT_HIGH = 4, ZERO_INVALID = 8, OFFSET_ENABLED = 16, TO_LDS = 32, SIGNED = 64, D16 = 128,
  HIGH = 256, TWICE = 512, SPARSE = 1024, RETURNS = 2048, SCALED = 4096
};

typedef struct {
  int32_t handler, function;
  int32_t numbers[6];  // meaning by handler
  uint32_t flags;
  uint8_t result_select, result_unused, op_sel, op_sel_hi, neg_lo, neg_hi, sources;
  uint8_t rows, banks, moved, results;
  char signature[8];
  operand result[2];
  operand source[5];
  int8_t lanes[LANES];  // where DPP takes each lane from; -1: from nowhere
} instruction;

typedef struct {
  uint8_t *bytes, *owned;
  uint64_t base, size;
  int32_t offsets_wrap;
} memory;

typedef struct {
  const instruction *code;
  int32_t count;
  uint32_t group[3], grid[3];
  uint32_t lds_size, private_size;
  uint32_t scalars[SCALARS];  // at the start; those of a workgroup are filled in at these places, -1: not wanted
  int32_t workgroup_at[3], wave_offset_at;
  int32_t packed_items, item_axes, flush_f32;
  int64_t limit;     // instructions of a wave; a matrix instruction counts for its products / 64
  uint64_t *counts;  // of each instruction
  uint64_t *events;  // see below
  char *message;
  uint32_t message_size;
} kernel;

// What is counted; and, counted from one, the first instruction that read outside.
enum { READ_OUTSIDE, WRAPPED, ACROSS_END, BEYOND_END, PRIVATE_OUTSIDE, FIRST_OUTSIDE, EVENTS };
enum { RIGHT, HAZARD, UNMODELLED, STOPPED };
