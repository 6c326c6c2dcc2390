"""A group of nodes as a graph of its own, compiled to a program, and a function on tensors that runs it."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from fusilli_ground.locks import fork_safe_lock
from hipdnn_backend.engine import Engine
from hipdnn_backend.offload.frontend.torch_graph import TorchGraph
from hipdnn_backend.offload.model import Model, load
from hipdnn_backend.offload.program.runner import Bound, Prepared, prepare
from hipdnn_backend.offload.session import OffloadOptions
from hipdnn_backend.offload.torch_compile.claims import Claims, Kind
from hipdnn_backend.offload.torch_compile.partition import Group
from hipdnn_backend.offload.torch_compile.recurrences import recurrence, wholes

__all__ = ["GroupGraph", "GroupProgram", "compile_group", "device_name"]

Node = torch.fx.Node

_uses: Final[Callable[[int], int]] = torch._C._storage_Use_Count
"""Of the address of a storage, how many tensors and storages refer to it."""
_ALIGNMENT: Final = 64
_MOST_KEPT: Final = 4
"""Tensors that are kept for one result."""
_MOST_PLACES: Final = 4
"""Addresses at which a launch is prepared for an argument before it counts as restless."""
_MOST_COPIED: Final = 256 << 10
"""Bytes of an argument that are copied in less time than launches are prepared for a new address of it."""


def device_name(device: torch.device) -> str:
    """The name that models have for a device of PyTorch's."""
    if device.type == "cpu":
        return "cpu"
    family = "hip" if torch.version.hip else device.type
    return f"{family}:{device.index or 0}"


def _order(value: torch.Tensor) -> tuple[int, ...] | None:
    """The dims from the outermost in memory to the innermost if that is dense; None if it has gaps or overlaps."""
    wide = [dim for dim in range(value.dim()) if value.shape[dim] > 1]
    wide.sort(key=lambda dim: -value.stride(dim))
    expected = 1
    for dim in reversed(wide):
        if value.stride(dim) != expected:
            return None
        expected *= value.shape[dim]
    if wide == sorted(wide):
        return tuple(range(value.dim()))
    return (*(dim for dim in range(value.dim()) if value.shape[dim] <= 1), *wide)


@dataclass(frozen=True, slots=True)
class _Form:
    """How a tensor comes in or goes out.

    Attributes:
        dims: extents.
        strides: that PyTorch has it with.
        order: of its dims in memory, as `_order` has it; row-major if it has gaps.
        dtype: of its elements.
        is_dense: it has no gaps.
    """

    dims: tuple[int, ...]
    strides: tuple[int, ...]
    order: tuple[int, ...]
    dtype: torch.dtype
    is_dense: bool

    @classmethod
    def of(cls, value: torch.Tensor) -> _Form:
        order = _order(value)
        identity = tuple(range(value.dim()))
        return cls(tuple(value.shape), tuple(value.stride()), order or identity, value.dtype, order is not None)

    @property
    def written(self) -> tuple[int, ...]:
        """Strides of what a program reads or writes: those of PyTorch, or row-major ones."""
        if self.is_dense:
            return self.strides
        made, stride = [], 1
        for dim in reversed(self.dims):
            made.append(stride)
            stride *= max(dim, 1)
        return tuple(reversed(made))

    @property
    def back(self) -> tuple[int, ...]:
        """What undoes `order`."""
        return tuple(self.order.index(dim) for dim in range(len(self.order)))


