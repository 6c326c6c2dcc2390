"""Losses of class numbers: the score at each target is gathered, weighted and reduced."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx

from hipdnn_backend.offload.frontend.rewriting import Builder, rewrites

__all__: list[str] = []


@rewrites("NegativeLogLikelihoodLoss")
def _likelihood(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    loss = _loss(b, node.input[0], b.input(1), b.input(2))
    return None if loss is None else [loss]


@rewrites("SoftmaxCrossEntropyLoss")
def _cross_entropy(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    scores = b.op("LogSoftmax", node.input[0], axis=1)
    loss = _loss(b, scores, b.input(1), b.input(2))
    return None if loss is None else [loss, scores]


def _loss(b: Builder, scores: str, target: str, weight: str) -> str | None:
    """``-weight[t] * scores[n, t, ...]`` for each target ``t``, 0 where it is the ignored one, then reduced."""
    dims, type_ = b.dims(b.node.input[0]), b.type(b.node.input[0])
    places, kind = b.dims(target), b.dtype(target)
    if dims is None or type_ is None or places is None or kind is None:
        return None
    if (dims[0], *dims[2:]) != places:
        raise b.fail("loss", f"targets {list(places)} do not belong to scores {list(dims)}")
    counted, at = "", target
    ignored = b.given.get("ignore_index")
    if ignored is not None and np.iinfo(kind).min <= ignored <= np.iinfo(kind).max:
        counted = b.op("Not", b.op("Equal", target, b.constant(ignored, kind)))
        at = b.op("Where", counted, target, b.constant(0, kind))  # the ignored one need not be a class
    picked = b.op("GatherElements", scores, b.op("Unsqueeze", at, b.constant([1])), axis=1)
    loss = b.op("Neg", b.op("Squeeze", picked, b.constant([1])))
    zero, weights = b.like(b.node.input[0], 0), ""
    if weight:
        weights = b.op("Gather", weight, at, axis=0)
        loss = b.op("Mul", loss, weights)
    if counted:
        loss = b.op("Where", counted, loss, zero)
    reduction = b.given.get("reduction", "mean")
    if reduction == "none":
        return loss
    if reduction not in ("mean", "sum"):
        raise b.fail("loss", f"reduction {reduction!r}")
    halves = type_.dtype.itemsize == 2  # whose sums and counts would soon be inexact
    if not weights:
        weights = b.op("Cast", counted, to=type_.element) if counted else b.like(b.node.input[0], np.ones(places))
    elif counted:
        weights = b.op("Where", counted, weights, zero)
    if halves:
        loss, weights = (b.op("Cast", each, to=onnx.TensorProto.FLOAT) for each in (loss, weights))
    axes = b.constant(range(len(places)))
    result = b.op("ReduceSum", loss, axes, keepdims=0)
    if reduction == "mean":
        result = b.op("Div", result, b.op("ReduceSum", weights, axes, keepdims=0))
    return b.op("Cast", result, to=type_.element) if halves else result
