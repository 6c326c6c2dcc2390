"""Torch operations of custom texts whose lowering is put right: values as PyTorch gives them."""

# PyTorch's functions have no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from graph_api import CustomOpAttributes, DataType, Graph
from iree_bridge import build
from tests.support.cases import aligned

pytestmark = pytest.mark.iree_cpu

torch = pytest.importorskip("torch")

NAN, INF = np.nan, np.inf
X = np.array([NAN, 1, -1, 0, INF, -INF, 2.5, NAN], np.float32)
Y = np.array([1, NAN, 2, -3, NAN, 1, NAN, NAN], np.float32)
Z = np.array([3, 3, NAN, 5, 5, 5, NAN, 1], np.float32)


def _run(name: str, operands: Sequence[Any]) -> np.ndarray:
    """The result of ``torch.aten.<name>`` in a custom text; tensors are of one shape and float."""
    graph = Graph("corrected", io_data_type=DataType.FLOAT)
    arrays = [operand for operand in operands if isinstance(operand, np.ndarray)]
    dims = arrays[0].shape
    kind = f"!torch.vtensor<[{','.join(map(str, dims))}],f32>"
    arguments, lines, names, types = [], [], [], []
    for number, operand in enumerate(operands):
        names.append(f"%v{number}")
        if isinstance(operand, np.ndarray):
            arguments.append(f"%v{number}: {kind}")
            types.append(kind)
        elif operand is None:
            lines.append(f"%v{number} = torch.constant.none")
            types.append("!torch.none")
        else:
            lines.append(f"%v{number} = torch.constant.float {operand:e}")
            types.append("!torch.float")
    text = "\n".join(
        [
            f"func.func private @{{FUNC_NAME}}({', '.join(arguments)}) -> {kind} {{",
            *lines,
            f"%r = torch.aten.{name} {', '.join(names)} : {', '.join(types)} -> {kind}",
            f"return %r : {kind}\n}}",
        ]
    )
    tensors = [graph.tensor(dim=dims) for _ in arrays]
    (y,) = graph.custom_op(tensors, 1, CustomOpAttributes(custom_op_id="fusilli.corrected", data=text))
    y.set_dim(dims).set_output()
    result = aligned(np.zeros(dims, np.float32))
    build(graph.validate(), "cpu").run({**dict(zip(tensors, map(aligned, arrays), strict=True)), y: result})
    return result


def _check(name: str, operands: Sequence[Any]) -> None:
    given = [torch.from_numpy(each) if isinstance(each, np.ndarray) else each for each in operands]
    packet, _, overload = name.partition(".")
    expected = getattr(getattr(torch.ops.aten, packet), overload or "default")(*given)
    np.testing.assert_allclose(_run(name, operands), expected.numpy(), rtol=1e-5)


@pytest.mark.a_few("hardtanh-operands7", "relu6-operands8", "hardshrink-operands10")
@pytest.mark.parametrize(
    ("name", "operands"),
    [
        ("maximum", (X, Y)),
        ("minimum", (X, Y)),
        ("max.other", (X, Y)),
        ("clamp", (X, -1.0, 2.0)),
        ("clamp", (X, None, 2.0)),
        ("clamp.Tensor", (X, Y, Z)),
        ("clamp_min.Tensor", (X, Y)),
        ("hardtanh", (X, -1.0, 2.0)),
        ("relu6", (X,)),
        ("threshold", (X, 0.5, 3.0)),
        ("hardshrink", (X, 0.5)),
    ],
)
def test_nan_passes(name: str, operands: Sequence[Any]) -> None:
    _check(name, operands)


def test_powers() -> None:
    base = np.array([-2, -1, 0, -8, -2, -INF, NAN, 1], np.float32)
    _check("pow.Tensor_Tensor", (base, np.array([2, 3, 0, -1, 0.5, 3, 0, NAN], np.float32)))


