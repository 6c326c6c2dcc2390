"""Batch normalisation: inference from the inverse deviation or from the variance, and training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import Enum

from fusilli_ground.late_numpy import np
from graph_api.bounded import Bounded, bounded_input
from graph_api.dtypes import DataType
from graph_api.errors import NotSupportedError
from graph_api.node import Array, Arrays, Attributes, Node, register_op
from graph_api.ops.spatial import LAYOUT_TIP

__all__ = [
    "PEER_PORTS",
    "READ_AS_VARIANCE_EPSILON",
    "BatchnormBase",
    "BatchnormInferenceNode",
    "BatchnormInferenceVarianceNode",
    "BatchnormNode",
    "InvVarianceReading",
    "NormNode",
]

PEER_PORTS = tuple(f"peer_stats_{index}" for index in range(64))
"""Ports of the statistics of other devices."""

READ_AS_VARIANCE_EPSILON = 1e-5
"""What is added to the ``inv_variance`` of a batchnorm_inference that is read as a variance."""


class InvVarianceReading(Enum):
    """What the ``inv_variance`` operand of ``batchnorm_inference`` holds: providers of hipDNN disagree.

    A graph knows one meaning per operation; this is a choice of whoever builds or imports it, and made in one place:
    :meth:`Graph.batchnorm_inference`, which adds another operation for the second reading.
    """

    INVERSE_DEVIATION = "INVERSE_DEVIATION"
    """1 / sqrt(variance + epsilon), as the name and cuDNN say."""

    VARIANCE = "VARIANCE"
    """The variance, to which epsilon 1e-5 is added, as AMD's provider and hipDNN's CPU reference of 2025 compute."""


class NormNode(Node):
    """What the normalisations share."""

    def validate_norm(self) -> None:
        """Integers are normalised in FLOAT; epsilon, if there is one, is a single number that is not negative."""
        if not self.compute.is_float:
            self.compute = DataType.FLOAT
        for port in ("epsilon", "momentum"):
            tensor = self.inputs.get(port)
            if tensor is None:
                continue
            if tensor.volume != 1:
                raise self.fail(f"{port} '{tensor.name}' has dims {tensor.dims}; it must hold one number")
            if tensor.value is not None and not 0 <= tensor.value < math.inf:
                raise self.fail(f"{port} is {tensor.value}; it must be finite and at least 0")

    def number(self, inputs: Arrays, port: str) -> Array:
        """A scalar operand as an array that broadcasts with everything."""
        return np.reshape(inputs[port], ())

    def bounded(self, inputs: Arrays, errors: Arrays, port: str) -> Bounded:
        """An operand with its error; scalars broadcast with everything."""
        value = self.number(inputs, port) if port in ("epsilon", "momentum") else inputs[port]
        return bounded_input(self, port, value, np.reshape(errors[port], ()) if value.ndim == 0 else errors[port])

    def statistics(self, x: Array, axes: Sequence[int], epsilon: Array | float) -> tuple[Array, Array, Array]:
        """Mean, biased variance, and 1 / sqrt(variance + epsilon) of the reference."""
        mean = x.mean(axes, keepdims=True)
        variance = ((x - mean) ** 2).mean(axes, keepdims=True)
        return mean, variance, 1.0 / np.sqrt(variance + epsilon)

    def moments(self, x: Bounded, axes: Sequence[int]) -> tuple[Bounded, Bounded, Bounded]:
        """Mean, difference from it, and biased variance of two passes over ``axes``.

        An error of the mean shifts all differences alike, and their sum is 0: it enters the variance by its square.
        """
        mean = x.mean(axes)
        difference = x - mean
        own = Bounded(difference.value, np.maximum(difference.error - mean.error, 0.0), self)
        variance = own.square().mean(axes)
        return mean, difference, Bounded(variance.value, variance.error + mean.error**2, self)


class BatchnormBase(NormNode):
    """What the three operations share: tensors with one number per channel."""

    channel_ports: tuple[str, ...]

    @property
    def has_peers(self) -> bool:
        """True if statistics of other devices take part."""
        return any(port in self.inputs for port in PEER_PORTS)

    @property
    def channel_dims(self) -> tuple[int, ...]:
        """Dims of the tensors with one number per channel, [1, C, 1...]."""
        dims = self.inputs["x"].dims
        return (1, dims[1], *(1 for _ in dims[2:]))

    @property
    def axes(self) -> tuple[int, ...]:
        """Batch and spatial axes of x."""
        return (0, *range(2, self.inputs["x"].rank))

    def validate(self) -> None:
        self.validate_norm()
        x = self.inputs["x"]
        if x.rank < 2:
            raise self.fail(f"x {x.dims} must have dims [N, C, spatial...]")
        for port in self.channel_ports:
            tensor = self.inputs.get(port)
            if tensor is not None and tensor.dims != self.channel_dims:
                last = x.rank > 2 and tensor.volume == x.dims[-1]
                raise self.fail(
                    f"{port} '{tensor.name}' has dims {tensor.dims}; for x {x.dims} it must be {self.channel_dims}"
                    + (LAYOUT_TIP if last else "")
                )

    def infer(self) -> None:
        x = self.inputs["x"]
        for port in self.outputs:
            self.infer_output(port, x.dims if port == "y" else self.channel_dims, x)

    def flops(self) -> int:
        return (4 if len(self.outputs) == 1 else 8) * self.inputs["x"].volume


@register_op
class BatchnormInferenceNode(BatchnormBase):
    """y = (x - mean) * inv_variance * scale + bias, per channel.

    Shapes:  x [N, C, spatial...], the others [1, C, 1...] -> y like x
    Dtypes:  any; computes in the compute type
    Layout:  any strides; y takes the stride order of x unless it is set
    Raises:  GraphError if dims do not fit
    Source:  hipDNN BatchnormInference; inv_variance is 1 / sqrt(variance + epsilon), whatever its name
    """

    op = "batchnorm_inference"
    input_ports = ("x", "mean", "inv_variance", "scale", "bias")
    output_ports = ("y",)
    channel_ports = ("mean", "inv_variance", "scale", "bias")
    attributes_type = Attributes

    def reference(self, inputs: Arrays) -> dict[str, Array]:
        difference = inputs["x"] - inputs["mean"]
        return {"y": difference * inputs["inv_variance"] * inputs["scale"] + inputs["bias"]}

    def error(self, inputs: Arrays, errors: Arrays, outputs: Arrays) -> dict[str, Array]:
        x, mean, inverse, scale, bias = (self.bounded(inputs, errors, port) for port in self.input_ports)
        return {"y": ((x - mean) * inverse * scale + bias).error}


@register_op
class BatchnormInferenceVarianceNode(BatchnormBase):
    """y = (x - mean) / sqrt(variance + epsilon) * scale + bias, per channel.

    Shapes:  x [N, C, spatial...], epsilon one number, the others [1, C, 1...] -> y like x
    Dtypes:  any; computes in the compute type
    Layout:  any strides; y takes the stride order of x unless it is set
    Raises:  GraphError if dims do not fit, or epsilon is negative
    Source:  hipDNN BatchnormInferenceVarianceExt; torch.nn.functional.batch_norm(training=False)
    """

    op = "batchnorm_inference_variance_ext"
    input_ports = ("x", "mean", "variance", "scale", "bias", "epsilon")
    output_ports = ("y",)
    channel_ports = ("mean", "variance", "scale", "bias")

    def reference(self, inputs: Arrays) -> dict[str, Array]:
        inverse = 1.0 / np.sqrt(inputs["variance"] + self.number(inputs, "epsilon"))
        return {"y": (inputs["x"] - inputs["mean"]) * inverse * inputs["scale"] + inputs["bias"]}

    def error(self, inputs: Arrays, errors: Arrays, outputs: Arrays) -> dict[str, Array]:
        x, mean, variance, scale, bias, epsilon = (self.bounded(inputs, errors, port) for port in self.input_ports)
        return {"y": ((x - mean) * variance.inverse_root(epsilon) * scale + bias).error}


_RUNNING_INPUTS = ("prev_running_mean", "prev_running_variance", "momentum")
_RUNNING_OUTPUTS = ("next_running_mean", "next_running_variance")


@register_op
class BatchnormNode(BatchnormBase):
    """Training: y = (x - m) / sqrt(v + epsilon) * scale + bias with mean m and biased variance v of each channel of x.

    Also mean = m and inv_variance = 1 / sqrt(v + epsilon), and if asked for the running statistics
    next_running_mean = (1 - momentum) * prev_running_mean + momentum * m and the same of the variance, with the
    unbiased v * n / (n - 1), where n is the number of elements per channel (n = 1: v).

    Shapes:  x [N, C, spatial...], epsilon and momentum one number, the others [1, C, 1...]
             -> y like x, the others [1, C, 1...]
    Dtypes:  any; computes in the compute type, the variance in a second pass
    Layout:  any strides; outputs take the stride order of x unless they are set
    Raises:  GraphError if dims do not fit, a number is negative, or running statistics lack their inputs
    Source:  hipDNN Batchnorm; torch.nn.functional.batch_norm(training=True). Statistics of peers have no known meaning:
             the reference refuses them and so does every target.
    """

    op = "batchnorm"
    input_ports = ("x", "scale", "bias", "epsilon", *_RUNNING_INPUTS, *PEER_PORTS)
    optional_inputs = (*_RUNNING_INPUTS, *PEER_PORTS)
    output_ports = ("y", "mean", "inv_variance", *_RUNNING_OUTPUTS)
    optional_outputs = ("mean", "inv_variance", *_RUNNING_OUTPUTS)
    channel_ports = ("scale", "bias", "prev_running_mean", "prev_running_variance")

    @property
    def correction(self) -> float:
        """n / (n - 1): what makes the biased variance unbiased."""
        count = self.inputs["x"].volume // self.inputs["x"].dims[1]
        return count / (count - 1) if count > 1 else 1.0

    def validate(self) -> None:
        super().validate()
        missing = [port for port in _RUNNING_INPUTS if port not in self.inputs]
        wanted = [port for port in _RUNNING_OUTPUTS if port in self.outputs]
        if wanted and missing:
            raise self.fail(f"{' and '.join(wanted)} cannot be computed without {', '.join(missing)}")

    def reference(self, inputs: Arrays) -> dict[str, Array]:
        if self.has_peers:
            raise NotSupportedError(self.name, "peer_stats", "statistics of peers have no defined meaning")
        x = inputs["x"]
        mean, variance, inverse = self.statistics(x, self.axes, self.number(inputs, "epsilon"))
        values = {
            "y": (x - mean) * inverse * inputs["scale"] + inputs["bias"],
            "mean": mean,
            "inv_variance": inverse,
        }
        if _RUNNING_OUTPUTS[0] in self.outputs or _RUNNING_OUTPUTS[1] in self.outputs:
            momentum = self.number(inputs, "momentum")
            for port, prev, new in zip(
                _RUNNING_OUTPUTS, _RUNNING_INPUTS, (mean, variance * self.correction), strict=False
            ):
                values[port] = (1.0 - momentum) * inputs[prev] + momentum * new
        return {port: values[port] for port in self.outputs}

    def error(self, inputs: Arrays, errors: Arrays, outputs: Arrays) -> dict[str, Array]:
        x, scale, bias, epsilon = (self.bounded(inputs, errors, port) for port in self.input_ports[:4])
        mean, difference, variance = self.moments(x, self.axes)
        inverse = variance.inverse_root(epsilon)
        values = {"y": difference * inverse * scale + bias, "mean": mean, "inv_variance": inverse}
        if _RUNNING_OUTPUTS[0] in self.outputs or _RUNNING_OUTPUTS[1] in self.outputs:
            momentum = self.bounded(inputs, errors, "momentum")
            rest = Bounded(np.ones(()), np.zeros(()), self) - momentum
            for port, prev, new in zip(
                _RUNNING_OUTPUTS, _RUNNING_INPUTS, (mean, variance.scaled(self.correction)), strict=False
            ):
                values[port] = rest * self.bounded(inputs, errors, prev) + momentum * new
        return {port: values[port].error for port in self.outputs}
