"""Global memory, and kernels that run on it."""

from __future__ import annotations

import ctypes
import math
import struct
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from fusilli_plugin.emulator.assembly import Kernel, UnmodelledError
from fusilli_plugin.emulator.decode import decode
from fusilli_plugin.emulator.layout import EVENTS, SCALARS, Decoded, KernelLayout, Kind, MemoryLayout
from fusilli_plugin.emulator.library import core

__all__ = ["HazardError", "Machine", "Memory"]

Array = np.ndarray[Any, Any]

_GUARD: Final = 4096
_WAVE: Final = 64
_LIMIT: Final = 100_000_000  # instructions of a wave
_SLICE: Final = 1 << 20  # instructions, until Python sees signals: a tenth of a second
_LARGEST_GRID: Final = (1 << 31) - 1
_LDS: Final = {"gfx950": 160 << 10}  # bytes of a workgroup; of the others 64 KiB
_RIGHT, _HAZARD, _, _STOPPED = range(4)
# Where private memory lies, and the bits by which the core knows its descriptor.
_PRIVATE: Final = (0, 0x7E57 | 1 << 31, 0xFFFFFFFF, 0x00EA0000)
_PACKED_ITEMS: Final = ("gfx90a", "gfx940", "gfx941", "gfx942", "gfx950")


class HazardError(Exception):
    """The code depends on an order that nothing makes sure of, or touches memory that is not its own."""


