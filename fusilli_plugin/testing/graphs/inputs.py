"""Inputs of random graphs: random ones, but those that belong together do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from graph_api import DataType, Graph, Node, TensorAttr

__all__ = ["attention_results", "inputs"]

Array = np.ndarray[Any, Any]
_PORTS: Final = {
    "bias": "attn_mask", "attn_scale": "scale", "seq_len_q": "seq_len_q", "seq_len_kv": "seq_len_kv",
    "dropout_mask": "dropout_mask", "dropout_scale": "dropout_scale",
}  # fmt: skip
"""What attention itself needs of the options that are tensors."""


def inputs(graph: Graph, seed: int = 0) -> dict[TensorAttr, Array]:
    """Inputs of a graph; variances are positive, results and statistics of an attention are those of its operands.

    Of two seeds in five all floats have one sign, as extremes seldom meet it.
    """
    pack = graph.random_inputs(seed=seed)
    backward = [node for node in graph.nodes if node.op == "sdpa_backward"]
    if not backward and (sign := {1: 1, 3: -1}.get(seed % 5)) is not None:
        for tensor, array in pack.items():
            if tensor.data_type.is_float or sign > 0:
                array[...] = sign * np.abs(array)
    for tensor, array in pack.items():
        if tensor.name.startswith("variance"):
            array[...] = np.abs(array)
    for node in backward:
        if node.inputs["o"] in pack and node.inputs["stats"] in pack and node.inputs["q"] in pack:
            for port, value in zip(("o", "stats"), attention_results(node, pack), strict=True):
                array = pack[node.inputs[port]]
                array[...] = value.reshape(array.shape).astype(array.dtype)
    return pack


def attention_results(backward: Node, pack: Mapping[TensorAttr, Array]) -> tuple[Array, Array]:
    """o and stats of the attention that a node of gradients belongs to, in float64."""
    a: Any = backward.attributes
    g = Graph("forward", io_data_type=DataType.DOUBLE, compute_data_type=DataType.DOUBLE)
    made: dict[str, Any] = {}
    given: dict[TensorAttr, Array] = {}
    sources = {"q": "q", "k": "k", "v": "v", **_PORTS, "sink_token": "sink_token"}
    for name, port in sources.items():
        source = backward.inputs.get(port)
        if source is not None:
            made[name] = g.tensor(name, dim=source.dims, data_type=source.data_type)
            given[made[name]] = pack[source]
    q, k, v = (made.pop(name) for name in "qkv")
    made.setdefault("attn_scale", a.attn_scale_value)
    results = g.sdpa(
        q, k, v, generate_stats=True, padding_mask=a.padding_mask, causal_mask=a.causal_mask,
        causal_mask_bottom_right=a.causal_mask_bottom_right, diagonal_band_left_bound=a.left_bound,
        diagonal_band_right_bound=a.right_bound, diagonal_alignment=a.diagonal_alignment, alibi_mask=a.alibi_mask,
        **made,
    )  # fmt: skip
    assert results.stats is not None
    results.o.set_output()
    results.stats.set_output()
    with np.errstate(all="ignore"):
        found = g.validate().reference(given)
    return found[results.o], found[results.stats]
