"""What normalisations look like in IR, what AMD code becomes of them, and what is declined."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from graph_api import DataType, Graph, NormFwdPhase, PointwiseMode
from iree_bridge import build, support
from iree_bridge.compile.inspect import inspect_graph
from iree_bridge.emit.module import emit_module
from iree_bridge.targets.target import Target
from tests.cases.norm import batchnorm_graph, trailing_graph
from tests.support.filecheck import check_ir

D = DataType
GFX = Target.parse("gfx942")


def text(graph: Graph) -> str:
    return emit_module(graph.validate(), GFX).ir


@pytest.mark.mlir
def test_the_variance_is_a_second_pass_in_f32() -> None:
    check_ir(
        text(trailing_graph("layernorm", (4, 6, 64), 1, D.HALF, D.FLOAT, NormFwdPhase.TRAINING)),
        """
        CHECK: [[X:%.*]] = torch.prims.convert_element_type {{.*}} -> !torch.vtensor<[4,6,64],f32>
        CHECK: [[S:%.*]] = torch.aten.sum.dim_IntList [[X]]
        CHECK: [[MEAN:%.*]] = torch.aten.div.Scalar [[S]]
        CHECK: [[D:%.*]] = torch.aten.sub.Tensor [[X]], [[MEAN]]
        CHECK: [[Q:%.*]] = torch.aten.mul.Tensor [[D]], [[D]]
        CHECK: torch.aten.sum.dim_IntList [[Q]]
        CHECK: torch.aten.rsqrt {{.*}} -> !torch.vtensor<[4,6,1],f32>
        CHECK: torch.prims.convert_element_type {{.*}} -> !torch.vtensor<[4,6,64],f16>
        CHECK: torch.overwrite.tensor.contents [[MEAN]]
        """,
    )


@pytest.mark.mlir
def test_inference_takes_no_root_of_inv_variance() -> None:
    assert "rsqrt" not in text(batchnorm_graph("batchnorm_inference", (2, 3, 4, 5)))
    assert "rsqrt" in text(batchnorm_graph("batchnorm_inference_variance_ext", (2, 3, 4, 5)))


@pytest.mark.mlir
@pytest.mark.parametrize(("count", "barriers"), [(768, 0), (1000, 1)])
def test_a_gpu_computes_the_mean_of_odd_rows_on_its_own(count: int, barriers: int) -> None:
    graph = trailing_graph("layernorm", (4, count), 1).validate()
    assert emit_module(graph, GFX).ir.count("util.optimization_barrier") == barriers
    assert "util.optimization_barrier" not in emit_module(graph, Target.parse("cpu")).ir


@pytest.mark.mlir
def test_rms_squares_are_of_f32() -> None:
    check_ir(
        text(trailing_graph("rmsnorm", (4, 8), 1, D.HALF, D.HALF)),
        "CHECK: torch.aten.mul.Tensor {{.*}} : !torch.vtensor<[4,8],f32>, !torch.vtensor<[4,8],f32>",
    )


def test_peers_are_declined_with_what_helps() -> None:
    answer = support(batchnorm_graph("batchnorm", (4, 3, 5, 5), peers=2), GFX)
    assert (answer.ok, answer.node, answer.rule) == (False, "batchnorm_0", "peer_stats")
    assert "'peer_0', 'peer_1'" in answer.reason
    assert "leave peer_stats out" in answer.reason


@pytest.mark.iree_cpu
def test_a_constant_row_gives_exactly_the_bias() -> None:
    g = trailing_graph("layernorm", (2, 64), 1).validate()
    pack: dict[Any, Any] = dict(g.random_inputs())
    pack[g.find("x")][...] = np.array([[300.0], [0.25]])
    y = g.find("y").empty()
    build(g, device="cpu").run({**pack, g.find("y"): y})
    np.testing.assert_array_equal(y, np.broadcast_to(pack[g.find("bias")], (2, 64)))


_GRAPHS = {
    "inference": lambda t: batchnorm_graph("batchnorm_inference", (8, 64, 28, 28), t, relu=True),
    "inference_nhwc": lambda t: batchnorm_graph("batchnorm_inference", (8, 64, 28, 28), t, layout="NHWC", relu=True),
    "layernorm": lambda t: trailing_graph("layernorm", (512, 768), 1, t, phase=NormFwdPhase.TRAINING),
    "layernorm_chw": lambda t: trailing_graph("layernorm", (8, 64, 28, 28), 3, t),
    "rmsnorm": lambda t: trailing_graph("rmsnorm", (4, 128, 4096), 1, t, bias=False),
}


@pytest.mark.mlir
@pytest.mark.slow
@pytest.mark.parametrize("dtype", [D.HALF, D.BFLOAT16, D.FLOAT])
@pytest.mark.parametrize("name", _GRAPHS)
def test_one_dispatch(name: str, dtype: DataType) -> None:
    found = inspect_graph(_GRAPHS[name](dtype).validate(), GFX)
    assert (found.dispatches, found.spills) == (1, 0)


@pytest.mark.mlir
@pytest.mark.slow
@pytest.mark.parametrize("op", ["layernorm", "rmsnorm"])
def test_a_single_row_of_several_dims_compiles(op: str) -> None:
    """All of x is reduced then, which fails as one operation: "failed to distribute"."""
    assert inspect_graph(trailing_graph(op, (1, 64, 28, 28), 3).validate(), GFX).spills == 0


@pytest.mark.mlir
@pytest.mark.slow
@pytest.mark.parametrize(
    "graph",
    [
        trailing_graph("layernorm", (64, 1000), 1, D.HALF),
        trailing_graph("layernorm", (3, 5000), 1, D.HALF),
        batchnorm_graph("batchnorm", (4, 3, 8, 6), D.HALF),
    ],
    ids=["1000", "5000", "batchnorm"],
)
def test_odd_sizes_do_not_explode(graph: Graph) -> None:
    """In one kernel with the variance, a mean over rows that fill no waves takes minutes to compile, and spills."""
    found = inspect_graph(graph.validate(), GFX)
    assert found.spills == 0
    assert max(kernel.vgprs for kernel in found.kernels) <= 128


@pytest.mark.mlir
def test_what_lies_beside_a_convolution_may_have_one_dim() -> None:
    g = Graph("beside", io_data_type=D.FLOAT, compute_data_type=D.FLOAT)
    g.conv_fprop(g.tensor("x", dim=(1, 2, 5, 5)), g.tensor("w", dim=(3, 2, 3, 3))).set_output(True)
    g.pointwise(PointwiseMode.ABS, g.tensor("v", dim=(4,))).set_output(True)
    assert "torch.aten.abs" in text(g)
