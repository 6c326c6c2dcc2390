"""Elementwise operations with a hipDNN mode of their own, arithmetic with scalars, comparisons, logic, casts."""

from __future__ import annotations

import math
from typing import Final

from hipdnn_backend.offload.to_wire.builder import Builder
from hipdnn_backend.offload.to_wire.operation import Op
from hipdnn_backend.offload.to_wire.registry import register_rule, rule
from hipdnn_backend.offload.to_wire.types import FLOATS, compute_type
from hipdnn_backend.offload.to_wire.values import Splat, Value
from hipdnn_backend.wire import DataType, PointwiseMode

__all__ = ["cast", "operand"]

M = PointwiseMode

_UNARY: Final = {
    "aten.abs": M.ABS,
    "aten.ceil": M.CEIL,
    "aten.erf": M.ERF,
    "aten.exp": M.EXP,
    "aten.floor": M.FLOOR,
    "aten.log": M.LOG,
    "aten.logical_not": M.LOGICAL_NOT,
    "aten.neg": M.NEG,
    "aten.reciprocal": M.RECIPROCAL,
    "aten.relu": M.RELU_FWD,
    "aten.rsqrt": M.RSQRT,
    "aten.sigmoid": M.SIGMOID_FWD,
    "aten.silu": M.SWISH_FWD,
    "aten.sin": M.SIN,
    "aten.sqrt": M.SQRT,
    "aten.tan": M.TAN,
    "aten.tanh": M.TANH_FWD,
}
_BINARY: Final = {
    "aten.maximum": M.MAX_OP,
    "aten.minimum": M.MIN_OP,
    "aten.max.other": M.MAX_OP,
    "aten.min.other": M.MIN_OP,
    "aten.eq.Tensor": M.CMP_EQ,
    "aten.ne.Tensor": M.CMP_NEQ,
    "aten.gt.Tensor": M.CMP_GT,
    "aten.ge.Tensor": M.CMP_GE,
    "aten.lt.Tensor": M.CMP_LT,
    "aten.le.Tensor": M.CMP_LE,
    "aten.eq.Scalar": M.CMP_EQ,
    "aten.ne.Scalar": M.CMP_NEQ,
    "aten.gt.Scalar": M.CMP_GT,
    "aten.ge.Scalar": M.CMP_GE,
    "aten.lt.Scalar": M.CMP_LT,
    "aten.le.Scalar": M.CMP_LE,
    "aten.mul.Tensor": M.MUL,
    "aten.mul.Scalar": M.MUL,
    "aten.div.Tensor": M.DIV,
    "aten.div.Scalar": M.DIV,
    "aten.logical_and": M.LOGICAL_AND,
    "aten.logical_or": M.LOGICAL_OR,
}
_BOOLEAN: Final = {
    "aten.bitwise_and.Tensor": M.LOGICAL_AND,
    "aten.bitwise_or.Tensor": M.LOGICAL_OR,
    "aten.bitwise_xor.Tensor": M.CMP_NEQ,
    "aten.logical_xor": M.CMP_NEQ,
    "aten.__and__.Tensor": M.LOGICAL_AND,
    "aten.__or__.Tensor": M.LOGICAL_OR,
}
_GREATEST_POWER: Final = 64
_ARITHMETIC: Final = (M.MUL, M.DIV, M.MAX_OP, M.MIN_OP)


def operand(b: Builder, op: Op, index: int) -> Value | float:
    """A tensor, or the number that a scalar operand is."""
    if str(op.operands[index].type).startswith("!torch.vtensor"):
        return b.value(op, index)
    return op.number(index)


def cast(b: Builder, op: Op, value: Value, dtype: DataType, suffix: str = "") -> Value:
    """``value`` in another data type; to BOOLEAN asks whether it is not 0."""
    if value.dtype == dtype:
        return value
    if isinstance(value, Splat):
        number = bool(value.value) if dtype is DataType.BOOLEAN else value.value
        if dtype not in FLOATS and not math.isfinite(number):
            raise op.refuse(f"{number} is no {dtype.name}")
        return Splat(number if dtype in FLOATS else int(number), value.dims, dtype)
    if dtype is DataType.BOOLEAN:
        return b.pointwise(op, M.CMP_NEQ, [value, 0], dtype, suffix=suffix)
    return b.pointwise(op, M.IDENTITY, [value], dtype, suffix=suffix)


