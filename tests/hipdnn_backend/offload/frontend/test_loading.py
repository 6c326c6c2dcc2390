"""Whole models: what the module holds, names, locations, weights, opsets, constant folding; same answers as before."""

from __future__ import annotations

import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from hipdnn_backend.offload import frontend
from hipdnn_backend.offload.errors import ModelError, UnsupportedNodeError
from hipdnn_backend.offload.frontend import load, prepare
from hipdnn_backend.offload.frontend.rewriting import rules
from hipdnn_backend.offload.mlir import new_context
from hipdnn_backend.offload.node_outcomes import Absorbed, Became
from tests.support import onnx_models
from tests.support.onnx_models import feeds
from tests.support.onnx_rewritten import check_rewrite, ort, rewritten

_SMALL: dict[str, dict[str, Any]] = {
    "mlp": {},
    "small_cnn": {},
    "resnet50": {"size": 32, "width": 8, "blocks": (1, 1, 1, 1), "classes": 10},
    "mobilenet_v2": {"size": 32, "classes": 10, "settings": ((1, 8, 1, 1), (6, 12, 2, 2))},
    "unet": {"size": 16, "width": 4, "depth": 2},
    "bert_layer": {"hidden": 32, "heads": 4, "sequence": 8},
    "llama_block": {"hidden": 32, "heads": 4, "kv_heads": 2, "sequence": 8, "feed_forward": 48},
}
_MODELS = [*_SMALL.items(), ("bert_layer", {**_SMALL["bert_layer"], "dynamic": True})] + [
    ("llama_block", {**_SMALL["llama_block"], "opset": opset}) for opset in (23, 24)
]


def _ops(imported: frontend.Imported) -> Counter[str]:
    return Counter(re.findall(r"= (torch\.(?:aten|prims)\.[\w.]+)", str(imported.module)))


@pytest.mark.parametrize(("name", "given"), _MODELS, ids=lambda each: each if isinstance(each, str) else "")
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_generated_models(name: str, given: dict[str, Any], dtype: str) -> None:
    model = getattr(onnx_models, name)(dtype, **given)
    before = model.SerializeToString(deterministic=True)
    dims = {"batch": 1, "sequence": 8} if given.get("dynamic") else {}
    imported = load(model, dims=dims)
    assert model.SerializeToString(deterministic=True) == before
    text = imported.module.operation.get_asm(large_elements_limit=16)
    assert imported.module.operation.verify()
    assert "?" not in text
    assert "onnx." not in text.split("attributes")[0] + text.split("\n", 2)[2]
    assert [info.name for info in imported.inputs] == [value.name for value in model.graph.input]
    assert [info.name for info in imported.outputs] == [value.name for value in model.graph.output]
    assert {constant.value.dtype.name for constant in imported.constants} == {dtype}
    tolerance = 2e-5 if dtype == "float32" else 2e-2
    fed = feeds(model, dims=dims)
    (wanted,) = ort(model, fed)
    (have,) = rewritten(prepare(model, dims=dims), fed)
    error = np.abs(have.astype(np.float64) - wanted.astype(np.float64)).max() / np.abs(wanted.astype(np.float64)).max()
    assert error < tolerance


def test_arguments_are_inputs_then_weights() -> None:
    imported = load(onnx_models.mlp())
    (function,) = imported.module.body.operations
    assert function.operation.attributes["sym_name"].value == "main"
    types = [str(argument.type) for argument in function.operation.regions[0].blocks[0].arguments]
    shapes = [info.dims for info in imported.inputs] + [constant.value.shape for constant in imported.constants]
    assert types == [f"!torch.vtensor<[{','.join(map(str, shape))}],f32>" for shape in shapes]
    assert [info.dims for info in imported.outputs] == [(4, 10)]
    assert imported.name == "mlp"


def test_operators_stay_whole() -> None:
    ops = _ops(load(onnx_models.small_cnn()))
    whole = ("convolution", "max_pool2d", "avg_pool2d", "native_layer_norm", "softmax.int", "mm", "mean.dim")
    assert {f"torch.aten.{name}" for name in whole} <= ops.keys()
    assert "torch.aten.batch_norm" not in ops
    ops = _ops(load(onnx_models.llama_block(**{**_SMALL["llama_block"], "opset": 24})))
    assert ops["torch.aten.rms_norm"] == 2
    assert ops["torch.aten.scaled_dot_product_attention"] == 1
    assert ops["torch.aten.silu"] == 1


