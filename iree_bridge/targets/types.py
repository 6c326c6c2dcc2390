"""Data types and tensors in the words of the torch dialect."""

from __future__ import annotations

from collections.abc import Sequence

from graph_api import DataType, TensorAttr

__all__ = [
    "ELEMENT",
    "SERVED",
    "TORCH_CODE",
    "argument_form",
    "builtin_tensor",
    "carried",
    "multiplied",
    "stored",
    "value_tensor",
]

_CODED = tuple(dtype for dtype in DataType if dtype.is_small_float or dtype.is_packed)

ELEMENT: dict[DataType, str] = {
    DataType.FLOAT: "f32",
    DataType.HALF: "f16",
    DataType.BFLOAT16: "bf16",
    DataType.DOUBLE: "f64",
    DataType.UINT8: "ui8",
    DataType.INT8: "si8",
    DataType.INT32: "si32",
    DataType.INT64: "si64",
    DataType.BOOLEAN: "i1",
    **dict.fromkeys(_CODED, "si8"),
}
"""Element types of ``!torch.vtensor``. What has no type of its own there, or none that every target has, is a byte for
each element: the bits of a small float, the number of INT4 and UINT4. ``Builder.cast`` knows what they mean."""

TORCH_CODE: dict[DataType, int] = {
    DataType.UINT8: 0,
    DataType.INT8: 1,
    DataType.INT32: 3,
    DataType.INT64: 4,
    DataType.HALF: 5,
    DataType.FLOAT: 6,
    DataType.DOUBLE: 7,
    DataType.BOOLEAN: 11,
    DataType.BFLOAT16: 15,
}
"""``torch.dtype`` numbers, as conversion operations take them."""

SERVED = (*TORCH_CODE, *_CODED)
"""The data types that have an emission."""


def carried(dtype: DataType) -> DataType:
    """The type in which compiled code computes with the elements of a tensor, where a node does not choose."""
    if dtype.is_small_float:
        return DataType.FLOAT
    return DataType.INT8 if dtype.is_packed else dtype


def multiplied(dtype: DataType, *, is_gpu: bool) -> DataType:
    """The type in which an operand of a product takes part.

    HALF holds every small float but the powers of FP8_E8M0, and GPUs have matrix instructions for it.
    """
    holds = dtype.is_small_float and dtype is not DataType.FP8_E8M0
    return DataType.HALF if holds and is_gpu else carried(dtype)


def stored(dtype: DataType) -> DataType:
    """The type of the elements as they are moved: bytes for what has no type of its own."""
    return DataType.INT8 if dtype in _CODED else dtype


def argument_form(tensor: TensorAttr) -> tuple[tuple[int, ...], DataType]:
    """Dims and element type of the buffer that a compiled function takes: a row of bytes where elements share them."""
    if tensor.data_type.is_packed:
        return (tensor.nbytes,), DataType.INT8
    return tensor.physical.shape, stored(tensor.data_type)


def builtin_tensor(dims: Sequence[int], dtype: DataType) -> str:
    """``tensor<2x3xi32>``: the builtin tensor that a torch tensor becomes; integers lose their sign."""
    element = ELEMENT[dtype].lstrip("su")
    return f"tensor<{'x'.join([*map(str, dims), element])}>"


def value_tensor(dims: Sequence[int], dtype: DataType, *, mutable: bool = False) -> str:
    """``!torch.vtensor<[2,3],f32>``, or ``!torch.tensor<...>`` for a buffer that is written."""
    kind = "tensor" if mutable else "vtensor"
    return f"!torch.{kind}<[{','.join(map(str, dims))}],{ELEMENT[dtype]}>"
