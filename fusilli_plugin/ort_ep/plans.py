"""A compiled group on a device, for one set of input shapes."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Protocol

from fusilli_ground.locks import fork_safe_lock
from fusilli_plugin.edge.link import ffi
from fusilli_plugin.ort_ep.memory import gpu
from fusilli_plugin.ort_ep.offloading import Compiled
from hipdnn_backend.device.memory import HostMemory, Memory
from hipdnn_backend.offload.buckets import Dims
from hipdnn_backend.offload.program.padding import bind_cut, bind_pad
from hipdnn_backend.offload.program.program import Program
from hipdnn_backend.offload.program.runner import Bound, Prepared, prepare
from iree_bridge import Device

__all__ = ["Dims", "PaddedPlan", "Runnable", "ShapePlan", "numbers_of"]

_MAX_BOUND: Final = 16
_MAX_STAGED: Final = 256 << 10  # bytes of all inputs and outputs
_MAX_STAGED_IN_C: Final = 32 << 10  # what is copied in less time than Python needs to look at the addresses


def numbers_of(shapes: Dims) -> list[int]:
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
    """Memory for a program's arguments, which tensors are copied to and from.

    Attributes:
        addresses: of the inputs, then of the outputs.
        table: an address and a number of bytes for each of them, for C.
    """

    def __init__(self, program: Program, memory: Memory) -> None:
        sizes = _argument_sizes(program)
        self._buffers = [memory.allocate(size) for size in sizes]
        self.addresses = [buffer.address for buffer in self._buffers]
        pairs = list(zip(self.addresses, sizes, strict=True))
        self.table: Any = ffi.new("uint64_t[]", [number for pair in pairs for number in pair])
        split = len(program.inputs)
        places: list[tuple[Any, int]] = [(ffi.cast("char *", address), size) for address, size in pairs]
        self._inputs, self._outputs = places[:split], places[split:]

    def run(self, call: Callable[[], None], addresses: Sequence[int]) -> None:
        """Run a call that is bound to this memory, the host's, on tensors elsewhere."""
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
        self._padding: dict[int, tuple[_Stage, Callable[[], None]]] = {}
        self._last = b""
        self.output_shapes: Any = ffi.new("int64_t[]", numbers_of(compiled.outputs) or [0])
        in_c = not device.is_gpu and self._nbytes <= _MAX_STAGED_IN_C
        self._stage_of_c = _Stage(compiled.program, HostMemory()) if in_c else None
        self.stage: Any = self._stage_of_c.table if self._stage_of_c else ffi.NULL

    @property
    def compiled(self) -> Compiled:
        """What it runs."""
        return self._compiled

    @property
    def stage_addresses(self) -> list[int]:
        """Where the stage of C has the inputs, then the outputs."""
        assert self._stage_of_c is not None, "asked for only where there is a stage"
        return self._stage_of_c.addresses

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
            stage = _Stage(self._compiled.program, HostMemory())
            self._stage = stage, _shortest(self._prepare(stream).bind(stage.addresses))
        stage, call = self._stage
        return partial(stage.run, call, self._unpack(addresses))

    def _bind(self, addresses: bytes, stream: int) -> Callable[[], None]:
        call = _shortest(self._prepare(stream).bind(self._unpack(addresses)))
        if len(self._bound) >= _MAX_BOUND:
            del self._bound[next(iter(self._bound))]
        self._bound[addresses, stream] = call
        return call

    def run_padded(self, addresses: bytes, stream: int, inputs: Dims, outputs: Dims) -> None:
        """Run on smaller tensors, which are padded, and cut the results.

        Args:
            addresses: as for `run`.
            stream: as for `run`.
            inputs: the tensors' dims, none of which is 0.
            outputs: the same of the results.

        Raises:
            EngineError: a graph failed.
            DeviceError: there is no memory left, or a copy failed.
        """
        compiled, memory, places = self._compiled, self._memory(), self._unpack(addresses)
        views = [compiled.program.views[each.view] for each in (*compiled.program.inputs, *compiled.program.outputs)]
        split = len(inputs)
        with self._lock:
            stage, call = self._padding_stage(stream)
            for number, dims in enumerate(inputs):
                target, padded = stage.addresses[number], compiled.inputs[number]
                for copy in bind_pad(memory, stream, target, padded, places[number], dims, views[number].dtype):
                    copy()
            call()
            for number, dims in enumerate(outputs):
                source, padded, at = stage.addresses[split + number], compiled.outputs[number], places[split + number]
                bind_cut(memory, stream, at, dims, source, padded, views[split + number].dtype)()

    def _padding_stage(self, stream: int) -> tuple[_Stage, Callable[[], None]]:
        found = self._padding.get(stream)
        if found is None:
            stage = _Stage(self._compiled.program, self._memory())
            found = self._padding[stream] = stage, _shortest(self._prepare(stream).bind(stage.addresses))
        return found

    def _memory(self) -> Memory:
        return gpu(self._device.index) if self._device.is_gpu else HostMemory()

    def _prepare(self, stream: int) -> Prepared:
        prepared = self._prepared.get(stream)
        if prepared is None:
            compiled = self._compiled
            prepared = prepare(
                compiled.program,
                compiled.plans,
                self._memory(),
                compiled.constants,
                stream=stream,
                origins=compiled.origins,
            )
            self._prepared[stream] = prepared
        return prepared

    def forget_stream(self, stream: int) -> None:
        """A stream is destroyed: free what was allocated for it."""
        with self._lock:
            self._bound = {key: call for key, call in self._bound.items() if key[1] != stream}
            self._stage = None
            self._padding.pop(stream, None)
            prepared = self._prepared.pop(stream, None)
        if prepared is not None:
            prepared.close()

    def close(self) -> None:
        """Free the memory; the plans are shared and stay."""
        for stream in list(self._prepared):
            self.forget_stream(stream)


class Runnable(Protocol):
    """What runs a group for the shapes of a call.

    Attributes:
        output_shapes: rank and dims of each output, for C.
    """

    output_shapes: Any

    def run(self, addresses: bytes, stream: int) -> None:
        """Run on the tensors at some addresses; see `ShapePlan.run`."""
        ...


class PaddedPlan:
    """A plan that serves smaller tensors than it was made for.

    Args:
        plan: for the padded ones.
        inputs: dims of the tensors.
        outputs: dims of the results.

    Attributes:
        output_shapes: as of `ShapePlan`.
    """

    def __init__(self, plan: ShapePlan, inputs: Dims, outputs: Dims) -> None:
        self._plan = plan
        self._inputs = inputs
        self._outputs = outputs
        self.output_shapes: Any = ffi.new("int64_t[]", numbers_of(outputs) or [0])

    def run(self, addresses: bytes, stream: int) -> None:
        """As `ShapePlan.run`."""
        self._plan.run_padded(addresses, stream, self._inputs, self._outputs)
