"""What the front end has to know of ONNX operators beside their rewrites; each file of `rules` says it of its own."""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["BROADCASTING", "Facts", "facts", "operator"]

BROADCASTING: Final = (
    *("Add", "Sub", "Mul", "Div", "Pow", "Mod", "And", "Or", "Xor", "Equal", "Greater", "GreaterOrEqual", "Less"),
    *("LessOrEqual", "Max", "Min", "Mean", "Sum", "Where", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor"),
)
"""Operators of ONNX whose operands broadcast, each element of the result of one of each."""


class Facts(NamedTuple):
    """What is known of an operator; operands are positions.

    Attributes:
        static: operands whose elements the conversion reads: axes, shapes, scales, bounds.
        weights: operands that are weights even if they have one element.
        keeps_dims: the result has as many dims as the first operand; in one dim, as many elements.
        broadcasts: the result has the dims to which the operands broadcast, but for the last two of a product.
        per_channel: operands of one element for each channel of the first.
        trailing: operands whose dims are the last of the first operand's, or 1.
    """

    static: frozenset[int] = frozenset()
    weights: frozenset[int] = frozenset()
    keeps_dims: bool = False
    broadcasts: bool = False
    per_channel: tuple[int, ...] = ()
    trailing: tuple[int, ...] = ()


_FACTS: Final[dict[str, Facts]] = {}
_UNKNOWN: Final = Facts()


def operator(
    *op_types: str,
    static: tuple[int, ...] = (),
    weights: tuple[int, ...] = (),
    keeps_dims: bool = False,
    broadcasts: bool = False,
    per_channel: tuple[int, ...] = (),
    trailing: tuple[int, ...] = (),
) -> None:
    """Says what is known of operators, see `Facts`; of one that only rewrites concern, nothing need be said.

    Raises:
        ValueError: it has been said before.
    """
    known = Facts(frozenset(static), frozenset(weights), keeps_dims, broadcasts, per_channel, trailing)
    for op_type in op_types:
        if op_type in _FACTS:
            raise ValueError(f"what is known of {op_type} is said in two places")
        _FACTS[op_type] = known


def facts(op_type: str) -> Facts:
    """What is known of an operator, whatever its domain."""
    return _FACTS.get(op_type, _UNKNOWN)
