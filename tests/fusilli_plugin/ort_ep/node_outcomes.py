"""What becomes of an ONNX node case in a session with the provider, next to ONNX Runtime's CPU provider alone."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

import fusilli_plugin
from tests.fusilli_plugin.ort_ep.models import Array, session

ALIKE, LEFT, ALONE, RANDOM, NEITHER = "Alike", "Left", "Alone", "Random", "Neither"
"""The same as the CPU provider's, with nodes that the engines run; the same, and all nodes left to ONNX Runtime with a
reason; what the CPU provider does not run, and ONNX's own answer; dims and types of random numbers; what no session
runs, with the provider or without. Everything else is a fault."""

TOLERANCE = {np.dtype(np.float16): 4e-3, np.dtype(ml_dtypes.bfloat16): 2e-2}
"""Of the largest element; of other floating-point types 2e-5."""

_RANDOM = {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
_NUMPY = {
    *(TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BOOL, TensorProto.STRING),
    *(TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64),
    *(TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64),
}
"""Element types that ONNX Runtime takes and gives as numpy arrays."""
_PACKED = {
    TensorProto.INT4: 4,
    TensorProto.UINT4: 4,
    TensorProto.FLOAT4E2M1: 4,
    TensorProto.INT2: 2,
    TensorProto.UINT2: 2,
}
"""Bits of elements of which several share a byte."""


def outcome(case: Any) -> str:
    """One of the words above, or what is wrong."""
    fusilli_plugin.register_ep(cpu=True)
    inputs, wanted = case.data_sets[0] if case.data_sets else ([], [])
    feeds = {
        value.name: _value(given)
        for value, given in zip(case.model.graph.input, inputs, strict=False)
        if given is not None
    }
    wants = [_value(want) for want in wanted]
    data = case.model.SerializeToString()
    theirs = _results(lambda: ort.InferenceSession(data, providers=["CPUExecutionProvider"]), feeds)
    claimed: list[int] = []
    ours = _results(lambda: _strict(data, claimed), feeds)
    if isinstance(ours, str):
        return NEITHER if isinstance(theirs, str) else f"Error: {ours}"
    if any(map(_is_random, case.model.graph.node)):
        differs = _difference([_form(y) for y in ours], [_form(want) for want in wants])
        return f"WrongAnswer: {differs}" if differs else RANDOM
    if isinstance(theirs, str):
        differs = _difference(ours, wants, case.rtol)  # some answers are written down with four digits
        return f"WrongAnswer: {differs}; ONNX Runtime refuses: {theirs}" if differs else ALONE
    differs = _difference(ours, theirs)
    if not differs:
        return ALIKE if claimed[0] else LEFT
    whose = "" if _difference(ours, wants) else "; ONNX gives the provider's answer"
    return f"WrongAnswer: {differs}{whose}"


def _is_random(node: onnx.NodeProto) -> bool:
    return node.op_type in _RANDOM or (node.op_type == "Dropout" and len(node.input) > 2)  # which says: training


def _strict(data: bytes, claimed: list[int]) -> Any:
    """A session that has a reason for each node that stays with ONNX Runtime; adds the number of the others."""
    made = session(data, strict="1")
    report = fusilli_plugin.ep_report(made)
    assert not report.problems, report
    assert all(node.group or node.reason for node in report.nodes), report
    claimed.append(report.claimed)
    return made


def _results(make: Callable[[], Any], feeds: Mapping[str, Any]) -> list[Any] | str:
    """What a session gives, or its error."""
    try:
        made = make()
        named = (*made.get_inputs(), *made.get_outputs())
        if all(_is_plain(each.type) for each in named):
            return made.run(None, dict(feeds))
        kinds = {each.name: _kind(each.type) for each in named}
        values = {name: _ort_value(array, kinds[name]) for name, array in feeds.items()}
        given = made._sess.run_with_ort_values(
            {name: value._ortvalue for name, value in values.items()}, [each.name for each in made.get_outputs()], None
        )
        return [_from_ort(ort.OrtValue(value)) for value in given]
    except AssertionError:
        raise
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _value(given: Any) -> Any:
    """A case's input or output as an array, or a list of arrays."""
    if isinstance(given, onnx.TensorProto):
        return numpy_helper.to_array(given)
    return [_value(each) for each in given] if isinstance(given, list) else np.asarray(given)


def _kind(text: str) -> int:
    """ONNX's number of the element type that ONNX Runtime calls ``tensor(float)``; 0 for what is no tensor."""
    names = {"float": "FLOAT", "float16": "FLOAT16", "double": "DOUBLE"}
    inner = text.removeprefix("tensor(").removesuffix(")")
    return TensorProto.DataType.Value(names.get(inner, inner.upper())) if text.startswith("tensor(") else 0


def _is_plain(text: str) -> bool:
    return not text.startswith("tensor(") or _kind(text) in _NUMPY


def _ort_value(array: Array, kind: int) -> Any:
    if kind in _NUMPY:
        return ort.OrtValue.ortvalue_from_numpy(array)
    value = ort.OrtValue.ortvalue_from_shape_and_type(array.shape, kind)
    raw = numpy_helper.from_array(array).raw_data
    ctypes.memmove(value.data_ptr(), raw, len(raw))
    return value


def _from_ort(value: Any) -> Array:
    kind, dims = value.element_type(), value.shape()
    if kind in _NUMPY:
        return value.numpy()
    bits = _PACKED.get(kind) or 8 * helper.tensor_dtype_to_np_dtype(kind).itemsize
    raw = ctypes.string_at(value.data_ptr(), -(-math.prod(dims) * bits // 8))
    return numpy_helper.to_array(TensorProto(data_type=kind, dims=dims, raw_data=raw))


def _form(value: Any) -> Any:
    """Zeros instead of what is random."""
    return [_form(each) for each in value] if isinstance(value, list) else np.zeros_like(value)


def _difference(got: Any, want: Any, rtol: float = 0.0) -> str:
    """What is different, "" if nothing is; ``rtol``: of floats, where it is more than their type's tolerance."""
    if isinstance(want, list):
        if not isinstance(got, list) or len(got) != len(want):
            return f"{got} instead of a list of {len(want)}"
        found = ((at, _difference(*pair, rtol)) for at, pair in enumerate(zip(got, want, strict=True)))
        return next((f"{at}: {text}" for at, text in found if text), "")
    got, want = np.asarray(got), np.asarray(want)
    if got.shape != want.shape or (got.dtype != want.dtype and want.dtype.kind not in "OUS"):
        return f"{got.dtype} {got.shape} instead of {want.dtype} {want.shape}"
    if want.dtype.kind in "OUSbiu" or not want.size:
        same = got == want
    else:
        tolerance = TOLERANCE.get(want.dtype, 2e-5)
        got, want = got.astype(np.float64), want.astype(np.float64)
        scale = 1 + np.abs(want[np.isfinite(want)]).max(initial=0)
        same = np.isclose(got, want, rtol=max(tolerance, rtol), atol=tolerance * scale, equal_nan=True)
    if same.all():
        return ""
    return f"{np.count_nonzero(~same)} of {same.size} elements differ, e.g. {got[~same][0]} for {want[~same][0]}"
