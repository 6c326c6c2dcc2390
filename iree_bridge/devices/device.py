"""Devices: their names, what code they need, and the open HAL devices behind them.

A name is ``cpu``, ``hip``, ``hip:1``, ``cuda``, ``cuda:0``; ``cpu-sync`` works in the calling thread only, ``cpu-task``
and ``cpu`` in several where that pays; ``cpu-iree``, ``hip-iree`` and ``hip-iree:1`` leave all launches to IREE's
driver. Parsing a name opens nothing.
"""

from __future__ import annotations

import ctypes
import logging
import os
import re
import threading
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Final, Literal

from fusilli_ground.files import standard_numbers_taken
from fusilli_ground.spelling import did_you_mean
from graph_api.errors import ExecutionError
from iree_bridge.devices import cuda, hip
from iree_bridge.devices.iree_runtime import HalDevice, HalDriver, get_driver, parse_flags, reason
from iree_bridge.targets.cpu import usable_cpus
from iree_bridge.targets.target import Target

__all__ = ["Device", "Driver", "Kind", "inherited_driver", "set_task_threads", "task_threads"]

_LOG: Final = logging.getLogger(__name__)
_WORDS: Final = ("cpu", "cpu-sync", "cpu-task", "cpu-iree", "hip", "hip-iree", "cuda")
_NAME: Final = re.compile(rf"({'|'.join(_WORDS)})(?::(\d{{1,3}}))?")
# Each open HIP device pins 128 MiB of host memory and owns one stream, so the caller's streams are served by few.
_MAX_OPEN: Final = 8

Kind = Literal["cpu", "hip", "cuda"]
Driver = Literal["local", "local-sync", "local-task", "hip", "cuda"]


