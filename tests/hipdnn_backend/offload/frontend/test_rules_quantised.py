"""Quantised operators as plain arithmetic, against ONNX Runtime's integer kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto
from onnx.reference import ReferenceEvaluator

from hipdnn_backend.offload.errors import UnsupportedNodeError
from hipdnn_backend.offload.frontend import load, prepare
from tests.support.onnx_rewritten import check_rewrite, one_node

RANDOM = np.random.default_rng(5)


def _bytes(dtype: type, *dims: int) -> np.ndarray:
    limits = np.iinfo(dtype)
    return RANDOM.integers(limits.min, limits.max + 1, dims).astype(dtype)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("per_axis", [False, True])
def test_quantize_and_dequantize(dtype: type, per_axis: bool) -> None:
    scale = np.array([0.1, 0.05, 0.2], np.float32) if per_axis else np.float32(0.1)
    zero = _bytes(dtype, 3) // dtype(2) if per_axis else np.array(3, dtype)
    x = np.concatenate([np.array([0.05, 0.15, -0.25, 100, -100]), RANDOM.standard_normal(19) * 8]).astype(np.float32)
    inputs = {"x": x.reshape(2, 3, 4), "s": np.asarray(scale), "z": zero}
    model, feeds = one_node("QuantizeLinear", inputs, {"y": dtype}, constants=["s", "z"], axis=1)
    check_rewrite(model, feeds)
    inputs["x"] = _bytes(dtype, 2, 3, 4)
    model, feeds = one_node("DequantizeLinear", inputs, {"y": np.float32}, constants=["s", "z"], axis=1)
    check_rewrite(model, feeds)
    text = str(load(model).module)
    assert "quint8" not in text
    assert "qint8" not in text


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_convolution(per_channel: bool, bias: bool) -> None:
    inputs: dict[str, Any] = {
        "x": _bytes(np.uint8, 1, 3, 6, 6), "xs": np.float32(0.02), "xz": np.uint8(120),
        "w": _bytes(np.int8, 4, 3, 3, 3),
        "ws": np.array([0.01, 0.02, 0.015, 0.03], np.float32) if per_channel else np.float32(0.02),
        "wz": np.zeros(4, np.int8) if per_channel else np.int8(0), "ys": np.float32(0.05), "yz": np.uint8(100),
    }  # fmt: skip
    if bias:
        inputs["b"] = RANDOM.integers(-2000, 2000, 4).astype(np.int32)
    inputs = {name: np.asarray(value) for name, value in inputs.items()}
    constants = [name for name in inputs if name != "x"]
    model, feeds = one_node("QLinearConv", inputs, {"y": np.uint8}, constants=constants, pads=[1, 1, 1, 1])
    # not ONNX Runtime: its kernels saturate sums of products on some processors; a tie may be rounded either way
    check_rewrite(
        model, feeds, expected=[np.asarray(each) for each in ReferenceEvaluator(model).run(None, feeds)], atol=1
    )
    assert "quint8" not in str(load(model).module)


def test_product() -> None:
    scalars = {"as": np.float32(0.02), "az": np.uint8(120), "bs": np.float32(0.01), "bz": np.uint8(99)}
    scalars |= {"ys": np.float32(0.04), "yz": np.uint8(110)}
    arrays = {name: np.asarray(value) for name, value in scalars.items()}
    inputs = {
        "a": _bytes(np.uint8, 2, 3, 5), "as": arrays["as"], "az": arrays["az"], "b": _bytes(np.uint8, 2, 5, 4),
        "bs": arrays["bs"], "bz": arrays["bz"], "ys": arrays["ys"], "yz": arrays["yz"],
    }  # fmt: skip
    model, feeds = one_node("QLinearMatMul", inputs, {"y": np.uint8}, constants=list(scalars))
    check_rewrite(model, feeds, atol=1)


@pytest.mark.parametrize("scale", [np.float16, np.float32])
def test_product_with_scales_per_row_and_column(scale: type) -> None:
    """Against the sums in float64, one rounding later."""
    inputs: dict[str, Any] = {
        "a": _bytes(np.int8, 3, 5), "as": np.array([0.02, 0.03, 0.01], scale), "az": np.array([1, -2, 3], np.int8),
        "b": _bytes(np.uint8, 5, 2), "bs": np.array([0.01, 0.02], scale), "bz": np.array([120, 7], np.uint8),
        "ys": np.array([0.4], scale), "yz": np.array([5], np.int8),
    }  # fmt: skip
    model, feeds = one_node("QLinearMatMul", inputs, {"y": np.int8}, constants=[n for n in inputs if n not in "ab"])
    wide = {name: value.astype(np.float64) for name, value in inputs.items()}
    sums = (wide["a"] - wide["az"][:, None]) @ (wide["b"] - wide["bz"])
    scaled = sums * wide["as"][:, None] * wide["bs"] / wide["ys"]
    expected = np.clip(np.rint(scaled) + 5, -128, 127).astype(np.int8)
    assert np.abs(scaled - np.floor(scaled) - 0.5).min() > 1e-4, "no sum lies between two integers"
    check_rewrite(model, feeds, expected=[expected])
    assert "qint8" not in str(load(model).module)


@pytest.mark.parametrize("dtype", [np.uint8, np.int16])
@pytest.mark.parametrize(("axis", "dims"), [(1, (2, 3, 4)), (-1, (2, 5, 2)), (0, (1, 5, 4))])
def test_scales_per_block(dtype: type, axis: int, dims: tuple[int, ...]) -> None:
    """Blocks of 2 along the axis, the last one shorter."""
    scale, zero = (0.1 + RANDOM.random(dims)).astype(np.float32), _bytes(dtype, *dims) // dtype(4)
    x = (RANDOM.standard_normal((2, 5, 4)) * 8).astype(np.float32)
    wide_scale, wide_zero = (
        np.repeat(value, 2, axis).take(range(x.shape[axis]), axis).astype(np.float64) for value in (scale, zero)
    )
    given = {"axis": axis, "block_size": 2, "constants": ["s", "z"]}
    model, feeds = one_node("QuantizeLinear", {"x": x, "s": scale, "z": zero}, {"y": dtype}, **given)
    limits = np.iinfo(dtype)
    codes = np.clip(np.rint(x / wide_scale) + wide_zero, limits.min, limits.max).astype(dtype)
    check_rewrite(model, feeds, expected=[codes])
    model, feeds = one_node("DequantizeLinear", {"x": codes, "s": scale, "z": zero}, {"y": np.float32}, **given)
    check_rewrite(model, feeds, expected=[((codes - wide_zero) * wide_scale).astype(np.float32)])


def test_the_types_that_a_node_asks_for() -> None:
    x, scale = np.array([-7, 0, 100], np.int8), np.array(0.1, np.float32)
    given = {"opset": 23, "output_dtype": TensorProto.FLOAT16}
    model, feeds = one_node("DequantizeLinear", {"x": x, "s": scale}, {"y": np.float16}, constants=["s"], **given)
    check_rewrite(model, feeds, expected=[x.astype(np.float16) * np.float16(0.1)])
    x = np.array([2049.0, -3.0], np.float32)  # 2049 is 2048 in half precision
    model, feeds = one_node(
        "QuantizeLinear", {"x": x, "s": np.array(1, np.float32)}, {"y": np.int16}, constants=["s"], opset=23,
        output_dtype=TensorProto.INT16, precision=TensorProto.FLOAT16,
    )  # fmt: skip
    check_rewrite(model, feeds, expected=[np.array([2048, -3], np.int16)])


def test_scales_of_a_form_that_is_not_known_are_refused() -> None:
    x, scale = np.zeros((2, 2), np.int8), np.ones((2, 2), np.float32)
    model, _ = one_node("DequantizeLinear", {"x": x, "s": scale}, {"y": np.float32}, constants=["s"])
    with pytest.raises(UnsupportedNodeError, match=r"int8 elements, operands of dims \[\[2, 2\], \[2, 2\]\]"):
        load(model)


@pytest.mark.parametrize("channels", [False, True])
def test_integer_convolution_with_padding(channels: bool) -> None:
    inputs = {
        "x": _bytes(np.uint8, 1, 2, 5, 5), "w": _bytes(np.uint8, 3, 2, 3, 3), "xz": np.array(7, np.uint8),
        "wz": np.array([1, 2, 3], np.uint8) if channels else np.array(5, np.uint8),
    }  # fmt: skip
    model, feeds = one_node(
        "ConvInteger", inputs, {"y": np.int32}, constants=["w", "xz", "wz"], pads=[1, 0, 1, 1], opset=10
    )
    wide = np.pad(inputs["x"].astype(int) - 7, ((0, 0), (0, 0), (1, 1), (0, 1)))
    filters = inputs["w"].astype(int) - inputs["wz"].reshape(-1, 1, 1, 1)
    windows = np.lib.stride_tricks.sliding_window_view(wide, (3, 3), axis=(2, 3))
    expected = np.einsum("nchwij,ocij->nohw", windows, filters).astype(np.int32)
    check_rewrite(model, feeds, expected=[expected])
    load(model)


@pytest.mark.parametrize("x", [RANDOM.standard_normal((3, 4)), RANDOM.random((2, 3, 5)) + 1, -RANDOM.random(7), [0, 0]])
def test_dynamic_quantization_is_onnx_runtime_s(x: Any) -> None:
    """On both sides of 0, on one, and of nothing but zeros, whose scale is 1."""
    model, feeds = one_node(
        "DynamicQuantizeLinear", {"x": np.array(x, np.float32)}, {"y": np.uint8, "s": np.float32, "z": np.uint8}
    )
    graph = check_rewrite(model, feeds, rtol=0, atol=0)
    assert {"ReduceMin", "ReduceMax"} <= {node.op_type for node in graph.nodes}
    load(model)


def _quantised(x: np.ndarray) -> tuple[np.ndarray, np.float32]:
    """Whole numbers less their zero point, and their scale."""
    low, high = min(x.min(), 0), max(x.max(), 0)
    scale = np.float32((high - low) / np.float32(255)) or np.float32(1)
    zero = np.round(-low / scale)
    return np.clip(np.round(x / scale) + zero, 0, 255) - zero, scale


def _lstm_in_numpy(inputs: dict[str, Any], steps: int, hidden: int, backward: bool, which: int) -> np.ndarray:
    x, x_scale = _quantised(inputs["X"][:, 0])
    bias = inputs["B"][which].reshape(2, -1).sum(0)
    gates = x @ inputs["W"][which].astype(np.float64) * (x_scale * inputs["ws"][which]) + bias
    h, c, found = np.zeros((1, hidden), np.float32), np.zeros((1, hidden)), np.zeros((steps, hidden))
    for t in reversed(range(steps)) if backward else range(steps):
        state, scale = _quantised(h)
        given = gates[t] + state @ inputs["R"][which].astype(np.float64) * (scale * inputs["rs"][which])
        i, o, f, new = np.split(given, 4, -1)
        c = c / (1 + np.exp(-f)) + np.tanh(new) / (1 + np.exp(-i))
        h = found[t] = (np.tanh(c) / (1 + np.exp(-o))).astype(np.float32)[0]
        h = h[None]
    return found


def test_dynamically_quantised_lstm_of_large_weights() -> None:
    """Against numpy: ONNX Runtime saturates sums of larger products on processors without VNNI."""
    random, steps, size, hidden = np.random.default_rng(0), 24, 16, 32
    inputs = {
        "X": (random.standard_normal((steps, 1, size)) * 0.5).astype(np.float32),
        "W": random.integers(-100, 100, (2, size, 4 * hidden)).astype(np.int8),
        "R": random.integers(-100, 100, (2, hidden, 4 * hidden)).astype(np.int8),
        "B": (random.standard_normal((2, 8 * hidden)) * 0.1).astype(np.float32),
        "lengths": None, "h": None, "c": None, "P": None,
        "ws": np.full(2, 0.01, np.float32), "wz": np.zeros(2, np.int8),
        "rs": np.full(2, 0.01, np.float32), "rz": np.zeros(2, np.int8),
    }  # fmt: skip
    constants = [name for name in inputs if name != "X" and inputs[name] is not None]
    given = {"hidden_size": hidden, "direction": "bidirectional", "domain": "com.microsoft"}
    model, feeds = one_node("DynamicQuantizeLSTM", inputs, {"Y": np.float32}, constants=constants, **given)
    ways = [_lstm_in_numpy(inputs, steps, hidden, which == 1, which) for which in range(2)]
    expected = np.stack(ways, 1)[:, :, None].astype(np.float32)
    check_rewrite(model, feeds, expected=[expected], rtol=0, atol=1e-6)


def _dynamic_lstm(direction: str, *, batch: int = 1, per_channel: bool = False, states: bool = False, zero: int = 0,
                  dtype: Any = np.int8, bias: bool = True, hidden: int = 32, peepholes: bool = False,
                  lengths: int | None = None, seed: int = 3, **given: Any) -> Any:  # fmt: skip
    """Weights are a third of their range: ONNX Runtime's kernels saturate sums of products on some processors."""
    random, steps, size = np.random.default_rng(seed), 12, 16
    count = 2 if direction == "bidirectional" else 1

    def weights(rows: int) -> np.ndarray:
        return (random.integers(-40, 40, (count, rows, 4 * hidden)) + (128 if dtype is np.uint8 else 0)).astype(dtype)

    def scale() -> np.ndarray:
        return (0.005 + 0.01 * random.random((count, 4 * hidden) if per_channel else count)).astype(np.float32)

    def normal(*dims: int, scale: float = 0.5) -> np.ndarray:
        return (random.standard_normal(dims) * scale).astype(np.float32)

    ends = None if lengths is None else np.full(batch, lengths, np.int32)
    zeros = np.full((count, 4 * hidden) if per_channel else count, zero, dtype)
    inputs = {
        "X": normal(steps, batch, size), "W": weights(size), "R": weights(hidden),
        "B": normal(count, 8 * hidden, scale=0.1) if bias else None, "lengths": ends,
        "h": normal(count, batch, hidden) if states else None, "c": normal(count, batch, hidden) if states else None,
        "P": normal(count, 3 * hidden) if peepholes else None, "ws": scale(), "wz": zeros, "rs": scale(), "rz": zeros,
    }  # fmt: skip
    constants = [name for name in inputs if name != "X" and inputs[name] is not None]
    outputs = {"Y": np.float32, "Y_h": np.float32, "Y_c": np.float32}
    given |= {"hidden_size": hidden, "direction": direction, "domain": "com.microsoft"}
    return one_node("DynamicQuantizeLSTM", inputs, outputs, constants=constants, **given)


