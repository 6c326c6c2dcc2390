"""What the caller decides: sizes of symbolic dims, values of control inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from fusilli_ground.spelling import did_you_mean
from hipdnn_backend.offload.errors import ModelError
from hipdnn_backend.offload.frontend.building import declared
from hipdnn_backend.offload.frontend.graph import OnnxGraph, TensorType

__all__ = ["bind_dims", "bind_inputs", "check_arguments", "declared_inputs"]


def bind_inputs(graph: OnnxGraph, values: Mapping[str, Any]) -> None:
    """Turn inputs into constants.

    Args:
        graph: changed in place.
        values: input → number or array, converted to the input's element type if that keeps the value.

    Raises:
        ModelError: no such input, other dims, or a value that the type cannot hold.
    """
    for name, value in values.items():
        if name not in graph.inputs:
            raise _no_such_input(name, graph.inputs)
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


def bind_dims(graph: OnnxGraph, dims: Mapping[str, int]) -> None:
    """Give each dim of the inputs a size.

    Args:
        graph: changed in place.
        dims: name of a symbolic dim, or ``input.axis`` for one without a name, → size.

    Raises:
        ModelError: dims are not given, names are unknown, or a size is no positive number.
    """
    sized, errors = _sized(graph.inputs, dims)
    _raise_all(errors)
    graph.inputs.update(sized)
    for name, hint in graph.hints.items():
        sizes = tuple(dims.get(dim, dim) if isinstance(dim, str) else dim for dim in hint.dims or ())
        graph.hints[name] = TensorType(hint.element, sizes)


def declared_inputs(
    model: onnx.ModelProto, dims: Mapping[str, int], values: Mapping[str, Any]
) -> tuple[dict[str, TensorType], list[ModelError]]:
    """The inputs that a run will take, as far as the file and the caller say, and what is wrong with what they say.

    It looks at no node and no weight.

    Args:
        model: whose header was checked.
        dims: see `bind_dims`.
        values: see `bind_inputs`.

    Raises:
        ModelError: an input is no tensor.
    """
    inputs = declared(model.graph)
    errors = [_no_such_input(name, inputs) for name in values if name not in inputs]
    sized, found = _sized({name: type_ for name, type_ in inputs.items() if name not in values}, dims)
    return sized, errors + found


def check_arguments(model: onnx.ModelProto, dims: Mapping[str, int], values: Mapping[str, Any]) -> None:
    """Find before the work what the caller got wrong.

    Raises:
        ModelError: all of that.
    """
    _raise_all(declared_inputs(model, dims, values)[1])


def _raise_all(errors: Sequence[ModelError]) -> None:
    if len(errors) == 1:
        raise errors[0]
    if errors:
        rules = dict.fromkeys(error.rule for error in errors)
        raise ModelError("", ", ".join(rules), "; ".join(f"{error.node}: {error.reason}" for error in errors))


def _no_such_input(name: str, inputs: Mapping[str, TensorType]) -> ModelError:
    known = ", ".join(inputs) or "none"
    return ModelError(name, "bound-input", f"the model has no such input to bind; its inputs are {known}")


def _sized(inputs: Mapping[str, TensorType], dims: Mapping[str, int]) -> tuple[dict[str, TensorType], list[ModelError]]:
    """The inputs with sizes for their dims, and why some have none: each name is told of once."""
    # Unknown names first: one also leaves a dim without size, and that error would not tell why.
    errors = {error.node: error for error in (*_unknown_names(inputs, dims), *_no_sizes(dims))}
    sizes = {name: int(size) for name, size in dims.items() if name not in errors}
    sized: dict[str, TensorType] = {}
    for name, type_ in inputs.items():
        if type_.dims is None:
            errors[name] = ModelError(name, "dims", "the input has no rank; export the model with a shape for it")
            sized[name] = type_
            continue
        found: list[int | str] = []
        for axis, dim in enumerate(type_.dims):
            keys = [] if isinstance(dim, int) else [key for key in (dim, f"{name}.{axis}") if key]
            known = next((sizes[key] for key in keys if key in sizes), None)
            found.append(dim if known is None else known)
            if known is None and not (isinstance(dim, int) and dim >= 0):
                errors.setdefault(keys[0] if keys else name, _open_dim(name, axis, dim, type_))
        sized[name] = TensorType(type_.element, tuple(found))
    return sized, list(errors.values())


def _unknown_names(inputs: Mapping[str, TensorType], dims: Mapping[str, int]) -> Iterator[ModelError]:
    open_dims = [
        (dim, f"{name}.{axis}")
        for name, type_ in inputs.items()
        for axis, dim in enumerate(type_.dims or ())
        if not isinstance(dim, int)
    ]
    known = list(dict.fromkeys(dim or place for dim, place in open_dims))
    for unknown in sorted(dims.keys() - {name for both in open_dims for name in both if name}):
        near, there = did_you_mean(unknown, known), ", ".join(known) or "none"
        yield ModelError(unknown, "dims", f"no input has a dim of this name{near}; symbolic dims are: {there}")


def _no_sizes(dims: Mapping[str, int]) -> Iterator[ModelError]:
    for name, size in dims.items():
        if isinstance(size, bool) or not isinstance(size, int | np.integer) or not 0 <= size < 2**31:
            yield ModelError(name, "dims", f"{size!r} is no size of a dim")


def _open_dim(name: str, axis: int, dim: int | str, type_: TensorType) -> ModelError:
    if isinstance(dim, int):
        return ModelError(name, "dims", f"dim {axis} of the input is {dim}")
    key = dim or f"{name}.{axis}"
    shown = "[" + ", ".join(str(size) if size != "" else "?" for size in type_.dims or ()) + "]"
    reason = f"dim {axis}{f' ({dim!r})' if dim else ''} of the input {shown} is not fixed; "
    return ModelError(name, "dims", f"{reason}give dims={{{key!r}: N}}, on the command line --dim {key}=N")
