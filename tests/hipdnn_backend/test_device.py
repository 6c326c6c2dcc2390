"""Host memory here; HIP's on the stand-in runtime, in a process of its own, since one process has one runtime."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from hipdnn_backend.device.memory import ALIGNMENT, HostMemory, Memory
from hipdnn_backend.errors import DeviceError
from tests.support.standin_hip import standin

ROOT = Path(__file__).resolve().parents[2]


def test_bytes_there_and_back() -> None:
    memory: Memory = HostMemory()
    with memory.allocate(24) as buffer:
        assert buffer.address % ALIGNMENT == 0
        assert "24 bytes of host memory" in repr(buffer)
        buffer.write(bytes(range(24)))
        assert buffer.read() == bytes(range(24))
        assert buffer.read(3) == b"\0\1\2"
        assert memory.read(buffer.address + 4, 2) == b"\4\5"
        buffer.write(memoryview(b"xy"))
        assert buffer.read(4) == b"xy\2\3"
    memory.synchronize()
    assert memory.create_stream() == 0
    memory.destroy_stream(0)
    with pytest.raises(DeviceError, match="no stream 0x7"):
        memory.destroy_stream(7)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.arange(6, dtype=np.float32).reshape(2, 3).T,
        np.arange(24, dtype=np.int8).reshape(2, 3, 4).transpose(0, 2, 1),
        np.arange(6).astype(ml_dtypes.bfloat16),
        np.float64(3.5) * np.ones(()),
        np.zeros((0, 3), np.float32),
    ],
)
def test_arrays_go_in_the_order_of_their_memory(array: np.ndarray) -> None:
    memory = HostMemory()
    with memory.allocate(array.nbytes) as buffer:
        buffer.write(array)
        back = np.ndarray(array.shape, array.dtype, buffer.read(), strides=array.strides)
        assert back.tobytes() == array.tobytes()


def test_arrays_with_gaps_are_refused() -> None:
    with HostMemory().allocate(64) as buffer:
        with pytest.raises(ValueError, match="has gaps; copy it first"):
            buffer.write(np.zeros(8, np.float32)[::2])
        with pytest.raises(ValueError, match="65 bytes do not fit into a buffer of 64"):
            buffer.write(bytes(65))
        with pytest.raises(ValueError, match="65 bytes of a buffer of 64"):
            buffer.read(65)
        with pytest.raises(ValueError, match="-1 bytes"):
            buffer.read(-1)


def test_buffers_are_freed_once() -> None:
    memory = HostMemory()
    buffer = memory.allocate(8)
    buffer.close()
    buffer.close()
    assert not buffer.is_open
    with pytest.raises(DeviceError, match="the buffer of 8 bytes is closed"):
        buffer.write(b"x")
    with pytest.raises(DeviceError, match="the buffer of 8 bytes is closed"):
        buffer.read()
    with pytest.raises(DeviceError, match="is no allocation of this memory"):
        memory.free(buffer.address)
    held = memory.allocate(0)
    assert (held.address != 0, held.read(), memory.live_count) == (True, b"", 1)
    del held
    assert memory.live_count == 0


def test_memory_that_cannot_be_had() -> None:
    with pytest.raises(DeviceError, match="bytes of host memory cannot be had"):
        HostMemory().allocate(1 << 62)
    with pytest.raises(DeviceError, match="-1 bytes cannot be allocated"):
        HostMemory().allocate(-1)


# ---- HIP

SCENARIOS = {
    "copies": """
        memory = HipMemory()
        assert (memory.device, memory.name, memory.is_host) == (0, "HIP device 0", False)
        before = hip.live_bytes
        with memory.allocate(24) as buffer:
            assert hip.live_bytes == before + 24
            buffer.write(np.arange(6, dtype=np.float32))
            assert np.frombuffer(buffer.read(), np.float32).tolist() == [0, 1, 2, 3, 4, 5]
        assert hip.live_bytes == before
        with memory.allocate(0) as empty:
            assert empty.address
            assert empty.read() == b""
    """,
    "streams": """
        memory = HipMemory()
        stream = memory.create_stream()
        hip.take()
        memory.synchronize(stream)
        memory.synchronize()
        assert [event.stream for event in hip.take("synchronize")] == [stream, 0]
        memory.destroy_stream(stream)
        assert [event.stream for event in hip.take("stream_destroy")] == [stream]
    """,
    "devices": """
        hip.set_device(1)
        second, first = HipMemory(), HipMemory(0)
        assert (second.device, first.device) == (1, 0)
        hip.take()
        kept = [first.allocate(8), second.allocate(8)]
        assert [event.device for event in hip.take("malloc")] == [0, 1]
        assert HipMemory().device == 1  # the thread's current device is as it was
        for number in (2, -1):
            with pytest.raises(DeviceError, match=f"there is no HIP device {number}; there are 2"):
                HipMemory(number)
    """,
    "failures": """
        memory = HipMemory()
        hip.fail("malloc", 2)
        with pytest.raises(DeviceError, match="hipMalloc: error 2"):
            memory.allocate(8)
        hip.take()
        buffer = memory.allocate(8)
        hip.fail("memcpy", 1)
        with pytest.raises(DeviceError, match="hipMemcpy: error 1"):
            buffer.write(b"x")
        hip.take()
        buffer.write(b"x")
    """,
    "the_mapped_runtime": """
        assert HipMemory().runtime.path == sys.argv[1]
    """,
    "no_device": """
        with pytest.raises(DeviceError, match="hipGetDeviceCount: error 100"):
            HipMemory()
    """,
}
PRELUDE = """
import sys
import numpy as np
import pytest
from hipdnn_backend.device.memory import HipMemory
from hipdnn_backend.errors import DeviceError
from tests.support.standin_hip.standin import Standin
hip = Standin(sys.argv[1])
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return standin.build(tmp_path_factory.mktemp("hip"))


def run(code: str, *arguments: object, **environment: str) -> None:
    import textwrap

    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    variables = {"PATH": os.defpath, "PYTHONPATH": str(ROOT), **environment}
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.a_few("streams", "the_mapped_runtime")
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_hip(library: Path, scenario: str) -> None:
    import textwrap

    devices = {"devices": "2", "no_device": "0"}.get(scenario, "1")
    run(PRELUDE + textwrap.dedent(SCENARIOS[scenario]), library, STANDIN_HIP_DEVICES=devices)


@pytest.mark.parametrize("scenario", ["copies", "streams", "failures"])
def test_cuda(tmp_path: Path, scenario: str) -> None:
    """The same on a stand-in whose functions have CUDA's names."""
    import textwrap

    library = standin.build(tmp_path, cuda=True)
    code = (PRELUDE + textwrap.dedent(SCENARIOS[scenario])).replace("HipMemory", "CudaMemory")
    code = code.replace("HIP device", "CUDA device").replace('match="hip', 'match="cuda')
    run(code, library, STANDIN_HIP_DEVICES="1")


def test_no_runtime(tmp_path: Path) -> None:
    (tmp_path / "libamdhip64.so").touch()
    code = """
        import sys
        import pytest
        from hipdnn_backend.device.memory import HipMemory
        from hipdnn_backend.errors import DeviceError
        with pytest.raises(DeviceError, match="the HIP runtime cannot be used: .*or use host memory"):
            HipMemory(library=sys.argv[1])
        with pytest.raises(DeviceError, match="hipGetDeviceCount"):
            HipMemory(library=sys.argv[2])  # a library without the functions
    """
    import ctypes.util

    run(code, tmp_path / "libamdhip64.so", ctypes.util.find_library("m") or "libm.so.6")
