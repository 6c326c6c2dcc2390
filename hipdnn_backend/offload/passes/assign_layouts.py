"""``hipdnn-assign-layouts``: the strides of the tensors between graphs, and of constant filters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from hipdnn_backend.engine import FilterOrder, LayoutEngine
from hipdnn_backend.offload.mlir import ir
from hipdnn_backend.offload.passes.regions import CUSTOM, GRAPH, Region, graphs, is_operator
from hipdnn_backend.offload.session import Layout, Session, canonical
from hipdnn_backend.offload.to_wire import NotTranslated, Translation, translate
from hipdnn_backend.wire import ConvolutionFwdAttributes, WireGraph, WireTensor

__all__ = ["arranged", "assign_layouts", "reset_layouts", "restrided"]

Operation = Any
Value = Any

_ROW_MAJOR: Final = "packed row-major"
_CHANNELS_LAST: Final = "hipdnn.channels_last"
"""Attribute of a ``hipdnn.graph``: the uids of its tensors whose buffers are channels-last."""
_BY_TAPS: Final = "hipdnn.by_taps"
"""Likewise of filters [K, C, window...] that lie window first, then C, then K."""
_ORDERS: Final[Mapping[str, Callable[[int], list[int]]]] = {
    _CHANNELS_LAST: lambda rank: [0, *range(2, rank), 1],
    _BY_TAPS: lambda rank: [*range(2, rank), 1, 0],
}
"""Attribute → axes of a rank, from slowest to fastest."""
_WISHES: Final = {FilterOrder.CHANNELS_LAST: _CHANNELS_LAST, FilterOrder.BY_TAPS: _BY_TAPS}


def assign_layouts(module: Any, session: Session) -> None:
    """Decide the strides of every tensor between graphs: packed, in row-major or channels-last order.

    A tensor is channels-last if that is asked for, or if it is left to the pass, convolutions dominate and engines
    prefer it; if a graph of hipDNN operations makes it, such graphs alone use it, each sees it in the model's dims; and
    if the engines take all of these graphs so. Types do not change: how the elements of a dense buffer are arranged is
    between the graphs that share it. A graph says so by the uids of the tensors concerned. Constant filters of
    convolutions with channels-last images get the order that the engine wishes (`hipdnn_backend.engine.LayoutEngine`).

        %0 = torch.operator "hipdnn.graph"(%a, %w) ({ ... })
        %1 = torch.operator "hipdnn.graph"(%0, %v) ({ ... })
      becomes
        %0 = torch.operator "hipdnn.graph"(%a, %w) {hipdnn.channels_last = array<i64: 3>} ({ ... })
        %1 = torch.operator "hipdnn.graph"(%0, %v) {hipdnn.channels_last = array<i64: 1>} ({ ... })
    """
    session.report.layout = _ROW_MAJOR
    if session.options.layout is Layout.ROW_MAJOR:
        return
    candidates = graphs(module)
    if session.options.layout is Layout.AUTO and not _is_worth_it(candidates, session):
        return
    known = [_Region(op, found) for op in candidates if (found := _translated(op)) is not None]
    chosen = _settle(known, session)
    filters = _filters(known, chosen, session)
    for graph in known:
        wanted = dict.fromkeys((value for value in graph.uids if value in chosen), _CHANNELS_LAST)
        wanted |= {value: filters[value] for value in graph.uids if value in filters}
        for name in set(wanted.values()):
            uids = sorted(graph.uids[value] for value, each in wanted.items() if each == name)
            graph.op.attributes[name] = ir.DenseI64ArrayAttr.get(uids, graph.op.context)
    if chosen:
        session.report.layout = f"packed; channels-last for {len(chosen)} tensors between graphs, row-major else"
    if filters:
        session.report.layout += f"; filters of {len(filters)} convolutions lie as the engine reads them"


def _is_worth_it(candidates: Sequence[Operation], session: Session) -> bool:
    """Whether most graphs convolve, and no engine would rather have row-major images."""
    dislikes = any(isinstance(each, LayoutEngine) and not each.prefers_channels_last for each in session.engines)
    return not dislikes and 2 * sum(map(_convolves, candidates)) > len(candidates)


def arranged(graph: Operation) -> dict[int, str]:
    """The uids of a graph's tensors that are not row-major, with what `restrided` calls their order."""
    found: dict[int, str] = {}
    for name in _ORDERS:
        if name in graph.attributes:
            found |= dict.fromkeys(ir.DenseI64ArrayAttr(graph.attributes[name]), name)
    return found


def reset_layouts(module: Any, session: Session) -> None:
    """Makes every tensor row-major again: a custom operation cannot see one otherwise."""
    for op in graphs(module):
        for name in _ORDERS:
            if name in op.attributes:
                del op.attributes[name]
    session.report.layout = _ROW_MAJOR


def restrided(translation: Translation, orders: Mapping[int, str]) -> Translation:
    """The same with some tensors, by uid, in other orders."""
    if not orders:
        return translation
    tensors = (
        tensor.replace(strides=_strides(tensor.dims, orders[tensor.uid])) if tensor.uid in orders else tensor
        for tensor in translation.graph.tensors
    )
    return replace(translation, graph=translation.graph.replace(tensors=tuple(tensors)))


