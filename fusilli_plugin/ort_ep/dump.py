"""Copies of compiled groups, to look at and to run again: a folder with the group as an ONNX model and its graphs."""

from __future__ import annotations

import json
import logging
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import onnx

from hipdnn_backend.offload.program.document import to_document

if TYPE_CHECKING:
    from fusilli_plugin.ort_ep.offloading import Compiled

__all__ = ["write"]

_LOG: Final = logging.getLogger(__name__)


def write(folder: Path, model: onnx.ModelProto, compiled: Compiled) -> Path | None:
    """Write a group into a folder of its own, named after its content; None if it is there or cannot be written.

    It gets ``model.onnx``, with static shapes and weights, ``program.json`` and, for each graph, its bytes in hipDNN's
    format. ``fusilli replay FOLDER`` runs the group on random inputs and compares each graph with ONNX Runtime;
    ``fusilli run`` runs the model on given inputs, or a graph alone.
    """
    from fusilli_plugin.ort_ep.offloading import fingerprint

    target = folder / fingerprint(model)[:16]
    if target.exists():
        return None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".dump-") as name:
            made = Path(name, "group")
            made.mkdir()
            onnx.save(model, str(made / "model.onnx"))
            (made / "program.json").write_text(json.dumps(to_document(compiled.program)), encoding="utf-8")
            for graph, wire in compiled.graphs.items():
                (made / f"{graph}.bin").write_bytes(wire)
            os.rename(made, target)
    except (OSError, ValueError) as error:
        _LOG.error("a group could not be dumped to %s: %s", folder, error)
        return None
    return target
