"""Pooling against PyTorch, per element."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from hipdnn_backend.offload.to_wire import NotTranslated
from tests.hipdnn_backend.offload.to_wire.recorder import Recorder, Ref

pytestmark = pytest.mark.mlir


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize(("stride", "padding", "ceil"), [([], 0, False), (2, 1, False), (2, 0, True), (3, 1, True)])
def test_max_pool(rank: int, stride: Any, padding: int, ceil: bool) -> None:
    r = Recorder()
    x = r.input(2, 3, *(7, 6, 8)[:rank])
    r.check(
        r.op(f"max_pool{rank}d", x, [3] * rank, [stride] * rank if stride else [], [padding] * rank, [1] * rank, ceil)
    )


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("include", [True, False])
@pytest.mark.parametrize(("padding", "ceil"), [(0, False), (1, False), (0, True)])
def test_avg_pool(rank: int, include: bool, padding: int, ceil: bool) -> None:
    r = Recorder()
    x = r.input(2, 3, *(7, 6, 8)[:rank])
    r.check(r.op(f"avg_pool{rank}d", x, [3] * rank, [2] * rank, [padding] * rank, ceil, include))


@pytest.mark.parametrize(("padding", "ceil"), [(0, False), (1, True)])
def test_divisors(padding: int, ceil: bool) -> None:
    r = Recorder()
    x = r.input(2, 3, 7, 6)
    r.check(
        r.op("avg_pool2d", x, [3, 2], [2, 2], [padding] * 2, ceil, False, 5),
        r.op("avg_pool2d", x, [7, 6], [1, 1], [0, 0], False, True, 1),
    )


def test_lists_of_both_ends() -> None:
    """Torch-MLIR's importer writes padding as ONNX has it, and strides filled up with ones."""
    r = Recorder()
    x = r.input(1, 1, 4, 4, data=np.arange(16.0).reshape(1, 1, 4, 4))
    kind = "!torch.vtensor<[1,1,2,2],f32>"
    r.lines += [
        "%zero = torch.constant.int 0", "%one = torch.constant.int 1", "%two = torch.constant.int 2",
        "%no = torch.constant.bool false", "%none = torch.constant.none",
        "%window = torch.prim.ListConstruct %two, %two : (!torch.int, !torch.int) -> !torch.list<int>",
        f"%stride = torch.prim.ListConstruct %two, %two, %one, %one : ({', '.join(['!torch.int'] * 4)}) -> "
        "!torch.list<int>",
        f"%pads = torch.prim.ListConstruct %zero, %zero, %one, %one : ({', '.join(['!torch.int'] * 4)}) -> "
        "!torch.list<int>",
        f"%y = torch.aten.avg_pool2d {x.name}, %window, %stride, %pads, %no, %no, %none : {x.type}, !torch.list<int>, "
        f"!torch.list<int>, !torch.list<int>, !torch.bool, !torch.bool, !torch.none -> {kind}",
    ]  # fmt: skip
    graph = r.check(Ref("%y", kind, torch.tensor([[[[2.5, 4.5], [10.5, 12.5]]]], dtype=torch.float64)))
    assert graph.nodes[0].attributes.post_padding == (0, 0)  # type: ignore[attr-defined]


@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.parametrize(("stride", "padding", "ceil"), [([], 0, False), (2, 1, False), (2, 0, True)])
def test_max_pool_with_positions(rank: int, stride: Any, padding: int, ceil: bool) -> None:
    r = Recorder()
    x = r.input(2, 3, *(7, 6, 8)[:rank])
    made = r.op(f"max_pool{rank}d_with_indices", x, [3] * rank, [stride] * rank if stride else [], [padding] * rank,
                [1] * rank, ceil)  # fmt: skip
    r.check(made[0])
    graph = r.check(*made)
    assert [node.op for node in graph.nodes] == ["resample_fwd", "pointwise"]


def test_positions_of_a_whole_image() -> None:
    r = Recorder()
    r.check(*r.op("max_pool2d_with_indices", r.input(2, 3, 4, 5), [4, 5]))


def test_positions_in_an_image_padded_before() -> None:
    r = Recorder()
    padded = r.op("constant_pad_nd", r.input(1, 2, 6, 6), [1, 1, 1, 1], float("-inf"))
    made = r.op("max_pool2d_with_indices", padded, [2, 2])
    r.check(made[0])
    with pytest.raises(NotTranslated, match="positions"):
        r.translate(*made)


