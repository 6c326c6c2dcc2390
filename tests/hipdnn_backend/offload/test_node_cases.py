"""ONNX's own node tests, compiled and run on the CPU by `FusilliBackend`; what fails is listed with its reason.

Cases run in processes of their own, so that a crash is an outcome like others.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from fusilli_plugin.checks.onnx_backend import FusilliBackend
from hipdnn_backend.offload.errors import ModelError
from tests.support.node_cases import load_cases, run_isolated
from tests.support.node_counts import KINDS, kind_of, outcomes, table

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
    "cast": ("test_cast_FLOAT16_to_FLOAT8E5M2FNUZ", "test_cast_INT2_to_INT8", "test_cast_e8m0_FLOAT_to_FLOAT8E8M0"),
    "castlike": ("test_castlike_FLOAT_to_FLOAT16", "test_castlike_no_saturate_FLOAT_to_FLOAT8E4M3FN"),
    "clip": ("test_clip_example",),
    "conv": ("test_conv_with_strides_and_asymmetric_padding",),
    "convinteger": ("test_convinteger_with_padding",),
    "convtranspose": ("test_convtranspose_group_2",),
    "dequantizelinear": ("test_dequantizelinear_e5m2", "test_dequantizelinear_uint4"),
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
    "quantizelinear": ("test_quantizelinear_float4e2m1", "test_quantizelinear_int2"),
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
"""Module of the suite → cases that `make test-thorough` runs, of modules that load quickly; what has needed work."""

_DECLINED = {
    "ai_onnx_ml.label_encoder": "test_ai_onnx_ml_label_encoder_string_int",
    "ai_onnx_ml.tree_ensemble": "test_ai_onnx_ml_tree_ensemble_set_membership",
    "bernoulli": "test_bernoulli",
    "compress": "test_compress_0",
    "identity": "test_identity_opt",
    "image_decoder": "test_image_decoder_decode_bmp_rgb",
    "mod": "test_mod_float64_mixed_sign_fmod_0",
    "not_": "test_not_2d",
    "tfidfvectorizer": "test_tfidfvectorizer_tf_batch_onlybigrams_skip0",
}
"""Module of the suite → the case that the page names for a kind of what is declined."""

_PAGE = Path(__file__).parents[3] / "docs" / "models.md"


def _page_table() -> str:
    return _PAGE.read_text().partition("<!-- node-cases:begin -->")[2].partition("<!-- node-cases:end -->")[0].strip()


def _is_counted(case: Any) -> bool:
    nodes = case.model.graph.node
    return "expanded" not in case.name and len(nodes) == 1 and nodes[0].op_type in _OPERATORS


_FEW = ("add", "conv", "identity", "reducesum")


@pytest.mark.parametrize(
    "modules", [_FEW, pytest.param(tuple(_SAMPLE), marks=pytest.mark.thorough)], ids=["few", "all"]
)
def test_a_sample_gives_the_suite_s_answers(modules: Sequence[str]) -> None:
    names = [name for module in modules for name in _SAMPLE[module]]
    found = run_isolated(names, modules=modules)
    assert found.keys() == set(names)
    listed = found.pop("test_identity_sequence")
    assert _FAILING["test_identity_sequence"] in listed
    assert not {name: outcome for name, outcome in found.items() if outcome}


def test_what_the_page_says_of_the_whole_suite() -> None:
    """Its sums, and one case of each kind that it says is declined."""
    rows = [[cell.strip(" *`") for cell in line.split("|")[1:-1]] for line in _page_table().splitlines()[2:]]
    (_, passes, _), *declined, (_, whole, _) = rows
    assert int(passes) + sum(int(count) for _, count, _ in declined) == int(whole)
    assert int(passes) >= 1750
    assert f"Of all {whole} node\ncases {passes} pass" in _PAGE.read_text()
    examples = {name: kind.removeprefix("declined: ") for kind, _, name in declined}
    assert set(examples.values()) == {kind.strip(" `") for kind in KINDS}
    assert examples.keys() == set(_DECLINED.values())
    found = run_isolated(list(examples), modules=_DECLINED)
    assert all(found.values())
    assert {name: kind_of(said).strip(" `") for name, said in found.items()} == examples


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


def _one_node(
    op_type: str,
    inputs: dict[str, np.ndarray],
    dims: list[int],
    known: dict[str, np.ndarray] | None = None,
    **given: Any,
) -> np.ndarray:
    """What a node gives of inputs and of ``known`` constants after them."""
    known = known or {}
    kinds = {name: helper.np_dtype_to_tensor_dtype(array.dtype) for name, array in inputs.items()}
    ins = [helper.make_tensor_value_info(name, kinds[name], array.shape) for name, array in inputs.items()]
    out = helper.make_tensor_value_info("y", kinds["x"], dims)
    constants = [onnx.numpy_helper.from_array(array, name) for name, array in known.items()]
    node = helper.make_node(op_type, [*inputs, *known], ["y"], **given)
    graph = helper.make_graph([node], "g", ins, [out], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    return FusilliBackend.run_model(model, list(inputs.values()))[0]


def test_padding_is_below_every_element() -> None:
    x = np.array([[-1, -2], [-3, -np.inf]], np.float32)[None, None]
    y = _one_node("MaxPool", {"x": x}, [1, 1, 2, 2], kernel_shape=[2, 2], auto_pad="SAME_UPPER")
    np.testing.assert_array_equal(y, x)


def test_high_bits_of_unsigned_integers_are_no_signs() -> None:
    x, by = np.array([65535, 40000, 7], np.uint16), np.array([2, 3, 9], np.uint16)
    np.testing.assert_array_equal(_one_node("Div", {"x": x, "by": by}, [3]), np.array([32767, 13333, 0], np.uint16))


_NAN, _INF = np.nan, np.inf
_X = np.array([_NAN, 1, -3, 0, _INF, -_INF, 2.5], np.float32)


@pytest.mark.a_few("Max-more0-expected0")
@pytest.mark.parametrize(
    ("op_type", "more", "expected"),
    [
        ("Max", {"b": [1, _NAN, 2, _NAN, 0, 0, 0]}, [_NAN, _NAN, 2, _NAN, _INF, 0, 2.5]),
        ("Min", {"b": [1, _NAN, 2, _NAN, 0, 0, 0]}, [_NAN, _NAN, -3, _NAN, 0, -_INF, 0]),
        ("Clip", {"low": -1, "high": 2}, [_NAN, 1, -1, 0, 2, -1, 2]),
        ("Sign", {}, [_NAN, 1, -1, 0, 1, -1, 1]),
        ("ThresholdedRelu", {}, [0, 0, 0, 0, _INF, 0, 2.5]),
    ],
)
def test_nan_as_onnx_and_onnx_runtime_have_it(op_type: str, more: dict[str, Any], expected: list[float]) -> None:
    inputs = {"x": _X, **{name: np.array(value, np.float32) for name, value in more.items()}}
    np.testing.assert_array_equal(_one_node(op_type, inputs, [7]), np.array(expected, np.float32))


_POWERS = [(-2, 2, 4), (-1, 3, -1), (-3, 3, -27), (0, 0, 1), (0, -1, _INF), (-8, -1, -0.125), (-2, 0.5, _NAN)]
_POWERS += [(-_INF, 3, -_INF), (-_INF, 2, _INF), (-_INF, 0.5, _INF), (1, _NAN, 1), (_NAN, 0, 1), (-1, _INF, 1)]


@pytest.mark.a_few("float16")
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64])
def test_powers_of_any_number(dtype: type) -> None:
    base, exponent, expected = np.array(_POWERS, dtype).T
    y = _one_node("Pow", {"x": base.copy(), "e": exponent.copy()}, [len(base)])
    np.testing.assert_allclose(y, expected, rtol=2e-3 if dtype is np.float16 else 1e-5)


_BASES = [1, -1, 0.5, -2, 0.0, -0.0, _INF, -_INF, _NAN]


@pytest.mark.a_few("0.5-expected3", "-0.5-expected4")
@pytest.mark.parametrize(
    ("exponent", "expected"),
    [
        (_INF, [1, 1, 0, _INF, 0, 0, _INF, _INF, _NAN]),
        (-_INF, [1, 1, _INF, 0, _INF, _INF, 0, 0, _NAN]),
        (_NAN, [1, *[_NAN] * 8]),
        (0.5, [1, _NAN, 2**-0.5, _NAN, 0.0, 0.0, _INF, _INF, _NAN]),
        (-0.5, [1, _NAN, 2**0.5, _NAN, _INF, _INF, 0, 0, _NAN]),
        (1 / 3, [1, _NAN, 2 ** (-1 / 3), _NAN, 0.0, 0.0, _INF, _INF, _NAN]),
        (-1.5, [1, _NAN, 2**1.5, _NAN, _INF, _INF, 0, 0, _NAN]),
        (-65, [1, -1, 2.0**65, -(2.0**-65), _INF, -_INF, 0.0, -0.0, _NAN]),
    ],
)
def test_powers_by_known_exponents(exponent: float, expected: list[float]) -> None:
    """As IEEE 754 has them, the signs of 0 too."""
    y = _one_node("Pow", {"x": np.array(_BASES, np.float32)}, [len(_BASES)], {"e": np.array(exponent, np.float32)})
    np.testing.assert_allclose(y, expected, rtol=1e-5)
    is_zero = np.equal(expected, 0)
    np.testing.assert_array_equal(np.signbit(y[is_zero]), np.signbit(np.array(expected)[is_zero]))


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_odd_powers_keep_the_sign_of_zero(dtype: type) -> None:
    base = np.array([-0.0, -0.0, -0.0, 0.0, -0.0], dtype)
    y = _one_node("Pow", {"x": base, "e": np.array([-1, -3, -2, -3, 3], dtype)}, [5])
    np.testing.assert_array_equal(y, np.array([-_INF, -_INF, _INF, _INF, -0.0], dtype))
    assert np.signbit(y[4])


_HYPERBOLIC = {"Sinh": np.sinh, "Cosh": np.cosh, "Asinh": np.arcsinh, "Acosh": np.arccosh, "Atanh": np.arctanh}
_ANYWHERE = [
    5e-5,
    -5e-5,
    1e-3,
    0.5,
    -0.999,
    1,
    1.001,
    -3,
    11.5,
    88.9,
    300,
    -1e4,
    -1e5,
    1e20,
    3e38,
    -0.0,
    _INF,
    -_INF,
    _NAN,
]


@pytest.mark.a_few("Cosh-float32", "Asinh-float64", "Acosh-float16")
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("op_type", list(_HYPERBOLIC))
@pytest.mark.filterwarnings("ignore:(overflow|invalid value|divide by zero):RuntimeWarning")
def test_hyperbolic_functions_neither_cancel_nor_overflow(op_type: str, dtype: type) -> None:
    x = np.array(_ANYWHERE).astype(dtype)
    expected = _HYPERBOLIC[op_type](x.astype(np.float64)).astype(dtype)
    tolerance = {np.float16: 1e-3, np.float32: 1e-6, np.float64: 1e-14}[dtype]
    np.testing.assert_allclose(_one_node(op_type, {"x": x}, [len(x)]), expected, rtol=tolerance)


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_powers_of_integers_are_exact(dtype: type) -> None:
    triples = [
        (3, 5, 243),
        (-3, 5, -243),
        (7, 0, 1),
        (0, 9, 0),
        (-1, 1001, -1),
        (10, 9, 10**9),
        (2, -1, 0),
        (-1, -3, -1),
    ]
    triples += [(3, 39, 3**39), (-2, 63, -(2**63))] if dtype is np.int64 else []
    base, exponent, expected = np.array(triples, dtype).T
    y = _one_node("Pow", {"x": base.copy(), "e": exponent.copy()}, [len(base)])
    np.testing.assert_array_equal(y, expected)


@pytest.mark.thorough
def test_a_remainder_of_an_infinite_divisor() -> None:
    x, by = np.array([3, -3, 7, _INF], np.float32), np.array([_INF, -_INF, -4, 2], np.float32)
    np.testing.assert_array_equal(
        _one_node("Mod", {"x": x, "by": by}, [4], fmod=1), np.array([3, -3, 3, _NAN], np.float32)
    )


@pytest.mark.a_few("uint64")
@pytest.mark.parametrize("dtype", [np.uint8, np.uint32, np.uint64])
def test_unsigned_integers_have_no_sign(dtype: type) -> None:
    most = int(np.iinfo(dtype).max)
    x = np.array([most, 7, most - 1, 200], dtype)
    bounds = {"low": np.array(10, dtype), "high": np.array(most - 2, dtype)}
    np.testing.assert_array_equal(_one_node("Abs", {"x": x}, [4]), x)
    clipped = np.array([most - 2, 10, most - 2, 200], dtype)
    np.testing.assert_array_equal(_one_node("Clip", {"x": x, **bounds}, [4]), clipped)
    np.testing.assert_array_equal(_one_node("Mod", {"x": x, "by": np.array(7, dtype)}, [4]), x % dtype(7))


def _topk(x: np.ndarray, k: int, largest: int) -> tuple[np.ndarray, np.ndarray]:
    kind, dims = helper.np_dtype_to_tensor_dtype(x.dtype), [len(x), k]
    value = helper.make_tensor_value_info
    outs = [value("v", kind, dims), value("i", TensorProto.INT64, dims)]
    node = helper.make_node("TopK", ["x", "k"], ["v", "i"], largest=largest)
    count = onnx.numpy_helper.from_array(np.array([k]), "k")
    graph = helper.make_graph([node], "g", [value("x", kind, x.shape)], outs, [count])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    values, positions = FusilliBackend.run_model(model, [x])
    return values, positions


@pytest.mark.a_few("float32")
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64])
def test_nan_is_the_greatest(dtype: type) -> None:
    """And of equal numbers, 0 and -0 are, the first comes first."""
    x = np.array([[1, _NAN, 3, -_NAN], [_INF, 2, _NAN, 2], [0.0, -0.0, -1, 0.0]], dtype)
    values, positions = _topk(x, 3, 1)
    np.testing.assert_array_equal(values, np.array([[_NAN, _NAN, 3], [_NAN, _INF, 2], [0, 0, 0]], dtype))
    np.testing.assert_array_equal(positions, [[1, 3, 2], [2, 0, 1], [0, 1, 3]])
    values, positions = _topk(x, 3, 0)
    np.testing.assert_array_equal(values, np.array([[1, 3, _NAN], [2, 2, _INF], [-1, 0, 0]], dtype))
    np.testing.assert_array_equal(positions, [[0, 2, 1], [1, 3, 0], [2, 0, 1]])


@pytest.mark.a_few("uint8")
@pytest.mark.parametrize("dtype", [np.uint8, np.uint64])
def test_the_greatest_of_unsigned_integers(dtype: type) -> None:
    most = np.iinfo(dtype).max
    values, positions = _topk(np.array([[5, most, 7, most - 1]], dtype), 2, 1)
    np.testing.assert_array_equal(values, np.array([[most, most - 1]], dtype))
    np.testing.assert_array_equal(positions, [[1, 3]])


@pytest.mark.a_few("uint64-min-minimum")
@pytest.mark.parametrize(("how", "combine"), [("max", np.maximum), ("min", np.minimum)])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int32, np.uint8, np.uint64])
def test_scattered_extremes(how: str, combine: np.ufunc, dtype: type) -> None:
    """Twice the same place, places counted from the end, and numbers that would be negative with a sign."""
    x, places = np.array([[1, 2, 9], [200, 4, 5]], dtype), np.array([[0, 0, 1], [-1, -2, 1]], np.int64)
    values = np.array([[3, 250, 1], [0, 100, 5]], dtype)
    scale = dtype(2) ** 56 if dtype is np.uint64 else dtype(1)
    flat = np.stack([places, np.arange(3)[None].repeat(2, 0)], -1)
    want = x.copy()
    combine.at(want, (places, np.arange(3)), values)
    inputs = {"x": x * scale, "i": places, "v": values * scale}
    np.testing.assert_array_equal(_one_node("ScatterElements", inputs, [2, 3], axis=0, reduction=how), want * scale)
    np.testing.assert_array_equal(_one_node("ScatterND", {**inputs, "i": flat}, [2, 3], reduction=how), want * scale)


@pytest.mark.parametrize(("op_type", "dims"), [("ScatterElements", (0, 2)), ("ScatterND", (0,))])
def test_nothing_to_scatter(op_type: str, dims: tuple[int, ...]) -> None:
    x = np.ones((2, 3), np.float32)
    inputs = {"x": x, "i": np.zeros((0, 2), np.int64), "v": np.zeros(dims, np.float32)}
    np.testing.assert_array_equal(_one_node(op_type, inputs, [2, 3]), x)


def test_tensors_without_elements() -> None:
    y = _one_node("Relu", {"x": np.zeros((0, 4), np.float32)}, [0, 4])
    assert (y.shape, y.dtype) == ((0, 4), np.float32)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_all_counted_cases() -> None:
    names = sorted(case.name for case in load_cases().values() if _is_counted(case))
    assert len(names) >= 413
    found = run_isolated(names, seconds=240)
    failures = {name: outcome for name, outcome in found.items() if outcome}
    print(f"{len(found) - len(failures)} of {len(found)} counted cases pass")
    unexpected = {name: said for name, said in failures.items() if _FAILING.get(name, said + "!") not in said}
    assert not unexpected
    assert failures.keys() == _FAILING.keys(), "a listed case passes now: take it off the list"


@pytest.mark.slow
@pytest.mark.timeout(10800)
def test_every_case_of_the_suite_passes_or_is_refused() -> None:
    """None is answered wrongly, and none ends its process."""
    found = outcomes()
    kinds = Counter(outcome.partition(":")[0] or "passes" for outcome in found.values())
    print(f"of {len(found)} cases: {dict(kinds.most_common())}")
    assert not {name: outcome for name, outcome in found.items() if outcome.startswith(("Crash", "WrongAnswer"))}
    assert table(found) == _page_table(), "docs/models.md is to say this"
