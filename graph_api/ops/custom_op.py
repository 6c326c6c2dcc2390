"""Custom operations: what a user writes as an MLIR function, by Fusilli's convention.

Source of the convention: hipDNN's CustomOpAttributes, whose payload belongs to the engine that knows the id.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from fusilli_ground.late_numpy import np
from graph_api.builder import GraphBuilder
from graph_api.dtypes import DataType
from graph_api.errors import GraphError
from graph_api.layout import packed_strides
from graph_api.node import Array, Arrays, Attributes, Node, register_op
from graph_api.tensor import TensorAttr

__all__ = ["MAX_PORTS", "MAX_TEXT", "CustomOpAttributes", "CustomOpBuilder", "CustomOpNode"]

MAX_PORTS = 32
"""Most inputs and most outputs of a custom operation."""
MAX_TEXT = 1 << 20
"""Longest template, in characters."""

Reference = Callable[..., Sequence[Array]]


@dataclass(frozen=True, kw_only=True)
class CustomOpAttributes(Attributes):
    """Attributes of a custom operation.

    Attributes:
        custom_op_id: whose operation it is; the compiler's begin with ``fusilli.``.
        data: an MLIR template of one ``func.func private @{FUNC_NAME}`` on static torch types. Placeholders that are
            replaced: ``{FUNC_NAME}``; ``{IN0_TYPE}`` (``!torch.vtensor<[2,3],f32>``), ``{IN0_DTYPE}`` (``f32``),
            ``{IN0_DIM1}`` (``3``) and so on for every input; ``{OUT0_TYPE}`` and so on for every output.
        reference: takes the inputs as float64 arrays and returns the outputs, for ``Graph.reference`` and checks of
            results. Not part of saved graphs; without it the graph has no reference.
    """

    custom_op_id: str
    data: str
    reference: Reference | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("custom_op_id", "data"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value:
                raise GraphError(f"custom_op: {name} must be a non-empty string, got {value!r}")
        if len(self.custom_op_id) > 256:
            raise GraphError(f"custom_op: custom_op_id has {len(self.custom_op_id)} characters, at most 256")
        if len(self.data) > MAX_TEXT:
            raise GraphError(
                f"custom_op '{self.custom_op_id}': {len(self.data)} characters of data, at most {MAX_TEXT}"
            )
        if self.reference is not None and not callable(self.reference):
            raise GraphError(f"custom_op '{self.custom_op_id}': reference must be callable, got {self.reference!r}")

    def to_json(self) -> dict[str, Any]:
        """Id and text; code of the user's is not saved."""
        return {"custom_op_id": self.custom_op_id, "data": self.data}

    @classmethod
    def from_json(cls, data: object, where: str) -> CustomOpAttributes:
        """What ``to_json`` wrote."""
        if not isinstance(data, dict) or set(cast("dict[str, Any]", data)) != {"custom_op_id", "data"}:
            raise GraphError(f"{where}: attributes must hold custom_op_id and data, got {data!r:.200}")
        return cls(**cast("dict[str, Any]", data))


