"""Models: loaded from ONNX or from a file that `Model.save` wrote, and run.

Example:
    model = hipdnn_backend.offload.load("resnet50.onnx", device="cpu", dims={"batch": 1})
    outputs = model.run({"input": image})
    model.save("resnet50.fusilli")
    model = hipdnn_backend.offload.load("resnet50.fusilli", device="cpu")    # compiles nothing
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeGuard

import numpy as np

from fusilli_ground.errors import OptionError
from fusilli_ground.files import path_of
from hipdnn_backend.device.memory import CudaMemory, HipMemory, HostMemory, Memory
from hipdnn_backend.engine import Engine, Plan, PortableEngine
from hipdnn_backend.offload.errors import ModelError
from hipdnn_backend.offload.making import Made, compiled, restored
from hipdnn_backend.offload.overwriting import model_files, overwritten
from hipdnn_backend.offload.program.package import (
    Package,
    PackageError,
    TargetProgram,
    is_package,
    save_package,
)
from hipdnn_backend.offload.program.program import Named
from hipdnn_backend.offload.program.runner import Prepared, Timing, prepare

if TYPE_CHECKING:
    from hipdnn_backend.offload.session import OffloadOptions

__all__ = [
    "Model",
    "Tensor",
    "compile_model",
    "engines_for",
    "engines_for_target",
    "is_saved",
    "load",
    "load_variants",
]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input or output.

    Attributes:
        name: as in the model.
        dims: extents.
        dtype: of the arrays.
    """

    name: str
    dims: tuple[int, ...]
    dtype: np.dtype[Any]