class Memory:
    """Global memory, NaN at first: buffers at addresses of its own, with guards between them.

    Attributes:
        bytes: all of it.
        owned: which bytes belong to buffers.
        next: where the next buffer may begin.
        offsets_wrap: whether the sum of a buffer instruction's vector and immediate offsets is taken modulo 2**32
            before it is compared with the buffer's size. If not, an access with a negative vector offset is outside.
    """

    BASE: Final = 0x7F12_3400_0000

    def __init__(self, size: int = 1 << 26) -> None:
        self.bytes = np.full(size, 0xFF, np.uint8)
        self.owned = np.zeros(size, np.uint8)
        self.next = _GUARD
        self.offsets_wrap = True

    def allocate(self, size: int) -> int:
        """The address of ``size`` new bytes, a multiple of 256.

        Raises:
            UnmodelledError: the memory is full.
        """
        start = -(-self.next // 256) * 256
        self.next = -(-(start + size) // 256) * 256 + _GUARD
        if self.next > len(self.bytes):
            raise UnmodelledError(f"memory of {len(self.bytes)} bytes is full: {size} more are asked for")
        self.owned[start : start + size] = 1
        return self.BASE + start

    def reserve(self, size: int) -> None:
        """Makes sure that ``size`` more bytes, guards included, can be allocated."""
        missing = self.next + size - len(self.bytes)
        if missing > 0:
            self.bytes = np.concatenate([self.bytes, np.full(missing, 0xFF, np.uint8)])
            self.owned = np.concatenate([self.owned, np.zeros(missing, np.uint8)])

    def view(self, address: int, size: int) -> Array:
        """The bytes at an address."""
        start = address - self.BASE
        return self.bytes[start : start + size]


@dataclass
class Machine:
    """Runs kernels on one memory.

    Attributes:
        memory: global memory.
        chip: architecture, e.g. ``gfx942``.
        counts: what has been executed, by opcode, and the events of `EVENTS`.
        first_outside: the instruction that first read outside all buffers, with its kernel.
    """

    memory: Memory = field(default_factory=Memory)
    counts: Counter[str] = field(default_factory=Counter)
    chip: str = "gfx942"
    _code: dict[int, tuple[Kernel, ctypes.Array[Decoded]]] = field(default_factory=dict, repr=False)
    first_outside: str = ""

    def launch(
        self, kernel: Kernel, grid: Sequence[int], pointers: Sequence[int], constants: Sequence[int] = ()
    ) -> None:
        """Runs all workgroups, one after the other.

        Args:
            kernel: its code.
            grid: number of workgroups along x, y, z.
            pointers: addresses of its buffers.
            constants: further arguments, 32 bits each.

        Raises:
            UnmodelledError: an instruction that has no model; sizes that a chip refuses.
            HazardError: the code depends on luck.
            BuildError: the core is not there and cannot be built.
        """
        self._check_sizes(kernel, grid)
        # Kernels load whole lines of 64 bytes, in which the segment of arguments is allocated.
        arguments = self.memory.allocate(max(-(-kernel.directives["kernarg_size"] // 64) * 64, 64))
        self._write_arguments(kernel, arguments, pointers, constants, grid)
        code = self._decoded(kernel)
        counts, events = (ctypes.c_uint64 * len(kernel.code))(), (ctypes.c_uint64 * (len(EVENTS) + 1))()
        message = ctypes.create_string_buffer(512)
        layout = KernelLayout(
            code=code, count=len(kernel.code), group=kernel.workgroup, grid=tuple(grid),
            lds_size=kernel.directives["group_segment_fixed_size"],
            private_size=kernel.directives["private_segment_fixed_size"],
            packed_items=self.chip in _PACKED_ITEMS,
            item_axes=1 + kernel.directives.get("system_vgpr_workitem_id", 2),
            limit=_LIMIT, counts=counts, events=events,
            flush_f32=kernel.directives.get("float_denorm_mode_32", 3) == 0,
            message=ctypes.cast(message, ctypes.c_char_p), message_size=len(message),
        )  # fmt: skip
        self._set_registers(layout, kernel, arguments, grid)
        memory = MemoryLayout(
            bytes=self.memory.bytes.ctypes.data, owned=self.memory.owned.ctypes.data, base=Memory.BASE,
            size=len(self.memory.bytes), offsets_wrap=self.memory.offsets_wrap,
        )  # fmt: skip
        status = _run(layout, memory)
        self._count(kernel, counts, events)
        if status != _RIGHT:
            self._raise(kernel, status, message.value.decode("utf-8", "replace"))

    def _check_sizes(self, kernel: Kernel, grid: Sequence[int]) -> None:
        """What a chip has room for, and what a launch may ask for."""
        lds, most = kernel.directives["group_segment_fixed_size"], _LDS.get(self.chip, 64 << 10)
        if lds > most:
            raise UnmodelledError(f"kernel {kernel.name}: {lds} bytes of LDS, {self.chip} has {most} for a workgroup")
        items = math.prod(kernel.workgroup)
        if items > 1024:
            raise UnmodelledError(f"kernel {kernel.name}: a workgroup of {items} work items")
        sizes = zip(grid, kernel.workgroup, strict=True)
        if not all(1 <= groups <= _LARGEST_GRID and groups * size < 1 << 32 for groups, size in sizes):
            raise UnmodelledError(f"kernel {kernel.name}: a grid of {tuple(grid)} workgroups of {kernel.workgroup}")

    def _count(self, kernel: Kernel, counts: ctypes.Array[Any], events: ctypes.Array[Any]) -> None:
        for instruction, count in zip(kernel.code, counts, strict=True):
            if count:
                self.counts[instruction.opcode] += count
        for name, count in zip(EVENTS, events, strict=False):
            self.counts[name] += count
        if (first := events[len(EVENTS)]) and not self.first_outside:
            self.first_outside = f"by {kernel.code[first - 1].text} (in {kernel.name})"

    def _raise(self, kernel: Kernel, status: int, message: str) -> None:
        kind = HazardError if status == _HAZARD else UnmodelledError
        place = message.rpartition("; instruction ")[2].split(",")[0]
        at = int(place) if place.lstrip("-").isdigit() else -1
        text = kernel.code[at].text if 0 <= at < len(kernel.code) else ""
        raise kind(f"{message}: {text} (in {kernel.name})")

    def _decoded(self, kernel: Kernel) -> ctypes.Array[Decoded]:
        known = self._code.get(id(kernel))
        if known is None:
            places = {name: self._constant(data) for name, data in kernel.constants.items()}
            each = [decode(instruction, kernel.labels, core(), self.chip, places) for instruction in kernel.code]
            for instruction, decoded in zip(kernel.code, each, strict=True):
                _check_registers(kernel, instruction.text, decoded)
            known = self._code[id(kernel)] = kernel, (Decoded * len(each))(*each)
        return known[1]

    def _constant(self, data: bytes) -> int:
        address = self.memory.allocate(len(data))
        self.memory.view(address, len(data))[:] = np.frombuffer(data, np.uint8)
        return address

    def _write_arguments(
        self, kernel: Kernel, address: int, pointers: Sequence[int], constants: Sequence[int], grid: Sequence[int]
    ) -> None:
        kinds = [kind for _, _, kind in kernel.arguments]
        told = ["global_buffer"] * len(pointers) + ["by_value"] * len(constants)
        hidden = _hidden(kernel, grid)
        if kinds[: len(told)] != told or not hidden.keys() >= set(kinds[len(told) :]):
            raise UnmodelledError(f"arguments {kinds} for {len(pointers)} buffers and {len(constants)} constants")
        values = [*pointers, *constants, *(hidden[kind] for kind in kinds[len(told) :])]
        for (offset, size, _), value in zip(kernel.arguments, values, strict=True):
            if value >> 8 * size:
                raise UnmodelledError(f"argument {value:#x} in {size} bytes")
            self.memory.view(address + offset, size)[:] = np.frombuffer(value.to_bytes(size, "little"), np.uint8)

    def _set_registers(self, layout: KernelLayout, kernel: Kernel, arguments: int, grid: Sequence[int]) -> None:
        """Scalar registers at the start, in the order that LLVM's guide to the backend gives."""
        told = kernel.directives
        values: list[int] = []
        if told.get("user_sgpr_private_segment_buffer"):
            values += _PRIVATE
        if told.get("user_sgpr_dispatch_ptr"):
            values += _words(self._packet(kernel, grid))
        if told.get("user_sgpr_queue_ptr"):
            values += _words(self.memory.allocate(256))
        if told.get("user_sgpr_kernarg_segment_ptr"):
            values += _words(arguments)
        if told.get("user_sgpr_dispatch_id"):
            values += [1, 0]
        if told.get("user_sgpr_flat_scratch_init"):
            values += [0, 0]
        if told.get("user_sgpr_private_segment_size"):
            values.append(told["private_segment_fixed_size"])
        loaded = told.get("user_sgpr_kernarg_preload_length", 0)
        if loaded:
            first = told.get("user_sgpr_kernarg_preload_offset", 0)
            if 4 * (first + loaded) > told["kernarg_size"]:
                raise UnmodelledError(f"{loaded} words loaded from word {first} on of {told['kernarg_size']} bytes")
            start = arguments + 4 * first
            values += np.frombuffer(self.memory.view(start, 4 * loaded).tobytes(), np.uint32).tolist()
        if len(values) > told["user_sgpr_count"]:
            raise UnmodelledError(f"{len(values)} user registers, {told['user_sgpr_count']} are declared")
        layout.scalars[:] = [*values, *[0xFFFFFFFF] * (SCALARS - len(values))]
        at = told["user_sgpr_count"]
        for axis, name in enumerate("xyz"):
            wanted = told.get(f"system_sgpr_workgroup_id_{name}", 0)
            layout.workgroup_at[axis] = at if wanted else -1
            at += wanted
        at += told.get("system_sgpr_workgroup_info", 0)
        offset = told.get("system_sgpr_private_segment_wavefront_offset", 0)
        layout.wave_offset_at = at if offset else -1

    def _packet(self, kernel: Kernel, grid: Sequence[int]) -> int:
        """A dispatch packet: header, then sizes of a workgroup (16 bits) and of the grid (32 bits), in work items."""
        address = self.memory.allocate(64)
        items = [groups * size for groups, size in zip(grid, kernel.workgroup, strict=True)]
        packet = struct.pack("<HHHHHHIII", 0, 3, *kernel.workgroup, 0, *items)
        self.memory.view(address, len(packet))[:] = np.frombuffer(packet, np.uint8)
        return address


def _hidden(kernel: Kernel, grid: Sequence[int]) -> dict[str, int]:
    """What a launch adds to a kernel's arguments, by kind: see the metadata in LLVM's guide to the backend."""
    values = {
        "hidden_grid_dims": 1 + max((axis for axis in range(3) if grid[axis] * kernel.workgroup[axis] > 1), default=0)
    }
    for axis, name in enumerate("xyz"):
        values[f"hidden_block_count_{name}"] = grid[axis]
        values[f"hidden_group_size_{name}"] = kernel.workgroup[axis]
        values[f"hidden_remainder_{name}"] = values[f"hidden_global_offset_{name}"] = 0
    return values


def _run(layout: KernelLayout, memory: MemoryLayout) -> int:
    """Runs a kernel a slice at a time, so that a signal ends it."""
    run = core().begin(ctypes.byref(layout), ctypes.byref(memory))
    if not run:
        raise UnmodelledError(f"no memory for {tuple(layout.group)} work items")
    try:
        while (status := core().go_on(run, _SLICE)) == _STOPPED:
            pass
        return status
    finally:
        core().end(run)


def _check_registers(kernel: Kernel, text: str, decoded: Decoded) -> None:
    """Registers must be among those that the kernel asks for: others belong to other waves."""
    told = kernel.directives
    most = told.get("next_free_vgpr")
    if most is None:
        return
    vectors = told.get("accum_offset", most)
    accumulators = -(-most // 8) * 8 - vectors  # they are allocated by eights
    for each in (*decoded.result[: decoded.results], *decoded.source[: decoded.sources]):
        if each.kind != Kind.VECTOR:
            continue
        kind, first = divmod(each.index, 256)
        if first + each.words > (accumulators if kind else vectors):
            raise HazardError(
                f"kernel {kernel.name} uses registers up to {'va'[kind]}{first + each.words - 1}, "
                f"{accumulators if kind else vectors} of this kind are its own: {text}"
            )


def _words(address: int) -> list[int]:
    return [address & 0xFFFFFFFF, address >> 32]
