"""Compiled groups of nodes, as ONNX Runtime runs them."""

from __future__ import annotations

import logging
import struct
import threading
import time
import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import numpy as np
import onnx
from onnx import helper

from fusilli_plugin.edge.link import ffi
from fusilli_plugin.ort_ep.abi import Api, OrtError
from fusilli_plugin.ort_ep.ahead import Ahead
from fusilli_plugin.ort_ep.errors import NewShapeError, ProviderError
from fusilli_plugin.ort_ep.graphs import Value
from fusilli_plugin.ort_ep.kernels import Kernels, Places, Result, StoredModel
from fusilli_plugin.ort_ep.memory import on_stream_release
from fusilli_plugin.ort_ep.offloading import Compiled
from fusilli_plugin.ort_ep.plans import PaddedPlan, Runnable, ShapePlan, numbers_of
from hipdnn_backend.offload.background import background
from hipdnn_backend.offload.buckets import Dims, OnNewShape, kept, padded, served_by
from hipdnn_backend.offload.shape_counts import ShapeCount, ShapeCounts
from iree_bridge import Device

__all__ = ["Call", "CompiledNode", "Policy", "ShapePlan"]

_LOG: Final = logging.getLogger(__name__)
_SLOW: Final = 1.0  # seconds of a compilation that a user should hear of, once
_MAX_FAILED: Final = 1024  # shapes without code that are remembered
_PATIENCE: Final = 1.0  # seconds after which a compile that failed is tried again, and twice as many each time
_OFTEN: Final = 3  # runs of a shape after which it is worth the place of another


@dataclass(frozen=True)
class Policy:
    """What a group does with shapes.

    Attributes:
        max_shapes: for how many input shapes plans are kept, beside those that were made in advance.
        strict: what fails is an error; otherwise ONNX Runtime's kernels run the group.
        on_new_shape: what a run does whose shape has no code.
        threads: of those kernels, 0 for as many as ONNX Runtime likes.
    """

    max_shapes: int = 8
    strict: bool = False
    on_new_shape: OnNewShape = OnNewShape.FALLBACK
    threads: int = 0


class Call:
    """The tensors of one run.

    Args:
        inputs: their addresses.
        places: makes the outputs of the given dims (rank and dims of each, for C), or finds them made; the addresses of
            the inputs, then of the outputs.
        outputs: the same as C has them.
    """

    def __init__(
        self,
        inputs: Sequence[int],
        places: Callable[[Any], Sequence[int]],
        outputs: Callable[[Any], bytes] | None = None,
    ) -> None:
        self.inputs = inputs
        self.places = places
        self.outputs = outputs or (lambda shapes: _packed(places(shapes)))


