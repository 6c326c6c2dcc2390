"""What the builder methods of the operation families share: tensors, names, adding a node."""

# Users may pass anything.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import FunctionType
from typing import Any, TypeVar

from graph_api.calls import explain_calls
from graph_api.dtypes import DataType
from graph_api.errors import GraphError
from graph_api.layout import layout_strides
from graph_api.node import Attributes, Node
from graph_api.tensor import Scalar, TensorAttr, checked_name

__all__ = ["GraphBuilder"]

N = TypeVar("N", bound=Node)
_MISSING: Any = object()


def _parameters(method: FunctionType) -> tuple[str, ...]:
    code = method.__code__
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


class GraphBuilder:
    """Tensors and nodes under construction. ``Graph`` adds the operations and what comes after building."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Wrong parameters of a method that adds a node, which is one with a ``name``, are a GraphError."""
        super().__init_subclass__(**kwargs)
        for name, method in list(vars(cls).items()):
            if isinstance(method, FunctionType) and not name.startswith("_") and "name" in _parameters(method):
                setattr(cls, name, explain_calls(method))

    def __init__(
        self,
        name: str = "graph",
        *,
        io_data_type: DataType | None = None,
        intermediate_data_type: DataType | None = None,
        compute_data_type: DataType | None = None,
    ) -> None:
        """An empty graph.

        Args:
            name: of the graph; any text.
            io_data_type: of tensors with a buffer that do not set their own.
            intermediate_data_type: of virtual tensors that do not set their own; default: the compute type of the node
                that makes them.
            compute_data_type: in which nodes compute and accumulate that do not set their own; default: DOUBLE if the
                node has a DOUBLE input, else FLOAT if it has a floating-point input, else INT64 or INT32.
        """
        checked_name(name, "a graph name", may_be_empty=True)
        for what, dtype in (
            ("io_data_type", io_data_type),
            ("intermediate_data_type", intermediate_data_type),
            ("compute_data_type", compute_data_type),
        ):
            if dtype is not None and not isinstance(dtype, DataType):
                raise GraphError(f"graph '{name}': {what} must be a DataType, got {dtype!r}")
        self.name = name
        self.io_data_type = io_data_type
        self.intermediate_data_type = intermediate_data_type
        self.compute_data_type = compute_data_type
        self._tensors: dict[TensorAttr, None] = {}  # an ordered set
        self._nodes: list[Node] = []
        self._automatic: set[str] = set()
        self._frozen = False

    @explain_calls
    def tensor(
        self,
        name: str | None = None,
        *,
        dim: Sequence[int] = _MISSING,
        stride: Sequence[int] | None = None,
        layout: str | None = None,
        data_type: DataType | None = None,
        uid: int | None = None,
        is_pass_by_value: bool = False,
    ) -> TensorAttr:
        """Adds an input of the graph.

        Args:
            name: unique in the graph; default: ``tensor_<n>``.
            dim: logical dims, (N, C, spatial...); has to be given.
            stride: in elements; default: packed in dim order. 0 repeats the input along that dim.
            layout: instead of ``stride``, one of NCW, NWC, NCHW, NHWC, NCDHW, NDHWC.
            data_type: default: the graph's ``io_data_type``.
            uid: unique in the graph; default: assigned by ``validate``.
            is_pass_by_value: a runtime scalar, which callers of an engine pass by host pointer.

        Raises:
            GraphError: bad values, no ``dim``, or both ``stride`` and ``layout``.
        """
        if dim is _MISSING:
            called, first = ("an input", "") if name is None else (f"input {name!r}", f"{name!r}, ")
            raise GraphError(f"{called} has no dims: dim= is missing; write e.g. g.tensor({first}dim=(8, 64, 56, 56))")
        if stride is not None and layout is not None:
            raise GraphError(f"tensor '{name}': give stride= or layout=, not both")
        tensor = TensorAttr(name=name, uid=uid, dims=dim, strides=stride, data_type=data_type,
                            is_pass_by_value=is_pass_by_value)  # fmt: skip
        if layout is not None:
            tensor.set_stride(layout_strides(layout, tensor.dims))
        return self.own(tensor)

    @explain_calls
    def scalar(
        self, value: Scalar, *, data_type: DataType | None = None, name: str | None = None, rank: int = 1,
        uid: int | None = None,
    ) -> TensorAttr:  # fmt: skip
        """Adds a compile-time constant of one element, dims ``(1,) * rank``."""
        if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank <= 64:
            raise GraphError(f"scalar '{name or value}': rank must be an integer from 0 on, at most 64, got {rank!r}")
        return self.own(TensorAttr(name=name, uid=uid, dims=(1,) * rank, data_type=data_type, value=value))

    @property
    def tensors(self) -> tuple[TensorAttr, ...]:
        """All tensors in order of creation."""
        return tuple(self._tensors)

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes; topologically sorted once the graph is validated."""
        return tuple(self._nodes)

    def add_node(
        self,
        node_type: type[N],
        inputs: Mapping[str, TensorAttr | None],
        *,
        name: str | None = None,
        attributes: Attributes | None = None,
        outputs: Mapping[str, TensorAttr] | None = None,
        optional_outputs: Sequence[str] = (),
        compute_data_type: DataType | None = None,
    ) -> N:
        """Adds a node; the builder methods of the operations end here.

        Args:
            inputs: tensors of this graph by port; None marks an optional port that is not used.
            outputs: tensors of this graph to write to, by port; the others are made, virtual.
            optional_outputs: optional ports to make a tensor for.

        Raises:
            GraphError: a tensor of another graph, a name in use, a frozen graph, a missing port.
        """
        self._check_open()
        if compute_data_type is not None and not isinstance(compute_data_type, DataType):
            raise GraphError(f"{node_type.op}: compute_data_type must be a DataType, got {compute_data_type!r}")
        node_name = self._node_name(node_type.op, name)
        ins = {port: self.known(node_name, port, tensor) for port, tensor in inputs.items() if tensor is not None}
        given = {port: self.known(node_name, port, tensor) for port, tensor in (outputs or {}).items()}
        made = [
            port
            for port in node_type.output_ports
            if port not in given and (port not in node_type.optional_outputs or port in optional_outputs)
        ]
        outs = given | {port: TensorAttr(is_virtual=True) for port in made}
        ordered = {port: outs[port] for port in (*node_type.output_ports, *outs) if port in outs}
        node = node_type(node_name, attributes or node_type.attributes_type(), ins, ordered, compute_data_type)
        self._tensors.update((outs[port], None) for port in made)
        self._nodes.append(node)
        return node

    def rank_of(self, tensor: TensorAttr) -> int | None:
        """Number of dims of a tensor, also where an operation whose results have the rank of its inputs will make them.

        None where that is not known yet.
        """
        producers = {out: node for node in self._nodes for out in node.outputs.values()}
        seen: set[TensorAttr] = set()
        ranks: list[int] = []
        waiting = [tensor]
        while waiting:
            each = waiting.pop()
            if each in seen:
                continue
            seen.add(each)
            if each.has_dims:
                ranks.append(each.rank)
            elif each not in producers or not producers[each].keeps_rank:
                return None
            else:
                waiting += producers[each].inputs.values()
        return max(ranks, default=None)

    def own(self, tensor: TensorAttr) -> TensorAttr:
        """Makes a free tensor one of this graph; for code that copies graphs."""
        self._check_open()
        self._tensors[tensor] = None
        return tensor

    def _check_open(self) -> None:
        if self._frozen:
            raise GraphError(f"graph '{self.name}' is validated and cannot be changed any more; build a new one")

    def known(self, node: str, port: str, tensor: object) -> TensorAttr:
        """A tensor given for a port, checked to be one of this graph."""
        if not isinstance(tensor, TensorAttr):
            raise GraphError(f"node '{node}': '{port}' must be a tensor of the graph, got {tensor!r}")
        if tensor not in self._tensors:
            raise GraphError(f"node '{node}': tensor '{tensor.name}' at '{port}' belongs to another graph")
        return tensor

    def _node_name(self, op: str, name: str | None) -> str:
        taken = {node.name for node in self._nodes}
        if name is None:
            plain = f"{op}_{len(self._nodes)}"
            automatic = plain if plain not in taken else self._free(plain, taken)
            self._automatic.add(automatic)
            return automatic
        checked_name(name, "a node name")
        if name in taken and name in self._automatic:
            other = next(node for node in self._nodes if node.name == name)
            other.name = self._free(name, taken)
            self._automatic = (self._automatic - {name}) | {other.name}
            return name
        if name in taken:
            raise GraphError(f"two nodes are named '{name}'; give each its own name")
        return name

    @staticmethod
    def _free(name: str, taken: set[str]) -> str:
        suffix = 1
        while f"{name}_{suffix}" in taken:
            suffix += 1
        return f"{name}_{suffix}"
