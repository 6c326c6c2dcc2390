from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from iree_bridge.compile import reproducer
from iree_bridge.compile.reproducer import Reproducer
from iree_bridge.targets.target import Target

Fusilli = Callable[..., Result]
GOOD_IR = "func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> { return %a : tensor<4xf32> }\n"
BAD_IR = "func.func @main() { oops.no_such_op }\n"


def saved(folder: Path, ir: str) -> Path:
    failed = Reproducer(
        name="conv",
        target=Target("llvm-cpu", "generic"),
        flags=("--iree-hal-target-backends=llvm-cpu", "--iree-llvmcpu-target-cpu=generic"),
        global_flags=(),
        graph_json=None,
        ir=ir,
        diagnostics="error: what was seen",
        versions={"iree-base-compiler": "3.13.0"},
    )
    path = reproducer.save(folder / "failures", failed, keep=3)
    assert path is not None
    return path


def test_show_only_shows_the_flags(fusilli: Fusilli, tmp_path: Path) -> None:
    result = fusilli("replay", saved(tmp_path, BAD_IR), "--show")
    assert result.exit_code == 0
    assert "'conv' for cpu:generic, made with iree-base-compiler 3.13.0" in result.stdout
    assert "  --iree-llvmcpu-target-cpu=generic\n" in result.stdout
    assert "iree-compile module.mlir" in result.stdout


@pytest.mark.mlir
def test_what_still_fails_exits_with_1(fusilli: Fusilli, tmp_path: Path) -> None:
    result = fusilli("replay", saved(tmp_path, BAD_IR), "--json")
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    assert document["ok"] is False
    assert "oops" in document["error"]
    assert document["flags"][0] == "--iree-hal-target-backends=llvm-cpu"


@pytest.mark.mlir
def test_what_works_now_exits_with_0(fusilli: Fusilli, tmp_path: Path) -> None:
    result = fusilli("replay", saved(tmp_path, GOOD_IR))
    assert result.exit_code == 0
    assert result.stdout.endswith("it compiles now\n")


def test_a_folder_that_others_can_write_is_refused(fusilli: Fusilli, tmp_path: Path) -> None:
    folder = saved(tmp_path, GOOD_IR)
    folder.chmod(0o777)
    result = fusilli("replay", folder)
    assert result.exit_code == 2
    assert "writable by you alone" in result.stderr


def test_a_folder_without_a_reproducer_is_refused(fusilli: Fusilli, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    result = fusilli("replay", tmp_path)
    assert result.exit_code == 2
    assert f"{tmp_path}: there is nothing to replay." in result.stderr
    assert all(name in result.stderr for name in ("versions.json", "dump.json", "model.onnx and program.json"))
    (tmp_path / "versions.json").write_text("")
    result = fusilli("replay", tmp_path)
    assert result.exit_code == 2
    assert "is no reproducer folder, or is damaged: JSONDecodeError: Expecting value" in result.stderr


def test_a_failed_compile_has_its_own_target(fusilli: Fusilli, tmp_path: Path) -> None:
    result = fusilli("replay", saved(tmp_path, GOOD_IR), "--device", "cpu")
    assert result.exit_code == 2
    assert "a failed compile is for the target that it names" in result.stderr


@pytest.mark.mlir
@pytest.mark.iree_cpu
@pytest.mark.ort
def test_a_group_of_the_provider_runs_alone(fusilli: Fusilli, tmp_path: Path) -> None:
    """What the provider's option ``dump`` writes, made here by the functions that the provider calls."""
    from fusilli_plugin.engine.engine import FusilliEngine
    from fusilli_plugin.ort_ep import dump
    from fusilli_plugin.ort_ep.offloading import compile_model
    from tests.support import onnx_models

    model = onnx_models.mlp()
    compiled = compile_model(model, [FusilliEngine("cpu")], place="cpu", on_gpu=False)
    folder = dump.write(tmp_path / "dump", model, compiled)
    assert folder is not None
    shown = fusilli("replay", folder, "--show")
    assert shown.exit_code == 0
    assert all(f"fusilli run {graph} --check" in shown.stdout for graph in folder.glob("*.bin"))
    result = fusilli("replay", folder, "--device", "cpu", "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert (document["device"], document["ok"]) == ("cpu", True)
    assert {each["graph"] for each in document["checked"]} == {*compiled.graphs, "the model's output"}
    for graph in folder.glob("*.bin"):
        alone = fusilli("run", graph, "--device", "cpu", "--check")
        assert alone.exit_code == 0, alone.output
