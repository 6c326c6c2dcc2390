"""Graphs that a plugin is asked about: plain ones for the checks of the interface, random ones for its claims."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from fusilli_plugin.engine.importers import export_graph
from fusilli_plugin.testing.graphs import FAMILIES, inputs
from fusilli_plugin.testing.graphs import graph as random_graph
from fusilli_plugin.testing.places import Arrays
from graph_api import DataType, Graph, NormFwdPhase, NotSupportedError, PointwiseMode, ReductionMode, ResampleMode
from graph_api.numerics import Evaluation, evaluate
from graph_api.ops.pointwise import MODES
from hipdnn_backend.errors import WireError
from hipdnn_backend.wire import Layout, encode_graph, graph_in_layout

__all__ = [
    "FAMILIES",
    "FUNCTIONS",
    "Sample",
    "function",
    "overridable",
    "plain",
    "random_sample",
    "scaled",
    "two_nodes",
]

_TYPES: Final = (DataType.FLOAT, DataType.HALF, DataType.BFLOAT16)


@dataclass(frozen=True)
class Sample:
    """A graph, and what it gives.

    Attributes:
        name: for people.
        graph: validated.
        seed: of the inputs.
        given: the inputs, where they are not random.
    """

    name: str
    graph: Graph
    seed: int = 0
    given: Arrays | None = None
    is_override_shape_enabled: bool = False

    @cached_property
    def inputs(self) -> Arrays:
        """Those that are given, or random ones that belong together."""
        return inputs(self.graph, self.seed) if self.given is None else self.given

    @cached_property
    def exact(self) -> Evaluation:
        """The graph in float64."""
        return evaluate(self.graph, dict(self.inputs))

    def data(self, layout: Layout) -> bytes | None:
        """The graph as a host hands it over; None if the layout has no word for something in it."""
        try:
            made = export_graph(self.graph, is_override_shape_enabled=self.is_override_shape_enabled)
            return graph_in_layout(encode_graph(made), layout)
        except (NotSupportedError, WireError):
            return None


def plain() -> Iterator[Sample]:
    """What engines most often take, the simplest first."""
    for dtype in _TYPES:
        for name, make in _PLAIN.items():
            yield Sample(f"{name} {dtype.name}", make(_new(name, dtype)).validate())


def random_sample(family: str, seed: int) -> Sample:
    """A graph of a family of `FAMILIES`, which the seed decides."""
    return Sample(f"{family} {seed}", random_graph(seed, family), seed)


FUNCTIONS: Final = tuple(mode for mode in MODES if mode is not PointwiseMode.GEN_INDEX)  # which takes more than tensors


def function(number: int) -> Sample:
    """A graph of one pointwise function of `FUNCTIONS`."""
    mode = FUNCTIONS[number]
    g = _new(mode.name, DataType.FLOAT)
    g.pointwise(mode, *(g.tensor(name, dim=(2, 4, 5, 6)) for name in "abc"[: MODES[mode].arity])).set_output(True)
    return Sample(mode.name, g.validate(), seed=number)


def overridable(rows: int) -> Sample:
    """A graph whose dims may be overridden at each execution, with so many rows."""
    g = _new("rows", DataType.FLOAT)
    y = g.pointwise(PointwiseMode.RELU_FWD, g.tensor("x", dim=(rows, 24), uid=1))
    y.set_output(True).set_uid(2)
    return Sample("overridable", g.validate(), is_override_shape_enabled=True)


def scaled() -> Sample:
    """A graph with a factor that comes from host memory with each execution."""
    g = _new("scaled", DataType.FLOAT)
    x, factor = g.tensor("x", dim=(4, 24), uid=1), g.tensor("factor", dim=(1, 1), uid=2, is_pass_by_value=True)
    g.pointwise(PointwiseMode.MUL, x, factor).set_output(True).set_uid(3)
    return Sample("scaled", g.validate())


def two_nodes() -> Sample:
    """Two pointwise nodes with a tensor between them."""
    g = _new("two nodes", DataType.FLOAT)
    x = g.tensor("x", dim=(4, 24), uid=1)
    y = g.pointwise(PointwiseMode.RELU_FWD, x).set_uid(2)
    g.pointwise(PointwiseMode.NEG, y).set_output(True).set_uid(3)
    return Sample("two nodes", g.validate())


def _new(name: str, dtype: DataType) -> Graph:
    return Graph(name, io_data_type=dtype, compute_data_type=DataType.FLOAT)


def _relu(g: Graph) -> Graph:
    g.pointwise(PointwiseMode.RELU_FWD, g.tensor("x", dim=(2, 4, 5, 6))).set_output(True)
    return g


def _add(g: Graph) -> Graph:
    a, b = g.tensor("a", dim=(2, 4, 5, 6)), g.tensor("b", dim=(1, 4, 1, 1))
    g.pointwise(PointwiseMode.ADD, a, b).set_output(True)
    return g


def _conv(layout: str) -> Callable[[Graph], Graph]:
    def make(g: Graph) -> Graph:
        x, w = g.tensor("x", dim=(2, 16, 9, 9), layout=layout), g.tensor("w", dim=(32, 16, 3, 3), layout=layout)
        g.conv_fprop(x, w, padding=1).set_output(True)
        return g

    return make


def _conv_bias_relu(g: Graph) -> Graph:
    x, w = g.tensor("x", dim=(2, 16, 9, 9), layout="NHWC"), g.tensor("w", dim=(32, 16, 3, 3), layout="NHWC")
    y = g.pointwise(PointwiseMode.ADD, g.conv_fprop(x, w, padding=1), g.tensor("b", dim=(1, 32, 1, 1)))
    g.pointwise(PointwiseMode.RELU_FWD, y).set_output(True)
    return g


def _dgrad(g: Graph) -> Graph:
    dx = g.conv_dgrad(g.tensor("dy", dim=(2, 32, 9, 9)), g.tensor("w", dim=(32, 16, 3, 3)), padding=1)
    dx.set_output(True).set_dim((2, 16, 9, 9))
    return g


def _wgrad(g: Graph) -> Graph:
    dw = g.conv_wgrad(g.tensor("dy", dim=(2, 32, 9, 9)), g.tensor("x", dim=(2, 16, 9, 9)), padding=1)
    dw.set_output(True).set_dim((32, 16, 3, 3))
    return g


def _matmul(g: Graph) -> Graph:
    g.matmul(g.tensor("a", dim=(2, 32, 48)), g.tensor("b", dim=(2, 48, 16))).set_output(True)
    return g


def _matmul_bias_relu(g: Graph) -> Graph:
    y = g.matmul(g.tensor("a", dim=(1, 32, 48)), g.tensor("b", dim=(1, 48, 16)))
    y = g.pointwise(PointwiseMode.ADD, y, g.tensor("bias", dim=(1, 1, 16)))
    g.pointwise(PointwiseMode.RELU_FWD, y).set_output(True)
    return g


def _batchnorm(g: Graph) -> Graph:
    own = {name: g.tensor(name, dim=(1, 4, 1, 1), data_type=DataType.FLOAT) for name in ("scale", "bias")}
    y, *statistics = g.batchnorm(g.tensor("x", dim=(4, 4, 5, 6)), own["scale"], own["bias"], epsilon=1e-5)
    y.set_output(True)
    for tensor in statistics:
        if tensor is not None:
            tensor.set_output(True).set_data_type(DataType.FLOAT)
    return g


def _layernorm(g: Graph) -> Graph:
    x, scale, bias = (g.tensor(n, dim=d) for n, d in (("x", (3, 5, 64)), ("scale", (1, 1, 64)), ("bias", (1, 1, 64))))
    y, _, _ = g.layernorm(x, scale, bias, epsilon=1e-5, forward_phase=NormFwdPhase.INFERENCE)
    y.set_output(True)
    return g


def _reduction(g: Graph) -> Graph:
    g.reduction(g.tensor("x", dim=(3, 5, 64)), mode=ReductionMode.ADD).set_output(True).set_dim((3, 5, 1))
    return g


def _pool(g: Graph) -> Graph:
    y, _ = g.resample_fwd(g.tensor("x", dim=(2, 4, 8, 8)), mode=ResampleMode.MAXPOOL, window=2, stride=2)
    y.set_output(True)
    return g


def _attention(g: Graph) -> Graph:
    q, k, v = (g.tensor(name, dim=(1, 2, 16, 32)) for name in "qkv")
    g.sdpa(q, k, v, attn_scale=0.125).o.set_output(True)
    return g


_PLAIN: Final[dict[str, Callable[[Graph], Graph]]] = {
    "relu": _relu,
    "add": _add,
    "conv": _conv("NCHW"),
    "conv NHWC": _conv("NHWC"),
    "conv+bias+relu": _conv_bias_relu,
    "dgrad": _dgrad,
    "wgrad": _wgrad,
    "matmul": _matmul,
    "matmul+bias+relu": _matmul_bias_relu,
    "batchnorm": _batchnorm,
    "layernorm": _layernorm,
    "reduction": _reduction,
    "pool": _pool,
    "attention": _attention,
}
