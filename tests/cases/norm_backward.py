"""Gradients of normalisations: saved and recomputed statistics, dtypes, layouts, activations in front and behind."""

from __future__ import annotations

from typing import Any

import numpy as np

from graph_api import DataType, Graph, PointwiseMode, TensorAttr
from tests.cases import OpCase, Pack

D, M = DataType, PointwiseMode
Dims = tuple[int, ...]
_TYPES = {
    "f32": (D.FLOAT, D.FLOAT),
    "f16": (D.HALF, D.FLOAT),
    "bf16": (D.BFLOAT16, D.FLOAT),
    "f16_all": (D.HALF, D.HALF),
    "f64": (D.DOUBLE, D.DOUBLE),
}


def _results(parameters: DataType, dx: TensorAttr, *others: TensorAttr | None) -> None:
    dx.set_output(True).set_name("dx")
    for name, tensor in zip(("dscale", "dbias"), others, strict=True):
        if tensor is not None:
            tensor.set_output(True).set_name(name).set_data_type(parameters)


def batchnorm_graph(
    dims: Dims,
    dtype: DataType = D.FLOAT,
    parameters: DataType = D.FLOAT,
    *,
    saved: bool = True,
    layout: str | None = None,
    stride: Dims | None = None,
    out_stride: Dims | None = None,
    activation: PointwiseMode | None = None,
    residual: bool = False,
    peers: int = 0,
    **options: Any,
) -> Graph:
    """One gradient; ``activation``: behind a batch norm in inference and this mode, as AMD's library fuses it."""
    g = Graph("batchnorm_backward", io_data_type=dtype)
    channel = (1, dims[1], *(1 for _ in dims[2:]))
    dy, x = (g.tensor(name, dim=dims, layout=layout, stride=stride) for name in ("dy", "x"))

    def per_channel(name: str) -> TensorAttr:
        return g.tensor(name, dim=channel, data_type=parameters)

    scale = per_channel("scale")
    if saved:
        options |= {name: per_channel(name) for name in ("mean", "inv_variance")}
    if activation is not None:
        y = g.batchnorm_inference(x, options["mean"], options["inv_variance"], scale, per_channel("bias"))
        dy = g.pointwise(activation, dy, y)
    options["peer_stats"] = [per_channel(f"peer_{index}") for index in range(peers)]
    dx, *rest = g.batchnorm_backward(dy, x, scale, **options)
    if residual:
        dx = g.pointwise(M.ADD, dx, g.tensor("residual", dim=dims, layout=layout, stride=stride))
    _results(parameters, dx, *rest)
    if out_stride is not None:
        dx.set_stride(out_stride)
    return g


def trailing_graph(
    op: str,
    dims: Dims,
    count: int,
    dtype: DataType = D.FLOAT,
    parameters: DataType = D.FLOAT,
    *,
    saved: bool = True,
    stride: Dims | None = None,
    out_stride: Dims | None = None,
    short: bool = False,
    dbias: bool = True,
    epsilon: float | DataType | None = 1e-5,
    activation: PointwiseMode | None = None,
    **options: Any,
) -> Graph:
    """The gradient of a layer norm or RMS norm over ``count`` trailing dims; ``activation`` stands in front."""
    g = Graph(op, io_data_type=dtype)
    dy, x = (g.tensor(name, dim=dims, stride=stride) for name in ("dy", "x"))
    lead = len(dims) - count
    scale = g.tensor("scale", dim=dims[lead:] if short else (1,) * lead + dims[lead:], data_type=parameters)
    stats, wide = dims[:lead] + (1,) * count, D.DOUBLE if dtype is D.DOUBLE else D.FLOAT
    if activation is not None:
        dy = g.pointwise(activation, dy, g.tensor("y", dim=dims))
    if op == "layernorm":
        if saved:
            options |= {name: g.tensor(name, dim=stats, data_type=wide) for name in ("mean", "inv_variance")}
        number = g.tensor("epsilon", dim=(1,), data_type=epsilon) if isinstance(epsilon, DataType) else epsilon
        results = g.layernorm_backward(dy, x, scale, epsilon=number, **options)
    else:
        inverse = g.tensor("inv_rms", dim=stats, data_type=wide)
        results = g.rmsnorm_backward(dy, x, scale, inverse, compute_dbias=dbias, **options)
    _results(parameters, *results)
    if out_stride is not None:
        results[0].set_stride(out_stride)
    return g


