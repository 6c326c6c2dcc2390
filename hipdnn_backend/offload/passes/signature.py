"""Signatures: equal for groups of operations that differ in nothing but the values they work on and their names.

A model repeats its layers; what an engine said to one holds for the others, and a signature is cheaper than a graph.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from hipdnn_backend.offload.passes.graph import FunctionGraph, bits

__all__ = ["Signatures"]

Operation = Any
Value = Any


class Signatures:
    """The signatures of one function's groups."""

    def __init__(self, graph: FunctionGraph) -> None:
        self._graph = graph
        self._plain: dict[int, tuple[Hashable, ...]] = {}
        self._constants: dict[Value, Hashable] = {}
        self._types: dict[Value, str] = {}

    def of(self, group: int) -> Hashable:
        """The signature of a group."""
        graph = self._graph
        captured = {value: position for position, value in enumerate(graph.captures(group))}
        results: dict[Value, Hashable] = {}
        parts: list[Hashable] = []
        for position, number in enumerate(bits(group)):
            op = graph.nodes[number].op
            operands = tuple(self._operand(value, results, captured) for value in op.operands)
            parts.append((self._of_operation(number, op), operands))
            results.update((result, (position, index)) for index, result in enumerate(op.results))
        escaping = tuple(results[value] for value in graph.escaping(group))
        return tuple(parts), tuple(map(self._type, captured)), escaping

    def _operand(self, value: Value, results: dict[Value, Hashable], captured: dict[Value, int]) -> Hashable:
        if value in results:
            return results[value]
        if value in captured:
            return captured[value]
        owner = self._graph.constants[value]
        if any(operand in results or operand in captured for operand in owner.operands):  # a list of tensors
            return tuple(self._operand(operand, results, captured) for operand in owner.operands)
        return self._constant(value)

    def _constant(self, value: Value) -> Hashable:
        if value not in self._constants:
            owner = self._graph.constants[value]
            operands = tuple(
                self._constant(operand) if operand in self._graph.constants else ("value", self._type(operand))
                for operand in owner.operands
            )
            self._constants[value] = (owner.name, _attributes(owner), self._type(value), operands)
        return self._constants[value]

    def _of_operation(self, number: int, op: Operation) -> tuple[Hashable, ...]:
        if number not in self._plain:
            # A region is as individual as its text; operations with regions are few.
            regions = str(op) if len(op.regions) else ""
            types = tuple(str(result.type) for result in op.results)
            self._plain[number] = (op.name, _attributes(op), types, regions)
        return self._plain[number]

    def _type(self, value: Value) -> str:
        if value not in self._types:
            self._types[value] = str(value.type)
        return self._types[value]


def _attributes(op: Operation) -> tuple[tuple[str, str], ...]:
    return tuple((name, str(op.attributes[name])) for name in op.attributes)
