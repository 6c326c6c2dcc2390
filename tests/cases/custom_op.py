"""Custom operations: texts that are served, with results worked out in numpy, and texts that are refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from graph_api import CustomOpAttributes, DataType, Graph, PointwiseMode
from tests.cases import OpCase

D = DataType
Dims = tuple[int, ...]
_ALL = ("llvm-cpu", "rocm", "cuda")

ADD = """
func.func private @{FUNC_NAME}(%a: {IN0_TYPE}, %b: {IN1_TYPE}) -> {OUT0_TYPE} {
  %one = torch.constant.int 1  // the factor of b
  %c = torch.aten.add.Tensor %a, %b, %one : {IN0_TYPE}, {IN1_TYPE}, !torch.int -> {OUT0_TYPE}
  return %c : {OUT0_TYPE}
}
"""
TWO = """
func.func private @{FUNC_NAME}(%x: {IN0_TYPE}) -> ({OUT0_TYPE}, {OUT1_TYPE}) {
  %abs = torch.aten.abs %x : {IN0_TYPE} -> {OUT0_TYPE}
  %c0 = torch.constant.int 0
  %c1 = torch.constant.int 1
  %order = torch.prim.ListConstruct %c1, %c0 : (!torch.int, !torch.int) -> !torch.list<int>
  %t = torch.aten.permute %x, %order : {IN0_TYPE}, !torch.list<int> -> {OUT1_TYPE}
  return %abs, %t : {OUT0_TYPE}, {OUT1_TYPE}
}
"""
GENERIC = """
func.func private @{FUNC_NAME}(%a: {IN0_TYPE}) -> {OUT0_TYPE} {
  %x = torch_c.to_builtin_tensor %a : {IN0_TYPE} -> tensor<{IN0_DIM0}x{IN0_DIM1}x{IN0_DTYPE}>
  %e = tensor.empty() : tensor<{IN0_DIM0}x{IN0_DIM1}x{IN0_DTYPE}>
  %k = arith.constant 3.0 : {IN0_DTYPE}
  %y = linalg.generic {
    indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>],
    iterator_types = ["parallel", "parallel"]
  } ins(%x : tensor<{IN0_DIM0}x{IN0_DIM1}x{IN0_DTYPE}>) outs(%e : tensor<{IN0_DIM0}x{IN0_DIM1}x{IN0_DTYPE}>) {
  ^bb0(%i: {IN0_DTYPE}, %o: {IN0_DTYPE}):
    %row = linalg.index 0 : index
    %n = arith.index_cast %row : index to i32
    %f = arith.sitofp %n : i32 to {IN0_DTYPE}
    %m = arith.mulf %i, %k : {IN0_DTYPE}
    %s = arith.addf %m, %f : {IN0_DTYPE}
    linalg.yield %s : {IN0_DTYPE}
  } -> tensor<{IN0_DIM0}x{IN0_DIM1}x{IN0_DTYPE}>
  %r = torch_c.from_builtin_tensor %y : tensor<{IN0_DIM0}x{IN0_DIM1}x{IN0_DTYPE}> -> {OUT0_TYPE}
  return %r : {OUT0_TYPE}
}
"""
SOFTMAX = """
func.func private @{FUNC_NAME}(%x: {IN0_TYPE}) -> {OUT0_TYPE} {
  %dim = torch.constant.int 1
  %none = torch.constant.none
  %y = torch.aten.softmax.int %x, %dim, %none : {IN0_TYPE}, !torch.int, !torch.none -> {OUT0_TYPE}
  return %y : {OUT0_TYPE}
}
"""
CONSTANT = """
func.func private @{FUNC_NAME}() -> {OUT0_TYPE} {
  %y = torch.vtensor.literal(dense<[1.0, -2.5, 4.0]> : tensor<3xf32>) : {OUT0_TYPE}
  return %y : {OUT0_TYPE}
}
"""
FLOOR = """
func.func private @{FUNC_NAME}(%x: {IN0_TYPE}) -> {OUT0_TYPE} {
  %two = torch.constant.float 2.0
  %mode = torch.constant.str "floor"
  %y = torch.aten.div.Scalar_mode %x, %two, %mode : {IN0_TYPE}, !torch.float, !torch.str -> {OUT0_TYPE}
  return %y : {OUT0_TYPE}
}
"""


def _softmax(x: Any) -> list[Any]:
    e = np.exp(x - x.max(1, keepdims=True))
    return [e / e.sum(1, keepdims=True)]


def graph(
    text: str,
    inputs: Sequence[Dims],
    outputs: Sequence[Dims],
    reference: Callable[..., Any] | None = None,
    dtype: DataType = D.FLOAT,
    *,
    identity: str = "fusilli.test",
    stride: Dims | None = None,
) -> Graph:
    """A graph of one custom operation."""
    g = Graph("custom", io_data_type=dtype)
    tensors = [g.tensor(f"x{i}", dim=dims, stride=stride) for i, dims in enumerate(inputs)]
    attributes = CustomOpAttributes(custom_op_id=identity, data=text, reference=reference)
    for i, (out, dims) in enumerate(zip(g.custom_op(tensors, len(outputs), attributes), outputs, strict=True)):
        out.set_name(f"y{i}").set_dim(dims).set_output()
    return g


def _between_nodes() -> Graph:
    """conv, custom, relu: virtual tensors on both sides."""
    g = Graph("between", io_data_type=D.HALF, intermediate_data_type=D.HALF)
    x, w = g.tensor("x", dim=(1, 4, 6, 6), layout="NHWC"), g.tensor("w", dim=(4, 4, 3, 3), layout="NHWC")
    y = g.conv_fprop(x, w, padding=1)
    attributes = CustomOpAttributes(custom_op_id="fusilli.add", data=ADD, reference=lambda a, b: [a + b])
    (z,) = g.custom_op([y, y], 1, attributes)
    z.set_dim((1, 4, 6, 6))
    g.pointwise(PointwiseMode.RELU_FWD, z).set_name("out").set_output()
    return g


def _twice() -> Graph:
    """The same text for two nodes of equal types, and once for another shape."""
    g = Graph("twice", io_data_type=D.FLOAT)
    a, b = g.tensor("a", dim=(2, 3)), g.tensor("b", dim=(2, 1))
    attributes = CustomOpAttributes(custom_op_id="fusilli.add", data=ADD, reference=lambda a, b: [a + b])
    (first,) = g.custom_op([a, a], 1, attributes)
    (second,) = g.custom_op([first.set_dim((2, 3)), a], 1, attributes)
    (third,) = g.custom_op([second.set_dim((2, 3)), b], 1, attributes)
    third.set_dim((2, 3)).set_name("out").set_output()
    return g


def _served(name: str, *arguments: Any, fast: bool = False, **options: Any) -> OpCase:
    return OpCase(name, lambda: graph(*arguments, **options), fast=fast)


def _plain(a: Any, b: Any) -> list[Any]:
    return [a + b]


REFUSED: dict[str, tuple[str, str]] = {
    "no_name": ("signature", ADD.replace("@{FUNC_NAME}", "@mine")),
    "public": ("signature", ADD.replace("private ", "")),
    "other_type": ("signature", ADD.replace("%b: {IN1_TYPE}", "%b: !torch.vtensor<[9,9],f32>")),
    "dynamic_type": ("signature", ADD.replace("%b: {IN1_TYPE}", "%b: !torch.vtensor<[?,3],f32>")),
    "other_result": ("signature", ADD.replace("-> {OUT0_TYPE} {", "-> !torch.vtensor<[1],f32> {")),
    "one_argument": ("signature", ADD.replace(", %b: {IN1_TYPE}) ->", ") ->")),
    "attributes": ("signature", ADD.replace("{OUT0_TYPE} {", '{OUT0_TYPE} attributes {"noinline"} {')),
    "second_function": ("signature", ADD + 'func.func private @other() attributes {hal.import = "x"}'),
    "placeholder": ("placeholder", ADD.replace("{IN1_TYPE}) ->", "{IN7_TYPE}) ->")),
    "placeholder_dim": ("placeholder", ADD.replace("{IN1_TYPE}) ->", "{IN0_DIM9}) ->")),
    "hal": ("dialect", ADD.replace("torch.aten.add.Tensor", "hal.executable.create")),
    "util_call": ("dialect", ADD.replace("torch.aten.add.Tensor", "util.call")),
    "loop": ("dialect", ADD.replace("torch.aten.add.Tensor", "scf.while")),
    "torch_loop": ("dialect", ADD.replace("torch.aten.add.Tensor", "torch.prim.Loop")),
    "call": ("dialect", ADD.replace("torch.aten.add.Tensor", "func.call")),
    "symbol": ("attribute", ADD.replace("torch.aten.add.Tensor", "torch.aten.add.Tensor @main")),
    "generic_form": ("attribute", ADD.replace("torch.aten.add.Tensor", '"torch.aten.add.Tensor"')),
    "path": ("attribute", ADD.replace("torch.constant.int 1", 'torch.constant.str "/etc/passwd"')),
    "escape": ("syntax", ADD.replace("torch.constant.int 1", 'torch.constant.str "\\2Fetc"')),
    "resource": ("attribute", ADD.replace("constant.int 1", "vtensor.literal(dense_resource<blob> : tensor<1xf32>)")),
    "location": ("attribute", ADD.replace("-> {OUT0_TYPE}\n", '-> {OUT0_TYPE} loc("a.py":1:1)\n')),
    "dialect_attribute": ("attribute", ADD.replace("int 1", "int 1 {a = #hal.device.target}")),
    "other_dialect_type": ("dialect", ADD.replace("!torch.int", "!hal.buffer")),
    "metadata": ("syntax", ADD + "{-# dialect_resources: {} #-}"),
    "alias": ("signature", "#map = affine_map<(d0) -> (d0)>\n" + ADD),
    "unbalanced": ("syntax", ADD.rstrip().removesuffix("}")),
    "crossed": ("syntax", ADD.replace("return %c", "return (%c]")),
    "deep": ("syntax", ADD.replace("torch.constant.int 1", "torch.constant.int 1 " + "[" * 40 + "]" * 40)),
    "not_ascii": ("syntax", ADD.replace("%one", "%\u00e9")),
    "empty": ("signature", "@{FUNC_NAME}"),
}
"""Name to (rule, text) of what is refused, each one change away from ``ADD``."""

CASES = [
    _served("add", ADD, [(4, 3), (4, 3)], [(4, 3)], _plain, fast=True),
    _served("add_f16", ADD, [(4, 3), (4, 3)], [(4, 3)], _plain, D.HALF),
    _served("add_bf16", ADD, [(4, 3), (1, 3)], [(4, 3)], _plain, D.BFLOAT16),
    _served("add_i32", ADD, [(4, 3), (4, 3)], [(4, 3)], _plain, D.INT32),
    _served("add_f64", ADD, [(4, 3), (4, 3)], [(4, 3)], _plain, D.DOUBLE),
    _served("add_transposed", ADD, [(4, 3), (4, 3)], [(4, 3)], _plain, stride=(1, 4)),
    _served("two_results", TWO, [(4, 3)], [(4, 3), (3, 4)], lambda x: [np.abs(x), x.T], fast=True),
    _served("generic", GENERIC, [(4, 3)], [(4, 3)], lambda x: [3.0 * x + np.arange(4.0)[:, None]], fast=True),
    _served("generic_f16", GENERIC, [(4, 3)], [(4, 3)], lambda x: [3.0 * x + np.arange(4.0)[:, None]], D.HALF),
    _served("softmax", SOFTMAX, [(4, 3)], [(4, 3)], _softmax),
    _served("string", FLOOR, [(4, 3)], [(4, 3)], lambda x: [np.floor(x / 2.0)]),
    _served("constant", CONSTANT, [], [(3,)], lambda: [np.array([1.0, -2.5, 4.0])]),
    OpCase("between_nodes", _between_nodes, dims={"out": (1, 4, 6, 6)}),
    OpCase("twice", _twice, dims={"out": (2, 3)}),
    OpCase(
        "foreign_id",
        lambda: graph(ADD, [(4, 3), (4, 3)], [(4, 3)], _plain, identity="other.op"),
        declined=dict.fromkeys(_ALL, "custom_op_id"),
    ),
    OpCase(
        "fp8",
        lambda: graph(ADD, [(4, 3), (4, 3)], [(4, 3)], _plain, D.FP8_E8M0),
        declined=dict.fromkeys(_ALL, "dtype"),
    ),
    *(
        OpCase(
            f"refused_{name}",
            lambda text=text: graph(text, [(4, 3), (4, 3)], [(4, 3)], _plain),
            declined=dict.fromkeys(_ALL, rule),
        )
        for name, (rule, text) in REFUSED.items()
    ),
]
