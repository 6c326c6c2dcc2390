"""The contract of an operation: attributes, ports, validation, inference, reference, error bound; and the registry.

An operation is one class in ``graph_api/ops``. It knows nothing of a compiler; the emission rule of the same name
stands in ``iree_bridge/emit``.
"""

# What comes out of JSON has no type until it is checked.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false

from __future__ import annotations

import dataclasses
import math
import types
import typing
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from enum import Enum
from reprlib import repr as _shown  # of values from outside, which may be long
from typing import Any, ClassVar, TypeAlias, TypeVar

from fusilli_ground.late_numpy import np
from fusilli_ground.spelling import did_you_mean
from graph_api.dtypes import DataType
from graph_api.errors import GraphError
from graph_api.layout import packed_strides, stride_order, strides_in_order
from graph_api.tensor import TensorAttr

__all__ = ["OPS", "Array", "Arrays", "Attributes", "Node", "register_op"]

Array: TypeAlias = "np.ndarray[Any, np.dtype[np.float64]]"
Arrays = Mapping[str, Array]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Attributes:
    """Base of the frozen attribute classes: fields of int, float, bool, str, Enum, tuples of these, or None."""

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values, fields in order of declaration; fields at their default are left out."""
        return {
            field.name: _plain(value)
            for field in dataclasses.fields(self)
            if (value := getattr(self, field.name)) != field.default
        }

    @classmethod
    def from_json(cls, data: object, where: str) -> typing.Self:
        """The attributes that ``to_json`` wrote; ``where`` names the node in errors."""
        if not isinstance(data, dict):
            raise GraphError(f"{where}: attributes must be an object, got {_shown(data)}")
        hints = typing.get_type_hints(cls)
        known = [field.name for field in dataclasses.fields(cls)]
        for key in data:
            if key not in known:
                near = did_you_mean(key, known)
                raise GraphError(f"{where}: unknown attribute {key!r}{near}; known are {', '.join(known) or 'none'}")
        try:
            return cls(**{key: _typed(hints[key], value, f"{where}: {key}") for key, value in data.items()})
        except TypeError as error:
            raise GraphError(f"{where}: {error}") from error


A = TypeVar("A", bound=Attributes)


def _plain(value: object) -> object:
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _typed(hint: Any, value: Any, where: str) -> Any:
    """``value`` from JSON as the Python type ``hint``."""
    options = typing.get_args(hint)
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        if value is None and type(None) in options:
            return None
        (hint,) = [option for option in options if option is not type(None)]
        return _typed(hint, value, where)
    if typing.get_origin(hint) is tuple and isinstance(value, list):
        return tuple(_typed(options[0], item, where) for item in value)
    if isinstance(hint, type) and issubclass(hint, Enum):
        if isinstance(value, str) and value in hint.__members__:
            return hint[value]
        near = did_you_mean(value, hint.__members__)
        raise GraphError(f"{where}: {_shown(value)} is unknown{near}; known are {', '.join(hint.__members__)}")
    if hint is float and isinstance(value, str) and value in ("inf", "-inf", "nan"):
        return float(value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise GraphError(f"{where}: {_shown(value)} is outside the range of a float") from None
    if isinstance(hint, type) and isinstance(value, hint) and (hint is bool) == isinstance(value, bool):
        return value
    raise GraphError(f"{where}: expected {getattr(hint, '__name__', hint)}, got {_shown(value)}")


_CHAIN = 4096
"""Additions, one after the other, that a long sum is allowed at most."""


class Node(ABC):
    """One operation of a graph.

    Attributes:
        op: name of the operation, the builder method's.
        name: unique in its graph.
        attributes: frozen attributes.
        inputs, outputs: port name to tensor, in order of declaration; optional ports that are not used are absent.
        compute: the type in which the operation computes and accumulates, set by ``Graph.validate``.
    """

    op: ClassVar[str]
    attributes_type: ClassVar[type[Attributes]] = Attributes
    input_ports: ClassVar[tuple[str, ...]]
    optional_inputs: ClassVar[tuple[str, ...]] = ()
    output_ports: ClassVar[tuple[str, ...]]
    optional_outputs: ClassVar[tuple[str, ...]] = ()
    keeps_rank: ClassVar[bool] = True
    """Whether the results have as many dims as the input with the most."""

    def __init__(
        self,
        name: str,
        attributes: Attributes,
        inputs: Mapping[str, TensorAttr],
        outputs: Mapping[str, TensorAttr],
        compute_data_type: DataType | None = None,
    ) -> None:
        self.name = name
        self.attributes = attributes
        # A file may list ports in any order; operations rely on that of their declaration.
        self.inputs = _in_order(inputs, self.input_ports)
        self.outputs = _in_order(outputs, self.output_ports)
        self.compute_data_type = compute_data_type
        self.compute = compute_data_type or DataType.FLOAT
        self._check_ports("input", self.inputs, self.input_ports, self.optional_inputs)
        self._check_ports("output", self.outputs, self.output_ports, self.optional_outputs)

    def __repr__(self) -> str:
        return f"<{self.op} '{self.name}'>"

    def fail(self, message: str) -> GraphError:
        """A GraphError that names this node."""
        return GraphError(f"{self.op} '{self.name}': {message}")

    def compute_floats_in_float(self) -> None:
        """Beside a float an integer compute type counts as FLOAT, in which hipDNN's CPU reference computes."""
        if not self.compute.is_float and any(tensor.data_type.is_float for tensor in self.inputs.values()):
            self.compute = DataType.FLOAT

    @abstractmethod
    def validate(self) -> None:
        """Raises GraphError for what the user got wrong; all inputs are known by then."""

    @abstractmethod
    def infer(self) -> None:
        """Fills in dims, strides and data type of the outputs (``infer_output``) and checks those that were given."""

    @abstractmethod
    def reference(self, inputs: Arrays) -> dict[str, Array]:
        """The specification: float64 arrays of logical shape in, float64 arrays of logical shape out, by port."""

    @abstractmethod
    def error(self, inputs: Arrays, errors: Arrays, outputs: Arrays) -> dict[str, Array]:
        """Bound of the absolute error of each output, per element, before it is stored.

        Args:
            inputs: reference values by port.
            errors: bound of the absolute error of each input.
            outputs: what ``reference`` returned.
        """

    def flops(self) -> int:
        """Floating-point operations of one run; by default one per output element."""
        return sum(tensor.volume for tensor in self.outputs.values())

    def respecified_dims(self, port: str, old: Node) -> tuple[int, ...] | None:
        """Dims of an output when the graph is rebuilt for other input dims, or None if ``infer`` finds them.

        Operations whose output dims are the user's choice (a reduction's, say) override this. ``self`` has its new
        inputs; ``old`` is the node that it replaces.
        """
        return None

    def infer_output(self, port: str, dims: Sequence[int], like: TensorAttr, *, exact: bool = True) -> None:
        """Gives the output at ``port`` these dims and, unless set, the stride order of ``like``.

        Raises:
            GraphError: ``exact`` and the user has set other dims.
        """
        out = self.outputs[port]
        if exact and out.has_dims and out.dims != tuple(dims):
            raise self.fail(f"output '{out.name}' must have dims {tuple(dims)}, it was given {out.dims}")
        out.resolve(dims=dims)
        if not out.has_strides:
            same_rank = like.rank == out.rank
            order = stride_order(like.dims, like.strides) if same_rank else range(out.rank)
            out.resolve(strides=strides_in_order(out.dims, order) if same_rank else packed_strides(out.dims))

    @property
    def accumulation_eps(self) -> float:
        """Relative spacing of the compute type; 0.0 where it is exact."""
        return self.compute.eps

    def gamma(self, terms: int) -> float:
        """Relative error bound of a sum of ``terms`` rounded products, relative to the sum of their magnitudes.

        Rounding errors of a sum behave like a random walk, so the bound grows with the square root of the length
        (Higham and Mary, "A new approach to probabilistic rounding error analysis", 2019), here with 4 deviations.
        """
        return self.accumulation_eps * (1.0 + 2.0 * math.sqrt(terms))

    def sum_gamma(self, terms: int) -> float:
        """Relative error bound of a plain sum, relative to that of its magnitudes; long ones grow with log n.

        Targets add long sums in trees, or in more bits; no chain of additions in FLOAT is longer than some thousands.
        """
        if self.compute is not DataType.FLOAT or terms <= _CHAIN:
            return self.gamma(terms)
        return self.gamma(_CHAIN) + self.accumulation_eps * math.log2(terms / _CHAIN)

    def _check_ports(
        self, kind: str, tensors: Mapping[str, TensorAttr], ports: Sequence[str], optional: Sequence[str]
    ) -> None:
        for port in tensors:
            if port not in ports:
                raise self.fail(f"unknown {kind} '{port}'{did_you_mean(port, ports)}; known are {', '.join(ports)}")
        for port in ports:
            if port not in tensors and port not in optional:
                raise self.fail(f"{kind} '{port}' is missing")


def _in_order(tensors: Mapping[str, TensorAttr], ports: Sequence[str]) -> dict[str, TensorAttr]:
    return {port: tensors[port] for port in dict.fromkeys((*ports, *tensors)) if port in tensors}


OPS: dict[str, type[Node]] = {}
"""Every operation by name."""

N = TypeVar("N", bound=type[Node])


def register_op(node_type: N) -> N:
    """Class decorator: makes the operation known under its ``op``."""
    other = OPS.setdefault(node_type.op, node_type)
    if other is not node_type:
        raise ValueError(f"operation {node_type.op!r} is defined by {other.__module__} and {node_type.__module__}")
    return node_type
