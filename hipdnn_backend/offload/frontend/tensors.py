"""Tensor data of untrusted models: inline, sparse and external, into numpy arrays."""

from __future__ import annotations

import math
from pathlib import Path, PurePosixPath

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from hipdnn_backend.offload.errors import ModelError

__all__ = ["Folder", "dense", "is_external", "to_array"]

_BITS: dict[int, int] = {
    **dict.fromkeys((TensorProto.INT2, TensorProto.UINT2), 2),
    **dict.fromkeys((TensorProto.INT4, TensorProto.UINT4, TensorProto.FLOAT4E2M1), 4),
    **dict.fromkeys((TensorProto.FLOAT6E2M3, TensorProto.FLOAT6E3M2), 6),
}
"""Types with several elements in a row of bytes → bits of one."""
_ROOM = 64 << 20
"""Bytes that external data, or the zeros of a sparse tensor, may always take."""
_SHARED = 4
"""How often the tensors of a model may mean the bytes of a file, together."""
_SPARSE = 64
"""Bytes of a dense form for each that is stored of a sparse one."""


class Folder:
    """Where the external data of one model may lie.

    Tensors may mean the same bytes of a file, so that a small model could mean many times its files.

    Attributes:
        path: of the folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._files: set[Path] = set()
        self._room = _ROOM

    def take(self, file: Path, size: int, name: str) -> None:
        """Count what a tensor reads.

        Raises:
            ModelError: it is more than a model with these files has.
        """
        if file not in self._files:
            self._files.add(file)
            self._room += _SHARED * file.stat().st_size
        self._room -= size
        if self._room < 0:
            reason = f"the tensors of the model read more than {_SHARED} times what their files have; is it damaged?"
            raise ModelError(name, "external-data", reason)


def is_external(tensor: TensorProto) -> bool:
    """Whether the elements are in a file beside the model."""
    return tensor.HasField("data_location") and tensor.data_location == TensorProto.EXTERNAL


def to_array(tensor: TensorProto, folder: Folder | None = None) -> np.ndarray:
    """The elements of a tensor, dims as declared.

    Args:
        tensor: from the model.
        folder: of the model, where external data may lie; None if the model came as bytes.

    Raises:
        ModelError: the data type is unknown, the data does not fill the dims, or external data is not there.
    """
    name = tensor.name or "unnamed tensor"
    if any(dim < 0 for dim in tensor.dims):
        raise ModelError(name, "tensor-data", f"dims {list(tensor.dims)} hold a negative number")
    if is_external(tensor):
        return _external(tensor, name, folder)
    try:
        return numpy_helper.to_array(tensor)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, UnicodeDecodeError) as error:
        kind = _type_name(tensor.data_type)
        raise ModelError(
            name, "tensor-data", f"{kind} data does not fill dims {list(tensor.dims)}: {error}; is the file damaged?"
        ) from error


def dense(sparse: onnx.SparseTensorProto, folder: Folder | None, limit: int = 0) -> np.ndarray:
    """A sparse initializer with its zeros.

    Raises:
        ModelError: indices lie outside the dims, or the dense form is much larger than what is stored of it.
    """
    values, indices = to_array(sparse.values, folder), to_array(sparse.indices, folder)
    name, dims = sparse.values.name, tuple(sparse.dims)
    size = math.prod(dims)
    stored = values.nbytes + indices.nbytes
    limit = limit or max(_ROOM, _SPARSE * stored) // max(1, values.itemsize)
    if any(dim < 0 for dim in dims) or size > limit:
        raise ModelError(name, "sparse-tensor", f"dense form with dims {list(dims)} is larger than {limit} elements")
    if indices.ndim == 2 and indices.shape[1] == len(dims):
        outside = (indices < 0) | (indices >= np.asarray(dims))
        flat = indices @ np.asarray([math.prod(dims[i + 1 :]) for i in range(len(dims))], np.int64)
    else:
        flat = indices.reshape(-1)
        outside = (flat < 0) | (flat >= size)
    if outside.any() or flat.size != values.size:
        raise ModelError(name, "sparse-tensor", f"indices do not fit {values.size} values in dims {list(dims)}")
    result = np.zeros(size, values.dtype)
    result[flat] = values.reshape(-1)
    return result.reshape(dims)


def _type_name(element: int) -> str:
    return TensorProto.DataType.Name(element) if element in TensorProto.DataType.values() else f"type {element}"


def _external(tensor: TensorProto, name: str, folder: Folder | None) -> np.ndarray:
    """Elements in a file beside the model: the path stays in its folder, no byte is read beyond what the dims need."""
    if folder is None:
        location = next((entry.value for entry in tensor.external_data if entry.key == "location"), "")
        reason = f"its elements are in a file ({location!r}), but the model came as bytes; load it by its path"
        raise ModelError(name, "external-data", reason)
    path = _inside(dict((entry.key, entry.value) for entry in tensor.external_data), name, folder.path)
    entries = {entry.key: entry.value for entry in tensor.external_data}
    try:
        dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    except KeyError as error:
        raise ModelError(name, "tensor-data", f"{_type_name(tensor.data_type)} has no elements of a size") from error
    if dtype.hasobject:
        raise ModelError(name, "external-data", "strings cannot be external data")
    count = math.prod(tensor.dims)
    bits = _BITS.get(tensor.data_type, 8 * dtype.itemsize)
    needed = -(-count * bits // 8)
    available = path.stat().st_size
    offset = _number(entries.get("offset", "0"), "offset", name)
    length = _number(entries.get("length", str(needed)), "length", name)
    if length != needed or offset + needed > available:
        reason = (
            f"dims {list(tensor.dims)} need {needed} bytes at {offset}; {path.name} has {available}, length {length}"
        )
        raise ModelError(name, "external-data", f"{reason}; is the file truncated?")
    folder.take(path, needed, name)
    if tensor.data_type in _BITS:
        raw = np.fromfile(path, np.uint8, needed, offset=offset).tobytes()
        return numpy_helper.to_array(helper.make_tensor(name, tensor.data_type, list(tensor.dims), raw, raw=True))
    return np.fromfile(path, dtype, count, offset=offset).reshape(tuple(tensor.dims))


def _number(text: str, key: str, name: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 20):
        raise ModelError(name, "external-data", f"{key} {text[:40]!r} is no number of bytes")
    return int(text)


def _inside(entries: dict[str, str], name: str, folder: Path) -> Path:
    """The file, which lies in the model's folder once links are followed."""
    location = entries.get("location", "")
    relative = PurePosixPath(location)
    if not location or "\0" in location or relative.is_absolute() or ".." in relative.parts:
        raise ModelError(name, "external-data", f"location {location!r} is not a path inside the model's folder")
    root = folder.resolve()
    path = (root / relative).resolve()
    if not path.is_relative_to(root):
        raise ModelError(name, "external-data", f"location {location!r} leads out of the model's folder through a link")
    if not path.is_file():
        raise ModelError(
            name, "external-data", f"{location!r} is not a file in the model's folder; was it left behind?"
        )
    return path
