"""Dims that a model leaves open: what is taken for them fits its weights and itself, so nothing is left for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

import fusilli_plugin
from fusilli_plugin.ort_ep.constraints import Equality, equalities
from fusilli_plugin.ort_ep.report import Report
from hipdnn_backend.offload.frontend.shapes import inferred_model
from hipdnn_backend.offload.onnx_process import client
from tests.fusilli_plugin.ort_ep.models import MS, Array, Model, check, session, weight

F32 = np.float32


def channels(model: Model, name: str) -> str:
    """An input of unknown batch, channels and extents."""
    return model.input(name, "n", "c", "h", "w")


def conv(model: Model) -> None:
    model.output(model.add("Conv", channels(model, "x"), model.constant("w", weight(0, 6, 5, 3, 3))))


def grouped_conv(model: Model) -> None:
    model.output(model.add("Conv", channels(model, "x"), model.constant("w", weight(0, 6, 4, 3, 3)), group=3))


def transposed_conv(model: Model) -> None:
    model.output(model.add("ConvTranspose", channels(model, "x"), model.constant("w", weight(0, 7, 4, 2, 2)), group=1))


def batchnorm(model: Model) -> None:
    parts = [model.constant(name, np.abs(weight(i, 10)) + 1) for i, name in enumerate("sbmv")]
    model.output(model.add("BatchNormalization", channels(model, "x"), *parts))


def instancenorm(model: Model) -> None:
    """The case of the issue: n, c, l and 32 channels."""
    parts = [model.constant(name, weight(i, 32)) for i, name in enumerate("sb")]
    y = model.add("InstanceNormalization", model.input("x", "n", "c", "l"), *parts)
    model.output(model.add("Relu", y)).output(model.add("Sigmoid", model.input("z", "m", 3)))


def prelu(model: Model) -> None:
    model.output(model.add("PRelu", channels(model, "x"), model.constant("s", weight(0, 12, 1, 1))))


def matmul(model: Model) -> None:
    model.output(model.add("MatMul", model.input("x", "b", "s", "k"), model.constant("w", weight(0, 18, 4))))


def matmul_of_two(model: Model) -> None:
    y = model.add("MatMul", model.input("x", "b", "s", "k"), model.input("y", "b", "k2", "t"))
    model.output(y)


def gemm(model: Model) -> None:
    model.output(model.add("Gemm", model.input("x", "n", "k"), model.constant("w", weight(0, 4, 9)), transB=1))


def turned_gemm(model: Model) -> None:
    b = model.constant("b", weight(1, 4))
    model.output(model.add("Gemm", model.input("x", "k", "n"), model.constant("w", weight(0, 9, 4)), b, transA=1))


def layernorm(model: Model) -> None:
    parts = [model.constant(name, weight(i, 24)) for i, name in enumerate("sb")]
    model.output(model.add("LayerNormalization", model.input("x", "b", "s", "d"), *parts))


def groupnorm(model: Model) -> None:
    model.opset = 21
    parts = [model.constant(name, weight(i, 8)) for i, name in enumerate("sb")]
    model.output(model.add("GroupNormalization", channels(model, "x"), *parts, num_groups=4))


def added_weight(model: Model) -> None:
    model.output(model.add("Add", model.input("x", "b", "s", "d"), model.constant("w", weight(0, 5, 14))))


def split(model: Model) -> None:
    parts = model.constant("p", np.array([3, 5, 1]))
    y = model.add("Split", channels(model, "x"), parts, axis=1, outputs=3)
    model.output(model.add("Relu", y), model.add("Tanh", f"{y}1"), model.add("Exp", f"{y}2"))


def reshape(model: Model) -> None:
    h = model.add("Reshape", model.input("x", "b", "s", "d"), model.constant("t", np.array([0, 0, 4, 6])))
    model.output(model.add("Softmax", h))


def two_inputs(model: Model) -> None:
    """Inputs whose dims have different names, and are added and joined."""
    y = model.add("Add", model.input("x", "a", 3, "h"), model.input("y", "b", 3, "g"))
    model.output(model.add("Exp", model.add("Concat", y, model.input("z", "c", "d", "f"), axis=1)))


def unet(model: Model) -> None:
    """Four times halved and doubled, each map joined with the one before."""
    maps, y = [], model.input("x", "n", 3, "h", "w")
    for level in range(4):
        before = 3 if not level else 4
        y = model.add("Conv", y, model.constant(f"d{level}", weight(level, 4, before, 3, 3)), pads=[1] * 4)
        maps.append(y)
        y = model.add("MaxPool", y, kernel_shape=[2, 2], strides=[2, 2])
    scales = model.constant("scales", np.array([1, 1, 2, 2], F32))
    for level in reversed(range(4)):
        y = model.add("Resize", y, "", scales, mode="nearest", coordinate_transformation_mode="asymmetric",
                      nearest_mode="floor")  # fmt: skip
        y = model.add("Concat", y, maps[level], axis=1)
        y = model.add("Conv", y, model.constant(f"u{level}", weight(9 + level, 4, 8, 3, 3)), pads=[1] * 4)
    model.output(y)


def pyramid(model: Model) -> None:
    """Maps of three sizes from outside: their extents have to be half of each other's."""
    scales = model.constant("scales", np.array([1, 1, 2, 2], F32))
    y = model.input("p5", "n", 4, "h5", "w5")
    for level in (4, 3):
        y = model.add("Resize", y, "", scales, mode="nearest", coordinate_transformation_mode="asymmetric",
                      nearest_mode="floor")  # fmt: skip
        y = model.add("Add", y, model.input(f"p{level}", "n", 4, f"h{level}", f"w{level}"))
    model.output(y)


