"""Attribute values through Torch-MLIR's conversion and the compiler, all in one model, against ONNX Runtime.

What the front end rewrites is checked beside it; this is about the meaning that conversions give to what it leaves.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from hipdnn_backend.offload import load
from tests.support.onnx_rewritten import ort

pytestmark = [pytest.mark.mlir, pytest.mark.iree_cpu, pytest.mark.slow, pytest.mark.timeout(3600)]

_RANDOM = np.random.default_rng(0)
_INPUTS = {
    name: _RANDOM.standard_normal(dims).astype(np.float32)
    for name, dims in {"x4": (2, 4, 6, 5), "blocks": (1, 36, 2, 3), "x1": (1, 2, 14), "x2": (4, 6)}.items()
}
_CONSTANTS = {
    "filters": (_RANDOM.standard_normal((4, 4, 3, 3)) * 0.3).astype(np.float32),
    "one": np.array(1),
    "two_axes": np.array([0, 2]),
    "pads": np.array([0, 0, 1, 2, 0, 0, 2, 1]),
}

Case = tuple[str, str, dict[str, Any]]


def _windows() -> Iterator[Case]:
    for pad in ("VALID", "SAME_UPPER", "SAME_LOWER"):
        yield "Conv", "x4 filters", {"auto_pad": pad, "strides": [2, 1]}
        yield "MaxPool", "x4", {"kernel_shape": [3, 2], "auto_pad": pad, "strides": [2, 2]}
    for ceil, pads in ((1, [0, 2]), (1, [1, 1]), (0, [1, 0]), (1, [2, 2])):
        given = {"kernel_shape": [3], "strides": [2], "pads": pads, "ceil_mode": ceil}
        yield "MaxPool", "x1", given
        for include in (0, 1):
            yield "AveragePool", "x1", {**given, "count_include_pad": include}


def _moves() -> Iterator[Case]:
    for mode in ("DCR", "CRD"):
        for size in (2, 3):
            yield "DepthToSpace", "blocks", {"blocksize": size, "mode": mode}
    for mode in ("constant", "reflect", "edge"):
        yield "Pad", "x4 pads", {"mode": mode}
    for upper in (0, 1):
        yield "Trilu", "x2 one", {"upper": upper}


def _reductions() -> Iterator[Case]:
    for name in ("L1", "L2", "LogSumExp", "SumSquare"):
        for keep in (0, 1):
            yield f"Reduce{name}", "x4 two_axes", {"keepdims": keep}
        yield f"Reduce{name}", "x4", {"noop_with_empty_axes": 1}
    for name in ("ArgMax", "ArgMin"):
        for flag in (0, 1):
            yield name, "x2", {"axis": -1, "keepdims": flag, "select_last_index": flag}
    for exclusive in (0, 1):
        for reverse in (0, 1):
            yield "CumSum", "x2 one", {"exclusive": exclusive, "reverse": reverse}


def _others() -> Iterator[Case]:
    for left, right in ((0, 1), (1, 0)):
        yield "Gemm", "x2 x2", {"transA": left, "transB": right, "alpha": 0.5}
    for axis in (0, 1, -1):
        yield "Softmax", "x4", {"axis": axis}
        yield "Hardmax", "x2", {"axis": axis}
    for form in ("none", "tanh"):
        yield "Gelu", "x2", {"approximate": form}


def _model(cases: list[Case]) -> onnx.ModelProto:
    nodes = [
        helper.make_node(op_type, operands.split(), [f"y{number}"], f"{op_type}_{number}", **given)
        for number, (op_type, operands, given) in enumerate(cases)
    ]
    kinds = [TensorProto.INT64 if node.op_type.startswith("Arg") else TensorProto.FLOAT for node in nodes]
    graph = helper.make_graph(
        nodes, "attributes",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, x.shape) for name, x in _INPUTS.items()],
        [helper.make_tensor_value_info(f"y{number}", kind, None) for number, kind in enumerate(kinds)],
        [numpy_helper.from_array(value, name) for name, value in _CONSTANTS.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def test_values_of_attributes_mean_what_onnx_runtime_takes_them_for() -> None:
    cases = [*_windows(), *_moves(), *_reductions(), *_others()]
    model = _model(cases)
    with load(model) as compiled:
        results = compiled.run(_INPUTS)
    wrong = [
        case
        for case, have, want in zip(cases, results.values(), ort(model, _INPUTS), strict=True)
        if have.shape != want.shape or not np.allclose(have, want, rtol=1e-4, atol=1e-5, equal_nan=True)
    ]
    assert len(cases) > 50
    assert not wrong
