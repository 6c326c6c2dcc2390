"""Which extents of a node's operands have to be equal, operator by operator.

So weights and neighbours tell of dims that a model leaves open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final

import onnx

from hipdnn_backend.offload.frontend.operators import BROADCASTING, facts

__all__ = ["Equality", "Place", "equalities"]

Place = tuple[str, int]
"""A tensor's name and an axis, not negative."""
Shape = tuple[int | None, ...]


@dataclass(frozen=True)
class Equality:
    """An extent has to be that of another place, or a number.

    Attributes:
        at: where.
        other: a place, or the number.
    """

    at: Place
    other: Place | int


@dataclass(frozen=True)
class _Operands:
    """A node with what is known of its operands; those that are missing or of unknown rank have no shape."""

    node: onnx.NodeProto
    shapes: Mapping[str, Shape]
    values: Mapping[str, Sequence[int]]

    def name(self, number: int) -> str:
        return self.node.input[number] if number < len(self.node.input) else ""

    def shape(self, number: int) -> Shape | None:
        return self.shapes.get(self.name(number))

    def place(self, number: int, axis: int) -> Place | None:
        shape = self.shape(number)
        if shape is None or not -len(shape) <= axis < len(shape):
            return None
        return self.name(number), axis % len(shape)

    def attribute(self, name: str, default: Any) -> Any:
        return next((onnx.helper.get_attribute_value(a) for a in self.node.attribute if a.name == name), default)


_Rule = Callable[[_Operands], Iterator[Equality]]


def equalities(
    node: onnx.NodeProto, shapes: Mapping[str, Shape], values: Mapping[str, Sequence[int]]
) -> Iterator[Equality]:
    """What has to hold for the operands of a node.

    Args:
        node: of ONNX or ONNX Runtime.
        shapes: of the tensors whose rank is known; None for an extent that is not.
        values: elements of small constants of whole numbers.
    """
    on, known, rule = _Operands(node, shapes, values), facts(node.op_type), _RULES.get(node.op_type)
    yield from _by_channel(on, known.per_channel)
    yield from _last_axes(on, known.trailing)
    if rule is not None:
        yield from rule(on)


def _equal(at: Place | None, other: Place | int | None) -> Iterator[Equality]:
    if at is not None and other is not None:
        yield Equality(at, other)


def _channels_of_filter(data: int, filters: int, axis: int) -> _Rule:
    """The channels of ``data`` are an axis of the filters, once for each group (if it is that of their inputs)."""

    def rule(on: _Operands) -> Iterator[Equality]:
        shape = on.shape(filters)
        if shape is not None and len(shape) > axis and shape[axis] is not None:
            groups = on.attribute("group", 1) if axis == 1 else 1
            yield from _equal(on.place(data, 1), (shape[axis] or 0) * groups)

    return rule


def _by_channel(on: _Operands, vectors: Sequence[int]) -> Iterator[Equality]:
    """Each vector has one element for each channel."""
    for number in vectors:
        # before opset 21 a GroupNormalization has one for each group
        if len(on.shape(number) or ()) == 1 and on.shape(number) != (on.attribute("num_groups", None),):
            yield from _equal(on.place(0, 1), on.place(number, 0))


def _last_axes(on: _Operands, others: Sequence[int]) -> Iterator[Equality]:
    """The last extents are those of each other operand, e.g. of a scale."""
    for number in others:
        shape = on.shape(number) or ()
        for axis in range(-len(shape), 0):
            if shape[axis] != 1:
                yield from _equal(on.place(0, axis), on.place(number, axis))


def _broadcast(on: _Operands) -> Iterator[Equality]:
    """Aligned at the right, extents are equal or 1."""
    shapes = [(number, shape) for number in range(len(on.node.input)) if (shape := on.shape(number)) is not None]
    for axis in range(1, 1 + max((len(shape) for _, shape in shapes), default=0)):
        wide = [number for number, shape in shapes if len(shape) >= axis and shape[-axis] not in (1, None)]
        for first, second in combinations(wide, 2):
            yield from _equal(on.place(first, -axis), on.place(second, -axis))


def _concat(on: _Operands) -> Iterator[Equality]:
    shapes = [on.shape(number) for number in range(len(on.node.input))]
    rank = next((len(shape) for shape in shapes if shape), 0)
    joined = on.attribute("axis", 0) % rank if rank else 0
    for number in range(1, len(shapes)):
        for axis in range(rank):
            if axis != joined:
                yield from _equal(on.place(0, axis), on.place(number, axis))


