"""Operations of custom texts that the compiler lowers to something else than what PyTorch computes: put right.

NaN and infinity where it forgets them, unsigned integers that it takes for signed ones, powers of negative numbers,
hyperbolic functions that cancel or overflow, ``softshrink`` below 0; sines of large angles; small numbers as FLOAT16.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

from fusilli_ground.torch_scalars import settle_scalar
from fusilli_ground.torch_types import value_tensor_type
from graph_api import DataType
from iree_bridge.emit.index_bounds import aten, integer, operations
from iree_bridge.emit.mlir import ir
from iree_bridge.emit.small_floats import half_text

__all__ = ["builtin_type", "correct", "make_halves", "reduce_angles"]

_PASS_NAN: Final = {
    **dict.fromkeys(("maximum", "minimum", "max.other", "min.other"), 1),  # the second operand's stays as it is
    **dict.fromkeys(("clamp", "clamp_min", "clamp_max", "hardtanh", "relu6", "threshold", "hardshrink"), 1),
    "clamp_min.Tensor": 1,
    "clamp.Tensor": 3,
}
"""Operation → how many of its first operands, where one is NaN, make NaN of the result; the lowering forgets it."""


_FLOAT_CODES: Final = {"f16": 5, "f32": 6, "f64": 7, "bf16": 15}  # torch.dtype numbers
_POWERS: Final = ("pow.Tensor_Tensor", "pow.Tensor_Scalar", "pow.Scalar")
_SORTS: Final = {"topk": 2, "sort": 1, "sort.stable": 2, "argsort": 1}
"""Operation → which operand is the dim along which it sorts its first."""
_CASTS: Final = ("to.dtype", "to.dtype_layout", "_to_copy", "torch.prims.convert_element_type")


def correct(function: Any) -> None:
    """Make the operations of a function what PyTorch's documentation says of them."""
    for op in list(operations(function)):
        name = op.name.removeprefix("torch.aten.")
        if name in _PASS_NAN and _is_float(op.results[0].type):
            _pass_nan(op, list(op.operands)[: _PASS_NAN[name]])
        elif name == "softshrink":
            _soft_shrink(op)
        elif name == "scatter_reduce.two":
            _scatter_unsigned(op)
        elif name in _SORTS:
            _sort_by_keys(op, _SORTS[name])
        elif name in _POWERS and _element(op.results[0].type) in _FLOAT_CODES:
            _power(op)
        elif name == "fmod.Tensor" and _is_float(op.results[0].type):
            _remainder(op)
        elif (name in _ODD or name in _FORMULAS) and _element(op.results[0].type) in _FLOAT_CODES:
            _by_formula(op, name)
        elif name in _CASTS and (_element(op.operands[0].type), _element(op.results[0].type)) == ("f64", "f16"):
            op.operands[0] = _as(op, op.operands[0], "f32")  # as the emitter casts
        else:
            settle_scalar(op, ir)


def _pass_nan(op: Any, operands: list[Any]) -> None:
    type_ = op.results[0].type
    made = op.clone(ip=ir.InsertionPoint(op)).operation.results[0]
    for operand in operands:
        if _is_float(operand.type):
            is_nan = aten(op, "ne.Tensor", _truth(operand), operand, operand)
            made = aten(op, "where.self", type_, is_nan, operand, made)
    _replace(op, made)


def _soft_shrink(op: Any) -> None:
    """relu(x - bound) - relu(-x - bound)."""
    (x, bound), type_, one = op.operands, op.results[0].type, integer(op, 1)
    above = aten(op, "sub.Scalar", type_, x, bound, one)
    below = aten(op, "sub.Scalar", type_, aten(op, "neg", type_, x), bound, one)
    _replace(op, aten(op, "sub.Tensor", type_, *(aten(op, "relu", type_, part) for part in (above, below)), one))


def _scatter_unsigned(op: Any) -> None:
    """The greatest and least of unsigned integers, which the compiler compares as signed: moved by half their range."""
    type_ = op.results[0].type
    kind = value_tensor_type(str(type_))
    how = getattr(op.operands[4].owner, "operation", op.operands[4].owner)
    if kind is None or not kind.is_unsigned or ir.StringAttr(how.attributes["value"]).value not in ("amax", "amin"):
        return
    bits = kind.bits
    for index in (0, 3):
        signed = _with_element(op.operands[index].type, f"si{bits}")
        op.operands[index] = _moved(op, _reinterpreted(op, op.operands[index], signed), bits)
    made = aten(op, "scatter_reduce.two", op.operands[0].type, *op.operands)
    _replace(op, _reinterpreted(op, _moved(op, made, bits), type_))


