"""Operations of custom texts that the compiler lowers to something else than what PyTorch computes: put right.

NaN and infinity where it forgets them, unsigned integers that it takes for signed ones, powers of negative numbers,
``asinh`` and ``softshrink`` below 0; sines of large angles.
"""

from __future__ import annotations

import math
import re
from typing import Any, Final

from iree_bridge._mlir import ir
from iree_bridge.positions import aten, integer, operations

__all__ = ["correct", "reduce_angles"]

_FLOATS: Final = re.compile(r"!torch\.vtensor<\[[\d,]*\],(?:b?f\d+|f8E\w+)>", re.ASCII)

_PASS_NAN: Final = {
    **dict.fromkeys(("maximum", "minimum", "max.other", "min.other"), 1),  # the second operand's stays as it is
    **dict.fromkeys(("clamp", "clamp_min", "clamp_max", "hardtanh", "relu6", "threshold", "hardshrink"), 1),
    "clamp_min.Tensor": 1,
    "clamp.Tensor": 3,
}
"""Operation → how many of its first operands, where one is NaN, make NaN of the result; the lowering forgets it."""


_UNSIGNED: Final = re.compile(r",ui(\d+)>", re.ASCII)
_PLAIN_FLOAT: Final = re.compile(r",b?f(\d+)>", re.ASCII)
_FLOAT_CODES: Final = {"f16": 5, "f32": 6, "f64": 7, "bf16": 15}  # torch.dtype numbers
_SORTS: Final = {"topk": 2, "sort": 1, "sort.stable": 2, "argsort": 1}
"""Operation → which operand is the dim along which it sorts its first."""


def correct(function: Any) -> None:
    """Make the operations of a function what PyTorch's documentation says of them."""
    for op in list(operations(function)):
        name = op.name.removeprefix("torch.aten.")
        if name in _PASS_NAN and _FLOATS.fullmatch(str(op.results[0].type)):
            _pass_nan(op, list(op.operands)[: _PASS_NAN[name]])
        elif name == "softshrink":
            _soft_shrink(op)
        elif name == "scatter_reduce.two":
            _scatter_unsigned(op)
        elif name in _SORTS:
            _sort_by_keys(op, _SORTS[name])
        elif name == "pow.Tensor_Tensor" and _FLOATS.fullmatch(str(op.results[0].type)):
            _power(op)
        elif name == "fmod.Tensor" and _FLOATS.fullmatch(str(op.results[0].type)):
            _remainder(op)
        elif name == "asinh" and _FLOATS.fullmatch(str(op.results[0].type)):
            _area_sine(op)


def _pass_nan(op: Any, operands: list[Any]) -> None:
    type_ = op.results[0].type
    made = op.clone(ip=ir.InsertionPoint(op)).operation.results[0]
    for operand in operands:
        if _FLOATS.fullmatch(str(operand.type)):
            truth = ir.Type.parse(str(operand.type).rpartition(",")[0] + ",i1>")
            made = aten(op, "where.self", type_, aten(op, "ne.Tensor", truth, operand, operand), operand, made)
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
    element = _UNSIGNED.search(str(type_))
    how = getattr(op.operands[4].owner, "operation", op.operands[4].owner)
    if element is None or ir.StringAttr(how.attributes["value"]).value not in ("amax", "amin"):
        return
    bits = int(element[1])
    for index in (0, 3):
        signed = _UNSIGNED.sub(r",si\1>", str(op.operands[index].type))
        op.operands[index] = _moved(op, _reinterpreted(op, op.operands[index], ir.Type.parse(signed)), bits)
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
    unsigned, floating = _UNSIGNED.search(str(x.type)), _PLAIN_FLOAT.search(str(x.type))
    if unsigned:
        signed = _with_element(x.type, f"si{unsigned[1]}")
        return _moved(op, _reinterpreted(op, x, signed), int(unsigned[1]))
    if not floating:
        return None
    size = int(floating[1])
    signed = _with_element(x.type, f"si{size}")
    bits = _reinterpreted(op, x, signed)
    truth, one, least = _truth(x), integer(op, 1), integer(op, -(2 ** (size - 1)))
    turned = aten(op, "rsub.Scalar", signed, bits, least, one)  # as if of numbers that have a sign and a magnitude
    keys = aten(op, "where.self", signed, aten(op, "lt.Scalar", truth, bits, integer(op, 0)), turned, bits)
    greatest = _literal(op, 2 ** (size - 1) - 1, f"si{size}")
    return aten(op, "where.self", signed, aten(op, "ne.Tensor", truth, x, x), greatest, keys)


