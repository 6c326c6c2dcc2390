"""Tensors of one number in a graph of PyTorch's operators, computed by PyTorch instead of by Torch-MLIR's folding."""

# PyTorch's functions have no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import contextlib
from typing import Any, Final

__all__ = ["settle_uniform"]

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
"""Elements of the largest tensors that are computed."""


def settle_uniform(graph: Any) -> None:
    """Make what follows from tensors of one number, and is one too, such a tensor itself.

    Torch-MLIR folds some operations on constants to something else: a negative whole number added to a float is 2 ** 64
    less, the remainder has the sign of the dividend, unsigned integers are divided as signed ones.

        full = aten.full([2], 0.25); add = aten.add.Tensor(full, -2)
      becomes
        add = aten.full([2], -1.75)

    Args:
        graph: a ``torch.fx.Graph``, changed in place; each node has its tensor as ``meta["val"]``.
    """
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    known: dict[Any, Any] = {}
    with _disable_current_modes(), torch.no_grad():
        for node in list(graph.nodes):
            if node.op != "call_function" or not _is_plain(torch, node.meta.get("val")):
                continue
            made = _made(torch, node)
            if made is None:
                made = _computed(torch, node, known)
                if made is None:
                    continue
                node = _replaced(torch, graph, node, made)
            known[node] = made


def _is_plain(torch: Any, value: Any) -> bool:
    """Whether it is a tensor of known dims that can be computed here."""
    if not isinstance(value, torch.Tensor) or not all(isinstance(size, int) for size in value.shape):
        return False
    return 0 < value.numel() <= _MOST and not value.is_complex() and value.layout == torch.strided


def _made(torch: Any, node: Any) -> Any:
    """The tensor that a node makes of a number."""
    name, value = str(node.target), node.meta["val"]
    number = node.args[_FILLED[name]] if name in _FILLED and len(node.args) > _FILLED[name] else _PLAIN.get(name)
    if not isinstance(number, bool | int | float):
        return None
    return torch.full(value.shape, number, dtype=value.dtype)


def _computed(torch: Any, node: Any, known: dict[Any, Any]) -> Any:
    """The tensor that a node makes of known ones, if it has one number too."""
    sources = node.all_input_nodes
    if not sources or not all(source in known for source in sources) or not hasattr(node.target, "tags"):
        return None
    if torch.Tag.nondeterministic_seeded in node.target.tags:
        return None
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), known.__getitem__)
    made: Any = None
    with contextlib.suppress(Exception):  # whatever PyTorch says of it, it says when the graph runs
        made = node.target(*args, **{name: each for name, each in kwargs.items() if name != "device"})
    value = node.meta["val"]
    if not isinstance(made, torch.Tensor) or (made.shape, made.dtype) != (value.shape, value.dtype):
        return None
    first = made.flatten()[0]
    is_one = bool(made.isnan().all()) if first.isnan() else bool((made == first).all())
    return made if is_one else None


def _replaced(torch: Any, graph: Any, node: Any, made: Any) -> Any:
    """The node that makes the same of a number, in the place of this one."""
    device = node.meta["val"].device
    with graph.inserting_before(node):
        new = graph.call_function(
            torch.ops.aten.full.default,
            (list(made.shape), made.flatten()[0].item()),
            {"dtype": made.dtype, "device": device, "pin_memory": False},
        )
    new.meta = dict(node.meta)
    node.replace_all_uses_with(new)
    graph.erase_node(node)
    return new
