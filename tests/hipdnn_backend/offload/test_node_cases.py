"""ONNX's own node tests, compiled and run on the CPU by `FusilliBackend`; what fails is listed with its reason.

Cases run in processes of their own, so that a crash is an outcome like others.
"""

from __future__ import annotations

import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from fusilli_plugin.checks.onnx_backend import FusilliBackend
from hipdnn_backend.offload.errors import ModelError
from tests.support.node_cases import load_cases, run_isolated

pytestmark = pytest.mark.iree_cpu

_OPERATORS = {
    *("Conv", "ConvTranspose", "Gemm", "MatMul", "BatchNormalization", "Relu", "Add", "MaxPool", "AveragePool"),
    *("GlobalAveragePool", "GlobalMaxPool", "LayerNormalization", "RMSNormalization", "Softmax", "LogSoftmax"),
    *("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "Sigmoid", "Tanh", "Gelu", "Elu", "Attention"),
    *("GroupNormalization", "InstanceNormalization", "Sub", "Mul", "Div", "Exp", "Sqrt", "Erf", "Clip", "Concat"),
    *("Flatten", "Transpose", "Reshape", "LeakyRelu", "Selu", "Celu", "Softplus", "Softsign", "HardSigmoid"),
    *("HardSwish", "Mish", "PRelu", "ThresholdedRelu", "Swish", "Identity", "RotaryEmbedding", "ConvInteger"),
    "MatMulInteger",
}
"""Operators whose single-node cases have to pass; there are 413."""

_FAILING = {
    "test_identity_sequence": "the input is sequence type; only tensors can be fed",
    "test_identity_opt": "the input is optional type; only tensors can be fed",
}
"""Case of these → part of what is said when it fails."""

_SAMPLE = {
    "add": ("test_add_bcast", "test_add_uint16", "test_add_uint8"),
    "attention": ("test_attention_4d_causal", "test_attention_local_window_expanded"),
    "batch_normalization": ("test_batchnorm_example",),
    "castlike": ("test_castlike_FLOAT_to_FLOAT16",),
    "clip": ("test_clip_example",),
    "conv": ("test_conv_with_strides_and_asymmetric_padding",),
    "convinteger": ("test_convinteger_with_padding",),
    "convtranspose": ("test_convtranspose_group_2",),
    "dft": ("test_dft_irfft",),
    "div": ("test_div_uint32",),
    "gelu": ("test_gelu_tanh_1",),
    "gemm": ("test_gemm_transposeA",),
    "identity": ("test_identity_sequence",),
    "layernormalization": ("test_layer_normalization_3d_axis1_epsilon",),
    "linear_attention": ("test_linear_attention_decode_step",),
    "lpnormalization": ("test_l2normalization_axis_0",),
    "matmul": ("test_matmul_1d_3d",),
    "reducemax": ("test_reduce_max_empty_set",),
    "reducesum": ("test_reduce_sum_negative_axes_keepdims_random",),
    "qlinearmatmul": ("test_qlinearmatmul_3D_int8_float16",),
    "reshape": ("test_reshape_allowzero_reordered",),
    "resize": ("test_resize_tf_crop_and_resize",),
    "rmsnormalization": ("test_rms_normalization_2d_axis1",),
    "rotaryembedding": ("test_rotary_embedding_interleaved",),
    "softmax_cross_entropy_loss": ("test_sce_NCd1_mean_weight_negative_ii_log_prob",),
    "softmax": ("test_softmax_large_number",),
    "spacetodepth": ("test_spacetodepth_crd_mode_example",),
    "swish": ("test_swish",),
    "transpose": ("test_transpose_all_permutations_2",),
}
"""Module of the suite → cases that `make test` runs, of modules that load quickly; what has needed work."""

_BATCH = 200


def _run_all(names: list[str], seconds: float = 240) -> dict[str, str]:
    """Outcomes from two processes at a time."""
    batches = [names[at : at + _BATCH] for at in range(0, len(names), _BATCH)]
    with ThreadPoolExecutor(max_workers=2) as pool:
        found = pool.map(lambda batch: run_isolated(batch, seconds=seconds), batches)
        return {name: outcome for part in found for name, outcome in part.items()}


def _is_counted(case: Any) -> bool:
    nodes = case.model.graph.node
    return "expanded" not in case.name and len(nodes) == 1 and nodes[0].op_type in _OPERATORS


def test_a_sample_gives_the_suite_s_answers() -> None:
    names = [name for cases in _SAMPLE.values() for name in cases]
    found = run_isolated(names, modules=_SAMPLE)
    assert found.keys() == set(names)
    listed = found.pop("test_identity_sequence")
    assert _FAILING["test_identity_sequence"] in listed
    assert not {name: outcome for name, outcome in found.items() if outcome}


def test_a_crash_is_the_outcome_of_one_case(tmp_path: Any) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\n"
        "from importlib.abc import MetaPathFinder\n"
        "class Finder(MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'fusilli_plugin.checks.onnx_backend':\n"
        "            os.abort()\n"
        "sys.meta_path.insert(0, Finder())\n"
    )
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    found = run_isolated(["test_relu", "test_swish"], modules=["relu", "swish"], environ=environ)
    assert found == dict.fromkeys(("test_relu", "test_swish"), "Crash: the process ended with -6")