class Model:
    """A model that is ready to run on a device. Threads may share it; one runs at a time.

    Attributes:
        name: of the model.
        device: where it runs.
        target: what its code was compiled for.
        program: what it does.
        about: JSON document: graphs with their engines, passes, times; for reports.
        seconds: from the call of `load` until it was ready.
    """

    def __init__(self, made: Made, device: str, memory: Memory, stream: int, own_stream: int) -> None:
        self.name = made.program.name
        self.device = device
        self.target = made.target
        self.program = made.program
        self.about = made.about
        self.seconds = 0.0
        self._source: Path | None = None
        self._made = made
        self._memory = memory
        self._own_stream = own_stream
        self._prepared = prepare(made.program, made.plans, memory, made.constants, stream=stream, origins=made.origins)
        self._is_open = True

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """What `run` takes."""
        return tuple(self._tensor(named) for named in self.program.inputs)

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """What `run` gives."""
        return tuple(self._tensor(named) for named in self.program.outputs)

    @property
    def constants(self) -> Mapping[str, Array]:
        """Weights and literals by name; not to be changed."""
        return self._made.constants

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plans of the program's graphs, by number."""
        return self._made.plans

    @property
    def prepared(self) -> Prepared:
        """The program on the device; `Prepared.bind` runs it on the caller's device memory."""
        return self._prepared

    def run(self, feeds: Mapping[str, Any], results: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Run on numpy arrays or objects with ``__dlpack__``, such as torch tensors, in host memory or on the device.

        Args:
            feeds: an array for each input, of its dims and type; on the device dense and row-major.
            results: dense row-major arrays to write outputs to; default: new numpy arrays.

        Returns:
            The outputs by name, in the model's order. They are written.

        Raises:
            InputError: an array is missing or does not fit; nothing has run then.
            EngineError: a graph failed.
        """
        return self._prepared.run(feeds, results)

    def profile(self, feeds: Mapping[str, Any], seen: Callable[[int, Prepared], None] | None = None) -> list[Timing]:
        """Run once and time each step; see `Prepared.profile`."""
        return self._prepared.profile(feeds, seen)

    def variant(self) -> TargetProgram:
        """The model as what a saved one holds.

        Raises:
            EngineError: an engine cannot serialize its plans.
        """
        return self._made.variant()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to a file from which `load` restores it without compiling.

        Raises:
            ModelError: ``path`` is the ONNX or MLIR file that the model is made of, or holds its external data.
            EngineError: an engine cannot serialize its plans.
            OSError: it cannot be written; a file that was there stays.
        """
        lost = overwritten(path, () if self._source is None else model_files(self._source))
        if lost is not None:
            reason = f"{os.fspath(path)} is a file that the model was loaded from ({lost}); name another one"
            raise ModelError("", "overwriting", reason)
        save_package(path, self.name, [self.variant()])

    def close(self) -> None:
        """Free its memory and its plans. A second call does nothing."""
        if self._is_open:
            self._is_open = False
            self._prepared.close()
            for plan in self._made.plans:
                plan.close()
            if self._own_stream:
                self._memory.destroy_stream(self._own_stream)

    def _tensor(self, named: Named) -> Tensor:
        view = self.program.views[named.view]
        return Tensor(named.name, view.dims, np.dtype(view.dtype))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Model '{self.name}' on {self.device}: {len(self.program.graphs)} graphs>"


def check_kinds(
    source: Any,
    *,
    device: object = "cpu",
    dims: object = None,
    inputs: object = None,
    engines: object = None,
    options: object = None,
) -> None:
    """That what a caller asks for is of the kinds that `load` names; what the values mean is looked at later.

    Raises:
        OptionError: an argument is not; a path cannot be one.
    """
    if isinstance(source, str | os.PathLike):
        path_of(source)
    expected: tuple[tuple[str, object, Any, str], ...] = (
        ("device", device, str, "a name such as cpu or hip:0"),
        ("dims", {} if dims is None else dims, Mapping, "sizes by the name of the dim, {'batch': 1}"),
        ("inputs", {} if inputs is None else inputs, Mapping, "values by the name of the input"),
        ("engines", () if engines is None else engines, Iterable, "a list of engines"),
    )
    if options is not None:
        from hipdnn_backend.offload.session import OffloadOptions

        expected += (("options", options, OffloadOptions, "OffloadOptions"),)
    for name, given, kind, words in expected:
        # A text would be a list of letters.
        if not isinstance(given, kind) or (kind is Iterable and isinstance(given, str | bytes | Mapping)):
            raise OptionError(f"{name}: expected {words}, got {given!r}")


def load(
    source: Any,
    *,
    device: str = "cpu",
    dims: Mapping[str, int] | None = None,
    inputs: Mapping[str, Any] | None = None,
    engines: Iterable[Engine] | None = None,
    example: Sequence[Any] = (),
    options: OffloadOptions | None = None,
    stream: int | None = None,
) -> Model:
    """A model, compiled by the engines that take its parts, or restored from a file that `Model.save` wrote.

    Args:
        source: path of an ONNX file, of a torch-dialect ``.mlir`` file or of a saved model; an ONNX file's bytes, a
            ``ModelProto``, or a PyTorch module.
        device: ``cpu``, ``hip``, ``hip:1``, or ``cuda:0`` for development.
        dims: sizes of symbolic dims; not for saved models.
        inputs: inputs that are bound to a value; not for saved models.
        engines: in the order in which they are asked; default: those that `Registry.find` finds, placed on the device.
        example: arguments that a PyTorch module is exported with.
        options: how to compile; default: `OffloadOptions()`.
        stream: a GPU stream of the caller's, as an integer, on which everything is enqueued; it must outlive the model.
            Default: one of the model's own, with which callers of `Prepared.bind` have to synchronise.

    Raises:
        ModelError: the model is damaged, needs dims, or has a part that cannot be converted.
        PackageError: the saved model is damaged or not made for this device.
        PassError: a part compiles on no engine.
        DeviceError: the device is not there.
        OptionError: an argument is of another kind.
        OSError: a file cannot be read.
    """
    start = time.perf_counter()
    check_kinds(source, device=device, dims=dims, inputs=inputs, engines=engines, options=options)
    memory = _memory(device, stream)
    chosen = engines_for(device) if engines is None else tuple(engines)
    if is_saved(source):
        if dims or inputs:
            raise PackageError(f"{source}: a saved model has its dims and bound inputs already")
        made, origin = _restored(Package.open(source), device, chosen, memory), None
    else:
        target = _target(device, chosen)
        made = compiled(source, _compilers(source, chosen, target, memory), target, dims, inputs, example, options)
        origin = Path(os.path.abspath(source)) if isinstance(source, str | os.PathLike) else None
    model = _placed(made, device, memory, stream)
    model._source = origin
    model.seconds = time.perf_counter() - start
    return model


def load_variants(
    source: str | os.PathLike[str], *, device: str, engines: Sequence[Engine], stream: int | None = None
) -> list[tuple[TargetProgram, Model]]:
    """The models in a saved one that is compiled for several sizes of its open dims.

    Raises:
        PackageError, DeviceError, OSError: as for `load`; it is compiled for one shape only.
    """
    memory, package = _memory(device, stream), Package.open(source)
    variants = package.variants(_wanted(package, device, engines))
    if not variants[0].sizes:
        raise PackageError(
            f"{source}: model '{package.name}' has no open dims; load it with hipdnn_backend.offload.load"
        )
    found: list[tuple[TargetProgram, Model]] = []
    try:
        for variant in variants:
            made = restored(package.path, variant, _restorers(variant, engines, memory))
            found.append((variant, _placed(made, device, memory, stream)))
    except BaseException:
        for _, model in found:
            model.close()
        raise
    return found


def _placed(made: Made, device: str, memory: Memory, stream: int | None) -> Model:
    own = memory.create_stream() if stream is None else 0
    try:
        return Model(made, device, memory, own if stream is None else stream, own)
    except BaseException:
        if own:
            memory.destroy_stream(own)
        raise


def compile_model(
    source: Any,
    targets: Mapping[str, Sequence[Engine]],
    *,
    dims: Mapping[str, int] | None = None,
    inputs: Mapping[str, Any] | None = None,
    example: Sequence[Any] = (),
    options: OffloadOptions | None = None,
) -> tuple[str, list[TargetProgram]]:
    """Compile a model for targets; no device is needed.

    Args:
        source: as for `load`, but no saved model.
        targets: the name of each target, and the engines that compile for it.
        dims: as for `load`.
        inputs: as for `load`.
        example: as for `load`.
        options: as for `load`.

    Returns:
        The name of the model and a variant for each target; `save_package` writes them.

    Raises:
        ModelError, OptionError, PassError: as for `load`.
        EngineError: an engine cannot serialize its plans.
    """
    if not isinstance(targets, Mapping) or not targets:
        raise OptionError(f"targets: expected the engines by the name of each target, got {targets!r}")
    for target, engines in targets.items():
        if engines is None:
            raise OptionError(f"targets: {target!r} has no engines")
        check_kinds(source, device=target, dims=dims, inputs=inputs, engines=engines, options=options)
    name, variants = "", []
    for target, engines in targets.items():
        chosen = _compilers(source, engines, target, None)
        made = compiled(source, chosen, target, dims, inputs, example, options)
        variants.append(made.variant())
        name = made.program.name
    return name, variants


def _compilers(source: Any, engines: Sequence[Engine], target: str, memory: Memory | None) -> tuple[Engine, ...]:
    from hipdnn_backend.offload.control.engine import with_control

    return with_control(source, engines, target, memory)


def is_saved(source: Any) -> TypeGuard[str | os.PathLike[str]]:
    """Whether it is the path of what `Model.save` wrote."""
    if not isinstance(source, str | os.PathLike):
        return False
    try:
        with open(source, "rb") as file:
            return is_package(file.read(4))
    except IsADirectoryError:
        return False


def _restored(package: Package, device: str, engines: Sequence[Engine], memory: Memory) -> Made:
    """The variant of a saved model that the engines of the device can restore."""
    variant = package.variant(_wanted(package, device, engines))
    return restored(package.path, variant, _restorers(variant, engines, memory))


def _restorers(variant: TargetProgram, engines: Sequence[Engine], memory: Memory) -> Sequence[Engine]:
    """The engines, and that of control operations if a plan is of it."""
    from hipdnn_backend.offload.control.engine import with_engine
    from hipdnn_backend.onnx_op import CONTROL_ENGINE

    has_control = any(plan.engine == CONTROL_ENGINE for plan in variant.plans)
    return with_engine(engines, variant.target, memory) if has_control else engines


def _wanted(package: Package, device: str, engines: Sequence[Engine]) -> str:
    """The target of a saved model that the engines of the device can restore."""
    if not engines:
        raise PackageError(
            f"{package.path}: no engine is here that restores the plans of model '{package.name}'; install one, e.g. "
            "pip install fusilli-plugin"
        )
    wanted = [str(each.target) for each in engines if _is_portable(each)] or [_target(device, engines)]
    target = next((target for target in wanted if target in package.targets), None)
    if target is None:
        raise PackageError(
            f"{package.path}: model '{package.name}' is not compiled for {wanted[0]}, which is what '{device}' needs; "
            f"{package.inside()}"
        )
    return target


# ---- devices and engines


def _memory(device: str, stream: int | None = None) -> Memory:
    """Where the buffers of a device live.

    Raises:
        ModelError: the name means nothing, or the device has no such stream.
        DeviceError: the device is not there.
    """
    memory = _memory_of(device)
    if stream is not None and (memory.is_host or stream < 0):
        raise ModelError("", "stream", f"device {device!r} has no stream {stream}; leave it out")
    return memory


def _memory_of(device: str) -> Memory:
    word, _, index = str(device).partition(":")
    if word in ("cpu", "cpu-sync", "cpu-task", "cpu-iree") and not index:
        return HostMemory()
    gpus = {"hip": HipMemory, "hip-iree": HipMemory, "cuda": CudaMemory}
    if word in gpus and (not index or (index.isdecimal() and len(index) < 4)):
        return gpus[word](int(index or 0))
    raise ModelError(
        "", "device", f"device {device!r} is none that models run on; use 'cpu', 'hip', 'hip:1' or 'cuda:0'"
    )


def engines_for(device: str, first: Iterable[Engine] = ()) -> tuple[Engine, ...]:
    """The engines of this process on a device: those that can choose are placed there, plugins run on HIP.

    Args:
        device: e.g. ``cpu``, ``hip:1``.
        first: engines that are asked before those that `Registry.find` finds, and replace those of the same name.

    Raises:
        EngineError: the name means nothing to an engine.
    """
    from hipdnn_backend.host.registry import LoadingMode, Registry

    # Plugins are native code for HIP: they are not even loaded for the CPU.
    mode = LoadingMode.ABSOLUTE if device.startswith("cpu") else LoadingMode.ADDITIVE
    engines = Registry.find(first, mode=mode).engines
    return tuple(engine.for_device(device) if _is_portable(engine) else engine for engine in engines)


def engines_for_target(target: str, first: Iterable[Engine] = ()) -> tuple[Engine, ...]:
    """The engines of this process that compile for a target which need not be in this machine, placed there.

    Args:
        target: e.g. ``gfx942``.
        first: as for `engines_for`.

    Raises:
        EngineError: an engine does not know the target.
    """
    from hipdnn_backend.host.registry import LoadingMode, Registry

    engines = Registry.find(first, mode=LoadingMode.ABSOLUTE).engines
    return tuple(engine.for_target(target) for engine in engines if _is_portable(engine))


def _is_portable(engine: Engine) -> TypeGuard[PortableEngine]:
    # Not isinstance: that would ask for the target, and an engine whose device is not there raises then.
    return callable(getattr(engine, "for_device", None))


def _target(device: str, engines: Sequence[Engine]) -> str:
    """What is compiled for: what the first engine that knows says, else the kind of the device."""
    for engine in engines:
        if _is_portable(engine):
            return str(engine.target)
    return device.partition(":")[0].partition("-")[0]