class CompiledNode:
    """A group of nodes that ONNX Runtime runs as one.

    Args:
        api: functions of the ONNX Runtime.
        runtime: its number.
        name: that ONNX Runtime gave it.
        labels: of the nodes in it.
        inputs: in ONNX Runtime's order.
        outputs: in ONNX Runtime's order.
        model: of the group; its inputs and outputs are those, in that order. None if ``compiled`` is given.
        compiled: the group for the shapes that it has, if it needs no compiling.
        device: where it runs.
        compile_: compiles a model with static shapes.
        policy: see there.
        late: it is compiled when it first runs, though its shapes are known.
        ahead: shapes that there shall be code for from the beginning, if they are not known.
        ready: code for some of these, which needs no compiling.
        bound: number of an input → the value for which there is code.

    Attributes:
        stage: as for `ShapePlan`, if the shapes are known.
        launch: runs the group on ``stage``, if there is one.
        specialisations: how often it was compiled for shapes.
        elsewhere: dims of the inputs → why ONNX Runtime's kernels run them.

    Raises:
        OffloadError, EngineError: compiling or loading failed.
    """

    def __init__(
        self, *, api: Api, runtime: int, name: str, labels: Sequence[str], inputs: Sequence[Value],
        outputs: Sequence[Value], model: onnx.ModelProto | None, device: Device,
        compile_: Callable[[onnx.ModelProto], Compiled], policy: Policy, compiled: Compiled | None = None,
        late: bool = False, ahead: Ahead | None = None, ready: Sequence[Compiled] = (),
        bound: Mapping[int, np.ndarray[Any, Any]] | None = None,
    ) -> None:  # fmt: skip
        self.runtime = runtime
        self.name = name
        self.labels = tuple(labels)
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.device = device
        self.nbytes = 8 * (len(inputs) + len(outputs))
        self.specialisations = 0
        self.ahead = ahead or Ahead()
        self.bound = {number: (value.shape, value.tobytes()) for number, value in (bound or {}).items()}
        self.elsewhere: OrderedDict[str, str] = OrderedDict()
        self._api = api
        self._policy = policy
        self._compile = compile_
        self._lock = threading.RLock()
        self._counts = ShapeCounts()
        self._plans: OrderedDict[bytes, ShapePlan] = OrderedDict()
        self._fixed: dict[bytes, ShapePlan] = {}  # made in advance: they stay
        self._padded: OrderedDict[bytes, PaddedPlan] = OrderedDict()
        self._awaited: dict[bytes, threading.Lock] = {}
        self._failed: OrderedDict[bytes, str] = OrderedDict()
        self._met: Counter[bytes] = Counter()
        self._tries: dict[bytes, tuple[int, float]] = {}  # compiles that failed, and when the last did
        self._kernels: Kernels | None = None
        self._no_kernels = ""
        self._told_slow = self._closed = False
        self._sizes = [helper.tensor_dtype_to_np_dtype(value.dtype).itemsize for value in self.inputs]
        self._model = None if model is None else StoredModel.of(model)
        self._static: Compiled | None = compiled
        if compiled is None and not late and all(value.is_static for value in inputs):
            assert model is not None, "a group is a model or compiled"
            made = self._specialise(model, tuple(_extents(value) for value in inputs))
            if self.bound:  # with other values, the dims of results may be others
                self._fixed[_key(made.inputs)] = ShapePlan(made, self.device)
            else:
                self._static = made
        elif self._model is None and model is not None:
            raise ProviderError(f"'{name}' cannot be kept until its shapes are known: no room, or larger than 2 GiB")
        self.stage: Any = ffi.NULL
        self.launch: Callable[[], None] | None = None
        if self._static is not None:
            key = _key(self._static.inputs)
            plan = self._plans[key] = ShapePlan(self._static, self.device)
            if plan.stage:
                self.stage, self.launch = plan.stage, self._guarded(key, plan)
        else:
            self._fixed.update({_key(each.inputs): ShapePlan(each, self.device) for each in ready})
            self._make_ahead()
            if policy.on_new_shape is OnNewShape.FALLBACK and not policy.strict:
                self._opened()  # now, and not while the first run of a new shape waits
        _alive.add(self)

    def compiled(self) -> list[tuple[dict[str, int], Compiled]]:
        """What the group was compiled to: sizes of its open dims, none if its shapes are known, and the code for them.

        Raises:
            ProviderError: its shapes are known at run time only, and not for all sizes that were named there is code.
        """
        if self._static is not None:
            return [({}, self._static)]
        if self.bound:
            raise ProviderError(f"node '{self.name}' has inputs that are bound, which no model with code says")
        if not self.ahead.shapes:
            why = f" ({self.ahead.problem})" if self.ahead.problem else ""
            raise ProviderError(
                f"node '{self.name}' has dims that are known at run time only{why}; name their sizes with option "
                "shapes, or fix them with SessionOptions.add_free_dimension_override_by_name"
            )
        missing = [self._shown(dims) for dims in self.ahead.shapes if _key(dims) not in self._fixed]
        if missing:
            raise ProviderError(f"node '{self.name}' has no code for {'; '.join(missing)}")
        codes = [self._fixed[_key(dims)].compiled for dims in self.ahead.shapes]
        return [({each.name: each.size_in(code.inputs) or 0 for each in self.ahead.opened}, code) for code in codes]

    @property
    def on_stream(self) -> bool:
        """Whether it is enqueued on a stream of a GPU."""
        return self.device.is_gpu

    @property
    def known_shapes(self) -> list[int]:
        """Rank and dims of each input, then of each output; none if they are known at run time only."""
        if self._static is None:
            return []
        return numbers_of((*self._static.inputs, *self._static.outputs))

    # ---- runs

    @property
    def plan(self) -> Runnable | None:
        """The plan for the shapes that are known; None if it failed and ONNX Runtime's kernels run them."""
        assert self._static is not None, "C asks for it only if `known_shapes` has some"
        return self.plan_for(_key(self._static.inputs))

    def plan_for(self, shapes: bytes) -> Runnable | None:
        """The plan for the shapes of a run; None if there is none and `run_elsewhere` is the way.

        Args:
            shapes: rank and dims of each input, as C has them.

        Raises:
            OffloadError, EngineError: compiling failed, and so it cannot be run.
            NewShapeError: there is no code, and none may be made.
        """
        with self._lock:
            found = self._found(shapes)
            if found is not None or shapes in self._failed:
                return found
            if self._policy.on_new_shape is OnNewShape.ERROR:
                raise self._new_shape(_parse(shapes))
            if self._waits or self._opened() is None:
                turn = self._awaited.setdefault(shapes, threading.Lock())
            else:
                return None
        with turn:  # runs of other shapes go on meanwhile
            with self._lock:
                found = self._found(shapes)
                if found is not None or shapes in self._failed:
                    return found
            try:
                made = self._made(shapes)
            finally:
                self._awaited.pop(shapes, None)
            with self._lock:
                self._counts.at(shapes).hits += made is not None
            return made

    @property
    def _waits(self) -> bool:
        return self._policy.strict or self._policy.on_new_shape is OnNewShape.WAIT

    def _found(self, shapes: bytes) -> Runnable | None:
        """The code that serves a shape, counted; None if there is none."""
        if shapes in self._failed:
            return None
        plan = self._plans.get(shapes)
        if plan is not None:
            self._plans.move_to_end(shapes)
        plan = plan or self._fixed.get(shapes)
        if plan is not None:
            self._counts.at(shapes).hits += 1
            return plan
        smaller = self._padded_plan(shapes)
        if smaller is not None:
            self._counts.at(shapes).padded += 1
        return smaller

    def _padded_plan(self, shapes: bytes) -> PaddedPlan | None:
        """Code for the next sizes, where that is harmless."""
        made = self._padded.get(shapes)
        if made is not None:
            self._padded.move_to_end(shapes)
            return made
        dims = _parse(shapes)
        served = served_by(self.ahead.opened, dims) if self._fixed and all(map(all, dims)) else None
        if served is None:
            return None
        have, bucket = served
        plan = self._fixed.get(_key(padded(self.ahead.opened, dims, bucket)))
        if plan is None:
            return None
        made = PaddedPlan(plan, dims, kept(self.ahead.opened, plan.compiled.outputs, have, bucket))
        self._padded[shapes] = made
        while len(self._padded) > _MAX_FAILED:
            self._padded.popitem(last=False)
        return made

    def _make_ahead(self) -> None:
        """Compile for the shapes that there shall be code for.

        Raises:
            OffloadError, EngineError: it failed, in strict mode.
            ProviderError: there is no code at all, and none may be made later.
        """
        for dims in self.ahead.shapes:
            if _key(dims) in self._fixed:
                continue
            try:
                self._fixed[_key(dims)] = ShapePlan(self._specialise(self._whole_model(dims), dims), self.device)
            except Exception as error:
                if not self.gives_way(_key(dims), error, "does not compile"):
                    raise
        if not self._fixed and self._policy.on_new_shape is OnNewShape.ERROR and not self._is_known:
            reason = f": {self.ahead.problem}" if self.ahead.problem else "; name the sizes with option shapes"
            raise ProviderError(
                f"on_new_shape is '{OnNewShape.ERROR}', and no shape of {self._names()} has code{reason}"
            )

    @property
    def _is_known(self) -> bool:
        """The shapes are known before a run, though perhaps not compiled for yet."""
        return all(value.is_static for value in self.inputs)

    def _new_shape(self, dims: Dims) -> NewShapeError:
        """The error of a run without code; it speaks of the first dim in which the nearest shape differs."""
        known = [_parse(shapes) for shapes in (*self._fixed, *self._plans)]
        places = [(number, axis) for number, each in enumerate(dims) for axis in range(len(each))]

        def differing(other: Dims) -> list[tuple[int, int]]:
            return [(number, axis) for number, axis in places if other[number][axis] != dims[number][axis]]

        number, axis = min((differing(each) for each in known), key=len, default=places)[0]
        value = self.inputs[number]
        name = (value.dims or ())[axis]
        shown = "; ".join(self._shown(each) for each in known[:8]) + ("; …" if len(known) > 8 else "")
        why = "; ".join(f"'{each.name}' is not padded: {each.refusal}" for each in self.ahead.opened if each.refusal)
        return NewShapeError(
            f"input '{value.name}', dim {axis}{f' ({name!r})' if isinstance(name, str) else ''} is "
            f"{dims[number][axis]}, a shape without code, and on_new_shape is 'error'; there is code for "
            f"{shown or 'none'}{f'; {why}' if why else ''}"
        )

    def counts(self) -> dict[str, ShapeCount]:
        """How often it ran for each shape, by the dims of its inputs."""
        with self._lock:
            return {self._shown(_parse(shapes)): count for shapes, count in self._counts.copy().items()}

    def run_elsewhere(self, shapes: bytes, call: Call, stream: int) -> None:
        """Run in ONNX Runtime's kernels, and compile for these shapes meanwhile if that was not tried.

        Args:
            shapes: as for `plan_for`; empty for those that are known.
            call: the tensors.
            stream: HIP's handle, 0 on the host.

        Raises:
            OffloadError, EngineError, OrtError: neither ONNX Runtime's kernels nor our code run it.
        """
        if not shapes and self._static is not None:
            shapes = _key(self._static.inputs)
        with self._lock:
            self._counts.at(shapes).fallbacks += 1
            if len(self._met) > _MAX_FAILED:
                self._met.clear()
                self._tries.clear()
            self._met[shapes] += 1
        try:
            self._run_kernels(shapes, call, stream)
        except OrtError as error:
            plan = None if shapes in self._failed else self._made(shapes)
            if plan is None:
                raise
            _LOG.info("%s: %s", self._names(), error)
            plan.run(call.outputs(plan.output_shapes), stream)
        else:
            if shapes not in self._failed or self._tries_again(shapes):
                self._wish(shapes)

    def holds(self, shapes: bytes, addresses: Sequence[int], stream: int) -> bool:
        """Whether inputs have the values that there is code for.

        Args:
            shapes: as for `plan_for`.
            addresses: of the inputs.
            stream: HIP's handle, 0 on the host.
        """
        dims = _parse(shapes)
        if any(dims[number] != shape for number, (shape, _) in self.bound.items()):
            return False
        places = Places(self.device, stream)
        found = places.fetch((addresses[number], (), len(value)) for number, (_, value) in self.bound.items())
        return all(
            bytes(ffi.buffer(ffi.cast("char *", place), size)) == value
            for (place, _, size), (_, value) in zip(found, self.bound.values(), strict=True)
        )

    def run_unbound(self, shapes: bytes, call: Call, stream: int) -> None:
        """Run in ONNX Runtime's kernels, since inputs have other values than there is code for.

        Raises:
            ProviderError: the session is strict.
            OrtError: the kernels do not run it.
        """
        names = ", ".join(f"'{self.inputs[number].name}'" for number in self.bound)
        why = f"an input among {names} has another value than option inputs says"
        if self._policy.strict:
            raise ProviderError(why)
        with self._lock:
            self._counts.at(shapes).fallbacks += 1
            _keep(self.elsewhere, self._shown(_parse(shapes)), why)
        self._run_kernels(shapes, call, stream)

    def gives_way(self, shapes: bytes, error: Exception, what: str = "did not run") -> bool:
        """Note a failure; whether ONNX Runtime's kernels run these shapes from now on.

        Args:
            shapes: as for `plan_for`; empty for those that are known.
            error: what went wrong.
            what: the verb.
        """
        if self._policy.strict or self._opened() is None:
            return False
        if not shapes and self._static is not None:
            shapes = _key(self._static.inputs)
        text = self._shown(_parse(shapes))
        reason = str(error) or type(error).__name__
        with self._lock:
            first = not self.elsewhere
            # another thread may be running it: it goes with the last reference
            plan = self._plans.pop(shapes, None) or self._fixed.pop(shapes, None)
            pad = self._padded.pop(shapes, None)
            self._counts.at(shapes).hits -= plan is not None
            self._counts.at(shapes).padded -= pad is not None
            _keep(self._failed, shapes, reason)
            _keep(self.elsewhere, text, f"{what}: {_shorter(reason)}")
        _LOG.log(
            logging.WARNING if first else logging.INFO,
            "%s %s for %s: it runs in ONNX Runtime's CPU kernels instead%s: %s",
            self._names(), what, text, " (told once for this group)" if first else "", _shorter(reason),
        )  # fmt: skip
        return True

    def _made(self, shapes: bytes) -> ShapePlan | None:
        """A new plan; None if it cannot be made and ONNX Runtime's kernels are there."""
        dims = _parse(shapes)
        try:
            plan = ShapePlan(self._specialise(self._whole_model(dims), dims), self.device)
        except Exception as error:
            with self._lock:
                tries, _ = self._tries.get(shapes, (0, 0.0))
                self._tries[shapes] = tries + 1, time.monotonic()
            if not self.gives_way(shapes, error, "does not compile"):
                raise
            return None
        with self._lock:
            self._plans[shapes] = plan
            if self._tries.pop(shapes, None):
                self._failed.pop(shapes, None)
                self.elsewhere.pop(self._shown(dims), None)
            while len(self._plans) > self._policy.max_shapes:
                # another thread may be running it: it is closed when the last reference goes
                self._plans.popitem(last=False)
        return plan

    def _tries_again(self, shapes: bytes) -> bool:
        """Whether it is time to compile once more for a shape that failed to: a compiler may have been killed.

        What a compiler refused it is not asked again: that is in the cache.
        """
        with self._lock:
            tries, failed = self._tries.get(shapes, (0, 0.0))
            return tries > 0 and time.monotonic() >= failed + _PATIENCE * 2 ** (tries - 1)

    def _wish(self, shapes: bytes) -> None:
        """Compile for new shapes in the background.

        Where as many are kept as may be, shapes that are met once are not worth what they would push out.
        """
        with self._lock:
            if self._closed or (len(self._plans) >= self._policy.max_shapes and self._met[shapes] < _OFTEN):
                return
        weak = weakref.ref(self)

        def job() -> None:
            node = weak()
            if node is None or node._closed or shapes in node._plans or shapes in node._fixed:
                return
            try:
                node._made(shapes)
            # Without kernels to fall back to, the next run raises it; without a session, none.
            except Exception as error:
                _LOG.info("%s does not compile: %s", node._names(), error)

        background.wants((id(self), shapes), job)

    def _guarded(self, key: bytes, plan: ShapePlan) -> Callable[[], None]:
        """A launch on the stage that ONNX Runtime's kernels take over if it fails."""
        call, failed, count, lock = plan.launcher(), self._failed, self._counts.at(key), self._lock
        split = len(self.inputs)

        def launch() -> None:
            if key not in failed:
                with lock:
                    count.hits += 1
                try:
                    return call()
                except Exception as error:
                    if not self.gives_way(key, error):
                        raise
            with lock:
                count.fallbacks += 1
            self._run_kernels(key, Call(plan.stage_addresses[:split], lambda _: plan.stage_addresses), 0)
            return None

        return launch

    def _run_kernels(self, shapes: bytes, call: Call, stream: int) -> None:
        kernels = self._opened()
        if kernels is None:
            raise ProviderError(self._failed.get(shapes, self._no_kernels))
        places, dims = Places(self.device, stream), _parse(shapes)
        sizes = [size * prod(each) for size, each in zip(self._sizes, dims, strict=True)]

        def store(results: list[Result]) -> None:
            numbers = numbers_of(tuple(result.dims for result in results))
            places.store(results, call.places(ffi.new("int64_t[]", numbers or [0]))[len(dims) :])

        kernels.run(places.fetch(list(zip(call.inputs, dims, sizes, strict=True))), store)

    def _opened(self) -> Kernels | None:
        """ONNX Runtime's kernels for the group, made at the first call; None if it has none."""
        with self._lock:
            if self._kernels is None and self._model is not None and not self._no_kernels:
                inputs = [(value.name, value.dtype) for value in self.inputs]
                names = [value.name for value in self.outputs]
                try:
                    self._kernels = Kernels(self._api, self._model.data(), inputs, names, self._policy.threads)
                except OrtError as error:
                    self._no_kernels = str(error)
                    _LOG.info("%s: ONNX Runtime has no kernels for it: %s", self._names(), error)
            return self._kernels

    # ---- compiling

    def _whole_model(self, dims: Dims) -> onnx.ModelProto:
        if self._model is None:
            codes = [self._static] if self._static else [plan.compiled for plan in self._fixed.values()]
            known = "; ".join(self._shown(code.inputs) for code in codes)
            raise ProviderError(f"its inputs are {self._shown(dims)}, it was compiled for {known}")
        model = onnx.load_from_string(self._model.data())
        for value, extents in zip(model.graph.input, dims, strict=True):
            value.type.tensor_type.shape.SetInParent()
            for extent in extents:
                value.type.tensor_type.shape.dim.add().dim_value = extent
        return model

    def _specialise(self, model: onnx.ModelProto, dims: Dims) -> Compiled:
        compiled = self._compile(model)
        with self._lock:
            self.specialisations += 1
            self._counts.at(_key(dims)).compiles += 1
        if compiled.seconds > _SLOW and self._static is None:
            level = logging.INFO if self._told_slow else logging.WARNING
            self._told_slow = True
            _LOG.log(level, "%s: compiled for %s in %.1f s", self._names(), self._shown(dims), compiled.seconds)
        return compiled

    # ---- words

    def _shown(self, dims: Dims) -> str:
        return ", ".join(f"{value.name} {list(each)}" for value, each in zip(self.inputs, dims, strict=True))

    def _names(self) -> str:
        shown = ", ".join(self.labels[:4]) + (f" and {len(self.labels) - 4} more" if len(self.labels) > 4 else "")
        return f"node '{self.name}' ({shown})"

    def failure(self, error: BaseException) -> BaseException:
        """An error of a run with the names of the group's nodes."""
        kind = NewShapeError if isinstance(error, NewShapeError) else ProviderError
        return kind(f"{self._names()}: {error or type(error).__name__}")

    # ---- end

    def forget_stream(self, device: int, stream: int) -> None:
        """A stream is destroyed."""
        if self.device.is_gpu and self.device.index == device:
            with self._lock:
                plans = [*self._plans.values(), *self._fixed.values()]
            for plan in plans:
                plan.forget_stream(stream)

    def close(self) -> None:
        """Free all memory."""
        _alive.discard(self)
        self._closed = True
        self.launch = None  # it refers to this object, which holds the weights
        mine = id(self)
        background.forget(lambda key: isinstance(key, tuple) and key[0] == mine)
        with self._lock:
            for plan in (*self._plans.values(), *self._fixed.values()):
                plan.close()
            self._plans.clear()
            self._fixed.clear()
            self._padded.clear()
            if self._kernels is not None:
                self._kernels.close()
                self._kernels = None
            if self._model is not None:
                self._model.close()
                self._model = None


_alive: weakref.WeakSet[CompiledNode] = weakref.WeakSet()


def _forget_stream(device: int, stream: int) -> None:
    for node in list(_alive):
        node.forget_stream(device, stream)


on_stream_release(_forget_stream)


def _packed(addresses: Sequence[int]) -> bytes:
    return struct.pack(f"{len(addresses)}Q", *addresses)


def _keep(known: OrderedDict[Any, str], key: Any, value: str) -> None:
    """Remember one thing more, not without end."""
    known[key] = value
    while len(known) > _MAX_FAILED:
        known.popitem(last=False)


def _shorter(reason: str) -> str:
    """One line of a reason: compilers say much."""
    text = " ".join(reason.split())
    return text if len(text) <= 300 else f"{text[:300]} …"


def _extents(value: Value) -> tuple[int, ...]:
    return tuple(dim for dim in value.dims or () if isinstance(dim, int))


def _key(shapes: Dims) -> bytes:
    numbers = numbers_of(shapes)
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
