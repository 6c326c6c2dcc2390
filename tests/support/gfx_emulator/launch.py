"""Running kernels, and the commands around them that the compiler writes as IR of its `hal` phase."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from tests.support.gfx_emulator import scalar, transfer, vector
from tests.support.gfx_emulator.assembly import Instruction, Kernel, UnmodelledError
from tests.support.gfx_emulator.state import Array, HazardError, Lds, Memory, Wave, registers

__all__ = ["Machine", "run_commands"]

_LIMIT: Final = 200_000
_INDEXABLE: Final = {"v_mov_b32_e32", "s_set_gpr_idx_off"}


@dataclass
class Machine:
    """Runs kernels on one memory.

    Attributes:
        counts: what has been executed, by opcode, and events of interest.
    """

    memory: Memory = field(default_factory=Memory)
    counts: Counter[str] = field(default_factory=Counter)

    def launch(
        self, kernel: Kernel, grid: Sequence[int], pointers: Sequence[int], constants: Sequence[int] = ()
    ) -> None:
        """Runs all workgroups, one after the other."""
        arguments = self.memory.allocate(max(kernel.directives["kernarg_size"], 8))
        self._write_arguments(kernel, arguments, pointers, constants)
        code = [_decode(instruction, kernel) for instruction in kernel.code]
        with np.errstate(all="ignore"):
            for z, y, x in itertools.product(*(range(size) for size in reversed(grid))):
                self._workgroup(kernel, code, arguments, (x, y, z))

    def _write_arguments(self, kernel: Kernel, address: int, pointers: Sequence[int], constants: Sequence[int]) -> None:
        kinds = [kind for _, _, kind in kernel.arguments]
        values = [*pointers, *constants]
        if kinds != ["global_buffer"] * len(pointers) + ["by_value"] * len(constants):
            raise UnmodelledError(f"arguments {kinds} for {len(pointers)} buffers and {len(constants)} constants")
        for (offset, size, _), value in zip(kernel.arguments, values, strict=True):
            self.memory.view(address + offset, size)[:] = np.frombuffer(value.to_bytes(size, "little"), np.uint8)

    def _workgroup(self, kernel: Kernel, code: list[_Step], arguments: int, place: tuple[int, int, int]) -> None:
        lds = Lds(kernel.directives["group_segment_fixed_size"])
        size = int(np.prod(kernel.workgroup))
        waves = [self._wave(kernel, number, lds, arguments, place) for number in range(-(-size // 64))]
        running = waves
        while running:
            ends = {wave.number: self._run(wave, code) for wave in running}
            if len(set(ends.values())) > 1:
                raise HazardError(f"some waves of a workgroup end while others wait: {ends}")
            running = [] if scalar.END in ends.values() else running
            lds.forget()
        for wave in waves:
            self.counts.update(wave.counts)

    def _wave(self, kernel: Kernel, number: int, lds: Lds, arguments: int, place: tuple[int, int, int]) -> Wave:
        wave = Wave(number, self.memory, lds)
        told = kernel.directives
        used = ("dispatch_ptr", "queue_ptr", "dispatch_id", "private_segment_size")
        if any(told[f"user_sgpr_{name}"] for name in used) or told["enable_private_segment"]:
            raise UnmodelledError("user registers besides the arguments' address, or private memory")
        first = 0
        if told["user_sgpr_kernarg_segment_ptr"]:
            wave.s[0:2] = [arguments & 0xFFFFFFFF, arguments >> 32]
            first = 2
        loaded = told["user_sgpr_kernarg_preload_length"]
        if loaded:
            start = arguments + 4 * told["user_sgpr_kernarg_preload_offset"]
            wave.s[first : first + loaded] = self.memory.words(start, loaded)
        next_register = told["user_sgpr_count"]
        for axis, name in enumerate("xyz"):
            if told[f"system_sgpr_workgroup_id_{name}"]:
                wave.s[next_register] = place[axis]
                next_register += 1
        item = np.arange(64 * number, 64 * (number + 1))
        width, height, _ = kernel.workgroup
        wave.v[0] = item % width | item // width % height << 10 | item // (width * height) << 20
        wave.mask = item < np.prod(kernel.workgroup)
        return wave

    def _run(self, wave: Wave, code: list[_Step]) -> str:
        """Until a barrier or the end."""
        for _ in range(_LIMIT):
            step = code[wave.pc]
            if wave.pending and not wave.pending.isdisjoint(step.registers):
                raise HazardError(f"a register is used before what was loaded has come: {step.instruction.text}")
            if wave.index is not None and step.instruction.opcode not in _INDEXABLE:
                raise UnmodelledError(f"an indexed source: {step.instruction.text}")
            wave.pc += 1
            wave.counts[step.instruction.opcode] += 1
            try:
                signal = step.action(wave)
            except (HazardError, UnmodelledError) as error:
                error.add_note(f"at {wave.pc - 1} of wave {wave.number}: {step.instruction.text}")
                raise
            if signal:
                return signal
        raise HazardError(f"no end after {_LIMIT} instructions")


@dataclass(frozen=True)
class _Step:
    instruction: Instruction
    action: Callable[[Wave], str | None]
    registers: frozenset[int]


def _decode(instruction: Instruction, kernel: Kernel) -> _Step:
    try:
        action = scalar.decode(instruction, kernel) or transfer.decode(instruction) or vector.decode(instruction)
    except (KeyError, ValueError) as error:
        raise UnmodelledError(f"{error!r} in: {instruction.text}") from error
    if action is None:
        raise UnmodelledError(f"opcode {instruction.opcode}: {instruction.text}")
    return _Step(instruction, action, registers(instruction.operands))


# Commands

_CONSTANT: Final = re.compile(r"(%[\w.$-]+) = arith\.constant (-?\d+) : ")
_RANGE: Final = re.compile(r"\((%[\w.$-]+) : (?:index|!hal\.buffer)\)\[(%[\w.$-]+), (%[\w.$-]+)\]")


def run_commands(ir: str, kernels: Mapping[str, Kernel], arguments: Sequence[Array], machine: Machine) -> None:
    """Runs a program's commands on the arguments of its entry, arrays of bytes, some of which it writes.

    Fills with a byte and dispatches of constant sizes, in one stream: what our graphs need.
    """
    functions = re.split(r"\n  (?=util\.(?:func|initializer))", ir)
    entry = next(text for text in functions if text.startswith("util.func public @main$async("))
    addresses = []
    for argument in arguments:
        addresses.append(machine.memory.allocate(argument.nbytes))
        machine.memory.view(addresses[-1], argument.nbytes)[:] = argument
    sizes = next(text for text in functions if text.startswith("util.func public @main$async_transients_size("))
    if match := re.search(r"util\.return (%\w+)", sizes):
        addresses.append(_scratch(machine, _constants(sizes)[match[1]]))
    _Program(machine, kernels, functions).enter(entry, addresses)
    for argument, address in zip(arguments, addresses, strict=False):
        argument[:] = machine.memory.view(address, argument.nbytes)


@dataclass
class _Program:
    machine: Machine
    kernels: Mapping[str, Kernel]
    functions: list[str]

    def enter(self, text: str, addresses: Sequence[int]) -> None:
        """Executes the entry with the arguments at these addresses."""
        values = _constants(text)
        values.update((f"%arg{number}", address) for number, address in enumerate(addresses))
        for name, number in re.findall(r"(%\w+) = hal\.buffer_view\.buffer<%arg(\d+) ", text):
            values[name] = addresses[int(number)]
        for name, size in re.findall(r"(%\w+) = hal\.device\.queue\.alloca<.*!hal\.buffer\{(%[\w-]+)\}", text):
            values[name] = _scratch(self.machine, values[size])
        for name, other in re.findall(r"(%\w+) = util\.optimization_barrier (%\w+) : !hal\.buffer", text):
            values[name] = values[other]
        if "queue.execute<" in text:
            self.commands(text, [], values)
        pattern = r"queue\.execute\.indirect<[^\n]*commands\((%[\w$]+)\) bindings\(\[\n(.*?)\n *\]\)"
        for commands, bindings in re.findall(pattern, text, re.DOTALL):
            slots = [values[buffer] + values[start] for buffer, start, _ in _RANGE.findall(bindings)]
            recorded = self._recorded(text, commands)
            self.commands(recorded, slots, _constants(recorded))

    def _recorded(self, text: str, commands: str) -> str:
        """The function that recorded a command buffer."""
        loaded = re.search(rf"{re.escape(commands)} = util\.global\.load (?:immutable )?@([\w$]+)", text)
        assert loaded is not None
        maker = next(
            re.search(r"util\.call @([\w$]+)\(", each)
            for each in self.functions
            if re.search(rf"util\.global\.store %\w+, @{re.escape(loaded[1])} :", each)
        )
        assert maker is not None
        return next(each for each in self.functions if re.match(rf"util\.func private @{re.escape(maker[1])}\(", each))

    def commands(self, text: str, slots: Sequence[int], values: dict[str, int]) -> None:
        """Executes the commands that a function records."""
        names = dict(re.findall(r"(%[\w$]+) = hal\.executable\.lookup\.function .*::@([\w$]+)\) : i64", text))
        memory = self.machine.memory

        def address(buffer: str, start: str) -> int:
            base = slots[values[buffer]] if slots else values[buffer]
            return base + values[start]

        for command in re.split(r"\n    (?=hal\.command_buffer\.)", text)[1:]:
            kind = re.match(r"hal\.command_buffer\.(\w+)", command)
            assert kind is not None
            if kind[1] == "dispatch":
                function = re.search(r"\)\[(%[\w$]+)\] workgroups\(\[(.*?)\]\)( constants)?", command)
                assert function is not None
                if function[3]:
                    raise UnmodelledError(f"constants of a dispatch: {command}")
                grid = [values[name] for name in function[2].split(", ")]
                pointers = [address(buffer, start) for buffer, start, _ in _RANGE.findall(command)]
                self.machine.launch(self.kernels[names[function[1]]], grid, pointers)
            elif kind[1] == "fill_buffer":
                buffer, start, size, value = re.findall(r"(%[\w-]+)(?: :|,|\])", command)[1:5]
                memory.view(address(buffer, start), values[size])[:] = values[value] & 0xFF
            elif kind[1] == "copy_buffer":
                form = r"source\((%[\w-]+).*?\)\[(%[\w-]+)\] target\((%[\w-]+).*?\)\[(%[\w-]+)\] length\((%[\w-]+)\)"
                found = re.search(form, command)
                assert found is not None
                source, begin, target, start, length = found.groups()
                copied = memory.view(address(source, begin), values[length])
                memory.view(address(target, start), values[length])[:] = copied
            elif kind[1] not in ("execution_barrier", "finalize"):
                raise UnmodelledError(command)


def _scratch(machine: Machine, size: int) -> int:
    """The address of new memory, full of NaN."""
    address = machine.memory.allocate(size)
    machine.memory.view(address, size)[:] = 0xFF
    return address


def _constants(text: str) -> dict[str, int]:
    return {name: int(value) for name, value in _CONSTANT.findall(text)}
