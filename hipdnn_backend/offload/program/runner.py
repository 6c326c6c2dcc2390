"""Runs programs: everything is looked up, placed and bound once, so that a run is a loop over a flat list of calls.

Nothing here imports MLIR. What depends on constants alone has run when `prepare` returns. The arena, the constants and,
unless the caller brings addresses of his own, the inputs and outputs lie in memory that `prepare` allocates on the
device; a run allocates nothing and builds nothing.
"""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Final

import numpy as np

from fusilli_ground.dlpack import Exported, is_shareable
from hipdnn_backend.device.dlpack import place_of, share
from hipdnn_backend.device.memory import Buffer, Memory
from hipdnn_backend.engine import BindablePlan, Plan
from hipdnn_backend.errors import EngineError
from hipdnn_backend.offload.errors import OffloadError
from hipdnn_backend.offload.program.copying import bind_copy, host_array
from hipdnn_backend.offload.program.program import Copy, Execute, PlannedGraph, Program, Space, Step, View
from hipdnn_backend.offload.program.results import ResultMemory

__all__ = ["Bound", "InputError", "Prepared", "Timing", "prepare"]

Array = np.ndarray[Any, Any]
Call = Callable[[], None]

_MAX_BOUND: Final = 16
_LARGE: Final = 1 << 16
"""Bytes of an input, or of all results, from which on they are not copied to or from the program's own memory."""
_PROMISED: Final = 16
"""Of which multiples hipDNN's engines take addresses."""


class InputError(OffloadError, ValueError):
    """What a caller gave a program does not fit it: a missing or unknown name, another shape, another type."""


@dataclass(frozen=True, slots=True)
class Timing:
    """How long a step took.

    Attributes:
        step: its number.
        name: of its graph, or what it copies.
        start: seconds since the run began.
        seconds: until its results were there.
    """

    step: int
    name: str
    start: float
    seconds: float


class Bound:
    """A program on given addresses: call it to run it. Calls must not overlap in time, since they share the arena."""

    __slots__ = ("calls",)

    def __init__(self, calls: Sequence[Call]) -> None:
        self.calls = tuple(calls)

    def __call__(self) -> None:
        """Enqueues all steps.

        Raises:
            EngineError: a graph failed.
        """
        for call in self.calls:
            call()


def _span(target: Array | Exported) -> tuple[int, int]:
    """Where a dense array begins and ends."""
    if isinstance(target, Exported):
        return target.address, target.address + math.prod(target.dims) * target.dtype.itemsize
    start = target.__array_interface__["data"][0]
    return start, start + target.nbytes


def _usable(array: Array | Exported) -> int:
    """The address of an array in host memory that a program can read where it lies; 0: it cannot."""
    if isinstance(array, Exported) or not array.flags.c_contiguous:
        return 0
    address: int = array.__array_interface__["data"][0]
    return 0 if address % _PROMISED else address


@dataclass(frozen=True, slots=True)
class _Kept:
    """A step, and its calls on the arguments that it had last.

    Attributes:
        step: of the program, behind its setup.
        touched: numbers of the arguments that it reads or writes.
        calls: by the addresses of these.
    """

    step: Step
    touched: tuple[int, ...]
    calls: OrderedDict[tuple[int, ...], Call]


def _kept(program: Program) -> tuple[_Kept, ...]:
    named = (*program.inputs, *program.outputs)
    numbers = {program.views[each.view].buffer: number for number, each in enumerate(named)}
    found: list[_Kept] = []
    for step in program.steps[program.setup :]:
        buffers = dict.fromkeys(program.views[view].buffer for view in program.touched(step))
        found.append(_Kept(step, tuple(numbers[at] for at in buffers if at in numbers), OrderedDict()))
    return tuple(found)


