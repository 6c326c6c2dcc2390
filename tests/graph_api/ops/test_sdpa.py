"""Attention: shapes, messages, and the reference against hand-computed values and PyTorch."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from graph_api import AttentionImplementation, DataType, DiagonalAlignment, Graph, GraphError, numerics
from graph_api.ops.attention import alibi_slopes
from tests.cases.sdpa import CASES, paged_graph
from tests.cases.sdpa import _graph as attention

D = DataType
SMALL = ((2, 4, 9, 16), (2, 2, 12, 16), (2, 2, 12, 8))


def run(graph: Graph, **arrays: Any) -> dict[str, Any]:
    """Reference results by tensor name; inputs that are not given are random."""
    graph.validate()
    pack: dict[Any, Any] = dict(graph.random_inputs(seed=3))
    pack |= {graph.find(name): np.asarray(value, np.float64) for name, value in arrays.items()}
    return {tensor.name: value for tensor, value in graph.reference(pack).items()}


@pytest.mark.parametrize("case", [case for case in CASES if case.dims], ids=lambda case: case.name)
def test_dims_are_inferred(case: Any) -> None:
    graph = case.graph()
    assert {name: graph.find(name).dims for name in case.dims} == case.dims
    assert Graph.from_json(graph.to_json()).to_json() == graph.to_json()


def test_stats_are_float_and_have_one_column() -> None:
    g = attention(*SMALL, D.HALF, generate_stats=True).validate()
    (stats,) = [tensor for tensor in g.arguments().outputs if tensor.name != "o"]
    assert (stats.dims, stats.data_type) == ((2, 4, 9, 1), D.FLOAT)


def test_o_takes_the_stride_order_of_q() -> None:
    g = attention(*SMALL, layout="BSHD").validate()
    assert g.find("o").strides == (9 * 4 * 8, 8, 4 * 8, 1)


def test_flops_count_both_products() -> None:
    assert attention(*SMALL).validate().flops() == 2 * 2 * 4 * 9 * 12 * (16 + 8)


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        (((2, 4, 9), (2, 2, 12, 16), (2, 2, 12, 8)), "need rank 4"),
        (((1, 4, 9, 16), (2, 2, 12, 16), (2, 2, 12, 8)), "batch sizes differ"),
        (((2, 4, 9, 16), (2, 3, 12, 16), (2, 2, 12, 8)), "the 4 heads of q must be a multiple"),
        (((2, 4, 9, 16), (2, 2, 12, 8), (2, 2, 12, 8)), "head sizes of q and k differ"),
        (((2, 4, 9, 16), (2, 2, 12, 16), (2, 2, 11, 8)), "sequence lengths of k and v differ"),
    ],
)
def test_shapes_that_do_not_fit_are_named(dims: Any, message: str) -> None:
    g = Graph("bad", io_data_type=D.FLOAT)
    o, _ = g.sdpa(*(g.tensor(name, dim=size) for name, size in zip("qkv", dims, strict=True)))
    o.set_output()
    with pytest.raises(GraphError, match=message):
        g.validate()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bias": (2, 4, 9, 11)}, "does not broadcast"),
        ({"bias": (9, 12), "bias_dtype": D.BOOLEAN}, "must be floating point.*BINARY_SELECT"),
        ({"causal_mask": True, "causal_mask_bottom_right": True}, "exclude each other"),
        ({"dropout_probability": 1.0}, "outside 0 <= p < 1"),
        ({"scale": math.inf}, "finite number"),
        ({"diagonal_band_left_bound": 2**63}, "no distance.*-1 .or None. for no bound"),
        ({"diagonal_band_right_bound": -2}, "right_bound -2 is no distance"),
        ({"causal_mask": True, "diagonal_band_right_bound": 5}, "right bound of 0, and right_bound is 5"),
        (
            {"causal_mask": True, "diagonal_alignment": DiagonalAlignment.BOTTOM_RIGHT},
            "aligned at the top left.*causal_mask_bottom_right",
        ),
        ({"max_seq_len_kv": 0}, "a length of at least 1"),
        ({"diagonal_band_left_bound": 1.5}, "must hold integers"),
        ({"padding_mask": True}, "seq_len_q is missing"),
        ({"diagonal_alignment": "TOP_LEFT"}, "must be a DiagonalAlignment"),
        ({"implementation": 1}, "must be a AttentionImplementation"),
        ({"mma_core_mode": "HALF"}, "must be a DataType"),
        ({"lengths": D.HALF}, "must be INT32 or INT64"),
    ],
)
def test_options_that_do_not_fit_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        attention(*SMALL, **options).validate()


@pytest.mark.parametrize("tables", ["kv", "k", "v"])
def test_containers_of_pages_are_no_clash_of_batches(tables: str) -> None:
    """Pages in the shapes of hipDNN and cuDNN; the operand that has none says how many keys there are."""
    g = Graph("paged", io_data_type=D.HALF)
    q = g.tensor("q", dim=(17, 32, 1, 128))
    k, v = (g.tensor(name, dim=(200, 8, 16, 128) if name in tables else (17, 8, 64, 128)) for name in "kv")
    pages: dict[str, Any] = {f"page_table_{n}": g.tensor(n * 2, dim=(17, 1, 4, 1), data_type=D.INT32) for n in tables}
    o, _ = g.sdpa(q, k, v, **pages)
    o.set_output()
    assert g.validate().find(o.name).dims == (17, 32, 1, 128)
    node: Any = g.nodes[0]
    assert node.score_dims == (17, 32, 1, 64)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keys": 17}, "k holds 16 keys per sequence .*fewer than the 17"),
        ({"tables": "k", "keys": 40}, "k holds 16 keys per sequence .*fewer than the 40"),
        ({"kind": D.HALF}, "page_table_k 'table_k' must be INT32 or INT64, got HALF"),
    ],
)
def test_pages_that_do_not_fit_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        paged_graph(7, 4, **options).validate()


def test_a_page_table_of_another_shape_is_named() -> None:
    g = Graph("paged", io_data_type=D.HALF)
    k, v = (g.tensor(name, dim=(7, 2, 4, 16)) for name in "kv")
    table = g.tensor("table", dim=(2, 4), data_type=D.INT32)
    g.sdpa(g.tensor("q", dim=(2, 2, 3, 16)), k, v, page_table_k=table, page_table_v=table).o.set_output()
    with pytest.raises(GraphError, match=r"page_table_k 'table' must have dims \(2, 1, pages, 1\), got \(2, 4\)"):
        g.validate()


def test_max_seq_len_kv_belongs_to_pages() -> None:
    with pytest.raises(
        GraphError, match="max_seq_len_kv=8 says how many keys pages hold, and there are no page tables"
    ):
        attention(*SMALL, max_seq_len_kv=8).validate()


def test_pages_without_tables_are_explained() -> None:
    g = Graph("paged", io_data_type=D.HALF)
    k, v = (g.tensor(name, dim=(200, 8, 16, 128)) for name in "kv")
    g.sdpa(g.tensor("q", dim=(17, 32, 1, 128)), k, v).o.set_output()
    with pytest.raises(GraphError, match="batch sizes differ.*containers of pages need their page tables"):
        g.validate()


def test_one_scale_only() -> None:
    g = Graph("scales", io_data_type=D.FLOAT)
    q = g.tensor("q", dim=(1, 1, 2, 2))
    g.sdpa(q, q, q, attn_scale=g.tensor("s", dim=(2,))).o.set_output()
    with pytest.raises(GraphError, match="give one scale"):
        g.validate()


# ---- the reference -------------------------------------------------------------------------------------------------


def test_two_keys_by_hand() -> None:
    g = attention((1, 1, 1, 1), (1, 1, 2, 1), (1, 1, 2, 1), scale=1.0, generate_stats=True)
    got = run(g, q=[[[[1.0]]]], k=[[[[0.0], [math.log(3.0)]]]], v=[[[[10.0], [20.0]]]])
    np.testing.assert_allclose(got["o"], [[[[0.25 * 10 + 0.75 * 20]]]])
    np.testing.assert_allclose(got["sdpa_0::stats"], [[[[math.log(4.0)]]]])


def _seen(queries: int, keys: int, **options: Any) -> list[list[int]]:
    """Which key has weight: equal scores, values one-hot."""
    g = attention((1, 1, queries, 1), (1, 1, keys, 1), (1, 1, keys, keys), scale=0.0, **options)
    o = run(g, v=np.eye(keys)[None, None])["o"][0, 0]
    return [[int(j) for j in np.flatnonzero(row)] for row in o]


def test_windows_by_hand() -> None:
    right = DiagonalAlignment.BOTTOM_RIGHT
    assert _seen(2, 4, causal_mask=True) == [[0], [0, 1]]
    assert _seen(2, 4, causal_mask_bottom_right=True) == [[0, 1, 2], [0, 1, 2, 3]]
    assert _seen(4, 2, causal_mask_bottom_right=True) == [[], [], [0], [0, 1]]
    assert _seen(4, 4, diagonal_band_left_bound=1) == [[0, 1, 2, 3], [0, 1, 2, 3], [1, 2, 3], [2, 3]]
    assert _seen(3, 3, diagonal_band_right_bound=1) == [[0, 1], [0, 1, 2], [0, 1, 2]]
    assert _seen(3, 3, diagonal_band_left_bound=0, diagonal_band_right_bound=0) == [[0], [1], [2]]
    both = {"diagonal_band_left_bound": 1, "diagonal_band_right_bound": 0, "diagonal_alignment": right}
    assert _seen(2, 4, **both) == [[1, 2], [2, 3]]
    assert _seen(3, 3, causal_mask=True, diagonal_band_left_bound=0) == [[0], [1], [2]]
    assert _seen(2, 4, causal_mask_bottom_right=True, diagonal_band_left_bound=1) == [[1, 2], [2, 3]]
    assert _seen(2, 4, causal_mask_bottom_right=True, diagonal_alignment=right) == [[0, 1, 2], [0, 1, 2, 3]]


@pytest.mark.parametrize("left", [None, -1, 0, 1, 2, 5, 2**31 - 1, 2**31, 2**63 - 1])
@pytest.mark.parametrize("right", [None, -1, 0, 1, 5, 2**63 - 1])
@pytest.mark.parametrize("sizes", [(4, 4), (2, 5), (5, 2)])
def test_windows_are_what_hipdnns_reference_hides(left: int | None, right: int | None, sizes: tuple[int, int]) -> None:
    """Key j is hidden where right >= 0 and j > i + off + right, or left >= 0 and j < i + off - left."""
    queries, keys = sizes
    for alignment in DiagonalAlignment:
        off = keys - queries if alignment is DiagonalAlignment.BOTTOM_RIGHT else 0
        wanted = [
            [
                j
                for j in range(keys)
                if not (right is not None and right >= 0 and j > i + off + right)
                and not (left is not None and left >= 0 and j < i + off - left)
            ]
            for i in range(queries)
        ]
        options = {"diagonal_band_left_bound": left, "diagonal_band_right_bound": right}
        assert _seen(queries, keys, diagonal_alignment=alignment, **options) == wanted
        if right == 0:
            flag = "causal_mask" if off == 0 and alignment is DiagonalAlignment.TOP_LEFT else "causal_mask_bottom_right"
            for spelling in (None, -1, 0):
                options["diagonal_band_right_bound"] = spelling
                assert _seen(queries, keys, **options, **{flag: True}) == wanted


def test_padding_is_attention_on_shorter_sequences() -> None:
    options: dict[str, Any] = {"causal_mask_bottom_right": True}
    padded = attention(*SMALL, lengths=D.INT32, generate_stats=True, **options).validate()
    pack = dict(padded.random_inputs(seed=1))
    lengths = {"seq_len_q": [5, 9], "seq_len_kv": [12, 7]}
    for name, sizes in lengths.items():
        pack[padded.find(name)][:, 0, 0, 0] = sizes
    pack[padded.find("k")][1, :, 7:] = np.nan
    pack[padded.find("v")][1, :, 7:] = np.nan
    got = padded.reference(pack)[padded.find("o")]
    for b, (sq, skv) in enumerate(zip(*lengths.values(), strict=True)):
        short = attention((1, 4, sq, 16), (1, 2, skv, 16), (1, 2, skv, 8), **options).validate()
        sizes = {"q": sq, "k": skv, "v": skv}
        wanted = short.reference({name: pack[padded.find(name)][b : b + 1, :, :size] for name, size in sizes.items()})
        np.testing.assert_allclose(got[b : b + 1, :, :sq], wanted[short.find("o")], atol=1e-12)
        assert not np.any(got[b, :, sq:])


def test_a_row_of_minus_infinity_is_zero() -> None:
    g = attention((1, 1, 2, 1), (1, 1, 3, 1), (1, 1, 3, 1), bias=(2, 3), generate_stats=True, parts=True)
    got = run(g, bias=[[-np.inf] * 3, [0.0] * 3])
    assert got["o"][0, 0, 0, 0] == 0.0
    assert got["o"][0, 0, 1, 0] != 0.0
    assert got["sdpa_0::stats"][0, 0, 0, 0] == -np.inf
    assert (got["logit_max"][0, 0, 0, 0], got["score_sum_exp"][0, 0, 0, 0]) == (-np.inf, 0.0)


def test_a_sink_takes_weight_without_a_value() -> None:
    g = attention((1, 1, 1, 1), (1, 1, 1, 1), (1, 1, 1, 1), scale=0.0, sink=True, generate_stats=True)
    got = run(g, v=[[[[8.0]]]], sink=[[[[math.log(3.0)]]]])
    np.testing.assert_allclose(got["o"], 8.0 / 4.0)
    np.testing.assert_allclose(got["sdpa_0::stats"], math.log(4.0))


def test_hints_change_nothing() -> None:
    hints: dict[str, Any] = {"mma_core_mode": D.HALF, "implementation": AttentionImplementation.UNIFIED}
    np.testing.assert_array_equal(run(attention(*SMALL))["o"], run(attention(*SMALL, **hints))["o"])


def test_slopes_by_hand() -> None:
    """Of 8 heads 1/2, 1/4, ...; of 6 those of 4 heads, then the first and third of 8."""
    assert alibi_slopes(8) == tuple(2.0**-i for i in range(1, 9))
    assert alibi_slopes(4) == (0.25, 0.0625, 0.015625, 0.00390625)
    assert alibi_slopes(6) == (*alibi_slopes(4), 0.5, 0.125)
    assert alibi_slopes(1) == (2.0**-8,)
    assert alibi_slopes(3) == (2.0**-4, 2.0**-8, 2.0**-2)
    np.testing.assert_allclose(alibi_slopes(16), 2.0 ** (-0.5 * np.arange(1, 17)))


def test_alibi_is_an_equal_bias() -> None:
    """Row i of the bias is slope * (j - i), up to the diagonal."""
    sizes = ((1, 2, 3, 4), (1, 2, 3, 4), (1, 2, 3, 4))
    slopes = np.array([2.0**-4, 2.0**-8]).reshape(1, 2, 1, 1)
    bias = slopes * np.array([[0, 1, 2], [-1, 0, 1], [-2, -1, 0]])
    wanted = run(attention(*sizes, bias=(1, 2, 3, 3), causal_mask=True), bias=bias)["o"]
    np.testing.assert_allclose(run(attention(*sizes, alibi_mask=True, causal_mask=True))["o"], wanted)


def test_pages_are_the_rows_that_their_numbers_name() -> None:
    """A table turned round reads the same container backwards, page by page; numbers outside are the nearest page."""
    paged = paged_graph(3, 2, dtype=D.DOUBLE, sizes=(1, 1, 1, 1, 2, 4, 3), count=4, compute_data_type=D.DOUBLE)
    pack: dict[Any, Any] = dict(paged.validate().random_inputs(seed=2))
    for name in ("table_k", "table_v"):
        pack[paged.find(name)][0, 0, :, 0] = [2, -5, 1, 99]
    k, v = (pack[paged.find(name)] for name in "kv")
    rows = [np.concatenate([x[page, :, :] for page in (2, 0, 1, 2)], axis=1)[None] for x in (k, v)]
    g = attention((1, 1, 2, 4), (1, 1, 8, 4), (1, 1, 8, 3), D.DOUBLE, compute_data_type=D.DOUBLE)
    wanted = run(g, q=pack[paged.find("q")], k=rows[0], v=rows[1])["o"]
    np.testing.assert_allclose(paged.reference(pack)[paged.find("o")], wanted)


def test_bits_of_blocks_count_from_the_lowest() -> None:
    """Of 300 keys, three blocks, only the middle one is seen: bit 1."""
    extra: dict[str, Any] = {
        "extra": lambda g, _: {"block_mask": g.tensor("block_mask", dim=(1, 1, 1, 1), data_type=D.UINT8)}
    }
    g = attention((1, 1, 2, 1), (1, 1, 300, 1), (1, 1, 300, 300), scale=0.0, **extra)
    o = run(g, v=np.eye(300)[None, None], block_mask=[[[[2]]]])["o"][0, 0, 0]
    assert np.flatnonzero(o).tolist() == list(range(128, 256))


def test_a_dropout_scales_weights_and_not_their_sum() -> None:
    def extra(g: Graph, _: Any) -> dict[str, Any]:
        return {"dropout_mask": g.tensor("mask", dim=(1, 2)), "dropout_scale": g.tensor("factor", dim=(1,))}

    g = attention((1, 1, 1, 1), (1, 1, 2, 1), (1, 1, 2, 1), scale=0.0, extra=extra, generate_stats=True)
    got = run(g, v=[[[[10.0], [20.0]]]], mask=[[0.0, 1.0]], factor=[2.0])
    np.testing.assert_allclose(got["o"], 0.5 * 20.0 * 2.0)
    np.testing.assert_allclose(got["sdpa_0::stats"], math.log(2.0))


def test_a_sink_is_in_max_and_sum() -> None:
    g = attention((1, 1, 1, 1), (1, 1, 1, 1), (1, 1, 1, 1), scale=0.0, sink=True, parts=True)
    got = run(g, sink=[[[[math.log(4.0)]]]])
    np.testing.assert_allclose(got["logit_max"], math.log(4.0))
    np.testing.assert_allclose(got["score_sum_exp"], 1.25)


@pytest.mark.parametrize("option", [{"alibi_mask": True}, {"dropout_probability": 0.5}])
def test_unsettled_options_have_no_reference(option: dict[str, Any]) -> None:
    with pytest.raises(GraphError, match=f"{next(iter(option))} has no reference"):
        run(attention(*SMALL, **option))


@pytest.mark.parametrize("heads", [(4, 4), (2, 2), (1, 1), (4, 2)])
@pytest.mark.parametrize("kind", ["plain", "causal", "mask", "scale"])
def test_reference_is_torch(heads: tuple[int, int], kind: str) -> None:
    torch = pytest.importorskip("torch")
    options: dict[str, Any] = {"plain": {}, "causal": {"causal_mask": True}, "mask": {"bias": (2, 1, 9, 12)},
                               "scale": {"scale": 0.3}}[kind]  # fmt: skip
    g = attention((2, 4, 9, 16), (2, heads[0], 12, 16), (2, heads[1], 12, 8), **options).validate()
    pack = g.random_inputs(seed=2)
    q, k, v = (torch.tensor(pack[g.find(name)], dtype=torch.float64) for name in ("q", "k", "v"))
    k, v = k.repeat_interleave(4 // heads[0], 1), v.repeat_interleave(4 // heads[1], 1)
    mask = torch.tensor(pack[g.find("bias")], dtype=torch.float64) if kind == "mask" else None
    wanted = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=kind == "causal", scale=0.3 if kind == "scale" else None
    )
    np.testing.assert_allclose(g.reference(pack)[g.find("o")], wanted.numpy(), rtol=1e-12, atol=1e-13)


def test_stats_are_torch_logsumexp() -> None:
    torch = pytest.importorskip("torch")
    g = attention((1, 2, 5, 8), (1, 2, 7, 8), (1, 2, 7, 4), generate_stats=True).validate()
    pack = g.random_inputs(seed=2)
    q, k = (torch.tensor(pack[g.find(name)], dtype=torch.float64) for name in ("q", "k"))
    wanted = torch.logsumexp(q @ k.mT / math.sqrt(8.0), dim=-1, keepdim=True)
    np.testing.assert_allclose(g.reference(pack)[g.find("sdpa_0::stats")], wanted.numpy(), rtol=1e-12)


@pytest.mark.parametrize("dtype", [D.HALF, D.BFLOAT16, D.FLOAT])
def test_the_bound_holds_for_rounded_arithmetic_and_no_swap_passes(dtype: DataType) -> None:
    """Computed in float32 with weights rounded to v's type it passes; with two heads or rows exchanged it does not."""
    g = attention((1, 2, 8, 16), (1, 2, 16, 16), (1, 2, 16, 8), dtype).validate()
    pack = g.random_inputs(seed=4)
    q, k, v = (pack[g.find(name)].astype(np.float32) for name in ("q", "k", "v"))
    scores = ((q / 4.0).astype(dtype.numpy).astype(np.float32)) @ np.swapaxes(k, 2, 3)
    weights = np.exp(scores - scores.max(3, keepdims=True))
    o = (weights.astype(dtype.numpy).astype(np.float32) @ v) / weights.sum(3, keepdims=True)
    o = o.astype(dtype.numpy)
    assert numerics.check(g, pack, {"o": o})[0].ok
    assert not numerics.check(g, pack, {"o": o[:, ::-1]})[0].ok
    assert not numerics.check(g, pack, {"o": o[:, :, ::-1]})[0].ok
