"""Operators of com.microsoft with weights in blocks, against ONNX Runtime and float64, over what attributes may say."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hipdnn_backend.offload.errors import ModelError
from hipdnn_backend.offload.frontend import prepare
from tests.support.block_quantised import DOMAIN, FLOATS, experts, product, table
from tests.support.onnx_rewritten import one_node, ort, rewritten

Array = np.ndarray[Any, Any]


def _theirs(model: Any, feeds: dict[str, Array]) -> tuple[Array | None, str]:
    """What ONNX Runtime gives, or why it does not: its exceptions have no common base."""
    try:
        (result,) = ort(model, feeds)
    except Exception as error:
        return None, str(error)
    return result, ""


# ---- MatMulNBits


@pytest.mark.parametrize("seed", range(40))
def test_products_of_packed_weights(seed: int) -> None:
    model, feeds, expected, bound = product(seed)
    (have,) = rewritten(prepare(model), feeds)
    np.testing.assert_allclose(have.astype(np.float64), expected, rtol=0, atol=bound)
    theirs, why = _theirs(model, feeds)
    if theirs is None:  # with g_idx or zero points of floats
        assert "8-bit weights" in why or "Only 2b and 4b" in why
        return
    assert have.dtype == theirs.dtype
    assert have.shape == theirs.shape
    np.testing.assert_allclose(have.astype(np.float64), theirs.astype(np.float64), rtol=0, atol=4 * bound)


def test_bfloat16_is_known_too() -> None:
    """Which ONNX Runtime's CPU provider has not."""
    for seed in range(4):
        model, feeds, expected, bound = product(100 + seed, np.dtype(ml_dtypes.bfloat16))
        (have,) = rewritten(prepare(model), feeds)
        np.testing.assert_allclose(
            have.astype(np.float64), expected, rtol=0, atol=max(bound, np.abs(expected).max() / 128)
        )


def _bad_product(**changes: Any) -> Any:
    inputs = {
        "a": np.ones((2, 32), np.float32), "b": np.zeros((3, 2, 8), np.uint8), "s": np.ones((3, 2), np.float32),
        "z": np.zeros((3, 1), np.uint8), "g": None, "bias": None,
    }  # fmt: skip
    given: dict[str, Any] = {"K": 32, "N": 3, "bits": 4, "block_size": 16}
    inputs |= {name: value for name, value in changes.items() if name in inputs}
    given |= {name: value for name, value in changes.items() if name not in inputs}
    constants = [name for name, value in inputs.items() if value is not None and name != "a"]
    return one_node("MatMulNBits", inputs, {"y": np.float32}, constants=constants, domain=DOMAIN, **given)[0]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"bits": 3}, r"bits is 3; 2, 4, 8 are known"),
        ({"bits": 4.0}, r"attribute bits is 4.0; it must be an integer"),
        ({"K": 32.0}, r"attribute K is 32.0; it must be an integer"),
        ({"block_size": 24}, r"block_size is 24; it is a power of 2 and at least 16"),
        ({"block_size": 8}, r"block_size is 8;"),
        ({"weight_prepacked": 1}, r"weight_prepacked is 1"),
        ({"K": 31}, r"a has dims \[2, 32\], but K is 31"),
        ({"N": 4}, r"b has dims \[3, 2, 8\], expected \[4, 2, 8\]"),
        ({"s": np.ones((2, 3), np.float32)}, r"s has dims \[2, 3\], expected \[3, 2\] or \[6\]"),
        ({"s": np.ones((3, 2), np.float16)}, r"s is of type FLOAT16, expected FLOAT"),
        ({"z": np.zeros((3, 2), np.uint8)}, r"z has dims \[3, 2\], expected \[3, 1\] or \[3\]"),
        ({"z": np.zeros((3, 1), np.float32)}, r"z has dims \[3, 1\], expected \[3, 2\] or \[6\]"),
        ({"z": np.zeros((3, 2), np.int8)}, r"z is of type INT8, expected FLOAT, UINT8"),
        ({"z": None, "g": np.full(32, 2, np.int32)}, r"g_idx g holds numbers from 2 to 2; blocks are 0 to 1"),
        ({"z": None, "g": np.zeros(31, np.int32)}, r"g has dims \[31\], expected \[32\]"),
        ({"g": np.zeros(32, np.int32)}, r"g_idx with bits=4 and packed zero points"),
        ({"z": None, "g": np.zeros(32, np.float32)}, r"g is of type FLOAT, expected INT32"),
        ({"bias": np.ones(3, np.int32)}, r"bias is of type INT32, expected FLOAT"),
        ({"bias": np.ones(4, np.float32)}, r"bias has dims \[4\], expected \[3\]"),
        ({"b": np.zeros((0, 2, 8), np.uint8)}, r"b \[0, 2, 8\] has no weights"),
    ],
)
def test_what_no_product_of_packed_weights_is(changes: dict[str, Any], said: str) -> None:
    prepare(_bad_product())
    with pytest.raises(ModelError, match=said) as error:
        prepare(_bad_product(**changes))
    assert error.value.node == "node"


