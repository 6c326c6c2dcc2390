"""Reductions: every mode, dtype and set of axes, layouts, long and cancelling sums, special values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from graph_api import DataType, Graph, PointwiseMode, ReductionMode
from tests.cases import OpCase, Pack

D, M = DataType, ReductionMode
Dims = tuple[int, ...]


def graph(
    mode: ReductionMode,
    x: Dims,
    y: Dims,
    dtype: DataType = D.FLOAT,
    out: DataType | None = None,
    *,
    stride: Dims | None = None,
    out_stride: Dims | None = None,
    **options: Any,
) -> Graph:
    """One reduction of x to dims y."""
    g = Graph("reduction", io_data_type=dtype)
    result = g.reduction(g.tensor("x", dim=x, stride=stride), mode=mode, **options)
    result.set_dim(y).set_name("y").set_output(True).set_data_type(out or dtype)
    if out_stride is not None:
        result.set_stride(out_stride)
    return g


def _case(
    name: str,
    mode: ReductionMode,
    x: Dims,
    y: Dims,
    *types: DataType,
    inputs: Any = None,
    fast: bool = False,
    note: str = "",
    **options: Any,
) -> OpCase:
    return OpCase(name, lambda: graph(mode, x, y, *types, **options), inputs, {"y": y}, fast, note=note)


def _filled(make: Callable[[Any], Any]) -> Callable[[Graph], Pack]:
    """Inputs made from the random ones."""

    def inputs(g: Graph) -> Pack:
        pack = g.random_inputs(seed=2)
        for array in pack.values():
            array[...] = np.asarray(make(array)).astype(array.dtype)
        return pack

    return inputs


def _near_one(x: Any) -> Any:
    """Factors whose products stay in range; every fifth is 0."""
    values = np.where(np.abs(x.astype(np.float64)) < 0.5, 0.75, np.clip(x.astype(np.float64), -1.5, 1.5))
    return np.where(np.arange(x.size).reshape(x.shape) % 5 == 4, 0.0, values)


def _mode_cases() -> list[OpCase]:
    narrow = (D.INT8, D.UINT8, D.BOOLEAN)
    return [
        _case(
            f"{mode.name.lower()}_{dtype.name.lower()}",
            mode,
            (3, 4, 5),
            (3, 1, 5),
            dtype,
            D.INT32 if dtype in narrow else dtype,
            inputs=_filled(_near_one) if mode is M.MUL_NO_ZEROS and dtype.is_float else None,
            fast=dtype is D.FLOAT,
        )
        for mode in M
        for dtype in (D.FLOAT, D.HALF, D.BFLOAT16, D.DOUBLE, D.INT32, D.INT64, *narrow)
    ]


def _axes_cases() -> list[OpCase]:
    rows: list[tuple[str, Dims, Dims]] = [
        ("first", (6, 4, 5), (1, 4, 5)),
        ("last", (6, 4, 5), (6, 4, 1)),
        ("outer", (6, 4, 5), (1, 4, 1)),
        ("inner_two", (6, 4, 5), (6, 1, 1)),
        ("all", (6, 4, 5), (1, 1, 1)),
        ("rank_1", (37,), (1,)),
        ("rank_1_long", (5000,), (1,)),
        ("size_1_axis", (6, 1, 5), (6, 1, 5)),
        ("one_element", (1, 1), (1, 1)),
        ("spatial", (2, 8, 7, 7), (2, 8, 1, 1)),
        ("channels", (4, 3, 9, 9), (1, 3, 1, 1)),
        ("alternating", (3, 4, 5, 6), (1, 4, 1, 6)),
        ("rank_5", (2, 3, 4, 5, 6), (2, 1, 4, 1, 1)),
        ("all_large", (16, 64, 49), (1, 1, 1)),
    ]
    modes = (M.ADD, M.MAX, M.NORM2)
    plain = [
        _case(f"{mode.name.lower()}_{name}", mode, x, y, fast=name == "channels")
        for name, x, y in rows
        for mode in modes
    ]
    factors = [_case(f"mul_{name}", M.MUL, x, y, inputs=_filled(lambda x: np.clip(x, 0.9, 1.1))) for name, x, y in rows]
    return [*plain, *factors]


def _layout_cases() -> list[OpCase]:
    return [
        _case("transposed", M.ADD, (4, 8), (4, 1), stride=(1, 4), fast=True),
        _case("nhwc", M.AVG, (2, 8, 5, 5), (2, 8, 1, 1), D.HALF, stride=(200, 1, 40, 8)),
        _case("nhwc_all", M.ADD, (2, 8, 5, 5), (1, 1, 1, 1), stride=(200, 1, 40, 8)),
        _case("padded", M.ADD, (4, 8, 3), (4, 1, 3), stride=(48, 6, 2), out_stride=(8, 1, 2), fast=True),
        _case("padded_all", M.MAX, (4, 8, 3), (1, 1, 1), stride=(48, 6, 2)),
        _case("stride_0", M.ADD, (4, 8, 3), (1, 8, 1), stride=(0, 3, 1)),
        _case("stride_0_mul", M.MUL, (4, 8, 3), (1, 8, 3), stride=(0, 3, 1)),
        _case("out_permuted", M.MIN, (4, 8, 3), (4, 1, 3), out_stride=(1, 12, 4)),
        _case("f16_to_f32", M.ADD, (4, 100), (4, 1), D.HALF, D.FLOAT),
        _case("channels_odd_f16", M.ADD, (4, 3, 5, 5), (1, 3, 1, 1), D.HALF, D.FLOAT),
        _case("f32_to_bf16", M.ADD, (4, 100), (4, 1), D.FLOAT, D.BFLOAT16),
        *(
            _case(f"{mode.name.lower()}_i4", mode, (3, 4, 5), (3, 1, 5), D.INT4, D.INT32)
            for mode in (M.ADD, M.MUL, M.MIN, M.MAX, M.AMAX)
        ),
        _case("avg_i4_to_f32", M.AVG, (4, 100), (4, 1), D.INT4, D.FLOAT, compute_data_type=D.FLOAT),
        _case("u8_to_f32", M.AVG, (4, 100), (4, 1), D.UINT8, D.FLOAT, compute_data_type=D.FLOAT),
        _case("deterministic", M.ADD, (4, 1000), (4, 1), is_deterministic=True),
    ]


def _one_nan(x: Any) -> Any:
    values = x.astype(np.float64)
    values[1, 2] = np.nan
    return values


def _cancelling(x: Any) -> Any:
    half = x.shape[-1] // 2
    values = x.astype(np.float64) * 100
    values[..., half : 2 * half] = -values[..., :half]
    values[..., 0] += 0.125
    return values


def _value_cases() -> list[OpCase]:
    inf = float("inf")
    return [
        _case("long_f16", M.ADD, (2, 70000), (2, 1), D.HALF, D.FLOAT, note="accumulated in f32"),
        _case("long_bf16", M.AVG, (2, 9, 40, 40), (1, 9, 1, 1), D.BFLOAT16, note="accumulated in f32"),
        _case(
            "norm2_f16_large",
            M.NORM2,
            (4, 64),
            (4, 1),
            D.HALF,
            inputs=_filled(lambda x: x + 300),
            note="squares exceed f16",
        ),
        _case(
            "add_f16_large",
            M.AVG,
            (4, 64),
            (4, 1),
            D.HALF,
            inputs=_filled(lambda x: x + 4000),
            note="the sum exceeds f16",
        ),
        _case("cancelling", M.ADD, (5, 64), (5, 1), inputs=_filled(_cancelling), fast=True),
        _case("cancelling_f16", M.ADD, (5, 64), (5, 1), D.HALF, inputs=_filled(_cancelling)),
        _case(
            "max_of_minus_infinity", M.MAX, (3, 4), (3, 1), inputs=_filled(lambda x: np.full(x.shape, -inf)), fast=True
        ),
        _case("min_of_infinity", M.MIN, (3, 4), (3, 1), inputs=_filled(lambda x: np.full(x.shape, inf))),
        _case(
            "max_of_minus_infinity_f16", M.MAX, (3, 4), (3, 1), D.HALF, inputs=_filled(lambda x: np.full(x.shape, -inf))
        ),
        _case("max_negative", M.MAX, (3, 4), (3, 1), inputs=_filled(lambda x: -np.abs(x) - 1)),
        _case("amax_negative", M.AMAX, (3, 4), (3, 1), inputs=_filled(lambda x: -np.abs(x) - 1)),
        _case("max_nan", M.MAX, (3, 4), (3, 1), inputs=_filled(_one_nan)),
        _case("min_nan", M.MIN, (3, 4), (3, 1), inputs=_filled(_one_nan)),
        _case("amax_nan", M.AMAX, (3, 4), (3, 1), inputs=_filled(_one_nan)),
        _case("max_smallest_i32", M.MAX, (3, 4), (3, 1), D.INT32, inputs=_filled(lambda x: np.full(x.shape, -(2**31)))),
        _case("min_largest_i32", M.MIN, (3, 4), (3, 1), D.INT32, inputs=_filled(lambda x: np.full(x.shape, 2**31 - 1))),
        _case(
            "add_u8_full", M.ADD, (3, 200), (3, 1), D.UINT8, D.INT32, inputs=_filled(lambda x: np.full(x.shape, 255))
        ),
        _case(
            "max_u8_full", M.MAX, (3, 20), (3, 1), D.UINT8, inputs=_filled(lambda x: np.arange(60).reshape(3, 20) * 4)
        ),
        _case(
            "norm1_i8_smallest",
            M.NORM1,
            (3, 20),
            (3, 1),
            D.INT8,
            D.INT32,
            inputs=_filled(lambda x: np.full(x.shape, -128)),
        ),
        _case(
            "avg_i32_truncates",
            M.AVG,
            (4, 8),
            (4, 1),
            D.INT32,
            inputs=_filled(lambda x: np.arange(32).reshape(4, 8) - 16),
        ),
        _case("mul_no_zeros_some", M.MUL_NO_ZEROS, (3, 8), (3, 1), inputs=_filled(_near_one), fast=True),
        _case("mul_no_zeros_only_zeros", M.MUL_NO_ZEROS, (3, 4), (3, 1), inputs=_filled(np.zeros_like)),
        _case("mul_with_zero", M.MUL, (3, 8), (3, 1), inputs=_filled(_near_one)),
        OpCase(
            "of_a_square", _of_a_square, dims={"y": (4, 1)}, note="a virtual input, and a result that is used again"
        ),
    ]


def _of_a_square() -> Graph:
    g = Graph("reduction", io_data_type=D.HALF)
    x = g.tensor("x", dim=(4, 50))
    total = g.reduction(g.pointwise(PointwiseMode.MUL, x, x), mode=M.ADD).set_dim((4, 1)).set_name("y").set_output(True)
    g.pointwise(PointwiseMode.DIV, x, total).set_output(True).set_name("ratio")
    return g


CASES = [*_mode_cases(), *_axes_cases(), *_layout_cases(), *_value_cases()]
