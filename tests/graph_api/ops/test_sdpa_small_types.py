"""Attention of 8-bit floats: the reference against one written from cuDNN's steps, with their rounding; bad factors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from graph_api import DataType, Graph, GraphError
from tests.cases import OpCase
from tests.cases.sdpa_small_types import CASES, FACTORS, FP8

D = DataType
BY_NAME = {case.name: case for case in CASES}


def steps(q: Any, k: Any, v: Any, f: dict[str, float], eight: Any | None) -> dict[str, Any]:
    """The front end's steps, head by head; with ``eight`` weights * scale_s are rounded to that type, as it does."""
    heads, group = q.shape[1], q.shape[1] // k.shape[1]
    o, largest = np.zeros((*q.shape[:3], v.shape[3])), 0.0
    for b in range(q.shape[0]):
        for h in range(heads):
            scores = q[b, h] @ k[b, h // group].T / np.sqrt(q.shape[3]) * f["descale_q"] * f["descale_k"]
            powers = np.exp(scores - scores.max(axis=1, keepdims=True))
            weights = powers / powers.sum(axis=1, keepdims=True)
            largest = max(largest, weights.max())
            weights = weights * f["scale_s"]
            if eight is not None:
                weights = weights.astype(eight).astype(np.float64)
            o[b, h] = weights @ v[b, h // group] * f["descale_s"] * f["descale_v"]
    return {"amax_s": largest, "amax_o": np.abs(o).max(), "o": o * f["scale_o"]}


def results(case: OpCase) -> tuple[dict[str, Any], dict[str, Any]]:
    """The inputs of a case as numbers by name, and what the reference makes of them."""
    graph = case.graph()
    pack = case.pack(graph)
    arrays = {tensor.name: array.astype(np.float64) for tensor, array in pack.items()}
    return arrays, {tensor.name: value for tensor, value in graph.reference(pack).items()}


def numbers(arrays: dict[str, Any]) -> dict[str, float]:
    """The one number of each factor."""
    return {name: float(arrays[name].ravel()[0]) for name in FACTORS}


@pytest.mark.parametrize("dtype", FP8)
def test_the_reference_takes_the_steps_of_the_front_end_without_rounding_weights(dtype: DataType) -> None:
    arrays, found = results(BY_NAME[f"{dtype.name.lower()}_scaled"])
    exact = steps(arrays["q"], arrays["k"], arrays["v"], numbers(arrays), None)
    limit = float(dtype.finfo.max)
    np.testing.assert_allclose(found["amax_s"].item(), exact["amax_s"], rtol=1e-12)
    np.testing.assert_allclose(found["amax_o"].item(), exact["amax_o"], rtol=1e-12)
    np.testing.assert_allclose(found["o"], np.clip(exact["o"], -limit, limit), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("dtype", FP8)
def test_what_rounds_weights_to_8_bits_is_as_near_as_that_rounding(dtype: DataType) -> None:
    """Half a step of each weight: 2**-4 of it with 3 bits of fraction, 2**-3 with 2, or half the least step."""
    arrays, found = results(BY_NAME[f"{dtype.name.lower()}_scaled"])
    rounded = steps(arrays["q"], arrays["k"], arrays["v"], numbers(arrays), dtype.numpy)
    values = np.repeat(np.abs(arrays["v"]), 2, axis=1)
    step = float(dtype.finfo.smallest_subnormal) / 2 / FACTORS["scale_s"]
    share = float(dtype.eps) / 2
    most = (share * values.max(axis=2, keepdims=True) + step * values.sum(axis=2, keepdims=True)) * FACTORS["descale_v"]
    assert np.all(np.abs(found["o"] - rounded["o"]) <= most * FACTORS["scale_o"] + 1e-12)
    assert np.any(found["o"] != rounded["o"])


def test_factors_of_heads_are_those_of_their_groups() -> None:
    """Each head alone, with its own factors as the one number."""
    arrays, found = results(BY_NAME["fp8_e4m3_heads"])
    for b in range(2):
        for h in range(4):
            own = numbers(arrays) | {
                "descale_q": arrays["descale_q"][b, h, 0, 0],
                "descale_k": arrays["descale_k"][b, h // 2, 0, 0],
                "descale_v": arrays["descale_v"][b, h // 2, 0, 0],
            }
            q, k, v = (
                arrays[name][b : b + 1, head : head + 1] for name, head in (("q", h), ("k", h // 2), ("v", h // 2))
            )
            np.testing.assert_allclose(found["o"][b, h], steps(q, k, v, own, None)["o"][0, 0], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("name", "dims", "message"),
    [
        ("descale_q", (2,), r"descale_q 'descale_q' must have dims \(1 or 2, 1 or 2 or 4, 1, 1\), .*got \(2,\)"),
        ("descale_q", (2, 3, 1, 1), r"must have dims \(1 or 2, 1 or 2 or 4, 1, 1\).*got \(2, 3, 1, 1\)"),
        ("descale_k", (1, 4, 1, 1), r"must have dims \(1 or 2, 1 or 2, 1, 1\).*got \(1, 4, 1, 1\)"),
        ("descale_v", (2, 2, 1, 8), r"got \(2, 2, 1, 8\)"),
        ("scale_o", (1, 4, 1, 1), r"scale_o 'scale_o' must have 1 element, got dims \(1, 4, 1, 1\)"),
        ("scale_s", (2, 1, 1, 1), "must have 1 element"),
    ],
)
def test_factors_of_other_dims_are_named(name: str, dims: tuple[int, ...], message: str) -> None:
    g, tensors = _operands()
    g.sdpa(*tensors, **{name: g.tensor(name, dim=dims, data_type=D.FLOAT)}).o.set_output(True)
    with pytest.raises(GraphError, match=message):
        g.validate()


def test_factors_that_are_no_floats_and_amaxes_of_other_dims_are_named() -> None:
    g, tensors = _operands()
    g.sdpa(*tensors, descale_q=g.tensor("factor", dim=(1, 1, 1, 1), data_type=D.INT32)).o.set_output(True)
    with pytest.raises(GraphError, match="descale_q 'factor' must be floating point, got INT32"):
        g.validate()
    g, tensors = _operands()
    amax = g.tensor("amax", dim=(1, 4, 1, 1), data_type=D.FLOAT).set_output()
    g.sdpa(*tensors, amax_o=amax).o.set_output(True)
    with pytest.raises(GraphError, match="amax"):
        g.validate()


def test_a_container_of_pages_has_no_factor_for_each_sequence() -> None:
    g = Graph("pages", io_data_type=D.FP8_E4M3)
    q = g.tensor("q", dim=(2, 2, 3, 16))
    k, v = (g.tensor(name, dim=(5, 2, 4, 16)) for name in "kv")
    tables: dict[str, Any] = {
        f"page_table_{name}": g.tensor(f"table_{name}", dim=(2, 1, 2, 1), data_type=D.INT32) for name in "kv"
    }
    factor = g.tensor("factor", dim=(2, 2, 1, 1), data_type=D.FLOAT)
    g.sdpa(q, k, v, descale_k=factor, **tables).o.set_output(True)
    with pytest.raises(GraphError, match=r"descale_k 'factor' must have dims \(1, 1 or 2, 1, 1\)"):
        g.validate()


def _operands() -> tuple[Graph, list[Any]]:
    g = Graph("factors", io_data_type=D.FP8_E4M3)
    dims = (("q", (2, 4, 9, 16)), ("k", (2, 2, 12, 16)), ("v", (2, 2, 12, 8)))
    return g, [g.tensor(name, dim=size) for name, size in dims]
