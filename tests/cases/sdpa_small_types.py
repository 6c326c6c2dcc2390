"""Attention of floats of 8 bits and less: formats, factors of operands and results, amaxes, layouts, options."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from graph_api import DataType, Graph
from tests.cases import OpCase, Pack
from tests.cases.sdpa import _ALL, _SMALL, _case, _graph

__all__ = ["CASES", "scaled_attention"]

D = DataType
FP8 = (D.FP8_E4M3, D.FP8_E5M2, D.FP8_E4M3_FNUZ, D.FP8_E5M2_FNUZ)
FACTORS = {
    "descale_q": 0.375, "descale_k": 1.75, "descale_v": 0.8, "descale_s": 1 / 240, "scale_s": 240.0, "scale_o": 2.5,
}  # fmt: skip
"""What the one number of a factor is; those of heads are spread around it."""


def _scaled(*heads: str, without: Sequence[str] = ()) -> Callable[[Graph, Any], dict[str, Any]]:
    """All factors and amaxes but ``without``; those in ``heads`` are one for each sequence and head."""

    def extra(g: Graph, tensors: Any) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for name in (name for name in FACTORS if name not in without):
            dims = (1, 1, 1, 1)
            if name in heads:
                dims = (tensors[0].dims[0], tensors["qkv".index(name[-1])].dims[1], 1, 1)
            made[name] = g.tensor(name, dim=dims, data_type=D.FLOAT)
        for name in (name for name in ("amax_s", "amax_o") if name not in without):
            made[name] = g.tensor(name, dim=(1, 1, 1, 1), data_type=D.FLOAT).set_output()
        return made

    return extra


def scaled_attention(dtype: DataType, sizes: Sequence[int], **options: Any) -> Graph:
    """Attention as 8-bit training has it: a factor for each operand, weights and o scaled, both amaxes."""
    b, h, hk, hv, sq, skv, d, dv = sizes
    q, k, v = (b, h, sq, d), (b, hk, skv, d), (b, hv, skv, dv)
    return _graph(q, k, v, dtype, extra=_scaled(), generate_stats=True, **options)


def _factors(graph: Graph) -> Pack:
    pack = graph.random_inputs(seed=9)
    for tensor, array in pack.items():
        if tensor.name in FACTORS:
            spread = 1.0 if tensor.volume == 1 else array.clip(-0.5, 0.5) + 1.0
            array[...] = FACTORS[tensor.name] * spread
        elif tensor.name.startswith("seq_len"):
            array[...] = [[[[3]]], [[[7]]]]
    return pack


def _row(name: str, dtype: DataType, sizes: Sequence[int] = _SMALL, **options: Any) -> OpCase:
    inputs = options.pop("inputs", _factors)
    return _case(name, sizes, dtype, inputs=inputs, **options)


_WHOLE = (2, 4, 2, 2, 32, 64, 32, 32)


def _cases() -> list[OpCase]:
    made = []
    for dtype in FP8:
        short = dtype.name.lower()
        made += [
            _row(f"{short}_plain", dtype, out_dtype=D.FLOAT),
            _row(f"{short}_scaled", dtype, extra=_scaled(), fast=dtype is D.FP8_E4M3),
            _row(f"{short}_scaled_whole", dtype, _WHOLE, extra=_scaled(), generate_stats=True),
            _row(f"{short}_heads", dtype, extra=_scaled("descale_q", "descale_k", "descale_v"), out_dtype=D.HALF),
            _row(f"{short}_causal", dtype, _WHOLE, extra=_scaled(), causal_mask_bottom_right=True, layout="BSHD"),
        ]
    f8 = D.FP8_E4M3
    few = ("descale_s", "scale_s", "scale_o", "amax_s", "amax_o")
    made += [
        _row("bias", f8, extra=_scaled(), bias=(2, 1, 9, 12), bias_dtype=D.FLOAT, out_dtype=D.BFLOAT16),
        _row("lengths", f8, extra=_scaled("descale_k"), lengths=D.INT32, generate_stats=True),
        _row("sink", f8, extra=_scaled(), sink=True, parts=True),
        _row("scale_tensor", f8, extra=_scaled(), scale=D.FLOAT),
        _row("few_factors", f8, extra=_scaled(without=few), out_dtype=D.HALF),
        _row("no_descale", f8, extra=_scaled(without=("descale_q", "descale_k", "descale_v"))),
        _row("padded", f8, extra=_scaled(), layout="PADDED"),
        _row("qkv", D.FP8_E4M3_FNUZ, extra=_scaled(), layout="QKV"),
        _row("transposed", f8, extra=_scaled(), layout="DS"),
        _row("one_query", f8, (2, 4, 2, 2, 1, 40, 16, 16), extra=_scaled("descale_k", "descale_v")),
        _row("one_key", f8, (1, 2, 1, 1, 5, 1, 8, 8), extra=_scaled()),
        _row("ragged", D.FP8_E5M2_FNUZ, (1, 2, 1, 1, 19, 35, 64, 32), extra=_scaled()),
        _row("mixed_v", f8, v_dtype=D.HALF, out_dtype=D.HALF),
        _row("half_scaled", D.HALF, extra=_scaled(), out_dtype=D.FP8_E4M3),
        _row("half_amax", D.HALF, extra=_scaled(without=tuple(FACTORS)), out_layout="BSHD", fast=True),
        _row("f64_amax", D.DOUBLE, extra=_scaled(), compute_data_type=D.DOUBLE, out_dtype=D.DOUBLE),
        _row("fp6", D.FP6_E2M3, extra=_scaled(), out_dtype=D.HALF),
        _row("fp4", D.FP4_E2M1, extra=_scaled(), out_dtype=D.HALF),
        _row("powers", D.FP8_E8M0, out_dtype=D.HALF, inputs=None, declined=dict.fromkeys(_ALL, "dtype")),
    ]
    return made


CASES = _cases()
