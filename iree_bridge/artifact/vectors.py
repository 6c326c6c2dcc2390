"""Test vectors: inputs that a rule makes from a seed, and the results expected of them at sampled positions.

The rule is integer arithmetic written down here, not a library's random generator, whose stream may change between
releases; so a vector made today holds for good.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from graph_api import DataType, FusilliError, Graph, TensorAttr
from graph_api.numerics import Comparison, Evaluation, compare, evaluate
from iree_bridge.artifact.slices import Slice, slice_of

__all__ = [
    "RULE",
    "Sample",
    "TestVector",
    "affordable",
    "make_inputs",
    "make_sampled_vector",
    "make_vector",
    "positions",
    "too_expensive",
]

RULE: Final = "splitmix64-1"
"""Name of the rule of :func:`make_inputs`; a change of the rule is another name."""

MAX_SAMPLES: Final = 4096
_MAX_FLOPS: Final = 4e9  # some seconds in float64
_MAX_ELEMENTS: Final = 64_000_000

Samples = NDArray[np.float64]


@dataclass(frozen=True)
class Sample:
    """Expected values of one output.

    Attributes:
        indices: positions in the logical tensor, flattened row-major; int64, shape [n].
        expected: float64 reference there; shape [n].
        bound: bound of a device's absolute error there; shape [n].
    """

    indices: NDArray[np.int64]
    expected: Samples
    bound: Samples

    def check(self, tensor: TensorAttr, result: NDArray[Any]) -> Comparison:
        """Compare a device's result, an array of the tensor's dims, with the expected values.

        Raises:
            FusilliError: the result has another shape.
        """
        if result.shape != tensor.dims:
            raise FusilliError(f"result '{tensor.name}' has shape {result.shape}, its tensor has dims {tensor.dims}")
        positions = np.unravel_index(self.indices, tensor.dims) if tensor.dims else ()
        got = result[positions].reshape(self.indices.shape)
        found = compare(tensor, got, self.expected, self.bound)
        index = tuple(int(axis[found.index]) for axis in positions) if found.index else ()
        return Comparison(
            found.tensor, found.max_error, found.max_ratio, found.tolerance, index, found.got, found.expected
        )


@dataclass(frozen=True)
class TestVector:
    """What a graph must give for the inputs of a seed.

    Attributes:
        seed: of the inputs; see :func:`make_inputs`.
        samples: by output uid.
    """

    __test__ = False  # for pytest: no test class

    seed: int
    samples: Mapping[int, Sample]

    def check(self, graph: Graph, results: Mapping[int, NDArray[Any]]) -> list[Comparison]:
        """Compare results (by output uid) with the expected values, one comparison per output.

        Raises:
            FusilliError: a result is missing or has another shape than its tensor.
        """
        found: list[Comparison] = []
        for tensor in graph.arguments().outputs:
            if tensor.uid not in results:
                raise FusilliError(f"no result was given for output '{tensor.name}' (uid {tensor.uid})")
            found.append(self.samples[tensor.uid].check(tensor, np.asarray(results[tensor.uid])))
        return found


def make_inputs(graph: Graph, seed: int) -> dict[TensorAttr, NDArray[Any]]:
    """Inputs of a validated graph, in their tensors' data types and strides.

    Element ``i`` (row-major over the stored dims) of argument ``a`` is drawn from ``splitmix64(seed, a, i)``: floats
    are evenly spread in [-2, 2), integers in [-8, 8), unsigned ones in [0, 16), booleans are fair.
    """
    arrays: dict[TensorAttr, NDArray[Any]] = {}
    for position, tensor in enumerate(graph.arguments().inputs):
        stored = [1 if stride == 0 else dim for dim, stride in zip(tensor.dims, tensor.strides, strict=True)]
        array = tensor.empty()
        if array.size:
            # Stored once where the stride is 0, so that no element is written twice.
            target = array[tuple(slice(0, size) for size in stored)]
            bits = _splitmix64(seed * 0x1000003 + position, math.prod(stored)).reshape(stored)
            target[...] = _values(bits, tensor.data_type).astype(array.dtype)
        arrays[tensor] = array
    return arrays


def make_vector(graph: Graph, seed: int = 0, *, most_flops: float | None = None) -> TestVector | str:
    """The test vector of a validated graph, or the reason why there is none: its reference would take too long.

    Args:
        graph: validated.
        seed: of the inputs.
        most_flops: operations of the graph that are not too many yet; None: what takes some seconds.
    """
    reason = too_expensive(graph, most_flops)
    if reason:
        return reason
    inputs = make_inputs(graph, seed)
    try:
        evaluation = evaluate(graph, {tensor.uid: array for tensor, array in inputs.items()})
    except FusilliError as error:
        return f"the graph has no reference: {error}"
    return TestVector(seed, _samples(graph, evaluation, seed))


def affordable(graph: Graph) -> Graph | Slice | str:
    """What `make_sampled_vector` computes: the graph, some entries of its batch, or the reason why neither."""
    reason = too_expensive(graph)
    if not reason:
        return graph
    for count in (2, 1):
        part = slice_of(graph, count)
        if part is not None and not too_expensive(part.graph):
            return part
    return reason


def make_sampled_vector(graph: Graph, seed: int = 0) -> TestVector | str:
    """`make_vector`, of the first and last entries of the batch where the whole would take too long."""
    part = affordable(graph)
    if not isinstance(part, Slice):
        return part if isinstance(part, str) else make_vector(graph, seed)
    inputs = part.inputs(make_inputs(graph, seed))
    try:
        evaluation = evaluate(part.graph, inputs)
    except FusilliError as error:
        return f"the graph has no reference: {error}"
    samples: dict[int, Sample] = {}
    found = _samples(part.graph, evaluation, seed)
    for tensor in graph.arguments().outputs:
        sample = found[tensor.uid]
        samples[tensor.uid] = Sample(part.positions(tensor, sample.indices), sample.expected, sample.bound)
    return TestVector(seed, samples)


def _samples(graph: Graph, evaluation: Evaluation, seed: int) -> dict[int, Sample]:
    """What is expected of each result, by uid."""
    samples: dict[int, Sample] = {}
    for position, tensor in enumerate(graph.arguments().outputs):
        expected = evaluation.values[tensor]
        bound = np.broadcast_to(evaluation.errors[tensor], expected.shape)
        indices = positions(expected.size, seed + position)
        samples[tensor.uid] = Sample(
            indices,
            np.ascontiguousarray(expected.reshape(-1)[indices], np.float64),
            np.ascontiguousarray(bound.reshape(-1)[indices], np.float64),
        )
    return samples


def encode(array: NDArray[Any]) -> bytes:
    """An array as the bytes of an .npy file."""
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def decode(data: bytes, dtype: type[np.generic]) -> NDArray[Any]:
    """The one-dimensional array of ``dtype`` in the bytes of an .npy file.

    Raises:
        ValueError: it is no such file.
    """
    array = np.load(io.BytesIO(data), allow_pickle=False)
    if not isinstance(array, np.ndarray) or array.dtype != np.dtype(dtype) or array.ndim != 1:
        raise ValueError(f"expected a one-dimensional array of {np.dtype(dtype)}")
    return array


def _splitmix64(stream: int, count: int) -> NDArray[np.uint64]:
    """``count`` well mixed 64-bit numbers.

    Source: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014.
    """
    mask = 0xFFFFFFFFFFFFFFFF
    with np.errstate(over="ignore"):
        start = np.uint64((stream * 0xD1342543DE82EF95 + 1) & mask)
        z = start + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def _values(bits: NDArray[np.uint64], dtype: DataType) -> NDArray[Any]:
    if dtype is DataType.BOOLEAN:
        return (bits >> np.uint64(63)).astype(np.int64)
    if dtype.is_integer:
        small = (bits >> np.uint64(60)).astype(np.int64)
        return small if dtype is DataType.UINT8 else small - 8
    return ((bits >> np.uint64(40)).astype(np.float64) / 2.0**22 - 2.0).astype(np.float32)


def positions(size: int, stream: int) -> NDArray[np.int64]:
    """Where a result of so many elements is looked at: everywhere, or at its corners and where the stream says."""
    if size <= MAX_SAMPLES:
        return np.arange(size, dtype=np.int64)
    drawn = (_splitmix64(stream, MAX_SAMPLES) % np.uint64(size)).astype(np.int64)
    drawn[:2] = 0, size - 1  # the corners, where padding goes wrong first
    return np.unique(drawn)


def too_expensive(graph: Graph, most_flops: float | None = None) -> str:
    """Why no vector of a graph is made, because its reference would take too long; "" if it would not."""
    elements = sum(tensor.volume for tensor in graph.tensors)
    if elements > _MAX_ELEMENTS:
        return f"its tensors have {elements} elements, over {_MAX_ELEMENTS}"
    flops = graph.flops()
    most = _MAX_FLOPS if most_flops is None else most_flops
    if flops > most:
        return f"its reference takes {flops:.1e} operations, over {most:.0e}"
    return ""
