"""The members of the schema's NodeAttributes union: one record per operation table, fields in slot order.

Every ``*_tensor_uid`` is the uid of a tensor of the same graph (``axis_tensor_uid`` alone is a plain axis number);
``None`` means that the operand is not there. Padding, stride, dilation and window are in elements, one per spatial
dimension. Source: section 5 of the wire schema; `hipdnn_backend/wire/schema` states the same for ``flatc``.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final, NamedTuple, cast

from hipdnn_backend.wire.enums import (
    AttentionImplementation,
    ConvMode,
    DataType,
    DiagonalAlignment,
    MoeGroupedMatmulMode,
    NormFwdPhase,
    PaddingMode,
    PointwiseMode,
    ReductionMode,
    ResampleMode,
)
from hipdnn_backend.wire.record import F32, I32, I64, Record

__all__ = [
    "ATTRIBUTES",
    "Attributes",
    "BatchnormAttributes",
    "BatchnormBackwardAttributes",
    "BatchnormInferenceAttributes",
    "BatchnormInferenceAttributesVarianceExt",
    "BlockScaleDequantizeAttributes",
    "BlockScaleQuantizeAttributes",
    "ConvolutionBwdAttributes",
    "ConvolutionFwdAttributes",
    "ConvolutionWrwAttributes",
    "CustomOpAttributes",
    "LayernormAttributes",
    "LayernormBackwardAttributes",
    "MatmulAttributes",
    "MoeGroupedMatmulAttributes",
    "MoeGroupedMatmulBwdAttributes",
    "PointwiseAttributes",
    "RMSNormAttributes",
    "RMSNormBackwardAttributes",
    "ReductionAttributes",
    "ResampleBwdAttributes",
    "ResampleFwdAttributes",
    "RuleKey",
    "SdpaAttributes",
    "SdpaBackwardAttributes",
    "UnknownAttributes",
]


class RuleKey(NamedTuple):
    """How the rules of ``HIPDNN_HEUR_CONFIG_PATH`` speak of an operation.

    Attributes:
        op: its name there.
        priority: of a graph's nodes those of the highest priority are looked up.
        tensors: fields with uids, without ``_tensor_uid``, in the order in which rules list them.
        criteria: what else a rule has to state, and in which field it is.
    """

    op: str
    priority: int
    tensors: tuple[str, ...]
    criteria: tuple[tuple[str, str], ...] = ()


_MASK: Final = (
    "scale", "attn_mask", "seq_len_q", "seq_len_kv", "seed", "offset", "dropout_mask", "dropout_scale",
)  # fmt: skip
_PAGED: Final = (
    "page_table_k", "page_table_v", "block_mask", "sink_token", "descale_q", "descale_k", "descale_v", "descale_s",
    "scale_s", "scale_o",
)  # fmt: skip


class Attributes(Record):
    """Base of the operation tables.

    Attributes:
        TAG: number of the table in the NodeAttributes union.
        OUTPUTS: fields with the uids of the tensors that the node writes; its other uids are those it reads.
        JSON_SECTION: where hipDNN's JSON keeps what is no uid; "" is the node itself.
        JSON_FLAT: True if hipDNN's JSON has the uids on the node itself instead of under "inputs" and "outputs".
        JSON_LEFT_OUT: fields that hipDNN's JSON leaves out when they say nothing: it stumbles over a null.
        JSON_NUMBERS: fields of an enum that hipDNN's JSON has as a number.
        RULE_KEY: how rules speak of the operation; None: they cannot.
    """

    TAG: ClassVar[int] = 0
    OUTPUTS: ClassVar[tuple[str, ...]] = ()
    JSON_SECTION: ClassVar[str] = ""
    JSON_FLAT: ClassVar[bool] = False
    JSON_LEFT_OUT: ClassVar[frozenset[str]] = frozenset()
    JSON_NUMBERS: ClassVar[frozenset[str]] = frozenset()
    RULE_KEY: ClassVar[RuleKey | None] = None

    _reads: ClassVar[tuple[str, ...]] = ()
    _writes: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        uids = [name for name in cls.FIELDS if is_uid_field(name)]
        cls._reads = tuple(name for name in uids if name not in cls.OUTPUTS)
        cls._writes = tuple(name for name in uids if name in cls.OUTPUTS)

    def input_uids(self) -> list[tuple[str, int]]:
        """Field and uid of every tensor that the node reads, absent ones left out."""
        return self._uids(self._reads)

    def output_uids(self) -> list[tuple[str, int]]:
        """Field and uid of every tensor that the node writes, absent ones left out."""
        return self._uids(self._writes)

    def _uids(self, fields: tuple[str, ...]) -> list[tuple[str, int]]:
        found: list[tuple[str, int]] = []
        for name in fields:
            value: Any = self.__dict__[name]
            if isinstance(value, tuple):
                found += [(f"{name}[{position}]", uid) for position, uid in enumerate(cast("tuple[int, ...]", value))]
            elif value is not None:
                found.append((name, value))
        return found


def is_uid_field(name: str) -> bool:
    """Whether a field of an operation table refers to tensors."""
    return name.endswith(("_tensor_uid", "_tensor_uids")) and name != "axis_tensor_uid"


class UnknownAttributes(Record):
    """An operation that this version of the schema does not list: its number is all that can be read.

    Attributes:
        tag: number in the NodeAttributes union.
    """

    tag: I64


class BatchnormInferenceAttributes(Attributes):
    """``y = (x - mean) * inv_variance * scale + bias``, statistics given."""

    TAG: ClassVar[int] = 1
    OUTPUTS: ClassVar[tuple[str, ...]] = ("y_tensor_uid",)
    RULE_KEY: ClassVar[RuleKey | None] = RuleKey(
        "batchnorm_inference", 40, ("x", "mean", "inv_variance", "scale", "bias")
    )

    x_tensor_uid: I64
    mean_tensor_uid: I64
    inv_variance_tensor_uid: I64
    scale_tensor_uid: I64
    bias_tensor_uid: I64
    y_tensor_uid: I64


class PointwiseAttributes(Attributes):
    """An elementwise operation on one to three operands; absent options take the operation's default."""

    TAG: ClassVar[int] = 2
    OUTPUTS: ClassVar[tuple[str, ...]] = ("out_0_tensor_uid",)
    JSON_SECTION: ClassVar[str] = "inputs"
    RULE_KEY: ClassVar[RuleKey | None] = RuleKey(
        "pointwise", 10, ("in_0", "in_1", "in_2"), (("pointwise_mode", "operation"),)
    )

    operation: PointwiseMode
    relu_lower_clip: F32 | None = None
    relu_upper_clip: F32 | None = None
    relu_lower_clip_slope: F32 | None = None
    axis_tensor_uid: I64 | None = None
    in_0_tensor_uid: I64
    in_1_tensor_uid: I64 | None = None
    in_2_tensor_uid: I64 | None = None
    out_0_tensor_uid: I64
    swish_beta: F32 | None = None
    elu_alpha: F32 | None = None
    softplus_beta: F32 | None = None


