"""Pointwise operations: all modes, one table of formulas, broadcasting, parameters.

Source of the semantics: hipDNN's and cuDNN's front ends. Where sources disagree on the order of operands, the order
here is cuDNN's: the backward modes take (dy, x), BINARY_SELECT takes (value if true, value if false, predicate). Other
orders are an option of what imports a graph, never of the graph.
"""

# The formulas are lambdas in a table; pyright infers nothing for their parameters.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
# Users may pass anything.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import Enum
from typing import Final, cast

from fusilli_ground.late_numpy import np
from graph_api.builder import GraphBuilder
from graph_api.dtypes import DataType
from graph_api.errors import GraphError
from graph_api.layout import broadcast_dims, packed_strides, stride_order, strides_in_order
from graph_api.node import Array, Arrays, Attributes, Node, register_op
from graph_api.tensor import Scalar, TensorAttr

__all__ = ["MODES", "Mode", "PointwiseAttributes", "PointwiseBuilder", "PointwiseMode", "PointwiseNode"]


class PointwiseMode(Enum):
    """The elementwise function; ``MODES`` holds the formulas."""

    ABS = "ABS"
    ADD = "ADD"
    ADD_SQUARE = "ADD_SQUARE"
    BINARY_SELECT = "BINARY_SELECT"
    CEIL = "CEIL"
    CMP_EQ = "CMP_EQ"
    CMP_GE = "CMP_GE"
    CMP_GT = "CMP_GT"
    CMP_LE = "CMP_LE"
    CMP_LT = "CMP_LT"
    CMP_NEQ = "CMP_NEQ"
    DIV = "DIV"
    ELU_BWD = "ELU_BWD"
    ELU_FWD = "ELU_FWD"
    ERF = "ERF"
    EXP = "EXP"
    FLOOR = "FLOOR"
    GELU_APPROX_TANH_BWD = "GELU_APPROX_TANH_BWD"
    GELU_APPROX_TANH_FWD = "GELU_APPROX_TANH_FWD"
    GELU_BWD = "GELU_BWD"
    GELU_FWD = "GELU_FWD"
    GEN_INDEX = "GEN_INDEX"
    IDENTITY = "IDENTITY"
    LOG = "LOG"
    LOGICAL_AND = "LOGICAL_AND"
    LOGICAL_NOT = "LOGICAL_NOT"
    LOGICAL_OR = "LOGICAL_OR"
    MAX = "MAX"
    MIN = "MIN"
    MUL = "MUL"
    NEG = "NEG"
    RECIPROCAL = "RECIPROCAL"
    RELU_BWD = "RELU_BWD"
    RELU_FWD = "RELU_FWD"
    RSQRT = "RSQRT"
    SIGMOID_BWD = "SIGMOID_BWD"
    SIGMOID_FWD = "SIGMOID_FWD"
    SIN = "SIN"
    SOFTPLUS_BWD = "SOFTPLUS_BWD"
    SOFTPLUS_FWD = "SOFTPLUS_FWD"
    SQRT = "SQRT"
    SUB = "SUB"
    SWISH_BWD = "SWISH_BWD"
    SWISH_FWD = "SWISH_FWD"
    TAN = "TAN"
    TANH_BWD = "TANH_BWD"
    TANH_FWD = "TANH_FWD"