# ---- GatherBlockQuantized


@pytest.mark.parametrize("seed", range(60))
def test_rows_of_quantised_tables(seed: int) -> None:
    model, feeds, expected = table(seed)
    (have,) = rewritten(prepare(model), feeds)
    unit = float(ml_dtypes.finfo(have.dtype).eps)
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(have.astype(np.float64), expected, rtol=unit, atol=1e-7)
    theirs, _ = _theirs(model, feeds)
    if theirs is None:  # older versions have no floats
        assert next(each.data_type for each in model.graph.initializer if each.name == "d") in FLOATS
        return
    np.testing.assert_array_equal(have, theirs)


def _bad_table(**changes: Any) -> Any:
    inputs = {
        "d": np.zeros((5, 16), np.uint8), "i": np.array([1, 2]), "s": np.ones((5, 2), np.float32),
        "z": np.zeros((5, 1), np.uint8),
    }  # fmt: skip
    given: dict[str, Any] = {"block_size": 16, "bits": 4}
    inputs |= {name: value for name, value in changes.items() if name in inputs}
    given |= {name: value for name, value in changes.items() if name not in inputs}
    constants = [name for name in inputs if name != "i"]
    return one_node("GatherBlockQuantized", inputs, {"y": np.float32}, constants=constants, domain=DOMAIN, **given)[0]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"bits": 3}, r"bits is 3; 2, 4, 8 are known"),
        ({"block_size": 20}, r"block_size is 20"),
        ({"block_size": 0}, r"block_size is 0"),
        ({"block_size": 32}, r"s has dims \[5, 2\], expected \[5, 1\]"),
        ({"gather_axis": 0.0}, r"attribute gather_axis is 0.0; it must be an integer"),
        ({"gather_axis": 1}, r"gather_axis 1 and quantize_axis 1 of d \[5, 16\]; of uint8"),
        ({"quantize_axis": 2}, r"quantize_axis is 2, of a tensor of rank 2"),
        ({"i": np.array([1.5, 2])}, r"i is of type DOUBLE, expected INT32, INT64"),
        ({"i": np.array([True, False])}, r"i is of type BOOL, expected INT32, INT64"),
        ({"s": np.ones((1, 2), np.float32)}, r"s has dims \[1, 2\], expected \[5, 2\]"),
        ({"s": np.ones((5, 2, 1), np.float32)}, r"s has dims \[5, 2, 1\], expected \[5, 2\]"),
        ({"z": np.zeros((5, 2), np.uint8)}, r"z has dims \[5, 2\], expected \[5, 1\]"),
        ({"z": np.zeros((5, 1), np.int8)}, r"z is of type INT8, expected UINT8"),
        ({"d": np.zeros((5, 16), np.int8)}, r"d is of type INT8, expected UINT8"),
        ({"d": np.zeros((5, 32), ml_dtypes.int4)}, r"z is of type UINT8, expected INT4"),
        ({"d": np.zeros((5, 32), ml_dtypes.float8_e5m2)}, r"zero points z of floats, which have none"),
        ({"d": np.zeros((5, 32), ml_dtypes.int4), "bits": 8}, r"bits is 8, the elements of d have 4"),
    ],
)
def test_what_no_quantised_table_is(changes: dict[str, Any], said: str) -> None:
    prepare(_bad_table())
    with pytest.raises(ModelError, match=said) as error:
        prepare(_bad_table(**changes))
    assert error.value.node == "node"


