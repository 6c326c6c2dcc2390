"""Models on the command line: loading them, their inputs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import ml_dtypes  # noqa: F401 - numpy knows its types by name from here on
import numpy as np

from fusilli_plugin.cli.base import echo
from fusilli_plugin.formats.kinds import Kind, kind_of
from graph_api import GraphError
from iree_bridge.artifact.arrays import read_arrays

if TYPE_CHECKING:
    from fusilli_plugin.cli.base import Step
    from hipdnn_backend.engine import Engine
    from hipdnn_backend.offload import Model, ShapedModel
    from hipdnn_backend.offload.buckets import OpenDim
    from hipdnn_backend.offload.frontend import Declared
    from hipdnn_backend.offload.model import Tensor
    from hipdnn_backend.offload.shaped import OpenTensor

__all__ = [
    "bound_inputs",
    "dims_of",
    "early_feeds",
    "engines_on",
    "feeds_from",
    "load_model",
    "load_shaped",
    "model_options",
    "print_padding",
    "random_feeds",
    "shapes_option",
    "targets_engines",
]

Array = np.ndarray[Any, Any]
F = TypeVar("F", bound=Callable[..., Any])


def model_options(function: F) -> F:
    """``--dim``, ``--input`` and ``--layout`` for commands that load models."""
    function = click.option(
        "--layout", type=click.Choice(("row-major", "channels-last", "auto")), default="auto", show_default=True,
        help="Models: order of the elements between graphs; auto is channels-last where convolutions dominate.",
    )(function)  # fmt: skip
    function = click.option(
        "--input", "bound", metavar="NAME=VALUE", multiple=True,
        help="Models: bind an input to a number or a JSON array, e.g. a sampling rate; it is no input any more.",
    )(function)  # fmt: skip
    return click.option(
        "--dim", "dims", metavar="NAME=N", multiple=True,
        help="Models: size of a symbolic dim; INPUT.AXIS names a dim that has no name.",
    )(function)  # fmt: skip


def shapes_option(function: F) -> F:
    """``--shapes`` for commands that compile for several sizes."""
    return click.option(
        "--shapes", metavar="SIZES",
        help="Models: sizes of open dims to compile for, 'batch=1,2,4 seq=64..512:64'; between them inputs are padded "
             "where that is harmless.",
    )(function)  # fmt: skip


def print_padding(opened: Sequence[OpenDim]) -> None:
    """Which dims are padded, and why not."""
    for dim in opened:
        sizes = ", ".join(map(str, dim.sizes))
        echo(
            f"dim '{dim.name}': code for {sizes}; {f'no others: {dim.refusal}' if dim.refusal else 'others are padded'}"
        )


def dims_of(values: Sequence[str]) -> dict[str, int]:
    """What ``--dim`` says.

    Raises:
        click.BadParameter: it is not ``name=number``, or a name is set twice.
    """
    found: dict[str, int] = {}
    for name, text in _pairs(values, "--dim"):
        if not text.isdecimal() or not 0 < int(text) < 2**31:
            raise click.BadParameter(f"{name}={text}: the size of a dim is a positive number", param_hint="--dim")
        found[name] = int(text)
    return found


def bound_inputs(values: Sequence[str]) -> dict[str, Any]:
    """What ``--input`` says: numbers, booleans, arrays.

    Raises:
        click.BadParameter: it is not ``name=value``, or a name is set twice.
    """
    found: dict[str, Any] = {}
    for name, text in _pairs(values, "--input"):
        try:
            value = json.loads(text)
            found[name] = np.array(value) if isinstance(value, list) else value
        except (ValueError, RecursionError) as error:
            raise click.BadParameter(
                f"{name}={text[:80]}: no number or JSON array: {error}", param_hint="--input"
            ) from None
        if not isinstance(found[name], bool | int | float | np.ndarray) or _is_ragged(found[name]):
            raise click.BadParameter(f"{name}={text[:80]}: a number or an array of numbers", param_hint="--input")
    return found


def _is_ragged(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind not in "biuf"


def _pairs(values: Sequence[str], option: str) -> list[tuple[str, str]]:
    pairs = []
    for each in values:
        name, sign, text = each.rpartition("=")
        if not sign or not name:
            raise click.BadParameter(f"{each!r} is not NAME=VALUE", param_hint=option)
        pairs.append((name, text))
    names = [name for name, _ in pairs]
    if len(set(names)) != len(names):
        raise click.BadParameter(f"a name is set twice among {names}", param_hint=option)
    return pairs


def engines_on(device: str) -> tuple[Engine, ...]:
    """The engines that a model is compiled by: this one first, then what else is installed for the device.

    Raises:
        FusilliError, EngineError: the device means nothing.
    """
    from fusilli_plugin.engine.engine import FusilliEngine
    from hipdnn_backend.offload import engines_for

    return engines_for(device, [FusilliEngine(device)])


def targets_engines(targets: Sequence[str]) -> dict[str, tuple[Engine, ...]]:
    """The engines that compile for each target.

    Raises:
        FusilliError, EngineError: a target means nothing.
    """
    from fusilli_plugin.engine.engine import FusilliEngine
    from hipdnn_backend.offload import engines_for_target
    from iree_bridge import Target

    named = [str(Target.parse(target)) for target in targets]
    return {target: engines_for_target(target, [FusilliEngine("cpu")]) for target in dict.fromkeys(named)}


def load_shaped(
    path: Path, device: str, step: Step, shapes: str | None, dims: Sequence[str], bound: Sequence[str], layout: str
) -> ShapedModel:
    """The model on a device for several sizes of its open dims, with progress.

    Raises:
        OptionError, OffloadError, DeviceError, EngineError, FusilliError, OSError: see
            `hipdnn_backend.offload.load_shapes`.
    """
    from hipdnn_backend.offload import load_shapes

    step.say(f"loading {path.name} for {device}")
    return load_shapes(
        path, shapes, device=device, dims=dims_of(dims), inputs=bound_inputs(bound), engines=engines_on(device),
        options=_options(path, step, layout),
    )  # fmt: skip


def load_model(
    path: Path, device: str, step: Step, dims: Sequence[str] = (), bound: Sequence[str] = (), layout: str = "auto"
) -> Model:
    """The model on a device, with progress.

    Raises:
        OffloadError, DeviceError, EngineError, FusilliError, OSError: see `hipdnn_backend.offload.load`.
    """
    from hipdnn_backend.offload import load

    step.say(f"loading {path.name} for {device}")
    sizes, values = dims_of(dims), bound_inputs(bound)
    return load(
        path, device=device, dims=sizes, inputs=values, engines=engines_on(device), options=_options(path, step, layout)
    )


def _options(path: Path, step: Step, layout: str) -> Any:
    """Options that tell of each compiled graph; None for saved models, which need no compiler installed."""
    return None if kind_of(path) is Kind.SAVED_MODEL else offload_options(step, layout)


def offload_options(step: Step, layout: str) -> Any:
    """`OffloadOptions` that tell of each compiled graph."""
    from hipdnn_backend.offload.session import Layout, OffloadOptions

    return OffloadOptions(
        layout=Layout(layout),
        progress=lambda made: step.say(str(made)),
    )


def early_feeds(path: Path, inputs: Path, dims: Sequence[str], bound: Sequence[str]) -> dict[str, Array]:
    """`feeds_from` for an ONNX model that is not loaded yet, whose work is saved if they do not fit.

    Raises:
        GraphError: with all that is wrong with the arrays, with ``--dim`` and with ``--input``.
        OffloadError, OSError: the model cannot be read.
    """
    from hipdnn_backend.offload.frontend import declared_arguments

    declared, problems = declared_arguments(path, dims=dims_of(dims), inputs=bound_inputs(bound))
    return feeds_from(inputs, path.name, declared, known=problems)


def random_feeds(model: Model, seed: int) -> dict[str, Array]:
    """Arrays for a model's inputs: normal floats; 0 and 1 for integers, which may be indices, and for booleans."""
    generator = np.random.default_rng(seed)
    found: dict[str, Array] = {}
    for tensor in model.inputs:
        if tensor.dtype.kind in "iub":
            found[tensor.name] = generator.integers(0, 2, tensor.dims).astype(tensor.dtype)
        else:
            found[tensor.name] = generator.standard_normal(tensor.dims).astype(tensor.dtype)
    return found


