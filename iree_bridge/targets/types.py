"""Data types and tensors in the words of the torch dialect."""

from __future__ import annotations

from collections.abc import Sequence

from graph_api import DataType, TensorAttr

__all__ = ["ELEMENT", "TORCH_CODE", "argument_form", "builtin_tensor", "carried", "value_tensor"]

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
    DataType.FP8_E4M3: "f8E4M3FN",
    DataType.FP8_E5M2: "f8E5M2",
}
"""Element types of ``!torch.vtensor``; a data type that is missing here has no emission."""

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


def carried(dtype: DataType) -> DataType:
    """The type in which compiled code has the elements of a tensor: those of INT4 are unpacked to INT8."""
    return DataType.INT8 if dtype is DataType.INT4 else dtype


def argument_form(tensor: TensorAttr) -> tuple[tuple[int, ...], DataType]:
    """Dims and element type of the buffer that a compiled function takes for a tensor: of INT4 a row of bytes."""
    if tensor.data_type is DataType.INT4:
        return (tensor.nbytes,), DataType.INT8
    return tensor.physical.shape, tensor.data_type


def builtin_tensor(dims: Sequence[int], dtype: DataType) -> str:
    """``tensor<2x3xi32>``: the builtin tensor that a torch tensor becomes; integers lose their sign."""
    element = ELEMENT[dtype].lstrip("su") if dtype.is_integer else ELEMENT[dtype]
    return f"tensor<{'x'.join([*map(str, dims), element])}>"


def value_tensor(dims: Sequence[int], dtype: DataType, *, mutable: bool = False) -> str:
    """``!torch.vtensor<[2,3],f32>``, or ``!torch.tensor<...>`` for a buffer that is written."""
    kind = "tensor" if mutable else "vtensor"
    return f"!torch.{kind}<[{','.join(map(str, dims))}],{ELEMENT[dtype]}>"
