"""The structures that the core takes, as ``core/core.h`` declares them."""

from __future__ import annotations

import ctypes
from typing import Final

__all__ = ["EVENTS", "LANES", "SCALARS", "Decoded", "Flag", "KernelLayout", "Kind", "MemoryLayout", "Operand"]

LANES: Final = 64
SCALARS: Final = 128
EVENTS: Final = (
    "bytes read outside all buffers",
    "buffer offsets past 2**32",
    "buffer words across the end",
    "buffer words outside",
    "accesses outside private memory",
)
"""What is counted besides instructions, in the order of the core."""


class Kind:
    """What an operand is."""

    NOTHING, VECTOR, SCALAR, CONSTANT, EXEC, EXEC_HIGH, CONDITION = range(7)


class Flag:
    """Properties of operands (the first three) and of instructions."""

    NEGATIVE, ABSOLUTE, SIGN_EXTENDED = 1, 2, 4
    CLAMP, KEEP_HIGH, RESULT_HIGH, ZERO_INVALID, OFFSET_ENABLED, TO_LDS, SIGNED, D16 = (1 << n for n in range(8))
    HIGH, TWICE, SPARSE, RETURNS, SCALED = (1 << n for n in range(8, 13))


class Operand(ctypes.Structure):
    """One operand; ``select`` is 6 for all of it, 0 to 3 for a byte, 4 and 5 for a half."""

    _fields_ = (
        ("kind", ctypes.c_uint8),
        ("words", ctypes.c_uint8),
        ("select", ctypes.c_uint8),
        ("flags", ctypes.c_uint8),
        ("index", ctypes.c_uint32),
        ("value", ctypes.c_uint64),
    )


class Decoded(ctypes.Structure):
    """One instruction."""

    _fields_ = (
        ("handler", ctypes.c_int32),
        ("function", ctypes.c_int32),
        ("numbers", ctypes.c_int32 * 6),
        ("flags", ctypes.c_uint32),
        ("result_select", ctypes.c_uint8),
        ("result_unused", ctypes.c_uint8),
        ("op_sel", ctypes.c_uint8),
        ("op_sel_hi", ctypes.c_uint8),
        ("neg_lo", ctypes.c_uint8),
        ("neg_hi", ctypes.c_uint8),
        ("sources", ctypes.c_uint8),
        ("rows", ctypes.c_uint8),
        ("banks", ctypes.c_uint8),
        ("moved", ctypes.c_uint8),
        ("results", ctypes.c_uint8),
        ("signature", ctypes.c_char * 8),
        ("result", Operand * 2),
        ("source", Operand * 5),
        ("lanes", ctypes.c_int8 * LANES),
    )


class MemoryLayout(ctypes.Structure):
    """Global memory: bytes, which of them belong to buffers, and the address of the first."""

    _fields_ = (
        ("bytes", ctypes.c_void_p),
        ("owned", ctypes.c_void_p),
        ("base", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
        ("offsets_wrap", ctypes.c_int32),
    )


class KernelLayout(ctypes.Structure):
    """A kernel, its grid, and how its waves start."""

    _fields_ = (
        ("code", ctypes.POINTER(Decoded)),
        ("count", ctypes.c_int32),
        ("group", ctypes.c_uint32 * 3),
        ("grid", ctypes.c_uint32 * 3),
        ("lds_size", ctypes.c_uint32),
        ("private_size", ctypes.c_uint32),
        ("scalars", ctypes.c_uint32 * SCALARS),
        ("workgroup_at", ctypes.c_int32 * 3),
        ("wave_offset_at", ctypes.c_int32),
        ("packed_items", ctypes.c_int32),
        ("item_axes", ctypes.c_int32),
        ("flush_f32", ctypes.c_int32),
        ("limit", ctypes.c_int64),
        ("counts", ctypes.POINTER(ctypes.c_uint64)),
        ("events", ctypes.POINTER(ctypes.c_uint64)),
        ("message", ctypes.c_char_p),
        ("message_size", ctypes.c_uint32),
    )
