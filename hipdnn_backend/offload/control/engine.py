"""The engine of control operations: it has the bodies compiled by the others, and goes through them in Python.

It takes graphs of one custom operation that carries an If, a Loop or a Scan (`hipdnn_backend.onnx_op`), and comes
before engines that run ONNX as it is. Bodies may have control operations of their own.
"""

from __future__ import annotations

import io
import json
import mmap
import os
import re
import tempfile
import threading
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from fusilli_ground.strides import row_major
from hipdnn_backend.device.memory import Memory
from hipdnn_backend.engine import Engine, EngineId, Override, Support, engine_id, is_fallback
from hipdnn_backend.errors import DeviceError, EngineError, WireError
from hipdnn_backend.offload.control.described import KINDS, Control, Port, Unreadable, from_document, to_document
from hipdnn_backend.offload.control.running import bind_control
from hipdnn_backend.offload.errors import OffloadError
from hipdnn_backend.offload.making import Made, compiled, restored
from hipdnn_backend.offload.program.package import Package, save_package
from hipdnn_backend.offload.program.runner import Prepared, prepare
from hipdnn_backend.onnx_op import CONTROL_ENGINE, carries_onnx
from hipdnn_backend.wire import CustomOpAttributes, EngineConfig, EngineDetails, WireGraph, decode_graph

if TYPE_CHECKING:
    from hipdnn_backend.offload.control.reading import Written

__all__ = ["ControlEngine", "with_control", "with_engine"]

Array = np.ndarray[Any, Any]

_DEEPEST: Final = 8  # control operations in bodies of control operations
_MANIFEST: Final = "control.json"
_OPERATORS: Final = re.compile(rb'"(\x02If|\x04Loop|\x04Scan)')  # NodeProto.op_type as protobuf writes it


def with_control(source: Any, engines: Sequence[Engine], target: str, memory: Memory | None) -> tuple[Engine, ...]:
    """The engines that a model is compiled with: with one for control operations, if it has any.

    Args:
        source: of the model.
        engines: that compile it.
        target: what for.
        memory: where its buffers are; None if it is not run here.
    """
    return with_engine(engines, target, memory) if _has_control(source) else tuple(engines)


def with_engine(engines: Sequence[Engine], target: str, memory: Memory | None, depth: int = 0) -> tuple[Engine, ...]:
    """The engines and one for control operations, before those that run ONNX."""
    control = ControlEngine(engines, target, memory, depth)
    first = [engine for engine in engines if not is_fallback(engine)]
    return (*first, control, *(engine for engine in engines if is_fallback(engine)))


