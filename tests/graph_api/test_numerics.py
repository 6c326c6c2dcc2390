from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from graph_api import DataType, Graph, GraphError, PointwiseMode, TensorAttr
from graph_api.numerics import SLACK, Comparison, check, compare, evaluate, random_inputs

M = PointwiseMode
Array = np.ndarray[Any, Any]


def conv(dtype: DataType = DataType.HALF, *, k: int = 64) -> Graph:
    """A 1x1 convolution over ``k`` channels: sums of ``k`` products."""
    g = Graph("conv", io_data_type=dtype)
    g.conv_fprop(g.tensor("x", dim=(2, k, 3, 3)), g.tensor("w", dim=(4, k, 1, 1))).set_output().set_name("y")
    return g.validate()


def rounded(graph: Graph, pack: dict[TensorAttr, Array]) -> Array:
    """What a perfect device stores."""
    (y,) = graph.arguments().outputs
    return graph.reference({**pack})[y].astype(y.data_type.numpy)


def one(graph: Graph, pack: dict[TensorAttr, Array], result: Array) -> Comparison:
    (comparison,) = check(graph, {**pack}, {graph.arguments().outputs[0]: result})
    return comparison


# ---- what check catches --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [DataType.HALF, DataType.BFLOAT16, DataType.FLOAT, DataType.DOUBLE])
def test_the_rounded_reference_passes_and_one_wrong_element_does_not(dtype: DataType) -> None:
    g = conv(dtype)
    pack = random_inputs(g)
    result = rounded(g, pack)
    assert one(g, pack, result).ok
    where = np.unravel_index(np.argmax(np.abs(result.astype(np.float64))), result.shape)
    result[where] *= result.dtype.type(1.07 if dtype is DataType.BFLOAT16 else 1.01)
    found = one(g, pack, result)
    assert not found.ok
    assert found.index == where
    assert str(found).startswith(f"'y' WRONG: error/tolerance {found.max_ratio:.3g} at [{where[0]}, ")


def test_misplaced_elements_are_caught() -> None:
    g = conv()
    pack = random_inputs(g)
    result = rounded(g, pack)
    assert not one(g, pack, result[::-1]).ok
    assert not one(g, pack, np.roll(result, 1, axis=-1)).ok
    swapped = result.copy()
    swapped[0, 0, 0, :2] = swapped[0, 0, 0, 1::-1]
    assert not one(g, pack, swapped).ok


def test_a_small_element_is_not_excused_by_a_large_neighbour() -> None:
    g = conv(DataType.FLOAT, k=2)
    x, w = g.arguments().inputs
    pack = {x: np.zeros((2, 2, 3, 3), np.float32), w: np.ones((4, 2, 1, 1), np.float32)}
    pack[x][0, :, 0, 0] = 1e6
    pack[x][0, :, 0, 1] = 1e-3
    result = rounded(g, pack)
    assert one(g, pack, result).ok
    result[0, 0, 0, 1] += 1e-6
    assert not one(g, pack, result).ok


def test_a_cancelling_sum_may_be_off_by_the_rounding_of_its_terms_and_by_no_more() -> None:
    g = conv(DataType.FLOAT, k=3)
    x, w = g.arguments().inputs
    pack = {x: np.zeros((2, 3, 3, 3), np.float32), w: np.ones((4, 3, 1, 1), np.float32)}
    pack[x][0, :, 0, 0] = [1e6, 0.3, -1e6]
    result = rounded(g, pack)
    # (1e6 + 0.3) - 1e6 in f32: 1e6 + 0.3 is a multiple of 1/16
    result[0, :, 0, 0] = np.float32(1e6) + np.float32(0.3) - np.float32(1e6)
    assert result[0, 0, 0, 0] == np.float32(0.3125)
    assert one(g, pack, result).ok
    result[0, :, 0, 0] = 0.3 + 2.0  # the rounding of f16 accumulation, say
    assert not one(g, pack, result).ok
    result[0, :, 0, 0] = 0.3125
    result[0, 0, 1, 1] = 1e-30  # where all terms are 0, so is the sum
    assert not one(g, pack, result).ok


