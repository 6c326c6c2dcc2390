"""Torch operations → hipDNN graphs in wire form, a file per operation family."""

from __future__ import annotations

from fusilli_ground.discovery import import_files
from hipdnn_backend.offload.to_wire.errors import NotTranslated
from hipdnn_backend.offload.to_wire.leftover import translate_leftover
from hipdnn_backend.offload.to_wire.registry import RULES, Role, role
from hipdnn_backend.offload.to_wire.shape import RESHAPES
from hipdnn_backend.offload.to_wire.translation import Translation, translate

__all__ = ["RESHAPES", "RULES", "NotTranslated", "Role", "Translation", "role", "translate", "translate_leftover"]

import_files(__name__, __path__)  # a family registers its rules when it is imported
