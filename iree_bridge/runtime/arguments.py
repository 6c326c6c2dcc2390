"""One argument of a compiled function: what memory fits it, and whether a given object is that."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from graph_api.errors import ExecutionError
from graph_api.tensor import TensorAttr
from iree_bridge.devices.buffers import ELEMENT_TYPES, StridedMemory, examine
from iree_bridge.targets.types import argument_form

__all__ = ["Argument", "PackReader", "check_outputs_apart"]

_ndarray: Final = np.ndarray


class Argument:
    """An output or input tensor of a compiled function.

    Attributes:
        tensor: the tensor.
        is_output: True if the function writes it.
        shape: row-major dims of the buffer view that the function takes.
        element_type: IREE's name of the element type.
        nbytes: bytes from the first to the last element.
        has_gaps: True if bytes in between belong to nobody, and must survive a write.
    """

    __slots__ = (
        "_dims",
        "_dtype",
        "_strides",
        "element_type",
        "has_gaps",
        "is_output",
        "nbytes",
        "shape",
        "tensor",
    )

    def __init__(self, tensor: TensorAttr, *, is_output: bool) -> None:
        self.tensor = tensor
        self.is_output = is_output
        self.shape, element = argument_form(tensor)
        self.element_type = ELEMENT_TYPES[element]
        self.has_gaps = not tensor.physical.dense
        self.nbytes = tensor.nbytes
        self._dims, self._strides, self._dtype = tensor.dims, tensor.strides, tensor.data_type.numpy
        if tensor.data_type.is_packed:  # numpy has no type of less than a byte, so its memory is a row of bytes
            self._dims, self._strides, self._dtype = (tensor.nbytes,), (1,), np.dtype(np.uint8)

    def check(
        self, value: object, device: tuple[str, int], *, stream: int | None = None, may_copy: bool = False
    ) -> StridedMemory:
        """The memory of ``value``.

        Args:
            value: numpy array or DLPack object; of a packed type its bytes, or an array of the values.
            device: where the code runs; host memory fits every device.
            stream: see ``buffers.examine``.
            may_copy: memory that is made of values of a packed type may stand for them.

        Raises:
            ExecutionError: it does not fit; the message has tensor, expected, got and fix.
        """
        memory = examine(self.tensor.name, value, stream=stream)
        if self.tensor.data_type.is_packed and memory.dtype != self._dtype:
            memory = self._packed(memory, may_copy=may_copy)
        if memory.device[0] != "cpu" and memory.device != device:
            here, there = (_device_name(place) for place in (device, memory.device))
            raise self._misfit("device", here, there, f"move it to {here}, or build the graph for {there}")
        if len(memory.dims) != len(self._dims):
            fix = f"reshape it to {self._dims}"
            raise self._misfit("rank", len(self._dims), f"{len(memory.dims)} (dims {memory.dims})", fix)
        if memory.dims != self._dims:
            hint = "dims are logical (N, C, spatial); strides tell the layout"
            raise self._misfit("dims", self._dims, memory.dims, hint)
        if memory.dtype != self._dtype:
            raise self._misfit("dtype", self._dtype, memory.dtype, f"convert it, e.g. .astype('{self._dtype}')")
        if not self._strides_fit(memory.strides):
            got = "strides that are no whole elements" if memory.strides is None else memory.strides
            fix = "copy it into tensor.empty(), or give the graph's tensor these strides"
            raise self._misfit("strides", tuple(self._strides), got, fix)
        if self.is_output and not memory.writable:
            raise self._misfit("an output", "writable memory", "read-only memory", "pass a copy, or tensor.empty()")
        if not memory.pointer:
            raise self._misfit("a buffer", "an address", "NULL", "the owner has freed or not allocated it")
        return memory

    def _strides_fit(self, strides: Sequence[int] | None) -> bool:
        if strides is None:
            return False
        return all(
            dim == 1 or got == expected for dim, got, expected in zip(self._dims, strides, self._strides, strict=True)
        )

    def memory_form(self) -> tuple[tuple[int, ...], tuple[int, ...], np.dtype[Any]]:
        """Shape, byte strides and dtype of the arrays that are the argument's memory as they are."""
        return self._dims, tuple(stride * self._dtype.itemsize for stride in self._strides), self._dtype

    def _packed(self, values: StridedMemory, *, may_copy: bool) -> StridedMemory:
        """New memory that holds the values of a packed tensor."""
        if values.dtype != self.tensor.data_type.numpy or not isinstance(values.owner, np.ndarray):
            kind = self.tensor.data_type.numpy
            fix = f"give its bytes, tensor.pack(values), or its values with .astype(ml_dtypes.{kind})"
            raise self._misfit("dtype", f"uint8 (its bytes) or {kind} (its values)", values.dtype, fix)
        if self.is_output:
            fix = "give zeros of that shape, and make values of them afterwards with tensor.unpack(array)"
            raise self._misfit("memory", f"uint8 [{self.nbytes}]", f"values of {values.dtype}", fix)
        if not may_copy:
            fix = "a bound call reads the same memory each time; give tensor.pack(values), or name it in constants"
            raise self._misfit("memory", f"uint8 [{self.nbytes}]", f"values of {values.dtype}", fix)
        if values.dims != self.tensor.dims:
            raise self._misfit("dims", self.tensor.dims, values.dims, f"reshape it to {self.tensor.dims}")
        return examine(self.tensor.name, self.tensor.pack(values.owner))

    def _misfit(self, what: str, expected: object, got: object, fix: str) -> ExecutionError:
        role = "output" if self.is_output else "input"
        return ExecutionError(f"{role} '{self.tensor.name}': {what}: expected {expected}, got {got}; {fix}")