def _sum_model() -> onnx.ModelProto:
    value = helper.make_tensor_value_info
    node = helper.make_node("ReduceSum", ["x", "axes"], ["y"], keepdims=0)
    inputs = [value("x", TensorProto.FLOAT, [2, 3]), value("axes", TensorProto.INT64, [1])]
    graph = helper.make_graph([node], "g", inputs, [value("y", TensorProto.FLOAT, ["n"])])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def test_a_prepared_model_follows_its_control_inputs() -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    prepared = FusilliBackend.prepare(_sum_model())
    for axis in (0, 1, 1):
        (y,) = prepared.run([x, np.array([axis])])
        np.testing.assert_array_equal(y, x.sum(axis))
    (y,) = prepared.run({"x": x + 1, "axes": np.array([0])})
    np.testing.assert_array_equal(y, (x + 1).sum(0))
    prepared.close()


def test_what_cannot_be_run_is_refused() -> None:
    with pytest.raises(ModelError, match="device 'TPU' is none of ONNX's"):
        FusilliBackend.prepare(_sum_model(), "TPU")
    with pytest.raises(ModelError, match="3 inputs are given, the model has 2"):
        FusilliBackend.run_model(_sum_model(), [np.zeros((2, 3), np.float32)] * 3)
    with pytest.raises(ModelError, match="a list is given"):
        FusilliBackend.run_model(_sum_model(), [[1.0]])
    with pytest.raises(TypeError, match="run takes no fast"):
        FusilliBackend.prepare(_sum_model()).run([], fast=True)
    assert FusilliBackend.supports_device("CPU")
    assert not FusilliBackend.supports_device("CUDA")


def _one_node(op_type: str, inputs: dict[str, np.ndarray], dims: list[int], **given: Any) -> np.ndarray:
    kinds = {name: helper.np_dtype_to_tensor_dtype(array.dtype) for name, array in inputs.items()}
    ins = [helper.make_tensor_value_info(name, kinds[name], array.shape) for name, array in inputs.items()]
    out = helper.make_tensor_value_info("y", kinds["x"], dims)
    graph = helper.make_graph([helper.make_node(op_type, list(inputs), ["y"], **given)], "g", ins, [out])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    return FusilliBackend.run_model(model, list(inputs.values()))[0]


def test_padding_is_below_every_element() -> None:
    x = np.array([[-1, -2], [-3, -np.inf]], np.float32)[None, None]
    y = _one_node("MaxPool", {"x": x}, [1, 1, 2, 2], kernel_shape=[2, 2], auto_pad="SAME_UPPER")
    np.testing.assert_array_equal(y, x)


def test_high_bits_of_unsigned_integers_are_no_signs() -> None:
    x, by = np.array([65535, 40000, 7], np.uint16), np.array([2, 3, 9], np.uint16)
    np.testing.assert_array_equal(_one_node("Div", {"x": x, "by": by}, [3]), np.array([32767, 13333, 0], np.uint16))


def test_tensors_without_elements() -> None:
    y = _one_node("Relu", {"x": np.zeros((0, 4), np.float32)}, [0, 4])
    assert (y.shape, y.dtype) == ((0, 4), np.float32)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_all_counted_cases() -> None:
    names = sorted(case.name for case in load_cases().values() if _is_counted(case))
    assert len(names) >= 413
    found = _run_all(names)
    failures = {name: outcome for name, outcome in found.items() if outcome}
    print(f"{len(found) - len(failures)} of {len(found)} counted cases pass")
    unexpected = {name: said for name, said in failures.items() if _FAILING.get(name, said + "!") not in said}
    assert not unexpected
    assert failures.keys() == _FAILING.keys(), "a listed case passes now: take it off the list"


@pytest.mark.slow
@pytest.mark.timeout(10800)
def test_no_case_of_the_suite_ends_its_process() -> None:
    cases = load_cases()
    found = _run_all(sorted(cases))
    kinds = Counter(outcome.partition(":")[0] or "passes" for outcome in found.values())
    print(f"of {len(found)} cases: {dict(kinds.most_common())}")
    assert not {name: outcome for name, outcome in found.items() if outcome.startswith("Crash")}
