"""Small kernels as assembly text, and what they compute: instructions tried one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fusilli_plugin.emulator import Machine, Memory
from fusilli_plugin.emulator.assembly import parse

__all__ = ["LANES", "SOURCE", "TARGET", "compute", "floats", "halves", "kernel_text", "launch", "words"]

Array = np.ndarray[Any, Any]
LANES = 64
SOURCE, TARGET = 2, 100
"""The first vector registers of inputs and of results."""

_KERNEL = """\
tried:
{body}
\ts_endpgm
\t.amdhsa_kernel tried
\t\t.amdhsa_group_segment_fixed_size {lds}
\t\t.amdhsa_private_segment_fixed_size {private}
\t\t.amdhsa_kernarg_size {arguments}
\t\t.amdhsa_user_sgpr_count 2
\t\t.amdhsa_user_sgpr_kernarg_segment_ptr 1
\t\t.amdhsa_system_sgpr_workgroup_id_x 1
\t\t.amdhsa_float_denorm_mode_32 {subnormals}
\t.end_amdhsa_kernel
\t.amdgpu_metadata
amdhsa.kernels:
  - .agpr_count: 0
    .args:
{entries}
    .group_segment_fixed_size: {lds}
    .name: tried
    .reqd_workgroup_size:
      - {items}
      - 1
      - 1
\t.end_amdgpu_metadata
"""
_ENTRY = """\
      - .address_space: global
        .offset: {offset}
        .size: 8
        .value_kind: global_buffer"""


def kernel_text(
    body: str, *, buffers: int = 2, items: int = LANES, lds: int = 0, private: int = 0, subnormals: int = 3
) -> str:
    """The assembly text of a kernel; its arguments lie where s[0:1] points to, work items are numbered in v0."""
    entries = "\n".join(_ENTRY.format(offset=8 * place) for place in range(buffers))
    lines = "\n".join(
        line if line.endswith(":") else "\t" + line for line in (text.strip() for text in body.splitlines()) if line
    )
    return _KERNEL.format(
        body=lines, lds=lds, private=private, arguments=8 * buffers, subnormals=subnormals, entries=entries, items=items
    )


def launch(
    text: str, buffers: Sequence[Array], *, chip: str = "gfx942", groups: int = 1, wraps: bool = True
) -> Machine:
    """Runs a kernel on buffers, which it may change."""
    memory = Memory(1 << 20)
    memory.offsets_wrap = wraps
    machine = Machine(memory, chip=chip)
    addresses = [memory.allocate(buffer.nbytes) for buffer in buffers]
    for buffer, address in zip(buffers, addresses, strict=True):
        memory.view(address, buffer.nbytes)[:] = buffer.reshape(-1).view(np.uint8)
    machine.launch(parse(text)["tried"], (groups, 1, 1), addresses)
    for buffer, address in zip(buffers, addresses, strict=True):
        buffer.reshape(-1).view(np.uint8)[:] = memory.view(address, buffer.nbytes)
    return machine


def compute(
    body: str, *inputs: Array, results: int = 1, chip: str = "gfx942", lds: int = 0, subnormals: int = 3
) -> Array:
    """What instructions leave in v100 and on, [results, 64] of 32 bits, with the inputs in v2 and on.

    s[2:5] and v0, which is four times the lane's number, are taken; each input is 64 values of 32 bits.
    """
    given = np.zeros((max(len(inputs), 1), LANES), np.uint32)
    for place, each in enumerate(inputs):
        given[place] = np.ascontiguousarray(each).view(np.uint32).reshape(-1)
    step = "s_add_u32 s{0}, s{0}, 0x100\ns_addc_u32 s{1}, s{1}, 0\n"
    loads = "".join(
        f"global_load_dword v{SOURCE + place}, v0, s[2:3]\n{step.format(2, 3)}" for place in range(len(inputs))
    )
    stores = "".join(
        f"global_store_dword v0, v{TARGET + place}, s[4:5]\n{step.format(4, 5)}" for place in range(results)
    )
    text = (
        "s_load_dwordx4 s[2:5], s[0:1], 0x0\nv_and_b32_e32 v0, 0x3ff, v0\nv_lshlrev_b32_e32 v0, 2, v0\n"
        f"s_waitcnt lgkmcnt(0)\n{loads}s_waitcnt vmcnt(0)\n{body}\ns_waitcnt vmcnt(0) lgkmcnt(0)\n"
        f"s_mov_b64 exec, -1\n{stores}"
    )
    out = np.zeros((results, LANES), np.uint32)
    launch(kernel_text(text, lds=lds, subnormals=subnormals), [given, out], chip=chip)
    return out


def words(seed: int, special: Sequence[int] = ()) -> Array:
    """64 words of 32 bits, the special ones first."""
    values = np.random.default_rng(seed).integers(0, 1 << 32, LANES, dtype=np.uint64).astype(np.uint32)
    values[: len(special)] = special
    return values


def floats(seed: int, special: Sequence[float] = ()) -> Array:
    """64 single floats of many sizes, the special ones first."""
    rng = np.random.default_rng(seed)
    values = (rng.standard_normal(LANES) * 2.0 ** rng.integers(-12, 12, LANES)).astype(np.float32)
    values[: len(special)] = special
    return values


def halves(seed: int, special: Sequence[float] = ()) -> Array:
    """64 words that hold a half float below noise, as float16 [64, 2]: (value, noise)."""
    values = np.zeros((LANES, 2), np.float16)
    values[:, 0] = np.clip(floats(seed, special), -60000, 60000)
    values[: len(special), 0] = special
    values[:, 1] = floats(seed + 1000)
    return values