@dataclass(frozen=True, kw_only=True)
class PointwiseAttributes(Attributes):
    """Attributes of a pointwise operation; a parameter that the mode does not use must be left out.

    Attributes:
        mode: the function.
        relu_lower_clip, relu_upper_clip, relu_lower_clip_slope: of RELU_FWD and RELU_BWD; defaults 0, none, 0.
        swish_beta, elu_alpha, softplus_beta: of these modes, forward and backward; default 1.
        axis: of GEN_INDEX, the dim whose coordinate is written.
    """

    mode: PointwiseMode
    relu_lower_clip: float | None = None
    relu_upper_clip: float | None = None
    relu_lower_clip_slope: float | None = None
    swish_beta: float | None = None
    elu_alpha: float | None = None
    softplus_beta: float | None = None
    axis: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.mode, PointwiseMode):
            raise GraphError(f"pointwise: mode must be a PointwiseMode, got {self.mode!r}")
        allowed = MODES[self.mode].parameters
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "mode" or value is None:
                continue
            if field.name not in allowed:
                raise GraphError(
                    f"pointwise {self.mode.name}: {field.name}={value!r} does not belong to this mode; "
                    f"its parameters are {', '.join(allowed) or 'none'}"
                )
            if isinstance(value, bool) or not isinstance(value, int | float | np.number):
                raise GraphError(f"pointwise {self.mode.name}: {field.name} must be a number, got {value!r}")
            kind = int if field.name == "axis" else float
            try:
                number = kind(value)
            except (OverflowError, ValueError):
                number = None
            if number != value:
                raise GraphError(
                    f"pointwise {self.mode.name}: {field.name} must be "
                    f"{'a whole number' if kind is int else 'a number, not NaN'}, got {value!r:.60}"
                )
            object.__setattr__(self, field.name, number)
        if self.mode is PointwiseMode.GEN_INDEX and self.axis is None:
            raise GraphError("pointwise GEN_INDEX: axis is missing")
        if self.softplus_beta == 0:
            raise GraphError(f"pointwise {self.mode.name}: softplus_beta must not be 0")

    @property
    def clip(self) -> tuple[float, float, float]:
        """Lower clip, upper clip and slope of the RELU modes with their defaults."""
        upper = math.inf if self.relu_upper_clip is None else self.relu_upper_clip
        return self.relu_lower_clip or 0.0, upper, self.relu_lower_clip_slope or 0.0

    @property
    def is_plain_relu(self) -> bool:
        """True if no RELU parameter is set."""
        return self.relu_lower_clip is None and self.relu_upper_clip is None and self.relu_lower_clip_slope is None


@dataclass(frozen=True)
class Mode:
    """One mode: its formula on float64 arrays, its arity, the parameters that it takes, how exact devices are.

    Attributes:
        formula: ``(attributes, *inputs) -> output``.
        ulps: rounding steps of the compute type that a device may take, relative to the output.
        scale: magnitude, from the inputs, that the same steps also refer to: where a formula cancels.
    """

    arity: int
    formula: Callable[..., Array]
    parameters: tuple[str, ...] = ()
    ulps: float = 1.0
    scale: Callable[..., Array] | None = None


def _sigmoid(x: Array) -> Array:
    # Neither overflows nor cancels, as 1 + tanh(x/2) would for x << 0.
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0, e) / (1.0 + e)


def _erf(x: Array) -> Array:
    return np.fromiter(map(math.erf, x.ravel()), np.float64, x.size).reshape(x.shape)


def _cdf(x: Array) -> Array:
    return 0.5 * np.vectorize(math.erfc, otypes=[np.float64])(-x / math.sqrt(2.0)) if x.size else x


def _density(x: Array) -> Array:
    return np.exp(-0.5 * x * x) / math.sqrt(2.0 * math.pi)


_TANH_SCALE = math.sqrt(2.0 / math.pi)
_TANH_CUBE = 0.044715


def _gelu_tanh(x: Array) -> Array:
    return 0.5 * x * (1.0 + np.tanh(_TANH_SCALE * (x + _TANH_CUBE * x**3)))


def _gelu_tanh_slope(x: Array) -> Array:
    t = np.tanh(_TANH_SCALE * (x + _TANH_CUBE * x**3))
    return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * _TANH_SCALE * (1.0 + 3.0 * _TANH_CUBE * x * x)


def _relu(a: PointwiseAttributes, x: Array) -> Array:
    low, high, slope = a.clip
    below = slope * (x - low) + low if slope else low  # 0 * infinity is not meant
    return np.where(x <= low, below, np.where(x >= high, high, x))


def _relu_slope(a: PointwiseAttributes, x: Array) -> Array:
    if a.is_plain_relu:
        return (x > 0).astype(np.float64)
    low, high, slope = a.clip
    return np.where(x <= low, slope, np.where(x > high, 0.0, 1.0))


def _relu_gradient(a: PointwiseAttributes, dy: Array, x: Array) -> Array:
    slope = _relu_slope(a, x)
    return np.where(slope == 0, 0.0, dy * slope)  # an infinite dy does not pass a slope of 0


def _swish_slope(a: PointwiseAttributes, x: Array) -> Array:
    beta = _one(a.swish_beta)
    s = _sigmoid(beta * x)
    return s + beta * x * s * (1.0 - s)


