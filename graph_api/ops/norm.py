"""Normalisations: layer norm and RMS norm, and the builder methods of these and of batch normalisation.

Source of the semantics: hipDNN's and cuDNN's front ends.
"""

# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import cast

from fusilli_ground.late_numpy import np
from graph_api.builder import GraphBuilder
from graph_api.dtypes import DataType
from graph_api.errors import GraphError
from graph_api.node import Array, Arrays, Attributes, register_op
from graph_api.ops.batchnorm import (
    PEER_PORTS,
    READ_AS_VARIANCE_EPSILON,
    BatchnormInferenceNode,
    BatchnormInferenceVarianceNode,
    BatchnormNode,
    InvVarianceReading,
    NormNode,
)
from graph_api.tensor import TensorAttr

__all__ = [
    "BatchnormInferenceNode",
    "BatchnormInferenceVarianceNode",
    "BatchnormNode",
    "InvVarianceReading",
    "LayernormAttributes",
    "LayernormNode",
    "NormBuilder",
    "NormFwdPhase",
    "RmsnormAttributes",
    "RmsnormNode",
]


class NormFwdPhase(Enum):
    """What a forward normalisation is for: TRAINING also has statistics as results."""

    INFERENCE = "INFERENCE"
    TRAINING = "TRAINING"


@dataclass(frozen=True, kw_only=True)
class RmsnormAttributes(Attributes):
    """Attributes of an RMS norm."""

    forward_phase: NormFwdPhase

    def __post_init__(self) -> None:
        if not isinstance(self.forward_phase, NormFwdPhase):
            raise GraphError(f"normalisation: forward_phase must be a NormFwdPhase, got {self.forward_phase!r}")


@dataclass(frozen=True, kw_only=True)
class LayernormAttributes(RmsnormAttributes):
    """Attributes of a layer norm.

    Attributes:
        normalized_dim_count: number of trailing dims that are normalised; None: those that scale shares with x.
    """

    normalized_dim_count: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_dim_count("layernorm", self.normalized_dim_count)


def check_dim_count(op: str, count: int | None) -> None:
    """Checks an attribute ``normalized_dim_count``."""
    if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
        raise GraphError(f"{op}: normalized_dim_count must be at least 1, got {count!r}")


class TrailingNormNode(NormNode):
    """What the normalisations over trailing dims share."""

    @property
    def normalized_dim_count(self) -> int:
        """Number of trailing dims that are normalised."""
        x, scale = self.inputs["x"].dims, self.inputs["scale"].dims
        if len(scale) < len(x):
            return len(scale)
        count = 0
        while count < len(x) - 1 and scale[-1 - count] == x[-1 - count]:
            count += 1
        return count

    @property
    def axes(self) -> tuple[int, ...]:
        """The normalised axes."""
        rank = self.inputs["x"].rank
        return tuple(range(rank - self.normalized_dim_count, rank))

    @property
    def stats_dims(self) -> tuple[int, ...]:
        """Dims of the statistics: x's, normalised ones being 1."""
        return tuple(1 if axis in self.axes else dim for axis, dim in enumerate(self.inputs["x"].dims))

    def check_affine(self, *, trailing_only: bool) -> None:
        """Checks scale and bias against x; ``trailing_only`` allows them to have the normalised dims alone."""
        x, count = self.inputs["x"].dims, self.normalized_dim_count
        if not 1 <= count <= len(x):
            raise self.fail(f"scale {self.inputs['scale'].dims} has no trailing dim in common with x {x}")
        allowed = [(1,) * (len(x) - count) + x[len(x) - count :]]
        if trailing_only:
            allowed.append(x[len(x) - count :])
        for port in ("scale", "bias"):
            tensor = self.inputs.get(port)
            if tensor is not None and tensor.dims not in allowed:
                expected = " or ".join(map(str, dict.fromkeys(allowed)))
                raise self.fail(
                    f"{port} '{tensor.name}' has dims {tensor.dims}; for {count} normalised dims of x {x} "
                    f"it must be {expected}"
                )

    def infer(self) -> None:
        x = self.inputs["x"]
        for port in self.outputs:
            self.infer_output(port, x.dims if port == "y" else self.stats_dims, x)

    def flops(self) -> int:
        return 8 * self.inputs["x"].volume


class CountedNormNode(TrailingNormNode):
    """What layer norm and its gradient share: an attribute may say how many dims are normalised."""

    @property
    def normalized_dim_count(self) -> int:
        x, scale = self.inputs["x"].dims, self.inputs["scale"].dims
        shared = len(x) if scale == x else super().normalized_dim_count
        attributes = cast("LayernormAttributes", self.attributes)
        return attributes.normalized_dim_count or shared

    def check_counted(self) -> None:
        """Checks the number of dims against x, scale and bias."""
        count, x = self.normalized_dim_count, self.inputs["x"].dims
        if count > len(x):
            raise self.fail(f"normalized_dim_count {count} is more than the dims of x {x}")
        self.check_affine(trailing_only=True)


