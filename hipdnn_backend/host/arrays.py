"""Variant packs of Python objects: arrays are checked against the graph, then only addresses travel.

hipDNN itself takes addresses on trust. An array of the wrong shape, type or layout, a read-only output or a host array
where device memory is needed is found here instead, by the tensor's name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, TypeAlias

import ml_dtypes
import numpy as np

from hipdnn_backend import wire
from hipdnn_backend.device.memory import Buffer, Memory
from hipdnn_backend.engine import Override
from hipdnn_backend.errors import PackError
from hipdnn_backend.wire import Attributes, DataType, WireGraph, WireTensor

__all__ = ["DTYPES", "Operands", "Pack", "addresses", "extent", "operands_of"]

Pack: TypeAlias = Mapping[int, Any]
"""Tensor uid → `Buffer`, array (numpy's, or anything with ``__cuda_array_interface__``) or address."""

DTYPES: Final[dict[DataType, np.dtype[Any]]] = {
    DataType.FLOAT: np.dtype(np.float32),
    DataType.HALF: np.dtype(np.float16),
    DataType.BFLOAT16: np.dtype(ml_dtypes.bfloat16),
    DataType.DOUBLE: np.dtype(np.float64),
    DataType.UINT8: np.dtype(np.uint8),
    DataType.INT32: np.dtype(np.int32),
    DataType.INT8: np.dtype(np.int8),
    DataType.INT64: np.dtype(np.int64),
    DataType.BOOLEAN: np.dtype(np.bool_),
    DataType.FP8_E4M3: np.dtype(ml_dtypes.float8_e4m3fn),
    DataType.FP8_E5M2: np.dtype(ml_dtypes.float8_e5m2),
    DataType.FP8_E8M0: np.dtype(ml_dtypes.float8_e8m0fnu),
    DataType.FP8_E4M3_FNUZ: np.dtype(ml_dtypes.float8_e4m3fnuz),
    DataType.FP8_E5M2_FNUZ: np.dtype(ml_dtypes.float8_e5m2fnuz),
}
"""numpy's type of an element in memory. Of types of less than a byte, `_PACKED`, an array is the tensor's bytes, uint8,
or, of an input, its values in a type of ``ml_dtypes``, which are packed."""

_ALIGNMENT: Final = 64  # of memory that is made here, so that no engine copies it
_PACKED: Final[dict[DataType, tuple[int, np.dtype[Any]]]] = {
    DataType.INT4: (4, np.dtype(ml_dtypes.int4)),
    DataType.FP4_E2M1: (4, np.dtype(ml_dtypes.float4_e2m1fn)),
    DataType.FP6_E2M3: (6, np.dtype(ml_dtypes.float6_e2m3fn)),
    DataType.FP6_E3M2: (6, np.dtype(ml_dtypes.float6_e3m2fn)),
}
"""Bits of an element, lowest first in a row of bytes, and numpy's type of values, a byte each."""


class _Slot:
    """A tensor that a pack has an entry for; ``fits`` knows the usual case, an exact numpy array, quickly."""

    def __init__(self, tensor: WireTensor, is_output: bool, on_host: bool) -> None:
        self.tensor = tensor
        self.is_output = is_output
        self.on_host = on_host
        self.alignment = 1 if on_host else max(tensor.alignment, 1)
        self._dtype, self._dims, strides = _form(tensor, None)
        item = self._dtype.itemsize if self._dtype else 0
        self._strides = tuple(stride * item for stride in strides)

    def fits(self, array: np.ndarray[Any, Any]) -> bool:
        return (
            array.dtype == self._dtype
            and array.shape == self._dims
            and array.strides == self._strides
            and (not self.is_output or array.flags.writeable)
        )


class Addresses(dict[int, int]):
    """Tensor uid → address, with the memory made for values of less than a byte: both are used, and kept, together."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[np.ndarray[Any, Any]] = []


@dataclass(frozen=True)
class Operands:
    """The tensors of a graph that an execution needs, in the graph's order.

    Attributes:
        inputs: read from device memory.
        outputs: written to device memory.
        scalars: read from host memory at each execution.
        baked: uids of scalars with a value; a pack may have them, and they are ignored.
        unread: virtual results that nothing in the graph reads: written if the pack has them. They are among
            ``outputs`` if the graph has no other.
    """

    inputs: tuple[WireTensor, ...]
    outputs: tuple[WireTensor, ...]
    scalars: tuple[WireTensor, ...]
    baked: frozenset[int]
    unread: tuple[WireTensor, ...] = ()

    @cached_property
    def optional(self) -> frozenset[int]:
        """Uids that a pack need not have."""
        return frozenset(tensor.uid for tensor in self.unread)

    @cached_property
    def slots(self) -> dict[int, _Slot]:
        """Uid → what an entry of the pack has to be."""
        rows = (
            (self.inputs, False, False), (self.outputs, True, False), (self.unread, True, False),
            (self.scalars, False, True),
        )  # fmt: skip
        return {
            tensor.uid: _Slot(tensor, is_output, on_host) for tensors, is_output, on_host in rows for tensor in tensors
        }


def operands_of(graph: WireGraph) -> Operands:
    """What a variant pack of the graph holds: no virtual tensors, no scalars with a value of their own.

    Raises:
        PackError: an operation is not known, so its tensors are not either.
    """
    read: set[int] = set()
    written: set[int] = set()
    for node in graph.nodes:
        if not isinstance(node.attributes, Attributes):
            raise PackError(f"node '{node.name}' of graph '{graph.name}' is an operation that is not known here")
        read.update(uid for _, uid in node.attributes.input_uids())
        written.update(uid for _, uid in node.attributes.output_uids())
    ragged = {tensor.ragged_offset_tensor_uid for tensor in graph.tensors}
    used = [tensor for tensor in graph.tensors if not tensor.virtual and tensor.value is None]
    unread = tuple(tensor for tensor in graph.tensors if tensor.virtual and tensor.uid in written - read)
    outputs = tuple(tensor for tensor in used if tensor.uid in written) or unread
    inputs = [tensor for tensor in used if tensor.uid not in written and (tensor.uid in read or tensor.uid in ragged)]
    return Operands(
        tuple(tensor for tensor in inputs if not tensor.is_runtime_pass_by_value),
        outputs,
        tuple(tensor for tensor in inputs if tensor.is_runtime_pass_by_value),
        frozenset(tensor.uid for tensor in graph.tensors if tensor.value is not None),
        unread,
    )


def extent(tensor: WireTensor, override: Override | None = None) -> int:
    """Bytes from a tensor's first element to its last, both included; 0 if it has none.

    Raises:
        PackError: the size of its elements is not known, or dims or strides are negative.
    """
    dims, strides = (tensor.dims, tensor.strides) if override is None else (override.dims, override.strides)
    if min((*dims, *strides), default=0) < 0:
        raise PackError(f"{_name(tensor)} has dims {list(dims)} and strides {list(strides)}", tensor.uid)
    if 0 in dims:
        return 0
    elements = 1 + sum((dim - 1) * stride for dim, stride in zip(dims, strides, strict=True))
    return -(-elements * _bits(tensor) // 8)


def addresses(
    operands: Operands, pack: Pack, memory: Memory, overrides: Mapping[int, Override] | None = None
) -> Addresses:
    """Tensor uid → address, after all checks. The objects, and the answer, must stay alive until the execution is over.

    Raises:
        PackError: a tensor is missing or unknown, or what stands for it does not fit.
    """
    slots = operands.slots
    if len(pack) != len(slots) or not all(uid in pack for uid in slots):
        _check_uids(operands, pack)
    found = Addresses()
    for uid, slot in slots.items():
        if uid in operands.optional and uid not in pack:
            continue
        value, override = pack[uid], overrides.get(uid) if overrides else None
        if type(value) is np.ndarray and override is None and (memory.is_host or slot.on_host) and slot.fits(value):
            address = value.__array_interface__["data"][0]
        else:
            if not slot.is_output and _has_values(slot.tensor, value):
                value = _in_bits(slot.tensor, value, override)
                found.kept.append(value)
            address = _address(slot.tensor, value, None if slot.on_host else memory, override, slot.is_output)
        if not address and extent(slot.tensor, override):
            raise PackError(f"{_name(slot.tensor)}: the address is 0", uid)
        if address % slot.alignment:
            reason = f"address {address:#x} is not a multiple of {slot.alignment}, its alignment"
            raise PackError(f"{_name(slot.tensor)}: {reason}", uid)
        found[uid] = address
    return found


def _check_uids(operands: Operands, pack: Pack) -> None:
    slots = operands.slots
    missing = [_name(slot.tensor) for uid, slot in slots.items() if uid not in pack and uid not in operands.optional]
    if missing:
        raise PackError(f"the variant pack lacks {', '.join(missing)}; it has {sorted(pack)[:32]}")
    unknown = sorted(set(pack) - set(slots) - operands.baked)
    if unknown:
        raise PackError(f"{unknown} are no inputs or outputs of the graph; those are {sorted(slots)[:64]}", unknown[0])


def _address(tensor: WireTensor, value: Any, memory: Memory | None, override: Override | None, is_output: bool) -> int:
    """The address behind one entry; ``memory`` None means host memory whatever the device is."""
    if isinstance(value, bool) or value is None:
        raise PackError(f"{_name(tensor)}: {value} is neither array, buffer nor address", tensor.uid)
    if isinstance(value, int):
        if not 0 <= value < 2**64:
            raise PackError(f"{_name(tensor)}: {value} is no address", tensor.uid)
        return value
    if isinstance(value, Buffer):
        return _of_buffer(tensor, value, memory, override)
    if isinstance(value, np.ndarray):
        if memory is not None and not memory.is_host:
            reason = f"{_name(tensor)}: a numpy array is host memory, the graph runs on {memory.name}; "
            raise PackError(reason + "copy it: memory.allocate(array.nbytes).write(array)", tensor.uid)
        _check_layout(tensor, override, value.dtype, value.shape, value.strides)
        if is_output and not value.flags.writeable:
            raise PackError(f"{_name(tensor)}: the array is read-only, and the graph writes it", tensor.uid)
        return value.ctypes.data
    return _of_device_array(tensor, value, memory, override, is_output=is_output)


def _of_buffer(tensor: WireTensor, value: Buffer, memory: Memory | None, override: Override | None) -> int:
    if not value.is_open:
        raise PackError(f"{_name(tensor)}: the buffer is closed", tensor.uid)
    is_host = True if memory is None else memory.is_host
    if value.memory.is_host != is_host:
        wanted = "host memory" if memory is None else memory.name
        raise PackError(f"{_name(tensor)}: the buffer is {value.memory.name}, {wanted} is needed", tensor.uid)
    needed = extent(tensor, override)
    if value.size < needed:
        raise PackError(f"{_name(tensor)} takes {needed} bytes, the buffer has {value.size}", tensor.uid)
    return value.address


def _of_device_array(
    tensor: WireTensor, value: Any, memory: Memory | None, override: Override | None, *, is_output: bool
) -> int:
    """Arrays of other libraries on the device: torch's, cupy's."""
    described = getattr(value, "__cuda_array_interface__", None)
    if not isinstance(described, dict):
        kind = type(value).__name__
        raise PackError(f"{_name(tensor)}: a {kind} is neither array, buffer nor address", tensor.uid)
    if memory is None or memory.is_host:
        raise PackError(f"{_name(tensor)}: the array is on a device, host memory is needed", tensor.uid)
    try:
        address, read_only = described["data"]
        dtype, shape = np.dtype(described["typestr"]), tuple(described["shape"])
        strides = described.get("strides")
    except (KeyError, TypeError, ValueError) as error:
        raise PackError(f"{_name(tensor)}: its __cuda_array_interface__ is damaged: {error}", tensor.uid) from None
    if strides is None:
        strides = _packed(shape, dtype.itemsize)
    _check_layout(tensor, override, dtype, shape, strides)
    if is_output and read_only:
        raise PackError(f"{_name(tensor)}: the array is read-only, and the graph writes it", tensor.uid)
    return int(address)


def _packed(shape: Sequence[int], item: int) -> tuple[int, ...]:
    strides: list[int] = []
    for dim in reversed(shape):
        strides.insert(0, item)
        item *= dim
    return tuple(strides)


def _check_layout(
    tensor: WireTensor,
    override: Override | None,
    dtype: np.dtype[Any],
    shape: Sequence[int],
    byte_strides: Sequence[int],
) -> None:
    """An array must have the tensor's type, dims and, where a dim is more than 1, strides."""
    wanted, dims, strides = _form(tensor, override)
    if wanted is None:
        reason = f"{_name(tensor)}: arrays have no type {tensor.data_type.name}; give a buffer or an address"
        raise PackError(reason, tensor.uid)
    if tensor.data_type in _PACKED and dtype != wanted:
        bits, values = _PACKED[tensor.data_type]
        reason = f"{_name(tensor)} is {tensor.data_type.name}, the array is {dtype}; give its "
        raise PackError(
            f"{reason}bytes as uint8, elements of {bits} bits in a row, the lowest first, or the values of an input as "
            f"ml_dtypes.{values}",
            tensor.uid,
        )
    # how numpy and device arrays show types that they lack: as raw bytes of that size
    is_raw = wanted.isbuiltin != 1 and dtype.kind in "Vu" and dtype.itemsize == wanted.itemsize
    if dtype != wanted and not is_raw:
        raise PackError(f"{_name(tensor)} is {wanted}, the array is {dtype}", tensor.uid)
    if tuple(shape) != tuple(dims):
        raise PackError(f"{_name(tensor)} has dims {list(dims)}, the array has shape {list(shape)}", tensor.uid)
    got = [stride / dtype.itemsize for stride in byte_strides]
    if 0 not in dims and any(dim > 1 and have != want for dim, have, want in zip(dims, got, strides, strict=True)):
        shown = [int(stride) if stride.is_integer() else stride for stride in got]
        reason = f"{_name(tensor)} has strides {list(strides)} (in elements), the array has {shown}"
        raise PackError(reason, tensor.uid)


def _form(tensor: WireTensor, override: Override | None) -> tuple[np.dtype[Any] | None, Sequence[int], Sequence[int]]:
    """Dtype, dims and strides in elements of an array that is the tensor's memory; no dtype: no array is."""
    if tensor.data_type in _PACKED:
        return np.dtype(np.uint8), (extent(tensor, override),), (1,)
    dims, strides = (tensor.dims, tensor.strides) if override is None else (override.dims, override.strides)
    return DTYPES.get(tensor.data_type), dims, strides


def _has_values(tensor: WireTensor, value: Any) -> bool:
    packed = _PACKED.get(tensor.data_type)
    return packed is not None and isinstance(value, np.ndarray) and value.dtype == packed[1]


def _in_bits(
    tensor: WireTensor, values: np.ndarray[Any, Any], override: Override | None
) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The bytes of a tensor of b bits an element: that at offset i has the bits b * i and up, the lowest first."""
    dims, strides = (tensor.dims, tensor.strides) if override is None else (override.dims, override.strides)
    if values.shape != tuple(dims):
        reason = f"{_name(tensor)} has dims {list(dims)}, the array has shape {list(values.shape)}"
        raise PackError(reason, tensor.uid)
    size, alignment, bits = extent(tensor, override), max(tensor.alignment, _ALIGNMENT), _bits(tensor)
    codes = values.view(np.uint8) & (1 << bits) - 1
    elements = np.zeros(8 * size // bits, np.uint8)
    stored = np.ndarray(dims, np.uint8, elements, 0, strides)
    stored[...] = codes
    if not np.array_equal(stored, codes):
        reason = f"strides {list(strides)} give several elements one place, and their values differ"
        raise PackError(f"{_name(tensor)}: {reason}", tensor.uid)
    raw = np.zeros(size + alignment, np.uint8)
    start = -raw.ctypes.data % alignment
    packed = raw[start : start + size]
    row = np.packbits(np.unpackbits(elements[:, None], axis=1, count=bits, bitorder="little"), bitorder="little")
    packed[: row.size] = row
    return packed


def _bits(tensor: WireTensor) -> int:
    if tensor.data_type in _PACKED:
        return _PACKED[tensor.data_type][0]
    if tensor.data_type not in DTYPES:
        raise PackError(f"{_name(tensor)}: the size of {tensor.data_type.name} is not known", tensor.uid)
    return DTYPES[tensor.data_type].itemsize * 8


def _name(tensor: wire.WireTensor) -> str:
    return f"tensor {tensor.uid} '{tensor.name}'"
