"""Arrays by tensor name, from and to ``.npz`` files, in the dtype and the strides that a graph's tensors have."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fusilli_ground.files import write_whole
from graph_api import Graph, GraphError, TensorAttr

__all__ = ["load_inputs", "read_arrays", "save_arrays", "save_outputs"]

Array = np.ndarray[Any, Any]

_MAX_NAME = 60_000  # bytes; ZIP counts them in 16 bits


def load_inputs(graph: Graph, path: Path, say: Callable[[str], None] = lambda _: None) -> dict[TensorAttr, Array]:
    """An array for each input of the graph, in its data type and strides.

    Integers and floats of another width are converted within their kind, and ``say`` is told so; integers must fit.
    uint8 arrays of tensors whose elements share bytes are these.

    Raises:
        GraphError: no npz file, a missing or unknown tensor, another shape, or a dtype of another kind.
    """
    found: dict[TensorAttr, Array] = {}
    for name, array in read_arrays(path):
        if graph.find(name) in found:
            raise GraphError(f"{path}: '{name}' is in it twice")
        found[graph.find(name)] = array
    inputs = graph.arguments().inputs
    missing = [tensor.name for tensor in inputs if tensor not in found]
    if missing:
        raise GraphError(f"{path}: no array for input {', '.join(map(repr, missing))}; it has {_names(found)}")
    extra = [tensor.name for tensor in found if tensor not in inputs]
    if extra:
        names = ", ".join(repr(tensor.name) for tensor in inputs)
        raise GraphError(f"{path}: {', '.join(map(repr, extra))} is no input of '{graph.name}'; inputs are {names}")
    return {tensor: _fitted(tensor, found[tensor], path, say) for tensor in inputs}


def save_outputs(outputs: Mapping[TensorAttr, Array], path: Path) -> None:
    """Writes outputs by tensor name. Types that numpy lacks (bfloat16, 8-bit floats) are stored as raw items.

    Raises:
        GraphError: the name of a tensor is none that the file can hold.
        OSError: the file cannot be written; one that was there stays.
    """
    save_arrays({tensor.name: array for tensor, array in outputs.items()}, path)


def save_arrays(arrays: Mapping[str, Array], path: Path) -> None:
    """`save_outputs` by name."""
    # numpy.savez takes names as keyword arguments, and "file" is one of its own.
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            if "\0" in name or len(name.encode()) > _MAX_NAME:
                raise GraphError(f"{path}: a file cannot have an array of the name {name[:80]!r}")
            stored = array if array.dtype.isbuiltin == 1 else array.view(np.dtype((np.void, array.itemsize)))
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, stored, allow_pickle=False)
    with file.getbuffer() as data:
        write_whole(path, data)


def read_arrays(path: Path) -> Iterator[tuple[str, Array]]:
    """Name and elements of each array in a ``.npz`` file.

    Raises:
        GraphError: it is none, or has something else in it.
    """
    if not zipfile.is_zipfile(path):
        raise GraphError(f"{path}: a .npz file is needed, made by numpy.savez(path, name=array, ...)")
    try:
        with np.load(path, allow_pickle=False) as archive:
            for name, array in archive.items():
                if not isinstance(array, np.ndarray):
                    raise ValueError(f"{name!r} is no array")
                yield name, array
    except Exception as error:  # a crafted file makes zipfile, zlib and numpy raise all kinds
        raise GraphError(f"{path}: not a readable .npz file without pickled objects: {error}") from error


def _names(tensors: Mapping[TensorAttr, Array]) -> str:
    return ", ".join(repr(tensor.name) for tensor in tensors) or "none"


def _fitted(tensor: TensorAttr, array: Array, path: Path, say: Callable[[str], None]) -> Array:
    """``array`` in the tensor's dtype, copied into memory of the tensor's strides; shared bytes are unpacked."""
    wanted = tensor.data_type.numpy
    if tensor.data_type.is_packed and array.dtype == np.uint8:
        if array.shape != (tensor.nbytes,):
            kind = "float32" if tensor.data_type.is_float else "int8"
            raise GraphError(
                f"{path}: '{tensor.name}' is {tensor.data_type.name} and the array is uint8, its bytes, in which "
                f"elements of {tensor.data_type.bits} bits lie in a row: shape ({tensor.nbytes},) is needed, not "
                f"{array.shape}; store values as {kind}"
            )
        return tensor.unpack(array)
    if array.shape != tensor.dims:
        raise GraphError(f"{path}: '{tensor.name}' has shape {array.shape}, the tensor's dims are {tensor.dims}")
    if array.dtype.kind == "V" and array.dtype.itemsize == wanted.itemsize:
        array = array.view(wanted)  # how numpy stores bfloat16 and the 8-bit floats
    if array.dtype != wanted:
        # numpy holds that everything is of the kind of ml_dtypes' integers and small floats
        kind = np.float32 if tensor.data_type.is_float else np.int8
        alike = np.dtype(kind) if tensor.data_type.bits <= 8 and wanted.isbuiltin != 1 else wanted
        if not np.can_cast(array.dtype, alike, "same_kind"):
            raise GraphError(f"{path}: '{tensor.name}' has dtype {array.dtype}, the tensor's is {wanted}; use astype")
        say(f"note: '{tensor.name}' is converted from {array.dtype} to {wanted}")
    fitted = tensor.empty()
    with np.errstate(over="ignore"):  # floats that are too large become infinite
        fitted[...] = tensor.data_type.rounded(array)
    if tensor.data_type.is_integer and not np.array_equal(fitted, array):
        raise GraphError(f"{path}: '{tensor.name}' has values that {wanted} cannot hold")
    return fitted
