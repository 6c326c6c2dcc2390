"""Rewrite rules: one small function per operator in a registry, and the driver that applies them.

A rule gets a `Builder` and a node, and returns the values that take the place of the node's outputs, or None to leave
the node alone. It emits nodes through the builder; they carry the source node's name, so that whatever is reported
later speaks of the model's nodes. Operators are those of `opsets.COMMON_OPSET`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

import numpy as np
import onnx
from onnx import helper

from hipdnn_backend.offload.errors import ModelError, UnsupportedNodeError
from hipdnn_backend.offload.frontend.graph import TORCH_DOMAIN, OnnxGraph, TensorType, attributes, inlined, rename
from hipdnn_backend.offload.node_outcomes import Absorbed, Became

__all__ = ["Builder", "Rule", "SizeError", "apply_rules", "check_size", "rewrites", "rules"]


class Builder:
    """Emits the nodes that replace one node, and answers what is known about tensors.

    Attributes:
        node: the source node.
        graph: it belongs to.
        given: its attributes.
    """

    def __init__(
        self, graph: OnnxGraph, node: onnx.NodeProto, uses: dict[str, int], producers: dict[str, onnx.NodeProto]
    ) -> None:
        self.graph = graph
        self.node = node
        self.given: dict[str, Any] = attributes(node)
        self.emitted: list[onnx.NodeProto] = []
        self._source = node.name
        self._uses = uses
        self._producers = producers

    def op(self, op_type: str, *inputs: str, domain: str = "", **given: Any) -> str:
        """Emit a node with one output; attributes that are None are left out."""
        return self.ops(op_type, inputs, 1, domain=domain, **given)[0]

    def ops(self, op_type: str, inputs: Sequence[str], outputs: int, *, domain: str = "", **given: Any) -> list[str]:
        """Emit a node with several outputs."""
        results = [self.graph.fresh(f"{self._source}/{op_type}") for _ in range(outputs)]
        given = {name: value for name, value in given.items() if value is not None}
        node = helper.make_node(op_type, inputs, results, self._source, domain=domain, **given)
        self.emitted.append(node)
        return results

    def inline(self, body: onnx.GraphProto, inputs: Sequence[str]) -> list[str]:
        """Emit the nodes of a body, which get names of their own; the values that are its results."""
        names = dict(zip((value.name for value in body.input), inputs, strict=True))
        self.emitted += inlined(self.graph, body, names, self._source)
        return [names.get(value.name, value.name) for value in body.output]

    def torch(self, op_type: str, *inputs: str, like: TensorType, **given: Any) -> str:
        """Emit a torch operation of `torch_ops`, whose result has the type ``like``."""
        result = self.op(op_type, *inputs, domain=TORCH_DOMAIN, **given)
        self.graph.declared[result] = like
        return result

    def torch_pair(self, op_type: str, *inputs: str, like: tuple[TensorType, TensorType], **given: Any) -> list[str]:
        """Emit a torch operation with two results."""
        results = self.ops(op_type, inputs, 2, domain=TORCH_DOMAIN, **given)
        self.graph.declared.update(zip(results, like, strict=True))
        return results

    def constant(self, value: Any, dtype: Any = np.int64) -> str:
        """A new constant; ``dtype`` None: as the value has it.

        Raises:
            UnsupportedNodeError: a number is wanted as a text, as for arithmetic with texts.
        """
        array = np.asarray(value, dtype)
        if array.dtype == object:
            raise self.unsupported("tensor-type", "it computes with texts")
        return self.graph.add_constant(f"{self.node.name}/constant", array)

    def input(self, index: int) -> str:
        """Name of an input, "" if it is not given."""
        return self.node.input[index] if index < len(self.node.input) else ""

    def has_output(self, index: int) -> bool:
        """Whether an output is there and read."""
        return index < len(self.node.output) and self.uses(self.node.output[index]) > 0

    def uses(self, value: str) -> int:
        """How many readers a tensor of the source graph has."""
        return self._uses.get(value, 0) if value else 0

    def producer(self, value: str) -> onnx.NodeProto | None:
        """The node that makes a tensor of the source graph."""
        return self._producers.get(value)

    def value(self, name: str) -> np.ndarray | None:
        """The elements of a constant."""
        return self.graph.constants.get(name)

    def type(self, name: str) -> TensorType | None:
        """What is known of a tensor of the source graph."""
        return self.graph.type(name)

    def dims(self, name: str) -> tuple[int, ...] | None:
        """Dims of a tensor if they are known."""
        type_ = self.graph.type(name)
        return type_.static if type_ else None

    def dtype(self, name: str) -> np.dtype[Any] | None:
        """numpy dtype of a tensor."""
        type_ = self.graph.type(name)
        return type_.dtype if type_ else None

    def like(self, name: str, value: Any) -> str:
        """A new constant of another tensor's element type."""
        dtype = self.dtype(name)
        assert dtype is not None, f"the type of {name} is unknown"
        return self.constant(value, dtype)

    def axis(self, default: int, rank: int) -> int:
        """The attribute ``axis``, counted from 0.

        Raises:
            ModelError: there is no such axis.
        """
        axis = self.given.get("axis", default)
        if not -rank <= axis < rank:
            raise self.fail("attribute", f"axis is {axis}, of a tensor of rank {rank}")
        return axis % rank

    def take_over(self, node: onnx.NodeProto) -> None:
        """What is emitted from now on is another node's work, which does the source node's too."""
        self.graph.absorbed[self.node.name] = Absorbed(Became.MERGED, (node.name,))
        self._source = node.name

    def fail(self, rule: str, reason: str) -> ModelError:
        """The source node is wrong."""
        return ModelError(self.node.name, rule, f"{self.node.op_type}: {reason}")

    def unsupported(self, rule: str, reason: str) -> UnsupportedNodeError:
        """The source node may be right, but has a form that nothing converts."""
        return UnsupportedNodeError(self.node.name, rule, f"{self.node.op_type}: {reason}")