@register_op
class CustomOpNode(Node):
    """out_0, out_1, ... = data(in_0, in_1, ...): the user's function.

    Shapes:  of the inputs as they are; of the outputs as the user sets them
    Dtypes:  the tensors' own; nothing is converted
    Layout:  the function sees logical dims; outputs are packed unless strides are set
    Raises:  GraphError if an output has no dims
    Source:  hipDNN CustomOp
    """

    op = "custom_op"
    keeps_rank = False
    attributes_type = CustomOpAttributes
    attributes: CustomOpAttributes
    input_ports = tuple(f"in_{i}" for i in range(MAX_PORTS))
    optional_inputs = input_ports
    output_ports = tuple(f"out_{i}" for i in range(MAX_PORTS))
    optional_outputs = output_ports[1:]

    def validate(self) -> None:
        sides = (("input", self.inputs, self.input_ports), ("output", self.outputs, self.output_ports))
        for kind, tensors, ports in sides:
            for port in ports[: len(tensors)]:
                if port not in tensors:
                    raise self.fail(f"{kind} {port} is missing between {', '.join(tensors)}; number them from 0")

    def infer(self) -> None:
        for port, tensor in self.outputs.items():
            if not tensor.has_dims:
                raise self.fail(f"{port} '{tensor.name}' has no dims; only the author knows them, call set_dim on it")
            tensor.resolve(strides=packed_strides(tensor.dims))

    def respecified_dims(self, port: str, old: Node) -> tuple[int, ...] | None:
        same = all(self.inputs[name].dims == tensor.dims for name, tensor in old.inputs.items())
        return old.outputs[port].dims if same else None

    def reference(self, inputs: Arrays) -> dict[str, Array]:
        return dict(zip(self.outputs, self._evaluate(list(inputs.values())), strict=True))

    def error(self, inputs: Arrays, errors: Arrays, outputs: Arrays) -> dict[str, Array]:
        """What the author's function does to errors of its inputs, and 8 roundings of its coarsest type."""
        values = list(inputs.values())
        shifts = [np.broadcast_to(errors[port], inputs[port].shape) for port in inputs]
        eps = max(tensor.data_type.eps for tensor in (*self.inputs.values(), *self.outputs.values()))
        eps = max(eps, self.compute.eps)
        bounds = {port: np.full(out.shape, 8.0 * eps * float(np.max(np.abs(out)))) for port, out in outputs.items()}
        for sign in (1.0, -1.0) if any(np.any(shift) for shift in shifts) else ():
            moved = self._evaluate([value + sign * shift for value, shift in zip(values, shifts, strict=True)])
            for (port, out), other in zip(outputs.items(), moved, strict=True):
                bounds[port] = bounds[port] + np.abs(other - out)
        return bounds

    def _evaluate(self, values: list[Array]) -> list[Array]:
        function = self.attributes.reference
        if function is None:
            raise self.fail(
                f"'{self.attributes.custom_op_id}' has no reference result: its meaning is its author's; "
                "pass CustomOpAttributes(reference=...) to compare with"
            )
        made = [np.asarray(value, np.float64) for value in function(*values)]
        wanted = [tensor.dims for tensor in self.outputs.values()]
        if [value.shape for value in made] != wanted:
            raise self.fail(f"the reference made shapes {[value.shape for value in made]}, the outputs have {wanted}")
        return made


class CustomOpBuilder(GraphBuilder):
    """Builder method of custom operations."""

    def custom_op(
        self,
        inputs: Sequence[TensorAttr],
        num_outputs: int,
        attr: CustomOpAttributes,
        *,
        compute_data_type: DataType | None = None,
        name: str | None = None,
    ) -> tuple[TensorAttr, ...]:
        """Adds a custom operation; see :class:`CustomOpNode`.

        Args:
            inputs: tensors of the graph, at most 32.
            num_outputs: 1 to 32.
            attr: id and template.

        Returns:
            The outputs, virtual until ``set_output(True)``. Their dims must be set, data types and strides can be.

        Raises:
            GraphError: too many inputs or outputs.
        """
        if not isinstance(attr, CustomOpAttributes):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise GraphError(f"custom_op: attr must be CustomOpAttributes, got {attr!r:.200}")
        # Users may pass anything.
        if not isinstance(inputs, Sequence) or isinstance(inputs, str | bytes):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise GraphError(f"custom_op '{attr.custom_op_id}': inputs must be a list of tensors, got {inputs!r:.200}")
        counted = isinstance(num_outputs, int) and not isinstance(num_outputs, bool)  # pyright: ignore[reportUnnecessaryIsInstance]
        if len(inputs) > MAX_PORTS or not counted or not 1 <= num_outputs <= MAX_PORTS:
            raise GraphError(
                f"custom_op '{attr.custom_op_id}': {len(inputs)} inputs and {num_outputs!r:.200} outputs; up to "
                f"{MAX_PORTS} of each and at least one output are allowed"
            )
        ports = {f"in_{i}": tensor for i, tensor in enumerate(inputs)}
        made = [f"out_{i}" for i in range(num_outputs)]
        node = self.add_node(
            CustomOpNode, ports, name=name, attributes=attr, optional_outputs=made, compute_data_type=compute_data_type
        )
        return tuple(node.outputs.values())