class BatchnormBackwardAttributes(Attributes):
    """Gradients of batch normalisation; without mean and inv_variance they are computed from x again."""

    TAG: ClassVar[int] = 3
    OUTPUTS: ClassVar[tuple[str, ...]] = ("dx_tensor_uid", "dscale_tensor_uid", "dbias_tensor_uid")
    RULE_KEY: ClassVar[RuleKey | None] = RuleKey("batchnorm_backward", 40, ("dy", "x", "scale", "mean", "inv_variance"))

    dy_tensor_uid: I64
    x_tensor_uid: I64
    mean_tensor_uid: I64 | None = None
    inv_variance_tensor_uid: I64 | None = None
    scale_tensor_uid: I64
    peer_stats_tensor_uid: tuple[I64, ...] = ()
    dx_tensor_uid: I64
    dscale_tensor_uid: I64
    dbias_tensor_uid: I64


class BatchnormAttributes(Attributes):
    """Batch normalisation in training: statistics of the batch, optionally the running ones too."""

    TAG: ClassVar[int] = 4
    OUTPUTS: ClassVar[tuple[str, ...]] = (
        "y_tensor_uid",
        "mean_tensor_uid",
        "inv_variance_tensor_uid",
        "next_running_mean_tensor_uid",
        "next_running_variance_tensor_uid",
    )
    RULE_KEY: ClassVar[RuleKey | None] = RuleKey(
        "batchnorm_training",
        40,
        ("x", "scale", "bias", "epsilon", "prev_running_mean", "prev_running_variance", "momentum"),
    )

    x_tensor_uid: I64
    scale_tensor_uid: I64
    bias_tensor_uid: I64
    epsilon_tensor_uid: I64
    peer_stats_tensor_uid: tuple[I64, ...] = ()
    prev_running_mean_tensor_uid: I64 | None = None
    prev_running_variance_tensor_uid: I64 | None = None
    momentum_tensor_uid: I64 | None = None
    y_tensor_uid: I64
    mean_tensor_uid: I64 | None = None
    inv_variance_tensor_uid: I64 | None = None
    next_running_mean_tensor_uid: I64 | None = None
    next_running_variance_tensor_uid: I64 | None = None


