"""From a model to a program of compiled hipDNN graphs: front end, passes, memory plan, execution."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from hipdnn_backend.offload.model import Model, compile_model, engines_for, engines_for_target, load

__all__ = ["Model", "compile_model", "engines_for", "engines_for_target", "load"]

_MODULE: Final = "hipdnn_backend.offload.model"


def __getattr__(name: str) -> Any:
    """The public names, loaded on use: the data modules of this package are imported without them."""
    if name in __all__:
        return getattr(importlib.import_module(_MODULE), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
