"""The case tables through the C functions, on the CPU: results, sizes in bytes, and nothing written beside them.

The cases run many to a process. The float64 reference judges them; the host looks at guards behind each buffer, at the
inputs, and at a second execution.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fusilli_plugin.engine.engine import FusilliEngine
from fusilli_plugin.engine.importers import Reading, export_graph, import_graph
from graph_api import DataType, Graph, NotSupportedError, TensorAttr
from hipdnn_backend.wire import EngineConfig, decode_graph, encode_graph
from iree_bridge import Options, Target
from tests.cases import OpCase, Pack, all_cases
from tests.fusilli_plugin.plugin.hosting import Case, Session, write_pack
from tests.support.cases import is_declined
from tests.support.outcomes import case_id

pytestmark = pytest.mark.iree_cpu

_CASES = [(case_id(family, case), case) for family, case in all_cases()]
_AT_ONCE = 40
_SAMPLE = [
    "block_scale-quantize_mxfp4_f32",
    "block_scale-quantize_mxfp6_e2m3_not_divided",
    "small_types-float_to_int4_24x48",
    "small_types-fp6_e3m2_to_float_4x64",
    "small_types-fp8_e4m3_fnuz_to_float_4x64",
    "sdpa_small_types-fp8_e4m3_scaled",
    "moe-scatter",
]
_BITS = {
    DataType.FP4_E2M1: 4, DataType.INT4: 4, DataType.UINT4: 4, DataType.FP6_E2M3: 6, DataType.FP6_E3M2: 6,
    DataType.BOOLEAN: 8,
}  # fmt: skip
"""Of an element in memory, where that is not what numpy's type says."""


@pytest.mark.parametrize(
    "cases",
    [
        pytest.param([(name, case) for name, case in _CASES if name in _SAMPLE], id="sample"),
        *(
            pytest.param(_CASES[start : start + _AT_ONCE], id=f"from {start}", marks=pytest.mark.slow)
            for start in range(0, len(_CASES), _AT_ONCE)
        ),
    ],
)
def test_cases(session: Session, tmp_path: Path, cases: Sequence[tuple[str, OpCase]]) -> None:
    made = dict(_written(session, tmp_path, cases))
    done = session.start("tables", tmp_path, len(made), FUSILLI_WIRE_DTYPES="newest")
    assert done.returncode == 0, f"{list(made)}\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
    wrong = {name: found for name, case in made.items() if (found := case.wrong())}
    assert not wrong


def test_the_sample_is_there() -> None:
    assert set(_SAMPLE) <= {name for name, _ in _CASES}


def _written(session: Session, folder: Path, cases: Sequence[tuple[str, OpCase]]) -> Iterator[tuple[str, Case]]:
    """The cases that the CPU serves and hipDNN's schema can say, each in a folder of its own, their code compiled."""
    options = replace(Options.from_env(), cache_dir=session.cache, device="cpu", claim="all", newest_dtypes=True)
    engine, place = FusilliEngine("cpu", options=options), 0
    for name, case in cases:
        if is_declined(case, Target.parse("cpu")):
            continue
        graph = case.graph()
        if not _is_on_the_wire(graph):
            with pytest.raises(NotSupportedError, match="hipDNN's schema has no"):
                export_graph(graph)
            continue
        data = encode_graph(export_graph(graph))
        engine.workspace_size(data, EngineConfig(engine_id=engine.id))
        yield name, _folder(folder / str(place), data, graph, case.pack(graph))
        place += 1


def _is_on_the_wire(graph: Graph) -> bool:
    scalars = {tensor.data_type for tensor in graph.tensors if tensor.value is not None}
    unknown = scalars & {DataType.UINT8, DataType.INT8, DataType.INT4}
    return not unknown and all(tensor.data_type is not DataType.UINT4 for tensor in graph.tensors)


def _folder(folder: Path, data: bytes, graph: Graph, inputs: Pack) -> Case:
    """Judged by the graph as it was built: the wire has no reference of custom operations."""
    there = import_graph(decode_graph(data), Reading(newest_dtypes=True))
    for tensor in (*graph.arguments().inputs, *graph.arguments().outputs):
        assert tensor.nbytes == there.find(tensor.uid).nbytes == _bytes(tensor), tensor
    write_pack(folder, graph, inputs)
    (folder / "graph.bin").write_bytes(data)
    return Case(folder, graph, inputs)


def _bytes(tensor: TensorAttr) -> int:
    """From the first element to the last one, in whole bytes."""
    reach = 1 + sum((dim - 1) * stride for dim, stride in zip(tensor.dims, tensor.strides, strict=True))
    return math.ceil(reach * _BITS.get(tensor.data_type, 8 * np.dtype(tensor.data_type.numpy).itemsize) / 8)
