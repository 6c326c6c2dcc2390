"""Torch operations → hipDNN graphs in wire form, a file per operation family."""

from __future__ import annotations

import importlib
from typing import Final

from hipdnn_backend.offload.to_wire.errors import NotTranslated
from hipdnn_backend.offload.to_wire.leftover import translate_leftover
from hipdnn_backend.offload.to_wire.registry import RULES
from hipdnn_backend.offload.to_wire.translation import Translation, translate

__all__ = ["RULES", "NotTranslated", "Translation", "translate", "translate_leftover"]

_FAMILIES: Final = ("activation", "attention", "conv", "matmul", "norm", "pointwise", "reduction", "resample", "shape")

for _family in _FAMILIES:  # a family registers its rules when it is imported
    importlib.import_module(f"{__name__}.{_family}")
