"""Every case of the tables against the float64 reference, per element: on the CPU, or where ``--device`` says."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from graph_api import DataType, Graph, PointwiseMode
from iree_bridge import build
from tests.cases import OpCase, all_cases
from tests.support.cases import aligned, assert_right

pytestmark = pytest.mark.iree_cpu

_SAMPLE = {
    "block_scale": {"quantize_mxfp4_f32", "dequantize_mxfp4_f32", "dequantize_negative_int8", "quantize_fp8_f16_f32"},
    "conv": {"declined_4d", "declined_boolean", "1d_wgrad", "half_nhwc_dgrad", "plain_fprop"},
    "custom_op": {"add"},
    "fusion": {
        "amax_fp8_e4m3_6x64",
        "rmsnorm_5x72_f16_residual",
        "layernorm_6x64_f16_gelu_gradient",
        "layernorm_mxfp8_e4m3",
        "relu_all_stored_3x3_nchw_f32",
    },
    "matmul": {"i4_scaled_weights", "shape_1x1_1", "i4_padded", "u8_u8_to_i32_full_range", "f16"},
    "moe": {"scatter", "declined_i8", "backward_f16"},
    "norm": {"training_peers", "inference_read_as_variance", "inference_relu", "layernorm_short", "rmsnorm_300_f16"},
    "norm_backward": {"batchnorm_relu", "batchnorm_peers", "layernorm_short", "rmsnorm_no_dbias"},
    "pointwise": {
        "add_rank_0_like",
        "mixed_dtypes_in_int64",
        "reciprocal_float",
        "identity_float_to_half_transposed",
        "i4_output",
        "compare_to_bool",
        "sin_float",
        "exp_float",
        "sqrt_float",
        "logical_not_float",
        "gelu_approx_tanh_fwd_float",
    },
    "reduction": {"norm2_float", "add_channels", "mul_no_zeros_some", "norm1_float"},
    "resample": {"declined_boolean", "declined_4d", "declined_integer_minus_infinity", "half_nhwc_avg_exclude"},
    "resample_backward": {"declined_i32", "half_nhwc_max", "plain_avg_exclude"},
    "sdpa": {"paged_outside", "blocks_small", "bf16"},
    "sdpa_backward": {"bias_full", "layout_bshd"},
    "sdpa_small_types": {"fp8_e4m3_scaled"},
    "small_types": {
        "fp8_e5m2_to_float_4x64",
        "float_to_fp6_e2m3_24x48",
        "float_to_fp8_e4m3_fnuz_24x48",
        "fp8_e5m2_fnuz_to_float_4x64",
        "float_to_fp8_e5m2_fnuz_24x48",
        "fp6_e3m2_to_float_4x64",
        "uint4_to_float_4x64",
        "float_to_fp8_e4m3_24x48",
        "fp6_e2m3_to_float_4x64",
        "fp8_e4m3_fnuz_to_float_4x64",
        "float_to_fp6_e3m2_24x48",
        "float_to_fp4_e2m1_24x48",
        "fp8_e8m0_to_float_4x64",
        "float_to_fp8_e8m0_24x48",
        "float_to_int4_24x48",
        "fp4_e2m1_to_float_4x64",
        "int4_to_float_4x64",
        "float_to_fp8_e5m2_24x48",
        "fp8_e4m3_to_float_4x64",
        "conv_native_3x3_nhwc_e4m3_fnuz",
    },
}
"""Family → cases of each operation, type and rank: what `make test` runs of the fast ones."""


def _marks(family: str, case: OpCase) -> tuple[pytest.MarkDecorator, ...]:
    if not case.fast:
        return (pytest.mark.slow,)
    return () if case.name in _SAMPLE[family] else (pytest.mark.thorough,)


_CASES = [pytest.param(case, id=f"{family}-{case.name}", marks=_marks(family, case)) for family, case in all_cases()]


def test_the_sample_is_of_fast_cases() -> None:
    fast = {(family, case.name) for family, case in all_cases() if case.fast}
    assert {(family, name) for family, names in _SAMPLE.items() for name in names} <= fast


@pytest.mark.parametrize("case", _CASES)
def test_case(case: OpCase, request: pytest.FixtureRequest) -> None:
    assert_right(case, str(request.config.getoption("--device")))


_NAN, _INF = np.nan, np.inf
_X = [_NAN, 1.0, -3.0, _INF, -_INF, _NAN, 2.5, _NAN]
_Y = [1.0, _NAN, 2.0, _NAN, 4.0, _NAN, -1.0, _INF]
_TYPES = {DataType.FLOAT: np.float32, DataType.HALF: np.float16, DataType.BFLOAT16: ml_dtypes.bfloat16}


@pytest.mark.a_few("PointwiseMode.MAX-expected0-DataType.BFLOAT16", "PointwiseMode.MIN-expected1-DataType.HALF")
@pytest.mark.parametrize("dtype", _TYPES)
@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (PointwiseMode.MAX, [_NAN, _NAN, 2.0, _NAN, 4.0, _NAN, 2.5, _NAN]),
        (PointwiseMode.MIN, [_NAN, _NAN, -3.0, _NAN, -_INF, _NAN, -1.0, _NAN]),
    ],
)
def test_extremes_of_two_are_nan_where_one_is(dtype: DataType, mode: PointwiseMode, expected: list[float]) -> None:
    _check(dtype, mode, [_X, _Y], expected)


@pytest.mark.a_few("DataType.HALF")
@pytest.mark.parametrize("dtype", _TYPES)
def test_nan_stays_beside_numbers(dtype: DataType) -> None:
    _check(dtype, PointwiseMode.MAX, [_X, 2.0], [_NAN, 2.0, 2.0, _INF, 2.0, _NAN, 2.5, _NAN])
    _check(dtype, PointwiseMode.MAX, [-1.0, _X], [_NAN, 1.0, -1.0, _INF, -1.0, _NAN, 2.5, _NAN])
    _check(dtype, PointwiseMode.MIN, [_X, 2.0], [_NAN, 1.0, -3.0, 2.0, -_INF, _NAN, 2.0, _NAN])
    clips = {"relu_lower_clip": -1.0, "relu_upper_clip": 2.0}
    _check(dtype, PointwiseMode.RELU_FWD, [_X], [_NAN, 1.0, -1.0, 2.0, -1.0, _NAN, 2.0, _NAN], **clips)


@pytest.mark.a_few("DataType.DOUBLE")
@pytest.mark.parametrize("source", [DataType.DOUBLE, DataType.FLOAT, DataType.BFLOAT16])
def test_small_numbers_become_half_numbers(source: DataType) -> None:
    """All multiples of 2**-24 up to 2**-13 are HALF numbers, the first 1,023 of them subnormal."""
    small = np.arange(-2048, 2049) * 2.0**-24
    g = Graph("cast", io_data_type=source, compute_data_type=source)
    x = g.tensor("x", dim=small.shape)
    y = g.pointwise(PointwiseMode.IDENTITY, x).set_output().set_data_type(DataType.HALF)
    result, given = aligned(np.ones(small.shape, np.float16)), aligned(small.astype(source.numpy))
    build(g.validate(), "cpu").run({x: given, y: result})
    assert result.astype(np.float64).tolist() == given.astype(np.float64).tolist()


def test_large_angles_and_angles_near_zeros() -> None:
    """By hand: sin(1e4), sin(1e10), and of the float next to pi what that is short of pi."""
    angles = [1e4, 1e10, 3.1415927410125732, -0.5]
    _check(DataType.FLOAT, PointwiseMode.SIN, [angles], [-0.30561438, -0.48750603, -8.7422777e-08, -0.47942555])
    _check(DataType.FLOAT, PointwiseMode.TAN, [angles], [0.32097113, -0.55834961, 8.7422777e-08, -0.54630249])


def _check(
    dtype: DataType, mode: PointwiseMode, operands: list[list[float] | float], expected: list[float], **given: float
) -> None:
    g = Graph("nan", io_data_type=dtype, compute_data_type=DataType.FLOAT)
    pack, inputs = {}, []
    for operand in operands:
        if isinstance(operand, list):
            inputs.append(g.tensor(dim=(len(operand),)))
            pack[inputs[-1]] = aligned(np.array(operand, _TYPES[dtype]))
        else:
            inputs.append(operand)
    y = g.pointwise(mode, *inputs, **given).set_output(True)
    pack[y] = aligned(np.zeros(len(expected), _TYPES[dtype]))
    build(g.validate(), "cpu").run(pack)
    np.testing.assert_array_equal(pack[y].astype(np.float32), np.array(expected, np.float32))