def _unary(mode: PointwiseMode) -> None:
    def apply(b: Builder, op: Op) -> Value:
        kind = op.result()
        return b.pointwise(op, mode, [b.value(op, 0)], kind.dtype, dims=kind.dims)

    for name, known in _UNARY.items():
        if known is mode:
            register_rule(name, apply)


def _binary(name: str, mode: PointwiseMode, *, boolean: bool = False) -> None:
    def apply(b: Builder, op: Op) -> Value:
        kind = op.result()
        left, right = operand(b, op, 0), operand(b, op, 1)
        types = {value.dtype for value in (left, right) if not isinstance(value, int | float)}
        if mode in _ARITHMETIC and kind.dtype is DataType.BOOLEAN:
            raise op.refuse(f"{mode.name} of booleans has no hipDNN mode")
        if boolean and types != {DataType.BOOLEAN}:
            raise op.refuse(f"of {', '.join(sorted(dtype.name for dtype in types))} it has no hipDNN mode")
        return b.pointwise(op, mode, [left, right], kind.dtype, dims=kind.dims)

    register_rule(name, apply)


for _mode in dict.fromkeys(_UNARY.values()):
    _unary(_mode)
for _name, _mode in _BINARY.items():
    _binary(_name, _mode)
for _name, _mode in _BOOLEAN.items():
    _binary(_name, _mode, boolean=True)


@rule("aten.add.Tensor", "aten.add.Scalar", "aten.sub.Tensor", "aten.sub.Scalar", "aten.rsub.Scalar")
def add(b: Builder, op: Op) -> Value:
    """left ± alpha * right; rsub has the two swapped."""
    kind = op.result()
    if kind.dtype is DataType.BOOLEAN:
        raise op.refuse("sums of booleans have no hipDNN mode")
    left, right = operand(b, op, 0), operand(b, op, 1)
    alpha = op.number(2, 1)
    if "rsub" in op.name:
        left, right = (left if alpha == 1 else _scaled(b, op, left, alpha)), right
        return b.pointwise(op, M.SUB, [right, left], kind.dtype, dims=kind.dims)
    mode = M.SUB if "sub" in op.name else M.ADD
    right = right if alpha == 1 else _scaled(b, op, right, alpha)
    return b.pointwise(op, mode, [left, right], kind.dtype, dims=kind.dims)


def _scaled(b: Builder, op: Op, value: Value | float, factor: float) -> Value | float:
    if isinstance(value, int | float):
        return value * factor
    dtype = value.dtype
    if dtype not in FLOATS and isinstance(factor, float):
        dtype = DataType.FLOAT
    return b.pointwise(op, M.MUL, [value, factor], dtype, suffix="::alpha")


@rule("aten.div.Tensor_mode", "aten.div.Scalar_mode")
def div_mode(b: Builder, op: Op) -> Value:
    """Floor division of floats; division of integers towards zero."""
    kind = op.result()
    rounding = None if op.is_none(2) else op.text(2)
    floats = kind.dtype in FLOATS
    if rounding not in (None, "floor", "trunc") or ((rounding == "trunc") == floats and rounding is not None):
        raise op.refuse(f"division of {kind.dtype.name} with rounding_mode {rounding!r} has no hipDNN mode")
    made = b.pointwise(op, M.DIV, [operand(b, op, 0), operand(b, op, 1)], kind.dtype, dims=kind.dims)
    return b.pointwise(op, M.FLOOR, [made], kind.dtype, suffix="::floor") if rounding == "floor" else made


@rule("aten.square")
def square(b: Builder, op: Op) -> Value:
    """x * x."""
    x = b.value(op, 0)
    return b.pointwise(op, M.MUL, [x, x], op.result().dtype)