def _one(parameter: float | None) -> float:
    return 1.0 if parameter is None else parameter


def _truth(x: Array) -> Array:
    return x.astype(np.float64)


def _magnitude(_: PointwiseAttributes, *inputs: Array) -> Array:
    return np.abs(inputs[-1])


def _product_magnitude(_: PointwiseAttributes, dy: Array, x: Array) -> Array:
    return np.abs(dy) * (1.0 + np.abs(x))


def _absolute(_: PointwiseAttributes, x: Array) -> Array:
    return np.ones(x.shape)


def _unit(_: PointwiseAttributes, x: Array) -> Array:
    return np.minimum(np.abs(x), 1.0)


_CLIPS = ("relu_lower_clip", "relu_upper_clip", "relu_lower_clip_slope")

_SMALLEST: Final = 2.0**-126  # normal number of float32
_LARGE: Final = 2.0**30

MODES: dict[PointwiseMode, Mode] = {
    PointwiseMode.ABS: Mode(1, lambda a, x: np.abs(x)),
    PointwiseMode.NEG: Mode(1, lambda a, x: -x),
    PointwiseMode.CEIL: Mode(1, lambda a, x: np.ceil(x)),
    PointwiseMode.FLOOR: Mode(1, lambda a, x: np.floor(x)),
    PointwiseMode.SQRT: Mode(1, lambda a, x: np.sqrt(x), ulps=4),
    PointwiseMode.RSQRT: Mode(1, lambda a, x: 1.0 / np.sqrt(x), ulps=8),
    PointwiseMode.RECIPROCAL: Mode(1, lambda a, x: 1.0 / x, ulps=4),
    PointwiseMode.EXP: Mode(1, lambda a, x: np.exp(x), ulps=8),
    PointwiseMode.LOG: Mode(1, lambda a, x: np.log(x), ulps=8, scale=lambda a, x: np.minimum(np.abs(x - 1.0), 1.0)),
    PointwiseMode.SIN: Mode(1, lambda a, x: np.sin(x), ulps=4, scale=_absolute),
    PointwiseMode.TAN: Mode(1, lambda a, x: np.tan(x), ulps=8, scale=lambda a, x: 1.0 + np.tan(x) ** 2),
    PointwiseMode.ERF: Mode(1, lambda a, x: _erf(x), ulps=8, scale=_unit),
    PointwiseMode.IDENTITY: Mode(1, lambda a, x: x, ulps=0),
    PointwiseMode.ADD: Mode(2, lambda a, x, y: x + y),
    PointwiseMode.SUB: Mode(2, lambda a, x, y: x - y),
    PointwiseMode.MUL: Mode(2, lambda a, x, y: x * y),
    PointwiseMode.DIV: Mode(2, lambda a, x, y: x / y, ulps=4),
    PointwiseMode.ADD_SQUARE: Mode(2, lambda a, x, y: x + y * y, ulps=2, scale=lambda a, x, y: np.abs(x) + y * y),
    PointwiseMode.MAX: Mode(2, lambda a, x, y: np.maximum(x, y), ulps=0),
    PointwiseMode.MIN: Mode(2, lambda a, x, y: np.minimum(x, y), ulps=0),
    PointwiseMode.CMP_EQ: Mode(2, lambda a, x, y: _truth(x == y), ulps=0),
    PointwiseMode.CMP_NEQ: Mode(2, lambda a, x, y: _truth(x != y), ulps=0),
    PointwiseMode.CMP_GT: Mode(2, lambda a, x, y: _truth(x > y), ulps=0),
    PointwiseMode.CMP_GE: Mode(2, lambda a, x, y: _truth(x >= y), ulps=0),
    PointwiseMode.CMP_LT: Mode(2, lambda a, x, y: _truth(x < y), ulps=0),
    PointwiseMode.CMP_LE: Mode(2, lambda a, x, y: _truth(x <= y), ulps=0),
    PointwiseMode.LOGICAL_AND: Mode(2, lambda a, x, y: _truth((x != 0) & (y != 0)), ulps=0),
    PointwiseMode.LOGICAL_OR: Mode(2, lambda a, x, y: _truth((x != 0) | (y != 0)), ulps=0),
    PointwiseMode.LOGICAL_NOT: Mode(1, lambda a, x: _truth(x == 0), ulps=0),
    PointwiseMode.BINARY_SELECT: Mode(3, lambda a, x, y, p: np.where(p != 0, x, y), ulps=0),
    PointwiseMode.GEN_INDEX: Mode(1, lambda a, x: _coordinate(a, x), ("axis",), ulps=0),
    PointwiseMode.RELU_FWD: Mode(1, _relu, _CLIPS, ulps=2, scale=lambda a, x: np.abs(x) + abs(a.clip[0])),
    PointwiseMode.RELU_BWD: Mode(2, _relu_gradient, _CLIPS),
    PointwiseMode.SIGMOID_FWD: Mode(1, lambda a, x: _sigmoid(x), ulps=8),
    PointwiseMode.SIGMOID_BWD: Mode(
        2, lambda a, dy, x: dy * _sigmoid(x) * _sigmoid(-x), ulps=8, scale=lambda a, dy, x: np.abs(dy) * _sigmoid(x)
    ),
    PointwiseMode.TANH_FWD: Mode(1, lambda a, x: np.tanh(x), ulps=8, scale=_unit),
    PointwiseMode.TANH_BWD: Mode(
        2, lambda a, dy, x: dy * (1.0 - np.tanh(x) ** 2), ulps=8, scale=lambda a, dy, x: np.abs(dy)
    ),
    PointwiseMode.GELU_FWD: Mode(1, lambda a, x: x * _cdf(x), ulps=8, scale=_magnitude),
    PointwiseMode.GELU_BWD: Mode(
        2, lambda a, dy, x: dy * (_cdf(x) + x * _density(x)), ulps=16, scale=_product_magnitude
    ),
    PointwiseMode.GELU_APPROX_TANH_FWD: Mode(1, lambda a, x: _gelu_tanh(x), ulps=8, scale=_magnitude),
    PointwiseMode.GELU_APPROX_TANH_BWD: Mode(
        2, lambda a, dy, x: dy * _gelu_tanh_slope(x), ulps=16, scale=_product_magnitude
    ),
    PointwiseMode.SWISH_FWD: Mode(1, lambda a, x: x * _sigmoid(_one(a.swish_beta) * x), ("swish_beta",), ulps=8),
    PointwiseMode.SWISH_BWD: Mode(
        2, lambda a, dy, x: dy * _swish_slope(a, x), ("swish_beta",), ulps=16, scale=_product_magnitude
    ),
    PointwiseMode.ELU_FWD: Mode(
        1, lambda a, x: np.where(x > 0, x, _one(a.elu_alpha) * np.expm1(x)), ("elu_alpha",), ulps=8,
        scale=lambda a, x: np.full(x.shape, abs(_one(a.elu_alpha))),
    ),
    PointwiseMode.ELU_BWD: Mode(
        2, lambda a, dy, x: dy * np.where(x > 0, 1.0, _one(a.elu_alpha) * np.exp(x)), ("elu_alpha",), ulps=8
    ),
    PointwiseMode.SOFTPLUS_FWD: Mode(
        1, lambda a, x: np.logaddexp(0.0, _one(a.softplus_beta) * x) / _one(a.softplus_beta), ("softplus_beta",),
        ulps=8,
        scale=lambda a, x: np.full(x.shape, 1.0 / abs(_one(a.softplus_beta))),
    ),
    PointwiseMode.SOFTPLUS_BWD: Mode(
        2, lambda a, dy, x: dy * _sigmoid(_one(a.softplus_beta) * x), ("softplus_beta",), ulps=8
    ),
}  # fmt: skip
"""Every mode. Formulas are the specification; emission rules of the same names stand in ``iree_bridge/emit``."""


