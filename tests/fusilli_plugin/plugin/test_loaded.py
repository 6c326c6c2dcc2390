"""What else is loaded decides what is claimed and how batchnorm is read. Each case has a process of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fusilli_plugin.engine.importers import Reading
from fusilli_plugin.errors import BadParamError
from tests.fusilli_plugin.plugin.hosting import GRAPHS, ROOT, Session, build_plugin
from tests.support.tiny_plugin import compile_tiny_plugin

pytestmark = pytest.mark.iree_cpu

CLAIMS = """
import ctypes, logging, pathlib, sys
from dataclasses import replace
from fusilli_plugin.engine.other_plugins import company
from fusilli_plugin.engine.engine import FusilliEngine
from iree_bridge import Options
logging.basicConfig(format="LOG %(message)s", stream=sys.stdout, level="INFO")
graphs, reading, *plugins = sys.argv[1:]
libraries = [ctypes.CDLL(path) for path in plugins]
options = replace(Options.from_env(), claim="fallback", wire_reading=tuple(filter(None, reading.split(","))))
engine = FusilliEngine("cpu", options=options)
for _ in range(2):
    for path in sorted(pathlib.Path(graphs).glob("*.bin")):
        print(path.stem, engine.support(path.read_bytes()).rule or "yes")
data = pathlib.Path(graphs, "bn_inference.bin").read_bytes()
print("read as", engine._graphs.peek(data).graph.nodes[0].op)
"""


def claims(cache: Path, *plugins: Path, reading: str = "") -> str:
    environment = {"PYTHONPATH": str(ROOT), "FUSILLI_CACHE_DIR": str(cache)}
    command = [sys.executable, "-c", CLAIMS, str(GRAPHS), reading, *map(str, plugins)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_alone_all_is_claimed_and_told_once(tmp_path: Path) -> None:
    text = claims(tmp_path / "cache")
    assert " claim\n" not in text
    assert text.count(" yes\n") == 2 * len(list(GRAPHS.glob("*.bin")))
    assert (
        text.count("LOG FUSILLI_ENGINE on cpu: no other engine plugin is loaded, so all graphs are claimed; code is ")
        == 1
    )
    assert text.count("LOG inv_variance of batchnorm inference is read as 1 / sqrt(variance + epsilon)") == 1
    assert "read as batchnorm_inference\n" in text


def test_our_own_plugin_is_no_company(tmp_path: Path) -> None:
    ours = build_plugin(tmp_path / "lib")
    assert " claim\n" not in claims(tmp_path / "cache", ours)


def test_beside_others_graphs_are_left_to_them(tmp_path: Path) -> None:
    text = claims(tmp_path / "cache", compile_tiny_plugin(tmp_path / "libother.so", "OTHER_ENGINE"))
    assert "conv claim\n" in text
    assert f"graphs that other engine plugins may take are left to them: {tmp_path}/libother.so (OTHER_ENGINE)" in text
    assert "read as batchnorm_inference\n" in text


@pytest.mark.a_few(
    "batchnorm-inverse-batchnorm_inference-name of the engine",
    "batchnorm-variance-batchnorm_inference_variance_ext-name of the file",
)
@pytest.mark.parametrize("how", ["name of the engine", "name of the file"])
@pytest.mark.parametrize(
    ("reading", "op"),
    [
        ("", "batchnorm_inference_variance_ext"),
        ("batchnorm-inverse", "batchnorm_inference"),
        ("batchnorm-variance", "batchnorm_inference_variance_ext"),
    ],
)
def test_beside_miopen_batchnorm_is_read_as_it_reads_it(tmp_path: Path, how: str, reading: str, op: str) -> None:
    file, name = ("libx.so", "MIOPEN_ENGINE") if how == "name of the engine" else ("libmiopen_plugin.so", "X_ENGINE")
    text = claims(tmp_path / "cache", compile_tiny_plugin(tmp_path / file, name), reading=reading)
    assert f"read as {op}\n" in text
    assert ("MIOpen is loaded" if not reading else "FUSILLI_WIRE_READING says so") in text


def test_without_miopen_the_reading_is_what_was_asked_for(tmp_path: Path) -> None:
    assert "read as batchnorm_inference_variance_ext\n" in claims(tmp_path / "cache", reading="batchnorm-variance")
    with pytest.raises(BadParamError, match="contradict each other"):
        Reading.parse(["batchnorm-variance", "batchnorm-inverse"])


LINE = r"\[plugin {level}\] \[\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{{3}}\] \[tid \d+\] \[{name}\] \[fusilli_plugin\] \S"


def test_log_lines_have_the_form_of_hipdnns_own(
    session: Session, case: Callable[[str], object], tmp_path: Path
) -> None:
    damaged = tmp_path / "damaged"
    each: Any = case("pw_relu")
    each.folder.rename(damaged)
    (damaged / "graph.bin").write_bytes(b"\0" * 64)
    done = session.start("walk", damaged, HOST_LOG_LEVEL="0")
    lines = [line for line in done.stderr.splitlines() if line.startswith("[plugin ")]
    assert lines
    for line in lines:
        assert re.match(LINE.format(level=0, name="info"), line) or re.match(
            LINE.format(level=1, name="warning"), line
        ), line
    declined = [line for line in lines if "a graph is declined" in line]
    assert "[warning]" in declined[0]  # seen without raising the level, once
    assert all("[info]" in line for line in declined[1:])


@pytest.mark.parametrize(
    ("variable", "value"),
    [("FUSILLI_CLAIM", "bogus"), ("FUSILLI_WIRE_READING", "bogus"), ("FUSILLI_DEVICE", "bogus"),
     ("FUSILLI_COMPILE", "bogus"), ("FUSILLI_CACHE_SIZE", "bogus")],
)  # fmt: skip
def test_wrong_values_of_variables_are_told_at_one_level(
    session: Session, case: Callable[[str], object], variable: str, value: str
) -> None:
    each: Any = case("pw_relu")
    settings: dict[str, Any] = {variable: value}
    done = session.start("walk", each.folder, **settings)
    lines = [line for line in done.stderr.splitlines() if value in line and line.startswith("[plugin ")]
    assert lines
    assert all("[error]" in line and "serves no graph in this process" in line for line in lines), lines
