"""How PyTorch's operators treat rows: where the rows of their results are, or why one sees others."""

from __future__ import annotations

import math
from typing import Final

import torch

from hipdnn_backend.offload.frontend.padding import NotPaddableError
from hipdnn_backend.offload.torch_compile.row_walk import At, Axes, Rows, expression, nodes_of, rule

__all__: list[str] = []

_ATEN: Final = torch.ops.aten


@rule(torch.Tag.pointwise)
def _pointwise(on: At) -> int | None:
    """Broadcasts its operands to each other."""
    on.only(*on.names)
    rank, axes = on.rank_out(), set[int]()
    tensors = [node for value in on.given.values() for node in nodes_of(value)]
    for node in tensors:
        rows = on.walk.states[node]
        if isinstance(rows, Rows):
            axes.add(rows.axis - node.meta["val"].dim() + rank)
    if len(axes) > 1:
        raise NotPaddableError("the rows of its operands are not in one dim")
    return axes.pop() if axes else None  # an operand without rows has 1 element there: sizes are symbols


@rule("clone", "detach", "alias", "_to_copy", "contiguous", "lift_fresh_copy")
def _same(on: At) -> Axes:
    on.only(on.names[0])
    return on.axis(on.names[0])


@rule("mm", "bmm", "addmm", "baddbmm")
def _product(on: At) -> Axes:
    first, second = ("self", "mat2") if "mat2" in on.given and "mat1" not in on.given else ("mat1", "mat2")
    if "batch1" in on.given:
        first, second = "batch1", "batch2"
    on.only("self", first, second)
    rank = on.rank(first)
    one, other = on.axis(first), on.axis(second)
    if one == rank - 1 or other == rank - 2:
        raise NotPaddableError("it adds up along the rows")
    axes = {axis for axis in (one, other) if axis is not None}
    if rank == 3 and 0 in axes and len({one, other}) > 1:
        raise NotPaddableError("not both operands have rows in one dim")
    if first != "self" and (bias := on.axis("self")) is not None:
        axes.add(bias + rank - on.rank("self"))
    if len(axes) > 1:
        raise NotPaddableError("the rows of its operands are not in one dim")
    return axes.pop() if axes else None


def _batch_of(on: At, name: str) -> int | None:
    if on.axis(name) not in (0, None):
        raise NotPaddableError(f"dim {on.axis(name)} of operand '{name}', in which the rows are, is no batch")
    return on.axis(name)


@rule("convolution")
def _convolution(on: At) -> Axes:
    on.only("input")
    return _batch_of(on, "input")


@rule(
    *("max_pool2d_with_indices", "max_pool3d_with_indices", "avg_pool2d", "avg_pool3d", "_adaptive_avg_pool2d"),
    *("_adaptive_avg_pool3d", "upsample_nearest2d", "upsample_bilinear2d", "pixel_shuffle", "pixel_unshuffle"),
)
def _pictures(on: At) -> Axes:
    name = on.names[0]
    on.only(name)
    return _batch_of(on, name)


@rule("native_batch_norm", "_native_batch_norm_legit_no_training", "cudnn_batch_norm")
def _batch_norm(on: At) -> Axes:
    on.only("input")
    if on.given.get("training"):
        raise NotPaddableError("it takes a mean over the batch")
    at = _batch_of(on, "input")
    return (at, *(None,) * (len(on.node.meta["val"]) - 1))


@rule("native_layer_norm")
def _layer_norm(on: At) -> Axes:
    on.only("input")
    rank = on.rank("input")
    return on.not_along("input", range(rank - len(on.given["normalized_shape"]), rank), "it takes a mean")


@rule("native_group_norm")
def _group_norm(on: At) -> Axes:
    on.only("input", sizes=("N",))
    return _batch_of(on, "input")


@rule("_softmax", "_log_softmax", "cumsum", "cumprod", "sort", "topk", "glu")
def _along(on: At) -> Axes:
    name = on.names[0]
    on.only(name)
    return on.not_along(name, [on.given["dim"]], "it mixes elements")


