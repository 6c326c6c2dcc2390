"""Gradients of attention: shapes, messages, and the reference against autograd, finite differences and by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from fusilli_plugin.testing.graphs.inputs import attention_results
from graph_api import DataType, DiagonalAlignment, Graph, GraphError, numerics
from tests.cases.sdpa_backward import CASES, graph, inputs

D = DataType
SMALL = (2, 4, 2, 2, 5, 7, 8, 6)
_WINDOWS: dict[str, dict[str, Any]] = {
    "open": {},
    "causal": {"causal_mask": True},
    "bottom_right": {"causal_mask_bottom_right": True},
    "band": {"diagonal_band_left_bound": 2, "diagonal_band_right_bound": 1},
    "band_bottom_right": {"diagonal_band_left_bound": 1, "diagonal_band_right_bound": 0,
                          "diagonal_alignment": DiagonalAlignment.BOTTOM_RIGHT},
}  # fmt: skip


def run(g: Graph, pack: dict[Any, Any]) -> dict[str, Any]:
    return {tensor.name: value for tensor, value in g.reference(pack).items()}


def exact(**options: Any) -> Graph:
    """In float64, so that o and stats are what the attention makes."""
    return graph(options.pop("sizes", SMALL), D.DOUBLE, compute_data_type=D.DOUBLE, **options).validate()


@pytest.mark.parametrize("case", [case for case in CASES if case.dims], ids=lambda case: case.name)
def test_dims_are_inferred(case: Any) -> None:
    g = case.graph()
    assert {name: g.find(name).dims for name in case.dims} == case.dims
    assert Graph.from_json(g.to_json()).to_json() == g.to_json()


def test_gradients_take_the_stride_orders_of_their_operands() -> None:
    g = graph((1, 4, 2, 2, 9, 12, 16, 8), layout="BSHD").validate()
    assert g.find("dq").strides == (9 * 4 * 16, 16, 4 * 16, 1)
    assert g.find("dv").strides == (12 * 2 * 8, 8, 2 * 8, 1)


def test_flops_count_five_products() -> None:
    assert graph(SMALL).validate().flops() == 2 * 2 * 4 * 5 * 7 * (3 * 8 + 2 * 6)


# ---- the reference -------------------------------------------------------------------------------------------------


def _allowed(sq: int, skv: int, window: dict[str, Any]) -> Any:
    """The window, written down from its definition."""
    right = window.get("diagonal_band_right_bound", 0 if "causal" in next(iter(window), "") else None)
    left = window.get("diagonal_band_left_bound")
    ends = "causal_mask_bottom_right" in window or "diagonal_alignment" in window
    ahead = np.arange(skv)[None] - np.arange(sq)[:, None] - (skv - sq if ends else 0)
    allowed = np.ones((sq, skv), bool)
    if right is not None:
        allowed &= ahead <= right
    return allowed if left is None else allowed & (ahead >= -left)


@pytest.mark.parametrize("heads", [(4, 4), (2, 2), (1, 1), (4, 2), (2, 4)])
@pytest.mark.parametrize("window", _WINDOWS)
@pytest.mark.parametrize("extra", ["plain", "bias", "dropout", "sink"])
def test_reference_is_autograd(heads: tuple[int, int], window: str, extra: str) -> None:
    """PyTorch's operations written out, in float64: softmax, masks and all."""
    torch = pytest.importorskip("torch")
    options: dict[str, Any] = dict(_WINDOWS[window])
    options |= {"plain": {}, "bias": {"bias": (1, 4, 1, 7), "dbias": True}, "dropout": {"dropout": (2, 4, 5, 7)},
                "sink": {"sink": True}}[extra]  # fmt: skip
    g = exact(sizes=(2, 4, *heads, 5, 7, 8, 6), **options)
    pack = inputs()(g)
    named = {tensor.name: torch.tensor(array, dtype=torch.float64) for tensor, array in pack.items()}
    leaves = {name: named[name].requires_grad_() for name in ("q", "k", "v", "bias", "sink_token") if name in named}
    k, v = (leaves[name].repeat_interleave(4 // count, 1) for name, count in zip("kv", heads, strict=True))
    scores = leaves["q"] @ k.mT / math.sqrt(8.0) + leaves.get("bias", 0.0)
    scores = scores.masked_fill(~torch.tensor(_allowed(5, 7, _WINDOWS[window])), -math.inf)
    if extra == "sink":
        scores = torch.cat([scores, leaves["sink_token"].expand(2, 4, 5, 1)], 3)
    shown = torch.isfinite(scores).any(3, keepdim=True)
    p = torch.where(shown, torch.softmax(torch.where(shown, scores, 0.0), 3), 0.0)[..., :7]
    if extra == "dropout":
        p = p * named["dropout_mask"] * 2.0
    (p @ v).backward(named["do"])
    got = run(g, pack)
    for name, leaf in leaves.items():
        wanted = leaf.grad.numpy()
        np.testing.assert_allclose(got["d" + name], wanted, rtol=1e-10, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("options", [
    {"lengths": D.INT32, "causal_mask_bottom_right": True},
    {"alibi_mask": True, "causal_mask": True},
    {"bias": (2, 1, 5, 7), "dbias": True, "scale": D.DOUBLE},
], ids=["lengths", "alibi", "bias"])  # fmt: skip
def test_reference_is_the_slope_of_the_forward_pass(options: dict[str, Any]) -> None:
    """Central differences of sum(o * do) along one random direction per operand."""
    g = exact(**options)

    def change(named: dict[str, Any]) -> None:
        if "seq_len_q" in named:
            named["seq_len_q"][:, 0, 0, 0], named["seq_len_kv"][:, 0, 0, 0] = [3, 5], [7, 4]

    pack = inputs(change)(g)
    named = {tensor.name: array for tensor, array in pack.items()}
    do = np.nan_to_num(named["do"])
    named["do"][...], named["o"][...], named["stats"][...] = (np.nan_to_num(named[n]) for n in ("do", "o", "stats"))
    got, rng, step = run(g, pack), np.random.default_rng(5), 1e-6
    for name in [n for n in ("q", "k", "v", "bias") if n in named]:
        array, kept, direction = named[name], named[name].copy(), rng.standard_normal(named[name].shape)
        ends = []
        for sign in (1, -1):
            array[...] = kept + sign * step * direction
            ends.append(float(np.sum(attention_results(g.nodes[0], pack)[0] * do)))
        array[...] = kept
        wanted = (ends[0] - ends[1]) / (2 * step)
        np.testing.assert_allclose(np.sum(got["d" + name] * direction), wanted, rtol=1e-6, atol=1e-7, err_msg=name)


def test_two_keys_by_hand() -> None:
    """Weights 1/4 and 3/4, values 10 and 20: o = 17.5; ds = p (do v - do o) = (-15/8, 15/8)."""
    g = exact(sizes=(1, 1, 1, 1, 1, 2, 1, 1), scale=2.0)
    arrays = {"q": 0.5, "k": [0.0, math.log(3.0)], "v": [10.0, 20.0], "o": 17.5, "do": 1.0, "stats": math.log(4.0)}
    pack = {g.find(name): np.array(value, np.float64).reshape(g.find(name).dims) for name, value in arrays.items()}
    got = run(g, pack)
    np.testing.assert_allclose(got["dv"].ravel(), [0.25, 0.75])
    np.testing.assert_allclose(got["dk"].ravel(), [-1.875, 1.875])
    np.testing.assert_allclose(got["dq"].ravel(), [2.0 * 1.875 * math.log(3.0)])


def test_rows_that_see_nothing_have_no_gradient() -> None:
    g = exact(bias=(5, 7), dbias=True)

    def change(named: dict[str, Any]) -> None:
        named["bias"][2] = -np.inf

    got = run(g, inputs(change)(g))
    assert all(np.isfinite(value).all() for value in got.values())
    assert not got["dq"][:, :, 2].any()
    assert not got["dbias"][2].any()
    assert got["dq"][:, :, 1].any()


def test_lengths_are_gradients_of_shorter_sequences() -> None:
    g = exact(lengths=D.INT32, causal_mask_bottom_right=True)
    lengths = ((3, 5), (7, 4))

    def change(named: dict[str, Any]) -> None:
        named["seq_len_q"][:, 0, 0, 0], named["seq_len_kv"][:, 0, 0, 0] = lengths
        named["k"][1, :, 4:] = np.nan

    pack = inputs(change)(g)
    got = run(g, pack)
    for b, (sq, skv) in enumerate(zip(*lengths, strict=True)):
        short = exact(sizes=(1, 4, 2, 2, sq, skv, 8, 6), causal_mask_bottom_right=True)
        ends = {"q": sq, "o": sq, "do": sq, "stats": sq, "k": skv, "v": skv}
        wanted = run(short, {short.find(n): pack[g.find(n)][b : b + 1, :, :size] for n, size in ends.items()})
        for name, size in (("dq", sq), ("dk", skv), ("dv", skv)):
            np.testing.assert_allclose(got[name][b : b + 1, :, :size], wanted[name], atol=1e-12)
            assert not got[name][b, :, size:].any()


# ---- errors --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [D.HALF, D.BFLOAT16, D.FLOAT])
def test_the_bound_holds_for_rounded_arithmetic_and_no_swap_passes(dtype: DataType) -> None:
    """In float32 with p and ds rounded to the operands' type it passes; with heads or rows exchanged it does not."""
    g = graph((1, 2, 2, 2, 8, 16, 16, 8), dtype).validate()
    pack = inputs()(g)
    q, k, v, o, do, stats = (pack[g.find(n)].astype(np.float32) for n in ("q", "k", "v", "o", "do", "stats"))

    def rounded(x: Any) -> Any:
        return x.astype(dtype.numpy).astype(np.float32)

    p = rounded(np.exp(q @ np.swapaxes(k, 2, 3) / np.float32(4) - stats))
    ds = rounded(p * (do @ np.swapaxes(v, 2, 3) - np.sum(do * o, 3, keepdims=True)))
    results = {"dq": ds @ k / 4, "dk": np.swapaxes(ds, 2, 3) @ q / 4, "dv": np.swapaxes(p, 2, 3) @ do}
    found = {name: value.astype(dtype.numpy) for name, value in results.items()}
    assert all(each.ok for each in numerics.check(g, pack, found))
    for name in found:
        for wrong in (found[name][:, ::-1], found[name][:, :, ::-1], -found[name]):
            assert not all(each.ok for each in numerics.check(g, pack, {**found, name: wrong}))


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        ({"q": (2, 4, 9)}, "need rank 4"),
        ({"k": (2, 3, 7, 8)}, "the 4 heads of q must be a multiple"),
        ({"v": (2, 2, 6, 6)}, "sequence lengths of k and v differ"),
        ({"k": (2, 2, 7, 9)}, "head sizes of q and k differ"),
        ({"o": (2, 4, 5, 8)}, r"o 'o' must have dims \(2, 4, 5, 6\), got \(2, 4, 5, 8\)"),
        ({"do": (2, 2, 5, 6)}, r"do 'do' must have dims \(2, 4, 5, 6\), got \(2, 2, 5, 6\)"),
        ({"stats": (2, 4, 5, 6)}, r"stats 'stats' must have dims \(2, 4, 5, 1\)"),
    ],
)
def test_shapes_that_do_not_fit_are_named(dims: dict[str, Any], message: str) -> None:
    right = {"q": (2, 4, 5, 8), "k": (2, 2, 7, 8), "v": (2, 2, 7, 6), "o": (2, 4, 5, 6), "do": (2, 4, 5, 6),
             "stats": (2, 4, 5, 1)}  # fmt: skip
    g = Graph("bad", io_data_type=D.FLOAT)
    g.sdpa_backward(*(g.tensor(name, dim=size) for name, size in (right | dims).items())).dq.set_output()
    with pytest.raises(GraphError, match=message):
        g.validate()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bias": (2, 4, 5, 6)}, "attn_mask 'bias' .* does not broadcast to the scores"),
        ({"bias": (5, 7), "bias_dtype": D.INT32}, "must be floating point.*BINARY_SELECT"),
        ({"causal_mask": True, "causal_mask_bottom_right": True}, "sdpa_backward: .*exclude each other"),
        ({"dropout_probability": 1.5}, "sdpa_backward: dropout_probability 1.5 is outside"),
        ({"scale": math.nan}, "finite number"),
        ({"padding_mask": True}, "seq_len_q is missing"),
        ({"lengths": D.FLOAT}, "must be INT32 or INT64"),
        ({"dropout": (2, 4, 5, 6)}, "dropout_mask 'dropout_mask' .* does not broadcast"),
        ({"dropout": (2, 4, 5, 7), "dropout_probability": 0.5}, "dropout_probability=0.5 and dropout_mask .* exclude"),
    ],
)
def test_options_that_do_not_fit_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        graph(SMALL, **options).validate()


