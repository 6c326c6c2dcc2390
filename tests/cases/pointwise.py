"""Pointwise: every mode with its parameters, dtypes, broadcasting, layouts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from graph_api import DataType, Graph, PointwiseMode
from graph_api.ops.pointwise import MODES
from tests.cases import OpCase, Pack

M = PointwiseMode
_POSITIVE = (M.SQRT, M.RSQRT, M.LOG)
_NONZERO = (M.DIV, M.RECIPROCAL)
_PARAMETERS: Mapping[str, float] = {"swish_beta": 1.7, "elu_alpha": 0.6, "softplus_beta": 2.5}
_CLIPPED = {"relu_lower_clip": -0.5, "relu_upper_clip": 1.0, "relu_lower_clip_slope": 0.1}
_NO_CPU_F64 = (M.SIN, M.TAN, M.ERF, M.GELU_FWD, M.GELU_BWD)


def _mode_inputs(mode: PointwiseMode) -> Any:
    def inputs(graph: Graph) -> Pack:
        pack = graph.random_inputs(seed=len(mode.name))
        for array in pack.values():
            if mode in _POSITIVE:
                array[...] = np.abs(array) + array.dtype.type(0.01 if array.dtype.kind == "f" else 1)
            elif mode in _NONZERO:
                array[...] = np.where(np.abs(array) < 0.1, array.dtype.type(1), array)
        return pack

    return inputs


def _mode_case(mode: PointwiseMode, dtype: DataType, parameters: Mapping[str, float], label: str) -> OpCase:
    arity = MODES[mode].arity

    def build() -> Graph:
        g = Graph("pointwise", io_data_type=dtype)
        tensors = [g.tensor(f"in_{i}", dim=(4, 1) if i == 1 else (3, 4, 5)) for i in range(arity)]
        g.pointwise(mode, *tensors, **parameters).set_output(True)
        return g

    declined = {"llvm-cpu": "dtype"} if dtype is DataType.DOUBLE and mode in _NO_CPU_F64 else None
    name = f"{mode.name.lower()}{label}_{dtype.name.lower()}"
    return OpCase(name, build, _mode_inputs(mode), declined=declined, fast=dtype is DataType.FLOAT)


def _mode_cases() -> list[OpCase]:
    cases: list[OpCase] = []
    for mode, spec in MODES.items():
        for dtype in (DataType.FLOAT, DataType.HALF, DataType.BFLOAT16, DataType.DOUBLE, DataType.INT32):
            required = {"axis": 1} if mode is M.GEN_INDEX else {}
            cases.append(_mode_case(mode, dtype, required, ""))
            if spec.parameters and mode is not M.GEN_INDEX and dtype in (DataType.FLOAT, DataType.HALF):
                given = (
                    _CLIPPED
                    if "relu_lower_clip" in spec.parameters
                    else {spec.parameters[0]: _PARAMETERS[spec.parameters[0]]}
                )
                cases.append(_mode_case(mode, dtype, given, "_parameters"))
    return cases


def _binary(
    mode: PointwiseMode, a: dict[str, Any], b: dict[str, Any], *, compute: DataType | None = None, **out: Any
) -> Graph:
    g = Graph("pointwise", io_data_type=DataType.FLOAT, compute_data_type=compute)
    y = g.pointwise(mode, g.tensor("a", **a), g.tensor("b", **b)).set_output(True)
    if "stride" in out:
        y.set_stride(out["stride"])
    if "data_type" in out:
        y.set_data_type(out["data_type"])
    return g


def _layout_cases() -> list[OpCase]:
    return [
        OpCase("add_rank_0_like", lambda: _binary(M.ADD, {"dim": (1,)}, {"dim": (1,)}), fast=True),
        OpCase("add_outer", lambda: _binary(M.ADD, {"dim": (4, 1)}, {"dim": (1, 5)}), fast=True),
        OpCase("add_lower_rank", lambda: _binary(M.ADD, {"dim": (2, 3, 4)}, {"dim": (4,)}), fast=True),
        OpCase(
            "sub_nhwc_nchw",
            lambda: _binary(M.SUB, {"dim": (2, 3, 4, 5), "layout": "NHWC"}, {"dim": (2, 3, 4, 5)}),
            fast=True,
        ),
        OpCase(
            "mul_any_permutation",
            lambda: _binary(
                M.MUL,
                {"dim": (2, 3, 4), "stride": (1, 8, 2)},
                {"dim": (2, 3, 4), "stride": (12, 1, 3)},
                stride=(4, 8, 1),
            ),
        ),
        OpCase(
            "add_stride_0",
            lambda: _binary(M.ADD, {"dim": (2, 3, 4), "stride": (4, 0, 1)}, {"dim": (2, 3, 4)}),
            fast=True,
        ),
        OpCase(
            "add_padded",
            lambda: _binary(
                M.ADD,
                {"dim": (2, 3, 5), "stride": (40, 10, 2)},
                {"dim": (1, 3, 1), "stride": (7, 2, 9)},
                stride=(1, 16, 2),
            ),
            fast=True,
        ),
        OpCase(
            "compare_to_bool",
            lambda: _binary(M.CMP_GT, {"dim": (3, 4)}, {"dim": (3, 4)}, data_type=DataType.BOOLEAN),
            fast=True,
        ),
        OpCase("floats_in_int32", lambda: _binary(M.MUL, {"dim": (3, 4)}, {"dim": (3, 4)}, compute=DataType.INT32)),
        OpCase(
            "mixed_dtypes_in_int64",
            lambda: _binary(
                M.MAX,
                {"dim": (3, 4), "data_type": DataType.HALF},
                {"dim": (3, 4), "data_type": DataType.INT32},
                compute=DataType.INT64,
            ),
            fast=True,
        ),
        OpCase(
            "mixed_dtypes",
            lambda: _binary(
                M.ADD,
                {"dim": (3, 4), "data_type": DataType.HALF},
                {"dim": (3, 4), "data_type": DataType.INT32},
                data_type=DataType.BFLOAT16,
            ),
            fast=True,
        ),
    ]


def _identity(source: DataType, target: DataType, *, transposed: bool = False) -> OpCase:
    def build() -> Graph:
        g = Graph("identity")
        x = g.tensor("x", dim=(2, 3, 4, 5), data_type=source)
        y = g.pointwise(M.IDENTITY, x).set_output(True).set_data_type(target)
        if transposed:
            y.set_stride((60, 1, 15, 3))
        return g

    suffix = "_transposed" if transposed else ""
    name = f"identity_{source.name.lower()}_to_{target.name.lower()}{suffix}"
    # What a negative number becomes as an unsigned one is nowhere defined.
    return OpCase(name, build, _not_negative if target is DataType.UINT8 else None, fast=transposed)


def _not_negative(graph: Graph) -> Pack:
    pack = graph.random_inputs()
    for array in pack.values():
        array[...] = np.minimum(np.abs(array.astype(np.float64)), 7).astype(array.dtype)
    return pack


def _padded(dtype: DataType) -> OpCase:
    def build() -> Graph:
        g = Graph("padded", io_data_type=dtype)
        x = g.tensor("x", dim=(2, 3, 4), stride=(1, 24, 3))
        g.pointwise(M.IDENTITY, x).set_output(True).set_stride((30, 10, 2))
        return g

    return OpCase(f"padded_{dtype.name.lower()}", build, fast=dtype is DataType.INT32)


def _identity_cases() -> list[OpCase]:
    kinds = [dtype for dtype in DataType if dtype.bits > 8 or dtype.is_integer or dtype is DataType.BOOLEAN]
    kinds = [dtype for dtype in kinds if dtype is not DataType.UINT4]  # tests/cases/small_types.py has the others
    stored = [dtype for dtype in kinds if dtype is not DataType.INT4]
    casts = [_identity(source, target) for source in kinds for target in stored]
    padded = [_padded(dtype) for dtype in stored]
    return [*casts, *padded, _identity(DataType.FLOAT, DataType.HALF, transposed=True)]


def _packed_cases() -> list[OpCase]:
    """INT4, in rows of odd and even length."""

    def binary(mode: PointwiseMode, a: dict[str, Any], b: dict[str, Any], out: DataType) -> Graph:
        int4 = {"data_type": DataType.INT4}
        return _binary(mode, {**int4, **a}, {**int4, **b}, data_type=out)

    half = {"data_type": DataType.HALF}
    return [
        OpCase("i4_add", lambda: binary(M.ADD, {"dim": (3, 5)}, {"dim": (3, 5)}, DataType.INT8), fast=True),
        OpCase("i4_mul_f16", lambda: binary(M.MUL, {"dim": (3, 6)}, {"dim": (3, 1), **half}, DataType.HALF), fast=True),
        OpCase("i4_sub_broadcast", lambda: binary(M.SUB, {"dim": (4, 1, 6)}, {"dim": (3, 1)}, DataType.INT32)),
        OpCase("i4_compare", lambda: binary(M.CMP_LT, {"dim": (5, 7)}, {"dim": (1, 7)}, DataType.BOOLEAN)),
        OpCase(
            "i4_div_padded",
            lambda: binary(M.DIV, {"dim": (2, 3, 5), "stride": (1, 24, 4)}, {"dim": (2, 3, 5), **half}, DataType.FLOAT),
        ),
        OpCase(
            "i4_output",
            lambda: binary(M.ADD, {"dim": (3, 4)}, {"dim": (3, 4)}, DataType.INT4),
            fast=True,
        ),
    ]


CASES = [*_mode_cases(), *_layout_cases(), *_identity_cases(), *_packed_cases()]
