"""Emission of reductions."""

from __future__ import annotations

import math
from collections.abc import Sequence

from graph_api import DataType, Node, ReductionMode, TensorAttr
from graph_api.layout import stride_order
from graph_api.ops.reduction import ReductionNode
from iree_bridge.emit import ordered
from iree_bridge.emit.emitter import Emitter, Value, rule
from iree_bridge.emit.exponentials import exponentials_and_sums, exponents
from iree_bridge.emit.pointwise import Elementwise
from iree_bridge.emit.rounded import elementwise_sources
from iree_bridge.emit.softmax import LONG_ROW, of_sum
from iree_bridge.targets.target import Target
from iree_bridge.targets.types import TORCH_CODE

__all__ = ["accumulator", "extreme", "mean", "plus_nothing", "reduction", "total"]


@rule("reduction")
def reduction(e: Emitter, node: ReductionNode) -> None:
    """x is converted to the compute type, in which everything is done; y keeps the reduced dims as 1."""
    tensor, axes = node.inputs["x"], node.axes
    if of_sum(e.graph, node, e.target) is not None:
        return  # the quotient is made in one, of what the maximum is taken of
    of = exponents(e, node) if node.attributes.mode is ReductionMode.ADD else None
    if of is not None:
        kind = accumulator(e.target, tensor.dims, axes, node.compute)
        made, sums = exponentials_and_sums(e, e.read(of, DataType.FLOAT), kind)
        e.supersede(tensor, made)
        e.write(node, "y", sums)
        return
    x = e.cast(e.again(tensor), node.compute) if _stands_apart(e, node) else e.read(tensor, node.compute)
    if _is_like_a_product(e, node) or _is_an_outer_product(e, node):
        x = plus_nothing(e, x)
    if node.outputs["y"].volume == 1:
        # Of everything: the order of the terms is free, so it is that of memory, which needs no transposition.
        x, axes = e.permute(x, stride_order(tensor.dims, tensor.strides)), range(len(x.dims))
    y = _reduced(e, Elementwise(e, node.compute), node.attributes.mode, x, axes)
    terms = math.prod(tensor.dims[axis] for axis in node.axes)
    if e.target.is_gpu and terms > _SHORT and not fills_waves(tensor.dims, node.axes) and _leads_to_reduction(e, node):
        y = e.barrier(y)
    e.write(node, "y", y)


def _is_like_a_product(e: Emitter, node: ReductionNode) -> bool:
    """Whether the compiler for a GPU may take the sum of a row for a product of matrices: see `plus_nothing`."""
    made = e.graph.maker(node.inputs["x"])
    summed = node.attributes.mode in (ReductionMode.ADD, ReductionMode.AVG) and node.compute.is_float
    if not (e.target.is_gpu and summed and made is not None and made.op == "pointwise" and len(made.inputs) > 1):
        return False
    dims = node.inputs["x"].dims
    return fills_waves(dims, node.axes) or any(_repeats(each, dims, node.axes) for each in made.inputs.values())


def _is_an_outer_product(e: Emitter, node: ReductionNode) -> bool:
    """Whether a CPU sums what two operands are broadcast for, one of them along a dim that is summed over.

    As one product of vectors, which the compiler takes it for, that does not compile.
    """
    is_sum = node.attributes.mode in (ReductionMode.ADD, ReductionMode.AVG) and node.compute.is_float
    if e.target.is_gpu or not is_sum:
        return False
    dims = node.inputs["x"].dims
    operands = elementwise_sources(e.graph, node.inputs["x"])
    broadcast = [each for each in operands if _repeats(each, dims, range(len(dims)))]
    return len(broadcast) > 1 and any(_repeats(each, dims, node.axes) for each in broadcast)


def _repeats(tensor: TensorAttr, dims: Sequence[int], axes: Sequence[int]) -> bool:
    """Whether a tensor that is broadcast to ``dims`` has the same elements all along one of the axes."""
    lead = len(dims) - len(tensor.dims)
    return any(
        dims[axis] > 1 and (axis < lead or tensor.dims[axis - lead] == 1 or tensor.strides[axis - lead] == 0)
        for axis in axes
    )


