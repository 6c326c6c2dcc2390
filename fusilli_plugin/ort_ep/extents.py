"""Extents for tensors whose dims are not known before a run, while it is decided which nodes are claimed.

They are only guesses, and a group is compiled for what a run gives. But guesses that contradict each other, or the
weights, would keep nodes from being claimed. So dims that a model leaves open are symbols; where operands do not fit
together with the numbers that are tried, what they say of the symbols is learned, and the graph inferred again.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, Final

import numpy as np
import onnx
from onnx import helper, numpy_helper

from fusilli_plugin.ort_ep.abi import OrtError
from fusilli_plugin.ort_ep.constraints import Equality, Place, Shape, equalities
from fusilli_plugin.ort_ep.graphs import Node, SessionGraph, node_proto, opset_imports, read_by, tensor_proto
from hipdnn_backend.offload.frontend.folding import evaluate
from hipdnn_backend.offload.frontend.shapes import inferred_model
from hipdnn_backend.offload.onnx_process.client import OnnxError, OnnxProcessError

__all__ = ["Probe", "assumed_extents"]

_LOG: Final = logging.getLogger(__name__)
_SMALL: Final = 1024  # elements of a constant that inference may want to see
_ROUNDS: Final = 400
_SECONDS: Final = 3.0  # after which no other numbers are tried
_TRIES: Final = 4  # numbers that a symbol may get from what disagrees with it
_IR: Final = 10
_PRIMES: Final = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97)
_STEP: Final = 32  # nets halve and double their maps up to five times, some by shapes that they compute
_LARGEST_STEP: Final = 4096
_USUAL: Final = (64, 224, 32, 28, 128, 256, 96, 299, 300, 320, 416, 512, 640, 48, 16, 8)

Array = np.ndarray[Any, Any]
Probe = Callable[[int, Mapping[str, Sequence[int]], Mapping[str, Array]], Mapping[str, Sequence[int]] | None]
"""Dims of a node's results, given the dims of its operands and the elements of some, found by running it; None if that
does not work."""
_Key = str | Place
"""A symbol: the name of a dim, or the place of one without a name."""


def assumed_extents(graph: SessionGraph, given: Mapping[str, int], probe: Probe) -> dict[str, tuple[int, ...]]:
    """Extents of the tensors of a graph, by name; without those whose rank cannot be told.

    Args:
        graph: as ONNX Runtime shows it.
        given: extents of dims that the user wants, by their names, or ``tensor.axis`` for those without one.
        probe: asked for what neither ONNX nor ONNX Runtime infers.
    """
    if all(value.is_static for value in graph.values.values()):
        return {name: _ints(value.dims) for name, value in graph.values.items()}
    inference = _Inference(graph)
    best: _Trial | None = None
    end = time.monotonic() + _SECONDS
    for numbers in _styles(math.lcm(_STEP, _halvings(graph, inference.nodes, inference.arrays))):
        trial = _Trial(graph, inference, given, numbers, probe)
        trial.settle()
        if best is None or trial.contradictions < best.contradictions:
            best = trial
        if not best.contradictions or not trial.symbols.numbers or time.monotonic() > end:
            break
    assert best is not None, "there is a style"
    _LOG.debug("graph '%s': %s, %d contradictions", graph.name, best.symbols.numbers, best.contradictions)
    found = {name: _ints(shape) for name, shape in best.shapes.items() if None not in shape}
    return {**found, **{name: _ints(graph.values[name].dims) for name in graph.constants}}


def _ints(dims: Iterable[Any] | None) -> tuple[int, ...]:
    return tuple(int(dim) for dim in dims or ())


def _styles(step: int) -> Iterator[Callable[[int, bool], int]]:
    """How symbols get their first numbers: from their own number, and whether they are a first axis.

    Args:
        step: what maps are divided by until they are smallest.
    """
    yield lambda number, first: _PRIMES[number % len(_PRIMES)] * (1 if first else step)
    yield lambda number, first: _PRIMES[number % len(_PRIMES)]
    for all_of_them in (1, 2):
        yield lambda number, first, all_of_them=all_of_them: all_of_them
    for usual in _USUAL:
        yield lambda number, first, usual=usual: 2 if first else usual


def _halvings(graph: SessionGraph, protos: Mapping[int, onnx.NodeProto], arrays: Mapping[str, Array]) -> int:
    """A multiple of what the maps of a net are divided by, one after another: then none is rounded on the way.

    A map that was rounded down does not get its extents back when it is made larger again, and would contradict the one
    that it is joined with.
    """
    divided: dict[str, Fraction] = {}
    multiple = 1
    for node in graph.nodes:
        proto = protos.get(node.index)
        factor = Fraction(1) if proto is None else _division(proto, arrays)
        found = max((divided[name] for name in node.inputs if name in divided), default=Fraction(1)) * factor
        divided.update((name, found) for name in node.outputs if name)
        wanted = math.lcm(multiple, found.numerator)
        multiple = wanted if wanted <= _LARGEST_STEP else multiple
    return multiple


def _division(node: onnx.NodeProto, arrays: Mapping[str, Array]) -> Fraction:
    """How many times smaller a node makes maps; below 1 if it makes them larger."""
    given = {each.name: each for each in node.attribute}
    if node.op_type in ("SpaceToDepth", "DepthToSpace") and "blocksize" in given:
        size = Fraction(given["blocksize"].i)
        return size if node.op_type == "SpaceToDepth" else 1 / size
    if "strides" in given:
        size = Fraction(max(given["strides"].ints, default=1))
        return 1 / size if node.op_type == "ConvTranspose" else size
    scales = arrays.get(node.input[2]) if node.op_type == "Resize" and len(node.input) > 2 else None
    if scales is None or not scales.size or not 0.01 < float(scales.max()) < 100:
        return Fraction(1)
    larger = float(scales.max())
    by = larger if larger > 1 else float(scales.min())
    return 1 / Fraction(by).limit_denominator(16) if by > 0.01 else Fraction(1)


class _Inference:
    """ONNX's shape inference of a graph, with other extents each time."""

    def __init__(self, graph: SessionGraph) -> None:
        self._is_lost = False
        self.nodes: dict[int, onnx.NodeProto] = {}
        for node in graph.nodes:
            if not node.has_subgraphs or node.index in graph.bodies:
                try:
                    self.nodes[node.index] = node_proto(graph, node)
                except OrtError:
                    continue
        small = [name for name in graph.constants if _count(graph, name) <= _SMALL and graph.values[name].dtype]
        self._initializers = [tensor_proto(graph.api, name, graph.constants[name]) for name in small]
        self._initializers += [numpy_helper.from_array(value, name) for name, value in graph.bound.items()]
        self.arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in self._initializers}
        self.values = {
            name: [int(each) for each in array.reshape(-1)]
            for name, array in self.arrays.items()
            if array.dtype in (np.int64, np.int32)
        }
        large = [graph.values[name] for name in graph.constants if name not in set(small) and graph.values[name].dtype]
        self._weights = [helper.make_tensor_value_info(each.name, each.dtype, each.dims) for each in large]
        self._opsets = opset_imports(graph, self.nodes.values())
        self._types = {name: value.dtype for name, value in graph.values.items()}
        self.constants = {name: _ints(graph.values[name].dims) for name in graph.constants if graph.values[name].dtype}
        self.constants |= {name: value.shape for name, value in graph.bound.items()}

    def __call__(self, opened: Mapping[str, Shape], cut: Iterable[int]) -> dict[str, Shape]:
        """Shapes by name.

        Args:
            opened: shapes of what comes from outside.
            cut: numbers of nodes whose results are among that.
        """
        left_out = set(cut)
        inputs = [
            helper.make_tensor_value_info(name, self._types[name], list(shape))
            for name, shape in opened.items()
            if self._types[name]
        ]
        nodes = [node for index, node in self.nodes.items() if index not in left_out]
        graph = helper.make_graph(nodes, "graph", [*inputs, *self._weights], [], self._initializers)
        model = helper.make_model(graph, opset_imports=self._opsets, ir_version=_IR)
        inferred: Iterable[onnx.ValueInfoProto] = ()
        if not self._is_lost:
            try:
                inferred = inferred_model(model).graph.value_info
            except (OnnxError, OnnxProcessError) as error:
                self._is_lost = isinstance(error, OnnxProcessError)  # with other extents it would be again
                _LOG.debug("shapes are not inferred: %s", error)
        found: dict[str, Shape] = dict(self.constants)
        for value in inferred:
            if value.type.HasField("tensor_type") and value.type.tensor_type.HasField("shape"):
                dims = value.type.tensor_type.shape.dim
                found[value.name] = tuple(dim.dim_value if dim.HasField("dim_value") else None for dim in dims)
        return {**found, **opened}


