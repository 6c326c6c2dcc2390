"""Graph: the operation graph that users build, validate, describe, save and check against."""

from __future__ import annotations

import heapq
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from fusilli_ground.late_numpy import np
from fusilli_ground.spelling import did_you_mean
from graph_api import numerics, serialization
from graph_api.dtypes import DataType
from graph_api.errors import GraphError
from graph_api.layout import stride_order, strides_in_order
from graph_api.node import Array, Node
from graph_api.ops import AllBuilders
from graph_api.tensor import TensorAttr, int_tuple

__all__ = ["Arguments", "Graph", "TensorKey"]

TensorKey = TensorAttr | str | int
T = TypeVar("T")


class Arguments(NamedTuple):
    """The tensors that need a buffer, in the order in which a compiled graph takes them: outputs, then inputs."""

    outputs: tuple[TensorAttr, ...]
    inputs: tuple[TensorAttr, ...]


class Graph(AllBuilders):
    """A fused operation graph.

    Build it with :meth:`tensor` and the operation methods, mark results with ``set_output(True)``, then
    :meth:`validate` it: that infers what was left open and freezes the graph. Names and rules follow hipDNN's front
    end.
    """

    def validate(self) -> Graph:
        """Checks the graph, infers dims, strides, data types and uids, sorts the nodes and freezes the graph.

        Returns:
            The graph itself.

        Raises:
            GraphError: what is wrong, where, and the likely fix. The graph stays open and can be mended.
        """
        if self._frozen:
            return self
        for tensor in self._tensors:
            tensor.forget()
        if not self._nodes:
            raise GraphError(f"graph '{self.name}' has no nodes; add an operation, for example conv_fprop")
        producers = self._producers()
        self._name_and_number(producers)
        order = self._sorted(producers)
        self._infer(order, producers)
        if not any(not tensor.is_virtual for tensor in self._tensors if tensor in producers):
            raise GraphError(f"graph '{self.name}' has no output; call set_output(True) on a result")
        self._nodes = order
        self._frozen = True
        for tensor in self._tensors:
            tensor.freeze()
        self._used = self._first_use()
        return self

    @property
    def is_validated(self) -> bool:
        """True once :meth:`validate` has passed."""
        return self._frozen

    def arguments(self) -> Arguments:
        """The tensors that need a buffer, in canonical order (first use over the sorted nodes)."""
        self.validate()
        producers = self._producers()
        buffers = [tensor for tensor in self._used if not tensor.is_virtual and tensor.value is None]
        return Arguments(
            tuple(tensor for tensor in buffers if tensor in producers),
            tuple(tensor for tensor in buffers if tensor not in producers),
        )

    def maker(self, tensor: TensorAttr) -> Node | None:
        """The node that a tensor is a result of; None for inputs of the graph."""
        return next((node for node in self.nodes if tensor in node.outputs.values()), None)

    def readers(self, tensor: TensorAttr) -> list[Node]:
        """The nodes that a tensor is an operand of."""
        return [node for node in self.nodes if tensor in node.inputs.values()]

    def flops(self) -> int:
        """Floating-point operations of one run, an estimate."""
        return sum(node.flops() for node in self.validate().nodes)

    def find(self, key: TensorKey) -> TensorAttr:
        """The tensor that ``key`` (a tensor, a name or a uid) means.

        Raises:
            GraphError: no tensor of this graph.
        """
        for tensor in self._tensors:
            if tensor is key:
                return tensor
        if isinstance(key, str):
            found = [tensor for tensor in self._tensors if tensor.name == key]
        elif isinstance(key, TensorAttr):
            raise GraphError(f"tensor '{key.name}' belongs to another graph than '{self.name}'")
        else:
            try:
                uid = operator.index(key if not isinstance(key, bool) else None)  # type: ignore[arg-type]
            except TypeError:
                raise GraphError(f"a tensor is named by itself, its name or its uid, got {key!r}") from None
            found = [tensor for tensor in self._tensors if tensor.has_uid and tensor.uid == uid]
        if not found:
            names = ", ".join(f"'{tensor.name}'" for tensor in self._tensors if not tensor.is_virtual)
            near = did_you_mean(key, [t.name for t in self._tensors]) if isinstance(key, str) else ""
            raise GraphError(f"graph '{self.name}' has no tensor {key!r}{near}; it has {names}")
        return found[0]

    def by_tensor(self, pack: Mapping[TensorKey, T]) -> dict[TensorAttr, T]:
        """``pack`` with its keys (tensors, names, uids) replaced by the tensors.

        Raises:
            GraphError: a key is unknown, or two keys mean one tensor.
        """
        if not isinstance(pack, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] - users may pass anything
            raise GraphError(f"expected {{tensor: value}}, got {type(pack).__name__}")
        found: dict[TensorAttr, T] = {}
        for key, value in pack.items():
            tensor = self.find(key)
            if tensor in found:
                raise GraphError(f"tensor '{tensor.name}' is given twice, the second time as {key!r}")
            found[tensor] = value
        return found

    def reference(self, pack: Mapping[Any, object]) -> dict[TensorAttr, Array]:
        """Runs the graph in numpy, in float64, node by node: the specification of the result.

        Args:
            pack: an array of the logical shape for each input, keyed by tensor, name or uid; values are first rounded
                to the tensor's data type.

        Returns:
            The float64 value of each output.

        Raises:
            GraphError: a missing, unknown or misshapen input.
        """
        values = numerics.evaluate(self, pack, with_errors=False).values
        return {tensor: values[tensor] for tensor in self.arguments().outputs}

    def random_inputs(self, seed: int = 0) -> dict[TensorAttr, np.ndarray[Any, Any]]:
        """Seeded inputs in the tensors' data types and strides: normal floats, small integers, fair booleans."""
        return numerics.random_inputs(self, seed)

    def describe(self) -> str:
        """The validated graph as a table for people: one line per node, then one per tensor."""
        self.validate()
        lines = [f"graph '{self.name}'"]
        for node in self._nodes:
            ins = ", ".join(f"{port}='{tensor.name}'" for port, tensor in node.inputs.items())
            outs = ", ".join(f"'{tensor.name}'" for tensor in node.outputs.values())
            attributes = ", ".join(f"{key}={value}" for key, value in node.attributes.to_json().items())
            lines.append(
                f"  {node.op} '{node.name}': {outs} = {node.op}({ins}) {{{attributes}}} in {node.compute.name}"
            )
        producers = self._producers()
        for tensor in self._tensors:
            role = "virtual" if tensor.is_virtual else "output" if tensor in producers else "input"
            role = f"scalar {tensor.value}" if tensor.value is not None else role
            lines.append(
                f"  tensor {tensor.uid} '{tensor.name}': {role} {tensor.data_type.name} "
                f"dims {list(tensor.dims)} strides {list(tensor.strides)}"
            )
        return "\n".join(lines)

    def to_json(self) -> str:
        """The validated graph as stable, versioned JSON; ``from_json`` of it writes the same bytes again."""
        return serialization.to_json(self.validate())

    @classmethod
    def from_json(cls, text: str | bytes) -> Graph:
        """The validated graph that ``to_json`` wrote; also accepts JSON that leaves inferable fields out.

        Raises:
            GraphError: not such a graph; the message says where.
        """
        return serialization.from_json(cls, text).validate()

    @classmethod
    def of(cls, source: object) -> Graph:
        """The graph that an object is or holds: a Graph, text or bytes or a path of one, one of another front end.

        What is read beside a Graph depends on what is installed: entry points of the group ``graph_api.readers``. Ours
        takes every form of ``fusilli convert``, graphs of ``hipdnn_frontend`` and of cuDNN's Python.

        Raises:
            GraphError: it is none, or damaged.
        """
        if isinstance(source, Graph):
            return source
        from graph_api.foreign.readers import read

        return read(source)

    @classmethod
    def from_cudnn(cls, data: str | bytes) -> Graph:
        """The validated graph that cuDNN's front end wrote: JSON (``repr`` of a graph) or the bytes of ``serialize()``.

        Raises:
            GraphError: not such a graph; the message says where.
            NotSupportedError: it has an operation or a feature that hipDNN's graphs have no word for.
        """
        from graph_api.foreign.cudnn import from_cudnn

        return from_cudnn(cls, data).validate()

    def canonical_json(self) -> str:
        """The graph without names and uids: equal for graphs that compile to the same code."""
        return serialization.canonical_json(self.validate())

    def with_dims(self, dims: Mapping[Any, Sequence[int]], strides: Mapping[Any, Sequence[int]] | None = None) -> Graph:
        """The same graph for other input dims; dims of results follow, strides keep their order and become packed.

        Args:
            dims: new logical dims by tensor, name or uid. Naming a result sets its dims too (a dgrad's dx, say).
            strides: new strides in elements by tensor, name or uid, in place of those that keep the order.

        Raises:
            GraphError: the new dims do not fit the graph.
        """
        self.validate()
        wanted = {
            tensor: int_tuple(new, f"dims of tensor '{tensor.name}'") for tensor, new in self.by_tensor(dims).items()
        }
        laid = {
            tensor: int_tuple(new, f"strides of tensor '{tensor.name}'")
            for tensor, new in self.by_tensor(strides or {}).items()
        }
        producers = self._producers()
        new = Graph(self.name, io_data_type=self.io_data_type, intermediate_data_type=self.intermediate_data_type,
                    compute_data_type=self.compute_data_type)  # fmt: skip
        copies: dict[TensorAttr, TensorAttr] = {}
        for tensor in self._tensors:
            copy = TensorAttr(name=tensor.name, uid=tensor.uid, data_type=tensor.data_type, value=tensor.value,
                              is_virtual=tensor.is_virtual, is_pass_by_value=tensor.is_pass_by_value)  # fmt: skip
            if tensor in wanted:
                copy.set_dim(wanted[tensor])
            elif tensor not in producers:
                copy.set_dim(tensor.dims)
            if copy.has_dims:
                copy.set_stride(_restride(tensor, copy.dims, laid.get(tensor)))
            copies[tensor] = new.own(copy)
        for node in self._nodes:
            new._readd(node, copies, wanted, laid)
        return new.validate()

    def _readd(
        self,
        node: Node,
        copies: Mapping[TensorAttr, TensorAttr],
        wanted: Mapping[TensorAttr, tuple[int, ...]],
        laid: Mapping[TensorAttr, tuple[int, ...]],
    ) -> None:
        """Adds a copy of ``node`` whose output strides are those of ``laid``, or keep the order that they had."""
        inputs = {port: copies[tensor] for port, tensor in node.inputs.items()}
        outputs = {port: copies[tensor] for port, tensor in node.outputs.items()}
        new = type(node)(node.name, node.attributes, inputs, outputs, node.compute)
        for port, tensor in node.outputs.items():
            if tensor not in wanted and (hint := new.respecified_dims(port, node)) is not None:
                copies[tensor].set_dim(hint)
        new.validate()
        new.infer()
        for port, tensor in node.outputs.items():
            inferred = outputs[port].dims
            outputs[port].forget()
            outputs[port].set_dim(inferred).set_stride(_restride(tensor, inferred, laid.get(tensor)))
        self._nodes.append(new)

    def _producers(self) -> dict[TensorAttr, Node]:
        producers: dict[TensorAttr, Node] = {}
        for node in self._nodes:
            for tensor in node.outputs.values():
                if tensor in producers:
                    raise node.fail(f"tensor '{tensor.name}' is also written by '{producers[tensor].name}'")
                if tensor.value is not None:
                    raise node.fail(f"tensor '{tensor.name}' is a constant and cannot be written")
                producers[tensor] = node
        return producers

    def _name_and_number(self, producers: Mapping[TensorAttr, Node]) -> None:
        taken = _unique(((t.name, t) for t in self._tensors if t.name), "name", self.name)
        uids = _unique(((t.uid, t) for t in self._tensors if t.has_uid), "uid", self.name)
        next_uid = 1
        for index, tensor in enumerate(self._tensors):
            if not tensor.name:
                node = producers.get(tensor)
                port = next((p for p, t in node.outputs.items() if t is tensor), "") if node else ""
                name = f"{node.name}::{port}" if node else f"tensor_{index}"
                name = name if name not in taken else self._free(name, taken)
                taken.add(name)
                tensor.resolve(name=name)
            while next_uid in uids:
                next_uid += 1
            if not tensor.has_uid:
                uids.add(next_uid)
                tensor.resolve(uid=next_uid)

    def _sorted(self, producers: Mapping[TensorAttr, Node]) -> list[Node]:
        """Nodes so that producers come first; otherwise in order of creation."""
        position = {node: index for index, node in enumerate(self._nodes)}
        missing = {node: {tensor for tensor in node.inputs.values() if tensor in producers} for node in self._nodes}
        users: dict[TensorAttr, list[Node]] = {}
        for node, tensors in missing.items():
            for tensor in tensors:
                users.setdefault(tensor, []).append(node)
        order: list[Node] = []
        ready = [index for node, index in position.items() if not missing[node]]  # sorted, so it is a heap
        while ready:
            node = self._nodes[heapq.heappop(ready)]
            order.append(node)
            for tensor in node.outputs.values():
                for user in users.get(tensor, ()):
                    missing[user].discard(tensor)
                    if not missing[user]:
                        heapq.heappush(ready, position[user])
        if len(order) < len(self._nodes):
            names = ", ".join(f"'{node.name}'" for node in self._nodes if missing[node])
            raise GraphError(f"graph '{self.name}' has a cycle through {names}; a node may not use its own result")
        return order

    def _infer(self, order: Sequence[Node], producers: Mapping[TensorAttr, Node]) -> None:
        """Types, dims and strides, node after node: each reads what its producers were given."""
        used = {tensor for node in order for tensor in (*node.inputs.values(), *node.outputs.values())}
        for tensor in self._tensors:
            if tensor not in producers:
                self._complete_input(tensor, tensor in used)
        for node in order:
            node.compute = node.compute_data_type or self.compute_data_type or _default_compute(node.inputs.values())
            if node.compute in (DataType.HALF, DataType.BFLOAT16):
                node.compute = DataType.FLOAT
            if node.compute not in (DataType.FLOAT, DataType.DOUBLE, DataType.INT32, DataType.INT64):
                raise node.fail(
                    f"compute_data_type {node.compute.name} is none of FLOAT, DOUBLE, INT32, INT64, HALF, BFLOAT16"
                )
            for tensor in node.outputs.values():
                default = (self.intermediate_data_type or node.compute) if tensor.is_virtual else self.io_data_type
                tensor.resolve(data_type=default)
                if not tensor.has_data_type:
                    raise node.fail(f"output '{tensor.name}' has no data type; set it or the graph's io_data_type")
            node.validate()
            node.infer()
            for tensor in node.outputs.values():
                tensor.check(written=True)

    def _complete_input(self, tensor: TensorAttr, used: bool) -> None:
        if not used:
            raise GraphError(f"tensor '{tensor.name}' is used by no node of graph '{self.name}'; remove it or use it")
        if tensor.is_virtual:
            raise GraphError(f"tensor '{tensor.name}' is virtual, but no node of graph '{self.name}' writes it")
        if not tensor.has_dims:
            raise GraphError(f"input '{tensor.name}' of graph '{self.name}' has no dims")
        fallback = _scalar_type(tensor.value) if tensor.value is not None else None
        tensor.resolve(data_type=self.io_data_type or fallback)
        if not tensor.has_data_type:
            raise GraphError(f"tensor '{tensor.name}' has no data type; set data_type= or the graph's io_data_type")
        if not tensor.has_strides:
            tensor.resolve(strides=strides_in_order(tensor.dims, range(tensor.rank)))
        tensor.check(written=False)

    def _first_use(self) -> list[TensorAttr]:
        seen: dict[TensorAttr, None] = {}
        for node in self._nodes:
            seen.update(dict.fromkeys((*node.inputs.values(), *node.outputs.values())))
        return list(seen)


