"""Gradients of the normalisations: batch norm in training, layer norm, RMS norm.

Source of the semantics: hipDNN's and cuDNN's front ends, hipDNN's CPU references.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fusilli_ground.late_numpy import np
from graph_api.bounded import Bounded
from graph_api.builder import GraphBuilder
from graph_api.dtypes import DataType
from graph_api.errors import NotSupportedError
from graph_api.node import Array, Arrays, Attributes, register_op
from graph_api.ops.batchnorm import PEER_PORTS, BatchnormBase, NormNode
from graph_api.ops.norm import (
    CountedNormNode,
    TrailingNormNode,
    check_dim_count,
    checked_peers,
    number_tensor,
)
from graph_api.tensor import TensorAttr, flag

__all__ = [
    "BATCHNORM_BACKWARD_EPSILON",
    "BatchnormBackwardNode",
    "LayernormBackwardAttributes",
    "LayernormBackwardNode",
    "NormBackwardBuilder",
    "RmsnormBackwardNode",
]

BATCHNORM_BACKWARD_EPSILON = 1e-5
"""What a batchnorm_backward without saved statistics adds to the variance: hipDNN's operation has no operand for it."""

Gradients = tuple[TensorAttr, TensorAttr, TensorAttr]


@dataclass(frozen=True, kw_only=True)
class LayernormBackwardAttributes(Attributes):
    """Attributes of the gradient of a layer norm.

    Attributes:
        normalized_dim_count: number of trailing dims that are normalised; None: those that scale shares with x.
    """

    normalized_dim_count: int | None = None

    def __post_init__(self) -> None:
        check_dim_count("layernorm_backward", self.normalized_dim_count)


def _check_gradient(node: NormNode) -> None:
    """dy has the dims of x; mean and inverse deviation come together."""
    dy, x = node.inputs["dy"], node.inputs["x"]
    if dy.dims != x.dims:
        raise node.fail(f"dy '{dy.name}' has dims {dy.dims}, x '{x.name}' has {x.dims}; they must be equal")
    given = [port for port in ("mean", "inv_variance") if port in node.inputs]
    if len(given) == 1:
        raise node.fail(f"{given[0]} is given alone; give mean and inv_variance of the forward pass, or neither")


def _infer_gradients(node: NormNode, parameter_dims: Sequence[int], like: TensorAttr) -> None:
    """dx is like x; dscale and dbias have ``parameter_dims`` and the stride order of ``like``."""
    x = node.inputs["x"]
    for port in node.outputs:
        if port == "dx":
            node.infer_output(port, x.dims, x)
        else:
            node.infer_output(port, parameter_dims, like)


