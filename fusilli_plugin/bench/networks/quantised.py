"""A network of 8-bit integers between QuantizeLinear and DequantizeLinear, as ONNX Runtime's quantiser writes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import onnx

from fusilli_plugin.bench.networks.net import Net

__all__ = ["quantised"]

_REACH: Final = 4.0
"""Activations are about normal, so beyond this there are few."""


def quantised(*, size: int = 112, widths: Sequence[int] = (32, 64, 128, 256), classes: int = 100) -> onnx.ModelProto:
    """A convolutional network with a residual block for each width; weights by channel, activations by tensor.

    ``input [1, 3, size, size]`` → ``output [1, classes]``, both float32.

    Args:
        size: height and width of the picture; it is halved in front of each block.
        widths: channels of the blocks.
        classes: columns of the result.
    """
    net = _Quantised()
    x = net.rounded(net.net.input("input", (1, 3, size, size)), "/input")
    for number, channels in enumerate(widths):
        path = f"/layer{number}"
        x = net.conv(x, f"{path}/down", channels, stride=2)
        y = net.conv(x, f"{path}/conv1", channels)
        y = net.conv(y, f"{path}/conv2", channels, gain=0.5, relu=False)
        total = net.net.like(net.net.op("Add", f"{path}/Add", [x, y]), x)
        x = net.rounded(net.net.relu(total, f"{path}/relu"), path, positive=True)
    x = net.net.classifier(x, "/fc", classes)
    return net.net.model("main_graph", {f"{x}>output": (1, classes)})


class _Quantised:
    """Layers of a `Net` whose results are rounded to 8 bits."""

    def __init__(self) -> None:
        self.net = Net("float32", 9)
        self._random = np.random.default_rng(9)

    def rounded(self, x: str, path: str, *, positive: bool = False) -> str:
        """QuantizeLinear and DequantizeLinear of a tensor: UINT8 of what is positive, else INT8."""
        net, kind = self.net, np.uint8 if positive else np.int8
        scale = net.constant(f"{path}/scale", _REACH / (255 if positive else 127))
        zero = net.constant(f"{path}/zero", 0, kind)
        whole = net.op("QuantizeLinear", f"{path}/QuantizeLinear", [x, scale, zero])
        return net.like(net.op("DequantizeLinear", f"{path}/DequantizeLinear", [whole, scale, zero]), x)

    def conv(self, x: str, path: str, channels: int, *, stride: int = 1, gain: float = 1.0, relu: bool = True) -> str:
        """3x3, with bias; results are rounded."""
        net, (n, c, h, w) = self.net, self.net.dims[x]
        deviation = gain * (2.0 / (9 * c)) ** 0.5
        steps = np.full(channels, 3 * deviation / 127, np.float32)
        whole = np.clip(np.rint(self._random.normal(0, 127 / 3, (channels, c, 3, 3))), -127, 127)
        weight = self._of(f"{path}/weight", whole.astype(np.int8), steps)
        x_step = _REACH / 127
        bias_steps = (steps * x_step).astype(np.float32)
        bias = self._of(
            f"{path}/bias", np.rint(self._random.normal(0, 0.1, channels) / bias_steps).astype(np.int32), bias_steps
        )
        y = net.op("Conv", f"{path}/Conv", [x, weight, bias], kernel_shape=[3, 3], pads=[1] * 4, strides=[stride] * 2)
        net.dims[y] = (n, channels, (h - 1) // stride + 1, (w - 1) // stride + 1)
        return self.rounded(net.relu(y, f"{path}/relu") if relu else y, path, positive=relu)

    def _of(self, path: str, whole: np.ndarray, steps: np.ndarray) -> str:
        """DequantizeLinear of a constant by channel."""
        net = self.net
        given = [
            net.constant(f"{path}_quantized", whole, whole.dtype),
            net.constant(f"{path}_scale", steps),
            net.constant(f"{path}_zero", np.zeros(len(steps)), whole.dtype),
        ]
        return net.op("DequantizeLinear", f"{path}/DequantizeLinear", given, axis=0)
