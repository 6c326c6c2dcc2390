"""Operations through the C functions, against the reference in C that the host brings along."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graph_api import DataType, Graph, NormFwdPhase, PointwiseMode, ReductionMode
from tests.cases import family_cases, sdpa_backward
from tests.fusilli_plugin.plugin.hosting import Session, make_case
from tests.fusilli_plugin.plugin.shapes import attention, conv, matmul, pointwise, reduction, wire_bytes

pytestmark = pytest.mark.iree_cpu
M = PointwiseMode

ONE_INPUT = [
    M.ABS, M.CEIL, M.ELU_FWD, M.ERF, M.EXP, M.FLOOR, M.GELU_APPROX_TANH_FWD, M.GELU_FWD, M.GEN_INDEX, M.IDENTITY,
    M.NEG, M.RELU_FWD, M.SIGMOID_FWD, M.SIN, M.SOFTPLUS_FWD, M.SWISH_FWD, M.TAN, M.TANH_FWD,
]  # fmt: skip
POSITIVE = [M.LOG, M.RECIPROCAL, M.RSQRT, M.SQRT]
TWO_INPUTS = [
    M.ADD, M.ADD_SQUARE, M.DIV, M.MAX, M.MIN, M.MUL, M.SUB, M.ELU_BWD, M.GELU_APPROX_TANH_BWD, M.GELU_BWD, M.RELU_BWD,
    M.SIGMOID_BWD, M.SOFTPLUS_BWD, M.SWISH_BWD, M.TANH_BWD,
]  # fmt: skip
BOOLEAN = [M.CMP_EQ, M.CMP_GE, M.CMP_GT, M.CMP_LE, M.CMP_LT, M.CMP_NEQ, M.LOGICAL_AND, M.LOGICAL_OR]


def check(session: Session, folder: Path, graph: Graph, mode: str = "walk", **options: Any) -> str:
    """Runs the graph through a host; both references must agree with it."""
    data = wire_bytes(graph)
    session.warm(data)
    case = make_case(folder, data, **options)
    said = session.run(mode, case.folder)
    assert re.search(r"^reference [1-9]\d* elements", said, re.MULTILINE), said
    assert case.wrong() == []
    return said


def parameters() -> Graph:
    """Pointwise modes whose parameters are not their defaults."""
    g = Graph("parameters", io_data_type=DataType.FLOAT)
    dy, x = g.tensor("dy", dim=(3, 7)), g.tensor("x", dim=(3, 7))
    clips: dict[str, Any] = {"relu_lower_clip": -0.5, "relu_upper_clip": 0.75, "relu_lower_clip_slope": 0.1}
    made = [
        g.pointwise(M.RELU_FWD, x, **clips),
        g.pointwise(M.RELU_BWD, dy, x, relu_upper_clip=0.75, relu_lower_clip_slope=0.1),
        g.pointwise(M.SWISH_FWD, x, swish_beta=1.5),
        g.pointwise(M.SWISH_BWD, dy, x, swish_beta=1.5),
        g.pointwise(M.ELU_FWD, x, elu_alpha=0.3),
        g.pointwise(M.ELU_BWD, dy, x, elu_alpha=0.3),
        g.pointwise(M.SOFTPLUS_FWD, x, softplus_beta=2.0),
        g.pointwise(M.SOFTPLUS_BWD, dy, x, softplus_beta=2.0),
    ]
    for tensor in made:
        tensor.set_output(True)
    return g.validate()


def booleans() -> Graph:
    """Comparisons, logic, and a choice by a predicate."""
    g = Graph("booleans", io_data_type=DataType.FLOAT)
    a, b = g.tensor("a", dim=(4, 8)), g.tensor("b", dim=(1, 8))
    for mode in BOOLEAN:
        g.pointwise(mode, a, b).set_output(True).set_name(mode.name.lower())
    g.pointwise(M.LOGICAL_NOT, a).set_output(True).set_name("logical_not")
    g.pointwise(M.BINARY_SELECT, a, b, g.pointwise(M.CMP_GT, a, b)).set_output(True).set_name("select")
    return g.validate()


def batchnorm(*, training: bool) -> Graph:
    """A batch normalisation with given or with its own statistics, running ones included."""
    g = Graph("batchnorm", io_data_type=DataType.FLOAT)
    x = g.tensor("x", dim=(2, 3, 4, 5))
    row = {name: g.tensor(name, dim=(1, 3, 1, 1)) for name in ("scale", "bias", "mean", "variance")}
    if not training:
        y = g.batchnorm_inference(x, row["mean"], row["variance"], row["scale"], row["bias"])
        y.set_output(True)
        return g.validate()
    made = g.batchnorm(
        x, row["scale"], row["bias"], epsilon=1e-3, momentum=0.25,
        prev_running_mean=row["mean"], prev_running_variance=row["variance"],
    )  # fmt: skip
    for tensor in made:
        assert tensor is not None
        tensor.set_output(True)
    return g.validate()


def scaled_matmul(*, at_run_time: bool) -> Graph:
    """alpha a b + beta c, the factors baked or handed over with each execution."""
    g = Graph("scaled", io_data_type=DataType.FLOAT)
    a, b, c = (g.tensor(name, dim=dims) for name, dims in (("a", (4, 8)), ("b", (8, 5)), ("c", (4, 5))))
    if at_run_time:
        alpha, beta = (g.tensor(name, dim=(1, 1), is_pass_by_value=True) for name in ("alpha", "beta"))
    else:
        alpha, beta = g.scalar(1.5, name="alpha", rank=2), g.scalar(-0.25, name="beta", rank=2)
    y = g.pointwise(M.ADD, g.pointwise(M.MUL, g.matmul(a, b), alpha), g.pointwise(M.MUL, c, beta))
    y.set_output(True)
    return g.validate()


def rmsnorm() -> Graph:
    g = Graph("rmsnorm", io_data_type=DataType.FLOAT)
    y, inverse = g.rmsnorm(
        g.tensor("x", dim=(3, 4)), g.tensor("scale", dim=(1, 4)), epsilon=1e-5, forward_phase=NormFwdPhase.TRAINING
    )
    y.set_output(True)
    assert inverse is not None
    inverse.set_output(True)
    return g.validate()


FAST: dict[str, Callable[[], Graph]] = {
    "conv+bias+relu-nchw": lambda: conv((2, 4, 6, 5), (6, 4, 3, 3), bias=True, relu=True, padding=1),
    "conv-groups-stride-dilation-nhwc": lambda: conv(
        (2, 6, 9, 8), (4, 3, 3, 2), layout="nhwc", padding=1, stride=2, dilation=2
    ),
    "dgrad-groups-stride": lambda: conv((1, 4, 7, 6), (6, 2, 3, 3), direction="dgrad", padding=1, stride=2),
    "wgrad-dilation-nhwc": lambda: conv(
        (2, 3, 8, 7), (4, 3, 3, 3), direction="wgrad", layout="nhwc", padding=1, dilation=2
    ),
    "batchnorm-training": lambda: batchnorm(training=True),
    "pointwise-parameters": parameters,
    "matmul-batched-transposed": lambda: matmul((2, 4, 8), (2, 8, 5), transposed=True),
    "attention-grouped-causal": lambda: attention((1, 4, 6, 8), (1, 2, 6, 8), (1, 2, 6, 8), causal_mask=True),
    "reductions": lambda: reduction([mode for mode in ReductionMode if not mode.name.startswith("MUL")]),
    "runtime-scalars": lambda: scaled_matmul(at_run_time=True),
}
GRADIENTS: dict[str, Graph] = {
    "grouped-causal": sdpa_backward.graph((1, 4, 2, 1, 6, 6, 8, 5), causal_mask=True),
    "mask": sdpa_backward.graph((2, 2, 2, 2, 5, 7, 8, 4), bias=(2, 1, 5, 7), scale=0.3),
}
NOT_IN_C = [
    ("sdpa_backward", "bias_full"), ("sdpa_backward", "lengths"), ("sdpa_backward", "dropout"), ("sdpa", "alibi"),
    ("sdpa", "dropout_full"), ("sdpa", "blocks_small"), ("sdpa", "paged_gaps"), ("sdpa", "paged_outside"),
]  # fmt: skip
"""Options of attention that the host's reference lacks."""
SLOW: dict[str, Callable[[], Graph]] = {
    "conv+bias+relu-nhwc": lambda: conv((2, 4, 6, 5), (6, 4, 3, 3), layout="nhwc", bias=True, relu=True, padding=1),
    "conv-asymmetric-padding": lambda: conv((1, 3, 6, 7), (2, 3, 3, 2), pre_padding=(2, 0), post_padding=(0, 1)),
    "conv-1d": lambda: conv((2, 4, 11), (6, 2, 3), stride=2, padding=1),
    "conv-3d": lambda: conv((1, 2, 4, 5, 3), (3, 2, 2, 2, 2), dilation=(1, 2, 1)),
    "dgrad-nhwc": lambda: conv((2, 3, 6, 5), (4, 3, 3, 3), direction="dgrad", layout="nhwc", padding=1),
    "wgrad-groups-stride": lambda: conv((2, 4, 7, 6), (4, 2, 3, 3), direction="wgrad", padding=1, stride=2),
    "batchnorm-inference": lambda: batchnorm(training=False),
    "pointwise-one-input": lambda: pointwise(ONE_INPUT, 1),
    "pointwise-two-inputs": lambda: pointwise(TWO_INPUTS, 2),
    "pointwise-booleans": booleans,
    "matmul-half": lambda: matmul((4, 8), (8, 5), dtype=DataType.HALF, activation=M.RELU_FWD),
    "attention-mask": lambda: attention((2, 2, 5, 8), (2, 2, 7, 8), (2, 2, 7, 4), mask=True),
    "attention-scale-bf16": lambda: attention(
        (1, 2, 5, 8), (1, 2, 5, 8), (1, 2, 5, 8), dtype=DataType.BFLOAT16, attn_scale=0.3
    ),
    "products": lambda: reduction([ReductionMode.MUL, ReductionMode.MUL_NO_ZEROS], (4, 8), (4, 1)),
    "compile-time-scalars": lambda: scaled_matmul(at_run_time=False),
    "rmsnorm-statistics": rmsnorm,
}


