"""The sides of ``--suite gpu``: a graph of ours, and the same in PyTorch, on operands in a device's memory.

A run is a call from the host until the results are there, on both sides. Nobody but the caller waits for IREE's CUDA
driver, so that is what both can be asked for; the suite's first row shows how much of it is the call itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

import numpy as np

from fusilli_plugin.bench.graphs import find_graph
from fusilli_plugin.bench.loaded import Loaded
from graph_api import DataType, FusilliError, Graph, TensorAttr
from iree_bridge import Device, Options, support
from iree_bridge.api import load_code
from iree_bridge.artifact.vectors import make_inputs, make_sampled_vector
from iree_bridge.compile.compiler import compile_code
from iree_bridge.tuning import ensure
from iree_bridge.tuning.placing import placed

__all__ = ["in_torch", "ours"]

Array = np.ndarray[Any, Any]
_SEED = 0


def ours(name: str, device: str, end: ExitStack) -> Loaded:
    """The graph of a row on a device; its results are compared with the float64 reference where that is affordable.

    Args:
        name: of the row.
        device: as everywhere.
        end: closed when the row is done; the operands lie on the device until then.

    Raises:
        NotSupportedError, CompileError, ExecutionError: as ``iree_bridge.build``.
    """
    graph, place, options = find_graph(name).graph(), Device.parse(device), Options.from_env()
    support(graph, place.target).require()
    ensure(graph, place, options)
    executable, code = load_code(graph, compile_code(graph, place.target, options), place, options)
    inputs, results = make_inputs(graph, _SEED), {tensor: tensor.empty() for tensor in graph.arguments().outputs}
    for array in results.values():
        array[...] = array.dtype.type(77)
    executable.run({**inputs, **results})
    wrong = _wrong(graph, results)
    addresses = end.enter_context(placed(place, [*results.values(), *(inputs[t] for t in graph.arguments().inputs)]))
    verdict = "" if wrong is None else "wrong" if wrong else "right"
    return Loaded(
        executable.bind_pointers(addresses), lambda: map(_plain, results.values()), code.form, verdict, wrong or ""
    )


def _wrong(graph: Graph, results: dict[TensorAttr, Array]) -> str | None:
    """What is wrong with results, "" if nothing is; None: nobody can afford the reference."""
    vector = make_sampled_vector(graph, _SEED)
    if isinstance(vector, str):
        return None
    found = vector.check(graph, {tensor.uid: array for tensor, array in results.items()})
    return "; ".join(str(each) for each in found if not each.ok)


def _plain(array: Array) -> Array:
    """In a type that numpy can write; floats of 16 bits are exact in 32."""
    return array if array.dtype.kind in "iub" else array.astype(np.float32)


def in_torch(name: str, device: str, threads: int) -> Loaded:
    """The operation of a row in PyTorch.

    Args:
        name: of the row.
        device: ``cuda:0`` and ``hip:0`` are PyTorch's ``cuda:0``; ``cpu``.
        threads: of a CPU; 0: as PyTorch likes.

    Raises:
        ImportError: PyTorch is not installed.
        FusilliError: it has no such operation.
        RuntimeError: it does not see the device.
    """
    import torch

    row, place = find_graph(name), Device.parse(device)
    operation = row.torch
    if operation is None:
        raise FusilliError(f"PyTorch has no operation for '{name}'")
    if threads:
        torch.set_num_threads(threads)
    torch.backends.cudnn.benchmark = True
    where = torch.device("cuda", place.index) if place.is_gpu else torch.device("cpu")
    graph = row.graph()
    arrays = make_inputs(graph, _SEED)
    tensors = row.prepare(
        [_tensor(torch, arrays[tensor], tensor.data_type).to(where) for tensor in graph.arguments().inputs]
    )

    def call() -> Any:
        with torch.inference_mode():
            return operation(torch, tensors)

    def run() -> None:
        call()
        if place.is_gpu:
            torch.cuda.synchronize(where)

    def results() -> Iterable[Array]:
        result = call()
        yield (result.float() if result.is_floating_point() else result).cpu().numpy()

    return Loaded(run, results)


def _tensor(torch: Any, array: Array, dtype: DataType) -> Any:
    if dtype is DataType.BFLOAT16:  # numpy's is not one that PyTorch knows
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)