def _sort_by_keys(op: Any, dim: int) -> None:
    """Floats and unsigned integers by signed integers of their order, in which NaN is the greatest number."""
    x = op.operands[0]
    keys = _keys(op, x)
    if keys is None:
        return
    copy = op.clone(ip=ir.InsertionPoint(op)).operation
    with ir.InsertionPoint(op), op.location:
        types = [_with_element(result.type, _element(keys.type)) for result in op.results[:-1]] + [op.results[-1].type]
        made = ir.Operation.create(op.name, results=types, operands=[keys, *list(copy.operands)[1:]])
    copy.erase()
    *values, positions = made.results
    for old in list(op.results)[: len(values)]:
        no = _boolean(op, False)
        old.replace_all_uses_with(aten(op, "gather", old.type, x, op.operands[dim], positions, no))
    op.results[len(values)].replace_all_uses_with(positions)
    op.erase()


def _keys(op: Any, x: Any) -> Any:
    kind = value_tensor_type(str(x.type))
    if kind is None or not (kind.is_unsigned or kind.element in _FLOAT_CODES):
        return None
    size = kind.bits
    if kind.is_unsigned:
        return _moved(op, _reinterpreted(op, x, _with_element(x.type, f"si{size}")), size)
    signed = _with_element(x.type, f"si{size}")
    bits = _reinterpreted(op, x, signed)
    truth, one, least = _truth(x), integer(op, 1), integer(op, -(2 ** (size - 1)))
    turned = aten(op, "rsub.Scalar", signed, bits, least, one)  # as if of numbers that have a sign and a magnitude
    keys = aten(op, "where.self", signed, aten(op, "lt.Scalar", truth, bits, integer(op, 0)), turned, bits)
    greatest = _literal(op, 2 ** (size - 1) - 1, f"si{size}")
    return aten(op, "where.self", signed, aten(op, "ne.Tensor", truth, x, x), greatest, keys)


def _power(op: Any) -> None:
    """Of the magnitude, which is what the compiler can do, with the sign and the exceptions that IEEE 754 has."""
    element = _element(op.results[0].type)
    wide = _wide(element)
    x, y = (_as(op, _tensor(op, operand), wide) for operand in op.operands)
    type_ = _with_element(op.results[0].type, wide)
    one, zero, nan = (_literal(op, number, wide) for number in (1.0, 0.0, math.nan))
    truth, half = _truth(op.results[0]), _float(op, 0.5)

    def of(name: str, *operands: Any) -> Any:
        return aten(op, f"logical_{name}", truth, *operands)

    size = aten(op, "abs", x.type, x)
    made = aten(op, "pow.Tensor_Tensor", type_, size, y)
    # With a known exponent the compiler has 1 for NaN, and the sign of odd ones for powers of 0.
    is_inverse = aten(op, "lt.Tensor", _truth(y), y, zero)
    of_zero = aten(op, "where.self", y.type, is_inverse, _literal(op, math.inf, wide), zero)
    made = aten(op, "where.self", type_, aten(op, "eq.Tensor", _truth(x), size, zero), of_zero, made)
    made = aten(op, "where.self", type_, aten(op, "ne.Tensor", _truth(y), y, y), y, made)
    is_one = of("or", aten(op, "eq.Tensor", _truth(x), size, one), aten(op, "eq.Tensor", _truth(y), y, zero))
    made = aten(op, "where.self", type_, is_one, one, made)
    whole, even = (
        aten(op, "eq.Tensor", _truth(y), aten(op, "floor", y.type, each), each)
        for each in (y, aten(op, "mul.Scalar", y.type, y, half))
    )
    odd = aten(op, "logical_and", _truth(y), whole, aten(op, "logical_not", _truth(y), even))
    is_negative = of("and", _has_minus(op, x), odd)
    made = aten(op, "where.self", type_, is_negative, aten(op, "neg", type_, made), made)
    finite = aten(op, "lt.Tensor", _truth(x), size, _literal(op, math.inf, wide))
    no_root = aten(op, "logical_and", _truth(x), aten(op, "lt.Tensor", _truth(x), x, zero), finite)
    wrong = of("and", no_root, aten(op, "logical_not", _truth(y), whole))
    _replace(op, _as(op, aten(op, "where.self", type_, wrong, nan, made), element))