def _with(name: str, dims: tuple[int, ...], *, output: bool = False) -> Graph:
    g = graph(SMALL)
    (node,) = g.nodes
    tensors = {port: node.inputs[port] for port in ("q", "k", "v", "o", "do", "stats")}
    extra = g.tensor(name, dim=dims, data_type=D.FLOAT)
    g.sdpa_backward(**tensors, **{name: extra.set_output() if output else extra}).dq.set_output()  # type: ignore[arg-type]
    return g


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: _with("dbias", (5, 7), output=True), "dbias is the gradient of attn_mask, which is missing"),
        (lambda: _with("dsink_token", (1, 4, 1, 1), output=True), "dsink_token is the gradient of sink_token"),
        (lambda: _with("sink_token", (1, 4, 1, 1)), "sink_token is only needed for dsink_token"),
        (lambda: _with("dropout_scale", (1,)), "dropout_scale 'dropout_scale' is given without dropout_mask"),
    ],
)
def test_what_belongs_together_is_named(made: Any, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        made().validate()


@pytest.mark.parametrize("option", [{"alibi_mask": True}, {"dropout_probability": 0.5}])
def test_unsettled_options_have_no_reference(option: dict[str, Any]) -> None:
    g = graph(SMALL, **option).validate()
    with pytest.raises(GraphError, match=f"{next(iter(option))} has no reference"):
        g.reference(g.random_inputs())