@pytest.mark.a_few(
    "{'direction': 'forward'}", "{'direction': 'reverse'}", "{'dtype'*", "{'input_forget': 1}", "{'lengths': 12}"
)
@pytest.mark.parametrize(
    "given",
    [
        *({"direction": each} for each in ("forward", "reverse", "bidirectional")),
        {"per_channel": True},
        {"states": True},
        {"bias": False},
        {"dtype": np.uint8, "zero": 128},
        {"zero": 3},
        {"clip": 0.3},
        {"input_forget": 1},
        {"hidden": 300},
        {"peepholes": True},
        {"peepholes": True, "input_forget": 1, "clip": 0.5},
        {"lengths": 12},
    ],
    ids=str,
)
def test_dynamically_quantised_lstm_is_onnx_runtime_s(given: dict[str, Any]) -> None:
    """Which quantises X once and the state once per step; what rounds the other way would be 1e-3 off."""
    model, feeds = _dynamic_lstm(**{"direction": "bidirectional", **given})
    graph = check_rewrite(model, feeds, rtol=0, atol=1e-6)
    assert graph.whole == {"node"}


@pytest.mark.a_few("0", "1", "2", "8", "10")
@pytest.mark.parametrize("seed", range(12))
def test_dynamically_quantised_lstm_at_random(seed: int) -> None:
    random = np.random.default_rng(seed)
    sides = {"dtype": np.uint8, "zero": int(random.integers(120, 136))} if random.integers(2) else {"zero": 2}
    names = ("Sigmoid", "Tanh", "Relu", "Softsign", "HardSigmoid")
    direction = ("forward", "reverse", "bidirectional")[random.integers(3)]
    given: dict[str, Any] = {name: True for name in ("per_channel", "states", "peepholes") if random.integers(2)}
    if "per_channel" in given:  # else ONNX Runtime refuses it
        sides["zero"] = 128 if "dtype" in sides else 0
    given |= {"clip": 0.4} if random.integers(3) == 0 else {}
    given |= {"input_forget": 1} if random.integers(3) == 0 else {}
    if random.integers(2):
        count = 6 if direction == "bidirectional" else 3
        given["activations"] = [names[random.integers(len(names))] for _ in range(count)]
    model, feeds = _dynamic_lstm(
        direction, seed=seed, bias=bool(random.integers(2)), hidden=int(random.integers(5, 40)), **sides, **given
    )
    check_rewrite(model, feeds, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize(
    ("given", "reason"),
    [({"batch": 2}, "12 steps of 2 sequences"), ({"lengths": 7}, "of 1 sequences with sequence_lens that end them")],
)
def test_ranges_that_depend_on_threads_are_left(given: dict[str, Any], reason: str) -> None:
    model, _ = _dynamic_lstm("forward", **given)
    with pytest.raises(UnsupportedNodeError, match=reason):
        prepare(model)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_sums_of_convolutions_of_bytes_are_exact(data: Any) -> None:
    """Whatever the number of channels, the window, groups, signs and zero points: integers are the reference."""
    draw = data.draw
    signed_x, signed_w, is_constant = draw(st.booleans()), draw(st.booleans()), draw(st.booleans())
    groups, channels, window = draw(st.sampled_from([1, 1, 2])), draw(st.integers(1, 90)), draw(st.integers(1, 3))
    of_x, of_w = np.int8 if signed_x else np.uint8, np.int8 if signed_w else np.uint8
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    ends_x, ends_w = np.iinfo(of_x), np.iinfo(of_w)
    extreme = draw(st.booleans())  # all at the end of the range: the largest sums that there are
    x = rng.integers(ends_x.min, ends_x.max + 1, (1, groups * channels, 4, 5)).astype(of_x)
    w = rng.integers(ends_w.min, ends_w.max + 1, (2 * groups, channels, window, window)).astype(of_w)
    if extreme:
        x[:], w[:] = ends_x.max, ends_w.max
    per_filter = draw(st.booleans())
    zero_x = np.array(rng.integers(ends_x.min, ends_x.max + 1), of_x)
    zero_w = rng.integers(ends_w.min, ends_w.max + 1, (2 * groups,) if per_filter else ()).astype(of_w)
    pads = [int(n) for n in rng.integers(0, 2, 4)]
    inputs = {"x": x, "w": w, "xz": zero_x, "wz": zero_w}
    constants = ["xz", "wz", *(["w"] if is_constant else [])]
    model, feeds = one_node(
        "ConvInteger", inputs, {"y": np.int32}, constants=constants, pads=pads, group=groups, opset=10
    )
    wide = np.pad(x.astype(np.int64) - zero_x, ((0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])))
    filters = w.astype(np.int64) - zero_w.reshape((-1, 1, 1, 1) if per_filter else ())
    windows = np.lib.stride_tricks.sliding_window_view(wide, (window, window), axis=(2, 3))
    parts = [
        np.einsum("nchwij,ocij->nohw", windows[:, g * channels : (g + 1) * channels], filters[2 * g : 2 * g + 2])
        for g in range(groups)
    ]
    check_rewrite(model, feeds, expected=[np.concatenate(parts, 1).astype(np.int32)], rtol=0, atol=0)
