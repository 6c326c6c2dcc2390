"""What gradients of attention look like in IR, what AMD code becomes of them, and what is declined."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from graph_api import DataType, Graph, numerics
from iree_bridge import build, support
from iree_bridge.compile.inspect import inspect_graph
from iree_bridge.emit.module import emit_module
from iree_bridge.targets.target import Target
from tests.cases.sdpa import paged_graph
from tests.cases.sdpa_backward import graph, inputs
from tests.support.filecheck import check_ir

pytestmark = pytest.mark.mlir

D = DataType
GFX = Target.parse("gfx942")
GQA = (2, 8, 2, 4, 64, 96, 32, 16)


def test_heads_of_a_group_are_rows_of_one_product() -> None:
    check_ir(
        emit_module(graph(GQA, D.HALF).validate(), GFX).ir,
        """
        CHECK-LABEL: func.func @main
        CHECK:       torch.aten.bmm {{.*}} -> !torch.vtensor<[4,256,96],f32>
        CHECK:       torch.aten.exp
        CHECK:       torch.aten.bmm {{.*}} -> !torch.vtensor<[8,128,96],f32>
        CHECK:       torch.aten.bmm {{.*}} -> !torch.vtensor<[4,256,32],f32>
        CHECK:       torch.aten.bmm {{.*}} -> !torch.vtensor<[4,96,32],f32>
        CHECK:       torch.aten.bmm {{.*}} -> !torch.vtensor<[8,96,16],f32>
        CHECK-NOT:   torch.aten.broadcast_to
        """,
    )


@pytest.mark.a_few("{}")
@pytest.mark.parametrize(
    "options", [{}, {"causal_mask": True}, {"bias": (1, 1, 64, 96), "bias_dtype": D.FLOAT}], ids=str
)
def test_everything_around_a_product_is_in_its_kernel(options: dict[str, Any]) -> None:
    inspection = inspect_graph(graph(GQA, D.HALF, **options).validate(), GFX)
    assert inspection.dispatches == 6
    assert sum(inspection.matrix.values()) > 0


@pytest.mark.a_few("None")
@pytest.mark.iree_cpu
@pytest.mark.parametrize("lengths", [None, D.INT32])
def test_the_gradient_of_a_sink(lengths: DataType | None) -> None:
    """hipDNN's schema has no place for it, so it is in no table of cases."""
    g = graph((2, 4, 2, 2, 9, 12, 16, 8), sink=True, causal_mask=True, lengths=lengths).validate()

    def change(named: dict[str, Any]) -> None:
        if lengths is not None:
            named["seq_len_q"][:, 0, 0, 0], named["seq_len_kv"][:, 0, 0, 0] = [5, 9], [12, 7]

    pack = inputs(change)(g)
    results = {tensor: tensor.empty() for tensor in g.arguments().outputs}
    build(g, device="cpu").run({**pack, **results})
    assert [str(each) for each in numerics.check(g, pack, results) if not each.ok] == []
    dsink = g.find("dsink_token")
    wrong = {**results, dsink: -results[dsink]}
    assert [each.tensor.name for each in numerics.check(g, pack, wrong) if not each.ok] == ["dsink_token"]


@pytest.mark.parametrize(
    ("sizes", "dtype", "served"),
    [
        ((1, 16, 16, 16, 8192, 8192, 128, 128), D.BFLOAT16, True),
        ((1, 16, 16, 16, 8192, 8193, 128, 128), D.BFLOAT16, False),
        ((1, 8, 8, 8, 8192, 8192, 64, 64), D.FLOAT, True),
        ((1, 9, 9, 9, 8192, 8192, 64, 64), D.FLOAT, False),
    ],
)
def test_weights_have_to_fit(sizes: Any, dtype: DataType, served: bool) -> None:
    answer = support(graph(sizes, dtype).validate(), GFX)
    assert answer.ok == served
    if not served:
        assert (answer.node, answer.rule) == ("sdpa_backward_0", "workspace")
        assert f"{sizes[4]} queries and {sizes[5]} keys" in str(answer)


def _container(*, layout: str = "BHSD", computed: bool = False) -> str:
    return emit_module(paged_graph(7, 4, layout=layout, computed=computed).validate(), GFX).ir


def test_pages_are_gathered_from_memory() -> None:
    """Gathered in the kernel that computes it, a container was wrong: threads hold parts that others need."""
    assert "optimization_barrier" not in _container()
    assert "optimization_barrier" not in _container(layout="BSHD")
    assert _container(layout="PADDED").count("util.optimization_barrier") == 2
    assert _container(computed=True).count("util.optimization_barrier") == 2


def test_numbers_of_pages_are_clamped_before_they_are_used() -> None:
    check_ir(
        _container(),
        """
        CHECK:       [[T:%.*]] = torch.aten.clamp {{.*}} -> !torch.vtensor<[8],si64>
        CHECK:       torch.aten.index_select {{.*}}, [[T]] : {{.*}} -> !torch.vtensor<[8,2,4,8],f16>
        """,
    )


def test_a_dropout_keeps_attention_in_steps() -> None:
    def with_mask(target: Target) -> Graph:
        g = Graph("dropout", io_data_type=D.HALF)
        q = g.tensor("q", dim=(1, 2, 16, 32))
        g.sdpa(q, q, q, dropout_mask=g.tensor("mask", dim=(1, 2, 16, 16))).o.set_output()
        return g.validate()

    made = emit_module(with_mask(GFX), GFX).ir
    assert "online_attention" not in made
    assert made.count("torch.aten.bmm") == 2


def test_slopes_are_exact_where_powers_of_two_are() -> None:
    """Scores of 0 and equal values show the weights of 2 keys: 1 / (1 + 2**slope...)."""
    g = Graph("alibi", io_data_type=D.FLOAT)
    q, k, v = (g.tensor(name, dim=(1, 8, 2, size)) for name, size in (("q", 1), ("k", 1), ("v", 2)))
    g.sdpa(q, k, v, attn_scale=0.0, alibi_mask=True, causal_mask=True).o.set_name("o").set_output()
    g.validate()
    o = g.find("o").empty()
    ones = np.ones((1, 8, 2, 1), np.float32)
    build(g, device="cpu").run(
        {q: ones, k: ones, v: np.broadcast_to(np.eye(2, dtype=np.float32), v.dims).copy(), g.find("o"): o}
    )
    slopes = 2.0 ** -np.arange(1, 9)
    np.testing.assert_allclose(o[0, :, 1, 0], np.exp(-slopes) / (1 + np.exp(-slopes)), rtol=1e-5)