def test_operations_carry_the_names_of_nodes() -> None:
    model = onnx_models.llama_block(**{**_SMALL["llama_block"], "opset": 24})
    text = load(model).module.operation.get_asm(enable_debug_info=True)
    located = {name for op, name in re.findall(r'(torch\.aten\.\w+).*loc\("([^"]*)"\)', text)}
    aliases = dict(re.findall(r'^(#loc\d*) = loc\("([^"]*)"\)', text, re.M))
    located |= {aliases[alias] for alias in re.findall(r"torch\.aten\.\w+.*loc\((#loc\d*)\)", text) if alias in aliases}
    assert {"/self_attn/Attention", "/self_attn/q/RotaryEmbedding", "/mlp/act_fn/Swish"} <= located
    assert located <= {node.name for node in model.graph.node}


def test_a_context_of_the_caller() -> None:
    context = new_context()
    first, second = (load(onnx_models.mlp(), context=context) for _ in range(2))
    assert first.module.context == second.module.context == context


def _model(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, Any],
    outputs: dict[str, Any],
    *,
    opset: int = 17,
    **constants: Any,
) -> onnx.ModelProto:
    """Float inputs and outputs by their dims, initializers by name."""
    graph = helper.make_graph(
        nodes, "model",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in outputs.items()],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def test_a_function_that_returns_its_argument_and_a_constant() -> None:
    model = _model(
        [helper.make_node("Identity", ["x"], ["y"]), helper.make_node("Identity", ["c"], ["z"]),
         helper.make_node("Identity", ["x"], ["again"])],
        {"x": [2]}, {"y": [2], "z": [3], "again": [2]}, c=np.arange(3, dtype=np.float32),
    )  # fmt: skip
    imported = load(model)
    assert "return %arg0, %arg1, %arg0" in str(imported.module)
    assert [info.name for info in imported.outputs] == ["y", "z", "again"]
    assert imported.constants[0].value.tolist() == [0, 1, 2]


def test_what_operators_read_beforehand_stays_a_constant() -> None:
    nodes = [
        helper.make_node("Resize", ["x", "", "scales"], ["a"], "resize", mode="linear"),
        helper.make_node("Clip", ["a", "low", "high"], ["b"], "clip"),
        helper.make_node("Pad", ["b", "pads"], ["c"], "pad"),
        helper.make_node("Mul", ["c", "weight"], ["y"], "mul"),
    ]
    model = _model(
        nodes, {"x": [1, 1, 4, 4]}, {"y": [1, 1, 10, 10]}, scales=np.array([1, 1, 2, 2], np.float32), low=np.float32(0),
        high=np.float32(6), pads=np.array([0, 0, 1, 1, 0, 0, 1, 1]), weight=np.ones((10, 10), np.float32),
    )  # fmt: skip
    imported = load(model)
    assert [each.name for each in imported.constants if not each.name.startswith("resize/")] == ["weight"]
    check_rewrite(model, {"x": np.random.default_rng(0).standard_normal((1, 1, 4, 4)).astype(np.float32)})


