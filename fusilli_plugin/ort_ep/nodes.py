"""Compiled groups of nodes, as ONNX Runtime runs them."""

from __future__ import annotations

import logging
import struct
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import onnx

from fusilli_plugin._link import ffi
from fusilli_plugin.ort_ep.graphs import Value
from fusilli_plugin.ort_ep.memory import gpu, on_stream_release
from fusilli_plugin.ort_ep.offloading import Compiled
from graph_api import FusilliError
from hipdnn_backend.device import HostMemory, Memory
from hipdnn_backend.interpreter import Bound, Prepared, prepare
from hipdnn_backend.offload.program import Program
from iree_bridge import Device
from iree_bridge._locks import fork_safe_lock

__all__ = ["CompiledNode", "NodeError", "ShapePlan"]

_LOG: Final = logging.getLogger(__name__)
_SLOW: Final = 1.0  # seconds of a compilation that a user should hear of
_MAX_BOUND: Final = 16
_MAX_STAGED: Final = 256 << 10  # bytes of all inputs and outputs
_MAX_STAGED_IN_C: Final = 32 << 10  # what is copied in less time than Python needs to look at the addresses

Dims = tuple[tuple[int, ...], ...]


class NodeError(FusilliError):
    """A compiled group failed while it ran; the message names its nodes."""


def _numbers(shapes: Dims) -> list[int]:
    """Rank and dims of each, as C has them."""
    return [number for dims in shapes for number in (len(dims), *dims)]


def _shortest(bound: Bound) -> Callable[[], None]:
    """The same as ``bound``, without a loop around a single call."""
    return bound.calls[0] if len(bound.calls) == 1 else bound


def _argument_sizes(program: Program) -> list[int]:
    """Bytes of each input, then of each output."""
    named = (*program.inputs, *program.outputs)
    return [program.buffers[program.views[each.view].buffer].nbytes for each in named]


class _Stage:
    """Host memory for a program's arguments, which tensors are copied to and from.

    Attributes:
        addresses: of the inputs, then of the outputs.
        table: an address and a number of bytes for each of them, for C.
    """

    def __init__(self, program: Program) -> None:
        memory = HostMemory()
        sizes = _argument_sizes(program)
        self._buffers = [memory.allocate(size) for size in sizes]
        self.addresses = [buffer.address for buffer in self._buffers]
        pairs = list(zip(self.addresses, sizes, strict=True))
        self.table: Any = ffi.new("uint64_t[]", [number for pair in pairs for number in pair])
        split = len(program.inputs)
        places: list[tuple[Any, int]] = [(ffi.cast("char *", address), size) for address, size in pairs]
        self._inputs, self._outputs = places[:split], places[split:]

    def run(self, call: Callable[[], None], addresses: Sequence[int]) -> None:
        """Run a call that is bound to this memory on tensors elsewhere."""
        copy: Any = ffi.memmove
        for (place, size), address in zip(self._inputs, addresses, strict=False):
            copy(place, ffi.cast("char *", address), size)
        call()
        for (place, size), address in zip(self._outputs, addresses[len(self._inputs) :], strict=True):
            copy(ffi.cast("char *", address), place, size)


