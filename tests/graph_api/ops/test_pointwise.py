"""Pointwise operations: formulas against plain Python, finite differences and PyTorch; rules; inference."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from graph_api import DataType, Graph, GraphError, PointwiseAttributes, PointwiseMode, TensorAttr
from graph_api.ops.pointwise import MODES

M = PointwiseMode
Dims = tuple[int, ...]
POINTS = [-20.0, -3.5, -1.0, -0.5, -1e-3, 0.0, 1e-3, 0.25, 1.0, 2.5, 6.0, 30.0]
SECOND = [0.5, -2.0, 1.0, 0.5, 3.0, 0.0, -1e-3, 0.25, -4.0, 2.5, 1.5, -0.1]
THIRD = [0, 1, 1, 0, 2, 1, 0, 0, 1, -1, 0, 1]
CLIPS = {"relu_lower_clip": -0.75, "relu_upper_clip": 2.0, "relu_lower_clip_slope": 0.1}


def evaluate(mode: PointwiseMode, *operands: Any, data_type: Any = DataType.DOUBLE, **parameters: Any) -> Any:
    """The reference of a graph with this one node."""
    g = Graph("g", io_data_type=data_type)
    tensors = [g.tensor(f"in_{i}", dim=np.shape(operand)) for i, operand in enumerate(operands)]
    y = g.pointwise(mode, *tensors, **parameters).set_output()
    return g.reference({tensor.name: operand for tensor, operand in zip(tensors, operands, strict=True)})[y]


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0


def cdf(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2))


def clipped(x: float, low: float, high: float, slope: float) -> float:
    return slope * (x - low) + low if x <= low else min(x, high)


def gelu_tanh(x: float) -> float:
    return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


# Each mode in Python floats, from its definition.
Scalar = Callable[..., Any]
PLAIN: dict[PointwiseMode, Scalar] = {
    M.ABS: abs,
    M.NEG: lambda x: -x,
    M.CEIL: math.ceil,
    M.FLOOR: math.floor,
    M.SQRT: math.sqrt,
    M.RSQRT: lambda x: x**-0.5,
    M.RECIPROCAL: lambda x: 1 / x,
    M.EXP: math.exp,
    M.LOG: math.log,
    M.SIN: math.sin,
    M.TAN: math.tan,
    M.ERF: math.erf,
    M.IDENTITY: lambda x: x,
    M.ADD: lambda x, y: x + y,
    M.SUB: lambda x, y: x - y,
    M.MUL: lambda x, y: x * y,
    M.DIV: lambda x, y: x / y,
    M.ADD_SQUARE: lambda x, y: x + y**2,
    M.MAX: max,
    M.MIN: min,
    M.CMP_EQ: lambda x, y: x == y,
    M.CMP_NEQ: lambda x, y: x != y,
    M.CMP_GT: lambda x, y: x > y,
    M.CMP_GE: lambda x, y: x >= y,
    M.CMP_LT: lambda x, y: x < y,
    M.CMP_LE: lambda x, y: x <= y,
    M.LOGICAL_AND: lambda x, y: bool(x) and bool(y),
    M.LOGICAL_OR: lambda x, y: bool(x) or bool(y),
    M.LOGICAL_NOT: lambda x: not x,
    M.BINARY_SELECT: lambda x, y, p: x if p else y,
    M.RELU_FWD: lambda x: max(x, 0.0),
    M.SIGMOID_FWD: sigmoid,
    M.TANH_FWD: math.tanh,
    M.GELU_FWD: lambda x: x * cdf(x),
    M.GELU_APPROX_TANH_FWD: gelu_tanh,
    M.SWISH_FWD: lambda x: x * sigmoid(x),
    M.ELU_FWD: lambda x: x if x > 0 else math.expm1(x),
    M.SOFTPLUS_FWD: lambda x: max(x, 0.0) + math.log1p(math.exp(-abs(x))),
}
BACKWARD = [mode for mode in M if mode.name.endswith("_BWD")]


def test_every_mode_has_an_expectation() -> None:
    assert len(M) == len(MODES) == 47
    assert {*PLAIN, *BACKWARD, M.GEN_INDEX} == set(M)


def operands(mode: PointwiseMode) -> list[list[float]]:
    """Points in the domain of a mode."""
    first, second = POINTS, SECOND
    if mode in (M.SQRT, M.RSQRT, M.LOG):
        first = [abs(x) + 1e-6 for x in first]
    if mode is M.RECIPROCAL:
        first = [x or 3.0 for x in first]
    if mode is M.DIV:
        second = [x or 3.0 for x in second]
    return [first, second, [float(x) for x in THIRD]][: MODES[mode].arity]


@pytest.mark.parametrize("mode", PLAIN, ids=lambda mode: mode.name)
def test_formulas(mode: PointwiseMode) -> None:
    values = operands(mode)
    expected = [float(PLAIN[mode](*point)) for point in zip(*values, strict=True)]
    np.testing.assert_allclose(evaluate(mode, *values), expected, rtol=4e-15, atol=1e-300)


@pytest.mark.parametrize(
    ("mode", "parameters", "plain"),
    [
        (M.RELU_FWD, CLIPS, lambda x: clipped(x, -0.75, 2.0, 0.1)),
        (M.RELU_FWD, {"relu_upper_clip": 6.0}, lambda x: clipped(x, 0.0, 6.0, 0.0)),
        (M.RELU_FWD, {"relu_lower_clip_slope": 0.01}, lambda x: x if x > 0 else 0.01 * x),
        (M.RELU_FWD, {"relu_lower_clip": -1.0}, lambda x: max(x, -1.0)),
        (M.RELU_FWD, {"relu_lower_clip": -1.0, "relu_upper_clip": 1.0}, lambda x: min(max(x, -1.0), 1.0)),
        (M.SWISH_FWD, {"swish_beta": 1.7}, lambda x: x * sigmoid(1.7 * x)),
        (M.SWISH_FWD, {"swish_beta": 0.0}, lambda x: x / 2),
        (M.ELU_FWD, {"elu_alpha": 0.6}, lambda x: x if x > 0 else 0.6 * math.expm1(x)),
        (M.SOFTPLUS_FWD, {"softplus_beta": 2.5}, lambda x: max(x, 0.0) + math.log1p(math.exp(-abs(2.5 * x))) / 2.5),
    ],
)
def test_parameters(mode: PointwiseMode, parameters: dict[str, float], plain: Scalar) -> None:
    expected = [float(plain(x)) for x in POINTS]
    np.testing.assert_allclose(evaluate(mode, POINTS, **parameters), expected, rtol=4e-15, atol=1e-15)


@pytest.mark.parametrize("mode", BACKWARD, ids=lambda mode: mode.name)
@pytest.mark.parametrize("given", [False, True], ids=["default", "parameters"])
def test_backward_is_dy_times_the_slope_of_forward(mode: PointwiseMode, given: bool) -> None:
    forward = M[mode.name.replace("_BWD", "_FWD")]
    parameters: dict[str, float] = {}
    if given and MODES[mode].parameters:
        values = {"swish_beta": 1.7, "elu_alpha": 0.6, "softplus_beta": 2.5, **CLIPS}
        parameters = {name: values[name] for name in MODES[mode].parameters}
    assert MODES[forward].parameters == MODES[mode].parameters
    x = np.array([-3.5, -1.0, -0.5, -0.1, 0.2, 1.0, 1.9, 3.0])  # clear of the kinks at -0.75, 0 and 2
    dy = np.array([1.0, -2.0, 0.5, 3.0, 1.0, -1.0, 2.0, 0.25])
    step = 1e-5
    high, low = (evaluate(forward, x + sign * step, **parameters) for sign in (1, -1))
    np.testing.assert_allclose(evaluate(mode, dy, x, **parameters), dy * (high - low) / (2 * step), atol=1e-8)


@pytest.mark.parametrize(
    ("parameters", "x", "expected"),
    [
        ({}, [-1.0, 0.0, 1.0], [0, 0, 1]),
        ({"relu_lower_clip_slope": 0.1}, [-1.0, 0.0, 1.0], [0.1, 0.1, 1]),
        ({"relu_upper_clip": 6.0}, [-1.0, 0.0, 1.0, 6.0, 7.0], [0, 0, 1, 1, 0]),
        (CLIPS, [-1.0, -0.75, 0.0, 2.0, 2.5], [0.1, 0.1, 1, 1, 0]),
    ],
)
def test_relu_backward_at_the_clips(parameters: dict[str, float], x: list[float], expected: list[float]) -> None:
    np.testing.assert_array_equal(evaluate(M.RELU_BWD, np.ones(len(x)), x, **parameters), expected)


def test_backward_takes_dy_first() -> None:
    assert float(evaluate(M.RELU_BWD, [7.0], [1.0])[0]) == 7.0
    assert float(evaluate(M.RELU_BWD, [1.0], [7.0])[0]) == 1.0


def test_the_coordinate_along_an_axis() -> None:
    np.testing.assert_array_equal(evaluate(M.GEN_INDEX, np.ones((2, 3)), axis=1), [[0, 1, 2], [0, 1, 2]])
    np.testing.assert_array_equal(evaluate(M.GEN_INDEX, np.ones((2, 3)), axis=0), [[0, 0, 0], [1, 1, 1]])


@pytest.mark.parametrize(
    ("mode", "operands", "expected"),
    [
        (M.DIV, ([7, -7, 1],  [2, 2, 3]), [3, -3, 0]),  # truncates towards zero
        (M.RECIPROCAL, ([1, -1, 2],), [1, -1, 0]),
        (M.ADD, ([1, -2, 3], [4, 5, 6]), [5, 3, 9]),
        (M.CEIL, ([1, -2, 3],), [1, -2, 3]),
        (M.CMP_LT, ([1, 2, 3], [2, 2, 2]), [1, 0, 0]),
        (M.LOGICAL_AND, ([5, 0, -1], [1, 1, 0]), [1, 0, 0]),
        (M.SIGMOID_FWD, ([-100, 0, 100],), [0, 0, 1]),  # computes in FLOAT, then truncates: 0.5 is 0
        (M.EXP, ([0, 1, 2],), [1, 2, 7]),
    ],
)  # fmt: skip
def test_integers(mode: PointwiseMode, operands: tuple[list[int], ...], expected: list[int]) -> None:
    np.testing.assert_array_equal(evaluate(mode, *operands, data_type=DataType.INT32), expected)


def test_special_values_are_those_of_ieee() -> None:
    nan, inf = math.nan, math.inf
    cases: list[tuple[PointwiseMode, list[list[float]], list[float]]] = [
        (M.MAX, [[nan, 1, inf], [1, nan, 2]], [nan, nan, inf]),
        (M.MIN, [[nan, 1, -inf], [1, nan, 2]], [nan, nan, -inf]),
        (M.RELU_FWD, [[nan, inf, -inf]], [nan, inf, 0]),
        (M.DIV, [[1, -1, 0], [0, 0, 0]], [inf, -inf, nan]),
        (M.SQRT, [[-1, 0, inf]], [nan, 0, inf]),
        (M.LOG, [[0, -1, inf]], [-inf, nan, inf]),
        (M.RSQRT, [[0, inf, -1]], [inf, 0, nan]),
        (M.CMP_EQ, [[nan, inf, 0], [nan, inf, -0.0]], [0, 1, 1]),
        (M.CMP_NEQ, [[nan, inf, 0], [nan, inf, -0.0]], [1, 0, 0]),
        (M.LOGICAL_NOT, [[nan, inf, 0]], [0, 0, 1]),
        (M.SIGMOID_FWD, [[-inf, inf, -1000]], [0, 1, 0]),
        (M.TANH_FWD, [[-inf, inf, 1000]], [-1, 1, 1]),
        (M.SOFTPLUS_FWD, [[-1000, 1000, 0]], [0, 1000, math.log(2)]),
        (M.ELU_FWD, [[-1000, -inf, 1000]], [-1, -1, 1000]),
        (M.BINARY_SELECT, [[1, 2, 3], [nan, nan, nan], [1, nan, 0]], [1, 2, nan]),
    ]
    for mode, values, expected in cases:
        np.testing.assert_allclose(evaluate(mode, *values), expected, rtol=1e-15, err_msg=mode.name)


# ---- against PyTorch -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def torch() -> Any:
    return pytest.importorskip("torch", reason="the expectations above do not need it; pip install '.[torch]'")


def _torch_forward(torch: Any, mode: PointwiseMode, p: dict[str, float]) -> Callable[..., Any]:
    f = torch.nn.functional
    table: dict[PointwiseMode, Callable[..., Any]] = {
        M.ABS: torch.abs, M.NEG: torch.neg, M.CEIL: torch.ceil, M.FLOOR: torch.floor, M.SQRT: torch.sqrt,
        M.RSQRT: torch.rsqrt, M.RECIPROCAL: torch.reciprocal, M.EXP: torch.exp, M.LOG: torch.log, M.SIN: torch.sin,
        M.TAN: torch.tan, M.ERF: torch.erf, M.IDENTITY: torch.clone, M.ADD: torch.add, M.SUB: torch.sub,
        M.MUL: torch.mul, M.DIV: torch.div, M.ADD_SQUARE: lambda x, y: x + torch.square(y), M.MAX: torch.maximum,
        M.MIN: torch.minimum, M.CMP_EQ: torch.eq, M.CMP_NEQ: torch.ne, M.CMP_GT: torch.gt, M.CMP_GE: torch.ge,
        M.CMP_LT: torch.lt, M.CMP_LE: torch.le, M.LOGICAL_AND: torch.logical_and, M.LOGICAL_OR: torch.logical_or,
        M.LOGICAL_NOT: torch.logical_not, M.BINARY_SELECT: lambda x, y, c: torch.where(c != 0, x, y),
        M.SIGMOID_FWD: torch.sigmoid, M.TANH_FWD: torch.tanh, M.GELU_FWD: f.gelu,
        M.GELU_APPROX_TANH_FWD: lambda x: f.gelu(x, approximate="tanh"),
        M.SWISH_FWD: lambda x: x * torch.sigmoid(p.get("swish_beta", 1.0) * x),
        M.ELU_FWD: lambda x: f.elu(x, alpha=p.get("elu_alpha", 1.0)),
        M.SOFTPLUS_FWD: lambda x: f.softplus(x, beta=p.get("softplus_beta", 1.0), threshold=1e9),
    }  # fmt: skip
    if mode is M.RELU_FWD:
        if not p:
            return f.relu
        low, high, slope = p["relu_lower_clip"], p["relu_upper_clip"], p["relu_lower_clip_slope"]
        return lambda x: (f.leaky_relu(x - low, slope) + low).clamp(max=high)
    return table[mode]


@pytest.mark.parametrize("mode", [mode for mode in M if mode is not M.GEN_INDEX], ids=lambda mode: mode.name)
@pytest.mark.parametrize("given", [False, True], ids=["default", "parameters"])
def test_modes_agree_with_pytorch(torch: Any, mode: PointwiseMode, given: bool) -> None:
    values: dict[str, float] = {"swish_beta": 1.7, "elu_alpha": 0.6, "softplus_beta": 2.5, **CLIPS}
    parameters = {name: values[name] for name in MODES[mode].parameters} if given else {}
    rng = np.random.default_rng(5)
    arrays = [rng.standard_normal((3, 4)) for _ in range(MODES[mode].arity)]
    if mode in (M.SQRT, M.RSQRT, M.LOG):
        arrays[0] = np.abs(arrays[0])
    if mode in (M.LOGICAL_AND, M.LOGICAL_OR, M.LOGICAL_NOT, M.BINARY_SELECT, M.CMP_EQ, M.CMP_GE):
        arrays = [np.rint(array) for array in arrays]
    tensors = [torch.tensor(array) for array in arrays]
    if mode in BACKWARD:
        dy, x = tensors
        x.requires_grad_()
        _torch_forward(torch, M[mode.name.replace("_BWD", "_FWD")], parameters)(x).backward(dy)
        expected = x.grad
    else:
        expected = _torch_forward(torch, mode, parameters)(*tensors)
    np.testing.assert_allclose(evaluate(mode, *arrays, **parameters), expected.numpy(), rtol=1e-13, atol=1e-14)


# ---- rules ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", M, ids=lambda mode: mode.name)
def test_the_number_of_inputs(mode: PointwiseMode) -> None:
    arity = MODES[mode].arity
    for count in range(1, 4):
        g = Graph("g", io_data_type=DataType.FLOAT)
        axis = {"axis": 0} if mode is M.GEN_INDEX else {}
        g.pointwise(mode, *(g.tensor(f"t{i}", dim=(2,)) for i in range(count)), name="n", **axis).set_output()
        if count == arity:
            assert g.validate().nodes[0].outputs["out_0"].dims == (2,)
        else:
            with pytest.raises(GraphError, match=rf"pointwise 'n': {mode.name} takes {arity} inputs, got {count} \("):
                g.validate()


def test_an_input_that_is_left_out_in_between() -> None:
    g = Graph("g", io_data_type=DataType.FLOAT)
    a, b = (g.tensor(name, dim=(2,)) for name in "ab")
    g.pointwise(M.ADD, a, None, b).set_output()
    with pytest.raises(GraphError, match=r"ADD takes 2 inputs, got 2 \(in_0, in_2\)"):
        g.validate()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mode": "ADD"}, "pointwise: mode must be a PointwiseMode, got 'ADD'"),
        (
            {"mode": M.ADD, "swish_beta": 1.0},
            "pointwise ADD: swish_beta=1.0 does not belong to this mode; its parameters",
        ),
        ({"mode": M.ADD, "axis": 0}, "axis=0 does not belong to this mode; its parameters are none"),
        (
            {"mode": M.RELU_FWD, "elu_alpha": 1},
            "its parameters are relu_lower_clip, relu_upper_clip, relu_lower_clip_slope",
        ),
        ({"mode": M.GEN_INDEX}, "pointwise GEN_INDEX: axis is missing"),
        ({"mode": M.GEN_INDEX, "axis": 1.5}, "pointwise GEN_INDEX: axis must be a whole number, got 1.5"),
        ({"mode": M.GEN_INDEX, "axis": math.inf}, "axis must be a whole number, got inf"),
        ({"mode": M.GEN_INDEX, "axis": math.nan}, "axis must be a whole number, got nan"),
        ({"mode": M.GEN_INDEX, "axis": "0"}, "axis must be a number, got '0'"),
        ({"mode": M.GEN_INDEX, "axis": True}, "axis must be a number, got True"),
        ({"mode": M.SWISH_FWD, "swish_beta": math.nan}, "swish_beta must be a number, not NaN, got nan"),
        ({"mode": M.SWISH_FWD, "swish_beta": 10**400}, "swish_beta must be a number, not NaN, got 1000"),
        ({"mode": M.SWISH_FWD, "swish_beta": "1"}, "swish_beta must be a number, got '1'"),
        ({"mode": M.SOFTPLUS_FWD, "softplus_beta": 0}, "pointwise SOFTPLUS_FWD: softplus_beta must not be 0"),
    ],
)
def test_bad_attributes(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        PointwiseAttributes(**arguments)


def test_attributes_are_plain_numbers() -> None:
    found = PointwiseAttributes(mode=M.SWISH_FWD, swish_beta=np.float32(0.5))  # type: ignore[arg-type]
    assert (type(found.swish_beta), found.swish_beta) == (float, 0.5)
    assert type(PointwiseAttributes(mode=M.GEN_INDEX, axis=np.int64(2)).axis) is int  # type: ignore[arg-type]


@pytest.mark.parametrize("axis", [-1, 2, 100])
def test_an_axis_out_of_range(axis: int) -> None:
    g = Graph("g", io_data_type=DataType.FLOAT)
    g.pointwise(M.GEN_INDEX, g.tensor("x", dim=(2, 3)), axis=axis).set_output()
    with pytest.raises(GraphError, match=rf"axis {axis} is no dim of in_0 \(2, 3\)"):
        g.validate()


def test_scalars_become_constants() -> None:
    g = Graph("g", io_data_type=DataType.HALF)
    x = g.tensor("x", dim=(2,))
    y = g.pointwise(M.ADD, g.pointwise(M.MUL, 2.5, x), np.float32(1))  # type: ignore[arg-type]
    g.pointwise(M.BINARY_SELECT, y, -1, True).set_output()
    g.validate()
    constants = [(t.value, t.data_type, t.dims) for t in g.tensors if t.value is not None]
    assert constants == [
        (2.5, DataType.FLOAT, (1,)),
        (1.0, DataType.FLOAT, (1,)),
        (-1, DataType.INT64, (1,)),
        (True, DataType.BOOLEAN, (1,)),
    ]
    assert g.arguments().inputs == (x,)
    (result,) = g.reference({x: [1, 2]}).values()
    assert result.tolist() == [3.5, 6.0]


# ---- inference -----------------------------------------------------------------------------------------------------


def infer(shapes: list[tuple[Dims, Dims | None]], mode: PointwiseMode = M.ADD) -> TensorAttr:
    g = Graph("g", io_data_type=DataType.FLOAT)
    y = g.pointwise(mode, *(g.tensor(f"t{i}", dim=dim, stride=stride) for i, (dim, stride) in enumerate(shapes)))
    y.set_output()
    g.validate()
    return y


@pytest.mark.parametrize(
    ("shapes", "dims", "strides"),
    [
        ([((2, 3), None), ((2, 3), None)], (2, 3), (3, 1)),
        # the first input of the output's dims gives the order, wherever it stands
        ([((1, 3), None), ((2, 3), (1, 2))], (2, 3), (1, 2)),
        ([((2, 3), (1, 2)), ((2, 3), (3, 1))], (2, 3), (1, 2)),
        # padding is not inherited
        ([((2, 3), (8, 2)), ((2, 3), None)], (2, 3), (3, 1)),
        # a repeated input is nobody's model
        ([((2, 3), (0, 1)), ((2, 3), (1, 2))], (2, 3), (1, 2)),
        # no input has the output's dims: the first one of its rank that is more than a number
        ([((1, 1, 1, 1), None), ((2, 1, 4, 5), (20, 1, 5, 1)), ((3, 1, 1), None)], (2, 3, 4, 5), (60, 20, 5, 1)),
        ([((4, 1), None), ((1, 5), None)], (4, 5), (5, 1)),
        ([((1, 8, 1, 1), None), ((2, 8, 4, 4), (128, 1, 32, 8))], (2, 8, 4, 4), (128, 1, 32, 8)),
        ([((3,), None), ((2, 1), None)], (2, 3), (3, 1)),
        ([((), None), ((2,), None)], (2,), (1,)),
    ],
)
def test_dims_and_strides(shapes: list[tuple[Dims, Dims | None]], dims: Dims, strides: Dims) -> None:
    y = infer(shapes, M.BINARY_SELECT if len(shapes) == 3 else M.ADD)
    assert (y.dims, y.strides) == (dims, strides)


@pytest.mark.parametrize("shapes", [[(2, 3), (2,)], [(2,), (3,)], [(4, 2, 3), (2, 1, 2)]])
def test_dims_that_do_not_broadcast(shapes: list[Dims]) -> None:
    with pytest.raises(
        GraphError, match=r"pointwise 'pointwise_0': inputs do not broadcast: 't0' .*, 't1' .*; right-aligned"
    ):
        infer([(shape, None) for shape in shapes])


@pytest.mark.parametrize(
    ("dims", "fine"), [((2, 3), True), ((4, 2, 3), True), ((3,), False), ((2, 4), False), ((1, 3), False)]
)
def test_output_dims_that_the_user_sets(dims: Dims, fine: bool) -> None:
    g = Graph("g", io_data_type=DataType.FLOAT)
    y = g.pointwise(M.NEG, g.tensor("x", dim=(2, 3))).set_output().set_dim(dims).set_name("y")
    if fine:
        assert g.validate().reference({"x": np.ones((2, 3))})[y].shape == dims
    else:
        with pytest.raises(GraphError, match=r"output 'y' has dims .*, the inputs broadcast to \(2, 3\)"):
            g.validate()


def test_floats_are_no_integers_whatever_the_compute_type() -> None:
    """hipDNN's CPU reference computes in floats, and the compute type of a graph holds for all its nodes."""
    g = Graph("scaled", io_data_type=DataType.INT32, compute_data_type=DataType.INT32)
    x, factor = g.tensor("x", dim=(3,)), g.scalar(0.5, data_type=DataType.FLOAT)
    y = g.pointwise(PointwiseMode.MUL, x, factor).set_output().set_data_type(DataType.FLOAT)
    doubled = g.pointwise(PointwiseMode.ADD, x, x).set_output()
    g.validate()
    found = g.reference({x: np.array([-3, 1, 2**24 + 1], np.int32)})
    np.testing.assert_array_equal(found[y], [-1.5, 0.5, 2.0**23 + 0.5])
    np.testing.assert_array_equal(found[doubled], [-6, 2, 2**25 + 2])
    assert [node.compute for node in g.nodes] == [DataType.FLOAT, DataType.INT32]
