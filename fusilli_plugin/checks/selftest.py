"""Graphs that a device computes and that are compared, per element, with the float64 reference."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fusilli_plugin.emulator import Emulator, Outcome
from graph_api import (
    DataType,
    ExecutionError,
    Graph,
    MoeGroupedMatmulMode,
    NormFwdPhase,
    PointwiseMode,
    ResampleMode,
    TensorAttr,
    numerics,
)
from iree_bridge import Artifact, Device, Executable, build, compile_graph

__all__ = ["GRAPHS", "SMALL", "emulate_all", "inputs", "quick", "run", "run_saved"]

_HALVES = (DataType.HALF, DataType.BFLOAT16)
_EXPERTS, _ROWS = 4, 42
_FORMATS = {
    "MXFP8": (DataType.FP8_E4M3, DataType.FP8_E8M0, 32),
    "NVFP4": (DataType.FP4_E2M1, DataType.FP8_E4M3, 16),
}
_SMALL_OPERANDS = (
    (DataType.FP8_E4M3, DataType.FP8_E5M2),
    (DataType.FP8_E4M3_FNUZ, DataType.FP8_E4M3_FNUZ),
    (DataType.HALF, DataType.INT4),
)


def quick() -> Graph:
    """A 1x1 convolution with bias and ReLU, 4 channels, 4 x 4 pixels, f32: compiles in a second."""
    return _layer(DataType.FLOAT, (1, 4, 4, 4), (4, 4, 1, 1))


def run(device: str, graph: Graph | None = None) -> str:
    """Compiles and runs a graph, by default `quick`, on a device.

    Returns:
        What was seen, for people.

    Raises:
        FusilliError: it does not compile or run.
        ExecutionError: it runs, and the result is wrong.
    """
    g = graph or quick()
    given = inputs(g)
    outputs = {tensor: tensor.memory() for tensor in g.arguments().outputs}
    start = time.perf_counter()
    build(g, device=device).run({**given, **outputs})
    seconds = time.perf_counter() - start
    for comparison in numerics.check(g, {**given}, {**outputs}):
        if not comparison.ok:
            raise ExecutionError(f"device {device} computes wrong results: {comparison}")
    return f"right, {seconds:.2f} s"


def run_saved(device: str) -> str:
    """Compiles `quick`, saves the code, loads it again and runs its test vector on a device.

    Returns:
        What was seen, for people.

    Raises:
        FusilliError: it does not compile, load or run.
        ExecutionError: the result is wrong.
        OSError: there is no folder for a temporary file.
    """
    g = quick()
    place = Device.parse(device)
    with tempfile.TemporaryDirectory(prefix="fusilli-selftest-") as folder:
        path = Path(folder, "quick.fusilli")
        compile_graph(g, [place.target]).save(path)
        artifact = Artifact.load(path)
        size = path.stat().st_size
    code = artifact.code_for(place.target)
    outputs = {tensor: tensor.memory() for tensor in artifact.graph.arguments().outputs}
    Executable(artifact.graph.arguments(), code.vmfb, place).run({**artifact.test_inputs(), **outputs})
    for comparison in artifact.check({tensor.uid: array for tensor, array in outputs.items()}):
        if not comparison.ok:
            raise ExecutionError(f"saved code computes wrong results on {device}: {comparison}")
    return f"saved, loaded and right, {size} bytes"


def emulate_all(emulator: Emulator, say: Callable[[str], None] = lambda _: None) -> Iterator[tuple[str, Outcome]]:
    """Runs every graph of `SMALL` emulated: its name, and what came of it. ``say`` is told what is begun."""
    for name, build_graph in SMALL.items():
        say(f"{emulator}: {name}: compiling and running")
        graph = build_graph()
        yield name, emulator.examine(graph, inputs(graph))


def inputs(g: Graph) -> dict[TensorAttr, np.ndarray[Any, Any]]:
    """Random ones, but every row of experts has a place; each expert has more rows than the one before."""
    pack = g.random_inputs(seed=0)
    places = 5 * np.arange(_ROWS) % _ROWS
    offsets = _ROWS * np.arange(_EXPERTS) ** 2 // _EXPERTS**2
    routing = {"expert_offsets": offsets, "expert_token": places // 2, "expert_choice": places % 2}
    for tensor, array in pack.items():
        if tensor.name in routing:
            array[...] = routing[tensor.name].reshape(array.shape)
    return pack


def _layer(
    dtype: DataType,
    x: tuple[int, ...],
    w: tuple[int, ...],
    *,
    layout: str = "NCHW",
    padding: int = 0,
    add: bool = False,
) -> Graph:
    """Convolution, bias, with ``add`` a residual, ReLU."""
    g = Graph("layer", io_data_type=dtype, compute_data_type=DataType.FLOAT)
    image, filters = g.tensor("x", dim=x, layout=layout), g.tensor("w", dim=w, layout=layout)
    y = g.pointwise(
        PointwiseMode.ADD, g.conv_fprop(image, filters, padding=padding), g.tensor("b", dim=(1, w[0], 1, 1))
    )
    if add:
        y = g.pointwise(PointwiseMode.ADD, y, g.tensor("z", dim=(x[0], w[0], *x[2:]), layout=layout))
    g.pointwise(PointwiseMode.RELU_FWD, y).set_output(True).set_name("y")
    return g.validate()


def _gradient(dtype: DataType, direction: str, batch: int) -> Graph:
    g = Graph(direction, io_data_type=dtype, compute_data_type=DataType.FLOAT)
    dy = g.tensor("dy", dim=(batch, 32, 14, 14))
    if direction == "dgrad":
        dx = g.conv_dgrad(dy, g.tensor("w", dim=(32, 16, 3, 3)), padding=1)
        dx.set_output(True).set_dim((batch, 16, 14, 14))
    else:
        dw = g.conv_wgrad(dy, g.tensor("x", dim=(batch, 16, 14, 14)), padding=1)
        dw.set_output(True).set_dim((32, 16, 3, 3))
    return g.validate()


def _product(dtype: DataType, *, transposed: bool, batch: int) -> Graph:
    """Odd sizes, so that the last step of the matrix instructions is not full; then bias and GELU."""
    m, n, k = 33, 49, 75
    g = Graph("product", io_data_type=dtype, compute_data_type=DataType.FLOAT)
    a = g.tensor("a", dim=(batch, m, k), stride=(m * k, 1, m) if transposed else None)
    b = g.tensor("b", dim=(batch, k, n), stride=(k * n, 1, k) if transposed else None)
    y = g.pointwise(PointwiseMode.ADD, g.matmul(a, b), g.tensor("bias", dim=(1, 1, n)))
    g.pointwise(PointwiseMode.GELU_FWD, y).set_output(True)
    return g.validate()


def _attention(dtype: DataType, batch: int, *, sink: bool) -> Graph:
    g = Graph("attention", io_data_type=dtype, compute_data_type=DataType.FLOAT)
    q, k, v = (g.tensor(name, dim=(batch, heads, 65, 64)) for name, heads in (("q", 4), ("k", 2), ("v", 2)))
    token = g.tensor("sink", dim=(1, 4, 1, 1), data_type=DataType.FLOAT) if sink else None
    made = g.sdpa(q, k, v, attn_scale=0.125, causal_mask=not sink, sink_token=token)
    made.o.set_output(True)
    return g.validate()


def _attention_gradients(dtype: DataType, batch: int) -> Graph:
    """Of an attention in the same graph, since results and statistics have to be those of the operands."""
    g = Graph("attention gradients", io_data_type=dtype, compute_data_type=DataType.FLOAT)
    q, k, v = (g.tensor(name, dim=(batch, heads, 33, 32)) for name, heads in (("q", 4), ("k", 2), ("v", 2)))
    o, stats = g.sdpa(q, k, v, causal_mask=True, generate_stats=True)
    assert stats is not None
    do = g.tensor("do", dim=(batch, 4, 33, 32))
    for gradient in g.sdpa_backward(q, k, v, o, do, stats, causal_mask=True):
        gradient.set_output(True)
    return g.validate()


def _norm(dtype: DataType) -> Graph:
    g = Graph("norm", io_data_type=dtype, compute_data_type=DataType.FLOAT)
    x, scale, bias = (
        g.tensor(name, dim=dim) for name, dim in (("x", (5, 7, 300)), ("s", (1, 1, 300)), ("b", (1, 1, 300)))
    )
    y, _, _ = g.layernorm(x, scale, bias, epsilon=1e-5, forward_phase=NormFwdPhase.INFERENCE)
    y.set_output(True)
    return g.validate()


def _norm_gradients(dtype: DataType, kind: str) -> Graph:
    """Behind the norm whose statistics they take."""
    g = Graph(f"{kind} gradients", io_data_type=dtype, compute_data_type=DataType.FLOAT)
    dims, own = ((2, 7, 9, 11), (1, 7, 1, 1)) if kind == "batch norm" else ((5, 7, 300), (1, 1, 300))
    x, dy = g.tensor("x", dim=dims), g.tensor("dy", dim=dims)
    scale, bias = g.tensor("scale", dim=own), g.tensor("bias", dim=own)
    training = NormFwdPhase.TRAINING
    if kind == "layer norm":
        y, mean, inverse = g.layernorm(x, scale, bias, epsilon=1e-5, forward_phase=training)
        gradients = g.layernorm_backward(dy, x, scale, mean=mean, inv_variance=inverse)
    elif kind == "batch norm":
        y, mean, inverse, *_ = g.batchnorm(x, scale, bias, epsilon=1e-5)
        gradients = g.batchnorm_backward(dy, x, scale, mean=mean, inv_variance=inverse)
    else:
        y, inverse = g.rmsnorm(x, scale, bias=bias, epsilon=1e-5, forward_phase=training)
        assert inverse is not None
        gradients = g.rmsnorm_backward(dy, x, scale, inverse, compute_dbias=True)
    for tensor in (y, *gradients):
        assert tensor is not None
        tensor.set_output(True)
    return g.validate()


def _pooling_gradient(dtype: DataType) -> Graph:
    g = Graph("pooling", io_data_type=dtype, compute_data_type=DataType.FLOAT)
    window = {"mode": ResampleMode.MAXPOOL, "window": 3, "stride": 2, "padding": 1}
    y, index = g.resample_fwd(g.tensor("x", dim=(2, 8, 15, 15)), generate_index=True, **window)
    y.set_output(True)
    dx = g.resample_bwd(g.tensor("dy", dim=(2, 8, 8, 8)), index=index, **window)
    dx.set_output(True).set_dim((2, 8, 15, 15))
    return g.validate()


def _quantised(y_type: DataType, scale_type: DataType, block: int) -> Graph:
    """Behind a ReLU, 75 columns: the last block is not full."""
    g = Graph("quantised", io_data_type=DataType.HALF, intermediate_data_type=DataType.FLOAT)
    x = g.pointwise(PointwiseMode.RELU_FWD, g.tensor("x", dim=(33, 75)))
    y, scale = g.block_scale_quantize(x, block_size=block)
    y.set_output(True).set_data_type(y_type)
    scale.set_output(True).set_data_type(scale_type)
    return g.validate()


def _scaled_product(dtype: DataType, scale_type: DataType, block: int) -> Graph:
    """Operands dequantised, then multiplied in HALF."""
    m, n, k = 33, 49, 64
    g = Graph("scaled product", io_data_type=DataType.HALF, compute_data_type=DataType.FLOAT)
    a, b = g.tensor("a", dim=(m, k), data_type=dtype), g.tensor("b", dim=(k, n), stride=(1, k), data_type=dtype)
    of_a = g.tensor("scale_a", dim=(m, k // block), data_type=scale_type)
    of_b = g.tensor("scale_b", dim=(k // block, n), data_type=scale_type)
    left = g.block_scale_dequantize(a, of_a, block_size=(1, block)).set_data_type(DataType.HALF)
    right = g.block_scale_dequantize(b, of_b, block_size=(block, 1)).set_data_type(DataType.HALF)
    g.matmul(left, right).set_output(True)
    return g.validate()


def _small_product(left: DataType, right: DataType) -> Graph:
    m, n, k = 33, 49, 75
    g = Graph("small product", io_data_type=DataType.HALF, compute_data_type=DataType.FLOAT)
    a, b = g.tensor("a", dim=(m, k), data_type=left), g.tensor("b", dim=(k, n), stride=(1, k), data_type=right)
    y = g.pointwise(PointwiseMode.MUL, g.matmul(a, b), g.tensor("scale", dim=(1, n), data_type=DataType.FLOAT))
    y.set_output(True).set_data_type(DataType.HALF)
    return g.validate()


def _experts(dtype: DataType, *, backward: bool) -> Graph:
    """Rows of four experts: gathered products with SWISH between them and their sum's parts scattered; or gradients."""
    k, n = 24, 40
    g = Graph("experts", io_data_type=dtype, compute_data_type=DataType.FLOAT)
    offsets = g.tensor("expert_offsets", dim=(_EXPERTS, 1, 1), data_type=DataType.INT32)
    if backward:
        dy, token = g.tensor("dy", dim=(1, _ROWS, n)), g.tensor("token", dim=(1, _ROWS, k))
        g.moe_grouped_matmul_bwd(dy, token, offsets).set_output(True)
        w = g.tensor("w", dim=(_EXPERTS, n, k), stride=(k * n, 1, n))
        g.moe_grouped_matmul(dy, w, offsets).set_output(True)
        return g.validate()
    routing = ("expert_token", "expert_choice")
    index, choice = (g.tensor(name, dim=(1, _ROWS, 1), data_type=DataType.INT32) for name in routing)
    token = g.tensor("token", dim=(1, _ROWS // 2, k))
    up, down = g.tensor("up", dim=(_EXPERTS, k, n)), g.tensor("down", dim=(_EXPERTS, n, k), stride=(k * n, 1, n))
    hidden = g.moe_grouped_matmul(token, up, offsets, index, mode=MoeGroupedMatmulMode.GATHER)
    hidden = g.pointwise(PointwiseMode.SWISH_FWD, hidden)
    scatter = MoeGroupedMatmulMode.SCATTER
    g.moe_grouped_matmul(hidden, down, offsets, index, choice, mode=scatter, top_k=2).set_output(True)
    return g.validate()


def _graphs(images: int, batch: int, sequences: int) -> Iterator[tuple[str, Callable[[], Graph]]]:
    """The graphs, with so many images of convolutions, images of gradients, and sequences."""
    # Shapes of which some came out wrong on one kind of GPU or another, and what else uses matrix instructions.
    yield "conv+bias+ReLU FLOAT", quick
    for dtype in (DataType.FLOAT, *_HALVES):
        of = f" {dtype.name}"
        yield f"conv 1x1+bias+ReLU{of}", lambda d=dtype: _layer(d, (images, 128, 14, 14), (64, 128, 1, 1))
        yield f"conv 1x1+bias+ReLU, 7x7 pixels{of}", lambda d=dtype: _layer(d, (2, 256, 7, 7), (128, 256, 1, 1))
        yield (
            f"conv 1x1+bias+add+ReLU, channels last{of}",
            lambda d=dtype: _layer(d, (images, 64, 14, 14), (128, 64, 1, 1), layout="NHWC", add=True),
        )
        yield f"conv 3x3+bias+ReLU{of}", lambda d=dtype: _layer(d, (2, 32, 15, 15), (48, 32, 3, 3), padding=1)
        for direction in ("dgrad", "wgrad"):
            yield f"{direction}{of}", lambda d=dtype, way=direction: _gradient(d, way, batch)
        for transposed in (False, True):
            name = f"product{', transposed' if transposed else ''}{of}"
            yield name, lambda d=dtype, t=transposed: _product(d, transposed=t, batch=1)
        yield f"batched products{of}", lambda d=dtype: _product(d, transposed=False, batch=3)
        yield f"layer norm{of}", lambda d=dtype: _norm(d)
    for dtype in _HALVES:
        yield f"causal attention {dtype.name}", lambda d=dtype: _attention(d, sequences, sink=False)
        yield f"attention with a sink {dtype.name}", lambda d=dtype: _attention(d, sequences, sink=True)
        yield f"attention and its gradients {dtype.name}", lambda d=dtype: _attention_gradients(d, sequences)
        for backward in (False, True):
            name = f"experts{', gradients' if backward else ''} {dtype.name}"
            yield name, lambda d=dtype, back=backward: _experts(d, backward=back)
    for dtype in (DataType.FLOAT, DataType.HALF):
        for kind in ("batch norm", "layer norm", "RMS norm"):
            yield f"{kind} and its gradients {dtype.name}", lambda d=dtype, k=kind: _norm_gradients(d, k)
    yield "maximum and its gradient HALF", lambda: _pooling_gradient(DataType.HALF)
    for name, kinds in _FORMATS.items():
        yield f"quantised to {name}", lambda k=kinds: _quantised(*k)
        yield f"product of {name}", lambda k=kinds: _scaled_product(*k)
    for left, right in _SMALL_OPERANDS:
        yield f"product {left.name} {right.name}", lambda of=(left, right): _small_product(*of)


GRAPHS = dict(_graphs(16, 4, 2))
"""Name → what makes the graph."""

SMALL = dict(_graphs(2, 2, 1))
"""The same for an emulator. Two images, since one image's last element is the buffer's: what is read behind shows."""