# ---- QMoE


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.filterwarnings("ignore:(overflow|divide by zero|invalid value):RuntimeWarning")
def test_quantised_experts(seed: int) -> None:
    model, feeds, expected, given = experts(seed)
    (have,) = rewritten(prepare(model), feeds)
    most, is_half = np.abs(expected).max() + 1e-6, have.dtype == np.float16
    np.testing.assert_allclose(have.astype(np.float64), expected, rtol=0, atol=most * (2e-3 if is_half else 2e-5))
    theirs, why = _theirs(model, feeds)
    if theirs is None:
        assert "swiglu_fusion_ == 1" in why
        assert given["swiglu_fusion"] != 1
        return
    # It quantises activations to 8 bits for some weights in blocks, and some weights of 4 bits once more.
    coarse = "block_size" in given or given["expert_weight_bits"] == 4
    tolerance = most * (0.06 if coarse else 5e-3 if is_half else 1e-4)
    np.testing.assert_allclose(have.astype(np.float64), theirs.astype(np.float64), rtol=0, atol=tolerance)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_experts_that_count_for_nothing_may_be_infinite() -> None:
    inputs: dict[str, Any] = {
        "x": np.ones((1, 8), np.float32), "r": np.array([[0, 5]], np.float32),
        "w1": np.full((2, 8, 4), 0x99, np.uint8), "s1": np.array([[np.inf] * 8, [1.0] * 8], np.float32), "b1": None,
        "w2": np.full((2, 8, 4), 0x99, np.uint8), "s2": np.ones((2, 8), np.float32),
    }  # fmt: skip
    constants = [name for name in inputs if name[0] in "ws"]
    model, feeds = one_node("QMoE", inputs, {"y": np.float32}, constants=constants, domain=DOMAIN, k=1)
    (have,) = rewritten(prepare(model), feeds)
    np.testing.assert_array_equal(have, np.full((1, 8), 64, np.float32))


