"""Operators of ``com.microsoft`` whose weights are integers of 2, 4 or 8 bits in blocks: they stay packed as they are.

Products are taken of FLOAT, as ONNX Runtime's CPU provider takes them if ``accuracy_level`` allows no less.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto

from fusilli_ground.float_formats import FloatFormat
from hipdnn_backend.offload.frontend.operators import operator
from hipdnn_backend.offload.frontend.rewriting import Builder, rewrites
from hipdnn_backend.offload.frontend.rules.contrib import DOMAIN
from hipdnn_backend.offload.frontend.rules.small_types import codes_of, element_of, meant, numbers, unpacked
from hipdnn_backend.offload.frontend.small_types import SMALL, Integer, packed

__all__: list[str] = []

operator("MatMulNBits", static=(4,))

_FLOAT = TensorProto.FLOAT
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)
_BITS = (2, 4, 8)
_LEAST_BLOCK = 16
_FRACTIONS = {"activation_alpha", "activation_beta", "swiglu_limit"}
"""Attributes that are no integers."""

Dims = tuple[int, ...]


def _check_block(b: Builder, size: int, *, least: int = _LEAST_BLOCK) -> None:
    if size < least or size & (size - 1):
        raise b.fail("attribute", f"block_size is {size}; it is a power of 2 and at least {_LEAST_BLOCK}")


def _check_whole(b: Builder) -> None:
    """Attributes that are counts or axes: other kinds reach this far, since nobody checks nodes of this domain."""
    for name, value in b.given.items():
        if isinstance(value, float) and name not in _FRACTIONS:
            raise b.fail("operator-form", f"attribute {name} is {value!r}; it must be an integer")


def _check_bits(b: Builder, name: str, bits: int) -> None:
    if bits not in _BITS:
        raise b.unsupported("attribute", f"{name} is {bits}; {', '.join(map(str, _BITS))} are known")


def _check_dims(b: Builder, name: str, *known: Dims) -> None:
    """Refuse an operand that has other dims than the attributes and the other operands say."""
    dims = b.dims(name)
    if dims not in known:
        wanted = " or ".join(str(list(each)) for each in known)
        raise b.fail("block-quantisation", f"{name} has dims {list(dims or ())}, expected {wanted}")


def _check_type(b: Builder, name: str, *known: int) -> None:
    type_ = b.type(name)
    if type_ is not None and type_.element not in known:
        wanted = ", ".join(TensorProto.DataType.Name(each) for each in known)
        have = TensorProto.DataType.Name(type_.element)
        raise b.fail("block-quantisation", f"{name} is of type {have}, expected {wanted}")


def _known(b: Builder, *operands: int) -> bool:
    """Whether the dims of all operands that are given are known."""
    return all(b.dims(b.input(index)) is not None for index in operands if b.input(index))


def _dims(b: Builder, name: str) -> Dims:
    """Of an operand that `_known` has seen."""
    dims = b.dims(name)
    assert dims is not None, name
    return dims


def _wide(b: Builder, x: str) -> str:
    return b.op("Cast", x, to=_FLOAT)


def _reshaped(b: Builder, x: str, *dims: int) -> str:
    return b.op("Reshape", x, b.constant(dims))


def _codes(b: Builder, x: str, dims: Dims, bits: int, count: int) -> str:
    """The first ``count`` codes, FLOAT, of each row of bytes of ``dims``."""
    row = unpacked(b, _reshaped(b, x, *dims), dims, bits)
    per = dims[-1] * (8 // bits)
    if count < per:
        row = b.op("Slice", row, b.constant([0]), b.constant([count]), b.constant([-1]))
    return _wide(b, row)


# ---- MatMulNBits


@rewrites("MatMulNBits", domain=DOMAIN, operands=6, attributes="K N accuracy_level bits block_size weight_prepacked")
def _product(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """``a @ w.T + bias``, ``w [N, K] = (codes - zero point) * scale``, codes in ``[N, blocks, bytes of a block]``."""
    _check_whole(b)
    if not _known(b, 0, 1, 2, 3, 4, 5):
        return None
    k, n, size, bits = b.given["K"], b.given["N"], b.given["block_size"], b.given.get("bits", 4)
    _check_bits(b, "bits", bits)
    _check_block(b, size)
    if b.given.get("weight_prepacked", 0):
        raise b.unsupported("attribute", f"weight_prepacked is {b.given['weight_prepacked']}, a layout of CUDA's")
    a, packed_b, scales = node.input[:3]
    dims, type_ = b.dims(a), b.type(a)
    if dims is None or type_ is None:
        return None
    _check_type(b, a, *_FLOATS)
    if not dims or dims[-1] != k:
        raise b.fail("block-quantisation", f"{a} has dims {list(dims)}, but K is {k}")
    blocks, blob = -(-k // size), size * bits // 8
    if 0 in (b.dims(packed_b) or ()):
        raise b.unsupported("block-quantisation", f"{packed_b} {list(b.dims(packed_b) or ())} has no weights")
    _check_dims(b, packed_b, (n, blocks, blob))
    _check_type(b, packed_b, TensorProto.UINT8)
    _check_dims(b, scales, (n, blocks), (n * blocks,))
    _check_type(b, scales, type_.element)
    rows = _codes(b, packed_b, (n, blocks, blob), bits, size)
    zero = _zero(b, b.input(3), (n,), blocks, bits, type_.element)
    scale = _reshaped(b, _wide(b, scales), n, blocks)
    if b.input(4):
        _check_type(b, b.input(4), TensorProto.INT32)
        _check_reordered(b, bits)
        group = _group(b, b.input(4), k, blocks * size, blocks)
        rows = b.op("Slice", _reshaped(b, rows, n, blocks * size), b.constant([0]), b.constant([k]), b.constant([1]))
        scale = b.op("Gather", scale, group, axis=1)
        zero = b.op("Gather", zero, group, axis=1) if b.input(3) else zero
        weights = b.op("Mul", b.op("Sub", rows, zero), scale)
    else:
        zero = _reshaped(b, zero, n, blocks, 1) if b.input(3) else zero
        weights = b.op("Mul", b.op("Sub", rows, zero), _reshaped(b, scale, n, blocks, 1))
        weights = _reshaped(b, weights, n, blocks * size)
        if k < blocks * size:
            weights = b.op("Slice", weights, b.constant([0]), b.constant([k]), b.constant([1]))
    y = b.op("MatMul", _wide(b, a), b.op("Transpose", weights, perm=[1, 0]))
    if b.input(5):
        _check_dims(b, b.input(5), (n,))
        _check_type(b, b.input(5), type_.element)
        y = b.op("Add", y, _wide(b, b.input(5)))
    return [b.op("Cast", y, to=type_.element)]


def _check_reordered(b: Builder, bits: int) -> None:
    """Leave what ONNX Runtime computes otherwise than the operator is described: nobody can rely on it."""
    zero = b.type(b.input(3)) if b.input(3) else None
    if bits == 2 or (zero is not None and zero.element == TensorProto.UINT8):
        packed_too = " and packed zero points" if zero is not None and zero.element == TensorProto.UINT8 else ""
        reason = f"g_idx with bits={bits}{packed_too}, for which ONNX Runtime's kernel has an order of its own"
        raise b.unsupported("block-quantisation", reason)


def _zero(b: Builder, name: str, rows: Dims, blocks: int, bits: int, element: int) -> str:
    """Zero points, FLOAT, of ``[*rows, blocks]``; one number if none are given."""
    if not name:
        return b.constant(1 << (bits - 1), np.float32)
    type_ = b.type(name)
    if type_ is not None and type_.element != TensorProto.UINT8:
        _check_type(b, name, element, TensorProto.UINT8)
        _check_dims(b, name, (*rows, blocks), (math.prod(rows) * blocks,))
        return _reshaped(b, _wide(b, name), *rows, blocks)
    each = -(-blocks * bits // 8)
    _check_dims(b, name, (*rows, each), (math.prod(rows) * each,))
    return _codes(b, name, (*rows, each), bits, blocks)


def _group(b: Builder, name: str, k: int, whole: int, blocks: int) -> str:
    """The block to which each column belongs."""
    _check_dims(b, name, (k,), (whole,))
    known = b.value(name)
    if known is None:
        raise b.unsupported("block-quantisation", f"g_idx {name} is known at a run only")
    if known.size and not 0 <= known.min() <= known.max() < blocks:
        reason = f"g_idx {name} holds numbers from {known.min()} to {known.max()}; blocks are 0 to {blocks - 1}"
        raise b.fail("block-quantisation", reason)
    return b.constant(known.reshape(-1)[:k])


# ---- GatherBlockQuantized


@dataclass(frozen=True)
class _Table:
    """What is gathered from.

    Attributes:
        b: where nodes go.
        name: of the quantised tensor.
        dims: of its elements; of UINT8 those behind the unpacking.
        kind: what codes mean.
        axis: along which is gathered.
        along: axis of the blocks.
        size: of a block.
    """

    b: Builder
    name: str
    dims: Dims
    kind: FloatFormat | Integer
    axis: int
    along: int
    size: int

    @property
    def blocks(self) -> Dims:
        """Dims of scales."""
        return tuple(-(-dim // self.size) if axis == self.along else dim for axis, dim in enumerate(self.dims))

    def spread(self, dims: Dims) -> Dims:
        """Dims behind the gathering, ``dims`` those of the indices."""
        return (*self.dims[: self.axis], *dims, *self.dims[self.axis + 1 :])

    def rows(self, index: str, dims: Dims) -> str:
        """The codes, UINT8, of what is gathered; bytes with several elements are unpacked behind it if they can be."""
        b, bits, shape = self.b, self.kind.bits, self.spread(dims)
        known, last = b.value(self.name), len(self.dims) - 1
        whole = self.axis != last and self.dims[-1] * bits % 8 == 0
        if element_of(b, self.name) is None:
            name, held = self.name, self.dims[-1] * bits // 8
        elif known is not None and whole and bits < 8 and 8 % bits == 0:
            held = self.dims[-1] * bits // 8
            name = b.constant(packed(known.view(np.uint8), bits).reshape(*self.dims[:-1], held), np.uint8)
        else:
            return b.op("Gather", codes_of(b, self.name), index, axis=self.axis)
        return unpacked(b, b.op("Gather", name, index, axis=self.axis), (*shape[:-1], held), bits)

    def parameters(self, value: str, index: str, dims: Dims, count: int) -> str:
        """Scales or zero points, FLOAT, for each element that is gathered.

        Args:
            value: of dims `blocks`, or 1 where one number is for all.
            index: what is gathered.
            dims: of ``value``.
            count: rank of the indices.
        """
        b = self.b
        if self.axis == self.along:
            each = b.op("Div", index, b.constant(self.size)) if self.size > 1 else index
            return b.op("Gather", value, each, axis=self.axis)
        if dims[self.axis] == 1 < self.dims[self.axis]:
            y = _reshaped(b, value, *dims[: self.axis], *[1] * count, *dims[self.axis + 1 :])
        else:
            y = b.op("Gather", value, index, axis=self.axis)
        behind = self.along + count - 1 if self.along > self.axis else self.along
        blocks = b.constant(np.arange(self.dims[self.along]) // self.size)
        return b.op("Gather", y, blocks, axis=behind)


@rewrites("GatherBlockQuantized", domain=DOMAIN, operands=4, attributes="bits block_size gather_axis quantize_axis")
def _gather(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """Rows of a quantised table as numbers; an index that is out of range gives zeros."""
    _check_whole(b)
    data, indices, scales = node.input[:3]
    dims, type_ = b.dims(indices), b.type(scales)
    if not _known(b, 0, 1, 2, 3) or dims is None or type_ is None:
        return None
    _check_type(b, scales, *_FLOATS)
    _check_type(b, indices, TensorProto.INT32, TensorProto.INT64)
    table = _table(b, data)
    shape = _dims(b, scales)
    is_float = isinstance(table.kind, FloatFormat)
    for axis, (have, want) in enumerate(zip(shape, table.blocks, strict=False)):
        if have != want and not (is_float and axis != table.along and have == 1):
            _check_dims(b, scales, table.blocks)
    if len(shape) != len(table.dims):
        _check_dims(b, scales, table.blocks)
    extent = table.dims[table.axis]
    index, inside = _positions(b, indices, extent)
    codes = table.rows(index, dims)
    out = table.spread(dims)
    y = _wide(b, meant(b, codes, out, table.kind))
    zero = _table_zero(table, b.input(3), index, shape, len(dims))
    y = b.op("Sub", y, zero) if zero else y
    y = b.op("Mul", y, table.parameters(_wide(b, scales), index, shape, len(dims)))
    if inside:
        ones = [1] * table.axis, [1] * (len(table.dims) - 1 - table.axis)
        y = b.op("Where", _reshaped(b, inside, *ones[0], *dims, *ones[1]), y, b.constant(0, np.float32))
    return [b.op("Cast", y, to=type_.element)]


def _table(b: Builder, data: str) -> _Table:
    """What the operator's attributes say of its data; bytes of UINT8 hold several elements of the last axis."""
    dims, element = _dims(b, data), element_of(b, data)
    rank = len(dims)
    axis, along = (_axis(b, name, default, rank) for name, default in (("gather_axis", 0), ("quantize_axis", 1)))
    size, bits = b.given.get("block_size", 128), b.given.get("bits", 4)
    if element is None:
        _check_type(b, data, TensorProto.UINT8, *SMALL)
        _check_bits(b, "bits", bits)
        kind: FloatFormat | Integer = Integer(bits, signed=False)
        if axis != 0 or along != rank - 1 or rank < 2:
            reason = f"gather_axis {axis} and quantize_axis {along} of {data} {list(dims)}"
            raise b.fail("attribute", f"{reason}; of uint8 they are the first and the last axis")
        dims = (*dims[:-1], dims[-1] * (8 // bits))
    else:
        kind = SMALL[element]
        if isinstance(kind, Integer) and (bits != kind.bits or kind.bits != 4):
            raise b.fail("attribute", f"bits is {bits}, the elements of {data} have {kind.bits}; they are of 4 bits")
    if isinstance(kind, FloatFormat) and not size:
        size = max(dims[along], 1)
    else:
        _check_block(b, size)
    return _Table(b, data, dims, kind, axis, along, size)


def _axis(b: Builder, name: str, default: int, rank: int) -> int:
    axis = b.given.get(name, default)
    if not -rank <= axis < rank:
        raise b.fail("attribute", f"{name} is {axis}, of a tensor of rank {rank}")
    return axis % rank


def _positions(b: Builder, indices: str, extent: int) -> tuple[str, str]:
    """Indices counted from the front, all inside; and which were, "" if all are known to be."""
    known = b.value(indices)
    if known is not None and known.size and -extent <= known.min() <= known.max() < extent:
        return b.constant(np.where(known < 0, known + extent, known)), ""
    index = b.op("Cast", indices, to=TensorProto.INT64)
    index = b.op("Where", b.op("Less", index, b.constant(0)), b.op("Add", index, b.constant(extent)), index)
    below = b.op("Less", index, b.constant(0))
    above = b.op("Less", b.constant(extent - 1), index)
    inside = b.op("Not", b.op("Or", below, above))
    return b.op("Where", inside, index, b.constant(0)), inside


def _table_zero(table: _Table, name: str, index: str, dims: Dims, count: int) -> str:
    """What is subtracted from codes, "" for nothing."""
    b, kind = table.b, table.kind
    typed = element_of(b, table.name) is not None
    if not name:
        return "" if typed else b.constant(1 << (kind.bits - 1), np.float32)
    if isinstance(kind, FloatFormat):
        raise b.fail("block-quantisation", f"zero points {name} of floats, which have none")
    if typed:
        have, want = b.type(name), b.type(table.name)
        assert have is not None
        assert want is not None
        _check_type(b, name, want.element)
        _check_dims(b, name, dims)
        value = _wide(b, numbers(b, name))
    else:
        _check_type(b, name, TensorProto.UINT8)
        each = -(-dims[-1] * kind.bits // 8)
        _check_dims(b, name, (*dims[:-1], each))
        value = _codes(b, name, (*dims[:-1], each), kind.bits, dims[-1])
    return table.parameters(value, index, dims, count)


# ---- QMoE


_LEAST_SHARE = 1e-8
"""Of an expert in a row's result; ONNX Runtime leaves out what is not more."""

_QMOE = (
    "accuracy_level activation_alpha activation_beta activation_type block_size expert_weight_bits "
    "fc1_expert_weight_bits fc2_expert_weight_bits fc3_expert_weight_bits k normalize_routing_weights quant_type "
    "swiglu_fusion swiglu_limit swiglu_limit_after_activation use_sparse_mixer weights_prepacked"
)
_ONLY = {"quant_type": "int", "swiglu_limit_after_activation": 0, "use_sparse_mixer": 0}
"""Attributes of QMoE of which one value is known."""
_ACTIVATIONS = ("relu", "gelu", "silu", "swiglu", "identity")


@rewrites("QMoE", domain=DOMAIN, operands=15, attributes=_QMOE)
def _experts(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """Every row of x through the experts that its router's numbers choose.

    All experts compute all rows, and what was not chosen counts for nothing: which rows an expert gets is known at a
    run only.
    """
    _check_whole(b)
    x, router = node.input[:2]
    dims, type_, routed = b.dims(x), b.type(x), b.dims(router)
    if not _known(b, *range(15)) or dims is None or type_ is None or routed is None:
        return None
    _check_experts(b, dims, routed)
    experts, rows, hidden = routed[1], routed[0], dims[-1]
    if not rows:
        return [b.op("Cast", b.constant(np.zeros(dims), np.float32), to=type_.element)]
    flat = _reshaped(b, _wide(b, x), 1, rows, hidden)
    fused = _is_fused(b)
    inner = (b.dims(b.input(2)) or (0, 0))[1] // (2 if fused else 1)
    y = _layer(b, 1, flat, (experts, inner * (2 if fused else 1), hidden), type_.element)
    gate, up = y, ""
    if fused == 1:
        gate, up = (_every_second(b, y, (experts, rows, inner), which) for which in (0, 1))
    elif fused:
        gate, up = b.ops("Split", [y], 2, axis=2, num_outputs=2)
    elif b.given.get("activation_type", "relu") == "swiglu":
        up = _layer(b, 3, flat, (experts, inner, hidden), type_.element)
    y = _layer(b, 2, _activated(b, gate, up), (experts, hidden, inner), type_.element)
    share = _reshaped(b, b.op("Transpose", _shares(b, router, rows, experts), perm=[1, 0]), experts, rows, 1)
    counts = b.op("Less", b.constant(_LEAST_SHARE, np.float32), share)
    y = b.op("Where", counts, b.op("Mul", y, share), b.constant(0, np.float32))
    total = b.op("ReduceSum", y, b.constant([0]), keepdims=0)
    return [b.op("Cast", _reshaped(b, total, *dims), to=type_.element)]


def _check_experts(b: Builder, dims: Dims, routed: Dims) -> None:
    for name, value in _ONLY.items():
        if b.given.get(name, value) != value:
            raise b.unsupported("attribute", f"{name} is {b.given[name]!r}; {value!r} is known")
    if b.given.get("weights_prepacked", -1) not in (-1, 0):
        raise b.unsupported("attribute", f"weights_prepacked is {b.given['weights_prepacked']}, a layout of CUDA's")
    if b.given.get("activation_type", "relu") not in _ACTIVATIONS:
        reason = f"activation_type is {b.given['activation_type']!r}; {', '.join(_ACTIVATIONS)} are known"
        raise b.unsupported("attribute", reason)
    _check_type(b, b.input(0), *_FLOATS)
    if len(dims) not in (2, 3) or len(routed) != 2 or routed[0] != math.prod(dims[:-1]):
        raise b.fail("experts", f"{b.input(1)} {list(routed)} has not a row for each of {b.input(0)} {list(dims)}")
    if not 1 <= b.given.get("k", 1) <= routed[1]:
        raise b.fail("attribute", f"k is {b.given.get('k', 1)}; there are {routed[1]} experts")
    if b.given.get("block_size", 0):
        _check_block(b, b.given["block_size"])
    if b.input(8) and (_is_fused(b) or b.given.get("activation_type", "relu") != "swiglu"):
        raise b.unsupported("experts", "fc3_experts_weights without swiglu of two products (swiglu_fusion=0)")


def _is_fused(b: Builder) -> int:
    """How the two products of swiglu lie in one; 0 if they do not."""
    fusion = b.given.get("swiglu_fusion", 0)
    if fusion not in (0, 1, 2):
        raise b.fail("attribute", f"swiglu_fusion is {fusion}; it may be 0, 1 or 2")
    is_gated = b.given.get("activation_type", "relu") == "swiglu"
    if is_gated and not fusion and not b.input(8):
        raise b.fail("experts", "swiglu with swiglu_fusion=0 needs fc3_experts_weights, which is not given")
    return fusion if is_gated else 0


def _layer(b: Builder, number: int, x: str, dims: Dims, element: int) -> str:
    """``x [1 or experts, rows, K] @ weights.T + bias`` of all experts, ``dims`` those of the weights."""
    experts, n, k = dims
    first = {1: 2, 2: 5, 3: 8}[number]
    weights, scales, bias, zero = (b.input(index) for index in (first, first + 1, first + 2, 10 + number))
    attribute = f"fc{number}_expert_weight_bits"
    bits = b.given.get(attribute, b.given.get("expert_weight_bits", 4))
    _check_bits(b, attribute if attribute in b.given else "expert_weight_bits", bits)
    if not scales:
        raise b.fail("experts", f"fc{number}_scales are not given")
    size = b.given.get("block_size", 0)
    if k * bits % 8 or (size and k % size):
        raise b.fail("block-quantisation", f"rows of {k} weights of {bits} bits are no whole bytes or blocks of {size}")
    _check_dims(b, weights, (experts, n, k * bits // 8))
    _check_type(b, weights, TensorProto.UINT8)
    blocks = k // size if size else 1
    _check_dims(b, scales, *([(experts, n, blocks)] if size else [(experts, n), (experts, n, 1)]))
    _check_type(b, scales, element)
    codes = _reshaped(b, _codes(b, weights, (experts, n, k * bits // 8), bits, k), experts, n, blocks, k // blocks)
    point = b.constant(1 << (bits - 1), np.float32)
    if zero and size and blocks > 1:
        point = _reshaped(b, _zero(b, zero, (experts, n), blocks, bits, TensorProto.UINT8), experts, n, blocks, 1)
    elif zero and size:
        raise b.unsupported("block-quantisation", f"{zero}: zero points of rows of one block have no settled layout")
    elif zero:
        point = _reshaped(b, _zero(b, zero, (experts,), n, bits, TensorProto.UINT8), experts, n, 1, 1)
    scale = _reshaped(b, _wide(b, scales), experts, n, blocks, 1)
    plain = _reshaped(b, b.op("Mul", b.op("Sub", codes, point), scale), experts, n, k)
    y = b.op("MatMul", x, b.op("Transpose", plain, perm=[0, 2, 1]))
    if not bias:
        return y
    _check_dims(b, bias, (experts, n))
    return b.op("Add", y, _reshaped(b, _wide(b, bias), experts, 1, n))


def _every_second(b: Builder, x: str, dims: Dims, which: int) -> str:
    pairs = _reshaped(b, x, *dims, 2)
    return b.op("Gather", pairs, b.constant(which), axis=3)


def _activated(b: Builder, gate: str, up: str) -> str:
    kind = b.given.get("activation_type", "relu")
    if kind == "relu":
        return b.op("Relu", gate)
    if kind == "gelu":
        return b.op("Gelu", gate, approximate="tanh")
    if kind == "silu":
        return b.op("Mul", gate, b.op("Sigmoid", gate))
    if kind == "identity":
        return gate
    limit = b.given.get("swiglu_limit", math.inf)
    if limit < math.inf:
        most, least = b.constant(limit, np.float32), b.constant(-limit, np.float32)
        gate, up = b.op("Min", gate, most), b.op("Max", b.op("Min", up, most), least)
    alpha, beta = b.given.get("activation_alpha", 1.0), b.given.get("activation_beta", 0.0)
    gate = b.op("Mul", gate, b.op("Sigmoid", b.op("Mul", gate, b.constant(alpha, np.float32))))
    return b.op("Mul", gate, b.op("Add", up, b.constant(beta, np.float32)))


def _shares(b: Builder, router: str, rows: int, experts: int) -> str:
    """``[rows, experts]``, FLOAT: how much of an expert's result is in a row's."""
    k = b.given.get("k", 1)
    backwards = b.constant(np.arange(experts)[::-1])  # of equal numbers, the last counts
    turned = b.op("Gather", _wide(b, router), backwards, axis=1)
    numbers_, places = b.ops("TopK", [turned, b.constant([k])], 2, axis=1)
    places = b.op("Sub", b.constant(experts - 1), places)
    shares = b.op("Softmax", numbers_, axis=1)
    if b.input(14):
        _check_dims(b, b.input(14), (rows, experts))
        shares = b.op("GatherElements", _wide(b, b.input(14)), places, axis=1)
        if b.given.get("normalize_routing_weights", 0):
            total = b.op("ReduceSum", shares, b.constant([1]), keepdims=1)
            none = b.op("Equal", total, b.constant(0, np.float32))
            shares = b.op("Where", none, b.constant(0, np.float32), b.op("Div", shares, total))
    chosen = b.op("Equal", _reshaped(b, places, rows, k, 1), b.constant(np.arange(experts)))
    each = b.op("Where", chosen, _reshaped(b, shares, rows, k, 1), b.constant(0, np.float32))
    return b.op("ReduceSum", each, b.constant([1]), keepdims=0)
