"""An emulator of the machine code that the compiler writes for AMD's gfx90a, gfx942 and gfx950. No GPU is needed.

It executes the compiler's assembly text, an instruction at a time for 64 lanes. Opcodes, operand forms and the order
of argument registers are those of AMD's instruction set documents ("CDNA2", "CDNA3", "CDNA4") and of LLVM's "User Guide
for AMDGPU Backend". An opcode, modifier or operand without a model raises `UnmodelledError` and is named.

What it finds besides wrong results (`HazardError`): registers used before what was loaded has come (``s_waitcnt``), LDS
that two waves touch without a barrier between, waves that end while others wait, writes outside all buffers. Reads
outside, and accesses of buffer instructions out of their range, are counted. Memory and registers hold NaN at first.

What it does not model:

* time, caches, order between workgroups, several kernels at once; the wait states that ``s_nop`` is for;
* rounding to the last bit: the products of a matrix instruction are summed in float64 and rounded once, ``v_exp_f32``,
  ``v_rcp_f32`` and the like are rounded from float64;
* output modifiers, typed or swizzled buffers, the aperture of LDS in flat addresses: they raise.

The range check of buffer instructions is the one that AMD's own simulator took from gfx950 hardware
(github.com/ROCm/rocm-systems, pull request 10928): the vector and the immediate offset wrap at 2**32, the scalar one
does not, and each word must end within the buffer. `Memory.offsets_wrap` shows what depends on the wrapping.
"""

from __future__ import annotations

from fusilli_plugin.emulator.assembly import UnmodelledError
from fusilli_plugin.emulator.machine import HazardError, Machine, Memory
from fusilli_plugin.emulator.outcome import EmulationError, Emulator, Outcome, Verdict
from fusilli_plugin.emulator.program import CHIPS, Assembled, assemble, emulate, run_code

__all__ = [
    "CHIPS",
    "Assembled",
    "EmulationError",
    "Emulator",
    "HazardError",
    "Machine",
    "Memory",
    "Outcome",
    "UnmodelledError",
    "Verdict",
    "assemble",
    "emulate",
    "run_code",
]
