"""``hipdnn-ep-opt``: MLIR's flags, every pass alone, the walkthrough with the real engine, errors."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fusilli_plugin.cli.ep_opt import ep_opt
from hipdnn_backend.offload.pipeline import PASSES, PIPELINE
from tests.support.filecheck import check_ir

TWO_CONVS = Path(__file__).parents[2] / "data/offload/two_convs.mlir"
EpOpt = Callable[..., Result]
MAIN = "from fusilli_plugin.cli.entry import hipdnn_ep_opt; hipdnn_ep_opt()"


@pytest.fixture
def run(tmp_path: Path) -> EpOpt:
    """Runs ``hipdnn-ep-opt ARGS``; an exception that it does not handle fails the test."""

    def call(*args: object, stdin: str = "") -> Result:
        given = [str(arg) for arg in args] + ["--reproducers", str(tmp_path)]
        result = CliRunner().invoke(ep_opt, given, input=stdin)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return call


@pytest.mark.iree_cpu
def test_the_walkthrough(run: EpOpt) -> None:
    result = run(
        "--hipdnn-offload-pipeline",
        "--mlir-print-ir-after-all",
        "--mlir-print-local-scope",
        "--mlir-disable-threading",
        TWO_CONVS,
    )
    assert result.exit_code == 0, result.stderr
    headers = re.findall(r"^// -----// IR Dump After (\w+) \(([\w-]+)\) //----- //$", result.stderr, re.MULTILINE)
    assert headers == [(each.title, each.argument) for each in PIPELINE]
    check_ir(
        result.stdout,
        """
        CHECK: func.func @two_convs(%arg0: memref<1x3x32x32xf32>, {{.*}}, %arg5: memref<1x32x28x28xf32>) {
        CHECK-NEXT: [[A:%.*]] = memref.alloc() {alignment = 64 : i64} : memref<1x16x30x30xf32>
        CHECK-NEXT: hipdnn.execute graph("hipdnn_graph_0") ins(%arg0, %arg1, %arg2 :
        CHECK-NEXT: hipdnn.execute graph("hipdnn_graph_1") ins([[A]], %arg3, %arg4 :
        CHECK-NEXT: return
        """,
    )


@pytest.mark.iree_cpu
def test_passes_one_by_one_give_what_the_pipeline_gives(run: EpOpt) -> None:
    text = TWO_CONVS.read_text()
    for each in PIPELINE:
        result = run(f"--{each.argument}", stdin=text)
        assert result.exit_code == 0, (each.argument, result.stderr)
        text = result.stdout
    assert text == run("--hipdnn-offload-pipeline", TWO_CONVS).stdout


def test_the_order_on_the_command_line_counts(run: EpOpt) -> None:
    result = run("--cse", TWO_CONVS, "--mlir-print-ir-after-all", "-canonicalize", "--cse")
    assert re.findall(r"IR Dump After (\w+)", result.stderr) == ["CSE", "Canonicalize", "CSE"]


def test_without_passes_the_text_is_parsed_and_printed(run: EpOpt, tmp_path: Path) -> None:
    out = tmp_path / "out.mlir"
    assert run(TWO_CONVS, "-o", out).exit_code == 0
    assert out.read_text() == run(stdin=TWO_CONVS.read_text()).stdout


def test_help_lists_the_passes(run: EpOpt) -> None:
    text = run("--help").stdout
    assert all(f"--{name}" in text for name in (*PASSES, "hipdnn-offload-pipeline"))


def test_times_and_constants(run: EpOpt) -> None:
    literal = "func.func @f() -> !torch.vtensor<[3],f32> { %0 = torch.vtensor.literal(dense<[1.0, 2.0, 3.0]> : tensor<3xf32>) : !torch.vtensor<[3],f32> return %0 : !torch.vtensor<[3],f32> }"  # noqa: E501
    result = run("--cse", "--mlir-timing", "--mlir-elide-elementsattrs-if-larger", "2", stdin=literal)
    assert re.search(r"\d ms  cse", result.stderr)
    assert "2.0" not in result.stdout


@pytest.mark.parametrize(
    ("args", "text", "message"),
    [
        (["--cse"], "func.func @f( {", "no valid MLIR module"),
        (["--cse"], 'func.func @f() { hipdnn.execute graph("g") return }', r"line 1: hipdnn.execute: expected ins"),
        (["--nonsense"], "", "No such option"),
        (["--device", "tpu", "--hipdnn-offload"], "func.func @f() { return }", "tpu"),
        (
            ["--hipdnn-graph-to-executable"],
            'func.func @f() { torch.operator "hipdnn.graph"() : () -> () return }',
            "region",
        ),
        (["--hipdnn-offload"], "func.func @f() { cf.br ^a\n^a: return }", "one block"),
    ],
)
def test_mistakes_are_told_in_one_message(run: EpOpt, args: list[str], text: str, message: str) -> None:
    result = run(*args, stdin=text)
    assert result.exit_code == 2
    assert re.search(message, result.stderr), result.stderr
    assert "Traceback" not in result.stderr


def test_text_that_is_no_text(run: EpOpt, tmp_path: Path) -> None:
    file = tmp_path / "x.mlir"
    file.write_bytes(b"\xff\xfe")
    result = run(file)
    assert (result.exit_code, "no UTF-8" in result.stderr) == (2, True)


def test_a_failing_pass_leaves_a_reproducer_that_the_tool_reads(run: EpOpt, tmp_path: Path) -> None:
    kind = "!torch.vtensor<[4],f32>"
    text = f"func.func @f(%x: {kind}) -> {kind} {{ %0 = torch.aten.relu %x : {kind} -> {kind} return %0 : {kind} }}"
    result = run("--hipdnn-backend-legalize", stdin=text)
    assert result.exit_code == 2
    (file,) = tmp_path.glob("hipdnn-ep-*.mlir")
    assert str(file) in result.stderr.replace("\n", "")
    assert "torch.aten.relu" in run(file).stdout


@pytest.mark.parametrize(
    ("what", "status", "said"),
    [
        ("os.abort()", 2, "Error: MLIR ended the process (SIGABRT)"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", 2, "Error: MLIR ended the process (SIGSEGV)"),
        ("(os.kill(os.getppid(), 2), os.abort())", 130, ""),
        ("sys.exit(7)", 7, ""),
    ],
)
def test_the_end_of_the_process_is_told(what: str, status: int, said: str) -> None:
    code = (
        "import os, signal, sys\n"
        "from fusilli_plugin.cli import ep_opt as module\n"
        f"module.ep_opt.main = lambda **_options: {what}\n"
        "module.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr[: len(said)]) == (status, said)


def test_a_closed_standard_input_is_empty() -> None:
    command = [sys.executable, "-c", MAIN, "--cse"]
    done = subprocess.run(["sh", "-c", 'exec "$@" <&-', "sh", *command], capture_output=True, text=True, timeout=60)
    assert "Traceback" not in done.stderr
    assert done.returncode == 0, done.stderr


@pytest.mark.thorough
def test_output_that_is_lost_is_told(tmp_path: Path) -> None:
    def ended(redirection: str, *args: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", MAIN, *map(str, args)]
        shell = ["bash", "-c", f'"$@" {redirection}; exit ${{PIPESTATUS[0]}}', "sh", *command]
        return subprocess.run(shell, capture_output=True, text=True, timeout=60)

    for args in (("--help",), ("--version",), (TWO_CONVS,)):
        closed = ended(">&-", *args)
        assert (closed.returncode, closed.stderr) == (
            2, "Error: standard output is closed, so what was to be printed is lost\n"
        )  # fmt: skip
        gone = ended("| true", *args)
        assert (gone.returncode, gone.stderr) in ((141, ""), (0, ""))  # 0: it was faster than the reader's end
    written = ended(">&-", TWO_CONVS, "-o", tmp_path / "out.mlir")
    assert (written.returncode, written.stderr) == (0, "")
    assert "func.func @two_convs" in (tmp_path / "out.mlir").read_text()


def test_the_text_that_is_read_is_not_written_over(run: EpOpt, tmp_path: Path) -> None:
    path = tmp_path / "in.mlir"
    path.write_text("func.func @f() { return }")
    result = run(path, "-o", path)
    assert result.exit_code == 2
    assert f"{path} is a file that this command reads ({path}); name another" in result.stderr
    with path.open() as stdin:
        command = [sys.executable, "-c", MAIN, "-o", str(path)]
        done = subprocess.run(command, stdin=stdin, capture_output=True, text=True, timeout=60)
    assert (done.returncode, path.read_text()) == (2, "func.func @f() { return }")
    assert f"{path} is a file that this command reads (standard input)" in done.stderr
