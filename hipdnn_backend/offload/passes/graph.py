"""A function's tensor operations as a graph of numbers: who feeds whom, which sets are convex, in which order they go.

MLIR's Python objects are slow to walk and have hashes that change; the passes that group operations decide on the
numbers of this module and touch the IR once, when they outline.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hipdnn_backend.offload.mlir import ir
from hipdnn_backend.onnx_op import OPERATOR

__all__ = [
    "LIST",
    "LITERAL",
    "FunctionGraph",
    "Node",
    "bits",
    "can_cross",
    "functions",
    "is_tensor",
    "literal_size",
    "mask_of",
    "node_label",
    "source_names",
    "torch_name",
]

Value = Any
Operation = Any

LIST = "torch.prim.ListConstruct"
LITERAL = "torch.vtensor.literal"


def functions(module: Any) -> Iterator[Any]:
    """The functions of a module that have a body.

    Raises:
        ValueError: one has control flow between blocks.
    """
    for view in module.operation.regions[0].blocks[0].operations:
        function = view.operation
        if function.name != "func.func" or not function.regions[0].blocks:
            continue
        if len(function.regions[0].blocks) > 1:
            name = ir.StringAttr(function.attributes["sym_name"]).value
            raise ValueError(f"@{name} has {len(function.regions[0].blocks)} blocks; a model's function has one block")
        yield function


def is_tensor(value: Value) -> bool:
    """True for a value-semantic torch tensor."""
    return str(value.type).startswith("!torch.vtensor")


def can_cross(value: Value) -> bool:
    """True for a value that may go from one graph to another: a tensor of static dims and a plain element type."""
    text = str(value.type)
    return text.startswith("!torch.vtensor<[") and "?" not in text and "!torch.q" not in text


def bits(mask: int) -> Iterator[int]:
    """The numbers in a set, ascending."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def mask_of(numbers: Iterable[int]) -> int:
    """A set of numbers as an integer."""
    mask = 0
    for number in numbers:
        mask |= 1 << number
    return mask


def torch_name(operation: Any) -> str:
    """The MLIR name of an operation; PyTorch's own of one that the torch dialect does not define."""
    if operation.name == "torch.operator":
        name = ir.StringAttr(operation.attributes["name"]).value
        return name if name.startswith("torch.") else operation.name
    return operation.name


def source_names(location: Any) -> tuple[str, ...]:
    """Names of the model's nodes in a location, outermost first; empty if it only knows a line of a file."""
    if isinstance(location, ir.NameLoc):
        return (location.name_str,)
    if isinstance(location, ir.FusedLoc):
        names = [name for each in location.locations for name in source_names(each)]
        return tuple(dict.fromkeys(names))
    return ()


def node_label(operation: Operation) -> str:
    """The node of the model that an operation comes from, else its MLIR name."""
    return ", ".join(source_names(operation.location)) or operation.name


def literal_size(operation: Operation) -> int:
    """Elements of a literal tensor."""
    kind = str(operation.results[0].type)
    dims = kind[kind.find("[") + 1 : kind.find("]")]
    size = 1
    for dim in filter(None, dims.split(",")):
        size *= int(dim)
    return size


def _is_splat(literal: Operation) -> bool:
    value = literal.attributes["value"]
    return isinstance(value, ir.DenseElementsAttr) and value.is_splat


def _feeds_onnx(literal: Operation) -> bool:
    """An operation that carries ONNX takes buffers only."""
    users = (use.owner.operation for use in literal.results[0].uses)
    return any(
        user.name == "torch.operator" and ir.StringAttr(user.attributes["name"]).value == OPERATOR for user in users
    )


def _operands(operation: Operation) -> list[Value]:
    """What an operation takes, values that its regions use included, without those defined inside."""
    taken = list(operation.operands)
    inside: set[Value] = set()
    for region in operation.regions:
        for block in region.blocks:
            inside.update(block.arguments)
            for view in block.operations:
                taken.extend(_operands(view.operation))
                inside.update(view.operation.results)
    return [value for value in taken if value not in inside]


