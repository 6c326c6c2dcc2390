"""Elementwise operations against PyTorch, per element."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from hipdnn_backend.offload.to_wire import NotTranslated
from tests.hipdnn_backend.offload.to_wire.recorder import Recorder, Ref

pytestmark = pytest.mark.mlir

UNARY = (
    "abs", "ceil", "exp", "erf", "floor", "neg", "reciprocal", "relu", "sigmoid", "silu", "sin", "tan", "tanh",
    "square", "sign", "relu6", "hardsigmoid", "hardswish", "mish", "selu", "celu", "log_sigmoid",
    "isnan", "clone",
)  # fmt: skip


@pytest.mark.parametrize("name", UNARY)
def test_unary(name: str) -> None:
    r = Recorder()
    r.check(r.op(name, r.input(3, 5)))


@pytest.mark.parametrize("name", ["sqrt", "rsqrt", "log", "log2", "log10"])
def test_of_positive_numbers(name: str) -> None:
    r = Recorder()
    r.check(r.op(name, r.input(3, 5, positive=True)))


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("leaky_relu", (0.2,)),
        ("elu", (0.7, 1.5, 2.0)),
        ("celu", (2.5,)),
        ("gelu", ()),
        ("softplus", (1.5, 1.0)),
        ("softplus", (2.0, 20.0)),
        ("threshold", (0.3, 7.0)),
        ("hardtanh", (-0.5, 0.75)),
        ("clamp", (-0.5, None)),
        ("clamp", (None, 0.5)),
        ("clamp", (0.5, -0.5)),
        ("clamp_min", (0.1,)),
        ("clamp_max", (0.1,)),
        ("pow.Tensor_Scalar", (2,)),
        ("pow.Tensor_Scalar", (3.0,)),
        ("pow.Tensor_Scalar", (4,)),
        ("pow.Tensor_Scalar", (-1,)),
        ("pow.Tensor_Scalar", (11,)),
        ("pow.Tensor_Scalar", (-3.0,)),
        ("add.Scalar", (1.5, 2)),
        ("sub.Scalar", (3, 0.5)),
        ("rsub.Scalar", (1.5, 3)),
        ("mul.Scalar", (-0.25,)),
        ("div.Scalar", (7,)),
        ("gt.Scalar", (0.2,)),
        ("le.Scalar", (0,)),
        ("dropout", (0.5, False)),
    ],
)
def test_with_numbers(name: str, arguments: tuple[Any, ...]) -> None:
    r = Recorder()
    r.check(r.op(name, r.input(4, 6), *arguments))


def test_gelu_of_tanh() -> None:
    r = Recorder()
    r.check(r.op("gelu", r.input(4, 6), approximate="tanh"))


@pytest.mark.parametrize(
    "name",
    ["add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor", "maximum", "minimum", "eq.Tensor",
     "ne.Tensor", "gt.Tensor", "ge.Tensor", "lt.Tensor", "le.Tensor"],
)  # fmt: skip
@pytest.mark.parametrize("shapes", [((2, 3, 4), (2, 3, 4)), ((2, 3, 4), (4,)), ((3, 1), (2, 1, 5)), ((), (2, 3))])
def test_binary_broadcasts(name: str, shapes: Any) -> None:
    r = Recorder()
    r.check(r.op(name, r.input(*shapes[0]), r.input(*shapes[1])))


def test_alpha() -> None:
    r = Recorder()
    x, y = r.input(2, 3), r.input(3)
    r.check(r.op("add.Tensor", r.op("sub.Tensor", x, y, alpha=2.5), y, alpha=-3))


@pytest.mark.parametrize("name", ["add.Tensor", "mul.Tensor", "maximum", "ge.Tensor", "eq.Tensor"])
def test_integers(name: str) -> None:
    r = Recorder()
    r.check(r.op(name, r.input(4, 5, integers=True), r.input(5, integers=True)))


@pytest.mark.parametrize("rounding", ["floor", None])
def test_division_modes(rounding: str | None) -> None:
    r = Recorder()
    r.check(r.op("div.Tensor_mode", r.input(4, 5), r.input(5, positive=True), rounding_mode=rounding))


def test_division_of_integers_truncates() -> None:
    r = Recorder()
    x, y = r.input(4, 5, integers=True), r.input(data=np.array([3, -2, 4, 5, -7]))
    r.check(r.op("div.Tensor_mode", x, y, rounding_mode="trunc"))


def test_logic_and_select() -> None:
    """Booleans are bytes on the wire, inside and at the border."""
    r = Recorder()
    x, y = r.input(3, 4), r.input(4)
    mask = r.input(data=np.arange(12).reshape(3, 4) % 3 == 0)
    both = r.op("logical_and", r.op("gt.Tensor", x, y), r.op("logical_not", mask))
    either = r.op("bitwise_or.Tensor", r.op("bitwise_xor.Tensor", both, mask), r.op("bitwise_not", both))
    graph = r.check(both, either, r.op("where.self", either, x, y), r.op("masked_fill.Scalar", x, mask, -5.0))
    assert {tensor.data_type.name for tensor in graph.arguments().outputs} == {"UINT8", "FLOAT"}


def test_where_of_numbers() -> None:
    r = Recorder()
    mask = r.input(data=np.array([True, False, True]))
    x = r.input(2, 3)
    r.check(r.op("where.ScalarOther", mask, x, 2.5), r.op("where.ScalarSelf", mask, -1.0, x))


@pytest.mark.parametrize("dtype", [torch.int32, torch.bool, torch.int64])
def test_casts(dtype: torch.dtype) -> None:
    r = Recorder()
    x = r.op("mul.Scalar", r.input(4, 4), 3.0)
    cast = r.op("to.dtype", x, dtype)
    r.check(cast, r.op("to.dtype", r.op("to.dtype", r.input(2, 2, integers=True), torch.bool), torch.float64))


def test_composites() -> None:
    r = Recorder()
    x, y, z = r.input(3, 4), r.input(4), r.input(3, 4, positive=True)
    r.check(r.op("addcmul", x, y, z, value=0.5), r.op("addcdiv", x, y, z), r.op("lerp.Scalar", x, y, 0.3))


def test_prelu() -> None:
    r = Recorder()
    r.check(r.op("prelu", r.input(2, 3, 4), r.input(3)), r.op("prelu", r.input(2, 3), r.input(1)))


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("threshold_backward", (0,)),
        ("threshold_backward", (0.5,)),
        ("gelu_backward", ()),
        ("sigmoid_backward", ()),
        ("tanh_backward", ()),
        ("leaky_relu_backward", (0.1, False)),
    ],
)
def test_gradients(name: str, arguments: tuple[Any, ...]) -> None:
    r = Recorder()
    r.check(r.op(name, r.input(3, 4), r.input(3, 4), *arguments))


def test_constants_are_scalars() -> None:
    """Clip bounds come as tensors of one number from ONNX."""
    r = Recorder()
    x = r.input(3, 4)
    r.lines += [
        "%lo = torch.vtensor.literal(dense<-0.25> : tensor<f32>) : !torch.vtensor<[],f32>",
        "%none = torch.constant.none",
        f"%y = torch.aten.clamp.Tensor {x.name}, %lo, %none : {x.type}, !torch.vtensor<[],f32>, !torch.none "
        f"-> {x.type}",
    ]
    r.check(r.op("mul.Tensor", Ref("%y", x.type, torch.clamp(x.value, min=-0.25)), x))


def test_names_and_uids() -> None:
    r = Recorder()
    x = r.input(2, 2)
    y = r.op("relu", r.op("exp", x, where="first"), where="second")
    one, two = r.translate(y), r.translate(y)
    assert one == two
    assert one.nodes == ("first", "second")
    assert [node.name for node in one.graph.nodes] == ["first", "second"]
    assert [(tensor.uid, tensor.name) for tensor in one.graph.tensors] == [(1, "x0"), (2, "first"), (3, "second")]


@pytest.mark.parametrize(
    ("name", "arguments", "reason"),
    [
        ("pow.Tensor_Scalar", (1.7,), "exponent 1.7"),
        ("pow.Tensor_Scalar", (float("inf"),), "exponent inf"),
        ("pow.Tensor_Scalar", (float("nan"),), "exponent nan"),
        ("cumsum", (0,), "no hipDNN operation is known"),
        ("dropout", (0.5, True), "random"),
    ],
)
def test_refusals(name: str, arguments: tuple[Any, ...], reason: str) -> None:
    r = Recorder()
    made = r.op(name, r.input(2, 2), *arguments, where="bad")
    with pytest.raises(NotTranslated, match=reason) as caught:
        r.translate(made)
    assert caught.value.op_name == f"torch.aten.{name}"
    assert caught.value.location == "bad"


@pytest.mark.parametrize("number", [float("inf"), float("-inf"), float("nan"), 1.5])
def test_integers_beside_a_number_that_is_none_of_them(number: float) -> None:
    r = Recorder()
    with pytest.raises(NotTranslated, match=f"{number} is no INT64"):
        r.translate(r.op("lt.Scalar", r.input(2, 2, integers=True), number))


def test_half_computes_in_float() -> None:
    r = Recorder("f16")
    graph = r.check(r.op("add.Scalar", r.input(2, 2), 0.1), tolerance=1e-3)
    assert {node.compute.name for node in graph.nodes} == {"FLOAT"}
    r = Recorder("f64")
    graph = r.check(r.op("add.Scalar", r.input(2, 2), 0.1), tolerance=1e-12)
    assert {node.compute.name for node in graph.nodes} == {"DOUBLE"}
