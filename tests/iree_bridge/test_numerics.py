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

_CASES = [
    pytest.param(case, id=f"{family}-{case.name}", marks=() if case.fast else (pytest.mark.slow,))
    for family, case in all_cases()
]


@pytest.mark.parametrize("case", _CASES)
def test_case(case: OpCase, request: pytest.FixtureRequest) -> None:
    assert_right(case, str(request.config.getoption("--device")))


_NAN, _INF = np.nan, np.inf
_X = [_NAN, 1.0, -3.0, _INF, -_INF, _NAN, 2.5, _NAN]
_Y = [1.0, _NAN, 2.0, _NAN, 4.0, _NAN, -1.0, _INF]
_TYPES = {DataType.FLOAT: np.float32, DataType.HALF: np.float16, DataType.BFLOAT16: ml_dtypes.bfloat16}


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


@pytest.mark.parametrize("dtype", _TYPES)
def test_nan_stays_beside_numbers(dtype: DataType) -> None:
    _check(dtype, PointwiseMode.MAX, [_X, 2.0], [_NAN, 2.0, 2.0, _INF, 2.0, _NAN, 2.5, _NAN])
    _check(dtype, PointwiseMode.MAX, [-1.0, _X], [_NAN, 1.0, -1.0, _INF, -1.0, _NAN, 2.5, _NAN])
    _check(dtype, PointwiseMode.MIN, [_X, 2.0], [_NAN, 1.0, -3.0, 2.0, -_INF, _NAN, 2.0, _NAN])
    clips = {"relu_lower_clip": -1.0, "relu_upper_clip": 2.0}
    _check(dtype, PointwiseMode.RELU_FWD, [_X], [_NAN, 1.0, -1.0, 2.0, -1.0, _NAN, 2.0, _NAN], **clips)


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
