"""What others name steers no terminal and forges no line, wherever it is printed."""

from __future__ import annotations

import ast
import json
import logging
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from fusilli_ground.texts import host_text, json_printable, printable, say
from fusilli_plugin.cli.base import echo, json_text
from fusilli_plugin.cli.main import cli
from fusilli_plugin.engine.statuses import error_text
from graph_api import DataType, Graph, GraphError, PointwiseMode
from iree_bridge import Target
from iree_bridge.compile import reproducer
from iree_bridge.compile.reproducer import Reproducer

EVIL = "a\x1b[2K\r\nfusilli: all is well\u202e\x9b\x07"
_CONTROLS = {chr(code) for code in [*range(0x09), *range(0x0B, 0x20), *range(0x7F, 0xA0)]} | {"\u202e", "\u2028"}


def is_clean(text: str) -> bool:
    return _CONTROLS.isdisjoint(text) and not any(line.startswith("fusilli: all is well") for line in text.splitlines())


def test_each_character_is_escaped_or_prints() -> None:
    for code in range(sys.maxunicode + 1):
        assert printable(chr(code), keep="").isprintable()


def test_lines_of_a_host_are_not_forged() -> None:
    assert host_text("one\ntwo\n") == "one\n    two"
    assert is_clean(host_text(EVIL))
    assert is_clean(error_text(GraphError("n", "rule", EVIL)).decode())
    assert b"\0" not in error_text(GraphError("n", "rule", "a\0b"))


def test_json_stays_json() -> None:
    document = {EVIL: [EVIL, "\U000e0001 ☃"]}
    assert json.loads(json_text(document)) == document
    assert is_clean(json_text(document))
    assert json_printable('"\U000e0001"') == '"\\udb40\\udc01"'


def test_echo_prints_one_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    echo(EVIL, "second")
    assert capsys.readouterr().out.count("\n") == 2


def graph_file(folder: Path) -> Path:
    g = Graph(EVIL, io_data_type=DataType.FLOAT)
    x = g.tensor(f"x{EVIL}", dim=(2, 3), uid=1)
    g.pointwise(PointwiseMode.RELU_FWD, x).set_output(True).set_uid(2).set_name(f"y{EVIL}")
    path = folder / "graph.json"
    path.write_text(g.validate().to_json())
    return path


@pytest.mark.iree_cpu
@pytest.mark.parametrize(
    "words",
    ["run GRAPH --device cpu --check", "compile GRAPH --target cpu -o OUT", "explain GRAPH --device cpu",
     "inspect GRAPH --target cpu", "run GRAPH --device cpu --inputs OUT", "run GRAPH --device cpu --check --json"],
)  # fmt: skip
def test_commands_print_names_of_strangers(tmp_path: Path, words: str) -> None:
    named = {"GRAPH": str(graph_file(tmp_path)), "OUT": str(tmp_path / "out")}
    done = CliRunner().invoke(cli, [named.get(word, word) for word in words.split()])
    assert done.exit_code in (0, 2), done.output
    assert done.output
    assert is_clean(done.output)


def test_the_log_of_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    from fusilli_plugin.cli.main import _Printable

    record = logging.LogRecord("fusilli_plugin", logging.WARNING, "", 1, "graph %s", (EVIL,), None)
    assert is_clean(_Printable("%(name)s: %(message)s").format(record))


def test_the_flags_of_a_strangers_reproducer(tmp_path: Path) -> None:
    failed = Reproducer(
        name=EVIL, target=Target.parse("cpu"), flags=("--good", "--evil\x1b[2K\x1b[1A"), global_flags=(),
        graph_json=None, ir="module {}", diagnostics="", versions={"emitter": EVIL},
    )  # fmt: skip
    folder = reproducer.save(tmp_path / "failures", failed, keep=1)
    done = CliRunner().invoke(cli, ["replay", "--show", str(folder)])
    assert done.exit_code == 0, done.output
    assert "--evil\\x1b[2K\\x1b[1A" in done.output
    assert is_clean(done.output)


@pytest.mark.parametrize(
    "words",
    [[EVIL], ["run", f"no such file {EVIL}"], ["run", f"--{EVIL}"], ["compile", "GRAPH", "-o", "OUT", "--target", EVIL],
     ["run", "GRAPH", "--device", EVIL], ["cache", EVIL], ["replay", EVIL]],
)  # fmt: skip
def test_what_was_typed_is_told_escaped(tmp_path: Path, words: list[str]) -> None:
    """Names of files come out of folders that others fill, by completion or a glob."""
    done = CliRunner().invoke(cli, [str(graph_file(tmp_path)) if word == "GRAPH" else word for word in words])
    assert done.exit_code == 2, done.output
    assert "all is well" in done.output
    assert is_clean(done.output)


def test_nothing_is_printed_past_the_escaping(capsys: pytest.CaptureFixture[str]) -> None:
    """Only the functions that escape print; ruff says so while one writes."""
    say(EVIL, "second")
    say(EVIL, err=True)
    printed = capsys.readouterr()
    assert (printed.out.count("\n"), printed.err.count("\n")) == (2, 1)
    assert is_clean(printed.out + printed.err)
    root = Path(__file__).resolve().parents[2]
    printing = {
        path.relative_to(root).as_posix()
        for package in ("fusilli_ground", "graph_api", "iree_bridge", "hipdnn_backend", "fusilli_plugin")
        for path in (root / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("print", "click.echo", "click.secho")
    }
    assert printing == {"fusilli_plugin/cli/base.py", "fusilli_ground/texts.py"}
