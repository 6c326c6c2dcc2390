"""ONNX Runtime as an engine: what it takes, on which memory it runs, what it keeps."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from fusilli_ground.errors import OptionError
from fusilli_plugin.engine.engine import FusilliEngine
from fusilli_plugin.engine.importers import export_graph
from fusilli_plugin.fallback.ort_engine import NAME, OnnxRuntimeEngine
from fusilli_plugin.ort_ep.engines import engines_for
from graph_api import DataType, Graph, NotSupportedError, PointwiseMode
from hipdnn_backend.engine import Override, is_fallback
from hipdnn_backend.errors import EngineError
from hipdnn_backend.host.registry import Registry
from hipdnn_backend.onnx_op import ONNX_OP
from hipdnn_backend.wire import CustomOpAttributes, EngineConfig, WireGraph, WireNode, WireTensor, encode_graph
from hipdnn_backend.wire import DataType as WireType
from iree_bridge import Device
from tests.support.standin_hip import standin

pytestmark = pytest.mark.ort

ROOT = Path(__file__).resolve().parents[2]
X = np.random.default_rng(0).standard_normal((2, 3), np.float32)


def _proto(*nodes: onnx.NodeProto, opset: int = 20, **types: tuple[int, tuple[int, ...]]) -> onnx.ModelProto:
    """A model whose last tensor is its output."""
    values = [helper.make_tensor_value_info(name, *type_) for name, type_ in types.items()]
    graph = helper.make_graph(list(nodes), "nodes", values[:-1], values[-1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def _wire(model: onnx.ModelProto, *tensors: WireTensor, inputs: tuple[int, ...] = (1,)) -> bytes:
    table = CustomOpAttributes(
        custom_op_id=ONNX_OP, input_tensor_uids=inputs, output_tensor_uids=(tensors[-1].uid,),
        data=model.SerializeToString(),
    )  # fmt: skip
    node = WireNode(name="left", compute_data_type=WireType.FLOAT, attributes=table)
    types = dict.fromkeys(("compute_data_type", "intermediate_data_type", "io_data_type"), WireType.FLOAT)
    return encode_graph(WireGraph(name="left", **types, tensors=tensors, nodes=(node,)))


def _tensor(uid: int, dims: tuple[int, ...], kind: WireType = WireType.FLOAT, **more: Any) -> WireTensor:
    strides = more.get("strides") or tuple(int(np.prod(dims[axis + 1 :])) for axis in range(len(dims)))
    return WireTensor(uid=uid, name=f"t{uid}", data_type=kind, dims=dims, strides=strides)


FLOATS = (TensorProto.FLOAT, (2, 3))
UNKNOWN = _proto(helper.make_node("Frob", ["x"], ["y"]), x=FLOATS, y=FLOATS)
MISH = _proto(helper.make_node("Mish", ["x"], ["y"]), x=FLOATS, y=FLOATS)
GRAPH = _wire(MISH, _tensor(1, (2, 3)), _tensor(2, (2, 3)))


def _built(graph: bytes = GRAPH) -> Any:
    engine = OnnxRuntimeEngine("cpu")
    return engine.build(graph, EngineConfig(engine_id=engine.id))


def _mish(x: np.ndarray) -> np.ndarray:
    return x * np.tanh(np.log1p(np.exp(x)))


def test_it_is_found_and_comes_last() -> None:
    engines = Registry.find(paths=[], environ={}).engines
    assert engines[-1].name == NAME
    assert [is_fallback(engine) for engine in engines] == [False] * (len(engines) - 1) + [True]


def test_it_comes_last_even_if_it_is_given_first() -> None:
    given = OnnxRuntimeEngine("cpu")
    engines = Registry.find([given], environ={}).engines
    assert engines[-1] is given
    assert len(engines) > 1


def test_the_execution_provider_has_no_use_for_it() -> None:
    device = Device.parse("cpu")
    assert [engine.name for engine in engines_for(device)] == ["FUSILLI_ENGINE"]
    with pytest.raises(OptionError, match=f"no engine {NAME}"):
        engines_for(device, [NAME])


def test_without_onnxruntime_it_is_left_out_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "onnxruntime" else object())
    with pytest.raises(NotSupportedError, match=r"onnxruntime is not installed; pip install 'fusilli-plugin\[ort\]'"):
        OnnxRuntimeEngine("cpu")


def test_it_takes_nothing_but_onnx() -> None:
    g = Graph("relu", io_data_type=DataType.FLOAT, compute_data_type=DataType.FLOAT)
    x = g.tensor("x", dim=(2, 3))
    g.pointwise(PointwiseMode.RELU_FWD, x).set_output(True)
    answer = OnnxRuntimeEngine("cpu").support(encode_graph(export_graph(g.validate())))
    assert not answer
    assert "nothing but the ONNX nodes" in answer.reason
    assert not OnnxRuntimeEngine("cpu").support(b"damaged")
    assert not FusilliEngine("cpu").support(GRAPH)
    assert OnnxRuntimeEngine("cpu").support(GRAPH)


def test_it_computes_in_place() -> None:
    plan = _built()
    assert plan.workspace_size == 0
    x, y = X.copy(), np.empty_like(X)
    call = plan.bind({1: x.ctypes.data, 2: y.ctypes.data})
    for factor in (1, -3):
        x[...] = X * np.float32(factor)
        call()
        np.testing.assert_allclose(y, _mish(X * np.float32(factor)), rtol=1e-5, atol=1e-6)
    z = np.empty_like(X)
    plan.execute({1: x.ctypes.data, 2: z.ctypes.data})
    np.testing.assert_array_equal(z, y)


def test_one_tensor_may_be_two_inputs_and_types_are_those_of_the_same_size() -> None:
    words = (TensorProto.UINT16, (4,))
    flags = (TensorProto.BOOL, (4,))
    model = _proto(helper.make_node("Equal", ["a", "b"], ["y"]), a=words, b=words, y=flags)
    graph = _wire(model, _tensor(7, (4,), WireType.HALF), _tensor(8, (4,), WireType.UINT8), inputs=(7, 7))
    words_in, flags_out = np.array([1, 65535, 3, 4], np.uint16), np.zeros(4, np.bool_)
    _built(graph).execute({7: words_in.ctypes.data, 8: flags_out.ctypes.data})
    assert flags_out.tolist() == [True] * 4


def test_a_newer_opset_than_it_knows_becomes_an_older_one() -> None:
    """RoiAlign of opset 22 says what that of opset 16 says, for which ONNX Runtime has a kernel."""
    node = helper.make_node("RoiAlign", ["x", "r", "b"], ["y"], output_height=1, output_width=1)
    types = {"x": (1, (1, 1, 4, 4)), "r": (1, (1, 4)), "b": (7, (1,)), "y": (1, (1, 1, 1, 1))}
    model = _proto(node, opset=22, **types)
    tensors = (_tensor(1, (1, 1, 4, 4)), _tensor(2, (1, 4)), _tensor(3, (1,), WireType.INT64), _tensor(4, (1, 1, 1, 1)))
    plan = _built(_wire(model, *tensors, inputs=(1, 2, 3)))
    x, y = np.full((1, 1, 4, 4), 2.5, np.float32), np.zeros((1, 1, 1, 1), np.float32)
    region, batch = np.array([[0, 0, 3, 3]], np.float32), np.zeros(1, np.int64)
    pack = {1: x.ctypes.data, 2: region.ctypes.data, 3: batch.ctypes.data, 4: y.ctypes.data}
    plan.execute(pack)
    assert y.item() == pytest.approx(2.5)
    y[...] = 0
    OnnxRuntimeEngine("cpu").restore(plan.serialize()).execute(pack)
    assert y.item() == pytest.approx(2.5)


@pytest.mark.parametrize(
    ("graph", "rule", "reason"),
    [
        (_wire(MISH, _tensor(1, (3, 2)), _tensor(2, (2, 3))), "dims", r"dims \(3, 2\), the nodes have"),
        (_wire(MISH, _tensor(1, (2, 3), WireType.HALF), _tensor(2, (2, 3))), "dtype", "of type float16"),
        (_wire(MISH, _tensor(1, (2, 3), strides=(1, 2)), _tensor(2, (2, 3))), "strides", "not packed"),
        (_wire(MISH, _tensor(1, (2, 3)), _tensor(2, (2, 3)), inputs=(1, 1)), "operands", "2 tensors, the nodes have 1"),
        (_wire(UNKNOWN, _tensor(1, (2, 3)), _tensor(2, (2, 3))), "onnxruntime", "Frob"),
    ],
    ids=["dims", "type", "strides", "operands", "unknown operator"],
)  # fmt: skip
def test_what_does_not_fit_is_declined(graph: bytes, rule: str, reason: str) -> None:
    answer = OnnxRuntimeEngine("cpu").support(graph)
    assert (answer.ok, answer.node, answer.rule) == (False, "left", rule)
    with pytest.raises(EngineError, match=reason):
        _built(graph)


def test_a_plan_as_bytes() -> None:
    plan = _built()
    saved = plan.serialize()
    restored = OnnxRuntimeEngine("cpu").restore(saved)
    x, y = X.copy(), np.empty_like(X)
    restored.execute({1: x.ctypes.data, 2: y.ctypes.data})
    np.testing.assert_allclose(y, _mish(X), rtol=1e-5, atol=1e-6)
    for position in (3, len(saved) // 2, len(saved) - 1):
        damaged = bytearray(saved)
        damaged[position] ^= 1
        with pytest.raises(EngineError):
            OnnxRuntimeEngine("cpu").restore(bytes(damaged))
    with pytest.raises(EngineError, match="is of kind 3; 2 holds compiled code"):
        FusilliEngine("cpu").restore(saved)


def test_misuse_is_an_error() -> None:
    plan, x = _built(), X.copy()
    with pytest.raises(EngineError, match=r"no buffer for tensors \[2\]"):
        plan.execute({1: x.ctypes.data})
    with pytest.raises(EngineError, match="dims that they were compiled for"):
        plan.execute({1: x.ctypes.data, 2: x.ctypes.data}, overrides={1: Override((1, 3), (3, 1))})
    plan.close()
    plan.close()
    for use in (plan.serialize, lambda: plan.bind({1: x.ctypes.data, 2: x.ctypes.data})):
        with pytest.raises(EngineError, match="closed"):
            use()


def test_what_fails_in_a_run_is_an_error() -> None:
    node = helper.make_node("Gather", ["x", "i"], ["y"])
    model = _proto(node, x=FLOATS, i=(TensorProto.INT64, (1,)), y=(TensorProto.FLOAT, (1, 3)))
    tensors = (_tensor(1, (2, 3)), _tensor(2, (1,), WireType.INT64), _tensor(3, (1, 3)))
    plan = _built(_wire(model, *tensors, inputs=(1, 2)))
    x, i, y = X.copy(), np.array([7]), np.zeros((1, 3), np.float32)
    with pytest.raises(EngineError, match="out of data bounds"):
        plan.execute({1: x.ctypes.data, 2: i.ctypes.data, 3: y.ctypes.data})


_ON_HIP = """
import sys
import numpy as np
from fusilli_plugin.fallback.ort_engine import OnnxRuntimeEngine
from hipdnn_backend.device.memory import HipMemory
from hipdnn_backend.wire import EngineConfig
from tests.fusilli_plugin.test_ort_engine import GRAPH, X, _mish
from tests.support.standin_hip.standin import Standin

hip = Standin(sys.argv[1])
memory, engine = HipMemory(0), OnnxRuntimeEngine("hip")
assert str(engine.target) == "gfx942", engine.target
plan = engine.build(GRAPH, EngineConfig(engine_id=engine.id))
x, y = memory.allocate(X.nbytes).write(X), memory.allocate(X.nbytes)
call = plan.bind({1: x.address, 2: y.address}, stream=memory.create_stream())
hip.take()
call()
calls = [event.call for event in hip.take() if event.call != "memcpy_sync"]
assert calls == ["synchronize", "memcpy", "memcpy"], calls
np.testing.assert_allclose(np.frombuffer(y.read(), np.float32).reshape(X.shape), _mish(X), rtol=1e-5, atol=1e-6)
print("fine")
"""


def test_operands_on_a_gpu_are_copied(tmp_path: Path) -> None:
    """On a stand-in for HIP: what comes in waits for the device, what goes out is there when the call returns."""
    library = standin.build(tmp_path / "hip")
    command = [sys.executable, "-c", _ON_HIP, str(library)]
    variables = {"PATH": os.defpath, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert done.stdout.endswith("fine\n")
