"""Building the stand-in for libamdhip64.so, and reading its records from inside the process that uses it."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

import fusilli_plugin
from fusilli_ground.gpu_runtime import PROTOTYPES

__all__ = ["Event", "Standin", "build"]

_SOURCE: Final = Path(fusilli_plugin.__file__).parent / "conformance" / "hip" / "standin_hip.c"


def build(folder: Path, *, cuda: bool = False, without: Sequence[str] = ()) -> Path:
    """Compiles ``folder/libamdhip64.so``; skips the test where there is no C compiler.

    Args:
        folder: where it goes.
        cuda: ``libcudart.so`` instead, with the functions that `hipdnn_backend.device.memory` calls under CUDA's names.
        without: functions that it does not have.
    """
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("the stand-in HIP library is compiled with cc, which is not here")
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / ("libcudart.so" if cuda else "libamdhip64.so")
    flags = ["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-fvisibility=hidden", "-pthread"]
    flags += [f"-D{name}=without_{name}" for name in without]
    if cuda:
        names = [*PROTOTYPES, "hipGetErrorString"]
        flags += [f"-D{name}=cuda{name.removeprefix('hip')}" for name in names]
    subprocess.run([compiler, *flags, "-o", str(library), str(_SOURCE)], check=True, capture_output=True, timeout=120)
    return library


class _Event(ctypes.Structure):
    _fields_ = (
        ("call", ctypes.c_char * 32),
        ("kernel", ctypes.c_char * 96),
        ("stream", ctypes.c_uint64),
        ("device", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
        ("pointer", ctypes.c_uint64),
        ("source", ctypes.c_uint64),
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("argument_count", ctypes.c_uint64),
        ("arguments", ctypes.c_uint64 * 64),
    )


@dataclass(frozen=True)
class Event:
    """One recorded call."""

    call: str
    kernel: str
    stream: int
    device: int
    size: int
    pointer: int
    source: int
    arguments: tuple[int, ...]
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()


_Kernel = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_char_p, ctypes.c_uint64, ctypes.POINTER(ctypes.c_uint64), ctypes.c_uint64
)


class Standin:
    """The stand-in that is, or with this becomes, mapped into this process."""

    def __init__(self, library: str | Path) -> None:
        self._library = ctypes.CDLL(str(library))
        self._library.standin_event.restype = ctypes.POINTER(_Event)
        self._library.standin_event.argtypes = [ctypes.c_uint64]
        for name in ("standin_event_count", "standin_event_size"):
            getattr(self._library, name).restype = ctypes.c_uint64
        self._library.standin_live_bytes.restype = ctypes.c_int64
        self._library.standin_capture.restype = ctypes.c_uint64
        assert self._library.standin_event_size() == ctypes.sizeof(_Event)
        self._kernel: object = None

    def take(self, *calls: str) -> list[Event]:
        """The records so far, those of ``calls`` if any are named; forgets all."""
        raw = [self._library.standin_event(i).contents for i in range(self._library.standin_event_count())]
        events = [
            Event(
                event.call.decode(), event.kernel.decode(), event.stream, event.device, event.size, event.pointer,
                event.source, tuple(event.arguments[: event.argument_count]), tuple(event.grid), tuple(event.block),
            )
            for event in raw
        ]  # fmt: skip
        self._library.standin_reset()
        return [event for event in events if not calls or event.call in calls]

    @property
    def live_bytes(self) -> int:
        """Bytes allocated and not freed, host allocations included."""
        return self._library.standin_live_bytes()

    def fail(self, call: str, error: int, after: int = 0) -> None:
        """Lets ``call`` fail with a HIP error number after ``after`` more successes, until the next ``take``."""
        self._library.standin_fail(call.encode(), error, after)

    def play(self, kernel: Callable[[str, int, Sequence[int]], int]) -> None:
        """Calls ``kernel(name, stream, arguments)`` at each launch; its result is the launch's error number."""
        callback = _Kernel(lambda name, stream, arguments, count: kernel(name.decode(), stream, arguments[:count]))
        self._library.standin_set_kernel(callback)
        self._kernel = callback

    @contextmanager
    def capture(self, stream: int) -> Iterator[None]:
        """Captures ``stream`` as for a graph: calls that HIP refuses fail then, and so does the end of the capture."""
        self._library.standin_capture(ctypes.c_uint64(stream))
        try:
            yield
        finally:
            refused = self._library.standin_capture(ctypes.c_uint64(0))
        assert not refused, f"{refused} calls are not allowed while a stream is captured"

    def malloc(self, nbytes: int) -> int:
        """Device memory, as ``hipMalloc`` gives it."""
        pointer = ctypes.c_void_p()
        assert self._library.hipMalloc(ctypes.byref(pointer), ctypes.c_size_t(nbytes)) == 0
        return pointer.value or 0

    def set_device(self, index: int) -> None:
        """``hipSetDevice``."""
        assert self._library.hipSetDevice(index) == 0