def feeds_from(
    path: Path, name: str, inputs: Sequence[Tensor | OpenTensor | Declared], *, known: Sequence[str] = ()
) -> dict[str, Array]:
    """Arrays for a model's inputs from a ``.npz`` file; numbers of another width are converted within their kind.

    Args:
        path: of the file.
        name: of the model.
        inputs: what the model takes; dims that are not known yet may have any size.
        known: what is wrong otherwise, to be told along with what is wrong with the arrays.

    Raises:
        GraphError: no npz file, missing or unknown names, other shapes, dtypes of another kind, lost integers: with all
            problems there are.
    """
    given = dict(read_arrays(path))
    names = [tensor.name for tensor in inputs]
    problems, found = list(known), {}
    missing = [each for each in names if each not in given]
    extra = [each for each in given if each not in names]
    if missing:
        problems.append(f"no array for {missing}; the inputs of '{name}' are {names}")
    if extra:
        problems.append(f"{extra} is no input; the inputs of '{name}' are {names}")
    for tensor in inputs:
        if tensor.name in given:
            try:
                found[tensor.name] = _fitted(tensor.name, given[tensor.name], tensor)
            except _MisfitError as misfit:
                problems.append(str(misfit))
    if problems:
        raise GraphError(f"{path}: {'; '.join(problems)}")
    return found


