"""What the pages tell readers to run is run, and prints what they say; the rest is listed here with its reason."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import click
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from fusilli_plugin.checks.device_tests import DeviceTest
from fusilli_plugin.checks.roofline import Ceiling, Roofline
from fusilli_plugin.checks.selftest import quick
from fusilli_plugin.checks.selftest_cases import Result, read_cases
from fusilli_plugin.checks.selftest_report import make_report
from fusilli_plugin.cli.ep_opt import ep_opt
from fusilli_plugin.cli.main import cli
from graph_api import DataType, Graph, PointwiseMode
from iree_bridge import Device
from iree_bridge.targets.target import Target
from iree_bridge.targets.variants import candidates
from tests.support.cudnn_files import cudnn_document
from tests.support.pages import PAGES, ROOT, Block, Command, blocks, commands, spans

# Left out, with the reason; what of it is a command of ours has to be known to the command line all the same.
NOT_RUN = {
    "make demo": "fetches a model",
    "make test": "this test is a part of it",
    "fusilli demo --model rapidocr_onnxruntime-1.4.4-py3-none-any.whl": "fetches a model; make demo is it",
    "fusilli install-plugin": "needs hipDNN",
    "fusilli selftest --device hip": "needs an AMD GPU",
    "fusilli selftest --device cpu -o report.json": "minutes; tests/test_wheel.py runs it; report.json is there",
    "fusilli selftest --emulate gfx942": "minutes; test_commands.py of the emulator has two of its graphs",
    "FUSILLI_EXTRA_COMPILER_FLAGS=--iree-opt-level=O2 fusilli selftest --emulate gfx950": "minutes, as the one above",
    "FUSILLI_PYTHON=/opt/iree/bin/python fusilli selftest --emulate gfx942": "needs another build of IREE",
    "fusilli check --emulate gfx942 --filter matmul": "a minute; test_commands.py of the emulator has two of its cases",
    "pytest --fusilli-device cpu tests/graphs": "tests/fusilli_plugin/testing/test_pytest_plugin.py has such sessions",
    "fusilli fuzz --device cpu --budget 10m": "ten minutes; the page about it has ten seconds",
    "fusilli fuzz --target gfx942 --jobs 8 --budget 1h -o findings": "an hour",
    "fusilli fuzz --emulate gfx942 --budget 4h --jobs 8 -o findings-gfx942": "hours",
    "fusilli fuzz --target gfx950 --budget 1h": "an hour",
    "fusilli fuzz --device hip --engine ./libother_plugin.so": "needs an AMD GPU and another engine",
    "fusilli fuzz --device cpu --iree-compile old/iree-compile --against new/iree-compile": "needs two compilers",
    "fusilli fuzz --emulate gfx942 --raw padding,whole-sums": "ten minutes; tests/fusilli_plugin/fuzz has others",
    "fusilli conformance /opt/rocm/lib/hipdnn_plugins/engines/libmiopen_plugin.so --junit miopen.xml": "needs AMD's",
    "fusilli reduce graph.json --emulate gfx942 -o small": "the graph is right; the page about it has one that runs",
    "fusilli bench --suite models --threads 1,2 --busy 0,1 --markdown models.md": "minutes; tests of the bench do",
    'fusilli bench --suite gfx --target gfx942 --filter "RMS norm" --html gfx.html': "tests of the bench have another",
    "fusilli bench --suite gpu --device hip --json gpu.json": "needs an AMD GPU; tests run it on the CPU",
    "fusilli check --suite fusion --device cpu": "minutes; tests/fusilli_plugin/checks/test_fusion.py has its cases",
}
RUN = [page for page in PAGES if any(block.language in ("sh", "python") for block in blocks(page))]
README_EXAMPLE = "g.validate()  # infers dims, strides and data types, then freezes the graph"
PROGRAMS = ("fusilli", "hipdnn-ep-opt", "make", "pip", "python", "pytest", "export")


# ---- what a reader has at hand -------------------------------------------------------------------------------------


def _graph() -> Graph:
    g = Graph("conv_bias_relu", io_data_type=DataType.HALF, compute_data_type=DataType.FLOAT)
    x = g.tensor("x", dim=(2, 16, 14, 14), layout="NHWC")
    w = g.tensor("w", dim=(16, 16, 3, 3), layout="NHWC")
    b = g.tensor("b", dim=(1, 16, 1, 1))
    y = g.conv_fprop(x, w, padding=(1, 1), name="conv")
    y = g.pointwise(PointwiseMode.ADD, y, b, name="bias")
    g.pointwise(PointwiseMode.RELU_FWD, y, name="act").set_output(True)
    return g.validate()


def _model() -> onnx.ModelProto:
    random = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(random.standard_normal(dims).astype(np.float32), name)
        for name, dims in (("w", (8, 3, 3, 3)), ("b", (8,)))
    ]
    nodes = [
        helper.make_node("Conv", ["input", "w", "b"], ["c"], name="conv", pads=[1] * 4),
        helper.make_node("Relu", ["c"], ["r"], name="relu"),
        helper.make_node("GlobalAveragePool", ["r"], ["output"], name="pool"),
    ]
    given = helper.make_tensor_value_info("input", TensorProto.FLOAT, ["batch", 3, 16, 16])
    made = helper.make_tensor_value_info("output", TensorProto.FLOAT, ["batch", 8, 1, 1])
    graph = helper.make_graph(nodes, "small", [given], [made], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def _report() -> dict[str, object]:
    """As `fusilli selftest` writes it."""
    results = [Result(case.name, ("pointwise",), ("FLOAT",), "right") for case in read_cases()]
    tests = [DeviceTest("stream order", "right", "2 streams of 64 executions")]
    roofline = Roofline(Ceiling(2e10, {"FLOAT": 1e11}, "measured"), ())
    return make_report(Device.parse("cpu"), "", results, tests, roofline, 100.0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """graph.json, model.onnx, report.json, a folder of logged graphs, and the commands of an installed environment."""
    work, programs = tmp_path / "work", tmp_path / "bin"
    for each in (work, programs, work / "graphs", tmp_path / "cache"):
        each.mkdir(mode=0o700)
    for path in (work / "graph.json", work / "graphs/conv.json"):
        path.write_text(_graph().to_json())
    (work / "cudnn_graph.json").write_text(json.dumps(cudnn_document(_graph())))
    onnx.save(_model(), work / "model.onnx")
    (work / "report.json").write_text(json.dumps(_report()))
    (work / "tests").symlink_to(ROOT / "tests")
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    for name, where in scripts.items():
        module, function = where.split(":")
        script = programs / name
        script.write_text(f"#!{sys.executable}\nfrom {module} import {function}\n{function}()\n")
        script.chmod(0o755)
    return tmp_path


def _environment(folder: Path) -> dict[str, str]:
    return {
        "PATH": f"{folder / 'bin'}:{Path(sys.executable).parent}:/usr/bin:/bin",
        "HOME": str(folder),
        "PYTHONPATH": str(ROOT),
        "LC_ALL": "C.UTF-8",
        "FUSILLI_CACHE_DIR": str(folder / "cache"),
        "FUSILLI_DEVICE": "cpu",
        "NO_COLOR": "1",
    } | {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}


# ---- the pages -----------------------------------------------------------------------------------------------------


def _steps(page: Path) -> list[dict[str, object]]:
    """What is to be run, each with the exit code that the page announces, and what it should print."""
    steps: list[dict[str, object]] = []
    last: Block | None = None
    for block in blocks(page):
        if block.language == "sh":
            steps += [
                {"language": "sh", "text": each.text, "code": each.code, "block": block.line}
                for each in commands(block)
                if each.text not in NOT_RUN
            ]
            last = block
        elif block.language == "python" and README_EXAMPLE not in block.text:  # tests/test_wheel.py runs that one
            steps.append({"language": "python", "text": block.text, "code": 0, "block": block.line})
        elif block.language == "text":
            assert last is not None, f"{page.name}:{block.line}: output without a command"
            steps[-1]["printed"] = block.text
    return steps


def _flat(text: str) -> list[str]:
    """Lines without numbers, runs of spaces and which form of a graph was the fastest here."""
    plain = re.sub(_forms(), "FORM", re.sub(r"\d+(\.\d+)?(e[+-]?\d+)?", "#", text))
    return [" ".join(line.split()) for line in plain.splitlines()]


@cache
def _forms() -> str:
    """A pattern of the names of the forms that the pages' convolution may be measured in on this processor."""
    names = [form.name for form in candidates(quick(), Target.parse("cpu"))]
    return r"\b(" + "|".join(map(re.escape, sorted(names, key=len, reverse=True))) + r")\b(?=\s+#)"


@pytest.mark.a_few("README.md", "CONTRIBUTING.md", "docs/reports.md")
@pytest.mark.iree_cpu
@pytest.mark.ort
@pytest.mark.parametrize("page", RUN, ids=[str(page.relative_to(ROOT)) for page in RUN])
def test_a_page_does_what_it_says(page: Path, folder: Path) -> None:
    steps = _steps(page)
    if not steps:
        return
    (folder / "steps.json").write_text(json.dumps(steps))
    runner = ROOT / "tests/support/page_runner.py"
    done = subprocess.run(
        [sys.executable, runner, folder / "steps.json"],
        cwd=folder / "work", env=_environment(folder), capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    ended = json.loads(done.stdout)
    for step in ended:
        assert step["ended"] == step["code"], f"{page.name}:{step['block']}: {step['text']}\n{step['said'][-2000:]}"
    assert len(ended) == len(steps)
    for step in ended:
        before = [line for each in ended if each["block"] == step["block"] for line in _flat(each["said"])]
        missing = [line for line in _flat(step.get("printed", "")) if line not in before]
        assert not missing, f"{page.name}:{step['block']}: not printed: {missing}, but: {before}"


# ---- what is not run -----------------------------------------------------------------------------------------------


def _shown() -> list[tuple[Path, Command]]:
    return [
        (page, each) for page in PAGES for block in blocks(page) if block.language == "sh" for each in commands(block)
    ]


def test_the_list_of_what_is_not_run_is_current() -> None:
    shown = {each.text for _, each in _shown()}
    assert not set(NOT_RUN) - shown


def test_commands_stand_in_blocks_that_are_run() -> None:
    for page in PAGES:
        for block in blocks(page):
            if block.language not in ("sh", "text"):
                first = [line.split()[0] for line in block.text.splitlines() if line.split()]
                found = sorted(set(first) & set(PROGRAMS))
                assert not found, f"{page.name}:{block.line}: commands in a block of '{block.language}': {found}"


def test_make_knows_its_targets() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([\w-]+):", makefile, re.MULTILINE))
    said = [(page, each.text) for page, each in _shown()] + [(page, span) for page in PAGES for span in spans(page)]
    for page, text in said:
        if text.startswith("make "):
            assert text.split()[1] in targets, f"{page.name}: {text}"


def _command_of(words: list[str]) -> tuple[click.Command, list[str]]:
    """The click command that words name, and what is left of them."""
    command: click.Command = {"fusilli": cli, "hipdnn-ep-opt": ep_opt}[words[0]]
    rest = words[1:]
    context = click.Context(command)
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        found = command.get_command(context, rest[0])
        assert found is not None, f"no command {rest[0]}"
        command, rest = found, rest[1:]
    return command, rest


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_commands_and_options_exist(page: Path) -> None:
    """Also of what is only mentioned."""
    typed = [each.text for where, each in _shown() if where == page] + spans(page)
    for text in typed:
        start = re.search(r"(?:^|\s)(fusilli [a-z-]+.*)", text)
        if start is None or "..." in text:
            continue
        command, rest = _command_of(shlex.split(start[1]))
        known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
        unknown = {word.partition("=")[0] for word in rest if re.match(r"--[a-z]", word)} - known - {"--help"}
        assert not unknown, f"{page.name}: `{text}`: no option {sorted(unknown)}"


def _subcommands(command: click.Command, name: str) -> list[tuple[str, click.Command]]:
    found = [(name, command)]
    if isinstance(command, click.Group):
        context = click.Context(command)
        for each in command.list_commands(context):
            child = command.get_command(context, each)
            assert child is not None
            found += _subcommands(child, f"{name} {each}")
    return found


def test_the_examples_of_help_texts_exist() -> None:
    seen = 0
    for name, command in _subcommands(cli, "fusilli"):
        for line in (command.help or "").partition("Examples:")[2].splitlines():
            start = re.search(r"(?:^|\s|\()(fusilli [a-z-].*?)(?:\)|&&|$)", line)
            if start is None:
                continue
            of, rest = _command_of(shlex.split(start[1]))
            known = {each for parameter in of.params for each in (*parameter.opts, *parameter.secondary_opts)}
            unknown = {word.partition("=")[0] for word in rest if re.match(r"--?[a-z]", word)} - known
            assert not unknown, f"{name} --help: `{start[1]}`: no option {sorted(unknown)}"
            seen += of is command
    assert seen >= len(cli.list_commands(click.Context(cli)))


def test_every_subcommand_is_documented() -> None:
    text = (ROOT / "docs/command_line.md").read_text("utf-8")
    documented = re.findall(r"^### `fusilli ([\w-]+)`$", text, re.MULTILINE)
    assert sorted(documented) == sorted(cli.list_commands(click.Context(cli)))