@pytest.mark.parametrize("opset", [7, 8, 9, 10, 11, 12, 13, 14, 15, 17, 18, 20, 21, 22])
def test_opsets(opset: int) -> None:
    reduce: dict[str, Any] = {"axes": [2, 3]} if opset < 18 else {}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], "conv", pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["a", "s", "b", "m", "v"], ["n"], "norm"),
        helper.make_node("Relu", ["n"], ["r"], "relu"),
        helper.make_node("AveragePool", ["r"], ["p"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("ReduceMean", ["p", "axes"] if opset >= 18 else ["p"], ["y"], "mean", keepdims=0, **reduce),
    ]
    constants: dict[str, Any] = {name: np.ones(4, np.float32) for name in "sbv"} | {"m": np.zeros(4, np.float32)}
    constants["w"] = np.random.default_rng(0).standard_normal((4, 2, 3, 3)).astype(np.float32)
    if opset >= 18:
        constants["axes"] = np.array([2, 3])
    model = _model(nodes, {"x": [1, 2, 6, 6]}, {"y": [1, 4]}, opset=opset, **constants)
    graph = check_rewrite(model, {"x": np.random.default_rng(1).standard_normal((1, 2, 6, 6)).astype(np.float32)})
    assert [node.op_type for node in graph.nodes] == ["Conv", "Relu", "AveragePool", "ReduceMean"]
    assert _ops(load(model))["torch.aten.convolution"] == 1


def test_initializers_among_the_inputs_and_upsample() -> None:
    nodes = [
        helper.make_node("Upsample", ["x", "scales"], ["a"], "up"),
        helper.make_node("Mul", ["a", "w"], ["y"], "mul"),
    ]
    constants = {"scales": np.array([1, 1, 2, 2], np.float32), "w": np.array([3], np.float32)}
    model = _model(nodes, {"x": [1, 1, 2, 2], "w": [1]}, {"y": [1, 1, 4, 4]}, opset=9, **constants)
    model.ir_version = 3
    x = np.arange(4, dtype=np.float32).reshape(1, 1, 2, 2)
    check_rewrite(model, {"x": x}, expected=[3 * x.repeat(2, 2).repeat(2, 3)])
    assert [info.name for info in load(model).inputs] == ["x"]


def test_a_conversion_that_changes_what_is_fed_is_refused() -> None:
    """A Scan of opset 8 has a batch; onnx's conversion drops it from the model's inputs."""
    text = """<ir_version: 3, opset_import: ["" : 8]>
        agraph (float[1,2] start, float[1,3,2] x) => (float[1,2] y, float[1,3,2] z) {
            y, z = Scan <num_scan_inputs = 1, body = body (float[2] sum, float[2] next) => (float[2] out, float[2] seen)
                { out = Add (sum, next) seen = Identity (out) }> ("", start, x)
        }"""
    with pytest.raises(ModelError, match="opset 8 cannot be converted to .*: the dims of start, x would change"):
        load(onnx.parser.parse_model(text))


def test_an_operator_of_an_old_opset_is_called_as_in_the_model() -> None:
    """onnx puts a Resize without a name in its place."""
    nodes = [helper.make_node("Relu", ["x"], ["r"], "relu"), helper.make_node("Upsample", ["r", "scales"], ["y"], "up")]
    model = _model(nodes, {"x": [1, 1, 2, 2]}, {"y": [1, 1, 4, 4]}, opset=9)
    model.graph.input.append(helper.make_tensor_value_info("scales", TensorProto.FLOAT, [4]))
    with pytest.raises(ModelError) as caught:
        load(model)
    assert (caught.value.node, caught.value.rule) == ("up", "control-input")
    bound = prepare(model, inputs={"scales": np.array([1, 1, 2, 2], np.float32)})
    assert [node.name for node in bound.nodes if node.op_type in ("Relu", "Expand")] == ["relu", "up", "up"]


@pytest.mark.parametrize("opset", [7, 12])
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("op_type", ["Hardmax", "Softmax", "LogSoftmax"])
def test_all_dims_from_an_axis_on_as_before_opset_13(op_type: str, axis: int, opset: int) -> None:
    nodes = [helper.make_node(op_type, ["x"], ["y"], "node", axis=axis)]
    model = _model(nodes, {"x": [2, 3, 4]}, {"y": [2, 3, 4]}, opset=opset)
    check_rewrite(model, {"x": np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)})


def test_functions_of_the_model_are_inlined() -> None:
    imports = [helper.make_opsetid("", 17)]
    body = [helper.make_node("Mul", ["a", "a"], ["t"], "square"), helper.make_node("Neg", ["t"], ["b"], "minus")]
    model = _model([helper.make_node("NegSquare", ["x"], ["y"], "call", domain="local")], {"x": [3]}, {"y": [3]})
    model.functions.append(helper.make_function("local", "NegSquare", ["a"], ["b"], body, imports))
    model.opset_import.append(helper.make_opsetid("local", 1))
    x = np.array([1, 2, 3], np.float32)
    check_rewrite(model, {"x": x}, expected=[-x * x])


def _branch(name: str, *nodes: onnx.NodeProto, output: str) -> onnx.GraphProto:
    return helper.make_graph(list(nodes), name, [], [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)])


@pytest.mark.parametrize("rate", [8000, 16000])
def test_a_control_input_decides_an_if(rate: int) -> None:
    nested = helper.make_node(
        "If", ["big"], ["inner"], "inner_if",
        then_branch=_branch("t", helper.make_node("Neg", ["x"], ["t"], "neg"), output="t"),
        else_branch=_branch("e", helper.make_node("ReduceSum", ["x"], ["t"], "sum"), output="t"),
    )  # fmt: skip
    nodes = [
        helper.make_node("Equal", ["rate", "wide"], ["big"], "equal"),
        helper.make_node(
            "If", ["big"], ["z"], "if",
            then_branch=_branch("t", nested, helper.make_node("Exp", ["inner"], ["t"], "exp"), output="t"),
            else_branch=_branch("e", helper.make_node("Identity", ["x"], ["same"], "same"), output="same"),
        ),
        helper.make_node("Relu", ["z"], ["y"], "relu"),
    ]  # fmt: skip
    model = _model(nodes, {"x": [3]}, {"y": None}, wide=np.int64(16000))
    model.graph.input.append(helper.make_tensor_value_info("rate", TensorProto.INT64, []))
    x = np.array([1, -2, 3], np.float32)
    expected = np.exp(-x) if rate == 16000 else np.maximum(x, 0)
    graph = check_rewrite(model, {"x": x}, expected=[expected], inputs={"rate": rate})
    assert [node.op_type for node in graph.nodes] == (["Neg", "Exp", "Relu"] if rate == 16000 else ["Relu"])
    assert load(model, inputs={"rate": rate}).outputs[0].dims == (3,)


