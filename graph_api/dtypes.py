"""Data types of tensors, in the words of hipDNN's front end, and what they are in numpy and in bits."""

from __future__ import annotations

from enum import Enum
from typing import Any

import ml_dtypes
import numpy as np

from graph_api.errors import GraphError

__all__ = ["DataType"]


class DataType(Enum):
    """Element type of a tensor.

    Names are hipDNN's; the numbers of its wire format live in ``fusilli_plugin.importers``.
    """

    FLOAT = "FLOAT"
    HALF = "HALF"
    BFLOAT16 = "BFLOAT16"
    DOUBLE = "DOUBLE"
    UINT8 = "UINT8"
    INT8 = "INT8"
    INT4 = "INT4"
    INT32 = "INT32"
    INT64 = "INT64"
    BOOLEAN = "BOOLEAN"
    FP8_E4M3 = "FP8_E4M3"
    FP8_E5M2 = "FP8_E5M2"
    FP8_E8M0 = "FP8_E8M0"

    @property
    def numpy(self) -> np.dtype[Any]:
        """The numpy dtype of values (``ml_dtypes`` supplies bfloat16, the 8-bit floats and INT4, a byte each there)."""
        return _NUMPY[self]

    @property
    def bits(self) -> int:
        """Bits of one element in the memory of a tensor: 4 for INT4, of which two share a byte."""
        return 4 if self is DataType.INT4 else 8 * _NUMPY[self].itemsize

    @property
    def range(self) -> tuple[int, int]:
        """Least and greatest value of an integer type."""
        info = ml_dtypes.iinfo(_NUMPY[self])
        return int(info.min), int(info.max)

    def nbytes(self, elements: int) -> int:
        """Bytes of ``elements`` consecutive elements, the last byte being full or not."""
        return -(-elements * self.bits // 8)

    @property
    def is_float(self) -> bool:
        """True for the floating-point types."""
        return self in _EPS

    @property
    def is_integer(self) -> bool:
        """True for the integer types; BOOLEAN is neither integer nor floating point."""
        return not self.is_float and self is not DataType.BOOLEAN

    @property
    def eps(self) -> float:
        """Distance from 1.0 to the next larger value; 0.0 for exact types."""
        return _EPS.get(self, 0.0)

    @classmethod
    def of(cls, dtype: object) -> DataType:
        """The data type of a numpy dtype, or of anything that ``np.dtype`` accepts.

        Raises:
            GraphError: numpy does not know the dtype, or the graph API does not.
        """
        try:
            found = None if dtype is None else _FROM_NUMPY.get(np.dtype(dtype))  # type: ignore[call-overload]
        except TypeError:
            found = None
        if found is None:
            known = ", ".join(str(known) for known in _FROM_NUMPY)
            raise GraphError(f"numpy dtype {dtype} has no DataType; known are {known}")
        return found


_NUMPY: dict[DataType, np.dtype[Any]] = {
    DataType.FLOAT: np.dtype(np.float32),
    DataType.HALF: np.dtype(np.float16),
    DataType.BFLOAT16: np.dtype(ml_dtypes.bfloat16),
    DataType.DOUBLE: np.dtype(np.float64),
    DataType.UINT8: np.dtype(np.uint8),
    DataType.INT8: np.dtype(np.int8),
    DataType.INT4: np.dtype(ml_dtypes.int4),
    DataType.INT32: np.dtype(np.int32),
    DataType.INT64: np.dtype(np.int64),
    DataType.BOOLEAN: np.dtype(np.bool_),
    DataType.FP8_E4M3: np.dtype(ml_dtypes.float8_e4m3fn),
    DataType.FP8_E5M2: np.dtype(ml_dtypes.float8_e5m2),
    DataType.FP8_E8M0: np.dtype(ml_dtypes.float8_e8m0fnu),
}
_FROM_NUMPY = {dtype: name for name, dtype in _NUMPY.items()}
_EPS = {
    DataType.FLOAT: 2.0**-23,
    DataType.HALF: 2.0**-10,
    DataType.BFLOAT16: 2.0**-7,
    DataType.DOUBLE: 2.0**-52,
    DataType.FP8_E4M3: 2.0**-3,
    DataType.FP8_E5M2: 2.0**-2,
    DataType.FP8_E8M0: 1.0,
}
