"""Emission of pointwise operations: each mode as torch operations in the compute type."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from graph_api import DataType, PointwiseMode, TensorAttr
from graph_api.layout import broadcast_dims
from graph_api.ops.pointwise import PointwiseAttributes, PointwiseNode
from iree_bridge.emit.emitter import Emitter, Value, rule
from iree_bridge.emit.exponentials import sigmoid
from iree_bridge.emit.softmax import of_quotient, softmax

__all__ = ["MODE_RULES", "Elementwise", "pointwise"]


@rule("pointwise")
def pointwise(e: Emitter, node: PointwiseNode) -> None:
    """Inputs are converted to the compute type, the mode's rule makes the value, which is broadcast to the output."""
    mode = node.attributes.mode
    out = node.outputs["out_0"]
    if mode is PointwiseMode.IDENTITY:
        value = e.read(node.inputs["in_0"])
        e.write(node, "out_0", e.expand(e.cast(value, _identity_type(value.dtype, out.data_type)), out.dims))
        return
    if (x := of_quotient(e.graph, node, e.target)) is not None:
        e.write(node, "out_0", softmax(e, e.read(x)))
        return
    operands = [_operand(e, node, tensor) for tensor in node.inputs.values()]
    if _is_neutral(node):
        value = operands[0]
    else:
        value = MODE_RULES[mode](Elementwise(e, node.compute), node.attributes, *operands)
    e.write(node, "out_0", e.expand(value, out.dims))


_PLAIN = frozenset(PointwiseMode[name] for name in ("ADD", "SUB", "MUL", "DIV", "MAX", "MIN"))


def _operand(e: Emitter, node: PointwiseNode, tensor: TensorAttr) -> Value:
    """An operand in the compute type. The optimiser does not see numbers that functions of DOUBLE are taken of.

    What it makes of functions of them while it compiles is wrong (the tanh of -3 was 0), or ends it with SIGSEGV.
    """
    value = e.read(tensor, node.compute)
    hidden = tensor.value is not None and node.compute is DataType.DOUBLE and node.attributes.mode not in _PLAIN
    return e.barrier(value) if hidden else value


def _is_neutral(node: PointwiseNode) -> bool:
    """True for x - 0, x * 1, x / 1 and integer x + 0: the compiler would fold them when it is too late to notice.

    (``Emitter`` gives results that are inputs as they stand a kernel of their own.)
    """
    second = node.inputs.get("in_1")
    if second is None or second.value is None:
        return False
    mode = node.attributes.mode
    zero = mode is PointwiseMode.SUB or (mode is PointwiseMode.ADD and not node.compute.is_float)
    one = mode in (PointwiseMode.MUL, PointwiseMode.DIV)
    return (zero and second.value == 0) or (one and second.value == 1)


def _identity_type(source: DataType, target: DataType) -> DataType:
    """Floats stay in the wider type until they are stored; everything else is converted at once."""
    keep = source.is_float and target.is_float and source.eps < target.eps
    return source if keep else target


