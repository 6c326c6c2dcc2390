"""Runs the host program of compiled code, with functions of ours in place of IREE's runtime.

The instructions are those that host programs of static shapes consist of; encodings as in IREE's ``isa.json``.
Registers of numbers are 32 bits wide, a 64-bit number takes two. There is no reference counting to do here, so "move"
is a copy.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from iree_bridge.runtime.recorded.module import Function, Import, Module

__all__ = ["Interpreter", "UnknownInstructionError"]

_MAX_STEPS: Final = 500_000  # instructions, and registers that they list
_MAX_DEPTH: Final = 16
_IMPORT: Final = 0x80000000
_REFERENCE: Final = 0x8000  # marks a reference register in a list of registers
_REFERENCE_MASK: Final = 0x3FFF

_U16: Final = struct.Struct("<H")
_U32: Final = struct.Struct("<I")
_I32: Final = struct.Struct("<i")
_I64: Final = struct.Struct("<q")

_BINARY_32: Final[dict[int, Callable[[int, int], int]]] = {
    0x22: lambda a, b: a + b,
    0x33: lambda a, b: a & b,
    0x34: lambda a, b: a | b,
    0x35: lambda a, b: a ^ b,
}
_BINARY_64: Final[dict[int, Callable[[int, int], int]]] = {
    0x2A: lambda a, b: a + b,
    0x2B: lambda a, b: a - b,
    0x2C: lambda a, b: a * b,
}
_COMPARE_64: Final[dict[int, Callable[[int, int], bool]]] = {
    0x4E: lambda a, b: a == b,
    0x50: lambda a, b: a < b,
}


class UnknownInstructionError(Exception):
    """The program has an instruction, or calls a function, that is not known here."""


class _Return(Exception):  # noqa: N818 - it is none
    """Ends a function; holds its results."""


class Interpreter:
    """A host program and its state.

    Args:
        module: the program.
        host: what its imports do, by full name. A call passes numbers, references, and a list of tuples for each
            variadic part; it returns one value, or a tuple of them, or None.
    """

    def __init__(self, module: Module, host: Mapping[str, Callable[..., Any]]) -> None:
        self.module = module
        self.host = host
        self.numbers = bytearray(module.global_bytes)
        self.references: list[Any] = [None] * module.global_references
        self.steps = 0

    def call(self, name: str, *arguments: Any) -> tuple[Any, ...]:
        """Run an exported function that takes references.

        Raises:
            UnknownInstructionError: it does something that is not known here.
            LookupError, struct.error: its code is damaged.
        """
        return self.run(self.module.functions[self.module.exports[name]], list(arguments), 0)

    def spend(self, steps: int) -> None:
        """Count work: whatever the program is, it ends.

        Raises:
            UnknownInstructionError: it takes too long.
        """
        self.steps += steps
        if self.steps > _MAX_STEPS:
            raise UnknownInstructionError(f"the program takes more than {_MAX_STEPS} steps")

    def run(self, function: Function, references: Sequence[Any], depth: int) -> tuple[Any, ...]:
        """Run a function that takes and returns references; see ``call``."""
        if depth > _MAX_DEPTH:
            raise UnknownInstructionError("calls are nested too deeply")
        frame = _Frame(self, function, depth)
        frame.references[: len(references)] = references
        try:
            while True:
                self.spend(1)
                frame.step()
        except _Return as done:
            return done.args


class _Frame:
    """A function that runs: its registers and where it is."""

    def __init__(self, owner: Interpreter, function: Function, depth: int) -> None:
        self.owner = owner
        self.code = function.code
        self.depth = depth
        self.at = 0
        self.numbers = bytearray(4 * (function.registers + 2))
        self.references: list[Any] = [None] * (function.references + 1)

    # ---- fields of instructions

    def u16(self) -> int:
        (value,) = _U16.unpack_from(self.code, self.at)
        self.at += 2
        return value

    def u32(self) -> int:
        (value,) = _U32.unpack_from(self.code, self.at)
        self.at += 4
        return value

    def registers(self) -> list[int]:
        self.at += self.at % 2
        return [self.u16() for _ in range(self.count())]

    def count(self) -> int:
        """The length of a list that follows."""
        value = self.u16()
        self.owner.spend(value)
        return value

    def target(self) -> tuple[int, list[tuple[int, int]]]:
        """Where a branch goes, and which registers it sets on the way."""
        destination = self.u32()
        self.at += self.at % 2
        return destination, [(self.u16(), self.u16()) for _ in range(self.count())]

    # ---- registers

    def get32(self, register: int) -> int:
        return _I32.unpack_from(self.numbers, 4 * register)[0]

    def get64(self, register: int) -> int:
        return _I64.unpack_from(self.numbers, 4 * register)[0]

    def put32(self, register: int, value: int) -> None:
        _U32.pack_into(self.numbers, 4 * register, value & 0xFFFFFFFF)

    def put64(self, register: int, value: int) -> None:
        struct.pack_into("<Q", self.numbers, 4 * register, value & 0xFFFFFFFFFFFFFFFF)

    def get_reference(self, register: int) -> Any:
        return self.references[register & _REFERENCE_MASK]

    def put_reference(self, register: int, value: Any) -> None:
        self.references[register & _REFERENCE_MASK] = value

    # ---- instructions

    def step(self) -> None:
        opcode = self.code[self.at]
        self.at += 1
        if opcode in _BINARY_32:
            a, b = self.get32(self.u16()), self.get32(self.u16())
            self.put32(self.u16(), _BINARY_32[opcode](a, b))
        elif opcode in _BINARY_64:
            a, b = self.get64(self.u16()), self.get64(self.u16())
            self.put64(self.u16(), _BINARY_64[opcode](a, b))
        elif opcode in _COMPARE_64:
            a, b = self.get64(self.u16()), self.get64(self.u16())
            self.put32(self.u16(), _COMPARE_64[opcode](a, b))
        else:
            action = _ACTIONS.get(opcode)
            if action is None:
                raise UnknownInstructionError(f"instruction {opcode:#x}")
            action(self)

    def global_load_32(self) -> None:
        offset = self.u32()
        self.put32(self.u16(), _I32.unpack_from(self.owner.numbers, offset)[0])

    def global_store_32(self) -> None:
        offset = self.u32()
        _I32.pack_into(self.owner.numbers, offset, self.get32(self.u16()))

    def global_load_64(self) -> None:
        offset = self.u32()
        self.put64(self.u16(), _I64.unpack_from(self.owner.numbers, offset)[0])

    def global_store_64(self) -> None:
        offset = self.u32()
        _I64.pack_into(self.owner.numbers, offset, self.get64(self.u16()))

    def global_load_reference(self) -> None:
        index, _type = self.u32(), self.u32()
        self.put_reference(self.u16(), self.owner.references[index])

    def global_store_reference(self) -> None:
        index, _type = self.u32(), self.u32()
        self.owner.references[index] = self.get_reference(self.u16())

    def constant_32(self) -> None:
        value = self.u32()
        self.put32(self.u16(), value)

    def zero_32(self) -> None:
        self.put32(self.u16(), 0)

    def constant_64(self) -> None:
        low, high = self.u32(), self.u32()
        self.put64(self.u16(), high << 32 | low)

    def zero_64(self) -> None:
        self.put64(self.u16(), 0)

    def null(self) -> None:
        self.put_reference(self.u16(), None)

    def rodata(self) -> None:
        data = self.owner.module.rodata[self.u32()]
        self.put_reference(self.u16(), data)

    def assign(self) -> None:
        value = self.get_reference(self.u16())
        self.put_reference(self.u16(), value)

    def discard(self) -> None:
        self.registers()

    def select_32(self) -> None:
        condition, yes, no = self.get32(self.u16()), self.get32(self.u16()), self.get32(self.u16())
        self.put32(self.u16(), yes if condition else no)

    def select_64(self) -> None:
        condition, yes, no = self.get32(self.u16()), self.get64(self.u16()), self.get64(self.u16())
        self.put64(self.u16(), yes if condition else no)

    def select_reference(self) -> None:
        condition, _type = self.get32(self.u16()), self.u32()
        yes, no = self.get_reference(self.u16()), self.get_reference(self.u16())
        self.put_reference(self.u16(), yes if condition else no)

    def truncate(self) -> None:
        value = self.get64(self.u16())
        self.put32(self.u16(), value)

    def extend(self) -> None:
        value = self.get32(self.u16())
        self.put64(self.u16(), value)

    def extend_unsigned(self) -> None:
        value = self.get32(self.u16()) & 0xFFFFFFFF
        self.put64(self.u16(), value)

    def is_not_zero_32(self) -> None:
        value = self.get32(self.u16())
        self.put32(self.u16(), value != 0)

    def is_not_zero_64(self) -> None:
        value = self.get64(self.u16())
        self.put32(self.u16(), value != 0)

    def is_not_null(self) -> None:
        value = self.get_reference(self.u16())
        self.put32(self.u16(), value is not None)

    def block(self) -> None:
        """Only marks a place."""

    def branch(self) -> None:
        self._go(*self.target())

    def branch_if(self) -> None:
        condition = self.get32(self.u16())
        yes, no = self.target(), self.target()
        self._go(*(yes if condition else no))

    def _go(self, destination: int, moves: Sequence[tuple[int, int]]) -> None:
        for source, target in moves:
            if source & _REFERENCE:
                self.put_reference(target, self.get_reference(source))
            else:
                self.put32(target, self.get32(source))
        self.at = destination

    def call(self) -> None:
        ordinal, operands, results = self.u32(), self.registers(), self.registers()
        if ordinal & _IMPORT:
            self._call_import(ordinal, [], operands, results)
        else:
            self._call_function(ordinal, operands, results)

    def call_variadic(self) -> None:
        ordinal, sizes, operands, results = self.u32(), self.registers(), self.registers(), self.registers()
        if not ordinal & _IMPORT:
            raise UnknownInstructionError("a variadic call of an own function")
        self._call_import(ordinal, sizes, operands, results)

    def call_yieldable(self) -> None:
        ordinal, operands, destination, results = self.u32(), self.registers(), self.u32(), self.registers()
        if ordinal & _IMPORT:
            self._call_import(ordinal, [], operands, results)
        else:
            self._call_function(ordinal, operands, results)
        self.at = destination

    def call_variadic_yieldable(self) -> None:
        ordinal, sizes, operands = self.u32(), self.registers(), self.registers()
        destination, results = self.u32(), self.registers()
        if not ordinal & _IMPORT:
            raise UnknownInstructionError("a variadic call of an own function")
        self._call_import(ordinal, sizes, operands, results)
        self.at = destination

    def leave(self) -> None:
        operands = self.registers()
        if not all(register & _REFERENCE for register in operands):
            raise UnknownInstructionError("an own function that returns numbers")
        raise _Return(*map(self.get_reference, operands))

    def fail(self) -> None:
        status = self.get32(self.u16())
        length = self.u16()
        text = bytes(self.code[self.at : self.at + length]).decode("utf-8", "replace")
        self.at += length
        if status:
            raise UnknownInstructionError(f"the program fails: {text[:100]}")

    # ---- calls

    def _call_function(self, ordinal: int, operands: Sequence[int], results: Sequence[int]) -> None:
        if not all(register & _REFERENCE for register in operands):
            raise UnknownInstructionError("a call of an own function that takes numbers")
        references = [self.get_reference(register) for register in operands]
        values = self.owner.run(self.owner.module.functions[ordinal], references, self.depth + 1)
        for register, value in zip(results, values, strict=True):
            self.put_reference(register, value)

    def _call_import(self, ordinal: int, sizes: Sequence[int], operands: Sequence[int], results: Sequence[int]) -> None:
        function = self.owner.module.imports[ordinal & ~_IMPORT]
        action = self.owner.host.get(function.name)
        if action is None:
            raise UnknownInstructionError(f"a call of {function.name}")
        value = action(*self._arguments(function, sizes, operands))
        values = () if value is None and not function.results.strip("v") else value
        values = values if isinstance(values, tuple) else (values,)
        for kind, register, each in zip(function.results.replace("v", ""), results, values, strict=True):
            self._put(kind, register, each)

    def _arguments(self, function: Import, sizes: Sequence[int], operands: Sequence[int]) -> list[Any]:
        arguments: list[Any] = []
        registers = deque(operands)  # taking from an empty one is an IndexError
        for position, part in enumerate(_parts(function.arguments)):
            if len(part) == 1:
                arguments.append(self._get(part, registers.popleft()))
            else:
                kinds, count = part[1:-1], sizes[position]
                self.owner.spend(count)
                arguments.append([tuple(self._get(kind, registers.popleft()) for kind in kinds) for _ in range(count)])
        return arguments

    def _get(self, kind: str, register: int) -> Any:
        if kind == "r":
            return self.get_reference(register)
        if kind in "iI":
            return self.get32(register) if kind == "i" else self.get64(register)
        raise UnknownInstructionError(f"an argument of kind {kind}")

    def _put(self, kind: str, register: int, value: Any) -> None:
        if kind == "r":
            self.put_reference(register, value)
        elif kind == "i":
            self.put32(register, value)
        elif kind == "I":
            self.put64(register, value)
        else:
            raise UnknownInstructionError(f"a result of kind {kind}")


def _parts(convention: str) -> list[str]:
    """``rICiD`` -> ``r``, ``I``, ``CiD``."""
    parts: list[str] = []
    rest = convention.replace("v", "")
    while rest:
        end = rest.index("D") + 1 if rest[0] == "C" else 1
        parts.append(rest[:end])
        rest = rest[end:]
    return parts


_ACTIONS: Final[dict[int, Callable[[_Frame], None]]] = {
    0x00: _Frame.global_load_32,
    0x01: _Frame.global_store_32,
    0x04: _Frame.global_load_64,
    0x05: _Frame.global_store_64,
    0x08: _Frame.global_load_reference,
    0x09: _Frame.global_store_reference,
    0x0C: _Frame.zero_32,
    0x0D: _Frame.constant_32,
    0x0E: _Frame.zero_64,
    0x0F: _Frame.constant_64,
    0x10: _Frame.null,
    0x11: _Frame.rodata,
    0x1C: _Frame.select_32,
    0x1D: _Frame.select_64,
    0x1E: _Frame.select_reference,
    0x42: _Frame.truncate,
    0x47: _Frame.extend,
    0x48: _Frame.extend_unsigned,
    0x4D: _Frame.is_not_zero_32,
    0x52: _Frame.is_not_zero_64,
    0x55: _Frame.is_not_null,
    0x56: _Frame.branch,
    0x57: _Frame.branch_if,
    0x58: _Frame.call,
    0x59: _Frame.call_variadic,
    0x5A: _Frame.leave,
    0x5B: _Frame.fail,
    0x79: _Frame.block,
    0x85: _Frame.discard,
    0x86: _Frame.assign,
    0x87: _Frame.call_yieldable,
    0x88: _Frame.call_variadic_yieldable,
}
