"""What became of the graphs of a compiled model, as data and as text."""

from __future__ import annotations

import logging
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from hipdnn_backend.offload.errors import OffloadError
from hipdnn_backend.offload.shape_counts import ShapeCount, ShapeCounts
from hipdnn_backend.offload.torch_compile.claims import Eager, Kind
from hipdnn_backend.offload.torch_compile.partition import Partition

__all__ = [
    "EagerNode",
    "GraphReport",
    "NotCompiledByEnginesError",
    "TorchReport",
    "record",
    "report_of",
    "torch_report",
]

_LOG: Final = logging.getLogger(__name__)
_COUNTED: Final = ("aten.", "prims.", "fusilli.")


@dataclass(frozen=True, slots=True)
class EagerNode:
    """An operation that PyTorch runs.

    Attributes:
        name: of the node in the traced graph.
        operator: e.g. ``aten.bernoulli.p``.
        module: where in the model it stands, "" if it is not known.
        rule: short stable name of the reason.
        reason: why.
        is_expected: nobody would want an engine to do it.
    """

    name: str
    operator: str
    module: str
    rule: str
    reason: str
    is_expected: bool


@dataclass(frozen=True, slots=True)
class GraphReport:
    """A traced graph.

    Attributes:
        name: unique in the process.
        kind: ``forward``, ``backward`` or ``inference``.
        nodes: operations that programs run, views aside.
        eager: operations that PyTorch runs.
        programs: what became of each group, as `Model.about` has it.
        flops: floating-point operations of matrix products, convolutions and attention, as PyTorch counts them; not of
            what is ``uncounted``.
        engine_flops: those of them that engines do.
        seconds: that compiling took.
    """

    name: str
    kind: str
    nodes: int
    eager: tuple[EagerNode, ...]
    programs: tuple[Mapping[str, Any], ...] = field(repr=False)
    flops: int
    engine_flops: int
    seconds: float

    @property
    def graphs(self) -> int:
        """Number of compiled hipDNN graphs."""
        return sum(len(program["graphs"]) for program in self.programs)

    @property
    def unexpected(self) -> tuple[EagerNode, ...]:
        """Operations that an engine should do, and none does."""
        return tuple(node for node in self.eager if not node.is_expected)

    @property
    def uncounted(self) -> tuple[EagerNode, ...]:
        """Operations of other libraries that PyTorch runs: nobody knows their floating-point operations."""
        return tuple(node for node in self.eager if not node.operator.startswith(_COUNTED))

    def __str__(self) -> str:
        share = f"{_percent(self.engine_flops, self.flops)} of the FLOPs in engines"
        if self.uncounted:
            share += f" (not counting {len(self.uncounted)} operations of others)"
        lines = [
            f"{self.name}: {self.nodes} operations in {self.graphs} graphs of {len(self.programs)} programs, "
            f"{len(self.eager)} in PyTorch, {share}, compiled in {self.seconds:.1f} s"
        ]
        for (operator, reason), count in Counter((node.operator, node.reason) for node in self.eager).most_common():
            lines.append(f"  PyTorch: {count} x {operator}: {reason}")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class TorchReport:
    """All graphs of a compiled model that were compiled so far.

    Attributes:
        graphs: in the order in which they were compiled.
        whole: graphs that run in PyTorch as a whole, with the reason.
        shapes: of graphs with symbolic sizes: dims of the arguments that change → how often it ran, and by what.
        padding: dim of option ``shapes`` → why it is not padded, "" if it is.
    """

    graphs: tuple[GraphReport, ...]
    whole: tuple[str, ...] = ()
    shapes: Mapping[str, ShapeCount] = field(default_factory=dict)
    padding: Mapping[str, str] = field(default_factory=dict)

    @property
    def flop_share(self) -> float:
        """The share of floating-point operations that engines do, 1.0 if there are none."""
        flops = sum(graph.flops for graph in self.graphs)
        return sum(graph.engine_flops for graph in self.graphs) / flops if flops else 1.0

    def __str__(self) -> str:
        if not self.graphs and not self.whole and not self.shapes:
            return "nothing is compiled yet: call the model first"
        lines = [*map(str, self.graphs), *(f"PyTorch runs a whole graph: {reason}" for reason in self.whole)]
        lines += [
            f"dim '{dim}': {f'exact sizes only: {why}' if why else 'padded to the next size'}"
            for dim, why in self.padding.items()
        ]
        lines += [f"for {dims}: {count.text('in PyTorch')}" for dims, count in self.shapes.items()]
        return "\n".join(lines)


class NotCompiledByEnginesError(OffloadError):
    """In strict mode: operations that an engine should do run in PyTorch.

    Attributes:
        report: of the graph.
    """

    def __init__(self, report: GraphReport) -> None:
        self.report = report
        first = report.unexpected[0]
        where = f" of {first.module}" if first.module else ""
        super().__init__(
            f"{len(report.unexpected)} operations of graph {report.name} run in PyTorch, the first is "
            f"{first.operator} '{first.name}'{where}: {first.reason} [{first.rule}]; leave out the option strict to "
            "allow it"
        )