class ShapePlan:
    """A group compiled for one set of input shapes, on one device.

    Calls may come from several threads. On the host one runs at a time, since they share the arena; on a GPU each
    stream has memory of its own.

    Attributes:
        output_shapes: rank and dims of each output, for C.
        stage: memory that C copies small tensors to and from, see ``shim/ort_link.h``; NULL if they are not small.
    """

    def __init__(self, compiled: Compiled, device: Device) -> None:
        self._compiled = compiled
        self._device = device
        self._lock = fork_safe_lock()
        self._prepared: dict[int, Prepared] = {}
        self._bound: dict[tuple[bytes, int], Callable[[], None]] = {}
        self._count = len(compiled.program.inputs) + len(compiled.program.outputs)
        self._nbytes = sum(_argument_sizes(compiled.program))
        self._unpack = struct.Struct(f"{self._count}Q").unpack
        self._stage: tuple[_Stage, Callable[[], None]] | None = None
        self._last = b""
        self.output_shapes: Any = ffi.new("int64_t[]", _numbers(compiled.outputs) or [0])
        in_c = not device.is_gpu and self._nbytes <= _MAX_STAGED_IN_C
        self._stage_of_c = _Stage(compiled.program) if in_c else None
        self.stage: Any = self._stage_of_c.table if self._stage_of_c else ffi.NULL

    def launcher(self) -> Callable[[], None]:
        """What runs the plan on `stage`, which there has to be; by one thread at a time.

        Raises:
            EngineError: the code cannot be loaded.
        """
        assert self._stage_of_c is not None, "C launches only what has a stage"
        call = _shortest(self._prepare(0).bind(self._stage_of_c.addresses))
        if not self._compiled.program.arena:
            return call  # it shares no memory with `run`
        lock = self._lock

        def launch() -> None:
            with lock:
                call()

        return launch

    def run(self, addresses: bytes, stream: int) -> None:
        """Run on the tensors at some addresses.

        Args:
            addresses: those of the inputs, then of the outputs, as C has them.
            stream: HIP's handle, 0 on the host.

        Raises:
            EngineError: a graph failed.
        """
        with self._lock:
            call = self._bound.get((addresses, stream))
            if call is None:
                call = self._first(addresses, stream)
            call()

    def _first(self, addresses: bytes, stream: int) -> Callable[[], None]:
        """What runs on addresses that were not bound yet.

        To bind takes as long as to copy hundreds of kilobytes, and a caller that makes new arrays for each run never
        comes back to an address. So small tensors are copied to and from memory that stays bound, until addresses are
        met twice in a row.
        """
        if self._device.is_gpu or self._nbytes > _MAX_STAGED:
            return self._bind(addresses, stream)
        if addresses == self._last:
            return self._bind(addresses, stream)
        self._last = addresses
        if self._stage is None:
            stage = _Stage(self._compiled.program)
            self._stage = stage, _shortest(self._prepare(stream).bind(stage.addresses))
        stage, call = self._stage
        return partial(stage.run, call, self._unpack(addresses))

    def _bind(self, addresses: bytes, stream: int) -> Callable[[], None]:
        call = _shortest(self._prepare(stream).bind(self._unpack(addresses)))
        if len(self._bound) >= _MAX_BOUND:
            del self._bound[next(iter(self._bound))]
        self._bound[addresses, stream] = call
        return call

    def _prepare(self, stream: int) -> Prepared:
        prepared = self._prepared.get(stream)
        if prepared is None:
            compiled = self._compiled
            memory: Memory = gpu(self._device.index) if self._device.is_gpu else HostMemory()
            prepared = prepare(
                compiled.program, compiled.plans, memory, compiled.constants, stream=stream, origins=compiled.origins
            )
            self._prepared[stream] = prepared
        return prepared

    def forget_stream(self, stream: int) -> None:
        """A stream is destroyed: free what was allocated for it."""
        with self._lock:
            self._bound = {key: call for key, call in self._bound.items() if key[1] != stream}
            self._stage = None
            prepared = self._prepared.pop(stream, None)
        if prepared is not None:
            prepared.close()

    def close(self) -> None:
        """Free the memory; the plans are shared and stay."""
        for stream in list(self._prepared):
            self.forget_stream(stream)


