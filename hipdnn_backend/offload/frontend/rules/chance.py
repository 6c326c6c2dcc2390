"""Random nodes stay ONNX. Compiled, two alike became one, and on constants they became part of a setup."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx

from hipdnn_backend.offload.frontend.rewriting import Builder, rewrites

__all__: list[str] = []


@rewrites("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial")
def _random(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    raise b.unsupported("random", "each run has other numbers, which compiled code does not keep")


@rewrites("Dropout")
def _dropout(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """Dropout in training; `identity` has the one at inference, and where nothing is dropped."""
    training = b.value(b.input(2)) if b.input(2) else np.asarray(False)
    ratio = b.value(b.input(1)) if b.input(1) else np.asarray(0.5)
    if training is None or not training.any() or (ratio is not None and not ratio.any()):
        return None
    raise b.unsupported("random", "each run of it in training drops others, which compiled code does not keep")
