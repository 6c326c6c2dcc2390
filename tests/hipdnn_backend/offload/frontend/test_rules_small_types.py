"""Elements of 8 bits and less, bit by bit against ml_dtypes, onnx's reference and ONNX Runtime."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from fusilli_ground.float_formats import FloatFormat
from hipdnn_backend.offload.errors import ModelError, UnsupportedNodeError
from hipdnn_backend.offload.frontend import load, prepare
from hipdnn_backend.offload.frontend.small_types import SMALL, packed
from tests.support.onnx_rewritten import check_rewrite, one_node, ort, rewritten

Array = np.ndarray[Any, Any]
_EIGHT = (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e5m2, ml_dtypes.float8_e5m2fnuz)
_LESS = (ml_dtypes.float4_e2m1fn, ml_dtypes.float6_e2m3fn, ml_dtypes.float6_e3m2fn)
_WHOLE = (ml_dtypes.int4, ml_dtypes.uint4, ml_dtypes.int2, ml_dtypes.uint2)
_POWERS = ml_dtypes.float8_e8m0fnu
_OPSET = 26
"""From which on Cast has FLOAT8E8M0, INT2 and BitCast; of 6 bits, 28."""


def _opset(dtype: Any) -> int:
    return 28 if "float6" in np.dtype(dtype).name else _OPSET


def _bits(dtype: Any) -> int:
    return SMALL[helper.np_dtype_to_tensor_dtype(np.dtype(dtype))].bits


def _all_codes(dtype: Any) -> Array:
    return np.arange(1 << _bits(dtype), dtype=np.uint8).view(dtype)


def _cast(x: Array, to: Any, **given: Any) -> Array:
    """What the rewritten Cast makes of a tensor that a run gives."""
    opset = max(_opset(x.dtype), _opset(to))
    element = helper.np_dtype_to_tensor_dtype(np.dtype(to))
    model, feeds = one_node("Cast", {"x": x}, {"y": to}, opset=opset, to=element, **given)
    with np.errstate(all="ignore"):
        (y,) = rewritten(prepare(model), feeds)
    assert y.dtype == np.dtype(to)
    return y


def _assert_same(have: Array, want: Array) -> None:
    """The same numbers, the signs of 0 too; any NaN for a NaN."""
    have, want = have.astype(np.float64), want.astype(np.float64)
    np.testing.assert_array_equal(have, want)
    is_number = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(have[is_number]), np.signbit(want[is_number]))


@pytest.mark.parametrize("dtype", [*_EIGHT, *_LESS, _POWERS, *_WHOLE])
@pytest.mark.parametrize("to", [np.float32, np.float16, np.float64])
def test_every_code(dtype: Any, to: type) -> None:
    codes = _all_codes(dtype)
    with np.errstate(over="ignore"):
        _assert_same(_cast(codes, to), codes.astype(np.float32).astype(to))


@pytest.mark.parametrize("dtype", [ml_dtypes.int4, ml_dtypes.float4_e2m1fn, ml_dtypes.uint2])
def test_what_else_a_byte_may_hold_counts_for_nothing(dtype: Any) -> None:
    codes = _all_codes(dtype)
    dirty = (codes.view(np.uint8) | np.uint8(0x50 & ~((1 << _bits(dtype)) - 1))).view(dtype)
    _assert_same(_cast(dirty, np.float32), codes.astype(np.float32))


def _numbers(dtype: Any, source: Any) -> Array:
    """All finite numbers of a type, what lies in the middle between two, and next to that; large, small and none."""
    exact = np.unique(_all_codes(dtype).astype(np.float64))
    exact = exact[np.isfinite(exact)]
    step = exact[-1] - exact[-2] if len(exact) > 1 else 1.0
    exact = np.concatenate([exact, [exact[-1] + step, exact[-1] + 2 * step]])
    middle = (exact[1:] + exact[:-1]) / 2
    around = np.concatenate([exact, middle])
    with np.errstate(over="ignore"):
        near = around.astype(source)
        values = np.concatenate([near, np.nextafter(near.astype(np.float64), np.inf).astype(source)])
        if np.dtype(source).kind == "f":
            values = np.concatenate([near, np.nextafter(near, source(np.inf)), np.nextafter(near, source(-np.inf))])
        odd = np.array([np.inf, -np.inf, np.nan, 1e6, -1e6, 1e-7, -1e-7, 1e-40, 0.0, -0.0, 3e38]).astype(source)
    return np.concatenate([values, -values, odd])


def _rounded(x: Array, dtype: Any, *, saturate: bool) -> Array:
    """To the nearest by ml_dtypes, which goes from double by way of single precision: there, by distances."""
    wide, largest = x.astype(np.float64), float(ml_dtypes.finfo(dtype).max)
    if x.dtype == np.float64:
        codes = _all_codes(dtype)
        values = codes.astype(np.float64)
        order = [code for code in range(len(codes)) if np.isfinite(values[code]) and not np.signbit(values[code])]
        step = values[order[-1]] - values[order[-2]]
        grid = np.append(values[order], values[order[-1]] + step)
        above = np.clip(np.searchsorted(grid, np.abs(wide)), 1, len(grid) - 1)
        low, high = np.abs(wide) - grid[above - 1], grid[above] - np.abs(wide)
        number = np.where((low > high) | ((low == high) & (above % 2 == 0)), above, above - 1)
        wide = np.where(np.isfinite(wide), np.copysign(grid[number], wide), wide)
    wide = np.clip(wide, -largest, largest) if saturate or dtype in _LESS else wide
    if dtype in _LESS:  # which have no NaN
        wide = np.where(np.isnan(wide), 0, wide)
    return wide.astype(dtype)


@pytest.mark.parametrize("source", [np.float32, np.float16, np.float64, ml_dtypes.bfloat16])
@pytest.mark.parametrize("dtype", [*_EIGHT, *_LESS])
@pytest.mark.filterwarnings("ignore:(invalid value|overflow):RuntimeWarning")
def test_to_nearest_and_ties_to_even(dtype: Any, source: Any) -> None:
    """One rounding, from double precision too; what is too large is the largest, or none where that is asked for."""
    x = _numbers(dtype, source)
    _assert_same(_cast(x, dtype), _rounded(x, dtype, saturate=True))
    if dtype in _EIGHT:
        _assert_same(_cast(x, dtype, saturate=0), _rounded(x, dtype, saturate=False))


def _power(x: float, mode: str, *, saturate: bool) -> float:
    """FLOAT8E8M0 by its definition."""
    if np.isnan(x) or (not saturate and not 2.0**-127 <= x < np.inf):
        return np.nan
    if x < 2.0**-127:
        return 2.0**-127
    if x == np.inf:
        return 2.0**127
    low = 2.0 ** np.floor(np.log2(x))
    low = low / 2 if low > x else low * 2 if 2 * low <= x else low
    up = {"up": x > low, "down": False, "nearest": x >= 1.5 * low}[mode]
    power = 2 * low if up else low
    return power if power <= 2.0**127 else 2.0**127 if saturate else np.nan


@pytest.mark.parametrize("source", [np.float32, np.float64])
@pytest.mark.parametrize("mode", ["up", "down", "nearest"])
@pytest.mark.parametrize("saturate", [0, 1])
def test_powers_of_two(source: type, mode: str, saturate: int) -> None:
    exact = 2.0 ** np.arange(-129, 128.0)
    around = np.concatenate([exact, 1.5 * exact])
    around = around[around < 3e38].astype(source)
    x = np.concatenate([around, np.nextafter(around, source(np.inf)), np.nextafter(around, source(0))])
    x = np.concatenate([x, np.array([0, np.inf, np.nan, -1, -np.inf, 3.4e38], source)])
    want = np.array([_power(float(each), mode, saturate=bool(saturate)) for each in x])
    _assert_same(_cast(x, _POWERS, saturate=saturate, round_mode=mode), want)


@pytest.mark.parametrize("dtype", _WHOLE)
def test_to_integers_of_less_than_a_byte(dtype: Any) -> None:
    """As ONNX Runtime has it: halves away from 0, then the last bits; nothing of what is no number."""
    x = np.array(
        [-9.5, -9, -8.5, -1.5, -0.7, -0.5, 0.49999997, 0.5, 1.5, 2.5, 6.7, 7, 9, 16, 17.5, 1e10, 449], np.float32
    )
    x = np.concatenate([x, np.array([np.nan, np.inf, -np.inf, -0.0, 2.0**31, -(2.0**31)], np.float32)])
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    cast = helper.make_node("Cast", ["x"], ["c"], to=element)
    back = helper.make_node("Cast", ["c"], ["y"], to=TensorProto.FLOAT)
    value = helper.make_tensor_value_info
    graph = helper.make_graph([cast, back], "g", [value("x", 1, x.shape)], [value("y", 1, x.shape)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=11)
    (theirs,) = ort(model, {"x": x})
    np.testing.assert_array_equal(_cast(x, dtype).astype(np.float32), theirs)
    np.testing.assert_array_equal(_cast(x.astype(np.float64), dtype).astype(np.float32), theirs)
    whole = np.array([-9, -1, 0, 1, 5, 17, 255, -300, 2**31 - 1], np.int32)
    want = (whole & ((1 << _bits(dtype)) - 1)).astype(np.uint8).view(dtype)
    np.testing.assert_array_equal(_cast(whole, dtype).astype(int), want.astype(int))


@pytest.mark.parametrize("saturate", [0, 1])
@pytest.mark.parametrize("dtype", _EIGHT)
def test_floats_of_8_bits_as_onnx_runtime_has_them(dtype: Any, saturate: int) -> None:
    x = _numbers(dtype, np.float32)
    # Without saturation, it has NaN and the largest number the wrong way round a step over the largest.
    low, high = (61440, 65536) if "e5m2" in np.dtype(dtype).name else (480, 496)
    x = x[(np.abs(x) < low) | (np.abs(x) >= high) | np.isnan(x)]
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    model, feeds = one_node("Cast", {"x": x}, {"y": dtype}, opset=21, to=element, saturate=saturate)
    _assert_same(_cast(x, dtype, saturate=saturate), _fetched(model, feeds, dtype))


def _fetched(model: onnx.ModelProto, feeds: dict[str, Array], dtype: Any) -> Array:
    """ONNX Runtime's result of a type that numpy lacks, as numbers in single precision."""
    model.graph.node.append(helper.make_node("Cast", [model.graph.output[0].name], ["wide"], to=TensorProto.FLOAT))
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info("wide", TensorProto.FLOAT, None))
    return ort(model, feeds)[0]


