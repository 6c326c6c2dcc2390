"""Random nodes stay ONNX: the passes merge what looks alike, and two draws are not one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx

from hipdnn_backend.offload.frontend.operators import operator
from hipdnn_backend.offload.frontend.rewriting import Builder, rewrites
from hipdnn_backend.onnx_op import RANDOM

__all__: list[str] = []

operator("Dropout", static=(1, 2, 3), keeps_dims=True)


@rewrites(*sorted(RANDOM - {"Dropout"}))
def _random(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    raise b.unsupported("random", "each run has other numbers, which compiled code does not keep")


@rewrites("Dropout")
def _dropout(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """At inference, and where nothing is dropped, its readers read what it reads."""
    training = b.value(b.input(2)) if b.input(2) else np.asarray(False)
    if training is None:
        return None
    ratio = b.value(b.input(1)) if b.input(1) else np.asarray(0.5)
    if training.any() and (ratio is None or ratio.any()):
        raise b.unsupported("random", "each run of it in training drops others, which compiled code does not keep")
    if not b.has_output(1):
        return [node.input[0]]
    dims = b.dims(node.input[0])
    return None if dims is None else [node.input[0], b.constant(np.ones(dims), np.bool_)]  # the mask drops nothing
