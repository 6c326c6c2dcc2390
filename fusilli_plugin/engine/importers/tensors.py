"""Data types and scalar values of the wire in terms of the graph API."""

from __future__ import annotations

import numpy as np

from fusilli_plugin.engine.importers.reading import Reading
from graph_api import DataType, NotSupportedError
from hipdnn_backend import wire

__all__ = ["data_type", "scalar", "tensor_value"]

_UNSETTLED = 16  # published schemas number the data types from here on differently
_VALUE_TYPES = {
    DataType.FLOAT: wire.TensorValueType.Float32Value,
    DataType.HALF: wire.TensorValueType.Float16Value,
    DataType.BFLOAT16: wire.TensorValueType.BFloat16Value,
    DataType.DOUBLE: wire.TensorValueType.Float64Value,
    DataType.INT32: wire.TensorValueType.Int32Value,
    DataType.INT64: wire.TensorValueType.Int64Value,
    DataType.BOOLEAN: wire.TensorValueType.BoolValue,
}


def data_type(value: wire.DataType, reading: Reading, where: str) -> DataType | None:
    """The data type of a wire number; None for UNSET, which leaves the choice to the graph.

    Raises:
        NotSupportedError: it is not known, not settled, or has no counterpart.
    """
    if value == wire.DataType.UNSET:
        return None
    if value >= _UNSETTLED and not reading.newest_dtypes:
        raise NotSupportedError(
            "", "dtype", f"{where}: data type {int(value)} means different things to different versions of hipDNN; "
            "FUSILLI_WIRE_DTYPES=newest takes the newest meaning"
        )  # fmt: skip
    found = DataType.__members__.get(value.name)
    if found is None:
        raise NotSupportedError("", "dtype", f"{where}: data type {value.name} is not served")
    return found


def scalar(tensor: wire.WireTensor) -> float | int | bool:
    """The compile-time value of a tensor.

    Raises:
        NotSupportedError: it is of a kind that is not known.
    """
    value = tensor.value
    if value is None or value.value is None:
        raise NotSupportedError("", "scalar", f"tensor '{tensor.name}' has a value of an unknown kind")
    if value.type == wire.TensorValueType.Float8Value:
        dtype = DataType.__members__.get(tensor.data_type.name)
        if dtype is None or not dtype.is_small_float:
            raise NotSupportedError(
                "", "scalar", f"tensor '{tensor.name}' of {tensor.data_type.name} has the bits of a small float"
            )
        return float(np.uint8(value.value).view(dtype.numpy))
    return value.value


def tensor_value(dtype: DataType, value: float | bool) -> wire.TensorValue:
    """The wire form of a compile-time scalar.

    Raises:
        NotSupportedError: the wire has no word for a scalar of this type.
    """
    if dtype.is_small_float:
        code = int(dtype.rounded(np.asarray(float(value))).view(np.uint8))
        return wire.TensorValue(type=wire.TensorValueType.Float8Value, value=code)
    kind = _VALUE_TYPES.get(dtype)
    if kind is None:
        raise NotSupportedError("", "scalar", f"hipDNN's schema has no scalar of {dtype.name}")
    if dtype.is_float:
        return wire.TensorValue(type=kind, value=float(value))
    return wire.TensorValue(type=kind, value=bool(value) if dtype is DataType.BOOLEAN else int(value))
