"""Elements of 8 bits and less in models, compiled and run on the CPU by our engine alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from fusilli_plugin.engine.engine import FusilliEngine
from fusilli_plugin.fallback.ort_engine import OnnxRuntimeEngine
from hipdnn_backend.offload import load
from tests.support import block_quantised
from tests.support.gfx_emulator.engine import EmulatedEngine
from tests.support.low_precision_models import MODELS
from tests.support.onnx_rewritten import one_node

pytestmark = pytest.mark.iree_cpu

Array = np.ndarray[Any, Any]


def _run(model: Any, feeds: dict[str, Array]) -> tuple[list[Array], dict[str, Array]]:
    """What our engine gives, and the constants that it reads."""
    with load(model, device="cpu", engines=(FusilliEngine("cpu").for_device("cpu"),)) as made:
        return list(made.run(feeds).values()), dict(made.constants)


_SLOWER = "gemm_of_columns"  # which the tests of ONNX Runtime's provider run too


@pytest.mark.a_few("product_of_blocks")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name == _SLOWER else name for name in MODELS]
)
def test_models_that_quantise_and_dequantise(name: str) -> None:
    model, feeds = MODELS[name]()
    reference: Any = ReferenceEvaluator(model)
    (want,) = reference.run(None, feeds)
    (have,), constants = _run(model, feeds)
    assert have.dtype == want.dtype
    np.testing.assert_array_equal(have, want)
    weights = next(each for each in model.graph.initializer if each.name == "w")
    bits = 4 if weights.data_type not in (TensorProto.FLOAT8E5M2,) else 8
    count = int(np.prod(weights.dims))
    if count > 1024:  # what is smaller is computed while loading
        assert count * bits // 8 in {each.nbytes for each in constants.values() if each.dtype == np.uint8}


@pytest.mark.a_few("float4_e2m1fn-float32-given4")
@pytest.mark.parametrize(
    ("source", "to", "given"),
    [
        (np.float32, ml_dtypes.float8_e4m3fn, {}),
        (np.float16, ml_dtypes.float8_e5m2fnuz, {"saturate": 0}),
        pytest.param(np.float64, ml_dtypes.float8_e4m3fnuz, {}, marks=pytest.mark.slow),
        (np.float32, ml_dtypes.float8_e8m0fnu, {"round_mode": "nearest"}),
        (ml_dtypes.float4_e2m1fn, np.float32, {}),
        pytest.param(ml_dtypes.int2, ml_dtypes.float8_e5m2, {}, marks=pytest.mark.slow),
    ],
)
def test_what_a_model_takes_and_gives(source: Any, to: Any, given: dict[str, Any]) -> None:
    """Inputs and results of such types, which numpy has by ml_dtypes, a byte each."""
    random = np.random.default_rng(2)
    x = (random.standard_normal((4, 65)) * 10.0 ** random.integers(-4, 4, (4, 65))).astype(np.float32)
    x[0, :4] = [np.nan, np.inf, -np.inf, 0]
    with np.errstate(invalid="ignore", over="ignore"):
        x = np.abs(x).astype(source) if to is ml_dtypes.float8_e8m0fnu else x.astype(source)
    element = helper.np_dtype_to_tensor_dtype(np.dtype(to))
    model, feeds = one_node("Cast", {"x": x}, {"y": to}, opset=26, to=element, **given)
    with np.errstate(invalid="ignore", over="ignore"):
        (want,) = ReferenceEvaluator(model).run(None, feeds)
    (have,), _ = _run(model, feeds)
    assert have.dtype == np.dtype(to)
    if to is ml_dtypes.float8_e8m0fnu:  # onnx's reference has no number for infinity, and 0 is the least one
        x, have, want = (each.reshape(-1)[np.isfinite(x.reshape(-1))] for each in (x, have, np.asarray(want)))
    np.testing.assert_array_equal(have.astype(np.float32), np.asarray(want).astype(np.float32))


_EXACT = 1e-4
"""Of the largest element: products in single precision."""


_MORE = [
    pytest.param(kind, seed, marks=pytest.mark.slow)
    for kind in ("product", "table", "experts")
    for seed in range(8, 14)
]


def _packed(kind: str, seed: int) -> tuple[Any, dict[str, Array], Array]:
    model, feeds, expected, *_ = getattr(block_quantised, kind)(seed)
    return model, feeds, expected


def _assert_near(have: Array, want: Array) -> None:
    tolerance = (_EXACT if have.dtype == np.float32 else 2e-3) * np.abs(want).max()
    np.testing.assert_allclose(have.astype(np.float64), want, rtol=0, atol=tolerance)


@pytest.mark.a_few("product-1")
@pytest.mark.parametrize(
    ("kind", "seed"),
    [("product", 1), ("table", 7), ("experts", 37), *_MORE],
)
def test_operators_with_packed_weights(kind: str, seed: int) -> None:
    model, feeds, want = _packed(kind, seed)
    (have,), _ = _run(model, feeds)
    _assert_near(have, want)


def test_they_pass_a_model_as_they_are(tmp_path: Path) -> None:
    """Moved alone, saved and loaded."""
    x = np.arange(16, dtype=np.uint8).reshape(2, 8).view(ml_dtypes.uint4)
    model, feeds = one_node("Transpose", {"x": x}, {"y": ml_dtypes.uint4}, perm=[1, 0])
    engines = (FusilliEngine("cpu").for_device("cpu"),)
    with load(model, device="cpu", engines=engines) as made:
        made.save(tmp_path / "saved.fusilli")
        (y,) = made.run(feeds).values()
    np.testing.assert_array_equal(y.astype(int), x.T.astype(int))
    with load(tmp_path / "saved.fusilli", device="cpu", engines=engines) as made:
        (y,) = made.run(feeds).values()
    assert y.dtype == np.dtype(ml_dtypes.uint4)
    np.testing.assert_array_equal(y.astype(int), x.T.astype(int))


_CHIPS = [pytest.param("gfx942", name, marks=[] if name == "product_in_mxfp4" else pytest.mark.slow) for name in MODELS]
_CHIPS += [pytest.param(chip, name, marks=pytest.mark.slow) for chip in ("gfx90a", "gfx950") for name in MODELS]


@pytest.mark.parametrize(("chip", "name"), _CHIPS)
def test_models_on_emulated_chips(chip: str, name: str) -> None:
    """Each graph's machine code, an instruction at a time; the same bits as on the CPU."""
    model, feeds = MODELS[name]()
    reference: Any = ReferenceEvaluator(model)
    (want,) = reference.run(None, feeds)
    engine = EmulatedEngine(chip)
    with load(model, device="cpu", engines=(engine,)) as made:
        (have,) = made.run(feeds).values()
    assert engine.built > 1
    np.testing.assert_array_equal(have, want)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("kind", "seed"),
    [("product", 1), *(pytest.param(*each, marks=pytest.mark.slow) for each in (("table", 5), ("experts", 30)))],
)
def test_packed_weights_on_an_emulated_chip(kind: str, seed: int) -> None:
    model, feeds, want = _packed(kind, seed)
    with load(model, device="cpu", engines=(EmulatedEngine("gfx942"),)) as made:
        (have,) = made.run(feeds).values()
    _assert_near(have, want)


