"""Operators of com.microsoft with weights in blocks, against ONNX Runtime and float64, over what attributes may say."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import helper

from hipdnn_backend.offload.errors import ModelError
from hipdnn_backend.offload.frontend import prepare
from tests.support.onnx_rewritten import one_node, ort, rewritten

DOMAIN = "com.microsoft"
Array = np.ndarray[Any, Any]


def _pack(codes: Array, bits: int) -> Array:
    """Codes along the last axis, the first in the lowest bits; the last byte may have bits that nobody reads."""
    per = 8 // bits
    rest = -codes.shape[-1] % per
    wide = np.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, rest)]).reshape(*codes.shape[:-1], -1, per)
    return np.bitwise_or.reduce(wide.astype(np.uint8) << (bits * np.arange(per, dtype=np.uint8)), axis=-1)


def _codes(random: np.random.Generator, bits: int, *dims: int) -> Array:
    return random.integers(0, 1 << bits, dims).astype(np.uint8)


def _theirs(model: Any, feeds: dict[str, Array]) -> tuple[Array | None, str]:
    """What ONNX Runtime gives, or why it does not: its exceptions have no common base."""
    try:
        (result,) = ort(model, feeds)
    except Exception as error:
        return None, str(error)
    return result, ""


def _chance(random: np.random.Generator, *values: Any) -> Any:
    return values[random.integers(len(values))]


# ---- MatMulNBits


def _product(seed: int, dtype: Any = None) -> tuple[Any, dict[str, Array], Array, float]:
    """A random node, its feeds, the result in float64, and how far off single or half precision may be."""
    random = np.random.default_rng(seed)
    bits, size = _chance(random, 2, 4, 8), _chance(random, 16, 32, 64, 128)
    k, n = int(random.integers(1, 150)), int(random.integers(1, 40))
    if dtype is None:
        dtype = _chance(random, np.float32, np.float32, np.float16)
    blocks = -(-k // size)
    a = random.standard_normal((*_chance(random, (3,), (2, 3), (1,), (2, 1, 2)), k)).astype(dtype)
    codes = _codes(random, bits, n, blocks, size)
    scales = (random.random((n, blocks)) * 0.2 - 0.1).astype(dtype)
    inputs: dict[str, Any] = {"a": a, "b": _pack(codes, bits), "s": scales, "z": None, "g": None, "bias": None}
    zero: Array = np.full((n, blocks), 1 << (bits - 1))
    form = random.integers(3)
    if form == 1:
        zero = _codes(random, bits, n, blocks)
        inputs["z"] = _pack(zero, bits)
    elif form == 2:
        zero = (random.random((n, blocks)) * (1 << bits)).astype(dtype)
        inputs["z"] = zero
    group = np.arange(k) // size
    if random.integers(3) == 0 and bits != 2 and form != 1:
        group = random.integers(0, blocks, k)
        inputs["g"] = group.astype(np.int32)
        if random.integers(2):
            inputs["g"] = np.concatenate([inputs["g"], np.zeros(blocks * size - k, np.int32)])
    if random.integers(2):
        inputs["bias"] = random.standard_normal(n).astype(dtype)
    if random.integers(2):  # as older models have them
        for name in ("s", "z"):
            inputs[name] = None if inputs[name] is None else inputs[name].reshape(-1)
    given = {"K": k, "N": n, "bits": bits, "block_size": size, "accuracy_level": _chance(random, 0, 1)}
    wide = codes.reshape(n, -1)[:, :k].astype(np.float64) - zero.astype(np.float64)[:, group]
    weights = wide * scales.astype(np.float64)[:, group]
    expected = a.astype(np.float64) @ weights.T
    size_of = np.abs(a.astype(np.float64)) @ np.abs(weights).T
    if inputs["bias"] is not None:
        expected = expected + inputs["bias"]
    fed = ["a", *(["s"] if random.integers(2) else [])]
    constants = [name for name, value in inputs.items() if value is not None and name not in fed]
    model, feeds = one_node("MatMulNBits", inputs, {"y": dtype}, constants=constants, domain=DOMAIN, **given)
    unit = float(ml_dtypes.finfo(dtype).eps)
    bound = float((size_of * k * 2.0**-23).max() + (np.abs(expected) * unit).max() + 1e-6)
    return model, feeds, expected, bound


@pytest.mark.parametrize("seed", range(40))
def test_products_of_packed_weights(seed: int) -> None:
    model, feeds, expected, bound = _product(seed)
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
        model, feeds, expected, bound = _product(100 + seed, np.dtype(ml_dtypes.bfloat16))
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

_TYPED = (ml_dtypes.int4, ml_dtypes.uint4, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float4_e2m1fn)
_TYPED += (ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e5m2fnuz)
_FLOATS = {helper.np_dtype_to_tensor_dtype(np.dtype(each)) for each in _TYPED[2:]}


def _table(seed: int) -> tuple[Any, dict[str, Array], Array]:
    """A random node, its feeds, and the result in float64."""
    random = np.random.default_rng(seed)
    kind = _chance(random, None, None, *_TYPED)
    rank = int(random.integers(2, 4))
    size = _chance(random, 16, 32)
    dims = [int(random.integers(1, 6)) for _ in range(rank)]
    axis = 0 if kind is None else int(random.integers(rank))
    along = rank - 1 if kind is None else int(random.integers(rank))
    bits = _chance(random, 2, 4, 8) if kind is None else 4
    dims[along] = int(random.integers(1, 5)) * 16 + (8 if kind is None else int(random.integers(1, 16)))
    is_float = kind is not None and "float" in np.dtype(kind).name
    if is_float and random.integers(4) == 0:
        size = 0
    blocks = [-(-dim // (size or dim)) if at == along else dim for at, dim in enumerate(dims)]
    if is_float and random.integers(3) == 0:
        at = int(random.integers(rank))
        blocks[at] = 1 if at != along else blocks[at]
    scales = (random.random(blocks) + 0.1).astype(_chance(random, np.float32, np.float16))
    zero: Any = 0
    inputs: dict[str, Any]
    given: dict[str, Any] = {"gather_axis": _chance(random, axis, axis - rank)}
    if kind is None:
        values = _codes(random, bits, *dims)
        data, zero = _pack(values, bits), 1 << (bits - 1)
        zeros = _codes(random, bits, *blocks)
        packed_zeros, given["bits"] = _pack(zeros, bits), bits
    else:
        values = data = _codes(random, np.dtype(kind).itemsize * 8, *dims).view(kind)
        if np.dtype(kind).name in ("int4", "uint4", "float4_e2m1fn"):
            values = data = (data.view(np.uint8) & 15).view(kind)
        packed_zeros = zeros = (_codes(random, 4, *blocks)).view(kind if not is_float else ml_dtypes.int4)
    indices = random.integers(-dims[axis], dims[axis], _chance(random, (), (4,), (2, 3)))
    if indices.ndim and random.integers(2):
        indices.flat[0] = _chance(random, dims[axis], -dims[axis] - 1, 1000)
    inputs = {"d": data, "i": indices.astype(_chance(random, np.int32, np.int64)), "s": scales, "z": None}
    if not is_float and random.integers(2):
        inputs["z"], zero = packed_zeros, zeros
    wide = values.astype(np.float64)
    spread = [np.repeat(np.broadcast_to(np.asarray(each, np.float64), blocks), size or dims[along], along)
              .take(np.arange(dims[along]), along) for each in (scales, zero)]  # fmt: skip
    table = np.broadcast_to((wide - spread[1]) * spread[0], dims)
    inside = (indices >= -dims[axis]) & (indices < dims[axis])
    expected = np.take(table, np.where(inside, indices, 0), axis)
    expected = np.where(inside.reshape(*[1] * axis, *indices.shape, *[1] * (rank - 1 - axis)), expected, 0)
    given |= {"quantize_axis": _chance(random, along, along - rank), "block_size": size}
    constants = [
        name for name, value in inputs.items() if value is not None and (name != "i" or random.integers(3) == 0)
    ]
    model, feeds = one_node(
        "GatherBlockQuantized", inputs, {"y": scales.dtype}, constants=constants, domain=DOMAIN, **given
    )
    return model, feeds, expected


@pytest.mark.parametrize("seed", range(60))
def test_rows_of_quantised_tables(seed: int) -> None:
    model, feeds, expected = _table(seed)
    (have,) = rewritten(prepare(model), feeds)
    unit = float(ml_dtypes.finfo(have.dtype).eps)
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(have.astype(np.float64), expected, rtol=unit, atol=1e-7)
    theirs, _ = _theirs(model, feeds)
    if theirs is None:  # older versions have no floats
        assert next(each.data_type for each in model.graph.initializer if each.name == "d") in _FLOATS
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
        ({"gather_axis": 1}, r"gather_axis 1 and quantize_axis 1 of d \[5, 16\]; of uint8"),
        ({"quantize_axis": 2}, r"quantize_axis is 2, of a tensor of rank 2"),
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


def _experts(seed: int) -> tuple[Any, dict[str, Array], Array, dict[str, Any]]:
    """A random node, its feeds, the result in float64, and its attributes."""
    random = np.random.default_rng(seed)
    bits = {1: _chance(random, 4, 8, 2), 2: 0, 3: 0}
    bits[2] = bits[3] = bits[1]
    experts, rows = int(random.integers(1, 6)), int(random.integers(1, 7))
    size = _chance(random, 0, 16, 32)
    hidden, inner = (int(random.integers(1, 4)) * (size * 2 or 8) for _ in range(2))
    kind = _chance(random, "relu", "gelu", "silu", "swiglu", "swiglu", "identity")
    fusion = _chance(random, 0, 1, 2) if kind == "swiglu" else 0
    dtype = _chance(random, np.float32, np.float32, np.float16)
    given: dict[str, Any] = {"k": int(random.integers(1, experts + 1)), "activation_type": kind}
    given |= {"expert_weight_bits": bits[1], "weights_prepacked": 0}
    if size:
        given["block_size"] = size
    if kind == "swiglu":
        given |= {"swiglu_fusion": fusion, "activation_alpha": 1.702, "activation_beta": 1.0}
        if random.integers(2):
            given["swiglu_limit"] = 0.5
    if random.integers(2):
        given["normalize_routing_weights"] = 1
    x = random.standard_normal(_chance(random, (rows, hidden), (1, rows, hidden))).astype(dtype)
    router = random.standard_normal((rows, experts)).astype(dtype)
    router.flat[0] = router.flat[-1]  # two equal ones in a row, if it is one row
    inputs: dict[str, Any] = {"x": x, "r": router}
    late: dict[str, Any] = {}
    layers = {}
    for number, (n, k) in {1: (inner * (2 if fusion else 1), hidden), 2: (hidden, inner), 3: (inner, hidden)}.items():
        there = number != 3 or (kind == "swiglu" and not fusion)
        codes = _codes(random, bits[number], experts, n, k)
        blocks = k // size if size else 1
        scales = (random.random((experts, n, blocks)) * 0.1).astype(dtype)
        zero: Array = np.full((experts, n, blocks), 1 << (bits[number] - 1))
        late[f"z{number}"] = None
        if there and random.integers(2) and (blocks > 1 or not size):
            zero = _codes(random, bits[number], experts, n, blocks)
            late[f"z{number}"] = _pack(zero if size else zero[..., 0], bits[number])
        bias = random.standard_normal((experts, n)).astype(dtype) if random.integers(2) else None
        inputs |= {f"w{number}": _pack(codes, bits[number]), f"s{number}": scales if size else scales[..., 0]}
        inputs[f"b{number}"] = bias
        if not there:
            inputs |= {f"w{number}": None, f"s{number}": None, f"b{number}": None}
        wide = codes.reshape(experts, n, blocks, -1) - zero[..., None].astype(np.float64)
        layers[number] = (wide * scales[..., None].astype(np.float64)).reshape(experts, n, k), bias
    weights = None
    if random.integers(3) == 0:
        weights = (random.random((rows, experts)) - 0.2).astype(dtype)
    inputs |= late | {"rw": weights}
    constants = [name for name, value in inputs.items() if value is not None and name not in ("x", "r", "rw")]
    model, feeds = one_node("QMoE", inputs, {"y": dtype}, constants=constants, domain=DOMAIN, **given)
    return model, feeds, _moe(x, router, weights, layers, given), given


def _moe(x: Array, router: Array, weights: Array | None, layers: dict[int, Any], given: dict[str, Any]) -> Array:
    flat = x.reshape(-1, x.shape[-1]).astype(np.float64)
    y = np.zeros_like(flat)
    for row, numbers in enumerate(router.astype(np.float64)):
        order = sorted(range(len(numbers)), key=lambda e: (numbers[e], e), reverse=True)[: given["k"]]
        share = np.exp(numbers[order] - numbers[order].max())
        share /= share.sum()
        if weights is not None:
            share = weights[row, order].astype(np.float64)
            if given.get("normalize_routing_weights"):
                share = share / share.sum()
        for part, expert in zip(share, order, strict=True):
            if part > 1e-8:
                y[row] += part * _expert(flat[row], expert, layers, given)
    return y.reshape(x.shape)


def _expert(x: Array, expert: int, layers: dict[int, Any], given: dict[str, Any]) -> Array:
    def layer(number: int, x: Array) -> Array:
        weights, bias = layers[number]
        return weights[expert] @ x + (0 if bias is None else bias[expert].astype(np.float64))

    gate, kind = layer(1, x), given["activation_type"]
    if kind == "swiglu":
        up = {0: lambda: layer(3, x), 1: lambda: gate[1::2], 2: lambda: gate[len(gate) // 2 :]}[
            given["swiglu_fusion"]
        ]()
        gate = {0: gate, 1: gate[::2], 2: gate[: len(gate) // 2]}[given["swiglu_fusion"]]
        limit = given.get("swiglu_limit", np.inf)
        gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
        return layer(2, gate / (1 + np.exp(-1.702 * gate)) * (up + 1))
    return layer(2, {
        "relu": lambda: np.maximum(gate, 0), "identity": lambda: gate, "silu": lambda: gate / (1 + np.exp(-gate)),
        "gelu": lambda: gate / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3))),
    }[kind]())  # fmt: skip


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.filterwarnings("ignore:(overflow|divide by zero|invalid value):RuntimeWarning")
def test_quantised_experts(seed: int) -> None:
    model, feeds, expected, given = _experts(seed)
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