@rule("aten.pow.Tensor_Scalar", "aten.pow.Tensor_Tensor")
def power(b: Builder, op: Op) -> Value:
    """Whole exponents up to `_GREATEST_POWER` by repeated squaring; half, its negative."""
    kind, x, power_of = op.result(), b.value(op, 0), operand(b, op, 1)
    exponent = power_of.value if isinstance(power_of, Splat) else power_of
    if not isinstance(exponent, int | float):
        raise op.refuse("the exponents are a tensor, for which hipDNN has no mode")
    x = b.expanded(op, x, kind.dims)
    if exponent in (0.5, -0.5) and kind.dtype in FLOATS:
        return _root(b, op, x, exponent, kind.dtype)
    by_mode = {-1.0: M.RECIPROCAL, 1.0: M.IDENTITY}
    if exponent in by_mode:
        return b.pointwise(op, by_mode[exponent], [x], kind.dtype)
    floats = kind.dtype in FLOATS
    if not float(exponent).is_integer() or not (2 <= abs(exponent) <= _GREATEST_POWER) or (exponent < 0 and not floats):
        which = f"whole ones up to {_GREATEST_POWER}, 0.5 and of floats their negatives have"
        raise op.refuse(f"the exponent {exponent} of {kind.dtype.name} has no hipDNN mode; {which}")
    made = _whole_power(b, op, x, int(abs(exponent)), kind.dtype)
    return made if exponent > 0 else b.pointwise(op, M.RECIPROCAL, [made], kind.dtype, suffix="::reciprocal")


def _root(b: Builder, op: Op, x: Value, exponent: float, dtype: DataType) -> Value:
    """As IEEE 754 has powers: of -0.0 no sign, of -infinity what infinity gives. Square roots have -0.0 and NaN."""
    mode, of_infinity = (M.SQRT, math.inf) if exponent > 0 else (M.RSQRT, 0.0)
    root = b.pointwise(op, M.ABS, [b.pointwise(op, mode, [x], dtype, suffix="::root")], dtype, suffix="::size")
    endless = b.pointwise(op, M.CMP_EQ, [x, -math.inf], DataType.BOOLEAN, suffix="::endless")
    return b.pointwise(op, M.BINARY_SELECT, [of_infinity, root, endless], dtype)


def _whole_power(b: Builder, op: Op, x: Value, exponent: int, dtype: DataType) -> Value:
    """The product of the squares of squares that make up the exponent."""
    made, square = None, x
    while True:
        if exponent & 1:
            made = square if made is None else b.pointwise(op, M.MUL, [made, square], dtype, suffix="::power")
        exponent >>= 1
        if not exponent:
            assert made is not None
            return made
        square = b.pointwise(op, M.MUL, [square, square], dtype, suffix="::square")


@rule("aten.log2", "aten.log10")
def logarithm(b: Builder, op: Op) -> Value:
    """The natural logarithm by that of the base."""
    kind = op.result()
    made = b.pointwise(op, M.LOG, [b.value(op, 0)], kind.dtype, suffix="::log")
    return b.pointwise(op, M.MUL, [made, 1.0 / math.log(2 if op.name.endswith("2") else 10)], kind.dtype)


@rule("aten.sign", "aten.sgn")
def sign(b: Builder, op: Op) -> Value:
    """(x > 0) - (x < 0), NaN of NaN."""
    kind, x = op.result(), b.value(op, 0)
    above = b.pointwise(op, M.CMP_GT, [x, 0], kind.dtype, suffix="::above")
    below = b.pointwise(op, M.CMP_LT, [x, 0], kind.dtype, suffix="::below")
    made = b.pointwise(op, M.SUB, [above, below], kind.dtype)
    if kind.dtype not in FLOATS:
        return made
    is_nan = b.pointwise(op, M.CMP_NEQ, [x, x], DataType.BOOLEAN, suffix="::nan")
    return b.pointwise(op, M.BINARY_SELECT, [x, made, is_nan], kind.dtype, suffix="::select")