class ConvolutionFwdAttributes(Attributes):
    """Convolution forward (fprop)."""

    TAG: ClassVar[int] = 5
    OUTPUTS: ClassVar[tuple[str, ...]] = ("y_tensor_uid",)
    JSON_SECTION: ClassVar[str] = "parameters"
    RULE_KEY: ClassVar[RuleKey | None] = RuleKey("conv_fprop", 70, ("x", "w"))

    x_tensor_uid: I64
    w_tensor_uid: I64
    y_tensor_uid: I64
    pre_padding: tuple[I64, ...]
    post_padding: tuple[I64, ...]
    stride: tuple[I64, ...]
    dilation: tuple[I64, ...]
    conv_mode: ConvMode


class ConvolutionBwdAttributes(Attributes):
    """Gradient of a convolution's input (dgrad)."""

    TAG: ClassVar[int] = 6
    OUTPUTS: ClassVar[tuple[str, ...]] = ("dx_tensor_uid",)
    JSON_SECTION: ClassVar[str] = "parameters"
    RULE_KEY: ClassVar[RuleKey | None] = RuleKey("conv_dgrad", 70, ("dy", "w"))

    dy_tensor_uid: I64
    w_tensor_uid: I64
    dx_tensor_uid: I64
    pre_padding: tuple[I64, ...]
    post_padding: tuple[I64, ...]
    stride: tuple[I64, ...]
    dilation: tuple[I64, ...]
    conv_mode: ConvMode


class ConvolutionWrwAttributes(Attributes):
    """Gradient of a convolution's filter (wgrad)."""

    TAG: ClassVar[int] = 7
    OUTPUTS: ClassVar[tuple[str, ...]] = ("dw_tensor_uid",)
    JSON_SECTION: ClassVar[str] = "parameters"
    RULE_KEY: ClassVar[RuleKey | None] = RuleKey("conv_wgrad", 70, ("x", "dy"))

    x_tensor_uid: I64
    dy_tensor_uid: I64
    dw_tensor_uid: I64
    pre_padding: tuple[I64, ...]
    post_padding: tuple[I64, ...]
    stride: tuple[I64, ...]
    dilation: tuple[I64, ...]
    conv_mode: ConvMode


class BatchnormInferenceAttributesVarianceExt(Attributes):
    """Batch normalisation with the variance and an epsilon instead of the inverse deviation."""

    TAG: ClassVar[int] = 8
    OUTPUTS: ClassVar[tuple[str, ...]] = ("y_tensor_uid",)
    RULE_KEY: ClassVar[RuleKey | None] = RuleKey(
        "batchnorm_inference_variance_ext", 40, ("x", "mean", "variance", "scale", "bias", "epsilon")
    )

    x_tensor_uid: I64
    mean_tensor_uid: I64
    variance_tensor_uid: I64
    scale_tensor_uid: I64
    bias_tensor_uid: I64
    y_tensor_uid: I64
    epsilon_tensor_uid: I64


class MatmulAttributes(Attributes):
    """``c = a @ b`` over the last two dimensions."""

    TAG: ClassVar[int] = 9
    OUTPUTS: ClassVar[tuple[str, ...]] = ("c_tensor_uid",)
    RULE_KEY: ClassVar[RuleKey | None] = RuleKey("matmul", 50, ("a", "b"))

    a_tensor_uid: I64
    b_tensor_uid: I64
    c_tensor_uid: I64


