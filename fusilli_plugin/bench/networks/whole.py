"""Networks as an exporter writes them, with seeded random weights; nothing is downloaded.

Every generator takes ``dtype`` (``float32``, ``float16``: type of activations and weights alike) and returns a new
model. Weights are scaled so that activations keep their magnitude: results are no harder to compare than a trained
network's, in float16 too.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from numpy.typing import DTypeLike
from onnx import TensorProto, helper

from fusilli_plugin.bench.networks.net import Dims, Net

__all__ = ["bert_layer", "llama_block", "mobilenet_v2", "resnet50", "unet"]


def resnet50(
    dtype: DTypeLike = "float32", *, size: int = 224, width: int = 64, blocks: Sequence[int] = (3, 4, 6, 3),
    batch_norm: bool = True, batch: int = 1, classes: int = 1000,
) -> onnx.ModelProto:  # fmt: skip
    """ResNet-50 (v1.5: the stride is on the 3x3 convolution): 53 convolutions, 102 MB at float32.

    ``input [batch, 3, size, size]`` → ``output [batch, classes]``.

    Args:
        dtype: of activations and weights.
        size: height and width of the picture.
        width: channels of the first layer; with ``blocks`` it makes smaller networks of the same form.
        blocks: bottlenecks per stage.
        batch_norm: keep BatchNormalization nodes; False: convolutions with bias, as an exporter that folds gives.
        batch: pictures.
        classes: columns of the result.
    """
    net = Net(dtype, 3)

    def conv(x: str, path: str, number: str, channels: int, kernel: int, stride: int = 1, gain: float = 1.0) -> str:
        y = net.conv(x, f"{path}/conv{number}", channels, kernel, stride=stride, bias=not batch_norm)
        return net.batch_norm(y, f"{path}/bn{number}", gain) if batch_norm else y

    x = net.input("input", (batch, 3, size, size))
    x = net.relu(conv(x, "", "1", width, 7, 2), "/relu")
    x = net.pool("MaxPool", x, "/maxpool", 3, 2, 1)
    for stage, count in enumerate(blocks):
        for block in range(count):
            path = f"/layer{stage + 1}/layer{stage + 1}.{block}"
            channels, stride = width * 2**stage, 2 if stage and not block else 1
            y = net.relu(conv(x, path, "1", channels, 1), f"{path}/relu")
            y = net.relu(conv(y, path, "2", channels, 3, stride), f"{path}/relu_1")
            y = conv(y, path, "3", 4 * channels, 1, gain=0.3)  # residual sums keep their size
            if not block:
                down = net.conv(
                    x, f"{path}/downsample/downsample.0", 4 * channels, 1, stride=stride, bias=not batch_norm
                )
                x = net.batch_norm(down, f"{path}/downsample/downsample.1", 0.7) if batch_norm else down
            x = net.relu(net.like(net.op("Add", f"{path}/Add", [y, x]), y), f"{path}/relu_2")
    x = net.classifier(x, "/fc", classes)
    return net.model("main_graph", {f"{x}>output": (batch, classes)})


_MOBILENET = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


def mobilenet_v2(
    dtype: DTypeLike = "float32", *, size: int = 224, batch_norm: bool = True, classes: int = 1000,
    settings: Sequence[tuple[int, int, int, int]] = _MOBILENET,
) -> onnx.ModelProto:  # fmt: skip
    """MobileNetV2: inverted residuals with depthwise convolutions, Clip(0, 6) with its bounds as constants; 14 MB.

    ``input [1, 3, size, size]`` → ``output [1, classes]``.

    Args:
        dtype: of activations and weights.
        size: height and width of the picture.
        batch_norm: keep BatchNormalization nodes; False: convolutions with bias.
        classes: columns of the result.
        settings: per stage: expansion, channels, blocks, stride.
    """
    net = Net(dtype, 4)
    bounds = [net.constant("/Constant_output_0", 0.0), net.constant("/Constant_1_output_0", 6.0)]

    def conv(x: str, path: str, c: int, kernel: int, *, stride: int = 1, groups: int = 1, clip: bool = True) -> str:
        y = net.conv(x, f"{path}.0", c, kernel, stride=stride, groups=groups, bias=not batch_norm)
        y = net.batch_norm(y, f"{path}.1") if batch_norm else y
        return net.like(net.op("Clip", f"{path}.2/Clip", [y, *bounds]), y) if clip else y

    x = conv(net.input("input", (1, 3, size, size)), "/features/features.0/features.0", 32, 3, stride=2)
    number = 0
    for expansion, channels, count, stride in settings:
        for block in range(count):
            number += 1
            path = f"/features/features.{number}"
            step, hidden, y = stride if not block else 1, net.dims[x][1] * expansion, x
            if expansion > 1:
                y = conv(y, f"{path}/conv/conv.0/conv.0", hidden, 1)
            y = conv(y, f"{path}/conv/conv.1/conv.1", hidden, 3, stride=step, groups=hidden)
            y = conv(y, f"{path}/conv/conv.2", channels, 1, clip=False)
            residual = step == 1 and net.dims[x] == net.dims[y]
            x = net.like(net.op("Add", f"{path}/Add", [x, y]), y) if residual else y
    x = conv(x, f"/features/features.{number + 1}/features.{number + 1}", 1280, 1)
    x = net.classifier(x, "/classifier/classifier.1", classes)
    return net.model("main_graph", {f"{x}>output": (1, classes)})


def unet(dtype: DTypeLike = "float32", *, size: int = 64, width: int = 16, depth: int = 3) -> onnx.ModelProto:
    """UNet with skip connections: two convolutions per level, max pools down, transposed convolutions up, Concat.

    ``input [1, 3, size, size]`` → ``output [1, 1, size, size]`` (Sigmoid); ``size`` is a multiple of ``2**depth``.
    """
    net = Net(dtype, 5)

    def double(x: str, path: str, channels: int) -> str:
        for i in (0, 3):
            x = net.conv(x, f"{path}/double_conv/double_conv.{i}", channels, 3)
            x = net.batch_norm(x, f"{path}/double_conv/double_conv.{i + 1}")
            x = net.relu(x, f"{path}/double_conv/double_conv.{i + 2}")
        return x

    skips = [double(net.input("input", (1, 3, size, size)), "/inc", width)]
    for level in range(depth):
        x = net.pool("MaxPool", skips[-1], f"/down{level + 1}/maxpool", 2, 2)
        skips.append(double(x, f"/down{level + 1}/conv", width * 2 ** (level + 1)))
    x = skips.pop()
    for level in range(depth):
        skip, path = skips.pop(), f"/up{level + 1}"
        n, c, h, w = net.dims[x]
        weight = net.normal(f"up{level + 1}.up.weight", (c, c // 2, 2, 2), c**-0.5)
        bias = net.normal(f"up{level + 1}.up.bias", (c // 2,), 0.1)
        up = net.op("ConvTranspose", f"{path}/up/ConvTranspose", [x, weight, bias], kernel_shape=[2, 2], strides=[2, 2])
        x = net.op("Concat", f"{path}/Concat", [skip, up], axis=1)
        net.dims[x] = (n, c, 2 * h, 2 * w)
        x = double(x, f"{path}/conv", c // 2)
    x = net.op("Sigmoid", "/Sigmoid", [net.conv(x, "/outc/conv", 1, 1, bias=True)])
    return net.model("main_graph", {f"{x}>output": (1, 1, size, size)})


def bert_layer(
    dtype: DTypeLike = "float32", *, hidden: int = 768, heads: int = 12, sequence: int = 128, dynamic: bool = False
) -> onnx.ModelProto:
    """A BERT encoder layer: self-attention with an additive mask, LayerNormalization, GELU written with Erf.

    ``hidden_states [1, sequence, hidden]``, ``attention_mask [1, sequence] int64`` → ``output``.

    Args:
        dtype: of activations and weights; the mask stays int64.
        hidden: features.
        heads: attention heads.
        sequence: tokens.
        dynamic: dims are ``batch`` and ``sequence``, and reshapes take their shapes from Shape, Gather and Concat.
    """
    net = Net(dtype, 6)
    dims: Dims = ("batch", "sequence", hidden) if dynamic else (1, sequence, hidden)
    x = net.input("hidden_states", dims)
    mask = net.input("attention_mask", dims[:2], TensorProto.INT64)
    size, root = hidden // heads, "/attention/self"

    mask = net.op("Unsqueeze", "/Unsqueeze", [mask, net.integers("/Constant_output_0", 1, 2)])
    mask = net.op("Cast", "/Cast", [mask], to=helper.np_dtype_to_tensor_dtype(net.dtype))
    mask = net.op("Sub", "/Sub", [net.constant("/Constant_1_output_0", 1.0), mask])
    mask = net.op("Mul", "/Mul", [mask, net.constant("/Constant_2_output_0", net.lowest)])

    def shape(path: str, source: str, *tail: int) -> str:
        if not dynamic:
            return net.integers(f"{path}/Constant_output_0", 1, sequence, *tail)
        whole = net.op("Shape", f"{path}/Shape", [source])
        ends = [net.integers(f"{path}/starts", 0), net.integers(f"{path}/ends", 2)]
        lead = net.op("Slice", f"{path}/Slice", [whole, *ends])
        return net.op("Concat", f"{path}/Concat", [lead, net.integers(f"{path}/tail", *tail)], axis=0)

    def split(which: str, perm: Sequence[int]) -> str:
        y = net.linear(x, f"{root}/{which}", hidden, hidden)
        y = net.op("Reshape", f"{root}/{which}/Reshape", [y, shape(f"{root}/{which}", y, heads, size)])
        return net.op("Transpose", f"{root}/{which}/Transpose", [y], perm=perm)

    q, k, v = split("query", (0, 2, 1, 3)), split("key", (0, 2, 3, 1)), split("value", (0, 2, 1, 3))
    scores = net.op("MatMul", f"{root}/MatMul", [q, k])
    scores = net.op("Div", f"{root}/Div", [scores, net.constant(f"{root}/Constant_3_output_0", size**0.5)])
    weights = net.op("Softmax", f"{root}/Softmax", [net.op("Add", f"{root}/Add", [scores, mask])], axis=-1)
    y = net.op(
        "Transpose", f"{root}/Transpose_1", [net.op("MatMul", f"{root}/MatMul_1", [weights, v])], perm=(0, 2, 1, 3)
    )
    y = net.op("Reshape", f"{root}/Reshape_1", [y, shape(f"{root}/out", y, hidden)])

    def normed(y: str, residual: str, path: str) -> str:
        total = net.op("Add", f"{path}/Add", [y, residual])
        parameters = [net.uniform(f"{path}.weight", (hidden,), 0.8, 1.2), net.normal(f"{path}.bias", (hidden,), 0.1)]
        return net.op("LayerNormalization", f"{path}/LayerNorm", [total, *parameters], axis=-1, epsilon=1e-12)

    x = normed(net.linear(y, "/attention/output/dense", hidden, hidden), x, "/attention/output")
    y = net.linear(x, "/intermediate/dense", 4 * hidden, hidden)
    path = "/intermediate/act"
    erf = net.op("Erf", f"{path}/Erf", [net.op("Div", f"{path}/Div", [y, net.constant(f"{path}/root2", 2**0.5)])])
    gate = net.op("Add", f"{path}/Add", [erf, net.constant(f"{path}/one", 1.0)])
    y = net.op("Mul", f"{path}/Mul_1", [net.op("Mul", f"{path}/Mul", [y, gate]), net.constant(f"{path}/half", 0.5)])
    y = normed(net.linear(y, "/output/dense", hidden, 4 * hidden), x, "/output")
    return net.model("main_graph", {f"{y}>output": dims})


def llama_block(
    dtype: DTypeLike = "float32", *, hidden: int = 512, heads: int = 8, kv_heads: int = 2, sequence: int = 64,
    feed_forward: int = 1376, opset: int = 17,
) -> onnx.ModelProto:  # fmt: skip
    """A LLaMA-style decoder block: RMS norm, rotary embedding, causal grouped-query attention, SwiGLU.

    ``hidden_states [1, sequence, hidden]`` → ``output``. Opset 17 writes all of it with elementary operators, as
    exporters do; opset 23 uses RMSNormalization, RotaryEmbedding and Attention; from 24 on, Swish too.
    """
    net = Net(dtype, 7, opset)
    x = net.input("hidden_states", (1, sequence, hidden))
    size = hidden // heads
    angles = np.outer(np.arange(sequence), 10000.0 ** (-np.arange(0, size, 2) / size))
    build = _LlamaModern(net, size, angles) if opset >= 23 else _LlamaPlain(net, size, angles)

    y = build.norm(x, "/input_layernorm", hidden)
    q, k, v = (
        net.linear(y, f"/self_attn/{which}_proj", count * size, hidden, bias=False)
        for which, count in (("q", heads), ("k", kv_heads), ("v", kv_heads))
    )
    y = build.attention(q, k, v, heads, kv_heads, sequence)
    x = net.op("Add", "/Add", [x, net.linear(y, "/self_attn/o_proj", hidden, hidden, bias=False)])
    y = build.norm(x, "/post_attention_layernorm", hidden)
    gate = build.silu(net.linear(y, "/mlp/gate_proj", feed_forward, hidden, bias=False))
    y = net.op("Mul", "/mlp/Mul", [gate, net.linear(y, "/mlp/up_proj", feed_forward, hidden, bias=False)])
    y = net.op("Add", "/Add_1", [x, net.linear(y, "/mlp/down_proj", hidden, feed_forward, bias=False)])
    return net.model("main_graph", {f"{y}>output": (1, sequence, hidden)})


class _LlamaPlain:
    """The block's parts in operators of opset 17."""

    def __init__(self, net: Net, size: int, angles: np.ndarray) -> None:
        self.net = net
        self.size = size
        self.angles = angles

    def norm(self, x: str, path: str, hidden: int) -> str:
        net = self.net
        square = net.op("Pow", f"{path}/Pow", [x, net.constant(f"{path}/two", 2.0)])
        mean = net.op("ReduceMean", f"{path}/ReduceMean", [square], axes=[-1], keepdims=1)
        root = net.op("Sqrt", f"{path}/Sqrt", [net.op("Add", f"{path}/Add", [mean, net.constant(f"{path}/eps", 1e-5)])])
        inverse = net.op("Div", f"{path}/Div", [net.constant(f"{path}/one", 1.0), root])
        scaled = net.op("Mul", f"{path}/Mul", [x, inverse])
        return net.op("Mul", f"{path}/Mul_1", [net.uniform(f"{path[1:]}.weight", (hidden,), 0.8, 1.2), scaled])

    def silu(self, x: str) -> str:
        return self.net.op("Mul", "/mlp/act_fn/Mul", [x, self.net.op("Sigmoid", "/mlp/act_fn/Sigmoid", [x])])

    def heads(self, x: str, which: str, count: int, sequence: int) -> str:
        net, path = self.net, f"/self_attn/{which}"
        y = net.op("Reshape", f"{path}/Reshape", [x, net.integers(f"{path}/shape", 1, sequence, count, self.size)])
        return net.op("Transpose", f"{path}/Transpose", [y], perm=(0, 2, 1, 3))

    def rotate(self, x: str, which: str) -> str:
        net, path, half = self.net, f"/self_attn/{which}/rotary", self.size // 2
        both = np.concatenate([self.angles, self.angles], -1)[None, None]
        cos, sin = net.constant("rotary.cos", np.cos(both)), net.constant("rotary.sin", np.sin(both))
        axes = net.integers("rotary.axes", 3)
        middle = net.integers("rotary.middle", half)
        first = net.op("Slice", f"{path}/Slice", [x, net.integers("rotary.zero", 0), middle, axes])
        last = net.op("Slice", f"{path}/Slice_1", [x, middle, net.integers("rotary.end", 2**63 - 1), axes])
        turned = net.op("Concat", f"{path}/Concat", [net.op("Neg", f"{path}/Neg", [last]), first], axis=-1)
        parts = [net.op("Mul", f"{path}/Mul", [x, cos]), net.op("Mul", f"{path}/Mul_1", [turned, sin])]
        return net.op("Add", f"{path}/Add", parts)

    def repeat(self, x: str, which: str, kv_heads: int, groups: int, sequence: int) -> str:
        """[1, kv, S, D] → [1, kv * groups, S, D]: the keys that a group of query heads shares."""
        net, path = self.net, f"/self_attn/{which}/repeat"
        y = net.op("Unsqueeze", f"{path}/Unsqueeze", [x, net.integers(f"{path}/axes", 2)])
        wide = net.integers(f"{path}/wide", 1, kv_heads, groups, sequence, self.size)
        y = net.op("Expand", f"{path}/Expand", [y, wide])
        shape = net.integers(f"{path}/shape", 1, kv_heads * groups, sequence, self.size)
        return net.op("Reshape", f"{path}/Reshape", [y, shape])

    def attention(self, q: str, k: str, v: str, heads: int, kv_heads: int, sequence: int) -> str:
        net, path, groups = self.net, "/self_attn", heads // kv_heads
        q = self.rotate(self.heads(q, "q", heads, sequence), "q")
        k = self.repeat(self.rotate(self.heads(k, "k", kv_heads, sequence), "k"), "k", kv_heads, groups, sequence)
        v = self.repeat(self.heads(v, "v", kv_heads, sequence), "v", kv_heads, groups, sequence)
        scores = net.op(
            "MatMul", f"{path}/MatMul", [q, net.op("Transpose", f"{path}/Transpose", [k], perm=(0, 1, 3, 2))]
        )
        scores = net.op("Mul", f"{path}/Mul", [scores, net.constant(f"{path}/scale", self.size**-0.5)])
        mask = np.triu(np.full((sequence, sequence), net.lowest), 1)[None, None]
        scores = net.op("Add", f"{path}/Add", [scores, net.constant(f"{path}/mask", mask)])
        y = net.op("MatMul", f"{path}/MatMul_1", [net.op("Softmax", f"{path}/Softmax", [scores], axis=-1), v])
        y = net.op("Transpose", f"{path}/Transpose_1", [y], perm=(0, 2, 1, 3))
        return net.op("Reshape", f"{path}/Reshape", [y, net.integers(f"{path}/shape", 1, sequence, heads * self.size)])