def _remainder(op: Any) -> None:
    """x less a multiple of y, of the sign of x, where a rounded quotient is one too large; x beside an infinite y.

    In f64, where the multiple is exact: rounded, it can be x itself on processors without a fused multiply-add.
    """
    element = _element(op.results[0].type)
    x, y = (_as(op, operand, "f64") for operand in op.operands)
    type_, one, zero = _with_element(op.results[0].type, "f64"), integer(op, 1), _float(op, 0.0)
    made = aten(op, "fmod.Tensor", type_, x, y)
    step = aten(op, "abs", y.type, y)
    for beyond, side, back in (("lt", "gt", "add"), ("gt", "lt", "sub")):
        is_beyond = aten(op, f"{beyond}.Scalar", _truth(made), made, zero)
        is_over = aten(op, "logical_and", _truth(made), is_beyond, aten(op, f"{side}.Scalar", _truth(x), x, zero))
        made = aten(op, "where.self", type_, is_over, aten(op, f"{back}.Tensor", type_, made, step, one), made)
    infinity = _literal(op, float("inf"), "f64")
    endless = aten(op, "eq.Tensor", _truth(y), step, infinity)
    finite = aten(op, "lt.Tensor", _truth(x), aten(op, "abs", x.type, x), infinity)
    kept = aten(op, "logical_and", _truth(op.results[0]), endless, finite)
    _replace(op, _as(op, aten(op, "where.self", type_, kept, x, made), element))


_LARGE: Final = 1e9
"""From here on 1 beside a number's square is nothing, in f64 too."""


class _Formula:
    """Arithmetic on floats of one type, in operations before ``op``."""

    def __init__(self, op: Any, type_: Any) -> None:
        self.op = op
        self.type = type_

    def call(self, name: str, *operands: Any) -> Any:
        return aten(self.op, name, self.type, *operands)

    def add(self, x: Any, y: Any) -> Any:
        kind = "Scalar" if isinstance(y, float) else "Tensor"
        return self.call(f"add.{kind}", x, _float(self.op, y) if isinstance(y, float) else y, integer(self.op, 1))

    def mul(self, x: Any, y: Any) -> Any:
        kind = "Scalar" if isinstance(y, float) else "Tensor"
        return self.call(f"mul.{kind}", x, _float(self.op, y) if isinstance(y, float) else y)

    def div(self, x: Any, y: Any) -> Any:
        return self.call("div.Tensor", x, y)

    def log1p(self, x: Any) -> Any:
        """Of f64, of which the compiler has log(1 + x), that by x / ((1 + x) - 1)."""
        if _element(self.type) != "f64":
            return self.call("log1p", x)
        w = self.add(x, 1.0)
        made = self.mul(self.call("log", w), self.div(x, self.add(w, -1.0)))
        return self._unless(w, (1.0, x), (math.inf, w), otherwise=made)

    def expm1(self, x: Any) -> Any:
        """Of f64, of which the compiler has exp(x) - 1, that by x / log(exp(x))."""
        if _element(self.type) != "f64":
            return self.call("expm1", x)
        w = self.call("exp", x)
        made = self.mul(self.add(w, -1.0), self.div(x, self.call("log", w)))
        return self._unless(w, (0.0, self.add(w, -1.0)), (1.0, x), (math.inf, w), otherwise=made)

    def _unless(self, key: Any, *cases: tuple[float, Any], otherwise: Any) -> Any:
        """The value of the case that ``key`` is."""
        for number, value in cases:
            is_it = aten(self.op, "eq.Scalar", _truth(key), key, _float(self.op, number))
            otherwise = self.call("where.self", is_it, value, otherwise)
        return otherwise

    def from_on(self, bound: float, x: Any, far: Any, near: Any) -> Any:
        """``far`` where x is above the bound, else ``near``."""
        is_far = aten(self.op, "gt.Scalar", _truth(x), x, _float(self.op, bound))
        return self.call("where.self", is_far, far, near)


