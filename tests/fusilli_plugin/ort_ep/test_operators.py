"""Operators through sessions: all of them are claimed, and give the CPU provider's answers.

The cases are those of the C++ provider that was written before this one, and what it rejected. Those of a family are
one model, with an output for each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fusilli_plugin
from tests.fusilli_plugin.ort_ep.models import MS, Model, check, session, weight

pytestmark = [pytest.mark.ort, pytest.mark.iree_cpu, pytest.mark.usefixtures("provider")]

F32, F16 = np.float32, np.float16
Build = Callable[[Model], list[str]]


def conv(model: Model) -> list[str]:
    x, w = model.input("x", 1, 1, 8, 8), model.constant("w", weight(0, 1, 1, 3, 3, dtype=model.dtype))
    bias = model.constant("bias", np.array([0.5], model.dtype))
    return [
        model.add("Conv", x, w),
        model.add("Conv", x, w, pads=[1, 1, 1, 1]),
        model.add("Conv", x, w, bias, pads=[1, 1, 1, 1], strides=[1, 1]),
    ]


def conv_rejected(model: Model) -> list[str]:
    """Groups, dilations, automatic pads, one and three spatial dims."""
    x, w = model.input("x", 2, 4, 9, 9), model.constant("w", weight(0, 4, 2, 3, 3, dtype=model.dtype))
    line, cube = model.input("line", 1, 2, 16), model.input("cube", 1, 2, 5, 5, 5)
    w1 = model.constant("w1", weight(1, 3, 2, 4, dtype=model.dtype))
    w3 = model.constant("w3", weight(2, 3, 2, 2, 2, 2, dtype=model.dtype))
    return [
        model.add("Conv", x, w, group=2),
        model.add("Conv", x, w, group=2, dilations=[2, 2], strides=[2, 1]),
        model.add("Conv", x, w, group=2, auto_pad="SAME_UPPER", strides=[2, 2]),
        model.add("Conv", line, w1, pads=[1, 2]),
        model.add("Conv", cube, w3),
    ]


def matmul(model: Model) -> list[str]:
    a, b = model.input("a", 64, 128), model.input("b", 128, 32)
    return [model.add("MatMul", a, b), model.add("MatMul", model.input("c", 2, 3), model.input("d", 3, 2))]


def matmul_rejected(model: Model) -> list[str]:
    """Batches, also those that are broadcast, and vectors."""
    a, b, c = model.input("a", 3, 16, 8), model.input("b", 3, 8, 4), model.input("c", 2, 1, 8, 5)
    return [model.add("MatMul", a, b), model.add("MatMul", a, c), model.add("MatMul", a, model.input("v", 8))]


def gemm(model: Model) -> list[str]:
    a, b = model.input("a", 64, 128), model.input("b", 128, 32)
    at, bt = model.input("at", 128, 64), model.input("bt", 32, 128)
    row, all_ = model.input("row", 32), model.input("all", 64, 32)
    half = model.constant("half", np.array(0.5, model.dtype))
    return [
        model.add("Gemm", a, b),
        model.add("Gemm", a, b, row),
        model.add("Gemm", a, b, all_),
        model.add("Gemm", at, b, transA=1),
        model.add("Gemm", a, bt, transB=1),
        model.add("Gemm", a, b, row, alpha=0.5, beta=0.25),
        model.add("Gemm", a, b, half),
    ]


def gemm_rejected(model: Model) -> list[str]:
    """A bias that is a column."""
    return [model.add("Gemm", model.input("a", 6, 8), model.input("b", 8, 4), model.input("column", 6, 1))]


def pointwise(model: Model) -> list[str]:
    a, b, one = model.input("a", 1, 4, 8, 8), model.input("b", 1, 4, 8, 8), model.input("one", 1)
    both = [model.add(name, a, b) for name in ("Add", "Sub", "Mul", "Div")]
    return [*both, *(model.add(name, a, one) for name in ("Add", "Sub", "Mul", "Div")), model.add("Sigmoid", a)]


def pointwise_rejected(model: Model) -> list[str]:
    """Any broadcast."""
    a, c, r = model.input("a", 2, 4, 1, 8), model.input("c", 4, 5, 1), model.input("r", 3, 1, 1, 1, 1)
    return [model.add(name, a, c) for name in ("Add", "Sub", "Mul", "Div")] + [model.add("Add", r, a)]


def layer_norm(model: Model) -> list[str]:
    x, scale, bias = model.input("x", 2, 6, 8), model.input("scale", 8), model.input("bias", 8)
    return [model.add("LayerNormalization", x, scale, bias, axis=-1)]


def rms_norm(model: Model) -> list[str]:
    given: dict[str, Any] = {"epsilon": 1e-5, "stash_type": 1}
    x, flat, wide = model.input("x", 1, 4, 8, 8), model.input("flat", 8, 64), model.input("wide", 2, 4, 8, 8)
    small, large, all_ = model.input("small", 8), model.input("large", 64), model.input("all", 4, 8, 8)
    return [
        model.add("SimplifiedLayerNormalization", x, small, axis=-1, **given),
        model.add("SimplifiedLayerNormalization", flat, large, axis=-1, **given),
        model.add("SimplifiedLayerNormalization", wide, all_, axis=1, **given),
    ]


def attention(model: Model) -> list[str]:
    """2 batches, 16 rows, 4 heads of 64; 32 rows of keys in the last."""
    q, k, v = (model.input(name, 2, 16, 256) for name in "qkv")
    keys, values = model.input("keys", 2, 32, 256), model.input("values", 2, 32, 256)
    given: dict[str, Any] = {"domain": MS, "num_heads": 4}
    return [
        model.add("MultiHeadAttention", q, k, v, **given),
        model.add("MultiHeadAttention", q, k, v, unidirectional=1, **given),
        model.add("MultiHeadAttention", q, keys, values, **given),
    ]


def attention_rejected(model: Model) -> list[str]:
    """A scale, a bias on the inputs, a mask of keys."""
    q, k, v = (model.input(name, 2, 16, 256) for name in "qkv")
    bias = model.input("bias", 3 * 256)
    mask = model.constant("mask", (np.arange(16) < np.array([[16], [9]])).astype(np.int32))
    given: dict[str, Any] = {"domain": MS, "num_heads": 4}
    return [
        model.add("MultiHeadAttention", q, k, v, scale=0.25, **given),
        model.add("MultiHeadAttention", q, k, v, bias, **given),
        model.add("MultiHeadAttention", q, k, v, "", mask, **given),
    ]


def grouped_attention(model: Model) -> list[str]:
    """8 heads of 64 for queries and as many for keys; then, which was rejected, 2 for keys."""
    made: list[str] = []
    lengths, total = model.constant("l", np.full(2, 15, np.int32)), model.constant("t", np.array(16, np.int32))
    for heads in (8, 2):
        names = [f"{name}{heads}" for name in "qkv"]
        q, k, v = model.input(names[0], 2, 16, 512), *(model.input(name, 2, 16, heads * 64) for name in names[1:])
        given: dict[str, Any] = {"domain": MS, "outputs": 3, "num_heads": 8, "kv_num_heads": heads}
        made.append(model.add("GroupQueryAttention", q, k, v, "", "", lengths, total, **given))
    return made


def rotary(model: Model) -> list[str]:
    """2 batches, 4 heads, 16 rows of 64. The C++ provider ignored the positions; the last ones are not 0, 1, 2, ..."""
    angles = np.arange(16)[:, None] / 10000 ** (np.arange(32) / 32)
    cos, sin = (model.constant(f.__name__, f(angles).astype(model.dtype)) for f in (np.cos, np.sin))
    x = model.input("x", 2, 4, 16, 64)
    straight = model.constant("straight", np.tile(np.arange(16), (2, 1)))
    mixed = model.constant("mixed", np.random.default_rng(0).permuted(np.tile(np.arange(16), (2, 1)), axis=1))
    return [
        model.add("RotaryEmbedding", x, straight, cos, sin, domain=MS),
        model.add("RotaryEmbedding", x, mixed, cos, sin, domain=MS),
        model.add("RotaryEmbedding", x, straight, cos, sin, domain=MS, interleaved=1),
    ]


def test_gathered_rows_are_clamped_where_onnx_runtime_would_raise() -> None:
    """Valid positions, negative ones included, give what they should; others reach the first or the last row."""
    model = Model("gather")
    rows, at = model.input("x", 4, 8), model.input("at", 5, dtype=np.int64)
    made = session(model.output(model.add("Relu", model.add("Gather", model.add("Relu", rows), at))), strict="1")
    assert fusilli_plugin.ep_report(made).claimed == 3
    x = np.arange(32, dtype=F32).reshape(4, 8)
    for positions, reached in (([1, -1, -4, 3, 0], [1, 3, 0, 3, 0]), ([4, 99, -5, -99, 2], [3, 3, 0, 0, 2])):
        np.testing.assert_array_equal(made.run(None, {"x": x, "at": np.array(positions)})[0], x[reached])


QUICK = (conv, matmul, gemm_rejected, layer_norm)
SLOW = (
    conv_rejected, matmul_rejected, gemm, pointwise, pointwise_rejected, rms_norm, attention, attention_rejected,
    grouped_attention, rotary,
)  # fmt: skip
CASES = [
    *((build, dtype) for build in QUICK for dtype in (F32, F16)),
    *(pytest.param(build, dtype, marks=pytest.mark.slow) for build in SLOW for dtype in (F32, F16)),
]


@pytest.mark.a_few("gemm_rejected-float32", "matmul-float16")
@pytest.mark.parametrize(("build", "dtype"), CASES, ids=lambda given: given.__name__)
def test_operators(build: Build, dtype: Any) -> None:
    model = Model(build.__name__, dtype)
    model.output(*build(model))
    made = session(model, strict="1")
    report = fusilli_plugin.ep_report(made)
    assert report.claimed == len(report.nodes) == len(model.nodes), report
    assert {node.engine for node in report.nodes} == {"FUSILLI_ENGINE"}
    check(model, made, 2e-5 if dtype is F32 else 4e-3)