def classifier(model: Model) -> None:
    """Extents that only the weights of the last product tell: 14 x 14, halved, times 4."""
    y = model.add("Conv", model.input("x", "n", 1, "h", "h"), model.constant("w", weight(0, 4, 1, 3, 3)), pads=[1] * 4)
    y = model.add("MaxPool", y, kernel_shape=[2, 2], strides=[2, 2])
    y = model.add("Flatten", model.add("Relu", y))
    model.output(model.add("Gemm", y, model.constant("v", weight(1, 4 * 112 * 112, 3))))


def lstm(model: Model) -> None:
    w, r = model.constant("w", weight(0, 1, 32, 6)), model.constant("r", weight(1, 1, 32, 8))
    model.output(model.add("LSTM", model.input("x", "s", "b", "i"), w, r, hidden_size=8))


def skip_norm(model: Model) -> None:
    x, y = model.input("x", "b", "s", "d"), model.input("y", "b", "s", "e")
    model.output(model.add("SkipLayerNormalization", x, y, model.constant("g", weight(0, 16)), domain=MS))


NETS: dict[str, Callable[[Model], None]] = {
    made.__name__: made
    for made in (
        conv, grouped_conv, transposed_conv, batchnorm, instancenorm, prelu, matmul, matmul_of_two, gemm, turned_gemm,
        layernorm, groupnorm, added_weight, split, reshape, two_inputs, unet, pyramid, classifier, skip_norm,
    )
}  # fmt: skip


def told(model: Model | bytes, **options: str) -> Report:
    return fusilli_plugin.ep_report(session(model, **options))


@pytest.mark.a_few(
    "grouped_conv",
    "batchnorm",
    "prelu",
    "matmul",
    "matmul_of_two",
    "gemm",
    "turned_gemm",
    "layernorm",
    "added_weight",
    "reshape",
)
@pytest.mark.ort
@pytest.mark.usefixtures("provider")
@pytest.mark.parametrize("name", NETS)
def test_open_dims_keep_no_node_from_being_claimed(name: str) -> None:
    model = Model(name)
    NETS[name](model)
    report = told(model, strict="1")
    assert (report.claimed, report.problems) == (len(report.nodes), ()), report
    assert report.groups <= 2