_REAL_FAMILIES = [
    "SQRT",
    "RSQRT",
    "EXP",
    "LOG",
    "SIN",
    "TAN",
    "ERF",
    "SIGMOID",
    "TANH",
    "GELU",
    "SWISH",
    "ELU",
    "SOFTPLUS",
]
_REAL = frozenset(mode for mode in MODES if mode.name.split("_")[0] in _REAL_FAMILIES)
"""Modes that make no sense in integers: with an integer compute type they compute in FLOAT."""


def _coordinate(a: PointwiseAttributes, x: Array) -> Array:
    axis = a.axis or 0
    shape = [1] * x.ndim
    shape[axis] = x.shape[axis]
    return np.broadcast_to(np.arange(x.shape[axis], dtype=np.float64).reshape(shape), x.shape)


@register_op
class PointwiseNode(Node):
    """out_0 = mode(in_0[, in_1[, in_2]]), elementwise, inputs broadcast right-aligned.

    Shapes:  each input dim is 1 or the output's; inputs may have a lower rank; out_0 defaults to the common shape
    Dtypes:  inputs are converted to the compute type, the result to the output's type (integers truncate towards zero,
             booleans are non-zero); IDENTITY converts directly. With a float among the inputs an integer compute type
             counts as FLOAT
    Layout:  out_0 takes the stride order of the first input of its shape, else of the first of its rank
    Raises:  GraphError on a wrong number of inputs, shapes that do not broadcast, an axis out of range
    Source:  hipDNN PointwiseMode; ``MODES`` states each formula
    """

    op = "pointwise"
    attributes_type = PointwiseAttributes
    attributes: PointwiseAttributes
    input_ports = ("in_0", "in_1", "in_2")
    optional_inputs = ("in_1", "in_2")
    output_ports = ("out_0",)

    @property
    def mode(self) -> Mode:
        """The mode's formula and arity."""
        return MODES[self.attributes.mode]

    def validate(self) -> None:
        if tuple(self.inputs) != self.input_ports[: self.mode.arity]:
            raise self.fail(
                f"{self.attributes.mode.name} takes {self.mode.arity} inputs, "
                f"got {len(self.inputs)} ({', '.join(self.inputs)})"
            )
        shapes = {tensor.name: tensor.dims for tensor in self.inputs.values()}
        if broadcast_dims(list(shapes.values())) is None:
            listed = ", ".join(f"'{name}' {dims}" for name, dims in shapes.items())
            raise self.fail(f"inputs do not broadcast: {listed}; right-aligned dims must be equal or 1")
        if self.attributes.mode in _REAL and not self.compute.is_float:
            self.compute = DataType.FLOAT
        if self.attributes.mode is not PointwiseMode.IDENTITY:
            self.compute_floats_in_float()
        axis = self.attributes.axis
        if axis is not None and not 0 <= axis < self.inputs["in_0"].rank:
            raise self.fail(f"axis {axis} is no dim of in_0 {self.inputs['in_0'].dims}")

    def infer(self) -> None:
        tensors = list(self.inputs.values())
        common = broadcast_dims([tensor.dims for tensor in tensors])
        assert common is not None
        out = self.outputs["out_0"]
        out.resolve(dims=common)
        if broadcast_dims([out.dims, common]) != out.dims or len(out.dims) < len(common):
            raise self.fail(f"output '{out.name}' has dims {out.dims}, the inputs broadcast to {common}")
        if not out.has_strides:
            out.resolve(strides=self._strides(tensors, out))

    def _strides(self, tensors: list[TensorAttr], out: TensorAttr) -> tuple[int, ...]:
        same = [tensor for tensor in tensors if tensor.dims == out.dims and 0 not in tensor.strides]
        ranked = [tensor for tensor in tensors if tensor.rank == out.rank and tensor.volume > 1]
        for like in (*same, *ranked):
            return strides_in_order(out.dims, stride_order(like.dims, like.strides))
        return packed_strides(out.dims)

    def respecified_dims(self, port: str, old: Node) -> tuple[int, ...] | None:
        """Where the output was larger than its inputs it stays as large."""
        before = broadcast_dims([tensor.dims for tensor in old.inputs.values()])
        after = broadcast_dims([tensor.dims for tensor in self.inputs.values()])
        kept = old.outputs[port].dims
        if after is None or before is None or before == kept or len(after) != len(before):
            return None
        lead = len(kept) - len(before)
        wider = zip(kept[lead:], before, after, strict=True)
        return (*kept[:lead], *(k if (b, a) == (1, 1) else a for k, b, a in wider))

    def reference(self, inputs: Arrays) -> dict[str, Array]:
        return {"out_0": self._evaluate([inputs[port] for port in self.inputs])}

    def error(self, inputs: Arrays, errors: Arrays, outputs: Arrays) -> dict[str, Array]:
        values = [np.asarray(inputs[port]) for port in self.inputs]
        out = outputs["out_0"]
        eps = self.accumulation_eps
        bound = self.mode.ulps * eps * np.abs(out)
        if self.mode.scale is not None:
            bound = bound + self.mode.ulps * eps * self.mode.scale(self.attributes, *values)
        if self.mode.ulps > 2:  # an exponential within may be flushed to zero, and is multiplied by inputs
            bound = bound + _SMALLEST * math.prod(1.0 + np.minimum(np.abs(value), _LARGE) for value in values)
        for index, port in enumerate(self.inputs):
            shift = errors[port] + self._conversion_eps(port) * np.abs(values[index])
            if not np.any(shift):
                continue
            moved = [
                self._evaluate([*values[:index], values[index] + s, *values[index + 1 :]]) for s in (shift, -shift)
            ]
            bound = bound + np.fmax(np.abs(moved[0] - out), np.abs(moved[1] - out))
        return {"out_0": np.nan_to_num(bound, nan=0.0, posinf=np.inf)}

    def _evaluate(self, values: list[Array]) -> Array:
        out = self.mode.formula(self.attributes, *values)
        if not self.compute.is_float and self.attributes.mode is not PointwiseMode.IDENTITY:
            out = np.trunc(out)
        return np.array(np.broadcast_to(out, self.outputs["out_0"].dims))

    def _conversion_eps(self, port: str) -> float:
        """What converting an input to the compute type loses, and what inexact functions lose of their argument."""
        if self.attributes.mode is PointwiseMode.IDENTITY:
            return 0.0
        dtype = self.inputs[port].data_type
        narrows = dtype.eps < self.compute.eps and (dtype.is_float or dtype.bits > 8)
        return self.compute.eps * (0.5 * narrows + (2.0 if self.mode.ulps > 2 else 0.0))


