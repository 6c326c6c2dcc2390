"""What no engine compiles runs as ONNX in the last engine: the right numbers, each step told, saved and restored."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from fusilli_plugin.engine.engine import FusilliEngine
from fusilli_plugin.fallback.ort_engine import OnnxRuntimeEngine
from hipdnn_backend.engine import Support
from hipdnn_backend.offload import Model, compile_model, load
from hipdnn_backend.offload.errors import ModelError, PassError
from hipdnn_backend.offload.program.package import PackageError
from hipdnn_backend.offload.session import OffloadOptions
from tests.support.onnx_rewritten import ort

pytestmark = [pytest.mark.mlir, pytest.mark.iree_cpu, pytest.mark.ort]

ROOT = Path(__file__).resolve().parents[3]
OURS, LAST = "FUSILLI_ENGINE", "ONNXRUNTIME_ENGINE"
ENGINES = (FusilliEngine("cpu"), OnnxRuntimeEngine("cpu"))
Type = tuple[int, tuple[int, ...]]


def _node(op_type: str, inputs: str, outputs: str, **given: Any) -> onnx.NodeProto:
    return helper.make_node(op_type, inputs.split(), outputs.split(), outputs.split()[0], **given)


def _floats(*dims: int) -> Type:
    return TensorProto.FLOAT, dims


def _integers(*dims: int) -> Type:
    return TensorProto.INT64, dims


def _model(
    nodes: list[onnx.NodeProto], inputs: dict[str, Type], y: Type, constants: dict[str, np.ndarray] | None = None,
    opset: int = 20,
) -> onnx.ModelProto:  # fmt: skip
    values = [helper.make_tensor_value_info(name, *type_) for name, type_ in inputs.items()]
    weights = [numpy_helper.from_array(value, name) for name, value in (constants or {}).items()]
    graph = helper.make_graph(nodes, "model", values, [helper.make_tensor_value_info("y", *y)], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def _random(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """Numbers between 0 and 1; zeros for integers."""
    random = np.random.default_rng(0)
    found = {}
    for value in model.graph.input:
        tensor = value.type.tensor_type
        dims = [dim.dim_value for dim in tensor.shape.dim]
        floating = tensor.elem_type == TensorProto.FLOAT
        found[value.name] = random.random(dims, np.float32) if floating else np.zeros(dims, np.int64)
    return found


REGIONS = _model(
    [
        _node("Relu", "x", "a"), _node("RoiAlign", "a rois batch", "b", output_height=2, output_width=2),
        _node("Tanh", "b", "y"),
    ],
    {"x": _floats(1, 3, 8, 8), "rois": _floats(2, 4), "batch": _integers(2)}, _floats(2, 3, 2, 2),
)  # fmt: skip
CORNERS = _model(
    [
        _node("Relu", "x", "a"),
        helper.make_node(
            "Resize", ["a", "", "s"], ["b"], "b", mode="linear", coordinate_transformation_mode="align_corners"
        ),
        _node("Tanh", "b", "y"),
    ],
    {"x": _floats(1, 3, 8, 8)}, _floats(1, 3, 4, 4), {"s": np.array([1, 1, 0.55, 0.55], np.float32)},
)  # fmt: skip
BOXES = _model(
    [
        _node("NonMaxSuppression", "boxes scores most", "chosen"), _node("Cast", "chosen", "f", to=TensorProto.FLOAT),
        _node("ReduceSum", "f rows", "sums", keepdims=0), _node("Exp", "sums", "y"),
    ],
    {"boxes": _floats(1, 6, 4), "scores": _floats(1, 1, 6)}, _floats(3),
    {"most": np.array([3]), "rows": np.array([0])},
)  # fmt: skip
BODY = helper.make_graph(
    [_node("Add", "state row", "sum"), _node("Mul", "sum scale", "next"), _node("Identity", "next", "out")], "body",
    [helper.make_tensor_value_info(name, *_floats(4)) for name in ("state", "row")],
    [helper.make_tensor_value_info(name, *_floats(4)) for name in ("next", "out")],
)  # fmt: skip
LOOP = _model(
    [
        _node("ReduceMax", "x axes", "scale", keepdims=0),
        _node("Scan", "zero x", "end all", body=BODY, num_scan_inputs=1),
        _node("Add", "all end", "y"),
    ],
    {"x": _floats(2000, 4)}, _floats(2000, 4), {"zero": np.zeros(4, np.float32), "axes": np.array([0])},
)  # fmt: skip

STEP = helper.make_graph(
    [
        _node("Identity", "go", "again"), _node("Unsqueeze", "i first", "start"), _node("Add", "start one", "stop"),
        _node("Slice", "x start stop first", "row"), _node("Squeeze", "row first", "part"),
        _node("Mul", "part scale", "out"),
    ],
    "step",
    [helper.make_tensor_value_info("i", *_integers()), helper.make_tensor_value_info("go", TensorProto.BOOL, [])],
    [helper.make_tensor_value_info("again", TensorProto.BOOL, []), helper.make_tensor_value_info("out", *_floats(4))],
)  # fmt: skip
ROWS = _model(
    [
        _node("ReduceMax", "x axes", "scale", keepdims=0), _node("ReduceMax", "x", "top", keepdims=0),
        _node("Ceil", "top", "up"), _node("Cast", "up", "n", to=TensorProto.INT64),
        helper.make_node("Loop", ["n", ""], ["all"], "all", body=STEP),
        _node("Exp", "all", "y"),
    ],
    {"x": _floats(3, 4)}, _floats(1, 4),
    {"axes": np.array([0]), "first": np.array([0]), "one": np.array([1])},
)  # fmt: skip
ROWS.graph.value_info.append(helper.make_tensor_value_info("all", *_floats(1, 4)))

CONTROL = "CONTROL_ENGINE"
CASES = {
    "the engine refuses it": (REGIONS, [("a",), ("b",), ("y",)], LAST),
    "it is not converted": (CORNERS, [("a",), ("b",), ("y",)], LAST),
    "dims that only a run knows": (BOXES, [("chosen", "f", "sums"), ("y",)], LAST),
    "a body that reads a value of the graph": (LOOP, [("scale",), ("end",), ("y",)], CONTROL),
    "a body with nodes whose dims only a run knows": (
        ROWS,
        [("scale",), ("top", "up", "n"), ("all",), ("y",)],
        CONTROL,
    ),
}


def _engines(model: Model) -> dict[tuple[str, ...], str]:
    return {graph.nodes: graph.engine for graph in model.program.graphs}


@pytest.mark.parametrize("case", CASES)
def test_results_are_onnxruntime_s(case: str, tmp_path: Path) -> None:
    proto, graphs, last = CASES[case]
    feeds = _random(proto)
    with load(proto, engines=ENGINES, options=OffloadOptions(reproducers=tmp_path)) as model:
        left = next(nodes for nodes in graphs if nodes[0] in ("b", "chosen", "end", "all"))
        assert _engines(model) == {nodes: last if nodes == left else OURS for nodes in graphs}
        for given in (
            feeds,
            {name: array / 2 if array.dtype == np.float32 else array for name, array in feeds.items()},
        ):
            (got,) = model.run(given).values()
            np.testing.assert_allclose(got, ort(proto, given)[0], rtol=1e-5, atol=1e-6)
    assert not list(tmp_path.iterdir()), "an attempt that failed leaves nothing if the next one succeeds"


def test_each_step_is_told(caplog: pytest.LogCaptureFixture) -> None:
    with load(REGIONS, engines=ENGINES) as model:
        graph = next(each for each in model.about["graphs"].values() if each["engine"] == LAST)
        steps = [(step["nodes"], step["engine"], step["action"]) for step in model.about["splits"]]
        reasons = [step["reason"] for step in model.about["splits"]]
    assert graph["operations"] == ["onnx.RoiAlign"]
    assert "roi_align is refused" in graph["declined"][OURS]["reason"]
    assert steps == [(["b"], OURS, "split into 1 and 1 operations"), (["b"], OURS, f"left to {LAST}")]
    assert all("roi_align is refused" in reason for reason in reasons)
    with load(CORNERS, engines=ENGINES) as model:
        (step,) = model.about["splits"]
    assert (step["nodes"], step["engine"], step["action"]) == (["b"], "front end", f"left to {LAST}")
    assert step["reason"].startswith("Resize: align_corners with scale 0.55 of 8")
    first, second = (record.getMessage() for record in caplog.records if record.name.endswith("attempts"))
    assert first.startswith(f"model 'model': b stays ONNX and is run by {LAST}, because: {OURS}: custom operation")
    assert second.startswith(f"model 'model': b stays ONNX and is run by {LAST}, because: Resize: align_corners")


def test_it_is_among_the_engines_of_this_process() -> None:
    with load(CORNERS) as model:
        assert _engines(model)[("b",)] == LAST


def test_without_it_the_error_is_the_front_end_s_or_the_engine_s(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="Resize: align_corners with scale") as caught:
        load(CORNERS, engines=ENGINES[:1])
    assert (caught.value.node, caught.value.rule) == ("b", "resize")
    with pytest.raises(PassError, match=r"no engine compiles torch.torchvision.roi_align \(node b\)") as failed:
        load(REGIONS, engines=ENGINES[:1], options=OffloadOptions(reproducers=tmp_path))
    assert list(tmp_path.iterdir()) == [failed.value.reproducer]


class Picky(OnnxRuntimeEngine):
    """Takes nothing."""

    def support(self, graph: bytes) -> Support:
        return Support.no("not today", rule="mood")


def test_if_it_declines_too_both_reasons_are_told(tmp_path: Path) -> None:
    engines = (ENGINES[0], Picky("cpu"))
    with pytest.raises(ModelError, match=rf"b: Resize: align_corners .*{LAST}: not today") as caught:
        load(CORNERS, engines=engines, options=OffloadOptions(reproducers=tmp_path))
    assert caught.value.rule == "unsupported-operator"
    assert not list(tmp_path.iterdir())
    with pytest.raises(PassError, match=rf"no engine compiles .*roi_align \(node b\): .*{LAST}: not today") as failed:
        load(REGIONS, engines=engines, options=OffloadOptions(reproducers=tmp_path))
    assert list(tmp_path.iterdir()) == [failed.value.reproducer]


def test_dims_that_are_not_known_stay_an_error() -> None:
    model = _model([_node("NonZero", "x", "z"), _node("Cast", "z", "y", to=1)], {"x": _floats(2, 3)}, _floats(2, 1))
    with pytest.raises(ModelError, match="values that only a run knows decide the dims"):
        load(model, engines=ENGINES)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "grid.fusilli"
    with load(CORNERS, engines=ENGINES) as model:
        model.save(path)
    return path


def test_a_saved_model_has_the_nodes(saved: Path) -> None:
    feeds = _random(CORNERS)
    with load(saved, engines=ENGINES) as model:
        np.testing.assert_allclose(model.run(feeds)["y"], ort(CORNERS, feeds)[0], rtol=1e-5, atol=1e-6)
    with pytest.raises(PackageError, match=rf"plan 1 is of engine {LAST}, which is not here; there are: {OURS}"):
        load(saved, engines=ENGINES[:1])


_ELSEWHERE = """
import sys