@pytest.mark.a_few("-5.0")
@pytest.mark.parametrize("exponent", [1.7, -5.0, 0.0])
def test_powers_by_a_number(exponent: float) -> None:
    _check("pow.Tensor_Scalar", (np.array([-2, -1, 0, 3, -INF, -0.0, NAN, 1], np.float32), exponent))


def test_powers_of_a_number() -> None:
    _check("pow.Scalar", (-2.5, np.array([-2, 3, 0.5, INF, NAN], np.float32)))


def test_remainders_of_infinite_divisors() -> None:
    _check("fmod.Tensor", (X, np.full_like(X, INF)))


def test_remainders_whose_quotient_is_rounded_up() -> None:
    x, y = np.array([0.7, -0.7, 1, 1, -7, 5.5, 0], np.float32), np.array([0.1, 0.1, -0.1, 0.2, 3, 2, 1], np.float32)
    _check("fmod.Tensor", (x, y))


@pytest.mark.a_few("acosh", "atanh")
@pytest.mark.parametrize("name", ["asinh", "acosh", "atanh", "sinh", "cosh", "expm1", "log1p"])
def test_hyperbolic_functions(name: str) -> None:
    _check(name, (np.array([-100, -1e-4, 0, 1e-4, 0.7, 3, 89, -1e20, 1e20, INF, -INF, NAN], np.float32),))


@pytest.mark.thorough
def test_softshrink() -> None:
    _check("softshrink", (X, 0.5))


@pytest.mark.a_few("torch.prims.convert_element_type")
@pytest.mark.parametrize("op", ["torch.aten.to.dtype", "torch.prims.convert_element_type"])
def test_small_numbers_become_half_numbers(op: str) -> None:
    """Multiples of 2**-24 are numbers of both types; those below 2**-14 are subnormal in one."""
    small = np.arange(-40.0, 40.0) * 2.0**-24
    kinds = [f"!torch.vtensor<[{small.size}],{element}>" for element in ("f64", "f16")]
    rest = ", %no, %no, %none : {0}, !torch.int, !torch.bool, !torch.bool, !torch.none -> {1}"
    tail = rest if op.endswith("to.dtype") else " : {0}, !torch.int -> {1}"
    text = f"""func.func private @{{FUNC_NAME}}(%x: {kinds[0]}) -> {kinds[1]} {{
    %half = torch.constant.int 5
    %no = torch.constant.bool false
    %none = torch.constant.none
    %r = {op} %x, %half{tail.format(*kinds)}
    return %r : {kinds[1]}
    }}"""
    graph = Graph("cast", io_data_type=DataType.DOUBLE)
    x = graph.tensor(dim=small.shape)
    (y,) = graph.custom_op([x], 1, CustomOpAttributes(custom_op_id="fusilli.cast", data=text))
    y.set_dim(small.shape).set_output().set_data_type(DataType.HALF)
    result = aligned(np.ones(small.shape, np.float16))
    build(graph.validate(), "cpu").run({x: aligned(small), y: result})
    assert result.astype(np.float64).tolist() == small.tolist()


_ANGLES = np.array([0, 1e-30, -1e-3, 0.5, np.pi, -np.pi / 2, 25.132741, 1e4, -1e5, 1e7, 1e10, INF, NAN], np.float32)


@pytest.mark.a_few("sin")
@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_large_angles(name: str) -> None:
    """Within one unit of the last place of the float64 result, near the zeros too."""
    with np.errstate(invalid="ignore"):
        expected = getattr(np, name)(_ANGLES.astype(np.float64)).astype(np.float32)
    np.testing.assert_array_max_ulp(_run(name, [_ANGLES])[:-2], expected[:-2], 1)
    assert np.isnan(_run(name, [_ANGLES])[-2:]).all()


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["sin", "cos"])
def test_endless_angles_are_bounded(name: str) -> None:
    assert (np.abs(_run(name, [np.array([1e20, -3e38, 1e16], np.float32)])) <= 1).all()