@register_op
class LayernormNode(CountedNormNode):
    """y = (x - m) * r * scale + bias, r = 1 / sqrt(v + epsilon), m and v mean and biased variance of trailing dims.

    Shapes:  x [lead..., norm...], scale and bias [1..., norm...] or [norm...], epsilon one number
             -> y like x, mean and inv_variance (m and r) [lead..., 1...]
    Dtypes:  any; computes in the compute type, the variance in a second pass
    Layout:  any strides; outputs take the stride order of x unless they are set
    Raises:  GraphError if dims do not fit, or epsilon is negative
    Source:  hipDNN Layernorm; torch.nn.functional.layer_norm
    """

    op = "layernorm"
    attributes_type = LayernormAttributes
    attributes: LayernormAttributes
    input_ports = ("x", "scale", "bias", "epsilon")
    output_ports = ("y", "mean", "inv_variance")
    optional_outputs = ("mean", "inv_variance")

    def validate(self) -> None:
        self.validate_norm()
        self.check_counted()

    def reference(self, inputs: Arrays) -> dict[str, Array]:
        x = inputs["x"]
        mean, _, inverse = self.statistics(x, self.axes, self.number(inputs, "epsilon"))
        y = (x - mean) * inverse * inputs["scale"] + inputs["bias"]
        return {"y": y, "mean": mean, "inv_variance": inverse}

    def error(self, inputs: Arrays, errors: Arrays, outputs: Arrays) -> dict[str, Array]:
        x, scale, bias, epsilon = (self.bounded(inputs, errors, port) for port in self.input_ports)
        mean, difference, variance = self.moments(x, self.axes)
        inverse = variance.inverse_root(epsilon)
        y = difference * inverse * scale + bias
        return {"y": y.error, "mean": mean.error, "inv_variance": inverse.error}


@register_op
class RmsnormNode(TrailingNormNode):
    """y = x * r * scale (+ bias), r = 1 / sqrt(mean of x^2 + epsilon) over the trailing dims that scale and x share.

    Shapes:  x [lead..., norm...], at least dim 0 leading, scale and bias [1..., norm...] of x's rank, epsilon one
             number -> y like x, inv_rms (r) [lead..., 1...] exactly in TRAINING
    Dtypes:  any; computes in the compute type
    Layout:  any strides; outputs take the stride order of x unless they are set
    Raises:  GraphError if dims do not fit, epsilon is negative, or inv_rms and forward_phase do not agree
    Source:  hipDNN RMSNorm; torch.nn.functional.rms_norm
    """

    op = "rmsnorm"
    attributes_type = RmsnormAttributes
    attributes: RmsnormAttributes
    input_ports = ("x", "scale", "epsilon", "bias")
    optional_inputs = ("bias",)
    output_ports = ("y", "inv_rms")
    optional_outputs = ("inv_rms",)

    def validate(self) -> None:
        self.validate_norm()
        x, scale = self.inputs["x"], self.inputs["scale"]
        if scale.rank != x.rank:
            raise self.fail(f"scale {scale.dims} must have the rank of x {x.dims}; give it leading dims of 1")
        self.check_affine(trailing_only=False)
        training = self.attributes.forward_phase is NormFwdPhase.TRAINING
        if training != ("inv_rms" in self.outputs):
            phase = self.attributes.forward_phase.name
            raise self.fail(f"forward_phase {phase} {'needs' if training else 'has no'} output inv_rms")

    def reference(self, inputs: Arrays) -> dict[str, Array]:
        x = inputs["x"]
        inverse = 1.0 / np.sqrt((x * x).mean(self.axes, keepdims=True) + self.number(inputs, "epsilon"))
        y = x * inverse * inputs["scale"]
        return {"y": y + inputs["bias"] if "bias" in inputs else y, "inv_rms": inverse}

    def error(self, inputs: Arrays, errors: Arrays, outputs: Arrays) -> dict[str, Array]:
        x, scale, epsilon = (self.bounded(inputs, errors, port) for port in self.input_ports[:3])
        inverse = x.square().mean(self.axes).inverse_root(epsilon)
        y = x * inverse * scale
        if "bias" in inputs:
            y = y + self.bounded(inputs, errors, "bias")
        return {"y": y.error, "inv_rms": inverse.error}


