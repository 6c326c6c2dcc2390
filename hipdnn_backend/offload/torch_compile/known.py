"""What is known of an operator of PyTorch before anybody compiles it."""

from __future__ import annotations

import functools
from typing import Any, Final

import torch

from hipdnn_backend.offload.frontend.torch_graph import KEPT
from hipdnn_backend.offload.mlir import new_context

__all__ = ["dialect_name", "draws", "is_known", "is_random", "is_view", "moves_only"]

_ATEN: Final = torch.ops.aten
_PRIMS: Final = torch.ops.prims
_VIEWS: Final = frozenset(
    {
        *(_ATEN.view.default, _ATEN._unsafe_view.default, _ATEN.permute.default, _ATEN.transpose.int, _ATEN.t.default),
        *(_ATEN.expand.default, _ATEN.unsqueeze.default, _ATEN.squeeze.default, _ATEN.squeeze.dim),
        *(_ATEN.squeeze.dims, _ATEN.slice.Tensor, _ATEN.select.int, _ATEN.detach.default, _ATEN.alias.default),
    }
)
"""Other looks at one tensor that the front end knows."""
_MOVES: Final = frozenset(
    {
        *(_ATEN.clone.default, _ATEN.copy.default, _ATEN.cat.default, _ATEN.slice_scatter.default),
        *(_ATEN.select_scatter.default, _ATEN.constant_pad_nd.default, _ATEN.flip.default, _ATEN.roll.default),
        *(_ATEN._to_copy.default, _PRIMS.convert_element_type.default, _ATEN.repeat.default),
    }
)
"""What computes nothing."""


def dialect_name(target: Any) -> str:
    """The name of an operator in the torch dialect."""
    name = target._schema.name.replace("::", ".")
    overload = target._schema.overload_name
    return f"torch.{name}.{overload}" if overload else f"torch.{name}"


@functools.cache
def _context() -> Any:
    return new_context()


@functools.cache
def is_known(target: Any) -> bool:
    """Whether the torch dialect has the operator."""
    name = dialect_name(target)
    return name in KEPT or bool(_context().is_registered_operation(name))


def is_random(target: Any) -> bool:
    """Whether results may be drawn."""
    return torch.Tag.nondeterministic_seeded in target.tags


def draws(node: torch.fx.Node) -> bool:
    """Whether results are drawn; an attention that drops nothing draws nothing."""
    target: Any = node.target
    if not is_random(target):
        return False
    names = [argument.name for argument in target._schema.arguments]
    if "dropout_p" not in names:
        return True
    given = dict(zip(names, node.args, strict=False)) | node.kwargs
    return bool(given.get("dropout_p", 0.0) != 0.0)


def is_view(target: Any) -> bool:
    """Whether the result is another look at the first operand, which the front end knows."""
    return target in _VIEWS


def moves_only(target: Any) -> bool:
    """Whether it computes nothing new: copies, casts, rearrangements."""
    return target in _MOVES