def plus_nothing(e: Emitter, x: Value) -> Value:
    """Terms of a sum, plus a zero that the compiler does not see.

    Else a sum of products is one of matrices for it. Of that the operands are computed for whole rows first, which on a
    GPU takes more registers than there are, and if one of them is repeated along a dim that is summed over, it adds up
    terms twice or others' (``docs/upstream``); on a CPU it fails where both have a stride of 0 ("invalid
    accumulator/result vector shape").
    """
    zero = e.barrier(e.splat(-0.0, (1,) * len(x.dims), x.dtype))
    return e.op("aten.add.Tensor", x.dims, x.dtype, x, zero, 1)


def _stands_apart(e: Emitter, node: ReductionNode) -> bool:
    """Whether a GPU computes what is reduced again, or reads it, since something else uses it as well.

    Else the compiler makes it, stores it and reduces it in one kernel, which it cannot distribute where the terms are
    many, or takes minutes for. That kernel is right for sums of columns, which lie beside each other; and what is made
    of sums of rows joins theirs, as in a softmax.
    """
    tensor, made = node.inputs["x"], node.outputs["y"]
    if not e.target.is_gpu or tensor.physical.order[-1] not in node.axes:
        return False
    if e.graph.maker(tensor) is None:
        return False
    others = [other for other in e.graph.readers(tensor) if other is not node]
    behind = _made_of(e, made)
    joins = made.volume > 1 and all(other in behind for other in others)
    return not tensor.is_virtual or (bool(others) and not joins)


def _made_of(e: Emitter, tensor: TensorAttr) -> list[Node]:
    """The nodes that are computed from a tensor."""
    reached, found = {tensor}, list[Node]()
    for node in e.graph.nodes:
        if reached.intersection(node.inputs.values()):
            reached.update(node.outputs.values())
            found.append(node)
    return found


def fills_waves(dims: Sequence[int], axes: Sequence[int]) -> bool:
    """Whether the axes are the last ones and their elements fill waves.

    A GPU computes reductions that follow from each other in one kernel. Its compile time and registers explode
    (minutes, hundreds) unless this holds; then the first becomes a kernel of its own.
    """
    return axes[0] == len(dims) - len(axes) and math.prod(dims[axis] for axis in axes) % _WAVE == 0


_WAVE, _SHORT = 64, 512


def _leads_to_reduction(e: Emitter, node: ReductionNode) -> bool:
    """Whether a later reduction is computed from the result of ``node``, as the sum in a softmax from the maximum."""
    return any(later.op == "reduction" for later in _made_of(e, node.outputs["y"]))


def _reduced(e: Emitter, t: Elementwise, mode: ReductionMode, x: Value, axes: Sequence[int]) -> Value:
    """x reduced over the axes, which keep an extent of 1."""
    match mode:
        case ReductionMode.ADD:
            return total(e, x, axes)
        case ReductionMode.NORM1:
            return total(e, t.unary("abs", x), axes)
        case ReductionMode.AVG:
            return mean(e, x, axes)
        case ReductionMode.NORM2:
            return t.unary("sqrt", total(e, t.mul(x, x), axes))
        case ReductionMode.MAX:
            return extreme(e, x, axes)
        case ReductionMode.AMAX:
            return extreme(e, t.unary("abs", x), axes)
        case ReductionMode.MIN:
            return extreme(e, x, axes, least=True)
        case ReductionMode.MUL:
            return _product(e, x, axes)
        case ReductionMode.MUL_NO_ZEROS:
            return _product(e, t.select(t.compare("eq", x, 0), t.constant(1, x), x), axes)


def total(e: Emitter, x: Value, axes: Sequence[int]) -> Value:
    """The sum over ``axes`` in the type of x; they stay as dims of 1."""
    name, dtype = "aten.sum.dim_IntList", x.dtype
    kind = accumulator(e.target, x.dims, axes, dtype)
    inner = _inner_axes(x.dims) if kind is not dtype and math.prod(_kept(x, axes)) == 1 else []
    if inner:
        # The rows' sums in 64 bits; these are few, and converting their sum would be a kernel of its own.
        x = e.cast(_step(e, name, e.cast(x, kind), inner, TORCH_CODE[kind]), dtype)
        return _step(e, name, x, axes, TORCH_CODE[dtype])
    return e.cast(_over(e, name, e.cast(x, kind), axes, TORCH_CODE[kind]), dtype)