def test_between_small_types_and_by_like() -> None:
    x = _all_codes(ml_dtypes.float8_e4m3fn)
    with np.errstate(invalid="ignore"):
        want = np.clip(x.astype(np.float32), -57344, 57344).astype(ml_dtypes.float8_e5m2)
    _assert_same(_cast(x, ml_dtypes.float8_e5m2), want)
    model, feeds = one_node(
        "CastLike", {"x": np.array([1.26, -500], np.float32), "like": x}, {"y": ml_dtypes.float8_e4m3fn}
    )
    (y,) = rewritten(prepare(model), feeds)
    _assert_same(y, np.array([1.25, -448]))
    whole = np.array([-8, 7, -1], ml_dtypes.int4)
    np.testing.assert_array_equal(_cast(whole, ml_dtypes.uint4).astype(int), [8, 7, 15])
    np.testing.assert_array_equal(_cast(whole, np.int16), [-8, 7, -1])
    np.testing.assert_array_equal(_cast(whole, np.bool_), [True, True, True])
    _assert_same(_cast(np.array([True, False]), ml_dtypes.float8_e5m2), np.array([1.0, 0.0]))


@pytest.mark.parametrize(
    ("source", "to"),
    [(ml_dtypes.float8_e5m2, np.int8), (np.int8, ml_dtypes.float8_e4m3fn), (ml_dtypes.int4, ml_dtypes.float4_e2m1fn)],
)
def test_bits_of_another_type(source: Any, to: Any) -> None:
    x = np.array([1, 3, 7, 120], np.uint8).view(source) if source is not ml_dtypes.int4 else _all_codes(source)
    model, feeds = one_node(
        "BitCast", {"x": x}, {"y": to}, opset=_OPSET, to=helper.np_dtype_to_tensor_dtype(np.dtype(to))
    )
    (y,) = rewritten(prepare(model), feeds)
    np.testing.assert_array_equal(y.view(np.uint8), x.view(np.uint8))


@pytest.mark.parametrize("dtype", _EIGHT)
def test_what_is_no_number(dtype: Any) -> None:
    x = _all_codes(dtype)
    for op_type, want in (("IsNaN", np.isnan), ("IsInf", np.isinf)):
        model, feeds = one_node(op_type, {"x": x}, {"y": np.bool_})
        check_rewrite(model, feeds, expected=[want(x.astype(np.float32))])


# ---- QuantizeLinear, DequantizeLinear


def _scale(random: np.random.Generator, dims: tuple[int, ...], kind: Any) -> Array:
    return (2.0 ** random.integers(-3, 3, dims) if kind is _POWERS else random.random(dims) + 0.1).astype(kind)


def _blocks(form: str, dims: tuple[int, ...]) -> tuple[tuple[int, ...], dict[str, Any]]:
    if form == "tensor":
        return (), {}
    if form == "axis":
        return (dims[1],), {"axis": 1}
    return (*dims[:-1], -(-dims[-1] // 4)), {"axis": -1, "block_size": 4}


@pytest.mark.parametrize("form", ["tensor", "axis", "blocks"])
@pytest.mark.parametrize("has_zero", [False, True])
@pytest.mark.parametrize("dtype", [*_EIGHT, *_LESS, *_WHOLE])
def test_quantise_and_dequantise(dtype: Any, has_zero: bool, form: str) -> None:
    random, dims = np.random.default_rng(7), (2, 3, 10)
    places, given = _blocks(form, dims)
    scale = _scale(random, places, np.float32)
    is_float, element = dtype not in _WHOLE, helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    zero = np.zeros(places, dtype)
    if not is_float:
        zero = random.integers(0, 1 << _bits(dtype), places).astype(np.uint8).view(dtype)
    z = np.asarray(zero) if has_zero else None
    x = (random.standard_normal(dims) * 3).astype(np.float32)
    opset = max(_opset(dtype), 25)
    inputs = {"x": x, "s": np.asarray(scale), "z": z}
    constants = ["s", *(["z"] if has_zero else [])]
    quantise = {**given, "output_dtype": element, "opset": opset, "constants": constants}
    model, feeds = one_node("QuantizeLinear", inputs, {"y": dtype}, **quantise)
    (want,) = ReferenceEvaluator(model).run(None, feeds)
    (have,) = rewritten(prepare(model), feeds)
    assert have.dtype == np.dtype(dtype)
    _assert_same(have, np.asarray(want))
    codes = random.integers(0, 1 << _bits(dtype), dims).astype(np.uint8).view(dtype)
    model, feeds = one_node(
        "DequantizeLinear", {**inputs, "x": codes}, {"y": np.float32}, opset=opset, constants=constants, **given
    )
    (want,) = ReferenceEvaluator(model).run(None, feeds)
    (have,) = rewritten(prepare(model), feeds)
    np.testing.assert_array_equal(have, np.asarray(want))


@pytest.mark.parametrize("saturate", [0, 1])
def test_quantising_beyond_the_largest(saturate: int) -> None:
    x, scale = np.array([1e4, -1e4, 3, np.inf], np.float32), np.array(2, np.float32)
    element = helper.np_dtype_to_tensor_dtype(np.dtype(ml_dtypes.float8_e4m3fn))
    model, feeds = one_node(
        "QuantizeLinear", {"x": x, "s": scale}, {"y": ml_dtypes.float8_e4m3fn}, constants=["s"], opset=23,
        saturate=saturate, output_dtype=element,
    )  # fmt: skip
    (have,) = rewritten(prepare(model), feeds)
    most = 448.0 if saturate else np.nan
    np.testing.assert_array_equal(have.astype(np.float32), np.array([most, -most, 1.5, most], np.float32))


def test_blocks_with_powers_of_two() -> None:
    """MXFP4: scales that half precision does not hold."""
    random, dims = np.random.default_rng(3), (4, 64)
    codes = random.integers(0, 16, dims).astype(np.uint8).view(ml_dtypes.float4_e2m1fn)
    scale = (2.0 ** random.integers(-30, 18, (4, 2))).astype(_POWERS)
    given = {"axis": 1, "block_size": 32, "output_dtype": TensorProto.FLOAT16, "opset": 25}
    model, feeds = one_node(
        "DequantizeLinear", {"x": codes, "s": scale}, {"y": np.float16}, constants=["x", "s"], **given
    )
    with np.errstate(over="ignore"):
        want = (codes.astype(np.float64) * np.repeat(scale.astype(np.float64), 32, 1)).astype(np.float16)
        (have,) = rewritten(prepare(model), feeds)
    np.testing.assert_array_equal(have, want)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"s": np.ones(4, np.float32), "z": None}, r"s has 4 elements, axis 1 of the tensor \[2, 3\] has 3"),
        ({"s": np.ones((2, 2), np.float32), "z": None, "block_size": 1}, r"s \[2, 2\] has other blocks of 1 than"),
        (
            {"z": np.zeros(3, ml_dtypes.uint4)},
            r"x_zero_point has inconsistent type tensor\(uint4\)|y_zero_point type UINT4",
        ),
        ({"z": np.zeros(2, ml_dtypes.int4)}, r"zero point z \[2\] has other dims than scale s \[3\]"),
        ({"axis": 2}, r"axis is 2, of a tensor of rank 2"),
        ({"x": np.ones((2, 3), ml_dtypes.float8_e5m2), "z": np.ones(3, ml_dtypes.float8_e5m2)}, r"z is not 0"),
    ],
)
@pytest.mark.parametrize("op_type", ["DequantizeLinear", "QuantizeLinear"])
def test_scales_and_zero_points_that_do_not_fit(op_type: str, changes: dict[str, Any], said: str) -> None:
    inputs = {"x": np.ones((2, 3), ml_dtypes.int4), "s": np.ones(3, np.float32), "z": np.zeros(3, ml_dtypes.int4)}
    given: dict[str, Any] = {"axis": 1, "opset": 23}
    inputs |= {name: value for name, value in changes.items() if name in inputs}
    given |= {name: value for name, value in changes.items() if name not in inputs}
    result: Any = np.float32
    if op_type == "QuantizeLinear":
        result = inputs["x"].dtype
        inputs["x"] = inputs["x"].astype(np.float32)
        given["output_dtype"] = helper.np_dtype_to_tensor_dtype(np.dtype(result))
    constants = [name for name in ("s", "z") if inputs[name] is not None]
    model, _ = one_node(op_type, inputs, {"y": result}, constants=constants, **given)
    with pytest.raises(ModelError, match=said) as error:
        prepare(model)
    assert error.value.node == "node"