def test_accumulation_in_half_is_caught() -> None:
    g = conv(DataType.HALF, k=256)
    pack = random_inputs(g, seed=3)
    x, w = (array.astype(np.float16) for array in pack.values())
    total = np.zeros((2, 4, 3, 3), np.float16)
    for channel in range(256):
        total += x[:, None, channel] * w[None, :, channel]
    assert not one(g, pack, total).ok
    wide = np.zeros((2, 4, 3, 3), np.float32)
    for channel in range(256):
        wide += x[:, None, channel].astype(np.float32) * w[None, :, channel].astype(np.float32)
    assert one(g, pack, wide.astype(np.float16)).ok


@pytest.mark.parametrize(
    "mode", [M.ADD, M.MUL, M.DIV, M.NEG, M.SIGMOID_FWD, M.TANH_FWD, M.GELU_FWD, M.SWISH_FWD, M.EXP, M.RELU_FWD, M.ABS]
)
@pytest.mark.parametrize("dtype", [DataType.HALF, DataType.BFLOAT16])
def test_ten_roundings_of_a_narrow_output_are_flagged(mode: PointwiseMode, dtype: DataType) -> None:
    g = Graph("g", io_data_type=dtype)
    arity = 2 if mode in (M.ADD, M.MUL, M.DIV) else 1
    g.pointwise(mode, *(g.tensor(f"x{i}", dim=(500,)) for i in range(arity))).set_output()
    pack = random_inputs(g, seed=1)
    evaluation = evaluate(g, {**pack})
    (y,) = g.arguments().outputs
    value = np.abs(evaluation.values[y])
    normal = value > 2.0**-6  # below, the distance of subnormal numbers counts
    assert np.count_nonzero(normal) > 200
    ten = 10 * 0.5 * dtype.eps * value
    assert np.all((SLACK * evaluation.errors[y] < ten)[normal])
    # and one rounding is not
    assert np.all((SLACK * evaluation.errors[y] >= 0.5 * dtype.eps * value)[normal])


def test_ten_roundings_of_a_convolution_in_half_are_flagged() -> None:
    g = conv(DataType.HALF, k=576)
    evaluation = evaluate(g, {**random_inputs(g)})
    (y,) = g.arguments().outputs
    value = np.abs(evaluation.values[y])
    large = value > 5  # of a standard deviation of 24
    assert np.count_nonzero(large) > 30
    assert np.all((SLACK * evaluation.errors[y] < 5 * 2.0**-10 * value)[large])


def test_an_activation_in_float_is_held_to_some_roundings() -> None:
    g = Graph("g", io_data_type=DataType.FLOAT)
    g.pointwise(M.SIGMOID_FWD, g.tensor("x", dim=(500,))).set_output()
    evaluation = evaluate(g, {**random_inputs(g)})
    (y,) = g.arguments().outputs
    assert np.all(SLACK * evaluation.errors[y] < 40 * 2.0**-23 * np.abs(evaluation.values[y]))


def test_errors_are_carried_through_a_chain() -> None:
    """A stored f16 intermediate may be off by its rounding; what follows sees that, an f32 one does not have it."""

    def tolerance(intermediate: DataType) -> float:
        g = Graph("g", io_data_type=DataType.FLOAT, intermediate_data_type=intermediate)
        v = g.pointwise(M.MUL, g.tensor("a", dim=(1,)), g.tensor("b", dim=(1,)))
        y = g.pointwise(M.MUL, v, 1000.0).set_output()
        return float(evaluate(g, {"a": [3.0], "b": [1 / 3]}).errors[y][0])

    assert 0.4 * 2.0**-10 * 1000 < tolerance(DataType.HALF) < 2.0**-10 * 1000
    assert tolerance(DataType.FLOAT) < 4 * 2.0**-23 * 1000