class PointwiseBuilder(GraphBuilder):
    """Builder method of the pointwise operations."""

    def pointwise(
        self,
        mode: PointwiseMode,
        in_0: TensorAttr | Scalar,
        in_1: TensorAttr | Scalar | None = None,
        in_2: TensorAttr | Scalar | None = None,
        *,
        relu_lower_clip: float | None = None,
        relu_upper_clip: float | None = None,
        relu_lower_clip_slope: float | None = None,
        swish_beta: float | None = None,
        elu_alpha: float | None = None,
        softplus_beta: float | None = None,
        axis: int | None = None,
        compute_data_type: DataType | None = None,
        name: str | None = None,
    ) -> TensorAttr:
        """Adds a pointwise operation; see :class:`PointwiseNode`.

        Args:
            mode: the function.
            in_0, in_1, in_2: tensors of the graph, or numbers, which become constants. Backward modes take (dy, x);
                BINARY_SELECT takes (value if true, value if false, predicate).
            relu_lower_clip, relu_upper_clip, relu_lower_clip_slope, swish_beta, elu_alpha, softplus_beta, axis: see
                :class:`PointwiseAttributes`.

        Returns:
            out_0, virtual until ``set_output(True)``.

        Raises:
            GraphError: a parameter that the mode does not take.
        """
        attributes = PointwiseAttributes(
            mode=mode, relu_lower_clip=relu_lower_clip, relu_upper_clip=relu_upper_clip,
            relu_lower_clip_slope=relu_lower_clip_slope, swish_beta=swish_beta, elu_alpha=elu_alpha,
            softplus_beta=softplus_beta, axis=axis,
        )  # fmt: skip
        inputs = {f"in_{i}": self._operand(value) for i, value in enumerate((in_0, in_1, in_2)) if value is not None}
        node = self.add_node(
            PointwiseNode, inputs, name=name, attributes=attributes, compute_data_type=compute_data_type
        )
        return node.outputs["out_0"]

    def _operand(self, value: TensorAttr | Scalar) -> TensorAttr:
        if isinstance(value, np.generic):
            return self._operand(cast(Scalar, value.item()))
        if isinstance(value, bool | int | float):
            kind = (
                DataType.BOOLEAN
                if isinstance(value, bool)
                else DataType.INT64
                if isinstance(value, int)
                else DataType.FLOAT
            )
            return self.scalar(value, data_type=kind)
        return value
