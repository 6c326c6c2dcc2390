"""C programs that use the plugin, and folders with a graph and the buffers of one execution for them."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fusilli_plugin.edge.build import compile_shim
from fusilli_plugin.edge.install import Installation, write_sidecar
from fusilli_plugin.engine.engine import FusilliEngine
from fusilli_plugin.engine.importers import import_graph
from graph_api import Graph
from graph_api.numerics import check
from hipdnn_backend.wire import EngineConfig, decode_graph
from iree_bridge import Options
from tests.fusilli_plugin.plugin.reference import reference_text

ROOT = Path(__file__).resolve().parents[3]
HOST = Path(__file__).with_name("host")
HOST_LIBRARIES = ("-pthread", "-ldl", "-lm")
GRAPHS = ROOT / "tests" / "data" / "hipdnn_graphs"


def build_plugin(folder: Path) -> Path:
    """The shim in a folder of its own, told by its sidecar file to use this interpreter and these sources."""
    library = compile_shim(folder / "libfusilli_plugin.so")
    write_sidecar(library, Installation.of_this_interpreter())
    return library


def build_host(folder: Path) -> Path:
    """The test program, linked to libc only."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("the test host is compiled with cc, which is not here")
    program = folder / "host"
    command = [compiler, "-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-o", str(program)]
    subprocess.run([*command, *host_sources(), *HOST_LIBRARIES], check=True, capture_output=True, timeout=120)
    return program


SANITIZER_OPTIONS = {
    # Python leaves what it has at the end of a process; a process that takes all memory shall end before it has it
    "ASAN_OPTIONS": (
        "detect_leaks=0:detect_stack_use_after_return=1:max_allocation_size_mb=1000:allocator_may_return_null=1"
        ":hard_rss_limit_mb=4000"
    ),
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "PYTHONMALLOC": "malloc",  # of which sanitizers know
    # Python and ONNX Runtime are not compiled for it
    "TSAN_OPTIONS": "ignore_noninstrumented_modules=1",
}
"""What programs that sanitizers watch have in their environment."""


_SIGNS = ("Sanitizer", "runtime error")
_FAULT = {
    "address,undefined": "volatile char* at = malloc(1); at[number] = 1;",
    "thread": "pthread_t id; pthread_create(&id, 0, add, 0); add(0); pthread_join(id, 0);",
}
_PROBE = """
#include <pthread.h>
#include <stdlib.h>
static int number;
static void* add(void* of) { ++number; return of; }
int main(int count, char** words) { (void)words; number = count; if (count > 1) { FAULT } return !add; }
"""


def sanitizing_compiler(folder: Path, kinds: str = "address,undefined") -> list[str]:
    """The command of a compiler whose programs sanitizers watch; skips the test where there is none."""
    command = ["cc", f"-fsanitize={kinds}", "-fno-sanitize-recover=undefined", "-g", "-O1"]
    text = _PROBE.replace("FAULT", _FAULT[kinds]).encode()
    probe = str(folder / "probe")
    try:
        subprocess.run([*command, "-xc", "-", "-o", probe, "-pthread"], input=text, check=True, capture_output=True)
        subprocess.run([probe], check=True, capture_output=True, timeout=120)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip(f"there is no cc with sanitizers, or its programs do not run here ({kinds})")
    found = subprocess.run([probe, "fault"], capture_output=True, text=True, timeout=120, check=False)
    assert found.returncode, "the sanitizers do not see a fault"
    assert any(sign in found.stderr for sign in _SIGNS), found.stderr
    return command


