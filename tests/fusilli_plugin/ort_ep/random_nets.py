"""Random small nets with open dims, and the inputs for two runs of each: what the sweep of the provider runs.

``python -m tests.fusilli_plugin.ort_ep.random_nets FIRST COUNT [strict]`` runs some and tells what goes wrong.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from tests.fusilli_plugin.ort_ep.models import Array, Model

__all__ = ["Net", "net", "picture_net"]

F32 = np.float32
_NEAREST: dict[str, Any] = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}


@dataclass
class Net:
    """A model and its inputs.

    Attributes:
        proto: the model.
        feeds: of each run; their dims differ.
    """

    proto: onnx.ModelProto
    feeds: list[dict[str, Array]]


class _Maker:
    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.model = Model(f"net{seed}")
        self._weights = 0

    def pick(self, *choices: Any) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def chance(self, part: float) -> bool:
        return bool(self.rng.random() < part)

    def weight(self, *dims: int) -> str:
        self._weights += 1
        values = self.rng.standard_normal(dims) / max(np.prod(dims[1:]), 1) ** 0.5
        return self.model.constant(f"w{self._weights}", values.astype(F32))

    def numbers(self, *values: int) -> str:
        self._weights += 1
        return self.model.constant(f"i{self._weights}", np.array(values, np.int64))

    def positive(self, count: int) -> str:
        self._weights += 1
        return self.model.constant(f"v{self._weights}", self.rng.uniform(0.5, 1.5, count).astype(F32))

    def activation(self, x: str, channels: int = 0) -> str:
        kind = self.pick("Relu", "Sigmoid", "Tanh", "LeakyRelu", "HardSwish", "Clip", "PRelu", "none")
        if kind == "none":
            return x
        if kind == "PRelu":
            return self.model.add(kind, x, self.weight(channels, 1, 1)) if channels else x
        if kind == "Clip":
            low = self.model.constant(f"low{self._weights}", np.array(-0.5, F32))
            self._weights += 1
            return self.model.add(kind, x, low)
        return self.model.add(kind, x)

    def conv(self, x: str, before: int, after: int, stride: int = 1, kernel: int = 3) -> str:
        pads = [kernel // 2] * 4
        inputs = [x, self.weight(after, before, kernel, kernel)]
        if self.chance(0.5):
            inputs.append(self.weight(after))
        y = self.model.add("Conv", *inputs, pads=pads, strides=[stride, stride])
        if self.chance(0.3):
            y = self.model.add("BatchNormalization", y, self.positive(after), self.weight(after), self.weight(after),
                               self.positive(after))  # fmt: skip
        if self.chance(0.15):
            y = self.model.add("InstanceNormalization", y, self.positive(after), self.weight(after))
        return self.activation(y, after)

    def half(self, x: str, channels: int) -> str:
        """Half the height and width, rounded up."""
        if self.chance(0.5):
            return self.conv(x, channels, channels, stride=2)
        op_type = self.pick("MaxPool", "AveragePool")
        return self.model.add(op_type, x, kernel_shape=[2, 2], strides=[2, 2], auto_pad="SAME_UPPER")

    def double(self, x: str, like: str) -> str:
        """Twice the height and width: by a factor, or as another map has them."""
        ways: dict[str, Any] = {
            "mode": "nearest",
            "coordinate_transformation_mode": "asymmetric",
            "nearest_mode": "floor",
        }
        if self.chance(0.5):
            self._weights += 1
            scales = self.model.constant(f"scales{self._weights}", np.array([1, 1, 2, 2], F32))
            return self.model.add("Resize", x, "", scales, **ways)
        shape = self.model.add("Shape", like)
        size = self.model.add("Slice", shape, self.numbers(2), self.numbers(4), self.numbers(0))
        first = self.model.add("Slice", self.model.add("Shape", x), self.numbers(0), self.numbers(2), self.numbers(0))
        return self.model.add("Resize", x, "", "", self.model.add("Concat", first, size, axis=0), **ways)

    def dim(self, name: str, extent: int) -> int | str:
        """Open mostly."""
        return name if self.chance(0.8) else extent

    def net(self, sizes: list[dict[str, tuple[int, ...]]]) -> Net:
        feeds = [{name: self.rng.uniform(-1, 1, dims).astype(F32) for name, dims in each.items()} for each in sizes]
        return Net(self.model.proto(), feeds)


def _unet(m: _Maker) -> Net:
    """Maps that are halved, doubled and joined with those before."""
    levels, channels = int(m.rng.integers(1, 4)), int(m.pick(3, 4, 8))
    x = m.model.input("x", m.dim("n", 1), m.dim("c", 3), "h", "w")
    y, maps = m.conv(x, 3, channels), []
    for _ in range(levels):
        maps.append(y)
        y = m.half(y, channels)
    for kept in reversed(maps):
        y = m.double(y, kept)
        if m.chance(0.5):
            y = m.conv(m.model.add("Concat", y, kept, axis=1), 2 * channels, channels)
        else:
            y = m.activation(m.model.add(m.pick("Add", "Mul"), y, kept), channels)
    m.model.output(m.conv(y, channels, 2, kernel=1))
    step = 1 << levels
    fixed = m.model.inputs[0].type.tensor_type.shape.dim[0].dim_value
    batch = [1, fixed or 2]
    return m.net([{"x": (batch[0], 3, 2 * step, step)}, {"x": (batch[1], 3, step, 3 * step)}])


def _detector(m: _Maker) -> Net:
    """Maps of two sizes, from outside or made, reshaped to rows by a shape that is computed, and joined."""
    channels = int(m.pick(4, 6))
    p = m.model.input("p", "batch", channels, "h0", "w0")
    y = m.half(m.conv(p, channels, channels), channels)
    outside = m.chance(0.5)
    if outside:
        q = m.model.input("q", "batch", channels, "h1", "w1")
        y = m.model.add("Concat", y, q, axis=1)
    heads = []
    for x, count in ((p, channels), (y, 2 * channels if outside else channels)):
        made = m.conv(x, count, 8, kernel=int(m.pick(1, 3)))
        if m.chance(0.5):  # the batch is read from the first input
            batch = m.model.add("Gather", m.model.add("Shape", p), m.numbers(0), axis=0)
            target = m.model.add("Concat", batch, m.numbers(8), m.numbers(-1), axis=0)
        else:
            target = m.numbers(0, 8, -1)
        heads.append(m.model.add("Reshape", made, target))
    rows = m.model.add("Concat", *heads, axis=2)
    if m.chance(0.5):
        rows = m.model.add("Transpose", rows, perm=[0, 2, 1])
        m.model.output(m.model.add("Softmax", rows, axis=2))
    else:
        m.model.output(m.model.add("Sigmoid", rows))
    sizes: list[dict[str, tuple[int, ...]]] = [{"p": (1, channels, 8, 6)}, {"p": (2, channels, 4, 10)}]
    for each in sizes if outside else ():
        n, c, h, w = each["p"]
        each["q"] = (n, c, h // 2, w // 2)
    return m.net(sizes)


def _recurrent(m: _Maker) -> Net:
    """LSTM, GRU or RNN over a number of steps that is open, in a product and a softmax."""
    op_type, hidden, size = m.pick("LSTM", "GRU", "RNN"), int(m.pick(4, 6)), int(m.pick(3, 5))
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[op_type] * hidden
    directions = int(m.pick(1, 2))
    x = m.model.input("x", "steps", m.dim("batch", 2), m.dim("size", size))
    if m.chance(0.5):
        x = m.activation(x)
    more: dict[str, Any] = {"linear_before_reset": int(m.pick(0, 1))} if op_type == "GRU" else {}
    direction = "bidirectional" if directions == 2 else m.pick("forward", "reverse")
    y = m.model.add(
        op_type, x, m.weight(directions, gates, size), m.weight(directions, gates, hidden),
        m.weight(directions, 2 * gates), hidden_size=hidden, direction=direction, **more,
    )  # fmt: skip
    y = m.model.add("Transpose", y, perm=[0, 2, 1, 3])
    y = m.model.add("Reshape", y, m.numbers(0, 0, directions * hidden))
    y = m.model.add("Add", m.model.add("MatMul", y, m.weight(directions * hidden, 7)), m.weight(7))
    m.model.output(m.model.add("Softmax", y, axis=-1))
    return m.net([{"x": (int(m.pick(3, 9)), 2, size)}, {"x": (int(m.pick(2, 35, 40)), 2, size)}])


def _text(m: _Maker) -> Net:
    """Attention and a two-layer product over a number of rows that is open."""
    size, heads = 16, int(m.pick(2, 4))
    x = m.model.input("x", m.dim("batch", 2), "rows", m.dim("size", size))
    parts = []
    for _ in range(3):
        part = m.model.add("MatMul", x, m.weight(size, size))
        if m.chance(0.5):
            shape = m.model.add("Shape", x)
            first = m.model.add("Slice", shape, m.numbers(0), m.numbers(2), m.numbers(0))
            target = m.model.add("Concat", first, m.numbers(heads), m.numbers(size // heads), axis=0)
        else:
            target = m.numbers(0, 0, heads, size // heads)
        parts.append(m.model.add("Transpose", m.model.add("Reshape", part, target), perm=[0, 2, 1, 3]))
    keys = m.model.add("Transpose", parts[1], perm=[0, 1, 3, 2])
    scale = m.model.constant("scale", np.array((size // heads) ** -0.5, F32))
    scores = m.model.add("Mul", m.model.add("MatMul", parts[0], keys), scale)
    y = m.model.add("MatMul", m.model.add("Softmax", scores, axis=-1), parts[2])
    y = m.model.add("Reshape", m.model.add("Transpose", y, perm=[0, 2, 1, 3]), m.numbers(0, 0, size))
    y = m.model.add("LayerNormalization", m.model.add("Add", x, y), m.positive(size), m.weight(size))
    m.model.output(m.model.add("Gelu" if m.model.opset >= 20 else "Tanh", m.model.add("MatMul", y, m.weight(size, 5))))
    return m.net([{"x": (2, 5, size)}, {"x": (2, 12, size)}])


def picture_net(seed: int) -> Model:
    """Up to seven levels that divide maps of open height and width by 2, 3 or 4, and join them with those before."""
    m = _Maker(seed)
    height = m.pick("h", "h1")
    y = m.conv(m.model.input("x", m.dim("n", 1), 3, height, "w"), 3, 4)
    maps: list[tuple[str, int]] = []
    total = 1
    for _ in range(int(m.rng.integers(1, m.pick(4, 8)))):
        by = m.pick(2, 2, 2, 3, 4) if total < 64 else 2
        total *= by
        maps.append((y, by))
        way = m.pick("conv", "pool", "patch", "space")
        if way == "conv":
            y = m.conv(y, 4, 4, stride=by)
        elif way == "pool":
            y = m.model.add("MaxPool", y, kernel_shape=[by, by], strides=[by, by])
        elif way == "patch":
            y = m.model.add("Conv", y, m.weight(4, 4, by, by), strides=[by, by])
        else:
            y = m.conv(m.model.add("SpaceToDepth", y, blocksize=by), 4 * by * by, 4, kernel=1)
    for kept, by in reversed(maps):
        way = m.pick("transposed", "resize", "depth")
        if way == "transposed":
            y = m.model.add("ConvTranspose", y, m.weight(4, 4, by, by), strides=[by, by])
        elif way == "depth":
            y = m.model.add("DepthToSpace", m.conv(y, 4, 4 * by * by, kernel=1), blocksize=by)
        else:
            scales = m.model.constant(f"by{len(m.model.nodes)}", np.array([1, 1, by, by], F32))
            y = m.model.add("Resize", y, "", scales, **_NEAREST)
        if m.chance(0.5):
            y = m.model.add("Relu", m.model.add("Add", y, kept))
        else:
            y = m.conv(m.model.add("Concat", y, kept, axis=1), 8, 4)
    return m.model.output(m.conv(y, 4, 2, kernel=1))


_KINDS: tuple[Callable[[_Maker], Net], ...] = (_unet, _detector, _recurrent, _text)


def net(seed: int) -> Net:
    """The net of a number."""
    maker = _Maker(seed)
    return _KINDS[seed % len(_KINDS)](maker)


def run(seed: int, **options: str) -> str:
    """Run a net through the provider with two shapes; what goes wrong, "" if nothing does, and how much is claimed."""
    import onnxruntime as ort

    import fusilli_plugin
    from tests.fusilli_plugin.ort_ep.models import session

    made = net(seed)
    data = made.proto.SerializeToString()
    theirs: Any = ort.InferenceSession(data, providers=["CPUExecutionProvider"])
    try:
        ours = session(data, **options)
        for feeds in made.feeds:
            want = theirs.run(None, feeds)
            for got, right in zip(ours.run(None, feeds), want, strict=True):
                if got.shape != right.shape:
                    return f"shape {got.shape}, right is {right.shape}"
                error = float(np.max(np.abs(got - right)) / max(np.max(np.abs(right)), 1e-30))
                if not error <= 1e-4:
                    return f"error {error:.2e}"
        report = fusilli_plugin.ep_report(ours)
    except Exception as error:  # whatever it is, the run failed
        return f"{type(error).__name__}: {error}"
    left = [f"{node.op_type}: {node.reason}" for node in report.nodes if not node.group]
    told = f"net {seed}: {report.claimed} of {len(report.nodes)} nodes, {report.groups} groups"
    print(
        told, *(f"left {each[:140]}" for each in left), *map(str, report.elsewhere.values()), sep="\n    ", flush=True
    )
    return "; ".join(report.problems)


if __name__ == "__main__":
    import onnxruntime

    import fusilli_plugin

    onnxruntime.set_default_logger_severity(4)
    fusilli_plugin.register_ep(cpu=True)
    first, count = int(sys.argv[1]), int(sys.argv[2])
    chosen = {"strict": "1"} if "strict" in sys.argv else {"on_new_shape": "wait"}
    wrong = {seed: why for seed in range(first, first + count) if (why := run(seed, **chosen))}
    for seed, why in wrong.items():
        print(f"WRONG net {seed}: {' '.join(why.split())[:1000]}")
    print(f"{count - len(wrong)} of {count} nets are right")
    sys.exit(bool(wrong))
