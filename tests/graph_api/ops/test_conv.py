"""Convolutions: hand-computed values, PyTorch, adjointness; inference; messages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graph_api import (
    ConvAttributes,
    ConvolutionMode,
    CustomOpAttributes,
    DataType,
    Graph,
    GraphError,
    PointwiseMode,
    TensorAttr,
)
from tests.cases.conv import conv_graph, y_dims

Dims = tuple[int, ...]
MIRRORED = ConvolutionMode.CONVOLUTION

GEOMETRIES: dict[str, tuple[Dims, Dims, dict[str, Any]]] = {
    "plain": ((2, 3, 5, 6), (4, 3, 3, 2), {"padding": 1}),
    "stride": ((2, 3, 8, 9), (4, 3, 3, 2), {"padding": 1, "stride": (2, 3)}),
    "dilation": ((1, 2, 9, 8), (3, 2, 3, 2), {"padding": 2, "dilation": (2, 3), "stride": 2}),
    "groups": ((2, 6, 5, 4), (9, 2, 2, 3), {"padding": 1}),
    "depthwise": ((1, 4, 6, 5), (8, 1, 3, 3), {"stride": 2}),
    "1d": ((2, 4, 9), (6, 2, 3), {"padding": 1, "stride": 2}),
    "3d": ((1, 2, 4, 5, 3), (3, 2, 2, 3, 2), {"padding": 1, "stride": (1, 2, 1)}),
    "asymmetric": ((1, 2, 5, 4), (3, 2, 2, 2), {"pre_padding": (0, 2), "post_padding": (1, 0)}),
}


def run(graph: Graph, a: Any, b: Any) -> np.ndarray[Any, Any]:
    (out,) = graph.validate().arguments().outputs
    return graph.reference({"a": a, "b": b})[out]


def test_forward_by_hand() -> None:
    g = conv_graph("fprop", (1, 1, 4), (1, 1, 2), stride=2)
    assert run(g, [[[1, 2, 3, 4]]], [[[10, 1]]]).tolist() == [[[12, 34]]]


def test_a_mirrored_filter_by_hand() -> None:
    g = conv_graph("fprop", (1, 1, 4), (1, 1, 2), stride=2, convolution_mode=MIRRORED)
    assert run(g, [[[1, 2, 3, 4]]], [[[10, 1]]]).tolist() == [[[21, 43]]]


def test_data_gradient_by_hand_leaves_rows_that_no_window_meets_at_zero() -> None:
    g = conv_graph("dgrad", (1, 1, 5), (1, 1, 2), stride=2)
    assert run(g, [[[1, 2]]], [[[10, 3]]]).tolist() == [[[10, 3, 20, 6, 0]]]


def test_data_gradient_by_hand_where_windows_overlap_and_reach_into_padding() -> None:
    g = conv_graph("dgrad", (1, 1, 3), (1, 1, 3), padding=1)
    assert run(g, [[[1, 2, 4]]], [[[1, 10, 100]]]).tolist() == [[[12, 124, 240]]]


def test_weight_gradient_by_hand() -> None:
    g = conv_graph("wgrad", (1, 1, 4), (1, 1, 3), dilation=1)
    assert run(g, [[[1, 10]]], [[[1, 2, 3, 4]]]).tolist() == [[[21, 32, 43]]]


def test_weight_gradient_of_a_mirrored_filter_by_hand() -> None:
    g = conv_graph("wgrad", (1, 1, 4), (1, 1, 3), convolution_mode=MIRRORED)
    assert run(g, [[[1, 10]]], [[[1, 2, 3, 4]]]).tolist() == [[[43, 32, 21]]]


def _torch_results(x: Any, w: Any, dy: Any, kw: dict[str, Any], *, mirrored: bool) -> dict[str, Any]:
    torch = pytest.importorskip("torch", reason="the other expectations do not need it; pip install '.[torch]'")
    rank = x.ndim - 2
    pre, post = (np.broadcast_to(kw.get(k, kw.get("padding", 0)), rank) for k in ("pre_padding", "post_padding"))
    pads = [int(n) for pair in zip(reversed(pre), reversed(post), strict=True) for n in pair]
    tx, tw = torch.tensor(x, requires_grad=True), torch.tensor(w, requires_grad=True)
    conv = {1: torch.nn.functional.conv1d, 2: torch.nn.functional.conv2d, 3: torch.nn.functional.conv3d}[rank]
    filters = torch.flip(tw, list(range(2, 2 + rank))) if mirrored else tw
    y = conv(
        torch.nn.functional.pad(tx, pads), filters, stride=kw.get("stride", 1), dilation=kw.get("dilation", 1),
        groups=x.shape[1] // w.shape[1],
    )  # fmt: skip
    y.backward(torch.tensor(dy))
    return {"fprop": y.detach().numpy(), "dgrad": tx.grad.numpy(), "wgrad": tw.grad.numpy()}


@pytest.mark.parametrize("mirrored", [False, True], ids=["cross_correlation", "convolution"])
@pytest.mark.parametrize("name", GEOMETRIES)
def test_all_directions_agree_with_pytorch(name: str, mirrored: bool) -> None:
    x_dims, w_dims, kw = GEOMETRIES[name]
    rng = np.random.default_rng(1)
    x, w, dy = (rng.standard_normal(dims) for dims in (x_dims, w_dims, y_dims(x_dims, w_dims, **kw)))
    expected = _torch_results(x, w, dy, kw, mirrored=mirrored)
    mode: dict[str, Any] = {"convolution_mode": MIRRORED} if mirrored else {}
    for direction, (a, b) in {"fprop": (x, w), "dgrad": (dy, w), "wgrad": (dy, x)}.items():
        got = run(conv_graph(direction, x_dims, w_dims, dtype=DataType.DOUBLE, **kw, **mode), a, b)
        np.testing.assert_allclose(got, expected[direction], rtol=1e-12, atol=1e-12)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_gradients_are_adjoint_to_the_forward_convolution(data: st.DataObject) -> None:
    """<dy, conv(x, w)> = <x, dgrad(dy, w)> = <w, wgrad(dy, x)> for any geometry."""
    number = lambda low, high: data.draw(st.integers(low, high))  # noqa: E731
    groups, spatial = number(1, 2), number(1, 2)
    kw: dict[str, Any] = {key: [number(least, 3) for _ in range(spatial)] for key, least in
          (("stride", 1), ("dilation", 1), ("pre_padding", 0), ("post_padding", 0))}  # fmt: skip
    window = [number(1, 3) for _ in range(spatial)]
    sizes = [
        max(kw["dilation"][i] * (window[i] - 1) + 1 - kw["pre_padding"][i] - kw["post_padding"][i], 1) + number(0, 4)
        for i in range(spatial)
    ]
    x_dims, w_dims = (number(1, 2), 2 * groups, *sizes), (groups * number(1, 2), 2, *window)
    kw["convolution_mode"] = data.draw(st.sampled_from(list(ConvolutionMode)))
    rng = np.random.default_rng(0)
    x, w, dy = (rng.integers(-4, 5, dims).astype(float) for dims in (x_dims, w_dims, y_dims(x_dims, w_dims, **kw)))
    y = run(conv_graph("fprop", x_dims, w_dims, **kw), x, w)
    dx = run(conv_graph("dgrad", x_dims, w_dims, **kw), dy, w)
    dw = run(conv_graph("wgrad", x_dims, w_dims, **kw), dy, x)
    assert np.vdot(dy, y) == np.vdot(x, dx) == np.vdot(w, dw)


def gradient(direction: str, first: Dims, second: Dims, out: Dims | None = None, **kw: Any) -> TensorAttr:
    g = Graph("g", io_data_type=DataType.FLOAT)
    result = getattr(g, f"conv_{direction}")(g.tensor("a", dim=first), g.tensor("b", dim=second), **kw).set_output()
    if out is not None:
        result.set_dim(out)
    g.validate()
    return result


def test_dx_is_inferred_as_the_smallest_that_fits() -> None:
    assert gradient("dgrad", (2, 4, 5, 6), (4, 3, 3, 2), padding=1, stride=(2, 3)).dims == (2, 3, 9, 15)
    assert gradient("dgrad", (1, 2, 4), (2, 5, 3), dilation=2, pre_padding=1, post_padding=0).dims == (1, 5, 7)


def test_dw_is_inferred_as_the_largest_that_fits() -> None:
    assert gradient("wgrad", (2, 4, 4, 4), (2, 3, 8, 9), padding=1, stride=2).dims == (4, 3, 4, 5)
    assert gradient("wgrad", (1, 2, 5), (1, 3, 11), dilation=3).dims == (2, 3, 3)


@pytest.mark.parametrize("size", [9, 10])
def test_dx_of_any_remainder_is_taken_as_given(size: int) -> None:
    assert gradient("dgrad", (1, 2, 5), (2, 3, 3), (1, 3, size), padding=1, stride=2).dims == (1, 3, size)


def test_gradients_take_the_stride_order_of_their_first_tensor() -> None:
    g = Graph("g", io_data_type=DataType.FLOAT)
    dy, x = g.tensor("dy", dim=(2, 4, 3, 5), layout="NHWC"), g.tensor("x", dim=(2, 6, 5, 7))
    dx = g.conv_dgrad(dy, g.tensor("w", dim=(4, 6, 3, 3))).set_output()
    dw = g.conv_wgrad(dy, x).set_output()
    g.validate()
    assert dx.strides == (210, 1, 42, 6)
    assert dw.strides == (54, 9, 3, 1)


def test_gradients_of_other_inputs_keep_groups_remainder_and_filter() -> None:
    g = Graph("g", io_data_type=DataType.FLOAT)
    dy, w = g.tensor("dy", dim=(2, 4, 5, 5)), g.tensor("w", dim=(4, 3, 3, 3))
    g.conv_dgrad(dy, w, padding=1, stride=2).set_dim((2, 6, 10, 9)).set_output().set_name("dx")
    x = g.tensor("x", dim=(2, 6, 10, 9))
    g.conv_wgrad(dy, x, padding=1, stride=2).set_dim((4, 3, 3, 3)).set_output().set_name("dw")
    new = g.validate().with_dims({"dy": (7, 4, 8, 6), "x": (7, 6, 16, 11)})
    assert new.find("dx").dims == (7, 6, 16, 11)
    assert new.find("dw").dims == (4, 3, 3, 3)


def test_the_compute_type_of_floats_is_a_float() -> None:
    g = conv_graph("dgrad", (1, 1, 4), (1, 1, 2), compute_data_type=DataType.INT32).validate()
    assert g.nodes[0].compute is DataType.FLOAT


@pytest.mark.parametrize("direction", ["fprop", "dgrad", "wgrad"])
def test_two_operations_per_product(direction: str) -> None:
    assert conv_graph(direction, (2, 6, 5, 4), (4, 3, 3, 2)).flops() == 2 * (2 * 4 * 3 * 3) * (3 * 3 * 2)


def test_graphs_survive_json() -> None:
    for direction in ("fprop", "dgrad", "wgrad"):
        g = conv_graph(direction, (2, 6, 8, 9), (4, 3, 3, 2), padding=1, stride=2, convolution_mode=MIRRORED)
        assert Graph.from_json(g.to_json()).to_json() == g.to_json()


@pytest.mark.parametrize(
    ("message", "direction", "first", "second", "out", "kw"),
    [
        ("dy (1, 2, 4) has K=2 channels, w (3, 1, 2) has K=3", "dgrad", (1, 2, 4), (3, 1, 2), None, {}),
        ("x (1, 5, 5) has C=5 channels, w (2, 3, 2)", "dgrad", (1, 2, 4), (2, 3, 2), (1, 5, 5), {}),
        ("convolved with w (2, 3, 2) gives (1, 2, 5); set the dims", "dgrad", (1, 2, 4), (2, 3, 2), (1, 3, 6), {}),
        ("padding alone gives dy", "dgrad", (1, 2, 1), (2, 3, 1), None, {"padding": 2}),
        ("differ in the batch N", "wgrad", (1, 2, 4), (2, 3, 5), None, {}),
        ("no filter gives dy [4] from x [3]", "wgrad", (1, 2, 4), (1, 3, 3), None, {}),
        ("'b' has dims (1, 3, 3, 3), but stride (1,) says 1", "wgrad", (1, 2, 4), (1, 3, 3, 3), None, {}),
        ("filter (4,) with dilation (1,) is larger than padded x (3,)", "wgrad", (1, 2, 1), (1, 3, 3), (2, 3, 4), {}),
        ("larger than padded x (3,)", "fprop", (1, 2, 3), (2, 2, 4), None, {}),
        ("K=3 filters, which 2 groups", "fprop", (1, 4, 3), (3, 2, 1), None, {}),
        ("not both", "fprop", (1, 2, 3), (2, 2, 1), None, {"padding": 1, "pre_padding": 1}),
        ("stride (0,) must be at least 1", "dgrad", (1, 2, 3), (2, 2, 1), None, {"stride": 0}),
        ("differ in length", "wgrad", (1, 2, 3), (1, 2, 3), None, {"padding": (1, 1)}),
        ("must be a ConvolutionMode", "wgrad", (1, 2, 3), (1, 2, 3), None, {"convolution_mode": "CONVOLUTION"}),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_told(
    message: str, direction: str, first: Dims, second: Dims, out: Dims | None, kw: dict[str, Any]
) -> None:
    with pytest.raises(GraphError) as failure:
        gradient(direction, first, second, out, **kw)
    assert message.replace("[4]", "(4,)").replace("[3]", "(3,)") in str(failure.value)


def test_the_number_of_spatial_dims_comes_from_an_argument_if_no_tensor_tells() -> None:
    g = Graph("g", io_data_type=DataType.FLOAT)
    template = CustomOpAttributes(custom_op_id="any", data="any")
    x, w = (g.custom_op([g.tensor(dim=(2, 2, 6))], 1, template)[0] for _ in range(2))
    with pytest.raises(GraphError, match=r"one argument must have an entry per spatial dim.*stride=\(1, 1\)"):
        g.conv_wgrad(x, w)
    assert g.conv_wgrad(x, w, stride=[1]) is not None


def test_the_number_of_spatial_dims_follows_through_operations() -> None:
    g = Graph("g", io_data_type=DataType.FLOAT)
    x, w = (g.conv_fprop(g.tensor(dim=(2, 2, 6)), g.tensor(dim=(2, 2, 1))) for _ in range(2))
    for _ in range(3000):  # deeper than Python may recurse
        x = g.pointwise(PointwiseMode.ADD, 1.0, x)
    assert g.rank_of(x) == 3
    g.conv_wgrad(x, w).set_output()
    assert g.validate().nodes[-1].outputs["dw"].dims == (2, 2, 1)


# ---- groups and layouts --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("groups", [1, 2, 4, 8])
def test_groups_are_taken_where_the_channels_say_the_same(groups: int) -> None:
    """In all directions; the gradients' dims are inferred with them. PyTorch's values."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(groups)
    x, w = rng.standard_normal((2, 8, 6, 5)), rng.standard_normal((16, 8 // groups, 3, 2))
    tx, tw = (torch.tensor(array, requires_grad=True) for array in (x, w))
    y = torch.nn.functional.conv2d(tx, tw, groups=groups, padding=1)
    dy = rng.standard_normal(y.shape)
    dx, dw = torch.autograd.grad(y, (tx, tw), torch.tensor(dy))
    wanted = {"conv_fprop": (x, w, y.detach()), "conv_dgrad": (dy, w, dx), "conv_wgrad": (dy, x, dw)}
    for method, (first, second, result) in wanted.items():
        g = Graph("g", io_data_type=DataType.DOUBLE)
        a, b = g.tensor("a", dim=first.shape), g.tensor("b", dim=second.shape)
        out = getattr(g, method)(a, b, padding=1, groups=groups).set_output()
        got = g.validate().reference({a: first, b: second})[out]
        np.testing.assert_allclose(got, result.numpy(), rtol=1e-12, atol=1e-12)
        assert Graph.from_json(g.to_json()).canonical_json() == g.canonical_json()


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (2, r"groups=2 and w .4, 2, 3, 3. need C=4 channels, x .1, 8, 5, 5. has 8"),
        (0, "groups must be at least 1, got 0"),
        (-4, "groups must be at least 1, got -4"),
        (1.5, "must hold integers"),
        ("4", "must hold integers"),
        (True, "groups must be at least 1, got True"),
    ],
)
def test_groups_that_the_channels_deny_are_named(groups: Any, message: str) -> None:
    def build() -> None:
        g = Graph("g", io_data_type=DataType.FLOAT)
        x, w = g.tensor("x", dim=(1, 8, 5, 5)), g.tensor("w", dim=(4, 2, 3, 3))
        g.conv_fprop(x, w, groups=groups).set_output()
        g.validate()

    with pytest.raises(GraphError, match=message):
        build()


