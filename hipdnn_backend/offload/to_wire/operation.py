"""An operation as the rules see it: names, operand constants, refusals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

from hipdnn_backend.offload.mlir import ir
from hipdnn_backend.offload.to_wire.errors import NotTranslated
from hipdnn_backend.offload.to_wire.types import TensorType, tensor_type

__all__ = ["Op", "is_constant", "location_name", "splat_value"]

_LISTS: Final = ("torch.prim.ListConstruct", "torch.prim.TupleConstruct")
_SAME: Final = (
    "torch.derefine", "torch.aten.Float.Scalar", "torch.aten.Int.Scalar", "torch.aten.Bool.Tensor", "torch.aten.item",
    "torch.aten.Int.Tensor", "torch.aten.Float.Tensor", "torch.aten.IntImplicit", "torch.aten.FloatImplicit",
    "torch.prim.NumToTensor.Scalar", "torch.aten.ScalarImplicit",
)  # fmt: skip
"""Operations on a constant that keep its value, up to its Python type."""
_MISSING: Final = object()


def location_name(location: Any) -> str:
    """The name that a location holds, the outermost if it is nested; "" if it holds none."""
    kind = type(location).__name__
    if kind == "NameLoc":
        return str(location.name_str)
    if kind == "FusedLoc":
        return next((name for inner in location.locations if (name := location_name(inner))), "")
    if kind == "CallSiteLoc":
        return location_name(location.callee) or location_name(location.caller)
    return ""


def splat_value(literal: Any) -> float | int | bool | None:
    """The number of a ``torch.vtensor.literal`` that holds one number in every place, else None."""
    attribute = literal.attributes["value"]
    if not isinstance(attribute, ir.DenseElementsAttr) or not attribute.is_splat:
        return None
    value = attribute.get_splat_value().value
    return value if isinstance(value, bool | int | float) else None


def _producer(value: Any) -> Any | None:
    """The operation that makes a value, None if it is an argument of a block."""
    owner = value.owner
    return None if isinstance(owner, ir.Block) else owner.operation


def _constant(value: Any) -> Any:
    """The Python value of a compile-time constant, `_MISSING` if it is none."""
    made_by = _producer(value)
    if made_by is None:
        return _MISSING
    name = made_by.name
    if name == "torch.constant.none":
        return None
    if name.startswith("torch.constant."):
        return made_by.attributes["value"].value
    if name in _LISTS:
        items = [_constant(operand) for operand in made_by.operands]
        return _MISSING if any(item is _MISSING for item in items) else items
    if name == "torch.vtensor.literal":
        number = splat_value(made_by)
        return _MISSING if number is None else number
    return _constant(made_by.operands[0]) if name in _SAME else _MISSING


def is_constant(value: Any) -> bool:
    """Whether a value is a number, string, None, list of these or tensor of one number, known at compile time."""
    return _constant(value) is not _MISSING


class Op:
    """One operation, with readers of its operands' constants, each of which refuses what it cannot read.

    Attributes:
        operation: the `ir.Operation`.
        name: e.g. ``torch.aten.relu``.
        where: name of the model's node, else the operation's own and its position.
        results: the tensor types of the results, None for one that is no tensor.
    """

    def __init__(self, operation: Any, position: int = 0) -> None:
        self.operation = operation
        self.name = str(operation.name)
        if self.name == "torch.operator":  # one that the torch dialect does not define
            self.name = str(operation.attributes["name"].value)
        self.where = location_name(operation.location) or f"{self.name.removeprefix('torch.')}_{position}"
        self.operands: Sequence[Any] = list(operation.operands)

    @property
    def is_constant(self) -> bool:
        """Whether it makes a number, a list or a literal: what rules read where they need it."""
        if self.name.startswith("torch.constant.") or self.name in ("torch.vtensor.literal", *_LISTS):
            return True
        results = list(self.operation.results)
        return len(results) == 1 and not str(results[0].type).startswith("!torch.vtensor") and is_constant(results[0])

    def refuse(self, reason: str) -> NotTranslated:
        """The refusal of this operation."""
        return NotTranslated(self.name, self.where, reason)

    def result(self, index: int = 0) -> TensorType:
        """Type of a result.

        Raises:
            NotTranslated: it has no wire form.
        """
        found = tensor_type(str(self.operation.results[index].type))
        if isinstance(found, str):
            raise self.refuse(f"result {index}: {found}")
        return found

    def used(self, index: int) -> bool:
        """Whether something uses a result."""
        return next(iter(self.operation.results[index].uses), None) is not None

    def constant(self, index: int) -> Any:
        """The constant that an operand is: a number, bool, str, None, or a list of these."""
        found = _constant(self.operands[index])
        if found is _MISSING:
            raise self.refuse(f"operand {index} must be a constant; it is computed when the model runs")
        return found

    def is_none(self, index: int) -> bool:
        """Whether an operand is None."""
        return _constant(self.operands[index]) is None

    def int(self, index: int) -> int:
        """An integer operand."""
        value = self.constant(index)
        if isinstance(value, bool | int) or (isinstance(value, float) and value.is_integer()):
            return int(value)
        raise self.refuse(f"operand {index} must be an integer, got {value!r}")

    def number(self, index: int, default: float | None = None) -> float | int:
        """A number; ``default`` in place of None."""
        value = self.constant(index)
        if value is None and default is not None:
            return default
        if isinstance(value, bool | int | float):
            return value
        raise self.refuse(f"operand {index} must be a number, got {value!r}")

    def flag(self, index: int, default: bool = False) -> bool:
        """A boolean; ``default`` in place of None."""
        value = self.constant(index)
        return default if value is None else bool(value)

    def text(self, index: int) -> str:
        """A string."""
        value = self.constant(index)
        if isinstance(value, str):
            return value
        raise self.refuse(f"operand {index} must be a string, got {value!r}")

    def ints(self, index: int) -> tuple[int, ...]:
        """A list of integers; an integer alone is a list of one, None an empty one."""
        value = self.constant(index)
        items = cast("list[Any]", value) if isinstance(value, list) else [] if value is None else [value]
        if any(isinstance(item, bool) or not isinstance(item, int) for item in items):
            raise self.refuse(f"operand {index} must be a list of integers, got {value!r}")
        return tuple(items)

    def per_axis(self, index: int, rank: int, default: int | None = None) -> tuple[int, ...]:
        """A list of integers with one entry per spatial dim; one entry counts for all."""
        values = self.ints(index)
        if not values and default is not None:
            return (default,) * rank
        values = values * rank if len(values) == 1 else values
        if len(values) != rank:
            raise self.refuse(f"operand {index} has {len(values)} entries for {rank} spatial dims")
        return values

    def axis(self, index: int, rank: int) -> int:
        """An axis, counted from 0."""
        return self.axes_of([self.int(index)], rank)[0]

    def axes(self, index: int, rank: int) -> tuple[int, ...]:
        """A list of axes, counted from 0; None or none at all are all axes."""
        return self.axes_of(self.ints(index), rank) or tuple(range(rank))

    def axes_of(self, values: Sequence[int], rank: int) -> tuple[int, ...]:
        """Axes counted from 0."""
        found = tuple(value + rank if value < 0 else value for value in values)
        if any(not 0 <= axis < max(rank, 1) for axis in found) or len(set(found)) != len(found):
            raise self.refuse(f"axes {tuple(values)} do not fit a tensor of rank {rank}")
        return found if rank else ()