# ---- special values ------------------------------------------------------------------------------------------------

NAN, INF = np.nan, np.inf


@pytest.mark.parametrize(
    ("got", "expected", "ok"),
    [
        (NAN, NAN, True),
        (INF, INF, True),
        (-INF, -INF, True),
        (INF, -INF, False),
        (NAN, 1.0, False),
        (1.0, NAN, False),
        (NAN, INF, False),
        (INF, NAN, False),
        (INF, 1.0, False),
        (1.0, INF, False),
        (65504.0, INF, False),
        (0.0, -0.0, True),
        # beyond f16: infinity is right, the largest number is not
        (INF, 1e6, True),
        (-INF, -1e6, True),
        (-INF, 1e6, False),
        (65504.0, 1e6, False),
        # at the edge of f16, 65504 and 65520, both are
        (65504.0, 65519.0, True),
        (INF, 65519.0, True),
        (INF, 65000.0, False),
    ],
)
@pytest.mark.parametrize("position", [0, 1])
def test_special_values(got: float, expected: float, ok: bool, position: int) -> None:
    tensor = TensorAttr(name="y", dims=(2,), data_type=DataType.HALF)
    result, reference = np.ones(2, np.float16), np.ones(2)
    result[position], reference[position] = got, expected
    with np.errstate(invalid="ignore"):
        bound = 0.5 * 2.0**-10 * np.abs(reference) + 2.0**-24
    found = compare(tensor, result, reference, bound)
    assert found.ok is ok, str(found)
    if not ok:
        assert found.index == (position,)


def test_a_result_of_rank_0() -> None:
    g = Graph("g", io_data_type=DataType.FLOAT)
    y = g.pointwise(M.NEG, g.tensor("x", dim=())).set_output().set_name("y")
    (good,) = check(g, {"x": 2.0}, {y: np.float32(-2)})
    (bad,) = check(g, {"x": 2.0}, {y: np.float32(-2.001)})
    assert (good.ok, bad.ok, bad.index) == (True, False, ())


def test_inputs_that_overflow_or_are_nan_are_rounded_silently() -> None:
    g = Graph("g", io_data_type=DataType.HALF)
    y = g.pointwise(M.ADD, g.tensor("x", dim=(3,)), 1.0).set_output()
    np.testing.assert_array_equal(g.reference({"x": [1e6, NAN, -1e6]})[y], [INF, NAN, -INF])
    np.testing.assert_array_equal(g.reference({"x": [2049.0, 0.1, 0]})[y], [2049, 1 + float(np.float16(0.1)), 1])


def test_nan_travels_through_a_graph() -> None:
    g = conv(DataType.HALF, k=4)
    pack = random_inputs(g)
    x = next(iter(pack))
    pack[x][0, 0, 1, 1] = NAN
    result = rounded(g, pack)
    assert np.count_nonzero(np.isnan(result)) == 4
    assert one(g, pack, result).ok
    result[0, 0, 1, 1] = 0
    assert not one(g, pack, result).ok


# ---- integers and booleans -----------------------------------------------------------------------------------------


def test_integers_are_exact() -> None:
    g = Graph("g", io_data_type=DataType.INT32)
    y = g.pointwise(M.MUL, g.tensor("a", dim=(3,)), g.tensor("b", dim=(3,))).set_output()
    inputs = {"a": [5, -7, 1000], "b": [3, 3, 1000]}
    (good,) = check(g, inputs, {y: np.array([15, -21, 10**6], np.int32)})
    (bad,) = check(g, inputs, {y: np.array([15, -21, 10**6 + 1], np.int32)})
    assert (good.ok, bad.ok, bad.max_error) == (True, False, 1.0)