def _count(graph: SessionGraph, name: str) -> int:
    return math.prod(_ints(graph.values[name].dims))


class _Symbols:
    """Numbers of the dims that are open."""

    def __init__(self, given: Mapping[str, int], style: Callable[[int, bool], int]) -> None:
        self.numbers: dict[_Key, int] = {}
        self._fixed: set[_Key] = set()
        self._same: dict[_Key, _Key] = {}
        self._tries: dict[_Key, int] = {}
        self._given = given
        self._style = style

    def add(self, key: _Key, first: bool) -> None:
        """A symbol, if it is new; ``first``: it is that of a first axis."""
        if key in self.numbers or key in self._same:
            return
        name = key if isinstance(key, str) else f"{key[0]}.{key[1]}"
        if name in self._given:
            self.numbers[key] = self._given[name]
            self._fixed.add(key)
        else:
            self.numbers[key] = self._style(len(self.numbers), first)

    def root(self, key: _Key) -> _Key:
        while key in self._same:
            key = self._same[key]
        return key

    def number(self, key: _Key) -> int:
        return self.numbers[self.root(key)]

    def free(self, key: _Key | None) -> _Key | None:
        """The symbol behind one, if its number may change."""
        if key is None:
            return None
        key = self.root(key)
        return key if key not in self._fixed and self._tries.get(key, 0) < _TRIES else None

    def with_number(self, number: int) -> _Key | None:
        """The symbol that has a number and may change it."""
        return next((key for key, has in self.numbers.items() if has == number and self.free(key) is not None), None)

    def learn(self, key: _Key, number: int, *, for_good: bool) -> None:
        """Give a free symbol another number."""
        self._tries[key] = self._tries.get(key, 0) + 1
        self.numbers[key] = number
        if for_good:
            self._fixed.add(key)

    def unite(self, one: _Key, other: _Key) -> None:
        """Two free symbols are one; it keeps the number of the older."""
        older, newer = sorted((one, other), key=list(self.numbers).index)
        if older != newer:
            del self.numbers[newer]
            self._same[newer] = older


