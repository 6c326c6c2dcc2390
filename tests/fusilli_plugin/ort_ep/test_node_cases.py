"""ONNX's own node tests through sessions with the provider: what ONNX Runtime runs alone must run with it, alike."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import fusilli_plugin
from tests.fusilli_plugin.ort_ep.models import session

pytestmark = [
    pytest.mark.ort,
    pytest.mark.iree_cpu,
    pytest.mark.slow,
    pytest.mark.usefixtures("provider"),
    pytest.mark.filterwarnings("ignore"),
]

# What says something about this provider: the operators that engines take, and some that they never do.
WORDS = (
    "add", "and", "argmax", "attention", "averagepool", "basic_conv", "batchnorm", "cast_FLOAT_to", "clip", "concat",
    "conv_with", "convtranspose", "div", "dropout", "einsum", "elu", "equal", "erf", "exp", "expand", "flatten",
    "gather", "gelu", "gemm", "globalaveragepool", "group_norm", "hardsigmoid", "identity", "if", "instancenorm",
    "layer_norm",
    "leakyrelu", "log", "loop", "lstm", "matmul", "max", "mean", "min", "mul", "neg", "nonzero", "not", "pad", "pow",
    "prelu", "reciprocal", "reduce_max", "reduce_mean", "reduce_sum", "relu", "reshape", "resize", "rms_norm",
    "rotary", "round", "scatter", "shape", "sigmoid", "slice", "softmax", "softplus", "split", "sqrt", "squeeze",
    "strnorm", "sub",
    "sum", "tanh", "tile", "topk", "transpose", "unsqueeze", "where", "xor",
)  # fmt: skip
LEAST = {np.dtype(np.float16): 4e-3}


@cache
def _cases() -> tuple[Any, ...]:
    """Made by running ONNX's generators, which warn a lot: not while tests are collected."""
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tuple(load_model_tests(kind="node"))


def _arrays(case: Any, model: onnx.ModelProto) -> dict[str, Any] | None:
    (inputs, _) = case.data_sets[0] if case.data_sets else ([], [])
    if not all(isinstance(value, np.ndarray) for value in inputs):
        return None
    return dict(zip([value.name for value in model.graph.input], inputs, strict=False))


def _outcome(model: bytes, feeds: dict[str, Any], *, ours: bool) -> Sequence[Any] | str:
    try:
        made = session(model) if ours else ort.InferenceSession(model, providers=["CPUExecutionProvider"])
        results = made.run(None, feeds)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    if ours:
        report = fusilli_plugin.ep_report(made)
        assert not report.problems, report
        assert all(node.group or node.reason for node in report.nodes), report
    return results


def difference(case: Any) -> str:
    """What is wrong with the provider's results, "" if nothing is."""
    feeds = _arrays(case, case.model)
    if feeds is None:
        return ""
    data = case.model.SerializeToString()
    theirs = _outcome(data, feeds, ours=False)
    if isinstance(theirs, str):  # ONNX Runtime does not run it alone either
        return ""
    ours = _outcome(data, feeds, ours=True)
    if isinstance(ours, str):
        return ours
    if "dropout" in case.name:  # random
        return ""
    found = (_compared(got, want) for got, want in zip(ours, theirs, strict=True))
    return next((text for text in found if text), "")


def _compared(got: Any, want: Any) -> str:
    if not isinstance(want, np.ndarray) or want.dtype == np.object_:
        return ""
    if (got.dtype, got.shape) != (want.dtype, want.shape):
        return f"{got.dtype} {got.shape} instead of {want.dtype} {want.shape}"
    tolerance = LEAST.get(want.dtype, 2e-5)
    got, want = got.astype(np.float64), want.astype(np.float64)
    scale = 1 + np.abs(want[np.isfinite(want)]).max(initial=0)
    close = np.isclose(got, want, rtol=tolerance, atol=tolerance * scale, equal_nan=True)
    return "" if close.all() else f"{np.count_nonzero(~close)} of {close.size} elements differ, e.g. {got[~close][0]}"


@pytest.mark.parametrize("word", WORDS)
def test_nodes(word: str) -> None:
    cases = [case for case in _cases() if case.name.removeprefix("test_").startswith(word)]
    assert cases, word
    found = {case.name: text for case in cases if (text := difference(case))}
    assert not found, "\n".join(f"{name}: {text}" for name, text in found.items())