def _power(op: Any) -> None:
    """Of the magnitude, which is what the compiler can do, with the sign and the exceptions that IEEE 754 has."""
    type_ = op.results[0].type
    element = _element(type_)
    x, y = (_as(op, operand, element) for operand in op.operands)
    one, zero, nan = (_literal(op, number, element) for number in (1.0, 0.0, float("nan")))
    truth, half = _truth(op.results[0]), _float(op, 0.5)

    def of(name: str, *operands: Any) -> Any:
        return aten(op, f"logical_{name}", truth, *operands)

    size = aten(op, "abs", x.type, x)
    made = aten(op, "pow.Tensor_Tensor", type_, size, y)
    is_one = of("or", aten(op, "eq.Tensor", _truth(x), size, one), aten(op, "eq.Tensor", _truth(y), y, zero))
    made = aten(op, "where.self", type_, is_one, one, made)
    below = aten(op, "lt.Tensor", _truth(x), x, zero)
    whole, even = (
        aten(op, "eq.Tensor", _truth(y), aten(op, "floor", y.type, each), each)
        for each in (y, aten(op, "mul.Scalar", y.type, y, half))
    )
    odd = aten(op, "logical_and", _truth(y), whole, aten(op, "logical_not", _truth(y), even))
    made = aten(op, "where.self", type_, of("and", below, odd), aten(op, "neg", type_, made), made)
    finite = aten(op, "lt.Tensor", _truth(x), size, _literal(op, float("inf"), element))
    no_root = aten(op, "logical_and", _truth(x), below, finite)
    wrong = of("and", no_root, aten(op, "logical_not", _truth(y), whole))
    _replace(op, aten(op, "where.self", type_, wrong, nan, made))


def _remainder(op: Any) -> None:
    """x less a multiple of y, of the sign of x, where a rounded quotient is one too large; x beside an infinite y."""
    x, y = op.operands
    type_, one, zero = op.results[0].type, integer(op, 1), integer(op, 0)
    made = op.clone(ip=ir.InsertionPoint(op)).operation.results[0]
    step = aten(op, "abs", y.type, y)
    for beyond, side, back in (("lt", "gt", "add"), ("gt", "lt", "sub")):
        is_beyond = aten(op, f"{beyond}.Scalar", _truth(made), made, zero)
        is_over = aten(op, "logical_and", _truth(made), is_beyond, aten(op, f"{side}.Scalar", _truth(x), x, zero))
        made = aten(op, "where.self", type_, is_over, aten(op, f"{back}.Tensor", type_, made, step, one), made)
    infinity = _literal(op, float("inf"), _element(y.type))
    endless = aten(op, "eq.Tensor", _truth(y), step, infinity)
    finite = aten(op, "lt.Tensor", _truth(x), aten(op, "abs", x.type, x), infinity)
    kept = aten(op, "logical_and", _truth(op.results[0]), endless, finite)
    _replace(op, aten(op, "where.self", type_, kept, x, made))


def _area_sine(op: Any) -> None:
    """log1p(a + a * a / (1 + sqrt(a * a + 1))) of the magnitude a, from 1e9 on log(2 a).

    The compiler's log(x + sqrt(x * x + 1)) cancels below 0, and its square overflows.
    """
    type_ = op.results[0].type
    wide = "f64" if _element(type_) == "f64" else "f32"
    x = _as(op, op.operands[0], wide)
    kind, truth, one = x.type, _truth(x), integer(op, 1)
    size = aten(op, "abs", kind, x)
    root = aten(op, "sqrt", kind, aten(op, "add.Scalar", kind, aten(op, "mul.Tensor", kind, size, size), one, one))
    part = aten(op, "div.Tensor", kind, size, aten(op, "add.Scalar", kind, root, one, one))
    near = aten(op, "add.Tensor", kind, size, aten(op, "mul.Tensor", kind, size, part), one)
    far = aten(op, "add.Scalar", kind, aten(op, "log", kind, size), _float(op, math.log(2)), one)
    is_far = aten(op, "gt.Scalar", truth, size, _float(op, 1e9))
    made = aten(op, "where.self", kind, is_far, far, aten(op, "log1p", kind, near))
    below = aten(op, "lt.Scalar", truth, x, integer(op, 0))
    made = aten(op, "where.self", kind, below, aten(op, "neg", kind, made), made)
    _replace(op, _as(op, made, _element(type_)))


_ANGLES: Final = ("torch.aten.sin", "torch.aten.cos", "torch.aten.tan")
_PI: Final = (3.141592025756836, 6.278328328335192e-07, 1.2446744343793227e-13)
"""Parts of pi, exact to 95 bits in all. Multiples of the first two, which have 21 bits, are exact up to 2 ** 32."""


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
    return str(type_).rpartition(",")[2].rstrip(">")


def _with_element(type_: Any, element: str) -> Any:
    return ir.Type.parse(f"{str(type_).rpartition(',')[0]},{element}>")


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
    source, target = _builtin(value.type), _builtin(type_)
    with ir.InsertionPoint(op), op.location:
        bits = ir.Operation.create("torch_c.to_builtin_tensor", results=[source], operands=[value]).result
        if source != target:
            bits = ir.Operation.create("tensor.bitcast", results=[target], operands=[bits]).result
        return ir.Operation.create("torch_c.from_builtin_tensor", results=[type_], operands=[bits]).result


def _builtin(type_: Any) -> Any:
    dims, _, element = str(type_).removeprefix("!torch.vtensor<[").removesuffix(">").partition("],")
    return ir.Type.parse(f"tensor<{'x'.join([*filter(None, dims.split(',')), element.lstrip('su')])}>")


def _replace(op: Any, value: Any) -> None:
    op.results[0].replace_all_uses_with(value)
    op.erase()
