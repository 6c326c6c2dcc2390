"""What users call: registering the provider with the onnxruntime of this Python, its devices, reports."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, Final

from fusilli_plugin.edge.install import plugin_dir
from fusilli_plugin.ort_ep import devices
from fusilli_plugin.ort_ep.abi import NAME
from fusilli_plugin.ort_ep.errors import ProviderError
from fusilli_plugin.ort_ep.report import Report, ask

__all__ = ["ep_devices", "ep_report", "library_path", "register_ep", "unregister_ep"]

_REGISTRATION: Final = "HipDNN"
_VIRTUAL: Final = ".virtual"  # lets ONNX Runtime accept devices that it did not find itself
_lock = threading.Lock()
_registered: dict[str, bool] = {}
_names: list[str] = []


def library_path() -> str:
    """Path of the library, for ``onnxruntime.register_execution_provider_library("HipDNN", ...)``.

    Raises:
        InstallError: it is not there and cannot be built.
    """
    from fusilli_plugin.edge.build import LIBRARY

    return str(Path(plugin_dir()) / LIBRARY.name)


def register_ep(*, cpu: bool = False) -> None:
    """Register the provider with onnxruntime; a second call with the same argument does nothing.

    Args:
        cpu: offer the CPU as a device as well; without it only AMD GPUs are, unless ``FUSILLI_DEVICE=cpu``.

    Raises:
        ProviderError: onnxruntime is not installed, too old, or refuses.
        InstallError: the library is not there and cannot be built.
    """
    ort = _onnxruntime()
    with _lock:
        if _registered.get("cpu") == cpu:
            return
        _unregister(ort)
        devices.allow_cpu(cpu)
        name = _REGISTRATION + (_VIRTUAL if devices.gpus() else "")
        try:
            ort.register_execution_provider_library(name, library_path())
        except Exception as error:  # what its binding raises has no type of its own
            raise ProviderError(f"onnxruntime {ort.__version__} does not take {NAME}: {error}") from error
        _registered.update(cpu=cpu)
        _names.append(name)


def unregister_ep() -> None:
    """Take the provider back; sessions that use it must be gone. Does nothing if it is not registered."""
    with _lock:
        _unregister(_onnxruntime())


def _unregister(ort: Any) -> None:
    _registered.clear()
    while _names:
        name = _names.pop()
        try:
            ort.unregister_execution_provider_library(name)
        except Exception as error:
            raise ProviderError(f"onnxruntime does not let {NAME} go: {error}") from error


def ep_devices(device: str | None = None) -> list[Any]:
    """The device for a session, for ``SessionOptions.add_provider_for_devices``: a list of one.

    Args:
        device: ``cpu``, ``hip:1`` or alike; default: the first GPU, the CPU if there is none.

    Raises:
        ProviderError: it is not there; the message has what is.
    """
    offered = {found.ep_metadata.get(devices.DEVICE_KEY, "?"): found for found in _offered()}
    names = sorted(offered, key=lambda name: (name == "cpu", name))
    wanted = device or (names[0] if names else None)
    if wanted in offered:
        return [offered[wanted]]
    hint = "" if "cpu" in offered else "; the CPU is offered after fusilli_plugin.register_ep(cpu=True)"
    if not names:
        raise ProviderError(f"{NAME} has no device: HIP finds no AMD GPU that the compiler knows{hint}")
    raise ProviderError(f"{NAME} has no device '{device}'; it has {', '.join(names)}{hint}")


def _offered() -> list[Any]:
    return [device for device in _onnxruntime().get_ep_devices() if device.ep_name == NAME]


def ep_report(session: Any) -> Report:
    """Which node of a session runs where, and why. Prints as a table.

    Args:
        session: an ``onnxruntime.InferenceSession``.

    Raises:
        LookupError: it does not use this provider.
    """
    return ask(session)


def _onnxruntime() -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise ProviderError(
            f"onnxruntime cannot be imported ({error}); run: pip install 'fusilli-plugin[ort]'"
        ) from error
    if not hasattr(onnxruntime, "register_execution_provider_library"):  # the library itself refuses later ones
        raise ProviderError(f"onnxruntime {onnxruntime.__version__} is too old: 1.24.4 or newer is needed")
    return onnxruntime
