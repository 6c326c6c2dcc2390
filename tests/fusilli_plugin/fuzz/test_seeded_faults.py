"""Faults put into a copy of the sources, or a compiler flag: `fusilli fuzz` finds each in minutes, and reduces it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from fusilli_plugin.testing.graphs import FAMILIES
from graph_api.node import OPS
from tests.fusilli_plugin.fuzz.faulty import ROOT, fusilli
from tests.test_architecture import OURS

pytestmark = [pytest.mark.slow, pytest.mark.iree_cpu, pytest.mark.timeout(1200)]
_MINUTES = 10


class Fault(NamedTuple):
    """A text of a file and what takes its place; options of the command; operations one of which is at fault."""

    file: str
    right: str
    wrong: str
    options: tuple[str, ...] = ()
    ops: frozenset[str] = frozenset(OPS)


FAULTS = {
    # Padding before and after are exchanged; all that pads alike on both sides stays right.
    "emission": Fault(
        "iree_bridge/emit/window_frame.py",
        "(max(before, 0), max(after, 0))",
        "(max(after, 0), max(before, 0))",
        ops=frozenset({"conv_fprop", "conv_dgrad", "conv_wgrad", "resample_fwd", "resample_bwd"}),
    ),
    # What lies in the middle of a buffer is read and written at its beginning.
    "runtime": Fault(
        "iree_bridge/runtime/host/launcher.c",
        "(addresses[it->where[i].argument] + it->where[i].offset);",
        "(addresses[it->where[i].argument]);",
    ),
    # What is read of hipDNN's wire format: padding before and after are exchanged again.
    "plugin": Fault(
        "fusilli_plugin/engine/importers/conv.py",
        "pre_padding=table.pre_padding,\n        post_padding=table.post_padding,",
        "pre_padding=table.post_padding,\n        post_padding=table.pre_padding,",
        ("--engine", "{tree}/fusilli_plugin/lib/libfusilli_plugin.so"),
        frozenset({"conv_fprop", "conv_dgrad", "conv_wgrad"}),
    ),
    "compiler flag": Fault("", "", "", ("--raw", "double")),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_seeded_fault_is_found_and_made_small(name: str, tmp_path: Path) -> None:
    fault, tree = FAULTS[name], tmp_path / "tree"
    for package in OURS:
        shutil.copytree(ROOT / package, tree / package, ignore=shutil.ignore_patterns("__pycache__", "lib*.conf"))
    if fault.file:
        file = tree / fault.file
        text = file.read_text()
        assert fault.right in text
        file.write_text(text.replace(fault.right, fault.wrong))
    # Libraries of other sources are not loaded, and the plugin is told where its packages are.
    for made in (["-m", "fusilli_plugin.edge.build"], ["-c", "import fusilli_plugin; fusilli_plugin.plugin_dir()"]):
        place = os.environ | {"PYTHONPATH": str(tree)}
        subprocess.run([sys.executable, *made], cwd=tree, env=place, check=True, timeout=120)
    options = [option.format(tree=tree) for option in fault.options]
    begin = time.monotonic()
    arguments = ["fuzz", "--device", "cpu", "--budget", f"{_MINUTES}m", "--findings", "1", "--seed", "7"]
    done = fusilli(tmp_path, *arguments, *options, "-o", "out", "--json", tree=tree, timeout=1100)
    assert done.returncode == 1, done.stdout + done.stderr
    found = json.loads(done.stdout)["findings"][0]
    print(f"{name}: {time.monotonic() - begin:.0f} s, {found['source']}: {found['nodes']}, {found['text']}")
    assert len(found["nodes"]) <= 3
    assert found["kind"] in ("wrong", "not finite")
    assert fault.ops & {node.split()[0] for node in found["nodes"]}
    assert found["source"].rpartition(" ")[0] in FAMILIES
    assert fusilli(tmp_path, "replay", found["capsule"], tree=tree, timeout=300).returncode == 1
    capsule = tmp_path / found["capsule"] / "finding.json"
    capsule.write_text(capsule.read_text().replace(str(tree), str(ROOT)))  # the plugin of the right sources
    healthy = fusilli(tmp_path, "replay", found["capsule"], timeout=300)
    assert healthy.returncode == (0 if fault.file else 1), healthy.stdout
