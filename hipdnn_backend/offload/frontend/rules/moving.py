"""Operators that move elements: where each comes from is known here, or computed as a position."""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from hipdnn_backend.offload.frontend.rewriting import Builder, rewrites

__all__: list[str] = []


@rewrites("SpaceToDepth")
def _blocks(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """Torch-MLIR orders the channels of both modes as ``DCR`` does."""
    dims, mode = b.dims(node.input[0]), b.given.get("mode", "DCR")
    if dims is None:
        return None
    orders = {"DCR": [0, 3, 5, 1, 2, 4], "CRD": [0, 1, 3, 5, 2, 4]}
    if mode not in orders or len(dims) != 4:
        raise b.unsupported("space-to-depth", f"mode {mode!r} of {list(dims)}")
    n, c, h, w = dims
    size = b.given["blocksize"]
    split = b.op("Reshape", node.input[0], b.constant([n, c, h // size, size, w // size, size]))
    turned = b.op("Transpose", split, perm=orders[mode])
    return [b.op("Reshape", turned, b.constant([n, c * size * size, h // size, w // size]))]
