"""The parts of a VMFB that its host program consists of: functions, imports, constants.

The format is that of IREE's ``bytecode_module_def.fbs``, bytecode version 17.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from iree_bridge.runtime.recorded.flatbuffer import Table

__all__ = ["Function", "Import", "Module", "read_module"]

VERSION: Final = 17
"""Major version of the bytecode that is understood."""

_ZIP: Final = b"PK\x03\x04"
_ZIP_HEADER: Final = struct.Struct("<26xHH")  # lengths of the file name and of the extra field
_MAX_STATE: Final = 1 << 20  # bytes of global numbers, and number of global references
_ALIGNMENT: Final = 64  # of the constants behind the FlatBuffer


class Import(NamedTuple):
    """A function of another module: its full name and IREE's spelling of arguments and results."""

    name: str
    arguments: str
    results: str


class Function(NamedTuple):
    """A function of this module: its code, and how many registers of each bank it has."""

    code: memoryview
    registers: int
    references: int


class Module(NamedTuple):
    """A host program.

    Attributes:
        imports: by ordinal.
        functions: by ordinal.
        exports: name -> ordinal.
        rodata: constants, code for the device among them.
        global_bytes: size of the global numbers.
        global_references: number of global references.
    """

    imports: tuple[Import, ...]
    functions: tuple[Function, ...]
    exports: dict[str, int]
    rodata: tuple[memoryview, ...]
    global_bytes: int
    global_references: int


def read_module(code: bytes) -> Module:
    """The host program in VMFB bytes.

    Raises:
        ValueError: the bytes are of another version.
        struct.error: they are damaged.
    """
    data = memoryview(code)
    start = 0
    if code[:4] == _ZIP:
        start = 30 + sum(_ZIP_HEADER.unpack_from(data, 0))
    (size,) = struct.unpack_from("<I", data, start)
    begin = start + 4
    table = Table.root(data[begin : begin + size])
    version = table.number(13, "I") >> 16
    if version != VERSION:
        raise ValueError(f"bytecode version {version}, only {VERSION} is read")
    external = -(-(begin + size) // _ALIGNMENT) * _ALIGNMENT
    bytecode = table.data(14)
    functions = [
        Function(_slice(bytecode, offset, length), registers, references)
        for offset, length, _, _, _, registers, references in table.structs(12, "iiIhhhh")
    ]
    state = table.table(11)
    if state and not (0 <= state.number(0, "i") <= _MAX_STATE and 0 <= state.number(1, "i") <= _MAX_STATE):
        raise ValueError("the program has too many globals")
    return Module(
        imports=tuple(_import(each) for each in table.tables(6)),
        functions=tuple(functions),
        exports={each.text(0): each.number(1, "i") for each in table.tables(7)},
        rodata=tuple(_rodata(each, data, external) for each in table.tables(9)),
        global_bytes=state.number(0, "i") if state else 0,
        global_references=state.number(1, "i") if state else 0,
    )


def _import(table: Table) -> Import:
    signature = table.table(1)
    convention = signature.text(0) if signature else ""
    if not convention.startswith("0"):
        raise ValueError(f"calling convention {convention!r}")
    arguments, _, results = convention[1:].partition("_")
    return Import(table.text(0), arguments, results)


def _rodata(table: Table, data: memoryview, external: int) -> memoryview:
    length = table.number(4, "Q")
    if not length:
        return table.data(2)
    return _slice(data, external + table.number(3, "Q"), length)


def _slice(data: memoryview, offset: int, length: int) -> memoryview:
    if offset < 0 or length < 0 or offset + length > len(data):
        raise struct.error("a part lies outside of the data")
    return data[offset : offset + length]