@pytest.mark.ort
@pytest.mark.usefixtures("provider")
def test_a_recurrence_alone_is_left() -> None:
    """It is one custom operation, which engines take only between operations of hipDNN."""
    model = Model("lstm")
    lstm(model)
    (node,) = told(model).nodes
    assert "recurrence, which is one custom operation" in node.reason


@pytest.mark.ort
@pytest.mark.usefixtures("provider")
def test_what_the_user_says_of_dims_holds() -> None:
    model = Model("conv")
    conv(model)
    report = told(model, dims="n=2,c=4,h=8,w=8")
    assert [node.group for node in report.nodes] == [0]
    assert "5" in report.nodes[0].reason
    assert told(model, dims="n=2,c=5,h=8,w=8").claimed == 1


@pytest.mark.ort
@pytest.mark.usefixtures("provider")
def test_a_pass_that_fails_for_a_node_costs_that_node(monkeypatch: pytest.MonkeyPatch) -> None:
    from fusilli_plugin.ort_ep import examining

    original = examining.survey

    def picky(model: onnx.ModelProto, engines: Any) -> Any:
        if any(node.op_type == "Tanh" for node in model.graph.node):
            raise RuntimeError("pass hipdnn-offload failed")
        return original(model, engines)

    monkeypatch.setattr(examining, "survey", picky)
    model = Model("picky")
    y = model.input("x", "n", 8)
    for op_type in ("Relu", "Sigmoid", "Tanh", "Exp", "Abs"):
        y = model.add(op_type, y)
    report = told(model.output(y))
    assert [node.op_type for node in report.nodes if not node.group] == ["Tanh"]
    assert len(report.problems) == 1
    with pytest.raises(Exception, match="strict.*Tanh 'tanh_2': pass hipdnn-offload failed"):
        session(model, strict="1")


def scaled(*dims: int | str) -> onnx.ModelProto:
    """Scaler of ai.onnx.ml, whose shape ONNX Runtime does not infer, then a product."""
    nodes = [
        helper.make_node("Scaler", ["x"], ["s"], domain="ai.onnx.ml", offset=[0.1] * 4, scale=[2.0] * 4),
        helper.make_node("MatMul", ["s", "w"], ["m"], "matmul"),
        helper.make_node("Tanh", ["m"], ["y"], "tanh"),
    ]
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, list(dims))
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", [x], [y], [numpy_helper.from_array(weight(0, 4, 8), "w")])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@pytest.mark.ort
@pytest.mark.iree_cpu
@pytest.mark.usefixtures("provider")
@pytest.mark.parametrize("dims", [(6, 4), ("n", 4), ("n", "c")])
def test_what_onnx_runtime_does_not_infer_is_found_out(dims: tuple[int | str, ...]) -> None:
    made = session(scaled(*dims).SerializeToString(), on_new_shape="wait")
    report = fusilli_plugin.ep_report(made)
    assert [node.op_type for node in report.nodes if not node.group] == ["Scaler"]
    x = np.linspace(-1, 1, 24, dtype=F32).reshape(6, 4)
    want = np.tanh(((x - 0.1) * 2).astype(np.float64) @ weight(0, 4, 8))
    np.testing.assert_allclose(made.run(None, {"x": x})[0], want, rtol=1e-5, atol=1e-6)


# ---- loops


