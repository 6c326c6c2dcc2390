"""Data types of tensors, in the words of hipDNN's front end, and what they are in numpy and in bits."""

from __future__ import annotations

from enum import Enum
from functools import cache
from typing import Any, cast

from fusilli_ground.late_numpy import np
from graph_api.errors import GraphError

__all__ = ["DataType"]


class DataType(Enum):
    """Element type of a tensor.

    Names are hipDNN's; the numbers of its wire format live in ``fusilli_plugin.engine.importers``.
    """

    FLOAT = "FLOAT"
    HALF = "HALF"
    BFLOAT16 = "BFLOAT16"
    DOUBLE = "DOUBLE"
    UINT8 = "UINT8"
    INT8 = "INT8"
    INT4 = "INT4"
    UINT4 = "UINT4"
    INT32 = "INT32"
    INT64 = "INT64"
    BOOLEAN = "BOOLEAN"
    FP8_E4M3 = "FP8_E4M3"
    FP8_E5M2 = "FP8_E5M2"
    FP8_E4M3_FNUZ = "FP8_E4M3_FNUZ"
    FP8_E5M2_FNUZ = "FP8_E5M2_FNUZ"
    FP8_E8M0 = "FP8_E8M0"
    FP6_E2M3 = "FP6_E2M3"
    FP6_E3M2 = "FP6_E3M2"
    FP4_E2M1 = "FP4_E2M1"

    @property
    def numpy(self) -> np.dtype[Any]:
        """The numpy dtype of values; ``ml_dtypes`` supplies bfloat16 and what has 8 bits or less, a byte each there."""
        return _numpy(_NUMPY[self])

    @property
    def bits(self) -> int:
        """Bits of one element in the memory of a tensor: 4 and 6 where elements share bytes."""
        return _BITS[self]

    @property
    def is_packed(self) -> bool:
        """True where elements share bytes: the types of 4 and 6 bits."""
        return _BITS[self] < 8

    @property
    def is_small_float(self) -> bool:
        """True for the floating-point types of 8 bits or less."""
        return self in _EPS and _BITS[self] <= 8

    @property
    def range(self) -> tuple[int, int]:
        """Least and greatest value of an integer type."""
        import ml_dtypes

        info = ml_dtypes.iinfo(self.numpy)
        return int(info.min), int(info.max)

    @property
    def finfo(self) -> Any:
        """``numpy.finfo`` of a floating-point type."""
        import ml_dtypes

        return cast("Any", ml_dtypes.finfo(self.numpy))  # its types are incomplete

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

    def rounded(self, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """``values`` as the type stores them: to nearest, ties to even, except that whole integer types truncate.

        Types of 8 bits or less saturate: floats of that size become the largest finite value where a value is larger
        or infinite, INT4 and UINT4 the nearest of theirs. NaN stays NaN where the type has one and is 0 elsewhere.
        FP8_E8M0 has powers of two alone: ties go up, and what is not positive is NaN.
        """
        with np.errstate(all="ignore"):
            if self.is_packed and self.is_integer:
                low, high = self.range
                return np.clip(np.rint(np.nan_to_num(values, nan=0.0)), low, high).astype(np.int8).astype(self.numpy)
            if not self.is_small_float or values.dtype == self.numpy:
                return values.astype(self.numpy)
            numbers = values.astype(np.float64)
            if self.bits < 8:
                numbers = np.where(np.isnan(numbers), 0.0, numbers)
            largest = float(self.finfo.max)
            return np.clip(numbers, -largest, largest).astype(self.numpy)

    @classmethod
    def of(cls, dtype: object) -> DataType:
        """The data type of a numpy dtype, or of anything that ``np.dtype`` accepts.

        Raises:
            GraphError: numpy does not know the dtype, or the graph API does not.
        """
        asked = _dtype_of(dtype)
        found = None if asked is None else _FROM_NUMPY.get(asked.name)
        if found is None or found.numpy != asked:  # another byte order has the same name
            known = ", ".join(_FROM_NUMPY)
            raise GraphError(f"numpy dtype {dtype} has no DataType; known are {known}")
        return found


_NUMPY: dict[DataType, str] = {
    DataType.FLOAT: "float32",
    DataType.HALF: "float16",
    DataType.BFLOAT16: "bfloat16",
    DataType.DOUBLE: "float64",
    DataType.UINT8: "uint8",
    DataType.INT8: "int8",
    DataType.INT4: "int4",
    DataType.UINT4: "uint4",
    DataType.INT32: "int32",
    DataType.INT64: "int64",
    DataType.BOOLEAN: "bool",
    DataType.FP8_E4M3: "float8_e4m3fn",
    DataType.FP8_E5M2: "float8_e5m2",
    DataType.FP8_E4M3_FNUZ: "float8_e4m3fnuz",
    DataType.FP8_E5M2_FNUZ: "float8_e5m2fnuz",
    DataType.FP8_E8M0: "float8_e8m0fnu",
    DataType.FP6_E2M3: "float6_e2m3fn",
    DataType.FP6_E3M2: "float6_e3m2fn",
    DataType.FP4_E2M1: "float4_e2m1fn",
}
_BITS = {
    DataType.FLOAT: 32,
    DataType.HALF: 16,
    DataType.BFLOAT16: 16,
    DataType.DOUBLE: 64,
    DataType.UINT8: 8,
    DataType.INT8: 8,
    DataType.INT4: 4,
    DataType.UINT4: 4,
    DataType.INT32: 32,
    DataType.INT64: 64,
    DataType.BOOLEAN: 8,
    DataType.FP8_E4M3: 8,
    DataType.FP8_E5M2: 8,
    DataType.FP8_E4M3_FNUZ: 8,
    DataType.FP8_E5M2_FNUZ: 8,
    DataType.FP8_E8M0: 8,
    DataType.FP6_E2M3: 6,
    DataType.FP6_E3M2: 6,
    DataType.FP4_E2M1: 4,
}
_OF_ML_DTYPES = frozenset(
    {"bfloat16", "int4", "uint4", "float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn", "float8_e4m3fn"}
    | {"float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"}
)
_FROM_NUMPY = {name: data_type for data_type, name in _NUMPY.items()}
_EPS = {
    DataType.FLOAT: 2.0**-23,
    DataType.HALF: 2.0**-10,
    DataType.BFLOAT16: 2.0**-7,
    DataType.DOUBLE: 2.0**-52,
    DataType.FP8_E4M3: 2.0**-3,
    DataType.FP8_E5M2: 2.0**-2,
    DataType.FP8_E4M3_FNUZ: 2.0**-3,
    DataType.FP8_E5M2_FNUZ: 2.0**-2,
    DataType.FP8_E8M0: 1.0,
    DataType.FP6_E2M3: 2.0**-3,
    DataType.FP6_E3M2: 2.0**-2,
    DataType.FP4_E2M1: 2.0**-1,
}


@cache
def _numpy(name: str) -> np.dtype[Any]:
    if name not in _OF_ML_DTYPES:
        return np.dtype(name)
    import ml_dtypes  # few graphs need it, and its import is a good part of the first call of a process

    return np.dtype(getattr(ml_dtypes, name))


def _dtype_of(value: object) -> np.dtype[Any] | None:
    """What numpy makes of ``value``; None if it does not know it."""
    if isinstance(value, str) and value in _OF_ML_DTYPES:
        return _numpy(value)
    try:
        return None if value is None else np.dtype(value)  # type: ignore[call-overload]
    except TypeError:
        return None