class _LlamaModern(_LlamaPlain):
    """The block's parts in operators of opset 23."""

    def norm(self, x: str, path: str, hidden: int) -> str:
        weight = self.net.uniform(f"{path[1:]}.weight", (hidden,), 0.8, 1.2)
        return self.net.op("RMSNormalization", f"{path}/RMSNormalization", [x, weight], axis=-1, epsilon=1e-5)

    def silu(self, x: str) -> str:
        return self.net.op("Swish", "/mlp/act_fn/Swish", [x]) if self.net.opset >= 24 else super().silu(x)

    def rotate(self, x: str, which: str) -> str:
        caches = [self.net.constant(f"rotary.{f.__name__}", f(self.angles)[None]) for f in (np.cos, np.sin)]
        return self.net.op("RotaryEmbedding", f"/self_attn/{which}/RotaryEmbedding", [x, *caches])

    def attention(self, q: str, k: str, v: str, heads: int, kv_heads: int, sequence: int) -> str:
        net, path = self.net, "/self_attn"
        q = self.rotate(self.heads(q, "q", heads, sequence), "q")
        k = self.rotate(self.heads(k, "k", kv_heads, sequence), "k")
        v = self.heads(v, "v", kv_heads, sequence)
        y = net.op("Attention", f"{path}/Attention", [q, k, v], is_causal=1, scale=self.size**-0.5)
        y = net.op("Transpose", f"{path}/Transpose", [y], perm=(0, 2, 1, 3))
        return net.op("Reshape", f"{path}/Reshape", [y, net.integers(f"{path}/shape", 1, sequence, heads * self.size)])