@rule("sum", "mean", "amax", "amin", "argmax", "argmin", "any", "all", "prod", "logsumexp", "max", "min", "var", "std")
def _reduction(on: At) -> Axes:
    name = on.names[0]
    on.only(name)
    dim = on.given.get("dim")
    rank = on.rank(name)
    axes = range(rank) if dim in (None, []) else [dim] if isinstance(dim, int) else list(dim)
    at = on.not_along(name, axes, "it reduces")
    if at is None or on.given.get("keepdim"):
        return at
    return at - sum(1 for axis in {axis % rank for axis in axes} if axis < at)


@rule("view", "_unsafe_view", "reshape")
def _view(on: At) -> Axes:
    """Rows stay apart, first ones first, if as many elements as before stand in front of them."""
    on.only("self", sizes=("size", "shape"))
    at = on.axis("self")
    if at is None:
        raise NotPaddableError("what has no rows gets dims that follow from their number")
    rows = on.walk.rows_of(on.node.meta["val"])
    if rows is None:
        raise NotPaddableError("rows are not kept apart")
    before = math.prod(on.dims("self")[:at])
    after = math.prod([expression(size) for size in on.node.meta["val"].shape[: rows.axis]])
    if before != after:
        raise NotPaddableError("rows are not kept apart")
    return rows.axis


@rule("permute", "transpose", "t", "numpy_T")
def _permuted(on: At) -> Axes:
    on.only("self")
    at, rank = on.axis("self"), on.rank("self")
    order = list(range(rank))
    if "dims" in on.given:
        order = [axis % rank for axis in on.given["dims"]]
    else:
        one, other = (on.given.get("dim0", 0) % rank, on.given.get("dim1", 1) % rank) if rank > 1 else (0, 0)
        order[one], order[other] = order[other], order[one]
    return None if at is None else order.index(at)


@rule("unsqueeze")
def _unsqueezed(on: At) -> Axes:
    on.only("self")
    at, place = on.axis("self"), on.given["dim"] % (on.rank("self") + 1)
    return None if at is None else at + (place <= at)


@rule("squeeze")
def _squeezed(on: At) -> Axes:
    on.only("self")
    at, rank, dim = on.axis("self"), on.rank("self"), on.given.get("dim")
    axes = range(rank) if dim is None else [dim] if isinstance(dim, int) else dim
    gone = {axis % rank for axis in axes if on.dims("self")[axis] == 1}
    return None if at is None else at - sum(1 for axis in gone if axis < at)


@rule("expand")
def _expanded(on: At) -> Axes:
    on.only("self", sizes=("size",))
    at, more = on.axis("self"), on.rank_out() - on.rank("self")
    if at is not None:
        return at + more
    rows = on.walk.rows_of(on.node.meta["val"])
    return None if rows is None else rows.axis  # each row is the same


@rule("select")
def _selected(on: At) -> Axes:
    on.only("self")
    at = on.axis("self")
    place = on.given["dim"] % on.rank("self")
    if at == place:
        if on.given["index"] != 0 or on.rows("self").per != 1:  # type: ignore[union-attr]
            raise NotPaddableError("it picks a row other than the first")
        return None
    return None if at is None else at - (place < at)


@rule("slice")
def _sliced(on: At) -> Axes:
    at, place = on.axis("self"), (on.given["dim"] or 0) % on.rank("self")
    on.only("self", sizes=("end",) if at == place else ())
    if at != place:
        return at
    rows = on.walk.rows_of(on.node.meta["val"])
    whole = at is not None and rows is not None and on.dims("self")[at] == expression(on.node.meta["val"].shape[at])
    first = (on.given["start"] or 0, on.given["end"], on.given["step"]) == (0, 1, 1)
    if whole and on.given["step"] == 1:
        return at
    if first and on.rows("self").per == 1:  # type: ignore[union-attr]
        return None
    raise NotPaddableError("it takes some of the rows")


@rule("cat", "stack")
def _joined(on: At) -> Axes:
    on.only("tensors")
    nodes = nodes_of(on.given["tensors"])
    axes = {rows.axis for node in nodes if isinstance(rows := on.walk.states[node], Rows)}
    if len(axes) != 1 or not all(isinstance(on.walk.states[node], Rows) for node in nodes):
        raise NotPaddableError("not all operands have rows in one dim")
    (at,) = axes
    stacks = on.node.target.overloadpacket is _ATEN.stack  # type: ignore[union-attr]
    place = (on.given["dim"] or 0) % (nodes[0].meta["val"].dim() + stacks)
    if stacks:
        return at + (place <= at)
    if place == at:
        raise NotPaddableError("it joins along the rows")
    return at