def _unique(items: Iterable[tuple[Any, TensorAttr]], what: str, graph: str) -> set[Any]:
    seen: dict[Any, TensorAttr] = {}
    for key, tensor in items:
        if key in seen:
            raise GraphError(
                f"graph '{graph}': tensors '{seen[key].name}' and '{tensor.name}' have the same {what} {key!r}"
            )
        seen[key] = tensor
    return set(seen)


def _default_compute(tensors: Iterable[TensorAttr]) -> DataType:
    types = {tensor.data_type for tensor in tensors if tensor.value is None} or {t.data_type for t in tensors}
    if DataType.DOUBLE in types:
        return DataType.DOUBLE
    if any(dtype.is_float for dtype in types):
        return DataType.FLOAT
    return DataType.INT64 if DataType.INT64 in types else DataType.INT32


def _scalar_type(value: object) -> DataType:
    if isinstance(value, bool):
        return DataType.BOOLEAN
    return DataType.INT64 if isinstance(value, int) else DataType.FLOAT


def _restride(old: TensorAttr, dims: Sequence[int], given: tuple[int, ...] | None = None) -> tuple[int, ...]:
    """Strides for new ``dims``: those given, else in the stride order of ``old``; unchanged where the dims are."""
    if given is not None:
        if len(given) != len(dims):
            raise GraphError(
                f"tensor '{old.name}' has {len(dims)} dims, {tuple(dims)}, and {len(given)} strides, {given}"
            )
        return given
    if tuple(dims) == old.dims:
        return old.strides
    if len(dims) != old.rank:
        return strides_in_order(dims, range(len(dims)))
    repeated = [stride == 0 and dim > 1 for stride, dim in zip(old.strides, old.dims, strict=True)]
    stored = [1 if repeat else dim for repeat, dim in zip(repeated, dims, strict=True)]
    packed = strides_in_order(stored, stride_order(old.dims, old.strides))
    return tuple(0 if repeat else stride for repeat, stride in zip(repeated, packed, strict=True))