def report_of(
    name: str, kind: str, cut: Partition, programs: Sequence[Mapping[str, Any]], seconds: float
) -> GraphReport:
    """The report of a graph that is cut and compiled."""
    computed = [node for group in cut.groups for node in group.nodes]
    eager = [node for nodes in cut.stages.values() for node in nodes if node in cut.reasons]
    engine_flops = sum(map(_flops, computed))
    return GraphReport(
        name=name,
        kind=kind,
        nodes=sum(isinstance(node.target, torch._ops.OpOverload) for node in computed),
        eager=tuple(_eager(node, cut.reasons[node]) for node in eager if cut.claims.kind(node) is Kind.EAGER),
        programs=tuple(programs),
        flops=engine_flops + sum(map(_flops, eager)),
        engine_flops=engine_flops,
        seconds=seconds,
    )


def _eager(node: torch.fx.Node, why: Eager) -> EagerNode:
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    return EagerNode(
        node.name, str(node.target), str(stack[-1][0]) if stack else "", why.rule, why.reason, why.is_expected
    )


def _flops(node: torch.fx.Node) -> int:
    """As PyTorch's counter has it; 0 for what it does not count."""
    packet = getattr(node.target, "overloadpacket", None)
    if packet in _ATTENTION:
        return _ATTENTION[packet](*(source.meta["val"].shape for source in _operands(node)))
    count = flop_registry.get(packet)
    if count is None:
        return 0

    def value(given: Any) -> Any:
        return torch.fx.map_arg(given, lambda source: source.meta["val"])

    try:
        return int(count(*value(node.args), **value(node.kwargs), out_val=node.meta["val"]))
    except (AssertionError, TypeError, ValueError):  # the formulas know only some forms of their operators
        return 0


_ATTENTION: Final[Mapping[Any, Callable[..., int]]] = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v: sdpa_flop_count(q, k, v),
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: (
        lambda dy, q, k, v: sdpa_backward_flop_count(dy, q, k, v)
    ),
}
"""What PyTorch's counter does not count."""


def _operands(node: torch.fx.Node) -> Sequence[torch.fx.Node]:
    """The tensors in front: q, k, v, the gradient before them."""
    many = 4 if "backward" in str(node.target) else 3
    return [source for source in node.args[:many] if isinstance(source, torch.fx.Node)]


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "none"


# ---- which graphs belong to which model


@dataclass
class _Entry:
    graphs: list[GraphReport] = field(default_factory=list)
    whole: list[str] = field(default_factory=list)
    shapes: ShapeCounts = field(default_factory=ShapeCounts)
    padding: dict[str, str] = field(default_factory=dict)
    is_begun: bool = False

    def fails(self, what: str, error: Exception) -> None:
        """PyTorch runs a graph."""
        reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        _LOG.warning("a graph %s: %s", what, reason)
        self.whole.append(reason)


_ENTRIES: Final[dict[int, tuple[Any, _Entry]]] = {}
"""By the identity of what `torch.compile` made of the backend's name: a weak reference to it, and what it compiled."""
_LOCK: Final = threading.Lock()


def record(owner: Any) -> _Entry:
    """Where the graphs are told that a call of `torch.compile` leads to."""
    with _LOCK:
        found = _ENTRIES.get(id(owner))
        if found is None:
            number = id(owner)
            found = _ENTRIES[number] = (weakref.ref(owner, lambda _: _ENTRIES.pop(number, None)), _Entry())
        return found[1]


def torch_report(compiled: Callable[..., Any]) -> TorchReport:
    """What became of a model that ``torch.compile(..., backend="fusilli")`` gave.

    Args:
        compiled: the model or function; what it compiled so far is told.

    Raises:
        TypeError: it is none of this backend's.
    """
    owner = _owner(compiled)
    if owner is None:
        raise TypeError(
            f"{type(compiled).__name__} is nothing that torch.compile(..., backend='fusilli') gave; pass its result"
        )
    entry = record(owner)
    return TorchReport(tuple(entry.graphs), tuple(entry.whole), entry.shapes.copy(), dict(entry.padding))


def _owner(compiled: Any) -> Any:
    """The object of `torch.compile` that holds backend and options."""
    from torch._dynamo.eval_frame import innermost_backend

    for context in _contexts(compiled):
        owner = innermost_backend(context.callback)
        if getattr(owner, "compiler_name", "") == "fusilli":
            return owner
    return None


def _contexts(compiled: Any) -> Iterator[Any]:
    """What Dynamo calls compiled code in: of a module it is an attribute, functions and `Module.compile` hold it."""
    context = getattr(compiled, "dynamo_ctx", None)
    if context is not None:
        yield context
    function = getattr(compiled, "_compiled_call_impl", None) or compiled
    for cell in getattr(function, "__closure__", None) or ():
        found = cell.cell_contents
        if callable(getattr(found, "callback", None)):
            yield found