TRAINED = [
    ("norm_backward", "batchnorm_relu"),
    ("resample_backward", "overlapping_max"),
    ("moe", "scatter"),
    ("norm_backward", "batchnorm_f16_nhwc_recomputed"),
    ("norm_backward", "layernorm_recomputed"),
    ("norm_backward", "layernorm_f16"),
    ("norm_backward", "rmsnorm_bf16"),
    ("resample_backward", "half_nhwc_avg_exclude"),
    ("resample_backward", "recomputed_max"),
    ("resample", "plain_max"),
    ("moe", "routing_outside"),
    ("moe", "gather_f16"),
    ("moe", "backward_f16"),
]
"""Gradients and routed rows, (family, case), judged by the graph's own reference alone."""


@pytest.mark.a_few("matmul-batched-transposed", "conv-groups-stride-dilation-nhwc", "reductions")
@pytest.mark.parametrize("name", [*FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_an_operation(session: Session, tmp_path: Path, name: str) -> None:
    check(session, tmp_path / "case", (FAST | SLOW)[name]())


@pytest.mark.a_few("grouped-causal")
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_of_attention(session: Session, tmp_path: Path, name: str) -> None:
    graph = GRADIENTS[name].validate()
    arrays = sdpa_backward.inputs()(graph)
    inputs = {tensor.name: array for tensor, array in arrays.items()}
    check(session, tmp_path / "case", graph, inputs=inputs)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("family", "name"), [NOT_IN_C[0], *(pytest.param(*each, marks=pytest.mark.slow) for each in NOT_IN_C[1:])]
)
def test_options_of_attention(session: Session, tmp_path: Path, family: str, name: str) -> None:
    check_alone(session, tmp_path / "case", family, name)


def check_alone(session: Session, folder: Path, family: str, name: str) -> None:
    """Runs a case of the tables, judged by the graph's own reference alone."""
    case = next(case for case in family_cases(family) if case.name == name)
    graph = case.graph()
    data = wire_bytes(graph)
    session.warm(data)
    made = make_case(folder, data, inputs={t.name: array for t, array in case.pack(graph).items()})
    (made.folder / "reference").unlink()
    session.run("walk", made.folder)
    assert made.wrong() == []


@pytest.mark.a_few("norm_backward-batchnorm_relu")
@pytest.mark.parametrize(
    ("family", "name"), [*TRAINED[:3], *(pytest.param(*each, marks=pytest.mark.slow) for each in TRAINED[3:])]
)
def test_gradients_and_experts(session: Session, tmp_path: Path, family: str, name: str) -> None:
    check_alone(session, tmp_path / "case", family, name)


@pytest.mark.slow
def test_pointwise_modes_of_positive_numbers(session: Session, tmp_path: Path) -> None:
    values = np.random.default_rng(1).uniform(0.5, 4.0, (4, 8))
    check(session, tmp_path / "case", pointwise(POSITIVE, 1), inputs={"in_0": values})


def test_every_mode_is_in_a_test() -> None:
    ours = {*ONE_INPUT, *POSITIVE, *TWO_INPUTS, *BOOLEAN, M.LOGICAL_NOT, M.BINARY_SELECT}
    assert set(PointwiseMode) == ours


def test_the_reference_of_the_host_sees_a_wrong_element(session: Session, tmp_path: Path) -> None:
    """What judges the results must be able to fail."""
    data = wire_bytes(matmul((4, 8), (8, 5)))
    session.warm(data)
    case = make_case(tmp_path, data, allowed=1e-12)
    done = session.start("walk", case.folder)
    assert done.returncode == 1
    assert "the reference says" in done.stderr
