"""Results that other nodes of the graph read as well: rounded once, and where, so that no kernel is needed for it."""

from __future__ import annotations

from graph_api import Graph, TensorAttr
from iree_bridge.emit.builder import Builder, Value
from iree_bridge.emit.linalg import element_type
from iree_bridge.targets.target import Target
from iree_bridge.targets.types import builtin_tensor

__all__ = ["elementwise_sources", "is_elementwise", "is_read_again", "is_read_by_a_norm", "stored_beside"]

_NORMS = ("layernorm", "rmsnorm")


def is_read_again(graph: Graph, tensor: TensorAttr, target: Target) -> bool:
    """Whether a tensor in memory is an operand, too, of what reads it from there: kernels of its own on a GPU.

    They read what is stored, as hipDNN's nodes do one by one. Of the unrounded value, the compiler would store that for
    them, and round it in one more kernel.
    """
    return target.is_gpu and not tensor.is_virtual and bool(graph.readers(tensor))


def is_read_by_a_norm(graph: Graph, tensor: TensorAttr) -> bool:
    """Whether the kernel of a norm over the last dims can make the tensor, which is computed element by element.

    Both lie row by row: of others the compiler makes no kernel, or one that it cannot distribute.
    """
    norms = [node for node in graph.readers(tensor) if node.op in _NORMS and node.inputs["x"] is tensor]
    lie_so = all(_is_row_major(each) for node in norms for each in (tensor, node.outputs["y"]))
    return bool(norms) and lie_so and is_elementwise(graph, tensor)


def _is_row_major(tensor: TensorAttr) -> bool:
    return tensor.physical.dense and list(tensor.physical.order) == sorted(tensor.physical.order)


def is_elementwise(graph: Graph, tensor: TensorAttr) -> bool:
    """Whether nothing but pointwise operations makes it of the graph's inputs."""
    return all(graph.maker(source) is None for source in elementwise_sources(graph, tensor))


def elementwise_sources(graph: Graph, tensor: TensorAttr) -> list[TensorAttr]:
    """What pointwise operations make a tensor of, each once: inputs, and what other operations make."""
    seen, sources, rest = {tensor}, list[TensorAttr](), [tensor]
    while rest:
        each = rest.pop()
        made = graph.maker(each)
        if made is None or made.op != "pointwise":
            sources.append(each)
            continue
        new = {source for source in made.inputs.values() if source not in seen}
        seen |= new
        rest += new
    return sources


def stored_beside(b: Builder, value: Value, kept: Value, tensor: TensorAttr) -> tuple[Value, Value]:
    """``value``, and ``kept``, of the same dims, in the type of ``tensor``: by one operation.

    What it is made of joins it, and so the kernel of a sum that ``value`` is made of. A rounding alone is a kernel.
    """
    wide, other = builtin_tensor(kept.dims, kept.dtype), builtin_tensor(value.dims, value.dtype)
    narrow = builtin_tensor(kept.dims, tensor.data_type)
    kind, more, less = (element_type(dtype) for dtype in (kept.dtype, value.dtype, tensor.data_type))
    loops = ", ".join(f"d{axis}" for axis in range(len(kept.dims)))
    same = ", ".join([f"affine_map<({loops}) -> ({loops})>"] * 4)
    kinds = ", ".join(['"parallel"'] * len(kept.dims))
    text = f"""func.func private @beside(%x: {other}, %y: {wide}) -> ({other}, {narrow}) {{
  %empty = tensor.empty() : {other}
  %smaller = tensor.empty() : {narrow}
  %made:2 = linalg.generic {{indexing_maps = [{same}], iterator_types = [{kinds}]}}
    ins(%x, %y : {other}, {wide}) outs(%empty, %smaller : {other}, {narrow}) {{
  ^bb0(%i: {more}, %j: {kind}, %o: {more}, %p: {less}):
    %rounded = arith.truncf %j : {kind} to {less}
    linalg.yield %i, %rounded : {more}, {less}
  }} -> ({other}, {narrow})
  return %made#0, %made#1 : {other}, {narrow}
}}"""
    first, second = b.calls(text, [value, kept], [(value.dims, value.dtype), (kept.dims, tensor.data_type)])
    return first, second