@pytest.mark.thorough
def test_nodes_that_stay_onnx_take_and_give_them() -> None:
    """An If whose bodies compute in 8-bit floats is controlled from outside; all that computes is compiled."""
    e4m3, e5m2 = TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E5M2
    value, node = helper.make_tensor_value_info, helper.make_node
    bodies = []
    for name, factor in (("yes", 2.0), ("no", 0.5)):
        nodes = [
            node("Cast", ["q"], [f"{name}_wide"], to=TensorProto.FLOAT),
            node("Mul", [f"{name}_wide", f"{name}_factor"], [f"{name}_more"]),
            node("Cast", [f"{name}_more"], [f"{name}_y"], to=e5m2),
        ]
        constant = helper.make_tensor(f"{name}_factor", TensorProto.FLOAT, [], [factor])
        bodies.append(helper.make_graph(nodes, name, [], [value(f"{name}_y", e5m2, [3, 4])], [constant]))
    nodes = [
        node("Cast", ["x"], ["q"], to=e4m3),
        node("If", ["c"], ["r"], name="either", then_branch=bodies[0], else_branch=bodies[1]),
        node("Cast", ["r"], ["y"], to=TensorProto.FLOAT),
    ]
    ins = [value("x", TensorProto.FLOAT, [3, 4]), value("c", TensorProto.BOOL, [])]
    graph = helper.make_graph(nodes, "g", ins, [value("y", TensorProto.FLOAT, [3, 4])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    x = np.linspace(-3, 3, 12, dtype=np.float32).reshape(3, 4)
    engines = (FusilliEngine("cpu").for_device("cpu"), OnnxRuntimeEngine("cpu"))
    with load(model, device="cpu", engines=engines) as made:
        assert {graph.engine for graph in made.program.graphs} == {"FUSILLI_ENGINE", "CONTROL_ENGINE"}
        for condition, factor in ((True, 2.0), (False, 0.5)):
            scaled = x.astype(ml_dtypes.float8_e4m3fn).astype(np.float32) * np.float32(factor)
            want = scaled.astype(ml_dtypes.float8_e5m2)
            (have,) = made.run({"x": x, "c": np.array(condition)}).values()
            np.testing.assert_array_equal(have, want.astype(np.float32))
