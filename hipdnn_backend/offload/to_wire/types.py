"""Torch types in the wire's words: the one table of element types."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from fusilli_ground.torch_types import value_tensor_type
from hipdnn_backend.offload.to_wire.views import Dims
from hipdnn_backend.wire import DataType

__all__ = [
    "CARRIERS",
    "ELEMENTS",
    "FLOATS",
    "TORCH_DTYPES",
    "TensorType",
    "carried",
    "compute_type",
    "tensor_type",
    "wire_type",
]

ELEMENTS: dict[str, DataType] = {
    "f32": DataType.FLOAT,
    "f16": DataType.HALF,
    "bf16": DataType.BFLOAT16,
    "f64": DataType.DOUBLE,
    "ui8": DataType.UINT8,
    "si8": DataType.INT8,
    "si32": DataType.INT32,
    "si64": DataType.INT64,
    "i1": DataType.BOOLEAN,
    "f8E4M3FN": DataType.FP8_E4M3,
    "f8E5M2": DataType.FP8_E5M2,
}
"""Element type of ``!torch.vtensor`` → data type."""

CARRIERS: dict[str, str] = {"si16": "f16", "ui16": "f16", "ui32": "si32", "ui64": "si64"}
"""Integer that the wire lacks → element of the same size as which a custom operation takes and gives it."""

TORCH_DTYPES: dict[int, DataType] = {
    0: DataType.UINT8,
    1: DataType.INT8,
    3: DataType.INT32,
    4: DataType.INT64,
    5: DataType.HALF,
    6: DataType.FLOAT,
    7: DataType.DOUBLE,
    11: DataType.BOOLEAN,
    15: DataType.BFLOAT16,
    23: DataType.FP8_E5M2,
    24: DataType.FP8_E4M3,
}
"""``torch.dtype`` number, as conversions take it → data type."""

FLOATS = frozenset(
    {DataType.FLOAT, DataType.HALF, DataType.BFLOAT16, DataType.DOUBLE, DataType.FP8_E4M3, DataType.FP8_E5M2}
)


class TensorType(NamedTuple):
    """A static tensor type."""

    dims: Dims
    dtype: DataType


@lru_cache(maxsize=4096)
def tensor_type(text: str) -> TensorType | str:
    """The type that ``!torch.vtensor<[2,3],f32>`` is; else one sentence that says why it has no wire form."""
    kind = value_tensor_type(text)
    if kind is None:
        return f"{text} is no tensor of known shape and plain element type"
    dims = tuple(dim for dim in kind.dims if dim is not None)
    if len(dims) < len(kind.dims):
        return f"{text} has a dynamic dim; give it a size with dims"
    if 0 in dims:
        return f"{text} holds no element"
    dtype = ELEMENTS.get(kind.element)
    if dtype is None:
        return f"{text}: the wire has no element type {kind.element}; it has {', '.join(ELEMENTS)}"
    return TensorType(dims, dtype)


def carried(text: str) -> TensorType | str:
    """As `tensor_type`, with the carrier of an integer that the wire lacks."""
    kind = value_tensor_type(text)
    carrier = None if kind is None else CARRIERS.get(kind.element)
    return tensor_type(text if kind is None or carrier is None else kind.of(carrier))


def wire_type(dtype: DataType) -> DataType:
    """The type under which a tensor is written.

    Booleans travel as UINT8 of 0 and 1, which is how they lie in memory: published versions of the schema disagree on
    the number of BOOLEAN.
    """
    return DataType.UINT8 if dtype is DataType.BOOLEAN else dtype


def compute_type(*dtypes: DataType) -> DataType:
    """What to compute in: the widest kind among the operands and the result; 16-bit floats compute in FLOAT."""
    if any(dtype in FLOATS for dtype in dtypes):
        return DataType.DOUBLE if DataType.DOUBLE in dtypes else DataType.FLOAT
    return DataType.INT64 if DataType.INT64 in dtypes else DataType.INT32