# ---- what only moves


@pytest.mark.parametrize("dtype", [ml_dtypes.float8_e4m3fnuz, ml_dtypes.int4, _POWERS, ml_dtypes.uint2])
def test_they_move_as_bytes(dtype: Any) -> None:
    """Through operators that look at no element, in and out of a model, as constants and results."""
    x = np.resize(_all_codes(dtype), (2, 6)).copy()
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    value = helper.make_tensor_value_info
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0]),
        helper.make_node("Reshape", ["t", "dims"], ["r"]),
        helper.make_node("Identity", ["r"], ["y"]),
        helper.make_node("Identity", ["k"], ["z"]),
    ]
    constants = [numpy_helper.from_array(np.array([3, 4]), "dims"), numpy_helper.from_array(x[0], "k")]
    outs = [value("y", element, [3, 4]), value("z", element, [6])]
    graph = helper.make_graph(nodes, "g", [value("x", element, x.shape)], outs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=11)
    imported = load(model)
    assert [each.dtype for each in (*imported.inputs, *imported.outputs)] == [np.dtype(dtype)] * 3
    assert "ui8" in str(imported.module)
    assert "f8" not in str(imported.module)


def test_an_if_over_them_that_only_a_run_decides_is_refused() -> None:
    x = np.ones((2, 2), ml_dtypes.float8_e4m3fn)
    value = helper.make_tensor_value_info
    body = helper.make_graph(
        [helper.make_node("Cast", ["x"], ["b"], to=TensorProto.FLOAT8E5M2)], "b", [],
        [value("b", TensorProto.FLOAT8E5M2, [2, 2])],
    )  # fmt: skip
    node = helper.make_node("If", ["c"], ["y"], name="node", then_branch=body, else_branch=body)
    ins = [value("x", TensorProto.FLOAT8E4M3FN, x.shape), value("c", TensorProto.BOOL, [])]
    graph = helper.make_graph([node], "g", ins, [value("y", TensorProto.FLOAT8E5M2, [2, 2])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    with pytest.raises(UnsupportedNodeError, match=r"If: operand 'c', which only a run knows") as error:
        load(model)
    assert error.value.node == "node"


def test_weights_stay_packed() -> None:
    weights = np.resize(np.arange(-8, 8), (64, 33)).astype(ml_dtypes.int4)
    inputs = {"x": weights, "s": np.array(0.5, np.float32)}
    model, _ = one_node("DequantizeLinear", inputs, {"y": np.float32}, constants=["x", "s"])
    (constant,) = (each.value for each in load(model).constants)
    assert (constant.dtype, constant.nbytes) == (np.uint8, 64 * 33 // 2)
    np.testing.assert_array_equal(constant, packed(weights.view(np.uint8), 4))
    (y,) = rewritten(prepare(model), {})
    np.testing.assert_array_equal(y, weights.astype(np.float32) / 2)


def test_every_small_type_of_onnx_is_known() -> None:
    names = {name for name, _ in TensorProto.DataType.items() if name[:6] in ("FLOAT4", "FLOAT6", "FLOAT8")}
    names |= {name for name, _ in TensorProto.DataType.items() if name in ("INT4", "UINT4", "INT2", "UINT2")}
    assert {TensorProto.DataType.Value(name) for name in names} == SMALL.keys()
    for element, kind in SMALL.items():
        dtype = helper.tensor_dtype_to_np_dtype(element)
        info = ml_dtypes.iinfo(dtype) if not isinstance(kind, FloatFormat) else ml_dtypes.finfo(dtype)
        assert kind.bits == info.bits
