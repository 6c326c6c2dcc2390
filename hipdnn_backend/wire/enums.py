"""The enums of the hipDNN schema with their wire numbers, which differ here and there from the front end's.

A number that is not listed is kept as a member named ``UNKNOWN_<number>``: newer hosts send newer numbers, and a graph
with one of them is to be declined, not refused as damaged.
"""

from __future__ import annotations

from enum import Enum, IntEnum

__all__ = [
    "AttentionImplementation",
    "BehaviorNote",
    "ConvMode",
    "DataType",
    "DiagonalAlignment",
    "Layout",
    "MoeGroupedMatmulMode",
    "NormFwdPhase",
    "PaddingMode",
    "PointwiseMode",
    "ReductionMode",
    "ResampleMode",
    "TensorValueType",
    "WireEnum",
]


class Layout(Enum):
    """The two wire layouts. They differ in the Node table; everything else only grew at its end."""

    NOVEMBER_2025 = "November 2025"
    NEWEST = "newest"


class WireEnum(IntEnum):
    """Base of the enums: one byte on the wire, any byte is a member."""

    @property
    def known(self) -> bool:
        """False for a number that this version of the schema does not list."""
        return self._name_ in type(self).__members__

    @classmethod
    def _missing_(cls, value: object) -> WireEnum | None:
        if type(value) is not int or not -128 <= value <= 255:
            return None
        member = int.__new__(cls, value)
        member._name_ = f"UNKNOWN_{value}"
        member._value_ = value
        return member


class DataType(WireEnum):
    """Element type of a tensor. Numbers from 16 on are not settled between published versions of hipDNN."""

    UNSET = 0
    FLOAT = 1
    HALF = 2
    BFLOAT16 = 3
    DOUBLE = 4
    UINT8 = 5
    INT32 = 6
    INT8 = 7
    FP8_E4M3 = 8
    FP8_E5M2 = 9
    FP8_E8M0 = 10
    FP4_E2M1 = 11
    FP6_E2M3 = 12
    FP6_E3M2 = 13
    INT4 = 14
    INT64 = 15
    BOOLEAN = 16
    FP8_E4M3_FNUZ = 17
    FP8_E5M2_FNUZ = 18


class TensorValueType(WireEnum):
    """Which struct of the TensorValue union holds a scalar. The 16-bit floats travel as 32-bit floats."""

    NONE = 0
    Float32Value = 1
    Float16Value = 2
    BFloat16Value = 3
    Float8Value = 4
    Int32Value = 5
    Float64Value = 6
    Int64Value = 7
    BoolValue = 8


class ConvMode(WireEnum):
    """Whether the filter is flipped. The front end numbers these two the other way round."""

    UNSET = 0
    CONVOLUTION = 1
    CROSS_CORRELATION = 2


class PointwiseMode(WireEnum):
    """Operation of a pointwise node."""

    UNSET = 0
    ABS = 1
    ADD = 2
    ADD_SQUARE = 3
    BINARY_SELECT = 4
    CEIL = 5
    CMP_EQ = 6
    CMP_GE = 7
    CMP_GT = 8
    CMP_LE = 9
    CMP_LT = 10
    CMP_NEQ = 11
    DIV = 12
    ELU_BWD = 13
    ELU_FWD = 14
    ERF = 15
    EXP = 16
    FLOOR = 17
    GELU_APPROX_TANH_BWD = 18
    GELU_APPROX_TANH_FWD = 19
    GELU_BWD = 20
    GELU_FWD = 21
    GEN_INDEX = 22
    IDENTITY = 23
    LOG = 24
    LOGICAL_AND = 25
    LOGICAL_NOT = 26
    LOGICAL_OR = 27
    MAX_OP = 28
    MIN_OP = 29
    MUL = 30
    NEG = 31
    RECIPROCAL = 32
    RELU_BWD = 33
    RELU_FWD = 34
    RSQRT = 35
    SIGMOID_BWD = 36
    SIGMOID_FWD = 37
    SIN = 38
    SOFTPLUS_BWD = 39
    SOFTPLUS_FWD = 40
    SQRT = 41
    SUB = 42
    SWISH_BWD = 43
    SWISH_FWD = 44
    TAN = 45
    TANH_BWD = 46
    TANH_FWD = 47


class NormFwdPhase(WireEnum):
    """Whether a normalisation also has to produce its statistics."""

    NOT_SET = 0
    INFERENCE = 1
    TRAINING = 2


class ReductionMode(WireEnum):
    """Operation of a reduction node."""

    NOT_SET = 0
    ADD = 1
    MUL = 2
    MIN_OP = 3
    MAX_OP = 4
    AMAX = 5
    AVG = 6
    NORM1 = 7
    NORM2 = 8
    MUL_NO_ZEROS = 9


class ResampleMode(WireEnum):
    """Kind of pooling."""

    NOT_SET = 0
    MAXPOOL = 1
    AVGPOOL_EXCLUDE_PADDING = 2
    AVGPOOL_INCLUDE_PADDING = 3


class PaddingMode(WireEnum):
    """What pooling sees outside the image."""

    PADDING_NOT_SET = 0
    NEG_INF_PAD = 1
    ZERO_PAD = 2


class DiagonalAlignment(WireEnum):
    """Corner at which the diagonal of an attention mask starts."""

    TOP_LEFT = 0
    BOTTOM_RIGHT = 1


class AttentionImplementation(WireEnum):
    """Which implementation of attention the host asks for."""

    AUTO = 0
    COMPOSITE = 1
    UNIFIED = 2


class MoeGroupedMatmulMode(WireEnum):
    """How rows are routed to the experts of a grouped matmul."""

    NONE = 0
    GATHER = 1
    SCATTER = 2


class BehaviorNote(IntEnum):
    """Entries of ``EngineDetails.behavior_notes`` (plain int32 on the wire, so newer ones may come)."""

    RUNTIME_COMPILATION = 0
    REQUIRES_LAYOUT_TRANSFORM = 1
    SUPPORTS_GRAPH_CAPTURE = 2
    EXTERNAL_LIBRARY_DEPENDENCY = 3
    SUPPORTS_EXECUTION_PLAN_SERIALIZATION = 4
