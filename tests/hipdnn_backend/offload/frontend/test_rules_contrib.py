"""Operators of com.microsoft, and attention, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hipdnn_backend.offload.errors import ModelError
from hipdnn_backend.offload.frontend import load, prepare
from tests.support.onnx_rewritten import check_rewrite, one_node

RANDOM = np.random.default_rng(4)
DOMAIN = "com.microsoft"


def _normal(*dims: int) -> np.ndarray:
    return RANDOM.standard_normal(dims).astype(np.float32)


def _check(op_type: str, inputs: dict[str, Any], outputs: dict[str, Any], *, atol: float = 1e-5, **given: Any) -> str:
    """Compares with ONNX Runtime; the converted module as text."""
    bound = given.pop("inputs", None)
    model, feeds = one_node(op_type, inputs, outputs, domain=DOMAIN, **given)
    check_rewrite(model, feeds, rtol=1e-4, atol=atol, inputs=bound)
    text = str(load(model, inputs=bound).module)
    assert "?" not in text
    return text


@pytest.mark.parametrize("activation", ["Relu", "Tanh", "LeakyRelu", "HardSigmoid", "Clip"])
@pytest.mark.parametrize("residual", [False, True])
def test_fused_conv(activation: str, residual: bool) -> None:
    parameters = {"LeakyRelu": [0.2], "HardSigmoid": [0.3, 0.4], "Clip": [-0.5, 0.7]}.get(activation)
    inputs = {"x": _normal(1, 2, 5, 5), "w": _normal(3, 2, 3, 3), "b": _normal(3), "z": _normal(1, 3, 5, 5)}
    if not residual:
        del inputs["z"]
    given: dict[str, Any] = {"activation_params": parameters} if parameters else {}
    _check("FusedConv", inputs, {"y": np.float32}, pads=[1, 1, 1, 1], activation=activation, **given)


def test_fused_products() -> None:
    a, b = _normal(2, 4, 3), _normal(2, 5, 4)
    _check("FusedMatMul", {"a": a, "b": b}, {"y": np.float32}, transA=1, transB=1, alpha=0.5)
    inputs = {"a": _normal(2, 3), "b": _normal(4, 3), "c": _normal(4)}
    _check("FusedGemm", inputs, {"y": np.float32}, transB=1, alpha=0.5, activation="LeakyRelu", activation_alpha=0.2)


@pytest.mark.parametrize(
    ("op_type", "bias", "given"),
    [
        ("Gelu", False, {}),
        ("BiasGelu", True, {}),
        ("FastGelu", False, {}),
        ("FastGelu", True, {}),
        ("QuickGelu", False, {"alpha": 1.5}),
    ],
)
def test_gelus(op_type: str, bias: bool, given: dict[str, Any]) -> None:
    inputs = {"x": _normal(2, 3, 4), **({"b": _normal(4)} if bias else {})}
    _check(op_type, inputs, {"y": np.float32}, **given)


@pytest.mark.parametrize("domain", ["", DOMAIN])
def test_simplified_layer_normalization(domain: str) -> None:
    inputs = {"x": _normal(2, 3, 4), "w": _normal(4)}
    model, feeds = one_node("SimplifiedLayerNormalization", inputs, {"y": np.float32}, domain=domain, axis=-1)
    wide = inputs["x"].astype(np.float64)
    expected = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-5) * inputs["w"]
    check_rewrite(model, feeds, expected=[expected.astype(np.float32)])
    assert "torch.aten.rms_norm" in str(load(model).module)


def test_skip_norms() -> None:
    inputs = {"x": _normal(2, 3, 4), "skip": _normal(2, 3, 4), "w": _normal(4), "bias": _normal(4)}
    outputs = {"y": np.float32, "_mean": np.float32, "_deviation": np.float32, "sum": np.float32}
    text = _check("SkipSimplifiedLayerNormalization", inputs, outputs, epsilon=1e-5)
    assert "torch.aten.rms_norm" in text
    inputs = {"x": _normal(2, 3, 4), "skip": _normal(2, 3, 4), "w": _normal(4), "b": _normal(4), "bias": _normal(4)}
    text = _check("SkipLayerNormalization", inputs, outputs, epsilon=1e-5)
    assert "torch.aten.native_layer_norm" in text


@pytest.mark.parametrize("rank", [3, 4])
@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("position", ["offset", "table"])
def test_rotary_embedding(rank: int, interleaved: int, position: str) -> None:
    angles = _normal(16, 4)
    at = np.array([3]) if position == "offset" else np.array([[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]])
    inputs = {
        "x": _normal(2, 5, 24) if rank == 3 else _normal(2, 3, 5, 8),
        "at": at, "cos": np.cos(angles), "sin": np.sin(angles),
    }  # fmt: skip
    _check("RotaryEmbedding", inputs, {"y": np.float32}, interleaved=interleaved)


@pytest.mark.parametrize(
    "extra",
    [
        {},
        {"bias": _normal(24)},
        {"padding": np.array([[1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1]], np.int32)},
        {"scores": _normal(1, 2, 5, 6)},
        {"past": True},
    ],
    ids=["plain", "bias", "padding", "scores", "past"],
)
def test_multi_head_attention(extra: dict[str, Any]) -> None:
    past = extra.get("past", False)
    inputs = {
        "q": _normal(2, 5, 8), "k": _normal(2, 6, 8), "v": _normal(2, 6, 8), "bias": extra.get("bias"),
        "padding": extra.get("padding"), "scores": extra.get("scores"),
        "past_k": _normal(2, 2, 3, 4) if past else None, "past_v": _normal(2, 2, 3, 4) if past else None,
    }  # fmt: skip
    outputs: dict[str, Any] = {"y": np.float32}
    if past:
        outputs |= {"present_k": np.float32, "present_v": np.float32}
    text = _check("MultiHeadAttention", inputs, outputs, num_heads=2)
    assert "torch.aten.scaled_dot_product_attention" in text


@pytest.mark.parametrize(
    ("past", "given"),
    [
        (0, {}),
        (0, {"do_rotary": 1}),
        (0, {"do_rotary": 1, "rotary_interleaved": 1, "scale": 0.3}),
        (0, {"softcap": 5.0}),
        (0, {"local_window_size": 2}),
        (4, {}),
        (4, {"do_rotary": 1}),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_group_query_attention(past: int, given: dict[str, Any], packed: bool) -> None:
    batch, sequence, size = 2, 1 if past else 5, 16
    angles = _normal(16, size // 2)
    total = past + sequence
    inputs = {
        "q": _normal(batch, sequence, (4 + 2 + 2 if packed else 4) * size),
        "k": None if packed else _normal(batch, sequence, 2 * size),
        "v": None if packed else _normal(batch, sequence, 2 * size),
        "past_k": _normal(batch, 2, past, size) if past else None,
        "past_v": _normal(batch, 2, past, size) if past else None,
        "lengths": np.full(batch, total - 1, np.int32),
        "total": np.array(total, np.int32),
        "cos": np.cos(angles) if given.get("do_rotary") else None,
        "sin": np.sin(angles) if given.get("do_rotary") else None,
    }
    outputs = {"y": np.float32, "present_k": np.float32, "present_v": np.float32}
    constants = ["lengths", "total"]
    _check("GroupQueryAttention", inputs, outputs, constants=constants, num_heads=4, kv_num_heads=2, **given)


def test_a_cache_that_is_used_in_part_is_refused() -> None:
    inputs = {
        "q": _normal(1, 1, 8), "k": _normal(1, 1, 8), "v": _normal(1, 1, 8), "past_k": _normal(1, 1, 4, 8),
        "past_v": _normal(1, 1, 4, 8), "lengths": np.array([2], np.int32), "total": np.array(3, np.int32),
    }  # fmt: skip
    outputs = {"y": np.float32, "present_k": np.float32, "present_v": np.float32}
    given = {"num_heads": 1, "kv_num_heads": 1, "domain": DOMAIN}
    model, _ = one_node("GroupQueryAttention", inputs, outputs, constants=["lengths", "total"], **given)
    with pytest.raises(ModelError, match=r"node: GroupQueryAttention: seqlens_k \[2\]"):
        prepare(model)
    model, _ = one_node("GroupQueryAttention", inputs, outputs, **given)
    with pytest.raises(ModelError, match="bind it to 4"):
        prepare(model)


def test_packed_operands_of_multi_head_attention_are_refused() -> None:
    model, _ = one_node(
        "MultiHeadAttention", {"q": _normal(1, 2, 2, 3, 4)}, {"y": np.float32}, num_heads=2, domain=DOMAIN
    )
    with pytest.raises(ModelError, match="node: MultiHeadAttention: packed"):
        prepare(model)