@dataclass
class Node:
    """A tensor operation.

    Attributes:
        number: position among the tensor operations, in program order.
        op: the operation.
        name: its MLIR name, e.g. ``torch.aten.relu``.
        inputs: what it takes, lists replaced by their elements: values of other nodes, arguments, literals, scalars.
        producers: numbers of the nodes among ``inputs``.
        users: numbers of the nodes that take a result.
        escapes: the function returns a result.
    """

    number: int
    op: Operation
    name: str
    inputs: tuple[Value, ...]
    producers: frozenset[int] = frozenset()
    users: set[int] = field(default_factory=set)
    escapes: bool = False

    @property
    def label(self) -> str:
        """The node of the model that it comes from, else its MLIR name."""
        return node_label(self.op)


class FunctionGraph:
    """The tensor operations of one block, with sets of them that have been joined.

    Constants, lists and small literals are no nodes: whoever needs them has them cloned. ``torch.operator`` regions of
    earlier passes are nodes too.
    """

    def __init__(self, function: Operation, *, max_literal: int) -> None:
        """Reads the function's first block.

        Args:
            function: a ``func.func``.
            max_literal: elements up to which a literal is cloned, and any that repeats one number; others are values
                like arguments, and so is what an operation takes that carries ONNX.
        """
        self._max_literal = max_literal
        self.block = function.regions[0].blocks[0]
        self.nodes: list[Node] = []
        self.owner: dict[Value, int] = {}
        self.constants: dict[Value, Operation] = {}
        self.position: dict[Value, int] = {}
        self.returned: set[Value] = set()
        self.current: dict[Value, Value] = {}  # what stands for a value since a set was outlined
        for position, view in enumerate(self.block.operations):
            self._read(position, view.operation)
        for node in self.nodes:
            for producer in node.producers:
                self.nodes[producer].users.add(node.number)
            node.escapes = any(result in self.returned for result in node.op.results)
        self.moved: set[Value] = set()  # lists that have been put behind their elements
        self._joined: list[int] = []
        self._above = self._reach()

    def _read(self, position: int, op: Operation) -> None:
        if op.name == "func.return":
            self.returned.update(op.operands)
            return
        if op.name == LITERAL and (_feeds_onnx(op) or (literal_size(op) > self._max_literal and not _is_splat(op))):
            return
        taken = tuple(dict.fromkeys(_operands(op)))
        for result in op.results:
            self.position[result] = position
        if op.name == LIST or not (any(map(self._is_data, taken)) or self._is_source(op)):
            self.constants.update(dict.fromkeys(op.results, op))
            return
        inputs = tuple(dict.fromkeys(each for value in taken for each in self._elements(value)))
        producers = frozenset(self.owner[value] for value in inputs if value in self.owner)
        node = Node(len(self.nodes), op, torch_name(op), inputs, producers)
        self.nodes.append(node)
        self.owner.update(dict.fromkeys(op.results, node.number))

    def is_constant(self, value: Value) -> bool:
        """True for a constant or a list of such; a list of what operations make is none."""
        owner = self.constants.get(value)
        return owner is not None and all(map(self.is_constant, owner.operands))

    def _is_data(self, value: Value) -> bool:
        """True if a value depends on a tensor that is no literal."""
        return not self.is_constant(value)

    def _is_source(self, op: Operation) -> bool:
        """True for an operation that makes a tensor from scalars: work, not a constant."""
        return op.name != LITERAL and any(map(is_tensor, op.results))

    def _elements(self, value: Value) -> Iterator[Value]:
        """A list's elements, any other value itself."""
        op = self.constants.get(value)
        if op is not None and op.name == LIST:
            for each in op.operands:
                yield from self._elements(each)
        else:
            yield value

    def _reach(self) -> list[int]:
        """For each node the set of itself and all before it."""
        above: list[int] = []
        for node in self.nodes:
            mask = 1 << node.number
            for producer in node.producers:
                mask |= above[producer]
            above.append(mask)
        return above

    def wholes(self, parts: Mapping[str, str]) -> list[int]:
        """The sets of nodes that are to stay together; those that are not convex are left out.

        Args:
            parts: name of a node of the model → what it is a part of.
        """
        found: dict[str, int] = {}
        for node in self.nodes if parts else ():
            owners = {parts.get(name) for name in source_names(node.op.location)} - {None}
            if len(owners) == 1 and node.name != "torch.operator":
                owner = str(owners.pop())
                found[owner] = found.get(owner, 0) | 1 << node.number
        return [group for group in found.values() if self.is_convex(group)]

    # ---- sets of nodes

    def outside_producers(self, group: int) -> int:
        """The nodes that feed a set and are not in it."""
        return mask_of(p for number in bits(group) for p in self.nodes[number].producers) & ~group

    def outside_users(self, group: int) -> int:
        """The nodes that a set feeds and that are not in it."""
        return mask_of(u for number in bits(group) for u in self.nodes[number].users) & ~group

    def is_convex(self, group: int) -> bool:
        """True if no path leaves the set and comes back, counting joined sets as one."""
        return not any(self._above[producer] & group for producer in bits(self.outside_producers(group)))

    def is_before(self, first: int, second: int) -> bool:
        """True if a path leads from a set to another node set."""
        return any(self._above[number] & first for number in bits(second))

    def close(self, group: int) -> int:
        """The smallest convex set around a set; it has joined sets as a whole."""
        while True:
            missing = mask_of(p for p in bits(self.outside_producers(group)) if self._above[p] & group)
            for joined in self._joined:
                if joined & group:
                    missing |= joined & ~group
            if not missing:
                return group
            group |= missing

    def join(self, group: int) -> None:
        """Makes one of a convex set: from now on what depends on one member depends on all."""
        above = 0
        for number in bits(group):
            above |= self._above[number]
        self._above = [mask | above if mask & group else mask for mask in self._above]
        self._joined.append(group)

    def escaping(self, group: int) -> list[Value]:
        """Results of a set that others use, in program order."""
        return [
            result for number in bits(group) for result in self.nodes[number].op.results if self._escapes(result, group)
        ]

    def _escapes(self, result: Value, group: int) -> bool:
        if result in self.returned:
            return True
        users = self.nodes[self.owner[result]].users
        return any(not group >> user & 1 and result in self.nodes[user].inputs for user in users)

    def captures(self, group: int) -> list[Value]:
        """What a set takes from outside, in order of first use: tensors, and literals too large to clone."""
        inside = {result for number in bits(group) for result in self.nodes[number].op.results}
        taken = (value for number in bits(group) for value in self.nodes[number].inputs)
        return [value for value in dict.fromkeys(taken) if value not in inside and value not in self.constants]

    def helpers(self, group: int) -> list[Operation]:
        """Constants, lists and literals that a set needs, in program order."""
        needed: dict[int, Operation] = {}

        def need(value: Value) -> None:
            op = self.constants.get(value)
            if op is None or self.position[value] in needed:
                return
            needed[self.position[value]] = op
            for operand in op.operands:
                need(operand)

        for number in bits(group):
            for operand in _operands(self.nodes[number].op):
                need(operand)
        return [op for _position, op in sorted(needed.items(), key=lambda item: item[0])]

    def order(self, groups: Sequence[int]) -> list[int]:
        """The disjoint sets and the nodes in none of them, as sets, so that each follows what feeds it.

        Among those that could be next the one whose first member came first is.
        """
        whole = list(groups)
        left = (1 << len(self.nodes)) - 1
        for group in groups:
            left &= ~group
        whole += [1 << number for number in bits(left)]
        home = {number: index for index, group in enumerate(whole) for number in bits(group)}
        waits = [{home[p] for p in bits(self.outside_producers(group))} for group in whole]
        feeds: list[set[int]] = [set() for _ in whole]
        for index, producers in enumerate(waits):
            for producer in producers:
                feeds[producer].add(index)
        first = [(group & -group).bit_length() for group in whole]
        ready = [(first[index], index) for index, producers in enumerate(waits) if not producers]
        heapq.heapify(ready)
        done: list[int] = []
        while ready:
            _number, index = heapq.heappop(ready)
            done.append(whole[index])
            for user in feeds[index]:
                waits[user].discard(index)
                if not waits[user]:
                    heapq.heappush(ready, (first[user], user))
        assert len(done) == len(whole), "the sets are not convex together"
        return done
