"""Option ``inputs``: code for values that inputs are expected to have; another value gets the right answer as well."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import fusilli_plugin
from hipdnn_backend.offload.background import background
from tests.fusilli_plugin.ort_ep.models import Model, check, session, weight

pytestmark = [pytest.mark.ort, pytest.mark.iree_cpu, pytest.mark.usefixtures("provider")]

F32 = np.float32


def reshaped() -> Model:
    """x in dims that an input says, times a matrix."""
    model = Model("reshaped")
    x, shape = model.input("x", "n", 24), model.input("shape", 3, dtype=np.int64)
    y = model.add("Reshape", model.add("Relu", x), shape)
    return model.output(model.add("Tanh", model.add("MatMul", y, model.constant("w", weight(0, 6, 4)))))


def feeds(n: int, *shape: int) -> dict[str, Any]:
    return {"x": weight(n, n, 24), "shape": np.array(shape)}


def claimed(made: Any) -> set[str]:
    return {node.op_type for node in fusilli_plugin.ep_report(made).nodes if node.group}


@pytest.mark.thorough
def test_what_an_input_says_is_known_to_the_code_and_held_against_each_run() -> None:
    model = reshaped()
    assert "Reshape" not in claimed(session(model))
    made = session(model, inputs="shape=[-1,4,6]", on_new_shape="wait")
    assert claimed(made) == {"Relu", "Reshape", "MatMul", "Tanh"}
    for each in (feeds(2, -1, 4, 6), feeds(3, -1, 4, 6), feeds(2, 2, 4, 6), feeds(2, 8, 1, 6), feeds(2, 1, 8, 6)):
        check(model, made, 1e-6, each)
    report = fusilli_plugin.ep_report(made)
    ((counted),) = report.shapes.values()
    found = counted["x [2, 24], shape [3]"]
    assert (found.hits, found.fallbacks, found.compiles) == (1, 3, 1)
    (why,) = report.elsewhere.values()
    assert why == {"x [2, 24], shape [3]": "an input among 'shape' has another value than option inputs says"}


@pytest.mark.thorough
def test_dims_that_are_known_but_for_what_an_input_says() -> None:
    """The group has static inputs; the dims of its results follow from a value."""
    model = Model("static")
    x, shape = model.input("x", 2, 12), model.input("shape", 2, dtype=np.int64)
    model.output(model.add("Tanh", model.add("Reshape", model.add("Relu", x), shape)))
    made = session(model, inputs="shape=[4,6]")
    assert claimed(made) == {"Relu", "Reshape", "Tanh"}
    for dims in ((4, 6), (6, 4), (24, 1), (4, 6)):
        check(model, made, 1e-6, {"x": weight(0, 2, 12), "shape": np.array(dims)})


def test_a_strict_session_raises_if_the_value_is_another() -> None:
    made = session(reshaped(), inputs="shape=[-1,4,6]", strict="1")
    check(reshaped(), made, 1e-6, feeds(2, -1, 4, 6))
    with pytest.raises(Exception, match="an input among 'shape' has another value than option inputs says"):
        made.run(None, feeds(2, 2, 4, 6))


def chosen() -> onnx.ModelProto:
    """An If whose condition is an input: x · w, or x + 1."""

    def branch(nodes: list[onnx.NodeProto], name: str) -> onnx.GraphProto:
        return helper.make_graph(nodes, name, [], [helper.make_tensor_value_info(name, TensorProto.FLOAT, None)])

    yes = branch(
        [helper.make_node("MatMul", ["x", "w"], ["a"], "a"), helper.make_node("Relu", ["a"], ["yes"], "r")], "yes"
    )
    no = branch([helper.make_node("Add", ["x", "one"], ["no"], "no")], "no")
    choice = helper.make_node("If", ["flag"], ["y"], "choice", then_branch=yes, else_branch=no)
    last = helper.make_node("Tanh", ["y"], ["z"], "last")
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4]),
        helper.make_tensor_value_info("flag", TensorProto.BOOL, []),
    ]
    constants = [numpy_helper.from_array(weight(0, 4, 4), "w"), numpy_helper.from_array(np.ones(1, F32), "one")]
    outputs = [helper.make_tensor_value_info("z", TensorProto.FLOAT, None)]
    graph = helper.make_graph([choice, last], "chosen", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.a_few("true")
@pytest.mark.parametrize("bound", ["true", "false"])
def test_a_condition_can_be_bound(bound: str) -> None:
    data = chosen().SerializeToString()
    made: Any = session(data, inputs=f"flag={bound}", on_new_shape="wait")
    x = weight(1, 3, 4)
    for flag in (True, False, True):
        (got,) = made.run(None, {"x": x, "flag": np.array(flag)})
        want = np.tanh(np.maximum(x @ weight(0, 4, 4), 0) if flag else x + 1)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    assert "If" in claimed(made)


def test_a_shape_that_the_session_computes_follows_from_a_bound_input() -> None:
    """The target of a Reshape is computed from a size, with arithmetic that the group takes along."""
    model = Model("computed")
    x, size = model.input("x", "n", 24), model.input("size", dtype=np.int64)
    one = model.add("Unsqueeze", size, model.constant("zero", np.array([0])))
    rest = model.add("Div", model.constant("all", np.array([24])), one)
    target = model.add("Concat", model.constant("minus", np.array([-1])), one, rest, axis=0)
    y = model.add("Reshape", model.add("Relu", x), target)
    model.output(model.add("Softmax", y, axis=-1))
    made = session(model, inputs="size=4", on_new_shape="wait")
    assert "Reshape" in claimed(made)
    for n, each in ((2, 4), (2, 6), (5, 4), (1, 24)):
        check(model, made, 1e-6, {"x": weight(n, n, 24), "size": np.array(each)})


@pytest.mark.thorough
def test_sizes_and_bound_inputs_go_together() -> None:
    made = session(reshaped(), inputs="shape=[-1,4,6]", shapes="n=2,4")
    for n in (1, 2, 3, 4):
        check(reshaped(), made, 1e-6, feeds(n, -1, 4, 6))
    (counted,) = fusilli_plugin.ep_report(made).shapes.values()
    assert counted["x [3, 24], shape [3]"].padded == 1
    check(reshaped(), made, 1e-6, feeds(3, 3, 4, 6))


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        ("shap=[1]", "inputs: shap: the model has no such input to bind; its inputs are x, shape"),
        ("shape=[1,2]", r"shape: has dims \[3\], the value \[2\]"),
        ("shape", "option 'inputs'.*names and values separated by blanks"),
        ("shape=[1,", "option 'inputs'.*names and values separated by blanks"),
        ('shape="abc"', "option 'inputs'.*names and values separated by blanks"),
    ],
)
def test_bad_values_are_refused(inputs: str, says: str) -> None:
    with pytest.raises(Exception, match=says):
        session(reshaped(), inputs=inputs)


@pytest.mark.thorough
def test_dims_without_a_name_are_given_by_their_input() -> None:
    """Without a number for it, the dim is guessed, and the guess does not fit the graph."""
    model = Model("parts")
    x = model.input("x", "n", 24)
    y = model.add("Reshape", x, model.constant("t", np.array([0, 4, 6])))
    model.output(model.add("MatMul", y, model.constant("w", weight(0, 6, 4))))
    proto = model.proto()
    proto.graph.input[0].type.tensor_type.shape.dim[0].Clear()
    made: Any = session(proto.SerializeToString(), dims="x.0=3", on_new_shape="wait")
    check(model, made, 1e-6, model.feeds(0, {"n": 5}))
    assert background.wait(60)
    del made
    gc.collect()
