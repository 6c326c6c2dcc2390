"""A model file, bytes or ModelProto, checked before anything relies on it."""

from __future__ import annotations

import os
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError

from hipdnn_backend.offload.errors import ModelError

__all__ = ["OLDEST_OPSET", "read"]

OLDEST_OPSET = 7


def read(source: str | os.PathLike[str] | bytes | onnx.ModelProto) -> tuple[onnx.ModelProto, Path | None]:
    """The model and the folder where its external data may lie (None: it came without one). External data is not read.

    Raises:
        ModelError: no such file, damaged, no ONNX model, or of an opset that is unknown.
    """
    folder = None
    if isinstance(source, onnx.ModelProto):
        model = source
    elif isinstance(source, bytes):
        model = _parse(source, "the model's bytes")
    else:
        path = Path(source)
        try:
            data = path.read_bytes()
        except (OSError, ValueError) as error:  # ValueError: a NUL in the name
            reason = getattr(error, "strerror", None) or error
            raise ModelError("", "model-file", f"cannot read {str(path)!r}: {reason}") from error
        model, folder = _parse(data, path.name), path.parent
    _check_header(model)
    return model, folder


def _parse(data: bytes, what: str) -> onnx.ModelProto:
    if len(data) >= 2**31:
        reason = f"{what} is larger than 2 GiB, which protobuf cannot hold; save the weights as external data"
        raise ModelError("", "model-file", reason)
    try:
        return onnx.load_model_from_string(data)
    except DecodeError as error:
        raise ModelError("", "model-file", f"{what} is no ONNX model, damaged or truncated") from error


def _check_header(model: onnx.ModelProto) -> None:
    if not model.HasField("graph") or not model.opset_import:
        raise ModelError("", "model-file", "no graph or no opset version in it: no ONNX model, empty or truncated")
    if not model.graph.output:
        raise ModelError(model.graph.name, "model-file", "the graph has no outputs: the file may be truncated")
    opsets = {opset.domain: opset.version for opset in model.opset_import}
    version, newest = opsets.get("", opsets.get("ai.onnx")), onnx.defs.onnx_opset_version()
    if version is not None and not OLDEST_OPSET <= version <= newest:
        reason = f"opset {version} is outside {OLDEST_OPSET} to {newest}, which onnx {onnx.__version__} knows"
        advice = "install a newer onnx" if version > newest else "export the model again, or convert it"
        raise ModelError("", "opset", f"{reason}; {advice}")