def test_shape_arithmetic_is_folded() -> None:
    model = onnx_models.bert_layer(**_SMALL["bert_layer"], dynamic=True)
    graph = prepare(model, dims={"batch": 2, "sequence": 8})
    assert {"Shape", "Slice", "Concat"}.isdisjoint(node.op_type for node in graph.nodes)
    assert graph.absorbed["/attention/self/query/Shape"] == Absorbed(Became.FOLDED)


def test_weight_only_operations_are_folded_once() -> None:
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["f"], "widen"),
        helper.make_node("Transpose", ["f"], ["t"], "turn", perm=[1, 0]),
        helper.make_node("MatMul", ["x", "t"], ["y"], "product"),
    ]
    quantised = np.random.default_rng(0).integers(-128, 127, (40, 50)).astype(np.int8)
    model = _model(nodes, {"x": [2, 50]}, {"y": [2, 40]}, q=quantised, s=np.float32(0.5), z=np.int8(3))
    graph = prepare(model)
    assert [node.op_type for node in graph.nodes] == ["MatMul"]
    (constant,) = load(model).constants
    assert np.array_equal(constant.value, (quantised.T.astype(np.float32) - 3) * 0.5)


def test_a_constant_that_would_be_huge_is_not_computed() -> None:
    nodes = [
        helper.make_node("ConstantOfShape", ["shape"], ["c"], "fill"),
        helper.make_node("Add", ["x", "c"], ["y"], "sum"),
    ]
    model = _model(nodes, {"x": [1]}, {"y": None}, shape=np.array([1 << 20, 1 << 20]))
    assert [node.op_type for node in prepare(model).nodes] == ["ConstantOfShape", "Add"]


def test_results_without_elements_are_constants() -> None:
    model = _model([helper.make_node("Relu", ["x"], ["y"], "relu")], {"x": [0, 3]}, {"y": [0, 3]})
    assert not prepare(model).nodes
    assert load(model).outputs[0].dims == (0, 3)


def test_random_operators_are_neither_folded_nor_converted() -> None:
    nodes = [
        helper.make_node("RandomNormal", [], ["r"], "noise", shape=[3]),
        helper.make_node("Add", ["x", "r"], ["y"]),
    ]
    with pytest.raises(UnsupportedNodeError, match="noise: RandomNormal: each run has other numbers"):
        prepare(_model(nodes, {"x": [3]}, {"y": [3]}))


def test_unnamed_and_repeated_nodes_get_names() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["a"], "same"), helper.make_node("Neg", ["a"], ["b"], "same")]
    model = _model([*nodes, helper.make_node("Exp", ["b"], ["y"])], {"x": [2]}, {"y": [2]})
    assert [node.name for node in prepare(model).nodes] == ["same", "same_1", "Exp_2"]


def test_nodes_in_any_order() -> None:
    nodes = [helper.make_node("Neg", ["a"], ["y"], "second"), helper.make_node("Relu", ["x"], ["a"], "first")]
    assert [node.name for node in prepare(_model(nodes, {"x": [2]}, {"y": [2]})).nodes] == ["first", "second"]


def test_dims_without_a_name() -> None:
    model = _model([helper.make_node("Relu", ["x"], ["y"])], {"x": [None, "n", 3]}, {"y": None})
    assert load(model, dims={"x.0": 2, "n": 5}).outputs[0].dims == (2, 5, 3)
    assert load(model, dims={"x.0": 2, "x.1": 4}).inputs[0].dims == (2, 4, 3)


def test_every_rule_is_for_a_known_operator() -> None:
    known = {(schema.domain, schema.name) for schema in onnx.defs.get_all_schemas_with_history()}
    assert all(domain == "com.microsoft" or (domain, op_type) in known for domain, op_type in rules())


@pytest.mark.slow
def test_resnet50_is_ready_in_time(tmp_path: Path) -> None:
    """CPU time of one process, so that other work on the machine does not count; the goal is under 1 s of it."""
    onnx.save(onnx_models.resnet50(), tmp_path / "resnet50.onnx")
    load(tmp_path / "resnet50.onnx")
    start = time.process_time()
    imported = load(tmp_path / "resnet50.onnx")
    assert time.process_time() - start < 1.5
    assert _ops(imported)["torch.aten.convolution"] == 53
    assert sum(constant.value.size for constant in imported.constants) > 25_000_000


def test_a_model_error_is_shown_with_its_rule() -> None:
    with pytest.raises(ModelError) as caught:
        load(b"")
    assert str(caught.value).endswith("[model-file]")
