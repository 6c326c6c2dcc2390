"""The other engine plugins of this process: what is loaded decides what is left to others, and how graphs are read.

hipDNN loads all plugins when its first handle is made, before it asks any of them about a graph. A plugin is found by
the functions that every one exports; nothing is loaded here, and nothing but names and ids is asked for.
"""

from __future__ import annotations

import ctypes
import logging
import os
from typing import Final, NamedTuple

from fusilli_ground.mapped import mapped_files
from hipdnn_backend.engine import EngineId, engine_id, engine_name

__all__ = ["Company", "company"]

_LOG: Final = logging.getLogger(__name__)
_OURS: Final = b"fusilli-plugin"  # what the shim says in hipdnnPluginGetName
_APPLICABLE: Final = "hipdnnEnginePluginGetApplicableEngineIds"
_ENGINE_NAME: Final = "hipdnnEnginePluginGetEngineName"
_MAX_ENGINES: Final = 1024
_CONVOLUTIONS: Final = frozenset({"conv_fprop", "conv_dgrad", "conv_wgrad"})
_BATCHNORMS: Final = frozenset({
    "batchnorm", "batchnorm_inference", "batchnorm_inference_variance_ext", "batchnorm_backward",
})  # fmt: skip
_ATTENTION: Final = frozenset({"sdpa", "sdpa_backward"})
_NORMS: Final = frozenset({"layernorm", "layernorm_backward", "rmsnorm", "rmsnorm_backward"})
_BY_NAME: Final[dict[str, frozenset[str]]] = {
    "MIOPEN_ENGINE": _CONVOLUTIONS | _BATCHNORMS | {"pointwise"},
    "MIOPEN_ENGINE_DETERMINISTIC": _CONVOLUTIONS | _BATCHNORMS | {"pointwise"},
    "HIPBLASLT_ENGINE": frozenset({"matmul"}),
    "HIP_MLOPS_ENGINE": _BATCHNORMS | _NORMS | {"resample_fwd", "resample_bwd"},
    "ASM_SDPA_ENGINE": _ATTENTION,
    "HIP_FLASH2_ENGINE": _ATTENTION,
    "ROCKE_ENGINE": _CONVOLUTIONS | {"matmul"} | _ATTENTION,
}
"""Engine → the operations of graphs that it may take. Of one that is not here nothing is known: it may take all."""
_TAKES: Final = {engine_id(name): operations for name, operations in _BY_NAME.items()}
_names: Final = {engine_id(name): name for name in _BY_NAME}  # and those that plugins say
# Those of AMD's provider that runs batchnorm.
_MIOPEN: Final = frozenset((engine_id("MIOPEN_ENGINE"), engine_id("MIOPEN_ENGINE_DETERMINISTIC")))


class Company(NamedTuple):
    """The plugins beside ours.

    Attributes:
        plugins: path by file, and the ids of its engines.
    """

    plugins: tuple[tuple[str, tuple[EngineId, ...]], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.plugins)

    def takers(self, operation: str) -> list[str]:
        """Names of the engines that may take graphs around an operation of `graph_api`."""
        found: list[str] = []
        for path, ids in self.plugins:
            known = [_name(id_) for id_ in ids if id_ not in _TAKES or operation in _TAKES[id_]]
            found += known or ([] if ids else [os.path.basename(path)])  # it does not say which engines it has
        return found

    @property
    def has_miopen(self) -> bool:
        """Whether AMD's MIOpen provider is among them."""
        return any(_MIOPEN & set(ids) or "miopen" in os.path.basename(path) for path, ids in self.plugins)

    def __str__(self) -> str:
        texts = (f"{path} ({', '.join(map(_name, ids))})" for path, ids in self.plugins)
        return ", ".join(texts) or "no other engine plugin"


_seen: dict[frozenset[str], Company] = {}


def company() -> Company:
    """The engine plugins that are loaded now, ours left out. Cheap when no library came or went."""
    libraries = _libraries()
    if libraries not in _seen:
        _seen.clear()
        found = ((path, _engines(path)) for path in sorted(libraries))
        _seen[libraries] = Company(tuple((path, ids) for path, ids in found if ids is not None))
    return _seen[libraries]


def _libraries() -> frozenset[str]:
    """The shared libraries that are mapped into this process."""
    return frozenset(path for path in mapped_files() if ".so" in path)


def _engines(path: str) -> tuple[EngineId, ...] | None:
    """The ids of a plugin's engines; None if the library is none, or ours."""
    try:
        library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:
        return None
    if not _exports(library, _APPLICABLE):
        return None
    name = ctypes.c_char_p()
    if library.hipdnnPluginGetName(ctypes.byref(name)) == 0 and name.value == _OURS:
        return None
    count = ctypes.c_uint32()
    ids = (ctypes.c_int64 * _MAX_ENGINES)()
    if library.hipdnnEnginePluginGetAllEngineIds(ids, ctypes.c_uint32(_MAX_ENGINES), ctypes.byref(count)) != 0:
        return ()
    found = tuple(EngineId(ids[index]) for index in range(min(count.value, _MAX_ENGINES)))
    _ask_names(library, found)
    return found


def _ask_names(library: ctypes.CDLL, ids: tuple[EngineId, ...]) -> None:
    """Keep the names that a plugin gives its engines."""
    if not hasattr(library, _ENGINE_NAME):
        return
    for id_ in ids:
        name = ctypes.c_char_p()
        if library[_ENGINE_NAME](ctypes.c_int64(id_), ctypes.byref(name)) == 0 and name.value:
            text = name.value.decode(errors="replace")
            if engine_id(text) == id_:
                _names[id_] = text


def _name(id_: EngineId) -> str:
    return _names.get(id_) or engine_name(id_)


def _exports(library: ctypes.CDLL, name: str) -> bool:
    """Whether a library, and not one that it depends on, has the functions of a plugin."""
    functions = (name, "hipdnnPluginGetName", "hipdnnEnginePluginGetAllEngineIds")
    if not all(hasattr(library, each) for each in functions):
        return False
    info = _DlInfo()
    address = ctypes.cast(getattr(library, name), ctypes.c_void_p)
    if not ctypes.CDLL(None).dladdr(address, ctypes.byref(info)) or not info.file:
        return False
    return os.path.realpath(info.file) == os.path.realpath(os.fsencode(library._name))


class _DlInfo(ctypes.Structure):
    """``Dl_info`` of <dlfcn.h>."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("symbol", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )
