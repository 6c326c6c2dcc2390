"""What `fusilli fuzz` found in our own code, each with a right value that was derived without it."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from fusilli_plugin.emulator import Emulator, assemble, emulate
from graph_api import DataType, Graph, NormFwdPhase, PointwiseMode, ReductionMode, ResampleMode
from graph_api.layout import strides_in_order
from iree_bridge import Options, Target, build
from iree_bridge.compile.compiler import compile_code
from iree_bridge.emit.rounded import elementwise_sources, is_elementwise

_NUMBERS = (-1e-300, -3e-20, -(2.0**-30), -2.17e-4, -1e-3, -(2.0**-9))


def _tanh(x: Fraction) -> Fraction:
    """The first terms of its series: what is left out is below 2**-60 of the result."""
    return x - x**3 / 3 + 2 * x**5 / 15 - 17 * x**7 / 315


def _exp_less_one(x: Fraction) -> Fraction:
    return x + x**2 / 2 + x**3 / 6 + x**4 / 24 + x**5 / 120 + x**6 / 720


@pytest.mark.a_few("ELU_FWD-_exp_less_one")
@pytest.mark.iree_cpu
@pytest.mark.parametrize(("mode", "exact"), [("TANH_FWD", _tanh), ("ELU_FWD", _exp_less_one)])
def test_small_doubles_keep_their_digits(mode: str, exact: Callable[[Fraction], Fraction]) -> None:
    """seed 7000561: the CPU target's exp(x) - 1 cancels, so that the tanh of 1e-19 was 0."""
    g = Graph("small", io_data_type=DataType.DOUBLE)
    x = g.tensor("x", dim=(len(_NUMBERS),))
    y = g.pointwise(PointwiseMode[mode], x).set_output(True)
    pack = {x: np.array(_NUMBERS), y: y.empty()} if g.validate() else {}
    build(g, "cpu").run(pack)
    for number, got in zip(_NUMBERS, pack[y], strict=True):
        right = exact(Fraction(number))
        assert abs(Fraction(float(got)) - right) <= abs(right) * Fraction(4, 2**52), number


@pytest.mark.a_few("-3.0-FLOAT")
@pytest.mark.iree_cpu
@pytest.mark.parametrize("data_type", [DataType.DOUBLE, DataType.FLOAT], ids=lambda each: each.name)
@pytest.mark.parametrize("number", [-3.0, 2.0])
def test_functions_of_numbers_in_double(number: float, data_type: DataType) -> None:
    """seeds 11000312 and 11000264: the compiler's tanh of a constant was 0, or its process ended."""
    g = Graph("slopes", io_data_type=data_type, compute_data_type=DataType.DOUBLE)
    dy, x = g.tensor("dy", dim=(3,)), g.scalar(number, data_type=DataType.FLOAT)
    y = g.pointwise(PointwiseMode.TANH_BWD, dy, x).set_output(True)
    z = g.pointwise(PointwiseMode.GELU_APPROX_TANH_BWD, dy, x).set_output(True)
    g.validate()
    pack = {dy: np.array([1.0, -2.0, 0.5], data_type.numpy), y: y.empty(), z: z.empty()}
    build(g, "cpu").run(pack)
    scale, cube = math.sqrt(2 / math.pi), 0.044715
    t = math.tanh(scale * (number + cube * number**3))
    gelu = 0.5 * (1 + t) + 0.5 * number * (1 - t * t) * scale * (1 + 3 * cube * number * number)
    near = 1e-12 if data_type is DataType.DOUBLE else 1e-6
    np.testing.assert_allclose(pack[y], pack[dy] * (1 - math.tanh(number) ** 2), rtol=near)
    np.testing.assert_allclose(pack[z], pack[dy] * gelu, rtol=near)


