"""Sessions with small models on the CPU: what is claimed, what comes out, what is refused."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

import fusilli_plugin
from fusilli_plugin.ort_ep import nodes
from fusilli_plugin.ort_ep.errors import ProviderError
from tests.fusilli_plugin.ort_ep.models import MS, Model, add, check, conv_relu, reference, session, weight

pytestmark = [pytest.mark.ort, pytest.mark.iree_cpu, pytest.mark.usefixtures("provider")]

F32, F16 = np.float32, np.float16


def test_devices_are_offered_by_name() -> None:
    (device,) = fusilli_plugin.ep_devices()
    assert (device.ep_name, device.ep_vendor) == ("HipDNNExecutionProvider", "AMD")
    assert device.ep_metadata["device"] == "cpu"
    with pytest.raises(Exception, match="no device 'hip:7'; it has cpu"):
        fusilli_plugin.ep_devices("hip:7")


def test_an_unknown_option_fails_the_session_and_names_the_valid_ones() -> None:
    with pytest.raises(Exception, match="no option 'strikt'.*max_shapes, min_nodes, on_new_shape, shapes, strict"):
        session(add(), strikt="1")


def test_a_model_of_which_nothing_is_claimed_runs() -> None:
    model = Model("strings")
    y = model.add("Transpose", model.input("x", 1, 2, dtype=np.object_))
    made = session(model.output(y, dtype=np.object_))
    assert made.run(None, {"x": np.array([["a", "b"]], object)})[0].tolist() == [["a"], ["b"]]
    report = fusilli_plugin.ep_report(made)
    assert (report.claimed, report.problems) == (0, ())
    assert "no tensor of numbers" in str(report)


def test_a_report_needs_a_session_of_the_provider() -> None:
    made = ort.InferenceSession(add().data(), providers=["CPUExecutionProvider"])
    with pytest.raises(LookupError, match="does not use HipDNNExecutionProvider"):
        fusilli_plugin.ep_report(made)


def test_an_onnx_runtime_that_is_too_old_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(ort, "register_execution_provider_library")
    monkeypatch.setattr(ort, "__version__", "1.21.0")
    with pytest.raises(ProviderError, match=r"onnxruntime 1\.21\.0 is too old: 1\.24\.4 or newer"):
        fusilli_plugin.ep_devices("cpu")


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """How each run of a group was made, in order: on C's stage, or on ONNX Runtime's addresses."""
    found: list[str] = []
    launcher, run = nodes.ShapePlan.launcher, nodes.ShapePlan.run

    def noted_launcher(self: nodes.ShapePlan) -> Callable[[], None]:
        launch = launcher(self)
        return lambda: (found.append("stage"), launch())[1]

    monkeypatch.setattr(nodes.ShapePlan, "launcher", noted_launcher)
    monkeypatch.setattr(nodes.ShapePlan, "run", lambda self, *given: (found.append("addresses"), run(self, *given))[1])
    return found


def rows(count: int) -> Model:
    """An addition of ``count`` rows of 4 KiB."""
    model = Model("rows")
    return model.output(model.add("Add", model.input("a", count, 1024), model.input("b", count, 1024)))


@pytest.mark.a_few("3-addresses")
@pytest.mark.parametrize(("count", "way"), [(1, "stage"), (2, "stage"), (3, "addresses"), (32, "addresses")])
def test_small_tensors_go_through_a_stage_and_large_ones_are_used_in_place(
    runs: list[str], count: int, way: str
) -> None:
    model = rows(count)
    made = session(model)
    kept = model.feeds(0)
    for seed in (0, 1, 0, 0, 0, 2, 0):  # addresses that change and addresses that stay
        feeds = kept if seed == 0 else model.feeds(seed)
        np.testing.assert_array_equal(made.run(None, feeds)[0], feeds["a"] + feeds["b"])
    assert runs == [way] * 7


def test_a_thread_that_finds_the_stage_taken_does_without(monkeypatch: pytest.MonkeyPatch, runs: list[str]) -> None:
    """The first run waits inside the group until a second one of the same session has finished."""
    entered, finished = threading.Event(), threading.Event()
    launcher = nodes.ShapePlan.launcher

    def slow_launcher(self: nodes.ShapePlan) -> Callable[[], None]:
        launch = launcher(self)

        def wait_and_launch() -> None:
            if not entered.is_set():
                entered.set()
                assert finished.wait(60)
            launch()

        return wait_and_launch

    monkeypatch.setattr(nodes.ShapePlan, "launcher", slow_launcher)
    made, first, second = session(add()), add().feeds(1), add().feeds(2)
    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(made.run, None, first)
        assert entered.wait(60)
        np.testing.assert_array_equal(made.run(None, second)[0], second["a"] + second["b"])
        finished.set()
        np.testing.assert_array_equal(pending.result(60)[0], first["a"] + first["b"])
    assert runs == ["addresses", "stage"]
    made.run(None, first)
    assert runs[2:] == ["stage"]


@pytest.mark.parametrize("rows_", ["n", 0])
def test_empty_tensors(rows_: int | str) -> None:
    model = Model("empty")
    x, w = model.input("x", rows_, 8), model.constant("w", weight(0, 8, 4))
    made = session(model.output(model.add("MatMul", x, w)))
    for count in (0, 3, 0) if rows_ == "n" else (0,):
        feeds = {"x": np.ones((count, 8), F32)}
        check(model, made, 1e-5, feeds)


def test_constants_go_into_the_group_and_equal_groups_are_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from fusilli_plugin.ort_ep import offloading

    compiled: list[onnx.ModelProto] = []
    original = offloading._compile
    monkeypatch.setattr(
        offloading, "_compile", lambda model, *given: (compiled.append(model), original(model, *given))[1]
    )
    model = Model("twice")
    w = model.constant("w", weight(0, 8, 8))
    x = model.input("x", 4, 8)
    first = model.add("MatMul", x, w)
    odd = model.add("NonZero", first)  # no engine takes it
    model.output(model.add("MatMul", model.input("z", 4, 8), w)).output(odd, dtype=np.int64)
    made = session(model)
    check(model, made, 1e-5, model.feeds())
    assert len(compiled) == 1
    assert [len(each.graph.input) for each in compiled] == [1]


@pytest.mark.thorough
def test_unsigned_constants_and_results() -> None:
    model = Model("unsigned", np.uint8)
    shift = model.constant("c", np.array([200, 1, 7, 0], np.uint8))
    made = session(model.output(model.add("Add", model.input("x", 4), shift)), strict="1")
    assert fusilli_plugin.ep_report(made).claimed == 1
    x = np.array([50, 254, 0, 130], np.uint8)
    assert made.run(None, {"x": x})[0].tolist() == [250, 255, 7, 130]


def test_a_node_that_does_not_compile_leaves_the_others_of_its_group(monkeypatch: pytest.MonkeyPatch) -> None:
    from fusilli_plugin.ort_ep import offloading

    original = offloading._compile

    def picky(model: onnx.ModelProto, *given: Any) -> Any:
        """No engine compiles a Tanh."""
        bad = {node.name: "no code for Tanh" for node in model.graph.node if node.op_type == "Tanh"}
        if bad:
            raise offloading.UncompiledError("no code for Tanh", bad, None)
        return original(model, *given)

    monkeypatch.setattr(offloading, "_compile", picky)
    model = Model("three")
    model.output(model.add("Relu", model.add("Tanh", model.add("Sigmoid", model.input("x", 4, 8)))))
    made = session(model)
    report = fusilli_plugin.ep_report(made)
    assert {node.op_type: bool(node.group) for node in report.nodes} == {"Sigmoid": True, "Tanh": False, "Relu": True}
    assert [node.reason for node in report.nodes if not node.group] == ["no code for Tanh"]
    assert len(report.problems) == 1
    check(model, made, 1e-6, model.feeds())
    with pytest.raises(Exception, match="strict.*no code for Tanh"):
        session(model, strict="1")


@pytest.mark.thorough
def test_an_axis_that_is_known_at_run_time_only_is_a_reason_and_no_problem() -> None:
    """That part of CumSum is no hipDNN operation; whether it compiles is seen when it is tried."""
    model = Model("cumsum")
    x, axis = model.input("x", 5), model.input("axis", dtype=np.int32)
    made = session(model.output(model.add("CumSum", x, axis, exclusive=1)), strict="1")
    (node,) = fusilli_plugin.ep_report(made).nodes
    assert not node.group
    assert "no engine compiles torch.aten.cumsum" in node.reason
    feeds = {"x": np.arange(5, dtype=F32), "axis": np.array(0, np.int32)}
    assert made.run(None, feeds)[0].tolist() == [0, 0, 1, 3, 6]


def test_a_node_that_is_known_at_run_time_only_leaves_the_others() -> None:
    """It is of an old opset, so the pipeline sees another in its place."""
    model = Model("upsample", opset=9)
    x, scales = model.input("x", 1, 1, 2, 2), model.input("scales", 4)
    made = session(model.output(model.add("Upsample", model.add("Sigmoid", x), scales)), strict="1")
    sigmoid, upsample = fusilli_plugin.ep_report(made).nodes
    assert sigmoid.group
    assert "'scales' has to be known, but is an input" in upsample.reason
    data = np.array([[[[-1, 0], [1, 2]]]], F32)
    (y,) = made.run(None, {"x": data, "scales": np.array([1, 1, 2, 3], F32)})
    want = 1 / (1 + np.exp(-data.astype(np.float64)))
    np.testing.assert_allclose(y, want.repeat(2, 2).repeat(3, 3), rtol=1e-6)


@pytest.mark.thorough
def test_dropout_with_its_mask_is_part_of_a_group() -> None:
    model = Model("dropout")
    h = model.add("Dropout", model.add("Sigmoid", model.input("x", 3, 4)), outputs=2)
    model.output(model.add("Tanh", h)).output(f"{h}1", dtype=bool)
    made = session(model, strict="1")
    assert [bool(node.group) for node in fusilli_plugin.ep_report(made).nodes] == [True, True, True]
    x = np.linspace(-2, 2, 12, dtype=F32).reshape(3, 4)
    y, mask = made.run(None, {"x": x})
    np.testing.assert_allclose(y, np.tanh(1 / (1 + np.exp(-x.astype(np.float64)))), rtol=1e-5)
    np.testing.assert_array_equal(mask, np.ones((3, 4), bool))


# ---- dims that are not known


def test_a_group_with_a_batch_dim_is_compiled_per_shape(caplog: pytest.LogCaptureFixture) -> None:
    model = conv_relu(batch="batch")
    made = session(model, strict="1", max_shapes="2")
    assert fusilli_plugin.ep_report(made).claimed == 2
    for size in (1, 3, 1, 3, 2, 1):
        feeds = model.feeds(size, {"batch": size})
        check(model, made, 1e-5, feeds)
    # 1, 3 and 2 were compiled; 1 was forgotten for 2, and compiled again
    assert list(fusilli_plugin.ep_report(made).specialisations.values()) == [4]


def test_dims_that_the_model_has_not_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    made = session(conv_relu(batch="batch"), dims="batch=2,bach=3,height=4")
    assert fusilli_plugin.ep_report(made).claimed == 2
    warned = [record.getMessage() for record in caplog.records if "option 'dims'" in record.getMessage()]
    assert warned == [
        f"option 'dims' of HipDNNExecutionProvider: no dim without a size is called '{name}'{hint}; in model "
        "'conv_relu' there are: batch"
        for name, hint in (("bach", " (did you mean batch?)"), ("height", ""))
    ]
    caplog.clear()
    session(conv_relu(batch="batch"), dims="batch=2")
    session(add(), dims="n=1")
    assert [
        "there are: none" in record.getMessage() for record in caplog.records if "'dims'" in record.getMessage()
    ] == [True]


def test_a_shape_that_does_not_fit_is_an_error_with_the_nodes_names() -> None:
    model = Model("product")
    made = session(
        model.output(model.add("MatMul", model.input("a", "m", "k"), model.input("b", "l", 4))), dims="k=4,l=4"
    )
    assert fusilli_plugin.ep_report(made).claimed == 1
    with pytest.raises(Exception, match="MatMul 'matmul_0'.*incompatible|MatMul 'matmul_0'.*[Dd]im"):
        made.run(None, {"a": np.ones((2, 3), F32), "b": np.ones((5, 4), F32)})


# ---- strict mode, problems, dumps


def test_strict_mode_raises_if_something_goes_wrong_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    from fusilli_plugin.ort_ep import examining

    def broken(*_: object) -> None:
        raise RuntimeError("the sky fell")

    monkeypatch.setattr(examining, "survey", broken)
    with pytest.raises(Exception, match="strict.*the sky fell"):
        session(add(), strict="1")
    made = session(add())  # otherwise ONNX Runtime runs it
    assert "the sky fell" in fusilli_plugin.ep_report(made).problems[0]
    check(add(), made, 0, add().feeds())


def test_strict_mode_raises_if_a_supported_node_is_left_out() -> None:
    assert fusilli_plugin.ep_report(session(add(), min_nodes="2")).claimed == 0
    with pytest.raises(Exception, match="add_0' stays with ONNX Runtime although FUSILLI_ENGINE supports it"):
        session(add(), strict="1", min_nodes="2")


def test_what_does_not_compile_stays_with_onnx_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    from fusilli_plugin.ort_ep import offloading

    def broken(*_: object) -> None:
        raise RuntimeError("no code today")

    monkeypatch.setattr(offloading, "_compile", broken)
    model = conv_relu(F16, batch=2)
    made = session(model)
    report = fusilli_plugin.ep_report(made)
    assert report.claimed == 0
    assert "no code today" in report.nodes[0].reason
    assert report.problems
    check(model, made, 0, model.feeds())


def test_an_error_in_a_run_names_the_nodes(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("the device is on fire")

    monkeypatch.setattr(nodes.ShapePlan, "launcher", lambda self: broken)
    made = session(conv_relu(), strict="1")
    with caplog.at_level(logging.CRITICAL), pytest.raises(Exception, match="Conv 'conv_0'.*the device is on fire"):
        made.run(None, conv_relu().feeds())


def test_groups_are_dumped_as_models_that_run(tmp_path: Path) -> None:
    model = conv_relu()
    session(model, dump=str(tmp_path / "dump"))
    (folder,) = (tmp_path / "dump").iterdir()
    assert {path.suffix for path in folder.iterdir()} == {".onnx", ".json", ".bin"}
    feeds = model.feeds()
    dumped = ort.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(np.asarray(dumped.run(None, feeds)[0]), reference(model, feeds)[0], rtol=1e-6)


def test_io_binding_and_parallel_execution() -> None:
    model = conv_relu()
    made = session(model)
    feeds = model.feeds()
    binding = made.io_binding()
    binding.bind_cpu_input("x", feeds["x"])
    binding.bind_output(made.get_outputs()[0].name)
    made.run_with_iobinding(binding)
    np.testing.assert_allclose(binding.copy_outputs_to_cpu()[0], reference(model, feeds)[0], rtol=1e-5, atol=1e-6)


def of_graph(nodes_: list[onnx.NodeProto], inputs: list[Any], outputs: list[Any]) -> bytes:
    graph = helper.make_graph(nodes_, "g", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


def test_an_if_keeps_its_branches_and_they_are_claimed() -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 4])
    condition = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 4])

    def branch(name: str, op_type: str) -> onnx.GraphProto:
        out = helper.make_tensor_value_info(f"{name}_y", TensorProto.FLOAT, [4, 4])
        return helper.make_graph([helper.make_node(op_type, ["h"], [f"{name}_y"], name)], name, [], [out])

    nodes_ = [
        helper.make_node("Relu", ["x"], ["h"], "before"),
        helper.make_node(
            "If", ["c"], ["y"], "if", then_branch=branch("then", "Sigmoid"), else_branch=branch("else", "Tanh")
        ),
    ]
    made = session(of_graph(nodes_, [x, condition], [y]))
    data = np.random.default_rng(0).standard_normal((4, 4)).astype(F32)
    kept = np.maximum(data, 0).astype(np.float64)
    for flag, want in ((True, 1 / (1 + np.exp(-kept))), (False, np.tanh(kept))):
        np.testing.assert_allclose(made.run(None, {"x": data, "c": np.array(flag)})[0], want, rtol=1e-5, atol=1e-6)
    report = fusilli_plugin.ep_report(made)
    claimed = {node.op_type for node in report.nodes if node.group}
    assert claimed == {"Relu", "Sigmoid", "Tanh"}


@pytest.mark.thorough
def test_a_loop_whose_body_reads_nothing_from_outside() -> None:
    """Three times x is doubled and squashed."""
    x, y, h = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xyh")
    carried = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in ("before", "after")]
    step = helper.make_tensor_value_info("step", TensorProto.INT64, [])
    on, still = (helper.make_tensor_value_info(name, TensorProto.BOOL, []) for name in ("on", "still"))
    inner = [
        helper.make_node("Add", ["before", "before"], ["twice"], "twice"),
        helper.make_node("Sigmoid", ["twice"], ["after"], "squash"),
        helper.make_node("Identity", ["on"], ["still"], "still"),
    ]
    body = helper.make_graph(inner, "body", [step, on, carried[0]], [still, carried[1]])
    three = helper.make_node("Constant", [], ["three"], value=helper.make_tensor("n", TensorProto.INT64, [], [3]))
    nodes_ = [
        three,
        helper.make_node("Loop", ["three", "", "x"], ["h"], "loop", body=body),
        helper.make_node("Tanh", ["h"], ["y"], "last"),
    ]
    made = session(of_graph(nodes_, [x], [y, h]))
    data = np.random.default_rng(0).standard_normal(4).astype(F32)
    want = data.astype(np.float64)
    for _ in range(3):
        want = 1 / (1 + np.exp(-2 * want))
    got_y, got_h = made.run(None, {"x": data})
    np.testing.assert_allclose(got_h, want, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(got_y, np.tanh(want), rtol=1e-5, atol=1e-6)
    claimed = {node.op_type for node in fusilli_plugin.ep_report(made).nodes if node.group}
    assert claimed == {"Add", "Sigmoid", "Tanh"}


def test_operators_that_nobody_knows_stay_where_they_are() -> None:
    model = Model("gelu")
    model.output(
        model.add("Relu", model.add("BiasSplitGelu", model.input("x", 2, 4, 8), model.input("b", 8), domain=MS))
    )
    with pytest.raises(Exception, match="BiasSplitGelu"):  # ONNX Runtime has no CPU kernel for it
        session(model)


def test_the_positions_of_maxima() -> None:
    model = Model("positions")
    y = model.add("MaxPool", model.input("x", 2, 3, 7, 6), outputs=2, kernel_shape=[3, 2], strides=[2, 2])
    model.output(y)
    model.output(f"{y}1", dtype=np.int64)
    made = session(model)
    assert [node.group for node in fusilli_plugin.ep_report(made).nodes] == [1]
    check(model, made, 0.0)