@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.parametrize(("stride", "padding", "ceil"), [([], 0, False), (2, 1, False), (2, 0, True), (3, 1, True)])
def test_max_pool_backward(rank: int, stride: Any, padding: int, ceil: bool) -> None:
    r = Recorder()
    x = r.input(2, 3, *(7, 6, 8)[:rank])
    options = ([3] * rank, [stride] * rank if stride else [], [padding] * rank, [1] * rank, ceil)
    y, positions = getattr(torch.ops.aten, f"max_pool{rank}d_with_indices")(x.value, *options)
    given = r.input(data=positions.numpy())
    dx = r.op(f"max_pool{rank}d_with_indices_backward", r.input(*y.shape), x, *options, given)
    assert [node.op for node in r.check(dx).nodes] == ["resample_bwd"]


@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.parametrize("include", [True, False])
@pytest.mark.parametrize(("padding", "ceil", "divisor"), [(0, False, None), (1, False, None), (0, True, None),
                                                          (1, False, 5), (0, True, 7)])  # fmt: skip
def test_avg_pool_backward(rank: int, include: bool, padding: int, ceil: bool, divisor: int | None) -> None:
    r = Recorder()
    x = r.input(2, 3, *(7, 6, 8)[:rank])
    options = ([3] * rank, [2] * rank, [padding] * rank, ceil, include, divisor)
    y = getattr(torch.nn.functional, f"avg_pool{rank}d")(x.value, *options)
    r.check(r.op(f"avg_pool{rank}d_backward", r.input(*y.shape), x, *options))


def test_gradients_without_a_form() -> None:
    r = Recorder()
    x = r.input(1, 2, 8, 8)
    made = r.op("avg_pool2d_backward", r.input(1, 2, 5, 5), x, [3, 3], [2, 2], [1, 1], True, True, None)
    with pytest.raises(NotTranslated, match="ceil_mode together with padding that counts"):
        r.translate(made)
    r = Recorder()
    x, positions = r.input(1, 2, 8, 8), r.input(data=np.zeros((1, 2, 2, 2), np.int64))
    made = r.op("max_pool2d_with_indices_backward", r.input(1, 2, 2, 2), x, [3, 3], [2, 2], [0, 0], [2, 2], False,
                positions)  # fmt: skip
    with pytest.raises(NotTranslated, match="dilation"):
        r.translate(made)


@pytest.mark.parametrize("name", ["adaptive_avg_pool2d", "_adaptive_avg_pool2d"])
@pytest.mark.parametrize("size", [[1, 1], [3, 2]])
def test_adaptive(name: str, size: list[int]) -> None:
    r = Recorder()
    graph = r.check(r.op("relu", r.op(name, r.op("exp", r.input(2, 3, 6, 4)), size)))
    assert graph.nodes[1].op == ("reduction" if size == [1, 1] else "resample_fwd")


def test_adaptive_max() -> None:
    r = Recorder()
    r.check(r.op("adaptive_max_pool2d", r.input(2, 3, 6, 4), [2, 2])[0])


def test_windows_as_large_as_the_image_are_reductions() -> None:
    r = Recorder()
    x = r.input(2, 3, 5, 4)
    graph = r.check(r.op("avg_pool2d", x, [5, 4], [1, 1]), r.op("max_pool2d", x, [5, 4], [1, 1]))
    assert [node.op for node in graph.nodes] == ["reduction", "reduction"]


@pytest.mark.parametrize("value", [0.0, float("-inf")])
def test_frames(value: float) -> None:
    r = Recorder()
    padded = r.op("constant_pad_nd", r.input(1, 2, 6, 5), [1, 0, 2, 1], value)
    r.check(r.op("max_pool2d", padded, [3, 3], [2, 2]))
    if value == 0.0:
        r = Recorder()
        padded = r.op("constant_pad_nd", r.input(1, 2, 6, 5), [1, 0, 2, 1], value)
        r.check(r.op("avg_pool2d", padded, [3, 3], [2, 2]))


@pytest.mark.parametrize(
    ("name", "arguments", "reason"),
    [
        ("max_pool2d", ([2, 2], [1, 1], [0, 0], [2, 2]), "dilation"),
        ("avg_pool2d", ([3, 3], [2, 2], [1, 1], True, True), "ceil_mode"),
        ("adaptive_avg_pool2d", ([4, 4],), "differ in size"),
    ],
)
def test_refusals(name: str, arguments: tuple[Any, ...], reason: str) -> None:
    r = Recorder()
    made = r.op(name, r.input(1, 1, 6, 6), *arguments)
    with pytest.raises(NotTranslated, match=reason):
        r.translate(made)
