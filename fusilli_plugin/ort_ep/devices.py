"""Which devices the provider offers to ONNX Runtime, and which one a session has chosen.

AMD GPUs are offered as HIP numbers them. The CPU is offered only if that was asked for, by ``register_ep(cpu=True)`` or
``FUSILLI_DEVICE=cpu``: a session that lets ONNX Runtime choose a provider by policy would get this one unasked.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping, Sequence
from enum import IntEnum
from functools import cache
from typing import Any, Final, TypeVar

from fusilli_ground.errors import OptionError
from fusilli_plugin.edge.link import ffi
from fusilli_plugin.ort_ep.abi import VENDOR_ID, Api, HardwareType, c_text
from fusilli_plugin.ort_ep.memory import gpu
from graph_api import FusilliError
from hipdnn_backend.errors import DeviceError
from iree_bridge import Device, Options
from iree_bridge.compile import versions

__all__ = [
    "DEVICE_KEY",
    "Compatibility",
    "allow_cpu",
    "check",
    "chosen",
    "compatibility",
    "compatibility_text",
    "gpus",
    "in_hip_order",
    "offer",
]

_LOG: Final = logging.getLogger(__name__)
DEVICE_KEY: Final = "device"
"""In a device's metadata: its name here, ``cpu`` or ``hip:<number>``."""
_TARGET_KEY: Final = "target"
_GPU_MEMORY: Final = 1  # OrtMemoryInfoDeviceType
_DEVICE_ALLOCATOR: Final = 0
ALIGNMENT: Final = 256
"""Bytes to which device memory is aligned."""

_PLACE: Final = re.compile(r"(?:([0-9a-fA-F]+):)?([0-9a-fA-F]+):([0-9a-fA-F]+)\.([0-9a-fA-F])")

T = TypeVar("T")

_allowed: dict[str, bool] = {}
_kept: dict[tuple[int, int], Any] = {}  # memory infos, which ONNX Runtime refers to


class Compatibility(IntEnum):
    """OrtCompiledModelCompatibility."""

    NOT_APPLICABLE = 0
    OPTIMAL = 1
    PREFER_RECOMPILATION = 2
    UNSUPPORTED = 3


def allow_cpu(allowed: bool) -> None:
    """Whether registrations from now on offer the CPU."""
    _allowed["cpu"] = allowed


def check() -> None:
    """Raise what a user would otherwise hear only when a session is made.

    Raises:
        FusilliError: an environment variable means nothing.
    """
    Options.from_env()


def _offers_cpu() -> bool:
    return _allowed.get("cpu", False) or Device.parse(Options.from_env().device).kind == "cpu"


@cache
def gpus() -> tuple[str, ...]:
    """The GPUs of HIP, by name; looked up once.

    Those that the compiler does not know are left out.
    """
    from iree_bridge.devices import hip

    try:
        count = hip.device_count()
    except FusilliError as error:
        _LOG.info("no GPU is offered: %s", error)
        return ()
    found: list[str] = []
    for index in range(count):
        try:
            target = Device.parse(f"hip:{index}").target
        except FusilliError as error:
            _LOG.warning("GPU hip:%d is not offered: %s", index, error)
        else:
            _LOG.debug("hip:%d is %s", index, target)
            found.append(f"hip:{index}")
    return tuple(found)


def offer(api: Api, factory: int, hardware: Sequence[Any], limit: int, *, may_add: bool) -> list[Any]:
    """OrtEpDevices for those of ONNX Runtime's devices that this provider serves; it takes them over.

    With ``may_add`` also for GPUs that ONNX Runtime did not find: in a container it may see none.

    Raises:
        OrtError: ONNX Runtime refuses one.
    """
    made: list[Any] = []
    kinds = [HardwareType(api.plain("HardwareDevice_Type", device)) for device in hardware]
    cpus = [device for device, kind in zip(hardware, kinds, strict=True) if kind is HardwareType.CPU]
    if _offers_cpu() and cpus:
        made.append(_ep_device(api, factory, cpus[0], "cpu"))
    theirs = [
        device
        for device, kind in zip(hardware, kinds, strict=True)
        if kind is HardwareType.GPU and api.plain("HardwareDevice_VendorId", device) == VENDOR_ID
    ]
    placed = [(_ort_place(api.pairs(api.plain("HardwareDevice_Metadata", device))), device) for device in theirs]
    same = in_hip_order([_hip_place(name) for name in gpus()], placed)
    for index, (name, device) in enumerate(zip(gpus(), same, strict=True)):
        if device is None and may_add:
            device = _virtual(api, index)
        if len(made) >= limit:
            _LOG.warning("%s is not offered: ONNX Runtime takes %d devices at most", name, limit)
        elif device is not None:
            made.append(_ep_device(api, factory, device, name))
        else:
            _LOG.info(
                "%s is not offered: ONNX Runtime did not find it; register under a name that ends in .virtual", name
            )
    return made[:limit]


