"""Running a graph in float64 with a bound of what a device may be off by, and comparing results with it.

The bound is carried along node by node (running error analysis): each operation says how errors of its inputs reach
its outputs and what it adds, from the compute type and the length of its sums; every tensor adds the rounding of its
data type. So each element has a tolerance of its own, and a cancelling sum is not excused by a large neighbour.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from fusilli_ground.late_numpy import np
from graph_api.dtypes import DataType
from graph_api.errors import GraphError
from graph_api.node import Array
from graph_api.tensor import TensorAttr

if TYPE_CHECKING:
    from graph_api.graph import Graph

__all__ = ["Comparison", "Evaluation", "check", "evaluate", "random_inputs"]

SLACK = 1.5
"""Factor on the error bound, for the terms of second order that it leaves out."""


class Evaluation(NamedTuple):
    """Float64 values of all tensors of a graph and, where asked for, bounds of the absolute error of a device."""

    values: dict[TensorAttr, Array]
    errors: dict[TensorAttr, Array]


_LEAST_NORMAL: Final = 2.0**-126


@dataclass(frozen=True)
class Comparison:
    """One output against its reference.

    Attributes:
        tensor: the output.
        max_error: largest absolute error.
        max_ratio: largest error as a multiple of the element's tolerance; at most 1.0 passes.
        tolerance: tolerance of the element with the largest ratio.
        index: logical index of that element.
        got, expected: the values there.
    """

    tensor: TensorAttr
    max_error: float
    max_ratio: float
    tolerance: float
    index: tuple[int, ...]
    got: float
    expected: float

    @property
    def ok(self) -> bool:
        """True if every element is within its tolerance."""
        return self.max_ratio <= 1.0

    def __str__(self) -> str:
        verdict = "ok" if self.ok else "WRONG"
        return (
            f"'{self.tensor.name}' {verdict}: error/tolerance {self.max_ratio:.3g} at {list(self.index)}: "
            f"got {self.got:.8g}, expected {self.expected:.8g}, tolerance {self.tolerance:.3g}"
        )


def evaluate(
    graph: Graph,
    pack: Mapping[Any, object],
    *,
    input_errors: Mapping[Any, object] | None = None,
    with_errors: bool = True,
) -> Evaluation:
    """Runs ``graph`` in float64; see :class:`Evaluation`.

    Args:
        pack: the inputs.
        input_errors: bounds of what a device's inputs are off by, results of another graph say. Inputs with one are
            taken as they are, the others are rounded to their data type.

    Raises:
        GraphError: a missing, unknown or misshapen input or bound.
    """
    graph.validate()
    given = _input_errors(graph, input_errors or {})
    values = _inputs(graph, pack, given)
    errors: dict[TensorAttr, Array] = {tensor: np.zeros(()) for tensor in values} | given
    with np.errstate(all="ignore"):
        for node in graph.nodes:
            ins = {port: values[tensor] for port, tensor in node.inputs.items()}
            outs = node.reference(ins)
            for port, tensor in node.outputs.items():
                values[tensor] = _stored_kind(outs[port], tensor.data_type)
            if with_errors:
                bounds = node.error(ins, {port: errors[tensor] for port, tensor in node.inputs.items()}, outs)
                for port, tensor in node.outputs.items():
                    errors[tensor] = _storage_error(bounds[port], outs[port], tensor.data_type)
    return Evaluation(values, errors)


def check(graph: Graph, inputs: Mapping[Any, object], results: Mapping[Any, object]) -> list[Comparison]:
    """Compares results of a device with the float64 reference, per element, one :class:`Comparison` per output.

    Raises:
        GraphError: an input or a result is missing or has another shape than its tensor.
    """
    evaluation = evaluate(graph, inputs)
    found = graph.by_tensor(results)
    comparisons: list[Comparison] = []
    for tensor in graph.arguments().outputs:
        if tensor not in found:
            raise GraphError(f"no result was given for output '{tensor.name}'")
        got = _elements(found[tensor], tensor)
        if got.shape != tensor.dims:
            raise GraphError(f"result '{tensor.name}' has shape {got.shape}, its tensor has dims {tensor.dims}")
        comparisons.append(compare(tensor, got, evaluation.values[tensor], evaluation.errors[tensor]))
    return comparisons


def compare(tensor: TensorAttr, got: np.ndarray[Any, Any], expected: Array, bound: Array) -> Comparison:
    """One output against its reference ``expected`` with the error bound ``bound`` (broadcastable)."""
    got = got.astype(np.float64)
    tolerance = SLACK * np.broadcast_to(bound, expected.shape)
    if tensor.data_type in (DataType.FLOAT, DataType.BFLOAT16):
        # What is computed with rounding may be flushed to zero below the least normal number.
        tolerance = np.where(tolerance > 0, tolerance + _LEAST_NORMAL, tolerance)
    with np.errstate(all="ignore"):
        error = np.abs(got - expected)
        ratio = np.where(error == 0, 0.0, error / tolerance)
        ratio = np.where(_same_special(got, expected, tolerance, tensor.data_type), 0.0, ratio)
        ratio = np.where(np.isnan(ratio), np.inf, ratio)
        error = np.where(ratio == 0.0, np.where(np.isfinite(error), error, 0.0), error)
    index = np.unravel_index(int(np.argmax(ratio)), ratio.shape) if ratio.ndim else ()
    return Comparison(
        tensor,
        float(np.max(error)),
        float(ratio[index]),
        float(tolerance[index]),
        tuple(int(i) for i in index),
        float(got[index]),
        float(expected[index]),
    )


def random_inputs(graph: Graph, seed: int = 0) -> dict[TensorAttr, np.ndarray[Any, Any]]:
    """Seeded inputs in the tensors' data types and strides: normal floats, small integers, fair booleans.

    Raises:
        GraphError: the seed is no integer from 0 on.
    """
    if not isinstance(seed, int | np.integer) or seed < 0:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise GraphError(f"a seed is an integer from 0 on, got {seed!r}")
    rng = np.random.default_rng(int(seed))
    arrays: dict[TensorAttr, np.ndarray[Any, Any]] = {}
    for tensor in graph.arguments().inputs:
        stored = tuple(1 if stride == 0 else dim for dim, stride in zip(tensor.dims, tensor.strides, strict=True))
        if tensor.data_type is DataType.BOOLEAN:
            values = rng.integers(0, 2, stored)
        elif tensor.data_type.is_integer:
            low = 0 if tensor.data_type in (DataType.UINT8, DataType.UINT4) else -8
            values = rng.integers(low, 8, stored)
        elif tensor.data_type is DataType.FP8_E8M0:
            values = 2.0 ** rng.integers(-3, 4, stored)
        else:
            values = rng.standard_normal(stored, np.float32)
        array = tensor.empty()
        array[...] = values.astype(array.dtype)
        arrays[tensor] = array
    return arrays


def _input_errors(graph: Graph, given: Mapping[Any, object]) -> dict[TensorAttr, Array]:
    inputs, bounds = graph.arguments().inputs, dict[TensorAttr, Array]()
    for tensor, given_bound in graph.by_tensor(given).items():
        if tensor not in inputs:
            raise GraphError(f"a bound was given for '{tensor.name}', which is no input of graph '{graph.name}'")
        bound = _numbers(given_bound, tensor).astype(np.float64)
        if bound.shape not in ((), tensor.dims):
            raise GraphError(
                f"the bound of input '{tensor.name}' has shape {bound.shape}, its tensor dims {tensor.dims}"
            )
        bounds[tensor] = bound
    return bounds


def _inputs(graph: Graph, pack: Mapping[Any, object], unrounded: Collection[TensorAttr]) -> dict[TensorAttr, Array]:
    given = graph.by_tensor(pack)
    values: dict[TensorAttr, Array] = {}
    for tensor in graph.arguments().inputs:
        if tensor not in given:
            raise GraphError(f"no array was given for input '{tensor.name}' of graph '{graph.name}'")
        array = _elements(given[tensor], tensor)
        if array.shape != tensor.dims:
            raise GraphError(f"input '{tensor.name}': the array has shape {array.shape}, its tensor dims {tensor.dims}")
        values[tensor] = array.astype(np.float64) if tensor in unrounded else _rounded(array, tensor)
    for tensor in graph.tensors:
        if tensor.value is not None:
            values[tensor] = _rounded(np.asarray(tensor.value), tensor).reshape(tensor.dims)
    return values


def _elements(value: object, tensor: TensorAttr) -> np.ndarray[Any, Any]:
    """``value`` as an array of elements; bytes of a packed type are memory wherever arrays are taken."""
    array = _numbers(value, tensor)
    return tensor.unpack(array) if tensor.data_type.is_packed and array.dtype == np.uint8 else array


def _numbers(value: object, tensor: TensorAttr) -> np.ndarray[Any, Any]:
    """``value`` as an array of real numbers or booleans."""
    try:
        array = np.asarray(value)
        array.astype(np.float64, casting="same_kind")
    except (TypeError, ValueError) as error:
        raise GraphError(
            f"'{tensor.name}': expected an array of real numbers, got {type(value).__name__} ({error})"
        ) from None
    return array


def _rounded(array: np.ndarray[Any, Any], tensor: TensorAttr) -> Array:
    """Float64 values after rounding to the tensor's data type; what overflows becomes infinite, without a warning."""
    with np.errstate(all="ignore"):
        return tensor.data_type.rounded(array).astype(np.float64)


