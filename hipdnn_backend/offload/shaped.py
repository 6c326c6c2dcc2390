"""Models with open dims, compiled for several sizes of these in advance.

Example:
    model = hipdnn_backend.offload.load_shapes("bert.onnx", "batch=1,2,4,8 seq=64..512:64", device="cpu")
    outputs = model.run({"ids": ids})  # served by the next sizes, padded where that is harmless
    model.save("bert.fusilli")
    model = hipdnn_backend.offload.load_shapes("bert.fusilli", device="cpu")    # compiles nothing
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from fusilli_ground.errors import OptionError
from hipdnn_backend.engine import Engine
from hipdnn_backend.offload.buckets import (
    Dims,
    Extent,
    OpenDim,
    Sizes,
    check_names,
    check_sizes,
    combinations,
    kept,
    padded,
    parse_sizes,
    served_by,
)
from hipdnn_backend.offload.errors import ModelError
from hipdnn_backend.offload.model import (
    Model,
    Tensor,
    check_kinds,
    compile_model,
    engines_for,
    is_saved,
    load,
    load_variants,
)
from hipdnn_backend.offload.overwriting import model_files, overwritten
from hipdnn_backend.offload.program.package import PackageError, TargetProgram, save_package
from hipdnn_backend.offload.program.runner import InputError

if TYPE_CHECKING:
    from hipdnn_backend.offload.session import OffloadOptions

__all__ = ["OpenTensor", "ShapedModel", "compile_shapes", "load_shapes"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class OpenTensor:
    """An input or output.

    Attributes:
        name: as in the model.
        dims: extents, and the names of open dims.
        dtype: of the arrays.
    """

    name: str
    dims: tuple[int | str, ...]
    dtype: np.dtype[Any]


class ShapedModel:
    """A model that is compiled for several sizes of its open dims. Threads may share it.

    Attributes:
        name: of the model.
        device: where it runs.
        target: what its code was compiled for.
        opened: its open dims: their sizes, and why one is not padded.
        models: the sizes of the dims, in the order of ``opened`` → the model for them.
        seconds: from the call of `load_shapes` until it was ready.
    """

    def __init__(self, opened: Sequence[OpenDim], models: Mapping[tuple[int, ...], Model], source: Path | None) -> None:
        first = next(iter(models.values()))
        self.name, self.device, self.target = first.name, first.device, first.target
        self.opened = tuple(opened)
        self.models = dict(models)
        self.seconds = 0.0
        self._source = source
        self._inputs = [tensor.name for tensor in first.inputs]
        self._outputs = [tensor.name for tensor in first.outputs]

    @property
    def inputs(self) -> tuple[OpenTensor, ...]:
        """What `run` takes."""
        return self._named(self.largest.inputs, [each.inputs for each in self.opened])

    @property
    def outputs(self) -> tuple[OpenTensor, ...]:
        """What `run` gives; a dim that is not padded has its largest size here."""
        return self._named(self.largest.outputs, [each.outputs for each in self.opened])

    def _named(self, tensors: Sequence[Tensor], places: Sequence[Sequence[Extent]]) -> tuple[OpenTensor, ...]:
        made = [list[int | str](tensor.dims) for tensor in tensors]
        for dim, found in zip(self.opened, places, strict=True):
            for at in found:
                made[at.number][at.axis] = dim.name if at.per == 1 else f"{at.per}*{dim.name}"
        return tuple(
            OpenTensor(tensor.name, tuple(dims), tensor.dtype) for tensor, dims in zip(tensors, made, strict=True)
        )

    @property
    def largest(self) -> Model:
        """The model for the largest sizes."""
        return self.models[tuple(each.sizes[-1] for each in self.opened)]

    def run(self, feeds: Mapping[str, Any], results: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Run on arrays of any sizes that are served; see `Model.run`.

        Args:
            feeds: an array for each input. What is padded is an array in host memory.
            results: arrays to write outputs to, of the dims that they have without padding.

        Raises:
            InputError: an array is missing or does not fit, or no sizes serve its dims.
            EngineError: a graph failed.
        """
        if not isinstance(feeds, Mapping) or any(name not in feeds for name in self._inputs):
            return self.largest.run(feeds, results)  # which says what is wrong
        dims = tuple(tuple(int(extent) for extent in np.shape(feeds[name])) for name in self._inputs)
        self._check(dims)
        served = served_by(self.opened, dims)
        if served is None:
            raise self._unserved(dims)
        have, bucket = served
        model = self.models[tuple(bucket[each.name] for each in self.opened)]
        if have == bucket:
            return model.run(feeds, results)
        whole = padded(self.opened, dims, bucket)
        arrays = {name: self._padded(name, feeds[name], whole[number]) for number, name in enumerate(self._inputs)}
        outputs = model.run({**feeds, **arrays})
        cut = kept(self.opened, tuple(tensor.dims for tensor in model.outputs), have, bucket)
        return self._cut(outputs, cut, results)

    def _check(self, dims: Dims) -> None:
        """Refuse dims that no size of an open one makes.

        Raises:
            InputError: names the input, its dim and what it is.
        """
        free = {(at.number, at.axis) for each in self.opened for at in each.inputs}
        for number, (tensor, given) in enumerate(zip(self.largest.inputs, dims, strict=True)):
            fits = len(given) == len(tensor.dims) and all(
                extent == wanted or (number, axis) in free
                for axis, (extent, wanted) in enumerate(zip(given, tensor.dims, strict=True))
            )
            if not fits:
                raise InputError(
                    f"model '{self.name}': input '{tensor.name}' has dims {list(given)}; with the largest sizes it is "
                    f"{list(tensor.dims)}, and open are {self._names(number) or 'none'}"
                )

    def _names(self, number: int) -> str:
        return ", ".join(f"dim {at.axis} ('{each.name}')" for each in self.opened for at in each.inputs
                         if at.number == number)  # fmt: skip

    def _unserved(self, dims: Dims) -> InputError:
        """The error about the first open dim whose size nothing serves."""
        for each in self.opened:
            extents = {dims[at.number][at.axis] for at in each.inputs}
            at = each.inputs[0]
            where = f"model '{self.name}': input '{self._inputs[at.number]}', dim {at.axis} ('{each.name}')"
            sizes = ", ".join(map(str, each.sizes))
            if len(extents) > 1:
                return InputError(f"{where}: inputs have different sizes of this dim: {sorted(extents)}")
            (size,) = extents
            if not size:
                return InputError(f"{where} is 0, and what is empty is not padded; there is code for {sizes}")
            if size > each.sizes[-1]:
                return InputError(f"{where} is {size}; there is code for {sizes}, and for none as large")
            if each.refusal and size not in each.sizes:
                return InputError(f"{where} is {size}; there is code for {sizes}, and it is not padded: {each.refusal}")
        raise AssertionError("a dim is at fault")

    @staticmethod
    def _padded(name: str, value: Any, dims: Sequence[int]) -> Array:
        try:
            array = value if isinstance(value, np.ndarray) else np.from_dlpack(value)
        except (TypeError, BufferError, RuntimeError) as error:
            raise InputError(
                f"input '{name}' is not in host memory ({error}); what is padded has to be: give one of the sizes"
            ) from error
        more = [(0, whole - extent) for extent, whole in zip(array.shape, dims, strict=True)]
        # copies of the last row: code does nothing with them that it does not do for the caller's own
        return np.pad(array, more, mode="edge") if any(after for _, after in more) else array

    def _cut(self, outputs: Mapping[str, Array], dims: Dims, results: Mapping[str, Any] | None) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, extents in zip(self._outputs, dims, strict=True):
            part = outputs[name][tuple(slice(0, extent) for extent in extents)]
            target = (results or {}).get(name)
            if target is None:
                found[name] = np.ascontiguousarray(part)
                continue
            if not isinstance(target, np.ndarray) or (target.shape, target.dtype) != (part.shape, part.dtype):
                raise InputError(
                    f"output '{name}': what was padded is written to a numpy array of dims {list(part.shape)} and type "
                    f"{part.dtype}"
                )
            np.copyto(target, part)
            found[name] = target
        return found

    def variants(self) -> list[TargetProgram]:
        """The model as what a saved one holds.

        Raises:
            EngineError: an engine cannot serialize its plans.
        """
        names = [each.name for each in self.opened]
        return [
            replace(model.variant(), sizes=dict(zip(names, sizes, strict=True)), opened=self.opened)
            for sizes, model in self.models.items()
        ]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to a file from which `load_shapes` restores it without compiling.

        Raises:
            ModelError: ``path`` is the ONNX file that the model is made of, or holds its external data.
            EngineError: an engine cannot serialize its plans.
            OSError: it cannot be written; a file that was there stays.
        """
        lost = overwritten(path, () if self._source is None else model_files(self._source))
        if lost is not None:
            reason = f"{os.fspath(path)} is a file that the model was loaded from ({lost}); name another one"
            raise ModelError("", "overwriting", reason)
        save_package(path, self.name, self.variants())

    def close(self) -> None:
        """Free its memory and its plans. A second call does nothing."""
        for model in self.models.values():
            model.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        sizes = " ".join(f"{each.name}={','.join(map(str, each.sizes))}" for each in self.opened)
        return f"<ShapedModel '{self.name}' on {self.device}: {sizes}>"


def load_shapes(
    source: Any,
    shapes: str | Mapping[str, Iterable[int]] | None = None,
    *,
    device: str = "cpu",
    dims: Mapping[str, int] | None = None,
    inputs: Mapping[str, Any] | None = None,
    engines: Iterable[Engine] | None = None,
    options: OffloadOptions | None = None,
    stream: int | None = None,
) -> ShapedModel:
    """A model that is compiled for several sizes of its open dims, or restored from a file that was saved of one.

    Args:
        source: path of an ONNX file or of a saved model, an ONNX file's bytes, or a ``ModelProto``.
        shapes: ``batch=1,2,4,8 seq=64..512:64``, or the sizes by the name of the dim; not for saved models.
        device: as for `load`.
        dims: sizes of the dims that have just one; not for saved models.
        inputs: as for `load`.
        engines: as for `load`.
        options: as for `load`.
        stream: as for `load`.

    Raises:
        OptionError: the shapes are malformed, or of dims that no input has.
        ModelError, PackageError, PassError, DeviceError, OSError: as for `load`.
    """
    start = time.perf_counter()
    check_kinds(source, device=device, dims=dims, inputs=inputs, engines=engines, options=options)
    chosen = engines_for(device) if engines is None else tuple(engines)
    path = Path(os.path.abspath(source)) if isinstance(source, str | os.PathLike) else None
    if is_saved(source):
        if shapes or dims or inputs:
            raise PackageError(f"{source}: a saved model has its shapes, dims and bound inputs already")
        models = load_variants(source, device=device, engines=chosen, stream=stream)
        opened = models[0][0].opened
        made = {tuple(variant.sizes[each.name] for each in opened): model for variant, model in models}
        shaped = ShapedModel(opened, made, None)
    else:
        sizes = _sizes(source, shapes, inputs)
        opened = _opened(source, sizes, dims or {}, inputs or {})
        made = {}
        try:
            for bucket in combinations(sizes):
                made[tuple(bucket.values())] = load(
                    source, device=device, dims={**(dims or {}), **bucket}, inputs=inputs, engines=chosen,
                    options=options, stream=stream,
                )  # fmt: skip
        except BaseException:
            for model in made.values():
                model.close()
            raise
        shaped = ShapedModel(opened, made, path)
    shaped.seconds = time.perf_counter() - start
    return shaped


def compile_shapes(
    source: Any,
    targets: Mapping[str, Sequence[Engine]],
    shapes: str | Mapping[str, Iterable[int]],
    *,
    dims: Mapping[str, int] | None = None,
    inputs: Mapping[str, Any] | None = None,
    options: OffloadOptions | None = None,
) -> tuple[str, list[TargetProgram]]:
    """Compile a model for targets and for several sizes of its open dims; no device is needed.

    Args:
        source: as for `load_shapes`, but no saved model.
        targets: the name of each target, and the engines that compile for it.
        shapes: as for `load_shapes`.
        dims: as for `load_shapes`.
        inputs: as for `load_shapes`.
        options: as for `load_shapes`.

    Returns:
        The name of the model and a variant for each target and each combination of sizes.

    Raises:
        OptionError, ModelError, PassError: as for `load_shapes`.
        EngineError: an engine cannot serialize its plans.
    """
    check_kinds(source, dims=dims, inputs=inputs, options=options)
    sizes = _sizes(source, shapes, inputs)
    opened = _opened(source, sizes, dims or {}, inputs or {})
    name, variants = "", list[TargetProgram]()
    for bucket in combinations(sizes):
        name, found = compile_model(source, targets, dims={**(dims or {}), **bucket}, inputs=inputs, options=options)
        variants += [replace(variant, sizes=bucket, opened=opened) for variant in found]
    return name, variants


_NAMES: Final = "give NAME=SIZES, e.g. batch=1,2,4,8"


def _sizes(
    source: Any, shapes: str | Mapping[str, Iterable[int]] | None, inputs: Mapping[str, Any] | None
) -> dict[str, tuple[int, ...]]:
    """The sizes that are asked for, of dims that the model's inputs have."""
    import onnx

    from hipdnn_backend.offload.frontend import declared_arguments

    if not isinstance(shapes, str | Mapping | None):
        raise OptionError(f"shapes: expected text or sizes by the name of the dim, got {shapes!r}; {_NAMES}")
    if not shapes:
        raise ModelError("", "shapes", f"there are no shapes to compile for; {_NAMES}")
    if isinstance(source, str | os.PathLike) and Path(source).suffix == ".mlir":
        raise ModelError(
            "", "shapes", f"{source}: a model in the torch dialect has static dims; shapes are for ONNX models"
        )
    if not isinstance(source, str | os.PathLike | bytes | onnx.ModelProto):
        raise ModelError("", "shapes", f"a {type(source).__name__} has static dims; shapes are for ONNX models")
    sizes = parse_sizes(shapes) if isinstance(shapes, str) else check_sizes(shapes)
    declared, _ = declared_arguments(source, inputs=inputs)
    check_names(sizes, {each.name: each.dims or () for each in declared})
    return sizes


