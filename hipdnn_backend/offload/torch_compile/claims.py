"""Which nodes of a traced graph are offered to the engines, and why the others run in PyTorch."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

import torch

from hipdnn_backend.offload.torch_compile.known import dialect_name, draws, is_known, is_view

__all__ = ["Claims", "Eager", "Kind", "tensors_of"]

_TYPES: Final = frozenset(
    {
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.bool),
        *(torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64),
    }
)
_MADE: Final = frozenset(
    {
        *(torch.ops.aten.full.default, torch.ops.aten.zeros.default, torch.ops.aten.ones.default),
        *(torch.ops.aten.arange.start_step, torch.ops.aten.arange.start, torch.ops.aten.arange.default),
        torch.ops.aten.scalar_tensor.default,
    }
)
"""Tensors that are made of numbers: each graph that reads one makes its own."""
_BY_MEMORY: Final = frozenset({torch.ops.aten.as_strided.default, torch.ops.aten.as_strided_scatter.default})


_WRONG: Final = {
    torch.ops.aten.max_unpool2d.default: "Torch-MLIR's lowering drops what windows that overlap write",
    torch.ops.aten.max_unpool3d.default: "Torch-MLIR's lowering drops what windows that overlap write",
    torch.ops.aten.logcumsumexp.default: "Torch-MLIR's lowering takes exponentials that overflow",
    torch.ops.aten._embedding_bag.default: "Torch-MLIR's lowering sums other rows",
    torch.ops.aten._embedding_bag_forward_only.default: "Torch-MLIR's lowering sums other rows",
}
"""Operators that are compiled to something else."""


class Kind(Enum):
    """What a node is to the partition.

    COMPUTED: offered to the engines.
    FREE: a view or a tensor made of numbers; done again wherever it is used.
    EAGER: run by PyTorch.
    """

    COMPUTED = "computed"
    FREE = "free"
    EAGER = "eager"


@dataclass(frozen=True, slots=True)
class Eager:
    """Why a node runs in PyTorch.

    Attributes:
        rule: short stable name: those of `is_expected` are no engine's affair; others are
            what engines or the front end lack.
        reason: a sentence.
    """

    rule: str
    reason: str

    @property
    def is_expected(self) -> bool:
        """Nobody would want an engine to do it."""
        return self.rule in _EXPECTED


_EXPECTED: Final = frozenset({"random", "view", "number", "moves", "few", "writes", "no-operator", "empty"})


def tensors_of(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in what a node gives."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for each in value:
            yield from tensors_of(each)


def _has_elements(value: torch.Tensor) -> bool:
    return all(not isinstance(size, int) or size > 0 for size in value.shape)


class Claims:
    """The kind of each node of a graph.

    Attributes:
        device: that the graph's tensors lie on; None: there is no tensor.
        reasons: node → why it is EAGER.
    """

    def __init__(self, graph: torch.fx.Graph, refused: Mapping[str, Eager]) -> None:
        """Decides.

        Args:
            graph: traced, every node with its value as ``meta["val"]``.
            refused: node → why no engine does it, found earlier.
        """
        self.reasons: dict[torch.fx.Node, Eager] = {}
        self._kinds: dict[torch.fx.Node, Kind] = {}
        self._refused = refused
        self.device = _device(graph)
        for node in graph.nodes:
            self._kinds[node] = self._decide(node)

    def kind(self, node: torch.fx.Node) -> Kind:
        """Of a node of the graph."""
        return self._kinds[node]

    def _decide(self, node: torch.fx.Node) -> Kind:
        if node.op != "call_function":
            return Kind.EAGER
        if node.target is operator.getitem:
            return self._kinds[node.all_input_nodes[0]]
        reason = self._reason(node)
        if reason is not None:
            self.reasons[node] = reason
            return Kind.EAGER
        return Kind.FREE if is_view(node.target) or node.target in _MADE else Kind.COMPUTED

    def _reason(self, node: torch.fx.Node) -> Eager | None:
        target = node.target
        if not isinstance(target, torch._ops.OpOverload):
            return Eager("no-operator", f"{getattr(target, '__name__', target)} is no operator on tensors")
        if node.name in self._refused:
            return self._refused[node.name]
        if draws(node):
            return Eager("random", "its results are drawn, which PyTorch does")
        if target._schema.is_mutable:
            return Eager("writes", "it writes to an operand")
        if target in _BY_MEMORY:
            return Eager("memory", "it reads by places in memory")
        if target in _WRONG:
            return Eager("wrong", _WRONG[target])
        if not target._schema.returns:
            return Eager("no-operator", "it gives nothing")
        if any(isinstance(returned.type, torch.ListType) for returned in target._schema.returns):
            return Eager("list", "it gives a list of tensors, which no graph has")
        if not is_known(target):
            return Eager("unknown", f"the torch dialect has no {dialect_name(target)}")
        return self._reason_of_values(node)

    def _reason_of_values(self, node: torch.fx.Node) -> Eager | None:
        values = [*tensors_of(node.meta.get("val"))]
        if not values:
            return Eager("no-operator", "it gives no tensor")
        if not any(map(_has_elements, values)):
            return Eager("empty", "what it gives has no elements")
        for source in node.all_input_nodes:
            if not isinstance(source.meta.get("val"), torch.Tensor):
                return Eager("symbolic", f"its operand {source.name} is no tensor")
            values.append(source.meta["val"])
        return next(filter(None, map(self._reason_of_tensor, values)), None)

    def _reason_of_tensor(self, value: torch.Tensor) -> Eager | None:
        if value.dtype not in _TYPES:
            return Eager("type", f"no graph has tensors of {value.dtype}")
        if value.layout is not torch.strided or type(value).__name__ not in ("FakeTensor", "Parameter", "Tensor"):
            return Eager("layout", f"a tensor is {value.layout} or a {type(value).__name__}")
        if not all(isinstance(size, int) for size in value.shape):
            return Eager("symbolic", f"a tensor has sizes that only a run knows: {list(value.shape)}")
        if value.is_neg() or value.is_conj():
            return Eager("layout", "a tensor is negated or conjugated lazily")
        if value.device != self.device:
            return Eager("device", f"a tensor lies on {value.device}, the graph runs on {self.device}")
        return None


def _device(graph: torch.fx.Graph) -> torch.device | None:
    """The GPU that any tensor lies on, else the CPU."""
    found = {value.device for node in graph.nodes for value in tensors_of(node.meta.get("val"))}
    ordered = sorted(found, key=lambda device: (device.type == "cpu", str(device)))
    return ordered[0] if ordered else None
