"""Tensors of one number in a graph of PyTorch's operators, computed by PyTorch instead of by Torch-MLIR's folding."""

# PyTorch's functions have no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import contextlib
from typing import Any, Final

__all__ = ["with_uniform"]

_FILLED: Final = {
    "aten.full.default": 1,
    "aten.full_like.default": 1,
    "aten.new_full.default": 2,
    "aten.scalar_tensor.default": 0,
}
"""Operator → which argument every element is."""
_PLAIN: Final = {
    **dict.fromkeys(("aten.zeros.default", "aten.zeros_like.default", "aten.new_zeros.default"), 0),
    **dict.fromkeys(("aten.ones.default", "aten.ones_like.default", "aten.new_ones.default"), 1),
}
"""Operator → every element."""
_MOST: Final = 1 << 20
"""Elements of the largest tensors that are computed whole; of pointwise operations one element is enough."""


def with_uniform(graph: Any) -> Any:
    """A graph in which what follows from tensors of one number, and is one too, is such a tensor itself.

    Torch-MLIR folds some operations on constants to something else: a negative whole number added to a float is 2 ** 64
    less, the remainder has the sign of the dividend, unsigned integers are divided as signed ones.

        full = aten.full([2], 0.25); add = aten.add.Tensor(full, -2)
      becomes
        add = aten.full([2], -1.75)

    Args:
        graph: a ``torch.fx.Graph``, left as it is; each node has its tensor as ``meta["val"]``.

    Returns:
        A copy, with nodes of the same names; the graph itself if there is nothing to do.
    """
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    known: dict[Any, Any] = {}
    computed: list[Any] = []
    with _disable_current_modes(), torch.no_grad():
        for node in graph.nodes:
            if node.op != "call_function" or not _is_plain(torch, node.meta.get("val")):
                continue
            number = _filled(torch, node)
            if number is None:
                number = _computed(torch, node, known)
                if number is None:
                    continue
                computed.append(node)
            known[node] = number.expand(node.meta["val"].shape)
    if not computed:
        return graph
    new = torch.fx.Graph(owning_module=graph.owning_module)
    copies: dict[Any, Any] = {}
    new.output(new.graph_copy(graph, copies))
    for node in computed:
        _fill(torch, new, copies[node], known[node])
    return new


def _is_plain(torch: Any, value: Any) -> bool:
    """Whether it is a tensor of known dims, with elements."""
    if not isinstance(value, torch.Tensor) or not all(isinstance(size, int) for size in value.shape):
        return False
    return value.numel() > 0 and not value.is_complex() and value.layout == torch.strided


def _filled(torch: Any, node: Any) -> Any:
    """What a node fills its tensor with."""
    name = str(node.target)
    number = node.args[_FILLED[name]] if name in _FILLED and len(node.args) > _FILLED[name] else _PLAIN.get(name)
    return torch.full((), number, dtype=node.meta["val"].dtype) if isinstance(number, bool | int | float) else None


def _computed(torch: Any, node: Any, known: dict[Any, Any]) -> Any:
    """The one number of what a node makes of known tensors; None if it makes several."""
    sources, value = node.all_input_nodes, node.meta["val"]
    if not sources or not all(source in known for source in sources) or not hasattr(node.target, "tags"):
        return None
    is_pointwise = torch.Tag.pointwise in node.target.tags
    if torch.Tag.nondeterministic_seeded in node.target.tags or not (is_pointwise or value.numel() <= _MOST):
        return None

    def operand(source: Any) -> Any:
        tensor = known[source]
        return tensor[(slice(1),) * tensor.dim()] if is_pointwise else tensor

    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), operand)
    made: Any = None
    with contextlib.suppress(Exception):  # whatever PyTorch says of it, it says when the graph runs
        made = node.target(*args, **{name: each for name, each in kwargs.items() if name != "device"})
    if not isinstance(made, torch.Tensor) or made.dtype != value.dtype:
        return None
    first = made.flatten()[0]
    is_one = bool(made.isnan().all()) if first.isnan() else bool((made == first).all())
    return first if is_one and (is_pointwise or made.shape == value.shape) else None


def _fill(torch: Any, graph: Any, node: Any, made: Any) -> None:
    """A node of the same name that makes the same of a number takes the place of this one."""
    name, meta = node.name, dict(node.meta)
    with graph.inserting_before(node):
        new = graph.call_function(
            torch.ops.aten.full.default,
            (list(made.shape), made[(0,) * made.dim()].item()),
            {"dtype": made.dtype, "device": meta["val"].device, "pin_memory": False},
        )
    new.meta = meta
    node.replace_all_uses_with(new)
    graph.erase_node(node)
    new.name = name
