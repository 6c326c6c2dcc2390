"""What the caller decides: sizes of symbolic dims, values of control inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hipdnn_backend.errors import did_you_mean
from hipdnn_backend.offload.errors import ModelError
from hipdnn_backend.offload.frontend.graph import Graph, TensorType

__all__ = ["bind_dims", "bind_inputs"]


def bind_inputs(graph: Graph, values: Mapping[str, Any]) -> None:
    """Turn inputs into constants.

    Args:
        graph: changed in place.
        values: input → number or array, converted to the input's element type if that keeps the value.

    Raises:
        ModelError: no such input, other dims, or a value that the type cannot hold.
    """
    for name, value in values.items():
        if name not in graph.inputs:
            known = ", ".join(graph.inputs) or "none"
            raise ModelError(name, "bound-input", f"the model has no such input to bind; its inputs are {known}")
        graph.constants[name] = _converted(name, value, graph.inputs.pop(name))


def _converted(name: str, value: Any, type_: TensorType) -> np.ndarray:
    try:
        given = np.asarray(value)
        array = given.astype(type_.dtype)
    except (ValueError, TypeError, OverflowError) as error:
        raise ModelError(name, "bound-input", f"{value!r:.80} is no {type_.dtype} tensor") from error
    if type_.dims is not None and array.ndim == 0 and all(dim in (1, "") or dim for dim in type_.dims):
        array = array.reshape((1,) * len(type_.dims))
    fits = type_.dims is None or (
        len(type_.dims) == array.ndim
        and all(want == have or not isinstance(want, int) for want, have in zip(type_.dims, array.shape, strict=True))
    )
    if not fits:
        raise ModelError(name, "bound-input", f"has dims {list(type_.dims or ())}, the value {list(array.shape)}")
    exact = given.dtype.kind in "biu" and type_.dtype.kind in "biu"
    if exact and not np.array_equal(array.astype(object), given.astype(object).reshape(array.shape)):
        raise ModelError(name, "bound-input", f"{value!r:.80} does not fit in {type_.dtype}")
    return array


def bind_dims(graph: Graph, dims: Mapping[str, int]) -> None:
    """Give each dim of the inputs a size.

    Args:
        graph: changed in place.
        dims: name of a symbolic dim, or ``input.axis`` for one without a name, → size.

    Raises:
        ModelError: a dim is not given, a name is unknown, or a size is no positive number.
    """
    _check_names(graph, dims)
    _check_sizes(dims)
    for name, type_ in graph.inputs.items():
        if type_.dims is None:
            raise ModelError(name, "dims", "the input has no rank; export the model with a shape for it")
        sizes = tuple(_size(name, axis, dim, type_, dims) for axis, dim in enumerate(type_.dims))
        graph.inputs[name] = TensorType(type_.element, sizes)


def _check_names(graph: Graph, dims: Mapping[str, int]) -> None:
    """First of all: a name that is wrong also leaves a dim without size, and that error would not tell why."""
    open_dims = [
        (dim, f"{name}.{axis}")
        for name, type_ in graph.inputs.items()
        for axis, dim in enumerate(type_.dims or ())
        if not isinstance(dim, int)
    ]
    known = list(dict.fromkeys(dim or place for dim, place in open_dims))
    for unknown in sorted(dims.keys() - {name for both in open_dims for name in both if name}):
        near = did_you_mean(unknown, known)
        raise ModelError(
            unknown, "dims", f"no input has a dim of this name{near}; symbolic dims are: {', '.join(known) or 'none'}"
        )


def _check_sizes(dims: Mapping[str, int]) -> None:
    for name, size in dims.items():
        if isinstance(size, bool) or not isinstance(size, int | np.integer) or not 0 <= size < 2**31:
            raise ModelError(name, "dims", f"{size!r} is no size of a dim")


def _size(name: str, axis: int, dim: int | str, type_: TensorType, dims: Mapping[str, int]) -> int:
    if isinstance(dim, int):
        if dim < 0:
            raise ModelError(name, "dims", f"dim {axis} of the input is {dim}")
        return dim
    for key in (dim, f"{name}.{axis}"):
        if key and key in dims:
            return int(dims[key])
    key = dim or f"{name}.{axis}"
    shown = "[" + ", ".join(str(size) if size != "" else "?" for size in type_.dims or ()) + "]"
    raise ModelError(
        name,
        "dims",
        f"dim {axis}{f' ({dim!r})' if dim else ''} of the input {shown} is not fixed; "
        f"give dims={{{key!r}: N}}, on the command line --dim {key}=N",
    )