@rule("aten.isnan")
def isnan(b: Builder, op: Op) -> Value:
    """x differs from itself."""
    x = b.value(op, 0)
    return b.pointwise(op, M.CMP_NEQ, [x, x], op.result().dtype)


@rule("aten.bitwise_not")
def bitwise_not(b: Builder, op: Op) -> Value:
    """Of booleans."""
    kind = op.result()
    if kind.dtype is not DataType.BOOLEAN:
        raise op.refuse(f"of {kind.dtype.name} it has no hipDNN mode")
    return b.pointwise(op, M.LOGICAL_NOT, [b.value(op, 0)], kind.dtype)


@rule("aten.where.self", "aten.where.Scalar", "aten.where.ScalarSelf", "aten.where.ScalarOther")
def where(b: Builder, op: Op) -> Value:
    """BINARY_SELECT takes (value if true, value if false, predicate)."""
    kind = op.result()
    chosen = [operand(b, op, 1), operand(b, op, 2), b.value(op, 0)]
    tensors = [value.dtype for value in chosen[:2] if not isinstance(value, int | float)]
    return b.pointwise(
        op, M.BINARY_SELECT, chosen, kind.dtype, dims=kind.dims, compute=compute_type(*tensors, kind.dtype)
    )


@rule("aten.masked_fill.Scalar", "aten.masked_fill.Tensor")
def masked_fill(b: Builder, op: Op) -> Value:
    """The number where the mask is set."""
    kind = op.result()
    chosen = [operand(b, op, 2), b.value(op, 0), b.value(op, 1)]
    return b.pointwise(op, M.BINARY_SELECT, chosen, kind.dtype, dims=kind.dims, compute=compute_type(kind.dtype))


@rule(
    "aten.to.dtype",
    "aten.to.dtype_layout",
    "aten.type_as",
    "prims.convert_element_type",
    "aten._to_copy",
    "aten.to.other",
)
def to_dtype(b: Builder, op: Op) -> Value:
    """IDENTITY with another data type."""
    return cast(b, op, b.value(op, 0), op.result().dtype)


@rule(
    "aten.clone", "aten.contiguous", "aten.detach", "aten.alias", "aten.alias_copy", "aten.detach_copy",
    "aten.lift_fresh_copy", "tensor_static_info_cast", "aten.copy",
)  # fmt: skip
def same(b: Builder, op: Op) -> Value:
    """The operand itself."""
    if op.name == "torch.aten.copy":
        return cast(b, op, b.expanded(op, b.value(op, 1), op.result().dims), op.result().dtype)
    return b.value(op, 0)


@rule("aten.dropout")
def dropout(b: Builder, op: Op) -> Value:
    """Nothing, in inference."""
    if op.flag(2) and op.number(1) != 0:
        raise op.refuse("it is random in training")
    return b.value(op, 0)


@rule("aten.addcmul", "aten.addcdiv")
def addcmul(b: Builder, op: Op) -> Value:
    """x + value * (first ∘ second)."""
    kind = op.result()
    mode = M.MUL if op.name.endswith("mul") else M.DIV
    made = b.pointwise(op, mode, [b.value(op, 1), b.value(op, 2)], kind.dtype, suffix="::product")
    scaled = made if op.number(3) == 1 else _scaled(b, op, made, op.number(3))
    return b.pointwise(op, M.ADD, [b.value(op, 0), scaled], kind.dtype, dims=kind.dims)


@rule("aten.lerp.Scalar", "aten.lerp.Tensor")
def lerp(b: Builder, op: Op) -> Value:
    """x + weight * (end - x)."""
    kind, x = op.result(), b.value(op, 0)
    difference = b.pointwise(op, M.SUB, [b.value(op, 1), x], kind.dtype, suffix="::difference")
    part = b.pointwise(op, M.MUL, [difference, operand(b, op, 2)], kind.dtype, suffix="::part")
    return b.pointwise(op, M.ADD, [x, part], kind.dtype, dims=kind.dims)
