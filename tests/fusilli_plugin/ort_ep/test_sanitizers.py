"""The functions that ONNX Runtime calls, under sanitizers: hostile models, faults, odd calls, threads, whole lives.

The shim and the C programs are compiled for it; Python, ONNX Runtime and compiled kernels are not, but their copies,
and what they hand to each other, are looked at as well.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import onnxruntime as ort
import pytest

from fusilli_plugin.ort_ep import abi
from tests.fusilli_plugin.ort_ep import hip_life, life
from tests.fusilli_plugin.ort_ep.models import Model, conv_relu
from tests.fusilli_plugin.plugin.hosting import (
    ROOT,
    SANITIZER_OPTIONS,
    assert_unfound,
    python_library,
    sanitized_plugin,
    sanitizing_compiler,
    watched_environment,
)
from tests.support import damage, hostile_models
from tests.support.standin_hip import standin

HOST = Path(__file__).with_name("host")
STRICT = ("-std=gnu11", "-Wall", "-Wextra", "-Werror")
# of OrtApi, used by the shim alone
SHIM_SLOTS = (51, 61, 62, 65, 90, 91, 193, 414)
GROWING = 6  # the first of `hostile_models.seeds` that take all memory in ONNX Runtime itself when they run
DAMAGED = 60
pytestmark = [pytest.mark.ort, pytest.mark.iree_cpu]


@dataclass(frozen=True)
class Watched:
    """What was compiled for sanitizers.

    Attributes:
        plugin: the shim.
        between: see ``between.c``.
        program: see ``hostile.c``.
    """

    plugin: Path
    between: Path
    program: Path

    def run(self, library: Path | str, *arguments: object, **more: str) -> subprocess.CompletedProcess[str]:
        """``hostile.c`` with a provider."""
        (runtime,) = Path(ort.__file__).parent.glob("capi/libonnxruntime.so.*")
        environment = {
            "FUSILLI_CACHE_DIR": os.environ["FUSILLI_CACHE_DIR"],
            "FUSILLI_DEVICE": "cpu",
            "FUSILLI_BETWEEN": str(self.plugin),
            **SANITIZER_OPTIONS,
            **more,
        }
        command = [str(self.program), str(runtime), str(library), *map(str, arguments)]
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, errors="replace", timeout=500, check=False,
            cwd="/",
        )  # fmt: skip


def build(folder: Path, kinds: str) -> Watched:
    python_library()
    compiler = sanitizing_compiler(folder, kinds)
    slots = {slot for slot, _ in abi._STATUS.values()} | set(SHIM_SLOTS)
    defined = {"SLOTS": slots, "EP_SLOTS": {slot for slot, _ in abi._EP_STATUS.values()}}
    lists = [f"-D{name}={' '.join(f'X({slot})' for slot in sorted(of))}" for name, of in defined.items()]
    between, program = folder / "between.so", folder / "hostile"
    for command in (
        ["-fPIC", "-shared", *lists, "-o", str(between), str(HOST / "between.c"), "-ldl"],
        ["-o", str(program), str(HOST / "hostile.c"), "-pthread", "-ldl"],
    ):
        subprocess.run([*compiler, *STRICT, *command], check=True, capture_output=True, timeout=240)
    return Watched(sanitized_plugin(folder / "lib", compiler), between, program)


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Watched:
    return build(tmp_path_factory.mktemp("address"), "address,undefined")


@pytest.fixture(scope="module")
def watched_threads(tmp_path_factory: pytest.TempPathFactory) -> Watched:
    return build(tmp_path_factory.mktemp("thread"), "thread")


def relu(folder: Path) -> Path:
    model = Model("relu")
    path = folder / "relu.onnx"
    path.write_bytes(model.output(model.add("Relu", model.input("x", 2, 3))).data())
    return path


def models(folder: Path) -> list[Path]:
    """Models with bodies, functions, scalars, sequences; of dims that are not known; of more dims than there may be."""
    (folder / "weights.bin").write_bytes(bytes(range(256)) * 256)
    datas = [*hostile_models.seeds()[:GROWING], conv_relu(batch="n").data()]
    for rank in (0, 8, 64, 65, 70):
        for first in (2, "n")[: max(rank, 1)]:
            model = Model("ranks")
            datas.append(model.output(model.add("Relu", model.input("x", *[first, *[1] * (rank - 1)][:rank]))).data())
    return [relu(folder), *written(folder, datas)]


def written(folder: Path, datas: Sequence[bytes]) -> list[Path]:
    paths = [folder / f"{number}.onnx" for number, _ in enumerate(datas)]
    for path, data in zip(paths, datas, strict=True):
        path.write_bytes(data)
    return paths


def counts(done: subprocess.CompletedProcess[str]) -> dict[str, int]:
    words = done.stdout.splitlines()[-1].split()
    return {name: int(value) for name, value in zip(words[::2], words[1::2], strict=True)}


@pytest.mark.thorough
def test_models_that_mean_no_good(watched: Watched, tmp_path: Path) -> None:
    """Four threads make sessions, two run each; as many of both as without the provider."""
    given = models(tmp_path)
    plain, done = (watched.run(library, "models", 4, *given) for library in ("-", watched.plugin))
    assert_unfound(done)
    assert counts(done) == counts(plain)
    assert counts(done)["runs"] >= 6 * (len(given) - 2)


def test_odd_calls(watched: Watched, tmp_path: Path) -> None:
    """What ONNX Runtime does not do; ``between.c`` ends the process at an answer that it does not expect."""
    done = watched.run(watched.between, "models", 1, relu(tmp_path), FUSILLI_ODD="1")
    assert_unfound(done)
    assert counts(done) == {"sessions": 1, "runs": 6, "failures": 0}


@pytest.mark.thorough
@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.slow), 20])
def test_calls_to_onnx_runtime_that_fail(watched: Watched, tmp_path: Path, step: int) -> None:
    """Each of them, one in each life of a session: the host gets a status, and the next session is well."""
    done = watched.run(watched.between, "faults", relu(tmp_path), step)
    assert_unfound(done)
    found = counts(done)
    assert found["calls"] > 50
    assert found["failures"] >= found["calls"] // step // 4


@pytest.mark.slow
def test_damaged_models(watched: Watched, tmp_path: Path) -> None:
    """What ONNX Runtime bears without the provider, it bears with it."""
    source = random.Random(random.SystemRandom().randrange(2**32))
    seeds = [path.read_bytes() for path in models(tmp_path)]
    left = written(tmp_path, [damage.onnx_model(source, source.choice(seeds)) for _ in range(DAMAGED)])
    while left:
        done = watched.run("-", "models", 1, *left)
        if done.returncode == 0:
            break
        told = [line.removeprefix("model ") for line in done.stderr.splitlines() if line.startswith("model ")]
        left.remove(Path(told[-1]))
    assert len(left) > DAMAGED // 2
    found = watched.run(watched.plugin, "models", 2, *left)
    assert_unfound(found)
    assert counts(found)["sessions"] == counts(done)["sessions"]


def _lives() -> list[str]:
    return [name for name in life.SCENARIOS if name not in ("flat_memory", "library_by_hand")]


def preloaded(watched: Watched, module: str, *arguments: str) -> None:
    """Run a module in a Python that has the sanitizers' runtime."""
    environment = {
        "PATH": os.defpath,
        "FUSILLI_CACHE_DIR": os.environ["FUSILLI_CACHE_DIR"],
        "FUSILLI_CLAIM": "all",
        **watched_environment(),
    }
    words = ["-m", "tests.fusilli_plugin.ort_ep.preloaded", str(watched.plugin), module, *arguments]
    done = subprocess.run(
        [sys.executable, *words], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500, check=False
    )
    assert_unfound(done)
    assert done.stdout.endswith("fine\n")


@pytest.mark.slow
@pytest.mark.parametrize("scenario", _lives())
def test_a_life_in_python(watched: Watched, scenario: str) -> None:
    preloaded(watched, life.__name__, scenario)


@pytest.mark.slow
@pytest.mark.mlir
@pytest.mark.parametrize("scenario", [name for name in hip_life.SCENARIOS if name != "devices"])
def test_a_life_on_a_gpu(watched: Watched, tmp_path: Path, scenario: str) -> None:
    """Allocators, copies, streams and events, on a stand-in HIP runtime."""
    preloaded(watched, hip_life.__name__, scenario, str(standin.build(tmp_path)))


@pytest.mark.slow
def test_threads(watched_threads: Watched, tmp_path: Path) -> None:
    """ThreadSanitizer sees the shim's own data and the locks of all; not what else is not compiled for it."""
    assert_unfound(watched_threads.run(watched_threads.plugin, "models", 8, *models(tmp_path)))
    assert_unfound(watched_threads.run(watched_threads.between, "faults", relu(tmp_path), 10))