class Prepared:
    """A program with its memory on a device. Threads may share it; one runs at a time.

    Attributes:
        program: what it runs.
        memory: where everything lies.
        stream: where everything is enqueued.
    """

    def __init__(
        self,
        program: Program,
        plans: Sequence[Plan],
        memory: Memory,
        stream: int,
        constants: Mapping[str, Array],
        origins: Sequence[str],
    ) -> None:
        self.program = program
        self.memory = memory
        self.stream = stream
        self._plans = tuple(plans)
        self._origins = tuple(origins)
        self._lock = threading.Lock()
        self._buffers: list[Buffer] = []
        self._bound: OrderedDict[tuple[int, ...], Bound] = OrderedDict()
        self._kept: tuple[_Kept, ...] = _kept(program)
        self._has_own = False
        self._large: tuple[int, ...] = ()  # numbers of the inputs in host memory that are not worth a copy
        self._host: list[Array] = []  # the own inputs and outputs, where Python can see them
        self._results: ResultMemory | None = None
        self._seen: OrderedDict[tuple[int, ...], None] = OrderedDict()  # where large inputs of the last runs lay
        self._closed = False
        self._arguments: tuple[int, ...] = ()
        self._setup: tuple[Call, ...] = ()
        try:
            self._arena = self._allocate(program.arena)
            self._fixed = self._place_constants(constants) | self._place_folded()
            self._setup = self._run_setup()
        except BaseException:
            self.close()
            raise

    def run(self, feeds: Mapping[str, Any], results: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Run on numpy arrays or objects with ``__dlpack__``, such as torch tensors, in host memory or on the device.

        Args:
            feeds: an array for each input, of its dims and type; on the device dense and row-major.
            results: dense row-major arrays that the outputs are written to; default: new numpy arrays.

        Returns:
            The outputs by name, in the program's order. They are written.

        Raises:
            InputError: an array is missing or does not fit; nothing has run then.
            EngineError: a graph failed.
        """
        arrays = self._checked_feeds(feeds)
        outputs, targets = ({}, []) if results is None else self._checked_results(results)
        with self._lock:
            own = self._own_arguments()
            sources = self._sources(arrays)
            self._write_inputs(arrays, sources)
            fresh = self._results.take() if self._results and results is None else None
            if fresh is not None:  # the program writes into what the caller gets
                made, addresses = fresh
                self._on((*sources, *addresses))()
                return dict(zip((named.name for named in self.program.outputs), made, strict=True))
            if results is None:
                outputs, targets = self._checked_results(results)
            self._on((*sources, *own[len(sources) :]))()
            self._read_outputs(targets)
        return outputs

    def profile(self, feeds: Mapping[str, Any], seen: Callable[[int, Prepared], None] | None = None) -> list[Timing]:
        """Run once, waiting after each step, and say how long each took. The setup runs again for this.

        Args:
            feeds: as for `run`.
            seen: called after each step with its number; it may `fetch` what the step wrote. Its time is not counted.
        """
        arrays = self._checked_feeds(feeds)
        timings: list[Timing] = []
        with self._lock:
            own = self._own_arguments()
            bound = self._on(own)
            self._write_inputs(arrays, own)
            self.memory.synchronize(self.stream)
            begin, outside = time.perf_counter(), 0.0
            calls = (*self._setup, *bound.calls)
            for number, (call, step) in enumerate(zip(calls, self.program.steps, strict=True)):
                start = time.perf_counter()
                call()
                self.memory.synchronize(self.stream)
                end = time.perf_counter()
                timings.append(Timing(number, self.program.step_name(step), start - begin - outside, end - start))
                if seen is not None:
                    seen(number, self)
                    outside += time.perf_counter() - end
        return timings

    def fetch(self, view: int, dims: Sequence[int] | None = None, strides: Sequence[int] | None = None) -> Array:
        """The elements that a view has now, as a new array; meant for `profile`.

        Args:
            view: its number.
            dims: look at the same memory with other dims, as a graph's own tensor does.
            strides: in elements, with ``dims``.
        """
        own = self.program.views[view]
        looked = View(own.buffer, own.offset, tuple(dims), tuple(strides), own.dtype) if dims and strides else own
        raw = np.empty(looked.end - looked.offset, looked.dtype)
        if raw.size:
            self._read(raw, self._address(view, self._bases(self._arguments)))
        steps = tuple(stride * looked.itemsize for stride in looked.strides)
        return np.ndarray(looked.dims, looked.dtype, buffer=raw, strides=steps).copy()

    def bind(self, arguments: Sequence[int]) -> Bound:
        """The program on addresses of the caller's.

        Args:
            arguments: an address in device memory for each input, then for each output: dense, row-major, aligned to
                64 bytes (engines may copy what is not). The last 16 are kept bound.

        Raises:
            InputError: an address is missing or NULL.
        """
        key = tuple(arguments)
        bound = self._bound.get(key)
        if bound is None:
            if self._closed:
                raise InputError(f"program '{self.program.name}' is closed")
            wanted = len(self.program.inputs) + len(self.program.outputs)
            if len(key) != wanted or not all(key):
                raise InputError(f"program '{self.program.name}' takes {wanted} addresses, none NULL; got {len(key)}")
            with self._lock:
                bound = self._on(key)
        return bound

    def is_bound(self, arguments: Sequence[int]) -> bool:
        """Whether `bind` has nothing to prepare for these addresses."""
        return tuple(arguments) in self._bound

    def close(self) -> None:
        """Wait for the device and free the memory. A second call does nothing; the plans stay the caller's."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self.memory.synchronize(self.stream)
            self._bound.clear()
            self._kept = ()
            self._seen.clear()
            self._setup = ()
            self._host.clear()
            self._results = None
            for buffer in self._buffers:
                buffer.close()
            self._buffers.clear()

    @property
    def constant_bytes(self) -> int:
        """Bytes of the constants, and of what the setup makes of them, on the device."""
        return sum(buffer.nbytes for buffer in self.program.buffers if buffer.space in (Space.CONSTANT, Space.FOLDED))

    # ---- memory

    def _allocate(self, nbytes: int) -> int:
        buffer = self.memory.allocate(nbytes)
        self._buffers.append(buffer)
        return buffer.address

    def _place_constants(self, constants: Mapping[str, Array]) -> dict[int, int]:
        """Buffer → address; each constant is written once."""
        placed: dict[int, int] = {}
        for named in self.program.constants:
            view = self.program.views[named.view]
            if named.name not in constants:
                raise InputError(f"program '{self.program.name}': the constant '{named.name}' is missing")
            array = _fitting(f"constant '{named.name}'", constants[named.name], view)
            placed[view.buffer] = self._allocate(self.program.buffers[view.buffer].nbytes)
            if array.nbytes:
                self.memory.write(placed[view.buffer], _arranged(array, view))
        return placed

    def _place_folded(self) -> dict[int, int]:
        """Buffer → address."""
        buffers = enumerate(self.program.buffers)
        return {number: self._allocate(buffer.nbytes) for number, buffer in buffers if buffer.space is Space.FOLDED}

    def _run_setup(self) -> tuple[Call, ...]:
        """Runs the setup on the device and gives its calls."""
        bases = self._bases(())
        calls = tuple(self._call(step, bases) for step in self.program.steps[: self.program.setup])
        if calls:
            Bound(calls)()
            self.memory.synchronize(self.stream)
        return calls

    def _own_arguments(self) -> tuple[int, ...]:
        """Addresses of the inputs and outputs in the program's own memory, which the first caller of this makes."""
        if self._closed:
            raise InputError(f"program '{self.program.name}' is closed")
        if not self._has_own:
            named = (*self.program.inputs, *self.program.outputs)
            buffers = [self.program.buffers[self.program.views[each.view].buffer] for each in named]
            self._arguments = tuple(self._allocate(buffer.nbytes) for buffer in buffers)
            self._has_own = True
            if self.memory.is_host:
                views = [self.program.views[each.view] for each in named]
                self._host = [host_array(at, view) for at, view in zip(self._arguments, views, strict=True)]
                given, made = views[: len(self.program.inputs)], views[len(self.program.inputs) :]
                self._large = tuple(n for n, view in enumerate(given) if view.count * view.itemsize >= _LARGE)
                if sum(view.count * view.itemsize for view in made) >= _LARGE and all(
                    view.is_dense and view.count for view in made
                ):
                    self._results = ResultMemory(made)
        return self._arguments

    def _sources(self, arrays: Sequence[Array | Exported]) -> tuple[int, ...]:
        """Where inputs are read: a large one where the caller has it, if he had it there in one of the last runs."""
        own = self._arguments[: len(self.program.inputs)]
        if not self._large:
            return own
        sources = list(own)
        for number in self._large:
            sources[number] = _usable(arrays[number]) or own[number]
        found = tuple(sources)
        if found == own or found in self._seen:
            return found
        self._seen[found] = None  # binding takes longer than a copy, and addresses may never come back
        while len(self._seen) > _MAX_BOUND:
            self._seen.popitem(last=False)
        return own

    def _bases(self, arguments: Sequence[int]) -> list[int]:
        """The address of each buffer."""
        named = (*self.program.inputs, *self.program.outputs)
        given = {self.program.views[each.view].buffer: address for each, address in zip(named, arguments, strict=False)}
        return [
            self._arena + buffer.offset
            if buffer.space is Space.TEMPORARY
            else self._fixed.get(number, 0) or given.get(number, 0)
            for number, buffer in enumerate(self.program.buffers)
        ]

    def _address(self, view: int, bases: Sequence[int]) -> int:
        looked = self.program.views[view]
        return bases[looked.buffer] + looked.offset * looked.itemsize

    # ---- binding

    def _on(self, arguments: tuple[int, ...]) -> Bound:
        """The program on these addresses. The last ones are kept: callers come back with the same."""
        bound = self._bound.get(arguments)
        if bound is None:
            bound = self._bound[arguments] = self._bind(arguments)
            while len(self._bound) > _MAX_BOUND:
                self._bound.popitem(last=False)
        return bound

    def _bind(self, arguments: Sequence[int]) -> Bound:
        """What is not bound yet: a step that touches none of the arguments that are new was bound before."""
        bases, calls = self._bases(arguments), list[Call]()
        for kept in self._kept:
            key = tuple(arguments[number] for number in kept.touched)
            call = kept.calls.get(key)
            if call is None:
                call = kept.calls[key] = self._call(kept.step, bases)
                while len(kept.calls) > _MAX_BOUND:
                    kept.calls.popitem(last=False)
            calls.append(call)
        return Bound(calls)

    def _call(self, step: Execute | Copy, bases: Sequence[int]) -> Call:
        if isinstance(step, Execute):
            return self._bind_graph(step, bases)
        views = self.program.views
        target, source = self._address(step.target, bases), self._address(step.source, bases)
        return bind_copy(self.memory, self.stream, target, views[step.target], source, views[step.source])

    def _bind_graph(self, step: Execute, bases: Sequence[int]) -> Call:
        graph = self.program.graphs[step.graph]
        plan = self._plans[graph.plan]
        addresses = [self._address(view, bases) for view in step.operands]
        pack = dict(zip((*graph.inputs, *graph.outputs), addresses, strict=True))
        workspace = self._arena + step.workspace if graph.workspace_size else 0
        if isinstance(plan, BindablePlan):  # all checks are done now instead of in each run
            try:
                return plan.bind(pack, workspace=workspace, stream=self.stream)
            except EngineError as error:
                raise EngineError(_whose(graph, self._origins), str(error), error.status) from error
        return partial(plan.execute, pack, workspace=workspace, stream=self.stream)

    # ---- arguments

    def _checked_feeds(self, feeds: Mapping[str, Any]) -> list[Array | Exported]:
        names = [named.name for named in self.program.inputs]
        if not isinstance(feeds, Mapping):
            raise InputError(f"program '{self.program.name}': feeds are a mapping of names, not {type(feeds).__name__}")
        missing = [name for name in names if name not in feeds]
        unknown = [name for name in feeds if name not in names]
        if missing or unknown:
            problem = [f"no array for {', '.join(map(repr, missing))}"] if missing else []
            problem += [f"{', '.join(map(repr, unknown))} is no input"] if unknown else []
            raise InputError(f"program '{self.program.name}': {'; '.join(problem)}; the inputs are {names}")
        views = self.program.views
        arrays = {  # what numpy makes of a scalar is no array, and is fed just as often
            name: np.asarray(array) if isinstance(array, np.generic) else array for name, array in feeds.items()
        }
        return [
            self._given(f"input '{each.name}'", arrays[each.name], views[each.view]) for each in self.program.inputs
        ]

    def _given(self, what: str, value: Any, view: View) -> Array | Exported:
        """An array of the caller's; `Exported` if it lies on the device of the program."""
        if isinstance(value, np.ndarray) or not is_shareable(value):
            return _fitting(what, value, view)
        try:
            shared = share(value, self.stream)
        except ValueError as error:
            raise InputError(f"{what}: {error}") from error
        place = place_of(shared)
        if not place:
            return _fitting(what, shared.array(), view)
        if place != self.memory.name:
            raise InputError(f"{what}: it lies on {place}, and the program runs on {self.memory.name}; move it")
        _check_form(what, shared.dims, shared.dtype, view)
        if not shared.is_dense:
            raise InputError(f"{what}: a dense row-major array is needed on a device; use .contiguous()")
        return shared

    def _checked_results(self, results: Mapping[str, Any] | None) -> tuple[dict[str, Any], list[Array | Exported]]:
        """The outputs as the caller gets them, and as they are written."""
        made: dict[str, Any] = {}
        targets: list[Array | Exported] = []
        names = [named.name for named in self.program.outputs]
        if results is not None and not isinstance(results, Mapping):
            kind = type(results).__name__
            raise InputError(f"program '{self.program.name}': results are a mapping of names, not {kind}")
        unknown = [name for name in results or () if name not in names]
        if unknown:
            raise InputError(
                f"program '{self.program.name}': {', '.join(map(repr, unknown))} is no output; the outputs are {names}"
            )
        for named in self.program.outputs:
            view = self.program.views[named.view]
            if results is None or named.name not in results:
                made[named.name] = np.empty(view.dims, view.dtype)
                targets.append(made[named.name])
                continue
            given = self._given(f"output '{named.name}'", results[named.name], view)
            writable = (
                given.writable if isinstance(given, Exported) else given.flags.c_contiguous and given.flags.writeable
            )
            if not writable:
                raise InputError(f"output '{named.name}': a writable C-contiguous array is needed")
            made[named.name] = results[named.name]
            targets.append(given)
        if results:
            self._check_apart(targets)
        return made, targets

    def _check_apart(self, targets: Sequence[Array | Exported]) -> None:
        """No two outputs may be written to the same memory: what is read last would stand in both."""
        spans = [(*_span(target), named.name) for target, named in zip(targets, self.program.outputs, strict=True)]
        spans = sorted(span for span in spans if span[0] < span[1])
        for (_, end, one), (start, _, other) in pairwise(spans):
            if start < end:
                raise InputError(f"outputs '{one}' and '{other}' are given memory that overlaps; give each its own")

    def _write_inputs(self, arrays: Sequence[Array | Exported], sources: Sequence[int]) -> None:
        """Those that are not read where the caller has them go to the program's own memory."""
        for number, array in enumerate(arrays):
            if sources[number] != self._arguments[number]:
                continue
            if isinstance(array, Exported):
                self._copy(self._arguments[number], array.address, array)
            elif self._host:
                np.copyto(self._host[number], array)
            elif array.nbytes:
                self.memory.write(self._arguments[number], np.require(array, requirements="C"))

    def _read_outputs(self, targets: Sequence[Array | Exported]) -> None:
        for number, array in enumerate(targets, start=len(self.program.inputs)):
            if isinstance(array, Exported):
                self._copy(array.address, self._arguments[number], array)
            elif self._host:
                np.copyto(array, self._host[number])
            elif array.nbytes:
                self._read(array, self._arguments[number])
        if any(isinstance(array, Exported) for array in targets):
            self.memory.synchronize(self.stream)

    def _copy(self, target: int, source: int, form: Exported) -> None:
        """Copy within the device, in the order of the stream."""
        size = math.prod(form.dims) * form.dtype.itemsize
        if size:
            self.memory.copy_rows(target, size, source, size, size, 1, self.stream)

    def _read(self, array: Array, address: int) -> None:
        """Copy dense memory of the device to a C-contiguous array."""
        if self.memory.is_host:
            np.copyto(array, host_array(address, _dense(array)))
        else:
            array[...] = np.frombuffer(self.memory.read(address, array.nbytes), array.dtype).reshape(array.shape)


def prepare(
    program: Program,
    plans: Sequence[Plan],
    memory: Memory,
    constants: Mapping[str, Array],
    *,
    stream: int = 0,
    origins: Sequence[str] = (),
) -> Prepared:
    """Place the constants of a program on a device, and get ready to run.

    Args:
        program: checked.
        plans: for this device, by the numbers that the graphs of the program name.
        memory: of the device where the plans run.
        constants: by name, in the dims and types of the program.
        stream: the stream of the device that everything is enqueued on; the caller's.
        origins: where each plan was read, for messages about those that do not fit; none if they were built here.

    Raises:
        InputError: a plan or a constant is missing or does not fit.
        EngineError: a graph of the setup failed.
    """
    if len(plans) < program.plans:
        raise InputError(f"program '{program.name}' needs {program.plans} plans, got {len(plans)}")
    for graph in program.graphs:
        if plans[graph.plan].workspace_size > graph.workspace_size:
            raise InputError(
                f"{_whose(graph, origins)}: its plan needs {plans[graph.plan].workspace_size} bytes of workspace, "
                f"the program has {graph.workspace_size}"
            )
    return Prepared(program, plans, memory, stream, constants, origins)


def _whose(graph: PlannedGraph, origins: Sequence[str]) -> str:
    origin = f"{origins[graph.plan]}: " if origins else ""
    return f"{origin}graph '{graph.name}'"


def _dense(array: Array) -> View:
    strides = tuple(stride // array.itemsize for stride in array.strides)
    return View(0, 0, array.shape, strides, array.dtype.name)


def _fitting(what: str, array: object, view: View) -> Array:
    """``array`` if it has the view's dims and type."""
    if not isinstance(array, np.ndarray):
        raise InputError(
            f"{what}: a numpy array, or an object with __dlpack__ such as a torch tensor, is needed, "
            f"got {type(array).__name__}"
        )
    _check_form(what, array.shape, array.dtype, view)
    return array


def _arranged(array: Array, view: View) -> Array:
    """The elements in the order in which the view, which is dense in some order, has them in memory."""
    axes = sorted(range(len(view.dims)), key=lambda axis: (-view.strides[axis], axis))
    return np.ascontiguousarray(array.transpose(axes))


def _check_form(what: str, dims: tuple[int, ...], dtype: np.dtype[Any], view: View) -> None:
    if dims != view.dims:
        raise InputError(f"{what}: expected dims {view.dims}, got {dims}")
    if dtype != np.dtype(view.dtype):
        raise InputError(f"{what}: expected type {view.dtype}, got {dtype}; convert it")