def looped(grows: bool, batch: int | str) -> onnx.ModelProto:
    """A Loop whose body computes the condition, a product and Softmax behind it; x is (batch, 4)."""
    node, value = helper.make_node, helper.make_tensor_value_info
    state, rows = onnx.TensorProto.FLOAT, None if grows else batch
    inner = [
        node("Tanh", ["s"], ["t"]),
        node("Concat", ["t", "t"], ["u"], axis=0) if grows else node("Neg", ["t"], ["u"]),
        node("Less", ["i", "three"], ["on"]),
    ]
    given = [value("i", onnx.TensorProto.INT64, []), value("c", onnx.TensorProto.BOOL, [])]
    given.append(value("s", state, [rows, 4]))
    made = [value("on", onnx.TensorProto.BOOL, []), value("u", state, [rows, 4])]
    nodes = [
        node("Loop", ["", "true", "x"], ["a"], "loop", body=helper.make_graph(inner, "body", given, made)),
        node("MatMul", ["a", "w"], ["m"], "matmul"),
        node("Softmax", ["m"], ["y"], "softmax"),
    ]
    constants = {"true": np.array(True), "three": np.array(3), "w": weight(0, 4, 8)}
    graph = helper.make_graph(
        nodes, "g", [value("x", state, [batch, 4])], [value("y", state, None)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.a_few("*-n")
@pytest.mark.ort
@pytest.mark.iree_cpu
@pytest.mark.usefixtures("provider")
@pytest.mark.parametrize("batch", [2, "n"])
@pytest.mark.parametrize("grows", [False, True])
def test_behind_a_loop_its_state_is_taken_for_as_large_as_before(grows: bool, batch: int | str) -> None:
    """Where it is not, the guess was wrong and the values are right."""
    made = session(looped(grows, batch).SerializeToString(), on_new_shape="wait")
    report = fusilli_plugin.ep_report(made)
    left = {node.op_type for node in report.nodes if not node.group}
    assert not left & {"MatMul", "Softmax"}, report
    x = np.linspace(-1, 1, 8, dtype=F32).reshape(2, 4)
    state = x.astype(np.float64)
    for _ in range(4):  # until 3 < 3
        state = np.concatenate([np.tanh(state)] * 2) if grows else -np.tanh(state)
    want = np.exp(state @ weight(0, 4, 8))
    np.testing.assert_allclose(made.run(None, {"x": x})[0], want / want.sum(-1, keepdims=True), rtol=1e-5, atol=1e-6)


# ---- Ifs


def chosen(condition: str, body: str = "MatMul", inner: bool = False) -> onnx.ModelProto:
    """Relu, an If with products in both branches, Tanh; x is (n, 8)."""
    node = helper.make_node

    def branch(name: str, op: str) -> onnx.GraphProto:
        out = helper.make_tensor_value_info(f"{name}_y", onnx.TensorProto.FLOAT, None)
        made = [node(body, ["h", "w"], [f"{name}_q"], f"{name}_product"), node(op, [f"{name}_q"], [f"{name}_y"], name)]
        return helper.make_graph(made, name, [], [out])

    def either(name: str) -> onnx.NodeProto:
        return node("If", ["c"], [name], name, then_branch=branch(f"{name}_then", "Exp"),
                    else_branch=branch(f"{name}_else", "Sigmoid"))  # fmt: skip

    last = either("o")
    if inner:  # the If is the whole of a branch of another
        out = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in ("inner", "plain")]
        other = helper.make_graph([node("Neg", ["h"], ["plain"], "neg")], "other", [], [out[1]])
        first = helper.make_graph([either("inner")], "first", [], [out[0]])
        last = node("If", ["c"], ["o"], "o", then_branch=first, else_branch=other)
    nodes = [
        node("Relu", ["x"], ["h"], "relu"),
        node("Shape", ["h"], ["shape"], "shape"),
        *{
            "known": [node("Gather", ["shape", "one"], ["d"]), node("Equal", ["d", "eight"], ["c"])],
            "by shape": [node("Gather", ["shape", "zero"], ["d"]), node("Equal", ["d", "eight"], ["c"])],
            "by value": [node("ReduceMax", ["x"], ["d"], keepdims=0), node("Greater", ["d", "half"], ["c"])],
        }[condition],
        last,
        node("Tanh", ["o"], ["y"], "tanh"),
    ]
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 8])
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    constants: dict[str, Array] = {
        "zero": np.array(0), "one": np.array(1), "eight": np.array(8), "half": np.array(0.5, F32),
        "w": weight(0, 8, 8),
    }  # fmt: skip
    initializers = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "g", [x], [y], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.a_few("known-True", "by shape-True")
