"""A folder that holds one graph with its data, to be run alone: graph, inputs, and what it computed then."""

from __future__ import annotations

import io
import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from fusilli_ground.files import write_whole
from graph_api import Graph, GraphError, TensorAttr

__all__ = ["Dump", "is_dump", "load_dump", "require_new", "save_dump"]

Array = np.ndarray[Any, Any]

_FORMAT: Final = "fusilli-graph-dump"
_VERSION: Final = 1
_ABOUT, _GRAPH = "dump.json", "graph.json"
_MAX_FILE: Final = 64 << 20


@dataclass(frozen=True)
class Dump:
    """A graph with data.

    Attributes:
        graph: what is computed.
        device: where it was.
        inputs: an array for each input.
        outputs: what came out then.
        about: where the graph comes from: model, number of the step, nodes.
    """

    graph: Graph
    device: str
    inputs: Mapping[TensorAttr, Array]
    outputs: Mapping[TensorAttr, Array]
    about: Mapping[str, Any]


def is_dump(folder: Path) -> bool:
    """Whether a folder is one that `save_dump` wrote."""
    return (folder / _ABOUT).is_file()


def require_new(folder: Path) -> None:
    """Refuse a folder that `save_dump` would not write.

    Raises:
        OSError: something is in it, it is no folder, or cannot be read.
    """
    if folder.exists() and any(folder.iterdir()):
        raise FileExistsError(f"{folder} is not empty; name a new folder")


def save_dump(folder: Path, dump: Dump) -> None:
    """Write a new folder.

    Raises:
        OSError: it is there already and not empty, or cannot be written.
    """
    require_new(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {f"input_{n}": each for n, each in enumerate(dump.inputs)}
    tensors |= {f"output_{n}": each for n, each in enumerate(dump.outputs)}
    arrays = dict(dump.inputs) | dict(dump.outputs)
    for name, tensor in tensors.items():
        file = io.BytesIO()
        array = arrays[tensor].copy(order="C")
        stored = array if array.dtype.isbuiltin == 1 else array.view(np.dtype((np.void, array.itemsize)))
        np.lib.format.write_array(file, stored, allow_pickle=False)
        with file.getbuffer() as data:
            write_whole(folder / f"{name}.npy", data)
    write_whole(folder / _GRAPH, dump.graph.to_json().encode())
    document = {
        "format": _FORMAT,
        "version": _VERSION,
        "device": dump.device,
        "tensors": {name: tensor.uid for name, tensor in tensors.items()},
        "about": dict(dump.about),
    }
    write_whole(folder / _ABOUT, json.dumps(document, indent=2, ensure_ascii=False).encode())


def load_dump(folder: Path) -> Dump:
    """What `save_dump` wrote.

    Raises:
        GraphError: it is damaged, or something else.
        OSError: it cannot be read.
    """
    try:
        document = json.loads(_read(folder / _ABOUT))
        if document["format"] != _FORMAT or document["version"] != _VERSION:
            raise GraphError(f"{folder}: this is no dump of version {_VERSION}")
        graph = Graph.from_json(_read(folder / _GRAPH))
        by_uid = {tensor.uid: tensor for tensor in graph.tensors}
        found = {by_uid[uid]: _array(folder / f"{name}.npy", by_uid[uid]) for name, uid in document["tensors"].items()}
        arguments = graph.arguments()
        return Dump(
            graph,
            str(document["device"]),
            {tensor: found[tensor] for tensor in arguments.inputs},
            {tensor: found[tensor] for tensor in arguments.outputs},
            dict(document["about"]),
        )
    except (KeyError, TypeError, ValueError, RecursionError, AttributeError) as error:
        if isinstance(error, GraphError):
            raise
        raise GraphError(f"{folder}: the dump is damaged: {type(error).__name__}: {error}") from error


def _read(path: Path) -> bytes:
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise GraphError(f"{path}: this is no file")  # reading a pipe may never end
        if status.st_size > _MAX_FILE:
            raise GraphError(f"{path}: more than {_MAX_FILE >> 20} MiB")
        return file.read()


def _array(path: Path, tensor: TensorAttr) -> Array:
    """An array in the tensor's dims, type and strides."""
    if "/" in path.stem or not path.stem.startswith(("input_", "output_")):
        raise GraphError(f"{path}: this is no name of an array")
    if not path.is_file():
        raise GraphError(f"{path}: this is no file")
    array = np.load(path, mmap_mode="r", allow_pickle=False)  # a header may claim any size
    wanted = tensor.data_type.numpy
    if array.dtype.kind == "V" and array.dtype.itemsize == wanted.itemsize:
        array = array.view(wanted)
    if array.shape != tensor.dims or array.dtype != wanted:
        raise GraphError(
            f"{path}: {array.shape} {array.dtype} is not '{tensor.name}' of {tensor.dims} {tensor.data_type.name}"
        )
    fitted = tensor.empty()
    fitted[...] = array
    return fitted