class Elementwise:
    """Arithmetic on values of one floating-point or integer type, with broadcasting."""

    def __init__(self, e: Emitter, dtype: DataType) -> None:
        self.e = e
        self.dtype = dtype

    def call(self, name: str, *operands: Value | float | bool | None, dtype: DataType | None = None) -> Value:
        """A torch operation on broadcast tensors; the result has ``dtype``, default the common type."""
        shapes = [operand.dims for operand in operands if isinstance(operand, Value)]
        dims = broadcast_dims(shapes)
        assert dims is not None
        return self.e.op(f"aten.{name}", dims, dtype or self.dtype, *operands)

    def number(self, value: float) -> float | int:
        """A Python number as a scalar operand of the common type."""
        return float(value) if self.dtype.is_float else int(value)

    def add(self, x: Value, y: Value) -> Value:
        return self.call("add.Tensor", x, y, 1)

    def sub(self, x: Value, y: Value) -> Value:
        return self.call("sub.Tensor", x, y, 1)

    def mul(self, x: Value, y: Value) -> Value:
        return self.call("mul.Tensor", x, y)

    def scale(self, x: Value, factor: float) -> Value:
        return x if factor == 1 else self.call("mul.Scalar", x, self.number(factor))

    def shift(self, x: Value, amount: float) -> Value:
        return x if amount == 0 else self.call("add.Scalar", x, self.number(amount), 1)

    def div(self, x: Value, y: Value) -> Value:
        if self.dtype.is_float:
            return self.call("div.Tensor", x, y)
        return self.e.op(
            "aten.div.Tensor_mode", broadcast_dims([x.dims, y.dims]) or (), self.dtype, x, y, self.e.string("trunc")
        )

    def unary(self, name: str, x: Value) -> Value:
        return self.call(name, x)

    def tanh(self, x: Value) -> Value:
        """tanh; of f64 as -u/(u + 2), u = expm1(-2|x|), with the sign of x: the CPU target has no tanh of f64."""
        if self.dtype is not DataType.DOUBLE:
            return self.unary("tanh", x)
        u = self.expm1(self.scale(self.unary("abs", x), -2.0))
        return self.mul(self.unary("sign", x), self.div(self.unary("neg", u), self.shift(u, 2.0)))

    def erf(self, x: Value) -> Value:
        """erf; for AMD of |x|, with the sign of x.

        Its code takes the sign bit of x itself, at which the compiler ends where x is converted from another type and
        the result is of, or becomes, a third one: HALF to BFLOAT16, DOUBLE to FLOAT.
        """
        if self.e.target.backend != "rocm":
            return self.unary("erf", x)
        return self.mul(self.unary("sign", x), self.unary("erf", self.unary("abs", x)))

    def expm1(self, x: Value) -> Value:
        """exp(x) - 1 of what is at most 0; of f64 by x / log(exp(x)): for the CPU it is a difference, which cancels."""
        if self.dtype is not DataType.DOUBLE or self.e.target.is_gpu:
            return self.unary("expm1", x)
        w = self.unary("exp", x)
        less = self.shift(w, -1.0)
        made = self.mul(less, self.div(x, self.unary("log", w)))
        made = self.select(self.compare("eq", w, 0.0), less, made)
        return self.select(self.compare("eq", w, 1.0), x, made)

    def compare(self, name: str, x: Value, y: Value | float) -> Value:
        """A boolean tensor."""
        kind = "Tensor" if isinstance(y, Value) else "Scalar"
        return self.call(f"{name}.{kind}", x, y if isinstance(y, Value) else self.number(y), dtype=DataType.BOOLEAN)

    def select(self, predicate: Value, x: Value, y: Value) -> Value:
        return self.call("where.self", predicate, x, y)

    def constant(self, value: float, like: Value) -> Value:
        return self.e.splat(value, (1,) * max(len(like.dims), 1), self.dtype)

    def truth(self, x: Value) -> Value:
        """A boolean tensor as 1 and 0 of the common type."""
        return self.e.cast(x, self.dtype)

    def sigmoid(self, x: Value) -> Value:
        if self.dtype is DataType.FLOAT and not self.e.target.is_gpu:
            return sigmoid(self.e, x)
        return self.unary("sigmoid", x)

    def extreme(self, name: str, x: Value, y: Value) -> Value:
        """The "maximum" or "minimum" of two values, NaN if one is NaN.

        The compiler's own (x > y ? x : y) gives y where x is NaN. Next to a known number one comparison stays enough.
        """
        if not self.dtype.is_float:
            return self.call(name, x, y)
        if x.number is not None:
            x, y = y, x
        if y.number is None or math.isnan(y.number):
            return self.select(self.compare("ne", x, x), x, self.call(name, x, y))
        return self.select(self.compare("lt" if name == "maximum" else "gt", x, y.number), y, x)


ModeRule = Callable[..., Value]


def _unary(name: str) -> ModeRule:
    def apply(t: Elementwise, a: PointwiseAttributes, x: Value) -> Value:
        return t.unary(name, x)

    return apply


def _rounding(name: str) -> ModeRule:
    def apply(t: Elementwise, a: PointwiseAttributes, x: Value) -> Value:
        return t.unary(name, x) if t.dtype.is_float else x

    return apply


def _of_one(function: Callable[[Elementwise, Value], Value]) -> ModeRule:
    def apply(t: Elementwise, a: PointwiseAttributes, x: Value) -> Value:
        return function(t, x)

    return apply


def _of_two(function: Callable[[Elementwise, Value, Value], Value]) -> ModeRule:
    def apply(t: Elementwise, a: PointwiseAttributes, x: Value, y: Value) -> Value:
        return function(t, x, y)

    return apply


def _extreme(name: str) -> ModeRule:
    def apply(t: Elementwise, a: PointwiseAttributes, x: Value, y: Value) -> Value:
        return t.extreme(name, x, y)

    return apply


def _compare(name: str) -> ModeRule:
    def apply(t: Elementwise, a: PointwiseAttributes, x: Value, y: Value) -> Value:
        return t.truth(t.compare(name, x, y))

    return apply


def _logic(name: str) -> ModeRule:
    def apply(t: Elementwise, a: PointwiseAttributes, *operands: Value) -> Value:
        return _logical(t, name, operands)

    return apply


