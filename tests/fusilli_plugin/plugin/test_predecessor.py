"""The test cases of the C++ provider that this one replaces: shapes, layouts and answers that its users rely on.

Integration cases run on the CPU here, in a C host and against its reference; the f32 tolerance is that provider's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graph_api import CustomOpAttributes, DataType, Graph, NormFwdPhase, PointwiseMode, ReductionMode
from hipdnn_backend import wire
from hipdnn_backend.wire import decode_graph
from tests.cases.custom_op import ADD
from tests.fusilli_plugin.plugin.hosting import GRAPHS, Session, make_case
from tests.fusilli_plugin.plugin.shapes import attention, conv, matmul, nhwc, pointwise, reduction, wire_bytes
from tests.fusilli_plugin.plugin.test_operations import scaled_matmul

pytestmark = pytest.mark.iree_cpu
M = PointwiseMode
Build = Callable[[], Graph]
Dims = tuple[int, ...]
LARGE = ((16, 128, 64, 64), (256, 128, 1, 1))
NORMS = {"f32-2x4": (2, 4), "f32-3x4": (3, 4)}

CONVS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "1x1": ((1, 16, 16, 16), (1, 16, 1, 1), {}),
    "3x3": ((1, 16, 16, 16), (1, 16, 3, 3), {}),
    "3x3-pad1": ((1, 16, 16, 16), (1, 16, 3, 3), {"padding": 1}),
    "3x3-pad1-stride2": ((1, 16, 16, 16), (1, 16, 3, 3), {"padding": 1, "stride": 2}),
    "3x3-pad2-dilation2": ((1, 16, 16, 16), (1, 16, 3, 3), {"padding": 2, "dilation": 2}),
    "batch8-1x1": ((8, 16, 16, 16), (1, 16, 1, 1), {}),
    "16x8-3x3-pad1": ((1, 16, 16, 8), (1, 16, 3, 3), {"padding": 1}),
    "groups2-3x3-pad1": ((1, 16, 16, 16), (2, 8, 3, 3), {"padding": 1}),
    "groups4-3x3-pad1-stride2-dilation2": (
        (2, 32, 16, 16), (4, 8, 3, 3), {"padding": 1, "stride": 2, "dilation": 2},
    ),
}  # fmt: skip
MATMULS: dict[str, Build] = {
    "4x8x5": lambda: matmul((4, 8), (8, 5)),
    "batch2": lambda: matmul((2, 4, 8), (2, 8, 5)),
    "transposed-b": lambda: matmul((4, 8), (8, 5), transposed=True),
    "bias-1xN": lambda: matmul((4, 8), (8, 5), bias=(1, 5)),
    "bias-MxN": lambda: matmul((4, 8), (8, 5), bias=(4, 5)),
    "batch2-bias-1x1xN": lambda: matmul((2, 4, 8), (2, 8, 5), bias=(1, 1, 5)),
    "batch2-bias-Bx1xN": lambda: matmul((2, 4, 8), (2, 8, 5), bias=(2, 1, 5)),
    "batch2-bias-BxMxN": lambda: matmul((2, 4, 8), (2, 8, 5), bias=(2, 4, 5)),
    "scaled-accumulate": lambda: scaled_matmul(at_run_time=False),
}


def rmsnorm(
    dims: tuple[int, ...], phase: NormFwdPhase = NormFwdPhase.INFERENCE, dtype: DataType = DataType.FLOAT
) -> Graph:
    g = Graph("rmsnorm", io_data_type=dtype)
    outputs = g.rmsnorm(
        g.tensor("x", dim=dims), g.tensor("scale", dim=(1, *dims[1:])), epsilon=1e-5, forward_phase=phase
    )
    for tensor in outputs:
        if tensor is not None:
            tensor.set_output(True)
    return g.validate()


def custom_add() -> Graph:
    g = Graph("custom", io_data_type=DataType.FLOAT)
    a, b = g.tensor("a", dim=(4,)), g.tensor("b", dim=(4,))
    (y,) = g.custom_op([a, b], 1, CustomOpAttributes(custom_op_id="fusilli.add", data=ADD))
    y.set_output(True).set_dim((4,)).set_data_type(DataType.FLOAT)
    return g.validate()


INT4, HALF = DataType.INT4, DataType.HALF


def int4_matmul(
    a: Dims, b: Dims, of_a: DataType, of_b: DataType, of_c: DataType = HALF, *, stride: Dims | None = None
) -> Graph:
    """c = a b with an operand of INT4, or two; ``stride``: of b."""
    g = Graph("matmul_int4", io_data_type=of_c)
    left, right = g.tensor("a", dim=a, data_type=of_a), g.tensor("b", dim=b, data_type=of_b, stride=stride)
    g.matmul(left, right).set_output(True).set_name("c")
    return g.validate()


INT4_MATMULS: dict[str, Build] = {
    "half": lambda: int4_matmul((1, 4, 8), (1, 8, 4), INT4, HALF),
    "half-b": lambda: int4_matmul((2, 4, 8), (2, 8, 6), HALF, INT4),
    "odd": lambda: int4_matmul((3, 5, 7), (3, 7, 3), INT4, HALF),
    "odd-b-transposed": lambda: int4_matmul((3, 5, 7), (1, 7, 3), HALF, INT4, stride=(21, 1, 7)),
    "b-with-gaps": lambda: int4_matmul((2, 4, 8), (2, 8, 6), HALF, INT4, stride=(72, 9, 1)),
    "rank-2-both": lambda: int4_matmul((5, 9), (9, 7), INT4, INT4, DataType.INT32),
}
INTEGRATION: dict[str, Build] = {
    **{f"matmul/int4-{name}": build for name, build in INT4_MATMULS.items()},
    **{f"matmul/{name}": build for name, build in MATMULS.items()},
    "pointwise/relu": lambda: pointwise([M.RELU_FWD], 1),
    "pointwise/add": lambda: pointwise([M.ADD], 2),
    "reduction/sum": lambda: reduction([ReductionMode.ADD]),
    **{f"rmsnorm/{name}": lambda dims=dims: rmsnorm(dims) for name, dims in NORMS.items()},
}
CONV_CASES: dict[str, Build] = {
    f"conv_fprop/{name}/{layout}": lambda x=x, w=w, layout=layout, more=more: conv(x, w, layout=layout, **more)
    for name, (x, w, more) in CONVS.items()
    for layout in ("nchw", "nhwc")
}
LARGE_CASES: dict[str, Build] = {
    "conv/stream": lambda: conv(*LARGE),
    "conv+relu/stream": lambda: conv(*LARGE, relu=True),
    "conv+bias+relu/stream": lambda: conv(*LARGE, bias=True, relu=True),
    "wgrad/n16c128h64w32k256": lambda: conv((16, 128, 64, 32), LARGE[1], direction="wgrad", layout="nhwc"),
}
FAST = {
    "conv_fprop/3x3-pad1/nchw",
    "conv_fprop/groups4-3x3-pad1-stride2-dilation2/nhwc",
    "matmul/transposed-b",
    "matmul/int4-half",
    "matmul/int4-odd-b-transposed",
    "matmul/batch2-bias-Bx1xN",
    "reduction/sum",
    "rmsnorm/f32-2x4",
}


def _cases(cases: dict[str, Build]) -> list[Any]:
    return [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in cases]


def run(session: Session, folder: Path, graph: Graph, number: int = 0, allowed: float | None = None) -> None:
    data = wire_bytes(graph)
    session.warm(data)
    case = make_case(folder, data, allowed=allowed)
    said = session.run("walk", case.folder, number)
    assert re.search(r"^reference [1-9]\d* elements", said, re.MULTILINE), said
    assert case.wrong() == []


@pytest.mark.a_few("conv_fprop/groups4-*")
@pytest.mark.parametrize("name", _cases(CONV_CASES))
def test_convolutions(session: Session, tmp_path: Path, name: str) -> None:
    run(session, tmp_path / "case", CONV_CASES[name]())


@pytest.mark.a_few("matmul/int4-odd-b-transposed", "matmul/batch2-bias-Bx1xN")
@pytest.mark.parametrize("name", _cases(INTEGRATION))
def test_other_operations(session: Session, tmp_path: Path, name: str) -> None:
    allowed = 1e-4 if name.startswith("rmsnorm") else None
    run(session, tmp_path / "case", INTEGRATION[name](), allowed=allowed)


def test_the_bytes_of_int4(session: Session, tmp_path: Path) -> None:
    """Bytes and results written down by hand: a is [[-8, 7, -1], [1, 0, -5]], whose second row begins in a byte."""
    graph = int4_matmul((1, 2, 3), (1, 3, 1), INT4, HALF)
    data = wire_bytes(graph)
    session.warm(data)
    case = make_case(tmp_path, data)
    a, b, c = (graph.find(name).uid for name in "abc")
    (tmp_path / f"{a}.in").write_bytes(bytes([0x78, 0x1F, 0xB0]))
    (tmp_path / f"{b}.in").write_bytes(np.array([1, 2, 4], np.float16).tobytes())
    assert "reference 2 elements" in session.run("walk", case.folder)
    assert np.fromfile(tmp_path / f"{c}.out", np.float16).tolist() == [-8 + 14 - 4, 1 - 20]


@pytest.mark.slow
@pytest.mark.parametrize("stream", [0, 1], ids=["default-stream", "set-stream"])
@pytest.mark.parametrize("name", LARGE_CASES)
def test_large_convolutions(session: Session, tmp_path: Path, name: str, stream: int) -> None:
    """The stream and device matrix; its devices are in test_hip, on a stand-in."""
    if stream and not name.endswith("/stream"):
        pytest.skip("this case has no stream matrix")
    run(session, tmp_path / "case", LARGE_CASES[name](), stream)


@pytest.mark.slow
def test_a_custom_op(session: Session, tmp_path: Path) -> None:
    """``custom_op``: add [4] of a template."""
    data = wire_bytes(custom_add())
    session.warm(data)
    case = make_case(tmp_path, data)
    (tmp_path / "reference").write_text(
        (tmp_path / "reference").read_text().replace("op custom_op", "op pointwise\nword mode ADD")
    )
    assert "reference 4 elements" in session.run("walk", case.folder)


# ---- API cases: who claims what -------------------------------------------------------------------------------------

ACTIVATIONS = (M.RELU_FWD, M.SIGMOID_FWD, M.TANH_FWD, M.GELU_FWD, M.GELU_APPROX_TANH_FWD, M.SWISH_FWD, M.ELU_FWD,
               M.SOFTPLUS_FWD)  # fmt: skip
SHAPE = ((1, 4, 8, 8), (4, 4, 3, 3))


def conv_with(mode: PointwiseMode, *, bias: bool) -> Graph:
    g = Graph("epilogue", io_data_type=DataType.FLOAT)
    y = g.conv_fprop(g.tensor(dim=SHAPE[0]), g.tensor(dim=SHAPE[1]), padding=1)
    if bias:
        y = g.pointwise(M.ADD, y, g.tensor(dim=(1, 4, 1, 1)))
    g.pointwise(mode, y).set_output(True)
    return g.validate()


def sdpa_with_stats() -> Graph:
    g = Graph("stats", io_data_type=DataType.FLOAT)
    q, k, v = (g.tensor(dim=(2, 8, 16, 64)) for _ in range(3))
    made = g.sdpa(q, k, v, generate_stats=True)
    made.o.set_output(True)
    assert made.stats is not None
    made.stats.set_output(True)
    return g.validate()


CLAIMED: dict[str, Callable[[], bytes]] = {
    name: lambda build=build: wire_bytes(build())
    for name, build in {
        "conv": lambda: conv(*SHAPE, padding=1),
        "conv-nhwc": lambda: conv(*SHAPE, padding=1, layout="nhwc"),
        **{f"conv+{mode.name}": lambda mode=mode: conv_with(mode, bias=False) for mode in ACTIVATIONS},
        **{f"conv+bias+{mode.name}": lambda mode=mode: conv_with(mode, bias=True) for mode in ACTIVATIONS},
        "dgrad": lambda: conv(*SHAPE, direction="dgrad", padding=1),
        "wgrad": lambda: conv(*SHAPE, direction="wgrad", padding=1),
        **{
            f"matmul+{mode.name}": lambda mode=mode: matmul((4, 8), (8, 5), activation=mode) for mode in ACTIVATIONS[:3]
        },
        "sdpa": lambda: attention((2, 8, 16, 64), (2, 8, 16, 64), (2, 8, 16, 64)),
        "sdpa-mask": lambda: attention((2, 8, 16, 64), (2, 8, 16, 64), (2, 8, 16, 64), mask=True),
        "sdpa-grouped-bf16": lambda: attention(
            (4, 32, 512, 128), (4, 8, 1024, 128), (4, 4, 1024, 128), dtype=DataType.BFLOAT16
        ),
        "rmsnorm-inference": lambda: rmsnorm((1, 3, 224, 224)),
        # the old provider refused these; they are served now
        "sdpa-stats": sdpa_with_stats,
        "rmsnorm-training": lambda: rmsnorm((1, 3, 224, 224), NormFwdPhase.TRAINING),
        "conv-asymmetric-padding": lambda: conv(*SHAPE, pre_padding=(1, 0), post_padding=(0, 1)),
    }.items()
}


CLAIMED_FEW = ("conv+bias+RELU_FWD", "dgrad", "matmul+RELU_FWD", "sdpa-mask", "rmsnorm-inference")


@pytest.mark.parametrize(
    "names", [CLAIMED_FEW, pytest.param(tuple(CLAIMED), marks=pytest.mark.thorough)], ids=["few", "all"]
)
def test_what_the_engine_claims(session: Session, tmp_path: Path, names: Sequence[str]) -> None:
    """``applicable``: one host asks for all graphs; none is compiled."""
    for number, name in enumerate(names):
        (tmp_path / f"{number}.bin").write_bytes(CLAIMED[name]())
    said = session.run("applies", tmp_path, len(names))
    claimed = dict(zip(names, re.findall(r"^(yes|no)\b", said, re.MULTILINE), strict=True))
    assert [name for name, answer in claimed.items() if answer == "no"] == [], said
    assert "engine -3193037706610614382" in said


def test_backward_batchnorm_is_claimed(session: Session, tmp_path: Path) -> None:
    """``applicable``: the old provider refused it."""
    graph = decode_graph((GRAPHS / "bn_training.bin").read_bytes())
    (tmp_path / "0.bin").write_bytes(backward_of(graph))
    said = session.run("applies", tmp_path, 1)
    assert re.search(r"^yes", said, re.MULTILINE), said


def test_int4_results_are_limited_to_what_the_type_has(session: Session, tmp_path: Path) -> None:
    """By hand, for the old provider had no case of it: 2 in the low half, and -19, which is below the least, -8."""
    graph = int4_matmul((1, 2, 3), (1, 3, 1), INT4, HALF, INT4)
    data = wire_bytes(graph)
    session.warm(data)
    case = make_case(tmp_path, data)
    a, b, c = (graph.find(name).uid for name in "abc")
    (tmp_path / f"{a}.in").write_bytes(bytes([0x78, 0x1F, 0xB0]))
    (tmp_path / f"{b}.in").write_bytes(np.array([1, 2, 4], np.float16).tobytes())
    session.run("walk", case.folder)
    assert (tmp_path / f"{c}.out").read_bytes() == bytes([0x82])


def backward_of(graph: Any) -> bytes:
    """A graph of one BatchnormBackward node over the tensors of a training graph."""
    wide = [tensor.uid for tensor in graph.tensors if len(tensor.dims) == 4 and tensor.dims[-1] > 1]
    row = [tensor.uid for tensor in graph.tensors if len(tensor.dims) == 4 and tensor.dims[-1] == 1]
    table = wire.BatchnormBackwardAttributes(
        dy_tensor_uid=wide[0], x_tensor_uid=wide[0], scale_tensor_uid=row[0], dx_tensor_uid=wide[1],
        dscale_tensor_uid=row[1], dbias_tensor_uid=row[2],
    )  # fmt: skip
    node = graph.nodes[0].replace(attributes=table)
    return wire.encode_graph(graph.replace(nodes=(node,)))


def test_strides_of_channels_last() -> None:
    assert nhwc((2, 3, 4, 5)) == (60, 1, 15, 3)