# ``array.ctypes.data`` takes 3 us, as long as the launch of a small graph. The address is also the first field behind
# the object header of every ndarray, in all versions of numpy's ABI so far; two arrays show whether that holds here.
_WORDS: Final = (ctypes.c_size_t * 2**59).from_address(0)
_HEADER: Final = object.__basicsize__


def _peeking_works() -> bool:
    probe = np.zeros(5, np.uint8)
    arrays = (probe, probe[3:])
    return _HEADER % 8 == 0 and all(_WORDS[(id(array) + _HEADER) >> 3] == array.ctypes.data for array in arrays)


_CAN_PEEK: Final = _peeking_works()


class PackReader:
    """Reads packs ``{tensor | name | uid: value}`` in argument order."""

    def __init__(self, arguments: Sequence[Argument], *, quick: bool) -> None:
        self._tensors = [argument.tensor for argument in arguments]
        self._forms = [argument.memory_form() for argument in arguments]
        self._index: dict[object, int] = {}
        for index, tensor in enumerate(self._tensors):
            self._index.update({tensor: index, tensor.name: index, tensor.uid: index})
        self._count = len(self._tensors) if quick else -1
        self._outputs = [argument.is_output for argument in arguments]
        self._checks = self._checks_for(self._tensors)

    def _checks_for(self, keys: Sequence[object]) -> list[tuple[object, tuple[int, ...], tuple[int, ...], Any, bool]]:
        rows = zip(keys, self._forms, self._outputs, strict=True)
        return [(key, *form, is_output) for key, form, is_output in rows]

    def quick_key(self, pack: Any) -> tuple[int, ...] | None:
        """The addresses of the values, if the pack has the keys of the last one and all are arrays that fit exactly.

        Returns:
            The addresses in argument order; None for every other pack, be it right or wrong.
        """
        if type(pack) is not dict or len(pack) != self._count:
            return None
        pointers = []
        try:
            for key, dims, byte_strides, dtype, is_output in self._checks:
                value = pack[key]
                if (
                    type(value) is not _ndarray
                    or value.shape != dims
                    or value.strides != byte_strides
                    or value.dtype is not dtype
                    or (is_output and not value.flags.writeable)
                ):
                    return None
                pointers.append(_WORDS[(id(value) + _HEADER) >> 3] if _CAN_PEEK else value.ctypes.data)
        except KeyError:
            return None
        return tuple(pointers)

    def values(self, pack: Mapping[Any, object]) -> tuple[object, ...]:
        """The values of ``pack`` in argument order.

        Raises:
            ExecutionError: a tensor is missing, given twice or unknown.
        """
        keys = self.keys_in_order(pack)
        self._checks = self._checks_for(keys)
        return tuple(pack[key] for key in keys)

    def keys_in_order(self, pack: Mapping[Any, object]) -> tuple[object, ...]:
        """The keys of ``pack`` in argument order."""
        if not isinstance(pack, Mapping):
            raise ExecutionError(f"buffers must be given as {{tensor: buffer}}, got {type(pack).__name__}")
        keys: list[object] = [_ABSENT] * len(self._tensors)
        for key in pack:
            index = self.index(key)
            if keys[index] is not _ABSENT:
                raise ExecutionError(
                    f"tensor '{self._tensors[index].name}' is given twice: as {keys[index]!r} and as {key!r}"
                )
            keys[index] = key
        missing = [tensor.name for tensor, key in zip(self._tensors, keys, strict=True) if key is _ABSENT]
        if missing:
            raise ExecutionError(
                f"no buffer for {_quoted(missing)}; add {{name: array}} for each, tensor.empty() makes one"
            )
        return tuple(keys)

    def index(self, key: object) -> int:
        """The position of the argument that a key names.

        Raises:
            ExecutionError: it names none.
        """
        found = None if isinstance(key, bool) else self._index.get(key)
        if found is None:
            names = _quoted([tensor.name for tensor in self._tensors])
            if isinstance(key, TensorAttr):
                key = f"tensor '{key.name}', of another graph or without a buffer,"
            raise ExecutionError(f"{key} is no input or output; there are {names}")
        return found


_ABSENT: Final = object()


def check_outputs_apart(arguments: Sequence[Argument], pointers: Sequence[int]) -> tuple[bool, ...]:
    """Which outputs share memory with an input, argument by argument; two outputs may not share any.

    Raises:
        ExecutionError: two outputs overlap.
    """
    ends = [pointer + argument.nbytes for argument, pointer in zip(arguments, pointers, strict=True)]
    shared = [False] * len(arguments)
    for i, output in enumerate(arguments):
        if not output.is_output:
            continue
        for j, other in enumerate(arguments):
            if i == j or pointers[i] >= ends[j] or pointers[j] >= ends[i]:
                continue
            if other.is_output:
                raise ExecutionError(
                    f"outputs '{output.tensor.name}' and '{other.tensor.name}' overlap in memory at "
                    f"{max(pointers[i], pointers[j]):#x}; give each its own buffer"
                )
            shared[i] = True
    return tuple(shared)


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


def _device_name(device: tuple[str, int]) -> str:
    return "cpu" if device[0] == "cpu" else f"{device[0]}:{device[1]}"