def watched_environment() -> dict[str, str]:
    """For a Python that loads libraries which AddressSanitizer watches: its runtime comes first."""
    found = [
        subprocess.run(["cc", f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout.strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    return {"LD_PRELOAD": ":".join(found), **SANITIZER_OPTIONS}


def sanitized_plugin(folder: Path, compiler: list[str]) -> Path:
    """As `build_plugin`, made by a compiler of `sanitizing_compiler`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CC", shlex.join(compiler))
        return build_plugin(folder)


def assert_unfound(done: subprocess.CompletedProcess[str]) -> None:
    """Fails the test if a process that sanitizers watched failed, or they said something."""
    assert done.returncode == 0, f"{done.returncode}\n{done.stdout[-2000:]}{done.stderr[-6000:]}"
    assert not any(sign in done.stderr for sign in _SIGNS), done.stderr[-6000:]


def host_sources() -> list[str]:
    """The files of the test program."""
    return sorted(map(str, HOST.glob("*.c")))


@dataclass
class Case:
    """A folder for the host, and what its outputs must be."""

    folder: Path
    graph: Graph
    inputs: Mapping[Any, np.ndarray]

    def wrong(self) -> list[str]:
        """What differs from the float64 reference in the outputs that the host wrote."""
        outputs: dict[Any, np.ndarray] = {}
        for tensor in self.graph.arguments().outputs:
            outputs[tensor] = tensor.unpack(np.fromfile(self.folder / f"{tensor.uid}.out", np.uint8))
        return [str(found) for found in check(self.graph, dict(self.inputs), outputs) if not found.ok]


def make_case(
    folder: Path,
    data: bytes,
    seed: int = 0,
    *,
    allowed: float | None = None,
    inputs: Mapping[str, object] | None = None,
) -> Case:
    """Seeded inputs for a graph, in its layout, with their uids; what the host's own reference computes.

    Args:
        folder: made if it is not there.
        data: the graph as hipDNN hands it over.
        seed: of the inputs.
        allowed: see `reference_text`.
        inputs: values of inputs by name, instead of random ones.
    """
    graph = import_graph(decode_graph(data))
    arrays = graph.random_inputs(seed)
    for tensor, array in arrays.items():
        if inputs and tensor.name in inputs:
            array[...] = inputs[tensor.name]
    write_pack(folder, graph, arrays, allowed)
    (folder / "graph.bin").write_bytes(data)
    return Case(folder, graph, arrays)


def write_pack(folder: Path, graph: Graph, inputs: Mapping[Any, np.ndarray], allowed: float | None = None) -> None:
    """The buffers of one execution, and the graph as the host's own reference reads it."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for tensor, array in inputs.items():
        tensor.pack(array).tofile(folder / f"{tensor.uid}.in")
        lines.append(f"{tensor.uid} {tensor.nbytes} {tensor.uid}.in")
    lines += [f"{tensor.uid} {tensor.nbytes} -" for tensor in graph.arguments().outputs]
    (folder / "pack").write_text("\n".join(lines) + "\n")
    (folder / "reference").write_text(reference_text(graph, allowed))


@dataclass
class Session:
    """Plugin, host program and cache of a test; ``run`` starts the host with nothing else in its environment."""

    plugin: Path
    host: Path
    cache: Path

    def warm(self, data: bytes) -> None:
        """Compile a graph in this process, whose compiler is warm, so that a host finds it in the cache."""
        options = replace(Options.from_env(), cache_dir=self.cache, device="cpu", claim="all")
        engine = FusilliEngine("cpu", options=options)
        engine.workspace_size(data, EngineConfig(engine_id=engine.id))

    def environment(self, **more: str) -> dict[str, str]:
        """What the host gets to see."""
        return {"FUSILLI_DEVICE": "cpu", "FUSILLI_CACHE_DIR": str(self.cache), **more}

    def start(
        self, mode: str, case: Path, number: int = 0, *, scope: str = "local", plugin: Path | None = None, **env: str
    ) -> subprocess.CompletedProcess[str]:
        """Run the host to its end; the result may be a failure."""
        command = [str(self.host), str(plugin or self.plugin), scope, mode, str(case), str(number)]
        return subprocess.run(
            command, env=self.environment(**env), capture_output=True, text=True, timeout=240, check=False, cwd="/"
        )

    def run(self, mode: str, case: Path, number: int = 0, **more: Any) -> str:
        """Run the host; its output. Fails the test if the host fails."""
        done = self.start(mode, case, number, **more)
        assert done.returncode == 0, f"host {mode}: {done.returncode}\n{done.stdout}{done.stderr[-4000:]}"
        return done.stdout


def python_library() -> Path:
    """This interpreter's shared library; skips the test where there is none, since a C host cannot be served then."""
    folder, name = sysconfig.get_config_var("LIBDIR"), sysconfig.get_config_var("INSTSONAME")
    found = Path(str(folder), str(name))
    if ".so" not in found.name or not found.exists():
        pytest.skip(f"{sys.executable} has no shared library")
    return found


def environment_of_tests() -> dict[str, str]:
    """For Python hosts: this repository's packages, nothing else of the caller's."""
    return {"PYTHONPATH": str(ROOT), "PATH": os.defpath}