def _inputs(shift: float = 0.0) -> Any:
    """Random inputs, x moved by ``shift``; saved statistics are those of x, up to their rounding."""

    def inputs(g: Graph) -> Pack:
        pack = g.random_inputs(seed=6)
        named = {tensor.name: array for tensor, array in pack.items()}
        named["x"][...] = (named["x"].astype(np.float64) + shift).astype(named["x"].dtype)
        if "epsilon" in named:
            named["epsilon"][...] = 1e-3
        x = named["x"].astype(np.float64)
        stats = next((named[name] for name in ("mean", "inv_rms") if name in named), None)
        if stats is not None:
            axes = tuple(axis for axis, dim in enumerate(stats.shape) if dim == 1)
            mean = x.mean(axes, keepdims=True) if "mean" in named else np.zeros(stats.shape)
            inverse = 1 / np.sqrt(((x - mean) ** 2).mean(axes, keepdims=True) + 1e-5)
            for name, value in (("mean", mean), ("inv_variance", inverse), ("inv_rms", inverse)):
                if name in named:
                    named[name][...] = value.astype(named[name].dtype)
        return pack

    return inputs


def _batch(name: str, dims: Dims, *types: DataType, shift: float = 0.0, **options: Any) -> OpCase:
    case = {key: options.pop(key) for key in ("fast", "declined", "note") if key in options}
    return OpCase(f"batchnorm_{name}", lambda: batchnorm_graph(dims, *types, **options), _inputs(shift),
                  {"dx": dims, "dscale": (1, dims[1], *(1 for _ in dims[2:]))}, **case)  # fmt: skip


def _trailing(
    name: str, op: str, dims: Dims, count: int, *types: DataType, shift: float = 0.0, **options: Any
) -> OpCase:
    case = {key: options.pop(key) for key in ("fast", "note") if key in options}
    return OpCase(f"{op}_{name}", lambda: trailing_graph(op, dims, count, *types, **options), _inputs(shift),
                  {"dx": dims}, **case)  # fmt: skip


def _batch_cases() -> list[OpCase]:
    dims = (2, 3, 4, 5)
    typed = [
        _batch(f"{name}_{layout.lower()}_{'saved' if saved else 'recomputed'}", dims, *types, layout=layout,
               saved=saved, fast=name == "f16" and (layout == "NHWC") == saved)
        for name, types in _TYPES.items()
        for layout in ("NCHW", "NHWC")
        for saved in (True, False)
    ]  # fmt: skip
    ranked = [
        _batch(f"{'x'.join(map(str, shape))}{'' if saved else '_recomputed'}", shape, saved=saved)
        for shape in ((8, 5), (4, 3, 7), (2, 3, 2, 3, 4), (1, 6, 5, 5), (4, 1, 5, 5), (1, 3, 1, 1), (5, 1, 1, 1))
        for saved in (True, False)
    ]
    peers = dict.fromkeys(("llvm-cpu", "rocm", "cuda"), "peer_stats")
    return [
        *typed,
        *ranked,
        _batch("padded", dims, stride=(192, 64, 16, 2), out_stride=(240, 80, 20, 4)),
        _batch("permuted", dims, stride=(1, 2, 30, 6), out_stride=(60, 20, 5, 1)),
        _batch("stride_0", dims, stride=(60, 20, 0, 1), out_stride=(60, 20, 5, 1)),
        _batch("i8", dims, D.INT8),
        _batch("in_f64", dims, D.FLOAT, D.DOUBLE, compute_data_type=D.DOUBLE),
        _batch("shifted", (4, 3, 6, 6), shift=300.0, note="the difference from a mean of 300"),
        _batch("shifted_recomputed", (4, 3, 6, 6), shift=300.0, saved=False, note="two passes"),
        _batch("relu", dims, D.HALF, layout="NHWC", activation=M.RELU_BWD, fast=True, note="AMD's pattern of three"),
        _batch("relu_f32", dims, activation=M.RELU_BWD),
        _batch("swish", dims, D.BFLOAT16, activation=M.SWISH_BWD),
        _batch("residual", dims, D.HALF, layout="NHWC", activation=M.RELU_BWD, residual=True),
        _batch("large", (8, 8, 20, 20), D.HALF, layout="NHWC", note="sums of thousands"),
        _batch("peers", dims, peers=2, fast=True, declined=peers),
    ]


