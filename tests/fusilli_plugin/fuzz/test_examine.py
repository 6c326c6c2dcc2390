"""The comparisons with the real compiler: another one that is wrong, one that refuses, and compiles alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from fusilli_plugin.fuzz import capsules
from fusilli_plugin.fuzz.cases import Case
from fusilli_plugin.fuzz.examine import Examiner, Setting, Verdict
from graph_api import DataType, FusilliError, Graph, GraphError, PointwiseMode
from iree_bridge import Options


def product() -> Case:
    g = Graph("product", io_data_type=DataType.DOUBLE)
    g.pointwise(PointwiseMode.MUL, g.tensor("a", dim=(3, 5)), g.tensor("b", dim=(3, 5))).set_output(True)
    return Case.of(g.validate())


def compiler(folder: Path, more: str) -> str:
    """This environment's program with one more flag."""
    import iree.compiler

    program = Path(iree.compiler.__file__).parent / "_mlir_libs" / "iree-compile"
    script = folder / "iree-compile"
    script.write_text(f'#!/bin/sh\nexec "{program}" "$@" {more}\n')
    script.chmod(0o755)
    return str(script)


@pytest.mark.a_few("--iree-input-demote-f64-to-f32=true-wrong", "--no-such-flag-compile refused")
@pytest.mark.iree_cpu
@pytest.mark.parametrize(
    ("more", "kind"),
    [
        ("--iree-opt-level=O1", ""),
        ("--iree-input-demote-f64-to-f32=true", "wrong"),
        ("--no-such-flag", "compile refused"),
    ],
)
def test_another_compiler_has_to_be_right_too(more: str, kind: str, tmp_path: Path) -> None:
    setting = Setting(device="cpu", against=compiler(tmp_path, more))
    found = Examiner(setting, Options.from_env()).examine(product())
    assert (found.check, found.kind) == (("compiler", kind) if kind else ("", "")), found.text


@pytest.mark.iree_cpu
def test_it_may_take_the_place_of_ours(tmp_path: Path) -> None:
    setting = Setting(device="cpu", compiler=compiler(tmp_path, "--iree-input-demote-f64-to-f32=true"))
    found = Examiner(setting, Options.from_env()).examine(product())
    assert (found.check, found.kind) in (("reference", "wrong"), ("reference", "not finite"))


@pytest.mark.mlir
def test_compiling_alone() -> None:
    assert Examiner(Setting(target="gfx942"), Options.from_env()).examine(product()) == Verdict("right")
    flags = Setting(target="gfx942", flags=("--iree-no-such-flag",))
    found = Examiner(flags, Options.from_env()).examine(product())
    assert (found.outcome, found.check) == ("failed", "run")
    assert found.kind.startswith("compile")


def test_a_finding_that_others_can_write_to_is_refused(tmp_path: Path) -> None:
    """It names programs."""
    folder = tmp_path / "finding"
    capsules.begin(folder, product(), Setting(device="cpu", compiler="/bin/true"), Verdict("failed", "run", "hang"))
    assert capsules.read_finding(folder).setting.compiler == "/bin/true"
    (folder / capsules.FINDING).chmod(0o666)
    with pytest.raises(FusilliError, match="writable by you alone"):
        capsules.read_finding(folder)
    (folder / capsules.FINDING).chmod(0o600)
    (folder / capsules.FINDING).write_text('{"format": "fusilli-finding", "setting": 3}')
    with pytest.raises(GraphError, match="is damaged"):
        capsules.read_finding(folder)
