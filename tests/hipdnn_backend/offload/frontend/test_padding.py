"""Which open dims may be padded: NaN in the rows that are added must not reach a result that is kept."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from hipdnn_backend.offload.frontend.loading import folded
from hipdnn_backend.offload.frontend.padding import NotPaddableError, PaddedEnds, padded_ends, probe_sizes
from tests.support.row_models import RowModel, row_model

ort: Any = pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.ort


def ends_of(model: RowModel) -> PaddedEnds:
    return padded_ends(lambda size: folded(model.proto, dims={"n": size}), probe_sizes((4, 8)))


def outcome(seed: int) -> str:
    """``padded``, or for a model that is refused whether padding would have changed it; raises if it is wrong.

    ONNX Runtime runs the model with its own size, and with rows of NaN beyond them: an oracle that is not ours.
    """
    model = row_model(seed)
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 7))
    size = n + int(rng.integers(1, 6))
    session = ort.InferenceSession(model.proto.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = model.feeds(n, seed)
    (want,) = session.run(None, feeds)
    try:
        ends = ends_of(model)
    except NotPaddableError:
        return "refused"
    (got,) = session.run(None, model.padded(feeds, size))
    for at in ends.outputs:
        got = np.take(got, range(got.shape[at.axis] // size * n), at.axis)
    assert got.shape == want.shape, seed
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6, err_msg=str(seed))
    return "padded"


def is_changed(seed: int) -> bool:
    """Whether the first elements of what a model gives are others if NaN is added to what it takes."""
    model = row_model(seed)
    session = ort.InferenceSession(model.proto.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = model.feeds(3, seed)
    (want,), (got,) = session.run(None, feeds), session.run(None, model.padded(feeds, 5))
    part = got[tuple(slice(0, extent) for extent in want.shape)]
    return part.shape != want.shape or not np.allclose(part, want, rtol=1e-5, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("models", [40, pytest.param(400, marks=pytest.mark.thorough)])
def test_random_models_give_the_same_when_padded_with_nan(models: int) -> None:
    counts = Counter(outcome(seed) for seed in range(models))
    assert counts["padded"] > 0.3 * models, counts


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("first", range(1000, 7000, 1000))
def test_many_random_models_give_the_same_when_padded_with_nan(first: int) -> None:
    counts = Counter(outcome(seed) for seed in range(first, first + 1000))
    assert counts["padded"] > 300, counts


@pytest.mark.parametrize("models", [30, pytest.param(150, marks=pytest.mark.thorough)])
def test_what_is_refused_would_mostly_have_changed(models: int) -> None:
    refused = [seed for seed in range(models) if outcome(seed) == "refused"]
    assert sum(map(is_changed, refused)) > 0.6 * len(refused) > 0.2 * models


@pytest.mark.parametrize(
    ("op_type", "attributes", "says"),
    [
        ("Softmax", {"axis": 0}, "Softmax 'it': it adds up along dim 0, in which the rows are"),
        ("NonZero", {}, "NonZero 'it': nothing is known of how it treats rows"),
        ("RandomNormalLike", {}, "nothing is known of how it treats rows"),
        ("ReduceMean", {}, "it reduces along dim 0"),
    ],
)
def test_a_refusal_names_the_node_and_why(op_type: str, attributes: dict[str, Any], says: str) -> None:
    from onnx import TensorProto, helper

    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])
    kind = TensorProto.INT64 if op_type == "NonZero" else TensorProto.FLOAT
    node = helper.make_node(op_type, ["x"], ["y"], name="it", **attributes)
    graph = helper.make_graph([node], "g", [x], [helper.make_tensor_value_info("y", kind, None)])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    with pytest.raises(NotPaddableError, match=says):
        ends_of(RowModel(proto))


def test_probes_are_sizes_of_several_rows() -> None:
    assert probe_sizes((1,)) == (2, 4, 6)
    assert probe_sizes((1, 8)) == (8, 16, 24)
    assert probe_sizes((2, 4, 8, 16)) == (2, 4, 8)
