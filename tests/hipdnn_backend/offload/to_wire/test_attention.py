"""Attention, as an operation and as the chain that models spell, against PyTorch, per element."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from hipdnn_backend.offload.to_wire import NotTranslated
from tests.hipdnn_backend.offload.to_wire.recorder import Recorder

pytestmark = pytest.mark.mlir


@pytest.mark.parametrize("lead", [(), (3,), (2, 3)])
@pytest.mark.parametrize(("causal", "scale"), [(False, None), (True, 0.3)])
def test_attention(lead: tuple[int, ...], causal: bool, scale: float | None) -> None:
    r = Recorder()
    q, k, v = r.input(*lead, 4, 6), r.input(*lead, 5, 6), r.input(*lead, 5, 2)
    made = r.op("scaled_dot_product_attention", q, k, v, None, 0.0, causal, scale=scale)
    graph = r.check(made)
    assert [node.op for node in graph.nodes] == ["sdpa"]


@pytest.mark.parametrize("dims", [(4, 5), (2, 1, 4, 5), (1, 1, 1, 5)])
@pytest.mark.parametrize("boolean", [True, False])
def test_masks(dims: tuple[int, ...], boolean: bool) -> None:
    r = Recorder()
    q, k, v = r.input(2, 3, 4, 6), r.input(2, 3, 5, 6), r.input(2, 3, 5, 2)
    chosen = (np.arange(np.prod(dims)) % 3 != 1).reshape(dims)
    mask = r.input(data=chosen) if boolean else r.input(*dims)
    r.check(r.op("scaled_dot_product_attention", q, k, v, mask, 0.0, False))


def test_grouped_heads() -> None:
    r = Recorder()
    q, k, v = r.input(2, 6, 4, 8), r.input(2, 2, 4, 8), r.input(2, 2, 4, 8)
    r.check(r.op("scaled_dot_product_attention", q, k, v, None, 0.0, False, enable_gqa=True))


def test_heads_split_by_views() -> None:
    """[B, S, H*D] in and out: both sides are strides."""
    r = Recorder()

    def heads(x: Any) -> Any:
        return r.op("transpose.int", r.op("view", x, [2, 4, 3, 5]), 1, 2)

    q, k, v = (heads(r.input(2, 4, 15)) for _ in range(3))
    made = r.op("scaled_dot_product_attention", q, k, v, None, 0.0, True)
    graph = r.check(r.op("reshape", r.op("transpose.int", made, 1, 2), [2, 4, 15]))
    assert [node.op for node in graph.nodes] == ["sdpa"]


@pytest.mark.parametrize("scale", ["mul", "div", None])
@pytest.mark.parametrize("mask", [True, False])
@pytest.mark.parametrize("lead", [(2, 3), (3,), ()])
def test_chain(scale: str | None, mask: bool, lead: tuple[int, ...]) -> None:
    r = Recorder()
    q, k, v = r.input(*lead, 4, 6), r.input(*lead, 5, 6), r.input(*lead, 5, 2)
    scores = r.op("matmul", q, r.op("transpose.int", k, -2, -1))
    if scale is not None:
        scores = r.op(f"{scale}.Scalar", scores, 2.5)
    if mask:
        scores = r.op("add.Tensor", r.input(4, 5), scores)
    made = r.op("matmul", r.op("softmax.int", scores, -1), v)
    graph = r.check(r.op("relu", made))
    assert [node.op for node in graph.nodes] == ["sdpa", "pointwise"]


def test_chain_whose_weights_are_used() -> None:
    r = Recorder()
    q, k, v = r.input(2, 4, 6), r.input(2, 6, 5), r.input(2, 5, 2)
    weights = r.op("softmax.int", r.op("matmul", q, k), -1)
    graph = r.check(r.op("matmul", weights, v), weights)
    assert "sdpa" not in [node.op for node in graph.nodes]


def test_chain_of_intermediate_keys() -> None:
    """Keys that the graph itself makes cannot be seen transposed: the chain stays a chain."""
    r = Recorder()
    q, k, v = r.input(2, 4, 6), r.op("mul.Scalar", r.input(2, 6, 5), 0.5), r.input(2, 5, 2)
    graph = r.check(r.op("matmul", r.op("softmax.int", r.op("matmul", q, k), -1), v))
    assert [node.op for node in graph.nodes].count("matmul") == 2


def test_dropout_is_refused() -> None:
    r = Recorder()
    q = r.input(2, 3, 4, 6)
    made = r.op("scaled_dot_product_attention", q, q, q, None, 0.5, False)
    with pytest.raises(NotTranslated, match="random"):
        r.translate(made)


# ---- training: the operations that PyTorch's autograd leaves for a CPU ---------------------------------------------

_FLASH = "_scaled_dot_product_flash_attention_for_cpu"


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("heads", "scale"), [(4, None), (2, 0.3), (1, None)])
def test_attention_of_training(causal: bool, heads: int, scale: float | None) -> None:
    r = Recorder()
    q, k, v = r.input(2, 4, 5, 8), r.input(2, heads, 5, 8), r.input(2, heads, 5, 8)
    graph = r.check(*r.op(_FLASH, q, k, v, 0.0, causal, scale=scale))
    assert [node.op for node in graph.nodes] == ["sdpa"]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("heads", "scale"), [(4, None), (2, 0.3), (1, None)])
def test_gradients_of_attention(causal: bool, heads: int, scale: float | None) -> None:
    """What autograd gives, in float64."""
    r = Recorder()
    q, k, v, do = r.input(2, 4, 5, 8), r.input(2, heads, 5, 8), r.input(2, heads, 5, 8), r.input(2, 4, 5, 8)
    o, stats = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q.value, k.value, v.value, 0.0, causal, scale=scale
    )
    o, stats = r.input(data=o.numpy()), r.input(data=stats.numpy())
    graph = r.check(*r.op(f"{_FLASH}_backward", do, q, k, v, o, stats, 0.0, causal, scale=scale))
    assert [node.op for node in graph.nodes] == ["sdpa_backward"]


@pytest.mark.parametrize("dims", [(5, 7), (2, 1, 5, 7)])
def test_gradients_beside_a_mask(dims: tuple[int, ...]) -> None:
    r = Recorder()
    q, k, v, do = r.input(2, 4, 5, 8), r.input(2, 4, 7, 8), r.input(2, 4, 7, 8), r.input(2, 4, 5, 8)
    mask = r.input(*dims)
    o, stats = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q.value, k.value, v.value, 0.0, False, attn_mask=mask.value
    )
    o, stats = r.input(data=o.numpy()), r.input(data=stats.numpy())
    r.check(*r.op(f"{_FLASH}_backward", do, q, k, v, o, stats, 0.0, False, attn_mask=mask))


def test_both_directions_of_attention_run() -> None:
    r = Recorder()
    q, k, v, do = (r.input(1, 2, 6, 8) for _ in range(4))
    o, stats = r.op(_FLASH, q, k, v, 0.0, True)
    r.run(o, *r.op(f"{_FLASH}_backward", do, q, k, v, o, stats, 0.0, True))


def test_random_dropout_of_training_is_refused() -> None:
    r = Recorder()
    q, k, v = (r.input(1, 2, 6, 8) for _ in range(3))
    made = r.op(_FLASH, q, k, v, 0.0, True)
    r.lines = [line.replace("0x0000000000000000", "0x3fd0000000000000") for line in r.lines]
    with pytest.raises(NotTranslated, match=r"dropout 0\.25 is random"):
        r.translate(*made)
