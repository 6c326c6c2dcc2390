"""From a model to a program of compiled hipDNN graphs: front end, passes, memory plan, execution."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from hipdnn_backend.offload.model import Model, compile_model, engines_for, engines_for_target, load
    from hipdnn_backend.offload.shaped import ShapedModel, compile_shapes, load_shapes

__all__ = [
    "Model",
    "ShapedModel",
    "compile_model",
    "compile_shapes",
    "engines_for",
    "engines_for_target",
    "load",
    "load_shapes",
]

_SHAPED: Final = frozenset({"ShapedModel", "compile_shapes", "load_shapes"})


def __getattr__(name: str) -> Any:
    """The public names, loaded on use: the data modules of this package are imported without them."""
    if name in __all__:
        module = "shaped" if name in _SHAPED else "model"
        return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
