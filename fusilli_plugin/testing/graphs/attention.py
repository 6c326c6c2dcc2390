"""Attention, its gradients, and attention of small types."""

from __future__ import annotations

from typing import Any

from fusilli_plugin.testing.graphs.draw import FP8, HALVES, Draw, new_graph, tensor
from graph_api import DataType, Graph

D = DataType

__all__ = ["attention", "attention_gradients", "small_attention"]


def attention(d: Draw) -> Graph | None:
    """Attention with grouped heads, causal or with a bias, and its statistics."""
    io = d.pick((*HALVES, D.FLOAT))
    width, queries = d.pick((8, 16, 16, 32, 64)), d.pick((1, 2, 5, 8, 16, 17, 33, 48, 64, 65))
    keys = queries if d.chance(0.6) else d.pick((1, 3, 8, 16, 17, 31, 64, 65))
    heads, shared = d.pick(((1, 1), (2, 1), (2, 2), (4, 2)))
    batch = d.pick((1, 1, 2))
    g = new_graph(io)
    q = g.tensor("q", dim=(batch, heads, queries, width))
    k, v = (g.tensor(name, dim=(batch, shared, keys, width)) for name in ("k", "v"))
    options: dict[str, Any] = {}
    if d.chance(0.4) and keys >= queries:
        options["causal_mask"] = True
    elif d.chance(0.3):
        options["bias"] = g.tensor("bias", dim=(1, heads, queries, keys))
    made = g.sdpa(q, k, v, attn_scale=width**-0.5, generate_stats=d.chance(0.25), **options)
    made.o.set_output(True)
    if made.stats is not None:
        made.stats.set_output(True)
    return g


def attention_gradients(d: Draw) -> Graph | None:
    """Of an attention that is not in the graph."""
    io = d.pick((*HALVES, D.FLOAT))
    width, queries, keys = d.pick((8, 16, 16, 32)), d.pick((1, 2, 5, 16, 17, 33, 48)), d.pick((1, 3, 8, 16, 17, 31, 64))
    heads, shared = d.pick(((1, 1), (2, 1), (2, 2), (4, 2)))
    options: dict[str, Any] = {}
    bias: tuple[int, ...] | None = None
    if d.chance(0.4):
        options["causal_mask"] = True
    elif d.chance(0.4):
        bias = d.pick(((1, heads, queries, keys), (queries, keys), (1, heads, 1, keys)))
    batch, values = d.pick((1, 1, 2)), d.pick((width, 8))
    layout = d.pick(("BHSD", "BHSD", "BSHD", "PADDED"))
    q, k, v = (batch, heads, queries, width), (batch, shared, keys, width), (batch, shared, keys, values)
    o = (*q[:3], values)
    g = Graph("g", io_data_type=io)
    named = (("q", q), ("k", k), ("v", v), ("o", o), ("do", o))
    tensors = [g.tensor(name, dim=dims, stride=_strides(dims, layout)) for name, dims in named]
    tensors.append(g.tensor("stats", dim=(*q[:3], 1), data_type=D.FLOAT))
    if bias is not None:
        options["bias"] = g.tensor("bias", dim=bias)
        options["dbias"] = g.tensor("dbias", dim=bias).set_output()
    for gradient in g.sdpa_backward(*tensors, **options):
        gradient.set_output()
    return g


def _strides(dims: tuple[int, ...], layout: str) -> tuple[int, ...] | None:
    """Strides of [B, H, S, D]: packed in the order that the name has, or rows with a gap behind each."""
    _, heads, length, width = dims
    return {
        "BHSD": None,
        "BSHD": (length * heads * width, width, heads * width, 1),
        "PADDED": (heads * length * 2 * width, length * 2 * width, 2 * width, 1),
    }[layout]


def small_attention(d: Draw) -> Graph:
    """Attention of 8-bit floats, some of its factors, and its amaxes."""
    g = Graph("g", io_data_type=D.FLOAT, compute_data_type=D.FLOAT, intermediate_data_type=D.FLOAT)
    kind, heads, shared = d.pick(FP8), d.pick((2, 4)), d.pick((1, 2))
    sq, skv, size = d.pick((1, 5, 16, 19, 32, 64)), d.pick((2, 7, 16, 33, 64)), d.pick((8, 16, 32, 64))
    dims = {"q": (2, heads, sq, size), "k": (2, shared, skv, size), "v": (2, shared, skv, d.pick((16, 32)))}
    operands = [tensor(d, g, name, each, layouts=("packed", "any")).set_data_type(kind) for name, each in dims.items()]
    names = [n for n in ("descale_q", "descale_k", "descale_v", "descale_s", "scale_s", "scale_o") if d.chance(0.5)]
    options: dict[str, Any] = {name: g.tensor(name, dim=(1, 1, 1, 1), data_type=D.FLOAT) for name in names}
    for name in ("amax_s", "amax_o"):
        if d.chance(0.5):
            options[name] = g.tensor(name, dim=(1, 1, 1, 1), data_type=D.FLOAT).set_output(True)
    options["causal_mask"] = d.chance(0.3)
    g.sdpa(*operands, **options).o.set_output(True).set_data_type(d.pick((kind, D.HALF, D.FLOAT)))
    return g
