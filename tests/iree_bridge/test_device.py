"""Device names, and HIP devices on a stand-in for the HIP runtime."""

from __future__ import annotations

import ctypes.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from graph_api.errors import ExecutionError
from iree_bridge.devices import device as device_module
from iree_bridge.devices.device import Device, set_task_threads
from tests.support import vmfb
from tests.support.standin_hip import standin

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("text", "kind", "index", "name"),
    [
        ("cpu", "cpu", 0, "cpu"),
        ("CPU", "cpu", 0, "cpu"),
        ("cpu-sync", "cpu", 0, "cpu-sync"),
        ("cpu-task", "cpu", 0, "cpu-task"),
        ("hip", "hip", 0, "hip:0"),
        (" hip:1 ", "hip", 1, "hip:1"),
        ("cuda:0", "cuda", 0, "cuda:0"),
        ("hip-iree", "hip", 0, "hip-iree:0"),
        ("hip-iree:1", "hip", 1, "hip-iree:1"),
    ],
)
def test_names(text: str, kind: str, index: int, name: str) -> None:
    device = Device.parse(text)
    assert (device.kind, device.index, str(device), device.stream) == (kind, index, name, None)
    assert Device.parse(str(device)) == device
    assert device.is_gpu == (kind != "cpu")


@pytest.mark.parametrize(
    "text", ["", "gpu", "hip:", "hip:-1", "hip:x", "cpu:1", "cuda:0:1", "hip:9999", "cuda-iree", None, 3]
)
def test_unknown_names_are_refused(text: str) -> None:
    with pytest.raises(ExecutionError, match="is unknown.*; use 'cpu', 'hip'|the CPU is one device"):
        Device.parse(text)


@pytest.mark.parametrize(
    ("text", "hint"), [("cpuu", " (did you mean cpu?)"), ("HIPP:1", " (did you mean hip?)"), ("gpu", "")]
)
def test_the_nearest_name_is_offered(text: str, hint: str) -> None:
    with pytest.raises(ExecutionError, match=re.escape(f"device {text!r} is unknown{hint}; use")):
        Device.parse(text)


@pytest.mark.parametrize("stream", [-1, 2**64, 1.5, "7", True])
def test_streams_are_checked_before_iree_sees_them(stream: int) -> None:
    with pytest.raises(ExecutionError, match=r"is no stream handle; pass it as a non-negative integer"):
        Device.parse("hip", stream=stream)


def test_the_cpu_has_no_streams() -> None:
    with pytest.raises(ExecutionError, match="device 'cpu' has no streams, got stream=7; leave stream=None"):
        Device.parse("cpu").on_stream(7)
    assert Device.parse("hip").on_stream(7) == Device.parse("hip", stream=7)
    assert Device.parse("hip", stream=7).on_stream(None) == Device.parse("hip")


def test_the_cpu_target_is_this_host() -> None:
    device = Device.parse("cpu")
    assert (device.arch, str(device.target)) == ("host", "cpu")
    assert device.open() is device.open()


@pytest.mark.parametrize("count", [0, -1, True, 1.5])
def test_the_number_of_task_threads_is_checked(count: int) -> None:
    with pytest.raises(ExecutionError, match="must be a positive integer"):
        set_task_threads(count)


def test_task_threads_can_be_set_until_the_pool_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    flags: list[str] = []
    monkeypatch.setattr(device_module, "_state", device_module._Process())
    monkeypatch.setattr(device_module, "parse_flags", lambda *given: flags.extend(given))
    set_task_threads(3)
    set_task_threads(2)
    Device.parse("cpu-task").open()
    assert flags == ["--task_topology_max_group_count=2", "--task_worker_stack_size=1048576"]
    set_task_threads(2)
    with pytest.raises(ExecutionError, match="runs with 2 threads already; ask for 5 before its first use"):
        set_task_threads(5)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return standin.build(tmp_path_factory.mktemp("hip") / "some where")


def scenario(name: str, library: Path, **environment: str) -> None:
    code = vmfb.compiled(vmfb.ADD, "gfx942")
    command = [sys.executable, "-m", "tests.support.standin_hip.scenarios", name, str(library), str(code)]
    environ = {key: value for key, value in os.environ.items() if key not in ("LD_LIBRARY_PATH", "ROCM_PATH")}
    done = subprocess.run(
        command, cwd=ROOT, env=environ | environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert done.stdout == "fine\n"


@pytest.mark.a_few("failures", "forked")
@pytest.mark.iree_cpu
@pytest.mark.parametrize(
    "name", ["one_library", "streams", "arrays", "dlpack", "misaligned", "failures", "bounded", "forked"]
)
def test_hip(name: str, library: Path) -> None:
    scenario(name, library, MALLOC_PERTURB_="165")


@pytest.mark.a_few("bounded", "forked")
@pytest.mark.iree_cpu
@pytest.mark.parametrize("name", ["streams", "arrays", "dlpack", "misaligned", "failures", "bounded", "forked"])
def test_hip_by_irees_driver(name: str, library: Path) -> None:
    scenario(name, library, MALLOC_PERTURB_="165", SCENARIO_DEVICE="hip-iree")


@pytest.mark.iree_cpu
def test_what_cannot_be_recorded_goes_to_irees_driver(library: Path) -> None:
    scenario("unrecordable", library)


@pytest.mark.iree_cpu
def test_irees_driver_refuses_a_stream_that_is_captured(library: Path) -> None:
    scenario("captured_driver", library)


@pytest.mark.iree_cpu
def test_launches_that_overlap_have_workspaces_of_their_own(library: Path) -> None:
    scenario("threads", library, SCENARIO_CHAIN=str(vmfb.compiled(vmfb.CHAIN, "gfx942")))


@pytest.mark.iree_cpu
def test_hip_with_two_devices(library: Path) -> None:
    scenario("devices", library, STANDIN_HIP_DEVICES="2", STANDIN_HIP_ARCH="gfx942:sramecc+:xnack-,gfx90a")


@pytest.mark.iree_cpu
def test_hip_without_a_device(library: Path) -> None:
    scenario("no_gpu", library, STANDIN_HIP_DEVICES="0")


@pytest.mark.skipif(ctypes.util.find_library("amdhip64") is not None, reason="this machine has a HIP runtime")
def test_a_missing_hip_runtime_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    script = """
import ctypes
from graph_api.errors import ExecutionError
from iree_bridge.devices.device import Device
for name in ("arch", "target"):
    try:
        getattr(Device.parse("hip"), name)
    except ExecutionError as error:
        print(error)
"""
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("LD_LIBRARY", "ROCM"))}
    environ["ROCM_PATH"] = str(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, env=environ, capture_output=True, text=True, timeout=60, check=True
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    assert all("the HIP runtime cannot be used" in line and "install ROCm" in line for line in lines), lines
    assert all("libamdhip64.so" in line and "--device cpu" in line and "b'" not in line for line in lines), lines
