"""A C program without Python that runs a session with the provider, against the library inside onnxruntime's wheel."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import onnxruntime as ort
import pytest

from tests.fusilli_plugin.ort_ep.models import Model
from tests.fusilli_plugin.plugin.hosting import build_plugin, python_library

HOST = Path(__file__).with_name("host") / "session.c"
pytestmark = [pytest.mark.ort, pytest.mark.iree_cpu]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("the test host is compiled with cc, which is not here")
    made = tmp_path_factory.mktemp("host") / "session"
    flags = ["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([compiler, *flags, "-o", str(made), str(HOST), "-ldl"], check=True, capture_output=True, timeout=120)
    return made


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Path:
    python_library()
    return build_plugin(tmp_path_factory.mktemp("provider"))


def run(program: Path, provider: Path, model: Path, rounds: int, **more: str) -> subprocess.CompletedProcess[str]:
    (library,) = Path(ort.__file__).parent.glob("capi/libonnxruntime.so.*")
    environment = {"FUSILLI_CACHE_DIR": os.environ["FUSILLI_CACHE_DIR"], **more}
    command = [str(program), str(library), str(provider), str(model), str(rounds)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False, cwd="/")


def test_a_c_program_runs_a_session_and_registers_twice(program: Path, provider: Path, tmp_path: Path) -> None:
    model = Model("relu_of_c")
    path = tmp_path / "model.onnx"
    path.write_bytes(model.output(model.add("Relu", model.input("x", 2, 3))).data())
    done = run(program, provider, path, 2, FUSILLI_DEVICE="cpu")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines.count("0 0 0 1 2 3") == 4
    assert lines.count("device of HipDNNExecutionProvider") == 2


def test_without_a_device_the_program_is_told_so(program: Path, provider: Path, tmp_path: Path) -> None:
    done = run(program, provider, tmp_path / "none.onnx", 1)
    assert (done.returncode, done.stderr.strip()) == (4, "the provider has no device")


def test_a_library_that_cannot_start_python_says_why(program: Path, provider: Path, tmp_path: Path) -> None:
    done = run(
        program, provider, tmp_path / "none.onnx", 1, FUSILLI_PYTHON="/nowhere/python", FUSILLI_LIBPYTHON="/no/lib"
    )
    assert done.returncode == 3
    assert "HipDNNExecutionProvider: libpython cannot be loaded" in done.stderr


def test_an_environment_variable_that_means_nothing_is_an_error(program: Path, provider: Path, tmp_path: Path) -> None:
    done = run(program, provider, tmp_path / "none.onnx", 1, FUSILLI_DEVICE="toaster")
    assert done.returncode == 3
    assert "toaster" in done.stderr
