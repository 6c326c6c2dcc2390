"""Runs what the front end made of an ONNX model in numpy: the oracle for its rewrites."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from hipdnn_backend.offload.frontend import prepare
from hipdnn_backend.offload.frontend.graph import OnnxGraph

__all__ = ["check_rewrite", "one_node", "ort", "rewritten"]


Array = np.ndarray[Any, Any]


class _Torch(OpRun):
    op_domain = "torch"


class rms_norm(_Torch):  # noqa: N801  the class's name is the operator's
    def _run(self, x: np.ndarray, weight: np.ndarray, epsilon: float) -> tuple[np.ndarray]:  # type: ignore[override]
        wide = x.astype(np.float64)
        axes = tuple(range(x.ndim - weight.ndim, x.ndim))
        return ((wide / np.sqrt((wide**2).mean(axes, keepdims=True) + epsilon) * weight).astype(x.dtype),)


class silu(_Torch):  # noqa: N801
    def _run(self, x: np.ndarray) -> tuple[np.ndarray]:  # type: ignore[override]
        wide = x.astype(np.float64)
        return ((wide / (1 + np.exp(-wide))).astype(x.dtype),)


class group_norm(_Torch):  # noqa: N801
    def _run(self, x: Array, weight: Array, bias: Array, groups: int, epsilon: float) -> Any:  # type: ignore[override]
        wide = x.astype(np.float64).reshape(x.shape[0], groups, -1)
        normed = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + epsilon)
        channel = (1, -1, *(1,) * (x.ndim - 2))
        return ((normed.reshape(x.shape) * weight.reshape(channel) + bias.reshape(channel)).astype(x.dtype),)


class scaled_dot_product_attention(_Torch):  # noqa: N801
    def _run(self, q: Array, k: Array, v: Array, mask: Any = None, *, is_causal: int, scale: float) -> Any:  # type: ignore[override]
        wide_q, wide_k, wide_v = (each.astype(np.float64) for each in (q, k, v))
        groups = q.shape[1] // k.shape[1]
        scores = wide_q @ np.repeat(wide_k, groups, 1).swapaxes(-1, -2) * scale
        if is_causal:
            scores = np.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -np.inf)
        scores = scores if mask is None else scores + mask.astype(np.float64)
        with np.errstate(invalid="ignore"):
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            return ((weights / weights.sum(-1, keepdims=True) @ np.repeat(wide_v, groups, 1)).astype(q.dtype),)


class max_pool2d_with_indices(_Torch):  # noqa: N801
    def _run(self, x: Array, kernel: Any, strides: Any, pads: Any, dilations: Any, ceil: int) -> Any:  # type: ignore[override]
        node = helper.make_node(
            "MaxPool", ["x"], ["y", "i"], kernel_shape=kernel, strides=strides, pads=[*pads, *pads],
            dilations=dilations, ceil_mode=ceil,
        )  # fmt: skip
        y, indices = ReferenceEvaluator(node, opsets={"": 22}).run(None, {"x": x})
        return y, indices % (x.shape[2] * x.shape[3])  # within a picture, as torch counts


_DTYPES = {0: np.uint8, 1: np.int8, 2: np.int16, 3: np.int32, 28: np.uint32, 6: np.float32}
"""Torch's number of a type → numpy's type."""


class to_dtype(_Torch):  # noqa: N801
    def _run(self, x: Array, dtype: int) -> tuple[np.ndarray]:  # type: ignore[override]
        return (x.astype(_DTYPES[dtype]),)


class view_dtype(_Torch):  # noqa: N801
    def _run(self, x: Array, dtype: int) -> tuple[np.ndarray]:  # type: ignore[override]
        return (x.view(_DTYPES[dtype]),)


class scatter_reduce(_Torch):  # noqa: N801
    def _run(self, x: Array, positions: Array, values: Array, dim: int, reduce: str) -> Any:  # type: ignore[override]
        result, where = x.copy(), list(np.indices(positions.shape, sparse=True))
        where[dim] = positions
        {"amax": np.maximum, "amin": np.minimum}[reduce].at(result, tuple(where), values)
        return (result,)


class codes(_Torch):  # noqa: N801
    def _run(self, x: Array) -> tuple[np.ndarray]:  # type: ignore[override]
        return (x.view(np.uint8),)


class of_codes(_Torch):  # noqa: N801
    def _run(self, x: Array, to: int) -> tuple[np.ndarray]:  # type: ignore[override]
        return (x.view(helper.tensor_dtype_to_np_dtype(to)),)


class unpacked(_Torch):  # noqa: N801
    def _run(self, x: Array, bits: int) -> tuple[np.ndarray]:  # type: ignore[override]
        row = np.unpackbits(x[..., None], axis=-1, bitorder="little").reshape(*x.shape, 8 // bits, bits)
        return ((row << np.arange(bits, dtype=np.uint8)).sum(-1, dtype=np.uint8).reshape(*x.shape[:-1], -1),)


_OPERATORS = [
    codes,
    of_codes,
    unpacked,
    scatter_reduce,
    rms_norm,
    silu,
    group_norm,
    scaled_dot_product_attention,
    max_pool2d_with_indices,
    to_dtype,
    view_dtype,
]


def rewritten(graph: OnnxGraph, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The outputs of a rewritten graph, by onnx's reference with torch's operators in float64, or by ONNX Runtime."""
    model = graph.to_proto(lifted=())
    if all(node.domain != "torch" for node in graph.nodes):
        for node in model.graph.node:  # what one node became has one name, which ONNX Runtime refuses
            node.name = ""
        # bfloat16 feeds, empty reductions and more are beyond it; its exceptions have no common base
        with contextlib.suppress(Exception):
            return ort(model, {name: feeds[name] for name in graph.inputs})
    evaluator = ReferenceEvaluator(model, new_ops=list(_OPERATORS))
    return [np.asarray(value) for value in evaluator.run(None, {name: feeds[name] for name in graph.inputs})]