@pytest.mark.thorough
@pytest.mark.iree_cpu
def test_integer_images_in_an_odd_order_that_are_read_twice() -> None:
    """Seed 1006050: "restricted to workgroup distributed contexts" where one kernel made both results."""
    g = Graph("twice", io_data_type=DataType.INT32, compute_data_type=DataType.INT32)
    x = g.tensor("x", dim=(5, 3, 2, 8), stride=(2, 360, 12, 36))
    w = g.tensor("w", dim=(3, 1, 1, 1))
    least, most = g.tensor("least", dim=(1, 1, 1, 1), data_type=DataType.UINT8), g.tensor("most", dim=(1, 1, 1, 1))
    y = g.conv_fprop(x, w, pre_padding=(0, 1), post_padding=(0, 1), stride=(2, 3)).set_output(True)
    y.set_dim((5, 3, 1, 4)).set_stride((12, 4, 4, 1))
    middle = g.pointwise(PointwiseMode.MAX, x, least).set_dim((5, 3, 2, 8)).set_stride((1, 80, 5, 10))
    z = g.pointwise(PointwiseMode.MIN, most, middle).set_output(True)
    z.set_dim((5, 3, 2, 8)).set_stride((2, 42, 14, 210))
    pack = g.validate().random_inputs(seed=1) | {y: y.empty(), z: z.empty()}
    build(g, "cpu").run(pack)
    padded = np.pad(pack[x], ((0, 0), (0, 0), (0, 0), (1, 1)))
    np.testing.assert_array_equal(pack[y], padded[:, :, ::2, ::3] * pack[w].reshape(1, 3, 1, 1))
    np.testing.assert_array_equal(pack[z], np.minimum(pack[most], np.maximum(pack[x], np.int32(pack[least]))))


@pytest.mark.iree_cpu
def test_filter_gradients_of_integers_in_groups() -> None:
    """Seed 912600001770: "'vector.contract' op invalid accumulator" in all forms but that of little fusion."""
    g = Graph("groups", io_data_type=DataType.INT32, compute_data_type=DataType.INT64)
    x = g.tensor("x", dim=(2, 2, 4), data_type=DataType.INT64)
    dy = g.tensor("dy", dim=(2, 2, 2), stride=(0, 2, 1), data_type=DataType.UINT8)
    dw = g.conv_wgrad(dy, x, stride=(3,)).set_dim((2, 1, 1)).set_output(True)
    pack = g.validate().random_inputs(seed=1) | {dw: dw.empty()}
    build(g, "cpu").run(pack)
    met = np.asarray(pack[x])[:, :, ::3]
    np.testing.assert_array_equal(pack[dw][:, 0, 0], (met * np.asarray(pack[dy]).astype(np.int64)).sum(axis=(0, 2)))


@pytest.mark.iree_cpu
@pytest.mark.a_few("1-2-DataType.DOUBLE-cpu", "5-3-DataType.INT64-gfx942")
@pytest.mark.parametrize("place", ["cpu", "gfx942"])
@pytest.mark.parametrize("dtype", [DataType.DOUBLE, DataType.INT64, DataType.FLOAT], ids=str)
@pytest.mark.parametrize(("size", "window"), [(1, 2), (5, 3)])
def test_pools_that_are_padded_alike(size: int, window: int, dtype: DataType, place: str) -> None:
    """Seed 912600000542: "'stream.yield' op used resource not listed" of equal fillings of 8 bytes."""
    g = Graph("pools", io_data_type=dtype, compute_data_type=dtype, intermediate_data_type=dtype)
    x = y = g.tensor("x", dim=(2, 1, size))
    for _ in range(3):  # one behind the other, as the end of some detectors is
        y, _ = g.resample_fwd(
            y, mode=ResampleMode.MAXPOOL, window=(window,), stride=(1,), pre_padding=(0,), post_padding=(window - 1,)
        )
    y.set_output(True)
    numbers = -1 - np.arange(2 * size).reshape(2, 1, size) % 7
    pack = {g.validate().find("x"): numbers.astype(dtype.numpy)} | {y: y.empty()}
    if place == "cpu":
        build(g, "cpu").run(pack)
    else:
        pack |= Emulator(place).run(g, {x: pack[x]})[0]
    reach = 3 * (window - 1) + 1
    wanted = [[max(row[0][at : at + reach]) for at in range(size)] for row in numbers]
    np.testing.assert_array_equal(pack[y][:, 0], wanted)


@pytest.mark.a_few("DataType.INT64")
@pytest.mark.mlir
@pytest.mark.parametrize("sums", [DataType.FLOAT, DataType.INT64])
def test_a_gradient_that_meets_a_part_of_a_reduction(sums: DataType) -> None:
    """Seed 7200000381: "restricted to workgroup distributed contexts" for AMD's chips; by hand for one sequence."""
    g = Graph("part", io_data_type=sums, compute_data_type=sums, intermediate_data_type=sums)
    x, dy = g.tensor("x", dim=(2, 2, 2, 2)), g.tensor("dy", dim=(2, 2, 1, 1))
    y = g.reduction(x, mode=ReductionMode.NORM1).set_dim((2, 2, 1, 2))
    dw = g.conv_wgrad(dy, y, pre_padding=(1, 0), post_padding=(1, 0), stride=(2, 3)).set_output(True)
    dw.set_dim((2, 2, 3, 1))
    pack = g.validate().random_inputs(seed=1)
    outcome = Emulator("gfx942").examine(g, pack)
    assert outcome.ok, outcome.text
    lengths = np.abs(pack[x].astype(np.float64)).sum(axis=2)[:, :, 0]
    wanted = np.zeros((2, 2, 3, 1))
    wanted[:, :, 1, 0] = np.einsum("nk,nc->kc", pack[dy].reshape(2, 2).astype(np.float64), lengths)
    np.testing.assert_allclose(g.reference(pack)[dw], wanted, rtol=1e-5)


@pytest.mark.a_few("gfx942-NCHW")
@pytest.mark.iree_cpu
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("place", ["cpu", "gfx942"])
def test_an_image_is_whole_beside_a_pool_that_reads_a_part_of_it(place: str, layout: str) -> None:
    """seed 90210002118: of a stored image whose every second row is pooled, only what the pool reads was written."""
    g = Graph("pyramid", io_data_type=DataType.FLOAT)
    x = g.tensor("x", dim=(2, 3, 5, 7), layout=layout)
    image = g.pointwise(PointwiseMode.NEG, x).set_output(True)
    pooled = g.resample_fwd(image, mode=ResampleMode.MAXPOOL, window=(1, 1), stride=(2, 2))[0].set_output(True)
    g.validate()
    pack = {x: x.empty(), image: image.empty(), pooled: pooled.empty()}
    pack[x][...] = np.arange(2 * 3 * 5 * 7).reshape(2, 3, 5, 7)
    if place == "cpu":
        build(g, "cpu").run(pack)
    else:
        pack |= emulate(g, pack, assemble(g, Target.parse(place)))
    np.testing.assert_array_equal(pack[image], -pack[x])
    np.testing.assert_array_equal(pack[pooled], -pack[x][:, :, ::2, ::2])


@pytest.mark.a_few("gfx942")
@pytest.mark.iree_cpu
@pytest.mark.parametrize("place", ["cpu", "gfx942"])
def test_an_image_is_whole_beside_a_convolution_that_reads_a_part_of_it(place: str) -> None:
    """The same of a convolution of points with one filter."""
    g = Graph("projection", io_data_type=DataType.FLOAT)
    x, w = g.tensor("x", dim=(1, 6, 8, 4), layout="NHWC"), g.tensor("w", dim=(1, 6, 1, 1))
    image = g.pointwise(PointwiseMode.NEG, x).set_output(True)
    y = g.conv_fprop(image, w, pre_padding=(0, 0), post_padding=(0, 0), stride=(1, 2), dilation=(1, 1)).set_output(True)
    g.validate()
    pack = {x: x.empty(), w: w.empty(), image: image.empty(), y: y.empty()}
    pack[x][...] = np.arange(6 * 8 * 4).reshape(1, 6, 8, 4)
    pack[w][...] = np.arange(1, 7).reshape(1, 6, 1, 1)
    if place == "cpu":
        build(g, "cpu").run(pack)
    else:
        pack |= emulate(g, pack, assemble(g, Target.parse(place)))
    np.testing.assert_array_equal(pack[image], -pack[x])
    np.testing.assert_array_equal(pack[y], -(pack[x] * pack[w]).sum(axis=1, keepdims=True)[..., ::2])


@pytest.mark.a_few("order1", "order4")
@pytest.mark.iree_cpu
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_quotients_of_exponentials_that_are_stored_in_another_order(order: tuple[int, ...]) -> None:
    """Seed 921600005566: the compiler transposed one of two results of an operation, and refused what it had made."""
    g = Graph("rows", io_data_type=DataType.FLOAT, intermediate_data_type=DataType.FLOAT)
    dims = (2, 3, 20)
    x = g.tensor("x", dim=dims)
    weights = g.pointwise(PointwiseMode.EXP, x)
    sums = g.reduction(weights, mode=ReductionMode.ADD).set_dim((2, 3, 1)).set_stride((1, 2, 1)).set_output(True)
    y = g.pointwise(PointwiseMode.DIV, weights, sums).set_output(True)
    y.set_dim(dims).set_stride(strides_in_order(dims, order))
    pack = g.validate().random_inputs(seed=1) | {y: y.empty(), sums: sums.empty()}
    build(g, "cpu").run(pack)
    exact = np.exp(pack[x].astype(np.float64))
    np.testing.assert_allclose(pack[sums], exact.sum(axis=-1, keepdims=True), rtol=1e-6)
    np.testing.assert_allclose(pack[y], exact / exact.sum(axis=-1, keepdims=True), rtol=1e-6)


@pytest.mark.a_few("HALF-BFLOAT16", "DOUBLE-FLOAT")
@pytest.mark.mlir
@pytest.mark.parametrize("result", ["HALF", "BFLOAT16", "FLOAT", "DOUBLE"])
@pytest.mark.parametrize("source", ["HALF", "BFLOAT16", "FLOAT", "DOUBLE"])
def test_error_functions_from_type_to_type(source: str, result: str) -> None:
    """Seeds 921700002528 and 921700000941: of other types than those beside it the compiler had no code of a sign."""
    numbers = [-math.inf, -9.0, -1.5, -0.25, -0.0, 0.0, 2.0**-12, 0.5, 1.0, 3.0, math.inf, math.nan]
    g = Graph("erf", io_data_type=DataType[source], compute_data_type=DataType.FLOAT)
    x = g.tensor("x", dim=(len(numbers),))
    y = g.pointwise(PointwiseMode.ERF, x).set_output(True).set_data_type(DataType[result])
    g.validate()
    got = Emulator("gfx942").run(g, {x: np.array(numbers).astype(x.data_type.numpy)})[0][y]
    near = max(float(y.data_type.eps), 2.0**-22)
    np.testing.assert_allclose(got.astype(np.float64), [math.erf(number) for number in numbers], rtol=near, atol=0)


@pytest.mark.a_few("0", "1", "2", "3", "4", "5")
@pytest.mark.mlir
@pytest.mark.parametrize("seed", range(60))
def test_pools_that_leave_a_part_of_what_a_convolution_makes(seed: int) -> None:
    """Seed 921700004373: "restricted to workgroup distributed contexts" for AMD's chips, of 7 in 60 of these."""
    draw = random.Random(seed)
    sides = draw.randint(2, 13), draw.randint(2, 13)
    window = tuple(draw.randint(1, min(3, side)) for side in sides)
    stride = draw.choice([1, 2, 3]), draw.choice([1, 2, 3])
    channels, filters = draw.choice([1, 2, 3, 8, 16]), draw.choice([1, 2, 4, 16])
    layout = draw.choice(["NCHW", "NHWC"])
    g = Graph("left", io_data_type=DataType.FLOAT, intermediate_data_type=DataType.FLOAT)
    x = g.tensor("x", dim=(draw.choice([1, 2]), channels, *sides), layout=layout)
    w = g.tensor("w", dim=(filters, channels, 1, 1), layout=layout)
    y = g.conv_fprop(x, w)
    if draw.random() < 0.3:
        y.set_output(True)
    z = g.resample_fwd(y, mode=ResampleMode.MAXPOOL, window=window, stride=stride)[0].set_output(True)
    g.validate()
    numbers = np.random.default_rng(seed)
    pack = {each: each.empty() for each in (x, w)}
    for array in pack.values():
        array[...] = numbers.integers(-4, 5, array.shape)
    made = Emulator("gfx942").run(g, pack)[0]
    image = np.einsum("nchw,kc->nkhw", pack[x], pack[w][:, :, 0, 0])
    found = np.lib.stride_tricks.sliding_window_view(image, window, axis=(2, 3)).max(axis=(-1, -2))
    np.testing.assert_array_equal(made[z], found[:, :, :: stride[0], :: stride[1]])
    if y in made:
        np.testing.assert_array_equal(made[y], image)


@pytest.mark.a_few("dims0-axes0-FLOAT", "dims2-axes0-DOUBLE")
@pytest.mark.iree_cpu
@pytest.mark.parametrize("dtype", [DataType.FLOAT, DataType.DOUBLE], ids=lambda each: each.name)
@pytest.mark.parametrize("axes", [(0, 2), (2,), (0, 1, 2)])
@pytest.mark.parametrize("dims", [((2, 2, 1), (1, 1, 2)), ((4, 3, 1), (1, 3, 8)), ((2, 1, 5), (1, 3, 5))])
def test_sums_of_what_two_operands_are_broadcast_for(
    dims: tuple[tuple[int, ...], tuple[int, ...]], axes: tuple[int, ...], dtype: DataType
) -> None:
    """Seed 931600000770: "'vector.contract' op invalid accumulator/result vector shape"."""
    g = Graph("outer", io_data_type=dtype, intermediate_data_type=dtype, compute_data_type=dtype)
    x, z = g.tensor("x", dim=dims[0]), g.tensor("z", dim=dims[1])
    y = g.reduction(g.pointwise(PointwiseMode.MUL, x, z), mode=ReductionMode.ADD).set_output(True)
    whole = np.broadcast_shapes(*dims)
    y.set_dim(tuple(1 if axis in axes else size for axis, size in enumerate(whole)))
    pack = g.validate().random_inputs(seed=1) | {y: y.empty()}
    build(g, "cpu").run(pack)
    exact = (pack[x].astype(np.float64) * pack[z].astype(np.float64)).sum(axis=axes, keepdims=True)
    np.testing.assert_allclose(pack[y], exact, rtol=1e-5, atol=1e-5)


@pytest.mark.mlir
def test_the_index_of_a_padded_pool_that_is_stored_in_another_order() -> None:
    """Seed 931700004666, by hand: "restricted to workgroup distributed contexts" where the window was written out."""
    g = Graph("index", io_data_type=DataType.FLOAT)
    x = g.tensor("x", dim=(2, 3, 2, 4))
    y, place = g.resample_fwd(
        x, mode=ResampleMode.MAXPOOL, window=(1, 3), stride=(1, 3), pre_padding=(0, 2), post_padding=(0, 2),
        generate_index=True,
    )  # fmt: skip
    y.set_output(True).set_dim((2, 3, 2, 2)).set_stride((30, 1, 60, 6))
    assert place is not None
    place.set_output(True)
    g.validate()
    pack = {x: x.empty()}
    pack[x][...] = np.arange(48).reshape(2, 3, 2, 4)
    made = Emulator("gfx942").run(g, pack)[0]
    np.testing.assert_array_equal(made[y], pack[x][..., [0, 3]])
    np.testing.assert_array_equal(made[place], np.broadcast_to([[0, 3], [4, 7]], (2, 3, 2, 2)))


@pytest.mark.mlir
def test_a_value_that_is_doubled_many_times_is_looked_at_once() -> None:
    """Each node reads the one before it twice: by paths there are 2 ** 60 of the first one."""
    g = Graph("doubled", io_data_type=DataType.FLOAT, intermediate_data_type=DataType.FLOAT)
    x = y = g.tensor("x", dim=(2, 2))
    for _ in range(60):
        y = g.pointwise(PointwiseMode.ADD, y, y)
    y.set_output(True)
    assert elementwise_sources(g.validate(), y) == [x]
    assert is_elementwise(g, y)


@pytest.mark.mlir
@pytest.mark.parametrize("kind", ["image", "filter gradient"])
def test_what_a_convolution_of_cuda_and_others_read_is_made_by_a_kernel_of_its_own(kind: str) -> None:
    """Seeds 921800001815 and 912800003659: "failed to apply fusion + hoisting patterns" in each form. Only compiled."""
    g = Graph("shared", io_data_type=DataType.FLOAT, compute_data_type=DataType.FLOAT)
    if kind == "image":
        x, other = g.tensor("x", dim=(1, 1, 1, 1)), g.tensor("o", dim=(1, 1, 3, 3), stride=(9, 1, 3, 1))
        image = g.pointwise(PointwiseMode.MAX, x, other.set_data_type(DataType.BFLOAT16))
        w = g.tensor("w", dim=(1, 1, 1, 2))
        g.conv_fprop(image, w, stride=(2, 1)).set_output(True)
        y, _ = g.resample_fwd(
            image, mode=ResampleMode.MAXPOOL, window=(1, 1), stride=(1, 1), pre_padding=(0, 0), post_padding=(1, 1)
        )
        y.set_output(True)
    else:
        x, slope = g.tensor("x", dim=(2, 1, 3)), g.tensor("slope", dim=(1,))
        image = g.pointwise(PointwiseMode.RELU_BWD, slope, x).set_output(True).set_data_type(DataType.DOUBLE)
        dy = g.tensor("dy", dim=(2, 1, 1))
        g.conv_wgrad(dy, image, dilation=(2,)).set_output(True).set_dim((1, 1, 2))
    assert compile_code(g.validate(), Target.parse("sm_80"), Options.from_env()).vmfb


@pytest.mark.a_few("gfx942-INT32-axis0")
@pytest.mark.mlir
@pytest.mark.parametrize("axis", [0, 1], ids="axis{}".format)
@pytest.mark.parametrize("dtype", [DataType.INT32, DataType.FLOAT], ids=lambda each: each.name)
@pytest.mark.parametrize("target", ["gfx942", "sm_80"])
def test_a_selection_between_a_value_and_its_copy(target: str, dtype: DataType, axis: int) -> None:
    """Seed 77000097: a kernel selected between equal numbers: "unrealized_conversion_cast". CUDA: only compiled."""
    g = Graph("copies", io_data_type=dtype, intermediate_data_type=dtype, compute_data_type=dtype)
    x, which = g.tensor("x", dim=(2, 3, 1)), g.tensor("which", dim=(1, 1, 1), data_type=DataType.BOOLEAN)
    y, _ = g.resample_fwd(x, mode=ResampleMode.MAXPOOL, window=(1,), stride=(3,), pre_padding=(0,), post_padding=(0,))
    both = (x, y) if axis else (y, x)
    out = g.pointwise(PointwiseMode.BINARY_SELECT, *both, which).set_output(True)
    pack = g.validate().random_inputs(seed=3)
    if target == "sm_80":
        assert compile_code(g, Target.parse(target), Options.from_env()).vmfb
    else:
        np.testing.assert_array_equal(Emulator(target).run(g, pack)[0][out], pack[x])


@pytest.mark.mlir
def test_a_sum_and_a_maximum_of_what_is_stored_in_another_order() -> None:
    """Seed 941700006263: "'func.func' op failed to distribute" in each form; one more fuses less."""
    g = Graph("shared", io_data_type=DataType.FLOAT, intermediate_data_type=DataType.FLOAT)
    x, other = g.tensor("x", dim=(1, 1)), g.tensor("other", dim=(2, 64))
    y = g.pointwise(PointwiseMode.RELU_BWD, x, other).set_output(True).set_stride((1, 2))
    g.reduction(y, mode=ReductionMode.ADD).set_dim((1, 1)).set_output(True)
    most = g.reduction(y, mode=ReductionMode.AMAX).set_dim((2, 1)).set_output(True)
    pack = {x: x.empty(), other: other.empty()} if g.validate() else {}
    pack[x][...] = -3
    pack[other][...] = np.arange(-64, 64).reshape(2, 64)
    made = Emulator("gfx942").run(g, pack)[0]
    np.testing.assert_array_equal(made[most], [[0], [3]])
    np.testing.assert_array_equal(made[y], np.where(pack[other] > 0, -3, 0))


@pytest.mark.a_few("gfx942-FLOAT-3")
@pytest.mark.mlir
@pytest.mark.parametrize("terms", [2, 3, 5, 15])
@pytest.mark.parametrize("dtype", [DataType.FLOAT, DataType.BFLOAT16, DataType.DOUBLE], ids=lambda each: each.name)
@pytest.mark.parametrize("target", ["gfx90a", "gfx942", "gfx950"])
def test_products_in_double_of_which_one_operand_has_a_batch(target: str, dtype: DataType, terms: int) -> None:
    """Seed 941700002638: terms beyond the last were what the registers held, times 0: NaN."""
    g = Graph("product", io_data_type=dtype, compute_data_type=DataType.DOUBLE)
    a, b = g.tensor("a", dim=(1, 5, terms)), g.tensor("b", dim=(2, terms, 16), data_type=DataType.FLOAT)
    out = g.matmul(a, b).set_output(True).set_data_type(DataType.FLOAT)
    pack = {a: a.empty(), b: b.empty()} if g.validate() else {}
    drawn = np.random.default_rng(terms)
    for array in pack.values():
        array[...] = drawn.integers(-4, 5, array.shape)
    exact = np.asarray(pack[a], np.float64) @ np.asarray(pack[b], np.float64)
    np.testing.assert_array_equal(Emulator(target).run(g, pack)[0][out], exact)