blocked = ["torch_mlir", "torch", "onnx", *sys.argv[2:]]
sys.modules.update(dict.fromkeys(blocked))
from hipdnn_backend.offload import load
from hipdnn_backend.offload.program.package import PackageError
import numpy as np

try:
    with load(sys.argv[1]) as model:
        feeds = {each.name: np.full(each.dims, 0.25, each.dtype) for each in model.inputs}
        print(model.run(feeds)["y"].ravel().tolist())
except PackageError as error:
    print(error)
"""


def _elsewhere(saved: Path, *blocked: str) -> str:
    """What a process without torch-mlir, onnx and other modules prints."""
    command = [sys.executable, "-c", _ELSEWHERE, str(saved), *blocked]
    variables = {"PATH": os.defpath, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip()


def test_a_saved_model_needs_onnxruntime_alone_for_them(saved: Path) -> None:
    feeds = {"x": np.full((1, 3, 8, 8), 0.25, np.float32)}
    np.testing.assert_allclose(json.loads(_elsewhere(saved)), ort(CORNERS, feeds)[0].ravel(), rtol=1e-5)
    said = _elsewhere(saved, "onnxruntime")
    assert f"is of engine {LAST}, which is not here" in said
    assert "onnxruntime is not installed; pip install 'fusilli-plugin[ort]'" in said


def test_a_target_that_is_not_here_gets_the_nodes_too() -> None:
    """Relu and Tanh are compiled for the GPU; the node between them is kept."""
    engines = [engine.for_target("gfx942") for engine in ENGINES]
    _name, (variant,) = compile_model(CORNERS, {"gfx942": engines})
    assert [plan.engine for plan in variant.plans] == [OURS, LAST, OURS]