@register_op
class BatchnormBackwardNode(BatchnormBase):
    """With h = (x - m) * r: dbias = sum of dy, dscale = sum of dy * h, dx = scale * r * (dy - dbias/n - h * dscale/n).

    Sums are over each channel's n elements. m and r are the operands mean and inv_variance as a training forward pass
    saved them; without them mean and 1 / sqrt(v + 1e-5) of x, v its biased variance.

    Shapes:  dy, x [N, C, spatial...], the others [1, C, 1...] -> dx like x, dscale and dbias [1, C, 1...]
    Dtypes:  any; computes in the compute type
    Layout:  any strides; outputs take the stride order of x unless they are set
    Raises:  GraphError if dims do not fit, or one of mean and inv_variance is given alone
    Source:  hipDNN BatchnormBackward. The epsilon of recomputed statistics is the default of hipDNN's CPU reference and
             what AMD's provider gives MIOpen, as hipDNN's operation has none. Statistics of peers have no known
             meaning: the reference refuses them and so does every target.
    """

    op = "batchnorm_backward"
    input_ports = ("dy", "x", "scale", "mean", "inv_variance", *PEER_PORTS)
    optional_inputs = ("mean", "inv_variance", *PEER_PORTS)
    output_ports = ("dx", "dscale", "dbias")
    channel_ports = ("scale", "mean", "inv_variance")

    def validate(self) -> None:
        super().validate()
        _check_gradient(self)

    def infer(self) -> None:
        _infer_gradients(self, self.channel_dims, self.inputs["x"])

    def flops(self) -> int:
        return 10 * self.inputs["x"].volume

    def reference(self, inputs: Arrays) -> dict[str, Array]:
        if self.has_peers:
            raise NotSupportedError(self.name, "peer_stats", "statistics of peers have no defined meaning")
        dy, x = inputs["dy"], inputs["x"]
        if "mean" in inputs:
            mean, inverse = inputs["mean"], inputs["inv_variance"]
        else:
            mean, _, inverse = self.statistics(x, self.axes, BATCHNORM_BACKWARD_EPSILON)
        normal = (x - mean) * inverse
        dbias, dscale = dy.sum(self.axes, keepdims=True), (dy * normal).sum(self.axes, keepdims=True)
        count = x.size // x.shape[1]
        dx = inputs["scale"] * inverse * (dy - dbias / count - normal * dscale / count)
        return {"dx": dx, "dscale": dscale, "dbias": dbias}

    def error(self, inputs: Arrays, errors: Arrays, outputs: Arrays) -> dict[str, Array]:
        dy, x, scale = (self.bounded(inputs, errors, port) for port in ("dy", "x", "scale"))
        if "mean" in inputs:
            difference = x - self.bounded(inputs, errors, "mean")
            inverse = self.bounded(inputs, errors, "inv_variance")
        else:
            _, difference, variance = self.moments(x, self.axes)
            inverse = variance.inverse_root(self.constant(BATCHNORM_BACKWARD_EPSILON))
        normal = difference * inverse
        dbias, dscale = dy.sum(self.axes), (dy * normal).sum(self.axes)
        share = 1.0 / (x.value.size // x.value.shape[1])
        dx = (dy - dbias.scaled(share) - normal * dscale.scaled(share)) * (scale * inverse)
        return {"dx": dx.error, "dscale": dscale.error, "dbias": dbias.error}

    def constant(self, value: float) -> Bounded:
        """A number that the device rounds to the compute type."""
        return Bounded(np.full((), value), np.full((), self.accumulation_eps * value), self)


class TrailingGradientNode(TrailingNormNode):
    """What the gradients of the normalisations over trailing dims share."""

    @property
    def lead_axes(self) -> tuple[int, ...]:
        """The axes that are not normalised: scale and bias are the same along them."""
        return tuple(range(self.inputs["x"].rank - self.normalized_dim_count))

    def infer(self) -> None:
        scale = self.inputs["scale"]
        _infer_gradients(self, scale.dims, scale)

    def flops(self) -> int:
        return 12 * self.inputs["x"].volume

    def check_statistics(self, *ports: str) -> None:
        """Checks the dims of statistics of the forward pass."""
        for port in ports:
            tensor = self.inputs.get(port)
            if tensor is not None and tensor.dims != self.stats_dims:
                raise self.fail(
                    f"{port} '{tensor.name}' has dims {tensor.dims}; for {self.normalized_dim_count} normalised dims "
                    f"of x {self.inputs['x'].dims} it must be {self.stats_dims}"
                )

    def parameter_gradients(self, dy: Array, normal: Array) -> dict[str, Array]:
        """dscale and dbias."""
        dims = self.inputs["scale"].dims
        sums = {"dscale": (dy * normal).sum(self.lead_axes), "dbias": dy.sum(self.lead_axes)}
        return {port: value.reshape(dims) for port, value in sums.items()}

    def parameter_errors(self, dy: Bounded, normal: Bounded) -> dict[str, Array]:
        """Bounds of the errors of dscale and dbias."""
        dims = self.inputs["scale"].dims
        sums = {"dscale": (dy * normal).sum(self.lead_axes), "dbias": dy.sum(self.lead_axes)}
        return {port: value.error.reshape(dims) for port, value in sums.items()}

    def scale_of(self, scale: Array) -> Array:
        """scale, or its bound, with as many dims as x."""
        x = self.inputs["x"]
        return scale.reshape((1,) * (x.rank - scale.ndim) + scale.shape)


@register_op
class LayernormBackwardNode(CountedNormNode, TrailingGradientNode):
    """With h = (x - m) * r and g = dy * scale: dx = r * (g - mean of g - h * mean of g * h), means over trailing dims.

    dscale and dbias are the sums of dy * h and dy over the other dims. m and r are the operands mean and inv_variance
    as the forward pass saved them; without them mean and 1 / sqrt(v + epsilon) of x, v its biased variance. With them
    epsilon is not read.

    Shapes:  dy, x [lead..., norm...], scale [1..., norm...] or [norm...], mean and inv_variance [lead..., 1...],
             epsilon one number -> dx like x, dscale and dbias like scale
    Dtypes:  any; computes in the compute type
    Layout:  any strides; dx takes the stride order of x, dscale and dbias that of scale, unless they are set
    Raises:  GraphError if dims do not fit, one of mean and inv_variance is given alone, or neither and no epsilon
    Source:  hipDNN LayernormBackward; aten::native_layer_norm_backward
    """

    op = "layernorm_backward"
    attributes_type = LayernormBackwardAttributes
    attributes: LayernormBackwardAttributes
    input_ports = ("dy", "x", "scale", "mean", "inv_variance", "epsilon")
    optional_inputs = ("mean", "inv_variance", "epsilon")
    output_ports = ("dx", "dscale", "dbias")

    def validate(self) -> None:
        self.validate_norm()
        self.check_counted()
        _check_gradient(self)
        self.check_statistics("mean", "inv_variance")
        if "mean" not in self.inputs and "epsilon" not in self.inputs:
            raise self.fail(
                "without mean and inv_variance of the forward pass it needs an epsilon to compute them again"
            )

    def reference(self, inputs: Arrays) -> dict[str, Array]:
        dy, x = inputs["dy"], inputs["x"]
        if "mean" in inputs:
            mean, inverse = inputs["mean"], inputs["inv_variance"]
        else:
            mean, _, inverse = self.statistics(x, self.axes, self.number(inputs, "epsilon"))
        normal, scaled = (x - mean) * inverse, dy * self.scale_of(inputs["scale"])
        along, across = (value.mean(self.axes, keepdims=True) for value in (scaled, scaled * normal))
        return {"dx": inverse * (scaled - along - normal * across), **self.parameter_gradients(dy, normal)}

    def error(self, inputs: Arrays, errors: Arrays, outputs: Arrays) -> dict[str, Array]:
        dy, x, scale = (self.bounded(inputs, errors, port) for port in ("dy", "x", "scale"))
        scale = Bounded(self.scale_of(scale.value), self.scale_of(scale.error), self)
        if "mean" in inputs:
            difference = x - self.bounded(inputs, errors, "mean")
            inverse = self.bounded(inputs, errors, "inv_variance")
        else:
            _, difference, variance = self.moments(x, self.axes)
            inverse = variance.inverse_root(self.bounded(inputs, errors, "epsilon"))
        normal, scaled = difference * inverse, dy * scale
        along, across = (value.mean(self.axes) for value in (scaled, scaled * normal))
        dx = inverse * (scaled - along - normal * across)
        return {"dx": dx.error, **self.parameter_errors(dy, normal)}


@register_op
class RmsnormBackwardNode(TrailingGradientNode):
    """With h = x * r and g = dy * scale: dx = r * (g - h * mean of g * h), the mean over the trailing dims.

    These are the dims that scale and x share. dscale is the sum of dy * h over the others, dbias that of dy; r is the
    operand inv_rms as the forward pass saved it.

    Shapes:  dy, x [lead..., norm...], at least dim 0 leading, scale [1..., norm...] of x's rank,
             inv_rms [lead..., 1...] -> dx like x, dscale and, if asked for, dbias like scale
    Dtypes:  any; computes in the compute type
    Layout:  any strides; dx takes the stride order of x, dscale and dbias that of scale, unless they are set
    Raises:  GraphError if dims do not fit
    Source:  hipDNN RMSNormBackward; aten::_fused_rms_norm_backward
    """

    op = "rmsnorm_backward"
    input_ports = ("dy", "x", "scale", "inv_rms")
    output_ports = ("dx", "dscale", "dbias")
    optional_outputs = ("dbias",)

    def validate(self) -> None:
        self.validate_norm()
        x, scale = self.inputs["x"], self.inputs["scale"]
        if scale.rank != x.rank:
            raise self.fail(f"scale {scale.dims} must have the rank of x {x.dims}; give it leading dims of 1")
        self.check_affine(trailing_only=False)
        _check_gradient(self)
        self.check_statistics("inv_rms")

    def reference(self, inputs: Arrays) -> dict[str, Array]:
        dy, inverse = inputs["dy"], inputs["inv_rms"]
        normal, scaled = inputs["x"] * inverse, dy * inputs["scale"]
        dx = inverse * (scaled - normal * (scaled * normal).mean(self.axes, keepdims=True))
        return {"dx": dx, **self.parameter_gradients(dy, normal)}

    def error(self, inputs: Arrays, errors: Arrays, outputs: Arrays) -> dict[str, Array]:
        dy, x, scale, inverse = (self.bounded(inputs, errors, port) for port in self.input_ports)
        normal, scaled = x * inverse, dy * scale
        dx = inverse * (scaled - normal * (scaled * normal).mean(self.axes))
        return {"dx": dx.error, **self.parameter_errors(dy, normal)}


class NormBackwardBuilder(GraphBuilder):
    """Builder methods of the gradients of the normalisations."""

    def batchnorm_backward(
        self,
        dy: TensorAttr,
        x: TensorAttr,
        scale: TensorAttr,
        *,
        mean: TensorAttr | None = None,
        inv_variance: TensorAttr | None = None,
        peer_stats: Sequence[TensorAttr] = (),
        compute_data_type: DataType | None = None,
        name: str | None = None,
    ) -> Gradients:
        """Adds the gradients of a batch normalisation in training; see :class:`BatchnormBackwardNode`.

        Args:
            dy, x: [N, C, spatial...]; the gradient of the loss by y, and what was normalised.
            scale: [1, C, 1...].
            mean, inv_variance: [1, C, 1...], as the forward pass saved them; default: computed from x, epsilon 1e-5.
            peer_stats: statistics of other devices, which every target declines.

        Returns:
            dx, dscale, dbias, virtual until ``set_output(True)``.

        Raises:
            GraphError: there are too many peers.
        """
        inputs = {"dy": dy, "x": x, "scale": scale, "mean": mean, "inv_variance": inv_variance}
        inputs |= checked_peers("batchnorm_backward", peer_stats)
        node = self.add_node(BatchnormBackwardNode, inputs, name=name, compute_data_type=compute_data_type)
        return node.outputs["dx"], node.outputs["dscale"], node.outputs["dbias"]

    def layernorm_backward(
        self,
        dy: TensorAttr,
        x: TensorAttr,
        scale: TensorAttr,
        *,
        mean: TensorAttr | None = None,
        inv_variance: TensorAttr | None = None,
        epsilon: TensorAttr | float | None = None,
        normalized_dim_count: int | None = None,
        compute_data_type: DataType | None = None,
        name: str | None = None,
    ) -> Gradients:
        """Adds the gradients of a layer norm; see :class:`LayernormBackwardNode`.

        Args:
            dy, x: any rank; the gradient of the loss by y, and what was normalised.
            scale: the normalised dims of x, with or without leading dims of 1.
            mean, inv_variance: x's leading dims, 1 in the normalised ones, as the forward pass saved them.
            epsilon: without these, added to the variance of x; a number, or a tensor of one element.
            normalized_dim_count: number of trailing dims that are normalised; default: those that scale shares with x.

        Returns:
            dx, dscale, dbias, virtual until ``set_output(True)``.

        Raises:
            GraphError: a bad attribute.
        """
        attributes = LayernormBackwardAttributes(normalized_dim_count=normalized_dim_count)
        number = None if epsilon is None else number_tensor(self, epsilon, "epsilon")
        inputs = {"dy": dy, "x": x, "scale": scale, "mean": mean, "inv_variance": inv_variance, "epsilon": number}
        node = self.add_node(LayernormBackwardNode, inputs, name=name, attributes=attributes,
                             compute_data_type=compute_data_type)  # fmt: skip
        return node.outputs["dx"], node.outputs["dscale"], node.outputs["dbias"]

    def rmsnorm_backward(
        self,
        dy: TensorAttr,
        x: TensorAttr,
        scale: TensorAttr,
        inv_rms: TensorAttr,
        *,
        compute_dbias: bool = False,
        compute_data_type: DataType | None = None,
        name: str | None = None,
    ) -> tuple[TensorAttr, TensorAttr, TensorAttr | None]:
        """Adds the gradients of an RMS norm; see :class:`RmsnormBackwardNode`.

        Args:
            dy, x: rank at least 2; the gradient of the loss by y, and what was normalised.
            scale: of x's rank, 1 in the leading dims and x's dims in the normalised trailing ones.
            inv_rms: x's leading dims, 1 in the normalised ones, as the forward pass saved it.
            compute_dbias: whether the forward pass had a bias.

        Returns:
            dx, dscale and dbias, virtual until ``set_output(True)``; dbias is None unless asked for.

        Raises:
            GraphError: compute_dbias is no bool.
        """
        wanted = ("dbias",) if flag(compute_dbias, "rmsnorm_backward: compute_dbias") else ()
        inputs = {"dy": dy, "x": x, "scale": scale, "inv_rms": inv_rms}
        node = self.add_node(RmsnormBackwardNode, inputs, name=name, optional_outputs=wanted,
                             compute_data_type=compute_data_type)  # fmt: skip
        return node.outputs["dx"], node.outputs["dscale"], node.outputs.get("dbias")
