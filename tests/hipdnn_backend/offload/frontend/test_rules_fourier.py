"""DFT and STFT as products, against numpy's transforms in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hipdnn_backend.offload.errors import ModelError, UnsupportedNodeError
from hipdnn_backend.offload.frontend import load, prepare
from tests.support.onnx_rewritten import check_rewrite, one_node

RANDOM = np.random.default_rng(29)


def _complex(x: np.ndarray) -> np.ndarray:
    wide = x.astype(np.float64)
    return wide[..., 0] if x.shape[-1] == 1 else wide[..., 0] + 1j * wide[..., 1]


def _parts(y: np.ndarray, dtype: type = np.float32) -> np.ndarray:
    return np.stack([np.real(y), np.imag(y)], -1).astype(dtype)


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize(("axis", "length"), [(1, None), (-2, None), (1, 5), (2, 12), (1, 9)])
@pytest.mark.parametrize("inverse", [0, 1])
def test_transforms(parts: int, axis: int, length: int | None, inverse: int) -> None:
    x = RANDOM.standard_normal((2, 7, 8, parts)).astype(np.float32)
    inputs = {"x": x, "n": None if length is None else np.array(length), "a": np.array(axis)}
    constants = ["a"] if length is None else ["n", "a"]
    model, feeds = one_node("DFT", inputs, {"y": np.float32}, constants=constants, opset=20, inverse=inverse)
    along = axis % 4
    want = (np.fft.ifft if inverse else np.fft.fft)(_complex(x), length, along)
    check_rewrite(model, feeds, expected=[_parts(want)], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("length", [None, 7, 10])
def test_onesided_transforms_and_back(length: int | None) -> None:
    x = RANDOM.standard_normal((3, 8, 1)).astype(np.float32)
    number = None if length is None else np.array(length)
    given: dict[str, Any] = {"constants": [] if length is None else ["n"], "opset": 20, "onesided": 1}
    inputs = {"x": x, "n": number} if length else {"x": x}
    model, feeds = one_node("DFT", inputs, {"y": np.float32}, **given)
    want = np.fft.rfft(_complex(x), length, 1)
    check_rewrite(model, feeds, expected=[_parts(want)], rtol=1e-4, atol=1e-5)
    inputs["x"] = _parts(want)
    model, feeds = one_node("DFT", inputs, {"y": np.float32}, inverse=1, **given)
    back = np.fft.irfft(want, length, 1)[..., None].astype(np.float32)
    check_rewrite(model, feeds, expected=[back], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("windowed", [False, True])
@pytest.mark.parametrize("onesided", [0, 1])
def test_frames(windowed: bool, onesided: int) -> None:
    x = RANDOM.standard_normal((2, 25, 1)).astype(np.float32)
    window = RANDOM.random(8).astype(np.float32)
    inputs = {"x": x, "s": np.array(3), "w": window if windowed else None, "n": np.array(8)}
    model, feeds = one_node("STFT", inputs, {"y": np.float32}, constants=["s", "n"], opset=17, onesided=onesided)
    frames = np.stack([x[:, at : at + 8, 0] for at in range(0, 18, 3)], 1).astype(np.float64)
    frames = frames * window if windowed else frames
    want = np.fft.rfft(frames) if onesided else np.fft.fft(frames)
    check_rewrite(model, feeds, expected=[_parts(want)], rtol=1e-4, atol=1e-5)
    assert "complex" not in str(load(model).module)


def test_what_no_transform_is_made_of() -> None:
    x = np.zeros((1, 5000, 1), np.float32)
    model, _ = one_node("DFT", {"x": x}, {"y": np.float32}, opset=20)
    with pytest.raises(UnsupportedNodeError, match="a transform of 5000 elements; up to 4096"):
        prepare(model)
    inputs = {"x": np.zeros((1, 8, 1), np.float32), "n": None, "a": np.array(2)}
    model, _ = one_node("DFT", inputs, {"y": np.float32}, constants=["a"], opset=20)
    with pytest.raises(ModelError, match=r"node: .*axis"):
        prepare(model)