def ort(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The outputs of a model by ONNX Runtime's CPU provider, one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [np.asarray(value) for value in session.run(None, dict(feeds))]


def one_node(
    op_type: str,
    inputs: Mapping[str, np.ndarray | None],
    outputs: Mapping[str, np.dtype[Any] | type],
    *,
    constants: Sequence[str] = (),
    opset: int = 21,
    domain: str = "",
    **attributes: Any,
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A model of one node named ``node``, and its feeds.

    Args:
        op_type: of the node.
        inputs: name → value, in order; None for an optional input that is not given.
        outputs: name → element type; "" leaves an optional output out.
        constants: inputs that are initializers.
        opset: of the default domain.
        domain: of the node.
        attributes: of the node.
    """
    given = {name: value for name, value in inputs.items() if value is not None}
    node = helper.make_node(
        op_type, [name if value is not None else "" for name, value in inputs.items()],
        [name if not name.startswith("_") else "" for name in outputs], "node", domain=domain, **attributes,
    )  # fmt: skip
    feeds = {name: value for name, value in given.items() if name not in constants}
    graph = helper.make_graph(
        [node], "one_node",
        [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in feeds.items()],
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), None)
            for name, dtype in outputs.items() if not name.startswith("_")
        ],
        [numpy_helper.from_array(given[name], name) for name in constants],
    )  # fmt: skip
    imports = [helper.make_opsetid("", opset), *([helper.make_opsetid(domain, 1)] if domain else [])]
    return helper.make_model(graph, opset_imports=imports, ir_version=10), feeds


def check_rewrite(
    model: onnx.ModelProto,
    feeds: Mapping[str, np.ndarray],
    *,
    expected: Sequence[np.ndarray] | None = None,
    rtol: float = 1e-5,
    atol: float = 1e-6,
    inputs: Mapping[str, Any] | None = None,
    dims: Mapping[str, int] | None = None,
) -> OnnxGraph:
    """Asserts that the rewritten model gives what ONNX Runtime (or ``expected``) gives, per element; the graph."""
    graph = prepare(model, inputs=inputs, dims=dims)
    want = ort(model, feeds) if expected is None else expected
    for have, wanted in zip(rewritten(graph, feeds), want, strict=True):
        assert have.dtype == wanted.dtype
        assert have.shape == wanted.shape
        np.testing.assert_allclose(have.astype(np.float64), wanted.astype(np.float64), rtol=rtol, atol=atol)
    return graph