class CompiledNode:
    """A group of nodes that ONNX Runtime runs as one.

    Args:
        runtime: number of the ONNX Runtime.
        name: that ONNX Runtime gave it.
        labels: of the nodes in it.
        inputs: in ONNX Runtime's order.
        outputs: in ONNX Runtime's order.
        model: of the group; its inputs and outputs are those, in that order. None if ``compiled`` is given.
        compiled: the group for the shapes that it has, if it needs no compiling.
        device: where it runs.
        compile_: compiles a model with static shapes.
        max_shapes: for how many input shapes plans are kept.

    Attributes:
        stage: as for `ShapePlan`, if the shapes are known.
        launch: runs the group on ``stage``, if there is one.

    Raises:
        OffloadError, EngineError: compiling or loading failed.
    """

    def __init__(
        self, *, runtime: int, name: str, labels: Sequence[str], inputs: Sequence[Value], outputs: Sequence[Value],
        model: onnx.ModelProto | None, device: Device, compile_: Callable[[onnx.ModelProto], Compiled],
        max_shapes: int, compiled: Compiled | None = None,
    ) -> None:  # fmt: skip
        self.runtime = runtime
        self.name = name
        self.labels = tuple(labels)
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.device = device
        self.nbytes = 8 * (len(inputs) + len(outputs))
        self.specialisations = 0
        self._model = model
        self._compile = compile_
        self._max_shapes = max_shapes
        self._lock = threading.RLock()
        self._plans: OrderedDict[bytes, ShapePlan] = OrderedDict()
        self._static: Compiled | None = compiled
        if compiled is None and all(value.is_static for value in inputs):
            self._static = self._specialise(tuple(_extents(value) for value in inputs))
        self.stage: Any = ffi.NULL
        self.launch: Callable[[], None] | None = None
        if self._static is not None:
            plan = self._plans[_key(self._static.inputs)] = ShapePlan(self._static, self.device)
            self._model = None  # it has the weights
            if plan.stage:
                self.stage, self.launch = plan.stage, plan.launcher()
        _alive.add(self)

    @property
    def compiled(self) -> Compiled:
        """What the group was compiled to.

        Raises:
            NodeError: its shapes are known at run time only.
        """
        if self._static is None:
            raise NodeError(
                f"node '{self.name}' has dims that are known at run time only; fix them with "
                "SessionOptions.add_free_dimension_override_by_name"
            )
        return self._static

    @property
    def on_stream(self) -> bool:
        """Whether it is enqueued on a stream of a GPU."""
        return self.device.is_gpu

    @property
    def known_shapes(self) -> list[int]:
        """Rank and dims of each input, then of each output; none if they are known at run time only."""
        if self._static is None:
            return []
        return _numbers((*self._static.inputs, *self._static.outputs))

    @property
    def plan(self) -> ShapePlan:
        """The plan for the shapes that are known."""
        assert self._static is not None, "C asks for it only if `known_shapes` has some"
        return self._plans[_key(self._static.inputs)]

    def plan_for(self, shapes: bytes) -> ShapePlan:
        """The plan for the shapes of a run; compiled if they are new.

        Args:
            shapes: rank and dims of each input, as C has them.

        Raises:
            OffloadError, EngineError: compiling failed.
        """
        with self._lock:
            plan = self._plans.get(shapes)
            if plan is not None:
                self._plans.move_to_end(shapes)
                return plan
            plan = ShapePlan(self._specialise(_parse(shapes)), self.device)
            self._plans[shapes] = plan
            while len(self._plans) > self._max_shapes:
                # another thread may be running it: it is closed when the last reference goes
                self._plans.popitem(last=False)
            return plan

    def _specialise(self, dims: Dims) -> Compiled:
        if self._model is None:
            assert self._static is not None
            known = [list(each) for each in self._static.inputs]
            raise NodeError(f"its inputs have dims {[list(each) for each in dims]}, it was compiled for {known}")
        model = onnx.ModelProto()
        model.CopyFrom(self._model)
        for value, extents in zip(model.graph.input, dims, strict=True):
            del value.type.tensor_type.shape.dim[:]
            value.type.tensor_type.shape.SetInParent()
            for extent in extents:
                value.type.tensor_type.shape.dim.add().dim_value = extent
        compiled = self._compile(model)
        self.specialisations += 1
        if compiled.seconds > _SLOW:
            shapes = ", ".join(f"{value.name} {list(each)}" for value, each in zip(self.inputs, dims, strict=True))
            _LOG.warning("node '%s': compiled for %s in %.1f s", self.name, shapes, compiled.seconds)
        return compiled

    def failure(self, error: BaseException) -> BaseException:
        """An error of a run with the names of the group's nodes."""
        shown = ", ".join(self.labels[:4]) + (f" and {len(self.labels) - 4} more" if len(self.labels) > 4 else "")
        return NodeError(f"node '{self.name}' ({shown}): {error or type(error).__name__}")

    def forget_stream(self, device: int, stream: int) -> None:
        """A stream is destroyed."""
        if self.device.is_gpu and self.device.index == device:
            with self._lock:
                plans = list(self._plans.values())
            for plan in plans:
                plan.forget_stream(stream)

    def close(self) -> None:
        """Free all memory."""
        _alive.discard(self)
        with self._lock:
            for plan in self._plans.values():
                plan.close()
            self._plans.clear()


_alive: weakref.WeakSet[CompiledNode] = weakref.WeakSet()


def _forget_stream(device: int, stream: int) -> None:
    for node in list(_alive):
        node.forget_stream(device, stream)


on_stream_release(_forget_stream)


def _extents(value: Value) -> tuple[int, ...]:
    return tuple(dim for dim in value.dims or () if isinstance(dim, int))


def _key(shapes: Dims) -> bytes:
    numbers = _numbers(shapes)
    return struct.pack(f"{len(numbers)}q", *numbers)


def _parse(key: bytes) -> Dims:
    """The dims in what `_key` makes."""
    numbers = memoryview(key).cast("q").tolist()
    found: list[tuple[int, ...]] = []
    while numbers:
        end = 1 + numbers[0]
        found.append(tuple(numbers[1:end]))
        numbers = numbers[end:]
    return tuple(found)