@pytest.mark.ort
@pytest.mark.iree_cpu
@pytest.mark.usefixtures("provider")
@pytest.mark.parametrize("inner", [False, True])
@pytest.mark.parametrize("condition", ["known", "by shape", "by value"])
def test_an_if_is_claimed_as_a_whole_where_its_condition_follows_from_extents(condition: str, inner: bool) -> None:
    data = chosen(condition, inner=inner).SerializeToString()
    made = session(data, on_new_shape="wait")
    theirs: Any = ort.InferenceSession(data, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    for rows, size in ((8, 1.0), (3, 0.1)):
        x = (rng.uniform(0.6, 1, (rows, 8)) * size).astype(F32)
        np.testing.assert_allclose(made.run(None, {"x": x})[0], theirs.run(None, {"x": x})[0], rtol=1e-4, atol=1e-5)
    report = fusilli_plugin.ep_report(made)
    assert not report.problems
    assert not report.elsewhere, report
    if condition != "by value":  # which stays, or becomes both branches and a selection
        assert (report.claimed, report.groups) == (len(report.nodes), 1), report


# ---- the rules


def test_equalities_name_places_and_numbers() -> None:
    node = helper.make_node("Conv", ["x", "w"], ["y"], group=2)
    assert list(equalities(node, {"x": (1, None, 8, 8), "w": (6, 3, 3, 3)}, {})) == [Equality(("x", 1), 6)]
    node = helper.make_node("Add", ["x", "w"], ["y"])
    shapes = {"x": (1, 5, 7), "w": (3, 7)}
    assert list(equalities(node, shapes, {})) == [Equality(("x", 2), ("w", 1)), Equality(("x", 1), ("w", 0))]
    node = helper.make_node("Reshape", ["x", "t"], ["y"])
    assert next(equalities(node, {"x": (2, 5, 6)}, {"t": [0, 20]})) == Equality(("x", 2), 4)
    assert not list(equalities(node, {"x": (2, 5, 4)}, {"t": [0, 20]}))
    assert not list(equalities(helper.make_node("Unheard", ["x"], ["y"]), {"x": (1,)}, {}))


@pytest.mark.thorough
def test_claimed_nets_of_open_dims_give_the_right_values(provider: None) -> None:
    """With two shapes each."""
    for name, shapes in (("pyramid", (2, 3)), ("prelu", (2, 5))):
        model = Model(name)
        NETS[name](model)
        made = session(model, strict="1")
        for n in shapes:
            extents = {f"{axis}{level}": n << (5 - level) for axis in "hw" for level in (3, 4, 5)}
            check(model, made, 1e-5, model.feeds(0, {**extents, "n": n, "c": 12, "h": 3, "w": n}))


@pytest.mark.parametrize(("count", "propagates"), [(4, True), (22, False)])
def test_data_that_doubles_with_each_node_is_not_propagated(
    count: int, propagates: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Less than 1 KB of a model would take 70 bytes for each of 2^count elements, where ONNX Runtime takes none."""
    nodes = [helper.make_node("Shape", ["x"], ["t0"])]
    nodes += [helper.make_node("Concat", [f"t{i}"] * 2, [f"t{i + 1}"], axis=0) for i in range(count)]
    nodes.append(helper.make_node("Expand", ["one", f"t{min(count, 4)}"], ["y"]))
    x, y = (
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, dims) for name, dims in (("x", [2]), ("y", None))
    )
    one = numpy_helper.from_array(np.ones(1, F32), "one")
    model = helper.make_model(
        helper.make_graph(nodes, "g", [x], [y], [one]), opset_imports=[helper.make_opsetid("", 17)]
    )
    asked: list[bool] = []
    infer = client.infer_shapes

    def spy(model: onnx.ModelProto, **options: bool) -> onnx.ModelProto:
        asked.append(options.get("data_prop", False))
        return infer(model, **options)

    monkeypatch.setattr(client, "infer_shapes", spy)
    dims = inferred_model(model).graph.output[0].type.tensor_type.shape.dim
    assert any(asked) == propagates
    assert [dim.dim_value for dim in dims] == ([2] * 16 if propagates else [0] * 16)