class RMSNormAttributes(Attributes):
    """Normalisation by the root mean square."""

    TAG: ClassVar[int] = 10
    OUTPUTS: ClassVar[tuple[str, ...]] = ("y_tensor_uid", "inv_rms_tensor_uid")
    JSON_LEFT_OUT: ClassVar[frozenset[str]] = frozenset({"bias_tensor_uid", "inv_rms_tensor_uid", "forward_phase"})
    RULE_KEY: ClassVar[RuleKey | None] = RuleKey(
        "rmsnorm", 30, ("x", "scale", "epsilon", "bias"), (("norm_fwd_phase", "forward_phase"),)
    )

    x_tensor_uid: I64
    scale_tensor_uid: I64
    epsilon_tensor_uid: I64
    y_tensor_uid: I64
    bias_tensor_uid: I64 | None = None
    inv_rms_tensor_uid: I64 | None = None
    forward_phase: NormFwdPhase


class LayernormAttributes(Attributes):
    """Layer normalisation over the last ``normalized_dim_count`` dimensions."""

    TAG: ClassVar[int] = 11
    OUTPUTS: ClassVar[tuple[str, ...]] = ("y_tensor_uid", "mean_tensor_uid", "inv_variance_tensor_uid")
    JSON_NUMBERS: ClassVar[frozenset[str]] = frozenset({"forward_phase"})
    RULE_KEY: ClassVar[RuleKey | None] = RuleKey(
        "layernorm", 30, ("x", "scale", "bias", "epsilon"), (("norm_fwd_phase", "forward_phase"),)
    )

    x_tensor_uid: I64
    scale_tensor_uid: I64
    bias_tensor_uid: I64
    epsilon_tensor_uid: I64
    y_tensor_uid: I64
    normalized_dim_count: I64
    mean_tensor_uid: I64 | None = None
    inv_variance_tensor_uid: I64 | None = None
    forward_phase: NormFwdPhase


class SdpaAttributes(Attributes):
    """Scaled dot product attention, forward. The two causal flags are deprecated by bounds and alignment."""

    TAG: ClassVar[int] = 12
    OUTPUTS: ClassVar[tuple[str, ...]] = (
        "o_tensor_uid",
        "stats_tensor_uid",
        "max_tensor_uid",
        "sum_exp_tensor_uid",
        "rng_dump_tensor_uid",
        "amax_s_tensor_uid",
        "amax_o_tensor_uid",
    )
    JSON_SECTION: ClassVar[str] = "attributes"
    RULE_KEY: ClassVar[RuleKey | None] = RuleKey("sdpa_fwd", 60, ("q", "k", "v", *_MASK, *_PAGED))

    q_tensor_uid: I64
    k_tensor_uid: I64
    v_tensor_uid: I64
    o_tensor_uid: I64
    attn_mask_tensor_uid: I64 | None = None
    scale_tensor_uid: I64 | None = None
    seq_len_q_tensor_uid: I64 | None = None
    seq_len_kv_tensor_uid: I64 | None = None
    seed_tensor_uid: I64 | None = None
    offset_tensor_uid: I64 | None = None
    dropout_mask_tensor_uid: I64 | None = None
    dropout_scale_tensor_uid: I64 | None = None
    page_table_k_tensor_uid: I64 | None = None
    page_table_v_tensor_uid: I64 | None = None
    block_mask_tensor_uid: I64 | None = None
    sink_token_tensor_uid: I64 | None = None
    descale_q_tensor_uid: I64 | None = None
    descale_k_tensor_uid: I64 | None = None
    descale_v_tensor_uid: I64 | None = None
    descale_s_tensor_uid: I64 | None = None
    scale_s_tensor_uid: I64 | None = None
    scale_o_tensor_uid: I64 | None = None
    stats_tensor_uid: I64 | None = None
    max_tensor_uid: I64 | None = None
    sum_exp_tensor_uid: I64 | None = None
    rng_dump_tensor_uid: I64 | None = None
    amax_s_tensor_uid: I64 | None = None
    amax_o_tensor_uid: I64 | None = None
    generate_stats: bool | None = None
    alibi_mask: bool = False
    padding_mask: bool = False
    causal_mask: bool = False
    causal_mask_bottom_right: bool = False
    dropout_probability: F32 | None = None
    attn_scale_value: F32 | None = None
    left_bound: I64 | None = None
    right_bound: I64 | None = None
    max_seq_len_kv: I32 | None = None
    diagonal_alignment: DiagonalAlignment = DiagonalAlignment.TOP_LEFT
    mma_core_mode: DataType = DataType.UNSET
    implementation: AttentionImplementation = AttentionImplementation.AUTO


