"""A functional emulator of the gfx942 instructions that our kernels use, run from the compiler's assembly text.

It follows AMD's "Instinct MI300 (CDNA3) Instruction Set Architecture" and, for directives, argument registers and
names, LLVM's "User Guide for AMDGPU Backend". An opcode, modifier or operand without a model raises.

What it finds besides wrong results (`HazardError`): registers used before what was loaded has come (``s_waitcnt``), LDS
that two waves touch without a barrier between, waves that end while others wait, writes outside all buffers. Reads
outside, and accesses of buffer instructions out of their range, are counted. Memory and registers hold NaN at first.

What it does not model:

* time, caches, order between workgroups, several kernels at once; the wait states that ``s_nop`` is for;
* rounding to the last bit: float32 subnormals are kept where the code asks to flush them, the products of a matrix
  instruction are summed in float64 and rounded once, so is a fused multiply-add; ``v_exp_f32``, ``v_rcp_f32`` and the
  like are numpy's;
* scaled divisions, atomics, private memory, typed or swizzled buffers, LDS written by loads, several blocks in a matrix
  instruction, 8-bit, integer and float64 matrix instructions: they raise.

The range check of buffer instructions is the one that AMD's own simulator took from gfx950 hardware
(github.com/ROCm/rocm-systems, pull request 10928): the vector and the immediate offset wrap at 2**32, the scalar one
does not, and each word must end within the buffer. `Memory.offsets_wrap` shows what depends on the wrapping.
"""
