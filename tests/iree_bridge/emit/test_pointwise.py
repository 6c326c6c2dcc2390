"""What pointwise graphs look like in IR, and that the text depends on the graph alone."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from graph_api import DataType, Graph, PointwiseMode
from graph_api.ops.pointwise import MODES
from iree_bridge.emit.module import emit_module
from iree_bridge.emit.pointwise import MODE_RULES
from iree_bridge.targets.target import Target
from tests.support.filecheck import check_ir

pytestmark = pytest.mark.mlir

M = PointwiseMode
GFX = Target.parse("gfx942")
CPU = Target.parse("cpu")
ROOT = Path(__file__).resolve().parents[3]


def conv_bias_relu(
    graph: str = "g", x: str = "x", conv: str = "conv", bias: str = "bias", act: str = "act", first_uid: int = 1
) -> Graph:
    g = Graph(
        graph, io_data_type=DataType.HALF, intermediate_data_type=DataType.FLOAT, compute_data_type=DataType.FLOAT
    )
    a = g.tensor(x, dim=(2, 4, 6, 6), layout="NHWC", uid=first_uid)
    w = g.tensor(f"{x} w", dim=(8, 4, 3, 3), layout="NHWC", uid=first_uid + 7)
    b = g.tensor(f"{x} b", dim=(1, 8, 1, 1), uid=first_uid + 3)
    y = g.pointwise(M.ADD, g.conv_fprop(a, w, padding=(1, 1), name=conv), b, name=bias)
    g.pointwise(M.RELU_FWD, y, name=act).set_output(True).set_name(f"{x} y")
    return g.validate()


def test_conv_bias_relu_is_permuted_at_its_edges_and_rounded_once() -> None:
    check_ir(
        emit_module(conv_bias_relu(), GFX).ir,
        """
        CHECK-LABEL: func.func @main(%arg0: !torch.tensor<[2,6,6,8],f16>, %arg1: !torch.vtensor<[2,6,6,4],f16>,
        CHECK-SAME:      %arg2: !torch.vtensor<[8,3,3,4],f16>, %arg3: !torch.vtensor<[1,8,1,1],f16>)
        CHECK-DAG:   [[X:%.*]] = torch.aten.permute %arg1, {{.*}} -> !torch.vtensor<[2,4,6,6],f16>
        CHECK-DAG:   [[W:%.*]] = torch.aten.permute %arg2, {{.*}} -> !torch.vtensor<[8,4,3,3],f16>
        CHECK:       [[Y:%.*]] = torch.aten.convolution [[X]], [[W]], {{.*}} -> !torch.vtensor<[2,8,6,6],f32>
        CHECK:       [[B:%.*]] = torch.prims.convert_element_type %arg3, {{.*}} -> !torch.vtensor<[1,8,1,1],f32>
        CHECK:       [[S:%.*]] = torch.aten.add.Tensor [[Y]], [[B]], {{.*}} -> !torch.vtensor<[2,8,6,6],f32>
        CHECK-NEXT:  [[R:%.*]] = torch.aten.relu [[S]] : {{.*}} -> !torch.vtensor<[2,8,6,6],f32>
        CHECK-NEXT:  [[H:%.*]] = torch.prims.convert_element_type [[R]], {{.*}} -> !torch.vtensor<[2,8,6,6],f16>
        CHECK-NEXT:  [[P:%.*]] = torch.aten.permute [[H]], {{.*}} -> !torch.vtensor<[2,6,6,8],f16>
        CHECK-NEXT:  torch.overwrite.tensor.contents [[P]] overwrites %arg0
        CHECK-NEXT:  return
        """,
    )


def test_mixed_types_meet_in_the_compute_type() -> None:
    g = Graph("g")
    a, b = (g.tensor(dim=(3, 4), data_type=dtype) for dtype in (DataType.HALF, DataType.INT32))
    g.pointwise(M.ADD, a, b).set_output().set_data_type(DataType.BFLOAT16)
    check_ir(
        emit_module(g.validate(), GFX).ir,
        """
        CHECK-LABEL: func.func @main(%arg0: !torch.tensor<[3,4],bf16>, %arg1: !torch.vtensor<[3,4],f16>,
        CHECK-SAME:      %arg2: !torch.vtensor<[3,4],si32>)
        CHECK:       [[A:%.*]] = torch.prims.convert_element_type %arg1, {{.*}} -> !torch.vtensor<[3,4],f32>
        CHECK:       [[B:%.*]] = torch.prims.convert_element_type %arg2, {{.*}} -> !torch.vtensor<[3,4],f32>
        CHECK:       [[S:%.*]] = torch.aten.add.Tensor [[A]], [[B]], {{.*}} -> !torch.vtensor<[3,4],f32>
        CHECK-NEXT:  [[H:%.*]] = torch.prims.convert_element_type [[S]], {{.*}} -> !torch.vtensor<[3,4],bf16>
        CHECK-NEXT:  torch.overwrite.tensor.contents [[H]] overwrites %arg0
        """,
    )


def test_a_repeated_input_is_one_row_and_a_result_without_work_is_kept_apart() -> None:
    """Stride 0 becomes a dim of 1 that is expanded; the compiler dies of storing an input as it stands."""
    g = Graph("g", io_data_type=DataType.FLOAT)
    x = g.tensor("x", dim=(2, 3), stride=(0, 1))
    g.pointwise(M.MUL, x, 2.0).set_output().set_name("y")
    g.pointwise(M.IDENTITY, g.tensor("z", dim=(5,))).set_output()
    check_ir(
        emit_module(g.validate(), GFX).ir,
        """
        CHECK-LABEL: func.func @main(%arg0: !torch.tensor<[2,3],f32>, %arg1: !torch.tensor<[5],f32>,
        CHECK-SAME:      %arg2: !torch.vtensor<[1,3],f32>, %arg3: !torch.vtensor<[5],f32>)
        CHECK:       [[X:%.*]] = torch.aten.broadcast_to %arg2, {{.*}} -> !torch.vtensor<[2,3],f32>
        CHECK:       [[C:%.*]] = torch.vtensor.literal(dense<2.000000e+00> : tensor<1xf32>)
        CHECK:       [[Y:%.*]] = torch.aten.mul.Tensor [[X]], [[C]]
        CHECK:       torch.overwrite.tensor.contents [[Y]] overwrites %arg0
        CHECK-NOT:   torch.overwrite.tensor.contents %arg
        CHECK:       util.optimization_barrier
        CHECK:       [[Z:%.*]] = torch.aten.add.Tensor %arg3,
        CHECK:       torch.overwrite.tensor.contents [[Z]] overwrites %arg1
        """,
    )


def test_every_mode_has_a_rule() -> None:
    assert {*MODE_RULES, M.IDENTITY} == set(MODES)


def test_the_same_graph_gives_the_same_text() -> None:
    first, second = (emit_module(conv_bias_relu(), GFX) for _ in range(2))
    assert first == second
    assert emit_module(Graph.from_json(conv_bias_relu().to_json()), GFX) == first


def test_names_and_uids_are_only_in_locations() -> None:
    plain = emit_module(conv_bias_relu(), CPU)
    renamed = emit_module(conv_bias_relu("h", "layer-1/x", "0x", "größe", 'a "b"\n', first_uid=50), CPU)
    assert renamed.ir == plain.ir
    assert renamed.located_ir != plain.located_ir
    assert not re.search(r"\bloc\(|bias|conv\b|\bact\b", plain.ir)


def test_locations_are_named_after_nodes_and_tensors() -> None:
    located = emit_module(conv_bias_relu(conv="conv/1", bias="größe", act='a "b"\n'), GFX).located_ir
    names = dict(re.findall(r'^(#loc\d*) = loc\("(.*)"\)$', located, re.MULTILINE))
    for operation, name in {
        "torch.aten.convolution": "conv/1",
        "torch.aten.add.Tensor": "gr\\C3\\B6\\C3\\9Fe",  # MLIR writes UTF-8 bytes in hexadecimal
        "torch.aten.relu": "a \\22b\\22\\0A",
        "torch.overwrite.tensor.contents": "x y",
        "torch.aten.permute": "x",
    }.items():
        (line, *_) = [line for line in located.splitlines() if operation in line]
        assert names[line.rpartition("loc(")[2].rstrip(")")] == name


@pytest.mark.parametrize("name", ["0x", "layer-1/add", "%arg0", "a\0b", 'loc("x")', "名前", "x" * 5000])
def test_any_name_can_be_emitted(name: str) -> None:
    g = Graph(name, io_data_type=DataType.FLOAT)
    g.pointwise(M.NEG, g.tensor(name, dim=(2,)), name=name).set_output()
    check_ir(emit_module(g.validate(), GFX).located_ir, "CHECK: torch.aten.neg %arg1 : {{.*}} loc(")


def test_the_text_is_the_same_in_another_process() -> None:
    """Hashes of strings differ between processes; nothing may depend on them."""
    code = (
        "import sys\nfrom graph_api import Graph\n"
        "from iree_bridge.emit.module import emit_module\nfrom iree_bridge.targets.target import Target\n"
        "graph = Graph.from_json(sys.stdin.read())\n"
        "sys.stdout.write(emit_module(graph, Target.parse('gfx942')).located_ir)"
    )
    out = subprocess.run(
        [sys.executable, "-c", code],
        input=conv_bias_relu().to_json(), cwd=ROOT, capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    assert out.stdout == emit_module(conv_bias_relu(), GFX).located_ir
