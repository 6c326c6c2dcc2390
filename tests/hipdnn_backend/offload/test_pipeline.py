"""The pipeline as a whole: reproducers, reports, partitions of models."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from hipdnn_backend.offload import frontend, pipeline, printer
from hipdnn_backend.offload.errors import PassError
from hipdnn_backend.offload.pipeline import PASSES, PIPELINE, partition, run, run_passes
from hipdnn_backend.offload.session import Layout, OffloadOptions, Session
from tests.support import onnx_models
from tests.support.fake_engine import CUSTOM, FakeEngine
from tests.support.passes import TWO_CONVS, parsed, run_text

BAD = 'func.func @main(%x: !torch.vtensor<[4],f32>) { %0 = "test.unknown"(%x) : (!torch.vtensor<[4],f32>) -> !torch.vtensor<[4],f32> return }'  # noqa: E501


def test_the_pipeline_names_every_pass() -> None:
    assert {each.argument for each in PIPELINE} == set(PASSES)


def test_reproducers_without_a_folder_are_private_and_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = tmp_path / f"hipdnn-ep-{os.geteuid()}"
    folder.mkdir(mode=0o700)
    for number in range(40):
        (folder / f"hipdnn-ep-{number}.mlir").touch()
        os.utime(folder / f"hipdnn-ep-{number}.mlir", (number, number))
    (folder / "notes.mlir").touch()
    with pytest.raises(PassError) as caught:
        run_text(BAD, "cse", "hipdnn-backend-legalize")
    path = caught.value.reproducer
    assert path is not None
    assert path.parent == folder
    assert path.stat().st_mode & 0o777 == 0o600
    names = {each.name for each in folder.iterdir()}
    assert len(names) == 33
    assert {"notes.mlir", "hipdnn-ep-39.mlir", path.name} < names
    folder.chmod(0o777)
    with pytest.raises(PassError) as caught:
        run_text(BAD, "cse", "hipdnn-backend-legalize")
    assert caught.value.reproducer is None


def test_a_failing_pass_leaves_a_reproducer(tmp_path: Path) -> None:
    with pytest.raises(PassError, match="pass hipdnn-backend-legalize failed: test.unknown") as caught:
        run_text(BAD, "cse", "hipdnn-backend-legalize", options=OffloadOptions(reproducers=tmp_path / "new"))
    path = caught.value.reproducer
    assert path is not None
    assert path.parent == tmp_path / "new"
    text = path.read_text()
    assert "hipdnn-ep-opt --cse --hipdnn-backend-legalize" in text
    assert "neither an executable nor a view" in text
    with pytest.raises(PassError, match="hipdnn-backend-legalize"):
        run_text(text, "cse", "hipdnn-backend-legalize", options=OffloadOptions(reproducers=tmp_path))
    assert len(list(tmp_path.rglob("*.mlir"))) == 2


def test_a_reproducer_that_cannot_be_written_hides_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PassError, match="test.unknown") as caught:
        run_text(BAD, "hipdnn-backend-legalize", options=OffloadOptions(reproducers=tmp_path / "file"))
    assert caught.value.reproducer is None


def test_ir_that_a_pass_breaks_is_blamed_on_it(tmp_path: Path) -> None:
    def breaks(module: object, _session: Session) -> None:
        (function,) = module.body.operations  # type: ignore[attr-defined]
        first, second, *_ = function.regions[0].blocks[0].operations
        second.operation.move_before(first.operation)

    text = """func.func @main(%x: !torch.vtensor<[4],f32>) -> !torch.vtensor<[4],f32> {
      %0 = torch.aten.relu %x : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
      %1 = torch.aten.relu %0 : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
      return %1 : !torch.vtensor<[4],f32> }"""
    passes = [PASSES["cse"], pipeline.Pass("Breaks", "breaks", breaks)]
    with pytest.raises(PassError, match=r"(?s)pass breaks failed.*does not dominate") as caught:
        run_passes(parsed(text), passes, Session(options=OffloadOptions(reproducers=tmp_path)))
    assert caught.value.pass_name == "breaks"


def test_the_report_has_passes_and_graphs() -> None:
    row_major = OffloadOptions(layout=Layout.ROW_MAJOR)
    _ir, session = run_text(TWO_CONVS, engines=[FakeEngine()], options=row_major)
    assert [each.name for each in session.report.passes] == [each.argument for each in PIPELINE]
    assert [graph.operations for graph in session.report.graphs] == [("torch.aten.conv2d",)] * 2
    assert session.report.layout == "packed row-major"
    assert session.report.graphs[0].workspace_size == 16


def test_a_model_is_offloaded() -> None:
    imported = frontend.load(onnx_models.mlp())
    offloaded = run(imported, engines=[FakeEngine()])
    assert list(offloaded.graphs) == ["hipdnn_graph_0", "hipdnn_graph_1"]
    text = printer.to_text(offloaded.module)
    assert text.count("hipdnn.execute") == 2
    assert text.count("memref.alloc") == 1  # the hidden layer; the output is the caller's


def test_a_partition_compiles_nothing_and_leaves_the_module() -> None:
    imported = frontend.load(onnx_models.mlp())
    before = printer.to_text(imported.module)
    engine = FakeEngine(fail=lambda _graph: "must not be compiled")
    found = partition(imported, engines=[engine])
    assert [group.custom for group in found.groups] == [False, False]
    assert found.unclaimed == ()
    names = {node.name for node in onnx_models.mlp().graph.node}
    assert {name for group in found.groups for name in group.nodes} <= names
    assert printer.to_text(imported.module) == before


def test_a_partition_says_why() -> None:
    found = partition(frontend.load(onnx_models.mlp()), engines=[FakeEngine([])])
    assert found.groups == ()
    assert found.unclaimed
    assert all("FAKE_ENGINE" in each.reasons for each in found.unclaimed if "transpose" not in each.operation)
    found = partition(frontend.load(onnx_models.mlp()), engines=[FakeEngine([CUSTOM])])
    assert [group.custom for group in found.groups] == [True]
    assert found.unclaimed


@pytest.mark.parametrize("name", ["small_cnn", "unet", "bert_layer", "llama_block"])
def test_models_pass_through_the_pipeline(name: str) -> None:
    imported = frontend.load(getattr(onnx_models, name)())
    engine = FakeEngine()
    offloaded = run(imported, engines=[engine])
    done = {node for graph in offloaded.graphs.values() for node in graph.nodes}
    assert done
    (function,) = [op for op in offloaded.module.body.operations if op.operation.name == "func.func"]
    arguments = len(imported.inputs) + len(imported.constants) + len(imported.outputs)
    assert len(function.regions[0].blocks[0].arguments) == arguments
    assert len(engine.built) <= len(offloaded.graphs)


def test_fusions_of_a_transformer_layer() -> None:
    found = partition(frontend.load(onnx_models.bert_layer()), engines=[FakeEngine()])
    kinds = ["+".join(op.removeprefix("torch.aten.") for op in group.operations) for group in found.groups]
    assert any("matmul" in kind and "softmax.int" in kind and kind.count("matmul") == 2 for kind in kinds)
    assert any(kind.startswith("matmul+add.Tensor+div") and "erf" in kind for kind in kinds)
    assert np.mean([group.custom for group in found.groups]) == 0
