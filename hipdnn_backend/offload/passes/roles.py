"""What part an operation plays in a fusion. Whether a group can be a graph, the translator and the engines say."""

from __future__ import annotations

from enum import Enum
from typing import Final

__all__ = ["RESHAPES", "Role", "role"]


class Role(Enum):
    """The part of an operation.

    ANCHOR: what a fusion is built around; no fusion has two, except attention written out.
    REDUCTION: an anchor that may have elementwise operations in front of it.
    VIEW: another look at the same elements, or a frame around them; goes with what uses it.
    ELEMENTWISE: anything else; if it is not elementwise in truth, translation refuses it.
    """

    ANCHOR = "anchor"
    REDUCTION = "reduction"
    VIEW = "view"
    ELEMENTWISE = "elementwise"


RESHAPES: Final = frozenset(
    f"torch.{name}"
    for name in (
        *("aten.view", "aten._unsafe_view", "aten.reshape", "aten.flatten.using_ints", "aten.unflatten.int"),
        *("aten.squeeze", "aten.squeeze.dim", "aten.unsqueeze", "prims.collapse", "prims.split_dim", "prims.squeeze"),
    )
)
"""Operations that keep the elements in row-major order and change nothing but the dims."""

_MOVES = ("aten.permute", "aten.transpose.int", "aten.t", "aten.numpy_T", "aten.expand", "aten.broadcast_to")
_PARTS = ("aten.slice.Tensor", "aten.narrow", "aten.select.int")
_FRAMES = ("aten.constant_pad_nd", "aten.pad")
_VIEWS: Final = RESHAPES | {f"torch.{name}" for name in (*_MOVES, *_FRAMES, *_PARTS)}

_ANCHORS: Final = (
    *("aten.convolution", "aten._convolution", "aten.conv", "aten.mm", "aten.bmm", "aten.matmul", "aten.linear"),
    *("aten.addmm", "aten.baddbmm", "aten.native_batch_norm", "aten.layer_norm", "aten.native_layer_norm"),
    *("aten.group_norm", "aten.native_group_norm", "aten.instance_norm", "aten.rms_norm", "aten._fused_rms_norm"),
    *("aten.scaled_dot_product_", "aten._scaled_dot_product_", "aten.softmax", "aten._softmax", "aten.log_softmax"),
    *("aten._log_softmax", "aten.max_pool", "aten.avg_pool", "aten.adaptive_", "aten.lp_pool"),
)
_REDUCTIONS: Final = (
    *("aten.sum", "aten.mean", "aten.amax", "aten.amin", "aten.prod", "aten.norm", "aten.linalg_vector_norm"),
    *("aten.var", "aten.std", "aten.argmax", "aten.argmin", "aten.max.dim", "aten.min.dim", "aten.any", "aten.all"),
)
# both are beginnings of names behind "torch."


def role(name: str) -> Role:
    """The part of an operation, by its MLIR name. Batch normalization with given statistics is elementwise."""
    if name in _VIEWS:
        return Role.VIEW
    plain = name.removeprefix("torch.")
    if plain.startswith(_ANCHORS):
        return Role.ANCHOR
    if plain.startswith(_REDUCTIONS):
        return Role.REDUCTION
    return Role.ELEMENTWISE