@rule("split", "split_with_sizes", "unbind", "chunk")
def _split(on: At) -> Axes:
    on.only("self")
    at, dim = on.not_along("self", [on.given["dim"] or 0], "it splits"), on.given["dim"] or 0
    gone = on.node.target.overloadpacket is _ATEN.unbind and at is not None and dim % on.rank("self") < at  # type: ignore[union-attr]
    axis = None if at is None else at - bool(gone)
    return (axis,) * len(on.node.meta["val"])


@rule("constant_pad_nd")
def _padded(on: At) -> Axes:
    on.only("self")
    pads, rank = on.given["pad"], on.rank("self")
    axes = [rank - 1 - pair for pair in range(len(pads) // 2) if pads[2 * pair] or pads[2 * pair + 1]]
    return on.not_along("self", axes, "it adds") if axes else on.axis("self")


@rule("embedding")
def _embedding(on: At) -> Axes:
    on.only("indices")
    return on.axis("indices")


@rule("index_select")
def _index_select(on: At) -> Axes:
    on.only("self", "index")
    at, index, dim = on.axis("self"), on.axis("index"), on.given["dim"] % max(on.rank("self"), 1)
    if index is not None:
        if at is not None:
            raise NotPaddableError("it looks up rows by rows")
        return dim
    return on.not_along("self", [dim], "it looks up")


@rule("gather")
def _gathered(on: At) -> Axes:
    on.only("self", "index")
    at = on.not_along("self", [on.given["dim"]], "it looks up")
    if at is None or on.axis("index") != at:
        raise NotPaddableError("not both operands have rows in one dim")
    return at


@rule(
    *("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_attention_math"),
    *("_scaled_dot_product_efficient_attention", "_scaled_dot_product_flash_attention"),
)
def _attention(on: At) -> Axes:
    """Rows are a batch, or queries that see all keys."""
    on.only("query", "key", "value", "attn_mask")
    at = {name: on.axis(name) for name in ("query", "key", "value")}
    mask = on.rows("attn_mask")
    first = on.node.meta["val"][0]
    rank, axis = first.dim(), at["query"]
    if mask is not None and mask.axis - on.rank("attn_mask") + rank != axis:
        raise NotPaddableError("the rows of its operands are not in one dim")
    queries = axis == rank - 2 and at["key"] is at["value"] is None and not on.given.get("is_causal")
    if axis is None or not (queries or (axis < rank - 2 and set(at.values()) == {axis})):
        raise NotPaddableError("it adds up along the keys, or not all operands have the rows")
    follows = [each is not None and bool(on.walk.rows_of(each)) for each in on.node.meta["val"]]
    return tuple(axis if each else None for each in follows)


@rule("_transformer_encoder_layer_fwd", "_native_multi_head_attention")
def _whole_attention(on: At) -> Axes:
    """What PyTorch has for layers in inference; sequences stand in dim 0."""
    names = [name for name in ("src", "query", "key", "value") if name in on.given]
    on.only(*names)
    if {on.axis(name) for name in names} != {0} or on.rank(names[0]) != 3:
        raise NotPaddableError("not all operands have rows in dim 0, or these are no batch")
    values = on.node.meta["val"]
    if isinstance(values, torch.Tensor):
        return 0
    return tuple(0 if each is not None and on.walk.rows_of(each) else None for each in values)


@rule("arange", "full", "zeros", "ones", "empty", "new_zeros", "new_ones", "new_full", "new_empty", "scalar_tensor")
def _made(on: At) -> Axes:
    """Made of numbers: as many as there are rows, which begins with those for fewer."""
    on.only(sizes=("end", "size"))
    if "end" in on.given and (on.given.get("start", 0), on.given.get("step", 1)) != (0, 1):
        raise NotPaddableError("it counts from somewhere else than 0")
    rows = on.walk.rows_of(on.node.meta["val"])
    return None if rows is None else rows.axis