def _add_square(t: Elementwise, a: PointwiseAttributes, x: Value, y: Value) -> Value:
    return t.add(x, t.mul(y, y))


def _binary_select(t: Elementwise, a: PointwiseAttributes, x: Value, y: Value, predicate: Value) -> Value:
    return t.select(t.e.cast(predicate, DataType.BOOLEAN), x, y)


def _logical(t: Elementwise, name: str, operands: Sequence[Value]) -> Value:
    booleans = [t.e.cast(operand, DataType.BOOLEAN) for operand in operands]
    return t.truth(t.call(name, *booleans, dtype=DataType.BOOLEAN))


def _relu_fwd(t: Elementwise, a: PointwiseAttributes, x: Value) -> Value:
    """x <= low: slope (x - low) + low; x >= high: high; else x. NaN stays NaN."""
    low, high, slope = a.clip
    if slope == 0 and low == 0 and t.dtype.is_float:
        y = t.unary("relu", x)
    elif slope == 0:
        y = t.extreme("maximum", x, t.constant(low, x))
    else:
        below = t.shift(t.scale(t.shift(x, -low), slope), low)
        y = t.select(t.compare("le", x, low), below, x)
    if math.isinf(high):
        return y
    return t.select(t.compare("ge", x, high), t.constant(high, x), y)


def _relu_bwd(t: Elementwise, a: PointwiseAttributes, dy: Value, x: Value) -> Value:
    zero = t.constant(0, x)
    if a.is_plain_relu:
        return t.select(t.compare("gt", x, 0), dy, zero)
    low, high, slope = a.clip
    below = t.scale(dy, slope) if slope else zero
    inside = t.select(t.compare("le", x, low), below, dy)
    return inside if math.isinf(high) else t.select(t.compare("gt", x, high), zero, inside)


def _sigmoid_bwd(t: Elementwise, a: PointwiseAttributes, dy: Value, x: Value) -> Value:
    s = t.sigmoid(x)
    return t.mul(dy, t.mul(s, t.sigmoid(t.unary("neg", x))))


def _tanh_bwd(t: Elementwise, a: PointwiseAttributes, dy: Value, x: Value) -> Value:
    y = t.tanh(x)
    return t.mul(dy, t.call("rsub.Scalar", t.mul(y, y), 1.0, 1))


def _cdf(t: Elementwise, x: Value) -> Value:
    return t.scale(t.shift(t.unary("erf", t.scale(x, 1 / math.sqrt(2))), 1.0), 0.5)


def _gelu_fwd(t: Elementwise, a: PointwiseAttributes, x: Value) -> Value:
    return t.mul(x, _cdf(t, x))


def _gelu_bwd(t: Elementwise, a: PointwiseAttributes, dy: Value, x: Value) -> Value:
    density = t.scale(t.unary("exp", t.scale(t.mul(x, x), -0.5)), 1 / math.sqrt(2 * math.pi))
    return t.mul(dy, t.add(_cdf(t, x), t.mul(x, density)))


_TANH_SCALE, _TANH_CUBE = math.sqrt(2 / math.pi), 0.044715


def _tanh_argument(t: Elementwise, x: Value) -> Value:
    """tanh(sqrt(2/pi) (x + 0.044715 x^3))."""
    cube = t.mul(t.mul(x, x), x)
    return t.tanh(t.scale(t.add(x, t.scale(cube, _TANH_CUBE)), _TANH_SCALE))


def _gelu_tanh_fwd(t: Elementwise, a: PointwiseAttributes, x: Value) -> Value:
    return t.mul(t.scale(x, 0.5), t.shift(_tanh_argument(t, x), 1.0))


def _gelu_tanh_bwd(t: Elementwise, a: PointwiseAttributes, dy: Value, x: Value) -> Value:
    u = _tanh_argument(t, x)
    inner = t.scale(t.shift(t.scale(t.mul(x, x), 3 * _TANH_CUBE), 1.0), _TANH_SCALE)
    sech = t.call("rsub.Scalar", t.mul(u, u), 1.0, 1)
    slope = t.add(t.scale(t.shift(u, 1.0), 0.5), t.mul(t.mul(t.scale(x, 0.5), sech), inner))
    return t.mul(dy, slope)


def _one(parameter: float | None) -> float:
    return 1.0 if parameter is None else parameter


def _swish_fwd(t: Elementwise, a: PointwiseAttributes, x: Value) -> Value:
    return t.mul(x, t.sigmoid(t.scale(x, _one(a.swish_beta))))


