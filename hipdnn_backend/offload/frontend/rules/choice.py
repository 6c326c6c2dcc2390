"""If: what is left of them once those with a condition that is known are gone."""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from hipdnn_backend.offload.frontend.operators import operator
from hipdnn_backend.offload.frontend.rewriting import Builder, rewrites

__all__: list[str] = []

operator("If", static=(0,))


@rewrites("If")
def _if(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """Not converted: IREE's code for a branch whose result is an output copies that onto itself, and fails in a run."""
    name = b.input(0)
    advice = f"; bind it: --input {name}=VALUE" if name in b.graph.inputs else ""
    raise b.unsupported("if", f"operand {name!r}, which only a run knows, decides which of its bodies runs{advice}")