@pytest.mark.parametrize(
    ("x", "w", "tip"),
    [
        ((8, 56, 56, 64), (64, 64, 3, 3), True),  # x in the order N, H, W, C
        ((8, 56, 56, 64), (128, 3, 3, 64), True),  # both
        ((8, 224, 224, 3), (7, 7, 3, 64), True),  # w in the order H, W, C, K
        ((8, 64, 56, 56), (128, 3, 3, 64), True),  # w alone
        ((2, 10, 3), (4, 3, 3), True),
        ((2, 8, 8, 8, 5), (4, 3, 3, 3, 5), True),
        ((8, 64, 56, 56), (64, 48, 3, 3), False),  # no order makes this fit
        ((8, 7, 5, 5), (4, 3, 3, 3), False),
    ],
)
def test_channels_that_clash_because_of_their_order_are_explained(x: Any, w: Any, tip: bool) -> None:
    g = Graph("g", io_data_type=DataType.FLOAT)
    g.conv_fprop(g.tensor("x", dim=x), g.tensor("w", dim=w), padding=1).set_output()
    with pytest.raises(GraphError) as caught:
        g.validate()
    assert ("dims are N, C, spatial whatever the layout" in str(caught.value)) == tip, caught.value


def test_sizes() -> None:
    a = ConvAttributes(pre_padding=(1,), post_padding=(2,), stride=(3,), dilation=(2,))
    for size in range(4, 30):
        for window in range(1, 4):
            out = a.output_size(0, size, window)
            least = a.smallest_input(0, out, window)
            assert least <= size < least + 3
            assert a.largest_window(0, size, out) >= window
            assert a.output_size(0, size, a.largest_window(0, size, out)) == out
