"""Gradients of attention: heads, sizes, types, layouts, masks, windows, lengths, dropout, biases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fusilli_plugin.testing.graphs.inputs import attention_results
from graph_api import DataType, Graph
from tests.cases import OpCase, Pack
from tests.cases.sdpa import _SHAPES, _SHORT, _SMALL, _WINDOWS, Dims, _sizes, _strides

D = DataType
_ALL = ("llvm-cpu", "rocm", "cuda")


def graph(
    sizes: Sequence[int],
    dtype: DataType = D.FLOAT,
    *,
    layout: str = "BHSD",
    out_layout: str | None = None,
    bias: Dims | None = None,
    bias_dtype: DataType | None = None,
    dbias: bool = False,
    lengths: DataType | None = None,
    scale: DataType | float | None = None,
    dropout: Dims | None = None,
    sink: bool = False,
    stats_rank: int = 4,
    do_dtype: DataType | None = None,
    **options: Any,
) -> Graph:
    """The gradients of an attention whose ``sizes`` are B, H, Hk, Hv, Sq, Skv, D, Dv."""
    q, k, v = _sizes(sizes)
    o = (*q[:3], v[3])
    g = Graph("sdpa_backward", io_data_type=dtype)
    tensors = [
        g.tensor(name, dim=dims, stride=_strides(dims, layout), data_type=kind)
        for name, dims, kind in (("q", q, dtype), ("k", k, dtype), ("v", v, dtype), ("o", o, dtype),
                                 ("do", o, do_dtype or dtype))
    ]  # fmt: skip
    tensors.append(g.tensor("stats", dim=(*q[:3], 1)[:stats_rank], data_type=_wide(dtype)))
    if bias is not None:
        options["bias"] = g.tensor("bias", dim=bias, data_type=bias_dtype)
        if dbias:
            options["dbias"] = g.tensor("dbias", dim=bias, data_type=bias_dtype).set_output()
    if lengths is not None:
        options["padding_mask"] = True
        for name in ("seq_len_q", "seq_len_kv"):
            options[name] = g.tensor(name, dim=(q[0], 1, 1, 1), data_type=lengths)
    if scale is not None:
        options["attn_scale"] = g.tensor("scale", dim=(1,), data_type=scale) if isinstance(scale, DataType) else scale
    if dropout is not None:
        options["dropout_mask"] = g.tensor("dropout_mask", dim=dropout)
        for name in ("dropout_scale", "dropout_scale_inv"):
            options[name] = g.tensor(name, dim=(1, 1, 1, 1), data_type=D.FLOAT)
    if sink:
        for name in ("sink_token", "dsink_token"):
            options[name] = g.tensor(name, dim=(1, q[1], 1, 1), data_type=D.FLOAT)
        options["dsink_token"].set_output()
    made = g.sdpa_backward(*tensors, **options)
    for name, tensor in made._asdict().items():
        tensor.set_name(name).set_output()
        if out_layout is not None:
            dims = {"dq": q, "dk": k, "dv": v}[name]
            tensor.set_stride(_strides(dims, out_layout) or ())
    return g


def _wide(dtype: DataType) -> DataType:
    return D.DOUBLE if dtype is D.DOUBLE else D.FLOAT


def inputs(change: Callable[[dict[str, np.ndarray[Any, Any]]], None] | None = None) -> Callable[[Graph], Pack]:
    """Random inputs, with the o and stats that attention makes of them."""

    def make(graph: Graph) -> Pack:
        pack = graph.random_inputs(seed=21)
        named = {tensor.name: array for tensor, array in pack.items()}
        if "dropout_mask" in named:
            mask = named["dropout_mask"]
            mask[...] = (np.random.default_rng(22).random(mask.shape) < 2 / 3).astype(mask.dtype)
            named["dropout_scale"][...], named["dropout_scale_inv"][...] = 2.0, 0.5
        if change is not None:
            change(named)
        (node,) = graph.nodes
        o, stats = attention_results(node, pack)
        named["o"][...] = o.astype(named["o"].dtype)
        named["stats"][...] = stats.reshape(named["stats"].shape).astype(named["stats"].dtype)
        if "seq_len_q" in named:  # what lies behind the lengths must not be seen
            for b, size in enumerate(named["seq_len_q"].ravel()):
                for name in ("o", "do", "stats"):
                    named[name][b, :, size:] = np.nan
        return pack

    return make


def _dead(named: dict[str, np.ndarray[Any, Any]]) -> None:
    """A row that sees nothing, one that sees one key, a key that no row sees."""
    mask = named["bias"]
    mask[..., -1] = -np.inf
    mask[..., 2, :] = -np.inf
    mask[..., 3, 1:] = -np.inf


def _lengths(queries: Sequence[int], keys: Sequence[int]) -> Callable[[dict[str, np.ndarray[Any, Any]]], None]:
    def change(named: dict[str, np.ndarray[Any, Any]]) -> None:
        for name, sizes in (("seq_len_q", queries), ("seq_len_kv", keys)):
            named[name][:, 0, 0, 0] = sizes
        for name, sizes in (("q", queries), ("k", keys), ("v", keys)):
            for b, size in enumerate(sizes):
                named[name][b, :, size:] = np.nan

    return change


def _large(named: dict[str, np.ndarray[Any, Any]]) -> None:
    """Scores of some hundreds: an exponential without the statistics overflows."""
    for name in ("q", "k"):
        named[name][...] *= named[name].dtype.type(8)


def _equal(named: dict[str, np.ndarray[Any, Any]]) -> None:
    """Equal values: the gradients of scores cancel."""
    named["v"][...] = named["v"][:, :, :1]


def _case(name: str, sizes: Sequence[int], dtype: DataType = D.FLOAT, **options: Any) -> OpCase:
    own = {key: options.pop(key) for key in ("fast", "declined", "note") if key in options}
    change = options.pop("change", None)
    q, k, v = _sizes(sizes)
    return OpCase(
        name=name, build=lambda: graph(sizes, dtype, **options), inputs=inputs(change),
        dims={"dq": q, "dk": k, "dv": v}, **own,
    )  # fmt: skip


_SQUARE = (1, 2, 2, 2, 12, 12, 16, 8)
_TILES = (1, 4, 2, 2, 64, 64, 32, 32)


def _plain_cases() -> list[OpCase]:
    cases = [_case(_SHORT[dtype], _SMALL, dtype, fast=dtype in (D.FLOAT, D.BFLOAT16)) for dtype in _SHORT]
    cases += [_case(f"tiles_{_SHORT[dtype]}", _TILES, dtype) for dtype in (D.HALF, D.BFLOAT16, D.FLOAT)]
    for name, sizes in _SHAPES.items():
        cases += [_case(f"shape_{name}", sizes), _case(f"shape_{name}_f16", sizes, D.HALF)]
    for name, window in _WINDOWS.items():
        cases.append(_case(f"window_{name}", _SMALL, fast=name == "band_bottom_right", **window))
        cases.append(_case(f"window_{name}_more_queries", (1, 2, 2, 2, 11, 6, 8, 8), D.HALF, **window))
    cases += [
        _case(f"layout_{layout.lower()}", _SQUARE, D.HALF, layout=layout, fast=layout == "BSHD")
        for layout in ("BSHD", "QKV", "PADDED", "DS")
    ]
    return [
        *cases,
        _case("layout_out_padded", _SQUARE, D.FLOAT, out_layout="PADDED"),
        _case("layout_out_bshd", _SQUARE, D.BFLOAT16, out_layout="BSHD", causal_mask=True),
        _case("compute_f64", _SMALL, D.FLOAT, compute_data_type=D.DOUBLE),
        _case("do_f32", _SMALL, D.HALF, do_dtype=D.FLOAT),
        _case("stats_rank_3", _SMALL, D.HALF, stats_rank=3),
        _case("large_f32", _SQUARE, D.FLOAT, change=_large),
        _case("large_bf16", _SQUARE, D.BFLOAT16, change=_large),
        _case("equal_values", _SQUARE, D.FLOAT, change=_equal),
        _case("scale_value", _SMALL, scale=0.3),
        _case("scale_negative", _SMALL, D.HALF, scale=-0.5),
        _case("scale_tensor", _SMALL, D.HALF, scale=D.FLOAT, fast=True),
    ]


def _option_cases() -> list[OpCase]:
    biases: dict[str, Dims] = {"full": (2, 4, 9, 12), "row": (9, 12), "head": (1, 4, 1, 12), "batch": (2, 1, 9, 12),
                               "column": (2, 1, 9, 1), "keys": (12,), "one": (1,), "rank_3": (4, 9, 12)}  # fmt: skip
    cases = [
        _case(f"bias_{name}", _SMALL, D.FLOAT if name in ("full", "head") else D.HALF, bias=dims, dbias=True,
              fast=name == "full", change=_dead if name in ("full", "row", "batch", "rank_3") else None)
        for name, dims in biases.items()
    ]  # fmt: skip
    plain, empty = _lengths([5, 9], [12, 7]), _lengths([5, 0], [0, 3])
    drop = (2, 4, 9, 12)
    causal = {"alibi_mask": True, "causal_mask": True}
    return [
        *cases,
        _case("bias_only", _SMALL, D.BFLOAT16, bias=(1, 4, 9, 12), bias_dtype=D.FLOAT, change=_dead),
        _case("bias_causal", _SMALL, D.FLOAT, bias=(1, 1, 9, 12), dbias=True, causal_mask=True, change=_dead),
        _case("lengths", _SMALL, D.FLOAT, lengths=D.INT32, change=plain, fast=True),
        _case("lengths_f16", _SMALL, D.HALF, lengths=D.INT64, change=plain, causal_mask=True),
        _case("lengths_bottom_right", _SMALL, D.FLOAT, lengths=D.INT32, change=plain, causal_mask_bottom_right=True),
        _case("lengths_empty", _SMALL, D.FLOAT, lengths=D.INT32, change=empty),
        _case(
            "lengths_beyond_int32",
            _SMALL,
            D.FLOAT,
            lengths=D.INT64,
            causal_mask_bottom_right=True,
            change=_lengths([5, 2**32 + 3], [2**40, 7]),
        ),
        _case("lengths_bias", _SMALL, D.HALF, lengths=D.INT32, change=plain, bias=(1, 4, 9, 12), dbias=True),
        _case("dropout", _SMALL, D.FLOAT, dropout=drop, fast=True),
        _case("dropout_f16", _SMALL, D.HALF, dropout=(2, 1, 9, 12), causal_mask=True),
        _case("dropout_bias", _SMALL, D.FLOAT, dropout=(1, 4, 9, 12), bias=(1, 4, 9, 12), dbias=True),
        _case("alibi", _SMALL, D.FLOAT, **causal),
        _case("alibi_6_heads", (1, 6, 3, 1, 17, 17, 16, 16), D.BFLOAT16, **causal),
    ]


def both(dtype: DataType, *, sink: bool = False, **options: Any) -> Graph:
    """Attention and its gradients in one graph."""
    g = Graph("both", io_data_type=dtype, compute_data_type=D.FLOAT)
    q, k, v = (g.tensor(name, dim=(2, heads, 24, 16)) for name, heads in (("q", 4), ("k", 2), ("v", 2)))
    token = g.tensor("sink", dim=(1, 4, 1, 1), data_type=D.FLOAT) if sink else None
    o, stats = g.sdpa(q, k, v, generate_stats=True, sink_token=token, **options)
    assert stats is not None
    for name, made in (
        g.sdpa_backward(q, k, v, o, g.tensor("do", dim=(2, 4, 24, 16)), stats, **options)._asdict().items()
    ):
        made.set_name(name).set_output()
    o.set_output()
    return g


def _both_cases() -> list[OpCase]:
    return [
        OpCase("both_f32", lambda: both(D.FLOAT, causal_mask=True), fast=True),
        OpCase("both_f16", lambda: both(D.HALF)),
        OpCase("both_bf16", lambda: both(D.BFLOAT16, causal_mask=True)),
        OpCase("both_sink", lambda: both(D.HALF, sink=True, causal_mask=True)),
        OpCase("both_band", lambda: both(D.FLOAT, diagonal_band_left_bound=3, diagonal_band_right_bound=0)),
    ]


def _decline(name: str, rule: str, sizes: Sequence[int] = _SMALL, **options: Any) -> OpCase:
    return _case(f"declined_{name}", sizes, D.HALF, declined=dict.fromkeys(_ALL, rule), **options)


CASES = [
    *_plain_cases(),
    *_option_cases(),
    *_both_cases(),
    _decline("dropout", "dropout_probability", dropout_probability=0.1),
    _decline("alibi", "alibi_mask", alibi_mask=True),
    _decline("large", "workspace", (8, 32, 8, 8, 4096, 4096, 64, 64)),
]