def _matmul(on: _Operands) -> Iterator[Equality]:
    a, b = on.shape(0), on.shape(1)
    if not a or not b or any(on.attribute(name, 0) for name in _TURNED):
        return
    yield from _equal(on.place(0, -1), on.place(1, -2 if len(b) > 1 else -1))
    for axis in range(3, 1 + min(len(a), len(b))):
        if a[-axis] not in (1, None) and b[-axis] not in (1, None):
            yield from _equal(on.place(0, -axis), on.place(1, -axis))


def _gemm(on: _Operands) -> Iterator[Equality]:
    yield from _equal(
        on.place(0, 0 if on.attribute("transA", 0) else 1), on.place(1, 1 if on.attribute("transB", 0) else 0)
    )
    if len(on.shape(2) or ()) == 2 and (on.shape(2) or (1,))[0] not in (1, None):
        yield from _equal(on.place(0, 1 if on.attribute("transA", 0) else 0), on.place(2, 0))


def _split(on: _Operands) -> Iterator[Equality]:
    parts = on.values.get(on.name(1)) or on.attribute("split", None)
    if parts:
        yield from _equal(on.place(0, on.attribute("axis", 0)), int(sum(parts)))


def _reshape(on: _Operands) -> Iterator[Equality]:
    """Without a -1 the number of elements is given; it follows for each extent from the others."""
    target, shape = on.values.get(on.name(1)), on.shape(0)
    if target is None or shape is None or None in shape or -1 in target or on.attribute("allowzero", 0):
        return
    made, read = 1, 1
    kept: set[int] = set()
    for axis, extent in enumerate(target):
        if extent == 0 and axis < len(shape):
            kept.add(axis)
        else:
            made *= extent
    for axis, extent in enumerate(shape):
        read *= 1 if axis in kept else extent or 0
    if read == made:
        return
    for axis, extent in enumerate(shape):
        others = read // extent if extent else 0
        if axis not in kept and others and made % others == 0:
            yield from _equal(on.place(0, axis), made // others)
    # none fits alone: the first is at fault
    yield from _equal(on.place(0, len(shape) - 1), -1)


def _expand(on: _Operands) -> Iterator[Equality]:
    target, shape = on.values.get(on.name(1)), on.shape(0) or ()
    for axis in range(1, 1 + min(len(target or ()), len(shape))):
        if target and target[-axis] != 1 and shape[-axis] not in (1, None):
            yield from _equal(on.place(0, -axis), int(target[-axis]))


def _recurrent(on: _Operands) -> Iterator[Equality]:
    yield from _equal(on.place(0, 2), on.place(1, 2))  # the size of the input
    batch = 0 if on.attribute("layout", 0) else 1
    yield from _equal(on.place(0, batch), on.place(4, 0))  # sequence_lens
    for state in (5, 6):
        yield from _equal(on.place(0, batch), on.place(state, 0 if on.attribute("layout", 0) else 1))


def _attention(on: _Operands) -> Iterator[Equality]:
    """com.microsoft.Attention: x [B, S, D], weights [D, ...]."""
    yield from _equal(on.place(0, 2), on.place(1, 0))


def _features(*names: str) -> _Rule:
    """The last extent is the number of values in an attribute, if there are several."""

    def rule(on: _Operands) -> Iterator[Equality]:
        for name in names:
            count = len(on.attribute(name, ()))
            if count > 1:
                yield from _equal(on.place(0, -1), count)

    return rule


_TURNED: Final = ("transA", "transB", "transBatchA", "transBatchB")  # of FusedMatMul
_RULES: Final[Mapping[str, _Rule]] = {
    **dict.fromkeys(("Conv", "FusedConv", "ConvInteger"), _channels_of_filter(0, 1, 1)),
    "QLinearConv": _channels_of_filter(0, 3, 1),
    "ConvTranspose": _channels_of_filter(0, 1, 0),
    **dict.fromkeys((*BROADCASTING, "BiasGelu", "FastGelu"), _broadcast),
    "Concat": _concat,
    **dict.fromkeys(("MatMul", "FusedMatMul", "MatMulInteger"), _matmul),
    **dict.fromkeys(("Gemm", "FusedGemm"), _gemm),
    "Split": _split,
    "Reshape": _reshape,
    "Expand": _expand,
    **dict.fromkeys(("LSTM", "GRU", "RNN", "DynamicQuantizeLSTM"), _recurrent),
    "Attention": _attention,
    # of ai.onnx.ml
    "Scaler": _features("offset", "scale"),
    "Imputer": _features("imputed_value_floats", "imputed_value_int64s"),
}
