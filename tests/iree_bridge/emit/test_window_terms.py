"""Windows that a CPU has written out, of convolutions and pools with rows innermost, over random sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from graph_api import DataType, Graph, PaddingMode, ResampleMode
from iree_bridge.emit.linalg import Code
from iree_bridge.emit.module import emit_module
from iree_bridge.emit.window_terms import WindowTerms
from iree_bridge.targets.target import Target
from tests.cases import OpCase
from tests.cases.conv import conv_graph
from tests.cases.resample import pool_graph
from tests.support.cases import assert_right
from tests.support.filecheck import check_ir

CPU = Target.parse("cpu")
_TYPES = (
    DataType.FLOAT,
    DataType.HALF,
    DataType.BFLOAT16,
    DataType.DOUBLE,
    DataType.INT8,
    DataType.UINT8,
    DataType.INT32,
)


def test_rows_of_every_second_element_are_read_as_pairs() -> None:
    """Of 7 at stride 2, 8 are computed; the first and the second place of the window are halves of one pair."""
    graph = conv_graph("fprop", (1, 6, 9, 14), (6, 1, 3, 3), padding=1, stride=2).validate()
    check_ir(
        emit_module(graph, CPU).ir,
        """
        CHECK: torch.aten.constant_pad_nd {{.*}} -> !torch.vtensor<[1,6,11,18],f32>
        CHECK: call @depthwise_0({{.*}}) : (tensor<1x6x11x18xf32>, tensor<6x1x3x3xf32>) -> tensor<1x6x5x8xf32>
        CHECK: torch.aten.slice.Tensor {{.*}} -> !torch.vtensor<[1,6,5,7],f32>
        CHECK: iree_tensor_ext.bitcast %arg0 : tensor<1x6x11x18xf32> -> tensor<1x6x11x9xi64>
        CHECK: tensor.extract_slice {{.*}}[0, 0, 0, 0] [1, 6, 5, 8] [1, 1, 2, 1]
        CHECK: tensor.extract_slice {{.*}}[0, 0, 0, 1] [1, 6, 5, 8] [1, 1, 2, 1]
        CHECK: tensor.extract_slice {{.*}}[0, 0, 1, 0] [1, 6, 5, 8] [1, 1, 2, 1]
        """,
    )


def test_the_terms_of_a_pair_are_its_halves() -> None:
    code = Code()
    terms = WindowTerms((4, 8), DataType.HALF, (4, 3), (1, 2), ((0, 0), (0, 1), (0, 2)))
    _, operands, elements = terms.written(code)
    assert len(operands) == 2
    assert len(set(elements)) == 3
    assert [line.split(" = ")[1] for line in code.lines] == [
        "arith.trunci %i0 : i32 to i16", "arith.bitcast %v0 : i16 to f16",
        "arith.constant 16 : i32", "arith.shrui %i0, %v2 : i32", "arith.trunci %v3 : i32 to i16",
        "arith.bitcast %v4 : i16 to f16",
        "arith.trunci %i1 : i32 to i16", "arith.bitcast %v6 : i16 to f16",
    ]  # fmt: skip


def _sizes(rng: np.random.Generator, *, dilation: bool) -> tuple[tuple[int, ...], dict[str, Any]]:
    """The spatial dims of an image, and a window that fits into it."""
    rank = int(rng.integers(1, 4))
    window = tuple(int(n) for n in rng.integers(1, (8, 5, 4)[rank - 1], rank))
    steps = tuple(int(n) for n in rng.integers(1, 3, rank)) if dilation else (1,) * rank
    pre, post = ([int(rng.integers(0, size)) for size in window] for _ in range(2))
    extent = [(size - 1) * step + 1 for size, step in zip(window, steps, strict=True)]
    spatial = tuple(max(int(rng.integers(1, 24)), size) for size in extent)
    stride = tuple(int(n) for n in rng.choice([1, 1, 2, 2, 2, 3], rank))
    given = {"window": window, "pre_padding": pre, "post_padding": post, "stride": stride}
    return spatial, given | ({"dilation": steps} if dilation else {})


def _pool(seed: int) -> OpCase:
    rng = np.random.default_rng(seed)
    spatial, given = _sizes(rng, dilation=False)
    mode = list(ResampleMode)[int(rng.integers(0, 3))]
    padding = PaddingMode.NEG_INF_PAD if mode is ResampleMode.MAXPOOL and rng.integers(0, 2) else PaddingMode.ZERO_PAD
    dtype = (
        _TYPES[int(rng.integers(0, len(_TYPES)))] if mode is ResampleMode.MAXPOOL else _TYPES[int(rng.integers(0, 4))]
    )
    index = DataType.INT32 if mode is ResampleMode.MAXPOOL and rng.integers(0, 2) else None
    has_specials = dtype.is_float and bool(rng.integers(0, 2))
    dims = (int(rng.integers(1, 4)), int(rng.integers(1, 6)), *spatial)

    def inputs(graph: Graph) -> Any:
        pack = graph.random_inputs(seed=seed)
        if has_specials:
            for array in pack.values():
                flat = array.reshape(-1)
                for value in (np.nan, -np.nan, np.inf, -np.inf):
                    flat[rng.integers(0, flat.size, 1 + flat.size // 40)] = value
        return pack

    return OpCase(
        f"pool_{seed}", lambda: pool_graph(dims, mode, dtype=dtype, padding_mode=padding, index=index, **given), inputs
    )


def _depthwise(seed: int, direction: str = "fprop") -> OpCase:
    spatial, given = _sizes(np.random.default_rng(seed), dilation=True)
    channels, window = 1 + seed % 7, given.pop("window")
    return OpCase(
        f"depthwise_{direction}_{seed}",
        lambda: conv_graph(direction, (1 + seed % 3, channels, *spatial), (channels, 1, *window), **given),
    )


def _convolution(seed: int, direction: str = "fprop") -> OpCase:
    rng = np.random.default_rng(seed)
    spatial, given = _sizes(rng, dilation=True)
    groups, share, channels = (int(n) for n in (rng.choice([1, 1, 2, 3]), rng.integers(1, 40), rng.integers(1, 20)))
    window = given.pop("window")
    if groups > 1 and share == channels == 1:
        channels = 2
    x = (int(rng.integers(1, 4)), groups * channels, *spatial)
    return OpCase(
        f"{direction}_{seed}",
        lambda: conv_graph(direction, x, (groups * share, channels, *window), **given),
    )


def _large_window(seed: int) -> OpCase:
    """Whose rows become channels."""
    rng = np.random.default_rng(seed)
    window, steps = ([int(n) for n in rng.integers(*ends, 2)] for ends in ((5, 9), (1, 3)))
    pads = [[int(rng.integers(0, size)) for size in window] for _ in range(2)]
    groups, share, channels = int(rng.integers(1, 3)), int(rng.integers(2, 9)), int(rng.integers(1, 4))
    spatial = [int(n) for n in rng.integers(18, 30, 2)]
    return OpCase(
        f"large_window_{seed}",
        lambda: conv_graph(
            "fprop", (1 + seed % 2, groups * channels, *spatial), (groups * share, channels, *window),
            pre_padding=pads[0], post_padding=pads[1], stride=[int(n) for n in 1 + rng.permutation(2)], dilation=steps,
        ),
    )  # fmt: skip


def _data_gradient(seed: int) -> OpCase:
    return _convolution(seed, "dgrad")


def _depthwise_data_gradient(seed: int) -> OpCase:
    return _depthwise(seed, "dgrad")


_MAKERS = [_pool, _depthwise, _convolution, _large_window, _data_gradient, _depthwise_data_gradient]


@pytest.mark.a_few(
    "_convolution-0", "_depthwise-2", "_data_gradient-3", "_depthwise_data_gradient-0", "_pool-1", "_large_window-0"
)
@pytest.mark.iree_cpu
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("make", _MAKERS)
def test_results(make: Any, seed: int) -> None:
    assert_right(make(seed))


@pytest.mark.slow
@pytest.mark.iree_cpu
@pytest.mark.parametrize("seed", range(10, 200))
@pytest.mark.parametrize("make", _MAKERS)
def test_many_results(make: Any, seed: int) -> None:
    assert_right(make(seed))
