"""Attention: heads, sizes, dtypes, layouts, masks, windows, lengths, statistics; rows of real models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from graph_api import AttentionImplementation, DataType, DiagonalAlignment, Graph, PointwiseMode
from tests.cases import OpCase, Pack

D = DataType
_SHORT = {D.HALF: "f16", D.BFLOAT16: "bf16", D.FLOAT: "f32", D.DOUBLE: "f64"}
_ALL = ("llvm-cpu", "rocm", "cuda")
Dims = tuple[int, ...]


def _strides(dims: Dims, layout: str) -> Dims | None:
    """Strides of [B, H, S, D]: BHSD and BSHD packed; QKV: a third of one packed buffer; PADDED: rows with a gap."""
    _, h, s, d = dims
    return {
        "BHSD": None,
        "BSHD": (s * h * d, d, h * d, 1),
        "QKV": (3 * s * h * d, d, 3 * h * d, 1),
        "PADDED": (h * s * 2 * d, s * 2 * d, 2 * d, 1),
        "SHARED": (0, s * d, d, 1),
        "DS": (h * s * d, s * d, 1, s),
    }[layout]


def _graph(
    q: Dims,
    k: Dims,
    v: Dims,
    dtype: DataType = D.FLOAT,
    *,
    layout: str = "BHSD",
    v_dtype: DataType | None = None,
    bias: Dims | None = None,
    bias_dtype: DataType | None = None,
    lengths: DataType | None = None,
    scale: DataType | float | None = None,
    sink: bool = False,
    parts: bool = False,
    out_dtype: DataType | None = None,
    out_layout: str | None = None,
    extra: Callable[[Graph, Any], Any] | None = None,
    **options: Any,
) -> Graph:
    g = Graph("sdpa", io_data_type=dtype)
    tensors = [
        g.tensor(name, dim=dims, stride=_strides(dims, layout), data_type=kind)
        for name, dims, kind in (("q", q, dtype), ("k", k, dtype), ("v", v, v_dtype or dtype))
    ]
    if bias is not None:
        options["bias"] = g.tensor("bias", dim=bias, data_type=bias_dtype)
    if lengths is not None:
        options["padding_mask"] = True
        for name in ("seq_len_q", "seq_len_kv"):
            options[name] = g.tensor(name, dim=(q[0], 1, 1, 1), data_type=lengths)
    if scale is not None:
        options["attn_scale"] = g.tensor("scale", dim=(1,), data_type=scale) if isinstance(scale, DataType) else scale
    if sink:
        options["sink_token"] = g.tensor("sink", dim=(1, q[1], 1, 1), data_type=D.FLOAT)
    if parts:
        for name in ("logit_max", "score_sum_exp"):
            options[name] = g.tensor(name, dim=(*q[:3], 1), data_type=D.FLOAT)
            options[name].set_output()
    if extra is not None:
        options |= extra(g, tensors)
    o, stats = g.sdpa(*tensors, **options)
    o.set_name("o").set_output()
    if out_dtype is not None:
        o.set_data_type(out_dtype)
    if out_layout is not None:
        o.set_stride(_strides((*q[:3], v[3]), out_layout) or ())
    if stats is not None:
        stats.set_output()
    return g


def _sizes(sizes: Sequence[int]) -> tuple[Dims, Dims, Dims]:
    b, h, hk, hv, sq, skv, d, dv = sizes
    return (b, h, sq, d), (b, hk, skv, d), (b, hv, skv, dv)


def _case(name: str, sizes: Sequence[int], dtype: DataType = D.FLOAT, **options: Any) -> OpCase:
    """``sizes``: B, H, Hk, Hv, Sq, Skv, D, Dv."""
    q, k, v = _sizes(sizes)
    own = {key: options.pop(key) for key in ("inputs", "fast", "declined", "note") if key in options}
    return OpCase(
        name=name, build=lambda: _graph(q, k, v, dtype, **options), dims={"o": (*q[:3], v[3])},
        **own,
    )  # fmt: skip


# ---- inputs --------------------------------------------------------------------------------------------------------


def _dead_rows(graph: Graph) -> Pack:
    """A mask with a row of -inf, a row that sees one key, and a key that no row sees."""
    pack = graph.random_inputs(seed=5)
    mask = pack[graph.find("bias")]
    mask[..., -1] = -np.inf
    if mask.ndim > 1 and mask.shape[-2] > 3:
        mask[..., 2, :] = -np.inf
        mask[..., 3, 1:] = -np.inf
    return pack


def _least_mask(graph: Graph) -> Pack:
    """The habit of masking with the least finite number: a row of nothing else is the mean of all values."""
    pack = graph.random_inputs(seed=6)
    mask = pack[graph.find("bias")]
    least = ml_dtypes.finfo(mask.dtype).min
    mask[2, :] = least
    mask[3, 1:] = least
    mask[4, :] = -np.inf
    return pack


def _lengths(queries: Sequence[int], keys: Sequence[int]) -> Callable[[Graph], Pack]:
    """Lengths, and NaN behind them, which must never be seen."""

    def inputs(graph: Graph) -> Pack:
        pack = graph.random_inputs(seed=7)
        for name, sizes in (("seq_len_q", queries), ("seq_len_kv", keys)):
            pack[graph.find(name)][:, 0, 0, 0] = sizes
        for name, sizes in (("q", queries), ("k", keys), ("v", keys)):
            for b, size in enumerate(sizes):
                pack[graph.find(name)][b, :, size:] = np.nan
        return pack

    return inputs


def _large_scores(graph: Graph) -> Pack:
    """Scores of some hundreds: an exponential without the maximum subtracted overflows."""
    pack = graph.random_inputs(seed=8)
    for name in ("q", "k"):
        pack[graph.find(name)][...] *= pack[graph.find(name)].dtype.type(8)
    return pack


def _one_hot(graph: Graph) -> Pack:
    """Query i finds key i, values count upwards: each row of o is one row of v, so nothing can stand elsewhere."""
    pack = graph.random_inputs(seed=9)
    q, k, v = (pack[graph.find(name)] for name in ("q", "k", "v"))
    eye = 16.0 * np.eye(q.shape[2], q.shape[3], dtype=np.float32)
    q[...], k[...] = eye.astype(q.dtype), eye.astype(k.dtype)
    v[...] = (np.arange(v.size, dtype=np.float32).reshape(v.shape) % 61).astype(v.dtype)
    return pack


def _cancelling(graph: Graph) -> Pack:
    """Equal scores and values +-c: the sums cancel."""
    pack = graph.random_inputs(seed=10)
    pack[graph.find("q")][...] = pack[graph.find("q")].dtype.type(0)
    v = pack[graph.find("v")]
    v[...] = np.where(np.arange(v.shape[2]).reshape(1, 1, -1, 1) % 2 == 0, v[:, :, :1], -v[:, :, :1]).astype(v.dtype)
    return pack


# ---- the table -----------------------------------------------------------------------------------------------------

_SMALL = (2, 4, 2, 2, 9, 12, 16, 8)
_WINDOWS: dict[str, dict[str, Any]] = {
    "causal": {"causal_mask": True},
    "causal_bottom_right": {"causal_mask_bottom_right": True},
    "right_0": {"diagonal_band_right_bound": 0},
    "right_2": {"diagonal_band_right_bound": 2},
    "left_3": {"diagonal_band_left_bound": 3},
    "left_0_right_0": {"diagonal_band_left_bound": 0, "diagonal_band_right_bound": 0},
    "band": {"diagonal_band_left_bound": 2, "diagonal_band_right_bound": 1},
    "band_bottom_right": {
        "diagonal_band_left_bound": 2, "diagonal_band_right_bound": 1,
        "diagonal_alignment": DiagonalAlignment.BOTTOM_RIGHT,
    },
    "far": {"diagonal_band_left_bound": 2**31 - 1, "diagonal_band_right_bound": 2**31 - 1},
    "farthest": {
        "diagonal_band_left_bound": 2**63 - 1, "diagonal_band_right_bound": 2**63 - 1,
        "diagonal_alignment": DiagonalAlignment.BOTTOM_RIGHT,
    },
    "minus_one": {"diagonal_band_left_bound": -1, "diagonal_band_right_bound": -1},
    "minus_one_left": {"diagonal_band_left_bound": -1, "diagonal_band_right_bound": 0},
    "minus_one_right": {"diagonal_band_left_bound": 2, "diagonal_band_right_bound": -1},
    "causal_spelled_twice": {"causal_mask": True, "diagonal_band_left_bound": -1, "diagonal_band_right_bound": 0},
    "causal_sliding": {"causal_mask": True, "diagonal_band_left_bound": 2},
    "causal_sliding_bottom_right": {"causal_mask_bottom_right": True, "diagonal_band_left_bound": 2},
}  # fmt: skip

_ROWS: dict[str, tuple[Sequence[int], DataType, dict[str, Any]]] = {
    "a001": ((1, 8, 8, 8, 64, 64, 64, 64), D.HALF, {}),
    "a003": ((1, 8, 8, 8, 64, 64, 64, 64), D.HALF, {"bias": (1, 8, 64, 64)}),
    "a005": ((2, 16, 4, 4, 128, 128, 64, 64), D.HALF, {"causal_mask": True}),
    "a007": ((2, 8, 8, 8, 128, 64, 64, 64), D.HALF, {}),
    "a009": ((1, 8, 8, 8, 64, 64, 64, 64), D.HALF, {"scale": 0.05}),
    "a013": ((1, 2, 2, 2, 4, 4, 1, 1), D.HALF, {}),
    "a015": ((1, 1, 1, 1, 1024, 1024, 128, 128), D.FLOAT, {}),
    "a017": ((1, 2, 2, 2, 4, 3, 1, 1), D.FLOAT, {"layout": "BSHD"}),
    "a021_batch_2": ((2, 8, 8, 8, 128, 128, 64, 64), D.BFLOAT16, {"causal_mask": True}),
    "a019_2_heads_8192": ((1, 2, 2, 2, 1, 8192, 64, 64), D.BFLOAT16, {}),
    "a023": ((1, 1, 1, 1, 4096, 64, 64, 64), D.HALF, {}),
    "a025": ((1, 2, 2, 2, 1024, 64, 64, 64), D.HALF, {}),
    "a031": ((1, 12, 12, 12, 384, 384, 64, 64), D.HALF, {}),
    "a041_8_heads": ((1, 8, 1, 1, 425, 425, 256, 256), D.BFLOAT16, {}),
    "a047_small": ((1, 4, 4, 4, 96, 96, 192, 128), D.BFLOAT16, {"causal_mask": True}),
    "a049": ((1, 8, 8, 8, 64, 64, 64, 64), D.HALF, {"diagonal_band_right_bound": 0}),
    "a051_8_heads": ((1, 8, 2, 2, 512, 512, 128, 128), D.BFLOAT16, {"causal_mask": True}),
}
"""Rows of shared/shapes/attention.csv, some with fewer heads."""

_SHAPES: dict[str, Sequence[int]] = {
    "one": (1, 1, 1, 1, 1, 1, 1, 1),
    "one_key": (1, 2, 2, 2, 5, 1, 8, 8),
    "one_query": (2, 4, 4, 4, 1, 33, 16, 16),
    "head_size_1": (1, 2, 2, 2, 6, 7, 1, 1),
    "head_size_odd": (1, 3, 3, 3, 7, 5, 13, 13),
    "value_size_1": (1, 2, 2, 2, 6, 7, 8, 1),
    "value_wider": (1, 2, 2, 2, 6, 7, 3, 20),
    "mqa": (2, 6, 1, 1, 5, 7, 8, 8),
    "gqa": (2, 6, 3, 3, 5, 7, 8, 8),
    "gqa_fewer_v": (1, 8, 4, 2, 5, 7, 8, 4),
    "gqa_fewer_k": (1, 8, 2, 8, 5, 7, 8, 4),
    "gqa_crossed": (1, 12, 4, 6, 5, 7, 8, 4),
    "batch_1_many_keys": (1, 1, 1, 1, 3, 200, 8, 8),
}


def _option_cases() -> list[OpCase]:
    cases = [_case(f"{_SHORT[dtype]}", _SMALL, dtype, fast=dtype in (D.FLOAT, D.BFLOAT16)) for dtype in _SHORT]
    cases += [_case(f"{_SHORT[dtype]}_stats", _SMALL, dtype, generate_stats=True, parts=True) for dtype in _SHORT]
    cases += [_case(f"shape_{name}", sizes, D.FLOAT, generate_stats=True) for name, sizes in _SHAPES.items()]
    cases += [_case(f"shape_{name}_f16", sizes, D.HALF) for name, sizes in _SHAPES.items()]
    for name, window in _WINDOWS.items():
        options = {"generate_stats": True, **window}
        cases.append(_case(f"window_{name}", _SMALL, D.FLOAT, fast=name == "band_bottom_right", **options))
        cases.append(_case(f"window_{name}_more_queries", (1, 2, 2, 2, 11, 6, 8, 8), D.HALF, **options))
    masks: dict[str, Dims] = {"full": (2, 4, 9, 12), "row": (9, 12), "head": (1, 4, 1, 12), "batch": (2, 1, 9, 12),
                              "column": (2, 1, 9, 1), "keys": (12,), "one": (1,), "rank_3": (4, 9, 12)}  # fmt: skip
    cases += [
        _case(
            f"bias_{name}",
            _SMALL,
            D.HALF,
            bias=dims,
            fast=name == "full",
            inputs=_dead_rows if dims[-1] == 12 else None,
        )
        for name, dims in masks.items()
    ]
    cases += [
        _case(f"bias_{_SHORT[kind]}_least", _SMALL, D.BFLOAT16, bias=(9, 12), bias_dtype=kind, inputs=_least_mask)
        for kind in (D.HALF, D.BFLOAT16, D.FLOAT)
    ]
    cases += [
        _case("bias_causal", _SMALL, D.FLOAT, bias=(2, 4, 9, 12), causal_mask=True, inputs=_dead_rows),
        _case("bias_stats", _SMALL, D.HALF, bias=(2, 4, 9, 12), generate_stats=True, parts=True, inputs=_dead_rows),
        _case("scale_value", _SMALL, D.FLOAT, scale=0.3),
        _case("scale_zero", _SMALL, D.FLOAT, scale=0.0),
        _case("scale_negative", _SMALL, D.HALF, scale=-0.5),
        _case("scale_tensor", _SMALL, D.HALF, scale=D.FLOAT, fast=True),
        _case("scale_tensor_f16", _SMALL, D.HALF, scale=D.HALF),
        _case("sink", _SMALL, D.HALF, sink=True, generate_stats=True),
        _case("sink_parts", _SMALL, D.HALF, sink=True, parts=True),
        _case("sink_dead", _SMALL, D.FLOAT, sink=True, generate_stats=True, bias=(9, 12), inputs=_dead_rows),
        _case("hints", _SMALL, D.HALF, mma_core_mode=D.FLOAT, implementation=AttentionImplementation.COMPOSITE),
        _case("no_dropout", _SMALL, D.HALF, dropout_probability=0.0),
        _case("compute_f64", _SMALL, D.FLOAT, compute_data_type=D.DOUBLE),
        _case("out_f32", _SMALL, D.HALF, out_dtype=D.FLOAT),
        _case("v_f32", _SMALL, D.HALF, v_dtype=D.FLOAT),
    ]
    return cases


def _length_cases() -> list[OpCase]:
    plain = _lengths([5, 9], [12, 7])
    empty = _lengths([5, 0], [0, 3])
    return [
        _case("lengths", _SMALL, D.FLOAT, lengths=D.INT32, generate_stats=True, inputs=plain, fast=True),
        _case("lengths_f16", _SMALL, D.HALF, lengths=D.INT32, inputs=plain),
        _case("lengths_bf16_i64", _SMALL, D.BFLOAT16, lengths=D.INT64, inputs=plain),
        _case("lengths_empty", _SMALL, D.FLOAT, lengths=D.INT32, generate_stats=True, parts=True, inputs=empty),
        _case("lengths_causal", _SMALL, D.FLOAT, lengths=D.INT32, causal_mask=True, inputs=plain),
        _case("lengths_bottom_right", _SMALL, D.FLOAT, lengths=D.INT32, causal_mask_bottom_right=True, inputs=plain,
              note="the diagonal ends at the last query and key of each sequence"),
        _case("lengths_beyond_int32", _SMALL, D.FLOAT, lengths=D.INT64, causal_mask_bottom_right=True,
              inputs=_lengths([5, 2**32 + 3], [2**40, 7]), note="all queries, and all keys"),
        _case("lengths_bias", _SMALL, D.HALF, lengths=D.INT32, bias=(1, 4, 9, 12), inputs=plain),
    ]  # fmt: skip


def _input_cases() -> list[OpCase]:
    square = (1, 2, 2, 2, 12, 12, 16, 8)
    cases = []
    for name, inputs in (("one_hot", _one_hot), ("large", _large_scores), ("cancel", _cancelling)):
        for dtype in (D.FLOAT, D.HALF, D.BFLOAT16):
            fast = (name, dtype) == ("one_hot", D.HALF)
            cases.append(_case(f"{name}_{_SHORT[dtype]}", square, dtype, inputs=inputs, fast=fast))
    cases += [
        _case(f"layout_{layout.lower()}", square, D.HALF, layout=layout, fast=layout == "BSHD")
        for layout in ("BSHD", "QKV", "PADDED", "DS")
    ]
    cases += [
        _case("layout_shared_batch", (3, 2, 2, 2, 5, 6, 8, 8), D.FLOAT, layout="SHARED"),
        _case("layout_out_padded", square, D.HALF, out_layout="PADDED"),
        _case("layout_out_bshd", square, D.BFLOAT16, out_layout="BSHD", causal_mask=True),
    ]
    return cases


# ---- what cuDNN's front end says of options that hipDNN's schema has ------------------------------------------------


def _ones_and_zeros(graph: Graph) -> Pack:
    """A dropout of a third, with its scale if there is one."""
    pack = graph.random_inputs(seed=11)
    mask = pack[graph.find("dropout_mask")]
    mask[...] = (np.random.default_rng(12).random(mask.shape) < 2 / 3).astype(mask.dtype)
    for tensor, array in pack.items():
        if tensor.name == "dropout_scale":
            array[...] = 1.5
    return pack


def _dropout(dims: Dims, dtype: DataType, *, scaled: bool = True) -> Callable[[Graph, Any], dict[str, Any]]:
    def extra(g: Graph, _: Any) -> dict[str, Any]:
        made = {"dropout_mask": g.tensor("dropout_mask", dim=dims, data_type=dtype)}
        if scaled:
            made["dropout_scale"] = g.tensor("dropout_scale", dim=(1, 1, 1, 1), data_type=D.FLOAT)
        return made

    return extra


def _blocks(dims: Dims) -> Callable[[Graph, Any], dict[str, Any]]:
    return lambda g, _: {"block_mask": g.tensor("block_mask", dim=dims, data_type=D.UINT8)}


def _some_blocks(graph: Graph) -> Pack:
    """Bits of all kinds; in the first head the first queries see nothing."""
    pack = graph.random_inputs(seed=13)
    blocks = pack[graph.find("block_mask")]
    blocks[...] = np.random.default_rng(14).integers(0, 256, blocks.shape)
    blocks[0, 0, 0] = 0
    return pack


def paged_graph(
    pages: int,
    rows: int,
    tables: str = "kv",
    dtype: DataType = D.HALF,
    *,
    keys: int | None = None,
    sizes: Sequence[int] = (2, 4, 2, 2, 3, 16, 8),
    count: int = 4,
    kind: DataType = D.INT32,
    layout: str = "BHSD",
    computed: bool = False,
    **options: Any,
) -> Graph:
    """Attention on ``pages`` pages of ``rows`` keys.

    ``tables``: which operands have them; ``sizes``: B, H, Hk, Hv, Sq, D, Dv.
    """
    b, h, hk, hv, sq, d, dv = sizes
    g = Graph("paged", io_data_type=dtype)
    length = rows * count if keys is None else keys
    shapes = {name: (pages, heads, rows, size) if name in tables else (b, heads, length, size)
              for name, heads, size in (("k", hk, d), ("v", hv, dv))}  # fmt: skip
    q = g.tensor("q", dim=(b, h, sq, d))
    k, v = (g.tensor(name, dim=dims, stride=_strides(dims, layout)) for name, dims in shapes.items())
    if computed:
        k, v = (g.pointwise(PointwiseMode.MUL, x, g.scalar(0.5, data_type=D.FLOAT)) for x in (k, v))
    for name in tables:
        options[f"page_table_{name}"] = g.tensor(f"table_{name}", dim=(b, 1, count, 1), data_type=kind)
    if options.pop("lengths", False):
        for name in ("seq_len_q", "seq_len_kv"):
            options[name] = g.tensor(name, dim=(b, 1, 1, 1), data_type=D.INT32)
        options["padding_mask"] = True
    o, stats = g.sdpa(q, k, v, max_seq_len_kv=keys if tables == "kv" else None, **options)
    o.set_name("o").set_output()
    if stats is not None:
        stats.set_output()
    return g


def _tables(numbers: Callable[[np.random.Generator, Dims, int], Any]) -> Callable[[Graph], Pack]:
    def inputs(graph: Graph) -> Pack:
        pack, rng = graph.random_inputs(seed=15), np.random.default_rng(16)
        for name in ("k", "v"):
            table = next((tensor for tensor in pack if tensor.name == f"table_{name}"), None)
            if table is not None:
                pack[table][...] = numbers(rng, table.dims, graph.find(name).dims[0])
        for tensor, array in pack.items():
            if tensor.name.startswith("seq_len"):
                array[:, 0, 0, 0] = [2, 3] if tensor.name == "seq_len_q" else [5, 14]
        return pack

    return inputs


def _any_pages(rng: np.random.Generator, dims: Dims, pages: int) -> Any:
    return rng.integers(0, pages, dims)


def _outside(rng: np.random.Generator, dims: Dims, pages: int) -> Any:
    """Half of the numbers name no page."""
    return np.where(rng.random(dims) < 0.5, rng.integers(-(2**31), 2**31, dims), rng.integers(-2, pages + 2, dims))


def _paged(name: str, *arguments: Any, numbers: Any = _any_pages, fast: bool = False, **options: Any) -> OpCase:
    return OpCase(f"paged_{name}", lambda: paged_graph(*arguments, **options), inputs=_tables(numbers), fast=fast)


def _cudnn_cases() -> list[OpCase]:
    causal = {"alibi_mask": True, "causal_mask": True}
    square = (1, 4, 2, 2, 12, 12, 16, 8)
    cases = [
        _case("alibi", _SMALL, D.FLOAT, fast=True, generate_stats=True, **causal),
        _case("alibi_f16", square, D.HALF, **causal),
        _case("alibi_6_heads", (1, 6, 3, 1, 17, 17, 16, 16), D.BFLOAT16, **causal),
        _case("alibi_1_head", (2, 1, 1, 1, 5, 5, 8, 8), D.FLOAT, **causal),
        _case("alibi_16_tokens", (1, 12, 12, 12, 16, 16, 16, 16), D.HALF, **causal),
        _case("alibi_window", square, D.HALF, alibi_mask=True, diagonal_band_left_bound=3, diagonal_band_right_bound=0),
        _case("alibi_bias", square, D.HALF, bias=(1, 4, 12, 12), **causal),
        _case("alibi_f64", _SMALL, D.DOUBLE, compute_data_type=D.DOUBLE, **causal),
        _case("alibi_lengths", _SMALL, D.FLOAT, lengths=D.INT32, inputs=_lengths([5, 9], [12, 7]), **causal),
    ]
    for name, dims, dtype in (
        ("full", (2, 4, 9, 12), D.HALF),
        ("heads", (2, 1, 9, 12), D.FLOAT),
        ("batch", (1, 4, 9, 12), D.BFLOAT16),
        ("row", (9, 12), D.DOUBLE),
    ):
        io = D.HALF if dtype is D.FLOAT else dtype
        compute = {"compute_data_type": D.DOUBLE} if dtype is D.DOUBLE else {}
        cases.append(_case(f"dropout_{name}", _SMALL, io, extra=_dropout(dims, dtype), inputs=_ones_and_zeros,
                           fast=name == "full", generate_stats=True, **compute))  # fmt: skip
    cases += [
        _case("dropout_unscaled", _SMALL, D.FLOAT, extra=_dropout((2, 4, 9, 12), D.FLOAT, scaled=False),
              inputs=_ones_and_zeros, causal_mask=True),
        _case("dropout_sink", _SMALL, D.HALF, extra=_dropout((2, 4, 9, 12), D.HALF), inputs=_ones_and_zeros, sink=True),
        _case("blocks", (1, 2, 1, 1, 140, 300, 16, 16), D.HALF, extra=_blocks((1, 2, 2, 1)), inputs=_some_blocks),
        _case("blocks_small", _SMALL, D.FLOAT, extra=_blocks((2, 4, 1, 1)), inputs=_some_blocks, generate_stats=True,
              fast=True),
        _case("blocks_9", (1, 1, 1, 1, 3, 1030, 8, 8), D.FLOAT, extra=_blocks((1, 1, 1, 2)), inputs=_some_blocks,
              causal_mask_bottom_right=True),
        _paged("kv", 7, 4, fast=True),
        _paged("outside", 7, 4, numbers=_outside, fast=True),
        _paged("one_page", 1, 16, count=1, dtype=D.FLOAT, numbers=_outside),
        _paged("page_of_1", 9, 1, dtype=D.FLOAT),
        _paged("length", 7, 4, keys=13, generate_stats=True),
        _paged("k_only", 5, 4, "k", dtype=D.BFLOAT16),
        _paged("v_only", 5, 4, "v", dtype=D.FLOAT, kind=D.INT64),
        _paged("bshd", 7, 4, layout="BSHD", dtype=D.BFLOAT16),
        _paged("gaps", 7, 4, layout="PADDED", fast=True),
        _paged("qkv", 7, 4, layout="QKV", dtype=D.FLOAT),
        _paged("computed", 7, 4, computed=True),
        _paged("computed_f32", 7, 4, computed=True, dtype=D.FLOAT, layout="BSHD"),
        _paged("lengths", 7, 4, keys=15, lengths=True, generate_stats=True),
        _paged("causal", 7, 4, causal_mask_bottom_right=True, dtype=D.FLOAT),
        _paged("mqa", 20, 16, sizes=(3, 8, 1, 1, 1, 64, 64), count=5),
        _paged("long", 40, 16, sizes=(1, 2, 2, 1, 32, 64, 32), count=16, keys=250, causal_mask_bottom_right=True),
        _paged("f64", 7, 4, dtype=D.DOUBLE, compute_data_type=D.DOUBLE),
    ]  # fmt: skip
    return cases


def _same_tensor() -> Graph:
    g = Graph("self", io_data_type=D.HALF)
    x = g.tensor("x", dim=(1, 2, 7, 8))
    g.sdpa(x, x, x).o.set_name("o").set_output()
    return g


def _decline(name: str, rule: str, **options: Any) -> OpCase:
    return _case(f"declined_{name}", _SMALL, D.HALF, declined=dict.fromkeys(_ALL, rule), **options)


def _port(name: str, dims: Dims, dtype: DataType, *, output: bool = False) -> Callable[[Graph, Any], dict[str, Any]]:
    def extra(g: Graph, _: Any) -> dict[str, Any]:
        tensor = g.tensor(name, dim=dims, data_type=dtype)
        if output:
            tensor.set_output()
        return {"other_outputs" if output else "other_inputs": {name: tensor}}

    return extra


_DECLINED = [
    _decline("alibi", "alibi_mask", alibi_mask=True),
    _decline("alibi_bottom_right", "alibi_mask", alibi_mask=True, causal_mask_bottom_right=True),
    _decline("dropout", "dropout_probability", dropout_probability=0.1),
    _decline("rng_dump", "rng_dump", extra=_port("rng_dump", (2, 4, 9, 12), D.HALF, output=True)),
]

CASES = [
    *_option_cases(),
    *_length_cases(),
    *_input_cases(),
    *_cudnn_cases(),
    OpCase("same_tensor", _same_tensor, dims={"o": (1, 2, 7, 8)}),
    *(_case(name, sizes, dtype, **options) for name, (sizes, dtype, options) in _ROWS.items()),
    *_DECLINED,
]