class SizeError(Exception):
    """What a rule would write down is too large: a constant of a table's size, say, for a model that has none."""


def check_size(what: str, *dims: int) -> None:
    """Refuse a constant that a rule is about to make.

    Raises:
        SizeError: it has too many elements.
    """
    if math.prod(dims) > _MAX_ELEMENTS:
        raise SizeError(f"{what} of {' by '.join(map(str, dims))} elements would have to be written down")


Rule = Callable[[Builder, onnx.NodeProto], Sequence[str] | None]
_MAX_ELEMENTS = 1 << 27
_MAX_DIM = 1 << 26
"""Elements along one axis from which on nodes are left as they are: rules write down the positions along it."""
RuleT = TypeVar("RuleT", bound=Rule)
_RULES: dict[tuple[str, str], list[Rule]] = {}
_FORMS: dict[tuple[str, str], tuple[int, frozenset[str]]] = {}
"""(domain, operator) → how many operands its rule reads, and which attributes."""


def rewrites(
    *op_types: str, domain: str = "", operands: int | None = None, attributes: str = ""
) -> Callable[[RuleT], RuleT]:
    """Register a rule for operators of a domain.

    Args:
        op_types: of the domain.
        domain: "" is ONNX's own.
        operands: how many the rule reads at most. Domains of which onnx has no schemas get new ones in new versions; a
            node with more than the rule knows is not its own.
        attributes: names of those that the rule reads, if ``operands`` is given.
    """

    def register(rule: RuleT) -> RuleT:
        for op_type in op_types:
            if operands is not None:
                _FORMS[domain, op_type] = operands, frozenset(attributes.split())
            entries = _RULES.setdefault((domain, op_type), [])
            assert rule not in entries, f"{rule.__name__} is registered twice for {op_type}"
            entries.append(rule)
        return rule

    return register


def rules() -> dict[tuple[str, str], tuple[Rule, ...]]:
    """(domain, operator) → rules, in the order in which they are tried."""
    return {key: tuple(entries) for key, entries in _RULES.items()}


def apply_rules(graph: OnnxGraph, left: Collection[str] = ()) -> bool:
    """Let every node meet its rules once; whether any applied.

    Requires: `Graph.types` is current, `fold` ran.

    Args:
        graph: changed in place.
        left: names of nodes that stay as they are.

    Raises:
        ModelError: a rule found the model to be wrong, or a form that nothing converts.
    """
    uses = graph.uses()
    producers = {name: node for node in graph.nodes for name in node.output if name}
    names: dict[str, str] = {}
    result: list[onnx.NodeProto] = []
    changed = False
    for node in graph.nodes:
        if names:
            rename(node, names)
        replaced = None if node.name in left else _rewritten(graph, node, uses, producers)
        if replaced is None:
            result.append(node)
            continue
        changed = True
        nodes, values = replaced
        result.extend(nodes)
        if not nodes:
            graph.absorbed.setdefault(node.name, Absorbed(Became.IDENTITY))
        names.update((old, new) for old, new in zip(node.output, values, strict=False) if old)
    graph.nodes = result
    for output in graph.outputs:
        output.value = names.get(output.value, output.value)
    return changed


def _rewritten(
    graph: OnnxGraph, node: onnx.NodeProto, uses: dict[str, int], producers: dict[str, onnx.NodeProto]
) -> tuple[list[onnx.NodeProto], Sequence[str]] | None:
    """The nodes and results of the first rule that applies; None: the node stays.

    Whatever a rule raises on a node that is not in the operator's form is the model's fault, and told as such.
    """
    entries = _RULES.get((node.domain, node.op_type), ())
    if entries and _longest(graph, node) > _MAX_DIM:
        return None
    for rule in entries:
        builder = Builder(graph, node, uses, producers)
        _check_form(builder, node)
        try:
            values = rule(builder, node)
        except SizeError as error:
            raise builder.unsupported("size", str(error)) from error
        except (KeyError, IndexError, ValueError, TypeError, ArithmeticError) as error:
            what = f"{error} is not given" if isinstance(error, KeyError) else repr(error)
            reason = f"its operands or attributes are not in the form that the operator has ({what})"
            raise builder.fail("operator-form", reason) from error
        if values is not None:
            return builder.emitted, values
    return None


def _longest(graph: OnnxGraph, node: onnx.NodeProto) -> int:
    """The largest dim that is known of a node's operands and results."""
    types = [graph.type(name) for name in (*node.input, *node.output) if name]
    return max((dim for type_ in types if type_ for dim in type_.dims or () if isinstance(dim, int)), default=0)


def _check_form(builder: Builder, node: onnx.NodeProto) -> None:
    """Leave a node alone that has what its rule does not know."""
    operands, known = _FORMS.get((node.domain, node.op_type), (len(node.input), frozenset(builder.given)))
    more = [f"operand {index} ({name})" for index, name in enumerate(node.input) if name and index >= operands]
    more += [f"attribute {name} ({builder.given[name]!r})" for name in sorted(builder.given.keys() - known)]
    if more:
        raise builder.unsupported("operator-form", f"{', '.join(more)} is not known here")
