"""ONNX's own node tests: what converts, and with which answers; the failures are listed with their reasons."""

from __future__ import annotations

import os
import re
import warnings
from collections import Counter
from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.backend.test.loader import load_model_tests

from hipdnn_backend.offload.errors import ModelError
from hipdnn_backend.offload.frontend import load, prepare
from hipdnn_backend.offload.frontend.weights import static_operands
from tests.support.onnx_rewritten import rewritten

# Loading the suite makes all of its cases, which takes longer than the tests of a file may.
pytestmark = pytest.mark.slow

_OPERATORS = {
    *("Conv", "ConvTranspose", "Gemm", "MatMul", "BatchNormalization", "Relu", "Add", "MaxPool", "AveragePool"),
    *("GlobalAveragePool", "GlobalMaxPool", "LayerNormalization", "RMSNormalization", "Softmax", "LogSoftmax"),
    *("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "Sigmoid", "Tanh", "Gelu", "Elu", "Attention"),
    *("GroupNormalization", "InstanceNormalization", "Sub", "Mul", "Div", "Exp", "Sqrt", "Erf", "Clip", "Concat"),
    *("Flatten", "Transpose", "Reshape", "LeakyRelu", "Selu", "Celu", "Softplus", "Softsign", "HardSigmoid"),
    *("HardSwish", "Mish", "PRelu", "ThresholdedRelu", "Swish", "Identity", "RotaryEmbedding", "ConvInteger"),
    "MatMulInteger",
}

_EXPECTED = {
    "test_identity_sequence": "the input is sequence type; only tensors can be fed",
    "test_identity_opt": "the input is optional type; only tensors can be fed",
}
"""Case → why it does not convert."""


@cache
def _cases() -> dict[str, Any]:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        found = load_model_tests(kind="node")
    nodes = {case.name: case.model.graph.node for case in found if case.model and "_expanded" not in case.name}
    return {
        case.name: case
        for case in found
        if case.name in nodes and len(nodes[case.name]) == 1 and nodes[case.name][0].op_type in _OPERATORS
    }


def _feeds(case: Any) -> dict[str, np.ndarray]:
    return dict(zip((value.name for value in case.model.graph.input), case.data_sets[0][0], strict=False))


def _bound(model: onnx.ModelProto, feeds: dict[str, Any]) -> dict[str, Any]:
    """Inputs that the operator needs to know, which the suite feeds: axes, shapes, zero points."""
    (node,) = model.graph.node
    fixed = static_operands(node.op_type)
    return {name: feeds[name] for i, name in enumerate(node.input) if i in fixed and name in feeds}


def _outcome(case: Any, *, answers: bool) -> str:
    """ "" if a case converts to static types, and, if asked for, its rewritten form gives the suite's answers."""
    feeds = _feeds(case)
    bound = _bound(case.model, feeds)
    try:
        text = load(case.model, inputs=bound).module.operation.get_asm(large_elements_limit=16)
        if re.search(r"vtensor<\[[^]]*\?", text):
            return "dims that only a run knows"
        return _compared(case, bound, feeds) if answers else ""
    except ModelError as error:
        return error.reason


def _compared(case: Any, bound: dict[str, Any], feeds: dict[str, Any]) -> str:
    graph = prepare(case.model, inputs=bound)
    for have, want in zip(rewritten(graph, feeds), case.data_sets[0][1], strict=True):
        half = want.dtype.itemsize == 2
        rtol, atol = (1e-2, 4e-3) if half else (max(case.rtol, 1e-3), 1e-5)
        if have.shape != want.shape or not np.allclose(
            have.astype(np.float64), want.astype(np.float64), rtol=rtol, atol=atol, equal_nan=True
        ):
            return "other values"
    return ""


def _in_child(case: Any, *, answers: bool) -> str:
    """The outcome, or the signal that ended the process: torch-mlir is not proof against everything."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            outcome = _outcome(case, answers=answers)
        except BaseException as error:
            outcome = f"raised {error!r}"
        os.write(write, b"." + outcome.encode()[:4000])
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        said = pipe.read().decode()
    _, status = os.waitpid(child, 0)
    return said[1:] if said else f"ended by signal {os.WTERMSIG(status)}"


def test_the_suite_has_the_cases_that_are_counted() -> None:
    assert len(_cases()) >= 413
    assert _EXPECTED.keys() <= _cases().keys()


@pytest.mark.timeout(1800)
def test_the_suite() -> None:
    outcomes = {name: _in_child(case, answers=True) for name, case in _cases().items()}
    failures = {name: outcome for name, outcome in outcomes.items() if outcome}
    print(Counter("fails" if outcome else "passes" for outcome in outcomes.values()))
    unexpected = {name: outcome for name, outcome in failures.items() if _EXPECTED.get(name) != outcome}
    assert not unexpected
    assert failures.keys() == _EXPECTED.keys(), "a listed case passes now: take it off the list"