def _area_sine(f: _Formula, x: Any) -> Any:
    """log1p(x + x * x / (1 + sqrt(x * x + 1))), from 1e9 on log(2 x): the square overflows."""
    root = f.call("sqrt", f.add(f.mul(x, x), 1.0))
    near = f.add(x, f.mul(x, f.div(x, f.add(root, 1.0))))
    return f.from_on(_LARGE, x, _log_of_double(f, x), f.log1p(near))


def _area_cosine(f: _Formula, x: Any) -> Any:
    """log1p(t + sqrt(t) * sqrt(t + 2)) of t = x - 1, NaN of x below 1; from 1e9 on log(2 x)."""
    t = f.add(x, -1.0)
    near = f.add(t, f.mul(f.call("sqrt", t), f.call("sqrt", f.add(t, 2.0))))
    return f.from_on(_LARGE, x, _log_of_double(f, x), f.log1p(near))


def _log_of_double(f: _Formula, x: Any) -> Any:
    return f.add(f.call("log", x), math.log(2))


def _area_tangent(f: _Formula, x: Any) -> Any:
    """log1p(2 x / (1 - x)) / 2."""
    ratio = f.div(f.mul(x, 2.0), f.add(f.mul(x, -1.0), 1.0))
    return f.mul(f.log1p(ratio), 0.5)


def _hyperbolic_sine(f: _Formula, x: Any) -> Any:
    """(u + u / (u + 1)) / 2 of u = exp(x) - 1, which does not cancel; from 80 on exp(x / 2)^2 / 2: exp(x) overflows."""
    u = f.expm1(x)
    near = f.mul(f.add(u, f.div(u, f.add(u, 1.0))), 0.5)
    return f.from_on(80.0, x, _half_of_exp(f, x), near)


def _hyperbolic_cosine(f: _Formula, x: Any) -> Any:
    """(exp(x) + exp(-x)) / 2, from 80 on exp(x / 2)^2 / 2."""
    size = f.call("abs", x)
    near = f.mul(f.add(f.call("exp", size), f.call("exp", f.call("neg", size))), 0.5)
    return f.from_on(80.0, size, _half_of_exp(f, size), near)


def _half_of_exp(f: _Formula, x: Any) -> Any:
    root = f.call("exp", f.mul(x, 0.5))
    return f.mul(f.mul(root, 0.5), root)


_ODD: Final = {"asinh": _area_sine, "atanh": _area_tangent, "sinh": _hyperbolic_sine}
"""Operation → what it is of a magnitude; the sign of the operand is the result's."""
_FORMULAS: Final = {
    "acosh": _area_cosine,
    "cosh": _hyperbolic_cosine,
    "expm1": _Formula.expm1,
    "log1p": _Formula.log1p,
}


def _by_formula(op: Any, name: str) -> None:
    """In f32 at least: the compiler's forms cancel and overflow, most of all in f16."""
    element = _element(op.results[0].type)
    x = _as(op, op.operands[0], _wide(element))
    f = _Formula(op, x.type)
    if name in _ODD:
        made = _ODD[name](f, f.call("abs", x))
        made = f.call("where.self", _has_minus(op, x), f.call("neg", made), made)
    else:
        made = _FORMULAS[name](f, x)
    _replace(op, _as(op, made, element))


def _has_minus(op: Any, x: Any) -> Any:
    """Whether numbers are below 0 or -0.0."""
    truth, zero = _truth(x), _float(op, 0.0)
    below, turned = (aten(op, "lt.Scalar", truth, each, zero) for each in (x, aten(op, "reciprocal", x.type, x)))
    return aten(op, "logical_or", truth, below, turned)


def _tensor(op: Any, value: Any) -> Any:
    """A tensor, without dims of a scalar."""
    kind = {"!torch.float": "f64", "!torch.int": "si64"}.get(str(value.type))
    if kind is None:
        return value
    with ir.InsertionPoint(op), op.location:
        type_ = ir.Type.parse(f"!torch.vtensor<[],{kind}>")
        return ir.Operation.create("torch.prim.NumToTensor.Scalar", results=[type_], operands=[value]).result


def _wide(element: str) -> str:
    """The type in which floats are computed where halves would be too coarse."""
    return "f64" if element == "f64" else "f32"