def _strides(dims: Sequence[int], order: str) -> tuple[int, ...]:
    strides, step = [0] * len(dims), 1
    for axis in reversed(_ORDERS[order](len(dims))):
        strides[axis] = step
        step *= dims[axis]
    return tuple(strides)


@dataclass
class _Region:
    """A region of hipDNN operations.

    Attributes:
        uids: function-level value → uid of the tensor that it is in the graph, for those that may be channels-last.
    """

    op: Operation
    translation: Translation
    uids: dict[Value, int] = field(init=False)

    def __post_init__(self) -> None:
        tensors = {tensor.uid: tensor for tensor in self.translation.graph.tensors}
        values = [*self.op.operands, *self.op.results]
        uids = [*self.translation.inputs, *self.translation.outputs]
        seen = list(zip(values, uids, strict=True))
        self.uids = {
            value: uid for value, uid in seen if uid is not None and _is_convertible(tensors[uid], _dims(value))
        }


def _dims(value: Value) -> list[int]:
    text = str(value.type)
    return [int(dim) for dim in text[text.index("[") + 1 : text.index("]")].split(",") if dim.isdecimal()]


def _is_convertible(tensor: WireTensor, dims: list[int]) -> bool:
    """The graph sees the model's dims, packed; and channels-last would be something else."""
    if len(dims) not in (4, 5) or list(tensor.dims) != dims:
        return False
    step = 1
    for dim, stride in zip(reversed(tensor.dims), reversed(tensor.strides), strict=True):
        if dim > 1 and stride != step:
            return False
        step *= dim
    return dims[1] > 1 and step > dims[0] * dims[1]


def _convolves(op: Operation) -> bool:
    return any(each.name.startswith("torch.aten.conv") for each in Region.of(op).ops)


def _translated(op: Operation) -> Translation | None:
    if CUSTOM in op.attributes:
        return None
    region = Region.of(op)
    try:
        return translate(region.ops, region.inputs, region.outputs, "graph")
    except NotTranslated:
        return None  # hipdnn-graph-to-executable will say what comes of it


def _settle(known: Sequence[_Region], session: Session) -> set[Value]:
    """The values that are channels-last: fewer and fewer, until the engines take every graph."""
    chosen = {
        result for graph in known for result in graph.op.results if result in graph.uids and _may_change(result, known)
    }
    while True:
        dropped: set[Value] = set()
        for graph in known:
            mine = {value for value in graph.uids if value in chosen}
            if mine and not _takes(graph, {graph.uids[value]: _CHANNELS_LAST for value in mine}, session):
                dropped |= mine
        if not dropped:
            return chosen
        chosen -= dropped


def _takes(graph: _Region, orders: Mapping[int, str], session: Session) -> bool:
    changed = restrided(graph.translation, orders)
    return bool(session.choose(changed, canonical(changed.graph)))


def _filters(known: Sequence[_Region], chosen: set[Value], session: Session) -> dict[Value, str]:
    """Constants that convolutions with channels-last results read as filters, and nothing else does: their orders."""
    wishes: dict[Value, set[str]] = {}
    for graph in known:
        is_last = any(value in chosen for value in graph.op.results)
        engine = session.choose(graph.translation, canonical(graph.translation.graph)).engine if is_last else None
        filters = dict(_convolved(graph.translation.graph)) if isinstance(engine, LayoutEngine) else {}
        for value in graph.op.operands:
            if not _is_constant(value, session):
                continue
            sizes = filters.get(graph.uids.get(value, -1))
            wish = engine.filter_order(*sizes) if sizes and isinstance(engine, LayoutEngine) else None
            wishes.setdefault(value, set()).add(_WISHES[wish] if wish else "")
    wanted = {value: next(iter(each)) for value, each in wishes.items() if len(each) == 1 and each != {""}}
    refused: set[Value] = set()
    for graph in known:
        mine = {value: wanted[value] for value in graph.uids if value in wanted}
        orders = {graph.uids[value]: _CHANNELS_LAST for value in graph.uids if value in chosen}
        if mine and not _takes(graph, orders | {graph.uids[value]: each for value, each in mine.items()}, session):
            refused |= mine.keys()
    return {value: order for value, order in wanted.items() if value not in refused and _may_change(value, known)}


def _convolved(graph: WireGraph) -> Iterator[tuple[int, tuple[Sequence[int], Sequence[int]]]]:
    """The filters of forward convolutions of one group: dims of the filters, and of the result."""
    tensors = {tensor.uid: tensor for tensor in graph.tensors}
    for node in graph.nodes:
        a = node.attributes
        if isinstance(a, ConvolutionFwdAttributes):
            x, w, y = (tensors[uid].dims for uid in (a.x_tensor_uid, a.w_tensor_uid, a.y_tensor_uid))
            if x[1] == w[1]:
                yield a.w_tensor_uid, (w, y)


def _is_constant(value: Value, session: Session) -> bool:
    return isinstance(value, ir.BlockArgument) and ir.BlockArgument(value).arg_number in session.constants


def _may_change(value: Value, known: Sequence[_Region]) -> bool:
    """Every use is by a graph that sees the value in the model's dims."""
    users = [use.owner.operation for use in value.uses]
    if not all(is_operator(user, GRAPH) for user in users):
        return False
    seers = {graph.op.results[0] for graph in known if value in graph.uids}
    return all(user.results[0] in seers for user in users)