def in_hip_order(places: Sequence[str], theirs: Sequence[tuple[str, T]]) -> list[T | None]:
    """For each GPU of HIP's the device of ONNX Runtime's that is the same one, or None.

    HIP numbers what HIP_VISIBLE_DEVICES lets it see, in the order that it says; only places on the PCI bus tell which
    of all GPUs these are. Partitions of one GPU share a place: ONNX Runtime knows the first.

    Args:
        places: e.g. ``0000:c1:00.0``, "" if it is not known.
        theirs: devices with their places.
    """
    left = [(_address(place), device) for place, device in theirs]
    found: list[T | None] = []
    for place in places:
        address = _address(place)
        at = next((i for i, (other, _) in enumerate(left) if address is not None and other == address), None)
        found.append(None if at is None else left.pop(at)[1])
    return found


def _address(place: str) -> tuple[int, ...] | None:
    """Domain, bus, device and function of a place on the PCI bus."""
    parts = _PLACE.fullmatch(place.strip())
    return tuple(int(part or "0", 16) for part in parts.groups()) if parts else None


def _hip_place(name: str) -> str:
    """Where HIP says that a GPU is."""
    try:
        return gpu(Device.parse(name).index).pci_place()
    except DeviceError as error:
        _LOG.info("%s: its place on the PCI bus is not known: %s", name, error)
        return ""


def _ort_place(entries: Mapping[str, str]) -> str:
    """Where ONNX Runtime says that a GPU is, in the device's metadata: its place on the bus, or only its number."""
    number = entries.get("card_idx", "")
    if "pci_bus_id" in entries or not number.isdecimal():
        return entries.get("pci_bus_id", "")
    return os.path.basename(os.path.realpath(f"/sys/class/drm/card{number}/device"))


def _virtual(api: Api, index: int) -> Any:
    """A hardware device for a GPU that ONNX Runtime did not find, in a container for example; kept for ever."""
    key = (-1 - index, id(api))
    if key not in _kept:
        vendor = c_text("AMD")
        metadata = api.new_pairs({"hip": str(index)})
        try:
            _kept[key] = api.get(
                "CreateHardwareDevice", "void *", int(HardwareType.GPU), VENDOR_ID, index, vendor, metadata
            )
        finally:
            api.plain("ReleaseKeyValuePairs", metadata)
    return _kept[key]


def _ep_device(api: Api, factory: int, hardware: Any, name: str) -> Any:
    device = Device.parse(name)
    metadata = api.new_pairs({DEVICE_KEY: name, _TARGET_KEY: str(device.target)})
    try:
        made = api.get("CreateEpDevice", "void *", ffi.cast("void *", factory), hardware, metadata, ffi.NULL)
    finally:
        api.plain("ReleaseKeyValuePairs", metadata)
    if device.is_gpu:
        api.call("EpDevice_AddAllocatorInfo", made, _memory_info(api, device.index))
    return made


def _memory_info(api: Api, index: int) -> Any:
    key = (index, id(api))
    if key not in _kept:
        _kept[key] = api.get(
            "CreateMemoryInfo_V2",
            "void *",
            c_text("hip"),
            _GPU_MEMORY,
            VENDOR_ID,
            index,
            0,
            ALIGNMENT,
            _DEVICE_ALLOCATOR,
        )
    return _kept[key]


def chosen(metadata: Sequence[Mapping[str, str]]) -> Device:
    """The device that a session was given.

    Raises:
        OptionError: it is not one.
    """
    names = [entries.get(DEVICE_KEY, "?") for entries in metadata]
    if len(names) != 1:
        raise OptionError(
            f"a session runs on one device of HipDNNExecutionProvider, this one was given {len(names)}: "
            f"{', '.join(names)}; choose with fusilli_plugin.ep_devices('{names[0] if names else 'cpu'}')"
        )
    return Device.parse(names[0])


def compatibility_text(device: Device) -> str:
    """What code is compiled for and by, for models that carry it."""
    return f"fusilli-plugin;target={device.target};iree={versions.iree_version()}"


def compatibility(text: str) -> Compatibility:
    """Whether code that was compiled for ``text`` runs on one of the devices here."""
    if not text.startswith("fusilli-plugin;"):
        return Compatibility.NOT_APPLICABLE
    here = {compatibility_text(Device.parse(name)) for name in ("cpu", *gpus())}
    return Compatibility.OPTIMAL if text in here else Compatibility.UNSUPPORTED