@pytest.mark.a_few("gfx942-rows-ADD", "gfx90a-columns-MAX")
@pytest.mark.mlir
@pytest.mark.parametrize("mode", ["ADD", "MAX"])
@pytest.mark.parametrize(
    "shape",
    [((3, 512, 2, 3), (1, 3)), ((2, 16, 16, 2, 6), (1, 2, 4)), ((2, 16, 2, 16, 2, 5), (1, 3, 5))],
    ids=["rows", "columns", "many"],
)
@pytest.mark.parametrize("target", ["gfx90a", "gfx942", "gfx950"])
def test_sums_over_dims_of_which_the_last_is_short(
    target: str, shape: tuple[tuple[int, ...], tuple[int, ...]], mode: str
) -> None:
    """Seed 941800008628, made small by hand: a third of the terms was summed."""
    dims, axes = shape
    g = Graph("sum", io_data_type=DataType.FLOAT, compute_data_type=DataType.FLOAT)
    x = g.tensor("x", dim=dims)
    y = g.reduction(x, mode=ReductionMode[mode]).set_output(True)
    y.set_dim(tuple(1 if axis in axes else size for axis, size in enumerate(dims)))
    pack = {x: x.empty()} if g.validate() else {}
    pack[x][...] = np.random.default_rng(1).integers(-8, 9, dims)
    exact = pack[x].sum(axis=axes, keepdims=True) if mode == "ADD" else pack[x].max(axis=axes, keepdims=True)
    np.testing.assert_array_equal(Emulator(target).run(g, pack)[0][y], exact)


@pytest.mark.a_few("FLOAT")
@pytest.mark.mlir
@pytest.mark.parametrize("dtype", [DataType.FLOAT, DataType.HALF], ids=lambda each: each.name)
def test_a_norm_in_training_of_an_image_that_lies_in_another_order(dtype: DataType) -> None:
    """Seed 941800008628: the mean was a third of it."""
    g = Graph("norm", io_data_type=dtype, compute_data_type=DataType.FLOAT)
    x = g.tensor("x", dim=(2, 3, 8, 8), stride=(192, 1, 3, 24))
    scale, bias = (
        g.tensor(name, dim=(1, 3, 8, 8), stride=(192, 8, 1, 24), data_type=DataType.FLOAT) for name in ("s", "b")
    )
    y, mean, _ = g.layernorm(x, scale, bias, epsilon=1e-3, forward_phase=NormFwdPhase.TRAINING)
    y.set_output(True).set_stride((192, 8, 24, 1))
    assert mean is not None
    mean.set_output(True)
    pack = g.validate().random_inputs(seed=4)
    made = Emulator("gfx942").run(g, pack)[0]
    image = np.asarray(pack[x], np.float64)
    center = image.mean(axis=(1, 2, 3), keepdims=True)
    tolerance = 2e-3 if dtype is DataType.HALF else 1e-5
    np.testing.assert_allclose(np.asarray(made[mean], np.float64), center, rtol=tolerance, atol=1e-6)
    spread = np.sqrt(((image - center) ** 2).mean(axis=(1, 2, 3), keepdims=True) + 1e-3)
    exact = (image - center) / spread * pack[scale] + pack[bias]
    np.testing.assert_allclose(np.asarray(made[y], np.float64), exact, rtol=tolerance, atol=tolerance)


