"""Parts of tensors from which elements are taken one by one: they are copied first, for GPUs.

The compiler takes several such elements at once (``vector.gather``), by their places in a tensor in one piece. A part
of a tensor, as an input with gaps between its rows is, is read where the whole lies: the elements are others then.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from iree_bridge.emit.index_bounds import operations
from iree_bridge.emit.mlir import ir

__all__ = ["copy_own_parts", "is_part", "taken_from"]

_TAKERS: Final = frozenset({
    "gather", "index_select", "index", "_unsafe_index", "embedding", "embedding_bag", "take", "take_along_dim",
    "grid_sampler", "upsample_nearest2d", "upsample_bilinear2d", "roll", "flip",
})  # fmt: skip
"""Operations of PyTorch's that may take the elements of their first operand one by one."""
_VIEWS: Final = frozenset({
    "view", "reshape", "_unsafe_view", "_reshape_alias", "permute", "transpose", "t", "unsqueeze", "squeeze", "flatten",
    "unflatten", "detach", "contiguous", "alias", "clone",
})  # fmt: skip
_CASTS: Final = ("torch_c.to_builtin_tensor", "torch_c.from_builtin_tensor")
_PARTS: Final = frozenset({"slice", "select", "narrow", "split", "split_with_sizes", "chunk", "unbind", "diagonal"})
_ARGUMENT: Final = re.compile(r"(%\w+): ")
_TAKEN: Final = re.compile(r"tensor\.extract (%\w+)\[")


def taken_from(text: str) -> frozenset[int]:
    """The numbers of the arguments of a function on builtin tensors that ``tensor.extract`` reads."""
    names, taken = _ARGUMENT.findall(text.partition("->")[0]), set(_TAKEN.findall(text))
    return frozenset(number for number, name in enumerate(names) if name in taken)


def copy_own_parts(function: Any, barrier: Callable[[Any], Any]) -> frozenset[int]:
    """Serve the operations of a function in the torch dialect; the numbers of arguments of which elements are taken.

    Args:
        function: a ``func.func``.
        barrier: makes, at the insertion point, the same value that the compiler does not look through.
    """
    numbers: set[int] = set()
    for op in list(operations(function)):
        if _name(op) not in _TAKERS:
            continue
        source = _source(op.operands[0])
        if isinstance(source.owner, ir.Block):
            numbers.add(ir.BlockArgument(source).arg_number)
        elif is_part(source):
            with ir.InsertionPoint(op), op.location:
                op.operands[0] = barrier(op.operands[0])
    return frozenset(numbers)


def is_part(value: Any) -> bool:
    """Whether a value is a view of a part of a tensor."""
    source = _source(value)
    if isinstance(source.owner, ir.Block):
        return False
    made = _operation(source)
    return _name(made) in _PARTS or made.name == "torch.prim.ListUnpack"


def _source(value: Any) -> Any:
    """What a value is a view of."""
    while not isinstance(value.owner, ir.Block):
        made = _operation(value)
        if _name(made) not in _VIEWS and made.name not in _CASTS:
            break
        value = made.operands[0]
    return value


def _operation(value: Any) -> Any:
    return getattr(value.owner, "operation", value.owner)


def _name(op: Any) -> str:
    """Of an operation of PyTorch's, without its overload; else empty."""
    return op.name.removeprefix("torch.aten.").split(".")[0] if op.name.startswith("torch.aten.") else ""
