"""hipDNN's wire format: FlatBuffers ↔ records, in the layouts of November 2025 and the newest.

The records have the schema's own words and numbers; what they mean is for others. `hipdnn_backend/wire/schema` states
the schema in FlatBuffers' language, `hipdnn_backend.wire.json` reads and writes graphs as JSON.
"""

from __future__ import annotations

from hipdnn_backend.errors import WireError
from hipdnn_backend.wire import attributes
from hipdnn_backend.wire.attributes import *  # noqa: F403 - the tables of all operations
from hipdnn_backend.wire.check import (
    check_graph,
)
from hipdnn_backend.wire.codec import (
    decode_engine_config,
    decode_engine_details,
    decode_graph,
    decode_graph_and_plan,
    decode_plan,
    encode_engine_config,
    encode_engine_details,
    encode_graph,
    encode_graph_and_plan,
    encode_plan,
    graph_in_layout,
    graph_layout,
)
from hipdnn_backend.wire.enums import (
    AttentionImplementation,
    BehaviorNote,
    ConvMode,
    DataType,
    DiagonalAlignment,
    Layout,
    MoeGroupedMatmulMode,
    NormFwdPhase,
    PaddingMode,
    PointwiseMode,
    ReductionMode,
    ResampleMode,
    TensorValueType,
    WireEnum,
)
from hipdnn_backend.wire.model import (
    EngineApiVersion,
    EngineConfig,
    EngineDetails,
    FloatConstraint,
    IntConstraint,
    Knob,
    KnobConstraint,
    KnobSetting,
    KnobValue,
    NodeAttributes,
    SerializedExecutionPlan,
    SerializedGraphAndPlan,
    StringConstraint,
    TensorValue,
    WireGraph,
    WireNode,
    WireTensor,
)

__all__ = [
    "AttentionImplementation",
    "BehaviorNote",
    "ConvMode",
    "DataType",
    "DiagonalAlignment",
    "EngineApiVersion",
    "EngineConfig",
    "EngineDetails",
    "FloatConstraint",
    "IntConstraint",
    "Knob",
    "KnobConstraint",
    "KnobSetting",
    "KnobValue",
    "Layout",
    "MoeGroupedMatmulMode",
    "NodeAttributes",
    "NormFwdPhase",
    "PaddingMode",
    "PointwiseMode",
    "ReductionMode",
    "ResampleMode",
    "SerializedExecutionPlan",
    "SerializedGraphAndPlan",
    "StringConstraint",
    "TensorValue",
    "TensorValueType",
    "WireEnum",
    "WireError",
    "WireGraph",
    "WireNode",
    "WireTensor",
    "check_graph",
    "decode_engine_config",
    "decode_engine_details",
    "decode_graph",
    "decode_graph_and_plan",
    "decode_plan",
    "encode_engine_config",
    "encode_engine_details",
    "encode_graph",
    "encode_graph_and_plan",
    "encode_plan",
    "graph_in_layout",
    "graph_layout",
]
__all__ += attributes.__all__