@pytest.mark.mlir
def test_what_no_form_compiles_is_made_node_by_node() -> None:
    """Drawn by hand: "failed to apply fusion + hoisting patterns" in each form that fuses anything."""
    g = Graph("shared", io_data_type=DataType.BFLOAT16, intermediate_data_type=DataType.FLOAT)
    x, other = g.tensor("x", dim=(1, 8, 2, 3), stride=(1, 3, 24, 1)), g.tensor("o", dim=(1, 8, 1, 3))
    z = g.pointwise(PointwiseMode.MUL, x, other.set_stride((1, 1, 1, 8)))
    y = g.reduction(z, mode=ReductionMode.AVG).set_dim((1, 8, 2, 1))
    first = g.pointwise(PointwiseMode.MUL, z, y).set_output(True).set_stride((48, 6, 1, 2))
    second = g.pointwise(PointwiseMode.RELU_FWD, z).set_output(True).set_stride((1, 1, 8, 16))
    pack = {x: x.empty(), other: other.empty()} if g.validate() else {}
    drawn = np.random.default_rng(2)
    for array in pack.values():
        array[...] = drawn.integers(-2, 3, array.shape)
    made = Emulator("gfx942").run(g, pack)[0]
    products = np.asarray(pack[x], np.float64) * np.asarray(pack[other], np.float64)
    np.testing.assert_array_equal(np.asarray(made[second], np.float64), np.maximum(products, 0))
    exact = products * products.mean(axis=3, keepdims=True)
    np.testing.assert_allclose(np.asarray(made[first], np.float64), exact, rtol=2**-8)


@pytest.mark.mlir
def test_what_is_filled_with_eight_bytes_is_emulated() -> None:
    """Seed 951900001209: the compiler's own kernel that fills a buffer asks a launch for its sizes."""
    f32, f64 = DataType.FLOAT, DataType.DOUBLE
    g = Graph("filled", io_data_type=f64, intermediate_data_type=f32, compute_data_type=f64)
    x = g.tensor("x", dim=(3, 3, 2), data_type=f32)
    y = g.pointwise(PointwiseMode.GELU_FWD, x)
    z = g.pointwise(PointwiseMode.SIGMOID_FWD, y).set_output(True).set_stride((16, 4, 2)).set_data_type(f32)
    ones = g.pointwise(PointwiseMode.CMP_EQ, y, y)
    dy, w = g.tensor("dy", dim=(3, 1, 1), data_type=f32), g.tensor("w", dim=(3, 1, 1), data_type=f32)
    dw = g.conv_wgrad(dy, ones, stride=(2,)).set_dim((1, 3, 1))
    dx = g.conv_dgrad(dw, w, stride=(2,)).set_output(True).set_dim((1, 3, 2))
    pack = {x: x.empty(), dy: dy.empty(), w: w.empty()} if g.validate() else {}
    pack[x][...] = 0
    pack[dy][...] = [[[1]], [[2]], [[3]]]
    pack[w][...] = [[[4]], [[5]], [[6]]]
    made = Emulator("gfx942").run(g, pack)[0]
    np.testing.assert_array_equal(made[z], np.full((3, 3, 2), 0.5))
    np.testing.assert_array_equal(made[dx], [[[24, 0], [30, 0], [36, 0]]])


@pytest.mark.a_few("gfx942-0", "gfx90a-1")
@pytest.mark.mlir
@pytest.mark.parametrize(
    "case",
    [
        ((1, 1, 16, 2, 16), (2, 1, 1, 1, 16), (0, 3)),
        ((2, 3, 16, 3, 32), (2, 1, 1, 1, 32), (0, 1, 3)),
        ((3, 1, 24), (3, 16, 1), (0, 2)),
    ],
    ids=["0", "1", "2"],
)
@pytest.mark.parametrize("target", ["gfx90a", "gfx942", "gfx950"])
def test_sums_of_products_with_what_is_repeated_along_a_dim_of_the_sum(target: str, case: tuple[Any, ...]) -> None:
    """Drawn by hand: terms were added twice, or others' were."""
    a_dims, b_dims, axes = case
    g = Graph("sum", io_data_type=DataType.FLOAT)
    a, b = g.tensor("a", dim=a_dims), g.tensor("b", dim=b_dims)
    y = g.reduction(g.pointwise(PointwiseMode.MUL, a, b), mode=ReductionMode.ADD).set_output(True)
    whole = np.broadcast_shapes(a_dims, b_dims)
    y.set_dim(tuple(1 if axis in axes else size for axis, size in enumerate(whole)))
    pack = {a: a.empty(), b: b.empty()} if g.validate() else {}
    drawn = np.random.default_rng(3)
    for array in pack.values():
        array[...] = drawn.integers(-4, 5, array.shape)
    exact = (pack[a] * pack[b]).sum(axis=axes, keepdims=True)
    np.testing.assert_array_equal(Emulator(target).run(g, pack)[0][y], exact)