def test_an_integer_beyond_the_range_of_its_type_is_any_number_and_one_within_is_not() -> None:
    g = Graph("g", io_data_type=DataType.INT32)
    y = g.pointwise(M.MUL, g.tensor("a", dim=(2,)), g.tensor("b", dim=(2,))).set_output()
    inputs = {"a": [50_000, 1000], "b": [50_000, 1000]}
    for first, second, ok in ((-1794967296, 10**6, True), (2**31 - 1, 10**6, True), (0, 10**6 + 1, False)):
        (found,) = check(g, inputs, {y: np.array([first, second], np.int32)})
        assert found.ok is ok, (first, second)


def test_a_float_near_a_whole_number_may_be_stored_either_way() -> None:
    g = Graph("g", io_data_type=DataType.FLOAT)
    y = g.pointwise(M.MUL, g.tensor("a", dim=(2,)), 3.0).set_output().set_data_type(DataType.INT32)
    inputs = {"a": [1 / 3, 0.5]}  # 1 give or take a rounding, and 1.5
    for first, second, ok in ((1, 1, True), (0, 1, True), (2, 1, True), (3, 1, False), (1, 2, False), (1, 0, False)):
        (found,) = check(g, inputs, {y: np.array([first, second], np.int32)})
        assert found.ok is ok, (first, second)


def test_booleans() -> None:
    g = Graph("g", io_data_type=DataType.FLOAT)
    y = g.pointwise(M.CMP_GT, g.tensor("a", dim=(3,)), 1.0).set_output().set_data_type(DataType.BOOLEAN)
    inputs = {"a": [0.5, 1.0, 1.5]}
    (good,) = check(g, inputs, {y: np.array([False, False, True])})
    (bad,) = check(g, inputs, {y: np.array([False, True, True])})
    assert (good.ok, bad.ok, bad.index) == (True, False, (1,))


# ---- what is given -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("results", "message"),
    [
        ({}, "no result was given for output 'y'"),
        ({"y": np.zeros((2, 4, 9))}, r"result 'y' has shape \(2, 4, 9\), its tensor has dims \(2, 4, 3, 3\)"),
        ({"z": 0}, "has no tensor 'z'"),
        ({"y": None}, "'y': expected an array of real numbers"),
        ({"y": 0, 3: 0}, "tensor 'y' is given twice"),
    ],
)
def test_bad_results(results: Any, message: str) -> None:
    g = conv()
    with pytest.raises(GraphError, match=message):
        check(g, {**random_inputs(g)}, results)


def test_random_inputs_are_seeded_and_have_the_layout() -> None:
    g = Graph("g", io_data_type=DataType.FLOAT)
    tensors = [g.tensor(dtype.name, dim=(2, 3, 50, 5), layout="NHWC", data_type=dtype) for dtype in DataType]
    tensors.append(g.tensor("repeated", dim=(2, 3, 50, 5), stride=(0, 0, 5, 1)))
    for tensor in tensors:
        g.pointwise(M.IDENTITY, tensor).set_output()
    pack, again, other = random_inputs(g, 1), random_inputs(g, 1), random_inputs(g, 2)
    assert list(pack) == tensors
    for tensor, array in pack.items():
        assert (array.shape, array.dtype) == (tensor.dims, tensor.data_type.numpy)
        assert array.strides == tuple(array.itemsize * stride for stride in tensor.strides)
        np.testing.assert_array_equal(array, again[tensor])
        assert not np.array_equal(array, other[tensor])
        values = array.astype(np.float64)
        if tensor.data_type is DataType.BOOLEAN:
            assert 0.3 < values.mean() < 0.7
        elif tensor.data_type.is_integer:
            assert (values.min(), values.max()) == (0 if tensor.data_type.name[0] == "U" else -8, 7)
        elif tensor.data_type is DataType.FP8_E8M0:
            assert set(values.ravel()) == {2.0**power for power in range(-3, 4)}
        else:
            assert 0.8 < values.std() < 1.2