class BlockScaleDequantizeAttributes(Attributes):
    """Blocks of x times their scale; ``block_size`` has one entry per trailing dimension."""

    TAG: ClassVar[int] = 13
    OUTPUTS: ClassVar[tuple[str, ...]] = ("y_tensor_uid",)

    x_tensor_uid: I64
    scale_tensor_uid: I64
    y_tensor_uid: I64
    block_size: tuple[I32, ...]
    is_negative_scale: bool = False


class BlockScaleQuantizeAttributes(Attributes):
    """x as blocks with a scale each; the axis is the last one unless it is given."""

    TAG: ClassVar[int] = 14
    OUTPUTS: ClassVar[tuple[str, ...]] = ("y_tensor_uid", "scale_tensor_uid")
    JSON_LEFT_OUT: ClassVar[frozenset[str]] = frozenset({"axis"})

    x_tensor_uid: I64
    y_tensor_uid: I64
    scale_tensor_uid: I64
    block_size: I32
    axis: I64 | None = None
    transpose: bool = False


class SdpaBackwardAttributes(Attributes):
    """Scaled dot product attention, backward."""

    TAG: ClassVar[int] = 15
    OUTPUTS: ClassVar[tuple[str, ...]] = ("dq_tensor_uid", "dk_tensor_uid", "dv_tensor_uid", "dbias_tensor_uid")
    JSON_SECTION: ClassVar[str] = "parameters"
    RULE_KEY: ClassVar[RuleKey | None] = RuleKey(
        "sdpa_bwd", 60, ("q", "k", "v", "o", "do", "stats", *_MASK, "dropout_scale_inv")
    )

    q_tensor_uid: I64
    k_tensor_uid: I64
    v_tensor_uid: I64
    o_tensor_uid: I64
    do_tensor_uid: I64
    stats_tensor_uid: I64
    dq_tensor_uid: I64
    dk_tensor_uid: I64
    dv_tensor_uid: I64
    scale_tensor_uid: I64 | None = None
    attn_mask_tensor_uid: I64 | None = None
    seq_len_q_tensor_uid: I64 | None = None
    seq_len_kv_tensor_uid: I64 | None = None
    seed_tensor_uid: I64 | None = None
    offset_tensor_uid: I64 | None = None
    dropout_mask_tensor_uid: I64 | None = None
    dropout_scale_tensor_uid: I64 | None = None
    dropout_scale_inv_tensor_uid: I64 | None = None
    dbias_tensor_uid: I64 | None = None
    alibi_mask: bool = False
    padding_mask: bool = False
    causal_mask: bool = False
    causal_mask_bottom_right: bool = False
    dropout_probability: F32 | None = None
    attn_scale_value: F32 | None = None
    left_bound: I64 | None = None
    right_bound: I64 | None = None
    diagonal_alignment: DiagonalAlignment = DiagonalAlignment.TOP_LEFT


class CustomOpAttributes(Attributes):
    """An operation of a third party; ``data`` means something to its owner only."""

    TAG: ClassVar[int] = 16
    OUTPUTS: ClassVar[tuple[str, ...]] = ("output_tensor_uids",)
    JSON_FLAT: ClassVar[bool] = True

    custom_op_id: str
    input_tensor_uids: tuple[I64, ...]
    output_tensor_uids: tuple[I64, ...]
    data: bytes = b""


class RMSNormBackwardAttributes(Attributes):
    """Gradients of the normalisation by the root mean square."""

    TAG: ClassVar[int] = 17
    OUTPUTS: ClassVar[tuple[str, ...]] = ("dx_tensor_uid", "dscale_tensor_uid", "dbias_tensor_uid")
    JSON_LEFT_OUT: ClassVar[frozenset[str]] = frozenset({"dbias_tensor_uid"})
    RULE_KEY: ClassVar[RuleKey | None] = RuleKey("rmsnorm_backward", 30, ("dy", "x", "scale", "inv_rms"))

    dy_tensor_uid: I64
    x_tensor_uid: I64
    scale_tensor_uid: I64
    inv_rms_tensor_uid: I64
    dx_tensor_uid: I64
    dscale_tensor_uid: I64
    dbias_tensor_uid: I64 | None = None