def accumulator(target: Target, dims: Sequence[int], axes: Sequence[int], dtype: DataType) -> DataType:
    """The type in which a CPU accumulates what has these dims and data type over ``axes``.

    Its loops add one term after the other, and what that rounds away grows with their number. In 64 bits it does not,
    but twice the bits are half the speed where all lies in the nearest cache. So sums stay as they are up to a length:
    that of rows of whole vectors is the largest, as they are many sums at once; that of other rows, which are computed
    in scalars, the smallest. The sum of everything pays a kernel for the conversion of its result. GPUs add in trees.
    """
    terms = math.prod(dims[axis] for axis in axes)
    if dtype is not DataType.FLOAT or target.is_gpu:
        return dtype
    if terms == math.prod(dims):
        least = _LONG_ALL
    elif len(dims) - 1 in axes and dims[-1] > 1:
        least = _LONG_SCALAR_ROW if dims[-1] * dtype.bits // 8 % target.vector_bytes else LONG_ROW
    else:
        least = _LONG_COLUMN
    return DataType.DOUBLE if terms >= least else dtype


_LONG_SCALAR_ROW, _LONG_COLUMN, _LONG_ALL = 256, 1024, 32768


def mean(e: Emitter, x: Value, axes: Sequence[int]) -> Value:
    """The mean over ``axes``, which stay as dims of 1; x is floating point."""
    count = math.prod(x.dims[axis] for axis in axes)
    summed = total(e, x, axes)
    return summed if count == 1 else e.op("aten.div.Scalar", summed.dims, x.dtype, summed, float(count))


def extreme(e: Emitter, x: Value, axes: Sequence[int], *, least: bool = False) -> Value:
    """The maximum or minimum over ``axes``, which stay as dims of 1."""
    name = "aten.amin" if least else "aten.amax"
    if not ordered.is_keyed(e, x.dtype):
        return _over(e, name, x, axes)
    return ordered.decoded(e, _over(e, name, ordered.encoded(e, x, least=least), axes), x.dtype)


def _product(e: Emitter, x: Value, axes: Sequence[int]) -> Value:
    dtype = x.dtype
    x = e.cast(x, accumulator(e.target, x.dims, axes, dtype))
    for axis in axes:
        x = _over(e, "aten.prod.dim_int", x, [axis], TORCH_CODE[x.dtype]) if x.dims[axis] > 1 else x
    return e.cast(x, dtype)


def _over(e: Emitter, name: str, x: Value, axes: Sequence[int], *operands: int) -> Value:
    """A torch reduction of x, or an extreme of keys, over ``axes``, which stay as dims of 1.

    The GPU compiler fails ("failed to distribute") where all of a large x is reduced over several dims at once: then
    the inner dims are reduced first, and what is left, of few elements or one dim, after them.
    """
    if math.prod(_kept(x, axes)) == 1 and (inner := _inner_axes(x.dims)):
        x = _step(e, name, x, inner, *operands)
    return _step(e, name, x, axes, *operands)


def _inner_axes(dims: Sequence[int]) -> list[int]:
    """The axes behind the leading ones that together hold a moderate number of rows; none if only one dim exceeds 1."""
    large = [axis for axis, dim in enumerate(dims) if dim > 1]
    rows = 1
    for position, axis in enumerate(large[:-1]):
        rows *= dims[axis]
        if rows >= _ROWS or rows * dims[large[position + 1]] > _MOST_ROWS:
            return large[position + 1 :]
    return large[-1:] if len(large) > 1 else []


_ROWS, _MOST_ROWS = 64, 2048
_EXTREMES = ("aten.amax", "aten.amin")
"""Of x itself; where `ordered.is_keyed`, of keys."""


def _step(e: Emitter, name: str, x: Value, axes: Sequence[int], *operands: int) -> Value:
    if name in _EXTREMES and ordered.is_keyed(e, x.dtype):
        return ordered.extreme(e, x, axes, least=name == "aten.amin")
    which = axes[0] if name == "aten.prod.dim_int" else list(axes)
    return e.op(name, _kept(x, axes), x.dtype, x, which, True, *operands)


def _kept(x: Value, axes: Sequence[int]) -> list[int]:
    return [1 if axis in axes else dim for axis, dim in enumerate(x.dims)]
