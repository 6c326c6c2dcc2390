"""Normalisations: batch, layer and RMS norm; dtypes, layouts, statistics, hard values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from graph_api import DataType, Graph, InvVarianceReading, NormFwdPhase, PointwiseMode, TensorAttr
from tests.cases import OpCase, Pack

D = DataType
TRAINING, INFERENCE = NormFwdPhase.TRAINING, NormFwdPhase.INFERENCE
Dims = tuple[int, ...]
_TYPES = {
    "f32": (D.FLOAT, D.FLOAT),
    "f16": (D.HALF, D.FLOAT),
    "bf16": (D.BFLOAT16, D.FLOAT),
    "f16_all": (D.HALF, D.HALF),
    "bf16_all": (D.BFLOAT16, D.BFLOAT16),
    "f64": (D.DOUBLE, D.DOUBLE),
}


def _results(stats_type: DataType, **named: TensorAttr | None) -> None:
    for name, tensor in named.items():
        if tensor is not None:
            tensor.set_output(True).set_name(name)
            if name != "y":
                tensor.set_data_type(stats_type)


def batchnorm_graph(
    op: str,
    dims: Dims,
    dtype: DataType = D.FLOAT,
    parameters: DataType = D.FLOAT,
    *,
    layout: str | None = None,
    stride: Dims | None = None,
    running: bool = False,
    stats: bool = True,
    epsilon: float | DataType = 1e-5,
    momentum: float | DataType = 0.1,
    peers: int = 0,
    relu: bool = False,
    **options: Any,
) -> Graph:
    """One batch normalisation; ``op`` is the builder method. A DataType as number makes it an input of one element."""
    g = Graph(op, io_data_type=dtype)
    channel = (1, dims[1], *(1 for _ in dims[2:]))
    x = g.tensor("x", dim=dims, layout=layout, stride=stride)

    def per_channel(name: str) -> TensorAttr:
        return g.tensor(name, dim=channel, data_type=parameters)

    def number(value: float | DataType, name: str) -> TensorAttr | float:
        return g.tensor(name, dim=channel[:1] * len(dims), data_type=value) if isinstance(value, DataType) else value

    if op == "batchnorm":
        scale, bias = per_channel("scale"), per_channel("bias")
        if running:
            options |= {
                "prev_running_mean": per_channel("prev_mean"),
                "prev_running_variance": per_channel("prev_variance"),
                "momentum": number(momentum, "momentum"),
            }
        options["peer_stats"] = [per_channel(f"peer_{index}") for index in range(peers)]
        y, *rest = g.batchnorm(x, scale, bias, epsilon=number(epsilon, "epsilon"), **options)
        names = ("mean", "inv_variance", "next_mean", "next_variance")
        _results(parameters, **(dict(zip(names, rest, strict=True)) if stats else {}))
    else:
        third = "variance" if op.endswith("ext") else "inv_variance"
        tensors = [x, *(per_channel(name) for name in ("mean", third, "scale", "bias"))]
        if op.endswith("ext"):
            options["epsilon"] = number(epsilon, "epsilon")
        y = getattr(g, op)(*tensors, **options)
    _results(parameters, y=g.pointwise(PointwiseMode.RELU_FWD, y) if relu else y)
    return g


def trailing_graph(
    op: str,
    dims: Dims,
    count: int,
    dtype: DataType = D.FLOAT,
    parameters: DataType = D.FLOAT,
    phase: NormFwdPhase = INFERENCE,
    *,
    stride: Dims | None = None,
    out_stride: Dims | None = None,
    out: DataType | None = None,
    short: bool = False,
    bias: bool = True,
    epsilon: float | DataType = 1e-5,
    **options: Any,
) -> Graph:
    """A layer norm or RMS norm over ``count`` trailing dims; ``short``: scale and bias have these dims alone."""
    g = Graph(op, io_data_type=dtype)
    x = g.tensor("x", dim=dims, stride=stride)
    lead = len(dims) - count
    affine = dims[lead:] if short else (1,) * lead + dims[lead:]
    eps = g.tensor("epsilon", dim=(1,), data_type=epsilon) if isinstance(epsilon, DataType) else epsilon
    scale = g.tensor("scale", dim=affine, data_type=parameters)
    shift = g.tensor("bias", dim=affine, data_type=parameters) if bias else None
    if op == "layernorm":
        assert shift is not None
        y, mean, inverse = g.layernorm(x, scale, shift, epsilon=eps, forward_phase=phase, **options)
        _results(parameters, y=y, mean=mean, inv_variance=inverse)
    else:
        y, inverse = g.rmsnorm(x, scale, epsilon=eps, forward_phase=phase, bias=shift, **options)
        _results(parameters, y=y, inv_rms=inverse)
    if out_stride is not None:
        y.set_stride(out_stride)
    if out is not None:
        y.set_data_type(out)
    return g


def _inputs(make: Callable[[Any], Any] | None = None) -> Callable[[Graph], Pack]:
    """Random inputs; variances and numbers are positive, ``make`` changes x."""

    def inputs(g: Graph) -> Pack:
        pack = g.random_inputs(seed=4)
        for tensor, array in pack.items():
            if "variance" in tensor.name:
                array[...] = np.abs(array) + array.dtype.type(0.1)
            elif tensor.name in ("epsilon", "momentum"):
                array[...] = array.dtype.type({"epsilon": 1e-3, "momentum": 0.25}[tensor.name])
            elif tensor.name == "x" and make is not None:
                array[...] = np.asarray(make(array)).astype(array.dtype)
        return pack

    return inputs


def _batch(
    name: str,
    op: str,
    dims: Dims,
    *types: DataType,
    fast: bool = False,
    make: Any = None,
    note: str = "",
    declined: Any = None,
    **options: Any,
) -> OpCase:
    return OpCase(
        name, lambda: batchnorm_graph(op, dims, *types, **options), _inputs(make), {"y": dims}, fast, declined, note
    )


def _trailing(
    name: str,
    op: str,
    dims: Dims,
    count: int,
    *types: Any,
    fast: bool = False,
    make: Any = None,
    note: str = "",
    **options: Any,
) -> OpCase:
    return OpCase(
        name, lambda: trailing_graph(op, dims, count, *types, **options), _inputs(make), {"y": dims}, fast, note=note
    )


_VARIANCE = "batchnorm_inference_variance_ext"
_SHORT_OP = {"batchnorm_inference": "inference", _VARIANCE: "variance", "batchnorm": "training"}


def _batch_cases() -> list[OpCase]:
    typed = [
        _batch(
            f"{short}_{name}_{layout.lower()}",
            op,
            (2, 3, 4, 5),
            *types,
            layout=layout,
            running=op == "batchnorm",
            fast=name == "f16" and layout == "NHWC",
        )
        for op, short in _SHORT_OP.items()
        for name, types in _TYPES.items()
        for layout in (("NCHW", "NHWC") if name in ("f32", "f16") else ("NCHW",))
    ]
    ranked = [
        _batch(f"{short}_{'x'.join(map(str, dims))}", op, dims, running=op == "batchnorm")
        for op, short in _SHORT_OP.items()
        for dims in ((8, 5), (4, 3, 7), (2, 3, 2, 3, 4), (1, 6, 5, 5), (4, 1, 5, 5))
    ]
    return [*typed, *ranked]


def _batch_options() -> list[OpCase]:
    def shifted(x: Any) -> Any:
        return x.astype(np.float64) + 300

    return [
        _batch(
            "inference_read_as_variance",
            "batchnorm_inference",
            (2, 3, 4, 5),
            fast=True,
            inv_variance_reading=InvVarianceReading.VARIANCE,
        ),
        _batch("inference_relu", "batchnorm_inference", (2, 3, 4, 5), D.HALF, layout="NHWC", relu=True, fast=True),
        _batch("inference_in_f64", "batchnorm_inference", (2, 3, 4, 5), D.FLOAT, D.DOUBLE, compute_data_type=D.DOUBLE),
        _batch("inference_i8", "batchnorm_inference", (2, 3, 4, 5), D.INT8),
        _batch("inference_padded", "batchnorm_inference", (2, 3, 4, 5), stride=(192, 64, 16, 2)),
        _batch("inference_permuted", "batchnorm_inference", (2, 3, 4, 5), stride=(1, 2, 30, 6)),
        _batch("inference_stride_0", "batchnorm_inference", (2, 3, 4, 5), stride=(60, 20, 0, 1)),
        _batch("variance_epsilon_input", _VARIANCE, (2, 3, 4, 5), epsilon=D.FLOAT),
        _batch("variance_epsilon_large", _VARIANCE, (2, 3, 4, 5), epsilon=0.5),
        _batch("training_only_y", "batchnorm", (4, 3, 5, 5), stats=False, fast=True),
        _batch("training_stats", "batchnorm", (4, 3, 5, 5), D.HALF, running=False),
        _batch("training_inputs", "batchnorm", (4, 3, 5, 5), running=True, epsilon=D.FLOAT, momentum=D.FLOAT),
        _batch("training_momentum_1", "batchnorm", (4, 3, 5, 5), running=True, momentum=1.0),
        _batch("training_one_element", "batchnorm", (1, 3, 1, 1), running=True, note="no correction of the variance"),
        _batch("training_relu", "batchnorm", (4, 3, 5, 5), D.BFLOAT16, relu=True, layout="NHWC"),
        _batch("training_shifted", "batchnorm", (4, 3, 6, 6), running=True, make=shifted, note="two passes"),
        _batch("training_shifted_f16", "batchnorm", (4, 3, 6, 6), D.HALF, D.FLOAT, make=shifted),
        _batch("training_constant", "batchnorm", (4, 3, 4, 4), make=lambda x: np.full(x.shape, 7.0), fast=True),
        _batch("training_large", "batchnorm", (8, 4, 20, 20), D.HALF, D.FLOAT, layout="NHWC", running=True, fast=True),
        _batch(
            "training_peers",
            "batchnorm",
            (4, 3, 5, 5),
            peers=2,
            fast=True,
            declined={"llvm-cpu": "peer_stats", "rocm": "peer_stats", "cuda": "peer_stats"},
        ),
    ]


def _trailing_cases() -> list[OpCase]:
    typed = [
        _trailing(
            f"{op}_{name}_{phase.name.lower()}",
            op,
            (4, 6, 8),
            1,
            *types,
            phase,
            fast=name == "f16" and phase is TRAINING,
        )
        for op in ("layernorm", "rmsnorm")
        for name, types in _TYPES.items()
        for phase in (INFERENCE, TRAINING)
    ]
    shapes: list[tuple[Dims, int]] = [
        ((5, 33), 1),
        ((2, 3, 4, 5), 3),
        ((2, 3, 4, 5), 2),
        ((1, 3, 4, 5), 3),
        ((4, 1), 1),
        ((3, 2, 5), 2),
    ]
    ranked = [
        _trailing(f"{op}_{'x'.join(map(str, dims))}_{count}", op, dims, count, D.FLOAT, D.FLOAT, TRAINING)
        for op in ("layernorm", "rmsnorm")
        for dims, count in shapes
    ]
    return [*typed, *ranked]


def _trailing_options() -> list[OpCase]:
    def shifted(x: Any) -> Any:
        return x.astype(np.float64) + 300

    def constant(x: Any) -> Any:
        return np.full(x.shape, 0.3)

    types = (D.FLOAT, D.FLOAT, TRAINING)
    cases = [
        _trailing("layernorm_short", "layernorm", (4, 6, 8), 2, short=True, fast=True),
        _trailing("layernorm_count", "layernorm", (4, 6, 8), 2, normalized_dim_count=2),
        _trailing("layernorm_everything", "layernorm", (6, 8), 2, *types, normalized_dim_count=2),
        _trailing("layernorm_rank_1", "layernorm", (24,), 1, *types),
        _trailing(
            "layernorm_constant", "layernorm", (3, 48), 1, *types, make=constant, fast=True, note="gives the bias"
        ),
        _trailing("layernorm_constant_f16", "layernorm", (3, 48), 1, D.HALF, D.FLOAT, TRAINING, make=constant),
        _trailing("layernorm_shifted", "layernorm", (3, 48), 1, *types, make=shifted, note="two passes"),
        _trailing("layernorm_shifted_f16", "layernorm", (3, 48), 1, D.HALF, D.FLOAT, TRAINING, make=shifted),
        _trailing("layernorm_long_f16", "layernorm", (3, 5000), 1, D.HALF, D.FLOAT, TRAINING),
        _trailing("layernorm_i8", "layernorm", (4, 6, 8), 1, D.INT8, D.FLOAT),
        _trailing("layernorm_i4", "layernorm", (4, 6, 8), 1, D.INT4, D.FLOAT, out=D.FLOAT),
        _trailing("rmsnorm_i4_odd", "rmsnorm", (3, 5, 7), 1, D.INT4, D.FLOAT, out=D.HALF),
        _trailing("rmsnorm_no_bias", "rmsnorm", (4, 6, 8), 1, bias=False, fast=True),
        _trailing(
            "rmsnorm_300_f16",
            "rmsnorm",
            (3, 64),
            1,
            D.HALF,
            D.HALF,
            TRAINING,
            make=shifted,
            fast=True,
            note="squares exceed f16",
        ),
        _trailing("rmsnorm_zero_row", "rmsnorm", (3, 64), 1, *types, make=np.zeros_like),
        _trailing("rmsnorm_llama_bf16", "rmsnorm", (2, 4, 4096), 1, D.BFLOAT16, D.BFLOAT16, bias=False),
        _trailing("rmsnorm_decode_f16", "rmsnorm", (1, 1, 4096), 1, D.HALF, D.HALF, bias=False),
        _trailing("layernorm_bert", "layernorm", (2, 8, 768), 1, D.FLOAT, D.FLOAT, epsilon=1e-12),
    ]
    laid_out = [
        _trailing(f"{op}_{name}", op, (4, 6, 8), 1, stride=stride, out_stride=out)
        for op in ("layernorm", "rmsnorm")
        for name, stride, out in (
            ("permuted", (1, 4, 24), (48, 1, 6)),
            ("padded", (96, 16, 2), (64, 8, 1)),
            ("stride_0", (0, 8, 1), None),
        )
    ]
    numbers = [_trailing(f"{op}_epsilon_input", op, (4, 6, 8), 1, epsilon=D.FLOAT) for op in ("layernorm", "rmsnorm")]
    return [*cases, *laid_out, *numbers]


CASES = [*_batch_cases(), *_batch_options(), *_trailing_cases(), *_trailing_options()]
