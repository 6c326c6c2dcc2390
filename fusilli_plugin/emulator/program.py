"""Compiled code, executed: the commands that its host program makes, recorded as for HIP, and its kernels."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from fusilli_plugin.emulator.assembly import Kernel, UnmodelledError, parse
from fusilli_plugin.emulator.machine import HazardError, Machine, Memory
from graph_api import Graph, TensorAttr
from graph_api.errors import ExecutionError, NotSupportedError
from iree_bridge import Options, Target
from iree_bridge.compile.compiler import compile_assembly
from iree_bridge.runtime.arguments import Argument
from iree_bridge.runtime.program import load_module, workspace_size
from iree_bridge.runtime.recorded import ArgumentOffset, Copy, Fill, Launch, Recording, UnrecordableError, record

__all__ = ["CHIPS", "Assembled", "assemble", "check_chip", "emulate", "run_code"]

Array = np.ndarray[Any, Any]

CHIPS: Final = ("gfx90a", "gfx942", "gfx950")
"""Whose instructions are modelled."""

_MARGIN: Final = 8192  # bytes around a buffer: guards and alignment
_CHIP: Final = re.compile(r"\.amdgcn_target \"[^\"]*?(gfx\w+)")


@dataclass(frozen=True)
class Assembled:
    """Code of a graph for an AMD chip.

    Attributes:
        vmfb: host program and machine code.
        assembly: the text of the machine code, of all kernels.
        flags: the compiler flags.
        dispatches: number of kernel launches, if it is known.
    """

    vmfb: bytes
    assembly: str
    flags: tuple[str, ...] = ()
    dispatches: int | None = None


def check_chip(target: Target) -> None:
    """Refuses what has no model.

    Raises:
        NotSupportedError: the chip has none.
    """
    if target.chip not in CHIPS:
        raise NotSupportedError("", "target", f"'{target}' cannot be emulated, {', '.join(CHIPS)} can")


def assemble(graph: Graph, target: Target, options: Options | None = None) -> Assembled:
    """Compiles a graph as for a device of the target, and keeps the assembly.

    Raises:
        NotSupportedError: the chip has no model, or the emitter declines the graph.
        CompileError: the compiler failed.
    """
    check_chip(target)
    compiled, text = compile_assembly(graph, target, options)
    return Assembled(compiled.vmfb, text, compiled.flags, compiled.dispatches)


def emulate(
    graph: Graph, pack: Mapping[TensorAttr, Array], code: Assembled, machine: Machine | None = None
) -> dict[TensorAttr, Array]:
    """The results of a graph's code; elements that no kernel writes are 77.

    Args:
        graph: the graph.
        pack: its inputs, in host memory, as for a device; nothing is written to them.
        code: what ``assemble`` made of the graph.
        machine: where it runs; by default a new one with the memory that it takes.

    Raises:
        ExecutionError: an input is missing, or of other dims, strides or type than its tensor.
        UnmodelledError: an instruction, or a command of the host program, that has no model.
        HazardError: the code depends on luck, writes where it must not, or writes to an input.
    """
    arguments = graph.arguments()
    for tensor in arguments.inputs:
        if tensor not in pack:
            raise ExecutionError(f"no array for input '{tensor.name}'; graph.random_inputs(seed=0) makes one for each")
        Argument(tensor, is_output=False).check(pack[tensor], ("cpu", 0), may_copy=True)
    results = {tensor: tensor.memory() for tensor in arguments.outputs}
    for array in results.values():
        array[...] = array.dtype.type(77)
    outputs = [_memory(tensor, array) for tensor, array in results.items()]
    inputs = [_memory(tensor, np.asarray(pack[tensor])).copy() for tensor in arguments.inputs]
    before = [array.copy() for array in inputs]
    run_code(code, [*outputs, *inputs], machine)
    for tensor, was, now in zip(arguments.inputs, before, inputs, strict=True):
        if not np.array_equal(was, now):
            raise HazardError(f"input '{tensor.name}' has been written to")
    return results


def run_code(code: Assembled, arguments: Sequence[Array], machine: Machine | None = None) -> Machine:
    """Runs a program's commands on the arguments of its entry, arrays of bytes, some of which it writes.

    Returns:
        Where it ran, with what was counted.
    """
    workspace = workspace_size(load_module(code.vmfb))
    try:
        recording = record(code.vmfb, [array.nbytes for array in arguments], workspace)
    except UnrecordableError as error:
        raise UnmodelledError(f"the host program: {error}") from error
    machine = machine or Machine(Memory(0))
    sizes = [*(array.nbytes for array in arguments), workspace, *recording.temporaries]
    machine.memory.reserve(sum(sizes) + (len(sizes) + 4 * len(recording.commands)) * _MARGIN + _MARGIN)
    chip = _CHIP.search(code.assembly)
    machine.chip = chip[1] if chip else machine.chip
    memory = machine.memory
    addresses = [memory.allocate(array.nbytes) for array in arguments]
    for array, address in zip(arguments, addresses, strict=True):
        memory.view(address, array.nbytes)[:] = array
    addresses.append(memory.allocate(workspace))
    for place, size in enumerate(recording.temporaries):
        address = memory.allocate(size)
        addresses.append(address)
        if place in recording.contents:
            memory.view(address, size)[:] = np.frombuffer(recording.contents[place], np.uint8)
    _Runner(machine, parse(code.assembly), addresses).run(recording)
    for array, address in zip(arguments, addresses, strict=False):
        array[:] = memory.view(address, array.nbytes)
    return machine


@dataclass
class _Runner:
    machine: Machine
    kernels: Mapping[str, Kernel]
    addresses: Sequence[int]

    def run(self, recording: Recording) -> None:
        for command in recording.commands:
            if isinstance(command, Launch):
                self._launch(command)
            elif isinstance(command, Fill):
                self._fill(command)
            else:
                self._copy(command)

    def _address(self, place: ArgumentOffset) -> int:
        return self.addresses[place.argument] + place.offset

    def _launch(self, launch: Launch) -> None:
        kernel = self.kernels.get(launch.kernel.name)
        if kernel is None:
            raise UnmodelledError(f"kernel {launch.kernel.name}, whose assembly is not there")
        if kernel.workgroup != launch.kernel.block:
            raise UnmodelledError(
                f"kernel {kernel.name} of {kernel.workgroup} items, launched with {launch.kernel.block}"
            )
        self.machine.launch(kernel, launch.grid, [self._address(each) for each in launch.pointers], launch.numbers)

    def _fill(self, fill: Fill) -> None:
        pattern = np.frombuffer(fill.pattern.to_bytes(fill.width, "little"), np.uint8)
        view = self.machine.memory.view(self._address(fill.target), fill.nbytes)
        view[:] = np.tile(pattern, fill.nbytes // fill.width)

    def _copy(self, copy: Copy) -> None:
        source = self.machine.memory.view(self._address(copy.source), copy.nbytes).copy()
        self.machine.memory.view(self._address(copy.target), copy.nbytes)[:] = source


def _memory(tensor: TensorAttr, array: Array) -> Array:
    """The memory of a tensor's array, gaps between its elements included; what values of packed types are stored as."""
    if tensor.data_type.is_packed:
        return np.asarray(array if array.dtype == np.uint8 else tensor.pack(array)).reshape(-1).view(np.uint8)
    extent = sum((size - 1) * stride for size, stride in zip(array.shape, array.strides, strict=True)) + array.itemsize
    return np.ctypeslib.as_array((ctypes.c_uint8 * extent).from_address(array.ctypes.data))
