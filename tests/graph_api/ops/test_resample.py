"""Pooling: hand-computed values, PyTorch; inference; messages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from graph_api import DataType, Graph, GraphError, PointwiseMode
from graph_api import PaddingMode as P
from graph_api import ResampleMode as M
from tests.cases.resample import pool_graph

Dims = tuple[int, ...]
SQUARE = [[[[1.0, 2.0], [3.0, 4.0]]]]


def run(graph: Graph, x: Any) -> dict[str, Any]:
    return {tensor.name: value for tensor, value in graph.reference({"x": np.asarray(x)}).items()}


def pool(x: Any, mode: M, **kw: Any) -> Any:
    return run(pool_graph(np.shape(x), mode, **kw), x)["y"].tolist()


def test_the_maximum_and_the_place_of_the_first_by_hand() -> None:
    x = [[[[1, 2, 3], [4, 9, 9], [7, 9, 0]]]]
    found = run(pool_graph((1, 1, 3, 3), M.MAXPOOL, window=2, stride=1, index=DataType.INT32), x)
    assert found["y"].tolist() == [[[[9, 9], [9, 9]]]]
    assert found["index"].tolist() == [[[[4, 4], [4, 4]]]]


def test_averages_by_hand() -> None:
    kw: dict[str, Any] = {"window": 2, "stride": 1, "pre_padding": 1, "post_padding": 0}
    assert pool(SQUARE, M.AVGPOOL_EXCLUDE_PADDING, **kw) == [[[[1.0, 1.5], [2.0, 2.5]]]]
    assert pool(SQUARE, M.AVGPOOL_INCLUDE_PADDING, **kw) == [[[[0.25, 0.75], [1.0, 2.5]]]]


def test_padding_is_ignored_or_competes_as_zero() -> None:
    x = [[[-4.0, -3.0]]]
    kw: dict[str, Any] = {"window": 2, "stride": 1, "padding": 1, "index": DataType.INT32}
    ignored = run(pool_graph((1, 1, 2), M.MAXPOOL, **kw), x)
    assert ignored["y"].tolist() == [[[-4.0, -3.0, -3.0]]]
    assert ignored["index"].tolist() == [[[0, 1, 1]]]
    zero = run(pool_graph((1, 1, 2), M.MAXPOOL, padding_mode=P.ZERO_PAD, **kw), x)
    assert zero["y"].tolist() == [[[0.0, -3.0, 0.0]]]
    assert zero["index"].tolist() == [[[-1, 1, -1]]]


def test_windows_of_nothing_but_padding() -> None:
    kw: dict[str, Any] = {"window": 1, "stride": 1, "padding": 1}
    found = run(pool_graph((1, 1, 1), M.MAXPOOL, index=DataType.INT32, **kw), [[[5.0]]])
    assert found["y"].tolist() == [[[-np.inf, 5.0, -np.inf]]]
    assert found["index"].tolist() == [[[-1, 0, -1]]]
    assert pool([[[5.0]]], M.AVGPOOL_EXCLUDE_PADDING, **kw) == [[[0.0, 5.0, 0.0]]]


def test_a_nan_is_the_maximum_and_has_no_place() -> None:
    found = run(pool_graph((1, 1, 4), M.MAXPOOL, window=2, index=DataType.INT32), [[[1.0, np.nan, 2.0, 1.0]]])
    np.testing.assert_array_equal(found["y"], [[[np.nan, 2.0]]])
    assert found["index"].tolist() == [[[-1, 2]]]


def test_an_integer_average_truncates_towards_zero() -> None:
    assert pool([[[-3, -4, 3, 4]]], M.AVGPOOL_INCLUDE_PADDING, window=2, dtype=DataType.INT32) == [[[-3, 3]]]


@pytest.mark.parametrize(("rank", "name"), [(1, "1d"), (2, "2d"), (3, "3d")])
def test_values_and_places_agree_with_pytorch(rank: int, name: str) -> None:
    torch = pytest.importorskip("torch", reason="the expectations above do not need it; pip install '.[torch]'")
    f = torch.nn.functional
    x = np.random.default_rng(3).standard_normal((2, 3, 9, 8, 7)[: rank + 2])
    kw: dict[str, Any] = {"window": 3, "stride": 2, "padding": 1, "dtype": DataType.DOUBLE}
    found = run(pool_graph(x.shape, M.MAXPOOL, index=DataType.INT32, **kw), x)
    y, index = getattr(f, f"max_pool{name}")(torch.tensor(x), 3, 2, 1, return_indices=True)
    np.testing.assert_array_equal(found["y"], y.numpy())
    np.testing.assert_array_equal(found["index"], index.numpy())
    for mode, counted in ((M.AVGPOOL_INCLUDE_PADDING, True), (M.AVGPOOL_EXCLUDE_PADDING, False)):
        y = getattr(f, f"avg_pool{name}")(torch.tensor(x), 3, 2, 1, count_include_pad=counted)
        np.testing.assert_allclose(run(pool_graph(x.shape, mode, **kw), x)["y"], y.numpy(), rtol=1e-12)


def test_dims_strides_and_types_are_inferred() -> None:
    g = pool_graph((2, 3, 8, 9), M.MAXPOOL, layout="NHWC", window=(3, 2), index=DataType.INT32, pre_padding=(1, 0))
    g.validate()
    y, index = g.find("y"), g.find("index")
    assert y.dims == index.dims == (2, 3, 3, 4)
    assert y.strides == index.strides == (36, 1, 12, 3)
    assert index.data_type is DataType.INT32


def test_the_stride_is_the_window_by_default_and_there_is_no_index() -> None:
    g = Graph("g", io_data_type=DataType.FLOAT)
    y, index = g.resample_fwd(g.tensor("x", dim=(1, 1, 7)), mode=M.MAXPOOL, window=3)
    y.set_output()
    g.validate()
    assert y.dims == (1, 1, 2)
    assert index is None


def test_graphs_survive_json_and_new_dims() -> None:
    g = pool_graph((2, 3, 8, 9), M.MAXPOOL, window=2, index=DataType.INT8).validate()
    assert Graph.from_json(g.to_json()).to_json() == g.to_json()
    assert g.with_dims({"x": (5, 3, 6, 7)}).find("index").dims == (5, 3, 3, 3)


def test_an_uncertain_input_makes_a_close_index_uncertain() -> None:
    g = pool_graph((1, 1, 4), M.MAXPOOL, window=2, index=DataType.INT32).validate()
    node = g.nodes[0]
    x = {"x": np.array([[[1.0, 1.001, 1.0, 2.0]]])}
    bound = node.error(x, {"x": np.full((1, 1, 4), 0.01)}, node.reference(x))
    assert bound["index"].tolist() == [[[4.0, 0.0]]]
    np.testing.assert_allclose(bound["y"], 0.01)


PLACE = {"window": 2, "index": DataType.INT8}


@pytest.mark.parametrize(
    ("message", "dim", "mode", "kw"),
    [
        ("window (9,) is larger than padded x (4,)", (1, 1, 4), M.MAXPOOL, {"window": 9}),
        ("generate_index belongs to MAXPOOL", (1, 1, 4), M.AVGPOOL_EXCLUDE_PADDING, PLACE),
        ("must be INT8 or INT32, it is INT64", (1, 1, 4), M.MAXPOOL, PLACE | {"index": DataType.INT64}),
        ("x has 144 spatial positions, an INT8 index can name 128", (1, 1, 12, 12), M.MAXPOOL, PLACE),
        ("stride (0,) must be at least 1", (1, 1, 4), M.MAXPOOL, {"window": 2, "stride": 0}),
        ("differ in length", (1, 1, 4), M.MAXPOOL, {"window": 2, "stride": (1, 1)}),
        ("not both", (1, 1, 4), M.MAXPOOL, {"window": 2, "padding": 1, "post_padding": 1}),
        ("at least one spatial dim", (1, 4), M.MAXPOOL, {"window": 2}),
        ("must be a PaddingMode", (1, 1, 4), M.MAXPOOL, {"window": 2, "padding_mode": "ZERO_PAD"}),
    ],
)
def test_what_does_not_fit_is_told(message: str, dim: Dims, mode: M, kw: dict[str, Any]) -> None:
    with pytest.raises(GraphError) as failure:
        pool_graph(dim, mode, **kw).validate()
    assert message in str(failure.value)


def test_the_rank_of_a_tensor_that_was_not_known_while_building_is_checked() -> None:
    g = Graph("g", io_data_type=DataType.FLOAT)
    y = g.conv_fprop(g.tensor("x", dim=(1, 2, 6)), g.tensor("w", dim=(2, 2, 1)))
    g.resample_fwd(y, mode=M.MAXPOOL, window=(2, 2))[0].set_output()
    with pytest.raises(GraphError, match="must have 2 spatial dims as window"):
        g.validate()


def test_one_number_for_all_dims_of_a_virtual_tensor() -> None:
    g = Graph("g", io_data_type=DataType.FLOAT)
    y = g.conv_fprop(g.tensor("x", dim=(1, 2, 7, 9)), g.tensor("w", dim=(4, 2, 2, 2)))
    y = g.pointwise(PointwiseMode.RELU_FWD, y)
    z = g.resample_fwd(y, mode=M.MAXPOOL, window=2)[0].set_output()
    g.validate()
    assert z.dims == (1, 4, 3, 4)
