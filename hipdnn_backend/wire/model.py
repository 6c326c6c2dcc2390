"""The tables around the operations: the graph and its tensors, what an engine says of itself, plans, in slot order.

Records are values: equal when all fields are, immutable, made with keyword arguments. The words are the schema's, in
its newest spelling (the graph's ``compute_data_type`` was ``compute_type`` in November 2025).
"""

from __future__ import annotations

from typing import ClassVar, TypeAlias

from hipdnn_backend.wire.attributes import Attributes, UnknownAttributes
from hipdnn_backend.wire.enums import DataType, TensorValueType
from hipdnn_backend.wire.record import F64, I32, I64, U32, Record, Uuid

__all__ = [
    "EngineApiVersion",
    "EngineConfig",
    "EngineDetails",
    "FloatConstraint",
    "IntConstraint",
    "Knob",
    "KnobConstraint",
    "KnobSetting",
    "KnobValue",
    "NodeAttributes",
    "SerializedExecutionPlan",
    "SerializedGraphAndPlan",
    "StringConstraint",
    "TensorValue",
    "WireGraph",
    "WireNode",
    "WireTensor",
]

NodeAttributes: TypeAlias = Attributes | UnknownAttributes
KnobValue: TypeAlias = int | float | str
"""IntValue, FloatValue or StringValue of the schema; never a bool."""


class TensorValue(Record):
    """The scalar of a pass-by-value tensor.

    Attributes:
        type: struct of the union; an unknown one can be read but not written.
        value: a float for the float types, raw bits for Float8Value, None for an unknown type.
    """

    type: TensorValueType
    value: float | int | bool | None


class WireTensor(Record):
    """TensorAttributes of the schema.

    Attributes:
        uid: unique in the graph; 0 is legal.
        strides: in elements, as many as dims.
        dims: logical order (N, C, spatial).
        virtual: an intermediate without a buffer.
        value: compile-time scalar, or the default of a runtime scalar.
        is_runtime_pass_by_value: the variant pack has a host pointer to the scalar unless ``value`` is set.
        ragged_offset_tensor_uid: tensor of the row offsets of a ragged tensor.
        alignment: bytes to which the buffer's pointer is aligned.
        ragged_offset_multiplier: elements per unit of the stored offsets.
    """

    NOVEMBER_2025_SLOTS: ClassVar[int] = 8

    uid: I64
    name: str = ""
    data_type: DataType
    strides: tuple[I64, ...]
    dims: tuple[I64, ...]
    virtual: bool = False
    value: TensorValue | None = None
    is_runtime_pass_by_value: bool = False
    ragged_offset_tensor_uid: I64 | None = None
    alignment: I64 = 16
    ragged_offset_multiplier: I64 = 1


class WireNode(Record):
    """Node of the schema.

    Attributes:
        compute_data_type: UNSET means the graph's; only the newest layout can say otherwise.
        attributes: table of the operation; its class says which operation it is.
    """

    name: str = ""
    compute_data_type: DataType = DataType.UNSET
    attributes: NodeAttributes


class EngineApiVersion(Record):
    """Version of the engine API, e.g. 1.2.0."""

    major: U32
    minor: U32
    patch: U32

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"


class WireGraph(Record):
    """Graph of the schema.

    Attributes:
        intermediate_data_type: data type of virtual tensors that have none of their own.
        nodes: in topological order.
        preferred_engine_id: the user's hint, None without one.
        is_override_shape_enabled: dims may be overridden at each execution.
        min_required_engine_api_version: None means 1.0.0.
        id: 16 bytes for logs and caches, without influence on the meaning.
    """

    NOVEMBER_2025_SLOTS: ClassVar[int] = 6

    name: str = ""
    compute_data_type: DataType
    intermediate_data_type: DataType
    io_data_type: DataType
    tensors: tuple[WireTensor, ...]
    nodes: tuple[WireNode, ...]
    preferred_engine_id: I64 | None = None
    is_override_shape_enabled: bool = False
    min_required_engine_api_version: EngineApiVersion | None = None
    id: Uuid | None = None

    def tensor(self, uid: int) -> WireTensor:
        """The tensor with this uid.

        Raises:
            KeyError: the graph has no such tensor.
        """
        for tensor in self.tensors:
            if tensor.uid == uid:
                return tensor
        raise KeyError(f"graph '{self.name}' has no tensor with uid {uid}")


class KnobSetting(Record):
    """A knob of an engine set to a value."""

    knob_id: str
    value: KnobValue


class EngineConfig(Record):
    """What the host asks of an engine when it builds a plan.

    Attributes:
        ranking_metric: metric by which the engine ranks; None means "tflops".
    """

    engine_id: I64
    knobs: tuple[KnobSetting, ...] = ()
    ranking_metric: str | None = None


class IntConstraint(Record):
    """Bounds of an integer knob; with ``valid_values`` only these are allowed."""

    min_value: I64
    max_value: I64
    step: I64 = 1
    valid_values: tuple[I64, ...] = ()


class FloatConstraint(Record):
    """Bounds of a floating-point knob."""

    min_value: F64
    max_value: F64


class StringConstraint(Record):
    """Length of a string knob in bytes; with ``valid_values`` only these are allowed."""

    max_length: I32
    valid_values: tuple[str, ...] = ()


KnobConstraint: TypeAlias = IntConstraint | FloatConstraint | StringConstraint


class Knob(Record):
    """A setting that an engine offers."""

    knob_id: str
    description: str | None = None
    default_value: KnobValue
    constraint: KnobConstraint | None = None
    deprecated: bool = False


class EngineDetails(Record):
    """What an engine tells the host of itself for a graph.

    Attributes:
        behavior_notes: numbers of `BehaviorNote`; newer ones may be among them.
        name: informational; hosts name an engine by its exported function.
    """

    engine_id: I64
    knobs: tuple[Knob, ...] = ()
    behavior_notes: tuple[I32, ...] = ()
    name: str | None = None


class SerializedExecutionPlan(Record):
    """The host's container of a plan.

    Attributes:
        version: of the container.
        workspace_size: bytes.
        plugin_payload: what the engine serialized; means something to that engine only.
    """

    version: U32
    engine_id: I64
    workspace_size: I64
    tensor_uids: tuple[I64, ...]
    plugin_payload: bytes
    is_override_shape_enabled: bool = False


class SerializedGraphAndPlan(Record):
    """A graph and its plan in one file (identifier ``HDGP``), both still serialized."""

    graph_blob: bytes
    plan_blob: bytes