def _bad_experts(**changes: Any) -> Any:
    inputs: dict[str, Any] = {
        "x": np.ones((3, 16), np.float32), "r": np.ones((3, 4), np.float32),
        "w1": np.zeros((4, 32, 8), np.uint8), "s1": np.ones((4, 32), np.float32), "b1": None,
        "w2": np.zeros((4, 16, 16), np.uint8), "s2": np.ones((4, 16), np.float32), "b2": None,
        "w3": None, "s3": None, "b3": None, "z1": None, "z2": None, "z3": None, "rw": None,
    }  # fmt: skip
    given: dict[str, Any] = {"k": 2}
    inputs |= {name: value for name, value in changes.items() if name in inputs}
    given |= {name: value for name, value in changes.items() if name not in inputs}
    constants = [name for name, value in inputs.items() if value is not None and name not in ("x", "r")]
    return one_node("QMoE", inputs, {"y": np.float32}, constants=constants, domain=DOMAIN, **given)[0]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"expert_weight_bits": 3}, r"expert_weight_bits is 3; 2, 4, 8 are known"),
        ({"fc2_expert_weight_bits": 6}, r"fc2_expert_weight_bits is 6"),
        ({"quant_type": "nvfp4"}, r"quant_type is 'nvfp4'; 'int' is known"),
        ({"use_sparse_mixer": 1}, r"use_sparse_mixer is 1"),
        ({"weights_prepacked": 1}, r"weights_prepacked is 1"),
        ({"activation_type": "geglu"}, r"activation_type is 'geglu'; relu, gelu, silu, swiglu, identity are known"),
        ({"activation_type": "swiglu"}, r"swiglu with swiglu_fusion=0 needs fc3_experts_weights"),
        ({"activation_type": "swiglu", "swiglu_fusion": 3}, r"swiglu_fusion is 3; it may be 0, 1 or 2"),
        ({"k": 2.0}, r"attribute k is 2.0; it must be an integer"),
        ({"k": 5}, r"k is 5; there are 4 experts"),
        ({"block_size": 12}, r"block_size is 12"),
        ({"block_size": 32}, r"rows of 16 weights of 4 bits are no whole bytes or blocks of 32"),
        ({"r": np.ones((2, 4), np.float32)}, r"r \[2, 4\] has not a row for each of x \[3, 16\]"),
        ({"w2": np.zeros((3, 16, 16), np.uint8)}, r"w2 has dims \[3, 16, 16\], expected \[4, 16, 16\]"),
        ({"s1": np.ones((4, 31), np.float32)}, r"s1 has dims \[4, 31\], expected \[4, 32\]"),
        ({"s2": np.ones((4, 16), np.float16)}, r"s2 is of type FLOAT16, expected FLOAT"),
        ({"z1": np.zeros((4, 15), np.uint8)}, r"z1 has dims \[4, 15\], expected \[4, 16\] or \[64\]"),
        ({"b2": np.zeros((4, 15), np.float32)}, r"b2 has dims \[4, 15\], expected \[4, 16\]"),
        ({"rw": np.ones((3, 5), np.float32)}, r"rw has dims \[3, 5\], expected \[3, 4\]"),
        ({"w3": np.zeros((4, 32, 8), np.uint8)}, r"fc3_experts_weights without swiglu"),
    ],
)
def test_what_no_quantised_experts_are(changes: dict[str, Any], said: str) -> None:
    prepare(_bad_experts())
    with pytest.raises(ModelError, match=said) as error:
        prepare(_bad_experts(**changes))
    assert error.value.node == "node"


def test_experts_without_rows_and_with_scales_of_one_more_dim() -> None:
    """Both as ONNX Runtime takes them."""
    none = _bad_experts(x=np.ones((0, 16), np.float32), r=np.ones((0, 4), np.float32))
    feeds = {"x": np.ones((0, 16), np.float32), "r": np.ones((0, 4), np.float32)}
    (have,) = rewritten(prepare(none), feeds)
    theirs, _ = _theirs(none, feeds)
    assert theirs is not None
    assert have.shape == theirs.shape == (0, 16)
    assert have.dtype == theirs.dtype

    rng = np.random.default_rng(0)
    changes = {
        "w1": rng.integers(0, 256, (4, 32, 8)).astype(np.uint8),
        "w2": rng.integers(0, 256, (4, 16, 16)).astype(np.uint8),
        "s1": rng.random((4, 32, 1)).astype(np.float32),
        "s2": rng.random((4, 16, 1)).astype(np.float32),
    }
    wide = _bad_experts(activation_type="relu", **changes)
    feeds = {"x": rng.standard_normal((3, 16), np.float32), "r": rng.standard_normal((3, 4), np.float32)}
    (have,) = rewritten(prepare(wide), feeds)
    theirs, why = _theirs(wide, feeds)
    assert theirs is not None, why
    np.testing.assert_allclose(have, theirs, rtol=1e-4, atol=1e-4 * float(np.abs(theirs).max()))


def test_a_missing_attribute_is_named() -> None:
    model = _bad_product()
    del model.graph.node[0].attribute[[each.name for each in model.graph.node[0].attribute].index("K")]
    with pytest.raises(ModelError, match=r"not in the form that the operator has \('K' is not given\)"):
        prepare(model)