def _swish_bwd(t: Elementwise, a: PointwiseAttributes, dy: Value, x: Value) -> Value:
    u = t.scale(x, _one(a.swish_beta))
    s, other = t.sigmoid(u), t.sigmoid(t.unary("neg", u))
    return t.mul(dy, t.add(s, t.mul(u, t.mul(s, other))))


def _elu_fwd(t: Elementwise, a: PointwiseAttributes, x: Value) -> Value:
    below = t.scale(t.expm1(x), _one(a.elu_alpha))
    return t.select(t.compare("gt", x, 0.0), x, below)


def _elu_bwd(t: Elementwise, a: PointwiseAttributes, dy: Value, x: Value) -> Value:
    below = t.mul(dy, t.scale(t.unary("exp", x), _one(a.elu_alpha)))
    return t.select(t.compare("gt", x, 0.0), dy, below)


def _softplus_fwd(t: Elementwise, a: PointwiseAttributes, x: Value) -> Value:
    """max(u, 0) + log1p(exp(-|u|)) over beta, which neither overflows nor cancels."""
    beta = _one(a.softplus_beta)
    u = t.scale(x, beta)
    tail = t.unary("log1p", t.unary("exp", t.unary("neg", t.unary("abs", u))))
    return t.scale(t.add(t.unary("relu", u), tail), 1 / beta)


def _softplus_bwd(t: Elementwise, a: PointwiseAttributes, dy: Value, x: Value) -> Value:
    return t.mul(dy, t.sigmoid(t.scale(x, _one(a.softplus_beta))))


def _reciprocal(t: Elementwise, a: PointwiseAttributes, x: Value) -> Value:
    return t.unary("reciprocal", x) if t.dtype.is_float else t.div(t.constant(1, x), x)


def _gen_index(t: Elementwise, a: PointwiseAttributes, x: Value) -> Value:
    axis = a.axis or 0
    size = x.dims[axis]
    index = t.e.op("aten.arange.start_step", (size,), DataType.INT64, 0, size, 1, 4, None, None, None)
    shape = [1] * len(x.dims)
    shape[axis] = size
    return t.e.expand(t.e.cast(t.e.reshape(index, shape), t.dtype), x.dims)


M = PointwiseMode
MODE_RULES: dict[PointwiseMode, ModeRule] = {
    M.ABS: _unary("abs"),
    M.NEG: _unary("neg"),
    M.CEIL: _rounding("ceil"),
    M.FLOOR: _rounding("floor"),
    M.SQRT: _unary("sqrt"),
    M.RSQRT: _unary("rsqrt"),
    M.RECIPROCAL: _reciprocal,
    M.EXP: _unary("exp"),
    M.LOG: _unary("log"),
    M.SIN: _unary("sin"),
    M.TAN: _unary("tan"),
    M.ERF: _of_one(Elementwise.erf),
    M.ADD: _of_two(Elementwise.add),
    M.SUB: _of_two(Elementwise.sub),
    M.MUL: _of_two(Elementwise.mul),
    M.DIV: _of_two(Elementwise.div),
    M.ADD_SQUARE: _add_square,
    M.MAX: _extreme("maximum"),
    M.MIN: _extreme("minimum"),
    M.CMP_EQ: _compare("eq"),
    M.CMP_NEQ: _compare("ne"),
    M.CMP_GT: _compare("gt"),
    M.CMP_GE: _compare("ge"),
    M.CMP_LT: _compare("lt"),
    M.CMP_LE: _compare("le"),
    M.LOGICAL_AND: _logic("logical_and"),
    M.LOGICAL_OR: _logic("logical_or"),
    M.LOGICAL_NOT: _logic("logical_not"),
    M.BINARY_SELECT: _binary_select,
    M.GEN_INDEX: _gen_index,
    M.RELU_FWD: _relu_fwd,
    M.RELU_BWD: _relu_bwd,
    M.SIGMOID_FWD: _of_one(Elementwise.sigmoid),
    M.SIGMOID_BWD: _sigmoid_bwd,
    M.TANH_FWD: _of_one(Elementwise.tanh),
    M.TANH_BWD: _tanh_bwd,
    M.GELU_FWD: _gelu_fwd,
    M.GELU_BWD: _gelu_bwd,
    M.GELU_APPROX_TANH_FWD: _gelu_tanh_fwd,
    M.GELU_APPROX_TANH_BWD: _gelu_tanh_bwd,
    M.SWISH_FWD: _swish_fwd,
    M.SWISH_BWD: _swish_bwd,
    M.ELU_FWD: _elu_fwd,
    M.ELU_BWD: _elu_bwd,
    M.SOFTPLUS_FWD: _softplus_fwd,
    M.SOFTPLUS_BWD: _softplus_bwd,
}
"""The rule of every mode but IDENTITY, on operands of the compute type."""
