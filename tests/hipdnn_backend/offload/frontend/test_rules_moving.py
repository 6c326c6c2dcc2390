"""Operators that move elements, and changes of the element type."""

from __future__ import annotations

import numpy as np
import pytest

from hipdnn_backend.offload.errors import UnsupportedNodeError
from hipdnn_backend.offload.frontend import load, prepare
from tests.support.onnx_rewritten import check_rewrite, one_node

RANDOM = np.random.default_rng(13)


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_space_to_depth(mode: str) -> None:
    x = RANDOM.standard_normal((2, 3, 6, 9)).astype(np.float32)
    model, feeds = one_node("SpaceToDepth", {"x": x}, {"y": np.float32}, opset=28, blocksize=3, mode=mode)
    want = np.empty((2, 27, 2, 3), np.float32)
    for channel, row, column in np.ndindex(3, 3, 3):
        at = channel * 9 + row * 3 + column if mode == "CRD" else (row * 3 + column) * 3 + channel
        want[:, at] = x[:, channel, row::3, column::3]
    check_rewrite(model, feeds, expected=[want])
    load(model)


@pytest.mark.parametrize("dtype", [np.int16, np.uint32])
def test_casts_to_types_that_torch_mlir_does_not_know(dtype: type) -> None:
    top = float(np.iinfo(dtype).max // 1024 * 1024)
    x = np.array([0, 1.75, 31000.5, top], np.float32)
    model, feeds = one_node("Cast", {"x": x}, {"y": dtype}, to=5 if dtype is np.int16 else 12)
    check_rewrite(model, feeds, expected=[np.array([0, 1, 31000, top], dtype)])
    load(model)


@pytest.mark.parametrize("dims", [(), (3,), (2, 1)])
def test_bits_of_another_type(dims: tuple[int, ...]) -> None:
    x = np.broadcast_to(np.float32(-1.5), dims).copy()
    model, feeds = one_node("BitCast", {"x": x}, {"y": np.int32}, opset=28, to=6)
    check_rewrite(model, feeds, expected=[np.full(dims, 0xBFC00000, np.uint32).astype(np.int32)])
    load(model)
    model, _ = one_node("BitCast", {"x": x.astype(np.int16)}, {"y": np.uint16}, opset=28, to=4)
    with pytest.raises(UnsupportedNodeError, match="int16 as uint16"):
        prepare(model)
