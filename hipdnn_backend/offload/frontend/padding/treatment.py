"""How operators treat rows: where the rows of their results are, or why one sees others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Final

from hipdnn_backend.offload.frontend.operators import BROADCASTING
from hipdnn_backend.offload.frontend.padding.walk import (
    NUMBER,
    At,
    Axes,
    NotPaddableError,
    NumberOfRows,
    Rows,
    Rule,
    rule,
)

__all__: list[str] = []

_FAR: Final = 1 << 30  # the end of a slice that takes all there is


# ---- element by element


def _aligned(on: At, numbers: Sequence[int], rank: int) -> int | None:
    """The axis of rows among operands that broadcast to a rank."""
    axes = {rows.axis - on.rank(number) for number in numbers if (rows := on.rows(number)) is not None}
    if not axes:
        return None
    if len(axes) > 1:
        raise NotPaddableError("the rows of its operands are not in one dim")
    (axis,) = axes
    for number in numbers:
        if on.name(number) and on.rows(number) is None and on.rank(number) >= -axis and on.dims(number)[axis] != 1:
            raise NotPaddableError(f"operand '{on.name(number)}' has another element for each row, and no rows")
    return axis + rank


@rule(*BROADCASTING, "PRelu")
def _broadcast(on: At) -> Axes:
    return _aligned(on, range(len(on.node.input)), on.rank_out())


@rule(
    *("Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Cast", "Ceil", "Celu", "Clip", "Cos", "Cosh", "Elu"),
    *("Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "Identity", "IsInf", "IsNaN", "LeakyRelu", "Log"),
    *("Mish", "Neg", "Not", "BitwiseNot", "Reciprocal", "Relu", "Round", "Selu", "Shrink", "Sigmoid", "Sign", "Sin"),
    *("Sinh", "Softplus", "Softsign", "Sqrt", "Swish", "Tan", "Tanh", "ThresholdedRelu", "QuantizeLinear"),
    "DequantizeLinear",
)
def _each(on: At) -> Axes:
    on.only(0)
    return on.axis()


@rule("CastLike")
def _cast_like(on: At) -> Axes:
    return on.axis()


@rule("Dropout")
def _dropout(on: At) -> Axes:
    on.only(0)
    if any(on.constant(2)):
        raise NotPaddableError("it draws a number for each element")
    return on.axis()


# ---- along axes


@rule("Softmax", "LogSoftmax", "Hardmax")
def _softmax(on: At) -> Axes:
    return on.not_along([on.given.get("axis", -1)], on.rank(), "it adds up")


@rule("LpNormalization")
def _lp_normalization(on: At) -> Axes:
    return on.not_along([on.given.get("axis", -1)], on.rank(), "it adds up")


@rule("MeanVarianceNormalization")
def _mean_variance(on: At) -> Axes:
    return on.not_along(on.given.get("axes", [0, 2, 3]), on.rank(), "it takes a mean")


@rule("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization")
def _layer_norm(on: At) -> Axes:
    on.only(0)
    first = on.given.get("axis", -1) % on.rank()
    return on.not_along(range(first, on.rank()), on.rank(), "it takes a mean")


@rule(
    *("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum"),
    *("ReduceLogSumExp", "ReduceSumSquare"),
)
def _reduce(on: At) -> Axes:
    on.only(0)
    axes = on.given.get("axes") or on.constant(1)
    if not axes and on.given.get("noop_with_empty_axes", 0):
        return on.axis()
    rank = on.rank()
    at = on.not_along(axes or range(rank), rank, "it reduces")
    return _without(at, axes, rank) if not on.given.get("keepdims", 1) else at


@rule("ArgMax", "ArgMin")
def _arg(on: At) -> Axes:
    axis = on.given.get("axis", 0)
    at = on.not_along([axis], on.rank(), "it reduces")
    return _without(at, [axis], on.rank()) if not on.given.get("keepdims", 1) else at


def _without(at: int | None, axes: Sequence[int], rank: int) -> int | None:
    """Where an axis is when others are gone."""
    return None if at is None else at - sum(1 for axis in {axis % rank for axis in axes} if axis < at)


@rule("TopK")
def _top(on: At) -> Axes:
    on.only(0)
    return on.not_along([on.given.get("axis", -1)], on.rank(), "it sorts")


@rule("CumSum")
def _cumulated(on: At) -> Axes:
    on.only(0)
    return on.not_along(on.constant(1), on.rank(), "it adds up")


@rule("Trilu")
def _trilu(on: At) -> Axes:
    on.only(0)
    return on.not_along([-1, -2], on.rank(), "it takes a part of a matrix")


# ---- one picture, one sequence after another


def _first_axis(*numbers: int, more: Mapping[int, int] | None = None) -> Rule:
    """Rows are a batch: dim 0 of some operands and of the results; ``more``: number of a result → dim there."""

    def rule(on: At) -> Axes:
        on.only(*numbers)
        bad = next((number for number in numbers if number < len(on.states) and on.axis(number) not in (0, None)), None)
        if bad is not None:
            raise NotPaddableError(
                f"dim {on.axis(bad)} of operand '{on.name(bad)}', in which the rows are, is no batch"
            )
        if on.axis(numbers[0]) is None:
            raise NotPaddableError(f"operand '{on.name(numbers[0])}' has no rows, but others have")
        return [(more or {}).get(number, 0) for number in range(len(on.node.output))]

    return rule


rule(
    *("Conv", "ConvTranspose", "ConvInteger", "MaxPool", "AveragePool", "LpPool", "GlobalAveragePool", "GlobalMaxPool"),
    *("GlobalLpPool", "InstanceNormalization", "GroupNormalization", "LRN", "DepthToSpace", "SpaceToDepth"),
    "QLinearConv",
)(_first_axis(0))
rule("GridSample")(_first_axis(0, 1))


@rule("Attention")
def _attention(on: At) -> Axes:
    if on.axis(3) is not None and on.rank(3) != 4:
        raise NotPaddableError("its mask has rows and is not of a batch")
    return _first_axis(0, 1, 2, 3, 4, 5)(on)


@rule("BatchNormalization")
def _batch_norm(on: At) -> Axes:
    if on.given.get("training_mode", 0):
        raise NotPaddableError("it takes means of a batch")
    return _first_axis(0)(on)


@rule("Resize", "Upsample")
def _resize(on: At) -> Axes:
    if on.axis() != 0:
        raise NotPaddableError("it is only looked at where the rows are dim 0")
    numbers = {number for number in range(1, len(on.states)) if on.states[number] is NUMBER}
    for number in range(1, len(on.states)):
        if number not in numbers and on.rows(number) is not None:
            raise NotPaddableError(f"operand '{on.name(number)}' has rows")
    if on.given.get("coordinate_transformation_mode", "") in (b"tf_crop_and_resize", "tf_crop_and_resize"):
        raise NotPaddableError("it takes a part of its operand")
    return 0  # as many as before, which the dims tell


@rule("RNN", "LSTM", "GRU")
def _recurrent(on: At) -> Axes:
    batch = 0 if on.given.get("layout", 0) else 1
    where = {0: batch, 4: 0, 5: batch, 6: batch}
    on.only(*where)
    for number, axis in where.items():
        if number < len(on.states) and on.axis(number) not in (axis, None):
            raise NotPaddableError(f"dim {on.axis(number)} of operand '{on.name(number)}' is one of steps")
    if on.axis(0) is None:
        raise NotPaddableError(f"operand '{on.name(0)}' has no rows, but others have")
    return [0 if batch == 0 else 2, batch, batch][: len(on.node.output)]


# ---- products


def _product(on: At, first: int = 0, second: int = 1, turned: tuple[bool, bool] = (False, False)) -> int | None:
    rank = on.rank_out()
    if min(on.rank(first), on.rank(second)) < 2:
        raise NotPaddableError("it is only looked at for matrices")
    found: set[int] = set()
    for number, inner, outer in (
        (first, -2 if turned[0] else -1, -2),
        (second, -1 if turned[1] else -2, -1),
    ):
        rows = on.rows(number)
        if rows is None:
            continue
        axis = rows.axis - on.rank(number)
        if axis == inner:
            raise NotPaddableError("the rows are the dim over which it adds up")
        found.add(axis if axis < -2 else outer)
        other = second if number == first else first
        if axis < -2 and on.rows(other) is None and on.rank(other) >= -axis and on.dims(other)[axis] != 1:
            raise NotPaddableError(f"operand '{on.name(other)}' has another matrix for each row, and no rows")
    if len(found) > 1:
        raise NotPaddableError("the rows of its operands are not in one dim of the result")
    return found.pop() + rank if found else None


@rule("MatMul", "MatMulInteger")
def _matmul(on: At) -> Axes:
    on.only(0, 1)
    return _product(on)


@rule("QLinearMatMul")
def _quantised_matmul(on: At) -> Axes:
    on.only(0, 3)
    return _product(on, 0, 3)


@rule("Gemm")
def _gemm(on: At) -> Axes:
    on.only(0, 1, 2)
    axis = _product(on, turned=(bool(on.given.get("transA", 0)), bool(on.given.get("transB", 0))))
    if len(on.states) > 2 and on.name(2):
        added = on.rows(2)
        if added is not None and added.axis - on.rank(2) + 2 != axis:
            raise NotPaddableError("the rows of its operands are not in one dim of the result")
        if added is None and axis is not None and on.rank(2) >= 2 - axis and on.dims(2)[axis - 2] != 1:
            raise NotPaddableError(f"operand '{on.name(2)}' has another element for each row, and no rows")
    return axis


@rule("Einsum")
def _einsum(on: At) -> Axes:
    equation = on.given["equation"]
    text = (equation.decode() if isinstance(equation, bytes) else equation).replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    if not arrow or "." in text:
        raise NotPaddableError(f"{text!r} is not looked at")
    letters = {terms[number][rows.axis] for number in range(len(terms)) if (rows := on.rows(number)) is not None}
    if len(letters) > 1:
        raise NotPaddableError("the rows of its operands are not in one dim")
    (letter,) = letters
    if letter not in right or any(term.count(letter) > 1 for term in terms):
        raise NotPaddableError("the rows are a dim over which it adds up")
    return right.index(letter)


# ---- what moves elements


@rule("Transpose")
def _transpose(on: At) -> Axes:
    perm = on.given.get("perm") or list(range(on.rank()))[::-1]
    at = on.axis()
    return None if at is None else list(perm).index(at)


@rule("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def _reshape(on: At) -> Axes:
    """Rows stay apart if as many elements stand before their axis as before."""
    if on.node.op_type == "Squeeze" and not on.given.get("axes") and not on.constant(1):
        raise NotPaddableError("it drops every dim of 1, which may be that of the rows")
    rows = on.rows(0)
    if rows is None:
        raise NotPaddableError(f"operand '{on.name(0)}' has no rows, but their number decides its dims")
    before = {prod(dims[: rows.axis]) for dims in on.walk.dims(on.name(0))}
    dims = on.walk.dims(on.node.output[0])
    if len({len(each) for each in dims}) > 1:
        raise NotPaddableError("it gives another number of dims for other sizes")
    axes = [axis for axis, extents in enumerate(zip(*dims, strict=True)) if len(set(extents)) > 1]
    if len(axes) != 1 or {prod(each[: axes[0]]) for each in dims} != before:
        raise NotPaddableError(
            f"it puts dims {list(on.dims(0))} as {list(dims[0])}, which mixes rows with what is before"
        )
    return axes[0]


@rule("Concat")
def _concat(on: At) -> Axes:
    axis = on.given["axis"] % on.rank()
    axes = {on.axis(number) for number in range(len(on.states))}
    if len(axes) > 1 or axis in axes:
        raise NotPaddableError("it joins rows with others" if axis in axes else "not all operands have rows")
    return axes.pop()


@rule("Split")
def _split(on: At) -> Axes:
    on.only(0)
    return on.not_along([on.given.get("axis", 0)], on.rank(), "it splits")


@rule("Slice")
def _slice(on: At) -> Axes:
    rank, rows = on.rank(), on.rows(0)
    if rows is None:
        raise NotPaddableError("how much it takes follows from the number of rows")
    axes = [axis % rank for axis in on.constant(3)] or list(range(rank))
    steps = on.constant(4) or [1] * len(axes)
    if any(isinstance(on.states[number], NumberOfRows) for number in (1, 2)) and set(axes) != {rows.axis}:
        raise NotPaddableError("how much it takes of other dims follows from the number of rows")
    taken = {_taken(on, number, axes, steps, rows) for number in range(len(on.walk.graphs))}
    if len(taken) > 1:
        raise NotPaddableError("it takes all rows with some sizes, and some with others")
    return rows.axis if taken.pop() else None


def _taken(on: At, number: int, axes: Sequence[int], steps: Sequence[int], rows: Rows) -> bool:
    """Whether a slice takes all rows, with the size of a number, and not just the first."""
    graph = on.walk.graphs[number]
    extent = on.walk.dims(on.name(0))[number][rows.axis]
    starts, ends = (graph.constants.get(on.name(which)) for which in (1, 2))
    if starts is None or ends is None:
        raise NotPaddableError("only a run knows what it takes")
    for axis, start, end, step in zip(axes, starts.reshape(-1), ends.reshape(-1), steps, strict=True):
        if axis != rows.axis or (start == 0 and step == 1 and (end >= _FAR or end == extent)):
            continue
        if (start, end, step, rows.per) == (0, 1, 1, 1):
            return False
        raise NotPaddableError(f"it takes some of the rows, {start} to {end}")
    return True


@rule("Gather")
def _gather(on: At) -> Axes:
    data, indices = on.rows(0), on.rows(1)
    axis = on.given.get("axis", 0) % on.rank()
    if data is not None and indices is not None:
        raise NotPaddableError("it looks up rows by rows")
    if indices is not None:
        return axis + indices.axis
    assert data is not None, "one of them has rows"
    if data.axis == axis:
        if any(on.constant(1)):
            raise NotPaddableError("it picks rows other than the first")
        if data.per != 1:
            raise NotPaddableError("it picks parts of rows")
        return None
    return data.axis if data.axis < axis else data.axis + on.rank(1) - 1


@rule("GatherElements")
def _gather_elements(on: At) -> Axes:
    at = on.not_along([on.given.get("axis", 0)], on.rank(), "it looks up")
    if at is None or on.axis(1) != at:
        raise NotPaddableError("not both operands have rows in one dim")
    return at


@rule("OneHot")
def _one_hot(on: At) -> Axes:
    on.only(0)
    at = on.axis()
    rank = on.rank() + 1
    return None if at is None else at + (on.given.get("axis", -1) % rank <= at)


@rule("Expand", "Tile")
def _expand(on: At) -> Axes:
    """Each row of what has rows stays; what has none is repeated for each."""
    out = on.rank_out()
    rows = on.rows(0)
    if rows is not None:
        if on.node.op_type == "Tile" and on.constant(1)[rows.axis] != 1:
            raise NotPaddableError("it repeats the rows")
        return rows.axis + out - on.rank()
    dims = on.walk.dims(on.node.output[0])
    axes = [axis for axis, extents in enumerate(zip(*dims, strict=True)) if len(set(extents)) > 1]
    before = on.rank() - out
    if len(axes) != 1 or (axes[0] + before >= 0 and on.dims(0)[axes[0] + before] != 1):
        raise NotPaddableError("how often it repeats follows from the number of rows")
    return axes[0]


@rule("Pad")
def _pad(on: At) -> Axes:
    rank, at = on.rank(), on.axis()
    on.only(0)
    pads = on.constant(1)
    axes = [axis % rank for axis in on.constant(3)] or list(range(rank))
    if at in axes and (pads[axes.index(at)] or pads[axes.index(at) + len(axes)]):  # type: ignore[arg-type]
        raise NotPaddableError("it adds to the rows")
    return at