class NormBuilder(GraphBuilder):
    """Builder methods of the normalisations."""

    def batchnorm_inference(
        self,
        x: TensorAttr,
        mean: TensorAttr,
        inv_variance: TensorAttr,
        scale: TensorAttr,
        bias: TensorAttr,
        *,
        inv_variance_reading: InvVarianceReading = InvVarianceReading.INVERSE_DEVIATION,
        y: TensorAttr | None = None,
        compute_data_type: DataType | None = None,
        name: str | None = None,
    ) -> TensorAttr:
        """Adds a batch normalisation with given statistics; see :class:`BatchnormInferenceNode`.

        Args:
            x: [N, C, spatial...].
            mean, inv_variance, scale, bias: [1, C, 1...]; inv_variance is the inverse standard deviation.
            inv_variance_reading: VARIANCE if the tensor holds variances, as one provider has it: the node added is then
                a ``batchnorm_inference_variance_ext`` with epsilon 1e-5.
            y: tensor of the graph to write to; default: a new one.

        Returns:
            y like x, virtual until ``set_output(True)``.

        Raises:
            GraphError: a reading that is none.
        """
        if not isinstance(inv_variance_reading, InvVarianceReading):
            raise GraphError(
                f"batchnorm_inference: inv_variance_reading is no InvVarianceReading: {inv_variance_reading!r}"
            )
        shared = {"x": x, "mean": mean, "scale": scale, "bias": bias}
        outputs = {} if y is None else {"y": y}
        if inv_variance_reading is InvVarianceReading.VARIANCE:
            inputs = {
                **shared,
                "variance": inv_variance,
                "epsilon": number_tensor(self, READ_AS_VARIANCE_EPSILON, "epsilon"),
            }
            node_type = BatchnormInferenceVarianceNode
        else:
            inputs, node_type = {**shared, "inv_variance": inv_variance}, BatchnormInferenceNode
        node = self.add_node(node_type, _in_order(node_type.input_ports, inputs), name=name, outputs=outputs,
                             compute_data_type=compute_data_type)  # fmt: skip
        return node.outputs["y"]

    def batchnorm_inference_variance_ext(
        self,
        x: TensorAttr,
        mean: TensorAttr,
        variance: TensorAttr,
        scale: TensorAttr,
        bias: TensorAttr,
        *,
        epsilon: TensorAttr | float,
        compute_data_type: DataType | None = None,
        name: str | None = None,
    ) -> TensorAttr:
        """Adds a batch normalisation with given variances; see :class:`BatchnormInferenceVarianceNode`.

        Args:
            x: [N, C, spatial...].
            mean, variance, scale, bias: [1, C, 1...].
            epsilon: added to the variance; a number, or a tensor of one element.

        Returns:
            y like x, virtual until ``set_output(True)``.
        """
        inputs = {"x": x, "mean": mean, "variance": variance, "scale": scale, "bias": bias}
        node = self.add_node(
            BatchnormInferenceVarianceNode, {**inputs, "epsilon": number_tensor(self, epsilon, "epsilon")}, name=name,
            compute_data_type=compute_data_type,
        )  # fmt: skip
        return node.outputs["y"]

    def batchnorm(
        self,
        x: TensorAttr,
        scale: TensorAttr,
        bias: TensorAttr,
        *,
        epsilon: TensorAttr | float,
        prev_running_mean: TensorAttr | None = None,
        prev_running_variance: TensorAttr | None = None,
        momentum: TensorAttr | float | None = None,
        peer_stats: Sequence[TensorAttr] = (),
        compute_data_type: DataType | None = None,
        name: str | None = None,
    ) -> tuple[TensorAttr, TensorAttr, TensorAttr, TensorAttr | None, TensorAttr | None]:
        """Adds a batch normalisation with the statistics of x; see :class:`BatchnormNode`.

        Args:
            x: [N, C, spatial...].
            scale, bias: [1, C, 1...].
            epsilon: added to the variance; a number, or a tensor of one element.
            prev_running_mean, prev_running_variance, momentum: all or none; momentum weighs the new statistics.
            peer_stats: statistics of other devices, which every target declines.

        Returns:
            y, mean, inv_variance, next_running_mean, next_running_variance, virtual until ``set_output(True)``; the
            last two are None without running statistics.

        Raises:
            GraphError: only a part of the running statistics is given, or there are too many peers.
        """
        if len({prev_running_mean is None, prev_running_variance is None, momentum is None}) > 1:
            raise GraphError("batchnorm: give prev_running_mean, prev_running_variance and momentum, or none of them")
        peers = checked_peers("batchnorm", peer_stats)
        inputs = {"x": x, "scale": scale, "bias": bias, "epsilon": number_tensor(self, epsilon, "epsilon")}
        wanted = ["mean", "inv_variance"]
        if momentum is not None and prev_running_mean is not None and prev_running_variance is not None:
            inputs |= {"prev_running_mean": prev_running_mean, "prev_running_variance": prev_running_variance,
                       "momentum": number_tensor(self, momentum, "momentum")}  # fmt: skip
            wanted += ["next_running_mean", "next_running_variance"]
        inputs |= peers
        node = self.add_node(
            BatchnormNode, inputs, name=name, optional_outputs=wanted, compute_data_type=compute_data_type
        )
        out = node.outputs
        return (
            out["y"],
            out["mean"],
            out["inv_variance"],
            out.get("next_running_mean"),
            out.get("next_running_variance"),
        )

    def layernorm(
        self,
        x: TensorAttr,
        scale: TensorAttr,
        bias: TensorAttr,
        *,
        epsilon: TensorAttr | float,
        forward_phase: NormFwdPhase = NormFwdPhase.INFERENCE,
        normalized_dim_count: int | None = None,
        compute_data_type: DataType | None = None,
        name: str | None = None,
    ) -> tuple[TensorAttr, TensorAttr | None, TensorAttr | None]:
        """Adds a layer norm; see :class:`LayernormNode`.

        Args:
            x: any rank.
            scale, bias: the normalised dims of x, with or without leading dims of 1.
            epsilon: added to the variance; a number, or a tensor of one element.
            forward_phase: TRAINING for statistics, INFERENCE for none.
            normalized_dim_count: number of trailing dims that are normalised; default: those that scale shares with x.

        Returns:
            y, mean, inv_variance, virtual until ``set_output(True)``; the last two are None in INFERENCE.

        Raises:
            GraphError: a bad attribute.
        """
        attributes = LayernormAttributes(forward_phase=forward_phase, normalized_dim_count=normalized_dim_count)
        wanted = ("mean", "inv_variance") if forward_phase is NormFwdPhase.TRAINING else ()
        inputs = {"x": x, "scale": scale, "bias": bias, "epsilon": number_tensor(self, epsilon, "epsilon")}
        node = self.add_node(LayernormNode, inputs, name=name, attributes=attributes, optional_outputs=wanted,
                             compute_data_type=compute_data_type)  # fmt: skip
        return node.outputs["y"], node.outputs.get("mean"), node.outputs.get("inv_variance")

    def rmsnorm(
        self,
        x: TensorAttr,
        scale: TensorAttr,
        *,
        epsilon: TensorAttr | float,
        forward_phase: NormFwdPhase = NormFwdPhase.INFERENCE,
        bias: TensorAttr | None = None,
        compute_data_type: DataType | None = None,
        name: str | None = None,
    ) -> tuple[TensorAttr, TensorAttr | None]:
        """Adds an RMS norm; see :class:`RmsnormNode`.

        Args:
            x: rank at least 2.
            scale, bias: of x's rank, 1 in the leading dims and x's dims in the normalised trailing ones.
            epsilon: added to the mean square; a number, or a tensor of one element.
            forward_phase: TRAINING for inv_rms, INFERENCE for none.

        Returns:
            y and inv_rms, virtual until ``set_output(True)``; inv_rms is None in INFERENCE.

        Raises:
            GraphError: a bad attribute.
        """
        attributes = RmsnormAttributes(forward_phase=forward_phase)
        wanted = ("inv_rms",) if forward_phase is NormFwdPhase.TRAINING else ()
        inputs = {"x": x, "scale": scale, "epsilon": number_tensor(self, epsilon, "epsilon"), "bias": bias}
        node = self.add_node(RmsnormNode, inputs, name=name, attributes=attributes, optional_outputs=wanted,
                             compute_data_type=compute_data_type)  # fmt: skip
        return node.outputs["y"], node.outputs.get("inv_rms")


def checked_peers(op: str, peer_stats: Sequence[TensorAttr]) -> dict[str, TensorAttr]:
    """Statistics of other devices by port."""
    if not isinstance(peer_stats, Sequence) or isinstance(peer_stats, str | bytes):
        raise GraphError(f"{op}: peer_stats must be a list of tensors, got {peer_stats!r:.200}")
    if len(peer_stats) > len(PEER_PORTS):
        raise GraphError(f"{op}: {len(peer_stats)} peer_stats, at most {len(PEER_PORTS)} are possible")
    return dict(zip(PEER_PORTS, peer_stats, strict=False))


def number_tensor(graph: GraphBuilder, value: TensorAttr | float, what: str) -> TensorAttr:
    """A number as a scalar of the graph; a tensor as it is."""
    if isinstance(value, TensorAttr):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        raise GraphError(f"{what} must be a number or a tensor of one element, got {value!r}")
    return graph.scalar(float(value), data_type=DataType.FLOAT)


def _in_order(ports: Sequence[str], tensors: Mapping[str, TensorAttr]) -> dict[str, TensorAttr]:
    return {port: tensors[port] for port in ports}