@dataclass(frozen=True)
class Device:
    """A place where executables run. Hashable; ``str(device)`` is the name that ``parse`` takes.

    Attributes:
        kind: ``cpu``, ``hip`` or ``cuda``.
        index: number of the device among those of its kind.
        driver: forced driver, or None: ``local-sync`` runs CPU code in the calling thread, ``local-task`` in several;
            ``local`` and ``hip`` make launches through IREE's drivers that would not need them.
        stream: the caller's stream (a ``hipStream_t`` or ``CUstream`` as an integer, 0 is the null stream). Work is
            enqueued there and not waited for (CUDA: see ``runtime``). None: calls return when their results are there.
    """

    kind: Kind
    index: int = 0
    driver: Driver | None = None
    stream: int | None = None

    @staticmethod
    def parse(name: str, *, stream: int | None = None) -> Device:
        """The device called ``name``.

        Raises:
            ExecutionError: the name or the stream means nothing.
        """
        match = _NAME.fullmatch(name.strip().lower()) if isinstance(name, str) else None
        if match is None:
            near = did_you_mean(str(name).partition(":")[0], _WORDS, 0.7)  # nearer than "cpu" is to "gpu"
            raise ExecutionError(f"device {name!r} is unknown{near}; use 'cpu', 'hip', 'hip:1', 'cuda' or 'cuda:0'")
        word, index = match[1], int(match[2] or 0)
        if word.startswith("cpu"):
            if match[2] and index:
                raise ExecutionError(f"device {name!r} is not there: the CPU is one device, 'cpu'")
            forced: dict[str, Driver | None] = {name: driver for driver, name in _CPU_WORDS.items()}
            return Device("cpu", driver=forced[word]).on_stream(stream)
        if word == "hip-iree":
            return Device("hip", index, "hip").on_stream(stream)
        return Device("hip" if word == "hip" else "cuda", index).on_stream(stream)

    def on_stream(self, stream: int | None) -> Device:
        """The same device, with work going to the caller's ``stream``.

        Raises:
            ExecutionError: the stream is no stream handle, or the device is the CPU.
        """
        if stream is None:
            return replace(self, stream=None)
        if self.kind == "cpu":
            raise ExecutionError(f"device 'cpu' has no streams, got stream={stream!r}; leave stream=None")
        if isinstance(stream, bool) or not isinstance(stream, int) or not 0 <= stream < 2**64:
            raise ExecutionError(
                f"stream {stream!r} is no stream handle; pass it as a non-negative integer, e.g. "
                "torch.cuda.current_stream().cuda_stream (0 is the null stream)"
            )
        return replace(self, stream=stream)

    @property
    def is_gpu(self) -> bool:
        """True for HIP and CUDA devices."""
        return self.kind != "cpu"

    @property
    def arch(self) -> str:
        """The architecture of the device in this machine, e.g. ``gfx942``, ``sm_80``, ``host``.

        Raises:
            ExecutionError: there is no such device.
        """
        if self.kind == "hip":
            return hip.arch(self.index)
        return cuda.arch(self.index) if self.kind == "cuda" else "host"

    @property
    def target(self) -> Target:
        """What to compile for so that the code runs on this device.

        Raises:
            ExecutionError: there is no such device.
            NotSupportedError: the compiler does not know its architecture.
        """
        return Target.parse("cpu" if self.kind == "cpu" else self.arch)

    @property
    def memory(self) -> int | None:
        """Bytes of memory that the device has in all; None where that is not known (CUDA).

        Raises:
            ExecutionError: there is no such device.
        """
        if self.kind == "cpu":
            return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return hip.total_memory(self.index) if self.kind == "hip" else None

    @property
    def card(self) -> str:
        """Which card it is, as far as one is told from others: UUID and place on the PCI bus; "" for the CPU.

        Raises:
            ExecutionError: there is no such device, or its runtime does not tell.
        """
        if self.kind == "hip":
            return hip.card(self.index)
        return cuda.card(self.index) if self.kind == "cuda" else ""

    @property
    def driver_versions(self) -> str:
        """Releases of its runtime and of the kernel's driver; "" for the CPU.

        Raises:
            ExecutionError: there is no such runtime.
        """
        if self.kind == "hip":
            return hip.driver_versions()
        return cuda.driver_versions() if self.kind == "cuda" else ""

    def open(self, driver: Driver | None = None) -> HalDevice:
        """The HAL device, opened at the first call and shared from then on; one for each (device, stream).

        Args:
            driver: the CPU driver to use; by default the one that the name forces, else ``local-sync``.

        Raises:
            ExecutionError: the device is not there, cannot be opened, or was opened before a fork of this process.
        """
        chosen: Driver = self.kind if self.kind != "cpu" else driver or self.driver or "local-sync"
        return _process().open(chosen, self.index, self.stream)

    def enter(self) -> None:
        """Notes that this process uses the device; on CUDA, IREE's driver works on it in this thread then.

        Raises:
            ExecutionError: the device is not there, or was used before a fork of this process.
        """
        _process().enter(self.kind, self.index)

    def close(self) -> None:
        """Forgets the HAL device of this stream; its memory goes when the last executable on it does.

        Call it before the stream is destroyed. Closing what is not open is fine.
        """
        _process().close(self.index, self.stream)

    def discard(self, hal: HalDevice) -> None:
        """Forgets ``hal`` after a failure: a GPU device of IREE answers all later work with its first error."""
        _process().discard(hal)

    def wait_for_caller(self) -> None:
        """Makes what the caller enqueued on a GPU before now visible to work that is enqueued after this."""
        if self.kind == "cuda":
            cuda.synchronize(self.index, self.stream)
            cuda.enter(self.index)
        elif self.kind == "hip" and self.stream is None:
            hip.synchronize(self.index)

    def __str__(self) -> str:
        if self.driver == "hip":
            return f"hip-iree:{self.index}"
        if self.kind == "cpu":
            return _CPU_WORDS.get(self.driver, "cpu")
        return f"{self.kind}:{self.index}"


_CPU_WORDS: Final[dict[Driver | None, str]] = {
    None: "cpu", "local-sync": "cpu-sync", "local-task": "cpu-task", "local": "cpu-iree"
}  # fmt: skip


def task_threads() -> int:
    """Number of threads that CPU work may use: what was set, or one for each processor that the process gets."""
    return _process().threads or usable_cpus()


def set_task_threads(count: int) -> None:
    """Number of threads of CPU work that begins after this; by default one for each processor of the process.

    Raises:
        ExecutionError: ``count`` is not positive, or the driver has started with another number already.
    """
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ExecutionError(f"the number of task threads must be a positive integer, got {count!r}")
    _process().set_threads(count)


def inherited_driver(driver: Driver) -> Driver:
    """The driver to use in this process for work meant for ``driver``.

    A thread pool does not survive a fork, and IREE keeps one per process: a child whose parent had one runs in the
    calling thread instead.
    """
    process = _process()
    if driver == "local-task" and driver in process.inherited:
        _LOG.info("this process was forked from one with a thread pool: its CPU work runs in the calling thread")
        return "local-sync"
    return driver