class _Trial:
    """One try to give all symbols numbers that fit."""

    def __init__(
        self, graph: SessionGraph, inference: _Inference, given: Mapping[str, int], style: Callable[[int, bool], int],
        probe: Probe,
    ) -> None:  # fmt: skip
        self._graph = graph
        self._inference = inference
        self._probe = probe
        self.symbols = _Symbols(given, style)
        self._opened: dict[str, tuple[int | _Key, ...]] = {}
        self._cut: set[int] = set()
        self.shapes: dict[str, Shape] = {}
        self.contradictions = 0
        self._failed = 0  # nodes that do not run with these extents
        self._makers = {name: node for node in graph.nodes for name in node.outputs}
        for name, value in graph.values.items():
            if name not in self._makers and name not in inference.constants and value.dims is not None:
                self._open(name, value.dims)

    def settle(self) -> None:
        """Infer, and learn from what does not fit, until nothing is left to learn."""
        wrong: list[Equality] = []
        for _ in range(_ROUNDS):
            opened = {name: self._resolved(dims) for name, dims in self._opened.items()}
            self.shapes = self._inference(opened, self._cut)
            wrong = [each for each in self._equalities() if self._differs(each)]
            if not self._learn(wrong) and not self._cut_more():
                break
        # nothing is left of what is smaller than a window: then it is not seen what would compute it
        empty = sum(1 for name, shape in self.shapes.items() if 0 in shape and name not in self._inference.constants)
        self.contradictions = len(wrong) + self._failed + empty

    def _open(self, name: str, dims: Sequence[int | str | None]) -> None:
        made: list[int | _Key] = []
        for axis, dim in enumerate(dims):
            key: int | _Key = (name, axis) if dim is None else dim
            if not isinstance(key, int):
                self.symbols.add(key, axis == 0)
            made.append(key)
        self._opened[name] = tuple(made)

    def _resolved(self, dims: Iterable[int | _Key]) -> tuple[int, ...]:
        return tuple(dim if isinstance(dim, int) else self.symbols.number(dim) for dim in dims)

    # ---- what has to be equal

    def _equalities(self) -> Iterator[Equality]:
        for node in self._inference.nodes.values():
            yield from equalities(node, self.shapes, self._inference.values)
        for name, value in self._graph.values.items():
            shape = self.shapes.get(name)
            if shape is not None and value.dims is not None and len(shape) == len(value.dims):
                for axis, dim in enumerate(value.dims):
                    if isinstance(dim, int):
                        yield Equality((name, axis), dim)

    def _number(self, at: Place | int) -> int | None:
        return at if isinstance(at, int) else self.shapes[at[0]][at[1]]

    def _differs(self, each: Equality) -> bool:
        one, other = self._number(each.at), self._number(each.other)
        return one is not None and other is not None and one != other

    def _learn(self, wrong: Sequence[Equality]) -> bool:
        """Change the symbols that are open at the places themselves; if there are none, one that has such a number."""
        changed = False
        for each in wrong:
            if self._differs_now(each):
                changed |= self._resolve(each, self._key_at)
        return changed or any(self._resolve(each, self._key_by_number) for each in wrong)

    def _differs_now(self, each: Equality) -> bool:
        """Whether what was learned meanwhile has not settled it."""
        numbers = []
        for at in (each.at, each.other):
            key = None if isinstance(at, int) else self._key_at(at)
            numbers.append(self._number(at) if key is None else self.symbols.number(key))
        return numbers[0] != numbers[1]

    def _key_at(self, at: Place) -> _Key | None:
        dims = self._opened.get(at[0])
        key = dims[at[1]] if dims is not None else None
        return None if isinstance(key, int) else key

    def _key_by_number(self, at: Place) -> _Key | None:
        number = self._number(at)
        return None if number is None or at[0] in self._inference.constants else self.symbols.with_number(number)

    def _resolve(self, each: Equality, key_of: Callable[[Place], _Key | None]) -> bool:
        one = self.symbols.free(key_of(each.at))
        known = isinstance(each.other, int) or each.other[0] in self._inference.constants
        other = None if isinstance(each.other, int) else self.symbols.free(key_of(each.other))
        if one is not None and other is not None:
            self.symbols.unite(one, other)
            return one != other
        at, place = (one, each.other) if one is not None else (other, each.at)
        number = self._number(place)
        if at is None or number is None or number < 1 or number == self.symbols.numbers[at]:
            return False
        for_good = known if one is not None else each.at[0] in self._inference.constants
        self.symbols.learn(at, number, for_good=for_good)
        return True

    # ---- what cannot be inferred

    def _cut_more(self) -> bool:
        """Open the results of nodes of which nothing is inferred though all is known that they read."""
        cut = [node.index for node in self._graph.nodes if node.index not in self._cut and self._is_stuck(node.index)]
        for index in cut:
            self._cut.add(index)
            node = self._graph.nodes[index]
            unknown = [name for name in node.outputs if name and self._graph.values[name].dims is None]
            probed = self._probed(node) if unknown else None
            self._failed += bool(unknown and probed is None)
            for name in filter(None, node.outputs):
                dims = (probed or {}).get(name) if name in unknown else self._graph.values[name].dims
                if dims is not None:
                    inferred = self.shapes.get(name)
                    same = inferred if inferred is not None and len(inferred) == len(dims) else [None] * len(dims)
                    self._open(name, [dim if each is None else each for dim, each in zip(dims, same, strict=True)])
        return bool(cut)

    def _probed(self, node: Node) -> Mapping[str, Sequence[int]] | None:
        values: dict[str, Array] = {}
        if node.op_type == "Loop" and not node.domain:  # as a rule its state keeps its dims
            return self._known_of(zip(node.outputs, node.inputs[2:], strict=False))
        if node.has_subgraphs:  # which branch is taken decides
            value = self._value(node.inputs[0], {}) if node.index in self._graph.bodies and node.inputs else None
            if value is None:
                return None
            values[node.inputs[0]] = value
        return self._probe(node.index, self._known(read_by(self._graph, node)), values)

    def _value(self, name: str, known: dict[str, Array | None]) -> Array | None:
        """What follows from constants and extents alone; None if it is not that, or large."""
        if name in self._inference.arrays:
            return self._inference.arrays[name]
        if name not in known:
            known[name] = None  # until it is found out
            node = self._makers.get(name)
            proto = self._inference.nodes.get(node.index) if node is not None else None
            if node is not None and proto is not None and not node.domain and not node.has_subgraphs:
                known[name] = self._evaluated(node, proto, name, known)
        return known[name]

    def _evaluated(self, node: Node, proto: onnx.NodeProto, name: str, known: dict[str, Array | None]) -> Array | None:
        values: dict[str, Array] = {}
        dims: dict[str, tuple[int, ...]] = {}
        if node.op_type in ("Shape", "Size"):
            dims = self._known(node.inputs[:1])
        else:
            found = {each: self._value(each, known) for each in node.inputs if each}
            values = {each: value for each, value in found.items() if value is not None and value.size <= _SMALL}
            if len(values) != len(found) or not found:
                return None
        try:
            results = evaluate(proto, {"": self._graph.opsets.get("", 1)}, values, dims)
        except OnnxProcessError as error:
            _LOG.debug("%s is not computed: %s", node.label, error)
            return None
        return None if results is None else results[list(proto.output).index(name)]

    def _is_stuck(self, index: int) -> bool:
        node = self._graph.nodes[index]
        known = all(self._is_known(name) for name in (*node.inputs, *node.hidden) if name)
        return known and not all(self._is_known(name) for name in node.outputs if name)

    def _is_known(self, name: str) -> bool:
        """Nothing is to be known of what is no tensor of numbers, nor of what could not be opened."""
        shape = self.shapes.get(name)
        return not self._graph.values[name].dtype or (shape is not None and None not in shape)

    def _known(self, names: Iterable[str]) -> dict[str, tuple[int, ...]]:
        return self._known_of((name, name) for name in names if name)

    def _known_of(self, names: Iterable[tuple[str, str]]) -> dict[str, tuple[int, ...]]:
        """By the first name of each pair, the dims that the second one has, where all of them are known."""
        known = {name: self.shapes[other] for name, other in names if other in self.shapes}
        return {name: _ints(shape) for name, shape in known.items() if None not in shape}