class GroupGraph:
    """The graph of a group. Tensors cross its border in the order of their memory, so nothing is rearranged.

    Attributes:
        graph: of PyTorch's operators.
        inputs: the forms of its arguments.
        outputs: the forms of its results.
        read: nodes outside whose values the arguments are.
        written: nodes whose values the results are.
        faces: the forms in which others see the results.
        seen: nodes whose values these are: those of ``written``, or views of them.
        whole: name of a node of a recurrence → of the custom operation that it becomes a part of.
    """

    def __init__(self, group: Group, claims: Claims) -> None:
        """Writes it. Fake tensors are made on the way, which one thread at a time may do."""
        self._claims = claims
        self._made: dict[Node, Node] = {}
        self.graph = torch.fx.Graph()
        self.inputs: list[_Form] = []
        self.outputs: list[_Form] = []
        self.read: list[Node] = []
        # Inputs of no elements are made inside, since they have no address.
        placed = [(node, node.meta["val"]) for node in group.inputs if node.meta["val"].numel()]
        arguments = [self._argument(node, value) for node, value in placed]
        for (node, value), argument in zip(placed, arguments, strict=True):
            self._made[node] = self._arranged(argument, self.inputs[self.read.index(node)].back, value)
        for node in group.nodes:
            self._copy(node)
        self.written = [node for node in group.outputs if node.meta["val"].numel()]
        self.seen = [_seen(node, group) for node in self.written]
        self.faces = [_Form.of(node.meta["val"]) for node in self.seen]
        self.graph.output(tuple(self._result(node) for node in self.written))
        self.whole = wholes(self.graph, {node.name: name for node in group.nodes if (name := recurrence(node))})

    def _argument(self, node: Node, value: torch.Tensor) -> Node:
        form = _Form.of(value)
        self.inputs.append(form)
        self.read.append(node)
        argument = self.graph.placeholder(node.name)
        argument.meta["val"] = value.permute(form.order)
        return argument

    def _result(self, node: Node) -> Node:
        value = node.meta["val"]
        form = _Form.of(value)
        self.outputs.append(form)
        return self._arranged(self._made[node], form.order, value.permute(form.order))

    def _arranged(self, node: Node, order: tuple[int, ...], value: torch.Tensor) -> Node:
        if order == tuple(range(len(order))):
            return node
        made = self.graph.call_function(torch.ops.aten.permute.default, (node, list(order)))
        made.meta["val"] = value
        return made

    def _value(self, node: Node) -> Node:
        if node not in self._made:
            if self._claims.kind(node) is Kind.FREE:
                self._copy(node)
            else:
                self._made[node] = self._nothing(node.meta["val"])
        return self._made[node]

    def _copy(self, node: Node) -> None:
        if node.target in (torch.ops.aten.detach.default, torch.ops.aten.alias.default):
            self._made[node] = self._value(node.all_input_nodes[0])
            return
        for source in node.all_input_nodes:
            self._value(source)
        self._made[node] = self.graph.node_copy(node, self._value)
        self._made[node].name = node.name

    def _nothing(self, value: torch.Tensor) -> Node:
        made = self.graph.call_function(torch.ops.aten.zeros.default, (list(value.shape),), {"dtype": value.dtype})
        made.meta["val"] = value
        return made


def _seen(node: Node, group: Group) -> Node:
    """A result, or the view that is all others see of it: another form of the same memory."""
    view = group.shown.get(node)
    if view is None or _order(node.meta["val"]) is None or _order(view.meta["val"]) is None:
        return node
    return view


@dataclass(frozen=True)
class GroupProgram:
    """A compiled group.

    Attributes:
        model: its program.
        read: nodes whose values it takes, in order.
        written: nodes whose values it gives, in order, or views of them that stand for them.
        call: takes tensors and gives a tuple of tensors.
    """

    model: Model
    read: tuple[Node, ...]
    written: tuple[Node, ...]
    call: Callable[..., tuple[torch.Tensor, ...]] = field(repr=False)


def compile_group(
    built: GroupGraph, device: torch.device, name: str, *, engines: Sequence[Engine], options: OffloadOptions
) -> GroupProgram:
    """Compile a group by the passes that ONNX models go through. Threads may do this at one time.

    Raises:
        ModelError: the front end does not know an operator.
        PassError: a part compiles on no engine.
    """
    model = load(
        TorchGraph(built.graph, name, built.whole),
        device=device_name(device),
        engines=engines,
        options=options,
        stream=None if device.type == "cpu" else 0,
    )
    runner = _Runner(model, built.inputs, built.faces, device)
    return GroupProgram(model, tuple(built.read), tuple(built.seen), runner.function(name))


class _Results:
    """Memory for one result, which PyTorch's allocator gives.

    On a CPU a result whose last user is gone is used again, so that a training loop meets the addresses that its
    launches are prepared for; while all that are kept have users, there are new ones.
    """

    def __init__(self, form: _Form, device: torch.device) -> None:
        self._form = form
        self._device = device
        self._kept: list[tuple[torch.Tensor, Any, int]] = []  # the storage too: its count is asked for by its address

    def tensor(self) -> torch.Tensor:
        """One that nobody has; one thread at a time may ask."""
        for base, storage, alone in self._kept:
            if _uses(storage._cdata) == alone:
                return base.data
        form = self._form
        base = torch.empty_strided(form.dims, form.written, dtype=form.dtype, device=self._device)
        if self._device.type != "cpu" or len(self._kept) >= _MOST_KEPT:
            return base
        storage = base.untyped_storage()
        self._kept.append((base, storage, _uses(storage._cdata)))
        return base.data