def make_halves(function: Any, call: Callable[[str, Sequence[Any], Sequence[Any]], Sequence[Any]]) -> None:
    """Conversions to 16-bit floats in integer arithmetic, for processors that have no instruction for them.

    What the compiler links in there makes 0 of all results below 2**-14. ``call``: see ``Builder.call_function``.
    """
    for op in list(operations(function)):
        if op.name.removeprefix("torch.aten.") not in _CASTS or _element(op.results[0].type) != "f16":
            continue
        element = _element(op.operands[0].type)
        if element not in ("f32", "f64", "bf16"):
            continue
        x = _as(op, op.operands[0], _wide(element))
        kind = value_tensor_type(str(x.type))
        assert kind is not None, f"{x.type} is no tensor"
        dims = [dim for dim in kind.dims if dim is not None]  # all are known, or the text would have been declined
        source = DataType.DOUBLE if element == "f64" else DataType.FLOAT
        type_ = op.results[0].type
        with ir.InsertionPoint(op), op.location:
            source_type = builtin_type(x.type)
            plain = ir.Operation.create("torch_c.to_builtin_tensor", results=[source_type], operands=[x]).result
            (made,) = call(half_text(dims, source), [plain], [builtin_type(type_)])
            _replace(op, ir.Operation.create("torch_c.from_builtin_tensor", results=[type_], operands=[made]).result)


_ANGLES: Final = ("torch.aten.sin", "torch.aten.cos", "torch.aten.tan")
_PI: Final = (3.141590118408203, 2.5351801014039665e-06, 1.4887094960973246e-12)
"""Parts of pi, exact to 95 bits in all. Products of the first two, of 20 bits, with whole and half numbers up to
2 ** 32 are exact, so it does not matter whether a processor rounds a product before it is subtracted."""


def reduce_angles(function: Any) -> None:
    """Sines, cosines and tangents of f32 and less as those of angles within pi / 2, for CPU targets.

    The compiler's polynomials lose a digit with each digit that the angle gains: 1e4 has 4 right ones, 1e10 gives
    -6e21. Angles up to 1e10 are reduced exactly here, in f64; up to 1e15 an error grows to the size of the result,
    and beyond that the result is just within -1 and 1.
    """
    for op in list(operations(function)):
        if op.name in _ANGLES and _element(op.results[0].type) in ("f32", "f16", "bf16"):
            x = _as(op, _as(op, op.operands[0], "f32"), "f64")
            made = {"sin": _sine, "cos": _cosine}.get(op.name.rpartition(".")[2], _tangent)(op, x)
            _replace(op, _as(op, made, _element(op.results[0].type)))


def _sine(op: Any, x: Any) -> Any:
    turns = aten(op, "round", x.type, aten(op, "mul.Scalar", x.type, x, _float(op, 1 / math.pi)))
    return _turned(op, turns, _sine_of_rest(op, x, turns))


def _cosine(op: Any, x: Any) -> Any:
    """The sine of what is left from the middle between two zeros of the sine: exact near the cosine's own."""
    turns = aten(op, "floor", x.type, aten(op, "mul.Scalar", x.type, x, _float(op, 1 / math.pi)))
    middles = aten(op, "add.Scalar", x.type, turns, _float(op, 0.5), integer(op, 1))
    sine = _sine_of_rest(op, x, middles)
    return _turned(op, turns, aten(op, "neg", sine.type, sine))


def _tangent(op: Any, x: Any) -> Any:
    sine, cosine = _sine(op, x), _cosine(op, x)
    return aten(op, "div.Tensor", sine.type, sine, cosine)


