"""Loaded code: a module in a context of one HAL device and its functions, or a recording of what they do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from graph_api.errors import ExecutionError
from iree_bridge.devices.device import Device, Driver
from iree_bridge.devices.iree_runtime import INSTANCE, VmContext, VmFunction, VmModule, create_hal_module, reason
from iree_bridge.runtime.arguments import Argument

if TYPE_CHECKING:
    from iree_bridge.runtime.host.launching import HostCode
    from iree_bridge.runtime.recorded.launching import LoadedCode

__all__ = ["DirectProgram", "HostProgram", "Program", "load_module", "workspace_size"]

_MAIN: Final = "main"
_ASYNC: Final = "main$async"
_SIZE: Final = "iree.abi.transients.size.constant"


def load_module(code: bytes) -> VmModule:
    """The module in compiled code.

    Raises:
        ExecutionError: the bytes are no module, or lack an entry point.
    """
    try:
        module = VmModule.copy_buffer(INSTANCE, code)
    except (RuntimeError, ValueError, TypeError) as error:
        raise ExecutionError(f"the code cannot be loaded: {reason(error)}; clear the cache and build again") from error
    for name in (_MAIN, _ASYNC):
        _function(module, name)
    return module


def workspace_size(module: VmModule) -> int:
    """Bytes of temporary memory that one launch needs.

    Raises:
        ExecutionError: the module does not say, so it keeps its temporaries itself and takes no workspace.
    """
    text = _function(module, _ASYNC).reflection.get(_SIZE, "")
    if not text.isdecimal():
        raise ExecutionError(f"the code does not state its workspace size ({_SIZE}); build it with this version")
    return int(text)


class Program:
    """A module that is ready to run on one device.

    Attributes:
        device: where it runs.
        driver: the driver that runs it.
        hal: the open device.
        arguments: outputs, then inputs.
        workspace_size: bytes.
        synchronous: True if all work is done when a call returns, by the nature of the driver.
        waits: True if a launch on a GPU is waited for.
    """

    def __init__(
        self,
        module: VmModule,
        device: Device,
        driver: Driver | None,
        arguments: tuple[Argument, ...],
        workspace_bytes: int,
    ) -> None:
        self.device = device
        self.arguments = arguments
        self.workspace_size = workspace_bytes
        self.hal = device.open(driver)
        self.driver = driver
        self.synchronous = driver == "local-sync"
        # IREE's cuda driver works on a stream of its own: the caller's stream can only follow after a wait.
        self.waits = device.kind == "cuda" or (device.kind == "hip" and device.stream is None)
        try:
            self.context = VmContext(INSTANCE, [create_hal_module(INSTANCE, self.hal), module])
        except (RuntimeError, ValueError) as error:
            raise ExecutionError(
                f"the compiled code cannot be loaded on {device}: {reason(error)}; was it compiled for another target?"
            ) from error
        self.function: VmFunction = _function(module, _MAIN)
        self.async_function: VmFunction = _function(module, _ASYNC)


class DirectProgram:
    """Code for a HIP device whose launches are recorded, so that IREE's driver has no part in them.

    Attributes:
        device: where it runs.
        arguments: outputs, then inputs.
        workspace_size: bytes.
        loaded: the recorded code on the device.
        synchronous, waits: as for `Program`.
    """

    synchronous: Final = False

    def __init__(
        self, device: Device, arguments: tuple[Argument, ...], workspace_bytes: int, loaded: LoadedCode
    ) -> None:
        self.device = device
        self.arguments = arguments
        self.workspace_size = workspace_bytes
        self.loaded = loaded
        self.waits = device.stream is None


class HostProgram:
    """Code for the CPU whose commands are recorded, so that IREE's driver has no part in them.

    Attributes:
        device: where it runs.
        arguments: outputs, then inputs.
        workspace_size: bytes.
        loaded: the recorded code.
        threads: that a run may use at most.
        alignment: bytes; arguments at other addresses than multiples of it go through a copy.
        synchronous, waits: as for `Program`.
    """

    synchronous: Final = True
    waits: Final = False

    def __init__(
        self,
        device: Device,
        arguments: tuple[Argument, ...],
        workspace_bytes: int,
        loaded: HostCode,
        threads: int,
        alignment: int,
    ) -> None:
        self.device = device
        self.arguments = arguments
        self.workspace_size = workspace_bytes
        self.loaded = loaded
        self.threads = threads
        self.alignment = alignment


def _function(module: VmModule, name: str) -> VmFunction:
    try:
        function = module.lookup_function(name)
    except (RuntimeError, KeyError, ValueError):
        function = None
    if function is None:
        raise ExecutionError(f"the compiled code has no function '{name}'; clear the cache and build again")
    return function