class _Places:
    """Where the arguments of a program lie in the host's memory.

    A launch is prepared for addresses, which takes as long as copying 256 KiB. An argument that has a new address in
    every call, as a gradient that PyTorch computes, is copied to one place of its own if it is no larger.
    """

    def __init__(self, inputs: Sequence[_Form]) -> None:
        self._nbytes = [math.prod(form.dims) * form.dtype.itemsize for form in inputs]
        self._seen: list[set[int]] = [set() for _ in inputs]
        self._own: dict[int, torch.Tensor] = {}  # by the number of the argument
        self._copied: list[tuple[int, int, int]] = []  # number, address of the copy, bytes

    def settled(self, addresses: list[int]) -> None:
        """Copies the arguments that are restless, and puts the addresses of the copies in their place."""
        for number, place, nbytes in self._copied:
            ctypes.memmove(place, addresses[number], nbytes)
            addresses[number] = place

    def learn(self, addresses: Sequence[int]) -> None:
        """Told of the addresses of the arguments for which nothing is prepared yet."""
        for number, (seen, nbytes) in enumerate(zip(self._seen, self._nbytes, strict=True)):
            if number in self._own:
                continue
            seen.add(addresses[number])
            if len(seen) > _MOST_PLACES:
                seen.clear()
                if nbytes <= _MOST_COPIED:
                    own = self._own[number] = torch.empty(nbytes + _ALIGNMENT, dtype=torch.uint8)
                    self._copied.append((number, -(-own.data_ptr() // _ALIGNMENT) * _ALIGNMENT, nbytes))


class _Runner:
    """Runs a program on tensors, on the stream that is PyTorch's current one."""

    def __init__(self, model: Model, inputs: Sequence[_Form], outputs: Sequence[_Form], device: torch.device) -> None:
        self._model = model
        self._device = device
        self._inputs = [form.written for form in inputs]
        self._outputs = [_Results(form, device) for form in outputs]
        self._gaps = [(number, form.strides) for number, form in enumerate(outputs) if not form.is_dense]
        self._prepared: dict[int, Prepared] = {0: model.prepared}
        self._places = _Places(inputs) if device.type == "cpu" else None
        self._lock = fork_safe_lock()  # a program has one arena

    def function(self, name: str) -> Callable[..., tuple[torch.Tensor, ...]]:
        """What a graph of PyTorch's calls."""

        def call(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return self.run(tensors)

        call.__name__ = call.__qualname__ = name
        return call

    def run(self, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        given = [
            tensor if tensor.stride() == strides else _restrided(tensor, strides)
            for tensor, strides in zip(tensors, self._inputs, strict=True)
        ]
        with self._lock:
            made = [results.tensor() for results in self._outputs]
            addresses = [tensor.data_ptr() for tensor in given]
            addresses += [tensor.data_ptr() for tensor in made]
            self._bound(addresses)()
        for number, strides in self._gaps:
            made[number] = _restrided(made[number], strides)
        return tuple(made)

    def _bound(self, addresses: list[int]) -> Bound:
        """The program on these addresses, or on copies of arguments that never lie at one place."""
        if self._places is None:
            return self._on_stream().bind(addresses)
        self._places.settled(addresses)
        prepared = self._prepared[0]
        if not prepared.is_bound(addresses):
            self._places.learn(addresses)
        return prepared.bind(addresses)

    def _on_stream(self) -> Prepared:
        """The program for PyTorch's current stream. On a CPU there is one; CUDA's launches are in order by waiting."""
        if self._device.type == "cpu":
            return self._prepared[0]
        stream = torch.cuda.current_stream(self._device)
        if not torch.version.hip:
            stream.synchronize()
            return self._prepared[0]
        handle = stream.cuda_stream
        if handle not in self._prepared:
            model, first = self._model, self._model.prepared
            self._prepared[handle] = prepare(model.program, model.plans, first.memory, model.constants, stream=handle)
        return self._prepared[handle]


def _restrided(tensor: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """The elements with these strides; strides of dims of one element count for nothing."""
    same = all(
        have == want or size == 1 for size, have, want in zip(tensor.shape, tensor.stride(), strides, strict=True)
    )
    if same:
        return tensor
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device).copy_(tensor)