def _has_control(source: Any) -> bool:
    """Whether a model may have control operations: it is looked at as bytes, which may also be those of a weight."""
    if isinstance(source, bytes):
        return _OPERATORS.search(source) is not None
    if not isinstance(source, str | os.PathLike):
        return type(source).__name__ == "ModelProto" and any(
            node.op_type in KINDS
            for nodes in (source.graph.node, *(function.node for function in source.functions))
            for node in nodes
        )
    if Path(source).suffix == ".mlir":
        return False
    try:
        with open(source, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _OPERATORS.search(data) is not None
    except (OSError, ValueError):  # who reads it says what is wrong with it
        return False


class ControlEngine:
    """Satisfies `hipdnn_backend.engine.FallbackEngine`. Methods may be called from any thread.

    Args:
        engines: that compile the bodies.
        target: what for.
        memory: where operands are; None if nothing is run here.
        depth: how many control operations this one is inside of.
    """

    def __init__(self, engines: Sequence[Engine], target: str, memory: Memory | None, depth: int = 0) -> None:
        inner = with_engine(engines, target, memory, depth + 1) if depth < _DEEPEST else tuple(engines)
        self._engines = inner
        self._target = target
        self._memory = memory
        self._lock = threading.Lock()  # bodies are compiled one at a time: MLIR is, too

    @property
    def id(self) -> EngineId:
        """The hash of the name."""
        return engine_id(CONTROL_ENGINE)

    @property
    def name(self) -> str:
        """``CONTROL_ENGINE``."""
        return CONTROL_ENGINE

    @property
    def is_fallback(self) -> bool:
        """True: it is asked about ONNX nodes only."""
        return True

    def support(self, graph: bytes) -> Support:
        """Whether the graph is a control operation; what its bodies are is seen when they are compiled."""
        try:
            self._read(decode_graph(graph))
        except WireError as error:
            return Support.no(str(error), rule="wire")
        except Unreadable as error:
            return Support.no(str(error), rule="control")
        return Support.yes()

    def details(self, graph: bytes) -> EngineDetails:
        """No knobs."""
        return EngineDetails(engine_id=self.id, behavior_notes=(), name=CONTROL_ENGINE)

    def workspace_size(self, graph: bytes, config: EngineConfig) -> int:
        """None: plans have memory of their own."""
        return 0

    def build(self, graph: bytes, config: EngineConfig) -> ControlPlan:
        """Compile the bodies.

        Raises:
            EngineError: a body does not compile, or gives what the operation does not.
        """
        try:
            written = self._read(decode_graph(graph))
            with self._lock:
                made = [compiled(body, self._engines, self._target, None, None, (), None) for body in written.bodies]
        except (Unreadable, WireError, OffloadError) as error:
            raise EngineError(CONTROL_ENGINE, str(error)) from error
        _check(written.control, made)
        return ControlPlan(written.control, made, written.constants, self._memory)

    def restore(self, payload: bytes) -> ControlPlan:
        """A plan from what `ControlPlan.serialize` gave.

        Raises:
            EngineError: the bytes are damaged, or of other engines.
        """
        try:
            with zipfile.ZipFile(io.BytesIO(payload)) as archive, tempfile.TemporaryDirectory() as folder:
                document = json.loads(archive.read(_MANIFEST))
                control = from_document(document["control"])
                constants = [
                    np.frombuffer(archive.read(f"constant{number}"), dtype).reshape(dims)
                    for number, (dims, dtype) in enumerate(document["constants"])
                ]
                made: list[Made] = []
                for number in range(len(control.captured)):
                    path = Path(folder, f"body{number}")
                    path.write_bytes(archive.read(path.name))
                    package = Package.open(path)
                    made.append(restored(path, package.variant(package.targets[0]), self._engines))
            _check(control, made)
            return ControlPlan(control, made, constants, self._memory)
        except (OSError, KeyError, TypeError, ValueError, IndexError, zipfile.BadZipFile, OffloadError) as error:
            raise EngineError(CONTROL_ENGINE, f"the plan is damaged or not for here: {error}") from error

    @staticmethod
    def _read(graph: WireGraph) -> Written:
        from hipdnn_backend.offload.control.reading import read_control

        table = graph.nodes[0].attributes if carries_onnx(graph) else None
        if not isinstance(table, CustomOpAttributes):
            raise Unreadable("it runs nothing but the If, Loop and Scan nodes of a model")
        packed = {tensor.uid for tensor in graph.tensors if tensor.strides == row_major(tensor.dims)}
        apart = [uid for uid in (*table.input_tensor_uids, *table.output_tensor_uids) if uid not in packed]
        if apart:
            raise Unreadable(f"tensor {apart[0]} is not packed")
        return read_control(table.data, table.input_tensor_uids, table.output_tensor_uids)


def _check(control: Control, bodies: Sequence[Made]) -> None:
    """What the bodies give has to be what the operation gives, or what they take in the next step.

    Raises:
        EngineError: it is not.
    """
    for body in bodies:
        views = [body.program.views[each.view] for each in body.program.outputs]
        wanted = _wanted(control)
        if len(wanted) != len(views):
            raise EngineError(
                CONTROL_ENGINE, f"a body of '{control.name}' gives {len(views)} values, not {len(wanted)}"
            )
        for number, (port, view) in enumerate(zip(wanted, views, strict=True)):
            if port is not None and (port.dims, port.dtype) != (view.dims, view.dtype):
                raise EngineError(
                    CONTROL_ENGINE,
                    f"result {number} of a body of '{control.name}' is {list(view.dims)} {view.dtype}, and has to be "
                    f"{list(port.dims)} {port.dtype}",
                )


def _wanted(control: Control) -> list[Port | None]:
    if control.kind == "If":
        return list(control.results)
    carried = len(control.operands) - (control.sequences or 2)
    states = control.operands[:carried] if control.kind == "Scan" else control.operands[2:]
    axes = control.out_axes or (0,) * len(control.results[carried:])
    parts = [
        None if port is None else Port(_dropped(port.dims, axis), port.dtype)
        for port, axis in zip(control.results[carried:], axes, strict=True)
    ]
    return [*([None] if control.kind == "Loop" else []), *states, *parts]


def _dropped(dims: tuple[int, ...], axis: int) -> tuple[int, ...]:
    axis %= max(len(dims), 1)
    return (*dims[:axis], *dims[axis + 1 :])


class ControlPlan:
    """A control operation with its bodies; satisfies `hipdnn_backend.engine.BindablePlan`.

    Attributes:
        workspace_size: 0.
    """

    def __init__(
        self, control: Control, bodies: Sequence[Made], constants: Sequence[Array], memory: Memory | None
    ) -> None:
        self.workspace_size = 0
        self._control = control
        self._made = list(bodies)
        self._constants = tuple(constants)
        self._memory = memory
        self._prepared: dict[int, list[Prepared]] = {}
        self._lock = threading.Lock()

    def execute(
        self,
        pack: Mapping[int, int],
        *,
        workspace: int = 0,
        stream: int = 0,
        overrides: Mapping[int, Override] | None = None,
    ) -> None:
        """Run once; see `hipdnn_backend.engine.Plan.execute`. It waits for the device wherever it has to choose.

        Raises:
            EngineError: a uid is missing, dims are overridden, or a body failed.
        """
        if overrides:
            raise EngineError(CONTROL_ENGINE, "a control operation has the dims that it was compiled for")
        self.bind(pack, workspace=workspace, stream=stream)()

    def bind(self, pack: Mapping[int, int], *, workspace: int = 0, stream: int = 0) -> Callable[[], None]:
        """What runs it on these addresses; see `hipdnn_backend.engine.BindablePlan.bind`.

        Raises:
            EngineError: as for `execute`.
        """
        control = self._control
        ports = [*control.operands, *control.results, *(port for body in control.captured for port in body)]
        missing = sorted({port.uid for port in ports if port is not None and port.constant < 0} - pack.keys())
        if missing:
            raise EngineError(CONTROL_ENGINE, f"the variant pack has no buffer for tensors {missing}")
        try:
            return bind_control(control, self._bodies(stream), self._constants, pack, stream)
        except DeviceError as error:
            raise EngineError(CONTROL_ENGINE, str(error)) from error

    def _bodies(self, stream: int) -> list[Prepared]:
        if self._memory is None or not self._made:
            raise EngineError(CONTROL_ENGINE, "the plan is closed, or was compiled for a device that is not here")
        with self._lock:
            found = self._prepared.get(stream)
            if found is None:
                found = self._prepared[stream] = [
                    prepare(each.program, each.plans, self._memory, each.constants, stream=stream, origins=each.origins)
                    for each in self._made
                ]
            return found

    def serialize(self) -> bytes:
        """The operation and the code of its bodies.

        Raises:
            EngineError: an engine cannot serialize its plans.
        """
        data = io.BytesIO()
        constants = [[list(value.shape), value.dtype.name] for value in self._constants]
        with zipfile.ZipFile(data, "w") as archive, tempfile.TemporaryDirectory() as folder:
            _add(
                archive, _MANIFEST, json.dumps({"control": to_document(self._control), "constants": constants}).encode()
            )
            for number, value in enumerate(self._constants):
                _add(archive, f"constant{number}", value.tobytes())
            for number, made in enumerate(self._made):
                path = Path(folder, f"body{number}")
                save_package(path, made.program.name, [made.variant()])
                _add(archive, path.name, path.read_bytes())
        return data.getvalue()

    def close(self) -> None:
        """Free it; a second call does nothing."""
        for bodies in self._prepared.values():
            for body in bodies:
                body.close()
        self._prepared.clear()
        for made in self._made:
            for plan in made.plans:
                plan.close()
        self._made = []


def _add(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), data)  # equal plans give equal bytes
