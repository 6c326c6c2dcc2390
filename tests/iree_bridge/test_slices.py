"""Some entries of a batch give what they give in the whole batch, in every graph of which that is said."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from fusilli_plugin.testing.graphs import FAMILIES, graph
from graph_api import DataType, Graph, PointwiseMode, ReductionMode, ResampleMode
from graph_api.numerics import evaluate
from iree_bridge.artifact import vectors
from iree_bridge.artifact.slices import Slice, slice_of

FLAT = ("product", "convolution", "points", "groups", "attention", "pool", "reduction", "norm", "pointwise", "chain",
        "shared", "small product", "small convolution", "small attention", "norm gradient", "experts")  # fmt: skip


@pytest.mark.a_few(
    "points",
    "groups",
    "attention",
    "pool",
    "reduction",
    "small product",
    "small convolution",
    "small attention",
    "norm gradient",
    "experts",
)
@pytest.mark.parametrize("family", FLAT)
def test_entries_are_those_of_the_whole(family: str) -> None:
    """Every value of the slice against the whole, for random graphs."""
    assert family in FAMILIES
    for seed in range(60):
        whole = graph(seed, family)
        for count in (1, 2):
            part = slice_of(whole, count)
            if part is not None:
                compare(whole, part)


def compare(whole: Graph, part: Slice) -> None:
    inputs = vectors.make_inputs(whole, 1)
    exact = evaluate(whole, dict(inputs))
    found = evaluate(part.graph, dict(part.inputs(inputs)))
    for tensor in whole.arguments().outputs:
        mine = part.graph.find(tensor.uid)
        indices = np.arange(mine.volume)
        expected = exact.values[tensor].reshape(-1)[part.positions(tensor, indices)]
        np.testing.assert_array_equal(found.values[mine].reshape(-1), expected, err_msg=whole.name)


def test_many_graphs_have_entries() -> None:
    counts = Counter[str]()
    for family in FLAT:
        counts[family] = sum(slice_of(graph(seed, family), 1) is not None for seed in range(60))
    assert sum(counts.values()) > 100, counts
    assert all(counts[family] for family in ("product", "convolution", "attention", "pool", "norm", "pointwise"))
    assert not counts["experts"]


def new(dtype: DataType = DataType.FLOAT) -> Graph:
    return Graph("g", io_data_type=dtype, compute_data_type=DataType.FLOAT)


def test_what_mixes_entries_has_none() -> None:
    g = new()
    g.reduction(g.tensor("x", dim=(8, 4)), mode=ReductionMode.ADD).set_output(True).set_dim((1, 4))
    assert slice_of(g.validate(), 1) is None
    g = new()
    g.conv_wgrad(g.tensor("dy", dim=(8, 4, 5, 5)), g.tensor("x", dim=(8, 3, 5, 5))).set_output(True).set_dim(
        (4, 3, 1, 1)
    )
    assert slice_of(g.validate(), 1) is None
    g = new()
    y, *_ = g.batchnorm(g.tensor("x", dim=(8, 4, 5, 5)), *(g.tensor(n, dim=(1, 4, 1, 1)) for n in "ab"), epsilon=1e-5)
    y.set_output(True)
    assert slice_of(g.validate(), 1) is None
    g = new()
    g.pointwise(PointwiseMode.GEN_INDEX, g.tensor("x", dim=(8, 4)), axis=0).set_output(True)
    assert slice_of(g.validate(), 1) is None
    g = new()
    y, index = g.resample_fwd(
        g.tensor("x", dim=(8, 2, 4, 4)), mode=ResampleMode.MAXPOOL, window=2, stride=2, generate_index=True
    )
    for tensor in (y, index):
        assert tensor is not None
        tensor.set_output(True)
    assert slice_of(g.validate(), 1) is None


def test_filters_as_many_as_images_are_no_batch() -> None:
    g = new()
    x, w = g.tensor("x", dim=(8, 3, 6, 6)), g.tensor("w", dim=(8, 3, 3, 3))
    g.conv_fprop(x, w).set_output(True)
    part = slice_of(g.validate(), 2)
    assert part is not None
    assert part.entries == (0, 7)
    assert part.batched == {x.uid, g.arguments().outputs[0].uid}
    compare(g, part)
    # the filters are read as a batch elsewhere
    g = new()
    w = g.tensor("w", dim=(8, 3, 3, 3))
    g.conv_fprop(g.tensor("x", dim=(8, 3, 6, 6)), w).set_output(True)
    g.pointwise(PointwiseMode.RELU_FWD, w).set_output(True)
    assert slice_of(g.validate(), 2) is None


def test_a_large_batch_has_a_vector(monkeypatch: pytest.MonkeyPatch) -> None:
    g = new(DataType.HALF)
    y = g.conv_fprop(g.tensor("x", dim=(6, 4, 9, 9), layout="NHWC"), g.tensor("w", dim=(5, 4, 3, 3), layout="NHWC"))
    y.set_output(True)
    g.validate()
    whole = vectors.make_vector(g, 3)
    assert not isinstance(whole, str)
    monkeypatch.setattr(vectors, "_MAX_FLOPS", g.flops() / 2)
    assert isinstance(vectors.make_vector(g, 3), str)
    part = vectors.make_sampled_vector(g, 3)
    assert not isinstance(part, str)
    sample, other = part.samples[y.uid], whole.samples[y.uid]
    assert set(sample.indices // (5 * 7 * 7)) == {0, 5}
    known = dict(zip(other.indices.tolist(), other.expected.tolist(), strict=True))
    shared = [index for index in sample.indices.tolist() if index in known]
    assert len(shared) == len(sample.indices)
    assert [known[index] for index in shared] == sample.expected.tolist()
    monkeypatch.setattr(vectors, "_MAX_FLOPS", g.flops() / 7)
    assert isinstance(vectors.affordable(g), str)
