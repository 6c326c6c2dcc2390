"""Fusilli for users: the command line, the checks it runs, and the adapters that other frameworks load."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fusilli_plugin.ort_ep.register import ep_devices, ep_report, library_path, register_ep, unregister_ep
    from hipdnn_backend.offload.torch_compile import torch_report

__all__ = [
    "__version__",
    "ep_devices",
    "ep_report",
    "library_path",
    "plugin_dir",
    "register_ep",
    "torch_report",
    "unregister_ep",
]

__version__ = "0.1.0"

_OF_ORT = frozenset({"ep_devices", "ep_report", "library_path", "register_ep", "unregister_ep"})


def __getattr__(name: str) -> Any:
    """Loads the functions for ONNX Runtime and PyTorch when they are first asked for."""
    if name == "torch_report":
        from hipdnn_backend.offload.torch_compile import torch_report

        return torch_report
    if name not in _OF_ORT:
        raise AttributeError(f"module 'fusilli_plugin' has no attribute {name!r}")
    from fusilli_plugin.ort_ep import register

    return getattr(register, name)


def plugin_dir() -> str:
    """The folder with the hipDNN engine plugin, for ``hipdnn_frontend.set_engine_plugin_paths``.

    Raises:
        InstallError: the plugin is not there and cannot be built.
    """
    from fusilli_plugin.edge.install import plugin_dir as find

    return str(find())
