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
    INT32 = "INT32"
    INT64 = "INT64"
    BOOLEAN = "BOOLEAN"
    FP8_E4M3 = "FP8_E4M3"
    FP8_E5M2 = "FP8_E5M2"
    FP8_E8M0 = "FP8_E8M0"

    @property
    def numpy(self) -> np.dtype[Any]:
        """The numpy dtype (``ml_dtypes`` supplies bfloat16 and the 8-bit floats)."""
        return _NUMPY[self]

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return _NUMPY[self].itemsize

    @property
    def bits(self) -> int:
        """Bits of one element as it is stored."""
        return 8 * self.itemsize

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