class ReductionAttributes(Attributes):
    """A reduction over the dimensions that are 1 in the output."""

    TAG: ClassVar[int] = 18
    OUTPUTS: ClassVar[tuple[str, ...]] = ("out_tensor_uid",)
    JSON_FLAT: ClassVar[bool] = True
    RULE_KEY: ClassVar[RuleKey | None] = RuleKey("reduction", 20, ("in",), (("reduction_mode", "mode"),))

    mode: ReductionMode
    in_tensor_uid: I64
    out_tensor_uid: I64
    is_deterministic: bool = False


class ResampleFwdAttributes(Attributes):
    """Pooling, forward; the index tensor records where a maximum came from."""

    TAG: ClassVar[int] = 19
    OUTPUTS: ClassVar[tuple[str, ...]] = ("y_tensor_uid", "index_tensor_uid")
    JSON_FLAT: ClassVar[bool] = True
    JSON_LEFT_OUT: ClassVar[frozenset[str]] = frozenset({"index_tensor_uid", "generate_index"})
    RULE_KEY: ClassVar[RuleKey | None] = RuleKey(
        "resample_fwd", 20, ("x",), (("padding_mode", "padding_mode"), ("resample_mode", "resample_mode"))
    )

    x_tensor_uid: I64
    y_tensor_uid: I64
    index_tensor_uid: I64 | None = None
    pre_padding: tuple[I64, ...]
    post_padding: tuple[I64, ...]
    stride: tuple[I64, ...]
    window: tuple[I64, ...]
    resample_mode: ResampleMode
    padding_mode: PaddingMode
    generate_index: bool | None = None


class LayernormBackwardAttributes(Attributes):
    """Gradients of layer normalisation."""

    TAG: ClassVar[int] = 20
    OUTPUTS: ClassVar[tuple[str, ...]] = ("dx_tensor_uid", "dscale_tensor_uid", "dbias_tensor_uid")

    dy_tensor_uid: I64
    x_tensor_uid: I64
    scale_tensor_uid: I64
    mean_tensor_uid: I64 | None = None
    inv_variance_tensor_uid: I64 | None = None
    epsilon_tensor_uid: I64 | None = None
    dx_tensor_uid: I64
    dscale_tensor_uid: I64
    dbias_tensor_uid: I64
    normalized_dim_count: I64


class ResampleBwdAttributes(Attributes):
    """Pooling, backward."""

    TAG: ClassVar[int] = 21
    OUTPUTS: ClassVar[tuple[str, ...]] = ("dx_tensor_uid",)
    JSON_FLAT: ClassVar[bool] = True
    JSON_LEFT_OUT: ClassVar[frozenset[str]] = frozenset({"index_tensor_uid"})

    dy_tensor_uid: I64
    dx_tensor_uid: I64
    index_tensor_uid: I64 | None = None
    pre_padding: tuple[I64, ...]
    post_padding: tuple[I64, ...]
    stride: tuple[I64, ...]
    window: tuple[I64, ...]
    resample_mode: ResampleMode
    padding_mode: PaddingMode


class MoeGroupedMatmulAttributes(Attributes):
    """One matmul per group of tokens; the groups' bounds are data."""

    TAG: ClassVar[int] = 22
    OUTPUTS: ClassVar[tuple[str, ...]] = ("output_tensor_uid",)

    token_tensor_uid: I64
    weight_tensor_uid: I64
    first_token_offset_tensor_uid: I64
    token_index_tensor_uid: I64 | None = None
    token_ks_tensor_uid: I64 | None = None
    output_tensor_uid: I64
    mode: MoeGroupedMatmulMode = MoeGroupedMatmulMode.NONE
    top_k: I32 = 0


class MoeGroupedMatmulBwdAttributes(Attributes):
    """Gradient of the weights of a grouped matmul."""

    TAG: ClassVar[int] = 23
    OUTPUTS: ClassVar[tuple[str, ...]] = ("dweight_tensor_uid",)

    doutput_tensor_uid: I64
    token_tensor_uid: I64
    first_token_offset_tensor_uid: I64
    dweight_tensor_uid: I64


ATTRIBUTES: dict[int, type[Attributes]] = {cls.TAG: cls for cls in Attributes.__subclasses__()}
"""The NodeAttributes union: number → record class."""