def _sine_of_rest(op: Any, x: Any, times: Any) -> Any:
    """The sine of x less so many times pi, by its power series, whose next term is below 1e-9."""
    rest = x
    for part in _PI:
        taken = aten(op, "mul.Scalar", x.type, times, _float(op, part))
        rest = aten(op, "sub.Tensor", x.type, rest, taken, integer(op, 1))
    bounded = aten(op, "clamp", x.type, rest, _float(op, -1.6), _float(op, 1.6))
    kept = aten(op, "where.self", x.type, aten(op, "ne.Tensor", _truth(x), rest, rest), rest, bounded)
    square = aten(op, "mul.Tensor", x.type, kept, kept)
    sum_ = aten(op, "mul.Scalar", x.type, square, _float(op, 1 / math.factorial(13)))
    for power in (11, 9, 7, 5, 3):
        term = _float(op, (-1) ** (power // 2) / math.factorial(power))
        sum_ = aten(op, "mul.Tensor", x.type, square, aten(op, "add.Scalar", x.type, sum_, term, integer(op, 1)))
    return aten(op, "mul.Tensor", x.type, kept, aten(op, "add.Scalar", x.type, sum_, _float(op, 1.0), integer(op, 1)))


def _turned(op: Any, turns: Any, value: Any) -> Any:
    """``value`` with the other sign where ``turns`` is odd."""
    half = aten(op, "mul.Scalar", turns.type, turns, _float(op, 0.5))
    odd = aten(op, "ne.Tensor", _truth(turns), aten(op, "floor", turns.type, half), half)
    return aten(op, "where.self", value.type, odd, aten(op, "neg", value.type, value), value)


def _element(type_: Any) -> str:
    kind = value_tensor_type(str(type_))
    return "" if kind is None else kind.element


def _is_float(type_: Any) -> bool:
    kind = value_tensor_type(str(type_))
    return kind is not None and kind.is_static and kind.is_float


def _with_element(type_: Any, element: str) -> Any:
    kind = value_tensor_type(str(type_))
    assert kind is not None, f"{type_} is no tensor"
    return ir.Type.parse(kind.of(element))


def _truth(value: Any) -> Any:
    return _with_element(value.type, "i1")


def _as(op: Any, value: Any, element: str) -> Any:
    if _element(value.type) == element:
        return value
    operands = [value, integer(op, _FLOAT_CODES[element])]
    with ir.InsertionPoint(op), op.location:
        type_ = _with_element(value.type, element)
        return ir.Operation.create("torch.prims.convert_element_type", results=[type_], operands=operands).result


def _literal(op: Any, number: float, element: str) -> Any:
    """A constant tensor without dims."""
    plain = ir.RankedTensorType.get([], ir.Type.parse(element))
    kind = ir.FloatAttr if isinstance(number, float) else ir.IntegerAttr
    with ir.InsertionPoint(op), op.location:
        value = ir.DenseElementsAttr.get_splat(plain, kind.get(plain.element_type, number))
        type_ = ir.Type.parse(f"!torch.vtensor<[],{element}>")
        return ir.Operation.create("torch.vtensor.literal", results=[type_], attributes={"value": value}).result


def _constant(op: Any, kind: str, attribute: Any) -> Any:
    with ir.InsertionPoint(op), op.location:
        type_ = ir.Type.parse(f"!torch.{kind}")
        return ir.Operation.create(f"torch.constant.{kind}", results=[type_], attributes={"value": attribute}).result


def _boolean(op: Any, value: bool) -> Any:
    return _constant(op, "bool", ir.BoolAttr.get(value))


def _float(op: Any, value: float) -> Any:
    return _constant(op, "float", ir.FloatAttr.get(ir.F64Type.get(), value))


def _moved(op: Any, value: Any, bits: int) -> Any:
    return aten(op, "add.Scalar", value.type, value, integer(op, -(2 ** (bits - 1))), integer(op, 1))


def _reinterpreted(op: Any, value: Any, type_: Any) -> Any:
    """The same bits as another type of the same size."""
    source, target = builtin_type(value.type), builtin_type(type_)
    with ir.InsertionPoint(op), op.location:
        bits = ir.Operation.create("torch_c.to_builtin_tensor", results=[source], operands=[value]).result
        if source != target:
            bits = ir.Operation.create("tensor.bitcast", results=[target], operands=[bits]).result
        return ir.Operation.create("torch_c.from_builtin_tensor", results=[type_], operands=[bits]).result


def builtin_type(type_: Any) -> Any:
    """The builtin tensor that a torch tensor becomes."""
    dims, _, element = str(type_).removeprefix("!torch.vtensor<[").removesuffix(">").partition("],")
    return ir.Type.parse(f"tensor<{'x'.join([*filter(None, dims.split(',')), element.lstrip('su')])}>")


def _replace(op: Any, value: Any) -> None:
    op.results[0].replace_all_uses_with(value)
    op.erase()