class _MisfitError(Exception):
    """An array does not fit an input."""


def _fitted(name: str, array: Array, tensor: Tensor | OpenTensor | Declared) -> Array:
    wanted = tensor.dtype
    if not _is_of(array.shape, tensor.dims):
        raise _MisfitError(f"'{name}' has shape {array.shape}, the input's dims are {_shown(tensor.dims)}")
    if array.dtype.kind == "V" and array.dtype.itemsize == wanted.itemsize:
        array = array.view(wanted)  # how numpy stores bfloat16 and the 8-bit floats
    if array.dtype == wanted:
        return array
    if not np.can_cast(array.dtype, wanted, "same_kind"):
        raise _MisfitError(f"'{name}' has dtype {array.dtype}, the input's is {wanted}; use astype")
    echo(f"note: '{name}' is converted from {array.dtype} to {wanted}", err=True)
    with np.errstate(over="ignore"):
        fitted = array.astype(wanted)
    if wanted.kind in "iu" and not np.array_equal(fitted, array):
        raise _MisfitError(f"'{name}' has values that {wanted} cannot hold")
    return fitted


def _is_of(shape: tuple[int, ...], dims: Sequence[int | str] | None) -> bool:
    """Whether a shape is that of dims, some of which may not be known."""
    return dims is None or (
        len(shape) == len(dims)
        and all(not isinstance(dim, int) or dim == size for size, dim in zip(shape, dims, strict=True))
    )


def _shown(dims: Sequence[int | str] | None) -> str:
    return f"({', '.join(str(dim) or '?' for dim in dims or ())}{',' if dims and len(dims) == 1 else ''})"


def summary(array: Array) -> dict[str, float]:
    """Least, mean and largest value; NaN if there is one, or if the array is empty."""
    values = array.astype(np.float64)
    if not values.size:
        return dict.fromkeys(("min", "mean", "max"), float("nan"))
    return {"min": float(values.min()), "mean": float(values.mean()), "max": float(values.max())}


def outputs_document(outputs: Mapping[str, Array]) -> list[dict[str, Any]]:
    """Outputs for ``--json``."""
    return [
        {"name": name, "dims": array.shape, "data_type": array.dtype.name, **summary(array)}
        for name, array in outputs.items()
    ]
