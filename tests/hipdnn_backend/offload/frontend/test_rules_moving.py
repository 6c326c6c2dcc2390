"""Operators that move elements, and changes of the element type."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hipdnn_backend.offload import load as backend_load
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


@pytest.mark.parametrize("time", [0, 1])
@pytest.mark.parametrize("dims", [(4, 3), (3, 5, 2)])
def test_reversed_sequences(time: int, dims: tuple[int, ...]) -> None:
    x = RANDOM.standard_normal(dims).astype(np.float32)
    lengths = RANDOM.integers(1, dims[time] + 1, dims[1 - time])
    model, feeds = one_node(
        "ReverseSequence", {"x": x, "n": lengths}, {"y": np.float32}, time_axis=time, batch_axis=1 - time
    )
    check_rewrite(model, feeds)


@pytest.mark.iree_cpu
def test_lengths_that_a_sequence_does_not_have_read_inside() -> None:
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    model, _ = one_node("ReverseSequence", {"x": x, "n": np.array([1, 1])}, {"y": np.float32})
    with backend_load(model, device="cpu") as compiled:
        (y,) = compiled.run({"x": x, "n": np.array([10**12, -5])}).values()
    np.testing.assert_array_equal(y, [[4, 1], [2, 3], [0, 5]])


@pytest.mark.parametrize(
    ("sizes", "block", "given"),
    [
        ((5, 6), (2, 3), {}),
        ((5, 7), (3, 2), {"strides": [2, 3], "pads": [1, 0, 1, 2], "dilations": [1, 2]}),
        ((9,), (3,), {"strides": [2]}),
        ((3, 4, 5), (2, 1, 3), {"strides": [1, 2, 2]}),
    ],
)
def test_columns_to_an_image(sizes: tuple[int, ...], block: tuple[int, ...], given: dict[str, Any]) -> None:
    rank = len(sizes)
    strides, dilations = (given.get(name, [1] * rank) for name in ("strides", "dilations"))
    pads = given.get("pads", [0] * (2 * rank))
    counts = [
        (sizes[i] + pads[i] + pads[rank + i] - dilations[i] * (block[i] - 1) - 1) // strides[i] + 1 for i in range(rank)
    ]
    x = RANDOM.standard_normal((2, 3 * np.prod(block), np.prod(counts))).astype(np.float32)
    want = np.zeros((2, 3, *sizes))
    split = x.reshape(2, 3, *block, *counts)
    for tap in np.ndindex(*block):
        for place in np.ndindex(*counts):
            at = [place[i] * strides[i] - pads[i] + tap[i] * dilations[i] for i in range(rank)]
            if all(0 <= at[i] < sizes[i] for i in range(rank)):
                want[(slice(None), slice(None), *at)] += split[(slice(None), slice(None), *tap, *place)]
    inputs = {"x": x, "s": np.array(sizes), "k": np.array(block)}
    model, feeds = one_node("Col2Im", inputs, {"y": np.float32}, constants=["s", "k"], **given)
    check_rewrite(model, feeds, expected=[want.astype(np.float32)], rtol=1e-5)
    load(model)


@pytest.mark.parametrize(("axes", "sizes"), [(None, (3, 6, 4)), ([-1, 0], (7, 1))])
def test_centre_crops_and_pads(axes: list[int] | None, sizes: tuple[int, ...]) -> None:
    x = RANDOM.standard_normal((4, 3, 4)).astype(np.float32)
    given: dict[str, Any] = {} if axes is None else {"axes": axes}
    model, feeds = one_node(
        "CenterCropPad", {"x": x, "s": np.array(sizes)}, {"y": np.float32}, constants=["s"], **given
    )
    want = np.zeros((3, 6, 4) if axes is None else (1, 3, 7), np.float32)
    if axes is None:
        want[:, 1:4] = x[:3]
    else:
        want[:, :, 1:5] = x[1:2]
    check_rewrite(model, feeds, expected=[want])


@pytest.mark.parametrize("mode", ["linear", "circular"])
@pytest.mark.parametrize("axis", [-2, 1])
def test_updates_of_a_cache(mode: str, axis: int) -> None:
    cache = RANDOM.standard_normal((3, 2, 5, 4) if axis == -2 else (3, 5, 4)).astype(np.float32)
    update = RANDOM.standard_normal((3, 2, 2, 4) if axis == -2 else (3, 2, 4)).astype(np.float32)
    at = np.array([0, 3, 2] if mode == "linear" else [4, 3, 11], np.int64)
    inputs = {"c": cache, "u": update, "i": at}
    model, feeds = one_node("TensorScatter", inputs, {"y": np.float32}, opset=24, mode=mode, axis=axis)
    want = cache.copy()
    for batch, step in np.ndindex(3, 2):
        place = (batch, ..., (at[batch] + step) % 5, slice(None))
        want[place] = update[(batch, ..., step, slice(None))]
    check_rewrite(model, feeds, expected=[want])
    del inputs["i"]
    model, feeds = one_node("TensorScatter", inputs, {"y": np.float32}, opset=24, mode=mode, axis=axis)
    check_rewrite(model, feeds, expected=[np.concatenate([update, cache[..., 2:, :]], axis)])