def _stored_kind(value: Array, dtype: DataType) -> Array:
    """What kind of number a tensor can hold: integers truncate towards zero, booleans are 0 or 1, small types saturate.

    Other floats are not rounded: what a device does of that is in the error bound.
    """
    if dtype is DataType.BOOLEAN:
        return (value != 0).astype(np.float64)
    if dtype.is_packed and dtype.is_integer:
        return dtype.rounded(value).astype(np.float64)
    if dtype is DataType.FP8_E8M0:
        return np.where(value > 0, np.minimum(value, float(dtype.finfo.max)), np.nan)
    if dtype.is_small_float:
        value = np.where(np.isnan(value), 0.0, value) if dtype.bits < 8 else value
        return np.clip(value, -float(dtype.finfo.max), float(dtype.finfo.max))
    return np.trunc(value) if dtype.is_integer else value


def _storage_error(bound: Array, value: Array, dtype: DataType) -> Array:
    if dtype is DataType.BOOLEAN:
        return np.where(np.abs(value) <= bound, np.minimum(bound, 1.0) > 0, 0.0).astype(np.float64)
    if dtype.is_packed and dtype.is_integer:
        return np.where(bound == 0, 0.0, np.ceil(bound))
    if dtype.is_small_float:
        return _small_float_error(bound, value, dtype)
    if dtype.is_integer:
        near = np.abs(value - np.rint(value)) <= bound
        least, most = dtype.range
        # Numbers that the type has not, such as a product of many, are some number: nobody says that they wrap.
        return np.where(
            (value < least) | (value > most), np.inf, np.where(near | (bound >= 1), np.ceil(bound), np.floor(bound))
        )
    return bound + 0.5 * dtype.eps * np.abs(value) + float(dtype.finfo.smallest_subnormal)


def _small_float_error(bound: Array, value: Array, dtype: DataType) -> Array:
    """As of other floats; where the value is exact, what rounding makes of it is known."""
    kept = _stored_kind(value, dtype)
    rounding = 0.5 * dtype.eps * np.abs(kept) + float(dtype.finfo.smallest_subnormal)
    known = np.abs(dtype.rounded(kept).astype(np.float64) - kept)
    return np.where(bound == 0, np.nan_to_num(known), bound + rounding)


def _same_special(got: Array, expected: Array, tolerance: Array, dtype: DataType) -> Array:
    """Where NaN meets NaN, infinity meets infinity, or a value at the edge of the range overflowed."""
    same = (np.isnan(got) & np.isnan(expected)) | (got == expected)
    if not dtype.is_float:
        return same
    largest = float(dtype.finfo.max)
    overflow = np.isinf(got) & (np.sign(got) == np.sign(expected)) & (np.abs(expected) + tolerance > largest)
    return same | overflow