def _trailing_cases() -> list[OpCase]:
    shapes: list[tuple[Dims, int]] = [
        ((5, 33), 1), ((2, 3, 4, 5), 3), ((2, 3, 4, 5), 2), ((1, 3, 4, 5), 3), ((4, 1), 1), ((3, 2, 5), 2),
        ((1, 64), 1),
    ]  # fmt: skip
    both = [
        case
        for op in ("layernorm", "rmsnorm")
        for case in (
            *(_trailing(name, op, (4, 6, 8), 1, *types, fast=name == "f16") for name, types in _TYPES.items()),
            *(_trailing(f"{'x'.join(map(str, dims))}_{count}", op, dims, count) for dims, count in shapes),
            _trailing("permuted", op, (4, 6, 8), 1, stride=(1, 4, 24), out_stride=(48, 1, 6)),
            _trailing("padded", op, (4, 6, 8), 1, stride=(96, 16, 2), out_stride=(64, 8, 1)),
            _trailing("stride_0", op, (4, 6, 8), 1, stride=(0, 8, 1), out_stride=(48, 8, 1)),
            _trailing("long", op, (3, 5000), 1, D.HALF, D.FLOAT),
            _trailing("many_rows", op, (1500, 12), 1, D.HALF, D.HALF),
            _trailing("llama_bf16", op, (2, 4, 4096), 1, D.BFLOAT16, D.BFLOAT16),
            _trailing("gelu", op, (4, 6, 8), 1, D.HALF, activation=M.GELU_BWD),
            _trailing("shifted", op, (3, 48), 1, shift=300.0),
        )
    ]
    return [
        *both,
        _trailing("recomputed", "layernorm", (4, 6, 8), 1, saved=False, fast=True),
        _trailing("recomputed_f16", "layernorm", (4, 6, 64), 1, D.HALF, D.FLOAT, saved=False),
        _trailing("recomputed_5000", "layernorm", (3, 5000), 1, D.HALF, D.FLOAT, saved=False),
        _trailing("recomputed_shifted", "layernorm", (3, 48), 1, saved=False, shift=300.0, note="two passes"),
        _trailing("epsilon_input", "layernorm", (4, 6, 8), 1, saved=False, epsilon=D.FLOAT),
        _trailing("epsilon_unread", "layernorm", (4, 6, 8), 1, epsilon=D.FLOAT),
        _trailing("no_epsilon", "layernorm", (4, 6, 8), 1, epsilon=None),
        _trailing("short", "layernorm", (4, 6, 8), 2, short=True, fast=True),
        _trailing("count", "layernorm", (4, 6, 8), 2, normalized_dim_count=2),
        _trailing("everything", "layernorm", (6, 8), 2, normalized_dim_count=2),
        _trailing("rank_1", "layernorm", (24,), 1),
        _trailing("no_dbias", "rmsnorm", (4, 6, 8), 1, dbias=False, fast=True),
        _trailing("i8", "rmsnorm", (4, 6, 8), 1, D.INT8),
    ]


CASES = [*_batch_cases(), *_trailing_cases()]