def test_int4_inputs_are_values_or_bytes() -> None:
    g = Graph("g", io_data_type=DataType.FLOAT)
    x = g.tensor("x", dim=(3,), data_type=DataType.INT4)
    y = g.pointwise(M.MUL, x, 0.5, compute_data_type=DataType.FLOAT).set_output()
    g.validate()
    expected = [-4.0, 3.5, -0.5]
    for given in ([-8, 7, -1], np.array([-8, 7, -1], ml_dtypes.int4), np.array([0x78, 0xAF], np.uint8)):
        assert g.reference({x: np.asarray(given)})[y].tolist() == expected
        (found,) = check(g, {x: np.asarray(given)}, {y: np.array(expected, np.float32)})
        assert found.ok
    with pytest.raises(GraphError, match=r"the memory of tensor 'x' is uint8 \[2\], got uint8 \[3\]"):
        g.reference({x: np.array([1, 2, 3], np.uint8)})


def test_the_smallest_numbers_are_ml_dtypes() -> None:
    """A result that rounds to 0 is right where the reference is below the smallest number."""
    g = Graph("g", io_data_type=DataType.BFLOAT16)
    y = g.pointwise(M.MUL, g.tensor("a", dim=(1,)), g.tensor("b", dim=(1,))).set_output()
    small = np.array([1e-30], ml_dtypes.bfloat16)
    (found,) = check(g, {"a": small, "b": small}, {y: np.zeros(1, ml_dtypes.bfloat16)})
    assert found.ok


@pytest.mark.parametrize("seed", [-1, 1.5, "1", None])
def test_a_bad_seed(seed: Any) -> None:
    g = Graph(io_data_type=DataType.FLOAT)
    g.pointwise(PointwiseMode.RELU_FWD, g.tensor("x", dim=(2,))).set_output()
    with pytest.raises(GraphError, match="a seed is an integer from 0 on"):
        g.random_inputs(seed)


def test_an_exponential_that_is_flushed_to_zero_is_right() -> None:
    # In float32, 1 / (1 + exp(89.6)) is 1 / infinity; exactly it is 1.3e-39, and times -89.6 a normal number.
    g = Graph("g", io_data_type=DataType.FLOAT)
    x = g.tensor("x", dim=(2,))
    y = g.pointwise(M.SWISH_FWD, x).set_output()
    pack = {x: np.array([-89.6, -10.0], np.float32)}
    assert all(each.ok for each in check(g, pack, {y: np.array([-0.0, -4.5397868e-4], np.float32)}))
    assert not all(each.ok for each in check(g, pack, {y: np.array([-1e-35, -4.5397868e-4], np.float32)}))
    assert not all(each.ok for each in check(g, pack, {y: np.array([-0.0, -4.5396e-4], np.float32)}))


def test_errors_of_inputs_reach_the_results_and_such_inputs_are_not_rounded() -> None:
    """By hand: |d(ab)| <= |a| db + |b| da; a third is no float32."""
    g = Graph("product", io_data_type=DataType.FLOAT)
    a, b = g.tensor("a", dim=(2,)), g.tensor("b", dim=(2,))
    c = g.pointwise(PointwiseMode.MUL, a, b).set_output()
    pack = {a: np.array([1 / 3, 2.0]), b: np.array([3.0, -4.0])}
    plain = evaluate(g.validate(), pack)
    assert plain.values[c][0] == float(np.float32(1 / 3)) * 3.0
    found = evaluate(g, pack, input_errors={a: np.array([1e-3, 0.0]), "b": np.array([0.0, 0.5])})
    assert found.values[c].tolist() == [1.0, -8.0]
    np.testing.assert_allclose(found.errors[c] - plain.errors[c], [3e-3, 1.0], rtol=1e-6)
    for errors, message in (
        ({"z": np.zeros(2)}, "'z'"),
        ({c: np.zeros(2)}, "is no input"),
        ({a: np.zeros(3)}, r"bound of input 'a' has shape \(3,\), its tensor dims \(2,\)"),
        ({a: "x"}, "'a': expected an array of real numbers"),
    ):
        with pytest.raises(GraphError, match=message):
            evaluate(g, pack, input_errors=errors)