def _opened(source: Any, sizes: Sizes, dims: Mapping[str, int], inputs: Mapping[str, Any]) -> tuple[OpenDim, ...]:
    """Where each dim is in the arguments, and whether it may be padded."""
    from hipdnn_backend.offload.frontend import declared_arguments
    from hipdnn_backend.offload.frontend.loading import folded
    from hipdnn_backend.offload.frontend.padding import NotPaddableError, padded_ends, probe_sizes

    declared, problems = declared_arguments(source, dims={**dims, **{name: each[0] for name, each in sizes.items()}},
                                            inputs=inputs)  # fmt: skip
    if problems:
        raise ModelError("", "dims", "; ".join(problems))
    declared, _ = declared_arguments(source, inputs=inputs)
    probes = {name: probe_sizes(each) for name, each in sizes.items()}
    base = {**dims, **{name: each[0] for name, each in probes.items()}}
    found: list[OpenDim] = []
    for name, each in sizes.items():
        places = [
            Extent(number, axis)
            for number, value in enumerate(declared)
            for axis, dim in enumerate(value.dims or ())
            if not isinstance(dim, int) and (dim or f"{value.name}.{axis}") == name
        ]
        dim = OpenDim(name, each, tuple(places))
        try:
            ends = padded_ends(
                lambda size, at=name: folded(source, dims={**base, at: size}, inputs=inputs), probes[name]
            )
        except NotPaddableError as error:
            found.append(replace(dim, refusal=str(error)))
        else:
            found.append(replace(dim, outputs=ends.outputs))
    return tuple(found)
