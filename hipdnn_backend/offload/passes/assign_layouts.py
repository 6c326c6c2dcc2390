"""``hipdnn-assign-layouts``: the strides of the tensors between graphs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from hipdnn_backend.offload.mlir import ir
from hipdnn_backend.offload.passes.regions import CUSTOM, GRAPH, Region, graphs, is_operator
from hipdnn_backend.offload.session import Layout, Session, canonical
from hipdnn_backend.offload.to_wire import NotTranslated, Translation, translate
from hipdnn_backend.wire import WireTensor

__all__ = ["assign_layouts", "channels_last_uids", "reset_layouts", "restrided"]

Operation = Any
Value = Any

_ROW_MAJOR: Final = "packed row-major"
_CHANNELS_LAST: Final = "hipdnn.channels_last"
"""Attribute of a ``hipdnn.graph``: the uids of its tensors whose buffers are channels-last."""


def assign_layouts(module: Any, session: Session) -> None:
    """Decide the strides of every tensor between graphs: packed, in row-major or channels-last order.

    A tensor is channels-last if that is asked for, or if convolutions dominate and that is left to the pass; if a graph
    of hipDNN operations makes it, such graphs alone use it, each sees it in the model's dims; and if the engines take
    all of these graphs so. Types do not change: how the elements of a dense buffer are arranged is between the graphs
    that share it. A graph says so by the uids of the tensors concerned.

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
    if session.options.layout is Layout.AUTO and 2 * sum(map(_convolves, candidates)) <= len(candidates):
        return
    known = [_Region(op, found) for op in candidates if (found := _translated(op)) is not None]
    chosen = _settle(known, session)
    for graph in known:
        uids = [graph.uids[value] for value in graph.uids if value in chosen]
        if uids:
            graph.op.attributes[_CHANNELS_LAST] = ir.DenseI64ArrayAttr.get(sorted(uids), graph.op.context)
    if chosen:
        session.report.layout = f"packed; channels-last for {len(chosen)} tensors between graphs, row-major else"


def channels_last_uids(graph: Operation) -> tuple[int, ...]:
    """The uids of a graph's tensors that `assign_layouts` made channels-last."""
    if _CHANNELS_LAST not in graph.attributes:
        return ()
    return tuple(ir.DenseI64ArrayAttr(graph.attributes[_CHANNELS_LAST]))


def reset_layouts(module: Any, session: Session) -> None:
    """Makes every tensor row-major again: a custom operation cannot see one otherwise."""
    for op in graphs(module):
        if _CHANNELS_LAST in op.attributes:
            del op.attributes[_CHANNELS_LAST]
    session.report.layout = _ROW_MAJOR


def restrided(translation: Translation, uids: Iterable[int]) -> Translation:
    """The same with some tensors channels-last."""
    wanted = set(uids)
    if not wanted:
        return translation
    tensors = (
        tensor.replace(strides=_channels_last(tensor.dims)) if tensor.uid in wanted else tensor
        for tensor in translation.graph.tensors
    )
    return replace(translation, graph=translation.graph.replace(tensors=tuple(tensors)))


def _channels_last(dims: Sequence[int]) -> tuple[int, ...]:
    """Strides of N, C, spatial with C innermost."""
    order = [0, *range(2, len(dims)), 1]
    strides, step = [0] * len(dims), 1
    for axis in reversed(order):
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
            if mine and not _takes(graph, [graph.uids[value] for value in mine], session):
                dropped |= mine
        if not dropped:
            return chosen
        chosen -= dropped


def _takes(graph: _Region, uids: list[int], session: Session) -> bool:
    changed = restrided(graph.translation, uids)
    return bool(session.choose(changed, canonical(changed.graph)))


def _may_change(value: Value, known: Sequence[_Region]) -> bool:
    """Every use is by a graph that sees the value in the model's dims."""
    users = [use.owner.operation for use in value.uses]
    if not all(is_operator(user, GRAPH) for user in users):
        return False
    seers = {graph.op.results[0] for graph in known if value in graph.uids}
    return all(user.results[0] in seers for user in users)