class _Process:
    """The drivers and devices that this process has opened."""

    def __init__(self, inherited: frozenset[str] = frozenset()) -> None:
        self.pid = os.getpid()
        self.inherited = inherited
        self._lock = threading.Lock()
        self._drivers: dict[Driver, HalDriver] = {}
        self._entered: set[str] = set()
        self._devices: OrderedDict[tuple[Driver, int, int | None], HalDevice] = OrderedDict()
        self.threads: int | None = None
        self._pool_threads: int | None = None

    @property
    def used(self) -> frozenset[str]:
        return frozenset(self._drivers) | self._entered | self.inherited

    def enter(self, driver: str, index: int) -> None:
        if driver in self.inherited:
            raise ExecutionError(
                f"device '{driver}:{index}' was used before this process was forked, and GPU drivers do not work in a "
                "forked child; start the process with the 'spawn' method instead"
            )
        if driver in ("hip", "cuda"):
            self._check_index(driver, index)
            self._entered.add(driver)
        if driver == "cuda":
            cuda.enter(index)

    def set_threads(self, count: int) -> None:
        with self._lock:
            if self._pool_threads not in (None, count):
                raise ExecutionError(
                    f"the thread pool runs with {self._pool_threads} threads already; ask for {count} before its first "
                    "use"
                )
            self.threads = count

    def open(self, driver: Driver, index: int, stream: int | None) -> HalDevice:
        key = (driver, index, stream)
        with self._lock:
            device = self._devices.get(key)
            if device is None:
                device = self._create(driver, index, stream)
                self._devices[key] = device
                while len(self._devices) > _MAX_OPEN:
                    self._devices.popitem(last=False)
            else:
                self._devices.move_to_end(key)
            return device

    def close(self, index: int, stream: int | None) -> None:
        with self._lock:
            for key in [key for key in self._devices if key[1:] == (index, stream) and key[0] in ("hip", "cuda")]:
                del self._devices[key]

    def discard(self, hal: HalDevice) -> None:
        with self._lock:
            for key in [key for key, device in self._devices.items() if device is hal]:
                del self._devices[key]

    def _create(self, driver: Driver, index: int, stream: int | None) -> HalDevice:
        if driver in ("hip", "cuda"):
            self.enter(driver, index)
        try:
            with standard_numbers_taken():  # IREE keeps an io_uring
                if driver == "hip":
                    with hip.keep_current_device():
                        return self._create_gpu(driver, index, {"hip_external_stream": str(stream or 0)})
                if driver == "cuda":
                    return self._create_gpu(driver, index, {})
                return self._driver(driver).create_default_device()
        except (RuntimeError, ValueError) as error:
            name = f"{driver}:{index}" if driver in ("hip", "cuda") else driver
            raise ExecutionError(f"device '{name}' cannot be opened: {reason(error)}; see `fusilli doctor`") from error

    @staticmethod
    def _check_index(driver: str, index: int) -> None:
        """Raises ExecutionError unless the device is there; the architecture query says why in the best words."""
        if driver == "hip":
            hip.arch(index)
        else:
            cuda.arch(index)

    def _create_gpu(self, driver: Driver, index: int, parameters: dict[str, str]) -> HalDevice:
        found = self._driver(driver).query_available_devices()
        if index >= len(found):
            raise ExecutionError(f"device '{driver}:{index}': IREE's {driver} driver lists {len(found)} device(s)")
        return self._driver(driver).create_device(found[index]["device_id"], parameters)

    def _driver(self, name: Driver) -> HalDriver:
        driver = self._drivers.get(name)
        if driver is None:
            if name == "hip":
                parse_flags(*hip.driver_flags())
            if name == "local-task":
                count = self._pool_threads = self.threads or usable_cpus()
                parse_flags(f"--task_topology_max_group_count={count}", f"--task_worker_stack_size={_STACK}")
            driver = self._drivers[name] = get_driver(name)
        return driver


_STACK: Final = 1 << 20
"""Bytes of a CPU worker's stack. Kernels may use 128 KiB (`targets.target`): IREE's default leaves nothing else."""

_state = _Process()
_left_behind: list[object] = []


def _process() -> _Process:
    """The state of this process; a forked child starts with an empty one.

    What its parent had opened it leaves alone for ever: closing that would wait for threads that it does not have.
    """
    global _state
    if _state.pid != os.getpid():
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(_state))
        _left_behind.append(_state)
        _state = _Process(_state.used)
    return _state
